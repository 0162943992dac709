// The options that turn ./test_gpt2 and ./test_gpt2cu from unit tests into a comparison with what another
// implementation made of the same batch:
//   --model FILE --state FILE [--losses FILE]     files of kinds 20240326 and 20240327; ten losses
#pragma once
#include <cstdio>
#include <string>
#include <string_view>

#include "dev/test/cpu/compare_state.h"
#include "llmc/host/base/error.h"

namespace llmc {

struct CompareOptions {
    std::string model, state, losses;

    std::string* find(std::string_view name) {
        return name == "--model"    ? &model
               : name == "--state"  ? &state
               : name == "--losses" ? &losses
                                    : nullptr;
    }
};

// Is a comparison asked for, by any of its options or by a file without one? doctest, which knows no such word, would
// run all tests instead, without a word about the file.
inline bool wants_comparison(int argc, char** argv) {
    CompareOptions options;
    for (int i = 1; i < argc; i++) {
        const bool a_file = argv[i][0] != '-' && std::string_view(argv[i - 1]) != "--part";  // test_gpt2cu's
        if (a_file || options.find(argv[i]) != nullptr) { return true; }
    }
    return false;
}

inline CompareOptions parse_compare_options(int argc, char** argv) {
    CompareOptions options;
    for (int i = 1; i < argc; i++) {
        std::string* value = options.find(argv[i]);
        if (value == nullptr || i + 1 == argc) {
            throw Error(kExitUsage,
                        fmt::format("{}: expected --model FILE --state FILE [--losses FILE]", argv[i]));
        }
        *value = argv[++i];
    }
    if (options.model.empty() || options.state.empty()) {
        throw Error(kExitUsage, "--model and --state go together");
    }
    return options;
}

// the program's exit code: 0 if everything is within its bounds
template <typename Model>
int run_comparison(int argc, char** argv) {
    CompareOptions options = parse_compare_options(argc, argv);
    int failures = compare_with_state<Model>(options.model, options.state, options.losses);
    std::printf(failures > 0 ? "%d over their bounds\n" : "all within their bounds\n", failures);
    return failures > 0;
}

}  // namespace llmc

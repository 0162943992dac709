// ./test_gpt2: the checks that need no GPU.
//   ./test_gpt2                          every unit test (dev/test/test_*.cpp); doctest's options work, such
//   as
//                                        --test-case="layernorm*" and --list-test-cases
//   ./test_gpt2 --model FILE --state FILE [--losses FILE]
//                                        compares the CPU model with what another implementation made of the
//                                        same batch: a model file (20240326), a debug state (20240327), ten
//                                        losses
#include <cstdio>
#include <string>
#include <string_view>

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include "dev/test/compare_state.h"
#include "llmc/gpt2_cpu.h"
#include "llmc/threads.h"

namespace {

int compare(int argc, char** argv) {
    std::string model, state, losses;
    for (int i = 1; i < argc; i++) {
        std::string_view name = argv[i];
        std::string* value = name == "--model"    ? &model
                             : name == "--state"  ? &state
                             : name == "--losses" ? &losses
                                                  : nullptr;
        if (value == nullptr || i + 1 == argc) {
            throw llmc::Error(llmc::kExitUsage,
                              llmc::strf("%s: expected --model FILE --state FILE [--losses FILE]", argv[i]));
        }
        *value = argv[++i];
    }
    if (model.empty() || state.empty()) {
        throw llmc::Error(llmc::kExitUsage, "--model and --state go together");
    }
    int failures = llmc::compare_with_state<llmc::GPT2Cpu>(model, state, losses);
    std::printf(failures > 0 ? "%d over their bounds\n" : "all within their bounds\n", failures);
    return failures > 0;
}

}  // namespace

TEST_CASE("fixture: logits, loss, gradients and ten updates agree with PyTorch") {
    const std::string folder = "dev/test/fixture/";
    int failures = llmc::compare_with_state<llmc::GPT2Cpu>(folder + "model.bin", folder + "state.bin",
                                                           folder + "losses.txt");
    CHECK_MESSAGE(failures == 0, "tensors or losses over their bounds, listed above");
}

int main(int argc, char** argv) {
    llmc::wait_politely(argv);
    try {
        for (int i = 1; i < argc; i++) {
            std::string_view name = argv[i];
            if (name == "--model" || name == "--state" || name == "--losses") { return compare(argc, argv); }
        }
        return doctest::Context(argc, argv).run();
    } catch (const llmc::Error& e) {
        std::fflush(stdout);
        std::fprintf(stderr, "test_gpt2: %s\n", e.what());
        return e.exit_code;
    }
}

// ./test_emulated: the tests of LayerNorm on the GPU, where there is none. dev/test/gpu/test_layernorm*.cpp as they are, and
// test_layernorm.cpp here, and those of the kernels that write a token at a time, linked to the kernels that ship, which
// machine.h runs.
//   ./test_emulated                              this folder's tests alone: each layout, a few rows (four minutes)
//   ./test_emulated --all                        those of dev/test/gpu, too, but the largest (hours)
//   ./test_emulated --test-case="*rings*"        doctest's options choose among all of them
//   PLUMB_EMULATION_SEED=2 ./test_emulated       another order of all that has none
#include <string_view>
#include <vector>

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

int main(int argc, char** argv) {
    std::vector<char*> options;
    bool all = false, chosen = false;
    for (int i = 0; i < argc; i++) {
        std::string_view option = argv[i];
        all |= option == "--all";
        chosen |= option.starts_with("-tc") || option.starts_with("--test-");
        if (option != "--all" && option != "--thorough") {
            options.push_back(argv[i]);
        }  // thorough: as of test_gpt2cu
    }
    doctest::Context context;
    if (all) {
        context.setOption("test-suite-exclude", "thorough");
        context.setOption("test-case-exclude", "*2^*");
    } else if (!chosen) {
        context.setOption("test-suite", "emulated,decode,groups");
    }
    context.applyCommandLine((int)options.size(), options.data());
    return context.run();
}

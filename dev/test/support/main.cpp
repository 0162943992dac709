// ./test_gpt2: the checks that need no GPU.
//   ./test_gpt2                          every unit test (host, ops, model); doctest's options work:
//                                        --test-case="layernorm*" and --list-test-cases
//   ./test_gpt2 --model FILE --state FILE [--losses FILE]
//                                        compares the CPU model with what another implementation made of the
//                                        same batch: a model file (20240326), a debug state (20240327), ten
//                                        losses

#define DOCTEST_CONFIG_IMPLEMENT

#include "dev/test/support/compare_state.h"
#include "llmc/host/base/resources.h"
#include "llmc/host/base/text.h"
#include "llmc/model/cpu/gpt2.h"

TEST_CASE("fixture: logits, loss, gradients and ten updates agree with PyTorch") {
    const std::string folder = "dev/test/fixture/";
    int failures = llmc::compare_with_state<llmc::GPT2Cpu>(folder + "model.bin", folder + "state.bin",
                                                           folder + "losses.txt");
    CHECK_MESSAGE(failures == 0, "tensors or losses over their bounds, listed above");
}

int main(int argc, char** argv) {
    return llmc::run_program("test_gpt2", "", [&] {
        llmc::wait_politely(argv);
        if (llmc::wants_comparison(argc, argv)) { return llmc::run_comparison<llmc::GPT2Cpu>(argc, argv); }
        return doctest::Context(argc, argv).run();
    });
}

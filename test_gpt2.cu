// ./test_gpt2cu: the GPU's layers and model against the reference. The tests are host code, in dev/test/gpu.
//   ./test_gpt2cu                        every test but the thorough ones; doctest's options work, such as
//                                        --test-case="layernorm*" and --list-test-cases
//   ./test_gpt2cu --thorough             those too (an hour)
//   ./test_gpt2cu --part 2/4             every fourth test case, from the second on
//   ./test_gpt2cu --model FILE --state FILE [--losses FILE]     as in test_gpt2.cpp
// PLUMB_BOUNDS=1 also prints how much of its bound each result used. Without a GPU nothing is tested.

namespace llmc {
int gpu_tests_main(int argc, char** argv);
}

int main(int argc, char** argv) { return llmc::gpu_tests_main(argc, argv); }

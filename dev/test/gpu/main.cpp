// ./test_gpt2cu: the GPU's layers and model against the reference. The tests are host code.
//   ./test_gpt2cu                        every test but the thorough ones; doctest's options work, such as
//                                        --test-case="layernorm*" and --list-test-cases
//   ./test_gpt2cu --thorough             those too (an hour)
//   ./test_gpt2cu --part 2/4             every fourth test case, from the second on
//   ./test_gpt2cu --model FILE --state FILE [--losses FILE]     as in dev/test/support/main.cpp
// PLUMB_BOUNDS=1 also prints how much of its bound each result used. Without a GPU nothing is tested.
#include <algorithm>
#include <cstdio>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include "dev/test/gpu/dump_state.h"
#include "dev/test/gpu/layer_test.h"
#include "dev/test/support/compare_state.h"
#include "llmc/host/base/resources.h"
#include "llmc/model/gpu/gpt2.cuh"

namespace llmc {
namespace gpu_test {
namespace {

constexpr const char* kThoroughSuite = "thorough";

struct TestOptions {
    bool thorough = false;
    int part = 1, parts = 1;      // test cases part, part + parts, ...
    bool question = false;        // doctest is asked for a list or its help: no GPU needed
    std::vector<char*> doctests;  // what is left, for doctest
};

TestOptions parse_test_options(int argc, char** argv) {
    TestOptions o;
    o.doctests.push_back(argv[0]);
    for (int i = 1; i < argc; i++) {
        std::string_view name = argv[i];
        if (name == "--thorough") {
            o.thorough = true;
        } else if (name == "--part") {
            int length = 0;
            const char* value = i + 1 < argc ? argv[++i] : "";
            bool read = std::sscanf(value, "%d/%d%n", &o.part, &o.parts, &length) == 2 && value[length] == 0;
            if (!read || o.part < 1 || o.part > o.parts) {
                throw Error(kExitUsage,
                            fmt::format("--part {}: expected i/n with 1 <= i <= n, such as 2/4", value));
            }
        } else {
            constexpr std::string_view kQuestions[] = {"-h", "--help", "-c", "--count", "-v", "--version"};
            o.question |= name.starts_with("--list") || name.starts_with("-l");
            o.question |=
                std::find(std::begin(kQuestions), std::end(kQuestions), name) != std::end(kQuestions);
            o.doctests.push_back(argv[i]);
        }
    }
    return o;
}

// Marks what is not to run as skipped. doctest has no public way to say "every n-th", but knows a decorator
// skip(), whose flag this sets.
void choose_test_cases(const TestOptions& o) {
    std::set<doctest::detail::TestCase> chosen;
    int count = 0;
    for (doctest::detail::TestCase test : doctest::detail::getRegisteredTests()) {
        bool thorough = std::string_view(test.m_test_suite) == kThoroughSuite;
        bool runs = !test.m_skip && (o.thorough || !thorough);
        test.m_skip = !runs || count++ % o.parts != o.part - 1;
        chosen.insert(test);
    }
    doctest::detail::getRegisteredTests() = std::move(chosen);
}

bool have_device() {
    int devices = 0;
    bool found = cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
    if (!found) { cudaGetLastError(); }  // no driver is not a failure of the first test
    return found;
}

int run_tests(const TestOptions& o) {
    if (!o.question && !have_device()) {
        std::printf("no CUDA device: nothing tested\n0 passed, 0 failed, %zu skipped\n",
                    doctest::detail::getRegisteredTests().size());
        return kExitDone;
    }
    choose_test_cases(o);
    int status = doctest::Context((int)o.doctests.size(), o.doctests.data()).run();
    for (const auto& [name, ratio] : worst_ratios()) {
        std::printf("%-60s used %.3f of its bound\n", name.c_str(), ratio);
    }
    return status;
}

}  // namespace
}  // namespace gpu_test
}  // namespace llmc

int main(int argc, char** argv) {
    using namespace llmc;
    wait_politely(argv);
    try {
        if (argc > 1 && std::string_view(argv[1]) == "--dump-bf16") { return dump_state_main(argc, argv); }
        if (wants_comparison(argc, argv)) { return run_comparison<GPT2<float, float>>(argc, argv); }
        return gpu_test::run_tests(gpu_test::parse_test_options(argc, argv));
    } catch (const Error& e) {
        std::fflush(stdout);
        std::fprintf(stderr, "test_gpt2cu: %s\n", e.what());
        return e.exit_code;
    }
}

// ---- the tests' own tools ------------------------------------------------------------------------

TEST_CASE("device arrays: values come back rounded, writes outside are seen") {
    using namespace llmc::gpu_test;
    for (int offset : {0, 1}) {
        DeviceArray<bf16> x(Floats{1, 1 + 0x1p-8f + 0x1p-20f, -3.14159f}, offset);
        CHECK(x.values() == Vector{1, 1 + 0x1p-7, -3.140625});
        CHECK(x.unchanged());
        CHECK(x.damage() == "");
        check_cuda(cudaMemset(x.data() + 2, 0, 3));
        CHECK(!x.unchanged());
        CHECK(x.damage() == "element 3 of 3");
        DeviceArray<float> y(5, offset);
        for (float v : y.download()) { CHECK(std::isnan(v)); }
        check_cuda(cudaMemset(y.data() - 1, 0, 4));
        CHECK(y.damage() == "element -1 of 5");
    }
}

// ./test_gpt2cu: the GPU's layers and model against the reference. The tests are host code.
//   ./test_gpt2cu                        every test but the thorough ones; doctest's options work, such as
//                                        --test-case="layernorm*" and --list-test-cases
//   ./test_gpt2cu --thorough             those too (an hour)
//   ./test_gpt2cu --part 2/4             every fourth test case, from the second on
//   ./test_gpt2cu --model FILE --state FILE [--losses FILE]     as in dev/test/support/main.cpp
//   ./test_gpt2cu --dump-bf16 FILE --model FILE --state FILE    for dev/bench/compare_pytorch.py: weights from the model, the
//                                        batch from the state; what the bf16 model makes of it to FILE, a debug state
//                                        (20240327 v2) with logits, loss and gradients as fp32
// PLUMB_BOUNDS=1 also prints how much of its bound each result used. Without a GPU nothing is tested.
#include <iterator>
#include <set>

#define DOCTEST_CONFIG_IMPLEMENT

#include "dev/test/gpu/gpu_model.h"
#include "dev/test/gpu/layer_test.h"
#include "dev/test/support/compare_state.h"
#include "dev/test/support/debug_state.h"
#include "llmc/host/base/resources.h"
#include "llmc/host/base/text.h"
#include "llmc/host/files/file_io.h"
#include "llmc/model/formats/checkpoint.h"

namespace llmc {
namespace gpu_test {
namespace {

// ---- --dump-bf16 ---------------------------------------------------------------------------------

template <typename T>
void write_values(FileWriter* out, std::span<const T> values) {
    out->write(values.data(), values.size_bytes());
}

void write_header(FileWriter* out, const Batch& batch) {
    int32_t header[kHeaderWords] = {kDebugStateMagic, kDebugStateVersion, batch.B, batch.T};
    write_values(out, std::span<const int32_t>(header));
    write_values(out, std::span<const int32_t>(batch.tokens));
    write_values(out, std::span<const int32_t>(batch.targets));
}

// (B,T,Vp) in the model, (B,T,V) in the file
void write_logits(FileWriter* out, Bf16Model* model, const Batch& batch) {
    const GPT2Config& c = model->config();
    model->evaluate(batch);
    std::span<const float> logits = model->logits();
    for (int64_t row = 0; row < (int64_t)batch.B * batch.T; row++) {
        write_values(out, logits.subspan(row * c.padded_vocab_size, c.vocab_size));
    }
}

void write_gradients(FileWriter* out, const Bf16Model& model) {
    for (int t = 0; t < kNumTensors; t++) {
        std::vector<float> values((size_t)tensor_total(model.config(), t));
        model.save_gradient(t, 0, values);
        write_values(out, std::span<const float>(values));
    }
}

int dump_state_main(int argc, char** argv) {
    CompareOptions files = parse_compare_options(argc - 2, argv + 2);
    if (!files["--losses"].empty()) {
        throw Error(kExitUsage, "--losses: expected --dump-bf16 FILE --model FILE --state FILE");
    }
    ModelFile file(files["--model"]);
    DebugState state(files["--state"], file.config());
    const Batch& batch = state.batch;
    Bf16Model model(file.config(), batch.B, batch.T);
    model.init(0);
    load_model(file, writer(&model));
    FileWriter out(argv[2]);
    write_header(&out, batch);
    write_logits(&out, &model, batch);
    float loss = (float)model.forward_backward(std::span(&batch, 1));
    out.write(&loss, sizeof(loss));
    write_gradients(&out, model);
    out.commit();
    std::printf("wrote %s: B %d, T %d, loss %.6f\n", argv[2], batch.B, batch.T, loss);
    return kExitDone;
}

// ---- the tests -----------------------------------------------------------------------------------

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
    return run_program("test_gpt2cu", "", [&] {
        wait_politely(argv);
        if (argc > 1 && std::string_view(argv[1]) == "--dump-bf16") {
            return gpu_test::dump_state_main(argc, argv);
        }
        if (wants_comparison(argc, argv)) { return run_comparison<Fp32Model>(argc, argv); }
        return gpu_test::run_tests(gpu_test::parse_test_options(argc, argv));
    });
}

// The GPU's model with --fp8: against the reference model that rounds at the same places, and against itself where it must give
// the same bits.
#include "dev/test/gpu/gpu_model.h"
#include "dev/test/support/test_files.h"

using namespace llmc;

namespace {

const GPT2Config kConfig = {64, 100, 128, 2, 2, 128};
constexpr int kB = 3, kT = 32;
const ModelSettings kFp8 = {.fp8 = true}, kDropping = {.fp8 = true, .dropout = 0.1, .seed = 77};

std::vector<Batch> batches_of(int n) {
    std::vector<Batch> batches;
    for (int i = 0; i < n; i++) { batches.push_back(random_batch(kConfig, kB, kT, 51 + i)); }
    return batches;
}
// n steps of a micro-batch each
template <typename Model>
void take_steps(Model* model, int first, int n) {
    const std::vector<Batch> batches = batches_of(first + n);
    for (int i = first; i < first + n; i++) {
        step(model, {&batches[(size_t)i], 1}, {.step = i, .lr = 1e-3, .weight_decay = 0.1, .clip = 1});
    }
}

// Two models that round alike come apart all the same: where bf16 puts one of two numbers on another side of a tie of FP8,
// they are a whole step of FP8 apart, and after a few such roundings as far as if they had rounded independently: sqrt(2) times
// what FP8 moves them by. What is wired wrongly is much further off. That the roundings themselves are right is shown on the CPU
// (dev/test/model/test_fp8.cpp) and kernel by kernel (test_fp8.cpp). Then once more with the scales of these maxima.
template <typename Model>
void check_gradients(const ModelSettings& settings) {
    Model model(kConfig, kB, kT, settings);
    ReferenceModel<double> rounded(kConfig, kB, kT, Rounding::kFp8AndBf16),
        plain(kConfig, kB, kT, Rounding::kBf16);
    for (auto* reference : {&rounded, &plain}) {
        reference->init(11);
        if (settings.dropout > 0) { reference->set_dropout({settings.dropout, settings.seed}); }
    }
    copy_states(&model, rounded);
    const std::vector<Batch> batches = batches_of(2);
    for (const char* scales : {"first", "of maxima"}) {
        const double loss = model.forward_backward(batches), expected = rounded.forward_backward(batches),
                     in_bf16 = plain.forward_backward(batches);
        CHECK_MESSAGE(std::fabs(loss - expected) < 1e-3, scales, ": loss ", loss, ", expected ", expected);
        CHECK(std::fabs(loss - in_bf16) > 1e-6);  // it is in FP8
        INFO("scales ", scales);
        check_fp8_gradients(model, rounded, plain, 1.6);
        auto& network = model.network();
        end_fp8_step(network.mem.fp8.scales, &network.mem.decision->saturated, network.stream);
        const std::vector<double> largest = rounded.end_fp8_step();
        const std::vector<float> known = maxima_of(model);
        for (size_t i = 0; i < largest.size(); i++) {
            const float found = known[i * kFp8History];
            CHECK_MESSAGE(std::fabs(found - largest[i]) <= 0.15 * largest[i],
                          fmt::format("largest of {}: found {:.9g}, expected {:.9g}",
                                      fp8_tensor_name(kConfig, (int64_t)i), found, largest[i]));
        }
    }
}

}  // namespace

TEST_CASE_TEMPLATE("fp8 model: every gradient is near that of the reference which rounds alike", Model,
                   Bf16Model, NarrowModel) {
    for (const ModelSettings& settings : {kFp8, kDropping}) { check_gradients<Model>(settings); }
}

TEST_CASE_TEMPLATE("fp8 model: the same bits recomputed, repeated as a graph and again", Model, Bf16Model,
                   NarrowModel) {
    Model usual(kConfig, kB, kT, kDropping);
    usual.init(5);
    take_steps(&usual, 0, 4);
    for (ModelSettings settings : {ModelSettings{.graph = false},
                                   {.recompute = Recompute::kGelu},
                                   {.recompute = Recompute::kBlock},
                                   {}}) {
        settings.fp8 = true;
        settings.dropout = kDropping.dropout;
        settings.seed = kDropping.seed;
        Model other(kConfig, kB, kT, settings);
        other.init(5);
        take_steps(&other, 0, 4);
        check_same_state(fmt::format("graph {} recompute {}", settings.graph, (int)settings.recompute), other,
                         usual);
        CHECK(maxima_of(other) == maxima_of(usual));
    }
}

TEST_CASE("fp8 model: goes on from a checkpoint with the same bits, an evaluation changes nothing") {
    Bf16Model whole(kConfig, kB, kT, kFp8), parts(kConfig, kB, kT, kFp8);
    whole.init(5);
    take_steps(&whole, 0, 5);
    parts.init(5);
    parts.evaluate(random_batch(kConfig, 2, 17, 3));
    take_steps(&parts, 0, 3);
    Bf16Model resumed(kConfig, kB, kT, kFp8), without(kConfig, kB, kT, kFp8);
    for (Bf16Model* model : {&resumed, &without}) {
        model->init(5);  // the seed of its rounding
        model->set_updates(parts.updates());
        copy_states(model, parts);
    }
    resumed.load(State::kFp8Maxima, 0, 0, maxima_of(parts));
    resumed.evaluate(random_batch(kConfig, 3, 5, 4));
    for (Bf16Model* model : {&resumed, &without}) { take_steps(model, 3, 2); }
    check_same_state("resumed", resumed, whole);
    CHECK(maxima_of(resumed) == maxima_of(whole));
    CHECK(maxima_of(without) != maxima_of(whole));
    const auto losses = [](Bf16Model& model) {
        const std::span<const float> found = model.evaluate(random_batch(kConfig, 3, 5, 4)).losses;
        return std::vector<float>(found.begin(), found.end());
    };
    CHECK(losses(resumed) == losses(whole));
}

// rows are taken by 16: what lies behind the last one changes nothing
TEST_CASE("fp8 model: evaluates any number of rows") {
    Bf16Model model(kConfig, kB, kT, kFp8);
    model.init(5);
    const Batch all = random_batch(kConfig, kB, kT, 3);
    const std::span<const float> losses = model.evaluate(all).losses;
    const std::vector<float> whole(losses.begin(), losses.end());
    for (int T : {1, 5, 17, 31}) {
        Batch part{1,
                   T,
                   {all.tokens.begin(), all.tokens.begin() + T},
                   {all.targets.begin(), all.targets.begin() + T}};
        const std::span<const float> found = model.evaluate(part).losses;
        CHECK_MESSAGE(std::ranges::equal(found, std::span(whole).first((size_t)T),
                                         [](float a, float b) { return std::fabs(a - b) < 0.02f; }),
                      "T ", T);
    }
}

TEST_CASE("fp8 model: what leaves the range is counted, and named") {
    Bf16Model model(kConfig, kB, kT, kFp8);
    model.init(5);
    take_steps(&model, 0, 2);
    // a layer's gain a hundred times as large: its output leaves the range that the steps before have left it
    std::vector<float> gain(kConfig.channels, 100.0f);
    std::vector<float> maxima = maxima_of(model);
    model.load(State::kParameter, kLn2w, kConfig.channels, gain);
    model.load(State::kFp8Maxima, 0, 0, maxima);
    const Batch batch = random_batch(kConfig, kB, kT, 9);
    const StepResult result = step(&model, {&batch, 1}, {.step = 2, .lr = 0});
    CHECK(result.saturated.tensors > 0);
    CHECK(fp8_tensor_name(kConfig, result.saturated.first) == "input of fcw in layer 1");
}

TEST_CASE("fp8 model: what it cannot be is refused with the reason") {
    const auto refused = [](const GPT2Config& c, int B, int T) {
        const Error error = error_of([&] { Bf16Model::plan(c, B, T, kFp8); });
        CHECK(error.exit_code == kExitUsage);
        return std::string(error.what());
    };
    CHECK(refused({64, 100, 128, 2, 2, 120}, 2, 32).find("120 channels") != std::string::npos);
    CHECK(refused(kConfig, 3, 31).find("93 tokens") != std::string::npos);
    const GPT2Config wide{64, 100, 128, 1, kMostFp8Dropped / 128 + 1, kMostFp8Dropped + 128};
    Bf16Model::plan(wide, 1, 32, kFp8);
    CHECK(std::string(error_of([&] { Bf16Model::plan(wide, 1, 32, kDropping); }).what()).find("--dropout") !=
          std::string::npos);
    CHECK(error_of([&] { Fp32Model::plan(kConfig, 2, 32, kFp8); }).exit_code == kExitUsage);
}

// of a layer ln1, ln2 and GELU's output in bf16 are not kept, but three inputs in e4m3; beside them those in turns
TEST_CASE("fp8 model: the plan says what is saved, and what weights take") {
    const GPT2Config c{1024, 50257, 50304, 12, 12, 768};
    const MemoryPlan fp8 = Bf16Model::plan(c, 8, 1024, kFp8), bf16 = Bf16Model::plan(c, 8, 1024);
    const int64_t rows = 8 * 1024 * 768;
    CHECK(fp8.fp8_weights == 12 * 12 * 768 * 768 * 2);
    CHECK(bf16.activations - fp8.activations == fp8.fp8_saved - fp8.fp8_weights);
    CHECK(std::abs((double)fp8.fp8_saved / rows - (12 * (2 * 6 - 3) - 13)) <
          0.5);  // scratch of sums is larger
    CHECK(bf16.fp8_weights == 0);
}

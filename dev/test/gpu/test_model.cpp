// The GPU's whole model, forward and backward, in fp32 and bf16: against PyTorch's numbers, against the reference model, and
// against itself where it computes the same in another way. Then its writing a token at a time, with a cache of keys and
// values, against the reference, which computes all positions at once.
#include <set>

#include "dev/test/gpu/gpu_model.h"
#include "dev/test/support/any_model.h"
#include "dev/test/support/compare_state.h"
#include "dev/test/support/reference_model.h"
#include "dev/test/support/test_files.h"
#include "llmc/model/eval/generate.h"
#include "llmc/model/gpu/gpt2.cuh"

using namespace llmc;

// ---- forward and backward ------------------------------------------------------------------------

namespace {

struct Size {
    const char* name;
    GPT2Config config;  // positions, vocabulary, padded, layers, heads, channels
    int B, T;
};

const Size kSizes[] = {
    {"head size 7", {9, 37, 64, 3, 2, 14}, 4, 9},        // nothing is aligned
    {"head size 48", {50, 257, 320, 1, 1, 48}, 3, 41},   // T is a multiple of nothing
    {"head size 64", {64, 100, 128, 2, 2, 128}, 2, 64},  // everything is
    {"head size 128", {70, 300, 320, 1, 2, 256}, 1, 67},
    {"head size 1", {5, 3, 64, 2, 5, 5}, 2, 5},  // as small as it gets
    {"d1", {64, 1000, 1024, 1, 1, 64}, 1, 1},
    {"one row", {64, 1000, 1024, 2, 1, 64}, 1, 64},
};

}  // namespace

TEST_CASE("gpu model: agrees with PyTorch") {
    const std::string folder = "dev/test/fixture/";
    CHECK(compare_with_state<Fp32Model>(folder + "model.bin", folder + "state.bin", folder + "losses.txt") ==
          0);
}

TEST_CASE_TEMPLATE("gpu model: initial values are the CPU model's", Model, Fp32Model, Bf16Model) {
    Model model(tiny_config(), 2, 9);
    ReferenceModel<float> expected(tiny_config(), 2, 9);
    model.init(5);
    expected.init(5);
    for (State state : kStates) {
        // log and cos in double, compiled by another compiler
        check_near(fmt::format("state {}", (int)state), whole_state(model, state),
                   whole_state(expected, state), [](size_t) { return 0.1 * 4 * kFloatRoundoff; });
    }
    std::vector<float> wte = whole_tensor(model, State::kParameter, kWte);
    CHECK(std::count(wte.begin() + 37 * 14, wte.end(), 0.0f) == (64 - 37) * 14);
    CHECK(model.updates() == 0);
}

// ---- against the reference ---------------------------------------------------------------------

TEST_CASE_TEMPLATE("gpu model: loss, logits and every gradient", Model, Fp32Model, Bf16Model, NarrowModel) {
    for (const Size& s : kSizes) {
        CAPTURE(s.name);
        Model model(s.config, s.B + 1, std::min(s.T + 3, s.config.max_seq_len));  // for more than it is given
        ReferenceModel<double> reference = reference_for<Model>(s.config, s.B, s.T);
        reference.init(11);
        copy_states(&model, reference);
        check_model(std::string(s.name) + ", initial weights", model, reference,
                    two_batches(s.config, s.B, s.T, 21), kInitialGain);
        fill_lively(&reference, 31);
        copy_states(&model, reference);
        std::vector<Batch> batches = two_batches(s.config, s.B, s.T, 41);
        // the longer one second: it adds to positions that the first does not have
        std::ranges::reverse(batches);
        check_model(std::string(s.name) + ", lively weights", model, reference, batches, kLivelyGain);
    }
}

TEST_CASE_TEMPLATE("gpu model: evaluates batches smaller than it was made for", Model, Fp32Model, Bf16Model) {
    GPT2Config c = tiny_config();
    Model model(c, 4, 9);
    ReferenceModel<double> reference = reference_for<Model>(c, 4, 9);
    fill_lively(&reference, 7);
    copy_states(&model, reference);
    for (auto [B, T] : {std::pair{4, 9}, {1, 5}, {3, 1}, {1, 1}, {4, 9}}) {
        Batch batch = random_batch(c, B, T, 3 + B + T);
        check_evaluation(fmt::format("B {} T {}", B, T), model, reference, batch,
                         tolerance_for<Model>(c, 36, kLivelyGain));
        CHECK(model.logits().size() == (size_t)B * T * c.padded_vocab_size);
    }
}

// All logits are negative here, but for those of the padding rows, which are 0.
TEST_CASE_TEMPLATE("gpu model: what is padding is not predicted", Model, Fp32Model, Bf16Model) {
    GPT2Config c = tiny_config();
    Model model(c, 4, 9);
    ReferenceModel<double> reference = reference_for<Model>(c, 4, 9);
    fill_lively(&reference, 7);
    std::vector<float> wte = whole_tensor(reference, State::kParameter, kWte);
    for (float& x : wte) { x = -std::fabs(x); }
    reference.load(State::kParameter, kWte, 0, wte);
    reference.load(State::kParameter, kLnfw, 0, std::vector<float>(c.channels, 0.1f));
    reference.load(State::kParameter, kLnfb, 0, std::vector<float>(c.channels, 1.0f));
    copy_states(&model, reference);
    Batch batch = random_batch(c, 4, 9, 3);
    check_evaluation("negative logits", model, reference, batch, tolerance_for<Model>(c, 36, kLivelyGain));
    std::vector<float> logits = unpadded_logits(model);
    CHECK(std::ranges::max(logits) < 0);
}

// ---- against itself ----------------------------------------------------------------------------

TEST_CASE_TEMPLATE("gpu model: nothing of an earlier batch is left in the next", Model, Fp32Model,
                   Bf16Model) {
    check_nothing_left<Model>();
}

TEST_CASE_TEMPLATE("gpu model: micro-batches add up to one batch", Model, Fp32Model, Bf16Model, NarrowModel) {
    check_micro_batches<Model>(tolerance_for<Model>(tiny_config(), 36, kInitialGain, 4));
}

TEST_CASE_TEMPLATE("gpu model: what follows an ignored target changes nothing", Model, Fp32Model, Bf16Model) {
    check_ignored_targets<Model>(tolerance_for<Model>(tiny_config(), 36, 1));
}

TEST_CASE_TEMPLATE("gpu model: recomputing gives the same bits", Model, Fp32Model, Bf16Model, NarrowModel) {
    for (const Size& s : {kSizes[0], kSizes[1], kSizes[2]}) {
        CAPTURE(s.name);
        Model kept(s.config, s.B, s.T);
        ReferenceModel<float> weights(s.config, 1, 1);
        fill_lively(&weights, 3);
        copy_states(&kept, weights);
        std::vector<Batch> batches = two_batches(s.config, s.B, s.T, 5);
        double loss = kept.forward_backward(batches);
        std::vector<float> gradients = whole_gradient(kept);
        int64_t before = Model::plan(s.config, s.B, s.T).activations;
        for (Recompute recompute : {Recompute::kGelu, Recompute::kBlock}) {
            Model again(s.config, s.B, s.T, {.recompute = recompute});
            copy_states(&again, weights);
            CHECK(again.forward_backward(batches) == loss);
            check_same(fmt::format("recompute {}", (int)recompute), whole_gradient(again), gradients);
            int64_t now = Model::plan(s.config, s.B, s.T, {.recompute = recompute}).activations;
            CHECK(now <= before);
            before = now;
        }
    }
}

// An evaluation has none: check_model() compares it with the reference's.
TEST_CASE_TEMPLATE("gpu model: dropout", Model, Fp32Model, Bf16Model, NarrowModel) {
    for (const Size& s : {kSizes[0], kSizes[1], kSizes[2]}) {
        CAPTURE(s.name);
        ModelSettings settings{.dropout = 0.3, .seed = 77};
        Model model(s.config, s.B, s.T, settings), plain(s.config, s.B, s.T);
        ReferenceModel<double> reference = reference_for<Model>(s.config, s.B, s.T);
        fill_lively(&reference, 3);
        reference.set_dropout({settings.dropout, settings.seed});
        for (Model* one : {&model, &plain}) { copy_states(one, reference); }
        const std::vector<Batch> batches = two_batches(s.config, s.B, s.T, 5);
        // what stays is scaled, and the gradients with it: an error more for each of 2 layers + 1 places
        check_model("dropout", model, reference, batches, kLivelyGain / (1 - settings.dropout));
        const double loss = model.forward_backward(batches);
        const std::vector<float> gradients = whole_gradient(model);
        CHECK(std::fabs(loss - plain.forward_backward(batches)) > 1e-4);
        for (Recompute recompute : {Recompute::kGelu, Recompute::kBlock}) {
            settings.recompute = recompute;
            Model again(s.config, s.B, s.T, settings);
            copy_states(&again, reference);
            CHECK(again.forward_backward(batches) == loss);
            check_same(fmt::format("dropout, recompute {}", (int)recompute), whole_gradient(again),
                       gradients);
        }
        const Batch whole = random_batch(s.config, s.B, s.T, 8);
        std::set<float> losses;  // of one model and batch: each step's masks, launched, then recorded
        for (int64_t k = 0; k < 5; k++) { losses.insert(step(&model, {&whole, 1}, {.step = k}).loss); }
        CHECK(losses.size() == 5);
    }
}

TEST_CASE_TEMPLATE("gpu model: batches that do not fit are refused before anything runs", Model, Fp32Model,
                   Bf16Model) {
    check_refused_batches<Model>();
}

TEST_SUITE("thorough") {
    // All kernels but the products add in an order that does not know of other rows. Which product runs is cuBLASLt's
    // choice, by the number of rows, and none that forward takes splits its sums.
    TEST_CASE("gpu model: a sequence's losses, alone and in batches") {
        const GPT2Config c = {1024, 50257, 50304, 12, 12, 768};
        const Batch all = random_batch(c, 64, c.max_seq_len, 1);
        std::vector<float> alone;
        double bound = 0;
        for (int B : {1, 2, 4, 8, 16, 32, 64}) {
            Bf16Model model(c, B, c.max_seq_len);
            model.init(1);
            const auto first_losses = [&] {
                const std::span<const float> losses = model.evaluate(rows_of(all, 0, B)).losses;
                return std::vector<float>(losses.begin(), losses.begin() + c.max_seq_len);
            };
            const std::vector<float> found = first_losses();
            CHECK_MESSAGE(first_losses() == found, "B=", B, ": again");
            if (B == 1) {
                alone = found;
                bound = 2 * bf16_tolerance(c, kInitialGain, 0).element *
                        (largest(unpadded_logits(model)) + largest(alone));
            }
            double most = 0;
            for (size_t t = 0; t < found.size(); t++) {
                most = std::max(most, (double)std::fabs(found[t] - alone[t]));
            }
            CHECK_MESSAGE(most <= bound, "B=", B);
            MESSAGE(fmt::format("B={}: {}, at most {:.2g} apart (bound {:.2g})", B,
                                found == alone ? "the same bits" : "other bits", most, bound));
        }
    }
}

// ---- a token at a time ---------------------------------------------------------------------------

namespace {

// positions, vocabulary, padded, layers, heads, channels
const GPT2Config kConfigs[] = {
    {530, 257, 320, 2, 2, 128},  // heads of 64, whole vectors
    {70, 37, 64, 3, 2, 14},      // nothing is aligned
    {130, 300, 320, 1, 2, 160},  // heads of 80
};

struct LivelyModel {
    ReferenceModel<float> weights;
    const ModelInMemory<ReferenceModel<float>> source{weights};
    LivelyModel(const GPT2Config& c, uint64_t seed) : weights(c, 1, 1) { fill_lively(&weights, seed); }
    const GPT2Config& config() const { return weights.config(); }
};

// The logits (T,V) that follow each token. In bf16 the weights are rounded, and all else is exact: what the
// decoder rounds besides is the tolerance's.
std::vector<float> all_logits(const LivelyModel& model, const std::vector<int32_t>& tokens, bool in_bf16) {
    const int T = (int)tokens.size();
    ReferenceModel<double> reference(model.config(), 1, T);
    for (int t = 0; t < kNumTensors; t++) {
        std::vector<float> values = whole_tensor(model.weights, State::kParameter, t);
        for (float& x : values) { x = in_bf16 ? nearest_bf16(x) : x; }
        reference.load(State::kParameter, t, 0, values);
    }
    reference.evaluate({1, T, tokens, std::vector<int32_t>(tokens.size(), kIgnoreTarget)});
    return unpadded_logits(reference);
}

// Of what the decoder keeps in bf16 between tokens: keys and values, 2 a layer; of a prompt all that a model
// in bf16 stores, 9 a layer and 3 more, but for the logits. In fp32: another order of the sums.
Tolerance tolerance_of(const GPT2Config& c, bool in_bf16, bool prompt) {
    if (!in_bf16) { return fp32_tolerance(c, c.max_seq_len); }
    const double norm = 3 * 0x1p-9 * std::sqrt(prompt ? 9.0 * c.num_layers + 3 : 2.0 * c.num_layers);
    return {2 * norm, norm};
}

std::vector<float> row_of(const std::vector<float>& logits, const GPT2Config& c, size_t row) {
    const auto begin = logits.begin() + (int64_t)row * c.vocab_size;
    return {begin, begin + c.vocab_size};
}

std::vector<float> copy(std::span<const float> logits) { return {logits.begin(), logits.end()}; }

int largest_at(std::span<const float> x) { return (int)(std::ranges::max_element(x) - x.begin()); }

}  // namespace

TEST_CASE("decoder: greedy text with the cache is the reference's, over 500 tokens") {
    const LivelyModel model(kConfigs[0], 3);
    const int V = model.config().vocab_size;
    for (bool in_bf16 : {false, true}) {
        const auto decoder = make_gpu_decoder(model.source, in_bf16);
        std::vector<int32_t> text = {256};
        std::vector<std::vector<float>> found;
        for (int k = 0; k < 500; k++) {
            found.push_back(copy(decoder->append({&text.back(), 1})));
            text.push_back(largest_at(found.back()));
        }
        text.pop_back();
        const std::vector<float> expected = all_logits(model, text, in_bf16);
        const Tolerance tolerance = tolerance_of(model.config(), in_bf16, false);
        int different = 0;
        for (size_t k = 0; k < found.size(); k++) {
            const std::vector<float> row = row_of(expected, model.config(), k);
            check_close(fmt::format("{} logits at position {}", in_bf16 ? "bf16" : "fp32", k), found[k], row,
                        tolerance);
            // nearer than the two may differ, either may be the greatest
            const int best = largest_at(row), chosen = largest_at(found[k]);
            different += row[best] - row[chosen] > 2 * tolerance.element * largest(row);
        }
        CHECK(different == 0);
        CHECK(decoder->length() == 500);
        CHECK((int)found[0].size() == V);
    }
}

TEST_CASE(
    "decoder: logits at every position of every size, with the prompt at once, in parts, token by token") {
    for (const GPT2Config& c : kConfigs) {
        for (bool in_bf16 : {false, true}) {
            CAPTURE(c.channels);
            CAPTURE(in_bf16);
            const LivelyModel model(c, 5);
            const std::vector<int32_t> tokens = random_tokens(c.max_seq_len, c.vocab_size, 9);
            const std::vector<float> expected = all_logits(model, tokens, in_bf16);
            const auto decoder = make_gpu_decoder(model.source, in_bf16);
            const int most = c.max_seq_len, part = std::min(most - 2, 67);
            for (const std::vector<int>& cuts :
                 {std::vector<int>{}, {most}, {part, most - part}, {1, most - 1}, {part}}) {
                decoder->clear();
                CHECK(decoder->length() == 0);
                size_t at = 0;
                bool prompt = false;
                const auto append = [&](int n) {
                    const auto found = decoder->append(std::span(tokens).subspan(at, (size_t)n));
                    at += (size_t)n;
                    prompt |= n > 1;
                    check_close(
                        fmt::format("C={} logits at position {}, after a part of {}", c.channels, at - 1, n),
                        copy(found), row_of(expected, c, at - 1), tolerance_of(c, in_bf16, prompt));
                };
                for (int n : cuts) { append(n); }
                while (at < tokens.size()) { append(1); }
                CHECK(decoder->length() == most);
            }
            CHECK(error_of([&] { decoder->append({&tokens[0], 1}); }).exit_code == kExitUsage);  // it is full
            decoder->clear();
            CHECK(error_of([&] { decoder->append({}); }).exit_code == kExitUsage);
            for (int32_t outside : {-1, c.vocab_size}) {
                CHECK(error_of([&] { decoder->append({&outside, 1}); }).exit_code == kExitUsage);
            }
            CHECK(decoder->length() == 0);
        }
    }
}

TEST_CASE("decoder: the same bits again, whatever was written before") {
    const LivelyModel model(kConfigs[0], 7);
    const std::vector<int32_t> tokens = random_tokens(200, 257, 9), others = random_tokens(500, 257, 10);
    for (bool in_bf16 : {false, true}) {
        const auto used = make_gpu_decoder(model.source, in_bf16),
                   fresh = make_gpu_decoder(model.source, in_bf16);
        used->append(others);
        used->clear();
        used->append(std::span(tokens).first(100));
        fresh->append(std::span(tokens).first(100));
        for (size_t k = 100; k < tokens.size(); k++) {
            check_same(fmt::format("position {}", k), copy(used->append({&tokens[k], 1})),
                       copy(fresh->append({&tokens[k], 1})));
        }
    }
}

TEST_CASE("decoder: a context that is full goes on with its newer half") {
    const GPT2Config c = {16, 257, 320, 2, 2, 128};
    const LivelyModel model(c, 11);
    const std::vector<int32_t> tokens = random_tokens(20, 257, 9), left(tokens.begin() + 9, tokens.end());
    for (bool in_bf16 : {false, true}) {
        const auto decoder = make_gpu_decoder(model.source, in_bf16);
        std::vector<int> slides;
        Context context(decoder.get(), [&](int n) { slides.push_back(n); });
        std::vector<float> found;
        for (const int32_t& token : tokens) { found = copy(context.add({&token, 1})); }
        // full after 16: the 17th token slides, and three more follow
        CHECK(slides == std::vector<int>{8});
        CHECK(decoder->length() == 11);
        check_close("after the slide", found, row_of(all_logits(model, left, in_bf16), c, 10),
                    tolerance_of(c, in_bf16, true));
    }
}

TEST_CASE("decoder: what it says of its traffic; models that it has no room for") {
    const GPT2Config c = kConfigs[0];
    const LivelyModel model(c, 1), wide({8, 37, 64, 1, 1, 130}, 1);
    const DecoderTraffic bf16_traffic = make_gpu_decoder(model.source, true)->traffic(),
                         fp32_traffic = make_gpu_decoder(model.source, false)->traffic();
    CHECK(fp32_traffic.bytes == 2 * bf16_traffic.bytes);
    CHECK(bf16_traffic.bytes == 2 * (num_parameters(c) - (int64_t)c.max_seq_len * c.channels));
    CHECK(bf16_traffic.bytes_per_second > 1e10);
    const Error refused = error_of([&] { make_gpu_decoder(wide.source, true); });
    CHECK(refused.exit_code == kExitUsage);
    CHECK(std::string(refused.what()).find("heads of 130") != std::string::npos);
}

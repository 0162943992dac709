// Writing on the GPU a token at a time, with a cache of keys and values, against the reference, which
// computes all positions at once: greedy text, logits at every position, prompts, what slides, the same bits
// again.
#include "dev/test/gpu/layer_test.h"
#include "dev/test/support/any_model.h"
#include "dev/test/support/reference_model.h"
#include "dev/test/support/test_files.h"
#include "llmc/model/eval/generate.h"
#include "llmc/model/gpu/gpt2.cuh"

using namespace llmc;
using namespace llmc::gpu_test;

namespace {

// positions, vocabulary, padded, layers, heads, channels
const GPT2Config kConfigs[] = {
    {530, 257, 320, 2, 2, 128},  // heads of 64, whole vectors
    {70, 37, 64, 3, 2, 14},      // nothing is aligned
    {130, 300, 320, 1, 2, 160},  // heads of 80
};

// A model in memory, of any weights.
class ModelInMemory : public ModelSource {
public:
    ModelInMemory(const GPT2Config& c, uint64_t seed) : weights(c, 1, 1) { fill_lively(&weights, seed); }
    const GPT2Config& config() const override { return weights.config(); }
    const std::string& path() const override { return path_; }
    void read(int tensor, int64_t first, std::span<float> values) const override {
        weights.save(State::kParameter, tensor, first, values);
    }
    FloatType type() const override { return FloatType::kFp32; }

    ReferenceModel<float> weights;

private:
    std::string path_ = "a model in memory";
};

// The logits (T,V) that follow each token. In bf16 the weights are rounded, and all else is exact: what the
// decoder rounds besides is the tolerance's.
std::vector<float> all_logits(const ModelInMemory& model, const std::vector<int32_t>& tokens, bool in_bf16) {
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
    const ModelInMemory model(kConfigs[0], 3);
    const int V = model.config().vocab_size;
    for (bool in_bf16 : {false, true}) {
        const auto decoder = make_gpu_decoder(model, in_bf16);
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
            const ModelInMemory model(c, 5);
            const std::vector<int32_t> tokens = random_tokens(c.max_seq_len, c.vocab_size, 9);
            const std::vector<float> expected = all_logits(model, tokens, in_bf16);
            const auto decoder = make_gpu_decoder(model, in_bf16);
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
    const ModelInMemory model(kConfigs[0], 7);
    const std::vector<int32_t> tokens = random_tokens(200, 257, 9), others = random_tokens(500, 257, 10);
    for (bool in_bf16 : {false, true}) {
        const auto used = make_gpu_decoder(model, in_bf16), fresh = make_gpu_decoder(model, in_bf16);
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
    const ModelInMemory model(c, 11);
    const std::vector<int32_t> tokens = random_tokens(20, 257, 9), left(tokens.begin() + 9, tokens.end());
    for (bool in_bf16 : {false, true}) {
        const auto decoder = make_gpu_decoder(model, in_bf16);
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
    const ModelInMemory model(c, 1), wide({8, 37, 64, 1, 1, 130}, 1);
    const DecoderTraffic bf16_traffic = make_gpu_decoder(model, true)->traffic(),
                         fp32_traffic = make_gpu_decoder(model, false)->traffic();
    CHECK(fp32_traffic.bytes == 2 * bf16_traffic.bytes);
    CHECK(bf16_traffic.bytes == 2 * (num_parameters(c) - (int64_t)c.max_seq_len * c.channels));
    CHECK(bf16_traffic.bytes_per_second > 1e10);
    const Error refused = error_of([&] { make_gpu_decoder(wide, true); });
    CHECK(refused.exit_code == kExitUsage);
    CHECK(std::string(refused.what()).find("heads of 130") != std::string::npos);
}

// The layers for a token at a time (decode.h) against the reference. A layernorm's output errs by its
// statistics (the mean by a sum over the row; rstd by half of another and rsqrtf's 2 ulp) and 4 roundings; a
// product by its terms' errors and a sum over the row.
#include "dev/cuda/attention_problems.h"
#include "dev/test/gpu/layer_test.h"
#include "llmc/model/cpu/reference.h"
#include "llmc/ops/decode/decode.h"

using namespace llmc;
using namespace llmc::gpu_test;

namespace {

struct LinearShape {
    int C, OC;
};
// rows that are no whole vectors, of a warp, of 2, 4 and 8, longer than what a lane asks for at once; more rows than all
// blocks work on at once
constexpr LinearShape kShapes[] = {{1, 1},     {14, 42},   {48, 7},     {64, 300},  {257, 65},
                                   {768, 96},  {1024, 9},  {1600, 130}, {3072, 20}, {8200, 3},
                                   {10240, 8}, {11999, 5}, {64, 9000}};

// What a test gives to a product and what it expects: values and bounds in double.
struct Numbers {
    Vector value, error;
};

template <typename T>
struct LinearInputs {
    DeviceArray<T> weight, bias;
    LinearInputs(const LinearShape& s, int offset = 0)
        : weight(floats((int64_t)s.C * s.OC, 1, 1 / std::sqrt((double)s.C)), offset),
          bias(floats(s.OC, 2), offset) {}
    DecodeLinear<T> call(const LinearShape& s, bool with_bias = true) const {
        return {weight.data(), with_bias ? bias.data() : nullptr, s.C, s.OC};
    }
    Numbers multiply(const Numbers& inp, const LinearShape& s, bool with_bias = true) const {
        const Vector w = weight.values(), b = bias.values();
        Numbers out{Vector(s.OC), Vector(s.OC)};
        for (int row = 0; row < s.OC; row++) {
            double sum = 0, terms = 0, error = 0;
            for (int c = 0; c < s.C; c++) {
                const double wx = w[(size_t)row * s.C + c] * inp.value[c];
                sum += wx;
                terms += std::fabs(wx);
                error += std::fabs(w[(size_t)row * s.C + c]) * inp.error[c];
            }
            const double bias_of_row = with_bias ? b[row] : 0;
            out.value[row] = sum + bias_of_row;
            out.error[row] = error + u * row_additions(s.C) * terms + u * std::fabs(out.value[row]);
        }
        return out;
    }
};

template <typename T>
struct NormInputs {
    DeviceArray<T> weight, bias;
    explicit NormInputs(int C) : weight(floats(C, 3)), bias(floats(C, 4)) {}
    DecodeNorm<T> call() const { return {weight.data(), bias.data()}; }
    Numbers normalise(const Vector& x) const {
        const int C = (int)x.size();
        const Vector w = weight.values(), b = bias.values();
        Numbers out{Vector(C), Vector(C)};
        double mean = 0, rstd = 0, average = 0;
        layernorm_forward_cpu(out.value.data(), &mean, &rstd, x.data(), w.data(), b.data(), 1, C,
                              kLayernormEps);
        for (double v : x) { average += std::fabs(v) / C; }
        const double sum = row_additions(C) + 2;
        for (int c = 0; c < C; c++) {
            const double xhat = std::fabs(x[c] - mean) * rstd;
            const double off = u * (xhat * (sum / 2 + 8) + rstd * (sum * average + std::fabs(mean)));
            out.error[c] = std::fabs(w[c]) * off + u * (2 * std::fabs(w[c]) * xhat + std::fabs(out.value[c]));
        }
        return out;
    }
};

Numbers exact(const Vector& x) { return {x, Vector(x.size())}; }

template <typename T>
std::string name_of(const char* call, const LinearShape& s) {
    return fmt::format("{} {} C={} OC={}", call, type_name<T>(), s.C, s.OC);
}

template <typename T>
void check_linear(const LinearShape& s, int offset) {
    const LinearInputs<T> linear(s, offset);
    const NormInputs<T> norm(s.C);
    const DeviceArray<float> x(floats(s.C, 5, 2)), before(floats(s.OC, 6));
    const Numbers normed = norm.normalise(x.values());

    DeviceArray<float> logits(s.OC);
    decode_logits(logits.data(), x.data(), norm.call(), linear.call(s, false), kStream);
    const Numbers plain = linear.multiply(normed, s, false);
    expect_near(name_of<T>("decode_logits", s), logits, plain.value,
                [&](size_t i) { return plain.error[i]; });

    DeviceArray<float> wide(s.OC);
    decode_fc(wide.data(), x.data(), norm.call(), linear.call(s), kStream);
    const Numbers pre = linear.multiply(normed, s);
    Vector gelu(s.OC);
    gelu_forward_cpu(gelu.data(), pre.value.data(), s.OC);
    // its slope is at most 1.13
    expect_near(name_of<T>("decode_fc", s), wide, gelu,
                [&](size_t i) { return 1.13 * pre.error[i] + gelu_error(pre.value[i], gelu[i]); });

    DeviceArray<float> sum(before.uploaded());
    decode_fcproj(sum.data(), x.data(), linear.call(s), kStream);
    Numbers added = linear.multiply(exact(x.values()), s);
    for (int i = 0; i < s.OC; i++) {
        added.value[i] += before.values()[i];
        added.error[i] += u * std::fabs(added.value[i]);
    }
    expect_near(name_of<T>("decode_fcproj", s), sum, added.value, [&](size_t i) { return added.error[i]; });
    expect_unchanged(name_of<T>("decode", s), linear.weight, linear.bias, norm.weight, norm.bias, x);
}

struct HeadShape {
    int maxT, NH, HS;
    std::string text() const { return fmt::format("maxT={} NH={} HS={}", maxT, NH, HS); }
};
constexpr HeadShape kHeads[] = {{200, 2, 64}, {130, 3, 7},   {65, 1, 33},
                                {64, 2, 80},  {300, 2, 128}, {1, 5, 1}};

template <typename T>
struct Cache {
    HeadShape s;
    DeviceArray<T> keys, values;
    explicit Cache(const HeadShape& s) : s(s), keys(empty(s)), values(empty(s)) {}
    // not yet written, but for the zeros behind each row
    static Floats empty(const HeadShape& s) {
        const int row = cache_row<T>(s.HS);
        Floats x((size_t)s.NH * s.maxT * row, NAN);
        for (size_t i = 0; i < x.size(); i++) {
            if ((int)(i % row) >= s.HS) { x[i] = 0; }
        }
        return x;
    }
    CacheLayer<T> call() const { return {keys.data(), values.data(), s.maxT, s.NH, s.HS}; }
    size_t at(int head, int t, int c) const { return ((size_t)head * s.maxT + t) * cache_row<T>(s.HS) + c; }
};

// What the parts of a position's chunks are together, in double.
Vector merged(const HeadShape& s, const Vector& parts, int position) {
    const int most = (s.maxT + kDecodeChunk - 1) / kDecodeChunk;
    Vector out;
    for (int head = 0; head < s.NH; head++) {
        const double* part = &parts[(size_t)head * most * (s.HS + 2)];
        double largest = -INFINITY, total = 0;
        Vector sum(s.HS);
        for (int i = 0; i <= position / kDecodeChunk; i++) {
            largest = std::max(largest, part[i * (s.HS + 2)]);
        }
        for (int i = 0; i <= position / kDecodeChunk; i++) {
            const double* of_chunk = part + i * (s.HS + 2);
            const double scale = std::exp2(of_chunk[0] - largest);  // scores are exponents of 2
            total += scale * of_chunk[1];
            for (int c = 0; c < s.HS; c++) { sum[c] += scale * of_chunk[2 + c]; }
        }
        for (double x : sum) { out.push_back(x / total); }
    }
    return out;
}

// The last of N rows of qkv (N,3C), its keys and values in the cache, as decode_qkv leaves them, with those
// before.
template <typename T>
void check_attention(const HeadShape& s, int position) {
    const int C = s.NH * s.HS, row = cache_row<T>(s.HS), N = position + 1;
    const AttentionShape shape = {1, N, s.NH, s.HS};
    const DeviceArray<T> qkv(floats((int64_t)N * 3 * C, 7));
    const Vector all = qkv.values();
    Vector out((size_t)N * C), lse((size_t)s.NH * N);
    attention_forward_cpu(out.data(), lse.data(), all.data(), 1, N, C, s.NH);
    const Vector bounds =
        attention_bounds(shape, kAttentionRounding<float>, all, Vector(out.size()), out, lse).out;
    Floats padded((size_t)s.NH * row, NAN);
    for (int c = 0; c < C; c++) {
        padded[(size_t)(c / s.HS * row + c % s.HS)] = (float)all[(size_t)position * 3 * C + c];
    }

    Cache<T> cache(s);
    const DeviceArray<float> q(padded);
    const DeviceArray<DecodeStep> step(std::vector<DecodeStep>{{0, position}});
    DeviceArray<float> parts(decode_parts(s.maxT, s.NH, s.HS));
    fill_cache(cache.call(), qkv.data(), N, kStream);
    decode_attention(parts.data(), q.data(), cache.call(), step.data(), kStream);
    const std::string name =
        fmt::format("decode_attention {} {} position={}", type_name<T>(), s.text(), position);
    check_guards(name, parts);
    check_guards(name, cache.keys);
    check_guards(name, cache.values);
    const Vector found = merged(s, DeviceArray<float>::widened(parts.download()), position);
    const auto bound = [&](size_t i) { return bounds[bounds.size() - C + i]; };
    check_near(name, found, Vector(out.end() - C, out.end()), bound);
    note_ratio(name, found, Vector(out.end() - C, out.end()), bound);

    // A product with the unit matrix gives back what the kernel merges: a power, a product and two sums a
    // chunk, and a division, of terms that may have both signs.
    Floats unit((size_t)C * C, 0.0f);
    for (int c = 0; c < C; c++) { unit[(size_t)c * C + c] = 1; }
    const DeviceArray<T> weight(unit);
    DeviceArray<float> x(Floats(C, 0.0f));
    decode_attproj(x.data(), parts.data(), cache.call(), DecodeLinear<T>{weight.data(), nullptr, C, C},
                   step.data(), kStream);
    const double chunks = position / kDecodeChunk + 1, largest_value = 5;  // of N * C normal numbers
    expect_near("decode_attproj after " + name, x, found,
                [&](size_t) { return u * (10 + 2 * chunks) * largest_value; });
}

template <typename T>
void check_qkv(const HeadShape& s, int position) {
    const int C = s.NH * s.HS, row = cache_row<T>(s.HS);
    const LinearShape shape = {C, 3 * C};
    const LinearInputs<T> linear(shape);
    const NormInputs<T> norm(C);
    const DeviceArray<float> x(floats(C, 5, 2));
    const DeviceArray<DecodeStep> step(std::vector<DecodeStep>{{0, position}});
    Cache<T> cache(s);
    DeviceArray<float> q((int64_t)s.NH * row);
    decode_qkv(q.data(), cache.call(), x.data(), norm.call(), linear.call(shape), step.data(), kStream);
    const Numbers expected = linear.multiply(norm.normalise(x.values()), shape);
    Vector found(3 * C);
    const std::vector<float> all_q = q.download();
    const std::vector<T> keys = cache.keys.download(), values = cache.values.download();
    int untouched = 0;
    for (int c = 0; c < C; c++) {
        const int head = c / s.HS, in_head = c % s.HS;
        found[c] = all_q[head * row + in_head];
        found[C + c] = (double)(float)keys[cache.at(head, position, in_head)];
        found[2 * C + c] = (double)(float)values[cache.at(head, position, in_head)];
        for (int t = 0; t < s.maxT; t++) {
            untouched += t != position && std::isnan((float)keys[cache.at(head, t, in_head)]) &&
                         std::isnan((float)values[cache.at(head, t, in_head)]);
        }
    }
    const std::string name = fmt::format("decode_qkv {} {} position={}", type_name<T>(), s.text(), position);
    check_guards(name, q);
    check_near(name, found, expected.value, [&](size_t i) {
        return i < (size_t)C ? expected.error[i] : stored<T>(expected.error[i], expected.value[i]);
    });
    CHECK_MESSAGE(untouched == C * (s.maxT - 1), (name + ": a row of another position was written"));
}

}  // namespace

// test_emulated runs this suite, too
TEST_SUITE_BEGIN("decode");

TEST_CASE_TEMPLATE("decode: products with one vector", T, float, bf16) {
    for (const LinearShape& s : kShapes) { check_linear<T>(s, 0); }
    check_linear<T>({64, 20}, 1);  // aligned for T alone
}

TEST_CASE_TEMPLATE("decode: attention in chunks, and q, keys and values at a position", T, float, bf16) {
    for (const HeadShape& s : kHeads) {
        for (int position : {0, 1, 62, 63, 64, 65, 127, 128, 199, 299}) {
            if (position >= s.maxT) { continue; }
            check_attention<T>(s, position);
            check_qkv<T>(s, position);
        }
    }
}

TEST_CASE_TEMPLATE("decode: the token's row and the position's", T, float, bf16) {
    for (int C : {1, 7, 768}) {
        const DeviceArray<T> wte(floats((int64_t)11 * C, 1)), wpe(floats((int64_t)5 * C, 2));
        const DeviceArray<DecodeStep> given(std::vector<DecodeStep>{{10, 4}});
        DeviceArray<float> x(C), sum(C);
        DeviceArray<DecodeStep> step(1);
        decode_encoder(x.data(), step.data(), given.data(), wte.data(), wpe.data(), C, kStream);
        decode_residual(sum.data(), wte.data() + 10 * C, wpe.data() + 4 * C, C, kStream);
        Vector expected(C);
        for (int c = 0; c < C; c++) { expected[c] = wte.values()[10 * C + c] + wpe.values()[4 * C + c]; }
        for (const auto* found : {&x, &sum}) {
            expect_near(fmt::format("decode_encoder {} C={}", type_name<T>(), C), *found, expected,
                        [&](size_t i) { return u * std::fabs(expected[i]); });
        }
        CHECK(step.download()[0].token == 10);
        CHECK(step.download()[0].position == 4);
    }
}

TEST_SUITE_END();

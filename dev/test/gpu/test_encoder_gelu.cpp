// The encoder and GELU on the GPU against the reference.
#include "dev/test/gpu/layer_test.h"
#include "llmc/model/cpu/reference.h"
#include "llmc/ops/encoder.h"
#include "llmc/ops/gelu.h"

using namespace llmc;
using namespace llmc::gpu_test;

// ---- the encoder ---------------------------------------------------------------------------------

namespace {

// kOneToken: all but every seventh are token 1. kChunks: each of backward's chunks of 64 sorted rows holds a
// single token, so that runs begin and end on chunks' borders: one chunk, one, two, one and a part.
enum class Tokens { kRandom, kOneToken, kDistinct, kSame, kChunks };
constexpr const char* kTokensNames[] = {"random", "mostly one token", "distinct", "all the same",
                                        "by whole chunks"};
constexpr int kTokenOfChunk[] = {0, 1, 2, 2, 3, 3};

struct EncoderShape {
    int B, T, C, V;
    Tokens kind;
    std::string text() const {
        return fmt::format("B={} T={} C={} V={}, tokens {}", B, T, C, V, kTokensNames[(int)kind]);
    }
    std::vector<int32_t> tokens() const {
        std::vector<int32_t> x = random_tokens((int64_t)B * T, V, 1);
        for (int i = 0; i < B * T; i++) {
            if (kind == Tokens::kOneToken && i % 7 != 3) { x[i] = 1; }
            if (kind == Tokens::kDistinct) { x[i] = (int32_t)((int64_t)i * 5 % V); }  // 5 does not divide V
            if (kind == Tokens::kSame) { x[i] = 1; }
            if (kind == Tokens::kChunks) { x[i] = kTokenOfChunk[i * 5 % (B * T) / 64]; }  // nor B T
        }
        return x;
    }
};

// The last five are runs against backward's chunks of 64: a last chunk that is not full, two chunks, full and
// not, a single one, borders.
constexpr EncoderShape kEncoderShapes[] = {
    {1, 1, 1, 2, Tokens::kRandom},           {1, 3, 3, 97, Tokens::kDistinct},
    {3, 17, 65, 257, Tokens::kRandom},       {3, 17, 65, 257, Tokens::kDistinct},
    {4, 64, 769, 97, Tokens::kOneToken},     {17, 64, 768, 257, Tokens::kRandom},
    {1, 1024, 1600, 257, Tokens::kOneToken}, {4, 250, 65, 50257, Tokens::kRandom},
    {2, 1024, 64, 50257, Tokens::kDistinct}, {4, 250, 65, 97, Tokens::kSame},
    {2, 64, 72, 97, Tokens::kSame},          {1, 100, 65, 97, Tokens::kSame},
    {1, 64, 65, 97, Tokens::kSame},          {4, 82, 65, 97, Tokens::kChunks},
};

// One addition of two numbers of T in fp32 and the rounding to T.
template <typename Real>
void check_encoder_forward(const EncoderShape& s) {
    auto [B, T, C, V, kind] = s;
    DeviceArray<int32_t> tokens(s.tokens());
    DeviceArray<Real> wte(floats((int64_t)V * C, 2)), wpe(floats((T + 3) * C, 3)), out((int64_t)B * T * C);
    encoder_forward(out.data(), tokens.data(), wte.data(), wpe.data(), B, T, C, kStream);
    Vector expected(out.size());
    encoder_forward_cpu(expected.data(), tokens.uploaded().data(), wte.values().data(), wpe.values().data(),
                        B, T, C);
    std::string name = fmt::format("encoder_forward out {} ", type_name<Real>()) + s.text();
    expect_near(name, out, expected,
                [&](size_t i) { return stored<Real>(u * std::fabs(expected[i]), expected[i]); });
    expect_unchanged(name, tokens, wte, wpe);

    // and with dropout: a factor of 0 or 2 has no rounding
    const DropoutRows rows{100, 4};
    const DeviceArray<int64_t> there(std::vector<int64_t>{rows.first, rows.step});
    Dropout dropout(0.5, 9);
    dropout.rows = (const DropoutRows*)there.data();
    encoder_forward(out.data(), tokens.data(), wte.data(), wpe.data(), B, T, C, kStream, dropout);
    dropout.rows = &rows;
    dropout_cpu(expected.data(), expected.data(), dropout, (int64_t)B * T, C);
    expect_near(name + " with dropout", out, expected,
                [&](size_t i) { return stored<Real>(u * std::fabs(expected[i]), expected[i]); });
}

// A row of dwte is the sum of as many rows of dout as its token occurs, plus what was there; a row of dwpe
// that of B rows, plus what was there with accumulate. Sums in fp32, one addition to the start value, then
// the rounding to Grad. A row that no token asks for keeps its bits, and so does a position from T on.
template <typename Real, typename Grad>
void check_encoder_backward(const EncoderShape& s, bool accumulate) {
    auto [B, T, C, V, kind] = s;
    DeviceArray<int32_t> tokens(s.tokens());
    DeviceArray<Real> dout(floats((int64_t)B * T * C, 4));
    DeviceArray<Grad> dwte(floats((int64_t)V * C, 5)), dwpe(floats((T + 3) * C, 6));
    Scratch scratch(encoder_backward_scratch(B, T, C, V));
    encoder_backward(dwte.data(), dwpe.data(), scratch.data(), dout.data(), tokens.data(), B, T, C, V,
                     accumulate, kStream);

    Vector dwte_d = dwte.values(), dwpe_d = dwpe.values();
    if (!accumulate) { std::fill_n(dwpe_d.begin(), T * C, 0.0); }
    Vector dwte_terms = absolute(dwte_d), dwpe_terms = absolute(dwpe_d);
    encoder_backward_cpu(dwte_d.data(), dwpe_d.data(), dout.values().data(), tokens.uploaded().data(), B, T,
                         C);
    encoder_backward_cpu(dwte_terms.data(), dwpe_terms.data(), absolute(dout.values()).data(),
                         tokens.uploaded().data(), B, T, C);
    std::vector<int> occurs(V, 0);
    for (int32_t token : tokens.uploaded()) { occurs[token]++; }

    std::string shape = type_names<Real, Grad>() + (accumulate ? " += " : " ") + s.text();
    expect_near("encoder_backward dwte " + shape, dwte, dwte_d, [&](size_t i) {
        int n = occurs[i / C];
        return n == 0 ? 0 : stored<Grad>((additions(n) + 1) * u * dwte_terms[i], dwte_d[i]);
    });
    expect_near("encoder_backward dwpe " + shape, dwpe, dwpe_d, [&](size_t i) {
        bool written = (int)(i / C) < T;
        return !written ? 0 : stored<Grad>((additions(B) + 1) * u * dwpe_terms[i], dwpe_d[i]);
    });
    check_guards("encoder_backward scratch " + shape, scratch);
    expect_unchanged("encoder_backward " + shape, tokens, dout);
}

}  // namespace

TEST_CASE_TEMPLATE("encoder_forward", Real, float, bf16) {
    for (const EncoderShape& s : kEncoderShapes) { check_encoder_forward<Real>(s); }
}

TEST_CASE_TEMPLATE("encoder_backward", Real, float, bf16) {
    for (const EncoderShape& s : kEncoderShapes) {
        for (bool accumulate : {false, true}) {
            check_encoder_backward<Real, float>(s, accumulate);
            if (!std::is_same_v<Real, float>) { check_encoder_backward<Real, Real>(s, accumulate); }
        }
    }
}

// ---- GELU ----------------------------------------------------------------------------------------

namespace {

struct GeluShape {
    int64_t n;
    int offset;  // elements off the alignment of every pointer
};
constexpr GeluShape kGeluShapes[] = {{1, 0},    {3, 1},         {17, 0},     {17, 3},
                                     {1023, 1}, {1000 * 65, 0}, {1 << 18, 5}};

// ordinary numbers, large ones, zeros of both signs and the ends of what the sigmoid tells apart
Floats gelu_inputs(int64_t n) {
    Floats x = floats(n, 1, 1.5);
    constexpr float kOthers[] = {0.0f, -0.0f, 6, -6, 12, -12, 40, -40, 1e4f, -1e4f, 1e-20f, -1e-20f};
    for (int64_t i = 16; i < n; i += 17) { x[i] = kOthers[i / 17 % std::size(kOthers)]; }
    return x;
}

template <typename T>
void check_gelu_forward(const GeluShape& s, bool alias) {
    DeviceArray<T> inp(gelu_inputs(s.n), s.offset), apart(s.n, s.offset);
    DeviceArray<T>& out = alias ? inp : apart;
    gelu_forward(out.data(), inp.data(), s.n, kStream);
    Vector x = inp.values(), expected(s.n);
    gelu_forward_cpu(expected.data(), x.data(), s.n);
    std::string name = fmt::format("gelu_forward out {} n={} offset={}{}", type_name<T>(), (int)s.n, s.offset,
                                   alias ? " in place" : "");
    expect_near(name, out, expected,
                [&](size_t i) { return stored<T>(gelu_error(x[i], expected[i]), expected[i]); });
    if (!alias) { expect_unchanged(name, inp); }
}

template <typename T>
void check_gelu_backward(const GeluShape& s, bool alias) {
    DeviceArray<T> inp(gelu_inputs(s.n), s.offset), dout(floats(s.n, 2), s.offset), apart(s.n, s.offset);
    DeviceArray<T>& dinp = alias ? dout : apart;
    gelu_backward(dinp.data(), dout.data(), inp.data(), s.n, kStream);
    Vector x = inp.values(), d = dout.values(), expected(s.n);
    gelu_backward_cpu(expected.data(), d.data(), x.data(), s.n);
    std::string name = fmt::format("gelu_backward dinp {} n={} offset={}{}", type_name<T>(), (int)s.n,
                                   s.offset, alias ? " in place" : "");
    expect_near(name, dinp, expected, [&](size_t i) {
        return stored<T>(std::fabs(d[i]) * gelu_slope_error(x[i]) + u * std::fabs(expected[i]), expected[i]);
    });
    expect_unchanged(name, inp);
}

}  // namespace

TEST_CASE_TEMPLATE("gelu: forward and backward, aligned or not, in place or not", T, float, bf16) {
    for (const GeluShape& s : kGeluShapes) {
        for (bool alias : {false, true}) {
            check_gelu_forward<T>(s, alias);
            check_gelu_backward<T>(s, alias);
        }
    }
}

TEST_CASE_TEMPLATE("gelu: NaN stays NaN", T, float, bf16) {
    DeviceArray<T> inp(Floats{1, NAN, -1}), dout(Floats{1, 1, NAN}), out(3), dinp(3);
    gelu_forward(out.data(), inp.data(), 3, kStream);
    gelu_backward(dinp.data(), dout.data(), inp.data(), 3, kStream);
    Vector y = DeviceArray<T>::widened(out.download()), d = DeviceArray<T>::widened(dinp.download());
    CHECK(std::isfinite(y[0]));
    CHECK(std::isnan(y[1]));
    CHECK(std::isfinite(y[2]));
    CHECK(std::isfinite(d[0]));
    CHECK(std::isnan(d[1]));
    CHECK(std::isnan(d[2]));
}

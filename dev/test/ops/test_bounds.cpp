// What the kernel shootouts judge by, without a GPU: number formats, problems and their truth, error bounds, verdicts. A
// perfect result must pass with little to spare, and each of the classic faults must fail.
#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "dev/cuda/attention_problems.h"
#include "dev/cuda/layernorm_problems.h"
#include "dev/cuda/options.h"
#include "dev/cuda/report.h"
#include "llmc/layernorm/ladder/backward/v0.h"
#include "llmc/layernorm/ladder/forward/v0.h"
#include "llmc/ops/attention/ladder/backward/v0.h"
#include "llmc/ops/attention/ladder/forward/v0.h"

using namespace llmc;

namespace {

const Format &kSingle = format_of(Dtype::kFp32), &kBrain = format_of(Dtype::kBf16),
             &kHalf = format_of(Dtype::kFp16);
constexpr double kInfinity = std::numeric_limits<double>::infinity();
// a row summed by a warp, a column by 64 groups: how v2 adds
const Sums kSums{.row = 29, .column = 80};

// what a kernel without any rounding but the last would store
std::vector<double> perfect(const Output& out) {
    std::vector<double> values = *out.truth;
    round_all(values, format_of(out.dtype));
    return values;
}

Verdict judge_values(const Output& out, std::vector<double> values, const Sums& sums = kSums) {
    round_all(values, format_of(out.dtype));
    return judge_all(out, sums, encode_all(values, format_of(out.dtype)));
}

template <typename Tensors>
const auto& named(const Tensors& tensors, const std::string& name) {
    return *std::find_if(tensors.begin(), tensors.end(), [&](const auto& t) { return name == t.name; });
}
const Output& output(const Problem& p, const std::string& name) { return named(p.out, name); }
const std::vector<double>& input(const Problem& p, const std::string& name) {
    return *named(p.in, name).values;
}
std::vector<float> floats(const Problem& p, const std::string& name) {
    return {input(p, name).begin(), input(p, name).end()};
}
bool passes(const Problem& p, const std::string& name, const std::vector<float>& found, const Sums& sums) {
    return judge_values(output(p, name), {found.begin(), found.end()}, sums).ok();
}

// a LayerNorm forward in double with faults to choose from
struct Faults {
    double eps = 1e-5f;
    int divide_by_less = 0;        // variance over C - this
    bool mean_of_squares = false;  // var = E[x^2] - mean^2, in single precision
    int left_out = 0;              // of each row's sums, its first columns
};
struct Result {
    std::vector<double> out, mean, rstd;
};
Result forward(const Problem& p, const Faults& f) {
    const auto &x = input(p, "inp"), &w = input(p, "weight"), &b = input(p, "bias");
    Result r{std::vector<double>(p.N * p.C), std::vector<double>(p.N), std::vector<double>(p.N)};
    for (int64_t row = 0; row < p.N; row++) {
        double sum = 0, squares = 0;
        float raw_squares = 0;
        for (int c = f.left_out; c < p.C; c++) { sum += x[row * p.C + c]; }
        double m = sum / p.C;
        for (int c = f.left_out; c < p.C; c++) {
            double v = x[row * p.C + c];
            squares += (v - m) * (v - m);
            raw_squares += (float)v * (float)v;
        }
        double var = squares / (p.C - f.divide_by_less);
        if (f.mean_of_squares) {
            var = std::max(0.0, (double)(raw_squares / (float)p.C - (float)m * (float)m));
        }
        double s = 1 / std::sqrt(var + f.eps);
        for (int c = 0; c < p.C; c++) { r.out[row * p.C + c] = (x[row * p.C + c] - m) * s * w[c] + b[c]; }
        r.mean[row] = m;
        r.rstd[row] = s;
    }
    return r;
}

}  // namespace

// ---- numbers -----------------------------------------------------------------------------------

TEST_CASE("rounding to fp32 is the compiler's") {
    for (int i = 0; i < 20000; i++) {
        double x = normal_at(kDrawInp, i) * std::pow(10.0, i % 90 - 45);
        CHECK(round_to(x, kSingle) == (double)(float)x);
    }
    CHECK(round_to(3.5e38, kSingle) == kInfinity);
    CHECK(round_to(-3.5e38, kSingle) == -kInfinity);
    CHECK(std::signbit(round_to(-1e-60, kSingle)));
}

TEST_CASE("rounding to 16 bits: ties to even, subnormals, overflow") {
    CHECK(round_to(1 + 0x1p-8, kBrain) == 1);  // half way between 1 and 1 + 2^-7: the even one
    CHECK(round_to(1 + 3 * 0x1p-8, kBrain) == 1 + 0x1p-6);
    CHECK(round_to(1 + 0x1p-8 + 0x1p-40, kBrain) == 1 + 0x1p-7);
    CHECK(round_to(1 + 0x1p-11, kHalf) == 1);
    CHECK(round_to(65504, kHalf) == 65504);
    CHECK(round_to(65519, kHalf) == 65504);
    CHECK(round_to(65520, kHalf) == kInfinity);
    CHECK(round_to(0x1p-24, kHalf) == 0x1p-24);  // the smallest
    CHECK(round_to(0x1p-25, kHalf) == 0);
    CHECK(round_to(3 * 0x1p-25, kHalf) == 0x1p-23);
    CHECK(round_to(0x1p-133, kBrain) == 0x1p-133);
    CHECK(std::isnan(round_to(NAN, kHalf)));
}

TEST_CASE("every 16-bit pattern decodes to what encodes to it") {
    for (const Format* f : {&kBrain, &kHalf}) {
        for (uint64_t bits = 0; bits < 65536; bits++) {
            double value = decode(bits, *f);
            if (std::isnan(value)) {
                CHECK(std::isnan(decode(encode(value, *f), *f)));
                continue;
            }
            CHECK(encode(value, *f) == bits);
            CHECK(round_to(value, *f) == value);
        }
    }
    CHECK(decode(0x3c00, kHalf) == 1);
    CHECK(decode(0x7bff, kHalf) == 65504);
    CHECK(decode(0x0001, kHalf) == 0x1p-24);
    CHECK(decode(0x3f80, kBrain) == 1);
    CHECK(decode(0xc020, kBrain) == -2.5);
}

// ---- a perfect result --------------------------------------------------------------------------

TEST_CASE("a result that is wrong only by its last rounding passes, and uses a fair part of its bounds") {
    for (Dtype dtype : {Dtype::kFp32, Dtype::kBf16, Dtype::kFp16}) {
        for (const Problem& p :
             {layernorm_forward_problem(dtype, {131, 769}), layernorm_backward_problem(dtype, {131, 769})}) {
            for (const Output& out : p.out) {
                Verdict v = judge_values(out, perfect(out));
                CAPTURE(p.op + " " + p.shape() + " " + out.name);
                CHECK(v.ok());
                // fp32: the bound allows for the sums' errors too, which a perfect result does not make
                CHECK(v.worst > (out.dtype == Dtype::kFp32 ? 0.001 : 0.9));
                CHECK(v.worst <= 1);
            }
        }
    }
}

// With as many rows as differ in kind: 7 of constants, 4 of what is not finite; the longest rows are plain.
TEST_CASE("it passes on every kind of input and at every width of --check") {
    for (bool is_backward : {false, true}) {
        std::set<std::string> known;  // many are alike but for their rows
        for (const CheckItem& item : layernorm_checks(is_backward)) {
            const int C = item.shape.C;
            const Shape shape{std::min<int64_t>(item.shape.N, C < 2000 ? 7 : C <= 20000 ? 4 : 2), C};
            if (!known.insert(fmt::format("{} {} {} {}", (int)item.dtype, shape.N, C, (int)item.inputs))
                     .second) {
                continue;
            }
            Problem p = is_backward ? layernorm_backward_problem(item.dtype, shape, item.inputs)
                                    : layernorm_forward_problem(item.dtype, shape, item.inputs);
            for (const Output& out : p.out) {
                CAPTURE(p.op + " " + p.shape() + " " + p.inputs + " " + out.name);
                CHECK(judge_values(out, perfect(out)).ok());
            }
        }
    }
}

// ---- the loop on paper -------------------------------------------------------------------------

TEST_CASE("v0's float sums keep the bounds of float sums") {
    const Sums sums{.row = 768, .column = 128, .from_first = false};
    Problem p = layernorm_forward_problem(Dtype::kFp32, {128, 768});
    auto x = floats(p, "inp"), w = floats(p, "weight"), b = floats(p, "bias");
    std::vector<float> y(128 * 768), m(128), s(128);
    v0::layernorm_forward_cpu(y.data(), m.data(), s.data(), x.data(), w.data(), b.data(), 4, 32, 768, p.eps);
    CHECK((passes(p, "out", y, sums) && passes(p, "mean", m, sums) && passes(p, "rstd", s, sums)));

    Problem q = layernorm_backward_problem(Dtype::kFp32, {128, 768});
    std::vector<float> dx(128 * 768), dw(768), db(768);
    v0::layernorm_backward_cpu(dx.data(), dw.data(), db.data(), floats(q, "dout").data(), x.data(), w.data(),
                               floats(q, "mean").data(), floats(q, "rstd").data(), 4, 32, 768);
    CHECK((passes(q, "dinp", dx, sums) && passes(q, "dweight", dw, sums) && passes(q, "dbias", db, sums)));
}

TEST_CASE("v0's sums of x itself fail where the mean is large, unless the bounds allow for them") {
    Problem p = layernorm_forward_problem(Dtype::kFp32, {32, 768}, Inputs::kOffset);
    std::vector<float> y(32 * 768), m(32), s(32);
    v0::layernorm_forward_cpu(y.data(), m.data(), s.data(), floats(p, "inp").data(),
                              floats(p, "weight").data(), floats(p, "bias").data(), 1, 32, 768, p.eps);
    CHECK_FALSE(passes(p, "out", y, {.row = 768}));
    CHECK(passes(p, "out", y, {.row = 768, .from_first = false}));
}

// ---- faults ------------------------------------------------------------------------------------

TEST_CASE("forward: eps 1e-2 and variance over C - 1 fail in every type") {
    for (Dtype dtype : {Dtype::kFp32, Dtype::kBf16, Dtype::kFp16}) {
        Problem p = layernorm_forward_problem(dtype, {131, 769});
        CAPTURE(p.shape());
        Result right = forward(p, {});
        CHECK(judge_values(output(p, "out"), right.out).ok());
        Result eps = forward(p, {.eps = 1e-2});
        CHECK(judge_values(output(p, "out"), eps.out).worst > 1.5);
        CHECK(judge_values(output(p, "rstd"), eps.rstd).worst > 1000);
        Result unbiased = forward(p, {.divide_by_less = 1});
        CHECK(judge_values(output(p, "rstd"), unbiased.rstd).worst > 100);
        CHECK(judge_values(output(p, "out"), unbiased.out).worst > 1);
        CHECK(judge_values(output(p, "mean"), unbiased.mean).ok());
    }
}

TEST_CASE("forward: E[x^2] - mean^2 fails where the mean is large") {
    Problem p = layernorm_forward_problem(Dtype::kFp32, {16, 769}, Inputs::kOffset);
    CHECK(judge_values(output(p, "rstd"), forward(p, {}).rstd).ok());
    CHECK(judge_values(output(p, "rstd"), forward(p, {.mean_of_squares = true}).rstd).worst > 1000);
}

TEST_CASE("forward: a lane's columns of a long row, left out of its sums, are seen") {
    for (Dtype dtype : {Dtype::kFp32, Dtype::kBf16}) {
        Problem p = layernorm_forward_problem(dtype, {4, 262144}, Inputs::kNormal);
        Sums sums{.row = shipped_row_additions(p.C, dtype)};
        for (int lane : {0, 32, 64}) {
            Result r = forward(p, {.left_out = lane});
            CHECK(judge_values(output(p, "mean"), r.mean, sums).ok() == (lane == 0));
        }
    }
}

TEST_CASE("kernels that train add in chains that grow with a row while lanes are few, and hardly beyond") {
    CHECK(shipped_row_additions(8, Dtype::kBf16) == 18);
    CHECK(shipped_row_additions(512, Dtype::kBf16) == 80);
    CHECK(shipped_row_additions(1600, Dtype::kFp32) == 66);
    for (Dtype dtype : kDtypes) {
        for (int C = 1; C < 300'000; C += 997) {
            CHECK(shipped_row_additions(C, dtype) > std::min(C / 32.0 + 15, 160.0));
            CHECK(shipped_row_additions(C, dtype) <= 160 + C / (dtype == Dtype::kFp64 ? 682.0 : 1365.0));
        }
    }
}

TEST_CASE("forward: a constant row must give bias, bit for bit") {
    Problem p = layernorm_forward_problem(Dtype::kFp32, {14, 65}, Inputs::kConstant);
    const Output& out = output(p, "out");
    CHECK(judge_values(out, perfect(out)).worst == 0);
    auto off = perfect(out);
    off[100] = std::nextafter((float)off[100], 9.0f);
    CHECK(judge_values(out, off).worst == kInfinity);
    CHECK(judge_values(out, off).at == 100);
}

TEST_CASE("backward, integers: the sums fit every type, and one row too few is seen without any tolerance") {
    for (Dtype dtype : {Dtype::kFp32, Dtype::kBf16, Dtype::kFp16}) {
        for (Shape shape : {Shape{131, 3}, {8192, 64}}) {
            Problem p = layernorm_backward_problem(dtype, {shape.N, shape.C}, Inputs::kInteger);
            for (const char* name : {"dweight", "dbias"}) {
                const Output& out = output(p, name);
                double largest = 0;
                for (double x : *out.truth) {
                    CHECK(x == std::round(x));
                    largest = std::max(largest, std::fabs(x));
                }
                CAPTURE(p.shape() + " " + name);
                CHECK(largest <= 256);  // bf16 holds every integer up to 2^8
                CHECK(largest > 5);
                CHECK(judge_values(out, perfect(out)).worst == 0);
                auto off = perfect(out);
                off[0] += 1;  // a row's share at least
                CHECK(judge_values(out, off).worst == kInfinity);
            }
        }
    }
}

// ---- verdicts ----------------------------------------------------------------------------------

TEST_CASE("NaN, infinity and an element never written fail and are named") {
    Problem p = layernorm_forward_problem(Dtype::kBf16, {5, 7});
    const Output& out = output(p, "out");
    for (double bad : {(double)NAN, kInfinity, -kInfinity}) {
        auto values = perfect(out);
        values[2 * 7 + 3] = bad;
        Verdict v = judge_values(out, values);
        CHECK(v.over == 1);
        CHECK(v.at == 17);
        CHECK(v.worst == kInfinity);
        CHECK(describe(out, v).starts_with("out[2][3]: found "));
    }
    auto raw = encode_all(perfect(out), kBrain);
    raw[2 * 11] = raw[2 * 11 + 1] = std::byte{0xff};  // the poison
    Verdict v = judge_all(out, kSums, raw);
    CHECK(v.unwritten);
    CHECK(describe(out, v).starts_with("out[1][4]: not written"));
    CHECK(describe(out, v).ends_with("1 of 35 elements are wrong"));
}

TEST_CASE("where the truth is not finite the result must not be, and must be written") {
    Problem p = layernorm_forward_problem(Dtype::kFp32, {8, 65}, Inputs::kNonFinite);
    const Output& out = output(p, "out");
    CHECK(std::isfinite((*out.truth)[4 * 65]));
    CHECK_FALSE(std::isfinite((*out.truth)[5 * 65]));
    CHECK(judge_values(out, perfect(out)).ok());
    auto values = perfect(out);
    values[5 * 65 + 1] = 0;
    CHECK(judge_values(out, values).at == 5 * 65 + 1);
    auto raw = encode_all(perfect(out), kSingle);
    std::fill_n(raw.begin() + 4 * (6 * 65), 4, std::byte{0xff});
    CHECK(judge_all(out, kSums, raw).at == 6 * 65);
}

TEST_CASE("names of elements: matrix, row statistics, column sums") {
    Problem p = layernorm_forward_problem(Dtype::kFp32, {5, 7}),
            q = layernorm_backward_problem(Dtype::kFp32, {5, 7});
    Verdict v{.worst = 2, .at = 4, .over = 1, .elements = 5};
    CHECK(describe(output(p, "rstd"), v).starts_with("rstd[4]: "));
    CHECK(describe(output(q, "dbias"), v).starts_with("dbias[4]: "));
    CHECK(describe(output(q, "dinp"), v).starts_with("dinp[0][4]: "));
}

TEST_CASE("no rows: nothing to judge forward, zeros backward") {
    Problem p = layernorm_forward_problem(Dtype::kFp32, {0, 768}),
            q = layernorm_backward_problem(Dtype::kFp32, {0, 768});
    CHECK(judge_values(output(p, "out"), {}).ok());
    CHECK(judge_values(output(q, "dweight"), std::vector<double>(768, 0.0)).ok());
    CHECK_FALSE(judge_values(output(q, "dweight"), std::vector<double>(768, 1e-20)).ok());
}

// ---- attention --------------------------------------------------------------------------------

namespace {

constexpr int kB = 2, kNH = 5, kT = 9, kC = kNH * kHeadColumns;  // more heads than are distinct

}  // namespace

TEST_CASE("attention's problems: the truth of every head is that of its own numbers") {
    for (Inputs kind : {Inputs::kNormal, Inputs::kOutlier, Inputs::kConstant}) {
        Problem p = attention_forward_problem(Dtype::kBf16, sequences(kB, kNH, kT), kind);
        std::vector<double> out(p.N * kC), lse((size_t)kB * kNH * kT), dqkv(3 * out.size());
        attention_forward_cpu(out.data(), lse.data(), p.in[0].values->data(), kB, kT, kC, kNH);
        CHECK(out == *p.out[0].truth);
        CHECK(lse == *p.out[1].truth);

        Problem b = attention_backward_problem(Dtype::kBf16, sequences(kB, kNH, kT), kind);
        attention_backward_cpu(dqkv.data(), b.in[0].values->data(), b.in[1].values->data(),
                               b.in[2].values->data(), b.in[3].values->data(), kB, kT, kC, kNH);
        CHECK(dqkv == *b.out[0].truth);
    }
}

TEST_CASE("attention's problems: what is rounded once passes, other heads' rows do not") {
    Problem p = attention_forward_problem(Dtype::kBf16, sequences(kB, kNH, kT));
    Problem b = attention_backward_problem(Dtype::kBf16, sequences(kB, kNH, kT));
    for (const Output* out : {&p.out[0], &p.out[1], &b.out[0]}) {
        Verdict right = judge_values(*out, *out->truth, {});
        CHECK((right.ok() && right.worst > 0));
        // a row, or the other sequence's head, further
        for (int64_t by : {(int64_t)kHeadColumns, out->cols, out->rows / kB * out->cols}) {
            std::vector<double> values = *out->truth;
            std::rotate(values.begin(), values.begin() + by, values.end());
            CHECK_FALSE(judge_values(*out, values, {}).ok());
        }
        std::vector<double> values = *out->truth;
        values[values.size() / 2] += 0.1;
        CHECK(judge_values(*out, values, {}).over == 1);
    }
}

TEST_CASE("attention's ladders: v0 is right in single precision") {
    for (int T : {1, 17, 65}) {
        Shape shape = sequences(kB, 3, T);
        Problem p = attention_forward_problem(Dtype::kFp32, shape),
                b = attention_backward_problem(Dtype::kFp32, shape);
        auto in = [](const Problem& of, int i) { return floats(of, of.in[i].name); };
        std::vector<float> out(p.N * p.C), lse(p.N * 3), dqkv(3 * out.size());
        v0::attention_forward_cpu(out.data(), lse.data(), in(p, 0).data(), kB, T, 3, kHeadColumns);
        v0::attention_backward_cpu(dqkv.data(), in(b, 0).data(), in(b, 1).data(), in(b, 2).data(),
                                   in(b, 3).data(), kB, T, 3, kHeadColumns);
        CHECK((passes(p, p.out[0].name, out, {}) && passes(p, p.out[1].name, lse, {})));
        CHECK(passes(b, b.out[0].name, dqkv, {}));
    }
}

TEST_CASE("attention's shapes: sequences x heads x tokens; operations instead of bytes in the table") {
    const char* words[] = {"attention_forward", "--shape", "64x12x1024,1x1x65"};
    ShootoutOptions options;
    options.sequences = true;
    REQUIRE(parse_shootout_options(3, words, "attention_forward", &options));
    CHECK(options.shapes == std::vector<Shape>{{65536, 768, 1024}, {65, 64, 65}});
    for (const char* shape : {"64x12", "64x12x0", "0x12x1", "64x12x1024x1", "9999999999x1x1"}) {
        const char* wrong[] = {"attention_forward", "--shape", shape};
        std::string expected = fmt::format(
            "--shape: found '{}', expected sequences x heads x tokens, such as 64x12x1024. See "
            "dev/cuda/attention_forward --help.",
            shape);
        CHECK_THROWS_WITH_AS(parse_shootout_options(3, wrong, "attention_forward", &options),
                             expected.c_str(), Error);
    }
    Problem p = attention_forward_problem(Dtype::kBf16, sequences(2, 3, 4));
    CHECK(p.shape() == "bf16 2x3x4");
    CHECK(p.flops == 4.0 * 64 * 6 * 10);
    Row row{.T = 4, .flops = 2e9};
    row.us = Times(std::vector<double>(21, 100.0));
    CHECK(row.tflop_per_s() == doctest::Approx(20));
    CHECK(line_of(table_columns(row), row).find("   20 ") != std::string::npos);
    CHECK(head_of(table_columns(row)).find("TF/s") != std::string::npos);
    CHECK(json_row(row).find("\"tflop_per_s\": 20,") != std::string::npos);
}

// A problem as the harness sees it: an op at one shape, in one type, on one kind of inputs, with its inputs,
// its true answer and the bound of every element; and the verdict on what a version made of it. Host only.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dev/cuda/bounds.h"
#include "llmc/host/base/error.h"
#include "llmc/host/base/philox.h"

namespace llmc {

struct Shape {
    int64_t N;
    int C;
    int T = 0;  // of attention: the N tokens are sequences of T
    bool operator==(const Shape&) const = default;
};

// what a problem is tried on
enum class Inputs {
    kNormal,     // x = -2.3 + 0.5 n; like weight, bias and dout as in the test of Triton's LayerNorm tutorial
    kOffset,     // the mean is a million (16 bits: 100) standard deviations: E[x^2] - mean^2 would be noise
    kConstant,   // each row one value: out must be bias, bit for bit
    kOutlier,    // one element is 1e5 times the others
    kDenormal,   // nothing but subnormal numbers: flushing them to zero shows in the mean
    kNonFinite,  // three rows of four have an infinity or a NaN: they must not leak into the fourth
    kInteger,    // backward, mean 0, rstd 1: the sums over rows are small integers, exact in any order
};
inline constexpr const char* kInputsNames[] = {"normal",   "offset",    "constant", "outlier",
                                               "denormal", "nonfinite", "integer"};

using Values = std::shared_ptr<const std::vector<double>>;  // shared by the problem and its bounds

// How an op is called, beyond the contract that every rung of a ladder has: only the shipped functions take
// these. A tensor that is not wanted is absent from the problem; so is one whose place another takes.
struct CallForm {
    const char* name = "";  // in messages
    bool no_weight = false, no_bias = false, no_statistics = false;
    bool no_dinp = false, no_dweight = false, no_dbias = false;
    bool fp32_weight = false, fp32_gradients = false;  // where the rows are of another type
    bool accumulate_dinp = false, accumulate = false;  // += into dinp; into dweight and dbias
    int in_place = 0;    // a result is written over the first (1) or the second (2) input
    bool fp8 = false;    // out goes on in fp32, to be rounded to FP8
    bool drops = false;  // the residual's second input is dropped, in backward what goes on from dinp
    int64_t first = 0;   // of dropout: the number of the first row
    int pad = 0;         // elements between the rows, times 1, 2, ... in the problem's matrices
    int offset = 0;      // elements by which every tensor misses its alignment
    bool rms = false;    // RMSNorm; backward is given no mean
    std::optional<Dtype>
        out{};          // of forward's out, backward's dout and the copy of dinp, beside rows of fp32
    bool copy = false;  // backward writes that copy, too

    bool plain() const { return *name == 0 && !rms; }
};

// what a tensor's elements belong to
enum class Extent {
    kMatrix,   // (N,C): rows may lie apart
    kRows,     // (N)
    kColumns,  // (C), or (samples,C): then these may lie apart, not the rows
};

constexpr int kHeadColumns = 64;  // of attention: elements of a head, of which a token's C are

struct Input {
    const char* name;
    Dtype dtype;
    Values values;  // such that dtype holds them exactly
    Extent extent = Extent::kMatrix;
};

struct Output {
    const char* name;
    Dtype dtype;
    int64_t rows, cols;  // a vector has one column
    Values truth;        // null: `agree` alone says what it must be
    std::function<double(const Sums& sums, int64_t row, int64_t col)> bound;
    Extent extent = Extent::kMatrix;
    Values initial = nullptr;  // what it holds before: what is added to, or an input; null = nothing
};

struct Problem {
    std::string op;  // layernorm_forward
    Dtype dtype;
    int64_t N;
    int C;
    float eps = 0;
    std::string inputs;         // the kind: normal, constant, ...
    int reads = 0, writes = 0;  // streams of N x C elements that no version can avoid: roof and useful bytes
    std::vector<Input> in{};
    std::vector<Output> out{};
    CallForm form{};
    int T = 0;            // as in Shape
    int64_t samples = 0;  // of which each has vectors of its own, and as many rows; 0: all rows have the same
    double flops = 0;     // of an op that is not a matter of bytes alone
    double stream_element = 0;  // bytes, of a stream that is not of dtype's elements
    // "" or what is wrong with the outputs, beside one another
    std::function<std::string(const std::vector<std::vector<std::byte>>&)> agree{};

    bool lies_apart(Extent e) const { return e == (samples > 0 ? Extent::kColumns : Extent::kMatrix); }
    bool ordinary() const { return inputs == kInputsNames[(int)Inputs::kNormal]; }

    double stream_bytes() const {
        return (double)N * C * (stream_element > 0 ? stream_element : format_of(dtype).bytes);
    }
    double useful_bytes() const { return (reads + writes) * stream_bytes(); }
    std::string shape() const {
        if (T > 0) {
            return fmt::format("{} {}x{}x{}", format_of(dtype).name, (long long)N / T, C / kHeadColumns, T);
        }
        return fmt::format("{} {}x{}{}{}{}", format_of(dtype).name, N, C, *form.name == 0 ? "" : " ",
                           form.name, form.rms ? " rms" : "");
    }
};

// Without tensors. Beside out of 16 bits, which forward writes once and backward reads once, a stream of fp32 counts as two.
inline Problem empty_problem(const char* op, Dtype dtype, Shape shape, Inputs kind, const CallForm& form,
                             int reads, int writes) {
    const bool mixed = form.out.has_value(), backward = std::string_view(op) == "layernorm_backward";
    return {.op = op,
            .dtype = dtype,
            .N = shape.N,
            .C = shape.C,
            .inputs = kInputsNames[(int)kind],
            .reads = mixed ? 2 * reads - backward : reads,
            .writes = mixed ? 2 * writes - !backward + form.copy : writes,
            .form = form,
            .T = shape.T,
            .stream_element = mixed ? 2.0 : 0};
}

// what --check tries, and what is raced
struct CheckItem {
    Dtype dtype;
    Shape shape;
    Inputs inputs = Inputs::kNormal;
    double atol = std::numeric_limits<double>::infinity();  // asked for on top of the derived bounds
    int reruns = 0;                                         // launches that must give the same bits
    CallForm form{};                                        // other than plain: the shipped function alone
    bool shipped_only = false;                              // so too
    bool batches = false;  // a few of the rows by themselves must give the bits they give here
};
struct RaceItem {
    Dtype dtype;
    Shape shape;
    CallForm form{};  // other than plain: instead of the command line's
};

// ---- the verdict --------------------------------------------------------------------------------

// how one output compares with the truth
struct Verdict {
    double worst = 0;  // the largest error / bound; infinite for a NaN or an element never written
    int64_t at = -1;   // where
    double found = 0, bound = 0;
    bool unwritten = false;  // there
    int64_t over = 0;        // elements over their bound
    int64_t elements = 0;
    bool ok() const { return over == 0; }

    void merge(const Verdict& v) {
        const int64_t all_over = over + v.over, all_elements = elements + v.elements;
        if (v.at >= 0 && (at < 0 || v.worst > worst || (v.worst == worst && v.at < at))) { *this = v; }
        over = all_over;
        elements = all_elements;
    }
};

// error / bound. Where the truth is not finite the result must not be either: which kind is left open.
inline double error_ratio(double found, double truth, double bound) {
    constexpr double kWrong = std::numeric_limits<double>::infinity();
    if (!std::isfinite(truth)) { return std::isfinite(found) ? kWrong : 0; }
    double error = std::fabs(found - truth);
    if (error == 0) { return 0; }
    double ratio = error / bound;
    return std::isnan(ratio) ? kWrong : ratio;
}

// one element; all bits set is the poison that outputs are filled with before a launch
inline Verdict judge(const Output& out, const Sums& sums, const std::byte* raw, int64_t i) {
    const Format& f = format_of(out.dtype);
    uint64_t bits = load_bits(raw, i, f);
    Verdict v{.at = i, .elements = 1};
    v.unwritten = bits == (f.bytes == 8 ? ~0ull : (1ull << 8 * f.bytes) - 1);
    v.found = decode(bits, f);
    v.bound = out.bound(sums, i / out.cols, i % out.cols);
    v.worst = v.unwritten ? std::numeric_limits<double>::infinity()
                          : error_ratio(v.found, (*out.truth)[i], v.bound);
    v.over = !(v.worst <= 1);
    return v;
}

// raw: out.rows x out.cols elements of out.dtype, as they lay in device memory
inline Verdict judge_all(const Output& out, const Sums& sums, const std::vector<std::byte>& raw) {
    Verdict all;
#pragma omp parallel
    {
        Verdict mine;
#pragma omp for
        for (int64_t i = 0; i < out.rows * out.cols; i++) { mine.merge(judge(out, sums, raw.data(), i)); }
#pragma omp critical
        all.merge(mine);
    }
    return all;
}

// "out[5][12]: found 1.25, expected 1.31 within 0.004 (error 15 bounds); 12 of 1024 elements are wrong"
inline std::string describe(const Output& out, const Verdict& v) {
    long long row = v.at / out.cols, col = v.at % out.cols;
    std::string where = fmt::format("{}[{}]", out.name, row);
    if (out.cols > 1) { where += fmt::format("[{}]", col); }
    std::string what = v.unwritten ? std::string("not written") : fmt::format("found {:.9g}", v.found);
    return fmt::format(
        "{}: {}, expected {:.9g} within {:.3g} (error = {:.3g} bounds); {} of {} elements are wrong", where,
        what, (*out.truth)[v.at], v.bound, v.worst, v.over, v.elements);
}

// a matrix as a kernel is told of it; data is null where the problem has none
template <typename T>
struct Rows {
    T* data;
    int64_t stride;  // elements
};

// ---- inputs: random numbers, and those that break careless kernels

constexpr uint64_t kSeed = 1607'06450;  // arXiv's number of the LayerNorm paper
// independent streams of random numbers
enum Draw : uint32_t { kDrawInp, kDrawWeight, kDrawBias, kDrawDout, kDrawInp2, kDrawBefore };

// The first numbers are kept: to draw them for every problem takes a fifth of a test's time.
inline double normal_at(Draw draw, int64_t i) {
    constexpr int64_t kKept = 1 << 21;
    static std::atomic<double> kept[kDrawBefore + 1][kKept];  // 0: not drawn yet
    if (i >= kKept) { return random_normal(kSeed, RandomUse::kFixture, draw, 0, i); }
    double x = kept[draw][i].load(std::memory_order_relaxed);
    if (x == 0) {
        x = random_normal(kSeed, RandomUse::kFixture, draw, 0, i);
        kept[draw][i].store(x, std::memory_order_relaxed);
    }
    return x;
}
inline double uniform_at(Draw draw, int64_t i) {
    return to_uniform(random_bits(kSeed, RandomUse::kFixture, draw, 0, i)[0]);
}

// a few units of the smallest subnormal number
inline double denormal(const Format& f, double n) {
    return n * 64 * std::ldexp(1.0, f.min_exponent() - f.mantissa_bits());
}

// of the numbers about their mean
inline double deviation(Inputs kind, const Format& f) {
    if (kind == Inputs::kOffset) { return f.precision >= 24 ? 1e-2 : 1; }
    return kind == Inputs::kConstant ? 1 : kind == Inputs::kOutlier ? 0.1 : 0.5;
}

inline double inp_at(Inputs kind, const Format& f, int64_t row, int col, int C) {
    double n = normal_at(kDrawInp, row * C + col);
    bool marked = col == (int)(row * 7 % C);  // one element of each row
    constexpr double kNonFinite[] = {INFINITY, -INFINITY, NAN};
    switch (kind) {
        case Inputs::kOffset:
            return (f.precision >= 24 ? 1e4 : 100) + deviation(kind, f) * n;
        case Inputs::kConstant:
            return normal_at(kDrawInp, row) * std::pow(10.0, (double)(row % 7) - 3);
        case Inputs::kOutlier:
            return marked ? 1e4 : deviation(kind, f) * n;
        case Inputs::kDenormal:
            return denormal(f, n);
        case Inputs::kInteger:
            return n > 0 ? 1 : -1;
        default:
            bool finite = kind == Inputs::kNormal || !marked || row % 4 == 0;
            return finite ? -2.3 + deviation(kind, f) * n : kNonFinite[row % 4 - 1];
    }
}

// what the residual stream gets added: of the size of inp's deviations, so that the sum is of inp's kind
inline double inp2_at(Inputs kind, const Format& f, int64_t row, int col, int C) {
    double n = normal_at(kDrawInp2, kind == Inputs::kConstant ? row : row * C + col);
    if (kind == Inputs::kDenormal) { return denormal(f, n); }
    return kind == Inputs::kInteger ? (n > 0 ? 1 : -1) : deviation(kind, f) * n;
}

// For kInteger: -1, 0, 1; so few ones that a column's sum, at most 6 x 40 whatever N, fits bf16's 8 bits.
inline double dout_at(Inputs kind, int64_t row, int col, int64_t N, int C) {
    int64_t i = row * C + col;
    if (kind != Inputs::kInteger) { return 0.1 * normal_at(kDrawDout, i); }
    auto bits = random_bits(kSeed, RandomUse::kFixture, kDrawDout, 0, i);
    double ones = std::min(2.0 / 3, 1600.0 / (double)N);
    return to_uniform(bits[0]) >= ones ? 0 : bits[1] & 1 ? 1 : -1;
}

// what a += form finds: of the size of a gradient; for kInteger -8 .. 7, which leaves the sums above exact
inline double before_at(Inputs kind, int64_t i) {
    return kind == Inputs::kInteger ? std::floor(16 * uniform_at(kDrawBefore, i)) - 8
                                    : 0.3 * normal_at(kDrawBefore, i);
}

// rows x cols values, rounded to dtype
inline Values make_values(Dtype dtype, int64_t rows, int cols,
                          const std::function<double(int64_t row, int col)>& value_at) {
    std::vector<double> values(rows * cols);
#pragma omp parallel for collapse(2)
    for (int64_t row = 0; row < rows; row++) {
        for (int col = 0; col < cols; col++) { values[row * cols + col] = value_at(row, col); }
    }
    round_all(values, format_of(dtype));
    return std::make_shared<const std::vector<double>>(std::move(values));
}

inline Values make_inp(Inputs kind, Dtype dtype, int64_t N, int C) {
    return make_values(dtype, N, C,
                       [&](int64_t row, int col) { return inp_at(kind, format_of(dtype), row, col, C); });
}
inline Values make_vector(Dtype dtype, int C, Draw draw) {
    return make_values(dtype, 1, C, [&](int64_t, int col) { return uniform_at(draw, col); });
}
inline Values make_before(Inputs kind, Dtype dtype, int64_t rows, int cols) {
    return make_values(dtype, rows, cols,
                       [&](int64_t row, int col) { return before_at(kind, row * cols + col); });
}

inline Values share(std::vector<double>&& values) {
    return std::make_shared<const std::vector<double>>(std::move(values));
}

// the accumulators' type: mean and rstd are kept in it
inline Dtype statistics_of(Dtype dtype) { return dtype == Dtype::kFp64 ? Dtype::kFp64 : Dtype::kFp32; }

}  // namespace llmc

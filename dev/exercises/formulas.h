// What wrong formulas make of a problem's inputs: by them a wrong result gets its name. Each is computed in double and
// differs from the right one in one place. Which lane or warp has a column: as in the rung.
#pragma once
#include <cmath>
#include <functional>
#include <map>
#include <string_view>
#include <vector>

#include "dev/cuda/attention_problems.h"
#include "dev/cuda/layernorm_problems.h"

namespace llmc::exercise {

using Tensors = std::vector<std::vector<double>>;  // of a problem's outputs, in its order

inline const std::vector<double>& input(const Problem& p, std::string_view name) {
    auto at = std::find_if(p.in.begin(), p.in.end(), [&](const Input& in) { return name == in.name; });
    require(at != p.in.end(), "formulas.h: no such input");
    return *at->values;
}

// who adds up which of a row's columns
struct Layout {
    int vector = 1, lanes = 32;  // neighbouring columns of a lane, lanes of a row
    int part = 0, warps = 1;     // columns of a warp, where a row has several

    int lane(int c) const { return c / vector % lanes; }
    int columns_of(int warp, int C) const { return std::max(std::min(part, C - warp * part), 0); }
};
inline Layout layout_of(std::string_view exercise, const Problem& p, int block) {
    char rung = exercise.back();
    if (!exercise.starts_with("layernorm_forward") || rung < '3') { return {}; }
    int V = 16 / format_of(p.dtype).bytes, vectors = (p.C + block * V - 1) / (block * V), lanes = 1;
    if (rung == '4') { return {V, 32, vectors * 32 * V, block / 32}; }
    while (rung == '5' && lanes * V < p.C) { lanes *= 2; }
    return {V, rung == '5' ? lanes : 32};
}

// ---- forward

// clang-format off
enum class F {
    kBessel, kMeanBessel, kNoEps, kEpsOutside, kAboutFirst, kAboutZero, kSquaresSum, kSum, kVariance,
    kDeviation, kStoredDeviation, kNoShift, kNoBias, kNoWeight, kSwapped, kNotCentred, kNextRow,
    kPreviousRow, kFirstRow, kOwnLane, kOwnSum, kOwnSquares, kLane0, kHalf, kTail, kNoRstd, kOwnWarp,
    kNoBetween, kUnweighted, kMeanOfMeans, kFullParts, kFirstInput, kUnrounded
};
// clang-format on
constexpr std::pair<F, const char*> kForward[] = {
    {F::kBessel, "the variance is divided by C - 1; it is the mean of the squares"},
    {F::kMeanBessel, "the mean is divided by C - 1 instead of C"},
    {F::kNoEps, "eps is not added to the variance"},
    {F::kEpsOutside, "eps is added to the standard deviation; it belongs to the variance"},
    {F::kAboutFirst, "the squares are of x - x[0]: the mean is not taken off"},
    {F::kAboutZero, "the squares are of x itself: the mean is not taken off"},
    {F::kSquaresSum, "the sum of the squares is not divided by C"},
    {F::kSum, "the sum is not divided by C"},
    {F::kVariance, "rstd is the variance, where one over its root is wanted"},
    {F::kDeviation, "rstd is the standard deviation, where one over it is wanted"},
    {F::kStoredDeviation, "the standard deviation is stored as rstd; out is right"},
    {F::kNoShift, "the mean is stored less x[0]: shift is not added back"},
    {F::kNoBias, "the bias is not added"},
    {F::kNoWeight, "the weight is left out"},
    {F::kSwapped, "weight and bias are exchanged"},
    {F::kNotCentred, "out is made of x, the mean is not taken off"},
    {F::kNextRow, "mean and rstd are those of the next row"},
    {F::kPreviousRow, "mean and rstd are those of the row before"},
    {F::kFirstRow, "mean and rstd are those of row 0 in every row"},
    {F::kOwnLane, "each lane uses its own sums alone: warp_sum is missing for both"},
    {F::kOwnSum, "each lane uses its own sum alone: warp_sum is missing for the sum"},
    {F::kOwnSquares, "each lane uses its own squares alone: warp_sum is missing for the squares"},
    {F::kLane0, "all use lane 0's sums alone"},
    {F::kHalf, "the sums are of half of the lanes: a step of the exchange is missing"},
    {F::kTail, "the sums leave out the columns beyond the last whole round of the lanes"},
    {F::kNoRstd, "out is not multiplied by rstd"},
    {F::kOwnWarp, "each warp uses its own part's mean and squares: the parts are not merged"},
    {F::kNoBetween, "the parts' squares are added, but not n (part's mean - row's mean)^2"},
    {F::kUnweighted, "the distance of a part's mean is squared, but not multiplied by the part's columns"},
    {F::kMeanOfMeans, "the mean is that of the parts' means, though parts have unlike numbers of columns"},
    {F::kFullParts, "every part counts as whole, though the last ones have fewer columns"},
    {F::kFirstInput, "LayerNorm is of the first input, not of the sum of both"},
    {F::kUnrounded, "LayerNorm is of the sum before it is rounded to T; residual holds the rounded one"},
};

struct Statistics {
    std::vector<double> mean, variance;  // as each column sees them
};

inline Statistics statistics_by(F w, const double* x, int C, const Layout& at) {
    Statistics s{std::vector<double>(C), std::vector<double>(C)};
    bool own_warp = w == F::kOwnWarp && at.part > 0, half = w == F::kHalf;
    bool own_sum = w == F::kOwnLane || w == F::kOwnSum, own_squares = w == F::kOwnLane || w == F::kOwnSquares;
    auto counted = [&](int c) {
        int round = at.lanes * at.vector;
        return (w != F::kTail || c < C / round * round) && (w != F::kLane0 || at.lane(c) == 0);
    };
    // what lanes share: a sum of all columns, or of a lane's, a half's, a warp's
    auto group = [&](bool own, int c) {
        int lanes = own ? at.lane(c) : half ? at.lane(c) / std::max(at.lanes / 2, 1) : 0;
        return own_warp ? c / at.part * 64 + lanes : lanes;
    };
    auto columns = [&](int c) { return own_warp ? at.columns_of(c / at.part, C) : C; };
    std::map<int, double> sums, squares;
    for (int c = 0; c < C; c++) { sums[group(own_sum, c)] += counted(c) ? x[c] - x[0] : 0; }
    for (int c = 0; c < C; c++) {
        s.mean[c] = x[0] + sums[group(own_sum, c)] / (w == F::kSum ? 1 : columns(c) - (w == F::kMeanBessel));
        double d = x[c] - (w == F::kAboutFirst ? x[0] : w == F::kAboutZero ? 0 : s.mean[c]);
        squares[group(own_squares, c)] += counted(c) ? d * d : 0;
    }
    for (int c = 0; c < C; c++) {
        s.variance[c] =
            squares[group(own_squares, c)] / (w == F::kSquaresSum ? 1 : columns(c) - (w == F::kBessel));
    }
    return s;
}

// of warps that merge their parts, where that goes wrong
inline Statistics merged_by(F w, const double* x, int C, const Layout& at) {
    double mean = 0, means = 0, squares = 0;
    for (int c = 0; c < C; c++) { mean += x[c] / C; }
    auto each = [&](auto act) {  // part: its columns, its sum
        for (int part = 0; part < at.warps; part++) {
            double sum = 0;
            int columns = at.columns_of(part, C), first = part * at.part;
            for (int c = first; c < first + columns; c++) { sum += x[c] - x[0]; }
            act(first, columns, sum);
        }
    };
    each([&](int, int n, double sum) { means += n > 0 ? sum / n / ((C + at.part - 1) / at.part) : 0; });
    if (w == F::kMeanOfMeans) { mean = x[0] + means; }
    each([&](int first, int n, double sum) {
        for (int c = first; c < first + n; c++) { squares += std::pow(x[c] - x[0] - sum / n, 2); }
        int said = w == F::kFullParts ? at.part : n;
        double distance = std::pow(x[0] + sum / std::max(said, 1) - mean, 2);
        squares += distance * (w == F::kNoBetween ? 0 : w == F::kUnweighted ? 1 : said);
    });
    // the merging warp's lanes that no part is for have a sum of 0
    if (w == F::kUnweighted) { squares += (32 - at.warps) * std::pow(x[0] - mean, 2); }
    return {std::vector<double>(C, mean), std::vector<double>(C, squares / C)};
}

inline Tensors forward_by(F w, const Problem& p, const Layout& at) {
    const int64_t N = p.N, C = p.C;
    std::vector<double> x = input(p, "inp"), out(N * C), mean(N), rstd(N);
    bool residual = p.out.size() > 3;
    if (residual && w == F::kUnrounded) {
        for (int64_t i = 0; i < N * C; i++) { x[i] += input(p, "inp2")[i]; }
    } else if (residual && w != F::kFirstInput) {
        x = *p.out[3].truth;
    }
    const std::vector<double>&weight = input(p, "weight"), &bias = input(p, "bias");
    bool merged = at.part > 0 && w >= F::kNoBetween && w <= F::kFullParts;
    for (int64_t row = 0; row < N; row++) {
        int64_t from = w == F::kNextRow ? (row + 1) % N : w == F::kPreviousRow ? (row + N - 1) % N : row;
        const double* of = &x[w == F::kFirstRow ? 0 : from * C];
        Statistics s = merged ? merged_by(w, of, p.C, at) : statistics_by(w, of, p.C, at);
        for (int64_t c = C - 1; c >= 0; c--) {  // column 0 at last: lane 0 stores
            double deviation = std::sqrt(s.variance[c] + (w == F::kNoEps || w == F::kEpsOutside ? 0 : p.eps));
            deviation += w == F::kEpsOutside ? p.eps : 0;
            double r = w == F::kVariance    ? s.variance[c] + p.eps
                       : w == F::kDeviation ? deviation
                                            : 1 / deviation;
            double xhat =
                (x[row * C + c] - (w == F::kNotCentred ? 0 : s.mean[c])) * (w == F::kNoRstd ? 1 : r);
            double a = w == F::kNoWeight ? 1 : weight[c], b = w == F::kNoBias ? 0 : bias[c];
            out[row * C + c] = w == F::kSwapped ? xhat * b + a : xhat * a + b;
            mean[row] = s.mean[c] - (w == F::kNoShift ? of[0] : 0);
            rstd[row] = w == F::kStoredDeviation ? deviation : r;
        }
    }
    Tensors all{out, mean, rstd};
    if (residual) { all.push_back(*p.out[3].truth); }
    return all;
}

// ---- backward

// clang-format off
enum class B {
    kNoC1, kNoC2, kNotDivided, kC1NotDivided, kC2NotDivided, kNoRstd, kDyInSums, kDyAlone, kNotCentred,
    kXhatNoRstd, kC2NoXhat, kPlusC2, kExchanged, kOwnLane, kLane0, kNextRow, kTail, kDwX,
    kDwWeighted, kDwNoXhat, kDwMean, kDwSwapped, kDbXhat, kLastRow, kFirstGroup, kWarp0, kLastRound
};
// clang-format on
constexpr std::pair<B, const char*> kBackward[] = {
    {B::kNoC1, "c1, the mean of w dy, is not taken off"},
    {B::kNoC2, "xhat c2 is not taken off"},
    {B::kNotDivided, "c1 and c2 are sums: they are not divided by C"},
    {B::kC1NotDivided, "c1 is a sum: it is not divided by C"},
    {B::kC2NotDivided, "c2 is a sum: it is not divided by C"},
    {B::kNoRstd, "dinp is not multiplied by rstd at last"},
    {B::kDyInSums, "c1 and c2 are of dy, without the weight"},
    {B::kDyAlone, "dinp is made of dy without the weight"},
    {B::kNotCentred, "xhat is made of x, the mean is not taken off"},
    {B::kXhatNoRstd, "xhat is not multiplied by rstd"},
    {B::kC2NoXhat, "c2 is the mean of w dy: xhat is left out of its sum"},
    {B::kPlusC2, "xhat c2 is added where it is to be taken off"},
    {B::kExchanged, "c1 and c2 are exchanged"},
    {B::kOwnLane, "each lane uses its own c1 and c2: warp_sum is missing"},
    {B::kLane0, "c1 and c2 are lane 0's alone"},
    {B::kNextRow, "mean and rstd are those of the next row"},
    {B::kTail, "c1 and c2 leave out the columns beyond the last whole round of the lanes"},
    {B::kDwX, "dweight sums dy x, where xhat is wanted"},
    {B::kDwWeighted, "dweight sums w dy xhat, where dy xhat is wanted"},
    {B::kDwNoXhat, "dweight sums dy: xhat is missing"},
    {B::kDwMean, "dweight and dbias are divided by the number of rows"},
    {B::kDwSwapped, "dweight and dbias are exchanged"},
    {B::kDbXhat, "dbias sums dy xhat, where dy is wanted"},
    {B::kLastRow, "dweight and dbias hold the last row alone: = where += is wanted"},
    {B::kFirstGroup, "dweight and dbias hold the first group of rows alone"},
    {B::kWarp0, "dweight and dbias hold the rows of warp 0 alone: the warps' sums are not added"},
    {B::kLastRound,
     "dweight and dbias hold the last row of each warp, or the last rows of each block, alone"},
};

inline Tensors backward_by(B w, const Problem& p, bool blocks_stay, int block) {
    const int64_t N = p.N, C = p.C;
    const std::vector<double>&x = input(p, "inp"), &dout = input(p, "dout"), &weight = input(p, "weight"),
          &mean = input(p, "mean"), &rstd = input(p, "rstd");
    std::vector<double> dinp(N * C), dw(C), db(C);
    int64_t group = (N + 63) / 64, warps = block / 32, stride = 6 * warps;  // v2's rows, v3's of all blocks
    auto counted = [&](int64_t row) {
        int64_t in_group = row % group, rows = std::min(group, N - row / group * group);
        bool last = blocks_stay ? row / warps * warps + stride >= N : in_group + warps >= rows;
        bool warp0 = (blocks_stay ? row : in_group) % warps == 0;
        return (w != B::kLastRow || row == N - 1) && (w != B::kFirstGroup || row < group) &&
               (w != B::kWarp0 || warp0) && (w != B::kLastRound || last);
    };
    for (int64_t row = 0; row < N; row++) {
        int64_t of = w == B::kNextRow ? (row + 1) % N : row, i = row * C;
        double c1[32] = {}, c2[32] = {}, m = w == B::kNotCentred ? 0 : mean[of],
               s = w == B::kXhatNoRstd ? 1 : rstd[of];
        bool own = w == B::kOwnLane || w == B::kLane0;
        for (int64_t c = 0; c < (w == B::kTail ? C / 32 * 32 : C); c++) {
            double g = (w == B::kDyInSums || w == B::kDyAlone ? 1 : weight[c]) * dout[i + c];
            c1[own ? c % 32 : 0] += g;
            c2[own ? c % 32 : 0] += g * (w == B::kC2NoXhat ? 1 : (x[i + c] - m) * s);
        }
        for (int64_t c = 0; c < C; c++) {
            double xhat = (x[i + c] - m) * s, dy = dout[i + c], g = (w == B::kDyAlone ? 1 : weight[c]) * dy;
            double m1 = c1[w == B::kOwnLane ? c % 32 : 0], m2 = c2[w == B::kOwnLane ? c % 32 : 0];
            m1 *= w == B::kNoC1 ? 0 : w == B::kNotDivided || w == B::kC1NotDivided ? 1 : 1.0 / C;
            m2 *= w == B::kNoC2 ? 0 : w == B::kNotDivided || w == B::kC2NotDivided ? 1 : 1.0 / C;
            if (w == B::kExchanged) { std::swap(m1, m2); }
            dinp[i + c] = (g - m1 - (w == B::kPlusC2 ? -xhat : xhat) * m2) * (w == B::kNoRstd ? 1 : rstd[of]);
            if (!counted(row)) { continue; }
            double factor = w == B::kDwX ? x[i + c] : w == B::kDwNoXhat ? 1 : xhat;
            dw[c] += dy * factor * (w == B::kDwWeighted ? weight[c] : 1) / (w == B::kDwMean ? N : 1);
            db[c] += dy * (w == B::kDbXhat ? xhat : 1) / (w == B::kDwMean ? N : 1);
        }
    }
    if (w == B::kDwSwapped) { std::swap(dw, db); }
    return {dinp, dw, db};
}

// ---- attention

// clang-format off
enum class A {
    kNoScale, kNotCausal, kStrict, kNoMaxInLse, kLseNoLog, kMaxAsLse, kNotNormalised, kKeysSummed, kHead0,
    kOverKeys, kOwnLane, kOwnMax, kHalf, kLastKey
};
// clang-format on
constexpr std::pair<A, const char*> kAttention[] = {
    {A::kNoScale, "the scores are not multiplied by scale"},
    {A::kNotCausal, "a query sees all keys, those after it, too"},
    {A::kStrict, "a query does not see its own key"},
    {A::kNoMaxInLse, "lse is the logarithm of the sum: the largest score is not added"},
    {A::kLseNoLog, "lse is largest + sum: the logarithm is missing"},
    {A::kMaxAsLse, "lse is the largest score"},
    {A::kNotNormalised, "the probabilities are not divided by their sum"},
    {A::kKeysSummed, "out sums the keys, where the values are wanted"},
    {A::kHead0, "every head sums the values of head 0"},
    {A::kOverKeys, "the probabilities are divided by the number of keys, not by their sum"},
    {A::kOwnLane, "each lane divides by its own sum: warp_sum is missing"},
    {A::kOwnMax, "each lane takes off its own largest score: the exchange of the largest is missing"},
    {A::kHalf, "the sum is of half of the lanes: a step of the exchange is missing"},
    {A::kLastKey, "the query's own key is left out of the sum of values"},
};

inline Tensors attention_by(A w, const Problem& p) {
    const int T = p.T, NH = p.C / kHeadColumns, heads = (int)(p.N / T) * NH;
    std::vector<double> out(p.N * p.C), lse((size_t)heads * T);
    for (int query = 0; query < heads * T; query++) {
        int head = query / T, t = query % T, n = w == A::kNotCausal ? T : w == A::kStrict ? t : t + 1;
        auto row = [&](int token, int which, int h) {
            return &input(p, "qkv")[(((int64_t)head / NH * T + token) * 3 + which) * p.C + h * kHeadColumns];
        };
        std::vector<double> e(n), largest(32, -INFINITY), sums(32);  // of a lane
        auto lane = [&](int j, A own) {
            return w == own ? j % 32 : w == A::kHalf && own == A::kOwnLane ? j % 32 / 16 : 0;
        };
        for (int j = 0; j < n; j++) {
            const double *q = row(t, 0, head % NH), *k = row(j, 1, head % NH);
            for (int c = 0; c < kHeadColumns; c++) { e[j] += q[c] * k[c] * (w == A::kNoScale ? 1 : 0.125); }
            largest[lane(j, A::kOwnMax)] = std::max(largest[lane(j, A::kOwnMax)], e[j]);
        }
        for (int j = 0; j < n; j++) {
            sums[lane(j, A::kOwnLane)] += e[j] = std::exp(e[j] - largest[lane(j, A::kOwnMax)]);
        }
        for (int j = 0; j < n - (w == A::kLastKey); j++) {
            double over = w == A::kNotNormalised ? 1 : w == A::kOverKeys ? n : sums[lane(j, A::kOwnLane)];
            const double* v = row(j, w == A::kKeysSummed ? 1 : 2, w == A::kHead0 ? 0 : head % NH);
            double* y = &out[((int64_t)head / NH * T + t) * p.C + head % NH * kHeadColumns];
            for (int c = 0; c < kHeadColumns; c++) { y[c] += e[j] / over * v[c]; }
        }
        double log = w == A::kLseNoLog ? sums[0] : w == A::kMaxAsLse ? 0 : std::log(sums[0]);
        lse[query] = log + (w == A::kNoMaxInLse ? 0 : largest[0]);
    }
    return {out, lse};
}

// act(its name, what it makes of the problem) for each wrong formula of an exercise
template <typename Act>
void each_wrong_formula(std::string_view exercise, const Problem& p, int block, const Act& act) {
    auto each = [&](const auto& list, auto values) {
        for (const auto& [w, name] : list) { act(name, values(w)); }
    };
    if (exercise.starts_with("attention")) {
        each(kAttention, [&](A w) { return attention_by(w, p); });
    } else if (exercise.starts_with("layernorm_backward")) {
        each(kBackward, [&](B w) { return backward_by(w, p, exercise.back() == '3', block); });
    } else {
        Layout at = layout_of(exercise, p, block);
        each(kForward, [&](F w) { return forward_by(w, p, at); });
    }
}

}  // namespace llmc::exercise

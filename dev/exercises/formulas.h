// What wrong formulas make of a problem's inputs: by them a wrong result gets its name. Each is computed in double, beside
// the right one, and differs from it in one place. Which lane has a column: of the rung that is written.
#pragma once
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "dev/cuda/attention_problems.h"
#include "dev/cuda/layernorm_problems.h"

namespace llmc::exercise {

using Tensors = std::vector<std::vector<double>>;  // of a problem's outputs, in its order; empty: not compared

struct Formula {
    std::string name;
    std::function<Tensors(const Problem& p, int block)> values;
};

inline Problem make_problem(std::string_view exercise, Dtype dtype, Shape shape, Inputs inputs) {
    if (exercise.starts_with("attention")) { return attention_forward_problem(dtype, shape, inputs); }
    if (exercise.starts_with("residual")) { return residual_layernorm_forward_problem(dtype, shape, inputs); }
    return exercise.starts_with("layernorm_forward") ? layernorm_forward_problem(dtype, shape, inputs)
                                                     : layernorm_backward_problem(dtype, shape, inputs);
}

inline const std::vector<double>& input(const Problem& p, std::string_view name) {
    for (const Input& in : p.in) {
        if (name == in.name) { return *in.values; }
    }
    throw Error(kExitUsage, "no input {}", name);
}

// Who adds up which of a row's columns.
struct Layout {
    int vector = 1;  // neighbouring columns of a lane
    int lanes = 32;  // of a row
    int part = 0;    // columns of a warp, where a row has several; 0: one has all

    int lane(int c) const { return c / vector % lanes; }
    int warp(int c) const { return part > 0 ? c / part : 0; }
};
inline Layout layout_of(std::string_view exercise, const Problem& p, int block) {
    char rung = exercise.back();
    if (!exercise.starts_with("layernorm_forward") || rung < '3') { return {}; }
    int V = 16 / format_of(p.dtype).bytes, vectors = (p.C + block * V - 1) / (block * V);
    if (rung == '4') { return {V, 32, vectors * 32 * V}; }
    int lanes = 1;
    while (rung == '5' && lanes * V < p.C) { lanes *= 2; }
    return {V, rung == '5' ? lanes : 32, 0};
}

// ---- forward

enum class Forward {
    kRight, kBessel, kMeanBessel, kNoEps, kEpsOutside, kEpsSquared, kAboutFirst, kAboutZero, kSquaresNotDivided, kSumNotDivided,
    kVariance, kDeviation, kStoredVariance, kStoredDeviation, kNoShiftInMean, kNoBias, kNoWeight, kSwapped, kNotCentred, kShiftInOut,
    kNextRow, kPreviousRow, kFirstRow, kOwnLane, kOwnSum, kOwnSquares, kLane0, kHalf, kHalfSum, kHalfSquares, kTail, kFirstColumn,
    kAbsolute, kNoRstd, kOwnWarp, kNoBetween, kBetweenUnweighted, kMeanOfMeans, kFullParts, kFirstInput, kUnrounded, kBiasInside,
    kFirstWeight,
};
constexpr std::pair<Forward, const char*> kForward[] = {
    {Forward::kBessel, "the variance is divided by C - 1; it is the mean of the squares, divided by C"},
    {Forward::kMeanBessel, "the mean is divided by C - 1 instead of C"},
    {Forward::kNoEps, "eps is not added to the variance"},
    {Forward::kEpsOutside, "eps is added to the standard deviation; it belongs to the variance, below the root"},
    {Forward::kEpsSquared, "eps is added before the division by C; it belongs to the variance"},
    {Forward::kAboutFirst, "the squares are of x - x[0]: the mean is not taken off"},
    {Forward::kAboutZero, "the squares are of x itself: the mean is not taken off"},
    {Forward::kSquaresNotDivided, "the sum of the squares is not divided by C"},
    {Forward::kSumNotDivided, "the sum is not divided by C"},
    {Forward::kVariance, "rstd is the variance, where one over its root is wanted"},
    {Forward::kDeviation, "rstd is the standard deviation, where one over it is wanted"},
    {Forward::kStoredVariance, "the variance is stored as rstd; out is right"},
    {Forward::kStoredDeviation, "the standard deviation is stored as rstd; out is right"},
    {Forward::kNoShiftInMean, "the mean is stored less x[0]: shift is not added back"},
    {Forward::kNoBias, "the bias is not added"},
    {Forward::kNoWeight, "the weight is left out"},
    {Forward::kSwapped, "weight and bias are exchanged"},
    {Forward::kNotCentred, "out is made of x, the mean is not taken off"},
    {Forward::kShiftInOut, "out is made of x less x[0] alone, the mean is not taken off"},
    {Forward::kNextRow, "mean and rstd are those of the next row"},
    {Forward::kPreviousRow, "mean and rstd are those of the row before"},
    {Forward::kFirstRow, "mean and rstd are those of row 0 in every row"},
    {Forward::kOwnLane, "each lane uses its own sums alone: warp_sum is missing for the sum and for the squares"},
    {Forward::kOwnSum, "each lane uses its own sum alone: warp_sum is missing for the sum"},
    {Forward::kOwnSquares, "each lane uses its own squares alone: warp_sum is missing for the squares"},
    {Forward::kLane0, "all use lane 0's sum alone"},
    {Forward::kHalf, "the sums are of half of the lanes: a step of the exchange is missing"},
    {Forward::kHalfSum, "the sum is of half of the lanes: a step of the exchange is missing"},
    {Forward::kHalfSquares, "the squares are of half of the lanes: a step of the exchange is missing"},
    {Forward::kTail, "the sums leave out the last columns, those beyond the last whole round of the lanes"},
    {Forward::kFirstColumn, "the sums leave out column 0"},
    {Forward::kAbsolute, "the sum of the distances from the mean stands where that of their squares should"},
    {Forward::kNoRstd, "out is not multiplied by rstd"},
    {Forward::kOwnWarp, "each warp uses its own part's mean and squares: the parts are not merged"},
    {Forward::kNoBetween, "the parts' squares are added, but not n (part's mean - row's mean)^2"},
    {Forward::kBetweenUnweighted, "the distance of a part's mean is squared, but not multiplied by the part's columns"},
    {Forward::kMeanOfMeans, "the mean is that of the parts' means, though parts have unlike numbers of columns"},
    {Forward::kFullParts, "every part counts as whole, though the last ones have fewer columns"},
    {Forward::kFirstInput, "LayerNorm is of the first input, not of the sum of both"},
    {Forward::kUnrounded, "LayerNorm is of the sum before it is rounded to T; residual holds the rounded one"},
    {Forward::kBiasInside, "the bias is added before the weight is multiplied"},
    {Forward::kFirstWeight, "weight[0] and bias[0] are taken in every column"},
};

struct RowStatistics {
    std::vector<double> mean, variance;  // as each column sees them
};

// x: the row. The mean is of m.
inline RowStatistics statistics_of(Forward w, const double* x, int C, const Layout& at) {
    using F = Forward;
    auto counted = [&](int c) {
        bool whole = c < C / (at.lanes * at.vector) * at.lanes * at.vector;
        return (w != F::kTail || whole) && (w != F::kFirstColumn || c > 0) && (w != F::kLane0 || at.lane(c) == 0);
    };
    bool own_sum = w == F::kOwnLane || w == F::kOwnSum, own_squares = w == F::kOwnLane || w == F::kOwnSquares;
    bool half_sum = w == F::kHalf || w == F::kHalfSum, half_squares = w == F::kHalf || w == F::kHalfSquares;
    RowStatistics s{std::vector<double>(C), std::vector<double>(C)};
    auto columns_of = [&](int c) { return w == F::kOwnWarp ? std::min(at.part, C - at.warp(c) * at.part) : C; };
    auto divisor = [&](int c, F less, F none) { return w == none ? 1 : columns_of(c) - (w == less); };
    std::map<int, double> sums, squares;  // by what lanes share: all columns, or a lane's, a half's, a warp's
    auto key = [&](bool own, bool half, int c) {
        return (w == F::kOwnWarp ? at.warp(c) : 0) * 64 + (own ? at.lane(c) : half ? at.lane(c) / std::max(at.lanes / 2, 1) : 0);
    };
    for (int c = 0; c < C; c++) { sums[key(own_sum, half_sum, c)] += counted(c) ? x[c] - x[0] : 0; }
    for (int c = 0; c < C; c++) { s.mean[c] = x[0] + sums[key(own_sum, half_sum, c)] / divisor(c, F::kMeanBessel, F::kSumNotDivided); }
    for (int c = 0; c < C; c++) {
        double d = x[c] - (w == F::kAboutFirst ? x[0] : w == F::kAboutZero ? 0 : s.mean[c]);
        squares[key(own_squares, half_squares, c)] += !counted(c) ? 0 : w == F::kAbsolute ? std::fabs(d) : d * d;
    }
    for (int c = 0; c < C; c++) {
        s.variance[c] = squares[key(own_squares, half_squares, c)] / divisor(c, F::kBessel, F::kSquaresNotDivided);
    }
    return s;
}

// of warps that merge their parts, where it goes wrong
inline RowStatistics merged_statistics(Forward w, const double* x, int C, const Layout& at) {
    int parts = (C + at.part - 1) / at.part;
    double mean = 0, within = 0, between = 0, means = 0;
    for (int c = 0; c < C; c++) { mean += x[c] / C; }
    std::vector<double> of_part(parts), centre(parts);
    auto real = [&](int part) { return std::min(at.part, C - part * at.part); };
    auto columns = [&](int part) { return w == Forward::kFullParts ? at.part : real(part); };
    for (int part = 0; part < parts; part++) {
        for (int c = part * at.part; c < part * at.part + real(part); c++) { 
            of_part[part] += (x[c] - x[0]) / columns(part);
            centre[part] += (x[c] - x[0]) / real(part);
        }
        means += of_part[part] / parts;
    }
    if (w == Forward::kMeanOfMeans) { mean = x[0] + means; }
    for (int part = 0; part < parts; part++) {
        for (int c = part * at.part; c < part * at.part + real(part); c++) { within += std::pow(x[c] - x[0] - centre[part], 2); }
        double n = w == Forward::kNoBetween ? 0 : w == Forward::kBetweenUnweighted ? 1 : columns(part);
        between += n * std::pow(x[0] + of_part[part] - mean, 2);
    }
    return {std::vector<double>(C, mean), std::vector<double>(C, (within + between) / C)};
}

inline Tensors forward_values(const Problem& p, Forward w, const Layout& at) {
    using F = Forward;
    const int64_t N = p.N, C = p.C;
    std::vector<double> x = input(p, "inp"), out(N * C), mean(N), rstd(N);
    bool residual = p.out.size() > 3;
    if (residual && w == F::kUnrounded) {
        for (int64_t i = 0; i < N * C; i++) { x[i] += input(p, "inp2")[i]; }
    } else if (residual && w != F::kFirstInput) {
        x = *p.out[3].truth;
    }
    const std::vector<double>&weight = input(p, "weight"), &bias = input(p, "bias");
    bool parts = w == F::kNoBetween || w == F::kBetweenUnweighted || w == F::kMeanOfMeans || w == F::kFullParts;
    for (int64_t row = 0; row < N; row++) {
        int64_t from = w == F::kNextRow ? (row + 1) % N : w == F::kPreviousRow ? (row + N - 1) % N : w == F::kFirstRow ? 0 : row;
        const double* of = &x[from * C];
        RowStatistics s = parts && at.part > 0 ? merged_statistics(w, of, (int)C, at) : statistics_of(w, of, (int)C, at);
        for (int64_t c = C - 1; c >= 0; c--) {  // column 0 at last: lane 0 stores
            double eps = w == F::kNoEps || w == F::kEpsOutside ? 0 : w == F::kEpsSquared ? p.eps / C : p.eps;
            double deviation = std::sqrt(s.variance[c] + eps) + (w == F::kEpsOutside ? p.eps : 0);
            double r = w == F::kVariance ? s.variance[c] + eps : w == F::kDeviation ? deviation : 1 / deviation;
            double xhat = w == F::kNotCentred ? x[row * C + c] : x[row * C + c] - (w == F::kShiftInOut ? x[row * C] : s.mean[c]);
            xhat *= w == F::kNoRstd ? 1 : r;
            int64_t taken = w == F::kFirstWeight ? 0 : c;
            double a = w == F::kNoWeight ? 1 : weight[taken], b = w == F::kNoBias ? 0 : bias[taken];
            if (w == F::kSwapped) { std::swap(a, b); }
            out[row * C + c] = w == F::kBiasInside ? (xhat + b) * a : xhat * a + b;
            mean[row] = s.mean[c] - (w == F::kNoShiftInMean ? of[0] : 0);
            rstd[row] = w == F::kStoredVariance ? s.variance[c] + eps : w == F::kStoredDeviation ? deviation : r;
        }
    }
    Tensors all{out, mean, rstd};
    if (residual) { all.push_back(*p.out[3].truth); }
    return all;
}

// ---- backward

enum class Backward {
    kRight, kNoC1, kNoC2, kC1NotDivided, kC2NotDivided, kNotDivided, kNoRstd, kDyInSums, kDyAlone, kNotCentred, kXhatNoRstd, kC1ForC2, kC2NoXhat,
    kPlusC2, kPlusC1, kExchanged, kOwnLane, kLane0, kNextRow, kTail, kDwX, kDwCentred, kDwWeighted, kDwNoXhat, kDwMean, kDwSwapped,
    kDbXhat, kDbWeighted, kLastRow, kRow0, kFirstGroup, kWarp0, kLastGroup, kLastBlock,
};
constexpr std::pair<Backward, const char*> kBackward[] = {
    {Backward::kNoC1, "c1, the mean of w dy, is not taken off"},
    {Backward::kNoC2, "xhat c2 is not taken off"},
    {Backward::kNotDivided, "c1 and c2 are sums: they are not divided by C"},
    {Backward::kC1NotDivided, "c1 is a sum: it is not divided by C"},
    {Backward::kC2NotDivided, "c2 is a sum: it is not divided by C"},
    {Backward::kNoRstd, "dinp is not multiplied by rstd at last"},
    {Backward::kDyInSums, "c1 and c2 are of dy, without the weight"},
    {Backward::kDyAlone, "dinp is made of dy without the weight"},
    {Backward::kNotCentred, "xhat is made of x, the mean is not taken off"},
    {Backward::kXhatNoRstd, "xhat is not multiplied by rstd"},
    {Backward::kC1ForC2, "c1 stands where c2 should"},
    {Backward::kC2NoXhat, "c2 is the mean of w dy: xhat is left out of its sum"},
    {Backward::kPlusC2, "xhat c2 is added where it is to be taken off"},
    {Backward::kPlusC1, "c1 is added where it is to be taken off"},
    {Backward::kExchanged, "c1 and c2 are exchanged"},
    {Backward::kOwnLane, "each lane uses its own c1 and c2: warp_sum is missing"},
    {Backward::kLane0, "c1 and c2 are lane 0's alone"},
    {Backward::kNextRow, "mean and rstd are those of the next row"},
    {Backward::kTail, "c1 and c2 leave out the last columns, those beyond the last whole round of the lanes"},
    {Backward::kDwX, "dweight sums dy x, where xhat is wanted"},
    {Backward::kDwCentred, "dweight sums dy (x - mean): rstd is missing"},
    {Backward::kDwWeighted, "dweight sums w dy xhat, where dy xhat is wanted"},
    {Backward::kDwNoXhat, "dweight sums dy: xhat is missing"},
    {Backward::kDwMean, "dweight and dbias are divided by the number of rows"},
    {Backward::kDwSwapped, "dweight and dbias are exchanged"},
    {Backward::kDbXhat, "dbias sums dy xhat, where dy is wanted"},
    {Backward::kDbWeighted, "dbias sums w dy, where dy is wanted"},
    {Backward::kLastRow, "dweight and dbias hold the last row alone: = where += is wanted"},
    {Backward::kRow0, "dweight and dbias leave out row 0"},
    {Backward::kFirstGroup, "dweight and dbias hold the first group of rows alone"},
    {Backward::kLastGroup, "dweight and dbias leave out the last group's rows"},
    {Backward::kWarp0, "dweight and dbias hold the rows of warp 0 alone: the warps' sums are not added"},
    {Backward::kLastBlock, "dweight and dbias hold the last row of each warp, or the last rows of each block, alone: = where += is wanted"},
};

inline Tensors backward_values(const Problem& p, Backward w, std::string_view exercise, int block) {
    using B = Backward;
    const int64_t N = p.N, C = p.C;
    const std::vector<double>&x = input(p, "inp"), &dout = input(p, "dout"), &weight = input(p, "weight"), &mean = input(p, "mean"),
          &rstd = input(p, "rstd");
    std::vector<double> dinp(N * C), dw(C), db(C);
    int64_t groups = 64, size = (N + groups - 1) / groups, warps = block / 32, stay = 6;  // v2's groups; v3's blocks
    bool v3 = exercise.back() == '3';
    auto counted = [&](int64_t row) {
        int64_t in_group = row % size, of_group = std::min(size, N - row / size * size);
        bool last = v3 ? row / warps * warps + warps * stay >= N : in_group + warps >= of_group;
        bool warp0 = v3 ? row % warps == 0 : in_group % warps == 0;
        return (w != B::kLastRow || row == N - 1) && (w != B::kRow0 || row > 0) && (w != B::kFirstGroup || row < size) &&
               (w != B::kLastGroup || row / size < groups - 1) && (w != B::kWarp0 || warp0) && (w != B::kLastBlock || last);
    };
    for (int64_t row = 0; row < N; row++) {
        int64_t from = w == B::kNextRow ? (row + 1) % N : row;
        double c1[32] = {}, c2[32] = {};
        auto xhat = [&](int64_t c) {
            return (x[row * C + c] - (w == B::kNotCentred ? 0 : mean[from])) * (w == B::kXhatNoRstd ? 1 : rstd[from]);
        };
        auto g = [&](int64_t c, bool weighted) { return (weighted ? weight[c] : 1) * dout[row * C + c]; };
        for (int64_t c = 0; c < C; c++) {
            if (w == B::kTail && c >= C / 32 * 32) { continue; }
            double wdy = g(c, w != B::kDyInSums && w != B::kDyAlone);
            bool all = w != B::kOwnLane;
            for (int lane = 0; lane < 32; lane++) {
                if ((all && (w != B::kLane0 || c % 32 == 0)) || c % 32 == lane) {
                    c1[lane] += wdy;
                    c2[lane] += wdy * (w == B::kC2NoXhat ? 1 : xhat(c));
                }
            }
        }
        for (int64_t c = 0; c < C; c++) {
            int lane = w == B::kLane0 ? 0 : (int)(c % 32);
            double m1 = c1[lane] / (w == B::kNotDivided || w == B::kC1NotDivided ? 1 : C);
            double m2 = c2[lane] / (w == B::kNotDivided || w == B::kC2NotDivided ? 1 : C);
            if (w == B::kExchanged) { std::swap(m1, m2); }
            if (w == B::kC1ForC2) { m2 = m1; }
            m1 *= w == B::kNoC1 ? 0 : w == B::kPlusC1 ? -1 : 1;
            m2 *= w == B::kNoC2 ? 0 : w == B::kPlusC2 ? -1 : 1;
            dinp[row * C + c] = (g(c, w != B::kDyAlone) - m1 - xhat(c) * m2) * (w == B::kNoRstd ? 1 : rstd[from]);
            if (!counted(row)) { continue; }
            double centred = x[row * C + c] - mean[row];
            double factor = w == B::kDwX || w == B::kNotCentred ? x[row * C + c] * (w == B::kDwX ? 1 : rstd[row])
                            : w == B::kDwCentred                ? centred
                            : w == B::kDwNoXhat                 ? 1
                                                                : xhat(c);
            dw[c] += g(c, w == B::kDwWeighted) * factor / (w == B::kDwMean ? N : 1);
            db[c] += g(c, w == B::kDbWeighted) * (w == B::kDbXhat ? xhat(c) : 1) / (w == B::kDwMean ? N : 1);
        }
    }
    if (w == B::kDwSwapped) { std::swap(dw, db); }
    return {dinp, dw, db};
}

// ---- attention

enum class Attention {
    kRight, kNoScale, kScaledTwice, kNotCausal, kStrict, kNoMaxInLse, kLseNoLog, kMaxAsLse, kNotNormalised, kKeysSummed, kQueriesSummed,
    kHead0, kOverKeys, kOwnLane, kOwnMax, kQueryForKey, kHalf, kBase2, kNextRow,
};
constexpr std::pair<Attention, const char*> kAttention[] = {
    {Attention::kNoScale, "the scores are not multiplied by scale"},
    {Attention::kScaledTwice, "the scores are multiplied by scale twice"},
    {Attention::kNotCausal, "a query sees all keys, those after it, too"},
    {Attention::kStrict, "a query does not see its own key"},
    {Attention::kNoMaxInLse, "lse is the logarithm of the sum: the largest score is not added"},
    {Attention::kLseNoLog, "lse is largest + sum: the logarithm is missing"},
    {Attention::kMaxAsLse, "lse is the largest score"},
    {Attention::kNotNormalised, "the probabilities are not divided by their sum"},
    {Attention::kKeysSummed, "out sums the keys, where the values are wanted"},
    {Attention::kQueriesSummed, "out sums the queries, where the values are wanted"},
    {Attention::kHead0, "every head sums the values of head 0"},
    {Attention::kOverKeys, "the probabilities are divided by the number of keys, not by their sum"},
    {Attention::kOwnLane, "each lane divides by its own sum: warp_sum is missing"},
    {Attention::kOwnMax, "each lane takes off its own largest score: the exchange of the largest is missing"},
    {Attention::kQueryForKey, "the scores are of a query with another query, not with a key"},
    {Attention::kHalf, "the sum is of half of the lanes: a step of the exchange is missing"},
    {Attention::kBase2, "2^x stands where e^x should"},
    {Attention::kNextRow, "the last key of a query is left out of the sum of values"},
};

inline Tensors attention_values(const Problem& p, Attention w) {
    using A = Attention;
    const int T = p.T, NH = p.C / kHeadColumns, heads = (int)(p.N / T) * NH;
    const std::vector<double>& qkv = input(p, "qkv");
    std::vector<double> out(p.N * p.C), lse((size_t)heads * T);
    for (int head = 0; head < heads; head++) {
        int b = head / NH, h = head % NH;
        auto at = [&](int t, int which, int of) { return &qkv[(((int64_t)b * T + t) * 3 + which) * p.C + of * kHeadColumns]; };
        for (int t = 0; t < T; t++) {
            int n = w == A::kNotCausal ? T : w == A::kStrict ? t : t + 1;
            std::vector<double> e(n);
            double largest = -INFINITY, of_lane[32], sums[32] = {}, sum = 0;
            std::fill(of_lane, of_lane + 32, -INFINITY);
            for (int j = 0; j < n; j++) {
                double dot = 0;
                for (int c = 0; c < kHeadColumns; c++) { dot += at(t, 0, h)[c] * at(j, w == A::kQueryForKey ? 0 : 1, h)[c]; }
                e[j] = dot * (w == A::kNoScale ? 1 : w == A::kScaledTwice ? 0.125 * 0.125 : 0.125);
                largest = std::max(largest, e[j]);
                of_lane[j % 32] = std::max(of_lane[j % 32], e[j]);
            }
            for (int j = 0; j < n; j++) {
                double x = e[j] - (w == A::kOwnMax ? of_lane[j % 32] : largest);
                e[j] = w == A::kBase2 ? std::exp2(x) : std::exp(x);
                sum += e[j];
                sums[w == A::kHalf ? j % 32 / 16 : j % 32] += e[j];
            }
            for (int j = 0; j < n; j++) {
                double over = w == A::kNotNormalised ? 1 : w == A::kOverKeys ? n : w == A::kOwnLane ? sums[j % 32] : w == A::kHalf ? sums[j % 32 / 16] : sum;
                if (w == A::kNextRow && j == n - 1) { continue; }
                const double* v = at(j, w == A::kKeysSummed ? 1 : w == A::kQueriesSummed ? 0 : 2, w == A::kHead0 ? 0 : h);
                for (int c = 0; c < kHeadColumns; c++) { out[((int64_t)b * T + t) * p.C + h * kHeadColumns + c] += e[j] / over * v[c]; }
            }
            double whole = w == A::kOwnLane || w == A::kHalf ? sums[0] : sum, base = w == A::kOwnMax ? of_lane[0] : largest;
            lse[(size_t)head * T + t] = w == A::kNoMaxInLse ? std::log(sum) : w == A::kLseNoLog ? largest + sum
                                        : w == A::kMaxAsLse ? largest : base + std::log(whole);
        }
    }
    return {out, lse};
}

inline std::vector<Formula> formulas_of(std::string_view exercise) {
    std::vector<Formula> all;
    if (exercise.starts_with("attention")) {
        for (auto [w, name] : kAttention) {
            all.push_back({name, [w = w](const Problem& p, int) { return attention_values(p, w); }});
        }
    } else if (exercise.starts_with("layernorm_backward")) {
        for (auto [w, name] : kBackward) {
            all.push_back({name, [=, w = w](const Problem& p, int block) { return backward_values(p, w, exercise, block); }});
        }
    } else {
        for (auto [w, name] : kForward) {
            all.push_back({name, [=, w = w](const Problem& p, int block) { return forward_values(p, w, layout_of(exercise, p, block)); }});
        }
    }
    return all;
}

}  // namespace llmc::exercise

// What wrong formulas make of a problem's inputs: by them a wrong result gets its name. Each is computed in double and
// differs from the right one in one place. Which lane or warp has a column: as in the rung.
#pragma once
#include <cmath>
#include <functional>
#include <map>
#include <span>
#include <string_view>
#include <vector>

#include "dev/cuda/attention_problems.h"
#include "dev/cuda/layernorm_problems.h"

namespace llmc::exercise {

// a wrong formula's name, which the code asks for, and what the reader is told
using Wrong = std::pair<std::string_view, const char*>;
// a list's number of that name, which does not compile if it is not there
consteval int number_of(std::string_view name, std::span<const Wrong> list) {
    int at = 0;
    while (list[at].first != name) { at++; }
    return at;
}

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

constexpr Wrong kForward[] = {
    {"C-1", "the variance is divided by C - 1; it is the mean of the squares"},
    {"mean C-1", "the mean is divided by C - 1 instead of C"},
    {"no eps", "eps is not added to the variance"},
    {"eps out", "eps is added to the standard deviation; it belongs to the variance"},
    {"about first", "the squares are of x - x[0]: the mean is not taken off"},
    {"about zero", "the squares are of x itself: the mean is not taken off"},
    {"squares sum", "the sum of the squares is not divided by C"},
    {"sum", "the sum is not divided by C"},
    {"variance", "rstd is the variance, where one over its root is wanted"},
    {"deviation", "rstd is the standard deviation, where one over it is wanted"},
    {"stored deviation", "the standard deviation is stored as rstd; out is right"},
    {"no shift", "the mean is stored less x[0]: shift is not added back"},
    {"no bias", "the bias is not added"},
    {"no weight", "the weight is left out"},
    {"swapped", "weight and bias are exchanged"},
    {"not centred", "out is made of x, the mean is not taken off"},
    {"next row", "mean and rstd are those of the next row"},
    {"previous row", "mean and rstd are those of the row before"},
    {"first row", "mean and rstd are those of row 0 in every row"},
    {"lane", "each lane uses its own sums alone: warp_sum is missing for both"},
    {"lane sum", "each lane uses its own sum alone: warp_sum is missing for the sum"},
    {"lane squares", "each lane uses its own squares alone: warp_sum is missing for the squares"},
    {"lane 0", "all use lane 0's sums alone"},
    {"half", "the sums are of half of the lanes: a step of the exchange is missing"},
    {"tail", "the sums leave out the columns beyond the last whole round of the lanes"},
    {"no rstd", "out is not multiplied by rstd"},
    {"own warp", "each warp uses its own part's mean and squares: the parts are not merged"},
    {"no between", "the parts' squares are added, but not n (part's mean - row's mean)^2"},
    {"unweighted", "the distance of a part's mean is squared, but not multiplied by the part's columns"},
    {"mean of means", "the mean is that of the parts' means, though parts have unlike numbers of columns"},
    {"full parts", "every part counts as whole, though the last ones have fewer columns"},
    {"first input", "LayerNorm is of the first input, not of the sum of both"},
    {"unrounded", "LayerNorm is of the sum before it is rounded to T; residual holds the rounded one"},
};
consteval int F(std::string_view name) { return number_of(name, kForward); }

struct Statistics {
    std::vector<double> mean, variance;  // as each column sees them
};

inline Statistics statistics_by(int w, const double* x, int C, const Layout& at) {
    Statistics s{std::vector<double>(C), std::vector<double>(C)};
    bool own_warp = w == F("own warp") && at.part > 0, half = w == F("half");
    bool own_sum = w == F("lane") || w == F("lane sum"),
         own_squares = w == F("lane") || w == F("lane squares");
    auto counted = [&](int c) {
        int round = at.lanes * at.vector;
        return (w != F("tail") || c < C / round * round) && (w != F("lane 0") || at.lane(c) == 0);
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
        s.mean[c] = x[0] + sums[group(own_sum, c)] / (w == F("sum") ? 1 : columns(c) - (w == F("mean C-1")));
        double d = x[c] - (w == F("about first") ? x[0] : w == F("about zero") ? 0 : s.mean[c]);
        squares[group(own_squares, c)] += counted(c) ? d * d : 0;
    }
    for (int c = 0; c < C; c++) {
        s.variance[c] =
            squares[group(own_squares, c)] / (w == F("squares sum") ? 1 : columns(c) - (w == F("C-1")));
    }
    return s;
}

// of warps that merge their parts, where that goes wrong
inline Statistics merged_by(int w, const double* x, int C, const Layout& at) {
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
    if (w == F("mean of means")) { mean = x[0] + means; }
    each([&](int first, int n, double sum) {
        for (int c = first; c < first + n; c++) { squares += std::pow(x[c] - x[0] - sum / n, 2); }
        int said = w == F("full parts") ? at.part : n;
        double distance = std::pow(x[0] + sum / std::max(said, 1) - mean, 2);
        squares += distance * (w == F("no between") ? 0 : w == F("unweighted") ? 1 : said);
    });
    // the merging warp's lanes that no part is for have a sum of 0
    if (w == F("unweighted")) { squares += (32 - at.warps) * std::pow(x[0] - mean, 2); }
    return {std::vector<double>(C, mean), std::vector<double>(C, squares / C)};
}

inline Tensors forward_by(int w, const Problem& p, const Layout& at) {
    const int64_t N = p.N, C = p.C;
    std::vector<double> x = input(p, "inp"), out(N * C), mean(N), rstd(N);
    bool residual = p.out.size() > 3;
    if (residual && w == F("unrounded")) {
        for (int64_t i = 0; i < N * C; i++) { x[i] += input(p, "inp2")[i]; }
    } else if (residual && w != F("first input")) {
        x = *p.out[3].truth;
    }
    const std::vector<double>&weight = input(p, "weight"), &bias = input(p, "bias");
    bool merged = at.part > 0 && w >= F("no between") && w <= F("full parts");
    for (int64_t row = 0; row < N; row++) {
        int64_t from = w == F("next row") ? (row + 1) % N : w == F("previous row") ? (row + N - 1) % N : row;
        const double* of = &x[w == F("first row") ? 0 : from * C];
        Statistics s = merged ? merged_by(w, of, p.C, at) : statistics_by(w, of, p.C, at);
        for (int64_t c = C - 1; c >= 0; c--) {  // column 0 at last: lane 0 stores
            double deviation = std::sqrt(s.variance[c] + (w == F("no eps") || w == F("eps out") ? 0 : p.eps));
            deviation += w == F("eps out") ? p.eps : 0;
            double r = w == F("variance")    ? s.variance[c] + p.eps
                       : w == F("deviation") ? deviation
                                             : 1 / deviation;
            double xhat =
                (x[row * C + c] - (w == F("not centred") ? 0 : s.mean[c])) * (w == F("no rstd") ? 1 : r);
            double a = w == F("no weight") ? 1 : weight[c], b = w == F("no bias") ? 0 : bias[c];
            out[row * C + c] = w == F("swapped") ? xhat * b + a : xhat * a + b;
            mean[row] = s.mean[c] - (w == F("no shift") ? of[0] : 0);
            rstd[row] = w == F("stored deviation") ? deviation : r;
        }
    }
    Tensors all{out, mean, rstd};
    if (residual) { all.push_back(*p.out[3].truth); }
    return all;
}

// ---- backward

constexpr Wrong kBackward[] = {
    {"no c1", "c1, the mean of w dy, is not taken off"},
    {"no c2", "xhat c2 is not taken off"},
    {"not divided", "c1 and c2 are sums: they are not divided by C"},
    {"c1 not divided", "c1 is a sum: it is not divided by C"},
    {"c2 not divided", "c2 is a sum: it is not divided by C"},
    {"no rstd", "dinp is not multiplied by rstd at last"},
    {"dy in sums", "c1 and c2 are of dy, without the weight"},
    {"dy alone", "dinp is made of dy without the weight"},
    {"not centred", "xhat is made of x, the mean is not taken off"},
    {"xhat no rstd", "xhat is not multiplied by rstd"},
    {"c2 no xhat", "c2 is the mean of w dy: xhat is left out of its sum"},
    {"+ c2", "xhat c2 is added where it is to be taken off"},
    {"exchanged", "c1 and c2 are exchanged"},
    {"lane", "each lane uses its own c1 and c2: warp_sum is missing"},
    {"lane 0", "c1 and c2 are lane 0's alone"},
    {"next row", "mean and rstd are those of the next row"},
    {"tail", "c1 and c2 leave out the columns beyond the last whole round of the lanes"},
    {"dw x", "dweight sums dy x, where xhat is wanted"},
    {"dw weighted", "dweight sums w dy xhat, where dy xhat is wanted"},
    {"dw no xhat", "dweight sums dy: xhat is missing"},
    {"dw mean", "dweight and dbias are divided by the number of rows"},
    {"dw swapped", "dweight and dbias are exchanged"},
    {"db xhat", "dbias sums dy xhat, where dy is wanted"},
    {"last row", "dweight and dbias hold the last row alone: = where += is wanted"},
    {"first group", "dweight and dbias hold the first group of rows alone"},
    {"warp 0", "dweight and dbias hold the rows of warp 0 alone: the warps' sums are not added"},
    {"last round", "dweight and dbias hold the last row of each warp, or the last rows of each block, alone"},
};
consteval int B(std::string_view name) { return number_of(name, kBackward); }

inline Tensors backward_by(int w, const Problem& p, bool blocks_stay, int block) {
    const int64_t N = p.N, C = p.C;
    const std::vector<double>&x = input(p, "inp"), &dout = input(p, "dout"), &weight = input(p, "weight"),
          &mean = input(p, "mean"), &rstd = input(p, "rstd");
    std::vector<double> dinp(N * C), dw(C), db(C);
    int64_t group = (N + 63) / 64, warps = block / 32, stride = 6 * warps;  // v2's rows, v3's of all blocks
    auto counted = [&](int64_t row) {
        int64_t in_group = row % group, rows = std::min(group, N - row / group * group);
        bool last = blocks_stay ? row / warps * warps + stride >= N : in_group + warps >= rows;
        bool warp0 = (blocks_stay ? row : in_group) % warps == 0;
        return (w != B("last row") || row == N - 1) && (w != B("first group") || row < group) &&
               (w != B("warp 0") || warp0) && (w != B("last round") || last);
    };
    for (int64_t row = 0; row < N; row++) {
        int64_t of = w == B("next row") ? (row + 1) % N : row, i = row * C;
        double c1[32] = {}, c2[32] = {}, m = w == B("not centred") ? 0 : mean[of],
               s = w == B("xhat no rstd") ? 1 : rstd[of];
        bool own = w == B("lane") || w == B("lane 0");
        for (int64_t c = 0; c < (w == B("tail") ? C / 32 * 32 : C); c++) {
            double g = (w == B("dy in sums") || w == B("dy alone") ? 1 : weight[c]) * dout[i + c];
            c1[own ? c % 32 : 0] += g;
            c2[own ? c % 32 : 0] += g * (w == B("c2 no xhat") ? 1 : (x[i + c] - m) * s);
        }
        for (int64_t c = 0; c < C; c++) {
            double xhat = (x[i + c] - m) * s, dy = dout[i + c], g = (w == B("dy alone") ? 1 : weight[c]) * dy;
            double m1 = c1[w == B("lane") ? c % 32 : 0], m2 = c2[w == B("lane") ? c % 32 : 0];
            m1 *= w == B("no c1") ? 0 : w == B("not divided") || w == B("c1 not divided") ? 1 : 1.0 / C;
            m2 *= w == B("no c2") ? 0 : w == B("not divided") || w == B("c2 not divided") ? 1 : 1.0 / C;
            if (w == B("exchanged")) { std::swap(m1, m2); }
            dinp[i + c] =
                (g - m1 - (w == B("+ c2") ? -xhat : xhat) * m2) * (w == B("no rstd") ? 1 : rstd[of]);
            if (!counted(row)) { continue; }
            double factor = w == B("dw x") ? x[i + c] : w == B("dw no xhat") ? 1 : xhat;
            dw[c] += dy * factor * (w == B("dw weighted") ? weight[c] : 1) / (w == B("dw mean") ? N : 1);
            db[c] += dy * (w == B("db xhat") ? xhat : 1) / (w == B("dw mean") ? N : 1);
        }
    }
    if (w == B("dw swapped")) { std::swap(dw, db); }
    return {dinp, dw, db};
}

// ---- attention

constexpr Wrong kAttention[] = {
    {"no scale", "the scores are not multiplied by scale"},
    {"not causal", "a query sees all keys, those after it, too"},
    {"strict", "a query does not see its own key"},
    {"no max in lse", "lse is the logarithm of the sum: the largest score is not added"},
    {"lse no log", "lse is largest + sum: the logarithm is missing"},
    {"max as lse", "lse is the largest score"},
    {"not normalised", "the probabilities are not divided by their sum"},
    {"keys summed", "out sums the keys, where the values are wanted"},
    {"head 0", "every head sums the values of head 0"},
    {"over keys", "the probabilities are divided by the number of keys, not by their sum"},
    {"lane", "each lane divides by its own sum: warp_sum is missing"},
    {"own max", "each lane takes off its own largest score: the exchange of the largest is missing"},
    {"half", "the sum is of half of the lanes: a step of the exchange is missing"},
    {"last key", "the query's own key is left out of the sum of values"},
};
consteval int A(std::string_view name) { return number_of(name, kAttention); }

inline Tensors attention_by(int w, const Problem& p) {
    const int T = p.T, NH = p.C / kHeadColumns, heads = (int)(p.N / T) * NH;
    std::vector<double> out(p.N * p.C), lse((size_t)heads * T);
    for (int query = 0; query < heads * T; query++) {
        int head = query / T, t = query % T, n = w == A("not causal") ? T : w == A("strict") ? t : t + 1;
        auto row = [&](int token, int which, int h) {
            return &input(p, "qkv")[(((int64_t)head / NH * T + token) * 3 + which) * p.C + h * kHeadColumns];
        };
        std::vector<double> e(n), largest(32, -INFINITY), sums(32);  // of a lane
        auto lane = [&](int j, int own) {
            return w == own ? j % 32 : w == A("half") && own == A("lane") ? j % 32 / 16 : 0;
        };
        for (int j = 0; j < n; j++) {
            const double *q = row(t, 0, head % NH), *k = row(j, 1, head % NH);
            for (int c = 0; c < kHeadColumns; c++) { e[j] += q[c] * k[c] * (w == A("no scale") ? 1 : 0.125); }
            largest[lane(j, A("own max"))] = std::max(largest[lane(j, A("own max"))], e[j]);
        }
        for (int j = 0; j < n; j++) {
            sums[lane(j, A("lane"))] += e[j] = std::exp(e[j] - largest[lane(j, A("own max"))]);
        }
        for (int j = 0; j < n - (w == A("last key")); j++) {
            double over = w == A("not normalised") ? 1 : w == A("over keys") ? n : sums[lane(j, A("lane"))];
            const double* v = row(j, w == A("keys summed") ? 1 : 2, w == A("head 0") ? 0 : head % NH);
            double* y = &out[((int64_t)head / NH * T + t) * p.C + head % NH * kHeadColumns];
            for (int c = 0; c < kHeadColumns; c++) { y[c] += e[j] / over * v[c]; }
        }
        double log = w == A("lse no log") ? sums[0] : w == A("max as lse") ? 0 : std::log(sums[0]);
        lse[query] = log + (w == A("no max in lse") ? 0 : largest[0]);
    }
    return {out, lse};
}

// act(its name, what it makes of the problem) for each wrong formula of an exercise
template <typename Act>
void each_wrong_formula(std::string_view exercise, const Problem& p, int block, const Act& act) {
    auto each = [&](const auto& list, auto values) {
        for (int w = 0; w < (int)std::size(list); w++) { act(list[w].second, values(w)); }
    };
    if (exercise.starts_with("attention")) {
        each(kAttention, [&](int w) { return attention_by(w, p); });
    } else if (exercise.starts_with("layernorm_backward")) {
        each(kBackward, [&](int w) { return backward_by(w, p, exercise.back() == '3', block); });
    } else {
        Layout at = layout_of(exercise, p, block);
        each(kForward, [&](int w) { return forward_by(w, p, at); });
    }
}

}  // namespace llmc::exercise

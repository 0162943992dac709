// Attention as problems for the harness, in two ops, forward and backward: bf16 (v0: fp32), causal, heads of
// 64 elements. Truth and bounds: the reference, and dev/cuda/attention_bounds.h. A shape is sequences x
// heads x tokens. Host only.
#pragma once
#include "dev/cuda/attention_bounds.h"
#include "dev/cuda/layernorm_inputs.h"
#include "llmc/model/cpu/reference.h"

namespace llmc {

// A problem's heads are those of up to seven, again and again: head i has the numbers of head i % 7. The
// truth of a batch of 64 would else take minutes. A kernel that takes another head's rows is still seen,
// unless it is 7 heads away.
constexpr int kDistinctHeads = 7;

inline double qkv_at(Inputs kind, int64_t i, int t, int which, int head, int c) {
    double n = normal_at(kDrawInp, i);
    constexpr double kSlopes[] = {0.02, -0.02, 0.5, -0.5};
    switch (kind) {
        case Inputs::
            kOutlier:  // scores that rise from key to key, or fall: the largest moves at each tile, or never
            if (c == 0 && which < 2) { return which == 0 ? 8 : kSlopes[head % 4] * t; }
            return 0.1 * n;
        case Inputs::kConstant:  // keys are alike: a row's scores are equal
            return which == 1 ? normal_at(kDrawInp2, c) : n;
        default:
            return n;
    }
}

// Where element (row, col) of a (B T, count NH 64) tensor of a problem is among the distinct heads' (T, count
// distinct 64). Of lse, (B NH, T), it is at (row % distinct) T + col.
struct DistinctIndex {
    int T, NH, distinct, count;
    int64_t operator()(int64_t row, int64_t col) const {
        int64_t head = row / T * NH + col / kHeadColumns % NH, which = col / kHeadColumns / NH;
        return ((row % T * count + which) * distinct + head % distinct) * kHeadColumns + col % kHeadColumns;
    }
};

// The distinct heads as one sequence: their inputs, what attention makes of them in double, and how far off
// it may be.
struct DistinctHeads {
    AttentionShape shape;  // B = 1
    Values qkv, dout;
    std::vector<double> out, lse, stored_out, stored_lse,
        dqkv;  // stored_: as forward leaves them to backward
    AttentionBounds bounds;

    DistinctHeads(Dtype dtype, Shape s, Inputs kind)
        : shape{1, s.T, (int)std::min<int64_t>(s.N / s.T * (s.C / kHeadColumns), kDistinctHeads),
                kHeadColumns} {
        const int T = shape.T, NH = shape.NH, C = shape.C();
        qkv = make_values(dtype, T, 3 * C, [&](int64_t t, int col) {
            return qkv_at(kind, t * 3 * C + col, (int)t, col / C, col % C / kHeadColumns, col % kHeadColumns);
        });
        dout =
            make_values(dtype, T, C, [&](int64_t t, int col) { return normal_at(kDrawDout, t * C + col); });
        out.resize(shape.elements());
        lse.resize((size_t)NH * T);
        dqkv.resize(3 * shape.elements());
        attention_forward_cpu(out.data(), lse.data(), qkv->data(), 1, T, C, NH);
        stored_out = out;
        stored_lse = lse;
        round_all(stored_out, format_of(dtype));
        round_all(stored_lse, format_of(Dtype::kFp32));
        attention_backward_cpu(dqkv.data(), dout->data(), qkv->data(), stored_out.data(), stored_lse.data(),
                               1, T, C, NH);
        const auto& rounding = dtype == Dtype::kFp32 ? kRoundingOfFp32 : kRoundingOfBf16;
        bounds = attention_bounds(shape, rounding, *qkv, *dout, stored_out, stored_lse);
    }
};

// A problem without tensors, and what fills them.
struct AttentionProblem {
    Problem p;
    int heads;  // B NH
    std::shared_ptr<const DistinctHeads> few;

    AttentionProblem(const char* op, Dtype dtype, Shape shape, Inputs kind)
        : p{.op = op,
            .dtype = dtype,
            .N = shape.N,
            .C = shape.C,
            .eps = 0,
            .inputs = kInputsNames[(int)kind],
            .reads = 3,
            .writes = 1,
            .in = {},
            .out = {},
            .form = {},
            .T = shape.T},
          heads((int)(shape.N / shape.T * (shape.C / kHeadColumns))),
          few(std::make_shared<const DistinctHeads>(dtype, shape, kind)) {}

    // pairs of a query and a key
    double pairs() const { return (double)heads * p.T * (p.T + 1.0) / 2; }
    DistinctIndex index(int count) const { return {p.T, p.C / kHeadColumns, few->shape.NH, count}; }
    int64_t lse_index(int64_t row, int64_t col) const { return row % few->shape.NH * p.T + col; }

    // (B T, count C) from the few heads' tensor
    Values spread(const std::vector<double>& tensor, int count) const {
        auto values = std::vector<double>(p.N * count * p.C);
#pragma omp parallel for
        for (int64_t row = 0; row < p.N; row++) {
            for (int col = 0; col < count * p.C; col++) {
                values[row * count * p.C + col] = tensor[index(count)(row, col)];
            }
        }
        return share(std::move(values));
    }
    Values spread_lse(const std::vector<double>& tensor) const {
        std::vector<double> values((size_t)heads * p.T);
        for (size_t i = 0; i < values.size(); i++) { values[i] = tensor[lse_index(i / p.T, i % p.T)]; }
        return share(std::move(values));
    }
    void add_input(const char* name, Dtype dtype, Values values) {
        p.in.push_back({name, dtype, std::move(values), Extent::kRows});
    }
    void add_output(const char* name, const std::vector<double>& truth, const std::vector<double>& bounds,
                    int count) {
        auto bound = [few = few, &truth, &bounds, at = index(count), r = Roundings(p.dtype)](
                         const Sums&, int64_t row, int64_t col) {
            int64_t i = at(row, col);
            return r.stored(bounds[i], truth[i]);
        };
        p.out.push_back({name, p.dtype, p.N, count * p.C, spread(truth, count), bound, Extent::kRows});
    }
    // attention.h's counters: 0 before each call, and after it
    void add_counters() { add_input("counters", Dtype::kFp32, share(std::vector<double>(4, 0.0))); }
};

// Useful streams: q, k, v read, out written.
inline Problem attention_forward_problem(Dtype dtype, Shape shape, Inputs kind = Inputs::kNormal,
                                         const CallForm& = {}) {
    AttentionProblem a("attention_forward", dtype, shape, kind);
    a.p.flops = 4 * kHeadColumns * a.pairs();
    a.add_input("qkv", dtype, a.spread(*a.few->qkv, 3));
    a.add_counters();
    a.add_output("out", a.few->out, a.few->bounds.out, 1);
    auto bound = [few = a.few, T = shape.T, r = Roundings(Dtype::kFp32)](const Sums&, int64_t row,
                                                                         int64_t col) {
        int64_t i = row % few->shape.NH * T + col;
        return r.stored(few->bounds.lse[i], few->lse[i]);
    };
    a.p.out.push_back(
        {"lse", Dtype::kFp32, a.heads, shape.T, a.spread_lse(a.few->lse), bound, Extent::kRows});
    return a.p;
}

// Useful streams: q, k, v, out, dout read, dq, dk, dv written.
inline Problem attention_backward_problem(Dtype dtype, Shape shape, Inputs kind = Inputs::kNormal,
                                          const CallForm& = {}) {
    AttentionProblem a("attention_backward", dtype, shape, kind);
    a.p.reads = 5;
    a.p.writes = 3;
    a.p.flops = 10 * kHeadColumns * a.pairs();
    a.add_input("dout", dtype, a.spread(*a.few->dout, 1));
    a.add_input("qkv", dtype, a.spread(*a.few->qkv, 3));
    a.add_input("out", dtype, a.spread(a.few->stored_out, 1));
    a.add_input("lse", Dtype::kFp32, a.spread_lse(a.few->stored_lse));
    a.add_counters();
    a.add_output("dqkv", a.few->dqkv, a.few->bounds.dqkv, 3);
    return a.p;
}

// ---- what is tried --------------------------------------------------------------------------------------------------

constexpr Shape sequences(int B, int NH, int T) { return {(int64_t)B * T, NH * kHeadColumns, T}; }

// v0's type, then what trains: T around tiles of 16, 64, 128, 192 and 256 rows
inline std::vector<CheckItem> attention_checks() {
    std::vector<CheckItem> list;
    for (int T : {1, 17, 65, 257}) { list.push_back({.dtype = Dtype::kFp32, .shape = sequences(2, 2, T)}); }
    for (int T : {1, 17, 63, 64, 65, 127, 128, 129, 191, 192, 193, 255, 256, 257, 320, 1000, 1024, 2048}) {
        list.push_back({.dtype = Dtype::kBf16, .shape = sequences(2, 3, T)});
    }
    for (Inputs kind : {Inputs::kOutlier, Inputs::kConstant}) {
        for (int T : {65, 520}) { list.push_back({Dtype::kBf16, sequences(1, 4, T), kind}); }
    }
    // more tiles than multiprocessors, and the same bits
    list.push_back({.dtype = Dtype::kBf16, .shape = sequences(8, 12, 1024), .reruns = 5});
    return list;
}

inline std::vector<RaceItem> attention_races() {
    std::vector<RaceItem> list;
    for (Shape shape :
         {sequences(64, 12, 1024), sequences(16, 25, 1024), sequences(8, 12, 1024), sequences(4, 12, 8192)}) {
        list.push_back({Dtype::kBf16, shape});
    }
    return list;
}

}  // namespace llmc

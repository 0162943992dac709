// The ladder of column sums, a bias's gradient: every version checked against the CPU reference and timed against the
// roof, 1R.
//   make dev/cuda/column_sums && dev/cuda/column_sums              all versions
//   dev/cuda/column_sums --check                                   correctness only
#include "dev/cuda/shootout.cuh"
#include "llmc/ops/column_sums/bias.h"
#include "llmc/ops/column_sums/ladder/v0.h"
#include "llmc/ops/column_sums/ladder/v1.cuh"
#include "llmc/ops/column_sums/ladder/v2.cuh"

using namespace llmc;

template <typename T>
Version rung(const char* name, const char* idea, auto launch, Sums (*sums)(int64_t N, int C, int block),
             const Traits& traits) {
    auto run = [launch](const TensorSet& t, const Problem& p, int block) {
        launch(t.get<float>("sums"), t.scratch(), t.get<T>("x"), p.N, p.C, kStream, block);
    };
    return {.name = name, .idea = idea, .launch = run, .sums = sums, .traits = traits};
}

template <typename T>
Sums shipped_sums(int64_t N, int C, int) {
    auto s = ColumnShares::of(N, C, C % Vec<T>::size == 0 ? Vec<T>::size : 1);
    return {.column = (double)ceil_div(N, (int64_t)s.groups * s.rows) + s.rows + s.groups};
}

template <typename T>
std::vector<Version> ladder() {
    auto ship = [](float* sums, void* scratch, const T* x, int64_t N, int C, cudaStream_t stream, int) {
        bias_backward(sums, scratch, x, N, C, false, stream);
    };
    std::vector<Version> ladder = {
        rung<T>("v1", "thread per column", v1::column_sums<T>,
                [](int64_t N, int, int) { return Sums{.column = (double)N}; }, {.blocks = {32, 128}}),
        rung<T>("v2", "vectors, 128 groups of rows", v2::column_sums<T>,
                [](int64_t N, int, int) { return Sums{.column = (double)ceil_div(N, 8 * 128) + 8 + 128}; },
                {.blocks = {0}}),
        rung<T>("ship", "whole rows, blocks that all run at once", ship, shipped_sums<T>,
                {.blocks = {0}, .every_form = true}),
    };
    ladder[1].scratch = scratch_of([](int64_t, int C) { return sizeof(float) * kColumnGroups * (size_t)C; });
    ladder[2].scratch = scratch_of([](int64_t, int C) { return bias_backward_scratch(C); });
    return ladder;
}

std::vector<Version> ladder_for(Dtype dtype) {
    if (dtype == Dtype::kFp32) { return ladder<float>(); }
    return dtype == Dtype::kBf16 ? ladder<__nv_bfloat16>() : std::vector<Version>{};
}

// Useful stream: x read.
Problem column_sums_problem(Dtype dtype, Shape shape, Inputs kind, const CallForm& form) {
    int64_t N = shape.N;
    int C = shape.C;
    Values x = make_values(dtype, N, C, [&](int64_t row, int col) { return dout_at(kind, row, col, N, C); });
    std::vector<double> sums(C), terms(C);
#pragma omp parallel for
    for (int c = 0; c < C; c++) {
        for (int64_t row = 0; row < N; row++) {
            sums[c] += (*x)[row * C + c];
            terms[c] += std::fabs((*x)[row * C + c]);
        }
    }
    Values truth = share(std::move(sums)), sizes = share(std::move(terms));
    bool exact = kind == Inputs::kInteger;  // small integers: no rounding, in any order
    auto bound = [=, r = Roundings(Dtype::kFp32)](const Sums& s, int64_t c, int64_t) {
        return exact ? 0 : dbias_bound(r, s, (*sizes)[c], (*truth)[c]);
    };
    Problem p = empty_problem("column_sums", dtype, shape, kind, form, 1, 0);
    p.in = {{"x", dtype, x}};
    p.out = {{"sums", Dtype::kFp32, C, 1, truth, bound, Extent::kColumns}};
    return p;
}

void run_cpu(FloatTensors& out, const FloatTensors& in, const Problem& p) {
    v0::column_sums_cpu(out[0].data(), in[0].data(), p.N, p.C);
}

std::vector<CheckItem> checks() {
    std::vector<CheckItem> list;
    for (Dtype dtype : {Dtype::kFp32, Dtype::kBf16}) {
        static constexpr Shape kShapes[] = {{1, 1},       {3, 65},     {131, 768},   {1023, 769},
                                            {4099, 3072}, {8192, 384}, {1025, 6400}, {300, 12800}};
        for (Shape shape : kShapes) {
            list.push_back({.dtype = dtype, .shape = shape, .reruns = 50});
            list.push_back({dtype, shape, Inputs::kInteger});
        }
    }
    return list;
}

int main(int argc, char** argv) {
    Shootout shootout{
        .op = "column_sums",
        .cpu = {.run = run_cpu,
                .sums = [](int64_t N, int) { return Sums{.column = (double)N}; },
                .shape = {2048, 768}},
        .ladder = ladder_for,
        .problem = column_sums_problem,
        .checks = checks(),
        .races = {{Dtype::kBf16, {65536, 3072}}, {Dtype::kBf16, {8192, 6400}}, {Dtype::kBf16, {4096, 3072}}},
    };
    return shootout_main(shootout, argc, argv);
}

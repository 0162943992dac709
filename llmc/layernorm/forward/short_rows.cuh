// short_rows: several short rows a warp. A row is shared by a few lanes with up to seven pieces each: vectors of 16 bytes, or,
//         where rows are not whole aligned vectors, half of one, a quarter, down to single elements.
// Why:    row_in_registers.cuh gives a row a warp: of 64 columns of 16 bits 24 lanes of 32 have nothing. And blocks begin no
//         faster than 0.8 a ns: with 4 rows a block, 524288 of these take 159 us, of which the bytes need 33.
// Moves:  a row once in, once out: 2 N C elements; 4 N C with a residual.
// Result: 34.7 us, 95 % of the roof of launches that overlap at 524288x64 bf16 (a warp a row: 158.7); 91 % at
//         262144x100; H200, 2026-11-24
#pragma once
#include "llmc/layernorm/forward/rows.cuh"

namespace llmc::short_rows_forward {

using namespace layernorm;

// A layout of layouts.h's: a row is shared by neighbouring lanes with k pieces of n elements each, the first `unguarded` of
// which every lane has.
template <const auto& table, int index, int n_, typename T>
struct Layout {
    static constexpr layouts::ShortForward row = table[index];
    static constexpr int lanes = row.lanes, k = row.vectors, n = n_, unguarded = row.unguarded;
    static constexpr bool drops = false;
    static constexpr int step = lanes * n, columns = step * k;
    // Of a block. Blocks begin no faster than 0.8 a ns: with less than 2 KB of rows in 128 threads that is what limits.
    static constexpr int threads = 128 / lanes * columns * (int)sizeof(T) < 2048 ? 256 : 128;
    static constexpr int rows = threads / lanes, of_warp = kWarp / lanes;  // of a block, of a warp
};

// A lane's pieces of a row, or of weight and bias, from column `first` on.
template <typename L, typename T>
struct Part {
    static constexpr int n = L::n, step = L::step;
    Elements<T, n> x[L::k];
    int first, C;

    __device__ explicit Part(int C) : first(threadIdx.x % L::lanes * n), C(C) {}
    __device__ bool inside(int i) const { return i < L::unguarded || first + i * step < C; }
    // Beyond the row x is 0. constant: nobody writes there.
    template <bool constant = false>
    __device__ void load_row(const T* row) {
        unrolled<L::k>([&](int i) {
            x[i] = {};
            if (!inside(i)) { return; }
            const T* p = row + first + i * step;
            x[i] = constant ? load_constant<n>(p) : load<n>(p);
        });
    }
    __device__ void store_row(T* row) const {
        unrolled<L::k>([&](int i) {
            if (inside(i)) { store(row + first + i * step, x[i]); }
        });
    }
    // add(x, chain) for each element of a piece
    template <typename Add>
    __device__ void each(int i, const Add& add) const {
        unrolled<n>([&](int j) { add(as_float(x[i], j), (n > 1 ? j : i) % 2); });
    }
};

template <typename L, typename T>
__device__ Moments moments_of_row(const Part<L, T>& part, float per_column, bool rms) {
    auto some = [&](auto add) {  // beyond the row x is 0
        unrolled<L::k>([&](int i) { part.each(i, add); });
    };
    auto all = [&](auto add) {
        unrolled<L::k>([&](int i) {
            if (part.inside(i)) { part.each(i, add); }
        });
    };
    return moments_of<L::lanes>(some, per_column, all, part.C, per_column, rms);
}

template <typename T, int n>
__device__ Elements<T, n> sum_of(const Elements<T, n>& a, const Elements<T, n>& b) {
    float sum[n];
    unrolled<n>([&](int j) { sum[j] = as_float(a, j) + as_float(b, j); });
    return rounded<T>(sum);
}

template <typename L, bool kResidual, typename T, typename W>
__device__ void normalise_row(const CallOf<L, T, W>& call, int64_t row, float per_column) {
    Part<L, T> part(call.C), part2(call.C);
    part.load_row(call.inp + row * call.inp_stride);
    if constexpr (kResidual) { part2.load_row(call.inp2 + row * call.inp2_stride); }
    Part<L, W> weight(call.C), bias(call.C);
    weight.template load_row<true>(or_ones(call.weight));
    bias.template load_row<true>(or_zeros(call.bias));
    if constexpr (kSm90) { dependency_launch(); }
    if constexpr (kResidual) {
        __syncwarp();  // who has the row again, too, has read it
        if constexpr (L::drops) {
            const DropoutRow mask(call.dropout, row, call.C);
            unrolled<L::k>([&](int i) {
                part.x[i] = dropped_sum(part.x[i], part2.x[i], mask, part.first + i * L::step);
            });
        } else {
            unrolled<L::k>([&](int i) { part.x[i] = sum_of(part.x[i], part2.x[i]); });
        }
        part.store_row(call.residual + row * call.residual_stride);
    }
    Normal normal = normal_of(moments_of_row(part, per_column, call.rms), per_column, (float)call.eps);
    if (threadIdx.x % L::lanes == 0) { write_statistics(call, row, normal); }
    unrolled<L::k>([&](int i) { part.x[i] = normalised<T>(part.x[i], weight.x[i], bias.x[i], normal); });
    part.store_row(call.out + row * call.out_stride);
}

// Blocks that are to fit a multiprocessor, where the compiler would take registers that cost some of them; 0: as it likes.
template <typename L, bool kResidual, typename T, typename W>
constexpr int kBlocks = !std::is_same_v<T, W> || L::drops ? 0
                        : kResidual && L::k * L::n == 32  ? 768 / L::threads
                        : L::k == 7 && L::n == 1          ? 2048 / L::threads
                                                          : 0;

// A group of lanes that would have a row beyond the last does its warp's first again: all lanes have loaded before one
// stores (the sums' shuffles wait for that), and its stores are the same.
template <typename L, bool kResidual, typename T, typename W>
__global__ void __launch_bounds__(L::threads, (kBlocks<L, kResidual, T, W>))
    layernorm_forward_kernel(CallOf<L, T, W> call, float per_column) {
    prefetch_parameters(call);
    if constexpr (kSm90) { dependency_wait(); }
    int64_t first = (int64_t)blockIdx.x * L::rows + threadIdx.x / kWarp * L::of_warp;
    if (first >= call.N) { return; }
    int64_t row = first + threadIdx.x % kWarp / L::lanes;
    normalise_row<L, kResidual, T, W>(call, row < call.N ? row : first, per_column);
}

template <typename L, bool kResidual, typename T, typename W>
void launch(const LayerNormForwardRows<T, W>& call, cudaStream_t stream) {
    unsigned blocks = grid_x(ceil_div(call.N, (int64_t)L::rows));
    launch_overlapping(layernorm_forward_kernel<L, kResidual, T, W>, blocks, L::threads, 0, stream,
                       CallOf<L, T, W>(call), 1.0f / call.C);
}

template <typename T, typename W>
bool launch(const LayerNormForwardRows<T, W>& call, const Choice& choice, cudaStream_t stream) {
    constexpr int whole = Vec<T>::size;
    auto with = [&]<const auto & table, int n, bool kResidual>() {
        with_constant<0, std::size(table)>(choice.layout, [&]<int i>() {
            using L = Layout<table, i, n, T>;
            if constexpr (kResidual && kDrops<T, W>) {
                if (call.dropout.rows != nullptr) { return launch<Dropping<L>, kResidual>(call, stream); }
            }
            launch<L, kResidual>(call, stream);
        });
    };
    if (call.residual != nullptr) {
        with.template operator()<layouts::kShortForward, whole, true>();
    } else {
        with_piece<whole, std::is_same_v<T, W>>(choice.piece, [&]<int n>() {
            if constexpr (n == whole) {
                with.template operator()<layouts::kShortForward, n, false>();
            } else {
                with.template operator()<layouts::kShortForwardPieces, n, false>();
            }
        });
    }
    return true;
}

}  // namespace llmc::short_rows_forward

// A block takes a tile of rows and 128 columns: rows leave as they are read, columns from shared memory.
#include "llmc/ops/fp8.h"

#include "llmc/cuda/check.cuh"
#include "llmc/cuda/column_sums.cuh"
#include "llmc/cuda/fp8.cuh"
#include "llmc/cuda/vectors.cuh"
#include "llmc/ops/gelu.cuh"

namespace llmc {

namespace {

constexpr int kVector = 8, kColumns = 128, kAcross = kColumns / kVector;
constexpr int kLeastRows = 64;  // of a tile

template <typename T>
struct Call {
    Fp8Output out, activation;
    float* partial;  // (tiles of rows, C), or null
    const T *inp, *dout;
    int64_t N;
    int C;
};

// What is made of 8 elements: `main` of out, `other` of activation. Rows of a tile, and threads; vectors a thread has on
// their way.
template <Fp8 format_>
struct Cast {
    static constexpr Fp8 format = format_;
    static constexpr bool with_dout = false, sums = format == Fp8::kE5m2;
    static constexpr int rows = 128, threads = 256, at_once = 8;
    __device__ static void apply(float (&)[kVector], float (&)[kVector]) {}
};
struct Gelu {
    static constexpr Fp8 format = Fp8::kE4m3;
    static constexpr bool with_dout = false, sums = false;
    static constexpr int rows = 128, threads = 256, at_once = 8;
    __device__ static void apply(float (&main)[kVector], float (&)[kVector]) {
        unrolled<kVector>([&](int j) { main[j] = gelu(main[j]); });
    }
};
struct GeluBackward {
    static constexpr Fp8 format = Fp8::kE5m2;
    static constexpr bool with_dout = true, sums = true;
    static constexpr int rows = kLeastRows, threads = 128, at_once = 4;
    // main: dout, then the gradient; other: inp, then gelu(inp)
    __device__ static void apply(float (&main)[kVector], float (&other)[kVector]) {
        unrolled<kVector>([&](int j) {
            const Gelu2 both = gelu_and_slope(other[j]);
            main[j] *= both.slope;
            other[j] = both.gelu;
        });
    }
};

// of a thread's columns the sums of its rows, to the tile's: (threads / kAcross, kColumns) floats in shared memory
template <typename Op>
__device__ void store_sums(float* shared, const float (&sums)[kVector], float* partial, int columns) {
    const int across = threadIdx.x % kAcross, beside = threadIdx.x / kAcross;
    __syncthreads();
    unrolled<kVector>([&](int j) { shared[beside * kColumns + across * kVector + j] = sums[j]; });
    __syncthreads();
    for (int c = threadIdx.x; c < columns; c += Op::threads) {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < Op::threads / kAcross; i++) { sum += shared[i * kColumns + c]; }
        partial[c] = sum;
    }
}

template <typename Op, typename T>
__global__ void __launch_bounds__(Op::threads) fp8_kernel(Call<T> call) {
    constexpr int rows = Op::rows, beside = Op::threads / kAcross, each = rows / beside;
    using Tile = Fp8Tile<rows>;
    __shared__ alignas(16) uint32_t shared[(1 + Op::with_dout) * rows * kColumns / 4];
    const Tile tile{shared, kColumns / 4}, other_tile{shared + rows * kColumns / 4, kColumns / 4};
    const int across = ceil_div(call.C, kColumns);  // tiles; neighbours run side by side
    const int64_t group = blockIdx.x / across, first_row = group * rows;
    const int first_column = blockIdx.x % across * kColumns, eighth = threadIdx.x % kAcross;
    const int column = first_column + eighth * kVector, count = (int)min((int64_t)rows, call.N - first_row);
    wait_for_earlier();
    const float scale = *call.out.scale, other_scale = Op::with_dout ? *call.activation.scale : 0;
    float largest = 0, other_largest = 0, sums[kVector] = {};
#pragma unroll 1
    for (int k = 0; k < each; k += Op::at_once) {
        Vec<T> x[Op::at_once], dout[Op::with_dout ? Op::at_once : 1];
        auto row_of = [&](int i) { return threadIdx.x / kAcross + (k + i) * beside; };
        auto has = [&](int i) { return row_of(i) < count && column < call.C; };
        unrolled<Op::at_once>([&](int i) {
            if (!has(i)) { return; }
            const int64_t at = (first_row + row_of(i)) * call.C + column;
            x[i] = load_streaming<kVector>(call.inp + at);
            if constexpr (Op::with_dout) { dout[i] = load_streaming<kVector>(call.dout + at); }
        });
        unrolled<Op::at_once>([&](int i) {
            if (!has(i)) { return; }
            float main[kVector], other[kVector];
            unrolled<kVector>([&](int j) {
                main[j] = Op::with_dout ? as_float(dout[Op::with_dout ? i : 0], j) : as_float(x[i], j);
                other[j] = as_float(x[i], j);
            });
            Op::apply(main, other);
            unrolled<kVector>([&](int j) {
                largest = fmaxf(largest, fabsf(main[j]));
                other_largest = fmaxf(other_largest, fabsf(other[j]));
                sums[j] += main[j];
            });
            const uint2 bytes = fp8_bytes<Op::format>(main, scale);
            if (call.out.rows != nullptr) {
                uint8_t* row = call.out.rows + (first_row + row_of(i)) * call.C + column;
                *reinterpret_cast<uint2*>(row) = bytes;
            }
            if (call.out.transposed != nullptr) { tile.store(row_of(i), eighth, bytes); }
            if constexpr (Op::with_dout) {
                other_tile.store(row_of(i), eighth, fp8_bytes<Fp8::kE4m3>(other, other_scale));
            }
        });
    }
    const int columns = min(kColumns, call.C - first_column);
    const int64_t to = first_column * call.N + first_row;
    __syncthreads();
    if (call.out.transposed != nullptr) {
        tile.store_transposed(call.out.transposed + to, call.N, count, columns);
    }
    if (call.out.amax != nullptr) { raise_amax(call.out.amax, largest); }
    if constexpr (Op::with_dout) {
        if (call.activation.transposed != nullptr) {
            other_tile.store_transposed(call.activation.transposed + to, call.N, count, columns);
        }
        if (call.activation.amax != nullptr) { raise_amax(call.activation.amax, other_largest); }
    }
    if constexpr (Op::sums) {
        static_assert(sizeof(shared) >= beside * kColumns * sizeof(float));
        float* partial = call.partial + group * call.C + first_column;
        if (call.partial != nullptr) { store_sums<Op>((float*)shared, sums, partial, columns); }
    }
}

template <typename Op, typename T>
void launch(const Call<T>& call, cudaStream_t stream) {
    constexpr auto* kernel = fp8_kernel<Op, T>;
    require(call.N >= 0 && call.N % 16 == 0 && call.C > 0 && call.C % 16 == 0,
            "a tensor in FP8: N and C must be multiples of 16");
    require(aligned(call.inp, call.dout, call.out.rows, call.out.transposed, call.activation.transposed),
            "a tensor in FP8: arrays must be aligned to 16 bytes");
    require(runs_hopper_code(kernel), "a tensor in FP8 is for tensor cores of Hopper or later");
    if (call.N == 0) { return; }
    const unsigned grid = grid_x(ceil_div(call.N, (int64_t)Op::rows) * ceil_div(call.C, kColumns));
    launch_overlapping(kernel, grid, Op::threads, 0, stream, call);
}

template <typename Op, typename T, typename Grad>
void launch(Call<T> call, const Fp8ColumnSums<Grad>& sums, cudaStream_t stream) {
    if (sums.dbias == nullptr) { return launch<Op>(call, stream); }
    call.partial = (float*)sums.scratch;
    launch<Op>(call, stream);
    const int groups = (int)ceil_div(call.N, (int64_t)Op::rows);
    finish_columns<Grad, float>({sums.dbias}, {call.partial, groups, call.C}, call.C, sums.accumulate,
                                stream);
}

}  // namespace

size_t fp8_sums_scratch(int64_t N, int C) {
    return sizeof(float) * (size_t)ceil_div(N, (int64_t)kLeastRows) * (size_t)C;
}

template <typename T>
void cast_e4m3(const Fp8Output& out, const T* inp, int64_t N, int C, cudaStream_t stream) {
    launch<Cast<Fp8::kE4m3>, T>({out, {}, nullptr, inp, nullptr, N, C}, stream);
}
template <typename T, typename Grad>
void cast_e5m2(const Fp8Output& out, const Fp8ColumnSums<Grad>& sums, const T* inp, int64_t N, int C,
               cudaStream_t stream) {
    launch<Cast<Fp8::kE5m2>, T>({out, {}, nullptr, inp, nullptr, N, C}, sums, stream);
}
template <typename T>
void gelu_e4m3(const Fp8Output& out, const T* inp, int64_t N, int C, cudaStream_t stream) {
    launch<Gelu, T>({out, {}, nullptr, inp, nullptr, N, C}, stream);
}
template <typename T, typename Grad>
void gelu_backward_e5m2(const Fp8Output& out, const Fp8Output& activation, const Fp8ColumnSums<Grad>& sums,
                        const T* dout, const T* inp, int64_t N, int C, cudaStream_t stream) {
    launch<GeluBackward, T>({out, activation, nullptr, inp, dout, N, C}, sums, stream);
}

using bf16 = __nv_bfloat16;
template decltype(cast_e4m3<bf16>) cast_e4m3<bf16>;
template decltype(cast_e5m2<bf16, float>) cast_e5m2<bf16, float>;
template decltype(cast_e5m2<bf16, bf16>) cast_e5m2<bf16, bf16>;
template decltype(gelu_e4m3<bf16>) gelu_e4m3<bf16>;
template decltype(gelu_backward_e5m2<bf16, float>) gelu_backward_e5m2<bf16, float>;
template decltype(gelu_backward_e5m2<bf16, bf16>) gelu_backward_e5m2<bf16, bf16>;

}  // namespace llmc

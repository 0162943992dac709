// A warp takes a row, which TMA has brought into the warp's place in shared memory while it worked on the row before. The
// bytes go to memory by rows at once, and into a tile that leaves by columns when its rows are whole. A block lives as long
// as there are tiles: rows of the next one arrive while this one leaves.
#include "llmc/layernorm/layernorm_fp8.h"

#include "llmc/cuda/async_copy.cuh"
#include "llmc/cuda/fp8.cuh"
#include "llmc/cuda/launch.cuh"
#include "llmc/cuda/vectors.cuh"

namespace llmc {

namespace {

constexpr int kVector = 8, kSharedOfSm = 228 << 10;  // elements of 16 bytes; bytes of shared memory on Hopper

// Of a lane: up to `vectors` vectors of a row, of which `unguarded` surely have columns. Columns of a tile leave in pieces
// of tile_rows bytes: 64, where they fit, as shorter pieces are written more slowly.
struct Layout {
    int vectors, unguarded, tile_rows, warps, blocks_per_sm;
    constexpr int threads() const { return warps * kWarp; }
    constexpr int columns() const { return vectors * kWarp * kVector; }
    // At least so much that no other block fits beside them: blocks of the next launch, which may begin before this one ends,
    // would else gather where there was room, and leave other multiprocessors idle.
    int shared_bytes(int C, bool residual) const {
        const int needed = tile_rows * Fp8Tile<16>::pitch_of(C) * 4 + warps * C * (residual ? 4 : 2);
        return std::max(needed, kSharedOfSm / (blocks_per_sm + 1));
    }
};
constexpr Layout kLayouts[2][11] = {
    {{1, 0, 64, 8, 2},
     {2, 1, 64, 8, 2},
     {3, 2, 64, 8, 2},
     {4, 3, 64, 8, 2},
     {5, 4, 64, 8, 2},
     {6, 5, 64, 16, 1},
     {7, 6, 64, 16, 1},
     {8, 7, 64, 16, 1},
     {12, 8, 32, 8, 1},
     {16, 12, 32, 8, 1},
     {24, 16, 16, 4, 1}},
    // with a residual
    {{1, 0, 64, 8, 2},
     {2, 1, 64, 8, 2},
     {3, 2, 128, 16, 1},
     {4, 3, 64, 8, 2},
     {5, 4, 64, 16, 1},
     {6, 5, 64, 16, 1},
     {7, 6, 64, 16, 1},
     {8, 7, 32, 8, 1},
     {12, 8, 32, 8, 1},
     {16, 12, 32, 4, 1},
     {24, 16, 16, 4, 1}},
};
static_assert(kLayouts[0][10].columns() == kMostFp8Columns && kLayouts[1][10].columns() == kMostFp8Columns);

// what is launched; kernels without dropout are not given it
template <typename T>
struct Dropping : LayerNormForwardFp8<T> {
    Dropout dropout;
};
template <bool drops, typename T>
using CallOf = std::conditional_t<drops, Dropping<T>, LayerNormForwardFp8<T>>;

template <int index, bool residual, bool drops, typename T>
struct Warp {
    static constexpr Layout layout = kLayouts[residual][index];
    const CallOf<drops, T>& call;
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    T* place;           // of this warp's row, and behind it of the second input's
    uint64_t* arrived;  // the row is in its place
    Vec<T> x[layout.vectors];

    __device__ bool has(int k) const { return k < layout.unguarded || (k * kWarp + lane) * kVector < call.C; }
    __device__ int column(int k) const { return (k * kWarp + lane) * kVector; }

    // one lane; a row beyond the last is not asked for, nor waited for
    __device__ void ask(int row) const {
        if (row >= call.N) { return; }
        const uint32_t bytes = call.C * sizeof(T);
        mbarrier_arrive_expect(arrived, bytes * (residual ? 2 : 1));
        bulk_copy(place, call.inp + (int64_t)row * call.C, bytes, arrived);
        if (residual) { bulk_copy(place + call.C, call.inp2 + (int64_t)row * call.C, bytes, arrived); }
    }
    __device__ float load_row(int row) {
        float sum = 0;
#pragma unroll
        for (int k = 0; k < layout.vectors; k++) {
            x[k] = {};
            if (!has(k)) { continue; }
            x[k] = load<kVector>(place + column(k));
            if constexpr (residual) {
                auto x2 = load<kVector>(place + call.C + column(k));
                float both[kVector];
                if constexpr (drops) {
                    const auto factors =
                        DropoutRow(call.dropout, row, call.C).template factors<kVector>(column(k));
                    unrolled<kVector>(
                        [&](int j) { both[j] = fmaf(as_float(x2, j), factors[j], as_float(x[k], j)); });
                } else {
                    unrolled<kVector>([&](int j) { both[j] = as_float(x[k], j) + as_float(x2, j); });
                }
                x[k] = rounded<T>(both);
                store(call.residual + (int64_t)row * call.C + column(k), x[k]);
            }
            unrolled<kVector>([&](int j) { sum += as_float(x[k], j); });
        }
        return sum;
    }
    __device__ float squares(float mean) const {
        float sum = 0;
#pragma unroll
        for (int k = 0; k < layout.vectors; k++) {
            if (!has(k)) { continue; }
            unrolled<kVector>([&](int j) {
                float d = as_float(x[k], j) - mean;
                sum += d * d;
            });
        }
        return sum;
    }
    // writes the row and its bytes in the tile; the largest |y|, or `largest`
    __device__ float write_row(const Fp8Tile<layout.tile_rows>& tile, int row, float mean, float rstd,
                               float scale, float largest) const {
#pragma unroll
        for (int k = 0; k < layout.vectors; k++) {
            if (!has(k)) { continue; }
            auto weight = load_constant<kVector>(call.weight + column(k));
            auto bias = load_constant<kVector>(call.bias + column(k));
            float y[kVector];
            unrolled<kVector>([&](int j) {
                y[j] = fmaf((as_float(x[k], j) - mean) * rstd, as_float(weight, j), as_float(bias, j));
                largest = fmaxf(largest, fabsf(y[j]));
            });
            const uint2 bytes = fp8_bytes<Fp8::kE4m3>(y, scale);
            *reinterpret_cast<uint2*>(call.out + (int64_t)row * call.C + column(k)) = bytes;
            if (call.transposed != nullptr) { tile.store(row % layout.tile_rows, column(k) / 8, bytes); }
        }
        return largest;
    }
};

template <int index, bool residual, bool drops, typename T>
__global__ void __launch_bounds__(kLayouts[residual][index].threads(),
                                  kLayouts[residual][index].blocks_per_sm)
    layernorm_forward_fp8_kernel(CallOf<drops, T> call, float per_column) {
    if constexpr (kSm90) {
        constexpr Layout layout = kLayouts[residual][index];
        constexpr int rows = layout.tile_rows, passes = rows / layout.warps;
        static_assert(rows % layout.warps == 0);
        extern __shared__ __align__(128) uint32_t shared[];
        __shared__ uint64_t arrived[layout.warps];
        const Fp8Tile<rows> tile{shared, Fp8Tile<rows>::pitch_of(call.C)};
        T* places = reinterpret_cast<T*>(shared + rows * tile.pitch);
        Warp<index, residual, drops, T> my{call};
        my.place = places + my.warp * call.C * (residual ? 2 : 1);
        my.arrived = &arrived[my.warp];
        // 32 bits, which launch() sees to: with 64 all of this takes up to 4 % longer
        auto tile_of = [&](int pass) { return (int)blockIdx.x + pass / passes * (int)gridDim.x; };
        auto row_of = [&](int pass) { return tile_of(pass) * rows + pass % passes * layout.warps + my.warp; };
        if (my.lane == 0) {
            mbarrier_init(my.arrived, 1);
            mbarrier_init_fence();
        }
        wait_for_earlier();
        if (my.lane == 0) { my.ask(row_of(0)); }
        __syncwarp();
        const float scale = *call.scale;
        float largest = 0;
        const int tiles = (int)ceil_div(call.N, (int64_t)rows);
        for (int pass = 0; tile_of(pass) < tiles; pass++) {
            const int row = row_of(pass);
            if (row < call.N) {
                mbarrier_wait(my.arrived, pass % 2);
                float sum = my.load_row(row);
                fence_proxy_async();
                __syncwarp();
                if (my.lane == 0) { my.ask(row_of(pass + 1)); }
                const float mean = warp_sum(sum) * per_column;
                const float rstd = rsqrtf(warp_sum(my.squares(mean)) * per_column + call.eps);
                if (my.lane == 0 && call.mean != nullptr) { call.mean[row] = mean; }
                if (my.lane == 0 && call.rstd != nullptr) { call.rstd[row] = rstd; }
                largest = my.write_row(tile, row, mean, rstd, scale, largest);
            }
            if (pass % passes == passes - 1 && call.transposed != nullptr) {
                const int first = row - row % rows;
                __syncthreads();
                tile.store_transposed(call.transposed + first, call.N,
                                      (int)min((int64_t)rows, call.N - first), call.C);
                __syncthreads();
            }
        }
        if (call.amax != nullptr) { raise_amax(call.amax, largest); }
    }
}

template <int index, bool residual, bool drops, typename T>
void launch(const Dropping<T>& call, cudaStream_t stream) {
    constexpr auto* kernel = layernorm_forward_fp8_kernel<index, residual, drops, T>;
    constexpr Layout layout = kLayouts[residual][index];
    require(runs_hopper_code(kernel),
            "layernorm_forward_fp8: FP8 tensor cores, and this kernel, need Hopper or later");
    allow_shared_bytes<kernel>(layout.shared_bytes(layout.columns(), residual));
    const int64_t tiles = ceil_div(call.N, (int64_t)layout.tile_rows);
    const int blocks = device_facts().multiprocessors * layout.blocks_per_sm;
    launch_overlapping(kernel, grid_x(std::min<int64_t>(tiles, blocks)), layout.threads(),
                       layout.shared_bytes(call.C, residual), stream, call, 1.0f / call.C);
}

// by the first layout whose rows are long enough
template <bool residual, bool drops, int index = 0, typename T>
void launch_layout(const Dropping<T>& call, cudaStream_t stream) {
    constexpr int last = drops ? 9 : 10;
    static_assert(kLayouts[1][9].columns() == kMostFp8Dropped);
    if constexpr (index < last) {
        if (call.C > kLayouts[residual][index].columns()) {
            return launch_layout<residual, drops, index + 1>(call, stream);
        }
    }
    launch<index, residual, drops>(call, stream);
}

}  // namespace

template <typename T>
void layernorm_forward_fp8(const LayerNormForwardFp8<T>& given, cudaStream_t stream, const Dropout& dropout) {
    const Dropping<T> call{given, dropout};
    require(call.N >= 0 && call.N <= 1 << 30 && call.N % 16 == 0 && call.C > 0 && call.C % 16 == 0 &&
                call.C <= kMostFp8Columns,
            "layernorm_forward_fp8: N and C must be multiples of 16, N at most 2^30, C 6144");
    require(aligned(call.out, call.transposed, call.inp, call.inp2, call.residual, call.weight, call.bias),
            "layernorm_forward_fp8: arrays must be aligned to 16 bytes");
    require((call.residual != nullptr) == (call.inp2 != nullptr),
            "layernorm_forward_fp8: residual and inp2 go together");
    require(dropout.rows == nullptr || (call.residual != nullptr && call.C <= kMostFp8Dropped),
            "layernorm_forward_fp8: dropout is of inp2 with at most 4096 columns");
    if (call.N == 0) { return; }
    if (call.residual == nullptr) { return launch_layout<false, false>(call, stream); }
    dropout.rows != nullptr ? launch_layout<true, true>(call, stream)
                            : launch_layout<true, false>(call, stream);
}

template void layernorm_forward_fp8(const LayerNormForwardFp8<__nv_bfloat16>&, cudaStream_t, const Dropout&);

}  // namespace llmc

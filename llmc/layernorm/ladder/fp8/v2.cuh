// v2: the second kernel transposes through shared memory.
// Why:    v1 wrote a sector of 32 bytes for each byte of a column; here 64 bytes of a column leave together.
// Moves:  5 bytes of an element, as TransformerEngine's two kernels.
// Result: doc/layernorm.md, FP8
#pragma once
#include "llmc/layernorm/ladder/fp8/v1.cuh"

namespace llmc::v2 {

constexpr int kRows = 64, kColumns = 128, kBlock = 256;  // of a tile; threads

static __global__ void __launch_bounds__(kBlock)
    transpose_kernel(uint8_t* transposed, const uint8_t* out, int64_t N, int C) {
    __shared__ alignas(16) uint32_t shared[kRows * kColumns / 4];
    const Fp8Tile<kRows> tile{shared, kColumns / 4};
    const int across = ceil_div(C, kColumns), first_column = (int)(blockIdx.x % across) * kColumns;
    const int64_t first_row = (int64_t)(blockIdx.x / across) * kRows;
    const int count = (int)min((int64_t)kRows, N - first_row), columns = min(kColumns, C - first_column);
    const int eighth = threadIdx.x % 16;
    for (int row = threadIdx.x / 16; row < count; row += kBlock / 16) {
        const uint8_t* from = out + (first_row + row) * C + first_column + eighth * 8;
        if (eighth * 8 < columns) { tile.store(row, eighth, *reinterpret_cast<const uint2*>(from)); }
    }
    __syncthreads();
    tile.store_transposed(transposed + first_column * N + first_row, N, count, columns);
}

// without a residual; all results are wanted
template <typename T>
void layernorm_forward_fp8(const LayerNormForwardFp8<T>& call, cudaStream_t stream) {
    v1::normalise(call, stream);
    const int64_t tiles = ceil_div(call.N, (int64_t)kRows) * ceil_div(call.C, kColumns);
    transpose_kernel<<<grid_x(tiles), kBlock, 0, stream>>>(call.transposed, call.out, call.N, call.C);
    check_launch();
}

}  // namespace llmc::v2

// A kernel of general.cu for long rows of whole vectors, on any GPU from Ampere on: a block walks over a row,
// for its moments, and back over it, writing it, in pieces that pass through a ring in shared memory. What
// the ring holds at the row's end is not read again, and while its first pieces are written the next row's
// take their places. Each thread brings its own vectors by cp.async: no barrier is needed for them, and the
// bytes under way are not limited by registers.
#pragma once
#include <algorithm>

#include "llmc/cuda/async_copy.cuh"
#include "llmc/cuda/check.cuh"
#include "llmc/cuda/device.cuh"
#include "llmc/cuda/device_facts.cuh"
#include "llmc/cuda/vectors.cuh"
#include "llmc/layernorm/forward/fallback_moments.cuh"
#include "llmc/layernorm/layernorm.h"

namespace llmc::layernorm_there_and_back {

using layernorm_general::Moments, layernorm_general::Normal;

constexpr int kVectors = 4;             // of a thread, in a piece
constexpr int kThreads = 512;           // of an SM, for 128 registers each
constexpr int kMostStages = 8;          // pieces in the ring
constexpr int kShortestRow = 64 << 10;  // bytes: shorter ones have more threads on an SM elsewhere

// What a thread does with its vectors of the block's rows. A piece is `span` columns of a row; a warp has
// kVectors * step of them side by side, since rows may not begin on a line of memory, and so its accesses share
// lines with one another, not with other warps'; the thread has vectors of n columns there, `step` apart.
// One slot of the ring is in use at a time; the next is on its left or on its right. At a row's end the walk
// turns round, and so does the way through the ring: the slots left last are the first to come again. With
// the next row it goes on. Whatever is asked for is used `stages` slots later, or after as many more as are
// still held.
template <int threads, typename T, typename W>
struct Walk {
    static constexpr int n = Vec<T>::size, step = kWarp * n, span = kVectors * threads * n;
    static_assert(span * (int)sizeof(T) <= kShortestRow, "a row has a whole piece");
    using Acc = acc_t<T>;
    using Vectors = Elements<T, n>[kVectors];
    // Weight and bias of so many vectors, those of vector i in place i % ahead. As whole words: halves of
    // words that wait would be kept in a register each.
    static constexpr int ahead = sizeof(W) > sizeof(T) ? kVectors / 2 : kVectors;
    using Words = Elements<uint32_t, n * sizeof(W) / 4>;
    struct Parameters {
        Words weight[ahead], bias[ahead];
    };

    const LayerNormForward<T, W>& call;
    T* ring;  // (stages,threads/kWarp,kVectors,kWarp,n)
    int stages;
    // its first column in a piece
    int first = (int)(threadIdx.x / kWarp * kVectors * kWarp + threadIdx.x % kWarp) * n;
    int pieces = (call.C - 1) / span + 1;  // of a row, at least as many as stages
    int whole = call.C / span;             // pieces with all columns
    int slot = 0, direction = 1;

    // this thread's first column in a piece; may be beyond the row
    __device__ unsigned column(int piece) const { return (unsigned)(piece * span) + first; }
    // Columns of the row from this thread's first one in a piece on; may be < 0. Vector i is there if
    // i * step is less.
    __device__ int left(int piece) const { return call.C - piece * span - first; }
    // elements of this thread's
    __device__ int count(int piece) const { return min(max(left(piece) + step - 1, 0) / step, kVectors) * n; }
    __device__ void next_slot() {
        slot += direction;
        slot = slot == stages ? 0 : slot < 0 ? stages - 1 : slot;
    }
    // this thread's vector i in the slot in use
    __device__ T* place(int i) const { return ring + slot * span + first + i * step; }
    // Asks for a piece of a row (null: there is none) into the slot in use. back: on the way back.
    __device__ void fetch(const T* row, int piece, bool back) {
        if (row != nullptr) {
            // The last `stages` pieces are still in the ring when their turn comes again. One and a half
            // times as many before them L2 may hold for all blocks; of more it would hold none. Where none
            // is asked for again there is nothing to make room for.
            bool again = !back && piece < pieces - stages && piece >= pieces - stages * 5 / 2;
            uint64_t policy = again || pieces == stages ? l2_as_usual() : l2_forget_first();
            const T* from = row + column(piece);
            int columns = left(piece);
#pragma unroll
            for (int i = 0; i < kVectors; i++) {
                if (i * step < columns) { copy16_async(place(i), from + i * step, policy); }
            }
        }
        copy_commit();  // an empty group keeps the count
    }
    // the piece in the slot in use, once it has come
    __device__ void take(Vectors& x) const {
        copy_wait<kMostStages - 1>(stages - 1);
#pragma unroll
        for (int i = 0; i < kVectors; i++) { x[i] = load<n>(place(i)); }
    }

    // the first pieces of the first row
    __device__ void start(const T* row) {
        for (int piece = 0; piece < stages; piece++, next_slot()) { fetch(row, piece, false); }
    }
    // this thread's part's
    __device__ Moments<Acc> there(const T* row, Acc shift) {
        Moments<Acc> sum;
        for (int piece = 0; piece < pieces; piece++, next_slot()) {
            Vectors x;
            take(x);
            sum = merge(sum, piece < whole ? layernorm_general::moments_of<true>(x, kVectors * n, shift)
                                           : layernorm_general::moments_of(x, count(piece), shift));
            int later = piece + stages;
            fetch(later < pieces ? row : nullptr, later, false);
        }
        direction = -direction;
        next_slot();  // the last one used
        return sum;
    }

    static __device__ Words all(W value) {
        Elements<W, n> x;
#pragma unroll
        for (int j = 0; j < n; j++) { x.at[j] = value; }
        return reinterpret_cast<const Words&>(x);
    }
    // what stays if weight or bias is null
    static __device__ void clear(Parameters& parameters) {
#pragma unroll
        for (int i = 0; i < ahead; i++) {
            parameters.weight[i] = all((W)1.0f);
            parameters.bias[i] = all((W)0.0f);
        }
    }
    // asks for weight and bias, if there are any, of vector i of a piece
    __device__ void ask(Parameters& parameters, int piece, int i) const {
        constexpr int words = sizeof(Words) / 4;
        auto load = [&](const W* from) {
            auto at = reinterpret_cast<const uint32_t*>(from + column(piece));
            return load_constant<words>(at + i * kWarp * words);
        };
        if (call.weight != nullptr) { parameters.weight[i % ahead] = load(call.weight); }
        if (call.bias != nullptr) { parameters.bias[i % ahead] = load(call.bias); }
    }
    __device__ void ask_last(Parameters& parameters) const {
        clear(parameters);
#pragma unroll
        for (int i = 0; i < ahead; i++) {
            if (i * step < left(pieces - 1)) { ask(parameters, pieces - 1, i); }
        }
    }
    // Writes the piece in the slot in use. parameters: of its first vectors; in the end, of those of the
    // piece before it, which is whole. kWhole: so is this.
    template <bool kWhole>
    __device__ void write(T* out, int piece, const Normal<Acc>& normal, Parameters& parameters) const {
        Vectors x;
        take(x);
        T* to = out + column(piece);
        int before = max(piece - 1, 0);  // the first has its own again: no branch among loads
#pragma unroll
        for (int i = 0; i < kVectors; i++) {
            if (kWhole || i * step < left(piece)) {
                auto weight = reinterpret_cast<const Elements<W, n>&>(parameters.weight[i % ahead]);
                auto bias = reinterpret_cast<const Elements<W, n>&>(parameters.bias[i % ahead]);
                store_streaming(to + i * step, layernorm_general::normalised(x[i], weight, bias, normal));
            }
            if (int next = i + ahead; next >= kVectors) {
                ask(parameters, before, next - kVectors);
            } else if (kWhole || next * step < left(piece)) {
                ask(parameters, piece, next);
            }
        }
    }
    // Writes the row. parameters: of its last piece's first vectors. next_row: what is fetched meanwhile.
    __device__ void back(T* out, const T* row, const T* next_row, const Normal<Acc>& normal,
                         Parameters& parameters) {
        for (int piece = pieces - 1; piece >= 0; piece--, next_slot()) {
            piece < whole ? write<true>(out, piece, normal, parameters)
                          : write<false>(out, piece, normal, parameters);
            if (piece >= stages) {
                fetch(row, piece - stages, true);
            } else {
                fetch(next_row, stages - 1 - piece, false);
            }
        }
    }
};

template <int threads, typename T, typename W>
__global__ __launch_bounds__(threads, kThreads / threads) void layernorm_forward_there_and_back_kernel(
    LayerNormForward<T, W> call, int stages) {
    using Acc = acc_t<T>;
    extern __shared__ __align__(16) unsigned char memory[];
    using Its = Walk<threads, T, W>;
    Its walk{call, reinterpret_cast<T*>(memory), stages};
    auto inp = [&](int64_t row) { return row < call.N ? call.inp + row * call.inp_stride : nullptr; };
    int64_t row = blockIdx.x;
    walk.start(inp(row));
    auto shift = load<1>(inp(row));
    for (; row < call.N; row += gridDim.x) {
        Moments<Acc> mine = walk.there(inp(row), as_acc<Acc>(shift, 0));
        typename Its::Parameters parameters;
        walk.ask_last(parameters);
        Normal<Acc> normal =
            layernorm_general::normal_of_block(mine, as_acc<Acc>(shift, 0), call.C, call.eps);
        if (threadIdx.x == 0) { store_statistics(call, row, normal); }
        const T* next = inp(row + gridDim.x);
        if (next != nullptr) { shift = load<1>(next); }
        walk.back(call.out + row * call.out_stride, inp(row), next, normal, parameters);
    }
}

// of the ring of a block of so many threads, kThreads of which are on an SM; below 1: none fits
template <int threads>
int stages_of(int pieces) {
    constexpr int blocks = kThreads / threads, piece_bytes = threads * kVectors * 16;
    constexpr int reserved = 1024, other = 512;  // bytes of each block: the system's; block_sum's, at most
    int bytes = (device_facts().shared_bytes + reserved) / blocks - reserved - other;
    return std::min({bytes / piece_bytes, kMostStages, pieces});
}

template <int threads, typename T, typename W>
void launch(const LayerNormForward<T, W>& call, int stages, cudaStream_t stream) {
    constexpr auto* kernel = layernorm_forward_there_and_back_kernel<threads, T, W>;
    constexpr int piece_bytes = threads * kVectors * 16;
    static OncePerDevice prepared;
    prepared([](int) {
        check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   stages_of<threads>(kMostStages) * piece_bytes));
        check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                   cudaSharedmemCarveoutMaxShared));
    });
    int64_t at_once = device_facts().multiprocessors * (kThreads / threads);
    kernel<<<grid_x(std::min(call.N, at_once)), threads, stages * piece_bytes, stream>>>(call, stages);
    check_launch();
}

// Rows of whole vectors, without a residual; false if it does not take them. Of two blocks on an SM one reads
// while the other waits for its barriers; but what they have under way together must not push out of L2 what
// is read again: of a row at most as much as stays.
template <typename T, typename W>
bool launch_there_and_back(const LayerNormForward<T, W>& call, cudaStream_t stream) {
    if ((int64_t)call.C * (int)sizeof(T) <= kShortestRow) { return false; }
    constexpr int half = kThreads / 2;
    int pieces = (call.C - 1) / Walk<half, T, W>::span + 1;
    int stages = stages_of<half>(pieces);
    if (pieces <= 2 * stages) {
        launch<half>(call, stages, stream);
        return true;
    }
    stages = stages_of<kThreads>((call.C - 1) / Walk<kThreads, T, W>::span + 1);
    if (stages < 1) { return false; }
    launch<kThreads>(call, stages, stream);
    return true;
}

}  // namespace llmc::layernorm_there_and_back

// What a block of long.cu has in shared memory: of each warp a part of one row, as the copy engine brings it, what there
// is room for of the next, and the weights; of all of them the sums that blocks send one another.
#pragma once
#include "llmc/device.cuh"
#include "llmc/vectors.cuh"

namespace llmc::layernorm_long_backward {

constexpr int kBlocks = 16, kWarps = 16, kThreads = kWarps * kWarp;  // 128 registers a thread
constexpr int kLaneColumns = 32, kPart = kLaneColumns * kWarp;  // of a row: of a lane, of a warp; at most
constexpr int kSharedBytes = 227 << 10, kWarpBytes = 14 << 10;  // of a block, on Hopper; of a warp's stages

// How a lane's part of a row is cut: k vectors of n columns, kHeld of them for registers, then kChunks chunks of kChunk;
// and how many chunks the warp's bytes have room for, beside its weights: those of a row, and more on their way. What
// += adds to comes with inp and dout, or, in fp32, for which there is no room, from L2, kAhead chunks before it is wanted.
template <bool kAccumulate, typename T, typename W>
struct Cut {
    static constexpr bool kFloats = sizeof(T) == 4;
    static constexpr int n = Vec<T>::size, k = kLaneColumns / n;
    static constexpr int kHeld = kAccumulate ? 1 : 16 / n;
    static constexpr int kChunk = kAccumulate ? 1 : 2, kChunks = (k - kHeld) / kChunk;
    static constexpr int kAhead = kFloats ? 2 : 1;
    static constexpr bool kDinpComes = kAccumulate && !kFloats;
    static constexpr int kStreams = kDinpComes ? 3 : 2;         // inp, dout, dinp
    static constexpr int kVectorBytes = kStreams * kWarp * 16;  // of these, a vector a lane
    static constexpr int kLeft = kWarpBytes - kPart * (int)sizeof(W) - kHeld * kVectorBytes;
    static constexpr int kSlots = kLeft / (kChunk * kVectorBytes);
    static constexpr int kPieces = n * sizeof(W) / 16;  // of a vector of weights, of 16 bytes
    static_assert(kHeld + kChunks * kChunk == k && kSlots > kChunks);
    static_assert(kFloats || kAccumulate, "ring has such rows");
};

enum Stream { kInp, kDout, kDinp };

// kVectors vectors a lane of each stream, as the copy engine brings them
template <typename T, int kStreams, int kVectors>
struct Stage {
    static constexpr int n = Vec<T>::size, kColumns = kVectors * kWarp * n;
    T of[kStreams][kColumns];

    // the lane's vector v
    __device__ Elements<T, n> at(Stream stream, int v) const {
        return load<n>(of[stream] + (v * kWarp + (int)threadIdx.x % kWarp) * n);
    }
};

template <bool kAccumulate, typename T, typename W>
struct Shared {  // of a block
    using C = Cut<kAccumulate, T, W>;
    struct alignas(128) OfWarp {  // what a warp fills and empties by itself
        Stage<T, C::kStreams, C::kHeld> held;
        Stage<T, C::kStreams, C::kChunk> chunk[C::kSlots];
        uint4 weight[C::k][C::kPieces][kWarp];
        uint64_t held_full, chunk_full[C::kSlots];  // a stage has come
    } of_warp[kWarps];
    uint64_t summed[2];  // all blocks' sums of a row have come; by row parity, as they
    float2 of_blocks[2][kBlocks], of_warps[kWarps];
};

}  // namespace llmc::layernorm_long_backward

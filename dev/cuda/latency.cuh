// The measure of --latency: one block that copies what a version must read and write, in the best of 15 shapes,
// launched plainly or, on Hopper, so that launches overlap, whichever is faster.
// What a version takes longer is what its mathematics costs where there is too little to do for the memory's
// speed to matter.
#pragma once
#include "dev/cuda/roof.cuh"
#include "llmc/cuda/device_facts.cuh"

namespace llmc {

// the matrices of a set as streams: what is read and what is written
inline Streams streams_of(const Problem& p, const TensorSet& set) {
    Streams s{};
    int reads = 0, writes = 0;
    for (const auto& in : p.in) {
        if (in.extent == Extent::kMatrix) { s.in[reads++] = (const uint4*)set.data(in.name); }
    }
    for (const auto& out : p.out) {
        if (out.extent == Extent::kMatrix) { s.out[writes++] = (uint4*)set.data(out.name); }
    }
    require(reads == p.reads && writes == p.writes,
            "--latency: what is read and written are not the op's matrices");
    return s;
}

template <int R, int W>
Roof measure_one_block_of(const Stream& stream, const Problem& p, const std::vector<TensorSet>& sets) {
    int64_t vectors = (int64_t)(p.stream_bytes() / sizeof(uint4));
    Roof best{.bytes = p.useful_bytes(), .reads = R, .writes = W, .sets = (int)sets.size()};
    auto at = [&](int set) { return streams_of(p, sets[set]); };
    auto improve = [&]<bool kPdl>(std::bool_constant<kPdl>) {
        for (int threads : {64, 128, 256, 512, 1024}) {
            try_streams<R, W, 1, kPdl>(best, stream, at, vectors, 1, threads);
            try_streams<R, W, 2, kPdl>(best, stream, at, vectors, 1, threads);
            try_streams<R, W, 4, kPdl>(best, stream, at, vectors, 1, threads);
        }
    };
    improve(std::false_type{});
    if (device_facts().capability >= 90) { improve(std::true_type{}); }
    return best;
}

// over the same sets as the versions, whose outputs it overwrites
inline Roof measure_one_block(const Stream& stream, const Problem& p, const std::vector<TensorSet>& sets) {
    if (p.reads == 1) { return measure_one_block_of<1, 1>(stream, p, sets); }
    return p.writes == 2 ? measure_one_block_of<2, 2>(stream, p, sets)
                         : measure_one_block_of<2, 1>(stream, p, sets);
}

}  // namespace llmc

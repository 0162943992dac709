// The roof: how fast a kernel that computes nothing moves the same bytes. It reads R streams and writes W, 16
// bytes at a time, in the same process, over the same ring of buffers, under the same clock as the versions;
// the best of 45 shapes of launch counts. 1R1W bounds LayerNorm forward, 2R1W backward, 3R1W backward that adds into
// dinp, 2R2W fused residual. A version whose launches overlap (programmatic dependent launch, pdl) is held against a
// roof whose launches do.
#pragma once
#include <cmath>
#include <string>

#include "dev/cuda/clock.cuh"
#include "dev/cuda/memory.cuh"
#include "llmc/cuda/device_facts.cuh"
#include "llmc/cuda/measuring.cuh"

namespace llmc {

struct KnownRoof {
    double stream_bytes;
    double us_1r1w, us_2r1w, us_3r1w, us_2r2w;
};

// rows x columns x bytes of an element
inline constexpr KnownRoof kRoofsOfH200[] = {
    {4096.0 * 1024 * 2, 5.47, 7.51, 9.45, 9.82},         {4096.0 * 2048 * 2, 9.80, 13.43, 16.93, 17.93},
    {4096.0 * 4096 * 2, 17.41, 24.70, 31.96, 33.64},     {4096.0 * 8192 * 2, 33.09, 47.42, 61.88, 65.02},
    {4096.0 * 15872 * 2, 62.09, 89.94, 118.12, 123.75},  {8192.0 * 768 * 2, 7.66, 10.59, 13.17, 13.86},
    {65536.0 * 768 * 2, 48.70, 70.30, 91.76, 96.28},     {65536.0 * 1024 * 2, 64.22, 92.93, 121.83, 128.10},
    {65536.0 * 1280 * 2, 79.98, 115.51, 151.79, 159.51}, {65536.0 * 1600 * 2, 99.23, 143.99, 189.27, 199.31},
};
constexpr double kRoofTolerance = 1.02;

// NaN where none is known
inline double known_roof_us(const std::string& gpu, double stream_bytes, int reads, int writes) {
    if (gpu.find("H200") == std::string::npos) { return NAN; }
    for (const KnownRoof& roof : kRoofsOfH200) {
        if (roof.stream_bytes != stream_bytes) { continue; }
        if (writes == 2) { return reads == 2 ? roof.us_2r2w : NAN; }
        if (writes > 2) { return NAN; }
        return reads == 1 ? roof.us_1r1w : reads == 2 ? roof.us_2r1w : reads == 3 ? roof.us_3r1w : NAN;
    }
    return NAN;
}

struct Roof {
    Times us;
    double bytes = 0;  // of all streams
    int reads = 0, writes = 0, threads = 0, unroll = 0, sets = 0;
    unsigned blocks = 0;
    bool pdl = false;
    double known_us = NAN;  // the fastest seen on such a GPU
    // where the roof is the longest of several times, each of which none can be faster than
    std::vector<std::pair<const char*, double>> parts{};

    // false: something else uses the GPU or slows it down, and the run does not count
    bool counts() const { return !(us.median > kRoofTolerance * known_us); }
    std::string mix() const {
        if (parts.empty()) {
            return fmt::format("{}R{}{}", reads, writes > 0 ? fmt::format("{}W", writes) : "",
                               pdl ? " pdl" : "");
        }
        auto less = [](const auto& a, const auto& b) { return a.second < b.second; };
        return std::max_element(parts.begin(), parts.end(), less)->first;
    }
    double gb_per_s() const { return bytes / us.median / 1e3; }
    JsonObject& write(JsonObject& o) const {
        for (const auto& [name, part_us] : parts) {
            o.raw(fmt::format("{} us", name).c_str(), json_number(part_us));
        }
        o.set({{"reads", reads}, {"writes", writes}, {"bytes", bytes}, {"us", us.median}});
        o.set({{"p20_us", us.p20}, {"p80_us", us.p80}, {"gb_per_s", gb_per_s()}, {"sets", sets}});
        return o.set({{"threads", threads}, {"blocks", blocks}, {"unroll", unroll}}).set("pdl", pdl);
    }
    std::string str() const {
        if (!parts.empty()) {
            std::string text;
            for (const auto& [name, part_us] : parts) {
                text += fmt::format("{}{} {:.2f}", text.empty() ? "" : ", ", name, part_us);
            }
            return fmt::format("roof {:.2f} us, the longest of: {}", us.median, text);
        }
        return fmt::format("roof {} {:.2f} us, {:.0f} GB/s ({} blocks of {} threads, {} vectors each)", mix(),
                           us.median, gb_per_s(), blocks, threads, unroll);
    }
};

// sets of streams of `vectors` 16-byte vectors each
class StreamRing {
public:
    StreamRing(int reads, int writes, int64_t vectors)
        : reads_(reads),
          writes_(writes),
          vectors_(vectors),
          sets_(rotation_sets((double)(reads + writes) * vectors * sizeof(uint4))),
          memory_((size_t)sets_ * (reads + writes) * vectors * sizeof(uint4)) {
        fill(memory_.data(), (int64_t)(memory_.bytes().size() / sizeof(uint32_t)), kStream);
        wait();
    }
    int sets() const { return sets_; }
    Streams at(int set) const {
        uint4* p = (uint4*)memory_.data() + (int64_t)set * (reads_ + writes_) * vectors_;
        Streams s{};
        for (int r = 0; r < reads_; r++) { s.in[r] = p + r * vectors_; }
        for (int w = 0; w < writes_; w++) { s.out[w] = p + (reads_ + w) * vectors_; }
        return s;
    }

private:
    int reads_, writes_;
    int64_t vectors_;
    int sets_;
    DeviceMemory memory_;
};

// the faster of `best` and this launch over a ring of streams, at(set)
template <typename At>
void try_streams(Roof& best, const StreamLaunch& launch, const At& at, int64_t vectors) {
    Replay replay(best.sets, [&](int set) { move_streams(launch, at(set), vectors, kStream); });
    auto better = [&](const Times& us) { return !(us.median >= best.us.median); };  // than NaN too
    if (!better(replay.time(1, kSweepReplays))) { return; }
    if (Times us = replay.time(0, kReplays); better(us)) {
        best.us = us;
        best.threads = launch.threads;
        best.blocks = launch.blocks;
        best.unroll = launch.unroll;
    }
}

// The least time in which `reads` reads and `writes` writes of stream_bytes each were seen to happen, in 45 shapes: 3 ways to
// unroll x 3 block sizes x (one pass; 1, 2, 4, 8 blocks per SM).
inline Roof measure_roof(int reads, int writes, bool pdl, double stream_bytes) {
    pdl = pdl && reads + writes <= 4;
    int64_t vectors = std::max<int64_t>(1, (int64_t)(stream_bytes / sizeof(uint4)));
    StreamRing ring(reads, writes, vectors);
    double bytes = (double)(reads + writes) * vectors * sizeof(uint4);
    Roof best{.bytes = bytes, .reads = reads, .writes = writes, .sets = ring.sets(), .pdl = pdl};
    for (int unroll : {1, 2, 4}) {
        if (stream_threads(reads, unroll) < 1024) { continue; }
        for (int threads : {256, 512, 1024}) {
            int64_t once = ceil_div(vectors, (int64_t)threads * unroll);
            for (int per_sm : {0, 1, 2, 4, 8}) {
                int64_t most = (int64_t)per_sm * device_facts().multiprocessors;
                unsigned blocks = grid_x(per_sm ? std::min(once, most) : once);
                try_streams(
                    best, {reads, writes, unroll, pdl, blocks, threads},
                    [&](int set) { return ring.at(set); }, vectors);
            }
        }
    }
    return best;
}

// The measure of --latency: one block that copies what a version must read and write, in the best of 15 shapes,
// launched plainly or, on Hopper, so that launches overlap, whichever is faster.
// What a version takes longer is what its mathematics costs where there is too little to do for the memory's
// speed to matter.

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

// over the same sets as the versions, whose outputs it overwrites
inline Roof measure_one_block(const Problem& p, const std::vector<TensorSet>& sets) {
    int64_t vectors = (int64_t)(p.stream_bytes() / sizeof(uint4));
    Roof best{.bytes = p.useful_bytes(), .reads = p.reads, .writes = p.writes, .sets = (int)sets.size()};
    auto at = [&](int set) { return streams_of(p, sets[set]); };
    for (bool pdl : {false, true}) {
        if (pdl && device_facts().capability < 90) { continue; }
        for (int threads : {64, 128, 256, 512, 1024}) {
            for (int unroll : {1, 2, 4}) {
                try_streams(best, {p.reads, p.writes, unroll, pdl, 1, threads}, at, vectors);
            }
        }
    }
    return best;
}

}  // namespace llmc

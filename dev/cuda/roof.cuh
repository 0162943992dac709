// The roof: how fast a kernel that computes nothing moves the same bytes. It reads R streams and writes W, 16
// bytes at a time, in the same process, over the same ring of buffers, under the same clock as the versions;
// the best of 45 shapes of launch counts. 1R bounds column sums, 1R1W the classifier and LayerNorm forward, 2R1W
// backward, 3R1W backward that adds into dinp, 2R2W fused residual. A version whose launches overlap (programmatic
// dependent launch, pdl) is held against a roof whose launches do.
#pragma once
#include "dev/cuda/clock.cuh"
#include "dev/cuda/known_roofs.h"
#include "dev/cuda/memory.cuh"
#include "llmc/cuda/device_facts.cuh"
#include "llmc/cuda/launch.cuh"
#include "llmc/cuda/measuring.cuh"

namespace llmc {

constexpr int kMaxReads = 3, kMaxWrites = 2;

struct Roof {
    Times us;
    double bytes = 0;  // of all streams
    int reads = 0, writes = 0, threads = 0, unroll = 0, sets = 0;
    unsigned blocks = 0;
    bool pdl = false;
    double known_us = NAN;  // the fastest seen on such a GPU: known_roofs.h
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

// sets of R + W streams of `vectors` 16-byte vectors each
template <int R, int W>
class StreamRing {
public:
    explicit StreamRing(int64_t vectors)
        : vectors_(vectors),
          sets_(rotation_sets((double)(R + W) * vectors * sizeof(uint4))),
          memory_((size_t)sets_ * (R + W) * vectors * sizeof(uint4)) {
        int64_t words = (int64_t)(memory_.size() / sizeof(uint32_t));
        fill_kernel<<<1024, 256>>>((uint32_t*)memory_.data(), words, 1u);
        check_launch();
        check(cudaDeviceSynchronize());
    }
    int sets() const { return sets_; }
    Streams at(int set) const {
        uint4* p = (uint4*)memory_.data() + (int64_t)set * (R + W) * vectors_;
        Streams s{};
        for (int r = 0; r < R; r++) { s.in[r] = p + r * vectors_; }
        s.out[0] = p;  // if W is 0
        for (int w = 0; w < W; w++) { s.out[w] = p + (R + w) * vectors_; }
        return s;
    }

private:
    int64_t vectors_;
    int sets_;
    DeviceMemory memory_;
};

template <int R, int W, int kUnroll, bool kPdl>
void launch_stream(unsigned blocks, int threads, const Stream& stream, const Streams& streams,
                   int64_t vectors) {
    const LaunchConfig config{blocks, threads, 0, stream, 1, kPdl};
    config.launch(stream_kernel<R, W, kUnroll, kPdl>, streams, vectors);
}

// the faster of `best` and this launch over a ring of streams, at(set)
template <int R, int W, int kUnroll, bool kPdl, typename At>
void try_streams(Roof& best, const Stream& stream, const At& at, int64_t vectors, unsigned blocks,
                 int threads) {
    Replay replay(stream, best.sets, [&](int set) {
        launch_stream<R, W, kUnroll, kPdl>(blocks, threads, stream, at(set), vectors);
    });
    auto better = [&](const Times& us) { return !(us.median >= best.us.median); };  // than NaN too
    if (!better(replay.time(1, kSweepReplays))) { return; }
    if (Times us = replay.time(0, kReplays); better(us)) {
        best.us = us;
        best.threads = threads;
        best.blocks = blocks;
        best.unroll = kUnroll;
    }
}

// the fastest of `best` and this kernel in 15 shapes: 3 block sizes x (one pass; 1, 2, 4, 8 blocks per SM)
template <int R, int W, int kUnroll, bool kPdl>
void improve_roof(Roof& best, const Stream& stream, const StreamRing<R, W>& ring, int64_t vectors, int sms) {
    static_assert(kStreamThreads<R, kUnroll> == 1024);
    for (int threads : {256, 512, 1024}) {
        int64_t once = ceil_div(vectors, (int64_t)threads * kUnroll);
        for (int per_sm : {0, 1, 2, 4, 8}) {
            unsigned blocks = grid_x(per_sm ? std::min<int64_t>(once, (int64_t)per_sm * sms) : once);
            auto at = [&](int set) { return ring.at(set); };
            try_streams<R, W, kUnroll, kPdl>(best, stream, at, vectors, blocks, threads);
        }
    }
}

template <int R, int W, bool kPdl>
Roof measure_mix(const Stream& stream, double stream_bytes) {
    int sms = 0;
    check(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
    int64_t vectors = std::max<int64_t>(1, (int64_t)(stream_bytes / sizeof(uint4)));
    StreamRing<R, W> ring(vectors);
    double bytes = (double)(R + W) * vectors * sizeof(uint4);
    Roof best{.bytes = bytes, .reads = R, .writes = W, .sets = ring.sets(), .pdl = kPdl};
    improve_roof<R, W, 1, kPdl>(best, stream, ring, vectors, sms);
    improve_roof<R, W, 2, kPdl>(best, stream, ring, vectors, sms);
    improve_roof<R, W, 4, kPdl>(best, stream, ring, vectors, sms);
    return best;
}

// the least time in which `reads` reads and `writes` writes of stream_bytes each were seen to happen
inline Roof measure_roof(const Stream& stream, int reads, int writes, bool pdl, double stream_bytes) {
    using Measure = Roof(const Stream&, double);
    static constexpr Measure* kMixes[kMaxReads][kMaxWrites][2] = {
        {{measure_mix<1, 1, false>, measure_mix<1, 1, true>},
         {measure_mix<1, 2, false>, measure_mix<1, 2, true>}},
        {{measure_mix<2, 1, false>, measure_mix<2, 1, true>},
         {measure_mix<2, 2, false>, measure_mix<2, 2, true>}},
        {{measure_mix<3, 1, false>, measure_mix<3, 1, true>},
         {measure_mix<3, 2, false>, measure_mix<3, 2, true>}},
    };
    if (reads == 1 && writes == 0 && !pdl) { return measure_mix<1, 0, false>(stream, stream_bytes); }
    require(reads >= 1 && reads <= kMaxReads && writes >= 1 && writes <= kMaxWrites,
            "measure_roof: 1 to 3 reads, 1 or 2 writes, or 1 read alone");
    return kMixes[reads - 1][writes - 1][pdl](stream, stream_bytes);
}

}  // namespace llmc

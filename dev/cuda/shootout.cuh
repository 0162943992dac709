// What a shootout says about itself: its op's versions, its problems, and what they are tried on.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "dev/cuda/memory.cuh"
#include "dev/cuda/options.h"

namespace llmc {

inline size_t no_scratch(int64_t, int) { return 0; }
inline bool takes_all(const Problem&) { return true; }

// what a rung says of itself beyond its name, where it is not as most are
struct Traits {
    std::vector<int> blocks = {32, 64, 128, 256, 512, 1024};  // its launch knob, as tried; {0}: it has none
    bool (*takes)(const Problem&) = takes_all;  // false: left out (a launcher may also refuse, by require())
    bool pdl = false;  // launched with programmatic dependent launch: so is the roof it is held against
    bool reproducible = true;  // false: its bits may change from launch to launch, as its idea says
    bool every_form = false;   // takes every CallForm (problem.h): the shipped function
};

// one step of the ladder, for one type of elements
struct Version {
    const char* name;  // v2
    const char* idea;
    std::function<void(const TensorSet&, const Problem&, int block, cudaStream_t)> launch;
    Sums (*sums)(int64_t N, int C, int block);         // how it adds: what its bounds are made of
    size_t (*scratch)(int64_t N, int C) = no_scratch;  // bytes
    Traits traits{};

    bool takes(const Problem& p) const { return (p.form.plain() || traits.every_form) && traits.takes(p); }
};

using FloatTensors = std::vector<std::vector<float>>;  // in the problem's order

// the loop on paper: on the host, in fp32
struct CpuVersion {
    const char* name;
    const char* idea;
    void (*run)(FloatTensors& out, const FloatTensors& in, const Problem&);
    Sums (*sums)(int64_t N, int C);
    Shape shape;  // on which it is timed
};

struct Shootout {
    const char* op;
    CpuVersion cpu;
    std::vector<Version> (*ladder)(Dtype);  // in teaching order; the last one is the function that trains
    Problem (*problem)(Dtype, Shape, Inputs, const CallForm&);
    std::vector<CheckItem> checks;
    std::vector<RaceItem> races, sweep, latency;
    bool accumulates = false;  // --accumulate means something
};

// the form of the command line
inline CallForm form_of(const ShootoutOptions& o) {
    return o.accumulate ? CallForm{.name = "dinp +=", .accumulate_dinp = true} : CallForm{};
}

inline std::vector<int> blocks_of(const Version& version, const ShootoutOptions& o) {
    bool has_knob = version.traits.blocks != std::vector<int>{0};
    return o.block && has_knob ? std::vector<int>{o.block} : version.traits.blocks;
}

}  // namespace llmc

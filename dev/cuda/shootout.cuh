// What a shootout says about itself: its op's versions, its problems, and what they are tried on.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "dev/cuda/clock.cuh"
#include "dev/cuda/memory.cuh"
#include "dev/cuda/options.h"

namespace llmc {

using Scratch = std::function<size_t(const Problem&)>;  // bytes
inline size_t no_scratch(const Problem&) { return 0; }
inline Scratch scratch_of(std::function<size_t(int64_t N, int C)> bytes) {
    return [bytes](const Problem& p) { return bytes(p.N, p.C); };
}
inline bool takes_all(const Problem&) { return true; }
inline bool never(const Problem&) { return false; }

// what a rung says of itself beyond its name, where it is not as most are
struct Traits {
    std::vector<int> blocks = {32, 64, 128, 256, 512, 1024};  // its launch knob, as tried; {0}: it has none
    bool (*takes)(const Problem&) = takes_all;  // false: left out (a launcher may also refuse, by require())
    bool (*overlaps)(const Problem&) = never;   // launched with programmatic dependent launch: so is its roof
    bool every_form = false;                    // takes every CallForm (problem.h): the shipped function
    bool when_named = false;  // only if the command line names it: what the shipped function chooses among

    bool takes_form(const CallForm& form) const { return form.plain() || every_form; }
};

// one step of the ladder, for one type of elements
struct Version {
    const char* name;  // v2
    const char* idea;
    std::function<void(const TensorSet&, const Problem&, int block)> launch;  // on kStream
    std::function<Sums(int64_t N, int C, int block)> sums;  // how it adds: what its bounds are made of
    Scratch scratch = no_scratch;
    Traits traits{};

    bool takes(const Problem& p) const { return traits.takes_form(p.form) && traits.takes(p); }
    bool wanted(const ShootoutOptions& o) const {
        return o.wants(name) && (!traits.when_named || !o.only.empty());
    }
};

using FloatTensors = std::vector<std::vector<float>>;  // in the problem's order

// the loop on paper: on the host, in fp32
struct CpuVersion {
    const char* name = "v0";
    const char* idea = "one CPU thread";
    void (*run)(FloatTensors& out, const FloatTensors& in, const Problem&);
    Sums (*sums)(int64_t N, int C);
    Shape shape;  // on which it is timed
};

struct Shootout {
    const char* op;
    CpuVersion cpu;
    // in teaching order; the last one is the function that trains
    std::vector<Version> (*ladder)(Dtype);
    Problem (*problem)(Dtype, Shape, Inputs, const CallForm&);
    std::vector<CheckItem> checks;
    std::vector<RaceItem> races, sweep{}, latency{};
    bool accumulates = false;                                      // --accumulate means something
    bool mixes = false;                                            // --out does
    bool drops = false;                                            // --dropout does
    bool sequences = false;                                        // shapes are sequences x heads x tokens
    std::function<std::string(const ShootoutOptions&)> explain{};  // --explain's text
    // times in us, beside that of the problem's streams, than which no version can be faster
    std::vector<std::pair<const char*, double>> (*floors)(const Problem&) = nullptr;
    std::string_view only{};  // the one rung that it is built of (only.h)
};

int shootout_main(const Shootout& s, int argc, const char* const* argv);  // returns the exit code

// the form of the command line
inline CallForm form_of(const ShootoutOptions& o) {
    static constexpr const char* kNames[2][4] = {
        {"", "dropout", "dinp +=", "dinp +=, dropout"},
        {"mixed", "mixed, copy", "mixed, dinp +=", "mixed, dinp +=, copy"}};
    return {.name = kNames[o.out.has_value()][2 * o.accumulate + (o.dropout || o.copy)],
            .accumulate_dinp = o.accumulate,
            .drops = o.dropout,
            .out = o.out,
            .copy = o.copy};
}

inline std::vector<int> blocks_of(const Version& version, const ShootoutOptions& o) {
    bool has_knob = version.traits.blocks != std::vector<int>{0};
    return o.block && has_knob ? std::vector<int>{o.block} : version.traits.blocks;
}

}  // namespace llmc

// What a shootout says about itself, and the check: every version, at every block size, on every problem:
// outputs poisoned, launched, each element held against its bound, guard bands looked at, and run again for
// the same bits.
#pragma once
#include <cstdio>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "dev/cuda/machine.cuh"
#include "dev/cuda/memory.cuh"
#include "dev/cuda/options.h"
#include "dev/cuda/report.h"
#include "dev/cuda/roof.cuh"

namespace llmc {

// ---- what a shootout says -----------------------------------------------------------------------

constexpr int kExitWrong = 1;  // a version is wrong

inline size_t no_scratch(int64_t, int) { return 0; }

// one step of the ladder, for one type of elements
struct Version {
    const char* name;  // v2
    const char* idea;
    std::function<void(const TensorSet&, const Problem&, int block, cudaStream_t)> launch;
    Sums (*sums)(int64_t N, int C, int block);                // how it adds: what its bounds are made of
    size_t (*scratch)(int64_t N, int C) = no_scratch;         // bytes
    std::vector<int> blocks = {32, 64, 128, 256, 512, 1024};  // its launch knob, as tried
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
    std::vector<Version> (*ladder)(Dtype);
    Problem (*problem)(Dtype, Shape, Inputs);
    Roof (*roof)(const Stream&, double stream_bytes);
    std::vector<CheckItem> checks;
    std::vector<RaceItem> races;
};

// ---- the check ----------------------------------------------------------------------------------

// what the judges found in one or more launches of a version
struct Findings {
    std::vector<std::string> faults;  // empty = right
    double worst = 0;                 // error / bound
    int64_t misrounded = 0, elements = 0;

    bool ok() const { return faults.empty(); }
    double misrounded_share() const { return elements > 0 ? (double)misrounded / (double)elements : 0; }
    void add(const Output& out, const Verdict& v) {
        if (!v.ok()) { faults.push_back(describe(out, v)); }
        worst = std::max(worst, v.worst);
        misrounded += v.misrounded;
        elements += v.elements;
    }
    void merge(const Findings& other) {
        faults.insert(faults.end(), other.faults.begin(), other.faults.end());
        worst = std::max(worst, other.worst);
        misrounded += other.misrounded;
        elements += other.elements;
    }
};

inline void print_verdict(const Problem& p, const char* version, int block, const Output& out,
                          const Verdict& v) {
    std::printf("    %s %s %s block %d: %s err/bound %.4f, %.2f %% not correctly rounded\n", version,
                p.shape().c_str(), p.inputs.c_str(), block, out.name, v.worst,
                v.elements ? 100.0 * v.misrounded / v.elements : 0.0);
}

// A fault that CUDA does not recover from, such as an illegal address: no launch after it would count.
[[noreturn]] inline void throw_device_lost(const Version& version, const Problem& p, int block,
                                           const Error& error) {
    throw Error(kExitWrong, strf("FAIL %s %s %s %s, block %d: %s: the device is lost", p.op.c_str(),
                                 version.name, p.shape().c_str(), p.inputs.c_str(), block, error.what()));
}

// poison, launch, compare everything, look at the guard bands
inline Findings judge_launch(const Version& version, const Problem& p, TensorSet& set, int block,
                             const Stream& stream, bool verbose) {
    Findings findings;
    set.poison();
    try {
        version.launch(set, p, block, stream);
        stream.wait();
    } catch (const Error& error) {
        if (cudaDeviceSynchronize() != cudaSuccess) { throw_device_lost(version, p, block, error); }
        findings.faults.push_back(strf("block %d: %s", block, error.what()));
        findings.worst = INFINITY;
        return findings;
    }
    Sums sums = version.sums(p.N, p.C, block);
    sums.strict = !p.ordinary();
    for (size_t i = 0; i < p.out.size(); i++) {
        Verdict v = judge_all(p.out[i], sums, set.outputs()[i].download());
        findings.add(p.out[i], v);
        if (verbose) { print_verdict(p, version.name, block, p.out[i], v); }
    }
    if (std::string damage = set.damage(); !damage.empty()) { findings.faults.push_back(damage); }
    for (auto& fault : findings.faults) { fault = strf("block %d: %s", block, fault.c_str()); }
    return findings;
}

inline std::vector<std::vector<std::byte>> download_outputs(const TensorSet& set) {
    std::vector<std::vector<std::byte>> raw;
    for (const auto& out : set.outputs()) { raw.push_back(out.download()); }
    return raw;
}

// "" or which output differed from the first launch, and when
inline std::string rerun(const Version& version, const Problem& p, TensorSet& set, int block, int runs,
                         const Stream& stream) {
    std::vector<std::vector<std::byte>> first;
    for (int run = 0; run < runs; run++) {
        set.poison();
        version.launch(set, p, block, stream);
        stream.wait();
        auto raw = download_outputs(set);
        if (run == 0) { first = raw; }
        for (size_t i = 0; i < raw.size(); i++) {
            if (raw[i] == first[i]) { continue; }
            return strf("block %d: %s: run %d of %d gave other bits than the first", block, p.out[i].name,
                        run + 1, runs);
        }
    }
    return "";
}

inline std::vector<int> blocks_of(const Version& version, const ShootoutOptions& o) {
    return o.block ? std::vector<int>{o.block} : version.blocks;
}

inline void print_faults(const Problem& p, const char* version, const std::vector<std::string>& faults) {
    constexpr size_t kShown = 4;
    for (size_t i = 0; i < std::min(faults.size(), kShown); i++) {
        std::printf("FAIL %s %s %s %s, %s\n", p.op.c_str(), version, p.shape().c_str(), p.inputs.c_str(),
                    faults[i].c_str());
    }
    if (faults.size() > kShown) {
        std::printf("     ... and %zu more faults of this kind\n", faults.size() - kShown);
    }
}

inline Findings check_version(const Version& version, const Problem& p, const CheckItem& item, TensorSet& set,
                              const Stream& stream, const ShootoutOptions& o) {
    Findings findings;
    set.set_scratch(version.scratch(p.N, p.C));
    for (int block : blocks_of(version, o)) {
        findings.merge(judge_launch(version, p, set, block, stream, o.verbose));
        if (item.reruns == 0 || !findings.ok()) { continue; }
        std::string fault = rerun(version, p, set, block, item.reruns, stream);
        if (!fault.empty()) { findings.faults.push_back(fault); }
    }
    return findings;
}

inline Findings check_cpu(const CpuVersion& version, const Problem& p, Times* us, int runs) {
    FloatTensors in, out;
    for (const auto& input : p.in) { in.emplace_back(input.values->begin(), input.values->end()); }
    for (const auto& output : p.out) { out.emplace_back(output.rows * output.cols, NAN); }
    Times times = host_times(runs, [&] { version.run(out, in, p); });
    if (us) { *us = times; }
    Findings findings;
    for (size_t i = 0; i < p.out.size(); i++) {
        auto raw = std::as_bytes(std::span(out[i]));
        findings.add(p.out[i], judge_all(p.out[i], version.sums(p.N, p.C), {raw.begin(), raw.end()}));
    }
    return findings;
}

// ---- --check ------------------------------------------------------------------------------------

struct Tally {
    int passed = 0, failed = 0, skipped = 0;
    void count(const Problem& p, const char* version, const Findings& findings) {
        std::printf(" %s %s", version, findings.ok() ? strf("%.3f", findings.worst).c_str() : "WRONG");
        (findings.ok() ? passed : failed)++;
        if (!findings.ok()) {
            std::printf("\n");
            print_faults(p, version, findings.faults);
        }
    }
};

// bounds no wider than atol
inline Problem tightened(Problem p, double atol) {
    for (auto& out : p.out) {
        out.bound = [atol, bound = out.bound](const Sums& sums, int64_t row, int64_t col) {
            return std::min(atol, bound(sums, row, col));
        };
    }
    return p;
}

inline void check_item(const Shootout& s, const CheckItem& item, const Stream& stream,
                       const ShootoutOptions& o, Tally& tally) {
    Problem p = s.problem(item.dtype, item.shape, item.inputs);
    if (std::isfinite(item.atol)) { p = tightened(p, item.atol); }
    std::printf("%s %s %s: err/bound", p.op.c_str(), p.shape().c_str(), p.inputs.c_str());
    constexpr double kCpuElements = 1e6;  // v0 is slow
    bool small = (double)p.N * p.C <= kCpuElements;
    bool cpu = small && item.dtype == Dtype::kFp32 && item.inputs == Inputs::kNormal;
    if (cpu && o.wants(s.cpu.name)) { tally.count(p, s.cpu.name, check_cpu(s.cpu, p, nullptr, 1)); }
    TensorSet set(p);
    for (const auto& version : s.ladder(item.dtype)) {
        if (!o.wants(version.name)) { continue; }
        tally.count(p, version.name, check_version(version, p, item, set, stream, o));
    }
    std::printf("\n");
    std::fflush(stdout);
}

// the shootout's list, or the shapes and types of the command line
inline std::vector<CheckItem> check_list(const Shootout& s, const ShootoutOptions& o) {
    std::vector<CheckItem> list;
    auto wanted = [&](Dtype dtype) {
        return o.dtypes.empty() || std::find(o.dtypes.begin(), o.dtypes.end(), dtype) != o.dtypes.end();
    };
    if (o.shapes.empty()) {
        for (const auto& item : s.checks) {
            if (wanted(item.dtype)) { list.push_back(item); }
        }
    }
    for (const auto& shape : o.shapes) {
        for (Dtype dtype : {Dtype::kFp32, Dtype::kBf16, Dtype::kFp16}) {
            if (wanted(dtype)) { list.push_back({.dtype = dtype, .shape = shape, .reruns = 50}); }
        }
    }
    return list;
}

inline void check_items(const Shootout& s, const ShootoutOptions& o, Tally& tally) {
    try {
        Stream stream;
        for (const auto& item : check_list(s, o)) { check_item(s, item, stream, o, tally); }
    } catch (const Error& error) {
        if (error.exit_code != kExitWrong) { throw; }
        std::printf("\n%s\n", error.what());
        tally.failed++;
    }
}

inline int run_checks(const Shootout& s, const ShootoutOptions& o) {
    Tally tally;
    if (!has_device()) {
        std::printf("%s: no CUDA device: nothing checked\n", s.op);
        tally.skipped = 1;
    } else {
        check_items(s, o, tally);
    }
    std::printf("%d passed, %d failed, %d skipped\n", tally.passed, tally.failed, tally.skipped);
    return tally.failed > 0 ? kExitWrong : kExitDone;
}

}  // namespace llmc

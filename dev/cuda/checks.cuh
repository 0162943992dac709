// The check: every version, at every block size, on every problem: outputs poisoned, launched, each element
// held against its bound, guard bands looked at, run again for the same bits, and again on a few of the rows.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <map>
#include <span>

#include "dev/cuda/shootout.cuh"
#include "dev/cuda/watchdog.h"

namespace llmc {

constexpr int kExitWrong = 1;  // a version is wrong

// what the judges found in one or more launches of a version
struct Findings {
    std::vector<std::string> faults;  // empty = right
    std::vector<int> blocks;          // at which it was launched
    std::string refusal;              // why at others it was not: the last reason, "" if there were none
    double worst = 0;                 // error / bound

    bool ok() const { return faults.empty(); }
    void add(const Output& out, const Verdict& v) {
        if (!v.ok()) { faults.push_back(describe(out, v)); }
        worst = std::max(worst, v.worst);
    }
    void judge(const Problem& p, const Sums& sums, const std::vector<std::vector<std::byte>>& raw) {
        for (size_t i = 0; i < p.out.size(); i++) {
            if (p.out[i].truth) { add(p.out[i], judge_all(p.out[i], sums, raw[i])); }
        }
        const std::string apart = p.agree ? p.agree(raw) : "";
        if (!apart.empty()) { faults.push_back(apart); }
    }
    void merge(const Findings& other) {
        faults.insert(faults.end(), other.faults.begin(), other.faults.end());
        blocks.insert(blocks.end(), other.blocks.begin(), other.blocks.end());
        if (!other.refusal.empty()) { refusal = other.refusal; }
        worst = std::max(worst, other.worst);
    }
};

// seconds of a launch, of which the longest takes a fraction of one; compute-sanitizer and dev/emulate take their time
inline double patience(const ShootoutOptions& o) {
    static const bool emulated = is_emulated();
    return emulated || o.for_sanitizer ? 3600 : 10;
}

inline std::string failure_of(const char* version, const Problem& p, const std::string& fault) {
    return fmt::format("FAIL {} {} {} {}, {}", p.op, version, p.shape(), p.inputs, fault);
}

inline std::vector<std::vector<std::byte>> download_outputs(const TensorSet& set) {
    std::vector<std::vector<std::byte>> raw;
    for (const auto& out : set.outputs()) { raw.push_back(out.download()); }
    return raw;
}

// Poison, launch, compare everything, look at the guard bands. A rung may refuse a shape or a block
// (require()); the shipped function may not.
inline Findings judge_launch(const Version& version, const Problem& p, TensorSet& set, int block,
                             const ShootoutOptions& o) {
    Findings findings;
    set.poison();
    try {
        // The launch itself may never return: to load a kernel CUDA may wait for the one before it.
        const double seconds = patience(o);
        Watchdog watchdog(
            seconds, [&] {  // of threads that never meet: the process's end alone frees the device
                const std::string fault = fmt::format("block {}: no end after {:.0f} s", block, seconds);
                std::printf("\n%s\n", failure_of(version.name, p, fault).c_str());
                std::fflush(stdout);
                std::_Exit(kExitWrong);
            });
        version.launch(set, p, block);
        wait();
    } catch (const Error& error) {
        const std::string fault = fmt::format("block {}: {}", block, error.what());
        if (cudaDeviceSynchronize() != cudaSuccess) {  // an illegal address: no launch after it would count
            throw Error(kExitWrong, failure_of(version.name, p, fault + ": the device is lost"));
        }
        if (error.exit_code == kExitUsage && !version.traits.every_form) {
            findings.refusal = error.what();
            return findings;
        }
        findings.faults.push_back(fault);
        findings.worst = INFINITY;
        return findings;
    }
    findings.blocks = {block};
    Sums sums = version.sums(p.N, p.C, block);
    sums.strict = !p.ordinary();
    findings.judge(p, sums, download_outputs(set));
    if (std::string damage = set.damage(); !damage.empty()) { findings.faults.push_back(damage); }
    for (auto& fault : findings.faults) { fault = fmt::format("block {}: {}", block, fault); }
    return findings;
}

// "" or which output differed from the first launch, and when
inline std::string rerun(const Version& version, const Problem& p, TensorSet& set, int block, int runs) {
    std::vector<std::vector<std::byte>> first;
    for (int run = 0; run < runs; run++) {
        set.poison();
        version.launch(set, p, block);
        wait();
        auto raw = download_outputs(set);
        if (run == 0) { first = raw; }
        for (size_t i = 0; i < raw.size(); i++) {
            if (raw[i] == first[i]) { continue; }
            return fmt::format("block {}: {}: run {} of {} gave other bits than the first", block,
                               p.out[i].name, run + 1, runs);
        }
    }
    return "";
}

// rows [first, first + n) of a problem, for a launch whose bits alone matter
inline Problem some_rows(const Problem& p, int64_t first, int64_t n) {
    auto cut = [&](const Values& values, Extent extent) {
        if (extent == Extent::kColumns || !values) { return values; }
        int64_t width = extent == Extent::kMatrix ? p.C : 1;
        auto begin = values->begin() + first * width;
        return std::make_shared<const std::vector<double>>(begin, begin + n * width);
    };
    Problem some = p;
    some.N = n;
    for (auto& in : some.in) { in.values = cut(in.values, in.extent); }
    for (auto& out : some.out) {
        if (out.extent != Extent::kColumns) { out.rows = n; }
        out.initial = cut(out.initial, out.extent);
    }
    return some;
}

// "" or which rows, launched by themselves, gave other bits than among all of them. set: as a launch left it
inline std::string rerun_batches(const Version& version, const Problem& p, const TensorSet& set, int block) {
    auto all = download_outputs(set);
    for (auto [first, n] : {std::pair<int64_t, int64_t>{0, 1}, {p.N / 2, 1}, {p.N - 1, 1}, {1, p.N - 2}}) {
        Problem some = some_rows(p, first, n);
        TensorSet part(some);
        part.set_scratch(version.scratch(some));
        part.poison();
        version.launch(part, some, block);
        wait();
        auto alone = download_outputs(part);
        for (size_t i = 0; i < p.out.size(); i++) {
            const Output& out = p.out[i];
            if (out.extent == Extent::kColumns) { continue; }
            size_t row_bytes = out.cols * format_of(out.dtype).bytes;
            if (std::equal(alone[i].begin(), alone[i].end(), all[i].begin() + first * row_bytes)) {
                continue;
            }
            return fmt::format(
                "block {}: {}: {} rows from row {} on gave other bits alone than in a batch of {}", block,
                out.name, n, first, p.N);
        }
    }
    return "";
}

inline void print_faults(const Problem& p, const char* version, const std::vector<std::string>& faults) {
    constexpr size_t kShown = 4;
    for (size_t i = 0; i < std::min(faults.size(), kShown); i++) {
        std::printf("%s\n", failure_of(version, p, faults[i]).c_str());
    }
    if (faults.size() > kShown) {
        std::printf("     ... and %zu more faults of this kind\n", faults.size() - kShown);
    }
}

inline Findings check_version(const Version& version, const Problem& p, const CheckItem& item, TensorSet& set,
                              const ShootoutOptions& o) {
    Findings findings;
    set.set_scratch(version.scratch(p));
    for (int block : blocks_of(version, o)) {
        Findings launched = judge_launch(version, p, set, block, o);
        findings.merge(launched);
        if (launched.blocks.empty()) { continue; }
        std::string fault;
        if (item.batches && findings.ok()) { fault = rerun_batches(version, p, set, block); }
        if (item.reruns > 0 && findings.ok()) { fault += rerun(version, p, set, block, item.reruns); }
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
    findings.blocks = {1};
    std::vector<std::vector<std::byte>> all;
    for (const auto& floats : out) {
        auto raw = std::as_bytes(std::span(floats));
        all.emplace_back(raw.begin(), raw.end());
    }
    findings.judge(p, version.sums(p.N, p.C), all);
    return findings;
}

// ---- --check ------------------------------------------------------------------------------------

struct Tally {
    int passed = 0, failed = 0, skipped = 0;
    std::map<std::string, int> launched, refused;  // problems, by version
    std::map<std::string, std::string> reasons;    // of the last refusal

    void count(const Problem& p, const char* version, const Findings& findings) {
        if (findings.ok() && findings.blocks.empty()) {
            std::printf(" %s -", version);
            refused[version]++;
            reasons[version] = p.shape() + ": " + findings.refusal;
            return;
        }
        launched[version]++;
        std::printf(" %s %s", version,
                    findings.ok() ? fmt::format("{:.3f}", findings.worst).c_str() : "WRONG");
        (findings.ok() ? passed : failed)++;
        if (!findings.ok()) {
            std::printf("\n");
            print_faults(p, version, findings.faults);
        }
    }
    void print_refusals() const {
        for (const auto& [version, count] : refused) {
            int others = launched.contains(version) ? launched.at(version) : 0;
            std::printf("%s refused %d problems of %d, the last: %s\n", version.c_str(), count,
                        count + others, reasons.at(version).c_str());
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

inline std::vector<Version> versions_for(const Shootout& s, const CheckItem& item, const ShootoutOptions& o) {
    std::vector<Version> versions;
    for (auto& version : s.ladder(item.dtype)) {
        bool in = version.traits.every_form || (version.traits.takes_form(item.form) && !item.shipped_only);
        if (in && version.wanted(o)) { versions.push_back(version); }
    }
    return versions;
}

inline void check_item(const Shootout& s, const CheckItem& item, const ShootoutOptions& o, Tally& tally) {
    auto versions = versions_for(s, item, o);
    constexpr double kCpuElements = 1e6;  // v0 is slow
    bool small = (double)item.shape.N * item.shape.C <= kCpuElements && !item.shipped_only;
    bool cpu = small && item.dtype == Dtype::kFp32 && item.inputs == Inputs::kNormal && item.form.plain() &&
               o.wants(s.cpu.name);
    if (versions.empty() && !cpu) { return; }
    Problem p = s.problem(item.dtype, item.shape, item.inputs, item.form);
    if (std::isfinite(item.atol)) { p = tightened(p, item.atol); }
    std::printf("%s %s %s: err/bound", p.op.c_str(), p.shape().c_str(), p.inputs.c_str());
    if (cpu) { tally.count(p, s.cpu.name, check_cpu(s.cpu, p, nullptr, 1)); }
    TensorSet set(p);
    for (const auto& version : versions) {
        if (!version.takes(p)) { continue; }
        tally.count(p, version.name, check_version(version, p, item, set, o));
    }
    std::printf("\n");
    std::fflush(stdout);
}

// the shootout's list, or the shapes and types of the command line
inline std::vector<CheckItem> check_list(const Shootout& s, const ShootoutOptions& o) {
    std::vector<CheckItem> list = o.shapes.empty() ? s.checks : std::vector<CheckItem>{};
    for (const auto& shape : o.shapes) {
        for (Dtype dtype : kDtypes) {
            list.push_back(
                {.dtype = dtype, .shape = shape, .reruns = o.for_sanitizer ? 2 : 50, .form = form_of(o)});
        }
    }
    std::erase_if(list, [&](const CheckItem& item) {
        return !o.dtypes.empty() && std::ranges::find(o.dtypes, item.dtype) == o.dtypes.end();
    });
    return list;
}

inline void check_items(const Shootout& s, const ShootoutOptions& o, Tally& tally) {
    try {
        for (const auto& item : check_list(s, o)) { check_item(s, item, o, tally); }
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
        Tensor::poisons = !o.for_sanitizer;
        check_items(s, o, tally);
        if (tally.passed + tally.failed == 0) {
            std::printf("%s: nothing was checked: no version took any of the problems\n", s.op);
            tally.failed = 1;
        }
    }
    tally.print_refusals();
    std::printf("%d passed, %d failed, %d skipped\n", tally.passed, tally.failed, tally.skipped);
    return tally.failed > 0 ? kExitWrong : kExitDone;
}

}  // namespace llmc

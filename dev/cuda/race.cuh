// The race: on one problem, the roof, then every version: judged, its block size chosen, timed, and run again
// for the same bits over all the buffers of the ring.
#pragma once
#include "dev/cuda/checks.cuh"

namespace llmc {

// ---- the same bits in every launch --------------------------------------------------------------

static __global__ void count_differences_kernel(unsigned long long* count, const std::byte* a,
                                                const std::byte* b, int64_t n) {
    int64_t threads = (int64_t)gridDim.x * blockDim.x;
    unsigned long long mine = 0;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += threads) {
        mine += a[i] != b[i];
    }
    if (mine > 0) { atomicAdd(count, mine); }
}

// counts, on the device, the bytes in which outputs differ
class Differences {
public:
    Differences() : count_(sizeof(unsigned long long)) { check(cudaMemset(count_.data(), 0, count_.size())); }
    void add(const TensorSet& a, const TensorSet& b, cudaStream_t stream) {
        for (size_t i = 0; i < a.outputs().size(); i++) {
            const Tensor &x = a.outputs()[i], &y = b.outputs()[i];
            count_differences_kernel<<<1024, 256, 0, stream>>>((unsigned long long*)count_.data(), x.data(),
                                                               y.data(), (int64_t)x.bytes());
            check_launch();
        }
    }
    unsigned long long total() const {
        unsigned long long total = 0;
        check(cudaMemcpy(&total, count_.data(), sizeof(total), cudaMemcpyDeviceToHost));
        return total;
    }

private:
    DeviceMemory count_;
};

// ---- one version --------------------------------------------------------------------------------

// the sets that launches go round, and one aside that holds the outputs of the first launch
struct Ring {
    std::vector<TensorSet> sets;
    TensorSet first;

    explicit Ring(const Problem& p) : first(p) {
        int n = rotation_sets((double)first.bytes());
        for (int i = 0; i < n; i++) { sets.push_back(TensorSet(first)); }
    }
    void set_scratch(size_t bytes) {
        first.set_scratch(bytes);
        for (auto& set : sets) { set.set_scratch(bytes); }
    }
    void poison() {
        for (auto& set : sets) { set.poison(); }
    }
};

struct Contest {
    const Shootout& shootout;
    const ShootoutOptions& options;
    const Problem& problem;
    const Stream& stream;
    Ring& ring;

    Replay replay(const Version& version, int block, int sets) const {
        return Replay(stream, sets,
                      [&, block](int set) { version.launch(ring.sets[set], problem, block, stream); });
    }
};

inline Findings judge_all_blocks(const Contest& c, const Version& version) {
    Findings findings;
    for (int block : blocks_of(version, c.options)) {
        findings.merge(judge_launch(version, c.problem, c.ring.first, block, c.stream, c.options.verbose));
    }
    return findings;
}

inline int fastest_block(const Contest& c, const Version& version) {
    std::vector<int> blocks = blocks_of(version, c.options);
    if (blocks.size() == 1) { return blocks.front(); }
    int best = 0;
    double best_us = INFINITY;
    for (int block : blocks) {
        double us = c.replay(version, block, (int)c.ring.sets.size()).time(1, kSweepReplays).median;
        if (us < best_us) {
            best_us = us;
            best = block;
        }
    }
    return best;
}

// launches that must all give the bits of the first one; each set's outputs are looked at after every replay
inline std::string bits_after(const Contest& c, const Version& version, int block, const Replay& replay) {
    constexpr int kLaunches = 50;
    c.ring.first.poison();
    version.launch(c.ring.first, c.problem, block, c.stream);
    Differences differences;
    int launches = 0;
    while (launches < kLaunches) {
        c.ring.poison();
        replay.once();
        for (const auto& set : c.ring.sets) { differences.add(c.ring.first, set, c.stream); }
        launches += (int)c.ring.sets.size();
        c.stream.wait();
    }
    unsigned long long bytes = differences.total();
    return bytes == 0 ? strf("yes (%d)", launches)
                      : strf("NO: %llu bytes differ in %d launches", bytes, launches);
}

inline Row race_version(const Contest& c, const Version& version, const Roof& roof) {
    const Problem& p = c.problem;
    Row row{.op = p.op, .version = version.name, .idea = version.idea, .dtype = format_of(p.dtype).name,
            .N = p.N, .C = p.C, .useful_bytes = p.useful_bytes(), .roof_us = roof.us.median};
    c.ring.set_scratch(version.scratch(p.N, p.C));
    Findings findings = judge_all_blocks(c, version);
    row.error_over_bound = findings.worst;
    row.misrounded = findings.misrounded_share();
    row.ok = findings.ok();
    if (!row.ok) {
        print_faults(p, version.name, findings.faults);
        row.note = "not timed";
        return row;
    }
    row.block = fastest_block(c, version);
    Replay replay = c.replay(version, row.block, (int)c.ring.sets.size());
    row.launches = replay.launches();
    row.us = replay.time(kWarmupReplays, kReplays);
    if (c.options.warm) {
        row.warm_us = c.replay(version, row.block, 1).time(kWarmupReplays, kReplays).median;
    }
    row.bit_exact = bits_after(c, version, row.block, replay);
    row.ok = row.bit_exact.starts_with("yes");
    return row;
}

// ---- all of them --------------------------------------------------------------------------------

inline void finish_row(const Row& row, const ShootoutOptions& o, Report& report) {
    std::printf("%s", table_line(row, o.warm).c_str());
    std::fflush(stdout);
    report.rows.push_back(json_row(row));
    report.wrong += !row.ok;
}

inline void race_item(const Shootout& s, const RaceItem& item, const Stream& stream, const ShootoutOptions& o,
                      Report& report) {
    Problem p = s.problem(item.dtype, item.shape, Inputs::kNormal);
    require(p.N > 0, "--shape: a race needs at least one row");
    Roof roof = s.roof(stream, p.stream_bytes());
    Ring ring(p);
    std::printf("\n%s %s: %.1f MB, %s, ring of %zu sets\n%s", p.op.c_str(), p.shape().c_str(),
                p.useful_bytes() / 1e6, roof.str().c_str(), ring.sets.size(), table_head(o.warm).c_str());
    JsonObject measured;
    measured.set("op", p.op).set("dtype", format_of(p.dtype).name).set({{"N", (double)p.N}, {"C", p.C}});
    report.roofs.push_back(roof.write(measured).set({{"version_sets", (double)ring.sets.size()}}).str());
    Contest contest{s, o, p, stream, ring};
    for (const auto& version : s.ladder(item.dtype)) {
        if (o.wants(version.name)) { finish_row(race_version(contest, version, roof), o, report); }
    }
}

// v0, on the host, at a shape small enough for it
inline void race_cpu(const Shootout& s, const ShootoutOptions& o, Report& report) {
    constexpr int kRuns = 5;
    Problem p = s.problem(Dtype::kFp32, s.cpu.shape, Inputs::kNormal);
    Row row{.op = p.op, .version = s.cpu.name, .idea = s.cpu.idea, .dtype = "fp32", .N = p.N, .C = p.C,
            .useful_bytes = p.useful_bytes(), .note = "host clock"};
    Findings findings = check_cpu(s.cpu, p, &row.us, kRuns);
    row.error_over_bound = findings.worst;
    row.misrounded = findings.misrounded_share();
    row.ok = findings.ok();
    std::printf("\n%s %s on the CPU: a smaller shape, the host's clock: do not compare with what follows\n%s",
                p.op.c_str(), p.shape().c_str(), table_head(o.warm).c_str());
    print_faults(p, s.cpu.name, findings.faults);
    finish_row(row, o, report);
}

// the shootout's list; --shape and --dtype each replace their half of it; nothing if only v0 was asked for
inline std::vector<RaceItem> race_list(const Shootout& s, const ShootoutOptions& o) {
    auto is_cpu = [&](const std::string& version) { return version == s.cpu.name; };
    if (!o.only.empty() && std::all_of(o.only.begin(), o.only.end(), is_cpu)) { return {}; }
    if (o.shapes.empty() && o.dtypes.empty()) { return s.races; }
    std::vector<Shape> shapes = o.shapes;
    for (const auto& item : s.races) {
        bool known = std::find(shapes.begin(), shapes.end(), item.shape) != shapes.end();
        if (o.shapes.empty() && !known) { shapes.push_back(item.shape); }
    }
    std::vector<RaceItem> list;
    for (Dtype dtype : o.dtypes.empty() ? std::vector<Dtype>{Dtype::kBf16} : o.dtypes) {
        for (const auto& shape : shapes) { list.push_back({dtype, shape}); }
    }
    return list;
}

inline int run_races(const Shootout& s, const ShootoutOptions& o) {
    if (!has_device()) { throw Error(kExitDevice, strf("%s: no CUDA device: nothing checked", s.op)); }
    Machine machine;
    Report report{.context = machine.json()};
    report.context.set("op", s.op).set({{"warmup_replays", kWarmupReplays}, {"replays", kReplays}});
    std::printf("%s\n", machine.str().c_str());
    if (o.wants(s.cpu.name)) { race_cpu(s, o, report); }
    if (!o.json.empty()) { report.save(o.json); }
    Stream stream;
    for (const auto& item : race_list(s, o)) {
        race_item(s, item, stream, o, report);
        if (!o.json.empty()) { report.save(o.json); }
    }
    if (!o.json.empty()) { std::printf("\nwritten: %s\n", o.json.c_str()); }
    return report.wrong > 0 ? kExitWrong : kExitDone;
}

}  // namespace llmc

// The race: on one problem, the roof, then every version: judged, its block size chosen, timed, and run again
// for the same bits over all the buffers of the ring.
#pragma once
#include "dev/cuda/checks.cuh"
#include "dev/cuda/roof.cuh"

namespace llmc {

// ---- the same bits in every launch --------------------------------------------------------------

// counts, on the device, the bytes in which outputs differ
class Differences {
public:
    Differences() : count_(sizeof(unsigned long long)) {
        check(cudaMemset(count_.data(), 0, sizeof(unsigned long long)));
    }
    void add(const TensorSet& a, const TensorSet& b) {
        for (size_t i = 0; i < a.outputs().size(); i++) {
            const Tensor &x = a.outputs()[i], &y = b.outputs()[i];
            count_differences((unsigned long long*)count_.data(), x.data(), y.data(), (int64_t)x.bytes(),
                              kStream);
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
        poison();  // what is added to is there from the start
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
    const ShootoutOptions& options;
    const Problem& problem;
    Ring& ring;

    Replay replay(const Version& version, int block) const {
        return Replay((int)ring.sets.size(),
                      [&, block](int set) { version.launch(ring.sets[set], problem, block); });
    }
};

inline int fastest_block(const Contest& c, const Version& version, const std::vector<int>& blocks) {
    if (blocks.size() == 1) { return blocks.front(); }
    std::map<double, int> by_time;
    for (int block : blocks) {
        Replay replay = c.replay(version, block);
        by_time.emplace(replay.time(1, kSweepReplays).median, block);
    }
    return by_time.begin()->second;
}

// Launches that must all give the bits of the first ones; each set's outputs are looked at after every
// replay, in which it had several launches, each of which may add to what the one before left.
inline std::string bits_after(const Contest& c, const Version& version, int block, const Replay& replay) {
    const int kLaunches = replay.affordable(50, 1);
    c.ring.first.poison();
    for (int i = 0; i < replay.rounds(); i++) { version.launch(c.ring.first, c.problem, block); }
    Differences differences;
    int launches = 0;
    while (launches < kLaunches) {
        c.ring.poison();
        replay.once();
        for (const auto& set : c.ring.sets) { differences.add(c.ring.first, set); }
        launches += (int)c.ring.sets.size();
        wait();
    }
    unsigned long long bytes = differences.total();
    return bytes == 0 ? fmt::format("yes ({})", launches)
                      : fmt::format("NO: {} bytes differ in {} launches", bytes, launches);
}

inline Row untimed(const Problem& p, const char* version, const char* idea) {
    return {.op = p.op,
            .version = version,
            .idea = idea,
            .dtype = format_of(p.dtype).name,
            .N = p.N,
            .C = p.C,
            .T = p.T,
            .useful_bytes = p.useful_bytes(),
            .flops = p.flops};
}

inline Row race_version(const Contest& c, const Version& version, const Roof& roof) {
    const Problem& p = c.problem;
    Row row = untimed(p, version.name, version.idea);
    row.roof_us = roof.us.median;
    row.roof_counts = roof.counts();
    row.roof = roof.mix();
    c.ring.set_scratch(version.scratch(p));
    Findings findings = check_version(version, p, {}, c.ring.first, c.options);
    if (!findings.blocks.empty()) { row.error_over_bound = findings.worst; }
    row.ok = findings.ok();
    if (!row.ok) {
        print_faults(p, version.name, findings.faults);
        row.note = "not timed";
        return row;
    }
    if (findings.blocks.empty()) {
        row.note = "refused: " + findings.refusal.substr(0, findings.refusal.find(" ("));
        return row;
    }
    row.block = fastest_block(c, version, findings.blocks);
    Replay replay = c.replay(version, row.block);
    row.launches = replay.launches();
    row.us = replay.time(kWarmupReplays, kReplays);
    row.bit_exact = bits_after(c, version, row.block, replay);
    row.ok = row.bit_exact.starts_with("yes");
    return row;
}

// ---- the roofs ----------------------------------------------------------------------------------

// of one problem: that of plain launches, and, where a version launches so, the one of overlapping launches
struct Roofs {
    Roof plain, pdl;
    const Roof& of(const Version& version, const Problem& p) const {
        return pdl.bytes > 0 && version.traits.overlaps(p) ? pdl : plain;
    }
};

// The longest of bytes and the op's floors. The problem's bytes are shared out to as many streams as a roof has.
inline Roof measure_longest(const Problem& p, std::vector<std::pair<const char*, double>> floors) {
    const int reads = std::min(p.reads, 3), writes = std::min(p.writes, 2);
    Roof roof = measure_roof(reads, writes, false, p.useful_bytes() / (reads + writes));
    floors.emplace_back("bytes", roof.us.median);
    roof.parts = std::move(floors);
    for (const auto& [name, us] : roof.parts) {
        if (us >= roof.us.median) { roof.us.median = roof.us.p20 = roof.us.p80 = us; }
    }
    return roof;
}

// gpu: its name. Code that is not for Hopper overlaps nothing.
inline Roofs measure_roofs(const Shootout& s, const Problem& p, const std::vector<Version>& versions,
                           const std::string& gpu) {
    if (s.floors) { return {measure_longest(p, s.floors(p)), {}}; }
    auto measured = [&](bool pdl) {
        Roof roof = measure_roof(p.reads, p.writes, pdl, p.stream_bytes());
        roof.known_us = known_roof_us(gpu, p.stream_bytes(), roof.reads, roof.writes);
        return roof;
    };
    bool pdl = std::any_of(versions.begin(), versions.end(), [&](auto& v) { return v.traits.overlaps(p); });
    Roofs roofs{.plain = measured(false), .pdl = {}};
    if (pdl && streams_overlap()) { roofs.pdl = measured(true); }
    return roofs;
}

// into the report, and, if this machine is known to be faster, a word about it
inline void report_roof(const Problem& p, const Roof& roof, int version_sets, Report& report) {
    JsonObject o;
    o.set("op", p.op).set("dtype", format_of(p.dtype).name).set({{"N", (double)p.N}, {"C", p.C}});
    if (p.T > 0) { o.set({{"T", p.T}}); }
    roof.write(o).set({{"version_sets", (double)version_sets}, {"known_us", roof.known_us}});
    report.roofs.push_back(o.set("counts", roof.counts()).str());
    if (roof.counts()) { return; }
    report.slow_roofs++;
    std::printf(
        "note: %s: the roof %s, %.2f us, is %.1f %% slower than the %.2f us known of this GPU: "
        "this run does not count\n",
        p.shape().c_str(), roof.mix().c_str(), roof.us.median, 100 * (roof.us.median / roof.known_us - 1),
        roof.known_us);
}

// ---- all of them --------------------------------------------------------------------------------

// a run: what was asked for, on what, and what came of it
struct Race {
    const Shootout& shootout;
    const ShootoutOptions& options;
    Machine machine;
    Report report;

    Race(const Shootout& s, const ShootoutOptions& o) : shootout(s), options(o) {}
    // after every shape: a run cut short keeps what it had
    void save() const {
        if (!file().empty()) { report.save(file()); }
    }
    std::string file() const {
        if (!options.json.empty() || !options.sweep) { return options.json; }
        return fmt::format("{}_sweep{}.json", shootout.op, options.accumulate ? "_accumulate" : "");
    }
    Columns columns(const Row& row) const {
        auto of = options.latency ? latency_columns : options.sweep ? sweep_columns : table_columns;
        return of(row);
    }
    void print_head(double flops = 0) const { std::printf("%s", head_of(columns({.flops = flops})).c_str()); }
    void finish(const Row& row) {
        std::printf("%s", line_of(columns(row), row).c_str());
        std::fflush(stdout);
        report.rows.push_back(json_row(row));
        report.wrong += !row.ok;
    }
};

// those asked for that take the problem; in a sweep or of one row, unless some are named, the one that trains
inline std::vector<Version> contestants(const Race& race, const Problem& p) {
    std::vector<Version> versions;
    const ShootoutOptions& o = race.options;
    for (const auto& version : race.shootout.ladder(p.dtype)) {
        bool asked = (o.sweep || o.latency) && o.only.empty() ? version.traits.every_form : version.wanted(o);
        if (asked && version.takes(p)) { versions.push_back(version); }
    }
    return versions;
}

// --latency: the roof is one block that copies the rows, over the ring that the versions go round.
inline void race_item(Race& race, const RaceItem& item) {
    const ShootoutOptions& o = race.options;
    Problem p = race.shootout.problem(item.dtype, item.shape, Inputs::kNormal,
                                      item.form.plain() ? form_of(o) : item.form);
    require(p.N > 0, "--shape: a race needs at least one row");
    auto versions = contestants(race, p);
    if (versions.empty()) {
        std::printf("\n%s %s: none of the versions asked for takes it\n", p.op.c_str(), p.shape().c_str());
        return;
    }
    Roofs roofs{};
    if (!o.latency) { roofs = measure_roofs(race.shootout, p, versions, race.machine.gpu); }
    Ring ring(p);
    if (o.latency) { roofs.plain = measure_one_block(p, ring.sets); }
    const bool table = !o.sweep && !o.latency;
    if (table) {
        std::printf("\n%s %s: %.1f MB, %s, ring of %zu sets\n", p.op.c_str(), p.shape().c_str(),
                    p.useful_bytes() / 1e6, roofs.plain.str().c_str(), ring.sets.size());
        if (roofs.pdl.bytes > 0) { std::printf("for overlapping launches %s\n", roofs.pdl.str().c_str()); }
    }
    report_roof(p, roofs.plain, (int)ring.sets.size(), race.report);
    if (roofs.pdl.bytes > 0) { report_roof(p, roofs.pdl, (int)ring.sets.size(), race.report); }
    if (table) { race.print_head(p.flops); }
    for (const auto& version : versions) {
        Row row = race_version({o, p, ring}, version, roofs.of(version, p));
        if (o.latency) {
            const Roof& copy = roofs.plain;
            row.roof += " one block";
            if (row.note.empty()) {
                row.note = fmt::format("copy: {} threads, {} vectors each", copy.threads, copy.unroll);
            }
        }
        race.finish(row);
    }
    race.save();
}

// v0, on the host, at a shape small enough for it
inline void race_cpu(Race& race) {
    constexpr int kRuns = 5;
    const CpuVersion& cpu = race.shootout.cpu;
    Problem p = race.shootout.problem(Dtype::kFp32, cpu.shape, Inputs::kNormal, {});
    Row row = untimed(p, cpu.name, cpu.idea);
    row.note = "host clock";
    Findings findings = check_cpu(cpu, p, &row.us, kRuns);
    row.error_over_bound = findings.worst;
    row.ok = findings.ok();
    std::printf("\n%s %s on the CPU: a smaller shape, the host's clock: do not compare with what follows\n",
                p.op.c_str(), p.shape().c_str());
    race.print_head(p.flops);
    print_faults(p, cpu.name, findings.faults);
    race.finish(row);
    race.save();
}

// the shootout's list; --shape and --dtype each replace their half of it; nothing if only v0 was asked for
inline std::vector<RaceItem> race_list(const Shootout& s, const ShootoutOptions& o) {
    auto is_cpu = [&](const std::string& version) { return version == s.cpu.name; };
    if (!o.only.empty() && std::all_of(o.only.begin(), o.only.end(), is_cpu)) { return {}; }
    const auto& usual = o.latency ? s.latency : o.sweep ? s.sweep : s.races;
    if (o.shapes.empty() && o.dtypes.empty()) { return usual; }
    std::vector<Shape> shapes = o.shapes;
    for (const auto& item : usual) {
        bool known = std::find(shapes.begin(), shapes.end(), item.shape) != shapes.end();
        if (o.shapes.empty() && !known) { shapes.push_back(item.shape); }
    }
    std::vector<RaceItem> list;
    for (Dtype dtype : o.dtypes.empty() ? std::vector<Dtype>{usual.front().dtype} : o.dtypes) {
        for (const auto& shape : shapes) { list.push_back({dtype, shape}); }
    }
    return list;
}

inline int run_races(const Shootout& s, const ShootoutOptions& o) {
    if (!has_device()) { throw Error(kExitDevice, fmt::format("{}: no CUDA device: nothing checked", s.op)); }
    Race race(s, o);
    race.report.context = race.machine.json;
    race.report.context.set("op", s.op).set("command", o.command);
    race.report.context.set({{"warmup_replays", kWarmupReplays}, {"replays", kReplays}});
    std::printf("%s\n", race.machine.text.c_str());
    race.save();
    if (!o.sweep && !o.latency && !o.accumulate && !o.dropout && o.wants(s.cpu.name)) { race_cpu(race); }
    if (o.sweep || o.latency) {
        std::printf("\n%s%s\n", s.op, o.latency ? ", one row" : o.accumulate ? ", dinp +=" : "");
        race.print_head();
    }
    for (const auto& item : race_list(s, o)) { race_item(race, item); }
    if (!race.file().empty()) { std::printf("\nwritten: %s\n", race.file().c_str()); }
    if (o.sweep) {
        std::printf("a picture: dev/bench/plots.py sweep %s -o sweep.svg\n", race.file().c_str());
    }
    if (race.report.slow_roofs > 0) {
        std::printf(
            "\n%d of %zu roofs were more than %.0f %% slower than this GPU's are known to be: this run does "
            "not count\n",
            race.report.slow_roofs, race.report.roofs.size(), 100 * (kRoofTolerance - 1));
    }
    return race.report.wrong > 0 ? kExitWrong : kExitDone;
}

}  // namespace llmc

// The harness every shootout shares. A shootout says which versions there are, what a problem looks like and on
// which shapes to try them (shootout.cuh); shootout_main() does the rest. In reading order:
//   bounds.h      number formats, and how far off an element may be
//   problem.h     a problem, inputs, the verdict   layernorm_problems.h, _lists.h
//   memory.cuh    tensors between guard bands      checks.cuh    --check
//   shootout.cuh  what a version says of itself    race.cuh      the race: clock, roof, report
// How to read what it prints: README.md beside this file.
#include "dev/cuda/checks.cuh"
#include "dev/cuda/options.h"
#include "dev/cuda/race.cuh"

namespace llmc {

namespace {

void require_known_versions(const Shootout& s, const ShootoutOptions& o) {
    std::vector<std::string> names = {s.cpu.name};
    for (const auto& version : s.ladder(Dtype::kFp32)) { names.push_back(version.name); }
    std::string known;
    for (const auto& name : names) { known += " " + name; }
    for (const auto& name : o.only) {
        if (std::find(names.begin(), names.end(), name) != names.end()) { continue; }
        throw Error(kExitUsage, "{} has no version {}; it has:{}", s.op, name, known);
    }
}

// options that this op, or what was asked of it, has no use for
void require_meaning(const Shootout& s, const ShootoutOptions& o) {
    auto refuse_if = [](bool given, const std::string& what) {
        if (given) { throw Error(kExitUsage, what); }
    };
    auto refuse = [&](bool given, const char* option, const char* who) {
        refuse_if(given, fmt::format("{}: {} has no use for it; {}", option, s.op, who));
    };
    refuse(o.accumulate && !s.accumulates, "--accumulate", "layernorm_backward has a form that adds");
    refuse(o.dropout && !s.drops, "--dropout", "residual_layernorm_forward and layernorm_backward have it");
    refuse(o.out && !s.mixes, "--out", "layernorm_forward and layernorm_backward have it");
    refuse(o.copy && !s.accumulates, "--copy", "layernorm_backward has it");
    refuse(o.sweep && s.sweep.empty(), "--sweep", "LayerNorm's shootouts have a list for it");
    refuse(o.latency && s.latency.empty(), "--latency", "LayerNorm's shootouts have a list for it");
    refuse(o.explain && !s.explain, "--explain", "LayerNorm's shootouts have it");
    refuse_if(o.latency && (o.sweep || o.accumulate || o.dropout),
              "--latency goes with none of --sweep, --accumulate and --dropout; ask for them one by one");
    refuse_if(
        o.check && (o.accumulate || o.dropout) && o.shapes.empty(),
        "--check --accumulate, --dropout: add --shape; the usual list of checks has those forms already");
    refuse_if(o.check && !o.json.empty(), "--json writes what a race measures; --check measures nothing");
}

}  // namespace

int shootout_main(const Shootout& s, int argc, const char* const* argv) {
    try {
        ShootoutOptions options;
        options.sequences = s.sequences;
        if (!parse_shootout_options(argc, argv, s.op, &options)) { return kExitDone; }
        if (options.only.empty() && !s.only.empty()) { options.only.emplace_back(s.only); }
        require_known_versions(s, options);
        require_meaning(s, options);
        if (options.explain) {
            std::printf("%s", s.explain(options).c_str());
            return kExitDone;
        }
        return options.check ? run_checks(s, options) : run_races(s, options);
    } catch (const Error& error) {
        std::fflush(stdout);
        std::fprintf(stderr, "%s\n", error.what());
        return error.exit_code;
    } catch (const std::exception& error) {
        // bad_alloc, length_error: the reference is made in the host's memory
        std::fflush(stdout);
        std::fprintf(stderr, "%s: %s: not enough memory for such a problem; give a smaller --shape\n", s.op,
                     error.what());
        return kExitDevice;
    }
}

}  // namespace llmc

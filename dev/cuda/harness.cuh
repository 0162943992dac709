// The harness every shootout shares. A shootout says which versions there are, what a problem looks like and on
// which shapes to try them (shootout.cuh); shootout_main() does the rest. In reading order:
//   numbers.h     number formats as data           layernorm_inputs.h, _truth.h, _problems.h, _lists.h
//   bounds.h      how far off an element may be    memory.cuh    tensors between guard bands
//   problem.h     a problem, and the verdict       checks.cuh    --check; latency.cuh    --latency
//   shootout.cuh  what a version says of itself    race.cuh      the race: clock, roof, machine, report
// How to read what it prints: README.md beside this file.
#pragma once
#include "dev/cuda/checks.cuh"
#include "dev/cuda/options.h"
#include "dev/cuda/race.cuh"

namespace llmc {

inline void require_known_versions(const Shootout& s, const ShootoutOptions& o) {
    std::vector<std::string> names = {s.cpu.name};
    for (const auto& version : s.ladder(Dtype::kFp32)) { names.push_back(version.name); }
    std::string known;
    for (const auto& name : names) { known += " " + name; }
    for (const auto& name : o.only) {
        if (std::find(names.begin(), names.end(), name) != names.end()) { continue; }
        throw Error(kExitUsage, strf("%s has no version %s; it has:%s", s.op, name.c_str(), known.c_str()));
    }
}

// main of every shootout: returns the exit code
inline int shootout_main(const Shootout& s, int argc, const char* const* argv) {
    try {
        ShootoutOptions options = parse_shootout_options(argc, argv);
        if (options.help) {
            std::printf("%s", shootout_help(s.op).c_str());
            return kExitDone;
        }
        require_known_versions(s, options);
        if (options.accumulate && !s.accumulates) {
            throw Error(kExitUsage, strf("--accumulate: %s has no += form; layernorm_backward has", s.op));
        }
        if (options.latency && (options.sweep || options.accumulate)) {
            throw Error(kExitUsage,
                        "--latency goes with neither --sweep nor --accumulate; ask for them one by one");
        }
        return options.check ? run_checks(s, options) : run_races(s, options);
    } catch (const Error& error) {
        std::fflush(stdout);
        std::fprintf(stderr, "%s\n", error.what());
        return error.exit_code;
    }
}

}  // namespace llmc

// A run in one process or many: see run_ranks.h.
#include "llmc/host/ranks/run_ranks.h"

#include <algorithm>
#include <cstdlib>

#include "llmc/host/base/error.h"
#include "llmc/host/base/resources.h"
#include "llmc/host/ranks/comm_tcp.h"
#include "llmc/host/ranks/launcher.h"

namespace llmc {

namespace {

const char* environment(const char* name) { return std::getenv(name); }

int run_rank(const Options& options, const Ranks& ranks, const char* program,
             const std::function<int(const Options&, Comm&)>& train) {
    CommTcp comm(ranks, options.comm_timeout, program);
    comm.take_time(ranks.rank == 0);  // until the first step
    try {
        return train(options, comm);
    } catch (const Error& e) {
        if (comm.fail(e.exit_code, e.what())) { return e.exit_code; }
        throw;
    } catch (const std::exception& e) {
        if (comm.fail(kExitDevice, e.what())) { return kExitDevice; }
        throw;
    }
}

}  // namespace

int run_ranks(const Options& options, const char* program, char** argv, int devices,
              const std::function<int(const Options&, Comm&)>& train) {
    Options mine = options;
    const int to_start = ranks_to_start(options, environment, devices);
    const Ranks ranks = to_start > 0 && !options.dry_run ? Ranks() : find_ranks(options, environment);
    mine.world_size = std::max(to_start, ranks.size);
    if (to_start > 0 && !options.dry_run) { return launch_ranks(to_start, argv); }
    settle_threads(ranks.local_size);
    if (ranks.size > 1 && !options.dry_run) { return run_rank(mine, ranks, program, train); }
    Comm alone;
    return train(mine, alone);
}

}  // namespace llmc

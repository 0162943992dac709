// OpenMP's threads: how they wait for each other, and how many there are.
#pragma once
#include <omp.h>
#include <unistd.h>
#include <algorithm>
#include <cstdlib>

#include "llmc/host/base/error.h"
#include "llmc/host/base/host_memory.h"

namespace llmc {

// By default libgomp's threads spin at every barrier for milliseconds. On a machine that does anything else
// beside, a spinning thread keeps the one it waits for off the core: a step was 28 times slower beside three
// other processes, and as fast as alone with a short spin. The runtime reads the setting before main, hence
// the restart of the program. Nothing happens where the user has set a policy. Call it first in main.
inline void wait_politely(char** argv) {
    bool chosen = std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr;
    if (chosen || setenv("GOMP_SPINCOUNT", "1000", 1) != 0) { return; }
    char self[4096] = {};  // by its real path, so that ps and top show the program's name
    if (readlink("/proc/self/exe", self, sizeof(self) - 1) > 0) {
        execv(self, argv);  // comes back only if that failed, and then nothing is lost but speed
    }
}

// Settles with how many threads this process computes, one of so many that share the host: OMP_NUM_THREADS, else its share of
// the cores, but no more than OpenMP gives a parallel region (OMP_THREAD_LIMIT, OMP_MAX_ACTIVE_LEVELS), whatever the machine's
// load (OMP_DYNAMIC). OpenBLAS waits for ever for threads that do not come. Throws Error(kExitUsage) for an OMP_NUM_THREADS
// that overflows OpenMP's stack; ends the program with kExitDevice where the system starts no more threads. Call it
// before the first parallel region, and not where processes are still to be forked.
inline void settle_threads(int processes = 1) {
    constexpr int kMost = 4096;
    static bool done = false;
    if (std::getenv("OMP_NUM_THREADS") == nullptr) {
        omp_set_num_threads(std::max(1, usable_cores() / processes));
    } else if (omp_get_max_threads() > kMost) {
        throw Error(
            kExitUsage,
            fmt::format("OMP_NUM_THREADS: found {}, expected at most {}. This process may use {} cores.",
                        omp_get_max_threads(), kMost, usable_cores()));
    }
    omp_set_dynamic(0);
    // where a thread does not start OpenMP says why, and calls exit(1)
    std::atexit([] {
        constexpr char kCure[] =
            "Allow more processes (ulimit -u, pids.max), or set OMP_NUM_THREADS to fewer threads.\n";
        if (done) { return; }
        (void)!write(STDERR_FILENO, kCure, sizeof(kCure) - 1);
        _exit(kExitDevice);
    });
    int threads = 1;
#pragma omp parallel
#pragma omp single
    threads = omp_get_num_threads();
    omp_set_num_threads(threads);
    done = true;
}

}  // namespace llmc

// What a process uses of its host: how much memory and how many cores it may, and OpenMP's threads on them.
#pragma once
#include <cstdint>
#include <string>

namespace llmc {

// Bytes that can be had without swapping: of the machine, and of the control groups (cgroup v1 or v2) that a container or a
// job scheduler has put this process into. -1 if the system does not say. root: before /proc and /sys, for tests.
int64_t available_memory(const std::string& root = "");

// Cores that this process may use: by its affinity, and by the control groups' quota of time (cpu.max), rounded up. More threads
// than that wait for each other in every product. root: as above.
int usable_cores(const std::string& root = "");

// By default libgomp's threads spin at every barrier for milliseconds. On a machine that does anything else
// beside, a spinning thread keeps the one it waits for off the core: a step was 28 times slower beside three
// other processes, and as fast as alone with a short spin. The runtime reads the setting before main, hence
// the restart of the program. Nothing happens where the user has set a policy. Call it first in main.
void wait_politely(char** argv);

// Settles with how many threads this process computes, one of so many that share the host: OMP_NUM_THREADS, else its share of
// the cores, but no more than OpenMP gives a parallel region (OMP_THREAD_LIMIT, OMP_MAX_ACTIVE_LEVELS), whatever the machine's
// load (OMP_DYNAMIC). OpenBLAS waits for ever for threads that do not come. Throws Error(kExitUsage) for an OMP_NUM_THREADS
// that overflows OpenMP's stack; ends the program with kExitDevice where the system starts no more threads. Call it
// before the first parallel region, and not where processes are still to be forked.
void settle_threads(int processes = 1);

}  // namespace llmc

// The host's memory and cores.
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

}  // namespace llmc

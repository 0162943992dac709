// The host's memory.
#pragma once
#include <cstdint>
#include <string>

namespace llmc {

// Bytes that can be had without swapping: of the machine, and of the control groups (cgroup v1 or v2) that a container or a
// job scheduler has put this process into. -1 if the system does not say. root: before /proc and /sys, for tests.
int64_t available_memory(const std::string& root = "");

}  // namespace llmc

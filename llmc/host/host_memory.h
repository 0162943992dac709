// The host's memory.
#pragma once
#include <cstdint>
#include <fstream>
#include <string>

namespace llmc {

// bytes that can be had without swapping, -1 if the system does not say
inline int64_t available_memory() {
    std::ifstream in("/proc/meminfo");
    std::string key, unit;
    int64_t kib;
    while (in >> key >> kib >> unit) {
        if (key == "MemAvailable:") { return kib * 1024; }
    }
    return -1;
}

}  // namespace llmc

// The host's memory: see host_memory.h.
#include "llmc/host/host_memory.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace llmc {

namespace {

constexpr int64_t kUnlimited = INT64_MAX;

// the number behind this key of a file of lines "key number", -1 if it is not there
int64_t number_of(const std::string& file, const std::string& key) {
    std::ifstream in(file);
    std::string name, rest;
    for (int64_t number; in >> name >> number; std::getline(in, rest)) {
        if (name == key) { return number; }
    }
    return -1;
}

// what a control group has left: its limit less what it holds, files in the page cache not counted
int64_t left_in(const std::string& group, const char* limit_file, const char* used_file,
                const std::string& prefix) {
    int64_t limit, used;
    if (!(std::ifstream(group + limit_file) >> limit) || !(std::ifstream(group + used_file) >> used)) {
        return kUnlimited;  // "max", or no such group
    }
    int64_t left = limit - used;
    for (const char* cached : {"inactive_file", "active_file"}) {
        left += std::max<int64_t>(0, number_of(group + "/memory.stat", prefix + cached));
    }
    return std::clamp<int64_t>(left, 0, limit);
}

}  // namespace

int64_t available_memory(const std::string& root) {
    const int64_t kib = number_of(root + "/proc/meminfo", "MemAvailable:");
    if (kib < 0) { return -1; }
    int64_t left = kib * 1024;
    std::ifstream groups(root + "/proc/self/cgroup");
    for (std::string line; std::getline(groups, line);) {  // 0::/path, or 4:memory:/path
        const size_t second = line.find(':', line.find(':') + 1);
        if (second == std::string::npos) { continue; }
        const bool unified = line.starts_with("0::"), memory = line.find(":memory:") != std::string::npos;
        // in a container the path may be one of the host's, and its own group the topmost that it sees
        for (std::filesystem::path path = line.substr(second + 1); unified || memory;
             path = path.parent_path()) {
            const std::string group = root + "/sys/fs/cgroup" + (memory ? "/memory" : "") + path.string();
            left = std::min(
                left, memory ? left_in(group, "/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_")
                             : left_in(group, "/memory.max", "/memory.current", ""));
            if (!path.has_relative_path()) { break; }
        }
    }
    return left;
}

}  // namespace llmc

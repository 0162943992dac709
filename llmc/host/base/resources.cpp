// The host's cores, threads and memory: see resources.h.
#include "llmc/host/base/resources.h"

#include <omp.h>
#include <unistd.h>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "llmc/host/base/error.h"

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

// calls visit(folder) for each control group, of cgroup v1 or v2, that this process is in and that has this controller
template <typename Visit>
void for_each_group(const std::string& root, const std::string& controller, Visit visit) {
    std::ifstream groups(root + "/proc/self/cgroup");
    for (std::string line; std::getline(groups, line);) {  // 0::/path, or 4:memory:/path, 3:cpu,cpuacct:/path
        const size_t first = line.find(':'), second = line.find(':', first + 1);
        if (second == std::string::npos) { continue; }
        const bool unified = line.starts_with("0::");
        const std::string names = "," + line.substr(first + 1, second - first - 1) + ",";
        if (!unified && names.find("," + controller + ",") == std::string::npos) { continue; }
        // in a container the path may be one of the host's, and its own group the topmost that it sees
        for (std::filesystem::path path = line.substr(second + 1);; path = path.parent_path()) {
            visit(root + "/sys/fs/cgroup" + (unified ? "" : "/" + controller) + path.string());
            if (!path.has_relative_path()) { break; }
        }
    }
}

}  // namespace

int64_t available_memory(const std::string& root) {
    const int64_t kib = number_of(root + "/proc/meminfo", "MemAvailable:");
    if (kib < 0) { return -1; }
    int64_t left = kib * 1024;
    for_each_group(root, "memory", [&](const std::string& group) {  // which has the files of v2 or of v1
        left = std::min({left, left_in(group, "/memory.max", "/memory.current", ""),
                         left_in(group, "/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_")});
    });
    return left;
}

int usable_cores(const std::string& root) {
    int cores = std::max(1, omp_get_num_procs());
    for_each_group(root, "cpu", [&](const std::string& group) {
        double quota = 0, period = 0;  // "max" or -1: there is none
        std::ifstream(group + "/cpu.max") >> quota >> period;
        std::ifstream(group + "/cpu.cfs_quota_us") >> quota;
        std::ifstream(group + "/cpu.cfs_period_us") >> period;
        if (quota > 0 && period > 0) { cores = std::min(cores, (int)std::ceil(quota / period)); }
    });
    return cores;
}

void wait_politely(char** argv) {
    bool chosen = std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr;
    if (chosen || setenv("GOMP_SPINCOUNT", "1000", 1) != 0) { return; }
    char self[4096] = {};  // by its real path, so that ps and top show the program's name
    if (readlink("/proc/self/exe", self, sizeof(self) - 1) > 0) {
        execv(self, argv);  // comes back only if that failed, and then nothing is lost but speed
    }
}

void settle_threads(int processes) {
    constexpr int kMost = 4096;
    static bool done = false;
    if (std::getenv("OMP_NUM_THREADS") == nullptr) {
        omp_set_num_threads(std::max(1, usable_cores() / processes));
    } else if (omp_get_max_threads() > kMost) {
        throw Error(kExitUsage,
                    "OMP_NUM_THREADS: found {}, expected at most {}. This process may use {} cores.",
                    omp_get_max_threads(), kMost, usable_cores());
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

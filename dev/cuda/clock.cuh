// The machine and its clock: microseconds of one launch inside a CUDA graph that goes round a ring of buffer sets, so that
// nothing a launch reads or writes is still in L2 from last time, and no launch gap is timed.
#pragma once
#include <chrono>
#include <ctime>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "dev/cuda/report.h"
#include "llmc/cuda/graph.cuh"
#include "llmc/cuda/resources.cuh"

namespace llmc {

constexpr int kWarmupReplays = 3, kSweepReplays = 5, kReplays = 21;
// The ring of sets holds at least this, 27 times the L2 of an H200: a kernel that reads and writes as what is not
// needed again seems to leave in L2 what was there before, and would find some of a ring of 400 MB in it.
constexpr double kRotationBytes = 1600e6;
constexpr int kMaxSets = 1024;  // but no more sets than this, so that very small shapes stay quick

inline int rotation_sets(double set_bytes) {
    return set_bytes <= 0 ? 2 : std::clamp((int)std::min(kRotationBytes / set_bytes + 1, 1e6), 2, kMaxSets);
}

// The stream of all that a shootout does, copies and fills too (nvcc's --default-stream per-thread): once a
// process has launched a good deal on two streams, each launch of it takes 0.4 us more, for good, so that the
// roof, which is measured first, would not bound what follows. H200, CUDA 13.0
inline const cudaStream_t kStream = cudaStreamPerThread;
inline void wait() { check(cudaStreamSynchronize(kStream)); }

// device microseconds of what work() queues
template <typename Work>
double elapsed_us(const Work& work) {
    Event begin(cudaEventDefault), end(cudaEventDefault);
    begin.record(kStream);
    work();
    end.record(kStream);
    wait();
    return 1e3 * end.since(begin).count();
}

// `launch(set)` for set = 0 .. sets - 1, round and round, captured once and replayed
class Replay {
public:
    Replay(int sets, const std::function<void(int set)>& launch) : sets_(sets) {
        auto run = [&](int rounds) {
            for (int i = 0; i < rounds * sets_; i++) { launch(i % sets_); }
        };
        launch(0);  // outside the graph: loads the module, asks the once-only questions
        double round_us = elapsed_us([&] { run(1); });
        launch_us_ = round_us / sets_;
        // a replay is at least one round; short ones are repeated until the graph's own start, a few us, is < 1 %
        constexpr double kTargetUs = 1000;
        constexpr int kTargetLaunches = 200;
        rounds_ =
            std::clamp((int)(kTargetUs / std::max(round_us, 1.0)), 1, std::max(1, kTargetLaunches / sets));
        recording_.emplace(kStream, [&](Recording&) { run(rounds_); });
    }

    int rounds() const { return rounds_; }
    int launches() const { return sets_ * rounds_; }
    void once() const { recording_->repeat(); }

    // `wanted` runs of `launches` launches each, or as many as take a few seconds
    int affordable(int wanted, int launches) const {
        constexpr double kMostUs = 4e6;
        return std::min(wanted, std::max(3, (int)(kMostUs / std::max(launch_us_ * launches, 1.0))));
    }

    Times time(int warmups, int replays) const {
        for (int i = 0; i < warmups; i++) { once(); }
        std::vector<double> us(affordable(replays, launches()));
        for (double& t : us) {
            t = elapsed_us([&] { once(); }) / launches();
        }
        return Times(us);
    }

private:
    int sets_, rounds_ = 1;
    double launch_us_ = 0;  // about
    std::optional<Recording> recording_;
};

// the same statistics for work on the host
template <typename Work>
Times host_times(int runs, const Work& work) {
    using Clock = std::chrono::steady_clock;
    work();
    std::vector<double> us(runs);
    for (double& t : us) {
        auto begin = Clock::now();
        work();
        t = std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
    }
    return Times(us);
}

// ---- the machine --------------------------------------------------------------------------------

inline bool has_device() {
    int count = 0;
    bool found = cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
    cudaGetLastError();  // "no device" is an answer here, not a failure to be found later
    return found;
}

// by dev/emulate, on the CPU
inline bool is_emulated() {
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, 0));
    return std::string_view(properties.name) == "emulated GPU";
}

// "580.159.03" out of "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.03  ..."; "unknown" where /proc is bare
inline std::string kernel_driver() {
    std::ifstream file("/proc/driver/nvidia/version");
    for (std::string word; file >> word;) {
        if (word.find('.') != word.npos && word.find_first_not_of("0123456789.") == word.npos) {
            return word;
        }
    }
    return "unknown";
}

struct Machine {
    std::string gpu, text;
    JsonObject json;

    Machine() {
        auto ask = [](cudaDeviceAttr attribute) {
            int value = 0;
            check(cudaDeviceGetAttribute(&value, attribute, 0));
            return value;
        };
        const int sms = ask(cudaDevAttrMultiProcessorCount), l2_mb = ask(cudaDevAttrL2CacheSize) >> 20;
        const int mhz = ask(cudaDevAttrClockRate) / 1000, memory_mhz = ask(cudaDevAttrMemoryClockRate) / 1000;
        cudaDeviceProp properties;
        check(cudaGetDeviceProperties(&properties, 0));
        gpu = properties.name;
        const double memory_gb = (double)properties.totalGlobalMem / 1e9;
        int version = 0;
        check(cudaRuntimeGetVersion(&version));
        const std::string cuda = fmt::format("{}.{}", version / 1000, version % 1000 / 10);
        const std::time_t now = std::time(nullptr);
        char date[32];
        std::strftime(date, sizeof(date), "%Y-%m-%d %H:%M UTC", std::gmtime(&now));
        text = fmt::format(
            "{}, {} SMs, {} MB L2, {:.0f} GB, at most {} / {} MHz (SM / memory), CUDA {}, driver {}, {}", gpu,
            sms, l2_mb, memory_gb, mhz, memory_mhz, cuda, kernel_driver(), date);
        json.set("gpu", gpu).set("cuda_runtime", cuda).set("driver", kernel_driver()).set("date", date);
        json.set({{"sms", sms}, {"l2_mb", l2_mb}, {"memory_gb", memory_gb}, {"max_sm_mhz", mhz}});
        json.set({{"max_memory_mhz", memory_mhz}});
    }
};

}  // namespace llmc

// The clock: microseconds of one launch inside a CUDA graph that goes round a ring of buffer sets, so that
// nothing a launch reads or writes is still in L2 from last time, and no launch gap is timed.
#pragma once
#include <chrono>
#include <functional>

#include "dev/cuda/report.h"
#include "llmc/cuda/check.cuh"

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
struct Stream {
    cudaStream_t handle = cudaStreamPerThread;
    Stream() = default;
    Stream(const Stream&) = delete;
    operator cudaStream_t() const { return handle; }
    void wait() const { check(cudaStreamSynchronize(handle)); }
};

struct Event {
    cudaEvent_t handle = nullptr;
    Event() { check(cudaEventCreate(&handle)); }
    ~Event() { cudaEventDestroy(handle); }
    Event(const Event&) = delete;
    void record(cudaStream_t stream) { check(cudaEventRecord(handle, stream)); }
};

// device microseconds between two points of a stream
template <typename Work>
double elapsed_us(const Stream& stream, const Work& work) {
    Event begin, end;
    begin.record(stream);
    work();
    end.record(stream);
    check(cudaEventSynchronize(end.handle));
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin.handle, end.handle));
    return 1e3 * ms;
}

// `launch(set)` for set = 0 .. sets - 1, round and round, captured once and replayed
class Replay {
public:
    using Launch = std::function<void(int set)>;

    Replay(const Stream& stream, int sets, const Launch& launch) : stream_(stream), sets_(sets) {
        launch(0);  // outside the graph: loads the module, asks the once-only questions
        double round_us = elapsed_us(stream, [&] { run(launch, 1); });
        launch_us_ = round_us / sets_;
        rounds_ =
            std::clamp((int)(kTargetUs / std::max(round_us, 1.0)), 1, std::max(1, kTargetLaunches / sets));
        cudaGraph_t graph = capture(launch);
        cudaError_t status = cudaGraphInstantiate(&exec_, graph, 0);
        cudaGraphDestroy(graph);
        check(status);
    }
    ~Replay() { cudaGraphExecDestroy(exec_); }
    Replay(const Replay&) = delete;

    int rounds() const { return rounds_; }
    int launches() const { return sets_ * rounds_; }
    void once() const { check(cudaGraphLaunch(exec_, stream_)); }

    // `wanted` runs of `launches` launches each, or as many as take a few seconds
    int affordable(int wanted, int launches) const {
        constexpr double kMostUs = 4e6;
        return std::min(wanted, std::max(3, (int)(kMostUs / std::max(launch_us_ * launches, 1.0))));
    }

    Times time(int warmups, int replays) const {
        for (int i = 0; i < warmups; i++) { once(); }
        std::vector<double> us(affordable(replays, launches()));
        for (double& t : us) {
            t = elapsed_us(stream_, [&] { once(); }) / launches();
        }
        return Times(us);
    }

private:
    // a replay is at least one round; short ones are repeated until the graph's own start, a few us, is < 1 %
    static constexpr double kTargetUs = 1000;
    static constexpr int kTargetLaunches = 200;

    void run(const Launch& launch, int rounds) const {
        for (int i = 0; i < rounds * sets_; i++) { launch(i % sets_); }
    }

    cudaGraph_t capture(const Launch& launch) const {
        cudaGraph_t graph = nullptr;
        check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
        try {
            run(launch, rounds_);
        } catch (...) {
            cudaStreamEndCapture(stream_, &graph);
            cudaGraphDestroy(graph);
            throw;
        }
        check(cudaStreamEndCapture(stream_, &graph));
        return graph;
    }

    const Stream& stream_;
    int sets_, rounds_ = 1;
    double launch_us_ = 0;  // about
    cudaGraphExec_t exec_ = nullptr;
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

}  // namespace llmc

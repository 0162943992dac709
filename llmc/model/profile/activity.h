// What the GPU and the calls of CUDA did while a program ran, with times: CUPTI's records. CUPTI is loaded when it is asked
// for, so that no program needs it to be built or to run.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace llmc {

struct Activity {
    enum Kind { kKernel, kCopy, kFill, kCall };
    Kind kind;
    std::string
        name;  // of a kernel, readable; of a copy, which way; of a call, without CUPTI's version of it
    int64_t start, end;    // ns, one clock for all
    uint32_t lane;         // stream; of a call: the thread
    uint32_t correlation;  // the same of a kernel, copy or fill and of the call that asked for it
};

// One at a time. Construction throws Error(kExitDevice) where CUPTI is not found or refuses, and says why.
class ActivityRecorder {
public:
    static void require_cupti();  // throws, too, without recording anything
    ActivityRecorder();
    ~ActivityRecorder();
    ActivityRecorder(const ActivityRecorder&) = delete;
    // All that was recorded since construction, in the order of starts; recording ends. What was asked for has ended: wait
    // for the device first. Throws Error(kExitDevice) if records were lost.
    std::vector<Activity> stop();

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace llmc

// What train_gpt2cu measures instead of training a run: --profile FILE, and --tune-gemm FILE where FILE is not there.
// --profile says of a step where its time goes, part by part, and the least time that each part could take on this GPU.
//
// A part's floor, all of it measured in the same process but for the exponentials' rate:
//   products    every distinct product alone, without bias and GELU, by the fastest of cuBLASLt's algorithms
//   attention   the largest of: the lower triangle's blocks of 64 x 64 scores, 2 products each forward and 5 backward, at
//               the rate of the products above that are not of FP8; their exponentials, 16 a clock and multiprocessor;
//               the tensors it must move
//   Muon        its iterations' products, whole, at that rate, too; around them, the bytes
//   the rest    the bytes it must move, as fast as a kernel that computes nothing moves as many streams
// Recomputation is not work: its time counts, and no floor.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "llmc/host/options/options.h"
#include "llmc/model/gpt2_config.h"

namespace llmc {

// What the GPU and the calls of CUDA did while a program ran, with times: CUPTI's records. CUPTI is loaded when it is asked
// for, so that no program needs it to be built or to run.
struct Activity {
    enum Kind { kKernel, kCopy, kFill, kCall };
    Kind kind;
    std::string name;      // of a kernel, readable; of a copy, which way; of a call, without CUPTI's version
    int64_t start, end;    // ns, one clock for all
    uint32_t lane;         // stream; of a call: the thread
    uint32_t correlation;  // the same of a kernel, copy or fill and of the call that asked for it
};

// Throws Error(kExitDevice) where CUPTI is not found, and says why.
void require_cupti();
// Of work(), which waits for the device, by their starts. Throws Error(kExitDevice), too, where CUPTI refuses or lost records.
std::vector<Activity> record_activity(const std::function<void()>& work);

enum class Part {
    kProductForward,
    kProductInput,
    kProductWeight,
    kAttentionForward,
    kAttentionBackward,
    kClassifier,
    kBias,
    kLayerNormForward,
    kLayerNormBackward,
    kGelu,
    kFp8,
    kEncoder,
    kAdamW,
    kMuonProducts,
    kMuon,
    kNorm,
    kCopies,
    kFills,
    kOther
};
constexpr int kParts = (int)Part::kOther + 1;
const char* name_of(Part part);

// ---- what was recorded -----------------------------------------------------------------------------

// ns of `a` that lie behind `until`, which becomes a's end where that is later
inline int64_t ns_after(int64_t& until, const Activity& a) {
    int64_t from = std::max(a.start, until);
    until = std::max(until, a.end);
    return std::max<int64_t>(0, a.end - from);
}

struct Launches {
    int count = 0;
    // in which at least one of them runs: one that starts early waits while the one before still runs
    double ms = 0;
    void add(const Activity& a) {
        count++;
        ms += (double)ns_after(until_, a) * 1e-6;
    }

private:
    int64_t until_ = 0;
};

// one step; step k goes from the decision of step k - 1, made just before AdamW, to its own
struct StepRecord {
    double ms = 0, idle_ms = 0;
    std::array<Launches, kParts> parts;
    std::map<std::string, Launches> kernels;  // "part | name"
    std::map<std::string, int> fills_before;  // by the part of the kernel that follows
};

// a call of CUDA by the host, over all recorded steps
struct HostCall {
    std::string name;
    double count = 0, ms = 0;  // a step
    bool waits = false;        // makes the host wait or the GPU stop
};

struct StepRecording {
    StepRecord median;  // the step of median length
    std::vector<double> steps_ms;
    std::vector<HostCall> calls;
};

// records: by their starts, of steps one after the other on one stream. Throws Error(kExitDevice) unless two are whole.
StepRecording analyse(const std::vector<Activity>& records);

// ---- what it has to do -----------------------------------------------------------------------------
struct ProductWork {
    Part part;
    const char* name;
    Tensor weight;  // (OC,C)
    int64_t N;
    int C, OC;  // out (N,OC) = inp (N,C) weight^T, and what belongs to its backward
    int calls;
    bool fp8 = false;
    double flop() const { return 2.0 * (double)N * C * OC; }
};
struct StreamWork {
    Part part;
    int calls, reads, writes;
    double bytes;  // of a stream, on average
};
struct AttentionWork {
    double blocks;                         // of 64 x 64 scores, of all layers
    double forward_flop, backward_flop;    // of all
    double forward_bytes, backward_bytes;  // of all
};
struct StepWork {
    std::vector<ProductWork> products;
    std::vector<StreamWork> streams;
    AttentionWork attention;
    double muon_flop = 0;  // of all products of its iterations
};

// bytes of a value of T, and of a gradient of a parameter
StepWork work_of_step(const GPT2Config& c, int B, int T, int value_bytes, int gradient_bytes,
                      bool muon = false, bool fp8 = false);

// ---- what could be -------------------------------------------------------------------------------
struct ProductTime {
    ProductWork work;
    double first_ms, fastest_ms;  // of one call: cuBLASLt's first proposal, the best
    int candidates;               // how many algorithms were tried, variants of the first proposal included
    // the best of those whose result has the first's bits, and how many these are
    double same_bits_ms = 0;
    int same_bits = 0;
};
// the numbers of streams read and written that a floor is asked for
struct StreamMix {
    int reads, writes;
};
inline constexpr StreamMix kStreamMixes[] = {{1, 0}, {1, 1}, {2, 1}, {3, 1}, {2, 2}, {4, 3}};
struct StreamRoof {
    int reads, writes;
    double bytes_per_s;
};
struct StepProfile {
    std::string gpu, model, date;
    int B = 0, T = 0;
    double step_ms = 0, step_p20_ms = 0, step_p80_ms = 0;  // unprofiled
    int steps = 0;                                         // of which that is the median
    StepRecording recording;
    std::vector<ProductTime> products;
    std::vector<StreamRoof> roofs;
    double exponentials_per_s = 0;
    StepWork work;
};

struct Floor {
    std::string work, roof;
    double ms = 0;
};
std::array<Floor, kParts> floors_of(const StepProfile& p);
double sum_of_floors(const std::array<Floor, kParts>& floors);

std::string profile_table(const StepProfile& p);
std::string profile_json(const StepProfile& p);

// ---- on a GPU

// Trains a model of these options on their data for a few seconds, records some steps, measures the roofs, prints the table
// and writes it as JSON to options.profile. Makes no run folder. Returns the program's exit code.
template <typename T, typename Grad>
int profile_training(const Options& options);

// Runs forward and backward passes of a new model of these options on their data, in which cuBLASLt's proposals for each
// product, and variants of the first one, are timed; prints what was found and writes it to options.tune_gemm.
template <typename T, typename Grad>
void tune_products(const Options& options);

}  // namespace llmc

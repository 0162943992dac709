// A model as the trainer, the validation and the sub-commands see it, and the plain structs that cross that border.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "llmc/host/base/error.h"
#include "llmc/host/base/text.h"
#include "llmc/host/options/choices.h"
#include "llmc/host/tokens/dataloader.h"
#include "llmc/model/fp8_tensors.h"
#include "llmc/model/gpt2_config.h"
#include "llmc/ops/step_params.h"

namespace llmc {

class Comm;

// the optimizer's copies of a parameter tensor; and as if it were one of tensor 0, fp8_maxima() of fp8_tensors.h
enum class State { kParameter, kFirstMoment, kSecondMoment, kFp8Maxima };

// How a model computes; one that has no such choice refuses what is not the default.
// The gradient of a step is defined by `groups`, whatever the number of ranks: group g of G has the
// micro-batches from g M / G to (g + 1) M / G of M. A group's gradients are added in their order, the groups'
// sums in theirs. Rank r of N computes the groups r, r + N, ...
struct ModelSettings {
    Recompute recompute = Recompute::kNone;
    bool tf32 = false;             // fp32 products in TF32
    std::string matmul_file = {};  // algorithms of products, found by --tune-gemm; "" = cuBLASLt's first
    bool graph = true;             // on a GPU a step's launches are recorded once and repeated; same bits
    bool fp8 = false;      // products of the blocks' linear layers (fp8_tensors.h); on a GPU with bf16
    bool muon = false;     // for the blocks' matrices (llmc/ops/muon/muon.h)
    double dropout = 0;    // in a step, not in evaluate() (llmc/host/base/dropout.h)
    uint64_t seed = 0;     // of its masks
    int ranks = 1;         // must divide groups
    int groups = 1;        // of micro-batches
    bool shard = true;     // each rank has a share of the optimizer's state only (ZeRO-1)
    int local_ranks = 1;   // that share this host's memory
    Comm* comm = nullptr;  // of that many ranks; null if there is one, and for plan()
};

struct StepResult {
    int64_t step = 0;
    float loss = 0;        // mean over the targets of all micro-batches, nats
    float grad_norm = 0;   // before clipping
    bool skipped = false;  // loss or norm was not finite or an outlier, or the gradient too long: no update
    Fp8Saturated saturated = {};
    std::chrono::steady_clock::time_point done;  // when the step was complete, however late it is asked for
};

// per token of the batch, (B,T) each; valid until the next call of the model
struct Evaluation {
    std::span<const float> losses;       // nats, 0 where the target is ignored
    std::span<const int32_t> predicted;  // the most probable next token
};

// ---- what a model asks for that was made for B sequences of T tokens; each throws Error(kExitUsage)

inline void require_sizes(const GPT2Config& c, int B, int T) {
    require(c.num_layers > 0 && c.num_heads > 0 && c.channels > 0 && c.vocab_size > 0 &&
                c.channels % c.num_heads == 0 && c.padded_vocab_size >= c.vocab_size,
            "GPT2: sizes must be positive, channels a multiple of heads");
    require(B > 0 && T > 0 && T <= c.max_seq_len, "GPT2: B and T must be positive, T at most max_seq_len");
}
inline void require_batch(const GPT2Config& c, int B, int T, const Batch& batch) {
    const int64_t n = (int64_t)batch.B * batch.T;
    require(batch.B > 0 && batch.T > 0 && n <= (int64_t)B * T && batch.T <= T,
            "GPT2: the batch is larger than the model was made for");
    require(std::ssize(batch.tokens) == n && std::ssize(batch.targets) == n, "GPT2: batch sizes disagree");
    for (int64_t i = 0; i < n; i++) {
        const bool ok = batch.tokens[i] >= 0 && batch.tokens[i] < c.vocab_size &&
                        batch.targets[i] < c.vocab_size && batch.targets[i] >= kIgnoreTarget;
        require(ok, "GPT2: a token id is outside of the vocabulary");
    }
}
// how many targets count: at least one
inline int64_t count_targets(const GPT2Config& c, int B, int T, std::span<const Batch> micro_batches) {
    int64_t targets = 0;
    for (const Batch& batch : micro_batches) {
        require_batch(c, B, T, batch);
        for (int32_t target : batch.targets) { targets += target != kIgnoreTarget; }
    }
    require(targets > 0, "GPT2: no target to learn from");
    return targets;
}

// The number in the step of the i-th micro-batch of those that a rank is given, `each` in a group.
constexpr int64_t micro_batch_number(int64_t i, int64_t each, int64_t rank, int64_t ranks) {
    return (i / each * ranks + rank) * each + i % each;
}

struct MemoryPlan {
    int64_t parameters = 0, gradients = 0, optimizer = 0, activations = 0;  // bytes
    int64_t available = 0;  // bytes free now on the device, -1 = unknown
    int64_t total() const { return parameters + gradients + optimizer + activations; }
    // with --fp8, of the activations above: the weights in e4m3, and how much less the rest is than without
    int64_t fp8_weights = 0, fp8_saved = 0;
};

// Throws Error(kExitDevice) if there is less than the plan takes: a small file can ask for a large model. what: the file.
inline void require_room(const MemoryPlan& plan, const std::string& what) {
    if (plan.available < 0 || plan.total() <= plan.available) { return; }
    throw Error(kExitDevice, "{}: this model needs {}, but {} is available", what, bytes_text(plan.total()),
                bytes_text(plan.available));
}

struct Device {
    std::string name;          // "CPU, 2 threads"
    double peak_flops = 0;     // 0 = unknown
    std::string peak_meaning;  // what that number is
};

// Parameters, the optimizer's state and what a step needs; a call through it is nothing beside a step.
// load() and save() count a range of one of the 16 tensors in file order (all layers; wte with its padding rows).
class Model {
public:
    virtual ~Model() = default;
    virtual const GPT2Config& config() const = 0;
    virtual void init(uint64_t seed) = 0;  // random parameters, moments zero
    virtual void load(State state, int tensor, int64_t first, std::span<const float> values) = 0;
    // may overwrite gradients, as may init() and gather(): bf16 parameters pass through their memory
    virtual void save(State state, int tensor, int64_t first, std::span<float> values) const = 0;
    // Whether it has that: Muon's tensors have no second moment, and none is loaded or saved. Maxima of FP8, loaded behind
    // the parameters, are for one that computes in it; another takes no notice of them.
    virtual bool holds(State state, int tensor) const = 0;
    // Optimizer steps that happened (not skipped ones); set before parameters are loaded: their rounding depends on it.
    virtual int64_t updates() const = 0;
    virtual void set_updates(int64_t n) = 0;

    // One optimizer step over these micro-batches (of many ranks: those of this one's groups, in order); may not
    // wait. False: a stop was asked for meanwhile (stop_signal.h), no step happens.
    virtual bool enqueue_step(std::span<const Batch> micro_batches, const StepParams& params) = 0;
    virtual std::optional<StepResult> poll() = 0;  // the next result in order; at most one step late
    virtual void finish() = 0;                     // waits; then poll() returns all that is left
    // all ranks call it: then rank 0 can save() what it has no share of, until the next step
    virtual void gather() = 0;
    // by tensor, of what this rank computes with; waits
    virtual std::vector<uint64_t> parameter_hashes() const = 0;
    virtual Evaluation evaluate(const Batch& batch) = 0;  // forward only; waits
    // (V): last position of the last row of the last evaluate()
    virtual std::span<const float> logits_last() const = 0;
};

// One kind of model: what is known before there is one, and how it is made. Micro-batches: up to B rows of up to T tokens.
struct ModelFactory {
    // what it will allocate, before it does
    MemoryPlan (*plan)(const GPT2Config&, int B, int T, const ModelSettings&) = nullptr;
    std::unique_ptr<Model> (*make)(const GPT2Config&, int B, int T, const ModelSettings&) = nullptr;
    // what it runs on, and the peak it is measured against
    Device (*device)(const ModelSettings&) = nullptr;
    // makes save() to this memory fast, as long as the result lives; may do nothing
    std::shared_ptr<void> (*page_lock)(std::span<float>) = nullptr;
    double (*measure_speed)() = nullptr;  // FLOP/s of one large product, now; null where it is not measured
};

// of a class that has these as static functions
template <typename Kind>
ModelFactory factory_of() {
    return {Kind::plan,
            [](const GPT2Config& c, int B, int T, const ModelSettings& settings) -> std::unique_ptr<Model> {
                return std::make_unique<Kind>(c, B, T, settings);
            },
            Kind::device, Kind::page_lock, Kind::measure_speed};
}

// ---- writing with a model: the context, token by token, and what may come next

// what limits a decoder whose tokens each read all weights
struct DecoderTraffic {
    int64_t bytes = 0;            // of weights, read for each token; 0 = they are not read once a token
    double bytes_per_second = 0;  // what the memory can deliver, 0 = unknown
};

// parameters that a token needs: all but the positions' rows and padding
inline int64_t step_parameters(const GPT2Config& c) { return num_parameters(c) - tensor_total(c, kWpe); }

class Decoder {
public:
    virtual ~Decoder() = default;
    virtual const GPT2Config& config() const = 0;
    // Adds tokens, at least one, to the context, which then is at most config().max_seq_len long. Returns the
    // logits (V) of what follows; they are valid until the next call.
    virtual std::span<const float> append(std::span<const int32_t> tokens) = 0;
    virtual void clear() = 0;        // to an empty context
    virtual int length() const = 0;  // of the context
    virtual DecoderTraffic traffic() const { return {}; }

protected:
    void require_tokens(std::span<const int32_t> tokens) const {  // that append() can take
        require(!tokens.empty() && length() + std::ssize(tokens) <= config().max_seq_len,
                "Decoder: 1 token or more, and no more than there is room for");
        for (int32_t token : tokens) {
            require(token >= 0 && token < config().vocab_size,
                    "Decoder: a token id is outside of the vocabulary");
        }
    }
};

}  // namespace llmc

// The plan of a training run: see run/plan.h.
#include "llmc/model/run/plan.h"
#include "llmc/model/run/open_model.h"

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <sstream>
#include <vector>

#include "llmc/host/base/error.h"
#include "llmc/host/base/text.h"
#include "llmc/host/files/file_io.h"
#include "llmc/host/options/typed_text.h"
#include "llmc/host/ranks/comm.h"
#include "llmc/model/model_source.h"
#include "llmc/model/run/auto_plan.h"
#include "llmc/model/run/folder.h"

namespace llmc {

namespace {

constexpr int64_t kMostMicroBatches = 1 << 20;  // of a step: their tokens are all in memory at once

std::string default_run_folder() {
    char text[64];
    std::time_t now = std::time(nullptr);
    std::strftime(text, sizeof(text), "runs/%Y%m%d-%H%M%S", std::localtime(&now));
    return text;
}

// the number formats at work
std::string compute_text(const Options& o) {
    if (o.program == Program::kCpu) { return "fp32"; }
    std::string text = o.dtype == FloatType::kBf16
                           ? "bf16, fp32 master weights, gradients " + text_of(o.grad_dtype)
                       : o.tf32 ? "fp32, products in TF32"
                                : "fp32";
    return text + ", recompute " + text_of(o.recompute);
}

// A checkpoint has its own sizes; other ones that an option names are a mistake.
void require_same_shape(const RunPlan& plan) {
    const Options& o = plan.options;
    const GPT2Config& c = plan.config;
    ModelShape asked{o.layers, o.heads, o.channels}, found{c.num_layers, c.num_heads, c.channels};
    bool stated = o.layers > 0 || model_descriptor(o.model, &asked);
    if (stated && asked != found) {
        throw Error(
            kExitUsage,
            fmt::format(
                "{}: found a model of {} layers, {} heads, {} channels, but the options ask for {}, {}, "
                "{}. Leave them out, or start a new run: another --out, --resume none.",
                plan.checkpoint, found.layers, found.heads, found.channels, asked.layers, asked.heads,
                asked.channels));
    }
}

// where the weights come from and the model's sizes: a checkpoint, a model file, or the options; sets the
// sizes that are left open in the plan's options
void choose_model(int vocab_size, RunPlan* plan) {
    Options& o = plan->options;
    if (o.resume == "auto") {
        std::string notes;
        plan->checkpoint = find_checkpoint(plan->out, &notes);
        put_text(stderr, notes);
    } else if (o.resume != "none") {
        plan->checkpoint = o.resume;
        require_no_run_folder(o.resume);
    }
    ModelShape shape{o.layers, o.heads, o.channels};
    const bool open = o.model == kAutoModel && o.layers == 0;
    if (!plan->checkpoint.empty()) {
        const Checkpoint checkpoint(plan->checkpoint);
        plan->config = checkpoint.config();
        plan->record = checkpoint.record();
        if (o.optimizer == Optimizer::kAuto) { o.optimizer = plan->record.state.optimizer; }
        plan->model_from = plan->checkpoint;
        plan->model_folder = run_folder_of(plan->checkpoint);
        require_same_shape(*plan);
        if (open) {
            o.layers = plan->config.num_layers, o.heads = plan->config.num_heads;
            o.channels = plan->config.channels;
        }
        return;
    }
    if (open) { o.model = o.program == Program::kCpu ? "d3" : "d6"; }
    if (o.layers == 0 && !model_descriptor(o.model, &shape)) {
        std::string notes;
        const NamedModel model = open_model(o.model, &notes);
        put_text(stderr, notes);
        plan->model_file = plan->model_from = model.path;
        plan->model_folder = model.folder;
        plan->config = model.source->config();
        plan->record.kept = model.source->facts().kept;
    } else {
        int positions = o.max_seq_len > 0 ? o.max_seq_len : o.seq_len;
        plan->config = {positions,    vocab_size,  padded_vocab(vocab_size),
                        shape.layers, shape.heads, shape.channels};
        plan->model_from = "random initialisation";
    }
}

void check_model(const RunPlan& plan) {
    const Options& o = plan.options;
    if (o.seq_len > plan.config.max_seq_len) {
        throw Error(
            kExitUsage,
            fmt::format("--seq-len {} is more than the {} positions of {}. Use --seq-len {} or less.",
                        o.seq_len, plan.config.max_seq_len, plan.model_from, plan.config.max_seq_len));
    }
}

// counts that the rest of the program multiplies
void check_length(const RunPlan& plan) {
    const Options& o = plan.options;
    if (plan.micro_batches > kMostMicroBatches) {
        throw Error(
            kExitUsage,
            fmt::format("--total-batch {} is {} micro-batches of {} x {} tokens, at most {} are possible. "
                        "Give a larger --batch or a smaller --total-batch.",
                        o.total_batch, plan.micro_batches, o.batch, o.seq_len, kMostMicroBatches));
    }
    uint64_t rows, tokens;
    bool fits = multiply_fits((uint64_t)plan.steps, (uint64_t)plan.rows_per_step, &rows) &&
                multiply_fits(rows, (uint64_t)o.seq_len, &tokens) && tokens <= (uint64_t)INT64_MAX;
    if (!fits) {
        throw Error(
            kExitUsage,
            fmt::format("--steps {} of {} x {} tokens: that many tokens cannot be counted. Give fewer "
                        "--steps.",
                        plan.steps, plan.rows_per_step, o.seq_len));
    }
}

}  // namespace

namespace {

// the length of the run and its learning rate; sets them in the plan's options, so that config.toml has them
void choose_length(const DataLoader& data, double (*measure_speed)(), RunPlan* plan) {
    Options* o = &plan->options;
    const GPT2Config& c = plan->config;
    // what was worked out once is not worked out again: the result would depend on how busy the machine is
    if (!plan->checkpoint.empty() && !fill_from_run(run_folder_of(plan->checkpoint) + "/config.toml", o)) {
        const bool open = (o->steps == kAuto && o->epochs == 0 && o->minutes == 0) || o->lr < 0 ||
                          o->warmup < 0 || o->final_lr_fraction < 0;
        if (open && !o->llmc_letters) {
            throw Error(
                kExitUsage,
                fmt::format("{}: no config.toml beside it says how long the run is and how its learning rate "
                            "goes. Give --steps, --lr, --warmup and --final-lr-fraction.",
                            plan->checkpoint));
        }
    }
    RunFacts facts;
    facts.parameters = num_parameters(c) - (int64_t)(c.vocab_size + c.max_seq_len) * c.channels;
    facts.flops_per_token = plan->flops_per_token;
    facts.channels = c.channels;
    facts.muon_flops = muon_flops(c);
    if (measure_speed != nullptr && o->steps == kAuto && o->epochs == 0) {
        facts.flops_per_s = measure_speed() * std::max(1, o->world_size);
    }
    facts.pretrained = !plan->model_file.empty();
    facts.tokens_per_epoch = data.windows_per_epoch() * o->seq_len;
    facts.tokens = data.num_tokens();
    facts.tokens_per_step = plan->rows_per_step * o->seq_len;
    if (!o->val_data.empty() && o->val_every < 0) {
        const int64_t there = ShardSet(o->val_data, o->raw_tokens).num_tokens();
        facts.val_tokens = o->val_tokens > 0 ? std::min(o->val_tokens, there) : there;
    }
    const Chosen chosen = choose(*o, facts);
    plan->steps = chosen.steps;
    plan->schedule = {o->schedule, chosen.lr, chosen.final_lr_fraction, chosen.warmup, chosen.steps};
    plan->chosen = chosen.why;
    if (chosen.steps > 0) { o->steps = chosen.steps; }
    o->epochs = o->minutes = 0;
    o->optimizer = chosen.muon ? Optimizer::kMuon : Optimizer::kAdamW;
    o->lr = chosen.lr;
    o->warmup = chosen.warmup;
    o->final_lr_fraction = chosen.final_lr_fraction;
    o->val_every = chosen.val_every;
    o->sample_every = chosen.sample_every;
}

// in how many groups the gradients of a step are added; sets it in the plan's options
void choose_groups(RunPlan* plan) {
    Options* o = &plan->options;
    const int ranks = std::max(1, o->world_size);
    if (o->reduce_groups == 0 && !plan->checkpoint.empty()) {
        fill_from_run(run_folder_of(plan->checkpoint) + "/config.toml", o);
        o->reduce_groups = std::max(1, o->reduce_groups);  // a run of before there were any
    }
    if (o->reduce_groups == 0) { o->reduce_groups = ranks; }
    if (o->reduce_groups % ranks == 0) { return; }
    std::string divisors;
    for (int n = 1; n <= o->reduce_groups; n++) {
        if (o->reduce_groups % n == 0) { divisors += (divisors.empty() ? "" : ", ") + std::to_string(n); }
    }
    std::string change;
    if (o->total_batch % ((int64_t)o->batch * o->seq_len * ranks) == 0) {
        change = fmt::format(
            ", or change the groups: --reduce-groups {} (a run that goes on is then the same but for "
            "rounding)",
            ranks);
    }
    throw Error(
        kExitUsage,
        fmt::format(
            "the gradients are added in {} groups, which {} ranks cannot share evenly. Use {} ranks{}.",
            o->reduce_groups, ranks, divisors, change));
}

void require_groups(const RunPlan& plan) {
    const Options& o = plan.options;
    if (plan.micro_batches % o.reduce_groups == 0) { return; }
    const int64_t one = (int64_t)o.batch * o.seq_len * o.reduce_groups, low = o.total_batch / one * one,
                  high = low + one;
    throw Error(kExitUsage,
                fmt::format("--total-batch {}: its {} micro-batches of {} x {} tokens do not fill {} groups "
                            "evenly (--reduce-groups, or the number of ranks). Nearest: --total-batch {}{}.",
                            o.total_batch, plan.micro_batches, o.batch, o.seq_len, o.reduce_groups,
                            low > 0 ? fmt::format("{} or ", low) : "", high));
}

// a note about a shard for validation that is trained on, too: the same file, or a copy, which is of the same set
std::string trained_on(const ShardSet& val, const ShardSet& train) {
    for (const TokenShard& v : val.shards()) {
        for (const TokenShard& t : train.shards()) {
            std::error_code ignored;
            const bool alike =
                v.set_id() != 0 && v.set_id() == t.set_id() && v.num_tokens() == t.num_tokens();
            if (std::filesystem::equivalent(v.path(), t.path(), ignored) ||
                (alike && digest_file(v.path()) == digest_file(t.path()))) {
                return fmt::format(
                    "; note: {} is trained on, too ({}): the loss on it says nothing about new text",
                    v.path(), t.path());
            }
        }
    }
    return "";
}

// how the learning rate goes, in words
std::string schedule_text(const Schedule& s) {
    std::string text = fmt::format("lr {:g}", s.peak);
    if (s.warmup > 0) { text += fmt::format(" after {} warm-up steps", count_text(s.warmup)); }
    if (s.kind == Decay::kConstant || s.final_fraction == 1) { return text + ", then constant"; }
    return text + fmt::format(", then down to {:g} ({})", s.peak * s.final_fraction, text_of(s.kind));
}

}  // namespace

RunPlan make_run_plan(const Options& options, const DataLoader& data, double (*measure_speed)()) {
    RunPlan plan;
    plan.options = options;
    const Options& o = plan.options;
    plan.out = o.out.empty() ? default_run_folder() : o.out;
    if (o.resume == "auto" && o.out.empty()) {
        throw Error(kExitUsage, "--resume auto needs --out FOLDER: the run folder to go on in");
    }
    choose_model(data.vocab_size(), &plan);
    check_model(plan);
    choose_groups(&plan);
    int64_t tokens = o.total_batch > 0 ? o.total_batch : (int64_t)o.batch * o.seq_len * o.reduce_groups;
    plan.rows_per_step = tokens / o.seq_len;
    plan.micro_batches = plan.rows_per_step / o.batch;
    require_groups(plan);
    plan.windows_per_epoch = data.windows_per_epoch();
    const GPT2Config& c = plan.config;
    plan.flops_per_token =
        6.0 * (double)num_parameters(c) + 6.0 * c.num_layers * (double)c.channels * o.seq_len;
    choose_length(data, measure_speed, &plan);
    check_length(plan);
    if (plan.steps < 1) {
        const int64_t of_step = plan.rows_per_step * o.seq_len;
        throw Error(
            kExitUsage,
            fmt::format("one epoch of {} is {} tokens, less than the {} of a step. Give --steps, or a "
                        "smaller --batch or --total-batch.",
                        o.train_data, data.num_tokens(), of_step));
    }
    return plan;
}

std::string describe_run(const RunPlan& plan, const DataLoader& data, const ValidationData* val,
                         const MemoryPlan& m, const Device& device) {
    const Options& o = plan.options;
    const GPT2Config& c = plan.config;
    double epochs = (double)(plan.steps * plan.rows_per_step) / (double)data.windows_per_epoch();
    std::string available = m.available >= 0 ? bytes_text(m.available) : "unknown";
    std::string text;
    auto line = [&](const char* name, const std::string& value) {
        text += fmt::format("{:11}| {}\n", name, value);
    };
    line("device", device.name);
    if (device.peak_flops > 0) { line("peak", device.peak_meaning); }
    line("compute", compute_text(o));
    if (o.program == Program::kGpu) {
        line("products",
             o.tune_gemm.empty()
                 ? "cuBLASLt's first proposals; --tune-gemm FILE, on one GPU, searches for faster ones"
                 : "those of " + o.tune_gemm + " (searched for if it is not there)");
    }
    line("model", fmt::format("{} layers, {} heads, {} channels, {} positions: {} parameters", c.num_layers,
                              c.num_heads, c.channels, c.max_seq_len, count_text(num_parameters(c))));
    line("weights", plan.model_from);
    const int64_t missing = data.set().num_missing();
    line("data", fmt::format("{}: {} tokens in {} shard{}, vocabulary {}", o.train_data,
                             count_text(data.num_tokens()), data.num_shards(),
                             data.num_shards() == 1 ? "" : "s", data.vocab_size()) +
                     (missing > 0 ? fmt::format("; of their set {} more are missing", missing) : ""));
    line("validation",
         val == nullptr
             ? "none"
             : fmt::format("{}: {} tokens in {} rows{}", o.val_data, count_text(val->num_targets()),
                           count_text(val->num_rows()), trained_on(val->set(), data.set())));
    line("step", fmt::format("{} x {} rows of {} tokens = {} tokens", plan.micro_batches, o.batch, o.seq_len,
                             count_text(plan.rows_per_step * o.seq_len)));
    if (o.reduce_groups > 1) {
        line("ranks",
             fmt::format("{}, the gradients of {} groups of {} micro-batches added in order{}",
                         std::max(1, o.world_size), o.reduce_groups, (plan.micro_batches / o.reduce_groups),
                         o.world_size > 1 && o.zero ? ", optimizer sharded" : ""));
    }
    line("run",
         fmt::format("{} steps = {} tokens = {:.2f} epochs, seed {}, in {}", count_text(plan.steps),
                     count_text(plan.steps * plan.rows_per_step * o.seq_len), epochs, o.seed, plan.out));
    line("optimizer",
         fmt::format("{}AdamW, {}, betas {:g} {:g}, eps {:g}, decay {:g}, clip {:g}",
                     o.optimizer == Optimizer::kMuon ? "Muon for the blocks' matrices, else " : "",
                     schedule_text(plan.schedule), o.beta1, o.beta2, o.eps, o.weight_decay, o.clip));
    std::istringstream chosen(plan.chosen);
    bool first = true;
    for (std::string reason; std::getline(chosen, reason); first = false) {
        line(first ? "chosen" : "", reason);
    }
    line("memory",
         fmt::format("{} = parameters {} + gradients {} + optimizer {} + activations {}; available {}",
                     bytes_text(m.total()), bytes_text(m.parameters), bytes_text(m.gradients),
                     bytes_text(m.optimizer), bytes_text(m.activations), available));
    return text;
}

namespace {

// ways to need less memory for the same numbers, or nearly: as asked for, then ever more thorough
std::vector<Options> thriftier(const Options& o) {
    std::vector<Options> ways = {o};
    if (o.program == Program::kCpu) { return ways; }
    auto add = [&](Options way, Recompute recompute, bool bf16_gradients) {
        way.recompute = recompute;
        if (bf16_gradients) { way.grad_dtype = FloatType::kBf16; }
        ways.push_back(way);
    };
    if (o.recompute == Recompute::kNone) { add(o, Recompute::kGelu, false); }
    if (o.recompute != Recompute::kBlock) { add(o, Recompute::kBlock, false); }
    if (o.dtype == FloatType::kBf16 && o.grad_dtype != FloatType::kBf16) {
        add(o, o.recompute, true);
        if (o.recompute != Recompute::kBlock) { add(o, Recompute::kBlock, true); }
    }
    return ways;
}

// the options in which b differs from a, as they are typed
std::string difference(const Options& a, const Options& b) {
    std::string text;
    if (b.model != a.model) { text += " --model " + b.model; }
    if (b.recompute != a.recompute) { text += " --recompute " + text_of(b.recompute); }
    if (b.grad_dtype != a.grad_dtype) { text += " --grad-dtype " + text_of(b.grad_dtype); }
    if (b.batch != a.batch) { text += fmt::format(" --batch {}", b.batch); }
    return text.substr(std::min<size_t>(1, text.size()));
}

// what to change so that the run takes at most `available` bytes
std::string what_fits(const Options& o, const Needs& needs, const GPT2Config& config, int64_t available) {
    const std::vector<Options> ways = thriftier(o);
    for (const Options& way : ways) {
        if (needs(config, way) <= available) { return difference(o, way) + " would fit."; }
    }
    for (Options way : {ways.front(), ways.back()}) {
        for (; way.batch > 0; way.batch /= 2) {
            bool divides = o.total_batch % ((int64_t)way.batch * o.seq_len) == 0;
            if (divides && needs(config, way) <= available) { return difference(o, way) + " would fit."; }
        }
    }
    Options way = ways.back(), asked = o;
    way.batch = 1;
    asked.model.clear();                           // it may have been given by its three sizes
    for (int layers = 72; layers > 0; layers--) {  // the same positions and vocabulary, dN for the rest
        ModelShape shape;
        way.model = fmt::format("d{}", layers);
        model_descriptor(way.model, &shape);
        GPT2Config c = config;
        c.num_layers = shape.layers, c.num_heads = shape.heads, c.channels = shape.channels;
        if (needs(c, way) <= available) {
            return "No batch size fits; " + difference(asked, way) + " would.";
        }
    }
    GPT2Config least = config;
    least.num_layers = least.num_heads = 1, least.channels = 64, least.max_seq_len = way.seq_len = 1;
    return needs(least, way) <= available
               ? "No model fits at this --seq-len: use a smaller one."
               : fmt::format("No model with a vocabulary of {} fits, whatever its size.", config.vocab_size);
}

}  // namespace

void require_memory(const MemoryPlan& memory, const Options& o, const Needs& needs,
                    const GPT2Config& config) {
    if (memory.available < 0 || memory.total() <= memory.available) { return; }
    throw Error(
        kExitDevice,
        fmt::format("out of memory: a model of {} layers and {} channels with --batch {}, --seq-len {} needs "
                    "{}, but {} is available. {}",
                    config.num_layers, config.channels, o.batch, o.seq_len, bytes_text(memory.total()),
                    bytes_text(memory.available), what_fits(o, needs, config, memory.available)));
}

ModelSettings model_settings(const Options& o, Comm* comm) {
    return {.recompute = o.recompute,
            .tf32 = o.tf32,
            .matmul_file = o.tune_gemm,
            .graph = o.graph != 0,
            .muon = o.optimizer == Optimizer::kMuon,
            .ranks = std::max(1, o.world_size),
            .groups = std::max({1, o.world_size, o.reduce_groups}),
            .shard = o.zero != 0,
            .local_ranks = comm != nullptr ? comm->local_size() : 1,
            .comm = comm};
}

TrainingState training_state(const RunPlan& plan, int64_t step, int64_t updates) {
    const Options& o = plan.options;
    return {step, updates, o.seed, o.seq_len, plan.rows_per_step, o.optimizer};
}

void require_same_run(const RunPlan& plan) {
    const Options& o = plan.options;
    const TrainingState& found = plan.record.state;
    const std::string& name = plan.checkpoint;
    if (found.seed != o.seed) {
        throw Error(kExitUsage,
                    fmt::format("{} was made with --seed {}, not {}: the order of the data depends on "
                                "it. Go on with --seed {}.",
                                name, found.seed, o.seed, found.seed));
    }
    if (found.optimizer != o.optimizer) {
        throw Error(
            kExitUsage,
            fmt::format(
                "{} was made with --optimizer {}, not {}, which keeps other moments. Go on with "
                "--optimizer {}, or start a new run from its weights: --resume none --model {} --out NEW.",
                name, text_of(found.optimizer), text_of(o.optimizer), text_of(found.optimizer),
                shell_word(name)));
    }
    if (found.step > plan.steps) {
        throw Error(kExitUsage,
                    fmt::format("{}: found step {}, expected at most --steps {}. Give more --steps.", name,
                                found.step, plan.steps));
    }
    auto same = [&](const char* option, int64_t was, int64_t is) {
        if (was == is) { return; }
        throw Error(
            kExitUsage,
            fmt::format("{} was made with {} {}, not {}: it would go on at another place in the data. Go "
                        "on with {} {}, or start a new run from its weights: --resume none --model "
                        "{} --out NEW.",
                        name, option, was, is, option, was, shell_word(name)));
    };
    same("--seq-len", found.seq_len, o.seq_len);
    same("--total-batch", found.rows_per_step * o.seq_len, plan.rows_per_step * o.seq_len);
}

}  // namespace llmc

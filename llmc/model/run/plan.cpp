// The plan of a training run: see run/plan.h.
#include "llmc/model/run/plan.h"

#include <fmt/ranges.h>
#include <ctime>
#include <filesystem>
#include <sstream>
#include <vector>

#include "llmc/host/base/error.h"
#include "llmc/host/base/text.h"
#include "llmc/host/files/file_io.h"
#include "llmc/host/log/run_log.h"
#include "llmc/host/options/choices.h"
#include "llmc/host/ranks/comm.h"
#include "llmc/model/model_source.h"
#include "llmc/model/run/folder.h"
#include "llmc/ops/muon/muon.h"

namespace llmc {

// ---- what the options leave open

namespace {

// The measurements behind these numbers: doc/step.md. Tokens for each parameter: Hoffmann et al. 2022, arXiv:2203.15556. On the
// CPU, where a first try should end while its user waits, fewer, as more than twice as many take little off.
constexpr double kTokensPerParameter = 20, kCpuTokensPerParameter = 8;
// Beyond, a repeated text teaches little: Muennighoff et al. 2023, arXiv:2305.16264 (half-life 16 epochs); sooner with Muon.
constexpr double kMostEpochs = 10, kMostMuonEpochs = 4;
// AdamW needs about three times Muon's steps to the same loss, which a step of Muon may cost. Not tried above 384 channels.
constexpr double kMuonWorth = 3;
constexpr int kWidestMuon = 384;
// Share of the speed of one large product that a step of 1.4 M parameters and 1,024 tokens reached on two idle cores
constexpr double kShareOfSpeed = 0.56;
// Muon's best learning rate over what AdamW is given here: 5 to 10 at 64 and 96 channels; at 192 half of it is a little better
// after thousands of steps, and much worse after hundreds; at 384 it is better.
double muon_over_adamw(int channels) { return channels > 192 ? 2.5 : 5; }
constexpr int64_t kMostWarmup = 1000;

// Muon where a new model is trained and its iterations cost less than the steps that they save
bool worth_muon(const Options& o, const RunFacts& f) {
    return !f.pretrained && !o.llmc_letters && o.lr < 0 && f.channels <= kWidestMuon &&
           f.muon_flops <= (kMuonWorth - 1) * f.flops_per_token * (double)f.tokens_per_step;
}

// of this run, at the speed that the device has now
double seconds_of_step(const RunFacts& f, bool muon) {
    return (f.flops_per_token * (double)f.tokens_per_step + (muon ? f.muon_flops : 0)) /
           (kShareOfSpeed * f.flops_per_s);
}

int64_t choose_steps(const Options& o, const RunFacts& f, bool muon, std::string* why) {
    const double epoch = (double)f.tokens_per_epoch;
    const auto steps_of = [&](double epochs) {
        return std::max<int64_t>(1, std::llround(epochs * epoch / (double)f.tokens_per_step));
    };
    if (o.steps > 0) { return o.steps; }
    if (o.epochs > 0) { return steps_of(o.epochs); }
    if (o.minutes > 0) {
        throw_if(f.flops_per_s == 0, kExitUsage,
                 "--minutes plans by the speed of a CPU; on a GPU give --steps or --epochs.");
        *why += fmt::format("steps: what this machine does in about {:g} minutes at its present speed\n",
                            o.minutes);
        return std::max<int64_t>(1, std::llround(60 * o.minutes / seconds_of_step(f, muon)));
    }
    // as in llm.c, whose scripts wait for the checkpoint of this step
    if (o.steps == kOneEpoch || o.llmc_letters) { return f.tokens / f.tokens_per_step; }
    const bool gpu = o.program == Program::kGpu;
    const double each = gpu ? kTokensPerParameter : kCpuTokensPerParameter;
    const double useful = each * (double)f.parameters / epoch;
    const double least = gpu ? 1 : 0, most = muon ? kMostMuonEpochs : kMostEpochs;
    double epochs = std::clamp(useful, least, most);
    std::string reason = epochs == most   ? "a text read more often teaches little"
                         : useful < least ? "each token once"
                                          : fmt::format("about {:g} tokens for each parameter", each);
    if (epochs > 1) { epochs = std::round(epochs); }
    const int64_t steps = steps_of(epochs);
    const double read = (double)(steps * f.tokens_per_step) / epoch;
    if (read > 1.5 * epochs) {  // there is no smaller number of steps
        epochs = read;
        reason = "a step has more tokens; a smaller --batch or --total-batch has fewer";
    }
    *why += fmt::format("steps: {:.3g} epoch{}: {} (--steps or --epochs to choose)\n", epochs,
                        epochs == 1 ? "" : "s", reason);
    if (f.flops_per_s > 0) {
        *why += fmt::format(
            "time: about {} at the present speed of this machine; --minutes N plans for another\n",
            duration_text((double)steps * seconds_of_step(f, muon)));
    }
    return steps;
}

// Kaplan et al. 2020, arXiv:2001.08361, equation D.1, within what it was measured on; GPT-2 124M gets 7e-4
double choose_lr(const RunFacts& f, bool muon, std::string* why) {
    double lr =
        std::clamp(0.003239 - 0.0001395 * std::log((double)std::max<int64_t>(1, f.parameters)), 2e-4, 2e-3);
    const char* reason = muon ? "for a model of this size by Muon" : "for a model of this size";
    if (muon) { lr *= muon_over_adamw(f.channels); }
    if (f.pretrained) {
        lr /= 10;
        reason = "a tenth of what a new model of this size gets, so as not to forget what it knows";
    }
    const double unit = std::pow(10.0, std::floor(std::log10(lr)) - 1);
    lr = std::round(lr / unit) * unit;  // two digits
    *why += fmt::format("lr: {:.1e}: {}\n", lr, reason);
    return lr;
}

// ten times, or as often as it takes a seventh of the time; a validation is a third of a step's work a token
int64_t choose_val_every(const RunFacts& f, int64_t steps) {
    const double affordable =
        3.0 / 7 * (double)steps * (double)f.tokens_per_step / (double)std::max<int64_t>(1, f.val_tokens);
    const auto times = (int64_t)std::min(10.0, affordable);
    return times == 0 ? 0 : (steps + times - 1) / times;
}

// ---- the plan

constexpr int64_t kMostMicroBatches = 1 << 20;  // of a step: their tokens are all in memory at once

std::string default_run_folder() {
    char text[64];
    const std::time_t now = std::time(nullptr);
    std::strftime(text, sizeof(text), "runs/%Y%m%d-%H%M%S", std::localtime(&now));
    return text;
}

// the number formats at work
std::string compute_text(const Options& o) {
    const char* fp8 = o.fp8 ? ", the blocks' products in FP8" : "";
    if (o.program == Program::kCpu) { return std::string("fp32") + fp8; }
    std::string text = o.dtype == FloatType::kBf16
                           ? "bf16, fp32 master weights, gradients " + text_of(o.grad_dtype)
                       : o.tf32 ? "fp32, products in TF32"
                                : "fp32";
    return text + fp8 + ", recompute " + text_of(o.recompute);
}

// A checkpoint has its own sizes; other ones that an option names are a mistake.
void require_same_shape(const RunPlan& plan, ModelShape asked) {
    const GPT2Config& c = plan.config;
    const ModelShape found{c.num_layers, c.num_heads, c.channels};
    const bool stated = asked.layers > 0 || model_descriptor(plan.options.model, &asked);
    if (!stated || asked == found) { return; }
    throw Error(kExitUsage,
                "{}: found a model of {} layers, {} heads, {} channels, but the options ask for {}, {}, {}. "
                "Leave them out, or start a new run: another --out, --resume none.",
                plan.checkpoint, found.layers, found.heads, found.channels, asked.layers, asked.heads,
                asked.channels);
}

// takes from the checkpoint's run what the options leave open
void go_on(RunPlan* plan) {
    Options& o = plan->options;
    const Checkpoint checkpoint(plan->checkpoint);
    const GPT2Config& c = plan->config = checkpoint.config();
    plan->record = checkpoint.record();
    plan->model_from = plan->checkpoint;
    plan->model_folder = run_folder_of(plan->checkpoint);
    require_same_shape(*plan, {o.layers, o.heads, o.channels});
    if (o.optimizer == Optimizer::kAuto) { o.optimizer = plan->record.state.optimizer; }
    if (o.model == kAutoModel && o.layers == 0) {
        o.layers = c.num_layers, o.heads = c.num_heads, o.channels = c.channels;
    }
    // what was worked out once is not worked out again: the result would depend on how busy the machine is
    const bool known = fill_from_run(plan->model_folder + "/config.toml", &o);
    if (o.reduce_groups == 0) { o.reduce_groups = 1; }  // a run of before there were any
    const bool open = (o.steps == kAuto && o.epochs == 0 && o.minutes == 0) || o.lr < 0 || o.warmup < 0 ||
                      o.final_lr_fraction < 0;
    throw_if(!known && open && !o.llmc_letters, kExitUsage,
             "{}: no config.toml beside it says how long the run is and how its learning rate goes. Give "
             "--steps, --lr, --warmup and --final-lr-fraction.",
             plan->checkpoint);
}

// where weights and sizes come from: a checkpoint, a model file, or the options; sets what the plan's options leave open
void choose_model(int vocab_size, RunPlan* plan) {
    Options& o = plan->options;
    std::string notes;
    if (o.resume == "auto") {
        plan->checkpoint = find_checkpoint(plan->out, &notes);
        put_text(stderr, notes);
    } else if (o.resume != "none") {
        plan->checkpoint = o.resume;
        if (const std::string newest = newest_step(o.resume); !newest.empty()) {
            throw Error(
                kExitBadInput,
                "{}: a run folder, not a checkpoint. To go on in it: --resume auto --out {}; to begin "
                "another run with its newest checkpoint: --resume {} --out NEW.",
                o.resume, shell_word(o.resume), shell_word(newest));
        }
    }
    if (!plan->checkpoint.empty()) { return go_on(plan); }
    if (o.model == kAutoModel && o.layers == 0) { o.model = o.program == Program::kCpu ? "d3" : "d6"; }
    ModelShape shape{o.layers, o.heads, o.channels};
    if (o.layers == 0 && !model_descriptor(o.model, &shape)) {
        const NamedModel model = open_model(o.model, &notes);
        const HfFacts facts = model.source->facts();
        if (o.dropout > 0 && facts.attn_pdrop > 0) {
            notes += fmt::format(
                "note: --dropout {:g} leaves out the dropout in attention that {} was trained with "
                "(attn_pdrop "
                "{:g})\n",
                o.dropout, model.path, facts.attn_pdrop);
        }
        put_text(stderr, notes);
        plan->model_file = plan->model_from = model.path;
        plan->model_folder = model.folder;
        plan->config = model.source->config();
        plan->record.kept = facts.kept;
        return;
    }
    const int positions = o.max_seq_len > 0 ? o.max_seq_len : o.seq_len, rows = padded_vocab(vocab_size);
    plan->config = {positions, vocab_size, rows, shape.layers, shape.heads, shape.channels};
    plan->model_from = "random initialisation";
}

// a step's micro-batches, and in how many groups their gradients are added
void choose_batches(RunPlan* plan) {
    Options& o = plan->options;
    const int ranks = std::max(1, o.world_size);
    if (o.reduce_groups == 0) { o.reduce_groups = ranks; }
    const int64_t one = (int64_t)o.batch * o.seq_len;
    if (o.reduce_groups % ranks != 0) {
        std::vector<int> divisors;
        for (int n = 1; n <= o.reduce_groups; n++) {
            if (o.reduce_groups % n == 0) { divisors.push_back(n); }
        }
        const std::string change = fmt::format(
            ", or change the groups: --reduce-groups {} (a run that goes on is then the same but for "
            "rounding)",
            ranks);
        throw Error(kExitUsage,
                    "the gradients are added in {} groups, which {} ranks cannot share evenly. Use {} "
                    "ranks{}.",
                    o.reduce_groups, ranks, fmt::join(divisors, ", "),
                    o.total_batch % (one * ranks) == 0 ? change : "");
    }
    const int64_t tokens = o.total_batch > 0 ? o.total_batch : one * o.reduce_groups;
    plan->rows_per_step = tokens / o.seq_len;
    plan->micro_batches = plan->rows_per_step / o.batch;
    if (plan->micro_batches % o.reduce_groups == 0) { return; }
    const int64_t low = tokens / (one * o.reduce_groups) * one * o.reduce_groups;
    throw Error(kExitUsage,
                "--total-batch {}: its {} micro-batches of {} x {} tokens do not fill {} groups "
                "evenly (--reduce-groups, or the number of ranks). Nearest: --total-batch {}{}.",
                tokens, plan->micro_batches, o.batch, o.seq_len, o.reduce_groups,
                low > 0 ? fmt::format("{} or ", low) : "", low + one * o.reduce_groups);
}

// the length of the run and its learning rate; sets them in the plan's options, so that config.toml has them
void choose_length(const DataLoader& data, double (*measure_speed)(), RunPlan* plan) {
    Options& o = plan->options;
    const GPT2Config& c = plan->config;
    RunFacts facts = {
        .parameters = num_parameters(c) - (int64_t)(c.vocab_size + c.max_seq_len) * c.channels,
        .channels = c.channels,
        .flops_per_token = plan->flops_per_token,
        .muon_flops = muon_flops(c),
        .pretrained = !plan->model_file.empty(),
        .tokens_per_epoch = plan->windows_per_epoch * o.seq_len,
        .tokens_per_step = plan->rows_per_step * o.seq_len,
        .tokens = data.num_tokens(),
    };
    if (measure_speed != nullptr && o.steps == kAuto && o.epochs == 0) {
        facts.flops_per_s = measure_speed() * std::max(1, o.world_size);
    }
    if (!o.val_data.empty() && o.val_every < 0) {
        const int64_t there = ShardSet(o.val_data, o.raw_tokens).num_tokens();
        facts.val_tokens = o.val_tokens > 0 ? std::min(o.val_tokens, there) : there;
    }
    plan->chosen = choose(facts, &o);
    throw_if(o.patience > 0 && o.val_every == 0, kExitUsage,
             "--patience {} counts validations, and with --val-every 0 there is none before the end. Give "
             "--val-every N.",
             o.patience);
    plan->steps = o.steps;
    plan->schedule = {o.schedule, o.lr, o.final_lr_fraction, o.warmup, o.steps};
    if (plan->steps >= 1) { return; }
    throw Error(kExitUsage,
                "one epoch of {} is {} tokens, less than the {} of a step. Give --steps, or a smaller "
                "--batch or --total-batch.",
                o.train_data, facts.tokens, facts.tokens_per_step);
}

// counts that the rest of the program multiplies
void check_length(const RunPlan& plan) {
    const Options& o = plan.options;
    throw_if(plan.micro_batches > kMostMicroBatches, kExitUsage,
             "--total-batch {} is {} micro-batches of {} x {} tokens, at most {} are possible. Give a larger "
             "--batch or a smaller --total-batch.",
             o.total_batch, plan.micro_batches, o.batch, o.seq_len, kMostMicroBatches);
    uint64_t rows, tokens;
    throw_if(!multiply_fits((uint64_t)plan.steps, (uint64_t)plan.rows_per_step, &rows) ||
                 !multiply_fits(rows, (uint64_t)o.seq_len, &tokens) || tokens > (uint64_t)INT64_MAX,
             kExitUsage,
             "--steps {} of {} x {} tokens: that many tokens cannot be counted. Give fewer --steps.",
             plan.steps, plan.rows_per_step, o.seq_len);
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

// ways to need less memory for the same numbers, or nearly: as asked for, then ever more thorough
std::vector<Options> thriftier(const Options& o) {
    std::vector<Options> ways = {o};
    if (o.program == Program::kCpu) { return ways; }
    const auto add = [&](Recompute recompute, FloatType gradients) {
        ways.push_back(o);
        ways.back().recompute = recompute;
        ways.back().grad_dtype = gradients;
    };
    if (o.recompute == Recompute::kNone) { add(Recompute::kGelu, o.grad_dtype); }
    if (o.recompute != Recompute::kBlock) { add(Recompute::kBlock, o.grad_dtype); }
    if (o.dtype == FloatType::kBf16 && o.grad_dtype != FloatType::kBf16) {
        add(o.recompute, FloatType::kBf16);
        if (o.recompute != Recompute::kBlock) { add(Recompute::kBlock, FloatType::kBf16); }
    }
    return ways;
}

// the options in which b differs from a, as they are typed
std::string difference(const Options& a, const Options& b) {
    std::vector<std::string> words;
    if (b.model != a.model) { words.push_back("--model " + b.model); }
    if (b.recompute != a.recompute) { words.push_back("--recompute " + text_of(b.recompute)); }
    if (b.grad_dtype != a.grad_dtype) { words.push_back("--grad-dtype " + text_of(b.grad_dtype)); }
    if (b.batch != a.batch) { words.push_back(fmt::format("--batch {}", b.batch)); }
    return fmt::format("{}", fmt::join(words, " "));
}

// what to change so that the run takes at most `available` bytes
std::string what_fits(const Options& o, Models models, const GPT2Config& config, int64_t available) {
    const auto fits = [&](const Options& way, const GPT2Config& c) {
        return models(way).plan(c, way.batch, way.seq_len, model_settings(way)).total() <= available;
    };
    std::vector<Options> ways = thriftier(o);
    Options way = ways.back(), asked = o;
    for (Options smaller : {ways.front(), ways.back()}) {
        while ((smaller.batch /= 2) > 0) {
            if (o.total_batch % ((int64_t)smaller.batch * o.seq_len) == 0) { ways.push_back(smaller); }
        }
    }
    const auto fitting = std::ranges::find_if(ways, [&](const Options& o) { return fits(o, config); });
    if (fitting != ways.end()) { return difference(o, *fitting) + " would fit."; }
    way.batch = 1;
    asked.model.clear();  // it may have been given by its three sizes
    GPT2Config c = config;
    for (int layers = 72; layers > 0; layers--) {  // the same positions and vocabulary, dN for the rest
        ModelShape shape;
        way.model = fmt::format("d{}", layers);
        model_descriptor(way.model, &shape);
        c.num_layers = shape.layers, c.num_heads = shape.heads, c.channels = shape.channels;
        if (fits(way, c)) { return "No batch size fits; " + difference(asked, way) + " would."; }
    }
    c.num_layers = c.num_heads = 1, c.channels = 64, c.max_seq_len = way.seq_len = 1;
    return fits(way, c)
               ? "No model fits at this --seq-len: use a smaller one."
               : fmt::format("No model with a vocabulary of {} fits, whatever its size.", config.vocab_size);
}

}  // namespace

double muon_flops(const GPT2Config& c) {
    double flops = 0;
    for (int t = 0; t < kNumTensors; t++) {
        if (!is_block_matrix(t)) { continue; }
        const BlockMatrices m = block_matrices(c, t);
        flops +=
            (double)c.num_layers * m.count * m.shorter() * m.shorter() * (3.0 * m.longer() + m.shorter());
    }
    return kNewtonSchulzSteps * flops;
}

std::string choose(const RunFacts& f, Options* options) {
    Options& o = *options;
    const bool letters = o.llmc_letters;
    std::string why;
    if (o.optimizer == Optimizer::kAuto && worth_muon(o, f)) {
        o.optimizer = Optimizer::kMuon;
        why += "optimizer: Muon, by which a small new model learns in fewer steps\n";
    }
    const bool muon = o.optimizer == Optimizer::kMuon;
    if (!muon) { o.optimizer = Optimizer::kAdamW; }
    o.steps = choose_steps(o, f, muon, &why);
    o.epochs = o.minutes = 0;
    if (o.lr < 0) { o.lr = letters ? 3e-4 : choose_lr(f, muon, &why); }
    if (o.warmup < 0) {
        o.warmup = letters ? 0 : std::min(kMostWarmup, o.steps / 20);
        if (!letters) { why += fmt::format("warm-up: a twentieth of the steps, at most {}\n", kMostWarmup); }
    }
    if (o.final_lr_fraction < 0) {
        o.final_lr_fraction = letters ? 1 : 0.1;
        if (!letters) { why += "decay: to a tenth, as GPT-3's\n"; }
    }
    if (o.warmup >= o.steps && o.warmup > 0 && o.lr > 0) {
        why += fmt::format(
            "note: a warm-up of {} steps in a run of {}: the learning rate does not get further "
            "than {:.2g}\n",
            o.warmup, o.steps, o.lr * (double)o.steps / (double)o.warmup);
    }
    const int64_t every = letters ? 20 : (o.steps + 9) / 10;
    if (o.val_every < 0) { o.val_every = letters ? every : choose_val_every(f, o.steps); }
    if (o.sample_every < 0) { o.sample_every = every; }
    return why;
}

RunPlan make_run_plan(const Options& options, const DataLoader& data, double (*measure_speed)()) {
    RunPlan plan;
    plan.options = options;
    const Options& o = plan.options;
    plan.out = o.out.empty() ? default_run_folder() : o.out;
    throw_if(o.resume == "auto" && o.out.empty(), kExitUsage,
             "--resume auto needs --out FOLDER: the run folder to go on in");
    choose_model(data.vocab_size(), &plan);
    const GPT2Config& c = plan.config;
    throw_if(o.seq_len > c.max_seq_len, kExitUsage,
             "--seq-len {} is more than the {} positions of {}. Use --seq-len {} or less.", o.seq_len,
             c.max_seq_len, plan.model_from, c.max_seq_len);
    choose_batches(&plan);
    plan.windows_per_epoch = data.windows_per_epoch();
    plan.flops_per_token =
        6.0 * (double)num_parameters(c) + 6.0 * c.num_layers * (double)c.channels * o.seq_len;
    choose_length(data, measure_speed, &plan);
    check_length(plan);
    return plan;
}

std::string describe_run(const RunPlan& plan, const DataLoader& data, const ValidationData* val,
                         const MemoryPlan& m, const Device& device) {
    const Options& o = plan.options;
    const GPT2Config& c = plan.config;
    const int64_t of_step = plan.rows_per_step * o.seq_len, missing = data.set().num_missing();
    std::string text;
    const auto line = [&]<typename... Args>(const char* name, fmt::format_string<Args...> value,
                                            Args&&... args) {
        text += fmt::format("{:11}| {}\n", name, fmt::format(value, std::forward<Args>(args)...));
    };
    line("device", "{}", device.name);
    if (device.peak_flops > 0) { line("peak", "{}", device.peak_meaning); }
    line("compute", "{}", compute_text(o));
    if (o.program == Program::kGpu && o.tune_gemm.empty()) {
        line("products",
             "cuBLASLt's first proposals; --tune-gemm FILE, on one GPU, searches for faster ones");
    } else if (o.program == Program::kGpu) {
        line("products", "those of {} (searched for if it is not there)", o.tune_gemm);
    }
    line("model", "{} layers, {} heads, {} channels, {} positions: {} parameters", c.num_layers, c.num_heads,
         c.channels, c.max_seq_len, count_text(num_parameters(c)));
    line("weights", "{}", plan.model_from);
    line("data", "{}: {} tokens in {} shard{}, vocabulary {}{}", o.train_data, count_text(data.num_tokens()),
         data.num_shards(), data.num_shards() == 1 ? "" : "s", data.vocab_size(),
         missing > 0 ? fmt::format("; of their set {} more are missing", missing) : "");
    if (val == nullptr) {
        line("validation", "none");
    } else {
        line("validation", "{}: {} tokens in {} rows{}", o.val_data, count_text(val->num_targets()),
             count_text(val->num_rows()), trained_on(val->set(), data.set()));
    }
    line("step", "{} x {} rows of {} tokens = {} tokens", plan.micro_batches, o.batch, o.seq_len,
         count_text(of_step));
    if (o.reduce_groups > 1) {
        line("ranks", "{}, the gradients of {} groups of {} micro-batches added in order{}",
             std::max(1, o.world_size), o.reduce_groups, plan.micro_batches / o.reduce_groups,
             o.world_size > 1 && o.zero ? ", optimizer sharded" : "");
    }
    line("run", "{} steps = {} tokens = {:.2f} epochs, seed {}, in {}", count_text(plan.steps),
         count_text(plan.steps * of_step),
         (double)(plan.steps * plan.rows_per_step) / (double)data.windows_per_epoch(), o.seed, plan.out);
    line("optimizer", "{}AdamW, {}, betas {:g} {:g}, eps {:g}, decay {:g}, clip {:g}{}",
         o.optimizer == Optimizer::kMuon ? "Muon for the blocks' matrices, else " : "",
         schedule_text(plan.schedule), o.beta1, o.beta2, o.eps, o.weight_decay, o.clip,
         o.dropout > 0 ? fmt::format(", dropout {:g}", o.dropout) : "");
    std::istringstream chosen(plan.chosen);
    const char* name = "chosen";
    for (std::string reason; std::getline(chosen, reason); name = "") { line(name, "{}", reason); }
    line("memory", "{} = parameters {} + gradients {} + optimizer {} + activations {}; available {}",
         bytes_text(m.total()), bytes_text(m.parameters), bytes_text(m.gradients), bytes_text(m.optimizer),
         bytes_text(m.activations), m.available >= 0 ? bytes_text(m.available) : "unknown");
    if (m.fp8_weights > 0) {
        line("FP8", "weights {}, in both orders, among the activations", bytes_text(m.fp8_weights));
        line("", "the other activations {} {} than without --fp8", bytes_text(std::abs(m.fp8_saved)),
             m.fp8_saved >= 0 ? "less" : "more");
    }
    return text;
}

void require_memory(const MemoryPlan& memory, const Options& o, Models models, const GPT2Config& config) {
    if (memory.available < 0 || memory.total() <= memory.available) { return; }
    throw Error(kExitDevice,
                "out of memory: a model of {} layers and {} channels with --batch {}, --seq-len {} needs "
                "{}, but {} is available. {}",
                config.num_layers, config.channels, o.batch, o.seq_len, bytes_text(memory.total()),
                bytes_text(memory.available), what_fits(o, models, config, memory.available));
}

ModelSettings model_settings(const Options& o, Comm* comm) {
    return {.recompute = o.recompute,
            .tf32 = o.tf32,
            .matmul_file = o.tune_gemm,
            .graph = o.graph != 0,
            .fp8 = o.fp8,
            .muon = o.optimizer == Optimizer::kMuon,
            .dropout = o.dropout,
            .seed = o.seed,
            .ranks = std::max(1, o.world_size),
            .groups = std::max({1, o.world_size, o.reduce_groups}),
            .shard = o.zero != 0,
            .local_ranks = comm != nullptr ? comm->local_size() : 1,
            .comm = comm};
}

void require_same_run(const RunPlan& plan) {
    if (plan.checkpoint.empty()) { return; }
    const Options& o = plan.options;
    const TrainingState& found = plan.record.state;
    const std::string& name = plan.checkpoint;
    const std::string anew =
        ", or start a new run from its weights: --resume none --model " + shell_word(name) + " --out NEW";
    const auto same = [&](const char* option, const auto& was, const auto& is, const char* why,
                          const std::string& else_do) {
        if (was == is) { return; }
        throw Error(kExitUsage, "{} was made with {} {}, not {}{}. Go on with {} {}{}.", name, option, was,
                    is, why, option, was, else_do);
    };
    same("--seed", found.seed, o.seed, ": the order of the data depends on it", "");
    same("--optimizer", text_of(found.optimizer), text_of(o.optimizer), ", which keeps other moments", anew);
    throw_if(found.step > plan.steps, kExitUsage,
             "{}: found step {}, expected at most --steps {}. Give more --steps.", name, found.step,
             plan.steps);
    constexpr const char* kPlace = ": it would go on at another place in the data";
    same("--seq-len", found.seq_len, o.seq_len, kPlace, anew);
    same("--total-batch", found.rows_per_step * o.seq_len, plan.rows_per_step * o.seq_len, kPlace, anew);
}

}  // namespace llmc

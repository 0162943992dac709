// The plan of a training run: see run_plan.h.
#include "llmc/run_plan.h"

#include <ctime>

#include "llmc/binary_file.h"
#include "llmc/checkpoint.h"
#include "llmc/error.h"

namespace llmc {

namespace {

constexpr int64_t kMostMicroBatches = 1 << 20;  // of a step: their tokens are all in memory at once

std::string bytes_text(int64_t bytes) {
    return bytes < (1 << 20)     ? strf("%.1f KiB", (double)bytes / 1024)
           : bytes < (1 << 30)   ? strf("%.1f MiB", (double)bytes / (1 << 20))
           : bytes < (1LL << 40) ? strf("%.2f GiB", (double)bytes / (1 << 30))
                                 : strf("%.1f TiB", (double)bytes / (double)(1LL << 40));
}

// 124475904 -> "124,475,904"
std::string count_text(int64_t n) {
    std::string s = std::to_string(n);
    for (int i = (int)s.size() - 3; i > (n < 0); i -= 3) { s.insert((size_t)i, 1, ','); }
    return s;
}

std::string default_run_folder() {
    char text[64];
    std::time_t now = std::time(nullptr);
    std::strftime(text, sizeof(text), "runs/%Y%m%d-%H%M%S", std::localtime(&now));
    return text;
}

// A checkpoint has its own sizes; other ones asked for in so many words are a mistake.
void require_same_shape(const Options& o, const RunPlan& plan) {
    const GPT2Config& c = plan.config;
    ModelShape asked{o.layers, o.heads, o.channels}, found{c.num_layers, c.num_heads, c.channels};
    bool stated = o.layers > 0 || (o.model != Options{}.model && model_descriptor(o.model, &asked));
    if (stated && asked != found) {
        throw Error(
            kExitUsage,
            strf("%s: found a model of %d layers, %d heads, %d channels, but the options ask for %d, %d, "
                 "%d. Leave them out, or start a new run: another --out, --resume none.",
                 plan.checkpoint.c_str(), found.layers, found.heads, found.channels, asked.layers,
                 asked.heads, asked.channels));
    }
}

// where the weights come from and the model's sizes: a checkpoint, a model file, or the options
void choose_model(const Options& o, int vocab_size, RunPlan* plan) {
    if (o.resume == "auto") {
        std::string notes;
        plan->checkpoint = find_checkpoint(plan->out, &notes);
        if (plan->checkpoint.empty() &&
            !notes.empty()) {  // to start from nothing here would destroy the run's log
            throw Error(kExitBadInput,
                        strf("%s: no checkpoint in it is intact:\n%sTo train from the beginning, choose "
                             "another --out or remove its step_ folders.",
                             plan->out.c_str(), notes.c_str()));
        }
        if (!notes.empty()) { std::fprintf(stderr, "%s", notes.c_str()); }
    } else if (o.resume != "none") {
        plan->checkpoint = o.resume;
    }
    ModelShape shape{o.layers, o.heads, o.channels};
    if (!plan->checkpoint.empty()) {
        plan->config = checkpoint_config(plan->checkpoint);
        plan->model_from = plan->checkpoint;
        require_same_shape(o, *plan);
    } else if (o.layers == 0 && !model_descriptor(o.model, &shape)) {
        plan->model_file = plan->model_from = o.model;
        plan->config = ModelFile(o.model).config();
    } else {
        int positions = o.max_seq_len > 0 ? o.max_seq_len : o.seq_len;
        plan->config = {positions,    vocab_size,  padded_vocab(vocab_size),
                        shape.layers, shape.heads, shape.channels};
        plan->model_from = "random initialisation";
    }
}

void check_model(const Options& o, const RunPlan& plan, int vocab_size) {
    if (plan.config.vocab_size != vocab_size) {
        throw Error(kExitBadInput,
                    strf("%s has a vocabulary of %d tokens, %s of %d: they cannot be used together. "
                         "Make the shards with the model's tokenizer, or train a new model (--model d12).",
                         plan.model_from.c_str(), plan.config.vocab_size, o.train_data.c_str(), vocab_size));
    }
    if (o.seq_len > plan.config.max_seq_len) {
        throw Error(
            kExitUsage,
            strf("--seq-len %d is more than the %d positions of %s. Use --seq-len %d or less.", o.seq_len,
                 plan.config.max_seq_len, plan.model_from.c_str(), plan.config.max_seq_len));
    }
}

// counts that the rest of the program multiplies
void check_length(const Options& o, const RunPlan& plan) {
    if (plan.micro_batches > kMostMicroBatches) {
        throw Error(
            kExitUsage,
            strf("--total-batch %lld is %lld micro-batches of %d x %d tokens, at most %lld are possible. "
                 "Give a larger --batch or a smaller --total-batch.",
                 (long long)o.total_batch, (long long)plan.micro_batches, o.batch, o.seq_len,
                 (long long)kMostMicroBatches));
    }
    uint64_t rows, tokens;
    bool fits = multiply_fits((uint64_t)plan.steps, (uint64_t)plan.rows_per_step, &rows) &&
                multiply_fits(rows, (uint64_t)o.seq_len, &tokens) && tokens <= (uint64_t)INT64_MAX;
    if (!fits) {
        throw Error(kExitUsage,
                    strf("--steps %lld of %lld x %d tokens: that many tokens cannot be counted. Give fewer "
                         "--steps.",
                         (long long)plan.steps, (long long)plan.rows_per_step, o.seq_len));
    }
}

}  // namespace

RunPlan make_run_plan(const Options& o, const DataLoader& data) {
    RunPlan plan;
    plan.out = o.out.empty() ? default_run_folder() : o.out;
    if (o.resume == "auto" && o.out.empty()) {
        throw Error(kExitUsage, "--resume auto needs --out FOLDER: the run folder to go on in");
    }
    choose_model(o, data.vocab_size(), &plan);
    check_model(o, plan, data.vocab_size());
    int64_t tokens = o.total_batch > 0 ? o.total_batch : (int64_t)o.batch * o.seq_len;
    plan.rows_per_step = tokens / o.seq_len;
    plan.micro_batches = plan.rows_per_step / o.batch;
    plan.steps_per_epoch = data.windows_per_epoch() / plan.rows_per_step;
    plan.steps = o.steps >= 0 ? o.steps : plan.steps_per_epoch;
    check_length(o, plan);
    if (plan.steps < 1) {
        throw Error(
            kExitUsage,
            strf("one epoch of %s is %lld windows, less than the %lld of a step. Give --steps, or a "
                 "smaller --batch or --total-batch.",
                 o.train_data.c_str(), (long long)data.windows_per_epoch(), (long long)plan.rows_per_step));
    }
    plan.schedule = {o.schedule, o.lr, o.final_lr_fraction, o.warmup, plan.steps};
    const GPT2Config& c = plan.config;
    plan.flops_per_token =
        6.0 * (double)num_parameters(c) + 6.0 * c.num_layers * (double)c.channels * o.seq_len;
    return plan;
}

std::string describe_run(const Options& o, const RunPlan& plan, const DataLoader& data,
                         const ValidationData* val, const MemoryPlan& m, const Device& device) {
    const GPT2Config& c = plan.config;
    double epochs = (double)(plan.steps * plan.rows_per_step) / (double)data.windows_per_epoch();
    std::string available = m.available >= 0 ? bytes_text(m.available) : "unknown";
    std::string text;
    auto line = [&](const char* name, const std::string& value) {
        text += strf("%-11s| %s\n", name, value.c_str());
    };
    line("device", device.name);
    line("peak", device.peak_flops > 0 ? device.peak_meaning : "n/a");
    line("model", strf("%d layers, %d heads, %d channels, %d positions: %s parameters", c.num_layers,
                       c.num_heads, c.channels, c.max_seq_len, count_text(num_parameters(c)).c_str()));
    line("weights", plan.model_from);
    line("data", strf("%s: %s tokens in %lld shard%s, vocabulary %d", o.train_data.c_str(),
                      count_text(data.num_tokens()).c_str(), (long long)data.num_shards(),
                      data.num_shards() == 1 ? "" : "s", data.vocab_size()));
    line("validation",
         val == nullptr ? "none"
                        : strf("%s: %s tokens in %s rows", o.val_data.c_str(),
                               count_text(val->num_targets()).c_str(), count_text(val->num_rows()).c_str()));
    line("step", strf("%lld x %d rows of %d tokens = %s tokens", (long long)plan.micro_batches, o.batch,
                      o.seq_len, count_text(plan.rows_per_step * o.seq_len).c_str()));
    line("run", strf("%s steps = %s tokens = %.2f epochs, seed %llu, in %s", count_text(plan.steps).c_str(),
                     count_text(plan.steps * plan.rows_per_step * o.seq_len).c_str(), epochs,
                     (unsigned long long)o.seed, plan.out.c_str()));
    line("optimizer",
         strf("AdamW, lr %g (%s, %lld warm-up steps, to %g of it), betas %g %g, eps %g, decay %g, clip %g",
              o.lr, o.schedule.c_str(), (long long)o.warmup, o.final_lr_fraction, o.beta1, o.beta2, o.eps,
              o.weight_decay, o.clip));
    line("memory", strf("%s = parameters %s + gradients %s + optimizer %s + activations %s; available %s",
                        bytes_text(m.total()).c_str(), bytes_text(m.parameters).c_str(),
                        bytes_text(m.gradients).c_str(), bytes_text(m.optimizer).c_str(),
                        bytes_text(m.activations).c_str(), available.c_str()));
    return text;
}

void require_memory(const MemoryPlan& memory, const Options& o, int64_t (*needs)(const GPT2Config&, int, int),
                    const GPT2Config& config) {
    if (memory.available < 0 || memory.total() <= memory.available) { return; }
    auto fits = [&](const GPT2Config& c, int B) { return needs(c, B, o.seq_len) <= memory.available; };
    int batch = o.batch, layers = 72;
    auto divides = [&](int B) { return o.total_batch % ((int64_t)B * o.seq_len) == 0; };
    while (batch > 0 && !(divides(batch) && fits(config, batch))) { batch /= 2; }
    auto smaller = [&] {  // the same positions and vocabulary, dN for the rest
        ModelShape shape;
        model_descriptor(strf("d%d", layers), &shape);
        GPT2Config c = config;
        c.num_layers = shape.layers, c.num_heads = shape.heads, c.channels = shape.channels;
        return c;
    };
    while (batch == 0 && layers > 0 && !fits(smaller(), 1)) { layers--; }
    std::string cure = "No model fits at this --seq-len: use a smaller one.";
    if (batch > 0) {
        cure = strf("--batch %d would fit.", batch);
    } else if (layers > 0) {
        cure = strf("No batch size fits; --model d%d --batch 1 would.", layers);
    }
    throw Error(
        kExitDevice,
        strf("out of memory: a model of %d layers and %d channels with --batch %d, --seq-len %d needs "
             "%s, but %s is available. %s",
             config.num_layers, config.channels, o.batch, o.seq_len, bytes_text(memory.total()).c_str(),
             bytes_text(memory.available).c_str(), cure.c_str()));
}

}  // namespace llmc

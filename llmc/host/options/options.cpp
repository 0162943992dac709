// The trainers' options: their rows, what command line, config file and a run that goes on say, and what must fit together.
#include "llmc/host/options/options.h"

#include <glob.h>

#include <cstdlib>
#include <filesystem>
#include <thread>
#include <variant>

#include "llmc/host/base/error.h"
#include "llmc/host/files/file_io.h"
#include "llmc/host/options/launchers.h"
#include "llmc/host/options/table.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using S = Options;

// ---- a row for each, in the order of --help

struct Row {
    const char* spelling;
    std::variant<bool S::*, int S::*, int64_t S::*, uint64_t S::*, double S::*, std::string S::*,
                 Optimizer S::*, FloatType S::*, Recompute S::*, Decay S::*, ValAlign S::*, SaveMode S::*>
        field;
    Rules rules;
    const char* help;

    constexpr Row(const char* spelling, decltype(field) field, Rules rules, const char* help)
        : spelling(spelling), field(field), rules(rules), help(help) {}
    constexpr Row(const char* spelling, decltype(field) field, const char* help)
        : Row(spelling, field, {}, help) {}
};

constexpr double kMaxLength = 1 << 20;
// below, because the optimizer computes in float: the largest beta still under 1, and an eps above 0
constexpr double kMaxBeta = 0.9999999, kMinEps = 1e-37;

constexpr Row kRows[] = {
    Row("Data: -i --train-data GLOB input train data input-bin", &S::train_data,
        "token shards, as data/make_shards makes of text: a file, or a pattern ('data/web_train_*.bin')"),
    Row("-j --val-data GLOB input-val validation-data", &S::val_data, {.empty_word = "none"},
        "the same for validation; none = no validation; left out: --train-data's with val for train"),
    Row("--raw-tokens VOCAB", &S::raw_tokens, {1, 65536, "tokens"},
        "both are 16-bit tokens without a header, as nanoGPT's train.bin: their vocabulary (GPT-2: 50257)"),
    Row("--tokenizer PATH tokenizer-path vocab", &S::tokenizer, {.empty_word = "auto"},
        "of samples and prompt: as data/make_shards takes it, or llm.c's gpt2_tokenizer.bin (then without "
        "prompt); auto = the one beside --model, else bytes, if the shards are such. The run keeps a copy"),
    Row("Model: -e --model dN|MODEL load init-from checkpoint model-name", &S::model,
        {.rivals = "layers heads channels"},
        "a new GPT-2: dN of N layers, 1 to 1024: d12 has 768 channels and 124M parameters, d24 1024 and "
        "355M, d36 1280 and 774M, d48 1600 and 1.6B, d60 1920 and 2.8B, d72 2880 and 7.3B, d84 3456 and 12B; "
        "any other 64 N channels; gpt2:dN is the same; gpt3:cN = GPT-3's of N = 384, 768, 1024, 1536, 2048, "
        "2560, 4096 or 12288 channels, with 2048 positions. auto = d3 on the CPU, d6 on a GPU. Or a MODEL: "
        "*.bin in llm.c's format 20240326, v3 or v5; the folder of a run or a checkpoint; a folder with "
        "Hugging Face's GPT-2 (config.json, model.safetensors), or a *.safetensors in it"),
    Row("--layers N n-layer num-layers depth n-layers", &S::layers, {1, 1024, "layers"},
        "instead of --model, a new model of these three sizes"),
    Row("--heads N n-head num-heads n-heads", &S::heads, {1, 1024, "heads in a layer"},
        "must divide --channels"),
    Row("--channels N n-embd embd width d-model", &S::channels, {1, 65536, "channels"}, "the model's width"),
    Row("--max-seq-len N block-size context-length", &S::max_seq_len, {0, kMaxLength, "tokens"},
        "the longest sequence that a new model has room for; 0 = --seq-len"),
    Row("Precision and memory: --dtype TYPE precision data-type amp", &S::dtype,
        {.choices = "auto bf16 fp32", .cpu_only = "fp32"},
        "of weights and activations; bf16 has fp32 master weights; auto = bf16 on a GPU, fp32 on the CPU"),
    Row("--grad-dtype TYPE grad-precision", &S::grad_dtype, {.choices = "fp32 bf16", .cpu_only = "fp32"},
        "of the sum of micro-batches' gradients; bf16, for --dtype bf16 only, halves their memory"),
    Row("-r --recompute WHAT activation-checkpointing gradient-checkpointing", &S::recompute,
        {.numbered = "none gelu block", .cpu_only = "none"},
        "what backward computes again instead of keeping it: gelu (-r 1) = the wide MLP activations around "
        "GELU, half of the activation memory, for a matrix product a layer; block (-r 2) = all of a block "
        "but its input: a third more compute, about 1/16 of the memory"),
    Row("-f --tf32 allow-tf32 tensorcores", &S::tf32, {.numbered = "false true", .cpu_only = "false"},
        "with --dtype fp32: products in TF32: faster, and rounded to 10 bits (or -f 1)"),
    Row("--fp8", &S::fp8,
        "the products of the blocks' linear layers are of inputs and weights in e4m3 and gradients in e5m2, "
        "all else as without: a Hopper GPU takes up to a quarter less time. Channels and batch x seq-len are "
        "multiples of 16"),
    Row("Batch and length of the run: -b --batch N batch-size micro-batch device-batch-size", &S::batch,
        {1, kMaxLength, "sequences"}, "sequences that go through the model at once: more need more memory"),
    Row("-t --seq-len N sequence-length T length", &S::seq_len, {1, kMaxLength, "tokens"}, "of a sequence"),
    Row("-d --total-batch N global-batch tokens-per-step", &S::total_batch, {0, kMaxTokens, "tokens"},
        "tokens of a step, whose gradients are added up; a multiple of batch x seq-len; 0 = just that"),
    Row("-x --steps N max-steps iterations num-iterations max-iters", &S::steps, {1, kMaxInt, "steps", true},
        "-1 = once through the training data. Left out, as what is said of the learning rate: worked out "
        "from the model and the data, the same on any machine, and printed with the reason (llm.c: -1)"),
    Row("--epochs X num-train-epochs", &S::epochs, {.range = {1e-3, 1e6, "times"}, .rivals = "steps"},
        "instead of --steps: how often to go through the training data"),
    Row("--minutes X max-time", &S::minutes, {.range = {0.01, 1e6, "minutes"}, .rivals = "steps epochs"},
        "instead of --steps, on the CPU: as many steps as take about so long, by its speed at the start"),
    Row("Optimizer: --optimizer NAME optim opt", &S::optimizer,
        "muon = the blocks' matrices (q, k, v, attproj, fc, fcproj) move along their mean gradient, all of "
        "its directions made equally strong, with one moment, all else by AdamW: fewer steps to the same "
        "loss; --lr and --weight-decay mean the same. auto = muon for a new model of at most 384 channels "
        "without --lr and llm.c's names, else adamw; a run that goes on keeps its own"),
    Row("-l --lr X learning-rate max-lr", &S::lr, {0, 10},
        "highest learning rate; left out: by the model's size (llm.c's names: 3e-4)"),
    Row("-u --warmup N warmup-steps warmup-iters warm-up", &S::warmup, {0, kMaxInt, "steps"},
        "in which the learning rate rises from 0 to --lr; left out: a twentieth of all (llm.c: 0)"),
    Row("-k --schedule NAME scheduler lr-scheduler lr-schedule decay", &S::schedule,
        "how the learning rate falls after the warm-up; wsd = constant, but for the last fifth of steps"),
    Row("-q --final-lr-fraction X learning-rate-decay-frac min-lr final-lr", &S::final_lr_fraction, {0, 1},
        "the learning rate at the end, as a part of --lr; 1 = it does not fall; left out: 0.1 (llm.c: 1)"),
    Row("-c --weight-decay X wd", &S::weight_decay, {0, 10}, "pull towards 0, on matrices only"),
    Row("--beta1 X adam-beta1", &S::beta1, {0, kMaxBeta}, "memory of the mean of the gradient"),
    Row("--beta2 X adam-beta2", &S::beta2, {0, kMaxBeta}, "memory of the mean of its square"),
    Row("--eps X epsilon adam-eps", &S::eps, {kMinEps, 1}, "added to the root of that mean, the divisor"),
    Row("--clip X grad-clip max-grad-norm clip-grad-norm", &S::clip, {0, 1e9},
        "largest norm of the whole gradient: a longer one is scaled down to it; 0 = no clipping"),
    Row("--dropout P resid-pdrop embd-pdrop dropout-rate", &S::dropout, {0, 0.99},
        "what becomes 0 of the embeddings and of what attention's projection and fcproj add, in training "
        "alone, in steps of 2^-16; attention's own (Hugging Face's attn_pdrop) is left out"),
    Row("-sl --skip-loss-zscore Z outlier-loss loss-zscore skip-loss", &S::skip_loss_zscore, {0, 1000},
        "skip a step whose loss is Z standard deviations above the last 128's mean; 0 = none"),
    Row("-sg --skip-norm-zscore Z outlier-norm grad-norm-zscore skip-grad", &S::skip_norm_zscore, {0, 1000},
        "the same for the norm of the gradient, before it is clipped"),
    Row("Validation and samples: -v --val-every N eval-interval val-loss-every eval-every", &S::val_every,
        {0, kMaxInt, "steps"}, "0 = only at the end; left out: a tenth of all, or more if slow (llm.c: 20)"),
    Row("--val-tokens N eval-tokens", &S::val_tokens, {1, kMaxTokens, "tokens", true},
        "how much to validate on, from the start of the validation data; -1 = all of it"),
    Row("-m --val-batches N eval-iters val-steps", &S::val_batches,
        {.range = {1, kMaxInt, "batches", true}, .rivals = "val-tokens"},
        "the same, of batch x seq-len tokens"),
    Row("--val-align NAME align", &S::val_align,
        "window = back to back; document = from a document's start; auto = document, if they fit --seq-len"),
    Row("--hellaswag FILE hella-swag hellaswag-file", &S::hellaswag, {.empty_word = "none"},
        "questions with four endings, from data/make_hellaswag or llm.c: how many answers are right?"),
    Row("--hellaswag-every N hellaswag-interval", &S::hellaswag_every, {0, kMaxInt, "steps"},
        "0 = asked with each validation; at the end in any case"),
    Row("-s --sample-every N sample-interval generate-every", &S::sample_every, {0, kMaxInt, "steps"},
        "between samples of the model's own text; 0 = never; left out: a tenth of all (llm.c: 20)"),
    Row("-g --sample-tokens N max-new-tokens", &S::sample_tokens, {1, kMaxLength, "tokens"}, "of a sample"),
    Row("--temperature X temp", &S::temperature, {0, 100}, "0 = the most likely token; above 1 wilder text"),
    Row("--top-k N", &S::top_k, {0, 65536, "tokens"}, "draw among the K most likely tokens; 0 = among all"),
    Row("--prompt TEXT start", &S::prompt, "what a sample starts with; without it, a new document"),
    Row("Output, saving, resuming: -o --out FOLDER output output-dir out-dir log-dir", &S::out,
        {.empty_word = "auto"}, "where the log and the checkpoints go; auto = runs/DATE-TIME"),
    Row("-n --save-every N checkpoint-every save-interval", &S::save_every, {0, kMaxInt, "steps"},
        "between checkpoints; 0 = only at the end"),
    Row("-nk --keep N keep-checkpoints save-total-limit", &S::keep, {0, kMaxInt, "checkpoints"},
        "older checkpoints are deleted after a new one is saved; 0 = all are kept"),
    Row("-nm --keep-major N", &S::keep_major, {0, kMaxInt, "steps"},
        "those of steps divisible by N are not counted and never deleted; 0 = none"),
    Row("--keep-best", &S::keep_best, "save the lowest validation loss, and do not count it for --keep"),
    Row("--patience N early-stopping-patience", &S::patience, {0, kMaxInt, "validations"},
        "with --keep-best: the run ends after so many without a lower loss; 0 = at its last step"),
    Row("--save-mode NAME async-save", &S::save_mode,
        "async = from a copy in memory, while the run goes on; auto = so on a GPU, if the copy has room"),
    Row("--model-dtype TYPE export-dtype save-dtype", &S::model_dtype, {.choices = "fp32 bf16"},
        "of model.bin, written at the end: fp32 (format v3) or bf16 (v5)"),
    Row("--export-hf FOLDER hf save-hf save-pretrained", &S::export_hf, {.empty_word = "none"},
        "at the end the model goes there, too, as Hugging Face's transformers loads it (see export)"),
    Row("-y --resume auto|FOLDER restart continue", &S::resume, {.numbered = "none auto"},
        "auto (or -y 1) = go on from --out's newest checkpoint, if any, with the options of its config.toml, "
        "or --config, where none are given; FOLDER = from this checkpoint; none (or -y 0)"),
    Row("--new-data", &S::new_data,
        "with --resume: the training data may be other, and is read from its start"),
    Row("--log-every N log-interval print-every", &S::log_every, {1, kMaxInt, "steps"},
        "between lines that stay on the screen"),
    Row("--quiet silent", &S::quiet, "print less"),
    Row("Many GPUs, many processes: --gpus N|all n-gpus num-gpus devices", &S::gpus,
        "a process (rank) for each of N GPUs here; left out: as torchrun, Open MPI, PMI or SLURM say, or 1"),
    Row("--ranks N num-processes", &S::ranks, {.range = {1, 1024, "processes"}, .rivals = "gpus"},
        "the same by the number of processes, on the CPU as well"),
    Row("--reduce-groups G", &S::reduce_groups, {1, 65536, "groups"},
        "a step's micro-batches are in G groups, whose gradients are added in their order: the same bits for "
        "any number of ranks that divides G. Left out: as the run began, or the number of ranks"),
    Row("-z --zero 0|1 zero-stage shard-optimizer", &S::zero, {0, 1, "(ZeRO-1 is the highest stage here)"},
        "1 = each rank keeps its share of the optimizer's state only (ZeRO-1); 0 = all"),
    Row("--comm-timeout S timeout nccl-timeout", &S::comm_timeout, {1, 86400, "seconds"},
        "a rank that gives no sign for so long, or keeps the others waiting, ends the job"),
    Row("--check-ranks N", &S::check_ranks, {0, kMaxInt, "steps"},
        "between comparisons of the ranks' parameters: a bit that differs ends the job; 0 = none"),
    Row("-pn --world-size N", &S::world_size, {1, 65536, "processes"},
        "which you start yourself: this is one"),
    Row("-pr --rank R", &S::rank, {0, 65535}, "and the one of this number, from 0"),
    Row("-pg --ranks-per-host N gpus-per-node", &S::ranks_per_host, {1, 1024, "processes"},
        "of which N are on a host, rank R on GPU R mod N; left out: all"),
    Row("-ps --master HOST master-addr server-ip", &S::master, "where rank 0 is found: HOST or HOST:PORT"),
    Row("General: --dry-run plan", &S::dry_run, "print the plan, with the memory it needs, and stop"),
    Row("--profile FILE profiler benchmark", &S::profile, {.empty_word = "none", .cpu_only = "none"},
        "instead of a run: what a step takes, part by part, and the least that it could; as JSON in FILE"),
    Row("--tune-gemm FILE autotune gemm-cache", &S::tune_gemm, {.empty_word = "none", .cpu_only = "none"},
        "fastest algorithms of matrix products: FILE's, or searched for and written. Same FILE, same bits"),
    Row("--graph 0|1 cuda-graph cuda-graphs graphs", &S::graph, {.range = {0, 1}, .cpu_only = "1"},
        "1 = a step's launches are recorded once and repeated as a CUDA graph; 0 = launched. Same bits"),
    Row("--seed N random-seed", &S::seed, {0, 0x1p64}, "of the weights, the data's order, the samples"),
    Row("--config FILE", &S::config, {.for_command_line = true},
        "options from a file; the command line wins"),
    // llm.c's options that are no short name of a row above. A value that asks for what this program does anyway is accepted,
    // with a note if it is not the first; any other is refused with what is said here, never ignored.
    Row("-a X", &S::ignored, {.choices = "0"},
        "one batch for all steps is not part of this program yet: --epochs N with --train-data of few "
        "tokens"),
    Row("-w X", &S::ignored, {.choices = "1"},
        "fp32 master weights are kept: none is not part of this program yet"),
    Row("-lg X", &S::ignored, {.choices = "-1"},
        "the GPU's state in the log is not part of this program yet"),
    Row("-ge X", &S::ignored, {.choices = "0 1 2"},
        "what GELU is fused into is chosen here; choosing is not part of this program yet"),
    Row("-pi -pm X", &S::ignored, {.choices = "tcp mpi"},
        "the ranks meet over TCP at --master HOST (-ps); in a shared folder is not part of this program yet"),
    Row("-pf -pp X", &S::ignored, {.choices = "none"},
        "as -pi: is not part of this program yet, see --master"),
    Row("-h= 0|1", &S::ignored, {.choices = "0 1"},
        "HellaSwag's questions are asked by --hellaswag FILE, which data/make_hellaswag makes. For help: "
        "--help"),
};

constexpr const char* kHelpEnd = R"(Sub-commands, each with a --help of its own:
  PROGRAM generate MODEL --prompt TEXT    write with a trained model
  PROGRAM export MODEL --hf FOLDER        for Hugging Face's transformers
  PROGRAM eval MODEL --data GLOB          loss, perplexity and bits a byte on token shards
  PROGRAM report RUN RUN...               the curves of runs on one page for a browser

Examples:
  PROGRAM -i 'data/web_train_*.bin' -j data/web_val.bin -e d12 \
      -b 16 -t 1024 -d 524288 -l 6e-4 -u 700 -q 0 -c 0.1 -n 5000 -o runs/web -y 1
      GPT-2 124M, by llm.c's short names; the same line again goes on where it stopped
  PROGRAM --config web.toml --lr 3e-4 --quiet false
      options from a file, but another learning rate, and its quiet = true switched off. The file is
      TOML: one option in a line, by its long name, texts in quotes: batch = 8, model = "d12",
      quiet = true. # starts a comment.

Exit codes:
  0   done                                  5   the loss diverged
  2   bad option or value                   6   another rank was lost, or took too long
  3   input file missing or damaged         7   not all could be written
  4   no device, or not enough memory       75  stopped by a signal, checkpoint saved

)";

// ---- the config file, and the run that goes on

constexpr int64_t kMaxConfigBytes = 1 << 20;
constexpr const char* kOfProcess = "master world-size rank ranks-per-host";

// A run goes on (--resume auto --out RUN) with the options that it had, but for those that are given: its config.toml; "" if
// it has none. Where it has no checkpoint yet, only if no others are given: what was worked out for it may not fit these. Not
// in a rank that something else has started: others of its job may run where they do not see the folder.
std::string config_of_run(const Options& s, const std::vector<Setting>& typed) {
    const std::string own = s.out + "/config.toml";
    const bool by_others = s.world_size > 0 || has_launcher(std::getenv);
    const bool goes_on = s.resume == "auto" && !s.out.empty() && s.config.empty() && !by_others;
    if (!goes_on || !is_there(s.out + "/log.jsonl") || !is_there(own)) { return ""; }
    const auto is_step = [](const std::string& name) { return name.starts_with("step_"); };
    const auto is_other = [](const Setting& one) {  // llm.c's have no name, and change nothing
        return !among("resume out dry-run quiet", one.option->name) && !one.option->name.empty();
    };
    const auto names = folder_names(s.out).value_or(std::vector<std::string>());
    return std::ranges::any_of(names, is_step) || std::ranges::none_of(typed, is_other) ? own : "";
}

// The folder of the run may come from elsewhere: what its config.toml asks for beyond the folder and this machine must
// stand on the command line, too.
void require_harmless(const std::string& config, const Option& o, const std::string& value) {
    std::error_code ignored;
    const fs::path inside =
        fs::relative(fs::absolute(value, ignored), fs::absolute(config, ignored).parent_path(), ignored);
    const bool outside = value != o.empty_word && (inside.empty() || *inside.begin() == "..");
    const bool writes = among("export-hf profile", o.name) || (o.name == "tune-gemm" && !is_there(value));
    const bool crowds = o.name == "ranks" && std::stoull(value) > 8 * std::thread::hardware_concurrency();
    if (!(writes && outside) && !crowds && !among(kOfProcess, o.name)) { return; }
    fail_usage(
        fmt::format("{0}: {1} = {2}: a run's own file may not ask for what is written outside of its folder, "
                    "for more than 8 processes a processor, nor for other hosts. If you want it, add --{1} "
                    "{3}; if not, remove this line.",
                    config, o.name, in_quotes(value), shell_word(value)));
}

// A run folder that was renamed or copied has a config.toml that names the old place, where the run would go on.
void require_own_folder(const std::string& config, const std::string& out) {
    const fs::path parent = fs::path(config).parent_path(), folder = parent.empty() ? "." : parent;
    std::error_code ignored;
    if (out.empty() || !is_there(folder / "log.jsonl") || fs::equivalent(folder, out, ignored)) { return; }
    fail_usage("--config " + in_quotes(config) + " lies in a run's folder, but its out is " + in_quotes(out) +
               ": was the folder renamed or copied? Give --out " + shell_word(folder) + " to go on there.");
}

// What the config file says goes into the fields of *s, and then what the command line says. Returns both.
std::vector<Setting> take_config(Options* s, const Table& table, const std::vector<Setting>& typed) {
    const std::string of_run = config_of_run(*s, typed), path = of_run.empty() ? s->config : of_run;
    if (path.empty()) { return typed; }
    const std::optional<std::string> text = read_whole(path, kMaxConfigBytes);
    if (!text) { fail_usage("--config " + in_quotes(path) + ": there is no such file."); }
    const auto in_file = read_config(*text, "--config " + in_quotes(path), table);
    const Program program = s->program;
    *s = Options();
    s->program = program;
    std::vector<Setting> all;
    for (const Setting& one : in_file) {
        const Option& o = *one.option;
        const auto replaces = [&](const Setting& t) {
            return t.option == &o || among(t.option->rivals, o.name) || among(o.rivals, t.option->name);
        };
        if (std::ranges::any_of(typed, replaces)) { continue; }
        // a run that a GPU began goes on here as this program can, and there again as it was
        if (!of_run.empty() && s->program == Program::kCpu && (*o.cpu_only || o.name == "gpus")) {
            if (one.text == o.cpu_only || one.text == o.empty_word) { continue; }
            s->for_gpu[o.name] = one.text;
            s->notes += o.name + " = " + one.text + ": not on the CPU; config.toml keeps it for a GPU\n";
            continue;
        }
        if (!of_run.empty()) { require_harmless(path, o, one.text); }
        all.push_back(one);
    }
    all.insert(all.end(), typed.begin(), typed.end());
    for (const Setting& one : all) { one.option->assign(one.text, one.where); }
    if (s->resume != "none" && !has(typed, table.find("--out"))) { require_own_folder(path, s->out); }
    return all;
}

// The validation data of own training data, if none is named: the files that are called the same, but for "val" in place of
// "train"; "" if there are none. Never the sample's, which is another text.
std::string validation_beside(const std::string& train_data) {
    const size_t at = train_data.rfind("train");
    if (at == train_data.npos || train_data.find('/', at) != train_data.npos) { return ""; }
    const std::string pattern = std::string(train_data).replace(at, 5, "val");
    glob_t found = {};
    const bool there = glob(pattern.c_str(), GLOB_TILDE, nullptr, &found) == 0;
    globfree(&found);
    return there ? pattern : "";
}

// ---- what must fit together

// what is wrong with a number that is no multiple of a step; "" = nothing
std::string not_multiple(const char* option, int64_t n, int64_t step, const std::string& of) {
    const int64_t low = n / step * step;
    if (low == n) { return ""; }
    return fmt::format("{0} {1} is not a multiple of {2}. Nearest: {0} {3}{4}.", option, n, of,
                       low > 0 ? fmt::format("{} or ", low) : "", low + step);
}

// what is wrong with the model's options; sets max_seq_len where a descriptor says it
std::string model_objection(Options& s) {
    if (s.layers || s.heads || s.channels) {
        const char* missing = !s.layers ? "layers" : !s.heads ? "heads" : !s.channels ? "channels" : "";
        if (*missing == 0) {
            return not_multiple("--channels", s.channels, s.heads, fmt::format("--heads {}", s.heads));
        }
        return fmt::format("--layers, --heads and --channels go together: --{} is missing.", missing);
    }
    ModelShape shape;
    if (s.model == kAutoModel || model_descriptor(s.model, &shape)) {
        if (s.model.starts_with(kGpt3Prefix) && s.max_seq_len == 0) { s.max_seq_len = 2048; }
        return "";
    }
    if (s.max_seq_len > 0) {
        return "--max-seq-len is for a new model; the one that --model names has its own.";
    }
    // a run that goes on has its weights in a checkpoint: the folder that they came from may be gone
    const bool goes_on = s.resume != "none" && (s.resume != "auto" || is_there(s.out + "/log.jsonl"));
    const bool is_file = s.model.ends_with(".bin") || s.model.ends_with(".safetensors");
    if (goes_on || is_file || is_folder(s.model)) { return ""; }
    return "--model " + in_quotes(s.model) +
           " is not known. Expected dN, gpt3:cN, a file *.bin or *.safetensors, or a folder: of a run, a "
           "checkpoint, or Hugging Face's GPT-2, downloaded first. Other shapes: --layers, --heads and "
           "--channels.";
}

// What does not fit together, each behind the end of a line; dtype auto becomes a type, and --val-batches --val-tokens.
std::string misfits(Options& s, const Table& table) {
    std::string all;
    const auto object = [&](bool wrong, const std::string& text) {
        all += wrong && !text.empty() ? "\n" + text : "";
    };
    const bool gpu = s.program == Program::kGpu;
    if (s.dtype == FloatType::kAuto) { s.dtype = gpu ? FloatType::kBf16 : FloatType::kFp32; }
    const int64_t tokens = (int64_t)s.batch * s.seq_len;  // of one micro-batch
    object(true, model_objection(s));
    object(s.max_seq_len && s.max_seq_len < s.seq_len,
           fmt::format("--max-seq-len {} is less than --seq-len {}.", s.max_seq_len, s.seq_len));
    object(true,
           not_multiple("--total-batch", s.total_batch, tokens,
                        fmt::format("batch x seq-len = {} x {} = {} tokens", s.batch, s.seq_len, tokens)));
    for (const Option& o : table.options) {
        object(*o.cpu_only && o.value_text() != o.cpu_only,
               fmt::format("--{} {} needs the GPU program: make train_gpt2cu. This one computes in fp32.",
                           o.name, o.value_text()));
    }
    object(gpu && s.grad_dtype == FloatType::kBf16 && s.dtype == FloatType::kFp32,
           "--grad-dtype bf16 is for --dtype bf16; with fp32 the gradients are fp32. Leave one out.");
    object(gpu && s.fp8 && s.dtype != FloatType::kBf16,
           "--fp8 is for --dtype bf16, and the type is fp32. Leave one out.");
    object(gpu && s.tf32 && s.dtype == FloatType::kBf16,
           "--tf32 is for products of fp32, and the type is bf16. Add --dtype fp32, or leave it out.");
    object(s.patience > 0 && !s.keep_best,
           "--patience needs --keep-best: without it the best checkpoint would not be there at the end.");
    object(s.keep_best && s.val_data.empty(), "--keep-best needs --val-data, for its validation loss.");
    const int64_t n = s.val_batches, most = (int64_t)kMaxTokens / tokens;
    object(n > most, fmt::format("--val-batches {} of {} tokens: over 10^15 tokens. -1 = all.", n, tokens));
    if (n != 0) { s.val_tokens = n < 0 ? -1 : std::min(n, most) * tokens; }
    s.val_batches = 0;
    s.config = s.ignored = "";
    return all;
}

}  // namespace

Table trainer_table(Options* settings) {
    const bool gpu = settings->program == Program::kGpu;
    const std::string on = gpu ? "an NVIDIA GPU" : "the CPU";
    Table t(gpu ? "./train_gpt2cu" : "./train_gpt2",
            "plumb trains GPT-2 in plain C++ and CUDA, here on " + on + ". Every option has a default.",
            kHelpEnd);
    t.add("--version", {}, "print version, compiler and build, and stop");
    const auto bound = [=](auto field) -> Field { return &(settings->*field); };
    for (const Row& row : kRows) {
        t.add(row.spelling, std::visit(bound, row.field), row.rules, row.help);
        if (gpu) { t.options.back().cpu_only = ""; }
    }
    const bool gcc = std::isdigit((unsigned char)__VERSION__[0]);  // only a number
    t.version = fmt::format("plumb {}\ncompiler: {}{}, C++{}\nbuild: OpenMP {}\n", kVersion,
                            gcc ? "GCC " : "", __VERSION__, __cplusplus / 100 % 100, _OPENMP);
    return t;
}

bool model_descriptor(const std::string& text, ModelShape* shape) {
    constexpr ModelShape kGpt2[] = {{6, 6, 384},    {12, 12, 768},  {24, 16, 1024}, {36, 20, 1280},
                                    {48, 25, 1600}, {60, 30, 1920}, {72, 30, 2880}, {84, 36, 3456}};
    // none of 5140 channels, which heads of 128 do not divide
    constexpr ModelShape kGpt3[] = {{6, 6, 384},    {12, 12, 768},  {24, 16, 1024}, {24, 16, 1536},
                                    {24, 16, 2048}, {32, 32, 2560}, {32, 32, 4096}, {96, 96, 12288}};
    const bool gpt3 = text.starts_with(kGpt3Prefix);
    const size_t start = gpt3 || text.starts_with("gpt2:d") ? 6 : text.starts_with("d") ? 1 : text.size();
    int n = 0;
    const bool number = Field(&n).set({.range = {1, kMaxInt}}, text.substr(start)).empty();
    const auto& known = gpt3 ? kGpt3 : kGpt2;
    const auto* at = std::ranges::find(known, n, gpt3 ? &ModelShape::channels : &ModelShape::layers);
    const bool in_table = at != std::end(known);
    if (!number || text[start] == '0' || (!in_table && (gpt3 || n > 1024))) { return false; }
    *shape = in_table ? *at : ModelShape{n, n, 64 * n};
    return true;
}

std::optional<Options> parse_options(int argc, const char* const* argv, Program program) {
    Options s;
    s.program = program;
    Table table = trainer_table(&s);
    if (argc > 0) { table.program = argv[0]; }
    const std::optional<std::vector<Setting>> typed = table.parse(argc, argv);
    if (!typed) { return std::nullopt; }
    const std::vector<Setting> given = take_config(&s, table, *typed);
    if (has(given, table.find("--train-data")) && !has(given, table.find("--val-data"))) {
        s.val_data = validation_beside(s.train_data);
    }
    const std::string wrong = misfits(s, table);
    if (!wrong.empty()) { table.fail(wrong); }
    for (const auto& [option, text, where] : *typed) {
        s.llmc_letters |= !where.starts_with("--");
        if (!option->name.empty() || text == split_words(option->choices)[0]) { continue; }
        s.notes += where + " " + text + ": " + option->help + ".\n";
    }
    return s;
}

std::string config_text(const Options& options, bool own) {
    Options s = options;
    const Table table = trainer_table(&s);
    for (const auto& [name, value] : options.for_gpu) {
        if (own) { table.find("--" + name)->assign(value, name); }
    }
    s.new_data = false;  // a word for one start
    if (s.layers > 0) { s.model.clear(); }
    std::string text = fmt::format("# plumb {}: the options of a run. --config reads them back.\n", kVersion);
    for (const Option& o : table.options) {
        if (!o.group.empty() && o.field.kind != Field::kAction) { text += fmt::format("\n# {}\n", o.group); }
        const std::string value = o.value_text();
        if (value.empty() || among(kOfProcess, o.name)) { continue; }
        // TOML's whole numbers have 64 bits with their sign
        const bool is_long = o.name == "seed" && s.seed > (uint64_t)INT64_MAX;
        text += fmt::format("{} = {}\n", o.name,
                            o.field.kind == Field::kText || is_long ? escaped(value) : value);
    }
    return text;
}

bool fill_from_run(const std::string& config_path, Options* options) {
    const std::optional<std::string> text = read_whole(config_path, kMaxConfigBytes);
    if (!text) { return false; }
    const Options asked = *options;
    const Table table = trainer_table(options);
    const auto of_run = read_config(*text, "--config " + in_quotes(config_path), table);
    *options = asked;
    std::string names = "lr warmup final-lr-fraction val-every sample-every reduce-groups";
    if (asked.steps == kAuto && asked.epochs <= 0 && asked.minutes <= 0) { names += " steps epochs minutes"; }
    for (const auto& [option, value, where] : of_run) {
        if (among(names, option->name) && option->value_text().empty()) { option->assign(value, where); }
    }
    return true;
}

}  // namespace llmc

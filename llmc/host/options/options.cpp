// The trainers' options: a row for each, what the command line, the config file and the run that goes on make of them, and what
// must fit together.
#include "llmc/host/options/options.h"

#include <glob.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include "llmc/host/base/error.h"
#include "llmc/host/base/text.h"
#include "llmc/host/files/file_io.h"
#include "llmc/host/options/launchers.h"
#include "llmc/host/options/table.h"
#include "llmc/host/options/typed_text.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

// ---- a row for each, in the order of --help

constexpr double kMaxLength = 1 << 20;
// below, because the optimizer computes in float: the largest beta still under 1, and an eps above 0
constexpr double kMaxBeta = 0.9999999, kMinEps = 1e-37;

void add_data_and_model(Table& t, ParsedOptions& s) {
    t.group = "Data";
    t.add("-i --train-data GLOB input train data input-bin", &s.train_data,
          "token shards, as data/make_shards makes of text: a file, or a pattern ('data/web_train_*.bin')");
    t.add("-j --val-data GLOB input-val validation-data", &s.val_data, {.empty_word = "none"},
          "token shards for validation; none = no validation; left out: --train-data's with val for train");
    t.add("--raw-tokens VOCAB", &s.raw_tokens, {1, 65536, "tokens"},
          "both are 16-bit tokens without a header, as nanoGPT's train.bin: their vocabulary (GPT-2: 50257)");
    t.add("--tokenizer PATH tokenizer-path vocab", &s.tokenizer, {.empty_word = "auto"},
          "of samples and prompt: what data/make_shards was given, or llm.c's gpt2_tokenizer.bin (no prompt "
          "then). The run keeps a copy. auto = the one beside --model, else bytes, if the shards are such");

    t.group = "Model";
    t.add("-e --model dN|MODEL load init-from checkpoint model-name", &s.model,
          "what to train: dN, a new GPT-2 of N layers (1 to 1024), or a MODEL.\n"
          "     heads  channels  parameters        heads  channels  parameters\n"
          "d12  12      768      124M         d48  25     1600      1.6B\n"
          "d24  16     1024      355M         d60  30     1920      2.8B\n"
          "d36  20     1280      774M         d72  30     2880      7.3B\n"
          "dN   N      64 x N                 d84  36     3456      12B\n"
          "(parameters with GPT-2's vocabulary; gpt2:dN is the same as dN)\n"
          "gpt3:cN = GPT-3's sizes at N = 384, 768, 1024, 1536, 2048, 2560, 4096\n"
          "or 12288 channels, with 2048 positions unless --max-seq-len is given\n"
          "auto = d3 on the CPU, where it learns a small text in minutes; d6 on a GPU\n"
          "MODEL: *.bin in llm.c's format 20240326, v3 (fp32) or v5 (bf16); the\n"
          "folder of a run or a checkpoint; a folder with Hugging Face's GPT-2\n"
          "(config.json and model.safetensors), or a *.safetensors in it");
    t.add("--layers N n-layer num-layers depth n-layers", &s.layers,
          {.range = {1, 1024, "layers"}, .rivals = "model"},
          "instead of --model, a new model of these three sizes");
    t.add("--heads N n-head num-heads n-heads", &s.heads,
          {.range = {1, 1024, "heads in a layer"}, .rivals = "model"}, "must divide --channels");
    t.add("--channels N n-embd embd width d-model hidden-size", &s.channels,
          {.range = {1, 65536, "channels"}, .rivals = "model"}, "the width of the model");
    t.add("--max-seq-len N block-size context-length", &s.max_seq_len, {0, kMaxLength, "tokens"},
          "the longest sequence that a new model has room for; 0 = --seq-len");
}

void add_precision_and_batch(Table& t, ParsedOptions& s) {
    t.group = "Precision and memory";
    t.add("--dtype TYPE precision data-type amp", &s.dtype, {.choices = "auto bf16 fp32", .cpu_only = "fp32"},
          "of weights and activations; bf16 has fp32 master weights; auto = bf16 on a GPU, fp32 on the CPU");
    t.add("--grad-dtype TYPE grad-precision", &s.grad_dtype, {.choices = "fp32 bf16", .cpu_only = "fp32"},
          "of the sum of micro-batches' gradients; bf16, for --dtype bf16 only, halves their memory");
    t.add("--recompute -r WHAT recomputation activation-checkpointing gradient-checkpointing", &s.recompute,
          {.numbered = "none gelu block", .cpu_only = "none"},
          "what backward computes again instead of keeping it.\n"
          "gelu:  the wide MLP activations before and after GELU: one matrix\n"
          "       product a layer more, half of the activation memory less\n"
          "block: all of a block but its input: a third more compute, about 1/16\n"
          "       of the memory (llm.c's -r: 0 none, 1 gelu, 2 block)");
    t.add("--tf32 -f allow-tf32 tensorcores", &s.tf32, {.numbered = "false true", .cpu_only = "false"},
          "with --dtype fp32: products in TF32: faster, and rounded to 10 bits (llm.c's -f 1)");

    t.group = "Batch and length of the run";
    t.add("-b --batch N batch-size micro-batch device-batch-size", &s.batch, {1, kMaxLength, "sequences"},
          "sequences that go through the model at once: more need more memory");
    t.add("-t --seq-len N sequence-length T length", &s.seq_len, {1, kMaxLength, "tokens"},
          "length of a sequence");
    t.add("-d --total-batch N global-batch tokens-per-step", &s.total_batch, {0, kMaxTokens, "tokens"},
          "tokens of a step, whose gradients are added up; a multiple of batch x seq-len; 0 = just that");
    t.add("-x --steps N max-steps iterations num-iterations max-iters", &s.steps, {1, kMaxInt, "steps", true},
          "steps of the optimizer; -1 = once through the training data. Left out, as are the next three "
          "about the learning rate: worked out from the model's parameters and the data's tokens, the same "
          "on any machine, and printed with the reason (where llm.c's short names are used, as there: -1)");
    t.add("--epochs X num-epochs n-epochs num-train-epochs", &s.epochs,
          {.range = {1e-3, 1e6, "times"}, .rivals = "steps"},
          "instead of --steps: how often to go through the training data");
    t.add("--minutes X time hours max-time duration", &s.minutes,
          {.range = {0.01, 1e6, "minutes"}, .rivals = "steps epochs"},
          "instead of --steps, on the CPU: as many steps as take about so long, by its speed at the start");
}

void add_optimizer(Table& t, ParsedOptions& s) {
    t.group = "Optimizer";
    t.add("--optimizer NAME optim opt", &s.optimizer,
          "muon = the blocks' matrices (q, k, v, attproj, fc, fcproj) move along their mean gradient, all of "
          "its directions made equally strong; all else by AdamW: fewer steps to the same loss, and one "
          "moment of these matrices instead of two. --lr and --weight-decay mean the same for both. auto = "
          "muon for a new model of at most 384 channels without --lr, adamw otherwise (and where llm.c's "
          "short names are used); a run that goes on keeps its own");
    t.add("-l --lr X learning-rate max-lr", &s.lr, {0, 10},
          "highest learning rate; left out: by the model's size (llm.c's names: 3e-4)");
    t.add("-u --warmup N warmup-steps warmup-iters warm-up", &s.warmup, {0, kMaxInt, "steps"},
          "steps in which the learning rate rises from 0 to --lr; left out: a twentieth of all (llm.c: 0)");
    t.add("-k --schedule NAME scheduler lr-scheduler lr-schedule decay", &s.schedule,
          "how the learning rate falls after the warm-up; wsd = constant, but for the last fifth of steps");
    t.add("-q --final-lr-fraction X learning-rate-decay-frac min-lr final-lr", &s.final_lr_fraction, {0, 1},
          "the learning rate at the end, as a part of --lr; 1 = it does not fall; left out: 0.1 (llm.c: 1)");
    t.add("-c --weight-decay X wd", &s.weight_decay, {0, 10},
          "pull towards 0, on matrices only (not on biases and LayerNorm)");
    t.add("--beta1 X adam-beta1", &s.beta1, {0, kMaxBeta}, "memory of the mean of the gradient");
    t.add("--beta2 X adam-beta2", &s.beta2, {0, kMaxBeta}, "memory of the mean of its square");
    t.add("--eps X epsilon adam-eps", &s.eps, {kMinEps, 1},
          "added to the root of that mean before dividing by it");
    t.add("--clip X grad-clip max-grad-norm clip-grad-norm", &s.clip, {0, 1e9},
          "largest norm of the whole gradient: a longer one is scaled down to it; 0 = no clipping");
    t.add("--skip-loss-zscore -sl Z outlier-loss loss-zscore skip-loss sl", &s.skip_loss_zscore, {0, 1000},
          "skip a step whose loss is Z standard deviations above the last 128's mean; 0 = none (llm.c: -sl)");
    t.add("--skip-norm-zscore -sg Z outlier-norm grad-norm-zscore skip-grad sg", &s.skip_norm_zscore,
          {0, 1000}, "the same for the norm of the gradient, before it is clipped (llm.c: -sg)");
}

void add_validation(Table& t, ParsedOptions& s) {
    t.group = "Validation and samples";
    t.add("-v --val-every N eval-interval val-loss-every eval-every", &s.val_every, {0, kMaxInt, "steps"},
          "steps between them; 0 = only at the end; left out: a tenth of all, or more if slow (llm.c: 20)");
    t.add("--val-tokens N eval-tokens", &s.val_tokens, {1, kMaxTokens, "tokens", true},
          "how much to validate on, from the start of the validation data; -1 = all of it");
    t.add("-m --val-batches N val-max-steps eval-iters val-steps", &s.val_batches,
          {.range = {1, kMaxInt, "batches", true}, .rivals = "val-tokens"},
          "the same in llm.c's unit, batches of batch x seq-len tokens; not with --val-tokens");
    t.add(
        "--val-align NAME align", &s.val_align,
        "window = back to back; document = from a document's start; auto = document, if they fit --seq-len");
    t.add("--hellaswag FILE hella-swag hellaswag-file", &s.hellaswag, {.empty_word = "none"},
          "questions with four endings, from data/make_hellaswag or llm.c: how many answers are right?");
    t.add("--hellaswag-every N hellaswag-interval", &s.hellaswag_every, {0, kMaxInt, "steps"},
          "steps between asking them; 0 = with each validation; at the end in any case");
    t.add("-s --sample-every N sample-interval generate-every", &s.sample_every, {0, kMaxInt, "steps"},
          "steps between samples of the model's own text; 0 = never; left out: a tenth of all (llm.c: 20)");
    t.add("-g --sample-tokens N gen-tokens max-new-tokens generate", &s.sample_tokens,
          {1, kMaxLength, "tokens"}, "length of a sample");
    t.add("--temperature X temp", &s.temperature, {0, 100},
          "below 1 safer text, above 1 wilder; 0 = always the most likely token");
    t.add("--top-k N", &s.top_k, {0, 65536, "tokens"}, "draw among the K most likely tokens; 0 = among all");
    t.add("--prompt TEXT start", &s.prompt, "what a sample starts with; without it, a new document");
}

void add_output(Table& t, ParsedOptions& s) {
    t.group = "Output, saving, resuming";
    t.add("-o --out FOLDER output output-dir out-dir log-dir", &s.out, {.empty_word = "auto"},
          "where the log and the checkpoints go; auto = runs/DATE-TIME");
    t.add("-n --save-every N checkpoint-every save-interval", &s.save_every, {0, kMaxInt, "steps"},
          "steps between checkpoints; 0 = only at the end");
    t.add("--keep -nk N keep-checkpoints save-total-limit", &s.keep, {0, kMaxInt, "checkpoints"},
          "older checkpoints are deleted after a new one is saved; 0 = all are kept (llm.c's -nk)");
    t.add("--keep-major -nm N", &s.keep_major, {0, kMaxInt, "steps"},
          "those of steps divisible by N are not counted and never deleted; 0 = none (llm.c's -nm)");
    t.add("--keep-best", &s.keep_best,
          "a validation loss lower than all before is saved; that checkpoint is not counted by --keep");
    t.add("--save-mode NAME async-save", &s.save_mode,
          "async = from a copy in memory, while the run goes on; auto = so on a GPU, if the copy has room");
    t.add("--model-dtype TYPE export-dtype save-dtype", &s.model_dtype, {.choices = "fp32 bf16"},
          "of model.bin, written at the end: fp32 (format v3) or bf16 (v5)");
    t.add("--export-hf FOLDER hf save-hf save-pretrained", &s.export_hf, {.empty_word = "none"},
          "at the end the model goes there, too, as Hugging Face's transformers loads it (see export)");
    t.add("--resume -y auto|FOLDER restart continue", &s.resume, {.numbered = "none auto"},
          "none; auto = go on from --out's newest checkpoint, if there is one, with the options of its "
          "config.toml, or --config, where none are given; FOLDER = from this one (-y 1 is auto, -y 0 none)");
    t.add("--new-data", &s.new_data,
          "with --resume: the training data may be other than before; it is then read from its start");
    t.add("--log-every N log-interval print-every", &s.log_every, {1, kMaxInt, "steps"},
          "steps between lines that stay on the screen");
    t.add("--quiet silent", &s.quiet, "print less");
}

void add_ranks_and_general(Table& t, ParsedOptions& s) {
    t.group = "Many GPUs, many processes";
    t.add("--gpus N|all n-gpus num-gpus devices", &s.gpus,
          "train on N GPUs of this host: a process (rank) for each is started. Left out: what torchrun's, "
          "Open MPI's, PMI's or SLURM's variables say, else one");
    t.add("--ranks N processes num-processes nproc-per-node", &s.ranks,
          {.range = {1, 1024, "processes"}, .rivals = "gpus"},
          "the same by the number of processes, on the CPU as well");
    t.add("--reduce-groups G", &s.reduce_groups, {1, 65536, "groups"},
          "a step's micro-batches are in G groups, whose gradients are added in their order: the same bits "
          "for any number of ranks that divides G. Left out: as the run began, or the number of ranks");
    t.add("--zero -z 0|1 zero-stage shard-optimizer", &s.zero, {0, 1, "(ZeRO-1 is the highest stage here)"},
          "1 = each rank keeps its share of the optimizer's state only (ZeRO-1); 0 = all (llm.c's -z)");
    t.add("--comm-timeout S timeout nccl-timeout", &s.comm_timeout, {1, 86400, "seconds"},
          "a rank that gives no sign for so long, or keeps the others waiting, ends the job");
    t.add("--check-ranks N", &s.check_ranks, {0, kMaxInt, "steps"},
          "steps between comparisons of the ranks' parameters: a bit that differs ends the job; 0 = none");
    t.add("--world-size -pn N", &s.world_size, {1, 65536, "processes"},
          "this is one of N processes, which you start yourself (llm.c's -pn)");
    t.add("--rank -pr R", &s.rank, {0, 65535}, "and the one of this number, from 0 (llm.c's -pr)");
    t.add("--ranks-per-host -pg N gpus-per-node", &s.ranks_per_host, {1, 1024, "processes"},
          "of which N are on a host, rank R on GPU R mod N (llm.c's -pg); left out: all");
    t.add("--master -ps HOST master-addr server-ip", &s.master,
          "the host of rank 0, or HOST:PORT: where the others find it (llm.c's -ps)");

    t.group = "General";
    t.add("--dry-run plan", &s.dry_run, "print the plan, with the memory it needs, and stop");
    t.add("--profile FILE profiler benchmark", &s.profile, {.empty_word = "none", .cpu_only = "none"},
          "instead of a run: train for some seconds, time products for a minute, then print what a step "
          "takes, part by part, and the least that each could take on this GPU; FILE gets the same as JSON");
    t.add("--tune-gemm FILE autotune tune gemm-cache", &s.tune_gemm,
          {.empty_word = "none", .cpu_only = "none"},
          "the fastest algorithms for this model's matrix products on this GPU: searched for one or two "
          "minutes and written to FILE if it is not there, read if it is. Same FILE, same bits");
    t.add("--graph 0|1 cuda-graph cuda-graphs graphs", &s.graph, {.range = {0, 1}, .cpu_only = "1"},
          "1 = the launches of a step are recorded once and repeated as a CUDA graph, of several ranks as a "
          "graph between two exchanges; 0 = each step launches them. Same bits");
    t.add("--seed N random-seed", &s.seed, {0, 0x1p64},
          "where random numbers start: a new model's weights, the order of the data, the samples");
    t.add("--config FILE", &s.config, {.for_command_line = true},
          "options from a file, see below; what stands on the command line wins over it");
    t.add("--version", {}, "print version, compiler and build, and stop");
    t.add("-h --help usage", {}, "print this, and stop");
}

// llm.c's options that are no short name of a row above. The rule: a value that only says what this program does anyway is
// accepted, so that command lines of llm.c work; so is one that changes nothing in what is computed, with a note; any other
// value is refused by name, never ignored.
void add_foreign(Table& t, ParsedOptions& s) {
    using Text = std::string;
    // values: those accepted, the second and later ones with a note
    const auto add = [&](Text name, Text values, Text what, Text cure, Text note = "") {
        const auto read = [=, &s](const Text& value) {
            const Text first = values.substr(0, values.find(' '));
            if (among(values, value)) {
                if (!note.empty() && value != first) { s.notes += name + " " + value + ": " + note + ".\n"; }
                return;
            }
            const Text only = "Only " + name + " " + first + " is accepted, and does nothing.";
            s.objections += "\n" + name + " " + in_quotes(value) + ": " + what +
                            " is not part of this program yet. " +
                            (values.empty() ? "Leave the option out." : only) + cure;
        };
        t.add(name + " X", read, "");
    };
    add("-a", "0", "training on one and the same batch",
        " The nearest is --epochs N with --train-data of a text that short (data/make_shards).");
    add("-w", "1", "training without fp32 master weights", " They are kept.");
    add("-ge", "0 1 2", "choosing where GELU is fused", "",
        "which product GELU is fused into is chosen here; the option changes nothing");
    add("-lg", "-1", "logging the state of the GPU", " See --log-every for the steps.");
    for (const char* name : {"-pi", "-pm", "-pf", "-pp"}) {  // llm.c's help calls -pi -pm, and -pf -pp
        add(name, among("-pi -pm", name) ? "mpi tcp" : "", "meeting in a shared folder",
            " The ranks meet over TCP: --master HOST (-ps), and no option under torchrun, mpirun or srun.");
    }
    const auto read_hellaswag = [&s](const Text& value) {
        if (value != "0" && value != "1") {
            fail_usage("-h " + in_quotes(value) +
                       ": expected 1, to ask HellaSwag's questions, or 0, as in llm.c. For help: --help, or "
                       "-h alone.");
        }
        s.ask_hellaswag = value == "1";
    };
    t.add("-h= 0|1", read_hellaswag, "");
}

constexpr const char* kHelpEnd = R"(Sub-commands, each with a --help of its own:
  PROGRAM generate MODEL --prompt TEXT    write with a trained model
  PROGRAM export MODEL --hf FOLDER        for Hugging Face's transformers
  PROGRAM eval MODEL --data GLOB          loss, perplexity and bits a byte on token shards
  PROGRAM report RUN RUN...               the curves of runs on one page for a browser

Examples:
  PROGRAM
      a small model on the sample data
  PROGRAM --dry-run --model d12 --batch 8 --seq-len 1024 --train-data 'data/web_train_*.bin'
      what would GPT-2 124M need? (the data say how many tokens there are)
  PROGRAM -i 'data/web_train_*.bin' -j data/web_val.bin -e d12 \
      -b 16 -t 1024 -d 524288 -l 6e-4 -u 700 -q 0 -c 0.1 -n 5000 -o runs/web -y 1
      GPT-2 124M, by llm.c's short names; the same line again goes on where it stopped
  PROGRAM --config web.toml --lr 3e-4
      options from a file, but another learning rate

A config file is TOML: one option in a line, by its long name, texts in quotes: batch = 8,
model = "d12", quiet = true. # starts a comment.
llm.c's options that are not above are accepted where they ask for nothing new, else refused.

Exit codes:
  0   done                                  5   the loss diverged
  2   bad option or value                   6   another rank was lost, or took too long
  3   input file missing or damaged         7   not all could be written
  4   no device, or not enough memory       75  stopped by a signal, checkpoint saved

)";

// ---- what is asked of the system

constexpr size_t kMaxConfigBytes = 1 << 20;
// where llm.c has its questions
constexpr const char* kLlmcHellaSwag = "dev/data/hellaswag/hellaswag_val.bin";

bool is_there(const std::string& path) {
    std::error_code ignored;
    return fs::exists(path, ignored);
}
bool is_folder(const std::string& path) {
    std::error_code ignored;
    return fs::is_directory(path, ignored);
}

std::string version_text() {
    const bool gcc = std::isdigit((unsigned char)__VERSION__[0]);  // only a number
    return fmt::format("plumb {}\ncompiler: {}{}, C++{}\nbuild: OpenMP {}\n", kVersion, gcc ? "GCC " : "",
                       __VERSION__, __cplusplus / 100 % 100, _OPENMP);
}

// ---- the config file, and the run that goes on

std::string config_file_text(const std::string& path) {
    const auto fail = [&](const char* problem) { fail_usage("--config " + in_quotes(path) + problem); };
    if (is_folder(path)) { fail(" is a folder. Expected a file of options, such as its config.toml."); }
    std::ifstream in(path, std::ios::binary);  // which may be a pipe
    if (!in) { fail(" cannot be read: no such file, or no permission."); }
    std::string text(kMaxConfigBytes, '\0');
    in.read(text.data(), (std::streamsize)text.size());
    text.resize((size_t)in.gcount());
    if (in.bad() || text.size() >= kMaxConfigBytes) { fail(" is over 1 MiB: not a config file."); }
    return text;
}

// A run goes on (--resume auto --out RUN) with the options that it had, but for those that are given: its config.toml; "" if
// it has none. Where it has no checkpoint yet, only if no others are given: what was worked out for it may not fit these. Not
// in a rank that something else has started: others of its job may run where they do not see the folder.
std::string config_of_run(const ParsedOptions& s, const std::vector<Setting>& typed) {
    const std::string own = s.out + "/config.toml";
    const bool goes_on = s.resume == "auto" && !s.out.empty() && s.config.empty() &&
                         is_there(s.out + "/log.jsonl") && file_kind(own) != FileKind::kMissing;
    const bool by_others =
        s.world_size > 0 || has_launcher([](const char* name) { return (const char*)std::getenv(name); });
    if (!goes_on || by_others) { return ""; }
    const std::vector<std::string> names = folder_names(s.out).value_or(std::vector<std::string>());
    const bool saved =
        std::ranges::any_of(names, [](const std::string& name) { return name.starts_with("step_"); });
    const bool others = std::ranges::any_of(typed, [&](const Setting& one) {
        const std::string& name = one.option->name;  // "": llm.c's, which change nothing
        return !name.empty() && !among("resume out dry-run quiet", name);
    });
    if (!saved && others) { return ""; }
    // nobody may ever write to a pipe
    if (file_kind(own) != FileKind::kFile) { throw Error(kExitBadInput, own + ": not a regular file"); }
    return own;
}

constexpr const char* kOfProcess = "master world-size rank ranks-per-host";

// The folder of the run may come from elsewhere: what its config.toml asks for beyond the folder and this machine must
// stand on the command line, too.
void require_harmless(const std::string& config, const Option& o, const std::string& value) {
    std::error_code ignored;
    const auto place = [&](const std::string& path) {
        return fs::weakly_canonical(fs::absolute(path, ignored), ignored);
    };
    const fs::path inside = place(value).lexically_relative(place(config).parent_path());
    const bool outside = value != o.empty_word && (inside.empty() || *inside.begin() == "..");
    const bool writes =
        o.name == "export-hf" || o.name == "profile" || (o.name == "tune-gemm" && !is_there(value));
    const bool crowds = o.name == "ranks" && std::stoull(value) > 8 * std::thread::hardware_concurrency();
    if (!(writes && outside) && !crowds && !among(kOfProcess, o.name)) { return; }
    fail_usage(config + ": " + o.name + " = " + in_quotes(value) +
               ": a run's own file may not ask for what is written outside of its folder, for more "
               "than 8 processes a processor, nor for other hosts. If you want it, add --" +
               o.name + " " + shell_word(value) + "; if not, remove this line.");
}

// A run folder that was renamed or copied has a config.toml that names the old place, where the run would go on.
void require_own_folder(const std::string& config, const std::string& out) {
    std::string folder = fs::path(config).parent_path().string();
    if (folder.empty()) { folder = "."; }
    std::error_code ignored;
    if (out.empty() || !is_there(folder + "/log.jsonl") || fs::equivalent(folder, out, ignored)) { return; }
    fail_usage("--config " + in_quotes(config) + " lies in a run's folder, but its out is " + in_quotes(out) +
               ": was the folder renamed or copied? Give --out " + shell_word(folder) + " to go on there.");
}

// What the config file says goes into the fields of *s, and then what the command line says. Returns both.
std::vector<Setting> take_config(ParsedOptions* s, const Table& table, const std::vector<Setting>& typed) {
    const std::string of_run = config_of_run(*s, typed), path = of_run.empty() ? s->config : of_run;
    if (path.empty()) { return typed; }
    const auto in_file = read_config(config_file_text(path), "--config " + in_quotes(path), table);
    *s = ParsedOptions(s->program);
    std::vector<Setting> all;
    for (const Setting& one : in_file) {
        const Option& o = *one.option;
        const auto replaces = [&](const Setting& t) { return t.option == &o || are_rivals(*t.option, o); };
        if (std::ranges::any_of(typed, replaces)) { continue; }
        // a run that a GPU began goes on here as this program can, and there again as it was
        if (!of_run.empty() && s->program == Program::kCpu && (!o.cpu_only.empty() || o.name == "gpus")) {
            const bool other = one.text != o.cpu_only && one.text != o.empty_word;
            if (other) { s->for_gpu.push_back({o.name, one.text}); }
            continue;
        }
        if (!of_run.empty()) { require_harmless(path, o, one.text); }
        all.push_back(one);
    }
    all.insert(all.end(), typed.begin(), typed.end());
    for (const Setting& one : all) { table.assign(*one.option, one.text, one.where); }
    if (s->resume != "none" && !has(typed, table.find("--out"))) { require_own_folder(path, s->out); }
    return all;
}

// The validation data of own training data, if none is named: the files that are called the same, but for "val" in place of
// "train"; "" if there are none. Never the sample's, which is another text.
std::string validation_beside(const std::string& train_data) {
    const size_t at = train_data.rfind("train");
    if (at == std::string::npos || train_data.find('/', at) != std::string::npos) { return ""; }
    const std::string pattern = std::string(train_data).replace(at, 5, "val");
    glob_t found = {};
    const bool there = glob(pattern.c_str(), GLOB_TILDE, nullptr, &found) == 0;
    globfree(&found);
    return there ? pattern : "";
}

// ---- what must fit together

void object(ParsedOptions& s, bool wrong, const std::string& text) {
    s.objections += wrong ? "\n" + text : "";
}

// objects to a number that is no multiple of a step
void check_multiple(ParsedOptions& s, const char* option, int64_t n, int64_t step, const std::string& of) {
    const int64_t low = n / step * step;
    const std::string lower = low > 0 ? fmt::format("{} or ", low) : "";
    object(s, low != n,
           fmt::format("{0} {1} is not a multiple of {2}. Nearest: {0} {3}{4}.", option, n, of, lower,
                       low + step));
}

void check_model(ParsedOptions& s) {
    if (s.layers || s.heads || s.channels) {
        const char* missing = !s.layers ? "layers" : !s.heads ? "heads" : !s.channels ? "channels" : "";
        object(s, *missing,
               fmt::format("--layers, --heads and --channels go together: --{} is missing.", missing));
        if (!*missing) {
            check_multiple(s, "--channels", s.channels, s.heads, fmt::format("--heads {}", s.heads));
        }
        return;
    }
    ModelShape shape;
    if (s.model == kAutoModel || model_descriptor(s.model, &shape)) {
        if (s.model.starts_with(kGpt3Prefix) && s.max_seq_len == 0) { s.max_seq_len = 2048; }
        return;
    }
    // a run that goes on has its weights in a checkpoint: the folder that they came from may be gone
    const bool goes_on = s.resume != "none" && (s.resume != "auto" || is_there(s.out + "/log.jsonl"));
    const bool is_file = s.model.ends_with(".bin") || s.model.ends_with(".safetensors");
    object(
        s, !goes_on && !is_file && !is_folder(s.model),
        "--model " + in_quotes(s.model) +
            " is not known. Expected dN with N = 1 to 1024 layers (d12 is GPT-2 124M), gpt3:cN with N = 384, "
            "768, 1024, 1536, 2048, 2560, 4096 or 12288 channels, a file *.bin or *.safetensors, or a "
            "folder: of a run, a checkpoint, or Hugging Face's GPT-2 (one that is only on their hub must be "
            "downloaded first). Other shapes: --layers, --heads and --channels.");
    object(s, s.max_seq_len > 0, "--max-seq-len is for a new model; the one that --model names has its own.");
}

// dtype auto becomes a type, and --val-batches --val-tokens
void check_run(ParsedOptions& s, const Table& table) {
    const int64_t tokens = (int64_t)s.batch * s.seq_len;  // of one micro-batch
    object(s, s.max_seq_len && s.max_seq_len < s.seq_len,
           fmt::format("--max-seq-len {} is less than --seq-len {}.", s.max_seq_len, s.seq_len));
    check_multiple(s, "--total-batch", s.total_batch, tokens,
                   fmt::format("batch x seq-len = {} x {} = {} tokens", s.batch, s.seq_len, tokens));
    const bool gpu = s.program == Program::kGpu;
    if (s.dtype == FloatType::kAuto) { s.dtype = gpu ? FloatType::kBf16 : FloatType::kFp32; }
    for (const Option& o : table.options) {
        object(s, !o.cpu_only.empty() && value_text(o) != o.cpu_only,
               "--" + o.name + (is_switch(o) ? "" : " " + value_text(o)) +
                   " needs the GPU program: make train_gpt2cu. This one, on the CPU, computes in fp32 and "
                   "keeps all activations.");
    }
    object(s, gpu && s.grad_dtype == FloatType::kBf16 && s.dtype == FloatType::kFp32,
           "--grad-dtype bf16 is for --dtype bf16; with fp32 the gradients are fp32. Leave one out.");
    object(s, gpu && s.tf32 && s.dtype == FloatType::kBf16,
           "--tf32 is about the products of fp32, and the type is bf16 (the default on a GPU). Add "
           "--dtype fp32, or leave --tf32 out.");
    object(s, s.keep_best && s.val_data.empty(),
           "--keep-best is about the validation loss: it needs --val-data.");
    const int64_t n = s.val_batches, most = (int64_t)kMaxTokens / tokens;
    object(s, n > most,
           fmt::format("--val-batches {}, each of {} tokens: over 10^15 tokens. -1 = all.", n, tokens));
    if (n != 0) { s.val_tokens = n < 0 ? -1 : std::min(n, most) * tokens; }
    s.val_batches = 0;
}

}  // namespace

Table trainer_table(ParsedOptions* settings) {
    ParsedOptions& s = *settings;
    const bool gpu = s.program == Program::kGpu;
    Table t;
    t.strict = true;
    t.program = gpu ? "./train_gpt2cu" : "./train_gpt2";
    t.about = fmt::format("plumb trains GPT-2 in plain C++ and CUDA, here on {}. Every option has a default.",
                          gpu ? "an NVIDIA GPU" : "the CPU");
    t.commands = "generate, export, eval and report";
    t.end = kHelpEnd;
    for (auto add : {add_data_and_model, add_precision_and_batch, add_optimizer, add_validation, add_output,
                     add_ranks_and_general, add_foreign}) {
        add(t, s);
    }
    for (Option& o : t.options) {
        if (gpu) { o.cpu_only.clear(); }
    }
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
    const auto [end, code] = std::from_chars(text.data() + start, text.data() + text.size(), n);
    if (code != std::errc() || end != text.data() + text.size() || text[start] == '0') { return false; }
    const auto* known = gpt3 ? std::ranges::find(kGpt3, n, &ModelShape::channels)
                             : std::ranges::find(kGpt2, n, &ModelShape::layers);
    const bool in_table = known != (gpt3 ? std::end(kGpt3) : std::end(kGpt2));
    if (!in_table && (gpt3 || n < 1 || n > 1024)) { return false; }
    *shape = in_table ? *known : ModelShape{n, n, 64 * n};
    return true;
}

std::string format_help(const std::string& name, Program program) {
    ParsedOptions s(program);
    Table table = trainer_table(&s);
    table.program = name;
    return table.help();
}

Options parse_options(int argc, const char* const* argv, Program program, int* exit_code_out) {
    ParsedOptions s(program);
    const Table table = trainer_table(&s);
    const CommandLine line(table, argc, argv);
    const auto require_none = [](const std::string& objections) {
        if (!objections.empty()) { fail_usage(objections.substr(1)); }
    };
    if (!line.objections.empty() || !line.action.empty()) { require_none(s.objections + line.objections); }
    *exit_code_out = line.action.empty() ? -1 : kExitDone;
    if (!line.action.empty()) {
        const std::string name = argc > 0 ? argv[0] : table.program;
        std::fputs((line.action == "help" ? format_help(name, program) : version_text()).c_str(), stdout);
        require_printed();
        return s;
    }
    const std::vector<Setting> given = take_config(&s, table, line.settings);
    if (has(given, table.find("--train-data")) && !has(given, table.find("--val-data"))) {
        s.val_data = validation_beside(s.train_data);
    }
    check_model(s);
    check_run(s, table);
    require_none(s.objections);
    for (const auto& [name, value] : s.for_gpu) {
        s.notes += name + " = " + value + ": not on the CPU; config.toml keeps it for a GPU\n";
    }
    if (s.ask_hellaswag && s.hellaswag.empty()) {
        if (is_there(kLlmcHellaSwag)) { s.hellaswag = kLlmcHellaSwag; }
        if (s.hellaswag.empty()) {
            s.notes += std::string("-h 1: ") + kLlmcHellaSwag +
                       " is not there, so no questions are asked. data/make_hellaswag makes such a file; "
                       "--hellaswag FILE names another.\n";
        }
    }
    s.llmc_letters =
        std::ranges::any_of(line.settings, [](const Setting& one) { return !one.where.starts_with("--"); });
    return s;
}

std::string config_text(const Options& options, bool own) {
    ParsedOptions s(options);
    const Table table = trainer_table(&s);
    for (const auto& [name, value] : options.for_gpu) {
        if (own) { table.assign(*table.find("--" + name), value, name); }
    }
    s.new_data = false;  // a word for one start
    if (s.layers > 0) { s.model.clear(); }
    std::string text = fmt::format("# plumb {}: the options of a run. --config reads them back.\n", kVersion);
    for (const Option& o : table.options) {
        if (!o.group.empty()) { text += fmt::format("\n# {}\n", o.group); }
        std::string value = value_text(o);
        if (value.empty() || o.for_command_line || among(kOfProcess, o.name)) { continue; }
        // TOML's whole numbers have 64 bits with their sign
        const bool is_long = o.name == "seed" && s.seed > (uint64_t)INT64_MAX;
        text += fmt::format("{} = {}\n", o.name, is_text(o) || is_long ? escaped(value) : value);
    }
    return text;
}

bool fill_from_run(const std::string& config_path, Options* options) {
    const std::optional<std::string> text = read_whole(config_path, kMaxConfigBytes);
    if (!text) { return false; }
    ParsedOptions s(*options);
    const Table table = trainer_table(&s);
    const auto of_run = read_config(*text, "--config " + in_quotes(config_path), table);
    static_cast<Options&>(s) = *options;
    const bool length_given = s.steps != kAuto || s.epochs > 0 || s.minutes > 0;
    const std::string names = length_given ? "" : "steps epochs minutes ";
    for (const auto& [option, value, where] : of_run) {
        const bool kept =
            among(names + "lr warmup final-lr-fraction val-every sample-every reduce-groups", option->name);
        if (kept && value_text(*option).empty()) { table.assign(*option, value, where); }
    }
    *options = s;
    return true;
}

}  // namespace llmc

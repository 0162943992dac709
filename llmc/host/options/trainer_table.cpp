// The trainers' options: a row for each, in the order of --help. A new option is a field in options.h and a row here.
#include <algorithm>

#include "llmc/host/base/error.h"
#include "llmc/host/options/options.h"
#include "llmc/host/options/table.h"
#include "llmc/host/options/typed_text.h"

namespace llmc {
namespace {

constexpr double kMaxLength = 1 << 20;
// below, because the optimizer computes in float: the largest beta still under 1, and an eps above 0
constexpr double kMaxBeta = 0.9999999, kMinEps = 1e-37;

void add_data(Table& t, ParsedOptions& s) {
    t.group("Data");
    t.add("-i --train-data GLOB input train data input-bin", &s.train_data,
          "token shards to train on: a file, or a pattern in quotes ('data/web_train_*.bin'). "
          "data/make_shards makes them from text");
    t.add("-j --val-data GLOB input-val valid-data validation-data eval-data", &s.val_data,
          "token shards for validation; none = no validation; left out: those named like --train-data, but "
          "for val in place of train, if there are any")
        .if_empty("none");
    t.add("--raw-tokens VOCAB", &s.raw_tokens, {1, 65536, "tokens"},
          "both are files of 16-bit tokens and nothing else, as nanoGPT's train.bin and val.bin: how many "
          "tokens are there? (50257 of GPT-2)");
    t.add("--tokenizer PATH tokenizer-path vocab", &s.tokenizer,
          "turns tokens into text for the samples, and the prompt into tokens: the folder or file given to "
          "data/make_shards, or llm.c's gpt2_tokenizer.bin (no prompt then). The run keeps a copy. auto = "
          "the one beside --model, else bytes, if the shards are byte-level")
        .if_empty("auto");
}

void add_model(Table& t, ParsedOptions& s) {
    t.group("Model");
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
    t.add("--layers N n-layer num-layers depth n-layers", &s.layers, {1, 1024, "layers"},
          "instead of --model, a new model of these three sizes")
        .not_with("model");
    t.add("--heads N n-head num-heads n-heads", &s.heads, {1, 1024, "heads in a layer"},
          "must divide --channels")
        .not_with("model");
    t.add("--channels N n-embd embd width d-model hidden-size", &s.channels, {1, 65536, "channels"},
          "the width of the model")
        .not_with("model");
    t.add("--max-seq-len N block-size context-length", &s.max_seq_len, {0, kMaxLength, "tokens"},
          "the longest sequence that a new model has room for; 0 = --seq-len");
}

void add_precision(Table& t, ParsedOptions& s) {
    t.group("Precision and memory");
    t.add("--dtype TYPE precision data-type amp", &s.dtype,
          "what weights and activations are computed in; bf16 keeps fp32 master weights; auto = bf16 on a "
          "GPU, fp32 on the CPU")
        .one_of("auto bf16 fp32")
        .on_cpu("fp32");
    t.add("--grad-dtype TYPE gradient-dtype grad-precision", &s.grad_dtype,
          "what gradients are summed in over the micro-batches of a step; bf16 halves their memory, and is "
          "for --dtype bf16 only")
        .one_of("fp32 bf16")
        .on_cpu("fp32");
    t.add("--recompute -r WHAT recomputation activation-checkpointing gradient-checkpointing", &s.recompute,
          "what backward computes again instead of keeping it.\n"
          "gelu:  the wide MLP activations before and after GELU: one matrix\n"
          "       product a layer more, half of the activation memory less\n"
          "block: all of a block but its input: a third more compute, about 1/16\n"
          "       of the memory (llm.c's -r: 0 none, 1 gelu, 2 block)")
        .on_cpu("none")
        .by_number("none gelu block");
    t.add("--tf32 -f allow-tf32 tensorcores", &s.tf32,
          "with --dtype fp32: products in TF32: faster, and rounded to 10 bits (llm.c's -f 1)")
        .on_cpu("false")
        .by_number("false true");
}

void add_batch(Table& t, ParsedOptions& s) {
    t.group("Batch and length of the run");
    t.add("-b --batch N batch-size micro-batch device-batch-size", &s.batch, {1, kMaxLength, "sequences"},
          "sequences that go through the model at once: more need more memory");
    t.add("-t --seq-len N sequence-length T length", &s.seq_len, {1, kMaxLength, "tokens"},
          "length of a sequence");
    t.add("-d --total-batch N total-batch-size global-batch tokens-per-step", &s.total_batch,
          {0, kMaxTokens, "tokens"},
          "tokens for one step of the optimizer, a multiple of batch x seq-len: their gradients are added up "
          "first; 0 = batch x seq-len");
    t.add("-x --steps N max-steps iterations num-iterations max-iters", &s.steps, {1, kMaxInt, "steps", true},
          "steps of the optimizer; -1 = once through the training data. Left out, as are the next three "
          "about the learning rate: worked out from the parameters of the model and the tokens of the data, "
          "the same on any machine, and printed with the reason (but as in llm.c where its short names are "
          "used: -1)");
    t.add("--epochs X num-epochs n-epochs num-train-epochs", &s.epochs, {1e-3, 1e6, "times"},
          "instead of --steps: how often to go through the training data")
        .not_with("steps");
    t.add("--minutes X time hours max-time duration", &s.minutes, {0.01, 1e6, "minutes"},
          "instead of --steps, on the CPU: as many steps as take about so long, by its speed at the start")
        .not_with("steps epochs");
}

void add_optimizer(Table& t, ParsedOptions& s) {
    t.group("Optimizer");
    t.add("--optimizer NAME optim opt", &s.optimizer,
          "muon = the matrices of the blocks (q, k, v, attproj, fc, fcproj) move along their mean gradient "
          "with its strong and its weak directions made equally strong; all else by AdamW. Fewer steps to "
          "the same loss, and one moment of these matrices instead of two. --lr and --weight-decay mean the "
          "same for both. auto = muon for a new model of at most 384 channels whose --lr is left out, adamw "
          "otherwise (and where llm.c's short names are used); a run that goes on keeps its own");
    t.add("-l --lr X learning-rate max-lr", &s.lr, {0, 10},
          "highest learning rate; left out: by the model's size (llm.c's names: 3e-4)");
    t.add("-u --warmup N warmup-steps warmup-iters warm-up", &s.warmup, {0, kMaxInt, "steps"},
          "steps in which the learning rate rises from 0 to --lr; left out: a twentieth of all (llm.c: 0)");
    t.add("-k --schedule NAME scheduler lr-scheduler lr-schedule decay", &s.schedule,
          "how the learning rate falls after the warm-up, to lr x final-lr-fraction; wsd = constant at "
          "first, falls over the last fifth of the steps");
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
    t.add("--skip-loss-zscore -sl Z skip-outlier-loss outlier-loss loss-zscore skip-loss sl",
          &s.skip_loss_zscore, {0, 1000},
          "skip the update of a step whose loss lies more than Z standard deviations above the mean of the "
          "last 128 steps that were not skipped; 0 = never (llm.c: -sl)");
    t.add("--skip-norm-zscore -sg Z skip-outlier-norm outlier-norm grad-norm-zscore skip-grad sg",
          &s.skip_norm_zscore, {0, 1000},
          "the same for the norm of the gradient, before it is clipped (llm.c: -sg)");
}

void add_validation(Table& t, ParsedOptions& s) {
    t.group("Validation and samples");
    t.add("-v --val-every N eval-interval val-loss-every eval-every", &s.val_every, {0, kMaxInt, "steps"},
          "steps between validations; 0 = only at the end; left out: a tenth of all, or more if it would "
          "take long (llm.c: 20)");
    t.add("--val-tokens N eval-tokens", &s.val_tokens, {1, kMaxTokens, "tokens", true},
          "how much to validate on, from the start of the validation data; -1 = all of it");
    t.add("-m --val-batches N val-max-steps eval-iters val-steps", &s.val_batches,
          {1, kMaxInt, "batches", true},
          "the same in llm.c's unit, batches of batch x seq-len tokens; not with --val-tokens")
        .not_with("val-tokens");
    t.add("--val-align NAME align", &s.val_align,
          "window = back to back; document = each sequence from the start of a document; auto = document, if "
          "the documents fit in --seq-len");
    t.add("--hellaswag FILE hella-swag hellaswag-file", &s.hellaswag,
          "questions with four endings to choose from, which data/make_hellaswag or llm.c has made; the "
          "accuracy is printed and logged; none = no questions")
        .if_empty("none");
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
    t.group("Output, saving, resuming");
    t.add("-o --out FOLDER output output-dir out-dir log-dir", &s.out,
          "where the log and the checkpoints go; auto = runs/DATE-TIME")
        .if_empty("auto");
    t.add("-n --save-every N checkpoint-every save-interval", &s.save_every, {0, kMaxInt, "steps"},
          "steps between checkpoints; 0 = only at the end");
    t.add("--keep -nk N keep-checkpoints max-checkpoints save-total-limit", &s.keep,
          {0, kMaxInt, "checkpoints"},
          "older checkpoints are deleted after a new one is saved; 0 = all are kept (llm.c's -nk)");
    t.add("--keep-major -nm N", &s.keep_major, {0, kMaxInt, "steps"},
          "those of steps divisible by N are not counted and never deleted; 0 = none (llm.c's -nm)");
    t.add("--keep-best", &s.keep_best,
          "a validation loss lower than all before is saved; that checkpoint is not counted by --keep");
    t.add("--save-mode NAME async-save", &s.save_mode,
          "async = written while the run goes on, from a copy in memory; auto = so on a GPU, if the copy has "
          "room");
    t.add("--model-dtype TYPE export-dtype save-dtype", &s.model_dtype,
          "of model.bin, written at the end: fp32 (format v3) or bf16 (v5)")
        .one_of("fp32 bf16");
    t.add("--export-hf FOLDER hf save-hf save-pretrained", &s.export_hf,
          "at the end the model goes there, too, as Hugging Face's transformers loads it (see export)")
        .if_empty("none");
    t.add("--resume -y auto|FOLDER restart continue", &s.resume,
          "none; auto = go on from the newest checkpoint in --out, if there is one, with the options of its "
          "config.toml, or of --config, where none are given; FOLDER = go on from this one (llm.c's -y 1 is "
          "auto, -y 0 none)")
        .by_number("none auto");
    t.add("--new-data", &s.new_data,
          "with --resume: the training data may be other than before; it is then read from its start");
    t.add("--log-every N log-interval print-every", &s.log_every, {1, kMaxInt, "steps"},
          "steps between lines that stay on the screen");
    t.add("--quiet silent", &s.quiet, "print less");
}

void add_ranks(Table& t, ParsedOptions& s) {
    t.group("Many GPUs, many processes");
    t.add("--gpus N|all n-gpus num-gpus devices", &s.gpus,
          "train on N GPUs of this host: a process (rank) for each is started. Left out: what torchrun's, "
          "Open MPI's, PMI's or SLURM's variables say, else one");
    t.add("--ranks N processes num-processes nproc-per-node", &s.ranks, {1, 1024, "processes"},
          "the same by the number of processes, on the CPU as well")
        .not_with("gpus");
    t.add("--reduce-groups G", &s.reduce_groups, {1, 65536, "groups"},
          "a step's micro-batches are in G groups, whose gradients are added in their order: the same bits "
          "for any number of ranks that divides G. Left out: as the run began, or the number of ranks");
    t.add("--zero -z 0|1 zero-stage shard-optimizer", &s.zero, {0, 1, "(ZeRO-1 is the highest stage here)"},
          "1 = each rank keeps its share of the optimizer's state only (ZeRO-1); 0 = all (llm.c's -z)");
    t.add("--comm-timeout S timeout nccl-timeout", &s.comm_timeout, {1, 86400, "seconds"},
          "a rank that gives no sign for so long, or keeps the others waiting, ends the job");
    t.add("--check-ranks N", &s.check_ranks, {0, 0x1p31 - 1, "steps"},
          "every N steps the ranks compare their parameters, bit for bit; a difference, as by a GPU's "
          "failing memory, ends the job (0 = never)");
    t.add("--world-size -pn N", &s.world_size, {1, 65536, "processes"},
          "this is one of N processes, which you start yourself (llm.c's -pn)");
    t.add("--rank -pr R", &s.rank, {0, 65535}, "and the one of this number, from 0 (llm.c's -pr)");
    t.add("--ranks-per-host -pg N gpus-per-node", &s.ranks_per_host, {1, 1024, "processes"},
          "of which N are on a host, rank R on GPU R mod N (llm.c's -pg); left out: all");
    t.add("--master -ps HOST master-addr server-ip", &s.master,
          "the host of rank 0, or HOST:PORT: where the others find it (llm.c's -ps)");
}

void add_general(Table& t, ParsedOptions& s) {
    t.group("General");
    t.add("--dry-run plan", &s.dry_run, "print the plan, with the memory it needs, and stop");
    t.add("--profile FILE profiler benchmark", &s.profile,
          "instead of a run: train for some seconds, time products for a minute, then print what a step "
          "takes, part by part, and the least that each could take on this GPU; FILE gets the same as JSON")
        .if_empty("none")
        .on_cpu("none");
    t.add("--tune-gemm FILE autotune tune gemm-cache", &s.tune_gemm,
          "the fastest algorithms for this model's matrix products on this GPU: searched for one or two "
          "minutes and written to FILE if it is not there, read if it is. Same FILE, same bits")
        .if_empty("none")
        .on_cpu("none");
    t.add("--graph 0|1 cuda-graph cuda-graphs graphs", &s.graph, {0, 1},
          "1 = the launches of a step are recorded once and repeated as a CUDA graph, of several ranks as a "
          "graph between two exchanges; 0 = each step launches them. Same bits")
        .on_cpu("1");
    t.add("--seed N random-seed", &s.seed, {0, 0x1p64},
          "where random numbers start: a new model's weights, the order of the data, the samples");
    t.add("--config FILE", &s.config,
          "options from a file, see below; what stands on the command line wins over it")
        .for_command_line = true;
    t.add("--version", {}, "print version, compiler and build, and stop");
    t.add("-h --help usage", {}, "print this, and stop");
}

// llm.c's options that are no short name of a row above. The rule: a value that only says what this program does anyway is
// accepted, so that command lines of llm.c work; so is one that changes nothing in what is computed, with a note; any other
// value is refused by name, never ignored.
struct Foreign {
    const char* name;
    const char* harmless;  // the values accepted, with blanks between; "" = none
    const char* what;      // what the option asks for
    const char* cure;
    const char* noted = "";  // the values accepted with a note
    const char* note = "";   // what happens instead
};

constexpr const char* kMeet =
    "The ranks meet over TCP: --master HOST (-ps), and no option under torchrun, mpirun or srun.";

constexpr Foreign kForeign[] = {
    {"-a", "0", "training on one and the same batch",
     "The nearest is --epochs N with --train-data of a text that short (data/make_shards)."},
    {"-w", "1", "training without fp32 master weights", "They are kept."},
    {"-ge", "0", "choosing where GELU is fused", "", "1 2",
     "which product GELU is fused into is chosen here; the option changes nothing"},
    {"-lg", "-1", "logging the state of the GPU", "See --log-every for the steps."},
    {"-pi", "mpi tcp", "meeting in a shared folder", kMeet},
    {"-pm", "mpi tcp", "meeting in a shared folder", kMeet},  // what llm.c's help calls -pi
    {"-pf", "", "meeting in a shared folder", kMeet},
    {"-pp", "", "meeting in a shared folder", kMeet},  // what llm.c's help calls -pf
};

bool among(const char* list, const std::string& value) {
    const auto all = split_words(list);
    return std::find(all.begin(), all.end(), value) != all.end();
}

void read_foreign(const Foreign& option, const std::string& value, std::string* notes) {
    const std::string name = option.name;
    if (among(option.harmless, value)) { return; }
    if (among(option.noted, value)) {
        *notes += name + " " + value + ": " + option.note + ".\n";
        return;
    }
    std::string cure = "Leave the option out.";
    if (*option.harmless) {
        cure = "Only " + name + " " + split_words(option.harmless)[0] + " is accepted, and does nothing.";
    }
    if (*option.cure) { cure += std::string(" ") + option.cure; }
    fail_usage(name + " " + in_quotes(value) + ": " + option.what + " is not part of this program yet. " +
               cure);
}

// llm.c's switch for HellaSwag's questions; -h alone is help
void read_hellaswag(const std::string& value, bool* ask) {
    if (value != "0" && value != "1") {
        fail_usage("-h " + in_quotes(value) +
                   ": expected 1, to ask HellaSwag's questions, or 0, as in llm.c. For help: --help, or -h "
                   "alone.");
    }
    *ask = value == "1";
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
    for (auto add : {add_data, add_model, add_precision, add_batch, add_optimizer, add_validation, add_output,
                     add_ranks, add_general}) {
        add(t, s);
    }
    for (Option& o : t.options) {
        if (gpu || o.cpu_only.empty()) { continue; }
        const bool whole = is_switch(o) || allowed(o).empty();
        o.note = whole ? "in train_gpt2cu only"
                       : "only " + o.cpu_only + " here; " + allowed(o) + " in train_gpt2cu";
    }
    for (const Foreign& option : kForeign) {
        const auto read = [&option, &s](const std::string& value) { read_foreign(option, value, &s.notes); };
        t.add(fmt::format("{} X", option.name), read, "");
    }
    t.add(
        "-h= 0|1", [&s](const std::string& value) { read_hellaswag(value, &s.ask_hellaswag); }, "");
    return t;
}

}  // namespace llmc

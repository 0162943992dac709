// The options, as data: one row for each, in the order of --help. (llm.c's other options: options_llmc.h.)
// Only the parser includes this. A new option is a field in options.h and a row here.
#pragma once
#include <cstdint>
#include <limits>
#include <string>
#include <variant>

#include "llmc/host/options.h"

namespace llmc {

// what the rows fill: the options, and what is turned into one of them once all are known
struct Settings : Options {
    int64_t val_batches = 0;
};

using Field = std::variant<std::monostate, std::string Settings::*, bool Settings::*, int Settings::*,
                           int64_t Settings::*, uint64_t Settings::*, double Settings::*>;

struct OptionRow {
    const char* name;             // --name, and the key in a config file
    char letter = 0;              // llm.c's alias
    const char* value;            // what --help calls the value; "" = a switch without one
    Field field = {};             // monostate: acts by itself (help, version, config)
    double lo = 0, hi = 0;        // numbers: the range, both ends included
    bool or_minus_one = false;    // numbers: -1 is allowed too
    const char* unit = "";        // numbers: what is counted
    const char* choices = "";     // texts: the words allowed, with blanks between
    const char* empty_word = "";  // texts: the word that stands for ""
    const char* also = "";        // names that other programs give it: for "did you mean"
    const char* cpu_only = "";    // the only value that the CPU program takes; "" = any
    const char* help;
    const char* group = nullptr;  // title of the group that starts with this row
};

constexpr double kMaxInt = std::numeric_limits<int32_t>::max();
constexpr double kMaxTokens = 1e15;  // a count of tokens; exact as a double, far from overflow in int64
constexpr double kMaxLength = 1 << 20;
// below, because the optimizer computes in float: the largest beta still under 1, and an eps above 0
constexpr double kMaxBeta = 0.9999999, kMinEps = 1e-37;

using S = Settings;

inline const OptionRow kOptionTable[] = {
    {.name = "train-data",
     .letter = 'i',
     .value = "GLOB",
     .field = &S::train_data,
     .also = "input train data input-bin",
     .help = "token shards to train on: a file, or a pattern in quotes ('data/web_train_*.bin'). "
             "data/make_shards makes them from text",
     .group = "Data"},
    {.name = "val-data",
     .letter = 'j',
     .value = "GLOB",
     .field = &S::val_data,
     .empty_word = "none",
     .also = "input-val valid-data validation-data eval-data",
     .help = "token shards for validation; none = no validation"},
    {.name = "tokenizer",
     .value = "PATH",
     .field = &S::tokenizer,
     .empty_word = "auto",
     .also = "tokenizer-path vocab",
     .help =
         "turns tokens into text for the samples, and the prompt into tokens: the folder or file given to "
         "data/make_shards, or llm.c's gpt2_tokenizer.bin (no prompt then). The run keeps a copy. "
         "auto = the one beside --model, else bytes, if the shards are byte-level"},

    {.name = "model",
     .letter = 'e',
     .value = "dN|MODEL",
     .field = &S::model,
     .also = "load init-from checkpoint model-name",
     .help = "what to train: dN, a new GPT-2 of N layers (1 to 1024), or a MODEL.\n"
             "     heads  channels  parameters        heads  channels  parameters\n"
             "d12  12      768      124M         d48  25     1600      1.6B\n"
             "d24  16     1024      355M         d60  30     1920      2.8B\n"
             "d36  20     1280      774M         d72  30     2880      7.3B\n"
             "dN   N      64 x N                 d84  36     3456      12B\n"
             "(parameters with GPT-2's vocabulary; gpt2:dN is the same as dN)\n"
             "MODEL: *.bin in llm.c's format 20240326, v3 (fp32) or v5 (bf16); the\n"
             "folder of a run or a checkpoint; a folder with Hugging Face's GPT-2\n"
             "(config.json and model.safetensors), or a *.safetensors in it",
     .group = "Model"},
    {.name = "layers",
     .value = "N",
     .field = &S::layers,
     .lo = 1,
     .hi = 1024,
     .unit = "layers",
     .also = "n-layer num-layers depth n-layers",
     .help = "instead of --model, a new model of these three sizes"},
    {.name = "heads",
     .value = "N",
     .field = &S::heads,
     .lo = 1,
     .hi = 1024,
     .unit = "heads in a layer",
     .also = "n-head num-heads n-heads",
     .help = "must divide --channels"},
    {.name = "channels",
     .value = "N",
     .field = &S::channels,
     .lo = 1,
     .hi = 65536,
     .unit = "channels",
     .also = "n-embd embd width d-model hidden-size",
     .help = "the width of the model"},
    {.name = "max-seq-len",
     .value = "N",
     .field = &S::max_seq_len,
     .lo = 0,
     .hi = kMaxLength,
     .unit = "tokens",
     .also = "block-size context-length",
     .help = "the longest sequence that a new model has room for; 0 = --seq-len"},

    {.name = "dtype",
     .value = "TYPE",
     .field = &S::dtype,
     .choices = "auto bf16 fp32",
     .also = "precision data-type amp",
     .cpu_only = "fp32",
     .help = "what weights and activations are computed in; bf16 keeps fp32 master weights; "
             "auto = bf16 on a GPU, fp32 on the CPU",
     .group = "Precision and memory"},
    {.name = "grad-dtype",
     .value = "TYPE",
     .field = &S::grad_dtype,
     .choices = "fp32 bf16",
     .also = "gradient-dtype grad-precision",
     .cpu_only = "fp32",
     .help =
         "what gradients are summed in over the micro-batches of a step; bf16 halves their memory, and is "
         "for --dtype bf16 only"},
    {.name = "recompute",
     .value = "WHAT",
     .field = &S::recompute,
     .choices = "none gelu block",
     .also = "recomputation activation-checkpointing gradient-checkpointing",
     .cpu_only = "none",
     .help = "what backward computes again instead of keeping it.\n"
             "gelu:  the wide MLP activations before and after GELU: one matrix\n"
             "       product a layer more, half of the activation memory less\n"
             "block: all of a block but its input: a third more compute, about 1/16\n"
             "       of the memory (llm.c's -r: 0 none, 1 gelu, 2 block)"},
    {.name = "tf32",
     .value = "",
     .field = &S::tf32,
     .also = "allow-tf32 tensorcores",
     .cpu_only = "false",
     .help = "with --dtype fp32: products in TF32: faster, and rounded to 10 bits (llm.c's -f 1)"},

    {.name = "batch",
     .letter = 'b',
     .value = "N",
     .field = &S::batch,
     .lo = 1,
     .hi = kMaxLength,
     .unit = "sequences",
     .also = "batch-size micro-batch device-batch-size",
     .help = "sequences that go through the model at once: more need more memory",
     .group = "Batch and length of the run"},
    {.name = "seq-len",
     .letter = 't',
     .value = "N",
     .field = &S::seq_len,
     .lo = 1,
     .hi = kMaxLength,
     .unit = "tokens",
     .also = "sequence-length T length",
     .help = "length of a sequence"},
    {.name = "total-batch",
     .letter = 'd',
     .value = "N",
     .field = &S::total_batch,
     .lo = 0,
     .hi = kMaxTokens,
     .unit = "tokens",
     .also = "total-batch-size global-batch tokens-per-step",
     .help = "tokens for one step of the optimizer, a multiple of batch x seq-len: their gradients are added "
             "up first; 0 = batch x seq-len"},
    {.name = "steps",
     .letter = 'x',
     .value = "N",
     .field = &S::steps,
     .lo = 1,
     .hi = kMaxInt,
     .or_minus_one = true,
     .unit = "steps",
     .also = "max-steps iterations num-iterations max-iters",
     .help =
         "steps of the optimizer; -1 = once through the training data. Left out, as are the next three about "
         "the learning rate: worked out from the model, the data and the device, and printed with the "
         "reason (but as in llm.c where its short names are used: -1)"},
    {.name = "epochs",
     .value = "X",
     .field = &S::epochs,
     .lo = 1e-3,
     .hi = 1e6,
     .unit = "times",
     .also = "num-epochs n-epochs num-train-epochs",
     .help = "instead of --steps: how often to go through the training data"},

    {.name = "lr",
     .letter = 'l',
     .value = "X",
     .field = &S::lr,
     .lo = 0,
     .hi = 10,
     .also = "learning-rate max-lr",
     .help = "highest learning rate; left out: by the model's size (llm.c's names: 3e-4)",
     .group = "Optimizer (AdamW)"},
    {.name = "warmup",
     .letter = 'u',
     .value = "N",
     .field = &S::warmup,
     .lo = 0,
     .hi = kMaxInt,
     .unit = "steps",
     .also = "warmup-steps warmup-iters warm-up",
     .help =
         "steps in which the learning rate rises from 0 to --lr; left out: a twentieth of all (llm.c: 0)"},
    {.name = "schedule",
     .letter = 'k',
     .value = "NAME",
     .field = &S::schedule,
     .choices = "constant cosine linear wsd",
     .also = "scheduler lr-scheduler lr-schedule decay",
     .help = "how the learning rate falls after the warm-up, to lr x final-lr-fraction; "
             "wsd = constant at first, falls over the last fifth of the steps"},
    {.name = "final-lr-fraction",
     .letter = 'q',
     .value = "X",
     .field = &S::final_lr_fraction,
     .lo = 0,
     .hi = 1,
     .also = "learning-rate-decay-frac min-lr final-lr",
     .help =
         "the learning rate at the end, as a part of --lr; 1 = it does not fall; left out: 0.1 (llm.c: 1)"},
    {.name = "weight-decay",
     .letter = 'c',
     .value = "X",
     .field = &S::weight_decay,
     .lo = 0,
     .hi = 10,
     .also = "wd",
     .help = "pull towards 0, on matrices only (not on biases and LayerNorm)"},
    {.name = "beta1",
     .value = "X",
     .field = &S::beta1,
     .lo = 0,
     .hi = kMaxBeta,
     .also = "adam-beta1",
     .help = "memory of the mean of the gradient"},
    {.name = "beta2",
     .value = "X",
     .field = &S::beta2,
     .lo = 0,
     .hi = kMaxBeta,
     .also = "adam-beta2",
     .help = "memory of the mean of its square"},
    {.name = "eps",
     .value = "X",
     .field = &S::eps,
     .lo = kMinEps,
     .hi = 1,
     .also = "epsilon adam-eps",
     .help = "added to the root of that mean before dividing by it"},
    {.name = "clip",
     .value = "X",
     .field = &S::clip,
     .lo = 0,
     .hi = 1e9,
     .also = "grad-clip max-grad-norm clip-grad-norm",
     .help = "largest norm of the whole gradient: a longer one is scaled down to it; 0 = no clipping"},

    {.name = "val-every",
     .letter = 'v',
     .value = "N",
     .field = &S::val_every,
     .lo = 0,
     .hi = kMaxInt,
     .unit = "steps",
     .also = "eval-interval val-loss-every eval-every",
     .help = "steps between validations; 0 = only at the end; left out: a tenth of all, or more if it would "
             "take long (llm.c: 20)",
     .group = "Validation and samples"},
    {.name = "val-tokens",
     .value = "N",
     .field = &S::val_tokens,
     .lo = 1,
     .hi = kMaxTokens,
     .or_minus_one = true,
     .unit = "tokens",
     .also = "eval-tokens",
     .help = "how much to validate on, from the start of the validation data; -1 = all of it"},
    {.name = "val-batches",
     .letter = 'm',
     .value = "N",
     .field = &S::val_batches,
     .lo = 1,
     .hi = kMaxInt,
     .or_minus_one = true,
     .unit = "batches",
     .also = "val-max-steps eval-iters val-steps",
     .help = "the same in llm.c's unit, batches of batch x seq-len tokens; not with --val-tokens"},
    {.name = "val-align",
     .value = "NAME",
     .field = &S::val_align,
     .choices = "auto window document",
     .also = "align",
     .help = "window = back to back; document = each sequence from the start of a document; "
             "auto = document, if the documents fit in --seq-len"},
    {.name = "sample-every",
     .letter = 's',
     .value = "N",
     .field = &S::sample_every,
     .lo = 0,
     .hi = kMaxInt,
     .unit = "steps",
     .also = "sample-interval generate-every",
     .help =
         "steps between samples of the model's own text; 0 = never; left out: a tenth of all (llm.c: 20)"},
    {.name = "sample-tokens",
     .letter = 'g',
     .value = "N",
     .field = &S::sample_tokens,
     .lo = 1,
     .hi = kMaxLength,
     .unit = "tokens",
     .also = "gen-tokens max-new-tokens generate",
     .help = "length of a sample"},
    {.name = "temperature",
     .value = "X",
     .field = &S::temperature,
     .lo = 0,
     .hi = 100,
     .also = "temp",
     .help = "below 1 safer text, above 1 wilder; 0 = always the most likely token"},
    {.name = "top-k",
     .value = "N",
     .field = &S::top_k,
     .lo = 0,
     .hi = 65536,
     .unit = "tokens",
     .help = "draw among the K most likely tokens; 0 = among all"},
    {.name = "prompt",
     .value = "TEXT",
     .field = &S::prompt,
     .also = "start",
     .help = "what a sample starts with; without it, a new document"},

    {.name = "out",
     .letter = 'o',
     .value = "FOLDER",
     .field = &S::out,
     .empty_word = "auto",
     .also = "output output-dir out-dir log-dir",
     .help = "where the log and the checkpoints go; auto = runs/DATE-TIME",
     .group = "Output, saving, resuming"},
    {.name = "save-every",
     .letter = 'n',
     .value = "N",
     .field = &S::save_every,
     .lo = 0,
     .hi = kMaxInt,
     .unit = "steps",
     .also = "checkpoint-every save-interval",
     .help = "steps between checkpoints; 0 = only at the end"},
    {.name = "keep",
     .value = "N",
     .field = &S::keep,
     .lo = 0,
     .hi = kMaxInt,
     .unit = "checkpoints",
     .also = "keep-checkpoints max-checkpoints save-total-limit",
     .help = "older checkpoints are deleted after a new one is saved; 0 = all are kept (llm.c's -nk)"},
    {.name = "model-dtype",
     .value = "TYPE",
     .field = &S::model_dtype,
     .choices = "fp32 bf16",
     .also = "export-dtype save-dtype",
     .help = "of model.bin, written at the end: fp32 (format v3) or bf16 (v5)"},
    {.name = "resume",
     .value = "auto|FOLDER",
     .field = &S::resume,
     .also = "restart continue",
     .help = "none; auto = go on from the newest checkpoint in --out, if there is one; FOLDER = go on from "
             "this one (llm.c's -y 1 is auto, -y 0 none)"},
    {.name = "new-data",
     .value = "",
     .field = &S::new_data,
     .help = "with --resume: the training data may be other than before; it is then read from its start"},
    {.name = "log-every",
     .value = "N",
     .field = &S::log_every,
     .lo = 1,
     .hi = kMaxInt,
     .unit = "steps",
     .also = "log-interval print-every",
     .help = "steps between lines that stay on the screen"},
    {.name = "quiet", .value = "", .field = &S::quiet, .also = "silent", .help = "print less"},

    {.name = "dry-run",
     .value = "",
     .field = &S::dry_run,
     .also = "plan",
     .help = "print the plan, with the memory it needs, and stop",
     .group = "General"},
    {.name = "seed",
     .value = "N",
     .field = &S::seed,
     .lo = 0,
     .hi = 0x1p64,
     .also = "random-seed",
     .help = "where random numbers start: a new model's weights, the order of the data, the samples"},
    {.name = "config",
     .value = "FILE",
     .help = "options from a file, see below; what stands on the command line wins over it"},
    {.name = "version", .value = "", .help = "print version, compiler and build, and stop"},
    {.name = "help", .letter = 'h', .value = "", .also = "usage", .help = "print this, and stop"},
};

}  // namespace llmc

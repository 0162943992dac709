// Options: what a user of the trainers can set, as one plain struct, and the parser that fills it from the command line and
// a config file. The defaults stand here; names, ranges and help texts in trainer_table.cpp.
#pragma once
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "llmc/host/options/choices.h"

namespace llmc {

class Table;

// Which of the two trainers parses. They share the options; what only a GPU can do, the CPU program refuses.
enum class Program { kCpu, kGpu };

constexpr const char* kVersion = "0.1";

constexpr int64_t kOneEpoch = -1, kAuto = 0;  // values of Options::steps
constexpr const char* kAutoModel = "auto";

struct Options {
    Program program = Program::kCpu;  // whose options these are

    // data
    std::string train_data = "data/sample/train.bin";  // glob of token shards
    std::string val_data = "data/sample/val.bin";      // glob; "" = no validation
    int raw_tokens = 0;                                // 0, or the vocabulary of files without a header
    std::string tokenizer;  // tokenizer file; "" = bytes if the shards are byte-level

    // model: a descriptor dN, or a model file, or the three sizes; kAutoModel becomes a dN in the run's plan
    std::string model = kAutoModel;  // ignored where layers, heads and channels are given
    int layers = 0, heads = 0, channels = 0;
    int max_seq_len = 0;  // 0 = seq_len, or what the model file says

    // precision and memory; of the CPU program: fp32, fp32, none, false
    FloatType dtype = FloatType::kAuto;       // of weights and activations (parse_options resolves auto)
    FloatType grad_dtype = FloatType::kFp32;  // what gradients are summed in over micro-batches
    Recompute recompute = Recompute::kNone;
    bool tf32 = false;  // fp32 products in TF32

    // batch and length of the run
    int batch = 4;                   // sequences in a micro-batch
    int seq_len = 256;               // T
    int64_t total_batch = 0;         // tokens per optimizer step; 0 = one micro-batch
    int64_t steps = kAuto;           // kOneEpoch, or kAuto = as many as seem right
    double epochs = 0, minutes = 0;  // instead of steps; 0 = not given

    // optimizer
    // Muon for the blocks' matrices, and AdamW for the rest; auto becomes one of them in the plan
    Optimizer optimizer = Optimizer::kAuto;
    double lr = -1;                 // negative, of these three: worked out by the plan
    int64_t warmup = -1;            // steps
    double final_lr_fraction = -1;  // of lr, at the end
    Decay schedule = Decay::kCosine;
    double weight_decay = 0.0;  // on 2-D tensors only
    double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
    double clip = 1.0;  // largest gradient norm; 0 = no clipping
    // a step whose loss or norm is this many standard deviations above the mean is skipped; 0 = none is
    double skip_loss_zscore = 0, skip_norm_zscore = 0;

    // validation and sampling
    int64_t val_every = -1;   // steps; 0 = only at the end; -1 = the plan works it out
    int64_t val_tokens = -1;  // tokens from the start of the validation data; -1 = all
    ValAlign val_align = ValAlign::kAuto;
    std::string hellaswag;        // file of questions; "" = none are asked
    int64_t hellaswag_every = 0;  // steps; 0 = with each validation
    int64_t sample_every = -1;    // steps; 0 = never; -1 = worked out
    int sample_tokens = 64;
    double temperature = 1.0;  // 0 = always the most likely token
    int top_k = 0;             // 0 = all tokens
    std::string prompt;

    // output
    std::string out;         // run folder; "" = runs/<date-time>
    int64_t save_every = 0;  // steps; 0 = only at the end
    int64_t keep = 0;        // the newest checkpoints that stay; 0 = all
    int64_t keep_major = 0;  // those of steps divisible by it stay, too; 0 = none
    bool keep_best = false;  // save and keep the one with the lowest validation loss
    SaveMode save_mode = SaveMode::kAuto;
    std::string resume = "none";               // none, auto, or a step folder
    bool new_data = false;                     // resume with other training data than before
    FloatType model_dtype = FloatType::kFp32;  // of model.bin at the end: fp32 (v3) or bf16 (v5)
    std::string export_hf;  // folder for Hugging Face's transformers, at the end; "" = none
    int64_t log_every = 1;  // steps between permanent lines
    bool quiet = false;
    bool dry_run = false;
    // file of the fastest algorithms for products, searched if it is not there; "" = no
    std::string tune_gemm;
    int graph = 1;  // 1: a step's launches are recorded once, and repeated as a CUDA graph; 0: they are not
    std::string profile;  // instead of training, what a step takes goes to this file; "" = no

    uint64_t seed = 42;

    // many processes; where a number is below its range, it was not given
    std::string gpus;        // of this host, for each a process that this one starts: N or all
    int ranks = 0;           // processes that this one starts
    int reduce_groups = 0;   // of micro-batches in a step, whose gradients are added in order; 0 = ranks
    int zero = 1;            // 1: a rank keeps its share of the optimizer's state only (ZeRO-1); 0: all
    int comm_timeout = 600;  // seconds without a sign of a rank
    int check_ranks = 0;     // steps from one comparison of the ranks' parameters to the next; 0 = none
    int world_size = 0, rank = -1, ranks_per_host = 0;  // of a process that was started by other means
    std::string master;                                 // where they meet: the host of rank 0, or host:port

    std::vector<std::pair<std::string, std::string>>
        for_gpu;                // of a run that goes on, what the CPU program has not
    std::string notes;          // what to say about the command line, whole lines
    bool llmc_letters = false;  // the command line used llm.c's names: what it leaves open is as in llm.c
};

// The three sizes that a model descriptor stands for.
struct ModelShape {
    int layers = 0, heads = 0, channels = 0;
    bool operator==(const ModelShape&) const = default;
};

inline constexpr const char* kGpt3Prefix = "gpt3:c";

// "dN" or "gpt2:dN", N = 1 to 1024 layers: the sizes of llm.c's table (d12 is GPT-2 124M), and where the
// table has no N, N heads of 64 channels; "gpt3:cN": those of its table of N channels. False, and *shape as it was, for
// any other text.
bool model_descriptor(const std::string& text, ModelShape* shape);

// Fills Options from argv (flag > config file > default). Where the program has nothing left to do (--help
// and --version, printed to stdout) *exit_code_out is what it should return, else -1. Bad usage throws
// Error(kExitUsage) that names the option and, for an unknown one, the nearest known.
// All that comes back is in range, fits together (total_batch is a multiple of batch x seq_len, and so on)
// and is what this program can do; dtype is kFp32 or kBf16.
Options parse_options(int argc, const char* const* argv, Program program, int* exit_code_out);

// The options in config-file form: what --config reads back. own: as the run's, which keeps what this program has not.
std::string config_text(const Options& options, bool own = false);

// What a run was started with, from its config.toml: sets those of steps, lr, warmup, final_lr_fraction,
// val_every and sample_every that are left open (epochs and minutes count as steps). False if there is no such file;
// throws Error(kExitUsage) if it cannot be read as one.
bool fill_from_run(const std::string& config_path, Options* options);

std::string format_help(const std::string& name, Program program);  // what --help prints

// ---- for the parser and its tests

// what the table fills: the options, and what is turned into one of them once all are known
struct ParsedOptions : Options {
    int64_t val_batches = 0;
    bool ask_hellaswag = false;  // llm.c's -h 1
    std::string config;          // file
};

Table trainer_table(ParsedOptions* settings);

using Pairs = std::vector<std::pair<std::string, std::string>>;

// A config file's text, which is TOML, as pairs of name and value, checked as strictly as a command line by putting them into
// the fields of `scratch`; without those that the command line replaces by saying the same in another way (--model and
// --layers, --val-tokens and --val-batches). file: its name, for errors; given: the options of the command line.
Pairs read_config(std::string text, const std::string& file, const Table& scratch,
                  const std::set<std::string>& given);
std::string escaped(const std::string& text);  // a text as a config file takes it
// what has been set, as a config file
std::string write_config(const Table& table);

}  // namespace llmc

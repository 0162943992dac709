// Options: what a user of the trainers can set, as one plain struct, and the parser that fills it from the command line and
// a config file. The defaults stand here; names, ranges and help texts in the rows of options.cpp.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "llmc/host/options/choices.h"

namespace llmc {

struct Table;

// Which of the two trainers parses. They share the options; what only a GPU can do, the CPU program refuses.
enum class Program { kCpu, kGpu };

constexpr const char* kVersion = "0.1";

constexpr int64_t kOneEpoch = -1, kAuto = 0;  // values of Options::steps
constexpr const char* kAutoModel = "auto";

// What each is: its row. Here what the row cannot say.
struct Options {
    Program program = Program::kCpu;  // whose options these are
    std::string train_data = "data/sample/train.bin", val_data = "data/sample/val.bin", tokenizer;
    int raw_tokens = 0;  // 0 = the files have headers

    std::string model = kAutoModel;  // becomes a dN in the plan; ignored where the three sizes are given
    int layers = 0, heads = 0, channels = 0;
    int max_seq_len = 0;  // 0 = seq_len, or what the model file says
    FloatType dtype = FloatType::kAuto, grad_dtype = FloatType::kFp32;  // parse_options resolves auto
    Recompute recompute = Recompute::kNone;
    bool tf32 = false, fp8 = false;

    int batch = 4, seq_len = 256;
    int64_t total_batch = 0;                                 // 0 = one micro-batch
    int64_t steps = kAuto;                                   // kOneEpoch, or kAuto = as many as seem right
    double epochs = 0, minutes = 0;                          // 0 = not given
    Optimizer optimizer = Optimizer::kAuto;                  // becomes one of the others in the plan
    double lr = -1, final_lr_fraction = -1;                  // negative: worked out by the plan
    int64_t warmup = -1, val_every = -1, sample_every = -1;  // so are these
    Decay schedule = Decay::kCosine;
    double weight_decay = 0.0, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, clip = 1.0, dropout = 0;
    double skip_loss_zscore = 0, skip_norm_zscore = 0;

    int64_t val_tokens = -1, hellaswag_every = 0;
    ValAlign val_align = ValAlign::kAuto;
    int sample_tokens = 64, top_k = 0;
    double temperature = 1.0;
    std::string hellaswag, prompt, out, export_hf, resume = "none", tune_gemm, profile;
    int64_t save_every = 0, keep = 0, keep_major = 0, patience = 0, log_every = 1;
    bool keep_best = false, new_data = false, quiet = false, dry_run = false;
    SaveMode save_mode = SaveMode::kAuto;
    FloatType model_dtype = FloatType::kFp32;
    int graph = 1;
    uint64_t seed = 42;

    // many processes; where a number is below its range, it was not given
    std::string gpus, master;
    int ranks = 0, reduce_groups = 0, zero = 1, comm_timeout = 600, check_ranks = 0;
    int world_size = 0, rank = -1, ranks_per_host = 0;

    // of the command line, for the parser: what becomes val_tokens, a file, what llm.c's options say that mean nothing here
    int64_t val_batches = 0;
    std::string config, ignored;
    std::map<std::string, std::string> for_gpu;  // of a run that goes on, what the CPU program has not
    std::string notes;                           // what to say about the command line, whole lines
    bool llmc_letters = false;  // the command line used llm.c's names: what it leaves open is as in llm.c
};

// The three sizes that a model descriptor stands for.
struct ModelShape {
    int layers = 0, heads = 0, channels = 0;
    bool operator==(const ModelShape&) const = default;
};

inline constexpr const char* kGpt3Prefix = "gpt3:c";

// A name of a new model, as --help lists them, by llm.c's tables. False, and *shape as it was, for any other text.
bool model_descriptor(const std::string& text, ModelShape* shape);

// Options from argv (flag > config file > default); nothing for --help and --version, which are printed. Bad usage throws
// Error(kExitUsage) that names the option and, for an unknown one, the nearest known.
// All that comes back is in range, fits together (total_batch is a multiple of batch x seq_len, and so on)
// and is what this program can do; dtype is kFp32 or kBf16.
std::optional<Options> parse_options(int argc, const char* const* argv, Program program);

// The options in config-file form: what --config reads back. own: as the run's, which keeps what this program has not.
std::string config_text(const Options& options, bool own = false);

// Where it is left open for how long, how fast and in which groups to train: as a run was started, from its config.toml. False if
// there is no such file; throws Error(kExitUsage) if it cannot be read as one.
bool fill_from_run(const std::string& config_path, Options* options);

Table trainer_table(Options* settings);  // for the parser and its tests

}  // namespace llmc

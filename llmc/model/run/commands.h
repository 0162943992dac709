// The sub-commands of both trainers, ./train_gpt2 generate, export, eval and report (whose options: log/report.cpp): one place
// that knows them all.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "llmc/host/options/options.h"
#include "llmc/model/model.h"
#include "llmc/model/model_source.h"

namespace llmc {

// What each is: its row in commands.cpp. Here what the row cannot say.
struct CommandOptions {
    std::string command;  // "generate", "export" or "eval"
    std::string model, tokenizer;
    bool best = false;  // the run's best checkpoint
    bool json = false;  // of generate and eval
    // generate
    std::string prompt;
    std::vector<int> prompt_ids;
    std::vector<std::string> stop;
    int64_t tokens = 256, num_samples = 1;
    double temperature = 0.8, top_p = 1;
    int top_k = 0;
    uint64_t seed = 42;
    bool interactive = false, stats = false, no_bos = false;
    FloatType dtype = FloatType::kAuto, type = FloatType::kAuto;  // type: export's
    // export
    std::string hf;
    bool force = false;
    // eval
    std::string data, hellaswag;  // one of both is given
    int raw_tokens = 0, batch = 4, seq_len = 0, stride = 0;
    ValAlign val_align = ValAlign::kAuto;
    int64_t max_tokens = -1;
    bool per_question = false;
};

// argv[1] is the command. Nothing: its help was asked for, and has been printed. Bad usage throws Error(kExitUsage).
std::optional<CommandOptions> parse_command(int argc, const char* const* argv);

// what a program computes with
struct Engine {
    // dtype: not fp16. Both throw Error(kExitUsage) for one that the program does not have.
    std::function<std::unique_ptr<Decoder>(const ModelSource&, FloatType dtype)> decoder;
    std::function<std::unique_ptr<Model>(const ModelSource&, FloatType dtype, int B, int T)> evaluator;
};

// Runs the sub-command that argv[1] names and returns the program's exit code; nothing if it names none.
std::optional<int> run_command(int argc, char** argv, const Engine& engine);

}  // namespace llmc

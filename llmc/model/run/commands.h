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

struct CommandOptions {
    std::string command;    // "generate", "export" or "eval"
    std::string model;      // as llmc/model/model_source.h finds it
    std::string tokenizer;  // file or folder; "" = the one beside the model

    // generate
    std::string prompt;           // "-" = from standard input
    std::vector<int> prompt_ids;  // instead: the whole context
    int64_t tokens = 256;
    double temperature = 0.8;
    int top_k = 0;  // 0 = all tokens
    double top_p = 1;
    uint64_t seed = 42;
    int64_t num_samples = 1;
    std::vector<std::string> stop;
    FloatType dtype = FloatType::kAuto;  // of weights and cache: fp32 or bf16, or the program's choice
    bool json = false;                   // and eval's
    bool interactive = false, stats = false, no_bos = false;

    // export
    std::string hf;                     // folder
    FloatType type = FloatType::kAuto;  // of the weights; auto = as they are
    bool force = false;                 // write into a folder that is not empty

    // eval
    std::string data;       // glob of token shards, or "": one of both is given
    int raw_tokens = 0;     // 0, or the vocabulary of files without a header
    std::string hellaswag;  // file
    ValAlign val_align = ValAlign::kAuto;
    int64_t max_tokens = -1;  // -1 = all
    int batch = 4;
    int seq_len = 0;  // 0 = as long as the model allows, at most 1,024
    bool per_question = false;
};

bool is_command(const std::string& word);

// argv[1] is the command. False: its help was asked for, and has been printed. Bad usage throws Error(kExitUsage).
bool parse_command(int argc, const char* const* argv, CommandOptions* options);

// what a program computes with
struct Engine {
    // dtype: not fp16; throws Error(kExitUsage) for one that the program does not have
    std::function<std::unique_ptr<Decoder>(const ModelSource&, FloatType dtype)> decoder;
    std::function<std::unique_ptr<Model>(const ModelSource&, int B, int T)> evaluator;
};

// Runs the sub-command that argv[1] names and returns the program's exit code; nothing if it names none.
std::optional<int> run_command(int argc, char** argv, const Engine& engine);

}  // namespace llmc

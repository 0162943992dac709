// The sub-commands of both trainers, ./train_gpt2 generate, export, eval and report: one place that knows them all.
#pragma once
#include <functional>
#include <memory>
#include <optional>

#include "llmc/model/decoder.h"
#include "llmc/model/model_source.h"

namespace llmc {

// what a program computes with
struct Engine {
    // dtype: not fp16; throws Error(kExitUsage) for one that the program does not have
    std::function<std::unique_ptr<Decoder>(const ModelSource&, FloatType dtype)> decoder;
    std::function<std::unique_ptr<Model>(const ModelSource&, int B, int T)> evaluator;
};

// Runs the sub-command that argv[1] names and returns the program's exit code; nothing if it names none.
std::optional<int> run_command(int argc, char** argv, const Engine& engine);

}  // namespace llmc

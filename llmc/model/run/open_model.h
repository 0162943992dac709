// The one place that finds a model by its name, and what a run begins with.
#pragma once
#include <memory>
#include <string>

#include "llmc/model/model_source.h"

namespace llmc {

struct NamedModel {
    std::unique_ptr<ModelSource> source;
    std::string path;    // what was opened: a file, or a Hugging Face folder
    std::string folder;  // where its tokenizer is, if it has one: the run folder or the Hugging Face folder
};

// What a user may call a model:
//   a run folder: its model.bin, which a finished run has, else its newest checkpoint
//   a checkpoint folder (step_00001000), with or without its optimizer.safetensors; a model file (*.bin)
//   a Hugging Face GPT-2: the folder, or a *.safetensors in it
// Throws Error(kExitBadInput) unless it is there and right; notes about damaged checkpoints go to *notes.
NamedModel open_model(const std::string& name, std::string* notes);

// What a run begins with: a checkpoint's weights, moments and updates; else the weights of a model of this name; else, as both
// are "", new ones.
void load_start(Model* model, uint64_t seed, const std::string& checkpoint, const std::string& model_name);

}  // namespace llmc

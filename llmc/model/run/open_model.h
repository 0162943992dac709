// The one place that finds a model by its name.
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

}  // namespace llmc

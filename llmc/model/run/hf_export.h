// A model and its tokenizer in a folder, as transformers and llama.cpp's converter load it: by `export` and --export-hf.
#pragma once
#include <optional>
#include <string>

#include "llmc/host/options/options.h"
#include "llmc/host/tokens/tokenizer.h"
#include "llmc/model/formats/checkpoint.h"
#include "llmc/model/model_source.h"

namespace llmc {

// Throws Error(kExitUsage), which ends with `cure`, if there are files in the folder.
void require_empty_folder(const std::string& folder, const std::string& cure);

// Throws likewise if the folder is a checkpoint, which an export would damage, or a run's, for whose model it would be taken.
void require_no_run_there(const std::string& folder, const std::string& cure);

// Writes the model and, if it is one that can encode, the tokenizer; files of the same names are replaced.
// type: of the weights, auto = as they are. Returns which files were written, and,
// if the tokenizer is not among them, *note says so. A tokenizer that lies there and would stay is an Error(kExitUsage) before
// anything is written. run: as write_hf_model()'s. Errors as FileWriter's.
std::string export_hf(const std::string& folder, const ModelSource& source,
                      const std::optional<Tokenizer>& tokenizer, FloatType type, std::string* note,
                      const std::string& run = "");

// --export-hf: the folder must be empty, or hold what one of these starts of the run exported; and it is not the run's own.
void require_export_folder(const Options& o, const std::string& run_folder, const Descent& descent);

// Its end: exports the run's model.bin, whose last start is this one, if the folder is still right; returns what to say of it.
std::string export_run(const Options& o, const std::string& run_folder, const Descent& descent,
                       const std::optional<Tokenizer>& tokenizer);

}  // namespace llmc

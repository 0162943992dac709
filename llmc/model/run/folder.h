// A run folder: which of the checkpoints in it belong to the run, which one a run goes on from, and which
// stay; and the one place that finds a model by its name. A checkpoint counts if it is intact and lies on the
// line of descent that log.jsonl follows (see formats/checkpoint.h); damaged ones, abandoned ones (a later start
// went back to before them) and those of other runs are never taken and never counted.
// All throw CannotRead, and change nothing, where the folder cannot be read.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "llmc/model/formats/checkpoint.h"
#include "llmc/model/model_source.h"

namespace llmc {

// The newest checkpoint that counts; "" if the folder holds no run, or one that ended before its first save:
// that one can only be done again. What is passed over is appended to *notes, a line each. Throws
// Error(kExitBadInput) where going on is not possible and starting again would destroy something: step_
// folders of which none counts; a log with steps whose checkpoints are gone, or which began with one of
// another folder; without a log, checkpoints of different lines.
std::string find_checkpoint(const std::string& run_folder, std::string* notes);

// the run folder of a checkpoint, also where the checkpoint is a symbolic link to another disk
std::string run_folder_of(const std::string& checkpoint);

// Renames the log of a run that ended before its first save to log.jsonl.unsaved, and its model.bin likewise, so that the folder
// is free for that run's next start; returns what was done, a line each. Throws Error(kExitUsage) if that fails.
std::string put_log_aside(const std::string& run_folder);

// Throws Error(kExitUsage) if the folder holds a run (a log with steps, or step_ folders), or a model.
void require_no_run(const std::string& run_folder);

// Renames step_ folders that are damaged or not on this line to step_N.damaged, .abandoned or .foreign; says so, a line each.
std::string set_aside(const std::string& run_folder, const Descent& descent);

// llm.c's DONE_00001000 beside step_00001000, for scripts that wait for it: the checkpoint, which is complete, gets
// it, and loses it where it is deleted or set aside. Throws Error(kExitSaveFailed).
void mark_done(const std::string& checkpoint);

struct Retention {
    int64_t newest = 0;  // checkpoints that stay; 0: none is deleted
    int64_t major = 0;   // those of steps divisible by it are neither counted nor deleted; 0: there are none
    int64_t best = -1;   // nor is that of this step; -1: there is none
};

// Which checkpoints are known to be intact, by names and file_identity(): those need not be read again.
using KnownIntact = std::map<std::string, std::string>;

// Deletes the checkpoints on this line but the newest intact ones of those up to this step, which is just
// saved, and those that are never deleted. Returns what was passed over, a line each.
std::string remove_old_checkpoints(const std::string& run_folder, const Descent& descent, int64_t step,
                                   const Retention& keep, KnownIntact* known);

// A save of a step that has a checkpoint renames that one to NAME.replaced before the new one gets its name. Where a kill or
// a power loss came between, gives its name back; later, deletes it. Only under the run's lock. Throws Error(kExitSaveFailed).
void take_back_replaced(const std::string& run_folder);

// Deletes temporaries of interrupted saves (NAME.tmp-PID) and DONE_ files without a checkpoint. Only under the run's lock.
void remove_leftovers(const std::string& run_folder);

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

// Which checkpoint --keep-best found best, by the newest that counts. Throws Error(kExitBadInput) if none; notes as above.
std::string best_checkpoint(const std::string& run_folder, std::string* notes);

// What a run begins with: a checkpoint's weights, moments and updates; else those of a model of this name; else new weights.
void load_start(Model* model, uint64_t seed, const std::string& checkpoint, const std::string& model_name);

}  // namespace llmc

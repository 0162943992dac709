// Whether a run goes on with the data that it was trained on, and with the same settings.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "llmc/host/options/options.h"
#include "llmc/host/tokens/dataloader.h"
#include "llmc/model/eval/validation.h"
#include "llmc/model/formats/checkpoint.h"
#include "llmc/model/run/plan.h"

namespace llmc {

// Of each shard, in order: name without folder, tokens, XXH3 of its tokens. A file that is, by all that the
// system says of it, the one of that name in `known` is not read again; an edit that restores its time is
// noticed (ctime). Throws CannotRead; Error(128 + signal) if a stop is asked for meanwhile.
std::vector<ShardRecord> fingerprint(const ShardSet& set, const std::vector<ShardRecord>& known);

// "" for the same tokens in the same order, whatever the names, else the first difference: shard, found, expected
std::string difference(const std::vector<ShardRecord>& was, const std::vector<ShardRecord>& is);

// all that config.toml says, and what the run is on ("device")
using Settings = std::map<std::string, std::string>;
Settings recorded_settings(const Options& options, const std::string& device);

// Adds to the settings, for other ranks to compare: "weights", what tells those that a run begins with from others, of a
// checkpoint (by its MANIFEST), else of a model as RunPlan names it ("none": "", or not there); "entropy" (0: no val.json).
void note_inputs(const std::string& checkpoint, const std::string& model, double entropy, RunRecord* record);

// Throws Error(kExitBadInput) where this rank would compute with something else than rank 0, whose record with its inputs is
// `root`. Nothing else would tell: each rank computes what it is asked for, and the sum is wrong. val may be null.
void require_same_inputs(const RunRecord& root, const Options& options, const ShardSet& train,
                         const Validator* val, const std::string& device, const std::string& checkpoint,
                         const std::string& model);

// What the checkpoints of a run will note, which goes on from `was` of the checkpoint of this name ("": it is
// new): of other data than that its first epoch begins, if --new-data allows it, else throws
// Error(kExitBadInput) naming the shard. *notes gets a line for all that is not as before. val may be null.
RunRecord next_record(const RunRecord& was, const std::string& checkpoint, const Options& options,
                      const ShardSet& train, const Validator* val, const std::string& device,
                      std::string* notes);

// What the first line of a log, and that of each resume, says about the run: version, program, device, memory, parameters,
// steps, tokens of a step, the source's entropy where it is known, the plan as it was printed, and every option. A JSON
// object. plan_text: describe_run()'s; entropy: nats a token, 0 = unknown.
std::string run_header(const RunPlan& plan, const MemoryPlan& memory, const Device& device, double entropy,
                       const std::string& plan_text);

}  // namespace llmc

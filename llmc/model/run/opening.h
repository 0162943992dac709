// A run of rank 0, from the options to an open log: its data are read and its plan is made, printed and checked before anything
// is written; then its folder is taken, the other ranks are told, and the log says where it goes on from.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "llmc/host/files/file_io.h"
#include "llmc/host/log/run_log.h"
#include "llmc/host/ranks/comm.h"
#include "llmc/host/tokens/dataloader.h"
#include "llmc/model/eval/validation.h"
#include "llmc/model/run/plan.h"
#include "llmc/model/run/samples.h"
#include "llmc/model/run/saver.h"

namespace llmc {

struct Run {
    // Reads, and takes the lock of a folder that is there, so that what it holds stays what the plan was made for.
    Run(const Options& options, const ModelFactory& factory, Comm& comm);
    Run(const Run&) = delete;

    // prints the plan; throws where there is no room for it, or the folder is another's
    void announce(const Needs& needs);
    void take_folder();            // makes it, and works out what checkpoints will note
    void share() const;            // the other ranks begin with this
    void open_log(int64_t first);  // first: the step that it goes on with

    // whether it adds to the log in its folder; a checkpoint of another folder starts a new log
    bool goes_on() const;
    // of the validation data's source; 0 = unknown
    double entropy() const { return val ? val->entropy() : 0; }
    const ShardSet* val_set() const { return val ? &val->data().set() : nullptr; }

    Comm& comm;
    const std::string options_text;  // as given
    const ModelFactory factory;
    DataLoader data;
    RunLock lock;
    const RunPlan plan;
    const ModelSettings settings;
    RunSamples samples;
    std::optional<Validator> val;
    std::optional<EvalFile> questions;  // HellaSwag's
    Screen screen;
    // since announce()
    MemoryPlan memory;
    Device device;
    SavePlan saves;
    std::string plan_text;
    // since take_folder()
    std::string folder;  // where it is: plan.out, or beside it where that is another run's
    RunRecord record;    // what checkpoints note of this run
    std::string notes;   // of what is not as it was in the checkpoint's run, a line each
    // since open_log()
    std::optional<RunJournal> log;
};

// What the first line of a log, and that of each resume, says about the run: version, program, device, memory, parameters,
// steps, tokens of a step, the source's entropy where it is known, the plan as it was printed, and every option. A JSON
// object. plan_text: describe_run()'s; entropy: nats a token, 0 = unknown.
std::string run_header(const RunPlan& plan, const MemoryPlan& memory, const Device& device, double entropy,
                       const std::string& plan_text);

}  // namespace llmc

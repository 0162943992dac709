// What the stages of the fault suite share (main.cpp): a run that takes a moment, the same run undisturbed, what must
// hold after a fault, and how many faults are tried.
#pragma once
#include "dev/test/durability/injector.h"
#include "dev/test/support/train_program.h"

namespace llmc {

// how much is tried: every kPart-th fault, or all
inline int suite_part = 10;
inline uint64_t suite_seed = 1;

// A line of the result: what was tried, how often, and how often something was lost.
void report(const std::string& what, int64_t tried, int64_t lost, const std::string& note = "");

// Calls body(i) for each i of [0, n) whose turn it is (all with --all), on all processors. It returns what is wrong,
// "" = nothing. Reports how often it did, with the note; throws what a body throws first.
void try_each(const std::string& what, int64_t n, const std::function<std::string(int64_t)>& body,
              const std::function<std::string()>& note = {});

// Three shards, a validation shard, and room for runs.
class Workshop {
public:
    Workshop();
    std::string operator/(const std::string& name) const { return folder_ / name; }
    // the command of a run in this folder of 6 steps of 2 micro-batches, validated every 3; saved every 2,
    // unless `more` says otherwise
    Words command(const std::string& run, const std::string& more) const;
    // runs it there; its streams are in RUN.streams
    ProgramRun train(const std::string& run, const std::string& more) const;
    Traced traced(const std::string& run, const std::string& more, const Injection& injection,
                  bool with_data = false) const;
    ProgramRun result_of(const std::string& run, int exit_code) const;  // of the last of these

private:
    std::string streams(const std::string& run) const;
    TempFolder folder_;
};

// A run that was never disturbed: what others must come to.
struct Reference {
    std::string model;      // the bytes of model.bin
    std::vector<Json> log;  // without times
    explicit Reference(const std::string& run_folder);
    // "" if a run has come to the same: model, log with each step once, nothing left over; else what is wrong
    std::string difference(const std::string& run_folder) const;
};

// the step that the program said it goes on from, 0 = from the beginning
int64_t resumed_from(const std::string& out);

}  // namespace llmc

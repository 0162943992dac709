// Runs ./train_gpt2 (or its sister) as a user does, on shards that a test has written: what it prints,
// returns and leaves.
#pragma once
#include <sys/types.h>
#include <functional>

#include <nlohmann/json.hpp>

#include "dev/test/support/test_files.h"

namespace llmc {

struct ProgramRun {
    int exit_code = -1;  // 128 + the signal if one ended it
    std::string out, err;
};

using Words = std::vector<std::string>;

// "--steps 3 --quiet" -> {"--steps", "3", "--quiet"}
Words words(const std::string& text);

Words lines_with(const std::string& text, const std::string& part);

std::string program_path(const std::string& name);

std::string train_program();

// starts the program with its streams in folder/stdout and folder/stderr; returns the process. prepare() is
// called in it first: only what is safe in a copy of a program with threads.
pid_t start_prepared(const std::string& folder, const Words& options, const std::function<void()>& prepare,
                     const std::string& program = train_program());

pid_t start_train(const std::string& folder, const Words& options,
                  const std::string& program = train_program());

// A program that hangs is killed after five minutes, so that its test fails and the others run; from fifteen seconds
// on, which a slow machine may take, as soon as hangs(), if given, says so.
ProgramRun finish_train(const std::string& folder, pid_t pid, const std::function<bool()>& hangs = {});

ProgramRun run_train(const std::string& folder, const Words& options,
                     const std::string& program = train_program());

// it must end well
ProgramRun run_well(const std::string& folder, const Words& options,
                    const std::string& program = train_program());

// how it ended, and that stderr and stdout have all of these
void check_run(const ProgramRun& run, int exit_code, const Words& says = {}, const Words& prints = {});

// waits for it, at most for a minute
void wait_until(const std::function<bool()>& condition);

// what whoever runs these tests ignores (nohup, & in a script) would stay ignored
void default_signals();

// A text that a small model learns at once. A document is some sentences like "cat 3 sat 3. ": the digit is
// drawn, then repeated; everything but its first mention is determined.
constexpr int kSentence = 13, kSecondDigit = 10;
std::vector<uint16_t> learnable_tokens(int documents, int sentences, uint64_t seed);
// nats for each token to predict: ln 10 for each sentence
double learnable_entropy(int sentences);

// more, and those of the usual options that it does not name
Words merged(const Words& usual, const Words& more);

// the options of a run that takes a moment, then more, which may replace some of them
Words tiny_run(const std::string& folder, const std::string& more);

void write_tiny_data(const std::string& folder);

using Json = nlohmann::json;

// without the fields that depend on the machine
Json without_times(Json line);

// log.jsonl, each line an object, but those of events; without the fields that depend on the machine, unless
// asked for
std::vector<Json> read_log(const std::string& run_folder, bool with_times = false);

// compared here, so that a failure does not print them
bool same_files(const std::string& a, const std::string& b);

// names in a folder that begin like this, sorted, without the lock of a run; none if there is no such folder
Words names_below(const std::string& folder, const std::string& start = "");

// a folder with data, and tiny runs in it, each in a folder of its name, that share options
struct Runs {
    TempFolder folder;
    std::string usual;

    explicit Runs(const std::string& options) : usual(options) { write_tiny_data(folder.path()); }
    std::string operator/(const std::string& name) const { return folder / name; }
    std::string step(const std::string& out, int64_t n) const;  // the folder of a checkpoint
    Words options(const std::string& out, const std::string& more) const;
    pid_t start(const std::string& out, const std::string& more) const;
    ProgramRun run(const std::string& out, const std::string& more) const;
    ProgramRun train(const std::string& out, const std::string& more) const;  // ends well
    // ends at the same model, and has logged the same
    void check_same(const std::string& out, const std::string& other) const;
};

}  // namespace llmc

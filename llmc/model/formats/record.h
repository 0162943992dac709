// What a checkpoint says about its run beside weights and moments: run.json in its folder. How far it is,
// which run it belongs to and along which line of descent, what the run trained on, with which settings.
// Random numbers are functions of seed and step, and so is the order of the data, so that these two are all
// that they need to go on.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "llmc/host/tokens/tokenizer_files.h"
#include "llmc/model/formats/outlier_window.h"

namespace llmc {

// a start of the program: a random id, and the first step that it did
struct Start {
    std::string id;
    int64_t step = 0;
    bool operator==(const Start&) const = default;
};

// All the starts that led to a state, oldest first. The first id is the run's.
using Line = std::vector<Start>;

struct ShardRecord {
    std::string name;  // without its folder
    int64_t tokens = 0;
    uint64_t xxh3 = 0;     // of the tokens
    std::string identity;  // what the system said of the file then (settled_identity)
};

struct TrainingState {
    int64_t step = 0;     // steps done, skipped ones included: the next one has this number
    int64_t updates = 0;  // optimizer updates that happened
    uint64_t seed = 0;    // of initialisation and data order
    // what else decides which data a step sees
    int64_t seq_len = 0, rows_per_step = 0;
    std::string optimizer = "adamw";  // or muon: which moments there are
};

// a validation of a run
struct Validated {
    int64_t step = 0;
    double loss = 0;  // finite
    bool operator==(const Validated&) const = default;
};

struct RunRecord {
    Line line;
    TrainingState state;
    int64_t skipped_in_a_row = 0;      // of the steps before, those that were not finite
    std::vector<AcceptedStep> window;  // if outliers are skipped: OutlierWindow's, of the steps before
    int64_t data_start = 0;            // the step that began with this training data: its first epoch
    std::vector<ShardRecord> train_data, val_data;
    std::map<std::string, std::string> settings;  // see run/data.h
    int end_of_text = 0;                          // token id
    std::optional<double> val_loss;               // of this very state, if it was validated
    std::optional<Validated> best;                // the lowest on the line, if --keep-best asks for it
    std::string kept = "{}";                      // not in run.json but config.json, as HfFacts has it
    TextFiles tokenizer;                          // nor these: the run's tokenizer's files
};

std::string new_id();  // 16 hexadecimal digits

// whether a checkpoint of this step with the line `checkpoint` lies on `line`: no start between it and the
// end of `line` went back to before it
bool lies_on(const Line& line, const Line& checkpoint, int64_t step);

// run.json's content, and back. what: the file, for messages. Throws Error(kExitBadInput) naming the field.
std::string to_json(const RunRecord& record);
RunRecord parse_run_record(const std::string& text, const std::string& what);

// The line that log.jsonl gets at each start, with the members of a JSON object, and which line of descent a
// log follows: that of its last start. Nothing if it has none; throws as above.
std::string log_start(const Line& line, int64_t step, bool new_data = false,
                      const std::string& header = "{}");
std::optional<Line> line_of_log(const std::string& log, const std::string& what);

}  // namespace llmc

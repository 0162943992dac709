// How good a model is: its loss over validation data, and how many of HellaSwag's questions it answers.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "llmc/host/options/options.h"
#include "llmc/host/ranks/comm.h"
#include "llmc/host/tokens/dataloader.h"
#include "llmc/model/model.h"

namespace llmc {

// A run's validation: the mean loss and, where a val.json (ValInfo) says what is there, how often known things are predicted.

// A token id outside the vocabulary should stop a run before it starts: throws Error(kExitBadInput). Larger
// sets are checked as they are read: to scan them would take longer than a third of a second.
void check_tokens(const ShardSet& set);

// --val-align, for data of --raw-tokens
ValidationData::Align alignment(ValAlign asked, int raw_tokens);

class Validator {
public:
    // Throws Error(kExitBadInput) unless the data can be used with training data of this vocabulary.
    Validator(const Options& options, int vocab_size, int end_of_text);
    const ValidationData& data() const { return data_; }

    // Mean loss over the targets, nats, in rank 0; NaN if a stop was asked for first. All ranks call this,
    // each for its share of the rows; rows' sums are added in their order, whatever B and the number of ranks.
    double loss(Model& model, int B, Comm& comm);

    double entropy() const { return info_ ? info_->entropy : 0; }  // of the source, nats a token; 0 = unknown
    std::string short_text(double loss) const;            // "val loss 0.2500", and what it is of the entropy
    std::vector<std::string> summary(double loss) const;  // lines for the end of the run

private:
    void gather_rows(Comm& comm, const std::vector<int64_t>& begins);
    ValidationData data_;
    std::optional<ValInfo> info_;
    std::vector<char> hits_;        // by position in the validation shard: was this token predicted right?
    std::vector<double> row_sums_;  // of losses
};

// HellaSwag: which of four endings goes on from a context? A model answers with the one whose tokens it finds
// most likely. Zellers et al. 2019, arXiv:1905.07830.

struct HellaSwagScore {
    int64_t examples = 0;
    int64_t right = 0;                   // by the lowest sum of losses over the ending's tokens
    int64_t right_normalised = 0;        // by the lowest mean: llm.c's figure
    int64_t cut = 0;                     // endings that did not fit behind all of their context
    std::vector<std::string> questions;  // of each a JSON object: what it was answered, and why
    double accuracy() const { return (double)right / (double)examples; }
    double normalised() const { return (double)right_normalised / (double)examples; }
};

// Throws Error(kExitBadInput) naming both unless the file has this vocabulary; whose: "the model", "data/*.bin".
void require_vocabulary(const EvalFile& file, int vocab_size, const std::string& whose);

// Each ending is a row behind its context; of what is longer than T + 1 tokens the last ones count. evaluate:
// of a model made for batches of B rows of T tokens. Nothing if a stop was asked for first (stop_signal.h).
// Of endings that are equal the first is the answer.
std::optional<HellaSwagScore> score_hellaswag(const EvalFile& file, int B, int T,
                                              const std::function<Evaluation(const Batch&)>& evaluate);

}  // namespace llmc

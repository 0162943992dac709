// HellaSwag: which of four endings goes on from a context? A model answers with the one whose tokens it finds
// most likely. Zellers et al. 2019, arXiv:1905.07830.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "llmc/host/tokens/eval_file.h"
#include "llmc/model/model.h"

namespace llmc {

struct HellaSwagScore {
    int64_t examples = 0;
    int64_t right = 0;                   // by the lowest sum of losses over the ending's tokens
    int64_t right_normalised = 0;        // by the lowest mean: llm.c's figure
    int64_t cut = 0;                     // endings that did not fit behind all of their context
    std::vector<std::string> questions;  // of each a JSON object: what it was answered, and why
    double accuracy() const { return (double)right / (double)examples; }
    double normalised() const { return (double)right_normalised / (double)examples; }
};

// Throws Error(kExitBadInput) naming both unless the file has this vocabulary; whose: "the model",
// "data/*.bin".
void require_vocabulary(const EvalFile& file, int vocab_size, const std::string& whose);

// Each ending is a row behind its context; of what is longer than T + 1 tokens the last ones count. evaluate:
// of a model made for batches of B rows of T tokens. Nothing if a stop was asked for first (stop_signal.h).
// Of endings that are equal the first is the answer.
std::optional<HellaSwagScore> score_hellaswag(const EvalFile& file, int B, int T,
                                              const std::function<Evaluation(const Batch&)>& evaluate);

}  // namespace llmc

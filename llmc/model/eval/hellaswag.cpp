// HellaSwag: see hellaswag.h.
#include "llmc/model/eval/hellaswag.h"

#include <algorithm>
#include <array>

#include "llmc/host/base/error.h"
#include "llmc/host/base/stop_signal.h"

namespace llmc {

namespace {

// what a row costs: of the ending's tokens
struct RowLoss {
    double sum = 0;
    int tokens = 0;
    double mean() const { return sum / tokens; }
};

// Context and ending k as row `row` of a batch of zeros and ignored targets; returns whether all of it fits.
bool put_row(const EvalExample& example, int k, int64_t row, Batch* batch) {
    const auto context = example.context, ending = example.endings[(size_t)k];
    const size_t n = context.size() + ending.size();
    const auto token = [&](size_t i) { return i < context.size() ? context[i] : ending[i - context.size()]; };
    const size_t first = n - 1 > (size_t)batch->T ? n - 1 - (size_t)batch->T : 0;
    for (size_t i = first; i + 1 < n; i++) {
        const size_t at = (size_t)(row * batch->T) + i - first;
        batch->tokens[at] = token(i);
        if (i + 1 >= context.size()) { batch->targets[at] = token(i + 1); }
    }
    return first == 0;
}

RowLoss loss_of_row(const Batch& batch, const Evaluation& e, int64_t row) {
    RowLoss loss;
    for (int64_t i = row * batch.T; i < (row + 1) * batch.T; i++) {
        if (batch.targets[(size_t)i] == kIgnoreTarget) { continue; }
        loss.sum += e.losses[(size_t)i];
        loss.tokens++;
    }
    return loss;
}

void add_example(HellaSwagScore* score, int label, const RowLoss* rows) {
    const auto lowest = [&](auto value) {
        const auto less = [&](const RowLoss& a, const RowLoss& b) { return value(a) < value(b); };
        return (int)(std::min_element(rows, rows + kEvalEndings, less) - rows);
    };
    const int answer = lowest([](const RowLoss&row) { return row.sum; }),
              normalised = lowest([](const RowLoss&row) { return row.mean(); });
    score->right += answer == label;
    score->right_normalised += normalised == label;
    score->examples++;
    std::string losses;
    for (int k = 0; k < kEvalEndings; k++) {
        losses += fmt::format("{}[{:.9g},{}]", k == 0 ? "" : ",", rows[k].sum, rows[k].tokens);
    }
    score->questions.push_back(fmt::format("{{\"label\":{},\"answer\":{},\"normalised\":{},\"losses\":[{}]}}",
                                           label, answer, normalised, losses));
}

}  // namespace

void require_vocabulary(const EvalFile& file, int vocab_size, const std::string& whose) {
    if (file.vocab_size() == vocab_size) { return; }
    throw Error(
        kExitBadInput,
        fmt::format("{} has a vocabulary of {}, {} of {}: the same ids mean other texts. Make the file with "
                    "data/make_hellaswag and the tokenizer of {}.",
                    file.path(), file.vocab_size(), whose, vocab_size, whose));
}

std::optional<HellaSwagScore> score_hellaswag(const EvalFile& file, int B, int T,
                                              const std::function<Evaluation(const Batch&)>& evaluate) {
    size_t longest = 0;
    for (const EvalExample& example : file.examples()) {
        for (const auto& ending : example.endings) {
            longest = std::max(longest, example.context.size() + ending.size() - 1);
        }
    }
    HellaSwagScore score;
    Batch batch;
    batch.T = (int)std::min<size_t>(longest, (size_t)T);
    const int64_t rows = (int64_t)file.examples().size() * kEvalEndings;
    const int64_t at_once = std::max<int64_t>(1, (int64_t)B * T / batch.T);
    std::array<RowLoss, kEvalEndings> losses;
    for (int64_t first = 0; first < rows; first += at_once) {
        if (stop_requested) { return std::nullopt; }
        batch.B = (int)std::min(at_once, rows - first);
        batch.tokens.assign((size_t)batch.B * (size_t)batch.T, 0);
        batch.targets.assign(batch.tokens.size(), kIgnoreTarget);
        for (int64_t row = 0; row < batch.B; row++) {
            const EvalExample& example = file.examples()[(size_t)((first + row) / kEvalEndings)];
            score.cut += !put_row(example, (int)((first + row) % kEvalEndings), row, &batch);
        }
        const Evaluation e = evaluate(batch);
        for (int64_t row = 0; row < batch.B; row++) {
            const int64_t ending = (first + row) % kEvalEndings;
            losses[(size_t)ending] = loss_of_row(batch, e, row);
            if (ending + 1 < kEvalEndings) { continue; }
            add_example(&score, file.examples()[(size_t)((first + row) / kEvalEndings)].label, losses.data());
        }
    }
    return score;
}

}  // namespace llmc

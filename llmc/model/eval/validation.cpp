// How good a model is: see validation.h.
#include "llmc/model/eval/validation.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "llmc/host/base/error.h"
#include "llmc/host/base/stop_signal.h"
#include "llmc/host/log/run_log.h"

namespace llmc {

// ---- the loss -----------------------------------------------------------------------------------

ValidationData::Align alignment(ValAlign asked, int raw_tokens) {
    using enum ValidationData::Align;
    // of raw tokens only GPT-2's are known to have an end of text
    const bool has_ends = raw_tokens == 0 || raw_tokens == kGpt2VocabSize;
    return asked == ValAlign::kDocument ? kDocument : asked == ValAlign::kAuto && has_ends ? kAuto : kWindow;
}

void check_tokens(const ShardSet& set) {
    constexpr int64_t kPiece = 1 << 20, kMost = 1 << 28;
    std::vector<uint16_t> piece;
    for (size_t s = 0; s < set.shards().size() && set.begin(s + 1) <= kMost; s++) {
        for (int64_t at = set.begin(s); at < set.begin(s + 1); at += (int64_t)piece.size()) {
            piece.resize((size_t)std::min(kPiece, set.begin(s + 1) - at));
            set.read(at, piece);
        }
    }
}

Validator::Validator(const Options& o, int vocab_size, int end_of_text)
    : data_(o.val_data, o.seq_len, alignment(o.val_align, o.raw_tokens), end_of_text, o.val_tokens,
            o.raw_tokens) {
    throw_if(
        data_.vocab_size() != vocab_size, kExitBadInput,
        "{} has a vocabulary of {}, {} of {}: they cannot be used together. Make both with one tokenizer.",
        o.val_data, data_.vocab_size(), o.train_data, vocab_size);
    const ShardSet& shards = data_.set();
    check_tokens(shards);
    if (shards.shards().size() == 1 && o.val_tokens < 0) {
        info_ = read_val_info(shards.shards()[0].path(), shards.num_tokens());
        hits_.resize(shards.num_tokens());
    }
}

double Validator::loss(Model& model, int B, Comm& comm) {
    const std::vector<int64_t> begins = shares(data_.num_rows(), B, comm.size());
    const int64_t begin = begins[(size_t)comm.rank()], end = begins[(size_t)comm.rank() + 1];
    const int64_t most = (data_.num_rows() + (int64_t)B * comm.size() - 1) / ((int64_t)B * comm.size());
    row_sums_.assign((size_t)data_.num_rows(), 0.0);
    Batch batch;
    for (int64_t k = 0; k < most; k++) {
        if (comm.root_says("whether to stop", stop_requested != 0)) { return NAN; }
        const int64_t row = begin + k * B;
        if (row >= end) { continue; }
        data_.read(row, B, &batch);
        Evaluation e = model.evaluate(batch);
        for (int64_t i = 0; i < (int64_t)e.losses.size() && row + i / batch.T < end; i++) {
            row_sums_[(size_t)(row + i / batch.T)] += e.losses[(size_t)i];
            if (!info_ || batch.targets[(size_t)i] == kIgnoreTarget) { continue; }
            const auto at = (size_t)(data_.row_position(row + i / batch.T) + i % batch.T + 1);
            hits_[at] = e.predicted[(size_t)i] == batch.targets[(size_t)i];
        }
    }
    gather_rows(comm, begins);
    double sum = 0;
    for (double row : row_sums_) { sum += row; }
    return unsigned_nan(sum / (double)data_.num_targets());
}

// Rows and hits of all ranks come together in rank 0. Rows are in file order: the hits of a range of rows are one, too.
void Validator::gather_rows(Comm& comm, const std::vector<int64_t>& begins) {
    if (comm.size() == 1) { return; }
    comm.gather("validation losses", row_sums_.data(), begins);
    if (!info_) { return; }
    std::vector<int64_t> positions;
    for (int64_t row : begins) {
        const bool more = row < data_.num_rows();
        positions.push_back(more ? data_.row_position(row) + 1 : (int64_t)hits_.size());
    }
    comm.gather("validation hits", hits_.data(), positions);
}

std::string Validator::short_text(double loss) const {
    std::string text = fmt::format("val loss {:.4f}", loss);
    if (info_) { text += fmt::format(", {:.3f} x the source entropy", loss / info_->entropy); }
    return text;
}

std::vector<std::string> Validator::summary(double loss) const {
    if (!info_) { return {fmt::format("val loss {:.4f} nats/token", loss)}; }
    std::vector<std::string> lines;
    for (const ValInfo::Probe& probe : info_->probes) {
        int64_t right = 0;
        for (auto [position, length] : probe.spans) {
            const auto first = hits_.begin() + position;
            right += std::find(first, first + length, 0) == first + length;
        }
        lines.push_back(fmt::format("accuracy on {}: {:.1f} % of {}", probe.name,
                                    100.0 * (double)right / (double)std::max<size_t>(1, probe.spans.size()),
                                    probe.spans.size()));
    }
    lines.push_back(fmt::format("val loss {:.4f} nats/token, source entropy {:.4f}, ratio {:.3f}", loss,
                                info_->entropy, loss / info_->entropy));
    return lines;
}

// ---- HellaSwag ----------------------------------------------------------------------------------

namespace {

// what a row costs: of the ending's tokens
struct RowLoss {
    double sum = 0;
    int tokens = 0;
    double mean() const { return sum / tokens; }
};

// Context and ending k as row `row` of a batch of zeros and ignored targets; returns whether all of it fits.
bool put_row(const EvalExample& example, int64_t k, int64_t row, Batch* batch) {
    std::vector<int32_t> all(example.context.begin(), example.context.end());
    all.insert(all.end(), example.endings[(size_t)k].begin(), example.endings[(size_t)k].end());
    const size_t n = all.size(), first = n - 1 > (size_t)batch->T ? n - 1 - (size_t)batch->T : 0;
    for (size_t i = first; i + 1 < n; i++) {
        const size_t at = (size_t)(row * batch->T) + i - first;
        batch->tokens[at] = all[i];
        if (i + 1 >= example.context.size()) { batch->targets[at] = all[i + 1]; }
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

void add_example(HellaSwagScore* score, int label, std::span<const RowLoss> rows) {
    const auto answer = std::ranges::min_element(rows, {}, &RowLoss::sum) - rows.begin(),
               normalised = std::ranges::min_element(rows, {}, &RowLoss::mean) - rows.begin();
    score->right += answer == label;
    score->right_normalised += normalised == label;
    score->examples++;
    std::string losses;
    for (const RowLoss& row : rows) {
        losses += fmt::format("{}[{:.9g},{}]", losses.empty() ? "" : ",", row.sum, row.tokens);
    }
    score->questions.push_back(fmt::format("{{\"label\":{},\"answer\":{},\"normalised\":{},\"losses\":[{}]}}",
                                           label, answer, normalised, losses));
}

}  // namespace

void require_vocabulary(const EvalFile& file, int vocab_size, const std::string& whose) {
    if (file.vocab_size() == vocab_size) { return; }
    throw Error(kExitBadInput,
                "{} has a vocabulary of {}, {} of {}: the same ids mean other texts. Make the file with "
                "data/make_hellaswag and the tokenizer of {}.",
                file.path(), file.vocab_size(), whose, vocab_size, whose);
}

std::optional<HellaSwagScore> score_hellaswag(const EvalFile& file, int B, int T,
                                              const std::function<Evaluation(const Batch&)>& evaluate) {
    size_t longest = 0;
    for (const EvalExample& example : file.examples()) {
        for (const auto& ending : example.endings) {
            longest = std::max(longest, example.context.size() + ending.size() - 1);
        }
    }
    const int columns = (int)std::min<size_t>(longest, (size_t)T);
    const int64_t rows = (int64_t)file.examples().size() * kEvalEndings;
    const int64_t at_once = std::max<int64_t>(1, (int64_t)B * T / columns);
    HellaSwagScore score;
    Batch batch;
    std::vector<RowLoss> losses;
    for (int64_t first = 0; first < rows; first += at_once) {
        if (stop_requested) { return std::nullopt; }
        batch.reset((int)std::min(at_once, rows - first), columns);
        for (int64_t row = 0; row < batch.B; row++) {
            const EvalExample& example = file.examples()[(size_t)((first + row) / kEvalEndings)];
            score.cut += !put_row(example, (first + row) % kEvalEndings, row, &batch);
        }
        const Evaluation e = evaluate(batch);
        for (int64_t row = 0; row < batch.B; row++) { losses.push_back(loss_of_row(batch, e, row)); }
    }
    for (size_t i = 0; i < file.examples().size(); i++) {
        add_example(&score, file.examples()[i].label,
                    std::span(losses).subspan(i * kEvalEndings, kEvalEndings));
    }
    return score;
}

}  // namespace llmc

// The validation of a run: see validator.h.
#include "llmc/model/eval/validator.h"

#include <algorithm>

#include "llmc/host/base/error.h"

namespace llmc {

ValidationData::Align alignment(const std::string& name, const std::string& data, int T, int end_of_text,
                                int raw_tokens) {
    // of raw tokens only GPT-2's are known to have an end of text
    const bool has_ends = raw_tokens == 0 || raw_tokens == kGpt2VocabSize;
    const bool fit = name == "document" || (name == "auto" && has_ends &&
                                            ValidationData::documents_fit(data, T, end_of_text, raw_tokens));
    return fit ? ValidationData::Align::kDocument : ValidationData::Align::kWindow;
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
    : data_(o.val_data, o.seq_len, alignment(o.val_align, o.val_data, o.seq_len, end_of_text, o.raw_tokens),
            end_of_text, o.val_tokens, o.raw_tokens) {
    if (data_.vocab_size() != vocab_size) {
        throw Error(
            kExitBadInput,
            fmt::format("{} has a vocabulary of {}, {} of {}: they cannot be used together. Make both "
                        "with one tokenizer.",
                        o.val_data, data_.vocab_size(), o.train_data, vocab_size));
    }
    const ShardSet& shards = data_.set();
    check_tokens(shards);
    if (shards.shards().size() == 1 && o.val_tokens < 0) {
        info_ = read_val_info(shards.shards()[0].path(), shards.num_tokens());
        hits_.resize(shards.num_tokens());
    }
}

void Validator::collect_hits(int64_t first_row, const Batch& batch, const Evaluation& e) {
    for (int64_t i = 0; i < (int64_t)batch.targets.size(); i++) {
        int64_t row = first_row + i / batch.T;
        if (batch.targets[i] == kIgnoreTarget) { continue; }
        hits_[data_.row_position(row) + i % batch.T + 1] = e.predicted[i] == batch.targets[i];
    }
}

// What the ranks have of rows and hits comes together in rank 0. Rows are in file order, so that the hits of
// a range of rows are a range, too.
void Validator::gather_rows(Comm& comm, const std::vector<int64_t>& begins) {
    if (comm.size() == 1) { return; }
    const auto me = (size_t)comm.rank();
    const std::vector<double> rows(row_sums_.begin() + begins[me], row_sums_.begin() + begins[me + 1]);
    comm.gather("validation losses", row_sums_.data(), rows.data(), begins);
    if (!info_) { return; }
    std::vector<int64_t> positions;
    positions.reserve(begins.size());
    for (int64_t row : begins) {
        positions.push_back(row == 0                 ? 0
                            : row < data_.num_rows() ? data_.row_position(row) + 1
                                                     : (int64_t)hits_.size());
    }
    const std::vector<char> hits(hits_.begin() + positions[me], hits_.begin() + positions[me + 1]);
    comm.gather("validation hits", hits_.data(), hits.data(), positions);
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
            bool all = true;
            for (int64_t i = position; i < position + length; i++) { all = all && hits_[i]; }
            right += all;
        }
        lines.push_back(fmt::format("accuracy on {}: {:.1f} % of {}", probe.name,
                                    100.0 * (double)right / (double)std::max<size_t>(1, probe.spans.size()),
                                    probe.spans.size()));
    }
    lines.push_back(fmt::format("val loss {:.4f} nats/token, source entropy {:.4f}, ratio {:.3f}", loss,
                                info_->entropy, loss / info_->entropy));
    return lines;
}

}  // namespace llmc

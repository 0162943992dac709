// The validation of a run: the mean loss over its validation data and, where a val.json beside the shard says
// what is in it (val_info.h), how often known things are predicted.
#pragma once
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "llmc/host/dataloader.h"
#include "llmc/host/options.h"
#include "llmc/host/stop_signal.h"
#include "llmc/host/val_info.h"
#include "llmc/model/model.h"

namespace llmc {

// A token id outside the vocabulary should stop a run before it starts: throws Error(kExitBadInput). Larger
// sets are checked as they are read: to scan them would take longer than a third of a second.
void check_tokens(const ShardSet& set);

class Validator {
public:
    // Throws Error(kExitBadInput) unless the data can be used with training data of this vocabulary.
    Validator(const Options& options, int vocab_size, int end_of_text);
    const ValidationData& data() const { return data_; }

    // mean loss over the targets, nats; NaN if a stop was asked for first
    template <typename Model>
    double loss(Model& model, int B) {
        double sum = 0;
        Batch batch;
        for (int64_t row = 0; row < data_.num_rows(); row += B) {
            if (stop_requested) { return NAN; }
            data_.read(row, B, &batch);
            Evaluation e = model.evaluate(batch);
            for (float loss : e.losses) { sum += loss; }
            if (info_) { collect_hits(row, batch, e); }
        }
        return sum / (double)data_.num_targets();
    }

    double entropy() const { return info_ ? info_->entropy : 0; }  // of the source, nats a token; 0 = unknown
    std::string short_text(double loss) const;            // "val loss 0.2500", and what it is of the entropy
    std::vector<std::string> summary(double loss) const;  // lines for the end of the run

private:
    void collect_hits(int64_t first_row, const Batch& batch, const Evaluation& e);
    ValidationData data_;
    std::optional<ValInfo> info_;
    std::vector<bool> hits_;  // by position in the validation shard: was this token predicted right?
};

}  // namespace llmc

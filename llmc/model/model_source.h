// A model's numbers on their way: where its parameters come from, whatever the format; none that is not finite passes.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "llmc/host/options/choices.h"
#include "llmc/model/gpt2_config.h"
#include "llmc/model/model.h"

namespace llmc {

// Numbers that are not finite neither come in from files, nor go out to them, nor are shown: a training with them is lost.

// values [first, first + values.size()) of a tensor that was read from path; throws Error(kExitBadInput) naming the
// first that is not finite, or of the second moment negative
void require_finite_input(const std::string& path, State state, int tensor, int64_t first,
                          std::span<const float> values);

// the same of what would be written to path; throws Error(kExitDiverged)
void require_finite_output(const std::string& path, State state, int tensor, int64_t first,
                           std::span<const float> values);

// what a model has computed, "the losses"; throws Error(kExitDiverged) if any is not finite
void require_finite_results(const char* what, std::span<const float> values);

// What config.json says that training has no use for, but that makes a model what it is: an export keeps it.
struct HfFacts {
    std::vector<int> begins, ends;  // of a text: bos_token_id, eos_token_id, if the vocabulary has them
    std::string kept = "{}";        // these and others, as a JSON object
    double attn_pdrop = 0;          // of the dropout in attention that it was trained with
};

class ModelSource {
public:
    virtual ~ModelSource() = default;
    virtual const GPT2Config& config() const = 0;
    virtual const std::string& path() const = 0;
    // values [first, first + values.size()) of a tensor in file order, as fp32
    virtual void read(int tensor, int64_t first, std::span<float> values) const = 0;
    virtual FloatType type() const = 0;  // of what is stored
    virtual HfFacts facts() const { return {}; }
};

// visit(tensor, first, values) for all tensors in file order, in pieces; values: room for them
template <typename Visit>
void for_each_file_piece(const GPT2Config& config, Visit visit) {
    constexpr int64_t kPiece = 1 << 20;  // elements
    std::vector<float> piece((size_t)std::min(kPiece, file_elements(config)));
    for (int t = 0; t < kNumTensors; t++) {
        const int64_t total = tensor_total(config, t);
        for (int64_t first = 0; first < total; first += kPiece) {
            visit(t, first, std::span(piece).first((size_t)std::min(kPiece, total - first)));
        }
    }
}

// Hands all parameters on in pieces. Throws Error(kExitBadInput) naming the first that is not finite.
using WriteTensor =
    std::function<void(State state, int tensor, int64_t first, std::span<const float> values)>;
void load_model(const ModelSource& source, const WriteTensor& write);
inline WriteTensor writer(Model* model) {
    return [model](State s, int t, int64_t first, std::span<const float> x) { model->load(s, t, first, x); };
}

// A model with the weights of a source, for evaluating. Throws Error(kExitDevice) where there is no room for it.
std::unique_ptr<Model> make_model(const ModelFactory& factory, const ModelSource& source, int B, int T);

}  // namespace llmc

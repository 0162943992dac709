// See model_source.h.
#include "llmc/model/model_source.h"

#include <algorithm>

#include "llmc/model/finite.h"

namespace llmc {

void load_model(const ModelSource& source, const WriteTensor& write) {
    constexpr int64_t kPiece = 1 << 20;
    std::vector<float> piece((size_t)std::min(kPiece, file_elements(source.config())));
    for (int t = 0; t < kNumTensors; t++) {
        const int64_t total = tensor_total(source.config(), t);
        for (int64_t first = 0; first < total; first += kPiece) {
            const std::span<float> values(piece.data(), (size_t)std::min(kPiece, total - first));
            source.read(t, first, values);
            require_finite_input(source.path(), State::kParameter, t, first, values);
            write(State::kParameter, t, first, values);
        }
    }
}

}  // namespace llmc

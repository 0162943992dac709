// A model's numbers on their way: see model_source.h.
#include "llmc/model/model_source.h"

#include <cmath>

#include "llmc/host/base/error.h"

namespace llmc {

namespace {

const char* const kStateNames[] = {"", ", first moment", ", second moment", ", maxima of FP8"};

// "" if all values are numbers that training can go on with, else which is not: "qkvw[17] = nan"
std::string not_finite(State state, int tensor, int64_t first, std::span<const float> values) {
    auto good = [&](float x) { return std::isfinite(x) && (state < State::kSecondMoment || x >= 0); };
    auto bad = std::find_if_not(values.begin(), values.end(), good);
    if (bad == values.end()) { return ""; }
    return fmt::format("{}[{}]{} = {:g}", kTensors[tensor].name, (long long)first + (bad - values.begin()),
                       kStateNames[(int)state], *bad);
}

}  // namespace

void require_finite_input(const std::string& path, State state, int tensor, int64_t first,
                          std::span<const float> values) {
    const std::string bad = not_finite(state, tensor, first, values);
    if (bad.empty()) { return; }
    throw Error(kExitBadInput,
                "{}: found {}, expected {} number. The training that made this file had diverged: use "
                "an earlier one.",
                path, bad, state >= State::kSecondMoment ? "a finite, not negative" : "a finite");
}

void require_finite_output(const std::string& path, State state, int tensor, int64_t first,
                           std::span<const float> values) {
    std::string bad = not_finite(state, tensor, first, values);
    if (bad.empty()) { return; }
    throw Error(kExitDiverged, "{} was not written: {}", path, bad);
}

void require_finite_results(const char* what, std::span<const float> values) {
    if (std::ranges::all_of(values, [](float x) { return std::isfinite(x); })) { return; }
    throw Error(kExitDiverged,
                "{} that the model computes are not finite: it diverged in training, or its file is "
                "damaged. Try an earlier step_ folder of the run.",
                what);
}

void load_model(const ModelSource& source, const WriteTensor& write) {
    for_each_file_piece(source.config(), [&](int tensor, int64_t first, std::span<float> values) {
        source.read(tensor, first, values);
        require_finite_input(source.path(), State::kParameter, tensor, first, values);
        write(State::kParameter, tensor, first, values);
    });
}

std::unique_ptr<Model> make_model(const ModelFactory& factory, const ModelSource& source, int B, int T) {
    require_room(factory.plan(source.config(), B, T, {}), source.path());
    std::unique_ptr<Model> model = factory.make(source.config(), B, T, {});
    model->init(0);
    load_model(source, writer(model.get()));
    return model;
}

}  // namespace llmc

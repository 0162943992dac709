// Compares a model with a debug state: logits, loss, every gradient, and the losses of ten optimizer steps.
// For any model with the interface of model.h that also has logits(), forward_backward() and save_gradient().
#pragma once
#include <cstdio>
#include <fstream>
#include <map>
#include <string_view>

#include "dev/test/support/any_model.h"
#include "dev/test/support/debug_state.h"
#include "llmc/model/run/folder.h"

namespace llmc {

// prints one line, returns 1 if the error is over the bound; NaN is over
inline int judge(const char* name, std::span<const float> ours, std::span<const float> theirs,
                 double tolerance) {
    const double most = largest(theirs);
    double worst = 0;
    size_t at = 0;
    for (size_t i = 0; i < theirs.size(); i++) {
        double error = std::fabs((double)ours[i] - theirs[i]);
        if (!(error <= worst) && std::isfinite(worst)) {
            worst = std::isnan(error) ? INFINITY : error;
            at = i;
        }
    }
    bool ok = worst <= tolerance * most && most > 0;
    std::printf("%-9s %9zu values  error %.2e  bound %.2e  %s", name, theirs.size(), worst, tolerance * most,
                ok ? "ok\n" : "");
    if (!ok) { std::printf("WRONG at %zu: found %.9g, expected %.9g\n", at, ours[at], theirs[at]); }
    return !ok;
}

template <typename Model>
int compare_gradients(const Model& model, const DebugState& state, double tolerance) {
    int failures = 0;
    for (int t = 0; t < kNumTensors; t++) {
        std::span<const float> theirs = state.gradients[t];
        std::vector<float> ours(theirs.size());
        model.save_gradient(t, 0, ours);
        failures += judge(kTensors[t].name, ours, theirs, tolerance);
    }
    return failures;
}

// LOSSES: one number a line, the loss before each of ten AdamW updates (lr 1e-4, betas 0.9 0.999, eps 1e-8,
// no decay, norm clipped at 1). An update amplifies what it is given: Adam divides by the gradient's own
// size, so the parameters drift apart by a little more each time, and the bound grows with the number of
// updates.
template <typename Model>
int compare_losses(Model& model, const Batch& batch, const std::string& path, double tolerance) {
    std::ifstream in(path);
    std::vector<double> theirs;
    for (double loss; in >> loss;) { theirs.push_back(loss); }
    if (theirs.size() != 10) {
        throw Error(kExitBadInput, "{}: found {} losses, expected 10, one a line", path, theirs.size());
    }
    int failures = 0;
    StepParams params{0, 1e-4, 0.9, 0.999, 1e-8, 0.0, 1.0};
    for (; params.step < 10; params.step++) {
        model.enqueue_step(std::span(&batch, 1), params);
        model.finish();
        float ours = model.poll()->loss, expected = (float)theirs[params.step];
        std::string name = fmt::format("loss {}", (int)params.step);
        failures += judge(name.c_str(), {&ours, 1}, {&expected, 1}, tolerance * (double)(1 + params.step));
    }
    return failures;
}

// the number of tensors and losses that are over their bounds
template <typename Model>
int compare_with_state(const std::string& model_path, const std::string& state_path,
                       const std::string& losses_path) {
    std::string notes;
    const NamedModel named = open_model(model_path, &notes);
    const ModelSource& file = *named.source;
    const GPT2Config& c = file.config();
    DebugState state(state_path, c);
    const Batch& batch = state.batch;
    std::printf("%d layers, %d heads, %d channels, vocabulary %d (padded %d), B %d, T %d of %d\n",
                c.num_layers, c.num_heads, c.channels, c.vocab_size, c.padded_vocab_size, batch.B, batch.T,
                c.max_seq_len);
    if constexpr (requires { Model::plan(c, batch.B, batch.T); }) {  // the reference model has no plan
        require_room(Model::plan(c, batch.B, batch.T), model_path);
    }
    Model model(c, batch.B, batch.T);
    model.init(0);
    load_model(file,
               [&](State s, int t, int64_t first, std::span<const float> x) { model.load(s, t, first, x); });
    int64_t rows = (int64_t)batch.B * batch.T;
    double tolerance = reordering(c, rows);
    model.evaluate(batch);
    int failures = judge("logits", unpadded_logits(model), state.logits, tolerance);
    float loss = (float)model.forward_backward(std::span(&batch, 1));
    failures += judge("loss", {&loss, 1}, state.loss, tolerance);
    failures += compare_gradients(model, state, tolerance);
    if (!losses_path.empty()) { failures += compare_losses(model, batch, losses_path, tolerance); }
    return failures;
}

// The options that turn ./test_gpt2 and ./test_gpt2cu from unit tests into a comparison:
//   --model FILE --state FILE [--losses FILE]     files of kinds 20240326 and 20240327; ten losses
using CompareOptions = std::map<std::string_view, std::string>;

// Is a comparison asked for, by any of its options or by a file without one? doctest, which knows no such word, would
// run all tests instead, without a word about the file.
inline bool wants_comparison(int argc, char** argv) {
    const CompareOptions options = {{"--model", ""}, {"--state", ""}, {"--losses", ""}};
    for (int i = 1; i < argc; i++) {
        const bool a_file = argv[i][0] != '-' && std::string_view(argv[i - 1]) != "--part";  // test_gpt2cu's
        if (a_file || options.contains(argv[i])) { return true; }
    }
    return false;
}

inline CompareOptions parse_compare_options(int argc, char** argv) {
    CompareOptions options = {{"--model", ""}, {"--state", ""}, {"--losses", ""}};
    for (int i = 1; i < argc; i += 2) {
        if (!options.contains(argv[i]) || i + 1 == argc) {
            throw Error(kExitUsage, "{}: expected --model FILE --state FILE [--losses FILE]", argv[i]);
        }
        options[argv[i]] = argv[i + 1];
    }
    if (options["--model"].empty() || options["--state"].empty()) {
        throw Error(kExitUsage, "--model and --state go together");
    }
    return options;
}

// the program's exit code: 0 if everything is within its bounds
template <typename Model>
int run_comparison(int argc, char** argv) {
    CompareOptions options = parse_compare_options(argc, argv);
    int failures = compare_with_state<Model>(options["--model"], options["--state"], options["--losses"]);
    std::printf(failures > 0 ? "%d over their bounds\n" : "all within their bounds\n", failures);
    return failures > 0;
}

}  // namespace llmc

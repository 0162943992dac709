// What the user leaves open: see auto_plan.h.
#include "llmc/model/auto_plan.h"

#include <algorithm>
#include <cmath>

#include "llmc/host/error.h"
#include "llmc/ops/muon_rule.h"

namespace llmc {

namespace {

// tokens for each parameter: Hoffmann et al. 2022, arXiv:2203.15556
constexpr double kTokensPerParameter = 20;
// beyond, a repeated text teaches little: Muennighoff et al. 2023, arXiv:2305.16264 (half-life of 16 epochs)
constexpr double kMostEpochs = 10;
// On the CPU a first try should end while its user waits. Share of the peak that a step of 3.3 M parameters and 2,048
// tokens reached on two idle cores of an AMD EPYC (Zen 4).
constexpr double kCpuSeconds = 600, kCpuShareOfPeak = 0.56;
// Muon's best learning rate over what AdamW is given here, at 64 and 96 channels, is 5 to 10: doc/step.md
constexpr double kMuonOverAdamW = 5;
constexpr int64_t kMostWarmup = 1000, kSmallText = 10'000'000, kFewEpochs = 5;

int64_t choose_steps(const Options& o, const RunFacts& f, std::string* why) {
    const auto steps_of = [&](double epochs) {
        return std::max<int64_t>(
            1, std::llround(epochs * (double)f.tokens_per_epoch / (double)f.tokens_per_step));
    };
    if (o.steps > 0) { return o.steps; }
    if (o.epochs > 0) { return steps_of(o.epochs); }
    // as in llm.c, whose scripts wait for the checkpoint of this step
    if (o.steps == kOneEpoch || o.llmc_letters) { return f.tokens / f.tokens_per_step; }
    const double epoch = (double)f.tokens_per_epoch;
    const double useful = kTokensPerParameter * (double)f.parameters / epoch;
    double epochs = std::clamp(useful, 1.0, kMostEpochs);
    std::string reason = epochs == kMostEpochs ? "a text read more often teaches little"
                         : useful < 1          ? "each token once"
                                               : "about 20 tokens for each parameter";
    if (o.program == Program::kCpu && f.peak_flops > 0) {
        const double affordable = kCpuSeconds * kCpuShareOfPeak * f.peak_flops / f.flops_per_token / epoch;
        if (affordable < epochs) {
            epochs = affordable;
            reason = "what this CPU does in about ten minutes";
        }
    }
    if (epochs > 1) { epochs = std::round(epochs); }
    const int64_t steps = steps_of(epochs);
    const double read = (double)(steps * f.tokens_per_step) / epoch;
    if (read > 1.5 * epochs) {  // there is no smaller number of steps
        epochs = read;
        reason = "a step has more tokens; a smaller --batch or --total-batch has fewer";
    }
    *why += strf("steps: %.3g epoch%s: %s (--steps or --epochs to choose)\n", epochs, epochs == 1 ? "" : "s",
                 reason.c_str());
    return steps;
}

// Kaplan et al. 2020, arXiv:2001.08361, equation D.1, within what it was measured on; GPT-2 124M gets 7e-4
double choose_lr(const RunFacts& f, bool muon, std::string* why) {
    double lr =
        std::clamp(0.003239 - 0.0001395 * std::log((double)std::max<int64_t>(1, f.parameters)), 2e-4, 2e-3);
    std::string reason = "for a model of this size";
    if (muon) {
        lr *= kMuonOverAdamW;
        reason = "for a model of this size by Muon";
    }
    if (f.pretrained) {
        lr /= 10;
        reason = "a tenth of what a new model of this size gets, so as not to forget what it knows";
    }
    const double unit = std::pow(10.0, std::floor(std::log10(lr)) - 1);
    lr = std::round(lr / unit) * unit;  // two digits
    *why += strf("lr: %.1e: %s\n", lr, reason.c_str());
    return lr;
}

// ten times, or as often as it takes a seventh of the time; a validation is a third of a step's work a token
int64_t choose_val_every(const RunFacts& f, int64_t steps) {
    const double affordable =
        3.0 / 7 * (double)steps * (double)f.tokens_per_step / (double)std::max<int64_t>(1, f.val_tokens);
    const auto times = (int64_t)std::min(10.0, affordable);
    return times == 0 ? 0 : (steps + times - 1) / times;
}

}  // namespace

double muon_flops(const GPT2Config& c) {
    double flops = 0;
    for (int t = 0; t < kNumTensors; t++) {
        if (!is_block_matrix(t)) { continue; }
        const BlockMatrices m = block_matrices(c, t);
        flops +=
            (double)c.num_layers * m.count * m.shorter() * m.shorter() * (3.0 * m.longer() + m.shorter());
    }
    return kNewtonSchulzSteps * flops;
}

Chosen choose(const Options& o, const RunFacts& f) {
    Chosen c;
    c.steps = choose_steps(o, f, &c.why);
    const bool letters = o.llmc_letters;
    c.lr = o.lr >= 0 ? o.lr : letters ? 3e-4 : choose_lr(f, o.optimizer == "muon", &c.why);
    c.warmup = o.warmup >= 0 ? o.warmup : 0;
    c.final_lr_fraction = o.final_lr_fraction >= 0 ? o.final_lr_fraction : 1;
    if (o.warmup < 0 && !letters) {
        c.warmup = std::min(kMostWarmup, c.steps / 20);
        c.why += strf("warm-up: a twentieth of the steps, at most %lld\n", (long long)kMostWarmup);
    }
    if (o.final_lr_fraction < 0 && !letters) {
        c.final_lr_fraction = 0.1;
        c.why += "decay: to a tenth, as GPT-3's\n";
    }
    if (c.warmup >= c.steps && c.warmup > 0 && c.lr > 0) {
        c.why += strf(
            "note: a warm-up of %lld steps in a run of %lld: the learning rate does not get further "
            "than %.2g\n",
            (long long)c.warmup, (long long)c.steps, c.lr * (double)c.steps / (double)c.warmup);
    }
    const int64_t every = letters ? 20 : (c.steps + 9) / 10;
    c.val_every = o.val_every >= 0 ? o.val_every : letters ? every : choose_val_every(f, c.steps);
    c.sample_every = o.sample_every >= 0 ? o.sample_every : every;
    return c;
}

std::string few_epochs_note(const RunFacts& f, int64_t steps) {
    const double epochs =
        (double)steps * (double)f.tokens_per_step / (double)std::max<int64_t>(1, f.tokens_per_epoch);
    if (f.tokens_per_epoch >= kSmallText || epochs >= (double)kFewEpochs || f.pretrained) { return ""; }
    return strf(
        "a text of %.2g M tokens, gone through %.2g times: more epochs make a better model, as long as "
        "validation gets better (--epochs 10)",
        (double)f.tokens_per_epoch / 1e6, epochs);
}

}  // namespace llmc

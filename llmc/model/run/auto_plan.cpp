// What the user leaves open: see auto_plan.h.
#include "llmc/model/run/auto_plan.h"

#include <algorithm>
#include <cmath>

#include "llmc/host/base/error.h"
#include "llmc/host/log/run_log.h"
#include "llmc/ops/muon/muon.h"

namespace llmc {

namespace {

// The measurements behind these numbers: doc/step.md. Tokens for each parameter: Hoffmann et al. 2022, arXiv:2203.15556. On the
// CPU, where a first try should end while its user waits, fewer, as more than twice as many take little off.
constexpr double kTokensPerParameter = 20, kCpuTokensPerParameter = 8;
// Beyond, a repeated text teaches little: Muennighoff et al. 2023, arXiv:2305.16264 (half-life of 16 epochs). Muon learns
// it sooner.
constexpr double kMostEpochs = 10, kMostMuonEpochs = 4;
// AdamW needs about three times Muon's steps to the same loss: so much longer a step of Muon may take. Models of more than
// 384 channels were not tried.
constexpr double kMuonWorth = 3;
constexpr int kWidestMuon = 384;
// Share of the speed of one large product that a step of 1.4 M parameters and 1,024 tokens reached on two idle cores
constexpr double kShareOfSpeed = 0.56;
// Muon's best learning rate over what AdamW is given here: 5 to 10 at 64 and 96 channels; at 192 half of it is a little better
// after thousands of steps, and much worse after hundreds; at 384 it is better.
double muon_over_adamw(int channels) { return channels > 192 ? 2.5 : 5; }
constexpr int64_t kMostWarmup = 1000;

// Muon where a new model is trained and its iterations cost less than the steps that they save
bool choose_muon(const Options& o, const RunFacts& f) {
    if (o.optimizer != Optimizer::kAuto) { return o.optimizer == Optimizer::kMuon; }
    return !f.pretrained && !o.llmc_letters && o.lr < 0 && f.channels <= kWidestMuon &&
           f.muon_flops <= (kMuonWorth - 1) * f.flops_per_token * (double)f.tokens_per_step;
}

// of this run, at the speed that the device has now
double seconds_of_step(const RunFacts& f, bool muon) {
    return (f.flops_per_token * (double)f.tokens_per_step + (muon ? f.muon_flops : 0)) /
           (kShareOfSpeed * f.flops_per_s);
}

int64_t choose_steps(const Options& o, const RunFacts& f, bool muon, std::string* why) {
    const double epoch = (double)f.tokens_per_epoch;
    const auto steps_of = [&](double epochs) {
        return std::max<int64_t>(1, std::llround(epochs * epoch / (double)f.tokens_per_step));
    };
    if (o.steps > 0) { return o.steps; }
    if (o.epochs > 0) { return steps_of(o.epochs); }
    if (o.minutes > 0) {
        if (f.flops_per_s == 0) {
            throw Error(kExitUsage,
                        "--minutes plans by the speed of a CPU; on a GPU give --steps or --epochs.");
        }
        *why += fmt::format("steps: what this machine does in about {:g} minutes at its present speed\n",
                            o.minutes);
        return std::max<int64_t>(1, std::llround(60 * o.minutes / seconds_of_step(f, muon)));
    }
    // as in llm.c, whose scripts wait for the checkpoint of this step
    if (o.steps == kOneEpoch || o.llmc_letters) { return f.tokens / f.tokens_per_step; }
    const bool gpu = o.program == Program::kGpu;
    const double each = gpu ? kTokensPerParameter : kCpuTokensPerParameter;
    const double useful = each * (double)f.parameters / epoch;
    const double least = gpu ? 1 : 0, most = muon ? kMostMuonEpochs : kMostEpochs;
    double epochs = std::clamp(useful, least, most);
    std::string reason = epochs == most   ? "a text read more often teaches little"
                         : useful < least ? "each token once"
                                          : fmt::format("about {:g} tokens for each parameter", each);
    if (epochs > 1) { epochs = std::round(epochs); }
    const int64_t steps = steps_of(epochs);
    const double read = (double)(steps * f.tokens_per_step) / epoch;
    if (read > 1.5 * epochs) {  // there is no smaller number of steps
        epochs = read;
        reason = "a step has more tokens; a smaller --batch or --total-batch has fewer";
    }
    *why += fmt::format("steps: {:.3g} epoch{}: {} (--steps or --epochs to choose)\n", epochs,
                        epochs == 1 ? "" : "s", reason);
    if (f.flops_per_s > 0) {
        *why += fmt::format(
            "time: about {} at the present speed of this machine; --minutes N plans for another\n",
            duration_text((double)steps * seconds_of_step(f, muon)));
    }
    return steps;
}

// Kaplan et al. 2020, arXiv:2001.08361, equation D.1, within what it was measured on; GPT-2 124M gets 7e-4
double choose_lr(const RunFacts& f, bool muon, std::string* why) {
    double lr =
        std::clamp(0.003239 - 0.0001395 * std::log((double)std::max<int64_t>(1, f.parameters)), 2e-4, 2e-3);
    std::string reason = "for a model of this size";
    if (muon) {
        lr *= muon_over_adamw(f.channels);
        reason = "for a model of this size by Muon";
    }
    if (f.pretrained) {
        lr /= 10;
        reason = "a tenth of what a new model of this size gets, so as not to forget what it knows";
    }
    const double unit = std::pow(10.0, std::floor(std::log10(lr)) - 1);
    lr = std::round(lr / unit) * unit;  // two digits
    *why += fmt::format("lr: {:.1e}: {}\n", lr, reason);
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
    const bool letters = o.llmc_letters;
    c.muon = choose_muon(o, f);
    if (o.optimizer == Optimizer::kAuto && c.muon) {
        c.why += "optimizer: Muon, by which a small new model learns in fewer steps\n";
    }
    c.steps = choose_steps(o, f, c.muon, &c.why);
    c.lr = o.lr >= 0 ? o.lr : letters ? 3e-4 : choose_lr(f, c.muon, &c.why);
    c.warmup = o.warmup >= 0 ? o.warmup : 0;
    c.final_lr_fraction = o.final_lr_fraction >= 0 ? o.final_lr_fraction : 1;
    if (o.warmup < 0 && !letters) {
        c.warmup = std::min(kMostWarmup, c.steps / 20);
        c.why += fmt::format("warm-up: a twentieth of the steps, at most {}\n", kMostWarmup);
    }
    if (o.final_lr_fraction < 0 && !letters) {
        c.final_lr_fraction = 0.1;
        c.why += "decay: to a tenth, as GPT-3's\n";
    }
    if (c.warmup >= c.steps && c.warmup > 0 && c.lr > 0) {
        c.why += fmt::format(
            "note: a warm-up of {} steps in a run of {}: the learning rate does not get further "
            "than {:.2g}\n",
            c.warmup, c.steps, c.lr * (double)c.steps / (double)c.warmup);
    }
    const int64_t every = letters ? 20 : (c.steps + 9) / 10;
    c.val_every = o.val_every >= 0 ? o.val_every : letters ? every : choose_val_every(f, c.steps);
    c.sample_every = o.sample_every >= 0 ? o.sample_every : every;
    return c;
}

}  // namespace llmc

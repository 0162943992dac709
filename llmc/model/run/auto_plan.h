// What the user leaves open about the length of a run and its learning rate, worked out from the size of
// the model and the tokens there are: the same on any machine, however busy it is. Only --minutes asks for the
// device's speed.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "llmc/host/options/options.h"
#include "llmc/model/gpt2_config.h"

namespace llmc {

// Learning rates: a linear warm-up, then constant, cosine, linear or wsd (warm-up, stable, decay).
struct Schedule {
    Decay kind = Decay::kCosine;
    double peak = 3e-4;
    double final_fraction = 0;  // of the peak, where the schedule would be one step after the last
    int64_t warmup = 0;         // steps
    int64_t steps = 1;          // of the whole run

    // the learning rate of a step, 0-based
    double operator()(int64_t step) const {
        if (step < warmup) { return peak * (double)(step + 1) / (double)warmup; }
        double lowest = peak * final_fraction;
        double done = std::min(1.0, (double)(step - warmup) / (double)std::max<int64_t>(1, steps - warmup));
        if (kind == Decay::kCosine) {
            return lowest + (peak - lowest) * 0.5 * (1 + std::cos(3.141592653589793 * done));
        }
        if (kind == Decay::kLinear) { return peak + (lowest - peak) * done; }
        if (kind == Decay::kWsd) {  // stable for 80 % of all steps, then down by 1 - sqrt, arXiv:2405.18392
            // in a run of few steps its last one falls, too
            double begin = std::max(std::min(0.8 * (double)steps, (double)steps - 1.5), (double)warmup);
            double decayed = ((double)step - begin) / std::max(1.0, (double)steps - begin);
            return decayed <= 0 ? peak : lowest + (peak - lowest) * (1 - std::sqrt(std::min(1.0, decayed)));
        }
        return peak;  // constant
    }
};

// what the choice depends on
struct RunFacts {
    int64_t parameters = 0;  // those of the embeddings left out
    int channels = 0;
    double flops_per_token = 0;    // forward and backward
    double muon_flops = 0;         // of Muon's iterations in a step
    double flops_per_s = 0;        // of one large product on this device, now; 0 = unknown
    bool pretrained = false;       // the weights come from a model, not from random numbers
    int64_t tokens_per_epoch = 0;  // whole windows
    int64_t tokens_per_step = 0;
    int64_t val_tokens = 0;  // that one validation predicts
    int64_t tokens = 0;      // of the training data: what llm.c calls an epoch
};

// of Muon's iterations in a step, as the CPU computes them: symmetric products by half
double muon_flops(const GPT2Config& c);

struct Chosen {
    bool muon = false;
    int64_t steps = 0;
    double lr = 0;
    int64_t warmup = 0;
    double final_lr_fraction = 1;
    int64_t val_every = 0, sample_every = 0;
    std::string why;  // a line for each that was worked out; "" = all were given
};

// What the options give stands; the rest is worked out, or taken from llm.c where its letters were used:
// one epoch, a learning rate of 3e-4, no warm-up, no decay, validation and a sample every 20 steps.
Chosen choose(const Options& options, const RunFacts& facts);

}  // namespace llmc

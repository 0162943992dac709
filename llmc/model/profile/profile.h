// What train_gpt2cu measures instead of training a run: --profile FILE, and --tune-gemm FILE where FILE is not there.
#pragma once
#include "llmc/host/options/options.h"
#include "llmc/model/gpu/gpt2.h"

namespace llmc {

// ./train_gpt2cu --profile FILE: what a step of training takes, part by part, and what it could take; see step_profile.h.

// Trains a model of these options on their data for a few seconds, records some steps, measures the roofs, prints the table
// and writes it as JSON to options.profile. Makes no run folder. Returns the program's exit code.
template <typename T, typename Grad>
int profile_training(const Options& options);

// ./train_gpt2cu --tune-gemm FILE, where FILE is not there: the search for the fastest algorithms.

// Runs forward and backward passes of a new model of these options on their data, in which cuBLASLt's proposals for each
// product, and variants of the first one, are timed; prints what was found and writes it to options.tune_gemm.
template <typename T, typename Grad>
void tune_products(const Options& options);

}  // namespace llmc

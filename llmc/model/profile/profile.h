// ./train_gpt2cu --profile FILE: what a step of training takes, part by part, and what it could take; see step_profile.h.
#pragma once
#include "llmc/host/options/options.h"
#include "llmc/model/gpu/gpt2.h"

namespace llmc {

// Trains a model of these options on their data for a few seconds, records some steps, measures the roofs, prints the table
// and writes it as JSON to options.profile. Makes no run folder. Returns the program's exit code.
template <typename T, typename Grad>
int profile_training(const Options& options);

}  // namespace llmc

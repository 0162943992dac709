// ./train_gpt2cu --tune-gemm FILE, where FILE is not there: the search for the fastest algorithms.
#pragma once
#include "llmc/host/options/options.h"
#include "llmc/model/gpu/gpt2.h"

namespace llmc {

// Runs forward and backward passes of a new model of these options on their data, in which cuBLASLt's proposals for each
// product, and variants of the first one, are timed; prints what was found and writes it to options.tune_gemm.
template <typename T, typename Grad>
void tune_products(const Options& options);

}  // namespace llmc

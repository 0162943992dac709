// Numbers that are not finite neither come in from files nor go out to them, as a training that goes on with them is
// lost, nor are they shown as a model's results.
#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "llmc/model/model.h"

namespace llmc {

// values [first, first + values.size()) of a tensor that was read from path; throws Error(kExitBadInput) naming the
// first that is not finite, or of the second moment negative
void require_finite_input(const std::string& path, State state, int tensor, int64_t first,
                          std::span<const float> values);

// the same of what would be written to path; throws Error(kExitDiverged)
void require_finite_output(const std::string& path, State state, int tensor, int64_t first,
                           std::span<const float> values);

// what a model has computed, "the losses"; throws Error(kExitDiverged) if any is not finite
void require_finite_results(const char* what, std::span<const float> values);

}  // namespace llmc

// What the first line of a log, and that of each resume, says about the run: version, program, device,
// memory, parameters, steps, tokens of a step, the source's entropy where it is known, the plan as it was
// printed, and every option.
#pragma once
#include <string>

#include "llmc/model/run/plan.h"

namespace llmc {

// a JSON object. plan_text: describe_run()'s; entropy: nats a token, 0 = unknown
std::string run_header(const Options& options, const RunPlan& plan, const MemoryPlan& memory,
                       const Device& device, double entropy, const std::string& plan_text);

}  // namespace llmc

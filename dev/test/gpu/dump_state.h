// Writes what the bf16 GPU model makes of one batch as a debug state (20240327 v2), for
// dev/bench/compare_pytorch.py errors.
#pragma once

namespace llmc {

// ./test_gpt2cu --dump-bf16 FILE --model FILE --state FILE: weights from the model file, the batch from the
// state; logits, loss and gradients to FILE, as fp32. Returns the program's exit code; throws Error.
int dump_state_main(int argc, char** argv);

}  // namespace llmc

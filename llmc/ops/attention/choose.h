// Which kernels take a call of attention, as a function of the call alone. In bf16 there are two sets, forward and
// backward:
//   kWgmma    Hopper's: wgmma, TMA, tiles of 64 rows of 64 elements
//   kMmaSync  any GPU's since Ampere, head sizes 1 to 128
// A sequence's bits must not depend on the batch that it is in: B and NH have no say.
#pragma once
#include <cstdint>

namespace llmc {

enum class AttentionKernels { kMmaSync, kWgmma };

// of the kernels for Hopper
constexpr int kWgmmaHeadSize = 64, kWgmmaLeastT = 64;

struct AttentionCall {
    int T, HS;
    bool wgmma;    // the device has the instructions, and this program code for them
    bool aligned;  // every tensor begins at a multiple of 16 bytes, as tensor maps demand
};

// Below 64 tokens the kernels for Hopper would compute more padding than scores.
constexpr AttentionKernels choose_attention(const AttentionCall& call) {
    bool fits = call.HS == kWgmmaHeadSize && call.T >= kWgmmaLeastT && call.aligned;
    return call.wgmma && fits ? AttentionKernels::kWgmma : AttentionKernels::kMmaSync;
}

}  // namespace llmc

// The C interface of attention: checks the arguments, turns exceptions into codes. No state but the message of a thread's
// last failure.
#include "llmc/ops/attention/c_abi.h"

#include "llmc/cuda/c_abi.cuh"
#include "llmc/host/base/error.h"
#include "llmc/ops/attention/attention.h"

namespace {

using bf16 = __nv_bfloat16;
using namespace llmc::c_abi;

constexpr size_t kCounterBytes = 256;  // the workspace begins with the counters
static_assert(llmc::kAttentionCounters * sizeof(unsigned) <= kCounterBytes);

static_assert((int)LLMC_ATTENTION_OK == kOk && (int)LLMC_ATTENTION_INVALID == kInvalid &&
              (int)LLMC_ATTENTION_UNSUPPORTED == kUnsupported && (int)LLMC_ATTENTION_DEVICE == kDevice &&
              (int)LLMC_ATTENTION_INTERNAL == kInternal);

struct Pointer {
    const char* name;
    const void* at;
    int alignment;
};

// sizes, kernels and pointers; false where there is nothing to do
template <typename Call>
bool check_call(const Call& s, int kernels, std::initializer_list<Pointer> pointers) {
    if (s.B < 0 || s.T < 0 || s.NH < 1) {
        refuse(fmt::format("B is {}, T {}, NH {}, expected 0 or more, 0 or more, 1 or more", s.B, s.T, s.NH));
    }
    if (s.HS < 1 || s.HS > llmc::kMaxHeadSize) {
        refuse(fmt::format("HS is {}, expected 1 to {}", s.HS, llmc::kMaxHeadSize));
    }
    if (kernels < LLMC_ATTENTION_BEST || kernels > LLMC_ATTENTION_WGMMA) {
        refuse(fmt::format("kernels is {}, expected one of the kernels' enum", kernels));
    }
    if (s.B == 0 || s.T == 0) { return false; }
    for (const Pointer& p : pointers) {
        if (p.at == nullptr) { refuse(fmt::format("{} is null, expected device memory", p.name)); }
        if ((uintptr_t)p.at % p.alignment != 0) {
            refuse(fmt::format("{} is {}, expected a multiple of {}", p.name, p.at, p.alignment));
        }
    }
    if (kernels == LLMC_ATTENTION_WGMMA && (s.HS != llmc::kWgmmaHeadSize || !llmc::has_attention_wgmma())) {
        throw Unsupported(fmt::format("HS is {}, expected {} on a Hopper GPU for these kernels", s.HS,
                                      llmc::kWgmmaHeadSize));
    }
    return true;
}

}  // namespace

int llmc_attention_abi_version(void) { return LLMC_ATTENTION_ABI_VERSION; }

const char* llmc_attention_last_error(void) { return llmc::c_abi::last_error; }

size_t llmc_attention_workspace(int32_t B, int32_t T, int32_t NH) {
    if (B < 0 || T < 0 || NH < 0) { return 0; }
    return kCounterBytes + (llmc::attention_backward_scratch(B, T, NH) + 255) / 256 * 256;
}

int llmc_attention_forward(void* out, float* lse, const void* qkv, void* workspace, int32_t B, int32_t T,
                           int32_t NH, int32_t HS, int kernels, void* stream) {
    return guarded("llmc_attention_forward", [&] {
        llmc::AttentionForward<bf16> call{(bf16*)out, lse, (unsigned*)workspace, (const bf16*)qkv, B, T,
                                          NH,         HS};
        if (!check_call(
                call, kernels,
                {{"out", out, 16}, {"lse", lse, 4}, {"qkv", qkv, 16}, {"workspace", workspace, 16}})) {
            return;
        }
        auto* run = kernels == LLMC_ATTENTION_MMA_SYNC ? llmc::attention_forward_mma_sync
                    : kernels == LLMC_ATTENTION_WGMMA  ? llmc::attention_forward_wgmma
                                                       : llmc::attention_forward<bf16>;
        run(call, (cudaStream_t)stream);
    });
}

int llmc_attention_backward(void* dqkv, const void* dout, const void* qkv, const void* out, const float* lse,
                            void* workspace, int32_t B, int32_t T, int32_t NH, int32_t HS, int kernels,
                            void* stream) {
    return guarded("llmc_attention_backward", [&] {
        auto* to = (bf16*)dqkv;
        auto *gradient = (const bf16*)dout, *from = (const bf16*)qkv, *result = (const bf16*)out;
        void* scratch = (char*)workspace + kCounterBytes;
        llmc::AttentionBackward<bf16> call{
            to, scratch, (unsigned*)workspace, gradient, from, result, lse, B, T, NH, HS};
        if (!check_call(call, kernels,
                        {{"dqkv", dqkv, 16},
                         {"dout", dout, 16},
                         {"qkv", qkv, 16},
                         {"out", out, 16},
                         {"lse", lse, 4},
                         {"workspace", workspace, 16}})) {
            return;
        }
        auto* on = (cudaStream_t)stream;
        if (kernels == LLMC_ATTENTION_WGMMA) { return llmc::attention_backward_wgmma(call, on); }
        auto* run = kernels == LLMC_ATTENTION_MMA_SYNC ? llmc::attention_backward_mma_sync
                                                       : llmc::attention_backward<bf16>;
        run(call, on);
    });
}

// Attention for any language: the C99 interface of libllmc_attention.so (make build/libllmc_attention.so). It needs CUDA's
// driver at run time and nothing else; to link: cc -I. x.c build/libllmc_attention.so -Wl,-rpath,$PWD/build
//
//   size_t size = llmc_attention_workspace(B, T, NH);  // bytes of device memory
//   cudaMalloc(&work, size), cudaMemset(work, 0, size);
//   if (llmc_attention_forward(out, lse, qkv, work, B, T, NH, HS, LLMC_ATTENTION_BEST, stream) ||
//       llmc_attention_backward(dqkv, dout, qkv, out, lse, work, B, T, NH, HS, LLMC_ATTENTION_BEST, stream)) {
//       puts(llmc_attention_last_error());
//   }
//
// - Causal self-attention in bfloat16, scores scaled by 1 / sqrt(HS). qkv and dqkv are (B,T,3,NH,HS), packed as the linear
//   layer before leaves them; out and dout (B,T,NH,HS), lse (B,NH,T) float32: the logarithm of each row's sum of
//   exponentials. Any B, T, NH; HS 1 to 128. Results are overwritten; nothing may alias.
// - Pointers are to device memory, bfloat16 tensors at multiples of 16 bytes, as cudaMalloc gives them.
// - workspace is 0 before its first use; each call leaves what must be 0 at 0. Calls that may run at once, on two streams
//   or in two graphs, need a workspace each. It serves any call whose B, T and NH are each no larger.
// - Everything is queued on the stream, whose device must be the calling thread's current one. Nothing waits, nothing is
//   allocated: calls may be captured into a CUDA graph. Any thread may call at any time.
// - The same call gives the same bits, and a sequence's results do not depend on the batch that it is in.
// - A call returns a code; unless it is OK, llmc_attention_last_error() has the message.
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// raised when a function is added; older callers keep working
enum { LLMC_ATTENTION_ABI_VERSION = 1 };
int llmc_attention_abi_version(void);  // of the library which answers

// what the functions return
enum {
    LLMC_ATTENTION_OK = 0,
    LLMC_ATTENTION_INVALID = 1,      // a wrong argument: null, negative, misaligned ...
    LLMC_ATTENTION_UNSUPPORTED = 2,  // kernels that this device or head size does not have
    LLMC_ATTENTION_DEVICE = 3,       // from CUDA: no device, no code for this device, a launch that failed
    LLMC_ATTENTION_INTERNAL = 4      // anything else
};

// Which kernels: the best for the call, or one set by force, to compare them.
enum {
    LLMC_ATTENTION_BEST = 0,
    LLMC_ATTENTION_MMA_SYNC = 1,  // for any GPU since Ampere
    LLMC_ATTENTION_WGMMA = 2      // for Hopper, HS 64
};

// why this thread's last call failed (what, expected, found), "" if it did not; overwritten by the next call
const char* llmc_attention_last_error(void);

// bytes, a multiple of 256; 0 if a size is negative
size_t llmc_attention_workspace(int32_t B, int32_t T, int32_t NH);

int llmc_attention_forward(void* out, float* lse, const void* qkv, void* workspace, int32_t B, int32_t T,
                           int32_t NH, int32_t HS, int kernels, void* stream);

// from out and lse as forward left them
int llmc_attention_backward(void* dqkv, const void* dout, const void* qkv, const void* out, const float* lse,
                            void* workspace, int32_t B, int32_t T, int32_t NH, int32_t HS, int kernels,
                            void* stream);

#ifdef __cplusplus
}
#endif

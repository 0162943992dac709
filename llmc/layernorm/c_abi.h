// LayerNorm for any language: the C99 interface of libllmc_layernorm.so (make build/libllmc_layernorm.so). It needs
// CUDA's driver at run time and nothing else; to link: cc -I. x.c build/libllmc_layernorm.so -Wl,-rpath,$PWD/build
//
//   llmc_layernorm_forward_args a = {.struct_size = sizeof a, .dtype = LLMC_LAYERNORM_FLOAT16,
//                                    .out = y, .inp = x, .weight = w, .bias = b,
//                                    .N = 4096, .C = 1024, .eps = 1e-5, .stream = stream};
//   if (llmc_layernorm_forward(&a) != LLMC_LAYERNORM_OK) { puts(llmc_layernorm_last_error()); }
//
//   size_t size;  // bytes of device memory for its workspace
//   llmc_layernorm_backward_workspace(1024, &size), cudaMalloc(&work, size);
//   llmc_layernorm_backward_args b = {.struct_size = sizeof b, .dtype = LLMC_LAYERNORM_FLOAT16,
//                                     .dinp = dx, .dweight = dw, .dbias = db, .dout = dy, .inp = x, .weight = w,
//                                     .mean = mean, .rstd = rstd,  // which forward wrote
//                                     .N = 4096, .C = 1024, .workspace = work, .workspace_size = size,
//                                     .stream = stream};
//   if (llmc_layernorm_backward(&b) != LLMC_LAYERNORM_OK) { puts(llmc_layernorm_last_error()); }
//
// - Set a struct to 0 first: what is left out is 0. struct_size says which version of the struct it is:
//   fields are only ever added, at the end; those that a library does not know must be 0.
// - Pointers are to device memory, aligned to their element type; 16 bytes is faster. (N,C) is N rows of C
//   elements side by side, a row *_stride elements after the one before.
// - Everything is queued on the stream, whose device must be the calling thread's current one. Nothing waits,
//   nothing is allocated: calls may be captured into a CUDA graph.
// - Any thread may call at any time. What a device can do is asked once for each device, and kept.
// - A call returns a code; unless it is OK, llmc_layernorm_last_error() has the message. Arguments are
//   checked before anything is queued.
// - The same call gives the same bits. A row of out, mean, rstd, residual and dinp has the same bits in any batch: whatever N,
//   whatever place the row has in it and whatever the rows beside it, if C, the types, rms, eps, which pointers are null and
//   accumulate_dinp are the same, and all pointers and strides are aligned alike (each as far past a multiple of 16 bytes;
//   N = 1 has strides, too), on GPUs of one model with one version of the library. Elsewhere another kernel may be chosen,
//   whose last bits may differ. dweight and dbias are sums over the batch.
// - float32 and 16 bits are computed in float32. A row whose squares of x - mean(x) have no sum there (3.4e38: a standard
//   deviation from 1.8e19 / sqrt(C) on) gets rstd 0 and out = bias, one whose elements have none may get NaN. A row of
//   equal elements gives bias, but NaN with eps = 0.
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// raised when a struct grows or a function is added; older callers keep working
enum { LLMC_LAYERNORM_ABI_VERSION = 4 };

// that of the library which answers: it may be newer than this header
int llmc_layernorm_abi_version(void);

// what the functions return
enum {
    LLMC_LAYERNORM_OK = 0,
    LLMC_LAYERNORM_INVALID = 1,      // a wrong argument: null, negative, misaligned ...
    LLMC_LAYERNORM_UNSUPPORTED = 2,  // types that do not go together, or a field unknown to this library
    LLMC_LAYERNORM_DEVICE = 3,       // from CUDA: no device, no code for this device, a launch that failed
    LLMC_LAYERNORM_INTERNAL = 4      // anything else
};

// element types
enum {
    LLMC_LAYERNORM_FLOAT32 = 1,
    LLMC_LAYERNORM_BFLOAT16 = 2,
    LLMC_LAYERNORM_FLOAT16 = 3,
    LLMC_LAYERNORM_FLOAT64 = 4
};

// why this thread's last call failed (what, expected, found), "" if it did not; overwritten by the next call
const char* llmc_layernorm_last_error(void);

// out = (x - mean) * rstd * weight + bias for each row x of inp, or, with a residual, of inp + inp2 rounded
// to dtype; rstd = 1 / sqrt(variance + eps), the variance biased. out may be inp, and residual inp or inp2,
// if their strides are equal too. Nothing else may overlap.
typedef struct llmc_layernorm_forward_args {
    size_t struct_size;    // sizeof(llmc_layernorm_forward_args)
    int32_t dtype;         // of out, inp, residual and inp2, but see out_dtype
    int32_t weight_dtype;  // of weight and bias: dtype, or float32 beside a 16-bit dtype; 0 = dtype
    void* out;             // (N,C) written (=)
    void* mean;            // (N) written (=): float32, or float64 beside float64; null if not wanted
    void* rstd;            // (N) likewise
    const void* inp;       // (N,C)
    const void* weight;    // (C), null = 1
    const void* bias;      // (C), null = 0
    int64_t N;             // from 0
    int64_t C;             // from 1 to 2^31 - 1
    double eps;            // taken as it is: 0 is 0
    void* residual;        // (N,C) written (=): inp + inp2; both null if not wanted
    const void* inp2;      // (N,C)
    int64_t out_stride;    // elements from one row to the next, 0 = C
    int64_t inp_stride;
    int64_t residual_stride;
    int64_t inp2_stride;
    void* stream;  // a cudaStream_t; null is the default stream
    int32_t rms;   // since version 3: 0 or 1, RMSNorm: the mean is taken for 0, and mean gets 0
    int32_t
        out_dtype;  // since version 4: of out, bfloat16 or float16 beside float32; 0 = dtype; out is not inp then
} llmc_layernorm_forward_args;

int llmc_layernorm_forward(const llmc_layernorm_forward_args* args);

// dinp = the gradient for what was normalised (+= with accumulate_dinp); dweight and dbias = sums over the
// rows (+= with accumulate). Each is null if not wanted. dinp may be dout if their strides are equal too.
// Nothing else may overlap.
typedef struct llmc_layernorm_backward_args {
    size_t struct_size;       // sizeof(llmc_layernorm_backward_args)
    int32_t dtype;            // of dinp, dout and inp, but see dout_dtype
    int32_t weight_dtype;     // of weight: dtype, or float32 beside a 16-bit dtype; 0 = dtype
    int32_t grad_dtype;       // of dweight and dbias: likewise, but float32 if weight is; 0 = weight_dtype
    int32_t accumulate_dinp;  // 0 or 1
    int32_t accumulate;       // 0 or 1
    int32_t rms;              // 0 or 1, since version 3: of RMSNorm; mean is not read
    void* dinp;               // (N,C)
    void* dweight;            // (C)
    void* dbias;              // (C)
    const void* dout;         // (N,C)
    const void* inp;          // (N,C): what forward normalised, its inp or its residual
    const void* weight;       // (C), null = 1
    const void* mean;         // (N) as forward wrote it; null will do with rms
    const void* rstd;         // (N) likewise
    int64_t N;                // from 0: dweight and dbias become 0, or stay with accumulate
    int64_t C;                // from 1 to 2^31 - 1
    int64_t dinp_stride;      // elements from one row to the next, 0 = C
    int64_t dout_stride;
    int64_t inp_stride;
    void* workspace;        // may hold anything on entry, holds nothing of use afterwards; 16-byte aligned;
                            // calls that may run at the same time need one each
    size_t workspace_size;  // bytes, at least what llmc_layernorm_backward_workspace says
    void* stream;           // a cudaStream_t; null is the default stream
    // since version 4, beside float32
    int32_t dout_dtype;  // of dout and copy: bfloat16 or float16; 0 = dtype; dinp is not dout then
    int32_t reserved;    // 0
    void*
        copy;  // (N,C) written (=) beside dinp: dinp as it is now, rounded to dout_dtype; null if not wanted
    int64_t copy_stride;  // as dinp_stride
} llmc_layernorm_backward_args;

// *bytes = the workspace that any call with this C needs on this machine
int llmc_layernorm_backward_workspace(int64_t C, size_t* bytes);

int llmc_layernorm_backward(const llmc_layernorm_backward_args* args);

// Since version 2, on Hopper and later: the forward pass whose result FP8 products read, in e4m3 as it is and transposed, from
// one read: out = saturated(y * *scale), y as above from rows in bfloat16. N and C are multiples of 16, C at most 6144; all
// matrices are packed and aligned to 16 bytes. residual may be inp or inp2; nothing else may overlap.
typedef struct llmc_layernorm_forward_fp8_args {
    size_t struct_size;  // sizeof(llmc_layernorm_forward_fp8_args)
    int32_t dtype;       // of inp, weight, bias, residual and inp2: LLMC_LAYERNORM_BFLOAT16
    int32_t reserved;    // 0
    void* out;           // (N,C) e4m3, written (=)
    void* transposed;    // (C,N) the same bytes, null if not wanted
    float* amax;         // (1) raised to the largest |y|, for the scale of calls to come; null if not wanted
    float* mean;         // (N) null if not wanted
    float* rstd;         // (N) likewise
    const void* inp;     // (N,C)
    const void* weight;  // (C)
    const void* bias;    // (C)
    const float* scale;  // (1)
    int64_t N;           // from 0 to 2^30
    int64_t C;
    double eps;
    void* residual;    // (N,C) written (=): inp + inp2; both null if not wanted
    const void* inp2;  // (N,C)
    void* stream;      // a cudaStream_t; null is the default stream
} llmc_layernorm_forward_fp8_args;

int llmc_layernorm_forward_fp8(const llmc_layernorm_forward_fp8_args* args);

// Since version 4, of any type but float64: a layernorm whose scale and shift each sample has for itself (adaLN), alone or
// behind a gated residual. out = xhat (1 + scale[b]) + shift[b] for each row x of sample b, a row of inp or, with a residual,
// of inp + gate[b] inp2 rounded to dtype. What samples have lies *_stride elements apart, 0 = C: chunks of one tensor, mostly.
// Matrices are packed. residual or out may be inp; nothing else may overlap.
typedef struct llmc_layernorm_modulate_forward_args {
    size_t struct_size;    // sizeof(llmc_layernorm_modulate_forward_args)
    int32_t dtype;         // of all but mean and rstd
    int32_t reserved;      // 0
    void* out;             // (samples,tokens,C) written (=)
    float* mean;           // (samples,tokens) written (=); null if not wanted
    float* rstd;           // likewise
    const void* inp;       // (samples,tokens,C)
    const void* scale;     // (samples,C)
    const void* shift;     // (samples,C)
    int64_t samples;       // from 0
    int64_t tokens;        // from 0
    int64_t C;             // from 1 to 2^31 - 1
    double eps;            // taken as it is: 0 is 0
    void* residual;        // (samples,tokens,C) written (=); null, with the next two, if not wanted
    const void* inp2;      // (samples,tokens,C)
    const void* gate;      // (samples,C)
    int64_t scale_stride;  // elements from one sample to the next, 0 = C
    int64_t shift_stride;
    int64_t gate_stride;
    void* stream;  // a cudaStream_t; null is the default stream
} llmc_layernorm_modulate_forward_args;

int llmc_layernorm_modulate_forward(const llmc_layernorm_modulate_forward_args* args);

// Its gradients, written (=): dinp of what was normalised, to which dresidual is added; dscale and dshift as sums over the
// sample's rows; with a gate dinp2 = gate[b] dinp and dgate[b], the sum of dinp inp2. dinp may be dout or dresidual, dinp2 may
// be inp2; nothing else may overlap.
typedef struct llmc_layernorm_modulate_backward_args {
    size_t struct_size;     // sizeof(llmc_layernorm_modulate_backward_args)
    int32_t dtype;          // of all but mean and rstd
    int32_t reserved;       // 0
    void* dinp;             // (samples,tokens,C)
    void* dscale;           // (samples,C)
    void* dshift;           // (samples,C)
    const void* dout;       // (samples,tokens,C)
    const void* inp;        // (samples,tokens,C): what forward normalised, its inp or its residual
    const float* mean;      // (samples,tokens) as forward wrote it
    const float* rstd;      // likewise
    const void* scale;      // (samples,C)
    int64_t samples;        // from 0
    int64_t tokens;         // from 0: dscale, dshift and dgate become 0
    int64_t C;              // from 1 to 2^31 - 1
    const void* dresidual;  // (samples,tokens,C), null = 0
    void* dinp2;            // (samples,tokens,C); null, with the next three: no gate
    void* dgate;            // (samples,C)
    const void* inp2;       // (samples,tokens,C)
    const void* gate;       // (samples,C)
    int64_t scale_stride;   // elements from one sample to the next, 0 = C
    int64_t gate_stride;
    int64_t dscale_stride;
    int64_t dshift_stride;
    int64_t dgate_stride;
    void* workspace;        // as llmc_layernorm_backward's
    size_t workspace_size;  // bytes, at least what llmc_layernorm_modulate_backward_workspace says
    void* stream;           // a cudaStream_t; null is the default stream
} llmc_layernorm_modulate_backward_args;

// *bytes = the workspace that any call with this C needs on the current device
int llmc_layernorm_modulate_backward_workspace(int64_t C, size_t* bytes);

int llmc_layernorm_modulate_backward(const llmc_layernorm_modulate_backward_args* args);

#ifdef __cplusplus
}
#endif

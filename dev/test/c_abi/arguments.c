// The C interface of LayerNorm called from C99: wrong arguments get a code and a message, and never a GPU.
// Then, on a GPU, numbers.c. Last line: N passed, N failed, N skipped; exit 1 if any failed.
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "dev/test/c_abi/c_abi.h"
#include "llmc/layernorm/c_abi.h"

int passed, failed, skipped;

void expect(int ok, const char* what) {
    if (ok) {
        passed++;
    } else {
        failed++;
        printf("FAILED: %s\n", what);
    }
}

// this code, and a message that begins with the function's name and holds this text
static void refused(int status, int code, const char* function, const char* text) {
    const char* message = llmc_layernorm_last_error();
    int ok =
        status == code && strncmp(message, function, strlen(function)) == 0 && strstr(message, text) != NULL;
    if (!ok) {
        printf("code %d, expected %d; message \"%s\", expected \"%s\"\n", status, code, message, text);
    }
    expect(ok, text);
}

static void forward_refused(llmc_layernorm_forward_args a, int code, const char* text) {
    refused(llmc_layernorm_forward(&a), code, "llmc_layernorm_forward: ", text);
}

static void backward_refused(llmc_layernorm_backward_args a, int code, const char* text) {
    refused(llmc_layernorm_backward(&a), code, "llmc_layernorm_backward: ", text);
}

static double memory[64];  // what pointers point to where nothing may be touched

static llmc_layernorm_forward_args forward_args(void) {
    llmc_layernorm_forward_args a;
    memset(&a, 0, sizeof a);
    a.struct_size = sizeof a;
    a.dtype = LLMC_LAYERNORM_FLOAT32;
    a.out = a.mean = a.rstd = memory;
    a.inp = a.weight = a.bias = memory;
    a.N = 3;
    a.C = 5;
    a.eps = 1e-5;
    return a;
}

static llmc_layernorm_backward_args backward_args(void) {
    llmc_layernorm_backward_args a;
    memset(&a, 0, sizeof a);
    a.struct_size = sizeof a;
    a.dtype = LLMC_LAYERNORM_FLOAT32;
    a.dinp = a.dweight = a.dbias = memory;
    a.dout = a.inp = a.weight = a.mean = a.rstd = memory;
    a.N = 3;
    a.C = 5;
    a.workspace = (void*)(((uintptr_t)memory + 15) / 16 * 16);
    a.workspace_size = (size_t)1 << 40;
    return a;
}

static void test_structs(void) {
    refused(llmc_layernorm_forward(NULL), LLMC_LAYERNORM_INVALID, "llmc_layernorm_forward: ", "args is null");
    refused(llmc_layernorm_backward(NULL), LLMC_LAYERNORM_INVALID,
            "llmc_layernorm_backward: ", "args is null");

    llmc_layernorm_forward_args a = forward_args();
    a.struct_size = 0;
    forward_refused(a, LLMC_LAYERNORM_INVALID, "struct_size is 0");
    a.struct_size = sizeof a - 8;
    forward_refused(a, LLMC_LAYERNORM_INVALID, "struct_size is");
    a.struct_size = (size_t)-1;
    forward_refused(a, LLMC_LAYERNORM_INVALID, "struct_size is");
    llmc_layernorm_backward_args b = backward_args();
    b.struct_size = sizeof b - 1;
    backward_refused(b, LLMC_LAYERNORM_INVALID, "struct_size is");

    // a struct of the future: its new fields are an error only where they are set
    struct {
        llmc_layernorm_forward_args now;
        int64_t added[2];
    } later = {forward_args(), {0, 0}};
    later.now.struct_size = sizeof later;
    later.now.N = 0;
    expect(llmc_layernorm_forward(&later.now) == LLMC_LAYERNORM_OK, "a later struct without its new fields");
    later.added[1] = 1;
    refused(llmc_layernorm_forward(&later.now), LLMC_LAYERNORM_UNSUPPORTED,
            "llmc_layernorm_forward: ", "use a newer library");
}

static void test_forward(void) {
    const int invalid = LLMC_LAYERNORM_INVALID, unsupported = LLMC_LAYERNORM_UNSUPPORTED;
    llmc_layernorm_forward_args a;
    a = forward_args(), a.dtype = 0, forward_refused(a, invalid, "dtype is 0");
    a = forward_args(), a.dtype = 5, forward_refused(a, invalid, "dtype is 5");
    a = forward_args(), a.weight_dtype = -1, forward_refused(a, invalid, "weight_dtype is -1");
    a = forward_args(), a.weight_dtype = LLMC_LAYERNORM_FLOAT16;
    forward_refused(a, unsupported, "weight_dtype is float16 beside dtype float32, expected float32");
    a = forward_args(), a.dtype = LLMC_LAYERNORM_BFLOAT16, a.weight_dtype = LLMC_LAYERNORM_FLOAT16;
    forward_refused(a, unsupported, "expected bfloat16 or float32");
    a = forward_args(), a.dtype = LLMC_LAYERNORM_FLOAT64, a.weight_dtype = LLMC_LAYERNORM_FLOAT32;
    forward_refused(a, unsupported, "weight_dtype is float32 beside dtype float64");
    a = forward_args(), a.N = -1, forward_refused(a, invalid, "N is -1");
    a = forward_args(), a.C = 0, forward_refused(a, invalid, "C is 0");
    a = forward_args(), a.C = (int64_t)1 << 31, forward_refused(a, invalid, "C is 2147483648");
    a = forward_args(), a.N = INT64_MAX, forward_refused(a, invalid, "64-bit");
    a = forward_args(), a.inp_stride = 4, forward_refused(a, invalid, "inp_stride is 4");
    a = forward_args(), a.out_stride = -5, forward_refused(a, invalid, "out_stride is -5");
    a = forward_args(), a.inp2_stride = INT64_MAX, forward_refused(a, invalid, "inp2_stride: 3 rows");
    a = forward_args(), a.eps = -1, forward_refused(a, invalid, "eps is -1");
    a = forward_args(), a.eps = NAN, forward_refused(a, invalid, "eps is ");
    a = forward_args(), a.out = NULL, forward_refused(a, invalid, "out is null");
    a = forward_args(), a.inp = NULL, forward_refused(a, invalid, "inp is null");
    a = forward_args(), a.inp = (char*)memory + 2, forward_refused(a, invalid, "expected a multiple of 4");
    a = forward_args(), a.residual = memory, forward_refused(a, invalid, "inp2 is null");
    a = forward_args(), a.inp2 = memory, forward_refused(a, invalid, "residual is null");
    a = forward_args(), a.N = 0, a.out = NULL, a.inp = NULL;
    expect(llmc_layernorm_forward(&a) == LLMC_LAYERNORM_OK, "forward of no rows");
    expect(llmc_layernorm_last_error()[0] == '\0', "no message after a call that went well");
}

static void test_backward(void) {
    const int invalid = LLMC_LAYERNORM_INVALID, unsupported = LLMC_LAYERNORM_UNSUPPORTED;
    llmc_layernorm_backward_args a;
    a = backward_args(), a.dtype = 77, backward_refused(a, invalid, "dtype is 77");
    a = backward_args(), a.grad_dtype = 9, backward_refused(a, invalid, "grad_dtype is 9");
    a = backward_args(), a.grad_dtype = LLMC_LAYERNORM_BFLOAT16;
    backward_refused(a, unsupported, "grad_dtype is bfloat16 beside dtype float32");
    a = backward_args(), a.dtype = LLMC_LAYERNORM_FLOAT16, a.weight_dtype = LLMC_LAYERNORM_FLOAT32;
    a.grad_dtype = LLMC_LAYERNORM_FLOAT16;
    backward_refused(a, unsupported, "grad_dtype is float16 with weight_dtype float32");
    a = backward_args(), a.accumulate = 2, backward_refused(a, invalid, "accumulate is 2");
    a = backward_args(), a.accumulate_dinp = -1, backward_refused(a, invalid, "accumulate_dinp is -1");
    a = backward_args(), a.reserved = 1, backward_refused(a, unsupported, "reserved is 1");
    a = backward_args(), a.N = INT64_MIN, backward_refused(a, invalid, "N is -9223372036854775808");
    a = backward_args(), a.C = -5, backward_refused(a, invalid, "C is -5");
    a = backward_args(), a.dout_stride = 1, backward_refused(a, invalid, "dout_stride is 1");
    a = backward_args(), a.dout = NULL, backward_refused(a, invalid, "dout is null");
    a = backward_args(), a.inp = NULL, backward_refused(a, invalid, "inp is null");
    a = backward_args(), a.mean = NULL, backward_refused(a, invalid, "mean is null");
    a = backward_args(), a.rstd = NULL, backward_refused(a, invalid, "rstd is null");
    a = backward_args(), a.dweight = (char*)memory + 1, backward_refused(a, invalid, "dweight is 0x");
    a = backward_args(), a.workspace = NULL, backward_refused(a, invalid, "workspace is null");
    a = backward_args(), a.workspace_size = 1, backward_refused(a, invalid, "workspace_size is 1");
    a = backward_args(), a.workspace = (char*)a.workspace + 8;
    backward_refused(a, invalid, "expected a multiple of 16");

    size_t bytes = 0;
    expect(llmc_layernorm_backward_workspace(768, &bytes) == LLMC_LAYERNORM_OK && bytes > 0,
           "workspace of C = 768");
    refused(llmc_layernorm_backward_workspace(0, &bytes), invalid,
            "llmc_layernorm_backward_workspace: ", "C is 0");
    refused(llmc_layernorm_backward_workspace(768, NULL), invalid,
            "llmc_layernorm_backward_workspace: ", "bytes is null");
}

static void* fail_elsewhere(void* unused) {
    (void)unused;
    return llmc_layernorm_backward(NULL) == LLMC_LAYERNORM_INVALID ? memory : NULL;
}

static void test_threads(void) {
    pthread_t thread;
    void* result = NULL;
    llmc_layernorm_forward(NULL);
    expect(pthread_create(&thread, NULL, fail_elsewhere, NULL) == 0 && pthread_join(thread, &result) == 0 &&
               result == memory && strncmp(llmc_layernorm_last_error(), "llmc_layernorm_forward", 22) == 0,
           "another thread's failure leaves this thread's message");
}

int main(void) {
    setvbuf(stdout, NULL, _IONBF, 0);
    expect(llmc_layernorm_abi_version() == LLMC_LAYERNORM_ABI_VERSION, "library and header have one version");
    expect(llmc_layernorm_last_error()[0] == '\0', "no message at first");
    test_structs();
    test_forward();
    test_backward();
    test_threads();
    test_numbers();
    printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    return failed > 0;
}

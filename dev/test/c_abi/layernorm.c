// The C interface of LayerNorm called from C99: wrong arguments get a code and a message, and never a GPU. Then a residual
// forward with row strides, and a backward that adds, in float32 on a GPU, against the formulas. Last line: N passed, N failed,
// N skipped; exit 1 if any failed.
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "llmc/layernorm/c_abi.h"

static int passed, failed, skipped;

// counts; a failure is printed
static void expect(int ok, const char* what) {
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

static long double memory[64];  // what pointers point to where nothing may be touched, aligned to 16 bytes

// calls that nothing is wrong with: tests change copies of them
static llmc_layernorm_forward_args forward_args = {
    .struct_size = sizeof forward_args, .dtype = LLMC_LAYERNORM_FLOAT32, .N = 3, .C = 5, .eps = 1e-5};
static llmc_layernorm_backward_args backward_args = {
    .struct_size = sizeof backward_args, .dtype = LLMC_LAYERNORM_FLOAT32, .N = 3, .C = 5};
static llmc_layernorm_forward_fp8_args fp8_args = {
    .struct_size = sizeof fp8_args, .dtype = LLMC_LAYERNORM_BFLOAT16, .N = 16, .C = 16, .eps = 1e-5};

static void point_at_memory(void) {
    llmc_layernorm_forward_args* f = &forward_args;
    f->out = f->mean = f->rstd = memory, f->inp = f->weight = f->bias = memory;
    llmc_layernorm_backward_args* b = &backward_args;
    b->dinp = b->dweight = b->dbias = b->workspace = memory, b->workspace_size = (size_t)1 << 40;
    b->dout = b->inp = b->weight = b->mean = b->rstd = memory;
    llmc_layernorm_forward_fp8_args* p = &fp8_args;
    p->out = memory, p->inp = p->weight = p->bias = memory, p->scale = (const float*)memory;
}

static void fp8_refused(llmc_layernorm_forward_fp8_args a, int code, const char* text) {
    refused(llmc_layernorm_forward_fp8(&a), code, "llmc_layernorm_forward_fp8: ", text);
}

static void test_fp8(void) {
    const int invalid = LLMC_LAYERNORM_INVALID, unsupported = LLMC_LAYERNORM_UNSUPPORTED;
    llmc_layernorm_forward_fp8_args a;
    a = fp8_args, a.struct_size = 0, fp8_refused(a, invalid, "struct_size is 0");
    a = fp8_args, a.dtype = LLMC_LAYERNORM_FLOAT16, fp8_refused(a, unsupported, "dtype is float16");
    a = fp8_args, a.reserved = 1, fp8_refused(a, unsupported, "reserved 1");
    a = fp8_args, a.N = 17, fp8_refused(a, invalid, "multiples of 16");
    a = fp8_args, a.C = 24, fp8_refused(a, invalid, "multiples of 16");
    a = fp8_args, a.C = 6160, fp8_refused(a, invalid, "C 6144");
    a = fp8_args, a.eps = -1, fp8_refused(a, invalid, "eps is -1");
    a = fp8_args, a.residual = memory, fp8_refused(a, invalid, "inp2 is null");
    a = fp8_args, a.scale = NULL, fp8_refused(a, invalid, "scale is null");
    a = fp8_args, a.weight = (char*)memory + 2, fp8_refused(a, invalid, "aligned to 16 bytes");
}

static void modulate_refused(llmc_layernorm_modulate_forward_args a, int code, const char* text) {
    refused(llmc_layernorm_modulate_forward(&a), code, "llmc_layernorm_modulate_forward: ", text);
}

static void modulate_backward_refused(llmc_layernorm_modulate_backward_args a, int code, const char* text) {
    refused(llmc_layernorm_modulate_backward(&a), code, "llmc_layernorm_modulate_backward: ", text);
}

static void test_modulate(void) {
    const int invalid = LLMC_LAYERNORM_INVALID, unsupported = LLMC_LAYERNORM_UNSUPPORTED;
    llmc_layernorm_modulate_forward_args a;
    llmc_layernorm_modulate_forward_args f = {
        .struct_size = sizeof f, .dtype = LLMC_LAYERNORM_BFLOAT16, .samples = 2, .tokens = 3, .C = 8};
    f.out = memory, f.inp = f.scale = f.shift = memory;
    a = f, a.struct_size = 0, modulate_refused(a, invalid, "struct_size is 0");
    a = f, a.dtype = LLMC_LAYERNORM_FLOAT64, modulate_refused(a, unsupported, "dtype is float64");
    a = f, a.reserved = 1, modulate_refused(a, unsupported, "reserved 1");
    a = f, a.tokens = -1, modulate_refused(a, invalid, "tokens is -1");
    a = f, a.samples = (int64_t)1 << 30, modulate_refused(a, invalid, "samples of 3 tokens");
    a = f, a.C = 0, modulate_refused(a, invalid, "C is 0");
    a = f, a.shift_stride = 7, modulate_refused(a, invalid, "shift_stride is 7");
    a = f, a.eps = -1, modulate_refused(a, invalid, "eps is -1");
    a = f, a.scale = NULL, modulate_refused(a, invalid, "scale is null");
    a = f, a.residual = memory, modulate_refused(a, invalid, "inp2 is null");
    a = f, a.residual = memory, a.inp2 = memory, modulate_refused(a, invalid, "gate is null");
    llmc_layernorm_modulate_backward_args b = {
        .struct_size = sizeof b, .dtype = LLMC_LAYERNORM_BFLOAT16, .C = 8};
    b.samples = 1, modulate_backward_refused(b, invalid, "dscale is null");
    b.samples = 0, b.dinp2 = memory, modulate_backward_refused(b, invalid, "dgate is null");
}

static void test_structs(void) {
    refused(llmc_layernorm_forward(NULL), LLMC_LAYERNORM_INVALID, "llmc_layernorm_forward: ", "args is null");
    refused(llmc_layernorm_backward(NULL), LLMC_LAYERNORM_INVALID,
            "llmc_layernorm_backward: ", "args is null");

    llmc_layernorm_forward_args a = forward_args;
    a.struct_size = 0;
    forward_refused(a, LLMC_LAYERNORM_INVALID, "struct_size is 0");
    a.struct_size = offsetof(llmc_layernorm_forward_args, rms) - 8;
    forward_refused(a, LLMC_LAYERNORM_INVALID, "struct_size is");
    a.struct_size = (size_t)-1;
    forward_refused(a, LLMC_LAYERNORM_INVALID, "struct_size is");
    llmc_layernorm_backward_args b = backward_args;
    b.struct_size = offsetof(llmc_layernorm_backward_args, dout_dtype) - 1;
    backward_refused(b, LLMC_LAYERNORM_INVALID, "struct_size is");
    // one of versions 1 to 3, which ends before dout_dtype
    b.struct_size++, b.dout_dtype = 77, b.N = 0, b.dinp = b.dweight = b.dbias = NULL;
    expect(llmc_layernorm_backward(&b) == LLMC_LAYERNORM_OK, "an earlier struct of backward");

    // one of versions 1 and 2, which have no rms
    a = forward_args, a.struct_size = offsetof(llmc_layernorm_forward_args, rms), a.rms = 7, a.N = 0;
    expect(llmc_layernorm_forward(&a) == LLMC_LAYERNORM_OK, "an earlier struct");

    // a struct of the future: its new fields are an error only where they are set
    struct {
        llmc_layernorm_forward_args now;
        int64_t added[2];
    } later = {forward_args, {0, 0}};
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
    a = forward_args, a.dtype = 0, forward_refused(a, invalid, "dtype is 0");
    a = forward_args, a.dtype = 5, forward_refused(a, invalid, "dtype is 5");
    a = forward_args, a.weight_dtype = -1, forward_refused(a, invalid, "weight_dtype is -1");
    a = forward_args, a.weight_dtype = LLMC_LAYERNORM_FLOAT16;
    forward_refused(a, unsupported, "weight_dtype is float16 beside dtype float32, expected float32");
    a = forward_args, a.dtype = LLMC_LAYERNORM_BFLOAT16, a.weight_dtype = LLMC_LAYERNORM_FLOAT16;
    forward_refused(a, unsupported, "expected bfloat16 or float32");
    a = forward_args, a.dtype = LLMC_LAYERNORM_FLOAT64, a.weight_dtype = LLMC_LAYERNORM_FLOAT32;
    forward_refused(a, unsupported, "weight_dtype is float32 beside dtype float64");
    a = forward_args, a.N = -1, forward_refused(a, invalid, "N is -1");
    a = forward_args, a.C = 0, forward_refused(a, invalid, "C is 0");
    a = forward_args, a.C = (int64_t)1 << 31, forward_refused(a, invalid, "C is 2147483648");
    a = forward_args, a.N = INT64_MAX, forward_refused(a, invalid, "64-bit");
    a = forward_args, a.inp_stride = 4, forward_refused(a, invalid, "inp_stride is 4");
    a = forward_args, a.out_stride = -5, forward_refused(a, invalid, "out_stride is -5");
    a = forward_args, a.inp2_stride = INT64_MAX, forward_refused(a, invalid, "inp2_stride: 3 rows");
    a = forward_args, a.eps = -1, forward_refused(a, invalid, "eps is -1");
    a = forward_args, a.eps = NAN, forward_refused(a, invalid, "eps is ");
    a = forward_args, a.out = NULL, forward_refused(a, invalid, "out is null");
    a = forward_args, a.inp = NULL, forward_refused(a, invalid, "inp is null");
    a = forward_args, a.inp = (char*)memory + 2, forward_refused(a, invalid, "expected a multiple of 4");
    a = forward_args, a.residual = memory, forward_refused(a, invalid, "inp2 is null");
    a = forward_args, a.inp2 = memory, forward_refused(a, invalid, "residual is null");
    a = forward_args, a.rms = 2, forward_refused(a, invalid, "rms is 2");
    a = forward_args, a.out_dtype = 5, forward_refused(a, invalid, "out_dtype is 5");
    a = forward_args, a.out_dtype = LLMC_LAYERNORM_FLOAT64;
    forward_refused(a, unsupported,
                    "out_dtype is float64 beside dtype float32, expected float32, bfloat16 or");
    a.dtype = LLMC_LAYERNORM_FLOAT16, a.out_dtype = LLMC_LAYERNORM_BFLOAT16;
    forward_refused(a, unsupported, "out_dtype is bfloat16 beside dtype float16");
    a = forward_args, a.out_dtype = LLMC_LAYERNORM_BFLOAT16, a.out = (char*)memory + 1;
    forward_refused(a, invalid, "expected a multiple of 2");
    a = forward_args, a.N = 0, a.out = NULL, a.inp = NULL;
    expect(llmc_layernorm_forward(&a) == LLMC_LAYERNORM_OK, "forward of no rows");
    expect(llmc_layernorm_last_error()[0] == '\0', "no message after a call that went well");
}

static void test_backward(void) {
    const int invalid = LLMC_LAYERNORM_INVALID, unsupported = LLMC_LAYERNORM_UNSUPPORTED;
    llmc_layernorm_backward_args a;
    a = backward_args, a.dtype = 77, backward_refused(a, invalid, "dtype is 77");
    a = backward_args, a.grad_dtype = 9, backward_refused(a, invalid, "grad_dtype is 9");
    a = backward_args, a.grad_dtype = LLMC_LAYERNORM_BFLOAT16;
    backward_refused(a, unsupported, "grad_dtype is bfloat16 beside dtype float32");
    a = backward_args, a.dtype = LLMC_LAYERNORM_FLOAT16, a.weight_dtype = LLMC_LAYERNORM_FLOAT32;
    a.grad_dtype = LLMC_LAYERNORM_FLOAT16;
    backward_refused(a, unsupported, "grad_dtype is float16 with weight_dtype float32");
    a = backward_args, a.accumulate = 2, backward_refused(a, invalid, "accumulate is 2");
    a = backward_args, a.accumulate_dinp = -1, backward_refused(a, invalid, "accumulate_dinp is -1");
    a = backward_args, a.rms = -1, backward_refused(a, invalid, "rms is -1");
    a = backward_args, a.rms = 1, a.mean = a.rstd = NULL, backward_refused(a, invalid, "rstd is null");
    a = backward_args, a.N = INT64_MIN, backward_refused(a, invalid, "N is -9223372036854775808");
    a = backward_args, a.C = -5, backward_refused(a, invalid, "C is -5");
    a = backward_args, a.dout_stride = 1, backward_refused(a, invalid, "dout_stride is 1");
    a = backward_args, a.dout = NULL, backward_refused(a, invalid, "dout is null");
    a = backward_args, a.inp = NULL, backward_refused(a, invalid, "inp is null");
    a = backward_args, a.mean = NULL, backward_refused(a, invalid, "mean is null");
    a = backward_args, a.rstd = NULL, backward_refused(a, invalid, "rstd is null");
    a = backward_args, a.dweight = (char*)memory + 1, backward_refused(a, invalid, "dweight is 0x");
    a = backward_args, a.dout_dtype = LLMC_LAYERNORM_FLOAT64;
    backward_refused(a, unsupported, "dout_dtype is float64 beside dtype float32");
    a = backward_args, a.reserved = 1, backward_refused(a, unsupported, "reserved is 1");
    a = backward_args, a.copy = memory, backward_refused(a, invalid, "copy is set");
    a.dout_dtype = LLMC_LAYERNORM_FLOAT16, a.dinp = NULL, backward_refused(a, invalid, "copy is set");
    a = backward_args, a.workspace = NULL, backward_refused(a, invalid, "workspace is null");
    a = backward_args, a.workspace_size = 1, backward_refused(a, invalid, "workspace_size is 1");
    a = backward_args, a.workspace = (char*)a.workspace + 8;
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

// ---- numbers: small calls on a GPU, against plain loops; skipped where there is none. The device's memory comes from the
// driver's library, opened by name: this is built where there is no CUDA.

enum { N = 6, C = 37, STRIDE = 41, ROWS = N * STRIDE };

// of the CUDA driver API; all return 0 if they went well
static int (*init)(unsigned), (*retain)(void** context, int device), (*set_current)(void* context);
static int (*allocate)(uint64_t* at, size_t bytes), (*synchronize)(void);
static int (*upload)(uint64_t at, const void* from, size_t bytes),
    (*download)(void* to, uint64_t at, size_t bytes);

static int find(void* driver, const char* name, void* function) {
    void* found = dlsym(driver, name);
    memcpy(function, &found, sizeof found);  // C99 has no cast from a pointer to data to one to a function
    return found != NULL;
}

static int open_gpu(void) {
    void* driver = dlopen("libcuda.so.1", RTLD_NOW);
    void* context = NULL;
    return driver != NULL && find(driver, "cuInit", &init) && find(driver, "cuMemAlloc_v2", &allocate) &&
           find(driver, "cuDevicePrimaryCtxRetain", &retain) &&
           find(driver, "cuCtxSetCurrent", &set_current) && find(driver, "cuCtxSynchronize", &synchronize) &&
           find(driver, "cuMemcpyHtoD_v2", &upload) && find(driver, "cuMemcpyDtoH_v2", &download) &&
           init(0) == 0 && retain(&context, 0) == 0 && set_current(context) == 0;
}

// device memory of this many floats, with these in it or, from null, poisoned
static void* on_gpu(const float* values, size_t count) {
    static float poison[ROWS];
    uint64_t at = 0;
    memset(poison, 0xff, sizeof poison);  // NaN
    if (count > ROWS || allocate(&at, count * sizeof(float)) != 0 ||
        upload(at, values != NULL ? values : poison, count * sizeof(float)) != 0) {
        return NULL;
    }
    return (void*)(uintptr_t)at;
}

static float worst(const void* got, const float* expected, size_t rows, size_t columns, size_t stride) {
    static float values[ROWS];
    float error = 0;
    if (download(values, (uintptr_t)got, rows * stride * sizeof(float)) != 0) { return INFINITY; }
    for (size_t i = 0; i < rows; i++) {
        for (size_t c = 0; c < columns; c++) {
            float difference = fabsf(values[i * stride + c] - expected[i * stride + c]);
            if (!(difference <= error)) { error = difference; }
            if (isnan(error)) { return INFINITY; }
        }
    }
    return error;
}

static float x[ROWS], x2[ROWS], sum[ROWS], y[ROWS], dy[ROWS], dx[ROWS], w[C], b[C], dw[C], db[C];

// the inputs, and what must come out of LayerNorm, or of RMSNorm: dx, dw and db have 1 in them already
static void fill(int rms) {
    for (int i = 0; i < ROWS; i++) {
        x[i] = (float)((i * 37) % 101) / 50;
        x2[i] = (float)((i * 53) % 89) / 70 - 1;
        dy[i] = (float)((i * 29) % 97) / 60 - 0.7f;
        sum[i] = x[i] + x2[i];
    }
    for (int c = 0; c < C; c++) {
        w[c] = 0.5f + (float)c / C;
        b[c] = 0.1f * (float)(c % 7);
        dw[c] = db[c] = 1;
    }
    for (int i = 0; i < N; i++) {
        const float *row = sum + i * STRIDE, *d = dy + i * STRIDE;
        double mean = 0, variance = 0, c1 = 0, c2 = 0;
        for (int c = 0; c < C && !rms; c++) { mean += (double)row[c] / C; }
        for (int c = 0; c < C; c++) { variance += (row[c] - mean) * (row[c] - mean) / C; }
        double rstd = 1 / sqrt(variance + 1e-5);
        for (int c = 0; c < C; c++) {
            double xhat = (row[c] - mean) * rstd;
            y[i * STRIDE + c] = (float)(xhat * w[c] + b[c]);
            c1 += rms ? 0 : w[c] * d[c] / C;
            c2 += w[c] * d[c] * xhat / C;
            dw[c] += (float)(d[c] * xhat);
            db[c] += d[c];
        }
        for (int c = 0; c < C; c++) {
            double xhat = (row[c] - mean) * rstd;
            dx[i * STRIDE + c] = (float)(1 + rstd * (w[c] * d[c] - c1 - xhat * c2));
        }
    }
}

static const llmc_layernorm_forward_args small_forward = {
    .struct_size = sizeof small_forward, .dtype = LLMC_LAYERNORM_FLOAT32, .N = N, .C = C, .eps = 1e-5};

static void test_without_gpu(void) {
    llmc_layernorm_forward_args f = small_forward;
    f.out = y, f.inp = x;
    expect(llmc_layernorm_forward(&f) == LLMC_LAYERNORM_DEVICE,
           "a good call without a GPU is a device error");
    expect(strstr(llmc_layernorm_last_error(), "cuda") != NULL, "which names CUDA's error");
    printf("no GPU (%s): its numbers are skipped\n", llmc_layernorm_last_error());
    skipped += 14;
}

// Rows of -1 and 1 with the scale 2 and weight 1: e4m3's -2 and 2, and the columns of the transpose are the rows.
static void test_fp8_numbers(void) {
    enum { kRows = 16, kColumns = 16 };
    static uint16_t rows[kRows * kColumns], ones[kColumns], zeros[kColumns];
    static float scale[] = {2, 0};
    static uint8_t out[2][kRows * kColumns];
    for (int i = 0; i < kRows * kColumns; i++) { rows[i] = (i + i / kColumns) % 2 ? 0x3f80 : 0xbf80; }
    for (int c = 0; c < kColumns; c++) { ones[c] = 0x3f80; }
    llmc_layernorm_forward_fp8_args a = {
        .struct_size = sizeof a, .dtype = LLMC_LAYERNORM_BFLOAT16, .N = kRows, .C = kColumns};
    a.out = on_gpu(NULL, kRows * kColumns / 4), a.transposed = on_gpu(NULL, kRows * kColumns / 4);
    a.inp = on_gpu((const float*)rows, kRows * kColumns / 2);
    a.weight = on_gpu((const float*)ones, kColumns / 2);
    a.scale = on_gpu(scale, 1), a.amax = on_gpu(scale + 1, 1);
    a.bias = on_gpu((const float*)zeros, kColumns / 2);
    if (llmc_layernorm_forward_fp8(&a) != LLMC_LAYERNORM_OK) {  // before Hopper
        printf("%s\n", llmc_layernorm_last_error());
        skipped++;
        return;
    }
    float amax = 0;
    expect(synchronize() == 0 && download(out[0], (uintptr_t)a.out, sizeof out[0]) == 0 &&
               download(out[1], (uintptr_t)a.transposed, sizeof out[1]) == 0 &&
               download(&amax, (uintptr_t)a.amax, sizeof amax) == 0,
           "forward in FP8 on the GPU");
    int right = amax == 1;
    for (int i = 0; i < kRows * kColumns; i++) {
        right &= out[0][i] == ((i + i / kColumns) % 2 ? 0x40 : 0xc0) &&
                 out[1][i % kColumns * kRows + i / kColumns] == out[0][i];
    }
    expect(right, "out and transposed in e4m3, amax");
}

static void test_numbers_of(int rms) {
    static float ones[ROWS];
    for (int i = 0; i < ROWS; i++) { ones[i] = 1; }
    fill(rms);
    llmc_layernorm_forward_args f = small_forward;
    f.rms = rms;
    f.out = on_gpu(NULL, ROWS), f.residual = on_gpu(NULL, ROWS);
    f.mean = rms ? NULL : on_gpu(NULL, N), f.rstd = on_gpu(NULL, N);
    f.inp = on_gpu(x, ROWS), f.inp2 = on_gpu(x2, ROWS), f.weight = on_gpu(w, C), f.bias = on_gpu(b, C);
    f.out_stride = f.inp_stride = f.residual_stride = f.inp2_stride = STRIDE;
    expect(llmc_layernorm_forward(&f) == LLMC_LAYERNORM_OK && synchronize() == 0, "forward on the GPU");

    llmc_layernorm_backward_args a = {
        .struct_size = sizeof a, .dtype = LLMC_LAYERNORM_FLOAT32, .N = N, .C = C};
    a.accumulate = a.accumulate_dinp = 1, a.rms = rms;
    a.dinp = on_gpu(ones, ROWS), a.dweight = on_gpu(ones, C), a.dbias = on_gpu(ones, C);
    a.dout = on_gpu(dy, ROWS), a.inp = f.residual, a.weight = f.weight, a.mean = f.mean, a.rstd = f.rstd;
    a.dinp_stride = a.dout_stride = a.inp_stride = STRIDE;
    uint64_t workspace = 0;
    expect(llmc_layernorm_backward_workspace(C, &a.workspace_size) == LLMC_LAYERNORM_OK &&
               allocate(&workspace, a.workspace_size) == 0,
           "workspace");
    a.workspace = (void*)(uintptr_t)workspace;
    expect(llmc_layernorm_backward(&a) == LLMC_LAYERNORM_OK && synchronize() == 0, "backward on the GPU");
    printf("%s\n", llmc_layernorm_last_error());

    expect(worst(f.residual, sum, N, C, STRIDE) == 0 && worst(f.out, y, N, C, STRIDE) < 1e-5f,
           "out, residual");
    expect(worst(a.dinp, dx, N, C, STRIDE) < 1e-5f, "dinp += ");
    expect(worst(a.dweight, dw, 1, C, C) < 1e-5f && worst(a.dbias, db, 1, C, C) < 1e-5f, "dweight, dbias +=");
}

static void test_numbers(void) {
    if (!open_gpu()) {
        test_without_gpu();
        return;
    }
    test_numbers_of(0);
    test_numbers_of(1);
    test_fp8_numbers();
}

int main(void) {
    setvbuf(stdout, NULL, _IONBF, 0);
    expect(llmc_layernorm_abi_version() == LLMC_LAYERNORM_ABI_VERSION, "library and header have one version");
    expect(llmc_layernorm_last_error()[0] == '\0', "no message at first");
    point_at_memory();
    test_structs();
    test_fp8();
    test_modulate();
    test_forward();
    test_backward();
    test_threads();
    test_numbers();
    printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    return failed > 0;
}

// A residual forward with row strides, and a backward that adds, in float32 on a GPU, against the formulas.
// The device's memory comes from the driver's library, opened by name: this is built where there is no CUDA.
#include <dlfcn.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "dev/test/c_abi/c_abi.h"
#include "llmc/layernorm/c_abi.h"

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

// the inputs, and what must come out: dx, dw and db have 1 in them already
static void fill(void) {
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
        for (int c = 0; c < C; c++) { mean += (double)row[c] / C; }
        for (int c = 0; c < C; c++) { variance += (row[c] - mean) * (row[c] - mean) / C; }
        double rstd = 1 / sqrt(variance + 1e-5);
        for (int c = 0; c < C; c++) {
            double xhat = (row[c] - mean) * rstd;
            y[i * STRIDE + c] = (float)(xhat * w[c] + b[c]);
            c1 += w[c] * d[c] / C;
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

static llmc_layernorm_forward_args forward_args(void) {
    llmc_layernorm_forward_args f;
    memset(&f, 0, sizeof f);
    f.struct_size = sizeof f;
    f.dtype = LLMC_LAYERNORM_FLOAT32;
    f.N = N, f.C = C, f.eps = 1e-5;
    return f;
}

static void test_without_gpu(void) {
    llmc_layernorm_forward_args f = forward_args();
    f.out = y, f.inp = x;
    expect(llmc_layernorm_forward(&f) == LLMC_LAYERNORM_DEVICE,
           "a good call without a GPU is a device error");
    expect(strstr(llmc_layernorm_last_error(), "cuda") != NULL, "which names CUDA's error");
    printf("no GPU (%s): its numbers are skipped\n", llmc_layernorm_last_error());
    skipped += 6;
}

void test_numbers(void) {
    if (!open_gpu()) {
        test_without_gpu();
        return;
    }
    static float ones[ROWS];
    for (int i = 0; i < ROWS; i++) { ones[i] = 1; }
    fill();
    llmc_layernorm_forward_args f = forward_args();
    f.out = on_gpu(NULL, ROWS), f.residual = on_gpu(NULL, ROWS);
    f.mean = on_gpu(NULL, N), f.rstd = on_gpu(NULL, N);
    f.inp = on_gpu(x, ROWS), f.inp2 = on_gpu(x2, ROWS), f.weight = on_gpu(w, C), f.bias = on_gpu(b, C);
    f.out_stride = f.inp_stride = f.residual_stride = f.inp2_stride = STRIDE;
    expect(llmc_layernorm_forward(&f) == LLMC_LAYERNORM_OK && synchronize() == 0, "forward on the GPU");

    llmc_layernorm_backward_args a;
    memset(&a, 0, sizeof a);
    a.struct_size = sizeof a;
    a.dtype = LLMC_LAYERNORM_FLOAT32;
    a.accumulate = a.accumulate_dinp = 1;
    a.dinp = on_gpu(ones, ROWS), a.dweight = on_gpu(ones, C), a.dbias = on_gpu(ones, C);
    a.dout = on_gpu(dy, ROWS), a.inp = f.residual, a.weight = f.weight, a.mean = f.mean, a.rstd = f.rstd;
    a.N = N, a.C = C;
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

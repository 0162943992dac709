// LayerNorm from C99 by libllmc_layernorm.so, of two rows on the first GPU. The memory is the driver's, so that nothing
// of the CUDA Toolkit is needed; a program that has the toolkit calls cudaMallocManaged. In the project's folder:
//   make build/libllmc_layernorm.so
//   cc -I. dev/test/c_abi/mine.c build/libllmc_layernorm.so -Wl,-rpath,$PWD/build -ldl -o mine && ./mine
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "llmc/layernorm/c_abi.h"

// of the driver; all return 0 if they went well
static int (*init)(unsigned), (*retain)(void** context, int device), (*set_current)(void* context);
static int (*allocate)(void** at, size_t bytes, unsigned flags), (*synchronize)(void);

static int find(const char* name, void* function) {
    void* driver = dlopen("libcuda.so.1", RTLD_NOW);
    void* found = driver != NULL ? dlsym(driver, name) : NULL;
    memcpy(function, &found, sizeof found);  // C99 has no cast from a pointer to data to one to a function
    return found != NULL;
}

int main(void) {
    const float rows[2][4] = {{1, 2, 3, 4}, {40, 30, 20, 10}};
    void *context = NULL, *memory = NULL;
    if (!find("cuInit", &init) || !find("cuDevicePrimaryCtxRetain", &retain) ||
        !find("cuCtxSetCurrent", &set_current) || !find("cuMemAllocManaged", &allocate) ||
        !find("cuCtxSynchronize", &synchronize) || init(0) != 0 || retain(&context, 0) != 0 ||
        set_current(context) != 0 || allocate(&memory, 2 * sizeof rows, 1) != 0) {
        puts("no GPU here");
        return 1;
    }
    float *x = memory, *y = x + 8;
    memcpy(x, rows, sizeof rows);
    // the fields that are not named are 0: no weight, no bias, no statistics, rows side by side, the default stream
    llmc_layernorm_forward_args a = {.struct_size = sizeof a,
                                     .dtype = LLMC_LAYERNORM_FLOAT32,
                                     .out = y,
                                     .inp = x,
                                     .N = 2,
                                     .C = 4,
                                     .eps = 1e-5};
    if (llmc_layernorm_forward(&a) != LLMC_LAYERNORM_OK || synchronize() != 0) {
        puts(llmc_layernorm_last_error());
        return 1;
    }
    for (int i = 0; i < 8; i++) { printf("%.3f%c", y[i], i % 4 == 3 ? '\n' : ' '); }
    return 0;
}

// The C interface of attention called from C99: wrong arguments get a code and a message, and never a GPU; calls without
// rows succeed. Its numbers are checked by dev/bench/bench_attention.py. Last line: N passed, N failed, N skipped; exit 1 if
// any failed.
#include <stdio.h>
#include <string.h>

#include "llmc/ops/attention/c_abi.h"

static int passed, failed;
static float memory[64] = {0};  // what pointers point to where nothing may be touched

static void expect(int ok, const char* what) {
    if (ok) {
        passed++;
    } else {
        failed++;
        printf("FAILED: %s; message \"%s\"\n", what, llmc_attention_last_error());
    }
}

// what a call is changed in before it must be refused
struct call {
    void *out, *workspace;
    int B, T, NH, HS, kernels;
};

static struct call sound(void) {
    struct call c = {memory, memory, 2, 100, 3, 64, LLMC_ATTENTION_BEST};
    return c;
}

// both functions return this code, with a message that holds this text
static void refused(struct call c, int code, const char* text) {
    int status =
        llmc_attention_forward(c.out, memory, memory, c.workspace, c.B, c.T, c.NH, c.HS, c.kernels, NULL);
    expect(status == code && strstr(llmc_attention_last_error(), text) != NULL, text);
    status = llmc_attention_backward(c.out, memory, memory, memory, memory, c.workspace, c.B, c.T, c.NH, c.HS,
                                     c.kernels, NULL);
    expect(status == code && strstr(llmc_attention_last_error(), text) != NULL, text);
}

static void test_arguments(void) {
    struct call c = sound();
    c.B = -1, refused(c, LLMC_ATTENTION_INVALID, "B is -1");
    c = sound(), c.T = -5, refused(c, LLMC_ATTENTION_INVALID, "T -5");
    c = sound(), c.NH = 0, refused(c, LLMC_ATTENTION_INVALID, "NH 0");
    c = sound(), c.HS = 0, refused(c, LLMC_ATTENTION_INVALID, "HS is 0, expected 1 to 128");
    c = sound(), c.HS = 129, refused(c, LLMC_ATTENTION_INVALID, "HS is 129");
    c = sound(), c.kernels = 3, refused(c, LLMC_ATTENTION_INVALID, "kernels is 3");
    c = sound(), c.kernels = -1, refused(c, LLMC_ATTENTION_INVALID, "kernels is -1");
    c = sound(), c.out = NULL, refused(c, LLMC_ATTENTION_INVALID, "is null, expected device memory");
    c = sound(), c.workspace = NULL, refused(c, LLMC_ATTENTION_INVALID, "workspace is null");
    c = sound(), c.out = (char*)memory + 2, refused(c, LLMC_ATTENTION_INVALID, "expected a multiple of 16");
    c = sound(), c.HS = 128, c.kernels = LLMC_ATTENTION_WGMMA;
    refused(c, LLMC_ATTENTION_UNSUPPORTED, "HS is 128, expected 64 on a Hopper GPU");
}

static void test_sizes(void) {
    expect(llmc_attention_abi_version() == LLMC_ATTENTION_ABI_VERSION, "the version is the header's");
    expect(llmc_attention_workspace(-1, 1, 1) == 0, "no workspace for a negative size");
    size_t one = llmc_attention_workspace(1, 1024, 12), four = llmc_attention_workspace(4, 1024, 12);
    expect(one > 0 && one % 256 == 0 && four > one, "a workspace grows with the batch");
    expect(llmc_attention_workspace(1, 1000, 12) == one, "a workspace is of whole tiles");
    expect(llmc_attention_forward(NULL, NULL, NULL, NULL, 0, 5, 1, 64, 0, NULL) == LLMC_ATTENTION_OK,
           "no sequence");
    expect(llmc_attention_backward(NULL, NULL, NULL, NULL, NULL, NULL, 5, 0, 1, 64, 0, NULL) ==
               LLMC_ATTENTION_OK,
           "no token");
    expect(strcmp(llmc_attention_last_error(), "") == 0, "no message after a call that succeeds");
}

int main(void) {
    test_arguments();
    test_sizes();
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed > 0;
}

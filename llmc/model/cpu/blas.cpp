// Matmul and attention of the CPU model: see cpu/blas.h. The only file that includes a BLAS.
#include "llmc/model/cpu/blas.h"

#include <cblas.h>
#include <omp.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <vector>

#include "llmc/host/base/error.h"
#include "llmc/host/base/floats.h"
#include "llmc/model/cpu/reference.h"
#include "llmc/ops/muon/muon.h"

namespace llmc {

namespace {

// ---- room for OpenBLAS, which takes buffers when it is loaded and when a thread first computes, and where there is no room
// for one tries for ever. Under a limit on the address space (ulimit -v) that is said instead.

constexpr size_t kBuffer = 128 << 20;  // bytes each, as Debian builds it; less in other builds
constexpr size_t kAtLoading = 2;       // buffers

// Instrumented code cannot run before the sanitizers have begun.
[[gnu::no_sanitize("address", "undefined")]] bool has_room(size_t bytes) {
    rlimit most;
    if (getrlimit(RLIMIT_AS, &most) != 0 || most.rlim_cur == RLIM_INFINITY) { return true; }
    void* room = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED) { return false; }
    munmap(room, bytes);
    return true;
}

constexpr char kNoRoom[] =
    "the address space is limited (ulimit -v), and too small for OpenBLAS, which would wait for ever. Allow "
    "more.\n";

[[gnu::no_sanitize("address", "undefined")]] void before_libraries(int, char**, char**) {
    if (has_room(kAtLoading * kBuffer)) { return; }
    (void)!write(STDERR_FILENO, kNoRoom, sizeof(kNoRoom) - 1);
    _exit(kExitDevice);
}

// the only code of a program that runs before that of its libraries
[[gnu::section(".preinit_array"), gnu::used]] void (*const kBeforeLibraries)(int, char**,
                                                                             char**) = before_libraries;

// Before the first product: room for the buffers of `threads` threads. Throws Error(kExitDevice). (The room that loading takes
// is looked at before that: the program then ends with exit code 4 before main.)
void require_blas_memory(int threads) {
    if (has_room((size_t)threads * kBuffer)) { return; }
    throw Error(kExitDevice,
                "the address space is limited (ulimit -v), and OpenBLAS needs {} MiB of it for {} threads. "
                "Allow more, or use fewer threads (OMP_NUM_THREADS).",
                (size_t)threads * kBuffer >> 20, threads);
}

// ---- the products

// out (M,N) = alpha op(a) op(b) + beta out, all row-major; op by the two transpose flags; K is summed over
void gemm(bool ta, bool tb, int64_t M, int64_t N, int64_t K, float alpha, const float* a, int64_t lda,
          const float* b, int64_t ldb, float beta, float* out, int64_t ldo) {
    [[maybe_unused]] static const bool has_room = (require_blas_memory(blas_threads()), true);
    cblas_sgemm(CblasRowMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans, (blasint)M,
                (blasint)N, (blasint)K, alpha, a, (blasint)lda, b, (blasint)ldb, beta, out, (blasint)ldo);
}

// Attention works on blocks of query rows: keys past the block's last row are never multiplied.
constexpr int kQueryBlock = 128;

}  // namespace

void matmul_forward_blas(float* out, int64_t ldo, const float* inp, const float* weight, const float* bias,
                         int64_t N, int C, int OC) {
    if (bias != nullptr) {
#pragma omp parallel for
        for (int64_t row = 0; row < N; row++) { std::copy(bias, bias + OC, out + row * ldo); }
    }
    gemm(false, true, N, OC, C, 1.0f, inp, C, weight, C, bias != nullptr ? 1.0f : 0.0f, out, ldo);
}

void matmul_backward_blas(float* dinp, float* dweight, float* dbias, const float* dout, int64_t ldo,
                          const float* inp, const float* weight, int64_t N, int C, int OC) {
    gemm(false, false, N, C, OC, 1.0f, dout, ldo, weight, C, 0.0f, dinp, C);
    gemm(true, false, OC, C, N, 1.0f, dout, ldo, inp, C, 1.0f, dweight, C);
    if (dbias != nullptr) { bias_backward_cpu(dbias, dout, N, OC, ldo); }
}

int64_t newton_schulz_scratch_blas(int rows, int cols) {
    const int64_t side = std::min(rows, cols);
    return 2 * side * side + (int64_t)rows * cols;
}

// Of symmetric products the upper triangle is computed, which is half of the work, and read.
void newton_schulz_blas(float* x, float* scratch, int rows, int cols) {
    const bool wide = rows <= cols;
    const int side = std::min(rows, cols), longer = std::max(rows, cols);
    const int64_t n = (int64_t)rows * cols, square = (int64_t)side * side;
    const auto inverse = (float)(1 / (global_norm_cpu(x, n) + kNewtonSchulzEps));
    for (int64_t i = 0; i < n; i++) { x[i] *= inverse; }
    float *a = scratch, *b = a + square, *next = b + square;
    for (int step = 0; step < kNewtonSchulzSteps; step++) {
        // a (side,side) = x x^T, or x^T x where x is tall
        cblas_ssyrk(CblasRowMajor, CblasUpper, wide ? CblasNoTrans : CblasTrans, side, longer, 1.0f, x, cols,
                    0.0f, a, side);
        for (int64_t i = 0; i < side; i++) {
            for (int64_t j = 0; j < i; j++) { a[i * side + j] = a[j * side + i]; }
        }
        std::copy(a, a + square, b);  // b = B a + C a a^T
        cblas_ssyrk(CblasRowMajor, CblasUpper, CblasNoTrans, side, side, (float)kNewtonSchulzC, a, side,
                    (float)kNewtonSchulzB, b, side);
        std::copy(x, x + n, next);  // x = A x + b x, or A x + x b where it is tall
        cblas_ssymm(CblasRowMajor, wide ? CblasLeft : CblasRight, CblasUpper, rows, cols, 1.0f, b, side, x,
                    cols, (float)kNewtonSchulzA, next, cols);
        std::copy(next, next + n, x);
    }
}

// scores of one block of queries, and their gradients
int64_t attention_scratch_blas(int T) { return 2 * (int64_t)kQueryBlock * T; }

// qkv's rows of a head are `stride` apart
void attention_forward_blas(float* out, float* lse, float* scratch, const float* qkv, int B, int T, int C,
                            int NH) {
    const int HS = C / NH, stride = 3 * C;
    const float scale = 1 / std::sqrt((float)HS);
    for (int64_t head = 0; head < (int64_t)B * NH; head++) {
        const int64_t b = head / NH, column = head % NH * HS;
        const float *q = qkv + b * T * stride + column, *k = q + C, *v = k + C;
        for (int first = 0; first < T; first += kQueryBlock) {
            int rows = std::min(kQueryBlock, T - first), keys = first + rows;
            float* scores = scratch;  // (rows, keys)
            gemm(false, true, rows, keys, HS, scale, q + (int64_t)first * stride, stride, k, stride, 0.0f,
                 scores, keys);
#pragma omp parallel for
            for (int r = 0; r < rows; r++) {
                float* s = scores + (int64_t)r * keys;
                int valid = first + r + 1;
                float largest = s[0];
#pragma omp simd reduction(max : largest)
                for (int j = 0; j < valid; j++) { largest = std::max(largest, s[j]); }
                double total = 0;
#pragma omp simd reduction(+ : total)
                for (int j = 0; j < valid; j++) { total += s[j] = exp_simd(s[j] - largest); }
                float inverse = (float)(1 / total);
#pragma omp simd
                for (int j = 0; j < valid; j++) { s[j] *= inverse; }
                std::fill(s + valid, s + keys, 0.0f);
                lse[head * T + first + r] = (float)(largest + std::log(total));
            }
            gemm(false, false, rows, HS, keys, 1.0f, scores, keys, v, stride, 0.0f,
                 out + (b * T + first) * C + column, C);
        }
    }
}

void attention_backward_blas(float* dqkv, float* scratch, const float* dout, const float* qkv,
                             const float* out, const float* lse, int B, int T, int C, int NH) {
    const int HS = C / NH, stride = 3 * C;
    const float scale = 1 / std::sqrt((float)HS);
    for (int64_t head = 0; head < (int64_t)B * NH; head++) {
        const int64_t b = head / NH, column = head % NH * HS;
        const float *queries = qkv + b * T * stride + column, *k = queries + C, *v = k + C;
        float *dq = dqkv + b * T * stride + column, *dk = dq + C, *dv = dk + C;
        // the last block sees every key, so it writes dk and dv; the others add
        int last = (T - 1) / kQueryBlock * kQueryBlock;
        for (int first = last; first >= 0; first -= kQueryBlock) {
            int rows = std::min(kQueryBlock, T - first), keys = first + rows;
            float* p = scratch;                          // (rows, keys) probabilities
            float* ds = scratch + (int64_t)rows * keys;  // and gradients of the scores
            float beta = first == last ? 0.0f : 1.0f;
            const float* d = dout + (b * T + first) * C + column;
            const float* y = out + (b * T + first) * C + column;
            const float* q = queries + (int64_t)first * stride;
            gemm(false, true, rows, keys, HS, scale, q, stride, k, stride, 0.0f, p, keys);
            gemm(false, true, rows, keys, HS, 1.0f, d, C, v, stride, 0.0f, ds, keys);
#pragma omp parallel for
            for (int r = 0; r < rows; r++) {
                float* pr = p + (int64_t)r * keys;
                float* dr = ds + (int64_t)r * keys;
                int valid = first + r + 1;
                float log_sum = lse[head * T + first + r];
                double dot = 0;
                for (int c = 0; c < HS; c++) { dot += (double)d[(int64_t)r * C + c] * y[(int64_t)r * C + c]; }
                float dot_f = (float)dot;
#pragma omp simd
                for (int j = 0; j < valid; j++) {
                    pr[j] = exp_simd(pr[j] - log_sum);
                    dr[j] = pr[j] * (dr[j] - dot_f) * scale;
                }
                std::fill(pr + valid, pr + keys, 0.0f);
                std::fill(dr + valid, dr + keys, 0.0f);
            }
            gemm(true, false, keys, HS, rows, 1.0f, p, keys, d, C, beta, dv, stride);
            gemm(true, false, keys, HS, rows, 1.0f, ds, keys, q, stride, beta, dk, stride);
            gemm(false, false, rows, HS, keys, 1.0f, ds, keys, k, stride, 0.0f, dq + (int64_t)first * stride,
                 stride);
        }
    }
}

int blas_threads() {
    openblas_set_num_threads(omp_get_max_threads());  // as its first product would
    return openblas_get_num_threads();
}
const char* blas_name() { return openblas_get_config(); }

double measure_blas_speed() {
    constexpr int kSize = 1024, kFirst = 4;  // the first are slow: threads start, idle cores speed up
    using Clock = std::chrono::steady_clock;
    constexpr std::chrono::duration<double> kFor(0.5);
    std::vector<float> a(kSize * kSize, 0.5f), b(kSize * kSize, 0.25f), out(kSize * kSize);
    auto begin = Clock::now();
    int repeat = 0;
    for (; repeat <= kFirst || Clock::now() - begin < kFor; repeat++) {
        if (repeat == kFirst) { begin = Clock::now(); }
        gemm(false, false, kSize, kSize, kSize, 1.0f, a.data(), kSize, b.data(), kSize, 0.0f, out.data(),
             kSize);
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    return (repeat - kFirst) * 2.0 * kSize * kSize * kSize / seconds;
}

}  // namespace llmc

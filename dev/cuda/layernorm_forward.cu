// The LayerNorm forward ladder: every version checked against the CPU reference and timed against the roof.
//   make dev/cuda/layernorm_forward && dev/cuda/layernorm_forward            all versions
//   dev/cuda/layernorm_forward v2 --shape 8192x768 --dtype fp32             one of them, one shape
//   dev/cuda/layernorm_forward --check                                      correctness only
// Read llmc/layernorm_forward/v0.h first, then `make diff-layernorm_forward-1-2`, and so on up.
#include "dev/cuda/harness.cuh"
#include "dev/cuda/layernorm_problems.h"
#include "dev/cuda/layernorm_shipped.cuh"
#include "llmc/layernorm_forward/v0.h"
#include "llmc/layernorm_forward/v1.cuh"
#include "llmc/layernorm_forward/v2.cuh"

using namespace llmc;

template <typename T>
using Launch = void(T* out, acc_t<T>* mean, acc_t<T>* rstd, const T* inp, const T* weight, const T* bias,
                    int64_t N, int C, float eps, cudaStream_t stream, int block);

template <typename T>
Version rung(const char* name, const char* idea, std::function<Launch<T>> launch,
             Sums (*sums)(int64_t N, int C, int block), const Traits& traits = {}) {
    auto run = [launch](const TensorSet& t, const Problem& p, int block, cudaStream_t stream) {
        launch(t.get<T>("out"), t.get<acc_t<T>>("mean"), t.get<acc_t<T>>("rstd"), t.get<T>("inp"),
               t.get<T>("weight"), t.get<T>("bias"), p.N, p.C, p.eps, stream, block);
    };
    return {.name = name, .idea = idea, .launch = run, .sums = sums, .traits = traits};
}

// how each version adds (bounds.h), in additions that one element goes through
Sums sums_v1(int64_t, int C, int) { return {.row = (double)C}; }
Sums sums_v2(int64_t, int C, int) {
    constexpr int kShuffles = 5;  // log2 of a warp
    return {.row = (double)ceil_div(C, kWarp) + kShuffles};
}

template <typename T>
std::vector<Version> ladder() {
    return {
        rung<T>("v1", "thread per row", v1::layernorm_forward<T>, sums_v1),
        rung<T>("v2", "warp per row", v2::layernorm_forward<T>, sums_v2),
        shipped_forward<T>(),
    };
}

// rows as (B, T): 8 sequences where N allows it
void run_cpu(FloatTensors& out, const FloatTensors& in, const Problem& p) {
    int B = p.N % 8 == 0 ? 8 : 1;
    v0::layernorm_forward_cpu(out[0].data(), out[1].data(), out[2].data(), in[0].data(), in[1].data(),
                              in[2].data(), B, (int)p.N / B, p.C, p.eps);
}

std::vector<Version> ladder_for(Dtype dtype) {
    if (dtype == Dtype::kFp64) { return {shipped_forward<double>()}; }
    if (dtype == Dtype::kFp32) { return ladder<float>(); }
    return dtype == Dtype::kBf16 ? ladder<__nv_bfloat16>() : ladder<__half>();
}

int main(int argc, char** argv) {
    Shootout shootout{
        .op = "layernorm_forward",
        .cpu = {.name = "v0",
                .idea = "one CPU thread, float sums",
                .run = run_cpu,
                .sums = [](int64_t, int C) { return Sums{.row = (double)C, .from_first = false}; },
                .shape = {2048, 768}},
        .ladder = ladder_for,
        .problem = layernorm_forward_problem,
        .checks = all_layernorm_checks(false),
        .races = layernorm_races(),
        .sweep = layernorm_sweep(),
    };
    return shootout_main(shootout, argc, argv);
}

// The LayerNorm backward ladder: every version checked against the CPU reference and timed against the roof.
//   make dev/cuda/layernorm_backward && dev/cuda/layernorm_backward          all versions
//   dev/cuda/layernorm_backward v2 --shape 8192x768 --dtype fp32            one of them, one shape
//   dev/cuda/layernorm_backward ship --accumulate                          dinp += instead of =
//   dev/cuda/layernorm_backward --check                                     correctness only
// The mathematics: llmc/reference.h. Read llmc/layernorm_backward/v0.h first, then up, as in forward.
#include "dev/cuda/harness.cuh"
#include "dev/cuda/layernorm_problems.h"
#include "dev/cuda/layernorm_shipped.cuh"
#include "llmc/layernorm_backward/v0.h"
#include "llmc/layernorm_backward/v1.cuh"
#include "llmc/layernorm_backward/v2.cuh"

using namespace llmc;

template <typename T>
using Launch = void(T* dinp, T* dweight, T* dbias, void* scratch, const T* dout, const T* inp,
                    const T* weight, const acc_t<T>* mean, const acc_t<T>* rstd, int64_t N, int C,
                    cudaStream_t stream, int block);

template <typename T>
Version rung(const char* name, const char* idea, std::function<Launch<T>> launch,
             size_t (*scratch)(int64_t N, int C), Sums (*sums)(int64_t N, int C, int block),
             const Traits& traits = {}) {
    auto run = [launch](const TensorSet& t, const Problem& p, int block, cudaStream_t stream) {
        launch(t.get<T>("dinp"), t.get<T>("dweight"), t.get<T>("dbias"), t.scratch(), t.get<T>("dout"),
               t.get<T>("inp"), t.get<T>("weight"), t.get<acc_t<T>>("mean"), t.get<acc_t<T>>("rstd"), p.N,
               p.C, stream, block);
    };
    return {.name = name, .idea = idea, .launch = run, .sums = sums, .scratch = scratch, .traits = traits};
}

// how each version adds (bounds.h), in additions that one element goes through
Sums sums_v1(int64_t N, int C, int) { return {.row = (double)C, .column = (double)N}; }
Sums sums_v2(int64_t N, int C, int block) {
    constexpr int kShuffles = 5;  // log2 of a warp
    int warps = block / kWarp;
    double rows_per_warp = (double)ceil_div(ceil_div(N, v2::kGroups), warps);
    return {.row = (double)ceil_div(C, kWarp) + kShuffles, .column = rows_per_warp + warps + v2::kGroups};
}

template <typename T>
std::vector<Version> ladder() {
    return {
        rung<T>("v1", "thread per row, thread per column", v1::layernorm_backward<T>,
                v1::layernorm_backward_scratch<T>, sums_v1),
        rung<T>("v2", "warp per row, tiles of columns", v2::layernorm_backward<T>,
                v2::layernorm_backward_scratch<T>, sums_v2),
        shipped_backward<T>(),
    };
}

// rows as (B, T): 8 sequences where N allows it
void run_cpu(FloatTensors& out, const FloatTensors& in, const Problem& p) {
    int B = p.N % 8 == 0 ? 8 : 1;
    v0::layernorm_backward_cpu(out[0].data(), out[1].data(), out[2].data(), in[0].data(), in[1].data(),
                               in[2].data(), in[3].data(), in[4].data(), B, (int)p.N / B, p.C);
}

std::vector<Version> ladder_for(Dtype dtype) {
    if (dtype == Dtype::kFp64) { return {shipped_backward<double>()}; }
    if (dtype == Dtype::kFp32) { return ladder<float>(); }
    return dtype == Dtype::kBf16 ? ladder<__nv_bfloat16>() : ladder<__half>();
}

int main(int argc, char** argv) {
    Shootout shootout{
        .op = "layernorm_backward",
        .cpu = {.name = "v0",
                .idea = "one CPU thread, float sums",
                .run = run_cpu,
                .sums = [](int64_t N, int C) { return Sums{.row = (double)C, .column = (double)N}; },
                .shape = {2048, 768}},
        .ladder = ladder_for,
        .problem = layernorm_backward_problem,
        .checks = all_layernorm_checks(true),
        .races = layernorm_races(),
        .sweep = layernorm_sweep(),
        .accumulates = true,
    };
    return shootout_main(shootout, argc, argv);
}

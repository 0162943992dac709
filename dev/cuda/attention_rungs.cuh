// What the two shootouts of attention have alike: what they say of their rungs, and the roof.
#pragma once
#include "dev/cuda/attention_problems.h"
#include "dev/cuda/shootout.cuh"
#include "llmc/cuda/device.cuh"
#include "llmc/cuda/device_facts.cuh"
#include "llmc/cuda/measuring.cuh"
#include "llmc/ops/attention/attention.h"
#include "llmc/ops/attention/choose.h"
#include "llmc/ops/attention/ladder/rungs.h"
#include "llmc/ops/matmul/matmul.h"

namespace llmc {

using bf16 = __nv_bfloat16;

inline int sequences_of(const Problem& p) { return (int)(p.N / p.T); }
inline int heads_of(const Problem& p) { return p.C / kHeadColumns; }

// The rungs are of bf16.
inline bool takes_bf16(const Problem& p) { return p.dtype == Dtype::kBf16; }
inline bool takes_wgmma(const Problem& p) {
    return takes_bf16(p) && p.T >= kWgmmaLeastT && has_attention_wgmma();
}

inline Scratch scratch_for(AttentionScratch* bytes) {
    return [bytes](const Problem& p) { return bytes(sequences_of(p), p.T, heads_of(p)); };
}
// v1's scores: beyond this, with a ring of buffers, there is no room for them
template <AttentionScratch* bytes>
bool takes_scores(const Problem& p) {
    constexpr size_t kMost = (size_t)8 << 30;
    return takes_bf16(p) && bytes(sequences_of(p), p.T, heads_of(p)) <= kMost;
}

// bounds do not ask how a version adds
inline Version attention_rung(const char* name, const char* idea,
                              std::function<void(const TensorSet&, const Problem&, int)> launch,
                              bool (*takes)(const Problem&), Scratch scratch = no_scratch) {
    return {.name = name,
            .idea = idea,
            .launch = std::move(launch),
            .sums = [](int64_t, int, int) { return Sums{}; },
            .scratch = std::move(scratch),
            .traits = {.blocks = {0}, .takes = takes}};
}

// ---- the roof
// Attention's roof: the longest of three times, each of which no version can be faster than:
//   products       those of the 64 x 64 tiles up to the diagonal, 2 forward and 5 backward, at the rate of a large product by
//                  cuBLASLt
//   exponentials   one for each pair of a query and a key, at the rate of a kernel that computes nothing else
//   bytes          what must be read and written once, at the rate of a kernel that only copies (roof.cuh)
// The rates are measured in the process, the first two once.

// operations a microsecond
inline double measure_products() {
    constexpr int n = 8192;
    DeviceMemory workspace(Matmul::kWorkspace), a(sizeof(bf16) * n * n), b(sizeof(bf16) * n * n),
        out(sizeof(bf16) * n * n);
    for (const DeviceMemory* matrix : {&a, &b}) { fill_bf16((bf16*)matrix->data(), (int64_t)n * n, kStream); }
    Matmul matmul(workspace.data(), false);
    Replay replay(1, [&](int) {
        matmul.forward((bf16*)out.data(), (bf16*)a.data(), (bf16*)b.data(), (const bf16*)nullptr, n, n, n,
                       kStream);
    });
    return 2.0 * n * n * n / replay.time(kWarmupReplays, kReplays).median;
}

// a microsecond
inline double measure_exponentials() {
    constexpr int kThreads = 1024, kSteps = 4096;
    unsigned blocks = 2 * device_facts().multiprocessors;
    DeviceMemory out(sizeof(float));
    Replay replay(1, [&](int) { exponentials((float*)out.data(), kSteps, blocks, kThreads, kStream); });
    return (double)blocks * kThreads * kSteps * kExponentialChains /
           replay.time(kWarmupReplays, kReplays).median;
}

// the first two of a problem
inline std::vector<std::pair<const char*, double>> attention_floors(const Problem& p) {
    static const double products = measure_products(), exponentials = measure_exponentials();
    double heads = (double)p.N / p.T * (p.C / kHeadColumns), rows = ceil_div(p.T, 64);
    double tiles = heads * rows * (rows + 1) / 2, pairs = heads * p.T * (p.T + 1.0) / 2;
    double product = 2.0 * 64 * 64 * kHeadColumns;  // of two tiles
    return {{"products", tiles * (p.writes == 1 ? 2 : 5) * product / products},
            {"exponentials", pairs / exponentials}};
}

inline Shootout attention_shootout(const char* op, decltype(CpuVersion::run) run_cpu,
                                   decltype(Shootout::ladder) ladder, decltype(Shootout::problem) problem) {
    return {
        .op = op,
        .cpu = {.run = run_cpu, .sums = [](int64_t, int) { return Sums{}; }, .shape = sequences(1, 2, 256)},
        .ladder = ladder,
        .problem = problem,
        .checks = attention_checks(),
        .races = attention_races(),
        .sequences = true,
        .floors = attention_floors};
}

}  // namespace llmc

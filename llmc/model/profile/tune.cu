// The search of --tune-gemm: see profile/profile.h; how algorithms are timed: llmc/ops/matmul/search.cuh.
#include "llmc/model/profile/profile.h"

#include <cuda_bf16.h>
#include <chrono>
#include <cstdio>

#include "llmc/cuda/hold.cuh"
#include "llmc/host/base/text.h"
#include "llmc/host/files/file_io.h"
#include "llmc/model/gpu/network.cuh"
#include "llmc/model/run/plan.h"

namespace llmc {

namespace {

constexpr double kWarmSeconds = 5;  // clocks and temperature settle
// in which the host gets ahead of the GPU: small products would else wait for it
constexpr int kHoldMicroseconds = 15000;

void print(const MatmulChoices& found, double seconds) {
    std::printf("m      n      k      epilogue sum | first us  best us | tried, bits\n");
    for (const MatmulChoice& c : found.choices) {
        std::printf("%-6lld %-6lld %-6lld %8lld %3s | %8.1f %8.1f | %lld, %s\n", (long long)c.kind.m,
                    (long long)c.kind.n, (long long)c.kind.k, (long long)c.kind.epilogue,
                    c.kind.accumulate ? "+=" : "=", 1e3 * c.first_ms, 1e3 * c.ms, (long long)c.proposals,
                    c.same_bits ? "the first's" : "others");
    }
    std::printf("searched for %.0f seconds\n", seconds);
}

}  // namespace

template <typename T, typename Grad>
void tune_products(const Options& given) {
    Options o = given;
    o.tune_gemm.clear();
    put_text(stdout, "--tune-gemm: " + given.tune_gemm + " is not there; searching\n");
    std::fflush(stdout);
    DataLoader data(o.train_data, o.seq_len, o.seed, o.raw_tokens);
    RunPlan plan = make_run_plan(&o, data);
    GPT2<T, Grad> model(plan.config, o.batch, o.seq_len, model_settings(o));
    model.init(o.seed);
    // the second one's gradients are added
    std::vector<Batch> batches(std::min<int64_t>(2, plan.micro_batches));
    for (size_t k = 0; k < batches.size(); k++) { data.read((int64_t)k * o.batch, o.batch, &batches[k]); }
    GPT2Network<T, Grad>& network = model.network();
    auto pass = [&] {
        hold(kHoldMicroseconds, network.stream);
        model.forward_backward(batches);
    };
    auto start = std::chrono::steady_clock::now();
    auto seconds = [&] {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    };
    while (seconds() < kWarmSeconds) { pass(); }
    network.matmul.begin_search();
    do { pass(); } while (network.matmul.next_pass(network.stream));
    const MatmulChoices found = network.matmul.end_search();
    print(found, seconds());
    const std::string json = to_json(found);
    FileWriter file(given.tune_gemm);
    file.write(json.data(), json.size());
    file.commit();
    put_text(stdout, "written: " + given.tune_gemm + "\n");
}

template void tune_products<float, float>(const Options&);
template void tune_products<__nv_bfloat16, float>(const Options&);
template void tune_products<__nv_bfloat16, __nv_bfloat16>(const Options&);

}  // namespace llmc

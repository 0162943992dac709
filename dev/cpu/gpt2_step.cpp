// Times one training step of the CPU model, and how much of it is spent inside BLAS calls.
//   make build/dev/cpu/gpt2_step && build/dev/cpu/gpt2_step [layers heads channels vocab B T steps]
// Default: 6 6 384 257 4 256 20. Prints medians; dev/bench/bench_pytorch_cpu.py times PyTorch on the same
// shape.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "llmc/host/base/philox.h"
#include "llmc/host/base/resources.h"
#include "llmc/model/cpu/blas.h"
#include "llmc/model/cpu/gpt2.h"

using namespace llmc;

int main(int argc, char** argv) {
    wait_politely(argv);
    settle_threads();
    int sizes[7] = {6, 6, 384, 257, 4, 256, 20};
    for (int i = 1; i < argc && i <= 7; i++) { sizes[i - 1] = (int)std::strtol(argv[i], nullptr, 10); }
    auto [layers, heads, channels, vocab, B, T, steps] = sizes;
    GPT2Config config{T, vocab, padded_vocab(vocab), layers, heads, channels};
    GPT2Cpu model(config, B, T);
    model.init(1);
    Batch batch{B, T, {}, {}};
    for (int64_t i = 0; i < (int64_t)B * T; i++) {
        auto bits = random_bits(1, RandomUse::kFixture, 0, 0, i);
        batch.tokens.push_back((int32_t)(bits[0] % vocab));
        batch.targets.push_back((int32_t)(bits[1] % vocab));
    }
    std::vector<double> step_ms, blas_ms;
    for (int step = -3; step < steps; step++) {  // three to warm up
        auto begin = std::chrono::steady_clock::now();
        double blas = blas_seconds();
        model.enqueue_step(std::span(&batch, 1), {step, 1e-4, 0.9, 0.95, 1e-8, 0.1, 1.0});
        if (step < 0) { continue; }
        step_ms.push_back(
            std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
        blas_ms.push_back((blas_seconds() - blas) * 1e3);
    }
    std::nth_element(step_ms.begin(), step_ms.begin() + steps / 2, step_ms.end());
    std::nth_element(blas_ms.begin(), blas_ms.begin() + steps / 2, blas_ms.end());
    double step = step_ms[steps / 2], blas = blas_ms[steps / 2];
    std::printf("%s\n%d layers, %d channels, vocabulary %d, B %d, T %d, %d threads\n", blas_name(), layers,
                channels, vocab, B, T, blas_threads());
    std::printf("step %.1f ms | inside BLAS %.1f ms | step / BLAS %.3f | %.0f tokens/s\n", step, blas,
                step / blas, B * T / step * 1e3);
}

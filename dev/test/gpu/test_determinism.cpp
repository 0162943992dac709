// The same call gives the same bits, every time: each op, run again into fresh memory. LayerNorm: test_layernorm_repeats.cpp;
// the optimizers: test_optimizers.cpp.
#include "dev/test/gpu/attention_check.h"
#include "llmc/host/tokens/dataloader.h"
#include "llmc/ops/classifier/classifier.h"
#include "llmc/ops/column_sums/bias.h"
#include "llmc/ops/encoder.h"
#include "llmc/ops/gelu.h"
#include "llmc/ops/matmul/matmul.h"

using namespace llmc;
using namespace llmc::gpu_test;

namespace {

// enough rows for many blocks, and no size a multiple of a tile
constexpr int kB = 5, kT = 301, kNH = 5, kHS = 64, kC = kNH * kHS + 1, kOC = 770, kV = 1031, kVp = 1088;
constexpr int kN = kB * kT;

template <typename T>
std::string named(const char* op) {
    return fmt::format("{} {}", op, type_name<T>());
}

template <typename T>
void check_encoder() {
    std::vector<int32_t> several = random_tokens(kN, kV, 1);
    for (int i = 0; i < kN; i += 2) { several[i] = 7; }  // half of the sums go to one row
    DeviceArray<int32_t> tokens(several);
    DeviceArray<T> dout(floats((int64_t)kN * kC, 2));
    check_rerun(named<T>("encoder_backward"), [&] {
        DeviceArray<float> dwte(floats((int64_t)kV * kC, 3)), dwpe((int64_t)kT * kC);
        Scratch scratch(encoder_backward_scratch(kB, kT, kC, kV));
        encoder_backward(dwte.data(), dwpe.data(), scratch.data(), dout.data(), tokens.data(), kB, kT, kC, kV,
                         false, kStream);
        return bytes_of(dwte, dwpe);
    });
    DeviceArray<T> wte(floats((int64_t)kV * kC, 3)), wpe(floats((int64_t)kT * kC, 4));
    check_rerun(named<T>("encoder_forward"), [&] {
        DeviceArray<T> out((int64_t)kN * kC);
        encoder_forward(out.data(), tokens.data(), wte.data(), wpe.data(), kB, kT, kC, kStream);
        return bytes_of(out);
    });
}

template <typename T>
void check_attention() {
    constexpr int64_t n = (int64_t)kN * kNH * kHS;
    DeviceArray<T> qkv(floats(3 * n, 1)), dout(floats(n, 2)), out(n);
    DeviceArray<float> lse((int64_t)kB * kNH * kT);
    Counters counters;
    auto forward = [&] {
        attention_forward<T>({out.data(), lse.data(), counters.data(), qkv.data(), kB, kT, kNH, kHS},
                             kStream);
        return bytes_of(out, lse);
    };
    check_rerun(named<T>("attention_forward"), forward);
    check_rerun(named<T>("attention_backward"), [&] {
        DeviceArray<T> dqkv(3 * n);
        Scratch scratch(attention_backward_scratch(kB, kT, kNH));
        attention_backward<T>({dqkv.data(), scratch.data(), counters.data(), dout.data(), qkv.data(),
                               out.data(), lse.data(), kB, kT, kNH, kHS},
                              kStream);
        return bytes_of(dqkv);
    });
}

// with a new handle and workspace each time, and sizes chosen for each time
template <typename T>
void check_matmul(bool tf32) {
    DeviceArray<T> inp(floats((int64_t)kN * kC, 1)), weight(floats((int64_t)kOC * kC, 2)),
        bias(floats(kOC, 3)), dout(floats((int64_t)kN * kOC, 4)), before(floats((int64_t)kN * kC, 5));
    check_rerun(named<T>(tf32 ? "matmul tf32" : "matmul"), [&] {
        Scratch workspace(Matmul::kWorkspace);
        Matmul matmul(workspace.data(), tf32);
        DeviceArray<T> out((int64_t)kN * kOC), gelu((int64_t)kN * kOC), pre((int64_t)kN * kOC),
            dinp((int64_t)kN * kC), dinp_gelu((int64_t)kN * kC);
        DeviceArray<float> dweight(floats((int64_t)kOC * kC, 6));
        matmul.forward(out.data(), inp.data(), weight.data(), bias.data(), kN, kC, kOC, kStream);
        matmul.forward_gelu(gelu.data(), pre.data(), inp.data(), weight.data(), bias.data(), kN, kC, kOC,
                            kStream);
        matmul.backward_input(dinp.data(), dout.data(), weight.data(), kN, kC, kOC, kStream);
        matmul.backward_input_gelu(dinp_gelu.data(), dout.data(), weight.data(), before.data(), kN, kC, kOC,
                                   kStream);
        matmul.backward_weight(dweight.data(), dout.data(), inp.data(), kN, kC, kOC, true, kStream);
        return bytes_of(out, gelu, pre, dinp, dinp_gelu, dweight);
    });
    check_rerun(named<T>("bias_backward"), [&] {
        DeviceArray<float> dbias(kOC);
        Scratch scratch(bias_backward_scratch(kOC));
        bias_backward(dbias.data(), scratch.data(), dout.data(), kN, kOC, false, kStream);
        return bytes_of(dbias);
    });
}

template <typename T>
void check_gelu() {
    DeviceArray<T> inp(floats((int64_t)kN * kC, 1)), dout(floats((int64_t)kN * kC, 2));
    check_rerun(named<T>("gelu"), [&] {
        DeviceArray<T> out(inp.size()), dinp(inp.size());
        gelu_forward(out.data(), inp.data(), inp.size(), kStream);
        gelu_backward(dinp.data(), dout.data(), inp.data(), inp.size(), kStream);
        return bytes_of(out, dinp);
    });
}

template <typename T>
void check_classifier() {
    DeviceArray<int32_t> targets(random_tokens(kN, kV, 1));
    DeviceArray<float> dloss(Floats{1.0f / kN});
    check_rerun(named<T>("classifier"), [&] {
        DeviceArray<T> logits(floats((int64_t)kN * kVp, 2, 3));
        DeviceArray<float> losses(kN), losses_again(kN);
        DeviceArray<int32_t> predicted(kN);
        DeviceArray<double> sum(1);
        classifier_forward(losses.data(), predicted.data(), logits.data(), targets.data(), kN, kV, kVp,
                           kStream);
        classifier_forward_backward(logits.data(), losses_again.data(), targets.data(), dloss.data(), kN, kV,
                                    kVp, kStream);
        sum_losses(sum.data(), losses.data(), kN, false, kStream);
        return bytes_of(logits, losses, losses_again, predicted, sum);
    });
}

}  // namespace

TEST_CASE_TEMPLATE("the same bits again", T, float, bf16) {
    SUBCASE("encoder") { check_encoder<T>(); }
    SUBCASE("attention") { check_attention<T>(); }
    SUBCASE("matmul") { check_matmul<T>(false); }
    SUBCASE("gelu") { check_gelu<T>(); }
    SUBCASE("classifier") { check_classifier<T>(); }
}

TEST_CASE("the same bits again: matmul tf32") { check_matmul<float>(true); }

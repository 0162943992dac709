// The gradient of a bias, column sums of dout, against the reference.
#include <utility>

#include "dev/test/gpu/layer_test.h"
#include "llmc/model/cpu/reference.h"
#include "llmc/ops/column_sums/bias.h"

using namespace llmc;
using namespace llmc::gpu_test;

namespace {

// a column's sum over N rows in fp32, the addition to what was there, the rounding to Grad. The arrays may
// begin some elements off their alignment.
template <typename T, typename Grad>
void check_bias_backward(int64_t N, int OC, bool accumulate, int dout_offset = 0, int dbias_offset = 0) {
    DeviceArray<T> dout(floats(N * OC, 1), dout_offset);
    DeviceArray<Grad> dbias(accumulate ? floats(OC, 2) : Floats(OC, NAN), dbias_offset);
    Scratch scratch(bias_backward_scratch(OC));
    bias_backward(dbias.data(), scratch.data(), dout.data(), N, OC, accumulate, kStream);
    Vector expected = accumulate ? dbias.values() : Vector(OC, 0.0), terms = absolute(expected);
    bias_backward_cpu(expected.data(), dout.values().data(), N, OC, OC);
    bias_backward_cpu(terms.data(), absolute(dout.values()).data(), N, OC, OC);
    std::string name = "bias_backward dbias " + type_names<T, Grad>() +
                       fmt::format("{} N={} OC={}", accumulate ? " +=" : "", (int)N, OC);
    expect_near(name, dbias, expected,
                [&](size_t i) { return stored<Grad>(u * (additions(N) + 2) * terms[i], expected[i]); });
    check_guards(name + " scratch", scratch);
    expect_unchanged(name, dout);
}

}  // namespace

TEST_CASE_TEMPLATE("bias_backward", T, float, bf16) {
    constexpr std::pair<int, int> shapes[] = {{1, 1},     {3, 3},       {17, 65},     {1000, 769}, {4099, 65},
                                              {4099, 64}, {1023, 4800}, {4099, 3072}, {300, 12800}};
    for (auto [N, OC] : shapes) {
        for (bool accumulate : {false, true}) {
            check_bias_backward<T, float>(N, OC, accumulate);
            if (!std::is_same_v<T, float>) { check_bias_backward<T, T>(N, OC, accumulate); }
        }
    }
}

// rows of whole 16-byte vectors that lie on no 16 bytes
TEST_CASE_TEMPLATE("bias_backward: arrays one element off their alignment", T, float, bf16) {
    for (auto [dout, dbias] : {std::pair{1, 0}, {0, 1}}) {
        CAPTURE(dout);
        check_bias_backward<T, float>(17, 768, true, dout, dbias);
        if (!std::is_same_v<T, float>) { check_bias_backward<T, T>(17, 768, true, dout, dbias); }
    }
}

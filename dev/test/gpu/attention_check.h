// One call of attention on the GPU, forward and backward, held against the reference.
#pragma once
#include "dev/cuda/attention_problems.h"
#include "dev/test/gpu/layer_test.h"
#include "llmc/model/cpu/reference.h"
#include "llmc/ops/attention/attention.h"

namespace llmc::gpu_test {

// bytes of two arrays on the device that differ, counted 4 at a time; bytes is a multiple of 4: test_wgmma.cu
int64_t count_differences(const void* a, const void* b, int64_t bytes);

// attention's counters, which every call leaves at 0
struct Counters : DeviceArray<unsigned> {
    Counters() : DeviceArray(std::vector<unsigned>(kAttentionCounters, 0)) {}
};

// The calls that are tested: attention.h's, or those of one set of kernels.
template <typename Real>
struct AttentionCalls {
    void (*forward)(const AttentionForward<Real>& call, cudaStream_t stream) = attention_forward<Real>;
    void (*backward)(const AttentionBackward<Real>& call, cudaStream_t stream) = attention_backward<Real>;
};

// The truth of forward, and of backward from out and lse as forward would have stored them.
template <typename Real>
struct AttentionTruth {
    Vector out, lse, stored_out, stored_lse, dqkv;
    AttentionBounds bounds;

    AttentionTruth(const AttentionShape& s, const Vector& qkv, const Vector& dout)
        : out(s.elements()), lse((int64_t)s.B * s.NH * s.T), dqkv(3 * s.elements()) {
        attention_forward_cpu(out.data(), lse.data(), qkv.data(), s.B, s.T, s.C(), s.NH);
        stored_out = rounded<Real>(out);
        stored_lse = rounded<float>(lse);
        attention_backward_cpu(dqkv.data(), dout.data(), qkv.data(), stored_out.data(), stored_lse.data(),
                               s.B, s.T, s.C(), s.NH);
        bounds = attention_bounds(s, kAttentionRounding<Real>, qkv, dout, stored_out, stored_lse);
    }
};

template <typename Real>
void check_attention(const AttentionShape& s, const Floats& given_qkv, const Floats& given_dout,
                     const AttentionCalls<Real>& calls = {}) {
    DeviceArray<Real> qkv(given_qkv), dout(given_dout);
    AttentionTruth<Real> truth(s, qkv.values(), dout.values());
    std::string shape = fmt::format("{} ", type_name<Real>()) + s.text();

    Counters counters;
    DeviceArray<Real> out(s.elements());
    DeviceArray<float> lse((int64_t)s.B * s.NH * s.T);
    calls.forward({out.data(), lse.data(), counters.data(), qkv.data(), s.B, s.T, s.NH, s.HS}, kStream);
    expect_near("attention_forward out " + shape, out, truth.out,
                [&](size_t i) { return stored<Real>(truth.bounds.out[i], truth.out[i]); });
    expect_near("attention_forward lse " + shape, lse, truth.lse,
                [&](size_t i) { return stored<float>(truth.bounds.lse[i], truth.lse[i]); });

    DeviceArray<Real> given_out(convert<float>(truth.stored_out)), dqkv(3 * s.elements());
    DeviceArray<float> given_lse(convert<float>(truth.stored_lse));
    Scratch scratch(attention_backward_scratch(s.B, s.T, s.NH));
    calls.backward({dqkv.data(), scratch.data(), counters.data(), dout.data(), qkv.data(), given_out.data(),
                    given_lse.data(), s.B, s.T, s.NH, s.HS},
                   kStream);
    expect_near("attention_backward dqkv " + shape, dqkv, truth.dqkv,
                [&](size_t i) { return stored<Real>(truth.bounds.dqkv[i], truth.dqkv[i]); });
    check_guards("attention_backward scratch " + shape, scratch);
    expect_unchanged("attention " + shape, qkv, dout, given_out, given_lse, counters);
}

// The gradient of qkv's bias: of the dqkv that attention_backward() gives, the sums over all rows in fp32, the addition to
// what was there, the rounding to Grad.
template <typename Real, typename Grad>
void check_attention_bias(const AttentionShape& s, bool accumulate) {
    const int64_t N = (int64_t)s.B * s.T, columns = 3 * s.C();
    const DeviceArray<Real> qkv(floats(N * columns, 1)), dout(floats(s.elements(), 2));
    DeviceArray<Real> out(s.elements()), plain(N * columns), dqkv(N * columns);
    DeviceArray<float> lse((int64_t)s.B * s.NH * s.T);
    DeviceArray<Grad> dbias(accumulate ? floats(columns, 3) : Floats(columns, NAN));
    Counters counters;
    Scratch scratch(attention_backward_bias_scratch(s.B, s.T, s.NH, s.HS));
    attention_forward<Real>({out.data(), lse.data(), counters.data(), qkv.data(), s.B, s.T, s.NH, s.HS},
                            kStream);
    attention_backward<Real>({plain.data(), scratch.data(), counters.data(), dout.data(), qkv.data(),
                              out.data(), lse.data(), s.B, s.T, s.NH, s.HS},
                             kStream);
    Vector expected = accumulate ? dbias.values() : Vector(columns, 0.0), terms = absolute(expected);
    attention_backward_bias<Real>(dbias.data(), accumulate,
                                  {dqkv.data(), scratch.data(), counters.data(), dout.data(), qkv.data(),
                                   out.data(), lse.data(), s.B, s.T, s.NH, s.HS},
                                  kStream);
    const std::string name =
        "attention_backward_bias dbias " + type_names<Real, Grad>() + (accumulate ? " += " : " ") + s.text();
    expect_same(name + ": dqkv", dqkv, plain.download());
    const Vector rows = DeviceArray<Real>::widened(plain.download());
    bias_backward_cpu(expected.data(), rows.data(), N, columns, columns);
    bias_backward_cpu(terms.data(), absolute(rows).data(), N, columns, columns);
    expect_near(name, dbias, expected,
                [&](size_t i) { return stored<Grad>(u * (additions(N) + 2) * terms[i], expected[i]); });
    check_guards(name + " scratch", scratch);
    expect_unchanged(name, qkv, dout, counters);
}

template <typename Real>
void check_attention(const AttentionShape& s, const AttentionCalls<Real>& calls = {}) {
    check_attention<Real>(s, floats(3 * s.elements(), 1, s.scale), floats(s.elements(), 2), calls);
}

}  // namespace llmc::gpu_test

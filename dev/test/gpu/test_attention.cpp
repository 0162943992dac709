// Causal self-attention on the GPU against the reference.
#include "dev/test/cpu/attention_bounds.h"
#include "dev/test/gpu/layer_test.h"
#include "llmc/model/reference.h"
#include "llmc/ops/attention.h"

using namespace llmc;
using namespace llmc::gpu_test;

namespace {

constexpr AttentionShape kShapes[] = {
    {1, 1, 1, 1},       {2, 1, 3, 64},      {1, 2, 1, 128}, {3, 17, 2, 33},   {2, 17, 5, 7},
    {2, 63, 3, 32},     {2, 64, 3, 32},     {1, 65, 2, 80}, {1, 127, 2, 64},  {1, 128, 1, 33},
    {2, 129, 2, 128},   {1, 200, 1, 80},    {1, 257, 3, 7}, {1, 1024, 2, 64}, {17, 33, 3, 64},
    {1, 130, 2, 64, 3}, {2, 96, 1, 128, 2},
};
constexpr AttentionShape kLargeShapes[] = {{2, 1024, 12, 64}, {1, 1024, 2, 128}, {1, 1023, 3, 80},
                                           {1, 1025, 2, 33},  {1, 2048, 2, 64},  {1, 777, 2, 32}};

// The truth of forward, and of backward from out and lse as forward would have stored them.
template <typename Real>
struct Truth {
    Vector out, lse, stored_out, stored_lse, dqkv;
    AttentionBounds bounds;

    Truth(const AttentionShape& s, const Vector& qkv, const Vector& dout)
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
void check_attention(const AttentionShape& s) {
    DeviceArray<Real> qkv(floats(3 * s.elements(), 1, s.scale)), dout(floats(s.elements(), 2));
    Truth<Real> truth(s, qkv.values(), dout.values());
    std::string shape = strf("%s ", type_name<Real>()) + s.text();

    DeviceArray<Real> out(s.elements());
    DeviceArray<float> lse((int64_t)s.B * s.NH * s.T);
    attention_forward(out.data(), lse.data(), qkv.data(), s.B, s.T, s.NH, s.HS, kStream);
    expect_near("attention_forward out " + shape, out, truth.out,
                [&](size_t i) { return stored<Real>(truth.bounds.out[i], truth.out[i]); });
    expect_near("attention_forward lse " + shape, lse, truth.lse,
                [&](size_t i) { return stored<float>(truth.bounds.lse[i], truth.lse[i]); });

    DeviceArray<Real> given_out(convert<float>(truth.stored_out)), dqkv(3 * s.elements());
    DeviceArray<float> given_lse(convert<float>(truth.stored_lse));
    Scratch scratch(attention_backward_scratch(s.B, s.T, s.NH));
    attention_backward(dqkv.data(), scratch.data(), dout.data(), qkv.data(), given_out.data(),
                       given_lse.data(), s.B, s.T, s.NH, s.HS, kStream);
    expect_near("attention_backward dqkv " + shape, dqkv, truth.dqkv,
                [&](size_t i) { return stored<Real>(truth.bounds.dqkv[i], truth.dqkv[i]); });
    check_guards("attention_backward scratch " + shape, scratch);
    expect_unchanged("attention " + shape, qkv, dout, given_out, given_lse);
}

}  // namespace

TEST_CASE_TEMPLATE("attention: forward and backward", Real, float, bf16) {
    for (const AttentionShape& s : kShapes) { check_attention<Real>(s); }
}

// in bf16 a head of these sizes is padded to a kernel's 64, 80 or 128 columns, in whole 16-byte vectors
TEST_CASE_TEMPLATE("attention: padded heads, sequences around the tiles' borders", Real, float, bf16) {
    for (int HS : {48, 72, 96}) {
        for (int T : {64, 65, 128, 129}) { check_attention<Real>({2, T, 2, HS}); }
    }
}

// every query sees its past alone: tokens after the 70th change nothing before
TEST_CASE_TEMPLATE("attention_forward: the future does not matter", Real, float, bf16) {
    constexpr AttentionShape s = {1, 150, 2, 64};
    constexpr int kSame = 70;
    Floats before = floats(3 * s.elements(), 1), after = before;
    for (size_t i = (size_t)kSame * 3 * s.C(); i < after.size(); i++) { after[i] = 100; }
    std::vector<Real> rows[2];
    for (int k = 0; k < 2; k++) {
        DeviceArray<Real> qkv(k == 0 ? before : after), out(s.elements());
        DeviceArray<float> lse(s.NH * s.T);
        attention_forward(out.data(), lse.data(), qkv.data(), s.B, s.T, s.NH, s.HS, kStream);
        rows[k] = out.download();
        rows[k].resize((size_t)kSame * s.C());
    }
    CHECK(std::memcmp(rows[0].data(), rows[1].data(), rows[0].size() * sizeof(Real)) == 0);
}

TEST_SUITE("thorough") {
    TEST_CASE_TEMPLATE("attention: long sequences", Real, float, bf16) {
        for (const AttentionShape& s : kLargeShapes) { check_attention<Real>(s); }
    }
}

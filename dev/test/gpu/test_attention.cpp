// Causal self-attention on the GPU against the reference.
#include "dev/test/gpu/attention_check.h"

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

// heads of 64 are Hopper's in bf16, where T is at least 64: tiles that T fills and does not, rows that several tiles share
TEST_CASE_TEMPLATE("attention_backward_bias", Real, float, bf16) {
    constexpr AttentionShape shapes[] = {{1, 17, 2, 33},  {3, 63, 2, 64},  {1, 64, 1, 64},  {2, 65, 3, 64},
                                         {1, 128, 2, 64}, {3, 193, 2, 64}, {2, 300, 5, 64}, {2, 130, 2, 80}};
    for (const AttentionShape& s : shapes) {
        for (bool accumulate : {false, true}) {
            check_attention_bias<Real, float>(s, accumulate);
            if (!std::is_same_v<Real, float>) { check_attention_bias<Real, Real>(s, accumulate); }
        }
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
        Counters counters;
        attention_forward<Real>({out.data(), lse.data(), counters.data(), qkv.data(), s.B, s.T, s.NH, s.HS},
                                kStream);
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

// Causal self-attention on the GPU against the reference: each kernel; then Hopper's, of head size 64 in bf16, where they are
// used: hard scores, the same bits in repeats, batches, streams and graphs.
#include "dev/test/gpu/attention_check.h"
#include "llmc/cuda/graph.cuh"
#include "llmc/cuda/resources.cuh"
#include "llmc/ops/attention/attention.h"

using namespace llmc;
using namespace llmc::gpu_test;

// ---- every GPU's kernels -------------------------------------------------------------------------

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

// ---- Hopper's ------------------------------------------------------------------------------------

namespace {

constexpr int kHS = 64;

const AttentionCalls<bf16> kMmaSync = {attention_forward_mma_sync, attention_backward_mma_sync};

// Everything that one forward and one backward call need and write.
struct Run {
    int B, T, NH;
    DeviceArray<bf16> out, dqkv;
    DeviceArray<float> lse, dbias;
    Scratch scratch;
    Counters counters;

    Run(int B, int T, int NH)
        : B(B),
          T(T),
          NH(NH),
          out((int64_t)B * T * NH * kHS),
          dqkv(3 * out.size()),
          lse((int64_t)B * NH * T),
          dbias((int64_t)3 * NH * kHS),
          scratch(attention_backward_bias_scratch(B, T, NH, kHS)) {}

    void start(const bf16* qkv, const bf16* dout, cudaStream_t stream = kStream) {
        attention_forward<bf16>({out.data(), lse.data(), counters.data(), qkv, B, T, NH, kHS}, stream);
        attention_backward_bias<bf16>(
            dbias.data(), false,
            {dqkv.data(), scratch.data(), counters.data(), dout, qkv, out.data(), lse.data(), B, T, NH, kHS},
            stream);
    }
    void poison() {
        check_cuda(cudaMemset(out.data(), kPoison, out.size() * sizeof(bf16)));
        check_cuda(cudaMemset(dqkv.data(), kPoison, dqkv.size() * sizeof(bf16)));
        for (auto* x : {&lse, &dbias}) {
            check_cuda(cudaMemset(x->data(), kPoison, x->size() * sizeof(float)));
        }
    }
    int64_t differences(const Run& other) const {
        return count_differences(out.data(), other.out.data(), out.size() * sizeof(bf16)) +
               count_differences(dqkv.data(), other.dqkv.data(), dqkv.size() * sizeof(bf16)) +
               count_differences(lse.data(), other.lse.data(), lse.size() * sizeof(float)) +
               count_differences(dbias.data(), other.dbias.data(), dbias.size() * sizeof(float));
    }
};

struct CallInputs {
    DeviceArray<bf16> qkv, dout;
    CallInputs(int B, int T, int NH)
        : qkv(floats((int64_t)3 * B * T * NH * kHS, 1)), dout(floats((int64_t)B * T * NH * kHS, 2)) {}
};

void check_repeats(int B, int T, int NH, int repeats) {
    CallInputs in(B, T, NH);
    Run first(B, T, NH), again(B, T, NH);
    first.start(in.qkv.data(), in.dout.data());
    CHECK(first.differences(again) > 0);  // the comparison sees the poison
    int64_t differences = 0;
    for (int i = 0; i < repeats; i++) {
        again.poison();
        again.start(in.qkv.data(), in.dout.data());
        differences += again.differences(first);
    }
    CHECK_MESSAGE(differences == 0, fmt::format("B={} T={} NH={}, {} repeats", B, T, NH, repeats));
}

// start(k) puts run k on stream k, both at once; each must end with the bits that it has alone
template <typename Start>
void check_two_streams(const char* name, Run (&runs)[2], const Run (&alone)[2], const Stream (&streams)[2],
                       Start start) {
    int64_t differences = 0;
    for (int i = 0; i < 20; i++) {
        for (Run& run : runs) { run.poison(); }
        check_cuda(cudaDeviceSynchronize());
        for (int k : {0, 1, 0, 1}) { start(k); }
        for (int k : {0, 1}) { check_cuda(cudaStreamSynchronize(streams[k])); }
        for (int k : {0, 1}) { differences += runs[k].differences(alone[k]); }
    }
    CHECK_MESSAGE(differences == 0, name);
    for (Run& run : runs) { CHECK_MESSAGE(run.counters.unchanged(), name); }
}

}  // namespace

TEST_CASE("attention on Hopper: its kernels are used there, and nowhere else") {
    int major = 0, minor = 0;
    check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    check_cuda(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0));
    CHECK(has_attention_wgmma() == (major == 9 && minor == 0));
}

TEST_CASE("attention on Hopper: forward and backward") {
    for (int T : {1, 17, 63, 64, 65, 127, 128, 129, 191, 192, 193, 255, 256, 257, 320, 1000, 1024}) {
        check_attention<bf16>({1, T, 1, kHS});
        if (T < 300) { check_attention<bf16>({2, T, 3, kHS}); }
    }
    check_attention<bf16>({16, 129, 25, kHS});  // more tiles than multiprocessors
    check_attention<bf16>({1, 300, 64, kHS});
}

// the kernels of other GPUs, at sizes that Hopper's take
TEST_CASE("attention on Hopper: the other kernels by force") {
    for (int T : {64, 129, 1000}) { check_attention<bf16>({2, T, 2, kHS}, kMmaSync); }
}

TEST_CASE("attention on Hopper: large scores, equal scores") {
    check_attention<bf16>({1, 200, 2, kHS, 3});
    check_attention<bf16>({1, 200, 2, kHS, 50});  // scores to +-1e4
    for (float q : {0.0f, 16.0f}) {  // with k = 0 or k = 16 in every row, scores are all 0 or all 2048
        AttentionShape s{1, 200, 2, kHS};
        Floats qkv = floats(3 * s.elements(), 1);
        for (size_t i = 0; i < qkv.size(); i++) {
            if (i / s.C() % 3 < 2) { qkv[i] = q; }
        }
        check_attention<bf16>(s, qkv, floats(s.elements(), 2));
    }
}

// scores that rise from key to key, and fall: the maximum moves at every tile of keys, or never after the first
TEST_CASE("attention on Hopper: scores that rise and fall along the keys") {
    for (float slope : {0.02f, -0.02f, 0.5f, -0.5f}) {
        AttentionShape s{1, 520, 1, kHS};
        Floats qkv = floats(3 * s.elements(), 1, 0.1);
        for (int t = 0; t < s.T; t++) {
            qkv[(size_t)t * 3 * kHS] = 8;                // q
            qkv[(size_t)t * 3 * kHS + kHS] = slope * t;  // k: the score is slope * t
        }
        check_attention<bf16>(s, qkv, floats(s.elements(), 2));
    }
}

TEST_CASE("attention on Hopper: NaN and infinity stay in their head") {
    constexpr int kB = 2, kT = 300, kNH = 3, kBadHead = 4, kBadRow = 100;  // head 1 of sequence 1
    CallInputs in(kB, kT, kNH);
    Run clean(kB, kT, kNH);
    clean.start(in.qkv.data(), in.dout.data());
    auto out = clean.out.download(), dqkv = clean.dqkv.download();
    auto head_of = [](int64_t element, int per_token) {
        return (int)(element / kHS % kNH + element / kHS / kNH / per_token / kT * kNH);
    };
    for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        for (int which : {0, 1, 2}) {
            Floats qkv = floats((int64_t)3 * kB * kT * kNH * kHS, 1);
            qkv[((((size_t)kT + kBadRow) * 3 + which) * kNH + 1) * kHS + 5] = bad;
            DeviceArray<bf16> bad_qkv(qkv);
            Run run(kB, kT, kNH);
            run.start(bad_qkv.data(), in.dout.data());
            auto bad_out = run.out.download(), bad_dqkv = run.dqkv.download();
            int64_t spread = 0, seen = 0;
            for (size_t i = 0; i < out.size(); i++) {
                bool same = std::memcmp(&out[i], &bad_out[i], sizeof(bf16)) == 0;
                head_of(i, 1) == kBadHead ? seen += !std::isfinite((float)bad_out[i]) : spread += !same;
            }
            for (size_t i = 0; i < dqkv.size(); i++) {
                bool same = std::memcmp(&dqkv[i], &bad_dqkv[i], sizeof(bf16)) == 0;
                spread += head_of(i, 3) != kBadHead && !same;
            }
            std::string name = fmt::format("{:g} in {:c}", bad, "qkv"[which]);
            CHECK_MESSAGE(spread == 0, name);
            if (which != 1) {
                CHECK_MESSAGE(seen > 0, name);
            }  // a key of infinity may just take all the weight
        }
    }
}

TEST_CASE("attention on Hopper: the same bits in every repeat") {
    check_repeats(8, 1024, 12, 100);
    check_repeats(3, 1000, 25, 100);
    check_repeats(64, 65, 12, 100);
}

TEST_CASE("attention on Hopper: a sequence does not depend on its batch") {
    constexpr int kB = 5, kT = 700, kNH = 12;
    constexpr int64_t n = (int64_t)kT * kNH * kHS;
    CallInputs in(kB, kT, kNH);
    Run together(kB, kT, kNH);
    together.start(in.qkv.data(), in.dout.data());
    for (int b : {0, 3, 4}) {
        Run alone(1, kT, kNH);
        alone.start(in.qkv.data() + 3 * n * b, in.dout.data() + n * b);
        expect_same("out alone", alone.out, together.out.download(n * b, n));
        expect_same("dqkv alone", alone.dqkv, together.dqkv.download(3 * n * b, 3 * n));
        expect_same("lse alone", alone.lse, together.lse.download((int64_t)kNH * kT * b, kNH * kT));
    }
}

TEST_CASE("attention on Hopper: two streams at once, and graphs replayed on two streams") {
    const Stream streams[2];
    CallInputs in[2] = {{6, 1000, 12}, {5, 1024, 13}};
    Run runs[2] = {{6, 1000, 12}, {5, 1024, 13}}, alone[2] = {{6, 1000, 12}, {5, 1024, 13}};
    for (int k : {0, 1}) { alone[k].start(in[k].qkv.data(), in[k].dout.data()); }
    check_cuda(cudaDeviceSynchronize());
    const auto start = [&](int k) { runs[k].start(in[k].qkv.data(), in[k].dout.data(), streams[k]); };
    check_two_streams("two streams", runs, alone, streams, start);
    const Recording graphs[2] = {{streams[0], [&](Recording&) { start(0); }},
                                 {streams[1], [&](Recording&) { start(1); }}};
    check_two_streams("graphs", runs, alone, streams, [&](int k) { graphs[k].repeat(); });
}

TEST_SUITE("thorough") {
    TEST_CASE_TEMPLATE("attention: long sequences", Real, float, bf16) {
        for (const AttentionShape& s : kLargeShapes) { check_attention<Real>(s); }
    }

    TEST_CASE("attention on Hopper: long sequences") {
        for (int T : {2048, 4096}) { check_attention<bf16>({1, T, 2, kHS}); }
    }
    TEST_CASE("attention on Hopper: 1,000 repeats at full size") { check_repeats(64, 1024, 12, 1000); }
}

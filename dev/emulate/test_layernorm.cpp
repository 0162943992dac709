// Each layout of each regime, with rows enough that the machine's few multiprocessors and clusters go through their
// rings, unequally often: as long as it takes a GPU's worth of tests to show a race, in seconds.
#include "dev/test/gpu/layernorm_runs.h"

using namespace llmc;
using namespace llmc::gpu_test;

namespace {

// The longest rows of layouts, and some that are shorter by a vector or begin anywhere. In elements.
constexpr int kShort[] = {8,     40,   64,   128,  256,  512,  768,  1024, 1280, 1536, 1600,  1792,  2048,
                          2560,  3072, 3584, 4096, 4608, 5120, 6144, 7168, 8192, 9216, 10240, 12288, 13824,
                          15360, 7,    65,   257,  769,  1601, 3137, 4097, 6273, 8191, 9001,  12417, 16001};
// of bf16, of fp32
constexpr int kLong16[] = {16384,  20480,  24576,  32768,  36864,  40960,  49152,  57344,  65536,
                           71680,  77832,  81920,  98296,  98304,  114688, 120008, 131072, 163840,
                           172032, 180224, 196608, 229376, 237000, 245760, 262144};
constexpr int kLong32[] = {16384,  20480,  32768,  40960,  65536,  81920,  98304,  114688, 131072, 147456,
                           150004, 163840, 180224, 190004, 196600, 196608, 229372, 229376, 262144};

// Rows of a problem: a dozen, which is three to six of a cluster; of short ones enough for each team of a block.
Shape few(int C) { return {std::max(11, 48'000 / C), C}; }

void check(const TypePair& types, int C) {
    check_problem(layernorm_forward_problem(types.dtype, few(C), Inputs::kNormal, types.plain()));
    for (const CallForm* form : {&types.plain(), &types.added()}) {
        check_problem(layernorm_backward_problem(types.dtype, few(C), Inputs::kNormal, *form));
    }
}

}  // namespace

TEST_SUITE("emulated") {
    TEST_CASE("emulated layernorm: rows of one block") {
        for (int C : kShort) {
            for (const TypePair& types : {kTypePairs[0], kTypePairs[1]}) {
                check(types, C);
                check_problem(
                    residual_layernorm_forward_problem(types.dtype, few(C), Inputs::kNormal, kPlain));
            }
        }
    }
    TEST_CASE("emulated layernorm: rows of clusters") {
        for (int C : kLong32) { check(kTypePairs[0], C); }
        for (int C : kLong16) { check(kTypePairs[1], C); }
    }
}

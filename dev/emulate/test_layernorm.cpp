// Each layout of each regime, with rows enough that the machine's few multiprocessors and clusters go through their
// rings, unequally often: as long as it takes a GPU's worth of tests to show a race, in seconds.
#include "dev/test/gpu/layernorm_runs.h"

using namespace llmc;
using namespace llmc::gpu_test;

namespace {

// The longest rows of the layouts, and some that are shorter by a vector or begin anywhere. In elements.
// And, of rows that are halves or quarters of vectors, or single elements: the last or the last but one that a layout of
// forward or backward has.
constexpr int kPieces[] = {1,   3,   5,  9,  11, 13, 19, 23, 27, 39, 47,  55,  79,  95, 127,  // single ones
                           2,   6,   10, 14, 18, 22, 26, 30, 38, 46, 54,  62,  78,  94, 110,
                           126, 190, 12, 20, 28, 36, 52, 60, 76, 84, 108, 124, 156, 220};
constexpr int kWhole16[] = {8, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1280, 1536, 1600, 1728, 1792,
                            2048, 2560, 3072, 3904, 4096, 4608, 5120, 6144, 7168, 7552, 8192, 9216, 10240,
                            12288, 13824, 14336, 14848, 16128, 16384, 20480, 24576, 32768};
constexpr int kWhole32[] = {4, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1280, 1536, 1792, 2048,
                            2560, 3072, 4096, 5120, 6144, 8192, 10240, 12288, 16384, 20480, 32768};
// of layouts for longer rows that are no whole vectors: one column less
constexpr int kOdd16[] = {264, 520, 784, 1040, 1312, 2080, 4160, 6272, 8320, 10400, 16640, 20480, 32768,
                          40960, 65536};
constexpr int kOdd32[] = {136, 192, 264, 288, 400, 512, 800, 1056, 2112, 3168, 4224, 6336, 8448, 28672, 40960,
                          65536};
// and forward, in clusters
constexpr int kOddClusters16[] = {28032, 46720, 74752, 136704, 224256, 299008};
constexpr int kOddClusters32[] = {14208, 23680, 37888, 69120, 113664, 151552};
constexpr int kClusters16[] = {40960, 49152, 65536, 77832, 98304, 114688, 131072, 163840, 196608, 237000,
                               262144};
constexpr int kClusters32[] = {40960, 65536, 83004, 98304, 131072, 150004, 196608, 229372, 229376, 262144};
// for the pairs of types that are not tried at every width
constexpr int kOthers[] = {64, 257, 768, 1601, 4096, 8191, 9216, 32768, 57344, 81920, 196608};
// of rows of more than four warps, which have kernels of their own where rows are few
constexpr int kFew16[] = {5120, 6144, 7168, 8192, 10240, 12288, 14336, 16128, 16384, 32768};
constexpr int kFew32[] = {2560, 3072, 4096, 5120, 6144, 8192, 16384};

// Rows of a problem: a dozen, which is three to six of a cluster; of short ones enough for each team of a block.
Shape few(int C) { return {std::max(11, 48'000 / C), C}; }

// one of runtime.cpp's devices, for as long as this lives
struct OnDevice {
    explicit OnDevice(int device) { check_cuda(cudaSetDevice(device)); }
    ~OnDevice() { cudaSetDevice(0); }
};

void check_forward(const TypePair& types, Shape s) {
    check_problem(layernorm_forward_problem(types.dtype, s, Inputs::kNormal, types.plain()));
}
void check(const TypePair& types, Shape s) {
    check_forward(types, s);
    for (const CallForm* form : {&types.plain(), &types.added()}) {
        check_problem(layernorm_backward_problem(types.dtype, s, Inputs::kNormal, *form));
    }
}
void check_residual(const TypePair& types, Shape s) {
    check_problem(residual_layernorm_forward_problem(types.dtype, s, Inputs::kNormal, types.plain()));
}
void check_all(const TypePair& types, Shape s) {
    check(types, s);
    check_residual(types, s);
}

}  // namespace

TEST_SUITE("emulated") {
    TEST_CASE("emulated layernorm: rows of one block") {
        for (int C : kWhole32) { check_all(kTypePairs[0], few(C)); }
        for (int C : kWhole16) { check_all(kTypePairs[1], few(C)); }
    }
    TEST_CASE("emulated layernorm: rows that are no whole vectors") {
        for (int C : kOdd32) { check_all(kTypePairs[0], few(C - 1)); }
        for (int C : kOdd16) { check_all(kTypePairs[1], few(C - 1)); }
    }
    TEST_CASE("emulated layernorm: short rows that are no whole vectors") {
        for (int C : kPieces) {
            check_all(kTypePairs[0], few(C));
            check_all(kTypePairs[1], few(C));
        }
    }
    TEST_CASE("emulated layernorm: rows of clusters that are no whole vectors") {  // a cluster for each row
        for (int C : kOddClusters32) { check_forward(kTypePairs[0], {3, C - 1}); }
        for (int C : kOddClusters16) { check_forward(kTypePairs[1], {3, C - 1}); }
        check_residual(kTypePairs[0], {3, 37887});
        check_residual(kTypePairs[1], {3, 74751});
    }
    TEST_CASE("emulated layernorm: rows of clusters in fp32") {
        for (int C : kClusters32) { check(kTypePairs[0], few(C)); }
    }
    TEST_CASE("emulated layernorm: rows of clusters in bf16") {
        for (int C : kClusters16) { check(kTypePairs[1], few(C)); }
    }
    TEST_CASE("emulated layernorm: residuals of clusters") {
        for (int C : {65536, 131072, 262144}) {  // a cluster for each row
            check_residual(kTypePairs[0], {3, C});
            check_residual(kTypePairs[1], {3, C});
        }
    }
    TEST_CASE("emulated layernorm: other types") {
        for (int pair = 2; pair < (int)std::size(kTypePairs); pair++) {
            for (int C : kOthers) { check(kTypePairs[pair], few(C)); }
        }
    }
}

// on devices that are unlike the first
TEST_SUITE("emulated") {
    TEST_CASE("emulated layernorm: too little shared memory for the rings") {
        OnDevice device(2);
        for (int C : {64, 768, 769, 4096, 12288, 65536, 98304, 114688}) {
            check(kTypePairs[0], {3, C});
            check(kTypePairs[1], {3, C});
        }
    }
    TEST_CASE("emulated layernorm: before Hopper") {
        OnDevice device(3);
        // rows of teams; in 16 bits of a block, with 3 and 4 vectors to a lane, of 3 blocks and of 8
        for (int C : {1024, 10248, 12288, 14344, 20480, 65536}) {
            for (int types : {0, 1, 3}) { check(kTypePairs[types], {17, C}); }
        }
    }
    TEST_CASE("emulated layernorm: few rows") {
        OnDevice device(1);  // where three of these are few, nine are not
        auto check = [](const TypePair& types, int C) {
            for (auto* problem_of : kForwards) {
                check_problem(problem_of(types.dtype, {1, C}, Inputs::kNormal, types.plain()));
                check_batches(problem_of(types.dtype, {9, C}, Inputs::kNormal, types.plain()));
            }
            for (const CallForm* form : {&types.plain(), &types.added()}) {
                check_problem(layernorm_backward_problem(types.dtype, {1, C}, Inputs::kNormal, *form));
            }
        };
        for (int C : kFew32) { check(kTypePairs[0], C); }
        for (int C : kFew16) { check(kTypePairs[1], C); }
    }
}

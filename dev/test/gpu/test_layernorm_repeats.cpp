// LayerNorm on the GPU, the same bits again: in any batch, at any place in it, and in a thousand launches.
#include <omp.h>

#include "dev/test/gpu/layernorm_runs.h"

using namespace llmc;
using namespace llmc::gpu_test;

namespace {

// ---- batches -------------------------------------------------------------------------------------

void check_batches_of(TypePair types, Shape s) {
    for (auto* make : kOps) { check_batches(make(types.dtype, s, Inputs::kNormal, types.plain())); }
    check_batches(layernorm_backward_problem(types.dtype, s, Inputs::kNormal, types.added()));
}

// ---- repeats -------------------------------------------------------------------------------------

// host memory that the GPU copies into without a detour
class PinnedBytes {
public:
    explicit PinnedBytes(size_t n) { check_cuda(cudaMallocHost(&memory_, std::max<size_t>(n, 1))); }
    ~PinnedBytes() { cudaFreeHost(memory_); }
    PinnedBytes(const PinnedBytes&) = delete;
    std::byte* data() const { return static_cast<std::byte*>(memory_); }

private:
    void* memory_ = nullptr;
};

bool same_bytes(const std::byte* a, const std::byte* b, size_t n) {
    constexpr size_t kPiece = 1 << 18;
    bool same = true;
#pragma omp parallel for reduction(&& : same)
    for (size_t at = 0; at < n; at += kPiece) {
        same = same && std::memcmp(a + at, b + at, std::min(kPiece, n - at)) == 0;
    }
    return same;
}

// A problem that is launched again and again on the same arrays. Its outputs are each time made what they
// were before the first launch: poison, or what is added to.
class Repeated {
public:
    explicit Repeated(const Problem& p) : p_(p), tensors_(p) {
        for (const Output& t : p.out) {
            const DeviceArray<std::byte>& memory = tensors_.all.at(t.name).memory;
            outputs_.push_back({&memory, DeviceArray<std::byte>(memory.uploaded())});
            bytes_ += memory.size();
        }
    }
    size_t bytes() const { return bytes_; }

    // queues a launch, and the copy of all results one after the other
    void queue(std::byte* results) {
        auto copy = [](void* to, const void* from, size_t n, cudaMemcpyKind kind) {
            check_cuda(cudaMemcpyAsync(to, from, n, kind, kStream));
        };
        for (const auto& [memory, before] : outputs_) {
            copy(memory->data(), before.data(), memory->size(), cudaMemcpyDeviceToDevice);
        }
        launch(tensors_, p_);
        for (const auto& [memory, before] : outputs_) {
            copy(results, memory->data(), memory->size(), cudaMemcpyDeviceToHost);
            results += memory->size();
        }
    }

private:
    struct Output_ {
        const DeviceArray<std::byte>* memory;
        DeviceArray<std::byte> before;
    };
    const Problem& p_;
    Tensors tensors_;
    std::vector<Output_> outputs_;
    size_t bytes_ = 0;
};

// While a launch and its copy run, the results of the one before it are compared with the first's.
void check_repeats(const Problem& p, int repeats) {
    Repeated repeated(p);
    size_t n = repeated.bytes();
    PinnedBytes first(n), even(n), odd(n);
    repeated.queue(first.data());
    repeated.queue(odd.data());
    int differing = 0, first_differing = 0;
    for (int repeat = 1; repeat < repeats; repeat++) {
        check_cuda(cudaDeviceSynchronize());
        if (repeat + 1 < repeats) { repeated.queue((repeat % 2 ? even : odd).data()); }
        if (same_bytes((repeat % 2 ? odd : even).data(), first.data(), n)) { continue; }
        if (differing++ == 0) { first_differing = repeat; }
    }
    check_cuda(cudaDeviceSynchronize());
    CHECK_MESSAGE(differing == 0,
                  fmt::format("{}: {} of {} launches gave other bits than the first, launch {} to begin with",
                              name_of(p, "results"), differing, repeats, first_differing));
    Bytes all(first.data(), first.data() + n);
    Results found;
    for (size_t i = 0, at = 0; i < p.out.size(); i++) {
        size_t bytes = p.out[i].truth->size() * format_of(p.out[i].dtype).bytes;
        found.emplace_back(all.begin() + at, all.begin() + at + bytes);
        at += bytes;
    }
    judge_results(p, found);
}

// Shape number i, forward and backward; types and ops take turns.
void check_repeats(int i, Shape s, int repeats) {
    TypePair types = kTypePairs[i % 5];
    check_repeats(kForwards[i / 2 % 2](types.dtype, s, Inputs::kNormal, types.plain()), repeats);
    check_repeats(layernorm_backward_problem(types.dtype, s, Inputs::kNormal,
                                             i / 2 % 2 ? types.plain() : types.added()),
                  repeats);
}

// All regimes; rows enough for many turns of each ring. The 1,000 results of a shape are 15 GB at most.
constexpr Shape kRepeated[] = {
    {200'003, 3}, {200'003, 8}, {20'011, 64}, {20'011, 65}, {10'007, 255}, {10'007, 256}, {5003, 511},
    {5003, 512},  {8009, 768},  {4099, 769},  {3001, 1024}, {3001, 1025},  {5003, 1280},  {2503, 1281},
    {3001, 1600}, {2003, 1601}, {2003, 1792}, {2003, 1800}, {2003, 2048},  {1511, 2049},  {1009, 3072},
    {1511, 4096}, {701, 4097},  {701, 4104},  {701, 5120},  {401, 8191},   {701, 8192},   {401, 8193},
    {401, 12288}, {267, 15872}, {267, 16384}, {133, 16385}, {133, 20480},  {133, 32768},  {67, 32776},
    {67, 65536},  {35, 131072}, {17, 131080}, {17, 262144}, {9, 262152}};
static_assert(std::size(kRepeated) == 40);

// Forward spreads a few rows over more multiprocessors, one more kernel for each layout of several warps: the longest
// rows of each, and one vector less; with a residual, too.
void check_few_and_many(TypePair types) {
    constexpr int kLongest[] = {2560,  3072,  3584,  4096,  5120,  6144,  7168, 8192,
                                10240, 10752, 12288, 14336, 16128, 16384, 32768};
    for (auto* problem_of : {layernorm_forward_problem, residual_layernorm_forward_problem}) {
        for (int longest : kLongest) {
            for (int C : {longest, longest - 8}) {
                Problem p = problem_of(types.dtype, {135, C}, Inputs::kNormal, types.plain());
                check_problem(p);
                check_batches(p);
            }
        }
    }
}

}  // namespace

TEST_CASE("layernorm regimes: a row's result does not depend on its batch") {
    for (TypePair types : {kTypePairs[0], kTypePairs[1]}) {
        for (Shape s : {Shape{1000, 8},
                        {300, 768},
                        {300, 255},
                        {133, 1600},
                        {35, 4096},
                        {35, 4097},
                        {9, 16384},
                        {5, 32768},
                        {300, 33},
                        {300, 90},
                        {5, 20001},
                        {5, 140'001},
                        {60, 40'000},
                        {60, 90'000},
                        {35, 190'000}}) {
            check_batches_of(types, s);
        }
    }
}
TEST_SUITE("thorough") {
    TEST_CASE("layernorm regimes: a row's result does not depend on its batch for each pair of types") {
        for (TypePair types : kTypePairs) {
            for (Shape s : {Shape{20'011, 1},
                            {20'011, 8},
                            {20'011, 33},
                            {20'011, 90},
                            {20'011, 100},
                            {4099, 768},
                            {4099, 769},
                            {2003, 1792},
                            {2003, 1793},
                            {533, 4096},
                            {267, 8192},
                            {267, 8191},
                            {133, 16384},
                            {133, 16385},
                            {35, 65537},
                            {35, 65536},
                            {9, 262144},
                            {9, 262152}}) {
                check_batches_of(types, s);
            }
        }
    }
}

TEST_CASE("layernorm_forward regimes: few rows and many") {
    for (TypePair types : {kTypePairs[0], kTypePairs[1]}) { check_few_and_many(types); }
}
TEST_SUITE("thorough") {
    TEST_CASE("layernorm_forward regimes: few rows and many for each pair of types") {
        for (TypePair types : kTypePairs) { check_few_and_many(types); }
    }
}

TEST_CASE("layernorm regimes: 20 launches give the same bits") {
    constexpr Shape kFew[] = {{10'007, 64}, {1031, 769}, {1511, 1280}, {267, 4096}, {67, 16384}, {17, 32768}};
    for (int i = 0; i < (int)std::size(kFew); i++) { check_repeats(i, kFew[i], 20); }
}
TEST_SUITE("thorough") {
    TEST_CASE("layernorm regimes: 1000 launches give the same bits") {
        for (int i = 0; i < (int)std::size(kRepeated); i++) { check_repeats(i, kRepeated[i], 1000); }
    }
}

// LayerNorm on the GPU, the same bits again: in any batch, at any place in it, and in a thousand launches; call after call
// without a pause; and of more than 2^31 elements those of a few.
#include "dev/test/gpu/layer_test.h"
#include "dev/test/gpu/layernorm_runs.h"
#include "dev/test/gpu/layernorm_widths.h"
#include "llmc/layernorm/layernorm.h"

using namespace llmc;
using namespace llmc::gpu_test;

namespace {

// ---- batches -------------------------------------------------------------------------------------

void check_batches_of(TypePair types, Shape s) {
    for (auto* make : kOps) { check_batches(make(types.dtype, s, Inputs::kNormal, types.plain())); }
    check_batches(layernorm_backward_problem(types.dtype, s, Inputs::kNormal, types.added()));
}

// Seven rows over and over, 1 to `most` of them: as many as `elements` have room for. Seven is prime to the rows of warps,
// teams and blocks, so that each row comes to each of their places. LayerNorm and RMSNorm; forward alone and behind a
// residual, backward with = and +=; rows side by side, and apart by whole vectors and by an element: not thorough, those of one
// of the norms.
void check_sizes(TypePair types, int C, int64_t most, int64_t elements, bool thorough) {
    std::vector<int64_t> sizes;
    for (int64_t N : {1, 2, 3, 16, 33, 66, 131, 132, 133, 265, 1000, 4099, 16'384, 65'536}) {
        if (N <= most && (N < 3 || N * C <= elements)) { sizes.push_back(N); }
    }
    for (bool rms : {false, true}) {
        for (int pad : {0, 8, 1}) {
            if (pad > 0 && !thorough && rms == (C + pad) % 2) { continue; }
            auto check = [&](MakeProblem* make, CallForm form) {
                form.rms = rms;
                form.pad = pad;
                check_batch_sizes(make(types.dtype, {7, C}, Inputs::kNormal, form), sizes);
            };
            for (auto* make : kOps) { check(make, types.plain()); }
            check(layernorm_backward_problem, types.added());
        }
    }
}

// each kernel and, of forward's many, some layouts
constexpr int kBatchWidths[] = {1,    3,    8,    33,   64,   90,     127,    256,    257,    768,    769,
                                1601, 2048, 4096, 4097, 8192, 12'288, 16'384, 20'001, 32'768, 140'001};

// ---- repeats -------------------------------------------------------------------------------------

// A problem launched again and again on the same arrays. Its outputs are each time made what they were before the first launch:
// poison, or what is added to.
void check_repeats(const Problem& p, int repeats) {
    Tensors tensors(p);
    const Results first = run(p, tensors);
    int differing = 0, first_differing = 0;
    for (int repeat = 1; repeat < repeats; repeat++) {
        tensors.reset();
        launch(tensors, p);
        bool same = true;
        for (size_t i = 0; i < first.size(); i++) {
            same = same && tensors.all.at(p.out[i].name).memory.download() == first[i];
        }
        if (!same && differing++ == 0) { first_differing = repeat; }
    }
    CHECK_MESSAGE(differing == 0,
                  fmt::format("{}: {} of {} launches gave other bits than the first, launch {} to begin with",
                              name_of(p, "results"), differing, repeats, first_differing));
    judge_results(p, first);
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
        constexpr Shape shapes[] = {{1000, 8},  {300, 768},   {300, 255},   {133, 1600},  {35, 4096},
                                    {35, 4097}, {9, 16384},   {5, 32768},   {300, 33},    {300, 90},
                                    {5, 20001}, {5, 140'001}, {60, 40'000}, {60, 90'000}, {35, 190'000}};
        for (Shape s : shapes) { check_batches_of(types, s); }
    }
}

// What layernorm.h promises of batches.
TEST_CASE("layernorm regimes: the same bits in any batch of up to 2^16 rows") {
    for (int C : kBatchWidths) {
        for (TypePair types : {kTypePairs[0], kTypePairs[1]}) {
            check_sizes(types, C, 65'536, 1 << 19, false);
        }
    }
}

TEST_CASE("layernorm_forward regimes: few rows and many") {
    for (TypePair types : {kTypePairs[0], kTypePairs[1]}) { check_few_and_many(types); }
}

TEST_CASE("layernorm regimes: 20 launches give the same bits") {
    constexpr Shape kFew[] = {{10'007, 64}, {1031, 769}, {1511, 1280}, {267, 4096}, {67, 16384}, {17, 32768}};
    for (int i = 0; i < (int)std::size(kFew); i++) { check_repeats(i, kFew[i], 20); }
}

// ---- call after call -----------------------------------------------------------------------------
//
// Launches overlap on Hopper, so each must wait for what the calls before it write. Rows are few enough that a launch leaves
// room for the next one.

namespace {

// Seven calls, forward or backward, each of which reads what the one before it has written.
template <typename T>
class Chain {
public:
    static constexpr const char* kCalls = "FFBFFBF";
    static constexpr int kCount = 7;

    Chain(int64_t N, int C)
        : N_(N),
          C_(C),
          inp_(floats(N * C, 1)),
          weight_(floats(C, 2)),
          bias_(floats(C, 3)),
          results_(kCount * N * C),
          statistics_(kCount * 2 * N),
          sums_(kCount * 2 * C),
          scratch_((int64_t)layernorm_backward_scratch(C)) {}

    // the bytes that each call wrote; pause: the calls wait for one another here
    std::vector<Bytes> run(bool pause) {
        for_all([](auto& array) {
            check_cuda(cudaMemset(array.data(), kPoison, array.size() * sizeof(array.uploaded()[0])));
        });
        for (int i = 0; i < kCount; i++) {
            if (i == 0 || pause) { check_cuda(cudaDeviceSynchronize()); }
            kCalls[i] == 'F' ? forward(i) : backward(i);
        }
        check_cuda(cudaDeviceSynchronize());
        std::vector<Bytes> wrote(kCount);
        for_all([&](auto& array) {
            check_guards("layernorm chain", array);
            Bytes all = bytes_of(array);
            size_t each = all.size() / kCount;
            for (int i = 0; i < kCount; i++) {
                wrote[i].insert(wrote[i].end(), all.begin() + i * each, all.begin() + (i + 1) * each);
            }
        });
        return wrote;
    }
    std::string name() const { return fmt::format("layernorm chain {} {}x{}", type_name<T>(), N_, C_); }

private:
    template <typename Each>
    void for_all(Each each) {
        each(results_);
        each(statistics_);
        each(sums_);
    }
    T* result(int i) const { return results_.data() + i * N_ * C_; }
    const T* rows(int i) const { return i < 0 ? inp_.data() : result(i); }
    float* mean(int i) const { return statistics_.data() + i * 2 * N_; }

    void forward(int i) {
        layernorm_forward(LayerNormForward<T>{.out = result(i),
                                              .mean = mean(i),
                                              .rstd = mean(i) + N_,
                                              .inp = rows(i - 1),
                                              .weight = weight_.data(),
                                              .bias = bias_.data(),
                                              .N = N_,
                                              .C = C_},
                          kStream);
    }
    // of the forward call before: what it wrote is taken for dout
    void backward(int i) {
        T* dweight = sums_.data() + i * 2 * C_;
        layernorm_backward(LayerNormBackward<T>{.dinp = result(i),
                                                .dweight = dweight,
                                                .dbias = dweight + C_,
                                                .scratch = scratch_.data(),
                                                .dout = rows(i - 1),
                                                .inp = rows(i - 2),
                                                .weight = weight_.data(),
                                                .mean = mean(i - 1),
                                                .rstd = mean(i - 1) + N_,
                                                .N = N_,
                                                .C = C_},
                           kStream);
    }

    int64_t N_;
    int C_;
    DeviceArray<T> inp_, weight_, bias_;
    DeviceArray<T> results_;         // (kCount,N,C): out or dinp
    DeviceArray<float> statistics_;  // (kCount,2,N): mean, rstd of forward
    DeviceArray<T> sums_;            // (kCount,2,C): dweight, dbias of backward
    Scratch scratch_;
};

template <typename T>
void check_chain(int64_t N, int C) {
    Chain<T> chain(N, C);
    std::vector<Bytes> expected = chain.run(true);
    for (int again = 0; again < 5; again++) {
        std::vector<Bytes> found = chain.run(false);
        int i = 0;
        while (i < chain.kCount && found[i] == expected[i]) { i++; }
        CHECK_MESSAGE(i == chain.kCount, fmt::format("{}: call {} of {} read what was not there yet",
                                                     chain.name(), i + 1, chain.kCount));
    }
}

}  // namespace

TEST_CASE("layernorm regimes: a call waits for those before it") {
    constexpr Shape shapes[] = {{400, 64},   {400, 768},  {200, 1024}, {132, 2048}, {132, 4096}, {66, 8192},
                                {33, 16384}, {16, 32768}, {14, 65536}, {8, 131072}, {4, 262144}, {400, 65},
                                {200, 769},  {16, 769},   {16, 1601},  {16, 4097},  {8, 8191},   {16, 20001}};
    for (Shape s : shapes) {
        check_chain<float>(s.N, s.C);
        check_chain<bf16>(s.N, s.C);
    }
}

// ---- more than 2^31 elements ---------------------------------------------------------------------
//
// Their offsets no int holds. The rows are those of a block of 4,099 (a prime number), over and over: the block alone is
// compared with the truth, and all rows with the block's, bit for bit; dweight and dbias, sums of small integers, are known
// exactly. Thorough only; what the device's memory does not hold is skipped with a message.

namespace {

constexpr int64_t kBlockRows = 4099;

// the problem's tensor with N rows instead of its own
template <typename T>
int64_t bytes_of_rows(const Problem& p, const T& t, int64_t N) {
    auto [rows, cols] = extent_of(p, t);
    return (t.extent == Extent::kColumns ? rows : N) * cols * format_of(t.dtype).bytes;
}

// The exact dweight or dbias of N rows, kInteger's mean being 0 and rstd 1: whole blocks, then more rows.
std::vector<float> exact_sums(const Problem& p, const Output& t, int64_t N) {
    const std::vector<double>&dout = *named(p.in, "dout")->values, &inp = *named(p.in, "inp")->values;
    bool weigh = std::string(t.name) == "dweight";
    std::vector<double> sums(p.C, 0.0);
    for (int64_t row = 0; row < p.N; row++) {
        auto times = (double)(N / p.N + (row < N % p.N));
        for (int64_t c = 0, i = row * p.C; c < p.C; c++, i++) {
            sums[c] += times * dout[i] * (weigh ? inp[i] : 1.0);
        }
    }
    for (int c = 0; c < p.C; c++) { sums[c] += t.initial ? (*t.initial)[c] : 0.0; }
    return convert<float>(sums);
}

// p: with kBlockRows rows, and gradients in fp32
void check_large(const Problem& p, int64_t N) {
    Problem large = p;
    large.N = N;
    size_t needed = (size_t)1 << 30, available = 0, total = 0;
    for (const Input& t : p.in) { needed += bytes_of_rows(p, t, N); }
    for (const Output& t : p.out) { needed += bytes_of_rows(p, t, N); }
    check_cuda(cudaMemGetInfo(&available, &total));
    if (needed > available) {
        MESSAGE(name_of(large, "skipped"), ": needs ", needed >> 30, " GB of device memory, there are ",
                available >> 30);
        return;
    }
    Results block = check_problem(p);
    Tensors tensors = repeated(p, N);
    launch(tensors, large);
    check_cuda(cudaDeviceSynchronize());
    for (size_t i = 0; i < p.out.size(); i++) {
        const Output& t = p.out[i];
        const Tensor& found = tensors.all.at(t.name);
        if (t.extent != Extent::kColumns) {
            expect_repeated(name_of(large, t.name), found, block[i]);
            continue;
        }
        check_guards(name_of(large, t.name), found.memory);
        std::vector<float> expected = exact_sums(p, t, N), sums(p.C);
        Bytes raw = found.memory.download();
        std::memcpy(sums.data(), raw.data(), raw.size());
        check_same(name_of(large, t.name), sums, expected);
    }
}

}  // namespace

TEST_SUITE("thorough") {
    TEST_CASE("layernorm regimes: a row's result does not depend on its batch for each pair of types") {
        for (TypePair types : kTypePairs) {
            constexpr Shape shapes[] = {{20'011, 1}, {20'011, 8}, {20'011, 33}, {20'011, 90}, {20'011, 100},
                                        {4099, 768}, {4099, 769}, {2003, 1792}, {2003, 1793}, {533, 4096},
                                        {267, 8192}, {267, 8191}, {133, 16384}, {133, 16385}, {35, 65537},
                                        {35, 65536}, {9, 262144}, {9, 262152}};
            for (Shape s : shapes) { check_batches_of(types, s); }
        }
    }

    TEST_CASE("layernorm regimes: the same bits in any batch of up to 2^16 rows for each pair of types") {
        for (int C : widths(false)) {
            for (TypePair types : kTypePairs) { check_sizes(types, C, 1000, 1 << 18, false); }
        }
        for (int C : kBatchWidths) {
            const int64_t elements = C <= 8192 ? (int64_t)C << 16 : 1 << 24;
            for (TypePair types : kTypePairs) { check_sizes(types, C, 65'536, elements, true); }
            check_sizes({Dtype::kFp64, false}, C, 65'536, 1 << 24, true);
        }
    }

    TEST_CASE("layernorm_forward regimes: few rows and many for each pair of types") {
        for (TypePair types : kTypePairs) { check_few_and_many(types); }
    }

    TEST_CASE("layernorm regimes: 1000 launches give the same bits") {
        for (int i = 0; i < (int)std::size(kRepeated); i++) { check_repeats(i, kRepeated[i], 1000); }
    }

    TEST_CASE("layernorm regimes: more than 2^31 elements") {
        const CallForm kFp32Gradients = {.name = "fp32 gradients", .fp32_gradients = true};
        constexpr int64_t kRows = (1 << 21) + 3;
        for (int C : {1040, 1041}) {
            Shape block = {kBlockRows, C};
            for (auto* make : kForwards) {
                check_large(make(Dtype::kBf16, block, Inputs::kNormal, kPlain), kRows);
            }
            for (const CallForm* form : {&kFp32Gradients, &kFp32Added}) {
                check_large(layernorm_backward_problem(Dtype::kBf16, block, Inputs::kInteger, *form), kRows);
            }
        }
        // long rows: 16,419 of 131,072 and of one more
        for (int C : {131'072, 131'073}) {
            check_large(layernorm_forward_problem(Dtype::kBf16, {kBlockRows / 40, C}), (1 << 14) + 35);
        }
    }
    // Rows that blocks share where there are no clusters: there is room for what they tell each other of 701,781 such
    // rows at most (581,162 on 132 multiprocessors), and the next launch adds to its sums by column.
    TEST_CASE("layernorm_backward regimes: more rows than one launch takes") {
        check_large(
            layernorm_backward_problem(Dtype::kFp32, {kBlockRows / 40, 8224}, Inputs::kInteger, kAllAdded),
            710'000);
    }
    TEST_CASE("layernorm regimes: more than 2^30 rows") {
        for (int C : {3, 8}) {
            check_large(layernorm_forward_problem(Dtype::kBf16, {kBlockRows, C}), (1 << 30) + 5);
        }
    }
}

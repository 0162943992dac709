// LayerNorm on the GPU with more than 2^31 elements, whose offsets no int holds. The rows are those of a
// block of 4,099 (a prime number), over and over: the block alone is compared with the truth, and all rows
// with the block's, bit for bit; dweight and dbias, sums of small integers, are known exactly. Thorough only;
// what the device's memory does not hold is skipped with a message.
#include "dev/test/gpu/layernorm_runs.h"

using namespace llmc;
using namespace llmc::gpu_test;

namespace {

constexpr int64_t kBlockRows = 4099;

// n bytes: the block's over and over; poison without a block
DeviceArray<std::byte> repeated(const Bytes& block, int64_t n) {
    DeviceArray<std::byte> x(n);
    int64_t have = std::min(n, (int64_t)block.size());
    if (have == 0) { return x; }
    check_cuda(cudaMemcpy(x.data(), block.data(), have, cudaMemcpyHostToDevice));
    for (int64_t more; have < n; have += more) {  // whole blocks until the last time
        more = std::min(have, n - have);
        check_cuda(cudaMemcpy(x.data() + have, x.data(), more, cudaMemcpyDeviceToDevice));
    }
    return x;
}

// the problem's tensors with N rows instead of its own
template <typename T>
int64_t bytes_of_rows(const Problem& p, const T& t, int64_t N) {
    auto [rows, cols] = extent_of(p, t);
    return (t.extent == Extent::kColumns ? rows : N) * cols * format_of(t.dtype).bytes;
}
Tensors repeated(const Problem& p, int64_t N) {
    Tensors tensors;
    tensors.add_scratch(p);
    auto add = [&](const auto& t, const Values& values, bool input) {
        const Format& f = format_of(t.dtype);
        Bytes block = values ? encode_all(*values, f) : Bytes();
        tensors.all.try_emplace(t.name, repeated(block, bytes_of_rows(p, t, N)),
                                extent_of(p, t).second * f.bytes, input);
    };
    for (const Input& t : p.in) { add(t, t.values, true); }
    for (const Output& t : p.out) { add(t, t.initial, false); }
    return tensors;
}

// all rows of x have the bytes of the block's; pieces of about 64 MB are looked at together
void expect_repeated(const std::string& name, const Tensor& x, const Bytes& block) {
    check_guards(name, x.memory);
    int64_t period = (int64_t)block.size(), n = x.memory.size();
    int64_t piece = std::max<int64_t>(1, (64 << 20) / period) * period, wrong = -1;
    for (int64_t begin = 0; begin < n && wrong < 0; begin += piece) {
        Bytes some = x.memory.download(begin, std::min(piece, n - begin));
        for (int64_t at = 0; at < (int64_t)some.size() && wrong < 0; at += period) {
            int64_t count = std::min(period, (int64_t)some.size() - at);
            if (std::memcmp(&some[at], block.data(), count) == 0) { continue; }
            auto differs = std::mismatch(block.begin(), block.begin() + count, some.begin() + at);
            wrong = begin + at + (differs.first - block.begin());
        }
    }
    long long row_bytes = (long long)x.row_bytes;
    CHECK_MESSAGE(wrong < 0,
                  fmt::format("{}: row {} of {}, byte {}: not the bits of row {}", name, wrong / row_bytes,
                              n / row_bytes, wrong % row_bytes, wrong % period / row_bytes));
}

const Values& values_of(const Problem& p, const std::string& name) {
    for (const Input& t : p.in) {
        if (t.name == name) { return t.values; }
    }
    throw Error(kExitUsage, "no input " + name);
}

// The exact dweight or dbias of N rows, kInteger's mean being 0 and rstd 1: whole blocks, then more rows.
std::vector<float> exact_sums(const Problem& p, const Output& t, int64_t N) {
    const std::vector<double>&dout = *values_of(p, "dout"), &inp = *values_of(p, "inp");
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

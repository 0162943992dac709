// What updates parameters: AdamW, the norm that gradients are clipped by, Muon, and the rounding to bf16 at random. Of Muon: the
// reference against what the iterations must do to singular values, the CPU's products against the reference, and training
// steps of the CPU model against the reference model.
#include "dev/test/support/any_model.h"
#include "dev/test/support/muon_bounds.h"
#include "dev/test/support/reference_model.h"
#include "dev/test/support/test_files.h"
#include "llmc/model/cpu/blas.h"
#include "llmc/model/cpu/gpt2.h"
#include "llmc/model/cpu/reference.h"
#include "llmc/ops/stochastic_rounding.h"

using namespace llmc;

namespace {

using Vector = std::vector<double>;
using Floats = std::vector<float>;

struct Shape {
    int rows, cols;
    std::string text() const { return fmt::format("rows={} cols={}", rows, cols); }
};
constexpr Shape kShapes[] = {{1, 1},   {1, 7},   {9, 1},    {8, 8},  {5, 20},
                             {33, 17}, {64, 64}, {32, 128}, {96, 24}};

// n orthonormal rows of length m >= n (Gram-Schmidt, twice)
Vector orthonormal(int n, int m, uint64_t seed) {
    Vector x = random_vector<double>((int64_t)n * m, seed);
    for (int i = 0; i < 2 * n; i++) {
        double* row = &x[(size_t)(i % n) * m];
        for (int j = 0; j < i % n; j++) {
            const double* other = &x[(size_t)j * m];
            double dot = 0;
            for (int k = 0; k < m; k++) { dot += row[k] * other[k]; }
            for (int k = 0; k < m; k++) { row[k] -= dot * other[k]; }
        }
        const double length = global_norm_cpu(row, m);
        for (int k = 0; k < m; k++) { row[k] /= length; }
    }
    return x;
}

// sum over k of s[k] u_k v_k^T: (rows,cols) with these singular values
Vector with_singular_values(const Vector& s, const Vector& u, const Vector& v, Shape shape) {
    Vector x((size_t)shape.rows * shape.cols);
    for (size_t k = 0; k < s.size(); k++) {
        for (int i = 0; i < shape.rows; i++) {
            for (int j = 0; j < shape.cols; j++) {
                x[(size_t)i * shape.cols + j] += s[k] * u[k * shape.rows + i] * v[k * shape.cols + j];
            }
        }
    }
    return x;
}

double frobenius(const Vector& a, const Floats& b) {
    double squares = 0;
    for (size_t i = 0; i < a.size(); i++) { squares += std::pow(a[i] - b[i], 2); }
    return std::sqrt(squares);
}

Floats by_blas(Floats x, Shape s) {
    Floats scratch = poisoned<float>(newton_schulz_scratch_blas(s.rows, s.cols));
    newton_schulz_blas(x.data(), scratch.data(), s.rows, s.cols);
    return x;
}

// sums of as many terms as the larger side has, and a few roundings around them
Roundoff fp32(Shape s) { return {(std::max(s.rows, s.cols) + 4) * kFloatRoundoff, 2 * kFloatRoundoff}; }

}  // namespace

// ---- AdamW and the norm ------------------------------------------------------------------------

TEST_CASE("adamw: several updates against the paper's order of operations") {
    for (int n : {1, 17, 100}) {
        Vector param = random_vector<double>(n, 1), m(n, 0.0), v(n, 0.0), p = param, m2 = m, v2 = v;
        AdamWParams options{.lr = 0.01,
                            .beta1 = 0.9,
                            .beta2 = 0.95,
                            .eps = 1e-8,
                            .keep = 1 - 0.01 * 0.1,
                            .grad_scale = 0.5,
                            .update = 0};
        for (int update = 1; update <= 5; update++) {
            Vector grad = random_vector<double>(n, 10 + update);
            options.update = update;
            adamw_cpu(param.data(), m.data(), v.data(), grad.data(), n, options);
            for (int i = 0; i < n; i++) {
                double g = grad[i] * 0.5;
                p[i] -= 0.01 * 0.1 * p[i];
                m2[i] += (1 - 0.9) * (g - m2[i]);
                v2[i] += (1 - 0.95) * (g * g - v2[i]);
                double first = m2[i] / (1 - std::pow(0.9, update));
                double second = v2[i] / (1 - std::pow(0.95, update));
                p[i] -= 0.01 * first / (std::sqrt(second) + 1e-8);
            }
        }
        const double bound = 100 * kDoubleRoundoff;  // 5 updates of 20 roundings
        check_near(fmt::format("adamw param n={}", n), param, p, bound);
        check_near(fmt::format("adamw m n={}", n), m, m2, bound);
        check_near(fmt::format("adamw v n={}", n), v, v2, bound);
    }
}

TEST_CASE("adamw: the first update moves every parameter by the learning rate, against its gradient's sign") {
    Vector grad = {1e-3, -5, 100, -1e-4, 0}, param(5, 1.0), m(5, 0.0), v(5, 0.0);
    AdamWParams options{
        .lr = 0.01, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-12, .keep = 1, .grad_scale = 1, .update = 1};
    adamw_cpu(param.data(), m.data(), v.data(), grad.data(), 5, options);
    check_near("adamw param n=5", param, Vector{0.99, 1.01, 0.99, 1.01, 1}, 0.01 * 2e-8);
    options.keep = 1 - 0.01 * 0.5;  // decoupled: the same pull whatever the gradient
    Vector decayed = {2.0}, zero = {0.0}, m1 = {0.0}, v1 = {0.0};
    adamw_cpu(decayed.data(), m1.data(), v1.data(), zero.data(), 1, options);
    check_near("adamw param, decay alone, n=1", decayed, Vector{2 * (1 - 0.01 * 0.5)}, 1e-15);
}

TEST_CASE("global_norm: 3-4-5, nothing, and many chunks") {
    Floats three_four = {3, -4};
    CHECK(global_norm_cpu(three_four.data(), 2) == 5);
    CHECK(global_norm_cpu(three_four.data(), 0) == 0);
    for (int64_t n : {65535, 65536, 65537, 200000}) {
        Floats x((size_t)n, 2.0f);
        x.back() = 1000;  // the sum of squares is a whole number: exact
        double expected = std::sqrt(4.0 * (double)(n - 1) + 1e6), found = global_norm_cpu(x.data(), n);
        CHECK_MESSAGE(found == expected, fmt::format("global_norm n={}: found {:.17g} expected {:.17g}",
                                                     (int)n, found, expected));
    }
    Floats bad = {1, INFINITY, 1};
    CHECK(std::isinf(global_norm_cpu(bad.data(), 3)));
    bad[1] = NAN;
    CHECK(std::isnan(global_norm_cpu(bad.data(), 3)));
}

// ---- Muon: the iterations ----------------------------------------------------------------------------

TEST_CASE("muon: five iterations bring what is not next to nothing between 0.68 and 1.21") {
    double least = 2, most = 0;
    for (int k = 1600; k <= 1'000'000; k++) {
        const double s = iterated(k * 1e-6);
        least = std::min(least, s), most = std::max(most, s);
    }
    CHECK(least > 0.68);
    CHECK(most < 1.203);
    CHECK(iterated(0.0014) < 0.66);
}

TEST_CASE("muon: the reference changes singular values, and leaves the singular vectors as they are") {
    for (Shape shape : kShapes) {
        const int side = std::min(shape.rows, shape.cols);
        const Vector u = orthonormal(side, shape.rows, 1), v = orthonormal(side, shape.cols, 2);
        Vector s;
        for (int k = 0; k < side; k++) { s.push_back(k % 5 == 4 ? 0 : std::exp(-0.1 * k)); }  // some are zero
        const double norm = global_norm_cpu(s.data(), side);
        Vector x = with_singular_values(s, u, v, shape), due;
        for (double value : s) { due.push_back(iterated(value / norm)); }
        Vector falling = s;
        std::sort(falling.rbegin(), falling.rend());
        check_near("singular values " + shape.text(), singular_values(x, shape.rows, shape.cols), falling,
                   1e-13);
        newton_schulz_cpu(x.data(), shape.rows, shape.cols);
        check_near("newton_schulz_cpu " + shape.text(), x, with_singular_values(due, u, v, shape),
                   1e-11);  // 2^-53 of 1, enlarged up to 4^5 times, in sums of 128
    }
}

TEST_CASE("muon: by the BLAS as in the reference") {
    for (Shape shape : kShapes) {
        for (double scale : {1.0, 1e-8, 1e15}) {
            const Floats x = random_vector<float>((int64_t)shape.rows * shape.cols, 4, scale);
            Vector due = convert<double>(x);
            const double bound =
                newton_schulz_bound(singular_values(due, shape.rows, shape.cols), fp32(shape));
            newton_schulz_cpu(due.data(), shape.rows, shape.cols);
            const double found = frobenius(due, by_blas(x, shape));
            CHECK_MESSAGE(found <= bound,
                          fmt::format("newton_schulz_blas {} scale {:g}: off by {:.3g} bound {:.3g}",
                                      shape.text(), scale, found, bound));
            CHECK(bound < 0.02 * std::sqrt(std::min(shape.rows, shape.cols)));  // it sees something
        }
    }
}

TEST_CASE("muon: a gradient without rank, or without anything, gives no NaN") {
    const Shape shape{24, 96};
    const Vector u = orthonormal(2, shape.rows, 5), v = orthonormal(2, shape.cols, 6);
    for (const Vector& s : {Vector{1.0}, Vector{3.0, 1e-6}}) {
        const Vector x = with_singular_values(s, u, v, shape);
        const Floats found = by_blas(convert<float>(x), shape);
        const Vector values = singular_values(convert<double>(found), shape.rows, shape.cols);
        CHECK(std::fabs(values[0] - iterated(1.0)) < 1e-3);
        // float's noise, 2^-24 of the largest, is enlarged like a singular value of its size: 3.45^5 times
        CHECK(values[s.size()] < 500 * 16 * kFloatRoundoff);
    }
    for (float same : {0.0f, -0.0f, 1e-38f, 1e-45f, 1e18f}) {
        const Floats found = by_blas(Floats((size_t)shape.rows * shape.cols, same), shape);
        const bool zero = same == 0;
        CHECK(std::all_of(found.begin(), found.end(),
                          [&](float x) { return zero ? x == 0 : std::isfinite(x) && std::fabs(x) < 1; }));
    }
}

// ---- Muon: a matrix's update -------------------------------------------------------------------------

TEST_CASE("muon: mean and look ahead, by hand") {
    const double grad[] = {4, -2};
    double m[] = {1, 0}, u[2];
    muon_momentum_cpu(u, m, grad, 2, 0.5);
    for (auto [found, due] : {std::pair{m[0], 1.05}, {m[1], -0.05}, {u[0], 1.0975}, {u[1], -0.0975}}) {
        CHECK(std::fabs(found - due) < 1e-15);
    }
}

// Of one number: u / |u| becomes iterated(1) = 0.696, whatever the size of the gradient; the scale is 0.2.
TEST_CASE("muon: of a matrix of one number, by hand") {
    for (double grad : {5.0, -0.1}) {
        double param = 2, m = 0;
        muon_cpu(&param, &m, &grad, 1, 1, {.lr = 0.5, .keep = 1 - 0.5 * 0.1, .grad_scale = 0.25});
        CHECK(std::fabs(m - 0.05 * 0.25 * grad) <= 1e-15 * std::fabs(grad));
        const double due = 2 * (1 - 0.5 * 0.1) - std::copysign(0.5 * 0.2 * 0.69643640946975, grad);
        CHECK(std::fabs(param - due) < 1e-9);        // eps beside |u|
        const double before = param, next = -3 * m;  // shorter than the mean's weight: the direction stays
        muon_cpu(&param, &m, &next, 1, 1, {.lr = 0, .keep = 1, .grad_scale = 1});
        CHECK(param == before);
        CHECK(std::fabs(m - (0.95 * 0.05 * 0.25 * grad - 0.05 * 3 * 0.05 * 0.25 * grad)) <=
              1e-15 * std::fabs(grad));
    }
}

// ---- Muon: the model ---------------------------------------------------------------------------------

TEST_CASE("muon: the CPU model's steps are the reference's") {
    const GPT2Config c = tiny_config();
    for (double clip : {0.0, 0.25}) {
        GPT2Cpu model(c, 4, 9, {.muon = true});
        ReferenceModel<double> reference(c, 4, 9, Rounding::kNone, true);
        model.init(5);
        fill_lively(&model, 3);
        copy_states(&reference, model);
        // A gradient off by `once` of itself is a direction off by 4^5 times that at most (muon_bounds.h),
        // and each of three steps adds as much; eps = 1 for AdamW's part, as in test_model.cpp.
        const double once = reordering(c, 36), muon = 1024 * once;
        const StepParams params{0, 0.1, 0.9, 0.95, 1.0, 0.2, clip};
        for (int k = 0; k < 3; k++) {
            const Batch batch = random_batch(c, 4, 9, (uint64_t)(20 + k));
            const StepResult found = step(&model, {&batch, 1}, params),
                             due = step(&reference, {&batch, 1}, params);
            CHECK_FALSE(found.skipped);
            CHECK(std::fabs(found.loss - due.loss) <= (k + 1) * muon * due.loss);
        }
        for (State state : kStates) {
            for (int t = 0; t < kNumTensors; t++) {
                if (!model.holds(state, t)) { continue; }
                const Floats due = whole_tensor(reference, state, t);
                check_close(fmt::format("muon state {} {} clip {:g}", (int)state, kTensors[t].name, clip),
                            whole_tensor(model, state, t), due, {6 * muon, 3 * muon});
            }
        }
        CHECK(muon < 0.01);
    }
}

// Each of q, k and v, and every other matrix, moves by lr 0.2 in the root of the mean square, give or take
// the band; a gradient 1000 times as large moves it as far.
TEST_CASE("muon: every matrix moves as far, whatever the size of its gradient") {
    const GPT2Config c = tiny_config();
    const Batch batch = random_batch(c, 4, 9, 1);
    GPT2Cpu model(c, 4, 9, {.muon = true}), other(c, 4, 9, {.muon = true});
    for (GPT2Cpu* m : {&model, &other}) {
        m->init(5);
        fill_lively(m, 3);
    }
    // of layer 1, v's mean gradient is long
    const int64_t size = (int64_t)c.channels * c.channels, v = 3 * size + 2 * size;
    other.load(State::kFirstMoment, kQkvw, v, random_vector<float>(size, 9, 1000));
    const Floats before = whole_state(model, State::kParameter);
    for (GPT2Cpu* m : {&model, &other}) { step(m, {&batch, 1}, {.lr = 0.1}); }
    const Floats after = whole_state(model, State::kParameter), moved = whole_state(other, State::kParameter);
    int64_t begin = 0, matrices = 0;
    for (int t = 0; t < kNumTensors; begin += tensor_total(c, t++)) {
        const bool muon = t == kQkvw || t == kAttprojw || t == kFcw || t == kFcprojw;
        const int64_t each = t == kQkvw ? size : tensor_size(c, t);
        for (int64_t at = begin; muon && at < begin + tensor_total(c, t); at += each, matrices++) {
            for (const Floats* x : {&after, &moved}) {
                double squares = 0;
                for (int64_t i = at; i < at + each; i++) { squares += std::pow((*x)[i] - before[i], 2); }
                const double rms = std::sqrt(squares / (double)each);
                CHECK(rms > 0.1 * 0.2 * 0.5);
                CHECK(rms < 0.1 * 0.2 * 1.21);
            }
            const bool same = std::equal(after.begin() + at, after.begin() + at + each, moved.begin() + at);
            CHECK(same == !(t == kQkvw && at == begin + v));
        }
    }
    CHECK(matrices == 6 * 3);
}

TEST_CASE("muon: no second moments of the blocks' matrices, in memory and in the plan") {
    const GPT2Config c = tiny_config();
    const MemoryPlan adamw = GPT2Cpu::plan(c, 4, 9), muon = GPT2Cpu::plan(c, 4, 9, {.muon = true});
    const int64_t matrices = 12 * (int64_t)c.channels * c.channels * c.num_layers * 4;
    const int64_t scratch = (2 * 4 + 2) * (int64_t)c.channels * c.channels * 4;
    // a tensor begins at a multiple of 256 bytes
    CHECK(muon.optimizer <= adamw.optimizer - matrices + scratch);
    CHECK(muon.optimizer > adamw.optimizer - matrices + scratch - 4 * 256 * c.num_layers);
    CHECK(muon.parameters == adamw.parameters);
    GPT2Cpu model(c, 4, 9, {.muon = true});
    Floats x(1);
    for (int t = 0; t < kNumTensors; t++) {
        const bool matrix = t == kQkvw || t == kAttprojw || t == kFcw || t == kFcprojw;
        CHECK(model.holds(State::kSecondMoment, t) == !matrix);
        CHECK(model.holds(State::kFirstMoment, t));
        if (!matrix) { continue; }
        check_error([&] { model.save(State::kSecondMoment, t, 0, x); }, kExitUsage, {"second moment"});
        check_error([&] { model.load(State::kSecondMoment, t, 0, x); }, kExitUsage, {"second moment"});
    }
    // of two ranks each has one moment of its matrices
    const ModelSettings two_ranks{.muon = true, .ranks = 2, .groups = 2};
    const StateShares shares(c, two_ranks);
    const int64_t seconds = ParameterLayout(c, false).size();
    CHECK(shares.seconds.sizes[0] + shares.seconds.sizes[1] == seconds);
    CHECK(muon.optimizer - GPT2Cpu::plan(c, 4, 9, two_ranks).optimizer ==
          4 * (ParameterLayout(c).size() + seconds - shares.largest() - shares.seconds.largest()));
}

// ---- stochastic rounding ----------------------------------------------------------------------

namespace {

constexpr uint64_t kRoundingSeed = 0x1234'5678'9abc'def0;

// One 16-bit number from the definition: Philox4x32-10 of the counter (index of 8 elements, its upper half,
// stream 32 + tensor, updates) under the seed; two elements a word, the low half first.
uint32_t bits_by_definition(uint64_t seed, uint32_t tensor, uint32_t updates, uint64_t element) {
    uint64_t index = element / 8;
    uint32_t x[4] = {(uint32_t)index, (uint32_t)(index >> 32), 32 + tensor, updates};
    for (uint32_t round = 0; round < 10; round++) {
        uint32_t key[2] = {(uint32_t)seed + round * 0x9E3779B9u,
                           (uint32_t)(seed >> 32) + round * 0xBB67AE85u};
        uint64_t left = 0xD2511F53ull * x[0], right = 0xCD9E8D57ull * x[2];
        x[0] = (uint32_t)(right >> 32) ^ x[1] ^ key[0];
        x[1] = (uint32_t)right;
        x[2] = (uint32_t)(left >> 32) ^ x[3] ^ key[1];
        x[3] = (uint32_t)left;
    }
    return x[element % 8 / 2] >> element % 2 * 16 & 0xffffu;
}

// The correlation of two streams of n numbers that are uniform in [0, 2^16): 0 for independent ones, with a
// standard deviation of 1 / sqrt(n).
template <typename First, typename Second>
double correlation(int64_t n, First first, Second second) {
    constexpr double mean = (0x1p16 - 1) / 2, variance = (0x1p32 - 1) / 12;
    double sum = 0;
    for (int64_t i = 0; i < n; i++) { sum += (first(i) - mean) * (second(i) - mean); }
    return sum / (double)n / variance;
}

// as documented: of the numbers below the largest bfloat16, by less than a unit of it, those that were rounded up to it
bool comes_back_larger(uint32_t bits, uint32_t random) {
    return (bits >> 16 & 0x7fffu) == 0x7f7eu && (bits & 0xffffu) < 0x8000u &&
           (bits & 0xffffu) + random > 0xffffu;
}

}  // namespace

TEST_CASE("rounding_bits: known bits, and those of the definition") {
    constexpr uint32_t known[] = {0x67ba, 0xfac9, 0x1d3f, 0xe42c, 0x10c9, 0x4faf, 0xb759, 0x1893};
    for (int i = 0; i < 8; i++) {
        uint32_t found = rounding_bits(kRoundingSeed, kQkvw, 3, i);
        CHECK_MESSAGE(
            found == known[i],
            fmt::format("rounding_bits element {}: found 0x{:04x} expected 0x{:04x}", i, found, known[i]));
    }
    int64_t wrong = 0;
    for (int tensor : {(int)kWte, (int)kQkvw, (int)kLnfb}) {
        for (int64_t updates : {1, 2, 1000, 100000}) {
            for (int64_t first : {(int64_t)0, (int64_t)1000, (int64_t)INT32_MAX - 50, (int64_t)1 << 36}) {
                for (int64_t i = first; i < first + 100; i++) {
                    wrong += rounding_bits(kRoundingSeed, tensor, updates, i) !=
                             bits_by_definition(kRoundingSeed, tensor, updates, i);
                }
            }
        }
    }
    CHECK_MESSAGE(wrong == 0, fmt::format("rounding_bits: {} differ from the definition", (int)wrong));
}

TEST_CASE("rounding_bits: before the first update to the nearest") {
    for (int64_t i : {0, 1, 2, 3, 4, 5, 6, 7, 1001}) {
        CHECK(rounding_bits(kRoundingSeed, kQkvw, 0, i) == kToNearest);
    }
}

// 6 standard deviations: once in 5e8 times
TEST_CASE("rounding_bits: no correlation between neighbours, tensors, updates and seeds") {
    constexpr int64_t n = 1 << 16;
    auto bits = [](uint64_t seed, int tensor, int64_t updates, int64_t shift) {
        return [=](int64_t i) { return (double)rounding_bits(seed, tensor, updates, i + shift); };
    };
    auto check_against = [&](const std::string& name, auto second) {
        double found = correlation(n, bits(kRoundingSeed, kQkvw, 3, 0), second);
        CHECK_MESSAGE(std::fabs(found) <= 6 / std::sqrt((double)n),
                      fmt::format("rounding_bits and those of {}: correlation {:.4f}", name, found));
    };
    for (int shift : {1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 768}) {
        check_against(fmt::format("the element {} on", shift), bits(kRoundingSeed, kQkvw, 3, shift));
    }
    check_against("the next tensor", bits(kRoundingSeed, kQkvw + 1, 3, 0));
    check_against("the next update", bits(kRoundingSeed, kQkvw, 4, 0));
    check_against("the next seed", bits(kRoundingSeed + 1, kQkvw, 3, 0));
}

// every upper half, with lower halves and random numbers at and around where the sum carries
TEST_CASE("unrounded: the float again, but below the largest bfloat16, and NaN as a NaN") {
    int64_t wrong = 0, larger = 0, nans = 0;
    for (uint32_t high = 0; high <= 0xffffu; high++) {
        for (uint32_t low : {0x0000u, 0x0001u, 0x3039u, 0x7fffu, 0x8000u, 0x8001u, 0xfffeu, 0xffffu}) {
            for (uint32_t random : {0x0000u, 0x0001u, 0x0002u, 0x7fffu, 0x8000u, 0x8001u, 0xcfc7u, 0xffffu}) {
                const uint32_t bits = high << 16 | low;
                const uint32_t back = unrounded(round_stochastically(bits, random), (uint16_t)low, random);
                const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
                nans += nan;
                larger += comes_back_larger(bits, random);
                wrong += nan                               ? (back & 0x7fffffffu) <= 0x7f800000u
                         : comes_back_larger(bits, random) ? back != bits + 0x10000u
                                                           : back != bits;
            }
        }
    }
    CHECK_MESSAGE(wrong == 0, fmt::format("unrounded: {} come back wrong", (int)wrong));
    CHECK(larger > 0);
    CHECK(nans > 0);
}

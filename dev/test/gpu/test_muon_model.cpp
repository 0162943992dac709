// Muon on the GPU but for its own kernels (test_optimizers.cpp): Newton-Schulz iterations, by products of cuBLASLt, against the
// reference in double; then the whole model with --optimizer muon: each update against the reference, from the model's own
// gradients and moments; the memory that is planned. Going on from a saved state: test_model_steps.cpp.
#include "dev/test/gpu/gpu_model.h"
#include "dev/test/gpu/layer_test.h"
#include "dev/test/support/muon_bounds.h"
#include "dev/test/support/reference_model.h"
#include "dev/test/support/test_files.h"
#include "llmc/ops/adamw.h"
#include "llmc/ops/muon/newton_schulz.h"

using namespace llmc;
using namespace llmc::gpu_test;

// ---- Newton-Schulz -------------------------------------------------------------------------------

namespace {

struct Matrices {
    int rows, cols, count;
    int64_t size() const { return (int64_t)rows * cols; }
    std::string text() const { return fmt::format("rows={} cols={} count={}", rows, cols, count); }
};
constexpr Matrices kShapes[] = {{1, 1, 1},    {8, 8, 1},     {14, 14, 3},  {56, 14, 2},
                                {14, 56, 3},  {7, 9, 2},     {64, 64, 12}, {128, 32, 3},
                                {32, 128, 3}, {200, 200, 2}, {256, 64, 2}, {64, 256, 5}};

// fp32: what a sum of K products is off by, in units of the terms' sizes, as in test_matmul.cpp
Roundoff roundoff(const Matrices& s) { return {u * (additions(std::max(s.rows, s.cols)) + 4), 2 * u}; }

// The iterations with every matrix that is stored rounded to bf16, x (rows,cols) in place.
void iterate_in_bf16(Vector& x, int rows, int cols) {
    if (rows > cols) {
        Vector wide(x.size());
        transpose_cpu(wide.data(), x.data(), rows, cols);
        iterate_in_bf16(wide, cols, rows);
        return transpose_cpu(x.data(), wide.data(), cols, rows);
    }
    Vector a((size_t)rows * rows), b(a.size()), xt(x.size()), bx(x.size());
    const double* none = nullptr;
    for (int step = 0; step < kNewtonSchulzSteps; step++) {
        matmul_forward_cpu(a.data(), x.data(), x.data(), none, rows, cols, rows);
        for (double& value : a) { value = nearest_bf16((float)value); }
        matmul_forward_cpu(b.data(), a.data(), a.data(), none, rows, rows, rows);
        for (size_t i = 0; i < b.size(); i++) {
            b[i] = nearest_bf16((float)(kNewtonSchulzB * a[i] + kNewtonSchulzC * b[i]));
        }
        transpose_cpu(xt.data(), x.data(), rows, cols);
        matmul_forward_cpu(bx.data(), b.data(), xt.data(), none, rows, rows, cols);
        for (size_t i = 0; i < x.size(); i++) { x[i] = nearest_bf16((float)(kNewtonSchulzA * x[i] + bx[i])); }
    }
}

double distance(const Vector& a, const Vector& b) {
    double squares = 0;
    for (size_t i = 0; i < a.size(); i++) { squares += std::pow(a[i] - b[i], 2); }
    return std::sqrt(squares);
}

// matrices of norm 1, as far as T has it; of each that many singular values only, 0: all
template <typename T>
DeviceArray<T> inputs(const Matrices& s, int rank) {
    Floats all((size_t)(s.count * muon_stride(s.size())));
    for (int k = 0; k < s.count; k++) {
        Floats x = floats(s.size(), (uint64_t)(10 + k));
        if (rank > 0) {
            const Floats left = floats((int64_t)s.rows * rank, 20),
                         right = floats((int64_t)rank * s.cols, 21);
            for (int i = 0; i < s.rows; i++) {
                for (int j = 0; j < s.cols; j++) {
                    x[(size_t)i * s.cols + j] = 0;
                    for (int r = 0; r < rank; r++) {
                        x[(size_t)i * s.cols + j] +=
                            left[(size_t)i * rank + r] * right[(size_t)r * s.cols + j];
                    }
                }
            }
        }
        const double norm = global_norm_cpu(x.data(), s.size());
        for (int64_t i = 0; i < s.size(); i++) { all[k * muon_stride(s.size()) + i] = (float)(x[i] / norm); }
    }
    return DeviceArray<T>(all);
}

template <typename T>
struct Run {
    DeviceArray<T> x, out, squares;
    DeviceArray<std::byte> workspace{(int64_t)Matmul::kWorkspace};
    explicit Run(const Matrices& s, int rank = 0)
        : x(inputs<T>(s, rank)), out(x.size()), squares(newton_schulz_squares(s.rows, s.cols, s.count)) {
        Matmul products(workspace.data(), false);
        newton_schulz(products, out.data(), x.data(), squares.data(), s.rows, s.cols, s.count, s.count,
                      kStream);
        check_cuda(cudaStreamSynchronize(kStream));
    }
};

template <typename T>
Vector matrix(const DeviceArray<T>& all, const Matrices& s, int k) {
    return DeviceArray<T>::widened(all.download(k * muon_stride(s.size()), s.size()));
}

// fp32: against the same in double, by the bound. bf16: against the same with the same roundings. Where
// sums in fp32 make a number round to the other side, what follows is rounded afresh: two computations with
// roundings of their own are further from each other than each is from the truth, but not twice as far.
template <typename T>
void check_run(const Matrices& s) {
    const Vector given = inputs<T>(s, 0).values();
    const Run<T> run(s);
    const std::string name = fmt::format("newton_schulz {} {}", type_name<T>(), s.text());
    for (const auto* array : {&run.x, &run.out, &run.squares}) { check_guards(name, *array); }
    for (int k = 0; k < s.count; k++) {
        const auto begin = given.begin() + k * muon_stride(s.size());
        Vector exact(begin, begin + s.size()), due = exact;
        double bound = newton_schulz_bound(singular_values(exact, s.rows, s.cols), roundoff(s));
        newton_schulz_steps_cpu(exact.data(), s.rows, s.cols);
        if (sizeof(T) == 2) {
            iterate_in_bf16(due, s.rows, s.cols);
            bound = 2 * distance(due, exact) + 0x1p-8 * distance(exact, Vector(exact.size()));
        } else {
            due = exact;
        }
        const double error = distance(matrix(run.out, s, k), due);
        CHECK_MESSAGE(error <= bound,
                      fmt::format("{} matrix {}: off by {:.3g} bound {:.3g}", name, k, error, bound));
        CHECK(bound < 0.05 * std::sqrt(std::min(s.rows, s.cols)));  // it sees something
        note_ratio(name, {error}, {0}, [&](size_t) { return bound; });
    }
}

}  // namespace

TEST_CASE("newton_schulz: against the reference") {
    for (const Matrices& s : kShapes) {
        check_run<float>(s);
        check_run<bf16>(s);
    }
}

// Of singular values of about 1 the last iteration in bf16 is off by 17 times 2^-8 at most: b + 2 c times
// A's rounding, b + c times B's, and the result's.
TEST_CASE("newton_schulz: singular values end in the band, those that are zero stay next to zero") {
    for (const Matrices& s : kShapes) {
        const int side = std::min(s.rows, s.cols);
        if (side == std::max(s.rows, s.cols)) { continue; }  // a square one may have any small singular value
        const Run<bf16> run(s);
        for (int k = 0; k < s.count; k++) {
            const Vector values = singular_values(matrix(run.out, s, k), s.rows, s.cols);
            CHECK_MESSAGE(values.front() < 1.203 + 17 * 0x1p-8, s.text());
            CHECK_MESSAGE(values.back() > 0.68 - 17 * 0x1p-8, s.text());
        }
        if (side < 14) { continue; }
        const Run<float> poor(s, 2);
        for (int k = 0; k < s.count; k++) {
            const Vector values = singular_values(matrix(poor.out, s, k), s.rows, s.cols);
            CHECK(values[0] < 1.203);
            CHECK(values[2] < 500 * 16 * u);  // fp32's noise, enlarged up to 3.45^5 times
        }
    }
}

TEST_CASE("newton_schulz: zeros stay zeros, and the same run gives the same bits") {
    const Matrices s{64, 256, 3};
    DeviceArray<bf16> x(Floats((size_t)(s.count * muon_stride(s.size())))), out(x.size()),
        squares(newton_schulz_squares(s.rows, s.cols, s.count));
    DeviceArray<std::byte> workspace((int64_t)Matmul::kWorkspace);
    Matmul products(workspace.data(), false);
    newton_schulz(products, out.data(), x.data(), squares.data(), s.rows, s.cols, s.count, s.count, kStream);
    expect_same("newton_schulz of zeros", out, x.uploaded());
    for (const Matrices& shape : kShapes) {
        check_rerun("newton_schulz " + shape.text(), [&] { return bytes_of(Run<bf16>(shape).out); });
    }
}

// of GPT-2 124M's shapes, too, with as many at once as one rank or one of several computes
TEST_CASE_TEMPLATE("newton_schulz: a matrix has the same bits however many are computed at once", T, float,
                   bf16) {
    for (const Matrices& s :
         {Matrices{14, 14, 3}, {14, 56, 5}, {768, 768, 36}, {3072, 768, 12}, {768, 3072, 12}}) {
        DeviceArray<std::byte> workspace((int64_t)Matmul::kWorkspace);
        Matmul products(workspace.data(), false);
        const DeviceArray<T> given = inputs<T>(s, 0);
        DeviceArray<T> out(given.size()), squares(newton_schulz_squares(s.rows, s.cols, s.count));
        auto run = [&](int at_once) {
            DeviceArray<T> x(given.values());
            const int64_t stride = muon_stride(s.size());
            for (int k = 0; k < s.count; k += at_once) {
                newton_schulz(products, out.data() + k * stride, x.data() + k * stride, squares.data(),
                              s.rows, s.cols, std::min(at_once, s.count - k), s.count, kStream);
            }
            return out.download();
        };
        const std::vector<T> due = run(s.count);
        for (int at_once : {1, 2, 3, 5, 6, 9, 18}) {
            INFO("s.text() ", s.text(), ", at_once ", at_once);
            const std::vector<T> found = run(at_once);
            CHECK(std::memcmp(found.data(), due.data(), due.size() * sizeof(T)) == 0);
        }
    }
}

// ---- the whole model -----------------------------------------------------------------------------

namespace {

constexpr ModelSettings kMuon{.muon = true};

// A direction in bf16 is further from the exact one than its last rounding: rounding to 2^-8 of the size is
// enlarged in directions in which the gradient is next to nothing. All of the movement but a third is still
// determined.
template <typename Model>
constexpr double kDirectionError = kIsBf16<Model> ? 0.33 : 0.02;

template <typename Model>
struct Step {
    Model& model;
    std::vector<float> weights, moments, gradients;  // before the step, and those it was given
    StepResult result;

    Step(Model& m, int tensor, std::span<const Batch> batches, const StepParams& params)
        : model(m),
          weights(whole_tensor(m, State::kParameter, tensor)),
          moments(whole_tensor(m, State::kFirstMoment, tensor)),
          gradients((size_t)tensor_total(m.config(), tensor)),
          result(step(&m, batches, params)) {
        model.save_gradient(tensor, 0, gradients);
    }
};

// of each matrix: its mean to the rounding, its movement as a whole
template <typename Model>
void check_step(const std::string& name, const GPT2Config& c, int tensor, Step<Model>& s,
                const StepParams& params) {
    const BlockMatrices each = block_matrices(c, tensor);
    const int rows = each.rows, cols = each.cols;
    const auto n = (size_t)rows * cols;
    const double scale = params.clip > 0 ? std::min(1.0, params.clip / (s.result.grad_norm + 1e-6)) : 1;
    const std::vector<float> moments = whole_tensor(s.model, State::kFirstMoment, tensor),
                             weights = whole_tensor(s.model, State::kParameter, tensor);
    for (size_t at = 0; at < weights.size(); at += n) {
        const auto part = [&](const std::vector<float>& x) {
            return Vector(x.begin() + at, x.begin() + at + n);
        };
        Vector m = part(s.moments), u(n), due = part(s.weights);
        const Vector gradient = part(s.gradients), before = due;
        muon_momentum_cpu(u.data(), m.data(), gradient.data(), (int64_t)n, scale);
        const std::string which = fmt::format("{} {} at {}", name, kTensors[tensor].name, (int)at);
        const double longest = largest(convert<float>(m)) + largest(s.gradients);
        check_near(which + " mean", part(moments), m, [&](size_t) { return 8 * kFloatRoundoff * longest; });
        newton_schulz_cpu(u.data(), rows, cols);
        muon_step_cpu(due.data(), u.data(), (int64_t)n, muon_scale(rows, cols),
                      {params.lr, 1 - params.lr * params.weight_decay, scale});
        double off = 0, moved = 0;
        const Vector found = part(weights);
        for (size_t i = 0; i < n; i++) {
            off += std::pow(found[i] - due[i], 2);
            moved += std::pow(due[i] - before[i], 2);
        }
        CHECK_MESSAGE(std::sqrt(off) <= kDirectionError<Model> * std::sqrt(moved),
                      fmt::format("{} moved {:.3g}, off by {:.3g}", which, std::sqrt(moved), std::sqrt(off)));
    }
}

std::vector<Batch> batches_of(const GPT2Config& c, int64_t k) { return two_batches(c, 4, 9, 100 + 10 * k); }

}  // namespace

// Of the second model the logits have room for all layers at once, of the first for one after the other; of
// the last the heads are not whole vectors.
TEST_CASE_TEMPLATE("gpu muon: every matrix moves as the reference's", Model, Fp32Model, Bf16Model,
                   NarrowModel) {
    for (const GPT2Config& c :
         {GPT2Config{9, 37, 64, 3, 2, 32}, {9, 8000, 8000, 3, 2, 32}, tiny_config(), {9, 37, 64, 2, 1, 7}}) {
        for (int groups : {1, 2}) {
            for (int tensor : {kQkvw, kAttprojw, kFcw, kFcprojw}) {
                Model model(c, 4, 9, {.muon = true, .groups = groups});
                model.init(5);
                fill_lively(&model, 3);
                for (int64_t k = 0; k < 2; k++) {
                    const StepParams params{k, 0.01, 0.9, 0.95, 1e-8, 0.1, k == 0 ? 0.0 : 0.25};
                    Step<Model> s(model, tensor, batches_of(c, k), params);
                    CHECK_FALSE(s.result.skipped);
                    // of groups the gradients' sum is not kept as one model's gradients are
                    if (groups == 1) {
                        check_step(fmt::format("channels {}", c.channels), c, tensor, s, params);
                    }
                }
                if (groups == 1) { continue; }
                Model whole(c, 4, 9, kMuon);
                whole.init(5);
                fill_lively(&whole, 3);
                for (int64_t k = 0; k < 2; k++) {
                    step(&whole, batches_of(c, k), {k, 0.01, 0.9, 0.95, 1e-8, 0.1, k == 0 ? 0.0 : 0.25});
                }
                const double difference = relative_difference(whole_tensor(model, State::kParameter, tensor),
                                                              whole_tensor(whole, State::kParameter, tensor));
                CHECK(difference < 0.05);  // of weights of about 0.2 that have moved by 2 lr 0.2 at most
            }
        }
    }
}

TEST_CASE("gpu muon: the plan has one moment of the blocks' matrices, and room for their directions") {
    const GPT2Config c{1024, 50257, 50304, 12, 12, 768}, narrow{8, 37, 64, 12, 12, 768};
    const MemoryPlan adamw = Bf16Model::plan(c, 8, 1024), muon = Bf16Model::plan(c, 8, 1024, kMuon);
    const int64_t less = 12ll * 12 * 768 * 768;  // of AdamW's pieces, too
    CHECK(adamw.optimizer - muon.optimizer >= less * 4);
    CHECK(adamw.optimizer - muon.optimizer < less * 4 + less / kNormChunk * 2 * (int64_t)sizeof(AdamWPiece));
    CHECK(muon.activations == adamw.activations);  // in the logits' place
    // there they have no room: a layer of q, k and v is given it
    const int64_t more =
        Bf16Model::plan(narrow, 1, 8, kMuon).activations - Bf16Model::plan(narrow, 1, 8).activations;
    CHECK(more > 2 * 3 * (1 + 1 + 1 + 1) * 768ll * 768 - 1024);
    CHECK(more < 2 * 3 * (1 + 1 + 1 + 1) * 768ll * 768 + 4096);
    CHECK_FALSE(Bf16Model(tiny_config(), 1, 2, kMuon).holds(State::kSecondMoment, kFcw));
    // of two ranks each has its share of weights and moments
    const MemoryPlan two = Bf16Model::plan(c, 8, 1024, {.muon = true, .ranks = 2, .groups = 2});
    CHECK(two.optimizer > muon.optimizer / 2);
    CHECK(two.optimizer < muon.optimizer / 2 + muon.optimizer / 20);
    CHECK(two.activations == muon.activations);
}

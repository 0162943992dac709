// Newton-Schulz iterations on the GPU, by products of cuBLASLt, against the reference in double.
#include <cstring>

#include "dev/test/gpu/layer_test.h"
#include "dev/test/support/muon_bounds.h"
#include "dev/test/support/reference_model.h"
#include "llmc/ops/muon/newton_schulz.h"

using namespace llmc;
using namespace llmc::gpu_test;

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
            CAPTURE(s.text());
            CAPTURE(at_once);
            const std::vector<T> found = run(at_once);
            CHECK(std::memcmp(found.data(), due.data(), due.size() * sizeof(T)) == 0);
        }
    }
}

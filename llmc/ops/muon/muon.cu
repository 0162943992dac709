// Muon's kernels: a row of blocks for each matrix. The norm comes between the mean's update and the
// direction, which is made of mean and gradient again: reading both twice costs less than keeping it in
// fp32.
#include "llmc/ops/muon/muon.h"

#include "llmc/cuda/check.cuh"
#include "llmc/cuda/reduce.cuh"
#include "llmc/cuda/vectors.cuh"
#include "llmc/ops/stochastic_rounding.h"

namespace llmc {

namespace {

constexpr int kBlock = 256;
constexpr int kParts = 64;            // blocks for each matrix: a fixed number, which fixes the order of sums
constexpr int kMostMatrices = 65535;  // gridDim.y
static_assert(kParts <= kBlock, "a thread for each part's sum");

// of the matrix of this row of blocks: where its first element lies, and its number in the tensor
struct MatrixPlace {
    int64_t at, kept, number;
};
__device__ MatrixPlace place_of_matrix(const MuonTensor& shape) {
    const MuonCopy copy = shape.copies[blockIdx.y / shape.matrices];
    const int64_t matrix = blockIdx.y % shape.matrices, size = (int64_t)shape.rows * shape.cols;
    return {copy.at + matrix * size, copy.kept + matrix * size,
            (copy.layer * shape.matrices + matrix) * size};
}

// calls visit(i) for every kWide-th element i of a matrix that is this thread's
template <int kWide, typename Visit>
__device__ void for_each_of_thread(int64_t size, Visit visit) {
    for (int64_t i = ((int64_t)blockIdx.x * kBlock + threadIdx.x) * kWide; i < size;
         i += (int64_t)kParts * kBlock * kWide) {
        visit(i);
    }
}

struct Mean {
    float mu = (float)kMuonMomentum, fresh = (float)(1 - kMuonMomentum);
    __device__ float operator()(float m, float g) const { return mu * m + fresh * g; }
};

// squares (count, kParts): of what the direction will be made of
template <int kWide, typename Grad>
__global__ void muon_mean_kernel(float* m, double* squares, const Grad* grad, MuonTensor shape,
                                 const StepDecision* decision) {
    if (decision->skipped) { return; }
    const int64_t size = (int64_t)shape.rows * shape.cols, at = place_of_matrix(shape).kept;
    const float scale = decision->grad_scale;
    const Mean mean;
    double sum = 0;
    for_each_of_thread<kWide>(size, [&](int64_t i) {
        auto m4 = load<kWide>(m + at + i);
        const auto g4 = load<kWide>(grad + at + i);
        float of_vector = 0;
        unrolled<kWide>([&](int j) {
            const float g = scale * as_float(g4, j);
            m4.at[j] = mean(m4.at[j], g);
            const float ahead = mean(m4.at[j], g);
            of_vector += ahead * ahead;
        });
        store(m + at + i, m4);
        sum += of_vector;
    });
    sum = block_sum(sum);
    if (threadIdx.x == 0) { squares[(int64_t)blockIdx.y * kParts + blockIdx.x] = sum; }
}

template <int kWide, typename T, typename Grad>
__global__ void muon_direction_kernel(T* x, const double* squares, const float* m, const Grad* grad,
                                      MuonTensor shape, const StepDecision* decision) {
    if (decision->skipped) { return; }
    const int64_t size = (int64_t)shape.rows * shape.cols, at = place_of_matrix(shape).kept;
    const double norm =
        sqrt(block_sum(threadIdx.x < kParts ? squares[(int64_t)blockIdx.y * kParts + threadIdx.x] : 0.0));
    const float inverse = (float)(1 / (norm + kNewtonSchulzEps)), scale = decision->grad_scale;
    const Mean mean;
    for_each_of_thread<kWide>(size, [&](int64_t i) {
        const auto m4 = load<kWide>(m + at + i);
        const auto g4 = load<kWide>(grad + at + i);
        float ahead[kWide];
        unrolled<kWide>([&](int j) { ahead[j] = inverse * mean(m4.at[j], scale * as_float(g4, j)); });
        store(x + blockIdx.y * muon_stride(size) + i, rounded<T>(ahead));
    });
}

template <int kWide, typename T>
__global__ void muon_update_kernel(T* param, uint16_t* low, const T* x, MuonTensor shape, double scale,
                                   const StepDecision* decision, const StepInputs* inputs, uint64_t seed) {
    if (decision->skipped) { return; }
    const int64_t size = (int64_t)shape.rows * shape.cols;
    const auto [place, kept, first] = place_of_matrix(shape);
    const float keep = inputs->keep[1], step = (float)(inputs->params.lr * scale);
    const int64_t updates = decision->updates;
    for_each_of_thread<kWide>(size, [&](int64_t i) {
        auto high = load<kWide>(param + place + i);
        const auto x4 = load<kWide>(x + blockIdx.y * muon_stride(size) + i);
        auto moved = [&](float w, int j) { return keep * w - step * as_float(x4, j); };
        if constexpr (std::is_same_v<T, float>) {
            unrolled<kWide>([&](int j) { high.at[j] = moved(high.at[j], j); });
        } else {
            auto half = load<kWide>(low + kept + i);
            const int64_t number = first + i;  // a quad's first, or one element
            const auto before = rounding_bits4(seed, shape.tensor, updates - 1, number / 4),
                       now = rounding_bits4(seed, shape.tensor, updates, number / 4);
#pragma unroll
            for (int j = 0; j < kWide; j++) {
                const int64_t of_quad = kWide == 4 ? j : number % 4;
                const uint32_t was = unrounded(__bfloat16_as_ushort(high.at[j]), half.at[j], before[of_quad]);
                const uint32_t is = __float_as_uint(moved(__uint_as_float(was), j));
                high.at[j] = __ushort_as_bfloat16(round_stochastically(is, now[of_quad]));
                half.at[j] = (uint16_t)is;
            }
            store(low + kept + i, half);
        }
        store(param + place + i, high);
    });
}

dim3 grid_of(const MuonTensor& shape) {
    require(shape.count() > 0 && shape.count() <= kMostMatrices, "muon: at most 65535 matrices at once");
    return dim3(kParts, shape.count());
}

// Launches for vectors of four elements, or, where a matrix is not whole vectors, for one.
template <typename Launch>
void for_width(const MuonTensor& shape, Launch launch) {
    if (shape.size() % 4 == 0) {
        launch.template operator()<4>();
    } else {
        launch.template operator()<1>();
    }
    check_launch();
}

}  // namespace

size_t muon_scratch(int count) { return (size_t)count * kParts * sizeof(double); }

template <typename T, typename Grad>
void muon_direction(T* x, void* scratch, float* m, const Grad* grad, const MuonTensor& shape,
                    const StepDecision* decision, cudaStream_t stream) {
    const dim3 grid = grid_of(shape);
    auto* squares = (double*)scratch;
    for_width(shape, [&]<int kWide>() {
        muon_mean_kernel<kWide><<<grid, kBlock, 0, stream>>>(m, squares, grad, shape, decision);
    });
    for_width(shape, [&]<int kWide>() {
        muon_direction_kernel<kWide><<<grid, kBlock, 0, stream>>>(x, squares, m, grad, shape, decision);
    });
}

template <typename T>
void muon_update(T* param, uint16_t* low, const T* x, const MuonTensor& shape, const StepDecision* decision,
                 const StepInputs* inputs, uint64_t seed, cudaStream_t stream) {
    const dim3 grid = grid_of(shape);
    require((low == nullptr) == std::is_same_v<T, float>,
            "muon_update: bf16 weights alone have lower halves");
    const double scale = muon_scale(shape.rows, shape.cols);
    for_width(shape, [&]<int kWide>() {
        muon_update_kernel<kWide>
            <<<grid, kBlock, 0, stream>>>(param, low, x, shape, scale, decision, inputs, seed);
    });
}

using bf16 = __nv_bfloat16;
template decltype(muon_direction<float, float>) muon_direction<float, float>;
template decltype(muon_direction<bf16, float>) muon_direction<bf16, float>;
template decltype(muon_direction<bf16, bf16>) muon_direction<bf16, bf16>;
template decltype(muon_update<float>) muon_update<float>;
template decltype(muon_update<bf16>) muon_update<bf16>;

}  // namespace llmc

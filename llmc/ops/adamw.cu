// The optimizer's kernels: one thread decides, then a thread per four elements updates. Four, so that a
// warp's 16-byte accesses to the fp32 arrays are contiguous; each Philox call is then made by two threads,
// which the memory leaves time for.
#include "llmc/ops/adamw.h"

#include <cmath>

#include "llmc/cuda/check.cuh"
#include "llmc/cuda/edges.cuh"
#include "llmc/ops/stochastic_rounding.h"

namespace llmc {

namespace {

constexpr int kBlock = 256;
constexpr int kMaxCopies = 65535;  // gridDim.y
// of a piece of kNormChunk elements, which may begin with a quad's last element
constexpr int kPieceBlocks = (int)kNormChunk / 4 / kBlock + 1;

template <typename T>
struct alignas(4 * sizeof(T)) Four {
    static constexpr int size = 4;
    T at[size];
};

// rounded as adamw_cpu rounds them
struct Constants {
    float beta1, beta2, new1, new2, eps;
};

__global__ void decide_step_kernel(StepDecision* decision, const double* loss_sum, const double* squares,
                                   const StepInputs* inputs) {
    StepDecision d = *decision;
    const StepParams p = inputs->params;
    double norm = sqrt(*squares);
    d.loss = (float)(*loss_sum / (double)p.targets);
    d.norm = (float)norm;
    bool too_long = norm > kLongestGradient && !(p.clip > 0);
    d.skipped = !std::isfinite(d.loss) || !std::isfinite(d.norm) || too_long || is_outlier(p, d.loss, d.norm);
    if (!d.skipped) {
        d.updates++;
        d.grad_scale = p.clip > 0 ? (float)fmin(1.0, p.clip / (norm + 1e-6)) : 1.0f;
        d.step_size = (float)(p.lr / (1 - pow(p.beta1, (double)d.updates)));
        d.correct2 = (float)(1 / sqrt(1 - pow(p.beta2, (double)d.updates)));
    }
    *decision = d;
}

// Where a thread's four elements lie. Quads are counted in file order, where a copy need not begin at a
// multiple of four: its first quad may begin before it (i < 0), and belongs to the copy before it as well.
struct Place {
    int64_t quad, i;  // quad of the tensor; element of the copy
    int64_t offset;   // of the copy in memory
};

__device__ Place place_of_thread(const AdamWTensor& shape) {
    int64_t first = shape.first + blockIdx.y * shape.size;
    int64_t quad = first / 4 + (int64_t)blockIdx.x * kBlock + threadIdx.x;
    return {quad, 4 * quad - first, blockIdx.y * shape.stride};
}

// Four weights as they are kept. Half: of those in bf16; null for fp32, which is kept as it is.
template <typename T>
struct Kept {
    T* param;
    uint16_t* low;

    // as they were rounded after `updates` updates
    __device__ Four<float> load(int64_t i, int64_t n, uint64_t seed, int tensor, int64_t updates,
                                int64_t quad) const {
        if constexpr (std::is_same_v<T, float>) {
            return load_within<Four<float>>(param, i, n);
        } else {
            const auto high = load_within<Four<T>>(param, i, n);
            const auto half = load_within<Four<uint16_t>>(low, i, n);
            const auto random = rounding_bits4(seed, tensor, updates, quad);
            Four<float> x;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                x.at[j] = __uint_as_float(unrounded(__bfloat16_as_ushort(high.at[j]), half.at[j],
                                                    updates == 0 ? kToNearest : random[j]));
            }
            return x;
        }
    }
    __device__ void store(int64_t i, int64_t n, const Four<float>& x, uint64_t seed, int tensor,
                          int64_t updates, int64_t quad) const {
        if constexpr (std::is_same_v<T, float>) {
            store_within(param, i, n, x);
        } else {
            const auto random = rounding_bits4(seed, tensor, updates, quad);
            Four<T> high;
            Four<uint16_t> half;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const uint32_t bits = __float_as_uint(x.at[j]);
                high.at[j] =
                    __ushort_as_bfloat16(round_stochastically(bits, updates == 0 ? kToNearest : random[j]));
                half.at[j] = (uint16_t)bits;
            }
            store_within(param, i, n, high);
            if (low != nullptr) { store_within(low, i, n, half); }
        }
    }
};

template <typename T, typename Grad>
__global__ void adamw_update_kernel(T* param, uint16_t* low, float* m, float* v, const Grad* grad,
                                    const AdamWPiece* pieces, const StepDecision* decision,
                                    const StepInputs* inputs, Constants k, uint64_t seed) {
    const AdamWPiece piece = pieces[blockIdx.x / kPieceBlocks];
    const int64_t quad = piece.first / 4 + blockIdx.x % kPieceBlocks * kBlock + threadIdx.x;
    const int64_t i = 4 * quad - piece.first;
    if (decision->skipped || i >= piece.size) { return; }
    float grad_scale = decision->grad_scale, step = decision->step_size, correct2 = decision->correct2;
    const float keep = inputs->keep[piece.decays];
    const Kept<T> weights = {param + piece.at, std::is_same_v<T, float> ? nullptr : low + piece.kept};
    const int64_t updates = decision->updates;

    auto m4 = load_within<Four<float>>(m + piece.kept, i, piece.size);
    auto v4 = load_within<Four<float>>(v + piece.second, i, piece.size);
    auto w4 = weights.load(i, piece.size, seed, piece.tensor, updates - 1, quad);
    auto g4 = load_within<Four<Grad>>(grad + piece.kept, i, piece.size);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float g = grad_scale * (float)g4.at[j];
        m4.at[j] = k.beta1 * m4.at[j] + k.new1 * g;
        v4.at[j] = k.beta2 * v4.at[j] + k.new2 * g * g;
        w4.at[j] = keep * w4.at[j] - step * m4.at[j] / (sqrtf(v4.at[j]) * correct2 + k.eps);
    }
    store_within(m + piece.kept, i, piece.size, m4);
    store_within(v + piece.second, i, piece.size, v4);
    weights.store(i, piece.size, w4, seed, piece.tensor, updates, quad);
}

__device__ Kept<__nv_bfloat16> at_offset(__nv_bfloat16* param, uint16_t* low, int64_t offset) {
    return {param + offset, low == nullptr ? nullptr : low + offset};
}

__global__ void split_weights_kernel(__nv_bfloat16* param, uint16_t* low, const float* weights,
                                     AdamWTensor shape, const StepDecision* decision, uint64_t seed) {
    auto [quad, i, offset] = place_of_thread(shape);
    if (i >= shape.size) { return; }
    const auto x = load_within<Four<float>>(weights + offset, i, shape.size);
    at_offset(param, low, offset).store(i, shape.size, x, seed, shape.tensor, decision->updates, quad);
}

__global__ void join_weights_kernel(float* weights, __nv_bfloat16* param, uint16_t* low, AdamWTensor shape,
                                    const StepDecision* decision, uint64_t seed) {
    auto [quad, i, offset] = place_of_thread(shape);
    if (i >= shape.size) { return; }
    store_within(
        weights + offset, i, shape.size,
        at_offset(param, low, offset).load(i, shape.size, seed, shape.tensor, decision->updates, quad));
}

dim3 grid_of(const AdamWTensor& shape) {
    require(shape.copies <= kMaxCopies, "adamw: more than 65535 copies (layers) of a tensor");
    int64_t quads = ceil_div(shape.size + 3, 4);  // at most: a copy may begin with a quad's last element
    return dim3(grid_x(ceil_div(quads, kBlock)), shape.copies);
}

bool is_empty(const AdamWTensor& shape) { return shape.size == 0 || shape.copies == 0; }

}  // namespace

void decide_step(StepDecision* decision, const double* loss_sum, const double* squares,
                 const StepInputs* inputs, cudaStream_t stream) {
    decide_step_kernel<<<1, 1, 0, stream>>>(decision, loss_sum, squares, inputs);
    check_launch();
}

template <typename T, typename Grad>
void adamw_update(T* param, uint16_t* low, float* m, float* v, const Grad* grad, const AdamWPiece* pieces,
                  int64_t n, const StepDecision* decision, const StepInputs* inputs,
                  const AdamWConstants& constants, uint64_t seed, cudaStream_t stream) {
    if (n == 0) { return; }
    const Constants k = {(float)constants.beta1, (float)constants.beta2, (float)(1 - constants.beta1),
                         (float)(1 - constants.beta2), (float)constants.eps};
    require((low == nullptr) == std::is_same_v<T, float>,
            "adamw_update: bf16 weights alone have lower halves");
    adamw_update_kernel<<<grid_x(n * kPieceBlocks), kBlock, 0, stream>>>(param, low, m, v, grad, pieces,
                                                                         decision, inputs, k, seed);
    check_launch();
}

void split_weights(__nv_bfloat16* param, uint16_t* low, const float* weights, const AdamWTensor& shape,
                   const StepDecision* decision, uint64_t seed, cudaStream_t stream) {
    if (is_empty(shape)) { return; }
    split_weights_kernel<<<grid_of(shape), kBlock, 0, stream>>>(param, low, weights, shape, decision, seed);
    check_launch();
}

void join_weights(float* weights, const __nv_bfloat16* param, const uint16_t* low, const AdamWTensor& shape,
                  const StepDecision* decision, uint64_t seed, cudaStream_t stream) {
    if (is_empty(shape)) { return; }
    join_weights_kernel<<<grid_of(shape), kBlock, 0, stream>>>(
        weights, const_cast<__nv_bfloat16*>(param), const_cast<uint16_t*>(low), shape, decision, seed);
    check_launch();
}

template void adamw_update(float*, uint16_t*, float*, float*, const float*, const AdamWPiece*, int64_t,
                           const StepDecision*, const StepInputs*, const AdamWConstants&, uint64_t,
                           cudaStream_t);
template void adamw_update(__nv_bfloat16*, uint16_t*, float*, float*, const float*, const AdamWPiece*,
                           int64_t, const StepDecision*, const StepInputs*, const AdamWConstants&, uint64_t,
                           cudaStream_t);
template void adamw_update(__nv_bfloat16*, uint16_t*, float*, float*, const __nv_bfloat16*, const AdamWPiece*,
                           int64_t, const StepDecision*, const StepInputs*, const AdamWConstants&, uint64_t,
                           cudaStream_t);

}  // namespace llmc

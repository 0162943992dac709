// The optimizer's kernels: one thread decides, then a thread per four elements updates. Four, so that a
// warp's 16-byte accesses to the fp32 arrays are contiguous.
#include "llmc/ops/adamw.h"

#include <cmath>

#include "llmc/cuda/check.cuh"
#include "llmc/cuda/vectors.cuh"
#include "llmc/ops/stochastic_rounding.h"

namespace llmc {

namespace {

constexpr int kBlock = 128;
constexpr int kBlocks = 10;  // at once on a multiprocessor: fewer have too few loads under way
// of a piece of kNormChunk elements, which may begin with the last element of a pair of quads
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

// A thread's four elements. Quads are counted in file order, where a part need not begin at a multiple of four: its first
// quad may begin before it (i < 0), and belongs to the part before it as well.
struct Place {
    int64_t quad, i;  // quad of the tensor; element of the part
    __device__ explicit Place(const AdamWTensor& shape)
        : quad(shape.first / 4 + (int64_t)blockIdx.x * kBlock + threadIdx.x), i(4 * quad - shape.first) {}
};

template <typename T>
__device__ bool is_aligned(const T* quad) {
    return reinterpret_cast<uintptr_t>(quad) % sizeof(Four<T>) == 0;
}

// A weight as it is kept: fp32 as it is, without a lower half.
__device__ float joined(float param, const uint16_t*, uint32_t) { return param; }
__device__ void split(float& param, uint16_t*, float weight, uint32_t) { param = weight; }

__device__ float joined(__nv_bfloat16 param, const uint16_t* low, uint32_t random) {
    return __uint_as_float(unrounded(__bfloat16_as_ushort(param), *low, random));
}
__device__ void split(__nv_bfloat16& param, uint16_t* low, float weight, uint32_t random) {
    const uint32_t bits = __float_as_uint(weight);
    param = __ushort_as_bfloat16(round_stochastically(bits, random));
    *low = (uint16_t)bits;
}

// an element's; the same bits wherever it lies in a piece
struct Update {
    Constants k;
    float grad_scale, step, correct2, keep;
    template <typename T>
    __device__ void operator()(float& m, float& v, float grad, T& param, uint16_t* low, uint32_t before,
                               uint32_t now) const {
        const float g = grad_scale * grad;
        m = fmaf(k.beta1, m, k.new1 * g);
        v = fmaf(k.beta2, v, k.new2 * g * g);
        const float moved = step * m / fmaf(sqrtf(v), correct2, k.eps);
        split(param, low, fmaf(keep, joined(param, low, before), -moved), now);
    }
};

// a quad's random numbers, two a word
struct QuadBits {
    uint32_t a, b;
    __device__ uint32_t at(int j) const { return (j < 2 ? a : b) >> j % 2 * 16 & 0xffffu; }
};

// The random numbers that join a quad's weights, which are the last update's, and those that split them. Two neighbouring
// quads have their numbers from the same two counters: each lane draws one counter's, the even quad's lane the earlier
// one's, and gives the other lane its half. Drawing both in each lane takes instructions for which a GPU whose clock is
// low has no time. Called by whole warps, with neighbouring quads from an even one on.
struct RoundingBits {
    QuadBits before{}, now{};
    __device__ static RoundingBits of(uint64_t seed, int tensor, int64_t updates, int64_t quad) {
        const bool odd = quad % 2 != 0;
        const auto bits = rounding_bits8(seed, tensor, updates - (odd ? 0 : 1), quad / 2);
        const QuadBits first{bits[0], bits[1]}, second{bits[2], bits[3]};
        const QuadBits mine = odd ? second : first, other = odd ? first : second;
        const QuadBits given{__shfl_xor_sync(kAllLanes, other.a, 1), __shfl_xor_sync(kAllLanes, other.b, 1)};
        return odd ? RoundingBits{given, mine} : RoundingBits{mine, given};
    }
};

// All vectors are asked for before any is waited for; elements one by one only where a piece ends within a quad, or an
// array is unaligned.
template <typename T, typename Grad>
__global__ void __launch_bounds__(kBlock, kBlocks)
    adamw_update_kernel(T* param, uint16_t* low, float* m, float* v, const Grad* grad,
                        const AdamWPiece* pieces, const StepDecision* decision, const StepInputs* inputs,
                        Constants k, uint64_t seed) {
    constexpr bool kHalves = !std::is_same_v<T, float>;
    const AdamWPiece piece = pieces[blockIdx.x / kPieceBlocks];
    const int64_t quad = piece.first / 8 * 2 + blockIdx.x % kPieceBlocks * kBlock + threadIdx.x;
    const int i = (int)(4 * quad - piece.first), n = piece.size;
    if (decision->skipped || i - 4 * (int)threadIdx.x >= n) { return; }
    param += piece.at + i;
    m += piece.kept + i;
    v += piece.second + i;
    grad += piece.kept + i;
    if (kHalves) { low += piece.kept + i; }
    const bool whole = i >= 0 && i + 4 <= n && is_aligned(m) && is_aligned(v) && is_aligned(grad) &&
                       is_aligned(param) && (!kHalves || is_aligned(low));
    Four<float> m4, v4;
    Four<T> param4;
    Four<uint16_t> low4;
    Four<Grad> grad4;
    if (whole) {
        m4 = *(const Four<float>*)m, v4 = *(const Four<float>*)v;
        param4 = *(const Four<T>*)param, grad4 = *(const Four<Grad>*)grad;
        if (kHalves) { low4 = *(const Four<uint16_t>*)low; }
    }
    const Update update = {k, decision->grad_scale, decision->step_size, decision->correct2,
                           inputs->keep[piece.decays]};
    RoundingBits random;
    if constexpr (kHalves) { random = RoundingBits::of(seed, piece.tensor, decision->updates, quad); }
    if (!whole) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (i + j < 0 || i + j >= n) { continue; }
            update(m[j], v[j], (float)grad[j], param[j], low + j, random.before.at(j), random.now.at(j));
        }
        return;
    }
    unrolled<4>([&](int j) {
        update(m4.at[j], v4.at[j], (float)grad4.at[j], param4.at[j], &low4.at[j], random.before.at(j),
               random.now.at(j));
    });
    *(Four<float>*)m = m4, *(Four<float>*)v = v4, *(Four<T>*)param = param4;
    if (kHalves) { *(Four<uint16_t>*)low = low4; }
}

// low: null, or the lower halves, too
__global__ void split_weights_kernel(__nv_bfloat16* param, uint16_t* low, const float* weights,
                                     AdamWTensor shape, const StepDecision* decision, uint64_t seed) {
    const auto [quad, i] = Place(shape);
    if (i >= shape.size) { return; }
    const auto x = load_within<Four<float>>(weights, i, shape.size);
    const auto random = rounding_bits4(seed, shape.tensor, decision->updates, quad);
    Four<__nv_bfloat16> high;
    Four<uint16_t> half;
    unrolled<4>([&](int j) { split(high.at[j], &half.at[j], x.at[j], random[j]); });
    store_within(param, i, shape.size, high);
    if (low != nullptr) { store_within(low, i, shape.size, half); }
}

__global__ void join_weights_kernel(float* weights, const __nv_bfloat16* param, const uint16_t* low,
                                    AdamWTensor shape, const StepDecision* decision, uint64_t seed) {
    const auto [quad, i] = Place(shape);
    if (i >= shape.size) { return; }
    const auto high = load_within<Four<__nv_bfloat16>>(param, i, shape.size);
    const auto half = load_within<Four<uint16_t>>(low, i, shape.size);
    const auto random = rounding_bits4(seed, shape.tensor, decision->updates, quad);
    Four<float> x;
    unrolled<4>([&](int j) { x.at[j] = joined(high.at[j], &half.at[j], random[j]); });
    store_within(weights, i, shape.size, x);
}

unsigned grid_of(const AdamWTensor& shape) {
    int64_t quads = ceil_div(shape.size + 3, 4);  // at most: a part may begin with a quad's last element
    return grid_x(ceil_div(quads, kBlock));
}

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
    if (shape.size == 0) { return; }
    split_weights_kernel<<<grid_of(shape), kBlock, 0, stream>>>(param, low, weights, shape, decision, seed);
    check_launch();
}

void join_weights(float* weights, const __nv_bfloat16* param, const uint16_t* low, const AdamWTensor& shape,
                  const StepDecision* decision, uint64_t seed, cudaStream_t stream) {
    if (shape.size == 0) { return; }
    join_weights_kernel<<<grid_of(shape), kBlock, 0, stream>>>(weights, param, low, shape, decision, seed);
    check_launch();
}

using bf16 = __nv_bfloat16;
template decltype(adamw_update<float, float>) adamw_update<float, float>;
template decltype(adamw_update<bf16, float>) adamw_update<bf16, float>;
template decltype(adamw_update<bf16, bf16>) adamw_update<bf16, bf16>;

}  // namespace llmc

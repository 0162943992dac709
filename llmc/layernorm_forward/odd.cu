// odd: rows at any address and of any length come by bulk copies, are normalised from registers, and leave
//      by bulk copies from where they came in; layernorm_odd.cuh. A block is one team of warps and takes a
//      few rows.
// Why:    registers.cuh must move such rows an element at a time, and waits for each through L1 and L2.
// Moves:  a row once in, once out: 2 N C elements; 4 N C with a residual. Weight and bias once a block.
// Result: 60.2 us, 81 % of the roof at 65536x769 bf16; 85 % at 16384x8191; H200, 2026-11-21
#include "llmc/check.cuh"
#include "llmc/layernorm_forward/regimes.h"
#include "llmc/layernorm_odd.cuh"
#include "llmc/layernorm_rows.cuh"

namespace llmc::layernorm_odd::forward {

constexpr int kMaxWarps =
    16;  // of a team, and at work on a multiprocessor: what a lane holds takes 128 registers

// x = this lane's columns of a row in shared memory, with two streams of their rounded sum, 0 for those it does not have
template <int kStreams, int k, typename T, typename At>
__device__ void read_row(float (&x)[k], T* const (&row)[kStreams], const At& at) {
#pragma unroll
    for (int i = 0; i < k; i++) {
        x[i] = 0;
        if (!at.has(i)) { continue; }
        x[i] = (float)row[0][at.first + kWarp * i];
        if constexpr (kStreams == 2) { x[i] = (float)(T)(x[i] + (float)row[1][at.first + kWarp * i]); }
    }
}

template <int k, typename T, typename At, typename Value>
__device__ void write_row(T* row, const At& at, Value value) {
#pragma unroll
    for (int i = 0; i < k; i++) {
        if (at.has(i)) { row[kWarp * i] = (T)value(i); }
    }
}

// of a row, the same bits in all of the team: its mean is mean + rest, two numbers since one has too few bits where the
// mean is large and the spread small
struct Moments {
    float mean, rest, variance;
};

// As in registers.cuh: a mean as good as a sum of floats can be, then the mean of what is left of the elements without
// it; so a constant row's mean is its number, exactly.
template <int k, typename At>
__device__ Moments moments_of(const float (&x)[k], const At& at, TeamShared& shared, float C,
                              float per_column) {
    float sum[1] = {}, rest[2] = {};  // of what is left, of its squares
#pragma unroll
    for (int i = 0; i < k; i++) { sum[0] += x[i]; }
    at.sum(sum, shared.slots);
    float about = sum[0] * per_column;
#pragma unroll
    for (int i = 0; i < k; i++) {
        if (!at.has(i)) { continue; }
        float d = x[i] - about;
        rest[0] += d;
        rest[1] = fmaf(d, d, rest[1]);
    }
    at.sum(rest, shared.slots + 1);
    float m = rest[0] * per_column;
    m = fmaf(fmaf(-m, C, rest[0]), per_column, m);  // rest[0] / C, correctly rounded
    float mean = about + m, squares = fmaf(-rest[0], m, rest[1]);
    return {mean, (about - mean) + m, (squares < 0 ? 0.0f : squares) * per_column};  // a NaN stays one
}

template <int k, typename At, typename W>
__device__ void load_columns(float (&x)[k], const W* from, const At& at, float otherwise) {
#pragma unroll
    for (int i = 0; i < k; i++) {
        x[i] = from != nullptr && at.has(i) ? (float)from[at.first + kWarp * i] : otherwise;
    }
}

template <int k, int full, bool kResidual, typename T, typename W>
__device__ void normalise_rows(const LayerNormForward<T, W>& call, const Layout& o) {
    constexpr int kStreams = kResidual ? 2 : 1;
    extern __shared__ __align__(128) unsigned char memory[];
    TeamShared& shared = *reinterpret_cast<TeamShared*>(memory);
    Ring<T, kStreams> ring(reinterpret_cast<T*>(memory + sizeof(TeamShared)), shared, o);
    Share<k, full, true> at(call.C, o);
    Edge<T> edge(at);
    int64_t begin = (int64_t)blockIdx.x * o.rows;
    Walk<T, kStreams> walk(min((int64_t)o.rows, call.N - begin), o.together, o, call.C);
    walk.stream(0, call.inp, call.inp_stride, begin);
    if constexpr (kResidual) { walk.stream(1, call.inp2, call.inp2_stride, begin); }
    ring.init(shared, at);
    if (at.leads()) { ring.fetch_first(walk); }
    at.sync();
    T edges[kStreams];
    edge.load(edges, walk.now, walk.rows_of(walk.left) * call.C);
    float weight[k], bias[k], per_column = 1.0f / call.C, eps = (float)call.eps;
    load_columns(weight, call.weight, at, 1.0f);
    load_columns(bias, call.bias, at, 0.0f);
    T* results[kStreams] = {call.out + begin * call.out_stride};
    int64_t steps[kStreams] = {o.together * call.out_stride};
    if constexpr (kResidual) {
        results[1] = call.residual + begin * call.residual_stride;
        steps[1] = o.together * call.residual_stride;
    }
    float* mean = call.mean != nullptr ? call.mean + begin : nullptr;
    float* rstd = call.rstd != nullptr ? call.rstd + begin : nullptr;
#pragma unroll 1
    for (; walk.left > 0; ring.advance()) {
        T *row[kStreams], *written[kStreams];  // in shared memory
        int size = walk.rows_of(walk.left) * call.C;
        receive(row, edges, walk, size, ring, edge);
#pragma unroll
        for (int i = 0; i < kStreams; i++) {
            written[i] = ring.of_stream(i) + offset_of(results[i]) + at.first;
        }
#pragma unroll 1
        for (int done = 0; done < size; done += call.C) {
            float x[k];
            read_row(x, row, at);
            if constexpr (kResidual) {
                at.sync();  // the team has read what the sums overwrite
                write_row<k>(written[1] + done, at, [&](int i) { return x[i]; });
            }
            Moments row_has = moments_of(x, at, shared, (float)call.C, per_column);
            if (done == 0 && at.leads()) { ring.refill(walk); }
            float s = rsqrtf(row_has.variance + eps), rest = -row_has.rest * s;
            write_row<k>(written[0] + done, at,
                         [&](int i) { return fmaf(fmaf(x[i] - row_has.mean, s, rest), weight[i], bias[i]); });
            if (at.leads() && mean != nullptr) { *mean++ = row_has.mean; }
            if (at.leads() && rstd != nullptr) { *rstd++ = s; }
#pragma unroll
            for (int i = 0; i < kStreams; i++) { row[i] += call.C; }
        }
        send_results(results, size, ring, edge, at);
#pragma unroll
        for (int i = 0; i < kStreams; i++) { results[i] += steps[i]; }
    }
    if (at.leads()) { bulk_wait_read<0>(); }  // shared memory goes with the block
}

template <int k, int full, bool kResidual, typename T, typename W>
__global__ __launch_bounds__(kMaxWarps* kWarp) void layernorm_forward_kernel(LayerNormForward<T, W> call,
                                                                             Layout o) {
    if constexpr (kSm90) { normalise_rows<k, full, kResidual>(call, o); }
}

// ---- the choice ----------------------------------------------------------------------------------

constexpr int kMostRows = 8;  // of a block: enough to share weight and bias, few enough to even out the end

// do the rows of each stream lie one after the other, and results as the rows whose place they take?
template <typename T, typename W>
bool is_dense(const LayerNormForward<T, W>& call) {
    bool dense = call.inp_stride == call.C && call.out_stride == call.C && same_offset(call.out, call.inp);
    if (call.residual == nullptr) { return dense; }
    return dense && call.inp2_stride == call.C && call.residual_stride == call.C &&
           same_offset(call.residual, call.inp2);
}

template <typename Tile, bool kResidual, typename T, typename W>
bool launch(const LayerNormForward<T, W>& call, int warps, cudaStream_t stream) {
    constexpr int kStreams = kResidual ? 2 : 1;
    auto* kernel = layernorm_forward_kernel<Tile::k, Tile::full, kResidual, T, W>;
    int blocks = kMaxWarps / warps;  // on a multiprocessor, about
    Layout o = layout_of<T>(call.C, warps, blocks, kStreams, is_dense(call));
    o.teams = 1;
    int64_t spans = call.N / (o.together * blocks * device_facts().multiprocessors);  // for each of those
    o.rows = o.together * (int)std::clamp(spans, int64_t(1), int64_t(std::max(1, kMostRows / o.together)));
    size_t bytes = shared_bytes<T>(o, kStreams);
    if (bytes > (size_t)device_facts().shared_bytes) { return false; }
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
    kernel<<<grid_x(ceil_div(call.N, (int64_t)o.rows)), warps * kWarp, bytes, stream>>>(call, o);
    check_launch();
    return true;
}

// with the first tile that fits
template <bool kResidual, typename Tile, typename... More, typename T, typename W>
bool launch_tile(const LayerNormForward<T, W>& call, int warps, cudaStream_t stream) {
    if (Tile::fits(call.C, warps)) { return launch<Tile, kResidual>(call, warps, stream); }
    if constexpr (sizeof...(More) > 0) { return launch_tile<kResidual, More...>(call, warps, stream); }
    return false;
}

// Wide lanes: what a warp does once a row costs as much as ten columns a lane.
template <bool kResidual, typename T, typename W>
bool launch_any(const LayerNormForward<T, W>& call, cudaStream_t stream) {
    constexpr int kWidest = kResidual ? 23 : 32;  // columns a lane that registers allow
    int warps = ceil_div(call.C, kWidest * kWarp);
    if (warps > kMaxWarps) { return false; }
    if constexpr (kResidual) {
        return launch_tile<true, Tile<12, 0>, Tile<16, 7>, Tile<20, 15>, Tile<23, 19>>(call, warps, stream);
    } else {
        return launch_tile<false, Tile<8, 0>, Tile<16, 7>, Tile<20, 15>, Tile<23, 19>, Tile<26, 22>,
                           Tile<29, 25>, Tile<32, 28>>(call, warps, stream);
    }
}

}  // namespace llmc::layernorm_odd::forward

namespace llmc {

template <typename T, typename W>
bool layernorm_forward_odd(const LayerNormForward<T, W>& call, cudaStream_t stream) {
    using namespace layernorm_odd;
    using namespace layernorm_odd::forward;
    if (call.C < kFewestColumns || rows_are_vectors(call) ||
        !runs_hopper_code(layernorm_forward_kernel<8, 0, false, T, W>)) {
        return false;
    }
    return call.residual != nullptr ? launch_any<true>(call, stream) : launch_any<false>(call, stream);
}

using bf16 = __nv_bfloat16;
template bool layernorm_forward_odd(const LayerNormForward<float, float>&, cudaStream_t);
template bool layernorm_forward_odd(const LayerNormForward<bf16, bf16>&, cudaStream_t);
template bool layernorm_forward_odd(const LayerNormForward<bf16, float>&, cudaStream_t);
template bool layernorm_forward_odd(const LayerNormForward<__half, __half>&, cudaStream_t);
template bool layernorm_forward_odd(const LayerNormForward<__half, float>&, cudaStream_t);

}  // namespace llmc

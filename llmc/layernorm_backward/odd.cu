// odd: rows at any address and of any length come by bulk copies, both halves of a row's work share
//      registers, dinp leaves by bulk copies from where inp came in; layernorm_odd.cuh. Teams of warps walk
//      over the rows; sums for dweight and dbias stay in registers to the end.
// Why:    ring.cuh takes rows of whole aligned vectors only; general.cu reads others an element at a time,
//         twice.
// Moves:  inp and dout once in, dinp once out: 3 N C elements, 4 N C for +=; and 16 bytes a column and block.
// Result: 82.9 us, 85 % of the roof at 65536x769 bf16; 80 % at 16384x8191; H200, 2026-11-21
#include "llmc/check.cuh"
#include "llmc/layernorm_backward/regimes.h"
#include "llmc/layernorm_odd.cuh"
#include "llmc/layernorm_rows.cuh"

namespace llmc::layernorm_odd::backward {

// What a lane keeps of its columns: of one row between its halves, and of all rows to the end.
template <int k>
struct Held {
    float xhat[k], wdy[k], weight[k], dweight[k] = {}, dbias[k] = {};
};

template <int k, typename W, typename At>
__device__ void load_weight(Held<k>& held, const W* weight, const At& at) {
#pragma unroll
    for (int i = 0; i < k; i++) {
        held.weight[i] = weight != nullptr && at.has(i) ? (float)weight[at.first + kWarp * i] : 1.0f;
    }
}

// Means and rstds of a span's rows, asked for a span ahead: a row's by a lane of the first 16, and one of the
// others. Were it a value that the whole warp shares, the warp would wait for it at once.
struct Statistics {
    const float* from;
    int row;  // of the span

    template <typename Call>
    __device__ Statistics(const Call& call, int64_t first_row, int lane)
        : from((lane < kMostTogether ? call.mean : call.rstd) + first_row + lane % kMostTogether),
          row(lane % kMostTogether) {}
    __device__ float load(int rows) const { return row < rows ? *from : 0.0f; }
};

// First half of a row: what the second needs into registers; sums = this lane's of wdy and of wdy xhat.
template <int k, typename T, typename At>
__device__ void read_row(Held<k>& held, float (&sums)[2], const T* x, const T* dy, const At& at, float m,
                         float s) {
#pragma unroll
    for (int i = 0; i < k; i++) {
        // a column the lane does not have adds nothing
        float a = at.has(i) ? (float)x[kWarp * i] : m, d = at.has(i) ? (float)dy[kWarp * i] : 0.0f;
        float xhat = (a - m) * s, wdy = d * held.weight[i];
        held.xhat[i] = xhat;
        held.wdy[i] = wdy;
        held.dweight[i] = fmaf(d, xhat, held.dweight[i]);
        held.dbias[i] += d;
        sums[0] += wdy;
        sums[1] = fmaf(wdy, xhat, sums[1]);
    }
}

// second half: dinp from the row's sums; before: what it is added to, if anything
template <bool kAccumulate, int k, typename T, typename At>
__device__ void write_row(T* dinp, const T* before, const Held<k>& held, const float (&sums)[2], const At& at,
                          float s, float per_column) {
    float c1s = -sums[0] * per_column * s, c2 = -sums[1] * per_column;
#pragma unroll
    for (int i = 0; i < k; i++) {
        if (!at.has(i)) { continue; }
        float result = fmaf(fmaf(held.xhat[i], c2, held.wdy[i]), s, c1s);
        if constexpr (kAccumulate) { result += (float)before[kWarp * i]; }
        dinp[kWarp * i] = (T)result;
    }
}

// The teams' sums over their rows, side by side in shared memory, then added up team after team: the partial
// sums of this block. of_teams: (teams,2,C)
template <int k, typename At>
__device__ void write_partial(float* partial, float* of_teams, const Held<k>& held, const At& at, int teams,
                              int C) {
    float *dweight = of_teams + at.team * 2 * C + at.first, *dbias = dweight + C;
#pragma unroll
    for (int i = 0; i < k; i++) {
        if (!at.has(i)) { continue; }
        dweight[kWarp * i] = held.dweight[i];
        dbias[kWarp * i] = held.dbias[i];
    }
    __syncthreads();
    float* out = partial + (int64_t)blockIdx.x * C;
    for (int c = threadIdx.x; c < 2 * C; c += blockDim.x) {
        float sum = 0;
        for (int t = 0; t < teams; t++) { sum += of_teams[t * 2 * C + c]; }
        out[c < C ? c : (int64_t)(gridDim.x - 1) * C + c] = sum;
    }
}

template <int k, int full, bool kAccumulate, typename T, typename W>
__device__ void backward_rows(const LayerNormBackwardRows<T, W>& call, const Layout& o) {
    constexpr int kStreams = kAccumulate ? 3 : 2;
    extern __shared__ __align__(128) unsigned char memory[];
    Share<k, full, false> at(call.C, o);
    TeamShared& shared = reinterpret_cast<TeamShared*>(memory)[at.team];
    T* rings = reinterpret_cast<T*>(memory + o.teams * sizeof(TeamShared));
    Ring<T, kStreams> ring(rings + at.team * o.stages * kStreams * o.region, shared, o);
    Edge<T> edge(at);
    // spans are dealt out: one to each block, for each team in turn
    int64_t row = (int64_t)(at.team * gridDim.x + blockIdx.x) * o.together;
    int step = gridDim.x * o.teams * o.together;
    Walk<T, kStreams> walk(call.N - row, step, o, call.C);
    walk.stream(0, call.inp, call.inp_stride, row);
    walk.stream(1, call.dout, call.dout_stride, row);
    if constexpr (kAccumulate) { walk.stream(2, call.dinp, call.dinp_stride, row); }
    ring.init(shared, at);
    if (at.leads()) { ring.fetch_first(walk); }
    at.sync();
    T edges[kStreams];
    if (walk.left > 0) { edge.load(edges, walk.now, walk.rows_of(walk.left) * call.C); }
    Statistics statistics(call, row, at.lane);
    float next = walk.left > 0 ? statistics.load(walk.rows_of(walk.left)) : 0.0f;
    Held<k> held;
    load_weight(held, call.weight, at);
    float per_column = 1.0f / call.C;
    T* dinp = call.dinp + row * call.dinp_stride;
    int64_t dinp_step = step * call.dinp_stride;
    int turn = 0;
#pragma unroll 1
    for (; walk.left > 0; ring.advance()) {
        T* rows[kStreams];
        int size = walk.rows_of(walk.left) * call.C, lane_of_mean = 0;
        float loaded = next;
        receive(rows, edges, walk, size, ring, edge);
        statistics.from += step;
        if (walk.left > 0) { next = statistics.load(walk.rows_of(walk.left)); }
        T* result = ring.of_stream(0) + offset_of(dinp) + at.first;
#pragma unroll 1
        for (int done = 0; done < size; done += call.C, lane_of_mean++, turn ^= 2) {
            float m = __shfl_sync(kAllLanes, loaded, lane_of_mean), sums[2] = {};
            float s = __shfl_sync(kAllLanes, loaded, lane_of_mean + kMostTogether);
            read_row(held, sums, rows[0] + at.first + done, rows[1] + at.first + done, at, m, s);
            at.sum(sums, shared.slots + turn);
            if (done == 0 && at.leads()) { ring.refill(walk); }
            write_row<kAccumulate>(result + done, rows[kStreams - 1] + at.first + done, held, sums, at, s,
                                   per_column);
        }
        send_results({dinp}, size, ring, edge, at);
        dinp += dinp_step;
    }
    dependency_launch();  // the kernel that adds the partial sums may come and wait
    if (at.leads()) { bulk_wait_read<0>(); }
    __syncthreads();
    write_partial((float*)call.scratch, reinterpret_cast<float*>(rings), held, at, o.teams, call.C);
}

// warps at work on a multiprocessor, so that what a lane holds fits its registers
constexpr int warps_of(int k) { return k > 13 ? 16 : k > 8 ? 20 : 28; }

template <int k, int full, bool kAccumulate, typename T, typename W>
__global__ __launch_bounds__(warps_of(k) *
                             kWarp) void layernorm_backward_kernel(LayerNormBackwardRows<T, W> call,
                                                                   Layout o) {
    if constexpr (kSm90) { backward_rows<k, full, kAccumulate>(call, o); }
}

// ---- the choice ----------------------------------------------------------------------------------

constexpr int kMaxGroups = 256;      // that scratch holds
constexpr int kMaxTeamsOfMany = 15;  // teams of more than one warp: a block has as many barriers to name

// teams of a block with this tile; 0: it does not fit
template <typename Tile>
int teams_of(int C) {
    int warps = ceil_div(C, Tile::k * kWarp), most = warps_of(Tile::k);
    if (warps > most || !Tile::fits(C, warps)) { return 0; }
    return warps == 1 ? most : std::min(most / warps, kMaxTeamsOfMany);
}

// do the rows of each stream lie one after the other, and dinp's as inp's whose place they take?
template <typename T, typename W>
bool is_dense(const LayerNormBackwardRows<T, W>& call) {
    return call.inp_stride == call.C && call.dout_stride == call.C && call.dinp_stride == call.C &&
           same_offset(call.dinp, call.inp);
}

template <typename Tile, bool kAccumulate, typename T, typename W>
int launch(const LayerNormBackwardRows<T, W>& call, cudaStream_t stream) {
    constexpr int kStreams = kAccumulate ? 3 : 2;
    auto* kernel = layernorm_backward_kernel<Tile::k, Tile::full, kAccumulate, T, W>;
    Layout o = layout_of<T>(call.C, ceil_div(call.C, Tile::k * kWarp), teams_of<Tile>(call.C), kStreams,
                            is_dense(call));
    size_t most = device_facts().shared_bytes;
    while (o.teams > 1 && shared_bytes<T>(o, kStreams) > most) { o.teams--; }
    size_t partial = o.teams * (sizeof(TeamShared) + 2 * sizeof(float) * call.C);
    size_t bytes = std::max(shared_bytes<T>(o, kStreams), partial);
    if (bytes > most) { return 0; }
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
    int64_t blocks = std::min(ceil_div(call.N, (int64_t)o.teams * o.together),
                              (int64_t)std::min(device_facts().multiprocessors, kMaxGroups));
    kernel<<<(unsigned)blocks, o.teams * o.warps * kWarp, bytes, stream>>>(call, o);
    check_launch();
    return (int)blocks;
}

// with the tile that suits best: many teams, and wide lanes for what a warp does once a row; 0: none fits
template <bool kAccumulate, typename... Tiles, typename T, typename W>
int launch_best(const LayerNormBackwardRows<T, W>& call, cudaStream_t stream) {
    int best = std::max({teams_of<Tiles>(call.C) * Tiles::k...}), groups = 0;
    auto launched = [&]<typename Tile>(Tile) {
        if (teams_of<Tile>(call.C) * Tile::k < best) { return false; }
        groups = launch<Tile, kAccumulate>(call, stream);
        return true;
    };
    if (best > 0) { (launched(Tiles{}) || ...); }
    return groups;
}

}  // namespace llmc::layernorm_odd::backward

namespace llmc {

template <typename T, typename W>
ColumnGroups layernorm_backward_odd(const LayerNormBackwardRows<T, W>& call, cudaStream_t stream) {
    using namespace layernorm_odd;
    using namespace layernorm_odd::backward;
    if (call.C < kFewestColumns || call.dinp == nullptr || rows_are_vectors(call) ||
        !runs_hopper_code(layernorm_backward_kernel<8, 0, false, T, W>)) {
        return {};
    }
    int groups =  // three streams leave no registers for 16 columns a lane
        call.accumulate_dinp
            ? launch_best<true, Tile<13, 12>, Tile<13, 6>, Tile<8, 0>>(call, stream)
            : launch_best<false, Tile<13, 12>, Tile<16, 15>, Tile<16, 8>, Tile<8, 0>>(call, stream);
    return {groups, true};
}

using bf16 = __nv_bfloat16;
template ColumnGroups layernorm_backward_odd(const LayerNormBackwardRows<float, float>&, cudaStream_t);
template ColumnGroups layernorm_backward_odd(const LayerNormBackwardRows<bf16, bf16>&, cudaStream_t);
template ColumnGroups layernorm_backward_odd(const LayerNormBackwardRows<bf16, float>&, cudaStream_t);
template ColumnGroups layernorm_backward_odd(const LayerNormBackwardRows<__half, __half>&, cudaStream_t);
template ColumnGroups layernorm_backward_odd(const LayerNormBackwardRows<__half, float>&, cudaStream_t);

}  // namespace llmc

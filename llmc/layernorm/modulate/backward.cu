// Backward: a row's columns of all tensors by a block of few warps, which meet once; sums by column stay in registers until
// the sample changes. Those of a sample whose rows several blocks share go to scratch, and are added up, block after block, by
// a kernel behind.
#include "llmc/layernorm/modulate/rows.cuh"

namespace llmc {

namespace modulate {

constexpr int kColumns = 4;  // of a vector
// of an SM where there is a gate: a block of 8 (3072 columns, H200) takes 4 % less time than two
constexpr int kGatedWarps = 15;
constexpr int kFewVectors = 3, kMoreVectors = 4;  // of a lane

// at most: all layouts have a warp for so many columns; what is longer has a block an SM
int blocks_of_sm(int C) { return std::max(1, kMostWarps / ceil_div(C, kMoreVectors * kColumns * kWarp)); }

// what a block has of a sample
struct Part {
    int64_t sample;
    bool whole;  // all of its rows
    int place;   // of its sums in scratch, if not
};

// Of the samples of which a block has a part, one may begin before its first row, and one may end behind its last.
__device__ inline int place_of(int block, bool begins_within) { return 2 * block + begins_within; }

template <typename T>
__device__ PerSample<T> result(const LayerNormModulateBackward<T>& call, int set) {
    return set == 0 ? call.dscale : set == 1 ? call.dshift : call.dgate;
}

// a lane's part of what a sample has, and of its sums
template <typename T, int k, bool gated>
struct Held {
    static constexpr int sets = gated ? 3 : 2;  // for dscale, dshift, dgate
    Elements<T, kColumns> scale[k], gate[gated ? k : 1];
    Elements<float, kColumns> sums[sets][k];

    __device__ void begin(const LayerNormModulateBackward<T>& call, const Columns<kColumns, k>& columns,
                          int64_t sample) {
        columns.load(scale, of_sample(call.scale, sample));
        if constexpr (gated) { columns.load(gate, of_sample(call.gate, sample)); }
        unrolled<sets, k>([&](int set, int i) { sums[set][i] = {}; });
    }
    __device__ void end(const LayerNormModulateBackward<T>& call, const Columns<kColumns, k>& columns,
                        const Part& part) const {
        unrolled<sets>([&](int set) {
            T* to = of_sample(result(call, set), part.sample);
            float* partial = static_cast<float*>(call.scratch) + ((int64_t)part.place * sets + set) * call.C;
            unrolled<k>([&](int i) {
                if (!columns.has(i)) { return; }
                if (part.whole) {
                    store(to + columns.at(i), rounded<T>(sums[set][i].at));
                } else {
                    store(partial + columns.at(i), sums[set][i]);
                }
            });
        });
    }
};

// over the block's warps, the same in each lane; slots: of the row's parity
template <typename RingT>
__device__ float2 sum_over_row(const RingT& ring, float2* slots, float2 of_lane) {
    const int warps = blockDim.x / kWarp, lane = threadIdx.x % kWarp;
    const float mine = warp_sum_pair(of_lane);
    if (lane % (kWarp / 2) == 0) {
        reinterpret_cast<float*>(&slots[threadIdx.x / kWarp])[lane / (kWarp / 2)] = mine;
    }
    ring.meet();
    if (warps == 1) { return both_sums(mine); }
    const int at = lane % kMostWarps;
    return group_sums<kMostWarps>(at < warps ? slots[at] : float2{});
}

// Both halves of a row. sums: dscale's, dshift's; they, and what each half needs of the other, are held in registers.
template <typename T, int k, bool gated>
struct Row {
    static constexpr int n = kColumns;
    float xhat[k][n], g[k][n];

    __device__ float2 read(Held<T, k, gated>& held, const Columns<n, k>& columns, const T* inp, const T* dout,
                           float m, float s) {
        Elements<T, n> x[k], d[k];
        columns.load(x, inp);
        columns.load(d, dout);
        float2 sums{};
        unrolled<k, n>([&](int i, int j) {
            const float dy = as_float(d[i], j);
            xhat[i][j] = (as_float(x[i], j) - m) * s;
            g[i][j] = fmaf(dy, as_float(held.scale[i], j), dy);
            held.sums[0][i].at[j] = fmaf(dy, xhat[i][j], held.sums[0][i].at[j]);
            held.sums[1][i].at[j] += dy;
            sums.x += g[i][j];
            sums.y = fmaf(g[i][j], xhat[i][j], sums.y);
        });
        return sums;
    }
    // c1, c2: the row's means of g and of g xhat. inp2 and dresidual in the ring, null: none
    __device__ void write(const LayerNormModulateBackward<T>& call, Held<T, k, gated>& held,
                          const Columns<n, k>& columns, const T* inp2, const T* dresidual, int64_t row,
                          float c1, float c2, float s) {
        unrolled<k>([&](int i) {
            if (!columns.has(i)) { return; }
            const int64_t at = row * call.C + columns.at(i);
            float dx[n];
            unrolled<n>([&](int j) { dx[j] = fmaf(fmaf(xhat[i][j], -c2, g[i][j]), s, -c1 * s); });
            if (dresidual != nullptr) {
                const auto more = load<n>(dresidual + columns.at(i));
                unrolled<n>([&](int j) { dx[j] += as_float(more, j); });
            }
            store(call.dinp + at, rounded<T>(dx));
            if constexpr (gated) {
                const auto h = load<n>(inp2 + columns.at(i));
                unrolled<n>([&](int j) {
                    held.sums[2][i].at[j] = fmaf(dx[j], as_float(h, j), held.sums[2][i].at[j]);
                    dx[j] *= as_float(held.gate[i], j);
                });
                store(call.dinp2 + at, rounded<T>(dx));
            }
        });
    }
};

template <typename T, int k, bool gated>
__global__ void __launch_bounds__(kMostThreads, 1)
    layernorm_modulate_backward_kernel(LayerNormModulateBackward<T> call, Deal deal) {
    if constexpr (kSm90) {
        constexpr int streams = gated ? 4 : 3;
        extern __shared__ __align__(128) unsigned char memory[];
        __shared__ uint64_t full[kMostStages];
        __shared__ float2 slots[2][kMostWarps];
        const Columns<kColumns, k> columns{call.C};
        Ring<T, streams, true> ring{{call.inp, call.dout}, deal, call.C};
        if constexpr (gated) { ring.tensors[2] = call.inp2; }
        ring.tensors[streams - 1] = call.dresidual;
        ring.begin = deal.runs.first_row(blockIdx.x);
        ring.end = deal.runs.first_row(blockIdx.x + 1);
        ring.memory = memory;
        ring.full = full;
        const float per_column = 1.0f / call.C;
        const int64_t tokens = deal.runs.tokens;
        int64_t row = ring.begin, sample = row / tokens;
        ring.open();
        Held<T, k, gated> held;
        int parity = 0;
        float next_m = call.mean[row], next_s = call.rstd[row];
        for (; row < ring.end; sample++) {
            held.begin(call, columns, sample);
            const int64_t first = row, last = min(ring.end, (sample + 1) * tokens);
            for (; row < last; row++, parity ^= 1) {
                const float m = next_m, s = next_s;
                if (row + 1 < ring.end) {  // a row ahead: nobody is to wait for them
                    next_m = call.mean[row + 1];
                    next_s = call.rstd[row + 1];
                }
                hide_from_optimizer(held.scale);  // else unpacked once, in twice as many registers
                if constexpr (gated) { hide_from_optimizer(held.gate); }
                ring.wait();
                Row<T, k, gated> mine;
                float2 sums = mine.read(held, columns, ring.row_of(0, row), ring.row_of(1, row), m, s);
                sums = sum_over_row(ring, slots[parity], sums);
                ring.refill(row);
                const T* inp2 = gated ? ring.row_of(2, row) : nullptr;
                const T* dresidual = call.dresidual != nullptr ? ring.row_of(streams - 1, row) : nullptr;
                mine.write(call, held, columns, inp2, dresidual, row, sums.x * per_column,
                           sums.y * per_column, s);
                ring.advance();
            }
            if (row == ring.end) { dependency_launch(); }
            held.end(call, columns,
                     {sample, last - first == tokens, place_of(blockIdx.x, first != ring.begin)});
        }
    }
}

// ---- what is not whole vectors: a block of any number of columns, whose sums stay in scratch ------------

constexpr int kAnyThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kAnyThreads)
    layernorm_modulate_backward_any_kernel(LayerNormModulateBackward<T> call, Runs runs) {
    const bool gated = call.dinp2 != nullptr;
    const int sets = gated ? 3 : 2, C = call.C;
    const int64_t begin = runs.first_row(blockIdx.x), end = runs.first_row(blockIdx.x + 1);
    for (int64_t row = begin; row < end; row++) {
        const int64_t sample = row / runs.tokens, of_token = row % runs.tokens, at = row * C;
        const bool is_first = row == begin || of_token == 0,
                   is_last = row == end - 1 || of_token == runs.tokens - 1;
        const int64_t first = max(begin, sample * runs.tokens);
        const bool whole = is_last && row - first == runs.tokens - 1;
        const int place = place_of(blockIdx.x, first != begin);
        const float m = call.mean[row], s = call.rstd[row];
        const T* scale = of_sample(call.scale, sample);
        float* sums = static_cast<float*>(call.scratch) + (int64_t)place * sets * C;
        float2 of_row{};
        for (int c = threadIdx.x; c < C; c += kAnyThreads) {
            const float dy = (float)call.dout[at + c], g = fmaf(dy, (float)scale[c], dy);
            of_row.x += g;
            of_row.y = fmaf(g, ((float)call.inp[at + c] - m) * s, of_row.y);
        }
        const float c1 = block_sum(of_row.x) / C, c2 = block_sum(of_row.y) / C;
        for (int c = threadIdx.x; c < C; c += kAnyThreads) {
            const float dy = (float)call.dout[at + c], xhat = ((float)call.inp[at + c] - m) * s;
            float dx = fmaf(fmaf(xhat, -c2, fmaf(dy, (float)scale[c], dy)), s, -c1 * s);
            if (call.dresidual != nullptr) { dx += (float)call.dresidual[at + c]; }
            const float terms[] = {dy * xhat, dy, gated ? dx * (float)call.inp2[at + c] : 0.0f};
            call.dinp[at + c] = (T)dx;
            if (gated) { call.dinp2[at + c] = (T)(dx * (float)of_sample(call.gate, sample)[c]); }
            for (int set = 0; set < sets; set++) {
                const float sum = is_first ? terms[set] : sums[set * C + c] + terms[set];
                if (whole) {
                    of_sample(result(call, set), sample)[c] = (T)sum;
                } else {
                    sums[set * C + c] = sum;
                }
            }
        }
    }
}

// ---- the sums of samples that several blocks share ------------------------------------------------------

constexpr int kMostFinishWarps = 16;

// A block adds up n columns a lane of one result of one sample: each warp every warps-th block's, then warp after warp.
// blockIdx.x: column tile, result, and the sample; where there are more samples than blocks that had rows, the boundary between
// two of those, whose sample this is if it is the first within it.
template <int n, typename T>
__global__ void __launch_bounds__(kMostFinishWarps* kWarp)
    finish_samples_kernel(LayerNormModulateBackward<T> call, Runs runs, int sets, int tiles) {
    __shared__ alignas(16) float of_warp[kMostFinishWarps][kWarp * n];
    const int warps = blockDim.x / kWarp, warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    const int tile = blockIdx.x % tiles, set = blockIdx.x / tiles % sets, item = blockIdx.x / tiles / sets;
    const bool by_boundary = call.samples >= runs.blocks;
    const int64_t sample = by_boundary ? runs.first_row(item + 1) / runs.tokens : item;
    const int64_t begin = sample * runs.tokens;
    const int first = runs.block_of(begin), last = runs.block_of(begin + runs.tokens - 1);
    // all blocks: else the kernel behind, which waits for this one, would not wait for the rows
    if constexpr (kSm90) { dependency_wait(); }
    if (first == last || (by_boundary && first != item)) { return; }
    const int c = (tile * kWarp + lane) * n;
    Elements<float, n> sum{};
    if (c < call.C) {
#pragma unroll 4
        for (int block = first + warp; block <= last; block += warps) {
            const int place = place_of(block, block == first && runs.first_row(block) < begin);
            const auto more =
                load<n>(static_cast<const float*>(call.scratch) + ((int64_t)place * sets + set) * call.C + c);
            unrolled<n>([&](int j) { sum.at[j] += more.at[j]; });
        }
    }
    store(&of_warp[warp][lane * n], sum);
    __syncthreads();
    if (warp != 0 || c >= call.C) { return; }
    for (int w = 1; w < warps; w++) {
        const auto more = load<n>(&of_warp[w][lane * n]);
        unrolled<n>([&](int j) { sum.at[j] += more.at[j]; });
    }
    store(of_sample(result(call, set), sample) + c, rounded<T>(sum.at));
}

template <int n, typename T>
void finish_samples(const LayerNormModulateBackward<T>& call, const Runs& runs, cudaStream_t stream) {
    const int64_t shares = ceil_div(runs.tokens * runs.blocks, runs.rows) + 1;  // of a sample, at most
    const int sets = call.dinp2 != nullptr ? 3 : 2, tiles = ceil_div(call.C, kWarp * n);
    const int warps = (int)std::clamp<int64_t>(ceil_div(shares, (int64_t)4), 1, kMostFinishWarps);
    const int64_t items = call.samples >= runs.blocks ? runs.blocks - 1 : call.samples;
    if (items == 0) { return; }
    launch_overlapping(finish_samples_kernel<n, T>, grid_x(items * sets * tiles), warps * kWarp, 0, stream,
                       call, runs, sets, tiles);
}

// of samples without tokens
template <typename T>
void zero_samples(const LayerNormModulateBackward<T>& call, cudaStream_t stream) {
    const PerSample<T> all[] = {call.dscale, call.dshift, call.dgate};
    for (const PerSample<T>& p : all) {
        for (int64_t b = 0; p.at != nullptr && b < call.samples; b++) {
            check(cudaMemsetAsync(p.at + b * p.stride, 0, call.C * sizeof(T), stream));
        }
    }
}

template <bool gated, typename T>
bool launch_backward(const LayerNormModulateBackward<T>& call, cudaStream_t stream) {
    const size_t row_bytes = call.C * sizeof(T);
    if (!takes_vectors(layernorm_modulate_backward_kernel<T, 3, gated>, row_bytes, call.dinp, call.dinp2,
                       call.dout, call.inp, call.inp2, call.dresidual) ||
        !aligned_samples(call.scale, call.gate, call.dscale, call.dshift, call.dgate)) {
        return false;
    }
    const int streams = (gated ? 3 : 2) + (call.dresidual != nullptr);
    // with a gate float has no registers for more
    constexpr int layouts[] = {kFewVectors, gated && sizeof(T) == 4 ? kFewVectors : kMoreVectors};
    const Deal deal = deal_rows(layouts, call.C / kColumns, (int)row_bytes, streams,
                                gated ? kGatedWarps : kMostWarps, call.samples, call.tokens);
    if (deal.runs.blocks == 0) { return false; }
    with_constant<layouts[0], layouts[1] + 1>(deal.vectors, [&]<int k>() {
        constexpr auto* kernel = layernorm_modulate_backward_kernel<T, k, gated>;
        allow_shared_bytes<kernel>(device_facts().shared_bytes - kReserved);
        const LaunchConfig config{
            (unsigned)deal.runs.blocks, deal.warps * kWarp, deal.shared_bytes, stream, 1, true};
        config.launch(kernel, call, deal);
    });
    finish_samples<kColumns>(call, deal.runs, stream);
    return true;
}

}  // namespace modulate

// two places a block, of three sums each
size_t layernorm_modulate_backward_scratch(int C) {
    const int blocks = modulate::blocks_of_sm(C) * device_facts().multiprocessors;
    return (size_t)blocks * 2 * 3 * C * sizeof(float);
}

template <typename T>
void layernorm_modulate_backward(const LayerNormModulateBackward<T>& given, cudaStream_t stream) {
    using namespace modulate;
    LayerNormModulateBackward<T> call = given;
    const bool gated = call.dinp2 != nullptr;
    require(call.samples >= 0 && call.tokens >= 0 && call.C > 0,
            "layernorm_modulate_backward: sizes below 0, or C is 0");
    require(!gated || (call.inp2 != nullptr && call.gate.at != nullptr && call.dgate.at != nullptr),
            "layernorm_modulate_backward: dinp2 needs inp2, gate and dgate");
    for (auto* p : {&call.scale, &call.gate}) { fill_stride(*p, call.C); }
    for (auto* p : {&call.dscale, &call.dshift, &call.dgate}) { fill_stride(*p, call.C); }
    const int64_t rows = call.samples * call.tokens;
    if (rows == 0) { return zero_samples(call, stream); }
    if (gated ? launch_backward<true>(call, stream) : launch_backward<false>(call, stream)) { return; }
    const Runs runs(call.samples, call.tokens, blocks_of_sm(call.C) * device_facts().multiprocessors);
    layernorm_modulate_backward_any_kernel<T><<<runs.blocks, kAnyThreads, 0, stream>>>(call, runs);
    check_launch();
    finish_samples<1>(call, runs, stream);
}

template void layernorm_modulate_backward(const LayerNormModulateBackward<float>&, cudaStream_t);
template void layernorm_modulate_backward(const LayerNormModulateBackward<__nv_bfloat16>&, cudaStream_t);
template void layernorm_modulate_backward(const LayerNormModulateBackward<__half>&, cudaStream_t);

}  // namespace llmc

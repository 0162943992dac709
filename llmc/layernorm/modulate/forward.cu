// Forward: a row in the registers of a block of few warps, which meet once, to merge their moments.
#include "llmc/layernorm/modulate/rows.cuh"

namespace llmc {

namespace modulate {

// of an SM, where there is no gate: 14 blocks of a warp, 3 of four, are dealt rows most evenly (H200, 1152 and 3072 columns)
constexpr int kUngatedWarps = 14;
constexpr int kForwardLayouts[] = {3, 4, 5};  // vectors of 16 bytes a lane

// a lane's part of what a sample has
template <typename T, int n, int k, bool gated>
struct Sample {
    Elements<T, n> scale[k], shift[k], gate[gated ? k : 1];

    __device__ void load(const LayerNormModulateForward<T>& call, const Columns<n, k>& columns,
                         int64_t sample) {
        columns.load(scale, of_sample(call.scale, sample));
        columns.load(shift, of_sample(call.shift, sample));
        if constexpr (gated) { columns.load(gate, of_sample(call.gate, sample)); }
    }
};

// inp + gate inp2, which is rounded and written
template <typename T, int n, int k>
__device__ void add_gated(Elements<T, n> (&x)[k], const Elements<T, n> (&gate)[k], const T* inp2, T* residual,
                          const Columns<n, k>& columns) {
    unrolled<k>([&](int i) {
        if (!columns.has(i)) { return; }
        const auto h = load<n>(inp2 + columns.at(i));
        float sum[n];
        unrolled<n>([&](int j) { sum[j] = fmaf(as_float(gate[i], j), as_float(h, j), as_float(x[i], j)); });
        x[i] = rounded<T>(sum);
        store(residual + columns.at(i), x[i]);
    });
}

template <typename T, int n, int k>
__device__ Moments moments_of_warp(const Elements<T, n> (&x)[k], const Columns<n, k>& columns, float count,
                                   float per_count) {
    auto some = [&](auto add) {  // behind the row x is 0
        unrolled<k, n>([&](int i, int j) { add(as_float(x[i], j), j % 2); });
    };
    auto all = [&](auto add) {
        unrolled<k>([&](int i) {
            if (columns.has(i)) {
                unrolled<n>([&](int j) { add(as_float(x[i], j), j % 2); });
            }
        });
    };
    return moments_of<kWarp>(some, per_count, all, count, per_count, false);
}

template <typename T, int k, bool gated>
__global__ void __launch_bounds__(kMostThreads, 1)
    layernorm_modulate_forward_kernel(LayerNormModulateForward<T> call, Deal deal) {
    if constexpr (kSm90) {
        constexpr int n = Vec<T>::size, streams = gated ? 2 : 1;
        extern __shared__ __align__(128) unsigned char memory[];
        __shared__ uint64_t full[kMostStages];
        __shared__ Moments of_warp[2][kMostWarps];
        const Columns<n, k> columns{call.C};
        Ring<T, streams, false> ring{{call.inp}, deal, call.C};
        if constexpr (gated) { ring.tensors[1] = call.inp2; }
        ring.begin = deal.runs.first_row(blockIdx.x);
        ring.end = deal.runs.first_row(blockIdx.x + 1);
        ring.memory = memory;
        ring.full = full;
        if (threadIdx.x < 2 * kMostWarps) {  // as many threads as a warp has
            of_warp[threadIdx.x / kMostWarps][threadIdx.x % kMostWarps] = {};
        }
        ring.open();
        dependency_launch();
        const int warps = blockDim.x / kWarp;
        const float count = columns.of_warp(), per_count = 1.0f / count, per_column = 1.0f / call.C;
        Sample<T, n, k, gated> mine;
        int parity = 0;
        int64_t row = ring.begin;
        for (int64_t sample = row / deal.runs.tokens; row < ring.end; sample++) {
            mine.load(call, columns, sample);
            const int64_t last = min(ring.end, (sample + 1) * deal.runs.tokens);
            for (; row < last; row++, parity ^= 1) {
                Elements<T, n> x[k];
                hide_from_optimizer(mine);  // else it would be unpacked in twice as many registers
                ring.wait();
                columns.load(x, ring.row_of(0, row));
                if constexpr (gated) {
                    add_gated(x, mine.gate, ring.row_of(1, row), call.residual + row * call.C, columns);
                }
                const Moments of_mine = moments_of_warp(x, columns, count, per_count);
                if (threadIdx.x % kWarp == 0) { of_warp[parity][threadIdx.x / kWarp] = of_mine; }
                ring.meet();
                ring.refill(row);
                ring.advance();
                const Moments of_row = warps == 1 ? of_mine : joined<kMostWarps>(of_warp[parity], per_column);
                const Normal normal = normal_of(of_row, per_column, (float)call.eps);
                if (threadIdx.x == 0) { write_statistics(call, row, normal); }
                if constexpr (gated) { hide_from_optimizer(x); }  // likewise, of the row
                T* out = call.out + row * call.C;
                unrolled<k>([&](int i) {
                    if (!columns.has(i)) { return; }
                    float y[n];
                    unrolled<n>([&](int j) {
                        const float xhat = normal.xhat(as_float(x[i], j));
                        y[j] = fmaf(xhat, as_float(mine.scale[i], j), xhat + as_float(mine.shift[i], j));
                    });
                    store(out + columns.at(i), rounded<T>(y));
                });
            }
        }
    }
}

// ---- what is not whole vectors: a block a row, which it reads three times -------------------------------

constexpr int kAnyThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kAnyThreads)
    layernorm_modulate_forward_any_kernel(LayerNormModulateForward<T> call) {
    const float per_column = 1.0f / call.C;
    for (int64_t row = blockIdx.x; row < call.samples * call.tokens; row += gridDim.x) {
        const int64_t sample = row / call.tokens;
        const T *scale = of_sample(call.scale, sample), *shift = of_sample(call.shift, sample);
        const T* x = call.inp + row * call.C;
        float sum = 0;
        float2 rest{};
        for (int c = threadIdx.x; c < call.C; c += kAnyThreads) {
            if (call.residual != nullptr) {
                const float gate = (float)of_sample(call.gate, sample)[c];
                call.residual[row * call.C + c] =
                    (T)fmaf(gate, (float)call.inp2[row * call.C + c], (float)x[c]);
                sum += (float)call.residual[row * call.C + c];
            } else {
                sum += (float)x[c];
            }
        }
        if (call.residual != nullptr) { x = call.residual + row * call.C; }
        const float about = block_sum(sum) * per_column;
        for (int c = threadIdx.x; c < call.C; c += kAnyThreads) {
            const float d = (float)x[c] - about;
            rest.x += d;
            rest.y = fmaf(d, d, rest.y);
        }
        rest = {block_sum(rest.x), block_sum(rest.y)};
        const Normal normal =
            normal_of(moments_about(about, rest, call.C, per_column), per_column, (float)call.eps);
        if (threadIdx.x == 0) { write_statistics(call, row, normal); }
        for (int c = threadIdx.x; c < call.C; c += kAnyThreads) {
            const float xhat = normal.xhat((float)x[c]);
            call.out[row * call.C + c] = (T)fmaf(xhat, (float)scale[c], xhat + (float)shift[c]);
        }
    }
}

template <bool gated, typename T>
bool launch_forward(const LayerNormModulateForward<T>& call, cudaStream_t stream) {
    constexpr int n = Vec<T>::size;
    const size_t row_bytes = call.C * sizeof(T);
    if (!takes_vectors(layernorm_modulate_forward_kernel<T, 3, gated>, row_bytes, call.out, call.inp,
                       call.inp2, call.residual) ||
        !aligned_samples(call.scale, call.shift, call.gate)) {
        return false;
    }
    const Deal deal = deal_rows(kForwardLayouts, ceil_div(call.C, n), (int)row_bytes, gated ? 2 : 1,
                                gated ? kMostWarps : kUngatedWarps, call.samples, call.tokens);
    if (deal.runs.blocks == 0) { return false; }
    with_constant<kForwardLayouts[0], kForwardLayouts[std::size(kForwardLayouts) - 1] + 1>(
        deal.vectors, [&]<int k>() {
            constexpr auto* kernel = layernorm_modulate_forward_kernel<T, k, gated>;
            allow_shared_bytes<kernel>(device_facts().shared_bytes - kReserved);
            const LaunchConfig config{
                (unsigned)deal.runs.blocks, deal.warps * kWarp, deal.shared_bytes, stream, 1, true};
            config.launch(kernel, call, deal);
        });
    return true;
}

}  // namespace modulate

template <typename T>
void layernorm_modulate_forward(const LayerNormModulateForward<T>& given, cudaStream_t stream) {
    using namespace modulate;
    LayerNormModulateForward<T> call = given;
    const bool gated = call.residual != nullptr;
    require(call.samples >= 0 && call.tokens >= 0 && call.C > 0,
            "layernorm_modulate_forward: sizes below 0, or C is 0");
    require(gated == (call.inp2 != nullptr) && gated == (call.gate.at != nullptr),
            "layernorm_modulate_forward: residual, inp2 and gate go together");
    for (auto* p : {&call.scale, &call.shift, &call.gate}) { fill_stride(*p, call.C); }
    const int64_t rows = call.samples * call.tokens;
    if (rows == 0) { return; }
    if (gated ? launch_forward<true>(call, stream) : launch_forward<false>(call, stream)) { return; }
    const unsigned blocks = (unsigned)std::min<int64_t>(rows, 1 << 20);
    layernorm_modulate_forward_any_kernel<T><<<blocks, kAnyThreads, 0, stream>>>(call);
    check_launch();
}

template void layernorm_modulate_forward(const LayerNormModulateForward<float>&, cudaStream_t);
template void layernorm_modulate_forward(const LayerNormModulateForward<__nv_bfloat16>&, cudaStream_t);
template void layernorm_modulate_forward(const LayerNormModulateForward<__half>&, cudaStream_t);

}  // namespace llmc

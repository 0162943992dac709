// The encoder's kernels. Forward: a warp per row. Backward: the tokens are sorted, each with its row, so that
// the rows of a token are neighbours (a run); then
//   1. a block takes a chunk of the sorted list and sums its runs. One that lies inside the chunk goes to
//   dwte,
//      one that crosses the chunk's border leaves a partial sum in scratch;
//   2. a run's first chunk adds the partial sums of all its chunks, in order.
// Chunks have a constant length, so the order of every sum follows from the tokens alone, and a token that
// has most of the rows is shared by as many blocks as its rows fill chunks.
#include "llmc/ops/encoder.h"

#include <algorithm>
#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include "llmc/cuda/check.cuh"
#include "llmc/cuda/resources.cuh"
#include "llmc/cuda/vectors.cuh"

namespace llmc {

namespace {

constexpr int kBlock = 256;
constexpr int kChunk = 64;  // sorted rows
constexpr int kAtOnce = 4;  // rows that a thread has on their way from memory
static_assert(kChunk % kAtOnce == 0);

// out (N,C), N = B * T
template <typename Real, bool drops>
__global__ void encoder_forward_kernel(Real* out, const int32_t* tokens, const Real* wte, const Real* wpe,
                                       int64_t N, int T, int C, Dropout dropout) {
    int64_t row = ((int64_t)blockIdx.x * kBlock + threadIdx.x) / kWarp;
    if (row >= N) { return; }
    const Real* token = wte + (int64_t)tokens[row] * C;
    const Real* position = wpe + row % T * C;
    auto row_of = [=](int k) { return k == 0 ? token : position; };
    constexpr int n = Vec<Real>::size;
    for (int64_t c = threadIdx.x % kWarp * n; c < C; c += kWarp * n) {
        Vec<Real> x[2];
        load_together(x, row_of, 2, c, C);
        if constexpr (drops) {
            const auto factors = DropoutRow(dropout, row, C).factors<n>((int)c);
            for (int j = 0; j < n; j++) {
                x[0].at[j] = (Real)(((float)x[0].at[j] + (float)x[1].at[j]) * factors[j]);
            }
        } else {
            for (int j = 0; j < n; j++) { x[0].at[j] = (Real)((float)x[0].at[j] + (float)x[1].at[j]); }
        }
        store_within(out + row * C, c, C, x[0]);
    }
}

// row[c], row[c + 1], ... = sum, or += sum: those of the n that lie in the row's C columns
template <typename Grad, int n>
__device__ void put(Grad* row, int64_t c, int C, const float (&sum)[n], bool accumulate) {
    constexpr int size = Vec<Grad>::size;
    static_assert(n % size == 0);
#pragma unroll
    for (int k = 0; k < n; k += size) {
        Vec<Grad> x;
        if (accumulate) { x = load_within<Vec<Grad>>(row, c + k, C); }
        for (int j = 0; j < size; j++) {
            x.at[j] = (Grad)(accumulate ? (float)x.at[j] + sum[k + j] : sum[k + j]);
        }
        store_within(row, c + k, C, x);
    }
}

// sum[j] += column c + j of `count` rows in order; row_at(k) is where row k of T begins, C columns
template <typename T, int n, typename RowAt>
__device__ void add_rows(float (&sum)[n], RowAt row_at, int64_t count, int64_t c, int C) {
    constexpr int size = Vec<T>::size;
#pragma unroll
    for (int j = 0; j < n; j += size) {
        for (int64_t first = 0; first < count; first += kAtOnce) {
            Vec<T> x[kAtOnce];
            auto row = [&](int k) { return row_at(first + k); };
            load_together(x, row, count - first, c + j, C);
#pragma unroll
            for (int k = 0; k < kAtOnce; k++) {
                if (first + k >= count) { break; }
                for (int i = 0; i < size; i++) { sum[j + i] += (float)x[k].at[i]; }
            }
        }
    }
}

// a thread adds a vector of dwpe's columns over the batch; dout (B,T,C)
template <typename Real, typename Grad>
__global__ void encoder_backward_wpe_kernel(Grad* dwpe, const Real* dout, int B, int T, int C,
                                            bool accumulate) {
    constexpr int n = Vec<Real>::size;
    int64_t index = (int64_t)blockIdx.x * kBlock + threadIdx.x;
    int vectors = ceil_div(C, n);
    int64_t t = index / vectors, c = index % vectors * n;
    if (t >= T) { return; }
    float sum[n] = {};
    auto row_at = [=](int64_t b) { return dout + (b * T + t) * C; };
    add_rows<Real>(sum, row_at, B, c, C);
    put(dwpe + t * C, c, C, sum, accumulate);
}

__global__ void count_kernel(int32_t* rows, int64_t N) {
    int64_t i = (int64_t)blockIdx.x * kBlock + threadIdx.x;
    if (i < N) { rows[i] = (int32_t)i; }
}

// Step 1. tokens, rows (N): sorted. partial (chunks,2,C): [0] of the run that comes from the chunk before,
// [1] of the one that begins here and goes on in the next; the rest is not written.
template <typename Real, typename Grad>
__global__ void encoder_backward_chunk_kernel(Grad* dwte, float* partial, const Real* dout,
                                              const int32_t* tokens, const int32_t* rows, int64_t N, int C) {
    constexpr int n = Vec<Real>::size;
    __shared__ int32_t token[kChunk], row[kChunk];
    int64_t begin = (int64_t)blockIdx.x * kChunk;
    int count = (int)min((int64_t)kChunk, N - begin);
    for (int k = threadIdx.x; k < count; k += blockDim.x) {
        token[k] = tokens[begin + k];
        row[k] = rows[begin + k];
    }
    __syncthreads();
    bool from_before = begin > 0 && tokens[begin - 1] == token[0];
    bool to_next = begin + count < N && tokens[begin + count] == token[count - 1];

    for (int64_t c = (int64_t)threadIdx.x * n; c < C; c += blockDim.x * n) {
        float sum[n] = {};
        int run = 0;  // where the run begins
        for (int k = 0; k < count; k += kAtOnce) {
            Vec<Real> d[kAtOnce];
            auto row_at = [&](int u) { return dout + (int64_t)row[k + u] * C; };
            load_together(d, row_at, count - k, c, C);
#pragma unroll
            for (int u = 0; u < kAtOnce; u++) {
                int at = k + u;
                if (at >= count) { break; }
                for (int j = 0; j < n; j++) { sum[j] += (float)d[u].at[j]; }
                bool last = at + 1 == count;
                if (!last && token[at + 1] == token[at]) { continue; }
                bool comes = run == 0 && from_before, goes = last && to_next;
                if (comes || goes) {
                    put(partial + (2 * (int64_t)blockIdx.x + !comes) * C, c, C, sum, false);
                } else {
                    put(dwte + (int64_t)token[at] * C, c, C, sum, true);
                }
                for (float& s : sum) { s = 0; }
                run = at + 1;
            }
        }
    }
}

// the last chunk of a run that goes on from `chunk` to the next: chunks' first tokens are sorted as well
__device__ int64_t last_chunk_of(const int32_t* tokens, int32_t token, int64_t chunk, int64_t N) {
    int64_t low = chunk + 1, high = ceil_div(N, kChunk);  // low begins with the token, high does not
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        (tokens[middle * kChunk] == token ? low : high) = middle;
    }
    return low;
}

// Step 2. A block for each chunk but the last; only those have work in which a run begins that goes on.
template <typename Grad>
__global__ void encoder_backward_join_kernel(Grad* dwte, const float* partial, const int32_t* tokens,
                                             int64_t N, int C) {
    constexpr int n = Vec<Grad>::size;
    int64_t chunk = blockIdx.x, begin = chunk * kChunk, next = begin + kChunk;
    int32_t token = tokens[next - 1];
    if (tokens[next] != token) { return; }
    if (tokens[begin] == token && chunk > 0 && tokens[begin - 1] == token) { return; }
    int64_t last = last_chunk_of(tokens, token, chunk, N);

    for (int64_t c = (int64_t)threadIdx.x * n; c < C; c += blockDim.x * n) {
        float sum[n] = {};
        auto begins = [=](int64_t) { return partial + (2 * chunk + 1) * C; };
        auto goes_on = [=](int64_t k) { return partial + 2 * (chunk + 1 + k) * C; };
        add_rows<float>(sum, begins, 1, c, C);
        add_rows<float>(sum, goes_on, last - chunk, c, C);
        put(dwte + (int64_t)token * C, c, C, sum, true);
    }
}

// The sort. With temporary == nullptr it only says how many bytes that takes. Stable, so rows stay in order.
void sort_rows(void* temporary, size_t& bytes, const int32_t* tokens, int32_t* sorted_tokens,
               const int32_t* rows, int32_t* sorted_rows, int64_t N, int V, cudaStream_t stream) {
    require(N <= INT32_MAX, "encoder_backward: B * T is over 2^31 - 1, what a row's int32 index can say");
    int bits = std::max(1, (int)std::bit_width((uint32_t)(V - 1)));
    check(cub::DeviceRadixSort::SortPairs(temporary, bytes, (const uint32_t*)tokens, (uint32_t*)sorted_tokens,
                                          rows, sorted_rows, (int)N, 0, bits, stream));
}

// how encoder_backward's scratch is divided
struct Scratch {
    int32_t *tokens, *rows, *sorted_rows;  // (N) each; tokens are the sorted ones
    float* partial;                        // (chunks,2,C)
    void* temporary;                       // the sort's
    size_t temporary_bytes = 0, bytes;

    Scratch(void* base, int64_t N, int C, int V) {
        sort_rows(nullptr, temporary_bytes, nullptr, nullptr, nullptr, nullptr, N, V, nullptr);
        Arena arena(base);
        for (int32_t** list : {&tokens, &rows, &sorted_rows}) { *list = arena.take<int32_t>(N); }
        partial = arena.take<float>(ceil_div(N, kChunk) * 2 * C);
        temporary = arena.take<char>((int64_t)temporary_bytes);
        bytes = (size_t)arena.used();
    }
};

// threads for a row of C columns of T: one for each vector, in whole warps
template <typename T>
int block_of(int C) {
    return std::min(kBlock, ceil_div(ceil_div(C, Vec<T>::size), kWarp) * kWarp);
}

}  // namespace

template <typename Real>
void encoder_forward(Real* out, const int32_t* tokens, const Real* wte, const Real* wpe, int B, int T, int C,
                     cudaStream_t stream, const Dropout& dropout) {
    int64_t N = (int64_t)B * T;
    if (N == 0) { return; }
    unsigned grid = grid_x(ceil_div(N, kBlock / kWarp));
    auto* kernel =
        dropout.rows != nullptr ? encoder_forward_kernel<Real, true> : encoder_forward_kernel<Real, false>;
    kernel<<<grid, kBlock, 0, stream>>>(out, tokens, wte, wpe, N, T, C, dropout);
    check_launch();
}

size_t encoder_backward_scratch(int B, int T, int C, int V) {
    return Scratch(nullptr, (int64_t)B * T, C, V).bytes;
}

template <typename Real, typename Grad>
void encoder_backward(Grad* dwte, Grad* dwpe, void* scratch, const Real* dout, const int32_t* tokens, int B,
                      int T, int C, int V, bool accumulate, cudaStream_t stream) {
    int64_t N = (int64_t)B * T;
    if (N == 0) { return; }
    unsigned grid = grid_x(ceil_div(T * (int64_t)ceil_div(C, Vec<Real>::size), kBlock));
    encoder_backward_wpe_kernel<<<grid, kBlock, 0, stream>>>(dwpe, dout, B, T, C, accumulate);
    check_launch();

    Scratch s(scratch, N, C, V);
    count_kernel<<<grid_x(ceil_div(N, kBlock)), kBlock, 0, stream>>>(s.rows, N);
    check_launch();
    sort_rows(s.temporary, s.temporary_bytes, tokens, s.tokens, s.rows, s.sorted_rows, N, V, stream);
    unsigned chunks = grid_x(ceil_div(N, kChunk));
    encoder_backward_chunk_kernel<<<chunks, block_of<Real>(C), 0, stream>>>(dwte, s.partial, dout, s.tokens,
                                                                            s.sorted_rows, N, C);
    check_launch();
    if (chunks == 1) { return; }
    encoder_backward_join_kernel<<<chunks - 1, block_of<Grad>(C), 0, stream>>>(dwte, s.partial, s.tokens, N,
                                                                               C);
    check_launch();
}

using bf16 = __nv_bfloat16;
template decltype(encoder_forward<float>) encoder_forward<float>;
template decltype(encoder_forward<bf16>) encoder_forward<bf16>;
template decltype(encoder_backward<float, float>) encoder_backward<float, float>;
template decltype(encoder_backward<bf16, float>) encoder_backward<bf16, float>;
template decltype(encoder_backward<bf16, bf16>) encoder_backward<bf16, bf16>;

}  // namespace llmc

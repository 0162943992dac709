// A kernel of LayerNorm backward for Ampere on, and rows that registers cannot hold between their halves: a
// block does the first half of a row (the sums) while the row before is in its second (dinp), vector by
// vector, so that no warp waits for the others' sums and memory is busy throughout. Rows lie in shared
// memory, where each thread brings its own vectors by cp.async and refills what it has just used. Sums by
// column stay in registers to the end. A block's rows: up to 16384 elements of 16 bits, 8192 of 32. Longer
// ones are shared by up to 32 blocks, which run all at once and tell each other their sums through L2; the
// first half is two to four rows ahead there.
#pragma once
#include "llmc/cuda/column_sums.cuh"
#include "llmc/layernorm/backward/rows.cuh"

namespace llmc::cp_async_pipelined {

using namespace layernorm;

// A lane has k vectors; the first half is `lead` rows ahead of the second, out of `stages` rows in shared
// memory. Only a lead of 2 or more leaves the time to share rows between blocks. keeps: weight is in shared memory,
// too; else it comes from L1, for which the ring leaves little room, for both halves of every row.
template <int k_, int lead_, int stages_, bool keeps_ = true>
struct Layout {
    static constexpr int k = k_, lead = lead_, stages = stages_;
    static constexpr bool keeps = keeps_;
    static constexpr int warps = layouts::kPipelinedWarps, threads = warps * kWarp;
    static constexpr int sets = 2 * lead;  // of sums: a warp is at most `lead` rows ahead of another
    static constexpr bool shares = lead > 1;
    static_assert(stages > lead);
};

// The sums of wdy and of wdy xhat over a block's part of a row, or kNoPair, which arithmetic never makes:
// the NaN it makes is 0x7fffffff.
using Pair = unsigned long long;
constexpr Pair kNoPair = ~0ull;

constexpr int kMostPending = 12;  // groups of a thread's copies that it leaves under way when it waits

// What a block has of a row, and what the row's blocks tell each other.
struct Share {
    int blocks = 1;
    float per_column = 0;   // 1 / C
    bool add = false;       // sums by column to those of rows before
    Pair* pairs = nullptr;  // (N,blocks)
};

template <typename L, bool kAccumulate, typename T>
struct Shared {
    static constexpr int n = Vec<T>::size, step = L::threads * n, columns = step * L::k;
    T ring[L::stages][2][columns];        // of inp, dout
    T before[kAccumulate ? columns : n];  // dinp as it was, of one row
    T weight[L::keeps ? columns : n];
    float2 pairs[L::sets][L::warps];  // each warp's sums
    uint64_t summed[L::sets];         // all warps' have come
};

// a pair of sums between blocks that run at once: both numbers or neither, past L1
__device__ inline void tell(Pair* pair, float2 sums) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(pair),
                 "l"((Pair)__float_as_uint(sums.y) << 32 | __float_as_uint(sums.x)));
}
__device__ inline Pair hear(const Pair* pair) {
    Pair x;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(x) : "l"(pair));
    return x;
}

// What a thread of a block does with its columns of the block's rows: row, row + step, ... Of its k vectors
// all but the last are sure to exist.
template <typename L, bool kAccumulate, typename T>
struct Rows {
    static constexpr int n = Vec<T>::size, k = L::k;
    using Memory = Shared<L, kAccumulate, T>;
    struct Statistics {
        float m = 0, s = 0;
    };
    struct Vectors {
        Elements<T, n> x, dout, weight;
    };

    const LayerNormBackwardRows<T, T>& call;
    Memory& shared;
    const Share& share;
    // the first row; to the next; how many; the first column of the block's, and the next one's
    int row = blockIdx.x / share.blocks, step = gridDim.x / share.blocks;
    int rows = (int)((call.N - 1 - row) / step + 1);
    int part = blockIdx.x % share.blocks, begin = begin_of(part), end = begin_of(part + 1);
    int first = (int)threadIdx.x * n;  // of this thread's vectors' columns, from there; Memory::step apart
    bool last = first + (k - 1) * Memory::step < end - begin;  // is there a last vector?
    // this thread's columns of the next row to be fetched, and dinp of the row in its second half
    const T* inp = call.inp + (int64_t)row * call.inp_stride + begin + first;
    const T* dout = call.dout + (int64_t)row * call.dout_stride + begin + first;
    T* dinp = call.dinp + (int64_t)row * call.dinp_stride + begin + first;
    // from the row in its second half on to the one after that in its first
    Statistics statistics[L::lead + 2]{};
    float dweight[k][n]{}, dbias[k][n]{};

    __device__ int64_t row_of(int turn) const { return row + (int64_t)turn * step; }
    __device__ Pair* pairs_of(int turn) const { return share.pairs + row_of(turn) * share.blocks; }
    __device__ int begin_of(int part) const { return first_column(sizeof(T), call.C, part, share.blocks); }
    __device__ bool has(int i) const { return i < k - 1 || last; }
    __device__ static int at(int i) { return i * Memory::step; }
    // Asks for vector i of the row `turn`, to which inp and dout point, and of dinp as it is, if there is
    // such a row. What is beyond the last row is left out, but counted.
    __device__ void fetch(int i, int turn, const T* dinp) {
        if (has(i) && turn < rows) {
            auto& stage = shared.ring[turn % L::stages];
            copy16_async(&stage[0][first + at(i)], inp + at(i));
            copy16_async(&stage[1][first + at(i)], dout + at(i));
        }
        if constexpr (kAccumulate) {
            if (has(i) && dinp != nullptr) { copy16_async(&shared.before[first + at(i)], dinp + at(i)); }
        }
        copy_commit();
    }
    __device__ void fetched_row() {
        inp += step * call.inp_stride;
        dout += step * call.dout_stride;
    }
    // a last vector that no copy fills: 0, and adds nothing
    __device__ void clear_rest() {
        if (last) { return; }
        for (auto& stage : shared.ring) {
            store(&stage[0][first + at(k - 1)], Elements<T, n>{});
            store(&stage[1][first + at(k - 1)], Elements<T, n>{});
        }
    }
    // weight (null: 1) in whole words: elements one by one would be put together again for each row
    __device__ Elements<T, n> global_weight(int i) const {
        Elements<T, n> w;
#pragma unroll
        for (int j = 0; j < 4; j++) { reinterpret_cast<uint32_t*>(&w)[j] = kOneWord<T>; }
        if (has(i) && call.weight != nullptr) {
            const T* from = call.weight + begin + first + at(i);
            reinterpret_cast<int4&>(w) = *reinterpret_cast<const int4*>(from);
        }
        return w;
    }
    __device__ void keep_weight() {
        if constexpr (L::keeps) {
#pragma unroll
            for (int i = 0; i < k; i++) { store(&shared.weight[first + at(i)], global_weight(i)); }
        }
    }
    __device__ Elements<T, n> weight(int i) const {
        if constexpr (!L::keeps) { return global_weight(i); }
        return load<n>(&shared.weight[first + at(i)]);
    }
    __device__ void load_vectors(Vectors& v, int i, int turn, bool with_weight = true) const {
        const auto& stage = shared.ring[turn % L::stages];
        if (with_weight) { v.weight = weight(i); }
        v.x = load<n>(&stage[0][first + at(i)]);
        v.dout = load<n>(&stage[1][first + at(i)]);
    }
    // First half of vector i: adds it to the sums by column, and to those of wdy and wdy xhat. Of one that is not there
    // xhat is 0, too: less the mean it could be infinite.
    __device__ void read(int i, const Vectors& v, Statistics of, float2& sums) {
        RowTerms<n> t = row_terms(v.x, v.dout, v.weight, has(i) ? of.m : 0, of.s);
#pragma unroll
        for (int j = 0; j < n; j++) {
            dweight[i][j] += t.dy[j] * t.xhat[j];
            dbias[i][j] += t.dy[j];
            sums.x += t.wdy[j];
            sums.y += t.wdy[j] * t.xhat[j];
        }
    }
    // Second half: dinp. c1s, c2: the means over the row of wdy, times -s, and of wdy xhat, times -1.
    __device__ void write(int i, const Vectors& v, Statistics of, float c1s, float c2) const {
        RowTerms<n> t = row_terms(v.x, v.dout, v.weight, of.m, of.s);
        float result[n];
#pragma unroll
        for (int j = 0; j < n; j++) { result[j] = fmaf(fmaf(t.xhat[j], c2, t.wdy[j]), of.s, c1s); }
        if constexpr (kAccumulate) {
            copy_wait<kMostPending>(k - 1);
            auto before = load<n>(&shared.before[first + at(i)]);
#pragma unroll
            for (int j = 0; j < n; j++) { result[j] += as_float(before, j); }
        }
        if (has(i)) { store_streaming(dinp + at(i), rounded<T>(result)); }
    }
    // The warp's sums of the row `lead` ahead to where the block's other warps look for them. Who finds them
    // complete, as the last warp does, tells the other blocks; if two do, they tell the same.
    __device__ void leave(int turn, float2 sums) {
        float2 both = both_sums(warp_sum_pair(sums));
        uint64_t* summed = &shared.summed[turn % L::sets];
        bool complete = false;
        __syncwarp();  // so that lane 0 arrives for what all have read
        if (threadIdx.x % kWarp == 0) {
            if constexpr (L::shares) {
                // All warps have read what is written over, and then arrived for row turn - lead, whose pairs this warp
                // has heard. Those are relaxed, no order in memory: to see that phase ended is.
                int next = turn + L::lead;  // its set was turn - lead's
                mbarrier_ended(&shared.summed[next % L::sets], (next / L::sets + 1) % 2);
            }
            shared.pairs[turn % L::sets][threadIdx.x / kWarp] = both;
            mbarrier_arrive(summed);
            if constexpr (L::shares) { complete = mbarrier_ended(summed, turn / L::sets % 2); }
        }
        if (!L::shares || !__any_sync(kAllLanes, complete)) { return; }
        float2 of_all = of_block(turn);
        if (threadIdx.x % kWarp == 0) { tell(pairs_of(turn) + part, of_all); }
    }
    // the sums over all of the block's warps, in each lane the same
    __device__ float2 of_block(int turn) const {
        static_assert(L::warps == kWarp / 2);
        int lane = threadIdx.x % kWarp, set = turn % L::sets;
        mbarrier_wait(&shared.summed[set], turn / L::sets % 2);
        float2 pair = shared.pairs[set][lane % L::warps];
        float sum = lane < L::warps ? pair.x : pair.y;
        return both_sums(group_sum<L::warps>(sum));
    }
    // a lane's part of the sums of the row in its second half, if it has come
    __device__ Pair ask(int turn) const {
        int lane = threadIdx.x % kWarp;
        return lane < share.blocks ? hear(pairs_of(turn) + lane) : 0;
    }
    __device__ float2 of_blocks(int turn, Pair pair) const {
        while (__any_sync(kAllLanes, pair == kNoPair)) { pair = ask(turn); }
        float2 part{__uint_as_float((unsigned)pair), __uint_as_float((unsigned)(pair >> 32))};
        return both_sums(warp_sum_pair(part));
    }

    // what is asked for here is used in the next turn
    __device__ void next_statistics(int turn) {
#pragma unroll
        for (int i = 0; i <= L::lead; i++) { statistics[i] = statistics[i + 1]; }
        if (turn < rows) { statistics[L::lead + 1] = {mean_of(call, row_of(turn)), call.rstd[row_of(turn)]}; }
    }
    // One turn: the first half of row turn + lead, if it exists; the second of row `turn`, a vector later.
    template <bool kFirst, bool kSecond>
    __device__ void take_turn(int turn) {
        // where registers are short: the second half's vectors not before the first half has used its own;
        // elsewhere it keeps a weight that the first half has from L1
        constexpr bool kFew = (kAccumulate && n > 4) || k * n > 24;
        constexpr bool kWeight = L::keeps || kFew || !kFirst;
        int ahead = turn + L::lead;
        const T* next_dinp = turn + 1 < rows ? dinp + step * call.dinp_stride : nullptr;
        float2 sums{0, 0}, c{0, 0};
        Pair pair = 0;
        Vectors now, then;  // of the first half, and of the second
        next_statistics(ahead + 1);
        if constexpr (kSecond && L::shares) { pair = ask(turn); }
#pragma unroll
        for (int i = 0; i <= k; i++) {
            then.weight = now.weight;
            if (kFirst && i < k) {
                // asked for after its copy: the rest of that row, whole rows, and what this turn has
                copy_wait<kMostPending>(k - 1 - i + (L::stages - L::lead - 1) * k + max(0, i - 1));
                load_vectors(now, i, ahead);
            }
            if (kSecond && i > 0 && !kFew) { load_vectors(then, i - 1, turn, kWeight); }
            if (kFirst && i < k) { read(i, now, statistics[L::lead], sums); }
            if (kSecond && i > 0 && kFew) {
                __syncwarp();  // so that no registers are taken for these loads yet
                load_vectors(then, i - 1, turn);
            }
            if (kSecond && i == 1) {
                c = L::shares ? of_blocks(turn, pair) : of_block(turn);
                if (call.rms) { c.x = 0; }
                c = {-c.x * share.per_column * statistics[0].s, -c.y * share.per_column};
            }
            if (kSecond && i > 0) {
                write(i - 1, then, statistics[0], c.x, c.y);
                fetch(i - 1, turn + L::stages, next_dinp);
            }
        }
        if (kSecond) {
            fetched_row();
            dinp += step * call.dinp_stride;
        }
        if (kFirst) { leave(ahead, sums); }
    }
    __device__ void walk() {
        for (int turn = 0; turn < L::stages; turn++, fetched_row()) {
#pragma unroll
            for (int i = 0; i < k; i++) { fetch(i, turn, turn == 0 ? dinp : nullptr); }
        }
        next_statistics(0);
        int turn = -L::lead;
        for (; turn < 0; turn++) {
            turn + L::lead < rows ? take_turn<true, false>(turn) : take_turn<false, false>(turn);
        }
        for (; turn + L::lead < rows; turn++) { take_turn<true, true>(turn); }
        for (; turn < rows; turn++) { take_turn<false, true>(turn); }
    }
    // one set of sums by column; to: this thread's
    __device__ void write_sums(float* to, const float (&sums)[k][n]) const {
        constexpr int wide = 4;
#pragma unroll
        for (int i = 0; i < k; i++) {
            if (!has(i)) { continue; }
#pragma unroll
            for (int j = 0; j < n; j += wide) {
                Elements<float, wide> sum{};
                if (L::shares && share.add) { sum = load<wide>(to + at(i) + j); }
#pragma unroll
                for (int l = 0; l < wide; l++) { sum.at[l] += sums[i][j + l]; }
                store(to + at(i) + j, sum);
            }
        }
    }
    // at the end: partial (2,groups,C)
    __device__ void write_sums(float* partial) const {
        write_sums(partial + (int64_t)row * call.C + begin + first, dweight);
        write_sums(partial + (int64_t)(step + row) * call.C + begin + first, dbias);
    }
};

template <typename L, bool kAccumulate, typename T>
__global__ void __launch_bounds__(L::threads, 1)
    layernorm_backward_pipelined_kernel(LayerNormBackwardRows<T, T> call, Share share) {
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = *reinterpret_cast<Shared<L, kAccumulate, T>*>(memory);
    if (threadIdx.x == 0) {
#pragma unroll  // by an instruction each: synccheck counts those
        for (uint64_t& summed : shared.summed) { mbarrier_init(&summed, L::warps); }
    }
    Rows<L, kAccumulate, T> rows{call, shared, share};
    rows.clear_rest();
    rows.keep_weight();
    __syncthreads();
    rows.walk();
    rows.write_sums((float*)call.scratch);
}

// before the rows that blocks share
template <typename Any>
__global__ void clear_pairs_kernel(Any* pairs, int64_t n) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { pairs[i] = kNoPair; }
}

// Scratch has 2 sets of kColumnGroups doubles a column: the sums of each group come first, what blocks tell each other
// after them. That may not do for all rows at once.
template <typename L, bool kAccumulate, typename T>
ColumnGroups launch(const LayerNormBackwardRows<T, T>& call, const Choice& choice, cudaStream_t stream) {
    constexpr auto* kernel = layernorm_backward_pipelined_kernel<L, kAccumulate, T>;
    constexpr int bytes = sizeof(Shared<L, kAccumulate, T>), block = 256;
    allow_shared_bytes<kernel>(bytes);
    int groups = (int)std::min<int64_t>(choice.groups, call.N);
    LaunchConfig config{groups * choice.blocks, L::threads, bytes, stream};
    config.cooperative = L::shares;  // or a block might wait for one that cannot come
    int64_t sums = (int64_t)2 * groups * call.C * sizeof(float), rows = call.N;
    Share share{choice.blocks, 1.0f / call.C};
    if (L::shares) {
        int64_t room = (int64_t)2 * kColumnGroups * call.C * sizeof(double) - sums;
        int64_t at_most = room / (int64_t)(share.blocks * sizeof(Pair));
        share.pairs = reinterpret_cast<Pair*>(static_cast<char*>(call.scratch) + sums);
        rows = ceil_div(rows,
                        ceil_div(rows, at_most));  // about as many each time: each group has one in the last
    }
    for (int64_t row = 0; row < call.N; row += rows) {
        LayerNormBackwardRows<T, T> part = call;
        part.inp += row * call.inp_stride;
        part.dout += row * call.dout_stride;
        part.dinp += row * call.dinp_stride;
        part.mean += row;
        part.rstd += row;
        part.N = std::min(rows, call.N - row);
        share.add = row > 0;
        if (int64_t pairs = part.N * share.blocks; L::shares) {
            clear_pairs_kernel<<<grid_x(ceil_div(pairs, block)), block, 0, stream>>>(share.pairs, pairs);
            check_launch();
        }
        config.launch(kernel, part, share);
    }
    return {groups};
}

template <bool kAccumulate, typename T>
ColumnGroups launch(const LayerNormBackwardRows<T, T>& call, const Choice& choice, cudaStream_t stream) {
    static constexpr auto table =
        for_bytes(sizeof(T), layouts::kCpAsyncPipelined16, layouts::kCpAsyncPipelined32);
    return with_constant<0, table.size()>(choice.layout, [&]<int i>() {
        constexpr layouts::CpAsyncPipelined row = table[i];
        using L = Layout<row.vectors, row.lead, row.stages, row.keeps_weight>;
        if constexpr (row.is_for(kAccumulate)) {
            static_assert(sizeof(Shared<L, kAccumulate, T>) == pipelined_bytes(row, sizeof(T), kAccumulate));
            return launch<L, kAccumulate>(call, choice, stream);
        }
        return ColumnGroups{};
    });
}

}  // namespace llmc::cp_async_pipelined

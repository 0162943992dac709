// Which layout of ahead.cuh takes a call, by C, the types and how much shared memory there is, and its launches.
#pragma once
#include <algorithm>

#include "llmc/cuda/check.cuh"
#include "llmc/cuda/column_sums.cuh"
#include "llmc/cuda/device_facts.cuh"
#include "llmc/layernorm/backward/cp_async_pipelined.cuh"

namespace llmc::layernorm_ahead {

// How rows of C columns are laid out.
template <typename L, bool kAccumulate, typename T, typename W>
struct Plan {
    using Memory = Shared<L, kAccumulate, T, W>;
    int blocks = 0, groups = 0;  // of a row; of blocks, that run at once. None: it does not fit.

    explicit Plan(int C) {
        if (sizeof(Memory) > (size_t)device_facts().shared_bytes) { return; }
        blocks = ceil_div(C, Memory::columns);
        if (blocks > (L::shares ? kWarp : 1)) { return; }
        int least = C;  // columns of a block
        for (int part = 0; part < blocks; part++) {
            int begin = first_column<sizeof(T)>(C, part, blocks);
            least = std::min(least, first_column<sizeof(T)>(C, part + 1, blocks) - begin);
        }
        if (least < Memory::step * (L::k - 1)) { return; }
        groups = std::min(device_facts().multiprocessors, kMostGroups) / blocks;
    }
};

template <typename L, bool kAccumulate, typename T, typename W>
void launch_rows(const LayerNormBackwardRows<T, W>& call, const Share& share, int groups,
                 cudaStream_t stream) {
    auto* kernel = layernorm_backward_ahead_kernel<L, kAccumulate, T, W>;
    constexpr size_t bytes = sizeof(Shared<L, kAccumulate, T, W>);
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
    cudaLaunchAttribute together{};  // or a block might wait for one that cannot come
    together.id = cudaLaunchAttributeCooperative;
    together.val.cooperative = 1;
    cudaLaunchConfig_t config{};
    config.gridDim.x = groups * share.blocks;
    config.blockDim.x = L::threads;
    config.dynamicSmemBytes = bytes;
    config.stream = stream;
    config.attrs = &together;
    config.numAttrs = L::shares ? 1 : 0;
    if (L::shares) {
        constexpr int block = 256;
        int64_t pairs = call.N * share.blocks;
        forget_pairs_kernel<<<grid_x(ceil_div(pairs, (int64_t)block)), block, 0, stream>>>(share.pairs,
                                                                                           pairs);
        check_launch();
    }
    check(cudaLaunchKernelEx(&config, kernel, call, share));
}

// Returns the number of groups whose sums the kernel leaves; 0: the layout does not fit. Scratch has 2 sets of
// kColumnGroups doubles a column: the sums of each group come first, what blocks tell each other after them. That may
// not do for all rows at once.
template <typename L, bool kAccumulate, typename T, typename W>
int launch(const LayerNormBackwardRows<T, W>& call, cudaStream_t stream) {
    Plan<L, kAccumulate, T, W> plan(call.C);
    if (plan.groups == 0) { return 0; }
    int groups = (int)std::min<int64_t>(plan.groups, call.N);
    int64_t sums = (int64_t)2 * groups * call.C * sizeof(float), rows = call.N;
    Share share{plan.blocks, 1.0f / call.C};
    if (L::shares) {
        int64_t room = (int64_t)2 * kColumnGroups * call.C * sizeof(double) - sums;
        int64_t at_most = room / (int64_t)(share.blocks * sizeof(Pair));
        share.pairs = reinterpret_cast<Pair*>(static_cast<char*>(call.scratch) + sums);
        rows = ceil_div(rows,
                        ceil_div(rows, at_most));  // about as many each time: each group has one in the last
    }
    for (int64_t row = 0; row < call.N; row += rows) {
        LayerNormBackwardRows<T, W> part = call;
        part.inp += row * call.inp_stride;
        part.dout += row * call.dout_stride;
        part.dinp += row * call.dinp_stride;
        part.mean += row;
        part.rstd += row;
        part.N = std::min(rows, call.N - row);
        share.add = row > 0;
        launch_rows<L, kAccumulate>(part, share, groups, stream);
    }
    return groups;
}

// By the first that takes the call; 0: none does.
template <bool kAccumulate, typename L, typename... More, typename T, typename W>
int launch_first(const LayerNormBackwardRows<T, W>& call, cudaStream_t stream) {
    int groups = launch<L, kAccumulate>(call, stream);
    if constexpr (sizeof...(More) > 0) {
        if (groups == 0) { return launch_first<kAccumulate, More...>(call, stream); }
    }
    return groups;
}

// Fewer blocks with more of a row each are best, until registers or shared memory run out: of that a multiprocessor of
// an H100 has 227 KB, of an A100 163. Rows in 16 bits that are shared have 3 vectors a lane, or 4 where that makes two
// blocks of three. += is better off with more rows ahead, of fewer columns, where rows begin on lines: 90 % of 4R1W's for
// 81 at 65536 bf16, but 77 for 81 at 90000.
template <bool kAccumulate, typename T>
int launch_ahead(const LayerNormBackwardRows<T, T>& call, cudaStream_t stream) {
    using W = T;
    constexpr bool kHalf = sizeof(T) == 2;
    using Three = Layout<3, 1, 2>;
    using Four = Layout<4, 1, 2>;
    using Sharing = Layout<2, 3, 4>;
    using SharingLines = std::conditional_t<kHalf, Layout<2, 4, 6>, Sharing>;
    using SharingThree = std::conditional_t<kAccumulate, Layout<3, 2, 3>, Layout<3, 3, 4>>;
    using SharingFour = Layout<4, 2, 3, !kAccumulate>;
    int groups = 0;
    if constexpr (kHalf) { groups = launch_first<kAccumulate, Three>(call, stream); }
    if (groups == 0) { groups = launch_first<kAccumulate, Four>(call, stream); }
    if constexpr (kAccumulate) {
        bool lines = call.C % (128 / (int)sizeof(T)) == 0;
        if (groups == 0 && lines) { groups = launch_first<true, SharingLines, Sharing>(call, stream); }
    }
    if constexpr (kHalf && !kAccumulate) {
        constexpr int three = Shared<SharingThree, kAccumulate, T, W>::columns,
                      four = Shared<SharingFour, kAccumulate, T, W>::columns;
        if (2 * three < call.C && call.C <= 2 * four) {
            groups = launch_first<false, SharingFour>(call, stream);
        }
    }
    if (groups > 0) { return groups; }
    if constexpr (kHalf) {
        return launch_first<kAccumulate, SharingThree, Sharing>(call, stream);
    } else {
        return launch_first<kAccumulate, SharingThree, Sharing, SharingFour>(call, stream);
    }
}

}  // namespace llmc::layernorm_ahead

// A rank that gives up, while others still write into its memory by the GPU's copy engines: what it has queued ends.
// Its ranks are this program, started again, as a process that has used CUDA cannot be copied.
#include <cuda_runtime_api.h>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "dev/test/gpu/device_array.h"
#include "dev/test/support/many_ranks.h"
#include "dev/test/support/train_program.h"
#include "llmc/host/ranks/comm.h"
#include "llmc/ops/comm/device_comm.h"

using namespace llmc;
using namespace llmc::gpu_test;

namespace {

constexpr const char* kPort = "PLUMB_TEST_PORT";
constexpr size_t kPart = 64 << 20;  // bytes; takes long enough for the other rank to write meanwhile
constexpr int kEarly = 60, kLate = 30;

}  // namespace

// Rank 1 has queued more exchanges than rank 0 ever will, and gives up while rank 0 queues one after the other.
TEST_CASE("one of the peers of a test" * doctest::skip()) {
    const char* port = std::getenv(kPort);
    REQUIRE(port != nullptr);
    Ranks ranks;
    ranks.rank = ranks.local_rank = std::getenv("PLUMB_TEST_RANK")[0] - '0',
    ranks.size = ranks.local_size = 2;
    ranks.host = "127.0.0.1", ranks.port = std::stoi(port), ranks.token = "test";
    const auto joined = join_ranks(ranks, 20, "test_gpt2cu");
    Comm& comm = *joined;
    void* block = nullptr;
    cudaStream_t stream = nullptr;
    check_cuda(cudaMalloc(&block, 2 * kPart));
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    const std::span<std::byte> memory((std::byte*)block, 2 * kPart);
    auto peer = make_peer_comm(comm, memory);
    REQUIRE(peer != nullptr);
    const size_t other = (size_t)(1 - comm.rank());
    std::vector<std::span<const std::byte>> out(2);
    std::vector<std::span<std::byte>> in(2);
    out[other] = memory.first(kPart), in[other] = memory.last(kPart);
    for (int k = 0; k < (comm.root() ? kLate : kEarly); k++) {
        peer->exchange({"a part", 0}, out, in, stream);
        if (comm.root()) { std::this_thread::sleep_for(std::chrono::microseconds(500)); }
    }
    if (!comm.root()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        peer->abort(stream);
    }
    check_cuda(cudaStreamSynchronize(stream));
    comm.root_says("the end", true);
    peer.reset();
    cudaStreamDestroy(stream);
    cudaFree(block);
}

TEST_CASE("many GPUs: a rank that gives up is not held by what others write after it") {
    for (int repeat = 0; repeat < 5; repeat++) {
        CAPTURE(repeat);
        TempFolder folders[2];
        pid_t pids[2];
        setenv(kPort, std::to_string(21000 + (getpid() + repeat) % 8000).c_str(), 1);
        for (int rank = 0; rank < 2; rank++) {
            setenv("PLUMB_TEST_RANK", std::to_string(rank).c_str(), 1);
            pids[rank] =
                start_train(folders[rank].path(), {"--test-case=one of the peers of a test", "--no-skip"},
                            "/proc/self/exe");
        }
        for (int rank = 0; rank < 2; rank++) {
            const ProgramRun r = finish_train(folders[rank].path(), pids[rank]);
            CHECK_MESSAGE(r.exit_code == 0, "rank ", rank, ": ", r.out, r.err);
        }
    }
    unsetenv(kPort);
    unsetenv("PLUMB_TEST_RANK");
}

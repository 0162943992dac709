// One run on many GPUs: the same bits whatever their number. On one GPU the ranks share it, and exchange
// through the host's memory or by its copy engines; where there are two, by NCCL as well. Last, a rank that gives up while others
// still write into its memory by those engines: what it has queued ends.
#include <cstdlib>
#include <type_traits>

#if __has_include(<nccl.h>)
    #include <nccl.h>
#endif

#include "dev/test/gpu/device_array.h"
#include "dev/test/support/many_ranks.h"
#include "dev/test/support/rank_faults.h"
#include "dev/test/support/train_program.h"
#include "llmc/host/ranks/comm.h"
#include "llmc/ops/comm/device_comm.h"
#include "llmc/ops/comm/nccl_library.h"

using namespace llmc;
using namespace llmc::gpu_test;

namespace {

// what nccl_library.h says of NCCL, against its own header where there is one
#if __has_include(<nccl.h>)
static_assert(sizeof(Nccl::Id) == sizeof(ncclUniqueId) && alignof(Nccl::Id) == alignof(ncclUniqueId));
static_assert(sizeof(Nccl::Result) == sizeof(ncclResult_t) && sizeof(int) == sizeof(ncclDataType_t));
static_assert(Nccl::kSuccess == ncclSuccess && Nccl::kInProgress == ncclInProgress);
static_assert(Nccl::kBytes == ncclInt8);
static_assert(std::is_same_v<decltype(ncclSend), ncclResult_t(const void*, size_t, ncclDataType_t, int,
                                                              ncclComm_t, cudaStream_t)>);
static_assert(std::is_same_v<decltype(ncclRecv),
                             ncclResult_t(void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t)>);
static_assert(std::is_same_v<decltype(ncclCommInitRank), ncclResult_t(ncclComm_t*, int, ncclUniqueId, int)>);
static_assert(std::is_same_v<decltype(ncclCommGetAsyncError), ncclResult_t(ncclComm_t, ncclResult_t*)>);
#endif

// while it lives, programs are started with PLUMB_TRANSPORT
struct Transport {
    explicit Transport(const std::string& name) {
        if (!name.empty()) { setenv("PLUMB_TRANSPORT", name.c_str(), 1); }
    }
    ~Transport() { unsetenv("PLUMB_TRANSPORT"); }
    Transport(const Transport&) = delete;
};

struct Place : RunsOfRanks {
    std::string program = program_path("train_gpt2cu");
    Place() {
        REQUIRE_MESSAGE(access(program.c_str(), X_OK) == 0, program, " is missing: run `make train_gpt2cu`");
    }
    // transport: how the ranks' GPUs exchange; "": the program chooses
    void run(const std::string& name, const std::string& more, const std::string& transport = "") const {
        const Transport in_use(transport);
        const ProgramRun r =
            finish_train(folder.path(), start_train(folder.path(), options(name, more), program));
        REQUIRE_MESSAGE(r.exit_code == kExitDone, name, ": ", r.out, r.err);
    }
};

int gpus() {
    int count = 0;
    REQUIRE(cudaGetDeviceCount(&count) == cudaSuccess);
    return count;
}

}  // namespace

// Two ranks alone, without any of these options, are those that a run is moved to. With Muon some of 4 ranks have none of a
// layer's matrices.
TEST_CASE("many GPUs: AdamW and Muon, the same bits in 1, 2 and 4 ranks, and in a run that changes them") {
    for (const char* optimizer : {"", "--optimizer muon "}) {
        for (const char* type :
             {"--dtype fp32 ", "--dtype bf16 --dropout 0.2 ", "--dtype bf16 --grad-dtype bf16 ",
              "--dtype bf16 --fp8 --batch 4 --dropout 0.2 "}) {
            INFO("optimizer ", optimizer, ", type ", type);
            Place p;
            const std::string run =
                std::string(type) + optimizer +
                "--weight-decay 0.1 --schedule constant --total-batch 192 --val-every 2 --sample-every 2 " +
                "--save-every 2 --steps ";
            const std::string six = run + "6 --reduce-groups 4 ";
            p.run("one", six);
            p.run("four", six + "--ranks 4 --check-ranks 1");
            p.run("whole", six + "--ranks 2 --zero 0");
            p.run("launched", six + "--ranks 2 --graph 0");
            p.run("peer_two", six + "--ranks 2", "peer");
            p.run("peer_four", six + "--ranks 4 --check-ranks 1", "peer");
            p.run("peer_whole", six + "--ranks 2 --zero 0", "peer");
            p.run("moved", run + "2 --ranks 4");
            p.run("moved", run + "4 --resume auto");
            p.run("moved", run + "6 --ranks 2 --resume auto");
            for (const char* other :
                 {"four", "whole", "launched", "peer_two", "peer_four", "peer_whole", "moved"}) {
                p.check_same("one", other, "step_00000006");
            }
            if (gpus() < 2) { continue; }
            for (const char* transport : {"", "nccl"}) {
                CAPTURE(transport);
                p.run(std::string("gpus") + transport, six + "--gpus 2", transport);
                p.run(std::string("gpus_whole") + transport, six + "--gpus 2 --zero 0", transport);
                for (const char* other : {"gpus", "gpus_whole"}) {
                    p.check_same("one", std::string(other) + transport, "step_00000006");
                }
            }
        }
    }
}

TEST_CASE("many GPUs: a rank that is killed or stopped ends the run with exit code 6") {
    for (int signal : {SIGKILL, SIGSTOP}) {
        for (auto [how, transport] : {std::pair("--ranks 2", "host"), std::pair("--ranks 2", "peer"),
                                      std::pair("--gpus 2", "peer"), std::pair("--gpus 2", "nccl")}) {
            if (how == std::string("--gpus 2") && gpus() < 2) { continue; }
            INFO("signal ", signal, ", how ", how, ", transport ", transport);
            const Transport in_use(transport);
            Place p;
            const std::string more =
                "--steps 1000000 --total-batch 96 --reduce-groups 2 --val-every 0 "
                "--sample-every 0 --save-every 2 --comm-timeout 10 ";
            const pid_t launcher = start_train(p.folder.path(), p.options("run", more + how), p.program);
            wait_until(
                [&] { return fs::exists(p.out("run") + "/step_00000002/MANIFEST") || has_ended(launcher); });
            const std::vector<pid_t> ranks = ranks_of(launcher);
            REQUIRE(ranks.size() == 2);
            kill(ranks[1], signal);
            const ProgramRun r = finish_train(p.folder.path(), launcher);
            CHECK(r.exit_code == kExitPeerLost);
            CHECK_MESSAGE(r.err.find("rank 1") != std::string::npos, r.err);
        }
    }
}

TEST_CASE("many GPUs: ranks that are killed or stopped at random moments, and what they had saved goes on") {
    const Transport in_use("peer");
    RankFaults faults(Place().program, 2);
    faults.several(10);
    faults.check_against_straight_run();
}

TEST_CASE("many GPUs: a rank that fails itself ends the run in time, with its own words") {
    for (const char* transport : {"peer", "host"}) {
        CAPTURE(transport);
        const Transport in_use(transport);
        check_rank_that_fails(Place().program);
    }
}

// ---- ranks that are this program, started again, as a process that has used CUDA cannot be copied

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

// A GPU on the CPU, to find out whether kernels are right, not how fast they are: each thread of a kernel is a fiber,
// and whatever the hardware may do in any order happens in an unfavourable one. Warps run ahead or stay behind, as far
// as barriers let them; what is copied in the background lands at once, when it must at last, or at any time between;
// blocks come in any order. So a kernel that refills memory before all have read it, or reads what has not come,
// gives wrong results here, mostly at once, where a GPU's would be right most of the time.
// What is checked besides: barriers (initialised, no arrival too many, no wait for ever), TMA's alignment
// and addresses, that a warp's lanes shuffle together. What is not seen: accesses that warps make without a barrier
// between, if either order gives the same; what needs a fence to be seen at all (memory here is what was stored last).
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <initializer_list>
#include <memory>
#include <random>
#include <string>
#include <typeinfo>
#include <vector>

#include <cuda_runtime_api.h>
#include <ucontext.h>

// set whenever another thread runs
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

namespace emulation {

constexpr int kWarp = 32;
constexpr int kMostClusterBlocks = 16;
constexpr int kMostThreads = 1024;
constexpr size_t kMostShared = 227 * 1024;  // of a block, for extern __shared__
constexpr size_t kMostStatic = 769 * 1024;  // of all kernels of the program; whole pages with the former
constexpr size_t kMemory = kMostStatic + kMostShared;  // of a block
constexpr uint32_t kWindow = 1 << 20;  // shared memory of the cluster's blocks: addresses apart by so much
constexpr unsigned char kUnwritten = 0xff;  // a NaN in every format

struct Block;

// ---- barriers ------------------------------------------------------------------------------------

// A clock for who watches every access (dev/exercises/watch.cpp) and lets it go on; barriers and launches note its time.
inline uint64_t now = 0;

// of a block's threads, or of a cluster's
struct Barrier {
    int arrived = 0;
    unsigned turn = 0;
    bool any = false, was_any = false;  // for __syncthreads_or
};

// What PTX keeps in the 8 bytes of an mbarrier. A phase ends with no arrivals pending and no bytes to come.
struct Mbarrier {
    static constexpr unsigned kInitialised = 0x5b;
    uint64_t initialised : 7, phase : 1, expected : 12, pending : 12;
    int64_t bytes : 32;

    static Mbarrier& at(void* shared);  // one that is initialised
    void init(int arrivals);
    bool arrive();  // this and come(): has the phase ended?
    void expect(int64_t more);
    bool come(int64_t count);

private:
    bool end_phase();
};
static_assert(sizeof(Mbarrier) == 8);

// ---- who runs ------------------------------------------------------------------------------------

struct Warp {
    Block* block = nullptr;
    int lanes = 0;
    double lazy = 0;  // how often it is passed over
    // what lanes give each other, by parity of the turn
    uint64_t given[2][kWarp];
    int arrived[2] = {};
    const char* what[2] = {};
    unsigned turns = 0;  // that are complete
    uint64_t met = 0;    // when its lanes last did at __syncwarp: after it they see what each has written
};

// what goes on in the background
struct Copy {
    enum Kind { kBulk, kAsync, kArrive, kStore } kind;
    void* to;
    const void* from;  // null: `value`
    std::array<std::byte, 16> value;
    uint32_t bytes;
    Mbarrier* barrier;
    int group = 0;         // of its queue
    const Block* block{};  // whose shared memory it reads or writes
};
// copies of a thread, which come in the order in which it began them
struct CopyQueue {
    std::deque<Copy> copies;
    int closed = 0;    // groups
    size_t place = 0;  // among the machine's queues
};

// where a fiber goes on, for GCC's __builtin_setjmp, which takes a fraction of setjmp's time
using Place = void* [5];

// a thread
struct Lane {
    Warp* warp = nullptr;
    uint3 index{};
    int in_warp = 0;
    bool finished = true;
    unsigned turns = 0;         // of the warp, that it has begun
    unsigned cluster_turn = 0;  // of the cluster's barrier, at its last arrival
    CopyQueue async, stores;    // cp.async and what arrives behind it; bulk stores
    const char* waits_for = "";
    bool (*ready)(const void* condition) = nullptr;  // null: it goes on
    const void* condition = nullptr;
    Place place;
    ucontext_t begin;
    std::unique_ptr<std::byte[]> stack;
    bool begun = false;
};

struct Block {
    std::byte* memory = nullptr;  // shared: that of kernels' __shared__ variables, then extern __shared__
    std::byte* dynamic = nullptr;
    unsigned rank = 0;  // in the cluster
    uint3 index{};
    Barrier named[16];
    int threads = 0, finished = 0;
    Barrier* cluster = nullptr;
    int cluster_threads = 0;
    std::vector<Block*> peers;    // the cluster's blocks by rank
    uint64_t number = 0;          // among all blocks of all launches
    uint64_t began = 0, met = 0;  // when it did, when its threads last met at __syncthreads
};

struct Launch {
    dim3 grid, block;
    size_t shared = 0;
    cudaStream_t stream = nullptr;
    unsigned cluster = 1;
    bool cooperative = false;      // all blocks at once
    const void* kernel = nullptr;  // by cudaLaunchKernelEx
    const char* from = "";         // by <<<>>>: a type whose name names the function that launches
};

// Tests that ask which kernels are chosen, not what they do, set this: it gets launches instead of the machine.
inline std::function<void(const Launch&)> instead_of_launch;

// told of what no access shows; who watches sets it
struct Watcher {
    void (*atomic)(const void* address) = nullptr;     // one is about to happen
    void (*failed)(const std::string& why) = nullptr;  // a launch, instead of stderr
};
inline Watcher watcher;

// ---- the machine ---------------------------------------------------------------------------------

class Machine {
public:
    Machine();
    void run(const Launch& launch, const std::function<void()>& kernel);  // throws std::runtime_error

    // of a thread that runs
    Lane& lane() { return *lane_; }
    Block& block() { return *lane_->warp->block; }
    bool in_thread() const { return in_thread_; }    // or in the host's code, or the scheduler
    uint64_t launched() const { return launched_; }  // when the launch began
    void yield();
    // The scheduler asks, not the thread: most of those who wait do so for long. So lane() is not the one that waits.
    template <typename Condition>
    void wait_until(const char* what, Condition condition) {
        if (!condition()) {
            lane_->waits_for = what;
            lane_->ready = [](const void* c) { return (*static_cast<const Condition*>(c))(); };
            lane_->condition = &condition;
            yield();
        }
        progress_++;
    }
    void spin();  // until others have gone on: of one who asks again and again
    [[noreturn]] void fail(const std::string& what);  // ends the launch
    // What each lane gives, once all have given it; turns of other kinds must not come between.
    const uint64_t* exchange(const char* what, uint64_t mine);
    void synchronise(Barrier& barrier, const char* what, int threads, bool wait = true, bool any = false);

    void begin(Copy copy, CopyQueue* queue = nullptr);  // null: it comes in no order
    void finish(CopyQueue& queue, int groups);          // all but its latest groups
    void check_shared(const void* p, uint32_t bytes, const char* what);

private:
    std::mt19937_64 random_;
    double comes_at_once_ = 0, comes_early_ = 0;
    bool backwards_ = false;  // order of a warp's lanes
    Lane* lane_ = nullptr;
    bool in_thread_ = false;  // or in the scheduler
    Place scheduler_;
    const std::function<void()>* kernel_ = nullptr;
    std::vector<std::unique_ptr<Lane>> lanes_;
    std::deque<Warp> warps_;
    std::deque<Block> blocks_;
    std::deque<Barrier> clusters_;
    std::vector<std::byte*> memories_;
    std::vector<Copy> copies_;        // of no queue
    std::vector<CopyQueue*> queues_;  // that are not empty
    uint64_t progress_ = 0;
    uint64_t spins_ = 0;
    uint64_t launched_ = 0, number_ = 0;
    int unfinished_ = 0;
    std::string failure_;

    double chance() { return std::uniform_real_distribution<>()(random_); }
    void choose_temper();
    void place_blocks(const Launch& launch, const std::vector<uint3>& indices);
    void place_threads(const Launch& launch, Block& block);
    void run_gang();
    void run_warp(const Warp& warp, size_t first, bool all);
    void resume(Lane& lane);
    bool none_comes() const { return copies_.empty() && queues_.empty(); }
    bool land(const Copy& copy);
    bool deliver(CopyQueue& queue);
    bool deliver_any();
    void deliver_some();
    std::string who_waits() const;
    static void body();
};

extern Machine the_machine;
inline Machine& machine() { return the_machine; }

// offset in the shared memory of every block
size_t reserve_static(size_t bytes, size_t alignment);
// memory of the device that holds these bytes? If not, what is wrong goes into a failure of the thread that runs
void check_global(const void* p, uint32_t bytes, const char* what);

// ---- what rewrite.pl writes ----------------------------------------------------------------------

template <typename T>
T* dynamic_shared() {
    return reinterpret_cast<T*>(machine().block().dynamic);
}
template <typename Variable, typename T, size_t aligned>
T& static_shared() {
    static const size_t offset = reserve_static(sizeof(T), std::max(aligned, alignof(T)));
    return *reinterpret_cast<T*>(machine().block().memory + offset);
}
void run_or_keep_error(const Launch& launch, const std::function<void()>& kernel);
template <typename Kernel, typename... Arguments>
void launch(Launch launch, Kernel kernel, Arguments... arguments) {
    launch.from = typeid(Kernel).name();
    run_or_keep_error(launch, [=] { kernel(arguments...); });
}

// an operand of an asm: its value, or where the result goes
struct Operand {
    uint64_t bits;
    void* out;
    int bytes;
};
template <typename X>
Operand in(const X& x) {
    Operand operand{};
    __builtin_memcpy(&operand.bits, &x, sizeof(X));
    return operand;
}
template <typename X>
Operand out(X& x) {
    return {0, &x, (int)sizeof(X)};
}

// A line of PTX, by its first words.
class Instruction {
public:
    using Act = void (*)(const Operand*);
    explicit Instruction(const char* text);
    void operator()(std::initializer_list<Operand> operands) const { act_(operands.begin()); }

private:
    Act act_;
};

// addresses of shared memory in 32 bits, as PTX has them: of any block of the cluster
uint32_t shared_window(const void* p);
void* shared_memory(uint32_t address);

}  // namespace emulation

// The scheduler: which warp goes on, when copies come, who waits for ever. See machine.h.
#include "dev/emulate/machine.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <numeric>
#include <stdexcept>

#include <sys/mman.h>

#include "llmc/host/base/error.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace emulation {

namespace {

constexpr int kMostSpins = 100'000;
constexpr size_t kStack = 128 * 1024;
constexpr size_t kPage = 4096;
static_assert(kMemory % kPage == 0 && kMemory <= kWindow);

size_t used_static = 0;

// A block's shared memory, which ends where nothing may be read or written.
std::byte* new_memory() {
    void* p = mmap(nullptr, kMemory + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) { throw std::bad_alloc(); }
    auto* begin = static_cast<std::byte*>(p);
    mprotect(begin + kMemory, kPage, PROT_NONE);
    return begin;
}

// noipa, here and below: what calls these must not keep registers that they seem to leave alone
[[noreturn, gnu::noipa]] void go_on_at(Place& place) { __builtin_longjmp(place, 1); }

}  // namespace

Machine the_machine;

size_t reserve_static(size_t bytes, size_t alignment) {
    size_t offset = (used_static + alignment - 1) / alignment * alignment;
    used_static = offset + bytes;
    if (used_static > kMostStatic) { machine().fail("too many __shared__ variables in all kernels"); }
    return offset;
}

uint32_t shared_window(const void* p) {
    Block& block = machine().block();
    machine().check_shared(p, 0, "an address");
    return block.rank * kWindow + (uint32_t)(static_cast<const std::byte*>(p) - block.memory);
}
void* shared_memory(uint32_t address) {
    Block& block = machine().block();
    uint32_t rank = address / kWindow, offset = address % kWindow;
    if (rank >= block.peers.size() || offset > kMemory) {
        machine().fail(fmt::format("shared memory of rank {}, byte {}: not in the cluster", rank, offset));
    }
    return block.peers[rank]->memory + offset;
}

// ---- barriers ------------------------------------------------------------------------------------

Mbarrier& Mbarrier::at(void* shared) {
    auto* barrier = static_cast<Mbarrier*>(shared);
    if (barrier->initialised != kInitialised) { machine().fail("an mbarrier that is not initialised"); }
    return *barrier;
}
void Mbarrier::init(int arrivals) {
    initialised = kInitialised;
    phase = 0;
    expected = pending = arrivals;
    bytes = 0;
}
bool Mbarrier::end_phase() {
    if (pending > 0 || bytes != 0) { return false; }
    phase ^= 1;
    pending = expected;
    return true;
}
bool Mbarrier::arrive() {
    if (pending == 0) { machine().fail("more arrivals at an mbarrier than it was initialised for"); }
    pending--;
    return end_phase();
}
void Mbarrier::expect(int64_t more) {
    if (more + bytes >= 1 << 20) { machine().fail("an mbarrier that is to expect 2^20 bytes or more"); }
    bytes += more;
}
bool Mbarrier::come(int64_t count) {
    bytes -= count;
    return end_phase();
}

const uint64_t* Machine::exchange(const char* what, uint64_t mine) {
    Warp& warp = *lane_->warp;
    unsigned turn = lane_->turns++;
    int parity = turn % 2;
    if (warp.arrived[parity] == 0) { warp.what[parity] = what; }
    if (warp.what[parity] != what && std::strcmp(warp.what[parity], what) != 0) {
        fail(fmt::format("lanes of a warp at {} and at {}", warp.what[parity], what));
    }
    warp.given[parity][lane_->in_warp] = mine;
    if (++warp.arrived[parity] == warp.lanes) {
        warp.arrived[parity] = 0;
        if (std::strcmp(what, "__syncwarp") == 0) { warp.met = ++now; }
        warp.turns = turn + 1;
    }
    wait_until(what, [&] { return warp.turns > turn; });
    return warp.given[parity];
}

void Machine::synchronise(Barrier& barrier, const char* what, int threads, bool wait, bool any) {
    unsigned turn = barrier.turn;
    barrier.any |= any;
    if (++barrier.arrived == threads) {
        barrier.arrived = 0;
        barrier.was_any = barrier.any;
        barrier.any = false;
        barrier.turn++;
        Block& block = *lane_->warp->block;
        if (&barrier == &block.named[0]) { block.met = ++now; }
    }
    if (wait) {
        wait_until(what, [&] { return barrier.turn != turn; });
    }
}

// ---- copies --------------------------------------------------------------------------------------

void Machine::check_shared(const void* p, uint32_t bytes, const char* what) {
    const auto* at = static_cast<const std::byte*>(p);
    for (const Block* block : this->block().peers) {
        bool fixed = at >= block->memory && at + bytes <= block->memory + used_static;
        if (fixed || (at >= block->dynamic && at + bytes <= block->memory + kMemory)) { return; }
    }
    fail(fmt::format("{} of {} bytes, not in the block's shared memory", what, bytes));
}

void Machine::begin(Copy copy, CopyQueue* queue) {
    const auto* shared = static_cast<const std::byte*>(copy.kind == Copy::kStore ? copy.from : copy.to);
    for (const Block* block : this->block().peers) {
        if (shared >= block->memory && shared < block->memory + kMemory) { copy.block = block; }
    }
    if (queue == nullptr) {
        copies_.push_back(copy);
    } else {
        if (queue->copies.empty()) {
            queue->place = queues_.size();
            queues_.push_back(queue);
        }
        copy.group = queue->closed;
        queue->copies.push_back(copy);
    }
    if (chance() >= comes_at_once_) { return; }
    if (queue != nullptr) {
        deliver(*queue);
    } else {
        copies_.pop_back();
        land(copy);
    }
}

// Does somebody wait no longer? A block's shared memory is gone when the block has ended.
bool Machine::land(const Copy& copy) {
    if (copy.block != nullptr && copy.block->finished == copy.block->threads && failure_.empty()) {
        failure_ =
            fmt::format("a copy into the shared memory of block {}, which has ended", copy.block->index.x);
    }
    if (copy.bytes > 0) {
        std::memcpy(copy.to, copy.from == nullptr ? copy.value.data() : copy.from, copy.bytes);
    }
    const bool ended = copy.kind == Copy::kArrive ? copy.barrier->arrive()
                       : copy.barrier != nullptr  ? copy.barrier->come(copy.bytes)
                                                  : false;
    progress_ += ended;
    return ended;
}

bool Machine::deliver(CopyQueue& queue) {
    const Copy copy = queue.copies.front();
    queue.copies.pop_front();
    if (queue.copies.empty()) {
        queues_.back()->place = queue.place;
        queues_[queue.place] = queues_.back();
        queues_.pop_back();
    }
    return land(copy);
}

bool Machine::deliver_any() {
    const size_t i = random_() % (copies_.size() + queues_.size());
    if (i >= copies_.size()) { return deliver(*queues_[i - copies_.size()]); }
    std::swap(copies_[i], copies_.back());
    const Copy copy = copies_.back();
    copies_.pop_back();
    return land(copy);
}

void Machine::deliver_some() {
    while (!none_comes() && chance() < comes_early_) { deliver_any(); }
}

void Machine::finish(CopyQueue& queue, int groups) {
    while (!queue.copies.empty() && queue.copies.front().group < queue.closed - groups) { deliver(queue); }
}

// ---- threads -------------------------------------------------------------------------------------

Machine::Machine() {
    const char* seed = std::getenv("PLUMB_EMULATION_SEED");
    random_.seed(seed != nullptr ? std::strtoull(seed, nullptr, 10) : 1);
}

// A fiber runs one thread after the other.
void Machine::body() {
    Machine& m = machine();
    for (;;) {
        (*m.kernel_)();
        Lane& lane = *m.lane_;
        lane.finished = true;
        lane.warp->block->finished++;
        m.unfinished_--;
        m.progress_++;
        m.yield();
    }
}

[[gnu::noipa]] void Machine::yield() {
    Lane& lane = *lane_;
    if (__builtin_setjmp(lane.place) == 0) { go_on_at(scheduler_); }
}

void Machine::spin() {
    spins_++;
    lane_->waits_for = "another block";
    yield();
}

[[gnu::noipa]] void Machine::resume(Lane& lane) {
    lane_ = &lane;
    threadIdx = lane.index;
    blockIdx = lane.warp->block->index;
    in_thread_ = true;
    if (__builtin_setjmp(scheduler_) != 0) {
        in_thread_ = false;
        return;
    }
    if (lane.begun) { go_on_at(lane.place); }
    lane.begun = true;
    if (!lane.stack) { lane.stack = std::make_unique_for_overwrite<std::byte[]>(kStack); }
    getcontext(&lane.begin);
    lane.begin.uc_stack = {lane.stack.get(), 0, kStack};
    lane.begin.uc_link = nullptr;
    makecontext(&lane.begin, &Machine::body, 0);
    setcontext(&lane.begin);
}

void Machine::fail(const std::string& what) {
    if (!in_thread_) {  // what a copy does that comes
        lanes_.clear();
        throw std::runtime_error(what);
    }
    if (failure_.empty()) {
        failure_ = fmt::format("thread {} of block {}: {}", threadIdx.x, blockIdx.x, what);
    }
    wait_until("nothing", [] { return false; });
    std::abort();
}

// ---- blocks --------------------------------------------------------------------------------------

void Machine::place_threads(const Launch& launch, Block& block) {
    int threads = launch.block.x * launch.block.y * launch.block.z;
    block.threads = threads;
    for (int t = 0; t < threads; t++) {
        if (t % kWarp == 0) {
            Warp& warp = warps_.emplace_back();
            warp.block = &block;
            warp.lanes = std::min(kWarp, threads - t);
            warp.lazy = random_() % 2 ? 0.97 * chance() : 0;
        }
        if ((size_t)unfinished_ == lanes_.size()) { lanes_.push_back(std::make_unique<Lane>()); }
        Lane& lane = *lanes_[unfinished_++];
        lane.warp = &warps_.back();
        lane.index = {t % launch.block.x, t / launch.block.x % launch.block.y,
                      t / launch.block.x / launch.block.y};
        lane.in_warp = t % kWarp;
        lane.finished = false;
        lane.turns = lane.cluster_turn = 0;
        for (CopyQueue* queue : {&lane.async, &lane.stores}) {
            queue->copies.clear();
            queue->closed = 0;
        }
        lane.waits_for = "";
        lane.ready = nullptr;
    }
}

// blocks that run at once: one, a cluster, or all
void Machine::place_blocks(const Launch& launch, const std::vector<uint3>& indices) {
    blocks_.clear();
    clusters_.clear();
    warps_.clear();
    copies_.clear();
    queues_.clear();
    unfinished_ = 0;
    for (size_t i = 0; i < indices.size(); i++) {
        if (i == memories_.size()) { memories_.push_back(new_memory()); }
        Block& block = blocks_.emplace_back();
        block.memory = memories_[i];
        block.dynamic = block.memory + kMemory - (launch.shared + 127) / 128 * 128;
        std::memset(block.memory, kUnwritten, used_static);
        std::memset(block.dynamic, kUnwritten, block.memory + kMemory - block.dynamic);
        block.index = indices[i];
        block.number = number_++;
        block.began = ++now;
        block.rank = i % launch.cluster;
        if (block.rank == 0) { clusters_.emplace_back(); }
        block.cluster = &clusters_.back();
        place_threads(launch, block);
    }
    for (size_t i = 0; i < blocks_.size(); i++) {
        size_t first = i / launch.cluster * launch.cluster;
        for (size_t peer = first; peer < first + launch.cluster; peer++) {
            blocks_[i].peers.push_back(&blocks_[peer]);
            blocks_[i].cluster_threads += blocks_[peer].threads;
        }
    }
}

void Machine::choose_temper() {
    comes_at_once_ = random_() % 3 ? 0 : chance() < 0.5 ? 1 : chance();
    comes_early_ = random_() % 2 ? 0 : chance();
    backwards_ = random_() % 2;
}

void Machine::run(const Launch& launch, const std::function<void()>& kernel) {
    size_t blocks = (size_t)launch.grid.x * launch.grid.y * launch.grid.z;
    size_t gang = launch.cooperative ? blocks : launch.cluster;
    kernel_ = &kernel;
    gridDim = launch.grid;
    blockDim = launch.block;
    failure_.clear();
    launched_ = ++now;
    choose_temper();
    std::vector<size_t> order(blocks / gang);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random_);
    for (size_t number : order) {
        std::vector<uint3> indices;
        for (size_t i = number * gang; i < (number + 1) * gang; i++) {
            indices.push_back({(unsigned)(i % launch.grid.x), (unsigned)(i / launch.grid.x % launch.grid.y),
                               (unsigned)(i / launch.grid.x / launch.grid.y)});
        }
        place_blocks(launch, indices);
        run_gang();
        if (!failure_.empty()) {
            lanes_.clear();  // fibers in the midst of a kernel
            throw std::runtime_error(failure_);
        }
    }
}

// As far as it goes without others; not at all, unless `all`, if its first thread waits: then the others mostly do, too.
// first: that thread
void Machine::run_warp(const Warp& warp, size_t first, bool all) {
    auto waits = [](const Lane& lane) {
        return lane.finished || (lane.ready != nullptr && !lane.ready(lane.condition));
    };
    if (!all && waits(*lanes_[first])) { return; }
    uint64_t before, spins = spins_;
    do {
        before = progress_;
        for (int i = 0; i < warp.lanes && failure_.empty(); i++) {
            Lane& lane = *lanes_[first + (backwards_ ? warp.lanes - 1 - i : i)];
            if (waits(lane)) { continue; }
            lane.ready = nullptr;
            resume(lane);
        }
    } while (progress_ != before && spins_ == spins && failure_.empty());
}

// Warps in turn, each as far as it gets, some of them rarely; when none gets any farther, or some only ask again and
// again, the next copy comes.
void Machine::run_gang() {
    std::vector<std::pair<const Warp*, size_t>> order;
    size_t first = 0;
    for (const Warp& warp : warps_) {
        order.emplace_back(&warp, first);
        first += warp.lanes;
    }
    int idle = 0, in_vain = 0;
    while (unfinished_ > 0 && failure_.empty()) {
        uint64_t before = progress_, spins = spins_;
        std::shuffle(order.begin(), order.end(), random_);
        for (auto [warp, at] : order) {
            if (idle > 0 || chance() >= warp->lazy) {
                run_warp(*warp, at, idle > 0);
                deliver_some();
            }
        }
        bool spun = spins_ != spins;
        if (progress_ != before && !spun) {
            idle = in_vain = 0;
        } else if ((idle > 0 || spun) && !none_comes()) {
            while (!none_comes() && !deliver_any()) {}
            idle = in_vain = 0;
        } else if (progress_ == before ? ++idle > 3 : ++in_vain > kMostSpins) {
            failure_ = "all threads wait: " + who_waits();
        }
    }
    while (!none_comes() && failure_.empty()) { deliver_any(); }
}

std::string Machine::who_waits() const {
    std::map<std::string, std::pair<int, const Lane*>> waiting;
    for (const auto& lane : lanes_) {
        if (lane->finished) { continue; }
        auto& [count, first] = waiting[lane->waits_for];
        if (count++ == 0) { first = lane.get(); }
    }
    std::string all;
    for (const auto& [what, who] : waiting) {
        all += fmt::format("{}{} for {} (thread {} of block {})", all.empty() ? "" : ", ", who.first, what,
                           who.second->index.x, who.second->warp->block->index.x);
    }
    return all;
}

}  // namespace emulation

// Every access of a kernel that g++ -fsanitize=thread has compiled: is it within a tensor or the block's shared memory, has
// somebody written what it reads, does a barrier stand between it and what another thread did there, and how many bytes
// does its warp ask for?
// Two accesses are ordered if one thread makes both; if the block's threads met at __syncthreads between them, or the
// warp's at __syncwarp; if an earlier launch made the first; or if atomic operations on one address by both blocks lie
// between. A shuffle orders nothing.
#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include <sys/mman.h>
#include <unistd.h>

#include "dev/emulate/machine.h"
#include "dev/exercises/grader.h"

namespace llmc::exercise {

namespace {

using emulation::machine;
using emulation::now;

constexpr size_t kRoom = (size_t)64 << 20;  // address space of a tensor, which lies in its middle
constexpr int kMostTensors = 16;
constexpr size_t kGranule = 2;  // bytes: the smallest elements' size
constexpr uint64_t kSector = 32;

struct Access {
    uint32_t time = 0, line = 0, block = 0, thread = 0;  // time 0: none; line: an address in the program
};
struct Cell {
    Access write, reads[2];
};

// of a block, at an atomic operation
struct Atomic {
    const void* address;
    Access by;
    uint64_t met;  // the block's threads, before it
};

std::byte* arena = nullptr;
std::vector<Tensor> all;
std::vector<std::vector<Cell>> cells;  // of each tensor
std::map<std::byte*, Cell*> shared;    // of a block's memory
std::vector<Finding> found;
std::vector<Atomic> atomics;
uint64_t atomics_of = 0;                           // the launch
std::unordered_map<uint64_t, uint32_t> how_often;  // has a thread been at a line?
std::unordered_set<uint64_t> asked;                // by a warp's instruction, sectors
void (*last_words)(const Finding&) = nullptr;
Access current;
std::unordered_map<uint32_t, std::string> names;  // of blocks, by number

std::string line_of(const Access& a) { return fmt::format("{{line:{:x}}}", a.line); }

void say(Kind kind, const std::string& text) {
    for (const Finding& f : found) {
        if (f.kind == kind) { return; }  // the first of its kind
    }
    found.push_back({kind, text});
}
[[noreturn]] void end_launch(Kind kind, const std::string& text) {
    say(kind, text);
    machine().fail(text);
}

Access access_now(uint32_t line) {
    const uint3& i = machine().lane().index;
    uint32_t thread = i.x + blockDim.x * (i.y + blockDim.y * i.z), block = machine().block().number;
    std::string& name = names[block];
    if (name.empty()) {
        bool flat = gridDim.y * gridDim.z == 1;
        name = flat ? fmt::format("{}", blockIdx.x)
                    : fmt::format("({}, {}, {})", blockIdx.x, blockIdx.y, blockIdx.z);
    }
    return {(uint32_t)++now, line, block, thread};
}

// ---- names

std::string who(const Access& a) { return fmt::format("thread {} of block {}", a.thread, names[a.block]); }
std::string element_of(const Tensor& t, ptrdiff_t byte) {
    ptrdiff_t i = byte / t.element;
    return t.cols > 1 ? fmt::format("{}[{}][{}]", t.name, i / t.cols, i % t.cols)
                      : fmt::format("{}[{}]", t.name, i);
}
std::string place_of(const std::byte* p) {
    if (p >= arena && p < arena + kMostTensors * kRoom) {
        const Tensor& t = all[(p - arena) / kRoom];
        return element_of(t, p - t.data);
    }
    const emulation::Block& block = machine().block();
    return p >= block.dynamic ? fmt::format("byte {} of the dynamic shared memory", p - block.dynamic)
                              : fmt::format("byte {} of the shared variables", p - block.memory);
}

// ---- order

// Each block's threads meet before its atomic operation and after, or the one that does it makes the access. Fences are not
// looked at.
bool ordered_by_atomics(const Access& before, const Access& after) {
    for (const Atomic& released : atomics) {
        bool met = before.thread == released.by.thread || before.time < released.met;
        if (released.by.block != before.block || released.by.time < before.time || !met) { continue; }
        for (const Atomic& acquired : atomics) {
            bool later = acquired.by.block == after.block && acquired.by.time > released.by.time;
            bool seen = acquired.by.thread == after.thread || machine().block().met > acquired.by.time;
            if (acquired.address == released.address && later && seen) { return true; }
        }
    }
    return false;
}

bool ordered(const Access& before, const Access& after) {
    if (before.time == 0 || before.time < machine().launched()) { return true; }
    if (before.block != after.block) { return ordered_by_atomics(before, after); }
    if (before.thread == after.thread || before.time < machine().block().met) { return true; }
    constexpr int kWarp = emulation::kWarp;
    return before.thread / kWarp == after.thread / kWarp && before.time < machine().lane().warp->met;
}

void race(const Access& before, bool wrote, const Access& after, bool writes, const std::byte* p) {
    constexpr uint32_t kWarp = emulation::kWarp;
    std::string cure = before.block != after.block
                           ? "Blocks of a launch come in any order: give each what it writes"
                       : before.thread / kWarp == after.thread / kWarp
                           ? "Lanes of a warp need not run together: __syncwarp() or __syncthreads() is "
                             "missing between the two"
                           : "__syncthreads() is missing between the two";
    say(Kind::kRace,
        fmt::format("a race: {} {} {} in {}, and {} {} it in {}; nothing says which comes first. {}",
                    who(before), wrote ? "writes" : "reads", place_of(p), line_of(before), who(after),
                    writes ? "writes" : "reads", line_of(after), cure));
}

void visit(Cell& cell, const Access& a, bool write, const std::byte* p) {
    if (!ordered(cell.write, a)) { race(cell.write, true, a, write, p); }
    if (!write) {
        bool same =
            cell.reads[0].time != 0 && cell.reads[0].block == a.block && cell.reads[0].thread == a.thread;
        if (!same) { cell.reads[1] = cell.reads[0]; }
        cell.reads[0] = a;
        return;
    }
    for (const Access& read : cell.reads) {
        if (!ordered(read, a)) { race(read, false, a, true, p); }
    }
    cell.write = a;
}

// ---- where

void count_sectors(Tensor& t, const Access& a, const std::byte* p, size_t bytes) {
    uint64_t thread = (uint64_t)a.block << 42 | (uint64_t)a.thread << 32 | a.line;
    uint64_t warp = (uint64_t)a.block << 42 | (uint64_t)(a.thread / emulation::kWarp) << 32 | a.line;
    uint64_t turn = how_often[thread]++;
    auto begin = (uint64_t)(p - arena) / kSector, end = ((uint64_t)(p - arena) + bytes - 1) / kSector;
    for (uint64_t sector = begin; sector <= end; sector++) {
        uint64_t key = (warp * 0x9e3779b97f4a7c15 ^ turn) * 0xbf58476d1ce4e5b9 + sector;
        if (asked.insert(key).second) { t.asked += kSector; }
    }
}

void touch_tensor(const std::byte* p, size_t bytes, bool write, uint32_t line) {
    size_t which = (p - arena) / kRoom;
    if (which >= all.size()) {
        end_launch(Kind::kBounds, fmt::format("{} {} memory far from any tensor in {}", who(current),
                                              write ? "writes to" : "reads", line_of(current)));
    }
    Tensor& t = all[which];
    Access a = current = access_now(line);
    ptrdiff_t at = p - t.data;
    if (at < 0 || (size_t)at + bytes > t.bytes()) {
        ptrdiff_t beyond = at < 0 ? -at : at + (ptrdiff_t)bytes - (ptrdiff_t)t.bytes();
        end_launch(Kind::kBounds,
                   fmt::format("out of bounds: {} {} {} bytes {} {}, {} bytes {} of {} x {} elements, in {}",
                               who(a), write ? "writes" : "reads", bytes, at < 0 ? "before" : "at",
                               at < 0 ? t.name : element_of(t, at), beyond,
                               at < 0 ? "before its begin; it is" : "past the end of a tensor", t.rows,
                               t.cols, line_of(a)));
    }
    if (write && t.input) {
        end_launch(Kind::kBounds, fmt::format("{} writes {}, which is an input, in {}", who(a),
                                              element_of(t, at), line_of(a)));
    }
    count_sectors(t, a, p, bytes);
    for (size_t cell = at / kGranule; cell <= (at + bytes - 1) / kGranule; cell++) {
        Cell& c = cells[which][cell];
        if (!write && !t.input && c.write.time == 0) {
            say(Kind::kUninitialised, fmt::format("{} reads {} in {}, which nobody has written", who(a),
                                                  element_of(t, at), line_of(a)));
        }
        visit(c, a, write, p);
    }
}

void touch_shared(const std::byte* p, size_t bytes, bool write, uint32_t line) {
    emulation::Block& block = machine().block();
    Access a = current = access_now(line);
    bool fixed = p + bytes <= block.memory + emulation::reserve_static(0, 1);
    if (!fixed && (p < block.dynamic || p + bytes > block.memory + emulation::kMemory)) {
        end_launch(Kind::kBounds,
                   fmt::format("out of bounds: {} {} shared memory where the block has none, in {}", who(a),
                               write ? "writes" : "reads", line_of(a)));
    }
    Cell*& of_block = shared[block.memory];
    if (of_block == nullptr) {
        of_block = static_cast<Cell*>(std::calloc(emulation::kMemory / kGranule, sizeof(Cell)));
    }
    size_t at = p - block.memory;
    for (size_t cell = at / kGranule; cell <= (at + bytes - 1) / kGranule; cell++) {
        Cell& c = of_block[cell];
        if (std::max(c.write.time, c.reads[0].time) < block.began) { c = {}; }
        if (!write && c.write.time == 0) {
            say(Kind::kUninitialised,
                fmt::format("{} reads {} in {}, which no thread of the block has written", who(a),
                            place_of(p), line_of(a)));
        }
        visit(c, a, write, p);
    }
}

void touch(const void* address, size_t bytes, bool write, void* from) {
    if (!machine().in_thread() || bytes == 0) { return; }
    const auto* p = static_cast<const std::byte*>(address);
    auto line = (uint32_t)(uintptr_t)from - 1;  // within the call
    const std::byte* memory = machine().block().memory;
    if (p >= arena && p < arena + kMostTensors * kRoom) {
        touch_tensor(p, bytes, write, line);
    } else if (p >= memory && p < memory + emulation::kMemory) {
        touch_shared(p, bytes, write, line);
    }
}

// ---- what is no access

void at_atomic(const void* address) {
    if (atomics_of != machine().launched()) { atomics.clear(); }
    atomics_of = machine().launched();
    emulation::Block& block = machine().block();
    atomics.push_back({address, access_now(current.line), block.met});
    const auto* p = static_cast<const std::byte*>(address);
    if (p < arena || p >= arena + kMostTensors * kRoom) { return; }
    size_t which = (p - arena) / kRoom;
    if (which < all.size() && p >= all[which].data && p + 4 <= all[which].data + all[which].bytes()) {
        for (size_t i = 0; i < 4 / kGranule; i++) {
            Cell& c = cells[which][(p - all[which].data) / kGranule + i];
            if (c.write.time == 0) { c.write = atomics.back().by; }
        }
    }
}

void at_failure(const std::string& why) {
    Kind kind = why.find("wait") != std::string::npos || why.find("lanes of a warp at") != std::string::npos
                    ? Kind::kBarrier
                    : Kind::kFailure;
    std::string text = why;
    if (kind == Kind::kBarrier) {
        size_t colon = why.find("wait: ");
        text = fmt::format(
            "a barrier that not all reach: {} never to go on, as the others have ended or wait elsewhere. "
            "Who "
            "returns early, or meets it inside an if, keeps the rest waiting: all threads of the block must "
            "come to __syncthreads, all lanes of the warp to a shuffle",
            colon == std::string::npos ? why + ":" : "these threads wait, " + why.substr(colon + 6) + ",");
    }
    if (kind == Kind::kBarrier || found.empty()) { say(kind, text); }
}

void at_signal(int signal, siginfo_t* info, void*) {
    Access a = current;
    if (signal == SIGSEGV || signal == SIGBUS) {
        last_words({Kind::kBounds,
                    fmt::format("out of bounds: a thread touches address {}, which is of no tensor; its last "
                                "access before was in {}",
                                info->si_addr, line_of(a))});
    } else {
        bool inside = machine().in_thread();
        last_words({Kind::kEndless, fmt::format("it does not end: {}the last access was in {}",
                                                inside ? fmt::format("thread {} of block {} still runs; ",
                                                                     threadIdx.x, blockIdx.x)
                                                       : "",
                                                line_of(a))});
    }
    _exit(0);
}

}  // namespace

std::vector<Tensor>& tensors() { return all; }
Tensor* find_tensor(std::string_view name) {
    auto at = std::find_if(all.begin(), all.end(), [&](const Tensor& t) { return t.name == name; });
    return at == all.end() ? nullptr : &*at;
}
std::vector<Finding>& findings() { return found; }

Tensor& add_tensor(const std::string& name, int64_t rows, int64_t cols, int element, bool input) {
    std::byte* data = arena + all.size() * kRoom + kRoom / 2;
    size_t bytes = (size_t)(rows * cols * element);
    mprotect(data, std::max<size_t>(bytes, 1), PROT_READ | PROT_WRITE);
    std::memset(data, 0xff, bytes);
    all.push_back({name, data, rows, cols, element, input});
    cells.emplace_back(bytes / kGranule + 1);
    return all.back();
}
void remove_tensors() {
    all.clear();
    cells.clear();
    how_often.clear();
    asked.clear();
}

void start_watching(int seconds, void (*last)(const Finding&)) {
    void* room =
        mmap(nullptr, kMostTensors * kRoom, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) { throw std::bad_alloc(); }
    arena = static_cast<std::byte*>(room);
    emulation::watcher = {at_atomic, at_failure};
    last_words = last;
    static std::array<std::byte, 65536> stack;
    stack_t other{stack.data(), 0, stack.size()};
    sigaltstack(&other, nullptr);
    struct sigaction act {};
    act.sa_sigaction = at_signal;
    act.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int signal : {SIGSEGV, SIGBUS, SIGALRM}) { sigaction(signal, &act, nullptr); }
    alarm(seconds);
}

// of -fsanitize=alignment and bounds
struct Source {
    const char* file;
    uint32_t line, column;
};
struct Mismatch {
    Source at;
    const void* type;
    unsigned char log_alignment, kind;
};

}  // namespace llmc::exercise

using namespace llmc::exercise;

// what g++ calls
extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void*, void*) {}
void __tsan_vptr_read(void*) {}
void __tsan_read1(void* p) { touch(p, 1, false, __builtin_return_address(0)); }
void __tsan_read2(void* p) { touch(p, 2, false, __builtin_return_address(0)); }
void __tsan_read4(void* p) { touch(p, 4, false, __builtin_return_address(0)); }
void __tsan_read8(void* p) { touch(p, 8, false, __builtin_return_address(0)); }
void __tsan_read16(void* p) { touch(p, 16, false, __builtin_return_address(0)); }
void __tsan_write1(void* p) { touch(p, 1, true, __builtin_return_address(0)); }
void __tsan_write2(void* p) { touch(p, 2, true, __builtin_return_address(0)); }
void __tsan_write4(void* p) { touch(p, 4, true, __builtin_return_address(0)); }
void __tsan_write8(void* p) { touch(p, 8, true, __builtin_return_address(0)); }
void __tsan_write16(void* p) { touch(p, 16, true, __builtin_return_address(0)); }
void __tsan_read_range(void* p, size_t bytes) { touch(p, bytes, false, __builtin_return_address(0)); }
void __tsan_write_range(void* p, size_t bytes) { touch(p, bytes, true, __builtin_return_address(0)); }

void __ubsan_handle_type_mismatch_v1(Mismatch* what, uintptr_t address) {
    if (!machine().in_thread()) { return; }
    end_launch(
        Kind::kAlignment,
        fmt::format(
            "misaligned: thread {} of block {} moves a vector of {} bytes at once at an address that is no "
            "multiple of {} ({} bytes past one), in {}:{}",
            threadIdx.x, blockIdx.x, 1 << what->log_alignment, 1 << what->log_alignment,
            address % (1u << what->log_alignment), what->at.file, what->at.line));
}
void __ubsan_handle_out_of_bounds(Source* at, uintptr_t index) {
    if (!machine().in_thread()) { return; }
    end_launch(
        Kind::kBounds,
        fmt::format("out of bounds: thread {} of block {} takes element {} of an array that has fewer, in "
                    "{}:{}",
                    threadIdx.x, blockIdx.x, (long long)index, at->file, at->line));
}
}

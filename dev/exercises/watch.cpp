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

const char* verb(bool write) { return write ? "writes" : "reads"; }

template <typename... X>
void say(Kind kind, fmt::format_string<X...> text, X&&... x) {
    for (const Finding& f : found) {
        if (f.kind == kind) { return; }  // the first of its kind
    }
    found.push_back({kind, fmt::format(text, std::forward<X>(x)...)});
}
template <typename... X>
[[noreturn]] void end_launch(Kind kind, fmt::format_string<X...> text, X&&... x) {
    say(kind, text, std::forward<X>(x)...);
    machine().fail("");
    std::abort();
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
bool in_arena(const std::byte* p) { return p >= arena && p < arena + kMostTensors * kRoom; }
std::string place_of(const std::byte* p) {
    const emulation::Block& block = machine().block();
    if (!in_arena(p)) {
        return p >= block.dynamic ? fmt::format("byte {} of the dynamic shared memory", p - block.dynamic)
                                  : fmt::format("byte {} of the shared variables", p - block.memory);
    }
    const Tensor& t = all[(p - arena) / kRoom];
    ptrdiff_t i = (p - t.data) / t.element;
    return t.cols > 1 ? fmt::format("{}[{}][{}]", t.name, i / t.cols, i % t.cols)
                      : fmt::format("{}[{}]", t.name, i);
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
    const char* cure =
        before.block != after.block ? "Blocks come in any order: give each what it writes"
        : before.thread / kWarp != after.thread / kWarp
            ? "__syncthreads() is missing between the two"
            : "Lanes need not run together: __syncwarp() or __syncthreads() is missing between the two";
    say(Kind::kRace, "a race: {} {} {} in {}, and {} {} it in {}; nothing says which comes first. {}",
        who(before), verb(wrote), place_of(p), line_of(before), who(after), verb(writes), line_of(after),
        cure);
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

// began: what was done before there was another memory there
void visit_all(Cell* cells, const Access& a, size_t at, const std::byte* p, size_t bytes, bool write,
               uint64_t began, bool given) {
    for (size_t i = at / kGranule; i <= (at + bytes - 1) / kGranule; i++) {
        Cell& c = cells[i];
        if (std::max(c.write.time, c.reads[0].time) < began) { c = {}; }
        if (!write && !given && c.write.time == 0) {
            say(Kind::kUninitialised, "{} reads {} in {}, which nobody has written", who(a), place_of(p),
                line_of(a));
        }
        visit(c, a, write, p);
    }
}

void touch_tensor(const std::byte* p, size_t bytes, bool write, uint32_t line) {
    Access a = current = access_now(line);
    size_t which = (p - arena) / kRoom;
    if (which >= all.size()) {
        end_launch(Kind::kBounds, "{} {} memory far from any tensor in {}", who(a), verb(write), line_of(a));
    }
    Tensor& t = all[which];
    ptrdiff_t at = p - t.data;
    if (at < 0 || (size_t)at + bytes > t.bytes()) {
        end_launch(Kind::kBounds, "{} {} {} bytes at {}, outside of a tensor of {} x {} elements, in {}",
                   who(a), verb(write), bytes, place_of(p), t.rows, t.cols, line_of(a));
    }
    if (write && t.input) {
        end_launch(Kind::kBounds, "{} writes {}, which is an input, in {}", who(a), place_of(p), line_of(a));
    }
    count_sectors(t, a, p, bytes);
    visit_all(cells[which].data(), a, at, p, bytes, write, 0, t.input);
}

void touch_shared(const std::byte* p, size_t bytes, bool write, uint32_t line) {
    emulation::Block& block = machine().block();
    Access a = current = access_now(line);
    bool fixed = p + bytes <= block.memory + emulation::reserve_static(0, 1);
    if (!fixed && (p < block.dynamic || p + bytes > block.memory + emulation::kMemory)) {
        end_launch(Kind::kBounds, "{} {} shared memory where the block has none, in {}", who(a), verb(write),
                   line_of(a));
    }
    Cell*& of_block = shared[block.memory];
    if (of_block == nullptr) {
        of_block = static_cast<Cell*>(std::calloc(emulation::kMemory / kGranule, sizeof(Cell)));
    }
    visit_all(of_block, a, p - block.memory, p, bytes, write, block.began, false);
}

void touch(const void* address, size_t bytes, bool write, void* from) {
    if (!machine().in_thread() || bytes == 0) { return; }
    const auto* p = static_cast<const std::byte*>(address);
    auto line = (uint32_t)(uintptr_t)from - 1;  // within the call
    const std::byte* memory = machine().block().memory;
    if (in_arena(p)) {
        touch_tensor(p, bytes, write, line);
    } else if (p >= memory && p < memory + emulation::kMemory) {
        touch_shared(p, bytes, write, line);
    }
}

// ---- what is no access

void at_atomic(const void* address) {
    if (atomics_of != machine().launched()) { atomics.clear(); }
    atomics_of = machine().launched();
    atomics.push_back({address, access_now(current.line), machine().block().met});
}

void at_failure(const std::string& why) {
    bool waits = why.find("wait: ") != std::string::npos;
    if (waits || why.find("lanes of a warp at") != std::string::npos) {
        say(Kind::kBarrier,
            "a barrier that not all reach: {}; the others have ended, or wait elsewhere. All threads of the "
            "block must come to "
            "__syncthreads, all lanes of the warp to a shuffle: none may return before, or pass by an if",
            waits ? "for ever wait " + why.substr(why.find("wait: ") + 6) : why);
    } else if (found.empty()) {
        say(Kind::kFailure, "{}", why);
    }
}

void at_signal(int signal, siginfo_t* info, void*) {
    std::string last = line_of(current);
    if (signal == SIGXCPU) {
        bool inside = machine().in_thread();
        std::string thread =
            inside ? fmt::format("thread {} of block {} still runs; ", threadIdx.x, blockIdx.x) : "";
        last_words(
            {Kind::kEndless, fmt::format("it does not end: {}the last access was in {}", thread, last)});
    } else {
        last_words(
            {Kind::kBounds,
             fmt::format(
                 "a thread touches address {}, which is of no tensor; the last access before was in {}",
                 info->si_addr, last)});
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

void start_watching(void (*last)(const Finding&)) {
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
    for (int signal : {SIGSEGV, SIGBUS, SIGXCPU}) { sigaction(signal, &act, nullptr); }
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
    int bytes = 1 << what->log_alignment;
    end_launch(
        Kind::kAlignment,
        "thread {} of block {} moves {} bytes at once at an address {} past a multiple of {}, in {}:{}",
        threadIdx.x, blockIdx.x, bytes, address % bytes, bytes, what->at.file, what->at.line);
}
void __ubsan_handle_out_of_bounds(Source* at, uintptr_t index) {
    if (!machine().in_thread()) { return; }
    end_launch(Kind::kBounds, "thread {} of block {} takes element {} of an array that has fewer, in {}:{}",
               threadIdx.x, blockIdx.x, (long long)index, at->file, at->line);
}
}

// The lines of PTX that kernels contain, as rewrite.pl hands them over: what each does to the machine. Operands are in
// the order of the asm's: %0, %1, ...
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <string_view>

#include "dev/emulate/machine.h"
#include "llmc/host/base/error.h"

namespace emulation {

namespace {

using Operands = const Operand*;

Machine& m() { return machine(); }
void* pointer(const Operand& o) { return reinterpret_cast<void*>(o.bits); }
Mbarrier& barrier(const Operand& o) { return Mbarrier::at(shared_memory((uint32_t)o.bits)); }
void give(const Operand& o, uint64_t x) { std::memcpy(o.out, &x, o.bytes); }
void nothing(Operands) {}
void zero(Operands o) { give(o[0], 0); }

// ---- mbarriers -----------------------------------------------------------------------------------

void init(Operands o) { static_cast<Mbarrier*>(shared_memory((uint32_t)o[0].bits))->init((int)o[1].bits); }
void arrive(Operands o) { barrier(o[0]).arrive(); }
void arrive_expect(Operands o) {
    barrier(o[0]).expect((int64_t)o[1].bits);
    barrier(o[0]).arrive();
}
void wait(Operands o) {
    Mbarrier& b = barrier(o[0]);
    m().wait_until("an mbarrier", [&] { return b.phase != (o[1].bits & 1); });
}

void ended(Operands o) { give(o[0], barrier(o[1]).phase != (o[2].bits & 1)); }

// ---- copies --------------------------------------------------------------------------------------

void check_bulk(const void* shared, const void* global, uint32_t bytes, const char* what) {
    if ((uintptr_t)shared % 16 != 0 || (uintptr_t)global % 16 != 0 || bytes % 16 != 0) {
        m().fail(
            fmt::format("{}: {} bytes between global address {} and shared memory: not whole vectors of 16",
                        what, bytes, global));
    }
    m().check_shared(shared, bytes, what);
    check_global(global, bytes, what);
}
void bulk_copy(Operands o) {
    void* to = shared_memory((uint32_t)o[0].bits);
    check_bulk(to, pointer(o[1]), (uint32_t)o[2].bits, "a bulk copy");
    m().begin({Copy::kBulk, to, pointer(o[1]), {}, (uint32_t)o[2].bits, &barrier(o[3])});
}
void bulk_store(Operands o) {
    const void* from = shared_memory((uint32_t)o[1].bits);
    check_bulk(from, pointer(o[0]), (uint32_t)o[2].bits, "a bulk store");
    m().begin({Copy::kStore, pointer(o[0]), from, {}, (uint32_t)o[2].bits, nullptr}, &m().lane().stores);
}
void bulk_commit(Operands) { m().lane().stores.closed++; }
void bulk_wait(Operands o) { m().finish(m().lane().stores, (int)o[0].bits); }

void copy16(Operands o) {
    void* to = shared_memory((uint32_t)o[0].bits);
    check_bulk(to, pointer(o[1]), 16, "cp.async");
    m().begin({Copy::kAsync, to, pointer(o[1]), {}, 16, nullptr}, &m().lane().async);
}
void copy_commit(Operands) { m().lane().async.closed++; }
void copy_wait(Operands o) { m().finish(m().lane().async, (int)o[0].bits); }
void copy_arrive(Operands o) {
    m().begin({Copy::kArrive, nullptr, nullptr, {}, 0, &barrier(o[0])}, &m().lane().async);
}

// to another block: address, values, its barrier
template <int count>
void store_async(Operands o) {
    std::array<std::byte, 16> value{};
    for (int i = 0; i < count; i++) { std::memcpy(&value[4 * i], &o[1 + i].bits, 4); }
    void* to = shared_memory((uint32_t)o[0].bits);
    if ((uintptr_t)to % (4 * count) != 0) { m().fail("st.async: not aligned"); }
    m().begin({Copy::kBulk, to, nullptr, value, 4 * count, &barrier(o[1 + count])});
}

// ---- clusters and blocks -------------------------------------------------------------------------

void cluster_rank(Operands o) { give(o[0], m().block().rank); }
void cluster_blocks(Operands o) { give(o[0], m().block().peers.size()); }
void map_address(Operands o) { give(o[0], o[1].bits % kWindow + o[2].bits * kWindow); }
void cluster_arrive(Operands) {
    Block& block = m().block();
    m().lane().cluster_turn = block.cluster->turn;
    m().synchronise(*block.cluster, "the cluster", block.cluster_threads, false);
}
void cluster_wait(Operands) {
    Barrier& cluster = *m().block().cluster;
    unsigned arrived = m().lane().cluster_turn;
    m().wait_until("the cluster", [&] { return cluster.turn != arrived; });
}
void cluster_sync(Operands o) {
    cluster_arrive(o);
    cluster_wait(o);
}
void named_barrier(uint64_t number, uint64_t threads) {
    if (number >= 16 || threads % kWarp != 0) { m().fail("bar: no such barrier, or no whole warps"); }
    m().synchronise(m().block().named[number], "a named barrier", (int)threads);
}
void named_sync(Operands o) { named_barrier(o[0].bits, o[1].bits); }
void first_sync(Operands o) { named_barrier(1, o[0].bits); }
void elect(Operands o) {
    m().exchange("elect.sync", 0);
    give(o[0], m().lane().in_warp == 0);
}

// ---- memory --------------------------------------------------------------------------------------

void power_of_two(Operands o) {
    give(o[0], std::bit_cast<uint32_t>(std::exp2(std::bit_cast<float>((uint32_t)o[1].bits))));
}
void store_hinted(Operands o) { std::memcpy(pointer(o[0]), &o[1].bits, 4); }
void store_relaxed(Operands o) { std::memcpy(pointer(o[0]), &o[1].bits, 8); }
void load_relaxed(Operands o) {
    m().spin();
    std::memcpy(o[0].out, pointer(o[1]), 8);
}

// By the first of these that a line contains; longer ones come before what they contain.
struct Meaning {
    std::string_view text;
    Instruction::Act act;
};
constexpr std::array kMeanings = {
    Meaning{"prefetch", nothing},
    Meaning{"createpolicy", zero},
    Meaning{"ex2.approx.ftz.f32", power_of_two},
    Meaning{"fence.", nothing},
    Meaning{"griddepcontrol.", nothing},
    Meaning{"st.global.L2::cache_hint.f32", store_hinted},
    Meaning{"st.relaxed.gpu.global.u64", store_relaxed},
    Meaning{"ld.relaxed.gpu.global.u64", load_relaxed},
    Meaning{"mbarrier.init.", init},
    Meaning{"mbarrier.arrive.expect_tx.", arrive_expect},
    Meaning{"cp.async.mbarrier.arrive.noinc.", copy_arrive},
    Meaning{"mbarrier.arrive.", arrive},
    Meaning{"mbarrier.try_wait.parity.", wait},
    Meaning{"mbarrier.test_wait.parity.acquire.", ended},
    Meaning{"mbarrier.test_wait.parity.", wait},
    Meaning{"cp.async.bulk.shared::cluster.global.mbarrier", bulk_copy},
    Meaning{"cp.async.bulk.global.shared::cta.bulk_group", bulk_store},
    Meaning{"cp.async.bulk.commit_group", bulk_commit},
    Meaning{"cp.async.bulk.wait_group.read", bulk_wait},
    Meaning{"cp.async.cg.shared.global", copy16},
    Meaning{"cp.async.commit_group", copy_commit},
    Meaning{"cp.async.wait_group", copy_wait},
    Meaning{"st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32", store_async<2>},
    Meaning{"st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32", store_async<4>},
    Meaning{"%cluster_ctarank", cluster_rank},
    Meaning{"%cluster_nctarank", cluster_blocks},
    Meaning{"mapa.shared::cluster.u32", map_address},
    Meaning{"barrier.cluster.arrive.release.aligned; barrier.cluster.wait", cluster_sync},
    Meaning{"barrier.cluster.arrive", cluster_arrive},
    Meaning{"barrier.cluster.wait", cluster_wait},
    Meaning{"bar.sync %0", named_sync},
    Meaning{"bar.sync 1, %0", first_sync},
    Meaning{"elect.sync", elect},
};

}  // namespace

Instruction::Instruction(const char* text) : act_(nothing) {
    std::string line;  // white space as one blank
    for (const char* c = text; *c != 0; c++) {
        bool blank = *c == ' ' || *c == '\n';
        if (!blank || line.empty() || line.back() != ' ') { line += blank ? ' ' : *c; }
    }
    auto known = [&](const Meaning& meaning) { return line.find(meaning.text) != std::string::npos; };
    const auto* found = std::find_if(kMeanings.begin(), kMeanings.end(), known);
    if (found == kMeanings.end()) { machine().fail("not known to dev/emulate/instructions.cpp: " + line); }
    act_ = found->act;
}

}  // namespace emulation

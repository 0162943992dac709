// Which elements a rank of many adds up and updates, whether all compute with the same, and where NCCL is looked for.
#include <algorithm>
#include <filesystem>
#include <map>
#include <numeric>
#include <tuple>

#include <doctest/doctest.h>

#include "dev/test/support/test_files.h"
#include "llmc/model/cpu/gpt2.h"
#include "llmc/model/run/follower.h"
#include "llmc/model/state_shares.h"
#include "llmc/ops/comm/nccl_library.h"

using namespace llmc;
namespace fs = std::filesystem;

namespace {

// copies that are no multiple of 4 elements; seven chunks of the norm
GPT2Config odd_config() {
    GPT2Config c;
    c.max_seq_len = 33, c.vocab_size = 500, c.padded_vocab_size = 512;
    c.num_layers = 5, c.num_heads = 2, c.channels = 86;
    return c;
}

// For each element in memory the number of its tensor and in it, by for_each_piece(); -1 in gaps.
std::vector<std::pair<int, int64_t>> numbers(const GPT2Config& c, const ParameterLayout& layout) {
    std::vector<std::pair<int, int64_t>> all((size_t)layout.size(), {-1, -1});
    for (int t = 0; t < kNumTensors; t++) {
        for_each_piece(c, layout, t, 0, tensor_total(c, t), [&](int64_t at, int64_t first, int64_t n) {
            for (int64_t i = 0; i < n; i++) { all[(size_t)(at + i)] = {t, first + i}; }
        });
    }
    return all;
}

}  // namespace

TEST_CASE("state shares: every element is in one rank's share, under its number") {
    const GPT2Config c = odd_config();
    const auto due = numbers(c, ParameterLayout(c));
    for (int ranks : {1, 2, 3, 7, 11}) {
        for (bool muon : {false, true}) {
            CAPTURE(ranks);
            CAPTURE(muon);
            const StateShares s(c, {.muon = muon, .ranks = ranks, .groups = 2 * ranks});
            std::vector<std::pair<int, int64_t>> found(due.size(), {-1, -1});
            int64_t twice = 0, misplaced = 0;
            for (size_t r = 0; r < (size_t)ranks; r++) {
                std::vector<bool> seconds((size_t)s.seconds.kept());
                auto check = [&](int tensor, int64_t at, int64_t kept, int64_t number, int64_t size) {
                    for (int64_t i = 0; i < size; i++) {
                        auto& element = found[(size_t)(at + i)];
                        twice += element.first >= 0;
                        element = {tensor, number + i};
                    }
                    s.for_each_kept(r, at, size, [&](const SharePart& part) {
                        misplaced += part.kept - part.begin != kept - at || part.kept < 0 ||
                                     part.kept + part.size() > s.kept();
                    });
                };
                const std::vector<AdamWPiece> pieces = update_pieces(c, s, r);
                CHECK((int64_t)pieces.size() <= most_update_pieces(c, s));
                for (const AdamWPiece& p : pieces) {
                    CHECK(p.size <= kNormChunk);
                    CHECK(p.decays == kTensors[p.tensor].matrix);
                    CHECK_FALSE((muon && is_block_matrix(p.tensor)));
                    check(p.tensor, p.at, p.kept, p.first, p.size);
                    REQUIRE(p.second + p.size <= (int64_t)seconds.size());
                    for (int64_t i = p.second; i < p.second + p.size; i++) {
                        twice += seconds[(size_t)i];
                        seconds[(size_t)i] = true;
                    }
                }
                for (int t = 0; t < kNumTensors; t++) {
                    for (const MuonCopy& copy : muon_copies(c, s, r, t)) {
                        CHECK(is_block_matrix(t));
                        const int64_t size = tensor_size(c, t);
                        check(t, copy.at, copy.kept, copy.layer * size, size);
                    }
                }
            }
            CHECK(twice == 0);
            CHECK(misplaced == 0);
            CHECK(found == due);
        }
    }
}

// What the kernels count on: a share is whole chunks, one behind the other. What the same bits count on: the
// chunks are those of one rank.
TEST_CASE("state shares: shares are whole chunks, one behind the other, of any number of ranks") {
    for (int layers : {1, 5, 23}) {
        GPT2Config c = odd_config();
        c.num_layers = layers;
        for (bool muon : {false, true}) {
            const std::vector<NormChunk> one =
                StateShares(c, {.muon = muon, .ranks = 1, .groups = 1}).chunks_by_rank();
            for (int ranks : {1, 2, 3, 4, 7, 11, 40}) {
                CAPTURE(layers);
                CAPTURE(muon);
                CAPTURE(ranks);
                const StateShares s(c, {.muon = muon, .ranks = ranks, .groups = ranks});
                std::vector<NormChunk> chunks = s.chunks_by_rank();
                const std::vector<int64_t> begins = s.chunk_begins();
                REQUIRE(begins.size() == (size_t)ranks + 1);
                REQUIRE(begins.back() == s.chunks());
                REQUIRE((int64_t)chunks.size() == s.chunks());
                int64_t wrong = 0;
                for (size_t r = 0; r < (size_t)ranks; r++) {
                    int64_t kept = 0;
                    for (int64_t k = begins[r]; k < begins[r + 1]; k++) {
                        const NormChunk& chunk = chunks[(size_t)k];
                        wrong += chunk.kept != kept || chunk.begin % 64 != 0 || chunk.size > kNormChunk;
                        for (const auto& range : s.parts) {
                            const SharePart& part = range[r];
                            const int64_t lo = std::max(chunk.begin, part.begin),
                                          hi = std::min(chunk.begin + chunk.size, part.end);
                            kept += std::max<int64_t>(0, hi - lo);
                            wrong += lo < hi && part.kept - part.begin != chunk.kept - chunk.begin;
                        }
                        wrong += kept != chunk.kept + chunk.size;
                    }
                    CHECK(kept == s.sizes[r]);
                }
                CHECK(wrong == 0);
                std::ranges::sort(chunks, {}, &NormChunk::number);
                REQUIRE(chunks.size() == one.size());
                int64_t others = 0;
                int64_t end = 0;
                for (size_t k = 0; k < one.size(); k++) {
                    others += chunks[k].begin != one[k].begin || chunks[k].size != one[k].size ||
                              chunks[k].number != (int32_t)k || chunks[k].begin != end;
                    end += chunks[k].size;
                }
                CHECK(others == 0);
                CHECK(end == s.elements());
            }
        }
    }
}

// in C^3, C channels: of one of Muon's iterations
TEST_CASE("state shares: Muon's work and what is kept of it are even over the ranks") {
    const std::map<int, int> work = {{kQkvw, 9}, {kAttprojw, 3}, {kFcw, 9}, {kFcprojw, 9}};
    for (auto [layers, heads, channels] : {std::tuple(12, 12, 768), std::tuple(48, 25, 1600)}) {
        GPT2Config c;
        c.num_layers = layers, c.num_heads = heads, c.channels = channels;
        for (int ranks : {2, 3, 4, 8}) {
            CAPTURE(layers);
            CAPTURE(ranks);
            const StateShares s(c, {.muon = true, .ranks = ranks, .groups = ranks});
            int most = 0, all = 0;
            for (size_t r = 0; r < (size_t)ranks; r++) {
                int here = 0;
                for (auto [t, each] : work) { here += each * (int)muon_copies(c, s, r, t).size(); }
                most = std::max(most, here);
                all += here;
            }
            CHECK(all == 30 * layers);
            CHECK(most * ranks <= all + all / 10);
            const int64_t even = s.elements() / ranks;
            CHECK(s.largest() < even + even / 6);
            for (int l = 1; l <= layers; l++) {  // nobody has the whole of a layer
                for (const SharePart& part : s.parts[(size_t)l]) {
                    CHECK(part.size() * 3 <
                          (s.ranges[(size_t)l].second - s.ranges[(size_t)l].first) * 2 + 3 * kNormChunk);
                }
            }
        }
    }
}

TEST_CASE("state shares: of every layer of GPT-2 each rank has as much, and of all nearly so") {
    for (auto [layers, heads, channels] : {std::tuple(12, 12, 768), std::tuple(48, 25, 1600)}) {
        GPT2Config c;
        c.num_layers = layers, c.num_heads = heads, c.channels = channels;
        for (int ranks : {2, 4, 8, 64}) {
            CAPTURE(layers);
            CAPTURE(ranks);
            const StateShares s(c, {.ranks = ranks, .groups = ranks});
            for (int l = 0; l <= layers; l++) {
                const auto [begin, end] = s.ranges[(size_t)l];
                for (const SharePart& part : s.parts[(size_t)l]) {
                    const int64_t even = (end - begin) / ranks;
                    CHECK(part.size() > 0);
                    CHECK(std::abs(part.size() - even) < 2 * kNormChunk);
                }
            }
            const int64_t even = s.elements() / ranks;
            CHECK(s.largest() < even + even / 8);
        }
    }
}

TEST_CASE("state shares: what is kept") {
    const GPT2Config c = odd_config();
    const int64_t all = ParameterLayout(c).size();
    for (const StateShares& s : {StateShares(c, {.ranks = 1, .groups = 4}),
                                 StateShares(c, {.ranks = 2, .groups = 4, .shard = false})}) {
        CHECK(s.kept() == all);
        for (size_t k = 0; k < s.ranges.size(); k++) {
            const SharePart part = s.kept_part(k, 0);
            CHECK((std::pair(part.begin, part.end) == s.ranges[k] && part.kept == part.begin));
        }
    }
    const StateShares two(c, {.ranks = 2, .groups = 4});
    CHECK(two.kept() == two.largest());
    CHECK(two.largest() < all * 2 / 3);
    CHECK(two.chunks() == (all + kNormChunk - 1) / kNormChunk);
    CHECK_THROWS_AS(StateShares(c, {.ranks = 3, .groups = 4}), Error);
}

namespace {

struct Hashes : GPT2Cpu {
    Hashes() : GPT2Cpu({9, 37, 64, 1, 2, 14}, 1, 2) {}
    std::vector<uint64_t> parameter_hashes() const override { return std::vector<uint64_t>(kNumTensors, 5); }
};

// rank 0 of three: the others say the same, but for one tensor of one rank
struct OtherRanks : Comm {
    int rank = 0, tensor = 0, calls = 0;
    OtherRanks() : Comm(0, 3, 0, 3) {}
    void exchange(const char*, std::span<const std::span<const std::byte>> out,
                  std::span<const std::span<std::byte>> in) override {
        calls++;
        for (size_t r = 1; r < in.size(); r++) { std::ranges::copy(out[r], in[r].begin()); }
        if (rank > 0) { in[(size_t)rank][(size_t)tensor * sizeof(uint64_t)] = std::byte{6}; }
    }
};

}  // namespace

TEST_CASE("check_ranks: another rank's parameters that differ are named, when it is their turn") {
    OtherRanks comm;
    for (int64_t step = 0; step < 6; step++) { check_ranks(Hashes(), comm, 3, step); }
    CHECK(comm.calls == 2);
    check_ranks(Hashes(), comm, 0, 2);
    CHECK(comm.calls == 2);
    for (int rank : {1, 2}) {
        for (int tensor : {0, (int)kQkvw, kNumTensors - 1}) {
            comm.rank = rank, comm.tensor = tensor;
            check_error(error_of([&] { check_ranks(Hashes(), comm, 3, 8); }), kExitPeerLost,
                        {"step 9", fmt::format("rank {}", rank),
                         std::string("another ") + kTensors[tensor].name + " than"});
        }
    }
}

TEST_CASE("NCCL: where it is looked for") {
    TempFolder folder;
    auto put = [&](const std::string& place) {
        const std::string path = folder / place;
        fs::create_directories(path);
        write_bytes(path + "/libnccl.so.2", "");
        return path + "/libnccl.so.2";
    };
    const std::string toolkit = put("cuda/lib64"), fetched = put("program/build/nccl/nvidia/nccl/lib"),
                      wheel = put("env/lib/python3.11/site-packages/nvidia/nccl/lib"),
                      user = put("home/.local/lib/python3.12/site-packages/nvidia/nccl/lib"),
                      given = put("given");
    std::map<std::string, std::string> variables = {
        {"CUDA_HOME", folder / "cuda"}, {"VIRTUAL_ENV", folder / "env"}, {"HOME", folder / "home"}};
    auto environment = [&](const char* name) -> const char* {
        auto found = variables.find(name);
        return found == variables.end() ? nullptr : found->second.c_str();
    };
    std::vector<std::string> places = nccl_places(environment, folder / "program");
    const std::vector<std::string> due = {"libnccl.so.2", toolkit, fetched, wheel, user};
    REQUIRE(places.size() >= due.size());  // behind them those of this machine
    places.resize(due.size());
    CHECK(places == due);
    for (const std::string& text : {given, folder / "given"}) {
        variables["PLUMB_NCCL"] = text;
        CHECK(nccl_places(environment, folder / "program") == std::vector<std::string>{given});
    }
}

TEST_CASE("NCCL: a library that is none is refused by name") {
    TempFolder folder;
    write_bytes(folder / "libnccl.so.2", "no library");
    setenv("PLUMB_NCCL", folder.path().c_str(), 1);
    std::string said;
    try {
        nccl();
    } catch (const Error& e) {
        said = e.what();
        CHECK(e.exit_code == kExitDevice);
    }
    unsetenv("PLUMB_NCCL");
    CHECK_MESSAGE(said.find(folder / "libnccl.so.2") != std::string::npos, said);
    CHECK_MESSAGE(said.find("scripts/setup.sh nccl") != std::string::npos, said);
}

// Which elements a rank of many adds up and updates, whether all compute with the same, and where NCCL is looked for.
#include <algorithm>
#include <filesystem>
#include <map>
#include <numeric>

#include <doctest/doctest.h>

#include "dev/test/cpu/test_files.h"
#include "llmc/host/nccl_library.h"
#include "llmc/model/rank_tasks.h"
#include "llmc/model/state_shares.h"

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

TEST_CASE("state shares: every element is in one rank's share, in one piece, under its number") {
    const GPT2Config c = odd_config();
    const ParameterLayout layout(c);
    const auto due = numbers(c, layout);
    for (int ranks : {1, 2, 3, 7, 11}) {
        CAPTURE(ranks);
        const StateShares s(c, {.ranks = ranks, .groups = 2 * ranks});
        std::vector<std::pair<int, int64_t>> found(due.size(), {-1, -1});
        int64_t twice = 0, pieces = 0;
        for (int r = 0; r < ranks; r++) {
            CHECK((s.begins[(size_t)r] % kNormChunk == 0 || s.begins[(size_t)r] == s.elements()));
            CHECK(s.size(r) <= s.largest());
            for (int t = 0; t < kNumTensors; t++) {
                for (const SharePiece& p :
                     share_pieces(c, layout, t, s.begins[(size_t)r], s.begins[(size_t)r + 1])) {
                    pieces++;
                    for (int64_t k = 0; k < p.shape.copies * p.shape.size; k++) {
                        const int64_t copy = k / p.shape.size, i = k % p.shape.size;
                        auto& element = found[(size_t)(p.at + copy * p.shape.stride + i)];
                        twice += element.first >= 0;
                        element = {p.shape.tensor, p.shape.first + k};
                    }
                }
            }
        }
        CHECK(twice == 0);
        CHECK(found == due);
        CHECK(pieces <= kNumTensors * ranks + 2 * (ranks - 1) + kNumTensors * (ranks - 1));
        if (ranks == 1) { CHECK(pieces == kNumTensors); }  // a launch for each tensor, as without ranks
    }
}

TEST_CASE("state shares: what is kept") {
    const GPT2Config c = odd_config();
    const int64_t all = ParameterLayout(c).size();
    CHECK(StateShares(c, {.ranks = 1, .groups = 4}).kept() == all);
    CHECK(StateShares(c, {.ranks = 2, .groups = 4, .shard = false}).kept() == all);
    const StateShares two(c, {.ranks = 2, .groups = 4});
    CHECK(two.kept() == two.largest());
    CHECK(two.largest() < all * 2 / 3);
    const std::vector<int64_t> chunks = two.chunks();
    CHECK(chunks.front() == 0);
    CHECK(chunks.back() == (all + kNormChunk - 1) / kNormChunk);
    CHECK_THROWS_AS(StateShares(c, {.ranks = 3, .groups = 4}), Error);
}

namespace {

struct Hashes {
    std::vector<uint64_t> parameter_hashes() const { return std::vector<uint64_t>(kNumTensors, 5); }
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
            check_error(
                error_of([&] { check_ranks(Hashes(), comm, 3, 8); }), kExitPeerLost,
                {"step 9", strf("rank %d", rank), std::string("another ") + kTensors[tensor].name + " than"});
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

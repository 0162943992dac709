// What is worked out for GPUs without one: which elements a rank of many adds up and updates, whether all compute the
// same, where NCCL is looked for, and what --profile makes of CUPTI's records, made up for it, and of a step's work.
#include <tuple>

#include "dev/test/support/many_ranks.h"
#include "llmc/host/files/json.h"
#include "llmc/model/cpu/gpt2.h"
#include "llmc/model/profile/step_profile.h"
#include "llmc/model/run/follower.h"
#include "llmc/model/state_shares.h"
#include "llmc/ops/comm/nccl_library.h"

using namespace llmc;

namespace {

// copies that are no multiple of 4 elements; seven chunks of the norm
GPT2Config odd_config() { return {33, 500, 512, 5, 2, 86}; }

GPT2Config config_of(int layers, int heads, int channels) {
    return {.num_layers = layers, .num_heads = heads, .channels = channels};
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
            INFO("ranks ", ranks, ", muon ", muon);
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
                INFO("layers ", layers, ", muon ", muon, ", ranks ", ranks);
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
        const GPT2Config c = config_of(layers, heads, channels);
        for (int ranks : {2, 3, 4, 8}) {
            INFO("layers ", layers, ", ranks ", ranks);
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
        const GPT2Config c = config_of(layers, heads, channels);
        for (int ranks : {2, 4, 8, 64}) {
            INFO("layers ", layers, ", ranks ", ranks);
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

// With 2 ranks a share has several of a layer's matrices, with 4 one of them, and with 6 some ranks have none.
TEST_CASE("muon runs: the same bits in any number of ranks") {
    RunsOfRanks p;
    auto run = [&](const std::string& name, const std::string& more) {
        run_well(p.folder.path(),
                 p.options(name,
                           "--optimizer muon --schedule constant --val-every 2 --sample-every 0 "
                           "--save-every 2 --weight-decay 0.1 " +
                               more));
    };
    const std::string four = "--total-batch 192 --reduce-groups 4 --steps ",
                      six = "--total-batch 144 --reduce-groups 6 --steps ";
    run("one", four + "6");
    run("two", four + "6 --ranks 2 --check-ranks 1");
    run("four", four + "6 --ranks 4 --save-mode async");
    run("whole", four + "6 --ranks 2 --zero 0");
    run("moved", four + "2 --ranks 4");
    run("moved", four + "4 --resume auto");
    run("moved", four + "6 --ranks 2 --resume auto");
    for (const char* other : {"two", "four", "whole", "moved"}) {
        p.check_same("one", other, "step_00000006");
    }
    run("of_six", six + "4");
    for (const char* ranks : {"2", "3", "6"}) {
        run(ranks, six + "4 --ranks " + ranks);
        p.check_same("of_six", ranks, "step_00000004");
    }
    CHECK_FALSE(same_files(p.out("one") + "/step_00000004/model.safetensors",
                           p.out("of_six") + "/step_00000004/model.safetensors"));
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
            check_error([&] { check_ranks(Hashes(), comm, 3, 8); }, kExitPeerLost,
                        {"step 9", fmt::format("rank {}", rank),
                         std::string("another ") + kTensors[tensor].name + " than"});
        }
    }
}

TEST_CASE_FIXTURE(InFolder, "NCCL: where it is looked for") {
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

TEST_CASE_FIXTURE(InFolder, "NCCL: a library that is none is refused by name") {
    write_bytes(folder / "libnccl.so.2", "no library");
    setenv("PLUMB_NCCL", folder.path().c_str(), 1);
    const Error error = error_of([] { nccl(); });
    unsetenv("PLUMB_NCCL");
    check_error(error, kExitDevice, {folder / "libnccl.so.2", "scripts/setup.sh nccl"});
}

// ---- --profile ---------------------------------------------------------------------------------

namespace {

// records one after the other, with a gap of 1 us before each
class Tape {
public:
    void kernel(const std::string& name, int64_t us) { put(Activity::kKernel, name, us); }
    // starts while the one before still runs, and ends `us` after it
    void early_kernel(const std::string& name, int64_t early_us, int64_t us) {
        now_ -= early_us + 1;
        kernel(name, early_us + us);
    }
    void fill(int64_t us) { put(Activity::kFill, "fill", us); }
    void call(const std::string& name, int64_t start_us, int64_t us) {
        records.push_back({Activity::kCall, name, start_us * 1000, (start_us + us) * 1000, 7, 0});
    }
    std::vector<Activity> records;

private:
    void put(Activity::Kind kind, const std::string& name, int64_t us) {
        now_ += 1;
        records.push_back({kind, name, now_ * 1000, (now_ + us) * 1000, 1, ++correlation_});
        now_ += us;
    }
    int64_t now_ = 0;
    uint32_t correlation_ = 100;
};

// a step of one block; extra_us: longer adamw
void add_step(Tape& tape, int64_t extra_us) {
    tape.kernel("llmc::adamw_update_kernel<float>", 10 + extra_us);
    tape.kernel("llmc::encoder_forward_kernel", 2);
    tape.kernel("nvjet_sm90_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN", 20);
    tape.kernel("llmc::attention_forward_wgmma_kernel", 5);
    tape.kernel("llmc::classifier_rows_kernel<float>", 6);
    tape.fill(1);
    tape.fill(1);
    tape.kernel("nvjet_tst_128x256_NTN", 30);
    tape.kernel("cublasLt::splitKreduce_kernel", 3);
    tape.kernel("nvjet_tst_128x256_NNN", 25);
    tape.kernel("llmc::sum_rows_kernel", 4);
    tape.early_kernel("void llmc::finish_columns_kernel<>", 3, 1);
    tape.kernel("llmc::decide_step_kernel", 1);
}

Tape three_steps() {
    Tape tape;
    tape.kernel("llmc::decide_step_kernel", 1);
    for (int64_t extra : {50, 0, 10}) { add_step(tape, extra); }
    return tape;
}

}  // namespace

TEST_CASE("profile: the step of median length, part by part") {
    StepRecording r = analyse(three_steps().records);
    REQUIRE(r.steps_ms.size() == 3);
    const StepRecord& step = r.median;
    CHECK(step.ms == doctest::Approx(r.steps_ms[2]));  // the one that takes 10 us more
    auto part = [&](Part p) { return step.parts[(int)p]; };
    CHECK(part(Part::kProductForward).ms == doctest::Approx(0.020));
    CHECK(part(Part::kProductWeight).ms == doctest::Approx(0.033));  // with the sums of its parts
    CHECK(part(Part::kProductWeight).count == 2);
    CHECK(part(Part::kProductInput).ms == doctest::Approx(0.025));
    CHECK(part(Part::kBias).ms == doctest::Approx(0.005));  // what adds up the groups starts early
    CHECK(part(Part::kBias).count == 2);
    CHECK(part(Part::kAdamW).ms == doctest::Approx(0.021));  // the decision that ends the step before it
    CHECK(part(Part::kFills).count == 2);
    CHECK(part(Part::kOther).count == 0);
    CHECK(step.fills_before.at(name_of(Part::kProductWeight)) == 2);
    CHECK(step.idle_ms == doctest::Approx(0.012));  // a microsecond before each but the early one
}

TEST_CASE("profile: the products behind a direction of Muon are its own") {
    Tape tape;
    tape.kernel("llmc::decide_step_kernel", 1);
    for (int k = 0; k < 2; k++) {
        tape.kernel("llmc::adamw_update_kernel<float>", 10);
        for (int tensor = 0; tensor < 2; tensor++) {
            tape.kernel("llmc::muon_mean_kernel<4, float>", 4);
            tape.kernel("llmc::muon_direction_kernel<4>", 3);
            for (int64_t us : {11, 12, 13}) { tape.kernel("nvjet_tst_128x256_TNN", us); }
            tape.kernel("llmc::muon_update_kernel<4>", 5);
        }
        tape.kernel("llmc::encoder_forward_kernel", 2);
        tape.kernel("nvjet_tst_192x192_TNN", 20);
        tape.kernel("llmc::classifier_rows_kernel<float>", 6);
        tape.kernel("nvjet_tst_128x256_NTN", 30);
        tape.kernel("llmc::decide_step_kernel", 1);
    }
    const StepRecord step = analyse(tape.records).median;
    auto part = [&](Part p) { return step.parts[(int)p]; };
    CHECK(part(Part::kMuonProducts).ms == doctest::Approx(0.072));
    CHECK(part(Part::kMuon).ms == doctest::Approx(0.024));
    CHECK(part(Part::kAdamW).ms == doctest::Approx(0.011));
    CHECK(part(Part::kProductForward).ms == doctest::Approx(0.020));
    CHECK(part(Part::kProductWeight).ms == doctest::Approx(0.030));
    CHECK(part(Part::kProductInput).count == 0);
}

TEST_CASE("profile: FP8's products, casts and GELU") {
    Tape tape;
    tape.kernel("llmc::decide_step_kernel", 1);
    const std::string fp8 = "void llmc::(anonymous namespace)::fp8_kernel<llmc::(anonymous namespace)::";
    for (int k = 0; k < 2; k++) {
        tape.kernel(fp8 + "Cast<(llmc::Fp8)0>, __nv_bfloat16>(Call)", 7);
        tape.kernel("llmc::layernorm_forward_fp8_kernel<__nv_bfloat16, false, 1>", 4);
        tape.kernel("nvjet_qqtst_TNT", 20);
        tape.kernel(fp8 + "Gelu, __nv_bfloat16>(Call)", 9);
        tape.kernel("llmc::classifier_rows_kernel<float>", 6);
        // the head, and two blocks: gradients of weights take 30 us, of inputs 1 ms
        for (int64_t us : {30, 1000}) { tape.kernel("nvjet_tst", us); }
        for (int block = 0; block < 2; block++) {
            tape.kernel("nvjet_qqtst", 1000);
            tape.kernel(fp8 + "GeluBackward, __nv_bfloat16>(Call)", 9);
            for (int64_t us : {30, 30, 1000, 30, 1000, 30, 1000}) { tape.kernel("nvjet_qqtst", us); }
        }
        tape.kernel("llmc::fp8_scales_kernel(llmc::Fp8Scales)", 2);
        tape.kernel("llmc::decide_step_kernel", 1);
        tape.kernel("llmc::encoder_forward_kernel", 2);
    }
    const StepRecord step = analyse(tape.records).median;
    auto part = [&](Part p) { return step.parts[(int)p]; };
    CHECK(part(Part::kProductForward).ms == doctest::Approx(0.020));
    CHECK(part(Part::kProductWeight).ms == doctest::Approx(9 * 0.030));
    CHECK(part(Part::kProductInput).ms == doctest::Approx(9));
    CHECK(part(Part::kFp8).ms == doctest::Approx(0.009));
    CHECK(part(Part::kGelu).ms == doctest::Approx(0.027));
    CHECK(part(Part::kLayerNormForward).count == 1);
    CHECK(part(Part::kOther).count == 0);
}

TEST_CASE("profile: calls that wait are named, calls inside of others do not count") {
    Tape tape = three_steps();
    auto& records = tape.records;
    tape.call("cudaLaunchKernel", 10, 4);
    tape.call("cuLaunchKernel", 11, 2);  // inside
    tape.call("cudaMemcpyAsync", 20, 1);
    tape.call("cudaStreamSynchronize", 30, 3);
    std::stable_sort(records.begin(), records.end(), [](auto& a, auto& b) { return a.start < b.start; });
    StepRecording r = analyse(records);
    REQUIRE(r.calls.size() == 3);
    CHECK(r.calls[0].name == "cudaLaunchKernel");  // the longest, by its share of each of three steps
    CHECK(r.calls[0].ms == doctest::Approx(0.004 / 3));
    CHECK(r.calls[1].name == "cudaStreamSynchronize");
    for (const HostCall& call : r.calls) {
        CAPTURE(call.name);
        CHECK(call.name != "cuLaunchKernel");
        CHECK(call.waits == (call.name == "cudaStreamSynchronize"));
        CHECK(call.count == doctest::Approx(1.0 / 3));
    }
}

TEST_CASE("profile: fewer than two steps are refused") {
    Tape tape;
    tape.kernel("llmc::decide_step_kernel", 1);
    add_step(tape, 0);
    CHECK_THROWS_WITH_AS(analyse(tape.records),
                         "--profile: CUPTI recorded 2 ends of steps; 3 at least are needed", Error);
}

// GPT-2 124M: 85M parameters of matrices in its blocks, 38.6M of the head; 6 products a parameter and token
TEST_CASE("profile: the work of a step, and its floors") {
    const GPT2Config c = config_of(12, 12, 768);
    StepProfile p;
    p.work = work_of_step(c, 64, 1024, 2, 4);
    double flop = 0;
    for (const ProductWork& w : p.work.products) {
        flop += w.flop() * w.calls;
        p.products.push_back({w, 2e-12 * w.flop(), 1e-12 * w.flop(), 3});  // 1000 TFLOP/s
    }
    CHECK(flop == doctest::Approx(6.0 * 65536 * (12 * 12 * 768.0 * 768 + 50304 * 768.0)));
    CHECK(p.work.attention.blocks == 136.0 * 64 * 12 * 12);
    CHECK(p.work.attention.forward_flop == doctest::Approx(136.0 * 64 * 144 * 2 * 2 * 64 * 64 * 64));
    for (const StreamMix& mix : kStreamMixes) { p.roofs.push_back({mix.reads, mix.writes, 1e13}); }
    p.exponentials_per_s = 1e30;
    auto floors = floors_of(p);
    CHECK(floors[(int)Part::kProductForward].ms == doctest::Approx(flop / 3 * 1e-12));
    CHECK(floors[(int)Part::kAttentionBackward].ms ==
          doctest::Approx(p.work.attention.backward_flop * 1e-12));
    CHECK(floors[(int)Part::kClassifier].ms == doctest::Approx(2 * 65536.0 * 50304 * 2 * 1e-10));
    CHECK(floors[(int)Part::kBias].ms == doctest::Approx(12 * 4 * 65536.0 * 768 * 2 * 1e-10));
    CHECK(floors[(int)Part::kFills].ms == 0);
    StepProfile muon = p;
    muon.work = work_of_step(c, 64, 1024, 2, 4, true);
    const double channels = 768, matrices = 12 * 12 * channels * channels;
    CHECK(muon.work.muon_flop == 12 * 300 * channels * channels * channels);
    const auto muon_floors = floors_of(muon);
    CHECK(muon_floors[(int)Part::kMuonProducts].ms == doctest::Approx(muon.work.muon_flop * 1e-12));
    CHECK(muon_floors[(int)Part::kMuon].ms == doctest::Approx(matrices * (14 + 10) * 1e-10));
    CHECK(muon_floors[(int)Part::kAdamW].ms ==
          doctest::Approx(floors[(int)Part::kAdamW].ms - matrices * 28 * 1e-10));
    CHECK(floors[(int)Part::kMuon].ms + floors[(int)Part::kMuonProducts].ms == 0);
    StepProfile fp8 = p;
    fp8.work = work_of_step(c, 64, 1024, 2, 4, false, true);
    for (size_t i = 0; i < fp8.products.size(); i++) {
        fp8.products[i].work = fp8.work.products[i];
        if (fp8.products[i].work.fp8) { fp8.products[i].fastest_ms /= 2; }
    }
    CHECK(std::ranges::count(fp8.work.products, true, &ProductWork::fp8) == 12);  // all but the head's
    const auto fp8_floors = floors_of(fp8);
    const double row = 65536.0 * channels * 2;
    CHECK(fp8_floors[(int)Part::kBias].ms == 0);
    CHECK(fp8_floors[(int)Part::kFp8].ms == doctest::Approx((12 * 6 * row + matrices * 2) * 2 * 1e-10));
    CHECK(fp8_floors[(int)Part::kGelu].ms == doctest::Approx(12 * (6 + 14) * row * 1e-10));
    // bf16's rate, that of the head
    CHECK(fp8_floors[(int)Part::kAttentionForward].ms ==
          doctest::Approx(floors[(int)Part::kAttentionForward].ms));
    // what moves a tensor is slower than what computes it
    for (StreamRoof& roof : p.roofs) { roof.bytes_per_s = 1e9; }
    CHECK(floors_of(p)[(int)Part::kAttentionForward].ms ==
          doctest::Approx(p.work.attention.forward_bytes * 1e-6));

    p.recording = analyse(three_steps().records);
    p.step_ms = 200;
    p.steps = 40;
    CHECK(contains(profile_table(p), "S = sum of floors / median step = "));
    JsonValue json = parse_json(profile_json(p), "profile");
    REQUIRE(json_get<double>(json, "S") != nullptr);
    CHECK(*json_get<double>(json, "S") == doctest::Approx(sum_of_floors(floors_of(p)) / 200).epsilon(1e-3));
    CHECK(json_find(&json, "parts")->size() == kParts);
}

// What --profile makes of CUPTI's records, on records made up for it; and the work and floors of a step.
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "llmc/host/base/error.h"
#include "llmc/host/files/json.h"
#include "llmc/model/profile/step_profile.h"

using namespace llmc;

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
    int64_t now_us() const { return now_; }
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
    GPT2Config c;
    c.max_seq_len = 1024, c.vocab_size = 50257, c.padded_vocab_size = 50304;
    c.num_layers = c.num_heads = 12;
    c.channels = 768;
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
    // what moves a tensor is slower than what computes it
    for (StreamRoof& roof : p.roofs) { roof.bytes_per_s = 1e9; }
    CHECK(floors_of(p)[(int)Part::kAttentionForward].ms ==
          doctest::Approx(p.work.attention.forward_bytes * 1e-6));

    p.recording = analyse(three_steps().records);
    p.step_ms = 200;
    p.steps = 40;
    CHECK(profile_table(p).find("S = sum of floors / median step = ") != std::string::npos);
    JsonValue json = parse_json(profile_json(p), "profile");
    REQUIRE(json_get<double>(json, "S") != nullptr);
    CHECK(*json_get<double>(json, "S") == doctest::Approx(sum_of_floors(floors_of(p)) / 200).epsilon(1e-3));
    CHECK(json_find(&json, "parts")->size() == kParts);
}

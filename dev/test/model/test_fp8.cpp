// --fp8 on the CPU: the model rounds where the reference model does, scales follow from the maxima of the steps before, and a
// run goes on from its checkpoints with the same bits, in any number of ranks. On a GPU: dev/test/gpu/test_fp8_model.cpp.
#include <set>

#include "dev/test/support/model_tests.h"
#include "dev/test/support/reference_model.h"
#include "dev/test/support/train_program.h"
#include "llmc/model/cpu/fp8_rounding.h"
#include "llmc/model/cpu/gpt2.h"
#include "llmc/model/gpu/fp8_blocks.cuh"
#include "llmc/model/run/plan.h"

using namespace llmc;

namespace {

const GPT2Config kConfig = {64, 100, 128, 2, 2, 32};
const ModelSettings kFp8 = {.fp8 = true};

void take_steps(GPT2Cpu* model, int first, int n) {
    for (int i = first; i < first + n; i++) {
        const Batch batch = random_batch(kConfig, 2, 16, 51 + i);
        step(model, {&batch, 1}, {.step = i, .lr = 1e-2, .weight_decay = 0.1, .clip = 1});
    }
}

}  // namespace

TEST_CASE("fp8: a scale is the power of two that brings the largest just below the format's") {
    for (float largest : {1e-30f, 3e-5f, 0.109375f, 1.75f, 447.9f, 448.0f, 448.1f, 1e6f, 1e30f}) {
        for (float most : {kMostE4m3, kMostE5m2}) {
            const float scale = fp8_scale(most, largest);
            CAPTURE(largest);
            CHECK(std::exp2(std::round(std::log2(scale))) == scale);
            CHECK(std::isnormal(1 / scale));
            const bool in_reach = largest > 1e-25f && largest < 1e25f;
            CHECK((!in_reach || (largest * scale <= most && largest * scale * 2 > most)));
        }
    }
}

// The CPU's model and the reference are fp32 and double, and round alike but where that is a tie's other side: rare.
TEST_CASE("fp8: every gradient is that of the reference which rounds alike") {
    GPT2Cpu model(kConfig, 2, 16, kFp8);
    ReferenceModel<double> rounded(kConfig, 2, 16, Rounding::kFp8), plain(kConfig, 2, 16);
    for (auto* reference : {&rounded, &plain}) { fill_lively(reference, 31); }
    copy_states(&model, rounded);
    const std::vector<Batch> batches = {random_batch(kConfig, 2, 16, 3), random_batch(kConfig, 1, 16, 4)};
    const double loss = model.forward_backward(batches), expected = rounded.forward_backward(batches);
    plain.forward_backward(batches);
    CHECK(std::fabs(loss - expected) < 1e-4);
    check_fp8_gradients(model, rounded, plain, 0.05);
}

TEST_CASE("fp8: scales follow from the largest of sixteen steps") {
    Fp8Rounding fp8(kConfig, 32);
    const int64_t place = fp8_place(kConfig, Fp8Role::kInput, kFcw, 1);
    const auto round_one = [&](float x, bool raise = true) {
        return *fp8.rounded(Fp8Role::kInput, kFcw, 1, {&x, 1}, raise);
    };
    CHECK(round_one(1000) == 56);  // nothing is known: as far as the first scale reaches
    Fp8Saturated found = fp8.end_step(nullptr);
    CHECK(found.tensors == 1);
    CHECK(found.first == place);
    CHECK(fp8_tensor_name(kConfig, found.first) == "input of fcw in layer 1");
    CHECK(round_one(1000) == 1024);
    CHECK(round_one(1700) == 1664);
    CHECK(round_one(5000, false) == 1792);  // what an evaluation sees does not count
    CHECK(fp8.end_step(nullptr).tensors == 0);
    CHECK(fp8.maxima()[(size_t)place * kFp8History] == 1700);
    CHECK(fp8.maxima()[(size_t)place * kFp8History + 1] == 1000);
    for (int i = 0; i < kFp8History - 1; i++) {
        round_one(i == 3 ? INFINITY : 1);  // a number that is not finite leaves the step before's
        round_one(NAN);
        fp8.end_step(nullptr);
        CHECK(round_one(1.01f, false) == 1);  // still the scale of 1700
    }
    round_one(1);
    fp8.end_step(nullptr);
    CHECK(round_one(1.01f, false) == 1);
    CHECK(round_one(1.99f, false) == 1.75f);  // the largest that is left, 1, has room for less than 2
}

TEST_CASE_FIXTURE(InFolder, "fp8: a checkpoint goes on with the same bits, an evaluation changes nothing") {
    GPT2Cpu whole(kConfig, 2, 16, kFp8), before(kConfig, 2, 16, kFp8);
    for (GPT2Cpu* model : {&whole, &before}) { model->init(5); }
    take_steps(&whole, 0, 5);
    before.evaluate(random_batch(kConfig, 2, 9, 3));
    take_steps(&before, 0, 3);
    RunRecord record = record_of(3, 3, 5);
    record.state.fp8 = true;
    save_checkpoint(folder.path(), kConfig, record, reader(before));
    const Checkpoint saved(folder / "step_00000003");
    CHECK(saved.record().state.fp8);
    GPT2Cpu after(kConfig, 2, 16, kFp8), plain(kConfig, 2, 16);
    for (GPT2Cpu* model : {&after, &plain}) {
        model->set_updates(3);
        load_checkpoint(saved, writer(model));
    }
    CHECK(maxima_of(after) == maxima_of(before));
    CHECK_FALSE(plain.holds(State::kFp8Maxima, 0));
    after.evaluate(random_batch(kConfig, 1, 5, 4));
    take_steps(&after, 3, 2);
    check_same_state("resumed", after, whole);
    CHECK(maxima_of(after) == maxima_of(whole));
}

TEST_CASE_FIXTURE(InFolder, "fp8: maxima that cannot be are refused") {
    GPT2Cpu model(kConfig, 2, 16, kFp8);
    model.init(5);
    std::vector<float> maxima((size_t)fp8_maxima(kConfig), 1.0f);
    RunRecord record = record_of(3, 3, 5);
    record.state.fp8 = true;
    for (float bad : {-1.0f, NAN, INFINITY}) {
        maxima[17] = bad;
        model.load(State::kFp8Maxima, 0, 0, maxima);
        check_error([&] { save_checkpoint(folder.path(), kConfig, record, reader(model)); }, kExitDiverged,
                    {"maxima of FP8"});
    }
    CHECK(newest_step(folder.path()).empty());
}

TEST_CASE("fp8: a run goes on without it and with it, and says so; ranks give the same bits") {
    Runs runs(
        "--channels 32 --layers 2 --heads 2 --seq-len 12 --batch 2 --sample-every 0 --val-every 0 --quiet");
    runs.train("whole", "--fp8 --steps 4");
    runs.train("part", "--fp8 --steps 4 --save-every 2");
    runs.train("resumed", "--fp8 --steps 4 --resume " + runs.step("part", 2));
    CHECK(same_files(runs / "resumed/model.bin", runs / "whole/model.bin"));
    check_run(runs.run("plain", "--steps 4 --save-every 2 --resume " + runs.step("part", 2)), kExitDone,
              {"fp8 was true, is false"});
    CHECK_FALSE(same_files(runs / "plain/model.bin", runs / "whole/model.bin"));
    check_run(runs.run("back", "--fp8 --steps 6 --resume " + runs.step("plain", 4)), kExitDone,
              {"fp8 was false, is true"});
    for (const std::string ranks : {"2", "4"}) {
        runs.train("ranks" + ranks, "--fp8 --steps 3 --total-batch 96 --reduce-groups 4 --ranks " + ranks);
    }
    runs.check_same("ranks4", "ranks2");
}

// At this rate activations and gradients grow beyond what the scales of the steps before leave room for.
TEST_CASE("fp8: a step's line counts the tensors beyond their range, an event names each of them once") {
    Runs runs(
        "--channels 32 --layers 2 --heads 2 --seq-len 12 --batch 2 --sample-every 0 --val-every 0 --quiet");
    runs.train("wild", "--fp8 --steps 40 --lr 0.3");
    int counted = 0;
    for (const Json& line : read_log(runs / "wild")) { counted += line.contains("saturated"); }
    const Words events = lines_with(read_bytes(runs / "wild/log.jsonl"), R"("event":"saturated")");
    std::set<std::string> named;
    for (const std::string& event : events) { named.insert(Json::parse(event)["text"]); }
    CHECK(events.size() > 0);
    CHECK(named.size() == events.size());
    CHECK(counted > (int)events.size());
}

namespace {

struct Counted {  // Arena of llmc/cuda/resources.cuh, without a block
    int64_t bytes = 0;
    template <typename T>
    T* take(int64_t n) {
        bytes += (n * (int64_t)sizeof(T) + 255) / 256 * 256;
        return nullptr;
    }
    int64_t used() const { return bytes; }
};

}  // namespace

// 774M; a block has matrices of 3, 1, 4 and 4 times C x C, each twice; for backward a layer's three inputs are kept, beside
// rows in which layers take turns: 4 C three times, and C
TEST_CASE("fp8: what is taken on a GPU for weights and for the rest, and the plan's lines of it") {
    const GPT2Config c{1024, 50257, 50304, 36, 20, 1280};
    const int64_t N = 16 * 1024, C = c.channels,
                  scales = 4 * 3 * 36 * 4 * (1 + kFp8History + 1 + kFp8Inverse);
    for (Recompute recompute : {Recompute::kNone, Recompute::kBlock}) {
        Counted arena;
        const Fp8Memory memory(c, N, {.recompute = recompute, .fp8 = true}, arena);
        CHECK(memory.weight_bytes == 36 * 12 * C * C * 2);
        const int64_t kept = recompute == Recompute::kBlock ? 1 : 36;
        CHECK(std::abs(arena.bytes - memory.weight_bytes - (3 * kept + 13) * N * C - scales) < 4 * 256);
    }
    TempFolder folder;
    write_tiny_data(folder.path());
    RunPlan plan;
    plan.options.train_data = folder / "train.bin", plan.options.seq_len = 12;
    const DataLoader data(plan.options.train_data, 12, 1, false);
    auto text = [&](MemoryPlan m) { return describe_run(plan, data, nullptr, m, Device{"a GPU", 0, ""}); };
    CHECK_FALSE(contains(text({}), "FP8"));
    const std::string less = text({.fp8_weights = (int64_t)3 << 30, .fp8_saved = (int64_t)5 << 30});
    CHECK(contains(less, "FP8        | weights 3.00 GiB, in both orders, among the activations\n"));
    CHECK(contains(less, "           | the other activations 5.00 GiB less than without --fp8\n"));
    CHECK(contains(text({.fp8_weights = 1, .fp8_saved = -((int64_t)1 << 30)}),
                   "activations 1.00 GiB more than"));
}

// The time of a step, as it is logged: from the end of the step before to its own end, whenever the trainer
// comes to look.
#include <chrono>
#include <thread>

#include <doctest/doctest.h>

#include "dev/test/support/test_options.h"
#include "dev/test/support/train_program.h"
#include "llmc/model/cpu/gpt2.h"
#include "llmc/model/run/trainer.h"

using namespace llmc;

namespace {

constexpr double kStepMs = 20;

// What a GPU is to the trainer when a step fills its queue: enqueue_step() waits, and the result of the step
// before is read when most of the next is done, too.
class LateModel : public GPT2Cpu {
public:
    using GPT2Cpu::GPT2Cpu;
    bool enqueue_step(std::span<const Batch> batches, const StepParams& params) override {
        std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(kStepMs));
        queued_++;
        finished_ = false;
        return GPT2Cpu::enqueue_step(batches, params);
    }
    std::optional<StepResult> poll() override {
        if (queued_ == 0 || (queued_ == 1 && !finished_)) { return std::nullopt; }
        queued_--;
        return GPT2Cpu::poll();
    }
    void finish() override { finished_ = true; }

private:
    int queued_ = 0;
    bool finished_ = false;
};

}  // namespace

TEST_CASE("step times: every step has its own, the last one and those before a pause too") {
    TempFolder folder;
    write_tiny_data(folder.path());
    const std::string more = "--steps 6 --val-every 3 --sample-every 0 --quiet --out " + folder / "run";
    auto before = std::chrono::steady_clock::now();
    const Options options = parse(tiny_run(folder.path(), more));
    Comm alone;
    printed_by([&] {
        CHECK(train_in_rank(
                  options, [](const Options&) { return factory_of<LateModel>(); }, alone) == kExitDone);
    });
    double all = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - before).count();
    double sum = 0;
    for (const Json& line : read_log(folder / "run", true)) {
        if (!line.contains("ms")) { continue; }
        double ms = line["ms"];
        CAPTURE(line["step"].get<int>());
        CHECK(ms >= kStepMs);
        CHECK(line["tokens_per_s"].get<double>() <= 4 * 12 / kStepMs * 1e3);
        sum += ms;
    }
    CHECK(sum >= 6 * kStepMs);
    CHECK(sum <= all);
}

TEST_CASE("step times: what is left is told by the last half minute, and at first by all steps") {
    RunPlan plan;
    plan.steps = 10000;
    plan.windows_per_epoch = 1;
    plan.config.vocab_size = 257;
    StepClock clock;
    clock.restart();
    StepResult r{};
    r.done = std::chrono::steady_clock::now();
    const auto left = [&](double seconds) {  // per step
        r.done += std::chrono::microseconds((int64_t)(seconds * 1e6));
        const double all = clock.numbers(r, plan, 1, 0, 0).seconds_left;
        return all / (double)(plan.steps - ++r.step);
    };
    left(1);
    left(2);
    CHECK(left(3) == doctest::Approx(2).epsilon(0.01));
    for (int k = 0; k < 600; k++) { left(1); }
    CHECK(left(1) == doctest::Approx(1).epsilon(0.01));
    for (int k = 0; k < 1200; k++) { left(0.1); }  // two minutes: a fiftieth is left of the second
    CHECK(left(0.1) < 0.13);
}

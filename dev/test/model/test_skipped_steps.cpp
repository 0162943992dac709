// Steps that are skipped: loss or gradient is not finite, or an outlier. Nothing is updated or written of them, and a
// run of nothing else ends with exit code 5, however often it is resumed.
#include <numeric>

#include "dev/test/support/any_model.h"
#include "dev/test/support/train_program.h"
#include "llmc/host/log/run_log.h"
#include "llmc/host/tokens/dataloader.h"
#include "llmc/model/cpu/gpt2.h"
#include "llmc/model/eval/validation.h"
#include "llmc/model/run/trainer.h"

using namespace llmc;

namespace {

const GPT2Config kConfig{12, 257, 320, 2, 2, 16};  // of tiny_run

// a model file with one other number
void write_model_with(const std::string& path, int tensor, int64_t at, float value) {
    GPT2Cpu model(kConfig, 1, 12);
    model.init(11);
    write_model_file(path, kConfig, kModelFp32, reader(model));
    int64_t before = 0;
    for (int t = 0; t < tensor; t++) { before += tensor_total(kConfig, t); }
    std::string bytes = read_bytes(path);
    std::memcpy(bytes.data() + 1024 + (before + at) * 4, &value, 4);
    write_bytes(path, bytes);
}

struct DivergingRuns : Runs {
    DivergingRuns() : Runs("--sample-every 0 --quiet") {}

    // all that is saved can be loaded, which checks every number
    void check_saved_is_finite() const {
        for (const std::string& name : names_below(*this / "run", "step_")) {
            GPT2Cpu model(kConfig, 1, 2);
            Error error =
                error_of([&] { load_checkpoint(Checkpoint(*this / "run/" + name), writer(&model)); });
            CHECK_MESSAGE(error.exit_code == kExitDone, error.what());
        }
    }
};

constexpr float kNone = std::numeric_limits<float>::infinity();
constexpr int kRareRows = 12, kSeqLen = 12, kSteps = 420;

// Learnable documents, in which some rows of other bytes are hidden that no model has seen before.
struct OutlierRuns : Runs {
    OutlierRuns()
        : Runs(
              "--val-data none --layers 1 --heads 1 --batch 1 --lr 0.01 --warmup 0 --final-lr-fraction 1 "
              "--sample-every 0 --quiet") {
        std::vector<uint16_t> tokens = learnable_tokens(150, 3, 1);
        for (int row = 0; row < kRareRows; row++) {
            for (int i = 0; i < kSeqLen; i++) {
                tokens[tokens.size() / kRareRows * (size_t)row + (size_t)i] =
                    (uint16_t)(130 + 7 * row + 3 * i % 50);
            }
        }
        write_token_shard(folder / "train.bin", tokens, 257);
    }
    // the steps, counted from 1, that were skipped as outliers
    std::vector<int64_t> skipped(const std::string& out) const {
        std::vector<int64_t> steps;
        for (const std::string& text : lines_with(read_bytes(folder / (out + "/log.jsonl")), "\"skip\"")) {
            const Json line = Json::parse(text);
            if (line.value("event", "") != "skip") { continue; }
            CHECK(line["text"] == "loss or gradient norm was an outlier");
            steps.push_back(line["step"]);
        }
        return steps;
    }
};

}  // namespace

TEST_CASE("not finite: a model file is refused, whatever the tensor") {
    const DivergingRuns r;
    const std::tuple<int, int64_t, float, const char*> rows[] = {
        // a padding row and a position that no step uses, too
        {kWte, 3, NAN, "wte[3] = nan"},
        {kWte, 257 * 16 + 3, kNone, "wte[4115] = inf"},
        {kWpe, 11 * 16 + 1, -kNone, "wpe[177] = -inf"},
        {kQkvw, 768 + 5, NAN, "qkvw[773] = nan"},
        {kLnfb, 15, NAN, "lnfb[15] = nan"}};
    for (const auto& [tensor, at, value, says] : rows) {
        write_model_with(r / "bad.bin", tensor, at, value);
        check_error([&] { load_model(ModelFile(r / "bad.bin"), [](auto&&...) {}); }, kExitBadInput,
                    {r / "bad.bin", says});
    }
    check_run(r.run("run", "--steps 3 --model " + r / "bad.bin"), kExitBadInput,
              {r / "bad.bin", "lnfb[15] = nan"});
    CHECK(names_below(r / "run").empty());
}

TEST_CASE("not finite: ten skipped steps in a row end the run, over resumes too") {
    const DivergingRuns r;
    write_model_with(r / "huge.bin", kWte, 3, 3e38f);  // token 0 never occurs, but has its logit
    const std::string huge = " --val-every 0 --model " + r / "huge.bin";
    check_run(r.run("run", "--steps 30" + huge), kExitDiverged,
              {"not finite 10 times in a row", "There is no checkpoint"});
    std::vector<Json> log = read_log(r / "run");
    CHECK(log.size() == 10);
    for (const Json& line : log) { CHECK(line["train_loss"].is_null()); }
    CHECK(names_below(r / "run") == Words{"config.toml", "log.jsonl", "report.html"});

    fs::remove_all(r / "run");
    check_run(r.run("run", "--steps 6" + huge), kExitDiverged, {"last step was skipped"});
    check_run(r.run("run", "--steps 30 --val-every 0 --resume auto"), kExitDiverged,
              {"The newest checkpoint is " + r.step("run", 6)});
    CHECK(read_log(r / "run").back()["step"] == 10);
    r.check_saved_is_finite();
}

TEST_CASE("not finite: a run that diverges leaves finite checkpoints only") {
    const DivergingRuns r;
    for (const std::string clip : {"0", "1"}) {
        fs::remove_all(r / "run");
        check_run(r.run("run", "--steps 120 --save-every 1 --lr 10 --weight-decay 10 --clip " + clip),
                  kExitDiverged, {"The newest checkpoint is"});
        CHECK(names_below(r / "run").size() > 3);
        r.check_saved_is_finite();
        CHECK_FALSE(fs::exists(r / "run/model.bin"));
    }
}

TEST_CASE("not finite: a loss that explodes, though it stays finite, ends with exit code 5 and is said") {
    const DivergingRuns r;
    const ProgramRun run =
        r.run("run", "--steps 40 --lr 10 --clip 0 --warmup 0 --final-lr-fraction 1 --val-every 0");
    float loss = 0;  // what nine digits stand for
    for (const Json& line : read_log(r / "run")) { loss = line.value("train_loss", loss); }
    CHECK(loss > 2 * std::log(257.0));
    // that checkpoint holds finite numbers, and is not good for that
    check_run(run, kExitDiverged,
              {fmt::format("the last training loss is {:.4f}: a new model has 5.5491", (double)loss),
               "The newest checkpoint is " + r.step("run", 40)});
    CHECK_MESSAGE(!contains(run.err, "good"), run.err);
}

TEST_CASE("not finite: the screen shows a nan without its sign") {
    struct Diverged : GPT2Cpu {
        Diverged() : GPT2Cpu(tiny_config(), 1, 2) {}
        std::vector<float> losses = {};
        Evaluation evaluate(const Batch& batch) override {
            losses.assign(batch.targets.size(), -NAN);
            return {losses, {}};
        }
    } model;
    TempFolder folder;
    write_tiny_data(folder.path());
    Options o;
    o.val_data = folder / "val.bin";
    o.seq_len = 12;
    Validator validator(o, 257, 256);
    Comm alone;
    CHECK(validator.short_text(validator.loss(model, 4, alone)) == "val loss nan");
    RunPlan plan;
    plan.windows_per_epoch = 1;
    StepResult r{};
    r.loss = r.grad_norm = -NAN;
    const std::string text = step_text(StepClock().numbers(r, plan, 12, 0, 0), 0);
    CHECK_MESSAGE(contains(text, "loss nan | norm nan |"), text);
}

// ---- outliers ----------------------------------------------------------------------------------

TEST_CASE("outliers: what lies too many standard deviations above the mean of the last steps") {
    OutlierWindow window;
    std::vector<float> losses;
    for (int64_t step = 0; step < 200; step++) {
        const float loss = 3.0f + (float)(step * 37 % 101) / 100;
        // of the steps that were not skipped, two before this one and earlier
        if (losses.size() < OutlierWindow::kSteps + 1) {
            CHECK(window.largest(&AcceptedStep::loss, 4, step) == kNone);
        } else {
            const auto end = losses.end() - 1, begin = end - OutlierWindow::kSteps;
            const double mean = std::accumulate(begin, end, 0.0) / OutlierWindow::kSteps;
            double squares = 0;
            for (auto at = begin; at < end; at++) { squares += (*at - mean) * (*at - mean); }
            const double expected = mean + 4 * std::sqrt(squares / OutlierWindow::kSteps);
            CHECK(window.largest(&AcceptedStep::loss, 4, step) == doctest::Approx(expected).epsilon(1e-6));
            CHECK(window.largest(&AcceptedStep::loss, 0, step) == kNone);
            CHECK(window.largest(&AcceptedStep::norm, 4, step) == kNone);  // all norms are the same
        }
        window.add({step, loss, 1.5f});
        losses.push_back(loss);
        CHECK(window.steps().size() == std::min(losses.size(), OutlierWindow::kMost));
        CHECK(window.skipped(step) == 0);
    }
    CHECK(window.skipped(207) == 8);  // the steps 200 to 207
    // the result of the step just before does not count, that of an earlier one does
    OutlierWindow other = window;
    other.add({200, 1000, 1.5f});
    const float before = window.largest(&AcceptedStep::loss, 4, 201);
    CHECK(other.largest(&AcceptedStep::loss, 4, 201) == before);
    CHECK(other.largest(&AcceptedStep::loss, 4, 202) > 100);
}

TEST_CASE("outliers: a step that is one updates nothing") {
    for (bool muon : {false, true}) {
        GPT2Cpu model(tiny_config(), 2, 4, {.muon = muon}), untouched(tiny_config(), 2, 4, {.muon = muon});
        model.init(1);
        untouched.init(1);
        const Batch batch = random_batch(tiny_config(), 2, 4, 5);
        auto with = [&](float loss, float norm) {
            return step(&model, {&batch, 1}, {.lr = 0.01, .largest_loss = loss, .largest_norm = norm});
        };
        const StepResult skipped = with(0.5f, kNone);
        CHECK(skipped.skipped);
        CHECK(skipped.loss > 0.5f);
        CHECK(with(kNone, skipped.grad_norm / 2).skipped);
        CHECK(model.updates() == 0);
        check_same_state("skipped", model, untouched);
        CHECK_FALSE(with(skipped.loss, skipped.grad_norm).skipped);  // as much as is allowed
        CHECK(model.updates() == 1);
    }
}

TEST_CASE("outliers: a run skips them, and decides as before when it goes on") {
    OutlierRuns r;
    const std::string steps = fmt::format("--steps {} ", kSteps);
    for (const std::string name : {"skip-loss-zscore", "skip-norm-zscore"}) {
        CAPTURE(name);
        const std::string z = "--" + name + " 5 ";
        fs::remove_all(r / "whole");
        r.train("whole", steps + z);
        const std::vector<int64_t> skipped = r.skipped("whole");
        REQUIRE_FALSE(skipped.empty());
        CHECK(skipped.front() > (int64_t)OutlierWindow::kSteps + 1);
        // from before, at and behind an outlier, and where the window has just filled
        const auto first = (int)skipped.front();
        for (int at : {60, 130, first - 2, first - 1, first, first + 1}) {
            CAPTURE(at);
            fs::remove_all(r / "part");
            r.train("part", fmt::format("--steps {} ", at) + z);
            r.train("part", steps + z + "--resume auto");
            CHECK(r.skipped("part") == skipped);
            r.check_same("part", "whole");
        }
        const TrainingState state = Checkpoint(r.step("whole", kSteps)).record().state;
        CHECK(state.updates == kSteps - (int64_t)skipped.size());
        check_run(r.run("part", fmt::format("--steps {} --resume auto --{} 0", kSteps + 1, name)), kExitDone,
                  {name + " was 5, is 0 from here on\n"});
    }
    fs::remove_all(r / "part");
    r.train("part", steps);
    CHECK_FALSE(same_files(r / "part/model.bin", r / "whole/model.bin"));
}

TEST_CASE("outliers: ten in a row end the run, over resumes too") {
    OutlierRuns r;
    const std::string z = "--skip-loss-zscore 4 --save-every 3 ";
    const int newest = 201;
    r.train("run", z + "--steps 201");
    std::vector<uint16_t> others;
    for (int i = 0; i < 3000; i++) { others.push_back((uint16_t)(130 + i * 31 % 120)); }
    write_token_shard(r / "train.bin", others, 257);
    for (int start : {newest, newest + 9}) {
        const ProgramRun run =
            r.run("run", z + "--steps 400 --resume auto" + (start == newest ? " --new-data" : ""));
        check_run(run, kExitDiverged, {"an outlier 10 times in a row"});
        CHECK_MESSAGE(contains(run.out, r.step("run", start)), run.out);
        CHECK(read_log(r / "run").back()["step"] == newest + 10);
    }
    // a last step that was an outlier is no failure
    fs::remove_all(r.step("run", newest + 9));
    r.train("run", z + "--steps 208 --resume auto");
}

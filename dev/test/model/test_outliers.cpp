// Steps whose loss or gradient norm is an outlier: what is one, that nothing is updated then, and that a run
// that goes on from a checkpoint decides as one that was never stopped.
#include <algorithm>
#include <numeric>

#include <doctest/doctest.h>

#include "dev/test/support/any_model.h"
#include "dev/test/support/train_program.h"
#include "llmc/host/tokens/dataloader.h"
#include "llmc/model/cpu/gpt2.h"
#include "llmc/model/formats/checkpoint.h"

using namespace llmc;
namespace fs = std::filesystem;

namespace {

constexpr float kNone = std::numeric_limits<float>::infinity();
constexpr int kRareRows = 12, kSeqLen = 12, kSteps = 420;

// Learnable documents, in which some rows of other bytes are hidden that no model has seen before.
void write_data_with_outliers(const std::string& folder) {
    std::vector<uint16_t> tokens = learnable_tokens(150, 3, 1);
    for (int row = 0; row < kRareRows; row++) {
        for (int i = 0; i < kSeqLen; i++) {
            tokens[(size_t)(tokens.size() / kRareRows * row + i)] = (uint16_t)(130 + 7 * row + 3 * i % 50);
        }
    }
    write_token_shard(folder + "/train.bin", tokens, 257);
}

struct OutlierRuns {
    TempFolder folder;
    OutlierRuns() { write_data_with_outliers(folder.path()); }

    ProgramRun train(const std::string& out, int steps, const std::string& more, int exit_code = kExitDone) {
        Words options = words(
            fmt::format(
                "--train-data {}/train.bin --val-data none --layers 1 --heads 1 --channels 16 --batch 1 "
                "--seq-len {} --lr 0.01 --warmup 0 --final-lr-fraction 1 --sample-every 0 --quiet --steps {} "
                "--out {} ",
                folder.path(), kSeqLen, steps, folder / out) +
            more);
        ProgramRun run = run_train(folder.path(), options);
        CHECK_MESSAGE(run.exit_code == exit_code, run.err);
        return run;
    }
    // the steps, counted from 1, that were skipped as outliers
    std::vector<int64_t> skipped(const std::string& out) const {
        std::vector<int64_t> steps;
        std::istringstream in(read_bytes(folder / (out + "/log.jsonl")));
        for (std::string text; std::getline(in, text);) {
            const Json line = Json::parse(text);
            if (line.value("event", "") != "skip") { continue; }
            CHECK(line["text"] == "loss or gradient norm was an outlier");
            steps.push_back(line["step"]);
        }
        return steps;
    }
};

}  // namespace

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
    GPT2Cpu model(tiny_config(), 2, 4), untouched(tiny_config(), 2, 4);
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

TEST_CASE("outliers: a run skips them, and decides as before when it goes on") {
    OutlierRuns r;
    for (const std::string z : {"--skip-loss-zscore 5 ", "--skip-norm-zscore 5 "}) {
        CAPTURE(z);
        fs::remove_all(r.folder / "whole");
        r.train("whole", kSteps, z);
        const std::vector<int64_t> skipped = r.skipped("whole");
        REQUIRE_FALSE(skipped.empty());
        CHECK(skipped.front() > (int64_t)OutlierWindow::kSteps + 1);
        // from before, at and behind an outlier, and where the window has just filled
        const auto first = (int)skipped.front();
        for (int at : {60, 130, first - 2, first - 1, first, first + 1}) {
            CAPTURE(at);
            fs::remove_all(r.folder / "part");
            r.train("part", at, z);
            r.train("part", kSteps, z + "--resume auto");
            CHECK(r.skipped("part") == skipped);
            CHECK((read_log(r.folder / "part") == read_log(r.folder / "whole")));
            CHECK(same_files(r.folder / "part/model.bin", r.folder / "whole/model.bin"));
        }
        const TrainingState state = Checkpoint(checkpoint_name(r.folder / "whole", kSteps)).record().state;
        CHECK(state.updates == kSteps - (int64_t)skipped.size());
        const std::string name = z.substr(2, z.find(' ') - 2);
        ProgramRun other = r.train("part", kSteps + 1, "--resume auto --" + name + " 0");
        CHECK_MESSAGE(other.err.find(name + " was 5, is 0 from here on\n") != std::string::npos, other.err);
    }
    fs::remove_all(r.folder / "part");
    r.train("part", kSteps, "");
    CHECK_FALSE(same_files(r.folder / "part/model.bin", r.folder / "whole/model.bin"));
}

TEST_CASE("outliers: ten in a row end the run, over resumes too") {
    OutlierRuns r;
    const std::string z = "--skip-loss-zscore 4 --save-every 3 ";
    const int newest = 201;
    r.train("run", newest, z);
    std::vector<uint16_t> others;
    for (int i = 0; i < 3000; i++) { others.push_back((uint16_t)(130 + i * 31 % 120)); }
    write_token_shard(r.folder / "train.bin", others, 257);
    std::string more = z + "--resume auto --new-data";
    for (int start : {newest, newest + 9}) {
        ProgramRun run = r.train("run", 400, more, kExitDiverged);
        CHECK_MESSAGE(run.err.find("an outlier 10 times in a row") != std::string::npos, run.err);
        CHECK_MESSAGE(run.out.find(checkpoint_name(r.folder / "run", start)) != std::string::npos, run.out);
        CHECK(read_log(r.folder / "run").back()["step"] == newest + 10);
        more = z + "--resume auto";
    }
    // a last step that was an outlier is no failure
    fs::remove_all(checkpoint_name(r.folder / "run", newest + 9));
    r.train("run", newest + 7, more);
}

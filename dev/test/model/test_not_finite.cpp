// Numbers that are not finite: refused where they are read, never written, and a run that makes them ends
// with exit code 5, however often it was resumed.
#include <bit>
#include <cmath>
#include <limits>

#include <doctest/doctest.h>

#include "dev/test/support/any_model.h"
#include "dev/test/support/train_program.h"
#include "llmc/host/log/run_log.h"
#include "llmc/model/cpu/gpt2.h"
#include "llmc/model/eval/validation.h"
#include "llmc/model/formats/checkpoint.h"
#include "llmc/model/run/trainer.h"

using namespace llmc;
namespace fs = std::filesystem;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

const GPT2Config kConfig{12, 257, 320, 2, 2, 16};  // of tiny_run

GPT2Cpu new_model() {
    GPT2Cpu model(kConfig, 4, 12);
    model.init(11);
    return model;
}

void put(GPT2Cpu* model, State state, int tensor, int64_t at, float value) {
    model->load(state, tensor, at, std::span(&value, 1));
}

// a model file with one other number
void write_model_with(const std::string& path, int tensor, int64_t at, float value) {
    write_model_file(path, kConfig, kModelFp32, reader(new_model()));
    int64_t before = 0;
    for (int t = 0; t < tensor; t++) { before += tensor_total(kConfig, t); }
    std::string bytes = read_bytes(path);
    std::memcpy(bytes.data() + 1024 + (before + at) * 4, &value, 4);
    write_bytes(path, bytes);
}

Words options(const TempFolder& folder, const std::string& more) {
    return words("--train-data " + folder / "train.bin --val-data " + folder / "val.bin --seq-len 12 " +
                 "--sample-every 0 --quiet --out " + folder / "run " + more);
}

// all that is saved can be loaded, which checks every number
void check_saved_is_finite(const std::string& run) {
    for (const std::string& name : names_below(run)) {
        if (!name.starts_with("step_")) { continue; }
        GPT2Cpu model(kConfig, 1, 2);
        Error error = error_of([&] { load_checkpoint(Checkpoint(run + "/" + name), writer(&model)); });
        CHECK_MESSAGE(error.exit_code == kExitDone, error.what());
    }
}

}  // namespace

TEST_CASE("not finite: a model file is refused, whatever the tensor") {
    TempFolder folder;
    write_tiny_data(folder.path());
    struct Row {
        int tensor;
        int64_t at;
        float value;
        const char* says;
    };
    // a padding row and a position that no step uses, too
    const Row rows[] = {{kWte, 3, NAN, "wte[3] = nan"},
                        {kWte, 257 * 16 + 3, kInf, "wte[4115] = inf"},
                        {kWpe, 11 * 16 + 1, -kInf, "wpe[177] = -inf"},
                        {kQkvw, 768 + 5, NAN, "qkvw[773] = nan"},
                        {kLnfb, 15, NAN, "lnfb[15] = nan"}};
    for (const Row& row : rows) {
        write_model_with(folder / "bad.bin", row.tensor, row.at, row.value);
        ProgramRun run = run_train(folder.path(), options(folder, "--steps 3 --model " + folder / "bad.bin"));
        CHECK_MESSAGE(run.exit_code == kExitBadInput, run.err);
        for (const std::string& part : {folder / "bad.bin", std::string(row.says)}) {
            CHECK_MESSAGE(run.err.find(part) != std::string::npos, part, " in ", run.err);
        }
        CHECK(names_below(folder / "run").empty());
    }
}

TEST_CASE("not finite: nothing is written, and what is there stays") {
    TempFolder folder;
    GPT2Cpu good = new_model();
    save_checkpoint(folder.path(), kConfig, record_of(2, 2, 1), reader(good));
    write_model_file(folder / "model.bin", kConfig, kModelFp32, reader(good));
    const std::string before = read_bytes(folder / "model.bin");
    struct Row {
        State state;
        int tensor;
        int64_t at;
        float value;
        const char* says;
    };
    const Row rows[] = {{State::kParameter, kWpe, 7, NAN, "wpe[7] = nan"},
                        {State::kFirstMoment, kFcw, 100, kInf, "fcw[100], first moment = inf"},
                        {State::kSecondMoment, kLnfw, 2, kInf, "lnfw[2], second moment = inf"},
                        {State::kSecondMoment, kLnfw, 2, -1, "lnfw[2], second moment = -1"}};
    for (const Row& row : rows) {
        GPT2Cpu bad = new_model();
        put(&bad, row.state, row.tensor, row.at, row.value);
        for (int64_t step : {2, 4}) {
            check_error(error_of([&] {
                            save_checkpoint(folder.path(), kConfig, record_of(step, step, 1), reader(bad));
                        }),
                        kExitDiverged, {"not written", row.says});
        }
        if (row.state == State::kParameter) {
            check_error(
                error_of([&] { write_model_file(folder / "model.bin", kConfig, kModelFp32, reader(bad)); }),
                kExitDiverged, {folder / "model.bin", row.says});
        }
    }
    // as bf16: two that round to infinity, infinity, NaNs of which the upper half alone would be none
    for (uint32_t bits : {0x7f7f8000u, 0xff7fffffu, 0x7f800000u, 0x7f800001u, 0xffffffffu}) {
        GPT2Cpu bad = new_model();
        put(&bad, State::kParameter, kWte, 0, std::bit_cast<float>(bits));
        check_error(
            error_of([&] { write_model_file(folder / "model.bin", kConfig, kModelBf16, reader(bad)); }),
            kExitDiverged, {"wte[0] = "});
    }
    CHECK((read_bytes(folder / "model.bin") == before));
    CHECK(names_below(folder.path()) == Words{"model.bin", "step_00000002"});
    GPT2Cpu other(kConfig, 1, 2);
    load_checkpoint(Checkpoint(folder / "step_00000002"), writer(&other));
    check_same_state("kept", other, good);
}

TEST_CASE("not finite: a gradient whose square overflows changes nothing") {
    GPT2Cpu model = new_model(), before = new_model();
    for (GPT2Cpu* m : {&model, &before}) {
        for (int64_t i = 0; i < 16; i++) { put(m, State::kParameter, kLnfw, i, 1e21f); }
    }
    Batch batch = random_batch(kConfig, 2, 9, 3);
    StepResult result = step(&model, {&batch, 1}, {.step = 0, .lr = 1e-3, .clip = 0});
    CHECK(std::isfinite(result.loss));
    CHECK(std::isfinite(result.grad_norm));
    CHECK(result.grad_norm > kLongestGradient);
    CHECK(result.skipped);
    check_same_state("skipped", model, before);
    CHECK_FALSE(step(&model, {&batch, 1}, {.step = 0, .lr = 1e-3, .clip = 1}).skipped);
}

TEST_CASE("not finite: ten skipped steps in a row end the run, over resumes too") {
    TempFolder folder;
    write_tiny_data(folder.path());
    write_model_with(folder / "huge.bin", kWte, 3, 3e38f);  // token 0 never occurs, but has its logit
    const Words at_once = options(folder, "--steps 30 --val-every 0 --model " + folder / "huge.bin");
    ProgramRun run = run_train(folder.path(), at_once);
    CHECK(run.exit_code == kExitDiverged);
    for (const char* part : {"not finite 10 times in a row", "There is no checkpoint"}) {
        CHECK_MESSAGE(run.err.find(part) != std::string::npos, run.err);
    }
    std::vector<Json> log = read_log(folder / "run");
    CHECK(log.size() == 10);
    for (const Json& line : log) { CHECK(line["train_loss"].is_null()); }
    CHECK(names_below(folder / "run") == Words{"config.toml", "log.jsonl", "report.html"});

    fs::remove_all(folder / "run");
    run = run_train(folder.path(), options(folder, "--steps 6 --val-every 0 --model " + folder / "huge.bin"));
    CHECK_MESSAGE(run.exit_code == kExitDiverged, run.err);  // the last step was skipped
    CHECK_MESSAGE(run.err.find("last step was skipped") != std::string::npos, run.err);
    run = run_train(folder.path(), options(folder, "--steps 30 --val-every 0 --resume auto"));
    CHECK(run.exit_code == kExitDiverged);
    const std::string named = "The newest checkpoint is " + folder / "run/step_00000006";
    CHECK_MESSAGE(run.err.find(named) != std::string::npos, run.err);
    CHECK(read_log(folder / "run").back()["step"] == 10);
    check_saved_is_finite(folder / "run");
}

TEST_CASE("not finite: a run that diverges leaves finite checkpoints only") {
    TempFolder folder;
    write_tiny_data(folder.path());
    for (const char* clip : {"0", "1"}) {
        fs::remove_all(folder / "run");
        ProgramRun run =
            run_train(folder.path(), options(folder, std::string("--layers 2 --heads 2 --channels 16 "
                                                                 "--steps 120 --save-every 1 --lr 10 "
                                                                 "--weight-decay 10 --clip ") +
                                                         clip));
        CHECK_MESSAGE(run.exit_code == kExitDiverged, run.out, run.err);
        CHECK_MESSAGE(run.err.find("The newest checkpoint is") != std::string::npos, run.err);
        CHECK(names_below(folder / "run").size() > 3);
        check_saved_is_finite(folder / "run");
        CHECK_FALSE(fs::exists(folder / "run/model.bin"));
    }
}

TEST_CASE("not finite: a loss that explodes, though it stays finite, ends with exit code 5 and is said") {
    TempFolder folder;
    write_tiny_data(folder.path());
    const ProgramRun run =
        run_train(folder.path(), options(folder,
                                         "--layers 2 --heads 2 --channels 16 --steps 40 --lr 10 --clip 0 "
                                         "--warmup 0 --final-lr-fraction 1 --val-every 0"));
    CHECK_MESSAGE(run.exit_code == kExitDiverged, run.out, run.err);
    float loss = 0;  // what nine digits stand for
    for (const Json& line : read_log(folder / "run")) { loss = line.value("train_loss", loss); }
    CHECK(loss > 2 * std::log(257.0));
    const std::string said =
        fmt::format("the last training loss is {:.4f}: a new model has 5.5491", (double)loss);
    CHECK_MESSAGE(run.err.find(said) != std::string::npos, run.err);
    // that checkpoint holds finite numbers, and is not good for that
    CHECK_MESSAGE(
        run.err.find("The newest checkpoint is " + folder / "run/step_00000040") != std::string::npos,
        run.err);
    CHECK_MESSAGE(run.err.find("good") == std::string::npos, run.err);
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
    CHECK_MESSAGE(text.find("loss nan | norm nan |") != std::string::npos, text);
}

TEST_CASE("not finite: a checkpoint is refused by tensor and element") {
    TempFolder folder;
    GPT2Cpu good = new_model();
    save_checkpoint(folder.path(), kConfig, record_of(2, 2, 1), reader(good));
    const std::string path = folder / "step_00000002/optimizer.safetensors";
    const float bad = NAN;
    std::string bytes = read_bytes(path);
    const SafetensorsFile file(path);
    std::memcpy(bytes.data() + file.find("first_moment.wte")->begin + 4 * 9, &bad, 4);
    write_bytes(path, bytes);
    std::string why = error_of([&] { Checkpoint checkpoint(folder / "step_00000002"); }).what();
    auto quoted = [&](const char* before) {
        const size_t at = why.find(before) + std::strlen(before);
        return why.substr(at, why.find('"', at) - at);
    };
    std::string manifest = read_bytes(folder / "step_00000002/MANIFEST");
    const std::string found = quoted("found \""), expected = quoted("expected \"");
    write_bytes(folder / "step_00000002/MANIFEST",
                manifest.replace(manifest.find(expected), expected.size(), found));
    GPT2Cpu other(kConfig, 1, 2);
    check_error(error_of([&] { load_checkpoint(Checkpoint(folder / "step_00000002"), writer(&other)); }),
                kExitBadInput, {path, "wte[9], first moment = nan", "earlier"});
}

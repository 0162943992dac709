// Runs with --optimizer muon: what a checkpoint holds, that a run goes on with the same bits, and what is
// refused.
#include <cstring>

#include <doctest/doctest.h>

#include "dev/test/support/any_model.h"
#include "dev/test/support/many_ranks.h"
#include "dev/test/support/train_program.h"
#include "llmc/host/files/safetensors.h"
#include "llmc/model/cpu/gpt2.h"
#include "llmc/model/formats/checkpoint.h"
#include "llmc/model/run/plan.h"

using namespace llmc;

namespace {

constexpr ModelSettings kMuon{.muon = true};

RunRecord muon_record(int64_t step, int64_t updates) {
    RunRecord record = record_of(step, updates, 5);
    record.state.optimizer = Optimizer::kMuon;
    return record;
}

struct Runs {
    TempFolder folder;
    Runs() { write_tiny_data(folder.path()); }
    std::string operator/(const std::string& name) const { return folder / name; }
    ProgramRun run(const std::string& out, const std::string& more) const {
        return run_train(folder.path(),
                         tiny_run(folder.path(),
                                  "--batch 2 --total-batch 48 --lr 0.01 --warmup 2 --schedule constant "
                                  "--weight-decay 0.1 --val-every 3 --sample-every 0 --save-every 4 --out " +
                                      folder / out + " " + more));
    }
    ProgramRun done(const std::string& out, const std::string& more) const {
        ProgramRun r = run(out, more);
        CHECK_MESSAGE(r.exit_code == kExitDone, r.err);
        return r;
    }
    void check_refused(const std::string& out, const std::string& more, const Words& says) const {
        const ProgramRun r = run(out, more);
        CHECK(r.exit_code == kExitUsage);
        // the first that is not refused ends the test: one rank alone would wait minutes for the other
        for (const std::string& word : says) {
            REQUIRE_MESSAGE(r.err.find(word) != std::string::npos, r.err);
        }
    }
};

}  // namespace

TEST_CASE("muon runs: a checkpoint has the moments that there are") {
    TempFolder folder;
    const GPT2Config c = tiny_config();
    GPT2Cpu model(c, 2, 9, kMuon), other(c, 2, 9, kMuon), adamw(c, 2, 9);
    fill_states(&model, 3);
    zero_padding(&model);
    save_checkpoint(folder.path(), c, muon_record(4, 3), reader(model));
    const Checkpoint saved(folder / "step_00000004");
    CHECK(saved.record().state.optimizer == Optimizer::kMuon);
    load_checkpoint(saved, writer(&other));
    check_same_state("loaded", other, model);
    const SafetensorsFile moments(folder / "step_00000004/optimizer.safetensors");
    CHECK(moments.entries().size() == 16 + 12);
    for (int t = 0; t < kNumTensors; t++) {
        const std::string name = kTensors[t].name;
        CHECK(moments.find("first_moment." + name) != nullptr);
        CHECK((moments.find("second_moment." + name) != nullptr) == model.holds(State::kSecondMoment, t));
    }
    std::vector<float> one(1);
    check_error(error_of([&] { saved.read(State::kSecondMoment, kFcw, 0, one); }), kExitUsage,
                {"second moment"});
    const int64_t size = (int64_t)(read_bytes(folder / "step_00000004/model.safetensors").size() +
                                   read_bytes(folder / "step_00000004/optimizer.safetensors").size());
    CHECK(size <= checkpoint_bytes(c, Optimizer::kMuon));
    CHECK(size > checkpoint_bytes(c, Optimizer::kMuon) - (1 << 16));
    CHECK(checkpoint_bytes(c) - checkpoint_bytes(c, Optimizer::kMuon) == 12 * 14 * 14 * 3 * 4);
}

TEST_CASE("muon runs: a record without an optimizer is AdamW's, one with another is refused") {
    const std::string text = to_json(muon_record(4, 3)), line = " \"optimizer\": \"muon\",\n";
    CHECK(parse_run_record(text, "run.json").state.optimizer == Optimizer::kMuon);
    const size_t at = text.find(line);
    REQUIRE(at != std::string::npos);
    CHECK(parse_run_record(std::string(text).erase(at, line.size()), "run.json").state.optimizer ==
          Optimizer::kAdamW);
    for (const char* value : {" \"optimizer\": \"sgd\",\n", " \"optimizer\": 7,\n"}) {
        const std::string other = std::string(text).replace(at, line.size(), value);
        check_error(error_of([&] { parse_run_record(other, "run.json"); }), kExitBadInput,
                    {"run.json", "optimizer"});
    }
}

TEST_CASE("muon runs: the program ends as if it had never stopped") {
    Runs p;
    const std::string muon = "--optimizer muon --steps ";
    const ProgramRun whole = p.done("whole", muon + "8");
    CHECK(whole.out.find("Muon for the blocks' matrices, else AdamW") != std::string::npos);
    CHECK(read_bytes(p / "whole/config.toml").find("optimizer = \"muon\"") != std::string::npos);
    p.done("parts", muon + "4");
    p.done("parts", muon + "8 --resume auto");
    p.done("background",
           muon + "8 --save-mode async");  // from a copy, which has no room for what there is not
    for (const std::string out : {"parts", "background"}) {
        CHECK(read_log(p / out) == read_log(p / "whole"));
        for (const std::string file :
             {"/model.bin", "/step_00000004/optimizer.safetensors", "/step_00000008/model.safetensors",
              "/step_00000008/optimizer.safetensors"}) {
            CHECK_MESSAGE(same_files(p / (out + file), p / ("whole" + file)), out, file);
        }
    }
    p.done("adamw", "--steps 8");
    CHECK_FALSE(same_files(p / "adamw/model.bin", p / "whole/model.bin"));
}

TEST_CASE("muon runs: a checkpoint of another optimizer is refused by name") {
    Runs p;
    p.done("muon", "--optimizer muon --steps 4");
    p.done("adamw", "--steps 4");
    p.check_refused("muon", "--optimizer adamw --steps 8 --resume auto",
                    {"step_00000004 was made with --optimizer muon, not adamw", "Go on with --optimizer muon",
                     "--resume none --model"});
    p.check_refused(
        "adamw", "--optimizer muon --steps 8 --resume auto",
        {"step_00000004 was made with --optimizer adamw, not muon", "Go on with --optimizer adamw"});
    p.done("muon", "--steps 8 --resume auto");  // left out, it is what it was
}

// With 2 ranks a share has several of a layer's matrices, with 4 one of them, and with 6 some ranks have none.
TEST_CASE("muon runs: the same bits in any number of ranks") {
    RunsOfRanks p;
    auto run = [&](const std::string& name, const std::string& more) {
        const ProgramRun r = run_train(
            p.folder.path(), p.options(name,
                                       "--optimizer muon --schedule constant --val-every 2 --sample-every 0 "
                                       "--save-every 2 --weight-decay 0.1 " +
                                           more));
        REQUIRE_MESSAGE(r.exit_code == kExitDone, name, ": ", r.out, r.err);
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

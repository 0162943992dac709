// What a run saves: which checkpoints stay, which one is the best, that writing them while the training goes on changes
// nothing, and that a run that goes on from one ends as if it had never stopped.
#include "dev/test/support/any_model.h"
#include "dev/test/support/test_options.h"
#include "dev/test/support/train_program.h"
#include "llmc/model/cpu/gpt2.h"
#include "llmc/model/run/saver.h"

using namespace llmc;

namespace {

const Descent kLine = {{"0123456789abcdef", 0}};

RunRecord record_at(int64_t step) {
    RunRecord record = record_of(step, step, 1);
    record.descent = kLine;
    return record;
}

// a run of a tiny model that saves when told to
struct Saving {
    TempFolder folder, log_folder;
    RunPlan plan;
    Options& options = plan.options;
    SavePlan saves;
    Screen line{true, 1};
    RunJournal journal{log_folder.path(), -1, log_start(kLine, 0)};
    GPT2Cpu model{tiny_config(), 2, 9};
    int locks = 0;
    bool other_data = false;  // it is validated on
    std::optional<RunSaver> saver;

    Saving() {
        plan.out = folder.path();
        plan.config = tiny_config();
        fill_states(&model, 1);
        zero_padding(&model);
    }
    void start() {
        saver.reset();
        saver.emplace(
            plan, plan.out, other_data ? std::nullopt : plan.record.best, saves,
            [this](std::span<float> memory) {
                locks++;
                CHECK((int64_t)memory.size() == 3 * file_elements(tiny_config()));
                return nullptr;
            },
            &line, &journal);
    }
    std::string save(int64_t step, bool wait = true) {
        return printed_by([&] { saver->save(record_at(step), reader(model), wait); });
    }
    Words steps() const {
        Words names = names_below(folder.path());
        for (std::string& name : names) { name.erase(0, name.find_first_not_of("step_0")); }
        return names;
    }
    RunRecord saved(int64_t step) const {
        return inspect_checkpoint(checkpoint_name(folder.path(), step)).record;
    }
};

struct SavingRuns : Runs {
    SavingRuns() : Runs("--lr 0.01 --warmup 0 --final-lr-fraction 1 --sample-every 0 --quiet") {}
};

}  // namespace

// ---- what stays --------------------------------------------------------------------------------

TEST_CASE("run saver: --keep counts neither majors nor the best") {
    Saving s;
    s.options.keep = 2;
    s.options.keep_major = 30;
    s.options.keep_best = true;
    s.start();
    for (int64_t step = 10; step <= 100; step += 10) {
        if (step == 40) { CHECK(s.saver->validated(40, 1.0)); }
        s.save(step);
    }
    CHECK(s.steps() == Words{"30", "40", "60", "80", "90", "100"});
    CHECK(s.saver->validated(110, 0.5));  // the better one takes its place
    s.save(110);
    CHECK(s.steps() == Words{"30", "60", "80", "90", "100", "110"});
    s.plan.record.best = Validated{110, 0.5};
    s.options.keep = 1;
    s.other_data = true;  // it is no loss to beat any more, but stays until another best is saved
    s.start();
    s.save(130);
    CHECK(s.steps() == Words{"30", "60", "90", "110", "130"});
    CHECK(s.saver->validated(140, 0.9));
    s.save(140);
    CHECK(s.steps() == Words{"30", "60", "90", "130", "140"});
    s.options.keep = 0;  // nothing is deleted
    s.start();
    s.save(150);
    CHECK(s.steps().size() == 6);
}

TEST_CASE("run saver: the best validation loss is in the checkpoint and goes on over resumes") {
    Saving s;
    s.options.keep_best = true;
    s.start();
    CHECK_FALSE(s.saver->validated(1, NAN));
    CHECK_FALSE(s.saver->validated(1, INFINITY));
    CHECK(s.saver->validated(2, 3.0));
    s.save(2);
    CHECK(s.saved(2).val_loss == 3.0);
    CHECK(s.saved(2).best == Validated{2, 3.0});
    CHECK_FALSE(s.saver->validated(4, 3.0));  // not lower
    s.save(4);
    CHECK(s.saved(4).val_loss == 3.0);
    CHECK(s.saved(4).best == Validated{2, 3.0});
    s.save(5);
    CHECK_FALSE(s.saved(5).val_loss.has_value());  // validated a step before
    s.plan.record = s.saved(5);
    s.start();
    CHECK_FALSE(s.saver->validated(6, 3.5));
    CHECK(s.saver->validated(7, 2.5));
    // a save that fails leaves the best as it was, so that the next lower one counts
    write_bytes(checkpoint_name(s.folder.path(), 7), "in the way");
    fs::create_directory(checkpoint_name(s.folder.path(), 7) + kReplaced);
    CHECK(contains(s.save(7), "step 7 | SAVE FAILED"));
    CHECK(s.saver->failed());
    CHECK(s.saver->validated(8, 2.75));
    CHECK(contains(s.save(8), "step 8 | saved " + s.folder.path()));
    CHECK_FALSE(s.saver->failed());
    CHECK(s.saved(8).best == Validated{8, 2.75});
    s.options.keep_best = false;
    s.start();
    CHECK_FALSE(s.saver->validated(9, 1.0));
}

TEST_CASE("run saver: --patience counts each validation after the best once, over resumes, too") {
    Saving s;
    s.options.keep_best = true;
    s.options.patience = 2;
    s.start();
    CHECK(s.saver->validated(1, 3.0));
    CHECK_FALSE(s.saver->validated(2, 3.5));
    s.save(2);
    CHECK(s.saved(2).since_best == 1);
    s.plan.record = s.saved(2);
    s.start();
    s.saver->validated(2, 3.5);  // a run goes on with the validation that it was saved with
    CHECK_FALSE(s.saver->out_of_patience());
    s.saver->validated(3, 3.25);
    CHECK(s.saver->out_of_patience());
    CHECK(s.saver->validated(4, 2.5));  // a better one: it begins anew
    CHECK_FALSE(s.saver->out_of_patience());
    s.other_data = true;  // whose losses do not compare: the first is the best
    s.start();
    CHECK(s.saver->validated(2, 9.0));
    s.saver->validated(3, 9.5);
    CHECK_FALSE(s.saver->out_of_patience());
}

TEST_CASE("run saver: --patience ends all ranks at one step, resumed or not, and --best takes the best") {
    SavingRuns r;
    // what does not learn has its best loss at once
    const std::string patient = "--lr 0 --val-every 3 --keep-best --patience 2 --steps ";
    const ProgramRun run = r.train("run", patient + "30");
    const auto check_ended = [&](const std::string& name, const Words& checkpoints) {
        CAPTURE(name);
        CHECK(names_below(r / name, "step_") == checkpoints);
        const std::string log = read_bytes(r / name + "/log.jsonl"),
                          end = log.substr(log.rfind('\n', log.size() - 2) + 1);
        CHECK(end.starts_with("{\"event\":\"end\",\"step\":9,"));
        CHECK_MESSAGE(contains(end, "; best: " + r.step(name, 3) + ", val loss "), end);
    };
    check_ended("run", {"step_00000003", "step_00000009"});
    const std::string last = run.out.substr(run.out.rfind('\n', run.out.size() - 2) + 1);
    CHECK(last.starts_with("best: " + r.step("run", 3) + ", val loss "));
    CHECK(contains(run.out, "step 9 | ended by --patience 2"));
    const ProgramRun again = r.train("run", patient + "30 --resume auto");  // there is nothing to wait for
    check_ended("run", {"step_00000003", "step_00000009"});
    const ProgramRun each = r.train("each", patient + "30 --save-every 3");
    check_ended("each", {"step_00000003", "step_00000006", "step_00000009"});
    r.train("ranks", patient + "30 --ranks 2");
    check_ended("ranks", {"step_00000003", "step_00000009"});
    r.train("parts", patient + "6");
    r.train("parts", patient + "30 --resume auto");
    check_ended("parts", {"step_00000003", "step_00000006", "step_00000009"});

    for (const Words& command : {Words{"generate", r / "run", "--best", "--prompt", "x"},
                                 Words{"eval", r / "run", "--best", "--data", r / "val.bin"}}) {
        CHECK(contains(run_well(r.folder.path(), command).err,
                       "model: " + r.step("run", 3) + "/model.safetensors"));
    }
    r.train("last", "--steps 3");
    const ProgramRun ended = r.train("last", "--steps 3 --resume auto");
    // each step is saved once, and none that is on the disk already
    for (const auto& [one, saves] : {std::pair{&run, 2}, {&again, 0}, {&each, 3}, {&ended, 0}}) {
        CHECK_MESSAGE(lines_with(one->out, "| saved").size() == saves, one->out);
    }
    const auto none = [&](const std::string& name) {
        return run_train(r.folder.path(), {"generate", name, "--best", "--prompt", "x"});
    };
    check_run(none(r / "last"), kExitBadInput,
              {"step_00000003, which names none, expected a checkpoint that"});
    check_run(none(r.step("run", 3)), kExitBadInput, {"expected the folder of a run"});
    check_run(r.run("never", "--keep-best --patience 1 --steps 4 --val-every 0"), kExitUsage,
              {"--patience 1 counts validations", "Give --val-every N"});
}

TEST_CASE("run saver: --keep-best saves what validation found best, and changes no bit") {
    SavingRuns r;
    r.usual += " --save-every 4 --val-every 3";
    r.train("plain", "--steps 12");
    const ProgramRun run = r.train("best", "--steps 12 --keep-best --keep 1");
    r.check_same("best", "plain");
    double lowest = INFINITY;
    int64_t at = 0;
    Words saved;  // by the log: where each step's validation was the lowest so far
    for (const Json& line : read_log(r / "plain")) {
        if (!line.contains("val_loss") || line["val_loss"].get<double>() >= lowest) { continue; }
        lowest = line["val_loss"];
        at = line["step"];
        saved.push_back(fmt::format("step {} | saved", (int)at));
    }
    REQUIRE(saved.size() >= 2);
    for (const std::string& line : saved) { CHECK_MESSAGE(contains(run.out, line), run.out); }
    CHECK(contains(run.out, "step 8 | saved"));
    const RunRecord record = inspect_checkpoint(r.step("best", 12)).record;
    REQUIRE(record.best.has_value());
    CHECK(record.best->step == at);
    CHECK(std::fabs(record.best->loss - lowest) < 1e-6);
    CHECK(record.val_loss.has_value());
    // the same in two parts
    r.train("parts", "--steps 8 --keep-best --keep 1");
    r.train("parts", "--steps 12 --keep-best --keep 1 --resume auto");
    CHECK(names_below(r / "parts") == names_below(r / "best"));
    CHECK(inspect_checkpoint(r.step("parts", 12)).record.best == record.best);
    check_run(r.run("none", "--val-data none --keep-best"), kExitUsage, {"--val-data"});
}

// ---- writing while the training goes on --------------------------------------------------------

TEST_CASE("run saver: in the background it writes what the model was") {
    Saving s;
    s.saves.background = true;
    s.start();
    CHECK(s.locks == 1);
    GPT2Cpu before(tiny_config(), 2, 9), found(tiny_config(), 2, 9);
    copy_states(&before, s.model);
    std::string said = s.save(3, false);
    fill_states(&s.model, 99);
    zero_padding(&s.model);
    said += printed_by([&] { s.saver->wait(); });
    CHECK(contains(said, "step 3 | saved"));
    CHECK(s.saver->newest() == checkpoint_name(s.folder.path(), 3));
    load_checkpoint(Checkpoint(s.saver->newest()), writer(&found));
    check_same_state("written in the background", found, before);
    // one at a time: the second waits for the first
    said = s.save(4, false) + s.save(5, false);
    said += printed_by([&] { s.saver->wait(); });
    check_holds(said, {"step 4 | saved", "step 5 | saved"});
    said = s.save(6, false);
    for (int wait = 0; wait < 5000 && said.empty(); wait++) {
        usleep(1000);
        said = printed_by([&] { s.saver->poll(); });
    }
    CHECK(contains(said, "step 6 | saved"));
    // without a thread, as where a container's processes are counted, it is written at once
    {
        const NoThreads limit;
        said = s.save(7, false);
    }
    check_holds(said, {"step 7 | no thread", "step 7 | saved"});
    // numbers that are not finite are noticed then
    const float bad = NAN;
    s.model.load(State::kSecondMoment, kLnfb, 3, {&bad, 1});
    s.save(8, false);
    check_error([&] { s.saver->wait(); }, kExitDiverged,
                {"lnfb[3], second moment = nan", checkpoint_name(s.folder.path(), 7)});
    CHECK(s.steps() == Words{"3", "4", "5", "6", "7"});
}

TEST_CASE("run saver: --save-mode changes no bit of what is saved") {
    SavingRuns r;
    r.usual += " --steps 9 --save-every 1 --val-every 4";
    const ProgramRun sync = r.train("sync", "--save-mode sync"),
                     async = r.train("async", "--save-mode async");
    CHECK(contains(sync.out, "the training waits: --save-mode sync"));
    CHECK(contains(async.out, "while the training goes on"));
    r.check_same("async", "sync");
    CHECK(names_below(r / "async") == names_below(r / "sync"));
    for (int step = 1; step <= 9; step++) {
        for (const char* file : {"/model.safetensors", "/optimizer.safetensors"}) {
            CHECK(same_files(r.step("async", step) + file, r.step("sync", step) + file));
        }
    }
    fs::remove_all(r / "async/step_00000009");
    fs::remove_all(r / "async/step_00000008");
    r.train("async", "--save-mode async --resume auto --keep 2");
    CHECK(same_files(r / "async/model.bin", r / "sync/model.bin"));
    CHECK(contains(r.train("auto", "").out, "the training waits: on the CPU"));
}

TEST_CASE("run saver: a save in the background that fails is told of, and so is the signal's last one") {
    SavingRuns r;
    r.usual += " --val-every 0 --save-mode async";
    ProgramRun run = finish_train(
        r.folder.path(), start_prepared(r.folder.path(), r.options("full", "--steps 4 --save-every 1"), [] {
            rlimit limit = {10000, 10000};
            setrlimit(RLIMIT_FSIZE, &limit);
        }));
    CHECK(run.exit_code == kExitSaveFailed);
    for (int step : {1, 2, 3, 4}) { check_holds(run.out, {fmt::format("step {} | SAVE FAILED", step)}); }
    const std::string out = r / "stopped";
    const pid_t pid = r.start("stopped", "--steps 100000000 --save-every 5 --keep 2");
    wait_until([&] { return fs::exists(r.step("stopped", 10)); });
    kill(pid, SIGTERM);
    run = finish_train(r.folder.path(), pid);
    CHECK_MESSAGE(run.exit_code == kExitPreempted, run.out, run.err);
    std::string notes;
    const int64_t last = read_log(out).back()["step"];
    CHECK(find_checkpoint(out, &notes) == checkpoint_name(out, last));
    CHECK(notes.empty());
}

// ---- the forecast ------------------------------------------------------------------------------

TEST_CASE("save plan: how many checkpoints will be on the disk") {
    RunPlan plan;
    Options& o = plan.options;
    o.program = Program::kCpu;
    plan.out = "/tmp/not/there/yet";
    plan.config = tiny_config();
    plan.steps = 100;
    auto at_once = [&] { return plan_saves(plan, {}, 0).at_once; };
    CHECK(plan_saves(plan, {}, 0).saves == 1);  // at the end
    o.save_every = 10;
    CHECK(plan_saves(plan, {}, 0).saves == 10);
    o.save_every = 30;
    CHECK(plan_saves(plan, {}, 0).saves == 4);
    o.save_every = 10;
    CHECK(at_once() == 10);
    o.keep = 2;
    CHECK(at_once() == 3);  // the third is complete before the first goes
    o.keep_major = 40;
    CHECK(at_once() == 5);
    o.keep_best = true;
    CHECK(at_once() == 6);
    o.keep = 0;
    o.val_every = 25;
    CHECK(at_once() == 14);
    plan.record.state.step = 95;
    CHECK(plan_saves(plan, {}, 0).saves == 1);
    plan.record.state.step = 100;
    CHECK(plan_saves(plan, {}, 0).saves == 0);

    SavePlan p = plan_saves(plan, {}, 0);
    CHECK(p.free_bytes > 0);
    CHECK(disk_warning(p, "x") == "");
    p.free_bytes = p.disk_bytes() - 1;
    CHECK(contains(disk_warning(p, "x"), "x: the disk has "));
    CHECK(p.copy_bytes == 12 * file_elements(tiny_config()));
    o.save_mode = SaveMode::kAsync;
    CHECK(plan_saves(plan, {}, 0).background);
    check_error([&] { plan_saves(plan, {}, int64_t{1} << 60); }, kExitDevice,
                {"--save-mode async", "Use --save-mode sync"});
    o.save_mode = SaveMode::kAuto;
    CHECK_FALSE(plan_saves(plan, {}, 0).background);
    o.program = Program::kGpu;
    CHECK(plan_saves(plan, {}, 0).background);
    CHECK_FALSE(plan_saves(plan, {}, int64_t{1} << 60).background);
    o.save_mode = SaveMode::kSync;
    CHECK_FALSE(plan_saves(plan, {}, 0).background);
}

TEST_CASE("save plan: a disk that is too small is said before the start") {
    const SavingRuns r;
    const ProgramRun run = r.run("new/run", "--steps 2000000000 --save-every 1 --dry-run");
    check_run(run, kExitDone, {r / "new/run: the disk has "});
    CHECK_MESSAGE(contains(run.out, "disk       | 2,000,000,000 saves x "), run.out);
}

// ---- going on ----------------------------------------------------------------------------------

namespace {

struct ResumedRuns : Runs {
    ResumedRuns()
        : Runs(
              "--batch 2 --total-batch 48 --lr 0.01 --warmup 2 --schedule constant --weight-decay 0.1 "
              "--val-every 3 --sample-every 3 --sample-tokens 5 --save-every 4") {}
    // bit for bit, with the moments that its checkpoints keep
    void check_same_run(const std::string& out) const {
        check_same(out, "whole");
        for (const std::string file :
             {"/step_00000004/optimizer.safetensors", "/step_00000008/model.safetensors",
              "/step_00000008/optimizer.safetensors"}) {
            CHECK_MESSAGE(same_files(*this / (out + file), *this / ("whole" + file)), out, file);
        }
    }
};

}  // namespace

TEST_CASE("resume: the program ends as if it had never stopped") {
    const ResumedRuns r;
    r.train("whole", "--steps 8");
    CHECK(names_below(r / "whole") ==
          Words{"config.toml", "log.jsonl", "model.bin", "report.html", "step_00000004", "step_00000008"});
    CHECK(read_log(r / "whole").size() == 8 + 3);  // validation at 3, 6 and the end

    r.train("parts", "--steps 4");  // ends at 4, and goes on from there
    r.train("parts", "--steps 8 --resume auto");
    r.check_same_run("parts");
    r.train("parts", "--steps 8 --resume auto");  // at its end there is nothing to do
    r.check_same_run("parts");

    copy_folder(r / "whole", r / "killed");  // killed after 8 steps; checkpoint 8 is damaged
    fs::remove(r / "killed/model.bin");
    flip_byte(r.step("killed", 8) + "/optimizer.safetensors", 5000);
    write_bytes(r / "killed/log.jsonl", read_bytes(r / "whole/log.jsonl") + "{\"step\":8,\"tra");
    const ProgramRun run = r.train("killed", "--steps 8 --resume auto");
    check_run(run, kExitDone, {"passed over: " + r.step("killed", 8)});
    CHECK(contains(run.out, r.step("killed", 4)));
    r.check_same_run("killed");

    // into a new folder: its log begins there
    r.train("elsewhere", "--steps 8 --resume " + r.step("whole", 4));
    std::vector<Json> log = read_log(r / "whole");
    log.erase(log.begin(), log.begin() + 5);
    CHECK(read_log(r / "elsewhere") == log);
    CHECK(same_files(r / "elsewhere/model.bin", r / "whole/model.bin"));
}

TEST_CASE("muon runs: the program ends as if it had never stopped") {
    const ResumedRuns r;
    const std::string muon = "--optimizer muon --steps ";
    const ProgramRun whole = r.train("whole", muon + "8");
    CHECK(contains(whole.out, "Muon for the blocks' matrices, else AdamW"));
    CHECK(contains(read_bytes(r / "whole/config.toml"), "optimizer = \"muon\""));
    r.train("parts", muon + "4");
    r.train("parts", muon + "8 --resume auto");
    r.train("background", muon + "8 --save-mode async");  // from a copy, which has no room for what is not
    for (const char* out : {"parts", "background"}) { r.check_same_run(out); }
    r.train("adamw", "--steps 8");
    CHECK_FALSE(same_files(r / "adamw/model.bin", r / "whole/model.bin"));
    // left out, the optimizer is what it was; another's checkpoint is refused
    r.train("whole", "--steps 12 --resume auto");
    check_run(r.run("parts", "--optimizer adamw --steps 12 --resume auto"), kExitUsage,
              {"step_00000008 was made with --optimizer muon, not adamw", "Go on with --optimizer muon",
               "--resume none --model"});
    check_run(r.run("adamw", "--optimizer muon --steps 12 --resume auto"), kExitUsage,
              {"step_00000008 was made with --optimizer adamw, not muon", "Go on with --optimizer adamw"});
}

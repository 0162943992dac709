// Which checkpoint of a run folder a run goes on from, which ones stay, and that nothing is touched where the
// folder cannot be read.
#include <sys/stat.h>
#include <unistd.h>
#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>

#include <doctest/doctest.h>

#include "dev/test/support/any_model.h"
#include "dev/test/support/train_program.h"
#include "llmc/host/log/run_log.h"
#include "llmc/host/options/options.h"
#include "llmc/host/options/table.h"
#include "llmc/host/tokens/dataloader.h"
#include "llmc/model/cpu/gpt2.h"
#include "llmc/model/formats/checkpoint.h"
#include "llmc/model/run/folder.h"

using namespace llmc;
namespace fs = std::filesystem;

namespace {

// a folder with data, and runs in it
struct Runs {
    TempFolder folder;
    Runs() { write_tiny_data(folder.path()); }
    std::string operator/(const std::string& name) const { return folder / name; }

    // a constant learning rate, so that a run of fewer steps begins as a longer one does
    Words options(const std::string& out, int steps, const std::string& more) const {
        const char* lr = more.find("--lr ") == std::string::npos ? "--lr 0.001" : "";
        return tiny_run(folder.path(),
                        fmt::format("--save-every 2 --sample-every 0 --val-every 0 --quiet --warmup 0 "
                                    "--final-lr-fraction 1 --steps {} --out {} {} {}",
                                    steps, folder / out, lr, more));
    }
    ProgramRun train(const std::string& out, int steps, const std::string& more = "") const {
        ProgramRun run = run_train(folder.path(), options(out, steps, more));
        CHECK_MESSAGE(run.exit_code == kExitDone, run.err);
        return run;
    }
    // of a run that is killed after some steps, before its first save: its log
    std::string killed_before_a_save(const std::string& out, const std::string& more) const {
        Words all = options(out, 1000000, more);
        *(std::find(all.begin(), all.end(), "--save-every") + 1) = "0";
        const std::string log = folder / (out + "/log.jsonl"), before = read_bytes(log);
        auto has_begun = [&] {
            const std::string now = read_bytes(log);
            return now != before && now.find("\"step\":25,") != std::string::npos;
        };
        pid_t pid = start_train(folder.path(), all);
        for (int wait = 0; wait < 12000 && !has_begun(); wait++) {
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
        kill(pid, SIGKILL);
        CHECK(finish_train(folder.path(), pid).exit_code == 128 + SIGKILL);
        return read_bytes(log);
    }
    std::string step(const std::string& out, int n) const { return checkpoint_name(folder / out, n); }
    // the program refuses, says these, and no file of the run changes
    void check_refused(const std::string& out, const std::string& more, int exit_code,
                       const Words& says) const {
        std::error_code ignored;
        auto state = [&] {
            std::string all;
            for (const std::string& name : names_below(folder / out)) {
                all += name + "\n";
                if (fs::is_regular_file(folder / (out + "/" + name), ignored)) {
                    all += read_bytes(folder / (out + "/" + name));
                }
            }
            return all;
        };
        const std::string before = state();
        ProgramRun run = run_train(folder.path(), options(out, 8, more));
        CHECK_MESSAGE(run.exit_code == exit_code, run.out, run.err);
        for (const std::string& part : says) {
            CHECK_MESSAGE(run.err.find(part) != std::string::npos, part, " in ", run.err);
        }
        CHECK((state() == before));
    }
};

// a link to itself: neither there nor missing, the same for every user
void make_unreadable(const std::string& path) {
    fs::remove_all(path);
    fs::create_symlink(path, path);
}

bool has_none_of(const std::string& text, const Words& parts) {
    return std::none_of(parts.begin(), parts.end(),
                        [&](const std::string& part) { return text.find(part) != std::string::npos; });
}

}  // namespace

// ---- the line of descent -----------------------------------------------------------------------

TEST_CASE("run folder: auto goes on along the line that the log follows") {
    Runs r;
    // what should come out: 4 steps, then others with another learning rate
    r.train("short", 4);
    r.train("expected", 12, "--lr 0.005 --resume " + r.step("short", 4));
    auto check_expected = [&](const std::string& out) {
        CHECK(same_files(r / (out + "/model.bin"), r / "expected/model.bin"));
        std::vector<Json> log = read_log(r / out), end = read_log(r / "expected");
        REQUIRE(log.size() == 12 + 1);
        for (int64_t k = 0; k < 12; k++) { CHECK(log[(size_t)k]["step"] == k + 1); }
        log.erase(log.begin(), log.begin() + 4);
        CHECK(log == end);
    };
    r.train("run", 20);
    SUBCASE("stopped on the new line") {
        ProgramRun back = r.train("run", 8, "--lr 0.005 --keep 1 --resume " + r.step("run", 4));
        CHECK(contains(back.err, r.step("run", 20) + ": abandoned"));
        CHECK(fs::exists(r.step("run", 20) + ".abandoned"));  // put aside, not deleted
        CHECK_FALSE(fs::exists(r.step("run", 20)));
        CHECK_FALSE(fs::exists(r.step("run", 4)));  // --keep 1 is about this line
        CHECK(fs::exists(r.step("run", 8)));
        ProgramRun on = r.train("run", 12, "--lr 0.005 --resume auto");
        CHECK(contains(on.out, "weights    | " + r.step("run", 8)));
        check_expected("run");
    }
    SUBCASE("killed before the first save of the new line") {
        r.killed_before_a_save("run", "--lr 0.005 --resume " + r.step("run", 4));
        ProgramRun on = r.train("run", 12, "--lr 0.005 --resume auto");
        CHECK(contains(on.out, "weights    | " + r.step("run", 4)));
        check_expected("run");
    }
    SUBCASE("an abandoned one can still be named") {
        r.train("run", 8, "--lr 0.005 --resume " + r.step("run", 4));
        r.train("run", 22, "--resume " + r.step("run", 20) + ".abandoned");
        r.train("whole", 22);
        CHECK(same_files(r / "run/model.bin", r / "whole/model.bin"));
        CHECK(fs::exists(r.step("run", 8) + ".abandoned"));
    }
}

TEST_CASE("run folder: checkpoints of other runs and under other names are not taken") {
    Runs r;
    r.train("run", 4);
    r.train("other", 6, "--seed 7");
    fs::rename(r.step("other", 6), r.step("run", 6));
    copy_folder(r.step("run", 4), r.step("run", 7));
    ProgramRun run = r.train("run", 8, "--resume auto");
    CHECK(contains(run.out, "weights    | " + r.step("run", 4)));
    CHECK(contains(run.err, r.step("run", 6) + ": of another run"));
    CHECK(contains(run.err, r.step("run", 7) + ": its name says step 7, run.json 4"));
    CHECK(fs::exists(r.step("run", 6) + ".foreign"));
    r.train("whole", 8);
    CHECK(same_files(r / "run/model.bin", r / "whole/model.bin"));
}

TEST_CASE("run folder: without a log") {
    Runs r;
    r.train("run", 4);
    fs::remove(r / "run/log.jsonl");
    r.check_refused("run", "", kExitUsage, {"holds a run already", "step_ folders"});
    r.train("whole", 6);
    SUBCASE("the newest counts") {
        r.train("run", 6, "--resume auto");
        CHECK(same_files(r / "run/model.bin", r / "whole/model.bin"));
    }
    SUBCASE("or an emptied one") {
        write_bytes(r / "run/log.jsonl", "");
        const ProgramRun on = r.train("run", 6, "--resume auto");
        CHECK_MESSAGE(contains(on.err, "run/log.jsonl: emptied"), on.err);
        CHECK_FALSE(contains(r.train("run", 7, "--resume auto").err, "emptied"));
    }
    SUBCASE("but not where checkpoints contradict each other") {
        copy_folder(r.step("whole", 6), r.step("run", 6));
        r.check_refused("run", "--resume auto", kExitBadInput,
                        {r.step("run", 6) + " and " + r.step("run", 4), "--resume FOLDER"});
    }
}

TEST_CASE("run folder: a reader finds a model at every moment of a run with --keep 1") {
    TempFolder folder;
    const GPT2Cpu model(tiny_config(), 1, 4);
    RunRecord record = record_of(1, 1, 1);
    record.descent = {{"0123456789abcdef", 0}};
    save_checkpoint(folder.path(), tiny_config(), record, reader(model));
    std::atomic<bool> done = false;
    std::thread run([&] {
        for (int64_t& step = record.state.step; step < 150;) {
            record.state.updates = ++step;
            save_checkpoint(folder.path(), tiny_config(), record, reader(model));
            fs::rename(checkpoint_name(folder.path(), step - 1), folder / "old");
            fs::remove_all(folder / "old");
        }
        done = true;
    });
    int found = 0;
    for (; !done; found++) {
        std::string notes;
        const Error e = error_of([&] { open_model(folder.path(), &notes); });
        CHECK_MESSAGE(e.exit_code == kExitDone, std::string(e.what()));
    }
    run.join();
    CHECK(found > 0);
}

TEST_CASE("run folder: which weights are the newest is told by steps and log, not by the times of files") {
    Runs r;
    auto said = [&](const std::string& run) {
        return run_train(r.folder.path(), {"generate", r / run, "--tokens", "1"}).err;
    };
    const auto old = fs::file_time_type::clock::now() - std::chrono::hours(1);
    r.train("run", 4);
    fs::last_write_time(r / "run/model.bin", old);  // as in a copy whose model.bin came first
    CHECK_FALSE(contains(said("run"), "log.jsonl does not say"));
    Words longer = r.options("run", 1000000, "--resume auto");
    const pid_t pid = start_train(r.folder.path(), longer);
    for (int wait = 0; wait < 12000 && !fs::exists(r.step("run", 6)); wait++) { usleep(5000); }
    kill(pid, SIGKILL);
    finish_train(r.folder.path(), pid);
    fs::last_write_time(r / "run/model.bin", fs::file_time_type::clock::now());  // and here last
    CHECK_MESSAGE(contains(said("run"), "name " + newest_step(r / "run")), said("run"));
}

TEST_CASE("run folder: a log with steps but no checkpoint is not overwritten") {
    Runs r;
    r.train("run", 4);
    for (const char* name : {"step_00000002", "step_00000004"}) {
        fs::remove_all(r / ("run/" + std::string(name)));
    }
    r.check_refused("run", "--resume auto", kExitBadInput, {r / "run", "log.jsonl has steps"});
    r.check_refused("run", "", kExitUsage, {r / "run", "holds a run already"});
    // nor one of a run that went on from elsewhere: to begin from its first step would not do it again
    r.train("other", 4);
    r.killed_before_a_save("away", "--resume " + r.step("other", 4));
    r.check_refused("away", "--resume auto", kExitBadInput,
                    {r / "away", "log.jsonl has steps", "\"resume\""});
    // nor one of format 1, which does not say what was saved
    std::string old = read_bytes(r / "away/log.jsonl");
    old = "{\"step\":0,\"line\":[[\"0123456789abcdef\",0]]}\n" + old.substr(old.find('\n') + 1);
    write_bytes(r / "away/log.jsonl", old);
    r.check_refused("away", "--resume auto", kExitBadInput, {"log.jsonl has steps"});
    // a log without steps, of a start that failed, is in nobody's way
    for (const char* text : {"", "{\"step\":0,\"line\":[[\"0123456789abcdef\",0]]}\n"}) {
        for (const char* resume : {"none", "auto"}) {
            fs::remove_all(r / "run");
            fs::create_directory(r / "run");
            write_bytes(r / "run/log.jsonl", text);
            r.train("run", 2, std::string("--resume ") + resume);
        }
    }
}

TEST_CASE("run folder: a run that ended before its first save begins again with --resume auto") {
    Runs r;
    r.train("whole", 6);
    const std::string first = r.killed_before_a_save("run", "--resume auto");
    r.check_refused("run", "", kExitUsage, {r / "run", "--resume auto"});
    r.check_refused("run", "--resume auto --dry-run", kExitDone, {"its run has saved nothing yet"});
    const ProgramRun none = run_train(r / "", {"generate", r / "run"});
    CHECK_MESSAGE(none.err.ends_with("(--save-every N saves as it goes)\n"), none.err);  // and no empty line
    const std::string second = r.killed_before_a_save("run", "--resume auto");
    write_bytes(r / "run/model.bin", "of a disk that had no room for a checkpoint");
    ProgramRun run = r.train("run", 6, "--resume auto");
    CHECK(contains(run.err, "now " + r / "run/model.bin.unsaved\n"));
    CHECK(read_bytes(r / "run/model.bin.unsaved") == "of a disk that had no room for a checkpoint");
    CHECK(contains(run.err, r / "run: its run has saved nothing yet"));
    CHECK(contains(run.err, "now " + r / "run/log.jsonl.unsaved-2\n"));
    CHECK((read_bytes(r / "run/log.jsonl.unsaved") == first));
    CHECK((read_bytes(r / "run/log.jsonl.unsaved-2") == second));
    CHECK((read_log(r / "run") == read_log(r / "whole")));
    CHECK(same_files(r / "run/model.bin", r / "whole/model.bin"));
}

// ---- --keep ------------------------------------------------------------------------------------

TEST_CASE("run folder: a checkpoint that lies on another disk, behind a symbolic link, is the run's") {
    CHECK(run_folder_of("runs/a/step_00000001") == "runs/a");
    CHECK(run_folder_of("runs/a/step_00000001//") == "runs/a");
    CHECK(run_folder_of("step_00000001") == ".");
    CHECK(run_folder_of(".") == "./..");
    Runs runs;
    const std::string run = runs / "run", away = runs / "disk", step = "/step_00000004";
    REQUIRE(run_train(runs.folder.path(), runs.options("run", 4, "")).exit_code == kExitDone);
    fs::create_directory(away);
    fs::rename(run + step, away + step);
    fs::create_directory_symlink(away + step, run + step);
    write_bytes(away + "/config.toml", "steps = 9\n");  // another run's
    const ProgramRun on = run_train(runs.folder.path(), words("--train-data " + runs / "train.bin" +
                                                              " --val-data none --seq-len 12 --quiet "
                                                              "--resume auto --out " +
                                                              run));
    CHECK_MESSAGE(on.exit_code == kExitDone, on.err);
    CHECK_MESSAGE(on.out.find("| 4 steps = ") != std::string::npos, on.out);
}

TEST_CASE("run folder: a run goes on without the model folder and the tokenizer that it began with") {
    TempFolder folder;
    write_token_shard(folder / "train.bin", std::vector<uint16_t>(400, 7), 457);
    fs::copy("dev/test/fixture/bpe", folder / "bpe", fs::copy_options::recursive);
    const auto train = [&](const std::string& more) {
        return run_train(folder.path(), words(more +
                                              " --val-data none --seq-len 12 --batch 4 --quiet "
                                              "--sample-every 0 --train-data " +
                                              folder / "train.bin"));
    };
    const std::string from = " --model " + folder / "hf" + " --tokenizer " + folder / "bpe";
    REQUIRE(train("--steps 2 --layers 1 --heads 2 --channels 16 --out " + folder / "base").exit_code ==
            kExitDone);
    REQUIRE(run_train(folder.path(), {"export", folder / "base", "--hf", folder / "hf"}).exit_code ==
            kExitDone);
    REQUIRE(train("--steps 4 --save-every 2 --out " + folder / "tuned" + from).exit_code == kExitDone);
    fs::remove_all(folder / "hf");
    fs::remove_all(folder / "bpe");
    const ProgramRun on = train("--config " + folder / "tuned/config.toml" + " --steps 6 --resume auto");
    CHECK_MESSAGE(on.exit_code == kExitDone, on.err);
    CHECK(read_log(folder / "tuned").back()["step"] == 6);
    const ProgramRun first = train("--steps 6 --resume auto --out " + folder / "other" + from);
    CHECK(first.exit_code == kExitUsage);
    CHECK_MESSAGE(first.err.find("--model '" + folder / "hf" + "' is not known") != std::string::npos,
                  first.err);
}

TEST_CASE("run folder: --keep counts what is intact and of this run") {
    Runs r;
    r.train("run", 6);
    flip_byte(r.step("run", 4) + "/optimizer.safetensors", 4000);
    r.train("other", 6, "--seed 7");
    copy_folder(r.step("other", 4), r.step("run", 5));
    ProgramRun run = r.train("run", 8, "--resume auto --keep 3");
    CHECK(contains(run.err,
                   "not counted by --keep: " + r.step("run", 4) + "/optimizer.safetensors is damaged"));
    CHECK(names_below(r / "run") == Words{"config.toml", "log.jsonl", "model.bin", "report.html",
                                          "step_00000002", "step_00000004", "step_00000005.foreign",
                                          "step_00000006", "step_00000008"});
    KnownIntact known;
    const Descent line = descent_of_log(read_bytes(r / "run/log.jsonl"), "log").value();
    remove_old_checkpoints(r / "run/", line, 7, {1}, &known);  // not there: nothing is known to be newer
    CHECK(fs::exists(r.step("run", 2)));
    remove_old_checkpoints(r / "run/", line, 6, {1}, &known);  // a slash at the end
    CHECK_FALSE(fs::exists(r.step("run", 2)));
    CHECK(fs::exists(r.step("run", 6)));
    CHECK(fs::exists(r.step("run", 8)));
}

// ---- what cannot be read -----------------------------------------------------------------------

TEST_CASE("run folder: what cannot be read is no reason to start again or to go back") {
    Runs r;
    r.train("good", 4);
    auto check_unreadable = [&](const std::string& name, const std::string& resume) {
        CAPTURE(name);
        copy_folder(r / "good", r / "run");
        make_unreadable(r / ("run/" + name));
        r.check_refused("run", resume, kExitBadInput, {"cannot read", r / ("run/" + name)});
    };
    for (const char* name : {"log.jsonl", "step_00000004", "step_00000004/MANIFEST", "step_00000004/run.json",
                             "step_00000004/model.safetensors", "step_00000004/optimizer.safetensors"}) {
        check_unreadable(name, "--resume auto");
    }
    check_unreadable("log.jsonl", "");
    fs::remove_all(r / "run");
    make_unreadable(r / "run");
    ProgramRun run = run_train(r.folder.path(), r.options("run", 8, "--resume auto"));
    CHECK_MESSAGE(run.exit_code == kExitBadInput, run.err);
    CHECK(contains(run.err, "cannot read"));
}

TEST_CASE("run folder: an error that passes costs nothing") {
    Runs r;
    r.train("run", 4);
    r.train("whole", 6);
    const std::string path = r.step("run", 4) + "/MANIFEST", manifest = read_bytes(path);
    make_unreadable(path);
    pid_t pid = start_train(r.folder.path(), r.options("run", 6, "--resume auto"));
    std::this_thread::sleep_for(std::chrono::milliseconds(350));
    write_bytes(r / "manifest", manifest);
    fs::rename(r / "manifest", path);
    ProgramRun run = finish_train(r.folder.path(), pid);
    CHECK_MESSAGE(run.exit_code == kExitDone, run.err);
    CHECK(contains(run.out, "weights    | " + r.step("run", 4)));
    CHECK(same_files(r / "run/model.bin", r / "whole/model.bin"));
}

TEST_CASE("run folder: what is no regular file is damage, and nothing waits for it") {
    Runs r;
    r.train("run", 4);
    const std::string path = r.step("run", 4) + "/MANIFEST";
    fs::remove(path);
    REQUIRE(mkfifo(path.c_str(), 0600) == 0);
    ProgramRun run = r.train("run", 6, "--resume auto");
    CHECK(contains(run.err, "passed over: " + path + ": not a regular file"));
    CHECK(fs::exists(r.step("run", 4) + ".damaged"));
}

TEST_CASE("run folder: control characters of files do not reach the terminal") {
    Runs r;
    r.train("run", 4);
    const std::string four = r.step("run", 4), two = r.step("run", 2),
                      evil =
                          "\033[2J\x7f\xc2\x9b"
                          "1m\r";
    write_bytes(four + "/MANIFEST", evil + read_bytes(four + "/MANIFEST"));
    auto check_harmless = [&](const ProgramRun& run) {
        CHECK(has_none_of(run.err + run.out, {"\033", "\x7f", "\xc2\x9b", "\r"}));
        CHECK_MESSAGE(contains(run.err, "\\x1b[2J\\x7f\\xc2\\x9b1m\\x0d"), run.err);
    };
    check_harmless(run_train(r.folder.path(), r.options("run", 6, "--resume " + four)));
    fs::remove(r / "run/model.bin");
    check_harmless(run_train(r.folder.path(), words("generate " + (r / "run") + " --tokens 1")));
    check_harmless(run_train(r.folder.path(), words("export " + (r / "run") + " --hf " + (r / "hf"))));
    check_harmless(run_train(r.folder.path(), words("--seq-len 12 --dry-run --train-data " +
                                                    (r / "train.bin") + " --model " + (r / "run"))));
    check_harmless(r.train("run", 6, "--resume auto"));
    // config.toml has such names as \u001b
    const std::string data = r / ("data" + evil + ".bin"), config = r / "run/config.toml";
    fs::copy(r / "train.bin", data);
    std::string text = read_bytes(config);
    text.replace(text.find("train-data = "),
                 text.find('\n', text.find("train-data")) - text.find("train-data"),
                 "train-data = " + escaped(data));
    write_bytes(config, text);
    const ProgramRun plan = run_train(r.folder.path(), words("--resume auto --dry-run --out " + (r / "run")));
    CHECK_MESSAGE(plan.exit_code == kExitDone, plan.err);
    CHECK(has_none_of(plan.err + plan.out, {"\033", "\x7f", "\xc2\x9b", "\r"}));
}

// ---- the record --------------------------------------------------------------------------------

TEST_CASE("run record: what lies on a line") {
    const Descent none, a = {{"a", 0}}, ab = {{"a", 0}, {"b", 10}}, ac = {{"a", 0}, {"c", 10}},
                        abd = {{"a", 0}, {"b", 10}, {"d", 30}}, x = {{"x", 0}};
    CHECK(lies_on(none, none, 5));
    CHECK(lies_on(a, a, 100));
    CHECK(lies_on(ab, a, 10));  // where b began
    CHECK(lies_on(ab, a, 4));
    CHECK_FALSE(lies_on(ab, a, 11));
    CHECK_FALSE(lies_on(ab, ac, 20));
    CHECK_FALSE(lies_on(a, ab, 20));  // the log went back to before b
    CHECK(lies_on(abd, ab, 30));
    CHECK_FALSE(lies_on(abd, ab, 31));
    CHECK(lies_on(abd, a, 10));
    CHECK_FALSE(lies_on(a, x, 1));
    CHECK(lies_on(a, none, 0));
    CHECK_FALSE(lies_on(a, none, 1));
}

TEST_CASE("run record: what is written is read, and what is not one is refused") {
    RunRecord record;
    record.descent = {{"0123456789abcdef", 0}, {"fedcba9876543210", 123456789012}};
    record.state = {123456789099, 123456789000, 0xffffffffffffffff, 64, 12};
    record.end_of_text = 256;
    record.val_loss = 1.25;
    record.best = {123456, 0.1};
    record.skipped_in_a_row = 3;
    record.data_start = 17;
    record.train_data = {{"a \xff\n", 12, 0xfedcba9876543210, "1 2 3"}, {"b", 1, 0, ""}};
    record.settings = {{"lr", "0.1"}};
    const std::string good = to_json(record);
    RunRecord found = parse_run_record(good, "f");
    CHECK(found.descent == record.descent);
    CHECK(found.state.step == record.state.step);
    CHECK(found.state.updates == record.state.updates);
    CHECK(found.state.seed == record.state.seed);
    CHECK(found.state.seq_len == 64);
    CHECK(found.state.rows_per_step == 12);
    CHECK(found.end_of_text == 256);
    CHECK(found.val_loss == record.val_loss);
    CHECK(found.best == record.best);
    CHECK(found.skipped_in_a_row == 3);
    CHECK(found.data_start == 17);
    REQUIRE(found.train_data.size() == 2);
    CHECK(found.train_data[0].tokens == 12);
    CHECK(found.train_data[0].xxh3 == 0xfedcba9876543210);
    CHECK(found.train_data[0].identity == "1 2 3");
    CHECK(found.val_data.empty());
    CHECK(found.settings == record.settings);
    CHECK(new_id().size() == 16);
    CHECK(new_id() != new_id());
    for (size_t cut = 0; cut + 2 < good.size(); cut++) {
        CHECK(error_of([&] { parse_run_record(good.substr(0, cut), "f"); }).exit_code == kExitBadInput);
    }
    auto refused = [&](const std::string& old, const std::string& text, const std::string& what) {
        std::string bad = good;
        REQUIRE(bad.find(old) != std::string::npos);
        bad.replace(bad.find(old), old.size(), text);
        check_error(error_of([&] { parse_run_record(bad, "file"); }), kExitBadInput, {"file", what});
    };
    refused("\"format\": 2", "\"format\": 99", "another version");
    refused("123456789000", "123456789100", "updates");
    refused("18446744073709551615", "-1", "seed");
    refused("18446744073709551615", "18446744073709551616", "seed");
    refused("1.25", "1e999", "overflow");
    refused("1.25", "\"1\"", "val_loss");
    refused("123456,", "123456789100,", "best");
    refused("0.1\n", "null\n", "best");
    refused("\"skipped_in_a_row\": 3", "\"skipped_in_a_row\": 123456789100", "skipped_in_a_row");
    refused("123456789099", "-1", "step");
    refused("123456789099", "1e3", "step");
    refused("123456789099", "18446744073709551615", "step");
    refused("\"step\"", "\"stop\"", "step");
    refused("fedcba9876543210", "fedcba987654321", "16 hexadecimal");
    refused("fedcba9876543210", "\\u001b[2Jba9876543", "16 hexadecimal");
    refused("123456789012", "\"x\"", "line");
    refused("\"0123456789abcdef\"", "17", "line");
    refused("\"data_start\": 17", "\"data_start\": 123456789100", "data_start");
    refused("\"fedcba9876543210\",\n   \"1 2 3\"", "\"xyz\", \"1 2 3\"", "XXH3");
    refused("\"1 2 3\"", "7", "train_data");
    refused("\"0.1\"", "0.1", "settings");
    CHECK(error_of([&] { parse_run_record(std::string(1 << 20, '['), "f"); }).exit_code == kExitBadInput);
    CHECK(error_of([&] { parse_run_record("[]", "f"); }).exit_code == kExitBadInput);
    CHECK(error_of([&] { parse_run_record("", "f"); }).exit_code == kExitBadInput);

    const std::string log = log_start({{"0123456789abcdef", 0}}, 0) + "{\"step\":0,\"train_loss\":1}\n" +
                            log_start(record.descent, 9) + "{\"step\":9,\"train_loss\":1}\n";
    CHECK(descent_of_log(log, "l") == record.descent);
    CHECK_FALSE(descent_of_log("{\"step\":9,\"train_loss\":1}\n", "l").has_value());
    CHECK(has_steps(log));
    CHECK_FALSE(has_steps(log_start(record.descent, 9)));
    CHECK(has_steps("{\"ste"));
}

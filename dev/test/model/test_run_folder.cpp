// A run's folder: which checkpoint a run goes on from, which ones stay, with which data and settings, and that nothing
// is touched where the folder cannot be read.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <atomic>
#include <chrono>
#include <thread>

#include "dev/test/support/any_model.h"
#include "dev/test/support/train_program.h"
#include "llmc/host/files/file_io.h"
#include "llmc/host/options/table.h"
#include "llmc/host/tokens/dataloader.h"
#include "llmc/model/cpu/gpt2.h"
#include "llmc/model/run/data.h"
#include "llmc/model/run/folder.h"

using namespace llmc;

namespace {

// at a constant learning rate, so that a run of fewer steps begins as a longer one does
struct FolderRuns : Runs {
    FolderRuns() : FolderRuns("--val-every 0") {}
    explicit FolderRuns(const std::string& more)
        : Runs("--save-every 2 --sample-every 0 --quiet --lr 0.001 --warmup 0 --final-lr-fraction 1 " +
               more) {}

    static std::string with_steps(int steps, const std::string& more) {
        return fmt::format("--steps {} {}", steps, more);
    }
    ProgramRun train(const std::string& out, int steps, const std::string& more = "") const {
        return Runs::train(out, with_steps(steps, more));
    }
    // of a run that is killed after some steps, before its first save: its log
    std::string killed_before_a_save(const std::string& out, const std::string& more) const {
        const std::string log = folder / (out + "/log.jsonl"), before = read_bytes(log);
        const pid_t pid = start(out, with_steps(1000000, more + " --save-every 0"));
        wait_until([&] {
            const std::string now = read_bytes(log);
            return now != before && contains(now, "\"step\":25,");
        });
        kill(pid, SIGKILL);
        CHECK(finish_train(folder.path(), pid).exit_code == 128 + SIGKILL);
        return read_bytes(log);
    }
    // the program refuses, says these, and no file of the run changes
    void check_refused(const std::string& out, const std::string& more, int exit_code,
                       const Words& says) const {
        std::error_code ignored;
        auto state = [&] {
            std::string all;
            for (const std::string& name : names_below(folder / out)) {
                const std::string path = folder / (out + "/" + name);
                all += name + "\n";
                if (fs::is_regular_file(path, ignored)) { all += read_bytes(path); }
            }
            return all;
        };
        const std::string before = state();
        check_run(run(out, with_steps(8, more)), exit_code, says);
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
                        [&](const std::string& part) { return contains(text, part); });
}

}  // namespace

// ---- the line of descent -----------------------------------------------------------------------

TEST_CASE("run folder: auto goes on along the line that the log follows") {
    const FolderRuns r;
    // what should come out: 4 steps, then others with another learning rate
    r.train("short", 4);
    r.train("expected", 12, "--lr 0.005 --resume " + r.step("short", 4));
    auto check_expected = [&] {
        CHECK(same_files(r / "run/model.bin", r / "expected/model.bin"));
        std::vector<Json> log = read_log(r / "run"), end = read_log(r / "expected");
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
        check_expected();
    }
    SUBCASE("killed before the first save of the new line") {
        r.killed_before_a_save("run", "--lr 0.005 --resume " + r.step("run", 4));
        ProgramRun on = r.train("run", 12, "--lr 0.005 --resume auto");
        CHECK(contains(on.out, "weights    | " + r.step("run", 4)));
        check_expected();
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
    const FolderRuns r;
    r.train("run", 4);
    r.train("other", 6, "--seed 7");
    fs::rename(r.step("other", 6), r.step("run", 6));
    copy_folder(r.step("run", 4), r.step("run", 7));
    ProgramRun run = r.train("run", 8, "--resume auto");
    CHECK(contains(run.out, "weights    | " + r.step("run", 4)));
    check_holds(run.err, {r.step("run", 6) + ": of another run",
                          r.step("run", 7) + ": its name says step 7, run.json 4"});
    CHECK(fs::exists(r.step("run", 6) + ".foreign"));
    r.train("whole", 8);
    CHECK(same_files(r / "run/model.bin", r / "whole/model.bin"));
}

TEST_CASE("run folder: without a log") {
    const FolderRuns r;
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

TEST_CASE_FIXTURE(InFolder, "run folder: a reader finds a model at every moment of a run with --keep 1") {
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
    const FolderRuns r;
    auto said = [&](const std::string& run) {
        return run_train(r.folder.path(), {"generate", r / run, "--tokens", "1"}).err;
    };
    const auto old = fs::file_time_type::clock::now() - std::chrono::hours(1);
    r.train("run", 4);
    fs::last_write_time(r / "run/model.bin", old);  // as in a copy whose model.bin came first
    CHECK_FALSE(contains(said("run"), "log.jsonl does not say"));
    const pid_t pid = r.start("run", "--steps 1000000 --resume auto");
    wait_until([&] { return fs::exists(r.step("run", 6)); });
    kill(pid, SIGKILL);
    finish_train(r.folder.path(), pid);
    fs::last_write_time(r / "run/model.bin", fs::file_time_type::clock::now());  // and here last
    CHECK_MESSAGE(contains(said("run"), "name " + newest_step(r / "run")), said("run"));
}

TEST_CASE("run folder: a log with steps but no checkpoint is not overwritten") {
    const FolderRuns r;
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
    const FolderRuns r;
    r.train("whole", 6);
    const std::string first = r.killed_before_a_save("run", "--resume auto");
    r.check_refused("run", "", kExitUsage, {r / "run", "--resume auto"});
    r.check_refused("run", "--resume auto --dry-run", kExitDone, {"its run has saved nothing yet"});
    const ProgramRun none = run_train(r / "", {"generate", r / "run"});
    CHECK_MESSAGE(none.err.ends_with("(--save-every N saves as it goes)\n"), none.err);  // and no empty line
    const std::string second = r.killed_before_a_save("run", "--resume auto");
    write_bytes(r / "run/model.bin", "of a disk that had no room for a checkpoint");
    ProgramRun run = r.train("run", 6, "--resume auto");
    check_holds(run.err, {"now " + r / "run/model.bin.unsaved\n", r / "run: its run has saved nothing yet",
                          "now " + r / "run/log.jsonl.unsaved-2\n"});
    CHECK(read_bytes(r / "run/model.bin.unsaved") == "of a disk that had no room for a checkpoint");
    CHECK((read_bytes(r / "run/log.jsonl.unsaved") == first));
    CHECK((read_bytes(r / "run/log.jsonl.unsaved-2") == second));
    CHECK((read_log(r / "run") == read_log(r / "whole")));
    CHECK(same_files(r / "run/model.bin", r / "whole/model.bin"));
}

// ---- what stays, and what may go ---------------------------------------------------------------

TEST_CASE("run folder: a checkpoint that lies on another disk, behind a symbolic link, is the run's") {
    CHECK(run_folder_of("runs/a/step_00000001") == "runs/a");
    CHECK(run_folder_of("runs/a/step_00000001//") == "runs/a");
    CHECK(run_folder_of("step_00000001") == ".");
    CHECK(run_folder_of(".") == "./..");
    const FolderRuns r;
    const std::string away = r / "disk", step = "/step_00000004";
    r.train("run", 4);
    fs::create_directory(away);
    fs::rename(r / "run" + step, away + step);
    fs::create_directory_symlink(away + step, r / "run" + step);
    write_bytes(away + "/config.toml", "steps = 9\n");  // another run's
    const Words more = words("--val-data none --seq-len 12 --quiet --resume auto --train-data " +
                             r / "train.bin --out " + r / "run");
    const ProgramRun on = run_well(r.folder.path(), more);
    CHECK_MESSAGE(contains(on.out, "| 4 steps = "), on.out);
}

TEST_CASE_FIXTURE(InFolder, "run folder: a run goes on without the model and tokenizer that it began with") {
    write_token_shard(folder / "train.bin", std::vector<uint16_t>(400, 7), 457);
    fs::copy("dev/test/fixture/bpe", folder / "bpe", fs::copy_options::recursive);
    const auto train = [&](const std::string& more) {
        return run_train(folder.path(), words(more +
                                              " --val-data none --seq-len 12 --batch 4 --quiet "
                                              "--sample-every 0 --train-data " +
                                              folder / "train.bin"));
    };
    const std::string from = " --model " + folder / "hf" + " --tokenizer " + folder / "bpe";
    check_run(train("--steps 2 --layers 1 --heads 2 --channels 16 --out " + folder / "base"), kExitDone);
    run_well(folder.path(), {"export", folder / "base", "--hf", folder / "hf"});
    check_run(train("--steps 4 --save-every 2 --out " + folder / "tuned" + from), kExitDone);
    fs::remove_all(folder / "hf");
    fs::remove_all(folder / "bpe");
    check_run(train("--config " + folder / "tuned/config.toml" + " --steps 6 --resume auto"), kExitDone);
    CHECK(read_log(folder / "tuned").back()["step"] == 6);
    check_run(train("--steps 6 --resume auto --out " + folder / "other" + from), kExitUsage,
              {"--model '" + folder / "hf" + "' is not known"});
}

TEST_CASE("run folder: --keep counts what is intact and of this run") {
    const FolderRuns r;
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
    const FolderRuns r;
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
    check_run(r.run("run", "--steps 8 --resume auto"), kExitBadInput, {"cannot read"});
}

TEST_CASE("run folder: an error that passes costs nothing") {
    const FolderRuns r;
    r.train("run", 4);
    r.train("whole", 6);
    const std::string path = r.step("run", 4) + "/MANIFEST", manifest = read_bytes(path);
    make_unreadable(path);
    const pid_t pid = r.start("run", "--steps 6 --resume auto");
    std::this_thread::sleep_for(std::chrono::milliseconds(350));
    write_bytes(r / "manifest", manifest);
    fs::rename(r / "manifest", path);
    ProgramRun run = finish_train(r.folder.path(), pid);
    check_run(run, kExitDone, {}, {"weights    | " + r.step("run", 4)});
    CHECK(same_files(r / "run/model.bin", r / "whole/model.bin"));
}

TEST_CASE("run folder: what is no regular file is damage, and nothing waits for it") {
    const FolderRuns r;
    r.train("run", 4);
    const std::string path = r.step("run", 4) + "/MANIFEST";
    fs::remove(path);
    REQUIRE(mkfifo(path.c_str(), 0600) == 0);
    ProgramRun run = r.train("run", 6, "--resume auto");
    CHECK(contains(run.err, "passed over: " + path + ": not a regular file"));
    CHECK(fs::exists(r.step("run", 4) + ".damaged"));
}

TEST_CASE("run folder: control characters of files do not reach the terminal") {
    const FolderRuns r;
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
    check_harmless(r.run("run", "--steps 6 --resume " + four));
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
    const ProgramRun plan = run_well(r.folder.path(), words("--resume auto --dry-run --out " + (r / "run")));
    CHECK(has_none_of(plan.err + plan.out, {"\033", "\x7f", "\xc2\x9b", "\r"}));
}

// ---- data and settings -------------------------------------------------------------------------

namespace {

// three shards of different lengths, and a run of four steps over them
struct DataRuns : FolderRuns {
    std::vector<std::vector<uint16_t>> tokens = {learnable_tokens(20, 3, 1), learnable_tokens(30, 3, 2),
                                                 learnable_tokens(20, 3, 3)};
    DataRuns() : FolderRuns("") {
        fs::create_directory(folder / "data");
        write_shards();
        usual += " --weight-decay 0.25 --train-data " + folder / "data/tr_?.bin";
        train("run", 4);
    }
    std::string shard(size_t i) const { return folder / ("data/tr_" + std::to_string(i) + ".bin"); }
    void write_shards() const {
        for (size_t i = 0; i < tokens.size(); i++) { write_token_shard(shard(i), tokens[i], 257); }
    }
    void check_refused(Words says) const {
        says.push_back("--new-data");
        FolderRuns::check_refused("run", "--resume auto", kExitBadInput, says);
        CHECK_FALSE(fs::exists(step("run", 8)));
    }
};

}  // namespace

TEST_CASE("run data: other data is refused, and the shard is named") {
    DataRuns p;
    const auto good = p.tokens;
    auto check_refused = [&](const Words& says) {
        p.write_shards();
        p.check_refused(says);
        p.tokens = good;
    };
    std::swap(p.tokens[0], p.tokens[2]);  // names exchanged
    check_refused({"shard 1: found tr_0.bin of ", "expected tr_0.bin of "});
    for (size_t i = 0; i < p.tokens[1].size(); i++) { p.tokens[1][i] = (uint16_t)(i % 200); }
    check_refused({"shard 2: found tr_1.bin of "});
    // other cuts
    p.tokens[1].insert(p.tokens[1].begin(), p.tokens[0].end() - 100, p.tokens[0].end());
    p.tokens[0].resize(p.tokens[0].size() - 100);
    check_refused({"shard 1: found tr_0.bin of "});
    write_token_shard(p.shard(3), learnable_tokens(20, 3, 5), 257);  // grown
    check_refused({"shard 4: found tr_3.bin of ", "expected no shard"});
    fs::remove(p.shard(3));
    // one token, and the file's time put back
    struct stat st;
    REQUIRE(stat(p.shard(2).c_str(), &st) == 0);
    std::string bytes = read_bytes(p.shard(2));
    bytes[bytes.size() - 20] ^= 1;
    int fd = open(p.shard(2).c_str(), O_WRONLY);  // in place: the same inode and size
    REQUIRE(pwrite(fd, bytes.data(), bytes.size(), 0) == (ssize_t)bytes.size());
    close(fd);
    const timespec times[] = {st.st_atim, st.st_mtim};
    REQUIRE(utimensat(AT_FDCWD, p.shard(2).c_str(), times, 0) == 0);
    p.check_refused({"shard 3: found tr_2.bin of "});
    fs::remove(p.shard(2));  // shrunk
    p.check_refused({"shard 3: found no shard, expected tr_2.bin of "});
}

TEST_CASE("run data: files that moved are the same data") {
    const DataRuns p;
    p.train("whole", 8);
    fs::rename(p / "data", p / "moved");
    for (int i : {0, 1, 2}) {
        fs::rename(p / fmt::format("moved/tr_{}.bin", i), p / fmt::format("moved/part_{:c}.bin", 'a' + i));
    }
    const ProgramRun run = p.train("run", 8, "--resume auto --train-data " + p / "moved/part_*.bin");
    CHECK(run.err == "");
    p.check_same("run", "whole");
}

TEST_CASE("run data: --new-data begins with the new data's first epoch, once") {
    const DataRuns p;
    const std::string four = p.step("run", 4);
    CHECK(p.train("same", 8, "--new-data --resume " + four).err == "");  // nothing new
    p.train("whole", 8);
    CHECK(same_files(p / "same/model.bin", p / "whole/model.bin"));

    write_token_shard(p / "data/new.bin", learnable_tokens(30, 3, 7), 257);
    const std::string more = "--new-data --train-data " + p / "data/new.bin --resume ";
    ProgramRun run = p.train("at_once", 8, more + four);
    check_run(run, kExitDone, {"step 4 | new training data, from its start: shard 1: found new.bin"});
    CHECK(contains(read_bytes(p / "at_once/log.jsonl"), "\"new_data\":true"));
    p.train("parts", 6, more + four);
    run = p.train("parts", 8, more + "auto");  // the same line again goes on in the new data
    CHECK(run.err == "");
    p.check_same("parts", "at_once");
    const std::string groups = four + " --batch 2 --total-batch 48 --reduce-groups 2";
    p.train("one", 8, more + groups);
    p.train("two", 8, more + groups + " --ranks 2");  // the other rank, too, counts from there
    CHECK(same_files(p / "two/model.bin", p / "one/model.bin"));
    // step 4 saw the row that a new run's step 0 sees
    RunRecord record = inspect_checkpoint(p.step("parts", 8)).record;
    CHECK(record.data_start == 4);
    CHECK(record.train_data.size() == 1);
    CHECK(record.train_data[0].name == "new.bin");
}

TEST_CASE("run data: a shard is read again unless the system says that it is the same file") {
    const DataRuns p;
    ShardSet set(p / "data/tr_?.bin");
    std::vector<ShardRecord> first = fingerprint(set, {});
    REQUIRE(first.size() == 3);
    CHECK(first[0].xxh3 == digest_file(p.shard(0), 1024)->xxh3);
    CHECK(first[0].identity == "");  // just written: its time may not tell the next change
    const std::string identity = file_identity(p.shard(0));
    CHECK(identity != "");
    std::vector<ShardRecord> known = first;
    known[0].identity = identity;
    known[0].xxh3 = 1;
    CHECK(fingerprint(set, known)[0].xxh3 == first[0].xxh3);
    const timespec old[] = {{1, 0}, {1, 0}};  // ctime is now, whatever the other times are
    REQUIRE(utimensat(AT_FDCWD, p.shard(0).c_str(), old, 0) == 0);
    CHECK(file_identity(p.shard(0), true) == "");
    CHECK(file_identity(p.shard(0)) != identity);
    usleep(3'100'000);
    known = fingerprint(set, first);
    CHECK(known[0].identity != "");
    known[0].xxh3 = 1;
    CHECK(fingerprint(set, known)[0].xxh3 == 1);  // taken on trust
    known[0].tokens++;
    CHECK(fingerprint(set, known)[0].xxh3 == first[0].xxh3);
    CHECK(difference(first, first) == "");
}

TEST_CASE("run data: changed settings are said, one line each") {
    const DataRuns p;
    CHECK(p.train("run", 6, "--resume auto").err == "");  // more steps at a constant rate: nothing changes
    const std::string more =
        "--resume auto --lr 0.005 --clip 2 --beta2 0.99 --batch 2 --total-batch 48 --final-lr-fraction 0.1 "
        "--weight-decay 0 --save-every 0";
    ProgramRun run = p.train("run", 8, more);
    check_run(run, kExitDone,
              {"lr was 0.001, is 0.005 from here on\n", "clip was 1, is 2 from here on\n",
               "beta2 was 0.95, is 0.99 from here on\n", "final-lr-fraction was 1, is 0.1 from here on\n",
               "weight-decay was 0.25, is 0 ", "save-every was 2, is 0 ",
               "batch was 4, is 2 from here on: the same run but for rounding, not bit for bit\n"});
    CHECK_FALSE(contains(run.err, "beta1"));
    const pid_t pid = start_prepared(p.folder.path(), p.options("run", "--steps 10 --val-data none " + more),
                                     [] { setenv("OMP_NUM_THREADS", "2", 1); });
    check_run(finish_train(p.folder.path(), pid), kExitDone,
              {"device was CPU, 1 threads", "is CPU, 2 threads", "steps was 8, is 10"});
}

TEST_CASE("run data: the lowest loss on other validation data is none to beat") {
    const DataRuns p;
    const std::string more = "--lr 0.03 --keep-best --val-every 2";
    p.train("best", 4, more);
    const auto best = [&](int step) { return inspect_checkpoint(p.step("best", step)).record.best; };
    REQUIRE(best(4));
    CHECK_FALSE(contains(p.train("best", 6, more + " --resume auto").err, "starts anew"));
    REQUIRE(best(6));
    const Validated was = *best(6);
    std::vector<uint16_t> noise(400);  // nobody predicts it
    for (size_t i = 0; i < noise.size(); i++) { noise[i] = (uint16_t)(i * i * 7919 % 251); }
    write_token_shard(p / "val.bin", noise, 257);
    check_run(p.train("best", 8, more + " --resume auto"), kExitDone,
              {fmt::format("that of step {}, was on other tokens", was.step)});
    REQUIRE(best(8));
    CHECK(best(8)->loss > was.loss);
}

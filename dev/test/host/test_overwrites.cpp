// What a program writes over: of several runs that start at once in a folder one trains; a run replaces only what it has
// exported itself; no link, device or pipe is written through.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <cerrno>

#include "dev/test/support/many_ranks.h"
#include "llmc/host/files/file_io.h"

using namespace llmc;

namespace {

struct Place : Runs {
    Place() : Runs("--quiet --sample-every 0 --val-every 0") {}
    ProgramRun train(const std::string& out, const std::string& more) const { return Runs::run(out, more); }
    ProgramRun run(const Words& words) const { return run_train(folder.path(), words); }
    // refused with this text, and the file is as it was
    void check_refused(const ProgramRun& r, const std::string& text, const std::string& file,
                       const std::string& before) const {
        check_run(r, kExitUsage, {text});
        CHECK(read_bytes(*this / file) == before);
    }
};

}  // namespace

TEST_CASE("overwrites: at its end a run exports into an empty folder, or where it exported to before") {
    const Place p;
    const std::string hf = " --export-hf " + p / "hf";
    REQUIRE(p.train("mine", "--steps 4" + hf).exit_code == kExitDone);
    const std::string first = read_bytes(p / "hf/model.safetensors");
    // a new run that would go on if there were something to go on from, and one that goes on, but is another
    p.check_refused(p.train("other", "--steps 4 --resume auto" + hf), "not an empty folder",
                    "hf/model.safetensors", first);
    REQUIRE(p.train("other", "--steps 4").exit_code == kExitDone);
    p.check_refused(p.train("other", "--steps 6 --resume auto" + hf), "not an empty folder",
                    "hf/model.safetensors", first);
    // its own: from where it was exported, and once more
    for (const char* steps : {"--steps 6", "--steps 8"}) {
        check_run(p.train("mine", steps + (" --resume auto" + hf)), kExitDone);
    }
    CHECK(read_bytes(p / "hf/model.safetensors") != first);
    // what lies there now is another run's
    fs::rename(p / "hf", p / "hf_of_mine");
    REQUIRE(p.train("third", "--steps 5" + hf).exit_code == kExitDone);
    const std::string third = read_bytes(p / "hf/model.safetensors");
    p.check_refused(p.train("mine", "--steps 10 --resume auto" + hf), "It holds no export of this run",
                    "hf/model.safetensors", third);
    fs::rename(p / "hf_of_mine", p / "elsewhere");
    CHECK(p.train("mine", "--steps 10 --resume auto --export-hf " + p / "elsewhere").exit_code == kExitDone);
    // nor does a run export into itself, or into a checkpoint that it has yet to write
    for (const char* own : {"own/", "own/../own", "own/step_00000004"}) {
        check_run(p.train("own", "--steps 4 --export-hf " + p / own), kExitUsage, {"the run's own folder"});
    }
    // what cannot be written is found out before the training
    write_bytes(p / "file", "x");
    check_run(p.train("new", "--steps 4 --export-hf " + p / "file/sub"), kExitUsage);
    CHECK_FALSE(fs::exists(p / "new/log.jsonl"));
}

TEST_CASE("overwrites: a run does not begin in a folder that holds a model") {
    const Place p;
    REQUIRE(p.train("mine", "--steps 4").exit_code == kExitDone);
    REQUIRE(p.run({"export", p / "mine", "--hf", p / "hf"}).exit_code == kExitDone);
    fs::create_directory(p / "models");
    fs::copy(p / "mine/model.bin", p / "models/model.bin");
    const std::string model = read_bytes(p / "models/model.bin"), config = read_bytes(p / "hf/config.json");
    for (const char* resume : {"", " --resume auto"}) {
        p.check_refused(p.train("models", std::string("--steps 4") + resume),
                        "holds a model already (model.bin)", "models/model.bin", model);
        p.check_refused(p.train("hf", std::string("--steps 4") + resume),
                        "holds a model already (config.json)", "hf/config.json", config);
    }
    CHECK_FALSE(fs::exists(p / "models/log.jsonl"));
}

TEST_CASE("overwrites: no export goes into a run or checkpoint, or beside a tokenizer of another model") {
    const Place p;
    REQUIRE(p.train("mine", "--steps 4 --save-every 2").exit_code == kExitDone);
    const std::string step = "mine/step_00000004/", weights = read_bytes(p / (step + "model.safetensors"));
    p.check_refused(p.run({"export", p / "mine", "--hf", p / step, "--force"}), "it has MANIFEST",
                    step + "model.safetensors", weights);
    const std::string model = read_bytes(p / "mine/model.bin");
    p.check_refused(p.run({"export", p / "mine", "--hf", p / "mine", "--force"}), "it has log.jsonl",
                    "mine/model.bin", model);
    // a model without a tokenizer, into the folder of one with its own
    REQUIRE(p.run({"export", p / "mine", "--hf", p / "bytes"}).exit_code == kExitDone);
    const std::string tokens = read_bytes(p / "bytes/model.safetensors");
    write_bytes(p / "raw.bin", std::string(2000, '\1'));  // tokens of which nothing says what they mean
    REQUIRE(p.run(words("--train-data " + p / "raw.bin" +
                        " --raw-tokens 300 --val-data none --layers 1 --heads 1 "
                        "--channels 8 --seq-len 8 --steps 1 --sample-every 0 --quiet --out " +
                        p / "raw"))
                .exit_code == kExitDone);
    p.check_refused(p.run({"export", p / "raw", "--hf", p / "bytes", "--force"}),
                    "tokenizer.json: of an earlier export", "bytes/model.safetensors", tokens);
    // of two models in a folder none is taken for the one that is meant
    REQUIRE(p.run({"export", p / "mine", "--hf", p / "hf"}).exit_code == kExitDone);
    fs::copy(p / "mine/model.bin", p / "hf/model.bin");
    check_run(p.run({"eval", p / "hf", "--data", p / "train.bin"}), kExitBadInput,
              {"are both in this folder. Name the one to use"});
    CHECK(p.run({"eval", p / "hf/model.safetensors", "--data", p / "train.bin"}).exit_code == kExitDone);
}

// ---- one process a run folder ------------------------------------------------------------------

TEST_CASE("run lock: of five that start at once in one folder one trains, and the others name it") {
    const Runs r("--steps 1000000 --quiet --sample-every 0");
    const TempFolder& folder = r.folder;
    for (const char* state : {"new", "with the lock file of a run that was killed"}) {
        CAPTURE(state);
        fs::remove(folder / "run/log.jsonl");
        std::vector<pid_t> pids;
        for (int i = 0; i < 5; i++) {
            fs::create_directories(folder / std::to_string(i));
            pids.push_back(start_train(folder / std::to_string(i), r.options("run", "")));
        }
        wait_until([&] { return std::ranges::count_if(pids, has_ended) >= 4; });
        const auto winner = std::ranges::find_if_not(pids, has_ended);
        REQUIRE(winner != pids.end());
        const std::string who = fmt::format("process {} on ", (int)*winner);
        kill(*winner, SIGKILL);
        for (size_t i = 0; i < pids.size(); i++) {
            const ProgramRun r = finish_train(folder / std::to_string(i), pids[i]);
            if (pids[i] != *winner) { check_run(r, kExitUsage, {who}); }
        }
    }
}

TEST_CASE_FIXTURE(InFolder, "run lock: held while it lives, and by whoever comes next") {
    {
        RunLock lock;
        CHECK_FALSE(lock.taken());
        lock.take(folder.path());
        CHECK(lock.taken());
        RunLock second;
        check_error([&] { second.take(folder.path()); }, kExitUsage,
                    {folder.path(), fmt::format("process {} on", (int)getpid()), "another --out"});
        fs::remove(folder / ".lock");  // by hand: from here on the name stands for another file
        CHECK(error_of([&] { lock.require_held(); }).exit_code == kExitSaveFailed);
        second.take(folder.path());
        CHECK(second.taken());
        second.require_held();
        check_error([&] { lock.require_held(); }, kExitSaveFailed,
                    {folder.path(), "another file", "--resume auto --out FOLDER"});
    }
    CHECK(fs::file_size(folder / ".lock") == 0);
    RunLock next;
    next.take(folder.path());
    CHECK(next.taken());
    RunLock nowhere;
    check_error([&] { nowhere.take(folder / "missing"); }, kExitUsage,
                {folder / "missing/.lock", "cannot make or write"});
}

TEST_CASE_FIXTURE(InFolder, "run lock: a link under a foreseeable name leads nobody to the file behind it") {
    write_bytes(folder / "victim", "precious");
    fs::create_symlink("victim", folder / ".lock");
    RunLock lock;
    check_error([&] { lock.take(folder.path()); }, kExitUsage, {folder / ".lock", "It is a link"});
    const std::string mine = folder / fmt::format("f.tmp-{}", (int)getpid());
    fs::create_symlink("victim", mine);
    write_text_file(folder / "f", "text");
    CHECK(read_bytes(folder / "f") == "text");
    CHECK(read_bytes(folder / "victim") == "precious");
    CHECK(fs::is_symlink(mine));
}

TEST_CASE("run lock: a run whose folder was moved, or .lock removed, ends and writes nothing there") {
    for (bool moves : {true, false}) {
        CAPTURE(moves);
        const Runs r("--steps 4000 --quiet --sample-every 0 --save-every 20 --keep 2");
        const std::string run = r / "run", moved = r / "moved";
        const pid_t pid = r.start("run", "");
        wait_until([&] { return fs::exists(run + "/step_00000020"); });
        moves ? fs::rename(run, moved) : (void)fs::remove(run + "/.lock");
        check_run(finish_train(r.folder.path(), pid), kExitSaveFailed, {run + ": its .lock is gone"});
        CHECK_FALSE(fs::exists(run + "/.lock"));
        CHECK((!moves || !fs::exists(run + "/model.bin")));
        // what was saved is whole
        run_well(r.folder.path(), {"generate", moves ? moved : run, "--tokens", "1"});
    }
}

TEST_CASE_FIXTURE(InFolder, "run lock: runs without --out in the same second have folders of their own") {
    write_tiny_data(folder.path());
    const std::string program = fs::absolute(train_program());
    std::vector<pid_t> pids;
    for (int i = 0; i < 3; i++) {
        fs::create_directories(folder / std::to_string(i));
        pids.push_back(start_prepared(
            folder / std::to_string(i), tiny_run(folder.path(), "--steps 1 --sample-every 0"),
            [&] { (void)!chdir(folder.path().c_str()); }, program));
    }
    for (int i = 0; i < 3; i++) {
        check_run(finish_train(folder / std::to_string(i), pids[(size_t)i]), kExitDone);
    }
    const Words runs = names_below(folder / "runs");
    CHECK(runs.size() == 3);
    for (const std::string& run : runs) { CHECK(fs::exists(folder / ("runs/" + run + "/step_00000001"))); }
}

TEST_CASE_FIXTURE(InFolder, "file writer: a folder, a pipe or the standard output is never replaced") {
    fs::create_directory(folder / "folder");
    REQUIRE(mkfifo((folder / "pipe").c_str(), 0600) == 0);
    fs::create_symlink("pipe", folder / "link");
    fs::create_symlink("/proc/self/fd/1", folder / "stdout");
    for (const char* name : {"folder", "pipe", "link", "stdout"}) {
        CAPTURE(name);
        const auto type = fs::symlink_status(folder / name).type();
        check_error([&] { FileWriter(folder / name).commit(); }, kExitUsage, {name, "expected a file"});
        CHECK(fs::symlink_status(folder / name).type() == type);
    }
    fs::create_symlink("free", folder / "dangling");
    FileWriter(folder / "dangling").commit();
    FileWriter(folder / "dangling").commit();
    CHECK(names_below(folder.path()) == Words{"dangling", "folder", "link", "pipe", "stdout"});
}

TEST_CASE("writable folder: where no folder can be looked at, up to the root, that is an error and no loop") {
    const pid_t pid = fork();
    if (pid == 0) {  // from here on stat(2) and its kin find nothing
        alarm(10);
        if (!refuse_calls({SYS_newfstatat, SYS_statx}, EIO)) { _exit(77); }
        _exit(error_of([] { make_writable_folder("/plumb/not/there"); }).exit_code);
    }
    int status = 0;
    REQUIRE(waitpid(pid, &status, 0) == pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) { return; }  // this system takes no filters
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == kExitUsage);
}

TEST_CASE_FIXTURE(InFolder, "run lock: a temporary is removed by the next writer unless its own is at work") {
    const std::string path = folder / "f", mine = path + fmt::format(".tmp-{}", (int)getpid());
    auto is_locked = [](const std::string& name) {  // as another process would find it
        const int fd = open(name.c_str(), O_RDWR | O_CLOEXEC);
        REQUIRE(fd >= 0);
        const bool locked = flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
        close(fd);
        return locked;
    };
    for (const char* name : {"f.tmp-1", "f.tmp-1x", "ff.tmp-1"}) { write_bytes(folder / name, "half"); }
    const int at_work = open((path + ".tmp-1").c_str(), O_RDWR | O_CLOEXEC);
    REQUIRE(flock(at_work, LOCK_EX) == 0);
    {
        FileWriter writer(path);
        CHECK(is_locked(mine));
        CHECK(fs::exists(path + ".tmp-1"));
        close(at_work);
        FileWriter(folder / "g").commit();  // of another file
        CHECK(fs::exists(path + ".tmp-1"));
        writer.commit();
    }
    FileWriter(path).commit();
    CHECK(names_below(folder.path()) == Words{"f", "f.tmp-1x", "ff.tmp-1", "g"});
}

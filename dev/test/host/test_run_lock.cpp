// One process a run folder: of several that start at once one trains, and the others name it.
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cerrno>
#include <chrono>
#include <thread>

#include <doctest/doctest.h>

#include "dev/test/support/train_program.h"
#include "llmc/host/files/file_io.h"

using namespace llmc;
namespace fs = std::filesystem;

namespace {

// Started at once into one folder: one trains, the others return 2 and name it.
void check_one_trains(const std::string& folder, const std::string& more) {
    constexpr int kAtOnce = 8;
    std::vector<pid_t> pids;
    for (int i = 0; i < kAtOnce; i++) {
        const std::string own = folder + "/" + std::to_string(i);
        fs::create_directories(own);
        pids.push_back(
            start_train(own, tiny_run(folder, "--steps 1000000 --quiet --sample-every 0 " + more)));
    }
    // ends with the seven that return; the one that trains is then stopped
    int winner = -1;
    std::vector<ProgramRun> runs(kAtOnce);
    std::vector<bool> ended(kAtOnce, false);
    for (int left = kAtOnce, wait = 0; left > 1 && wait < 3000; wait++) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        for (int i = 0; i < kAtOnce; i++) {
            siginfo_t info = {};
            if (ended[i] || waitid(P_PID, (id_t)pids[i], &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
                info.si_pid == 0) {
                continue;
            }
            runs[i] = finish_train(folder + "/" + std::to_string(i), pids[i]);
            ended[i] = true;
            left--;
        }
    }
    for (int i = 0; i < kAtOnce; i++) {
        if (ended[i]) { continue; }
        CHECK(winner == -1);
        winner = i;
        kill(pids[i], SIGKILL);
        waitpid(pids[i], nullptr, 0);
    }
    REQUIRE(winner >= 0);
    for (int i = 0; i < kAtOnce; i++) {
        if (i == winner) { continue; }
        CHECK_MESSAGE(runs[i].exit_code == kExitUsage, runs[i].err);
        const std::string who = fmt::format("process {} on ", (int)pids[winner]);
        CHECK_MESSAGE(runs[i].err.find(who) != std::string::npos, who, " in ", runs[i].err);
    }
}

}  // namespace

TEST_CASE("run lock: of eight that start at once in one folder one trains") {
    TempFolder folder;
    write_tiny_data(folder.path());
    for (int round = 0; round < 3; round++) {
        check_one_trains(folder.path(), "--out " + folder / std::to_string(100 + round));
    }
    // a folder in which a run was killed, whose lock file names a process that is no more
    fs::remove(folder / "100/log.jsonl");
    check_one_trains(folder.path(), "--out " + folder / "100");
}

TEST_CASE("run lock: held while it lives, and by whoever comes next") {
    TempFolder folder;
    {
        RunLock lock;
        CHECK_FALSE(lock.taken());
        lock.take(folder.path());
        CHECK(lock.taken());
        RunLock second;
        check_error(error_of([&] { second.take(folder.path()); }), kExitUsage,
                    {folder.path(), fmt::format("process {} on", (int)getpid()), "another --out"});
        fs::remove(folder / ".lock");  // by hand: from here on the name stands for another file
        CHECK(error_of([&] { lock.require_held(); }).exit_code == kExitSaveFailed);
        second.take(folder.path());
        CHECK(second.taken());
        second.require_held();
        check_error(error_of([&] { lock.require_held(); }), kExitSaveFailed,
                    {folder.path(), "another file", "--resume auto --out FOLDER"});
    }
    CHECK(fs::file_size(folder / ".lock") == 0);
    RunLock next;
    next.take(folder.path());
    CHECK(next.taken());
    RunLock nowhere;
    check_error(error_of([&] { nowhere.take(folder / "missing"); }), kExitUsage,
                {folder / "missing/.lock", "cannot make or write"});
}

TEST_CASE("run lock: a link under a name that can be foreseen leads nobody to the file behind it") {
    TempFolder folder;
    write_bytes(folder / "victim", "precious");
    fs::create_symlink("victim", folder / ".lock");
    RunLock lock;
    check_error(error_of([&] { lock.take(folder.path()); }), kExitUsage, {folder / ".lock", "It is a link"});
    const std::string mine = folder / fmt::format("f.tmp-{}", (int)getpid());
    fs::create_symlink("victim", mine);
    write_text_file(folder / "f", "text");
    CHECK(read_bytes(folder / "f") == "text");
    CHECK(read_bytes(folder / "victim") == "precious");
    CHECK(fs::is_symlink(mine));
}

TEST_CASE(
    "run lock: a run whose folder was moved, or whose .lock was removed, ends and writes nothing there") {
    for (const char* what : {"moved", "removed"}) {
        CAPTURE(what);
        TempFolder folder;
        write_tiny_data(folder.path());
        const std::string run = folder / "run", moved = folder / "moved";
        const pid_t pid = start_train(folder.path(), tiny_run(folder.path(),
                                                              "--steps 4000 --quiet --sample-every 0 "
                                                              "--save-every 20 --keep 2 --out " +
                                                                  run));
        for (int wait = 0; wait < 3000 && !fs::exists(run + "/step_00000020"); wait++) {
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
        if (what == std::string("moved")) {
            fs::rename(run, moved);
        } else {
            fs::remove(run + "/.lock");
        }
        const ProgramRun ended = finish_train(folder.path(), pid);
        CHECK_MESSAGE(ended.exit_code == kExitSaveFailed, ended.err);
        CHECK_MESSAGE(ended.err.find(run + ": its .lock is gone") != std::string::npos, ended.err);
        if (what == std::string("moved")) { CHECK_FALSE(fs::exists(run + "/model.bin")); }
        CHECK_FALSE(fs::exists(run + "/.lock"));
        const std::string from = what == std::string("moved") ? moved : run;
        const ProgramRun used = run_train(folder.path(), {"generate", from, "--tokens", "1"});
        CHECK_MESSAGE(used.exit_code == kExitDone, used.err);  // what was saved is whole
    }
}

TEST_CASE("run lock: runs that start in the same second without --out have folders of their own") {
    TempFolder folder;
    write_tiny_data(folder.path());
    std::error_code ignored;
    const std::string program = fs::absolute(train_program(), ignored).string();
    std::vector<pid_t> pids;
    for (int i = 0; i < 3; i++) {
        const std::string own = folder / std::to_string(i);
        fs::create_directories(own);
        pids.push_back(start_prepared(
            own, tiny_run(folder.path(), "--steps 1 --sample-every 0"),
            [&] {
                if (chdir(folder.path().c_str()) != 0) { _exit(127); }
            },
            program));
    }
    for (int i = 0; i < 3; i++) {
        ProgramRun run = finish_train(folder / std::to_string(i), pids[i]);
        CHECK_MESSAGE(run.exit_code == kExitDone, run.err);
    }
    const Words runs = names_below(folder / "runs");
    CHECK(runs.size() == 3);
    for (const std::string& run : runs) { CHECK(fs::exists(folder / ("runs/" + run + "/step_00000001"))); }
}

TEST_CASE("file writer: a folder, a pipe or the standard output is never replaced") {
    TempFolder folder;
    fs::create_directory(folder / "folder");
    REQUIRE(mkfifo((folder / "pipe").c_str(), 0600) == 0);
    fs::create_symlink("pipe", folder / "link");
    fs::create_symlink("/proc/self/fd/1", folder / "stdout");
    for (const char* name : {"folder", "pipe", "link", "stdout"}) {
        CAPTURE(name);
        const auto type = fs::symlink_status(folder / name).type();
        check_error(error_of([&] { FileWriter(folder / name).commit(); }), kExitUsage,
                    {name, "expected a file"});
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
        sock_filter filter[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_newfstatat, 2, 0),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_statx, 1, 0),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EIO)};
        sock_fprog program = {std::size(filter), filter};
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) { _exit(77); }
        _exit(error_of([] { make_writable_folder("/plumb/not/there"); }).exit_code);
    }
    int status = 0;
    REQUIRE(waitpid(pid, &status, 0) == pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) { return; }  // this system takes no filters
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == kExitUsage);
}

TEST_CASE("run lock: a temporary file is removed by the next writer, unless its own is at work") {
    TempFolder folder;
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

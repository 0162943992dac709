// The log of a run whose disk fails: the run goes on, every line is written once that is possible again, and
// what is lost in the end is said. Streams that a shell has closed are nobody else's.
#include <sys/resource.h>
#include <chrono>
#include <cmath>
#include <thread>

#include <doctest/doctest.h>

#include "dev/test/support/test_files.h"
#include "dev/test/support/train_program.h"
#include "llmc/host/log/run_log.h"

using namespace llmc;
namespace fs = std::filesystem;

namespace {

constexpr rlim_t kSmall = 6000;  // bytes: more than config.toml, less than a checkpoint

// a run that may write no file over this size, from its start on
pid_t start_limited(const std::string& folder, const std::string& more, rlim_t bytes) {
    return start_prepared(folder, tiny_run(folder, "--sample-every 0 --val-every 0 --quiet " + more), [=] {
        rlimit small = {bytes, RLIM_INFINITY};
        setrlimit(RLIMIT_FSIZE, &small);
    });
}

// each step once, in order
void check_steps(const std::string& run, int64_t steps) {
    int64_t done = 0;
    for (const Json& line : read_log(run)) {
        if (line.contains("train_loss")) { CHECK(line["step"] == ++done); }
    }
    CHECK(done == steps);
}

}  // namespace

TEST_CASE("log: whole lines only, also on a full disk, and no run over another") {
    TempFolder folder;
    const std::string path = folder / "log.jsonl";
    const std::string line = step_log_line({.step = 2, .loss = NAN, .grad_norm = INFINITY});
    {
        RunJournal log(folder.path(), -1);
        log.append(step_log_line({.step = 1, .loss = 1.5, .grad_norm = 0.25}));
        log.append(validation_log_line(1, 1.25, 0));
        log.append(line);
    }
    check_error(error_of([&] { RunJournal(folder.path(), -1); }), kExitUsage,
                {folder.path(), "holds a run", "--resume auto"});
    const std::string good = read_bytes(path);
    CHECK(read_log(folder.path()).size() == 3);
    CHECK(read_log(folder.path())[2]["train_loss"].is_null());
    {
        RunJournal log(folder.path(), 2);
        std::string on_full, still_full;
        {
            SmallFiles limit(good.size() + 10);
            log.append(line);
            on_full = log.problem();
            CHECK_FALSE(log.sync());
        }
        {
            SmallFiles limit(good.size() + line.size() + 20);  // one of the two fits
            log.append(line);
            still_full = log.problem();
        }
        for (const char* part : {path.c_str(), "cannot write: File too large", "1 lines are kept"}) {
            CHECK_MESSAGE(on_full.find(part) != std::string::npos, on_full);
        }
        CHECK_MESSAGE(still_full.find("File too large") != std::string::npos, still_full);
        CHECK(read_bytes(path) == good + line);  // no half line
        CHECK(log.sync());
        CHECK(log.problem() == "");
        CHECK(read_bytes(path) == good + line + line);
    }
    write_bytes(path, good);
    // a resume keeps the lines of the steps before, but not of a validation that is done again; a torn line, and
    // what is no line of ours, goes
    write_bytes(path, good + "{\"step\":1,\"other\":0}\nrubbish\n\n{\"step\":1,\"train_lo");
    { RunJournal log(folder.path(), 1); }
    CHECK(read_bytes(path) == good.substr(0, good.find('\n') + 1));
    CHECK(names_below(folder.path()) == Words{"log.jsonl"});
}

TEST_CASE("run log: what cannot be written is kept until it can be") {
    TempFolder folder;
    write_tiny_data(folder.path());
    const std::string run = folder / "run";
    pid_t pid = start_limited(folder.path(), "--steps 3000 --out " + run, kSmall);
    for (int wait = 0; wait < 4000 && !contains(read_bytes(folder / "stdout"), "LOG FAILED"); wait++) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    rlimit none = {RLIM_INFINITY, RLIM_INFINITY};
    REQUIRE(prlimit(pid, RLIMIT_FSIZE, &none, nullptr) == 0);
    ProgramRun result = finish_train(folder.path(), pid);
    CHECK_MESSAGE(result.exit_code == kExitDone, result.out, result.err);
    CHECK_MESSAGE(contains(result.out, "cannot write: File too large"), result.out);
    CHECK_MESSAGE(contains(result.out, "nothing of it was lost"), result.out);
    // it tried to save at once, not at the end alone; whether that succeeded depends on when the limit was taken away
    const size_t failed = result.out.find("LOG FAILED");
    const std::string then = result.out.substr(failed, result.out.find("step 3000 |") - failed);
    CHECK_MESSAGE((contains(then, "| SAVE FAILED") || contains(then, "| saved")), result.out);
    check_steps(run, 3000);
    CHECK(fs::exists(run + "/step_00003000"));
}

TEST_CASE("run log: lines that are lost in the end are said, and the exit code is 7") {
    TempFolder folder;
    write_tiny_data(folder.path());
    const std::string run = folder / "run";
    ProgramRun result =
        finish_train(folder.path(), start_limited(folder.path(), "--steps 200 --out " + run, kSmall));
    CHECK(result.exit_code == kExitSaveFailed);
    CHECK_MESSAGE(contains(result.out, "LOG FAILED: lines are missing"), result.out);
    CHECK_MESSAGE(contains(result.out, "trained 200 steps"), result.out);
    for (const Json& line : read_log(run)) { CHECK(line.contains("train_loss")); }  // whole lines
}

TEST_CASE("run log: a start that fails on a full disk does not block the next") {
    TempFolder folder;
    write_tiny_data(folder.path());
    const std::string more = "--steps 3 --out " + folder / "run";
    ProgramRun result = finish_train(folder.path(), start_limited(folder.path(), more, 500));
    CHECK_MESSAGE(result.exit_code == kExitSaveFailed, result.err);
    result = finish_train(folder.path(), start_limited(folder.path(), more, RLIM_INFINITY));
    CHECK_MESSAGE(result.exit_code == kExitDone, result.err);
    check_steps(folder / "run", 3);
}

TEST_CASE("run log: closed streams") {
    TempFolder folder;
    write_tiny_data(folder.path());
    for (int closed : {1, 2, 3, 7}) {  // bits: 0, 1, 2
        const std::string run = folder / ("run" + std::to_string(closed));
        pid_t pid = start_prepared(folder.path(), tiny_run(folder.path(), "--steps 4 --out " + run), [=] {
            for (int fd = 0; fd < 3; fd++) {
                if (closed >> fd & 1) { close(fd); }
            }
        });
        CHECK(finish_train(folder.path(), pid).exit_code == kExitDone);
        check_steps(run, 4);  // and nothing that is not JSON
        CHECK(fs::exists(run + "/step_00000004"));
    }
}

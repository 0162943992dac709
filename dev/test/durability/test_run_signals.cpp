// Signals at random moments of everything that a run does, and a run that is killed again and again.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <random>

#include "dev/test/durability/small_run.h"
#include "llmc/host/tokens/dataloader.h"
#include "llmc/model/formats/checkpoint.h"
#include "llmc/model/run/folder.h"

using namespace llmc;
namespace fs = std::filesystem;

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct Phase {
    const char* name;
    const char* more;
    const char* sign;  // in the log, when it may begin; "" = at once
};
// one of each takes long, and the signal comes in it
const Phase kPhases[] = {
    {"start", "--steps 100000000 --val-data none", ""},
    {"steps", "--steps 100000000 --val-data none", "train_loss"},
    {"micro-batches", "--steps 1000000 --total-batch 1638400 --val-data none", "line"},
    {"validation", "--steps 1000000 --val-every 1", "train_loss"},
    {"samples", "--steps 1000000 --val-data none --sample-every 1 --sample-tokens 100000", "train_loss"},
    {"saving", "--steps 100000000 --val-data none --save-every 1 --keep 2", "train_loss"},
    {"saving in the background",
     "--steps 100000000 --val-data none --save-every 1 --keep 2 --save-mode async", "train_loss"},
    {"the end", "--steps 1", "train_loss"}};
const int kSignals[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1};

void default_signals() {
    for (int which : kSignals) { std::signal(which, SIG_DFL); }
}

int64_t steps_in_log(const std::string& run) {
    const std::string log = read_bytes(run + "/log.jsonl");
    int64_t steps = 0;
    for (size_t at = 0; (at = log.find("train_loss", at)) != std::string::npos; at++) { steps++; }
    return steps;
}

struct Place {
    TempFolder folder;
    Place() {
        write_token_shard(folder / "tr.bin", learnable_tokens(40, 3, 1), 257);
        write_token_shard(folder / "va.bin", learnable_tokens(40000, 3, 2), 257);
    }
    Words options(const std::string& run, const std::string& more) const {
        std::string all = "--train-data " + folder / "tr.bin --layers 1 --heads 1 --channels 16 --batch 2 " +
                          "--seq-len 32 --lr 0.001 --warmup 0 --final-lr-fraction 1 --out " + run + " " +
                          more;
        if (all.find("--val-data") == std::string::npos) { all += " --val-data " + folder / "va.bin"; }
        if (all.find("--val-every") == std::string::npos) { all += " --val-every 0"; }
        if (all.find("--sample-every") == std::string::npos) { all += " --sample-every 0"; }
        return words(all);
    }
};

// "" if a run that gets this signal leaves a checkpoint of its current step; *seconds: until it has ended
std::string try_signal(const Place& place, const Phase& phase, int which, const std::string& name,
                       std::mt19937_64* random, double* seconds) {
    const std::string run = place.folder / name, streams = run + ".streams";
    fs::create_directories(streams);
    pid_t pid = start_prepared(streams, place.options(run, phase.more), default_signals);
    const auto begin = Clock::now();
    while (*phase.sign != '\0' && read_bytes(run + "/log.jsonl").find(phase.sign) == std::string::npos) {
        if (seconds_since(begin) > 60) { break; }
        usleep(1000);
    }
    usleep((useconds_t)((*random)() % (*phase.sign != '\0' ? 100'000 : 40'000)));
    if (which == SIGUSR1) {
        for (int i = 0; i < 3; i++) {
            kill(pid, which);
            usleep((useconds_t)((*random)() % 20'000));
        }
    }
    const auto asked = Clock::now();
    kill(pid, which == SIGUSR1 ? SIGTERM : which);
    ProgramRun result = finish_train(streams, pid);
    *seconds = seconds_since(asked);
    const int signal_code = 128 + (which == SIGUSR1 ? SIGTERM : which);
    const bool at_start = *phase.sign == '\0';
    std::string wrong;
    if (at_start && (result.exit_code == signal_code || result.exit_code == 128 + SIGUSR1)) {
        // it was not yet a run: another one can begin
    } else if (result.exit_code != kExitPreempted) {
        wrong = fmt::format("ends with {}: {}", result.exit_code, result.err);
    } else {
        std::string notes, found = find_checkpoint(run, &notes);
        const std::string expected = checkpoint_name(run, steps_in_log(run));
        if (found != expected || !notes.empty()) {
            wrong = "found " + found + ", not " + expected + " " + notes;
        }
    }
    fs::remove_all(run);
    return wrong;
}

}  // namespace

TEST_CASE("signals: in everything that a run does") {
    Place place;
    const int64_t repeats = 10, phases = std::size(kPhases), signals = std::size(kSignals);
    std::atomic<int64_t> lost = 0, tried = 0;
    std::mutex mutex;
    double longest = 0;
    side_by_side(phases * signals * repeats, [&](int64_t i) {
        // of each phase and signal as many
        if ((uint64_t)(i / (phases * signals)) % (uint64_t)suite_part != suite_seed % (uint64_t)suite_part) {
            return;
        }
        const Phase& phase = kPhases[i % phases];
        const int which = kSignals[i / phases % signals];
        std::mt19937_64 random(suite_seed * 1000 + (uint64_t)i);
        double seconds = 0;
        std::string wrong = try_signal(place, phase, which, fmt::format("run{}", i), &random, &seconds);
        tried++;
        std::lock_guard lock(mutex);
        longest = std::max(longest, seconds);
        if (!wrong.empty()) { FAIL_CHECK(std::string(phase.name), ", signal ", which, ": ", wrong); }
        lost += !wrong.empty();
    });
    CHECK(longest < 30);
    report("signals: 8 phases, TERM INT HUP USR1", tried, lost,
           fmt::format("{:.1f} s to the end at most", longest));
}

TEST_CASE("kills: at random moments of one run, which ends as if nothing had been") {
    Place place;
    const int64_t kills = 200 / suite_part;
    const std::string more =
        fmt::format("--steps {} --val-data none --save-every 20 --keep 2 --quiet ", (long long)kills * 250);
    const std::string whole = place.folder / "whole", run = place.folder / "run";
    REQUIRE(run_train(place.folder.path(), place.options(whole, more)).exit_code == kExitDone);
    const Reference reference(whole);
    std::mt19937_64 random(suite_seed);
    int64_t killed = 0;
    for (; killed < kills; killed++) {
        pid_t pid = start_train(place.folder.path(), place.options(run, more + "--resume auto --save-mode " +
                                                                            (killed % 2 ? "sync" : "async")));
        usleep((useconds_t)(random() % 80'000));
        kill(pid, SIGKILL);
        ProgramRun result = finish_train(place.folder.path(), pid);
        if (result.exit_code == kExitDone) { break; }
        CHECK_MESSAGE(result.exit_code == 128 + SIGKILL, result.err);
    }
    ProgramRun last = run_train(place.folder.path(), place.options(run, more + "--resume auto"));
    CHECK_MESSAGE(last.exit_code == kExitDone, last.err);
    const std::string wrong = reference.difference(run);
    CHECK_MESSAGE(wrong.empty(), wrong);
    report("kills at random moments of one run", killed, !wrong.empty(),
           "the undisturbed run's bits at its end");
}

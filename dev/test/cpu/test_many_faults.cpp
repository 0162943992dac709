// Ranks that are killed or stopped at random moments: the job ends in time, says which rank it was, at which
// step and in which call, and what it had saved is whole. PLUMB_FAULTS=N in the environment: N of them.
#include <chrono>
#include <csignal>
#include <filesystem>
#include <random>

#include <doctest/doctest.h>

#include "dev/test/cpu/many_ranks.h"
#include "dev/test/cpu/train_program.h"
#include "llmc/model/checkpoint.h"
#include "llmc/model/run_folder.h"

using namespace llmc;

namespace {

constexpr int kRanks = 3, kTimeout = 3;

struct Faults {
    TempFolder folder;
    std::string run = folder / "run";
    std::mt19937 random{(unsigned)std::chrono::steady_clock::now().time_since_epoch().count()};

    Faults() { write_tiny_data(folder.path()); }
    int pick(int n) { return (int)(random() % (unsigned)n); }
    Words options(const std::string& more) const {
        return tiny_run(folder.path(),
                        "--quiet --sample-every 0 --val-every 7 --save-every 3 --keep 3 --batch 2 "
                        "--total-batch 288 --reduce-groups 6 --resume auto --schedule constant --lr 0.001 "
                        "--warmup 0 --out " +
                            run + " " + more);
    }

    // starts or goes on, and does this to one rank at a random moment
    void one(int signal) {
        const size_t before = read_log(run).size();
        const pid_t pid = start_prepared(
            folder.path(), options(strf("--steps 1000000 --ranks %d --comm-timeout %d", kRanks, kTimeout)),
            default_signals);
        wait_until([&] { return read_log(run).size() > before || has_ended(pid); });
        if (has_ended(pid)) {
            const ProgramRun early = finish_train(folder.path(), pid);
            FAIL("it ended before: ", early.exit_code, early.err);
        }
        usleep((useconds_t)pick(300'000));
        const std::vector<pid_t> ranks = ranks_of(pid);
        REQUIRE(ranks.size() == kRanks);
        const int culprit = pick(kRanks);
        const auto begin = std::chrono::steady_clock::now();
        kill(ranks[(size_t)culprit], signal);
        const ProgramRun r = finish_train(folder.path(), pid);
        const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        CAPTURE(signal);
        CAPTURE(culprit);
        CAPTURE(r.err);
        CHECK(r.exit_code == kExitPeerLost);
        CHECK(took < (signal == SIGKILL ? 30 : kTimeout + 5));
        CHECK(r.err.find(strf("rank %d (process %d on ", culprit, (int)ranks[(size_t)culprit])) !=
              std::string::npos);
        CHECK(r.err.find(signal == SIGKILL ? "is gone: killed" : "has given no sign for 3 s") !=
              std::string::npos);
        CHECK(r.err.find("at step ") != std::string::npos);
        CHECK(r.err.find(" '") != std::string::npos);
        for (pid_t rank : ranks) { CHECK(kill(rank, 0) != 0); }
        check_checkpoint();
    }

    // what is there can be gone on from, and no later than the log
    void check_checkpoint() const {
        std::string notes;
        const std::string newest = find_checkpoint(run, &notes);
        if (!newest.empty()) { CHECK(inspect_checkpoint(newest).damage == ""); }
    }
};

}  // namespace

TEST_CASE(
    "many ranks and faults: a rank that is killed or stopped ends the job, and it goes on from what was "
    "saved") {
    const char* given = std::getenv("PLUMB_FAULTS");
    const int count = given != nullptr ? std::stoi(given) : 10;
    Faults faults;
    for (int i = 0; i < count; i++) { faults.one(i % 2 == 0 ? SIGKILL : SIGSTOP); }
    // all the ends and new starts have changed no bit of the run
    std::string notes;
    const std::string newest = find_checkpoint(faults.run, &notes);
    REQUIRE(newest != "");
    const long long step = std::stoll(newest.substr(newest.rfind('_') + 1));
    Words straight = faults.options(strf("--steps %lld", step));
    for (std::string& word : straight) {
        if (word == faults.run) { word = faults.folder / "straight"; }
    }
    const ProgramRun r = run_train(faults.folder.path(), straight);
    CHECK_MESSAGE(r.exit_code == kExitDone, r.err);
    CHECK(same_files(newest + "/model.safetensors",
                     faults.folder / strf("straight/step_%08lld/model.safetensors", step)));
    REQUIRE(std::filesystem::exists(newest + "/optimizer.safetensors"));
    CHECK(same_files(newest + "/optimizer.safetensors",
                     faults.folder / strf("straight/step_%08lld/optimizer.safetensors", step)));
}

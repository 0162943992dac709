// A job whose ranks are killed or stopped at random moments: it ends in time, says which rank it was, at which step
// and in which call, and what it had saved is whole.
#pragma once
#include <random>
#include <utility>

#include "dev/test/support/many_ranks.h"
#include "llmc/model/formats/checkpoint.h"
#include "llmc/model/run/folder.h"

namespace llmc {

inline double seconds_since(std::chrono::steady_clock::time_point begin) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Seconds until this process has ended, in ticks as the watchdog counts them: while the machine stood still, nobody was
// late.
inline double seconds_to_end(pid_t pid) {
    double seconds = 0;
    while (!has_ended(pid) && seconds < 100) {
        const auto begin = std::chrono::steady_clock::now();
        usleep(10'000);
        seconds += std::min(0.1, seconds_since(begin));
    }
    return seconds;
}

struct RankFaults {
    static constexpr int kTimeout = 3;  // --comm-timeout
    const std::string program;
    const int ranks;
    TempFolder folder;
    std::string run = folder / "run";
    std::mt19937 random{(unsigned)std::chrono::steady_clock::now().time_since_epoch().count()};
    double quickest_stop = 100;  // seconds from a rank's stop to the job's end

    RankFaults(std::string program, int ranks) : program(std::move(program)), ranks(ranks) {
        write_tiny_data(folder.path());
    }
    int pick(int n) { return (int)(random() % (unsigned)n); }
    Words options(const std::string& out, const std::string& more) const {
        return tiny_run(folder.path(),
                        "--quiet --sample-every 0 --val-every 7 --save-every 3 --keep 3 --batch 2 "
                        "--total-batch 288 --reduce-groups 6 --resume auto --schedule constant --lr 0.001 "
                        "--warmup 0 --out " +
                            out + " " + more);
    }

    // starts or goes on, and does this to one rank at a random moment
    void one(int signal) {
        const auto lines = [&] { return std::ranges::count(read_bytes(run + "/log.jsonl"), '\n'); };
        const int64_t before = lines();  // the last may have no end: its writer was killed
        const pid_t pid = start_prepared(
            folder.path(),
            options(run, fmt::format("--steps 1000000 --ranks {} --comm-timeout {}", ranks, kTimeout)),
            default_signals, program);
        wait_until([&] { return lines() > before || has_ended(pid); });
        if (has_ended(pid)) {
            const ProgramRun early = finish_train(folder.path(), pid);
            FAIL("it ended before: ", early.exit_code, early.err);
        }
        usleep((useconds_t)pick(300'000));
        const std::vector<pid_t> pids = ranks_of(pid);
        REQUIRE((int)pids.size() == ranks);
        const int culprit = pick(ranks);
        const auto begin = std::chrono::steady_clock::now();
        kill(pids[(size_t)culprit], signal);
        const double took = seconds_to_end(pid);
        if (signal == SIGSTOP) { quickest_stop = std::min(quickest_stop, seconds_since(begin)); }
        const ProgramRun r = finish_train(folder.path(), pid);
        INFO("signal ", signal, ", culprit ", culprit);
        check_run(r, kExitPeerLost,
                  {fmt::format("rank {} (process {} on ", culprit, (int)pids[(size_t)culprit]),
                   signal == SIGKILL ? "is gone: killed" : "has given no sign for 3 s", " '"});
        CHECK(took < (signal == SIGKILL ? 30 : kTimeout + 5));
        // a run that goes on has written a line before its first step
        CHECK_MESSAGE((contains(r.err, "at step ") || contains(r.err, "before the first step")), r.err);
        for (pid_t rank : pids) { CHECK(kill(rank, 0) != 0); }
        std::string notes;  // what is there can be gone on from
        const std::string newest = find_checkpoint(run, &notes);
        if (!newest.empty()) { CHECK(inspect_checkpoint(newest).damage == ""); }
    }
    void several(int count) {
        for (int i = 0; i < count; i++) { one(i % 2 == 0 ? SIGKILL : SIGSTOP); }
        // the launcher does not wait three seconds more for a rank that cannot leave
        CHECK((count < 10 || quickest_stop < kTimeout + 2.5));
    }

    // all the ends and new starts have changed no bit of the run
    void check_against_straight_run() const {
        std::string notes;
        const std::string newest = find_checkpoint(run, &notes);
        REQUIRE(newest != "");
        const long long step = std::stoll(newest.substr(newest.rfind('_') + 1));
        const std::string straight = folder / "straight";
        const Words all = options(straight, fmt::format("--steps {}", step));
        run_well(folder.path(), all, program);
        for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
            REQUIRE(fs::exists(newest + "/" + file));
            CHECK(same_files(newest + "/" + file, straight + fmt::format("/step_{:08}/", step) + file));
        }
    }
};

// Of two ranks the second finds its shard of tokens shorter than it was: the run ends with that rank's message.
inline void check_rank_that_fails(const std::string& program) {
    const RunsOfRanks runs;
    const std::string out = runs.out("run"), shard = runs.folder / "train.bin";
    const int port = 21000 + getpid() % 8000;
    pid_t pids[2];
    std::string folders[2];
    for (int rank = 0; rank < 2; rank++) {  // each with a shard of its own, by the same name
        folders[rank] = runs.folder / std::to_string(rank);
        fs::create_directories(folders[rank]);
        fs::copy(shard, folders[rank] + "/train.bin");
        Words options = runs.options("run", fmt::format("--steps 1000000 --total-batch 96 --reduce-groups 2 "
                                                        "--val-every 0 --sample-every 0 --comm-timeout 10 "
                                                        "--world-size 2 --rank {} --master 127.0.0.1:{}",
                                                        rank, port));
        for (std::string& word : options) {
            if (word == shard) { word = "train.bin"; }
        }
        auto in_its_folder = [&] { (void)!chdir(folders[rank].c_str()); };
        pids[rank] = start_prepared(folders[rank], options, in_its_folder, fs::absolute(program));
    }
    wait_until([&] { return read_log(out).size() > 20 || has_ended(pids[0]); });
    fs::resize_file(folders[1] + "/train.bin", 1100);
    const double took = seconds_to_end(pids[1]) + seconds_to_end(pids[0]);
    check_run(finish_train(folders[1], pids[1]), kExitBadInput);
    check_run(finish_train(folders[0], pids[0]), kExitBadInput, {"train.bin: cannot read"});
    CHECK(took < 10);
}

}  // namespace llmc

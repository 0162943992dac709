// One run in many processes: the same bits whatever their number, stopped by a signal to any of them, and one error message.
// Ranks that are killed or stopped at random moments: test_many_faults.cpp.
#include "dev/test/support/many_ranks.h"
#include "llmc/host/tokens/dataloader.h"
#include "llmc/model/formats/checkpoint.h"
#include "llmc/model/run/folder.h"

using namespace llmc;

namespace {

// where ranks that are started one by one meet
std::string by_options(int rank) {
    return fmt::format("--world-size 2 --rank {} --master 127.0.0.1:{} ", rank, 21000 + getpid() % 8000);
}

struct Place : RunsOfRanks {
    ProgramRun run(const std::string& name, const std::string& more) const {
        return run_train(folder.path(), options(name, more));
    }
    // three ranks that have made some steps
    pid_t start_endless(const std::string& name) const {
        const pid_t pid = start_prepared(
            folder.path(), options(name, "--ranks 3 --steps 1000000 --sample-every 0"), default_signals);
        wait_until([&] { return read_log(out(name)).size() >= 3; });
        return pid;
    }
    void check_run(const std::string& name, const std::string& more) const {
        CHECK(run_well(folder.path(), options(name, more)).err == "");
    }
};

}  // namespace

TEST_CASE("many ranks: four groups give the same bits in 1, 2 and 4 ranks") {
    Place p;
    const std::string run = "--steps 4 --total-batch 192 --val-every 2 --sample-every 2 --save-every 2 ";
    p.check_run("one", run + "--reduce-groups 4");
    p.check_run("two", run + "--ranks 2 --reduce-groups 4 --check-ranks 1");
    p.check_run("four", run + "--ranks 4 --save-mode async");
    p.check_run("whole", run + "--ranks 2 --reduce-groups 4 --zero 0");
    for (const char* other : {"two", "four", "whole"}) { p.check_same("one", other, "step_00000002"); }
    // the groups are of the numbers: another number of them is another rounding, but nearly the same
    p.check_run("plain", run);
    CHECK_FALSE(same_files(p.out("one") + "/model.bin", p.out("plain") + "/model.bin"));
    const auto a = read_log(p.out("one")), b = read_log(p.out("plain"));
    REQUIRE(a.size() == b.size());
    CHECK(std::abs(a.back()["val_loss"].get<double>() - b.back()["val_loss"].get<double>()) < 1e-3);
}

TEST_CASE("many ranks: six groups give the same bits in 1, 2 and 3 ranks, and other numbers are refused") {
    Place p;
    const std::string run = "--steps 3 --total-batch 144 --reduce-groups 6 --val-every 2 --save-every 2 ";
    p.check_run("one", run);
    p.check_run("two", run + "--ranks 2");
    p.check_run("three", run + "--ranks 3");
    for (const char* other : {"two", "three"}) { p.check_same("one", other, "step_00000002"); }
    ProgramRun r = p.run("four", run + "--ranks 4");
    CHECK(r.exit_code == kExitUsage);
    CHECK(r.err ==
          "train_gpt2: the gradients are added in 6 groups, which 4 ranks cannot share evenly. Use 1, 2, "
          "3, 6 ranks.\n");  // the step's 6 micro-batches do not fill 4 groups
    r = p.run("other", "--steps 3 --total-batch 144 --reduce-groups 3 --ranks 2");
    CHECK(r.err ==
          "train_gpt2: the gradients are added in 3 groups, which 2 ranks cannot share evenly. Use 1, 3 "
          "ranks, or change the groups: --reduce-groups 2 (a run that goes on is then the same but for "
          "rounding).\n");
    check_run(p.run("odd", "--steps 3 --total-batch 120 --ranks 4"), kExitUsage,
              {"Nearest: --total-batch 96 or 192"});
    CHECK_FALSE(fs::exists(p.out("odd")));
}

TEST_CASE("many ranks: a run goes on in another number of ranks, bit for bit") {
    Place p;
    const std::string run =
        "--total-batch 192 --val-every 2 --sample-every 0 --save-every 2 --resume auto --schedule constant ";
    p.check_run("straight", run + "--steps 6 --reduce-groups 4");
    p.check_run("moved", run + "--steps 2 --ranks 4");
    p.check_run("moved", run + "--steps 4");  // its groups are in its config.toml
    p.check_run("moved", run + "--steps 6 --ranks 2");
    for (const char* file : {"/model.bin", "/step_00000006/optimizer.safetensors"}) {
        CHECK(same_files(p.out("straight") + file, p.out("moved") + file));
    }
    // to ranks that do not divide its groups it goes by changing them, which is said
    CHECK(p.run("moved", run + "--steps 8 --ranks 3").exit_code == kExitUsage);
    check_run(p.run("moved", run + "--steps 8 --ranks 2 --reduce-groups 2"), kExitDone,
              {"reduce-groups was 4, is 2 from here on: the same run but for rounding"});
}

TEST_CASE("many ranks: by options, by torchrun's variables, and with options that differ") {
    Place p;
    const std::string run = "--steps 2 --total-batch 192 --val-every 2 --sample-every 0 ";
    p.check_run("one", run + "--reduce-groups 2");
    const auto both = [&](const std::string& name, const Words& more, bool torchrun, const char* token) {
        pid_t pids[2];
        for (int rank : {0, 1}) {
            const std::string own = p.folder / fmt::format("{}{}", name, rank);
            fs::create_directories(own);
            const std::string options = run + (torchrun ? "" : by_options(rank)) + more[(size_t)rank];
            pids[rank] = start_prepared(own, p.options(name, options), [&] {
                if (token != nullptr) { setenv("PLUMB_TOKEN", token, 1); }
                if (!torchrun) { return; }
                setenv("RANK", rank == 0 ? "0" : "1", 1);
                setenv("WORLD_SIZE", "2", 1);
                setenv("MASTER_ADDR", "localhost", 1);
                setenv("MASTER_PORT", std::to_string(21000 + getppid() % 8000).c_str(), 1);
            });
        }
        return std::vector{finish_train(p.folder / (name + "0"), pids[0]),
                           finish_train(p.folder / (name + "1"), pids[1])};
    };
    for (bool torchrun : {false, true}) {
        const std::string name = torchrun ? "torchrun" : "options";
        const std::vector<ProgramRun> runs = both(name, {"", ""}, torchrun, nullptr);
        for (const ProgramRun& r : runs) { check_run(r, kExitDone); }
        CHECK(runs[1].out == "");
        p.check_same("one", name, "step_00000002");
    }
    const std::vector<ProgramRun> runs = both("differ", {"", "--weight-decay 0.5"}, false, "job7");
    check_run(runs[0], kExitUsage, {"weight-decay = 0.5', rank 0 with 'weight-decay = 0'"});
    check_run(runs[1], kExitUsage);
    CHECK(runs[1].err == "");
}

namespace {

// Two ranks, each with a disk of its own: in the folders a and b of `folder` the same data, a model and a run.
struct TwoDisks {
    TempFolder folder;
    std::vector<uint16_t> tokens = learnable_tokens(40, 3, 1);

    TwoDisks() {
        for (const char* disk : {"a", "b"}) {
            fs::create_directories(folder / disk);
            write_tiny_data(folder / disk);
        }
        REQUIRE(train("--steps 2 --save-every 2 --out run")[0].exit_code == kExitDone);
        fs::copy(folder / "a/run", folder / "b/run", fs::copy_options::recursive);
    }
    std::vector<ProgramRun> train(const std::string& more, const char* threads = "1") const {
        const std::string program = fs::absolute(train_program());
        pid_t pids[2];
        for (int rank : {1, 0}) {
            const std::string disk = folder / (rank == 0 ? "a" : "b");
            const char* sizes = contains(more, "--model") ? "" : "--layers 1 --heads 1 --channels 16 ";
            const std::string options = fmt::format(
                "--train-data train.bin --val-data val.bin --seq-len 12 --batch 2 --sample-every 0 "
                "--quiet --schedule constant --lr 0.001 --warmup 0 --comm-timeout 60 {}{}",
                sizes, by_options(rank));
            const auto prepare = [&] {
                (void)!chdir(disk.c_str());
                if (rank == 1) { setenv("OMP_NUM_THREADS", threads, 1); }
            };
            pids[rank] = start_prepared(disk, words(options + more), prepare, program);
        }
        return {finish_train(folder / "a", pids[0]), finish_train(folder / "b", pids[1])};
    }
    void check_refused(const std::string& says, const std::string& more, const char* threads = "1") const {
        const std::vector<ProgramRun> runs = train(more, threads);
        check_run(runs[0], kExitBadInput, {"rank 1 (process ", "this rank has other " + says});
        check_run(runs[1], kExitBadInput);
        CHECK(runs[1].err == "");
    }
};

}  // namespace

TEST_CASE("many ranks: what a rank reads must be what rank 0 reads") {
    TwoDisks p;
    const std::string run = "--steps 3 --out new ";
    const auto write = [&](const char* split, std::vector<uint16_t> tokens) {
        write_token_shard(p.folder / "b/" + split + ".bin", tokens, 257);
        const bool train = split == std::string("train");
        p.check_refused(fmt::format("{} data of {}.bin than rank 0: shard 1: found {}.bin of ",
                                    train ? "training" : "validation", split, split),
                        run);
    };
    const auto change_end = [&](const std::string& file) {
        std::string bytes = read_bytes(p.folder / file);
        bytes[bytes.size() - 4] ^= 1;
        write_bytes(p.folder / file, bytes);
    };
    SUBCASE("other tokens, one edited token or fewer of them, and other validation data") {
        write("train", learnable_tokens(40, 3, 9));
        std::vector<uint16_t> edited = p.tokens;
        edited[edited.size() - 3] ^= 1;
        write("train", edited);
        write("train", {p.tokens.begin(), p.tokens.end() - 40});
        write_token_shard(p.folder / "b/train.bin", p.tokens, 257);
        write("val", learnable_tokens(6, 3, 9));
    }
    SUBCASE("no val.json") {
        write_bytes(p.folder / "a/val.json", R"({"entropy_nats_per_token": 0.2, "probes": {}})");
        p.check_refused("entropy in the val.json beside val.bin than rank 0: found 0, expected 0.2", run);
    }
    SUBCASE("another run's checkpoint of that name") {
        REQUIRE(p.train("--steps 2 --save-every 2 --seed 9 --out other")[0].exit_code == kExitDone);
        fs::remove_all(p.folder / "b/run");
        fs::copy(p.folder / "a/other", p.folder / "b/run", fs::copy_options::recursive);
        p.check_refused("weights in run/step_00000002 than rank 0: found XXH3 ",
                        "--steps 3 --resume auto --out run");
    }
    SUBCASE("another model to begin with") {
        change_end("b/run/model.bin");
        p.check_refused("weights in run/model.bin than rank 0: found XXH3 ", run + "--model run/model.bin");
    }
    SUBCASE("another model in Hugging Face's files") {
        for (const char* disk : {"a/hf", "b/hf"}) {
            fs::copy(p.folder / "a/run/step_00000002", p.folder / disk);
            fs::remove(p.folder / disk + "/MANIFEST");
        }
        change_end("b/hf/model.safetensors");
        p.check_refused("weights in hf than rank 0: found XXH3 ", run + "--model hf");
    }
    SUBCASE("another number of threads") {
        p.check_refused("threads or another CPU than rank 0: found CPU, 2 threads", run, "2");
    }
    SUBCASE("the same on both disks") {
        for (const std::string more :
             {"--steps 3 --model run --out new", "--steps 3 --resume auto --out run"}) {
            for (const ProgramRun& r : p.train(more)) { check_run(r, kExitDone); }
        }
    }
}

TEST_CASE("many ranks: what is predicted right is counted whichever rank saw it") {
    Place p;
    Json known = Json::array();  // the a of each cat
    const std::vector<uint16_t> tokens = learnable_tokens(6, 3, 2);
    for (int64_t i = 0; i < (int64_t)tokens.size(); i++) {
        if (i % (3 * kSentence + 1) % kSentence == 2) { known.push_back({i, 1}); }
    }
    write_bytes(p.folder / "val.json",
                Json{{"entropy_nats_per_token", 0.2}, {"probes", {{"cats", known}}}}.dump());
    EvalFileWriter questions(257);  // rank 0 asks them
    for (int i = 0; i < 9; i++) {
        questions.add(i % 4, {99, 97, 116 + i}, {{{32}, {115, 97}, {49}, {46}}}, "");
    }
    questions.write(p.folder / "questions.bin");
    std::vector<std::string> lines;
    for (const char* ranks : {"1", "2", "3"}) {
        const std::string more =
            "--steps 40 --reduce-groups 6 --sample-every 0 --hellaswag-every 20 --hellaswag " +
            p.folder / "questions.bin --ranks ";
        const ProgramRun r = run_well(p.folder.path(), p.options(ranks, more + ranks));
        const size_t at = r.out.find("accuracy on cats");
        REQUIRE_MESSAGE(at != std::string::npos, r.out);
        lines.push_back(r.out.substr(at, r.out.find("curves: ") - at));
    }
    CHECK(lines[1] == lines[0]);
    CHECK(lines[2] == lines[0]);
    const auto log = read_log(p.out("1"));
    CHECK(std::count_if(log.begin(), log.end(),
                        [](const Json& line) { return line.contains("hellaswag_acc"); }) == 2);
    for (const char* ranks : {"2", "3"}) { CHECK(read_log(p.out(ranks)) == log); }
    CHECK_MESSAGE(std::stod(lines[0].substr(17)) > 50, lines[0]);
}

TEST_CASE("many ranks: a rank that waits says so; one that an earlier job has left does not end the next") {
    Place p;
    const auto start = [&](const std::string& name, int rank, const std::string& more) {
        fs::create_directories(p.folder / name);
        return start_train(p.folder / name,
                           p.options("run", "--steps 2 --total-batch 48 " + by_options(rank) + more));
    };
    const pid_t left = start("left", 1, "--weight-decay 0.5 --comm-timeout 100");
    wait_until([&] {
        return contains(read_bytes(p.folder / "left/stderr"), "waiting: rank 1 cannot reach rank 0");
    });
    const pid_t zero = start("zero", 0, "");
    wait_until([&] {
        return contains(read_bytes(p.folder / "zero/stderr"),
                        "waiting: of 2 ranks, rank 1: not come to 127.0.0.1:");
    });
    const pid_t taken = start("taken", 0, "--comm-timeout 4");
    CHECK(finish_train(p.folder / "taken", taken).exit_code == kExitPeerLost);
    CHECK(contains(read_bytes(p.folder / "taken/stderr"), "waiting: port "));
    const pid_t one = start("one", 1, "");
    for (const auto& [name, pid] : {std::pair{"one", one}, {"zero", zero}}) {
        check_run(finish_train(p.folder / name, pid), kExitDone);
    }
    CHECK_FALSE(has_ended(left));
    kill(left, SIGTERM);
    CHECK(finish_train(p.folder / "left", left).exit_code == 128 + SIGTERM);
}

TEST_CASE("many ranks: two jobs of MPICH's launcher, which numbers none, on one host at the same time") {
    Place p;
    const auto launch = [&](const std::string& name) {
        fs::create_directories(p.folder / name);
        std::string options, ranks;
        for (const std::string& word : p.options(name, "--steps 3 --total-batch 48")) {
            options += word + " ";
        }
        for (int rank : {0, 1}) {  // each in a shell of its own, as a script that wraps the program
            ranks += fmt::format(
                "PMI_RANK={} PMI_SIZE=2 MPI_LOCALRANKID={} MPI_LOCALNRANKS=2 sh -c '{} {}; exit $?' & ", rank,
                rank, train_program(), options);
        }
        return start_prepared(
            p.folder / name, {"-c", ranks + "wait $! && wait"}, [] {}, "/bin/sh");
    };
    const pid_t a = launch("a"), b = launch("b");
    for (const auto& [name, pid] : {std::pair("a", a), std::pair("b", b)}) {
        const ProgramRun r = finish_train(p.folder / name, pid);
        CHECK_MESSAGE(r.exit_code == kExitDone, r.err);
        CHECK(r.err == "");
        CHECK(fs::exists(p.out(name) + "/model.bin"));
    }
}

TEST_CASE("many ranks: an error ends all and is printed once") {
    Place p;
    ProgramRun r = p.run("missing", "--ranks 3 --tokenizer " + p.folder / "none.bin");
    CHECK(r.exit_code == kExitBadInput);
    CHECK_MESSAGE(std::count(r.err.begin(), r.err.end(), '\n') == 1, r.err);
    const std::string wild = "--ranks 2 --steps 400 --clip 0 --schedule constant --beta2 0 --eps 1e-37";
    r = run_train(p.folder.path(), p.options("diverged", wild, "10"));
    CHECK(r.exit_code == kExitDiverged);
    CHECK_MESSAGE(std::count(r.err.begin(), r.err.end(), '\n') == 1, r.err);
}

TEST_CASE("many ranks: a signal to the launcher or to any rank saves once and ends all") {
    Place p;
    for (int target : {-1, 0, 2}) {
        const std::string name = fmt::format("run{}", target);
        CAPTURE(name);
        const pid_t pid = p.start_endless(name);
        const std::vector<pid_t> ranks = ranks_of(pid);
        REQUIRE(ranks.size() == 3);
        kill(target < 0 ? pid : ranks[(size_t)target], SIGTERM);
        const ProgramRun r = finish_train(p.folder.path(), pid);
        CHECK_MESSAGE(r.exit_code == kExitPreempted, r.err);
        CHECK(r.err == "");
        std::string notes;
        const int64_t step = read_log(p.out(name)).back()["step"].get<int64_t>();
        CHECK(find_checkpoint(p.out(name), &notes) == checkpoint_name(p.out(name), step));
        for (pid_t rank : ranks) { CHECK(kill(rank, 0) != 0); }
    }
}

TEST_CASE("many ranks: Ctrl-Z stops the launcher and every rank, and fg continues them") {
    Place p;
    const pid_t pid = p.start_endless("run");
    std::vector<pid_t> all = ranks_of(pid);
    all.push_back(pid);
    const auto stopped = [&] {
        return std::ranges::count_if(
            all, [](pid_t one) { return contains(read_bytes(fmt::format("/proc/{}/stat", one)), ") T "); });
    };
    kill(pid, SIGTSTP);
    wait_until([&] { return stopped() == 4; });
    kill(pid, SIGCONT);
    wait_until([&] { return stopped() == 0; });
    kill(pid, SIGTERM);
    CHECK(finish_train(p.folder.path(), pid).exit_code == kExitPreempted);
}

TEST_CASE("many ranks: USR1 to the launcher, which passes it on to every rank, saves once") {
    Place p;
    const pid_t pid = p.start_endless("usr1");
    const auto saved = [&] { return names_below(p.out("usr1"), "step_").size(); };
    kill(pid, SIGUSR1);
    wait_until([&] { return saved() > 0; });
    usleep(1'500'000);  // each rank has told rank 0 by then
    kill(pid, SIGTERM);
    CHECK(finish_train(p.folder.path(), pid).exit_code == kExitPreempted);
    CHECK(saved() == 2);
}

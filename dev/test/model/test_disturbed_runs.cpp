// What disturbs a run from outside: signals, streams that nobody reads, files that change or are none, memory, threads
// and files that are not there. It saves the step that it is at and leaves, goes on, or says what is wrong; nothing
// waits for ever.
#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <new>

#include "dev/test/support/any_model.h"
#include "dev/test/support/test_options.h"
#include "dev/test/support/train_program.h"
#include "llmc/host/base/stop_signal.h"
#include "llmc/host/tokens/dataloader.h"
#include "llmc/model/cpu/gpt2.h"
#include "llmc/model/run/folder.h"
#include "llmc/model/run/trainer.h"

using namespace llmc;

namespace {

struct DisturbedRuns : Runs {
    const std::string out = folder / "run";
    DisturbedRuns()
        : Runs("--quiet --sample-every 0 --val-every 0 --lr 0.001 --warmup 0 --final-lr-fraction 1") {}

    size_t logged() const { return read_log(out).size(); }
    int64_t last_step() const { return read_log(out).back()["step"]; }
    // starts a run, and sends it a signal when it has come so far
    ProgramRun stop_when(const std::string& more, const std::function<bool()>& condition,
                         int which = SIGTERM) const {
        const pid_t pid = start("run", more);
        wait_until(condition);
        kill(pid, which);
        return finish_train(folder.path(), pid);
    }
    // the run has left a checkpoint of this step, of which a run can go on
    void check_saved(const ProgramRun& result, int64_t step) const {
        check_run(result, kExitPreempted, {}, {"--resume auto --out " + out});
        std::string notes;
        CHECK(find_checkpoint(out, &notes) == checkpoint_name(out, step));
        CHECK(notes == "");
    }
};

// how a copy of this program ends that does this with the signals of a run caught
int end_of(const std::function<void()>& body) {
    pid_t pid = fork();
    if (pid == 0) {
        default_signals();
        catch_run_signals();
        body();
        _exit(stop_requested != 0 ? 75 : 0);
    }
    int status = 0;
    REQUIRE(waitpid(pid, &status, 0) == pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// A model whose fourth step finds no memory, once, as `new` says it; or whose validation finds none at all.
template <bool kForGood>
class ShortOfMemory : public GPT2Cpu {
public:
    using GPT2Cpu::GPT2Cpu;
    bool enqueue_step(std::span<const Batch> batches, const StepParams& params) override {
        if (!kForGood && params.step == 3) { std::get_new_handler()(); }
        return GPT2Cpu::enqueue_step(batches, params);
    }
    Evaluation evaluate(const Batch& batch) override {
        if (kForGood) { throw std::bad_alloc(); }
        return GPT2Cpu::evaluate(batch);
    }
};

// as if SIGUSR1 came in each validation
class SavedInValidation : public GPT2Cpu {
public:
    using GPT2Cpu::GPT2Cpu;
    Evaluation evaluate(const Batch& batch) override {
        save_requested = 1;
        return GPT2Cpu::evaluate(batch);
    }
};

template <typename Kind>
Error end_of_run(const DisturbedRuns& p, const std::string& more) {
    Comm alone;
    const Options options = parse(p.options("run", "--steps 6 --val-every 4 " + more));
    Error end(-1, "");
    printed_by([&] {
        end = error_of(
            [&] { train_in_rank({[](const Options&) { return factory_of<Kind>(); }}, options, alone); });
    });
    stop_requested = 0;
    out_of_memory = 0;
    std::set_new_handler(nullptr);
    return end;
}

}  // namespace

TEST_CASE("signals: a run without memory saves what was trained and says so, with exit code 4") {
    const DisturbedRuns undisturbed;
    CHECK(end_of_run<GPT2Cpu>(undisturbed, "").exit_code == kExitDone);
    for (bool for_good : {false, true}) {
        const DisturbedRuns p;
        const Error end =
            for_good ? end_of_run<ShortOfMemory<true>>(p, "") : end_of_run<ShortOfMemory<false>>(p, "");
        check_error(end, kExitDevice, {"for want of memory", "--resume auto --out " + p.out});
        CHECK(names_below(p.out)[3] == (for_good ? "step_00000004" : "step_00000003"));
        CHECK(end_of_run<GPT2Cpu>(p, "--resume auto").exit_code == kExitDone);
        CHECK(same_files(p.out + "/model.bin", undisturbed.out + "/model.bin"));
        CHECK(read_log(p.out) == read_log(undisturbed.out));
    }
    stop_when_out_of_memory();
    int chances = 0;
    try {
        for (;; chances++) { std::get_new_handler()(); }
    } catch (const std::bad_alloc&) {}
    CHECK(chances == 64);
    CHECK(stop_requested == SIGTERM);
    stop_requested = 0;
    out_of_memory = 0;
    std::set_new_handler(nullptr);
}

TEST_CASE("signals: the second counts once a second has passed") {
    for (int first : {SIGTERM, SIGINT, SIGHUP}) {
        for (int second : {SIGTERM, SIGINT, SIGHUP}) {
            CHECK(end_of([&] {
                      raise(first);
                      raise(second);
                      raise(SIGTERM);
                  }) == 75);
        }
    }
    for (auto [first, second] : {std::pair{SIGTERM, SIGINT}, {SIGINT, SIGHUP}}) {
        CHECK(end_of([&] {
                  raise(first);
                  usleep(1'050'000);
                  raise(second);
              }) == 128 + second);
    }
    CHECK(end_of([] {
              for (int i = 0; i < 5; i++) { raise(SIGUSR1); }
              if (!save_requested) { _exit(1); }
          }) == 0);
    // ignored before: nohup, and & in a script
    CHECK(end_of([] {
              std::signal(SIGHUP, SIG_IGN);
              std::signal(SIGTERM, SIG_DFL);
              catch_run_signals();
              raise(SIGHUP);
          }) == 0);
}

TEST_CASE("signals: USR1 saves and goes on, any number of times") {
    const DisturbedRuns validated;
    end_of_run<SavedInValidation>(validated, "");
    // at 4, at the end, and once more with what came behind that
    CHECK(lines_with(read_bytes(validated.out + "/log.jsonl"), "\"save\"").size() == 3);
    const DisturbedRuns p;
    const pid_t pid = p.start("run", "--steps 1000000 --save-mode async");
    wait_until([&] { return p.logged() >= 2; });
    for (int i = 1; i <= 3; i++) {
        kill(pid, SIGUSR1);
        wait_until([&] {
            return i <= std::ranges::count_if(names_below(p.out, "step_"), [](const std::string& name) {
                       return !contains(name, ".tmp-");
                   });
        });
    }
    wait_until([&] { return lines_with(read_bytes(p.folder / "stdout"), "| saved").size() >= 3; });
    kill(pid, SIGTERM);
    const ProgramRun run = finish_train(p.folder.path(), pid);
    p.check_saved(run, p.last_step());
}

TEST_CASE("signals: with what a stopped run says to go on with, it is the same run") {
    const DisturbedRuns p;
    const std::string said = p.stop_when(
                                  "--steps 1000000 --weight-decay 0.25 --clip 0.5 --save-every 7 --keep 2",
                                  [&] { return p.logged() >= 5; })
                                 .out,
                      start = "go on with ";
    REQUIRE_MESSAGE(contains(said, start), said);
    const size_t begin = said.find(start) + start.size();
    const std::string was = read_bytes(p.out + "/config.toml");
    const size_t before = p.logged();
    const pid_t pid = start_prepared(
        p.folder.path(), words(said.substr(begin, said.find('\n', begin) - begin)), default_signals);
    wait_until([&] { return p.logged() > before; });
    kill(pid, SIGTERM);
    const ProgramRun again = finish_train(p.folder.path(), pid);
    CHECK(again.exit_code == kExitPreempted);
    CHECK_FALSE_MESSAGE(contains(again.err, " was "), again.err);
    const std::string is = read_bytes(p.out + "/config.toml");
    CHECK(changed(is, "resume = \"auto\"", "resume = \"none\"") == was);
}

TEST_CASE("signals: a stop is noticed in validation, in samples and between micro-batches") {
    const DisturbedRuns p;
    write_token_shard(p / "val.bin", learnable_tokens(200000, 3, 2), 257);
    auto check_stops = [&](const std::string& more, bool in_a_step, size_t logged) {
        CAPTURE(more);
        fs::remove_all(p.out);
        const ProgramRun run = p.stop_when(more, [&] {
            const bool begun = in_a_step ? fs::exists(p.out + "/config.toml")
                                         : contains(read_bytes(p.out + "/log.jsonl"), "train_loss");
            if (begun) { usleep(100'000); }
            return begun;
        });
        p.check_saved(run, (int64_t)logged);
        CHECK(p.logged() == logged);  // no line of a validation that was not finished
    };
    check_stops("--steps 9 --val-every 1", false, 1);
    check_stops("--steps 1 --val-every 20", false, 1);  // the one at the end
    check_stops("--steps 9 --sample-every 1 --sample-tokens 1000000 --temperature 0 --lr 0", false, 1);
    check_stops("--steps 9 --batch 1 --total-batch 12000000", true, 0);
}

TEST_CASE("signals: a stop is noticed within a micro-batch, and costs the step alone") {
    GPT2Cpu stopped(tiny_config(), 2, 5), other(tiny_config(), 2, 5);
    const Batch batch = random_batch(tiny_config(), 2, 5, 1);
    for (GPT2Cpu* model : {&stopped, &other}) { model->init(3); }
    const auto losses_of = [&](GPT2Cpu& model) {
        const std::span<const float> losses = model.evaluate(batch).losses;
        return std::vector<float>(losses.begin(), losses.end());
    };
    stop_requested = SIGTERM;
    CHECK_FALSE(stopped.enqueue_step({&batch, 1}, {.lr = 0.1}));
    const std::vector<float> losses = losses_of(stopped);  // a validation that began before goes on
    stop_requested = 0;
    CHECK(losses == losses_of(other));
    CHECK_FALSE(stopped.poll());
    check_same_state("after the stop", stopped, other);
    for (GPT2Cpu* model : {&stopped, &other}) { CHECK(model->enqueue_step({&batch, 1}, {.lr = 0.1})); }
    check_same_state("a step later", stopped, other);
}

TEST_CASE("signals: nobody reads the output") {
    const DisturbedRuns p;
    int pipe_ends[2];
    REQUIRE(pipe(pipe_ends) == 0);
    close(pipe_ends[0]);
    const auto nobody_reads = [&](std::initializer_list<int> streams) {
        return [&, streams] {
            std::signal(SIGPIPE, SIG_DFL);
            for (int stream : streams) { dup2(pipe_ends[1], stream); }
        };
    };
    pid_t pid = start_prepared(p.folder.path(), tiny_run(p.folder.path(), "--steps 6 --out " + p.out),
                               nobody_reads({STDOUT_FILENO, STDERR_FILENO}));
    const ProgramRun run = finish_train(p.folder.path(), pid);
    CHECK(run.exit_code == kExitDone);
    CHECK(read_log(p.out).size() == 6 + 1);
    CHECK(fs::exists(p.out + "/step_00000006"));

    pid = start_prepared(p.folder.path(), {"--help"}, nobody_reads({STDOUT_FILENO}));  // --help | head
    const ProgramRun help = finish_train(p.folder.path(), pid);
    CHECK(help.exit_code == 128 + SIGPIPE);
    CHECK(help.err == "");
    close(pipe_ends[1]);
}

// ---- files, memory and threads -----------------------------------------------------------------

TEST_CASE("changing files: a shard that shrinks during a run ends it with a word, and nothing is lost") {
    const DisturbedRuns p;
    const std::string shard = p / "train.bin", bytes = read_bytes(shard);
    const pid_t pid = p.start("run", "--steps 100000000");
    wait_until([&] { return contains(read_bytes(p.out + "/log.jsonl"), "\"step\":20,"); });
    fs::resize_file(shard, 1100);
    check_run(finish_train(p.folder.path(), pid), kExitBadInput, {shard + ": cannot read", "shorter"});
    const int64_t last = p.last_step();
    const std::string& run = p.out;
    std::string notes;
    CHECK(find_checkpoint(run, &notes) == checkpoint_name(run, last));
    // with the file as it was the run ends as if nothing had been
    write_bytes(shard, bytes);
    const std::string steps = fmt::format("--steps {}", last + 5);
    p.train("run", steps + " --resume auto");
    p.train("whole", steps);
    CHECK(same_files(run + "/model.bin", p / "whole/model.bin"));
}

TEST_CASE("changing files: nobody waits for a pipe") {
    const DisturbedRuns p;
    p.train("run", "--steps 2");
    auto check_refused = [&](const std::string& name, const Words& options) {
        CAPTURE(name);
        fs::remove(p / name);
        REQUIRE(mkfifo((p / name).c_str(), 0600) == 0);
        // is it open for reading? Only then it can be opened for writing without waiting
        const auto waits = [&] { return close(open((p / name).c_str(), O_WRONLY | O_NONBLOCK)) == 0; };
        check_run(finish_train(p.folder.path(), start_train(p.folder.path(), options), waits), kExitBadInput,
                  {p / name + ": not a regular file"});
        fs::remove(p / name);
    };
    check_refused("val.json", p.options("other", "--steps 2 --val-every 2"));
    check_refused("train.bin", p.options("other", "--steps 2"));
    write_tiny_data(p.folder.path());
    check_refused("run/config.toml", {"--resume", "auto", "--out", p.out});
    check_refused("pipe", {"--config", p / "pipe"});
    check_refused("run/log.jsonl", p.options("run", "--steps 4 --resume auto"));
    const std::string shards = program_path("data/make_shards");
    check_run(run_train(p.folder.path(), {p / "train.bin", "-", "--out", p / "x"}, shards), kExitBadInput);
    // nor for a standard input that is closed
    const pid_t pid = start_prepared(
        p.folder.path(), {"-", "--out", p / "x"}, [] { close(STDIN_FILENO); }, shards);
    check_run(finish_train(p.folder.path(), pid), kExitBadInput, {"the input is empty"});
}

TEST_CASE("changing files: more shards than files that a process may open at first") {
    const DisturbedRuns p;
    for (int i = 0; i < 150; i++) {
        write_token_shard(p / fmt::format("tr_{:03}.bin", i), learnable_tokens(2, 3, (uint64_t)i), 257);
    }
    const Words options = p.options("run", "--steps 3 --val-data none --train-data " + p / "tr_*.bin");
    const pid_t pid = start_prepared(p.folder.path(), options, [] {
        rlimit few = {64, 1024};
        setrlimit(RLIMIT_NOFILE, &few);
    });
    check_run(finish_train(p.folder.path(), pid), kExitDone);
}

TEST_CASE("changing files: a limit on the address space ends the program instead of stopping it for ever") {
    if (std::getenv("ASAN_OPTIONS") != nullptr) {
        MESSAGE("skipped: the address sanitizer itself needs all of it");
        return;
    }
    const DisturbedRuns p;
    for (rlim_t mib : {100, 300, 450, 600, 4000}) {
        CAPTURE(mib);
        const Words options = p.options(fmt::format("run{}", (int)mib), "--steps 2");
        const pid_t pid = start_prepared(p.folder.path(), options, [=] {
            setenv("OMP_NUM_THREADS", "2", 1);
            rlimit limit = {mib << 20, mib << 20};
            setrlimit(RLIMIT_AS, &limit);
            alarm(60);
        });
        const ProgramRun result = finish_train(p.folder.path(), pid);
        CHECK_MESSAGE((result.exit_code == kExitDone || result.exit_code == kExitDevice), result.err);
        CHECK((result.exit_code == kExitDone || contains(result.err, "ulimit -v") ||
               contains(result.err, "out of memory")));
        if (mib == 100) { CHECK(result.exit_code == kExitDevice); }
        if (mib == 4000) { CHECK_MESSAGE(result.exit_code == kExitDone, result.err); }
    }
}

TEST_CASE_FIXTURE(InFolder, "threads: as many as OpenMP gives, or a message, and nobody waits for ever") {
    write_tiny_data(folder.path());
    // large enough for OpenBLAS to share a product among threads
    const Words train = words("--train-data " + folder / "train.bin" +
                              " --val-data none --layers 1 --heads 1 --channels 64 --seq-len 16 --batch 2 "
                              "--quiet --sample-every 0 --steps 2 --out " +
                              folder / "run");
    const auto run = [&](const Words& options, const std::function<void()>& prepare) {
        fs::remove_all(folder / "run");
        return finish_train(folder.path(), start_prepared(folder.path(), options, [=] {
                                alarm(20);  // it would be deaf to others
                                prepare();
                            }));
    };
    const auto given = [](const Words& variables) {
        return [=] {
            unsetenv("OMP_NUM_THREADS");
            for (const std::string& v : variables) { putenv(const_cast<char*>(v.c_str())); }
        };
    };
    for (auto [variables, threads] :
         std::initializer_list<std::pair<Words, int>>{{{"OMP_THREAD_LIMIT=1"}, 1},
                                                      {{"OMP_NUM_THREADS=4", "OMP_MAX_ACTIVE_LEVELS=0"}, 1},
                                                      {{"OMP_NUM_THREADS=4", "OMP_THREAD_LIMIT=2"}, 2},
                                                      {{"OMP_NUM_THREADS=3", "OMP_DYNAMIC=true"}, 3},
                                                      {{"OMP_NUM_THREADS=4"}, 4}}) {
        CAPTURE(variables.back());
        check_run(run(train, given(variables)), kExitDone, {}, {fmt::format("CPU, {} threads,", threads)});
    }
    ProgramRun r = run(train, [] {
        unsetenv("OMP_NUM_THREADS");
        cpu_set_t one;
        sched_getaffinity(0, sizeof(one), &one);
        for (int cpu = CPU_SETSIZE - 1; CPU_COUNT(&one) > 1; cpu--) { CPU_CLR(cpu, &one); }
        sched_setaffinity(0, sizeof(one), &one);
    });
    CHECK_MESSAGE(contains(r.out, "CPU, 1 threads,"), r.out, r.err);
    r = run(train, given({"OMP_NUM_THREADS=99999"}));
    check_run(r, kExitUsage, {"OMP_NUM_THREADS: found 99999, expected at most 4096"});
    r = run(train, [] {
        setenv("OMP_NUM_THREADS", "2", 1);
        refuse_calls({SYS_clone3, SYS_clone}, EAGAIN);  // as under a limit on processes
    });
    check_run(r, kExitDevice, {"or set OMP_NUM_THREADS to fewer threads"});
    CHECK_FALSE(fs::exists(folder / "run"));
    const std::string model = folder / "model.bin";
    CHECK(run(train, [] {}).exit_code == kExitDone);
    fs::copy(folder / "run/model.bin", model);
    r = run({"eval", model, "--data", folder / "val.bin"},
            given({"OMP_NUM_THREADS=2", "OMP_THREAD_LIMIT=1"}));
    CHECK_MESSAGE(r.exit_code == kExitDone, r.err);
}

TEST_CASE("changing files: a file that asks for a model larger than the memory") {
    MemoryPlan plan;
    plan.activations = int64_t{1} << 40;
    plan.available = int64_t{1} << 30;
    check_error([&] { require_room(plan, "file"); }, kExitDevice, {"file", "1.0 TiB", "1.00 GiB"});
    plan.available = -1;
    require_room(plan, "file");
    struct Large : ModelSource {  // 32 TiB of keys and values
        GPT2Config sizes = {1 << 20, 1, 64, 1024, 1, 4096};
        std::string name = "large.bin";
        const GPT2Config& config() const override { return sizes; }
        const std::string& path() const override { return name; }
        void read(int, int64_t, std::span<float>) const override { FAIL("it is read"); }
        FloatType type() const override { return FloatType::kFp32; }
    };
    check_error([&] { make_cpu_decoder(Large{}); }, kExitDevice, {"large.bin", "needs"});
    check_error([&] { make_model(factory_of<GPT2Cpu>(), Large{}, 64, 1 << 20); }, kExitDevice,
                {"large.bin", "needs"});
}

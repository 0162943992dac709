// Signals: whatever the run is doing, it saves the step that it is at and leaves, or goes on; what a broken
// pipe or a limit on files would kill, goes on too.
#include <sys/resource.h>
#include <sys/wait.h>
#include <chrono>
#include <csignal>
#include <functional>
#include <new>
#include <thread>

#include <doctest/doctest.h>

#include "dev/test/support/any_model.h"
#include "dev/test/support/test_options.h"
#include "dev/test/support/train_program.h"
#include "llmc/host/base/stop_signal.h"
#include "llmc/host/tokens/dataloader.h"
#include "llmc/model/cpu/gpt2.h"
#include "llmc/model/formats/checkpoint.h"
#include "llmc/model/run/folder.h"
#include "llmc/model/run/trainer.h"

using namespace llmc;
namespace fs = std::filesystem;

namespace {

void pause_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

// waits for it, at most for a minute
void wait_until(const std::function<bool()>& condition) {
    for (int wait = 0; wait < 12000 && !condition(); wait++) { pause_ms(5); }
    REQUIRE(condition());
}

// what whoever runs these tests ignores (nohup, & in a script) would stay ignored
void default_signals() {
    for (int which : {SIGTERM, SIGINT, SIGHUP, SIGUSR1}) { std::signal(which, SIG_DFL); }
}

struct Place {
    TempFolder folder;
    std::string run = folder / "run", log = run + "/log.jsonl";
    Place() { write_tiny_data(folder.path()); }
    Words options(const std::string& more) const {
        return tiny_run(folder.path(), "--quiet --out " + run + " " + more);
    }
    pid_t start(const std::string& more) const {
        return start_prepared(folder.path(), options(more), default_signals);
    }
    // the run has left a checkpoint of this step, of which a run can go on
    void check_saved(const ProgramRun& result, int64_t step) const {
        CHECK_MESSAGE(result.exit_code == kExitPreempted, result.out, result.err);
        CHECK_MESSAGE(contains(result.out, "--resume auto --out " + run), result.out);
        std::string notes;
        CHECK(find_checkpoint(run, &notes) == checkpoint_name(run, step));
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

template <typename Kind>
Error end_of_run(const Place& p, const std::string& more) {
    Comm alone;
    const Options options = parse(p.options("--steps 6 --val-every 4 --sample-every 0 " + more));
    Error end(-1, "");
    printed_by([&] {
        end = error_of([&] {
            train_in_rank(
                options, [](const Options&) { return factory_of<Kind>(); }, alone);
        });
    });
    stop_requested = 0;
    out_of_memory = 0;
    std::set_new_handler(nullptr);
    return end;
}

}  // namespace

TEST_CASE("signals: a run without memory saves what was trained and says so, with exit code 4") {
    Place undisturbed;
    CHECK(end_of_run<GPT2Cpu>(undisturbed, "").exit_code == kExitDone);
    for (bool for_good : {false, true}) {
        Place p;
        const Error end =
            for_good ? end_of_run<ShortOfMemory<true>>(p, "") : end_of_run<ShortOfMemory<false>>(p, "");
        check_error(end, kExitDevice, {"for want of memory", "--resume auto --out " + p.run});
        CHECK(names_below(p.run)[3] == (for_good ? "step_00000004" : "step_00000003"));
        CHECK(end_of_run<GPT2Cpu>(p, "--resume auto").exit_code == kExitDone);
        CHECK(same_files(p.run + "/model.bin", undisturbed.run + "/model.bin"));
        CHECK(read_log(p.run) == read_log(undisturbed.run));
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
    CHECK(end_of([] {
              raise(SIGTERM);
              usleep(1'050'000);
              raise(SIGINT);
          }) == 128 + SIGINT);
    CHECK(end_of([] {
              raise(SIGINT);
              usleep(1'050'000);
              raise(SIGHUP);
          }) == 128 + SIGHUP);
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

TEST_CASE("signals: TERM, INT and HUP save the current step and end with 75") {
    for (int which : {SIGTERM, SIGINT, SIGHUP}) {
        Place p;
        pid_t pid = p.start("--steps 1000000 --sample-every 0 --val-every 0");
        wait_until([&] { return read_log(p.run).size() >= 5; });
        kill(pid, which);
        ProgramRun run = finish_train(p.folder.path(), pid);
        std::vector<Json> log = read_log(p.run);
        p.check_saved(run, log.back()["step"].get<int64_t>());
    }
}

TEST_CASE("signals: with what a stopped run says to go on with, it is the same run") {
    Place p;
    const std::string more =
        "--steps 1000000 --sample-every 0 --val-every 0 --weight-decay 0.25 --clip 0.5 --save-every 7 --keep "
        "2";
    pid_t pid = p.start(more);
    wait_until([&] { return read_log(p.run).size() >= 5; });
    kill(pid, SIGTERM);
    const std::string said = finish_train(p.folder.path(), pid).out, start = "go on with ";
    REQUIRE_MESSAGE(contains(said, start), said);
    const size_t begin = said.find(start) + start.size();
    const std::string was = read_bytes(p.run + "/config.toml");
    pid = start_prepared(p.folder.path(), words(said.substr(begin, said.find('\n', begin) - begin)),
                         default_signals);
    const size_t before = read_log(p.run).size();
    wait_until([&] { return read_log(p.run).size() > before; });
    kill(pid, SIGTERM);
    const ProgramRun again = finish_train(p.folder.path(), pid);
    CHECK(again.exit_code == kExitPreempted);
    CHECK_FALSE_MESSAGE(contains(again.err, " was "), again.err);
    std::string is = read_bytes(p.run + "/config.toml");
    const std::string resumed = "resume = \"auto\"", none = "resume = \"none\"";
    REQUIRE(contains(is, resumed));
    CHECK(is.replace(is.find(resumed), resumed.size(), none) == was);
    // what changes is said
    pid = p.start(
        "--steps 1000000 --sample-every 0 --val-every 0 --weight-decay 0 --clip 1 --save-every 0 --keep 0 "
        "--resume auto");
    const size_t then = read_log(p.run).size();
    wait_until([&] { return read_log(p.run).size() > then; });
    kill(pid, SIGTERM);
    const std::string changed = finish_train(p.folder.path(), pid).err;
    for (const char* text : {"weight-decay was 0.25, is 0 ", "clip was 0.5, is 1 ", "save-every was 7, is 0 ",
                             "keep was 2, is 0 "}) {
        CHECK_MESSAGE(contains(changed, text), changed);
    }
}

TEST_CASE("signals: USR1 saves and goes on, any number of times") {
    Place p;
    pid_t pid = p.start("--steps 1000000 --sample-every 0 --val-every 0");
    wait_until([&] { return read_log(p.run).size() >= 2; });
    auto saved = [&] {
        Words names = names_below(p.run);
        return std::count_if(names.begin(), names.end(), [](const std::string& n) {
            return n.starts_with("step_") && !contains(n, ".tmp-");
        });
    };
    for (int i = 1; i <= 3; i++) {
        kill(pid, SIGUSR1);
        wait_until([&] { return saved() >= i; });
    }
    kill(pid, SIGTERM);
    ProgramRun run = finish_train(p.folder.path(), pid);
    p.check_saved(run, read_log(p.run).back()["step"].get<int64_t>());
}

TEST_CASE("signals: a stop is noticed in validation, in samples and between micro-batches") {
    Place p;
    write_token_shard(p.folder / "val.bin", learnable_tokens(200000, 3, 2), 257);
    auto stop_when = [&](const std::string& more, const std::function<bool()>& condition) {
        fs::remove_all(p.run);
        pid_t pid = p.start(more);
        wait_until(condition);
        pause_ms(100);
        kill(pid, SIGTERM);
        return finish_train(p.folder.path(), pid);
    };
    auto one_step = [&] {
        return fs::exists(p.log) && read_bytes(p.log).find("train_loss") != std::string::npos;
    };
    auto started = [&] { return fs::exists(p.run + "/config.toml"); };

    ProgramRun run = stop_when("--steps 9 --sample-every 0 --val-every 1", one_step);
    p.check_saved(run, 1);
    CHECK(read_log(p.run).size() == 1);                       // no line of a validation that was not finished
    run = stop_when("--steps 1 --sample-every 0", one_step);  // the one at the end
    p.check_saved(run, 1);
    CHECK(read_log(p.run).size() == 1);
    run = stop_when("--steps 9 --sample-every 1 --sample-tokens 1000000 --val-every 0 --temperature 0 --lr 0",
                    one_step);
    p.check_saved(run, 1);
    run = stop_when("--steps 9 --batch 1 --total-batch 12000000 --sample-every 0 --val-every 0", started);
    p.check_saved(run, 0);
    CHECK(read_log(p.run).empty());
}

TEST_CASE("signals: a stop is noticed within a micro-batch, and costs the step alone") {
    GPT2Cpu stopped(tiny_config(), 2, 5, {}), other(tiny_config(), 2, 5, {});
    const Batch batch = random_batch(tiny_config(), 2, 5, 1);
    for (GPT2Cpu* model : {&stopped, &other}) { model->init(3); }
    stop_requested = SIGTERM;
    CHECK_FALSE(stopped.enqueue_step({&batch, 1}, {.lr = 0.1}));
    // a validation that began before goes on
    const std::span<const float> losses = stopped.evaluate(batch).losses;
    CHECK(std::vector<float>(losses.begin(), losses.end()) == [&] {
        stop_requested = 0;
        const std::span<const float> expected = other.evaluate(batch).losses;
        return std::vector<float>(expected.begin(), expected.end());
    }());
    CHECK_FALSE(stopped.poll());
    check_same_state("after the stop", stopped, other);
    for (GPT2Cpu* model : {&stopped, &other}) { CHECK(model->enqueue_step({&batch, 1}, {.lr = 0.1})); }
    check_same_state("a step later", stopped, other);
}

TEST_CASE("signals: nobody reads the output") {
    Place p;
    int pipe_ends[2];
    REQUIRE(pipe(pipe_ends) == 0);
    close(pipe_ends[0]);
    Words options = tiny_run(p.folder.path(), "--steps 6 --out " + p.run);
    const auto nobody_reads = [&](std::initializer_list<int> streams) {
        return [&, streams] {
            std::signal(SIGPIPE, SIG_DFL);
            for (int stream : streams) { dup2(pipe_ends[1], stream); }
        };
    };
    pid_t pid = start_prepared(p.folder.path(), options, nobody_reads({STDOUT_FILENO, STDERR_FILENO}));
    const ProgramRun run = finish_train(p.folder.path(), pid);
    CHECK(run.exit_code == kExitDone);
    CHECK(read_log(p.run).size() == 6 + 1);
    CHECK(fs::exists(p.run + "/step_00000006"));

    pid = start_prepared(p.folder.path(), {"--help"}, nobody_reads({STDOUT_FILENO}));  // --help | head
    const ProgramRun help = finish_train(p.folder.path(), pid);
    CHECK(help.exit_code == 128 + SIGPIPE);
    CHECK(help.err == "");
    close(pipe_ends[1]);
}

TEST_CASE("signals: a limit on the size of files is an error like any other") {
    Place p;
    pid_t pid = start_prepared(p.folder.path(), p.options("--steps 6 --sample-every 0 --save-every 2"), [&] {
        std::signal(SIGXFSZ, SIG_DFL);
        rlimit small = {20000, 20000};
        setrlimit(RLIMIT_FSIZE, &small);
    });
    ProgramRun run = finish_train(p.folder.path(), pid);
    CHECK(run.exit_code == kExitSaveFailed);
    CHECK_MESSAGE(contains(run.out, "SAVE FAILED"), run.out);
    CHECK_MESSAGE(contains(run.out, "File too large"), run.out);
    CHECK(read_log(p.run).size() == 6 + 1);
}

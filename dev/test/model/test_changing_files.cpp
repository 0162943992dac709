// Files that change while they are read, that are no files, or of which there are more than a process may
// open; memory and threads that are not there.
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <chrono>

#include <doctest/doctest.h>

#include "dev/test/support/any_model.h"
#include "dev/test/support/train_program.h"
#include "llmc/host/tokens/dataloader.h"
#include "llmc/model/cpu/gpt2.h"
#include "llmc/model/formats/checkpoint.h"
#include "llmc/model/run/folder.h"

using namespace llmc;
namespace fs = std::filesystem;

namespace {

Words quiet_run(const TempFolder& folder, const std::string& more) {
    return tiny_run(folder.path(),
                    "--sample-every 0 --quiet --lr 0.001 --warmup 0 --final-lr-fraction 1 " + more);
}

}  // namespace

TEST_CASE("changing files: a shard that shrinks during a run ends it with a word, and nothing is lost") {
    TempFolder folder;
    write_tiny_data(folder.path());
    const std::string run = folder / "run", shard = folder / "train.bin", bytes = read_bytes(shard);
    pid_t pid = start_train(folder.path(), quiet_run(folder, "--val-every 0 --steps 100000000 --out " + run));
    for (int wait = 0; wait < 20000 && !contains(read_bytes(run + "/log.jsonl"), "\"step\":20,"); wait++) {
        usleep(1000);
    }
    fs::resize_file(shard, 1100);
    ProgramRun result = finish_train(folder.path(), pid);
    CHECK_MESSAGE(result.exit_code == kExitBadInput, result.err);
    CHECK_MESSAGE(contains(result.err, shard + ": cannot read"), result.err);
    CHECK_MESSAGE(contains(result.err, "shorter"), result.err);
    const int64_t last = read_log(run).back()["step"];
    std::string notes;
    CHECK(find_checkpoint(run, &notes) == checkpoint_name(run, last));
    // with the file as it was the run ends as if nothing had been
    write_bytes(shard, bytes);
    const std::string steps = "--val-every 0 --steps " + std::to_string(last + 5) + " --out ";
    CHECK(run_train(folder.path(), quiet_run(folder, steps + run + " --resume auto")).exit_code == kExitDone);
    CHECK(run_train(folder.path(), quiet_run(folder, steps + folder / "whole")).exit_code == kExitDone);
    CHECK(same_files(run + "/model.bin", folder / "whole/model.bin"));
}

TEST_CASE("changing files: a model or a checkpoint that shrinks while it is read") {
    TempFolder folder;
    GPT2Cpu model(tiny_config(), 1, 2);
    write_model_file(folder / "model.bin", tiny_config(), kModelFp32, reader(model));
    const ModelFile file(folder / "model.bin");
    fs::resize_file(folder / "model.bin", 5000);
    check_error(error_of([&] { load_model(file, writer(&model)); }), kExitBadInput,
                {folder / "model.bin", "shorter"});
    save_checkpoint(folder.path(), tiny_config(), record_of(4, 4, 1), reader(model));
    const Checkpoint checkpoint(folder / "step_00000004");
    fs::resize_file(folder / "step_00000004/optimizer.safetensors", 6000);
    check_error(error_of([&] { load_checkpoint(checkpoint, writer(&model)); }), kExitBadInput,
                {"optimizer.safetensors", "shorter"});
}

TEST_CASE("changing files: nobody waits for a pipe") {
    TempFolder folder;
    write_tiny_data(folder.path());
    const std::string run = folder / "run";
    CHECK(run_train(folder.path(), quiet_run(folder, "--steps 2 --out " + run)).exit_code == kExitDone);
    auto check_refused = [&](const std::string& name, const Words& options) {
        CAPTURE(name);
        fs::remove(folder / name);
        REQUIRE(mkfifo((folder / name).c_str(), 0600) == 0);
        // is it open for reading? Only then it can be opened for writing without waiting
        const auto waits = [&] { return close(open((folder / name).c_str(), O_WRONLY | O_NONBLOCK)) == 0; };
        ProgramRun result = finish_train(folder.path(), start_train(folder.path(), options), waits);
        CHECK(result.exit_code == kExitBadInput);
        CHECK_MESSAGE(contains(result.err, folder / name + ": not a regular file"), result.err);
        fs::remove(folder / name);
    };
    check_refused("val.json", quiet_run(folder, "--steps 2 --out " + folder / "other"));
    check_refused("train.bin", quiet_run(folder, "--steps 2 --out " + folder / "other"));
    write_tiny_data(folder.path());
    check_refused("run/config.toml", {"--resume", "auto", "--out", run});
    REQUIRE(mkfifo((folder / "pipe").c_str(), 0600) == 0);  // as of a shell's <(...), which a signal must end
    const pid_t waits = start_train(folder.path(), {"--config", folder / "pipe"});
    usleep(300'000);
    kill(waits, SIGTERM);
    CHECK(finish_train(folder.path(), waits).exit_code == 128 + SIGTERM);
    check_refused("run/log.jsonl", quiet_run(folder, "--steps 4 --resume auto --out " + run));
    CHECK(run_train(folder.path(), {folder / "train.bin", "-", "--out", folder / "x"},
                    program_path("data/make_shards"))
              .exit_code == kExitBadInput);
    // nor for a standard input that is closed
    pid_t pid = start_prepared(
        folder.path(), {"-", "--out", folder / "x"}, [] { close(STDIN_FILENO); },
        program_path("data/make_shards"));
    ProgramRun result = finish_train(folder.path(), pid);
    CHECK(result.exit_code == kExitBadInput);
    CHECK_MESSAGE(contains(result.err, "the input is empty"), result.err);
}

TEST_CASE("changing files: more shards than files that a process may open at first") {
    TempFolder folder;
    write_tiny_data(folder.path());
    for (int i = 0; i < 150; i++) {
        write_token_shard(folder / fmt::format("tr_{:03}.bin", i), learnable_tokens(2, 3, (uint64_t)i), 257);
    }
    pid_t pid = start_prepared(
        folder.path(),
        words("--train-data " +
              folder / "tr_*.bin --val-data none --layers 1 --heads 1 --channels 16 --seq-len 12 "
                       "--steps 3 --sample-every 0 --quiet --out " +
              folder / "run"),
        [] {
            rlimit few = {64, 1024};
            setrlimit(RLIMIT_NOFILE, &few);
        });
    ProgramRun result = finish_train(folder.path(), pid);
    CHECK_MESSAGE(result.exit_code == kExitDone, result.err);
}

TEST_CASE("changing files: a limit on the address space ends the program instead of stopping it for ever") {
    if (std::getenv("ASAN_OPTIONS") != nullptr) {
        MESSAGE("skipped: the address sanitizer itself needs all of it");
        return;
    }
    TempFolder folder;
    write_tiny_data(folder.path());
    for (rlim_t mib : {100, 300, 450, 600, 4000}) {
        CAPTURE(mib);
        pid_t pid = start_prepared(
            folder.path(),
            quiet_run(folder, fmt::format("--steps 2 --out {}/run{}", folder.path(), (int)mib)), [=] {
                setenv("OMP_NUM_THREADS", "2", 1);
                rlimit limit = {mib << 20, mib << 20};
                setrlimit(RLIMIT_AS, &limit);
                alarm(60);
            });
        ProgramRun result = finish_train(folder.path(), pid);
        CHECK_MESSAGE((result.exit_code == kExitDone || result.exit_code == kExitDevice), result.err);
        CHECK((result.exit_code == kExitDone || contains(result.err, "ulimit -v") ||
               contains(result.err, "out of memory")));
        if (mib == 100) { CHECK(result.exit_code == kExitDevice); }
        if (mib == 4000) { CHECK_MESSAGE(result.exit_code == kExitDone, result.err); }
    }
}

namespace {

// the system starts no more threads for this process, as under a limit on processes
void refuse_threads() {
    sock_filter program[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                             BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 1, 0),
                             BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 1),
                             BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAGAIN),
                             BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    const sock_fprog filter = {5, program};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
}

}  // namespace

TEST_CASE("threads: as many as OpenMP gives, or a message, and nobody waits for the others for ever") {
    TempFolder folder;
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
        const ProgramRun r = run(train, given(variables));
        CHECK_MESSAGE(r.exit_code == kExitDone, r.err);
        CHECK_MESSAGE(contains(r.out, fmt::format("CPU, {} threads,", threads)), r.out);
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
    CHECK(r.exit_code == kExitUsage);
    CHECK_MESSAGE(contains(r.err, "OMP_NUM_THREADS: found 99999, expected at most 4096"), r.err);
    r = run(train, [] {
        setenv("OMP_NUM_THREADS", "2", 1);
        refuse_threads();
    });
    CHECK(r.exit_code == kExitDevice);
    CHECK_MESSAGE(contains(r.err, "or set OMP_NUM_THREADS to fewer threads"), r.err);
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
    check_error(error_of([&] { require_room(plan, "file"); }), kExitDevice, {"file", "1.0 TiB", "1.00 GiB"});
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
    check_error(error_of([&] { make_cpu_decoder(Large{}); }), kExitDevice, {"large.bin", "needs"});
    check_error(error_of([&] { make_model(factory_of<GPT2Cpu>(), Large{}, 64, 1 << 20); }), kExitDevice,
                {"large.bin", "needs"});
}

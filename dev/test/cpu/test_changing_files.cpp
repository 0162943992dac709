// Files that change while they are read, that are no files, or of which there are more than a process may
// open; and memory that is not there.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <chrono>

#include <doctest/doctest.h>

#include "dev/test/cpu/model_fixture.h"
#include "dev/test/cpu/train_program.h"
#include "llmc/host/dataloader.h"
#include "llmc/model/checkpoint.h"
#include "llmc/model/decoder_cpu.h"
#include "llmc/model/run_folder.h"

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
        ProgramRun result = run_train(folder.path(), options);
        CHECK(result.exit_code == kExitBadInput);
        CHECK_MESSAGE(contains(result.err, folder / name + ": not a regular file"), result.err);
        fs::remove(folder / name);
    };
    check_refused("val.json", quiet_run(folder, "--steps 2 --out " + folder / "other"));
    check_refused("train.bin", quiet_run(folder, "--steps 2 --out " + folder / "other"));
    write_tiny_data(folder.path());
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
        write_token_shard(folder / strf("tr_%03d.bin", i), learnable_tokens(2, 3, (uint64_t)i), 257);
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
            quiet_run(folder, strf("--steps 2 --out %s/run%d", folder.path().c_str(), (int)mib)), [=] {
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
        const char* type() const override { return "fp32"; }
    };
    check_error(error_of([&] { CpuDecoder decoder(Large{}); }), kExitDevice, {"large.bin", "needs"});
    check_error(error_of([&] { LoadedModelOf<GPT2Cpu> model(Large{}, 64, 1 << 20); }), kExitDevice,
                {"large.bin", "needs"});
}

// A run goes on with the data that it was trained on, or says that it does not; and it says which settings
// have changed.
#include <fcntl.h>
#include <sys/stat.h>
#include <cstring>

#include <doctest/doctest.h>

#include "dev/test/support/train_program.h"
#include "llmc/host/files/file_io.h"
#include "llmc/model/formats/checkpoint.h"
#include "llmc/model/run/data.h"

using namespace llmc;
namespace fs = std::filesystem;

namespace {

// three shards of different lengths, and a run of four steps over them
struct Place {
    TempFolder folder;
    std::vector<std::vector<uint16_t>> tokens = {learnable_tokens(20, 3, 1), learnable_tokens(30, 3, 2),
                                                 learnable_tokens(20, 3, 3)};
    Place() {
        fs::create_directory(folder / "data");
        write_shards();
        write_token_shard(folder / "val.bin", learnable_tokens(6, 3, 4), 257);
        CHECK(train("run", 4).exit_code == kExitDone);
    }
    std::string shard(size_t i) const { return folder / ("data/tr_" + std::to_string(i) + ".bin"); }
    void write_shards() {
        for (size_t i = 0; i < tokens.size(); i++) { write_token_shard(shard(i), tokens[i], 257); }
    }
    // at a constant learning rate, unless asked for otherwise
    ProgramRun train(const std::string& out, int steps, std::string more = "",
                     const std::string& data = "data/tr_?.bin") const {
        for (const char* option : {"--lr 3e-4", "--warmup 0", "--final-lr-fraction 1"}) {
            const std::string name(option, std::strchr(option, ' ') + 1);
            if (!contains(more, name)) { more += std::string(" ") + option; }
        }
        return run_train(folder.path(),
                         words("--train-data " + folder / data + " --val-data " + folder / "val.bin " +
                               "--layers 2 --heads 2 --channels 16 --seq-len 12 --sample-every 0 --quiet "
                               "--save-every 2 --steps " +
                               std::to_string(steps) + " --out " + folder / out + " " + more));
    }
    void check_refused(const Words& says) const {
        const std::string log = read_bytes(folder / "run/log.jsonl");
        ProgramRun run = train("run", 8, "--resume auto");
        CHECK_MESSAGE(run.exit_code == kExitBadInput, run.out, run.err);
        for (const std::string& part : says) {
            CHECK_MESSAGE(contains(run.err, part), part, " in ", run.err);
        }
        CHECK(contains(run.err, "--new-data"));
        CHECK(read_bytes(folder / "run/log.jsonl") == log);
        CHECK_FALSE(fs::exists(folder / "run/step_00000008"));
    }
};

}  // namespace

TEST_CASE("run data: other data is refused, and the shard is named") {
    Place p;
    SUBCASE("names exchanged") {
        std::swap(p.tokens[0], p.tokens[2]);
        p.write_shards();
        p.check_refused({"shard 1: found tr_0.bin of ", "expected tr_0.bin of "});
    }
    SUBCASE("another text of the same length") {
        for (size_t i = 0; i < p.tokens[1].size(); i++) { p.tokens[1][i] = (uint16_t)(i % 200); }
        p.write_shards();
        p.check_refused({"shard 2: found tr_1.bin of "});
    }
    SUBCASE("one token, and the file's time put back") {
        struct stat st;
        REQUIRE(stat(p.shard(2).c_str(), &st) == 0);
        std::string bytes = read_bytes(p.shard(2));
        bytes[bytes.size() - 20] ^= 1;
        int fd = open(p.shard(2).c_str(), O_WRONLY);  // in place: the same inode and size
        REQUIRE(pwrite(fd, bytes.data(), bytes.size(), 0) == (ssize_t)bytes.size());
        close(fd);
        const timespec times[] = {st.st_atim, st.st_mtim};
        REQUIRE(utimensat(AT_FDCWD, p.shard(2).c_str(), times, 0) == 0);
        p.check_refused({"shard 3: found tr_2.bin of "});
    }
    SUBCASE("other cuts") {
        p.tokens[1].insert(p.tokens[1].begin(), p.tokens[0].end() - 100, p.tokens[0].end());
        p.tokens[0].resize(p.tokens[0].size() - 100);
        p.write_shards();
        p.check_refused({"shard 1: found tr_0.bin of "});
    }
    SUBCASE("grown") {
        write_token_shard(p.shard(3), learnable_tokens(20, 3, 5), 257);
        p.check_refused({"shard 4: found tr_3.bin of ", "expected no shard"});
    }
    SUBCASE("shrunk") {
        fs::remove(p.shard(2));
        p.check_refused({"shard 3: found no shard, expected tr_2.bin of "});
    }
}

TEST_CASE("run data: files that moved are the same data") {
    Place p;
    CHECK(p.train("whole", 8).exit_code == kExitDone);
    fs::rename(p.folder / "data", p.folder / "moved");
    for (int i : {0, 1, 2}) {
        const std::string to = fmt::format("/part_{:c}.bin", 'a' + i);
        fs::rename(p.folder / ("moved/tr_" + std::to_string(i) + ".bin"), p.folder / ("moved" + to));
    }
    ProgramRun run = p.train("run", 8, "--resume auto", "moved/part_*.bin");
    CHECK_MESSAGE(run.exit_code == kExitDone, run.err);
    CHECK(run.err == "");
    CHECK(same_files(p.folder / "run/model.bin", p.folder / "whole/model.bin"));
}

TEST_CASE("run data: --new-data begins with the new data's first epoch, once") {
    Place p;
    const std::string four = p.folder / "run/step_00000004";
    ProgramRun same = p.train("same", 8, "--new-data --resume " + four);
    CHECK(same.err == "");  // nothing new
    CHECK(p.train("whole", 8).exit_code == kExitDone);
    CHECK(same_files(p.folder / "same/model.bin", p.folder / "whole/model.bin"));

    write_token_shard(p.folder / "data/new.bin", learnable_tokens(30, 3, 7), 257);
    auto go_on = [&](const std::string& out, int steps, const std::string& more) {
        ProgramRun run = p.train(out, steps, "--new-data --resume " + more, "data/new.bin");
        CHECK_MESSAGE(run.exit_code == kExitDone, run.err);
        return run;
    };
    ProgramRun run = go_on("at_once", 8, four);
    CHECK_MESSAGE(contains(run.err, "step 4 | new training data, from its start: shard 1: found new.bin"),
                  run.err);
    CHECK(contains(read_bytes(p.folder / "at_once/log.jsonl"), "\"new_data\":true"));
    go_on("parts", 6, four);
    run = go_on("parts", 8, "auto");  // the same line again goes on in the new data
    CHECK(run.err == "");
    CHECK(same_files(p.folder / "parts/model.bin", p.folder / "at_once/model.bin"));
    CHECK(read_log(p.folder / "parts") == read_log(p.folder / "at_once"));
    // step 4 saw the row that a new run's step 0 sees
    RunRecord record = inspect_checkpoint(p.folder / "parts/step_00000008").record;
    CHECK(record.data_start == 4);
    CHECK(record.train_data.size() == 1);
    CHECK(record.train_data[0].name == "new.bin");
}

TEST_CASE("run data: a shard is read again unless the system says that it is the same file") {
    Place p;
    ShardSet set(p.folder / "data/tr_?.bin");
    std::vector<ShardRecord> first = fingerprint(set, {});
    REQUIRE(first.size() == 3);
    CHECK(first[0].xxh3 == digest_file(p.shard(0), 1024)->xxh3);
    CHECK(first[0].identity == "");  // just written: its time may not tell the next change
    const std::string identity = file_identity(p.shard(0));
    CHECK(identity != "");
    std::vector<ShardRecord> known = first;
    known[0].identity = identity;
    known[0].xxh3 = 1;
    CHECK(fingerprint(set, known)[0].xxh3 == first[0].xxh3);
    const timespec old[] = {{1, 0}, {1, 0}};  // ctime is now, whatever the other times are
    REQUIRE(utimensat(AT_FDCWD, p.shard(0).c_str(), old, 0) == 0);
    CHECK(file_identity(p.shard(0), true) == "");
    CHECK(file_identity(p.shard(0)) != identity);
    usleep(3'100'000);
    known = fingerprint(set, first);
    CHECK(known[0].identity != "");
    known[0].xxh3 = 1;
    CHECK(fingerprint(set, known)[0].xxh3 == 1);  // taken on trust
    known[0].tokens++;
    CHECK(fingerprint(set, known)[0].xxh3 == first[0].xxh3);
    CHECK(difference(first, first) == "");
}

TEST_CASE("run data: changed settings are said, one line each") {
    Place p;
    ProgramRun run = p.train("run", 6, "--resume auto");
    CHECK(run.err == "");  // more steps at a constant learning rate: nothing changes
    run = p.train("run", 8,
                  "--resume auto --lr 0.005 --clip 2 --beta2 0.99 --batch 2 --total-batch 48 "
                  "--final-lr-fraction 0.1");
    CHECK_MESSAGE(run.exit_code == kExitDone, run.err);
    for (const char* line :
         {"lr was 3e-04, is 0.005 from here on\n", "clip was 1, is 2 from here on\n",
          "beta2 was 0.95, is 0.99 from here on\n", "final-lr-fraction was 1, is 0.1 from here on\n",
          "batch was 4, is 2 from here on: the same run but for rounding, not bit for bit\n"}) {
        CHECK_MESSAGE(contains(run.err, line), line, " in ", run.err);
    }
    CHECK_FALSE(contains(run.err, "beta1"));
    pid_t pid = start_prepared(p.folder.path(),
                               words("--train-data " +
                                     p.folder / "data/tr_?.bin --val-data none --seq-len 12 "
                                                "--sample-every 0 --steps 10 --resume auto "
                                                "--lr 0.005 --clip 2 --beta2 0.99 --batch 2 "
                                                "--total-batch 48 --final-lr-fraction 0.1 --out " +
                                     p.folder / "run"),
                               [] { setenv("OMP_NUM_THREADS", "2", 1); });
    run = finish_train(p.folder.path(), pid);
    CHECK_MESSAGE(contains(run.err, "device was CPU, 1 threads"), run.err);
    CHECK_MESSAGE(contains(run.err, "is CPU, 2 threads"), run.err);
    CHECK_MESSAGE(contains(run.err, "steps was 8, is 10"), run.err);
}

TEST_CASE("run data: the lowest loss on other validation data is none to beat") {
    Place p;
    CHECK(p.train("best", 4, "--lr 0.03 --keep-best --val-every 2").exit_code == kExitDone);
    const auto best = [&](int step) {
        return inspect_checkpoint(checkpoint_name(p.folder / "best", step)).record.best;
    };
    REQUIRE(best(4));
    ProgramRun run = p.train("best", 6, "--lr 0.03 --keep-best --val-every 2 --resume auto");
    CHECK_FALSE(contains(run.err, "starts anew"));
    REQUIRE(best(6));
    const Validated was = *best(6);
    std::vector<uint16_t> noise(400);  // nobody predicts it
    for (size_t i = 0; i < noise.size(); i++) { noise[i] = (uint16_t)(i * i * 7919 % 251); }
    write_token_shard(p.folder / "val.bin", noise, 257);
    run = p.train("best", 8, "--lr 0.03 --keep-best --val-every 2 --resume auto");
    CHECK_MESSAGE(run.exit_code == kExitDone, run.err);
    CHECK_MESSAGE(contains(run.err, fmt::format("that of step {}, was on other tokens", was.step)), run.err);
    REQUIRE(best(8));
    CHECK(best(8)->loss > was.loss);
}

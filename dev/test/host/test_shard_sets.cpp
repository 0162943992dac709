// Data sets of data/make_shards: one is replaced by the next whole or not at all, as far as whoever trains
// can see, and the command that the program prints works for every name.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>

#include <doctest/doctest.h>

#include "dev/test/support/train_program.h"
#include "llmc/host/tokens/dataloader.h"

using namespace llmc;
namespace fs = std::filesystem;

namespace {

ProgramRun make_shards(const TempFolder& folder, const Words& options) {
    return run_train(folder.path(), options, program_path("data/make_shards"));
}

// a set of three training shards and one for validation, of this text
void make_set(const TempFolder& folder, const std::string& name, const std::string& sentence) {
    std::string text;
    for (int i = 0; i < 40; i++) { text += sentence + "\n"; }
    write_bytes(folder / "text", text);
    ProgramRun run = make_shards(folder, {folder / "text", "--documents", "line", "--shard-tokens",
                                          std::to_string(12 * sentence.size() + 24), "--out", folder / name});
    REQUIRE_MESSAGE(run.exit_code == kExitDone, run.err);
}

}  // namespace

TEST_CASE("shard sets: all shards of a run are of one set, which depends on the text alone") {
    TempFolder folder;
    make_set(folder, "a", "twelve bytes");
    make_set(folder, "b", "twelve bytes");
    make_set(folder, "c", "twelve bits.");
    auto id = [&](const std::string& name) { return TokenShard(folder / name).set_id(); };
    for (const char* rest : {"_train_000001.bin", "_train_000002.bin", "_val_000000.bin"}) {
        CHECK(id(std::string("a") + rest) == id("a_train_000000.bin"));
        CHECK(same_files(folder / "a" + rest, folder / "b" + rest));
        CHECK(id(std::string("c") + rest) != id(std::string("a") + rest));
    }
    CHECK(id("a_train_000000.bin") != 0);
    CHECK(TokenShard(folder / "a_train_000001.bin").set_shards() == 3);
    CHECK(TokenShard(folder / "a_val_000000.bin").set_shards() == 1);
    CHECK(ShardSet(folder / "a_train_*.bin").num_missing() == 0);
    CHECK(ShardSet(folder / "a_train_00000[12].bin").num_missing() == 1);
    CHECK(ShardSet(folder / "?_train_*.bin").num_missing() == 0);  // three sets side by side
}

TEST_CASE("shard sets: a mixture is refused at every point of a replacement") {
    TempFolder folder;
    make_set(folder, "new", "twelve bytes");
    make_set(folder, "old", "another text, longer");
    auto trains = [&] {
        ProgramRun run = run_train(
            folder.path(), words("--train-data " + folder / "t_train_*.bin --val-data " +
                                 folder / "t_val_*.bin --layers 1 --heads 1 --channels 16 --seq-len 8 "
                                          "--steps 2 --dry-run"));
        CHECK_MESSAGE((run.exit_code == kExitDone || run.exit_code == kExitBadInput), run.err);
        return run;
    };
    auto put = [&](const std::string& from, const std::string& rest) {
        fs::copy_file(folder / from + rest, folder / "t" + rest, fs::copy_options::overwrite_existing);
    };
    const Words train = {"_train_000000.bin", "_train_000001.bin", "_train_000002.bin"};
    for (const std::string& rest : train) { put("old", rest); }
    put("old", "_val_000000.bin");
    CHECK(trains().exit_code == kExitDone);
    fs::remove(folder / "t_val_000000.bin");
    for (const std::string& rest : train) {  // the order of data/make_shards
        ProgramRun run = trains();
        CHECK(run.exit_code == kExitBadInput);
        CHECK_MESSAGE(
            run.err.find(rest == train[0] ? "no file matches" : "of different sets") != std::string::npos,
            run.err);
        put("new", rest);
    }
    CHECK(trains().exit_code == kExitBadInput);
    put("new", "_val_000000.bin");
    CHECK(trains().exit_code == kExitDone);
    fs::remove(folder / "t_train_000001.bin");
    ProgramRun run = trains();
    CHECK_MESSAGE(run.out.find("of their set 1 more are missing") != std::string::npos, run.out);
}

TEST_CASE(
    "shard sets: validation data among the training data is noted, by its path or as a copy of its set") {
    TempFolder folder;
    make_set(folder, "x", "twelve bytes");
    const std::string val = folder / "x_val_000000.bin", train = folder / "x_train_*.bin";
    fs::create_symlink(val, folder / "link.bin");
    fs::copy_file(val, folder / "copy.bin");
    write_token_shard(folder / "elsewhere.bin", TokenShard(val).read_all(), 257);  // of no set
    const auto noted = [&](const std::string& train_data, const std::string& val_data) {
        const ProgramRun run = run_train(
            folder.path(), words("--train-data " + train_data + " --val-data " + val_data +
                                 " --layers 1 --heads 1 --channels 16 --seq-len 8 --steps 2 --dry-run"));
        CHECK_MESSAGE(run.exit_code == kExitDone, run.err);
        return contains(run.out, "is trained on, too");
    };
    CHECK_FALSE(noted(train, val));
    CHECK_FALSE(noted(train, folder / "elsewhere.bin"));
    CHECK(noted(folder / "x_*.bin", val));
    CHECK(noted(val, val));
    CHECK(noted(folder / "x_*.bin", folder / "link.bin"));
    CHECK(noted(folder / "x_*.bin", folder / "copy.bin"));
    CHECK(noted(folder / "elsewhere.bin", folder / "elsewhere.bin"));
}

TEST_CASE("shard sets: what a killed run has left goes with the next") {
    TempFolder folder;
    pid_t ended = fork();
    if (ended == 0) { _exit(0); }
    waitpid(ended, nullptr, 0);
    const std::string dead = fmt::format("t.tmp-{}-000000.bin", (int)ended);
    const Words others = {fmt::format("t.tmp-{}-000000.bin", (int)getpid()), "t.tmp-notes",
                          "u" + dead.substr(1)};
    for (const std::string& name : others) { write_bytes(folder / name, "x"); }
    write_bytes(folder / dead, "x");
    write_bytes(folder / dead + ".tmp-1", "x");
    make_set(folder, "t", "twelve bytes");
    CHECK_FALSE(fs::exists(folder / dead));
    CHECK_FALSE(fs::exists(folder / dead + ".tmp-1"));
    for (const std::string& name : others) { CHECK(fs::exists(folder / name)); }
}

TEST_CASE("shard sets: the next command works for every name") {
    TempFolder folder;
    write_bytes(folder / "text", std::string(400, 'x') + "\n" + std::string(400, 'y'));
    for (const char* name : {"plain", "it's/m", "g[1]/m", "a b/*?$x", "\\\\/m\\", "q\"uote`/x"}) {
        CAPTURE(name);
        ProgramRun run = make_shards(folder, {folder / "text", "--out", folder / name});
        REQUIRE_MESSAGE(run.exit_code == kExitDone, run.err);
        const size_t at = run.out.find("next: ./train_gpt2 ");
        REQUIRE(at != std::string::npos);
        const std::string command = "'" + train_program() + "' " + run.out.substr(at + 19);
        run = run_train(folder.path(),
                        {"-c", command.substr(0, command.size() - 1) + " --model d1 --seq-len 8 --dry-run"},
                        "/bin/sh");
        CHECK_MESSAGE(run.exit_code == kExitDone, run.err);
    }
}

TEST_CASE("shard sets: an input that a shard would replace is kept") {
    TempFolder folder;
    fs::create_directory(folder / "in");
    const std::string shard = folder / "in/a_train_000000.bin", notes = folder / "in/a_train_notes.bin";
    write_bytes(notes, "notes\n");
    write_bytes(shard, "some text\n");
    fs::create_symlink(shard, folder / "link");
    for (const std::string& input : {shard, folder / "in", folder / "link"}) {
        const ProgramRun run = make_shards(folder, {input, "--out", folder / "in/a"});
        CHECK(run.exit_code == kExitUsage);
        CHECK_MESSAGE(run.err.find(shard + ": this is an input, which would be lost") != std::string::npos,
                      run.err);
        CHECK(read_bytes(shard) == "some text\n");
        CHECK(names_below(folder / "in") == Words{"a_train_000000.bin", "a_train_notes.bin"});
    }
    CHECK(make_shards(folder, {notes, "--out", folder / "in/a"}).exit_code == kExitDone);
    CHECK(read_bytes(notes) == "notes\n");
}

TEST_CASE(
    "make_corpus: a bad option is named, a seed of more than 64 bits refused, and what is lost is said") {
    TempFolder folder;
    const std::string program = program_path("data/make_corpus");
    const auto make_corpus = [&](const std::string& options) {
        return run_train(folder.path(), words(options), program);
    };
    CHECK(make_corpus("--show 1 --seed 18446744073709551615").exit_code == kExitDone);
    using Says = std::pair<const char*, const char*>;
    for (const auto& [options, says] :
         {Says{"--seed 18446744073709551616", "--seed: '18446744073709551616' is out of range. Expected a "},
          Says{"--seed 1e3", "--seed: '1e3' is not a whole number. Expected a whole number, 0 to 2^64 - 1. "},
          Says{"--seeed 1", "unknown option '--seeed'. Did you mean --seed?"}}) {
        const ProgramRun run = make_corpus(std::string("--show 1 ") + options);
        CHECK(run.exit_code == kExitUsage);
        CHECK_MESSAGE(run.err.starts_with(std::string("make_corpus: ") + says), run.err);
    }
    // a million stories take far more than a second, and none of them can be written
    const pid_t pid = start_prepared(
        folder.path(), {"--show", "1000000"},
        [] {
            const rlimit second = {1, 1};
            setrlimit(RLIMIT_CPU, &second);
            dup2(open("/dev/full", O_WRONLY), STDOUT_FILENO);
        },
        program);
    const ProgramRun full = finish_train(folder.path(), pid);
    CHECK(full.exit_code == kExitSaveFailed);
    CHECK(full.err == "make_corpus: cannot write to standard output\n");
}

// Who comes from llm.c: its published command lines are accepted as they are, what has no effect here is said, all
// objections come at once, and DONE_ files say which checkpoints are complete.
#include <csignal>
#include <filesystem>

#include <doctest/doctest.h>

#include "dev/test/support/compare_state.h"
#include "dev/test/support/test_options.h"
#include "dev/test/support/train_program.h"
#include "llmc/host/tokens/dataloader.h"
#include "llmc/model/formats/checkpoint.h"
#include "llmc/model/run/folder.h"

using namespace llmc;
namespace fs = std::filesystem;

namespace {

// the arguments of llm.c's scripts/run_gpt2_124M.sh and run_gpt2_1558M.sh (2025-05)
const std::string k124M =
    "-i dev/data/fineweb10B/fineweb_train_*.bin -j dev/data/fineweb10B/fineweb_val_*.bin -o log_gpt2_124M "
    "-v 250 -s 20000 -g 144 -h 1 -b 64 -t 1024 -d 524288 -r 0 -z 1 -c 0.1 -l 0.0006 -q 0.0 -u 700 -n 5000 "
    "-y 1 -e d12";
const std::string k1558M =
    "-i dev/data/edu_fineweb100B/edu_fineweb_train_*.bin -j dev/data/edu_fineweb100B/edu_fineweb_val_*.bin "
    "-o log_gpt2_1558M -v 250 -s 300000 -g 384 -h 1 -b 16 -t 1024 -d 1048576 -r 0 -z 1 -c 0.1 -k cosine "
    "-l 0.0006 -q 0.1 -u 700 -n 2000 -x 32000 -ge 1 -y 1 -e d48";

// in a folder of its own, as paths on these command lines do not begin with /
class WorkingFolder {
public:
    WorkingFolder() : before_(fs::current_path()) { fs::current_path(folder_.path()); }
    ~WorkingFolder() { fs::current_path(before_); }

private:
    fs::path before_;
    TempFolder folder_;
};

Words done_files(const std::string& run) {
    Words names = names_below(run);
    std::erase_if(names, [](const std::string& name) { return !name.starts_with("DONE_"); });
    return names;
}

}  // namespace

TEST_CASE("llm.c's users: the published command lines are accepted as they are") {
    const WorkingFolder nothing_here;
    const Options small = parse(words(k124M), nullptr, Program::kGpu);
    CHECK(small.model == "d12");
    CHECK(small.out == "log_gpt2_124M");
    CHECK(small.total_batch == 524288);
    CHECK(small.lr == 0.0006);
    CHECK(small.final_lr_fraction == 0);
    CHECK(small.warmup == 700);
    CHECK(small.save_every == 5000);
    CHECK(small.resume == "auto");
    CHECK(small.recompute == Recompute::kNone);
    CHECK(small.zero == 1);
    CHECK(small.steps == kAuto);  // with the letters: one epoch
    CHECK(small.llmc_letters);
    const Options large = parse(words(k1558M), nullptr, Program::kGpu);
    CHECK(large.model == "d48");
    CHECK(large.steps == 32000);
    CHECK(large.schedule == Decay::kCosine);
    CHECK(large.notes.starts_with("-ge 1: "));
    CHECK(std::count(large.notes.begin(), large.notes.end(), '\n') == 2);  // -ge and -h
    CHECK(parse(words(k1558M)).model == "d48");                            // the CPU program takes it, too
}

TEST_CASE("llm.c's users: -h 1 is HellaSwag, where llm.c has its file, or a note") {
    const WorkingFolder here;
    CHECK(contains(parse({"-h", "1"}).notes, "dev/data/hellaswag/hellaswag_val.bin is not there"));
    CHECK(parse({"-h", "1"}).hellaswag.empty());
    CHECK(parse({"-h", "1", "--hellaswag", "x.bin"}).hellaswag == "x.bin");
    CHECK(parse({"-h", "1", "--hellaswag", "x.bin"}).notes.empty());
    fs::create_directories("dev/data/hellaswag");
    write_bytes("dev/data/hellaswag/hellaswag_val.bin", "x");
    CHECK(parse({"-h", "1"}).hellaswag == "dev/data/hellaswag/hellaswag_val.bin");
    CHECK(parse({"-h", "1"}).notes.empty());
    CHECK(parse({"-h", "0"}).hellaswag.empty());
    CHECK(parse({"-h", "0"}).llmc_letters);
    CHECK(parse({}).hellaswag.empty());
    check_bad({"-h", "2"}, {"-h '2'", "--help"});
    check_bad({"-h", "1", "-h", "1"}, {"-h is given twice"});
}

TEST_CASE("llm.c's users: all objections to a command line come in one message") {
    const Error error = error_of([] {
        parse({"-lg", "5", "--bacth", "3", "-z", "7", "-x", "ten", "-a", "1", "-b", "2", "stray", "more"});
    });
    check_error(error, kExitUsage,
                {"-lg '5'", "\nunknown option '--bacth'. Did you mean --batch?", "\n-z (--zero): '7' is out",
                 "\n-x (--steps): 'ten'", "\n-a '1'", "\nunexpected argument 'stray'"});
    const std::string all = error.what();
    CHECK(std::count(all.begin(), all.end(), '\n') == 5);  // nothing is objected to twice
    // where only options of llm.c are refused, what must fit together is looked at, too
    check_bad({"-lg", "5", "-b", "3", "-t", "100", "-d", "1000", "-e", "d0"},
              {"-lg '5'", "--model 'd0' is not known", "--total-batch 1000"});
    // but not where a value is unknown that it depends on
    const std::string unknown = error_of([] { parse({"-b", "x", "-t", "100", "-d", "1000"}); }).what();
    CHECK_FALSE(contains(unknown, "--total-batch"));
    check_bad({"--layers", "3", "--keep-best", "-j", "none", "--max-seq-len", "1"},
              {"--heads is missing", "--keep-best", "--max-seq-len 1 is less"});
}

TEST_CASE("llm.c's users: DONE_ files stand for complete checkpoints, and for no others") {
    TempFolder folder;
    write_tiny_data(folder.path());
    const std::string run = folder / "run";
    const auto train = [&](const std::string& more) {
        const ProgramRun done = run_train(
            folder.path(), tiny_run(folder.path(), "-b 4 -v 0 -s 0 -n 2 --quiet --out " + run + " " + more));
        CHECK_MESSAGE(done.exit_code == kExitDone, done.err);
    };
    train("-x 4");
    CHECK(done_files(run) == Words{"DONE_00000002", "DONE_00000004"});
    train("-x 8 -y 1 -nk 1");
    CHECK(done_files(run) == Words{"DONE_00000008"});
    fs::remove_all(run + "/step_00000008");  // by hand
    for (const char* name : {"/log.jsonl", "/model.bin"}) { fs::remove(run + name); }
    write_bytes(run + "/DONE_00000099", "");  // or left by another run
    write_bytes(run + "/DONE_notes", "");     // not of ours
    train("-x 6");
    CHECK(done_files(run) == Words{"DONE_00000002", "DONE_00000004", "DONE_00000006", "DONE_notes"});
    train("-x 5 -l 1e-3 --resume " + run + "/step_00000002");  // 4 and 6 are abandoned
    CHECK(done_files(run) == Words{"DONE_00000002", "DONE_00000004", "DONE_00000005", "DONE_notes"});
    CHECK(names_below(run) == Words{"DONE_00000002", "DONE_00000004", "DONE_00000005", "DONE_notes",
                                    "config.toml", "log.jsonl", "model.bin", "report.html", "step_00000002",
                                    "step_00000004", "step_00000004.abandoned", "step_00000005",
                                    "step_00000006.abandoned"});
    // without llm.c's names there are none, as nobody waits for them
    const ProgramRun ours =
        run_train(folder.path(), tiny_run(folder.path(), "--steps 2 --quiet --out " + (folder / "ours")));
    CHECK(ours.exit_code == kExitDone);
    CHECK(done_files(folder / "ours").empty());
}

TEST_CASE(
    "llm.c's users: an epoch has as many steps as in llm.c, and its last checkpoint the name that scripts "
    "wait for") {
    TempFolder folder;
    // three shards of 130 tokens: 3 x 10 windows of 12 + 1 tokens, but 390 / 48 = 8 steps of 4 x 12
    for (int i = 0; i < 3; i++) {
        std::vector<uint16_t> tokens = learnable_tokens(10, 3, (uint64_t)i);
        tokens.resize(130);
        write_token_shard(folder / fmt::format("train_{:06}.bin", i), tokens, 257);
    }
    write_token_shard(folder / "val.bin", learnable_tokens(6, 3, 2), 257);
    const ProgramRun run = run_train(folder.path(), {"-i",          folder / "train_*.bin",
                                                     "-j",          folder / "val.bin",
                                                     "--layers",    "2",
                                                     "--heads",     "2",
                                                     "--channels",  "16",
                                                     "-t",          "12",
                                                     "-b",          "4",
                                                     "-v",          "0",
                                                     "-s",          "0",
                                                     "-h",          "1",
                                                     "-ge",         "1",
                                                     "--quiet",     "-o",
                                                     folder / "run"});
    CAPTURE(run.err);
    REQUIRE(run.exit_code == kExitDone);
    CHECK(done_files(folder / "run") == Words{"DONE_00000008"});
    CHECK(contains(run.err, "-ge 1: "));
    CHECK(contains(run.err, "-h 1: dev/data/hellaswag"));
}

TEST_CASE(
    "llm.c's users: files that the test programs are given without --model and --state are not left out") {
    const auto compares = [](Words words) {
        std::vector<char*> argv;
        for (std::string& word : words) { argv.push_back(word.data()); }
        if (!wants_comparison((int)argv.size(), argv.data())) { return std::string("no"); }
        return parse_compare_options((int)argv.size(), argv.data()).state;
    };
    CHECK(compares({"t", "--model", "a.bin", "--state", "b.bin"}) == "b.bin");
    CHECK(compares({"t", "--test-case=x*", "-s"}) == "no");
    CHECK(compares({"t", "--thorough", "--part", "2/4"}) == "no");
    for (const Words& words : {Words{"t", "a.bin", "b.bin"}, Words{"t", "--test-case=x*", "a.bin"},
                               Words{"t", "--model", "a.bin", "b.bin"}, Words{"t", "--model", "a.bin"}}) {
        check_error(error_of([&] { compares(words); }), kExitUsage, {"--model", "--state"});
    }
}

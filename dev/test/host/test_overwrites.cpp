// Models and checkpoints that lie where a run or an export writes: a run replaces only what it has exported itself.
#include <filesystem>
#include <string>

#include <doctest/doctest.h>

#include "dev/test/support/train_program.h"

using namespace llmc;
namespace fs = std::filesystem;

namespace {

struct Place {
    TempFolder folder;
    Place() { write_tiny_data(folder.path()); }
    std::string path(const std::string& name) const { return folder / name; }
    ProgramRun train(const std::string& out, const std::string& more) const {
        return run_train(folder.path(),
                         tiny_run(folder.path(),
                                  "--quiet --sample-every 0 --val-every 0 --out " + path(out) + " " + more));
    }
    ProgramRun run(const Words& words) const { return run_train(folder.path(), words); }
    // refused with this text, and the file is as it was
    void check_refused(const ProgramRun& r, const std::string& text, const std::string& file,
                       const std::string& before) const {
        CAPTURE(text);
        CHECK(r.exit_code == kExitUsage);
        CHECK_MESSAGE(contains(r.err, text), r.err);
        CHECK(read_bytes(path(file)) == before);
    }
};

}  // namespace

TEST_CASE(
    "overwrites: at its end a run exports into an empty folder, or into the one that it exported to before") {
    const Place p;
    const std::string hf = " --export-hf " + p.path("hf");
    REQUIRE(p.train("mine", "--steps 4" + hf).exit_code == kExitDone);
    const std::string first = read_bytes(p.path("hf/model.safetensors"));
    // a new run that would go on if there were something to go on from, and one that goes on, but is another
    p.check_refused(p.train("other", "--steps 4 --resume auto" + hf), "not an empty folder",
                    "hf/model.safetensors", first);
    REQUIRE(p.train("other", "--steps 4").exit_code == kExitDone);
    p.check_refused(p.train("other", "--steps 6 --resume auto" + hf), "not an empty folder",
                    "hf/model.safetensors", first);
    // its own: from where it was exported, and once more
    for (const char* steps : {"--steps 6", "--steps 8"}) {
        const ProgramRun r = p.train("mine", steps + (" --resume auto" + hf));
        CHECK_MESSAGE(r.exit_code == kExitDone, r.err);
    }
    CHECK(read_bytes(p.path("hf/model.safetensors")) != first);
    // what lies there now is another run's
    fs::rename(p.path("hf"), p.path("hf_of_mine"));
    REQUIRE(p.train("third", "--steps 5" + hf).exit_code == kExitDone);
    const std::string third = read_bytes(p.path("hf/model.safetensors"));
    p.check_refused(p.train("mine", "--steps 10 --resume auto" + hf), "It holds no export of this run",
                    "hf/model.safetensors", third);
    fs::rename(p.path("hf_of_mine"), p.path("elsewhere"));
    CHECK(p.train("mine", "--steps 10 --resume auto --export-hf " + p.path("elsewhere")).exit_code ==
          kExitDone);
    // nor does a run export into itself, or into a checkpoint that it has yet to write
    for (const char* own : {"own/", "own/../own", "own/step_00000004"}) {
        const ProgramRun r = p.train("own", "--steps 4 --export-hf " + p.path(own));
        CHECK(r.exit_code == kExitUsage);
        CHECK_MESSAGE(contains(r.err, "the run's own folder"), r.err);
    }
    // what cannot be written is found out before the training
    write_bytes(p.path("file"), "x");
    const ProgramRun nowhere = p.train("new", "--steps 4 --export-hf " + p.path("file/sub"));
    CHECK(nowhere.exit_code == kExitUsage);
    CHECK_FALSE(fs::exists(p.path("new/log.jsonl")));
}

TEST_CASE("overwrites: a run does not begin in a folder that holds a model") {
    const Place p;
    REQUIRE(p.train("mine", "--steps 4").exit_code == kExitDone);
    REQUIRE(p.run({"export", p.path("mine"), "--hf", p.path("hf")}).exit_code == kExitDone);
    fs::create_directory(p.path("models"));
    fs::copy(p.path("mine/model.bin"), p.path("models/model.bin"));
    const std::string model = read_bytes(p.path("models/model.bin")),
                      config = read_bytes(p.path("hf/config.json"));
    for (const char* resume : {"", " --resume auto"}) {
        p.check_refused(p.train("models", std::string("--steps 4") + resume),
                        "holds a model already (model.bin)", "models/model.bin", model);
        p.check_refused(p.train("hf", std::string("--steps 4") + resume),
                        "holds a model already (config.json)", "hf/config.json", config);
    }
    CHECK_FALSE(fs::exists(p.path("models/log.jsonl")));
}

TEST_CASE(
    "overwrites: no export goes into a run or a checkpoint, and no tokenizer of another model stays beside "
    "one") {
    const Place p;
    REQUIRE(p.train("mine", "--steps 4 --save-every 2").exit_code == kExitDone);
    const std::string step = "mine/step_00000004/", weights = read_bytes(p.path(step + "model.safetensors"));
    p.check_refused(p.run({"export", p.path("mine"), "--hf", p.path(step), "--force"}), "it has MANIFEST",
                    step + "model.safetensors", weights);
    const std::string model = read_bytes(p.path("mine/model.bin"));
    p.check_refused(p.run({"export", p.path("mine"), "--hf", p.path("mine"), "--force"}), "it has log.jsonl",
                    "mine/model.bin", model);
    p.check_refused(p.train("same", "--steps 2 --export-hf " + p.path("same")), "the run's own folder",
                    "mine/model.bin", model);
    // a model without a tokenizer, into the folder of one with its own
    REQUIRE(p.run({"export", p.path("mine"), "--hf", p.path("bytes")}).exit_code == kExitDone);
    const std::string tokens = read_bytes(p.path("bytes/model.safetensors"));
    write_bytes(p.path("raw.bin"),
                std::string(2000, '\1'));  // tokens 257, of which nothing says what they mean
    REQUIRE(p.run(words("--train-data " + p.path("raw.bin") +
                        " --raw-tokens 300 --val-data none --layers 1 --heads 1 "
                        "--channels 8 --seq-len 8 --steps 1 --sample-every 0 --quiet --out " +
                        p.path("raw")))
                .exit_code == kExitDone);
    p.check_refused(p.run({"export", p.path("raw"), "--hf", p.path("bytes"), "--force"}),
                    "tokenizer.json: of an earlier export", "bytes/model.safetensors", tokens);
    // of two models in a folder none is taken for the one that is meant
    REQUIRE(p.run({"export", p.path("mine"), "--hf", p.path("hf")}).exit_code == kExitDone);
    fs::copy(p.path("mine/model.bin"), p.path("hf/model.bin"));
    const ProgramRun both = p.run({"eval", p.path("hf"), "--data", p.path("train.bin")});
    CHECK(both.exit_code == kExitBadInput);
    CHECK_MESSAGE(contains(both.err, "are both in this folder. Name the one to use"), both.err);
    CHECK(p.run({"eval", p.path("hf/model.safetensors"), "--data", p.path("train.bin")}).exit_code ==
          kExitDone);
}

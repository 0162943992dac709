// Files of 16-bit tokens without a header, as nanoGPT's prepare.py writes them: read where --raw-tokens says so, never
// guessed.
#include <filesystem>

#include <doctest/doctest.h>

#include "dev/test/support/train_program.h"
#include "llmc/host/tokens/dataloader.h"

using namespace llmc;

TEST_CASE("raw tokens: a file without a header is read from its first byte") {
    TempFolder folder;
    std::vector<uint16_t> tokens;
    for (int i = 0; i < 1000; i++) { tokens.push_back((uint16_t)(i * 7 % 65)); }
    write_bytes(folder / "raw.bin", token_bytes(tokens));
    write_token_shard(folder / "ours.bin", tokens, 65);
    const TokenShard raw(folder / "raw.bin", 65);
    CHECK(raw.vocab_size() == 65);
    CHECK(raw.read_all() == tokens);
    Batch a, b;
    DataLoader(folder / "raw.bin", 12, 1, 65).read(3, 4, &a);
    DataLoader(folder / "ours.bin", 12, 1).read(3, 4, &b);
    CHECK(a.tokens == b.tokens);
    CHECK(a.targets == b.targets);
}

TEST_CASE("raw tokens: what is none is refused") {
    TempFolder folder;
    const auto refused = [&](const std::string& bytes, int vocab, const std::string& part) {
        write_bytes(folder / "x.bin", bytes);
        check_error(error_of([&] { TokenShard(folder / "x.bin", vocab); }), kExitBadInput, {"x.bin", part});
    };
    refused("", 65, "the file is empty");
    refused("abc", 65, "found 3 bytes, expected a multiple of 2");
    write_token_shard(folder / "ours.bin", std::vector<uint16_t>{1, 2, 3}, 65);
    refused(read_bytes(folder / "ours.bin"), 65, "Leave --raw-tokens out");
    // and without the option they are not guessed
    refused(token_bytes(std::vector<uint16_t>(600, 3)), 0, "--raw-tokens");
    write_bytes(folder / "x.bin", token_bytes({1, 64, 65}));
    Batch batch;
    check_error(error_of([&] { DataLoader(folder / "x.bin", 2, 1, 65).read(0, 1, &batch); }), kExitBadInput,
                {"x.bin: token 2: found id 65, expected 0 to 64"});
}

TEST_CASE("raw tokens: a run and its evaluation are those of the same tokens in shards") {
    TempFolder folder;
    write_tiny_data(folder.path());
    for (const std::string split : {"train", "val"}) {
        write_bytes(folder / ("raw_" + split + ".bin"), read_bytes(folder / (split + ".bin")).substr(1024));
    }
    const std::string common =
        "--layers 2 --heads 2 --channels 16 --seq-len 12 --steps 6 --val-align window "
        "--save-every 3 --sample-every 0 --quiet ";
    const auto train = [&](const std::string& more) {
        const ProgramRun run = run_train(folder.path(), words(common + more));
        CHECK_MESSAGE(run.exit_code == kExitDone, run.err);
    };
    const std::string raw = "--train-data " + (folder / "raw_train.bin") + " --val-data " +
                            (folder / "raw_val.bin") + " --raw-tokens 257";
    train("--train-data " + (folder / "train.bin") + " --val-data " + (folder / "val.bin") + " --out " +
          (folder / "a"));
    train(raw + " --out " + (folder / "b"));
    CHECK(same_files(folder / "a/model.bin", folder / "b/model.bin"));
    CHECK(read_log(folder / "a") == read_log(folder / "b"));
    std::filesystem::remove_all(folder / "b/step_00000006");
    train(raw + " --resume auto --out " + (folder / "b"));
    CHECK(same_files(folder / "a/model.bin", folder / "b/model.bin"));
    // other tokens behind the same name are found out, from the first one on
    flip_byte(folder / "raw_train.bin", 2);  // the second token: the first is the end of a text
    const ProgramRun other =
        run_train(folder.path(), words(common + raw + " --resume auto --out " + (folder / "b")));
    CHECK(other.exit_code == kExitBadInput);
    CHECK(other.err.find("other data than") != std::string::npos);

    const auto eval = [&](const Words& more) {
        Words line = {"eval", folder / "a", "--seq-len", "12"};
        line.insert(line.end(), more.begin(), more.end());
        const ProgramRun run = run_train(folder.path(), line);
        CHECK_MESSAGE(run.exit_code == kExitDone, run.err);
        return run.out;
    };
    CHECK(eval({"--data", folder / "val.bin"}) ==
          eval({"--data", folder / "raw_val.bin", "--raw-tokens", "257"}));
}

TEST_CASE("raw tokens: without a tokenizer generate takes ids and writes ids") {
    TempFolder folder;
    std::vector<uint16_t> tokens;
    for (int i = 0; i < 400; i++) { tokens.push_back((uint16_t)(i % 65)); }
    write_bytes(folder / "raw.bin", token_bytes(tokens));
    const ProgramRun run =
        run_train(folder.path(),
                  words("--layers 1 --heads 1 --channels 16 --seq-len 12 --steps 150 --quiet --val-data none "
                        "--raw-tokens 65 --sample-every 0 --train-data " +
                        (folder / "raw.bin") + " --out " + (folder / "run")));
    REQUIRE_MESSAGE(run.exit_code == kExitDone, run.err);
    const auto generate = [&](const Words& more) {
        Words line = {"generate", folder / "run", "--tokens", "5", "--temp", "0"};
        line.insert(line.end(), more.begin(), more.end());
        return run_train(folder.path(), line);
    };
    const Json json = Json::parse(generate({"--prompt-ids", "63,64", "--json"}).out);
    CHECK(json["ids"] == Json::array({0, 1, 2, 3, 4}));
    CHECK(json["prompt"] == "63 64 ");
    CHECK(json["text"] == "0 1 2 3 4 ");
    CHECK(generate({"--prompt-ids", "6,7"}).out == "6 7 8 9 10 11 12 \n");
    const auto refused = [&](const Words& more, const std::string& part) {
        const ProgramRun bad = generate(more);
        CHECK(bad.exit_code != kExitDone);
        CHECK_MESSAGE(bad.err.find(part) != std::string::npos, bad.err);
    };
    refused({"--prompt-ids", "7,65"}, "--prompt-ids: found 65, expected 0 to 64");
    refused({"--prompt", "a"}, "--prompt-ids 1,2,3");
    write_bytes(folder / "meta.pkl", std::string("\x80\x04\x95\0\0", 5));
    refused({"--prompt", "a", "--tokenizer", folder / "meta.pkl"}, "a Python pickle");
}

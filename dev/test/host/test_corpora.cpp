// data/get_*.sh, run as a user runs them, with a small text in place of theirs: what they take, and what they refuse.
#include "dev/test/support/train_program.h"
#include "llmc/host/options/choices.h"
#include "llmc/host/tokens/dataloader.h"

using namespace llmc;

TEST_CASE_FIXTURE(InFolder, "corpora: only the right text becomes shards, from the file itself or packed") {
    // the scripts, for a text of 100 bytes in place of theirs, which is published nowhere
    const auto in_shell = [&](const std::string& line) {
        return run_train(folder.path(), {"-c", line}, "/bin/sh");
    };
    fs::create_directory(folder / "data");
    fs::copy("data/get_corpus.sh", folder / "data");
    fs::create_symlink(fs::absolute(program_path("data/make_shards")), folder / "data/make_shards");
    for (const auto& [name, sum] :
         {std::pair("enwik8", "7a08b07e84641703e5f2c836aa59a170"),
          std::pair("tinyshakespeare", "9cfe7faff7054298ca87557e15a10262de8d3eee77827417fbdfea1c41b9ec23")}) {
        const std::string script = fmt::format("data/get_{}.sh", name);
        in_shell(fmt::format("sed 's/^sum=.*/sum={}/; s/000000//g; s|^url=.*/|url=file:///nowhere/|' {} > {}",
                             sum, script, folder / script));
    }
    const auto get = [&](const std::string& what) {
        return in_shell(fmt::format("cd {} && sh data/get_{}", shell_word(folder.path()), what));
    };
    std::string text, zip;
    while (text.size() < 100) { text += "0123456789"; }
    const std::string hex =
        "504b030414000000080000002100bc4bfcb10f0000006400000006000000656e77696b383330343236313533b7b034a0190b"
        "00504b0102140314000000080000002100bc4bfcb10f00000064000000060000000000000000000000800100000000656e77"
        "696b38504b0506000000000100010034000000330000000000";
    for (size_t i = 0; i < hex.size(); i += 2) { zip += (char)std::stoi(hex.substr(i, 2), nullptr, 16); }

    const auto refused = [&](const std::string& what, const std::string& says) {
        check_run(get(what), kExitBadInput, {says});
        CHECK(names_below(folder / "data/enwik8").empty());  // no remains
    };
    refused("enwik8.sh", "get_enwik8: cannot get file:///nowhere/enwik8.zip");
    refused("enwik8.sh none", "none: no such file");
    write_bytes(folder / "other", text + "!");
    refused("enwik8.sh other", "/other: not enwik8: its md5 should be 7a08b07e");
    write_bytes(folder / "half.zip", zip.substr(0, 50));
    refused("enwik8.sh half.zip", "half.zip: cannot be unpacked");
    CHECK(get("enwik8.sh one two").exit_code == kExitUsage);

    write_bytes(folder / "enwik8.zip", zip);
    write_bytes(folder / "input.txt", text);
    in_shell("gzip -c " + shell_word(folder / "input.txt") + " > " + shell_word(folder / "enwik8.gz"));
    for (const char* source :
         {"input.txt", "enwik8.zip", "enwik8.gz", ""}) {  // the last: what it has got already
        CAPTURE(source);
        const ProgramRun run = get(fmt::format("enwik8.sh {}", source));
        check_run(
            run, kExitDone, {},
            {"training    90 tokens", "next: ./train_gpt2 --train-data 'data/enwik8/enwik8_train_*.bin'"});
        CHECK(read_bytes(folder / "data/enwik8/enwik8") == text);
        CHECK(ShardSet(folder / "data/enwik8/enwik8_test_*.bin").num_tokens() == 5);
        fs::remove(folder / "data/enwik8/enwik8_test_000000.bin");
        if (*source == 'i') { fs::remove(folder / "data/enwik8/enwik8"); }
    }
    CHECK(get("tinyshakespeare.sh .").exit_code == kExitDone);  // a folder with input.txt
    CHECK(fs::exists(folder / "data/tinyshakespeare/tiny_shakespeare_val_000000.bin"));
}

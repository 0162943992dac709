// Tests of config files: what they say, each kind of error, and their round trip.
#include <filesystem>
#include <random>
#include <string>

#include <doctest/doctest.h>

#include "dev/test/support/test_options.h"

using namespace llmc;

namespace {

void check_bad_config(const std::string& text, std::initializer_list<std::string> parts,
                      const Args& args = {}) {
    CAPTURE(text);
    check_error(error_of([&] { parse_config(text, args); }), kExitUsage, parts);
}

}  // namespace

TEST_CASE("options: config files") {
    Options o = parse_config(
        "\xef\xbb\xbf# a run\r\n\n  batch = 8   # more\r\nlr=1e-3\n"
        "quiet = true\nout = \"runs/#1 \\\"x\\\"\" # folder\nprompt = 'a\\n#b'\n"
        "val-data = \"none\"\ntrain-data = \"data/a b#c.bin\"\nval-batches = 2\nseed = "
        "\"18446744073709551615\"");
    CHECK(o.batch == 8);
    CHECK(o.lr == 1e-3);
    CHECK(o.quiet);
    CHECK(o.out == "runs/#1 \"x\"");
    CHECK(o.prompt == "a\\n#b");
    CHECK(o.val_data.empty());
    CHECK(o.train_data == "data/a b#c.bin");
    CHECK(o.val_tokens == 2 * 8 * 256);
    CHECK(o.seed == UINT64_MAX);  // more than TOML's whole numbers hold
    CHECK(config_text(parse_config("")) == config_text(parse({})));
    // the command line wins, also over the file's other way to say it
    CHECK(parse_config("batch = 8\nseq-len = 32", {"-b", "2"}).batch == 2);
    CHECK(parse_config("batch = 8\nseq-len = 32", {"-b", "2"}).seq_len == 32);
    CHECK(parse_config("quiet = true", {"--quiet=false"}).quiet == false);
    CHECK(parse_config("val-tokens = 99", {"-m", "1"}).val_tokens == 1024);
    CHECK(parse_config("val-batches = 9", {"--val-tokens", "77"}).val_tokens == 77);
    CHECK(parse_config("layers = 2\nheads = 2\nchannels = 64", {"-e", "d12"}).layers == 0);
    CHECK(parse_config("model = \"d12\"", {"--layers", "2", "--heads", "2", "--channels", "64"}).layers == 2);
    CHECK(parse_config("layers = 2\nheads = 2\nchannels = 64", {"--layers", "5"}).layers == 5);
    CHECK(parse_config("model = \"d12\"", {"--layers", "2", "--heads", "2", "--channels", "64"}).model ==
          kAutoModel);
    TempFolder folder;
    check_bad({"--config", folder / "none.toml"}, {"--config", "none.toml"});
    check_bad({"--config", folder.path()}, {"--config", folder.path(), "is a folder"});
    check_bad({"--config", ""}, {"--config", "empty"});
    check_bad({"--config"}, {"--config", "needs a value"});
    check_bad({"--config", "/dev/zero"}, {"--config", "/dev/zero"});
}

TEST_CASE("options: the config.toml of a run that was renamed does not go on under the old name") {
    TempFolder folder;
    const std::string run = folder / "run", config = run + "/config.toml";
    std::filesystem::create_directory(run);
    write_bytes(config, "out = \"" + folder / "old" + "\"\nresume = \"auto\"\n");
    CHECK(parse({"--config", config}).out == folder / "old");  // no run's folder
    write_bytes(run + "/log.jsonl", "");
    check_bad({"--config", config}, {config, folder / "old", "renamed or copied", "Give --out " + run});
    CHECK(parse({"--config", config, "--out", run}).out == run);
    CHECK(parse({"--config", config, "--out", folder / "new"}).out == folder / "new");
    CHECK(parse({"--config", config, "--resume", "none"}).out == folder / "old");
    write_bytes(config, "out = \"" + run + "/.\"\nresume = \"auto\"\n");
    CHECK(parse({"--config", config}).out == run + "/.");
}

TEST_CASE("options: each kind of error in a config file") {
    check_bad_config("\nbacth = 4", {"--config", "line 2", "unknown key 'bacth'", "Did you mean batch?"});
    check_bad_config("help = true", {"'help' is for the command line only. See"});
    check_bad_config("config = 'x'", {"'config' is for the command line only. See"});
    check_bad_config("hlep = true", {"unknown key 'hlep'. See"});
    check_bad_config("b = 4", {"unknown key 'b'"});
    check_bad_config("= 4", {"line 1", "'= 4'"});
    check_bad_config("batch = 0", {"line 1, batch", "out of range"});
    check_bad_config("batch =", {"batch", "empty"});
    check_bad_config("batch = # 4", {"batch", "empty"});
    check_bad_config("batch = [1, 2]", {"line 1, batch", "a list or a table", "1 to 1,048,576"});
    check_bad_config("batch = 1\nbatch = 1", {"line 2, batch", "given twice"});
    check_bad_config("batch = 1\nbatch = 1", {"line 2, batch", "given twice"}, {"-b", "2"});
    check_bad_config("lr = nan", {"lr", "out of range"});
    check_bad_config("quiet = yes", {"quiet", "true or false"});
    check_bad_config("quiet", {"'quiet' has no '='"});
    check_bad_config("[optimizer]\nlr = 1", {"section", "[optimizer]"});
    for (const std::string text : {"\"a", "\"a\\\"", "\"a\\", "\"\\x\"", "\"\\u00", "\"a\" b", "'a"}) {
        check_bad_config("\nprompt = " + text, {"line 2, prompt", "'prompt = " + text + "'", "TOML"});
    }
    check_bad_config("; a comment", {"line 1", "no '='"});
    check_bad_config("batch = 8.0", {"batch", "'8.0' is not a whole number"});
    check_bad_config("batch = eight", {"batch", "'eight' is not a whole number"});
    check_bad_config("batch = 99999999999999999999", {"batch", "out of range"});
    check_bad_config("lr = .5.", {"line 1, lr", "'.5.' is not a number"});
    check_bad_config("a.b = 1", {"line 1", "unknown key"});
    check_bad_config("batch = {x = 1}", {"line 1, batch", "a list or a table"});
    for (const char* list : {"[1, 256]", "[-1]", "[1.5]", "[[1]]", "[1, 2", "[1,]", "[\"a\"]", "[}"}) {
        check_bad_config(std::string("prompt = ") + list, {"line 1, prompt", "a list or a table"});
    }
    check_bad_config("\"batch\" = 1", {"line 1", "unknown key"});
    check_bad_config("\n\xc3\xa4 = 1", {"line 2"});
    check_bad_config("batch = 1 \xef\xbb\xa5", {"line 1"});  // (U+FEE5)
    check_bad_config("[=", {"section"});
    // a stack has no room for a table in a table for each part of these
    std::string deep = "a", dots(1000, '.');
    for (int i = 0; i < 100'000; i++) { deep += ".a"; }
    for (const char* before : {"", "x = {", "prompt = {"}) {
        check_bad_config(before + deep + " = 1", {"line 1"});
    }
    for (const char* open : {"[", "{a="}) {
        std::string deep = "prompt = ";
        for (int i = 0; i < 100'000; i++) { deep += open; }
        check_bad_config(deep, {"line 1, prompt", "a list or a table"});
    }
    CHECK(parse_config("prompt = '" + dots + "' # " + dots).prompt == dots);
    check_bad_config("lr = 1979-05-27", {"lr", "is not a number"});
    check_bad_config("prompt = \"\"\"a\"\"\"", {"line 1, prompt", "TOML"});
    check_bad_config("prompt = 5", {"line 1, prompt", "prompt = \"5\""});
    // words without quotes, which config files of earlier versions may have
    check_bad_config("batch = 8\nmodel = d12  # GPT-2", {"line 2, model", "Write: model = \"d12\""});
    check_bad_config("val-data = none", {"Write: val-data = \"none\""});
    check_bad_config("train-data = data/a b.bin", {"Write: train-data = \"data/a b.bin\""});
    check_bad_config("out = runs\\a\"b", {"Write: out = \"runs\\\\a\\\"b\""});
    check_bad_config("prompt = \"\"", {"prompt", "empty"});
    check_bad_config("model = 'x'", {"--model", "'x'"});
    check_bad_config("model = 'd6'\nlayers = 2", {"--model and --layers"});
    check_bad_config("total-batch = 1", {"--total-batch"}, {"-b", "2"});
    check_bad_config(std::string("batch = 1\0", 10), {"not a text file"});
    check_bad_config(std::string(1 << 20, '#'), {"1 MiB"});
}

TEST_CASE("options: resolved is what --config reads back") {
    auto check = [](const Args& args) {
        Options first = parse(args), again = parse_config(config_text(first));
        CAPTURE(config_text(first));
        CHECK(config_text(again) == config_text(first));
        CHECK(again.prompt == first.prompt);
        CHECK(again.out == first.out);
        CHECK(again.lr == first.lr);
        CHECK(again.seed == first.seed);
        CHECK(again.val_tokens == first.val_tokens);
        CHECK(again.model == first.model);
        CHECK(ModelShape{again.layers, again.heads, again.channels} ==
              ModelShape{first.layers, first.heads, first.channels});
    };
    check({});
    check({"-b", "3", "-m", "7", "-l", "0.1", "--eps", "1.0000000000000002e-08", "--seed",
           "18446744073709551615"});
    check({"--layers", "3", "--heads", "3", "--channels", "48", "-j", "none", "--quiet", "--resume", "auto"});
    for (const Option& row : kOptions) {
        bool alone = std::string("layers heads channels").find(row.name) != std::string::npos;
        if (acts_by_itself(row) || row.for_command_line || alone || !row.cpu_only.empty()) {
            continue;
        }  // the last: test_options_gpu.cpp
        check({std::string("--") + row.name + "=" + (is_switch(row) ? "true" : good_value(row))});
    }
    std::mt19937 random(1);
    for (int i = 0; i < 200; i++) {  // prompts of every byte but 0
        std::string prompt;
        for (int n = 1 + (int)(random() % 20); n > 0; n--) { prompt += (char)(1 + random() % 255); }
        for (char c : {'"', '\\', '#', '\'', '\n'}) {
            if (random() % 2) { prompt.insert(prompt.begin() + random() % prompt.size(), c); }
        }
        check({"--prompt=" + prompt, "--out=" + prompt});
    }
}

TEST_CASE("options: a run that goes on has its own options where none are given") {
    TempFolder folder;
    const std::string run = folder / "run";
    std::filesystem::create_directory(run);
    Options was =
        parse({"--train-data", "mine.bin", "--seq-len", "64", "--epochs", "2", "--new-data", "--out", run},
              nullptr, Program::kGpu);
    CHECK(was.dtype == FloatType::kBf16);
    write_bytes(run + "/config.toml", config_text(was));
    CHECK(parse({"--resume", "auto", "--out", run}).seq_len == 256);  // no log: it is no run
    write_bytes(run + "/log.jsonl", "");  // nothing is saved: with other options it is another attempt
    CHECK(parse({"--resume", "auto", "--out", run}).seq_len == 64);
    CHECK(parse({"--resume", "auto", "--out", run, "--batch", "2"}).seq_len == 256);
    std::filesystem::create_directory(run + "/step_00000001");
    const Options gpu = parse({"--resume", "auto", "--out", run, "--batch", "2"}, nullptr, Program::kGpu);
    CHECK(gpu.train_data == "mine.bin");
    CHECK(gpu.seq_len == 64);
    CHECK(gpu.batch == 2);
    CHECK(gpu.dtype == FloatType::kBf16);
    CHECK_FALSE(gpu.new_data);  // that was for one start
    CHECK(parse({"-y", "1", "-o", run, "--steps", "5"}).epochs == 0);
    const Options cpu = parse({"--resume", "auto", "--out", run});  // which has no bf16
    CHECK(cpu.seq_len == 64);
    CHECK(cpu.dtype == FloatType::kFp32);
    // for this time only, and it says so
    CHECK_MESSAGE(contains(cpu.notes, "dtype = bf16: not on the CPU"), cpu.notes);
    CHECK_FALSE(contains(cpu.notes, "recompute"));
    CHECK(contains(config_text(cpu), "dtype = \"fp32\""));
    write_bytes(run + "/config.toml", config_text(cpu, true));
    CHECK(parse({"--resume", "auto", "--out", run}, nullptr, Program::kGpu).dtype == FloatType::kBf16);
    const Options given = parse({"--resume", "auto", "--out", run, "--dtype", "fp32"});
    CHECK(contains(config_text(given, true), "\ndtype = \"fp32\""));
    CHECK(parse({"--out", run}).seq_len == 256);
    setenv("RANK", "1", 1), setenv("WORLD_SIZE", "2", 1);  // torchrun's: another rank may not see the folder
    CHECK(parse({"--resume", "auto", "--out", run}).seq_len == 256);
    unsetenv("RANK"), unsetenv("WORLD_SIZE");
    was.gpus = "4";
    write_bytes(run + "/config.toml", config_text(was));
    CHECK(parse({"--resume", "auto", "--out", run}, nullptr, Program::kGpu).gpus == "4");
    CHECK(parse({"--resume", "auto", "--out", run, "--ranks", "2"}, nullptr, Program::kGpu).gpus.empty());
    CHECK(parse({"--resume", "auto", "--out", run}).gpus.empty());  // the CPU program
    // what came with a folder may not act beyond it, unless it is given
    const Args on = {"--resume", "auto", "--out", run};
    for (const std::string& line :
         Args{"export-hf = \"/x/outside\"", "export-hf = \"" + run + "/../outside\"", "ranks = 900",
              "master = \"10.9.9.9:99\"", "world-size = 2", "rank = 1"}) {
        CAPTURE(line);
        write_bytes(run + "/config.toml", line + "\n");
        const Error refused = error_of([&] { parse(on); });
        check_error(refused, kExitUsage, {run + "/config.toml", "add --" + line.substr(0, line.find(' '))});
    }
    write_bytes(run + "/config.toml", "export-hf = \"/x/outside\"\nranks = 900\n");
    CHECK(parse({"--resume", "auto", "--out", run, "--export-hf", "/y", "--ranks", "901"}).ranks == 901);
    write_bytes(run + "/config.toml", "export-hf = \"" + run + "/hf\"\nranks = 2\n");
    CHECK(parse(on).export_hf == run + "/hf");
    write_bytes(run + "/config.toml", "tune-gemm = \"/x/outside\"\n");
    CHECK(error_of([&] { parse(on, nullptr, Program::kGpu); }).exit_code == kExitUsage);
    write_bytes(folder / "other.toml", "seq-len = 32\n");
    CHECK(parse({"--resume", "auto", "--out", run, "--config", folder / "other.toml"}).seq_len == 32);
}

TEST_CASE("options: own training data is not validated on the sample's") {
    TempFolder folder;
    for (const char* name : {"a_train_0.bin", "a_val_0.bin", "b_train_0.bin"}) {
        write_bytes(folder / name, "x");
    }
    CHECK(parse({"--train-data", folder / "a_train_*.bin"}).val_data == folder / "a_val_*.bin");
    CHECK(parse({"-i", folder / "b_train_*.bin"}).val_data.empty());
    CHECK(parse({"--train-data", folder / "a_val_0.bin"}).val_data.empty());
    CHECK(parse({"--train-data", "train/" + folder / "x.bin"}).val_data.empty());
    CHECK(parse({"-i", folder / "b_train_*.bin", "-j", "v.bin"}).val_data == "v.bin");
    CHECK(parse_config("train-data = \"" + folder / "a_train_0.bin" + "\"").val_data ==
          folder / "a_val_0.bin");
    CHECK(parse({}).val_data == Options().val_data);
}

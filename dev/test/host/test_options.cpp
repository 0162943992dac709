// Tests of the option parser: defaults, every alias, --help, each kind of error by hand
// (test_options_generated.cpp makes many more; config files: test_options_config.cpp).
#include <pwd.h>
#include <unistd.h>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "dev/test/support/test_files.h"
#include "dev/test/support/test_options.h"
#include "llmc/model/run/commands.h"

using namespace llmc;

TEST_CASE("options: no arguments give the defaults of options.h") {
    int code = -2;
    Options o = parse({}, &code), d;
    CHECK(code == -1);
    CHECK(o.train_data == d.train_data);
    CHECK(o.val_data == d.val_data);
    CHECK(o.tokenizer == d.tokenizer);
    CHECK(o.model == d.model);
    CHECK(o.layers == 0);
    CHECK(o.batch == d.batch);
    CHECK(o.seq_len == d.seq_len);
    CHECK(o.total_batch == 0);
    CHECK(o.steps == kAuto);
    CHECK(o.lr < 0);
    CHECK_FALSE(o.llmc_letters);
    CHECK(o.schedule == Decay::kCosine);
    CHECK(o.optimizer == Optimizer::kAuto);
    CHECK(o.val_every == -1);
    CHECK(o.val_tokens == -1);
    CHECK(o.resume == "none");
    CHECK(o.out.empty());
    CHECK(o.seed == 42);
    CHECK(!o.quiet);
    CHECK(!o.dry_run);
    const char* const none[] = {nullptr};
    CHECK(parse_options(0, none, Program::kCpu, &code).batch == d.batch);
}

TEST_CASE("options: every field is set by its long name") {
    Options o = parse({"--train-data",
                       "a*.bin",
                       "--val-data=b.bin",
                       "--tokenizer",
                       "t.bin",
                       "--layers",
                       "3",
                       "--heads",
                       "2",
                       "--channels",
                       "64",
                       "--max-seq-len",
                       "128",
                       "--batch=2",
                       "--seq-len",
                       "32",
                       "--total-batch",
                       "256",
                       "--steps",
                       "-1",
                       "--lr",
                       "1e-3",
                       "--optimizer",
                       "muon",
                       "--warmup",
                       "7",
                       "--final-lr-fraction",
                       ".5",
                       "--schedule",
                       "wsd",
                       "--weight-decay",
                       "0.1",
                       "--beta1",
                       "0",
                       "--beta2",
                       "0.99",
                       "--eps",
                       "1e-6",
                       "--clip",
                       "0",
                       "--val-every",
                       "0",
                       "--val-tokens",
                       "640"});
    CHECK(o.train_data == "a*.bin");
    CHECK(o.val_data == "b.bin");
    CHECK(o.tokenizer == "t.bin");
    CHECK(ModelShape{o.layers, o.heads, o.channels} == ModelShape{3, 2, 64});
    CHECK(o.max_seq_len == 128);
    CHECK(o.batch == 2);
    CHECK(o.seq_len == 32);
    CHECK(o.total_batch == 256);
    CHECK(o.steps == -1);
    CHECK(o.lr == 1e-3);
    CHECK(o.optimizer == Optimizer::kMuon);
    CHECK(o.warmup == 7);
    CHECK(o.final_lr_fraction == 0.5);
    CHECK(o.schedule == Decay::kWsd);
    CHECK(o.weight_decay == 0.1);
    CHECK(o.beta1 == 0);
    CHECK(o.beta2 == 0.99);
    CHECK(o.eps == 1e-6);
    CHECK(o.clip == 0);
    CHECK(o.val_every == 0);
    CHECK(o.val_tokens == 640);
    o = parse({"--val-align",     "document",  "--sample-every", "0",
               "--sample-tokens", "9",         "--temperature",  "0.7",
               "--top-k",         "40",        "--prompt",       "-- no",
               "--out",           "o",         "--save-every",   "5",
               "--resume",        "o/step_5",  "--log-every",    "3",
               "--quiet",         "--dry-run", "--seed",         "18446744073709551615",
               "--keep",          "3",         "--model-dtype",  "bf16",
               "--steps=-1"});
    CHECK(o.val_align == ValAlign::kDocument);
    CHECK(o.sample_every == 0);
    CHECK(o.sample_tokens == 9);
    CHECK(o.temperature == 0.7);
    CHECK(o.top_k == 40);
    CHECK(o.prompt == "-- no");
    CHECK(o.out == "o");
    CHECK(o.save_every == 5);
    CHECK(o.resume == "o/step_5");
    CHECK(o.keep == 3);
    CHECK(o.model_dtype == FloatType::kBf16);
    CHECK(o.log_every == 3);
    CHECK(o.quiet);
    CHECK(o.dry_run);
    CHECK(o.seed == 18446744073709551615ull);
    CHECK(o.steps == -1);
}

TEST_CASE("options: each alias sets what its long name sets") {
    int aliases = 0;
    for (const Option& row : kOptions) {
        if (row.letter.empty() || acts_by_itself(row)) { continue; }
        CAPTURE(row.name);
        std::string value = good_value(row), letter = row.letter;
        Options o = parse({letter, value});
        CHECK(config_text(o) == config_text(parse({std::string("--") + row.name, value})));
        CHECK(config_text(o) == config_text(parse({std::string("--") + row.name + "=" + value})));
        CHECK(config_text(o) != config_text(parse({})));
        aliases++;
    }
    CHECK(aliases == 18);  // -i -j -e -o -b -t -d -x -l -u -q -c -v -m -s -g -n -k
    CHECK(parse({"-k", "linear"}).schedule == Decay::kLinear);
    Options o =
        parse({"-i",  "I",  "-j", "J",  "-e",  "gpt2:d24", "-o", "O",  "-b",   "2",        "-t",   "64", "-d",
               "256", "-x", "-1", "-l", "0.5", "-u",       "6",  "-q", "0.25", "-c",       "0.75", "-v", "11",
               "-m",  "3",  "-s", "12", "-g",  "13",       "-n", "14", "-k",   "constant", "-y",   "1"});
    CHECK(o.train_data == "I");
    CHECK(o.val_data == "J");
    CHECK(o.model == "gpt2:d24");
    CHECK(o.out == "O");
    CHECK(o.batch == 2);
    CHECK(o.seq_len == 64);
    CHECK(o.total_batch == 256);
    CHECK(o.steps == -1);
    CHECK(o.lr == 0.5);
    CHECK(o.warmup == 6);
    CHECK(o.final_lr_fraction == 0.25);
    CHECK(o.weight_decay == 0.75);
    CHECK(o.val_every == 11);
    CHECK(o.val_tokens == 3 * 2 * 64);
    CHECK(o.sample_every == 12);
    CHECK(o.sample_tokens == 13);
    CHECK(o.save_every == 14);
    CHECK(o.schedule == Decay::kConstant);
    CHECK(o.resume == "auto");
    CHECK(parse({"-y", "0"}).resume == "none");
    CHECK(parse({"-nk", "5"}).keep == 5);
    CHECK(parse({"-nm", "5"}).keep_major == 5);
    CHECK(parse({"-m", "-1"}).val_tokens == -1);
    CHECK(parse({"--val-batches=20", "-b", "8", "-t", "1024"}).val_tokens == 20 * 8 * 1024);
    CHECK(parse({"-j", "none"}).val_data.empty());
}

TEST_CASE("options: llm.c's other options are accepted where they ask for nothing, else refused by name") {
    CHECK(config_text(parse({"-z",  "1",   "-r",  "0",   "-a",  "0",   "-f",  "0",   "-w",  "1",   "-ge",
                             "0",   "-lg", "-1",  "-nk", "0",   "-nm", "0",   "-sl", "0",   "-sg", "0.0",
                             "-pn", "1",   "-pr", "0",   "-pg", "8",   "-pi", "mpi", "-pm", "tcp"})) ==
          config_text(parse({})));
    CHECK(kForeignOptions.size() == 8);
    for (const Option& option : kForeignOptions) {
        const std::string name = option.names[0];
        check_bad({name, "5"}, {name, "'5'", "is not part of this program yet"});
        check_bad({"-b", "2", name}, {name, "needs a value"});
        check_bad({name, "--batch", "2"}, {name, "needs a value", "--batch"});
    }
    check_bad({"-z", "2"}, {"-z (--zero)", "0 to 1 (ZeRO-1 is the highest stage here)"});
    check_bad({"-pi", "fs"}, {"-pi", "'fs'", "--master"});
    check_bad({"-pm", "fs"}, {"-pm", "'fs'", "--master"});
    check_bad({"-pp", "/tmp"}, {"-pp", "'/tmp'", "--master"});
    check_bad({"-a", "1"}, {"-a", "'1'", "--epochs N with --train-data"});
    Options o = parse({"-z", "0", "-pn", "8", "-pr", "3", "-pg", "4", "-pi", "tcp", "-ps", "10.0.0.7"});
    CHECK(o.zero == 0);
    CHECK(o.world_size == 8);
    CHECK(o.rank == 3);
    CHECK(o.ranks_per_host == 4);
    CHECK(o.master == "10.0.0.7");
    check_bad({"-lg", "5"}, {"-lg", "GPU"});
    check_bad({"-lg=5"}, {"-lg=5", "Did you mean -lg 5?"});
    check_bad({"-a", "0", "-a", "0"}, {"-a", "twice"});
    check_bad({"-h", "3"}, {"-h", "HellaSwag", "--help"});
    check_bad({"-y", "2"}, {"-y (--resume)", "'2'"});
    check_bad({"-y", "1", "--resume", "auto"}, {"--resume", "twice"});
    check_bad({"-nk", "-1"}, {"-nk (--keep)", "0 to 2^31 - 1 checkpoints"});
    int aliases = 0;  // short names that --help does not show
    for (const Option& row : kOptions) {
        const std::string alias = row.names.back(), both = alias + " (--" + row.name + ")";
        if (alias.starts_with("--")) { continue; }
        CHECK(alias != row.letter);
        if (row.name != "master") { check_bad({alias, "x"}, {both, "'x'"}); }
        check_bad({alias}, {both, "needs a value"});
        check_bad({alias, "--batch", "2"}, {both, "needs a value", "--batch"});
        check_bad({"--batch", alias}, {"--batch", "needs a value", alias});
        check_bad({alias + "=0"}, {"Did you mean", alias});
        aliases++;
    }
    CHECK(aliases == 12);  // -y -r -f -z -nk -nm -pn -pr -pg -ps -sl -sg
}

TEST_CASE("options: model descriptors") {
    auto shape = [](const std::string& text) {
        ModelShape s{7, 7, 7};
        return model_descriptor(text, &s) ? s : ModelShape{};
    };
    CHECK(shape("d6") == ModelShape{6, 6, 384});
    CHECK(shape("d12") == ModelShape{12, 12, 768});
    CHECK(shape("d24") == ModelShape{24, 16, 1024});
    CHECK(shape("d36") == ModelShape{36, 20, 1280});
    CHECK(shape("d48") == ModelShape{48, 25, 1600});
    CHECK(shape("d60") == ModelShape{60, 30, 1920});
    CHECK(shape("d72") == ModelShape{72, 30, 2880});
    CHECK(shape("d84") == ModelShape{84, 36, 3456});
    CHECK(shape("d1") == ModelShape{1, 1, 64});
    CHECK(shape("gpt2:d13") == ModelShape{13, 13, 832});
    CHECK(shape("d1024") == ModelShape{1024, 1024, 65536});
    CHECK(shape("gpt3:c384") == ModelShape{6, 6, 384});
    CHECK(shape("gpt3:c768") == ModelShape{12, 12, 768});
    CHECK(shape("gpt3:c1024") == ModelShape{24, 16, 1024});
    CHECK(shape("gpt3:c1536") == ModelShape{24, 16, 1536});
    CHECK(shape("gpt3:c2048") == ModelShape{24, 16, 2048});
    CHECK(shape("gpt3:c2560") == ModelShape{32, 32, 2560});
    CHECK(shape("gpt3:c4096") == ModelShape{32, 32, 4096});
    CHECK(shape("gpt3:c12288") == ModelShape{96, 96, 12288});
    CHECK(parse({"-e", "gpt3:c768"}).max_seq_len == 2048);
    CHECK(parse({"-e", "gpt3:c768", "--max-seq-len", "512"}).max_seq_len == 512);
    CHECK(parse({"-e", "gpt2:d12"}).max_seq_len == 0);
    for (const char* bad :
         {"",         "d",         "d0",     "d01",        "d1025",      "d99999999999999999999",
          "d-1",      "d+1",       "d 6",    "d6 ",        "D6",         "6",
          "gpt2:",    "gpt2:d",    "gpt2:6", "gpt3:c5140", "gpt3:c0768", "gpt3:768",
          "gpt3:d12", "gpt2:c768", "d6x",    "d6.bin"}) {
        CAPTURE(bad);
        CHECK(shape(bad) == ModelShape{});
        if (*bad && bad != std::string("d6.bin")) {
            check_bad({"--model", bad}, {"--model", bad, "dN", "gpt3:cN"});
        }
    }
    CHECK(parse({"-e", "models/gpt2_124M.bin"}).model == "models/gpt2_124M.bin");
    check_bad({"-e", "a.bin", "--max-seq-len", "64", "-t", "64"}, {"--max-seq-len", "--model"});
    for (const char* part : {"--layers", "--heads", "--channels"}) {
        check_bad({part, "4"}, {"--layers", "--heads", "--channels", "missing"});
        check_bad({part, "4", "-e", "d6"}, {"--model", part, "one or the other"});
    }
    check_bad({"--layers", "2", "--heads", "3", "--channels", "64"}, {"--heads 3", "--channels 63 or 66"});
    check_bad({"--layers", "2", "--heads", "9", "--channels", "8"}, {"--heads 9", "Nearest: --channels 9."});
}

TEST_CASE("options: each kind of error") {
    check_bad({"--bacth", "4"}, {"unknown option '--bacth'", "Did you mean --batch?"});
    check_bad({"--learning-rate", "1"}, {"--learning-rate", "Did you mean --lr?"});
    check_bad({"--batch_size=4"}, {"--batch_size", "Did you mean --batch?"});
    check_bad({"--Seed", "4"}, {"--Seed", "Did you mean --seed?"});
    check_bad({"-steps", "4"}, {"-steps", "Did you mean --steps?"});
    check_bad({"--epoch", "4"}, {"Did you mean --epochs?"});
    for (const char* far : {"--jigsaw", "--zzz", "--x"}) {
        check_error(error_of([&] { parse({far, "4"}); }), kExitUsage, {"unknown option", "'. See --help"});
    }
    check_bad({"-b4"}, {"-b4", "Did you mean -b 4?"});
    check_bad({"-b=4"}, {"-b=4", "Did you mean -b 4?"});
    check_bad({"-X", "4"}, {"-X", "Did you mean --steps?"});
    check_bad({"--"}, {"unexpected argument '--'"});
    check_bad({""}, {"unexpected argument ''"});
    check_bad({"-"}, {"unexpected argument '-'"});
    check_bad({"-b", "4", "8"}, {"unexpected argument '8' after -b"});
    check_bad({"train.bin"}, {"unexpected argument 'train.bin'"});
    check_bad({"-b"}, {"-b (--batch)", "nothing follows"});
    check_bad({"--batch", "--lr", "1"}, {"--batch", "'--lr' follows"});
    check_bad({"-l", "-u", "1"}, {"-l (--lr)", "'-u' follows", "--lr=VALUE"});
    check_bad({"-b", "4", "--batch", "4"}, {"--batch", "twice"});
    check_bad({"--quiet", "--quiet"}, {"--quiet", "twice"});
    check_bad({"--quiet=1"}, {"--quiet", "true or false"});
    check_bad({"--help=1"}, {"--help", "takes no value"});
    check_bad({"--batch", "0"}, {"--batch", "'0' is out of range", "1 to 1,048,576 sequences"});
    check_bad({"--batch", "4x"}, {"--batch", "'4x' is not a whole number"});
    check_bad({"--batch", "4.5"}, {"--batch", "whole number"});
    check_bad({"--batch", " 4"}, {"--batch", "whole number"});
    check_bad({"--batch", "0x10"}, {"--batch", "whole number"});
    check_bad({"--batch="}, {"--batch", "empty"});
    check_bad({"--steps", "-2"}, {"--steps", "-1 or 1 to"});
    check_bad({"--seed", "-1"}, {"--seed", "2^64 - 1"});
    check_bad({"--seed", "18446744073709551616"}, {"--seed", "out of range"});
    check_bad({"--lr", "-inf"}, {"--lr", "out of range"});
    check_bad({"--lr", "1e999"}, {"--lr", "out of range"});
    check_bad({"--beta1", "1"}, {"--beta1", "0.9999999"});
    check_bad({"--eps", "0"}, {"--eps", "1e-37"});
    check_bad({"--prompt", ""}, {"--prompt", "empty"});
    check_bad({"-k", "cosin"}, {"-k (--schedule)", "'cosin'", "constant, cosine, linear or wsd"});
    check_bad({"--val-align", "Window"}, {"--val-align", "auto, window or document"});
    check_bad({"-m", "3", "--val-tokens", "64"}, {"--val-tokens", "--val-batches"});
    check_bad({"-d", "1000", "-b", "4", "-t", "64"}, {"--total-batch 1000", "4 x 64", "768 or 1024"});
    check_bad({"-d", "100", "-b", "4", "-t", "64"}, {"--total-batch 100", "Nearest: --total-batch 256."});
    check_bad({"--max-seq-len", "128"}, {"--max-seq-len 128", "--seq-len 256"});
    check_bad({"-m", "2147483647", "-b", "1048576", "-t", "1048576"}, {"--val-batches", "10^15"});
    check_bad({"--prompt=x\ny", "--bad\n\x1b[31m" + std::string(5000, 'x')}, {"--bad??[31m", "...'"});
}

TEST_CASE("options: values that begin with a dash, and odd texts, arrive as they are") {
    for (const char* text : {"-1", "-hello", "[a,b]", "{}", "%%", "a b", " ", "\"", "'q'", "a=b", "=", "# no",
                             "-- a", "\xff\xfe", "--a text"}) {
        CAPTURE(text);
        CHECK(parse({"--prompt", text}).prompt == text);
    }
    CHECK(parse({"--prompt=--batch"}).prompt == "--batch");
    CHECK(parse({"--prompt=-b"}).prompt == "-b");
    CHECK(parse({"--out==x"}).out == "=x");
    CHECK(parse({"--quiet=false"}).quiet == false);
}

TEST_CASE("options: --help and --version") {
    int code = -2;
    std::string help = printed({"--help"}, &code);
    CHECK(code == kExitDone);
    CHECK(help == format_help("./train_gpt2", Program::kCpu));
    CHECK(printed({"-b", "2", "-h"}, &code) == help);
    CHECK(code == kExitDone);
    for (const Option& row : kOptions) {
        CAPTURE(row.name);
        std::string start = row.letter.empty() ? "\n      --" : "\n  " + row.letter + ", --";
        CHECK(contains(help, start + row.name + (is_switch(row) ? "" : " ")));
        if (!row.group.empty()) { CHECK(contains(help, "\n\n" + row.group + ":\n")); }
    }
    for (const char* part : {"Usage: ./train_gpt2 ", "[default 4; 1 to 1,048,576 sequences]",
                             "Exit codes:", "Examples:", "constant, cosine, linear or wsd", "768      124M",
                             "[default data/sample/train.bin]"}) {
        CAPTURE(part);
        CHECK(contains(help, part));
    }
    for (size_t at = 0; at < help.size();) {
        size_t end = help.find('\n', at);
        std::string line = help.substr(at, end - at);
        CAPTURE(line);
        CHECK(line.size() <= 100);
        CHECK((line.empty() || line.back() != ' '));
        at = end + 1;
    }
    CHECK(contains(format_help("PROGRAM", Program::kCpu), "Usage: PROGRAM "));
    std::string version = printed({"--version"}, &code);
    CHECK(code == kExitDone);
    CHECK(contains(version, "plumb 0.1\n"));
    CHECK(contains(version, "compiler: "));
    CHECK(contains(version, "OpenMP"));
}

TEST_CASE("options: ~ is the home folder, also where a shell leaves it as it is") {
    const std::string home = std::getenv("HOME") == nullptr ? "" : std::getenv("HOME");
    setenv("HOME", "/home/me", 1);
    CHECK(parse({"--out=~/runs"}).out == "/home/me/runs");
    CHECK(parse({"-o", "~/runs"}).out == "/home/me/runs");
    CHECK(parse({"--out=~runs"}).out == "~runs");
    CHECK(parse({"--prompt=~/runs"}).prompt == "~/runs");
    TempFolder folder;
    write_bytes(folder / "c.toml", "out = \"~/runs\"\nprompt = \"~/runs\"\n");
    CHECK(parse({"--config", folder / "c.toml"}).out == "/home/me/runs");
    CHECK(parse({"--config", folder / "c.toml"}).prompt == "~/runs");
    const auto command = [](std::vector<const char*> typed) {  // of a sub-command
        typed.insert(typed.begin(), "train_gpt2");
        CommandOptions o;
        parse_command((int)typed.size(), typed.data(), &o);
        return o;
    };
    const CommandOptions o = command({"generate", "~/m", "--tokenizer=~/t", "--prompt=~/p", "--stop", "~/s"});
    CHECK(o.model == "/home/me/m");
    CHECK(o.tokenizer == "/home/me/t");
    CHECK(o.prompt == "~/p");
    CHECK(o.stop == std::vector<std::string>{"~/s"});
    CHECK(command({"export", "m", "--hf", "~/out"}).hf == "/home/me/out");
    CHECK(command({"eval", "m", "--data=~/d/*_val_*"}).data == "/home/me/d/*_val_*");
    const passwd* user = getpwuid(geteuid());
    REQUIRE(user != nullptr);
    setenv("HOME", "", 1);
    CHECK(parse({"--out=~/runs"}).out == user->pw_dir + std::string("/runs"));
    unsetenv("HOME");
    CHECK(command({"export", "m", "--hf=~/out"}).hf == user->pw_dir + std::string("/out"));
    setenv("HOME", home.c_str(), 1);
}

// Tests of command lines: defaults, every name of every option, --help, each kind of error, by hand and made by chance, and
// what the options of a run say in its config.toml.
#include <pwd.h>
#include <random>
#include <tuple>

#include "dev/test/support/compare_state.h"
#include "dev/test/support/test_options.h"
#include "dev/test/support/train_program.h"
#include "llmc/host/options/table.h"
#include "llmc/model/run/commands.h"

using namespace llmc;

namespace {

Options fields_of_table;
const Table kTable = trainer_table(&fields_of_table);
// the options with a long name, and those of llm.c without one, but for -h, which is help as well
std::vector<Option> options_of_table(bool named) {
    std::vector<Option> all = kTable.options;
    std::erase_if(all, [=](const Option& o) { return o.name.empty() == named || o.names[0] == "-h="; });
    return all;
}
const std::vector<Option> kOptions = options_of_table(true), kForeignOptions = options_of_table(false);

Args operator+(Args a, const Args& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

bool is_switch(const Option& row) { return row.value.empty(); }
bool is_action(const Option& row) { return row.field.kind == Field::kAction; }
std::string letter_of(const Option& row) { return row.names[0].starts_with("--") ? "" : row.names[0]; }

// A line for each: what is typed | what the message says | and says
void check_all_bad(const std::string& table, Program program = Program::kCpu) {
    for (const std::string& line : split(table, '\n')) {
        const std::vector<std::string> parts = split(line, '|');
        for (size_t i = 1; i < parts.size(); i++) {
            const std::string part = parts[i].substr(1, parts[i].size() - 1 - parts[i].ends_with(' '));
            check_bad(words(parts[0]), {part}, program);
        }
    }
}

// a value that the row takes
std::string good_value(const Option& row) {
    if (row.name == "model") { return "d12"; }
    if (row.name == "total-batch") { return "4096"; }
    if (row.name == "max-seq-len") { return "1024"; }
    if (row.name == "seq-len") { return "512"; }
    if (*row.choices) { return split_words(row.choices)[0]; }
    if (row.field.kind == Field::kReal) { return "0.125"; }
    return row.is_number() ? (row.range.hi < 8 ? "0" : "8") : "runs/x";
}

}  // namespace

// ---- names, values, defaults -------------------------------------------------------------------

TEST_CASE("options: no arguments give the defaults of options.h") {
    int code = -2;
    Options o = parse({}, &code), d, gpu = parse_gpu({});
    CHECK(code == -1);
    CHECK(std::tie(o.train_data, o.val_data, o.tokenizer, o.model, o.batch, o.seq_len) ==
          std::tie(d.train_data, d.val_data, d.tokenizer, d.model, d.batch, d.seq_len));
    CHECK(std::tie(o.layers, o.total_batch, o.steps, o.schedule, o.optimizer, o.val_every, o.val_tokens,
                   o.seed) == std::tuple(0, 0, kAuto, Decay::kCosine, Optimizer::kAuto, -1, -1, 42u));
    CHECK(std::tie(o.resume, o.out, o.quiet, o.dry_run, o.llmc_letters) ==
          std::tuple("none", "", false, false, false));
    CHECK(o.lr < 0);
    const char* const none[] = {nullptr};
    CHECK(parse_options(0, none, Program::kCpu)->batch == d.batch);
    CHECK(std::tie(o.program, o.dtype) == std::tuple(Program::kCpu, FloatType::kFp32));
    CHECK(std::tie(gpu.program, gpu.dtype, gpu.grad_dtype, gpu.recompute, gpu.tf32) ==
          std::tuple(Program::kGpu, FloatType::kBf16, FloatType::kFp32, Recompute::kNone, false));
    const Options as_bf16 = parse_config(config_text(o), {"--dtype", "bf16"}, Program::kGpu);
    CHECK(config_text(as_bf16) == config_text(gpu));  // all other defaults are the same
}

TEST_CASE("options: every field is set by its long name") {
    Options o = parse(words(
        "--train-data a*.bin --val-data=b.bin --tokenizer t.bin --layers 3 --heads 2 --channels 64 "
        "--max-seq-len 128 --batch=2 --seq-len 32 --total-batch 256 --steps -1 --lr 1e-3 --optimizer muon "
        "--warmup 7 --final-lr-fraction .5 --schedule wsd --weight-decay 0.1 --beta1 0 --beta2 0.99 --eps "
        "1e-6 --clip 0 --dropout .1 --val-every 0 --val-tokens 640 --val-align document --sample-every 0 "
        "--sample-tokens "
        "9 --temperature 0.7 --top-k 40 --out o --save-every 5 --resume o/step_5 --log-every 3 --quiet "
        "--dry-run --seed 18446744073709551615 --keep 3 --model-dtype bf16"));
    CHECK(std::tie(o.train_data, o.val_data, o.tokenizer) == std::tuple("a*.bin", "b.bin", "t.bin"));
    CHECK(std::tie(o.layers, o.heads, o.channels, o.max_seq_len) == std::tuple(3, 2, 64, 128));
    CHECK(std::tie(o.batch, o.seq_len, o.total_batch, o.steps) == std::tuple(2, 32, 256, -1));
    CHECK(std::tie(o.lr, o.optimizer, o.warmup, o.final_lr_fraction, o.schedule) ==
          std::tuple(1e-3, Optimizer::kMuon, 7, 0.5, Decay::kWsd));
    CHECK(std::tie(o.weight_decay, o.beta1, o.beta2, o.eps, o.clip) == std::tuple(0.1, 0, 0.99, 1e-6, 0));
    CHECK(o.dropout == 0.1);
    CHECK(std::tie(o.val_every, o.val_tokens, o.val_align) == std::tuple(0, 640, ValAlign::kDocument));
    CHECK(std::tie(o.sample_every, o.sample_tokens, o.temperature, o.top_k) == std::tuple(0, 9, 0.7, 40));
    CHECK(std::tie(o.out, o.save_every, o.resume, o.keep) == std::tuple("o", 5, "o/step_5", 3));
    CHECK(std::tie(o.model_dtype, o.log_every, o.quiet, o.dry_run) ==
          std::tuple(FloatType::kBf16, 3, true, true));
    CHECK(o.seed == 18446744073709551615ull);
    CHECK(parse({"--prompt", "-- no"}).prompt == "-- no");
    CHECK(parse({"--dtype", "auto"}).dtype == FloatType::kFp32);
    CHECK(parse_gpu({"--dtype", "auto"}).dtype == FloatType::kBf16);
    CHECK(parse_gpu({"--dtype", "fp32"}).dtype == FloatType::kFp32);
    CHECK(parse_gpu({"--grad-dtype", "bf16"}).grad_dtype == FloatType::kBf16);
    CHECK(parse_gpu({"--recompute", "gelu"}).recompute == Recompute::kGelu);
    CHECK(parse_gpu({"--tf32", "--dtype", "fp32"}).tf32);
}

TEST_CASE("options: each short name sets what its long name sets") {
    int letters = 0;
    for (const Option& row : kOptions) {
        const std::string letter = letter_of(row), both = letter + " (--" + row.name + ")",
                          value = good_value(row);
        if (letter.empty() || is_action(row)) { continue; }
        CAPTURE(row.name);
        letters++;
        check_bad({letter}, {both, "needs a value"});
        check_bad({letter, "--batch", "2"}, {both, "needs a value", "--batch"});
        check_bad({"--batch", letter}, {"--batch", "needs a value", letter});
        if (*row.numbered) { continue; }
        const std::string text = config_text(parse({letter, value}));
        for (const Args& other :
             {Args{letter + "=" + value}, {"--" + row.name, value}, {"--" + row.name + "=" + value}}) {
            CHECK(text == config_text(parse(other)));
        }
        // those that say which process it is are not in a file
        CHECK((text == config_text(parse({}))) == among("world-size rank ranks-per-host master", row.name));
    }
    CHECK(letters == 30);
    Options o = parse(
        words("-i I -j J -e gpt2:d24 -o O -b 2 -t 64 -d 256 -x -1 -l 0.5 -u 6 -q 0.25 -c 0.75 -v 11 -m 3 "
              "-s 12 -g 13 -n 14 -k constant -y 1 -nk 5 -nm 6 -z 0 -pn 8 -pr 3 -pg 4 -ps 10.0.0.7"));
    CHECK(std::tie(o.train_data, o.val_data, o.model, o.out) == std::tuple("I", "J", "gpt2:d24", "O"));
    CHECK(std::tie(o.batch, o.seq_len, o.total_batch, o.steps) == std::tuple(2, 64, 256, -1));
    CHECK(std::tie(o.lr, o.warmup, o.final_lr_fraction, o.weight_decay) == std::tuple(0.5, 6, 0.25, 0.75));
    CHECK(std::tie(o.val_every, o.val_tokens, o.sample_every, o.sample_tokens) ==
          std::tuple(11, 3 * 2 * 64, 12, 13));
    CHECK(std::tie(o.save_every, o.schedule, o.resume) == std::tuple(14, Decay::kConstant, "auto"));
    CHECK(std::tie(o.keep, o.keep_major, o.zero) == std::tuple(5, 6, 0));
    CHECK(std::tie(o.world_size, o.rank, o.ranks_per_host, o.master) == std::tuple(8, 3, 4, "10.0.0.7"));
    CHECK(parse({"-k", "linear"}).schedule == Decay::kLinear);
    CHECK(parse({"-y", "0"}).resume == "none");
    CHECK(parse({"-m", "-1"}).val_tokens == -1);
    CHECK(parse({"--val-batches=20", "-b", "8", "-t", "1024"}).val_tokens == 20 * 8 * 1024);
    CHECK(parse({"-j", "none"}).val_data.empty());
    CHECK(parse_gpu({"-r", "0"}).recompute == Recompute::kNone);
    CHECK(parse_gpu({"-r", "1"}).recompute == Recompute::kGelu);
    CHECK(parse_gpu({"-r", "2"}).recompute == Recompute::kBlock);
    CHECK(parse_gpu({"-f", "1", "--dtype", "fp32"}).tf32);
    CHECK(!parse_gpu({"-f", "0"}).tf32);
}

TEST_CASE("options: model descriptors") {
    auto shape = [](const std::string& text) {
        ModelShape s{7, 7, 7};
        return model_descriptor(text, &s) ? s : ModelShape{};
    };
    for (const std::string& known :
         split("d6 6 6 384|d12 12 12 768|d24 24 16 1024|d36 36 20 1280|d48 48 25 1600|d60 60 30 1920|"
               "d72 72 30 2880|d84 84 36 3456|d1 1 1 64|gpt2:d13 13 13 832|d1024 1024 1024 65536|"
               "gpt3:c384 6 6 384|gpt3:c768 12 12 768|gpt3:c1024 24 16 1024|gpt3:c1536 24 16 1536|"
               "gpt3:c2048 24 16 2048|gpt3:c2560 32 32 2560|gpt3:c4096 32 32 4096|gpt3:c12288 96 96 12288",
               '|')) {
        const Args w = words(known);
        CHECK_MESSAGE((shape(w[0]) == ModelShape{std::stoi(w[1]), std::stoi(w[2]), std::stoi(w[3])}), known);
    }
    CHECK(parse({"-e", "gpt3:c768"}).max_seq_len == 2048);
    CHECK(parse({"-e", "gpt3:c768", "--max-seq-len", "512"}).max_seq_len == 512);
    CHECK(parse({"-e", "gpt2:d12"}).max_seq_len == 0);
    for (const std::string& bad :
         words("d d0 d01 d1025 d99999999999999999999 d-1 d+1 D6 6 gpt2: gpt2:d gpt2:6 gpt3:c5140 gpt3:c0768 "
               "gpt3:768 gpt3:d12 gpt2:c768 d6x") +
             Args{"d 6", "d6 "}) {
        CHECK_MESSAGE(shape(bad) == ModelShape{}, bad);
        check_bad({"--model", bad}, {"--model", bad, "dN", "gpt3:cN"});
    }
    for (const char* bad : {"", "d6.bin"}) { CHECK(shape(bad) == ModelShape{}); }
    CHECK(parse({"-e", "models/gpt2_124M.bin"}).model == "models/gpt2_124M.bin");
    for (const char* part : {"--layers", "--heads", "--channels"}) {
        check_bad({part, "4"}, {"--layers", "--heads", "--channels", "missing"});
        check_bad({part, "4", "-e", "d6"}, {"--model", part, "one or the other"});
    }
}

TEST_CASE("options: values that begin with a dash, and odd texts, arrive as they are") {
    for (const char* text : {"-1", "-hello", "[a,b]", "{}", "%%", "a b", " ", "\"", "'q'", "a=b", "=", "# no",
                             "-- a", "\xff\xfe", "--a text"}) {
        CHECK_MESSAGE(parse({"--prompt", text}).prompt == text, text);
    }
    CHECK(parse({"--prompt=--batch"}).prompt == "--batch");
    CHECK(parse({"--prompt=-b"}).prompt == "-b");
    CHECK(parse({"--out==x"}).out == "=x");
    CHECK(parse({"--quiet=false"}).quiet == false);
    CHECK(parse({"--quiet", "false", "--batch", "2"}).quiet == false);
    CHECK(parse({"--quiet", "true", "--batch", "2"}).quiet == true);
}

TEST_CASE("options: ~ is the home folder, also where a shell leaves it as it is") {
    const std::string home = std::getenv("HOME") == nullptr ? "" : std::getenv("HOME");
    setenv("HOME", "/home/me", 1);
    CHECK(parse({"--out=~/runs"}).out == "/home/me/runs");
    CHECK(parse({"-o", "~/runs"}).out == "/home/me/runs");
    CHECK(parse({"--out=~runs"}).out == "~runs");
    CHECK(parse({"--prompt=~/runs"}).prompt == "~/runs");
    const Options in_file = parse_config("out = \"~/runs\"\nprompt = \"~/runs\"\n");
    CHECK(std::tie(in_file.out, in_file.prompt) == std::tuple("/home/me/runs", "~/runs"));
    const auto command = [](std::vector<const char*> typed) {  // of a sub-command
        typed.insert(typed.begin(), "train_gpt2");
        return parse_command((int)typed.size(), typed.data()).value();
    };
    const CommandOptions o = command({"generate", "~/m", "--tokenizer=~/t", "--prompt=~/p", "--stop", "~/s"});
    CHECK(o.model == "/home/me/m");
    CHECK(o.tokenizer == "/home/me/t");
    CHECK(o.prompt == "~/p");
    CHECK(o.stop == Args{"~/s"});
    CHECK(command({"export", "m", "--hf", "~/out"}).hf == "/home/me/out");
    CHECK(command({"eval", "m", "--data=~/d/*_val_*"}).data == "/home/me/d/*_val_*");
    const passwd* user = getpwuid(geteuid());
    REQUIRE(user != nullptr);
    setenv("HOME", "", 1);
    CHECK(parse({"--out=~/runs"}).out == user->pw_dir + std::string("/runs"));
    unsetenv("HOME");
    CHECK(command({"export", "m", "--hf=~/out"}).hf == user->pw_dir + std::string("/out"));
    if (geteuid() == 0 && seteuid(54321) == 0) {  // a user of whom no list knows
        check_bad({"--out=~/runs"}, {"'~/runs': nothing says where your home is"});
        CHECK(seteuid(0) == 0);
    }
    setenv("HOME", home.c_str(), 1);
}

TEST_CASE("options: --help and --version") {
    for (const Program program : {Program::kCpu, Program::kGpu}) {
        const bool is_gpu = program == Program::kGpu;
        int code = -2;
        const auto printed = [&](const Args& args) {
            return printed_by([&] { parse(args, &code, program); });
        };
        const std::string help = printed({"--help"});
        CHECK(code == kExitDone);
        CHECK(printed({"-b", "2", "-h"}) == help);
        CHECK(code == kExitDone);
        for (const Option& row : kOptions) {
            const std::string letter = letter_of(row),
                              start = letter.empty() ? "\n      --" : "\n  " + letter + ", --";
            CHECK_MESSAGE(contains(help, start + row.name + (is_switch(row) ? "" : " ")), row.name);
            if (!row.group.empty()) { CHECK(contains(help, "\n\n" + row.group + ":\n")); }
        }
        check_holds(help, {"[default 4; 1 to 1,048,576 sequences]",
                           "Exit codes:", "Examples:", "constant, cosine, linear or wsd", "768 channels",
                           "124M", "[default data/sample/train.bin]"});
        for (const char* part :
             {"Usage: ./train_gpt2cu ", "here on an NVIDIA GPU", "[default auto; auto, bf16 or fp32]",
              "[default none; none, gelu or block]"}) {
            CHECK_MESSAGE(contains(help, part) == is_gpu, part);
        }
        for (const char* part :
             {"Usage: ./train_gpt2 ", "here on the CPU", "[only false here; others in train_gpt2cu]",
              "[only fp32 here; others in train_gpt2cu]", "[only none here; others in train_gpt2cu]"}) {
            CHECK_MESSAGE(contains(help, part) == !is_gpu, part);
        }
        CHECK(contains(help, "in train_gpt2cu") == !is_gpu);
        for (const std::string& line : split(help, '\n')) {
            CHECK_MESSAGE((line.size() <= 100 && !line.ends_with(' ')), line);
        }
        const std::string version = printed({"--version"});
        CHECK(code == kExitDone);
        check_holds(version, {"plumb 0.1\n", "compiler: ", "OpenMP"});
    }
}

// ---- errors ------------------------------------------------------------------------------------

TEST_CASE("options: each kind of error") {
    check_all_bad(R"(
--bacth 4 | unknown option '--bacth' | Did you mean --batch? See ./train_gpt2 --help.
--learning-rate 1 | --learning-rate | Did you mean --lr?
--batch_size=4 | --batch_size | Did you mean --batch?
--Seed 4 | --Seed | Did you mean --seed?
-steps 4 | -steps | Did you mean --steps?
--epoch 4 | Did you mean --epochs?
--precision bf16 | Did you mean --dtype?
-X 4 | -X | Did you mean --steps?
--jigsaw 4 | unknown option '--jigsaw'. See
--x_z-9=1 | unknown option '--x_z-9=1'. See
-b4 | unknown option '-b4'. See
-- | unexpected argument '--'
- | unexpected argument '-'
-b 4 8 | unexpected argument '8' after -b
train.bin | unexpected argument 'train.bin'
-b | -b (--batch) | nothing follows
--batch --lr 1 | --batch | '--lr' follows
-l -u 1 | -l (--lr) | '-u' follows | -l=VALUE
-b 4 --batch 4 | --batch | twice
--quiet --quiet | --quiet | twice
--quiet=1 | --quiet | true or false
--help=1 | --help | takes no value
--batch 0 | --batch | '0' is out of range | 1 to 1,048,576 sequences
--batch 4x | --batch | '4x' is not a whole number
--batch 0x10 | --batch | whole number
--batch= | --batch | empty
--steps -2 | --steps | -1 or 1 to
--seed -1 | --seed | 2^64 - 1
--seed 18446744073709551616 | --seed | out of range
--lr -inf | --lr | out of range
--lr 1e999 | --lr | out of range
--beta1 1 | --beta1 | 0.9999999
--eps 0 | --eps | 1e-37
-k cosin | -k (--schedule) | 'cosin' | constant, cosine, linear or wsd
--val-align Window | --val-align | auto, window or document
-m 3 --val-tokens 64 | --val-tokens | --val-batches | one or the other
-d 1000 -b 4 -t 64 | --total-batch 1000 | 4 x 64 | 768 or 1024
-d 100 -b 4 -t 64 | --total-batch 100 | Nearest: --total-batch 256.
--max-seq-len 128 | --max-seq-len 128 | --seq-len 256
-e a.bin --max-seq-len 64 -t 64 | --max-seq-len | --model
--layers 2 --heads 3 --channels 64 | --heads 3 | --channels 63 or 66
--layers 2 --heads 9 --channels 8 | --heads 9 | Nearest: --channels 9.
-m 2147483647 -b 1048576 -t 1048576 | --val-batches | 10^15
-y 2 | -y (--resume) | '2'
-y 1 --resume auto | --resume | twice
-nk -1 | -nk (--keep) | 0 to 2^31 - 1 checkpoints
-z 2 | -z (--zero) | 0 to 1 (ZeRO-1 is the highest stage here)
--minutes 2 --steps 5 | --steps | --minutes
--epochs 2 --steps 5 | --steps | --epochs
--epochs 0 | --epochs
--config | --config | needs a value
--config= | --config | empty)");
    check_all_bad(R"(
--dtype fp16 | --dtype | 'fp16' | auto, bf16 or fp32
--dtype fp32 --grad-dtype bf16 | --grad-dtype bf16 | --dtype bf16
--tf32 | --tf32 | --dtype fp32
-r 3 | -r (--recompute) | '3' | 0 to 2, for none gelu block
-f 2 | -f (--tf32) | '2' | 0 to 1, for false true
-r 1 --recompute gelu | --recompute | twice
-w 0 | -w | '0' | Expected 1:)",
                  Program::kGpu);
    check_bad({""}, {"unexpected argument ''"});
    check_bad({"--batch", " 4"}, {"--batch", "whole number"});
    check_bad({"--prompt", ""}, {"--prompt", "empty"});
    check_bad({"--prompt=x\ny", "--bad\n\x1b[31m" + std::string(5000, 'x')}, {"--bad??[31m", "...'"});
}

TEST_CASE("options: the CPU program refuses what only a GPU can do") {
    check_all_bad(R"(
--dtype bf16 | --dtype bf16 needs the GPU program: make train_gpt2cu
--grad-dtype bf16 | --grad-dtype bf16 needs the GPU program: make train_gpt2cu
--recompute gelu | --recompute gelu needs the GPU program: make train_gpt2cu
--recompute block | --recompute block needs the GPU program: make train_gpt2cu
--tf32 | --tf32 true needs the GPU program: make train_gpt2cu
--graph 0 | --graph 0 needs the GPU program: make train_gpt2cu
-r 1 | --recompute gelu needs the GPU program: make train_gpt2cu
-r 2 | --recompute block needs the GPU program: make train_gpt2cu
-f 1 | --tf32 true needs the GPU program: make train_gpt2cu)");
    // a run's configuration is not passed on to the other program unseen
    check_error([] { parse_config(config_text(parse_gpu({}))); }, kExitUsage,
                {"--dtype bf16", "make train_gpt2cu"});
    CHECK(config_text(parse(words("--dtype fp32 --grad-dtype fp32 --recompute none --tf32=false"))) ==
          config_text(parse({})));
}

TEST_CASE("options: llm.c's other options are accepted where they ask for nothing, else refused by name") {
    CHECK(config_text(
              parse(words("-z 1 -r 0 -a 0 -f 0 -w 1 -ge 0 -lg -1 -nk 0 -nm 0 -sl 0 -sg 0.0 -pn 1 -pr 0 -pg 8 "
                          "-pi mpi"))) == config_text(parse({})));
    CHECK(config_text(parse({"-pm", "tcp"})) == config_text(parse({})));
    CHECK(config_text(parse_gpu({"-w", "1"})) == config_text(parse_gpu({})));
    CHECK(kForeignOptions.size() == 6);
    for (const Option& option : kForeignOptions) {
        for (const std::string& name : option.names) {
            check_bad({name, "5"}, {name, "'5'", "is not part of this program yet"});
            check_bad({"-b", "2", name}, {name, "needs a value"});
            check_bad({name, "--batch", "2"}, {name, "needs a value", "--batch"});
        }
    }
    check_all_bad(R"(
-pi fs | -pi | 'fs' | --master
-pm fs | -pm | 'fs' | --master
-pp /tmp | -pp | '/tmp' | --master
-a 1 | -a | '1' | --epochs N with --train-data
-lg 5 | -lg | GPU
-lg=5 | -lg | GPU
-a 0 -a 0 | -a | twice
-h 2 | -h: '2' | HellaSwag | --help
-h 1 -h 1 | -h is given twice)");
}

TEST_CASE("options: all objections to a command line come in one message") {
    const Error error = error_of([] { parse(words("-lg 5 --bacth 3 -z 7 -x ten -a 1 -b 2 stray more")); });
    check_error(error, kExitUsage,
                {"-lg: '5'", "\nunknown option '--bacth'. Did you mean --batch?", "\n-z (--zero): '7' is out",
                 "\n-x (--steps): 'ten'", "\n-a: '1'", "\nunexpected argument 'stray'"});
    const std::string all = error.what();
    CHECK(std::ranges::count(all, '\n') == 5);  // nothing is objected to twice
    // what must fit together is looked at once all values are known
    CHECK_FALSE(contains(error_of([] { parse(words("-b x -t 100 -d 1000")); }).what(), "--total-batch"));
    check_bad(words("-b 3 -t 100 -d 1000 -e d0"), {"--model 'd0' is not known", "--total-batch 1000"});
    check_bad(words("--layers 3 --keep-best -j none --max-seq-len 1"),
              {"--heads is missing", "--keep-best", "--max-seq-len 1 is less"});
    check_bad(words("--patience 2"), {"--patience needs --keep-best: without it the best checkpoint"});
    check_bad(words("--patience 2 --keep-best --val-data none"), {"--keep-best needs --val-data"});
}

TEST_CASE("options: resolved is what --config reads back") {
    auto check = [](const Args& args, Program program = Program::kCpu) {
        const Options first = parse(args, nullptr, program),
                      again = parse_config(config_text(first), {}, program);
        CAPTURE(config_text(first));
        CHECK(config_text(again) == config_text(first));
        const auto fields = [](const Options& o) {
            return std::tie(o.prompt, o.out, o.lr, o.seed, o.val_tokens, o.model, o.layers, o.heads,
                            o.channels, o.dtype, o.grad_dtype, o.recompute, o.tf32, o.keep, o.model_dtype);
        };
        CHECK(fields(again) == fields(first));
    };
    check({});
    check(
        words("-b 3 -m 7 -l 0.1 --keep-best --patience 3 --eps 1.0000000000000002e-08 --seed "
              "18446744073709551615"));
    check(words("--layers 3 --heads 3 --channels 48 -j none --quiet --resume auto"));
    for (const char* line : {"", "--dtype fp32 --tf32 --recompute block",
                             "--grad-dtype bf16 -r 1 --keep 2 --model-dtype bf16"}) {
        check(words(line), Program::kGpu);
    }
    for (const Option& row : kOptions) {
        const bool alone = among("layers heads channels patience", row.name);
        if (is_action(row) || row.for_command_line || alone || *row.cpu_only) { continue; }
        check({"--" + row.name + "=" + (is_switch(row) ? "true" : good_value(row))});
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

// ---- of every option ---------------------------------------------------------------------------

TEST_CASE("options: each is named where its value is none, missing or a second one, wherever it stands") {
    for (const Option& row : kOptions) {
        if (is_switch(row)) { continue; }
        Args bad = {""};
        if (*row.choices) { bad.push_back("xyz-_9"); }
        if (row.is_number()) {
            bad = words(
                      "nan -nan inf -inf 1e99 1e999 -1e99 1e 12abc 0x10 +1 --1x 1,000 1_000 e5 --9 1..2 "
                      "9223372036854775808 -9223372036854775809 18446744073709551616") +
                  Args{"", "1 ", " 1", fmt::format("{:.0f}", row.range.lo - 7),
                       fmt::format("{:.0f}", row.range.hi * 2 + 2)};
        }
        if (row.name == "seed") { std::erase(bad, "9223372036854775808"); }  // a seed like any other
        const Args good = words(row.name == "clip" ? "--quiet -a 0" : "--clip 0.5 -a 0");
        const std::string full = "--" + row.name, value = good_value(row);
        for (const std::string& name : {full, *row.numbered ? "" : letter_of(row)}) {
            if (name.empty()) { continue; }
            for (const std::string& text : bad) {
                check_bad(good + Args{name, text}, {name});
                check_bad(Args{full + "=" + text} + good, {full});
            }
            check_bad(Args{name, value} + good + Args{full, value}, {full, "twice"});
            check_bad(good + Args{name}, {name, "needs a value"});
            check_bad(Args{name} + good, {name, "needs a value"});
        }
    }
}

TEST_CASE("options: every range ends where the table says") {
    auto takes = [](const Option& row, const std::string& value) {
        return error_of([&] { row.assign(value, row.name); }).exit_code == kExitDone;
    };
    for (const Option& row : kOptions) {
        if (!row.is_number()) { continue; }
        CAPTURE(row.name);
        std::string lo = fmt::format("{:.17g}", row.range.lo), hi = fmt::format("{:.17g}", row.range.hi);
        if (row.name == "seed") { hi = "18446744073709551615"; }
        CHECK(takes(row, lo));
        CHECK(takes(row, hi));
        CHECK(takes(row, "-1") == row.range.or_minus_one);
        bool whole = row.field.kind == Field::kWhole && row.name != "seed";
        CHECK(!takes(
            row, whole ? fmt::format("{:.0f}", row.range.or_minus_one ? -2 : row.range.lo - 1) : "-1e-300"));
        CHECK(!takes(row, whole ? fmt::format("{:.0f}", row.range.hi + 1)
                                : fmt::format("{:.17g}", row.range.hi * (1 + 1e-7))));
        if (row.range.or_minus_one) { CHECK(!takes(row, "0")); }
    }
}

TEST_CASE("options: a slip of one letter in a longer name is always met with that name") {
    for (const Option& row : kOptions) {
        std::string name = row.name;
        if (name.size() < 8) { continue; }
        for (size_t at = 0; at + 1 < name.size(); at++) {
            std::string swapped = name, doubled = name;
            std::swap(swapped[at], swapped[at + 1]);
            doubled.insert(at, 1, name[at]);
            std::string cure = "Did you mean --" + name + "?";
            for (const std::string& typed : {swapped, doubled}) {
                if (typed == name) { continue; }
                check_error([&] { parse({"--" + typed}); }, kExitUsage, {cure, "--" + typed});
            }
        }
    }
}

// ---- other programs ------------------------------------------------------------------------

TEST_CASE("llm.c's users: files that the test programs get without --model and --state are not left out") {
    const auto compares = [](Words words) {
        std::vector<char*> argv;
        for (std::string& word : words) { argv.push_back(word.data()); }
        if (!wants_comparison((int)argv.size(), argv.data())) { return std::string("no"); }
        return parse_compare_options((int)argv.size(), argv.data())["--state"];
    };
    CHECK(compares({"t", "--model", "a.bin", "--state", "b.bin"}) == "b.bin");
    CHECK(compares({"t", "--test-case=x*", "-s"}) == "no");
    CHECK(compares({"t", "--thorough", "--part", "2/4"}) == "no");
    for (const Words& words : {Words{"t", "a.bin", "b.bin"}, Words{"t", "--test-case=x*", "a.bin"},
                               Words{"t", "--model", "a.bin", "b.bin"}, Words{"t", "--model", "a.bin"}}) {
        check_error([&] { compares(words); }, kExitUsage, {"--model", "--state"});
    }
}

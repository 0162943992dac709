// Tests of what a run begins with: config files, the options of a run that goes on, what a user leaves open, which is worked out
// from the facts, what fits in memory, and what those who come from llm.c leave open.
#include <cmath>
#include <tuple>

#include "dev/test/support/test_options.h"
#include "dev/test/support/train_program.h"
#include "llmc/host/tokens/dataloader.h"
#include "llmc/model/run/plan.h"

using namespace llmc;

namespace {

void check_bad_config(const std::string& text, std::initializer_list<std::string> parts,
                      const Args& args = {}) {
    CAPTURE(text);
    check_error([&] { parse_config(text, args); }, kExitUsage, parts);
}

Words done_files(const std::string& run) { return names_below(run, "DONE_"); }

// d3, byte-level, on a text of a million bytes, on two cores that do 250 GFLOP/s
constexpr RunFacts kSmall = {.parameters = 1'334'400,
                             .channels = 192,
                             .flops_per_token = 9.5e6,
                             .muon_flops = 4.46e9,
                             .flops_per_s = 250e9,
                             .tokens_per_epoch = 1'010'000,
                             .tokens_per_step = 1024,
                             .tokens = 1'011'500};

struct Chosen : Options {
    std::string why;
};

using Numbers = std::tuple<int64_t, double, int64_t, double, int64_t, int64_t>;
Numbers numbers(const Options& o) {
    return {o.steps, o.lr, o.warmup, o.final_lr_fraction, o.val_every, o.sample_every};
}

// what becomes of these options
Chosen choose(const Options& given, const RunFacts& facts) {
    Chosen chosen{given, ""};
    chosen.why = llmc::choose(facts, &chosen);
    return chosen;
}

}  // namespace

// ---- config files ------------------------------------------------------------------------------

TEST_CASE("options: config files") {
    Options o = parse_config(
        "\xef\xbb\xbf# a run\r\n\n  batch = 8   # more\r\nlr=1e-3\nquiet = true\nout = \"runs/#1 \\\"x\\\"\" "
        "# folder\n"
        "prompt = 'a\\n#b'\nval-data = \"none\"\ntrain-data = \"data/a b#c.bin\"\nval-batches = 2\nwarmup = "
        "1_000\n"
        "seed = \"18446744073709551615\"");
    CHECK(std::tie(o.batch, o.lr, o.quiet, o.val_tokens, o.warmup) ==
          std::tuple(8, 1e-3, true, 2 * 8 * 256, 1000));
    CHECK(std::tie(o.out, o.prompt, o.val_data, o.train_data) ==
          std::tuple("runs/#1 \"x\"", "a\\n#b", "", "data/a b#c.bin"));
    CHECK(o.seed == UINT64_MAX);  // more than TOML's whole numbers hold
    CHECK(config_text(parse_config("")) == config_text(parse({})));
    const std::string dots(1000, '.');
    CHECK(parse_config("prompt = '" + dots + "' # " + dots).prompt == dots);
    // the command line wins, also over the file's other way to say it
    const std::string rows = "batch = 8\nseq-len = 32", sizes = "layers = 2\nheads = 2\nchannels = 64",
                      d12 = "model = \"d12\"";
    const Args given_sizes = words("--layers 2 --heads 2 --channels 64");
    CHECK(parse_config(rows, {"-b", "2"}).batch == 2);
    CHECK(parse_config(rows, {"-b", "2"}).seq_len == 32);
    CHECK(parse_config("quiet = true", {"--quiet=false"}).quiet == false);
    CHECK(parse_config("val-tokens = 99", {"-m", "1"}).val_tokens == 1024);
    CHECK(parse_config("val-batches = 9", {"--val-tokens", "77"}).val_tokens == 77);
    CHECK(parse_config(sizes, {"-e", "d12"}).layers == 0);
    CHECK(parse_config(sizes, {"--layers", "5"}).layers == 5);
    CHECK(parse_config(d12, given_sizes).layers == 2);
    CHECK(parse_config(d12, given_sizes).model == kAutoModel);
    TempFolder folder;
    check_bad({"--config", folder / "none.toml"}, {"--config", "none.toml"});
    for (const std::string& odd : {folder.path(), std::string("/dev/zero")}) {
        check_error([&] { parse({"--config", odd}); }, kExitBadInput, {odd, "not a regular file"});
    }
    const std::string large(1 << 21, '#');
    check_error([&] { parse_config(large); }, kExitBadInput, {"run.toml", "1048576 bytes"});
}

TEST_CASE("options: each kind of error in a config file") {
    const std::string kLike = "batch = 8, model = \"d12\", quiet = true";
    check_bad_config("\nbacth = 4", {"--config", "line 2", "unknown key 'bacth'", "Did you mean batch?"});
    for (const char* key : {"help", "config", "hlep", "b", "a.b", "\"batch\""}) {
        check_bad_config(key + std::string(" = 1"), {"line 1", "unknown key '" + std::string(key) + "'."});
    }
    for (const char* line : {"= 4", "quiet", "[optimizer]", "; a comment", "[="}) {
        check_bad_config(line + std::string("\nlr = 1"), {"line 1: '" + std::string(line) + "'", kLike});
    }
    // lists, tables, texts that do not end, and texts without quotes, which config files of earlier versions may have
    for (const std::string& text :
         split("batch = [1, 2]|batch = {x = 1}|prompt = [1, 256]|prompt = [-1]|prompt = [1.5]|prompt = [[1]]|"
               "prompt = [1, 2|prompt = [1,]|prompt = [\"a\"]|prompt = [}|prompt = \"a|prompt = \"a\\\"|"
               "prompt = \"a\\|prompt = \"\\x\"|prompt = \"\\u00|prompt = \"a\" b|prompt = 'a|"
               "prompt = \"\"\"a\"\"\"|prompt = 5|model = d12  # GPT-2|val-data = none|"
               "train-data = data/a b.bin|out = runs\\a\"b",
               '|')) {
        const std::string key = text.substr(0, text.find(' '));
        check_bad_config("\n" + text, {"line 2, " + key + ": '" + text + "'", kLike});
    }
    for (const std::string& line :
         split("batch = 0|out of range;batch =|empty;batch = # 4|empty;lr = nan|out of range;quiet = "
               "yes|true or false;batch = 8.0|'8.0' is not a whole number;batch = eight|'eight' is not a "
               "whole number;batch = 99999999999999999999|out of range;lr = .5.|'.5.' is not a number;lr = "
               "1979-05-27|is not a number;prompt = \"\"|empty",
               ';')) {
        const Args bad = split(line, '|');
        check_bad_config(bad[0], {"line 1, " + bad[0].substr(0, bad[0].find(' ')), bad[1]});
    }
    check_bad_config("batch = 1\nbatch = 1", {"line 2, batch", "given twice"});
    check_bad_config("batch = 1\nbatch = 1", {"line 2, batch", "given twice"}, {"-b", "2"});
    check_bad_config("\n\xc3\xa4 = 1", {"line 2"});
    check_bad_config("batch = 1 \xef\xbb\xa5", {"line 1"});  // (U+FEE5)
    // a stack has no room for a table in a table for each part of these
    for (const Args& parts :
         {Args{"", ".a"}, {"x = {", ".a"}, {"prompt = {", ".a"}, {"prompt = ", "["}, {"prompt = ", "{a="}}) {
        std::string deep = parts[0] + "a";
        for (int i = 0; i < 100'000; i++) { deep += parts[1]; }
        check_bad_config(deep + " = 1", {"line 1"});
    }
    check_bad_config("model = 'x'", {"--model", "'x'"});
    check_bad_config("model = 'd6'\nlayers = 2", {"--model and --layers"});
    check_bad_config("total-batch = 1", {"--total-batch"}, {"-b", "2"});
    check_bad_config(std::string("batch = 1\0", 10), {"not a text file"});
}

TEST_CASE_FIXTURE(InFolder, "options: the config.toml of a renamed run does not go on under the old name") {
    const std::string run = folder / "run", config = run + "/config.toml";
    fs::create_directory(run);
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

TEST_CASE_FIXTURE(InFolder, "options: a run that goes on has its own options where none are given") {
    const std::string run = folder / "run", config = run + "/config.toml";
    fs::create_directory(run);
    const auto on = [&](const std::string& more = "", Program program = Program::kCpu) {
        return parse(words("--resume auto --out " + run + " " + more), nullptr, program);
    };
    const Program gpu = Program::kGpu;
    Options was = parse_gpu(words("--train-data mine.bin --seq-len 64 --epochs 2 --new-data --out " + run));
    CHECK(was.dtype == FloatType::kBf16);
    write_bytes(config, config_text(was));
    CHECK(on().seq_len == 256);           // no log: it is no run
    write_bytes(run + "/log.jsonl", "");  // nothing is saved: with other options it is another attempt
    CHECK(on().seq_len == 64);
    CHECK(on("--batch 2").seq_len == 256);
    fs::create_directory(run + "/step_00000001");
    const Options is = on("--batch 2", gpu);
    CHECK(is.train_data == "mine.bin");
    CHECK(std::tie(is.seq_len, is.batch, is.dtype) == std::tuple(64, 2, FloatType::kBf16));
    CHECK_FALSE(is.new_data);  // that was for one start
    CHECK(parse({"-y", "1", "-o", run, "--steps", "5"}).epochs == 0);
    const Options cpu = on();  // which has no bf16
    CHECK(std::tie(cpu.seq_len, cpu.dtype) == std::tuple(64, FloatType::kFp32));
    // for this time only, and it says so
    CHECK_MESSAGE(contains(cpu.notes, "dtype = bf16: not on the CPU"), cpu.notes);
    CHECK_FALSE(contains(cpu.notes, "recompute"));
    CHECK(contains(config_text(cpu), "dtype = \"fp32\""));
    write_bytes(config, config_text(cpu, true));
    CHECK(on("", gpu).dtype == FloatType::kBf16);
    CHECK(contains(config_text(on("--dtype fp32"), true), "\ndtype = \"fp32\""));
    CHECK(parse({"--out", run}).seq_len == 256);
    setenv("RANK", "1", 1), setenv("WORLD_SIZE", "2", 1);  // torchrun's: another rank may not see the folder
    CHECK(on().seq_len == 256);
    unsetenv("RANK"), unsetenv("WORLD_SIZE");
    was.gpus = "4";
    write_bytes(config, config_text(was));
    CHECK(on("", gpu).gpus == "4");
    CHECK(on("--ranks 2", gpu).gpus.empty());
    CHECK(on().gpus.empty());  // the CPU program
    // what came with a folder may not act beyond it, unless it is given
    for (const std::string& line :
         Args{"export-hf = \"/x/outside\"", "export-hf = \"" + run + "/../outside\"", "ranks = 900",
              "master = \"10.9.9.9:99\"", "world-size = 2", "rank = 1"}) {
        CAPTURE(line);
        write_bytes(config, line + "\n");
        check_error([&] { on(); }, kExitUsage, {config, "add --" + line.substr(0, line.find(' '))});
    }
    write_bytes(config, "export-hf = \"/x/outside\"\nranks = 900\n");
    CHECK(on("--export-hf /y --ranks 901").ranks == 901);
    write_bytes(config, "export-hf = \"" + run + "/hf\"\nranks = 2\n");
    CHECK(on().export_hf == run + "/hf");
    write_bytes(config, "tune-gemm = \"/x/outside\"\n");
    CHECK(error_of([&] { on("", gpu); }).exit_code == kExitUsage);
    write_bytes(folder / "other.toml", "seq-len = 32\n");
    CHECK(on("--config " + folder / "other.toml").seq_len == 32);
}

TEST_CASE_FIXTURE(InFolder, "options: own training data is not validated on the sample's") {
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

// ---- what is left open -------------------------------------------------------------------------

TEST_CASE("auto plan: a small text on the CPU: some epochs, warm-up, a decay to a tenth, with reasons") {
    const Chosen c = choose(Options{}, kSmall);
    CHECK(c.optimizer == Optimizer::kMuon);
    CHECK(c.steps == std::llround(4 * 1'010'000 / 1024.0));
    CHECK(c.warmup == c.steps / 20);
    CHECK(c.final_lr_fraction == 0.1);
    CHECK(std::fabs(c.lr - 6.4e-3) < 1e-9);
    CHECK(c.val_every == (c.steps + 9) / 10);
    CHECK(c.sample_every == (c.steps + 9) / 10);
    check_holds(c.why, {"optimizer: Muon", "4 epochs", "time: about 6m", "--minutes N",
                        "lr: 6.4e-03: for a model of this size by Muon", "warm-up", "decay"});
    RunFacts wider = kSmall;
    wider.channels = 384;
    CHECK(std::fabs(choose(Options{}, wider).lr - 3.2e-3) < 1e-9);
    // four matrices C x C and two C x 4 C a block, five iterations of x x^T, its square, and what x is multiplied by
    CHECK(muon_flops({256, 257, 320, 4, 4, 256}) == 5.0 * 4 * (4 * 4 + 2 * 13) * 256 * 256 * 256);
    RunFacts long_validation = kSmall;
    long_validation.val_tokens = 500'000;
    CHECK(choose(Options{}, long_validation).val_every == (c.steps + 2) / 3);
    long_validation.val_tokens = 5'000'000;
    CHECK(choose(Options{}, long_validation).val_every == 0);
}

TEST_CASE("auto plan: Muon for a small new model where its iterations are worth it, else AdamW") {
    const auto muon = [](const Options& o, RunFacts f) { return choose(o, f).optimizer == Optimizer::kMuon; };
    CHECK(muon(Options{}, kSmall));
    for (const Args& line : {Args{"--lr", "1e-3"}, {"--optimizer", "adamw"}, {"-b", "4"}}) {
        CHECK_FALSE(muon(parse(line), kSmall));
    }
    RunFacts other = kSmall;
    other.channels = 385;
    CHECK_FALSE(muon(Options{}, other));
    CHECK(muon(parse({"--optimizer", "muon"}), other));
    other = kSmall;
    other.pretrained = true;
    CHECK_FALSE(muon(Options{}, other));
    other = kSmall;
    other.tokens_per_step = 224;  // 2.1 steps' work
    CHECK_FALSE(muon(Options{}, other));
    other.tokens_per_step = 256;
    CHECK(muon(Options{}, other));
}

TEST_CASE("auto plan: the length follows the model and the data, never the speed of the machine") {
    Options gpu, adamw;
    gpu.program = Program::kGpu;
    gpu.optimizer = adamw.optimizer = Optimizer::kAdamW;
    RunFacts facts = kSmall;
    const Chosen idle = choose(Options{}, facts);
    facts.flops_per_s /= 7;  // of another machine, or a busy one
    const Chosen busy = choose(Options{}, facts);
    CHECK(numbers(busy) == numbers(idle));
    check_holds(busy.why, {"time: about 46m"});
    facts.flops_per_s = 0;  // not known
    CHECK_FALSE(contains(choose(Options{}, facts).why, "minutes"));
    CHECK(choose(adamw, facts).steps == std::llround(10 * 1'010'000 / 1024.0));  // at most ten epochs
    facts.tokens_per_epoch = 8 * 1'334'400 / 3;
    CHECK(choose(adamw, facts).steps == std::llround(3.0 * (double)facts.tokens_per_epoch / 1024));
    CHECK(choose(gpu, facts).steps == std::llround(8.0 * (double)facts.tokens_per_epoch / 1024));
    facts.tokens_per_epoch = 1'000'000'000;
    CHECK(choose(gpu, facts).steps == std::llround(1e9 / 1024));  // never less than one on a GPU
    CHECK(choose(adamw, facts).steps == std::llround(8 * 1'334'400 / 1024.0));
    RunFacts short_text = kSmall;  // less than a step
    short_text.tokens_per_epoch = 300;
    short_text.parameters = 10;
    const Chosen one = choose(gpu, short_text);
    CHECK(one.steps == 1);
    CHECK_MESSAGE(contains(one.why, "steps: 3.41 epochs: a step has more tokens"), one.why);
    // GPT-2 124M, and a model that is trained on
    facts.parameters = 85'000'000;
    CHECK(std::fabs(choose(gpu, facts).lr - 6.9e-4) < 1e-9);
    facts.pretrained = true;
    CHECK(std::fabs(choose(gpu, facts).lr - 6.9e-5) < 1e-9);
    for (int64_t parameters : {int64_t{0}, int64_t{1'000'000'000'000}}) {
        facts.parameters = parameters;
        const double lr = choose(gpu, facts).lr;
        CHECK((lr > 1e-5 && lr <= 2e-3));
    }
}

TEST_CASE("auto plan: --minutes plans by the speed that is measured") {
    const Options five = parse({"--minutes", "5"});
    RunFacts facts = kSmall;
    const double step = 9.5e6 * 1024 + 4.46e9;
    CHECK(choose(five, facts).steps == std::llround(300 * 0.56 * 250e9 / step));
    facts.flops_per_s /= 2;
    CHECK(choose(five, facts).steps == std::llround(300 * 0.56 * 125e9 / step));
    facts.flops_per_s = 0;
    check_error([&] { choose(five, facts); }, kExitUsage, {"--minutes", "--steps"});
}

TEST_CASE("auto plan: what is given stands") {
    Options o =
        parse(words("--steps 77 --lr 0 --warmup 0 --final-lr-fraction 1 --val-every 0 --sample-every 3"));
    CHECK(numbers(choose(o, kSmall)) == Numbers(77, 0, 0, 1, 0, 3));
    CHECK(choose(o, kSmall).why.empty());
    o.lr = 1e-3;
    const auto why = [&](int64_t warmup) {
        o.warmup = warmup;
        return choose(o, kSmall).why;
    };
    check_holds(why(77),
                {"a warm-up of 77 steps in a run of 77: the learning rate does not get further than 0.001"});
    check_holds(why(154), {"a warm-up of 154 steps in a run of 77", "further than 0.0005"});
    CHECK(why(76).empty());
    CHECK(choose(parse({"--epochs", "2.5"}), kSmall).steps == std::llround(2.5 * 1'010'000 / 1024));
    const int64_t epoch = 1'011'500 / 1024;  // 987, not 986
    CHECK(choose(parse({"--steps", "-1"}), kSmall).steps == epoch);
    // llm.c's letters leave open what llm.c leaves open
    for (const char* line : {"-b 4", "-x -1", "-nk 1", "-z 0", "--batch 4 -t 64"}) {
        CHECK_MESSAGE(numbers(choose(parse(words(line)), kSmall)) == Numbers(epoch, 3e-4, 0, 1, 20, 20),
                      line);
    }
    const Chosen given = choose(parse(words("-l 1e-3 -u 5 -q 0")), kSmall);
    CHECK(numbers(given) == Numbers(epoch, 1e-3, 5, 0, 20, 20));
}

TEST_CASE("auto plan: what was worked out is in config.toml, and a resumed run takes it from there") {
    const Runs r("--quiet");
    const std::string run = r / "run";
    const auto train = [&](const std::string& more) { return r.run("run", more); };
    const ProgramRun first = train("--epochs 2");
    check_run(first, kExitDone, {}, {"warm-up: a twentieth"});
    CHECK_FALSE(contains(first.out, "of it,"));
    const std::string config = read_bytes(run + "/config.toml");
    Options written = parse_config(config, {});
    CHECK((written.steps > 0 && written.lr > 1e-3 && written.val_every > 0));
    CHECK(std::tie(written.epochs, written.warmup, written.final_lr_fraction) ==
          std::tuple(0, written.steps / 20, 0.1));

    // other values in the run's folder: that is what a resumed run goes on with
    const std::string more_steps = changed(config, fmt::format("steps = {}\n", written.steps),
                                           fmt::format("steps = {}\n", written.steps + 3));
    write_bytes(run + "/config.toml", changed(more_steps, "\nlr = ", "\nlr = 0.0077 #"));
    const ProgramRun again = train("--resume auto");
    check_run(again, kExitDone, {}, {"lr 0.0077"});
    CHECK(read_log(run).back()["step"].get<int64_t>() >= written.steps + 3);
    CHECK_FALSE(contains(again.out, "chosen"));
    check_run(train(fmt::format("--resume auto --steps {}", written.steps + 5)), kExitDone, {},
              {"lr 0.0077"});
    fs::remove(run + "/config.toml");
    check_run(train("--resume auto"), kExitUsage, {"--final-lr-fraction"});
}

TEST_CASE_FIXTURE(InFolder, "auto plan: without --model the CPU trains a d3; a run goes on with its model") {
    write_tiny_data(folder.path());
    const std::string run = folder / "run";
    const auto train = [&](const std::string& more) {
        return run_train(folder.path(), words("--train-data " + folder.path() +
                                              "/train.bin --val-data none --batch 1 --seq-len 8 "
                                              "--sample-every 0 --quiet --save-every 1 --out " +
                                              run + " " + more));
    };
    const auto config = [&] { return parse_config(read_bytes(run + "/config.toml"), {}); };
    REQUIRE(train("--steps 1").exit_code == kExitDone);
    CHECK(config().model == "d3");
    REQUIRE(train("--steps 2 --resume auto").exit_code == kExitDone);
    CHECK(config().model == "d3");
    check_run(train("--steps 3 --resume auto --model d6"), kExitUsage, {"3 layers"});
}

// ---- what the model gets, and what fits --------------------------------------------------------

TEST_CASE("options of the GPU: what the model is built with") {
    CHECK(model_settings(parse({})).recompute == Recompute::kNone);
    CHECK(!model_settings(parse({})).tf32);
    CHECK(model_settings(parse_gpu({"-r", "1"})).recompute == Recompute::kGelu);
    CHECK(model_settings(parse_gpu({"-r", "2"})).recompute == Recompute::kBlock);
    CHECK(model_settings(parse_gpu({"--dtype", "fp32", "--tf32"})).tf32);
    CHECK(model_settings(parse_gpu({})).graph);
    CHECK(!model_settings(parse_gpu({"--graph", "0"})).graph);
}

// bytes: of gradients so many a layer, of activations 16, 8 or 1 for each row of each layer; of long rows a million
template <int kGradients>
MemoryPlan plan_of(const GPT2Config& c, int B, int T, const ModelSettings& s) {
    const int64_t row = s.recompute == Recompute::kBlock ? 1 : s.recompute == Recompute::kGelu ? 8 : 16;
    return {.parameters = c.num_layers * (row * B + kGradients) + (T > 256 ? 1'000'000 : 0)};
}

TEST_CASE("plan: what would fit in the memory there is") {
    const GPT2Config d12{1024, 257, 320, 12, 12, 768};
    const Models models = [](const Options& options) -> ModelFactory {
        return {.plan = options.grad_dtype == FloatType::kBf16 ? plan_of<100> : plan_of<200>};
    };
    Program program = Program::kGpu;
    auto says = [&](int64_t available, const Args& args) {
        Options o = parse(args, nullptr, program);
        MemoryPlan plan = models(o).plan(d12, o.batch, o.seq_len, model_settings(o));
        plan.available = available;
        return error_of([&] { require_memory(plan, o, models, d12); });
    };
    auto cure = [&](int64_t available, const Args& args) {
        std::string text = says(available, args).what();
        return text.substr(text.find("is available. ") + 14);
    };
    CHECK(says(12 * (16 * 64 + 200), {"-b", "64"}).exit_code == kExitDone);
    CHECK(says(12 * (16 * 64 + 200) - 1, {"-b", "64"}).exit_code == kExitDevice);
    CHECK(cure(12 * (16 * 64 + 200) - 1, {"-b", "64"}) == "--recompute gelu would fit.");
    CHECK(cure(12 * (8 * 64 + 200) - 1, {"-b", "64"}) == "--recompute block would fit.");
    CHECK(cure(12 * (8 * 64 + 200) - 1, {"-b", "64", "-r", "1"}) == "--recompute block would fit.");
    CHECK(cure(12 * (64 + 200) - 1, {"-b", "64"}) == "--recompute block --grad-dtype bf16 would fit.");
    CHECK(cure(12 * (64 + 200) - 1, {"-b", "64", "-r", "2"}) == "--grad-dtype bf16 would fit.");
    CHECK(cure(12 * (64 + 200) - 1, {"-b", "64", "--dtype", "fp32"}) == "--batch 2 would fit.");
    // 2 rows would fit, but do not divide --total-batch
    CHECK(cure(12 * 203, {"-b", "5", "-d", "1280", "-r", "2", "--dtype", "fp32"}) == "--batch 1 would fit.");
    CHECK(cure(12 * 102 + 11, {"-b", "64"}) == "--recompute block --grad-dtype bf16 --batch 2 would fit.");
    CHECK(cure(12 * 101 - 1, {"-b", "64"}) ==
          "No batch size fits; --model d11 --recompute block --grad-dtype bf16 --batch 1 would.");
    CHECK(cure(100, {"-b", "64"}) == "No model with a vocabulary of 257 fits, whatever its size.");
    program = Program::kCpu;                               // which has neither way to take less
    CHECK(says(-1, {"-b", "64"}).exit_code == kExitDone);  // unknown
    check_error(says(12 * (16 * 64 + 200) - 1, {"-b", "64"}), kExitDevice,
                {"--batch 64", "--batch 32 would fit"});
    CHECK(cure(12 * 216 - 1, {"-b", "5"}) == "No batch size fits; --model d11 --batch 1 would.");
    check_error(says(1500, {"-t", "512"}), kExitDevice, {"No model fits", "--seq-len: use a smaller one"});
}

// ---- who comes from llm.c ----------------------------------------------------------------------

TEST_CASE("options: llm.c's published command lines are accepted as they are") {
    // the arguments of its scripts/run_gpt2_124M.sh and run_gpt2_1558M.sh (2025-05)
    const std::string k124M =
        "-i dev/data/fineweb10B/fineweb_train_*.bin -j dev/data/fineweb10B/fineweb_val_*.bin -o "
        "log_gpt2_124M -v 250 -s 20000 -g 144 -h 1 -b 64 -t 1024 -d 524288 -r 0 -z 1 -c 0.1 -l 0.0006 -q 0.0 "
        "-u 700 -n 5000 -y 1 -e d12";
    const std::string k1558M =
        "-i dev/data/edu_fineweb100B/edu_fineweb_train_*.bin -j "
        "dev/data/edu_fineweb100B/edu_fineweb_val_*.bin "
        "-o log_gpt2_1558M -v 250 -s 300000 -g 384 -h 1 -b 16 -t 1024 -d 1048576 -r 0 -z 1 -c 0.1 -k cosine "
        "-l 0.0006 -q 0.1 -u 700 -n 2000 -x 32000 -ge 1 -y 1 -e d48";
    const Options small = parse_gpu(words(k124M));
    CHECK(std::tie(small.model, small.out, small.total_batch, small.lr, small.final_lr_fraction,
                   small.warmup) == std::tuple("d12", "log_gpt2_124M", 524288, 0.0006, 0, 700));
    CHECK(std::tie(small.save_every, small.resume, small.recompute, small.zero) ==
          std::tuple(5000, "auto", Recompute::kNone, 1));
    CHECK(small.steps == kAuto);  // with the letters: one epoch
    CHECK(small.llmc_letters);
    const Options large = parse_gpu(words(k1558M));
    CHECK(std::tie(large.model, large.steps, large.schedule) == std::tuple("d48", 32000, Decay::kCosine));
    for (const char* note : {"-ge 1: ", "-h 1: "}) { CHECK(contains(large.notes, note)); }
    CHECK(std::ranges::count(large.notes, '\n') == 2);
    CHECK(parse(words(k1558M)).model == "d48");  // the CPU program takes it, too
    CHECK(contains(parse({"-h", "1"}).notes, "--hellaswag FILE"));
    CHECK(parse({"-h", "1", "--hellaswag", "x.bin"}).hellaswag == "x.bin");
    CHECK(parse({"-h", "0"}).notes.empty());
    CHECK(parse({"-h", "0"}).llmc_letters);
    CHECK_FALSE(parse({"--batch", "4"}).llmc_letters);
}

TEST_CASE("llm.c's users: DONE_ files stand for complete checkpoints, and for no others") {
    const Runs r("-b 4 -v 0 -s 0 -n 2 --quiet"), others("--quiet");
    const std::string run = r / "run";
    const auto train = [&](const std::string& more) { r.train("run", more); };
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
    others.train("run", "--steps 2");
    CHECK(done_files(others / "run").empty());
}

TEST_CASE_FIXTURE(InFolder, "llm.c's users: an epoch has llm.c's steps, its end the name that is awaited") {
    // three shards of 130 tokens: 3 x 10 windows of 12 + 1 tokens, but 390 / 48 = 8 steps of 4 x 12
    for (int i = 0; i < 3; i++) {
        std::vector<uint16_t> tokens = learnable_tokens(10, 3, (uint64_t)i);
        tokens.resize(130);
        write_token_shard(folder / fmt::format("train_{:06}.bin", i), tokens, 257);
    }
    write_token_shard(folder / "val.bin", learnable_tokens(6, 3, 2), 257);
    const ProgramRun run = run_well(
        folder.path(), words("-i " + folder / "train_*.bin -j " + folder / "val.bin --layers 2 --heads 2 " +
                             "--channels 16 -t 12 -b 4 -v 0 -s 0 -h 1 -ge 1 --quiet -o " + folder / "run"));
    CHECK(done_files(folder / "run") == Words{"DONE_00000008"});
    check_run(run, kExitDone, {"-ge 1: ", "-h 1: "});
}

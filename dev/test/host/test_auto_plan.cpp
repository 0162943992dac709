// What a user leaves open is worked out from the facts; what is given stands; llm.c's letters mean what
// they mean there; a resumed run takes it from its folder.
#include <cmath>
#include <filesystem>
#include <string>

#include <doctest/doctest.h>

#include "dev/test/support/test_options.h"
#include "dev/test/support/train_program.h"
#include "llmc/model/run/plan.h"

using namespace llmc;

namespace {

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

// what becomes of these options
Chosen choose(const Options& given, const RunFacts& facts) {
    Chosen chosen{given, ""};
    chosen.why = llmc::choose(facts, &chosen);
    return chosen;
}

}  // namespace

TEST_CASE(
    "auto plan: a small text on the CPU: some epochs, warm-up, a decay to a tenth, each with its reason") {
    const Chosen c = choose(Options{}, kSmall);
    CHECK(c.optimizer == Optimizer::kMuon);
    CHECK(c.steps == std::llround(4 * 1'010'000 / 1024.0));
    CHECK(c.warmup == c.steps / 20);
    CHECK(c.final_lr_fraction == 0.1);
    CHECK(std::fabs(c.lr - 6.4e-3) < 1e-9);
    CHECK(c.val_every == (c.steps + 9) / 10);
    CHECK(c.sample_every == (c.steps + 9) / 10);
    for (const char* part : {"optimizer: Muon", "4 epochs", "time: about 6m", "--minutes N",
                             "lr: 6.4e-03: for a model of this size by Muon", "warm-up", "decay"}) {
        CHECK(contains(c.why, part));
    }
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
    for (const std::vector<std::string>& line :
         {std::vector<std::string>{"--lr", "1e-3"}, {"--optimizer", "adamw"}, {"-b", "4"}}) {
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
    CHECK(busy.steps == idle.steps);
    CHECK(busy.lr == idle.lr);
    CHECK(busy.warmup == idle.warmup);
    CHECK(busy.val_every == idle.val_every);
    CHECK_MESSAGE(contains(busy.why, "time: about 46m"), busy.why);
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
        CHECK(lr > 1e-5);
        CHECK(lr <= 2e-3);
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
    check_error(error_of([&] { choose(five, facts); }), kExitUsage, {"--minutes", "--steps"});
    check_error(error_of([] {
                    parse({"--minutes", "2", "--steps", "5"});
                }),
                kExitUsage, {"--steps", "--minutes"});
}

TEST_CASE("auto plan: what is given stands") {
    Options o;
    o.steps = 77;
    o.lr = 0;
    o.warmup = 0;
    o.final_lr_fraction = 1;
    o.val_every = 0;
    o.sample_every = 3;
    const Chosen c = choose(o, kSmall);
    CHECK(c.steps == 77);
    CHECK(c.lr == 0);
    CHECK(c.warmup == 0);
    CHECK(c.final_lr_fraction == 1);
    CHECK(c.val_every == 0);
    CHECK(c.sample_every == 3);
    CHECK(c.why.empty());
    o.lr = 1e-3;
    o.warmup = 77;
    CHECK(contains(choose(o, kSmall).why,
                   "a warm-up of 77 steps in a run of 77: the learning rate does not get "
                   "further than 0.001"));
    o.warmup = 154;
    CHECK(contains(choose(o, kSmall).why, "a warm-up of 154 steps in a run of 77"));
    CHECK(contains(choose(o, kSmall).why, "further than 0.0005"));
    o.warmup = 76;
    CHECK(choose(o, kSmall).why.empty());
    CHECK(choose(parse({"--epochs", "2.5"}), kSmall).steps == std::llround(2.5 * 1'010'000 / 1024));
    CHECK(choose(parse({"--steps", "-1"}), kSmall).steps == 1'011'500 / 1024);  // 987, not 986
    check_error(error_of([] {
                    parse({"--epochs", "2", "--steps", "5"});
                }),
                kExitUsage, {"--steps", "--epochs"});
    check_error(error_of([] { parse({"--epochs", "0"}); }), kExitUsage, {"--epochs"});
}

TEST_CASE("auto plan: llm.c's letters leave open what llm.c leaves open") {
    for (const std::vector<std::string>& line : {std::vector<std::string>{"-b", "4"},
                                                 {"-x", "-1"},
                                                 {"-nk", "1"},
                                                 {"-z", "0"},
                                                 {"--batch", "4", "-t", "64"}}) {
        const Chosen c = choose(parse(line), kSmall);
        CHECK(c.steps == 1'011'500 / 1024);
        CHECK(c.lr == 3e-4);
        CHECK(c.warmup == 0);
        CHECK(c.final_lr_fraction == 1);
        CHECK(c.val_every == 20);
        CHECK(c.sample_every == 20);
    }
    const Chosen given = choose(parse({"-l", "1e-3", "-u", "5", "-q", "0"}), kSmall);
    CHECK(given.lr == 1e-3);
    CHECK(given.warmup == 5);
    CHECK(given.final_lr_fraction == 0);
    CHECK_FALSE(parse({"--batch", "4"}).llmc_letters);
}

TEST_CASE("auto plan: what was worked out is in config.toml, and a resumed run takes it from there") {
    TempFolder folder;
    write_tiny_data(folder.path());
    const std::string run = folder / "run";
    const auto line = [&](const std::string& more) { return tiny_run(folder.path(), more); };
    const ProgramRun first = run_train(folder.path(), line("--epochs 2 --quiet --out " + run));
    CAPTURE(first.err);
    REQUIRE(first.exit_code == kExitDone);
    CHECK(contains(first.out, "warm-up: a twentieth"));
    CHECK_FALSE(contains(first.out, "of it,"));
    const std::string config = read_bytes(run + "/config.toml");
    Options written = parse_config(config, {});
    CHECK(written.steps > 0);
    CHECK(written.epochs == 0);
    CHECK(written.lr > 1e-3);
    CHECK(written.warmup == written.steps / 20);
    CHECK(written.final_lr_fraction == 0.1);
    CHECK(written.val_every > 0);

    // other values in the run's folder: that is what a resumed run goes on with
    std::string changed = config;
    const std::string steps = fmt::format("steps = {}\n", written.steps);
    REQUIRE(contains(changed, steps));
    changed.replace(changed.find(steps), steps.size(),
                    fmt::format("steps = {}\n", (long long)written.steps + 3));
    changed.replace(changed.find("\nlr = "), 6, "\nlr = 0.0077 #");
    write_bytes(run + "/config.toml", changed);
    const ProgramRun again = run_train(folder.path(), line("--resume auto --quiet --out " + run));
    CAPTURE(again.err);
    REQUIRE(again.exit_code == kExitDone);
    CHECK(contains(again.out, "lr 0.0077"));
    CHECK((int64_t)read_log(run).back()["step"].get<int64_t>() >= written.steps + 3);
    CHECK_FALSE(contains(again.out, "chosen"));
    const ProgramRun longer = run_train(
        folder.path(),
        line(fmt::format("--resume auto --quiet --steps {} --out ", (long long)written.steps + 5) + run));
    CHECK(longer.exit_code == kExitDone);
    CHECK(contains(longer.out, "lr 0.0077"));
    std::filesystem::remove(run + "/config.toml");
    const ProgramRun lost = run_train(folder.path(), line("--resume auto --quiet --out " + run));
    CHECK(lost.exit_code == kExitUsage);
    CHECK(contains(lost.err, "--final-lr-fraction"));
}

TEST_CASE("auto plan: without --model the CPU trains a d3, and a run goes on with the model that it has") {
    const TempFolder folder;
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
    const ProgramRun other = train("--steps 3 --resume auto --model d6");
    CHECK(other.exit_code == kExitUsage);
    CHECK(contains(other.err, "3 layers"));
}

// ./train_gpt2 as a user runs it: what a run prints and leaves, that its numbers can be repeated and do not depend on
// how the work is cut up; and for each way to start one wrongly what the message says, and that nothing is left.
#include <map>
#include <set>

#include "dev/test/support/any_model.h"
#include "dev/test/support/train_program.h"
#include "llmc/host/tokens/dataloader.h"
#include "llmc/model/cpu/gpt2.h"
#include "llmc/model/run/plan.h"

using namespace llmc;

namespace {

// the shards of tiny data, one sentence a document, and what is known about the second
void write_default_job(const std::string& folder) {
    write_token_shard(folder + "/train.bin", learnable_tokens(400, 1, 1), 257);
    const int documents = 30;
    write_token_shard(folder + "/val.bin", learnable_tokens(documents, 1, 2), 257);
    Json info;
    info["entropy_nats_per_token"] = learnable_entropy(1);
    info["tokens"] = documents * (kSentence + 1);
    for (int d = 0; d < documents; d++) {
        int start = d * (kSentence + 1) + 1;
        info["probes"]["repeated digits"].push_back({start + kSecondDigit, 1});
        info["probes"]["words"].push_back({start + 5, 5});  // " sat "
    }
    write_bytes(folder + "/val.json", info.dump());
}

GPT2Config tiny_program_config(int seq_len) { return {seq_len, 257, 320, 2, 2, 16}; }

void write_model(const std::string& path, GPT2Config c) {
    GPT2Cpu model(c, 1, 2);
    model.init(11);
    write_model_file(path, c, kModelFp32, reader(model));
}

ProgramRun run_silently(const std::string& folder, const Words& options) {
    ProgramRun run = run_well(folder, options);
    CHECK_MESSAGE(run.err == "", run.err);
    return run;
}

std::string data_in(const std::string& folder) {
    return "--train-data " + folder + "/train.bin --val-data " + folder + "/val.bin ";
}

// a step of length 0: the run validates and samples what a model file holds
ProgramRun only_evaluate(const std::string& folder, const std::string& model, const std::string& out,
                         const Words& more) {
    Words all = words(data_in(folder) + "--steps 1 --lr 0 --model " + model + " --out " + out);
    all.insert(all.end(), more.begin(), more.end());
    return run_silently(folder, all);
}

// how the run ended; after it come the report's path and the next command
std::string last_loss(const std::string& text) {
    const size_t at = text.rfind("\nval loss ");
    return at == std::string::npos ? "" : text.substr(at + 1, text.find('\n', at + 1) - at - 1);
}

// validation and probes of a model file, worked out here
struct Judgement {
    double loss = 0;
    std::map<std::string, double> accuracy;  // %
};

Judgement judge_model(const std::string& model_file, const std::string& val, int T) {
    ModelFile file(model_file);
    GPT2Cpu model(file.config(), 4, T);
    load_model(file, writer(&model));
    ValidationData data(val, T, ValidationData::Align::kDocument, 256, -1);
    Judgement result;
    std::map<int64_t, bool> right;
    for (int64_t row = 0; row < data.num_rows(); row += 4) {
        Batch batch;
        data.read(row, 4, &batch);
        Evaluation e = model.evaluate(batch);
        for (size_t i = 0; i < e.losses.size(); i++) {
            if (batch.targets[i] == kIgnoreTarget) { continue; }
            result.loss += e.losses[i];
            right[data.row_position(row + (int64_t)i / T) + (int64_t)i % T + 1] =
                e.predicted[i] == batch.targets[i];
        }
    }
    result.loss /= (double)data.num_targets();
    const ValInfo info = read_val_info(val, (int64_t)right.size() + 1).value();
    for (const ValInfo::Probe& probe : info.probes) {
        int hits = 0;
        for (auto [position, length] : probe.spans) {
            bool all = true;
            for (int64_t i = position; i < position + length; i++) { all = all && right.at(i); }
            hits += all;
        }
        result.accuracy[probe.name] = 100.0 * hits / (double)probe.spans.size();
    }
    return result;
}

// log.jsonl has one line for each step, in order, and one for each validation, with exactly these fields
void check_log(const std::vector<Json>& log, int64_t steps, int64_t val_every, const Schedule& lr) {
    const std::set<std::string> step_keys = {"step",        "train_loss",   "grad_norm", "lr",
                                             "ms",          "tokens_per_s", "tokens",    "epoch",
                                             "utilisation", "memory",       "time"};
    int64_t done = 0, next_val = val_every;
    for (const Json& line : log) {
        std::set<std::string> keys;
        for (const auto& item : line.items()) { keys.insert(item.key()); }
        if (keys.count("val_loss") != 0) {
            CHECK(keys == std::set<std::string>{"step", "val_loss", "seconds", "time"});
            CHECK(line["step"] == next_val);
            CHECK(done == next_val);  // it stands where it was made: after that many steps
            next_val = std::min(next_val + val_every, steps);
        } else {
            CHECK(keys == step_keys);
            // 9 digits are printed
            CHECK(line["lr"].get<double>() == doctest::Approx(lr(done)).epsilon(1e-8));
            CHECK(line["tokens_per_s"].get<double>() > 0);
            CHECK(line["memory"].get<double>() > 1e6);
            CHECK(line["step"] == ++done);  // the first is 1, as on the screen
            CHECK(line["tokens"] == done * 4 * 16);
        }
    }
    CHECK(done == steps);
    CHECK(log.back()["step"] == steps);
}

}  // namespace

TEST_CASE_FIXTURE(InFolder, "train: the default job, small") {
    write_default_job(folder.path());
    const std::string out = folder / "runs/first";
    Words options = words(data_in(folder.path()) +
                          "--layers 2 --heads 2 --channels 16 --seq-len 16 --lr 0.01 --steps 90 --warmup 10 "
                          "--final-lr-fraction 0.1 --val-every 20 --sample-every 40 --out " +
                          out);
    ProgramRun run = run_silently(folder.path(), options);
    CHECK(names_below(out) == Words{"config.toml", "log.jsonl", "model.bin", "report.html", "step_00000090"});
    CHECK(ModelFile(out + "/model.bin").config() == tiny_program_config(16));
    std::vector<Json> log = read_log(out, true);
    CHECK(log.size() == 90 + 5);
    check_log(log, 90, 20, {Decay::kCosine, 0.01, 0.1, 10, 90});
    // it knows nothing yet
    CHECK(log[0]["train_loss"].get<double>() == doctest::Approx(std::log(257.0)).epsilon(0.02));
    double loss = log.back()["val_loss"];
    CHECK(loss < 0.8);  // of the letters little is left to guess; an untrained model has 5.5

    Judgement expected = judge_model(out + "/model.bin", folder / "val.bin", 16);
    CHECK(loss == doctest::Approx(expected.loss).epsilon(1e-8));  // the same sums; 9 digits are printed
    for (const auto& [name, percent] : expected.accuracy) {
        Words lines = lines_with(run.out, "accuracy on " + name);
        REQUIRE(lines.size() == 1);
        CHECK(lines[0] == fmt::format("accuracy on {}: {:.1f} % of 30", name, percent));
    }
    CHECK(expected.accuracy["words"] > 50);
    CHECK(last_loss(run.out) == fmt::format("val loss {:.4f} nats/token, source entropy {:.4f}, ratio {:.3f}",
                                            loss, learnable_entropy(1), loss / learnable_entropy(1)));

    auto repeat = [&](const std::string& name, const std::string& more) {
        const std::string options = "--config " + out + "/config.toml --out " + folder / name + " " + more;
        run_silently(folder.path(), words(options));
        return read_log(folder / name);
    };
    CHECK(repeat("again", "") == read_log(out));  // the configuration that the run has left repeats it
    CHECK(same_files(folder / "again/model.bin", out + "/model.bin"));
    CHECK(repeat("silent", "--sample-every 0 --quiet") == read_log(out));  // samples leave no trace
    CHECK(repeat("other", "--seed 43 --steps 2")[0]["train_loss"] != log[0]["train_loss"]);
}

TEST_CASE_FIXTURE(InFolder, "train: a dry run prints the plan and leaves nothing") {
    write_tiny_data(folder.path());
    const Words runs = names_below("runs");
    for (const std::string& out : {"--out " + folder / "run", std::string()}) {
        Words options = tiny_run(folder.path(), "--dry-run --total-batch 96 --steps 7 " + out);
        ProgramRun run = run_silently(folder.path(), options);
        check_holds(run.out,
                    {"compute    | fp32\n", "model      | 2 layers, 2 heads, 16 channels, 12 positions",
                     "train.bin: 1,601 tokens in 1 shard, vocabulary 257\n",
                     "step       | 2 x 4 rows of 12 tokens = 96 tokens", "run        | 7 steps = 672 tokens",
                     "memory     | ", "available"});
        CHECK_FALSE(contains(run.out, "loss"));
    }
    CHECK(names_below(folder.path()) == Words{"stderr", "stdout", "train.bin", "val.bin"});  // of this test
    CHECK(names_below("runs") == runs);
    // what the run itself would refuse, the plan refuses
    const std::string there = "--steps 1 --out " + folder / "there";
    run_silently(folder.path(), tiny_run(folder.path(), there));
    check_run(run_train(folder.path(), tiny_run(folder.path(), there + " --dry-run")), kExitUsage,
              {"holds a run already"});
}

TEST_CASE("train: --quiet and --log-every") {
    const Runs r("--steps 10 --sample-every 0");
    auto step_lines = [&](const std::string& out, const std::string& more) {
        return lines_with(r.train(out, more).out, " | norm ").size();
    };
    CHECK(step_lines("all", "") == 10);
    CHECK(step_lines("some", "--log-every 5") == 2);
    CHECK(step_lines("none", "--quiet") == 0);
}

TEST_CASE("train: --model-dtype bf16 rounds model.bin, no checkpoint") {
    const Runs r("--steps 2 --sample-every 0 --val-every 0");
    r.train("exact", "");
    r.train("rounded", "--model-dtype bf16");
    CHECK(same_files(r.step("rounded", 2) + "/model.safetensors", r.step("exact", 2) + "/model.safetensors"));
    CHECK(fs::file_size(r / "rounded/model.bin") - 1024 == (fs::file_size(r / "exact/model.bin") - 1024) / 2);
}

TEST_CASE_FIXTURE(InFolder, "train: the validation loss does not depend on how it is cut up") {
    write_default_job(folder.path());
    fs::remove(folder / "val.json");
    const std::string model = folder / "in.bin";
    write_model(model, tiny_program_config(20));
    const GPT2Config c = tiny_program_config(20);
    auto val_loss = [&](const std::string& name, const std::string& more) {
        only_evaluate(folder.path(), model, folder / name, words("--sample-every 0 " + more));
        return read_log(folder / name).back().at("val_loss").get<double>();
    };
    // documents of 14 tokens in rows of 14: aligned or not, the rows are the same
    double expected = val_loss("b4", "--seq-len 14 --val-align window");
    CHECK(same_files(folder / "b4/model.bin", model));  // not a bit has changed
    CHECK(last_loss(read_bytes(folder / "stdout")) == fmt::format("val loss {:.4f} nats/token", expected));
    CHECK(val_loss("document", "--seq-len 14 --val-align document") == expected);
    CHECK(val_loss("auto", "--seq-len 14") == expected);
    // `eval` says what training says, however rows are aligned
    const auto evaluated = [&](const std::string& align) {
        const ProgramRun r = run_train(folder.path(), words("eval " + model + " --data " +
                                                            (folder / "val.bin") + " --seq-len 20 " + align));
        const std::string name = "loss        ";
        REQUIRE_MESSAGE(contains(r.out, name), r.err);
        return r.out.substr(r.out.find(name) + name.size(), 6);
    };
    CHECK(evaluated("") == fmt::format("{:.4f}", val_loss("auto20", "--seq-len 20")));
    CHECK(evaluated("--val-align window") ==
          fmt::format("{:.4f}", val_loss("window20", "--seq-len 20 --val-align window")));
    CHECK(evaluated("") != evaluated("--val-align window"));
    // a loss is a difference of logits, each off by this; in a model that has learnt nothing they are below 1
    double bound = 2 * reordering(c, 7 * 14) + 1e-8 * expected;
    for (const std::string batch : {"1", "3", "7", "64"}) {
        double found = val_loss("batch" + batch, "--seq-len 14 --batch " + batch);
        CHECK_MESSAGE(std::fabs(found - expected) <= bound, "batch ", batch, ": ", found, " ", expected);
    }
    // alone in its row a document is seen by its own tokens only: longer rows are more padding, nothing else
    CHECK(std::fabs(val_loss("longer", "--seq-len 20 --val-align document") - expected) <= bound);
    CHECK(std::fabs(val_loss("window", "--seq-len 20 --val-align window") - expected) > bound);
    CHECK(std::fabs(val_loss("short", "--seq-len 14 --val-tokens 50") - expected) > bound);
}

TEST_CASE("train: micro-batches make the same run as one large batch") {
    const Runs r("--steps 10 --total-batch 96 --lr 0.001 --val-every 0 --sample-every 0");
    auto train = [&](const std::string& name, const std::string& batch) {
        r.train(name, "--batch " + batch);
        return read_log(r / name);
    };
    const GPT2Config c = tiny_program_config(12);
    std::vector<Json> expected = train("b8", "8");
    for (const char* batch : {"1", "2", "4"}) {
        std::vector<Json> found = train(std::string("b") + batch, batch);
        REQUIRE(found.size() == expected.size());
        double norms = 0;
        for (size_t k = 0; k < 10; k++) {
            double loss = expected[k]["train_loss"], norm = expected[k]["grad_norm"];
            // An error d of a gradient g moves its parameter by at most lr d / |g|, for AdamW divides by the
            // size of g, and the loss by |g| times that: lr d for each parameter and update. d is what
            // `reordering` makes of the largest gradient.
            double drift = 0.001 * (double)num_parameters(c) * norms;
            double bound = reordering(c, 96) * (loss + drift) + 1e-8 * loss;
            CHECK_MESSAGE(std::fabs(found[k]["train_loss"].get<double>() - loss) <= bound, "batch ", batch,
                          " step ", k);
            norms += norm;
        }
    }
}

TEST_CASE_FIXTURE(InFolder, "train: samples") {
    write_default_job(folder.path());
    run_silently(folder.path(), words(data_in(folder.path()) +
                                      "--layers 1 --heads 2 --channels 16 --seq-len 16 "
                                      "--lr 0.01 --steps 40 --sample-every 0 --out " +
                                      folder / "run"));
    int runs = 0;
    auto samples = [&](Words more) {
        more.insert(more.end(), {"--sample-every", "2", "--sample-tokens", "30", "--seq-len", "16"});
        const std::string out = folder / std::to_string(runs++);
        ProgramRun run = only_evaluate(folder.path(), folder / "run/model.bin", out, more);
        Words lines = lines_with(run.out, "sample ");
        CHECK(lines.size() == 3);
        for (size_t i = 0; i < lines.size(); i++) {
            const std::string start = fmt::format("sample {}: ", i + 1);
            CHECK(lines[i].starts_with(start));
            lines[i] = lines[i].substr(start.size());
        }
        return lines;
    };
    const Words drawn = samples({"--seed", "5"});
    CHECK(samples({"--seed", "5"}) == drawn);
    CHECK(samples({"--seed", "6"}) != drawn);
    CHECK((drawn[0] != drawn[1] || drawn[1] != drawn[2]));
    const Words likely = samples({"--temperature", "0"});
    CHECK(std::set(likely[0].begin(), likely[0].end()).size() > 1);  // each follows from those before it
    CHECK(likely[1] == likely[0]);
    CHECK(likely[2] == likely[0]);
    CHECK(samples({"--top-k", "1"}) == likely);
    for (const std::string& sample : samples({"--prompt", "cat 7 sat", "--temperature", "0"})) {
        CHECK(sample.starts_with("cat 7 sat"));
        CHECK(sample.size() <= std::string("cat 7 sat").size() + 30);
    }
    // a prompt longer than the model's window: its end is what the model sees
    const std::string lengthy = "cat 1 sat 1. cat 2 sat 2. cat 3 sat";
    for (const std::string& sample : samples({"--prompt", lengthy})) { CHECK(sample.starts_with(lengthy)); }
}

TEST_CASE("train: a full disk costs the checkpoints, not the run, and is said at the end") {
    const Runs r("--val-every 0");
    const pid_t pid = start_prepared(r.folder.path(), r.options("run", "--steps 6 --save-every 2"), [] {
        std::signal(SIGXFSZ, SIG_DFL);  // would kill it
        rlimit small = {12000, 12000};  // less than the model and the page, more than the log
        setrlimit(RLIMIT_FSIZE, &small);
    });
    ProgramRun run = finish_train(r.folder.path(), pid);
    check_run(run, kExitSaveFailed, {"the page of the run is not written"}, {"File too large", "ulimit -f"});
    CHECK(lines_with(run.out, "SAVE FAILED").size() == 4);  // 2, 4, 6 and model.bin
    CHECK(last_loss(run.out) != "");
    CHECK(read_log(r / "run").size() == 6 + 1);
    CHECK(names_below(r / "run") == Words{"config.toml", "log.jsonl"});

    // the checkpoint succeeds, the model at the end does not
    fs::create_directories(r / "blocked/model.bin/x");
    run = r.run("blocked", "--steps 1");
    check_run(run, kExitSaveFailed);
    CHECK(lines_with(run.out, "SAVE FAILED").size() == 1);
    CHECK(names_below(r / "blocked") ==
          Words{"config.toml", "log.jsonl", "model.bin", "report.html", "step_00000001"});
}

// ---- bad input ---------------------------------------------------------------------------------

namespace {

// a folder with good shards, in which the bad files of the rows are made
struct BadRuns : Runs {
    const std::string out = folder / "run", train_data = folder / "train.bin", val_data = folder / "val.bin";
    BadRuns() : Runs("--steps 3") {}

    // of a good run, with some replaced: {"--name", "value"} pairs
    Words options(const Words& changes) const {
        std::string more;
        for (const std::string& word : changes) { more += word + " "; }
        return Runs::options("run", more);
    }
    // the program refuses, with this code and these texts on stderr, and leaves the run folder as it was
    void refused(const Words& changes, int exit_code, const Words& says) const {
        CAPTURE(changes.size() > 1 ? changes[0] + " " + changes[1] : "");
        const Words before = names_below(out);
        const ProgramRun run = run_train(folder.path(), options(changes));
        check_run(run, exit_code, says);
        CHECK_MESSAGE(run.err.starts_with("train_gpt2: "), run.err);
        CHECK_FALSE(contains(run.out, "step 1/"));
        CHECK(names_below(out) == before);
    }
};

void write_shard(const std::string& path, int vocab, int count, int bad_at = -1, uint16_t bad = 0) {
    std::vector<uint16_t> tokens((size_t)count);
    for (int i = 0; i < count; i++) { tokens[i] = (uint16_t)(i * 7 % 100); }
    if (bad_at >= 0) { tokens[bad_at] = bad; }
    write_bytes(path, header_bytes({kTokenShardMagic, 1, count, vocab}) + token_bytes(tokens));
}

// damaged files, and what the message must say was found
constexpr const char* kBadValJson[][2] = {
    {"{", "syntax error"},
    {"{}", "no positive entropy"},
    {"[]", "a list outside"},
    {R"({"entropy_nats_per_token": 0})", "no positive entropy"},
    {R"({"entropy_nats_per_token": -1.5})", "no positive entropy"},
    {R"({"entropy_nats_per_token": "1"})", "a string"},
    {R"({"entropy_nats_per_token": [1]})", "a list outside"},
    {R"({"entropy_nats_per_token": 1, "tokens": 100})", "tokens = 100"},
    {R"({"entropy_nats_per_token": 1, "tokens": 99.5})", "tokens = 99.5"},
    {R"({"entropy_nats_per_token": 1, "tokens": -1})", "tokens = -1"},
    {R"({"entropy_nats_per_token": 1, "probes": 5})", "a number for 'probes'"},
    {R"({"entropy_nats_per_token": 1, "probes": [[5, 1]]})", "a list outside"},
    {R"({"entropy_nats_per_token": 1, "probes": {"a": 5}})", "a number that is not"},
    {R"({"entropy_nats_per_token": 1, "probes": {"a": [[5]]}})", "not [position, length]"},
    {R"({"entropy_nats_per_token": 1, "probes": {"a": [[5, 1, 1]]}})", "a number that is not"},
    {R"({"entropy_nats_per_token": 1, "probes": {"a": [[[5, 1]]]}})", "a list outside"},
    {R"({"entropy_nats_per_token": 1, "probes": {"a": [[0, 1]]}})", "not [position, length]"},
    {R"({"entropy_nats_per_token": 1, "probes": {"a": [[100, 1]]}})", "not [position, length]"},
    {R"({"entropy_nats_per_token": 1, "probes": {"a": [[99, 2]]}})", "not [position, length]"},
    {R"({"entropy_nats_per_token": 1, "probes": {"a": [[5, 0]]}})", "not [position, length]"},
    {R"({"entropy_nats_per_token": 1, "probes": {"a": [[-5, 1]]}})", "not [position, length]"},
    {R"({"entropy_nats_per_token": 1, "probes": {"a": [[5.5, 1]]}})", "not [position, length]"},
    {R"({"entropy_nats_per_token": 1, "probes": {"a": [[5, 18446744073709551615]]}})",
     "not [position, length]"},
    {R"({"entropy_nats_per_token": 1, "probes": {"a": {"b": [[5, 1]]}}})", "an object outside"},
    {R"({"entropy_nats_per_token": 1, "probes": {"a": [{"b": 1}]}})", "an object outside"},
    {R"({"entropy_nats_per_token": 1, "probes": {"\u001b[2J": [[5, 1]]}})", "control characters"},
};

}  // namespace

TEST_CASE("bad input: shards") {
    const BadRuns p;
    auto refused = [&](const Words& changes, const Words& says) { p.refused(changes, kExitBadInput, says); };
    refused({"--train-data", p / "none.bin"}, {p / "none.bin", "no file matches", "data/make_shards"});
    refused({"--val-data", p / "none_*.bin"}, {p / "none_*.bin", "no file matches", "data/make_shards"});
    refused({"--train-data", p.folder.path()}, {p.folder.path(), "a folder", "*_train_*.bin"});

    std::string bytes = read_bytes(p.train_data);
    write_bytes(p / "cut.bin", bytes.substr(0, bytes.size() - 1));
    bytes[0]++;
    write_bytes(p / "magic.bin", bytes);
    write_shard(p / "bad.bin", 257, 600, 345, 300);  // in the middle: found before its turn comes
    for (const char* option : {"--train-data", "--val-data"}) {
        refused({option, p / "cut.bin"},
                {p / "cut.bin", "file size", "found", "expected", "data/make_shards"});
        refused({option, p / "magic.bin"},
                {p / "magic.bin", "word 0, magic", "found 20240521", "expected 20240520"});
        refused({option, p / "bad.bin"},
                {p / "bad.bin", "token 345", "found id 300", "0 to 256", "make it again"});
    }
    write_shard(p / "300.bin", 300, 600);
    refused({"--val-data", p / "300.bin"},
            {p / "300.bin", p.train_data, "vocabulary of 300", "of 257", "one tokenizer"});
    refused({"--train-data", p / "300.bin"}, {p / "300.bin", p.val_data, "vocabulary of 257", "of 300"});
    write_shard(p / "short.bin", 257, 12);
    refused({"--train-data", p / "short.bin"}, {p / "short.bin", "too short", "at least 13", "--seq-len 11"});
    write_shard(p / "one.bin", 257, 1);
    refused({"--val-data", p / "one.bin"}, {p / "one.bin", "too short", "more text"});
}

TEST_CASE("bad input: model files") {
    const BadRuns p;
    auto refused = [&](const std::string& model, int exit_code, const Words& says) {
        p.refused({"--model", p / model}, exit_code, says);
    };
    refused("none.bin", kExitBadInput, {p / "none.bin", "cannot open", "No such file", "check its name"});
    refused("train.bin", kExitBadInput,
            {p.train_data, "model file", "magic", "found 20240520", "expected 20240326"});
    write_model(p / "300.bin", {12, 300, 320, 1, 1, 8});
    refused("300.bin", kExitBadInput,
            {p / "300.bin", "vocabulary of 300", p.train_data, "of 257", "train a new model"});
    write_model(p / "short.bin", {8, 257, 320, 1, 1, 8});
    refused("short.bin", kExitUsage, {"--seq-len 12", "8 positions", p / "short.bin", "--seq-len 8 or less"});
}

TEST_CASE("bad input: options") {
    const BadRuns p;
    p.refused({"--sek-len", "12"}, kExitUsage, {"--sek-len", "--seq-len"});
    p.refused({"--dtype", "bf16"}, kExitUsage, {"--dtype bf16", "make train_gpt2cu"});
    p.refused({"--max-seq-len", "11"}, kExitUsage, {"--max-seq-len 11", "--seq-len 12"});
    p.refused({"--total-batch", "100"}, kExitUsage, {"--total-batch 100", "96"});
    p.refused({"--steps", "-1", "--batch", "200"}, kExitUsage,
              {p.train_data, "2400 of a step", "--steps", "--batch"});
    p.refused({"--total-batch", "999999999999984"}, kExitUsage,
              {"--total-batch 999999999999984", "micro-batches", "--batch"});
    p.refused({"--steps", "2147483647", "--batch", "1048576", "--total-batch", "880803840000"}, kExitUsage,
              {"--steps 2147483647", "cannot be counted", "fewer --steps"});
    p.refused({"--resume", "auto", "--out", "auto"}, kExitUsage, {"--resume auto", "--out FOLDER"});
}

TEST_CASE("bad input: the GPU program without a GPU") {
    const std::string program = program_path("train_gpt2cu");
    if (access(program.c_str(), X_OK) != 0) { return; }  // not built here
    const BadRuns p;
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    ProgramRun run = run_train(p.folder.path(), p.options({}), program);
    ProgramRun help = run_train(p.folder.path(), {"--help"}, program);
    unsetenv("CUDA_VISIBLE_DEVICES");
    check_run(run, kExitDevice, {"train_gpt2cu: no CUDA device", "./train_gpt2 trains on the CPU"});
    CHECK(run.out == "");
    CHECK(names_below(p.out).empty());
    CHECK(help.exit_code == kExitDone);
}

TEST_CASE("bad input: more than the memory holds") {
    const BadRuns p;
    const Words largest = {"--layers", "1024", "--heads", "1024", "--channels", "65536"};
    p.refused(largest, kExitDevice,
              {"out of memory", "1024 layers", "65536 channels", "is available", "--model d", "would"});
    write_token_shard(p / "long.bin", std::vector<uint16_t>(1 << 21, 65), 257);
    Words most = {"--train-data", p / "long.bin", "--batch", "1048576", "--seq-len", "1024"};
    p.refused(most, kExitDevice, {"out of memory", "--batch 1048576", "TiB", "is available", "would fit"});
    // every size at its largest: more bytes than 64 bits count
    most.back() = "1048576";
    most.insert(most.end(), largest.begin(), largest.end());
    p.refused(most, kExitDevice, {"out of memory", "--batch 1048576", "needs", "is available"});
}

TEST_CASE("bad input: run folders") {
    const BadRuns p;
    write_bytes(p / "file", "");
    for (const std::string& out : {p / "file/run", p / "file"}) {
        p.refused({"--out", out}, kExitUsage, {out, "cannot make or write", "Choose one"});
    }
    p.train("run", "--save-every 2 --steps 4 --max-seq-len 16");
    const std::string log = read_bytes(p.out + "/log.jsonl"), two = p.out + "/step_00000002";
    p.refused({}, kExitUsage, {p.out, "holds a run already", "another --out", "--resume auto"});

    auto refused = [&](const Words& changes, int exit_code, const Words& says) {
        p.refused(changes, exit_code, says);
        CHECK(read_bytes(p.out + "/log.jsonl") == log);
    };
    refused({"--resume", p / "none"}, kExitBadInput,
            {p / "none", "no such checkpoint folder", "--resume auto"});
    refused(
        {"--resume", p.out}, kExitBadInput,
        {p.out, "a run folder, not a checkpoint", "--resume auto --out " + p.out, "step_00000004 --out NEW"});
    refused({"--resume", two, "--seed", "7"}, kExitUsage, {two, "--seed 42, not 7", "Go on with --seed 42"});
    refused({"--resume", two, "--steps", "1"}, kExitUsage,
            {two, "found step 2", "--steps 1", "Give more --steps"});
    refused({"--resume", two, "--layers", "3"}, kExitUsage,
            {two, "2 layers", "ask for 3, 2, 16", "another --out"});
    refused({"--resume", two, "--seq-len", "17"}, kExitUsage, {two, "--seq-len 17", "16 positions"});
    refused({"--resume", two, "--seq-len", "13"}, kExitUsage,
            {two, "--seq-len 12, not 13", "another place in the data", "--model " + two});
    refused({"--resume", two, "--batch", "2"}, kExitUsage, {two, "--total-batch 48, not 24"});
    refused({"--resume", two, "--total-batch", "96"}, kExitUsage, {two, "--total-batch 48, not 96"});
    refused({"--resume", two, "--train-data", p.val_data}, kExitBadInput,
            {two, "found val.bin of 241 tokens", "expected train.bin of 1601 tokens", "--new-data"});
    write_shard(p / "300.bin", 300, 600);
    refused({"--resume", two, "--train-data", p / "300.bin", "--val-data", "none"}, kExitBadInput,
            {two, "vocabulary of 257", p / "300.bin", "of 300"});
    // a checkpoint of one folder, the log of another run in the other
    fs::create_directory(p / "other");
    write_bytes(p / "other/log.jsonl", "{\"step\":5}\n");
    refused({"--resume", two, "--out", p / "other"}, kExitUsage, {p / "other", "holds a run already"});
    CHECK(read_bytes(p / "other/log.jsonl") == "{\"step\":5}\n");

    for (const char* name : {"/step_00000002/model.safetensors", "/step_00000004/optimizer.safetensors"}) {
        flip_byte(p.out + name, fs::file_size(p.out + name) / 2);
    }
    refused({"--resume", two}, kExitBadInput,
            {two + "/model.safetensors is damaged", "found", "expected", "MANIFEST"});
    // all of them damaged: to start again would throw the run's log away
    refused({"--resume", "auto"}, kExitBadInput,
            {p.out, "no checkpoint in it is intact", two + "/model.safetensors is damaged",
             "step_00000004/optimizer.safetensors is damaged", "another --out"});
}

TEST_CASE("bad input: tokenizers and prompts") {
    const BadRuns p;
    auto tokenizer = [&](int vocab) {
        std::string tokens;
        for (int i = 0; i < vocab; i++) { tokens += std::string("\1") + (char)('a' + i % 26); }
        return header_bytes({20240328, 2, vocab, vocab - 1}) + tokens;
    };
    write_bytes(p / "tok257.bin", tokenizer(257));
    write_bytes(p / "tok300.bin", tokenizer(300));
    write_bytes(p / "cut.bin", tokenizer(257).substr(0, 1200));
    p.refused({"--tokenizer", p / "tok300.bin"}, kExitBadInput,
              {p / "tok300.bin", "300 tokens", p.train_data, "of 257"});
    p.refused({"--tokenizer", p / "cut.bin"}, kExitBadInput, {p / "cut.bin", "found", "expected"});
    p.refused({"--tokenizer", p / "none"}, kExitBadInput, {p / "none", "cannot open"});
    // said before the run, not when the first sample is due
    p.refused({"--tokenizer", p / "tok257.bin", "--prompt", "x"}, kExitUsage, {"prompt", "tokenizer.json"});
    write_shard(p / "300.bin", 300, 600);
    p.refused({"--train-data", p / "300.bin", "--val-data", "none", "--prompt", "x"}, kExitUsage,
              {"--prompt", "of 300", "--tokenizer"});
    p.train("run", "--sample-tokens 5 --tokenizer " + p / "tok257.bin");
}

TEST_CASE_FIXTURE(InFolder, "bad input: val.json") {
    const std::string path = folder / "val.json";
    CHECK_FALSE(read_val_info(folder / "val.bin", 100).has_value());
    for (const auto& [text, found] : kBadValJson) {
        CAPTURE(text);
        write_bytes(path, text);
        check_error([&] { read_val_info(folder / "val.bin", 100); }, kExitBadInput,
                    {path, "found", found, "expected", "remove it"});
    }
    write_bytes(path, std::string(100000, '[') + std::string(100000, ']'));
    CHECK(error_of([&] { read_val_info(folder / "val.bin", 100); }).exit_code == kExitBadInput);
    write_bytes(
        path, R"({"entropy_nats_per_token": 1, "tokens": 99, "probes": {"a": [[1, 99], [99, 1]], "b": []}})");
    ValInfo info = read_val_info(folder / "val.bin", 100).value();
    REQUIRE(info.probes.size() == 2);
    CHECK(info.probes[0].name == "a");
    CHECK(info.probes[0].spans == std::vector<std::pair<int64_t, int64_t>>{{1, 99}, {99, 1}});
    CHECK(info.probes[1].spans.empty());

    const BadRuns p;
    write_bytes(p / "val.json", "{");
    p.refused({}, kExitBadInput, {p / "val.json", "found", "syntax error", "expected", "make_corpus"});
}

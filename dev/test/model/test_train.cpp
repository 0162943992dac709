// ./train_gpt2 as a user runs it: what a run prints and leaves behind, that it can be repeated, and that its
// numbers do not depend on how the work is cut up.
#include <sys/resource.h>
#include <chrono>
#include <csignal>
#include <map>
#include <set>
#include <thread>

#include <doctest/doctest.h>

#include "dev/test/support/any_model.h"
#include "dev/test/support/train_program.h"
#include "llmc/host/tokens/dataloader.h"
#include "llmc/model/cpu/gpt2.h"
#include "llmc/model/formats/checkpoint.h"
#include "llmc/model/run/folder.h"
#include "llmc/model/run/plan.h"

using namespace llmc;
namespace fs = std::filesystem;

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

// a model file with the sizes of tiny_run's
void write_tiny_model(const std::string& path, int positions) {
    GPT2Cpu model(tiny_program_config(positions), 1, 2);
    model.init(11);
    write_model_file(path, model.config(), kModelFp32, reader(model));
}

ProgramRun run_well(const std::string& folder, const Words& options) {
    ProgramRun run = run_train(folder, options);
    CHECK_MESSAGE(run.exit_code == kExitDone, run.err);
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
    return run_well(folder, all);
}

Words lines_with(const std::string& text, const std::string& part) {
    Words found;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) {
        if (line.find(part) != std::string::npos) { found.push_back(line); }
    }
    return found;
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
    load_model(file,
               [&](State s, int t, int64_t first, std::span<const float> x) { model.load(s, t, first, x); });
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
            CHECK(line["lr"].get<double>() ==
                  doctest::Approx(lr(done)).epsilon(1e-8));  // 9 digits are printed
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

TEST_CASE("train: the default job, small") {
    TempFolder folder;
    write_default_job(folder.path());
    const std::string out = folder / "runs/first";
    Words options = words(data_in(folder.path()) +
                          "--layers 2 --heads 2 --channels 16 --seq-len 16 "
                          "--lr 0.01 --steps 90 --warmup 10 --final-lr-fraction 0.1 --val-every 20 "
                          "--sample-every 40 --out " +
                          out);
    ProgramRun run = run_well(folder.path(), options);
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
        run_well(folder.path(), words(options));
        return read_log(folder / name);
    };
    CHECK(repeat("again", "") == read_log(out));  // the configuration that the run has left repeats it
    CHECK(same_files(folder / "again/model.bin", out + "/model.bin"));
    CHECK(repeat("silent", "--sample-every 0 --quiet") == read_log(out));  // samples leave no trace
    CHECK(repeat("other", "--seed 43 --steps 2")[0]["train_loss"] != log[0]["train_loss"]);
}

TEST_CASE("train: a dry run prints the plan and leaves nothing") {
    TempFolder folder;
    write_tiny_data(folder.path());
    const Words before = names_below(folder.path()), runs = names_below("runs");
    for (const std::string& out : {"--out " + folder / "run", std::string()}) {
        Words options = tiny_run(folder.path(), "--dry-run --total-batch 96 --steps 7 " + out);
        ProgramRun run = run_well(folder.path(), options);
        for (const char* line :
             {"compute    | fp32\n", "model      | 2 layers, 2 heads, 16 channels, 12 positions",
              "step       | 2 x 4 rows of 12 tokens = 96 tokens", "run        | 7 steps = 672 tokens",
              "memory     | ", "available"}) {
            CHECK_MESSAGE(run.out.find(line) != std::string::npos, line, " in\n", run.out);
        }
        CHECK(run.out.find("loss") == std::string::npos);
    }
    Words after = names_below(folder.path());  // stdout and stderr are this test's
    std::erase_if(after, [](const std::string& name) { return name.starts_with("std"); });
    CHECK(after == before);
    CHECK(names_below("runs") == runs);
    // what the run itself would refuse, the plan refuses
    const std::string there = "--steps 1 --out " + folder / "there";
    run_well(folder.path(), tiny_run(folder.path(), there));
    const ProgramRun refused = run_train(folder.path(), tiny_run(folder.path(), there + " --dry-run"));
    CHECK(refused.exit_code == kExitUsage);
    CHECK(refused.err.find("holds a run already") != std::string::npos);
}

TEST_CASE("train: --quiet and --log-every") {
    TempFolder folder;
    write_tiny_data(folder.path());
    auto step_lines = [&](const std::string& out, const std::string& more) {
        const std::string options = "--steps 10 --sample-every 0 --out " + folder / out + " " + more;
        return lines_with(run_well(folder.path(), tiny_run(folder.path(), options)).out, " | norm ").size();
    };
    CHECK(step_lines("all", "") == 10);
    CHECK(step_lines("some", "--log-every 5") == 2);
    CHECK(step_lines("none", "--quiet") == 0);
    CHECK(read_log(folder / "none") == read_log(folder / "all"));
}

TEST_CASE("train: --keep and --model-dtype") {
    TempFolder folder;
    write_tiny_data(folder.path());
    auto train = [&](const std::string& out, const std::string& more) {
        const std::string options = "--steps 7 --save-every 2 --sample-every 0 --out " + folder / out + " ";
        run_well(folder.path(), tiny_run(folder.path(), options + more));
    };
    train("all", "");
    train("two", "--keep 2 --model-dtype bf16");
    const Words files = {"config.toml", "log.jsonl", "model.bin", "report.html"};
    auto names = [&](const Words& steps) {
        Words all = files;
        for (const std::string& step : steps) { all.push_back("step_0000000" + step); }
        return all;
    };
    CHECK(names_below(folder / "all") == names({"2", "4", "6", "7"}));
    CHECK(names_below(folder / "two") == names({"6", "7"}));
    const std::string seven = "/step_00000007/model.safetensors";  // always fp32
    CHECK(same_files(folder / "two" + seven, folder / "all" + seven));
    ModelFile exact(folder / "all/model.bin"), rounded(folder / "two/model.bin");
    CHECK(fs::file_size(folder / "two/model.bin") - 1024 ==
          (fs::file_size(folder / "all/model.bin") - 1024) / 2);
    std::vector<float> expected(100), found(100);
    exact.read(kWte, 0, expected);
    rounded.read(kWte, 0, found);
    for (size_t i = 0; i < 100; i++) {
        CHECK(std::fabs(found[i] - expected[i]) <= std::fabs(expected[i]) / 256);
    }
}

TEST_CASE("train: killed at any moment, whole lines and a checkpoint are left") {
    TempFolder folder;
    write_tiny_data(folder.path());
    const std::string out = folder / "run";
    const std::string options = "--steps 1000000 --save-every 8 --sample-every 0 --out " + out;
    pid_t pid = start_train(folder.path(), tiny_run(folder.path(), options));
    for (int wait = 0; wait < 24000; wait++) {  // until the third checkpoint is on its way
        if (read_bytes(out + "/log.jsonl").find("\"step\":22,") != std::string::npos) { break; }
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    kill(pid, SIGKILL);
    CHECK(finish_train(folder.path(), pid).exit_code == 128 + SIGKILL);
    std::vector<Json> log = read_log(out, true);  // checks that each line is whole
    CHECK(log.size() >= 22);
    std::string notes, newest = find_checkpoint(out, &notes);
    CHECK(newest >= out + "/step_00000016");
    CHECK(notes == "");
    ProgramRun run = run_well(folder.path(), tiny_run(folder.path(), options + " --resume auto --dry-run"));
    CHECK(run.out.find("weights    | " + newest) != std::string::npos);
}

TEST_CASE("train: the validation loss does not depend on how it is cut up") {
    TempFolder folder;
    write_default_job(folder.path());
    fs::remove(folder / "val.json");
    const std::string model = folder / "in.bin";
    write_tiny_model(model, 20);
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
        REQUIRE_MESSAGE(r.out.find(name) != std::string::npos, r.err);
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
    TempFolder folder;
    write_tiny_data(folder.path());
    auto train = [&](const std::string& name, const std::string& batch) {
        const std::string options =
            "--steps 10 --total-batch 96 --lr 0.001 --val-every 0 --sample-every 0 --batch ";
        run_well(folder.path(), tiny_run(folder.path(), options + batch + " --out " + folder / name));
        return read_log(folder / name);
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

TEST_CASE("train: samples") {
    TempFolder folder;
    write_default_job(folder.path());
    run_well(folder.path(), words(data_in(folder.path()) +
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
    TempFolder folder;
    write_tiny_data(folder.path());
    rlimit before;
    getrlimit(RLIMIT_FSIZE, &before);
    rlimit small = {12000, before.rlim_max};  // less than the model and the page, more than the log
    auto handler = std::signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);  // the program inherits both; meanwhile nothing is printed here
    const Words options =
        tiny_run(folder.path(), "--steps 6 --save-every 2 --val-every 0 --out " + folder / "run");
    pid_t pid = start_train(folder.path(), options);
    setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, handler);
    ProgramRun run = finish_train(folder.path(), pid);
    CHECK(run.exit_code == kExitSaveFailed);
    CHECK(lines_with(run.out, "SAVE FAILED").size() == 4);  // 2, 4, 6 and model.bin
    CHECK(run.out.find("ulimit -f") != std::string::npos);
    CHECK(last_loss(run.out) != "");
    CHECK(read_log(folder / "run").size() == 6 + 1);
    CHECK(names_below(folder / "run") == Words{"config.toml", "log.jsonl"});
    CHECK_MESSAGE(run.err.find("the page of the run is not written") != std::string::npos, run.err);

    // the checkpoint succeeds, the model at the end does not
    const std::string blocked = folder / "blocked";
    fs::create_directories(blocked + "/model.bin/x");
    run = run_train(folder.path(), tiny_run(folder.path(), "--steps 1 --out " + blocked));
    CHECK(run.exit_code == kExitSaveFailed);
    CHECK(lines_with(run.out, "SAVE FAILED").size() == 1);
    CHECK(names_below(blocked) ==
          Words{"config.toml", "log.jsonl", "model.bin", "report.html", "step_00000001"});
}

// Bad input: for each way to start a run wrongly, the exit code, what the message must say, and that nothing
// was left. A message says what, where, what was found, what was expected, and what to do.
#include <cmath>
#include <cstring>

#include <doctest/doctest.h>

#include "dev/test/support/any_model.h"
#include "dev/test/support/train_program.h"
#include "llmc/host/tokens/dataloader.h"
#include "llmc/model/cpu/gpt2.h"
#include "llmc/model/formats/checkpoint.h"
#include "llmc/model/run/plan.h"

using namespace llmc;
namespace fs = std::filesystem;

namespace {

constexpr const char* kTinyShape = "--layers 2 --heads 2 --channels 16";

// a folder with good shards, in which the bad files of the rows are made
struct Place {
    TempFolder folder;
    std::string run = folder / "run", train = folder / "train.bin", val = folder / "val.bin";
    Place() { write_tiny_data(folder.path()); }
    std::string operator/(const std::string& name) const { return folder / name; }

    // the options of a good run, with some replaced and more added: {"--name", "value"} pairs
    Words options(const Words& changes, const std::string& shape = kTinyShape) const {
        Words all = words("--train-data " + train + " --val-data " + val + " --out " + run +
                          " --seq-len 12 --steps 3 " + shape);
        for (size_t i = 0; i < changes.size(); i += 2) {
            auto old = std::find(all.begin(), all.end(), changes[i]);
            if (old != all.end()) { all.erase(old, old + 2); }
            all.insert(all.end(), changes.begin() + i, changes.begin() + i + 2);
        }
        return all;
    }
};

// the program refuses, with this code and these texts on stderr, and leaves the run folder as it was
void check_refused(const Place& place, const Words& options, int exit_code, const Words& says) {
    std::string line;
    for (const std::string& word : options) { line += word + " "; }
    CAPTURE(line);
    const Words before = names_below(place.run);
    ProgramRun run = run_train(place.folder.path(), options);
    CHECK_MESSAGE(run.exit_code == exit_code, run.err);
    CHECK_MESSAGE(run.err.starts_with("train_gpt2: "), run.err);
    for (const std::string& part : says) {
        CHECK_MESSAGE(run.err.find(part) != std::string::npos, part, " in ", run.err);
    }
    CHECK(run.out.find("step 1/") == std::string::npos);
    CHECK(names_below(place.run) == before);
}

void write_model(const std::string& path, GPT2Config c, uint64_t seed = 1) {
    GPT2Cpu model(c, 1, 2);
    model.init(seed);
    write_model_file(path, c, kModelFp32, reader(model));
}

void write_shard(const std::string& path, int vocab, int count, int bad_at = -1, uint16_t bad = 0) {
    std::vector<uint16_t> tokens((size_t)count);
    for (int i = 0; i < count; i++) { tokens[i] = (uint16_t)(i * 7 % 100); }
    if (bad_at >= 0) { tokens[bad_at] = bad; }
    write_bytes(path, header_bytes({kTokenShardMagic, 1, count, vocab}) + token_bytes(tokens));
}

// damaged files, and what the message must say was found
constexpr const char* kBadValJson[][2] = {
    {"", "syntax error"},
    {"{", "syntax error"},
    {"not json", "syntax error"},
    {"{}", "no positive entropy"},
    {"[]", "a list outside"},
    {"5", "no positive entropy"},
    {R"({"entropy_nats_per_token": 0})", "no positive entropy"},
    {R"({"entropy_nats_per_token": -1.5})", "no positive entropy"},
    {R"({"entropy_nats_per_token": 1e999})", "syntax error"},
    {R"({"entropy_nats_per_token": "1"})", "a string"},
    {R"({"entropy_nats_per_token": null})", "null"},
    {R"({"entropy_nats_per_token": true})", "a boolean"},
    {R"({"entropy_nats_per_token": [1]})", "a list outside"},
    {R"({"entropy_nats_per_token": {"x": 1}})", "an object outside"},
    {R"({"entropy_nats_per_token": 1} {})", "syntax error"},
    {R"({"entropy_nats_per_token": 1, "tokens": 100})", "tokens = 100"},
    {R"({"entropy_nats_per_token": 1, "tokens": 99.5})", "tokens = 99.5"},
    {R"({"entropy_nats_per_token": 1, "tokens": -1})", "tokens = -1"},
    {R"({"entropy_nats_per_token": 1, "probes": 5})", "a number for 'probes'"},
    {R"({"entropy_nats_per_token": 1, "probes": [[5, 1]]})", "a list outside"},
    {R"({"entropy_nats_per_token": 1, "probes": {"a": 5}})", "a number that is not"},
    {R"({"entropy_nats_per_token": 1, "probes": {"a": [5, 1]}})", "a number that is not"},
    {R"({"entropy_nats_per_token": 1, "probes": {"a": [[5]]}})", "not [position, length]"},
    {R"({"entropy_nats_per_token": 1, "probes": {"a": [[5, 1, 1]]}})", "a number that is not"},
    {R"({"entropy_nats_per_token": 1, "probes": {"a": [[]]}})", "not [position, length]"},
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
    Place p;
    auto refused = [&](const Words& changes, const Words& says) {
        check_refused(p, p.options(changes), kExitBadInput, says);
    };
    refused({"--train-data", p / "none.bin"}, {p / "none.bin", "no file matches", "data/make_shards"});
    refused({"--val-data", p / "none_*.bin"}, {p / "none_*.bin", "no file matches", "data/make_shards"});
    refused({"--train-data", p.folder.path()}, {p.folder.path(), "a folder", "*_train_*.bin"});

    std::string bytes = read_bytes(p.train);
    write_bytes(p / "cut.bin", bytes.substr(0, bytes.size() - 1));
    refused({"--train-data", p / "cut.bin"},
            {p / "cut.bin", "file size", "found", "expected", "data/make_shards"});
    refused({"--val-data", p / "cut.bin"}, {p / "cut.bin", "file size", "found", "expected"});
    bytes[0]++;
    write_bytes(p / "magic.bin", bytes);
    refused({"--train-data", p / "magic.bin"},
            {p / "magic.bin", "word 0, magic", "found 20240521", "expected 20240520"});
    refused({"--val-data", p / "magic.bin"},
            {p / "magic.bin", "word 0, magic", "found 20240521", "expected 20240520"});

    write_shard(p / "bad.bin", 257, 600, 345,
                300);  // in the middle: found before the run, not when its turn comes
    refused({"--train-data", p / "bad.bin"},
            {p / "bad.bin", "token 345", "found id 300", "0 to 256", "make it again"});
    refused({"--val-data", p / "bad.bin"},
            {p / "bad.bin", "token 345", "found id 300", "0 to 256", "make it again"});
    write_shard(p / "300.bin", 300, 600);
    refused({"--val-data", p / "300.bin"},
            {p / "300.bin", p.train, "vocabulary of 300", "of 257", "one tokenizer"});
    refused({"--train-data", p / "300.bin"}, {p / "300.bin", p.val, "vocabulary of 257", "of 300"});
    write_shard(p / "short.bin", 257, 12);
    refused({"--train-data", p / "short.bin"}, {p / "short.bin", "too short", "at least 13", "--seq-len 11"});
    write_shard(p / "one.bin", 257, 1);
    refused({"--val-data", p / "one.bin"}, {p / "one.bin", "too short", "more text"});
}

TEST_CASE("bad input: model files") {
    Place p;
    auto refused = [&](const std::string& model, const Words& changes, int exit_code, const Words& says) {
        check_refused(p, p.options(changes, "--model " + p / model), exit_code, says);
    };
    refused("none.bin", {}, kExitBadInput, {p / "none.bin", "cannot open", "No such file", "check its name"});
    write_bytes(p / "evil.bin",
                header_bytes({kModelMagic, 3, 1024, 257, 1024, 16, 4800, 320}) + std::string(1000, 'x'));
    refused("evil.bin", {}, kExitBadInput,
            {p / "evil.bin", "file size", "found 2024 bytes", "expected 1132", "1024 layers"});
    refused("train.bin", {}, kExitBadInput,
            {p.train, "model file", "magic", "found 20240520", "expected 20240326"});
    write_model(p / "300.bin", {12, 300, 320, 1, 1, 8});
    refused("300.bin", {}, kExitBadInput,
            {p / "300.bin", "vocabulary of 300", p.train, "of 257", "train a new model"});
    write_model(p / "short.bin", {8, 257, 320, 1, 1, 8});
    refused("short.bin", {}, kExitUsage,
            {"--seq-len 12", "8 positions", p / "short.bin", "--seq-len 8 or less"});
}

TEST_CASE("bad input: options") {
    Place p;
    auto refused = [&](const Words& changes, int exit_code, const Words& says) {
        check_refused(p, p.options(changes), exit_code, says);
    };
    refused({"--sek-len", "12"}, kExitUsage, {"--sek-len", "--seq-len"});
    refused({"--dtype", "bf16"}, kExitUsage, {"--dtype bf16", "make train_gpt2cu"});
    refused({"--max-seq-len", "11"}, kExitUsage, {"--max-seq-len 11", "--seq-len 12"});
    refused({"--total-batch", "100"}, kExitUsage, {"--total-batch 100", "96"});
    refused({"--steps", "-1", "--batch", "200"}, kExitUsage,
            {p.train, "2400 of a step", "--steps", "--batch"});
    refused({"--total-batch", "999999999999984"}, kExitUsage,
            {"--total-batch 999999999999984", "micro-batches", "--batch"});
    refused({"--steps", "2147483647", "--batch", "1048576", "--total-batch", "880803840000"}, kExitUsage,
            {"--steps 2147483647", "cannot be counted", "fewer --steps"});
    refused({"--resume", "auto", "--out", "auto"}, kExitUsage, {"--resume auto", "--out FOLDER"});
}

TEST_CASE("bad input: the GPU program without a GPU") {
    const std::string program = program_path("train_gpt2cu");
    if (access(program.c_str(), X_OK) != 0) { return; }  // not built here
    Place p;
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    ProgramRun run = run_train(p.folder.path(), p.options({}), program);
    ProgramRun help = run_train(p.folder.path(), {"--help"}, program);
    unsetenv("CUDA_VISIBLE_DEVICES");
    CHECK(run.exit_code == kExitDevice);
    CHECK(run.out == "");
    for (const char* part : {"train_gpt2cu: no CUDA device", "./train_gpt2 trains on the CPU"}) {
        CHECK_MESSAGE(run.err.find(part) != std::string::npos, part, " in ", run.err);
    }
    CHECK(names_below(p.run).empty());
    CHECK(help.exit_code == kExitDone);
}

TEST_CASE("bad input: more than the memory holds") {
    Place p;
    auto refused = [&](const Words& changes, const std::string& shape, const Words& says) {
        check_refused(p, p.options(changes, shape), kExitDevice, says);
    };
    const std::string largest = "--layers 1024 --heads 1024 --channels 65536";
    refused({}, largest,
            {"out of memory", "1024 layers", "65536 channels", "is available", "--model d", "would"});
    write_token_shard(p / "long.bin", std::vector<uint16_t>(1 << 21, 65), 257);
    refused({"--batch", "1048576", "--seq-len", "1024", "--train-data", p / "long.bin"}, kTinyShape,
            {"out of memory", "--batch 1048576", "TiB", "is available", "would fit"});
    // every size at its largest: more bytes than 64 bits count
    refused({"--batch", "1048576", "--seq-len", "1048576", "--train-data", p / "long.bin"}, largest,
            {"out of memory", "--batch 1048576", "needs", "is available"});
}

TEST_CASE("bad input: run folders") {
    Place p;
    write_bytes(p / "file", "");
    for (const std::string& out : {p / "file/run", p / "file"}) {
        check_refused(p, p.options({"--out", out}), kExitUsage, {out, "cannot make or write", "Choose one"});
    }
    ProgramRun first =
        run_train(p.folder.path(), p.options({"--save-every", "2", "--steps", "4", "--max-seq-len", "16"}));
    REQUIRE_MESSAGE(first.exit_code == kExitDone, first.err);
    const std::string log = read_bytes(p.run + "/log.jsonl"), two = p.run + "/step_00000002";
    check_refused(p, p.options({}), kExitUsage,
                  {p.run, "holds a run already", "another --out", "--resume auto"});

    auto refused = [&](const Words& changes, int exit_code, const Words& says) {
        check_refused(p, p.options(changes), exit_code, says);
        CHECK(read_bytes(p.run + "/log.jsonl") == log);
    };
    refused({"--resume", p / "none"}, kExitBadInput,
            {p / "none", "no such checkpoint folder", "--resume auto"});
    refused(
        {"--resume", p.run}, kExitBadInput,
        {p.run, "a run folder, not a checkpoint", "--resume auto --out " + p.run, "step_00000004 --out NEW"});
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
    refused({"--resume", two, "--train-data", p.val}, kExitBadInput,
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
        std::string bytes = read_bytes(p.run + name);
        bytes[bytes.size() / 2] ^= 1;
        write_bytes(p.run + name, bytes);
    }
    refused({"--resume", two}, kExitBadInput,
            {two + "/model.safetensors is damaged", "found", "expected", "MANIFEST"});
    // all of them damaged: to start again would throw the run's log away
    refused({"--resume", "auto"}, kExitBadInput,
            {p.run, "no checkpoint in it is intact", two + "/model.safetensors is damaged",
             "step_00000004/optimizer.safetensors is damaged", "another --out"});
}

TEST_CASE("bad input: tokenizers and prompts") {
    Place p;
    auto tokenizer = [&](int vocab) {
        std::string tokens;
        for (int i = 0; i < vocab; i++) { tokens += std::string("\1") + (char)('a' + i % 26); }
        return header_bytes({20240328, 2, vocab, vocab - 1}) + tokens;
    };
    auto refused = [&](const Words& changes, int exit_code, const Words& says) {
        check_refused(p, p.options(changes), exit_code, says);
    };
    write_bytes(p / "tok257.bin", tokenizer(257));
    write_bytes(p / "tok300.bin", tokenizer(300));
    write_bytes(p / "cut.bin", tokenizer(257).substr(0, 1200));
    refused({"--tokenizer", p / "tok300.bin"}, kExitBadInput,
            {p / "tok300.bin", "300 tokens", p.train, "of 257"});
    refused({"--tokenizer", p / "cut.bin"}, kExitBadInput, {p / "cut.bin", "found", "expected"});
    refused({"--tokenizer", p / "none"}, kExitBadInput, {p / "none", "cannot open"});
    // said before the run, not when the first sample is due
    refused({"--tokenizer", p / "tok257.bin", "--prompt", "x"}, kExitUsage, {"prompt", "tokenizer.json"});
    write_shard(p / "300.bin", 300, 600);
    refused({"--train-data", p / "300.bin", "--val-data", "none", "--prompt", "x"}, kExitUsage,
            {"--prompt", "of 300", "--tokenizer"});
    ProgramRun run =
        run_train(p.folder.path(), p.options({"--tokenizer", p / "tok257.bin", "--sample-tokens", "5"}));
    CHECK_MESSAGE(run.exit_code == kExitDone, run.err);
}

TEST_CASE("bad input: val.json") {
    TempFolder folder;
    const std::string path = folder / "val.json";
    CHECK_FALSE(read_val_info(folder / "val.bin", 100).has_value());
    for (const auto& [text, found] : kBadValJson) {
        CAPTURE(text);
        write_bytes(path, text);
        check_error(error_of([&] { read_val_info(folder / "val.bin", 100); }), kExitBadInput,
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

    Place p;
    write_bytes(p / "val.json", "{");
    check_refused(p, p.options({}), kExitBadInput,
                  {p / "val.json", "found", "syntax error", "expected", "make_corpus"});
}

TEST_CASE("plan: what would fit in the memory there is") {
    const GPT2Config d12{1024, 257, 320, 12, 12, 768};
    // a model takes 100 bytes a layer and 1 a row
    Models models = [](const Options&) -> ModelFactory {
        return {.plan = [](const GPT2Config& c, int B, int, const ModelSettings&) {
            return MemoryPlan{.parameters = (int64_t)c.num_layers * 100 + B};
        }};
    };
    auto says = [&](int64_t available, int batch, int64_t total_batch) {
        Options o;
        o.batch = batch;
        o.seq_len = 16;
        o.total_batch = total_batch;
        MemoryPlan plan = models(o).plan(d12, o.batch, o.seq_len, {});
        plan.available = available;
        return error_of([&] { require_memory(plan, o, models, d12); });
    };
    CHECK(says(1264, 64, 0).exit_code == kExitDone);
    CHECK(says(-1, 64, 0).exit_code == kExitDone);  // unknown
    check_error(says(1263, 64, 0), kExitDevice, {"--batch 64", "--batch 32 would fit"});
    check_error(says(1204, 5, 0), kExitDevice, {"--batch 2 would fit"});
    check_error(says(1204, 5, 5 * 16), kExitDevice,
                {"--batch 1 would fit"});  // 2 rows do not divide --total-batch
    check_error(says(1200, 5, 0), kExitDevice, {"No batch size fits", "--model d11 --batch 1 would"});
    check_error(says(50, 5, 0), kExitDevice, {"No model with a vocabulary of 257 fits, whatever"});
    models = [](const Options&) -> ModelFactory {
        return {.plan = [](const GPT2Config& c, int, int T, const ModelSettings&) {
            return MemoryPlan{.parameters = (int64_t)c.num_layers * 100 + T};
        }};
    };
    check_error(says(115, 5, 0), kExitDevice, {"No model fits", "--seq-len: use a smaller one"});
}

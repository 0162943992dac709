// Writing text: the cache of keys and values changes nothing, texts stop and slide where they should and are never
// empty, and the sub-commands do what their help says.
#include <fcntl.h>
#include <unistd.h>

#include "dev/test/support/any_model.h"
#include "dev/test/support/train_program.h"
#include "llmc/host/base/text.h"
#include "llmc/host/tokens/dataloader.h"
#include "llmc/model/cpu/gpt2.h"
#include "llmc/model/eval/generate.h"
#include "llmc/model/run/samples.h"

using namespace llmc;

namespace {

// A byte-level model with logits of some size, as a file; size: of its weights. rows: of another vocabulary, of whose
// last tokens, from 457 on, the model is sure.
std::string write_random_model(const std::string& path, int positions, double size = 0.3, int rows = 257) {
    const GPT2Config c = {positions, rows, padded_vocab(rows), 2, 4, 32};
    GPT2Cpu model(c, 1, 2);
    for (int t = 0; t < kNumTensors; t++) {
        std::vector<float> x = random_vector<float>(tensor_total(c, t), 40 + t, size);
        if (t == kLn1w || t == kLn2w || t == kLnfw) {
            for (float& v : x) { v += 1; }
        }
        if (t == kWte) {
            for (size_t i = 457 * 32; i < x.size(); i++) { x[i] *= 30; }
        }
        model.load(State::kParameter, t, 0, x);
    }
    write_model_file(path, c, kModelFp32, reader(model));
    return path;
}

// two ways to the same logits differ by the order of their sums only
void check_logits(std::span<const float> found, std::span<const float> expected, double bound) {
    check_near("logits", found, expected, bound * largest(expected));
}

// computes the whole context again for each token
class UncachedDecoder : public Decoder {
public:
    explicit UncachedDecoder(const ModelSource& source)
        : model_(source.config(), 1, source.config().max_seq_len) {
        load_model(source, writer(&model_));
    }
    const GPT2Config& config() const override { return model_.config(); }
    std::span<const float> append(std::span<const int32_t> tokens) override {
        context_.insert(context_.end(), tokens.begin(), tokens.end());
        model_.evaluate({1, length(), context_, std::vector<int32_t>(context_.size(), kIgnoreTarget)});
        return model_.logits_last();
    }
    void clear() override { context_.clear(); }
    int length() const override { return (int)context_.size(); }

private:
    GPT2Cpu model_;
    std::vector<int32_t> context_;
};

// tokens of the fixture's BPE, which a text can give
void write_bpe_shard(const std::string& path) {
    std::vector<uint16_t> tokens;
    for (int32_t id : random_tokens(400, 457, 3)) { tokens.push_back((uint16_t)id); }
    write_token_shard(path, tokens, 457);
}

int most_likely(std::span<const float> logits) { return sample_token(logits, 0, 0, 0); }

}  // namespace

TEST_CASE_FIXTURE(InFolder, "generate: greedy text with the cache is that without it, over 500 tokens") {
    const ModelFile file(write_random_model(folder / "model.bin", 512));
    const std::unique_ptr<Decoder> cached = make_cpu_decoder(file);
    UncachedDecoder plain(file);
    const double bound = reordering(file.config(), 512);
    int32_t token = 256;
    int different = 0;
    for (int k = 0; k < 500; k++) {
        const std::span<const float> a = cached->append({&token, 1}), b = plain.append({&token, 1});
        check_logits(a, b, bound);
        const int best = most_likely(b);
        float second = -INFINITY;
        for (int v = 0; v < (int)b.size(); v++) {
            if (v != best) { second = std::max(second, b[(size_t)v]); }
        }
        // nearer than the two ways may differ, either may be the greatest
        different += most_likely(a) != best && b[(size_t)best] - second > 2 * bound * largest(b);
        token = best;
    }
    CHECK(different == 0);
    CHECK(cached->length() == 500);
}

TEST_CASE_FIXTURE(InFolder, "generate: a prompt at once, in parts or token by token gives the same logits") {
    const ModelFile file(write_random_model(folder / "model.bin", 400));
    const std::vector<int32_t> tokens = random_tokens(400, 257, 9);
    UncachedDecoder plain(file);
    const std::span<const float> expected = plain.append(tokens);
    const std::unique_ptr<Decoder> decoder = make_cpu_decoder(file);
    for (const std::vector<int>& cuts : {std::vector<int>{400}, {1, 399}, {127, 129, 144}, {399, 1}}) {
        decoder->clear();
        std::span<const float> found;
        size_t at = 0;
        for (int n : cuts) {
            found = decoder->append(std::span(tokens).subspan(at, (size_t)n));
            at += (size_t)n;
        }
        check_logits(found, expected, reordering(file.config(), 400));
    }
    check_error([&] { decoder->append(std::span(tokens).first(1)); }, kExitUsage, {});  // it is full
    decoder->clear();
    CHECK(error_of([&] { decoder->append({}); }).exit_code == kExitUsage);
    const int32_t outside = 257;
    CHECK(error_of([&] { decoder->append({&outside, 1}); }).exit_code == kExitUsage);
}

TEST_CASE_FIXTURE(InFolder, "generate: a context that is full goes on with its newer half") {
    const ModelFile file(write_random_model(folder / "model.bin", 16));
    const std::vector<int32_t> tokens = random_tokens(40, 257, 9);
    const std::unique_ptr<Decoder> decoder = make_cpu_decoder(file), other = make_cpu_decoder(file);
    std::vector<int> slides;
    Context context(decoder.get(), [&](int left) { slides.push_back(left); });
    std::vector<float> found;
    for (size_t k = 0; k < 20; k++) {
        const auto logits = context.add(std::span(tokens).subspan(k, 1));
        found.assign(logits.begin(), logits.end());
    }
    // full after 16: the 17th token slides, and three more follow
    CHECK(slides == std::vector<int>{8});
    CHECK(decoder->length() == 11);
    check_logits(found, other->append(std::span(tokens).subspan(9, 11)), reordering(file.config(), 16));
    Context too_long(decoder.get(), [&](int left) { slides.push_back(left); });
    too_long.add(tokens);
    CHECK(slides == std::vector<int>{8, 8});
    CHECK(decoder->length() == 8);
}

TEST_CASE("generate: text comes in whole characters and stops where it is told to") {
    const auto pieces = [](const std::vector<std::string>& stop, const std::vector<std::string>& in) {
        std::vector<std::string> out;
        TextStream stream(stop, [&](std::string_view text) { out.emplace_back(text); });
        bool go_on = true;
        for (const std::string& bytes : in) { go_on = go_on && stream.add(bytes); }
        if (go_on) { stream.finish(); }
        return out;
    };
    using Pieces = std::vector<std::string>;
    CHECK(pieces({}, {"a", "\xf0\x9f", "\x99", "\x82z"}) == Pieces{"a", "\xf0\x9f\x99\x82z"});
    CHECK(pieces({}, {"\xe2\x82"}) == Pieces{"\xe2\x82"});  // nothing is lost at the end
    CHECK(pieces({}, {"\xe2", "x"}) == Pieces{"\xe2x"});    // what can't become a character waits for nothing
    CHECK(pieces({}, {"\xff", "x"}) == Pieces{"\xff", "x"});
    CHECK(pieces({"\n\n"}, {"ab", "\n", "c", "\n", "\n", "d"}) == Pieces{"ab", "\nc"});
    CHECK(pieces({"stop"}, {"st", "o", "r", "est", "op", "x"}) == Pieces{"stor", "e"});
    CHECK(pieces({"xyz", "y"}, {"ax", "y"}) == Pieces{"a", "x"});
    CHECK(pieces({"abcd"}, {"xab", "c"}) == Pieces{"x", "abc"});
    for (const char* text : {"\xc3", "\xe2\x82", "\xf0\x9f\x99", "\xed\x9f", "\xf4\x8f"}) {
        CHECK(utf8_unfinished(std::string("x") + text) == std::string(text).size());
    }
    for (const char* text :
         {"", "x", "\xc3\xa9", "\xff", "\x80\x80", "\xc0", "\xed\xa0", "\xf4\x90", "\xe0\x80"}) {
        CHECK(utf8_unfinished(text) == 0);
    }
}

TEST_CASE("sampler: top_p keeps the most likely that together have the share") {
    const std::vector<float> logits = {std::log(0.1f), std::log(0.5f), std::log(0.15f), std::log(0.25f)};
    const auto kept = [&](double top_p, int top_k = 0) {
        std::string all(4, '.');
        for (double coin = 0; coin < 1; coin += 0x1p-10) {
            all[(size_t)sample_token(logits, 1.0, top_k, coin, top_p)] = 'x';
        }
        return all;
    };
    CHECK(kept(1) == "xxxx");
    CHECK(kept(0.95) == "xxxx");
    CHECK(kept(0.85) == ".xxx");
    CHECK(kept(0.7) == ".x.x");
    CHECK(kept(0.4) == ".x..");
    CHECK(kept(0) == ".x..");
    CHECK(kept(0.6, 2) == ".x..");  // of the two that top_k leaves, the first has two thirds
    CHECK(kept(0.7, 2) == ".x.x");
}

// ---- a text without a prompt -------------------------------------------------------------------

namespace {

constexpr int kEnd = kByteVocabSize - 1;

// what all but always comes next is the end of the text; 'x' is the only other token
std::vector<float> nearly_the_end() {
    std::vector<float> logits(kByteVocabSize, -1000.0f);
    logits['x'] = 0;
    logits[kEnd] = 30;
    return logits;
}

struct EndingDecoder : Decoder {
    const GPT2Config& config() const override { return config_; }
    std::span<const float> append(std::span<const int32_t> tokens) override {
        length_ += (int)tokens.size();
        return logits_;
    }
    void clear() override { length_ = 0; }
    int length() const override { return length_; }

private:
    GPT2Config config_ = {64, kByteVocabSize, kByteVocabSize, 1, 1, 8};
    std::vector<float> logits_ = nearly_the_end();
    int length_ = 0;
};

struct EndingModel : GPT2Cpu {
    EndingModel() : GPT2Cpu(tiny_config(), 1, 2) {}
    Evaluation evaluate(const Batch&) override { return {}; }
    std::span<const float> logits_last() const override { return logits; }
    std::vector<float> logits = nearly_the_end();
};

std::string run_sample(const std::string& prompt, double temperature) {
    RunPlan plan;
    plan.options.sample_every = 1;
    plan.options.prompt = prompt;
    plan.options.temperature = temperature;
    EndingModel model;
    plan.config.vocab_size = kByteVocabSize;
    return RunSamples(plan, kByteVocabSize).text(model, 1, 1);
}

// A tokenizer of 512 tokens, of which a text gives 457, and a model that is sure of the others.
struct EndsInConfig : InFolder {
    EndsInConfig() {
        succeeds({"export", write_random_model(folder / "m.bin", 64, 0.3, 512), "--hf", hf});
        fs::copy("dev/test/fixture/bpe/encoder.json", hf + "/vocab.json");
        fs::copy("dev/test/fixture/bpe/vocab.bpe", hf + "/merges.txt");
        Json added, last = Json::array();
        for (int id = 457; id < 512; id++) {
            added["<|" + std::to_string(id) + "|>"] = id;
            last.push_back(id);
        }
        write_bytes(hf + "/added_tokens.json", added.dump());
        config = Json::parse(read_bytes(hf + "/config.json"));
        config.update(
            Json{{"bos_token_id", 0}, {"eos_token_id", 9}, {"attn_pdrop", 0.1}, {"pad_token_id", 3}});
        write_bytes(hf + "/config.json", config.dump());
        ends = Json{{"eos_token_id", last}};
        expected = {0, last, 0.1, 3};
    }
    std::string succeeds(const Words& command) const { return run_well(folder.path(), command).out; }
    // what was exported has all that hf says
    void check_kept() const {
        CHECK(fields("/config.json") == expected);
        CHECK(same_files(out + "/added_tokens.json", hf + "/added_tokens.json"));
    }
    Json fields(const char* file) const {
        const Json all = Json::parse(read_bytes(out + file));
        return Json{all["bos_token_id"], all["eos_token_id"], all.value("attn_pdrop", Json()),
                    all.value("pad_token_id", Json())};
    }

    const std::string hf = folder / "hf", out = folder / "out";
    Json config, ends, expected;  // ends: for generation_config.json
};

// A run with GPT-2's kind of tokenizer, and what is exported of it.
struct ExportedRun : InFolder {
    ExportedRun() {
        for (int i = 0; i < 400; i++) {
            for (int id : t.encode("the kernel of rung " + std::to_string(i % 7) + " is the fastest. ")) {
                tokens.push_back((uint16_t)id);
            }
        }
        write_token_shard(data, tokens, 457);
        run_well(folder.path(), words(common +
                                      "--layers 2 --heads 2 --channels 16 --steps 30 --lr 0.01 --tokenizer "
                                      "dev/test/fixture/bpe --out " +
                                      run));
        run_well(folder.path(), {"export", run, "--hf", out});
    }
    ProgramRun ends(const Words& command) const { return run_train(folder.path(), command); }

    const Tokenizer t = Tokenizer::load("dev/test/fixture/bpe");
    std::vector<uint16_t> tokens = {456};
    const std::string data = folder / "train.bin", run = folder / "run", out = folder / "hf";
    const std::string common =
        "--train-data " + data + " --val-data none --seq-len 12 --batch 8 --sample-every 0 --quiet ";
};

}  // namespace

TEST_CASE("samples: without a prompt a text has a token before its end") {
    for (double temperature : {0.0, 0.8}) {
        CAPTURE(temperature);
        for (bool prompt : {false, true}) {
            EndingDecoder decoder;
            Context context(&decoder, [](int) {});
            const std::vector<int32_t> tokens =
                prompt ? std::vector<int32_t>{kEnd, 'a'} : std::vector<int32_t>{kEnd};
            SampleParams params;
            params.temperature = temperature;
            const Sample sample = write_sample(&context, Tokenizer::bytes(), tokens, params, [](auto) {});
            CHECK(sample.text == (prompt ? "" : "x"));
            CHECK(sample.ended == std::string("end_of_text"));
        }
        CHECK(run_sample("", temperature) == "x");
        CHECK(run_sample("a", temperature) == "a");
    }
    // of a vocabulary without a tokenizer, the tokens' numbers
    RunPlan plan;
    plan.config.vocab_size = 300;
    plan.options.temperature = 0, plan.options.sample_tokens = 2;
    EndingModel model;
    model.logits.assign(300, 0);
    model.logits[7] = 1;
    CHECK(RunSamples(plan, 300).text(model, 1, 1) == "7 7 ");
}

// ---- sub-commands ------------------------------------------------------------------------------

TEST_CASE_FIXTURE(InFolder, "sub-commands: generate") {
    const std::string model = write_random_model(folder / "model.bin", 64);
    const auto generate = [&](const std::string& options, const std::string& more = "") {
        Words all = words("generate " + model + " " + options);
        if (!more.empty()) { all.push_back(more); }
        return run_train(folder.path(), all);
    };
    const ProgramRun first = generate("--tokens 30 --seed 5 --json --prompt", "Hi \"there\"");
    CHECK(first.exit_code == kExitDone);
    const Json object = Json::parse(first.out);
    CHECK(object["prompt"] == "Hi \"there\"");
    CHECK((object["ids"].size() == 30 || object["ended"] == "end_of_text"));
    CHECK(generate("--tokens 30 --seed 5 --json --prompt", "Hi \"there\"").out == first.out);
    CHECK(generate("--tokens 30 --seed 6 --json --prompt", "Hi \"there\"").out != first.out);
    const ProgramRun empty = generate("--tokens 3 --prompt= --json");
    REQUIRE_MESSAGE(empty.exit_code == kExitDone, empty.err);
    CHECK(Json::parse(empty.out)["prompt"] == "");
    const ProgramRun plain = generate("--tokens 30 --seed 5 --prompt", "Hi \"there\"");
    std::string bytes = "Hi \"there\"";
    for (const auto& id : object["ids"]) { bytes += (char)id.get<int>(); }
    CHECK(plain.out == bytes + "\n");  // a pipe gets every byte as it is
    CHECK(contains(plain.err, model));
    // --no-bos: the first token is drawn behind the prompt alone
    const std::unique_ptr<Decoder> decoder = make_cpu_decoder(ModelFile(model));
    const int32_t letters[] = {256, 'H', 'i'};
    const int with_bos = most_likely(decoder->append(letters));
    decoder->clear();
    const int no_bos = most_likely(decoder->append(std::span(letters).last(2)));
    REQUIRE(with_bos != no_bos);
    const Json behind = Json::parse(generate("--tokens 1 --temperature 0 --json --prompt Hi --no-bos").out);
    CHECK(behind["ids"][0] == no_bos);
    CHECK(Json::parse(generate("--tokens 1 --temperature 0 --json --prompt Hi").out)["ids"][0] == with_bos);
    const ProgramRun several = generate("--tokens 5 --num-samples 3 --json");
    CHECK(std::count(several.out.begin(), several.out.end(), '\n') == 3);
    check_run(generate("--tokens 200 --stop zzzz --stats"), kExitDone,
              {"sees: it goes on from the last 32", "tokens/s", "ms a token"});
    check_run(generate("--tokens 70 --stop zzzz"), kExitDone, {"sees: it goes on from the last 32"});  // once
    using Says = std::pair<const char*, const char*>;
    for (const auto& [bad, says] :
         {Says{"--no-bos", "give a --prompt"}, Says{"--dtype bf16", "the CPU computes in fp32"},
          Says{"--temprature 0", "unknown option '--temprature'. Did you mean --temperature? See "},
          Says{"-t 0", "unknown option '-t'. See "},
          Says{"--tokens 1e2", "--tokens: '1e2' is not a whole number. Expected a whole number, 1 to 1,099,"},
          Says{"--top-p nan", "--top-p: 'nan' is out of range. Expected a number, 0 to 1. See "},
          Says{"--dtype fp8", "generate"}, Says{"--temperature -1", "generate"},
          Says{"--seed -1", "generate"}, Says{"--interactive --json", "generate"},
          Says{"--tokens", "generate"}, Says{"extra", "generate"},
          Says{"--seed 1 --seed=2", "--seed is given twice. Give it once. See "}}) {
        CAPTURE(bad);
        check_run(generate(bad), kExitUsage, {says});
    }
    check_run(run_train(folder.path(), {"generate", "--foo"}), kExitUsage, {"unknown option '--foo'"});
    CHECK(Json::parse(generate("--tokens 3 --json --prompt=--seed").out)["prompt"] == "--seed");
    CHECK(generate("--tokens 9 --seed 010").out == generate("--tokens 9 --seed 10").out);  // not octal
    const std::string help = run_well(folder.path(), {"generate", "--help"}).out;
    check_holds(help, {"--temperature", "--stop", "step_00001000", "Examples:"});
    CHECK(run_train(folder.path(), {"generate", folder / "nothing"}).exit_code == kExitBadInput);
    CHECK(run_train(folder.path(), {"generate", folder.path() + "/."}).exit_code == kExitDone);
}

TEST_CASE_FIXTURE(InFolder, "sub-commands: interactive text goes on from all before it, empty lines or not") {
    const std::string model = write_random_model(folder / "model.bin", 64);
    const auto generate = [&](const std::string& options, const std::string& typed) {
        write_bytes(folder / "typed", typed);
        const Words command = words("generate " + model + " --temperature 0 " + options);
        const std::string file = folder / "typed";
        const pid_t pid =
            start_prepared(folder.path(), command, [&] { dup2(open(file.c_str(), O_RDONLY), STDIN_FILENO); });
        const ProgramRun run = finish_train(folder.path(), pid);
        REQUIRE_MESSAGE(run.exit_code == kExitDone, run.err);
        return run.out;
    };
    const std::string whole = generate("--tokens 9 --prompt -", "the cat");  // with the prompt before
    REQUIRE(whole.size() == 7 + 9 + 1);
    CHECK(whole[7] != whole[9]);  // so that a wrong token of the first three would show
    CHECK(generate("--tokens 3 --interactive", "the cat\n\n\n") ==
          whole.substr(7, 3) + "\n" + whole.substr(10, 3) + "\n" + whole.substr(13, 3) + "\n");
}

TEST_CASE_FIXTURE(InFolder, "sub-commands: a model with more rows than tokens never draws them, keeps them") {
    const std::string bpe = "dev/test/fixture/bpe", shard = folder / "t.bin", hf = folder / "hf";
    const std::string padded = write_random_model(folder / "padded.bin", 64, 0.3, 512);
    write_bpe_shard(shard);
    const auto succeeds = [&](const Words& command) { return run_well(folder.path(), command); };
    const auto drawn = [&](const std::string& model, const std::string& tokenizer, int known) {
        const ProgramRun run = succeeds({"generate", model, "--tokenizer", tokenizer, "--json", "--tokens",
                                         "50", "--prompt", "the", "--temperature", "1"});
        const Json ids = Json::parse(run.out)["ids"];
        for (const auto& id : ids) { CHECK(id.get<int>() < known); }
        return run.err;
    };
    CHECK(contains(drawn(padded, bpe, 457),
                   "457 tokens, the model a vocabulary of 512: the rest is taken for padding"));
    succeeds({"export", padded, "--hf", hf, "--tokenizer", bpe});
    float before = 0, after = 0;
    ModelFile(padded).read(kWte, 511 * 32, {&before, 1});
    HfModel(hf).read(kWte, 511 * 32, {&after, 1});
    CHECK(after == before);
    CHECK(std::fabs(after) > 0);
    const ProgramRun tuned = succeeds(
        words("--model " + hf + " --train-data " + shard + " --val-data " + shard +
              " --ranks 2 --seq-len 32 --batch 2 --steps 2 --sample-every 1 --out " + (folder / "run")));
    CHECK(contains(tuned.err, "512 rows for the 457 tokens"));
    CHECK(contains(succeeds({"eval", folder / "run", "--data", shard}).out, "loss"));
    CHECK(contains(succeeds({"eval", padded, "--data", shard}).out, "loss"));  // no tokenizer says otherwise
    // what is too different is still another's
    write_token_shard(folder / "bytes.bin", std::vector<uint16_t>(100, 7), 257);
    Tokenizer::bytes().save(folder.path(), 64);
    for (const Words& command : {Words{"generate", padded, "--tokenizer", folder / "tokenizer.json"},
                                 Words{"eval", padded, "--data", folder / "bytes.bin"},
                                 Words{"eval", hf, "--data", folder / "bytes.bin"}}) {
        check_run(run_train(folder.path(), command), kExitBadInput, {"vocabulary of"});
    }
    // [PAD], which no text gives, needs no row
    const std::string pad = folder / "pad";
    fs::create_directory(pad);
    fs::copy(bpe + "/encoder.json", pad + "/vocab.json");
    fs::copy(bpe + "/vocab.bpe", pad + "/merges.txt");
    write_bytes(pad + "/added_tokens.json", "{\"[PAD]\": 457}");
    CHECK(Tokenizer::load(pad).vocab_size() == 458);
    CHECK(Tokenizer::load(pad).decode(457) == "[PAD]");
    for (int rows : {457, 458, 512}) {
        drawn(write_random_model(folder / "rows.bin", 64, 0.3, rows), pad, 458);
    }
    write_bytes(folder / "text", "the kernel of rung seven is the fastest one of them");
    run_well(folder.path(), {"--tokenizer", pad, "--out", folder / "s", folder / "text"},
             program_path("data/make_shards"));
    CHECK(TokenShard(folder / "s_train_000000.bin").vocab_size() == 457);
}

TEST_CASE_FIXTURE(EndsInConfig,
                  "sub-commands: a text ends where config.json says, the rest of which is kept") {
    const Words generate = {"generate", hf,       "--tokens", "300",    "--temperature",
                            "1",        "--json", "--prompt", "<|460|>"};
    CHECK(Json::parse(succeeds(generate))["ended"] == "tokens");
    write_bytes(hf + "/generation_config.json", ends.dump());
    const Json ended = Json::parse(succeeds(generate));
    CHECK(ended["ended"] == "end_of_text");
    for (const auto& id : ended["ids"]) { CHECK(id.get<int>() < 457); }
    succeeds({"export", hf, "--hf", out});
    check_kept();
    CHECK(fields("/generation_config.json") == Json{0, expected[1], nullptr, nullptr});
    // no token begins a text
    config["bos_token_id"] = nullptr;
    write_bytes(hf + "/config.json", config.dump());
    write_bytes(hf + "/vocab.json",
                changed(read_bytes(hf + "/vocab.json"), "<|endoftext|>", "x|endoftext|x"));
    check_run(run_train(folder.path(), {"generate", hf}), kExitUsage, {"give a --prompt"});
}

TEST_CASE_FIXTURE(EndsInConfig, "sub-commands: a text ends where config.json says, in a run from it, too") {
    const std::string run = folder / "run",
                      step = folder / "alone";  // the latter: a checkpoint without its run
    write_bytes(hf + "/generation_config.json", ends.dump());
    succeeds({"export", write_random_model(folder / "m.bin", 64, 0.02, 512), "--hf", folder / "small"});
    fs::rename(folder / "small/model.safetensors", hf + "/model.safetensors");
    write_bpe_shard(folder / "t.bin");
    const std::string train = "--train-data " + (folder / "t.bin") +
                              " --val-data none --seq-len 32 --batch 2 --save-every 2 " +
                              "--sample-every 0 --out " + run;
    succeeds(words("--model " + hf + " --steps 2 --lr 1e-6 " + train));
    succeeds(words("--resume auto --steps 4 " + train));
    copy_folder(run + "/step_00000004", step);
    for (const std::string& model : {run, step}) {
        CAPTURE(model);
        succeeds({"export", model, "--hf", out, "--force"});
        check_kept();
        CHECK(contains(succeeds({"generate", model, "--tokens", "2", "--prompt", "<|460|>"}), "<|460|>"));
    }
    write_bytes(run + "/step_00000004/config.json", "{");  // which model.bin does not need
    CHECK(!succeeds({"generate", run, "--tokens", "2"}).empty());
    for (const char* name : {"/vocab.json", "/added_tokens.json", "/tokenizer_config.json"}) {
        flip_byte(step + name, 3);
        check_run(run_train(folder.path(), {"generate", step}), kExitBadInput, {step + name + " is damaged"});
        flip_byte(step + name, 3);
    }
    const std::string manifest = read_bytes(step + "/MANIFEST");
    for (size_t end = 0; (end = manifest.find('\n', end) + 1) < manifest.size();) {
        write_bytes(step + "/MANIFEST", manifest.substr(0, end));
        check_run(run_train(folder.path(), {"generate", step}), kExitBadInput);
    }
}

TEST_CASE_FIXTURE(InFolder, "sub-commands: weights are used without their moments, but not if damaged") {
    const std::string run = folder / "run", step = run + "/step_00000003";
    write_token_shard(folder / "train.bin", std::vector<uint16_t>(400, 7), 257);
    run_well(folder.path(), words("--train-data " + (folder / "train.bin") +
                                  " --val-data none --seq-len 12 --batch 8 --quiet --sample-every 0 "
                                  "--steps 3 --layers 1 --heads 2 --channels 16 --out " +
                                  run));
    const Words generate = {"generate", step, "--tokens", "9", "--seed", "1"};
    const ProgramRun whole = run_well(folder.path(), generate);
    fs::remove(step + "/optimizer.safetensors");
    CHECK(run_well(folder.path(), generate).out == whole.out);
    for (const char* name : {"/model.safetensors", "/config.json", "/run.json"}) {
        const size_t last = fs::file_size(step + name) - 1;
        flip_byte(step + name, last);
        check_run(run_train(folder.path(), generate), kExitBadInput,
                  {step + name + " is damaged", "Name another step_ folder, or a run's model.bin"});
        flip_byte(step + name, last);
    }
}

TEST_CASE_FIXTURE(InFolder, "eval --stride: each token once, from what a row of that stride has before it") {
    const std::string path = write_random_model(folder / "model.bin", 16);
    constexpr int T = 8;
    const std::vector<std::vector<int32_t>> shards = {random_tokens(40, 256, 1), random_tokens(25, 256, 2),
                                                      random_tokens(5, 256, 3)};
    for (size_t s = 0; s < shards.size(); s++) {
        write_token_shard(folder / fmt::format("{}.shard", s),
                          std::vector<uint16_t>(shards[s].begin(), shards[s].end()), 257);
    }
    const auto eval = [&](const std::string& options) {
        Words all = {"eval", path, "--data", folder / "*.shard", "--seq-len", "8"};
        for (const std::string& word : words(options)) { all.push_back(word); }
        return run_train(folder.path(), all);
    };
    const ModelFile file(path);
    GPT2Cpu model(file.config(), 1, T);
    load_model(file, writer(&model));
    for (int stride : {1, 3, T}) {
        CAPTURE(stride);
        double nats = 0;
        for (const std::vector<int32_t>& shard : shards) {
            for (int i = 1; i < (int)shard.size(); i++) {
                const int begin = i <= T ? 0 : (i - T + stride - 1) / stride * stride;
                REQUIRE((begin == 0 || i - begin >= T - stride));
                Batch batch = {1, i - begin, {shard.begin() + begin, shard.begin() + i}, {}};
                batch.targets.assign((size_t)batch.T, kIgnoreTarget);
                batch.targets.back() = shard[(size_t)i];
                nats += model.evaluate(batch).losses.back();
            }
        }
        const ProgramRun run = eval(fmt::format("--json --batch 5 --stride {}", stride));
        REQUIRE(run.exit_code == kExitDone);
        const Json found = Json::parse(run.out);
        CHECK(found["tokens"] == 67);
        CHECK(found["stride"] == stride);
        CHECK(std::fabs(found["loss"].get<double>() * 67 / nats - 1) < 1e-5);
        const double bits = nats / std::log(2.0) / 67;
        CHECK(std::fabs(found["bits_per_byte"].get<double>() / bits - 1) < 1e-5);
        CHECK((run.err.find(stride == 1 ? "10 of 50 rows, about" : " rows, about") != run.err.npos) ==
              (stride < T));  // T: the second batch is the last
    }
    CHECK(eval("--json --stride 8").out == eval("--json").out);
    CHECK(eval("").err.find("rows") == std::string::npos);
    check_holds(eval("--stride 3").out, {"in rows of 8, each from 5 before it or more"});
    check_run(eval("--stride 9"), kExitUsage,
              {"--stride 9 is more than the 8 tokens of a row", "Give 1 to 8."});
    check_run(eval("--stride 0"), kExitUsage, {"--stride: '0' is out of range"});
    check_run(eval("--dtype bf16"), kExitUsage, {"--dtype bf16: the CPU computes in fp32"});
    check_run(run_train(folder.path(), {"eval", path, "--hellaswag", "x", "--stride", "2"}), kExitUsage,
              {"--stride needs --data"});
}

TEST_CASE_FIXTURE(ExportedRun,
                  "sub-commands: a run is exported; what is not finite, or cannot be printed, is said") {
    CHECK(fs::exists(run + "/tokenizer.json"));
    CHECK(names_below(out) == Words{"config.json", "generation_config.json", "merges.txt",
                                    "model.safetensors", "tokenizer.json", "tokenizer_config.json",
                                    "vocab.json"});
    check_run(ends({"export", run, "--hf", out}), kExitUsage, {"--force"});
    check_run(ends({"export", run, "--hf", out, "--force"}), kExitDone);
    check_run(ends({"export", run, "--hf", data}), kExitUsage, {"a file"});

    // what cannot be printed is not lost in silence
    for (const Words& command :
         {Words{"generate", run, "--prompt", "the kernel", "--tokens", "8"},
          Words{"eval", run, "--data", data}, Words{"report", run}, words(common + "--dry-run --model d1")}) {
        const pid_t pid =
            start_prepared(folder.path(), command, [] { dup2(open("/dev/full", O_WRONLY), STDOUT_FILENO); });
        check_run(finish_train(folder.path(), pid), kExitSaveFailed, {"cannot write to standard output"});
    }
    // nor are results that are not finite
    const std::string diverged = write_random_model(folder / "diverged.bin", 64, 1e30);
    write_token_shard(folder / "bytes.bin", std::vector<uint16_t>(200, 5), 257);
    for (const Words& command : {Words{"generate", diverged, "--prompt", "x"},
                                 Words{"eval", diverged, "--data", folder / "bytes.bin"}}) {
        check_run(ends(command), kExitDiverged, {"are not finite: it diverged in training"});
    }
}

TEST_CASE_FIXTURE(ExportedRun,
                  "sub-commands: a run is exported, and evaluated by each of its names the same") {
    std::string text, loss;
    for (const std::string& name :
         {run, run + "/model.bin", run + "/step_00000030", out, out + "/model.safetensors"}) {
        CAPTURE(name);
        const ProgramRun wrote =
            run_well(folder.path(), {"generate", name, "--prompt", "the kernel", "--tokens", "8"});
        const ProgramRun eval = run_well(folder.path(), {"eval", name, "--data", data});
        CHECK(wrote.out.starts_with("the kernel"));
        if (text.empty()) {
            text = wrote.out;
            loss = eval.out;
        }
        CHECK(wrote.out == text);
        CHECK(eval.out == loss);
    }
    // what eval prints fits together: each token but the first is predicted
    double nats = 0, perplexity = 0, bits = 0;
    long long count = 0, bytes = 0;
    REQUIRE(
        std::sscanf(loss.c_str(),
                    "tokens %lld, in rows of 12 loss %lf nats/token perplexity %lf bits/byte %lf, over %lld",
                    &count, &nats, &perplexity, &bits, &bytes) == 5);
    CHECK(count == (long long)tokens.size() - 1);
    long long expected = 0;
    for (uint16_t id : tokens) { expected += id == 456 ? 0 : (long long)t.decode(id).size(); }
    CHECK(bytes == expected);
    CHECK(std::fabs(std::exp(nats) / perplexity - 1) < 1e-3);
    CHECK(std::fabs(nats * (double)count / std::log(2.0) / (double)bytes / bits - 1) < 1e-3);

    const Json object = Json::parse(ends({"eval", run, "--data", data, "--json"}).out);
    CHECK(object["tokens"] == count);
    CHECK(object["bytes"] == bytes);
    CHECK(object["evaluations"] == 4);  // of the names above three are the run's
    const auto others = [&](const std::string& model, const std::string& shard) {
        return Json::parse(
            ends({"eval", model, "--data", folder / shard, "--max-tokens", "50", "--json"}).out);
    };
    CHECK(others(run, "t*n.bin")["evaluations"] == 1);
    CHECK(!others(out, "train.bin").contains("evaluations"));
    std::filesystem::remove(run + "/evals.jsonl");
    std::filesystem::create_directory(run + "/evals.jsonl");
    const ProgramRun uncounted = ends({"eval", run, "--data", data, "--json"});
    CHECK(!Json::parse(uncounted.out).contains("evaluations"));
    check_holds(uncounted.err, {"evals.jsonl: Is a directory: this evaluation is not counted"});
    CHECK(std::fabs(object["loss"].get<double>() - nats) < 1e-4);
    CHECK(std::fabs(object["bits_per_byte"].get<double>() - bits) < 1e-4);
    check_run(ends({"eval", run, "--data", data, "--json", "--per-question"}), kExitUsage);
    check_run(ends({"eval", run, "--data", data, "--max-tokens", "0"}), kExitUsage,
              {"--max-tokens: '0' is out of range. Expected a whole number, -1 or 1 to 10^15."});
}

TEST_CASE_FIXTURE(ExportedRun, "sub-commands: a run is exported, and trained on where it ended") {
    const std::string more =
        common + "--steps 2 --prompt the --model " + out + " --out " + (folder / "tuned");
    check_run(ends(words(more + " --export-hf " + out)), kExitUsage,  // before it trains, not after
              {"not an empty folder. It holds no export of this run"});
    check_run(ends(words(more + " --export-hf " + (folder / "hf2"))), kExitDone);
    // what the run leaves by itself is what `export` makes of it; going on replaces it
    run_well(folder.path(), {"export", folder / "tuned", "--hf", folder / "hf3"});
    CHECK(names_below(folder / "hf2") == names_below(out));
    for (const std::string& name : names_below(folder / "hf3")) {
        if (name == "config.json") { continue; }  // the run has noted itself there
        CAPTURE(name);
        CHECK(same_files(folder / "hf2/" + name, folder / "hf3/" + name));
    }
    CHECK_FALSE(same_files(folder / "hf2/model.safetensors", out + "/model.safetensors"));
    check_run(ends(words(more + " --resume auto --export-hf " + (folder / "hf2"))), kExitDone);
    CHECK(fs::exists(folder / "tuned/tokenizer.json"));
    std::vector<double> losses;
    for (const std::string& log : {run, folder / "tuned"}) {
        for (const Json& line : read_log(log)) {
            if (line.contains("train_loss")) { losses.push_back(line["train_loss"].get<double>()); }
        }
    }
    REQUIRE(losses.size() == 32);
    const double before = losses[29], after = losses[30];
    CHECK(std::fabs(after - before) < 0.5);  // a new model begins near ln 457 = 6.1
    CHECK(before < 4);
}

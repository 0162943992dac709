// Everything that reads what comes from outside: see readers.h. At the end libFuzzer's entry: FUZZ_READER=name says what reads
// its inputs; run.sh builds and runs it.
#include "dev/test/fuzz/readers.h"

#include <unistd.h>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "data/inputs.h"
#include "dev/test/support/debug_state.h"
#include "llmc/host/base/error.h"
#include "llmc/host/files/file_io.h"
#include "llmc/host/files/json.h"
#include "llmc/host/log/run_log.h"
#include "llmc/host/options/options.h"
#include "llmc/host/options/table.h"
#include "llmc/host/tokens/dataloader.h"
#include "llmc/host/tokens/tokenizer.h"
#include "llmc/model/formats/checkpoint.h"

namespace llmc {

namespace {

namespace fs = std::filesystem;

using Seeds = std::vector<std::string>;

volatile float sink;  // so that what was read is used

void put(const std::string& path, const std::string& bytes) {
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file.write(bytes.data(), (std::streamsize)bytes.size());
}

std::string get(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream bytes;
    bytes << file.rdbuf();
    return bytes.str();
}

[[noreturn]] void must_not(const std::string& what) { throw std::logic_error(what); }

void use(State, int, int64_t, std::span<const float> values) {
    for (float x : values) { sink = x; }
}

GPT2Config small_config() { return {8, 11, 64, 1, 1, 4}; }

ReadTensor small_values() {
    return [](State, int tensor, int64_t first, std::span<float> values) {
        for (size_t i = 0; i < values.size(); i++) {
            values[i] = (float)(tensor + 1) / (float)(first + (int64_t)i + 2);
        }
    };
}

// ---- models ------------------------------------------------------------------------------------

std::string model_bytes(const std::string& folder, int32_t version) {
    write_model_file(folder + "/seed.bin", small_config(), version, small_values());
    return get(folder + "/seed.bin");
}

void read_model(const std::string& path, const std::string&) { load_model(ModelFile(path), use); }

Seeds model_seeds(const std::string& folder) {
    return {model_bytes(folder, kModelFp32), model_bytes(folder, kModelBf16)};
}

void read_safetensors(const std::string& path, const std::string&) {
    const SafetensorsFile file(path);
    for (const SafetensorsEntry& e : file.entries()) {
        if (e.type == TensorType::kOther) { continue; }
        std::vector<float> values((size_t)e.elements);
        file.read(e, 0, values);
        use(State::kParameter, 0, 0, values);
    }
}

Seeds safetensors_seeds(const std::string& folder) {
    Seeds all;
    for (TensorType type : {TensorType::kF32, TensorType::kF16, TensorType::kBF16}) {
        write_safetensors(folder + "/seed", {{"b", {2, 3}}, {"a", {4}}, {"none", {0}}}, type,
                          [](size_t, int64_t, std::span<float> x) { std::fill(x.begin(), x.end(), 1.5f); });
        all.push_back(get(folder + "/seed"));
    }
    return all;
}

// a checkpoint of which the first byte says which file the rest is; MANIFEST vouches for it, unless it is
// MANIFEST
constexpr const char* kFiles[] = {"model.safetensors", "config.json", "optimizer.safetensors", "run.json",
                                  "MANIFEST"};

std::string good_checkpoint(const std::string& folder) {
    const std::string path = checkpoint_name(folder + "/good", 3);
    if (!fs::exists(path)) {
        RunRecord record;
        record.state = {3, 2, 42, 8, 4};
        record.descent = {{"0123456789abcdef", 0}};
        record.train_data = {{"a.bin", 12, 99, "1 2 3 4.5 6.7"}};
        record.settings = {{"lr", "0.1"}};
        record.val_loss = 1.5;
        record.best = {2, 1.25};
        make_writable_folder(folder + "/good");
        save_checkpoint(folder + "/good", small_config(), record, small_values());
    }
    return path;
}

void read_checkpoint(const std::string& folder, const std::string& bytes) {
    if (bytes.empty()) { return; }
    const std::string good = good_checkpoint(folder), path = folder + "f";
    const size_t which = (uint8_t)bytes[0] % std::size(kFiles);
    fs::create_directories(path);
    std::string manifest;
    for (size_t i = 0; i < std::size(kFiles); i++) {
        std::string content = i == which ? bytes.substr(1) : i == 4 ? manifest : get(good + "/" + kFiles[i]);
        put(path + "/" + kFiles[i], content);
        Hasher hasher;
        hasher.add(content.data(), content.size());
        manifest += fmt::format("{} {:016x} {}\n", content.size(), hasher.digest().xxh3, kFiles[i]);
    }
    const Checkpoint checkpoint(path);
    load_checkpoint(checkpoint, use);
    const TrainingState& state = checkpoint.record().state;
    if (state.step < 0 || state.updates < 0 || state.updates > state.step) { must_not("steps out of range"); }
    if (which == 4 && bytes.substr(1) != get(good + "/MANIFEST")) { must_not("another MANIFEST is taken"); }
}

Seeds checkpoint_seeds(const std::string& folder) {
    Seeds all;
    for (size_t i = 0; i < std::size(kFiles); i++) {
        all.push_back(std::string(1, (char)i) + get(good_checkpoint(folder) + "/" + kFiles[i]));
    }
    return all;
}

void read_run_record(const std::string&, const std::string& bytes) {
    const std::string text = to_json(parse_run_record(bytes, "f.json"));
    if (to_json(parse_run_record(text, "again")) != text) { must_not("a record changes when it is written"); }
}

// the log of a run, and going on in it
void read_log(const std::string& path, const std::string& bytes) {
    descent_of_log(bytes, "log.jsonl");
    { RunJournal log(fs::path(path).parent_path(), 5, log_start({{"0123456789abcdef", 0}}, 5)); }
    const std::string after = get(path);
    if (after.empty() || after.back() != '\n') { must_not("half a line is left"); }
}

void read_debug_state(const std::string& path, const std::string&) {
    const DebugState state(path, small_config());
    for (int t = 0; t < kNumTensors; t++) { use(State::kParameter, t, 0, state.gradients[t]); }
    use(State::kParameter, 0, 0, state.logits);
    for (int32_t token : state.batch.tokens) {
        if (token < 0 || token >= 11) { must_not("a token outside of the vocabulary"); }
    }
}
Seeds debug_state_seeds(const std::string&) {
    const int32_t header[] = {kDebugStateMagic, kDebugStateVersion, 1, 2};
    std::string bytes(1024 + 4 * (2 * 2 + 2 * 11 + 1 + (size_t)file_elements(small_config())), '\0');
    std::memcpy(bytes.data(), header, sizeof(header));
    return {bytes};
}

// ---- data --------------------------------------------------------------------------------------

void read_shard(const std::string& path, const std::string&) {
    const ShardSet set(path);
    Batch batch;
    const int end = set.vocab_size() - 1;
    using enum ValidationData::Align;
    for (auto align : {kWindow, kDocument, kAuto}) {
        const ValidationData data(path, 4, align, end, -1);
        for (int64_t row = 0; row < std::min<int64_t>(data.num_rows(), 64); row += 3) {
            data.read(row, 3, &batch);
        }
    }
    const DataLoader loader(path, 4, 1);
    for (int64_t row = 0; row < 16; row += 2) {
        loader.prefetch(row, 2);
        loader.read(row, 2, &batch);
        for (int32_t token : batch.tokens) {
            if (token < 0 || token > end) { must_not("a token outside of the vocabulary"); }
        }
    }
}
Seeds shard_seeds(const std::string& folder) {
    std::vector<uint16_t> tokens;
    for (int i = 0; i < 300; i++) { tokens.push_back((uint16_t)(i % 7 == 0 ? 256 : i % 256)); }
    write_token_shard(folder + "/seed.bin", tokens, 257);
    std::string ours = get(folder + "/seed.bin"), others = ours;
    std::memset(others.data() + 12, 0, 4);
    return {ours, others};
}

void read_val(const std::string& path, const std::string&) {
    const std::string shard = fs::path(path).replace_extension(".bin");
    for (const auto& info = read_val_info(shard, 1000); const auto& probe : info->probes) {
        for (auto [at, length] : probe.spans) {
            if (at < 1 || length < 1 || at + length > 1000) { must_not("a probe outside of the shard"); }
        }
    }
}

// ---- text --------------------------------------------------------------------------------------

void read_tokenizer(const std::string& path, const std::string&) {
    const Tokenizer t = Tokenizer::load(path);
    std::vector<int> ids;
    for (int id = 0; id < t.vocab_size(); id++) { ids.push_back(id); }
    for (unsigned char c : t.printable(ids)) {
        if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7f) { must_not("a control character is printed"); }
    }
    if (t.end_of_text() >= t.vocab_size()) { must_not("an end of text outside of the vocabulary"); }
    if (!t.can_encode()) { return; }
    const std::string text = "Hello  world's\n12\xc3\xa9\xff!";
    std::string back;
    for (int id : t.encode(text)) { back += t.decode(id); }
    if (back != text) { must_not("a text is not what it was"); }
}

Seeds tokenizer_seeds(const std::string&) {
    std::string bytes(1024, '\0');
    const int32_t header[] = {20240328, 2, 3, 2};
    std::memcpy(bytes.data(), header, sizeof(header));
    return {bytes + std::string("\1a\3bcd\2\xc3\xa9", 9)};
}

Seeds tokenizer_json_seeds(const std::string& folder) {
    Tokenizer::bytes().save(folder, 64);
    const std::string all_bytes = get(folder + "/tokenizer.json");
    Tokenizer::load("dev/test/fixture/bpe").save(folder, 64);
    return {all_bytes, get(folder + "/tokenizer.json")};
}

// the first byte: whether the rest is the vocabulary or the merges
void read_bpe(const std::string& folder, const std::string& bytes) {
    if (bytes.empty()) { return; }
    const bool merges = bytes[0] % 2 != 0;
    put(folder + "vocab.json", merges ? get("dev/test/fixture/bpe/encoder.json") : bytes.substr(1));
    put(folder + "merges.txt", merges ? bytes.substr(1) : get("dev/test/fixture/bpe/vocab.bpe"));
    read_tokenizer(folder + "vocab.json", bytes);
}
Seeds bpe_seeds(const std::string&) {
    return {std::string(1, '\0') + get("dev/test/fixture/bpe/encoder.json"),
            "\1" + get("dev/test/fixture/bpe/vocab.bpe")};
}

void read_json(const std::string&, const std::string& bytes) { parse_json(bytes, "f.json"); }

// however it is cut, the same objects come; the first byte says where
void read_json_lines(const std::string&, const std::string& bytes) {
    if (bytes.empty()) { return; }
    std::string found[2];
    const size_t rest = bytes.size() - 1, cuts[2] = {rest, (uint8_t)bytes[0] % (rest + 1)};
    for (int way = 0; way < 2; way++) {
        JsonLines lines([&](const JsonValue& object, const std::string& where) {
            found[way] += text_field(object, "text", where) + where;
        });
        const auto* data = reinterpret_cast<const uint8_t*>(bytes.data()) + 1;
        lines.begin_file("f.json");
        lines.add(data, cuts[way]);
        lines.add(data + cuts[way], rest - cuts[way]);
        lines.end_file();
    }
    if (found[0] != found[1]) { must_not("what comes depends on how the bytes are cut"); }
}

void read_eval_file(const std::string& path, const std::string&) {
    const EvalFile file(path);
    const auto check = [&](std::span<const uint16_t> tokens) {
        if (tokens.empty()) { must_not("a part of an example is empty"); }
        for (uint16_t token : tokens) {
            if (token >= file.vocab_size()) { must_not("a token outside of the vocabulary"); }
        }
    };
    for (const EvalExample& example : file.examples()) {
        if (example.label < 0 || example.label >= kEvalEndings) { must_not("no ending is the right one"); }
        check(example.context);
        for (const auto& ending : example.endings) { check(ending); }
    }
}
Seeds eval_file_seeds(const std::string& folder) {
    EvalFileWriter file(257);
    file.add(2, {256, 65, 66}, {{{67}, {68, 69}, {70}, {71, 72, 73}}}, "seed");
    file.add(0, {74}, {{{75}, {76}, {77}, {78}}}, "seed");
    file.write(folder + "/seed.bin");
    return {get(folder + "/seed.bin")};
}

// ---- options -----------------------------------------------------------------------------------

Options parse(const std::vector<std::string>& words) {
    std::vector<const char*> argv = {"train_gpt2"};
    for (const std::string& word : words) { argv.push_back(word.c_str()); }
    return parse_options((int)argv.size(), argv.data(), Program::kCpu).value_or(Options());
}

void read_config_file(const std::string& path, const std::string& bytes) {
    Options scratch;  // most inputs end here, before the parser of all options
    read_config(bytes, "f.toml", trainer_table(&scratch));
    const std::string text = config_text(parse({"--config", path}));
    put(path, text);
    if (config_text(parse({"--config", path})) != text) {
        must_not("a configuration changes when it is written");
    }
}

void read_command_line(const std::string&, const std::string& bytes) {
    if (bytes.size() > 128 << 10) { return; }  // more than Linux takes for one argument
    std::vector<std::string> words;
    std::istringstream in(bytes);
    for (std::string word; std::getline(in, word);) {
        word = word.substr(0, word.find('\0'));
        for (const char* acts : {"--config", "--help", "--version", "-h"}) {
            if (word.starts_with(acts)) { return; }
        }
        words.push_back(word);
    }
    parse(words);
}

}  // namespace

const std::vector<ReaderUnderTest>& readers_under_test() {
    const auto are = [](const Seeds& texts) { return [texts](const std::string&) { return texts; }; };
    const auto record = [](const std::string& folder) {
        return Seeds{get(good_checkpoint(folder) + "/run.json")};
    };
    static const std::vector<ReaderUnderTest> all = {
        {"model", "f.bin", read_model, model_seeds},
        {"safetensors", "f.safetensors", read_safetensors, safetensors_seeds},
        {"checkpoint", "", read_checkpoint, checkpoint_seeds},
        {"run_record", "", read_run_record, record},
        {"log", "log.jsonl", read_log,
         are({log_start({{"0123456789abcdef", 0}}, 0) +
              "{\"step\":0,\"train_loss\":1.5}\n{\"step\":7,\"val_loss\":1}\n{\"st"})},
        {"debug_state", "f.bin", read_debug_state, debug_state_seeds},
        {"shard", "f.bin", read_shard, shard_seeds},
        {"val_info", "f.json", read_val,
         are({"{\"entropy_nats_per_token\": 0.5, \"tokens\": 999, \"probes\": {\"sums\": [[1, 2], [900, 3]], "
              "\"b\": []}}"})},
        {"tokenizer", "f.bin", read_tokenizer, tokenizer_seeds},
        {"tokenizer_json", "tokenizer.json", read_tokenizer, tokenizer_json_seeds},
        {"bpe", "", read_bpe, bpe_seeds},
        {"json", "", read_json, are({"{\"a\": [1, -2.5e3, \"x\\u00e9\", null, true], \"b\": {\"c\": {}}}"})},
        {"json_lines", "", read_json_lines,
         are({"\x09{\"text\": \"a\\n\"}\r\n\n{\"id\": 1, \"text\": \"\\u00e9\"}\n{\"text\": \"\"}"})},
        {"eval_file", "f.bin", read_eval_file, eval_file_seeds},
        {"config", "f.toml", read_config_file,
         are({config_text(Options()), "lr = 0.1\n[x]\nmodel = \"d12\" # a\n"})},
        {"command_line", "", read_command_line,
         are({"--lr\n0.1\n--steps=5\n-b\n4\n-nk\n2\n--keep-best", "-e\nd12\n-x\n-1"})}};
    return all;
}

void check_reader(const ReaderUnderTest& reader, const std::string& folder, const std::string& bytes) {
    const std::string path = folder + "/" + reader.file;
    try {
        if (!reader.file.empty()) { put(path, bytes); }
        reader.read(path, bytes);
    } catch (const Error& e) {
        const std::string message = e.what();
        if (e.exit_code != kExitBadInput && e.exit_code != kExitUsage) {
            must_not(fmt::format("exit code {}: {}", e.exit_code, message));
        }
        const bool of_file = reader.read != read_command_line && reader.read != read_config_file;
        const bool named =
            message.find("/f") != std::string::npos || message.find("f.json") != std::string::npos ||
            message.find(folder) != std::string::npos || message.find("log.jsonl") != std::string::npos;
        if (of_file && !named) { must_not("the file is not named: " + message); }
    }
}

}  // namespace llmc

// ---- libFuzzer ---------------------------------------------------------------------------------

static const llmc::ReaderUnderTest* fuzzed = nullptr;
static std::string fuzz_folder;

// writes the seeds into FUZZ_SEEDS, which is among the folders of inputs
extern "C" int LLVMFuzzerInitialize(int*, char***) {
    const char *name = std::getenv("FUZZ_READER"), *seeds = std::getenv("FUZZ_SEEDS");
    for (const llmc::ReaderUnderTest& r : llmc::readers_under_test()) {
        if (name != nullptr && std::string(name) == r.name) { fuzzed = &r; }
    }
    if (fuzzed == nullptr) {
        for (const llmc::ReaderUnderTest& r : llmc::readers_under_test()) { std::puts(r.name); }
        std::exit(2);
    }
    fuzz_folder = std::string(access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp") + "/plumb_fuzz_" +
                  std::to_string(getpid());
    std::filesystem::create_directories(fuzz_folder);
    std::atexit([] { std::filesystem::remove_all(fuzz_folder); });
    int number = 0;
    for (const std::string& bytes : fuzzed->seeds(fuzz_folder)) {
        if (seeds != nullptr) { llmc::put(fmt::format("{}/seed{}", seeds, number++), bytes); }
    }
    return 0;
}

// what check_reader() throws is a finding
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    llmc::check_reader(*fuzzed, fuzz_folder, {reinterpret_cast<const char*>(data), size});
    return 0;
}

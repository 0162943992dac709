// Files of models, llm.c's and Hugging Face's: what is written is read back, to the bit or rounded; whatever is wrong
// in one is refused with what was found and what was expected.
#include <cstring>
#include <random>

#include "dev/test/support/model_tests.h"
#include "dev/test/support/train_program.h"
#include "llmc/host/files/json.h"
#include "llmc/host/tokens/tokenizer.h"
#include "llmc/model/cpu/gpt2.h"
#include "llmc/model/formats/hf_model.h"
#include "llmc/model/run/hf_export.h"

using namespace llmc;

namespace {

GPT2Cpu random_model() {
    GPT2Cpu model(tiny_config(), 2, 9);
    fill_states(&model, 5);
    zero_padding(&model);
    return model;
}

// a folder of such a model in Hugging Face's format
struct HfFolder {
    TempFolder folder;
    const std::string hf = folder / "hf", file = hf + "/model.safetensors", config = hf + "/config.json";
    const GPT2Cpu model = random_model();
    HfFolder() { write(); }
    void write() const { write_hf_model(hf, ModelInMemory(model), FloatType::kFp32, 36); }
    std::string operator/(const std::string& name) const { return folder / name; }
};

// model.safetensors taken apart, so that tests can change it and put it together
struct Parts {
    std::vector<SafetensorsTensor> tensors;
    std::vector<std::vector<float>> values;
};

Parts take_apart(const std::string& path) {
    const SafetensorsFile file(path);
    Parts parts;
    for (const SafetensorsEntry& e : file.entries()) {
        parts.tensors.push_back({e.name, e.shape});
        parts.values.emplace_back((size_t)e.elements);
        file.read(e, 0, parts.values.back());
    }
    return parts;
}

void put_together(const std::string& path, const Parts& parts) {
    write_safetensors(path, parts.tensors, TensorType::kF32,
                      [&](size_t i, int64_t first, std::span<float> values) {
                          const float* from = parts.values[i].data() + first;
                          std::copy(from, from + values.size(), values.begin());
                      });
}

size_t index_of(const Parts& parts, const std::string& name) {
    for (size_t i = 0; i < parts.tensors.size(); i++) {
        if (parts.tensors[i].name == name) { return i; }
    }
    FAIL("no tensor ", name);
    return 0;
}

void add(Parts* parts, const std::string& name, const std::vector<int64_t>& shape,
         const std::vector<float>& values) {
    parts->tensors.push_back({name, shape});
    parts->values.push_back(values);
}

void check_same_parameters(const ModelSource& found, const GPT2Cpu& expected) {
    for (int t = 0; t < kNumTensors; t++) {
        std::vector<float> ours((size_t)tensor_total(found.config(), t));
        for (size_t at = 0; at < ours.size(); at += 17) {  // in pieces that begin and end anywhere
            found.read(t, (int64_t)at, std::span(ours).subspan(at, std::min<size_t>(17, ours.size() - at)));
        }
        check_same(kTensors[t].name, ours, whole_tensor(expected, State::kParameter, t));
    }
}

// this is no GPT-2, which the message says
void check_refused(const std::string& path, const std::string& says) {
    check_error([&] { HfModel model(path); }, kExitBadInput, {says});
}

constexpr int32_t kMin = std::numeric_limits<int32_t>::min(), kMax = std::numeric_limits<int32_t>::max();

std::string good_file() {
    TempFolder folder;
    write_model_file(folder / "model.bin", tiny_config(), kModelFp32, reader(random_model()));
    return read_bytes(folder / "model.bin");
}

Error model_error(const std::string& path) {
    return error_of([&] { ModelFile file(path); });
}

// what bf16 has on both sides of x, by its definition: the upper half of the bits, and the next
uint16_t nearest_bf16(float x) {
    uint16_t below = (uint16_t)(std::bit_cast<uint32_t>(x) >> 16);
    auto value = [](uint16_t bits) { return (double)std::bit_cast<float>((uint32_t)bits << 16); };
    double low = std::fabs(x - value(below)), high = std::fabs(value(below + 1) - x);
    return low < high || (low == high && below % 2 == 0) ? below : below + 1;
}

}  // namespace

TEST_CASE_FIXTURE(InFolder, "model file: fp32 keeps every bit, in file order") {
    GPT2Config c = tiny_config();
    GPT2Cpu model = random_model(), other(c, 1, 2);
    std::vector<float> special = {-0.0f, 0x1p-149f, -0x1.fffffep127f};
    model.load(State::kParameter, kQkvb, 1, special);
    write_model_file(folder / "model.bin", c, kModelFp32, reader(model));
    ModelFile file(folder / "model.bin");
    CHECK(file.config() == c);
    load_model(file, writer(&other));
    std::vector<float> expected = whole_state(model, State::kParameter);
    check_same("read back", whole_state(other, State::kParameter), expected);

    std::string bytes = read_bytes(folder / "model.bin");  // as llm.c lays it out
    REQUIRE(bytes.size() == 1024 + 4 * expected.size());
    CHECK((bytes.substr(0, 1024) == header_bytes({20240326, 3, 9, 37, 3, 2, 14, 64})));
    CHECK(std::memcmp(bytes.data() + 1024, expected.data(), 4 * expected.size()) == 0);
    std::vector<float> x(3);
    for (int64_t first : {(int64_t)-1, tensor_total(c, kFcw) - 2, INT64_MAX - 1}) {
        check_error([&] { file.read(kFcw, first, x); }, kExitUsage, {"range"});
    }
}

TEST_CASE("model file: bf16 is rounded to nearest even") {
    struct Row {
        uint32_t fp32;
        uint16_t bf16;
    };
    const Row rows[] = {
        {0x3f800000, 0x3f80}, {0x3f808000, 0x3f80}, {0x3f818000, 0x3f82},  // one; ties: to even
        {0x3f807fff, 0x3f80}, {0x3f808001, 0x3f81}, {0xbf818000, 0xbf82},
        {0x00000000, 0x0000}, {0x80000000, 0x8000},                        // both zeros
        {0x00000001, 0x0000}, {0x00008000, 0x0000}, {0x00008001, 0x0001},  // denormal
        {0x00018000, 0x0002}, {0x807f8000, 0x8080}, {0x807fffff, 0x8080},  // up to the smallest normal number
        {0x7f7f7fff, 0x7f7f}, {0xff7f7fff, 0xff7f},  // the largest; what is over it: test_checkpoint.cpp
    };
    TempFolder folder;
    GPT2Config c = tiny_config();
    GPT2Cpu model(c, 1, 2);
    std::vector<float> wte((size_t)tensor_total(c, kWte)), found(wte.size());
    std::vector<float> expected(wte.size());
    std::mt19937 random(7);
    for (size_t i = 0; i < wte.size(); i++) {
        bool listed = i < std::size(rows);
        wte[i] = std::bit_cast<float>(listed ? rows[i].fp32 : (uint32_t)random());
        while (!listed && !std::isfinite(nearest_bf16(wte[i]) * wte[i])) {
            wte[i] = std::bit_cast<float>((uint32_t)random());
        }
        expected[i] = std::bit_cast<float>((uint32_t)(listed ? rows[i].bf16 : nearest_bf16(wte[i])) << 16);
    }
    model.load(State::kParameter, kWte, 0, wte);
    write_model_file(folder / "model.bin", c, kModelBf16, reader(model));
    CHECK(fs::file_size(folder / "model.bin") == 1024 + 2 * (size_t)file_elements(c));
    ModelFile file(folder / "model.bin");
    CHECK(file.config() == c);
    file.read(kWte, 0, found);
    check_same("bf16", found, expected);
    check_error([&] { write_model_file(folder / "no.bin", c, 4, reader(model)); }, kExitUsage, {"3 or 5"});
    CHECK_FALSE(fs::exists(folder / "no.bin"));
}

TEST_CASE_FIXTURE(InFolder, "model file: tensors larger than the pieces they are moved in") {
    GPT2Config c{4, 33000, 33024, 2, 1, 32};  // wte: 1,056,768 elements, a piece is 1,048,576
    // a number for each place, exact in float
    auto value = [](int tensor, int64_t i) { return (float)(i % 1000003 + 1000003 * (tensor % 8)); };
    write_model_file(folder / "model.bin", c, kModelFp32,
                     [&](State state, int tensor, int64_t first, std::span<float> x) {
                         CHECK(state == State::kParameter);
                         for (size_t i = 0; i < x.size(); i++) { x[i] = value(tensor, first + (int64_t)i); }
                     });
    int64_t wrong = 0, seen = 0;
    load_model(ModelFile(folder / "model.bin"),
               [&](State, int tensor, int64_t first, std::span<const float> x) {
                   for (size_t i = 0; i < x.size(); i++) {
                       wrong += x[i] != value(tensor, first + (int64_t)i);
                   }
                   seen += (int64_t)x.size();
               });
    CHECK(wrong == 0);
    CHECK(seen == file_elements(c));
}

TEST_CASE_FIXTURE(InFolder, "model file: cut anywhere, or too long") {
    const std::string path = folder / "good.bin", good = good_file();
    write_bytes(path, good);
    REQUIRE(model_error(path).exit_code == kExitDone);
    check_bytes(model_error, "", {"empty"});
    for (size_t size = 4; size < good.size(); size += size < 1100 ? 4 : 1021) {
        CAPTURE(size);
        const std::string expected = size < 1024 ? "at least 1024" : std::to_string(good.size());
        check_bytes(model_error, good.substr(0, size),
                    {size < 1024 ? "header" : "file size",
                     fmt::format("found {} bytes, expected {} bytes", size, expected)});
    }
    for (size_t more : {1, 4, 1024}) {
        check_bytes(model_error, good + std::string(more, '\0'),
                    {"file size", std::to_string(good.size() + more)});
    }
    check_error(model_error(folder / "none"), kExitBadInput, {folder / "none", "cannot open"});
    check_error(model_error(folder.path()), kExitBadInput, {folder.path(), "not a regular file"});
}

TEST_CASE("model file: every header field, wrong") {
    const std::string good = good_file();
    check_fields(good,
                 {{0,
                   {0, -1, kMin, kMax, 20240520, (int32_t)0x06d73401},
                   "model file: header word 0, magic",
                   "20240326"},
                  {1, {0, 1, 2, 4, 6, -1, kMin, kMax, 3 << 24}, "word 1, version", "3 (fp32) or 5 (bf16)"},
                  {2, {0, -1, kMin, kMax, (1 << 20) + 1}, "word 2, max_seq_len", "1 to 1048576"},
                  {3, {0, -1, kMin, kMax, (1 << 20) + 1}, "word 3, vocab_size", "1 to 1048576"},
                  {4, {0, -1, kMin, kMax, 1025}, "word 4, num_layers", "1 to 1024"},
                  {5, {0, -1, kMin, kMax, 65537}, "word 5, num_heads", "1 to 65536"},
                  {5, {3, 4, 13, 15, 28}, "word 5, num_heads", "a divisor of channels = 14"},
                  {6, {0, -1, kMin, kMax, 65537}, "word 6, channels", "1 to 65536"},
                  {7, {0, -1, kMin, kMax, 36}, "word 7, padded_vocab_size", "37 to "}},
                 model_error);
    const auto with = [&](int word, int32_t value) {
        std::string bytes = good;
        std::memcpy(bytes.data() + word * 4, &value, 4);
        if (word == 3) { bytes[7 * 4] = 37; }
        return bytes;
    };
    for (int channels : {13, 15, 1}) {
        check_bytes(model_error, with(6, channels),
                    {"word 5, num_heads", "found 2", "a divisor of channels"});
    }
    for (auto [word, value] :
         {std::pair{2, 8}, {3, 36}, {4, 2}, {4, 1024}, {6, 16}, {6, 65536}, {7, 65}, {1, 5}}) {
        // possible, but not what the file holds; version 5 wants half the bytes
        check_bytes(model_error, with(word, value),
                    {"file size", fmt::format("found {} bytes", good.size()), "expected"});
    }
}

TEST_CASE_FIXTURE(InFolder, "model file: headers that ask for more than there is") {
    const std::string path = folder / "evil.bin";
    // 1024 layers of 4800 channels: 12 x 4800^2 x 1024 x 4 bytes, a little over 2^40
    write_bytes(path,
                header_bytes({20240326, 3, 1024, 50257, 1024, 16, 4800, 50304}) + std::string(4096, 'x'));
    check_error(model_error(path), kExitBadInput,
                {path, "file size", "found 5120 bytes", "expected 113", "1024 layers"});
    // the largest sizes that the header may state at all
    write_bytes(path, header_bytes({20240326, 3, 1 << 20, 1 << 20, 1024, 65536, 65536, (1 << 20) + 1024}));
    check_error(model_error(path), kExitBadInput, {path, "file size", "found 1024 bytes", "65536 channels"});
    // layers chosen so that the size, multiplied without care, comes out as the file's
    const int32_t layers = 1431608435;
    write_bytes(path, header_bytes({20240326, 3, 1024, 50257, layers, 16, 32768, 133672}) +
                          std::string(131072, '\0'));
    check_error(model_error(path), kExitBadInput,
                {path, "word 4, num_layers", "found 1431608435", "1 to 1024"});
}

// ---- Hugging Face's ----------------------------------------------------------------------------

TEST_CASE("hf model: an export is read back to the bit, and exporting that gives the same file") {
    const HfFolder folder;
    const GPT2Cpu& model = folder.model;
    const HfModel back(folder.hf);
    CHECK(back.config() == tiny_config());
    CHECK(back.type() == FloatType::kFp32);
    check_same_parameters(back, model);
    for (FloatType type : {FloatType::kFp32, FloatType::kBf16, FloatType::kFp16}) {
        write_hf_model(folder / "b", back, type, 36);
        const HfModel narrow(folder / "b");
        CHECK(narrow.type() == type);
        write_hf_model(folder / "c", HfModel(folder / "b/model.safetensors"), narrow.type(), 36);
        for (const char* file : {"/model.safetensors", "/config.json", "/generation_config.json"}) {
            CHECK(read_bytes(folder / "c" + file) == read_bytes(folder / "b" + file));
        }
    }
    // the layers' matrices are stored (in, out)
    const Parts parts = take_apart(folder.file);
    const size_t fc = index_of(parts, "transformer.h.1.mlp.c_fc.weight");
    CHECK(parts.tensors[fc].shape == std::vector<int64_t>{14, 56});
    const std::vector<float> ours = whole_tensor(model, State::kParameter, kFcw);
    CHECK(parts.values[fc][2 * 56 + 5] == ours[56 * 14 + 5 * 14 + 2]);
    CHECK(parts.tensors[index_of(parts, "transformer.wte.weight")].shape == std::vector<int64_t>{37, 14});
}

TEST_CASE_FIXTURE(InFolder, "hf model: a value that is not finite in the type asked for is refused by name") {
    GPT2Cpu model = random_model();
    const auto write = [&](float value, FloatType type) {
        model.load(State::kParameter, kFcb, 1, {&value, 1});
        write_hf_model(folder / "a", ModelInMemory(model), type, 36);
    };
    for (auto [largest, infinite, type] : {std::tuple{65519.0f, 65520.0f, FloatType::kFp16},
                                           {0x1.fep127f, 0x1.ffp127f, FloatType::kBf16},
                                           {0x1.fffffep127f, INFINITY, FloatType::kFp32}}) {
        for (float sign : {1.0f, -1.0f}) {
            write(sign * largest, type);
            const HfModel back(folder / "a");
            float value = 0;
            back.read(kFcb, 1, {&value, 1});
            CHECK(std::isfinite(value));
            check_error([&] { write(sign * infinite, type); }, kExitBadInput,
                        {"memory", "h.0.mlp.c_fc.bias", text_of(type)});
        }
        check_error([&] { write(NAN, type); }, kExitBadInput, {"diverged"});
    }
    CHECK(names_below(folder / "a") == Words{"config.json", "generation_config.json", "model.safetensors"});
    check_error([&] { write_hf_model(folder / "new", ModelInMemory(model), FloatType::kFp32, 36); },
                kExitBadInput, {"diverged"});
    CHECK(names_below(folder / "new").empty());  // so that the same command can be given again
}

TEST_CASE("hf model: names without prefix, masks, a tied head and shards are accepted") {
    const HfFolder folder;
    const auto& [ignored, hf, file, config, model] = folder;
    const Parts parts = take_apart(file);
    Parts changed = parts;
    for (SafetensorsTensor& t : changed.tensors) { t.name = t.name.substr(12); }
    add(&changed, "h.0.attn.bias", {1, 1, 9, 9}, std::vector<float>(81, 1.0f));
    add(&changed, "h.2.attn.masked_bias", {}, {-1e4f});
    add(&changed, "lm_head.weight", {37, 14}, parts.values[index_of(parts, "transformer.wte.weight")]);
    put_together(file, changed);
    check_same_parameters(HfModel(hf), model);

    Parts first = parts, second;
    for (size_t i = 0; i < 7; i++) {
        second.tensors.push_back(first.tensors.back());
        second.values.push_back(first.values.back());
        first.tensors.pop_back();
        first.values.pop_back();
    }
    fs::remove(file);
    put_together(hf + "/one.safetensors", first);
    put_together(hf + "/two.safetensors", second);
    const auto index = [&](const std::string& name_of_second) {
        std::string text = "{\"metadata\": {\"total_size\": 1}, \"weight_map\": {";
        for (const Parts* shard : {&first, &second}) {
            for (const SafetensorsTensor& t : shard->tensors) {
                text += json_text(t.name) + ": " +
                        json_text(shard == &first ? "one.safetensors" : name_of_second) + ",";
            }
        }
        text.back() = '}';
        write_bytes(hf + "/model.safetensors.index.json", text + "}");
    };
    index("two.safetensors");
    check_same_parameters(HfModel(hf), model);
    for (const char* outside : {"../two.safetensors", "/etc/x.safetensors", ".safetensors", "two.bin", ""}) {
        index(outside);
        check_refused(hf, "weight_map");
    }
    index("one.safetensors");
    check_refused(hf, "is missing, which the index expects");
}

TEST_CASE("hf model: what is equal, or can be converted, is taken; a NaN has its tensor's name in the file") {
    const HfFolder folder;
    const auto& [ignored, hf, file, config_file, model] = folder;
    const Parts parts = take_apart(file);
    Parts changed = parts;
    // as save_model() names the pair
    changed.tensors[index_of(parts, "transformer.wte.weight")].name = "lm_head.weight";
    put_together(file, changed);
    check_same_parameters(HfModel(hf), model);

    Json config = Json::parse(read_bytes(config_file));
    for (const char* gelu : {"gelu_fast", "gelu_python_tanh"}) {
        config["activation_function"] = gelu;
        write_bytes(config_file, config.dump());
        check_same_parameters(HfModel(hf), model);
    }
    config.erase("n_positions");  // then n_ctx says it, else it is GPT-2's
    write_bytes(config_file, config.dump());
    check_same_parameters(HfModel(hf), model);
    config.erase("n_ctx");
    write_bytes(config_file, config.dump());
    check_refused(hf, "wpe.weight\": found shape (9, 14), expected (1024, 14)");

    folder.write();
    Json header = {{"__metadata__", {{"format", "pt"}}}};
    std::string bytes;
    for (size_t i = 0; i < parts.tensors.size(); i++) {
        const std::vector<double> wide(parts.values[i].begin(), parts.values[i].end());
        const size_t begin = bytes.size();
        bytes.append(reinterpret_cast<const char*>(wide.data()), wide.size() * sizeof(double));
        header[parts.tensors[i].name] = {
            {"dtype", "F64"}, {"shape", parts.tensors[i].shape}, {"data_offsets", {begin, bytes.size()}}};
    }
    const std::string text = header.dump();
    const uint64_t length = text.size();
    write_bytes(file, std::string(reinterpret_cast<const char*>(&length), 8) + text + bytes);
    const HfModel wide(hf);
    check_same_parameters(wide, model);
    CHECK(wide.type() == FloatType::kFp32);
    write_hf_model(folder / "narrow", wide, wide.type(), 36);
    check_same_parameters(HfModel(folder / "narrow"), model);

    for (const char* name : {"transformer.h.1.attn.c_attn.weight", "transformer.ln_f.bias"}) {
        changed = parts;
        changed.values[index_of(parts, name)][3] = NAN;
        put_together(file, changed);
        check_error([&] { load_model(HfModel(hf), [](auto&&...) {}); }, kExitBadInput, {file, "nan", name});
    }
}

TEST_CASE("hf model: wrong, missing, doubled and extra tensors are refused by name") {
    const HfFolder folder;
    const std::string &hf = folder.hf, &file = folder.file;
    const Parts good = take_apart(file);
    const std::string some = "transformer.h.1.attn.c_attn.weight";
    const size_t at = index_of(good, some);
    const auto refused = [&](const Parts& parts, const std::string& part) {
        put_together(file, parts);
        check_refused(hf, part);
    };
    Parts bad = good;
    bad.tensors[at].shape = {42, 14};
    refused(bad, some + "\": found shape (42, 14), expected (14, 42)");
    bad = good;
    bad.tensors[at].name = "transformer.h.3.attn.c_attn.weight";
    refused(bad, "h.3.attn.c_attn.weight\": found one of this name, expected none");
    bad = good;
    bad.tensors.erase(bad.tensors.begin() + (int64_t)at);
    bad.values.erase(bad.values.begin() + (int64_t)at);
    refused(bad, "h.1.attn.c_attn.weight\": found none, expected one");
    bad = good;
    add(&bad, "h.1.attn.c_attn.weight", {14, 42}, good.values[at]);
    refused(bad, "found a second one");
    bad = good;
    add(&bad, "lm_head.weight", {37, 14}, good.values[index_of(good, "transformer.wte.weight")]);
    bad.values.back()[100] += 1;
    refused(bad, "the same: the two are tied");
    bad.values.back() = good.values[index_of(good, "transformer.wte.weight")];
    put_together(file, bad);
    CHECK(error_of([&] { HfModel model(hf); }).exit_code == kExitDone);
}

TEST_CASE("hf model: a configuration of another architecture is refused by field") {
    const HfFolder folder;
    const std::string &hf = folder.hf, good = read_bytes(folder.config);
    const struct {
        std::string from, to, field;
    } cases[] = {{"gelu_new", "relu", "activation_function"},
                 {"1e-05", "1e-06", "layer_norm_epsilon"},
                 {"\"n_inner\": null", "\"n_inner\": 57", "n_inner"},
                 {"\"scale_attn_weights\": true", "\"scale_attn_weights\": false", "scale_attn_weights"},
                 {"inverse_layer_idx\": false", "inverse_layer_idx\": true", "inverse_layer_idx"},
                 {"\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false", "tie_word_embeddings"},
                 {"\"model_type\": \"gpt2\"", "\"model_type\": \"llama\"", "model_type"},
                 {"\"n_head\": 2", "\"n_head\": 3", "n_head"},
                 {"\"n_layer\": 3", "\"n_layer\": 0", "n_layer"},
                 {"\"n_layer\": 3", "\"n_layer\": 3.5", "n_layer"},
                 {"\"vocab_size\": 37", "\"vocab_size\": 99999999", "vocab_size"},
                 {"\"vocab_size\": 37", "\"vocab_size\": 38", "wte.weight"},
                 {"\"n_embd\"", "\"n_embed\"", "n_embd"}};
    for (const auto& c : cases) {
        write_bytes(folder.config, changed(good, c.from, c.to));
        check_refused(hf, c.field);
    }
    write_bytes(folder.config, changed(good, "null", "56"));
    CHECK(error_of([&] { HfModel model(hf); }).exit_code == kExitDone);
    fs::remove(folder.file);
    check_refused(hf, "save_pretrained");
}

// convert_hf_to_gguf.py of llama.cpp, its class for GPT2LMHeadModel and what that stands on: these keys must be
// there and these names be known, else it ends with a KeyError or "Can not map tensor".
TEST_CASE_FIXTURE(InFolder, "hf model: what llama.cpp's converter asks for is in the folder") {
    const GPT2Cpu model = random_model();
    const Tokenizer tokenizer = Tokenizer::load("dev/test/fixture/bpe");
    std::string note;
    export_hf(folder / "hf", ModelInMemory(model), tokenizer, FloatType::kAuto, &note);
    CHECK(note.empty());
    const auto json = [&](const char* name) {
        return nlohmann::json::parse(read_bytes(folder / "hf/" + name));
    };
    const auto check_has = [](const Json& object, const Json& due) {
        for (const auto& [key, value] : due.items()) {
            CAPTURE(key);
            CHECK(object.value(key, Json()) == value);
        }
    };
    check_has(json("config.json"), {{"architectures", Json::array({"GPT2LMHeadModel"})},
                                    {"model_type", "gpt2"},
                                    {"n_layer", 3},
                                    {"n_ctx", 9},
                                    {"n_embd", 14},
                                    {"n_head", 2},
                                    {"layer_norm_epsilon", 1e-5},
                                    {"vocab_size", 37},
                                    {"bos_token_id", 456},
                                    {"eos_token_id", 456}});
    const auto file = json("tokenizer.json");
    CHECK(file.at("model").at("merges").size() == tokenizer.vocabulary().merges.size());
    CHECK(file.at("model").at("vocab").size() == 457);  // with the ends of text
    check_has(file.at("added_tokens").at(0), {{"id", 456}, {"content", "<|endoftext|>"}, {"special", true}});
    check_has(json("tokenizer_config.json"), {{"tokenizer_class", "GPT2Tokenizer"},
                                              {"bos_token", "<|endoftext|>"},
                                              {"eos_token", "<|endoftext|>"}});

    const std::vector<std::string> known = {
        "wte.weight",       "wpe.weight",         "ln_f.weight",        "ln_f.bias",
        "ln_1.weight",      "ln_1.bias",          "attn.c_attn.weight", "attn.c_attn.bias",
        "attn.c_proj.bias", "attn.c_proj.weight", "ln_2.weight",        "ln_2.bias",
        "mlp.c_fc.weight",  "mlp.c_fc.bias",      "mlp.c_proj.weight",  "mlp.c_proj.bias"};
    for (const SafetensorsTensor& tensor : take_apart(folder / "hf/model.safetensors").tensors) {
        std::string name = tensor.name;
        CAPTURE(name);
        REQUIRE(name.starts_with("transformer."));
        name = name.substr(12);
        if (name.starts_with("h.")) { name = name.substr(name.find('.', 2) + 1); }
        CHECK(std::find(known.begin(), known.end(), name) != known.end());
    }
}

// Hugging Face's GPT-2: what is exported is read back to the bit; configurations and tensors that are not
// GPT-2's are refused by name.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "dev/test/support/any_model.h"
#include "dev/test/support/test_files.h"
#include "dev/test/support/train_program.h"
#include "llmc/host/files/json.h"
#include "llmc/host/tokens/tokenizer.h"
#include "llmc/model/cpu/gpt2.h"
#include "llmc/model/formats/hf_model.h"
#include "llmc/model/run/hf_export.h"

using namespace llmc;

namespace {

// a model whose parameters can be read from where they are
class ModelInMemory : public ModelSource {
public:
    explicit ModelInMemory(const GPT2Cpu& model) : model_(model) {}
    const GPT2Config& config() const override { return model_.config(); }
    const std::string& path() const override { return path_; }
    void read(int tensor, int64_t first, std::span<float> values) const override {
        model_.save(State::kParameter, tensor, first, values);
    }
    FloatType type() const override { return FloatType::kFp32; }

private:
    std::string path_ = "memory";
    const GPT2Cpu& model_;
};

// random parameters; padding rows are zero, as models have them
GPT2Cpu random_model() {
    GPT2Cpu model(tiny_config(), 2, 9);
    fill_states(&model, 5);
    const GPT2Config& c = model.config();
    const std::vector<float> zero((size_t)(c.padded_vocab_size - c.vocab_size) * c.channels);
    model.load(State::kParameter, kWte, (int64_t)c.vocab_size * c.channels, zero);
    return model;
}

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

std::string hf_error(const std::string& path) {
    const Error error = error_of([&] { HfModel model(path); });
    CHECK(error.exit_code == kExitBadInput);
    return error.what();
}

}  // namespace

TEST_CASE("hf model: an export is read back to the bit, and exporting that gives the same file") {
    TempFolder folder;
    const GPT2Cpu model = random_model();
    write_hf_model(folder / "a", ModelInMemory(model), FloatType::kFp32, 36);
    const HfModel back(folder / "a");
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
    const Parts parts = take_apart(folder / "a/model.safetensors");
    const size_t fc = index_of(parts, "transformer.h.1.mlp.c_fc.weight");
    CHECK(parts.tensors[fc].shape == std::vector<int64_t>{14, 56});
    const std::vector<float> ours = whole_tensor(model, State::kParameter, kFcw);
    CHECK(parts.values[fc][2 * 56 + 5] == ours[56 * 14 + 5 * 14 + 2]);
    CHECK(parts.tensors[index_of(parts, "transformer.wte.weight")].shape == std::vector<int64_t>{37, 14});
}

TEST_CASE("hf model: a value that is not finite in the type asked for is refused by name") {
    TempFolder folder;
    GPT2Cpu model = random_model();
    const auto write = [&](float value, FloatType type) {
        model.load(State::kParameter, kFcb, 1, {&value, 1});
        write_hf_model(folder / "a", ModelInMemory(model), type, 36);
    };
    struct Case {
        float largest, infinite;
        FloatType type;
    };
    for (const Case& c :
         {Case{65519, 65520, FloatType::kFp16}, Case{0x1.fep127f, 0x1.ffp127f, FloatType::kBf16},
          Case{0x1.fffffep127f, INFINITY, FloatType::kFp32}}) {
        for (float sign : {1.0f, -1.0f}) {
            write(sign * c.largest, c.type);
            const HfModel back(folder / "a");
            float value = 0;
            back.read(kFcb, 1, {&value, 1});
            CHECK(std::isfinite(value));
            check_error(error_of([&] { write(sign * c.infinite, c.type); }), kExitBadInput,
                        {"memory", "h.0.mlp.c_fc.bias", text_of(c.type)});
        }
        check_error(error_of([&] { write(NAN, c.type); }), kExitBadInput, {"diverged"});
    }
    CHECK(names_below(folder / "a") == Words{"config.json", "generation_config.json", "model.safetensors"});
    check_error(error_of([&] { write_hf_model(folder / "new", ModelInMemory(model), FloatType::kFp32, 36); }),
                kExitBadInput, {"diverged"});
    CHECK(names_below(folder / "new").empty());  // so that the same command can be given again
}

TEST_CASE("hf model: names without prefix, masks, a tied head and shards are accepted") {
    TempFolder folder;
    const std::string hf = folder / "hf", file = hf + "/model.safetensors";
    const GPT2Cpu model = random_model();
    write_hf_model(hf, ModelInMemory(model), FloatType::kFp32, 36);
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
    std::filesystem::remove(file);
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
        CHECK(hf_error(hf).find("weight_map") != std::string::npos);
    }
    index("one.safetensors");
    CHECK(hf_error(hf).find("is missing, which the index expects") != std::string::npos);
}

TEST_CASE(
    "hf model: what is equal, or can be converted, is taken; a NaN has the name that the file gives its "
    "tensor") {
    TempFolder folder;
    const std::string hf = folder / "hf", file = hf + "/model.safetensors";
    const GPT2Cpu model = random_model();
    write_hf_model(hf, ModelInMemory(model), FloatType::kFp32, 36);
    const Parts parts = take_apart(file);
    Parts changed = parts;
    changed.tensors[index_of(parts, "transformer.wte.weight")].name =
        "lm_head.weight";  // as save_model() names the pair
    put_together(file, changed);
    check_same_parameters(HfModel(hf), model);

    Json config = Json::parse(read_bytes(hf + "/config.json"));
    for (const char* gelu : {"gelu_fast", "gelu_python_tanh"}) {
        config["activation_function"] = gelu;
        write_bytes(hf + "/config.json", config.dump());
        check_same_parameters(HfModel(hf), model);
    }
    config.erase("n_positions");  // then n_ctx says it, else it is GPT-2's
    write_bytes(hf + "/config.json", config.dump());
    check_same_parameters(HfModel(hf), model);
    config.erase("n_ctx");
    write_bytes(hf + "/config.json", config.dump());
    CHECK(contains(hf_error(hf), "wpe.weight\": found shape (9, 14), expected (1024, 14)"));

    write_hf_model(hf, ModelInMemory(model), FloatType::kFp32, 36);
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
        const Error error = error_of([&] { load_model(HfModel(hf), [](auto&&...) {}); });
        check_error(error, kExitBadInput, {file, "nan", name});
    }
}

TEST_CASE("hf model: wrong, missing, doubled and extra tensors are refused by name") {
    TempFolder folder;
    const std::string hf = folder / "hf", file = hf + "/model.safetensors";
    write_hf_model(hf, ModelInMemory(random_model()), FloatType::kFp32, 36);
    const Parts good = take_apart(file);
    const std::string some = "transformer.h.1.attn.c_attn.weight";
    const size_t at = index_of(good, some);
    const auto refused = [&](const Parts& parts, const std::string& part) {
        put_together(file, parts);
        const std::string message = hf_error(hf);
        CAPTURE(message);
        CHECK(message.find(part) != std::string::npos);
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
    TempFolder folder;
    const std::string hf = folder / "hf";
    write_hf_model(hf, ModelInMemory(random_model()), FloatType::kFp32, 36);
    const std::string good = read_bytes(hf + "/config.json");
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
        std::string text = good;
        REQUIRE(text.find(c.from) != std::string::npos);
        write_bytes(hf + "/config.json", text.replace(text.find(c.from), c.from.size(), c.to));
        const std::string message = hf_error(hf);
        CAPTURE(message);
        CHECK(message.find(c.field) != std::string::npos);
    }
    std::string inner = good;
    inner.replace(inner.find("null"), 4, "56");
    write_bytes(hf + "/config.json", inner);
    CHECK(error_of([&] { HfModel model(hf); }).exit_code == kExitDone);
    std::filesystem::remove(hf + "/model.safetensors");
    CHECK(hf_error(hf).find("save_pretrained") != std::string::npos);
}

// convert_hf_to_gguf.py of llama.cpp, its class for GPT2LMHeadModel and what that stands on: these keys must be
// there and these names be known, else it ends with a KeyError or "Can not map tensor".
TEST_CASE("hf model: what llama.cpp's converter asks for is in the folder") {
    TempFolder folder;
    const GPT2Cpu model = random_model();
    const Tokenizer tokenizer = Tokenizer::load("dev/test/fixture/bpe");
    std::string note;
    export_hf(folder / "hf", ModelInMemory(model), tokenizer, FloatType::kAuto, &note);
    CHECK(note.empty());
    const auto json = [&](const char* name) {
        return nlohmann::json::parse(read_bytes(folder / "hf/" + name));
    };
    const auto config = json("config.json");
    CHECK(config.at("architectures").at(0) == "GPT2LMHeadModel");
    CHECK(config.at("model_type") == "gpt2");
    CHECK(config.at("n_layer") == 3);
    CHECK(config.at("n_ctx") == 9);
    CHECK(config.at("n_embd") == 14);
    CHECK(config.at("n_head") == 2);
    CHECK(config.at("layer_norm_epsilon") == 1e-5);
    CHECK(config.at("vocab_size") == 37);
    CHECK(config.at("bos_token_id") == 456);
    CHECK(config.at("eos_token_id") == 456);

    const auto file = json("tokenizer.json");
    CHECK(file.at("model").at("merges").size() == tokenizer.vocabulary().merges.size());
    CHECK(file.at("model").at("vocab").size() == 457);  // with the ends of text
    CHECK(file.at("added_tokens").at(0).at("id") == 456);
    CHECK(file.at("added_tokens").at(0).at("content") == "<|endoftext|>");
    CHECK(file.at("added_tokens").at(0).at("special") == true);
    const auto settings = json("tokenizer_config.json");
    CHECK(settings.at("tokenizer_class") == "GPT2Tokenizer");
    CHECK(settings.at("bos_token") == "<|endoftext|>");
    CHECK(settings.at("eos_token") == "<|endoftext|>");

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

// GPT-2 as Hugging Face keeps it: see hf_model.h.
#include "llmc/model/formats/hf_model.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "llmc/host/base/error.h"
#include "llmc/host/base/text.h"
#include "llmc/host/files/file_io.h"
#include "llmc/host/files/json.h"

namespace llmc {

namespace fs = std::filesystem;
using Json = nlohmann::json;  // sorted by name, as transformers writes it

namespace {

constexpr const char* kPrefix = "transformer.";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kRunKey = "plumb_run";  // which transformers keeps and passes over
constexpr const char* kKept[] = {"attn_pdrop",        "bos_token_id", "embd_pdrop", "eos_token_id",
                                 "initializer_range", "pad_token_id", "resid_pdrop"};  // of config.json
constexpr size_t kMaxConfig = 1 << 20, kMaxIndex = 16 << 20;

// within their layer, if they have one; what is_block_matrix() there is (in, out) instead of (out, in)
constexpr const char* kHfNames[kNumTensors] = {
    "wte.weight",         "wpe.weight",       "ln_1.weight",        "ln_1.bias",
    "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight", "attn.c_proj.bias",
    "ln_2.weight",        "ln_2.bias",        "mlp.c_fc.weight",    "mlp.c_fc.bias",
    "mlp.c_proj.weight",  "mlp.c_proj.bias",  "ln_f.weight",        "ln_f.bias"};

// by FloatType: how the files store it, what torch calls it, and from where on a number is rounded to infinity
struct HfType {
    TensorType stored;
    const char* torch;
    float end;
};
constexpr HfType kHfTypes[] = {{TensorType::kOther, "", 0},
                               {TensorType::kF32, "float32", INFINITY},
                               {TensorType::kBF16, "bfloat16", 0x1.ffp127f},
                               {TensorType::kF16, "float16", 65520.0f}};

std::string hf_name(int tensor, int64_t layer) {
    return kTensors[tensor].per_layer ? fmt::format("h.{}.{}", layer, kHfNames[tensor]) : kHfNames[tensor];
}

std::vector<int64_t> hf_shape(const GPT2Config& c, int tensor) {
    const int64_t rows = tensor == kWte ? c.vocab_size : kTensors[tensor].rows(c),
                  cols = kTensors[tensor].cols(c);
    if (!kTensors[tensor].matrix) { return {cols}; }
    return is_block_matrix(tensor) ? std::vector{cols, rows} : std::vector{rows, cols};
}

Json read_object(const std::string& path) {
    const JsonValue json = read_json_file(path, kMaxConfig);
    if (json.is_object()) { return json; }
    throw Error(kExitBadInput, path + ": found something else, expected a JSON object");
}

// ---- config.json -------------------------------------------------------------------------------

GPT2Config read_hf_config(const std::string& path) {
    const Json root = read_object(path);
    const auto fail = [&](const char* field, const std::string& found, const std::string& expected) {
        throw Error(kExitBadInput, "{}: {}: found {}, expected {}. Only GPT-2 as published can be loaded.",
                    path, field, found, expected);
    };
    // absent: what stands for a field that is left out
    const auto size = [&](const char* field, int most, const Json& absent = {}) -> int {
        const Json value = root.value(field, absent);
        if (!value.is_number_integer() || value < 1 || value > most) {
            fail(field, printable_text(value.dump()), fmt::format("1 to {}", most));
        }
        return value;
    };
    // a field that may be left out, or null, must have one of these values otherwise
    const auto expect = [&](const char* field, const std::vector<Json>& allowed) {
        const Json value = root.value(field, Json());
        if (value.is_null() || std::ranges::count(allowed, value) > 0) { return; }
        fail(field, printable_text(value.dump()), allowed[0].dump());
    };
    expect("model_type", {"gpt2"});
    expect("activation_function", {"gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_python_tanh"});
    expect("layer_norm_epsilon", {1e-5, (double)1e-5f});
    expect("scale_attn_weights", {true});
    expect("scale_attn_by_inverse_layer_idx", {false});
    expect("reorder_and_upcast_attn", {false});
    expect("add_cross_attention", {false});
    expect("tie_word_embeddings", {true});
    GPT2Config c;
    c.max_seq_len = size("n_positions", 1 << 20, size("n_ctx", 1 << 20, 1024));
    c.vocab_size = size("vocab_size", 1 << 20);
    c.padded_vocab_size = padded_vocab(c.vocab_size);
    c.num_layers = size("n_layer", 1024);
    c.num_heads = size("n_head", 65536);
    c.channels = size("n_embd", 65536);
    expect("n_inner", {4 * c.channels});
    if (c.channels % c.num_heads != 0) {
        fail("n_head", std::to_string(c.num_heads), fmt::format("a divisor of n_embd = {}", c.channels));
    }
    return c;
}

// of no use here: the causal mask, as buffers of older files keep it
bool is_mask(const std::string& name) {
    return name.starts_with("h.") && (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias"));
}

std::vector<float> values_of(const SafetensorsFile& file, const SafetensorsEntry& entry) {
    std::vector<float> values((size_t)entry.elements);
    file.read(entry, 0, values);
    return values;
}

// (rows, cols) -> (cols, rows), in tiles that stay in the first cache
void transpose(const float* in, int64_t rows, int64_t cols, float* out) {
    constexpr int64_t kTile = 32;
    for (int64_t r0 = 0; r0 < rows; r0 += kTile) {
        for (int64_t c0 = 0; c0 < cols; c0 += kTile) {
            for (int64_t r = r0; r < std::min(rows, r0 + kTile); r++) {
                for (int64_t c = c0; c < std::min(cols, c0 + kTile); c++) {
                    out[c * rows + r] = in[r * cols + c];
                }
            }
        }
    }
}

}  // namespace

HfFacts read_hf_facts(const std::string& path, int vocab_size) {
    Json config = read_object(path), kept = Json::object();
    const std::string generation = fs::path(path).replace_filename("generation_config.json").string();
    if (file_kind(generation) != FileKind::kMissing) { config.update(read_object(generation)); }
    for (const char* name : kKept) {
        if (config.contains(name)) { kept[name] = config[name]; }
    }
    HfFacts facts;
    for (auto [name, ids] : {std::pair("bos_token_id", &facts.begins), {"eos_token_id", &facts.ends}}) {
        const Json value = kept.value(name, Json());
        for (const Json& id : value.is_array() ? value : Json::array({value})) {
            if (id.is_number_integer() && id >= 0 && id < vocab_size) { ids->push_back(id); }
        }
        // transformers writes GPT-2's into the file of any vocabulary
        if (ids->empty()) { kept.erase(name); }
    }
    if (const Json p = kept.value("attn_pdrop", Json()); p.is_number()) { facts.attn_pdrop = p; }
    facts.kept = kept.dump();
    return facts;
}

HfModel::HfModel(const std::string& path) : path_(path) {
    const bool whole = is_folder(path);
    const fs::path folder = whole ? fs::path(path) : fs::path(path).parent_path();
    const std::string config = (folder / "config.json").string(), index = path + "/" + kIndex,
                      weights = whole ? path + "/model.safetensors" : path;
    config_ = read_hf_config(config);
    facts_ = read_hf_facts(config, config_.vocab_size);
    if (!whole || is_there(weights)) {
        files_.emplace_back(weights);
    } else if (is_there(index)) {
        open_shards(index);
    } else {
        throw Error(kExitBadInput,
                    "{}: found config.json, but neither model.safetensors nor {}. Weights in "
                    "pytorch_model.bin must be saved as safetensors first: model.save_pretrained(folder).",
                    path, kIndex);
    }
    find_tensors();
}

// those that an index names for each tensor; they lie beside it
void HfModel::open_shards(const std::string& index) {
    const JsonValue root = read_json_file(index, kMaxIndex);
    const auto* members = json_get<JsonValue::object_t>(root, "weight_map");
    throw_if(members == nullptr || members->empty(), kExitBadInput,
             "{}: weight_map: found none, expected an object of tensor: file", index);
    std::map<std::string, const SafetensorsFile*> open;
    for (const auto& [tensor, value] : *members) {
        const auto* name = json_as<std::string>(&value);
        if (name == nullptr || name->find('/') != name->npos || name->starts_with('.') ||
            !name->ends_with(".safetensors")) {
            throw Error(kExitBadInput,
                        "{}: weight_map, {}: found {}, expected the name of a *.safetensors beside it", index,
                        quoted_name(tensor), name == nullptr ? "no text" : quoted_name(*name));
        }
        const SafetensorsFile*& file = open[*name];
        if (file == nullptr) { file = &files_.emplace_back(path_ + "/" + *name); }
        if (file->find(tensor) == nullptr) {
            throw Error(kExitBadInput, "{}: tensor {} is missing, which the index expects there",
                        file->path(), quoted_name(tensor));
        }
    }
}

// every tensor to its place; all that is not right is refused by name
void HfModel::find_tensors() {
    std::map<std::string, std::pair<int, int64_t>> expected;
    for (int t = 0; t < kNumTensors; t++) {
        places_[t].resize((size_t)tensor_copies(config_, t));
        for (int64_t l = 0; l < tensor_copies(config_, t); l++) { expected[hf_name(t, l)] = {t, l}; }
    }
    const auto fail = [&](const std::string& name, const std::string& found, const std::string& wanted) {
        throw Error(kExitBadInput, "{}: tensor {}: found {}, expected {} for the GPT-2 of config.json", path_,
                    quoted_name(name), found, wanted);
    };
    for (const SafetensorsFile& file : files_) {
        for (const SafetensorsEntry& e : file.entries()) {
            std::string name = e.name.starts_with(kPrefix) ? e.name.substr(12) : e.name;
            if (is_mask(name)) { continue; }
            if (name == "lm_head.weight") { name = "wte.weight"; }  // tied: one of both, or both
            const auto at = expected.find(name);
            if (at == expected.end()) { fail(e.name, "one of this name", "none"); }
            const auto [tensor, layer] = at->second;
            Place& place = places_[tensor][(size_t)layer];
            SafetensorsEntry wanted;
            wanted.shape = hf_shape(config_, tensor);
            if (e.type == TensorType::kOther) {
                fail(e.name, "type " + e.type_text, "F32, F16, BF16 or F64");
            }
            if (e.shape != wanted.shape) { fail(e.name, "shape " + e.shape_text(), wanted.shape_text()); }
            if (place.entry != nullptr && (tensor != kWte || place.entry->name == e.name)) {
                fail(e.name, "a second one", "one");
            }
            if (place.entry != nullptr && values_of(file, e) != values_of(*place.file, *place.entry)) {
                fail(e.name, "other values than " + place.entry->name + " has", "the same: the two are tied");
            }
            place = {&file, &e};
        }
    }
    for (const auto& [name, at] : expected) {
        if (place(at.first, at.second).entry == nullptr) { fail(name, "none", "one"); }
    }
}

FloatType HfModel::type() const {
    const auto* at = std::ranges::find(kHfTypes, place(kWte, 0).entry->type, &HfType::stored);
    return at == std::end(kHfTypes) ? FloatType::kFp32 : (FloatType)(at - kHfTypes);
}

void HfModel::read(int tensor, int64_t first, std::span<float> values) const {
    require(first >= 0 && first <= tensor_total(config_, tensor) - (int64_t)values.size(),
            "range outside of the tensor");
    const int64_t size = tensor_size(config_, tensor), whole = (int64_t)values.size();
    for (int64_t done = 0; done < whole;) {
        const int64_t layer = (first + done) / size, inside = (first + done) % size;
        const int64_t n = std::min(whole - done, size - inside);
        const std::span<float> part = values.subspan((size_t)done, (size_t)n);
        const Place& from = place(tensor, layer);
        if (is_block_matrix(tensor)) {
            if (turned_of_ != from.entry) {
                const std::vector<float> stored = values_of(*from.file, *from.entry);
                const int64_t cols = kTensors[tensor].cols(config_);
                turned_.resize(stored.size());
                transpose(stored.data(), cols, size / cols, turned_.data());
                turned_of_ = from.entry;
            }
            std::copy_n(turned_.begin() + inside, n, part.begin());
        } else {  // behind the vocabulary: the padding of wte
            const int64_t there = std::clamp<int64_t>(from.entry->elements - inside, 0, n);
            from.file->read(*from.entry, there > 0 ? inside : 0, part.first((size_t)there));
            std::fill(part.begin() + there, part.end(), 0.0f);
        }
        const auto bad = std::ranges::find_if_not(part, [](float x) { return std::isfinite(x); });
        if (bad != part.end()) {
            throw Error(kExitBadInput,
                        "{}: found {:g} in tensor {}, expected a finite number of 32 bits. The training that "
                        "made this file had diverged: use an earlier one.",
                        from.file->path(), *bad, quoted_name(from.entry->name));
        }
        done += n;
    }
}

// ---- export ------------------------------------------------------------------------------------

std::string hf_config_text(const GPT2Config& c, FloatType type, int end_of_text, const std::string& kept) {
    const std::string end = end_of_text < 0 ? "null" : std::to_string(end_of_text);
    Json config =
        Json::parse(fmt::format(R"({{"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"],
        "attn_pdrop": 0.0, "bos_token_id": {}, "embd_pdrop": 0.0, "eos_token_id": {},
        "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "gpt2",
        "n_ctx": {}, "n_embd": {}, "n_head": {}, "n_inner": null, "n_layer": {}, "n_positions": {},
        "reorder_and_upcast_attn": false, "resid_pdrop": 0.0, "scale_attn_by_inverse_layer_idx": false,
        "scale_attn_weights": true, "tie_word_embeddings": true, "torch_dtype": "{}", "use_cache": true,
        "vocab_size": {}}})",
                                end, end, c.max_seq_len, c.channels, c.num_heads, c.num_layers, c.max_seq_len,
                                kHfTypes[(size_t)type].torch, c.vocab_size));
    config.update(Json::parse(kept));
    return config.dump(2) + "\n";
}

Digest write_hf_weights(const std::string& path, const GPT2Config& c, FloatType type, const std::string& from,
                        const ReadParameters& read_parameters, const std::function<void()>& before) {
    require(type != FloatType::kAuto, "write_hf_weights: fp32, fp16 or bf16");
    std::vector<SafetensorsTensor> tensors;
    std::vector<std::pair<int, int64_t>> places;
    for (int t = 0; t < kNumTensors; t++) {
        for (int64_t l = 0; l < tensor_copies(c, t); l++) {
            tensors.push_back({kPrefix + hf_name(t, l), hf_shape(c, t)});
            places.push_back({t, l});
        }
    }
    std::vector<float> matrix, turned;  // a tensor that must be transposed, as it is here and there
    const float end = kHfTypes[(size_t)type].end;
    const auto read = [&](size_t i, int64_t first, std::span<float> values) {
        const auto [t, l] = places[i];
        const int64_t size = tensor_size(c, t), rows = kTensors[t].rows(c), cols = kTensors[t].cols(c);
        if (!is_block_matrix(t)) {
            read_parameters(t, l * size + first, values);
        } else {
            if (first == 0) {
                matrix.resize((size_t)size);
                turned.resize((size_t)size);
                read_parameters(t, l * size, matrix);
                transpose(matrix.data(), rows, cols, turned.data());
            }
            std::copy_n(turned.begin() + first, values.size(), values.begin());
        }
        const auto wrong =
            std::find_if_not(values.begin(), values.end(), [end](float v) { return std::abs(v) < end; });
        if (wrong != values.end()) {
            throw Error(kExitBadInput, "{}: found {:g} in {}, expected less than {:g}, for {}. {}", from,
                        *wrong, tensors[i].name, end, text_of(type),
                        std::isfinite(*wrong) ? "Choose --type fp32."
                                              : "The training that made this file had diverged.");
        }
    };
    return write_safetensors(path, tensors, kHfTypes[(size_t)type].stored, read, before);
}

void write_hf_model(const std::string& folder, const ModelSource& source, FloatType type, int end_of_text,
                    const std::string& run, const TextFiles& others) {
    make_writable_folder(folder);
    Json kept = Json::parse(source.facts().kept);
    if (!run.empty()) { kept[kRunKey] = run; }
    const std::string config = hf_config_text(source.config(), type, end_of_text, kept.dump());
    Json unfinished = {{"model_type", "of an export that was not finished: export again"}};
    if (!run.empty()) { unfinished[kRunKey] = run; }
    const std::string config_file = folder + "/config.json";
    const auto begin = [&] { write_text_file(config_file, unfinished.dump(2) + "\n"); };
    std::error_code ignored;
    const bool is_new = !fs::exists(config_file, ignored);
    if (is_new) { begin(); }
    try {
        const auto read = [&](int tensor, int64_t first, std::span<float> x) {
            source.read(tensor, first, x);
        };
        write_hf_weights(folder + "/model.safetensors", source.config(), type, source.path(), read, begin);
    } catch (...) {
        if (is_new) { fs::remove(config_file, ignored); }
        throw;
    }
    Json generation = {{"_from_model_config", true}}, all = Json::parse(config);
    for (const char* name : {"bos_token_id", "eos_token_id"}) { generation[name] = all[name]; }
    write_text_file(folder + "/generation_config.json", generation.dump(2) + "\n");
    for (const auto& [name, text] : others) { write_text_file(folder + "/" + name, text); }
    write_text_file(config_file, config);
}

std::string run_of_hf_model(const std::string& folder) {
    try {
        const JsonValue config = read_json_file(folder + "/config.json", kMaxConfig);
        const auto* id = json_get<std::string>(config, kRunKey);
        return id == nullptr ? "" : *id;
    } catch (const Error&) { return ""; }  // none, or not one that a run has written
}

}  // namespace llmc

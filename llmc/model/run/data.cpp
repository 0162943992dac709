// Whether a run goes on with the same data and settings: see run/data.h.
#include "llmc/model/run/data.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "llmc/host/base/error.h"
#include "llmc/host/base/stop_signal.h"
#include "llmc/host/files/file_io.h"
#include "llmc/host/files/json.h"

namespace llmc {

namespace {

constexpr const char* kNoted[] = {
    // of a run with other values here the numbers differ, as somebody may want
    "lr", "warmup", "schedule", "final-lr-fraction", "weight-decay", "beta1", "beta2", "eps", "clip",
    "dropout", "skip-loss-zscore", "skip-norm-zscore", "steps",
    // these change what is kept or measured of a run: who leaves one out when it is resumed should hear of it
    "save-every", "keep", "keep-major", "keep-best", "patience", "val-data", "val-every", "val-tokens",
    "val-align", "hellaswag", "hellaswag-every", "sample-every", "model-dtype", "export-hf"};
// and with other values here by rounding only
constexpr const char* kRounding[] = {"batch", "dtype",  "grad-dtype",    "recompute", "tf32",
                                     "fp8",   "device", "reduce-groups", "products"};

// "" if it is not there
std::string value_of(const Settings& settings, const std::string& name) {
    const auto found = settings.find(name);
    return found == settings.end() ? "" : found->second;
}

// whether the learning rate of these settings falls
bool falls(const Settings& settings) {
    const std::string fraction = value_of(settings, "final-lr-fraction"),
                      how = value_of(settings, "schedule");
    return !fraction.empty() && std::strtod(fraction.c_str(), nullptr) != 1 && !how.empty() &&
           how != "\"constant\"";
}

// of a file's content, or a folder's weights; "none" where there is none
std::string digest_text(const std::string& path) {
    if (file_kind(path) != FileKind::kFolder) {
        const auto digest = path.empty() ? std::nullopt : digest_file(path);
        return digest ? fmt::format("XXH3 {:016x}", digest->xxh3) : "none";
    }
    std::string text;
    for (const std::string& name : folder_names(path).value_or(std::vector<std::string>())) {
        if (name.ends_with(".safetensors")) { text += digest_text(path + "/" + name) + " "; }
    }
    return text;
}

// what has changed, a line each; what changes the rounding only is called so
std::string changed_settings(const Settings& was, const Settings& is) {
    std::string text;
    auto compare = [&](const std::string& name, const char* meaning) {
        const std::string before = value_of(was, name), now = value_of(is, name);
        if (before.empty() || now.empty() || before == now) { return; }
        // of a learning rate that does not fall the number of steps changes nothing
        if (name == "steps" && !(falls(was) && falls(is))) { return; }
        text += fmt::format("{} was {}, is {} from here on{}\n", name, before, now, meaning);
    };
    for (const char* name : kNoted) { compare(name, ""); }
    for (const char* name : kRounding) { compare(name, ": the same run but for rounding, not bit for bit"); }
    return text;
}

// what config.toml says, name and value, in its order
std::vector<std::pair<std::string, std::string>> config_lines(const Options& o) {
    std::vector<std::pair<std::string, std::string>> lines;
    std::istringstream text(config_text(o));
    for (std::string line; std::getline(text, line);) {
        const size_t equals = line.find(" = ");
        if (equals != line.npos) { lines.emplace_back(line.substr(0, equals), line.substr(equals + 3)); }
    }
    return lines;
}

// `was`, with the data and the settings that this process finds
RunRecord read_here(const RunRecord& was, const Options& options, const ShardSet& train, const Validator* val,
                    const std::string& device) {
    RunRecord is = was;
    is.train_data = fingerprint(train, was.train_data);
    is.val_data = val != nullptr ? fingerprint(val->data().set(), was.val_data) : std::vector<ShardRecord>();
    is.settings = recorded_settings(options, device);
    return is;
}

}  // namespace

std::vector<ShardRecord> fingerprint(const ShardSet& set, const std::vector<ShardRecord>& known) {
    std::vector<ShardRecord> shards;
    for (const TokenShard& shard : set.shards()) {
        throw_if(stop_requested, 128 + stop_requested, "stopped by a signal before the run had begun");
        ShardRecord record = {std::filesystem::path(shard.path()).filename().string(), shard.num_tokens(), 0,
                              file_identity(shard.path(), true)};
        const auto same = std::ranges::find_if(known, [&](const ShardRecord& k) {
            return k.name == record.name && k.tokens == record.tokens && k.identity == record.identity;
        });
        if (same != known.end() && !record.identity.empty()) {
            record.xxh3 = same->xxh3;
        } else {
            const auto digest = digest_file(shard.path(), shard.tokens_begin());
            if (!digest) { throw Error(kExitBadInput, shard.path() + ": this shard has just vanished"); }
            record.xxh3 = digest->xxh3;
        }
        shards.push_back(record);
    }
    return shards;
}

std::string difference(const std::vector<ShardRecord>& was, const std::vector<ShardRecord>& is) {
    const auto describe = [](const std::vector<ShardRecord>& shards, size_t i) {
        if (i >= shards.size()) { return std::string("no shard"); }
        const ShardRecord& s = shards[i];
        return fmt::format("{} of {} tokens with XXH3 {:016x}", s.name, s.tokens, s.xxh3);
    };
    for (size_t i = 0; i < std::max(was.size(), is.size()); i++) {
        const bool both = i < was.size() && i < is.size();
        if (both && was[i].tokens == is[i].tokens && was[i].xxh3 == is[i].xxh3) { continue; }
        return fmt::format("shard {}: found {}, expected {}", i + 1, describe(is, i), describe(was, i));
    }
    return "";
}

Settings recorded_settings(const Options& o, const std::string& device) {
    const auto lines = config_lines(o);
    Settings settings(lines.begin(), lines.end());
    settings["device"] = device;
    settings["products"] = "cuBLASLt's first proposals";
    if (auto digest = o.tune_gemm.empty() ? std::nullopt : digest_file(o.tune_gemm)) {
        settings["products"] = fmt::format("those of a --tune-gemm file with XXH3 {:016x}", digest->xxh3);
    }
    return settings;
}

void note_inputs(const std::string& checkpoint, const std::string& model, double entropy, RunRecord* record) {
    record->settings["weights"] = digest_text(checkpoint.empty() ? model : checkpoint + "/MANIFEST");
    record->settings["entropy"] = fmt::format("{:g}", entropy);
}

void require_same_inputs(const RunRecord& root, const Options& options, const ShardSet& train,
                         const Validator* val, const std::string& device, const std::string& checkpoint,
                         const std::string& model) {
    RunRecord mine = read_here(root, options, train, val, device);
    note_inputs(checkpoint, model, val != nullptr ? val->entropy() : 0, &mine);
    const auto require_same = [](const std::string& difference, const std::string& what, const char* cure) {
        if (difference.empty()) { return; }
        throw Error(kExitBadInput, "this rank has other {} than rank 0: {}. {}", what, difference, cure);
    };
    constexpr const char* kCopy = "Give all ranks the same files.";
    require_same(difference(root.train_data, mine.train_data), "training data of " + options.train_data,
                 kCopy);
    require_same(difference(root.val_data, mine.val_data), "validation data of " + options.val_data, kCopy);
    const auto setting = [&](const char* name) {
        const std::string &found = mine.settings.at(name), &expected = root.settings.at(name);
        return found == expected ? "" : fmt::format("found {}, expected {}", found, expected);
    };
    require_same(setting("entropy"), "entropy in the val.json beside " + options.val_data, kCopy);
    require_same(setting("weights"), "weights in " + checkpoint + model, kCopy);
    require_same(setting("products"), "products in " + options.tune_gemm, kCopy);
    if (options.program != Program::kCpu) { return; }
    require_same(setting("device"), "threads or another CPU",
                 "The bits depend on both: start all with the same OMP_NUM_THREADS and, on unlike CPUs, "
                 "OPENBLAS_CORETYPE.");
}

RunRecord next_record(const RunRecord& was, const std::string& checkpoint, const Options& options,
                      const ShardSet& train, const Validator* val, const std::string& device,
                      std::string* notes) {
    RunRecord is = read_here(was, options, train, val, device);
    const std::string other = was.train_data.empty() ? "" : difference(was.train_data, is.train_data);
    throw_if(!other.empty() && !options.new_data, kExitBadInput,
             "{}: other data than {} was trained on: {}. Give the same data again, or go on with this from "
             "its start: --new-data.",
             train.pattern(), checkpoint, other);
    if (!other.empty()) {
        is.data_start = was.state.step;
        *notes += fmt::format("step {} | new training data, from its start: {}\n", was.state.step, other);
    }
    std::string other_val =
        was.val_data.empty() || val == nullptr ? "" : difference(was.val_data, is.val_data);
    if (!other_val.empty()) { *notes += "other validation data than before: " + other_val + "\n"; }
    const auto differs = [&](const char* name) {
        const std::string before = value_of(was.settings, name);
        return !before.empty() && before != is.settings[name];
    };
    if (is.best && (!other_val.empty() || differs("val-tokens") || differs("val-align"))) {
        is.best.reset();  // losses on other tokens do not compare
        is.since_best = 0;
        *notes += fmt::format(
            "the lowest loss so far, that of step {}, was on other tokens: --keep-best starts anew\n",
            was.best->step);
    }
    *notes += changed_settings(was.settings, is.settings);
    return is;
}

std::string run_header(const RunPlan& plan, const MemoryPlan& memory, const Device& device, double entropy,
                       const std::string& plan_text) {
    const Options& o = plan.options;
    JsonValue options = JsonValue::object();  // config.toml's values are as JSON writes them
    for (const auto& [name, value] : config_lines(o)) {
        const JsonValue parsed = JsonValue::parse(value, nullptr, false);
        options[name] = parsed.is_discarded() ? JsonValue(value) : parsed;
    }
    JsonValue header = {{"version", std::string("plumb ") + kVersion},
                        {"program", o.program == Program::kGpu ? "train_gpt2cu" : "train_gpt2"},
                        {"device", device.name},
                        {"peak_flops", device.peak_flops > 0 ? JsonValue(device.peak_flops) : JsonValue()},
                        {"parameters", num_parameters(plan.config)},
                        {"steps", plan.steps},
                        {"tokens_per_step", plan.rows_per_step * o.seq_len},
                        {"source_entropy", entropy > 0 ? JsonValue(entropy) : JsonValue()},
                        {"device_memory",
                         {{"parameters", memory.parameters},
                          {"gradients", memory.gradients},
                          {"optimizer", memory.optimizer},
                          {"activations", memory.activations}}},
                        {"plan", plan_text},
                        {"options", options}};
    if (!o.tune_gemm.empty()) { header["products"] = recorded_settings(o, device.name).at("products"); }
    return json_line(header);
}

}  // namespace llmc

// Whether a run goes on with the same data and settings: see run/data.h.
#include "llmc/model/run/data.h"

#include <algorithm>
#include <cinttypes>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "llmc/host/base/error.h"
#include "llmc/host/base/stop_signal.h"
#include "llmc/host/files/file_io.h"

namespace llmc {

namespace {

// of a run with other values here the numbers differ, as somebody may want
constexpr const char* kCourse[] = {
    "lr",    "warmup", "schedule", "final-lr-fraction", "weight-decay",     "beta1",
    "beta2", "eps",    "clip",     "skip-loss-zscore",  "skip-norm-zscore", "steps"};
// and with other values here by rounding only
constexpr const char* kRounding[] = {"batch", "dtype",  "grad-dtype",    "recompute",
                                     "tf32",  "device", "reduce-groups", "products"};

// these change what is kept or measured of a run: who leaves one out when it is resumed should hear of it
constexpr const char* kKept[] = {"save-every",   "keep",        "keep-major", "keep-best", "val-data",
                                 "val-every",    "val-tokens",  "val-align",  "hellaswag", "hellaswag-every",
                                 "sample-every", "model-dtype", "export-hf"};

using Settings = std::map<std::string, std::string>;

// whether the learning rate of these settings falls
bool falls(const Settings& settings) {
    auto fraction = settings.find("final-lr-fraction"), schedule = settings.find("schedule");
    return fraction != settings.end() && std::strtod(fraction->second.c_str(), nullptr) != 1 &&
           schedule != settings.end() && schedule->second != "\"constant\"";
}

std::string describe(const ShardRecord& shard) {
    return fmt::format("{} of {} tokens with XXH3 {:016x}", shard.name, shard.tokens, shard.xxh3);
}

}  // namespace

std::vector<ShardRecord> fingerprint(const ShardSet& set, const std::vector<ShardRecord>& known) {
    std::vector<ShardRecord> shards;
    for (const TokenShard& shard : set.shards()) {
        if (stop_requested) {
            throw Error(128 + stop_requested, "stopped by a signal before the run had begun");
        }
        ShardRecord record;
        record.name = std::filesystem::path(shard.path()).filename().string();
        record.tokens = shard.num_tokens();
        record.identity = file_identity(shard.path(), true);
        auto same = std::find_if(known.begin(), known.end(), [&](const ShardRecord& k) {
            return k.name == record.name && k.tokens == record.tokens && k.identity == record.identity;
        });
        if (same != known.end() && !record.identity.empty()) {
            record.xxh3 = same->xxh3;
        } else {
            auto digest = digest_file(shard.path(), shard.tokens_begin());
            if (!digest) { throw Error(kExitBadInput, shard.path() + ": this shard has just vanished"); }
            record.xxh3 = digest->xxh3;
        }
        shards.push_back(record);
    }
    return shards;
}

std::string difference(const std::vector<ShardRecord>& was, const std::vector<ShardRecord>& is) {
    for (size_t i = 0; i < std::max(was.size(), is.size()); i++) {
        if (i < was.size() && i < is.size() && was[i].tokens == is[i].tokens && was[i].xxh3 == is[i].xxh3) {
            continue;
        }
        return fmt::format("shard {}: found {}, expected {}", i + 1,
                           i < is.size() ? describe(is[i]) : "no shard",
                           i < was.size() ? describe(was[i]) : "no shard");
    }
    return "";
}

std::map<std::string, std::string> recorded_settings(const Options& o, const std::string& device) {
    std::map<std::string, std::string> settings;
    std::istringstream resolved(config_text(o));
    for (std::string line; std::getline(resolved, line);) {
        size_t equals = line.find(" = ");
        if (equals != std::string::npos) { settings[line.substr(0, equals)] = line.substr(equals + 3); }
    }
    settings["device"] = device;
    settings["products"] = "cuBLASLt's first proposals";
    if (auto digest = o.tune_gemm.empty() ? std::nullopt : digest_file(o.tune_gemm)) {
        settings["products"] = fmt::format("those of a --tune-gemm file with XXH3 {:016x}", digest->xxh3);
    }
    return settings;
}

std::string changed_settings(const std::map<std::string, std::string>& was,
                             const std::map<std::string, std::string>& is) {
    std::string text;
    auto compare = [&](const std::string& name, const char* meaning) {
        auto before = was.find(name), now = is.find(name);
        if (before == was.end() || now == is.end() || before->second == now->second) { return; }
        // of a learning rate that does not fall the number of steps changes nothing
        if (name == "steps" && !(falls(was) && falls(is))) { return; }
        text += fmt::format("{} was {}, is {} from here on{}\n", name, before->second, now->second, meaning);
    };
    for (const char* name : kCourse) { compare(name, ""); }
    for (const char* name : kKept) { compare(name, ""); }
    for (const char* name : kRounding) { compare(name, ": the same run but for rounding, not bit for bit"); }
    return text;
}

RunRecord read_here(const RunRecord& was, const Options& options, const ShardSet& train, const ShardSet* val,
                    const std::string& device) {
    RunRecord is = was;
    is.train_data = fingerprint(train, was.train_data);
    is.val_data = val != nullptr ? fingerprint(*val, was.val_data) : std::vector<ShardRecord>();
    is.settings = recorded_settings(options, device);
    return is;
}

std::string weights_digest(const std::string& checkpoint, const std::string& model) {
    if (!checkpoint.empty()) { return weights_digest("", checkpoint + "/MANIFEST"); }
    if (file_kind(model) != FileKind::kFolder) {
        const auto digest = model.empty() ? std::nullopt : digest_file(model);
        return digest ? fmt::format("XXH3 {:016x}", digest->xxh3) : "none";
    }
    std::string text;
    auto names = folder_names(model).value_or(std::vector<std::string>());
    std::ranges::sort(names);  // each disk lists them in an order of its own
    for (const std::string& name : names) {
        if (name.ends_with(".safetensors")) { text += weights_digest("", model + "/" + name) + " "; }
    }
    return text;
}

void require_same_inputs(const RunRecord& root, const RunRecord& mine, const Options& options,
                         const std::string& weights) {
    const auto require_same = [](const std::string& difference, const std::string& what, const char* cure) {
        if (difference.empty()) { return; }
        throw Error(kExitBadInput,
                    fmt::format("this rank has other {} than rank 0: {}. {}", what, difference, cure));
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
    require_same(setting("weights"), "weights in " + weights, kCopy);
    require_same(setting("products"), "products in " + options.tune_gemm, kCopy);
    if (options.program != Program::kCpu) { return; }
    require_same(setting("device"), "threads or another CPU",
                 "The bits depend on both: start all with the same OMP_NUM_THREADS and, on unlike CPUs, "
                 "OPENBLAS_CORETYPE.");
}

RunRecord next_record(const RunRecord& was, const std::string& checkpoint, const Options& options,
                      const ShardSet& train, const ShardSet* val, const std::string& device,
                      std::string* notes) {
    RunRecord is = read_here(was, options, train, val, device);
    std::string other = was.train_data.empty() ? "" : difference(was.train_data, is.train_data);
    if (!other.empty() && !options.new_data) {
        throw Error(
            kExitBadInput,
            fmt::format("{}: other data than {} was trained on: {}. Give the same data again, or go on with "
                        "this from its start: --new-data.",
                        train.pattern(), checkpoint, other));
    }
    if (!other.empty()) {
        is.data_start = was.state.step;
        *notes += fmt::format("step {} | new training data, from its start: {}\n", was.state.step, other);
    }
    std::string other_val =
        was.val_data.empty() || val == nullptr ? "" : difference(was.val_data, is.val_data);
    if (!other_val.empty()) { *notes += "other validation data than before: " + other_val + "\n"; }
    const auto differs = [&](const char* name) {
        const auto before = was.settings.find(name);
        return before != was.settings.end() && before->second != is.settings[name];
    };
    if (is.best && (!other_val.empty() || differs("val-tokens") || differs("val-align"))) {
        is.best.reset();  // losses on other tokens do not compare
        *notes += fmt::format(
            "the lowest loss so far, that of step {}, was on other tokens: --keep-best starts anew\n",
            was.best->step);
    }
    *notes += changed_settings(was.settings, is.settings);
    return is;
}

}  // namespace llmc

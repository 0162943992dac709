// See open_model.h.
#include "llmc/model/run/open_model.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <utility>
#include <vector>

#include "llmc/host/base/error.h"
#include "llmc/host/files/file_io.h"
#include "llmc/model/formats/checkpoint.h"
#include "llmc/model/formats/hf_model.h"
#include "llmc/model/run/folder.h"

namespace llmc {

namespace fs = std::filesystem;

namespace {

bool is_there(const fs::path& path) {
    std::error_code ignored;
    return fs::exists(path, ignored);
}

std::string folder_of(const fs::path& path) {
    const std::string folder = path.parent_path().string();
    return folder.empty() ? "." : folder;
}

NamedModel checkpoint_model(const std::string& folder) {
    const std::string damage = inspect_checkpoint(folder, Contents::kWeights).damage;
    if (!damage.empty()) {
        throw Error(kExitBadInput, damage + ". Name another step_ folder, or a run's model.bin.");
    }
    const std::string file = folder + "/model.safetensors";
    const bool has_tokenizer = std::ranges::any_of(
        kTokenizerFiles, [&](const char* name) { return is_there(fs::path(folder) / name); });
    return {std::make_unique<HfModel>(file), file, has_tokenizer ? folder : folder_of(fs::path(folder))};
}

// The newest step_ folder, unless log.jsonl says that the run ended with it or after it; then "". A run writes model.bin
// before that line; one that is lengthened drops the line, and keeps the model.bin of its earlier end until its new end.
// The times of files say nothing: a copy has its own.
std::string newer_step(const std::string& folder) {
    const std::string newest = newest_step(folder), end = "\n{\"event\":\"end\",\"step\":",
                      log =
                          read_whole(folder + "/log.jsonl", std::numeric_limits<int64_t>::max()).value_or("");
    const size_t at = log.rfind(end);
    if (newest.empty() || at == log.npos) { return newest; }
    const std::string last = checkpoint_name(folder, std::atoll(log.c_str() + at + end.size()));
    return std::pair(last.size(), last) < std::pair(newest.size(), newest) ? newest : "";
}

NamedModel folder_model(const std::string& name, std::string* notes) {
    const fs::path folder(name);
    if (is_there(folder / "MANIFEST")) { return checkpoint_model(name); }
    const bool of_run = is_there(folder / "model.bin") || is_there(folder / "log.jsonl");
    if (is_there(folder / "config.json") && of_run) {
        throw Error(kExitBadInput,
                    name +
                        ": a run and Hugging Face's GPT-2 (config.json) are both in this folder. Name the "
                        "one to use: its model.bin, a step_ folder, or model.safetensors.");
    }
    if (is_there(folder / "config.json")) { return {std::make_unique<HfModel>(name), name, name}; }
    if (is_there(folder / "model.bin")) {
        const std::string file = (folder / "model.bin").string();
        const std::string newer = newer_step(name);
        if (!newer.empty()) {
            *notes += file + ": log.jsonl does not say that the run ended with these weights: name " + newer +
                      " for its newest checkpoint's.\n";
        }
        return {std::make_unique<ModelFile>(file), file, name};
    }
    std::string newest = newest_step(name), passed;
    // a run that goes on may have deleted what was just found, or listed (--keep 1): then its next one is there
    const auto changed = [&] { return std::exchange(newest, newest_step(name)) != newest; };
    do {
        passed.clear();
        try {
            const std::string checkpoint = find_checkpoint(name, &passed);
            if (checkpoint.empty()) { continue; }
            NamedModel model = checkpoint_model(checkpoint);
            *notes += passed;
            return model;
        } catch (const Error&) {
            if (!changed()) { throw; }
            newest = "?";  // once more
        }
    } while (changed());
    *notes += passed;
    throw Error(kExitBadInput,
                name +
                    ": no model in this folder. Expected model.bin or a step_ folder, as train_gpt2 leaves "
                    "them, or config.json and model.safetensors, as Hugging Face's GPT-2 has them." +
                    (notes->empty() ? "" : "\n" + notes->substr(0, notes->size() - 1)));
}

}  // namespace

NamedModel open_model(const std::string& given, std::string* notes) {
    std::string name = given;
    while (name.size() > 1 && name.back() == '/') { name.pop_back(); }
    std::error_code ignored;
    if (fs::is_directory(name, ignored)) { return folder_model(name, notes); }
    if (name.ends_with(".safetensors")) { return {std::make_unique<HfModel>(name), name, folder_of(name)}; }
    if (!is_there(name)) {
        throw Error(
            kExitBadInput,
            name +
                ": cannot open: No such file or folder. Expected a run folder, a step_ folder, a *.bin, or a "
                "folder with Hugging Face's GPT-2: check its name. (A model that is only on the "
                "Hugging Face hub must be downloaded to a folder first.)");
    }
    return {std::make_unique<ModelFile>(name), name, folder_of(name)};
}

void load_start(Model* model, uint64_t seed, const std::string& checkpoint, const std::string& model_name) {
    model->init(seed);
    if (!checkpoint.empty()) {
        const Checkpoint source(checkpoint);
        model->set_updates(source.record().state.updates);
        load_checkpoint(source, writer(model));
    } else if (!model_name.empty()) {
        std::string notes;
        load_model(*open_model(model_name, &notes).source, writer(model));
    }
}

}  // namespace llmc

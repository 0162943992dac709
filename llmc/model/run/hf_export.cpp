// A model for Hugging Face's transformers: see hf_export.h.
#include "llmc/model/run/hf_export.h"

#include <algorithm>
#include <filesystem>

#include "llmc/host/base/error.h"
#include "llmc/host/files/file_io.h"
#include "llmc/model/formats/hf_model.h"

namespace llmc {

namespace fs = std::filesystem;

void require_empty_folder(const std::string& folder, const std::string& cure) {
    std::error_code ignored;
    if (!is_there(folder)) { return; }
    throw_if(!is_folder(folder), kExitUsage,
             "{}: this is a file. Expected an empty folder, or a name that is free.", folder);
    throw_if(!fs::is_empty(folder, ignored), kExitUsage, "{}: not an empty folder. {}", folder, cure);
}

void require_no_run_there(const std::string& folder, const std::string& cure) {
    for (const char* name : {"MANIFEST", "log.jsonl", "model.bin"}) {
        throw_if(is_there(folder + "/" + name), kExitUsage,
                 "{}: the folder of a run, or a checkpoint (it has {}). {}", folder, name, cure);
    }
}

namespace {

// absolute, without links and without a slash at its end
fs::path place_of(const std::string& folder) {
    std::error_code ignored;
    const auto path = fs::weakly_canonical(fs::absolute(folder, ignored), ignored);
    return path.has_filename() ? path : path.parent_path();
}

}  // namespace

std::string export_hf(const std::string& folder, const ModelSource& source,
                      const std::optional<Tokenizer>& tokenizer, FloatType type, std::string* note,
                      const std::string& run) {
    const GPT2Config& c = source.config();
    const FloatType stored = type == FloatType::kAuto ? source.type() : type;
    const bool encodes = tokenizer && tokenizer->can_encode();
    const TextFiles others = encodes ? tokenizer->files(c.max_seq_len) : TextFiles();
    for (const char* name : kTokenizerFiles) {
        if (others.contains(name) || file_kind(folder + "/" + name) == FileKind::kMissing) { continue; }
        throw Error(kExitUsage,
                    "{}/{}: of an earlier export, and not of this model. Give its --tokenizer, or choose "
                    "another folder.",
                    folder, name);
    }
    write_hf_model(folder, source, stored, end_of_text(tokenizer, c.vocab_size), run, others);
    std::string files =
        folder + ": model.safetensors (" + text_of(stored) + "), config.json, generation_config.json";
    for (const auto& [name, text] : others) { files += ", " + name; }
    if (!encodes) { *note = "no tokenizer was written: none that can encode is known. Give --tokenizer."; }
    return files;
}

void require_export_folder(const Options& o, const std::string& run_folder, const Descent& descent) {
    if (o.export_hf.empty()) { return; }
    const std::string cure = "Choose another --export-hf.";
    const fs::path run = place_of(run_folder), there = place_of(o.export_hf);
    const bool step = there.parent_path() == run && there.filename().string().starts_with("step_");
    if (there == run || step) { throw Error(kExitUsage, o.export_hf + ": the run's own folder. " + cure); }
    require_no_run_there(o.export_hf, cure);
    const std::string by = run_of_hf_model(o.export_hf);
    if (std::ranges::any_of(descent, [&](const Start& start) { return start.id == by; })) { return; }
    require_empty_folder(o.export_hf,
                         "It holds no export of this run. Empty it, or choose another --export-hf.");
}

std::string export_run(const Options& o, const std::string& run_folder, const Descent& descent,
                       const std::optional<Tokenizer>& tokenizer) {
    require_export_folder(o, run_folder, descent);
    std::string note;
    const ModelFile model(run_folder + "/model.bin");
    const std::string files =
        export_hf(o.export_hf, model, tokenizer, FloatType::kAuto, &note, descent.back().id);
    return "saved " + files + (note.empty() ? "" : "\n" + note);
}

}  // namespace llmc

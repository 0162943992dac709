// A model for Hugging Face's transformers: see hf_export.h.
#include "llmc/model/hf_export.h"

#include <filesystem>
#include <limits>

#include "llmc/host/error.h"
#include "llmc/host/log_lines.h"
#include "llmc/host/read_file.h"
#include "llmc/model/checkpoint.h"
#include "llmc/model/hf_model.h"

namespace llmc {

void require_empty_folder(const std::string& folder, const std::string& cure) {
    std::error_code ignored;
    if (std::filesystem::exists(folder, ignored) && !std::filesystem::is_empty(folder, ignored)) {
        throw Error(kExitUsage, folder + ": not an empty folder. " + cure);
    }
}

void require_no_run_there(const std::string& folder, const std::string& cure) {
    std::error_code ignored;
    for (const char* name : {"MANIFEST", "log.jsonl", "model.bin"}) {
        if (!std::filesystem::exists(folder + "/" + name, ignored)) { continue; }
        throw Error(kExitUsage, strf("%s: the folder of a run, or a checkpoint (it has %s). %s",
                                     folder.c_str(), name, cure.c_str()));
    }
}

std::string export_hf(const std::string& folder, const ModelSource& source,
                      const std::optional<Tokenizer>& tokenizer, const std::string& type, std::string* note) {
    const GPT2Config& c = source.config();
    const int end = tokenizer && tokenizer->end_of_text() >= 0 ? tokenizer->end_of_text() : c.vocab_size - 1;
    const std::string stored = type == "auto" ? source.type() : type;
    std::error_code ignored;
    const bool other_tokenizer = std::filesystem::exists(folder + "/tokenizer.json", ignored);
    if (other_tokenizer && (!tokenizer || !tokenizer->can_encode())) {
        throw Error(kExitUsage,
                    folder +
                        "/tokenizer.json: of another model, whose texts would become wrong tokens. Give "
                        "--tokenizer, or choose another folder.");
    }
    write_hf_model(folder, source, stored, end);
    std::string files = folder + ": model.safetensors (" + stored + "), config.json, generation_config.json";
    if (!tokenizer || !tokenizer->export_hf(folder, c.max_seq_len)) {
        *note = "no tokenizer was written: none that can encode is known. Give --tokenizer.";
        return files;
    }
    return files + ", tokenizer.json, tokenizer_config.json" +
           (tokenizer->bpe() == nullptr ? "" : ", vocab.json, merges.txt");
}

void require_export_folder(const Options& o, const std::string& run_folder, bool goes_on) {
    if (o.export_hf.empty()) { return; }
    const std::string cure = "Choose another --export-hf.";
    std::error_code ignored;
    if (std::filesystem::weakly_canonical(o.export_hf, ignored) ==
        std::filesystem::weakly_canonical(run_folder, ignored)) {
        throw Error(kExitUsage, o.export_hf + ": the folder of the run itself. " + cure);
    }
    require_no_run_there(o.export_hf, cure);
    const auto log =
        goes_on ? read_whole(run_folder + "/log.jsonl", std::numeric_limits<int64_t>::max()) : std::nullopt;
    if (!log || !has_exported(*log, o.export_hf)) { require_empty_folder(o.export_hf, cure); }
}

std::string export_run(const Options& o, const std::string& run_folder,
                       const std::optional<Tokenizer>& tokenizer) {
    std::string note;
    const std::string files =
        export_hf(o.export_hf, ModelFile(run_folder + "/model.bin"), tokenizer, "auto", &note);
    return "saved " + files + (note.empty() ? "" : "\n" + note);
}

}  // namespace llmc

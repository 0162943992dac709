// A model for Hugging Face's transformers: see hf_export.h.
#include "llmc/model/hf_export.h"

#include <filesystem>

#include "llmc/host/error.h"
#include "llmc/model/checkpoint.h"
#include "llmc/model/hf_model.h"

namespace llmc {

void require_empty_folder(const std::string& folder, const std::string& cure) {
    std::error_code ignored;
    if (std::filesystem::exists(folder, ignored) && !std::filesystem::is_empty(folder, ignored)) {
        throw Error(kExitUsage, folder + ": not an empty folder. " + cure);
    }
}

std::string export_hf(const std::string& folder, const ModelSource& source,
                      const std::optional<Tokenizer>& tokenizer, const std::string& type, std::string* note) {
    const GPT2Config& c = source.config();
    const int end = tokenizer && tokenizer->end_of_text() >= 0 ? tokenizer->end_of_text() : c.vocab_size - 1;
    const std::string stored = type == "auto" ? source.type() : type;
    write_hf_model(folder, source, stored, end);
    std::string files = folder + ": model.safetensors (" + stored + "), config.json, generation_config.json";
    if (!tokenizer || !tokenizer->export_hf(folder, c.max_seq_len)) {
        *note = "no tokenizer was written: none that can encode is known. Give --tokenizer.";
        return files;
    }
    return files + ", tokenizer.json, tokenizer_config.json" +
           (tokenizer->bpe() == nullptr ? "" : ", vocab.json, merges.txt");
}

void require_export_folder(const Options& o) {
    if (!o.export_hf.empty() && o.resume == "none") {
        require_empty_folder(o.export_hf, "Choose another --export-hf.");
    }
}

std::string export_run(const Options& o, const std::string& run_folder,
                       const std::optional<Tokenizer>& tokenizer) {
    std::string note;
    const std::string files =
        export_hf(o.export_hf, ModelFile(run_folder + "/model.bin"), tokenizer, "auto", &note);
    return "saved " + files + (note.empty() ? "" : "\n" + note);
}

}  // namespace llmc

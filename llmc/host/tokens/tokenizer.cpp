// Tokenizer: see tokenizer.h.
#include "llmc/host/tokens/tokenizer.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "llmc/host/base/error.h"
#include "llmc/host/base/utf8.h"
#include "llmc/host/files/binary_file.h"
#include "llmc/host/tokens/tokenizer_files.h"

namespace llmc {

namespace {

using Json = nlohmann::json;

constexpr int32_t kTokenizerMagic = 20240328;
constexpr int kMaxVocab = 1 << 20;
constexpr int kGpt2EndOfText = 50256;

}  // namespace

Tokenizer Tokenizer::bytes() {
    Tokenizer t;
    for (int byte = 0; byte < 256; byte++) { t.tokens_.emplace_back(1, (char)byte); }
    t.tokens_.emplace_back("<|endoftext|>");
    t.end_of_text_ = kByteEndOfText;
    t.bytes_ = true;
    t.added_ = {{kByteEndOfText, kEndOfText}};
    return t;
}

Tokenizer Tokenizer::numbers(int vocab_size) {
    Tokenizer t;
    for (int id = 0; id < vocab_size; id++) { t.tokens_.push_back(std::to_string(id) + " "); }
    return t;
}

Tokenizer Tokenizer::of(TokenizerFile file, const std::string& where) {
    Tokenizer t = is_byte_vocabulary(file) ? bytes() : Tokenizer();
    if (!t.bytes_) {
        t.end_of_text_ = file.end_of_text;
        t.bpe_ = std::make_shared<Bpe>(std::move(file.vocabulary), where);
        t.added_ = std::move(file.added);
        if (t.end_of_text_ >= 0) { t.added_.emplace_back(t.end_of_text_, t.decode(t.end_of_text_)); }
    }
    t.files_ = std::move(file.files);
    return t;
}

namespace {

// the two files that belong together
constexpr const char* kPairs[][2] = {{"encoder.json", "vocab.bpe"}, {"vocab.json", "merges.txt"}};

}  // namespace

std::optional<Tokenizer> Tokenizer::find(const std::string& folder) {
    std::error_code ignored;
    const auto is_there = [&](const char* name) {
        return std::filesystem::exists(folder + "/" + name, ignored);
    };
    if (is_there("tokenizer.json")) { return load(folder + "/tokenizer.json"); }
    for (const auto& [vocab, merges] : kPairs) {
        if (is_there(vocab) && is_there(merges)) { return load(folder + "/" + vocab); }
    }
    if (is_there("tokenizer.bin")) { return load_llmc(folder + "/tokenizer.bin"); }
    return std::nullopt;
}

Tokenizer Tokenizer::load(const std::string& path) {
    std::error_code ignored;
    if (std::filesystem::is_directory(path, ignored)) {
        std::optional<Tokenizer> found = find(path);
        if (found) { return *found; }
        throw Error(kExitBadInput,
                    path +
                        ": not a regular file, and no tokenizer in this folder. Expected tokenizer.json, "
                        "encoder.json with vocab.bpe, vocab.json with merges.txt, or tokenizer.bin.");
    }
    const std::filesystem::path name(path), folder = name.parent_path();
    for (const auto& [vocab, merges] : kPairs) {
        if (name.filename() != vocab && name.filename() != merges) { continue; }
        return of(read_vocab_and_merges((folder / vocab).string(), (folder / merges).string()), path);
    }
    if (name.extension() == ".json") { return of(read_tokenizer_json(path), path); }
    return load_llmc(path);
}

Tokenizer Tokenizer::load_llmc(const std::string& path) {
    const RegularFile file(path);
    HeaderReader header(file, "tokenizer", kTokenizerMagic,
                        "Get the file again, or leave --tokenizer out if the token shards are byte-level.");
    const int version = header.field(1, "version", 1, 2);
    const int vocab = header.field(2, "vocabulary size", 1, kMaxVocab);
    Tokenizer t;
    if (version >= 2) {
        t.end_of_text_ = header.field(3, "end-of-text token", 0, vocab - 1);
    } else if (vocab > kGpt2EndOfText) {
        t.end_of_text_ = kGpt2EndOfText;
    }
    const std::string all = file.text(kHeaderBytes + 256 * (size_t)vocab);
    std::string_view rest = std::string_view(all).substr(kHeaderBytes);
    if (rest.size() < 2 * (size_t)vocab) {  // before anything is allocated
        header.fail("file size", fmt::format("{} bytes", file.size()),
                    fmt::format("at least {} bytes = {} header + 2 x {} tokens",
                                kHeaderBytes + 2 * (size_t)vocab, kHeaderBytes, vocab));
    }
    t.tokens_.reserve((size_t)vocab);
    for (int id = 0; id < vocab; id++) {
        const size_t length = rest.empty() ? 0 : (uint8_t)rest[0];
        if (length == 0) {
            header.fail(fmt::format("token {}, length", id), rest.empty() ? "the end of the file" : "0",
                        "1 to 255");
        }
        if (rest.size() < 1 + length) {
            header.fail(fmt::format("token {}, bytes", id),
                        fmt::format("{} bytes before the end of the file", rest.size() - 1),
                        fmt::format("{}", length));
        }
        t.tokens_.emplace_back(rest.substr(1, length));
        rest.remove_prefix(1 + length);
    }
    header.require_size(file.size() - rest.size(), fmt::format("header and {} tokens", vocab));
    return t;
}

const std::string& Tokenizer::decode(int id) const {
    require(id >= 0 && id < vocab_size(), "Tokenizer: the token id must be in [0, vocab_size)");
    return tokens()[(size_t)id];
}

std::vector<int> Tokenizer::encode(std::string_view text) const {
    if (!can_encode()) {
        throw Error(kExitUsage,
                    "a prompt cannot be encoded: the tokenizer file says what the ids mean, not how to cut a "
                    "text into them. Leave the prompt out, or give --tokenizer a folder with GPT-2's "
                    "tokenizer.json, or its vocab.bpe and encoder.json.");
    }
    std::vector<int> ids;
    if (bytes_) {
        for (char c : text) { ids.push_back((uint8_t)c); }
    } else {
        Bpe::Cache cache;
        bpe_->encode(text, &cache, &ids);
    }
    return ids;
}

std::vector<int> Tokenizer::encode_prompt(std::string_view text, int rows) const {
    std::vector<int> ids;
    while (!text.empty()) {
        int next = -1;  // the first; of those that begin there the longest
        size_t at = text.size(), length = 0;
        for (const auto& [id, token] : added_) {
            const size_t here = std::min(text.find(token), text.size());
            if (here < at || (here == at && here < text.size() && token.size() > length)) {
                next = id, at = here, length = token.size();
            }
        }
        for (int id : encode(text.substr(0, at))) { ids.push_back(id); }
        if (next < 0) { break; }
        if (next >= rows) {
            throw Error(kExitUsage, fmt::format("the prompt has {}, token {}, and the model has but {} rows",
                                                quoted_name(decode(next)), next, rows));
        }
        ids.push_back(next);
        text.remove_prefix(at + length);
    }
    return ids;
}

namespace {

// 20240328, version 2; tokens of more than 255 bytes do not fit and are cut
std::string llmc_file(const std::vector<std::string>& tokens, int end_of_text) {
    const int32_t header[kHeaderWords] = {kTokenizerMagic, end_of_text < 0 ? 1 : 2, (int32_t)tokens.size(),
                                          std::max(0, end_of_text)};
    std::string bytes(reinterpret_cast<const char*>(header), sizeof(header));
    for (const std::string& token : tokens) {
        const std::string part = token.substr(0, 255);
        bytes += (char)part.size();
        bytes += part;
    }
    return bytes;
}

}  // namespace

TextFiles Tokenizer::files(int max_length) const {
    TextFiles files = files_;
    if (!can_encode()) { return {{"tokenizer.bin", llmc_file(tokens(), end_of_text_)}}; }
    const TokenizerFile file = {bpe_ ? bpe_->vocabulary() : BpeVocabulary{tokens_, {}}, {}, end_of_text_, {}};
    if (!files.contains("tokenizer.json") && !files.contains("merges.txt")) {
        files["tokenizer.json"] = tokenizer_json_text(file, !bytes_);
        if (!bytes_) { files["vocab.json"] = vocab_json_text(file), files["merges.txt"] = merges_text(file); }
    }
    Json config = {{"add_prefix_space", false},
                   {"clean_up_tokenization_spaces", false},
                   {"tokenizer_class", bytes_ ? "PreTrainedTokenizerFast" : "GPT2Tokenizer"}};
    for (const char* role : {"bos_token", "eos_token", "unk_token"}) {
        if (end_of_text_ >= 0) { config[role] = decode(end_of_text_); }
    }
    std::string& text = files["tokenizer_config.json"];
    if (!text.empty()) { config = Json::parse(text); }
    config["model_max_length"] = max_length;
    text = config.dump(2) + "\n";
    return files;
}

void Tokenizer::save(const std::string& folder, int max_length) const {
    for (const auto& [name, text] : files(max_length)) { write_text_file(folder + "/" + name, text); }
}

std::string Tokenizer::printable(const std::vector<int>& ids) const {
    std::string text;
    for (int id : ids) { text += decode(id); }
    return printable_text(text);
}

int end_of_text(const std::optional<Tokenizer>& tokenizer, int vocab_size) {
    return tokenizer && tokenizer->end_of_text() >= 0 ? tokenizer->end_of_text() : vocab_size - 1;
}

}  // namespace llmc

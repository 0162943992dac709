// Tokenizer: see tokenizer.h.
#include "llmc/host/tokens/tokenizer.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "llmc/host/base/error.h"
#include "llmc/host/base/text.h"
#include "llmc/host/files/file_io.h"
#include "llmc/host/files/json.h"

namespace llmc {

// ---- the public file formats --------------------------------------------------------------------

namespace fs = std::filesystem;

namespace {

constexpr size_t kMaxFile = 64 << 20;
constexpr int64_t kMaxVocab = 1 << 17;
constexpr JsonLimits kLimits = {500'000, 8};

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
    throw Error(kExitBadInput, path + ": not a usable tokenizer file: " + what);
}

// These files write each byte as one character: printable Latin-1 as itself, the other 68 bytes as U+0100 and
// what follows, in order.
constexpr std::array<uint16_t, 256> kCharacterOfByte = [] {
    std::array<uint16_t, 256> table{};
    uint16_t next = 256;
    for (int b = 0; b < 256; b++) {
        const bool itself = (b >= 33 && b <= 126) || (b >= 161 && b != 173);
        table[(size_t)b] = itself ? (uint16_t)b : next++;
    }
    return table;
}();

std::string to_byte_level(std::string_view bytes) {
    std::string text;
    for (char c : bytes) {
        const uint16_t code = kCharacterOfByte[(uint8_t)c];
        if (code < 128) {
            text += (char)code;
        } else {
            text += {(char)(0xc0 | code >> 6), (char)(0x80 | (code & 0x3f))};
        }
    }
    return text;
}

// false if a character stands for no byte
bool from_byte_level(std::string_view text, std::string* bytes) {
    static const std::array<int, 324> byte_of = [] {
        std::array<int, 324> table;
        table.fill(-1);
        for (int b = 0; b < 256; b++) { table[kCharacterOfByte[(size_t)b]] = b; }
        return table;
    }();
    bytes->clear();
    while (!text.empty()) {
        const size_t length = utf8_length(text);
        const uint32_t code = length == 0 ? 0 : utf8_code_point(text, length);
        if (length == 0 || code >= byte_of.size() || byte_of[code] < 0) { return false; }
        *bytes += (char)byte_of[code];
        text.remove_prefix(length);
    }
    return true;
}

std::string bytes_of(const std::string& path, std::string_view text) {
    std::string bytes;
    if (text.empty() || !from_byte_level(text, &bytes)) {
        refuse(path, quoted_name(text) + " is no byte-level token");
    }
    return bytes;
}

// puts a token at its id
void place(const std::string& path, int64_t id, std::string bytes, std::vector<std::string>* tokens) {
    if (id < 0 || id >= kMaxVocab) {
        refuse(path, fmt::format("found id {}, expected 0 to {}", id, (long long)kMaxVocab - 1));
    }
    if (bytes.empty()) { refuse(path, fmt::format("the text of id {} is empty", id)); }
    if ((size_t)id >= tokens->size()) { tokens->resize((size_t)id + 1); }
    std::string& token = (*tokens)[(size_t)id];
    if (!token.empty() && token != bytes) {
        refuse(path,
               fmt::format("id {} stands for both {} and {}", id, quoted_name(token), quoted_name(bytes)));
    }
    token = std::move(bytes);
}

// added: of texts as they are, and not byte-level
void read_vocab(const std::string& path, const JsonValue* value, TokenizerFile* file, bool added = false) {
    const auto* members = json_as<JsonValue::object_t>(value);
    if (members == nullptr || members->empty()) { refuse(path, "expected an object of token: id"); }
    for (const auto& [text, number] : *members) {
        const int64_t* id = json_as<int64_t>(&number);
        if (id == nullptr) { refuse(path, quoted_name(text) + " has no whole number as its id"); }
        if (std::ranges::count(file->added, std::pair((int)*id, text)) > 0) {
            continue;
        }  // need not be byte-level
        place(path, *id, added ? text : bytes_of(path, text), &file->vocabulary.tokens);
        if (added) { file->added.emplace_back(*id, text); }
    }
}

void require_no_gaps(const std::string& path, const TokenizerFile& file) {
    const auto& tokens = file.vocabulary.tokens;
    for (size_t id = 0; id < tokens.size(); id++) {
        if (tokens[id].empty()) {
            refuse(path, fmt::format("no token has id {}, but later ones are there", id));
        }
    }
}

// "left right"
std::pair<std::string, std::string> merge_of(const std::string& path, std::string_view line) {
    const size_t blank = line.find(' ');
    if (blank == std::string_view::npos || line.find(' ', blank + 1) != std::string_view::npos) {
        refuse(path, "the merge " + quoted_name(line) + " is not two tokens with a blank between");
    }
    return {bytes_of(path, line.substr(0, blank)), bytes_of(path, line.substr(blank + 1))};
}

// ---- tokenizer.json ----------------------------------------------------------------------------

// a member that, if it is there at all, must be this
template <typename T>
void expect(const std::string& path, const JsonValue* object, const char* name, const T& expected) {
    const JsonValue* value = json_find(object, name);
    if (value == nullptr || value->is_null()) { return; }
    const T* found = json_as<T>(value);
    if (found == nullptr || *found != expected) {
        refuse(path, fmt::format("\"{}\" has a value that cuts texts in another way than GPT-2 does", name));
    }
}

// the one there is, or the only one of a sequence
const JsonValue* pre_tokenizer(const JsonValue& root) {
    const JsonValue* cutter = json_find(&root, "pre_tokenizer");
    const auto* list = json_as<JsonValue::array_t>(json_find(cutter, "pretokenizers"));
    return list != nullptr && list->size() == 1 ? &list->front() : cutter;
}

void check_kind(const std::string& path, const JsonValue& root) {
    const JsonValue* model = json_find(&root, "model");
    if (model == nullptr) { refuse(path, "\"model\" is missing"); }
    expect<std::string>(path, model, "type", "BPE");
    for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
        expect<std::string>(path, model, name, "");
    }
    for (const char* name : {"byte_fallback", "ignore_merges", "fuse_unk"}) {
        expect(path, model, name, false);
    }
    expect(path, model, "dropout", 0.0);
    const JsonValue* normalizer = json_find(&root, "normalizer");
    const auto* none = json_as<JsonValue::array_t>(json_find(normalizer, "normalizers"));
    if (normalizer != nullptr && !normalizer->is_null() && (none == nullptr || !none->empty())) {
        refuse(path, "it has a \"normalizer\"");
    }
    const JsonValue* cutter = pre_tokenizer(root);
    if (cutter == nullptr || cutter->is_null()) { refuse(path, "\"pre_tokenizer\" is missing"); }
    expect<std::string>(path, cutter, "type", "ByteLevel");
    expect(path, cutter, "add_prefix_space", false);
}

bool uses_regex(const JsonValue& root) {
    const bool* use = json_get<bool>(*pre_tokenizer(root), "use_regex");
    return use == nullptr || *use;
}

void read_added_tokens(const std::string& path, const JsonValue* value, TokenizerFile* file) {
    const auto* list = json_as<JsonValue::array_t>(value);
    if (list == nullptr) { return; }
    for (const JsonValue& item : *list) {
        const auto* number = json_get<int64_t>(item, "id");
        const auto* text = json_get<std::string>(item, "content");
        if (number == nullptr || text == nullptr) {
            refuse(path, "an added token has no \"id\" or no \"content\"");
        }
        place(path, *number, *text, &file->vocabulary.tokens);
        file->added.emplace_back(*number, *text);
    }
}

void read_merges(const std::string& path, const JsonValue* value, TokenizerFile* file) {
    const auto* list = json_as<JsonValue::array_t>(value);
    if (list == nullptr) { refuse(path, "\"merges\" is missing"); }
    for (const JsonValue& item : *list) {
        if (const auto* line = json_as<std::string>(&item)) {
            file->vocabulary.merges.push_back(merge_of(path, *line));
            continue;
        }
        const bool two = item.is_array() && item.size() == 2;
        const auto *a = json_as<std::string>(two ? &item[0] : nullptr),
                   *b = json_as<std::string>(two ? &item[1] : nullptr);
        if (a == nullptr || b == nullptr) { refuse(path, "a merge is not two tokens"); }
        file->vocabulary.merges.push_back({bytes_of(path, *a), bytes_of(path, *b)});
    }
}

// the files beside one, and what they call the end of a text, where that is a token
void read_beside(const std::string& path, TokenizerFile* file) {
    const auto& tokens = file->vocabulary.tokens;
    const auto find = [&](const std::string& text) {
        const auto at = std::find(tokens.begin(), tokens.end(), text);
        return at == tokens.end() ? -1 : (int)(at - tokens.begin());
    };
    const auto beside = [&](const char* name) { return fs::path(path).replace_filename(name).string(); };
    for (const char* name : kTokenizerFiles) {
        if (auto text = read_whole(beside(name), kMaxFile)) { file->files[name] = *text; }
    }
    file->end_of_text = find(kEndOfText);
    for (const char* name : {"special_tokens_map.json", "tokenizer_config.json"}) {  // the newer one decides
        if (!file->files.contains(name)) { continue; }
        const JsonValue root = parse_json(file->files[name], beside(name), kLimits);
        if (!root.is_object()) { refuse(beside(name), "expected an object"); }
        const JsonValue* end = json_find(&root, "eos_token");  // a text, or an object with one
        const auto* text =
            json_as<std::string>(end != nullptr && end->is_object() ? json_find(end, "content") : end);
        if (text != nullptr && find(*text) >= 0) { file->end_of_text = find(*text); }
    }
}

}  // namespace

TokenizerFile read_vocab_and_merges(const std::string& vocab_path, const std::string& merges_path) {
    TokenizerFile file;
    const JsonValue vocab = read_json_file(vocab_path, kMaxFile, kLimits);
    const auto added_path = fs::path(vocab_path).replace_filename("added_tokens.json").string();
    if (file_kind(added_path) != FileKind::kMissing) {
        const JsonValue added = read_json_file(added_path, kMaxFile, kLimits);
        read_vocab(added_path, &added, &file, true);
    }
    read_vocab(vocab_path, &vocab, &file);
    require_no_gaps(vocab_path, file);
    read_beside(vocab_path, &file);
    file.files.erase("tokenizer.json");  // which says the same, or something else
    const std::string merges = RegularFile(merges_path).text(kMaxFile);
    std::string_view text = merges;
    if (text.starts_with("\xef\xbb\xbf")) { text.remove_prefix(3); }  // a byte order mark
    bool first = true;
    while (!text.empty()) {
        const size_t end = std::min(text.find('\n'), text.size());
        std::string_view line = text.substr(0, end);
        text.remove_prefix(std::min(end + 1, text.size()));
        if (line.ends_with('\r')) { line.remove_suffix(1); }
        const bool comment = first && line.starts_with("#version");
        first = false;
        if (line.empty() || comment) { continue; }
        if (file.vocabulary.merges.size() == (size_t)kMaxVocab) { refuse(merges_path, "too many merges"); }
        file.vocabulary.merges.push_back(merge_of(merges_path, line));
    }
    return file;
}

TokenizerFile read_tokenizer_json(const std::string& path) {
    const std::string text = RegularFile(path).text(kMaxFile);
    const JsonValue root = parse_json(text, path, kLimits);
    check_kind(path, root);
    TokenizerFile file;
    const JsonValue* model = json_find(&root, "model");
    read_added_tokens(path, json_find(&root, "added_tokens"), &file);
    read_vocab(path, json_find(model, "vocab"), &file);
    read_merges(path, json_find(model, "merges"), &file);
    require_no_gaps(path, file);
    read_beside(path, &file);
    file.files["tokenizer.json"] = text;
    if (!uses_regex(root) && !is_byte_vocabulary(file)) {
        refuse(path, "\"use_regex\" is false, but words are merged: texts would be cut in another way");
    }
    return file;
}

bool is_byte_vocabulary(const TokenizerFile& file) {
    const auto& tokens = file.vocabulary.tokens;
    bool bytes = file.vocabulary.merges.empty() && tokens.size() == 257 && file.end_of_text == 256;
    for (int b = 0; bytes && b < 256; b++) { bytes = tokens[(size_t)b] == std::string(1, (char)b); }
    return bytes;
}

std::string vocab_json_text(const TokenizerFile& file) {
    std::string text = "{";
    const auto& tokens = file.vocabulary.tokens;
    for (size_t id = 0; id < tokens.size(); id++) {
        text += fmt::format("{}{}:{}", id == 0 ? "" : ",", json_text(to_byte_level(tokens[id])), id);
    }
    return text + "}";
}

std::string merges_text(const TokenizerFile& file) {
    std::string text = "#version: 0.2\n";
    for (const auto& [left, right] : file.vocabulary.merges) {
        text += to_byte_level(left) + " " + to_byte_level(right) + "\n";
    }
    return text;
}

std::string tokenizer_json_text(const TokenizerFile& file, bool use_regex) {
    std::string added;
    if (file.end_of_text >= 0) {
        added = fmt::format(
            "{{\"id\":{},\"content\":{},\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
            "\"normalized\":false,\"special\":true}}",
            file.end_of_text, json_text(file.vocabulary.tokens[(size_t)file.end_of_text]));
    }
    std::string merges;
    for (const auto& [left, right] : file.vocabulary.merges) {
        merges += (merges.empty() ? "" : ",") + json_text(to_byte_level(left) + " " + to_byte_level(right));
    }
    const char* regex = use_regex ? "true" : "false";
    return fmt::format(
               "{{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[{}],"
               "\"normalizer\":null,\"pre_tokenizer\":{{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
               "\"trim_offsets\":true,\"use_regex\":{}}},\"post_processor\":null,\"decoder\":{{\"type\":"
               "\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":{}}},\"model\":{"
               "{"
               "\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":\"\","
               "\"end_of_word_suffix\":\"\",\"fuse_unk\":false,\"byte_fallback\":false,"
               "\"ignore_merges\":false,",
               added, regex, regex) +
           "\"vocab\":" + vocab_json_text(file) + ",\"merges\":[" + merges + "]}}\n";
}

// ---- the tokenizer ------------------------------------------------------------------------------

namespace {

using SortedJson = nlohmann::json;

constexpr int32_t kTokenizerMagic = 20240328;
constexpr int kMostLlmcTokens = 1 << 20;
constexpr int kGpt2EndOfText = 50256;
// the two files that belong together
constexpr const char* kPairs[][2] = {{"encoder.json", "vocab.bpe"}, {"vocab.json", "merges.txt"}};

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
    const int vocab = header.field(2, "vocabulary size", 1, kMostLlmcTokens);
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
                next = id;
                at = here;
                length = token.size();
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
        if (!bytes_) {
            files["vocab.json"] = vocab_json_text(file);
            files["merges.txt"] = merges_text(file);
        }
    }
    SortedJson config = {{"add_prefix_space", false},
                         {"clean_up_tokenization_spaces", false},
                         {"tokenizer_class", bytes_ ? "PreTrainedTokenizerFast" : "GPT2Tokenizer"}};
    for (const char* role : {"bos_token", "eos_token", "unk_token"}) {
        if (end_of_text_ >= 0) { config[role] = decode(end_of_text_); }
    }
    std::string& text = files["tokenizer_config.json"];
    if (!text.empty()) { config = parse_json(text, "tokenizer_config.json", kLimits); }
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

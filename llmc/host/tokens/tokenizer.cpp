// Tokenizer: see tokenizer.h.
#include "llmc/host/tokens/tokenizer.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <queue>
#include <span>
#include <sstream>

#include "llmc/host/base/error.h"
#include "llmc/host/base/text.h"
#include "llmc/host/files/file_io.h"
#include "llmc/host/files/json.h"
#include "llmc/host/tokens/unicode_classes.h"

namespace llmc {

namespace fs = std::filesystem;

// ---- byte-pair encoding -------------------------------------------------------------------------

namespace {

constexpr size_t kMaxWord = 1 << 20;  // bytes
constexpr size_t kMostCached = 27;    // bytes of a word
constexpr size_t kLookAhead = 8;      // bytes behind a word that decide where it ends

// of each character up to the last letter: L, N, S, or O for another
const std::vector<char> kKinds = [] {
    std::vector<char> kinds;
    const auto put = [&](char kind, std::span<const uint32_t> runs) {
        size_t at = 0;
        for (size_t i = 0; i < runs.size(); i += 2) {
            at += runs[i];
            kinds.resize(std::max(kinds.size(), at + runs[i + 1]), 'O');
            std::fill_n(kinds.begin() + (ptrdiff_t)at, runs[i + 1], kind);
            at += runs[i + 1];
        }
    };
    put('L', kLetterRuns);
    put('N', kDigitRuns);
    put('S', kSpaceRuns);
    return kinds;
}();

struct Character {
    char kind;  // L, N, S, or O: another
    size_t length;
};

Character character_at(std::string_view text, size_t at) {
    const uint8_t first = (uint8_t)text[at];
    if (first < 128) { return {kKinds[first], 1}; }
    const std::string_view rest = text.substr(at);
    const size_t length = utf8_length(rest);
    const uint32_t code = length == 0 ? UINT32_MAX : utf8_code_point(rest, length);
    return {code < kKinds.size() ? kKinds[code] : 'O', std::max<size_t>(1, length)};
}

size_t contraction(std::string_view text) {
    if (!text.starts_with('\'')) { return 0; }
    for (const std::string_view c : {"'s", "'d", "'m", "'t", "'ll", "'ve", "'re"}) {
        if (text.starts_with(c)) { return c.size(); }
    }
    return 0;
}

// the end of the run of characters of this kind that includes `at`
size_t run_end(std::string_view text, size_t at, char kind) {
    while (at < text.size()) {
        const Character next = character_at(text, at);
        if (next.kind != kind) { break; }
        at += next.length;
    }
    return at;
}

size_t word_length(std::string_view text) {
    if (const size_t length = contraction(text)) { return length; }
    const Character first = character_at(text, 0);
    if (first.kind != 'S') { return run_end(text, first.length, first.kind); }
    if (text[0] == ' ' && text.size() > 1) {
        const Character second = character_at(text, 1);
        if (second.kind != 'S') { return run_end(text, 1 + second.length, second.kind); }
    }
    // spaces: all if the text ends with them; else all but the last, which may belong to the next word
    size_t last = 0, end = first.length;
    while (end < text.size()) {
        const Character next = character_at(text, end);
        if (next.kind != 'S') { return last > 0 ? last : end; }
        last = end;
        end += next.length;
    }
    return end;
}

}  // namespace

size_t bpe_word(std::string_view text) {
    // what lies beyond a very long word cannot change how it is cut
    const size_t length = word_length(text.substr(0, kMaxWord + kLookAhead));
    return length > kMaxWord ? kMaxWord - utf8_unfinished(text.substr(0, kMaxWord)) : length;
}

bool bpe_can_cut(std::string_view text, size_t at) {
    if (at == 0 || at + 1 >= text.size() || (text[at] != ' ' && text[at] != '\n')) { return false; }
    // a space or a newline between two characters that are no spaces begins a word
    if (character_at(text, at + 1).kind == 'S') { return false; }
    for (size_t length = 1; length <= std::min<size_t>(3, at); length++) {  // spaces have 1 to 3 bytes
        const Character before = character_at(text.substr(0, at), at - length);
        if (before.kind == 'S' && before.length == length) { return false; }
    }
    return true;
}

Bpe::Bpe(const BpeVocabulary& vocabulary, const std::string& where) {
    const auto fail = [&](const std::string& what) {
        throw Error(kExitBadInput, where + ": not a usable byte-level BPE: " + what);
    };
    std::unordered_map<std::string_view, int> id_of;
    for (const std::string& token : vocabulary.tokens) {
        id_of.emplace(token, (int)(&token - vocabulary.tokens.data()));
    }
    for (int byte = 0; byte < 256; byte++) {
        const auto at = id_of.find(std::string(1, (char)byte));
        if (at == id_of.end()) { fail(fmt::format("no token for byte 0x{:02x}", byte)); }
        byte_id_[(size_t)byte] = at->second;
        text_ids_ = std::max(text_ids_, at->second + 1);
    }
    for (const auto& [left, right] : vocabulary.merges) {
        const auto a = id_of.find(left), b = id_of.find(right), both = id_of.find(left + right);
        const int rank = (int)merges_.size();
        const bool known = a != id_of.end() && b != id_of.end() && both != id_of.end();
        if (!known || !merges_.emplace(key(a->second, b->second), Merge{rank, both->second}).second) {
            fail(fmt::format("merge {}, of {} and {}{}", rank, quoted_name(left), quoted_name(right),
                             known ? ", stands twice" : ": one of these two, or both joined, is no token"));
        }
        text_ids_ = std::max(text_ids_, both->second + 1);
    }
}

void Bpe::encode(std::string_view text, Cache* cache, std::vector<int>* ids) const {
    for (size_t at = 0, length = 0; at < text.size(); at += length) {
        length = bpe_word(text.substr(at));
        const std::string_view word = text.substr(at, length);
        auto& [known, parts] = cache->words_[std::hash<std::string_view>()(word) % cache->words_.size()];
        if (known != word) {
            known = word;
            parts.clear();
            for (char c : word) { parts.push_back(byte_id_[(uint8_t)c]); }
            merge(&parts);
        }
        ids->insert(ids->end(), parts.begin(), parts.end());
        if (length > kMostCached) { known = {}, parts = {}; }
    }
}

// A heap of possible merges, a list of the parts that are left: n log n. A merge that is no longer possible, because a
// neighbour was merged first, is noticed when its turn comes.
void Bpe::merge(std::vector<int>* ids) const {
    std::vector<int>& parts = *ids;
    struct Candidate {
        Merge merge;
        int at, left, right;
        bool operator<(const Candidate& other) const {  // the queue's top is the largest
            return std::pair(merge.rank, at) > std::pair(other.merge.rank, other.at);
        }
    };
    const int n = (int)parts.size();
    std::vector<int> before(parts.size()), after(parts.size());  // its neighbours; -1: none
    std::priority_queue<Candidate> queue;
    const auto offer = [&](int at, int next) {
        if (at < 0 || next < 0) { return; }
        const auto found = merges_.find(key(parts[at], parts[next]));
        if (found != merges_.end()) { queue.push({found->second, at, parts[at], parts[next]}); }
    };
    for (int i = 0; i < n; i++) {
        before[i] = i - 1;
        after[i] = i + 1 < n ? i + 1 : -1;
        offer(i, after[i]);
    }
    while (!queue.empty()) {
        const Candidate c = queue.top();
        queue.pop();
        const int gone = after[c.at];
        if (parts[c.at] != c.left || gone < 0 || parts[gone] != c.right) { continue; }
        parts[c.at] = c.merge.id;
        parts[gone] = -1;
        after[c.at] = after[gone];
        if (after[c.at] >= 0) { before[after[c.at]] = c.at; }
        offer(before[c.at], c.at);
        offer(c.at, after[c.at]);
    }
    std::erase(parts, -1);
}

// ---- the public file formats, read --------------------------------------------------------------

namespace {

constexpr size_t kMaxFile = 64 << 20;
constexpr int64_t kMaxVocab = 1 << 17;
constexpr const char* kEndOfText = "<|endoftext|>";
constexpr int32_t kTokenizerMagic = 20240328;
constexpr int kMostLlmcTokens = 1 << 20;
constexpr int kGpt2EndOfText = 50256;
// the two files that belong together
constexpr const char* kPairs[][2] = {{"encoder.json", "vocab.bpe"}, {"vocab.json", "merges.txt"}};

// These files write each byte as a character: printable Latin-1 as itself, the other 68 as U+0100 and on, in order.
constexpr std::array<uint16_t, 256> kCharacterOfByte = [] {
    std::array<uint16_t, 256> table{};
    uint16_t next = 256;
    for (int b = 0; b < 256; b++) {
        const bool itself = (b >= 33 && b <= 126) || (b >= 161 && b != 173);
        table[(size_t)b] = itself ? (uint16_t)b : next++;
    }
    return table;
}();
constexpr std::array<int, 256 + 68> kByteOfCharacter = [] {
    std::array<int, 256 + 68> table{};
    table.fill(-1);
    for (int b = 0; b < 256; b++) { table[kCharacterOfByte[(size_t)b]] = b; }
    return table;
}();

std::string to_byte_level(std::string_view bytes) {
    std::string text;
    for (char c : bytes) {
        const uint16_t code = kCharacterOfByte[(uint8_t)c];
        if (code >= 128) { text += (char)(0xc0 | code >> 6); }
        text += (char)(code < 128 ? code : 0x80 | (code & 0x3f));
    }
    return text;
}

// true if a tokenizer.json of this kind means one token for each byte: no words are cut, nothing is merged
bool is_byte_vocabulary(const TokenizerFile& file) {
    const auto& tokens = file.vocabulary.tokens;
    bool bytes = file.vocabulary.merges.empty() && tokens.size() == 257 && file.end_of_text == 256;
    for (int b = 0; bytes && b < 256; b++) { bytes = tokens[(size_t)b] == std::string(1, (char)b); }
    return bytes;
}

class FileReader {
public:
    TokenizerFile vocab_and_merges(const std::string& vocab_path, const std::string& merges_path) {
        const JsonValue vocab = read_json_file(vocab_path, kMaxFile);
        path_ = fs::path(vocab_path).replace_filename("added_tokens.json").string();
        if (file_kind(path_) != FileKind::kMissing) {
            const JsonValue added = read_json_file(path_, kMaxFile);
            read_vocab(&added, true);
        }
        path_ = vocab_path;
        read_vocab(&vocab, false);
        finish();
        file_.files.erase("tokenizer.json");  // which says the same, or something else
        path_ = merges_path;
        std::istringstream merges(RegularFile(merges_path).text(kMaxFile));
        bool first = true;
        for (std::string line; std::getline(merges, line); first = false) {
            if (first && line.starts_with("\xef\xbb\xbf")) { line.erase(0, 3); }  // a byte order mark
            if (line.ends_with('\r')) { line.pop_back(); }
            if (line.empty() || (first && line.starts_with("#version"))) { continue; }
            if (file_.vocabulary.merges.size() == (size_t)kMaxVocab) { refuse("too many merges"); }
            add_merge(line);
        }
        return file_;
    }

    TokenizerFile tokenizer_json(const std::string& path) {
        path_ = path;
        const std::string text = RegularFile(path).text(kMaxFile);
        const JsonValue root = parse_json(text, path);
        const JsonValue* model = json_find(&root, "model");
        const JsonValue* cutter = check_kind(root, model);
        read_added_tokens(json_find(&root, "added_tokens"));
        read_vocab(json_find(model, "vocab"), false);
        read_merges(json_find(model, "merges"));
        finish();
        path_ = path;
        file_.files["tokenizer.json"] = text;
        const bool* use_regex = json_get<bool>(*cutter, "use_regex");
        if (use_regex != nullptr && !*use_regex && !is_byte_vocabulary(file_)) {
            refuse("\"use_regex\" is false, but words are merged: texts would be cut in another way");
        }
        return file_;
    }

private:
    template <typename... Args>
    [[noreturn]] void refuse(fmt::format_string<Args...> what, Args&&... args) const {
        throw Error(kExitBadInput, "{}: not a usable tokenizer file: {}", path_,
                    fmt::format(what, std::forward<Args>(args)...));
    }

    std::string bytes_of(std::string_view text) const {
        std::string bytes;
        std::string_view rest = text;
        do {
            const size_t length = utf8_length(rest);  // 0 of an empty text, too
            const uint32_t code = length == 0 ? UINT32_MAX : utf8_code_point(rest, length);
            if (code >= kByteOfCharacter.size() || kByteOfCharacter[code] < 0) {
                refuse("{} is no byte-level token", quoted_name(text));
            }
            bytes += (char)kByteOfCharacter[code];
            rest.remove_prefix(length);
        } while (!rest.empty());
        return bytes;
    }
    // puts a token at its id
    void place(int64_t id, std::string bytes) {
        auto& tokens = file_.vocabulary.tokens;
        if (id < 0 || id >= kMaxVocab) { refuse("found id {}, expected 0 to {}", id, kMaxVocab - 1); }
        if (bytes.empty()) { refuse("the text of id {} is empty", id); }
        if ((size_t)id >= tokens.size()) { tokens.resize((size_t)id + 1); }
        std::string& token = tokens[(size_t)id];
        if (!token.empty() && token != bytes) {
            refuse("id {} stands for both {} and {}", id, quoted_name(token), quoted_name(bytes));
        }
        token = std::move(bytes);
    }
    // an added token: a text as it is, and not byte-level
    void add(int64_t id, const std::string& text) {
        place(id, text);
        file_.added.emplace_back(id, text);
    }
    void read_vocab(const JsonValue* value, bool added) {
        const auto* members = json_as<JsonValue::object_t>(value);
        if (members == nullptr || members->empty()) { refuse("expected an object of token: id"); }
        for (const auto& [text, number] : *members) {
            const int64_t* id = json_as<int64_t>(&number);
            if (id == nullptr) { refuse("{} has no whole number as its id", quoted_name(text)); }
            if (added) {
                add(*id, text);
            } else if (std::ranges::count(file_.added, std::pair((int)*id, text)) == 0) {
                place(*id, bytes_of(text));
            }
        }
    }
    void read_added_tokens(const JsonValue* value) {
        const auto* list = json_as<JsonValue::array_t>(value);
        if (list == nullptr) { return; }
        for (const JsonValue& item : *list) {
            const auto* id = json_get<int64_t>(item, "id");
            const auto* text = json_get<std::string>(item, "content");
            if (id == nullptr || text == nullptr) {
                refuse("an added token has no \"id\" or no \"content\"");
            }
            add(*id, *text);
        }
    }
    // "left right"
    void add_merge(std::string_view line) {
        const size_t blank = line.find(' ');
        if (blank == line.npos || line.find(' ', blank + 1) != line.npos) {
            refuse("the merge {} is not two tokens with a blank between", quoted_name(line));
        }
        file_.vocabulary.merges.emplace_back(bytes_of(line.substr(0, blank)),
                                             bytes_of(line.substr(blank + 1)));
    }
    void read_merges(const JsonValue* value) {
        const auto* list = json_as<JsonValue::array_t>(value);
        if (list == nullptr) { refuse("\"merges\" is missing"); }
        for (const JsonValue& item : *list) {
            if (const auto* line = json_as<std::string>(&item)) {
                add_merge(*line);
            } else if (item.is_array() && item.size() == 2 && item[0].is_string() && item[1].is_string()) {
                const auto &left = item[0].get_ref<const std::string&>(),
                           &right = item[1].get_ref<const std::string&>();
                file_.vocabulary.merges.emplace_back(bytes_of(left), bytes_of(right));
            } else {
                refuse("a merge is not two tokens");
            }
        }
    }

    // members that, if they are there at all, must be these
    void expect(const JsonValue* object, const char* members) const {
        const JsonValue all = JsonValue::parse(members);
        for (const auto& [name, expected] : all.items()) {
            const JsonValue* value = json_find(object, name);
            if (value == nullptr || value->is_null()) { continue; }
            if (value->type() == expected.type() && *value == expected) { continue; }
            refuse("\"{}\" has a value that cuts texts in another way than GPT-2 does", name);
        }
    }
    // returns the pre-tokenizer: the one there is, or the only one of a sequence
    const JsonValue* check_kind(const JsonValue& root, const JsonValue* model) const {
        if (model == nullptr) { refuse("\"model\" is missing"); }
        expect(model, R"({"type": "BPE", "continuing_subword_prefix": "", "end_of_word_suffix": "",
                          "byte_fallback": false, "ignore_merges": false, "fuse_unk": false, "dropout": 0.0})");
        const JsonValue* normalizer = json_find(&root, "normalizer");
        const auto* none = json_as<JsonValue::array_t>(json_find(normalizer, "normalizers"));
        if (normalizer != nullptr && !normalizer->is_null() && (none == nullptr || !none->empty())) {
            refuse("it has a \"normalizer\"");
        }
        const JsonValue* cutter = json_find(&root, "pre_tokenizer");
        const auto* list = json_as<JsonValue::array_t>(json_find(cutter, "pretokenizers"));
        if (list != nullptr && list->size() == 1) { cutter = &list->front(); }
        if (cutter == nullptr || cutter->is_null()) { refuse("\"pre_tokenizer\" is missing"); }
        expect(cutter, R"({"type": "ByteLevel", "add_prefix_space": false})");
        return cutter;
    }

    // none of the ids may be left out; then the files beside this one, and what they call the end of a text, if that is a token
    void finish() {
        const auto& tokens = file_.vocabulary.tokens;
        const auto find = [&](const std::string& text) {
            const auto at = std::ranges::find(tokens, text);
            return at == tokens.end() ? -1 : (int)(at - tokens.begin());
        };
        if (const int gap = find(""); gap >= 0) {
            refuse("no token has id {}, but later ones are there", gap);
        }
        const auto beside = [&](const char* name) { return fs::path(path_).replace_filename(name).string(); };
        for (const char* name : kTokenizerFiles) {
            if (auto text = read_whole(beside(name), kMaxFile)) { file_.files[name] = *text; }
        }
        file_.end_of_text = find(kEndOfText);
        for (const char* name :
             {"special_tokens_map.json", "tokenizer_config.json"}) {  // the newer one decides
            if (!file_.files.contains(name)) { continue; }
            path_ = beside(name);
            const JsonValue root = parse_json(file_.files[name], path_);
            if (!root.is_object()) { refuse("expected an object"); }
            const JsonValue* end = json_find(&root, "eos_token");  // a text, or an object with one
            const auto* text =
                json_as<std::string>(end != nullptr && end->is_object() ? json_find(end, "content") : end);
            if (text != nullptr && find(*text) >= 0) { file_.end_of_text = find(*text); }
        }
    }

    std::string path_;  // of what is being read
    TokenizerFile file_;
};

// ---- and written --------------------------------------------------------------------------------

JsonValue vocab_json(const TokenizerFile& file) {
    JsonValue::object_t vocab;  // emplace() would look through all that are there
    for (const std::string& token : file.vocabulary.tokens) {
        vocab.emplace_back(to_byte_level(token), vocab.size());
    }
    return vocab;
}

std::vector<std::string> merge_lines(const TokenizerFile& file) {
    std::vector<std::string> lines;
    for (const auto& [left, right] : file.vocabulary.merges) {
        lines.push_back(to_byte_level(left) + " " + to_byte_level(right));
    }
    return lines;
}

// use_regex: whether words are cut before merging; false for bytes
std::string tokenizer_json_text(const TokenizerFile& file, bool use_regex) {
    JsonValue json = parse_json(R"({"version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [], "normalizer": null, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false,
        "trim_offsets": true}, "post_processor": null, "decoder": null, "model": {"type": "BPE", "dropout": null,
        "unk_token": null, "continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": false, "byte_fallback": false,
        "ignore_merges": false}})",
                                "tokenizer.json");
    json["pre_tokenizer"]["use_regex"] = use_regex;
    json["decoder"] = json["pre_tokenizer"];
    json["model"]["vocab"] = vocab_json(file);
    json["model"]["merges"] = merge_lines(file);
    if (const int id = file.end_of_text; id >= 0) {
        json["added_tokens"].push_back({{"id", id}, {"content", file.vocabulary.tokens[(size_t)id]}});
        for (const char* name : {"single_word", "lstrip", "rstrip", "normalized", "special"}) {
            json["added_tokens"][0][name] = name == std::string_view("special");
        }
    }
    return json_line(json) + "\n";
}

}  // namespace

// ---- the tokenizer ------------------------------------------------------------------------------

Tokenizer Tokenizer::bytes() {
    TokenizerFile file;
    for (int byte = 0; byte < 256; byte++) { file.vocabulary.tokens.emplace_back(1, (char)byte); }
    file.vocabulary.tokens.emplace_back(kEndOfText);
    file.end_of_text = kByteVocabSize - 1;
    return of(file, "bytes");
}

Tokenizer Tokenizer::numbers(int vocab_size) {
    Tokenizer t;
    for (int id = 0; id < vocab_size; id++) { t.file_.vocabulary.tokens.push_back(std::to_string(id) + " "); }
    return t;
}

Tokenizer Tokenizer::of(TokenizerFile file, const std::string& where) {
    Tokenizer t;
    t.bytes_ = is_byte_vocabulary(file);
    t.bpe_ = std::make_shared<Bpe>(file.vocabulary, where);
    t.file_ = std::move(file);
    if (t.end_of_text() >= 0) { t.file_.added.emplace_back(t.end_of_text(), t.decode(t.end_of_text())); }
    return t;
}

std::optional<Tokenizer> Tokenizer::find(const std::string& folder) {
    const auto has = [&](const char* name) { return is_there(folder + "/" + name); };
    if (has("tokenizer.json")) { return load(folder + "/tokenizer.json"); }
    for (const auto& [vocab, merges] : kPairs) {
        if (has(vocab) && has(merges)) { return load(folder + "/" + vocab); }
    }
    if (has("tokenizer.bin")) { return load_llmc(folder + "/tokenizer.bin"); }
    return std::nullopt;
}

Tokenizer Tokenizer::load(const std::string& path) {
    if (is_folder(path)) {
        if (std::optional<Tokenizer> found = find(path)) { return *found; }
        throw Error(kExitBadInput,
                    "{}: not a regular file, and no tokenizer in this folder. Expected tokenizer.json, "
                    "encoder.json with vocab.bpe, vocab.json with merges.txt, or tokenizer.bin.",
                    path);
    }
    const fs::path name(path), folder = name.parent_path();
    for (const auto& [vocab, merges] : kPairs) {
        if (name.filename() != vocab && name.filename() != merges) { continue; }
        return of(FileReader().vocab_and_merges((folder / vocab).string(), (folder / merges).string()), path);
    }
    if (name.extension() == ".json") { return of(FileReader().tokenizer_json(path), path); }
    return load_llmc(path);
}

Tokenizer Tokenizer::load_llmc(const std::string& path) {
    const RegularFile file(path);
    HeaderReader header(file, "tokenizer", kTokenizerMagic,
                        "Get the file again, or leave --tokenizer out if the token shards are byte-level.");
    const int version = header.field(1, "version", 1, 2);
    const int vocab = header.field(2, "vocabulary size", 1, kMostLlmcTokens);
    Tokenizer t;
    t.file_.end_of_text = version >= 2             ? header.field(3, "end-of-text token", 0, vocab - 1)
                          : vocab > kGpt2EndOfText ? kGpt2EndOfText
                                                   : -1;
    const std::string& all = t.file_.files["tokenizer.bin"] = file.text(kHeaderBytes + 256 * (size_t)vocab);
    std::string_view rest = std::string_view(all).substr(kHeaderBytes);
    if (rest.size() < 2 * (size_t)vocab) {  // before anything is allocated
        header.fail("file size", fmt::format("{} bytes", file.size()),
                    fmt::format("at least {} bytes = {} header + 2 x {} tokens",
                                kHeaderBytes + 2 * (size_t)vocab, kHeaderBytes, vocab));
    }
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
        t.file_.vocabulary.tokens.emplace_back(rest.substr(1, length));
        rest.remove_prefix(1 + length);
    }
    header.require_size(file.size() - rest.size(), fmt::format("header and {} tokens", vocab));
    return t;
}

const std::string& Tokenizer::decode(int id) const {
    require(id >= 0 && id < vocab_size(), "Tokenizer: the token id must be in [0, vocab_size)");
    return file_.vocabulary.tokens[(size_t)id];
}

std::vector<int> Tokenizer::encode(std::string_view text) const {
    throw_if(!can_encode(), kExitUsage,
             "a prompt cannot be encoded: the tokenizer file says what the ids mean, not how to cut a text "
             "into them. Leave the prompt out, or give --tokenizer a folder with GPT-2's tokenizer.json, or "
             "its vocab.bpe and encoder.json.");
    std::vector<int> ids;
    Bpe::Cache cache;
    bpe_->encode(text, &cache, &ids);
    return ids;
}

std::vector<int> Tokenizer::encode_prompt(std::string_view text, int rows) const {
    std::vector<int> ids;
    while (!text.empty()) {
        // the first; of those that begin there the longest
        const std::pair<int, std::string>* next = nullptr;
        size_t at = text.size();
        for (const auto& token : file_.added) {
            const size_t here = std::min(text.find(token.second), text.size());
            if (here < at || (here == at && next != nullptr && token.second.size() > next->second.size())) {
                next = &token;
                at = here;
            }
        }
        for (int id : encode(text.substr(0, at))) { ids.push_back(id); }
        if (next == nullptr) { break; }
        if (next->first >= rows) {
            throw Error(kExitUsage, "the prompt has {}, token {}, and the model has but {} rows",
                        quoted_name(next->second), next->first, rows);
        }
        ids.push_back(next->first);
        text.remove_prefix(at + next->second.size());
    }
    return ids;
}

TextFiles Tokenizer::files(int max_length) const {
    TextFiles files = file_.files;
    if (!can_encode()) { return files; }
    if (!files.contains("tokenizer.json") && !files.contains("merges.txt")) {
        files["tokenizer.json"] = tokenizer_json_text(file_, !bytes_);
        if (!bytes_) {
            files["vocab.json"] = json_line(vocab_json(file_));
            files["merges.txt"] = "#version: 0.2\n";
            for (const std::string& line : merge_lines(file_)) { files["merges.txt"] += line + "\n"; }
        }
    }
    JsonValue config = {{"add_prefix_space", false},
                        {"clean_up_tokenization_spaces", false},
                        {"tokenizer_class", bytes_ ? "PreTrainedTokenizerFast" : "GPT2Tokenizer"}};
    for (const char* role : {"bos_token", "eos_token", "unk_token"}) {
        if (end_of_text() >= 0) { config[role] = decode(end_of_text()); }
    }
    std::string& text = files["tokenizer_config.json"];
    if (!text.empty()) { config = parse_json(text, "tokenizer_config.json"); }
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

}  // namespace llmc

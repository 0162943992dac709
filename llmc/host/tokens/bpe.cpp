// GPT-2's byte-pair encoding: see bpe.h.
#include "llmc/host/tokens/bpe.h"

#include <algorithm>
#include <cstring>
#include <queue>
#include <string_view>
#include <unordered_map>

#include "llmc/host/base/error.h"
#include "llmc/host/base/text.h"
#include "llmc/host/tokens/unicode_classes.h"

namespace llmc {

namespace {

constexpr size_t kLongWord = 64;      // bytes: from here on a heap finds the next merge
constexpr size_t kMaxWord = 1 << 20;  // bytes
constexpr size_t kLookAhead = 8;      // bytes behind a word that decide where it ends

char unicode_kind(uint32_t code) {
    const auto* range = std::lower_bound(std::begin(kUnicodeRanges), std::end(kUnicodeRanges), code,
                                         [](const UnicodeRange& r, uint32_t c) { return r.last < c; });
    return range != std::end(kUnicodeRanges) && range->first <= code ? range->kind : 'O';
}

constexpr std::array<char, 128> kAsciiKinds = [] {
    std::array<char, 128> kinds{};
    for (int c = 0; c < 128; c++) {
        const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        const bool space = c == ' ' || (c >= 9 && c <= 13);
        kinds[(size_t)c] = letter ? 'L' : c >= '0' && c <= '9' ? 'N' : space ? 'S' : 'O';
    }
    return kinds;
}();

struct Character {
    char kind;  // L, N, S, or O: another
    size_t length;
};

Character character_at(std::string_view text, size_t at) {
    const uint8_t first = (uint8_t)text[at];
    if (first < 128) { return {kAsciiKinds[first], 1}; }
    const std::string_view rest = text.substr(at);
    const size_t length = utf8_length(rest);
    if (length == 0) { return {'O', 1}; }
    return {unicode_kind(utf8_code_point(rest, length)), length};
}

size_t contraction(std::string_view text) {
    if (text.size() < 2 || text[0] != '\'') { return 0; }
    if (std::strchr("sdmt", text[1]) != nullptr && text[1] != '\0') { return 2; }
    const std::string_view three = text.substr(0, 3);
    return three == "'ll" || three == "'ve" || three == "'re" ? 3 : 0;
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

// the same without a limit
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

Bpe::Cache::Cache() : slots_(kSlots) {}

Bpe::Bpe(BpeVocabulary vocabulary, const std::string& where) : vocabulary_(std::move(vocabulary)) {
    const auto fail = [&](const std::string& what) {
        throw Error(kExitBadInput, where + ": not a usable byte-level BPE: " + what);
    };
    std::unordered_map<std::string_view, int> id_of;
    for (size_t id = 0; id < vocabulary_.tokens.size(); id++) {
        id_of.emplace(vocabulary_.tokens[id], (int)id);
    }
    for (int byte = 0; byte < 256; byte++) {
        const auto at = id_of.find(std::string(1, (char)byte));
        if (at == id_of.end()) { fail(fmt::format("no token for byte 0x{:02x}", byte)); }
        byte_id_[(size_t)byte] = at->second;
        text_ids_ = std::max(text_ids_, at->second + 1);
    }
    size_t slots = 64;
    while (slots < 2 * vocabulary_.merges.size()) { slots *= 2; }
    table_.resize(slots);
    int rank = 0;
    for (const auto& [left, right] : vocabulary_.merges) {
        const auto a = id_of.find(left), b = id_of.find(right), both = id_of.find(left + right);
        if (a == id_of.end() || b == id_of.end() || both == id_of.end()) {
            fail(fmt::format("merge {}, of {} and {}: one of these two, or both joined, is no token", rank,
                             quoted_name(left), quoted_name(right)));
        }
        if (find(a->second, b->second) != nullptr) {
            fail(fmt::format("merge {}, of {} and {}, stands twice", rank, quoted_name(left),
                             quoted_name(right)));
        }
        const uint64_t pair = (uint64_t)a->second << 32 | (uint32_t)b->second;
        size_t slot = hash(pair) & (slots - 1);
        while (table_[slot].pair != ~0ull) { slot = (slot + 1) & (slots - 1); }
        table_[slot] = {pair, rank++, both->second};
        text_ids_ = std::max(text_ids_, both->second + 1);
    }
}

const Bpe::Merge* Bpe::find(int left, int right) const {
    const uint64_t pair = (uint64_t)left << 32 | (uint32_t)right;
    for (size_t slot = hash(pair) & (table_.size() - 1);; slot = (slot + 1) & (table_.size() - 1)) {
        if (table_[slot].pair == pair) { return &table_[slot]; }
        if (table_[slot].pair == ~0ull) { return nullptr; }
    }
}

void Bpe::encode(std::string_view text, Cache* cache, std::vector<int>* ids) const {
    while (!text.empty()) {
        const size_t length = bpe_word(text);
        encode_word(text.substr(0, length), cache, ids);
        text.remove_prefix(length);
    }
}

void Bpe::encode_word(std::string_view word, Cache* cache, std::vector<int>* ids) const {
    Cache::Slot* slot = nullptr;
    if (word.size() <= sizeof(Cache::Slot::word)) {
        uint64_t key = word.size();
        for (char c : word) { key = (key ^ (uint8_t)c) * 0x100000001B3ull; }
        slot = &cache->slots_[(key ^ key >> 29) % Cache::kSlots];
        if (slot->length == word.size() && std::memcmp(slot->word.data(), word.data(), word.size()) == 0) {
            ids->insert(ids->end(), slot->ids.begin(), slot->ids.begin() + slot->count);
            return;
        }
    }
    std::vector<int> parts;
    parts.reserve(word.size());
    for (char c : word) { parts.push_back(byte_id_[(uint8_t)c]); }
    if (word.size() < kLongWord) {
        merge_short(&parts);
    } else {
        merge_long(&parts);
    }
    ids->insert(ids->end(), parts.begin(), parts.end());
    if (slot != nullptr && parts.size() <= slot->ids.size()) {
        std::copy(word.begin(), word.end(), slot->word.begin());
        slot->length = (uint8_t)word.size();
        slot->count = (uint8_t)parts.size();
        std::copy(parts.begin(), parts.end(), slot->ids.begin());
    }
}

// the best merge is looked for from the start, each time
void Bpe::merge_short(std::vector<int>* parts) const {
    while (parts->size() > 1) {
        const Merge* best = nullptr;
        size_t best_at = 0;
        for (size_t i = 0; i + 1 < parts->size(); i++) {
            const Merge* merge = find((*parts)[i], (*parts)[i + 1]);
            if (merge != nullptr && (best == nullptr || merge->rank < best->rank)) {
                best = merge;
                best_at = i;
            }
        }
        if (best == nullptr) { return; }
        (*parts)[best_at] = best->id;
        parts->erase(parts->begin() + (int64_t)best_at + 1);
    }
}

// The same in n log n: a heap of possible merges, a list of the parts that are left. A merge that is no
// longer possible, because a neighbour was merged first, is noticed when its turn comes.
void Bpe::merge_long(std::vector<int>* parts) const {
    const int n = (int)parts->size();
    struct Node {
        int before, after;  // -1: none
    };
    struct Candidate {
        int rank, at, left, right, id;
        bool operator<(const Candidate& other) const {  // the queue's top is the largest
            return rank != other.rank ? rank > other.rank : at > other.at;
        }
    };
    std::vector<Node> nodes((size_t)n);
    std::priority_queue<Candidate> queue;
    const auto offer = [&](int at, int after) {
        if (at < 0 || after < 0) { return; }
        const int left = (*parts)[(size_t)at], right = (*parts)[(size_t)after];
        if (const Merge* merge = find(left, right)) { queue.push({merge->rank, at, left, right, merge->id}); }
    };
    for (int i = 0; i < n; i++) { nodes[(size_t)i] = {i - 1, i + 1 < n ? i + 1 : -1}; }
    for (int i = 0; i + 1 < n; i++) { offer(i, i + 1); }
    while (!queue.empty()) {
        const Candidate c = queue.top();
        queue.pop();
        Node& node = nodes[(size_t)c.at];
        const bool possible =
            (*parts)[(size_t)c.at] == c.left && node.after >= 0 && (*parts)[(size_t)node.after] == c.right;
        if (!possible) { continue; }
        (*parts)[(size_t)c.at] = c.id;
        const int gone = node.after;
        (*parts)[(size_t)gone] = -1;
        node.after = nodes[(size_t)gone].after;
        if (node.after >= 0) { nodes[(size_t)node.after].before = c.at; }
        offer(node.before, c.at);
        offer(c.at, node.after);
    }
    parts->erase(std::remove(parts->begin(), parts->end(), -1), parts->end());
}

}  // namespace llmc

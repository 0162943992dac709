// GPT-2's byte-pair encoding: see bpe.h.
#include "llmc/host/tokens/bpe.h"

#include <algorithm>
#include <queue>
#include <span>

#include "llmc/host/base/error.h"
#include "llmc/host/base/text.h"
#include "llmc/host/tokens/unicode_classes.h"

namespace llmc {

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

}  // namespace llmc

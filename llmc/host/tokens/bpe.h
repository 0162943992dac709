// GPT-2's byte-pair encoding: a text is cut into words (the "pre-tokenizer"), then in each word the two
// neighbours whose merge ranks first are joined, until no merge applies. Sennrich et al. 2016,
// arXiv:1508.07909; Radford et al. 2019 for the version on bytes.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace llmc {

// The length in bytes of the word that text, which is not empty, starts with, by GPT-2's pattern
//   '(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// with the classes of unicode_classes.h. A byte that is not UTF-8 is neither letter, digit nor space. A word of more than
// 1 MiB is cut there, before a character.
size_t bpe_word(std::string_view text);

// Whether a text may be cut at this place: the words of the two parts are then those of the whole.
bool bpe_can_cut(std::string_view text, size_t at);

struct BpeVocabulary {
    std::vector<std::string> tokens;                          // the bytes of each id
    std::vector<std::pair<std::string, std::string>> merges;  // bytes, best first
};

class Bpe {
public:
    // The words seen last and their ids: one for each thread, of some MiB.
    class Cache {
        friend class Bpe;
        std::vector<std::pair<std::string, std::vector<int>>> words_{1 << 15};
    };

    // Throws Error(kExitBadInput) that begins with `where` unless every byte is a token, and both sides and
    // the result of every merge are, and no merge stands twice.
    Bpe(const BpeVocabulary& vocabulary, const std::string& where);

    int text_ids() const { return text_ids_; }  // all that encode() gives are below

    // Appends the ids of a text; joined, their bytes are the text.
    void encode(std::string_view text, Cache* cache, std::vector<int>* ids) const;

private:
    struct Merge {
        int rank, id;  // the lowest rank goes first; id: of the result
    };
    static uint64_t key(int left, int right) { return (uint64_t)left << 32 | (uint32_t)right; }
    void merge(std::vector<int>* ids) const;

    std::array<int, 256> byte_id_{};
    int text_ids_ = 0;
    std::unordered_map<uint64_t, Merge> merges_;
};

}  // namespace llmc

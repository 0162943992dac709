// GPT-2's byte-pair encoding: a text is cut into words (the "pre-tokenizer"), then in each word the two
// neighbours whose merge ranks first are joined, until no merge applies. Sennrich et al. 2016,
// arXiv:1508.07909; Radford et al. 2019 for the version on bytes.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
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
    // The words seen last and their ids: one for each thread, of about 2 MiB.
    class Cache {
    public:
        Cache();

    private:
        friend class Bpe;
        struct Slot {
            std::array<char, 27> word;
            uint8_t length = 0, count = 0;
            std::array<int32_t, 8> ids;
        };
        static constexpr size_t kSlots = 1 << 15;
        std::vector<Slot> slots_;
    };

    // Throws Error(kExitBadInput) that begins with `where` unless every byte is a token, and both sides and
    // the result of every merge are, and no merge stands twice.
    Bpe(BpeVocabulary vocabulary, const std::string& where);

    const BpeVocabulary& vocabulary() const { return vocabulary_; }
    int text_ids() const { return text_ids_; }  // all that encode() gives are below

    // Appends the ids of a text; joined, their bytes are the text.
    void encode(std::string_view text, Cache* cache, std::vector<int>* ids) const;

private:
    struct Merge {
        uint64_t pair = ~0ull;  // left id, right id; all ones: free
        int32_t rank = 0, id = 0;
    };
    static size_t hash(uint64_t pair) { return (size_t)((pair * 0x9E3779B97F4A7C15ull) >> 20); }
    const Merge* find(int left, int right) const;
    void encode_word(std::string_view word, Cache* cache, std::vector<int>* ids) const;
    void merge_short(std::vector<int>* parts) const;
    void merge_long(std::vector<int>* parts) const;

    BpeVocabulary vocabulary_;
    std::array<int, 256> byte_id_{};
    int text_ids_ = 0;
    std::vector<Merge> table_;  // open addressing; a power of two in size
};

}  // namespace llmc

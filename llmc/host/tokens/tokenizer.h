// Tokenizer: what the token ids mean. One of
//   bytes (the default): 256 ids, and one for the end of a text
//   GPT-2's byte-pair encoding, or another of its kind, from the files that OpenAI or Hugging Face publish
//   a file in llm.c's format (20240328), the bytes of each id: enough to print what a model wrote, not to encode
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace llmc {

// ---- byte-pair encoding -------------------------------------------------------------------------

// A text is cut into words (the "pre-tokenizer"), then in each word the two neighbours whose merge ranks first are joined,
// until no merge applies. Sennrich et al. 2016, arXiv:1508.07909; Radford et al. 2019 for the version on bytes.

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

// ---- the tokenizer ------------------------------------------------------------------------------

using TextFiles = std::map<std::string, std::string>;  // name: content

// what transformers' tokenizers, old and new, and we ask for
constexpr const char* kTokenizerFiles[] = {
    "tokenizer.json", "vocab.json",    "added_tokens.json",     "special_tokens_map.json",
    "merges.txt",     "tokenizer.bin", "tokenizer_config.json", "chat_template.jinja"};

// What the public files of a byte-level BPE say: OpenAI's vocab.bpe with encoder.json, Hugging Face's merges.txt with
// vocab.json (the same under other names) and tokenizer.json.
struct TokenizerFile {
    BpeVocabulary vocabulary;
    std::vector<std::pair<int, std::string>> added;  // tokens that stand for a whole text, as <|endoftext|>
    int end_of_text = -1;                            // -1 if there is none
    TextFiles files;  // of kTokenizerFiles, those that are passed on as they are
};

constexpr int kByteVocabSize = 257;  // ids 0 to 255 are the bytes, the last is the end of a text

// Whether a model with this many rows may be of so many tokens: up to 2 % and 127 rows more, which fill its last tiles, stand
// for nothing and are never drawn (nanoGPT's 50,304 for GPT-2's 50,257). Other sizes are another tokenizer's.
constexpr bool may_be_padded(int rows, int tokens) {
    return rows == tokens || (rows % 8 == 0 && tokens < rows && rows < tokens + 128 + tokens / 50);
}

class Tokenizer {
public:
    // one token per byte, end of text 256
    static Tokenizer bytes();
    // of a vocabulary whose meaning is not known: a text is ids
    static Tokenizer numbers(int vocab_size);
    // of files that transformers or OpenAI have written; where: for messages
    static Tokenizer of(TokenizerFile file, const std::string& where);
    // Reads a folder (tokenizer.json, vocab.bpe with encoder.json, vocab.json with merges.txt, or tokenizer.bin), one of these
    // files, or llm.c's, version 1 or 2. Throws Error(kExitBadInput) that names the file and what is wrong: a field or the
    // size, ids that are not 0, 1, 2 ... each once, tokens that are no byte-level text, and, in tokenizer.json, anything
    // that would cut a text in another way than GPT-2 does (another normalizer, pre-tokenizer or model). The end of a text is
    // what the files beside them call so (eos_token), else <|endoftext|>.
    static Tokenizer load(const std::string& path);
    // the same of a folder; nothing if it has no tokenizer
    static std::optional<Tokenizer> find(const std::string& folder);

    // What transformers' AutoTokenizer loads and find() reads back, as it was loaded, where it was so; tokenizer.bin, if the
    // texts of the tokens are all that is known. max_length: a model's. save() writes it into a folder that exists.
    TextFiles files(int max_length) const;
    void save(const std::string& folder, int max_length) const;

    int vocab_size() const { return (int)file_.vocabulary.tokens.size(); }
    // What shards of this tokenizer state: all that a text or its end gives is below. For further tokens, such as [PAD], a model
    // has rows or not: fits().
    int shard_vocab() const { return bpe_ ? std::max(bpe_->text_ids(), end_of_text() + 1) : vocab_size(); }
    bool made_shards_of(int vocab) const { return shard_vocab() <= vocab && vocab <= vocab_size(); }
    bool fits(int rows) const { return made_shards_of(rows) || may_be_padded(rows, vocab_size()); }
    // -1 only for a version 1 file of fewer than 50,257 tokens: that version does not say, and means GPT-2's;
    // and for a byte-pair encoding without any
    int end_of_text() const { return file_.end_of_text; }
    bool is_bytes() const { return bytes_; }
    bool can_encode() const { return bpe_ != nullptr; }

    // the bytes of a token
    const std::string& decode(int id) const;
    // The ids of a text: decoding gives back exactly its bytes. Throws Error(kExitUsage) if it cannot encode.
    std::vector<int> encode(std::string_view text) const;
    // The same, but that <|endoftext|> and the other added tokens in it are tokens: of what a user types, not of data. Throws
    // Error(kExitUsage) for one that a model with this many rows has none for.
    std::vector<int> encode_prompt(std::string_view text, int rows) const;
    const Bpe* bpe() const { return bpe_.get(); }  // null if it cannot encode
    const BpeVocabulary& vocabulary() const { return file_.vocabulary; }

    // for a terminal, as printable_text() in text.h
    std::string printable(const std::vector<int>& ids) const;

private:
    static Tokenizer load_llmc(const std::string& path);

    TokenizerFile file_;
    std::shared_ptr<const Bpe> bpe_;  // of file_'s vocabulary; null: what it cannot encode
    bool bytes_ = false;
};

// Whether a model with so many rows takes data of this vocabulary: without a tokenizer sizes alone tell.
inline bool same_ids(const std::optional<Tokenizer>& tokenizer, int rows, int vocab) {
    if (!tokenizer) { return may_be_padded(rows, vocab); }
    return vocab <= rows && tokenizer->made_shards_of(vocab) && tokenizer->fits(rows);
}

// the id of the end of a text in a model of this vocabulary: the tokenizer's, or the last one
inline int end_of_text(const std::optional<Tokenizer>& tokenizer, int vocab_size) {
    return tokenizer && tokenizer->end_of_text() >= 0 ? tokenizer->end_of_text() : vocab_size - 1;
}

}  // namespace llmc

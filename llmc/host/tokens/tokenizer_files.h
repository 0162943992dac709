// The public file formats of byte-level BPE tokenizers: OpenAI's vocab.bpe with encoder.json, Hugging Face's
// vocab.json with merges.txt (the same under other names) and tokenizer.json.
#pragma once
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "llmc/host/tokens/bpe.h"

namespace llmc {

constexpr const char* kEndOfText = "<|endoftext|>";

using TextFiles = std::map<std::string, std::string>;  // name: content

// tokens that stand for a whole text, as <|endoftext|>
using AddedTokens = std::vector<std::pair<int, std::string>>;

struct TokenizerFile {
    BpeVocabulary vocabulary;
    AddedTokens added;
    int end_of_text = -1;  // -1 if there is none
    TextFiles files;       // of kTokenizerFiles, those that are passed on as they are
};

// what transformers' tokenizers, old and new, and we ask for
constexpr const char* kTokenizerFiles[] = {
    "tokenizer.json", "vocab.json",    "added_tokens.json",     "special_tokens_map.json",
    "merges.txt",     "tokenizer.bin", "tokenizer_config.json", "chat_template.jinja"};

// These throw Error(kExitBadInput) that names the file and what is wrong: ids that are not 0, 1, 2 ... each
// once, tokens that are no byte-level text, and, in tokenizer.json, anything that would cut a text in
// another way than GPT-2 does (another normalizer, pre-tokenizer or model). The end of a text is what the files beside them call
// so (eos_token), else <|endoftext|>.
TokenizerFile read_vocab_and_merges(const std::string& vocab_path, const std::string& merges_path);
TokenizerFile read_tokenizer_json(const std::string& path);

// true if tokenizer.json of this kind means one token for each byte: no words are cut, nothing is merged
bool is_byte_vocabulary(const TokenizerFile& file);

// The texts of these files. use_regex: whether words are cut before merging; false for bytes.
std::string tokenizer_json_text(const TokenizerFile& file, bool use_regex);
std::string vocab_json_text(const TokenizerFile& file);
std::string merges_text(const TokenizerFile& file);

}  // namespace llmc

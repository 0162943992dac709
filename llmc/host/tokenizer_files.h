// The public file formats of byte-level BPE tokenizers: OpenAI's vocab.bpe with encoder.json, Hugging Face's
// vocab.json with merges.txt (the same under other names) and tokenizer.json.
#pragma once
#include <string>

#include "llmc/host/bpe.h"

namespace llmc {

constexpr const char* kEndOfText = "<|endoftext|>";

struct TokenizerFile {
    BpeVocabulary vocabulary;
    int end_of_text = -1;  // the id of <|endoftext|>, -1 if there is none
};

// These throw Error(kExitBadInput) that names the file and what is wrong: ids that are not 0, 1, 2 ... each
// once, tokens that are no byte-level text, and, in tokenizer.json, anything that would cut a text in
// another way than GPT-2 does (another normalizer, pre-tokenizer or model).
TokenizerFile read_vocab_and_merges(const std::string& vocab_path, const std::string& merges_path);
TokenizerFile read_tokenizer_json(const std::string& path);

// true if tokenizer.json of this kind means one token for each byte: no words are cut, nothing is merged
bool is_byte_vocabulary(const TokenizerFile& file);

// The texts of these files. use_regex: whether words are cut before merging; false for bytes.
std::string tokenizer_json_text(const TokenizerFile& file, bool use_regex);
std::string vocab_json_text(const TokenizerFile& file);
std::string merges_text(const TokenizerFile& file);

}  // namespace llmc

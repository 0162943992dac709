// Tokenizer: what the token ids mean. Either bytes (the default: 256 ids, and one for the end of a text) or a
// file in the format of llm.c (20240328), which lists the bytes of each id: enough to print what a model
// wrote; not to encode.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace llmc {

constexpr int kByteVocabSize = 257;  // ids 0 to 255 are the bytes
constexpr int kByteEndOfText = 256;

class Tokenizer {
public:
    // one token per byte, end of text 256
    static Tokenizer bytes();
    // Reads version 1 or 2. Throws Error(kExitBadInput) naming file and field unless every field and the size
    // are right.
    static Tokenizer load(const std::string& path);

    int vocab_size() const { return (int)tokens_.size(); }
    // -1 only for a version 1 file of fewer than 50,257 tokens: that version does not say, and means GPT-2's
    int end_of_text() const { return end_of_text_; }

    // the bytes of a token
    const std::string& decode(int id) const;
    // Byte-level: one id per byte, so that decoding gives back exactly text. A loaded file: throws
    // Error(kExitUsage).
    std::vector<int> encode(const std::string& text) const;

    // For a terminal: control characters, with which a text could drive it, become \xHH, except newline and
    // tab, and so does what is not UTF-8. One token may be a piece of a character: its bytes pass if they may
    // occur in UTF-8. Prefer the second form, which sees whole characters.
    std::string printable(int id) const;
    std::string printable(const std::vector<int>& ids) const;

private:
    std::vector<std::string> tokens_;
    int end_of_text_ = -1;
    bool bytes_ = false;
};

}  // namespace llmc

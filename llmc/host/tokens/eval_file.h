// Multiple-choice questions as token ids: the format of llm.c's HellaSwag file (20240522 version 1). A
// header, then for each example uint16 words: 65535, the bytes of the example from this word on, its number,
// the right ending's number, the count of endings (4), the length of the context, the context, and for each
// ending its length and itself. Header word 2: examples; 3: bytes of the longest; 4: the vocabulary size,
// which is ours (0, as in everyone else's files, means GPT-2's 50,257).
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "llmc/host/files/binary_file.h"

namespace llmc {

constexpr int32_t kEvalFileMagic = 20240522;
constexpr int32_t kEvalFileVersion = 1;
constexpr int kEvalEndings = 4;
constexpr size_t kMostEvalExamples = 65535, kMostEvalBytes = 65534;  // of all, of one: what a uint16 can say

struct EvalExample {
    int label = 0;  // the right ending
    std::span<const uint16_t> context;
    std::array<std::span<const uint16_t>, kEvalEndings> endings;  // none of the five is empty
};

// The examples of a file. Throws Error(kExitBadInput) naming example and field unless all of it is right:
// every token is checked against the vocabulary.
class EvalFile {
public:
    explicit EvalFile(const std::string& path);
    const std::string& path() const { return file_.path(); }
    int vocab_size() const { return vocab_size_; }
    const std::vector<EvalExample>& examples() const { return examples_; }

private:
    RegularFile file_;
    int vocab_size_ = 0;
    std::vector<uint16_t> words_;  // after the header: what the examples point into
    std::vector<EvalExample> examples_;
};

// Collects examples and writes them.
class EvalFileWriter {
public:
    static constexpr int kMostTokens = 1 << 16;  // an id takes 16 bits
    explicit EvalFileWriter(int vocab_size) : vocab_size_(vocab_size) {
        require(vocab_size <= kMostTokens, "EvalFileWriter: the vocabulary is too large");
    }
    // Throws Error(kExitBadInput) that begins with `where` if the format has no room for it, or a part is
    // empty.
    void add(int label, const std::vector<int>& context,
             const std::array<std::vector<int>, kEvalEndings>& endings, const std::string& where);
    size_t examples() const { return examples_; }
    // replaces path atomically; at least one example
    void write(const std::string& path) const;

private:
    int vocab_size_;
    size_t examples_ = 0, longest_ = 0;  // bytes
    std::vector<uint16_t> words_;
};

}  // namespace llmc

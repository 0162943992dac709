// Multiple-choice questions: see eval_file.h.
#include "llmc/host/tokens/eval_file.h"

#include <algorithm>

#include "llmc/host/base/error.h"
#include "llmc/host/tokens/token_shard.h"

namespace llmc {

namespace {

constexpr uint16_t kStart = 65535;
constexpr size_t kBeforeContext = 6;                                   // words
constexpr size_t kLeastWords = kBeforeContext + 1 + 2 * kEvalEndings;  // of an example

// Reads words one after the other; throws where they are not what they must be.
class WordReader {
public:
    WordReader(const HeaderReader& header, std::span<const uint16_t> words)
        : header_(header), words_(words) {}
    size_t at() const { return at_; }
    bool done() const { return at_ == words_.size(); }
    void next_example() { example_++; }

    size_t word(const char* name, size_t low, size_t high) {
        if (done()) { fail(name, "the end of the file", low, high); }
        const size_t value = words_[at_];
        if (value < low || value > high) { fail(name, std::to_string(value), low, high); }
        at_++;
        return value;
    }
    std::span<const uint16_t> tokens(const char* name, size_t count, size_t end, int vocab_size) {
        if (count > end - at_) { fail(name, fmt::format("{} tokens", count), 1, end - at_); }
        const auto part = words_.subspan(at_, count);
        for (uint16_t token : part) {
            if (token >= vocab_size) {
                fail(name, fmt::format("token {}", token), 0, (size_t)vocab_size - 1);
            }
        }
        at_ += count;
        return part;
    }
    [[noreturn]] void fail(const char* name, const std::string& found, size_t low, size_t high) const {
        const std::string expected =
            low == high ? fmt::format("{}", low) : fmt::format("{} to {}", low, high);
        header_.fail(fmt::format("{} of example {}", name, example_), found, expected);
    }

private:
    const HeaderReader& header_;
    std::span<const uint16_t> words_;
    size_t at_ = 0, example_ = 0;
};

}  // namespace

EvalFile::EvalFile(const std::string& path) : file_(path) {
    const HeaderReader header(file_, "HellaSwag file", kEvalFileMagic, "Make it with data/make_hellaswag.");
    header.field(1, "version", kEvalFileVersion, kEvalFileVersion);
    const size_t count = (size_t)header.field(2, "number of examples", 1, (int64_t)kMostEvalExamples);
    const size_t longest =
        (size_t)header.field(3, "bytes of the longest example", 1, (int64_t)kMostEvalBytes);
    const int vocab = header.field(4, "vocabulary size", 0, EvalFileWriter::kMostTokens);
    vocab_size_ = vocab == 0 ? kGpt2VocabSize : vocab;
    const size_t bytes = file_.size() - kHeaderBytes;
    const size_t least = count * kLeastWords * sizeof(uint16_t);
    if (bytes % 2 != 0 || bytes < least) {
        header.fail("size", fmt::format("{} bytes", bytes),
                    fmt::format("an even number, {} or more for {} examples", least, count));
    }
    words_.resize(bytes / 2);
    file_.read(kHeaderBytes, words_.data(), 2 * words_.size());
    WordReader in(header, words_);
    for (size_t i = 0; i < count; i++, in.next_example()) {
        const size_t begin = in.at();
        in.word("start", kStart, kStart);
        const size_t size = in.word("bytes", kLeastWords * sizeof(uint16_t), longest), end = begin + size / 2;
        if (size % 2 != 0 || end > bytes / 2) {
            in.fail("bytes", std::to_string(size), 2, bytes - 2 * begin);
        }
        in.word("number", i, i);
        EvalExample example;
        example.label = (int)in.word("right ending", 0, kEvalEndings - 1);
        in.word("number of endings", kEvalEndings, kEvalEndings);
        const size_t context = in.word("length of the context", 1, kMostEvalBytes);
        example.context = in.tokens("context", context, end, vocab_size_);
        for (auto& ending : example.endings) {
            const size_t length = in.at() < end ? in.word("length of an ending", 1, kMostEvalBytes) : 0;
            ending = in.tokens("an ending", length, std::max(end, in.at()), vocab_size_);
            if (ending.empty()) {
                in.fail("length of an ending", "the end of the example", 1, kMostEvalBytes);
            }
        }
        if (in.at() != end) {
            in.fail("bytes", std::to_string(size), 2 * (in.at() - begin), 2 * (in.at() - begin));
        }
        examples_.push_back(example);
    }
    if (!in.done()) {
        header.fail("size", fmt::format("{} bytes", bytes),
                    fmt::format("{} for {} examples", 2 * in.at(), count));
    }
}

void EvalFileWriter::add(int label, const std::vector<int>& context,
                         const std::array<std::vector<int>, kEvalEndings>& endings,
                         const std::string& where) {
    require(label >= 0 && label < kEvalEndings, "EvalFileWriter: the label must name an ending");
    std::vector<uint16_t> words = {
        kStart, 0, (uint16_t)examples_, (uint16_t)label, kEvalEndings, (uint16_t)context.size()};
    bool empty = context.empty();
    const auto append = [&](const std::vector<int>& ids) {
        for (int id : ids) {
            require(id >= 0 && id < vocab_size_, "EvalFileWriter: a token id outside of the vocabulary");
            words.push_back((uint16_t)id);
        }
    };
    append(context);
    for (const std::vector<int>& ending : endings) {
        empty |= ending.empty();
        words.push_back((uint16_t)ending.size());
        append(ending);
    }
    const size_t bytes = words.size() * sizeof(uint16_t);
    if (empty) {
        throw Error(kExitBadInput, where + ": found an empty context or ending, expected some text");
    }
    if (bytes > kMostEvalBytes || examples_ == kMostEvalExamples) {
        throw Error(kExitBadInput,
                    fmt::format("{}: found example {} of {} bytes, but the format has room for {} examples "
                                "of {} bytes",
                                where, examples_, bytes, kMostEvalExamples, kMostEvalBytes));
    }
    words[1] = (uint16_t)bytes;
    words_.insert(words_.end(), words.begin(), words.end());
    longest_ = std::max(longest_, bytes);
    examples_++;
}

void EvalFileWriter::write(const std::string& path) const {
    require(examples_ > 0, "EvalFileWriter: no example");
    const int32_t header[kHeaderWords] = {kEvalFileMagic, kEvalFileVersion, (int32_t)examples_,
                                          (int32_t)longest_, vocab_size_};
    FileWriter out(path);
    out.write(header, sizeof(header));
    out.write(words_.data(), words_.size() * sizeof(uint16_t));
    out.commit();
}

}  // namespace llmc

// Where documents begin in a stream of bytes: data/make_shards puts an end of text there.
// Bytes come in any portions, as they are read; nothing depends on how they are cut.
#pragma once
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "data/text_encoder.h"

namespace llmc {

// Puts an end of text before each document and passes all bytes on.
class Splitter {
public:
    Splitter(const std::string& documents, TextEncoder* out)
        : lines_(documents == "line"), paragraphs_(documents == "paragraph"), out_(out) {}

    // what follows is another file
    void begin_file() {
        empty_ = blank_ = at_line_start_ = true;
        after_blank_line_ = false;
    }
    void add(const uint8_t* bytes, size_t count) {
        if (count == 0) { return; }
        if (empty_) { begin_document(); }
        empty_ = false;
        bytes_ += (int64_t)count;
        if (!lines_ && !paragraphs_) {
            out_->add(bytes, count);
            return;
        }
        const uint8_t* end = bytes + count;
        while (bytes < end) { bytes = at_line_start_ ? indent(bytes, end) : text(bytes, end); }
    }
    // call it after the last byte of each file
    void end_file() { pass_indent(); }

    int64_t num_documents() const { return documents_; }
    int64_t num_bytes() const { return bytes_; }

private:
    static constexpr size_t kLongIndent = 4096;  // is taken for text, as memory is bounded

    void begin_document() {
        out_->add_end_of_text();
        documents_++;
        blank_ = true;
    }
    void pass_indent() {
        out_->add(indent_.data(), indent_.size());
        indent_.clear();
    }
    // At the start of a line. Its blanks are kept back: what follows tells to which document they belong.
    const uint8_t* indent(const uint8_t* at, const uint8_t* end) {
        const auto is_blank = [](uint8_t c) { return c == ' ' || (c >= '\t' && c <= '\r' && c != '\n'); };
        while (at < end && is_blank(*at) && indent_.size() < kLongIndent) { indent_.push_back(*at++); }
        if (at == end) { return at; }
        if (*at == '\n') {
            indent_.push_back(*at++);
            // of several blank lines the first ends the paragraph, as in llm.c's shards
            const bool first = !std::exchange(after_blank_line_, true);
            if (paragraphs_ && !first && indent_.size() < kLongIndent) { return at; }
        } else {
            if (!blank_ && (lines_ || after_blank_line_)) { begin_document(); }
            blank_ = after_blank_line_ = at_line_start_ = false;
        }
        pass_indent();
        return at;
    }
    // the rest of a line, or as much of it as there is
    const uint8_t* text(const uint8_t* at, const uint8_t* end) {
        const void* newline = std::memchr(at, '\n', (size_t)(end - at));
        const uint8_t* stop = newline == nullptr ? end : static_cast<const uint8_t*>(newline) + 1;
        out_->add(at, (size_t)(stop - at));
        at_line_start_ = newline != nullptr;
        return stop;
    }

    bool lines_, paragraphs_;
    TextEncoder* out_;
    bool empty_ = true, blank_ = true;  // the file, the document so far
    bool at_line_start_ = true, after_blank_line_ = false;
    std::vector<uint8_t> indent_;
    int64_t documents_ = 0, bytes_ = 0;
};

}  // namespace llmc

// JSONL: a file with a JSON object on each line. Bytes come in any portions, as they are read; memory holds a
// line.
#pragma once
#include <charconv>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "llmc/host/base/error.h"
#include "llmc/host/files/json.h"

namespace llmc {

class JsonLines {
public:
    // an object, and where it is: "train.jsonl, line 7"
    using Visit = std::function<void(const JsonValue& object, const std::string& where)>;
    // bad: gets what is wrong with a line and may throw it; without it, it is thrown
    explicit JsonLines(Visit visit, std::function<void(const Error&)> bad = nullptr)
        : visit_(std::move(visit)), bad_(std::move(bad)) {}

    // what follows is this file
    void begin_file(const std::string& name) {
        name_ = name;
        number_ = 0;
    }
    void add(const uint8_t* bytes, size_t count) {
        const uint8_t* const end = bytes + count;
        while (bytes < end) {
            const void* newline = std::memchr(bytes, '\n', (size_t)(end - bytes));
            const uint8_t* stop = newline == nullptr ? end : static_cast<const uint8_t*>(newline);
            line_.append(reinterpret_cast<const char*>(bytes), (size_t)(stop - bytes));
            if (line_.size() > kMostBytes) {
                throw Error(kExitBadInput,
                            fmt::format("{}: found a line of more than {} bytes, expected JSONL: an object "
                                        "on each line",
                                        where(number_ + 1), kMostBytes));
            }
            if (newline != nullptr) { pass(); }
            bytes = stop + (newline != nullptr);
        }
    }
    void end_file() { pass(); }

private:
    static constexpr size_t kMostBytes = 256 << 20;

    std::string where(int64_t number) const { return fmt::format("{}, line {}", name_, number); }
    void pass() {
        number_++;
        if (line_.find_first_not_of(" \t\r") != std::string::npos) {
            mend_surrogates();
            try {
                visit_(parse_json(line_, where(number_), {.depth = 100}), where(number_));
            } catch (const Error& e) {
                if (bad_ == nullptr || e.exit_code != kExitBadInput) { throw; }
                bad_(e);
            }
        }
        line_.clear();
    }
    // Half of a surrogate pair, as of an emoji that a program cut in two, becomes U+FFFD, as tiktoken has it.
    void mend_surrogates() {
        const auto unit = [&](size_t at) {  // of \uXXXX
            unsigned code = 0;
            if (line_.size() < at + 6 || line_[at + 1] != 'u') { return code; }
            std::from_chars(&line_[at + 2], &line_[at + 6], code, 16);
            return code & 0xfc00;
        };
        for (size_t at = 0; (at = line_.find('\\', at)) != line_.npos; at += 2) {
            const bool pair = unit(at) == 0xd800 && unit(at + 6) == 0xdc00 && line_[at + 6] == '\\';
            if (!pair && (unit(at) == 0xd800 || unit(at) == 0xdc00)) { line_.replace(at + 2, 4, "fffd"); }
            at += pair ? 10 : 0;
        }
    }

    Visit visit_;
    std::function<void(const Error&)> bad_;
    std::string name_, line_;
    int64_t number_ = 0;  // of the last line that was passed on
};

// A text of an object. Throws Error(kExitBadInput) that begins with `where` and says what there is instead.
inline const std::string& text_field(const JsonValue& object, const std::string& name,
                                     const std::string& where) {
    const JsonValue* value = object.find(name);
    if (value != nullptr && value->as<std::string>() != nullptr) { return *value->as<std::string>(); }
    std::string found = value != nullptr ? "one that is no text" : "none";
    if (const auto* members = object.as<JsonValue::Object>(); members != nullptr && value == nullptr) {
        for (const JsonMember& member : *members) {
            found += (found == "none" ? ", but " : ", ") + json_text(member.name);
        }
    }
    throw Error(kExitBadInput,
                fmt::format("{}: expected an object with a text \"{}\", found {}", where, name, found));
}

}  // namespace llmc

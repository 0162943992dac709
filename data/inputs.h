// What the programs of data/ read: files and folders of text, and JSON lines.
#pragma once
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "llmc/host/base/error.h"
#include "llmc/host/files/file_io.h"
#include "llmc/host/files/json.h"
#include "llmc/host/tokens/dataloader.h"

namespace llmc {

// The files that the inputs of data/make_shards are: a folder stands for all in it and below.

// An entry that cannot be read, or a link that leads nowhere, is an error: the text would be incomplete.
inline void add_files_below(const std::string& folder, std::vector<std::string>* files) {
    try {
        for (const std::filesystem::directory_entry& entry : std::filesystem::directory_iterator(folder)) {
            const std::string path = entry.path().string();
            if (entry.path().filename().string().starts_with('.')) { continue; }
            if (entry.is_directory() && !entry.is_symlink()) {
                add_files_below(path, files);
            } else if (entry.is_regular_file()) {
                files->push_back(path);
            } else if (!entry.exists()) {
                throw Error(kExitBadInput, path + ": this link leads to no file. Correct or remove it.");
            }
        }
    } catch (const std::filesystem::filesystem_error& e) {
        const std::string path = e.path1().empty() ? folder : e.path1().string();
        throw Error(
            kExitBadInput,
            "{}: cannot read: {}. Expected a file or folder that you may read: check its permissions.", path,
            e.code().message());
    }
}

// those of a folder in byte order of their paths
inline std::vector<std::string> list_files(const std::vector<std::string>& inputs) {
    std::vector<std::string> files;
    for (const std::string& input : inputs) {
        std::error_code ignored;
        if (!std::filesystem::is_directory(input, ignored)) {
            files.push_back(input);
            continue;
        }
        const size_t before = files.size();
        add_files_below(input, &files);
        if (files.size() == before) { throw Error(kExitBadInput, input + ": no files in this folder"); }
        std::sort(files.begin() + (ptrdiff_t)before, files.end());
    }
    return files;
}

// Throws Error(kExitBadInput) if a file that begins so is no text: a model learns nothing of use from it.
inline void require_text(const std::string& name, std::string_view head, const char* cure) {
    const size_t zero = head.substr(0, 8000).find('\0');
    std::string found(foreign_kind(head));
    if (head.size() >= 4 && std::memcmp(head.data(), &kTokenShardMagic, 4) == 0) {
        found = "a token shard: leave it out of the inputs";
    } else if (found.empty() && zero != head.npos) {
        found =
            fmt::format("a zero byte at {}: a binary file, or UTF-16, of which iconv makes UTF-8", zero + 1);
    }
    if (found.empty()) { return; }
    throw Error(kExitBadInput, "{}: expected text, found {}. A pipe is read, too, as in zcat FILE | {}", name,
                found, cure);
}

// throws Error(kExitUsage) if an input is a file PREFIX_train_000000.bin, or of the like: a shard may replace it
inline void require_no_shard(const std::filesystem::path& prefix, const std::string& input) {
    std::error_code ignored;
    const std::string name = std::filesystem::canonical(input, ignored).filename().string();
    for (const char* split : {"_train_", "_val_", "_test_"}) {
        const std::string start = prefix.filename().string() + split;
        if (name.starts_with(start) && name.ends_with(".bin") &&
            name.find_first_not_of("0123456789", start.size()) == name.size() - 4) {
            require_no_input((prefix.parent_path() / name).string(), input);
        }
    }
}

// JSONL: a file with a JSON object on each line. Bytes come in any portions, as they are read; memory holds a
// line.
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
                            "{}: found a line of more than {} bytes, expected JSONL: an object on each line",
                            where(number_ + 1), kMostBytes);
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
    const JsonValue* value = json_find(&object, name);
    if (const auto* text = json_as<std::string>(value)) { return *text; }
    std::string found = value != nullptr ? "one that is no text" : "none";
    if (const auto* members = json_as<JsonValue::object_t>(&object); members != nullptr && value == nullptr) {
        for (const auto& [member, ignored] : *members) {
            found += (found == "none" ? ", but " : ", ") + json_text(member);
        }
    }
    throw Error(kExitBadInput, "{}: expected an object with a text \"{}\", found {}", where, name, found);
}

}  // namespace llmc

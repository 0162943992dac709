// The files that the inputs of data/make_shards are: a folder stands for all in it and below.
#pragma once
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/host/base/error.h"
#include "llmc/host/files/binary_file.h"
#include "llmc/host/tokens/token_shard.h"

namespace llmc {

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
            fmt::format(
                "{}: cannot read: {}. Expected a file or folder that you may read: check its permissions.",
                path, e.code().message()));
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
    throw Error(kExitBadInput,
                fmt::format("{}: expected text, found {}. A pipe is read, too, as in zcat FILE | {}", name,
                            found, cure));
}

// throws Error(kExitUsage) if an input is a file PREFIX_train_000000.bin, or of the like: a shard may replace it
inline void require_no_shard(const std::filesystem::path& prefix, const std::string& input) {
    std::error_code ignored;
    const std::string name = std::filesystem::canonical(input, ignored).filename().string();
    for (const char* split : {"_train_", "_val_"}) {
        const std::string start = prefix.filename().string() + split;
        if (name.starts_with(start) && name.ends_with(".bin") &&
            name.find_first_not_of("0123456789", start.size()) == name.size() - 4) {
            require_no_input((prefix.parent_path() / name).string(), input);
        }
    }
}

}  // namespace llmc

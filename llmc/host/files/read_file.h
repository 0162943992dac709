// Reading what must not be mistaken: only "no such file" means that a file is not there. Any other error of
// the system (EIO, EACCES, EMFILE, ESTALE ...) says nothing about what is there; it may pass, so the call is
// repeated for about a second, and then thrown as CannotRead.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "llmc/host/base/error.h"

namespace llmc {

struct CannotRead : Error {
    using Error::Error;
};

enum class FileKind { kMissing, kFile, kFolder, kOther };
FileKind file_kind(const std::string& path);  // of what a symbolic link leads to

// the names in a folder, sorted; nothing if there is no such folder
std::optional<std::vector<std::string>> folder_names(const std::string& path);

// A whole file; nothing if there is none. Throws Error(kExitBadInput) if it is no regular file, or longer
// than that.
std::optional<std::string> read_whole(const std::string& path, int64_t most_bytes);

struct Digest {
    int64_t bytes = 0;
    uint64_t xxh3 = 0;
    bool operator==(const Digest&) const = default;
};

// the digest of bytes that come in pieces
class Hasher {
public:
    Hasher();
    void restart();
    void add(const void* data, size_t bytes);
    Digest digest() const;

private:
    std::shared_ptr<void> state_;  // xxHash's
    int64_t bytes_ = 0;
};

// Size and XXH3 of a file's content from a byte on; nothing if there is none. Throws Error(kExitBadInput) if
// it is no regular file.
std::optional<Digest> digest_file(const std::string& path, int64_t from = 0);

// Device, inode, size and both times of a file as one word each: the same as before means that nobody has
// written to it, unless its file system's clock has not moved on since. "" if there is no such file.
std::string file_identity(const std::string& path);
// the same, but "" where that clock may not have moved on: of a file that changed in the last two seconds
std::string settled_identity(const std::string& path);

}  // namespace llmc

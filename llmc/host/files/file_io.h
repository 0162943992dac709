// Files, read and written so that nothing is mistaken. Only "no such file" means that a file is not there: any other error of
// the system (EIO, EACCES, EMFILE, ESTALE ...) says nothing about what is there; it may pass, so the call is repeated for about
// a second, and then thrown as CannotRead. Binary files are checked field by field: every format of this project starts with a
// header of 256 little-endian int32 words. A file is replaced whole or not at all.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "llmc/host/base/error.h"

struct XXH3_state_s;

namespace llmc {

// The number of an open file, which is closed with it; negative: none.
class Descriptor {
public:
    explicit Descriptor(int fd) : fd_(fd) {}
    Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Descriptor& operator=(Descriptor&& other) noexcept {
        std::swap(fd_, other.fd_);
        return *this;
    }
    ~Descriptor();
    operator int() const { return fd_; }

private:
    int fd_;
};

struct CannotRead : Error {
    using Error::Error;
};

enum class FileKind { kMissing, kFile, kFolder, kOther };
FileKind file_kind(const std::string& path);  // of what a symbolic link leads to
// as file_kind() says, but that an error of the system counts as no
bool is_there(const std::string& path);
bool is_folder(const std::string& path);

std::string folder_of(const std::string& path);  // that it lies in; "." of a bare name

// the names in a folder, sorted; nothing if there is no such folder
std::optional<std::vector<std::string>> folder_names(const std::string& path);

// A whole file; nothing if there is none. Throws Error(kExitBadInput) if it is longer, or no regular file.
std::optional<std::string> read_whole(const std::string& path, int64_t most_bytes = INT64_MAX);

struct Digest {
    int64_t bytes = 0;
    uint64_t xxh3 = 0;
    bool operator==(const Digest&) const = default;
};

// the digest of bytes that come in pieces
class Hasher {
public:
    Hasher();
    void add(const void* data, size_t bytes);
    Digest digest() const;

private:
    std::shared_ptr<XXH3_state_s> state_;
    int64_t bytes_ = 0;
};

// Size and XXH3 of a file from a byte on; nothing if there is none. Throws Error(kExitBadInput) if it is not regular.
std::optional<Digest> digest_file(const std::string& path, int64_t from = 0);

// Device, inode, size and both times of a file as one word each: the same as before means that nobody has
// written to it, unless its file system's clock has not moved on since. "" if there is no such file.
// settled: "" also where that clock may not have moved on: of a file that changed in the last two seconds.
std::string file_identity(const std::string& path, bool settled = false);

constexpr int kHeaderWords = 256;
constexpr size_t kHeaderBytes = kHeaderWords * sizeof(int32_t);

// What a file that begins so is, with what helps, where it is known to be neither text nor one of ours: "a page of
// HTML, ...", of a download that failed. Else "".
constexpr size_t kHeadBytes = 512;  // are enough
std::string_view foreign_kind(std::string_view head);

// A regular file, open for reading; the constructor throws Error(kExitBadInput) if it is missing, unreadable,
// not a regular file, empty, or of a foreign kind. What is read is copied: where a file shrinks or its disk fails, a read is an
// error, as an access to mapped memory is a signal that no thread survives.
class RegularFile {
public:
    explicit RegularFile(const std::string& path);
    const std::string& path() const { return path_; }
    size_t size() const { return size_; }  // when it was opened

    // Bytes [at, at + bytes), which lie in the file. Throws Error(kExitBadInput) if they cannot be read.
    void read(uint64_t at, void* to, size_t bytes) const;
    // All of it; throws Error(kExitBadInput) if that is more than most_bytes.
    std::string text(size_t most_bytes) const;
    // tells the system that a range will be read soon
    void will_need(uint64_t at, size_t bytes) const;

private:
    std::string path_;
    Descriptor file_;
    size_t size_ = 0;
};

// Reads the header of a file. Each accessor checks what it returns and throws Error(kExitBadInput)
// naming file, field, found, expected and the cure ("make token shards with data/make_shards").
class HeaderReader {
public:
    HeaderReader(const RegularFile& file, const char* kind, int32_t magic, std::string cure);
    // the header word, which must lie in [low, high]
    int32_t field(int word, const char* name, int64_t low, int64_t high) const;
    // throws unless the file is exactly this long
    void require_size(uint64_t bytes, const std::string& made_of) const;
    [[noreturn]] void fail(const std::string& field, const std::string& found,
                           const std::string& expected) const;

private:
    const RegularFile& file_;
    const char* kind_;
    std::string cure_;
    int32_t words_[kHeaderWords] = {};
};

// a * b for sizes that come from files: false when the result does not fit in 64 bits
inline bool multiply_fits(uint64_t a, uint64_t b, uint64_t* product) {
    return !__builtin_mul_overflow(a, b, product);
}

// Writes a file under a temporary name beside the target; commit() flushes, fsyncs and renames it, so that
// the target is at every moment the old file or the whole new one. Without commit() the destructor removes
// the temporary; one that a killed process has left is removed by the next writer of the same file. Errors:
// kExitUsage if the folder cannot be written or the target is no file, kExitSaveFailed if writing fails (disk full).
class FileWriter {
public:
    explicit FileWriter(const std::string& path);
    ~FileWriter();
    FileWriter(const FileWriter&) = delete;

    void write(const void* data, size_t bytes);
    // The digest of what the file is now. before: called when the disk has all of it, before it gets its name; of a set of
    // files the first takes its last away there, so that nobody who is killed between two leaves a mixture.
    Digest commit(const std::function<void()>& before = nullptr);

private:
    [[noreturn]] void fail(const char* what) const;
    std::string path_, temporary_;
    std::FILE* file_ = nullptr;
    Hasher hasher_;
    int64_t written_ = 0, on_its_way_ = 0;  // bytes, and those of them that the system was told to write
};

// throws Error(kExitUsage) if out is the file that input names: the result would replace it
void require_no_input(const std::string& out, const std::string& input);

// a whole file; errors as FileWriter's
Digest write_text_file(const std::string& path, const std::string& text);

// Makes what was renamed in a folder durable: a power loss could undo it. Throws Error(kExitSaveFailed).
void sync_folder(const std::string& folder);

// makes a folder and its parents; throws Error(kExitUsage) if that fails or if files cannot be created in it
void make_writable_folder(const std::string& path);

// makes a folder that was not there, of this name or of name-2, name-3, ...; returns its name. Of several
// that ask at once each gets its own. Errors as above.
std::string make_new_folder(const std::string& name);

// One process a run folder: two that save into one folder would delete each other's files.
// Holds folder/.lock by flock(2) as long as it lives; a process that ends, however it ends, lets go. The file
// says who holds it and stays, empty.
class RunLock {
public:
    RunLock() = default;
    ~RunLock();
    RunLock(const RunLock&) = delete;

    // The folder exists. Throws Error(kExitUsage) that names process and host if another process holds it, or
    // if the folder cannot be written. Where the file system knows no locks, that is said on stderr.
    void take(const std::string& folder);
    bool taken() const { return file_ >= 0; }
    // Throws Error(kExitSaveFailed) if the folder was moved or its .lock removed: a save might replace another run's.
    void require_held() const;

private:
    Descriptor file_{-1};
    std::string folder_;
};

}  // namespace llmc

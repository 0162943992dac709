// Reading what must not be mistaken: see read_file.h.
#include "llmc/host/files/read_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <memory>
#include <thread>

namespace llmc {

namespace {

constexpr int64_t kPiece = 1 << 20;  // bytes read at a time, at most

bool is_missing(int error) { return error == ENOENT || error == ENOTDIR; }

// Calls attempt(), which returns 0 or an errno, until it succeeds. False: there is no such file.
template <typename Attempt>
bool persistently(const std::string& path, Attempt attempt) {
    int error = 0;
    for (int wait_ms : {0, 50, 150, 300, 500}) {
        std::this_thread::sleep_for(std::chrono::milliseconds(wait_ms));
        error = attempt();
        if (error == 0) { return true; }
        if (is_missing(error)) { return false; }
    }
    throw CannotRead(kExitBadInput,
                     fmt::format("{}: cannot read: {}. Nothing was changed. Try again once it can be "
                                 "read.",
                                 path, std::strerror(error)));
}

struct Descriptor {
    int fd = -1;
    ~Descriptor() {
        if (fd >= 0) { close(fd); }
    }
};

// Reads a regular file from a byte on: use(data, bytes) for each piece, after restart(). False: no such file.
template <typename Restart, typename Use>
bool read_pieces(const std::string& path, int64_t from, Restart restart, Use use) {
    std::vector<char> piece;
    return persistently(path, [&] {
        // O_NONBLOCK: opening a pipe would wait for whoever writes to it
        Descriptor d{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
        struct stat st;
        if (d.fd < 0 || fstat(d.fd, &st) != 0) { return errno; }
        if (!S_ISREG(st.st_mode)) { throw Error(kExitBadInput, path + ": not a regular file"); }
        restart();
        // a byte more than there are: the end is where nothing comes
        piece.resize((size_t)std::clamp<int64_t>(st.st_size - from + 1, 1, kPiece));
        for (off_t at = from;;) {
            ssize_t bytes = pread(d.fd, piece.data(), piece.size(), at);
            if (bytes == 0) { return 0; }
            if (bytes < 0 && errno == EINTR) { continue; }
            if (bytes < 0) { return errno; }
            use(piece.data(), (size_t)bytes);
            at += bytes;
        }
    });
}

// false: there is no such file
bool stat_of(const std::string& path, struct stat* st) {
    return persistently(path, [&] { return stat(path.c_str(), st) == 0 ? 0 : errno; });
}

std::string identity_of(const struct stat& st) {
    auto time = [](const timespec& t) { return fmt::format("{}.{:09}", t.tv_sec, t.tv_nsec); };
    return fmt::format("{} {} {} {} {}", st.st_dev, st.st_ino, st.st_size, time(st.st_mtim),
                       time(st.st_ctim));
}

}  // namespace

FileKind file_kind(const std::string& path) {
    struct stat st;
    if (!stat_of(path, &st)) { return FileKind::kMissing; }
    return S_ISREG(st.st_mode) ? FileKind::kFile : S_ISDIR(st.st_mode) ? FileKind::kFolder : FileKind::kOther;
}

std::optional<std::vector<std::string>> folder_names(const std::string& path) {
    std::vector<std::string> names;
    bool there = persistently(path, [&] {
        names.clear();
        std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(path.c_str()), closedir);
        if (folder == nullptr) { return errno; }
        errno = 0;
        while (const dirent* entry = readdir(folder.get())) {
            std::string name = entry->d_name;
            if (name != "." && name != "..") { names.push_back(name); }
            errno = 0;
        }
        return errno;
    });
    if (!there) { return std::nullopt; }
    std::sort(names.begin(), names.end());
    return names;
}

std::optional<std::string> read_whole(const std::string& path, int64_t most_bytes) {
    std::string text;
    bool there = read_pieces(
        path, 0, [&] { text.clear(); },
        [&](const char* data, size_t bytes) {
            text.append(data, bytes);
            if ((int64_t)text.size() > most_bytes) {
                throw Error(
                    kExitBadInput,
                    fmt::format("{}: longer than the {} bytes that such a file can have", path, most_bytes));
            }
        });
    return there ? std::optional(std::move(text)) : std::nullopt;
}

Hasher::Hasher() : state_(XXH3_createState(), [](void* s) { XXH3_freeState((XXH3_state_t*)s); }) {
    restart();
}
void Hasher::restart() {
    XXH3_64bits_reset((XXH3_state_t*)state_.get());
    bytes_ = 0;
}
void Hasher::add(const void* data, size_t bytes) {
    XXH3_64bits_update((XXH3_state_t*)state_.get(), data, bytes);
    bytes_ += (int64_t)bytes;
}
Digest Hasher::digest() const { return {bytes_, XXH3_64bits_digest((const XXH3_state_t*)state_.get())}; }

std::optional<Digest> digest_file(const std::string& path, int64_t from) {
    Hasher hasher;
    bool there = read_pieces(
        path, from, [&] { hasher.restart(); },
        [&](const char* data, size_t bytes) { hasher.add(data, bytes); });
    return there ? std::optional(hasher.digest()) : std::nullopt;
}

std::string file_identity(const std::string& path) {
    struct stat st;
    return stat_of(path, &st) ? identity_of(st) : "";
}

std::string settled_identity(const std::string& path) {
    struct stat st;
    bool settled = stat_of(path, &st) && std::time(nullptr) - st.st_ctim.tv_sec > 2;
    return settled ? identity_of(st) : "";
}

}  // namespace llmc

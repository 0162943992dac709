// Files, read and written so that nothing is mistaken: see file_io.h.
#include "llmc/host/files/file_io.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <thread>

#include "llmc/host/base/text.h"

namespace llmc {

Descriptor::~Descriptor() {
    if (fd_ >= 0) { close(fd_); }
}

// ---- what is there ------------------------------------------------------------------------------

namespace {

constexpr int64_t kPiece = 1 << 20;  // bytes read at a time, at most

// for the reason that errno has
[[noreturn]] void fail(int exit_code, const std::string& path, const char* what, const char* cure) {
    throw Error(exit_code, "{}: {}: {}. {}", path, what, std::strerror(errno), cure);
}

// Calls attempt(), which returns 0 or an errno, until it succeeds. False: there is no such file.
template <typename Attempt>
bool persistently(const std::string& path, Attempt attempt) {
    int error = 0;
    for (int wait_ms : {0, 50, 150, 300, 500}) {
        std::this_thread::sleep_for(std::chrono::milliseconds(wait_ms));
        error = attempt();
        if (error == 0) { return true; }
        if (error == ENOENT || error == ENOTDIR) { return false; }
    }
    throw CannotRead(kExitBadInput,
                     "{}: cannot read: {}. Nothing was changed. Try again once it can be read.", path,
                     std::strerror(error));
}

// O_NONBLOCK: opening a pipe, which is refused then, would wait for whoever writes to it
Descriptor open_to_read(const std::string& path) {
    return Descriptor(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
}

// Reads a regular file from a byte on: use(data, bytes) for each piece, after restart(). False: no such file.
template <typename Restart, typename Use>
bool read_pieces(const std::string& path, int64_t from, Restart restart, Use use) {
    std::vector<char> piece;
    return persistently(path, [&] {
        const Descriptor file = open_to_read(path);
        struct stat st;
        if (file < 0 || fstat(file, &st) != 0) { return errno; }
        if (!S_ISREG(st.st_mode)) { throw Error(kExitBadInput, path + ": not a regular file"); }
        restart();
        // a byte more than there are: the end is where nothing comes
        piece.resize((size_t)std::clamp<int64_t>(st.st_size - from + 1, 1, kPiece));
        for (off_t at = from;;) {
            ssize_t bytes = pread(file, piece.data(), piece.size(), at);
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

}  // namespace

FileKind file_kind(const std::string& path) {
    struct stat st;
    if (!stat_of(path, &st)) { return FileKind::kMissing; }
    return S_ISREG(st.st_mode) ? FileKind::kFile : S_ISDIR(st.st_mode) ? FileKind::kFolder : FileKind::kOther;
}

bool is_there(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

bool is_folder(const std::string& path) {
    struct stat st;
    return stat(path.c_str(), &st) == 0 && S_ISDIR(st.st_mode);
}

std::optional<std::vector<std::string>> folder_names(const std::string& path) {
    std::vector<std::string> names;
    bool there = persistently(path, [&] {
        names.clear();
        std::error_code error;
        for (std::filesystem::directory_iterator at(path, error), end; at != end; at.increment(error)) {
            names.push_back(at->path().filename().string());
        }
        return error.value();
    });
    std::ranges::sort(names);
    return there ? std::optional(names) : std::nullopt;
}

std::optional<std::string> read_whole(const std::string& path, int64_t most_bytes) {
    std::string text;
    bool there = read_pieces(
        path, 0, [&] { text.clear(); },
        [&](const char* data, size_t bytes) {
            text.append(data, bytes);
            throw_if((int64_t)text.size() > most_bytes, kExitBadInput,
                     "{}: longer than the {} bytes that such a file can have", path, most_bytes);
        });
    return there ? std::optional(std::move(text)) : std::nullopt;
}

Hasher::Hasher() : state_(XXH3_createState(), XXH3_freeState) { XXH3_64bits_reset(state_.get()); }
void Hasher::add(const void* data, size_t bytes) {
    XXH3_64bits_update(state_.get(), data, bytes);
    bytes_ += (int64_t)bytes;
}
Digest Hasher::digest() const { return {bytes_, XXH3_64bits_digest(state_.get())}; }

std::optional<Digest> digest_file(const std::string& path, int64_t from) {
    Hasher hasher;
    bool there = read_pieces(
        path, from, [&] { hasher = {}; }, [&](const char* data, size_t bytes) { hasher.add(data, bytes); });
    return there ? std::optional(hasher.digest()) : std::nullopt;
}

std::string file_identity(const std::string& path, bool settled) {
    struct stat st;
    if (!stat_of(path, &st) || (settled && std::time(nullptr) - st.st_ctim.tv_sec <= 2)) { return ""; }
    auto time = [](const timespec& t) { return fmt::format("{}.{:09}", t.tv_sec, t.tv_nsec); };
    return fmt::format("{} {} {} {} {}", st.st_dev, st.st_ino, st.st_size, time(st.st_mtim),
                       time(st.st_ctim));
}

std::string folder_of(const std::string& path) {
    std::string folder = std::filesystem::path(path).parent_path().string();
    return folder.empty() ? "." : folder;
}

// ---- open files, headers, writing ---------------------------------------------------------------

namespace {

constexpr int64_t kDiskPiece = 64 << 20;  // bytes

struct ForeignKind {
    size_t at;
    std::string_view bytes, what;
};
constexpr const char *kTable = "a table: pandas.read_parquet, or datasets, and to_json make JSON lines of it",
                     *kHtml = "a page of HTML, as of a download that failed: get the file again";
constexpr ForeignKind kForeignKinds[] = {
    {0, "\x1f\x8b\x08", "a file compressed by gzip: zcat unpacks it"},
    {4, "1AY&SY", "a file compressed by bzip2: bzcat unpacks it"},
    {1, "7zXZ", "a file compressed by xz: xzcat unpacks it"},
    {0, "\x28\xb5\x2f\xfd", "a file compressed by zstd: zstdcat unpacks it"},
    {0, "PK\3\4",
     "a zip archive: unzip -p unpacks it; of PyTorch's .bin and .pt save_pretrained makes safetensors"},
    {257, "ustar", "a tar archive: tar -xOf unpacks it"},
    {0, "\x80\x04\x95",
     "a Python pickle, which can run code and is not read; generate takes ids: --prompt-ids"},
    {0, "PAR1", kTable},
    {0, "ARROW1", kTable},
    {0, "%PDF-", "a PDF: pdftotext makes text of it"},
    {0, "version https://git-lfs", "a Git LFS pointer: git lfs pull, or hf download, gets the file"},
    {2, "DOCTYPE html", kHtml},
    {2, "doctype html", kHtml},
    {0, "<html", kHtml}};

// Deletes PATH.tmp-PID of writers that were killed: nobody holds their locks any more.
void sweep_temporaries(const std::string& path) {
    const std::string start = std::filesystem::path(path).filename().string() + ".tmp-";
    std::error_code ignored;
    std::filesystem::directory_iterator at(folder_of(path), ignored), end;
    for (; at != end; at.increment(ignored)) {
        const std::string name = at->path().filename().string();
        if (!name.starts_with(start) || name.find_first_not_of("0123456789", start.size()) != name.npos) {
            continue;
        }
        const Descriptor file(open(at->path().c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
        if (file >= 0 && flock(file, LOCK_EX | LOCK_NB) == 0) { unlink(at->path().c_str()); }
    }
}

// The rename would put a file in the place of a device (/dev/null), a pipe or /dev/stdout.
void require_replaceable(const std::string& path) {
    using std::filesystem::file_type;
    std::error_code ignored;
    const file_type type = std::filesystem::status(path, ignored).type();
    const bool stream = std::filesystem::read_symlink(path, ignored).string().starts_with("/proc/");
    const bool free = type == file_type::not_found || type == file_type::none;
    if (stream || (!free && type != file_type::regular)) {
        const char* found = type == file_type::directory ? "folder" : "device or pipe";
        throw Error(kExitUsage, "{}: found a {}, expected a file or a free name. Choose another name.", path,
                    found);
    }
}

}  // namespace

std::string_view foreign_kind(std::string_view head) {
    for (const ForeignKind& kind : kForeignKinds) {
        if (head.size() > kind.at && head.substr(kind.at).starts_with(kind.bytes)) { return kind.what; }
    }
    return "";
}

RegularFile::RegularFile(const std::string& path) : path_(path), file_(open_to_read(path)) {
    rlimit most;
    // a data set may have more shards than the usual 1,024 files
    if (file_ < 0 && errno == EMFILE && getrlimit(RLIMIT_NOFILE, &most) == 0 &&
        most.rlim_cur < most.rlim_max) {
        most.rlim_cur = most.rlim_max;
        setrlimit(RLIMIT_NOFILE, &most);
        file_ = open_to_read(path);
    }
    if (file_ < 0) {
        fail(kExitBadInput, path, "cannot open", "Expected a file that you may read: check its name.");
    }
    struct stat st;
    if (fstat(file_, &st) != 0 || !S_ISREG(st.st_mode)) {
        throw Error(kExitBadInput, path + ": not a regular file");
    }
    size_ = (size_t)st.st_size;
    if (size_ == 0) { throw Error(kExitBadInput, path + ": the file is empty"); }
    std::string head(std::min(size_, kHeadBytes), '\0');
    read(0, head.data(), head.size());
    // else an LFS pointer would have a "length of the header: found 2336927755350992246"
    const std::string_view kind = foreign_kind(head);
    if (!kind.empty()) { throw Error(kExitBadInput, "{}: found {}", path, kind); }
}

void RegularFile::read(uint64_t at, void* to, size_t bytes) const {
    require(at <= size_ && bytes <= size_ - at, "RegularFile: the range must lie in the file");
    for (size_t done = 0; done < bytes;) {
        ssize_t got = pread(file_, static_cast<char*>(to) + done, bytes - done, (off_t)(at + done));
        if (got < 0 && errno == EINTR) { continue; }
        if (got <= 0) {
            throw Error(kExitBadInput, "{}: cannot read {} bytes from byte {} on: {}", path_, bytes, at,
                        got == 0 ? "the file has become shorter since it was opened" : std::strerror(errno));
        }
        done += (size_t)got;
    }
}

std::string RegularFile::text(size_t most_bytes) const {
    throw_if(size_ > most_bytes, kExitBadInput, "{}: found {} bytes, expected at most {}", path_, size_,
             most_bytes);
    std::string all(size_, '\0');
    read(0, all.data(), size_);
    return all;
}

void RegularFile::will_need(uint64_t at, size_t bytes) const {
    posix_fadvise(file_, (off_t)at, (off_t)bytes, POSIX_FADV_WILLNEED);  // may fail
}

HeaderReader::HeaderReader(const RegularFile& file, const char* kind, int32_t magic, std::string cure)
    : file_(file), kind_(kind), cure_(std::move(cure)) {
    if (file.size() < kHeaderBytes) {
        fail("header", fmt::format("{} bytes", file.size()), fmt::format("at least {} bytes", kHeaderBytes));
    }
    file.read(0, words_, sizeof(words_));
    field(0, "magic", magic, magic);
}

int32_t HeaderReader::field(int word, const char* name, int64_t low, int64_t high) const {
    const int32_t value = words_[word];
    if (value < low || value > high) {
        std::string expected = low == high ? fmt::format("{}", low) : fmt::format("{} to {}", low, high);
        fail(fmt::format("header word {}, {}", word, name), fmt::format("{}", value), expected);
    }
    return value;
}

void HeaderReader::require_size(uint64_t bytes, const std::string& made_of) const {
    if (file_.size() != bytes) {
        fail("file size", fmt::format("{} bytes", file_.size()),
             fmt::format("{} bytes = {}", bytes, made_of));
    }
}

void HeaderReader::fail(const std::string& field, const std::string& found,
                        const std::string& expected) const {
    throw Error(kExitBadInput, "{}: not a usable {}: {}: found {}, expected {}. {}", file_.path(), kind_,
                field, found, expected, cure_);
}

FileWriter::FileWriter(const std::string& path) : path_(path) {
    require_replaceable(path);
    sweep_temporaries(path);
    constexpr int64_t kAboveProcesses = 1 << 22;
    for (int64_t number = getpid(); file_ == nullptr; number += kAboveProcesses) {
        temporary_ = fmt::format("{}.tmp-{}", path, number);
        // x: what has this name already is another container's, or a link whose file would be emptied
        file_ = std::fopen(temporary_.c_str(), "wbxe");
        if (file_ == nullptr && errno != EEXIST) {
            llmc::fail(kExitUsage, path, "cannot write there", "Choose a folder that you may write to.");
        }
    }
    flock(fileno(file_), LOCK_EX | LOCK_NB);  // where there are no locks, nothing is swept
}

FileWriter::~FileWriter() {
    if (file_ != nullptr) { std::fclose(file_); }
    if (!temporary_.empty()) { unlink(temporary_.c_str()); }
}

void FileWriter::write(const void* data, size_t bytes) {
    if (std::fwrite(data, 1, bytes, file_) != bytes) { fail("writing failed"); }
    hasher_.add(data, bytes);
    written_ += (int64_t)bytes;
    if (written_ - on_its_way_ >= kDiskPiece) {  // the disk works while the rest is made; commit() waits less
        sync_file_range(fileno(file_), on_its_way_, written_ - on_its_way_, SYNC_FILE_RANGE_WRITE);
        on_its_way_ = written_;
    }
}

Digest FileWriter::commit(const std::function<void()>& before) {
    if (std::fflush(file_) != 0 || fsync(fileno(file_)) != 0) { fail("flushing failed"); }
    if (before != nullptr) { before(); }
    const Descriptor lock(fcntl(fileno(file_), F_DUPFD_CLOEXEC, 0));  // until it has its name
    if (std::fclose(std::exchange(file_, nullptr)) != 0 ||
        std::rename(temporary_.c_str(), path_.c_str()) != 0) {
        fail("closing or renaming failed");
    }
    temporary_.clear();
    sync_folder(folder_of(path_));
    return hasher_.digest();
}

void FileWriter::fail(const char* what) const {
    llmc::fail(kExitSaveFailed, path_, what,
               errno == EFBIG ? "Nothing was replaced; raise the limit on the size of a file (ulimit -f) or "
                                "choose another folder."
                              : "Nothing was replaced; free some space or choose another folder.");
}

void require_no_input(const std::string& out, const std::string& input) {
    std::error_code ignored;
    throw_if(std::filesystem::equivalent(out, input, ignored), kExitUsage,
             "{}: this is an input, which would be lost. Choose another --out.", out);
}

Digest write_text_file(const std::string& path, const std::string& text) {
    FileWriter out(path);
    out.write(text.data(), text.size());
    return out.commit();
}

void sync_folder(const std::string& folder) {
    const Descriptor opened(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    // EINVAL: a file system that does not know how
    if (opened < 0 || (fsync(opened) != 0 && errno != EINVAL)) {
        fail(kExitSaveFailed, folder, "cannot flush this folder to the disk",
             "What was saved in it may be lost with the power.");
    }
}

void make_writable_folder(const std::string& path) {
    std::vector<std::string> made;  // from the inside out
    std::error_code error, ignored;
    // above the root there is the root: it may not be readable either
    for (std::filesystem::path p = path; p.has_relative_path() && !std::filesystem::exists(p, ignored);
         p = p.parent_path()) {
        made.push_back(p.string());
    }
    std::filesystem::create_directories(path, error);
    if (error) { errno = error.value(); }
    if (error || access(path.c_str(), W_OK | X_OK) != 0) {
        fail(kExitUsage, path, "cannot make or write this folder", "Choose one that you may write to.");
    }
    for (const std::string& folder : made) { sync_folder(folder_of(folder)); }
}

std::string make_new_folder(const std::string& name) {
    make_writable_folder(folder_of(name));
    std::string numbered = name;
    for (int number = 2; mkdir(numbered.c_str(), 0777) != 0; number++) {
        if (errno != EEXIST) {
            fail(kExitUsage, numbered, "cannot make this folder", "Choose one that you may write to.");
        }
        numbered = fmt::format("{}-{}", name, number);
    }
    sync_folder(folder_of(numbered));
    return numbered;
}

// ---- one process a run folder --------------------------------------------------------------------

namespace {

std::string host_name() {
    char name[256] = {};
    return gethostname(name, sizeof(name) - 1) == 0 ? name : "?";
}

// "process 123 on host": whoever holds the lock has just taken it or wrote this long ago. Until it has, the
// file is empty or names a process that was killed.
std::string holder(int fd) {
    for (int wait = 0; wait < 100; wait++) {
        char text[512] = {}, host[256];
        int pid = 0;
        (void)!pread(fd, text, sizeof(text) - 1, 0);
        if (std::sscanf(text, "process %d on %255s", &pid, host) == 2 && pid > 0) {
            const bool ended = host == host_name() && kill(pid, 0) != 0 && errno == ESRCH;
            if (!ended) { return fmt::format("process {} on {}", pid, host); }
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return "another process";
}

// false: another process holds it
bool lock_file(int fd, const std::string& path) {
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) { return true; }
    if (errno == EWOULDBLOCK) { return false; }
    put_text(stderr,
             fmt::format("{}: this file system has no locks ({}): start no second run in this folder\n", path,
                         std::strerror(errno)));
    return true;
}

// whether the file is still the one of this name: it may have been removed between opening and locking
bool is_named(int fd, const std::string& path) {
    struct stat opened, named;
    return fstat(fd, &opened) == 0 && stat(path.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
           opened.st_ino == named.st_ino;
}

}  // namespace

RunLock::~RunLock() {
    if (taken()) { (void)!ftruncate(file_, 0); }
}

void RunLock::take(const std::string& folder) {
    if (taken()) { return; }
    const std::string path = folder + "/.lock";
    for (;;) {
        // O_NOFOLLOW: a folder from elsewhere may have a link there, whose file would be emptied
        Descriptor file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW, 0644));
        if (file < 0) {
            fail(kExitUsage, path, "cannot make or write this file",
                 errno == ELOOP ? "It is a link, expected a file or nothing: remove it."
                                : "Choose an --out that you may write to.");
        }
        if (!lock_file(file, path)) {
            throw Error(kExitUsage,
                        "{}: {} trains in this folder (it holds .lock). Wait until it has ended, or choose "
                        "another --out.",
                        folder, holder(file));
        }
        if (!is_named(file, path)) { continue; }
        const std::string me = fmt::format("process {} on {}\n", getpid(), host_name());
        (void)!ftruncate(file, 0);  // the lock holds without the name
        (void)!pwrite(file, me.data(), me.size(), 0);
        file_ = std::move(file);
        folder_ = folder;
        return;
    }
}

void RunLock::require_held() const {
    const std::string path = folder_ + "/.lock";
    struct stat ignored;
    if (!taken() || is_named(file_, path)) { return; }
    const bool other = stat(path.c_str(), &ignored) == 0;
    if (!other && errno != ENOENT && errno != ENOTDIR) { return; }  // says nothing of the folder
    throw Error(kExitSaveFailed,
                "{}: its .lock is {}: the folder was moved, or .lock removed, so that another process may "
                "train there. Nothing more is written. Go on from what was saved: --resume auto --out "
                "FOLDER, where the folder is now.",
                folder_, other ? "another file" : "gone");
}

}  // namespace llmc

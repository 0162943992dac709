// One process a run folder: see run_lock.h.
#include "llmc/host/files/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "llmc/host/base/error.h"
#include "llmc/host/base/text.h"

namespace llmc {

namespace {

std::string host_name() {
    char name[256] = {};
    return gethostname(name, sizeof(name) - 1) == 0 ? name : "?";
}

// "process 123 on host": whoever holds the lock has just taken it or wrote this long ago. Until it has, the
// file is empty or names a process that was killed.
std::string holder(int fd) {
    for (int wait = 0; wait < 100; wait++) {
        char text[512] = {};
        ssize_t bytes = pread(fd, text, sizeof(text) - 1, 0);
        int pid = 0, end = 0;
        if (bytes > 0 && std::sscanf(text, "process %d on %n", &pid, &end) == 1 && pid > 0 && end > 0) {
            std::string host(text + end, std::strcspn(text + end, "\n"));
            bool ended = host == host_name() && kill(pid, 0) != 0 && errno == ESRCH;
            if (!ended) { return fmt::format("process {} on {}", pid, host); }
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return "another process";
}

// false: another process holds it
bool lock_file(int fd, const std::string& path) {
    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno == EWOULDBLOCK) { return false; }
        if (errno == EINTR) { continue; }
        put_text(stderr,
                 fmt::format("{}: this file system has no locks ({}): start no second run in this folder\n",
                             path, std::strerror(errno)));
        break;
    }
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
    if (fd_ < 0) { return; }
    (void)!ftruncate(fd_, 0);
    close(fd_);
}

void RunLock::take(const std::string& folder) {
    if (taken()) { return; }
    const std::string path = folder + "/.lock";
    for (;;) {
        // O_NOFOLLOW: a folder from elsewhere may have a link there, whose file would be emptied
        int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW, 0644);
        if (fd < 0) {
            throw Error(kExitUsage,
                        fmt::format("{}: cannot make or write this file: {}. {}.", path, std::strerror(errno),
                                    errno == ELOOP ? "It is a link, expected a file or nothing: remove it"
                                                   : "Choose an --out that you may write to"));
        }
        if (!lock_file(fd, path)) {
            std::string who = holder(fd);
            close(fd);
            throw Error(kExitUsage,
                        fmt::format("{}: {} trains in this folder (it holds .lock). Wait until it has "
                                    "ended, or choose another --out.",
                                    folder, who));
        }
        if (is_named(fd, path)) {
            std::string me = fmt::format("process {} on {}\n", (int)getpid(), host_name());
            (void)!ftruncate(fd, 0);  // the lock holds without the name
            (void)!pwrite(fd, me.data(), me.size(), 0);
            fd_ = fd;
            folder_ = folder;
            return;
        }
        close(fd);
    }
}

void RunLock::require_held() const {
    const std::string path = folder_ + "/.lock";
    struct stat ignored;
    const bool other = stat(path.c_str(), &ignored) == 0,
               gone = !other && (errno == ENOENT || errno == ENOTDIR);
    // any other error says nothing of the folder
    if (!taken() || is_named(fd_, path) || (!other && !gone)) { return; }
    throw Error(
        kExitSaveFailed,
        fmt::format(
            "{}: its .lock is {}: the folder was moved, or .lock removed, so that another process may "
            "train there. Nothing more is written. Go on from what was saved: --resume auto --out "
            "FOLDER, where the folder is now.",
            folder_, other ? "another file" : "gone"));
}

}  // namespace llmc

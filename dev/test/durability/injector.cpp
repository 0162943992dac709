// Faults at system calls: see injector.h. For x86-64.
#include "dev/test/durability/injector.h"

#include <fcntl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <map>

#include <doctest/doctest.h>

#include "llmc/host/base/error.h"

namespace llmc {

namespace {

using Registers = user_regs_struct;

constexpr unsigned kMostSeconds = 60;  // then SIGALRM ends the program

// where a system call has its paths: the number of the argument, -1 = none; a path may be relative to a
// descriptor
struct Shape {
    const char* name;
    int descriptor = -1;              // of the file itself
    int path = -1, relative_to = -1;  // a name, and the folder's descriptor
    int path2 = -1, relative_to2 = -1;
    bool writes = false;
};

const std::map<long, Shape> kShapes = {
    {SYS_open, {.name = "open", .path = 0}},
    {SYS_openat, {.name = "open", .path = 1, .relative_to = 0}},
    {SYS_read, {.name = "read", .descriptor = 0}},
    {SYS_pread64, {.name = "read", .descriptor = 0}},
    {SYS_write, {.name = "write", .descriptor = 0, .writes = true}},
    {SYS_pwrite64, {.name = "write", .descriptor = 0, .writes = true}},
    {SYS_fsync, {.name = "fsync", .descriptor = 0}},
    {SYS_fdatasync, {.name = "fsync", .descriptor = 0}},
    {SYS_close, {.name = "close", .descriptor = 0}},
    {SYS_ftruncate, {.name = "truncate", .descriptor = 0}},
    {SYS_getdents64, {.name = "getdents", .descriptor = 0}},
    {SYS_mmap, {.name = "mmap", .descriptor = 4}},
    {SYS_flock, {.name = "flock", .descriptor = 0}},
    {SYS_fstat, {.name = "stat", .descriptor = 0}},
    {SYS_stat, {.name = "stat", .path = 0}},
    {SYS_lstat, {.name = "stat", .path = 0}},
    {SYS_access, {.name = "stat", .path = 0}},
    {SYS_newfstatat, {.name = "stat", .path = 1, .relative_to = 0}},
    {SYS_statx, {.name = "stat", .path = 1, .relative_to = 0}},
    {SYS_mkdir, {.name = "mkdir", .path = 0}},
    {SYS_mkdirat, {.name = "mkdir", .path = 1, .relative_to = 0}},
    {SYS_rmdir, {.name = "rmdir", .path = 0}},
    {SYS_unlink, {.name = "unlink", .path = 0}},
    {SYS_unlinkat, {.name = "unlink", .path = 1, .relative_to = 0}},
    {SYS_rename, {.name = "rename", .path = 0, .path2 = 1}},
    {SYS_renameat, {.name = "rename", .path = 1, .relative_to = 0, .path2 = 3, .relative_to2 = 2}},
    {SYS_renameat2, {.name = "rename", .path = 1, .relative_to = 0, .path2 = 3, .relative_to2 = 2}},
};

uint64_t argument(const Registers& r, int number) {
    const unsigned long long all[] = {r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9};
    return all[number];
}

std::string link_of(const std::string& path) {
    char target[4096];
    ssize_t bytes = readlink(path.c_str(), target, sizeof(target));
    return bytes < 0 ? "" : std::string(target, (size_t)bytes);
}
std::string file_of(pid_t process, int fd) { return link_of(fmt::format("/proc/{}/fd/{}", process, fd)); }

// memory of the traced process; up to the end of a page that is not there
std::string memory_of(pid_t process, uint64_t at, size_t bytes) {
    std::string copy(bytes, '\0');
    iovec here = {copy.data(), bytes}, there = {(void*)at, bytes};
    ssize_t got = process_vm_readv(process, &here, 1, &there, 1, 0);
    copy.resize(got < 0 ? 0 : (size_t)got);
    return copy;
}

std::string text_of(pid_t process, uint64_t at) {
    std::string text;
    while (text.size() < 4096 && text.find('\0') == std::string::npos) {  // page by page
        const uint64_t from = at + text.size();
        std::string more = memory_of(process, from, 4096 - from % 4096);
        if (more.empty()) { break; }
        text += more;
    }
    return text.substr(0, text.find('\0'));
}

std::string path_of(pid_t process, const Registers& r, int path, int relative_to) {
    std::string name = text_of(process, argument(r, path));
    if (name.starts_with('/')) { return name; }
    const int fd = relative_to < 0 ? AT_FDCWD : (int)argument(r, relative_to);
    std::string folder =
        fd == AT_FDCWD ? link_of(fmt::format("/proc/{}/cwd", process)) : file_of(process, fd);
    return name.empty() ? folder : folder + "/" + name;
}

class Tracer {
public:
    Tracer(pid_t child, const std::string& folder, const std::string& out, const Injection& injection,
           bool with_data)
        : child_(child), folder_(folder), out_(out), injection_(injection), with_data_(with_data) {}

    Traced follow() {
        for (int status = 0;;) {
            // children of this thread only: others trace programs of their own
            pid_t process = waitpid(-1, &status, __WALL | __WNOTHREAD);
            if (process < 0) { return std::move(traced_); }
            if (WIFEXITED(status) || WIFSIGNALED(status)) {
                if (process != child_) { continue; }
                traced_.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
                return std::move(traced_);
            }
            go_on(process, status);
        }
    }

private:
    void go_on(pid_t process, int status) {
        int signal = WSTOPSIG(status);
        if (signal == (SIGTRAP | 0x80)) {
            if (inside_.contains(process)) {
                leave(process);
            } else {
                enter(process);
            }
            signal = 0;
        } else if (status >> 16 != 0 || signal == SIGSTOP || signal == SIGTRAP) {
            signal = 0;  // a new thread, or exec
        }
        ptrace(PTRACE_SYSCALL, process, nullptr, signal);
    }

    // a call of the program; inside_ says what is to happen when it returns
    void enter(pid_t process) {
        inside_[process] = {};
        Registers r;
        ptrace(PTRACE_GETREGS, process, nullptr, &r);
        auto found = kShapes.find((long)r.orig_rax);
        if (found == kShapes.end()) { return; }
        const Shape& shape = found->second;
        Call call;
        call.name = shape.name;
        if (call.name == "open" && argument(r, shape.path + 1) & O_CREAT) { call.name = "create"; }
        if (call.name == "unlink" && r.orig_rax == SYS_unlinkat && (r.rdx & AT_REMOVEDIR)) {
            call.name = "rmdir";
        }
        if (shape.descriptor >= 0) { call.path = file_of(process, (int)argument(r, shape.descriptor)); }
        if (shape.path >= 0) { call.path = path_of(process, r, shape.path, shape.relative_to); }
        if (shape.path2 >= 0) { call.to = path_of(process, r, shape.path2, shape.relative_to2); }
        if (with_data_ && shape.writes && call.path == out_) { call.name = "say"; }
        if (!is_below(call.path) && !is_below(call.to) && call.name != "say") { return; }
        if (shape.writes) {
            call.bytes = (int64_t)r.rdx;
            if (with_data_) { call.data = memory_of(process, r.rsi, r.rdx); }
        }
        traced_.calls.push_back(call);
        inside_[process].call = (int64_t)traced_.calls.size();
        inject(process, r, shape, (int64_t)traced_.calls.size());
    }

    bool is_below(const std::string& path) const {
        return path == folder_ || path.starts_with(folder_ + "/");
    }

    void inject(pid_t process, Registers r, const Shape& shape, int64_t number) {
        const bool this_kind =
            injection_.sticky && number > injection_.at &&
            traced_.calls[(size_t)number - 1].name == traced_.calls[(size_t)injection_.at - 1].name;
        if (number != injection_.at && !this_kind) { return; }
        if (injection_.fault == Fault::kKill) { kill(child_, SIGKILL); }
        const bool halves = shape.writes && r.rdx > 1;
        if (halves && (injection_.fault == Fault::kTorn || injection_.fault == Fault::kShort)) {
            r.rdx /= 2;
            ptrace(PTRACE_SETREGS, process, nullptr, &r);
        }
        inside_[process].kill = injection_.fault == Fault::kTorn;
        if (injection_.fault == Fault::kError) {
            inside_[process].error = injection_.error;
            if (std::strcmp(shape.name, "close") != 0) {
                r.orig_rax = (unsigned long long)-1;  // no such call
                ptrace(PTRACE_SETREGS, process, nullptr, &r);
            }
        }
    }

    void leave(pid_t process) {
        const Inside inside = inside_[process];
        inside_.erase(process);
        if (inside.call == 0) { return; }
        Registers r;
        if (ptrace(PTRACE_GETREGS, process, nullptr, &r) != 0) { return; }
        if (inside.error != 0) {
            r.rax = (unsigned long long)-inside.error;
            ptrace(PTRACE_SETREGS, process, nullptr, &r);
        }
        traced_.calls[(size_t)inside.call - 1].succeeded = (long long)r.rax >= 0;
        if (inside.kill) { kill(child_, SIGKILL); }
    }

    struct Inside {
        int64_t call = 0;  // its number, 0 = of no interest
        int error = 0;
        bool kill = false;
    };
    const pid_t child_;
    const std::string folder_, out_;
    const Injection injection_;
    const bool with_data_;
    std::map<pid_t, Inside> inside_;  // threads inside of a call
    Traced traced_;
};

}  // namespace

Traced run_traced(const std::vector<std::string>& argv, const std::string& streams, const std::string& folder,
                  const Injection& injection, bool with_data) {
    std::vector<char*> words;
    for (const std::string& word : argv) { words.push_back(const_cast<char*>(word.c_str())); }
    words.push_back(nullptr);
    const std::string out = streams + "/stdout", err = streams + "/stderr";
    pid_t child = fork();
    if (child == 0) {  // only what is safe in a copy of a program with threads
        dup2(open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDOUT_FILENO);
        dup2(open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
        ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
        alarm(kMostSeconds);
        raise(SIGSTOP);
        execv(words[0], words.data());
        _exit(127);
    }
    require(child > 0, "run_traced: cannot fork");
    int status = 0;
    waitpid(child, &status, __WALL | __WNOTHREAD);
    const long options = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK |
                         PTRACE_O_TRACEVFORK | PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL;
    if (ptrace(PTRACE_SETOPTIONS, child, nullptr, options) != 0) {
        kill(child, SIGKILL);
        waitpid(child, nullptr, __WALL | __WNOTHREAD);
        throw Error(kExitDevice, "this system does not let one process trace another (ptrace)");
    }
    ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);
    return Tracer(child, folder, out, injection, with_data).follow();
}

bool can_trace() {
    try {
        return run_traced({"/bin/true"}, "/tmp", "/nowhere").exit_code == 0;
    } catch (const Error& e) {
        MESSAGE("skipped: ", e.what());
        return false;
    }
}

}  // namespace llmc

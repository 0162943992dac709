// Starts the ranks of a job, and what each of them does: see run_ranks() in ranks.h.
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "llmc/host/base/error.h"
#include "llmc/host/base/resources.h"
#include "llmc/host/ranks/comm.h"
#include "llmc/host/ranks/ranks.h"
#include "llmc/host/ranks/rendezvous.h"

namespace llmc {

namespace {

constexpr std::chrono::seconds kGrace(3);  // for the others, once one has failed

struct Child {
    pid_t pid = -1;
    std::optional<int> status;  // of waitpid(), once it has ended
    bool killed_here = false;
};

std::string random_token() {
    unsigned char bytes[16] = {};
    if (getrandom(bytes, sizeof(bytes), 0) != (ssize_t)sizeof(bytes)) {
        throw Error(kExitDevice,
                    fmt::format("no random numbers for the job's token: {}", std::strerror(errno)));
    }
    std::string text;
    for (unsigned char b : bytes) { text += fmt::format("{:02x}", b); }
    return text;
}

// whether something like SIGSTOP has stopped this child, which then cannot leave by itself
bool is_stopped(pid_t pid) {
    siginfo_t info = {};
    return waitid(P_PID, (id_t)pid, &info, WSTOPPED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid;
}

// Starts `count` copies of this program with these arguments, each in a process group of its own, so that the
// terminal's Ctrl-C reaches this process alone; passes TERM, INT, HUP and USR1 on to each of them once, and
// stops and continues them with itself (Ctrl-Z). Once one has failed, those that are stopped, or left after three
// seconds, are killed. If this process is killed, they are sent TERM. By default each gets its share of the cores for
// OpenMP: OMP_NUM_THREADS. Throws Error(kExitDevice) if the system starts no more processes. To be used before there are
// threads.
class Launcher {
public:
    Launcher(int count, char** argv) : children_((size_t)count), argv_(argv), token_(random_token()) {
        std::string why;
        listener_ = listen_at(0, true, &why);
        if (!listener_.open()) { throw Error(kExitDevice, "no socket for the ranks to meet at: " + why); }
        sigemptyset(&passed_on_);
        for (int which : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGTSTP}) { sigaddset(&passed_on_, which); }
        waited_for_ = passed_on_;
        sigaddset(&waited_for_, SIGCHLD);
        sigprocmask(SIG_BLOCK, &waited_for_, &before_);
    }

    // Returns the job's exit code when all have ended: that of rank 0, or the first that is not 0; kExitPeerLost if a
    // signal killed one.
    int run() {
        const pid_t parent = getpid();
        for (int rank = 0; rank < (int)children_.size(); rank++) {
            pid_t pid = fork();
            if (pid == 0) { become(rank, parent); }
            if (pid < 0) {
                int error = errno;
                end_all(SIGKILL);
                throw Error(kExitDevice, fmt::format("rank {} of {}: the system starts no more processes: {}",
                                                     rank, children_.size(), std::strerror(error)));
            }
            children_[(size_t)rank].pid = pid;
        }
        listener_ = Socket();  // rank 0 alone has it now
        while (living() > 0) { wait_a_while(); }
        sigprocmask(SIG_SETMASK, &before_, nullptr);
        return exit_code();
    }

private:
    // in the child: does not return
    [[noreturn]] void become(int rank, pid_t parent) {
        setpgid(0, 0);
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        if (getppid() != parent) { _exit(kExitPeerLost); }  // it has ended already
        sigprocmask(SIG_SETMASK, &before_, nullptr);
        const int share = std::max(1, usable_cores() / (int)children_.size());
        setenv("OMP_NUM_THREADS", std::to_string(share).c_str(), 0);
        for (const auto& [name, value] : {std::pair("PLUMB_RANK", std::to_string(rank)),
                                          {"PLUMB_RANK_COUNT", std::to_string(children_.size())},
                                          {"PLUMB_RANK_PORT", std::to_string(listener_.port())},
                                          {"PLUMB_RANK_LISTENER", std::to_string(listener_.fd())},
                                          {"PLUMB_TOKEN", token_}}) {
            setenv(name, value.c_str(), 1);
        }
        if (rank == 0) { fcntl(listener_.fd(), F_SETFD, 0); }  // stays open in what is executed
        char self[4096] = {};
        if (readlink("/proc/self/exe", self, sizeof(self) - 1) > 0) { execv(self, argv_); }
        std::perror("cannot start a rank: /proc/self/exe");
        _exit(kExitDevice);
    }

    int64_t living() const {
        return std::count_if(children_.begin(), children_.end(), [](const Child& c) { return !c.status; });
    }

    void end_all(int signal) {
        for (Child& c : children_) {
            if (c.pid > 0 && !c.status) { kill(c.pid, signal); }
        }
    }

    void wait_a_while() {
        const timespec at_most = {0, 100'000'000};
        int which = sigtimedwait(&waited_for_, nullptr, &at_most);
        if (which == SIGTSTP) {
            end_all(SIGSTOP);
            raise(SIGSTOP);  // returns when this process is continued
            end_all(SIGCONT);
        } else if (which > 0 && sigismember(&passed_on_, which) == 1) {
            end_all(which);
        }
        for (size_t rank = 0; rank < children_.size(); rank++) { reap(rank); }
        if (!deadline_) { return; }
        const bool late = std::chrono::steady_clock::now() > *deadline_;
        for (Child& c : children_) {
            if (c.status || (!late && !is_stopped(c.pid))) { continue; }
            c.killed_here = true;
            kill(c.pid, SIGKILL);
        }
    }

    void reap(size_t rank) {
        Child& c = children_[rank];
        int status = 0;
        if (c.status || waitpid(c.pid, &status, WNOHANG) != c.pid) { return; }
        c.status = status;
        if (WIFSIGNALED(status) && !c.killed_here) {
            const int which = WTERMSIG(status);
            std::fprintf(stderr, "rank %zu (process %d) was ended by signal %d (%s)\n", rank, (int)c.pid,
                         which, strsignal(which));
        }
        const int code = WIFEXITED(status) ? WEXITSTATUS(status) : kExitPeerLost;
        const bool failed = code != kExitDone && code != kExitPreempted;  // else rank 0 is about to end, too
        if ((failed || rank == 0) && !deadline_) { deadline_ = std::chrono::steady_clock::now() + kGrace; }
    }

    int exit_code() const {
        int code = 0;
        for (const Child& c : children_) {
            const int status = *c.status;
            if (WIFSIGNALED(status) && !c.killed_here) { return kExitPeerLost; }
            if (code == 0) { code = WIFEXITED(status) ? WEXITSTATUS(status) : kExitPeerLost; }
        }
        return code;
    }

    std::vector<Child> children_;  // by rank
    char** argv_;
    std::string token_;
    Socket listener_;
    sigset_t passed_on_, waited_for_, before_;
    std::optional<std::chrono::steady_clock::time_point> deadline_;
};

}  // namespace

int run_ranks(const Options& options, const char* program, char** argv, int devices,
              const std::function<int(const Options&, Comm&)>& train) {
    const Environment environment = [](const char* name) -> const char* { return std::getenv(name); };
    Options mine = options;
    const int to_start = ranks_to_start(options, environment, devices);
    const bool starts = to_start > 0 && !options.dry_run;
    const Ranks ranks = starts ? Ranks() : find_ranks(options, environment);
    mine.world_size = std::max(to_start, ranks.size);
    if (starts) { return Launcher(to_start, argv).run(); }
    settle_threads(ranks.local_size);
    const bool alone = ranks.size == 1 || options.dry_run;
    const auto comm = alone ? std::make_unique<Comm>() : join_ranks(ranks, options.comm_timeout, program);
    comm->take_time(ranks.rank == 0);  // until the first step
    try {
        return train(mine, *comm);
    } catch (const Error& e) {
        if (comm->fail(e.exit_code, e.what())) { return e.exit_code; }
        throw;
    } catch (const std::exception& e) {
        if (comm->fail(kExitDevice, e.what())) { return kExitDevice; }
        throw;
    }
}

}  // namespace llmc

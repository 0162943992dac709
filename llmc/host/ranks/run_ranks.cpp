// Starts the ranks of a job, and what each of them does: see run_ranks() in ranks.h.
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <random>
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
    std::optional<int> code;  // its exit code, once it has ended
    bool killed_here = false;
};

// Starts `count` copies of this program with these arguments, each in a process group of its own, so that the
// terminal's Ctrl-C reaches this process alone; passes TERM, INT, HUP and USR1 on to each of them once, and
// stops and continues them with itself (Ctrl-Z). Once one has failed, those that are stopped, or left after three
// seconds, are killed. If this process is killed, they are sent TERM. Throws Error(kExitDevice) if the system starts no more
// processes. To be used before there are threads.
class Launcher {
public:
    Launcher(int count, char** argv) : children_((size_t)count), argv_(argv) {
        std::random_device random;
        for (int i = 0; i < 4; i++) { token_ += fmt::format("{:08x}", random()); }
        std::string why;
        listener_ = listen_at(0, true, &why);
        if (!listener_.open()) { throw Error(kExitDevice, "no socket for the ranks to meet at: " + why); }
        sigemptyset(&waited_for_);
        for (int which : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGTSTP, SIGCHLD}) {
            sigaddset(&waited_for_, which);
        }
        sigprocmask(SIG_BLOCK, &waited_for_, &before_);
    }

    // The job's exit code when all have ended: rank 0's, or the first that is not 0; kExitPeerLost if a signal killed one.
    int run() {
        const pid_t parent = getpid();
        for (size_t rank = 0; rank < children_.size(); rank++) {
            const pid_t pid = fork();
            if (pid == 0) { become(rank, parent); }
            if (pid < 0) {
                const int error = errno;
                end_all(SIGKILL);
                throw Error(kExitDevice, "rank {} of {}: the system starts no more processes: {}", rank,
                            children_.size(), std::strerror(error));
            }
            children_[rank].pid = pid;
        }
        listener_ = Socket();  // rank 0 alone has it now
        while (std::ranges::any_of(children_, [](const Child& c) { return !c.code; })) { wait_a_while(); }
        sigprocmask(SIG_SETMASK, &before_, nullptr);
        if (lost_) { return kExitPeerLost; }
        const auto failed = std::ranges::find_if(children_, [](const Child& c) { return *c.code != 0; });
        return failed == children_.end() ? 0 : *failed->code;
    }

private:
    // in the child: does not return
    [[noreturn]] void become(size_t rank, pid_t parent) {
        setpgid(0, 0);
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        if (getppid() != parent) { _exit(kExitPeerLost); }  // it has ended already
        sigprocmask(SIG_SETMASK, &before_, nullptr);
        for (const auto& [name, value] : {std::pair("PLUMB_RANK", std::to_string(rank)),
                                          {"PLUMB_RANK_COUNT", std::to_string(children_.size())},
                                          {"PLUMB_RANK_PORT", std::to_string(listener_.port())},
                                          {"PLUMB_RANK_LISTENER", std::to_string(listener_.fd())},
                                          {"PLUMB_TOKEN", token_}}) {
            setenv(name, value.c_str(), 1);
        }
        if (rank == 0) { fcntl(listener_.fd(), F_SETFD, 0); }  // stays open in what is executed
        std::error_code ignored;
        execv(std::filesystem::read_symlink("/proc/self/exe", ignored).c_str(), argv_);
        std::perror("cannot start a rank: /proc/self/exe");
        _exit(kExitDevice);
    }

    void end_all(int signal) {
        for (Child& c : children_) {
            if (c.pid > 0 && !c.code) { kill(c.pid, signal); }
        }
    }

    void wait_a_while() {
        const timespec at_most = {0, 100'000'000};
        const int which = sigtimedwait(&waited_for_, nullptr, &at_most);
        if (which == SIGTSTP) {
            end_all(SIGSTOP);
            raise(SIGSTOP);  // returns when this process is continued
            end_all(SIGCONT);
        } else if (which > 0 && which != SIGCHLD) {
            end_all(which);
        }
        for (size_t rank = 0; rank < children_.size(); rank++) { reap(rank); }
        if (!deadline_) { return; }
        const bool late = std::chrono::steady_clock::now() > *deadline_;
        for (Child& c : children_) {
            // one that something like SIGSTOP has stopped cannot leave by itself
            siginfo_t info = {};
            const bool gone = c.code || waitid(P_PID, (id_t)c.pid, &info, WSTOPPED | WNOHANG | WNOWAIT) != 0;
            if (gone || (!late && info.si_pid == 0)) { continue; }
            c.killed_here = true;
            kill(c.pid, SIGKILL);
        }
    }

    void reap(size_t rank) {
        Child& c = children_[rank];
        int status = 0;
        if (c.code || waitpid(c.pid, &status, WNOHANG) != c.pid) { return; }
        c.code = WIFEXITED(status) ? WEXITSTATUS(status) : kExitPeerLost;
        if (WIFSIGNALED(status) && !c.killed_here) {
            lost_ = true;
            std::fprintf(stderr, "rank %zu (process %d) was ended by signal %d (%s)\n", rank, (int)c.pid,
                         WTERMSIG(status), strsignal(WTERMSIG(status)));
        }
        const bool failed = *c.code != kExitDone && *c.code != kExitPreempted;  // else rank 0 ends, too
        if ((failed || rank == 0) && !deadline_) { deadline_ = std::chrono::steady_clock::now() + kGrace; }
    }

    std::vector<Child> children_;  // by rank
    char** argv_;
    std::string token_;
    Socket listener_;
    sigset_t waited_for_, before_;
    std::optional<std::chrono::steady_clock::time_point> deadline_;
    bool lost_ = false;  // a signal has killed one
};

}  // namespace

int run_ranks(const Options& options, const char* program, char** argv, int devices,
              const std::function<int(const Options&, Comm&)>& train) {
    const Environment environment = [](const char* name) -> const char* { return std::getenv(name); };
    const int to_start = ranks_to_start(options, environment, devices);
    if (to_start > 0 && !options.dry_run) { return Launcher(to_start, argv).run(); }
    const Ranks ranks = find_ranks(options, environment);
    Options mine = options;
    mine.world_size = std::max(to_start, ranks.size);
    settle_threads(ranks.local_size);
    const bool alone = ranks.size == 1 || options.dry_run;
    const auto comm = alone ? std::make_unique<Comm>() : join_ranks(ranks, options.comm_timeout, program);
    comm->take_time(ranks.rank == 0);  // until the first step
    try {
        return train(mine, *comm);
    } catch (const std::exception& e) {
        const auto* error = dynamic_cast<const Error*>(&e);
        const int exit_code = error != nullptr ? error->exit_code : kExitDevice;
        if (comm->fail(exit_code, e.what())) { return exit_code; }
        throw;
    }
}

}  // namespace llmc

// Which rank the watchdog finds at fault, by what it knows of all, and that it ends the job then.
#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <functional>
#include <optional>
#include <thread>

#include <doctest/doctest.h>

#include "dev/test/support/many_ranks.h"
#include "llmc/host/ranks/comm.h"
#include "llmc/host/ranks/watchdog.h"

using namespace llmc;

namespace {

const std::vector<std::string> kWho = {"rank 0 (a)", "rank 1 (b)", "rank 2 (c)"};

// waiting_ms: -1 = it has returned from the call
RankReport report(int64_t calls, const char* what, int64_t waiting_ms, int64_t silent_ms = 0) {
    RankReport r;
    r.step = 7;
    r.calls = calls, r.inside = waiting_ms >= 0;
    r.waiting_ms = std::max<int64_t>(0, waiting_ms);
    r.what = what;
    r.silent_ms = silent_ms;
    return r;
}

void check_says(std::vector<RankReport> ranks, std::initializer_list<const char*> parts) {
    for (size_t r = 0; r < ranks.size(); r++) { ranks[r].who = kWho[r]; }
    const std::string why = judge(ranks, 3000);
    CAPTURE(why);
    if (parts.size() == 0) { CHECK(why == ""); }
    for (const std::string part : parts) {
        CAPTURE(part);
        CHECK(why.find(part) != std::string::npos);
    }
}

}  // namespace

TEST_CASE("watchdog: as long as all is well it says nothing") {
    check_says({report(5, "gradients", 10), report(5, "gradients", 20, 400), report(4, "losses", -1)}, {});
    check_says({report(5, "gradients", -1), report(5, "gradients", -1, 3000), report(5, "gradients", -1)},
               {});
    // each computes for longer than the timeout; and one is done
    check_says({report(5, "x", -1), report(5, "x", -1), report(5, "x", -1)}, {});
    RankReport done = report(9, "x", -1, 9000);
    done.done = 1, done.gone = true;
    check_says({report(9, "x", -1), done, report(9, "x", -1)}, {});
}

TEST_CASE("watchdog: a rank that is gone, silent or late is named, with step and call") {
    RankReport gone = report(5, "gradients", 10, 299);
    gone.gone = true;
    check_says({report(5, "gradients", 10), gone, report(5, "gradients", 10)}, {});
    gone.silent_ms = 300;
    check_says({report(5, "gradients", 10), gone, report(5, "gradients", 10)},
               {"rank 1 (b) is gone", "Rank 0 was at step 7, in 'gradients'"});
    check_says({report(5, "gradients", 10), report(5, "losses", -1), report(5, "gradients", 10, 3001)},
               {"rank 2 (c) has given no sign for 3 s", "stopped", "at step 7, in 'gradients'"});
    check_says({report(5, "gradients", 100), report(4, "losses", -1), report(5, "gradients", 3001, 100)},
               {"rank 1 (b) keeps rank 2 (c) waiting for 3 s", "after 'losses'", "in 'gradients'"});
    check_says({report(4, "losses", -1), report(5, "gradients", 3001), report(5, "gradients", 10)},
               {"rank 0 (a) keeps rank 1 (b) waiting"});
    // one has done its part of the call, or all are in it
    check_says({report(5, "gradients", 3001), report(5, "gradients", 3002), report(5, "gradients", -1)},
               {"'gradients' does not end on rank 1 (b) for 3 s", "though all ranks have come"});
}

namespace {

struct Ended {
    std::vector<int> codes;  // by rank
    std::string said;        // by all on stderr
};

// Stands between rank 1 and rank 0, and turns over a bit of what comes behind kMark.
class Proxy {
public:
    static constexpr const char* kMark = "the next byte is damaged:";

    explicit Proxy(const MeetingPlace& root) : root_(root) {}
    // After the last fork: a child would never get a lock of the allocator's that this thread held meanwhile.
    void start() {
        thread_ = std::thread([this] {
            while (!ends_) {
                for (size_t i = 0; i < sockets_.size(); i++) { pass_on(sockets_[i], sockets_[i ^ 1]); }
                pollfd listener = {here_.listener.fd(), POLLIN, 0};
                if (poll(&listener, 1, 1) <= 0) { continue; }
                sockets_.emplace_back(accept(here_.listener.fd(), nullptr, nullptr));
                sockets_.push_back(root_.connected());
            }
        });
    }
    ~Proxy() {
        ends_ = true;
        thread_.join();
    }
    int port() const { return here_.port; }

private:
    static void pass_on(Socket& from, Socket& to) {
        char bytes[4096];
        const ssize_t got = recv(from.fd(), bytes, sizeof(bytes), MSG_DONTWAIT);
        if (got == 0) { shutdown(to.fd(), SHUT_WR); }
        if (got <= 0) { return; }
        const std::string_view all(bytes, (size_t)got), mark = kMark;
        const size_t at = all.find(mark);
        if (at < all.size() - mark.size()) { bytes[at + mark.size()] ^= 4; }
        to.send_all(bytes, (size_t)got);
    }

    const MeetingPlace& root_;
    MeetingPlace here_;
    std::vector<Socket> sockets_;  // rank 1's connections, each before the one to rank 0 that goes with it
    std::atomic<bool> ends_ = false;
    std::thread thread_;
};

// a job of copies of this process, of which each does this with its Comm and then ends with 0
Ended end_of_job(int size, const std::function<void(Comm&)>& body, bool through_proxy = false) {
    TempFolder folder;
    MeetingPlace place;
    std::optional<Proxy> proxy;
    if (through_proxy) { proxy.emplace(place); }
    const std::string err = folder / "err";
    std::vector<pid_t> pids;
    for (int rank = 0; rank < size; rank++) {
        pids.push_back(fork());
        if (pids.back() != 0) { continue; }
        dup2(open(err.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600), STDERR_FILENO);
        {
            Ranks ranks = place.ranks(rank, size);
            if (rank == 1 && proxy) { ranks.port = proxy->port(); }
            const auto comm = join_ranks(ranks, 1, "test");
            comm->at_step(7);
            try {
                body(*comm);
            } catch (const Error& e) {
                if (!comm->fail(e.exit_code, e.what())) { std::fprintf(stderr, "%s\n", e.what()); }
                _exit(e.exit_code);
            }
        }
        _exit(0);
    }
    if (proxy) { proxy->start(); }
    Ended ended;
    for (pid_t pid : pids) {
        int status = 0;
        REQUIRE(waitpid(pid, &status, 0) == pid);
        ended.codes.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    }
    ended.said = read_bytes(err);
    return ended;
}

void check_ended(const Ended& ended, const std::vector<int>& codes,
                 std::initializer_list<const char*> parts) {
    CAPTURE(ended.said);
    CHECK((ended.codes == codes));
    for (const std::string part : parts) {
        CAPTURE(part);
        CHECK(ended.said.find(part) != std::string::npos);
    }
}

}  // namespace

TEST_CASE("watchdog: a rank that is stuck, stopped or killed ends the job") {
    for (int culprit : {0, 2}) {
        const std::string name = fmt::format("rank {} (process", culprit);
        auto job = [&](auto fault) {
            return end_of_job(3, [&](Comm& comm) {
                comm.root_says("first", true);
                if (comm.rank() == culprit) { fault(); }
                std::vector<float> all(3);
                comm.all_gather("second", all.data(), {0, 1, 2, 3});
            });
        };
        check_ended(job([] { usleep(20'000'000); }), {6, 6, 6},
                    {name.c_str(), "waiting for 1 s", "at step 7, after 'first'"});
        std::vector<int> codes = {6, 6, 6};
        codes[(size_t)culprit] = 128 + SIGKILL;
        check_ended(job([] { raise(SIGKILL); }), codes,
                    {name.c_str(), "is gone: killed", "at step 7, in 'second'"});
    }
    check_ended(end_of_job(2, [](Comm& comm) { comm.root_says("first", true); }), {0, 0}, {});
    // whoever takes its time is not stuck
    check_ended(end_of_job(2,
                           [](Comm& comm) {
                               comm.take_time(comm.root());
                               if (comm.root()) { usleep(2'000'000); }
                               comm.root_says("first", true);
                           }),
                {0, 0}, {});
}

TEST_CASE("watchdog: what is not as it was sent, or of another call, ends the job") {
    const std::string text = std::string("ABCDEFGH") + Proxy::kMark + "value";
    for (int sender : {0, 1}) {
        const auto tells = [&](Comm& comm) {
            comm.root_says("first", true);
            std::string all = comm.rank() == sender ? text : std::string(text.size(), ' ');
            const auto size = (int64_t)text.size();
            comm.all_gather("second", all.data(), {0, sender == 0 ? size : 0, size});
        };
        const auto signs = [&](Comm& comm) {
            if (comm.rank() == sender) { comm.enter(Proxy::kMark); }
            usleep(700'000);
            comm.leave();
        };
        const std::string who = fmt::format("rank {} (process", sender);
        check_ended(end_of_job(2, tells, true), {6, 6},
                    {("from " + who).c_str(),
                     "comes 'second', call 2, of 38 bytes, with other bits than were sent", "found XXH3"});
        check_ended(end_of_job(2, signs, true), {6, 6},
                    {("what the watchdog of " + who).c_str(), "has arrived with other bits"});
    }
    // of a call's head, which a sign of the watchdog's does not hold as far
    const std::string long_name = std::string(20, '.') + Proxy::kMark;
    const auto says = [&](Comm& comm) { comm.root_says(long_name.c_str(), true); };
    check_ended(end_of_job(2, says, true), {6, 6}, {"ranks disagree: from rank", "call 1, of"});
    // of three ranks the second leaves out a call
    const auto skips = [&](Comm& comm) {
        comm.root_says("first", true);
        char all[3] = {'a', 'a', 'a'};
        if (comm.rank() != 1) { comm.gather("second", all, {0, 1, 2, 3}); }
        comm.gather("third", all, {0, 1, 2, 3});
    };
    check_ended(end_of_job(3, skips), {6, 6, 6},
                {"ranks disagree: from rank 1 (process", "comes 'third', call 2, of 1 bytes",
                 "expected 'second', call 2, of 1 bytes"});
}

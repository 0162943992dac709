// Watches over the ranks of a job from a thread of its own. Each rank says twice a second or more that it is
// there and what it does; rank 0 hears all and judges. A rank that ended without a word, gives no sign, or
// keeps the others waiting ends the job: rank 0 says which, all ranks end at once with _exit(), and what they
// were doing is lost, but no finished checkpoint.
#pragma once
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "llmc/host/ranks/rendezvous.h"

namespace llmc {

// what a rank says it does
struct RankState {
    int64_t step = -1;       // of the run; -1: before the first
    int64_t calls = 0;       // of Comm, begun so far
    int32_t inside = 0;      // the last of them has not returned
    int32_t takes_time = 0;  // Comm::take_time()
    char what[44] = {};      // the last call
};

// what rank 0 knows of a rank
struct RankReport {
    RankState state;
    int64_t silent_ms = 0;   // since its last sign, or since it was gone
    int64_t waiting_ms = 0;  // in a call, while no rank was taking its time
    bool gone = false;       // its connection is closed
    bool done = false;       // it has said goodbye
};

// Why the job must end; "" = all is well. who: names of the ranks.
std::string judge(const std::vector<RankReport>& ranks, const std::vector<std::string>& who,
                  int64_t timeout_ms);

class Watchdog {
public:
    // Sockets as in Peers::control, names as in Peers::who; program: for messages.
    Watchdog(int rank, std::vector<Socket> control, std::vector<std::string> who, int timeout_s,
             const std::string& program);
    // waits for the others' goodbye, as long as they are there
    ~Watchdog();
    Watchdog(const Watchdog&) = delete;

    void at_step(int64_t step) {
        change([=](RankState& s) { s.step = step; });
    }
    void take_time(bool yes) {
        change([=](RankState& s) { s.takes_time = yes ? 1 : 0; });
    }
    void enter(const char* what);
    void leave() {
        change([](RankState& s) { s.inside = 0; });
    }
    const std::string& name(int rank) const { return who_[(size_t)rank]; }

    // The connection to this rank is lost: waits to hear why, and does not return.
    [[noreturn]] void lost(int rank);
    // This rank fails with this exit code and message. Rank 0 tells the others and returns; it prints the
    // message itself. Of the others rank 0 prints it, and this returns true; false if rank 0 cannot be
    // reached.
    bool fail(int exit_code, const std::string& message);

private:
    enum class Kind : int32_t { kSign, kSignal, kFailed, kEnd, kGoodbye };
    struct Message {
        uint64_t checksum = 0;  // of all of it, where this is 0
        Kind kind = Kind::kSign;
        int32_t value = 0;  // the signal, or the exit code
        RankState state;
        char text[1000] = {};
    };

    // what this rank says it does
    template <typename Change>
    void change(Change to) {
        std::lock_guard lock(mutex_);
        to(ranks_[(size_t)rank_].state);
    }
    void watch();
    void listen(int ms);
    void hear(int rank);
    void take(int rank, const Message& message);
    void age(int64_t ms);
    void send_all(Kind kind, int value = 0, const std::string& text = "");
    void forward_signals();
    void judge_all();
    [[noreturn]] void end_job(int exit_code, const std::string& why);

    const int rank_;
    const std::vector<Socket> control_;
    const std::vector<std::string> who_;
    const int64_t timeout_ms_;
    const std::string program_;

    mutable std::mutex mutex_;  // of all up to the thread
    std::vector<RankReport> ranks_;
    std::vector<std::string> inbox_;  // of each rank, less than a message
    std::vector<bool> deaf_;          // nothing more can be sent to it
    bool over_ = false;               // nothing is judged any more
    int signal_sent_ = 0;
    std::thread thread_;
};

}  // namespace llmc

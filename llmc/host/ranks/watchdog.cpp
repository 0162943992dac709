// The watchdog of a job's ranks: see watchdog.h.
#include "llmc/host/ranks/watchdog.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "llmc/host/base/error.h"
#include "llmc/host/base/stop_signal.h"
#include "llmc/host/base/text.h"

namespace llmc {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kTickMs = 50;
constexpr int kMostBetweenSignsMs = 500;
constexpr int kLongSilenceMs = 3 * kMostBetweenSignsMs;
constexpr int kLastWordsMs = 300;  // in which somebody may still say why a rank is gone
constexpr int kPatienceMs = 5000;  // for an answer of rank 0

std::string place_text(const RankState& s) {
    std::string text = s.step >= 0 ? fmt::format("at step {}, ", s.step) : "before the first step, ";
    if (s.what[0] == '\0') { return text + "before all calls"; }
    return text + (s.inside != 0 ? "in '" : "after '") + s.what + "'";
}

// why a rank that is gone or silent must end the job; "" = it need not. here: where who finds it is.
std::string absence(const RankReport& k, const std::string& who, int64_t timeout_ms,
                    const std::string& here) {
    if (k.gone && k.silent_ms >= kLastWordsMs) { return who + " is gone: killed, or it crashed. " + here; }
    if (k.silent_ms <= timeout_ms) { return ""; }
    return fmt::format(
        "{} has given no sign for {:g} s (--comm-timeout): stopped, or its host is down. Last it was {}. {}",
        who, (double)timeout_ms / 1000, place_text(k.state), here);
}

}  // namespace

std::string judge(const std::vector<RankReport>& ranks, const std::vector<std::string>& who,
                  int64_t timeout_ms) {
    const std::string here = "Rank 0 was " + place_text(ranks[0].state) + ".";
    const double seconds = (double)timeout_ms / 1000;
    size_t longest = 0, last = 0;
    for (size_t r = 0; r < ranks.size(); r++) {
        const RankReport& k = ranks[r];
        if (k.done) { continue; }
        const std::string why = absence(k, who[r], timeout_ms, here);
        if (!why.empty()) { return why; }
        if (k.waiting_ms > ranks[longest].waiting_ms) { longest = r; }
        if (k.state.calls < ranks[last].state.calls) { last = r; }
    }
    if (ranks[longest].waiting_ms <= timeout_ms) { return ""; }
    if (ranks[last].state.calls == ranks[longest].state.calls) {
        return fmt::format(
            "'{}' does not end on {} for {:g} s (--comm-timeout), though all ranks have come to it. {}",
            ranks[longest].state.what, who[longest], seconds, here);
    }
    return fmt::format("{} keeps {} waiting for {:g} s (--comm-timeout): it is {}, the other {}.", who[last],
                       who[longest], seconds, place_text(ranks[last].state),
                       place_text(ranks[longest].state));
}

Watchdog::Watchdog(int rank, std::vector<Socket> control, std::vector<std::string> who, int timeout_s,
                   const std::string& program)
    : rank_(rank),
      control_(std::move(control)),
      who_(std::move(who)),
      timeout_ms_(1000LL * timeout_s),
      program_(program),
      ranks_(control_.size()),
      inbox_(control_.size()),
      deaf_(control_.size(), false) {
    try {
        thread_ = std::thread([this] { watch(); });
    } catch (const std::system_error& e) {
        throw Error(kExitDevice,
                    fmt::format("no thread to watch the other ranks: {}. Raise the limit on processes "
                                "(ulimit -u, a container's pids.max).",
                                e.what()));
    }
}

Watchdog::~Watchdog() {
    change([this](RankState&) { ranks_[(size_t)rank_].done = true; });
    thread_.join();
}

void Watchdog::enter(const char* what) {
    change([&](RankState& s) {
        s.calls++;
        s.inside = 1;
        ranks_[(size_t)rank_].waiting_ms = 0;
        std::strncpy(s.what, what, sizeof(s.what) - 1);
    });
}

void Watchdog::lost(int rank) {
    poll(nullptr, 0, kPatienceMs);  // the watchdog of rank 0 sees it too, and knows more
    const std::string why = fmt::format("rank {} has lost its connection to {}", rank_, who_[(size_t)rank]);
    if (rank_ == 0) {
        std::lock_guard lock(mutex_);
        end_job(kExitPeerLost, why);
    }
    fail(kExitPeerLost, why);
    _exit(kExitPeerLost);
}

bool Watchdog::fail(int exit_code, const std::string& message) {
    {
        std::lock_guard lock(mutex_);
        over_ = rank_ == 0;
        send_all(rank_ == 0 ? Kind::kEnd : Kind::kFailed, exit_code, message);
        if (rank_ == 0 || deaf_[0] || ranks_[0].gone) { return false; }
    }
    poll(nullptr, 0, kPatienceMs);  // rank 0 ends all, this process too
    return true;
}

// ---- the thread ----

// Time is counted in ticks of this thread, not by the clock: while this process itself was stopped, the
// others' silence says nothing.
void Watchdog::watch() {
    const int64_t between_signs = std::min<int64_t>(kMostBetweenSignsMs, timeout_ms_ / 6);
    int64_t since_sign = between_signs;
    for (bool leaving = false; !leaving;) {
        const Clock::time_point begin = Clock::now();
        listen(kTickMs);
        std::lock_guard lock(mutex_);
        const int64_t ms =
            std::min<int64_t>((Clock::now() - begin) / std::chrono::milliseconds(1), 2 * kTickMs);
        age(ms);
        since_sign += ms;
        leaving = over_ || (ranks_[(size_t)rank_].done &&
                            (rank_ != 0 || std::all_of(ranks_.begin(), ranks_.end(),
                                                       [](const RankReport& r) { return r.done; })));
        if (leaving && rank_ != 0) { send_all(Kind::kGoodbye); }
        if (leaving) { return; }
        if (since_sign >= between_signs) {
            send_all(Kind::kSign);
            since_sign = 0;
        }
        if (rank_ != 0) { forward_signals(); }
        judge_all();
    }
}

void Watchdog::listen(int ms) {
    std::vector<pollfd> fds;
    std::vector<int> of;
    {
        std::lock_guard lock(mutex_);
        for (int r = 0; r < (int)control_.size(); r++) {
            const RankReport& k = ranks_[(size_t)r];
            if (!control_[(size_t)r].open() || k.gone || k.done) { continue; }
            fds.push_back({control_[(size_t)r].fd(), POLLIN, 0});
            of.push_back(r);
        }
    }
    if (poll(fds.data(), fds.size(), ms) <= 0) { return; }
    std::lock_guard lock(mutex_);
    for (size_t i = 0; i < fds.size(); i++) {
        if (fds[i].revents != 0) { hear(of[i]); }
    }
}

void Watchdog::hear(int rank) {
    char bytes[8 * sizeof(Message)];
    RankReport& k = ranks_[(size_t)rank];
    ssize_t got = recv(control_[(size_t)rank].fd(), bytes, sizeof(bytes), MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
        k.gone = true;
        k.silent_ms = 0;
    }
    if (got <= 0) { return; }
    std::string& box = inbox_[(size_t)rank].append(bytes, (size_t)got);
    for (; box.size() >= sizeof(Message); box.erase(0, sizeof(Message))) {
        Message m;
        std::memcpy(&m, box.data(), sizeof(m));
        if (std::exchange(m.checksum, 0) != checksum(&m, sizeof(m))) {
            const std::string why =
                "what the watchdog of " + name(rank) + " says has arrived with other bits.";
            if (rank_ != 0) { send_all(Kind::kFailed, kExitPeerLost, why); }
            end_job(kExitPeerLost, why);
        }
        take(rank, m);
    }
}

void Watchdog::take(int rank, const Message& m) {
    RankReport& k = ranks_[(size_t)rank];
    k.silent_ms = 0;
    switch (m.kind) {
        case Kind::kSign:
            if (m.state.calls != k.state.calls) { k.waiting_ms = 0; }
            k.state = m.state;
            break;
        case Kind::kSignal: {
            const bool known = m.value == SIGUSR1 ? save_just_requested() : stop_requested != 0;
            if (!known) { kill(getpid(), m.value); }
            break;
        }
        case Kind::kFailed:
            end_job(m.value, name(rank) + ": " + m.text);
        case Kind::kEnd:
            _exit(m.value);
        case Kind::kGoodbye:
            k.done = true;
            break;
    }
}

void Watchdog::age(int64_t ms) {
    const bool patience = std::any_of(ranks_.begin(), ranks_.end(),
                                      [](const RankReport& k) { return !k.done && k.state.takes_time != 0; });
    for (size_t r = 0; r < ranks_.size(); r++) {
        RankReport& k = ranks_[r];
        if ((int)r != rank_) { k.silent_ms += ms; }
        // what a rank said long ago does not count as waiting
        if (patience || k.done || k.state.inside == 0) {
            k.waiting_ms = 0;
        } else if (k.silent_ms < kLongSilenceMs) {
            k.waiting_ms += ms;
        }
    }
}

void Watchdog::send_all(Kind kind, int value, const std::string& text) {
    Message m;
    m.kind = kind;
    m.value = value;
    m.state = ranks_[(size_t)rank_].state;
    std::strncpy(m.text, text.c_str(), sizeof(m.text) - 1);
    m.checksum = checksum(&m, sizeof(m));
    for (size_t r = 0; r < control_.size(); r++) {
        if (!control_[r].open() || deaf_[r] || ranks_[r].done) { continue; }
        ssize_t sent = send(control_[r].fd(), &m, sizeof(m), MSG_NOSIGNAL | MSG_DONTWAIT);
        // A rank that does not read any more (it is stopped) will be judged by its silence.
        if (sent != (ssize_t)sizeof(m)) { deaf_[r] = true; }
    }
}

void Watchdog::forward_signals() {
    if (stop_requested != 0 && signal_sent_ == 0) {
        signal_sent_ = stop_requested;
        send_all(Kind::kSignal, signal_sent_);
    }
    if (save_requested != 0) {
        save_requested = 0;
        send_all(Kind::kSignal, SIGUSR1);
    }
}

void Watchdog::judge_all() {
    const std::string me =
        fmt::format("This is rank {}, ", rank_) + place_text(ranks_[(size_t)rank_].state) + ".";
    const std::string why =
        rank_ == 0 ? judge(ranks_, who_, timeout_ms_) : absence(ranks_[0], who_[0], timeout_ms_, me);
    if (!why.empty()) { end_job(kExitPeerLost, why); }
}

// The message goes out by write(), as another thread may be ended while it holds a stream.
void Watchdog::end_job(int exit_code, const std::string& why) {
    if (rank_ == 0) { send_all(Kind::kEnd, exit_code); }
    std::string text = "\n" + program_ + ": " + terminal_text(why);
    if (exit_code == kExitPeerLost) { text += " Finished checkpoints are whole: --resume auto goes on."; }
    text += "\n";
    (void)!write(STDERR_FILENO, text.data(), text.size());
    _exit(exit_code);
}

}  // namespace llmc

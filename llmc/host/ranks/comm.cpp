// A job of one rank; a rank of a job of several: exchanges through rank 0 over TCP, and a thread that watches. See comm.h.
#include "llmc/host/ranks/comm.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <xxhash.h>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>

#include "llmc/host/base/error.h"
#include "llmc/host/base/stop_signal.h"
#include "llmc/host/base/text.h"
#include "llmc/host/ranks/rendezvous.h"
#include "llmc/host/ranks/watchdog.h"

namespace llmc {

namespace {

using Clock = std::chrono::steady_clock;
using Arrival = Socket::Arrival;

constexpr int kTickMs = 50;
constexpr int kMostBetweenSignsMs = 500;
constexpr int kLongSilenceMs = 3 * kMostBetweenSignsMs;
constexpr int kPatienceMs = 5000;  // for an answer of rank 0

// what a watchdog says to another
struct Message {
    uint64_t checksum = 0;
    RankState state;
    int32_t signal = 0;     // that a rank has got: it is one to the job
    int32_t exit_code = 0;  // not 0: the rank has failed with it, or of rank 0: the job ends with it
    Chars<1000> text;       // why the rank has failed
};

// before what one rank has for another: which call it is of, and what it must be like when it arrives
struct Header {
    uint64_t checksum = 0, checksum_of_bytes = 0;
    int64_t call = 0, bytes = 0;
    Chars<64> what;  // the call's name
    std::string text() const { return fmt::format("'{}', call {}, of {} bytes", what.view(), call, bytes); }
};

// of all of it, where its checksum is 0
template <typename T>
uint64_t sum_of(T message) {
    message.checksum = 0;
    return XXH3_64bits(&message, sizeof(message));
}

// What the ranks have for each other goes through rank 0: in each call the parts to one rank after the other, so that rank 0
// holds no others meanwhile. A thread watches over the ranks. Each rank says twice a second or more that it is there and what it
// does; rank 0 hears all and judges. Where the job must end, rank 0 says why, all ranks end at once with _exit(), and what
// they were doing is lost, but no finished checkpoint.
class TcpComm : public Comm {
public:
    TcpComm(const Ranks& r, int timeout_s, const std::string& program)
        : Comm(r.rank, r.size, r.local_rank, r.local_size),
          me_((size_t)r.rank),
          peers_(meet(r, timeout_s)),
          timeout_ms_(1000LL * timeout_s),
          program_(program) {
        for (const Peer& peer : peers_) { ranks_.emplace_back().who = peer.who; }
        try {
            thread_ = std::thread([this] { watch(); });
        } catch (const std::system_error& e) {
            throw Error(kExitDevice,
                        "no thread to watch the other ranks: {}. Raise the limit on processes (ulimit -u, a "
                        "container's pids.max).",
                        e.what());
        }
    }
    // waits for the others' goodbye, as long as they are there
    ~TcpComm() override {
        take_time(false);
        finished_ = true;
        thread_.join();
    }

    void at_step(int64_t step) override { set(&RankState::step, step); }
    void take_time(bool yes) override { set(&RankState::takes_time, yes); }
    void enter(const char* what) override {
        std::lock_guard lock(mutex_);
        RankReport& mine = ranks_[me_];
        mine.calls++;
        mine.inside = 1, mine.waiting_ms = 0, mine.what = what;
    }
    void leave() override { set(&RankState::inside, 0); }

    void exchange(const char* what, SentParts out, ArrivingParts in) override {
        require((int)out.size() == size() && (int)in.size() == size(), "Comm: a part for each rank");
        enter(what);
        call_ = {.call = call_.call + 1, .what = what};
        Comm().exchange(what, out.subspan(me_, 1), in.subspan(me_, 1));
        for (size_t to = 0; to < out.size(); to++) {
            if (root()) {
                pass_on(to, out[to], in);
            } else if (to != me_) {
                send(0, out[to]);
            } else {
                for (size_t from = 0; from < in.size(); from++) {
                    if (from != me_) { receive(0, from, in[from]); }
                }
            }
        }
        leave();
    }
    // Rank 0 tells the others and returns; it prints the message itself. Of the others rank 0 prints it.
    bool fail(int exit_code, const std::string& message) override {
        {
            std::lock_guard lock(mutex_);
            over_ = root();
            send_all(0, exit_code, message);
            if (root() || ranks_[0].deaf || ranks_[0].gone) { return false; }
        }
        poll(nullptr, 0, kPatienceMs);  // rank 0 ends all, this process too
        return true;
    }

private:
    const std::string& name(size_t rank) const { return peers_[rank].who; }
    template <typename Value>
    void set(Value RankState::*what, int64_t value) {
        std::lock_guard lock(mutex_);
        ranks_[me_].*what = (Value)value;
    }

    // ---- what goes through rank 0 ----

    using Bytes = std::vector<std::byte>;

    void pass_on(size_t to, std::span<const std::byte> mine, ArrivingParts in) const {
        std::vector<Bytes> parts(in.size());
        for (size_t from = 1; from < in.size(); from++) {
            if (to == 0) {
                receive(from, from, in[from]);
            } else if (from != to) {
                receive(from, from, {}, &parts[from]);
            }
        }
        for (size_t from = 0; from < in.size() && to != 0; from++) {
            if (from != to) { send(to, from == 0 ? mine : parts[from]); }
        }
    }

    void send(size_t to, std::span<const std::byte> part) const {
        Header h = call_;
        h.bytes = (int64_t)part.size();
        h.checksum_of_bytes = XXH3_64bits(part.data(), part.size());
        h.checksum = sum_of(h);
        if (!peers_[to].data.send_all(&h, sizeof(h)) || !peers_[to].data.send_all(part.data(), part.size())) {
            lost(to);
        }
    }

    // What `from` has for this rank, whose other end is `by`; or for another rank: then it goes into *any, whatever its size.
    void receive(size_t by, size_t from, std::span<std::byte> part, Bytes* any = nullptr) const {
        Header h, expected = call_;
        if (!peers_[by].data.receive_all(&h, sizeof(h))) { lost(by); }
        expected.bytes = any != nullptr ? h.bytes : (int64_t)part.size();
        if (h.call != expected.call || h.what != expected.what || h.bytes != expected.bytes) {
            throw Error(kExitPeerLost,
                        "ranks disagree: from {} comes {}; expected {}. Were all started with the same "
                        "program, options and data?",
                        name(from), h.text(), expected.text());
        }
        check_sum(from, h, sum_of(h), h.checksum);
        if (any != nullptr) {
            any->resize((size_t)h.bytes);
            part = *any;
        }
        if (!peers_[by].data.receive_all(part.data(), part.size())) { lost(by); }
        check_sum(from, h, XXH3_64bits(part.data(), part.size()), h.checksum_of_bytes);
    }

    void check_sum(size_t from, const Header& h, uint64_t found, uint64_t expected) const {
        if (found == expected) { return; }
        throw Error(kExitPeerLost,
                    "from {} comes {}, with other bits than were sent: found XXH3 {:016x}, expected {:016x}. "
                    "The network or a memory is at fault.",
                    name(from), h.text(), found, expected);
    }
    [[noreturn]] void lost(size_t other) const {
        poll(nullptr, 0, kPatienceMs);  // the watchdog of rank 0 sees it too, and knows more
        throw Error(kExitPeerLost, "rank {} has lost its connection to {}", rank(), name(other));
    }

    // ---- the thread ----

    // Time is counted in this thread's ticks, not by the clock: while this process was stopped, others' silence says nothing.
    void watch() {
        const int64_t between_signs = std::min<int64_t>(kMostBetweenSignsMs, timeout_ms_ / 6);
        int64_t since_sign = between_signs;
        for (bool leaving = false; !leaving;) {
            const Clock::time_point begin = Clock::now();
            poll(nullptr, 0, kTickMs);
            std::lock_guard lock(mutex_);
            const int64_t ms =
                std::min<int64_t>((Clock::now() - begin) / std::chrono::milliseconds(1), 2 * kTickMs);
            for (size_t r = 0; r < ranks_.size(); r++) { hear(r); }
            age(ms);
            since_sign += ms;
            const auto is_done = [](const RankReport& r) { return r.done != 0; };
            leaving =
                over_ || (finished_ && (!root() || std::all_of(ranks_.begin() + 1, ranks_.end(), is_done)));
            ranks_[me_].done = leaving;
            const int signal = root() ? 0 : signal_to_pass_on();
            if (leaving || signal != 0 || since_sign >= between_signs) {
                send_all(signal);
                since_sign = 0;
            }
            if (leaving) { return; }
            const std::string why = judge(ranks_, timeout_ms_, rank());
            if (!why.empty()) { end_job(kExitPeerLost, why); }
        }
    }

    void hear(size_t rank) {
        RankReport& k = ranks_[rank];
        const Socket& socket = peers_[rank].control;
        for (Message m; socket.open() && !k.gone && !k.done;) {
            const Arrival arrival = socket.receive_if_whole(&m, sizeof(m));
            if (arrival == Arrival::kNothing) { return; }
            k.silent_ms = 0;
            k.gone = arrival == Arrival::kClosed;
            if (!k.gone) { take(rank, m); }
        }
    }

    void take(size_t rank, const Message& m) {
        if (m.checksum != sum_of(m)) {
            const std::string why =
                "what the watchdog of " + name(rank) + " says has arrived with other bits.";
            if (!root()) { send_all(0, kExitPeerLost, why); }
            end_job(kExitPeerLost, why);
        }
        if (m.exit_code != 0 && !root()) { _exit(m.exit_code); }
        if (m.exit_code != 0) { end_job(m.exit_code, fmt::format("{}: {}", name(rank), m.text.view())); }
        RankReport& k = ranks_[rank];
        if (m.state.calls != k.calls) { k.waiting_ms = 0; }
        static_cast<RankState&>(k) = m.state;
        const bool known = m.signal == SIGUSR1 ? save_just_requested() : stop_requested != 0;
        if (m.signal != 0 && !known) { kill(getpid(), m.signal); }
    }

    void age(int64_t ms) {
        const bool patience =
            std::ranges::any_of(ranks_, [](const RankReport& k) { return k.done == 0 && k.takes_time != 0; });
        for (size_t r = 0; r < ranks_.size(); r++) {
            RankReport& k = ranks_[r];
            if (r != me_) { k.silent_ms += ms; }
            // what a rank said long ago does not count as waiting
            if (patience || k.done || k.inside == 0) {
                k.waiting_ms = 0;
            } else if (k.silent_ms < kLongSilenceMs) {
                k.waiting_ms += ms;
            }
        }
    }

    // once each
    int signal_to_pass_on() {
        if (stop_requested != stop_passed_on_) { return stop_passed_on_ = stop_requested; }
        if (save_requested == 0) { return 0; }
        save_requested = 0;
        return SIGUSR1;
    }

    void send_all(int signal, int exit_code = 0, const std::string& text = "") {
        Message m = {0, ranks_[me_], signal, exit_code, text};
        m.checksum = sum_of(m);
        for (size_t r = 0; r < ranks_.size(); r++) {
            const Socket& socket = peers_[r].control;
            if (!socket.open() || ranks_[r].deaf || ranks_[r].done) { continue; }
            const ssize_t sent = ::send(socket.fd(), &m, sizeof(m), MSG_NOSIGNAL | MSG_DONTWAIT);
            // A rank that does not read any more (it is stopped) will be judged by its silence.
            ranks_[r].deaf = sent != (ssize_t)sizeof(m);
        }
    }

    // The message goes out by write(), as another thread may be ended while it holds a stream.
    [[noreturn]] void end_job(int exit_code, const std::string& why) {
        if (root()) { send_all(0, exit_code); }
        const char* cure =
            exit_code == kExitPeerLost ? " Finished checkpoints are whole: --resume auto goes on." : "";
        const std::string text = fmt::format("\n{}: {}{}\n", program_, terminal_text(why), cure);
        (void)!write(STDERR_FILENO, text.data(), text.size());
        _exit(exit_code);
    }

    const size_t me_;
    const std::vector<Peer> peers_;
    const int64_t timeout_ms_;
    const std::string program_;
    Header call_;  // of exchange(), the last

    std::mutex mutex_;  // of all up to the thread
    std::vector<RankReport> ranks_;
    std::atomic<bool> finished_ = false;  // this rank says goodbye
    bool over_ = false;                   // nothing is judged any more
    int stop_passed_on_ = 0;
    std::thread thread_;
};

}  // namespace

void Comm::exchange(const char*, SentParts out, ArrivingParts in) {
    require(out.size() == 1 && in.size() == 1 && out[0].size() == in[0].size(),
            "Comm: a part for each rank, and a rank's own as large as it is sent");
    if (!in[0].empty() && in[0].data() != out[0].data()) {
        std::memcpy(in[0].data(), out[0].data(), in[0].size());
    }
}

std::string Comm::text_from_root(const char* what, std::string text) {
    auto size = (int64_t)text.size();
    from_root(what, std::span(&size, 1));
    text.resize((size_t)size);
    from_root(what, std::span(text));
    return text;
}

std::vector<int64_t> shares(int64_t n, int64_t chunk, int ranks) {
    const int64_t chunks = (n + chunk - 1) / chunk;
    std::vector<int64_t> begins;
    for (int64_t r = 0; r <= ranks; r++) { begins.push_back(std::min(n, chunks * r / ranks * chunk)); }
    return begins;
}

std::unique_ptr<Comm> join_ranks(const Ranks& ranks, int timeout_s, const std::string& program) {
    return std::make_unique<TcpComm>(ranks, timeout_s, program);
}

}  // namespace llmc

// A rank of a job of several: what it exchanges goes through rank 0 over TCP, and a thread watches over the ranks. See comm.h.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <xxhash.h>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <mutex>
#include <system_error>
#include <thread>

#include "llmc/host/base/error.h"
#include "llmc/host/base/stop_signal.h"
#include "llmc/host/base/text.h"
#include "llmc/host/ranks/comm.h"
#include "llmc/host/ranks/rendezvous.h"
#include "llmc/host/ranks/watchdog.h"

namespace llmc {

namespace {

using Clock = std::chrono::steady_clock;
using Arrival = Socket::Arrival;

constexpr int kTickMs = 50;
constexpr int kMostBetweenSignsMs = 500;
constexpr int kLongSilenceMs = 3 * kMostBetweenSignsMs;
constexpr int kPatienceMs = 5000;      // for an answer of rank 0
constexpr size_t kPiece = 256 * 1024;  // bytes of a part that rank 0 holds while it passes them on

// what a watchdog says to another
struct Message {
    uint64_t checksum = 0;  // XXH3 of all of it, where this is 0
    RankState state;
    int32_t signal = 0;     // that a rank has got: it is one to the job
    int32_t exit_code = 0;  // not 0: the rank has failed with it, or of rank 0: the job ends with it
    Field<1000> text;       // why the rank has failed
};

// Watches over the ranks from a thread of its own. Each rank says twice a second or more that it is there and what it
// does; rank 0 hears all and judges. Where the job must end, rank 0 says why, all ranks end at once with _exit(), and what
// they were doing is lost, but no finished checkpoint.
class WatchedComm : public Comm {
public:
    WatchedComm(const Ranks& r, int timeout_s, const std::string& program)
        : Comm(r.rank, r.size, r.local_rank, r.local_size),
          me_((size_t)r.rank),
          peers_(meet(r, timeout_s)),
          timeout_ms_(1000LL * timeout_s),
          program_(program),
          ranks_((size_t)r.size),
          deaf_((size_t)r.size, false) {
        try {
            thread_ = std::thread([this] { watch(); });
        } catch (const std::system_error& e) {
            throw Error(kExitDevice,
                        fmt::format("no thread to watch the other ranks: {}. Raise the limit on processes "
                                    "(ulimit -u, a container's pids.max).",
                                    e.what()));
        }
    }
    // waits for the others' goodbye, as long as they are there
    ~WatchedComm() override {
        change([this](RankReport& mine) {
            mine.takes_time = 0;
            finished_ = true;
        });
        thread_.join();
    }

    void at_step(int64_t step) override {
        change([=](RankReport& mine) { mine.step = step; });
    }
    void take_time(bool yes) override {
        change([=](RankReport& mine) { mine.takes_time = yes; });
    }
    void enter(const char* what) override {
        change([=](RankReport& mine) {
            mine.calls++;
            mine.inside = 1;
            mine.waiting_ms = 0;
            mine.what = what;
        });
    }
    void leave() override {
        change([](RankReport& mine) { mine.inside = 0; });
    }
    // Rank 0 tells the others and returns; it prints the message itself. Of the others rank 0 prints it.
    bool fail(int exit_code, const std::string& message) override {
        {
            std::lock_guard lock(mutex_);
            over_ = root();
            send_all(0, exit_code, message);
            if (root() || deaf_[0] || ranks_[0].gone) { return false; }
        }
        poll(nullptr, 0, kPatienceMs);  // rank 0 ends all, this process too
        return true;
    }

protected:
    const std::string& name(size_t rank) const { return peers_.who[rank]; }
    const Socket& data(size_t rank) const { return peers_.data[rank]; }
    const size_t me_;

private:
    // what this rank says it does
    template <typename Change>
    void change(Change to) {
        std::lock_guard lock(mutex_);
        to(ranks_[me_]);
    }

    // ---- the thread ----

    // Time is counted in ticks of this thread, not by the clock: while this process itself was stopped, the
    // others' silence says nothing.
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
            const std::string why = judge(ranks_, peers_.who, timeout_ms_, rank());
            if (!why.empty()) { end_job(kExitPeerLost, why); }
        }
    }

    void hear(size_t rank) {
        RankReport& k = ranks_[rank];
        const Socket& socket = peers_.control[rank];
        for (Message m; socket.open() && !k.gone && !k.done;) {
            const Arrival arrival = socket.receive_if_whole(&m, sizeof(m));
            if (arrival == Arrival::kNothing) { return; }
            k.silent_ms = 0;
            k.gone = arrival == Arrival::kClosed;
            if (!k.gone) { take(rank, m); }
        }
    }

    void take(size_t rank, Message& m) {
        if (std::exchange(m.checksum, 0) != XXH3_64bits(&m, sizeof(m))) {
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
        m.checksum = XXH3_64bits(&m, sizeof(m));
        for (size_t r = 0; r < ranks_.size(); r++) {
            if (!peers_.control[r].open() || deaf_[r] || ranks_[r].done) { continue; }
            ssize_t sent = send(peers_.control[r].fd(), &m, sizeof(m), MSG_NOSIGNAL | MSG_DONTWAIT);
            // A rank that does not read any more (it is stopped) will be judged by its silence.
            deaf_[r] = sent != (ssize_t)sizeof(m);
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

    const Peers peers_;
    const int64_t timeout_ms_;
    const std::string program_;

    std::mutex mutex_;  // of all up to the thread
    std::vector<RankReport> ranks_;
    std::vector<bool> deaf_;  // nothing more can be sent to it
    bool finished_ = false;   // this rank says goodbye
    bool over_ = false;       // nothing is judged any more
    int stop_passed_on_ = 0;
    std::thread thread_;
};

// A piece of a part that one rank has for another: which call it is of, and what it must be like when it arrives.
struct Piece {
    struct Header {
        int64_t call = 0, bytes = 0;
        int64_t more = 0;       // of this call is to come
        uint64_t checksum = 0;  // of all of the piece, where this is 0
        Field<64> what;         // the call's name
    } header;
    std::vector<std::byte> bytes;

    uint64_t sum() const {
        Header h = header;
        h.checksum = 0;
        return XXH3_64bits_withSeed(bytes.data(), bytes.size(), XXH3_64bits(&h, sizeof(h)));
    }
};

// what of a part goes at once
template <typename T>
std::span<T> cut(std::span<T> part, size_t at) {
    const size_t begin = std::min(at, part.size());
    return part.subspan(begin, std::min(kPiece, part.size() - begin));
}

// In each call every rank sends rank 0 a piece of each part, and gets from it what the others have for it, until all is there.
class TcpComm : public WatchedComm {
public:
    using WatchedComm::WatchedComm;

    void exchange(const char* what, SentParts out, ArrivingParts in) override {
        require((int)out.size() == size() && (int)in.size() == size(), "Comm: a part for each rank");
        enter(what);
        call_ = {.call = call_.call + 1, .more = 1, .what = what};
        Comm().exchange(what, out.subspan(me_, 1), in.subspan(me_, 1));
        for (size_t at = 0; call_.more != 0; at += kPiece) {
            std::vector<Piece> sent;
            RankParts<std::byte> arriving;
            for (size_t r = 0; r < out.size(); r++) {
                const auto bytes = cut(r == me_ ? std::span<const std::byte>() : out[r], at);
                sent.push_back({call_, {bytes.begin(), bytes.end()}});
                sent[r].header.bytes = (int64_t)bytes.size();
                sent[r].header.more = r != me_ && out[r].size() > at + kPiece;
                arriving.push_back(cut(r == me_ ? std::span<std::byte>() : in[r], at));
            }
            root() ? pass_on(sent, arriving) : send_and_receive(sent, arriving);
        }
        leave();
    }

private:
    void send_and_receive(std::vector<Piece>& sent, const RankParts<std::byte>& arriving) {
        for (Piece& piece : sent) { send(0, piece); }
        for (size_t r = 0; r < sent.size(); r++) {
            const Piece piece = receive(0, r, (int64_t)arriving[r].size());
            std::ranges::copy(piece.bytes, arriving[r].begin());
            call_.more = piece.header.more;
        }
    }

    void pass_on(std::vector<Piece>& own, const RankParts<std::byte>& arriving) {
        std::vector<std::vector<Piece>> from((size_t)size());  // by rank, to each
        from[0] = std::move(own);
        for (size_t r = 1; r < from.size(); r++) {
            for (size_t to = 0; to < from.size(); to++) {
                from[r].push_back(receive(r, r, to == 0 ? (int64_t)arriving[r].size() : kAnySize));
            }
            std::ranges::copy(from[r][0].bytes, arriving[r].begin());
        }
        call_.more = 0;
        for (const auto& pieces : from) {
            for (const Piece& piece : pieces) { call_.more |= piece.header.more; }
        }
        for (size_t to = 1; to < from.size(); to++) {
            for (auto& pieces : from) {
                pieces[to].header.more = call_.more;
                send(to, pieces[to]);
            }
        }
    }

    void send(size_t to, Piece& piece) const {
        piece.header.checksum = piece.sum();
        const Socket& socket = data(to);
        if (!socket.send_all(&piece.header, sizeof(piece.header)) ||
            !socket.send_all(piece.bytes.data(), piece.bytes.size())) {
            lost(to);
        }
    }

    // by: the rank at the other end, from: which has it for this rank, or for another, then of kAnySize
    Piece receive(size_t by, size_t from, int64_t bytes) const {
        Piece piece;
        Piece::Header& h = piece.header;
        if (!data(by).receive_all(&h, sizeof(h))) { lost(by); }
        const int64_t expected = bytes == kAnySize ? std::clamp<int64_t>(h.bytes, 0, kPiece) : bytes;
        if (h.call != call_.call || h.what != call_.what || h.bytes != expected) {
            throw Error(kExitPeerLost,
                        fmt::format("ranks disagree: from {} comes {}; expected {}. Were all started with "
                                    "the same program, options and data?",
                                    name(from), text(h, h.bytes), text(call_, expected)));
        }
        piece.bytes.resize((size_t)h.bytes);
        if (!data(by).receive_all(piece.bytes.data(), piece.bytes.size())) { lost(by); }
        if (const uint64_t sum = piece.sum(); sum != h.checksum) {
            throw Error(kExitPeerLost,
                        fmt::format("from {} comes {}, with other bits than were sent: found XXH3 {:016x}, "
                                    "expected {:016x}. The network or a memory is at fault.",
                                    name(from), text(h, h.bytes), sum, h.checksum));
        }
        return piece;
    }

    static std::string text(const Piece::Header& h, int64_t bytes) {
        return fmt::format("'{}', call {}, of {} bytes", h.what.view(), h.call, bytes);
    }
    [[noreturn]] void lost(size_t other) const {
        poll(nullptr, 0, kPatienceMs);  // the watchdog of rank 0 sees it too, and knows more
        throw Error(kExitPeerLost, fmt::format("rank {} has lost its connection to {}", rank(), name(other)));
    }

    static constexpr int64_t kAnySize = -1;
    Piece::Header call_;  // the last, and whether more of it is to come
};

}  // namespace

std::unique_ptr<Comm> join_ranks(const Ranks& ranks, int timeout_s, const std::string& program) {
    return std::make_unique<TcpComm>(ranks, timeout_s, program);
}

}  // namespace llmc

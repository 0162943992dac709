// How ranks meet: see rendezvous.h.
#include "llmc/host/ranks/rendezvous.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>
#include <xxhash.h>
#include <cerrno>
#include <chrono>
#include <initializer_list>
#include <memory>
#include <span>

#include "llmc/host/base/error.h"
#include "llmc/host/base/stop_signal.h"
#include "llmc/host/base/text.h"

namespace llmc {

namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kMagic = 0x336b6e72626d6c70;  // "plmbrnk3"
constexpr int kHandshakeSeconds = 10;            // in which rank 0 must have answered
constexpr size_t kMostStrangers = 64;            // connections that have not said who they are, at once
constexpr int kPauseMs = 100;                    // between tries
constexpr std::chrono::seconds kFirstWord(3), kBetweenWords(30);  // of what is waited for

// what each side says first: who it is
struct Hello {
    uint64_t magic = kMagic;
    XXH128_hash_t token = {};
    int32_t rank = 0, size = 0;
    int32_t for_data = 0;  // which of a rank's two connections this is
    Chars<100> name;       // as Peers::who
    Chars<200> refusal;    // of rank 0, which answers: why the other cannot be that rank; "" = it is welcome
};

using Addresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

Addresses resolve(const std::string& host, int port, std::string* why) {
    addrinfo hints = {}, *list = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    const int code = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
    if (code != 0) { *why = gai_strerror(code), list = nullptr; }
    return {list, freeaddrinfo};
}

// until all is moved by send() or recv()
template <typename Call, typename Bytes>
bool move_all(Call call, int fd, Bytes* data, size_t bytes) {
    while (bytes > 0) {
        const ssize_t moved = call(fd, data, bytes, MSG_NOSIGNAL);
        if (moved < 0 && errno == EINTR) { continue; }
        if (moved <= 0) { return false; }
        data += moved, bytes -= (size_t)moved;
    }
    return true;
}

void set_option(const Socket& s, int level, int name, int value) {
    setsockopt(s.fd(), level, name, &value, sizeof(value));
}

class Meeting {
public:
    Meeting(const Ranks& ranks, int timeout_s) : ranks_(ranks), timeout_s_(timeout_s) {
        for (int r = 0; r < ranks.size; r++) { peers_.emplace_back().who = fmt::format("rank {}", r); }
        char host[66] = {};
        gethostname(host, sizeof(host) - 1);
        me_.token = XXH3_128bits(ranks.token.data(), ranks.token.size());
        me_.rank = ranks.rank, me_.size = ranks.size;
        me_.name = fmt::format("rank {} (process {} on {})", ranks.rank, getpid(), host);
        peers_[(size_t)ranks.rank].who = me_.name.view();
    }

    std::vector<Peer> run() {
        char all_here = 1;
        if (ranks_.rank == 0) {
            accept_all();
            for (Peer& peer : std::span(peers_).subspan(1)) { peer.control.send_all(&all_here, 1); }
            return std::move(peers_);
        }
        Peer& root = peers_[0];
        root.control = connected_to_root(false);
        root.data = connected_to_root(true);
        root.control.set_timeout(timeout_s_);  // the others may take their time
        throw_if(!root.control.receive_all(&all_here, 1), kExitPeerLost,
                 "{} ended while the ranks met. See what it says.", root.who);
        for (Socket* s : {&root.control, &root.data}) { s->set_timeout(0); }
        return std::move(peers_);
    }

private:
    bool same_job(const Hello& h) const {
        return h.magic == kMagic && XXH128_isEqual(h.token, me_.token) != 0;
    }

    // Says from time to time what is waited for; throws Error(kExitPeerLost) when that has taken too long.
    void wait_for(const std::string& what, const char* advice) {
        throw_if(stop_requested, 128 + stop_requested, "stopped by a signal before the ranks had met");
        const Clock::time_point now = Clock::now();
        throw_if(now > begin_ + std::chrono::seconds(timeout_s_), kExitPeerLost, "{}, in {} s. {}", what,
                 timeout_s_, advice);
        if (now < next_word_) { return; }
        std::fprintf(stderr, "waiting: %s. %s\n", terminal_text(what).c_str(), advice);
        next_word_ = now + kBetweenWords;
    }

    // ---- rank 0 ----

    Socket listen() {
        const bool local = ranks_.host == "127.0.0.1" || ranks_.host == "localhost";  // all are on this host
        std::string why;
        for (;;) {
            Socket listener = listen_at(ranks_.port, local, &why);
            if (listener.open()) { return listener; }
            wait_for(fmt::format("port {} cannot be listened at: {}", ranks_.port, why),
                     "Another job may run here: set another MASTER_PORT, or give --master HOST:PORT, in all "
                     "ranks.");
            poll(nullptr, 0, kPauseMs);
        }
    }

    void accept_all() {
        const Socket listener = ranks_.listener >= 0 ? Socket(ranks_.listener) : listen();
        std::vector<Socket> strangers;
        for (std::string who = missing(); !who.empty(); who = missing()) {
            wait_for(
                fmt::format("of {} ranks, {}: not come to {}:{}", ranks_.size, who, ranks_.host, ranks_.port),
                "Were all started, with the same options, and can they reach this host there?");
            pollfd comes = {listener.fd(), POLLIN, 0};
            if (poll(&comes, 1, strangers.empty() ? kPauseMs : kPauseMs / 20) > 0) {
                // a rank speaks at once
                if (strangers.size() >= kMostStrangers) { strangers.erase(strangers.begin()); }
                strangers.emplace_back(accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC));
            }
            std::erase_if(strangers, [&](Socket& s) {
                Hello hello;
                const Socket::Arrival arrival = s.receive_if_whole(&hello, sizeof(hello));
                if (arrival == Socket::Arrival::kWhole) { answer(std::move(s), hello); }
                return arrival != Socket::Arrival::kNothing;
            });
        }
    }

    std::string missing() const {
        std::string text;
        for (size_t r = 1; r < peers_.size(); r++) {
            const bool here = peers_[r].control.open() && peers_[r].data.open();
            if (!here) { text += fmt::format("{}{}", text.empty() ? "rank " : ", ", r); }
        }
        return text;
    }

    // whoever is not of this job, or cannot be the rank that it says, is let go
    void answer(Socket s, const Hello& h) {
        if (h.magic != kMagic) { return; }
        const bool possible = h.size == ranks_.size && h.rank > 0 && h.rank < ranks_.size;
        Peer& peer = peers_[possible ? (size_t)h.rank : 0];
        Socket& place = h.for_data != 0 ? peer.data : peer.control;
        Hello reply = me_;
        if (!same_job(h)) {
            reply = {};  // the token is for those who know it
        } else if (!possible) {
            reply.refusal =
                fmt::format("{} is one of {}, this is rank {} of {}: they do not belong together.",
                            me_.name.view(), ranks_.size, h.rank, h.size);
        } else if (place.open()) {
            reply.refusal = fmt::format(
                "two processes are rank {} of {}. Give each its own --rank, and each "
                "job its own PLUMB_TOKEN.",
                h.rank, h.size);
        }
        const bool welcome = same_job(reply) && reply.refusal.view().empty();
        if (!s.send_all(&reply, sizeof(reply)) || !welcome) { return; }
        set_option(s, IPPROTO_TCP, TCP_NODELAY, 1);
        peer.who = h.name.view();
        place = std::move(s);
    }

    // ---- the others ----

    Socket connected_to_root(bool for_data) {
        for (std::string why;;) {
            const Addresses list = resolve(ranks_.host, ranks_.port, &why);
            for (const addrinfo* a = list.get(); a != nullptr; a = a->ai_next) {
                Socket s = try_connect(*a, for_data, &why);
                if (s.open()) { return s; }
            }
            wait_for(fmt::format("rank {} cannot reach rank 0 at {}:{}: {}", ranks_.rank, ranks_.host,
                                 ranks_.port, why),
                     "Was it started, and does a firewall let these hosts talk?");
            poll(nullptr, 0, kPauseMs);
        }
    }

    // connects and says who this is; not open if that failed, and *why says how
    Socket try_connect(const addrinfo& address, bool for_data, std::string* why) {
        Socket s(socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
        s.set_timeout(kHandshakeSeconds);
        Hello hello = me_, reply;
        hello.for_data = for_data;
        if (!s.open() || connect(s.fd(), address.ai_addr, address.ai_addrlen) != 0) {
            *why = std::strerror(errno);
        } else if (!s.send_all(&hello, sizeof(hello)) || !s.receive_all(&reply, sizeof(reply)) ||
                   reply.magic != kMagic) {
            *why = "who answers is no rank of this program";
        } else if (!same_job(reply)) {
            *why = "who answers is a rank of another job, or was started with other options";
        } else {
            const std::string refusal(reply.refusal.view());
            if (!refusal.empty()) { throw Error(kExitUsage, refusal); }
            set_option(s, IPPROTO_TCP, TCP_NODELAY, 1);
            peers_[0].who = reply.name.view();
            return s;
        }
        return Socket();
    }

    const Ranks& ranks_;
    const int timeout_s_;
    const Clock::time_point begin_ = Clock::now();
    Clock::time_point next_word_ = begin_ + kFirstWord;
    Hello me_;
    std::vector<Peer> peers_;
};

}  // namespace

uint16_t Socket::port() const {
    sockaddr_storage address = {};
    socklen_t size = sizeof(address);
    getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
    return ntohs(reinterpret_cast<sockaddr_in*>(&address)->sin_port);  // at the same place in both families
}

bool Socket::send_all(const void* data, size_t bytes) const {
    return move_all(send, fd_, static_cast<const char*>(data), bytes);
}

bool Socket::receive_all(void* data, size_t bytes) const {
    return move_all(recv, fd_, static_cast<char*>(data), bytes);
}

void Socket::set_timeout(int seconds) const {
    const timeval limit = {seconds, 0};
    for (int which : {SO_RCVTIMEO, SO_SNDTIMEO}) {
        setsockopt(fd_, SOL_SOCKET, which, &limit, sizeof(limit));
    }
}

Socket::Arrival Socket::receive_if_whole(void* data, size_t bytes) const {
    const ssize_t there = recv(fd_, data, bytes, MSG_PEEK | MSG_DONTWAIT);
    if (there == (ssize_t)bytes) { return receive_all(data, bytes) ? Arrival::kWhole : Arrival::kClosed; }
    const bool waits = there > 0 || (there < 0 && (errno == EAGAIN || errno == EINTR));
    return waits ? Arrival::kNothing : Arrival::kClosed;
}

Socket listen_at(int port, bool local, std::string* why) {
    // 0.0.0.0: where the system has no IPv6
    for (const char* host : local ? std::vector{"127.0.0.1"} : std::vector{"::", "0.0.0.0"}) {
        const Addresses at = resolve(host, port, why);
        if (at == nullptr) { continue; }
        Socket s(socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        set_option(s, SOL_SOCKET, SO_REUSEADDR, 1);
        if (at->ai_family == AF_INET6) { set_option(s, IPPROTO_IPV6, IPV6_V6ONLY, 0); }
        if (s.open() && bind(s.fd(), at->ai_addr, at->ai_addrlen) == 0 && ::listen(s.fd(), SOMAXCONN) == 0) {
            return s;
        }
        *why = std::strerror(errno);
        if (errno == EADDRINUSE) { break; }
    }
    return Socket();
}

std::vector<Peer> meet(const Ranks& ranks, int timeout_s) { return Meeting(ranks, timeout_s).run(); }

}  // namespace llmc

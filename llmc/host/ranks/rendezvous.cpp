// How ranks meet: see ranks/rendezvous.h.
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
#include <cstring>
#include <list>
#include <memory>

#include "llmc/host/base/error.h"
#include "llmc/host/base/stop_signal.h"
#include "llmc/host/base/text.h"

namespace llmc {

namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kMagic = 0x326b6e72626d6c70;  // "plmbrnk2"
constexpr int kHandshakeSeconds = 10;            // in which a connection must have said who it is
constexpr size_t kMostStrangers = 64;            // connections that have not, at once
constexpr int kPauseMs = 100;                    // between tries
constexpr std::chrono::seconds kFirstWord(3), kBetweenWords(30);  // of what is waited for

enum class Channel : int32_t { kControl, kData };
enum class Answer : int32_t { kWelcome, kOtherJob, kOtherSize, kTaken };

// what each side says first: who it is
struct Hello {
    uint64_t magic = kMagic, token[2] = {};
    int32_t rank = 0, size = 0;
    Channel channel = Channel::kControl;
    Answer answer = Answer::kWelcome;
    int32_t process = 0;
    uint16_t port = 0;  // where this rank takes connections from those above it
    char host[66] = {};
};

// where a rank takes connections
struct Place {
    char host[62] = {};  // "": that of rank 0
    uint16_t port = 0;
};

using Addresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

Addresses resolve(const std::string& host, int port, std::string* why) {
    addrinfo hints = {}, *list = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    const int code = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
    if (code != 0) { *why = gai_strerror(code), list = nullptr; }
    return {list, freeaddrinfo};
}

// until all is moved; by send() or recv() of what is behind `at`
template <typename Call>
bool move_all(size_t bytes, Call call) {
    for (size_t at = 0; at < bytes;) {
        const ssize_t moved = call(at);
        if (moved < 0 && errno == EINTR) { continue; }
        if (moved <= 0) { return false; }
        at += (size_t)moved;
    }
    return true;
}

void set_option(const Socket& s, int level, int name, int value) {
    setsockopt(s.fd(), level, name, &value, sizeof(value));
}

class Meeting {
public:
    Meeting(const Ranks& ranks, int timeout_s)
        : ranks_(ranks),
          timeout_s_(timeout_s),
          local_(ranks.host == "127.0.0.1" || ranks.host == "localhost"),
          places_((size_t)ranks.size) {
        const XXH128_hash_t token = XXH3_128bits(ranks.token.data(), ranks.token.size());
        me_.token[0] = token.low64, me_.token[1] = token.high64;
        me_.rank = ranks.rank, me_.size = ranks.size, me_.process = (int32_t)getpid();
        gethostname(me_.host, sizeof(me_.host) - 1);
        places_[0].port = (uint16_t)ranks.port;
        peers_.control.resize((size_t)ranks.size);
        peers_.data.resize((size_t)ranks.size);
        for (int r = 0; r < ranks.size; r++) { peers_.who.push_back(fmt::format("rank {}", r)); }
        note(me_);
    }

    Peers run() {
        listener_ = ranks_.listener >= 0 ? Socket(ranks_.listener) : listen();
        me_.port = listener_.port();
        if (ranks_.rank == 0) {
            accept_all(peers_.control);
            tell_places();
        } else {
            connect_to(0, Channel::kControl);
            connect_to(0, Channel::kData);
            hear_places();
            for (int r = 1; r < ranks_.rank; r++) { connect_to(r, Channel::kData); }
        }
        accept_all(peers_.data);
        for (auto* sockets : {&peers_.control, &peers_.data}) {
            for (Socket& s : *sockets) { s.set_timeouts(0); }
        }
        return std::move(peers_);
    }

private:
    void note(const Hello& h) {
        peers_.who[(size_t)h.rank] =
            fmt::format("rank {} (process {} on {})", h.rank, (int)h.process, text_in(h.host));
    }
    [[noreturn]] void lost(int rank) const {
        throw Error(kExitPeerLost,
                    peers_.who[(size_t)rank] + " ended while the ranks met. See what it says.");
    }
    bool same_job(const Hello& h) const {
        return h.magic == kMagic && h.token[0] == me_.token[0] && h.token[1] == me_.token[1];
    }
    Socket& socket_of(int rank, Channel channel) {
        return (channel == Channel::kControl ? peers_.control : peers_.data)[(size_t)rank];
    }

    // Says from time to time what is waited for; throws Error(kExitPeerLost) when that has taken too long.
    void wait_for(const std::string& what, const char* advice) {
        if (stop_requested) {
            throw Error(128 + stop_requested, "stopped by a signal before the ranks had met");
        }
        const Clock::time_point now = Clock::now();
        if (now > begin_ + std::chrono::seconds(timeout_s_)) {
            throw Error(kExitPeerLost, fmt::format("{}, in {} s. {}", what, timeout_s_, advice));
        }
        if (now < next_word_) { return; }
        std::fprintf(stderr, "waiting: %s. %s\n", terminal_text(what).c_str(), advice);
        next_word_ = now + kBetweenWords;
    }

    Socket listen() {
        std::string why;
        for (;;) {
            Socket listener = listen_at(ranks_.rank == 0 ? ranks_.port : 0, local_, &why);
            if (listener.open()) { return listener; }
            if (ranks_.rank != 0) { throw Error(kExitDevice, "no socket to listen at: " + why); }
            wait_for(fmt::format("port {} cannot be listened at: {}", ranks_.port, why),
                     "Another job may run here: set another MASTER_PORT, or give --master HOST:PORT, in all "
                     "ranks.");
            poll(nullptr, 0, kPauseMs);
        }
    }

    // the table of places, from rank 0 to all
    void tell_places() const {
        const size_t size = places_.size() * sizeof(Place);
        const uint64_t sum = checksum(places_.data(), size);
        for (int r = 1; r < ranks_.size; r++) {
            const Socket& s = peers_.control[(size_t)r];
            if (!s.send_all(places_.data(), size) || !s.send_all(&sum, sizeof(sum))) { lost(r); }
        }
    }
    void hear_places() {
        const size_t size = places_.size() * sizeof(Place);
        const Socket& s = peers_.control[0];
        uint64_t sum = 0;
        s.set_timeouts(timeout_s_);  // the others may take their time
        if (!s.receive_all(places_.data(), size) || !s.receive_all(&sum, sizeof(sum))) { lost(0); }
        if (sum != checksum(places_.data(), size)) {
            throw Error(kExitPeerLost,
                        fmt::format("rank {}: where the ranks are, as {} says it, has arrived with "
                                    "other bits.",
                                    ranks_.rank, peers_.who[0]));
        }
    }

    // ---- those that connect ----

    struct Stranger {
        Socket socket;
        Hello hello;
        size_t received = 0;
        Clock::time_point since = Clock::now();
    };

    // until all ranks above this one are there
    void accept_all(const std::vector<Socket>& channel) {
        for (std::string who = missing(channel); !who.empty(); who = missing(channel)) {
            wait_for(
                fmt::format("of {} ranks, {}: not come to {}:{}", ranks_.size, who, ranks_.host, ranks_.port),
                "Were all started, with the same options, and can they reach this host there?");
            pollfd listener = {listener_.fd(), POLLIN, 0};
            if (poll(&listener, 1, strangers_.empty() ? kPauseMs : kPauseMs / 20) > 0) { accept_one(); }
            hear();
        }
    }

    std::string missing(const std::vector<Socket>& channel) const {
        std::string text;
        for (int r = ranks_.rank + 1; r < ranks_.size; r++) {
            if (!channel[(size_t)r].open()) { text += fmt::format("{}{}", text.empty() ? "rank " : ", ", r); }
        }
        return text;
    }

    void accept_one() {
        if (strangers_.size() >= kMostStrangers) { strangers_.pop_front(); }  // a rank speaks at once
        Socket s(accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC));
        if (s.open()) { strangers_.emplace_back().socket = std::move(s); }
    }

    // reads what they say; whoever is not of this job, says too little or too late is let go
    void hear() {
        for (auto s = strangers_.begin(); s != strangers_.end();) {
            char* into = reinterpret_cast<char*>(&s->hello) + s->received;
            ssize_t got = recv(s->socket.fd(), into, sizeof(Hello) - s->received, MSG_DONTWAIT);
            if (got > 0) { s->received += (size_t)got; }
            const bool whole = s->received == sizeof(Hello);
            const bool closed = got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
            const bool late = Clock::now() - s->since > std::chrono::seconds(kHandshakeSeconds);
            if (whole) { answer(&*s); }
            s = whole || closed || late ? strangers_.erase(s) : std::next(s);
        }
    }

    void answer(Stranger* s) {
        const Hello& h = s->hello;
        Hello reply = me_;
        const bool expected =
            h.rank > ranks_.rank && h.rank < ranks_.size && (ranks_.rank == 0 || h.channel == Channel::kData);
        if (h.magic != kMagic) { return; }
        if (!same_job(h)) {
            reply = {};  // the token is for those who know it
            reply.answer = Answer::kOtherJob;
        } else if (h.size != ranks_.size || !expected) {
            reply.answer = Answer::kOtherSize;
        } else if (socket_of(h.rank, h.channel).open()) {
            reply.answer = Answer::kTaken;
        }
        s->socket.set_timeouts(kHandshakeSeconds);
        if (!s->socket.send_all(&reply, sizeof(reply)) || reply.answer != Answer::kWelcome) { return; }
        set_option(s->socket, IPPROTO_TCP, TCP_NODELAY, 1);
        note(h);
        places_[(size_t)h.rank] = place_of(s->socket, h.port);
        socket_of(h.rank, h.channel) = std::move(s->socket);
    }

    static Place place_of(const Socket& s, uint16_t port) {
        sockaddr_storage address = {};
        socklen_t size = sizeof(address);
        Place place;
        getpeername(s.fd(), reinterpret_cast<sockaddr*>(&address), &size);
        getnameinfo(reinterpret_cast<sockaddr*>(&address), size, place.host, sizeof(place.host), nullptr, 0,
                    NI_NUMERICHOST);
        const std::string host = place.host;
        if (host.starts_with("127.") || host.starts_with("::ffff:127.") || host == "::1") { place = {}; }
        place.port = port;
        return place;
    }

    // ---- connecting ----

    void connect_to(int rank, Channel channel) {
        const Place& place = places_[(size_t)rank];
        const std::string host = *place.host != '\0' ? place.host : ranks_.host;
        Socket& s = socket_of(rank, channel);
        for (std::string why;;) {
            const Addresses list = resolve(host, place.port, &why);
            for (const addrinfo* a = list.get(); a != nullptr && !s.open(); a = a->ai_next) {
                s = try_connect(*a, channel, rank, &why);
            }
            if (s.open()) { return; }
            wait_for(fmt::format("rank {} cannot reach rank {} at {}:{}: {}", ranks_.rank, rank, host,
                                 place.port, why),
                     "Was it started, and does a firewall let these hosts talk?");
            poll(nullptr, 0, kPauseMs);
        }
    }

    // connects and says who this is; not open if that failed, and *why says how
    Socket try_connect(const addrinfo& address, Channel channel, int to, std::string* why) {
        Socket s(socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
        s.set_timeouts(kHandshakeSeconds);
        Hello hello = me_, reply;
        hello.channel = channel;
        if (!s.open() || connect(s.fd(), address.ai_addr, address.ai_addrlen) != 0) {
            *why = std::strerror(errno);
            return Socket();
        }
        set_option(s, IPPROTO_TCP, TCP_NODELAY, 1);
        if (!s.send_all(&hello, sizeof(hello)) || !s.receive_all(&reply, sizeof(reply)) ||
            reply.magic != kMagic) {
            *why = "who answers is no rank of this program";
            return Socket();
        }
        if (!same_job(reply) || reply.rank != to) {
            *why = "who answers is a rank of another job, or was started with other options";
            return Socket();
        }
        if (reply.answer == Answer::kOtherSize) {
            throw Error(kExitUsage,
                        fmt::format("{} is one of {}, this is rank {} of {}: they do not belong together.",
                                    peers_.who[(size_t)to], reply.size, ranks_.rank, ranks_.size));
        }
        if (reply.answer == Answer::kTaken) {
            throw Error(kExitUsage,
                        fmt::format("two processes are rank {} of {}. Give each its own --rank, and each job "
                                    "its own PLUMB_TOKEN.",
                                    ranks_.rank, ranks_.size));
        }
        note(reply);
        return s;
    }

    const Ranks& ranks_;
    int timeout_s_;
    const bool local_;  // all ranks are on this host
    const Clock::time_point begin_ = Clock::now();
    Clock::time_point next_word_ = begin_ + kFirstWord;
    Hello me_;
    Peers peers_;
    std::vector<Place> places_;
    Socket listener_;
    std::list<Stranger> strangers_;
};

}  // namespace

Socket::~Socket() {
    if (fd_ >= 0) { close(fd_); }
}

bool Socket::send_all(const void* data, size_t bytes) const {
    return move_all(bytes, [&](size_t at) {
        return send(fd_, static_cast<const char*>(data) + at, bytes - at, MSG_NOSIGNAL);
    });
}

bool Socket::receive_all(void* data, size_t bytes) const {
    return move_all(bytes,
                    [&](size_t at) { return recv(fd_, static_cast<char*>(data) + at, bytes - at, 0); });
}

void Socket::set_timeouts(int seconds) const {
    timeval limit = {seconds, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

uint16_t Socket::port() const {
    sockaddr_storage address = {};
    socklen_t size = sizeof(address);
    getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
    return ntohs(reinterpret_cast<sockaddr_in*>(&address)->sin_port);  // at the same place in both families
}

Socket listen_at(int port, bool local, std::string* why) {
    const char* const everywhere[] = {"::", "0.0.0.0"};  // the latter where the system has no IPv6
    const char* const here[] = {"127.0.0.1"};
    for (const char* host : local ? std::span<const char* const>(here) : everywhere) {
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

uint64_t checksum(const void* data, size_t bytes) { return XXH3_64bits(data, bytes); }

Peers meet(const Ranks& ranks, int timeout_s) { return Meeting(ranks, timeout_s).run(); }

}  // namespace llmc

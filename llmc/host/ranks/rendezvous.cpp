// How ranks meet: see ranks/rendezvous.h.
#include "llmc/host/ranks/rendezvous.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <xxhash.h>
#include <algorithm>
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

constexpr uint64_t kMagic = 0x316b6e72626d6c70;  // "plmbrnk1"
constexpr int kHandshakeSeconds = 10;            // in which a connection must have said who it is
constexpr size_t kMostStrangers = 64;            // connections that have not, at once
constexpr int kPauseMs = 100;                    // between tries
constexpr std::chrono::seconds kFirstWord(3), kBetweenWords(30);  // of what is waited for

enum class Line : int32_t { kControl, kData };
enum class Answer : int32_t { kWelcome, kOtherJob, kOtherSize, kTaken };

// what each side says first: who it is
struct Hello {
    uint64_t magic = kMagic, token[2] = {};
    int32_t rank = 0, size = 0;
    Line line = Line::kControl;
    Answer answer = Answer::kWelcome;
    int32_t process = 0;
    uint16_t port = 0;  // where this rank takes connections from those above it
    char host[66] = {};
};

// where a rank takes connections; family 0: on the host of rank 0
struct Place {
    sockaddr_storage address;
    socklen_t size;
};

void pause_or_stop() {
    if (stop_requested) { throw Error(128 + stop_requested, "stopped by a signal before the ranks had met"); }
    poll(nullptr, 0, kPauseMs);
}

void set_port(sockaddr_storage* address, uint16_t port) {
    if (address->ss_family == AF_INET6) {
        reinterpret_cast<sockaddr_in6*>(address)->sin6_port = htons(port);
    } else {
        reinterpret_cast<sockaddr_in*>(address)->sin_port = htons(port);
    }
}

// 127.x.x.x, ::1, or the first written as IPv6
bool is_loopback(const sockaddr_storage& address) {
    if (address.ss_family == AF_INET) {
        return ntohl(reinterpret_cast<const sockaddr_in*>(&address)->sin_addr.s_addr) >> 24 == 127;
    }
    const in6_addr& six = reinterpret_cast<const sockaddr_in6*>(&address)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(&six) || (IN6_IS_ADDR_V4MAPPED(&six) && six.s6_addr[12] == 127);
}

// a socket that listens at this port (0: any) of all addresses, or of this host's own alone; not open if that is taken
Socket try_listen(uint16_t port, bool local) {
    for (int family : {local ? AF_INET : AF_INET6, AF_INET}) {  // without IPv6 in the system: IPv4
        Socket s(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
        int yes = 1, no = 0;
        setsockopt(s.fd(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
        if (family == AF_INET6) { setsockopt(s.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no)); }
        sockaddr_storage any = {};
        any.ss_family = (sa_family_t)family;
        set_port(&any, port);
        if (local) { reinterpret_cast<sockaddr_in*>(&any)->sin_addr.s_addr = htonl(INADDR_LOOPBACK); }
        if (s.open() && bind(s.fd(), reinterpret_cast<sockaddr*>(&any), sizeof(any)) == 0 &&
            listen(s.fd(), SOMAXCONN) == 0) {
            return s;
        }
        if (errno == EADDRINUSE) { break; }
    }
    return Socket();
}

uint16_t port_of(const Socket& listener) {
    sockaddr_storage address = {};
    socklen_t size = sizeof(address);
    getsockname(listener.fd(), reinterpret_cast<sockaddr*>(&address), &size);
    return ntohs(reinterpret_cast<sockaddr_in*>(&address)->sin_port);  // at the same place in both families
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
        peers_.control.resize((size_t)ranks.size);
        peers_.data.resize((size_t)ranks.size);
        for (int r = 0; r < ranks.size; r++) { peers_.who.push_back(fmt::format("rank {}", r)); }
        note(me_);
    }

    Peers run() {
        if (ranks_.rank == 0) {
            Socket listener = ranks_.listener >= 0 ? Socket(ranks_.listener) : listen_at_port();
            accept_from(listener, 1, true);
            for (int r = 1; r < ranks_.size; r++) {
                if (!peers_.data[(size_t)r].send_all(places_.data(), places_.size() * sizeof(Place))) {
                    lost(r);
                }
            }
        } else {
            Socket listener = try_listen(0, local_);
            if (!listener.open()) {
                throw Error(kExitDevice, fmt::format("no socket to listen at: {}", std::strerror(errno)));
            }
            me_.port = port_of(listener);
            connect_to_root();
            for (int r = 1; r < ranks_.rank; r++) { connect_to(r); }
            accept_from(listener, ranks_.rank + 1, false);
        }
        for (auto* sockets : {&peers_.control, &peers_.data}) {
            for (Socket& s : *sockets) { s.set_timeouts(0); }
        }
        return std::move(peers_);
    }

private:
    void note(const Hello& h) {
        peers_.who[(size_t)h.rank] =
            fmt::format("rank {} (process {} on {:.64})", h.rank, (int)h.process, h.host);
    }
    [[noreturn]] void lost(int rank) const {
        throw Error(kExitPeerLost,
                    peers_.who[(size_t)rank] + " ended while the ranks met. See what it says.");
    }
    bool same_job(const Hello& h) const {
        return h.magic == kMagic && h.token[0] == me_.token[0] && h.token[1] == me_.token[1];
    }

    // Says from time to time what is waited for; throws Error(kExitPeerLost) when that has taken too long.
    void wait_for(const std::string& what, const char* advice) {
        const Clock::time_point now = Clock::now();
        if (now > begin_ + std::chrono::seconds(timeout_s_)) {
            throw Error(kExitPeerLost, fmt::format("{}, in {} s. {}", what, timeout_s_, advice));
        }
        if (now < next_word_) { return; }
        std::fprintf(stderr, "waiting: %s. %s\n", terminal_text(what).c_str(), advice);
        next_word_ = now + kBetweenWords;
    }

    Socket listen_at_port() {
        for (;;) {
            Socket listener = try_listen((uint16_t)ranks_.port, local_);
            if (listener.open()) { return listener; }
            wait_for(fmt::format("port {} cannot be listened at: {}", ranks_.port, std::strerror(errno)),
                     "Another job may run here: set another MASTER_PORT, or give --master HOST:PORT, in all "
                     "ranks.");
            pause_or_stop();
        }
    }

    // ---- those that connect ----

    struct Stranger {
        Socket socket;
        Hello hello;
        size_t received = 0;
        Clock::time_point since = Clock::now();
        sockaddr_storage from = {};
    };

    // until all ranks from `first` on are there, with all their lines
    void accept_from(const Socket& listener, int first, bool root) {
        listener.set_blocking(false);
        std::list<Stranger> strangers;
        while (missing(first, root) != "") {
            wait_for(fmt::format("of {} ranks, {}: not come to {}:{}", ranks_.size, missing(first, root),
                                 ranks_.host, ranks_.port),
                     "Were all started, with the same options, and can they reach this host there?");
            const bool accepted = accept_one(listener, &strangers);
            if (!hear(&strangers, first, root) && !accepted) { pause_briefly(listener, strangers); }
        }
    }

    std::string missing(int first, bool root) const {
        std::string text;
        for (int r = first; r < ranks_.size; r++) {
            if ((root && !peers_.control[(size_t)r].open()) || !peers_.data[(size_t)r].open()) {
                text += fmt::format("{}{}", text.empty() ? "rank " : ", ", r);
            }
        }
        return text;
    }

    static void pause_briefly(const Socket& listener, const std::list<Stranger>& strangers) {
        std::vector<pollfd> fds = {{listener.fd(), POLLIN, 0}};
        for (const Stranger& s : strangers) { fds.push_back({s.socket.fd(), POLLIN, 0}); }
        if (poll(fds.data(), fds.size(), kPauseMs) <= 0) { pause_or_stop(); }
    }

    static bool accept_one(const Socket& listener, std::list<Stranger>* strangers) {
        if (strangers->size() >= kMostStrangers) { strangers->pop_front(); }  // a rank speaks at once
        sockaddr_storage from = {};
        socklen_t size = sizeof(from);
        Socket s(
            accept4(listener.fd(), reinterpret_cast<sockaddr*>(&from), &size, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (!s.open()) { return false; }
        strangers->emplace_back();
        strangers->back().socket = std::move(s);
        strangers->back().from = from;
        return true;
    }

    // reads what they say; whoever is not of this job, says too little or too late is let go
    bool hear(std::list<Stranger>* strangers, int first, bool root) {
        bool heard = false;
        for (auto s = strangers->begin(); s != strangers->end();) {
            char* into = reinterpret_cast<char*>(&s->hello) + s->received;
            ssize_t got = recv(s->socket.fd(), into, sizeof(Hello) - s->received, 0);
            if (got > 0) { s->received += (size_t)got; }
            const bool whole = s->received == sizeof(Hello);
            const bool closed = got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
            const bool late = Clock::now() - s->since > std::chrono::seconds(kHandshakeSeconds);
            heard = heard || got > 0;
            if (whole) { answer(&*s, first, root); }
            s = whole || closed || late ? strangers->erase(s) : std::next(s);
        }
        return heard;
    }

    void answer(Stranger* s, int first, bool root) {
        const Hello& h = s->hello;
        Hello reply = me_;
        auto& sockets = h.line == Line::kControl ? peers_.control : peers_.data;
        bool expected = h.rank >= first && h.rank < ranks_.size && (root || h.line == Line::kData);
        if (h.magic != kMagic) { return; }
        if (!same_job(h)) {
            reply = {};  // the token is for those who know it
            reply.answer = Answer::kOtherJob;
        } else if (h.size != ranks_.size || !expected) {
            reply.answer = Answer::kOtherSize;
        } else if (sockets[(size_t)h.rank].open()) {
            reply.answer = Answer::kTaken;
        }
        s->socket.set_blocking(true);
        s->socket.set_timeouts(kHandshakeSeconds);
        if (!s->socket.send_all(&reply, sizeof(reply)) || reply.answer != Answer::kWelcome) { return; }
        sockets[(size_t)h.rank] = std::move(s->socket);
        set_no_delay(sockets[(size_t)h.rank]);
        note(h);
        if (is_loopback(s->from)) { s->from.ss_family = 0; }
        places_[(size_t)h.rank] = {s->from, s->from.ss_family == AF_INET6 ? (socklen_t)sizeof(sockaddr_in6)
                                                                          : (socklen_t)sizeof(sockaddr_in)};
        set_port(&places_[(size_t)h.rank].address, h.port);
    }

    static void set_no_delay(const Socket& s) {
        int yes = 1;
        setsockopt(s.fd(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    }

    // ---- connecting ----

    // connects and says who this is; not open if that failed, and *why says how
    Socket try_connect(const sockaddr* address, socklen_t size, Line line, int to, std::string* why) {
        Socket s(socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
        s.set_timeouts(kHandshakeSeconds);
        Hello hello = me_, reply;
        hello.line = line;
        if (!s.open() || connect(s.fd(), address, size) != 0) {
            *why = std::strerror(errno);
            return Socket();
        }
        set_no_delay(s);
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
            throw Error(
                kExitUsage,
                fmt::format("two processes are rank {} of {}. Give each its own --rank, and each job its own "
                            "PLUMB_TOKEN.",
                            ranks_.rank, ranks_.size));
        }
        note(reply);
        return s;
    }

    void connect_to_root() {
        addrinfo hints = {};
        hints.ai_socktype = SOCK_STREAM;
        std::string why;
        for (Line line : {Line::kControl, Line::kData}) {
            Socket& s = (line == Line::kControl ? peers_.control : peers_.data)[0];
            while (!s.open()) {
                addrinfo* list = nullptr;
                int code =
                    getaddrinfo(ranks_.host.c_str(), std::to_string(ranks_.port).c_str(), &hints, &list);
                if (code != 0) { why = gai_strerror(code), list = nullptr; }
                const std::unique_ptr<addrinfo, void (*)(addrinfo*)> found(list, freeaddrinfo);
                for (addrinfo* a = list; a != nullptr && !s.open(); a = a->ai_next) {
                    s = try_connect(a->ai_addr, a->ai_addrlen, line, 0, &why);
                    if (s.open()) {
                        std::memcpy(&root_, a->ai_addr, a->ai_addrlen), root_size_ = a->ai_addrlen;
                    }
                }
                if (!s.open()) { try_again(0, ranks_.host + ":" + std::to_string(ranks_.port), why); }
            }
        }
        // the others may take their time
        peers_.data[0].set_timeouts(timeout_s_);
        if (!peers_.data[0].receive_all(places_.data(), places_.size() * sizeof(Place))) { lost(0); }
    }

    void connect_to(int rank) {
        Place& p = places_[(size_t)rank];
        if (p.address.ss_family == 0) {  // beside rank 0
            uint16_t port = ntohs(reinterpret_cast<sockaddr_in*>(&p.address)->sin_port);
            p = {root_, root_size_};
            set_port(&p.address, port);
        }
        std::string why;
        while (!peers_.data[(size_t)rank].open()) {
            peers_.data[(size_t)rank] =
                try_connect(reinterpret_cast<sockaddr*>(&p.address), p.size, Line::kData, rank, &why);
            if (!peers_.data[(size_t)rank].open()) { try_again(rank, "where rank 0 says it is", why); }
        }
    }

    void try_again(int rank, const std::string& where, const std::string& why) {
        wait_for(fmt::format("rank {} cannot reach rank {} at {}: {}", ranks_.rank, rank, where, why),
                 "Was it started, and does a firewall let these hosts talk?");
        pause_or_stop();
    }

    const Ranks& ranks_;
    int timeout_s_;
    const bool local_;  // all ranks are on this host
    const Clock::time_point begin_ = Clock::now();
    Clock::time_point next_word_ = begin_ + kFirstWord;
    Hello me_;
    Peers peers_;
    std::vector<Place> places_;  // of ranks above 0
    sockaddr_storage root_ = {};
    socklen_t root_size_ = 0;
};

}  // namespace

Peers meet(const Ranks& ranks, int timeout_s) { return Meeting(ranks, timeout_s).run(); }

}  // namespace llmc

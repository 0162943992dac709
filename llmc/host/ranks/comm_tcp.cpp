// Exchanges over TCP: see comm_tcp.h.
#include "llmc/host/ranks/comm_tcp.h"

#include <poll.h>
#include <sys/socket.h>
#include <cerrno>
#include <cstring>

#include "llmc/host/base/error.h"

namespace llmc {

namespace {

// before each part: which call it is of, and how long it is
struct Header {
    int64_t call = 0, bytes = 0;
};

// what is on its way between this rank and another
struct Traffic {
    Header header_out, header_in;
    std::span<const std::byte> out;
    std::span<std::byte> in;
    size_t sent = 0, received = 0;  // headers included
    size_t to_send = 0, to_receive = 0;
    bool sends() const { return sent < to_send; }
    bool receives() const { return received < to_receive; }
};

// moves what can be moved without waiting; false: the connection is lost
bool send_some(int fd, Traffic* t) {
    while (t->sends()) {
        const bool in_header = t->sent < sizeof(Header);
        const void* from = in_header ? (const char*)&t->header_out + t->sent
                                     : (const char*)t->out.data() + (t->sent - sizeof(Header));
        size_t bytes = (in_header ? sizeof(Header) : t->to_send) - t->sent;
        ssize_t sent = send(fd, from, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0) { return errno == EAGAIN || errno == EINTR; }
        t->sent += (size_t)sent;
    }
    return true;
}

bool receive_some(int fd, Traffic* t) {
    while (t->receives()) {
        const bool in_header = t->received < sizeof(Header);
        void* to = in_header ? (char*)&t->header_in + t->received
                             : (char*)t->in.data() + (t->received - sizeof(Header));
        size_t bytes = (in_header ? sizeof(Header) : t->to_receive) - t->received;
        ssize_t got = recv(fd, to, bytes, MSG_DONTWAIT);
        if (got == 0) { return false; }
        if (got < 0) { return errno == EAGAIN || errno == EINTR; }
        t->received += (size_t)got;
        if (in_header && t->received == sizeof(Header) && t->header_in.bytes != (int64_t)t->in.size()) {
            throw Error(kExitPeerLost,
                        fmt::format("ranks disagree: call {} brings {} bytes, expected {} in call {}. "
                                    "Were all started with the same program, options and data?",
                                    t->header_in.call, t->header_in.bytes, t->in.size(), t->header_out.call));
        }
    }
    return true;
}

}  // namespace

CommTcp::CommTcp(const Ranks& ranks, int timeout_s, const std::string& program)
    : CommTcp(ranks, timeout_s, program, meet(ranks, timeout_s)) {}

CommTcp::CommTcp(const Ranks& r, int timeout_s, const std::string& program, Peers peers)
    : Comm(r.rank, r.size, r.local_rank, r.local_size),
      data_(std::move(peers.data)),
      watchdog_(r.rank, std::move(peers.control), std::move(peers.who), timeout_s, program) {}

void CommTcp::exchange(const char* what, std::span<const std::span<const std::byte>> out,
                       std::span<const std::span<std::byte>> in) {
    require((int)out.size() == size() && (int)in.size() == size(), "Comm: a part for each rank");
    watchdog_.enter(what);
    calls_++;
    std::vector<Traffic> traffic((size_t)size());
    for (size_t r = 0; r < traffic.size(); r++) {
        Traffic& t = traffic[r];
        t.out = out[r], t.in = in[r];
        t.header_out = {calls_, (int64_t)t.out.size()};
        if ((int)r == rank()) {
            Comm own;
            own.exchange(what, out.subspan(r, 1), in.subspan(r, 1));
            continue;
        }
        t.to_send = t.out.empty() ? 0 : sizeof(Header) + t.out.size();
        t.to_receive = t.in.empty() ? 0 : sizeof(Header) + t.in.size();
    }
    for (;;) {
        std::vector<pollfd> fds;
        std::vector<size_t> of;
        for (size_t r = 0; r < traffic.size(); r++) {
            Traffic& t = traffic[r];
            if (!t.sends() && !t.receives()) { continue; }
            const int fd = data_[r].fd();
            if (!send_some(fd, &t) || !receive_some(fd, &t)) { watchdog_.lost((int)r); }
            if (!t.sends() && !t.receives()) { continue; }
            fds.push_back({fd, (short)((t.sends() ? POLLOUT : 0) | (t.receives() ? POLLIN : 0)), 0});
        }
        if (fds.empty()) { break; }
        poll(fds.data(), fds.size(), 1000);
    }
    watchdog_.leave();
}

}  // namespace llmc

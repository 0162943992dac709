// A job of one rank, and exchanges over TCP: see comm.h.
#include "llmc/host/ranks/comm.h"

#include <poll.h>
#include <sys/socket.h>
#include <cerrno>
#include <cstring>

#include "llmc/host/base/error.h"
#include "llmc/host/ranks/rendezvous.h"
#include "llmc/host/ranks/watchdog.h"

namespace llmc {

namespace {

// before each part: which call it is of, and what it must be like when it arrives
struct Header {
    int64_t call = 0, bytes = 0;
    uint64_t checksum = 0;
    char what[40] = {};  // the call's name
    bool same_call(const Header& h) const {
        return call == h.call && bytes == h.bytes && std::memcmp(what, h.what, sizeof(what)) == 0;
    }
    std::string text() const { return fmt::format("'{}', call {}, of {} bytes", text_in(what), call, bytes); }
};

// a part on its way to another rank, or from it
struct Transfer {
    Header header;
    std::byte* data;
    size_t moved, size;  // the header included; an empty part is not sent

    bool ends() const { return moved == size; }
    // what can be moved without waiting, by send() or recv(); false: the connection is lost
    template <typename Call>
    bool move_some(Call call) {
        while (!ends()) {
            const bool in_header = moved < sizeof(Header);
            std::byte* at = in_header ? (std::byte*)&header + moved : data + (moved - sizeof(Header));
            const ssize_t bytes = call(at, (in_header ? sizeof(Header) : size) - moved);
            if (bytes <= 0) { return bytes < 0 && (errno == EAGAIN || errno == EINTR); }
            moved += (size_t)bytes;
        }
        return true;
    }
};

class TcpComm : public Comm {
public:
    TcpComm(const Ranks& r, int timeout_s, const std::string& program, Peers peers)
        : Comm(r.rank, r.size, r.local_rank, r.local_size),
          data_(std::move(peers.data)),
          watchdog_(r.rank, std::move(peers.control), std::move(peers.who), timeout_s, program) {}

    void exchange(const char* what, std::span<const std::span<const std::byte>> out,
                  std::span<const std::span<std::byte>> in) override;
    void at_step(int64_t step) override { watchdog_.at_step(step); }
    void take_time(bool yes) override { watchdog_.take_time(yes); }
    void enter(const char* what) override { watchdog_.enter(what); }
    void leave() override { watchdog_.leave(); }
    bool fail(int exit_code, const std::string& message) override {
        return watchdog_.fail(exit_code, message);
    }

private:
    Transfer transfer(const char* what, std::span<const std::byte> part) const {
        Transfer t = {{calls_, (int64_t)part.size()}, (std::byte*)part.data(), 0, 0};
        t.size = part.empty() ? 0 : sizeof(Header) + part.size();
        std::strncpy(t.header.what, what, sizeof(t.header.what) - 1);
        return t;
    }
    void check_arrived(int rank, const Transfer& in, const Header& expected) const;

    std::vector<Socket> data_;
    int64_t calls_ = 0;  // of exchange()
    Watchdog watchdog_;
};

// of what has arrived so far
void TcpComm::check_arrived(int rank, const Transfer& in, const Header& expected) const {
    if (in.size == 0 || in.moved < sizeof(Header)) { return; }
    const char* who = watchdog_.name(rank).c_str();
    if (!in.header.same_call(expected)) {
        throw Error(kExitPeerLost,
                    fmt::format("ranks disagree: from {} comes {}; expected {}. Were all started with "
                                "the same program, options and data?",
                                who, in.header.text(), expected.text()));
    }
    if (!in.ends()) { return; }
    const uint64_t found = checksum(in.data, in.size - sizeof(Header));
    if (found != in.header.checksum) {
        throw Error(kExitPeerLost,
                    fmt::format("from {} comes {}, with other bits than were sent: found XXH3 {:016x}, "
                                "expected {:016x}. The network or a memory is at fault.",
                                who, expected.text(), (unsigned long long)found,
                                (unsigned long long)in.header.checksum));
    }
}

void TcpComm::exchange(const char* what, std::span<const std::span<const std::byte>> out,
                       std::span<const std::span<std::byte>> in) {
    require((int)out.size() == size() && (int)in.size() == size(), "Comm: a part for each rank");
    watchdog_.enter(what);
    calls_++;
    const auto me = (size_t)rank();
    Comm().exchange(what, out.subspan(me, 1), in.subspan(me, 1));
    std::vector<Transfer> sent, received;
    for (size_t r = 0; r < out.size(); r++) {
        sent.push_back(transfer(what, r == me ? std::span<const std::byte>() : out[r]));
        received.push_back(transfer(what, r == me ? std::span<const std::byte>() : in[r]));
        sent[r].header.checksum = checksum(sent[r].data, (size_t)sent[r].header.bytes);
    }
    const std::vector<Transfer> expected = received;
    for (;;) {
        std::vector<pollfd> fds;
        for (size_t r = 0; r < out.size(); r++) {
            Transfer &to = sent[r], &from = received[r];
            if (to.ends() && from.ends()) { continue; }
            const int fd = data_[r].fd();
            const size_t before = from.moved;
            const bool sends = to.move_some([&](const void* data, size_t bytes) {
                return send(fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
            });
            const bool receives =
                from.move_some([&](void* data, size_t bytes) { return recv(fd, data, bytes, MSG_DONTWAIT); });
            if (from.moved > before) { check_arrived((int)r, from, expected[r].header); }
            if (!sends || !receives) { watchdog_.lost((int)r); }
            if (to.ends() && from.ends()) { continue; }
            fds.push_back({fd, (short)((to.ends() ? 0 : POLLOUT) | (from.ends() ? 0 : POLLIN)), 0});
        }
        if (fds.empty()) { break; }
        poll(fds.data(), fds.size(), 1000);
    }
    watchdog_.leave();
}

}  // namespace

void Comm::exchange(const char*, std::span<const std::span<const std::byte>> out,
                    std::span<const std::span<std::byte>> in) {
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

std::unique_ptr<Comm> join_ranks(const Ranks& ranks, int timeout_s, const std::string& program) {
    return std::make_unique<TcpComm>(ranks, timeout_s, program, meet(ranks, timeout_s));
}

std::vector<int64_t> shares(int64_t n, int64_t chunk, int ranks) {
    const int64_t chunks = (n + chunk - 1) / chunk;
    std::vector<int64_t> begins;
    for (int64_t r = 0; r <= ranks; r++) { begins.push_back(std::min(n, chunks * r / ranks * chunk)); }
    return begins;
}

}  // namespace llmc

// How the ranks of a job meet over TCP: rank 0 listens, the others connect. Whoever lacks the job's token is turned away.
#pragma once
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/host/files/file_io.h"
#include "llmc/host/ranks/ranks.h"

namespace llmc {

// a TCP socket
class Socket {
public:
    explicit Socket(int fd = -1) : fd_(fd) {}
    int fd() const { return fd_; }
    bool open() const { return fd_ >= 0; }
    uint16_t port() const;  // this end's
    // All of it, waiting as long as the timeout allows; false if that fails or the other side has closed.
    bool send_all(const void* data, size_t bytes) const;
    bool receive_all(void* data, size_t bytes) const;
    void set_timeout(int seconds) const;  // 0 = none

    enum class Arrival { kNothing, kWhole, kClosed };
    // so many bytes if they are there, else none; never waits
    Arrival receive_if_whole(void* data, size_t bytes) const;

private:
    Descriptor fd_;
};

// A socket that listens at this port (0: any) of all addresses, or this host's own; not open if that failed: *why says how.
Socket listen_at(int port, bool local, std::string* why);

// a text in a message of fixed size: cut to fit, and read as far as it goes if whoever has sent it has not ended it
template <size_t N>
struct Chars {
    char bytes[N] = {};
    Chars() = default;
    Chars(std::convertible_to<std::string_view> auto const& text) { std::string_view(text).copy(bytes, N); }
    std::string_view view() const { return {bytes, strnlen(bytes, N)}; }
    bool operator==(const Chars&) const = default;
};

// Another rank. Rank 0 is connected to each, the others to rank 0: by two, so that watching need not wait for computing.
struct Peer {
    Socket control, data;
    std::string who;  // "rank 1 (process 123 on host)", as far as known, else "rank 1"
};

// Returns when all have met: the ranks by their numbers, this one too. Throws Error(kExitPeerLost) naming those that
// have not come in timeout_s seconds, Error(kExitUsage) if a rank of this number is there already or their numbers of
// ranks differ, and Error(128 + signal) if a stop is asked for meanwhile.
std::vector<Peer> meet(const Ranks& ranks, int timeout_s);

}  // namespace llmc

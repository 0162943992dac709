// How the ranks of a job find each other over TCP. Rank 0 listens; the others connect to it, and are told
// where the rest are. Whoever does not know the job's token is turned away.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "llmc/host/ranks/ranks.h"

namespace llmc {

// a TCP socket that closes itself
class Socket {
public:
    Socket() = default;
    explicit Socket(int fd) : fd_(fd) {}
    Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Socket& operator=(Socket&& other) noexcept {
        std::swap(fd_, other.fd_);
        return *this;
    }
    ~Socket();

    int fd() const { return fd_; }
    bool open() const { return fd_ >= 0; }
    // All of it, waiting as long as the socket's timeouts allow; false if that fails or the other side has
    // closed.
    bool send_all(const void* data, size_t bytes) const;
    bool receive_all(void* data, size_t bytes) const;
    void set_timeouts(int seconds) const;  // 0 = none
    uint16_t port() const;                 // this end's

private:
    int fd_ = -1;
};

// A socket that listens at this port (0: any) of all addresses, or of this host's own alone; not open if that
// failed, and *why says how.
Socket listen_at(int port, bool local, std::string* why);

// the text in a field of fixed size that another process has filled, and may not have ended
template <size_t N>
std::string_view text_in(const char (&field)[N]) {
    return {field, strnlen(field, N)};
}

// XXH3 of what ranks send each other: TCP's own sum is 16 bits, and of a packet's way between two hosts alone
uint64_t checksum(const void* data, size_t bytes);

// The connections of one rank, by the number of the rank at the other end. Two to rank 0, so that what
// watches over the ranks need not wait for what computes.
struct Peers {
    std::vector<Socket> control;   // of rank 0 to each other rank; of the others to rank 0 only
    std::vector<Socket> data;      // to each other rank
    std::vector<std::string> who;  // "rank 1 (process 123 on host)", as far as known, else "rank 1"
};

// Returns when all have met. Throws Error(kExitPeerLost) naming those that have not come in timeout_s
// seconds, Error(kExitUsage) if a rank of this number is there already or their numbers of ranks differ, and
// Error(128 + signal) if a stop is asked for meanwhile.
Peers meet(const Ranks& ranks, int timeout_s);

}  // namespace llmc

// A TCP socket that closes itself.
#pragma once
#include <cstddef>
#include <utility>

namespace llmc {

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
    void set_blocking(bool blocking) const;

private:
    int fd_ = -1;
};

}  // namespace llmc

// TCP sockets: see socket.h.
#include "llmc/host/ranks/socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>
#include <cerrno>

namespace llmc {

Socket::~Socket() {
    if (fd_ >= 0) { close(fd_); }
}

bool Socket::send_all(const void* data, size_t bytes) const {
    const char* at = static_cast<const char*>(data);
    while (bytes > 0) {
        ssize_t sent = send(fd_, at, bytes, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) { continue; }
        if (sent <= 0) { return false; }
        at += sent, bytes -= (size_t)sent;
    }
    return true;
}

bool Socket::receive_all(void* data, size_t bytes) const {
    char* at = static_cast<char*>(data);
    while (bytes > 0) {
        ssize_t got = recv(fd_, at, bytes, 0);
        if (got < 0 && errno == EINTR) { continue; }
        if (got <= 0) { return false; }
        at += got, bytes -= (size_t)got;
    }
    return true;
}

void Socket::set_timeouts(int seconds) const {
    timeval limit = {seconds, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

void Socket::set_blocking(bool blocking) const {
    int flags = fcntl(fd_, F_GETFL);
    fcntl(fd_, F_SETFL, blocking ? flags & ~O_NONBLOCK : flags | O_NONBLOCK);
}

}  // namespace llmc

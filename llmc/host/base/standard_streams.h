// Descriptors 0, 1 and 2, which a shell may have closed (`program >&-`).
#pragma once
#include <fcntl.h>
#include <unistd.h>

namespace llmc {

// Opens those that are closed on /dev/null. The first file that a program opens would otherwise get the number
// of its standard output, and what it prints. Call it first in main.
inline void open_standard_streams() {
    for (int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
        if (fcntl(fd, F_GETFD) < 0) { (void)!open("/dev/null", O_RDWR); }  // takes the lowest free number
    }
}

}  // namespace llmc

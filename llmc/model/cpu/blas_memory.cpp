// Room for OpenBLAS: see blas_memory.h.
#include "llmc/model/cpu/blas_memory.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>
#include <cstddef>

#include "llmc/host/base/error.h"

namespace llmc {

namespace {

constexpr size_t kBuffer = 128 << 20;  // bytes each, as Debian builds it; less in other builds
constexpr size_t kAtLoading = 2;       // buffers

// Instrumented code cannot run before the sanitizers have begun.
[[gnu::no_sanitize("address", "undefined")]] bool has_room(size_t bytes) {
    rlimit most;
    if (getrlimit(RLIMIT_AS, &most) != 0 || most.rlim_cur == RLIM_INFINITY) { return true; }
    void* room = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED) { return false; }
    munmap(room, bytes);
    return true;
}

constexpr char kNoRoom[] =
    "the address space is limited (ulimit -v), and too small for OpenBLAS, which would wait for ever. Allow "
    "more.\n";

[[gnu::no_sanitize("address", "undefined")]] void before_libraries(int, char**, char**) {
    if (has_room(kAtLoading * kBuffer)) { return; }
    (void)!write(STDERR_FILENO, kNoRoom, sizeof(kNoRoom) - 1);
    _exit(kExitDevice);
}

// the only code of a program that runs before that of its libraries
[[gnu::section(".preinit_array"), gnu::used]] void (*const kBeforeLibraries)(int, char**,
                                                                             char**) = before_libraries;

}  // namespace

void require_blas_memory(int threads) {
    if (has_room((size_t)threads * kBuffer)) { return; }
    throw Error(kExitDevice,
                fmt::format("the address space is limited (ulimit -v), and OpenBLAS needs {} MiB of it for "
                            "{} threads. Allow more, or use fewer threads (OMP_NUM_THREADS).",
                            (size_t)threads * kBuffer >> 20, threads));
}

}  // namespace llmc

// OpenBLAS takes buffers when it is loaded and when a thread first computes, and where there is no room for
// one it tries for ever. Under a limit on the address space (ulimit -v) that is said instead.
#pragma once

namespace llmc {

// Before the first product: room for the buffers of `threads` threads. Throws Error(kExitDevice). (The room
// that loading takes is looked at before that: the program then ends with exit code 4 before main.)
void require_blas_memory(int threads);

}  // namespace llmc

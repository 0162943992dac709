// Starts a job's ranks on this host.
#pragma once

namespace llmc {

// Starts `count` copies of this program with these arguments, each in a process group of its own, so that the
// terminal's Ctrl-C reaches this process alone; passes TERM, INT, HUP and USR1 on to each of them once, and
// stops and continues them with itself (Ctrl-Z). Returns the job's exit code when all have ended: that of
// rank 0, or the first that is not 0; kExitPeerLost if a signal killed one. Once one has failed, those that
// are stopped, or left after three seconds, are killed. If this process is killed, they are sent TERM.
// By default each gets its share of the cores for OpenMP: OMP_NUM_THREADS. Throws Error(kExitDevice) if the
// system starts no more processes. Call it before there are threads.
int launch_ranks(int count, char** argv);

}  // namespace llmc

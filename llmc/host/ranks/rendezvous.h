// How the ranks of a job find each other over TCP. Rank 0 listens; the others connect to it, and are told
// where the rest are. Whoever does not know the job's token is turned away.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "llmc/host/ranks/ranks.h"
#include "llmc/host/ranks/socket.h"

namespace llmc {

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

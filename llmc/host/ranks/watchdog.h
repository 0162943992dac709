// Why a job of many ranks must end, as rank 0 sees it: a rank ended without a word, gives no sign, or keeps others waiting.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "llmc/host/ranks/rendezvous.h"

namespace llmc {

// what a rank says it does
struct RankState {
    int64_t step = -1;       // of the run; -1: before the first
    int64_t calls = 0;       // of Comm, begun so far
    int32_t inside = 0;      // the last of them has not returned
    int32_t takes_time = 0;  // Comm::take_time()
    int32_t done = 0;        // goodbye
    Chars<44> what;          // the last call
};

// what is known of a rank
struct RankReport : RankState {
    std::string who;         // as Peer::who
    int64_t silent_ms = 0;   // since its last sign, or since it was gone
    int64_t waiting_ms = 0;  // in a call, while no rank was taking its time
    bool gone = false;       // its connection is closed
    bool deaf = false;       // nothing more can be sent to it
};

// Why the job must end, as `rank` sees it, which knows of all if it is rank 0, else of rank 0 only; "" = all is well.
std::string judge(const std::vector<RankReport>& ranks, int64_t timeout_ms, int rank = 0);

}  // namespace llmc

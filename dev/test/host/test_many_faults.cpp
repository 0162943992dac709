// Ranks that are killed or stopped at random moments. PLUMB_FAULTS=N in the environment: N of them.
#include <cstdlib>

#include "dev/test/support/rank_faults.h"

using namespace llmc;

TEST_CASE("many ranks and faults: a rank that is killed or stopped ends the job, which goes on as saved") {
    const char* given = std::getenv("PLUMB_FAULTS");
    RankFaults faults(train_program(), 3);
    faults.several(given != nullptr ? std::stoi(given) : 10);
    faults.check_against_straight_run();
}

TEST_CASE("many ranks and faults: a rank that fails itself ends the run in time, with its own words") {
    check_rank_that_fails(train_program());
}

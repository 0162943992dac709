// What is below dev/ is the evidence: all else builds and trains without it.
#include <doctest/doctest.h>

#include "dev/test/support/train_program.h"

using namespace llmc;

TEST_CASE("house: everything but the checks builds without dev/, and the trainer trains") {
    TempFolder f;
    train_program();
    const ProgramRun run = run_train(f.path(), {}, "dev/test/house.sh");
    CHECK_MESSAGE(run.exit_code == 0, run.out, run.err);
}

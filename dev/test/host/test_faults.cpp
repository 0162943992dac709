// Tests of what reads the tables of faults: one that is misread or that no longer fits the sources must not pass as
// a fault that was caught.
#include <filesystem>
#include <string>

#include <doctest/doctest.h>

#include "dev/test/support/test_files.h"
#include "dev/test/support/train_program.h"

using namespace llmc;

namespace {

const std::string kSource = "one\n  two\none more\n  two\nthree\nfour\nfour\nfour\n";

// a block with the lines to find and their replacement, for the file source.h of the working folder
std::string block(const std::string& changes, const std::string& keys = "expect: sum\n") {
    return "fault cpu-one: The sum is wrong.\nfile: source.h\n" + keys + changes;
}

// faults.pl with this one table
ProgramRun run_faults(const TempFolder& folder, const std::string& table, const Words& command) {
    std::filesystem::copy_file("dev/test/faults.pl", folder / "faults.pl",
                               std::filesystem::copy_options::overwrite_existing);
    std::filesystem::create_directories(folder / "room");
    write_bytes(folder / "room/faults.txt", table);
    write_bytes(folder / "source.h", kSource);
    return run_train(folder.path(), command, folder / "faults.pl");
}

void check_refused(const TempFolder& folder, const std::string& table, const std::string& message) {
    ProgramRun run = run_faults(folder, table, {"plant", "cpu-one", folder.path()});
    CHECK_MESSAGE(run.exit_code == 1, table);
    CHECK_MESSAGE(run.err.find(message) != std::string::npos, run.err);
    CHECK(read_bytes(folder / "source.h") == kSource);
}

}  // namespace

TEST_CASE("faults: whole lines are replaced, and every key is read") {
    TempFolder folder;
    ProgramRun run =
        run_faults(folder, block("-one\n-  two\n+1\n+\n+2\n"), {"plant", "cpu-one", folder.path()});
    CHECK(run.exit_code == 0);
    CHECK(read_bytes(folder / "source.h") == "1\n\n2\none more\n  two\nthree\nfour\nfour\nfour\n");
    run = run_faults(folder, block("-three\n"), {"plant", "cpu-one", folder.path()});
    CHECK(run.exit_code == 0);
    CHECK(read_bytes(folder / "source.h") == "one\n  two\none more\n  two\nfour\nfour\nfour\n");
    run = run_faults(folder, block("-one\n", "expect: a: b  expect: c\n"), {"get", "cpu-one", "expect"});
    CHECK(run.out == "a: b\nc\n");
}

TEST_CASE("faults: what does not fit the sources or the form is refused, and changes nothing") {
    TempFolder folder;
    check_refused(folder, block("-  two\n+2\n"), "faults.txt:1: the lines to find stand 2 times");
    check_refused(folder, block("-four\n+4\n"), "the lines to find stand 3 times");
    check_refused(folder, block("-four\n-four\n+4\n"), "the lines to find stand 2 times");
    check_refused(folder, block("-two\n+2\n"), "the lines to find stand 0 times");
    check_refused(folder, block("+2\n"), "'cpu-one' has no line to find");
    check_refused(folder, block("-one\n", ""), "'cpu-one' has no expect: line");
    check_refused(folder, block("-one\n+one\n"), "'cpu-one' changes nothing");
    check_refused(folder, block("-one\n", "expect: x\nfile: other.h\n"), "'cpu-one' has several file: lines");
    check_refused(folder, block("-one\n", "expect: x\narch: sm_70\n"), "'cpu-one' has arch: sm_70");
    check_refused(folder, block("-one\n", "expected: x\n"), "faults.txt:3: expected one of");
    check_refused(folder, block("-one\n") + "\n" + block("-one\n"), "there are two faults 'cpu-one'");
    check_refused(folder, "-one\n", "a block begins with 'fault NAME: what is wrong'");
    check_refused(folder, "fault gpu-x: x\nfile: source.h  expect: x\n-one\n",
                  "'gpu-x' has no program: line");
    check_refused(folder, "", "no fault is called 'cpu-one'");
}

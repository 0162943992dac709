// Everything that reads what comes from outside, as functions of bytes: for libFuzzer (run.sh) and for
// the test that bounds what they allocate (test_damage.cpp).
#pragma once
#include <string>
#include <vector>

namespace llmc {

struct ReaderUnderTest {
    const char* name;
    // Reads these bytes as a file (in a folder of its own) and uses what was read. Throws what the reader
    // throws, which must be an Error with exit code 2 or 3.
    void (*read)(const std::string& folder, const std::string& bytes);
    // bytes that are right, or nearly
    std::vector<std::string> (*seeds)(const std::string& folder);
};

const std::vector<ReaderUnderTest>& readers_under_test();

// Reads; throws std::logic_error if the reader does what it must not: an error with another exit code, or
// without a message that names the file.
void check_reader(const ReaderUnderTest& reader, const std::string& folder, const std::string& bytes);

}  // namespace llmc

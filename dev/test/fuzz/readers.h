// Everything that reads what comes from outside, as functions of bytes: for libFuzzer (run.sh) and for
// the test that bounds what they allocate (test_damage.cpp).
#pragma once
#include <functional>
#include <string>
#include <vector>

namespace llmc {

struct ReaderUnderTest {
    const char* name;
    std::string file;  // what the bytes are written to, in a folder of its own; "" = nothing
    // Reads that file or these bytes and uses what was read; of "" the path is the folder's, with a slash. Throws
    // what the reader throws, which must be an Error with exit code 2 or 3.
    void (*read)(const std::string& path, const std::string& bytes);
    // bytes that are right, or nearly
    std::function<std::vector<std::string>(const std::string& folder)> seeds;
};

const std::vector<ReaderUnderTest>& readers_under_test();

// Reads; throws std::logic_error if the reader does what it must not: an error with another exit code, or
// without a message that names the file.
void check_reader(const ReaderUnderTest& reader, const std::string& folder, const std::string& bytes);

}  // namespace llmc

// What tests of files share: a folder that goes away, files made byte by byte, the error that a call throws.
#pragma once
#include <stdlib.h>
#include <unistd.h>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <sstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "llmc/host/error.h"

namespace llmc {

// a new folder below $TMPDIR or /tmp, removed with what is in it
class TempFolder {
public:
    TempFolder() {
        const char* base = std::getenv("TMPDIR");
        path_ = std::string(base != nullptr && *base != '\0' ? base : "/tmp") + "/plumb_test_XXXXXX";
        if (mkdtemp(path_.data()) == nullptr) { throw Error(kExitUsage, path_ + ": cannot make it"); }
    }
    ~TempFolder() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    TempFolder(const TempFolder&) = delete;
    const std::string& path() const { return path_; }
    std::string operator/(const std::string& name) const { return path_ + "/" + name; }

private:
    std::string path_;
};

inline void write_bytes(const std::string& path, const std::string& bytes) {
    unlink(path.c_str());  // ext4 writes a file to the disk at once if it is truncated and filled again: 3 ms
    std::ofstream file(path, std::ios::binary);
    file.write(bytes.data(), (std::streamsize)bytes.size());
    file.close();
    if (!file) { throw Error(kExitUsage, path + ": cannot write this test file"); }
}

inline std::string read_bytes(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream bytes;
    bytes << file.rdbuf();
    return bytes.str();
}

// in place of what is there
inline void copy_folder(const std::string& from, const std::string& to) {
    std::filesystem::remove_all(to);
    std::filesystem::copy(from, to, std::filesystem::copy_options::recursive);
}

inline void flip_byte(const std::string& path, size_t at) {
    std::string bytes = read_bytes(path);
    bytes[at] = (char)(bytes[at] ^ 1);
    write_bytes(path, bytes);
}

// a header of 256 words, of which the first are given
inline std::string header_bytes(std::initializer_list<int32_t> words) {
    std::string bytes(1024, '\0');
    size_t at = 0;
    for (int32_t word : words) {
        std::memcpy(bytes.data() + at, &word, sizeof(word));
        at += sizeof(word);
    }
    return bytes;
}

inline std::string token_bytes(const std::vector<uint16_t>& tokens) {
    return {reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(uint16_t)};
}

// the llmc::Error that call() throws; exit code 0 if it throws none
template <typename Call>
Error error_of(Call&& call) {
    try {
        call();
    } catch (const Error& e) { return e; }
    return Error(kExitDone, "(no error)");
}

// the exit code, and that the message contains all of these
inline void check_error(const Error& error, int exit_code, std::initializer_list<std::string> parts) {
    const std::string message = error.what();
    CAPTURE(message);
    CHECK(error.exit_code == exit_code);
    for (const std::string& part : parts) {
        CAPTURE(part);
        CHECK(message.find(part) != std::string::npos);
    }
}

}  // namespace llmc

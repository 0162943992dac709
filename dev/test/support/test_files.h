// What tests of files share: a folder that goes away, files made byte by byte, the error that a call throws.
#pragma once
#include <pthread.h>
#include <sys/resource.h>
#include <algorithm>
#include <concepts>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "llmc/host/base/error.h"

namespace llmc {

namespace fs = std::filesystem;

// a new folder below $TMPDIR or /tmp, removed with what is in it
class TempFolder {
public:
    TempFolder();
    ~TempFolder();
    TempFolder(const TempFolder&) = delete;
    const std::string& path() const { return path_; }
    std::string operator/(const std::string& name) const { return path_ + "/" + name; }

private:
    std::string path_;
};

// of a TEST_CASE_FIXTURE
struct InFolder {
    TempFolder folder;
};

inline bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

// the text with `to` in the place of the first `from`, which must be there
std::string changed(std::string text, const std::string& from, const std::string& to);

// all of these are in the text
void check_holds(const std::string& text, std::initializer_list<std::string> parts);

void write_bytes(const std::string& path, const std::string& bytes);

std::string read_bytes(const std::string& path);

// in place of what is there
void copy_folder(const std::string& from, const std::string& to);

void flip_byte(const std::string& path, size_t at);

// a header of 256 words, of which the first are given
std::string header_bytes(std::initializer_list<int32_t> words);

std::string token_bytes(const std::vector<uint16_t>& tokens);

// the llmc::Error that call() throws; exit code 0 if it throws none
template <typename Call>
Error error_of(Call&& call) {
    try {
        call();
    } catch (const Error& e) { return e; }
    return Error(kExitDone, "(no error)");
}

// the exit code, and that the message contains all of these
void check_error(const Error& error, int exit_code, std::initializer_list<std::string> parts);
template <std::invocable Call>
void check_error(Call&& call, int exit_code, std::initializer_list<std::string> parts) {
    check_error(error_of(call), exit_code, parts);
}

using FileReader = Error (*)(const std::string& path);

// what a reader says of a file with these bytes, which must name it
void check_bytes(FileReader read, const std::string& bytes, std::initializer_list<std::string> parts);

// a header word that is wrong, and how the error must call it
struct WrongField {
    int word;
    std::vector<int32_t> values;
    std::string name, expected;
};

void check_fields(const std::string& good, const std::vector<WrongField>& fields, FileReader read);

// No file may grow over this many bytes while it lives: what a full disk looks like to a program. Nothing may
// be printed meanwhile, for that may go to a file.
class SmallFiles {
public:
    explicit SmallFiles(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
        getrlimit(RLIMIT_FSIZE, &before_);
        rlimit small = {bytes, before_.rlim_max};
        setrlimit(RLIMIT_FSIZE, &small);
    }
    ~SmallFiles() {
        setrlimit(RLIMIT_FSIZE, &before_);
        std::signal(SIGXFSZ, handler_);
    }
    SmallFiles(const SmallFiles&) = delete;

private:
    rlimit before_;
    void (*handler_)(int);
};

// From now on the system answers this process's calls of these numbers by the error; false: it takes no such filters.
bool refuse_calls(std::initializer_list<uint32_t> numbers, uint32_t error);

// No thread can be made while it lives: each would have a stack for which there is no room.
class NoThreads {
public:
    NoThreads() {
        pthread_attr_t huge;
        pthread_getattr_default_np(&usual_);
        pthread_getattr_default_np(&huge);
        pthread_attr_setstacksize(&huge, (size_t)1 << 47);
        pthread_setattr_default_np(&huge);
    }
    ~NoThreads() { pthread_setattr_default_np(&usual_); }
    NoThreads(const NoThreads&) = delete;

private:
    pthread_attr_t usual_;
};

}  // namespace llmc

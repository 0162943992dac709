#include "dev/test/support/test_files.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

namespace llmc {

TempFolder::TempFolder() {
    const char* base = std::getenv("TMPDIR");
    path_ = std::string(base != nullptr && *base != '\0' ? base : "/tmp") + "/plumb_test_XXXXXX";
    if (mkdtemp(path_.data()) == nullptr) { throw Error(kExitUsage, path_ + ": cannot make it"); }
}

TempFolder::~TempFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
}

std::string changed(std::string text, const std::string& from, const std::string& to) {
    const size_t at = text.find(from);
    REQUIRE_MESSAGE(at != std::string::npos, from, " in ", text);
    return text.replace(at, from.size(), to);
}

void check_holds(const std::string& text, std::initializer_list<std::string> parts) {
    for (const std::string& part : parts) { CHECK_MESSAGE(contains(text, part), part, " in ", text); }
}

bool refuse_calls(std::initializer_list<uint32_t> numbers, uint32_t error) {
    std::vector<sock_filter> filter = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
    for (uint32_t number : numbers) {
        filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1));
        filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error));
    }
    filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
    const sock_fprog program = {(unsigned short)filter.size(), filter.data()};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

void write_bytes(const std::string& path, const std::string& bytes) {
    unlink(path.c_str());  // ext4 writes a file to the disk at once if it is truncated and filled again: 3 ms
    std::ofstream file(path, std::ios::binary);
    file.write(bytes.data(), (std::streamsize)bytes.size());
    file.close();
    if (!file) { throw Error(kExitUsage, path + ": cannot write this test file"); }
}

std::string read_bytes(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream bytes;
    bytes << file.rdbuf();
    return bytes.str();
}

void copy_folder(const std::string& from, const std::string& to) {
    fs::remove_all(to);
    fs::copy(from, to, fs::copy_options::recursive);
}

void flip_byte(const std::string& path, size_t at) {
    std::string bytes = read_bytes(path);
    bytes[at] = (char)(bytes[at] ^ 1);
    write_bytes(path, bytes);
}

std::string header_bytes(std::initializer_list<int32_t> words) {
    std::string bytes(1024, '\0');
    size_t at = 0;
    for (int32_t word : words) {
        std::memcpy(bytes.data() + at, &word, sizeof(word));
        at += sizeof(word);
    }
    return bytes;
}

std::string token_bytes(const std::vector<uint16_t>& tokens) {
    return {reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(uint16_t)};
}

void check_error(const Error& error, int exit_code, std::initializer_list<std::string> parts) {
    const std::string message = error.what();
    CHECK_MESSAGE(error.exit_code == exit_code, message);
    check_holds(message, parts);
}

void check_bytes(FileReader read, const std::string& bytes, std::initializer_list<std::string> parts) {
    static const TempFolder folder;  // thousands take longer than the reading
    write_bytes(folder / "wrong.bin", bytes);
    const Error error = read(folder / "wrong.bin");
    check_error(error, kExitBadInput, {folder / "wrong.bin"});
    check_error(error, kExitBadInput, parts);
}

void check_fields(const std::string& good, const std::vector<WrongField>& fields, FileReader read) {
    for (const WrongField& field : fields) {
        for (int32_t value : field.values) {
            CAPTURE(field.name);
            std::string bytes = good;
            std::memcpy(bytes.data() + field.word * 4, &value, sizeof(value));
            check_bytes(read, bytes, {field.name, "found " + std::to_string(value), field.expected});
        }
    }
}

}  // namespace llmc

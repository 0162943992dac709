// libFuzzer's entry: FUZZ_READER=name (of readers.cpp) says what reads its inputs. dev/test/fuzz/run.sh
// builds and runs it.
#include <unistd.h>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "dev/test/fuzz/readers.h"
#include "llmc/host/base/error.h"

namespace {

const llmc::ReaderUnderTest* reader = nullptr;
std::string folder;

}  // namespace

// writes the seeds into FUZZ_SEEDS, which is among the folders of inputs
extern "C" int LLVMFuzzerInitialize(int*, char***) {
    const char *name = std::getenv("FUZZ_READER"), *seeds = std::getenv("FUZZ_SEEDS");
    for (const llmc::ReaderUnderTest& r : llmc::readers_under_test()) {
        if (name != nullptr && std::string(name) == r.name) { reader = &r; }
    }
    if (reader == nullptr) {
        for (const llmc::ReaderUnderTest& r : llmc::readers_under_test()) { std::printf("%s\n", r.name); }
        std::exit(2);
    }
    folder = "/tmp/plumb_fuzz_" + std::to_string(getpid());
    if (access("/dev/shm", W_OK) == 0) { folder = "/dev/shm" + folder.substr(4); }
    std::filesystem::create_directories(folder);
    std::atexit([] { std::filesystem::remove_all(folder); });
    int number = 0;
    for (const std::string& bytes : reader->seeds(folder)) {
        if (seeds == nullptr) { break; }
        std::ofstream file(std::string(seeds) + "/seed" + std::to_string(number++), std::ios::binary);
        file.write(bytes.data(), (std::streamsize)bytes.size());
    }
    return 0;
}

// what check_reader() throws is a finding
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    llmc::check_reader(*reader, folder, {reinterpret_cast<const char*>(data), size});
    return 0;
}

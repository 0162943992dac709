// The fault suite: what no fault may lose. A tenth of it unless --all; --seed N: another tenth; --json
// FILE: what was tried, for doc/measured/durable.json (rows of its cases); doctest's options work.
//   ./test_durable            ./test_durable --all --test-case="power*"
// Ends with a table of what was tried and what was lost.
#include <unistd.h>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define DOCTEST_CONFIG_IMPLEMENT
#define DOCTEST_CONFIG_NO_POSIX_SIGNALS  // a process that is sent a signal before it is the trainer has no tests
#include <doctest/doctest.h>

#include "dev/test/durability/small_run.h"
#include "llmc/host/base/resources.h"
#include "llmc/host/base/text.h"
#include "llmc/host/files/file_io.h"

int main(int argc, char** argv) {
    llmc::open_standard_streams();
    llmc::wait_politely(argv);
    // what nohup ignores would be ignored by the programs that are sent it, until they have begun
    for (int which : {SIGTERM, SIGINT, SIGHUP, SIGUSR1}) { std::signal(which, SIG_DFL); }
    setenv("OMP_NUM_THREADS", "1", 1);  // tiny models: a second thread only waits
    // in memory, where it can be: what a disk loses is worked out, not waited for
    if (access("/dev/shm", W_OK | X_OK) == 0) { setenv("TMPDIR", "/dev/shm", 0); }
    const char* json = nullptr;
    for (int i = 1; i < argc; i++) {
        if (std::strcmp(argv[i], "--all") == 0) { llmc::suite_part = 1; }
        if (i + 1 == argc) { break; }
        if (std::strcmp(argv[i], "--seed") == 0) {
            llmc::suite_seed = std::strtoull(argv[i + 1], nullptr, 10);
        }
        if (std::strcmp(argv[i], "--json") == 0) { json = argv[i + 1]; }
    }
    doctest::Context context(argc, argv);
    const int failed = context.run();
    int64_t tried = 0, lost = 0;
    std::string rows;
    for (const llmc::Reported& r : llmc::reported()) {
        tried += r.tried;
        lost += r.lost;
        rows += fmt::format("{}  {{\"fault\": \"{}\", \"tried\": {}, \"lost\": {}, \"note\": \"{}\"}}",
                            rows.empty() ? "" : ",\n", r.what, r.tried, r.lost, r.note);
    }
    if (json != nullptr) { llmc::write_text_file(json, "[\n" + rows + "\n]\n"); }
    std::printf("%lld faults tried, %lld lost something\n", (long long)tried, (long long)lost);
    return failed;
}

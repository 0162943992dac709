// The fault suite: what no fault may lose. A tenth of it or less unless --all; --seed N: another tenth; --json
// FILE: what was tried, for doc/measured/durable.json (rows of its cases); doctest's options work.
//   ./test_durable            ./test_durable --all --test-case="power*"
// Ends with a table of what was tried and what was lost.
#include <unistd.h>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#define DOCTEST_CONFIG_IMPLEMENT
#define DOCTEST_CONFIG_NO_POSIX_SIGNALS  // a process that is sent a signal before it is the trainer has no tests

#include "dev/test/durability/small_run.h"
#include "llmc/host/base/resources.h"
#include "llmc/host/base/text.h"
#include "llmc/host/files/file_io.h"
#include "llmc/host/tokens/dataloader.h"
#include "llmc/model/formats/checkpoint.h"

namespace llmc {

namespace {

int64_t all_tried = 0, all_lost = 0;
std::string all_rows;  // of JSON

}  // namespace

void report(const std::string& what, int64_t tried, int64_t lost, const std::string& note) {
    all_tried += tried;
    all_lost += lost;
    all_rows += fmt::format("{}  {{\"fault\": \"{}\", \"tried\": {}, \"lost\": {}, \"note\": \"{}\"}}",
                            all_rows.empty() ? "" : ",\n", what, tried, lost, note);
    std::printf("%-44s %7lld tried, %lld lost%s%s\n", what.c_str(), (long long)tried, (long long)lost,
                note.empty() ? "" : "; ", note.c_str());
    std::fflush(stdout);
}

void try_each(const std::string& what, int64_t n, const std::function<std::string(int64_t)>& body,
              const std::function<std::string()>& note) {
    std::atomic<int64_t> next{(int64_t)(suite_seed % (uint64_t)suite_part)}, tried = 0, lost = 0;
    std::exception_ptr first;
    std::mutex mutex;
    std::vector<std::thread> workers;
    for (unsigned k = 0; k < std::max(1u, std::thread::hardware_concurrency()); k++) {
        workers.emplace_back([&] {
            for (int64_t i; (i = next.fetch_add(suite_part)) < n;) {
                try {
                    tried++;
                    const std::string wrong = body(i);
                    if (wrong.empty()) { continue; }
                    lost++;
                    FAIL_CHECK(what, ", ", i, ": ", wrong);
                } catch (...) {
                    std::lock_guard lock(mutex);
                    if (!first) { first = std::current_exception(); }
                    next = n;
                }
            }
        });
    }
    for (std::thread& worker : workers) { worker.join(); }
    if (first) { std::rethrow_exception(first); }
    report(what, tried, lost, note ? note() : "");
}

Workshop::Workshop() {
    for (int i = 0; i < 3; i++) {
        write_token_shard(*this / fmt::format("tr_{}.bin", i),
                          learnable_tokens(12 + 7 * i, 3, (uint64_t)i + 1), 257);
    }
    write_token_shard(*this / "va.bin", learnable_tokens(4, 3, 9), 257);
}

std::string Workshop::streams(const std::string& run) const {
    std::string folder = *this / run + ".streams";
    fs::create_directories(folder);
    return folder;
}

Words Workshop::command(const std::string& run, const std::string& more) const {
    Words all =
        merged(words("--train-data " + *this / "tr_?.bin --val-data " + *this / "va.bin " +
                     "--layers 1 --heads 1 --channels 16 --batch 2 --seq-len 32 --total-batch 128 --lr 0.01 "
                     "--warmup 2 --val-every 3 --sample-every 0 --steps 6 --save-every 2 --out " +
                     *this / run),
               words(more));
    all.insert(all.begin(), train_program());
    return all;
}

ProgramRun Workshop::train(const std::string& run, const std::string& more) const {
    Words all = command(run, more);
    return run_train(streams(run), Words(all.begin() + 1, all.end()), all[0]);
}

Traced Workshop::traced(const std::string& run, const std::string& more, const Injection& injection,
                        bool with_data) const {
    return run_traced(command(run, more), streams(run), *this / run, injection, with_data);
}

ProgramRun Workshop::result_of(const std::string& run, int exit_code) const {
    return {exit_code, read_bytes(streams(run) + "/stdout"), read_bytes(streams(run) + "/stderr")};
}

Reference::Reference(const std::string& run_folder)
    : model(read_bytes(run_folder + "/model.bin")), log(read_log(run_folder)) {}

std::string Reference::difference(const std::string& run_folder) const {
    if (read_bytes(run_folder + "/model.bin") != model) { return "another model.bin"; }
    std::istringstream text(read_bytes(run_folder + "/log.jsonl"));
    std::vector<Json> found;
    for (std::string line; std::getline(text, line);) {
        Json parsed = Json::parse(line, nullptr, false);
        if (!parsed.is_object() || text.eof()) { return "the log has a line that is none: " + line; }
        if (!parsed.contains("event")) { found.push_back(without_times(parsed)); }
    }
    if (found != log) { return fmt::format("the log has {} lines, or others: {}", found.size(), log.size()); }
    std::error_code ignored;
    for (const auto& entry : fs::recursive_directory_iterator(run_folder, ignored)) {
        const std::string name = entry.path().filename().string();
        if (name.find(".tmp-") != name.npos || name.ends_with(kReplaced)) { return "left over: " + name; }
    }
    return "";
}

int64_t resumed_from(const std::string& out) {
    const std::string mark = "weights    | ";
    size_t at = out.find(mark);
    std::string from = at == std::string::npos ? "" : out.substr(at, out.find('\n', at) - at);
    size_t step = from.rfind("step_");
    return step == std::string::npos ? 0 : std::stoll(from.substr(step + 5));
}

}  // namespace llmc

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
    if (json != nullptr) { llmc::write_text_file(json, "[\n" + llmc::all_rows + "\n]\n"); }
    std::printf("%lld faults tried, %lld lost something\n", (long long)llmc::all_tried,
                (long long)llmc::all_lost);
    return failed;
}

#include "dev/test/support/train_program.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmath>
#include <cstdlib>
#include <sstream>

#include "llmc/host/base/philox.h"
#include "llmc/host/options/choices.h"
#include "llmc/host/tokens/dataloader.h"

namespace llmc {

Words lines_with(const std::string& text, const std::string& part) {
    Words found;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) {
        if (contains(line, part)) { found.push_back(line); }
    }
    return found;
}

Words words(const std::string& text) { return split_words(text); }

std::string program_path(const std::string& name) {
    const char* folder = std::getenv("PLUMB_BIN_DIR");
    return std::string(folder != nullptr ? folder : ".") + "/" + name;
}

std::string train_program() {
    std::string path = program_path("train_gpt2");
    REQUIRE_MESSAGE(access(path.c_str(), X_OK) == 0, path, " is missing: run `make train_gpt2`");
    return path;
}

pid_t start_prepared(const std::string& folder, const Words& options, const std::function<void()>& prepare,
                     const std::string& program) {
    Words all = {program};
    all.insert(all.end(), options.begin(), options.end());
    std::vector<char*> argv;
    for (std::string& word : all) { argv.push_back(word.data()); }
    argv.push_back(nullptr);
    std::string out = folder + "/stdout", err = folder + "/stderr";
    pid_t pid = fork();
    if (pid == 0) {  // between fork and exec only calls that are safe in a copy of a program with threads
        setenv("OMP_NUM_THREADS", "1", 1);  // tiny models: a second thread only waits
        bool ready = dup2(open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDOUT_FILENO) >= 0 &&
                     dup2(open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO) >= 0;
        prepare();
        if (ready) { execv(argv[0], argv.data()); }
        _exit(127);
    }
    REQUIRE(pid > 0);
    return pid;
}

pid_t start_train(const std::string& folder, const Words& options, const std::string& program) {
    return start_prepared(
        folder, options, [] {}, program);
}

ProgramRun finish_train(const std::string& folder, pid_t pid, const std::function<bool()>& hangs) {
    int status = 0;
    pid_t ended = 0;
    for (int ms = 0; ms < 300'000 && ended == 0; ms++) {
        ended = waitpid(pid, &status, WNOHANG);
        if (ended == 0 && hangs && ms >= 15'000 && ms % 1000 == 0 && hangs()) { break; }
        if (ended == 0) { usleep(1000); }
    }
    if (ended == 0) {
        kill(pid, SIGKILL);
        ended = waitpid(pid, &status, 0);
        FAIL_CHECK("a program hangs");
    }
    REQUIRE(ended == pid);
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return {code, read_bytes(folder + "/stdout"), read_bytes(folder + "/stderr")};
}

ProgramRun run_train(const std::string& folder, const Words& options, const std::string& program) {
    return finish_train(folder, start_train(folder, options, program));
}

ProgramRun run_well(const std::string& folder, const Words& options, const std::string& program) {
    ProgramRun run = run_train(folder, options, program);
    REQUIRE_MESSAGE(run.exit_code == kExitDone, run.out, run.err);
    return run;
}

void check_run(const ProgramRun& run, int exit_code, const Words& says, const Words& prints) {
    CHECK_MESSAGE(run.exit_code == exit_code, run.out, run.err);
    for (const std::string& part : says) { CHECK_MESSAGE(contains(run.err, part), part, " in ", run.err); }
    for (const std::string& part : prints) { CHECK_MESSAGE(contains(run.out, part), part, " in ", run.out); }
}

void wait_until(const std::function<bool()>& condition) {
    for (int wait = 0; wait < 60'000 && !condition(); wait++) { usleep(1000); }
    REQUIRE(condition());
}

void default_signals() {
    for (int which : {SIGTERM, SIGINT, SIGHUP, SIGUSR1}) { std::signal(which, SIG_DFL); }
}

std::vector<uint16_t> learnable_tokens(int documents, int sentences, uint64_t seed) {
    std::vector<uint16_t> tokens;
    for (int i = 0; i < documents * sentences; i++) {
        if (i % sentences == 0) { tokens.push_back(256); }
        std::string digit = std::to_string(random_bits(seed, RandomUse::kFixture, 0, 0, i)[0] % 10);
        for (unsigned char c : "cat " + digit + " sat " + digit + ". ") { tokens.push_back(c); }
    }
    tokens.push_back(256);
    return tokens;
}

double learnable_entropy(int sentences) { return sentences * std::log(10.0) / (kSentence * sentences + 1); }

Words merged(const Words& usual, const Words& more) {
    Words all;
    bool replaced = false;
    for (const std::string& word : usual) {
        if (word.starts_with("--")) { replaced = std::find(more.begin(), more.end(), word) != more.end(); }
        if (!replaced) { all.push_back(word); }
    }
    all.insert(all.end(), more.begin(), more.end());
    return all;
}

Words tiny_run(const std::string& folder, const std::string& more) {
    return merged(words("--train-data " + folder + "/train.bin --val-data " + folder +
                        "/val.bin --layers 2 --heads 2 --channels 16 --seq-len 12"),
                  words(more));
}

void write_tiny_data(const std::string& folder) {
    write_token_shard(folder + "/train.bin", learnable_tokens(40, 3, 1), 257);
    write_token_shard(folder + "/val.bin", learnable_tokens(6, 3, 2), 257);
}

Json without_times(Json line) {
    for (const char* name : {"ms", "tokens_per_s", "seconds", "utilisation", "memory", "time"}) {
        line.erase(name);
    }
    return line;
}

std::vector<Json> read_log(const std::string& run_folder, bool with_times) {
    std::string bytes = read_bytes(run_folder + "/log.jsonl");
    // a line across two pages of the file is there in two parts for a moment
    for (int wait = 0; wait < 1000 && !bytes.empty() && bytes.back() != '\n'; wait++) {
        usleep(1000);
        bytes = read_bytes(run_folder + "/log.jsonl");
    }
    std::istringstream in(bytes);
    std::vector<Json> lines;
    for (std::string line; std::getline(in, line);) {
        CHECK_MESSAGE(!in.eof(), "the last line has no end: ", line);
        Json parsed = Json::parse(line, nullptr, false);
        REQUIRE_MESSAGE(parsed.is_object(), line);
        if (parsed.contains("event")) { continue; }
        lines.push_back(with_times ? parsed : without_times(parsed));
    }
    return lines;
}

bool same_files(const std::string& a, const std::string& b) { return read_bytes(a) == read_bytes(b); }

Words names_below(const std::string& folder, const std::string& start) {
    Words names;
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(folder, ignored)) {
        std::string name = entry.path().filename().string();
        if (name != ".lock" && name.starts_with(start)) { names.push_back(name); }
    }
    std::sort(names.begin(), names.end());
    return names;
}

std::string Runs::step(const std::string& out, int64_t n) const {
    return folder / fmt::format("{}/step_{:08}", out, n);
}

Words Runs::options(const std::string& out, const std::string& more) const {
    Words all = merged(merged(tiny_run(folder.path(), "--out " + folder / out), words(usual)), words(more));
    if (std::find(all.begin(), all.end(), "--model") == all.end()) { return all; }
    for (const char* shape : {"--layers", "--heads", "--channels"}) {  // the model's
        auto at = std::find(all.begin(), all.end(), shape);
        all.erase(at, at + 2);
    }
    return all;
}

pid_t Runs::start(const std::string& out, const std::string& more) const {
    return start_prepared(folder.path(), options(out, more), default_signals);
}

ProgramRun Runs::run(const std::string& out, const std::string& more) const {
    return run_train(folder.path(), options(out, more));
}

ProgramRun Runs::train(const std::string& out, const std::string& more) const {
    ProgramRun ended = run(out, more);
    check_run(ended, kExitDone);
    return ended;
}

void Runs::check_same(const std::string& out, const std::string& other) const {
    CAPTURE(out);
    CHECK(same_files(folder / out + "/model.bin", folder / other + "/model.bin"));
    CHECK((read_log(folder / out) == read_log(folder / other)));
}

}  // namespace llmc

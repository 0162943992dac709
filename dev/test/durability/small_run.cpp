// What the stages of the fault suite share: see small_run.h.
#include "dev/test/durability/small_run.h"

#include <atomic>
#include <exception>
#include <thread>

#include "llmc/host/tokens/dataloader.h"
#include "llmc/model/formats/checkpoint.h"

namespace llmc {

namespace fs = std::filesystem;

std::vector<Reported>& reported() {
    static std::vector<Reported> all;
    return all;
}

void report(const std::string& what, int64_t tried, int64_t lost, const std::string& note) {
    reported().push_back({what, note, tried, lost});
    std::printf("%-44s %7lld tried, %lld lost%s%s\n", what.c_str(), (long long)tried, (long long)lost,
                note.empty() ? "" : "; ", note.c_str());
    std::fflush(stdout);
}

void side_by_side(int64_t n, const std::function<void(int64_t)>& body) {
    std::atomic<int64_t> next{0};
    std::exception_ptr first;
    std::mutex mutex;
    std::vector<std::thread> workers;
    for (unsigned k = 0; k < std::max(1u, std::thread::hardware_concurrency()); k++) {
        workers.emplace_back([&] {
            for (int64_t i; (i = next++) < n;) {
                try {
                    body(i);
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
    const std::string save_every = more.find("--save-every") == more.npos ? " --save-every 2" : "";
    Words all = words("--train-data " + *this / "tr_?.bin --val-data " + *this / "va.bin " +
                      "--layers 1 --heads 1 --channels 16 --batch 2 --seq-len 32 --total-batch 128 --lr 0.01 "
                      "--warmup 2 --val-every 3 --sample-every 0 --steps 6 --out " +
                      *this / run + save_every + " " + more);
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

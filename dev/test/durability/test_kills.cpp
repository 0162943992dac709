// Kills, errors of the system and signals: at every system call of a run, and of every program that writes files, that
// touches its folder; and at random moments of everything that a run does.
#include <cerrno>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <random>

#include "dev/test/durability/small_run.h"
#include "llmc/host/tokens/dataloader.h"
#include "llmc/model/formats/checkpoint.h"
#include "llmc/model/run/folder.h"

using namespace llmc;

namespace {

// how a run that is disturbed begins, and how it goes on afterwards
struct Scenario {
    const char* name;
    const char* more;
    int made;                 // steps that an earlier run in the folder has made
    bool damaged;             // and its newest checkpoint is damaged
    const char* before = "";  // more for the earlier run
};
const Scenario kScenarios[] = {
    {"a new run, --keep 1", "--keep 1", 0, false},
    {"a new run, --keep 3 --keep-best", "--keep 3 --keep-best", 0, false},
    {"a new run, --keep 1, saved in the background", "--keep 1 --save-mode async", 0, false},
    {"a run that goes on, its newest checkpoint damaged", "--keep 1 --resume auto", 4, true},
    // its first validation is the best so far, of a step that has a checkpoint
    {"a run that saves a step again", "--keep 1 --save-every 3 --keep-best --resume auto", 3, false,
     "--save-every 3"},
};

class Stage {
public:
    explicit Stage(const Scenario& scenario) : s_(scenario) {
        fs::create_directory(shop_ / "before");
        if (s_.made > 0) {
            // the learning rate is that of all six steps
            REQUIRE(shop_.train("before", s_.before).exit_code == kExitDone);
            fs::remove(shop_ / "before/model.bin");
            fs::remove_all(shop_ / "before/step_00000006");
            if (s_.damaged) { flip_byte(shop_ / "before/step_00000004/optimizer.safetensors", 5000); }
        }
        prepare("reference");
        Traced whole = shop_.traced("reference", s_.more, {});
        REQUIRE(whole.exit_code == kExitDone);
        calls_ = whole.calls;
        reference_ = std::make_unique<Reference>(shop_ / "reference");
    }
    const std::vector<Call>& calls() const { return calls_; }

    void prepare(const std::string& run) const {
        if (s_.made > 0) { copy_folder(shop_ / "before", shop_ / run); }
    }
    // disturbs a run; then it must go on to what it would have been. Returns what is wrong, "" = nothing.
    std::string try_one(const std::string& run, const Injection& injection) const {
        prepare(run);
        Traced traced = shop_.traced(run, s_.more, injection);
        ProgramRun first = shop_.result_of(run, traced.exit_code);
        std::string wrong = judge_first(first, injection);
        const int64_t durable = newest_renamed(traced.calls);
        const std::string on = std::string(s_.more) + (s_.made > 0 ? "" : " --resume auto");
        ProgramRun second = shop_.train(run, on);
        if (second.exit_code != kExitDone) {
            wrong += fmt::format("; going on ends with {}: {}", second.exit_code, second.err);
        } else if (resumed_from(second.out) < durable) {
            wrong +=
                fmt::format("; step {} was saved, but it went on from {}", durable, resumed_from(second.out));
        } else if (std::string difference = reference_->difference(shop_ / run); !difference.empty()) {
            wrong += "; " + difference;
        }
        fs::remove_all(shop_ / run);
        return wrong.empty() ? "" : describe(traced.calls, injection) + wrong;
    }

private:
    // a run with a fault says so or comes to the same: no other way to end
    std::string judge_first(const ProgramRun& run, const Injection& injection) const {
        if (injection.fault == Fault::kKill || injection.fault == Fault::kTorn) { return ""; }
        const int codes[] = {kExitDone, kExitUsage, kExitBadInput, kExitDevice, kExitSaveFailed};
        if (std::find(std::begin(codes), std::end(codes), run.exit_code) == std::end(codes)) {
            return fmt::format(": it ends with {}: {}", run.exit_code, run.err);
        }
        // a silent run must have trained
        const bool said = run.exit_code != kExitDone || contains(run.out, "FAILED") || !run.err.empty();
        return said || contains(run.out, "trained ") ? "" : ": it says nothing and did not train";
    }

    // the last step whose checkpoint had got its name
    int64_t newest_renamed(const std::vector<Call>& calls) const {
        int64_t newest = s_.made > 0 ? (s_.damaged ? s_.made - 2 : s_.made) : 0;
        for (const Call& c : calls) {
            const std::string to = fs::path(c.to).filename().string();
            if (c.name == "rename" && c.succeeded && to.starts_with("step_") && to.size() == 13) {
                newest = std::max<int64_t>(newest, std::stoll(to.substr(5)));
            }
        }
        return newest;
    }
    std::string describe(const std::vector<Call>& calls, const Injection& injection) const {
        const Call& c = calls[std::min(calls.size(), (size_t)injection.at) - 1];
        return fmt::format("{}: call {}, {} {} {}, fault {}, error {}", s_.name, injection.at, c.name, c.path,
                           c.to, (int)injection.fault, injection.error);
    }

    const Scenario& s_;
    Workshop shop_;
    std::vector<Call> calls_;
    std::unique_ptr<Reference> reference_;
};

// in every scenario, at every system call, what add(call, its number, &all) gives for it
template <typename Add>
void try_all(const std::string& what, const Add& add) {
    if (!can_trace()) { return; }
    for (const Scenario& scenario : kScenarios) {
        const Stage stage(scenario);
        std::vector<Injection> all;
        for (size_t i = 0; i < stage.calls().size(); i++) { add(stage.calls()[i], (int64_t)i + 1, &all); }
        // of new runs, whose calls are nearly the same, each takes a third of what is tried
        if (suite_part > 1 && scenario.made == 0) {
            const int64_t third = &scenario - kScenarios;
            std::erase_if(all, [&](const Injection& one) { return one.at % 3 != third; });
        }
        try_each(fmt::format("{}: {}", what, scenario.name), (int64_t)all.size(),
                 [&](int64_t i) { return stage.try_one(fmt::format("run{}", i), all[(size_t)i]); });
    }
}

}  // namespace

TEST_CASE("kill: at every system call of a run and in the middle of every write") {
    try_all("kill", [](const Call& c, int64_t at, std::vector<Injection>* all) {
        all->push_back({Fault::kKill, at});
        if (c.name == "write" && c.bytes > 1) { all->push_back({Fault::kTorn, at}); }
    });
}

TEST_CASE("error: of the system, at every system call") {
    const std::map<std::string, std::vector<int>> errors = {{"write", {ENOSPC, EINTR}},
                                                            {"create", {ENOSPC}},
                                                            {"mkdir", {ENOSPC}},
                                                            {"open", {EIO, EMFILE}},
                                                            {"flock", {EINTR}}};
    try_all("error", [&](const Call& c, int64_t at, std::vector<Injection>* all) {
        auto found = errors.find(c.name);
        for (int error : found != errors.end() ? found->second : std::vector<int>{EIO}) {
            all->push_back({Fault::kError, at, error});
        }
        if (c.name == "write" && c.bytes > 1) { all->push_back({Fault::kShort, at}); }
        // a disk that is full from here on
        if (c.name == "write") { all->push_back({Fault::kError, at, ENOSPC, true}); }
    });
}

// ---- writers -----------------------------------------------------------------------------------

namespace {

struct Writer {
    const char* name;
    std::string command;     // up to the folder that it writes to
    const char* file = "";   // there
    bool same_bytes = true;  // false: times are in its files, and only their names can be compared
};

using Files = std::map<std::string, std::string>;  // by name

Files files_below(const std::string& folder, bool with_bytes) {
    Files files;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
        const std::string name = fs::relative(entry.path(), folder).string();
        if (name == ".lock" || name.starts_with("log.jsonl.unsaved")) { continue; }
        files[name] = with_bytes && entry.is_regular_file() ? read_bytes(entry.path().string()) : "";
    }
    return files;
}

std::string names_of(const Files& files) {
    std::string all;
    for (const auto& [name, bytes] : files) { all += fmt::format(" {} ({})", name, bytes.size()); }
    return all;
}

// a trained model, texts and questions, from which the programs make their files
class Sources {
public:
    Sources() {
        REQUIRE(shop_.train("run", "").exit_code == kExitDone);
        std::string text;
        for (int i = 0; i < 40; i++) { text += fmt::format("cat {} sat {}.\n\n", i % 10, i % 10); }
        write_bytes(shop_ / "text.txt", text);
        write_bytes(shop_ / "questions.jsonl",
                    "{\"ind\": 1, \"ctx\": \"A cat\", \"label\": 2, \"endings\": [\"sat.\", \"ran.\", "
                    "\"ate it.\", \"is.\"]}\n");
        fs::create_directory(shop_ / "bpe");
        const Words make = words(shop_ / "text.txt --val-fraction 0 --tokenizer dev/test/fixture/bpe --out " +
                                 shop_ / "bpe/t");
        run_well(shop_ / "bpe", make, program_path("data/make_shards"));
    }
    std::vector<Writer> writers() const {
        const auto data = [](const char* name) { return program_path(std::string("data/") + name) + " "; };
        return {{"export", train_program() + " export " + shop_ / "run --force --hf "},
                {"report", train_program() + " report " + shop_ / "run --out ", "/page.html"},
                {"make_shards",
                 data("make_shards") + shop_ / "text.txt --shard-tokens 256 --val-fraction 0.2 --out ", "/t"},
                {"make_hellaswag", data("make_hellaswag") + shop_ / "questions.jsonl --out ", "/h.bin"},
                {"make_corpus", data("make_corpus") + "--train-bytes 10000 --val-bytes 10000 --out "},
                {"a run with a tokenizer",
                 train_program() + " --train-data " +
                     shop_ / "bpe/t_train_000000.bin --val-data none --layers 1 " +
                     "--heads 1 --channels 8 --batch 1 --seq-len 16 --steps 2 --lr 0.01 --warmup 0 "
                     "--sample-every 0 --tokenizer dev/test/fixture/bpe --resume auto --out ",
                 "", false}};
    }
    std::string operator/(const std::string& name) const { return shop_ / name; }

    Traced start(const Writer& writer, const std::string& name, const Injection& injection) const {
        fs::create_directories(shop_ / (name + ".streams"));
        fs::create_directories(shop_ / name);
        return run_traced(words(writer.command + shop_ / name + writer.file), shop_ / (name + ".streams"),
                          shop_ / name, injection);
    }

private:
    Workshop shop_;
};

// kills the program there and starts it again; "" = it leaves what it should
std::string try_kill(const Sources& from, const Writer& writer, const Files& expected,
                     const std::string& name, const Injection& injection) {
    const Traced killed = from.start(writer, name, injection), again = from.start(writer, name, {});
    const Files found = files_below(from / name, writer.same_bytes);
    fs::remove_all(from / name);
    if (again.exit_code == kExitDone && found == expected) { return ""; }
    const Call& c = killed.calls.back();
    return fmt::format("{}, killed at call {} ({} {}): started again it ends with {} and leaves{}",
                       writer.name, injection.at, c.name, c.path, again.exit_code, names_of(found));
}

}  // namespace

TEST_CASE("writers: killed at every system call, the next start leaves what it should and sweeps the rest") {
    if (!can_trace()) { return; }
    const Sources from;
    for (const Writer& writer : from.writers()) {
        const Traced whole = from.start(writer, "whole", {});
        REQUIRE_MESSAGE(whole.exit_code == kExitDone, writer.name, read_bytes(from / "whole.streams/stderr"));
        const Files expected = files_below(from / "whole", writer.same_bytes);
        REQUIRE_FALSE(expected.empty());
        fs::remove_all(from / "whole");
        try_each(fmt::format("kill: {}, temporaries", writer.name), 2 * (int64_t)whole.calls.size(),
                 [&](int64_t i) {
                     const Injection injection = {i % 2 == 0 ? Fault::kKill : Fault::kTorn, i / 2 + 1};
                     return try_kill(from, writer, expected, fmt::format("kill{}", i), injection);
                 });
    }
}

TEST_CASE("writers: killed while it replaces another set of files, a program leaves no mixture to read") {
    if (!can_trace()) { return; }
    const Sources from;
    const std::string corpus = program_path("data/make_corpus") + " --train-bytes 10000 --val-bytes 2000",
                      exports = train_program() + " export " + (from / "run") + " --force";
    struct Replacement {
        Writer was, is;
        const char* key;  // nobody reads the other files without it
    };
    const Replacement all[] = {
        {{"", corpus + " --out "}, {"", corpus + " --seed 2 --out "}, "val.bin"},
        {{"", exports + " --hf "}, {"", exports + " --type bf16 --hf "}, "config.json"}};
    for (const Replacement& r : all) {
        REQUIRE(from.start(r.was, "was", {}).exit_code == kExitDone);
        const Files was = files_below(from / "was", true);
        copy_folder(from / "was", from / "is");
        const Traced whole = from.start(r.is, "is", {});
        const Files is = files_below(from / "is", true);
        int usable = 0;
        for (size_t at = 1; at <= whole.calls.size(); at++) {
            copy_folder(from / "was", from / "killed");
            from.start(r.is, "killed", {Fault::kKill, (int64_t)at});
            Files found = files_below(from / "killed", true);
            std::erase_if(found, [](const auto& file) { return contains(file.first, ".tmp-"); });
            if (!found.contains(r.key) || contains(found[r.key], "not finished")) { continue; }
            usable++;
            for (const auto& [name, bytes] : found) {
                const Files& set = found[r.key] == is.at(r.key) ? is : was;
                const bool same = bytes == set.at(name);
                CHECK_MESSAGE(
                    same, fmt::format("{}: killed at call {} it leaves another set's {}", r.key, at, name));
            }
        }
        CHECK(usable > 0);
        for (const char* name : {"was", "is", "killed"}) { fs::remove_all(from / name); }
    }
}

// ---- at random moments -------------------------------------------------------------------------

namespace {

struct Phase {
    const char* name;
    const char* more;
    const char* sign;  // in the log, when it may begin; "" = at once
};
// one of each takes long, and the signal comes in it
const Phase kPhases[] = {
    {"start", "--steps 100000000 --val-data none", ""},
    {"steps", "--steps 100000000 --val-data none", "train_loss"},
    {"micro-batches", "--steps 1000000 --total-batch 1638400 --val-data none", "line"},
    {"validation", "--steps 1000000 --val-every 1", "train_loss"},
    {"samples", "--steps 1000000 --val-data none --sample-every 1 --sample-tokens 100000", "train_loss"},
    {"saving", "--steps 100000000 --val-data none --save-every 1 --keep 2", "train_loss"},
    {"saving in the background",
     "--steps 100000000 --val-data none --save-every 1 --keep 2 --save-mode async", "train_loss"},
    {"the end", "--steps 1", "train_loss"}};
const int kSignals[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1};

int64_t steps_in_log(const std::string& run) {
    return std::ranges::count_if(read_log(run), [](const Json& line) { return line.contains("train_loss"); });
}

// runs of which a validation takes long
struct LongRuns : Runs {
    LongRuns()
        : Runs(
              "--layers 1 --heads 1 --batch 2 --seq-len 32 --lr 0.001 --warmup 0 --final-lr-fraction 1 "
              "--val-every 0 --sample-every 0") {
        write_token_shard(folder / "val.bin", learnable_tokens(40000, 3, 2), 257);
    }
};

// "" if a run that gets this signal leaves a checkpoint of its current step; *seconds: until it has ended
std::string try_signal(const LongRuns& runs, const Phase& phase, int which, const std::string& name,
                       std::mt19937_64* random, double* seconds) {
    const std::string run = runs / name, streams = run + ".streams";
    const bool at_start = *phase.sign == '\0';
    fs::create_directories(streams);
    const pid_t pid = start_prepared(streams, runs.options(name, phase.more), default_signals);
    if (!at_start) {
        wait_until([&] { return contains(read_bytes(run + "/log.jsonl"), phase.sign); });
    }
    usleep((useconds_t)((*random)() % (at_start ? 40'000 : 100'000)));
    if (which == SIGUSR1) {
        for (int i = 0; i < 3; i++) {
            kill(pid, which);
            usleep((useconds_t)((*random)() % 20'000));
        }
    }
    const auto asked = std::chrono::steady_clock::now();
    kill(pid, which == SIGUSR1 ? SIGTERM : which);
    ProgramRun result = finish_train(streams, pid);
    *seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - asked).count();
    const int signal_code = 128 + (which == SIGUSR1 ? SIGTERM : which);
    std::string wrong;
    if (at_start && (result.exit_code == signal_code || result.exit_code == 128 + SIGUSR1)) {
        // it was not yet a run: another one can begin
    } else if (result.exit_code != kExitPreempted) {
        wrong = fmt::format("ends with {}: {}", result.exit_code, result.err);
    } else {
        std::string notes, found = find_checkpoint(run, &notes);
        const std::string expected = checkpoint_name(run, steps_in_log(run));
        if (found != expected || !notes.empty()) {
            wrong = "found " + found + ", not " + expected + " " + notes;
        }
    }
    fs::remove_all(run);
    return wrong;
}

}  // namespace

TEST_CASE("signals: in everything that a run does") {
    const LongRuns runs;
    const int64_t repeats = 10, phases = std::size(kPhases), signals = std::size(kSignals);
    std::mutex mutex;
    double longest = 0;
    const auto note = [&] { return fmt::format("{:.1f} s to the end at most", longest); };
    try_each(
        "signals: 8 phases, TERM INT HUP USR1", repeats * phases * signals,
        [&](int64_t i) {
            const Phase& phase = kPhases[i / repeats % phases];  // of each phase and signal as many
            const int which = kSignals[i / repeats / phases];
            std::mt19937_64 random(suite_seed * 1000 + (uint64_t)i);
            double seconds = 0;
            const std::string wrong =
                try_signal(runs, phase, which, fmt::format("run{}", i), &random, &seconds);
            std::lock_guard lock(mutex);
            longest = std::max(longest, seconds);
            return wrong.empty() ? "" : fmt::format("{}, signal {}: {}", phase.name, which, wrong);
        },
        note);
    CHECK(longest < 30);
}

TEST_CASE("kills: at random moments of one run, which ends as if nothing had been") {
    LongRuns runs;
    const int64_t kills = 200 / suite_part;
    runs.usual += fmt::format(" --val-data none --save-every 20 --keep 2 --quiet --steps {}", kills * 250);
    runs.train("whole", "");
    const std::string run = runs / "run";
    const Reference reference(runs / "whole");
    std::mt19937_64 random(suite_seed);
    int64_t killed = 0;
    for (; killed < kills; killed++) {
        const pid_t pid =
            runs.start("run", std::string("--resume auto --save-mode ") + (killed % 2 ? "sync" : "async"));
        usleep((useconds_t)(random() % 80'000));
        kill(pid, SIGKILL);
        const ProgramRun result = finish_train(runs.folder.path(), pid);
        if (result.exit_code == kExitDone) { break; }
        CHECK_MESSAGE(result.exit_code == 128 + SIGKILL, result.err);
    }
    runs.train("run", "--resume auto");
    const std::string wrong = reference.difference(run);
    CHECK_MESSAGE(wrong.empty(), wrong);
    report("kills at random moments of one run", killed, !wrong.empty(),
           "the undisturbed run's bits at its end");
}

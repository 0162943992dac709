// Every program that writes files, killed at each of its system calls that touch the folder it writes to: run
// again, it leaves what it would have left at once, and no temporary file.
#include <atomic>
#include <functional>
#include <map>

#include "dev/test/durability/small_run.h"

using namespace llmc;
namespace fs = std::filesystem;

namespace {

struct Writer {
    const char* name;
    std::function<Words(const std::string& folder)> command;  // that writes there
    bool same_bytes;  // false: times are in its files, and only their names can be compared
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
        REQUIRE(run_train(shop_ / "bpe", make, program_path("data/make_shards")).exit_code == kExitDone);
    }
    std::vector<Writer> writers() const {
        auto program = [](const std::string& path, const std::string& options) {
            Words all = words(options);
            all.insert(all.begin(), path);
            return all;
        };
        const std::string run = shop_ / "run";
        return {
            {"export",
             [=](const std::string& f) {
                 return program(train_program(), "export " + run + " --force --hf " + f);
             },
             true},
            {"report",
             [=](const std::string& f) {
                 return program(train_program(), "report " + run + " --out " + f + "/page.html");
             },
             true},
            {"make_shards",
             [=, this](const std::string& f) {
                 return program(program_path("data/make_shards"),
                                shop_ / "text.txt --shard-tokens 256 --val-fraction 0.2 --out " + f + "/t");
             },
             true},
            {"make_hellaswag",
             [=, this](const std::string& f) {
                 return program(program_path("data/make_hellaswag"),
                                shop_ / "questions.jsonl --out " + f + "/h.bin");
             },
             true},
            {"make_corpus",
             [=](const std::string& f) {
                 return program(program_path("data/make_corpus"),
                                "--train-bytes 10000 --val-bytes 10000 --out " + f);
             },
             true},
            {"a run with a tokenizer",
             [=, this](const std::string& f) {
                 return program(train_program(), "--train-data " +
                                                     shop_ /
                                                         "bpe/t_train_000000.bin --val-data none --layers 1 "
                                                         "--heads 1 --channels 8 --batch 1 --seq-len 16 "
                                                         "--steps 2 --lr 0.01 --warmup 0 --sample-every 0 "
                                                         "--tokenizer dev/test/fixture/bpe --resume auto "
                                                         "--out " +
                                                     f);
             },
             false},
        };
    }
    std::string operator/(const std::string& name) const { return shop_ / name; }

    Traced start(const Writer& writer, const std::string& name, const Injection& injection) const {
        fs::create_directories(shop_ / (name + ".streams"));
        fs::create_directories(shop_ / name);
        return run_traced(writer.command(shop_ / name), shop_ / (name + ".streams"), shop_ / name, injection);
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
    if (!can_trace()) {
        MESSAGE("skipped: this system does not let one process trace another");
        return;
    }
    const Sources from;
    for (const Writer& writer : from.writers()) {
        const Traced whole = from.start(writer, "whole", {});
        REQUIRE_MESSAGE(whole.exit_code == kExitDone, writer.name, read_bytes(from / "whole.streams/stderr"));
        const Files expected = files_below(from / "whole", writer.same_bytes);
        REQUIRE_FALSE(expected.empty());
        fs::remove_all(from / "whole");
        std::atomic<int64_t> lost = 0, tried = 0;
        side_by_side(2 * (int64_t)whole.calls.size(), [&](int64_t i) {
            if ((uint64_t)i % (uint64_t)suite_part != suite_seed % (uint64_t)suite_part) { return; }
            const Injection injection = {i % 2 == 0 ? Fault::kKill : Fault::kTorn, i / 2 + 1};
            tried++;
            const std::string wrong = try_kill(from, writer, expected, fmt::format("kill{}", i), injection);
            if (wrong.empty()) { return; }
            lost++;
            FAIL_CHECK(wrong);
        });
        report(fmt::format("kill: {}, temporaries", writer.name), tried, lost);
    }
}

TEST_CASE("writers: killed while it replaces another set of files, a program leaves no mixture to read") {
    if (!can_trace()) {
        MESSAGE("skipped: this system does not let one process trace another");
        return;
    }
    const Sources from;
    const std::string corpus = program_path("data/make_corpus") + " --train-bytes 10000 --val-bytes 2000",
                      exports = train_program() + " export " + (from / "run") + " --force";
    const auto writer = [](const std::string& command, const char* option, const char* out) {
        return Writer{"", [=](const std::string& f) { return words(command + option + out + f); }, true};
    };
    struct Replacement {
        Writer was, is;
        const char* key;  // nobody reads the other files without it
    };
    const Replacement all[] = {
        {writer(corpus, "", " --out "), writer(corpus, " --seed 2", " --out "), "val.bin"},
        {writer(exports, "", " --hf "), writer(exports, " --type bf16", " --hf "), "config.json"}};
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

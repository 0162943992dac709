// Damage on the disk: every flipped bit and every cut of a checkpoint is found; after random histories of saves, kills
// and damage as many intact ones are there as were asked for; and every reader of what comes from outside refuses
// files that are wrong by name, none of up to 2 MB makes it hold more than 64 MiB. libFuzzer looks deeper
// (dev/test/fuzz); this measures without sanitizers.
#include <fcntl.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <cstdlib>
#include <map>
#include <mutex>
#include <new>
#include <random>
#include <set>

#include "dev/test/durability/small_run.h"
#include "dev/test/fuzz/readers.h"
#include "dev/test/support/any_model.h"
#include "llmc/model/cpu/gpt2.h"
#include "llmc/model/run/saver.h"

using namespace llmc;

namespace {

const Words kFiles = {"MANIFEST", "config.json",    "model.safetensors",    "optimizer.safetensors",
                      "run.json", "tokenizer.json", "tokenizer_config.json"};

// "" if the damage of this file is found and named
std::string missed(const std::string& checkpoint, const std::string& file) {
    const std::string damage = inspect_checkpoint(checkpoint).damage;
    // a line of MANIFEST names another file
    const bool named =
        damage.find(file == "MANIFEST" ? checkpoint : checkpoint + "/" + file) != std::string::npos;
    return named ? "" : file + ": " + (damage.empty() ? "taken for good" : damage);
}

std::string saved_run(const Workshop& shop) {
    REQUIRE(shop.train("run", "").exit_code == kExitDone);
    return checkpoint_name(shop / "run", 6);
}

}  // namespace

TEST_CASE("damage: every flipped bit of a checkpoint is found") {
    Workshop shop;
    const std::string checkpoint = saved_run(shop);
    std::mt19937_64 random(suite_seed);
    int64_t lost = 0;
    const int64_t tries = 10000 / suite_part;
    for (int64_t i = 0; i < tries; i++) {
        const std::string& file = kFiles[(size_t)i % kFiles.size()];
        const std::string good = read_bytes(checkpoint + "/" + file);
        std::string bad = good;
        const size_t bit = random() % (good.size() * 8);
        bad[bit / 8] = (char)(bad[bit / 8] ^ (1 << bit % 8));
        write_bytes(checkpoint + "/" + file, bad);
        const std::string wrong = missed(checkpoint, file);
        write_bytes(checkpoint + "/" + file, good);
        if (!wrong.empty()) { FAIL_CHECK("bit ", bit, " of ", wrong); }
        lost += !wrong.empty();
    }
    CHECK(inspect_checkpoint(checkpoint).damage.empty());
    report("flipped bits", tries, lost);
}

TEST_CASE("damage: every cut of a checkpoint's file is found") {
    Workshop shop;
    const std::string checkpoint = saved_run(shop);
    int64_t lost = 0, tries = 0;
    for (const std::string& file : kFiles) {
        const std::string path = checkpoint + "/" + file, good = read_bytes(path);
        auto try_one = [&](size_t left) {
            write_bytes(path, left <= good.size() ? good.substr(0, left)
                                                  : good + std::string(left - good.size(), '\0'));
            const std::string wrong = missed(checkpoint, file);
            if (!wrong.empty()) { FAIL_CHECK("cut to ", left, ": ", wrong); }
            lost += !wrong.empty();
            tries++;
        };
        for (size_t left = 0; left < good.size(); left += 4096) { try_one(left); }
        // the headers, and files that are short, at every byte
        for (size_t left = suite_seed % (size_t)suite_part; left < std::min<size_t>(good.size(), 3000);
             left += (size_t)suite_part) {
            try_one(left);
        }
        for (size_t left : {good.size() - 1, good.size() + 1, good.size() + 4096}) { try_one(left); }
        write_bytes(path, good);
    }
    CHECK(inspect_checkpoint(checkpoint).damage.empty());
    report("cuts and growth, every 4 KiB and in headers", tries, lost);
}

// ---- histories ---------------------------------------------------------------------------------

namespace {

// One run that is killed, damaged and resumed, with random settings of what stays.
class History {
public:
    History(uint64_t seed) : random_(seed), told_(share()) {
        plan_.options.keep = (int64_t)(random_() % 4);
        plan_.options.keep_major = random_() % 3 == 0 ? 6 : 0;
        plan_.options.keep_best = random_() % 2 == 0;
        saves_.background = random_() % 2 == 0;
        plan_.out = folder_ / "run";
        plan_.config = tiny_config();
        fs::create_directories(plan_.out);
        fill_states(&model_, seed);
        zero_padding(&model_);
    }
    ~History() { munmap(told_, sizeof(int64_t)); }

    // "" = nothing was lost
    std::string run() {
        int64_t first = 0;
        for (int start = 0; start < 4; start++) {
            plan_.record.descent.push_back({fmt::format("{:016x}", start + 1), first});
            const bool killed = random_() % 4 != 0;
            start_and_kill(first, killed ? (int64_t)(random_() % 20000) : -1);
            std::string wrong = judge();
            if (!wrong.empty()) { return fmt::format("start {}: {}", start, wrong); }
            if (random_() % 3 == 0) { damage_newest(); }
            std::string notes;
            try {
                plan_.checkpoint = find_checkpoint(plan_.out, &notes);
            } catch (const Error& e) { return intact_.empty() ? "" : std::string("refused: ") + e.what(); }
            const int64_t newest = intact_.empty() ? 0 : intact_.rbegin()->first;
            first = plan_.checkpoint.empty() ? 0 : Checkpoint(plan_.checkpoint).record().state.step;
            if (first != newest) { return fmt::format("found step {}, intact is {}", first, newest); }
            if (first == 0) { return ""; }
            plan_.record = Checkpoint(plan_.checkpoint).record();
            remove_leftovers(plan_.out);
        }
        return "";
    }

private:
    static int64_t* share() {
        void* page =
            mmap(nullptr, sizeof(int64_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        require(page != MAP_FAILED, "mmap");
        return new (page) int64_t(0);
    }

    // saves step after step in a process of its own, which is killed after after_us microseconds
    void start_and_kill(int64_t first, int64_t after_us) {
        *told_ = first;
        pid_t pid = fork();
        if (pid == 0) {
            dup2(open("/dev/null", O_WRONLY), STDOUT_FILENO);
            save_steps(first);
            _exit(0);
        }
        if (after_us >= 0) {
            usleep((useconds_t)after_us);
            kill(pid, SIGKILL);
        }
        waitpid(pid, nullptr, 0);
    }
    void save_steps(int64_t first) {
        Screen line(true, 1);
        RunJournal log(plan_.out, first > 0 ? first : -1, log_start(plan_.record.descent, first));
        RunSaver saver(
            plan_, plan_.out, plan_.record.best, saves_, [](std::span<float>) { return nullptr; }, &line,
            &log);
        for (int64_t step = first + 1; step <= first + 15; step++) {
            log.append(step_log_line({.step = step}));
            RunRecord record = plan_.record;
            record.state.step = step;
            if (step % 4 == 0) { saver.validated(step, (double)(random_() % 100)); }
            saver.save(record, reader(model_), false);
            saver.poll();
            tell(saver.newest());
        }
        saver.wait();
        tell(saver.newest());
    }
    void tell(const std::string& name) {
        if (!name.empty()) { *told_ = std::stoll(name.substr(name.rfind('_') + 1)); }
    }

    // what was saved is there, and as many of them as --keep says
    std::string judge() {
        intact_.clear();
        int64_t best = -1;
        for (const std::string& name : names_below(plan_.out, "step_")) {
            if (name.size() != 13) { continue; }
            CheckpointFacts facts = inspect_checkpoint(plan_.out + "/" + name);
            if (!facts.damage.empty()) {
                if (!damaged_.contains(name)) { return "damaged by itself: " + facts.damage; }
                continue;
            }
            damaged_.erase(name);  // saved again since
            intact_[facts.record.state.step] = plan_.out + "/" + name;
            if (facts.record.best) { best = facts.record.best->step; }
        }
        const int64_t newest = intact_.empty() ? 0 : intact_.rbegin()->first;
        if (newest < *told_) { return fmt::format("step {} was saved, {} is there", *told_, newest); }
        // every step was saved; a damaged one may be the one that --keep would have kept
        int64_t left = 0, saved = 0;
        for (int64_t step = 1; step <= newest; step++) {
            const bool counts =
                step != best && (plan_.options.keep_major == 0 || step % plan_.options.keep_major != 0);
            saved += counts;
            left += counts && intact_.contains(step);
        }
        const int64_t wanted = plan_.options.keep == 0 ? saved : std::min(plan_.options.keep, saved);
        return left < wanted - damaged_count_ ? fmt::format("{} of {} are left", left, wanted) : "";
    }
    void damage_newest() {
        if (intact_.empty()) { return; }
        const std::string path = intact_.rbegin()->second;
        const Words files = names_below(path);  // without a tokenizer's
        const std::string file = path + "/" + files[random_() % files.size()];
        const std::string good = read_bytes(file);
        switch (random_() % 3) {
            case 0:
                flip_byte(file, random_() % good.size());
                break;
            case 1:
                fs::resize_file(file, random_() % good.size());
                break;
            default:
                fs::remove(file);
        }
        damaged_.insert(fs::path(path).filename().string());
        damaged_count_++;
        intact_.erase(std::prev(intact_.end()));
    }

    std::mt19937_64 random_;
    TempFolder folder_;
    RunPlan plan_;
    SavePlan saves_;
    GPT2Cpu model_{tiny_config(), 1, 2};
    int64_t* told_;  // by a process that saves, which may be killed: the newest step that was on the disk
    std::map<int64_t, std::string> intact_;
    std::set<std::string> damaged_;
    int damaged_count_ = 0;
};

}  // namespace

TEST_CASE("histories: of saves, kills and damage, with random settings of what stays") {
    try_each("random histories of keep, kill and damage", 1000, [&](int64_t i) {
        const uint64_t seed = suite_seed * 100000 + (uint64_t)i;
        const std::string wrong = History(seed).run();
        return wrong.empty() ? "" : fmt::format("history {}: {}", seed, wrong);
    });
}

// ---- readers -----------------------------------------------------------------------------------

namespace {

thread_local int64_t live_bytes = 0, most_bytes = 0;  // no reader starts a thread

void* counted(void* memory) {
    if (memory == nullptr) { throw std::bad_alloc(); }
    live_bytes += (int64_t)malloc_usable_size(memory);
    most_bytes = std::max(most_bytes, live_bytes);
    return memory;
}

}  // namespace

void* operator new(size_t bytes) { return counted(std::malloc(bytes)); }
void* operator new[](size_t bytes) { return counted(std::malloc(bytes)); }
void operator delete(void* memory) noexcept {
    live_bytes -= (int64_t)malloc_usable_size(memory);
    std::free(memory);
}
void operator delete[](void* memory) noexcept { operator delete(memory); }
void operator delete(void* memory, size_t) noexcept { operator delete(memory); }
void operator delete[](void* memory, size_t) noexcept { operator delete(memory); }

namespace {

constexpr size_t kMostFile = 2'000'000;

// a file like this one, with something wrong
std::string mutated(std::string bytes, std::mt19937_64* random) {
    auto below = [&](size_t n) { return n == 0 ? 0 : (size_t)((*random)() % n); };
    const uint32_t words[] = {0,    1,     0xffffffff, 0x7fffffff,           0x80000000,
                              1024, 65536, 1 << 20,    (uint32_t)(*random)()};
    for (size_t changes = 1 + below(4); changes > 0; changes--) {
        const size_t at = below(bytes.size());
        switch (below(6)) {
            case 0:
                bytes[at] = (char)(bytes[at] ^ (1 << below(8)));
                break;
            case 1:
                bytes.resize(at);
                break;
            case 2:
                bytes.insert(at, bytes.substr(below(bytes.size()), below(64)));
                break;
            case 3:
                bytes.erase(at, below(64));
                break;
            case 4: {  // a word of the header, as binary files have it
                const uint32_t word = words[below(std::size(words))];
                const size_t place = below(std::min<size_t>(bytes.size() / 4, 9)) * 4;
                if (bytes.size() >= place + 4) { std::memcpy(bytes.data() + place, &word, 4); }
                break;
            }
            default:  // the same again and again
                for (std::string part = bytes.substr(at, below(200));
                     !part.empty() && bytes.size() < kMostFile;) {
                    bytes.insert(at, part);
                    part += part;
                }
        }
        if (bytes.empty()) { break; }
    }
    bytes.resize(std::min(bytes.size(), kMostFile));
    return bytes;
}

}  // namespace

TEST_CASE("readers: what is wrong is refused by name, and little memory is held") {
    const TempFolder sources;
    for (const ReaderUnderTest& reader : readers_under_test()) {
        const std::vector<std::string> seeds = reader.seeds(sources.path());
        std::mutex mutex;
        int64_t most = 0;
        const auto note = [&] { return fmt::format("{:.1f} MiB held at most", (double)most / (1 << 20)); };
        const auto one = [&](int64_t i) -> std::string {
            thread_local const TempFolder folder;
            std::mt19937_64 random(suite_seed * 100000 + (uint64_t)i);
            const auto turn = (size_t)(i / suite_part);
            const std::string& seed = seeds[turn % seeds.size()];
            const std::string bytes = turn < seeds.size() ? seed : mutated(seed, &random);
            const int64_t before = most_bytes = live_bytes;
            std::string wrong;
            try {
                check_reader(reader, folder.path(), bytes);
            } catch (const std::exception& e) { wrong = e.what(); }
            std::lock_guard lock(mutex);
            most = std::max(most, most_bytes - before);
            return wrong;
        };
        try_each(std::string("wrong files: ") + reader.name, 3000, one, note);
        CHECK_MESSAGE(most <= 64 << 20, std::string(reader.name), " holds ", most);
    }
}

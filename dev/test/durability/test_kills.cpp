// A kill or an error of the system at every system call of a run that touches its folder.
#include <atomic>
#include <cerrno>
#include <map>
#include <memory>

#include "dev/test/durability/small_run.h"
#include "llmc/model/formats/checkpoint.h"
#include "llmc/model/run/folder.h"

using namespace llmc;
namespace fs = std::filesystem;

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
    const Workshop& shop() const { return shop_; }
    const Scenario& scenario() const { return s_; }

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
        const bool said =
            run.exit_code != kExitDone || run.out.find("FAILED") != std::string::npos || !run.err.empty();
        return said ? "" : reference_silent(run);
    }
    // what a silent run leaves must be whole
    std::string reference_silent(const ProgramRun& run) const {
        return run.out.find("trained ") != std::string::npos ? "" : ": it says nothing and did not train";
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

// tries all of these, or a part; tells of the first few that go wrong
void try_all(const std::string& what, const Stage& stage, const std::vector<Injection>& all) {
    std::vector<Injection> chosen;
    for (size_t i = suite_seed % suite_part; i < all.size(); i += suite_part) { chosen.push_back(all[i]); }
    std::atomic<int64_t> lost = 0;
    side_by_side((int64_t)chosen.size(), [&](int64_t i) {
        std::string wrong = stage.try_one(fmt::format("run{}", i), chosen[(size_t)i]);
        if (wrong.empty()) { return; }
        lost++;
        FAIL_CHECK(wrong);
    });
    report(fmt::format("{}: {}", what, stage.scenario().name), (int64_t)chosen.size(), lost);
}

std::vector<Injection> at_all(const Stage& stage, Fault fault) {
    std::vector<Injection> all;
    for (size_t i = 0; i < stage.calls().size(); i++) {
        const Call& c = stage.calls()[i];
        if (fault == Fault::kTorn && (c.name != "write" || c.bytes < 2)) { continue; }
        all.push_back({fault, (int64_t)i + 1});
    }
    return all;
}

}  // namespace

TEST_CASE("kill: at every system call of a run and in the middle of every write") {
    if (!can_trace()) {
        MESSAGE("skipped: this system does not let one process trace another");
        return;
    }
    for (const Scenario& scenario : kScenarios) {
        Stage stage(scenario);
        std::vector<Injection> all = at_all(stage, Fault::kKill);
        for (const Injection& torn : at_all(stage, Fault::kTorn)) { all.push_back(torn); }
        try_all("kill", stage, all);
    }
}

TEST_CASE("error: of the system, at every system call") {
    if (!can_trace()) {
        MESSAGE("skipped: this system does not let one process trace another");
        return;
    }
    const std::map<std::string, std::vector<int>> errors = {
        {"write", {ENOSPC, EIO, EINTR}}, {"create", {ENOSPC, EMFILE}}, {"mkdir", {ENOSPC}},
        {"open", {EIO, EMFILE}},         {"rename", {EIO, ENOSPC}},    {"flock", {EINTR}}};
    for (const Scenario& scenario : kScenarios) {
        Stage stage(scenario);
        std::vector<Injection> all;
        for (size_t i = 0; i < stage.calls().size(); i++) {
            const Call& c = stage.calls()[i];
            auto found = errors.find(c.name);
            for (int error : found != errors.end() ? found->second : std::vector<int>{EIO}) {
                all.push_back({Fault::kError, (int64_t)i + 1, error});
            }
            if (c.name == "write" && c.bytes > 1) { all.push_back({Fault::kShort, (int64_t)i + 1}); }
            // a disk that is full from here on
            if (c.name == "write") { all.push_back({Fault::kError, (int64_t)i + 1, ENOSPC, true}); }
        }
        try_all("error", stage, all);
    }
}

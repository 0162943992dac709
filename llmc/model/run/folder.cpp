// A run folder: see run/folder.h.
#include "llmc/model/run/folder.h"

#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>

#include "llmc/host/base/error.h"
#include "llmc/host/files/file_io.h"
#include "llmc/host/log/run_log.h"
#include "llmc/host/options/typed_text.h"
#include "llmc/model/formats/checkpoint.h"

namespace llmc {

namespace fs = std::filesystem;

namespace {

// why an intact checkpoint is not of this descent, "" if it does; kind: for its new name
std::string off_descent(const Descent& descent, const CheckpointFacts& facts, const StepFolder& at,
                        std::string* kind) {
    const RunRecord& record = facts.record;
    *kind = "foreign";
    const std::string ours = descent.empty() ? "" : descent.front().id,
                      its = record.descent.empty() ? "" : record.descent.front().id;
    if (its != ours) { return fmt::format("{}: of another run ({}, not {})", at.path, its, ours); }
    if (record.state.step != at.step) {
        return fmt::format("{}: its name says step {}, run.json {}", at.path, at.step, record.state.step);
    }
    if (lies_on(descent, record.descent, at.step)) { return ""; }
    *kind = "abandoned";
    return at.path + ": abandoned: the run went on from a step before it";
}

std::optional<std::string> log_of_folder(const std::string& run_folder) {
    return read_whole(run_folder + "/log.jsonl", std::numeric_limits<int64_t>::max());
}

// Whether the run of a log began with its first step and saved no checkpoint. A log of format 1, whose start is
// no event, does not say what was saved.
bool saved_nothing(const std::string& log) {
    return log.starts_with("{\"event\":\"start\",") &&
           log.find("\n{\"event\":\"save\",") == std::string::npos;
}

// the descent that a run folder's log follows; nothing: no log, or one without steps and descents
std::optional<Descent> descent_of_folder(const std::string& run_folder) {
    const auto log = log_of_folder(run_folder);
    if (!log) { return std::nullopt; }
    auto descent = descent_of_log(*log, run_folder + "/log.jsonl");
    if (descent || !has_steps(*log)) { return descent; }
    return Descent();  // of an earlier version
}

// without a log: the descent of the newest intact checkpoint, on which all others must lie
Descent descent_of_checkpoints(const std::vector<StepFolder>& steps) {
    std::optional<Descent> descent;
    std::string newest, kind;
    for (const StepFolder& at : steps) {
        CheckpointFacts facts = inspect_checkpoint(at.path, descent ? Contents::kRecord : Contents::kAll);
        if (!facts.damage.empty()) { continue; }
        if (!descent) {
            descent = facts.record.descent;
            newest = at.path;
        } else if (!off_descent(*descent, facts, at, &kind).empty()) {
            throw Error(
                kExitBadInput,
                fmt::format("{} and {} do not belong to one line of a run, and no log.jsonl says which "
                            "counts. Name the one to go on from: --resume FOLDER.",
                            newest, at.path));
        }
    }
    return descent.value_or(Descent());
}

// a name that is free: path.kind, path.kind-2 ...
std::string free_name(const std::string& path, const std::string& kind) {
    for (int number = 1;; number++) {
        std::string name = path + "." + kind + (number == 1 ? "" : fmt::format("-{}", number));
        if (file_kind(name) == FileKind::kMissing) { return name; }
    }
}

std::string identity(const std::string& checkpoint) {
    std::string all;
    for (const std::string& name : folder_names(checkpoint).value_or(std::vector<std::string>())) {
        all += name + " " + file_identity(checkpoint + "/" + name) + "\n";
    }
    return all;
}

bool is_intact(const std::string& checkpoint, KnownIntact* known, std::string* damage) {
    auto found = known->find(checkpoint);
    if (found != known->end() && found->second == identity(checkpoint)) { return true; }
    *damage = inspect_checkpoint(checkpoint).damage;
    if (damage->empty()) { note_intact(checkpoint, known); }
    return damage->empty();
}

// "run/step_00001000" -> "run/DONE_00001000"
std::string done_file(const std::string& checkpoint) {
    const fs::path path(checkpoint);
    return (path.parent_path() / ("DONE_" + path.filename().string().substr(5))).string();
}

// under another name first: deleted halfway, it is a leftover and no damaged checkpoint
void remove_checkpoint(const std::string& path) {
    std::error_code error;
    fs::remove(done_file(path), error);
    std::string leftover = fmt::format("{}.tmp-{}", path, (int)getpid());
    fs::rename(path, leftover, error);
    fs::remove_all(error ? path : leftover, error);
}

}  // namespace

std::string find_checkpoint(const std::string& run_folder, std::string* notes) {
    const std::vector<StepFolder> steps = list_steps(run_folder);
    const std::optional<Descent> of_log = descent_of_folder(run_folder);
    const Descent descent = of_log ? *of_log : descent_of_checkpoints(steps);
    if (!of_log && !steps.empty() && log_of_folder(run_folder)) {
        *notes += run_folder + "/log.jsonl: emptied: the run is known by its checkpoints alone\n";
    }
    std::string passed, kind;  // kind: "" as long as none is intact
    for (const StepFolder& at : steps) {
        CheckpointFacts facts = inspect_checkpoint(at.path);
        std::string why = facts.damage.empty() ? off_descent(descent, facts, at, &kind) : facts.damage;
        if (why.empty()) {
            *notes += passed;
            return at.path;
        }
        passed += "passed over: " + why + "\n";
    }
    if (steps.empty() && !of_log) { return ""; }
    const std::string log = log_of_folder(run_folder).value_or("");
    if (steps.empty() && !has_steps(log)) { return ""; }
    if (steps.empty() && saved_nothing(log)) {
        *notes += run_folder + ": its run has saved nothing yet (--save-every N saves as it goes)\n";
        return "";
    }
    if (!steps.empty()) {
        throw Error(
            kExitBadInput,
            fmt::format(
                "{}: no checkpoint in it is intact and of the run that log.jsonl is of:\n{}To train from "
                "the beginning, choose another --out{}.",
                run_folder, passed,
                kind.empty() ? "" : "; to go on from one that is intact: --resume FOLDER --out NEW"));
    }
    throw Error(
        kExitBadInput,
        fmt::format("{}: log.jsonl has steps, but there is no checkpoint to go on from. To train from the "
                    "beginning, choose another --out{}.",
                    run_folder,
                    descent.size() > 1
                        ? "; to go on from the checkpoint that this run began with (\"resume\" in its "
                          "log.jsonl): --resume FOLDER"
                        : ""));
}

void require_no_run_folder(const std::string& checkpoint) {
    const std::string newest = newest_step(checkpoint);
    if (newest.empty()) { return; }
    throw Error(kExitBadInput,
                checkpoint + ": a run folder, not a checkpoint. To go on in it: --resume auto --out " +
                    shell_word(checkpoint) + "; to begin another run with its newest checkpoint: --resume " +
                    shell_word(newest) + " --out NEW.");
}

std::string run_folder_of(const std::string& checkpoint) {
    const fs::path path = fs::path(checkpoint + "/.").lexically_normal().parent_path();
    const std::string name = path.filename().string();
    if (name.empty() || name == "." || name == "..") { return checkpoint + "/.."; }
    const std::string folder = path.parent_path().string();
    return folder.empty() ? "." : folder;
}

namespace {

// what a run left that ended before its first save
std::string put_aside(const std::string& path) {
    const std::string name = free_name(path, "unsaved");
    if (std::rename(path.c_str(), name.c_str()) != 0) {
        throw Error(kExitUsage, fmt::format("{}: cannot be renamed to {}: {}. Choose another --out.", path,
                                            name, std::strerror(errno)));
    }
    return path + ": of a run that ended before its first save; now " + name + "\n";
}

}  // namespace

std::string put_log_aside(const std::string& run_folder) {
    const std::string path = run_folder + "/log.jsonl";
    const std::string log = log_of_folder(run_folder).value_or("");
    if (!has_steps(log) || !list_steps(run_folder).empty() || !saved_nothing(log)) { return ""; }
    std::string done = put_aside(path);
    // the disk may have had room for the model alone
    const std::string model = run_folder + "/model.bin";
    std::error_code ignored;
    if (fs::is_regular_file(model, ignored)) { done += put_aside(model); }
    return done;
}

void require_no_run(const std::string& run_folder) {
    require_no_steps(run_folder);
    if (!list_steps(run_folder).empty()) {
        throw Error(kExitUsage,
                    run_folder +
                        ": this folder holds a run already (step_ folders). Choose another --out, or go "
                        "on with it by --resume auto.");
    }
    std::error_code ignored;
    for (const char* name : {"model.bin", "config.json", "model.safetensors"}) {
        if (!fs::is_regular_file(run_folder + "/" + name, ignored)) { continue; }
        throw Error(
            kExitUsage,
            fmt::format("{}: this folder holds a model already ({}), which the run's own would replace or be "
                        "mistaken for. Choose another --out.",
                        run_folder, name));
    }
}

std::string set_aside(const std::string& run_folder, const Descent& descent) {
    std::string done, kind;
    for (const StepFolder& at : list_steps(run_folder)) {
        CheckpointFacts facts = inspect_checkpoint(at.path, Contents::kRecord);
        std::string why = facts.damage.empty() ? off_descent(descent, facts, at, &kind) : facts.damage;
        if (why.empty()) { continue; }  // to read all that may yet count would take long
        if (kind == "abandoned" && facts.damage.empty()) { facts = inspect_checkpoint(at.path); }
        if (!facts.damage.empty()) {
            why = facts.damage;
            kind = "damaged";
        }
        std::string name = free_name(at.path, kind);
        std::error_code error;
        fs::remove(done_file(at.path), error);
        fs::rename(at.path, name, error);
        done += why + (error ? "; cannot be renamed: " + error.message() : "; now " + name) + "\n";
    }
    return done;
}

void mark_done(const std::string& checkpoint) { FileWriter(done_file(checkpoint)).commit(); }

void note_intact(const std::string& checkpoint, KnownIntact* known) {
    (*known)[checkpoint] = identity(checkpoint);
}

std::string remove_old_checkpoints(const std::string& run_folder, const Descent& descent, int64_t step,
                                   const Retention& keep, KnownIntact* known) {
    std::string passed, kind, damage;
    if (keep.newest <= 0) { return passed; }
    int64_t counted = 0;
    bool seen = false;  // the one just saved: without it nothing is known to be newer
    for (const StepFolder& at : list_steps(run_folder)) {
        seen = seen || at.step == step;
        if (at.step > step || !seen || (keep.major > 0 && at.step % keep.major == 0) ||
            at.step == keep.best) {
            continue;
        }
        CheckpointFacts facts = inspect_checkpoint(at.path, Contents::kRecord);
        std::string why = off_descent(descent, facts, at, &kind);
        if (why.empty() && counted >= keep.newest) {
            known->erase(at.path);
            remove_checkpoint(at.path);
        } else if (why.empty() && is_intact(at.path, known, &damage)) {
            counted++;
        } else {
            passed += "not counted by --keep: " + (why.empty() ? damage : why) + "\n";
        }
    }
    return passed;
}

void take_back_replaced(const std::string& run_folder) {
    for (const std::string& name : folder_names(run_folder).value_or(std::vector<std::string>())) {
        const std::string before = name_before_replaced(name);
        if (before.empty()) { continue; }
        const std::string old = run_folder + "/" + name, path = run_folder + "/" + before;
        std::error_code error;
        if (file_kind(path) == FileKind::kMissing) {
            fs::rename(old, path, error);
        } else {
            fs::remove_all(old, error);
        }
        if (error) {
            throw Error(
                kExitSaveFailed,
                fmt::format(
                    "{}: a save that was cut short left it, and it cannot be renamed to {} or, where that is "
                    "there, deleted: {}. Do so by hand.",
                    old, path, error.message()));
        }
    }
}

void remove_leftovers(const std::string& run_folder) {
    for (const std::string& name : folder_names(run_folder).value_or(std::vector<std::string>())) {
        const std::string digits = name.starts_with("DONE_") ? name.substr(5) : "";
        const bool stale = !digits.empty() && digits.find_first_not_of("0123456789") == digits.npos &&
                           file_kind(run_folder + "/step_" + digits) == FileKind::kMissing;
        size_t mark = name.rfind(".tmp-");
        bool ours = false;
        for (const char* start : {"step_", "DONE_", "model.bin", "log.jsonl", "config.toml", "report.html"}) {
            ours = ours || name.starts_with(start);
        }
        for (const char* start : kTokenizerFiles) { ours = ours || name.starts_with(start); }
        if (stale || (ours && mark != std::string::npos &&
                      name.find_first_not_of("0123456789-", mark + 5) == std::string::npos)) {
            std::error_code ignored;
            fs::remove_all(run_folder + "/" + name, ignored);
        }
    }
}

}  // namespace llmc

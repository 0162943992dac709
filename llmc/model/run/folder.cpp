// A run folder, and models by their names: see run/folder.h.
#include "llmc/model/run/folder.h"

#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>
#include <utility>

#include "llmc/host/base/error.h"
#include "llmc/host/files/file_io.h"
#include "llmc/host/log/run_log.h"
#include "llmc/model/formats/hf_model.h"

namespace llmc {

namespace fs = std::filesystem;

namespace {

// Whether a checkpoint counts in a run of this descent: then both are "". What it is called else, and why.
struct Verdict {
    std::string kind, why;
};

Verdict judge(const StepFolder& at, const Descent& descent, Contents contents = Contents::kAll) {
    const CheckpointFacts facts = inspect_checkpoint(at.path, contents);
    if (!facts.damage.empty()) { return {"damaged", facts.damage}; }
    const RunRecord& record = facts.record;
    const std::string ours = descent.empty() ? "" : descent.front().id,
                      its = record.descent.empty() ? "" : record.descent.front().id;
    if (its != ours) {
        return {"foreign", fmt::format("{}: of another run ({}, not {})", at.path, its, ours)};
    }
    if (record.state.step != at.step) {
        return {"foreign",
                fmt::format("{}: its name says step {}, run.json {}", at.path, at.step, record.state.step)};
    }
    if (lies_on(descent, record.descent, at.step)) { return {}; }
    return {"abandoned", at.path + ": abandoned: the run went on from a step before it"};
}

// "" if there is none
std::string log_of_folder(const std::string& run_folder) {
    return read_whole(run_folder + "/log.jsonl", std::numeric_limits<int64_t>::max()).value_or("");
}

// Whether the run of a log began with its first step and saved no checkpoint. A log of format 1, whose start is
// no event, does not say what was saved.
bool saved_nothing(const std::string& log) {
    return log.starts_with("{\"event\":\"start\",") &&
           log.find("\n{\"event\":\"save\",") == std::string::npos;
}

// without a log: the descent of the newest intact checkpoint, on which all others must lie
Descent descent_of_checkpoints(const std::vector<StepFolder>& steps) {
    std::optional<Descent> descent;
    std::string newest;
    for (const StepFolder& at : steps) {
        if (!descent) {
            const CheckpointFacts facts = inspect_checkpoint(at.path);
            if (facts.damage.empty()) { descent = facts.record.descent, newest = at.path; }
            continue;
        }
        const std::string kind = judge(at, *descent, Contents::kRecord).kind;
        if (kind.empty() || kind == "damaged") { continue; }
        throw Error(kExitBadInput,
                    "{} and {} do not belong to one line of a run, and no log.jsonl says which counts. "
                    "Name the one to go on from: --resume FOLDER.",
                    newest, at.path);
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

// "run/step_00001000" -> "run/DONE_00001000"
std::string done_file(const std::string& checkpoint) {
    const fs::path path(checkpoint);
    return (path.parent_path() / ("DONE_" + path.filename().string().substr(5))).string();
}

// under another name first: deleted halfway, it is a leftover and no damaged checkpoint
void remove_checkpoint(const std::string& path) {
    std::error_code error;
    fs::remove(done_file(path), error);
    const std::string leftover = fmt::format("{}.tmp-{}", path, (int)getpid());
    fs::rename(path, leftover, error);
    fs::remove_all(error ? path : leftover, error);
}

// ---- a model by its name

NamedModel checkpoint_model(const std::string& folder) {
    const std::string damage = inspect_checkpoint(folder, Contents::kWeights).damage;
    throw_if(!damage.empty(), kExitBadInput, "{}. Name another step_ folder, or a run's model.bin.", damage);
    const std::string file = folder + "/model.safetensors";
    const bool has_tokenizer = std::ranges::any_of(
        kTokenizerFiles, [&](const char* name) { return is_there(fs::path(folder) / name); });
    return {std::make_unique<HfModel>(file), file, has_tokenizer ? folder : folder_of(folder)};
}

// The newest step_ folder, unless log.jsonl says that the run ended with it or after it; then "". A run writes model.bin
// before that line; one that is lengthened drops the line, and keeps the model.bin of its earlier end until its new end.
// The times of files say nothing: a copy has its own.
std::string newer_step(const std::string& folder) {
    const std::string newest = newest_step(folder),
                      end = "\n{\"event\":\"end\",\"step\":", log = log_of_folder(folder);
    const size_t at = log.rfind(end);
    if (newest.empty() || at == log.npos) { return newest; }
    const std::string last = checkpoint_name(folder, std::atoll(log.c_str() + at + end.size()));
    return std::pair(last.size(), last) < std::pair(newest.size(), newest) ? newest : "";
}

// the newest checkpoint of a run folder without a model.bin
NamedModel newest_model(const std::string& folder, std::string* notes) {
    std::string newest, passed;
    do {
        newest = newest_step(folder);
        passed.clear();
        try {
            const std::string checkpoint = find_checkpoint(folder, &passed);
            if (checkpoint.empty()) { continue; }
            NamedModel model = checkpoint_model(checkpoint);
            *notes += passed;
            return model;
        } catch (const Error&) {
            if (newest_step(folder) == newest) { throw; }
        }
        // a run that goes on may have deleted what was just found, or listed (--keep 1): then its next one is there
    } while (newest_step(folder) != newest);
    *notes += passed;
    throw Error(kExitBadInput,
                "{}: no model in this folder. Expected model.bin or a step_ folder, as train_gpt2 leaves "
                "them, or config.json and model.safetensors, as Hugging Face's GPT-2 has them.{}",
                folder, notes->empty() ? "" : "\n" + notes->substr(0, notes->size() - 1));
}

NamedModel folder_model(const std::string& name, std::string* notes) {
    const auto has = [&](const char* file) { return is_there(fs::path(name) / file); };
    if (has("MANIFEST")) { return checkpoint_model(name); }
    throw_if(has("config.json") && (has("model.bin") || has("log.jsonl")), kExitBadInput,
             "{}: a run and Hugging Face's GPT-2 (config.json) are both in this folder. Name the one to use: "
             "its model.bin, a step_ folder, or model.safetensors.",
             name);
    if (has("config.json")) { return {std::make_unique<HfModel>(name), name, name}; }
    if (!has("model.bin")) { return newest_model(name, notes); }
    const std::string file = (fs::path(name) / "model.bin").string(), newer = newer_step(name);
    if (!newer.empty()) {
        *notes += fmt::format(
            "{}: log.jsonl does not say that the run ended with these weights: name {} for its newest "
            "checkpoint's.\n",
            file, newer);
    }
    return {std::make_unique<ModelFile>(file), file, name};
}

}  // namespace

std::string find_checkpoint(const std::string& run_folder, std::string* notes) {
    const std::vector<StepFolder> steps = list_steps(run_folder);
    const std::string path = run_folder + "/log.jsonl", log = log_of_folder(run_folder);
    std::optional<Descent> of_log = descent_of_log(log, path);
    if (!of_log && has_steps(log)) { of_log.emplace(); }  // of an earlier version
    const Descent descent = of_log ? *of_log : descent_of_checkpoints(steps);
    if (!of_log && !steps.empty() && file_kind(path) != FileKind::kMissing) {
        *notes += path + ": emptied: the run is known by its checkpoints alone\n";
    }
    std::string passed;
    bool intact = false;
    for (const StepFolder& at : steps) {
        const Verdict verdict = judge(at, descent);
        if (verdict.kind.empty()) {
            *notes += passed;
            return at.path;
        }
        passed += "passed over: " + verdict.why + "\n";
        intact = intact || verdict.kind != "damaged";
    }
    throw_if(!steps.empty(), kExitBadInput,
             "{}: no checkpoint in it is intact and of the run that log.jsonl is of:\n{}To train from the "
             "beginning, choose another --out{}.",
             run_folder, passed,
             intact ? "; to go on from one that is intact: --resume FOLDER --out NEW" : "");
    if (!has_steps(log)) { return ""; }
    if (saved_nothing(log)) {
        *notes += run_folder + ": its run has saved nothing yet (--save-every N saves as it goes)\n";
        return "";
    }
    throw Error(kExitBadInput,
                "{}: log.jsonl has steps, but there is no checkpoint to go on from. To train from the "
                "beginning, choose another --out{}.",
                run_folder,
                descent.size() > 1 ? "; to go on from the checkpoint that this run began with (\"resume\" in "
                                     "its log.jsonl): --resume FOLDER"
                                   : "");
}

std::string run_folder_of(const std::string& checkpoint) {
    const fs::path path = fs::path(checkpoint + "/.").lexically_normal().parent_path();
    const std::string name = path.filename().string();
    if (name.empty() || name == "." || name == "..") { return checkpoint + "/.."; }
    const std::string folder = path.parent_path().string();
    return folder.empty() ? "." : folder;
}

std::string put_log_aside(const std::string& run_folder) {
    const std::string log = log_of_folder(run_folder);
    if (!has_steps(log) || !list_steps(run_folder).empty() || !saved_nothing(log)) { return ""; }
    std::string done;
    // the disk may have had room for the model alone
    for (const std::string& path : {run_folder + "/log.jsonl", run_folder + "/model.bin"}) {
        if (file_kind(path) != FileKind::kFile) { continue; }
        const std::string name = free_name(path, "unsaved");
        if (std::rename(path.c_str(), name.c_str()) != 0) {
            throw Error(kExitUsage, "{}: cannot be renamed to {}: {}. Choose another --out.", path, name,
                        std::strerror(errno));
        }
        done += path + ": of a run that ended before its first save; now " + name + "\n";
    }
    return done;
}

void require_no_run(const std::string& run_folder) {
    require_no_steps(run_folder);
    throw_if(!list_steps(run_folder).empty(), kExitUsage,
             "{}: this folder holds a run already (step_ folders). Choose another --out, or go on with it by "
             "--resume auto.",
             run_folder);
    for (const char* name : {"model.bin", "config.json", "model.safetensors"}) {
        if (file_kind(run_folder + "/" + name) != FileKind::kFile) { continue; }
        throw Error(kExitUsage,
                    "{}: this folder holds a model already ({}), which the run's own would replace or be "
                    "mistaken for. Choose another --out.",
                    run_folder, name);
    }
}

std::string set_aside(const std::string& run_folder, const Descent& descent) {
    std::string done;
    for (const StepFolder& at : list_steps(run_folder)) {
        Verdict verdict = judge(at, descent, Contents::kRecord);
        if (verdict.kind.empty()) { continue; }  // to read all that may yet count would take long
        if (verdict.kind == "abandoned") { verdict = judge(at, descent); }
        const std::string name = free_name(at.path, verdict.kind);
        std::error_code error;
        fs::remove(done_file(at.path), error);
        fs::rename(at.path, name, error);
        done += verdict.why + (error ? "; cannot be renamed: " + error.message() : "; now " + name) + "\n";
    }
    return done;
}

void mark_done(const std::string& checkpoint) { FileWriter(done_file(checkpoint)).commit(); }

std::string remove_old_checkpoints(const std::string& run_folder, const Descent& descent, int64_t step,
                                   const Retention& keep, KnownIntact* known) {
    std::string passed;
    if (keep.newest <= 0) { return passed; }
    const std::string saved = checkpoint_name(run_folder, step);
    (*known)[saved] = identity(saved);
    int64_t counted = 0;
    bool seen = false;  // the one just saved: without it nothing is known to be newer
    for (const StepFolder& at : list_steps(run_folder)) {
        seen = seen || at.step == step;
        if (at.step > step || !seen || (keep.major > 0 && at.step % keep.major == 0) ||
            at.step == keep.best) {
            continue;
        }
        Verdict verdict = judge(at, descent, Contents::kRecord);
        if (verdict.kind.empty() && counted >= keep.newest) {
            known->erase(at.path);
            remove_checkpoint(at.path);
            continue;
        }
        const std::string now = identity(at.path);
        const bool read_before = known->contains(at.path) && known->at(at.path) == now;
        if (verdict.kind.empty() && !read_before) { verdict = judge(at, descent); }
        if (verdict.kind.empty()) {
            (*known)[at.path] = now;
            counted++;
        } else {
            passed += "not counted by --keep: " + verdict.why + "\n";
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
        if (!error) { continue; }
        throw Error(kExitSaveFailed,
                    "{}: a save that was cut short left it, and it cannot be renamed to {} or, where that is "
                    "there, deleted: {}. Do so by hand.",
                    old, path, error.message());
    }
}

void remove_leftovers(const std::string& run_folder) {
    std::vector<const char*> ours = {"step_",     "DONE_",       "model.bin",
                                     "log.jsonl", "config.toml", "report.html"};
    ours.insert(ours.end(), std::begin(kTokenizerFiles), std::end(kTokenizerFiles));
    for (const std::string& name : folder_names(run_folder).value_or(std::vector<std::string>())) {
        const std::string step = name.starts_with("DONE_") ? name.substr(5) : "";
        const bool stale = !step.empty() && step.find_first_not_of("0123456789") == step.npos &&
                           file_kind(run_folder + "/step_" + step) == FileKind::kMissing;
        const size_t mark = name.rfind(".tmp-");
        const bool cut_short =
            mark != name.npos && name.find_first_not_of("0123456789-", mark + 5) == name.npos &&
            std::ranges::any_of(ours, [&](const char* start) { return name.starts_with(start); });
        std::error_code ignored;
        if (stale || cut_short) { fs::remove_all(run_folder + "/" + name, ignored); }
    }
}

NamedModel open_model(const std::string& given, std::string* notes) {
    std::string name = given;
    while (name.size() > 1 && name.back() == '/') { name.pop_back(); }
    if (is_folder(name)) { return folder_model(name, notes); }
    if (name.ends_with(".safetensors")) { return {std::make_unique<HfModel>(name), name, folder_of(name)}; }
    if (is_there(name)) { return {std::make_unique<ModelFile>(name), name, folder_of(name)}; }
    throw Error(kExitBadInput,
                "{}: cannot open: No such file or folder. Expected a run folder, a step_ folder, a *.bin, or "
                "a folder with Hugging Face's GPT-2: check its name. (A model that is only on the Hugging "
                "Face hub must be downloaded to a folder first.)",
                name);
}

std::string best_checkpoint(const std::string& run_folder, std::string* notes) {
    throw_if(!is_folder(run_folder) || is_there(fs::path(run_folder) / "MANIFEST"), kExitBadInput,
             "--best: {}: expected the folder of a run. Leave out --best, or name that.", run_folder);
    const std::string newest = find_checkpoint(run_folder, notes);
    const auto best = newest.empty() ? std::nullopt : inspect_checkpoint(newest).record.best;
    throw_if(!best, kExitBadInput,
             "--best: {}: found {}, expected a checkpoint that says which is the best. Leave out --best; the "
             "best is kept where a run has --keep-best.",
             run_folder, newest.empty() ? "no checkpoint" : newest + ", which names none");
    return checkpoint_name(run_folder, best->step);
}

void load_start(Model* model, uint64_t seed, const std::string& checkpoint, const std::string& model_name) {
    model->init(seed);
    if (!checkpoint.empty()) {
        const Checkpoint source(checkpoint);
        model->set_updates(source.record().state.updates);
        load_checkpoint(source, writer(model));
    } else if (!model_name.empty()) {
        std::string notes;
        load_model(*open_model(model_name, &notes).source, writer(model));
    }
}

}  // namespace llmc

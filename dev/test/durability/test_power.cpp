// Power losses: from the recorded system calls of a run, the states that its folder can have when the power
// fails after any of them. Model of a file system that keeps its promises and no more (ext4, XFS):
// operations on names reach the disk in order, and all of those before an fsync of their folder do; of what
// was written to a file the part up to its last fsync is there, and of the rest nothing, half or all, or
// zeros in its place.
#include <atomic>
#include <map>
#include <set>

#include "dev/test/durability/small_run.h"
#include "llmc/model/formats/checkpoint.h"
#include "llmc/model/run/folder.h"

using namespace llmc;

namespace {

// what lies under a name: a folder (0), or a file, by the number of its creation
using Names = std::map<std::string, int>;

struct Operation {
    enum Kind { kName, kWrite, kSyncFile, kSyncFolder, kPromise } kind;
    Call call;              // of kName
    int file = 0;           // of kWrite and kSyncFile
    std::string data = {};  // of kWrite
    int64_t step = 0;       // of kPromise: the program says that it is saved
};

// an operation on names, if it can be done
bool apply(const Call& call, int file, Names* names) {
    if (call.name == "mkdir") {
        (*names)[call.path] = 0;
    } else if (call.name == "create") {
        (*names)[call.path] = file;
    } else if (call.name == "unlink" || call.name == "rmdir") {
        return names->erase(call.path) > 0;
    } else {  // rename, of a folder with all that is in it
        if (!names->contains(call.path)) { return false; }
        Names moved;
        for (auto it = names->begin(); it != names->end();) {
            if (it->first != call.path && !it->first.starts_with(call.path + "/")) {
                ++it;
                continue;
            }
            moved[call.to + it->first.substr(call.path.size())] = it->second;
            it = names->erase(it);
        }
        names->insert(moved.begin(), moved.end());
        for (const auto& [name, what] : moved) { (*names)[name] = what; }
    }
    return true;
}

class Recording {
public:
    Recording(const std::vector<Call>& calls, const std::string& root) : root_(root) {
        Names names = {{root, 0}};
        for (const Call& call : calls) {
            if (!call.succeeded) { continue; }
            if (call.name == "create") {
                if (names.contains(call.path)) { continue; }  // opened again (.lock)
                add_name(call, ++files_, &names);
            } else if (call.name == "mkdir" || call.name == "rename" || call.name == "unlink" ||
                       call.name == "rmdir") {
                add_name(call, 0, &names);
            } else if (call.name == "write" && names.contains(call.path)) {
                operations_.push_back({Operation::kWrite, {}, names[call.path], call.data});
            } else if (call.name == "say") {
                long long step = 0;
                int end = 0;
                std::sscanf(call.data.c_str(), "step %lld | saved %n", &step, &end);
                if (end == 0) { continue; }
                operations_.push_back({Operation::kPromise, {}, 0, "", step});
            } else if (call.name == "fsync") {
                auto found = names.find(call.path);
                if (found == names.end()) { continue; }
                operations_.push_back(
                    {found->second == 0 ? Operation::kSyncFolder : Operation::kSyncFile, {}, found->second});
            }
        }
    }

    struct State {
        std::map<std::string, std::string> files;  // by name without the root
        std::set<std::string> folders;
        bool operator<(const State& other) const {
            return std::tie(files, folders) < std::tie(other.files, other.folders);
        }
    };
    // every state after every operation, each once; with the newest step that must be there: its name had
    // reached the disk, or the program had said that it is saved
    std::map<State, int64_t> states() const {
        std::map<State, int64_t> all;
        std::map<int, std::string> written;
        std::map<int, size_t> synced;
        size_t reached = 0, seen = 0;  // operations on names: surely on the disk; so far
        int64_t durable = 0;
        for (const Operation& op : operations_) {
            if (op.kind == Operation::kName) { seen++; }
            if (op.kind == Operation::kWrite) { written[op.file] += op.data; }
            if (op.kind == Operation::kSyncFile) { synced[op.file] = written[op.file].size(); }
            if (op.kind == Operation::kSyncFolder) {
                reached = seen;
                durable = std::max(durable, newest(names_after(reached)));
            }
            durable = std::max(durable, op.step);
            for (size_t n = reached; n <= seen; n++) {
                const Names names = names_after(n);
                for (int rest : {0, 1, 2, 3}) {
                    State state = state_of(names, written, synced, rest);
                    auto [at, is_new] = all.insert({state, durable});
                    if (!is_new) { at->second = std::max(at->second, durable); }
                }
            }
        }
        return all;
    }

private:
    void add_name(const Call& call, int file, Names* names) {
        if (apply(call, file, names)) { operations_.push_back({Operation::kName, call, file}); }
    }
    Names names_after(size_t count) const {
        Names names = {{root_, 0}};
        for (const Operation& op : operations_) {
            if (op.kind != Operation::kName) { continue; }
            if (count-- == 0) { break; }
            apply(op.call, op.file, &names);
        }
        return names;
    }
    static int64_t newest(const Names& names) {
        int64_t step = 0;
        for (const auto& [name, what] : names) {
            const std::string last = fs::path(name).filename().string();
            bool whole = what == 0 && last.size() == 13 && last.starts_with("step_");
            if (whole) { step = std::max<int64_t>(step, std::stoll(last.substr(5))); }
        }
        return step;
    }
    // rest: 0 = nothing of what was not synced, 1 = half, 2 = all, 3 = zeros in its place
    State state_of(const Names& names, const std::map<int, std::string>& written,
                   const std::map<int, size_t>& synced, int rest) const {
        State state;
        for (const auto& [name, what] : names) {
            const std::string relative = name.substr(root_.size());
            if (what == 0) {
                state.folders.insert(relative);
                continue;
            }
            auto bytes = written.find(what);
            std::string content = bytes == written.end() ? "" : bytes->second;
            auto sure = synced.find(what);
            const size_t kept = sure == synced.end() ? 0 : sure->second, open = content.size() - kept;
            if (rest < 2) { content.resize(kept + (rest == 1 ? open / 2 : 0)); }
            if (rest == 3) { std::fill(content.begin() + (std::ptrdiff_t)kept, content.end(), '\0'); }
            state.files[relative] = content;
        }
        return state;
    }

    const std::string root_;
    int files_ = 0;
    std::vector<Operation> operations_;
};

void make_state(const Recording::State& state, const std::string& root) {
    fs::remove_all(root);
    for (const std::string& folder : state.folders) { fs::create_directories(root + folder); }
    for (const auto& [name, content] : state.files) { write_bytes(root + name, content); }
}

Words weights_in(const std::string& checkpoint) {
    return {read_bytes(checkpoint + "/model.safetensors"), read_bytes(checkpoint + "/optimizer.safetensors")};
}

// "" if nothing is lost in this state, else what
std::string judge(const std::string& run, int64_t durable, const std::map<int64_t, Words>& good) {
    std::string notes, found;
    try {
        found = find_checkpoint(run, &notes);
    } catch (const Error& e) { return fmt::format("step {} was saved: {}", durable, e.what()); }
    const int64_t step = found.empty() ? 0 : std::stoll(fs::path(found).filename().string().substr(5));
    if (step < durable) { return fmt::format("step {} was saved, {} is found", durable, step); }
    if (step == 0) { return ""; }
    return good.at(step) == weights_in(found) ? "" : fmt::format("a damaged step {} is taken for good", step);
}

}  // namespace

TEST_CASE("power: what was saved is there after a power loss at any moment") {
    if (!can_trace()) { return; }
    for (const char* more : {"--keep 1", "--keep 3 --keep-best", "--keep 1 --save-mode async"}) {
        Workshop shop;
        Traced traced = shop.traced("run", more, {}, true);
        REQUIRE(traced.exit_code == kExitDone);
        REQUIRE(shop.train("all", "--keep-best").exit_code == kExitDone);
        const Reference reference(shop / "all");
        std::map<int64_t, Words> good;
        for (int64_t step : {2, 3, 4, 6}) { good[step] = weights_in(checkpoint_name(shop / "all", step)); }
        const auto all = Recording(traced.calls, shop / "run").states();
        std::vector<const std::pair<const Recording::State, int64_t>*> states;
        for (const auto& state : all) { states.push_back(&state); }
        std::atomic<int64_t> durable_ones = 0, resumed = 0;
        const auto note = [&] { return fmt::format("{} of them trained on", resumed.load()); };
        try_each(
            fmt::format("power loss: {}", more), (int64_t)states.size(),
            [&](int64_t i) {
                const auto& [state, durable] = *states[(size_t)i];
                const std::string name = fmt::format("state{}", i);
                make_state(state, shop / name);
                std::string wrong = judge(shop / name, durable, good);
                if (wrong.empty() && durable > 0 &&
                    durable_ones++ % 10 == 0) {  // and the program itself, log included
                    ProgramRun run = shop.train(name, std::string(more) + " --resume auto");
                    wrong = run.exit_code != kExitDone ? run.err : reference.difference(shop / name);
                    resumed++;
                }
                fs::remove_all(shop / name);
                return wrong;
            },
            note);
    }
}

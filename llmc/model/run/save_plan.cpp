// What the checkpoints of a run will take: see save_plan.h.
#include "llmc/model/run/save_plan.h"

#include <sys/statvfs.h>
#include <algorithm>
#include <filesystem>

#include "llmc/host/base/error.h"
#include "llmc/host/base/resources.h"
#include "llmc/host/base/text.h"
#include "llmc/model/formats/checkpoint.h"

namespace llmc {

namespace {

// bytes for an ordinary user on the disk that a folder is on, or will be; -1 if the system does not say
int64_t free_disk(const std::string& folder) {
    std::error_code error;
    std::filesystem::path path = std::filesystem::absolute(folder, error);
    while (!error && path.has_relative_path() && !std::filesystem::exists(path, error)) {
        path = path.parent_path();
    }
    struct statvfs disk;
    return statvfs(path.c_str(), &disk) == 0 ? (int64_t)disk.f_bavail * (int64_t)disk.f_frsize : -1;
}

// multiples of `every` in (first, last]
int64_t multiples(int64_t first, int64_t last, int64_t every) {
    return every > 0 ? last / every - first / every : 0;
}

}  // namespace

SavePlan plan_saves(const Options& o, const RunPlan& plan, int64_t training_bytes) {
    SavePlan p;
    const int64_t first = plan.record.state.step, last = plan.steps;
    const bool ends_on_one = o.save_every > 0 && last % o.save_every == 0;
    p.saves = first < last ? multiples(first, last, o.save_every) + !ends_on_one : 0;
    p.at_once = p.saves;
    if (o.keep > 0) {  // those kept, the one that is written before the oldest goes, and those never counted
        p.at_once = std::min(p.saves, o.keep + 1 + multiples(first, last, o.keep_major) + o.keep_best);
    } else if (o.keep_best) {  // each of the validations may be the best so far
        p.at_once += multiples(first, last, o.val_every);
    }
    p.checkpoint_bytes = checkpoint_bytes(plan.config, o.optimizer);
    for (const auto& [name, text] : plan.record.tokenizer) { p.checkpoint_bytes += (int64_t)text.size(); }
    p.model_bytes = file_elements(plan.config) * (o.model_dtype == "bf16" ? 2 : 4);
    p.free_bytes = free_disk(plan.out);
    p.copy_bytes = state_elements(plan.config, o.optimizer) * (int64_t)sizeof(float);
    p.host_bytes = available_memory();
    const int64_t left = p.host_bytes - training_bytes;
    const bool unknown = p.host_bytes < 0;
    if (o.save_mode == "async" && !unknown && p.copy_bytes > left) {
        throw Error(kExitDevice,
                    fmt::format("--save-mode async takes a copy of {} in the host's memory, but {} is "
                                "left. Use --save-mode sync.",
                                bytes_text(p.copy_bytes), bytes_text(std::max<int64_t>(0, left))));
    }
    // half, so that the system's cache, through which files are written, has room beside it
    const bool has_room = !unknown && p.copy_bytes <= left / 2;
    p.background =
        o.save_mode == "async" || (o.save_mode == "auto" && o.program == Program::kGpu && has_room);
    p.why = o.save_mode != "auto"        ? "--save-mode " + o.save_mode
            : o.program == Program::kCpu ? "on the CPU it would slow the steps"
            : !has_room && !p.background ? "a copy would take more than half of what is free"
                                         : "--save-mode sync would stop it";
    return p;
}

std::string describe_saves(const SavePlan& p) {
    const std::string room = p.free_bytes >= 0 ? bytes_text(p.free_bytes) + " free" : "free: unknown";
    std::string text =
        fmt::format("{:11}| {} save{} x {}, {} at once, and model.bin of {} = {}; {}\n", "disk",
                    count_text(p.saves), p.saves == 1 ? "" : "s", bytes_text(p.checkpoint_bytes),
                    count_text(p.at_once), bytes_text(p.model_bytes), bytes_text(p.disk_bytes()), room);
    text += p.background
                ? fmt::format(
                      "{:11}| while the training goes on, from a copy of {} in the host's memory ({} "
                      "free): {}\n",
                      "saving", bytes_text(p.copy_bytes),
                      p.host_bytes >= 0 ? bytes_text(p.host_bytes) : "unknown", p.why)
                : fmt::format("{:11}| the training waits: {}\n", "saving", p.why);
    return text;
}

std::string disk_warning(const SavePlan& p, const std::string& folder) {
    if (p.free_bytes < 0 || p.disk_bytes() <= p.free_bytes) { return ""; }
    return fmt::format(
        "{}: the disk has {} free, the checkpoints of this run will need {}: a save will fail when it "
        "is full. Free some space (old step_ folders of the run may be deleted), or give a smaller --keep, "
        "a larger --save-every or another --out.\n",
        folder, bytes_text(p.free_bytes), bytes_text(p.disk_bytes()));
}

}  // namespace llmc

// What the checkpoints of a run will take: room on the disk, and in memory where they are written while the
// training goes on.
#pragma once
#include <cstdint>
#include <string>

#include "llmc/host/options/options.h"
#include "llmc/model/run/plan.h"

namespace llmc {

struct SavePlan {
    int64_t saves = 0;             // of this start
    int64_t at_once = 0;           // checkpoints of these on the disk at the most
    int64_t checkpoint_bytes = 0;  // each
    int64_t model_bytes = 0;       // model.bin at the end
    int64_t free_bytes = -1;       // on the disk, -1 = unknown
    bool background = false;       // written from a copy while the training goes on
    int64_t copy_bytes = 0;        // that copy's
    int64_t host_bytes = -1;       // free in the host's memory, -1 = unknown
    std::string why;               // of background

    int64_t disk_bytes() const { return at_once * checkpoint_bytes + model_bytes; }
};

// training_bytes: what the training itself takes of the host's memory. Throws Error(kExitDevice) if
// --save-mode async has no room for the copy.
SavePlan plan_saves(const Options& options, const RunPlan& plan, int64_t training_bytes);

// what the user sees at start-up, and what is to be said on stderr if the disk has too little room ("": it
// has enough)
std::string describe_saves(const SavePlan& plan);
std::string disk_warning(const SavePlan& plan, const std::string& folder);

}  // namespace llmc

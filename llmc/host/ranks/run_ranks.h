// A run in one process or many: the mains of the trainers call this.
#pragma once
#include <functional>

#include "llmc/host/options/options.h"
#include "llmc/host/ranks/comm.h"

namespace llmc {

// Calls train in each rank of the job that the options and the environment ask for (ranks.h), with
// options.world_size set, and returns the program's exit code. In a job of one that is all; with --gpus or
// --ranks the ranks are processes that this one starts. An error of one rank ends all with its exit code, and
// is printed once. devices: GPUs of this host, for --gpus all. With --dry-run nothing is started.
int run_ranks(const Options& options, const char* program, char** argv, int devices,
              const std::function<int(const Options&, Comm&)>& train);

}  // namespace llmc

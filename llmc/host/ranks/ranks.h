// Which of how many processes (ranks) of a job this one is, where they meet, and a run in one of them or in all.
#pragma once
#include <functional>
#include <string>

#include "llmc/host/options/launchers.h"
#include "llmc/host/options/options.h"

namespace llmc {

class Comm;

struct Ranks {
    int rank = 0, size = 1;
    int local_rank = 0, local_size = 1;  // among those on this host: its GPU, its share of the cores
    std::string host;                    // of rank 0, which listens there; "" in a job of one
    int port = 0;
    int listener = -1;   // of rank 0, if the launcher has opened it: the socket that listens
    std::string token;   // the same in all processes of a job and, if jobs are numbered, in no other's
    std::string source;  // where that was found: "torchrun's variables"
};

// How many ranks to start, by --gpus (all: devices) and --ranks; 0: none, this is one itself. Throws Error(kExitUsage).
int ranks_to_start(const Options& options, const Environment& environment, int devices);

// From, in this order: this program's own launcher; --rank and its companions, or --ranks 1; the variables of
// torchrun (RANK, WORLD_SIZE), Open MPI, PMI, and of SLURM inside an srun step; else a job of one. A size of
// more than 1 without its rank is refused, but for WORLD_SIZE, which other programs set too: it is passed over.
// MASTER_ADDR says at which host they meet, if it is set; the port comes of the job's number, MASTER_PORT and PLUMB_TOKEN. That
// is part of the token, and so are the options, if no job is numbered. Throws Error(kExitUsage) naming the variable or option.
Ranks find_ranks(const Options& options, const Environment& environment);

// Calls train in each rank of the job that the options and the environment ask for, with options.world_size set, and
// returns the program's exit code. In a job of one that is all; with --gpus or --ranks the ranks are processes that this
// one starts. An error of one rank ends all with its exit code, and is printed once. devices: GPUs of this host, for
// --gpus all. With --dry-run nothing is started.
int run_ranks(const Options& options, const char* program, char** argv, int devices,
              const std::function<int(const Options&, Comm&)>& train);

// the first host of SLURM's list: "node[07-09,12],login" -> "node07"
std::string first_host(const std::string& node_list);

}  // namespace llmc

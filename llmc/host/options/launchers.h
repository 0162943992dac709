// The variables by which torchrun, mpirun and srun tell a process which rank it is.
#pragma once
#include <algorithm>
#include <functional>
#include <iterator>
#include <string>

namespace llmc {

// the value of an environment variable, null if it is not set
using Environment = std::function<const char*(const char*)>;

// the launcher that a family of variables belongs to
struct Family {
    std::string name;
    std::string rank, size, local_rank, local_size;
    std::string job;  // what tells its jobs apart, with blanks between
};

inline const Family kFamilies[] = {
    {"torchrun's variables", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"},
    {"Open MPI's variables", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE"},
    {"PMI's variables", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS",
     "SLURM_JOB_ID SLURM_STEP_ID"},
    {"SLURM's variables", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "",
     "SLURM_JOB_ID SLURM_STEP_ID"},
};

// whether another launcher than this program's own has started this process as one of several
inline bool has_launcher(const Environment& environment) {
    const auto has = [&](const std::string& name) { return environment(name.c_str()) != nullptr; };
    return !has("PLUMB_RANK") &&
           std::any_of(std::begin(kFamilies), std::end(kFamilies),
                       [&](const Family& family) { return has(family.rank) && has(family.size); });
}

}  // namespace llmc

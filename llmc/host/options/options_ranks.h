// The options about many processes, and the table of all options. Only the parser includes this.
#pragma once
#include <algorithm>
#include <iterator>
#include <vector>

#include "llmc/host/options/options_data.h"
#include "llmc/host/options/options_optimizer.h"
#include "llmc/host/options/options_table.h"

namespace llmc {

inline const OptionRow kRanksTable[] = {
    {.name = "gpus",
     .value = "N|all",
     .field = &S::gpus,
     .also = "n-gpus num-gpus devices",
     .help = "train on N GPUs of this host: a process (rank) for each is started. Left out: what torchrun's, "
             "Open MPI's, PMI's or SLURM's variables say, else one",
     .group = "Many GPUs, many processes"},
    {.name = "ranks",
     .value = "N",
     .field = &S::ranks,
     .lo = 1,
     .hi = 1024,
     .unit = "processes",
     .also = "processes num-processes nproc-per-node",
     .help = "the same by the number of processes, on the CPU as well"},
    {.name = "reduce-groups",
     .value = "G",
     .field = &S::reduce_groups,
     .lo = 1,
     .hi = 65536,
     .unit = "groups",
     .help =
         "a step's micro-batches are in G groups, whose gradients are added in their order: the same "
         "bits for any number of ranks that divides G. Left out: as the run began, or the number of ranks"},
    {.name = "zero",
     .value = "0|1",
     .field = &S::zero,
     .lo = 0,
     .hi = 1,
     .unit = "(ZeRO-1 is the highest stage here)",
     .also = "zero-stage shard-optimizer",
     .help = "1 = each rank keeps its share of the optimizer's state only (ZeRO-1); 0 = all (llm.c's -z)"},
    {.name = "comm-timeout",
     .value = "S",
     .field = &S::comm_timeout,
     .lo = 1,
     .hi = 86400,
     .unit = "seconds",
     .also = "timeout nccl-timeout",
     .help = "a rank that gives no sign for so long, or keeps the others waiting, ends the job"},
    {.name = "check-ranks",
     .value = "N",
     .field = &S::check_ranks,
     .lo = 0,
     .hi = 0x1p31 - 1,
     .unit = "steps",
     .help = "every N steps the ranks compare their parameters, bit for bit; a difference, as by a GPU's "
             "failing memory, ends the job (0 = never)"},
    {.name = "world-size",
     .value = "N",
     .field = &S::world_size,
     .lo = 1,
     .hi = 65536,
     .unit = "processes",
     .help = "this is one of N processes, which you start yourself (llm.c's -pn)"},
    {.name = "rank",
     .value = "R",
     .field = &S::rank,
     .lo = 0,
     .hi = 65535,
     .help = "and the one of this number, from 0 (llm.c's -pr)"},
    {.name = "ranks-per-host",
     .value = "N",
     .field = &S::ranks_per_host,
     .lo = 1,
     .hi = 1024,
     .unit = "processes",
     .also = "gpus-per-node",
     .help = "of which N are on a host, rank R on GPU R mod N (llm.c's -pg); left out: all"},
    {.name = "master",
     .value = "HOST",
     .field = &S::master,
     .also = "master-addr server-ip",
     .help = "the host of rank 0, or HOST:PORT: where the others find it (llm.c's -ps)"},
};

// all options, in the order of --help
inline const std::vector<OptionRow> kOptionTable = [] {
    std::vector<OptionRow> rows(std::begin(kDataTable), std::end(kDataTable));
    rows.insert(rows.end(), std::begin(kTrainingTable), std::end(kTrainingTable));
    const auto put_before = [&](const std::string& group, const auto& table) {
        auto at = std::find_if(rows.begin(), rows.end(), [&](const OptionRow& row) {
            return row.group != nullptr && row.group == group;
        });
        rows.insert(at, std::begin(table), std::end(table));
    };
    put_before("Validation and samples", kOptimizerTable);
    put_before("General", kRanksTable);
    return rows;
}();

}  // namespace llmc

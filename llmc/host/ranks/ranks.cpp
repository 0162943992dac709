// Which rank this process is: see ranks.h.
#include "llmc/host/ranks/ranks.h"

#include <unistd.h>
#include <xxhash.h>
#include <algorithm>
#include <charconv>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <sstream>

#include "llmc/host/base/error.h"

namespace llmc {

namespace {

constexpr int kMostRanks = 65536, kDefaultPort = 29501;
constexpr int kFirstPort = 20000, kPorts = 10000;  // of numbered jobs: below those that systems hand out

int parse(const std::string& name, const std::string& text, int lo, int hi) {
    int value = 0;
    auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
    throw_if(code != std::errc() || end != text.data() + text.size() || value < lo || value > hi, kExitUsage,
             "{}={:.60}: expected a whole number, {} to {}. Whoever starts the ranks sets it.", name, text,
             lo, hi);
    return value;
}

// The nearest of this process's ancestors that does not have this variable: its launcher, whatever shells are in between.
int launcher_pid(const std::string& variable) {
    for (int pid = getppid();;) {
        std::ifstream variables(fmt::format("/proc/{}/environ", pid)),
            status(fmt::format("/proc/{}/status", pid));
        const std::string all = '\0' + std::string(std::istreambuf_iterator<char>(variables), {});
        if (all.find('\0' + variable + '=') == std::string::npos) { return pid; }
        for (std::string word; status >> word && word != "PPid:";) {}
        if (!(status >> pid)) { return 0; }
    }
}

class Finder {
public:
    Finder(const Options& o, const Environment& environment) : o_(o), get_(environment) {}

    Ranks find() const {
        if (has("PLUMB_RANK")) { return launched(); }
        if (o_.rank >= 0 && o_.world_size > 1) { return by_options(); }
        const bool one = o_.ranks == 1 || o_.gpus == "1" || (o_.world_size == 1 && o_.rank == 0);
        for (const Family& family : kFamilies) {
            // srun sets PMI's as well, without those of the host
            const bool of_srun =
                family.size == "PMI_SIZE" && text("SLURM_STEP_NUM_TASKS") == text("PMI_SIZE");
            if (one || of_srun || !has(family.size)) { continue; }
            if (has(family.rank)) { return by_variables(family); }
            if (family.size != "WORLD_SIZE") { require_one(family); }
        }
        throw_if(o_.world_size > 1, kExitUsage,
                 "--world-size {}: which of them this process is, nothing says. Give --rank (llm.c's -pr) "
                 "and --master (-ps), or --ranks {}, which starts them all.",
                 o_.world_size, o_.world_size);
        throw_if(o_.rank > 0, kExitUsage, "--rank {} needs --world-size (llm.c's -pn).", o_.rank);
        return {};
    }

private:
    bool has(const std::string& name) const { return get_(name.c_str()) != nullptr; }
    std::string text(const std::string& name) const { return has(name) ? get_(name.c_str()) : ""; }
    int number(const std::string& name, int lo, int hi, int if_not_set = -1) const {
        return has(name) ? parse(name, text(name), lo, hi) : if_not_set;
    }

    Ranks launched() const {
        Ranks r;
        r.source = "this program's launcher";
        r.size = r.local_size = number("PLUMB_RANK_COUNT", 1, kMostRanks);
        r.rank = r.local_rank = number("PLUMB_RANK", 0, r.size - 1);
        r.host = "127.0.0.1", r.port = number("PLUMB_RANK_PORT", 1, 65535);
        if (r.rank == 0) { r.listener = number("PLUMB_RANK_LISTENER", 0, 1 << 20); }
        r.token = text("PLUMB_TOKEN");
        return r;
    }

    Ranks by_options() const {
        throw_if(o_.rank >= o_.world_size, kExitUsage, "--rank {}: of --world-size {} the ranks are 0 to {}.",
                 o_.rank, o_.world_size, o_.world_size - 1);
        Ranks r;
        r.source = "--rank and --world-size";
        r.rank = o_.rank, r.size = o_.world_size, r.token = "options";
        place_on_host(-1, -1, &r);
        choose_master("", false, &r);
        return r;
    }

    Ranks by_variables(const Family& f) const {
        Ranks r;
        r.source = f.name;
        r.size = number(f.size, 1, kMostRanks);
        r.rank = number(f.rank, 0, r.size - 1);
        throw_if(o_.world_size > 1 && o_.world_size != r.size, kExitUsage,
                 "--world-size {}, but {}={}. Leave one of them out.", o_.world_size, f.size, r.size);
        if (r.size == 1) { return {}; }
        const bool slurm = f.rank == "SLURM_PROCID";
        place_on_host(number(f.local_rank, 0, r.size - 1),
                      slurm ? slurm_local_size() : number(f.local_size, 1, r.size), &r);
        const std::vector<std::string> job = split_words(f.job);
        for (const std::string& name : job) { r.token += fmt::format("{}={} ", name, text(name)); }
        bool numbered = std::ranges::any_of(job, [&](const std::string& name) { return has(name); });
        // MPICH's launcher numbers no jobs, and the ranks of two on one host would meet each other
        if (f.rank == "PMI_RANK" && has(f.local_size) && r.local_size == r.size) {
            numbered = true;
            r.token += std::to_string(launcher_pid(f.rank));
        }
        const char* nodes = has("SLURM_STEP_NODELIST") ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST";
        choose_master(slurm ? first_host(text(nodes)) : "", numbered, &r);
        return r;
    }

    // of a size whose rank is not set: each of several processes would train as if it were alone
    void require_one(const Family& f) const {
        const int size = number(f.size, 1, kMostRanks);
        throw_if(size > 1, kExitUsage,
                 "{}={}, but {} is not set: which of the {} ranks this process is, nothing says. {} count "
                 "together; a launcher sets both, SLURM's inside an srun step. (WORLD_SIZE without RANK "
                 "is passed over.) Set {}, or unset {}, or give --ranks 1 for a job of one process.",
                 f.size, size, f.rank, size, f.name, f.rank, f.size);
    }

    // local_rank, local_size: -1 if nothing says
    void place_on_host(int local_rank, int local_size, Ranks* r) const {
        if (o_.ranks_per_host > 0) { local_size = std::min(o_.ranks_per_host, r->size), local_rank = -1; }
        r->local_size = local_size > 0 ? local_size : r->size;
        r->local_rank = local_rank >= 0 ? local_rank : r->rank % r->local_size;
    }

    // of SLURM_STEP_TASKS_PER_NODE, "4(x2),3": the tasks on this node
    int slurm_local_size() const {
        std::istringstream list(text("SLURM_STEP_TASKS_PER_NODE"));
        int node = number("SLURM_NODEID", 0, kMostRanks, 0), tasks = 0;
        for (std::string nodes; std::getline(list, nodes, ',');) {
            int times = 1;
            if (std::sscanf(nodes.c_str(), "%d(x%d)", &tasks, &times) < 1) { break; }
            if (node < times) { return tasks; }
            node -= times;
        }
        return -1;
    }

    // where ranks meet: --master, MASTER_ADDR, `host`, or here if all are; numbered: does the token tell this job from others?
    void choose_master(const std::string& host, bool numbered, Ranks* r) const {
        const std::string here = r->local_size == r->size ? "127.0.0.1" : "";
        for (const std::string& one : {o_.master, text("MASTER_ADDR"), host, here}) {
            if (r->host.empty()) { r->host = one; }
        }
        r->token += text("PLUMB_TOKEN");
        // not MASTER_PORT itself, where torchrun listens, and none beside it, where a neighbour's may
        const std::string place = r->token + std::to_string(number("MASTER_PORT", 1, 65535, 0));
        const XXH64_hash_t job = XXH3_64bits(place.data(), place.size());
        r->port = place == "options0" ? kDefaultPort : kFirstPort + (int)(job % kPorts);
        // a rank that an earlier job has left waiting was started with other options, as a rule
        if (!numbered && !has("PLUMB_TOKEN")) { r->token += config_text(o_); }
        const size_t colon = r->host.rfind(':');
        const bool one_colon = colon != std::string::npos && r->host.find(':') == colon;  // IPv6 has more
        if (!o_.master.empty() && one_colon) {
            r->port = parse("--master's port", r->host.substr(colon + 1), 1, 65535);
            r->host.resize(colon);
        }
        throw_if(r->host.empty(), kExitUsage,
                 "{}: {} ranks on several hosts, and nothing says which is rank 0's. Give --master HOST, or "
                 "set MASTER_ADDR in all of them (mpirun -x MASTER_ADDR=HOST).",
                 r->source, r->size);
    }

    const Options& o_;
    const Environment& get_;
};

}  // namespace

int ranks_to_start(const Options& o, const Environment& environment, int devices) {
    if (environment("PLUMB_RANK") != nullptr) { return 0; }
    int count = o.ranks;
    if (!o.gpus.empty()) {
        throw_if(o.program == Program::kCpu, kExitUsage,
                 "--gpus is for train_gpt2cu. Here, on the CPU, --ranks N starts N processes.");
        throw_if(o.ranks > 0, kExitUsage, "--gpus and --ranks: give one or the other.");
        count = o.gpus == "all" ? devices : parse("--gpus", o.gpus, 1, 1024);
        throw_if(count > devices, kExitUsage,
                 "--gpus {}: this host has {} that the program may use. See nvidia-smi, and whether "
                 "CUDA_VISIBLE_DEVICES hides some.",
                 count, devices);
    }
    throw_if(
        count > 0 && o.world_size > 1, kExitUsage,
        "--world-size is for processes that you start yourself, --gpus and --ranks start them. Give one.");
    return count > 1 ? count : 0;
}

Ranks find_ranks(const Options& options, const Environment& environment) {
    return Finder(options, environment).find();
}

std::string first_host(const std::string& list) {
    const size_t bracket = list.find('['), comma = list.find(',');
    if (bracket == std::string::npos || comma < bracket) { return list.substr(0, comma); }
    const size_t number_end = list.find_first_of(",-]", bracket);
    return list.substr(0, bracket) + list.substr(bracket + 1, number_end - bracket - 1);
}

}  // namespace llmc

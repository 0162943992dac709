// Which rank a process is: what options, launchers' variables and this program's own launcher say, in that
// order.
#include <unistd.h>
#include <map>
#include <string>

#include <doctest/doctest.h>

#include "dev/test/support/test_files.h"
#include "llmc/host/ranks/ranks.h"

using namespace llmc;

namespace {

using Variables = std::map<std::string, std::string>;

Environment of(const Variables& variables) {
    return [&variables](const char* name) {
        auto found = variables.find(name);
        return found == variables.end() ? nullptr : found->second.c_str();
    };
}

Ranks find(const Variables& variables, const Options& options = {}) {
    return find_ranks(options, of(variables));
}

// rank/size local_rank/local_size host
std::string text(const Ranks& r) {
    return fmt::format("{}/{} {}/{} {}", r.rank, r.size, r.local_rank, r.local_size, r.host);
}

Options with(int world_size, int rank, const std::string& master = "", int ranks_per_host = 0) {
    Options o;
    o.world_size = world_size, o.rank = rank, o.master = master, o.ranks_per_host = ranks_per_host;
    return o;
}

const Variables kTorchrun = {{"RANK", "5"},
                             {"WORLD_SIZE", "8"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "4"},
                             {"MASTER_ADDR", "alpha"},
                             {"MASTER_PORT", "29500"},
                             {"TORCHELASTIC_RUN_ID", "job7"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                            {"OMPI_COMM_WORLD_SIZE", "2"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                            {"PMIX_NAMESPACE", "2949906433"}};
const Variables kPmi = {{"PMI_RANK", "1"}, {"PMI_SIZE", "3"}};
const Variables kSlurm = {{"SLURM_PROCID", "9"},    {"SLURM_STEP_NUM_TASKS", "11"},
                          {"SLURM_LOCALID", "1"},   {"SLURM_STEP_TASKS_PER_NODE", "4(x2),3"},
                          {"SLURM_NODEID", "2"},    {"SLURM_STEP_NODELIST", "gpu[07-09]"},
                          {"SLURM_JOB_ID", "1234"}, {"SLURM_STEP_ID", "0"}};

}  // namespace

TEST_CASE("ranks: each launcher's variables are understood") {
    CHECK(text(find({})) == "0/1 0/1 ");
    CHECK(text(find(kTorchrun)) == "5/8 1/4 alpha");
    CHECK(text(find(kOpenMpi)) == "1/2 1/2 127.0.0.1");
    CHECK(text(find(kPmi)) == "1/3 1/3 127.0.0.1");
    CHECK(text(find(kSlurm)) == "9/11 1/3 gpu07");
    Variables v = kSlurm;
    v["SLURM_NODEID"] = "1";
    CHECK(text(find(v)) == "9/11 1/4 gpu07");
    v["PMI_RANK"] = "9", v["PMI_SIZE"] = "11";  // srun sets these as well
    CHECK(text(find(v)) == "9/11 1/4 gpu07");
    v["SLURM_STEP_NUM_TASKS"] = "3";  // mpiexec in a step of three hosts
    v["MPI_LOCALRANKID"] = "2", v["MPI_LOCALNRANKS"] = "4", v["MASTER_ADDR"] = "alpha";
    CHECK(text(find(v)) == "9/11 2/4 alpha");
    v = kOpenMpi;
    v["MASTER_ADDR"] = "beta", v["MASTER_PORT"] = "400";
    CHECK(text(find(v)) == "1/2 1/2 beta");
    CHECK(text(find({{"PLUMB_RANK", "2"}, {"PLUMB_RANK_COUNT", "4"}, {"PLUMB_RANK_PORT", "77"}})) ==
          "2/4 2/4 127.0.0.1");
}

TEST_CASE("ranks: options win over variables, and one family of variables over the next") {
    Variables all = {{"PLUMB_RANK", "1"}, {"PLUMB_RANK_COUNT", "2"}, {"PLUMB_RANK_PORT", "77"}};
    for (const Variables& v : {kTorchrun, kOpenMpi, kPmi, kSlurm}) { all.insert(v.begin(), v.end()); }
    CHECK(text(find(all, with(3, 2, "gamma"))) == "1/2 1/2 127.0.0.1");
    for (const char* name : {"PLUMB_RANK", "PLUMB_RANK_COUNT", "PLUMB_RANK_PORT"}) { all.erase(name); }
    CHECK(text(find(all, with(3, 2, "gamma"))) == "2/3 2/3 gamma");
    CHECK(text(find(all)) == "5/8 1/4 alpha");
    all.erase("RANK");  // WORLD_SIZE alone is no rank
    CHECK(find(all).source == "Open MPI's variables");
    all.erase("OMPI_COMM_WORLD_SIZE");
    CHECK(find(all).source == "PMI's variables");
    all.erase("PMI_SIZE");
    CHECK(find(all).source == "SLURM's variables");
    all.erase("SLURM_STEP_NUM_TASKS");  // an allocation, but no step
    CHECK(text(find(all)) == "0/1 0/1 ");
    Options one;
    one.ranks = 1;
    CHECK(text(find(kTorchrun, one)) == "0/1 0/1 ");
    CHECK(text(find(kTorchrun, with(1, 0))) == "0/1 0/1 ");
}

TEST_CASE("ranks: a size without its rank is refused, but for WORLD_SIZE") {
    auto refused = [](Variables v, const std::string& size, const std::string& rank) {
        v.erase(rank);
        check_error(error_of([&] { find(v); }), kExitUsage,
                    {size + "=" + v[size], rank + " is not set", "--ranks 1"});
        Options one;
        one.ranks = 1;
        CHECK(text(find(v, one)) == "0/1 0/1 ");
        CHECK(text(find(v, with(3, 2, "gamma"))) == "2/3 2/3 gamma");
        v["RANK"] = "5", v["WORLD_SIZE"] = "8", v["MASTER_ADDR"] = "alpha";
        CHECK(find(v).source == "torchrun's variables");
        v.erase("RANK");
        v[size] = "1";
        CHECK(text(find(v)) == "0/1 0/1 ");
        v[size] = "two";
        check_error(error_of([&] { find(v); }), kExitUsage, {size + "=two", "expected"});
    };
    refused(kOpenMpi, "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK");
    refused(kPmi, "PMI_SIZE", "PMI_RANK");
    refused(kSlurm, "SLURM_STEP_NUM_TASKS", "SLURM_PROCID");
    Variables v = kSlurm;  // srun's PMI_SIZE counts as SLURM's
    v["PMI_SIZE"] = "11";
    CHECK(find(v).source == "SLURM's variables");
    v.erase("SLURM_PROCID");
    check_error(error_of([&] { find(v); }), kExitUsage, {"SLURM_PROCID is not set"});
    CHECK(text(find({{"WORLD_SIZE", "8"}})) == "0/1 0/1 ");
    CHECK(text(find({{"SLURM_NTASKS", "8"}, {"SLURM_JOB_ID", "1"}})) == "0/1 0/1 ");  // no step
}

TEST_CASE("ranks: hosts, ports and tokens") {
    CHECK(text(find({}, with(4, 3, "delta", 2))) == "3/4 1/2 delta");
    CHECK(find({}, with(4, 3, "delta")).port == 29501);
    Ranks r = find({}, with(4, 3, "delta:123"));
    CHECK(r.host == "delta");
    CHECK(r.port == 123);
    r = find({}, with(2, 1, "fe80::1"));
    CHECK(r.host == "fe80::1");
    CHECK(text(find({}, with(2, 1))) == "1/2 1/2 127.0.0.1");
    // jobs with numbers of their own have tokens and, most likely, ports of their own
    Variables other = kOpenMpi;
    other["PMIX_NAMESPACE"] = "2949906434";
    CHECK(find(other).token != find(kOpenMpi).token);
    CHECK(find(other).port != find(kOpenMpi).port);
    // MPICH's launcher numbers none: its process does
    const std::string pid = std::to_string(getppid());
    const Variables mpich = {
        {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
    CHECK(find(mpich).token.ends_with(pid));
    Variables again = kOpenMpi;
    again["OMPI_COMM_WORLD_RANK"] = "0", again["OMPI_COMM_WORLD_LOCAL_RANK"] = "0";
    CHECK(find(again).token == find(kOpenMpi).token);
    CHECK(find(again).port == find(kOpenMpi).port);
    again["PLUMB_TOKEN"] = "secret";
    CHECK(find(again).token != find(kOpenMpi).token);

    // nor do neighbours on one host meet: torchrun itself, or another one, may listen at MASTER_PORT and beside it
    Variables neighbour = kTorchrun;
    neighbour["MASTER_PORT"] = "29501";
    CHECK(find(neighbour).port != find(kTorchrun).port);
    for (const Variables& v : {neighbour, kTorchrun}) {
        CHECK((find(v).port < 29500 || find(v).port > 29510));
    }
    // of a job without a number the options are a part: a rank that is left of an earlier one has others
    Options mine = with(2, 1), others = with(2, 1);
    others.lr = 0.5;
    CHECK(find({}, mine).token != find({}, others).token);
    CHECK(find({}, mine).port == find({}, others).port);
    CHECK(find({}, mine).token == find({}, with(2, 0)).token);
    CHECK(find({{"PLUMB_TOKEN", "x"}}, mine).token == find({{"PLUMB_TOKEN", "x"}}, others).token);

    CHECK(first_host("node[07-09,12],login") == "node07");
    CHECK(first_host("node[3,5]") == "node3");
    CHECK(first_host("login,node[07-09]") == "login");
    CHECK(first_host("alone") == "alone");
    CHECK(first_host("node[12]") == "node12");
}

TEST_CASE("ranks: what cannot be is refused, and the variable or option named") {
    auto refused = [](Variables v, const std::string& name, const std::string& value, const Options& o = {}) {
        v[name] = value;
        check_error(error_of([&] { find(v, o); }), kExitUsage, {name + "=" + value, "expected"});
    };
    for (const char* bad : {"", "x", "-1", "8", "1 ", "99999999999"}) { refused(kTorchrun, "RANK", bad); }
    refused(kTorchrun, "WORLD_SIZE", "0");
    refused(kTorchrun, "LOCAL_WORLD_SIZE", "9");
    refused(kTorchrun, "MASTER_PORT", "65536");
    refused(kSlurm, "SLURM_PROCID", "11");
    auto usage = [](const Variables& v, const Options& o, const std::string& what) {
        check_error(error_of([&] { find(v, o); }), kExitUsage, {what});
    };
    usage({}, with(4, -1), "--rank");
    usage({}, with(4, 4), "0 to 3");
    usage({}, with(0, 2), "--world-size");
    usage(kTorchrun, with(4, -1), "WORLD_SIZE=8");
    usage({}, with(4, 1, "", 2), "--master");
    usage({}, with(2, 1, "host:0"), "port");
    Variables two_hosts = kOpenMpi;
    two_hosts["OMPI_COMM_WORLD_LOCAL_SIZE"] = "1", two_hosts["OMPI_COMM_WORLD_LOCAL_RANK"] = "0";
    usage(two_hosts, {}, "mpirun -x MASTER_ADDR");
}

TEST_CASE("ranks: how many this process starts") {
    auto started = [](Program program, const std::string& gpus, int ranks, int devices) {
        Options o;
        o.program = program, o.gpus = gpus, o.ranks = ranks;
        return ranks_to_start(o, of({}), devices);
    };
    CHECK(started(Program::kCpu, "", 0, 0) == 0);
    CHECK(started(Program::kCpu, "", 1, 0) == 0);
    CHECK(started(Program::kCpu, "", 4, 0) == 4);
    CHECK(started(Program::kGpu, "2", 0, 8) == 2);
    CHECK(started(Program::kGpu, "all", 0, 8) == 8);
    CHECK(started(Program::kGpu, "all", 0, 1) == 0);
    CHECK(started(Program::kGpu, "", 3, 1) == 3);  // several share a GPU
    Options four;
    four.ranks = 4;
    CHECK(ranks_to_start(four, of({{"PLUMB_RANK", "1"}}), 0) == 0);  // it has been started
    CHECK(ranks_to_start(four, of(kTorchrun), 0) == 4);
    auto refused = [&](Program program, const std::string& gpus, int ranks, const std::string& what) {
        check_error(error_of([&] { started(program, gpus, ranks, 2); }), kExitUsage, {what});
    };
    refused(Program::kCpu, "2", 0, "--ranks N");
    refused(Program::kGpu, "3", 0, "CUDA_VISIBLE_DEVICES");
    refused(Program::kGpu, "two", 0, "--gpus=two");
    refused(Program::kGpu, "0", 0, "--gpus=0");
    refused(Program::kGpu, "2", 2, "one or the other");
    four.world_size = 4;
    check_error(error_of([&] { ranks_to_start(four, of({}), 0); }), kExitUsage, {"--world-size"});
}

// The processes of a job: which rank one is, by options, launchers' variables and this program's own launcher, in that order;
// how they meet, and that what they then say to each other arrives; which of them the watchdog finds at fault, and that it
// ends the job then.
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>
#include <atomic>
#include <cstdio>
#include <future>
#include <numeric>
#include <optional>

#include "dev/test/support/many_ranks.h"
#include "llmc/host/ranks/comm.h"
#include "llmc/host/ranks/watchdog.h"
#include "llmc/model/cpu/gradient_sums.h"

using namespace llmc;

namespace {

using Variables = std::map<std::string, std::string>;

Environment of(const Variables& all) {
    return [&all](const char* name) {
        auto found = all.find(name);
        return found == all.end() ? nullptr : found->second.c_str();
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

// "NAME=value NAME=value"
Variables variables(const std::string& text) {
    Variables all;
    for (const std::string& word : words(text)) {
        all[word.substr(0, word.find('='))] = word.substr(word.find('=') + 1);
    }
    return all;
}

const Variables kTorchrun = variables(
    "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_ADDR=alpha MASTER_PORT=29500 "
    "TORCHELASTIC_RUN_ID=job7");
const Variables kOpenMpi = variables(
    "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 "
    "PMIX_NAMESPACE=2949906433");
const Variables kPmi = variables("PMI_RANK=1 PMI_SIZE=3");
const Variables kSlurm = variables(
    "SLURM_PROCID=9 SLURM_STEP_NUM_TASKS=11 SLURM_LOCALID=1 SLURM_STEP_TASKS_PER_NODE=4(x2),3 SLURM_NODEID=2 "
    "SLURM_STEP_NODELIST=gpu[07-09] SLURM_JOB_ID=1234 SLURM_STEP_ID=0");
const Variables kOurs = variables("PLUMB_RANK=2 PLUMB_RANK_COUNT=4 PLUMB_RANK_PORT=77");

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
    CHECK(text(find(kOurs)) == "2/4 2/4 127.0.0.1");
}

TEST_CASE("ranks: options win over variables, and one family of variables over the next") {
    Variables all = kOurs;
    for (const Variables& v : {kTorchrun, kOpenMpi, kPmi, kSlurm}) { all.insert(v.begin(), v.end()); }
    CHECK(text(find(all, with(3, 2, "gamma"))) == "2/4 2/4 127.0.0.1");
    for (const auto& [name, value] : kOurs) { all.erase(name); }
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
        check_error([&] { find(v); }, kExitUsage, {size + "=" + v[size], rank + " is not set", "--ranks 1"});
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
        check_error([&] { find(v); }, kExitUsage, {size + "=two", "expected"});
    };
    refused(kOpenMpi, "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK");
    refused(kPmi, "PMI_SIZE", "PMI_RANK");
    refused(kSlurm, "SLURM_STEP_NUM_TASKS", "SLURM_PROCID");
    Variables v = kSlurm;  // srun's PMI_SIZE counts as SLURM's
    v["PMI_SIZE"] = "11";
    CHECK(find(v).source == "SLURM's variables");
    v.erase("SLURM_PROCID");
    check_error([&] { find(v); }, kExitUsage, {"SLURM_PROCID is not set"});
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
    const Variables mpich = variables("PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2");
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

    for (const auto& [list, first] : {std::pair{"node[07-09,12],login", "node07"},
                                      {"node[3,5]", "node3"},
                                      {"login,node[07-09]", "login"},
                                      {"node[12]", "node12"},
                                      {"alone", "alone"}}) {
        CHECK(first_host(list) == first);
    }
}

TEST_CASE("ranks: what cannot be is refused, and the variable or option named") {
    auto refused = [](Variables v, const std::string& name, const std::string& value, const Options& o = {}) {
        v[name] = value;
        check_error([&] { find(v, o); }, kExitUsage, {name + "=" + value, "expected"});
    };
    for (const char* bad : {"", "x", "-1", "8", "1 ", "99999999999"}) { refused(kTorchrun, "RANK", bad); }
    refused(kTorchrun, "WORLD_SIZE", "0");
    refused(kTorchrun, "LOCAL_WORLD_SIZE", "9");
    refused(kTorchrun, "MASTER_PORT", "65536");
    refused(kSlurm, "SLURM_PROCID", "11");
    auto usage = [](const Variables& v, const Options& o, const std::string& what) {
        check_error([&] { find(v, o); }, kExitUsage, {what});
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
    for (auto [ranks, here] : {std::pair{0, 0}, {1, 0}, {4, 4}}) {
        CHECK(started(Program::kCpu, "", ranks, 0) == here);
    }
    for (auto [gpus, ranks, devices, here] :  // the last: several share a GPU
         {std::tuple{"2", 0, 8, 2}, {"all", 0, 8, 8}, {"all", 0, 1, 0}, {"", 3, 1, 3}}) {
        CHECK(started(Program::kGpu, gpus, ranks, devices) == here);
    }
    Options four;
    four.ranks = 4;
    CHECK(ranks_to_start(four, of({{"PLUMB_RANK", "1"}}), 0) == 0);  // it has been started
    CHECK(ranks_to_start(four, of(kTorchrun), 0) == 4);
    for (const auto& [program, gpus, ranks, what] : {std::tuple{Program::kCpu, "2", 0, "--ranks N"},
                                                     {Program::kGpu, "3", 0, "CUDA_VISIBLE_DEVICES"},
                                                     {Program::kGpu, "two", 0, "--gpus=two"},
                                                     {Program::kGpu, "0", 0, "--gpus=0"},
                                                     {Program::kGpu, "2", 2, "one or the other"}}) {
        check_error([&] { started(program, gpus, ranks, 2); }, kExitUsage, {what});
    }
    four.world_size = 4;
    check_error([&] { ranks_to_start(four, of({}), 0); }, kExitUsage, {"--world-size"});
}

// ---- how they meet -----------------------------------------------------------------------------

namespace {

struct Met {
    std::optional<std::vector<Peer>> peers;
    Error error{0, ""};
};

std::future<Met> meeting(const Ranks& ranks, int timeout_s = 20) {
    return std::async(std::launch::async, [=] {
        Met met;
        met.error = error_of([&] { met.peers = meet(ranks, timeout_s); });
        return met;
    });
}

// rank 0 that has to listen by itself
Ranks without_listener(Ranks ranks) {
    close(std::exchange(ranks.listener, -1));
    return ranks;
}

void check_together(std::vector<std::future<Met>> all) {
    std::vector<Met> met;
    for (auto& one : all) { met.push_back(one.get()); }
    const size_t n = met.size();
    for (size_t r = 0; r < n; r++) {
        CAPTURE(r);
        REQUIRE_MESSAGE(met[r].peers, met[r].error.what());
        for (size_t s = r == 0 ? 1 : 0; s < (r == 0 ? n : 1); s++) {  // rank 0 and each other
            const int say = (int)(10 * r + s);
            CHECK((*met[r].peers)[s].data.send_all(&say, sizeof(say)));
            CHECK((*met[r].peers)[s].control.send_all(&say, sizeof(say)));
        }
    }
    for (size_t r = 0; r < n; r++) {
        for (size_t s = r == 0 ? 1 : 0; s < (r == 0 ? n : 1); s++) {
            int heard[2] = {-1, -1};
            CHECK((*met[r].peers)[s].data.receive_all(&heard[0], sizeof(int)));
            CHECK((*met[r].peers)[s].control.receive_all(&heard[1], sizeof(int)));
            for (int h : heard) { CHECK(h == (int)(10 * s + r)); }
        }
        CHECK(met[r].peers->front().who.find(fmt::format("process {}", (int)getpid())) != std::string::npos);
    }
}

// a job of threads: what each does with its Comm
template <typename Body>
void in_ranks(int size, Body body) {
    MeetingPlace place;
    std::vector<std::future<void>> all;
    for (int rank = 0; rank < size; rank++) {
        all.push_back(std::async(std::launch::async, [&, rank] {
            const auto comm = join_ranks(place.ranks(rank, size), 60, "test");
            body(*comm);
        }));
    }
    for (auto& one : all) { one.get(); }
}

}  // namespace

TEST_CASE("rendezvous: ranks meet in whatever order they come") {
    for (int size : {2, 3, 5}) {
        MeetingPlace place;
        std::vector<std::future<Met>> all((size_t)size);
        for (int rank = size - 1; rank >= 0; rank--) {
            all[(size_t)rank] = meeting(place.ranks(rank, size));
            if (rank == size - 1) { usleep(20'000); }
        }
        check_together(std::move(all));
    }
}

TEST_CASE("rendezvous: five hundred strangers, most of them mute, neither delay a start nor prevent it") {
    MeetingPlace place;
    std::vector<Socket> strangers;
    const auto come = [&](int count) {
        for (int i = 0; i < count; i++) { strangers.push_back(place.connected()); }
    };
    come(400);
    const std::string noise = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + std::string(1000, 'x');
    strangers[3].send_all(noise.data(), noise.size());
    strangers[4].send_all(noise.data(), 10);
    strangers[5] = Socket();
    const auto begin = std::chrono::steady_clock::now();
    std::vector<std::future<Met>> all;
    all.push_back(meeting(place.ranks(0, 2)));
    check_error(meeting(place.ranks(1, 2, "another job"), 2).get().error, kExitPeerLost,
                {"rank 1 cannot reach rank 0", "another job"});
    come(100);
    all.push_back(meeting(place.ranks(1, 2)));
    check_together(std::move(all));
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(6));
}

TEST_CASE("rendezvous: ranks of one host listen to that host alone") {
    MeetingPlace place;
    const Ranks first = without_listener(place.ranks(0, 3));
    place.listener = Socket();
    std::vector<std::future<Met>> all;
    all.push_back(meeting(first));
    all.push_back(meeting(place.ranks(1, 3)));
    usleep(500'000);  // for the third they wait
    int listening = 0;
    for (int fd = 0; fd < 1024; fd++) {
        int yes = 0;
        sockaddr_storage at = {};
        socklen_t size = sizeof(yes), length = sizeof(at);
        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &yes, &size) != 0 || yes == 0) { continue; }
        listening++;
        getsockname(fd, (sockaddr*)&at, &length);
        CHECK(at.ss_family == AF_INET);
        CHECK(((sockaddr_in*)&at)->sin_addr.s_addr == htonl(INADDR_LOOPBACK));
    }
    CHECK(listening == 1);
    all.push_back(meeting(place.ranks(2, 3)));
    check_together(std::move(all));
}

TEST_CASE("rendezvous: doubles and ranks of other numbers are refused") {
    MeetingPlace place;
    std::vector<std::future<Met>> all;
    all.push_back(meeting(place.ranks(0, 3)));
    all.push_back(meeting(place.ranks(1, 3)));
    usleep(300'000);
    check_error(meeting(place.ranks(1, 3)).get().error, kExitUsage, {"two processes are rank 1 of 3"});
    check_error(meeting(place.ranks(1, 2)).get().error, kExitUsage, {"is one of 3", "rank 1 of 2"});
    all.push_back(meeting(place.ranks(2, 3)));
    check_together(std::move(all));
}

TEST_CASE("rendezvous: who does not come is named") {
    MeetingPlace place;
    auto second = meeting(place.ranks(2, 4), 3);
    check_error(meeting(place.ranks(0, 4), 1).get().error, kExitPeerLost,
                {"of 4 ranks, rank 1, 3:", fmt::format("127.0.0.1:{}, in 1 s", place.port)});
    check_error(second.get().error, kExitPeerLost, {"rank 0", "ended while the ranks met"});
    Ranks nobody = place.ranks(1, 2);
    nobody.port = 1;
    check_error(meeting(nobody, 1).get().error, kExitPeerLost, {"127.0.0.1:1", "refused"});
    nobody.host = "no-such-host.invalid";
    check_error(meeting(nobody, 1).get().error, kExitPeerLost, {"no-such-host.invalid:1"});
    const Ranks taken = without_listener(place.ranks(0, 2));  // the port is `place`'s
    check_error(meeting(taken, 1).get().error, kExitPeerLost, {"cannot be listened at", "MASTER_PORT"});
}

TEST_CASE("comm: what is gathered, told and exchanged") {
    for (int size : {1, 2, 4}) {
        in_ranks(size, [&](Comm& comm) {
            const std::vector<int64_t> begins = shares(1'000'003, 1 << 16, size);
            std::vector<float> whole((size_t)begins.back(), -1.0f), expected((size_t)begins.back());
            std::iota(expected.begin(), expected.end(), 0.0f);
            const auto me = (size_t)comm.rank();
            std::copy(expected.begin() + begins[me], expected.begin() + begins[me + 1],
                      whole.begin() + begins[me]);
            std::vector<float> gathered = whole;
            comm.gather("gathered", gathered.data(), begins);
            CHECK((gathered == (comm.root() ? expected : whole)));
            comm.all_gather("all", whole.data(), begins);
            CHECK((whole == expected));
            CHECK(comm.text_from_root("text", comm.root() ? "of rank 0" : "") == "of rank 0");
            CHECK(comm.text_from_root("text", "") == "");
            CHECK(comm.root_says("yes", comm.root()));
            CHECK_FALSE(comm.root_says("no", !comm.root()));
        });
    }
}

TEST_CASE("comm: a rank without a thread to watch the others says so") {
    MeetingPlace place;
    std::atomic<bool> begin = false;
    std::vector<std::future<Error>> ranks;
    for (int rank : {0, 1}) {
        ranks.push_back(std::async(std::launch::async, [&, rank] {
            wait_until([&] { return begin.load(); });
            return error_of([&] { join_ranks(place.ranks(rank, 2), 20, "test"); });
        }));
    }
    const NoThreads limit;
    begin = true;
    for (auto& one : ranks) { check_error(one.get(), kExitDevice, {"no thread to watch", "ulimit -u"}); }
}

// A chunk in the middle is so large that each of those added after it is lost, but not those before it.
TEST_CASE("gradient sums of many ranks: the norm's bits are those of one rank") {
    GPT2Config c;
    c.max_seq_len = 33, c.vocab_size = 500, c.padded_vocab_size = 512;
    c.num_layers = 23, c.num_heads = 2, c.channels = 86;
    std::vector<float> grads((size_t)ParameterLayout(c).size(), 1);
    std::fill_n(grads.begin() + 20 * kNormChunk, kNormChunk, 1.3e8f);
    for (bool muon : {false, true}) {
        CAPTURE(muon);
        double norm = 0;
        for (int size : {1, 2, 3, 6}) {
            in_ranks(size, [&](Comm& comm) {
                std::vector<float> mine = grads;
                GradientSums sums(StateShares(c, {.muon = muon, .ranks = size, .groups = 6}), &comm);
                for (int k = 0; k < sums.groups_here(); k++) { sums.add(mine, k == 0); }
                const double found = sums.norm();
                if (size == 1) { norm = found; }
                CHECK(norm > 0);
                CHECK(found == norm);
            });
        }
    }
}

TEST_CASE("comm: shares end on chunks and cover all") {
    using Borders = std::vector<int64_t>;
    CHECK((shares(10, 4, 2) == Borders{0, 4, 10}));
    CHECK((shares(10, 4, 5) == Borders{0, 0, 4, 4, 8, 10}));
    CHECK((shares(0, 4, 2) == Borders{0, 0, 0}));
}

// ---- the watchdog ------------------------------------------------------------------------------

namespace {

const std::vector<std::string> kWho = {"rank 0 (a)", "rank 1 (b)", "rank 2 (c)"};

// waiting_ms: -1 = it has returned from the call
RankReport report(int64_t calls, const char* what, int64_t waiting_ms, int64_t silent_ms = 0) {
    RankReport r;
    r.step = 7, r.calls = calls, r.what = what, r.silent_ms = silent_ms;
    r.inside = waiting_ms >= 0, r.waiting_ms = std::max<int64_t>(0, waiting_ms);
    return r;
}

void check_says(std::vector<RankReport> ranks, std::initializer_list<std::string> parts) {
    for (size_t r = 0; r < ranks.size(); r++) { ranks[r].who = kWho[r]; }
    const std::string why = judge(ranks, 3000);
    if (parts.size() == 0) { CHECK(why == ""); }
    check_holds(why, parts);
}

}  // namespace

TEST_CASE("watchdog: as long as all is well it says nothing") {
    check_says({report(5, "gradients", 10), report(5, "gradients", 20, 400), report(4, "losses", -1)}, {});
    // each computes for longer than the timeout; and one is done
    check_says({report(5, "x", -1), report(5, "x", -1, 3000), report(5, "x", -1)}, {});
    RankReport done = report(9, "x", -1, 9000);
    done.done = 1, done.gone = true;
    check_says({report(9, "x", -1), done, report(9, "x", -1)}, {});
}

TEST_CASE("watchdog: a rank that is gone, silent or late is named, with step and call") {
    RankReport gone = report(5, "gradients", 10, 299);
    gone.gone = true;
    check_says({report(5, "gradients", 10), gone, report(5, "gradients", 10)}, {});
    gone.silent_ms = 300;
    check_says({report(5, "gradients", 10), gone, report(5, "gradients", 10)},
               {"rank 1 (b) is gone", "Rank 0 was at step 7, in 'gradients'"});
    check_says({report(5, "gradients", 10), report(5, "losses", -1), report(5, "gradients", 10, 3001)},
               {"rank 2 (c) has given no sign for 3 s", "stopped", "at step 7, in 'gradients'"});
    check_says({report(5, "gradients", 100), report(4, "losses", -1), report(5, "gradients", 3001, 100)},
               {"rank 1 (b) keeps rank 2 (c) waiting for 3 s", "after 'losses'", "in 'gradients'"});
    check_says({report(4, "losses", -1), report(5, "gradients", 3001), report(5, "gradients", 10)},
               {"rank 0 (a) keeps rank 1 (b) waiting"});
    // one has done its part of the call, or all are in it
    check_says({report(5, "gradients", 3001), report(5, "gradients", 3002), report(5, "gradients", -1)},
               {"'gradients' does not end on rank 1 (b) for 3 s", "though all ranks have come"});
}

namespace {

struct Ended {
    std::vector<int> codes;  // by rank
    std::string said;        // by all on stderr
};

// Stands between rank 1 and rank 0, and turns over a bit of what comes behind kMark.
class Proxy {
public:
    static constexpr const char* kMark = "the next byte is damaged:";

    explicit Proxy(const MeetingPlace& root) : root_(root) {}
    // After the last fork: a child would never get a lock of the allocator's that this thread held meanwhile.
    void start() {
        thread_ = std::thread([this] {
            while (!ends_) {
                for (size_t i = 0; i < sockets_.size(); i++) { pass_on(sockets_[i], sockets_[i ^ 1]); }
                pollfd listener = {here_.listener.fd(), POLLIN, 0};
                if (poll(&listener, 1, 1) <= 0) { continue; }
                sockets_.emplace_back(accept(here_.listener.fd(), nullptr, nullptr));
                sockets_.push_back(root_.connected());
            }
        });
    }
    ~Proxy() {
        ends_ = true;
        thread_.join();
    }
    int port() const { return here_.port; }

private:
    static void pass_on(Socket& from, Socket& to) {
        char bytes[4096];
        const ssize_t got = recv(from.fd(), bytes, sizeof(bytes), MSG_DONTWAIT);
        if (got == 0) { shutdown(to.fd(), SHUT_WR); }
        if (got <= 0) { return; }
        const std::string_view all(bytes, (size_t)got), mark = kMark;
        const size_t at = all.find(mark);
        if (at < all.size() - mark.size()) { bytes[at + mark.size()] ^= 4; }
        to.send_all(bytes, (size_t)got);
    }

    const MeetingPlace& root_;
    MeetingPlace here_;
    std::vector<Socket> sockets_;  // rank 1's connections, each before the one to rank 0 that goes with it
    std::atomic<bool> ends_ = false;
    std::thread thread_;
};

// a job of copies of this process, of which each does this with its Comm and then ends with 0
Ended end_of_job(int size, const std::function<void(Comm&)>& body, bool through_proxy = false) {
    TempFolder folder;
    MeetingPlace place;
    std::optional<Proxy> proxy;
    if (through_proxy) { proxy.emplace(place); }
    const std::string err = folder / "err";
    std::vector<pid_t> pids;
    for (int rank = 0; rank < size; rank++) {
        pids.push_back(fork());
        if (pids.back() != 0) { continue; }
        dup2(open(err.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600), STDERR_FILENO);
        {
            Ranks ranks = place.ranks(rank, size);
            if (rank == 1 && proxy) { ranks.port = proxy->port(); }
            const auto comm = join_ranks(ranks, 1, "test");
            comm->at_step(7);
            try {
                body(*comm);
            } catch (const Error& e) {
                if (!comm->fail(e.exit_code, e.what())) { std::fprintf(stderr, "%s\n", e.what()); }
                _exit(e.exit_code);
            }
        }
        _exit(0);
    }
    if (proxy) { proxy->start(); }
    Ended ended;
    for (pid_t pid : pids) {
        int status = 0;
        REQUIRE(waitpid(pid, &status, 0) == pid);
        ended.codes.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    }
    ended.said = read_bytes(err);
    return ended;
}

void check_ended(const Ended& ended, const std::vector<int>& codes,
                 std::initializer_list<std::string> parts) {
    CHECK_MESSAGE(ended.codes == codes, ended.said);
    check_holds(ended.said, parts);
}

}  // namespace

// one that is stopped or killed: rank_faults.h
TEST_CASE("watchdog: a rank that is stuck ends the job, one that takes its time does not") {
    for (int culprit : {0, 2}) {
        const std::string name = fmt::format("rank {} (process", culprit);
        const auto sticks = [&](Comm& comm) {
            comm.root_says("first", true);
            if (comm.rank() == culprit) { usleep(20'000'000); }
            std::vector<float> all(3);
            comm.all_gather("second", all.data(), {0, 1, 2, 3});
        };
        check_ended(end_of_job(3, sticks), {6, 6, 6}, {name, "waiting for 1 s", "at step 7, after 'first'"});
    }
    check_ended(end_of_job(2, [](Comm& comm) { comm.root_says("first", true); }), {0, 0}, {});
    const auto slow = [](Comm& comm) {
        comm.take_time(comm.root());
        if (comm.root()) { usleep(2'000'000); }
        comm.root_says("first", true);
    };
    check_ended(end_of_job(2, slow), {0, 0}, {});
}

TEST_CASE("watchdog: what is not as it was sent, or of another call, ends the job") {
    const std::string text = std::string("ABCDEFGH") + Proxy::kMark + "value";
    for (int sender : {0, 1}) {
        const auto tells = [&](Comm& comm) {
            comm.root_says("first", true);
            std::string all = comm.rank() == sender ? text : std::string(text.size(), ' ');
            const auto size = (int64_t)text.size();
            comm.all_gather("second", all.data(), {0, sender == 0 ? size : 0, size});
        };
        const auto signs = [&](Comm& comm) {
            if (comm.rank() == sender) { comm.enter(Proxy::kMark); }
            usleep(700'000);
            comm.leave();
        };
        const std::string who = fmt::format("rank {} (process", sender);
        check_ended(end_of_job(2, tells, true), {6, 6},
                    {"from " + who, "comes 'second', call 2, of 38 bytes, with other bits than were sent",
                     "found XXH3"});
        check_ended(end_of_job(2, signs, true), {6, 6},
                    {"what the watchdog of " + who, "has arrived with other bits"});
    }
    // of a call's head, which a sign of the watchdog's does not hold as far
    const std::string long_name = std::string(20, '.') + Proxy::kMark;
    const auto says = [&](Comm& comm) { comm.root_says(long_name.c_str(), true); };
    check_ended(end_of_job(2, says, true), {6, 6}, {"ranks disagree: from rank", "call 1, of"});
    // of three ranks the second leaves out a call
    const auto skips = [&](Comm& comm) {
        comm.root_says("first", true);
        char all[3] = {'a', 'a', 'a'};
        if (comm.rank() != 1) { comm.gather("second", all, {0, 1, 2, 3}); }
        comm.gather("third", all, {0, 1, 2, 3});
    };
    check_ended(end_of_job(3, skips), {6, 6, 6},
                {"ranks disagree: from rank 1 (process", "comes 'third', call 2, of 1 bytes",
                 "expected 'second', call 2, of 1 bytes"});
}

// What tests of runs in many processes share: where they meet, and the ranks that a launcher has started.
#pragma once
#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <map>
#include <sstream>

#include "dev/test/support/train_program.h"
#include "llmc/host/ranks/ranks.h"
#include "llmc/host/ranks/rendezvous.h"

namespace llmc {

// whether a process that this one has started has ended; it can still be waited for
inline bool has_ended(pid_t pid) {
    siginfo_t info = {};
    return waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid;
}

// Where runs of a model in many ranks leave what they write, in a folder of each one's name. The model has seven of
// the norm's chunks, so that each of four ranks has one.
struct RunsOfRanks {
    TempFolder folder;
    RunsOfRanks() { write_tiny_data(folder.path()); }

    std::string out(const std::string& name) const { return folder / name; }
    Words options(const std::string& name, const std::string& more, const char* lr = "0.01") const {
        return merged(words(std::string("--lr ") + lr + " --train-data " + folder.path() +
                            "/train.bin --val-data " + folder.path() +
                            "/val.bin --layers 2 --heads 4 --channels 128 --seq-len 12 --batch 2 --warmup 0 "
                            "--sample-tokens 4 --quiet --out " +
                            out(name)),
                      words(more));
    }
    void check_same(const std::string& a, const std::string& b, const std::string& checkpoint) const {
        INFO("a ", a, ", b ", b);
        CHECK(same_files(out(a) + "/model.bin", out(b) + "/model.bin"));
        const std::string moments = "/" + checkpoint + "/optimizer.safetensors";
        REQUIRE(fs::exists(out(a) + moments));
        CHECK(same_files(out(a) + moments, out(b) + moments));
        CHECK(read_log(out(a)) == read_log(out(b)));
    }
};

// where a job of this process's threads, or of its copies, meets
struct MeetingPlace {
    Socket listener;
    int port = 0;

    MeetingPlace() {
        std::string why;
        listener = listen_at(0, true, &why);
        REQUIRE_MESSAGE(listener.open(), why);
        port = listener.port();
    }
    Ranks ranks(int rank, int size, const std::string& token = "job") const {
        Ranks r;
        r.rank = r.local_rank = rank, r.size = r.local_size = size;
        r.host = "127.0.0.1", r.port = port, r.token = token;
        if (rank == 0) { r.listener = dup(listener.fd()); }
        return r;
    }
    // a connection of somebody
    Socket connected() const {
        Socket s(socket(AF_INET, SOCK_STREAM, 0));
        sockaddr_in to = {};
        to.sin_family = AF_INET;
        to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        to.sin_port = htons((uint16_t)port);
        REQUIRE(connect(s.fd(), (sockaddr*)&to, sizeof(to)) == 0);
        return s;
    }
};

// the processes that this one has started as ranks, by rank
inline std::vector<pid_t> ranks_of(pid_t launcher) {
    std::map<int, pid_t> ranks;
    for (const auto& entry : fs::directory_iterator("/proc")) {
        const std::string id = entry.path().filename().string();
        if (id.find_first_not_of("0123456789") != std::string::npos) { continue; }
        std::istringstream stat(read_bytes(entry.path().string() + "/stat"));
        std::string number, name, state;
        int parent = 0;
        stat >> number >> name >> state >> parent;
        if (parent != launcher) { continue; }
        const std::string variables = "\0" + read_bytes(entry.path().string() + "/environ");
        const size_t at = variables.find("PLUMB_RANK=");
        if (at != std::string::npos) { ranks[std::stoi(variables.substr(at + 11))] = std::stoi(id); }
    }
    std::vector<pid_t> all;
    for (auto [rank, pid] : ranks) { all.push_back(pid); }
    return all;
}

}  // namespace llmc

// How ranks meet: strangers, old jobs and doubles are turned away, and whoever is missing is named; what the
// ranks then say to each other arrives.
#include <future>
#include <numeric>
#include <optional>

#include <doctest/doctest.h>

#include "dev/test/support/many_ranks.h"
#include "dev/test/support/test_files.h"
#include "llmc/host/ranks/comm.h"
#include "llmc/host/ranks/rendezvous.h"
#include "llmc/model/cpu/gradient_sums.h"

using namespace llmc;

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
            int heard = -1, control = -1;
            CHECK((*met[r].peers)[s].data.receive_all(&heard, sizeof(heard)));
            CHECK((*met[r].peers)[s].control.receive_all(&control, sizeof(control)));
            CHECK(heard == (int)(10 * s + r));
            CHECK(control == heard);
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

TEST_CASE("rendezvous: strangers are let go, and hold nobody up") {
    MeetingPlace place;
    std::vector<Socket> silent;
    for (int i = 0; i < 20; i++) { silent.push_back(place.connected()); }
    const std::string noise = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + std::string(1000, 'x');
    silent[3].send_all(noise.data(), noise.size());
    silent[4].send_all(noise.data(), 10);
    silent[5] = Socket();
    std::vector<std::future<Met>> all;
    all.push_back(meeting(place.ranks(0, 2)));
    auto old = meeting(place.ranks(1, 2, "another job"), 1);
    const Met refused = old.get();
    check_error(refused.error, kExitPeerLost, {"rank 1 cannot reach rank 0", "another job"});
    all.push_back(meeting(place.ranks(1, 2)));
    check_together(std::move(all));
}

TEST_CASE("rendezvous: five hundred mute connections neither delay a start nor prevent it") {
    MeetingPlace place;
    std::vector<Socket> mute;
    for (int i = 0; i < 400; i++) { mute.push_back(place.connected()); }
    const auto begin = std::chrono::steady_clock::now();
    std::vector<std::future<Met>> all;
    all.push_back(meeting(place.ranks(0, 2)));
    usleep(300'000);
    for (int i = 0; i < 100; i++) { mute.push_back(place.connected()); }
    all.push_back(meeting(place.ranks(1, 2)));
    check_together(std::move(all));
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(5));
}

TEST_CASE("rendezvous: ranks of one host listen to that host alone") {
    MeetingPlace place;
    Ranks first = place.ranks(0, 3);
    close(first.listener);
    first.listener = -1;
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
    Ranks taken = place.ranks(0, 2);
    close(taken.listener);
    taken.listener = -1;  // the port is `place`'s
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
    CHECK((shares(10, 4, 1) == std::vector<int64_t>{0, 10}));
    CHECK((shares(10, 4, 2) == std::vector<int64_t>{0, 4, 10}));
    CHECK((shares(10, 4, 5) == std::vector<int64_t>{0, 0, 4, 4, 8, 10}));
    CHECK((shares(0, 4, 2) == std::vector<int64_t>{0, 0, 0}));
}

// The ranks of a job over TCP: on one host or several, for what lies in the host's memory.
#pragma once
#include <string>

#include "llmc/host/ranks/comm.h"
#include "llmc/host/ranks/rendezvous.h"
#include "llmc/host/ranks/watchdog.h"

namespace llmc {

class CommTcp : public Comm {
public:
    // Meets the others; see meet(). program: for the watchdog's messages.
    CommTcp(const Ranks& ranks, int timeout_s, const std::string& program);

    void exchange(const char* what, std::span<const std::span<const std::byte>> out,
                  std::span<const std::span<std::byte>> in) override;
    void at_step(int64_t step) override { watchdog_.at_step(step); }
    void take_time(bool yes) override { watchdog_.take_time(yes); }
    void enter(const char* what) override { watchdog_.enter(what); }
    void leave() override { watchdog_.leave(); }
    bool fail(int exit_code, const std::string& message) { return watchdog_.fail(exit_code, message); }

private:
    CommTcp(const Ranks& ranks, int timeout_s, const std::string& program, Peers peers);
    std::vector<Socket> data_;
    int64_t calls_ = 0;
    Watchdog watchdog_;
};

}  // namespace llmc

// What the watchdog of a job's ranks makes of what it knows: see watchdog.h.
#include "llmc/host/ranks/watchdog.h"

#include <fmt/core.h>

namespace llmc {

namespace {

constexpr int kLastWordsMs = 300;  // in which somebody may still say why a rank is gone

std::string place_text(const RankState& s) {
    const std::string step = s.step >= 0 ? fmt::format("at step {}, ", s.step) : "before the first step, ";
    if (s.what.view().empty()) { return step + "before all calls"; }
    return fmt::format("{}{} '{}'", step, s.inside != 0 ? "in" : "after", s.what.view());
}

}  // namespace

std::string judge(const std::vector<RankReport>& ranks, const std::vector<std::string>& who,
                  int64_t timeout_ms, int rank) {
    const std::string here = (rank == 0 ? "Rank 0 was " : fmt::format("This is rank {}, ", rank)) +
                             place_text(ranks[(size_t)rank]) + ".";
    const double seconds = (double)timeout_ms / 1000;
    size_t longest = 0, last = 0;
    for (size_t r = 0; r < (rank == 0 ? ranks.size() : 1); r++) {
        const RankReport& k = ranks[r];
        if (k.done) { continue; }
        if (k.gone && k.silent_ms >= kLastWordsMs) {
            return who[r] + " is gone: killed, or it crashed. " + here;
        }
        if (k.silent_ms > timeout_ms) {
            return fmt::format(
                "{} has given no sign for {:g} s (--comm-timeout): stopped, or its host is down. Last it was "
                "{}. {}",
                who[r], seconds, place_text(k), here);
        }
        if (k.waiting_ms > ranks[longest].waiting_ms) { longest = r; }
        if (k.calls < ranks[last].calls) { last = r; }
    }
    if (rank != 0 || ranks[longest].waiting_ms <= timeout_ms) { return ""; }
    if (ranks[last].calls == ranks[longest].calls) {
        return fmt::format(
            "'{}' does not end on {} for {:g} s (--comm-timeout), though all ranks have come to it. {}",
            ranks[longest].what.view(), who[longest], seconds, here);
    }
    return fmt::format("{} keeps {} waiting for {:g} s (--comm-timeout): it is {}, the other {}.", who[last],
                       who[longest], seconds, place_text(ranks[last]), place_text(ranks[longest]));
}

}  // namespace llmc

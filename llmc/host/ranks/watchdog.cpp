// What the watchdog of a job's ranks makes of what it knows: see watchdog.h.
#include "llmc/host/ranks/watchdog.h"

#include <fmt/core.h>
#include <span>

namespace llmc {

namespace {

constexpr int kLastWordsMs = 300;  // in which somebody may still say why a rank is gone

std::string place_text(const RankState& s) {
    const std::string step = s.step >= 0 ? fmt::format("at step {}, ", s.step) : "before the first step, ";
    if (s.what.view().empty()) { return step + "before all calls"; }
    return fmt::format("{}{} '{}'", step, s.inside != 0 ? "in" : "after", s.what.view());
}

}  // namespace

std::string judge(const std::vector<RankReport>& ranks, int64_t timeout_ms, int rank) {
    const std::string here = (rank == 0 ? "Rank 0 was " : fmt::format("This is rank {}, ", rank)) +
                             place_text(ranks[(size_t)rank]) + ".";
    const double seconds = (double)timeout_ms / 1000;
    const RankReport *longest = &ranks[0], *last = &ranks[0];
    for (const RankReport& k : std::span(ranks).first(rank == 0 ? ranks.size() : 1)) {
        if (k.done) { continue; }
        if (k.gone && k.silent_ms >= kLastWordsMs) {
            return k.who + " is gone: killed, or it crashed. " + here;
        }
        if (k.silent_ms > timeout_ms) {
            return fmt::format(
                "{} has given no sign for {:g} s (--comm-timeout): stopped, or its host is down. Last it was "
                "{}. {}",
                k.who, seconds, place_text(k), here);
        }
        if (k.waiting_ms > longest->waiting_ms) { longest = &k; }
        if (k.calls < last->calls) { last = &k; }
    }
    if (rank != 0 || longest->waiting_ms <= timeout_ms) { return ""; }
    if (last->calls == longest->calls) {
        return fmt::format(
            "'{}' does not end on {} for {:g} s (--comm-timeout), though all ranks have come to it. {}",
            longest->what.view(), longest->who, seconds, here);
    }
    return fmt::format("{} keeps {} waiting for {:g} s (--comm-timeout): it is {}, the other {}.", last->who,
                       longest->who, seconds, place_text(*last), place_text(*longest));
}

}  // namespace llmc

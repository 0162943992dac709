// Signals of a run. SIGTERM, SIGINT and SIGHUP ask it to save and leave, SIGUSR1 to save and go on: they set
// flags that every long loop looks at. Once a stop has begun, a second one of the three ends the program at
// once; what comes within a second of the first does not count, because launchers and terminals often send
// two. A signal that is ignored at the start (nohup, & in a script) stays ignored.
#pragma once
#include <csignal>

namespace llmc {

inline volatile std::sig_atomic_t stop_requested = 0;  // the first signal that asked
inline volatile std::sig_atomic_t save_requested = 0;
inline volatile std::sig_atomic_t out_of_memory = 0;  // why a stop was requested, where no signal asked

void catch_run_signals();

// From here on a run whose memory ends is asked to stop, as by SIGTERM. Some MiB that were kept back for its last save are
// given back then, and `new` tries again, 64 times in all: only then it throws.
void stop_when_out_of_memory();

// Whether a SIGUSR1 came within the last second: launchers send one to every rank, and each passes it on.
bool save_just_requested();

// SIGPIPE and SIGXFSZ would end the program; without them the write fails, which is then handled.
void ignore_write_signals();

}  // namespace llmc

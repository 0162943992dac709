// Signals of a run. SIGTERM, SIGINT and SIGHUP ask it to save and leave, SIGUSR1 to save and go on: they set
// flags that every long loop looks at. Once a stop has begun, a second one of the three ends the program at
// once; what comes within a second of the first does not count, because launchers and terminals often send
// two. A signal that is ignored at the start (nohup, & in a script) stays ignored.
#pragma once
#include <csignal>

namespace llmc {

inline volatile std::sig_atomic_t stop_requested = 0;  // the first signal that asked
inline volatile std::sig_atomic_t save_requested = 0;

void catch_run_signals();

// Whether a SIGUSR1 came within the last second: launchers send one to every rank, and each passes it on.
bool save_just_requested();

// SIGPIPE and SIGXFSZ would end the program; without them the write fails, which is then handled.
void ignore_write_signals();

}  // namespace llmc

// Being asked to stop: SIGTERM and SIGINT set a flag that the training loop looks at after every step, so
// that a run can save a checkpoint and leave. A second signal ends the program at once.
#pragma once
#include <csignal>

namespace llmc {

inline volatile std::sig_atomic_t stop_requested = 0;

inline void catch_stop_signals() {
    for (int signal : {SIGTERM, SIGINT}) {
        std::signal(signal, [](int which) {
            stop_requested = 1;
            std::signal(which, SIG_DFL);
        });
    }
}

}  // namespace llmc

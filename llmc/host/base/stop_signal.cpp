// Signals of a run: see stop_signal.h. What a handler calls is safe in one.
#include "llmc/host/base/stop_signal.h"

#include <unistd.h>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <initializer_list>
#include <new>

namespace llmc {

namespace {

constexpr long kSecondMs = 1000;

long now_ms() {
    timespec now = {};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1'000'000;
}

volatile long asked_at_ms = 0, save_asked_at_ms = -kSecondMs;

void ask_to_stop(int which) {
    int error = errno;
    if (stop_requested == 0) {
        asked_at_ms = now_ms();
        stop_requested = which;
    } else if (now_ms() - asked_at_ms >= kSecondMs) {
        std::signal(which, SIG_DFL);
        std::raise(which);  // delivered when this returns
    }
    errno = error;
}

void ask_to_save(int) {
    const int error = errno;
    save_asked_at_ms = now_ms();
    save_requested = 1;
    errno = error;
}

void handle(int which, void (*handler)(int)) {
    struct sigaction old = {}, action = {};
    if (sigaction(which, nullptr, &old) == 0 && old.sa_handler == SIG_IGN) { return; }
    action.sa_handler = handler;
    action.sa_flags = SA_RESTART;
    for (int other : {SIGTERM, SIGINT, SIGHUP}) { sigaddset(&action.sa_mask, other); }  // one at a time
    sigaction(which, &action, nullptr);
}

std::atomic<void*> kept_back = nullptr;
std::atomic<int> chances = 0;

// called by `new`, in any thread, each time that it finds no memory
void make_room() {
    std::free(kept_back.exchange(nullptr));
    if (chances-- <= 0) { throw std::bad_alloc(); }
    constexpr char kText[] = "out of memory: the run saves and ends\n";
    if (out_of_memory == 0) { (void)!write(STDERR_FILENO, kText, sizeof(kText) - 1); }
    out_of_memory = 1;
    if (stop_requested == 0) { ask_to_stop(SIGTERM); }
}

}  // namespace

void stop_when_out_of_memory() {
    constexpr size_t kForLastSave = 16 << 20;  // pieces of tensors, and what a log and a page take
    std::free(kept_back.exchange(std::malloc(kForLastSave)));
    chances = 64;
    std::set_new_handler(make_room);
}

bool save_just_requested() { return now_ms() - save_asked_at_ms < kSecondMs; }

void ignore_write_signals() {
    for (int which : {SIGPIPE, SIGXFSZ}) { std::signal(which, SIG_IGN); }
}

void catch_run_signals() {
    ignore_write_signals();
    for (int which : {SIGTERM, SIGINT, SIGHUP}) { handle(which, ask_to_stop); }
    handle(SIGUSR1, ask_to_save);
}

}  // namespace llmc

// A time limit for what may never return.
#pragma once
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace llmc {

// Calls late(), on a thread of its own, if it still exists after `seconds` seconds.
class Watchdog {
public:
    Watchdog(double seconds, std::function<void()> late)
        : thread_([seconds, late = std::move(late)](const std::stop_token& stop) {
              std::mutex mutex;
              std::unique_lock lock(mutex);
              std::condition_variable_any never;
              auto ended = [&] { return stop.stop_requested(); };
              if (!never.wait_for(lock, stop, std::chrono::duration<double>(seconds), ended)) { late(); }
          }) {}

private:
    std::jthread thread_;
};

}  // namespace llmc

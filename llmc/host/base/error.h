// Errors. Every failure is an llmc::Error: a message for the person at the keyboard and the exit code of the
// program. It is thrown where the problem is known and caught only by the mains and by the C ABI.
// A good message says what failed, where, what was expected, what was found, and the cure.
#pragma once
#include <fmt/core.h>
#include <source_location>
#include <stdexcept>
#include <string>
#include <utility>

namespace llmc {

// what the programs return
constexpr int kExitDone = 0;
constexpr int kExitUsage = 2;     // bad option or value, unwritable folder
constexpr int kExitBadInput = 3;  // a file that is missing, damaged or of the wrong kind
constexpr int kExitDevice = 4;    // no device, or not enough memory
constexpr int kExitDiverged = 5;
constexpr int kExitPeerLost = 6;
constexpr int kExitSaveFailed = 7;  // the last save did not succeed
constexpr int kExitPreempted = 75;  // stopped by a signal, checkpoint saved

struct Error : std::runtime_error {
    int exit_code;
    Error(int exit_code, const std::string& message) : std::runtime_error(message), exit_code(exit_code) {}
    // the message as fmt::format() makes it
    template <typename First, typename... Rest>
    Error(int exit_code, fmt::format_string<First, Rest...> text, First&& first, Rest&&... rest)
        : Error(exit_code, fmt::format(text, std::forward<First>(first), std::forward<Rest>(rest)...)) {}
};

// Throws Error where `wrong` holds. The values of its message are evaluated even where it does not: plain values only.
template <typename... Args>
void throw_if(bool wrong, int exit_code, fmt::format_string<Args...> text, Args&&... args) {
    if (wrong) { throw Error(exit_code, fmt::format(text, std::forward<Args>(args)...)); }
}

// what the caller of a function may get wrong: shapes, null pointers, ranges
inline void require(bool ok, const char* what, std::source_location at = std::source_location::current()) {
    if (!ok) { throw Error(kExitUsage, "{} ({}:{})", what, at.file_name(), at.line()); }
}

}  // namespace llmc

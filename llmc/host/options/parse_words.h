// What the programs and sub-commands with few options share: their command lines, as CLI11 reads them.
#pragma once

namespace CLI {
class App;
class Validator;
}  // namespace CLI

namespace llmc {

// Reads argv from `first` on. False: --help was asked for and has been printed. Throws Error (kExitUsage) for words that
// the app does not take, which names an unknown option and the nearest known; `command` is what its message begins with,
// "report: ". "--out=" has an empty value: CLI11 would take the next word for it, and a script's --prompt="$text" may have
// an empty text.
bool parse_words(CLI::App* app, int argc, const char* const* argv, int first, const char* command);

// For an option's transform(): its value is a number from low to high; T is int, int64_t, uint64_t or double. CLI::Range lets
// nan pass and calls 1e2 out of range, and CLI11 then takes 010 for 8, -1 and 2^64 for other numbers.
template <typename T>
CLI::Validator number_range(T low, T high);

// What has been printed is where it should be, or an Error (kExitSaveFailed): the disk is full, say. If nobody reads the
// pipe any more, as after "| head", SIGPIPE ends the program, as it ends other programs.
void require_printed();

}  // namespace llmc

// What the programs and sub-commands with few options share: their command lines, as CLI11 reads them.
#pragma once

namespace CLI {
class App;
}

namespace llmc {

// Reads argv from `first` on. False: --help was asked for and has been printed. Throws Error (kExitUsage) for words that
// the app does not take; `command` is what its message begins with, "report: ". "--out=" has an empty value: CLI11 would
// take the next word for it, and a script's --prompt="$text" may have an empty text.
bool parse_words(CLI::App* app, int argc, const char* const* argv, int first, const char* command);

// what has been printed is where it should be, or an Error (kExitSaveFailed): the disk is full, the pipe closed
void require_printed();

}  // namespace llmc

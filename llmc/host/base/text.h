// Text that people read: numbers, characters of UTF-8, what is safe on a terminal, and the streams to it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>

namespace llmc {

// The length in bytes of the UTF-8 character that text starts with; 0 if it does not start with one (overlong
// forms, surrogates and numbers above 0x10FFFF are none: RFC 3629).
size_t utf8_length(std::string_view text);

// the number of the character of this length (1 to 4, as utf8_length says) that text starts with
uint32_t utf8_code_point(std::string_view text, size_t length);

// The bytes at the end of text that may become a character when more text follows: 0 to 3.
size_t utf8_unfinished(std::string_view text);

// For a terminal: control characters, which could drive it, and what is not UTF-8 become \xHH; newline and tab stay.
std::string printable_text(std::string_view text);

// a name from a file in a message: printable, on one line, at most 80 characters, in quotes
std::string quoted_name(std::string_view name);

// control characters but the end of a line and the tab as \xNN, those of UTF-8 (U+0080 to U+009F) too
std::string terminal_text(std::string_view text);

// the one way of such a text to a terminal: what any part of a line may hold that comes from a file or is its name
inline void put_text(std::FILE* to, const std::string& text) { std::fputs(terminal_text(text).c_str(), to); }

// "1.5 MiB"
std::string bytes_text(int64_t bytes);

// 124475904 -> "124,475,904"
std::string count_text(int64_t n);

// Opens those of descriptors 0, 1 and 2 that a shell has closed (`program >&-`) on /dev/null. The first file that a program
// opens would otherwise get the number of its standard output, and what it prints. Call it first in main.
void open_standard_streams();

// What the mains share: opens the standard streams, calls the program, and makes a message and an exit code of what it throws.
// cure: for want of memory.
int run_program(const char* name, const char* cure, const std::function<int()>& program);

// What has been printed is where it should be, or an Error (kExitSaveFailed): the disk is full, say. If nobody reads the
// pipe any more, as after "| head", SIGPIPE ends the program, as it ends other programs.
void require_printed();

}  // namespace llmc

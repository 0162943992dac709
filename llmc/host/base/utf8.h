// UTF-8: where characters end, and text made safe to print.
#pragma once
#include <cstddef>
#include <cstdint>
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

// For a terminal: control characters, with which a text could drive it, become \xHH, except newline and tab,
// and so does what is not UTF-8.
std::string printable_text(std::string_view text);

// a name from a file in a message: printable, on one line, at most 80 characters, in quotes
std::string quoted_name(std::string_view name);

}  // namespace llmc

// Text that comes from files on its way to a terminal, which control characters in it could drive.
#pragma once
#include <string>

#include "llmc/host/base/error.h"

namespace llmc {

// control characters but the end of a line and the tab as \xNN, those of UTF-8 (U+0080 to U+009F) too
inline std::string terminal_text(const std::string& text) {
    std::string out;
    for (size_t i = 0; i < text.size(); i++) {
        auto c = (unsigned char)text[i];
        auto next = i + 1 < text.size() ? (unsigned char)text[i + 1] : (unsigned char)0;
        bool control = (c < 0x20 && c != '\n' && c != '\t') || c == 0x7f;
        if (c == 0xc2 && next >= 0x80 && next <= 0x9f) {
            out += fmt::format("\\x{:02x}\\x{:02x}", c, next);
            i++;
        } else if (control) {
            out += fmt::format("\\x{:02x}", c);
        } else {
            out += (char)c;
        }
    }
    return out;
}

// the one way of such a text to a terminal: what any part of a line may hold that comes from a file or is its name
inline void put_text(std::FILE* to, const std::string& text) { std::fputs(terminal_text(text).c_str(), to); }

}  // namespace llmc

// What a user types: quoted in a message, as a shell takes it back, below the home folder.
#pragma once
#include <pwd.h>
#include <unistd.h>
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string>

#include "llmc/host/base/error.h"

namespace llmc {

// user's text in a message: short, on one line
inline std::string in_quotes(const std::string& text) {
    std::string s = text.substr(0, 60);
    for (char& c : s) { c = (unsigned char)c < ' ' || c == 127 ? '?' : c; }
    return "'" + s + (s.size() < text.size() ? "...'" : "'");
}

// as a shell takes it for one word
inline std::string shell_word(const std::string& text) {
    const auto plain = [](unsigned char c) { return std::isalnum(c) || std::strchr("_./-", c) != nullptr; };
    if (!text.empty() && std::ranges::all_of(text, plain)) { return text; }
    std::string quoted = "'";
    for (char c : text) { quoted += c == '\'' ? std::string("'\\''") : std::string(1, c); }
    return quoted + "'";
}

// the fewest digits that give it back
template <typename T>
std::string shortest(T value) {
    char text[32];
    return std::string(text, std::to_chars(text, text + sizeof(text), value).ptr);
}

// "~/x" below the home folder: a shell leaves the ~ of --out=~/x as it is, and a folder of that name would be made. Any other
// text stays. Throws Error(kExitUsage) where no home is known.
inline std::string at_home(const std::string& text) {
    if (!text.starts_with("~/")) { return text; }
    const char* home = std::getenv("HOME");
    const passwd* user = home != nullptr && *home != '\0' ? nullptr : getpwuid(geteuid());
    if (user != nullptr) { home = user->pw_dir; }
    if (home == nullptr || *home == '\0') {
        throw Error(kExitUsage, in_quotes(text) + ": nothing says where your home is. Write the whole path.");
    }
    return home + text.substr(1);
}

}  // namespace llmc

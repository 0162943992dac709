// See typed_text.h.
#include "llmc/host/options/typed_text.h"

#include <pwd.h>
#include <unistd.h>
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "llmc/host/base/error.h"
#include "llmc/host/options/options_row.h"

namespace llmc {

std::string in_quotes(const std::string& text) {
    std::string s = text.substr(0, 60);
    for (char& c : s) { c = (unsigned char)c < ' ' || c == 127 ? '?' : c; }
    return "'" + s + (s.size() < text.size() ? "...'" : "'");
}

std::string at_home(const std::string& text) {
    if (!text.starts_with("~/")) { return text; }
    const char* home = std::getenv("HOME");
    const passwd* user = home != nullptr && *home != '\0' ? nullptr : getpwuid(geteuid());
    if (user != nullptr) { home = user->pw_dir; }
    if (home == nullptr || *home == '\0') {
        throw Error(kExitUsage, in_quotes(text) +
                                    ": HOME is not set, and nothing else says where your home is. Write "
                                    "the whole path.");
    }
    return home + text.substr(1);
}

std::string shell_word(const std::string& text) {
    const auto plain = [](unsigned char c) { return std::isalnum(c) || std::strchr("_./-", c) != nullptr; };
    if (!text.empty() && std::ranges::all_of(text, plain)) { return text; }
    std::string quoted = "'";
    for (char c : text) { quoted += c == '\'' ? std::string("'\\''") : std::string(1, c); }
    return quoted + "'";
}

std::string shortest(double value) {
    char text[32];
    return std::string(text, std::to_chars(text, text + sizeof(text), value).ptr);
}

std::string bound_text(double value) {
    if (value == kMaxInt) { return "2^31 - 1"; }
    if (value == kMaxTokens) { return "10^15"; }
    if (value == 0x1p64) { return "2^64 - 1"; }
    if (value < 10000) { return shortest(value); }
    std::string digits = fmt::format("{:.0f}", value);
    for (int i = (int)digits.size() - 3; i > 0; i -= 3) { digits.insert(i, ","); }
    return digits;
}

namespace {

// edits from a to b: a letter added, left out or changed, or two neighbours swapped, count 1 each
int distance(const std::string& a, const std::string& b) {
    std::vector<std::vector<int>> d(a.size() + 1, std::vector<int>(b.size() + 1));
    for (size_t i = 0; i <= a.size(); i++) {
        for (size_t j = 0; j <= b.size(); j++) {
            if (i == 0 || j == 0) {
                d[i][j] = (int)(i + j);
                continue;
            }
            int change = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, change});
            bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            if (swapped) { d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1); }
        }
    }
    return d[a.size()][b.size()];
}

}  // namespace

Nearest::Nearest(const std::string& typed)
    : typed_(typed.substr(std::min(typed.find_first_not_of('-'), typed.size()), 60)) {
    for (char& c : typed_) { c = c == '_' ? '-' : (char)std::tolower((unsigned char)c); }
}

bool Nearest::improves(const std::string& name) {
    const auto [shorter, longer] = std::minmax({typed_.size(), name.size()});
    if (longer - shorter > std::max<size_t>(1, longer / 3)) { return false; }  // edits at least
    const int d = distance(typed_, name);
    const bool slip = d == 1 && shorter > 1;
    const bool close = slip || 3 * d <= (int)longer;
    if (!close || d >= best_) { return false; }
    best_ = d;
    return true;
}

}  // namespace llmc

// What a user types: quoted in a message, read as a number, compared with the names that a program knows, or printed so that
// a shell takes it back.
#pragma once
#include <charconv>
#include <limits>
#include <string>
#include <type_traits>

namespace llmc {

std::string in_quotes(const std::string& text);   // user's text in a message: short, on one line
std::string shell_word(const std::string& text);  // as a shell takes it for one word
std::string shortest(double value);               // the fewest digits that give it back
// "~/x" below the home folder: a shell leaves the ~ of --out=~/x as it is, and a folder of that name would be made. Any other
// text stays. Throws Error(kExitUsage) where no home is known.
std::string at_home(const std::string& text);
std::string bound_text(double value);  // the end of a range: "2^31 - 1", "1,024"

// Reads a number for which fits(number) is true. Returns what is wrong with the text, or "".
template <typename T, typename Fits>
std::string number_problem(const std::string& text, const std::string& allowed, const Fits& fits, T* value) {
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), *value);
    const bool negative = std::is_unsigned_v<T> && text.size() > 1 && text[0] == '-' &&
                          text.find_first_not_of("0123456789", 1) == std::string::npos;
    const bool number = negative || (end == text.data() + text.size() && code != std::errc::invalid_argument);
    if (number && code == std::errc() && fits((double)*value)) { return ""; }  // nan does not fit
    const std::string kind = std::is_same_v<T, double> ? "number" : "whole number";
    return in_quotes(text) + (number ? " is out of range" : " is not a " + kind) + ". Expected a " + kind +
           ", " + allowed;
}

// Which of the names that it is shown in turn is closest to what was typed, dashes before it left out. One letter may
// differ, or a third of them: what differs more is not close.
class Nearest {
public:
    explicit Nearest(const std::string& typed);
    bool improves(const std::string& name);  // is it close, and closer than all before it?

private:
    std::string typed_;
    int best_ = std::numeric_limits<int>::max();  // edits to the closest one
};

}  // namespace llmc

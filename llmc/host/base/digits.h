// Numbers for JSON: the library writes the fewest digits that give a double back, which is 17 for most.
#pragma once
#include <charconv>

namespace llmc {

// the number that `digits` significant digits say; what is not finite stays as it is
inline double to_digits(double x, int digits) {
    char text[40];
    double rounded = x;
    const auto end = std::to_chars(text, text + sizeof(text), x, std::chars_format::general, digits).ptr;
    std::from_chars(text, end, rounded);
    return rounded;
}

}  // namespace llmc

// Sizes and counts as people read them.
#pragma once
#include <cstdint>
#include <string>

#include "llmc/host/base/error.h"

namespace llmc {

// "1.5 MiB"
inline std::string bytes_text(int64_t bytes) {
    return bytes < (1 << 20)     ? fmt::format("{:.1f} KiB", (double)bytes / 1024)
           : bytes < (1 << 30)   ? fmt::format("{:.1f} MiB", (double)bytes / (1 << 20))
           : bytes < (1LL << 40) ? fmt::format("{:.2f} GiB", (double)bytes / (1 << 30))
                                 : fmt::format("{:.1f} TiB", (double)bytes / (double)(1LL << 40));
}

// 124475904 -> "124,475,904"
inline std::string count_text(int64_t n) {
    std::string s = std::to_string(n);
    for (int i = (int)s.size() - 3; i > (n < 0); i -= 3) { s.insert((size_t)i, 1, ','); }
    return s;
}

}  // namespace llmc

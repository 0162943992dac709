// Roofs of an H200 with nothing in the way: a run that does not come near them does not count. In us; plain
// launches; each the best of 45 shapes of launch.
#pragma once
#include <cmath>
#include <string>

namespace llmc {

struct KnownRoof {
    double stream_bytes;
    double us_1r1w, us_2r1w, us_3r1w, us_2r2w;
};

// rows x columns x bytes of an element
inline constexpr KnownRoof kRoofsOfH200[] = {
    {4096.0 * 1024 * 2, 5.47, 7.51, 9.45, 9.82},         {4096.0 * 2048 * 2, 9.80, 13.43, 16.93, 17.93},
    {4096.0 * 4096 * 2, 17.41, 24.70, 31.96, 33.64},     {4096.0 * 8192 * 2, 33.09, 47.42, 61.88, 65.02},
    {4096.0 * 15872 * 2, 62.09, 89.94, 118.12, 123.75},  {8192.0 * 768 * 2, 7.66, 10.59, 13.17, 13.86},
    {65536.0 * 768 * 2, 48.70, 70.30, 91.76, 96.28},     {65536.0 * 1024 * 2, 64.22, 92.93, 121.83, 128.10},
    {65536.0 * 1280 * 2, 79.98, 115.51, 151.79, 159.51}, {65536.0 * 1600 * 2, 99.23, 143.99, 189.27, 199.31},
};
constexpr double kRoofTolerance = 1.02;

// NaN where none is known
inline double known_roof_us(const std::string& gpu, double stream_bytes, int reads, int writes) {
    if (gpu.find("H200") == std::string::npos) { return NAN; }
    for (const KnownRoof& roof : kRoofsOfH200) {
        if (roof.stream_bytes != stream_bytes) { continue; }
        if (writes == 0) { return NAN; }
        if (writes == 2) { return reads == 2 ? roof.us_2r2w : NAN; }
        return reads == 1 ? roof.us_1r1w : reads == 2 ? roof.us_2r1w : reads == 3 ? roof.us_3r1w : NAN;
    }
    return NAN;
}

}  // namespace llmc

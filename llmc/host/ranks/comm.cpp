// A job of one rank: see comm.h.
#include "llmc/host/ranks/comm.h"

#include <algorithm>
#include <cstring>

#include "llmc/host/base/error.h"

namespace llmc {

void Comm::exchange(const char*, SentParts out, ArrivingParts in) {
    require(out.size() == 1 && in.size() == 1 && out[0].size() == in[0].size(),
            "Comm: a part for each rank, and a rank's own as large as it is sent");
    if (!in[0].empty() && in[0].data() != out[0].data()) {
        std::memcpy(in[0].data(), out[0].data(), in[0].size());
    }
}

std::string Comm::text_from_root(const char* what, std::string text) {
    auto size = (int64_t)text.size();
    from_root(what, std::span(&size, 1));
    text.resize((size_t)size);
    from_root(what, std::span(text));
    return text;
}

std::vector<int64_t> shares(int64_t n, int64_t chunk, int ranks) {
    const int64_t chunks = (n + chunk - 1) / chunk;
    std::vector<int64_t> begins;
    for (int64_t r = 0; r <= ranks; r++) { begins.push_back(std::min(n, chunks * r / ranks * chunk)); }
    return begins;
}

}  // namespace llmc

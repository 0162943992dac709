// What is known about a validation shard beyond its tokens: data/make_corpus writes it beside the shard, as
// NAME.json.
//   {"entropy_nats_per_token": Y, "tokens": N, "probes": {"sums": [[position, length], ...], ...}}
// N is the number of tokens to predict, all of the shard's but the first; N and probes may be left out.
// A probe is a span of tokens that the text before it determines: a model that has understood predicts each
// of them.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace llmc {

struct ValInfo {
    double entropy = 0;  // of the source, nats per predicted token
    struct Probe {
        std::string name;
        std::vector<std::pair<int64_t, int64_t>> spans;  // position of the first token in the shard, length
    };
    std::vector<Probe> probes;
};

// The file beside the shard, or nothing if there is none. Throws Error(kExitBadInput) if it is there and not
// as above.
std::optional<ValInfo> read_val_info(const std::string& shard_path, int64_t num_tokens);

}  // namespace llmc

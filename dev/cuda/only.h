// Which rung a LayerNorm shootout is built of: "" is all of them. `make dev/cuda/layernorm_forward ONLY=v2` puts a copy of
// this file that says "v2" before this one.
#pragma once
#include <string_view>

namespace llmc {

inline constexpr std::string_view kOnly = "";

// A ladder names a rung's launcher only within `if constexpr (is_built(...))`, else its kernels are compiled.
constexpr bool is_built(std::string_view rung) { return kOnly.empty() || rung == kOnly; }

}  // namespace llmc

// The algorithms that ./train_gpt2cu --tune-gemm FILE found fastest for a model's matrix products, and the rule by which one
// is chosen. FILE is JSON: the machine, and for each kind of product cuBLASLt's own 64 bytes, which only the same version of
// it understands.
#pragma once
#include <array>
#include <compare>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace llmc {

// D (m x n) = epilogue(op(A) (m x k) op(B) (k x n)) + beta D, all packed, by columns. Types and epilogue are cuBLASLt's numbers.
struct MatmulKind {
    bool transpose_a = false, transpose_b = false;
    int64_t m = 0, n = 0, k = 0;
    int64_t inputs = 0, output = 0, epilogue = 0;
    bool accumulate = false;  // beta = 1
    auto operator<=>(const MatmulKind&) const = default;
};

struct MatmulChoice {
    MatmulKind kind;
    std::array<uint64_t, 8> algorithm{};  // cublasLtMatmulAlgo_t
    double first_ms = 0, ms = 0;  // median, within a step: of cuBLASLt's first proposal, and of the choice
    int64_t proposals = 0;        // how many algorithms were timed, variants of proposals included
    bool same_bits = false;       // as the first proposal's
};

struct MatmulChoices {
    std::string gpu;
    int64_t multiprocessors = 0, cublaslt = 0;  // cublasLtGetVersion()
    bool tf32 = false;
    std::vector<MatmulChoice> choices;
};

std::string to_json(const MatmulChoices& choices);

// what: the file, for messages. Throws Error(kExitBadInput) naming the field.
MatmulChoices parse_matmul_choices(const std::string& text, const std::string& what);
MatmulChoices read_matmul_choices(const std::string& path);

// Throws Error(kExitBadInput) where `found`, of the file `what`, was searched on another GPU, with another cuBLASLt, or for
// other products of fp32, than `here` says.
void require_same_machine(const MatmulChoices& found, const MatmulChoices& here, const std::string& what);

// Which proposal to take: the fastest of those that give the first one's bits, unless another takes over 2 % less time.
// ms: of each, above 0; same_bits: likewise, true for the first
inline size_t fastest_proposal(std::span<const double> ms, std::span<const bool> same_bits) {
    constexpr double kWorthOtherBits = 0.98;  // of the time
    size_t same = 0, any = 0;
    for (size_t i = 1; i < ms.size(); i++) {
        if (ms[i] < ms[any]) { any = i; }
        if (same_bits[i] && ms[i] < ms[same]) { same = i; }
    }
    return ms[any] < kWorthOtherBits * ms[same] ? any : same;
}

}  // namespace llmc

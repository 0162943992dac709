// Choices of algorithms for matrix products: see matmul/matmul.h.
#include "llmc/ops/matmul/matmul.h"

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "llmc/host/files/file_io.h"
#include "llmc/host/files/json.h"

namespace llmc {

namespace {

constexpr const char* kFormat = "plumb matmul 1";
constexpr size_t kMostBytes = 1 << 20;
constexpr const char* kCure = "Delete it, or name another file: --tune-gemm searches where there is none.";

[[noreturn]] void fail(const std::string& what, const std::string& found) {
    throw Error(kExitBadInput, what + ": " + found + ". " + kCure);
}

template <typename T>
const T& member(const JsonValue& object, const char* name, const std::string& what) {
    const T* found = json_get<T>(object, name);
    if (found == nullptr) { fail(what, fmt::format("\"{}\" is missing or of another type", name)); }
    return *found;
}

// visit(name, member) for what of a choice is read and written alike
template <typename Choice, typename Visit>
void for_each_member(Choice& c, const Visit& visit) {
    visit("transpose_a", c.kind.transpose_a);
    visit("transpose_b", c.kind.transpose_b);
    visit("m", c.kind.m);
    visit("n", c.kind.n);
    visit("k", c.kind.k);
    visit("inputs", c.kind.inputs);
    visit("output", c.kind.output);
    visit("epilogue", c.kind.epilogue);
    visit("accumulate", c.kind.accumulate);
    visit("proposals", c.proposals);
    visit("first_ms", c.first_ms);
    visit("ms", c.ms);
    visit("same_bits", c.same_bits);
}

MatmulChoice choice_of(const JsonValue& from, const std::string& what) {
    MatmulChoice c;
    for_each_member(c, [&]<typename T>(const char* name, T& to) { to = member<T>(from, name, what); });
    if (const auto* second = json_get<int64_t>(from, "second")) { c.kind.second = *second; }
    if (const auto* fast = json_get<bool>(from, "fast")) { c.kind.fast = *fast; }
    if (c.kind.m < 1 || c.kind.n < 1 || c.kind.k < 1) { fail(what, "\"m\", \"n\" or \"k\" is below 1"); }
    const auto& digits = member<std::string>(from, "algorithm", what);
    if (digits.size() != 128 || digits.find_first_not_of("0123456789abcdef") != std::string::npos) {
        fail(what,
             "\"algorithm\": expected 128 hexadecimal digits, found " + json_text(digits.substr(0, 140)));
    }
    for (size_t i = 0; i < c.algorithm.size(); i++) {
        c.algorithm[i] = std::strtoull(digits.substr(16 * i, 16).c_str(), nullptr, 16);
    }
    return c;
}

}  // namespace

std::string to_json(const MatmulChoices& all) {
    JsonValue products = JsonValue::array();
    for (const MatmulChoice& c : all.choices) {
        JsonValue& product = products.emplace_back();
        for_each_member(c, [&](const char* name, const auto& member) { product[name] = member; });
        if (c.kind.second != 0) { product.update({{"second", c.kind.second}, {"fast", c.kind.fast}}); }
        std::string algorithm;
        for (uint64_t word : c.algorithm) { algorithm += fmt::format("{:016x}", word); }
        product["algorithm"] = algorithm;
    }
    return JsonValue{{"format", kFormat},        {"gpu", all.gpu},   {"multiprocessors", all.multiprocessors},
                     {"cublaslt", all.cublaslt}, {"tf32", all.tf32}, {"products", products}}
               .dump(1) +
           "\n";
}

MatmulChoices parse_matmul_choices(const std::string& text, const std::string& what) {
    JsonValue root = parse_json(text, what);
    if (const auto& format = member<std::string>(root, "format", what); format != kFormat) {
        fail(what, "\"format\": expected " + json_text(kFormat) + ", found " + json_text(format));
    }
    MatmulChoices all{member<std::string>(root, "gpu", what),
                      member<int64_t>(root, "multiprocessors", what),
                      member<int64_t>(root, "cublaslt", what),
                      member<bool>(root, "tf32", what),
                      {}};
    for (const JsonValue& product : member<JsonValue::array_t>(root, "products", what)) {
        all.choices.push_back(choice_of(product, what));
    }
    return all;
}

MatmulChoices read_matmul_choices(const std::string& path) {
    return parse_matmul_choices(RegularFile(path).text(kMostBytes), path);
}

void require_same_machine(const MatmulChoices& found, const MatmulChoices& here, const std::string& what) {
    auto name = [](const MatmulChoices& c) {
        return fmt::format("{} with {} multiprocessors, cuBLASLt {}, TF32 {}", c.gpu, c.multiprocessors,
                           c.cublaslt, c.tf32 ? "on" : "off");
    };
    if (name(found) == name(here)) { return; }
    fail(what, "made for " + json_text(name(found)) + ", but this is " + json_text(name(here)));
}

}  // namespace llmc

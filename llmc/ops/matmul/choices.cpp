// Choices of algorithms for matrix products: see matmul/matmul.h.
#include "llmc/ops/matmul/matmul.h"

#include <cinttypes>
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
    if (found == nullptr) { fail(what, std::string("\"") + name + "\" is missing or of another type"); }
    return *found;
}

std::array<uint64_t, 8> algorithm_of(const std::string& digits, const std::string& what) {
    std::array<uint64_t, 8> words{};
    if (digits.size() != 128 || digits.find_first_not_of("0123456789abcdef") != std::string::npos) {
        fail(what,
             "\"algorithm\": expected 128 hexadecimal digits, found " + json_text(digits.substr(0, 140)));
    }
    for (size_t i = 0; i < words.size(); i++) {
        words[i] = std::strtoull(digits.substr(16 * i, 16).c_str(), nullptr, 16);
    }
    return words;
}

MatmulChoice choice_of(const JsonValue& at, const std::string& what) {
    auto number = [&](const char* name) { return member<int64_t>(at, name, what); };
    auto flag = [&](const char* name) { return member<bool>(at, name, what); };
    MatmulChoice c{.kind = {flag("transpose_a"), flag("transpose_b"), number("m"), number("n"), number("k"),
                            number("inputs"), number("output"), number("epilogue"), flag("accumulate")},
                   .algorithm = algorithm_of(member<std::string>(at, "algorithm", what), what),
                   .first_ms = member<double>(at, "first_ms", what),
                   .ms = member<double>(at, "ms", what),
                   .proposals = number("proposals"),
                   .same_bits = flag("same_bits")};
    if (c.kind.m < 1 || c.kind.n < 1 || c.kind.k < 1) { fail(what, "\"m\", \"n\" or \"k\" is below 1"); }
    return c;
}

}  // namespace

std::string to_json(const MatmulChoices& all) {
    JsonValue products = JsonValue::array();
    for (const MatmulChoice& c : all.choices) {
        std::string algorithm;
        for (uint64_t word : c.algorithm) { algorithm += fmt::format("{:016x}", word); }
        products.push_back({{"transpose_a", c.kind.transpose_a},
                            {"transpose_b", c.kind.transpose_b},
                            {"m", c.kind.m},
                            {"n", c.kind.n},
                            {"k", c.kind.k},
                            {"inputs", c.kind.inputs},
                            {"output", c.kind.output},
                            {"epilogue", c.kind.epilogue},
                            {"accumulate", c.kind.accumulate},
                            {"proposals", c.proposals},
                            {"first_ms", c.first_ms},
                            {"ms", c.ms},
                            {"same_bits", c.same_bits},
                            {"algorithm", algorithm}});
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

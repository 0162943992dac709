// JSON that comes from outside, read into a small tree. The text is parsed event by event under caps on depth
// and number of values, so that no file can make it build more than the caps allow.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace llmc {

struct JsonMember;

class JsonValue {
public:
    using List = std::vector<JsonValue>;
    using Object = std::vector<JsonMember>;  // in the order of the file
    std::variant<std::monostate, bool, int64_t, double, std::string, List, Object> value;

    bool is_null() const { return std::holds_alternative<std::monostate>(value); }
    template <typename T>
    const T* as() const {  // null if it is of another kind
        return std::get_if<T>(&value);
    }
    // the member of this name; null if this is not an object or has none
    const JsonValue* find(std::string_view name) const;
    template <typename T>
    const T* get(std::string_view name) const {  // the same if it is of this kind
        const JsonValue* member = find(name);
        return member == nullptr ? nullptr : member->as<T>();
    }
};

struct JsonMember {
    std::string name;
    JsonValue value;
};

struct JsonLimits {
    size_t values = 500'000;  // 72 bytes each
    int depth = 8;
};

// The whole text as one value. Throws Error(kExitBadInput) that begins with `where` for a syntax error, a
// name that stands twice in an object, an integer beyond 64 bits, and what is over the limits.
JsonValue parse_json(std::string_view text, const std::string& where, const JsonLimits& limits = {});

// the whole file; more than max_bytes is refused before it is read
JsonValue read_json_file(const std::string& path, size_t max_bytes, const JsonLimits& limits = {});

// a text as JSON writes it, in quotes; what is not UTF-8 becomes U+FFFD
std::string json_text(std::string_view text);

}  // namespace llmc

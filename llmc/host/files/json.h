// JSON from outside, read into nlohmann's tree by one entry: event by event under caps on depth, number of values and integers,
// so that no file can make it build more than the caps allow. And texts and numbers as JSON has them, for what is written.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace llmc {

using JsonValue = nlohmann::ordered_json;  // members stay in the order in which they were read or written

struct JsonLimits {
    size_t values = 500'000;
    int depth = 8;
    uint64_t integer = INT64_MAX;  // the largest
};

// The whole text as one value. Returns "", or what makes it unusable, "a syntax error at byte 7": also a name that stands twice
// in an object, and what is over the limits.
std::string read_json(std::string_view text, const JsonLimits& limits, JsonValue* root);

// the same; throws Error(kExitBadInput) that begins with `where`
JsonValue parse_json(std::string_view text, const std::string& where, const JsonLimits& limits = {});
// the whole file; more than max_bytes is refused before it is read
JsonValue read_json_file(const std::string& path, size_t max_bytes, const JsonLimits& limits = {});

// the member of this name; null if this is null, or no object, or has none
const JsonValue* json_find(const JsonValue* object, std::string_view name);
// what a value is if it is of this kind (bool, int64_t, double, std::string, JsonValue::array_t or ::object_t), else null
template <typename T>
const T* json_as(const JsonValue* value);
template <typename T>
const T* json_get(const JsonValue& object, std::string_view name) {
    return json_as<T>(json_find(&object, name));
}

// the whole value on one line; what is not UTF-8 becomes U+FFFD, as names and options may have any bytes
std::string json_line(const JsonValue& value);
// a text as JSON writes it, in quotes; likewise
std::string json_text(std::string_view text);
// The number that `digits` significant digits say: the library writes up to 17. What is not finite stays as it is.
double to_digits(double x, int digits);

}  // namespace llmc

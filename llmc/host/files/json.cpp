// JSON from outside: see json.h.
#include "llmc/host/files/json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "llmc/host/base/error.h"
#include "llmc/host/base/text.h"
#include "llmc/host/files/file_io.h"

namespace llmc {

namespace {

using List = JsonValue::array_t;
using Object = JsonValue::object_t;

// builds the tree; returns false, which ends the parsing, where the text is refused
class Builder : public nlohmann::json_sax<JsonValue> {
public:
    Builder(JsonValue* root, const JsonLimits& limits) : root_(root), limits_(limits) {}
    std::string problem;

    bool null() override { return add(nullptr); }
    bool boolean(bool x) override { return add(x); }
    bool number_integer(int64_t x) override { return add(x); }
    bool number_unsigned(uint64_t x) override {
        return x > limits_.integer ? refuse("an integer over 2^63 - 1") : add(x);
    }
    bool number_float(double x, const string_t&) override { return add(x); }
    bool string(string_t& text) override { return add(std::move(text)); }
    bool binary(JsonValue::binary_t&) override { return refuse("binary data"); }
    bool start_object(size_t) override { return open(Object()); }
    bool start_array(size_t) override { return open(List()); }
    bool key(string_t& name) override {
        key_ = std::move(name);
        return true;
    }
    bool end_object() override {
        std::vector<std::string_view> names;
        for (const auto& [name, value] : stack_.back()->get_ref<const Object&>()) { names.push_back(name); }
        std::ranges::sort(names);
        const auto twice = std::ranges::adjacent_find(names);
        stack_.pop_back();
        return twice == names.end() || refuse(quoted_name(*twice) + " twice in one object");
    }
    bool end_array() override {
        stack_.pop_back();
        return true;
    }
    bool parse_error(size_t at, const std::string&, const nlohmann::detail::exception& e) override {
        const std::string why = e.what();
        const bool half = why.find("surrogate") != why.npos, bytes = why.find("UTF-8") != why.npos;
        constexpr int kOverflow = 406;  // the library's number for it
        const bool nan =
            why.find("invalid string") == why.npos && (why.ends_with("N'") || why.ends_with("I'"));
        return refuse(fmt::format("{} at byte {}",
                                  half    ? "half of a surrogate pair, as of an emoji that was cut in two,"
                                  : bytes ? "a byte that is not UTF-8"
                                  : e.id == kOverflow ? "a syntax error, the overflow of a number,"
                                  : nan ? "NaN or Infinity, which Python writes and JSON does not have,"
                                        : "a syntax error",
                                  at));
    }

private:
    bool refuse(const std::string& what) {
        problem = what;
        return false;
    }
    template <typename T>
    bool add(T&& value) {
        if (++values_ > limits_.values) { return refuse(fmt::format("more than {} values", limits_.values)); }
        place_ = root_;
        if (!stack_.empty()) {
            if (auto* list = stack_.back()->get_ptr<List*>()) {
                place_ = &list->emplace_back();
            } else {  // emplace() would look through all that are there
                place_ = &stack_.back()->get_ref<Object&>().emplace_back(std::move(key_), nullptr).second;
            }
        }
        *place_ = std::forward<T>(value);
        return true;
    }
    template <typename T>
    bool open(T&& container) {
        if ((int)stack_.size() == limits_.depth) {
            return refuse(fmt::format("more than {} levels of lists and objects", limits_.depth));
        }
        if (!add(std::forward<T>(container))) { return false; }
        stack_.push_back(place_);
        return true;
    }

    JsonValue *root_, *place_ = nullptr;  // place_: where the last value is
    JsonLimits limits_;
    size_t values_ = 0;
    std::vector<JsonValue*> stack_;  // what is open; what is inside a value does not move while it is
    std::string key_;
};

}  // namespace

std::string read_json(std::string_view text, const JsonLimits& limits, JsonValue* root) {
    // the library takes it for the end of the text, and would ignore what follows
    if (const size_t at = text.find('\0'); at != text.npos) {
        return fmt::format("a zero byte at {}", at + 1);
    }
    Builder builder(root, limits);
    (void)JsonValue::sax_parse(text.begin(), text.end(), &builder);
    return builder.problem;
}

JsonValue parse_json(std::string_view text, const std::string& where, const JsonLimits& limits) {
    JsonValue root;
    const std::string problem = read_json(text, limits, &root);
    if (!problem.empty()) { throw Error(kExitBadInput, where + ": not usable JSON: found " + problem); }
    return root;
}

JsonValue read_json_file(const std::string& path, size_t max_bytes, const JsonLimits& limits) {
    return parse_json(RegularFile(path).text(max_bytes), path, limits);
}

const JsonValue* json_find(const JsonValue* object, std::string_view name) {
    const auto* members = json_as<Object>(object);
    if (members == nullptr) { return nullptr; }
    const auto at = std::ranges::find(*members, name, &Object::value_type::first);
    return at == members->end() ? nullptr : &at->second;
}

template <typename T>
const T* json_as(const JsonValue* value) {
    return value == nullptr ? nullptr : value->get_ptr<const T*>();
}
template <>
const int64_t* json_as(const JsonValue* value) {
    if (value == nullptr || (value->is_number_unsigned() && value->get<uint64_t>() > INT64_MAX)) {
        return nullptr;
    }
    return value->get_ptr<const int64_t*>();
}
template const bool* json_as(const JsonValue*);
template const double* json_as(const JsonValue*);
template const std::string* json_as(const JsonValue*);
template const List* json_as(const JsonValue*);
template const Object* json_as(const JsonValue*);

std::string json_line(const JsonValue& value) {
    return value.dump(-1, ' ', false, JsonValue::error_handler_t::replace);
}

std::string json_text(std::string_view text) { return json_line(text); }

double to_digits(double x, int digits) { return std::stod(fmt::format("{:.{}g}", x, digits)); }

}  // namespace llmc

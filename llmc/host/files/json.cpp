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

using nlohmann::json;

// builds the tree; returns false, which ends the parsing, where the text is refused
class Builder : public nlohmann::json_sax<json> {
public:
    Builder(JsonValue* root, const JsonLimits& limits) : root_(root), limits_(limits) {}
    std::string problem;

    bool null() override { return add(std::monostate()) != nullptr; }
    bool boolean(bool x) override { return add(x) != nullptr; }
    bool number_integer(int64_t x) override { return add(x) != nullptr; }
    bool number_unsigned(uint64_t x) override {
        if (x > (uint64_t)INT64_MAX) { return refuse("an integer over 2^63 - 1"); }
        return add((int64_t)x) != nullptr;
    }
    bool number_float(double x, const string_t&) override { return add(x) != nullptr; }
    bool string(string_t& text) override { return add(std::move(text)) != nullptr; }
    bool binary(json::binary_t&) override { return refuse("binary data"); }
    bool start_object(size_t) override { return open(JsonValue::Object()); }
    bool start_array(size_t) override { return open(JsonValue::List()); }
    bool key(string_t& name) override {
        key_ = std::move(name);
        return true;
    }
    bool end_object() override {
        const auto& object = *stack_.back()->as<JsonValue::Object>();
        std::vector<std::string_view> names;
        names.reserve(object.size());
        for (const auto& member : object) { names.push_back(member.name); }
        std::sort(names.begin(), names.end());
        const auto twice = std::adjacent_find(names.begin(), names.end());
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
        const bool nan =
            why.find("invalid string") == why.npos && (why.ends_with("N'") || why.ends_with("I'"));
        return refuse(fmt::format("{} at byte {}",
                                  half    ? "half of a surrogate pair, as of an emoji that was cut in two,"
                                  : bytes ? "a byte that is not UTF-8"
                                  : nan   ? "NaN or Infinity, which Python writes and JSON does not have,"
                                          : "a syntax error",
                                  at));
    }

private:
    bool refuse(const std::string& what) {
        problem = what;
        return false;
    }
    // where the new value now is, null if there are too many
    template <typename T>
    JsonValue* add(T&& value) {
        if (++values_ > limits_.values) {
            refuse(fmt::format("more than {} values", limits_.values));
            return nullptr;
        }
        JsonValue* place = root_;
        if (!stack_.empty()) {
            if (auto* list = std::get_if<JsonValue::List>(&stack_.back()->value)) {
                place = &list->emplace_back();
            } else {
                auto& object = std::get<JsonValue::Object>(stack_.back()->value);
                place = &object.emplace_back(JsonMember{std::move(key_), {}}).value;
            }
        }
        place->value = std::forward<T>(value);
        return place;
    }
    template <typename T>
    bool open(T&& container) {
        if ((int)stack_.size() == limits_.depth) {
            return refuse(fmt::format("more than {} levels of lists and objects", limits_.depth));
        }
        JsonValue* place = add(std::forward<T>(container));
        if (place != nullptr) { stack_.push_back(place); }
        return place != nullptr;
    }

    JsonValue* root_;
    JsonLimits limits_;
    size_t values_ = 0;
    std::vector<JsonValue*> stack_;  // what is open; what is inside a value does not move while it is
    std::string key_;
};

}  // namespace

const JsonValue* JsonValue::find(std::string_view name) const {
    const Object* object = as<Object>();
    if (object == nullptr) { return nullptr; }
    for (const auto& member : *object) {
        if (member.name == name) { return &member.value; }
    }
    return nullptr;
}

JsonValue parse_json(std::string_view text, const std::string& where, const JsonLimits& limits) {
    // the library takes it for the end of the text, and would ignore what follows
    if (const size_t at = text.find('\0'); at != text.npos) {
        throw Error(kExitBadInput,
                    fmt::format("{}: not usable JSON: found a zero byte at {}", where, at + 1));
    }
    JsonValue root;
    Builder builder(&root, limits);
    if (!json::sax_parse(text.begin(), text.end(), &builder)) {
        throw Error(kExitBadInput, where + ": not usable JSON: found " + builder.problem);
    }
    return root;
}

JsonValue read_json_file(const std::string& path, size_t max_bytes, const JsonLimits& limits) {
    return parse_json(RegularFile(path).text(max_bytes), path, limits);
}

std::string json_text(std::string_view text) {
    return json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace llmc

// safetensors files: see safetensors.h.
#include "llmc/host/files/safetensors.h"

#include <fmt/format.h>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "llmc/host/base/error.h"
#include "llmc/host/base/floats.h"
#include "llmc/host/base/text.h"
#include "llmc/host/files/json.h"

namespace llmc {

namespace {

constexpr uint64_t kMaxHeader = 32 << 20;
constexpr size_t kMaxName = 1024, kMaxDimensions = 8;
constexpr int64_t kPiece = 1 << 20;  // elements written at a time
constexpr const char* kMetadata = "__metadata__";

struct KnownType {
    std::string_view name;
    uint64_t bytes;
};
constexpr KnownType kKnownTypes[] = {{"F32", 4},     {"F16", 2},    {"BF16", 2}, {"F64", 8}, {"I64", 8},
                                     {"I32", 4},     {"I16", 2},    {"I8", 1},   {"U64", 8}, {"U32", 4},
                                     {"U16", 2},     {"U8", 1},     {"BOOL", 1}, {"C64", 8}, {"F8_E4M3", 1},
                                     {"F8_E5M2", 1}, {"F8_E8M0", 1}};

const KnownType* known_type(std::string_view name) {  // std::end(kKnownTypes) if it is none
    return std::ranges::find(kKnownTypes, name, &KnownType::name);
}

int64_t elements_of(const std::vector<int64_t>& shape) {
    return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

// reads and checks the header of one file
class HeaderParser {
public:
    explicit HeaderParser(const RegularFile& file) : file_(file) {}

    std::vector<SafetensorsEntry> entries() {
        const uint64_t length = header_length();
        body_ = 8 + length;
        std::string text(length, '\0');
        file_.read(8, text.data(), length);
        if (text[0] != '{') { fail("the header", "another first character", "{"); }
        const JsonValue header = parse_json(text, file_.path() + ": safetensors header", {500'000, 4});
        std::vector<SafetensorsEntry> all;
        for (const auto& [name, value] : header.get_ref<const JsonValue::object_t&>()) {
            if (name != kMetadata) {
                all.push_back(entry(name, value));
            } else if (!value.is_object() || !std::ranges::all_of(value, &JsonValue::is_string)) {
                fail(kMetadata, "something else", "an object of texts");
            }
        }
        check_places(&all);
        return all;
    }

private:
    [[noreturn]] void fail(const std::string& what, const std::string& found,
                           const std::string& expected) const {
        throw Error(
            kExitBadInput,
            "{}: not a usable safetensors file: {}: found {}, expected {}. Get or make the file again.",
            file_.path(), what, found, expected);
    }

    uint64_t header_length() const {
        if (file_.size() < 10) { fail("file size", fmt::format("{} bytes", file_.size()), "at least 10"); }
        uint64_t length;
        file_.read(0, &length, sizeof(length));
        const uint64_t most = std::min<uint64_t>(kMaxHeader, file_.size() - 8);
        if (length < 2 || length > most) {
            fail("length of the header", fmt::format("{}", length), fmt::format("2 to {}", most));
        }
        return length;
    }

    // the numbers of a list, each 0 or more
    std::vector<int64_t> numbers(const std::string& what, const JsonValue* value, size_t most) const {
        const auto* list = json_as<JsonValue::array_t>(value);
        if (list == nullptr || list->size() > most) {
            fail(what, list == nullptr ? "no list" : fmt::format("{} numbers", list->size()),
                 fmt::format("a list of at most {} numbers", most));
        }
        std::vector<int64_t> all;
        for (const JsonValue& item : *list) {
            const int64_t* number = json_as<int64_t>(&item);
            if (number == nullptr || *number < 0) { fail(what, "something else", "whole numbers from 0 on"); }
            all.push_back(*number);
        }
        return all;
    }

    SafetensorsEntry entry(const std::string& name, const JsonValue& value) const {
        const std::string what = "tensor " + quoted_name(name);
        if (name.size() > kMaxName) {
            fail(what, "a longer name", fmt::format("at most {} bytes", kMaxName));
        }
        if (!value.is_object() || value.size() != 3) {
            fail(what, "something else", "an object of dtype, shape and data_offsets");
        }
        const auto* text = json_get<std::string>(value, "dtype");
        const KnownType* known = known_type(text == nullptr ? "" : *text);
        if (known == std::end(kKnownTypes)) {
            fail(what + ", dtype", text == nullptr ? "no text" : quoted_name(*text),
                 "F32, F16, BF16 or another");
        }
        SafetensorsEntry e = {
            .name = name,
            .type = (TensorType)std::min<int64_t>(known - kKnownTypes, (int)TensorType::kOther),
            .type_text = std::string(known->name),
            .shape = numbers(what + ", shape", json_find(&value, "shape"), kMaxDimensions)};
        const auto place = numbers(what + ", data_offsets", json_find(&value, "data_offsets"), 2);
        check_size(what + ", data_offsets", e, known->bytes, place);
        e.begin = body_ + (uint64_t)place[0];
        e.elements = (place[1] - place[0]) / (int64_t)known->bytes;
        return e;
    }

    void check_size(const std::string& what, const SafetensorsEntry& e, uint64_t bytes,
                    const std::vector<int64_t>& place) const {
        const uint64_t size = file_.size() - body_;
        if (place.size() != 2 || place[0] > place[1] || (uint64_t)place[1] > size) {
            fail(what,
                 place.size() != 2 ? fmt::format("{} numbers", place.size())
                                   : fmt::format("{} to {}", place[0], place[1]),
                 fmt::format("begin <= end <= {}, the bytes behind the header", size));
        }
        bool fits = true;
        for (int64_t n : e.shape) { fits = fits && multiply_fits(bytes, (uint64_t)n, &bytes); }
        if (!fits || bytes != (uint64_t)(place[1] - place[0])) {
            fail(what, fmt::format("{} bytes", (place[1] - place[0])),
                 fits ? fmt::format("{} = {} of {}", bytes, e.shape_text(), e.type_text)
                      : "a shape whose size fits in 64 bits, not " + e.shape_text());
        }
    }

    // side by side, from the first byte to the last
    void check_places(std::vector<SafetensorsEntry>* all) const {
        std::ranges::stable_sort(
            *all, {}, [](const SafetensorsEntry& e) { return std::pair(e.begin, e.elements > 0); });
        uint64_t at = body_;
        for (const SafetensorsEntry& e : *all) {
            const std::string what = "tensor " + quoted_name(e.name) + ", data_offsets";
            if (e.begin != at) {
                fail(what, fmt::format("a begin at {}", (e.begin - body_)),
                     fmt::format("{}, where the tensor before it ends", (at - body_)));
            }
            at += (uint64_t)e.elements * known_type(e.type_text)->bytes;
        }
        if (at != file_.size()) {
            fail("file size", fmt::format("{} bytes", file_.size()),
                 fmt::format("{}, where the last tensor ends", at));
        }
    }

    const RegularFile& file_;
    uint64_t body_ = 0;  // where the tensors' bytes begin
};

std::string header_text(const std::vector<SafetensorsTensor>& tensors, const std::vector<size_t>& order,
                        TensorType type) {
    JsonValue header = {{kMetadata, {{"format", "pt"}}}};
    int64_t at = 0;
    for (size_t i : order) {
        const auto& [name, shape] = tensors[i];
        const int64_t end = at + elements_of(shape) * (int64_t)kKnownTypes[(int)type].bytes;
        header[name] = {
            {"dtype", kKnownTypes[(int)type].name}, {"shape", shape}, {"data_offsets", {at, end}}};
        at = end;
    }
    std::string text = json_line(header);
    text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the tensors are aligned
    return text;
}

}  // namespace

std::string SafetensorsEntry::shape_text() const { return fmt::format("({})", fmt::join(shape, ", ")); }

SafetensorsFile::SafetensorsFile(const std::string& path) : file_(path) {
    entries_ = HeaderParser(file_).entries();
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
    const auto at = std::ranges::find(entries_, name, &SafetensorsEntry::name);
    return at == entries_.end() ? nullptr : &*at;
}

void SafetensorsFile::read(const SafetensorsEntry& entry, int64_t first, std::span<float> values) const {
    require(entry.type != TensorType::kOther, "SafetensorsFile: only F32, F16, BF16 and F64 can be read");
    require(first >= 0 && first <= entry.elements - (int64_t)values.size(),
            "SafetensorsFile: range outside of the tensor");
    const uint64_t at = entry.begin + (uint64_t)first * kKnownTypes[(int)entry.type].bytes;
    if (entry.type == TensorType::kF32) { return file_.read(at, values.data(), values.size_bytes()); }
    if (entry.type == TensorType::kF64) {
        std::vector<double> wide(values.size());
        file_.read(at, wide.data(), wide.size() * sizeof(double));
        std::ranges::copy(wide, values.begin());
        return;
    }
    std::vector<uint16_t> narrow(values.size());
    file_.read(at, narrow.data(), narrow.size() * sizeof(uint16_t));
    std::ranges::transform(narrow, values.begin(), entry.type == TensorType::kF16 ? from_fp16 : from_bf16);
}

Digest write_safetensors(const std::string& path, const std::vector<SafetensorsTensor>& tensors,
                         TensorType type,
                         const std::function<void(size_t i, int64_t first, std::span<float> values)>& read,
                         const std::function<void()>& before) {
    require(type < TensorType::kF64, "write_safetensors: F32, F16 or BF16");
    std::vector<size_t> order(tensors.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::sort(order, {}, [&](size_t i) { return std::string_view(tensors[i].name); });
    const std::string header = header_text(tensors, order, type);
    const uint64_t length = header.size();
    require(length <= kMaxHeader, "write_safetensors: the header is too long");
    FileWriter out(path);
    out.write(&length, sizeof(length));
    out.write(header.data(), header.size());
    std::vector<float> piece;
    std::vector<uint16_t> narrow;
    for (size_t i : order) {
        const int64_t elements = elements_of(tensors[i].shape);
        for (int64_t first = 0; first < elements; first += kPiece) {
            piece.resize((size_t)std::min(kPiece, elements - first));
            read(i, first, piece);
            if (type == TensorType::kF32) {
                out.write(piece.data(), piece.size() * sizeof(float));
                continue;
            }
            narrow.resize(piece.size());
            std::ranges::transform(piece, narrow.begin(), type == TensorType::kF16 ? to_fp16 : to_bf16);
            out.write(narrow.data(), narrow.size() * sizeof(uint16_t));
        }
    }
    return out.commit(before);
}

}  // namespace llmc

// safetensors files: what is written is read back; every wrong header, every truncation and every way in
// which tensors could overlap, leave holes or wrap around is refused.
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "dev/test/support/test_files.h"
#include "llmc/host/base/floats.h"
#include "llmc/host/files/json.h"
#include "llmc/host/files/safetensors.h"

using namespace llmc;

namespace {

std::string with_header(const std::string& header, size_t body) {
    const uint64_t length = header.size();
    return std::string(reinterpret_cast<const char*>(&length), 8) + header + std::string(body, '\1');
}

Error open_error(const std::string& bytes) {
    TempFolder folder;
    write_bytes(folder / "x.safetensors", bytes);
    return error_of([&] { SafetensorsFile file(folder / "x.safetensors"); });
}

std::string two_tensors(const std::string& first, const std::string& second) {
    return "{\"a\":{\"dtype\":\"F32\"," + first + "},\"b\":{\"dtype\":\"BF16\"," + second + "}}";
}

}  // namespace

TEST_CASE("safetensors: what is written is read back, in all three types") {
    TempFolder folder;
    const std::string path = folder / "x.safetensors";
    const std::vector<SafetensorsTensor> tensors = {
        {"z", {3, 5}}, {"a\"\\", {7}}, {"none", {0, 4}}, {"one", {}}};
    const auto value = [](size_t i, int64_t at) { return (float)(i + 1) + (float)at / 8; };  // exact in bf16
    for (TensorType type : {TensorType::kF32, TensorType::kF16, TensorType::kBF16}) {
        write_safetensors(path, tensors, type, [&](size_t i, int64_t first, std::span<float> values) {
            for (size_t k = 0; k < values.size(); k++) { values[k] = value(i, first + (int64_t)k); }
        });
        const SafetensorsFile file(path);
        REQUIRE(file.entries().size() == 4);
        CHECK(file.find("b") == nullptr);
        for (size_t i = 0; i < tensors.size(); i++) {
            const SafetensorsEntry* entry = file.find(tensors[i].name);
            REQUIRE(entry != nullptr);
            CHECK(entry->type == type);
            CHECK(entry->shape == tensors[i].shape);
            std::vector<float> values((size_t)entry->elements);
            file.read(*entry, 0, values);
            for (size_t k = 0; k < values.size(); k++) { CHECK(values[k] == value(i, (int64_t)k)); }
        }
        std::vector<float> part(3);
        file.read(*file.find("z"), 12, part);
        CHECK(part == std::vector<float>{value(0, 12), value(0, 13), value(0, 14)});
        CHECK(error_of([&] { file.read(*file.find("z"), 13, part); }).exit_code == kExitUsage);
        CHECK(error_of([&] { file.read(*file.find("z"), -1, part); }).exit_code == kExitUsage);
        const std::string bytes = read_bytes(path);
        uint64_t length;
        std::memcpy(&length, bytes.data(), 8);
        CHECK(length % 8 == 0);
        CHECK(bytes.find("\"format\":\"pt\"") != std::string::npos);
        CHECK(bytes.find("\"a\\\"\\\\\"") < bytes.find("\"none\""));
    }
}

TEST_CASE("safetensors: fp16 is rounded to nearest even, and every fp16 comes back") {
    for (uint32_t bits = 0; bits < 65536; bits++) {
        const float x = from_fp16((uint16_t)bits);
        if (std::isnan(x)) {
            CHECK(std::isnan(from_fp16(to_fp16(x))));
        } else if (to_fp16(x) != bits) {
            FAIL("fp16 bits ", bits);
        }
    }
    CHECK(from_fp16(0x3c00) == 1.0f);
    CHECK(from_fp16(0x0001) == 0x1p-24f);
    CHECK(from_fp16(0xfbff) == -65504.0f);
    CHECK(to_fp16(1 + 0x1p-11f) == 0x3c00);  // a tie goes to the even one
    CHECK(to_fp16(1 + 0x3p-11f) == 0x3c02);
    CHECK(to_fp16(1 + 0x1.1p-11f) == 0x3c01);
    CHECK(to_fp16(2047.9f / 1024) == 0x4000);  // carries into the exponent
    CHECK(to_fp16(65519.9f) == 0x7bff);
    CHECK(to_fp16(65520.0f) == 0x7c00);
    CHECK(to_fp16(-INFINITY) == 0xfc00);
    CHECK(to_fp16(0x1p-25f) == 0);
    CHECK(to_fp16(0x1.2p-25f) == 1);
}

TEST_CASE("safetensors: wrong headers are refused by name") {
    const std::string good_a = "\"shape\":[2],\"data_offsets\":[0,8]",
                      good_b = "\"shape\":[3],\"data_offsets\":[8,14]";
    const std::string good = with_header(two_tensors(good_a, good_b), 14);
    CHECK(open_error(good).exit_code == kExitDone);
    for (size_t size = 1; size < good.size(); size++) {
        CAPTURE(size);
        CHECK(open_error(good.substr(0, size)).exit_code == kExitBadInput);
    }
    CHECK(open_error(good + "x").exit_code == kExitBadInput);
    struct Case {
        std::string header, part;
        size_t body = 14;
    };
    const auto second = [&](const std::string& b) { return two_tensors(good_a, b); };
    const Case cases[] = {
        {second("\"shape\":[3],\"data_offsets\":[7,13]"), "\"b\""},                       // overlaps
        {second("\"shape\":[2],\"data_offsets\":[10,14]"), "\"b\""},                      // leaves a hole
        {second("\"shape\":[2],\"data_offsets\":[8,14]"), "(2) of BF16"},                 // wrong size
        {second("\"shape\":[3],\"data_offsets\":[14,8]"), "begin <= end"},                // backwards
        {second("\"shape\":[3],\"data_offsets\":[8,15]"), "begin <= end"},                // beyond the end
        {second("\"shape\":[3],\"data_offsets\":[8]"), "1 numbers"},                      //
        {second("\"shape\":[3],\"data_offsets\":[8,14,20]"), "3 numbers"},                //
        {second("\"shape\":[-3],\"data_offsets\":[8,14]"), "whole numbers"},              //
        {second("\"shape\":[1.5],\"data_offsets\":[8,14]"), "whole numbers"},             //
        {second("\"shape\":3,\"data_offsets\":[8,14]"), "no list"},                       //
        {second("\"shape\":[1,1,1,1,1,1,1,1,3],\"data_offsets\":[8,14]"), "9 numbers"},   //
        {second("\"data_offsets\":[8,14]"), "dtype, shape and data_offsets"},             //
        {second("\"shape\":[4294967296,4294967296],\"data_offsets\":[8,8]"), "64 bits"},  // wraps to 0
        {second("\"shape\":[9223372036854775807],\"data_offsets\":[8,14]"), "18446744073709551614"},  //
        {second("\"shape\":[18446744073709551616],\"data_offsets\":[8,14]"), "whole numbers"},
        {second("\"shape\":[3],\"data_offsets\":[8,18446744073709551615]"), "over 2^63"},
        {"{\"a\":{\"dtype\":\"X9\",\"shape\":[2],\"data_offsets\":[0,8]}}", "\"X9\"", 8},
        {"{\"a\":1}", "\"a\"", 0},
        {"{\"a\":{\"dtype\":\"F32\"," + good_a + "},\"a\":{\"dtype\":\"F32\"," + good_a + "}}", "twice", 8},
        {"[]", "first character", 0},
        {"{\"__metadata__\":{\"a\":1}}", "object of texts", 0},
        {"{\"a\":[[[[[]]]]]}", "levels", 0},
        {"{\"\\u001b[2J\":1}", "\\x1b[2J", 0},
    };
    for (const Case& c : cases) {
        CAPTURE(c.header);
        check_error(open_error(with_header(c.header, c.body)), kExitBadInput, {"x.safetensors", c.part});
    }
    check_error(open_error(std::string("\xff\xff\xff\xff\xff\xff\xff\x7f{}", 10)), kExitBadInput,
                {"length of the header"});
    TempFolder folder;
    check_error(error_of([&] { SafetensorsFile file(folder.path()); }), kExitBadInput, {"regular file"});
}

TEST_CASE("json: depth and number of values are limited, names stand once, numbers fit") {
    const auto problem = [](const std::string& text, JsonLimits limits = {}) {
        return error_of([&] { parse_json(text, "here", limits); });
    };
    CHECK(problem("{\"a\": [1, 2.5, \"x\", null, true, {}]}").exit_code == kExitDone);
    check_error(problem(std::string(1 << 20, '[')), kExitBadInput, {"here", "8 levels"});
    check_error(problem("[1,2,3]", {3, 8}), kExitBadInput, {"3 values"});
    check_error(problem("{\"a\":1,\"b\":2,\"a\":3}"), kExitBadInput, {"\"a\" twice"});
    check_error(problem("[9223372036854775808]"), kExitBadInput, {"over 2^63"});
    for (const char* wrong : {"", "{", "[1,]", "{} x", "nul"}) {
        check_error(problem(wrong), kExitBadInput, {"syntax error"});
    }
    check_error(problem("\"\xff\""), kExitBadInput, {"a byte that is not UTF-8 at byte 2"});
    check_error(problem(R"("a\ud83d b")"), kExitBadInput, {"half of a surrogate pair"});
    for (const std::string& wrong :
         {std::string("{}\0", 3), std::string("{}\0{}", 5), std::string("[\0]", 3)}) {
        check_error(problem(wrong), kExitBadInput, {"zero byte at"});
    }
    const JsonValue value = parse_json("{\"b\": [1, \"x\"], \"a\": {\"c\": -5}}", "here");
    REQUIRE(json_find(&value, "a") != nullptr);
    CHECK(*json_get<int64_t>(*json_find(&value, "a"), "c") == -5);
    CHECK(json_get<JsonValue::array_t>(value, "b")->size() == 2);
    CHECK(json_find(&value, "c") == nullptr);
    const JsonValue large = parse_json("[18446744073709551615, 1]", "here", {.integer = UINT64_MAX});
    CHECK(json_as<int64_t>(&large[0]) == nullptr);  // not -1
    CHECK(*json_as<int64_t>(&large[1]) == 1);
    CHECK(json_text("a\"\n\xff") == "\"a\\\"\\n\xef\xbf\xbd\"");
}

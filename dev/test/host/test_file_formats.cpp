// Files of others: token shards, tokenizers, safetensors and JSON. Every truncation and every wrong field is refused with exit
// code 3 and a message that names file and field (random damage: test_damage.cpp and dev/test/fuzz). What is written as
// safetensors is read back, and tensors neither overlap, leave holes nor wrap around. All exact.
#include <sys/stat.h>
#include <cmath>
#include <cstring>
#include <limits>

#include <nlohmann/json.hpp>

#include "dev/test/support/test_files.h"
#include "llmc/host/base/floats.h"
#include "llmc/host/files/json.h"
#include "llmc/host/files/safetensors.h"
#include "llmc/host/tokens/dataloader.h"
#include "llmc/host/tokens/tokenizer.h"

using namespace llmc;

namespace {

constexpr int32_t kMin = std::numeric_limits<int32_t>::min(), kMax = std::numeric_limits<int32_t>::max();

const std::vector<uint16_t> kTokens = {256, 72, 101, 108, 108, 111, 10, 256};

std::string good_shard() {
    return header_bytes({20240520, 1, (int32_t)kTokens.size(), 257}) + token_bytes(kTokens);
}
std::string good_tokenizer() {
    return header_bytes({20240328, 2, 5, 4}) + "\1a\2bc\3def\1\n\x0d<|endoftext|>";
}

template <typename File>
Error error_in(const std::string& path) {
    return error_of([&] { File file(path); });
}
constexpr FileReader shard_error = error_in<TokenShard>, safetensors_error = error_in<SafetensorsFile>;
Error tokenizer_error(const std::string& path) {
    return error_of([&] { Tokenizer::load(path); });
}
Error json_error(const std::string& path) {
    return error_of([&] { read_json_file(path, 1000); });
}

std::string with_header(const std::string& header, size_t body) {
    const uint64_t length = header.size();
    return std::string(reinterpret_cast<const char*>(&length), 8) + header + std::string(body, '\1');
}

std::string two_tensors(const std::string& first, const std::string& second) {
    return "{\"a\":{\"dtype\":\"F32\"," + first + "},\"b\":{\"dtype\":\"BF16\"," + second + "}}";
}

}  // namespace

TEST_CASE_FIXTURE(InFolder, "token shard: cut anywhere, or too long") {
    const std::string path = folder / "cut.bin", good = good_shard();
    write_bytes(path, good);
    CHECK(shard_error(path).exit_code == kExitDone);
    for (size_t size = 1; size < good.size(); size++) {
        CAPTURE(size);
        write_bytes(path, good.substr(0, size));
        const bool in_header = size < 1024;
        const auto says = {path, std::string(in_header ? "header" : "file size"),
                           fmt::format("found {} bytes", size),
                           std::string(in_header ? "at least 1024 bytes" : "expected 1040 bytes"),
                           std::string("data/make_shards")};
        check_error([&] { DataLoader(path, 4, 1); }, kExitBadInput, says);
    }
    for (size_t more : {1, 2, 1024}) {
        check_bytes(shard_error, good + std::string(more, '\0'), {"file size", "expected 1040 bytes"});
    }
}

TEST_CASE("token shard: every field, wrong") {
    check_fields(good_shard(),
                 {{0, {0, -1, 20240521, 20240326, 20240801, 0x08d83401}, "magic", "expected 20240520"},
                  {1, {0, 2, 7, -1, kMin, kMax}, "version", "expected 1."},
                  {2, {0, -1, kMin}, "token count", "expected 1 to 2147483647"},
                  {3, {-1, 65537, kMin, kMax}, "vocabulary size", "expected 0 to 65536"}},
                 shard_error);
    for (int32_t count : {1, 7, 9, 1 << 30, kMax}) {  // in range, but not what the file holds
        check_bytes(shard_error, header_bytes({20240520, 1, count, 257}) + token_bytes(kTokens),
                    {"file size", "found 1040 bytes", fmt::format("2 x {} tokens", count)});
    }
}

TEST_CASE_FIXTURE(InFolder, "tokenizer file: cut at every byte, or too long") {
    const std::string good = good_tokenizer();
    write_bytes(folder / "good.bin", good);
    CHECK(Tokenizer::load(folder / "good.bin").decode(4) == "<|endoftext|>");
    for (size_t size = 1; size < good.size(); size++) {
        CAPTURE(size);
        const char* field = size < 1024 ? "header" : size < 1024 + 2 * 5 ? "file size" : "token ";
        check_bytes(tokenizer_error, good.substr(0, size), {field, "found", "expected"});
    }
    for (size_t more : {1, 2, 1024}) {
        check_bytes(tokenizer_error, good + std::string(more, 'x'),
                    {"file size", fmt::format("found {}", good.size() + more),
                     fmt::format("expected {} bytes", good.size())});
    }
}

TEST_CASE("tokenizer file: every field, wrong") {
    check_fields(good_tokenizer(),
                 {{0, {0, -1, 20240329, 20240520, (int32_t)0xc8d73401}, "magic", "expected 20240328"},
                  {1, {0, 3, -1, kMin, kMax}, "version", "expected 1 to 2"},
                  {2, {0, -1, kMin, (1 << 20) + 1, kMax}, "vocabulary size", "expected 1 to 1048576"},
                  {3, {-1, 5, 50256, 2000000000, kMin, kMax}, "end-of-text token", "expected 0 to 4"}},
                 tokenizer_error);
    struct {
        int32_t vocab;
        std::string tokens, field, found;
    } cases[] = {{1 << 20, "\1a\1b", "file size", "at least 2098176 bytes"},
                 {2, std::string("\1a\0xyz", 6), "token 1, length", "found 0"},
                 {2, "\1a\3bc", "token 1, bytes", "found 2 bytes before the end of the file, expected 3"},
                 {3, "\3abc\1d", "token 2, length", "found the end of the file"},
                 {1, "\1ab", "file size", "header and 1 tokens"}};
    for (const auto& [vocab, tokens, field, found] : cases) {
        check_bytes(tokenizer_error, header_bytes({20240328, 2, vocab, 0}) + tokens, {field, found});
    }
}

TEST_CASE_FIXTURE(InFolder, "safetensors, json, shards and tokenizers: not a file at all") {
    write_bytes(folder / "empty.bin", "");
    REQUIRE(mkfifo((folder / "pipe").c_str(), 0600) == 0);
    write_bytes(folder / "lfs.bin", "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12\n");
    write_bytes(folder / "page.bin", "<!DOCTYPE html>\n<html>404</html>\n");
    for (FileReader read : {shard_error, tokenizer_error, safetensors_error, json_error}) {
        for (const auto& [path, says] : {std::pair{folder / "missing.bin", "cannot open"},
                                         {folder / "empty.bin", "empty"},
                                         {folder.path(), "not a regular file"},
                                         {"/dev/null", "not a regular file"},
                                         {folder / "pipe", "not a regular file"},
                                         {folder / "lfs.bin", "a Git LFS pointer: git lfs pull"},
                                         {folder / "page.bin", "a page of HTML"}}) {
            check_error(read(path), kExitBadInput, {path, says});
        }
    }
}

// ---- safetensors, json -------------------------------------------------------------------------

TEST_CASE_FIXTURE(InFolder, "safetensors: what is written is read back, in all three types") {
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
        for (int at : {13, -1}) {
            CHECK(error_of([&] { file.read(*file.find("z"), at, part); }).exit_code == kExitUsage);
        }
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
    TempFolder folder;
    write_bytes(folder / "good", good);
    CHECK(safetensors_error(folder / "good").exit_code == kExitDone);
    for (size_t size = 1; size < good.size(); size++) {
        CAPTURE(size);
        check_bytes(safetensors_error, good.substr(0, size), {});
    }
    check_bytes(safetensors_error, good + "x", {});
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
        check_bytes(safetensors_error, with_header(c.header, c.body), {c.part});
    }
    check_bytes(safetensors_error, std::string("\xff\xff\xff\xff\xff\xff\xff\x7f{}", 10),
                {"length of the header"});
}

TEST_CASE("json: depth and number of values are limited, names stand once, numbers fit") {
    const auto problem = [](const std::string& text, JsonLimits limits = {}) {
        return error_of([&] { parse_json(text, "here", limits); });
    };
    CHECK(problem("{\"a\": [1, 2.5, \"x\", null, true, {}]}").exit_code == kExitDone);
    check_error(problem("[1,2,3]", {3, 8}), kExitBadInput, {"3 values"});
    check_error(problem("[1,2,{}]", {3, 8}), kExitBadInput, {"3 values"});
    std::string objects;
    for (int i = 0; i < 1000; i++) { objects += "{\"a\":"; }
    using Wrong = std::pair<std::string, const char*>;
    for (const auto& [text, says] :
         {Wrong{std::string(1 << 20, '['), "8 levels"}, Wrong{objects, "8 levels"},
          Wrong{"{\"a\":1,\"b\":2,\"a\":3}", "\"a\" twice"}, Wrong{"[9223372036854775808]", "over 2^63"},
          Wrong{"", "syntax error"}, Wrong{"{", "syntax error"}, Wrong{"[1,]", "syntax error"},
          Wrong{"{} x", "syntax error"}, Wrong{"nul", "syntax error"},
          Wrong{"\"\xff\"", "a byte that is not UTF-8 at byte 2"},
          Wrong{R"("a\ud83d b")", "half of a surrogate pair"}, Wrong{std::string("{}\0", 3), "zero byte at"},
          Wrong{std::string("{}\0{}", 5), "zero byte at"}, Wrong{std::string("[\0]", 3), "zero byte at"}}) {
        check_error(problem(text), kExitBadInput, {"here", says});
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

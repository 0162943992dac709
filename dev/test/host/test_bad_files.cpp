// Damaged and hostile files: every truncation and every wrong field of a token shard and of a tokenizer file
// is refused with exit code 3 and a message that names file and field. All exact.
#include <sys/stat.h>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "dev/test/support/test_files.h"
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

Error shard_error(const std::string& path) {
    return error_of([&] { TokenShard shard(path); });
}
Error tokenizer_error(const std::string& path) {
    return error_of([&] { Tokenizer::load(path); });
}

// a header word that is wrong, and how the error must call it
struct WrongField {
    int word;
    std::vector<int32_t> values;
    std::string name, expected;
};

using Reader = Error (*)(const std::string& path);

void check_fields(const std::string& good, const std::vector<WrongField>& fields, Reader read) {
    TempFolder folder;
    const std::string path = folder / "wrong.bin";
    for (const WrongField& field : fields) {
        for (int32_t value : field.values) {
            CAPTURE(field.name);
            CAPTURE(value);
            std::string bytes = good;
            std::memcpy(bytes.data() + field.word * 4, &value, sizeof(value));
            write_bytes(path, bytes);
            const std::string found = "found " + std::to_string(value);
            check_error(read(path), kExitBadInput, {path, field.name, found, field.expected});
        }
    }
}

// every kind of file that is none, whatever the format
void check_not_files(Reader read) {
    TempFolder folder;
    check_error(read(folder / "missing.bin"), kExitBadInput, {folder / "missing.bin", "cannot open"});
    write_bytes(folder / "empty.bin", "");
    check_error(read(folder / "empty.bin"), kExitBadInput, {folder / "empty.bin", "empty"});
    check_error(read(folder.path()), kExitBadInput, {folder.path(), "not a regular file"});
    check_error(read("/dev/null"), kExitBadInput, {"/dev/null", "not a regular file"});
    REQUIRE(mkfifo((folder / "pipe").c_str(), 0600) == 0);
    check_error(read(folder / "pipe"), kExitBadInput, {folder / "pipe", "not a regular file"});
    write_bytes(folder / "lfs.bin", "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12\n");
    check_error(read(folder / "lfs.bin"), kExitBadInput,
                {folder / "lfs.bin", "a Git LFS pointer", "git lfs pull"});
    write_bytes(folder / "page.bin", "<!DOCTYPE html>\n<html>404</html>\n");
    check_error(read(folder / "page.bin"), kExitBadInput, {folder / "page.bin", "a page of HTML"});
}

// Random damage to a good file must be refused or be harmless: nothing else may be thrown, nothing may crash.
// Returns how often it was refused.
template <typename Read>
int count_refused(const std::string& good, Read read, const std::string& name = "damaged.bin") {
    TempFolder folder;
    const std::string path = folder / name;
    std::mt19937 gen(1);
    int refused = 0;
    for (int round = 0; round < 2000; round++) {
        std::string bytes = good;
        for (int hits = 1 + (int)(gen() % 3); hits > 0; hits--) {
            const bool in_fields = gen() % 2 == 0;
            const size_t at = in_fields ? gen() % 16 : gen() % bytes.size();
            bytes[at] = (char)gen();
        }
        if (gen() % 4 == 0) { bytes.resize(gen() % (bytes.size() + 8)); }
        write_bytes(path, bytes);
        const Error error = error_of([&] { read(path); });
        const bool expected = error.exit_code == kExitBadInput || error.exit_code == kExitDone;
        CHECK(expected);
        refused += error.exit_code == kExitBadInput;
    }
    return refused;
}

}  // namespace

// ---- token shards ------------------------------------------------------------------------------

TEST_CASE("token shard: cut anywhere, or too long") {
    TempFolder folder;
    const std::string path = folder / "cut.bin", good = good_shard();
    write_bytes(path, good);
    CHECK(shard_error(path).exit_code == kExitDone);
    for (size_t size = 1; size < good.size(); size++) {
        CAPTURE(size);
        write_bytes(path, good.substr(0, size));
        const std::string found = "found " + std::to_string(size) + " bytes";
        const bool in_header = size < 1024;
        const auto says = {path, std::string(in_header ? "header" : "file size"), found,
                           std::string(in_header ? "at least 1024 bytes" : "expected 1040 bytes"),
                           std::string("data/make_shards")};
        check_error(shard_error(path), kExitBadInput, says);
        if (size % 4 == 0) {
            check_error(error_of([&] { DataLoader(path, 4, 1); }), kExitBadInput, says);
        }
    }
    for (size_t more : {1, 2, 1024}) {
        write_bytes(path, good + std::string(more, '\0'));
        check_error(shard_error(path), kExitBadInput, {path, "file size", "expected 1040 bytes"});
    }
}

TEST_CASE("token shard: every field, wrong") {
    check_fields(good_shard(),
                 {{0, {0, -1, 20240521, 20240326, 20240801, 0x08d83401}, "magic", "expected 20240520"},
                  {1, {0, 2, 7, -1, kMin, kMax}, "version", "expected 1."},
                  {2, {0, -1, kMin}, "token count", "expected 1 to 2147483647"},
                  {3, {-1, 65537, kMin, kMax}, "vocabulary size", "expected 0 to 65536"}},
                 shard_error);
    TempFolder folder;
    const std::string path = folder / "count.bin";
    for (int32_t count : {1, 7, 9, 1 << 30, kMax}) {  // in range, but not what the file holds
        write_bytes(path, header_bytes({20240520, 1, count, 257}) + token_bytes(kTokens));
        const std::string stated = "2 x " + std::to_string(count) + " tokens";
        check_error(shard_error(path), kExitBadInput, {path, "file size", "found 1040 bytes", stated});
    }
}

TEST_CASE("token shard: not a file at all") { check_not_files(shard_error); }

TEST_CASE("token shard: random damage is refused or harmless") {
    const int refused = count_refused(good_shard(), [](const std::string& path) {
        Batch batch;
        DataLoader(path, 4, 1).read(0, 3, &batch);
        ValidationData validation(path, 4, ValidationData::Align::kDocument, 256, -1);
        validation.read(0, (int)validation.num_rows() + 1, &batch);
        for (int32_t token : batch.tokens) { CHECK(token < validation.vocab_size()); }
    });
    CHECK(refused > 1000);
}

// ---- tokenizer files ---------------------------------------------------------------------------

TEST_CASE("tokenizer file: cut at every byte, or too long") {
    TempFolder folder;
    const std::string path = folder / "cut.bin", good = good_tokenizer();
    write_bytes(path, good);
    CHECK(Tokenizer::load(path).decode(4) == "<|endoftext|>");
    for (size_t size = 1; size < good.size(); size++) {
        CAPTURE(size);
        write_bytes(path, good.substr(0, size));
        const char* field = size < 1024 ? "header" : size < 1024 + 2 * 5 ? "file size" : "token ";
        check_error(tokenizer_error(path), kExitBadInput, {path, field, "found", "expected"});
    }
    for (size_t more : {1, 2, 1024}) {
        write_bytes(path, good + std::string(more, 'x'));
        const std::string found = "found " + std::to_string(good.size() + more);
        check_error(tokenizer_error(path), kExitBadInput, {path, "file size", found});
    }
}

TEST_CASE("tokenizer file: every field, wrong") {
    check_fields(good_tokenizer(),
                 {{0, {0, -1, 20240329, 20240520, (int32_t)0xc8d73401}, "magic", "expected 20240328"},
                  {1, {0, 3, -1, kMin, kMax}, "version", "expected 1 to 2"},
                  {2, {0, -1, kMin, (1 << 20) + 1, kMax}, "vocabulary size", "expected 1 to 1048576"},
                  {3, {-1, 5, 50256, 2000000000, kMin, kMax}, "end-of-text token", "expected 0 to 4"}},
                 tokenizer_error);
    TempFolder folder;
    const std::string path = folder / "tokens.bin";
    const auto refuses = [&](int32_t vocab, const std::string& tokens, const char* field, const char* found) {
        write_bytes(path, header_bytes({20240328, 2, vocab, 0}) + tokens);
        check_error(tokenizer_error(path), kExitBadInput, {path, field, found});
    };
    refuses(1 << 20, "\1a\1b", "file size", "at least 2098176 bytes");
    refuses(2, std::string("\1a\0xyz", 6), "token 1, length", "found 0");
    refuses(2, "\1a\3bc", "token 1, bytes", "found 2 bytes before the end of the file, expected 3");
    refuses(3, "\3abc\1d", "token 2, length", "found the end of the file");
    refuses(1, "\1ab", "file size", "header and 1 tokens");
}

TEST_CASE("tokenizer file: not a file at all") { check_not_files(tokenizer_error); }

TEST_CASE("tokenizer file: random damage is refused or harmless") {
    const int refused = count_refused(good_tokenizer(), [](const std::string& path) {
        const Tokenizer t = Tokenizer::load(path);
        CHECK(t.end_of_text() < t.vocab_size());
        for (int id = 0; id < t.vocab_size(); id++) { CHECK_FALSE(t.printable({id}).empty()); }
    });
    CHECK(refused > 1000);
}

// ---- safetensors, tokenizer.json ---------------------------------------------------------------

TEST_CASE("safetensors, json: not a file at all") {
    check_not_files([](const std::string& path) { return error_of([&] { SafetensorsFile file(path); }); });
    check_not_files([](const std::string& path) { return error_of([&] { read_json_file(path, 1000); }); });
}

TEST_CASE("safetensors: random damage is refused or harmless") {
    TempFolder folder;
    const auto fill = [](size_t, int64_t first, std::span<float> x) {
        std::fill(x.begin(), x.end(), (float)first);
    };
    write_safetensors(folder / "good", {{"first", {3, 5}}, {"second", {7}}, {"none", {0}}}, TensorType::kF16,
                      fill);
    const int refused = count_refused(read_bytes(folder / "good"), [](const std::string& path) {
        const SafetensorsFile file(path);
        for (const SafetensorsEntry& e : file.entries()) {
            std::vector<float> values((size_t)e.elements);
            if (e.type != TensorType::kOther) { file.read(e, 0, values); }
        }
    });
    CHECK(refused > 1000);
}

TEST_CASE("tokenizer.json: random damage is refused or harmless") {
    TempFolder folder;
    Tokenizer::load("dev/test/fixture/bpe").save(folder.path(), 64);
    const auto read = [](const std::string& path) {
        const Tokenizer t = Tokenizer::load(path);
        const std::string text = "the kernel's \xff\n 42";
        std::string back;
        for (int id : t.encode(text)) { back += t.decode(id); }
        CHECK(back == text);
    };
    CHECK(count_refused(read_bytes(folder / "tokenizer.json"), read, "tokenizer.json") > 1000);
}

// ---- the corpus --------------------------------------------------------------------------------

TEST_CASE("crafted files: an end of text far outside the vocabulary, made here") {
    TempFolder folder;
    const std::string path = folder / "tok_badeot.bin";
    write_bytes(path, header_bytes({20240328, 2, 5, 2000000000}) + "\3abc\3abc\3abc\3abc\3abc");
    check_error(tokenizer_error(path), kExitBadInput,
                {path, "word 3", "end-of-text token", "found 2000000000", "expected 0 to 4"});
}

TEST_CASE("crafted files: the corpus") {
    const char* given = std::getenv("PLUMB_CORPUS");
    const std::string corpus = given != nullptr ? given : "../shared/corpus";
    if (!std::filesystem::is_directory(corpus)) {
        MESSAGE("skipped: no folder ", corpus, " (PLUMB_CORPUS names another)");
        return;
    }
    for (const auto& entry : std::filesystem::directory_iterator(corpus)) {
        const std::string path = entry.path().string();
        CAPTURE(path);
        if (!entry.is_regular_file()) { continue; }
        check_error(shard_error(path), kExitBadInput, {path, "found", "expected"});
        check_error(tokenizer_error(path), kExitBadInput, {path, "found", "expected"});
    }
    const std::string bad_end = corpus + "/tok_badeot.bin";
    if (std::filesystem::exists(bad_end)) {
        check_error(tokenizer_error(bad_end), kExitBadInput,
                    {bad_end, "end-of-text token", "found 2000000000", "expected 0 to 4"});
    }
}

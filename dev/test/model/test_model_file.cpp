// Model files: what is written is read back, to the bit or rounded to bf16; every truncation and every wrong
// field is refused with exit code 3 and a message that names file, field, what was found and what was
// expected.
#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>

#include <doctest/doctest.h>

#include "dev/test/support/any_model.h"
#include "dev/test/support/test_files.h"
#include "llmc/model/cpu/gpt2.h"
#include "llmc/model/formats/checkpoint.h"

using namespace llmc;

namespace {

constexpr int32_t kMin = std::numeric_limits<int32_t>::min(), kMax = std::numeric_limits<int32_t>::max();

std::string good_file() {
    TempFolder folder;
    GPT2Cpu model(tiny_config(), 1, 2);
    fill_states(&model, 3);
    write_model_file(folder / "model.bin", tiny_config(), kModelFp32, reader(model));
    return read_bytes(folder / "model.bin");
}

Error model_error(const std::string& path) {
    return error_of([&] { ModelFile file(path); });
}

void set_word(std::string* bytes, int word, int32_t value) {
    std::memcpy(bytes->data() + word * 4, &value, 4);
}

// the largest memory that this process has used, in bytes
int64_t peak_memory() {
    std::ifstream in("/proc/self/status");
    int64_t kib = -1;
    for (std::string key; in >> key;) {
        if (key == "VmHWM:") { in >> kib; }
    }
    REQUIRE(kib > 0);
    return kib * 1024;
}

// what bf16 has on both sides of x, by its definition: the upper half of the bits, and the next
uint16_t nearest_bf16(float x) {
    uint16_t below = (uint16_t)(std::bit_cast<uint32_t>(x) >> 16);
    auto value = [](uint16_t bits) { return (double)std::bit_cast<float>((uint32_t)bits << 16); };
    double low = std::fabs(x - value(below)), high = std::fabs(value(below + 1) - x);
    return low < high || (low == high && below % 2 == 0) ? below : below + 1;
}

}  // namespace

TEST_CASE("model file: fp32 keeps every bit, in file order") {
    TempFolder folder;
    GPT2Config c = tiny_config();
    GPT2Cpu model(c, 1, 2), other(c, 1, 2);
    fill_states(&model, 3);
    std::vector<float> special = {-0.0f, 0x1p-149f, -0x1.fffffep127f};
    model.load(State::kParameter, kQkvb, 1, special);
    write_model_file(folder / "model.bin", c, kModelFp32, reader(model));
    ModelFile file(folder / "model.bin");
    CHECK(file.config() == c);
    load_model(file, writer(&other));
    std::vector<float> expected = whole_state(model, State::kParameter);
    check_same("read back", whole_state(other, State::kParameter), expected);

    std::string bytes = read_bytes(folder / "model.bin");  // as llm.c lays it out
    REQUIRE(bytes.size() == 1024 + 4 * expected.size());
    CHECK((bytes.substr(0, 1024) == header_bytes({20240326, 3, 9, 37, 3, 2, 14, 64})));
    CHECK(std::memcmp(bytes.data() + 1024, expected.data(), 4 * expected.size()) == 0);
    std::vector<float> x(3);
    for (int64_t first : {(int64_t)-1, tensor_total(c, kFcw) - 2, INT64_MAX - 1}) {
        check_error(error_of([&] { file.read(kFcw, first, x); }), kExitUsage, {"range"});
    }
}

TEST_CASE("model file: bf16 is rounded to nearest even") {
    struct Row {
        uint32_t fp32;
        uint16_t bf16;
    };
    const Row rows[] = {
        {0x3f800000, 0x3f80}, {0x3f808000, 0x3f80}, {0x3f818000, 0x3f82},  // one; ties: to even
        {0x3f807fff, 0x3f80}, {0x3f808001, 0x3f81}, {0xbf818000, 0xbf82},
        {0x00000000, 0x0000}, {0x80000000, 0x8000},                        // both zeros
        {0x00000001, 0x0000}, {0x00008000, 0x0000}, {0x00008001, 0x0001},  // denormal
        {0x00018000, 0x0002}, {0x807f8000, 0x8080}, {0x807fffff, 0x8080},  // up to the smallest normal number
        {0x7f7f7fff, 0x7f7f}, {0xff7f7fff, 0xff7f},  // the largest; what is over it: test_not_finite.cpp
    };
    TempFolder folder;
    GPT2Config c = tiny_config();
    GPT2Cpu model(c, 1, 2);
    std::vector<float> wte((size_t)tensor_total(c, kWte)), found(wte.size());
    std::vector<float> expected(wte.size());
    std::mt19937 random(7);
    for (size_t i = 0; i < wte.size(); i++) {
        bool listed = i < std::size(rows);
        wte[i] = std::bit_cast<float>(listed ? rows[i].fp32 : (uint32_t)random());
        while (!listed && !std::isfinite(nearest_bf16(wte[i]) * wte[i])) {
            wte[i] = std::bit_cast<float>((uint32_t)random());
        }
        expected[i] = std::bit_cast<float>((uint32_t)(listed ? rows[i].bf16 : nearest_bf16(wte[i])) << 16);
    }
    model.load(State::kParameter, kWte, 0, wte);
    write_model_file(folder / "model.bin", c, kModelBf16, reader(model));
    CHECK(std::filesystem::file_size(folder / "model.bin") == 1024 + 2 * (size_t)file_elements(c));
    ModelFile file(folder / "model.bin");
    CHECK(file.config() == c);
    file.read(kWte, 0, found);
    check_same("bf16", found, expected);
    check_error(error_of([&] { write_model_file(folder / "no.bin", c, 4, reader(model)); }), kExitUsage,
                {"3 or 5"});
    CHECK_FALSE(std::filesystem::exists(folder / "no.bin"));
}

TEST_CASE("model file: tensors larger than the pieces they are moved in") {
    TempFolder folder;
    GPT2Config c{4, 33000, 33024, 2, 1, 32};  // wte: 1,056,768 elements, a piece is 1,048,576
    // a number for each place, exact in float
    auto value = [](int tensor, int64_t i) { return (float)(i % 1000003 + 1000003 * (tensor % 8)); };
    write_model_file(folder / "model.bin", c, kModelFp32,
                     [&](State state, int tensor, int64_t first, std::span<float> x) {
                         CHECK(state == State::kParameter);
                         for (size_t i = 0; i < x.size(); i++) { x[i] = value(tensor, first + (int64_t)i); }
                     });
    int64_t wrong = 0, seen = 0;
    load_model(ModelFile(folder / "model.bin"),
               [&](State, int tensor, int64_t first, std::span<const float> x) {
                   for (size_t i = 0; i < x.size(); i++) {
                       wrong += x[i] != value(tensor, first + (int64_t)i);
                   }
                   seen += (int64_t)x.size();
               });
    CHECK(wrong == 0);
    CHECK(seen == file_elements(c));
}

TEST_CASE("model file: cut anywhere, or too long") {
    TempFolder folder;
    const std::string path = folder / "cut.bin", good = good_file();
    write_bytes(path, good);
    REQUIRE(model_error(path).exit_code == kExitDone);
    for (size_t size = 0; size < good.size(); size += size < 1100 ? 4 : 1021) {
        CAPTURE(size);
        write_bytes(path, good.substr(0, size));
        if (size == 0) {
            check_error(model_error(path), kExitBadInput, {path, "empty"});
            continue;
        }
        std::string expected = size < 1024 ? "at least 1024 bytes" : std::to_string(good.size()) + " bytes";
        check_error(model_error(path), kExitBadInput,
                    {path, size < 1024 ? "header" : "file size", "found " + std::to_string(size) + " bytes",
                     "expected " + expected});
    }
    for (size_t more : {1, 4, 1024}) {
        write_bytes(path, good + std::string(more, '\0'));
        check_error(model_error(path), kExitBadInput,
                    {path, "file size", std::to_string(good.size() + more)});
    }
    std::filesystem::remove(path);
    check_error(model_error(path), kExitBadInput, {path, "cannot open"});
    check_error(model_error(folder.path()), kExitBadInput, {folder.path(), "not a regular file"});
}

TEST_CASE("model file: every header field, wrong") {
    struct Field {
        int word;
        std::vector<int32_t> values;
        std::string name, expected;
    };
    const Field fields[] = {
        {0, {0, -1, kMin, kMax, 20240520, (int32_t)0x06d73401}, "word 0, magic", "20240326"},
        {1, {0, 1, 2, 4, 6, -1, kMin, kMax, 3 << 24}, "word 1, version", "3 (fp32) or 5 (bf16)"},
        {2, {0, -1, kMin, kMax, (1 << 20) + 1}, "word 2, max_seq_len", "1 to 1048576"},
        {3, {0, -1, kMin, kMax, (1 << 20) + 1}, "word 3, vocab_size", "1 to 1048576"},
        {4, {0, -1, kMin, kMax, 1025}, "word 4, num_layers", "1 to 1024"},
        {5, {0, -1, kMin, kMax, 65537}, "word 5, num_heads", "1 to 65536"},
        {5, {3, 4, 13, 15, 28}, "word 5, num_heads", "a divisor of channels = 14"},
        {6, {0, -1, kMin, kMax, 65537}, "word 6, channels", "1 to 65536"},
        {6, {13, 15, 1}, "word 5, num_heads", "a divisor of channels"},
        {7, {0, -1, kMin, kMax, 36}, "word 7, padded_vocab_size", "37 to "},
    };
    TempFolder folder;
    const std::string path = folder / "wrong.bin", good = good_file();
    const int64_t before = peak_memory();
    for (const Field& field : fields) {
        for (int32_t value : field.values) {
            CAPTURE(field.name);
            CAPTURE(value);
            std::string bytes = good;
            set_word(&bytes, field.word, value);
            write_bytes(path, bytes);
            std::string found =
                "found " +
                std::to_string(field.name.find("heads") != std::string::npos && field.word == 6 ? 2 : value);
            check_error(model_error(path), kExitBadInput,
                        {path, "model file", field.name, found, field.expected});
        }
    }
    for (auto [word, value] :
         {std::pair{2, 8}, {3, 36}, {4, 2}, {4, 1024}, {6, 16}, {6, 65536}, {7, 65}, {1, 5}}) {
        std::string bytes = good;  // possible, but not what the file holds; version 5 wants half the bytes
        set_word(&bytes, word, value);
        if (word == 3) { set_word(&bytes, 7, 37); }
        write_bytes(path, bytes);
        check_error(model_error(path), kExitBadInput,
                    {path, "file size", "found " + std::to_string(good.size()) + " bytes", "expected"});
    }
    CHECK(peak_memory() - before < 64 << 20);
}

TEST_CASE("model file: headers that ask for more than there is") {
    TempFolder folder;
    const std::string path = folder / "evil.bin";
    const int64_t before = peak_memory();
    // 1024 layers of 4800 channels: 12 x 4800^2 x 1024 x 4 bytes, a little over 2^40
    write_bytes(path,
                header_bytes({20240326, 3, 1024, 50257, 1024, 16, 4800, 50304}) + std::string(4096, 'x'));
    check_error(model_error(path), kExitBadInput,
                {path, "file size", "found 5120 bytes", "expected 113", "1024 layers"});
    // the largest sizes that the header may state at all
    write_bytes(path, header_bytes({20240326, 3, 1 << 20, 1 << 20, 1024, 65536, 65536, (1 << 20) + 1024}));
    check_error(model_error(path), kExitBadInput, {path, "file size", "found 1024 bytes", "65536 channels"});
    // layers chosen so that the size, multiplied without care, comes out as the file's: evil_model.bin of the
    // corpus
    const int32_t layers = 1431608435;
    write_bytes(path, header_bytes({20240326, 3, 1024, 50257, layers, 16, 32768, 133672}) +
                          std::string(131072, '\0'));
    check_error(model_error(path), kExitBadInput,
                {path, "word 4, num_layers", "found 1431608435", "1 to 1024"});
    const char* given = std::getenv("PLUMB_CORPUS");
    const std::string evil = std::string(given != nullptr ? given : "../shared/corpus") + "/evil_model.bin";
    if (std::filesystem::exists(evil)) {
        check_error(model_error(evil), kExitBadInput, {evil, "word 4, num_layers", "found 1431608435"});
    } else {
        MESSAGE("skipped: no file ", evil, " (PLUMB_CORPUS names another folder)");
    }
    CHECK(peak_memory() - before < 64 << 20);
}

TEST_CASE("model file: random damage is refused or harmless") {
    TempFolder folder;
    const std::string path = folder / "damaged.bin", good = good_file();
    std::mt19937 random(1);
    int refused = 0;
    for (int round = 0; round < 500; round++) {
        std::string bytes = good;
        for (int hits = 1 + (int)(random() % 3); hits > 0; hits--) {
            bytes[random() % 4 == 0 ? random() % bytes.size() : random() % 32] = (char)random();
        }
        if (random() % 4 == 0) { bytes.resize(1 + random() % (bytes.size() + 8)); }
        write_bytes(path, bytes);
        const Error error = error_of(
            [&] { load_model(ModelFile(path), [](State, int, int64_t, std::span<const float>) {}); });
        CHECK((error.exit_code == kExitBadInput || error.exit_code == kExitDone));
        refused += error.exit_code == kExitBadInput;
    }
    CHECK(refused > 250);
}

// Tests of the tokenizer: bytes, files of both versions, printing. All exact.
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "dev/test/support/test_files.h"
#include "llmc/host/tokens/tokenizer.h"

using namespace llmc;

TEST_CASE("tokenizer: bytes") {
    const Tokenizer t = Tokenizer::bytes();
    CHECK(t.vocab_size() == 257);
    CHECK(t.end_of_text() == 256);
    CHECK(t.decode(256) == "<|endoftext|>");
    std::string text;
    for (int round = 0; round < 3; round++) {
        for (int byte = 0; byte < 256; byte++) { text += (char)(byte * 7 + round); }
    }
    text += "<|endoftext|>";  // in a text it is a text
    std::string back;
    for (int id : t.encode(text)) {
        CHECK(id < 256);
        back += t.decode(id);
    }
    CHECK(back == text);
    CHECK(t.encode("").empty());
    for (int id : {-1, 257}) {
        CHECK(error_of([&] { t.decode(id); }).exit_code == kExitUsage);
    }
}

TEST_CASE("tokenizer: what is printed cannot drive a terminal") {
    const Tokenizer t = Tokenizer::bytes();
    CHECK(t.printable({'a'}) == "a");
    CHECK(t.printable({'\n'}) == "\n");
    CHECK(t.printable({'\t'}) == "\t");
    CHECK(t.printable({0x1b}) == "\\x1b");
    CHECK(t.printable({'\r'}) == "\\x0d");
    CHECK(t.printable({0}) == "\\x00");
    CHECK(t.printable({0x7f}) == "\\x7f");
    CHECK(t.printable({0xff}) == "\\xff");

    const auto printable = [&](const std::string& text) { return t.printable(t.encode(text)); };
    for (const char* text : {"caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x99\x82", "\xed\x9f\xbf\xf4\x8f\xbf\xbf"}) {
        CHECK(printable(text) == text);
    }
    CHECK(printable("\x1b[2J\xc2\x9b"
                    "2J") == "\\x1b[2J\\xc2\\x9b2J");  // both are "clear the screen"
    CHECK(printable("\xc3") == "\\xc3");               // cut off
    CHECK(printable("\xc3(") == "\\xc3(");
    CHECK(printable("\xc0\x8a\xe0\x80\x8a") == "\\xc0\\x8a\\xe0\\x80\\x8a");  // overlong newlines
    CHECK(printable("\xed\xa0\x80\xf4\x90\x80\x80") == "\\xed\\xa0\\x80\\xf4\\x90\\x80\\x80");
    CHECK(t.printable({'a', 256}) == "a<|endoftext|>");
}

TEST_CASE("tokenizer file: version 2 says what ends a text, version 1 means GPT-2's") {
    TempFolder folder;
    const std::string path = folder / "tokenizer.bin";
    const std::string longest(255, 'x');
    const std::string tokens = std::string("\1a\3b\0c", 6) + "\xff" + longest;
    write_bytes(path, header_bytes({20240328, 2, 3, 1}) + tokens);
    const Tokenizer t = Tokenizer::load(path);
    CHECK(t.vocab_size() == 3);
    CHECK(t.end_of_text() == 1);
    CHECK(t.decode(0) == "a");
    CHECK(t.decode(1) == std::string("b\0c", 3));
    CHECK(t.decode(2) == longest);
    CHECK(t.printable({1}) == "b\\x00c");
    check_error(error_of([&] { (void)t.encode("a"); }), kExitUsage, {"prompt", "tokenizer.json"});

    write_bytes(path, header_bytes({20240328, 1, 3, 1}) + tokens);
    CHECK(Tokenizer::load(path).end_of_text() == -1);
    for (int vocab : {50256, 50257, 50258}) {
        std::string many;
        for (int id = 0; id < vocab; id++) { many += "\1t"; }
        write_bytes(path, header_bytes({20240328, 1, vocab}) + many);
        CHECK(Tokenizer::load(path).vocab_size() == vocab);
        CHECK(Tokenizer::load(path).end_of_text() == (vocab > 50256 ? 50256 : -1));
    }
}

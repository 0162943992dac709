// Tokenizers. GPT-2's byte-pair encoding: the ids of a frozen set of texts are tiktoken's, every text of bytes comes back, and
// the public files are read, written and, where they are damaged or mean another tokenizer, refused. Bytes as tokens; the file
// of texts alone; what is printed. All exact.
#include <iterator>
#include <random>
#include <sstream>

#include "dev/test/support/test_files.h"
#include "llmc/host/tokens/tokenizer.h"

using namespace llmc;

namespace {

const std::string kFixture = "dev/test/fixture/bpe";

std::string decode_all(const Tokenizer& t, const std::vector<int>& ids) {
    std::string text;
    for (int id : ids) { text += t.decode(id); }
    return text;
}

std::vector<std::string> bpe_words(std::string_view text) {
    std::vector<std::string> all;
    while (!text.empty()) {
        all.emplace_back(text.substr(0, bpe_word(text)));
        text.remove_prefix(all.back().size());
    }
    return all;
}

std::string random_text(std::mt19937* random, bool unicode) {
    std::string text;
    for (int n = (int)((*random)() % 80) + 1; n > 0; n--) {
        const uint32_t r = (*random)();
        if (!unicode) {
            text += (char)(r >> 8);
        } else {
            const char* pieces[] = {" ", "  ",       "\n",           "the", "'s", "'",
                                    "x", "\xc3\xa9", "\xe3\x80\x80", "7",   "!",  "\xc2\x85"};
            text += pieces[r % std::size(pieces)];
        }
    }
    return text;
}

}  // namespace

TEST_CASE("bpe: the ids of a frozen set of texts are tiktoken's") {
    const Tokenizer t = Tokenizer::load(kFixture);
    CHECK(t.vocab_size() == 457);
    CHECK(t.end_of_text() == 456);
    int cases = 0;
    std::istringstream in(read_bytes(kFixture + "/cases.txt"));
    for (std::string line; std::getline(in, line);) {  // a text in hexadecimal digits, and its ids
        if (line.starts_with('#')) { continue; }
        std::istringstream words(line);
        std::string hex, text;
        words >> hex;
        for (size_t i = 0; i + 1 < hex.size(); i += 2) {
            text += (char)std::stoi(hex.substr(i, 2), nullptr, 16);
        }
        const std::vector<int> ids(std::istream_iterator<int>(words), {});
        CAPTURE(text);
        CHECK(t.encode(text) == ids);
        CHECK(decode_all(t, ids) == text);
        cases++;
    }
    CHECK(cases == 406);
    for (int id : t.encode("x<|endoftext|>y")) { CHECK(id != 456); }  // in a text it is text
}

TEST_CASE("bpe: random bytes come back, with every kind of word") {
    const Tokenizer t = Tokenizer::load(kFixture);
    std::mt19937 random(3);
    for (int i = 0; i < 500; i++) {
        const std::string text = random_text(&random, i % 2 == 0);
        if (decode_all(t, t.encode(text)) != text) { FAIL("lost bytes of text ", i); }
    }
    CHECK(t.encode("").empty());
}

TEST_CASE("bpe: words") {
    using Words = std::vector<std::string>;
    for (const Words& words : {
             Words{"We", "'ll", " ", " go", ",", " it", "'s", " 42", "x"},
             {"a", " ", " b"},
             {"a", " \n", " b"},
             {"a", "\n", "\n", "b"},
             {"a", "  "},
             {"!'", "s"},
             {" '", "s"},
             {"it", "'", "S"},
             {"x", "1\xc2\xbd", "?"},     // one half is a number
             {"\xc2\xa0", " x"},          // a no-break space
             {"\xff\xfe", " x", "\xff"},  // not UTF-8: none of the classes
             {"\xe4\xb8\xad", "\xe4"},    // cut off
             {" \xcc\x81"},               // a mark is no letter
         }) {
        std::string text;
        for (const std::string& word : words) { text += word; }
        CHECK(bpe_words(text) == words);
    }
}

TEST_CASE("bpe: where a text may be cut, its words do not change") {
    std::mt19937 random(4);
    int cuts = 0;
    for (int i = 0; i < 500; i++) {
        const std::string text = random_text(&random, true);
        const std::vector<std::string> whole = bpe_words(text);
        for (size_t at = 0; at <= text.size(); at++) {
            if (!bpe_can_cut(text, at)) { continue; }
            cuts++;
            std::vector<std::string> parts = bpe_words(text.substr(0, at));
            for (const std::string& word : bpe_words(text.substr(at))) { parts.push_back(word); }
            if (parts != whole) { FAIL("a cut at ", at, " changes the words of ", text); }
        }
    }
    CHECK(cuts > 250);
}

TEST_CASE("bpe: a word of more than 1 MiB is cut before a character") {
    for (const char* letter : {"\xc3\xa9", "\xe4\xb8\xad", "\xf0\xa0\x80\x80"}) {
        std::string text;
        while (text.size() < (2 << 20) + 100) { text += letter; }
        for (size_t before = 0; before < 4; before++) {
            const std::string word = std::string(before, 'e') + text;
            const size_t length = bpe_word(word);
            CHECK(length <= 1 << 20);
            CHECK(length > (1 << 20) - 4);
            CHECK(((uint8_t)word[length] & 0xc0) != 0x80);
        }
    }
    CHECK(bpe_word(std::string((1 << 20) + 9, '\x80')) == 1 << 20);  // where there are no characters
}

TEST_CASE("bpe: long words are merged as short ones are, and fast") {
    const Tokenizer t = Tokenizer::load(kFixture);
    // what two words share, but for the end, has the same ids
    for (const char* unit : {"the", "e", "ninth", "zq", "er"}) {
        std::string word;
        while (word.size() < 64) { word += unit; }
        std::vector<int> all = t.encode(word), half = t.encode(word.substr(0, 60));
        const size_t shared = half.size() - 3;
        CHECK(std::vector<int>(all.begin(), all.begin() + (int64_t)shared) ==
              std::vector<int>(half.begin(), half.begin() + (int64_t)shared));
    }
    const std::string huge(3 << 20, 'e');  // in quadratic time this would take hours
    CHECK(decode_all(t, t.encode(huge)) == huge);
}

TEST_CASE_FIXTURE(InFolder, "bpe: files are written and read back") {
    const Tokenizer t = Tokenizer::load(kFixture + "/vocab.bpe");
    CHECK_FALSE(Tokenizer::find(folder.path()).has_value());
    t.save(folder.path(), 64);
    for (const char* name : {"", "/tokenizer.json", "/vocab.json", "/merges.txt"}) {
        const Tokenizer back = Tokenizer::load(folder.path() + name);
        CHECK(back.vocabulary().tokens == t.vocabulary().tokens);
        CHECK(back.vocabulary().merges == t.vocabulary().merges);
        CHECK(back.end_of_text() == 456);
    }
    TempFolder bytes;
    Tokenizer::bytes().save(bytes.path(), 64);
    CHECK(Tokenizer::load(bytes.path()).is_bytes());
    TempFolder list;  // what cannot encode keeps its texts
    write_bytes(list / "tokenizer.bin", header_bytes({20240328, 2, 2, 1}) + std::string("\1a\3b\0c", 6));
    const Tokenizer texts = Tokenizer::load(list / "tokenizer.bin");
    CHECK_FALSE(texts.can_encode());
    texts.save(folder.path(), 64);
    CHECK(read_bytes(folder / "tokenizer.bin") == read_bytes(list / "tokenizer.bin"));
}

TEST_CASE_FIXTURE(InFolder, "bpe: added tokens are tokens in a prompt; any end of a text; all is passed on") {
    const std::string vocab = changed(read_bytes(kFixture + "/encoder.json"), "<|endoftext|>", "</s>"),
                      merges = read_bytes(kFixture + "/vocab.bpe"),
                      added = "{\"<|user|>\": 457, \"<|user|>\\u00e9 x\": 458}";
    write_bytes(folder / "vocab.json", vocab);
    write_bytes(folder / "merges.txt", merges);
    write_bytes(folder / "added_tokens.json", added);
    CHECK(Tokenizer::load(folder.path()).end_of_text() == -1);
    write_bytes(folder / "special_tokens_map.json", "{\"eos_token\": \"</s>\"}");
    CHECK(Tokenizer::load(folder.path()).end_of_text() == 456);
    write_bytes(
        folder / "tokenizer_config.json",
        "{\"eos_token\": {\"content\": \"<|user|>\"}, \"chat_template\": \"x\", \"model_max_length\": 1e30}");
    const Tokenizer t = Tokenizer::load(folder.path());
    CHECK(t.end_of_text() == 457);
    CHECK(t.shard_vocab() == 458);
    std::vector<int> expected = t.encode("the kernel");
    for (int id : {457, 458, 456, 457}) { expected.push_back(id); }
    const std::string prompt = "the kernel<|user|><|user|>\xc3\xa9 x</s><|user|>";
    CHECK(t.encode_prompt(prompt, 459) != expected);  // </s> is not added, and a text
    write_bytes(folder / "added_tokens.json", added.substr(0, added.size() - 1) + ", \"</s>\": 456}");
    const Tokenizer u = Tokenizer::load(folder.path());
    CHECK(u.encode_prompt(prompt, 459) == expected);
    CHECK(decode_all(u, expected) == prompt);
    for (int id : u.encode(prompt)) { CHECK(id < 456); }  // in data it is text
    CHECK(u.encode_prompt("", 1).empty());
    check_error([&] { (void)u.encode_prompt(prompt, 458); }, kExitUsage, {"<|user|>\xc3\xa9 x", "458 rows"});
    TempFolder copy;
    u.save(copy.path(), 64);
    for (const char* name : {"vocab.json", "merges.txt", "added_tokens.json", "special_tokens_map.json"}) {
        CHECK(read_bytes(copy / name) == read_bytes(folder / name));
    }
    check_holds(read_bytes(copy / "tokenizer_config.json"),
                {"\"chat_template\": \"x\"", "\"model_max_length\": 64"});
    CHECK(Tokenizer::load(copy.path()).encode_prompt(prompt, 459) == expected);
    for (const auto& [name, text, part] : {std::tuple{"tokenizer_config.json", "[1]", "an object"},
                                           {"tokenizer_config.json", "{", "syntax"},
                                           {"added_tokens.json", "{\"\": 456}", "empty"},
                                           {"added_tokens.json", "{\"x\": 459}", "no token has id 457"}}) {
        const std::string before = read_bytes(folder / name);
        write_bytes(folder / name, text);
        check_error([&] { Tokenizer::load(folder.path()); }, kExitBadInput, {part});
        write_bytes(folder / name, before);
    }
}

TEST_CASE_FIXTURE(InFolder, "bpe: damaged files, and tokenizers of another kind, are refused") {
    Tokenizer::load(kFixture).save(folder.path(), 64);
    const std::string json = read_bytes(folder / "tokenizer.json"), vocab = read_bytes(folder / "vocab.json"),
                      merges = read_bytes(folder / "merges.txt");
    const auto refused = [&](const std::string& text, const std::string& part) {
        write_bytes(folder / "tokenizer.json", text);
        check_error([&] { Tokenizer::load(folder / "tokenizer.json"); }, kExitBadInput,
                    {"tokenizer.json", part});
    };
    refused(changed(json, "\"BPE\"", "\"WordPiece\""), "\"type\"");
    refused(changed(json, "\"ByteLevel\"", "\"Metaspace\""), "\"type\"");
    refused(changed(json, "\"add_prefix_space\":false", "\"add_prefix_space\":true"), "add_prefix_space");
    refused(changed(json, "\"use_regex\":true", "\"use_regex\":false"), "use_regex");
    refused(changed(json, "\"ignore_merges\":false", "\"ignore_merges\":true"), "ignore_merges");
    refused(changed(json, "\"normalizer\":null", "\"normalizer\":{\"type\":\"NFC\"}"), "normalizer");
    refused(changed(json, "\"pre_tokenizer\":{", "\"x\":{"), "pre_tokenizer");
    refused(changed(json, "\"merges\":[\"", "\"merges\":[\"\xc3\xa9\xc3\xa9\xc3\xa9 "), "two tokens");
    refused(changed(json, "\"merges\":[", "\"merges\":[1,"), "two tokens");
    refused(changed(json, "\"a\":", "\"a\":-"), "id -");
    refused(changed(json, "\"id\":456", "\"id\":458"), "no token has id 457");
    refused(changed(json, "\"id\":456", "\"id\":3"), "stands for both");
    refused(json.substr(0, json.size() / 2), "syntax error");
    const std::string cutter =
        "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true}";
    const auto sequence = [&](const std::string& list) {
        return changed(json, cutter, "{\"type\":\"Sequence\",\"pretokenizers\":[" + list + "]}");
    };
    refused(sequence(""), "\"type\"");
    refused(sequence(cutter + "," + cutter), "\"type\"");
    refused(changed(json, "\"normalizer\":null", "\"normalizer\":{\"normalizers\":[{}]}"), "normalizer");
    // what says the same in other words
    const std::vector<int> ids = Tokenizer::load(kFixture).encode("the kernel's rung");
    for (const std::string& same :
         {sequence(cutter), changed(json, "\"normalizer\":null",
                                    "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[]}")}) {
        write_bytes(folder / "tokenizer.json", same);
        CHECK(Tokenizer::load(folder.path()).encode("the kernel's rung") == ids);
    }
    write_bytes(folder / "vocab.json", "\xef\xbb\xbf" + vocab);  // with byte order marks
    write_bytes(folder / "merges.txt", "\xef\xbb\xbf" + merges);
    CHECK(Tokenizer::load(folder / "vocab.json").encode("the kernel's rung") == ids);
    for (const auto& [v, m, part] :
         {std::tuple{changed(vocab, "\"b\":", "\" \":"), merges, "no byte-level token"},
          std::tuple{changed(vocab, "\"b\":", "\"bq\":"), merges, "no token for byte 0x62"},
          std::tuple{vocab, merges + "q\n", "two tokens"}, std::tuple{vocab, merges + "q q\n", "is no token"},
          std::tuple{vocab, merges + merges.substr(merges.find('\n') + 1), "stands twice"},
          std::tuple{std::string("[]"), merges, "object of token"}}) {
        write_bytes(folder / "vocab.json", v);
        write_bytes(folder / "merges.txt", m);
        check_error([&] { Tokenizer::load(folder / "vocab.json"); }, kExitBadInput, {part});
    }
    check_error([&] { Tokenizer::load(kFixture + "/.."); }, kExitBadInput, {"no tokenizer"});
}

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
    const std::vector<int> ids = t.encode(text);
    CHECK(std::ranges::all_of(ids, [](int id) { return id < 256; }));
    CHECK(decode_all(t, ids) == text);
    CHECK(t.encode("").empty());
    for (int id : {-1, 257}) {
        CHECK(error_of([&] { t.decode(id); }).exit_code == kExitUsage);
    }
}

TEST_CASE("tokenizer: what is printed cannot drive a terminal") {
    const Tokenizer t = Tokenizer::bytes();
    using Printed = std::pair<std::string, std::string>;
    for (const auto& [text, printed] :
         {Printed{"a\n\t", "a\n\t"}, Printed{std::string("\x1b\r\0\x7f\xff", 5), "\\x1b\\x0d\\x00\\x7f\\xff"},
          Printed{"caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x99\x82", "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x99\x82"},
          Printed{"\xed\x9f\xbf\xf4\x8f\xbf\xbf", "\xed\x9f\xbf\xf4\x8f\xbf\xbf"},
          Printed{"\x1b[2J\xc2\x9b"
                  "2J",
                  "\\x1b[2J\\xc2\\x9b2J"},                               // both are "clear the screen"
          Printed{"\xc3", "\\xc3"}, Printed{"\xc3(", "\\xc3("},          // cut off
          Printed{"\xc0\x8a\xe0\x80\x8a", "\\xc0\\x8a\\xe0\\x80\\x8a"},  // overlong newlines
          Printed{"\xed\xa0\x80\xf4\x90\x80\x80", "\\xed\\xa0\\x80\\xf4\\x90\\x80\\x80"}}) {
        CHECK(t.printable(t.encode(text)) == printed);
    }
    CHECK(t.printable({'a', 256}) == "a<|endoftext|>");
}

TEST_CASE_FIXTURE(InFolder, "tokenizer file: version 2 says what ends a text, version 1 means GPT-2's") {
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
    check_error([&] { (void)t.encode("a"); }, kExitUsage, {"prompt", "tokenizer.json"});

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

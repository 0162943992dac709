// data/make_shards, run as a user runs it: what a document is, which of them are for validation, and what is refused. A set of
// shards is replaced by the next whole or not at all, as far as whoever trains can see. And data/make_corpus's options.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cstring>
#include <random>

#include "dev/test/support/train_program.h"
#include "llmc/host/options/choices.h"
#include "llmc/host/tokens/dataloader.h"
#include "llmc/host/tokens/tokenizer.h"

using namespace llmc;

namespace {

using Documents = std::vector<std::string>;
const std::string kTokenizer = "dev/test/fixture/bpe";

// the program through the shell, with both its streams in `out`; before: what stands before its name, as "cat x |"
ProgramRun make_shards(const std::string& arguments, const std::string& before = "") {
    TempFolder folder;
    const std::string program = program_path("data/make_shards");
    REQUIRE_MESSAGE(access(program.c_str(), X_OK) == 0, program, " is missing: run `make data/make_shards`");
    const std::string line = before + " '" + program + "' " + arguments + " 2>&1";
    return run_train(folder.path(), {"-c", "unset OMP_NUM_THREADS; " + line}, "/bin/sh");
}

void check_fails(const ProgramRun& run, int exit_code, const std::string& says) {
    check_run(run, exit_code, {}, {says});
}

void check_done(const ProgramRun& run) { REQUIRE_MESSAGE(run.exit_code == kExitDone, run.out, run.err); }

// the documents of a split, each without the end of text before it; checks where ends of text must be
Documents documents_of(const std::string& pattern) {
    const ShardSet set(pattern);
    REQUIRE(set.vocab_size() == 257);
    Documents documents;
    for (const TokenShard& shard : set.shards()) {
        for (uint16_t token : shard.read_all()) {
            REQUIRE((token == 256 || !documents.empty()));
            token == 256 ? (void)documents.emplace_back() : documents.back().push_back((char)token);
        }
    }
    REQUIRE(documents.back().empty());  // an end of text comes last
    documents.pop_back();
    return documents;
}

std::string joined(const Documents& documents) {
    std::string text;
    for (const std::string& document : documents) { text += document; }
    return text;
}

// a set of three training shards and one for validation, of this text
void make_set(const TempFolder& folder, const std::string& name, const std::string& sentence) {
    write_bytes(folder / "text", joined(Documents(40, sentence + "\n")));
    check_done(make_shards(fmt::format("{} --documents line --shard-tokens {} --out {}", folder / "text",
                                       12 * sentence.size() + 24, folder / name)));
}

// what a run of two steps on such data says before it would begin
ProgramRun dry_run(const TempFolder& folder, const std::string& train, const std::string& val) {
    return run_train(folder.path(),
                     words("--train-data " + train + " --val-data " + val +
                           " --layers 1 --heads 1 --channels 16 --seq-len 8 --steps 2 --dry-run"));
}

}  // namespace

TEST_CASE_FIXTURE(InFolder, "make_shards: what a document is") {
    const std::string in = folder / "text", out = folder / "o/text";
    const auto documents = [&](const std::string& text, const std::string& options) {
        write_bytes(in, text);
        check_done(make_shards(in + " --out " + out + " --val-fraction 0 " + options));
        CHECK(names_below(folder / "o") == Words{"text_train_000000.bin"});
        return documents_of(out + "_train_*.bin");
    };
    const std::string text = "\n \nOne\nline\n\n\n  Two\n \t\r\nThree\n   indented\n\nlast, no newline",
                      line = "--documents line", paragraph = "--documents paragraph";
    CHECK(documents(text, "") == Documents{text});
    CHECK(documents(text, "--documents file") == Documents{text});
    CHECK(documents(text, paragraph) ==
          Documents{"\n \nOne\nline\n\n", "\n  Two\n \t\r\n", "Three\n   indented\n\n", "last, no newline"});
    CHECK(documents(text, line) == Documents{"\n \nOne\n", "line\n\n\n", "  Two\n \t\r\n", "Three\n",
                                             "   indented\n\n", "last, no newline"});
    for (const std::string& by : {line, paragraph}) {  // blanks only: one document
        CHECK(documents("\n \n\t", by) == Documents{"\n \n\t"});
    }
    // what nothing comes after stays
    CHECK(documents("a\n\n\n\nb\n\n\n \n", paragraph) == Documents{"a\n\n", "\n\nb\n\n\n \n"});
    // memory is bounded; 10,000 blanks are a line
    for (const auto& [text, by, count] : {std::tuple("a" + std::string(10000, '\n') + "b", paragraph, 2u),
                                          std::tuple("a\n" + std::string(10000, ' ') + "\nb", line, 3u)}) {
        const Documents all = documents(text, by);
        CHECK((all.size() == count && joined(all) == text));
    }
}

TEST_CASE_FIXTURE(InFolder, "make_shards: validation is the last documents, or a long one's end; all stays") {
    const std::string in = folder / "text", out = folder / "t";
    Documents train, val;
    const auto split = [&](const std::string& text, const std::string& options, size_t trained,
                           size_t validated) {
        CAPTURE(options);
        write_bytes(in, text);
        check_done(make_shards(in + " --out " + out + " " + options));
        train = documents_of(out + "_train_*.bin"), val = documents_of(out + "_val_*.bin");
        CHECK(train.size() == trained);
        CHECK(val.size() == validated);
        CHECK(joined(train) + joined(val) == text);
    };
    std::string lines;  // with its end of text each has 12 tokens
    for (int i = 0; i < 100; i++) { lines += fmt::format("line {:02} 89\n", i); }
    split(lines, "--documents line", 90, 10);
    CHECK(val.front() == "line 90 89\n");
    split(lines, "--documents line --val-fraction 0.255", 75, 25);    // not within a document
    split(lines, "--documents line --val-fraction 0.09917", 90, 10);  // 119 tokens: one is missing
    for (const char* fraction : {"0.1", "0.095", "0.0923"}) {         // one document: cut after a line
        split(lines, std::string("--val-fraction ") + fraction, 1, 1);
        CHECK(val.front().starts_with("line 9"));
    }
    split("short\n" + std::string(994, 'x'), "--documents line", 2, 1);  // a long last document without lines
    CHECK(val == Documents{std::string(100, 'x')});
    split("ab", "", 1, 1);
    CHECK(val == Documents{"b"});
    split("ab", "--val-fraction 0.9", 1, 1);
}

TEST_CASE_FIXTURE(InFolder, "make_shards: any bytes, any shard size, any portions") {
    std::mt19937 gen(3);
    std::string text;
    for (int i = 0; i < 20000; i++) { text += gen() % 8 == 0 ? '\n' : gen() % 8 == 0 ? ' ' : (char)gen(); }
    write_bytes(folder / "text", text);
    for (const std::string kind : {"file", "paragraph", "line"}) {
        const std::string options = " --as-is --documents " + kind;
        check_done(make_shards(folder / "text" + options + " --out " + folder / "whole"));
        const Documents train = documents_of(folder / "whole_train_*.bin"),
                        val = documents_of(folder / "whole_val_*.bin");
        CHECK(joined(train) + joined(val) == text);
        for (int shard_tokens : {700, 4096, 20001}) {
            check_done(make_shards(
                "-" + options + fmt::format(" --shard-tokens {} --out ", shard_tokens) + folder / "parts",
                "cat '" + folder / "text" + "' |"));
            CHECK(documents_of(folder / "parts_train_*.bin") == train);
            CHECK(documents_of(folder / "parts_val_*.bin") == val);
            const ShardSet parts(folder / "parts_*.bin");
            for (const TokenShard& shard : parts.shards()) { CHECK(shard.num_tokens() <= shard_tokens + 2); }
        }
    }
    // the shards of the last run are fewer than those of the first: none of the others may be left
    CHECK(ShardSet(folder / "parts_*.bin").num_tokens() < (int64_t)text.size() * 2);
    for (const std::string& name : names_below(folder.path())) { CHECK_FALSE(contains(name, "tmp")); }
}

TEST_CASE_FIXTURE(InFolder, "make_shards: the cut between two shards") {
    const Documents half(32, "1234567 9012345\n");  // 17 tokens each with its end of text
    write_bytes(folder / "text", joined(half) + joined(half));
    for (int shard_tokens : {34, 100, 544, 545, 1088, 2000}) {  // 544 = half of all 1088
        CAPTURE(shard_tokens);
        check_done(
            make_shards(fmt::format("{} --documents line --val-fraction 0.5 --shard-tokens {} --out {}",
                                    folder / "text", shard_tokens, folder / "t")));
        CHECK(documents_of(folder / "t_train_*.bin") == half);
        CHECK(documents_of(folder / "t_val_*.bin") == half);
    }
}

TEST_CASE_FIXTURE(InFolder, "make_shards: files, folders and standard input") {
    fs::create_directories(folder / "in/b/c");
    fs::create_directories(folder / "in/.git");
    for (const char* name : {"a", "z", "b/c/x", ".git/no", ".hidden"}) {
        write_bytes(folder / "in/" + name, name);
    }
    write_bytes(folder / "in/b/empty", "");
    const ProgramRun run =
        make_shards(folder / "in" + " - " + folder / "in/a" + " --val-fraction 0 --out " + folder / "o",
                    "printf stdin |");
    check_done(run);
    CHECK(documents_of(folder / "o_train_*.bin") == Documents{"a", "b/c/x", "z", "stdin", "a"});
    check_holds(run.out, {"documents (one per file): 5", "--train-data"});
}

TEST_CASE_FIXTURE(InFolder, "make_shards: JSON lines: the named text of each is a document") {
    const std::string a = folder / "a.jsonl", b = folder / "b.jsonl",
                      all = " --val-fraction 0 --out " + folder / "o";
    write_bytes(a,
                "{\"text\": \"one\\ntwo\", \"id\": 1}\n\n"
                "{\"meta\": {\"text\": \"no\"}, \"text\": \"\\u00e9\\\"\"}\r\n{\"text\": \"\"}\n");
    write_bytes(b, "{\"text\": \"last\", \"body\": \"x\"}");  // no newline behind it
    ProgramRun run =
        make_shards(a + " - " + b + " --json-field text" + all, "printf '{\"text\": \"stdin\"}\\n' |");
    check_done(run);
    CHECK(documents_of(folder / "o_train_*.bin") == Documents{"one\ntwo", "\xc3\xa9\"", "stdin", "last"});
    CHECK(contains(run.out, "documents (one per line): 4"));
    CHECK_FALSE(contains(run.out, "taken for text"));

    const std::string bad = " --out " + folder / "bad",
                      no_text = "b.jsonl, line 2: expected an object with a text \"text\"";
    check_fails(
        make_shards(b + " --json-field txt" + bad), kExitBadInput,
        "b.jsonl, line 1: expected an object with a text \"txt\", found none, but \"text\", \"body\"");
    check_fails(make_shards(b + " --json-field text --documents line" + bad), kExitUsage, "--json-field");
    for (const auto& [line, says] : {std::pair{"{\"text\": 3}", no_text}, {"plain", "b.jsonl, line 2"}}) {
        write_bytes(b, std::string("{\"text\": \"a\"}\n") + line + "\n");
        check_fails(make_shards(b + " --json-field text" + bad), kExitBadInput, says);
    }
    CHECK(names_below(folder.path()).size() == 3);
    run = make_shards(b + all);  // without the option it is text, and the user hears of it
    CHECK(documents_of(folder / "o_train_*.bin") == Documents{"{\"text\": \"a\"}\nplain\n"});
    CHECK(contains(run.out, "--json-field"));
}

TEST_CASE_FIXTURE(InFolder, "make_shards: half a surrogate is U+FFFD; bad JSON lines are named or skipped") {
    const std::string in = folder / "in.jsonl",
                      out = " --json-field text --val-fraction 0 --out " + (folder / "t");
    std::string deep = "1";
    for (int level = 0; level < 90; level++) { deep = "[" + deep + "]"; }
    write_bytes(in, R"({"text": "a\ud83d b\udc00"})"
                    "\n"
                    R"({"text": "\ud83d\ude00\ud83d\\\ud83d\ud83d\ude00", "x": "\uDFFF"})"
                    "\n{\"text\": \"c\", \"x\": " +
                        deep +
                        "}\n"
                        R"({"text": "\\ud83d"})");
    CHECK(make_shards(in + out).exit_code == kExitDone);
    const std::string half = "\xef\xbf\xbd", face = "\xf0\x9f\x98\x80";
    const Documents texts = {"a" + half + " b" + half, face + half + "\\" + half + face, "c", "\\ud83d"};
    CHECK(documents_of(folder / "t_train_*.bin") == texts);

    std::string all;
    for (const auto& [line, says] : std::initializer_list<std::pair<std::string, const char*>>{
             {"{\"text\": \"a\xff\"}", "a byte that is not UTF-8"},
             {"{\"text\": \"a\", \"x\": NaN}", "NaN or Infinity, which Python writes"},
             {"{\"text\": \"a\", \"x\": [-Infinity]}", "NaN or Infinity, which Python writes"},
             {"{\"text\": \"N", "a syntax error"},
             {"{\"text\": null}", "found one that is no text"},
             {"{\"text\": \"\\u d83d\"}", "a syntax error"},
             {"{\"text\": \"a\", \"x\": 1, \"x\": 2}", "\"x\" twice"}}) {
        write_bytes(in, "{\"text\": \"good\"}\n" + line + "\n");
        all += read_bytes(in);
        const ProgramRun run = make_shards(in + out);
        check_run(run, kExitBadInput, {},
                  {"in.jsonl, line 2: ", says, "--skip-bad-lines leaves such lines out"});
    }
    CHECK(documents_of(folder / "t_train_*.bin") == texts);
    write_bytes(in, all);
    const ProgramRun run = make_shards(in + out + " --skip-bad-lines");
    CHECK(run.exit_code == kExitDone);
    CHECK(documents_of(folder / "t_train_*.bin") == Documents(7, "good"));
    check_holds(run.out, {"skipped: " + in + ", line 6: not usable JSON", "skipped 7 lines in all"});
    CHECK_FALSE(contains(run.out, "line 8"));
}

TEST_CASE_FIXTURE(InFolder, "make_shards: what is no text is refused, whole or bytewise, unless --as-is") {
    const std::string file = folder / "text.txt", out = " --out " + (folder / "o/t");
    for (const auto& [bytes, says] : std::initializer_list<std::pair<std::string, std::string>>{
             {"\x1f\x8b\x08\x08 gzip", "gzip: zcat unpacks it"},
             {"BZh91AY&SY bzip2", "bzcat"},
             {"\xfd" + std::string("7zXZ") + '\0', "xzcat"},
             {"\x28\xb5\x2f\xfd zstd", "zstdcat"},
             {"PK\3\4 zip", "unzip -p"},
             {std::string(257, 'n') + "ustar", "tar -xOf"},
             {"PAR1 parquet", "read_parquet"},
             {"ARROW1 arrow", "read_parquet"},
             {"%PDF-1.7", "pdftotext"},
             {"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12\n", "git lfs pull"},
             {"<!DOCTYPE html>\n<html>not found</html>", "a page of HTML"},
             {"<!doctype html>", "a page of HTML"},
             {"<html>", "a page of HTML"},
             {"a\xff" + std::string(1, '\0'), "a zero byte at 3"}}) {
        CAPTURE(bytes);
        write_bytes(file, bytes);
        const std::string slowly = "(dd status=none bs=3 count=1; sleep 0.02; cat) < " + file + " |";
        for (const ProgramRun& run : {make_shards(file + out), make_shards("-" + out, slowly)}) {
            check_fails(run, kExitBadInput, says);
            CHECK(names_below(folder / "o").empty());
        }
    }
    check_done(make_shards(file + out + " --as-is --val-fraction 0"));
    CHECK(documents_of(folder / "o/t_train_*.bin") == Documents{read_bytes(file)});
    write_bytes(file, "It is 7zXZ, <html> and %PDF.");  // elsewhere than where a file begins
    CHECK(make_shards(file + out).exit_code == kExitDone);
}

TEST_CASE("make_shards: what goes wrong, and that nothing is left of it") {
    TempFolder folder, in, large;
    write_bytes(folder / "text", "some text\n");
    write_bytes(folder / "empty", "");
    write_bytes(large / "text", std::string(200'000, 'x'));
    write_token_shard(folder / "shard", std::vector<uint16_t>{1, 2, 3}, 257);
    const Words before = names_below(folder.path());
    const std::string to = " --out " + folder / "t", text = folder / "text";
    const auto fails = [&](const std::string& arguments, int exit_code, const std::string& says,
                           const std::string& from = "") {
        CAPTURE(arguments);
        check_fails(make_shards(arguments, from), exit_code, says);
        CHECK(names_below(folder.path()) == before);
    };
    fails(folder / "empty" + to, kExitBadInput, "the input is empty");
    fails("-" + to, kExitBadInput, "the input is empty", ": |");
    fails("-" + to, kExitBadInput, "--val-fraction 0", "printf x |");
    fails(folder / "missing" + to, kExitBadInput, folder / "missing: cannot open");
    fails(text + " " + folder / "missing" + to, kExitBadInput, "check its name");
    fails(text + " " + folder / "shard" + to, kExitBadInput, "a token shard");
    for (const auto& [arguments, says] : std::initializer_list<std::pair<std::string, std::string>>{
             {text, "--out is required: how the names of the shards begin"},
             {to, "inputs is required: files of text or JSON lines, folders, or - for standard input"},
             {text + " --out " + folder.path() + "/", "a folder"},
             {"--out= " + text, "--out: '' is empty. Expected PREFIX."},
             {text + to + " --documents word", "--documents"},
             {large / "text" + to + " --shard-tokens 16",
              "--shard-tokens 16: 200000 tokens or more would be 12500 files or more, expected at most "
              "10000"},
             {text + to + " --shards 4", "unknown option '--shards'"},
             {text + to + " --json-field ''", "--json-field: '' is empty. Expected NAME."},
             {text + " --out " + text + "/sub/t", "cannot make or write this folder"}}) {
        fails(arguments, kExitUsage, says);
    }
    for (const char* value : {"-0.1", "0.95", "nan"}) {
        fails(text + to + " --val-fraction " + value, kExitUsage, "--val-fraction");
    }
    for (const char* value : {"15", "2147483646", "x"}) {
        fails(text + to + " --shard-tokens " + value, kExitUsage, "--shard-tokens");
    }
    fs::create_directory(in / "sub");
    const std::string link = in / "sub/link";
    for (const auto& [target, says] : {std::pair("missing", ": this link leads to no file"),
                                       std::pair("link", ": cannot read: Too many levels of symbolic")}) {
        fs::remove(link);
        fs::create_symlink(target, link);
        fails(text + " " + in.path() + to, kExitBadInput, "make_shards: " + link + says);
    }
    fs::remove(link);
    if (geteuid() == 0) {
        MESSAGE("skipped: root may read and write everywhere");
        return;
    }
    REQUIRE(chmod((in / "sub").c_str(), 0) == 0);
    fails(text + " " + in.path() + to, kExitBadInput, in / "sub: cannot read: Permission denied");
    REQUIRE(chmod((in / "sub").c_str(), 0755) == 0);
    REQUIRE(chmod(folder.path().c_str(), 0555) == 0);
    fails(text + to, kExitUsage, "cannot make or write this folder");
    REQUIRE(chmod(folder.path().c_str(), 0755) == 0);
}

TEST_CASE("make_shards: a signal ends it without a trace") {
    TempFolder folder, streams;
    int input[2];
    REQUIRE(pipe(input) == 0);
    const pid_t pid = start_prepared(
        streams.path(), {"-", "--shard-tokens", "64", "--out", folder / "t"},
        [&] {
            dup2(input[0], STDIN_FILENO);
            close(input[1]);
        },
        program_path("data/make_shards"));
    close(input[0]);
    CHECK(write(input[1], std::string(1000, 'x').data(), 1000) == 1000);
    wait_until([&] { return !fs::is_empty(folder.path()); });
    kill(pid, SIGTERM);  // it is at work, or waits for more
    CHECK(finish_train(streams.path(), pid, [] { return true; }).exit_code == 128 + SIGTERM);
    close(input[1]);
    CHECK(fs::is_empty(folder.path()));
}

TEST_CASE("make_shards: help teaches") {
    const ProgramRun run = make_shards("--help");
    check_done(run);
    check_holds(run.out, {"--out", "--documents", "--val-fraction", "--shard-tokens", "Examples:"});
    CHECK(make_shards("--help > /dev/full").exit_code == kExitSaveFailed);
}

TEST_CASE_FIXTURE(InFolder, "make_shards: a text without a space is cut at words, characters or documents") {
    const Tokenizer t = Tokenizer::load(kTokenizer);
    REQUIRE(t.encode("er").size() == 1);  // and two tokens if it is cut
    const auto repeated = [](const std::string& unit, size_t bytes) {
        return joined(Documents(bytes / unit.size() + 1, unit));
    };
    // as Chinese or minified JSON may be; longer than what waits for a space
    const std::string words = repeated("er7", 5 << 20), word = "e" + repeated("\xe4\xb8\xad", 5 << 20);
    const Documents lines(18, repeated("er", 300'000) + "er7\n");
    for (const Documents& documents : {Documents{words}, Documents{word}, lines}) {
        write_bytes(folder / "text", joined(documents));
        check_done(make_shards("--tokenizer " + kTokenizer + " --val-fraction 0 --documents line " +
                               folder / "text" + " --out " + folder / "x"));
        std::vector<uint16_t> expected = {456};
        std::vector<int> ids;
        for (size_t i = 0; i < documents.size(); i++) {
            if (i == 0 || documents[i] != documents[i - 1]) { ids = t.encode(documents[i]); }  // takes long
            expected.insert(expected.end(), ids.begin(), ids.end());
            expected.push_back(456);
        }
        const std::vector<uint16_t> found = TokenShard(folder / "x_train_000000.bin").read_all();
        CHECK((found == expected));
    }
}

TEST_CASE_FIXTURE(InFolder, "make_shards: with a tokenizer, the documents have its ids") {
    const Tokenizer t = Tokenizer::load(kTokenizer);
    Documents paragraphs;
    for (int i = 0; i < 30000; i++) {  // more than one batch, words and spaces at every place
        paragraphs.push_back(fmt::format("The {}th line's\n  data,   of {} caf\xc3\xa9.\n\n", i * 7919,
                                         std::string((size_t)i % 50, 'e')));
    }
    write_bytes(folder / "text", joined(paragraphs));
    for (const std::string documents : {"file", "paragraph"}) {
        CAPTURE(documents);
        const ProgramRun run = make_shards("--tokenizer " + kTokenizer + " --val-fraction 0.2 --documents " +
                                           documents + " " + folder / "text" + " --out " + folder / "x");
        check_done(run);
        CHECK(contains(run.out, "--tokenizer " + kTokenizer));
        std::vector<int> ids;
        std::vector<std::vector<int>> found;
        for (const char* split : {"x_train_000000.bin", "x_val_000000.bin"}) {
            const TokenShard shard(folder / split);
            CHECK(shard.vocab_size() == 457);
            for (uint16_t token : shard.read_all()) {
                if (token != 456) {
                    ids.push_back(token);
                } else if (!ids.empty()) {
                    found.push_back(std::exchange(ids, {}));
                }
            }
            CHECK(ids.empty());
        }
        if (documents == "file") {  // one document, cut between two words
            REQUIRE(found.size() == 2);
            std::vector<int> all = found[0];
            all.insert(all.end(), found[1].begin(), found[1].end());
            CHECK((all == t.encode(joined(paragraphs))));
            continue;
        }
        REQUIRE(found.size() == paragraphs.size());
        Bpe::Cache cache;  // t.encode() makes one for each call, of megabytes
        for (size_t i = 0; i < found.size(); i++) {
            std::vector<int> expected;
            t.bpe()->encode(paragraphs[i], &cache, &expected);
            if (found[i] != expected) { FAIL("paragraph ", i); }
        }
    }
    write_bytes(folder / "list.bin", header_bytes({20240328, 2, 2, 1}) + std::string("\1a\3b\0c", 6));
    check_fails(
        make_shards("--tokenizer " + folder / "list.bin" + " " + folder / "text" + " --out " + folder / "x"),
        kExitBadInput, "how a text is cut");
}

// ---- sets ---------------------------------------------------------------------------------------

TEST_CASE_FIXTURE(InFolder, "shard sets: all shards of a run are one set, which depends on the text alone") {
    make_set(folder, "a", "twelve bytes");
    make_set(folder, "b", "twelve bytes");
    make_set(folder, "c", "twelve bits.");
    auto id = [&](const std::string& name) {
        uint64_t stored = 0;  // words 4 and 5 of the header
        std::memcpy(&stored, read_bytes(folder / name).data() + 16, sizeof(stored));
        CHECK(TokenShard(folder / name).set_id() == stored);
        return stored;
    };
    for (const char* rest : {"_train_000001.bin", "_train_000002.bin", "_val_000000.bin"}) {
        CHECK(id(std::string("a") + rest) == id("a_train_000000.bin"));
        CHECK(same_files(folder / "a" + rest, folder / "b" + rest));
        CHECK(id(std::string("c") + rest) != id(std::string("a") + rest));
    }
    CHECK(id("a_train_000000.bin") != 0);
    CHECK(TokenShard(folder / "a_train_000001.bin").set_shards() == 3);
    CHECK(TokenShard(folder / "a_val_000000.bin").set_shards() == 1);
    CHECK(ShardSet(folder / "a_train_*.bin").num_missing() == 0);
    CHECK(ShardSet(folder / "a_train_00000[12].bin").num_missing() == 1);
    CHECK(ShardSet(folder / "?_train_*.bin").num_missing() == 0);  // three sets side by side
}

TEST_CASE_FIXTURE(InFolder, "shard sets: a mixture is refused at every point of a replacement") {
    make_set(folder, "new", "twelve bytes");
    make_set(folder, "old", "another text, longer");
    const auto check_trains = [&](int exit_code, const char* says) {
        const ProgramRun run = dry_run(folder, folder / "t_train_*.bin", folder / "t_val_*.bin");
        CHECK(run.exit_code == exit_code);
        check_holds(run.out + run.err, {says});
    };
    const auto put = [&](const std::string& from, const std::string& rest) {
        fs::copy_file(folder / from + rest, folder / "t" + rest, fs::copy_options::overwrite_existing);
    };
    const Words train = {"_train_000000.bin", "_train_000001.bin", "_train_000002.bin"};
    for (const std::string& rest : train) { put("old", rest); }
    put("old", "_val_000000.bin");
    check_trains(kExitDone, "");
    fs::remove(folder / "t_val_000000.bin");
    for (const std::string& rest : train) {  // the order of data/make_shards
        check_trains(kExitBadInput, rest == train[0] ? "no file matches" : "of different sets");
        put("new", rest);
    }
    check_trains(kExitBadInput, "no file matches");
    put("new", "_val_000000.bin");
    check_trains(kExitDone, "");
    fs::remove(folder / "t_train_000001.bin");
    check_trains(kExitDone, "of their set 1 more are missing");
}

TEST_CASE_FIXTURE(InFolder, "shard sets: validation data among the training data is noted, a copy as well") {
    make_set(folder, "x", "twelve bytes");
    const std::string val = folder / "x_val_000000.bin", train = folder / "x_train_*.bin";
    fs::create_symlink(val, folder / "link.bin");
    fs::copy_file(val, folder / "copy.bin");
    write_token_shard(folder / "elsewhere.bin", TokenShard(val).read_all(), 257);  // of no set
    const auto noted = [&](const std::string& train_data, const std::string& val_data) {
        const ProgramRun run = dry_run(folder, train_data, val_data);
        check_run(run, kExitDone);
        return contains(run.out, "is trained on, too");
    };
    CHECK_FALSE(noted(train, val));
    CHECK_FALSE(noted(train, folder / "elsewhere.bin"));
    CHECK(noted(folder / "x_*.bin", val));
    CHECK(noted(folder / "x_*.bin", folder / "link.bin"));
    CHECK(noted(folder / "x_*.bin", folder / "copy.bin"));
    CHECK(noted(folder / "elsewhere.bin", folder / "elsewhere.bin"));
}

TEST_CASE_FIXTURE(InFolder, "shard sets: what a killed run has left goes with the next") {
    pid_t ended = fork();
    if (ended == 0) { _exit(0); }
    waitpid(ended, nullptr, 0);
    const std::string dead = fmt::format("t.tmp-{}-000000.bin", (int)ended);
    const Words others = {fmt::format("t.tmp-{}-000000.bin", (int)getpid()), "t.tmp-notes",
                          "u" + dead.substr(1)};
    for (const std::string& name : others) { write_bytes(folder / name, "x"); }
    write_bytes(folder / dead, "x");
    write_bytes(folder / dead + ".tmp-1", "x");
    make_set(folder, "t", "twelve bytes");
    CHECK_FALSE(fs::exists(folder / dead));
    CHECK_FALSE(fs::exists(folder / dead + ".tmp-1"));
    for (const std::string& name : others) { CHECK(fs::exists(folder / name)); }
}

TEST_CASE_FIXTURE(InFolder, "shard sets: the next command works for every name") {
    write_bytes(folder / "text", std::string(400, 'x') + "\n" + std::string(400, 'y'));
    for (const char* name : {"plain", "it's/m", "g[1]/m", "a b/*?$x", "\\\\/m\\", "q\"uote`/x"}) {
        CAPTURE(name);
        ProgramRun run = make_shards(folder / "text" + " --out " + shell_word(folder / name));
        check_done(run);
        const size_t at = run.out.find("next: ./train_gpt2 ");
        REQUIRE(at != std::string::npos);
        const std::string command = "'" + train_program() + "' " + run.out.substr(at + 19);
        run_well(folder.path(),
                 {"-c", command.substr(0, command.size() - 1) + " --model d1 --seq-len 8 --dry-run"},
                 "/bin/sh");
    }
}

TEST_CASE_FIXTURE(InFolder, "shard sets: an input that a shard would replace is kept") {
    fs::create_directory(folder / "in");
    const std::string shard = folder / "in/a_train_000000.bin", notes = folder / "in/a_train_notes.bin",
                      to = " --out " + folder / "in/a";
    write_bytes(notes, "notes\n");
    write_bytes(shard, "some text\n");
    fs::create_symlink(shard, folder / "link");
    for (const std::string& input : {shard, folder / "in", folder / "link"}) {
        check_fails(make_shards(input + to), kExitUsage, shard + ": this is an input, which would be lost");
        CHECK(read_bytes(shard) == "some text\n");
        CHECK(names_below(folder / "in") == Words{"a_train_000000.bin", "a_train_notes.bin"});
    }
    check_done(make_shards(notes + to));
    CHECK(read_bytes(notes) == "notes\n");
}

TEST_CASE_FIXTURE(InFolder, "make_shards: parts of exact sizes; without ends of text the input alone") {
    const std::string text = "one\n\ntwo\n\nthree\n\nforty bytes four tens.\n", in = folder / "text",
                      out = " --out " + folder / "t";
    write_bytes(in, text);
    const auto bytes_of = [&](const std::string& part) {
        std::string bytes;
        const ShardSet set(folder / ("t_" + part + "_*.bin"));
        for (const TokenShard& shard : set.shards()) {
            for (uint16_t token : shard.read_all()) {
                REQUIRE(token < 256);
                bytes += (char)token;
            }
        }
        return bytes;
    };
    const ProgramRun run = make_shards(in + out + " --documents none --shard-tokens 16 --parts 21,12,7");
    check_done(run);
    check_holds(run.out, {"no ends of text", "in 2 shards", "test        7 tokens in 1 shard",
                          "then: ./train_gpt2 eval RUN"});
    CHECK(bytes_of("train") == text.substr(0, 21));
    CHECK(bytes_of("val") == text.substr(21, 12));
    CHECK(bytes_of("test") == text.substr(33));
    check_done(make_shards(in + out + " --documents none --val-fraction 0.5"));
    CHECK_FALSE(fs::exists(folder / "t_test_000000.bin"));  // of another division: it may be trained on now
    CHECK(bytes_of("train") + bytes_of("val") == text);
    for (const char* bad : {"", "--documents none --parts 40", "--documents none --parts 10,10,10,10"}) {
        check_fails(make_shards(in + out + (*bad ? " " : " --parts 20,20 ") + bad), kExitUsage,
                    "--parts needs two or three sizes, and --documents none");
    }
    check_fails(make_shards(in + out + " --documents none --parts 9,33"), kExitBadInput,
                in + ": found 40 tokens, expected the 42 of --parts");
}

TEST_CASE_FIXTURE(InFolder, "make_corpus: bad options are named, long seeds refused, what is lost is said") {
    const std::string program = program_path("data/make_corpus");
    const auto make_corpus = [&](const std::string& options) {
        return run_train(folder.path(), words(options), program);
    };
    CHECK(make_corpus("--show 1 --seed 18446744073709551615").exit_code == kExitDone);
    using Says = std::pair<const char*, const char*>;
    for (const auto& [options, says] :
         {Says{"--seed 18446744073709551616", "--seed: '18446744073709551616' is out of range. Expected a "},
          Says{"--seed 1e3", "--seed: '1e3' is not a whole number. Expected a whole number, 0 to 2^64 - 1. "},
          Says{"--seeed 1", "unknown option '--seeed'. Did you mean --seed?"}}) {
        check_run(make_corpus(std::string("--show 1 ") + options), kExitUsage,
                  {std::string("make_corpus: ") + says});
    }
    // a million stories take far more than a second, and none of them can be written
    const pid_t pid = start_prepared(
        folder.path(), {"--show", "1000000"},
        [] {
            const rlimit second = {1, 1};
            setrlimit(RLIMIT_CPU, &second);
            dup2(open("/dev/full", O_WRONLY), STDOUT_FILENO);
        },
        program);
    const ProgramRun full = finish_train(folder.path(), pid);
    CHECK(full.exit_code == kExitSaveFailed);
    CHECK(full.err == "make_corpus: cannot write to standard output\n");
}

// Tests of data/make_shards, run as a user runs it: $PLUMB_BIN_DIR/data/make_shards, or ./data/make_shards.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "dev/test/support/test_files.h"
#include "llmc/host/tokens/dataloader.h"
#include "llmc/host/tokens/tokenizer.h"

using namespace llmc;

namespace {

struct Run {
    int exit_code;
    std::string output;  // both streams
};

std::string program_path() {
    const char* folder = std::getenv("PLUMB_BIN_DIR");
    const std::string path = std::string(folder != nullptr ? folder : ".") + "/data/make_shards";
    REQUIRE_MESSAGE(access(path.c_str(), X_OK) == 0, path, " is missing: run `make data/make_shards`");
    return path;
}

// the program through the shell; before: what stands before its name, as "cat x |"
Run make_shards(const std::string& arguments, const std::string& before = "") {
    std::FILE* pipe = popen((before + " '" + program_path() + "' " + arguments + " 2>&1").c_str(), "r");
    REQUIRE(pipe != nullptr);
    Run run;
    char buffer[4096];
    for (size_t n; (n = std::fread(buffer, 1, sizeof(buffer), pipe)) > 0;) { run.output.append(buffer, n); }
    const int status = pclose(pipe);
    run.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return run;
}

std::vector<std::string> names_in(const std::string& folder) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
}

// the documents of a split, each without the end of text before it; checks where ends of text must be
std::vector<std::string> documents_of(const std::string& pattern) {
    const ShardSet set(pattern);
    REQUIRE(set.vocab_size() == 257);
    std::vector<std::string> documents;
    std::vector<uint16_t> tokens;
    for (const TokenShard& shard : set.shards()) {
        const std::vector<uint16_t> more = shard.read_all();
        tokens.insert(tokens.end(), more.begin(), more.end());
    }
    REQUIRE(tokens.front() == 256);
    REQUIRE(tokens.back() == 256);
    tokens.pop_back();
    for (uint16_t token : tokens) {
        if (token == 256) {
            documents.emplace_back();
        } else {
            documents.back() += (char)token;
        }
    }
    return documents;
}

std::string joined(const std::vector<std::string>& documents) {
    std::string text;
    for (const std::string& document : documents) { text += document; }
    return text;
}

using Documents = std::vector<std::string>;

}  // namespace

TEST_CASE("make_shards: what a document is") {
    TempFolder folder;
    const std::string text = "\n \nOne\nline\n\n\n  Two\n \t\r\nThree\n   indented\n\nlast, no newline";
    write_bytes(folder / "text", text);
    const std::string in = folder / "text", out = folder / "o/text";
    const auto documents = [&](const std::string& options) {
        const Run run = make_shards(in + " --out " + out + " --val-fraction 0 " + options);
        CAPTURE(run.output);
        REQUIRE(run.exit_code == 0);
        CHECK(names_in(folder / "o") == std::vector<std::string>{"text_train_000000.bin"});
        return documents_of(out + "_train_*.bin");
    };
    const Documents lines = {"\n \nOne\n", "line\n\n\n",      "  Two\n \t\r\n",
                             "Three\n",    "   indented\n\n", "last, no newline"};
    CHECK(documents("") == Documents{text});
    CHECK(documents("--documents file") == Documents{text});
    CHECK(documents("--documents paragraph") ==
          Documents{"\n \nOne\nline\n\n", "\n  Two\n \t\r\n", "Three\n   indented\n\n", "last, no newline"});
    CHECK(documents("--documents line") == lines);

    write_bytes(in, "\n \n\t");  // blanks only: one document
    CHECK(documents("--documents line") == Documents{"\n \n\t"});
    CHECK(documents("--documents paragraph") == Documents{"\n \n\t"});
    write_bytes(in, "a\n\n\n\nb\n\n\n \n");  // what nothing comes after stays
    CHECK(documents("--documents paragraph") == Documents{"a\n\n", "\n\nb\n\n\n \n"});
    write_bytes(in, "a" + std::string(10000, '\n') + "b");  // memory is bounded
    CHECK(documents("--documents paragraph").size() == 2);
    CHECK(joined(documents("--documents paragraph")) == read_bytes(in));
    write_bytes(in, "a\n" + std::string(10000, ' ') + "\nb");  // 10,000 blanks are a line
    CHECK(documents("--documents line").size() == 3);
    CHECK(joined(documents("--documents line")) == read_bytes(in));
}

TEST_CASE("make_shards: validation is the last documents, or the end of a long one; nothing is lost") {
    TempFolder folder;
    const std::string in = folder / "text", out = folder / "t";
    const auto split = [&](const std::string& options) {
        const Run run = make_shards(in + " --out " + out + " " + options);
        CAPTURE(run.output);
        REQUIRE(run.exit_code == 0);
        return std::pair(documents_of(out + "_train_*.bin"), documents_of(out + "_val_*.bin"));
    };
    std::string lines;
    for (int i = 0; i < 100; i++) {
        lines += fmt::format("line {:02} 89\n", i);
    }  // with its end of text: 12 tokens
    write_bytes(in, lines);
    auto [train, val] = split("--documents line");
    CHECK(train.size() == 90);
    CHECK(val.size() == 10);
    CHECK(val.front() == "line 90 89\n");
    CHECK(joined(train) + joined(val) == lines);

    std::tie(train, val) = split("--documents line --val-fraction 0.255");  // not within a document
    CHECK(train.size() == 75);
    CHECK(val.size() == 25);

    std::tie(train, val) = split("--documents line --val-fraction 0.09917");  // 119 tokens: one is missing
    CHECK(val.size() == 10);

    for (const char* fraction : {"0.1", "0.095", "0.0923"}) {  // one document: cut after a line
        std::tie(train, val) = split(std::string("--val-fraction ") + fraction);
        CHECK(train.size() == 1);
        CHECK(val.size() == 1);
        CHECK(val.front().starts_with("line 9"));
        CHECK(joined(train) + joined(val) == lines);
    }

    write_bytes(in, "short\n" + std::string(994, 'x'));  // a long last document without lines
    std::tie(train, val) = split("--documents line");
    CHECK(train.size() == 2);
    CHECK(val == Documents{std::string(100, 'x')});

    write_bytes(in, "ab");
    std::tie(train, val) = split("");
    CHECK(train == Documents{"a"});
    CHECK(val == Documents{"b"});
    std::tie(train, val) = split("--val-fraction 0.9");
    CHECK(joined(train) + joined(val) == "ab");
}

TEST_CASE("make_shards: any bytes, any shard size, any portions") {
    TempFolder folder;
    std::mt19937 gen(3);
    std::string text;
    for (int i = 0; i < 20000; i++) { text += gen() % 8 == 0 ? '\n' : gen() % 8 == 0 ? ' ' : (char)gen(); }
    write_bytes(folder / "text", text);
    for (const char* documents : {"file", "paragraph", "line"}) {
        const std::string options = std::string(" --as-is --documents ") + documents;
        const Run whole = make_shards(folder / "text" + options + " --out " + (folder / "whole"));
        REQUIRE(whole.exit_code == 0);
        const Documents train = documents_of(folder / "whole_train_*.bin");
        const Documents val = documents_of(folder / "whole_val_*.bin");
        CHECK(joined(train) + joined(val) == text);
        for (int shard_tokens : {700, 4096, 20001}) {
            const std::string size = " --shard-tokens " + std::to_string(shard_tokens);
            const Run run = make_shards("-" + options + size + " --out " + (folder / "parts"),
                                        "cat '" + folder / "text" + "' |");
            CAPTURE(run.output);
            REQUIRE(run.exit_code == 0);
            CHECK(documents_of(folder / "parts_train_*.bin") == train);
            CHECK(documents_of(folder / "parts_val_*.bin") == val);
            const ShardSet parts(folder / "parts_*.bin");
            for (const TokenShard& shard : parts.shards()) { CHECK(shard.num_tokens() <= shard_tokens + 2); }
        }
    }
    // the shards of the last run are fewer than those of the first: none of the others may be left
    CHECK(ShardSet(folder / "parts_*.bin").num_tokens() < (int64_t)text.size() * 2);
    for (const std::string& name : names_in(folder.path())) { CHECK(name.find("tmp") == std::string::npos); }
}

TEST_CASE("make_shards: the cut between two shards") {
    TempFolder folder;
    std::string text;
    for (int i = 0; i < 64; i++) { text += "1234567 9012345\n"; }  // 17 tokens with its end of text
    write_bytes(folder / "text", text);
    for (int shard_tokens : {34, 100, 544, 545, 1088, 2000}) {  // 544 = half of all 1088
        CAPTURE(shard_tokens);
        const Run run = make_shards(folder / "text" + " --documents line --val-fraction 0.5 --shard-tokens " +
                                    std::to_string(shard_tokens) + " --out " + (folder / "t"));
        REQUIRE(run.exit_code == 0);
        CHECK(documents_of(folder / "t_train_*.bin") == Documents(32, "1234567 9012345\n"));
        CHECK(documents_of(folder / "t_val_*.bin") == Documents(32, "1234567 9012345\n"));
    }
}

TEST_CASE("make_shards: files, folders and standard input") {
    TempFolder folder;
    std::filesystem::create_directories(folder / "in/b/c");
    std::filesystem::create_directories(folder / "in/.git");
    write_bytes(folder / "in/z", "z");
    write_bytes(folder / "in/a", "a");
    write_bytes(folder / "in/b/c/x", "bcx");
    write_bytes(folder / "in/b/empty", "");
    write_bytes(folder / "in/.git/x", "no");
    write_bytes(folder / "in/.hidden", "no");
    const std::string inputs = folder / "in" + " - " + (folder / "in/a");
    const Run run = make_shards(inputs + " --val-fraction 0 --out " + (folder / "o"), "printf stdin |");
    CAPTURE(run.output);
    REQUIRE(run.exit_code == 0);
    CHECK(documents_of(folder / "o_train_*.bin") == Documents{"a", "bcx", "z", "stdin", "a"});
    CHECK(run.output.find("documents (one per file): 5") != std::string::npos);
    CHECK(run.output.find("--train-data") != std::string::npos);
}

TEST_CASE("make_shards: JSON lines: the named text of each is a document") {
    TempFolder folder;
    write_bytes(folder / "a.jsonl",
                "{\"text\": \"one\\ntwo\", \"id\": 1}\n\n{\"meta\": {\"text\": \"no\"}, \"text\": "
                "\"\\u00e9\\\"\"}\r\n"
                "{\"text\": \"\"}\n");
    write_bytes(folder / "b.jsonl", "{\"text\": \"last\", \"body\": \"x\"}");  // no newline behind it
    const std::string inputs = folder / "a.jsonl" + " - " + (folder / "b.jsonl");
    const Run run = make_shards(inputs + " --json-field text --val-fraction 0 --out " + (folder / "o"),
                                "printf '{\"text\": \"stdin\"}\\n' |");
    CAPTURE(run.output);
    REQUIRE(run.exit_code == 0);
    CHECK(documents_of(folder / "o_train_*.bin") == Documents{"one\ntwo", "\xc3\xa9\"", "stdin", "last"});
    CHECK(run.output.find("documents (one per line): 4") != std::string::npos);
    CHECK(run.output.find("taken for text") == std::string::npos);

    const auto fails = [&](const std::string& arguments, int exit_code, const std::string& says) {
        const Run bad = make_shards(arguments + " --out " + (folder / "bad"));
        CAPTURE(bad.output);
        CHECK(bad.exit_code == exit_code);
        CHECK(bad.output.find(says) != std::string::npos);
    };
    const std::string b = folder / "b.jsonl";
    fails(b + " --json-field txt", kExitBadInput,
          "b.jsonl, line 1: expected an object with a text \"txt\", found none, but \"text\", \"body\"");
    fails(b + " --json-field text --documents line", kExitUsage, "--json-field");
    write_bytes(b, "{\"text\": \"a\"}\n{\"text\": 3}\n");
    fails(b + " --json-field text", kExitBadInput,
          "b.jsonl, line 2: expected an object with a text \"text\"");
    write_bytes(b, "{\"text\": \"a\"}\nplain\n");
    fails(b + " --json-field text", kExitBadInput, "b.jsonl, line 2");
    CHECK(names_in(folder.path()).size() == 3);
    // without the option it is text, and the user hears of it
    const Run text = make_shards(b + " --val-fraction 0 --out " + (folder / "t"));
    CHECK(documents_of(folder / "t_train_*.bin") == Documents{"{\"text\": \"a\"}\nplain\n"});
    CHECK(text.output.find("--json-field") != std::string::npos);
}

TEST_CASE(
    "make_shards: half of a surrogate pair is U+FFFD; bad JSON lines are named, or skipped and counted") {
    TempFolder folder;
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
    REQUIRE(make_shards(in + out).exit_code == kExitDone);
    const std::string half = "\xef\xbf\xbd", face = "\xf0\x9f\x98\x80";
    const Documents texts = {"a" + half + " b" + half, face + half + "\\" + half + face, "c", "\\ud83d"};
    CHECK(documents_of(folder / "t_train_*.bin") == texts);

    std::string all;
    for (const auto& [line, says] : std::initializer_list<std::pair<std::string, std::string>>{
             {"{\"text\": \"a\xff\"}", "a byte that is not UTF-8"},
             {"{\"text\": \"a\", \"x\": NaN}", "NaN or Infinity, which Python writes"},
             {"{\"text\": \"a\", \"x\": [-Infinity]}", "NaN or Infinity, which Python writes"},
             {"{\"text\": \"N", "a syntax error"},
             {"{\"text\": null}", "found one that is no text"},
             {"{\"text\": \"\\u d83d\"}", "a syntax error"},
             {"{\"text\": \"a\", \"x\": 1, \"x\": 2}", "\"x\" twice"}}) {
        write_bytes(in, "{\"text\": \"good\"}\n" + line + "\n");
        all += read_bytes(in);
        const Run run = make_shards(in + out);
        CHECK(run.exit_code == kExitBadInput);
        CHECK_MESSAGE(contains(run.output, "in.jsonl, line 2: "), run.output);
        CHECK_MESSAGE(contains(run.output, says), run.output);
        CHECK_MESSAGE(contains(run.output, "--skip-bad-lines leaves such lines out"), run.output);
    }
    CHECK(documents_of(folder / "t_train_*.bin") == texts);
    write_bytes(in, all);
    const Run run = make_shards(in + out + " --skip-bad-lines");
    CHECK(run.exit_code == kExitDone);
    CHECK(documents_of(folder / "t_train_*.bin") == Documents(7, "good"));
    CHECK_MESSAGE(contains(run.output, "skipped: " + in + ", line 6: not usable JSON"), run.output);
    CHECK_FALSE(contains(run.output, "line 8"));
    CHECK_MESSAGE(contains(run.output, "skipped 7 lines in all"), run.output);
}

TEST_CASE("make_shards: what is no text is refused by what it is, whole or byte by byte, unless --as-is") {
    TempFolder folder;
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
        const std::string slowly = "(dd status=none bs=3 count=1; sleep 0.05; cat) < " + file + " |";
        for (const Run& run : {make_shards(file + out), make_shards("-" + out, slowly)}) {
            CHECK(run.exit_code == kExitBadInput);
            CHECK_MESSAGE(contains(run.output, says), run.output);
            CHECK(names_in(folder / "o").empty());
        }
    }
    CHECK(make_shards(file + out + " --as-is --val-fraction 0").exit_code == kExitDone);
    CHECK(documents_of(folder / "o/t_train_*.bin") == Documents{read_bytes(file)});
    write_bytes(file, "It is 7zXZ, <html> and %PDF.");  // elsewhere than where a file begins
    CHECK(make_shards(file + out).exit_code == kExitDone);
}

TEST_CASE("make_shards: what goes wrong, and that nothing is left of it") {
    TempFolder folder;
    write_bytes(folder / "text", "some text\n");
    write_bytes(folder / "empty", "");
    write_token_shard(folder / "shard", std::vector<uint16_t>{1, 2, 3}, 257);
    const std::vector<std::string> before = names_in(folder.path());
    const std::string to = " --out " + (folder / "t"), text = folder / "text";
    const auto fails = [&](const Run& run, int exit_code, const std::string& says) {
        CAPTURE(run.output);
        CHECK(run.exit_code == exit_code);
        CHECK(run.output.find(says) != std::string::npos);
        CHECK(names_in(folder.path()) == before);
    };
    fails(make_shards(folder / "empty" + to), kExitBadInput, "the input is empty");
    fails(make_shards("-" + to, ": |"), kExitBadInput, "the input is empty");
    fails(make_shards("-" + to, "printf x |"), kExitBadInput, "--val-fraction 0");
    fails(make_shards(folder / "missing" + to), kExitBadInput, folder / "missing: cannot open");
    fails(make_shards(text + " " + (folder / "missing") + to), kExitBadInput, "check its name");
    fails(make_shards(text + " " + (folder / "shard") + to), kExitBadInput, "a token shard");
    fails(make_shards(text), kExitUsage, "--out");
    fails(make_shards("--out x"), kExitUsage, "inputs");
    fails(make_shards(text + " --out " + folder.path() + "/"), kExitUsage, "a folder");
    fails(make_shards("--out= " + text), kExitUsage, "--out: the value is empty. Expected PREFIX.");
    fails(make_shards(text + to + " --documents word"), kExitUsage, "--documents");
    for (const char* value : {"-0.1", "0.95", "nan", "x"}) {
        fails(make_shards(text + to + " --val-fraction " + value), kExitUsage, "--val-fraction");
    }
    for (const char* value : {"0", "15", "-5", "2147483646", "99999999999999999999", "x"}) {
        fails(make_shards(text + to + " --shard-tokens " + value), kExitUsage, "--shard-tokens");
    }
    {
        TempFolder large;
        write_bytes(large / "text", std::string(200'000, 'x'));
        fails(
            make_shards(large / "text" + to + " --shard-tokens 16"), kExitUsage,
            "--shard-tokens 16: 200000 tokens or more would be 12500 files or more, expected at most 10000");
    }
    fails(make_shards(text + to + " --shards 4"), kExitUsage, "unknown option '--shards'");
    fails(make_shards(to), kExitUsage,
          "inputs is required: files of text or JSON lines, folders, or - for standard input");
    fails(make_shards(text), kExitUsage, "--out is required: how the names of the shards begin");
    fails(make_shards(text + to + " --json-field ''"), kExitUsage,
          "--json-field: the value is empty. Expected NAME.");
    fails(make_shards(text + " --out " + text + "/sub/t"), kExitUsage, "cannot make or write this folder");
    TempFolder in;
    std::filesystem::create_directory(in / "sub");
    const std::string link = in / "sub/link";
    for (const auto& [target, says] : {std::pair("missing", ": this link leads to no file"),
                                       std::pair("link", ": cannot read: Too many levels of symbolic")}) {
        std::filesystem::remove(link);
        std::filesystem::create_symlink(target, link);
        fails(make_shards(text + " " + in.path() + to), kExitBadInput, "make_shards: " + link + says);
    }
    std::filesystem::remove(link);
    if (geteuid() == 0) {
        MESSAGE("skipped: root may read and write everywhere");
        return;
    }
    REQUIRE(chmod((in / "sub").c_str(), 0) == 0);
    fails(make_shards(text + " " + in.path() + to), kExitBadInput,
          in / "sub: cannot read: Permission denied");
    REQUIRE(chmod((in / "sub").c_str(), 0755) == 0);
    REQUIRE(chmod(folder.path().c_str(), 0555) == 0);
    fails(make_shards(text + to), kExitUsage, "cannot make or write this folder");
    REQUIRE(chmod(folder.path().c_str(), 0755) == 0);
}

TEST_CASE("make_shards: a signal ends it without a trace") {
    TempFolder folder;
    const std::string program = program_path(), out = folder / "t";
    const auto wait_for = [](auto&& condition) {  // 20 seconds at most
        for (int i = 0; i < 2000 && !condition(); i++) { usleep(10'000); }
        return condition();
    };
    int input[2];
    REQUIRE(pipe(input) == 0);
    const pid_t pid = fork();
    if (pid == 0) {
        dup2(input[0], STDIN_FILENO);
        dup2(open("/dev/null", O_WRONLY), STDOUT_FILENO);
        dup2(STDOUT_FILENO, STDERR_FILENO);
        close(input[1]);
        const char* arguments[] = {"make_shards", "-", "--shard-tokens", "64", "--out", out.c_str(), nullptr};
        execv(program.c_str(), const_cast<char**>(arguments));
        _exit(127);
    }
    close(input[0]);
    CHECK(write(input[1], std::string(1000, 'x').data(), 1000) == 1000);
    CHECK(wait_for([&] { return !std::filesystem::is_empty(folder.path()); }));
    kill(pid, SIGTERM);  // it is at work, or waits for more
    int status = 0;
    const bool ended = wait_for([&] { return waitpid(pid, &status, WNOHANG) != 0; });
    CHECK(ended);
    if (!ended) { kill(pid, SIGKILL); }
    close(input[1]);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 128 + SIGTERM);
    CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("make_shards: help teaches") {
    const Run run = make_shards("--help");
    CHECK(run.exit_code == 0);
    for (const char* part : {"--out", "--documents", "--val-fraction", "--shard-tokens", "Examples:"}) {
        CHECK(run.output.find(part) != std::string::npos);
    }
    CHECK(make_shards("--help > /dev/full").exit_code == kExitSaveFailed);
}

TEST_CASE(
    "make_shards: a text without a space is cut between words, before a character, or before a document") {
    TempFolder folder;
    const std::string fixture = "dev/test/fixture/bpe";
    const Tokenizer t = Tokenizer::load(fixture);
    REQUIRE(t.encode("er").size() == 1);  // and two tokens if it is cut
    const auto repeated = [](const std::string& unit, size_t bytes) {
        std::string text;
        while (text.size() < bytes) { text += unit; }
        return text;
    };
    // as Chinese or minified JSON may be; longer than what waits for a space
    const std::string words = repeated("er7", 17 << 20), word = "e" + repeated("\xe4\xb8\xad", 17 << 20);
    const Documents lines(60, repeated("er", 300'000) + "er7\n");
    for (const Documents& documents : {Documents{words}, Documents{word}, lines}) {
        write_bytes(folder / "text", joined(documents));
        const Run run = make_shards("--tokenizer " + fixture + " --val-fraction 0 --documents line '" +
                                    (folder / "text") + "' --out '" + (folder / "x") + "'");
        REQUIRE_MESSAGE(run.exit_code == kExitDone, run.output);
        std::vector<int> expected, found;
        for (const std::string& document : documents) {
            expected.push_back(456);
            for (int id : t.encode(document)) { expected.push_back(id); }
        }
        expected.push_back(456);
        for (uint16_t token : TokenShard((folder / "x") + "_train_000000.bin").read_all()) {
            found.push_back(token);
        }
        CHECK((found == expected));
    }
}

TEST_CASE("make_shards: with a tokenizer, the documents have its ids") {
    TempFolder folder;
    const std::string fixture = "dev/test/fixture/bpe";
    const Tokenizer t = Tokenizer::load(fixture);
    std::string text;
    std::vector<std::string> paragraphs;
    for (int i = 0; i < 30000; i++) {  // more than one batch, words and spaces at every place
        paragraphs.push_back("The " + std::to_string(i * 7919) + "th line's\n  data,   of " +
                             std::string(i % 50, 'e') + " caf\xc3\xa9.\n\n");
        text += paragraphs.back();
    }
    write_bytes(folder / "text", text);
    for (const char* documents : {"file", "paragraph"}) {
        CAPTURE(documents);
        const Run run =
            make_shards("--tokenizer " + fixture + " --val-fraction 0.2 --documents " + documents + " '" +
                        (folder / "text") + "' --out '" + (folder / "x") + "'");
        CAPTURE(run.output);
        REQUIRE(run.exit_code == kExitDone);
        CHECK(run.output.find("--tokenizer " + fixture) != std::string::npos);
        std::string back;
        std::vector<int> ids;
        std::vector<std::vector<int>> found;
        for (const char* split : {"_train_000000.bin", "_val_000000.bin"}) {
            const TokenShard shard((folder / "x") + split);
            CHECK(shard.vocab_size() == 457);
            for (uint16_t token : shard.read_all()) {
                if (token != 456) {
                    ids.push_back(token);
                } else if (!ids.empty()) {
                    found.push_back(std::move(ids));
                    ids.clear();
                }
            }
            CHECK(ids.empty());
        }
        if (documents == std::string("file")) {  // one document, cut between two words
            std::vector<int> all = found[0];
            all.insert(all.end(), found[1].begin(), found[1].end());
            CHECK(found.size() == 2);
            CHECK((all == t.encode(text)));
        } else {
            REQUIRE(found.size() == paragraphs.size());
            Bpe::Cache cache;  // t.encode() makes one for each call, of megabytes
            for (size_t i = 0; i < found.size(); i++) {
                std::vector<int> expected;
                t.bpe()->encode(paragraphs[i], &cache, &expected);
                if (found[i] != expected) { FAIL("paragraph ", i); }
            }
        }
    }
    write_bytes(folder / "list.bin", header_bytes({20240328, 2, 2, 1}) + std::string("\1a\3b\0c", 6));
    const Run run = make_shards("--tokenizer '" + (folder / "list.bin") + "' '" + (folder / "text") +
                                "' --out '" + (folder / "x") + "'");
    CHECK(run.exit_code == kExitBadInput);
    CHECK(run.output.find("how a text is cut") != std::string::npos);
}

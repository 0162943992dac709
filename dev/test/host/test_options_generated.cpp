// Generated tests of the option parser: thousands of command lines with one fault each, all of which must end
// in exit code 2 and name the option; and noise, on which nothing may crash.
#include <algorithm>
#include <random>

#include <doctest/doctest.h>

#include "dev/test/support/test_options.h"

using namespace llmc;

namespace {

// Makes command lines with one fault each, among good options, and says what the message must contain.
class BadLines {
public:
    struct Line {
        Args args, parts;
    };
    Line next() {
        Line line;
        switch (pick(9)) {
            case 0:
                unknown(line);
                break;
            case 1:
                misspelt(line);
                break;
            case 2:
                duplicate(line);
                break;
            case 3:
                missing(line);
                break;
            case 4:
                stray(line);
                break;
            case 5:
                llmc_option(line);
                break;
            default:
                value(line);
        }
        return line;
    }

private:
    int pick(int n) { return (int)(random_() % n); }
    const Option& any_row() { return kOptions[pick((int)kOptions.size())]; }
    const Option& any_row_with_value() {
        for (;;) {
            const Option& row = any_row();
            if (!is_switch(row)) { return row; }
        }
    }
    static bool known(const std::string& name) {
        return std::any_of(kOptions.begin(), kOptions.end(),
                           [&](const Option& row) { return row.name == name; });
    }
    // the option by its name or its letter
    std::string typed(const Option& row) {
        return !row.letter.empty() && pick(2) ? row.letter : "--" + row.name;
    }
    // up to three good options that are not the one tested
    Args good(const std::string& but) {
        static const char* const kGood[][2] = {
            {"--batch", "2"}, {"--clip", "0.5"}, {"--quiet", ""}, {"--warmup", "3"}, {"-a", "0"}};
        Args args;
        for (int i = 0; i < 3; i++) {
            auto [name, value] = kGood[pick(5)];
            bool used = name == "--" + but || std::find(args.begin(), args.end(), name) != args.end();
            if (used) { continue; }
            args.push_back(name);
            if (*value) { args.push_back(value); }
        }
        return args;
    }
    std::string word() {
        std::string s;
        for (int n = 1 + pick(12); n > 0; n--) { s += "abcdefghijklmnopqrstuvwxyz-_0123456789"[pick(38)]; }
        return "x" + s;
    }
    void unknown(Line& line) {
        std::string name = "--" + word();
        line = {good(""), {"unknown option", name, "See --help"}};
        line.args.push_back(pick(2) ? name : name + "=1");
    }
    void misspelt(Line& line) {
        std::string name = any_row().name;
        while (known(name)) {
            int at = pick((int)name.size());
            char c = (char)('a' + pick(26));
            int kind = pick(3);
            if (kind == 0) { name.insert(name.begin() + at, c); }
            if (kind == 1) { name[at] = c; }
            if (kind == 2 && name.size() > 3) { name.erase(at, 1); }
        }
        line = {good(""), {"unknown option", "--" + name, "Did you mean --"}};
        line.args.insert(line.args.end(), {"--" + name, "1"});
    }
    void duplicate(Line& line) {
        const Option& row = any_row_with_value();
        std::string value = good_value(row);
        line = {{typed(row), value}, {std::string("--") + row.name, "twice"}};
        Args between = good(row.name);
        line.args.insert(line.args.end(), between.begin(), between.end());
        line.args.insert(line.args.end(), {typed(row), value});
    }
    void missing(Line& line) {
        const Option& row = any_row_with_value();
        std::string name = typed(row);
        line = {good(row.name), {name, "needs a value"}};
        line.args.push_back(name);
        if (pick(2)) { line.args.insert(line.args.end(), {"--beta1", "0.5"}); }
    }
    void stray(Line& line) {
        std::string text = word();
        line = {good(""), {"unexpected argument", text}};
        line.args.insert(line.args.begin() + (line.args.empty() || line.args[0] == "--quiet" ? 0 : 2), text);
    }
    void llmc_option(Line& line) {
        const std::string name = kForeignOptions[pick((int)kForeignOptions.size())].names[0];
        line = {{name, std::to_string(100 + pick(100))}, {name, "not part of this program"}};
    }
    void value(Line& line) {
        const Option& row = any_row_with_value();
        std::string text = bad_value(row), name = typed(row);
        line = {good(row.name), {name}};
        if (name.starts_with("--") && pick(2)) {
            line.args.push_back(name + "=" + text);
        } else {
            line.args.insert(line.args.end(), {name, text});
        }
    }
    std::string bad_value(const Option& row) {
        if (!is_number(row)) {
            if (!row.choices.empty()) { return pick(2) ? "" : word(); }
            return "";
        }
        std::string below = std::to_string((int64_t)row.range.lo - 7),
                    above = fmt::format("{:.0f}", row.range.hi * 2 + 2);
        const std::string kBad[] = {"",
                                    "nan",
                                    "-nan",
                                    "inf",
                                    "-inf",
                                    "1e99",
                                    "1e999",
                                    "-1e99",
                                    "1e",
                                    "12abc",
                                    "9223372036854775808",
                                    "-9223372036854775809",
                                    "18446744073709551616",
                                    "0x10",
                                    "1 ",
                                    " 1",
                                    "+1",
                                    "--1x",
                                    "1,000",
                                    "1_000",
                                    "e5",
                                    "--9",
                                    "1..2",
                                    word(),
                                    below,
                                    above};
        std::string text = kBad[pick((int)std::size(kBad))];
        bool fine = is_number_of<uint64_t>(row) && text == "9223372036854775808";  // a seed like any other
        return fine ? "" : text;
    }

    std::mt19937 random_{20240520};
};

}  // namespace

TEST_CASE("options: generated bad command lines all end in exit code 2 and name the option") {
    BadLines lines;
    for (int i = 0; i < 6000; i++) {
        BadLines::Line line = lines.next();
        std::string text;
        for (const std::string& arg : line.args) { text += " [" + arg + "]"; }
        Error error = error_of([&] { parse(line.args); });
        std::string message = error.what();
        CAPTURE(text);
        CAPTURE(message);
        REQUIRE(error.exit_code == kExitUsage);
        for (const std::string& part : line.parts) {
            CAPTURE(part);
            REQUIRE(contains(message, part));
        }
    }
}

TEST_CASE("options: every range ends where the table says") {
    auto takes = [](const Option& row, const std::string& value) {
        std::string token = std::string("--") + row.name + "=" + value;
        const char* argv[] = {"", token.c_str()};
        return CommandLine(kTable, 2, argv).objections.empty();
    };
    for (const Option& row : kOptions) {
        if (!is_number(row)) { continue; }
        CAPTURE(row.name);
        std::string lo = fmt::format("{:.17g}", row.range.lo), hi = fmt::format("{:.17g}", row.range.hi);
        if (is_number_of<uint64_t>(row)) { hi = "18446744073709551615"; }
        CHECK(takes(row, lo));
        CHECK(takes(row, hi));
        CHECK(takes(row, "-1") == row.range.or_minus_one);
        bool whole = !is_number_of<double>(row) && !is_number_of<uint64_t>(row);
        CHECK(!takes(
            row, whole ? fmt::format("{:.0f}", row.range.or_minus_one ? -2 : row.range.lo - 1) : "-1e-300"));
        CHECK(!takes(row, whole ? fmt::format("{:.0f}", row.range.hi + 1)
                                : fmt::format("{:.17g}", row.range.hi * (1 + 1e-7))));
        if (row.range.or_minus_one) { CHECK(!takes(row, "0")); }
    }
}

TEST_CASE("options: a slip of one letter in a longer name is always met with that name") {
    for (const Option& row : kOptions) {
        std::string name = row.name;
        if (name.size() < 8) { continue; }
        for (size_t at = 0; at + 1 < name.size(); at++) {
            std::string swapped = name, doubled = name;
            std::swap(swapped[at], swapped[at + 1]);
            doubled.insert(at, 1, name[at]);
            std::string cure = "Did you mean --" + name + "?";
            for (const std::string& typed : {swapped, doubled}) {
                if (typed == name) { continue; }
                check_error(error_of([&] { parse({"--" + typed}); }), kExitUsage, {cure, "--" + typed});
            }
        }
    }
}

TEST_CASE("options: no command line and no config file crashes the parser") {
    const Args kPieces = {"-",     "--",  "=",    "batch", "--lr", "-b",        "-lg",         "-y",   "1",
                          "-1",    "nan", "\"",   "'",     "#",    "\\",        "\n",          "[",    "]",
                          "\\u00", " ",   "\xff", "d12",   ".bin", "prompt = ", "batch = 4\n", "%s%n", "{}"};
    std::mt19937 random(7);
    auto piece = [&] { return kPieces[random() % kPieces.size()]; };
    int good = 0;
    for (int i = 0; i < 3000; i++) {
        Args args;
        for (int n = (int)(random() % 5); n > 0; n--) {
            args.push_back("");
            for (int m = (int)(random() % 4); m > 0; m--) { args.back() += piece(); }
        }
        std::string config;
        for (int n = (int)(random() % 12); n > 0; n--) { config += piece(); }
        Error first = error_of([&] { parse(args); });
        Error second = error_of([&] { parse_config(config); });
        REQUIRE((first.exit_code == kExitUsage || first.exit_code == kExitDone));
        REQUIRE((second.exit_code == kExitUsage || second.exit_code == kExitDone));
        good += (first.exit_code == kExitDone) + (second.exit_code == kExitDone);
    }
    CHECK(good > 100);
}

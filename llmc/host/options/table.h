// A table of options, each bound to the field that it sets: how the trainers, their sub-commands, the programs in data/ and
// the shootouts read a command line, check its values and write --help. Errors are Error(kExitUsage).
#pragma once
#include <charconv>
#include <concepts>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "llmc/host/options/choices.h"

namespace llmc {

constexpr double kMaxInt = 0x1p31 - 1;
constexpr double kMaxTokens = 1e15;  // a count of tokens; exact as a double, far from overflow in int64

[[noreturn]] void fail_usage(const std::string& message);

// of a number, both ends included
struct Range {
    double lo = 0, hi = 0;
    const char* unit = "";      // what is counted
    bool or_minus_one = false;  // -1 is allowed, too
    bool has(double x) const { return (x >= lo && x <= hi) || (or_minus_one && x == -1); }  // never nan
};

// what may be given; "" = nothing is said of it
struct Rules {
    Range range{};                // of a number
    const char* choices = "";     // the words allowed, with blanks between
    const char* numbered = "";    // words for which a short name takes their number, from 0
    const char* empty_word = "";  // the word that stands for ""
    const char* cpu_only = "";    // the only value that this program takes, as it computes on the CPU
    const char* rivals = "";      // the options that say the same in another way
    const char* needed = "";      // the options without which this one means nothing
    bool required = false, repeats = false, for_command_line = false, listed = false;  // listed: at commas
};

// A field that a text fills.
struct Field {
    enum Kind { kAction, kSwitch, kText, kWhole, kReal } kind = kAction;  // kAction: no field, as of --help
    // puts a text into it; returns what is wrong with it, "" = nothing
    std::function<std::string(const Rules&, const std::string&)> set = [](auto&, auto&) { return ""; };
    std::function<std::string()> get = [] { return ""; };  // "" = it cannot be told
    const char* choices = "";                              // as Rules'

    Field() = default;
    template <std::invocable<const std::string&> Read>
    Field(Read read) : kind(kText), set([=](const Rules&, auto& text) { return read(text), ""; }) {}
    template <typename T>
    Field(std::vector<T>* to) : Field((T*)nullptr) {  // one more of them
        set = [=](const Rules& r, auto& text) { return Field(&to->emplace_back()).set(r, text); };
        get = [] { return ""; };
    }
    Field(std::string* to) : kind(kText), get([=] { return *to; }) {
        set = [=](const Rules& r, auto& text) { return *to = text == r.empty_word ? "" : text, ""; };
    }
    template <HasWords E>
    Field(E* to) : kind(std::is_same_v<E, bool> ? kSwitch : kText), get([=] { return text_of(*to); }) {
        const std::vector<std::string> words = split_words(words_of(E{}));
        set = [=](const Rules&, auto& text) {
            return *to = (E)(std::ranges::find(words, text) - words.begin()), "";
        };
        choices = kind == kSwitch ? "true false" : words_of(E{});
    }
    template <typename T>
    requires(std::is_arithmetic_v<T> && !HasWords<T>) Field(T* to) : kind(std::integral<T> ? kWhole : kReal) {
        set = [=](const Rules& r, const std::string& text) {
            const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), *to);
            const bool number = end == text.data() + text.size() && code != std::errc::invalid_argument;
            if (!number) { return std::integral<T> ? " is not a whole number" : " is not a number"; }
            return code == std::errc() && r.range.has((double)*to) ? "" : " is out of range";
        };
        get = [=] {  // the fewest digits that give it back
            char text[32];
            return std::string(text, std::to_chars(text, text + sizeof(text), *to).ptr);
        };
    }
};

struct Option : Rules {
    std::vector<std::string> names;  // as they are typed: "-b", "--batch"
    std::string name;   // the first long one, without dashes, and the key in a config file; "" = none
    std::string value;  // what --help calls the value; "" = a switch without one
    std::string also;   // its names without dashes, and those that other programs give it: for "did you mean"
    Field field;
    std::string help, group;  // group: a title
    std::string initial;      // the value before any is set

    bool is_number() const { return field.kind >= Field::kWhole; }
    std::string allowed() const;     // "1 to 1,024 layers", "auto or window"; "" = any text
    std::string value_text() const;  // what its field holds; "" = nothing, or no value that can be given
    // Puts a text into the field, or throws; where = the option as typed, or the config file's line. Returns it, ~ expanded.
    std::string assign(const std::string& typed, const std::string& where) const;
};

// an option and the value that it was given; where: as Option::assign's
struct Setting {
    const Option* option;
    std::string text, where;
};
bool has(const std::vector<Setting>& settings, const Option* o);

struct Table {
    Table(const std::string& program, const std::string& about = "",
          const std::string& end = "");  // has --help
    // spelling: "-b --batch N batch-size", the names, what --help calls the value, and names that other programs give it; without
    // dashes it is an argument that needs no name. "Data: -b ...": the title of those that begin with this one.
    void add(const std::string& spelling, Field field, Rules rules, const char* help);
    void add(const std::string& spelling, Field field, const char* help) { add(spelling, field, {}, help); }

    const Option* find(const std::string& name) const;  // by a name as it is typed; null if there is none
    // the option that was meant by a name of about this kind; null if none is close
    const Option* nearest(const std::string& typed) const;
    std::string help() const;  // every option with default, range and unit; lines of at most 100 columns
    // what is missing, and what is said in two ways: each behind the end of a line
    std::string objections(const std::vector<Setting>& settings) const;
    [[noreturn]] void fail(const std::string& objections) const;
    // Puts a command line into the fields and returns it; nothing if it prints --help or --version. Throws all that is wrong.
    std::optional<std::vector<Setting>> parse(int argc, const char* const* argv, int first = 1) const;

    std::vector<Option> options;  // in the order of --help
    std::string program;          // as it is called: "./train_gpt2 generate"
    std::string about, end;       // what --help says before and behind the options; PROGRAM is `program`
    std::string version;          // what --version prints; "" = there is none
};

// A config file's text, which is TOML, put into the fields of the table, checked as strictly as a command line.
std::vector<Setting> read_config(std::string text, const std::string& file, const Table& table);
// A text as a config file takes it: JSON's strings are strings of TOML, too, but for one character; what is not UTF-8 becomes
// a list of bytes.
std::string escaped(const std::string& text);

}  // namespace llmc

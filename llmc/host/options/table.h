// A table of options, each bound to the field that it sets: how the trainers, their sub-commands, the programs in data/ and
// the shootouts read a command line, check its values and write --help. Errors are Error(kExitUsage).
#pragma once
#include <algorithm>
#include <concepts>
#include <cstdint>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "llmc/host/options/choices.h"

namespace llmc {

constexpr double kMaxInt = 0x1p31 - 1;
constexpr double kMaxTokens = 1e15;  // a count of tokens; exact as a double, far from overflow in int64

[[noreturn]] void fail_usage(const std::string& message);

// A field that a text fills: how it is set, or an error thrown; and what it says, "" if that cannot be told.
struct TextField {
    std::function<void(const std::string&)> set;
    std::function<std::string()> get = [] { return std::string(); };
    std::string choices = "";  // as Rules'

    TextField(std::string* to) : set([=](auto& text) { *to = text; }), get([=] { return *to; }) {}
    TextField(std::vector<std::string>* to) : set([=](auto& text) { to->push_back(text); }) {}
    template <std::invocable<const std::string&> Read>
    TextField(Read read) : set(read) {}
    template <HasWords E>
    TextField(E* to) : get([=] { return text_of(*to); }) {
        const std::vector<std::string> words = split_words(words_of(E{}));
        set = [=](auto& text) { *to = (E)(std::ranges::find(words, text) - words.begin()); };
        choices = std::is_same_v<E, bool> ? "true false" : words_of(E{});
    }
};
using Number = std::variant<int*, int64_t*, uint64_t*, double*>;
using Field =
    std::variant<std::monostate, TextField, Number>;  // the first: an option that acts by itself, as --help

// of a number, both ends included
struct Range {
    double lo = 0, hi = 0;
    const char* unit = "";      // what is counted
    bool or_minus_one = false;  // -1 is allowed, too
};

// what may be given; "" = nothing is said of it
struct Rules {
    Range range{};                // of a number
    std::string choices = "";     // the words allowed, with blanks between
    std::string numbered = "";    // words for which a short name takes their number, from 0
    std::string empty_word = "";  // the word that stands for ""
    std::string cpu_only = "";    // the only value that this program takes, as it computes on the CPU
    std::string rivals = "";      // the options that say the same in another way
    std::string needed = "";      // the options that this one goes with
    bool required = false, repeats = false, for_command_line = false;
};

struct Option : Rules {
    std::vector<std::string> names;  // as they are typed: "-b", "--batch"
    std::string name;    // the first long one, without dashes, and the key in a config file; "" = none
    std::string letter;  // the short one before it, which --help shows; others are llm.c's
    std::string value;   // what --help calls the value; "" = a switch without one
    std::string also;    // names that other programs give it: for "did you mean"
    Field field;
    std::string help, group;  // group: the title of those that begin with this one
    std::string initial;      // the value before any is set
};

inline bool acts_by_itself(const Option& o) { return std::holds_alternative<std::monostate>(o.field); }
inline bool is_number(const Option& o) { return std::holds_alternative<Number>(o.field); }
inline bool is_switch(const Option& o) { return o.value.empty(); }
inline bool is_text(const Option& o) { return !is_number(o) && !is_switch(o); }
std::string allowed(const Option& o);     // "1 to 1,024 layers", "auto or window"; "" = any text
std::string expected(const Option& o);    // the same, or what --help calls the value
std::string value_text(const Option& o);  // what its field holds; "" = nothing, or no value that can be given

struct Table {
    Table() = default;
    Table(const std::string& program, const std::string& about, const std::string& end);  // has --help
    // spelling: "-b --batch N batch-size", the names, what --help calls the value, and names that other programs give it; without
    // dashes it is an argument that needs no name.
    void add(const std::string& spelling, Field field, Rules rules, const char* help);
    void add(const std::string& spelling, Field field, const char* help) { add(spelling, field, {}, help); }

    const Option* find(const std::string& name) const;  // by a name as it is typed; null if there is none
    // the option that was meant by a name of about this kind; null if none is close
    const Option* nearest(const std::string& typed) const;
    // Puts a text into the option's field, or throws; where = the option as it was typed, or the config file's line. Returns
    // the text, with a ~ expanded.
    std::string assign(const Option& o, const std::string& typed, const std::string& where) const;
    std::string help() const;  // every option with default, range and unit; lines of at most 100 columns

    std::vector<Option> options;  // in the order of --help
    std::string program;          // as it is called: "./train_gpt2 generate"
    std::string about, end;       // what --help says before and behind the options; PROGRAM is `program`
    std::string commands;         // what may stand in place of the options
    bool strict = false;          // a value is not empty, and looks like no option
    std::string group{};          // the title of those that are added next
};

// an option and the value that it was given; where: as Table::assign's
struct Setting {
    const Option* option;
    std::string text, where;
};
bool has(const std::vector<Setting>& settings, const Option* o);
bool are_rivals(const Option& a, const Option& b);  // they say the same in two ways
std::string rivalries(
    const std::vector<Setting>& settings);  // a line on each two that do, behind the end of one

// A config file's text, which is TOML, put into the fields of the table, checked as strictly as a command line.
// file: its name, for errors.
std::vector<Setting> read_config(std::string text, const std::string& file, const Table& table);
// A text as a config file takes it: JSON's strings are strings of TOML, too, but for one character; what is no UTF-8 becomes a
// list of bytes.
std::string escaped(const std::string& text);

// What a command line gives, put into the fields. All that is wrong with it is an objection, behind the end of a line.
class CommandLine {
public:
    CommandLine(const Table& table, int argc, const char* const* argv, int first = 1);

    std::string objections;
    std::string action;  // the option that acts by itself: what to do instead of all else
    std::vector<Setting> settings;

private:
    void read(const std::string& token);
    void read_argument(const std::string& token);
    std::string next_value(const Option& o, const std::string& where);
    bool looks_like_option(const std::string& token) const;
    [[noreturn]] void fail_unknown(const std::string& typed) const;

    const Table& table_;
    std::vector<std::string> tokens_;
    size_t at_ = 0;  // the next one to read
};

// For a program that has nothing to look at before: prints --help and returns false, or throws the first objection behind
// `prefix`.
bool parse_table(const Table& table, int argc, const char* const* argv, int first = 1,
                 const char* prefix = "");

}  // namespace llmc

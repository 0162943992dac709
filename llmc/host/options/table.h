// A table of options, each bound to the field that it sets: how the trainers, their sub-commands, the programs in data/ and
// the shootouts read a command line, check its values and write --help. Errors are Error(kExitUsage).
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "llmc/host/options/choices.h"

namespace llmc {

constexpr double kMaxInt = 0x1p31 - 1;
constexpr double kMaxTokens = 1e15;  // a count of tokens; exact as a double, far from overflow in int64

std::vector<std::string> split_words(const std::string& text);  // what blanks separate
[[noreturn]] void fail_usage(const std::string& message);

// For a value that is none of the other fields: reads it, or throws.
using ReadValue = std::function<void(const std::string& text)>;
// a field that is such a setting, by the number of its word
struct OneOf {
    std::function<void(size_t)> set;
    std::function<size_t()> get;
    const char* words;
};

using Field = std::variant<std::monostate, std::string*, bool*, int*, int64_t*, uint64_t*, double*,
                           std::vector<std::string>*, ReadValue, OneOf>;

// of a number, both ends included
struct Range {
    double lo = 0, hi = 0;
    const char* unit = "";      // what is counted
    bool or_minus_one = false;  // -1 is allowed, too
};

struct Option {
    std::vector<std::string> names;  // as they are typed: "-b", "--batch"
    std::string name;    // the first long one, without dashes, and the key in a config file; "" = none
    std::string letter;  // the short one before it, which --help shows; others are llm.c's
    std::string value;   // what --help calls the value; "" = a switch without one
    Field field;         // monostate: acts by itself, as --help
    Range range;
    std::string also;            // names that other programs give it: for "did you mean"
    std::string help, group;     // group: the title of those that begin with this one
    std::string initial, note;   // the value before any is set; what --help says instead of it and the range
    std::string choices;         // the words allowed, with blanks between; "" = any
    std::string numbered;        // words for which a short name takes their number, from 0
    std::string empty_word;      // the word that stands for ""
    std::string cpu_only;        // the only value that the CPU program takes; "" = any
    std::string rivals, needed;  // the options that say the same in another way; the one that this one needs
    bool required = false, repeats = false, for_command_line = false;

    Option& one_of(const char* text) { return with(choices, text); }
    Option& if_empty(const char* text) { return with(empty_word, text); }
    Option& on_cpu(const char* text) { return with(cpu_only, text); }
    Option& by_number(const char* text) { return with(numbered, text); }
    Option& not_with(const char* text) { return with(rivals, text); }
    Option& needs(const char* text) { return with(needed, text); }
    Option& with(std::string& property, const char* text) {
        property = text;
        return *this;
    }
};

template <typename T>
bool holds(const Option& o) {
    return std::holds_alternative<T>(o.field);
}
inline bool is_text(const Option& o) { return holds<std::string*>(o) || holds<OneOf>(o); }
inline bool acts_by_itself(const Option& o) { return holds<std::monostate>(o); }
inline bool is_switch(const Option& o) { return o.value.empty(); }
inline bool is_number(const Option& o) {
    return holds<int*>(o) || holds<int64_t*>(o) || holds<uint64_t*>(o) || holds<double*>(o);
}
std::string allowed(const Option& o);     // "1 to 1,024 layers", "auto or window"; "" = any text
std::string value_text(const Option& o);  // what its field holds; "" = nothing, or no value that can be given
std::string at_home(const Option& o, const std::string& typed);  // with a ~ expanded, but in texts and names

class Table {
public:
    Table() = default;
    Table(const std::string& program, const std::string& about, const std::string& end);  // has --help
    // spelling: "-b --batch N batch-size", the names, what --help calls the value, and names that other programs give it; without
    // dashes it is an argument that needs no name.
    Option& add(const std::string& spelling, Field field, const char* help);
    Option& add(const std::string& spelling, Field field, Range range, const char* help);
    template <Setting E>
    Option& add(const std::string& spelling, E* field, const char* help) {
        const auto set = [field](size_t i) { *field = (E)i; };
        const auto get = [field] { return (size_t)*field; };
        return add(spelling, OneOf{set, get, words_of(E{})}, help).one_of(words_of(E{}));
    }
    void group(const char* title) { group_ = title; }  // of those that are added next

    const Option* find(const std::string& name) const;  // by a name as it is typed; null if there is none
    // the option that was meant by a name of about this kind; null if none is close
    const Option* nearest(const std::string& typed) const;
    // Puts text into the option's field, or throws; where = the option as it was typed, or the config file's line.
    void assign(const Option& o, const std::string& text, const std::string& where) const;
    std::string help() const;  // every option with default, range and unit; lines of at most 100 columns

    std::deque<Option> options;  // in the order of --help
    std::string program;         // as it is called: "./train_gpt2 generate"
    std::string about, end;      // what --help says before and behind the options; PROGRAM is `program`
    std::string commands;        // what may stand in place of the options
    bool strict = false;         // a value is not empty, and looks like no option

private:
    std::string group_;
};

// What a command line gives, put into the fields. All that is wrong with it is an objection.
class CommandLine {
public:
    CommandLine(const Table& table, int argc, const char* const* argv, int first = 1);

    std::vector<std::string> objections;
    bool only_unnamed = true;     // are they to options without a long name alone?
    std::string action;           // the option that acts by itself: what to do instead of all else
    std::set<std::string> given;  // options by their names
    bool short_names = false;     // were any used?

private:
    void read(const std::string& token);
    void read_argument(const std::string& token);
    void read_value(const Option& o, const std::string& where, std::string text);
    void skip_values();
    void check_together();
    std::string next_value(const Option& o, const std::string& where);
    bool looks_like_option(const std::string& token) const;
    [[noreturn]] void fail_unknown(const std::string& typed) const;

    const Table& table_;
    std::vector<std::string> tokens_;
    size_t at_ = 0;  // the next one to read
    std::string before_;
    bool options_ended_ = false;
};

// For a program that has nothing to look at before: prints --help and returns false, or throws the first objection behind
// `prefix`.
bool parse_table(const Table& table, int argc, const char* const* argv, int first = 1,
                 const char* prefix = "");

}  // namespace llmc

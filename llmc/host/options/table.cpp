// Tables of options: see table.h.
#include "llmc/host/options/table.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <iterator>
#include <limits>
#include <sstream>

#include "llmc/host/base/error.h"
#include "llmc/host/base/text.h"
#include "llmc/host/options/typed_text.h"

namespace llmc {
namespace {

bool one_of(const std::vector<std::string>& list, const std::string& text) {
    return std::find(list.begin(), list.end(), text) != list.end();
}

// ---- numbers

// the end of a range: "2^31 - 1", "1,024"
std::string bound_text(double value) {
    if (value == kMaxInt) { return "2^31 - 1"; }
    if (value == kMaxTokens) { return "10^15"; }
    if (value == 0x1p64) { return "2^64 - 1"; }
    return value < 10000 ? shortest(value) : count_text((int64_t)value);
}

bool in_range(const Range& range, double value) {  // nan is in none
    return (value >= range.lo && value <= range.hi) || (range.or_minus_one && value == -1);
}

template <typename T>
void read_number(const Option& o, const std::string& text, const std::string& where, T* value) {
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), *value);
    const bool negative = std::is_unsigned_v<T> && text.size() > 1 && text[0] == '-' &&
                          text.find_first_not_of("0123456789", 1) == std::string::npos;
    const bool number = negative || (end == text.data() + text.size() && code != std::errc::invalid_argument);
    if (number && code == std::errc() && in_range(o.range, (double)*value)) { return; }
    const std::string kind = std::is_same_v<T, double> ? "number" : "whole number";
    fail_usage(where + ": " + in_quotes(text) + (number ? " is out of range" : " is not a " + kind) +
               ". Expected a " + kind + ", " + allowed(o) + ".");
}

// ---- names that are like others

// edits from a to b: a letter added, left out or changed, or two neighbours swapped, count 1 each
int distance(const std::string& a, const std::string& b) {
    std::vector<std::vector<int>> d(a.size() + 1, std::vector<int>(b.size() + 1));
    for (size_t i = 0; i <= a.size(); i++) {
        for (size_t j = 0; j <= b.size(); j++) {
            if (i == 0 || j == 0) {
                d[i][j] = (int)(i + j);
                continue;
            }
            const int change = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, change});
            const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            if (swapped) { d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1); }
        }
    }
    return d[a.size()][b.size()];
}

// Edits from what was typed to a name, if it is close: one letter may differ, or a third of them. Else a number above all.
int edits_if_close(const std::string& typed, const std::string& name) {
    constexpr int kFar = std::numeric_limits<int>::max();
    const auto [shorter, longer] = std::minmax({typed.size(), name.size()});
    if (longer - shorter > std::max<size_t>(1, longer / 3)) { return kFar; }  // edits at least
    const int d = distance(typed, name);
    const bool slip = d == 1 && shorter > 1;
    const bool close = slip || 3 * d <= (int)longer;
    return close ? d : kFar;
}

// ---- --help

constexpr char kHardBlank = '\x1f';  // in a help text: no line ends here
constexpr size_t kHelpColumns = 100, kHelpIndent = 31;

// Lines of at most kHelpColumns, all but the first indented; a line of text that fits stays as it is.
std::string wrapped(const std::string& text) {
    constexpr size_t kWidth = kHelpColumns - kHelpIndent;
    std::string out;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        while (!line.empty()) {
            size_t cut = line.size() <= kWidth ? line.size() : line.rfind(' ', kWidth);
            if (cut == std::string::npos || cut == 0) { cut = line.size(); }
            out += (out.empty() ? "" : "\n" + std::string(kHelpIndent, ' ')) + line.substr(0, cut);
            line.erase(0, cut + 1);
        }
    }
    std::replace(out.begin(), out.end(), kHardBlank, ' ');
    return out + "\n";
}

// help, then what may be given
std::string description(const Option& o) {
    std::string text = o.required && !o.names.empty() ? "required" : o.note;
    if (text.empty() && !is_switch(o)) {
        const std::string initial = o.initial.empty() ? o.empty_word : o.initial;
        text = initial.empty() ? "" : "default " + initial;
        if (!allowed(o).empty()) { text += (text.empty() ? "" : "; ") + allowed(o); }
    }
    std::replace(text.begin(), text.end(), ' ', kHardBlank);
    const bool lines = o.help.find('\n') != std::string::npos;
    return text.empty() ? o.help : o.help + (lines ? "\n[" : " [") + text + "]";
}

std::string option_help(const Option& o) {
    std::string name = o.names.empty() ? "  " : o.letter.empty() ? "      " : "  " + o.letter + ", ";
    for (const std::string& each : o.names) {
        if (each.starts_with("--")) { name += (name.ends_with(' ') ? "" : ", ") + each; }
    }
    name += (o.names.empty() ? "" : " ") + o.value;
    std::string gap(name.size() < kHelpIndent ? kHelpIndent - name.size() : 0, ' ');
    if (gap.empty()) { gap = "\n" + std::string(kHelpIndent, ' '); }
    return name + gap + wrapped(description(o));
}

}  // namespace

std::vector<std::string> split_words(const std::string& text) {
    std::istringstream in(text);
    return {std::istream_iterator<std::string>(in), {}};
}

std::string word_at(const char* words, size_t i) { return split_words(words)[i]; }

void fail_usage(const std::string& message) { throw Error(kExitUsage, message); }

// ---- values

std::string allowed(const Option& o) {
    if (is_number(o)) {
        const std::string range = bound_text(o.range.lo) + " to " + bound_text(o.range.hi);
        return (o.range.or_minus_one ? "-1 or " : "") + range + (*o.range.unit ? " " : "") + o.range.unit;
    }
    const auto choices = split_words(holds<bool*>(o) ? "true false" : o.choices);
    std::string text;
    for (size_t i = 0; i < choices.size(); i++) {
        text += (i == 0 ? "" : i + 1 < choices.size() ? ", " : " or ") + choices[i];
    }
    return text;
}

std::string value_text(const Option& o) {
    return std::visit(
        [&](const auto& field) -> std::string {
            using T = std::remove_cvref_t<decltype(field)>;
            if constexpr (std::is_same_v<T, std::string*>) {
                return field->empty() ? o.empty_word : *field;
            } else if constexpr (std::is_same_v<T, OneOf>) {
                return word_at(field.words, field.get());
            } else if constexpr (std::is_same_v<T, bool*>) {
                return *field ? "true" : "false";
            } else if constexpr (std::is_same_v<T, double*>) {
                return in_range(o.range, *field) ? shortest(*field) : "";
            } else if constexpr (std::is_pointer_v<T> && !std::is_same_v<T, std::vector<std::string>*>) {
                // layers and the like are out of their range until they are given
                return in_range(o.range, (double)*field) ? std::to_string(*field) : "";
            } else {
                return "";
            }
        },
        o.field);
}

std::string at_home(const Option& o, const std::string& typed) {
    return o.value == "TEXT" || o.value == "NAME" ? typed : at_home(typed);
}

void Table::assign(const Option& o, const std::string& text, const std::string& where) const {
    if (const auto* read = std::get_if<ReadValue>(&o.field)) { return (*read)(text); }
    const bool any_text = o.choices.empty() && !is_number(o) && !strict && !holds<bool*>(o);
    const std::string expected = allowed(o).empty() ? o.value : allowed(o);
    if (text.empty() && !any_text) { fail_usage(where + ": the value is empty. Expected " + expected + "."); }
    const auto choices = split_words(holds<bool*>(o) ? "true false" : o.choices);
    if (!choices.empty() && !one_of(choices, text)) {
        fail_usage(where + ": " + in_quotes(text) + " is not known. Expected " + expected + ".");
    }
    std::visit(
        [&](const auto& field) {
            using T = std::remove_cvref_t<decltype(field)>;
            if constexpr (std::is_same_v<T, std::string*>) {
                *field = text == o.empty_word ? "" : text;
            } else if constexpr (std::is_same_v<T, bool*>) {
                *field = text == "true";
            } else if constexpr (std::is_same_v<T, std::vector<std::string>*>) {
                field->push_back(text);
            } else if constexpr (std::is_same_v<T, OneOf>) {
                const auto all = split_words(field.words);
                field.set((size_t)(std::ranges::find(all, text) - all.begin()));
            } else if constexpr (std::is_pointer_v<T>) {
                read_number(o, text, where, field);
            }
        },
        o.field);
}

// ---- the table

Table::Table(const std::string& program, const std::string& about, const std::string& end)
    : program(program), about(about), end(end), group_("Options") {
    add("-h --help", {}, "print this, and stop");
}

Option& Table::add(const std::string& spelling, Field field, Range range, const char* help) {
    Option o;
    o.field = std::move(field);
    o.range = range;
    o.help = help;
    o.group.swap(group_);
    for (const std::string& word : split_words(spelling)) {
        if (!word.starts_with('-')) {
            const bool is_value = o.value.empty() && !holds<bool*>(o) && !acts_by_itself(o);
            (is_value ? o.value : o.also) += is_value ? word : " " + word;
            continue;
        }
        const bool is_long = word.starts_with("--");
        if (o.name.empty()) { (is_long ? o.name : o.letter) = is_long ? word.substr(2) : word; }
        o.names.push_back(word);
    }
    o.initial = value_text(o);
    o.repeats = holds<std::vector<std::string>*>(o);
    return options.emplace_back(std::move(o));
}

Option& Table::add(const std::string& spelling, Field field, const char* help) {
    return add(spelling, std::move(field), Range{}, help);
}

const Option* Table::find(const std::string& name) const {
    const auto at =
        std::ranges::find_if(options, [&](const Option& o) { return llmc::one_of(o.names, name); });
    return at == options.end() ? nullptr : &*at;
}

const Option* Table::nearest(const std::string& typed) const {
    const bool one_dash = typed.starts_with("-") && !typed.starts_with("--");
    std::string bare = typed.substr(std::min(typed.find_first_not_of('-'), typed.size()), 60);
    for (char& c : bare) { c = c == '_' ? '-' : (char)std::tolower((unsigned char)c); }
    const Option* best = nullptr;
    int least = std::numeric_limits<int>::max();
    for (const Option& o : options) {
        if (o.name.empty()) { continue; }
        std::vector<std::string> all = split_words(o.also);
        if (one_dash && !o.letter.empty()) { all.push_back(o.letter.substr(1)); }
        for (const std::string& name : o.names) {
            if (name.starts_with("--")) { all.push_back(name.substr(2)); }
        }
        for (const std::string& name : all) {
            const int edits = edits_if_close(bare, name);
            if (edits < least) { best = &o; }
            least = std::min(least, edits);
        }
    }
    return best;
}

std::string Table::help() const {
    std::string text = about + "\n\n" + "Usage: PROGRAM";
    std::string arguments;
    for (const Option& o : options) {
        if (!o.names.empty()) { continue; }
        text += " " + o.value + (o.repeats ? "..." : "");
        arguments += "\n" + option_help(o);
    }
    text += " [--option VALUE]...    (--option=VALUE and -o VALUE work too)\n" + arguments;
    for (const Option& o : options) {
        if (!o.group.empty()) { text += "\n" + o.group + ":\n"; }
        if (!o.name.empty()) { text += option_help(o); }
    }
    text += "\n" + end;
    for (size_t at = 0; (at = text.find("PROGRAM", at)) != text.npos; at += program.size()) {
        text.replace(at, 7, program);
    }
    return text;
}

// ---- the command line

namespace {

// Where an option should stand, is this one?
bool begins_option(const std::string& token) { return token.size() >= 2 && token[0] == '-' && token != "--"; }

}  // namespace

CommandLine::CommandLine(const Table& table, int argc, const char* const* argv, int first)
    : table_(table), tokens_(argv + std::min(first, argc), argv + argc) {
    while (at_ < tokens_.size() && action.empty()) {
        const std::string token = tokens_[at_++];
        try {
            if (token == "--" && !table_.strict && !options_ended_) {
                options_ended_ = true;
            } else if (begins_option(token) && !options_ended_) {
                read(token);
            } else {
                read_argument(token);
            }
        } catch (const Error& e) {  // to go on with the next option: all that is wrong is said at once
            objections.push_back(e.what());
            const Option* o = table_.find(token);
            only_unnamed = only_unnamed && o != nullptr && o->name.empty();
            skip_values();
        }
        before_ = token.substr(0, token.find('='));
    }
    if (action.empty()) { check_together(); }
}

void CommandLine::skip_values() {
    while (at_ < tokens_.size() && !looks_like_option(tokens_[at_]) &&
           !(begins_option(tokens_[at_]) && std::isalpha((unsigned char)tokens_[at_][1]))) {
        at_++;
    }
}

// Where a value should stand, is this an option? "-1", "-inf" and "-- a text" are not.
bool CommandLine::looks_like_option(const std::string& token) const {
    const std::string name = token.substr(0, token.find('='));
    const bool is_long = token == "--" || (name.size() > 2 && name.starts_with("--") &&
                                           std::all_of(name.begin(), name.end(), [](unsigned char c) {
                                               return std::isalnum(c) || c == '-' || c == '_';
                                           }));
    return is_long || table_.find(token) != nullptr;
}

void CommandLine::read_argument(const std::string& token) {
    for (const Option& o : table_.options) {
        if (o.names.empty() && (o.repeats || !given.contains(o.value))) {
            given.insert(o.value);
            return table_.assign(o, at_home(o, token), o.value);
        }
    }
    const std::string place = !before_.empty()          ? " after " + before_
                              : table_.commands.empty() ? ""
                                                        : ". Commands are " + table_.commands;
    fail_usage(
        "unexpected argument " + in_quotes(token) + place +
        ". Every value follows the name of its option, and a pattern (*) is put in quotes. See --help.");
}

void CommandLine::fail_unknown(const std::string& typed) const {
    const size_t equals = std::min(typed.find('='), typed.size());
    const std::string name = typed.substr(0, equals);
    const Option* nearest = table_.nearest(name);
    std::string meant = nearest != nullptr ? "--" + nearest->name : "";
    if (typed[1] != '-') {  // -b4, -b=4 and -lg=5 are written with a blank
        const Option* o = table_.find(typed.substr(0, 2));
        const bool number = std::string(".-0123456789").find(name[2]) != std::string::npos;
        if (o != nullptr && !acts_by_itself(*o) && number) {
            meant = typed.substr(0, 2) + " " + name.substr(2);
        }
        if (table_.find(name) != nullptr) { meant = name + " " + typed.substr(equals + 1); }
    }
    if (!meant.empty()) { meant = " Did you mean " + meant + "?"; }
    fail_usage("unknown option " + in_quotes(typed) + "." + meant + " See --help.");
}

// the token behind an option
std::string CommandLine::next_value(const Option& o, const std::string& where) {
    if (at_ == tokens_.size()) { fail_usage(where + " needs a value, and nothing follows. See --help."); }
    if (table_.strict && looks_like_option(tokens_[at_])) {
        fail_usage(where + " needs a value, but the option " + in_quotes(tokens_[at_]) + " follows." +
                   (o.name.empty() ? "" : " (If that is the value: --" + o.name + "=VALUE.)"));
    }
    return tokens_[at_++];
}

void CommandLine::read(const std::string& token) {
    const size_t equals = token.starts_with("--") ? token.find('=') : std::string::npos;
    const std::string typed = token.substr(0, equals);
    const bool has_value = equals != std::string::npos, is_long = typed.starts_with("--");
    const Option* o = table_.find(typed);
    if (o == nullptr) { fail_unknown(token); }
    // llm.c's -h has a value
    const Option* other = acts_by_itself(*o) && at_ < tokens_.size() && !looks_like_option(tokens_[at_])
                              ? table_.find(typed + "=")
                              : nullptr;
    if (other != nullptr) { o = other; }
    const std::string where = is_long || o->name.empty() ? typed : typed + " (--" + o->name + ")";
    short_names = short_names || (!is_long && !acts_by_itself(*o));
    if (acts_by_itself(*o)) {
        if (has_value) { fail_usage(where + " takes no value."); }
        action = o->name;
    } else {
        const bool alone = is_switch(*o) && (is_long || o->numbered.empty());
        read_value(*o, where, has_value ? token.substr(equals + 1) : alone ? "true" : next_value(*o, where));
    }
}

void CommandLine::read_value(const Option& o, const std::string& where, std::string text) {
    const bool first = given.insert(o.name.empty() ? o.names[0] : o.name).second;
    if (!first && !o.repeats) { fail_usage(where + " is given twice. Give it once."); }
    const auto meanings = split_words(o.numbered);
    if (!where.starts_with("--") && !meanings.empty()) {
        std::string expected;
        size_t i = 0;
        for (; i < meanings.size() && text != std::to_string(i); i++) {
            const bool last = i + 1 == meanings.size();
            expected += fmt::format("{}{} ({})", i == 0 ? "" : last ? " or " : ", ", i, meanings[i]);
        }
        if (i == meanings.size()) {
            fail_usage(where + ": " + in_quotes(text) + " is not known. Expected " + expected + ".");
        }
        text = meanings[i];
    }
    table_.assign(o, at_home(o, text), where);
}

void CommandLine::check_together() {
    const auto object = [&](const std::string& text) {
        objections.push_back(text);
        only_unnamed = false;
    };
    for (const Option& o : table_.options) {
        const std::string name = o.names.empty() ? o.value : "--" + o.name;
        const bool has = given.contains(o.names.empty() ? o.value : o.name);
        if (o.required && !has) { object(name + " is required: " + o.help + "."); }
        if (has && !o.needed.empty() && !given.contains(o.needed)) {
            object(name + " goes with --" + o.needed + " only.");
        }
        for (const std::string& rival : split_words(o.rivals)) {
            if (!has || !given.contains(rival)) { continue; }
            object("--" + rival + " and " + name + ": give one or the other.");
        }
    }
}

bool parse_table(const Table& table, int argc, const char* const* argv, int first, const char* prefix) {
    const CommandLine line(table, argc, argv, first);
    if (!line.objections.empty()) {
        std::string text = line.objections.front();
        if (const size_t see = text.rfind(" See --help."); see != text.npos) { text.erase(see); }
        if (!text.ends_with('.') && !text.ends_with('?')) { text += "."; }
        fail_usage(prefix + text + " See " + table.program + " --help.");
    }
    if (line.action.empty()) { return true; }
    std::fputs(table.help().c_str(), stdout);
    require_printed();
    return false;
}

}  // namespace llmc

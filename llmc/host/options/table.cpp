// Tables of options: see table.h.
#include "llmc/host/options/table.h"

#include <charconv>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "llmc/host/base/error.h"
#include "llmc/host/base/text.h"
#include "llmc/host/files/json.h"
#include "llmc/host/options/typed_text.h"

namespace llmc {
namespace {

// "a, b or c"
std::string alternatives(const std::vector<std::string>& all) {
    std::string text;
    for (size_t i = 0; i < all.size(); i++) {
        text += (i == 0 ? "" : i + 1 < all.size() ? ", " : " or ") + all[i];
    }
    return text;
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

// ---- names that are like others

// edits from a to b: a letter added, left out or changed, or two neighbours swapped, count 1 each
size_t distance(const std::string& a, const std::string& b) {
    std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
    for (size_t i = 0; i <= a.size(); i++) {
        for (size_t j = 0; j <= b.size(); j++) {
            d[i][j] = i + j;
            if (i == 0 || j == 0) { continue; }
            const size_t change = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, change});
            const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            if (swapped) { d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1); }
        }
    }
    return d[a.size()][b.size()];
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
    std::ranges::replace(out, kHardBlank, ' ');
    return out + "\n";
}

// names, help, and what may be given
std::string option_help(const Option& o) {
    std::string name = o.names.empty() ? "  " : o.letter.empty() ? "      " : "  " + o.letter + ", ";
    for (const std::string& each : o.names) {
        if (each.starts_with("--")) { name += (name.ends_with(' ') ? "" : ", ") + each; }
    }
    name += (o.names.empty() ? "" : " ") + o.value;
    const bool fits = name.size() < kHelpIndent, any = is_switch(o) || allowed(o).empty();
    name += (fits ? "" : "\n") + std::string(kHelpIndent - (fits ? name.size() : 0), ' ');
    std::string given = o.required && !o.names.empty() ? "required" : "";
    if (!o.cpu_only.empty()) {
        given =
            any ? "in train_gpt2cu only" : "only " + o.cpu_only + " here; " + allowed(o) + " in train_gpt2cu";
    } else if (given.empty() && !is_switch(o)) {
        given = (o.initial.empty() ? "" : "default " + o.initial) + (o.initial.empty() || any ? "" : "; ") +
                allowed(o);
    }
    std::ranges::replace(given, ' ', kHardBlank);
    const bool lines = o.help.find('\n') != std::string::npos;
    return name + wrapped(o.help + (given.empty() ? "" : (lines ? "\n[" : " [") + given + "]"));
}

}  // namespace

std::vector<std::string> split_words(const std::string& text) {
    std::istringstream in(text);
    return {std::istream_iterator<std::string>(in), {}};
}

bool among(const std::string& words, const std::string& word) {
    const std::vector<std::string> all = split_words(words);
    return std::ranges::find(all, word) != all.end();
}

void fail_usage(const std::string& message) { throw Error(kExitUsage, message); }

// ---- values

std::string allowed(const Option& o) {
    if (!is_number(o)) { return alternatives(split_words(o.choices)); }
    const std::string range = bound_text(o.range.lo) + " to " + bound_text(o.range.hi);
    return (o.range.or_minus_one ? "-1 or " : "") + range + (*o.range.unit ? " " : "") + o.range.unit;
}

std::string expected(const Option& o) { return allowed(o).empty() ? o.value : allowed(o); }

std::string value_text(const Option& o) {
    if (const auto* words = std::get_if<TextField>(&o.field)) {
        const std::string text = words->get();
        return text.empty() ? o.empty_word : text;
    }
    // layers and the like are out of their range until they are given
    const auto text = [&](auto* value) { return in_range(o.range, (double)*value) ? shortest(*value) : ""; };
    return is_number(o) ? std::visit(text, std::get<Number>(o.field)) : "";
}

std::string Table::assign(const Option& o, const std::string& typed, const std::string& where) const {
    const std::string text = among("TEXT NAME", o.value) ? typed : at_home(typed);
    if (text.empty() && (strict || !allowed(o).empty())) {
        fail_usage(where + ": the value is empty. Expected " + expected(o) + ".");
    }
    const auto read_number = [&]<typename T>(T* value) {
        const bool minus = std::is_unsigned_v<T> && text.starts_with('-');
        const auto [end, code] = std::from_chars(text.data() + minus, text.data() + text.size(), *value);
        const bool known = end == text.data() + text.size() && code != std::errc::invalid_argument;
        if (known && !minus && code == std::errc() && in_range(o.range, (double)*value)) { return text; }
        const std::string kind = std::is_same_v<T, double> ? "number" : "whole number";
        fail_usage(where + ": " + in_quotes(text) + (known ? " is out of range" : " is not a " + kind) +
                   ". Expected a " + kind + ", " + allowed(o) + ".");
    };
    if (is_number(o)) { return std::visit(read_number, std::get<Number>(o.field)); }
    if (!o.choices.empty() && !among(o.choices, text)) {
        fail_usage(where + ": " + in_quotes(text) + " is not known. Expected " + expected(o) + ".");
    }
    std::get<TextField>(o.field).set(text == o.empty_word ? "" : text);
    return text;
}

// ---- the table

Table::Table(const std::string& program, const std::string& about, const std::string& end)
    : program(program), about(about), end(end), group("Options") {
    add("-h --help", {}, "print this, and stop");
}

void Table::add(const std::string& spelling, Field field, Rules rules, const char* help) {
    Option o;
    static_cast<Rules&>(o) = std::move(rules);
    o.field = std::move(field);
    o.help = help;
    o.group.swap(group);
    const auto* words = std::get_if<TextField>(&o.field);
    if (o.choices.empty() && words != nullptr) { o.choices = words->choices; }
    const bool no_value = acts_by_itself(o) || o.choices == "true false";
    for (const std::string& word : split_words(spelling)) {
        if (!word.starts_with('-')) {
            const bool is_value = o.value.empty() && !no_value;
            (is_value ? o.value : o.also) += is_value ? word : " " + word;
            continue;
        }
        const bool is_long = word.starts_with("--");
        if (o.name.empty()) { (is_long ? o.name : o.letter) = is_long ? word.substr(2) : word; }
        if (is_long) { o.also += " " + word.substr(2); }
        o.names.push_back(word);
    }
    o.initial = value_text(o);
    options.push_back(std::move(o));
}

const Option* Table::find(const std::string& name) const {
    const auto at = std::ranges::find_if(
        options, [&](const Option& o) { return std::ranges::find(o.names, name) != o.names.end(); });
    return at == options.end() ? nullptr : &*at;
}

const Option* Table::nearest(const std::string& typed) const {
    std::string bare = typed.substr(std::min(typed.find_first_not_of('-'), typed.size()), 60);
    for (char& c : bare) { c = c == '_' ? '-' : (char)std::tolower((unsigned char)c); }
    const Option* letter = typed.starts_with("--") ? nullptr : find("-" + bare);
    if (letter != nullptr && !letter->name.empty()) { return letter; }
    const Option* best = nullptr;
    size_t least = bare.npos;
    for (const Option& o : options) {
        for (const std::string& name : split_words(o.name.empty() ? "" : o.also)) {
            const size_t edits = distance(bare, name);
            const auto [shorter, longer] = std::minmax({bare.size(), name.size()});
            const bool close = (edits == 1 && shorter > 1) || 3 * edits <= longer;
            if (!close || edits >= least) { continue; }
            best = &o;
            least = edits;
        }
    }
    return best;
}

std::string Table::help() const {
    std::string usage = about + "\n\nUsage: PROGRAM", arguments, named;
    for (const Option& o : options) {
        if (!o.group.empty()) { named += "\n" + o.group + ":\n"; }
        if (!o.name.empty()) { named += option_help(o); }
        if (!o.names.empty()) { continue; }
        usage += " " + o.value + (o.repeats ? "..." : "");
        arguments += "\n" + option_help(o);
    }
    std::string text = usage + " [--option VALUE]...    (--option=VALUE and -o VALUE work too)\n" +
                       arguments + named + "\n" + end;
    for (size_t at = 0; (at = text.find("PROGRAM", at)) != text.npos; at += program.size()) {
        text.replace(at, 7, program);
    }
    return text;
}

// ---- settings

bool has(const std::vector<Setting>& settings, const Option* o) {
    return std::ranges::find(settings, o, &Setting::option) != settings.end();
}

bool are_rivals(const Option& a, const Option& b) {
    return among(a.rivals, b.name) || among(b.rivals, a.name);
}

std::string rivalries(const std::vector<Setting>& settings) {
    std::string all;
    for (auto b = settings.begin(); b != settings.end(); b++) {
        for (auto a = settings.begin(); a != b; a++) {
            if (!are_rivals(*a->option, *b->option)) { continue; }
            all += fmt::format("\n--{} and --{}: give one or the other.", a->option->name, b->option->name);
        }
    }
    return all;
}

// ---- config files

namespace {

std::string trimmed(const std::string& text) {
    const size_t begin = text.find_first_not_of(" \t\r");
    return begin == text.npos ? "" : text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

const Option* find_key(const Table& table, const std::string& key, const std::string& where) {
    const auto in_files = [](const Option* o) { return o && !acts_by_itself(*o) && !o->for_command_line; };
    const Option *o = table.find("--" + key), *meant = table.nearest(key);
    if (in_files(o)) { return o; }
    if (o != nullptr) {
        fail_usage(where + ": " + in_quotes(key) + " is for the command line only. See --help.");
    }
    const std::string hint = in_files(meant) ? " Did you mean " + meant->name + "?" : "";
    fail_usage(where + ": unknown key " + in_quotes(key) + "." + hint + " See --help.");
}

// What a value in quotes or brackets says; nothing if it says nothing. The strings of JSON are strings of TOML; a list of bytes
// is a text that is no UTF-8, which TOML's strings must be.
std::optional<std::string> text_of_value(const std::string& value) {
    const char first = value[0], last = first == '[' ? ']' : first;
    size_t end = 1;
    while (end < value.size() && value[end] != last) { end += first == '"' && value[end] == '\\' ? 2 : 1; }
    if (end >= value.size()) { return std::nullopt; }
    const std::string behind = trimmed(value.substr(end + 1));
    if (!behind.empty() && behind[0] != '#') { return std::nullopt; }
    if (first == '\'') { return value.substr(1, end - 1); }
    JsonValue json;
    if (!read_json(value.substr(0, end + 1), {}, &json).empty()) { return std::nullopt; }
    if (json.is_string()) { return json.get<std::string>(); }
    std::string bytes;
    for (const JsonValue& item : json) {
        if (!item.is_number_unsigned() || item > 255) { return std::nullopt; }
        bytes += (char)item.get<int>();
    }
    return bytes;
}

// One line of a config file, key = value: the option and what would be typed for it.
Setting read_line(const Table& table, const std::string& line, const std::string& where) {
    const std::string like = ". Expected lines like: batch = 8, model = \"d12\", quiet = true";
    const size_t equals = std::min(line.find('='), line.size());
    const std::string key = trimmed(line.substr(0, equals));
    if (line[0] == '[' || equals == line.size() || key.empty()) {
        const bool section = line[0] == '[';
        fail_usage(where + ": " + in_quotes(line) +
                   (section ? " is a section; there are none here" : " has no '=' behind a name") + like);
    }
    const Option* o = find_key(table, key, where);
    const std::string value = trimmed(line.substr(equals + 1)), here = where + ", " + key;
    if (value.find_first_of("\"'[{") == 0) {
        const auto text = text_of_value(value);
        if (text && (is_text(*o) || value[0] != '[')) { return {o, *text, here}; }
        fail_usage(here + ": " + in_quotes(line) + " is no TOML, or has a list or a table. Expected " +
                   expected(*o) + like);
    }
    std::string bare = trimmed(value.substr(0, value.find('#')));
    if (is_text(*o) && !bare.empty()) {
        fail_usage(here + ": " + in_quotes(bare) + " is a text, and texts stand in quotes. Write: " + key +
                   " = " + escaped(bare));
    }
    if (is_number(*o)) { std::erase(bare, '_'); }  // 1_000
    return {o, bare, here};
}

}  // namespace

std::string escaped(const std::string& text) {
    for (size_t at = 0, length; at < text.size(); at += length) {
        length = utf8_length(std::string_view(text).substr(at));
        if (length > 0) { continue; }
        std::string bytes;
        for (const char c : text) {
            bytes += fmt::format("{}{}", bytes.empty() ? "" : ", ", (unsigned char)c);
        }
        return "[" + bytes + "]";
    }
    std::string s = json_text(text);
    for (size_t at = 0; (at = s.find('\x7f', at)) != s.npos;) { s.replace(at, 1, "\\u007f"); }
    return s;
}

std::vector<Setting> read_config(std::string text, const std::string& file, const Table& table) {
    if (text.find('\0') != text.npos) { fail_usage(file + " is not a text file."); }
    if (text.starts_with("\xef\xbb\xbf")) { text.erase(0, 3); }  // the mark that some editors start with
    std::vector<Setting> settings;
    std::istringstream lines(text);
    std::string line;
    for (int number = 1; std::getline(lines, line); number++) {
        line = trimmed(line);
        if (line.empty() || line[0] == '#') { continue; }
        Setting one = read_line(table, line, fmt::format("{}, line {}", file, number));
        if (has(settings, one.option)) { fail_usage(one.where + " is given twice. Give it once."); }
        one.text = table.assign(*one.option, one.text, one.where);
        settings.push_back(one);
    }
    if (!rivalries(settings).empty()) { fail_usage(file + ": " + rivalries(settings).substr(1)); }
    return settings;
}

// ---- the command line

CommandLine::CommandLine(const Table& table, int argc, const char* const* argv, int first)
    : table_(table), tokens_(argv + std::min(first, argc), argv + argc) {
    const auto is_value = [](const std::string& t) {
        return t[0] != '-' || !(std::isalpha((unsigned char)t[1]) || t[1] == '-');
    };
    while (at_ < tokens_.size() && action.empty()) {
        try {
            read(tokens_[at_++]);
        } catch (const Error& e) {  // to go on with the next option: all that is wrong is said at once
            objections += std::string("\n") + e.what();
            while (at_ < tokens_.size() && is_value(tokens_[at_])) { at_++; }
        }
    }
    if (!action.empty()) { return; }
    for (const Option& o : table_.options) {
        const std::string name = "\n" + (o.names.empty() ? o.value : "--" + o.name);
        if (o.required && !has(settings, &o)) { objections += name + " is required: " + o.help + "."; }
        for (const std::string& needed : split_words(has(settings, &o) ? o.needed : "")) {
            if (has(settings, table_.find("--" + needed))) { continue; }
            objections += name + " goes with --" + needed + " only.";
        }
    }
    objections += rivalries(settings);
}

void CommandLine::read(const std::string& token) {
    if (token == "--" && !table_.strict) {  // only arguments follow
        while (at_ < tokens_.size()) { read_argument(tokens_[at_++]); }
        return;
    }
    if (token.size() < 2 || token[0] != '-' || token == "--") { return read_argument(token); }
    const size_t equals = token.starts_with("--") ? token.find('=') : std::string::npos;
    const std::string typed = token.substr(0, equals);
    const bool has_value = equals != std::string::npos, is_long = typed.starts_with("--");
    const Option* o = table_.find(typed);
    if (o == nullptr) { fail_unknown(token); }
    // llm.c's -h has a value
    const bool alone = at_ == tokens_.size() || looks_like_option(tokens_[at_]);
    const Option* other = acts_by_itself(*o) && !alone ? table_.find(typed + "=") : nullptr;
    if (other != nullptr) { o = other; }
    const std::string where = is_long || o->name.empty() ? typed : typed + " (--" + o->name + ")";
    if (acts_by_itself(*o)) {
        if (has_value) { fail_usage(where + " takes no value."); }
        action = o->name;
        return;
    }
    if (has(settings, o) && !o->repeats) { fail_usage(where + " is given twice. Give it once."); }
    const bool is_flag = is_switch(*o) && (is_long || o->numbered.empty());
    const std::string text = has_value ? token.substr(equals + 1) : is_flag ? "true" : next_value(*o, where);
    settings.push_back({o, table_.assign(*o, text, where), where});
}

void CommandLine::read_argument(const std::string& token) {
    for (const Option& o : table_.options) {
        if (!o.names.empty() || (!o.repeats && has(settings, &o))) { continue; }
        settings.push_back({&o, table_.assign(o, token, o.value), o.value});
        return;
    }
    std::string place = table_.commands.empty() ? "" : ". Commands are " + table_.commands;
    if (!settings.empty()) { place = " after " + settings.back().where; }
    fail_usage(
        "unexpected argument " + in_quotes(token) + place +
        ". Every value follows the name of its option, and a pattern (*) is put in quotes. See --help.");
}

// the token behind an option; of a short name that is numbered the word that its number means
std::string CommandLine::next_value(const Option& o, const std::string& where) {
    if (at_ == tokens_.size()) { fail_usage(where + " needs a value, and nothing follows. See --help."); }
    const std::string text = tokens_[at_];
    if (table_.strict && looks_like_option(text)) {
        fail_usage(where + " needs a value, but the option " + in_quotes(text) + " follows." +
                   (o.name.empty() ? "" : " (If that is the value: --" + o.name + "=VALUE.)"));
    }
    at_++;
    if (where.starts_with("--") || o.numbered.empty()) { return text; }
    std::vector<std::string> numbers;
    for (const std::string& word : split_words(o.numbered)) {
        const std::string number = std::to_string(numbers.size());
        if (text == number) { return word; }
        numbers.push_back(number + " (" + word + ")");
    }
    fail_usage(where + ": " + in_quotes(text) + " is not known. Expected " + alternatives(numbers) + ".");
}

// Where a value should stand, is this an option? "-1", "-inf" and "-- a text" are not.
bool CommandLine::looks_like_option(const std::string& token) const {
    const std::string name = token.substr(0, token.find('='));
    const auto of_names = [](unsigned char c) { return std::isalnum(c) || c == '-' || c == '_'; };
    const bool is_long = name.size() > 2 && name.starts_with("--") && std::ranges::all_of(name, of_names);
    return token == "--" || is_long || table_.find(token) != nullptr;
}

void CommandLine::fail_unknown(const std::string& typed) const {
    const size_t equals = std::min(typed.find('='), typed.size());
    const std::string name = typed.substr(0, equals), letter = typed.substr(0, 2);
    const Option *nearest = table_.nearest(name), *o = table_.find(letter);
    std::string meant = nearest != nullptr ? " Did you mean --" + nearest->name + "?" : "";
    if (table_.find(name) != nullptr) {  // -lg=5
        meant = " Did you mean " + name + " " + typed.substr(equals + 1) + "?";
    } else if (o != nullptr && !acts_by_itself(*o) &&
               std::strchr(".-0123456789", name[2]) != nullptr) {  // -b4
        meant = " Did you mean " + letter + " " + name.substr(2) + "?";
    }
    fail_usage("unknown option " + in_quotes(typed) + "." + meant + " See --help.");
}

bool parse_table(const Table& table, int argc, const char* const* argv, int first, const char* prefix) {
    const CommandLine line(table, argc, argv, first);
    if (!line.objections.empty()) {
        std::string text = line.objections.substr(1, line.objections.find('\n', 1) - 1);
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

// Tables of options: see table.h.
#include "llmc/host/options/table.h"

#include <fmt/ranges.h>
#include <pwd.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "llmc/host/base/error.h"
#include "llmc/host/base/text.h"
#include "llmc/host/files/json.h"

namespace llmc {
namespace {

// the end of a range: "2^31 - 1", "1,024"
std::string bound_text(double value) {
    if (value == kMaxInt) { return "2^31 - 1"; }
    if (value == kMaxTokens) { return "10^15"; }
    if (value == 0x1p64) { return "2^64 - 1"; }
    return value < 10000 ? Field(&value).get() : count_text((int64_t)value);
}

// whether b is a, but for a letter that is added, left out or changed, or for two neighbours that are swapped
bool is_slip(const std::string& a, const std::string& b) {
    const auto [shorter, longer] = std::minmax({a.size(), b.size()});
    const size_t front = (size_t)(std::ranges::mismatch(a, b).in1 - a.begin());
    size_t back = 0;
    while (front + back < shorter && a[a.size() - 1 - back] == b[b.size() - 1 - back]) { back++; }
    const size_t unlike = longer - front - back;
    const bool two = unlike == 2 && shorter == longer;
    return (unlike < 2 && shorter > 1) || (two && a[front] == b[front + 1] && a[front + 1] == b[front]);
}

// "~/x" below the home folder: a shell leaves the ~ of --out=~/x, and a folder of that name would be made. Other texts stay.
std::string at_home(const std::string& text) {
    if (!text.starts_with("~/")) { return text; }
    const char* home = std::getenv("HOME");
    const passwd* user = home != nullptr && *home != '\0' ? nullptr : getpwuid(geteuid());
    if (user != nullptr) { home = user->pw_dir; }
    if (home != nullptr && *home != '\0') { return home + text.substr(1); }
    fail_usage(in_quotes(text) + ": nothing says where your home is. Write the whole path.");
}

// names, help, and what may be given
std::string option_help(const Option& o) {
    constexpr char kHardBlank = '\x1f';  // no line ends here
    constexpr size_t kIndent = 31, kWidth = 100 - kIndent;
    const bool lone = o.names.empty(), is_switch = o.value.empty();
    std::string name = lone || !o.names[0].starts_with("--") ? "  " : "      ";
    name += fmt::format("{}{}{}", fmt::join(o.names, ", "), lone || is_switch ? "" : " ", o.value);
    name +=
        name.size() < kIndent ? std::string(kIndent - name.size(), ' ') : "\n" + std::string(kIndent, ' ');
    const std::string allowed = is_switch ? "" : o.allowed();
    std::string given = is_switch || o.initial.empty() ? "" : "default " + o.initial;
    given += (given.empty() || allowed.empty() ? "" : "; ") + allowed;
    if (o.required) { given = "required"; }
    if (*o.cpu_only) { given = fmt::format("only {} here; others in train_gpt2cu", o.cpu_only); }
    std::ranges::replace(given, ' ', kHardBlank);
    std::string text = o.help + (given.empty() ? "" : " [" + given + "]");
    for (size_t line = 0; text.size() - line > kWidth; line += kIndent + 1) {
        line = text.rfind(' ', line + kWidth);
        text.replace(line, 1, "\n" + std::string(kIndent, ' '));
    }
    std::ranges::replace(text, kHardBlank, ' ');
    return name + text + "\n";
}

// ---- config files

std::string trimmed(const std::string& text) {
    const size_t begin = text.find_first_not_of(" \t\r");
    return begin == text.npos ? "" : text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

// What a value in quotes or brackets says; nothing if it says nothing. The strings of JSON are strings of TOML; a list of bytes
// is a text that is no UTF-8, which TOML's strings must be.
std::optional<std::string> text_of_value(const std::string& value) {
    const char first = value[0], last = first == '[' ? ']' : first;
    size_t end = 1;
    while (end < value.size() && value[end] != last) { end += first == '"' && value[end] == '\\' ? 2 : 1; }
    const std::string behind = end < value.size() ? trimmed(value.substr(end + 1)) : "no end";
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
    const auto fail = [&](const std::string& at) {
        fail_usage(
            at + ": " + in_quotes(line) +
            " is not understood. Expected lines like: batch = 8, model = \"d12\", quiet = true; texts in "
            "quotes, no section, no list, no table.");
    };
    const size_t equals = line.find('=');
    const std::string key = trimmed(line.substr(0, equals));
    if (line[0] == '[' || equals == line.npos || key.empty()) { fail(where); }
    const auto in_files = [](const Option* o) {
        return o != nullptr && o->field.kind != Field::kAction && !o->for_command_line;
    };
    const Option *o = table.find("--" + key), *meant = table.nearest(key);
    if (!in_files(o)) {
        const std::string hint = in_files(meant) ? " Did you mean " + meant->name + "?" : "";
        fail_usage(where + ": unknown key " + in_quotes(key) + "." + hint);
    }
    const std::string value = trimmed(line.substr(equals + 1)), here = where + ", " + key;
    const bool is_text = o->field.kind == Field::kText, quoted = value.find_first_of("\"'[{") == 0;
    std::optional<std::string> text = trimmed(value.substr(0, value.find('#')));
    if (quoted) { text = text_of_value(value); }
    if (!text || (is_text ? !quoted && !text->empty() : value[0] == '[')) { fail(here); }
    if (o->is_number()) { std::erase(*text, '_'); }  // 1_000
    return {o, *text, here};
}

// ---- the command line

// Where a value should stand, is this an option? "-1", "-inf" and "-- a text" are not.
bool is_option(const Table& table, const std::string& token) {
    const std::string name = token.substr(0, token.find('='));
    const auto of_names = [](unsigned char c) { return std::isalnum(c) || c == '-' || c == '_'; };
    const bool is_long = name.size() > 2 && name.starts_with("--") && std::ranges::all_of(name, of_names);
    return token == "--" || is_long || table.find(name) != nullptr;
}

// an argument without a name; before: what is given before it
Setting read_argument(const Table& table, const std::string& token, const std::vector<Setting>& before) {
    for (const Option& o : table.options) {
        if (o.names.empty() && (o.repeats || !has(before, &o))) { return {&o, token, o.value}; }
    }
    fail_usage("unexpected argument " + in_quotes(token) +
               (before.empty() ? "" : " after " + before.back().where) +
               ". Every value follows the name of its option, and a pattern (*) is put in quotes.");
}

// what tokens[*at] says, with the token behind it if that is its value; *at becomes the next one to read
Setting read_token(const Table& table, const std::vector<std::string>& tokens, size_t* at,
                   const std::vector<Setting>& before) {
    const std::string& token = tokens[(*at)++];
    if (token.size() < 2 || token[0] != '-' || token == "--") { return read_argument(table, token, before); }
    const size_t equals = token.find('=');
    const std::string typed = token.substr(0, equals);
    const bool is_long = typed.starts_with("--"), has_value = equals != token.npos;
    const bool at_end = *at == tokens.size(), alone = at_end || is_option(table, tokens[*at]);
    const Option *o = table.find(typed), *meant = table.nearest(typed), *other = table.find(typed + "=");
    if (other != nullptr && !alone) { o = other; }  // llm.c's -h has a value
    if (o == nullptr) {
        const std::string hint = meant != nullptr ? " Did you mean --" + meant->name + "?" : "";
        fail_usage("unknown option " + in_quotes(token) + "." + hint);
    }
    const std::string where = is_long || o->name.empty() ? typed : typed + " (--" + o->name + ")";
    if (has(before, o) && !o->repeats) { fail_usage(where + " is given twice. Give it once."); }
    const bool acts = o->field.kind == Field::kAction, numbered = !is_long && *o->numbered;
    if (acts && has_value) { fail_usage(where + " takes no value."); }
    const bool is_switch = o->value.empty() && !numbered,
               answered = !at_end && among("true false", tokens[*at]);
    if (acts || (!has_value && is_switch && !answered)) { return {o, "true", where}; }
    if (!has_value && alone) {
        fail_usage(fmt::format("{} needs a value, and {} follows. {}=VALUE takes any.", where,
                               at_end ? "nothing" : in_quotes(tokens[*at]), typed));
    }
    const std::string text = has_value ? token.substr(equals + 1) : tokens[(*at)++];
    if (!numbered) { return {o, text, where}; }
    const std::vector<std::string> words = split_words(o->numbered);
    for (size_t i = 0; i < words.size(); i++) {
        if (text == std::to_string(i)) { return {o, words[i], where}; }
    }
    fail_usage(fmt::format("{}: {} is not known. Expected 0 to {}, for {}.", where, in_quotes(text),
                           words.size() - 1, o->numbered));
}

}  // namespace

std::vector<std::string> split_words(const std::string& text) {
    std::istringstream in(text);
    return {std::istream_iterator<std::string>(in), {}};
}

std::vector<std::string> split(const std::string& text, char separator) {
    std::vector<std::string> parts;
    std::istringstream in(text + separator);
    for (std::string part; std::getline(in, part, separator);) { parts.push_back(part); }
    return parts;
}

bool among(const std::string& words, const std::string& word) {
    const std::vector<std::string> all = split_words(words);
    return std::ranges::find(all, word) != all.end();
}

void fail_usage(const std::string& message) { throw Error(kExitUsage, message); }

// ---- options

std::string Option::allowed() const {
    if (is_number()) {
        const std::string ends = bound_text(range.lo) + " to " + bound_text(range.hi);
        return (range.or_minus_one ? "-1 or " : "") + ends + (*range.unit ? " " : "") + range.unit;
    }
    std::string words = fmt::format("{}", fmt::join(split_words(choices), ", "));
    const size_t last = words.rfind(", ");
    return last == words.npos ? words : words.replace(last, 2, " or ");
}

std::string Option::value_text() const {
    const std::string text = field.get();
    if (!is_number()) { return text.empty() ? empty_word : text; }
    // layers and the like are out of their range until they are given
    return range.has(std::strtod(text.c_str(), nullptr)) ? text : "";
}

std::string Option::assign(const std::string& typed, const std::string& where) const {
    const std::string text = among("TEXT [TEXT] NAME", value) ? typed : at_home(typed);
    for (const std::string& one : listed ? split(text, ',') : std::vector{text}) {
        const bool known = !*choices || among(choices, one), empty = one.empty() && value != "[TEXT]";
        const std::string wrong = empty ? " is empty" : known ? field.set(*this, one) : " is not known";
        if (wrong.empty()) { continue; }
        constexpr const char* kKinds[] = {"", "", "", "a whole number, ", "a number, "};
        const std::string expected = allowed().empty() ? value : kKinds[field.kind] + allowed();
        const std::string why = name.empty() ? ": " + help : "";
        fail_usage(fmt::format("{}: {}{}. Expected {}{}.", where, in_quotes(one), wrong, expected, why));
    }
    return text;
}

bool has(const std::vector<Setting>& settings, const Option* o) {
    return std::ranges::find(settings, o, &Setting::option) != settings.end();
}

// ---- the table

Table::Table(const std::string& program, const std::string& about, const std::string& end)
    : program(program), about(about), end(end) {
    add("Options: -h --help usage", {}, "print this, and stop");
}

void Table::add(const std::string& spelling, Field field, Rules rules, const char* help) {
    Option& o = options.emplace_back();
    static_cast<Rules&>(o) = std::move(rules);
    o.help = help;
    const size_t title = spelling.find(": ");
    if (title != spelling.npos) { o.group = spelling.substr(0, title); }
    if (!*o.choices) { o.choices = field.choices; }
    const bool no_value = field.kind == Field::kAction || field.kind == Field::kSwitch;
    o.field = std::move(field);
    for (const std::string& word : split_words(spelling.substr(title == spelling.npos ? 0 : title + 1))) {
        const bool is_name = word.starts_with('-');
        if (!is_name && !no_value && o.value.empty()) {
            o.value = word;
            continue;
        }
        o.also += " " + word.substr(word.find_first_not_of('-'));
        if (is_name) { o.names.push_back(word); }
        if (o.name.empty() && word.starts_with("--")) { o.name = word.substr(2); }
    }
    o.initial = o.value_text();
}

const Option* Table::find(const std::string& name) const {
    const auto at = std::ranges::find_if(
        options, [&](const Option& o) { return std::ranges::find(o.names, name) != o.names.end(); });
    return at == options.end() ? nullptr : &*at;
}

const Option* Table::nearest(const std::string& typed) const {
    std::string bare = typed.substr(std::min(typed.find_first_not_of('-'), typed.size()), 60);
    for (char& c : bare) { c = c == '_' ? '-' : (char)std::tolower((unsigned char)c); }
    const Option* close = nullptr;
    for (const Option& o : options) {
        for (const std::string& name : split_words(o.name.empty() ? "" : o.also)) {
            if (name == bare) { return &o; }
            if (close == nullptr && is_slip(bare, name)) { close = &o; }
        }
    }
    return close;
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

std::string Table::objections(const std::vector<Setting>& settings) const {
    std::string all;
    for (const Option& o : options) {
        const bool given = has(settings, &o);
        const std::string name = o.names.empty() ? o.value : "--" + o.name;
        if (o.required && !given) { all += fmt::format("\n{} is required: {}.", name, o.help); }
        if (!given) { continue; }
        for (const std::string& other : split_words(o.needed)) {
            if (has(settings, find("--" + other))) { continue; }
            all += fmt::format("\n{} needs --{}, which is missing.", name, other);
        }
        for (const std::string& other : split_words(o.rivals)) {
            if (!has(settings, find("--" + other))) { continue; }
            all += fmt::format("\n{} and --{}: give one or the other.", name, other);
        }
    }
    return all;
}

void Table::fail(const std::string& objections) const {
    fail_usage(objections.substr(1) + " See " + program + " --help.");
}

std::string escaped(const std::string& text) {
    std::string s = json_text(text);  // with another character for what is no UTF-8
    if (text_of_value(s) != text) {
        return fmt::format("[{}]", fmt::join(std::vector<uint8_t>(text.begin(), text.end()), ", "));
    }
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
        one.text = one.option->assign(one.text, one.where);
        settings.push_back(one);
    }
    const std::string wrong = table.objections(settings);
    if (!wrong.empty()) { fail_usage(file + ": " + wrong.substr(1)); }
    return settings;
}

std::optional<std::vector<Setting>> Table::parse(int argc, const char* const* argv, int first) const {
    const std::vector<std::string> tokens(argv + std::min(first, argc), argv + argc);
    std::vector<Setting> settings;
    std::string wrong;  // all that is, to be said at once
    bool acts = false;
    for (size_t at = 0; at < tokens.size() && !acts;) {
        try {
            Setting one = read_token(*this, tokens, &at, settings);
            acts = one.option->field.kind == Field::kAction;
            one.text = one.option->assign(one.text, one.where);
            settings.push_back(one);
        } catch (const Error& e) {  // to go on with the next option
            wrong += std::string("\n") + e.what();
            while (at < tokens.size() && !is_option(*this, tokens[at])) { at++; }
        }
    }
    if (!acts) { wrong += objections(settings); }
    if (!wrong.empty()) { fail(wrong); }
    if (!acts) { return settings; }
    std::fputs((settings.back().option->name == "help" ? help() : version).c_str(), stdout);
    require_printed();
    return std::nullopt;
}

}  // namespace llmc

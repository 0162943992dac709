// The reader of config files, which are TOML, and the writer of their texts: see options_input.h. toml++ reads;
// what is said about an error is ours, as its user may have forgotten quotes and has never heard of TOML.
#include <toml++/toml.h>
#include <algorithm>
#include <charconv>
#include <optional>
#include <sstream>
#include <stdexcept>

#include "llmc/host/error.h"
#include "llmc/host/json.h"
#include "llmc/host/options_input.h"
#include "llmc/host/utf8.h"

namespace llmc {
namespace {

constexpr const char* kBlanks = " \t\r";

std::string trimmed(const std::string& text) {
    const size_t begin = text.find_first_not_of(kBlanks);
    return begin == text.npos ? "" : text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

std::string line_of(const std::string& text, size_t number) {
    std::istringstream lines(text);
    std::string line;
    for (size_t n = 0; n < number; n++) { std::getline(lines, line); }
    return trimmed(line);
}

const OptionRow& require_row(const std::string& key, const std::string& where) {
    const OptionRow* row = find_row(key);
    if (row == nullptr || acts_by_itself(*row)) {
        const std::string meant = suggested_key(key);
        fail_usage(where + ": unknown key " + in_quotes(key) + "." +
                   (meant.empty() ? "" : " Did you mean " + meant + "?") + " See --help.");
    }
    return *row;
}

// of a line that is no TOML; text: the whole file, where: up to the number of the line
[[noreturn]] void fail_line(const std::string& text, size_t number, std::string where,
                            const std::string& problem) {
    const std::string line = line_of(text, number);
    const size_t equals = line.find('=');
    if (equals == std::string::npos && !line.empty()) {
        fail_usage(where + ": " + in_quotes(line) + " has no '='. Expected lines like: batch = 8");
    }
    const std::string key = trimmed(line.substr(0, std::min(equals, line.size())));
    const std::string value = trimmed(line.substr(std::min(equals + 1, line.size())));
    if (!key.empty() && key.find_first_of("[]{}\"'") == key.npos) {
        const OptionRow& row = require_row(key, where);
        where += ", " + key;
        const bool quoted = !value.empty() && (value[0] == '"' || value[0] == '\'');
        const std::string bare = trimmed(value.substr(0, std::min(value.find(" #"), value.size())));
        if (!quoted && bare[0] != '#' && !bare.empty() && holds<std::string>(row)) {
            fail_usage(where + ": " + in_quotes(bare) +
                       " is a text, and texts stand in quotes. Write: " + key + " = " + escaped(bare));
        }
        Settings scratch;
        if (!quoted) { assign(scratch, row, bare[0] == '#' ? "" : bare, where); }
    }
    fail_usage(where + ": " + in_quotes(line) + ": " + problem +
               ". Config files are TOML: batch = 8, model = \"d12\", quiet = true");
}

// A list of bytes is a text that is no UTF-8, which TOML's strings must be; nothing if it is no such list.
std::optional<std::string> bytes_of(const toml::node& node) {
    if (!node.is_array()) { return std::nullopt; }
    std::string text;
    for (const toml::node& item : *node.as_array()) {
        const auto byte = item.value_exact<int64_t>();
        if (!byte || *byte < 0 || *byte > 255) { return std::nullopt; }
        text += (char)*byte;
    }
    return text;
}

// what a value says, as it would be typed on the command line
std::string value_of(const toml::node& node, const OptionRow& row, const std::string& where) {
    if (const auto text = node.value_exact<std::string>()) { return *text; }
    const auto bytes = bytes_of(node);
    if (bytes && holds<std::string>(row)) { return *bytes; }
    std::string bare;
    if (const auto yes = node.value_exact<bool>()) { bare = *yes ? "true" : "false"; }
    if (const auto number = node.value_exact<int64_t>()) { bare = std::to_string(*number); }
    if (const auto number = node.value_exact<double>()) {
        char digits[32];
        bare = std::string(digits, std::to_chars(digits, digits + sizeof(digits), *number).ptr);
        if (bare.find_first_not_of("-0123456789") == bare.npos) { bare += ".0"; }  // no whole number
    }
    if (bare.empty()) {
        fail_usage(where + ": a list, a table or a date stands here. Expected " +
                   (allowed(row).empty() ? row.value : allowed(row)) + ".");
    }
    if (holds<std::string>(row)) {
        fail_usage(where + ": expected a text in quotes: " + row.name + " = " + escaped(bare));
    }
    return bare;
}

struct Entry {
    size_t line;
    std::string key;
    const toml::node* node;
};

std::vector<Entry> in_file_order(const toml::table& table) {
    std::vector<Entry> entries;
    for (const auto& [key, node] : table) {
        entries.push_back({key.source().begin.line, std::string(key.str()), &node});
    }
    std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.line < b.line; });
    return entries;
}

bool has(const Pairs& pairs, const std::string& name) {
    return std::any_of(pairs.begin(), pairs.end(), [&](const auto& pair) { return pair.first == name; });
}

}  // namespace

// JSON's strings are strings of TOML, too, but for one character; what is no UTF-8 becomes a list of bytes
std::string escaped(const std::string& text) {
    bool utf8 = true;
    std::string s;
    for (size_t at = 0, length; at < text.size() && utf8; at += length) {
        length = utf8_length(std::string_view(text).substr(at));
        utf8 = length > 0;
    }
    if (!utf8) {
        for (const char byte : text) { s += strf("%s%d", s.empty() ? "[" : ", ", (unsigned char)byte); }
        return s + "]";
    }
    s = json_text(text);
    for (size_t at = 0; (at = s.find('\x7f', at)) != s.npos;) { s.replace(at, 1, "\\u007f"); }
    return s;
}

Pairs read_config(std::string text, const CommandLine& line) {
    const std::string file = "--config " + in_quotes(line.config);
    const auto where = [&](size_t number) { return file + strf(", line %zu", number); };
    if (text.find('\0') != text.npos) { fail_usage(file + " is not a text file."); }
    while (text.starts_with("\xef\xbb\xbf")) { text.erase(0, 3); }  // the mark that some editors start with
    std::istringstream lines(text);
    std::string one;
    for (size_t number = 1; std::getline(lines, one); number++) {
        if (trimmed(one).starts_with('[')) {
            fail_usage(where(number) + ": " + in_quotes(trimmed(one)) +
                       " is a section; there are none here. Expected lines like: batch = 8");
        }
    }
    toml::table table;
    try {
        table = toml::parse(text);
    } catch (const toml::parse_error& e) {
        const size_t number = e.source().begin.line;
        fail_line(text, number, where(number), std::string(e.description()));
    } catch (const std::logic_error&) {  // an assertion of the library: see the Makefile
        fail_usage(file + " is not TOML. Expected lines like: batch = 8, model = \"d12\", quiet = true");
    }
    Pairs pairs;
    for (const auto& [number, key, node] : in_file_order(table)) {
        const OptionRow& row = require_row(key, where(number));
        const std::string here = where(number) + ", " + key, value = value_of(*node, row, here);
        Settings scratch;
        assign(scratch, row, value, here);
        pairs.push_back({key, value});
    }
    for (auto [a, b] : kRivals) {
        if (has(pairs, a) && has(pairs, b)) {
            fail_usage(file + ": " + a + " and " + b + ": give one or the other.");
        }
    }
    for (auto [a, b] : kRivals) {
        std::erase_if(pairs, [&, a = a, b = b](const auto& pair) {
            return (pair.first == a && line.given.contains(b)) || (pair.first == b && line.given.contains(a));
        });
    }
    return pairs;
}

}  // namespace llmc

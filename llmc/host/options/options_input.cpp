// The readers of the command line and of config files: see options_input.h.
#include "llmc/host/options/options_input.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <sstream>

#include "llmc/host/base/error.h"
#include "llmc/host/files/file_io.h"
#include "llmc/host/options/launchers.h"

namespace llmc {
namespace {

std::vector<std::string> words(const std::string& text) {
    std::istringstream in(text);
    return {std::istream_iterator<std::string>(in), {}};
}

bool one_of(const std::vector<std::string>& list, const std::string& text) {
    return std::find(list.begin(), list.end(), text) != list.end();
}

// ---- rows

// "--name" or "-x"
const OptionRow* find_option(const std::string& typed) {
    if (typed.starts_with("--")) { return find_row(typed.substr(2)); }
    auto row = std::find_if(std::begin(kOptionTable), std::end(kOptionTable), [&](const OptionRow& r) {
        return r.letter && typed == std::string{'-', r.letter};
    });
    return row == std::end(kOptionTable) ? nullptr : &*row;
}

// the row of kLlmcTable or kLlmcAliases
template <typename Table>
auto find_llmc(const Table& table, const std::string& typed) {
    auto row =
        std::find_if(std::begin(table), std::end(table), [&](const auto& r) { return r.name == typed; });
    return row == std::end(table) ? nullptr : row;
}

// any name that may stand before a value, or alone
bool known(const std::string& typed) {
    return find_option(typed) || find_llmc(kLlmcTable, typed) || find_llmc(kLlmcAliases, typed);
}

bool in_range(const OptionRow& row, double value) {
    return (value >= row.lo && value <= row.hi) || (row.or_minus_one && value == -1);
}

template <typename T>
T parse_number(const OptionRow& row, const std::string& text, const std::string& where) {
    T value{};
    const auto fits = [&](double number) { return in_range(row, number); };
    const std::string problem = number_problem(text, allowed(row), fits, &value);
    if (!problem.empty()) { fail_usage(where + ": " + problem + "."); }
    return value;
}

}  // namespace

const OptionRow* find_row(const std::string& name) {
    auto row = std::find_if(std::begin(kOptionTable), std::end(kOptionTable),
                            [&](const OptionRow& r) { return r.name == name; });
    return row == std::end(kOptionTable) ? nullptr : &*row;
}

std::string row_value(const OptionRow& row, const std::string& typed) {
    return row.name == std::string("prompt") ? typed : at_home(typed);
}

void fail_usage(const std::string& message) { throw Error(kExitUsage, message); }

std::string allowed(const OptionRow& row) {
    if (holds<bool>(row)) { return "true or false"; }
    if (!holds<std::string>(row) && !acts_by_itself(row)) {
        std::string range = bound_text(row.lo) + " to " + bound_text(row.hi);
        return (row.or_minus_one ? "-1 or " : "") + range + (*row.unit ? std::string(" ") + row.unit : "");
    }
    std::string text;
    auto choices = words(row.choices);
    for (size_t i = 0; i < choices.size(); i++) {
        text += (i == 0 ? "" : i + 1 < choices.size() ? ", " : " or ") + choices[i];
    }
    return text;
}

std::string value_text(const OptionRow& row, const Settings& s) {
    return std::visit(
        [&](auto field) -> std::string {
            if constexpr (std::is_same_v<decltype(field), std::monostate>) {
                return {};
            } else if constexpr (std::is_same_v<decltype(field), std::string Settings::*>) {
                return (s.*field).empty() ? row.empty_word : s.*field;
            } else if constexpr (std::is_same_v<decltype(field), bool Settings::*>) {
                return s.*field ? "true" : "false";
            } else if (!in_range(row, (double)(s.*field))) {
                return "";  // layers, lr and the like are out of their range until they are given
            } else if constexpr (std::is_same_v<decltype(field), double Settings::*>) {
                return shortest(s.*field);
            } else {
                return std::to_string(s.*field);
            }
        },
        row.field);
}

void assign(Settings& s, const OptionRow& row, const std::string& text, const std::string& where) {
    std::string expected = allowed(row).empty() ? row.value : allowed(row);
    if (text.empty()) { fail_usage(where + ": the value is empty. Expected " + expected + "."); }
    auto choices = holds<bool>(row) ? words("true false") : words(row.choices);
    if (!choices.empty() && !one_of(choices, text)) {
        fail_usage(where + ": " + in_quotes(text) + " is not known. Expected " + expected + ".");
    }
    std::visit(
        [&](auto field) {
            if constexpr (std::is_same_v<decltype(field), std::string Settings::*>) {
                s.*field = text == row.empty_word ? "" : text;
            } else if constexpr (std::is_same_v<decltype(field), bool Settings::*>) {
                s.*field = text == "true";
            } else if constexpr (!std::is_same_v<decltype(field), std::monostate>) {
                s.*field = parse_number<std::remove_reference_t<decltype(s.*field)>>(row, text, where);
            }
        },
        row.field);
}

// ---- unknown options

namespace {

// The row whose name, letter (after one dash only), or name in other programs is meant by what was typed; null if none
// is close.
const OptionRow* nearest_row(const std::string& typed) {
    const bool one_dash = typed.starts_with("-") && !typed.starts_with("--");
    Nearest nearest(typed);
    const OptionRow* best = nullptr;
    const auto consider = [&](const OptionRow& row, const std::string& name) {
        if (nearest.improves(name)) { best = &row; }
    };
    for (const OptionRow& row : kOptionTable) {
        consider(row, row.name);
        if (one_dash && row.letter) { consider(row, std::string(1, row.letter)); }
        for (const std::string& name : words(row.also)) { consider(row, name); }
    }
    return best;
}

[[noreturn]] void unknown_option(const std::string& typed) {
    size_t equals = std::min(typed.find('='), typed.size());
    std::string name = typed.substr(0, equals);
    const OptionRow* nearest = nearest_row(name);
    std::string suggestion = nearest ? std::string("--") + nearest->name : "";
    if (typed[1] != '-') {  // -b4, -b=4 and -lg=5 are written with a blank
        const OptionRow* row = find_option(typed.substr(0, 2));
        bool number = std::string(".-0123456789").find(name[2]) != std::string::npos;
        bool glued = row && !acts_by_itself(*row) && number;
        if (glued) { suggestion = typed.substr(0, 2) + " " + name.substr(2); }
        if (known(name)) { suggestion = name + " " + typed.substr(equals + 1); }
    }
    if (!suggestion.empty()) { suggestion = " Did you mean " + suggestion + "?"; }
    fail_usage("unknown option " + in_quotes(typed) + "." + suggestion + " See --help.");
}

}  // namespace

std::string suggested_key(const std::string& typed) {
    const OptionRow* nearest = nearest_row(typed);
    return nearest && !acts_by_itself(*nearest) ? nearest->name : "";  // a config file takes no --help
}

namespace {

// Where a value should stand, is this an option? "-1", "-inf" and "-- a text" are not.
bool looks_like_option(const std::string& token) {
    std::string name = token.substr(0, token.find('='));
    bool is_long = token == "--" || (name.size() > 2 && name.starts_with("--") &&
                                     std::all_of(name.begin(), name.end(), [](unsigned char c) {
                                         return std::isalnum(c) || c == '-' || c == '_';
                                     }));
    return is_long || known(token);
}

// Where an option should stand, is this one?
bool begins_option(const std::string& token) { return token.size() >= 2 && token[0] == '-' && token != "--"; }

}  // namespace

// ---- the command line

CommandLine::CommandLine(int argc, const char* const* argv) : tokens_(argv + std::min(argc, 1), argv + argc) {
    std::string before;
    while (at_ < tokens_.size() && action.empty()) {
        const std::string token = tokens_[at_++];
        try {
            if (!begins_option(token)) {
                std::string place =
                    before.empty() ? ". Commands are generate, export, eval and report" : " after " + before;
                fail_usage("unexpected argument " + in_quotes(token) + place +
                           ". Every value follows the name of its option, and a pattern (*) is put in "
                           "quotes. See --help.");
            }
            read(token);
        } catch (const Error& e) {  // to go on with the next option: all that is wrong is said at once
            objections.push_back(e.what());
            all_rows = all_rows && find_llmc(kLlmcTable, token) != nullptr;
            while (at_ < tokens_.size() && !looks_like_option(tokens_[at_]) &&
                   !(begins_option(tokens_[at_]) && std::isalpha((unsigned char)tokens_[at_][1]))) {
                at_++;
            }
        }
        before = token.substr(0, token.find('='));
    }
    for (auto [a, b] : kRivals) {
        if (given.contains(a) && given.contains(b)) {
            objections.push_back(fmt::format("--{} and --{}: give one or the other.", a, b));
            all_rows = false;
        }
    }
}

void CommandLine::add_config_of_run() {
    std::string out;
    for (const std::string& arg : args) {
        if (arg.starts_with("--out=")) { out = arg.substr(6); }
    }
    const std::string own = out + "/config.toml";
    std::error_code ignored;
    const bool goes_on = std::ranges::count(args, "--resume=auto") > 0 && !out.empty() && config.empty() &&
                         std::filesystem::exists(out + "/log.jsonl", ignored) &&
                         file_kind(own) != FileKind::kMissing;
    const bool by_others = given.contains("world-size") ||
                           has_launcher([](const char* name) { return (const char*)std::getenv(name); });
    if (!goes_on || by_others) { return; }
    const std::vector<std::string> names = folder_names(out).value_or(std::vector<std::string>());
    const bool saved =
        std::ranges::any_of(names, [](const std::string& name) { return name.starts_with("step_"); });
    const std::set<std::string> alone = {"resume", "out", "dry-run", "quiet"};
    if (!saved && !std::ranges::includes(alone, given)) { return; }
    // nobody may ever write to a pipe
    if (file_kind(own) != FileKind::kFile) { throw Error(kExitBadInput, own + ": not a regular file"); }
    config = own;
    of_run = true;
    args.push_back("--config=" + own);
}

void CommandLine::once(const std::string& what, const std::string& where) {
    if (!seen_.insert(what).second) { fail_usage(where + " is given twice. Give it once."); }
}

// the token behind an option; name = its long name, "" = none
std::string CommandLine::next_value(const std::string& where, const char* name) {
    if (at_ == tokens_.size()) { fail_usage(where + " needs a value, and nothing follows. See --help."); }
    if (looks_like_option(tokens_[at_])) {
        fail_usage(where + " needs a value, but the option " + in_quotes(tokens_[at_]) + " follows." +
                   (*name ? fmt::format(" (If that is the value: --{}=VALUE.)", name) : ""));
    }
    return tokens_[at_++];
}

void CommandLine::add(const OptionRow& row, const std::string& where, const std::string& typed) {
    once(row.name, where);
    const std::string value = row_value(row, typed);
    Settings scratch;
    assign(scratch, row, value, where);
    given.insert(row.name);
    args.push_back(fmt::format("--{}=", row.name) + value);
    if (row.name == std::string("config")) { config = value; }
}

// an option of llm.c without a row
void CommandLine::read_llmc(const LlmcOption& option) {
    std::string value = next_value(option.name, ""), name = option.name;
    once(name, name);
    auto harmless = words(option.harmless);
    if (one_of(harmless, value)) { return; }
    if (one_of(words(option.noted), value)) {
        notes += name + " " + value + ": " + option.note + ".\n";
        return;
    }
    std::string cure = "Leave the option out.";
    if (!harmless.empty()) { cure = "Only " + name + " " + harmless[0] + " is accepted, and does nothing."; }
    if (*option.cure) { cure += std::string(" ") + option.cure; }
    fail_usage(name + " " + in_quotes(value) + ": " + option.what + " is not part of this program yet. " +
               cure);
}

// llm.c's switch for HellaSwag's questions; -h alone is help
void CommandLine::read_hellaswag() {
    const std::string value = next_value("-h", "help");
    once("-h", "-h");
    if (value != "0" && value != "1") {
        fail_usage("-h " + in_quotes(value) +
                   ": expected 1, to ask HellaSwag's questions, or 0, as in llm.c. For help: --help, or -h "
                   "alone.");
    }
    hellaswag = value == "1";
}

void CommandLine::read_alias(const LlmcAlias& alias) {
    std::string where = fmt::format("{} (--{})", alias.name, alias.row), value = next_value(where, alias.row);
    auto meanings = words(alias.words);
    if (meanings.empty()) { return add(*find_row(alias.row), where, value); }
    std::string expected;
    for (size_t i = 0; i < meanings.size(); i++) {
        if (value == std::to_string(i)) { return add(*find_row(alias.row), where, meanings[i]); }
        expected += fmt::format("{}{} ({})",
                                i == 0                    ? ""
                                : i + 1 < meanings.size() ? ", "
                                                          : " or ",
                                i, meanings[i]);
    }
    fail_usage(where + ": " + in_quotes(value) + " is not known. Expected " + expected + ".");
}

void CommandLine::read(const std::string& token) {
    size_t equals = token.starts_with("--") ? token.find('=') : std::string::npos;
    std::string typed = token.substr(0, equals);
    bool has_value = equals != std::string::npos;
    const LlmcAlias* alias = find_llmc(kLlmcAliases, typed);
    const LlmcOption* option = find_llmc(kLlmcTable, typed);
    llmc_letters = llmc_letters || alias != nullptr || option != nullptr;
    if (alias != nullptr) { return read_alias(*alias); }
    if (option != nullptr) { return read_llmc(*option); }
    if (typed == "-h" && at_ < tokens_.size() && !looks_like_option(tokens_[at_])) {
        llmc_letters = true;
        return read_hellaswag();
    }
    const OptionRow* row = find_option(typed);
    if (!row) { unknown_option(token); }
    std::string where = typed.starts_with("--") ? typed : fmt::format("{} (--{})", typed, row->name);
    llmc_letters = llmc_letters || (!typed.starts_with("--") && !acts_by_itself(*row));
    if (is_switch(*row) && acts_by_itself(*row)) {
        if (has_value) { fail_usage(where + " takes no value."); }
        action = row->name;
    } else if (has_value) {
        add(*row, where, token.substr(equals + 1));
    } else {
        add(*row, where, is_switch(*row) ? "true" : next_value(where, row->name));
    }
}

}  // namespace llmc

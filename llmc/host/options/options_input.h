// What options.cpp builds on, without CLI11: the tables put to work, and the readers that
// turn a command line or a config file into checked pairs of name and value. Errors are Error(kExitUsage).
#pragma once
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "llmc/host/options/options_llmc.h"
#include "llmc/host/options/options_ranks.h"
#include "llmc/host/options/typed_text.h"

namespace llmc {

template <typename T>
bool holds(const OptionRow& row) {
    return std::holds_alternative<T Settings::*>(row.field);
}
// help, version and config; the others fill a field
inline bool acts_by_itself(const OptionRow& row) { return std::holds_alternative<std::monostate>(row.field); }
inline bool is_switch(const OptionRow& row) { return !*row.value; }

// two ways to say one thing: an error together; of one in the config file, the command line's other stands
inline constexpr std::pair<const char*, const char*> kRivals[] = {{"val-tokens", "val-batches"},
                                                                  {"steps", "epochs"},
                                                                  {"steps", "minutes"},
                                                                  {"epochs", "minutes"},
                                                                  {"gpus", "ranks"},
                                                                  {"model", "layers"},
                                                                  {"model", "heads"},
                                                                  {"model", "channels"}};

const OptionRow* find_row(const std::string& name);                     // null if there is none
std::string row_value(const OptionRow& row, const std::string& typed);  // with a ~ expanded, but in a prompt
std::string suggested_key(const std::string& typed);  // the name that was meant; "" if none is close
[[noreturn]] void fail_usage(const std::string& message);
std::string allowed(const OptionRow& row);  // "1 to 1,024 layers", "auto or window"; "" = any text
std::string value_text(const OptionRow& row, const Settings& s);  // what the row holds in s; "" = nothing

// Puts text into the row's field, or throws; where = the option as it was typed, or the config file's line.
void assign(Settings& s, const OptionRow& row, const std::string& text, const std::string& where);

// The command line: every option known, given once, its value in range. What is not so is an objection.
class CommandLine {
public:
    CommandLine(int argc, const char* const* argv);
    // A run goes on (--resume auto --out RUN) with the options that it had, but for those that are given. Where it has no
    // checkpoint yet, only if no others are given: what was worked out for it may not fit these. Not in a rank that
    // something else has started: others of its job may run where they do not see the folder.
    void add_config_of_run();

    std::vector<std::string> objections;
    bool all_rows = true;           // are the objections to options of llm.c without a row only?
    std::string notes;              // what has no effect here, a line each
    bool hellaswag = false;         // llm.c's -h 1
    std::string action;             // "help" or "version": what to do instead of all else
    std::string config;             // the config file
    bool of_run = false;            // it is that of the run that goes on
    bool llmc_letters = false;      // was any of llm.c's short names used?
    std::set<std::string> given;    // the rows that have a value
    std::vector<std::string> args;  // --name=value for each of them

private:
    void read(const std::string& token);
    void read_hellaswag();
    void read_llmc(const LlmcOption& option);
    void read_alias(const LlmcAlias& alias);
    void add(const OptionRow& row, const std::string& where, const std::string& typed);
    std::string next_value(const std::string& where, const char* name);
    void once(const std::string& what, const std::string& where);

    std::vector<std::string> tokens_;
    size_t at_ = 0;  // the next one to read
    std::set<std::string> seen_;
};

using Pairs = std::vector<std::pair<std::string, std::string>>;

// A config file's text, which is TOML, as pairs of name and value, checked as strictly; without those that
// the command line replaces by saying the same in another way (--model and --layers, --val-tokens and
// --val-batches).
Pairs read_config(std::string text, const CommandLine& line);

std::string escaped(const std::string& text);  // a text as a config file takes it

}  // namespace llmc

// What a row of the tables of options says (options_table.h, options_ranks.h).
#pragma once
#include <cstdint>
#include <limits>
#include <string>
#include <variant>

#include "llmc/host/options/options.h"

namespace llmc {

// what the rows fill: the options, and what is turned into one of them once all are known
struct Settings : Options {
    int64_t val_batches = 0;
};

using Field = std::variant<std::monostate, std::string Settings::*, bool Settings::*, int Settings::*,
                           int64_t Settings::*, uint64_t Settings::*, double Settings::*>;

struct OptionRow {
    const char* name;             // --name, and the key in a config file
    char letter = 0;              // llm.c's alias
    const char* value;            // what --help calls the value; "" = a switch without one
    Field field = {};             // monostate: acts by itself (help, version, config)
    double lo = 0, hi = 0;        // numbers: the range, both ends included
    bool or_minus_one = false;    // numbers: -1 is allowed too
    const char* unit = "";        // numbers: what is counted
    const char* choices = "";     // texts: the words allowed, with blanks between
    const char* empty_word = "";  // texts: the word that stands for ""
    const char* also = "";        // names that other programs give it: for "did you mean"
    const char* cpu_only = "";    // the only value that the CPU program takes; "" = any
    const char* help;
    const char* group = nullptr;  // title of the group that starts with this row
};

constexpr double kMaxInt = std::numeric_limits<int32_t>::max();
constexpr double kMaxTokens = 1e15;  // a count of tokens; exact as a double, far from overflow in int64
constexpr double kMaxLength = 1 << 20;
// below, because the optimizer computes in float: the largest beta still under 1, and an eps above 0
constexpr double kMaxBeta = 0.9999999, kMinEps = 1e-37;

}  // namespace llmc

// What the tests of the option parser share.
#pragma once
#include <unistd.h>
#include <initializer_list>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "dev/test/support/test_files.h"
#include "llmc/host/options/options.h"
#include "llmc/host/options/table.h"

namespace llmc {

using Args = std::vector<std::string>;

inline ParsedOptions fields_of_table(Program::kCpu);
inline const Table kTable = trainer_table(&fields_of_table);
// the options with a long name, and those of llm.c without one, but for -h, which is help as well
inline const std::vector<Option> kOptions = [] {
    std::vector<Option> named(kTable.options.begin(), kTable.options.end());
    std::erase_if(named, [](const Option& o) { return o.name.empty(); });
    return named;
}();
inline const std::vector<Option> kForeignOptions = [] {
    std::vector<Option> foreign(kTable.options.begin(), kTable.options.end());
    std::erase_if(foreign, [](const Option& o) { return !o.name.empty() || o.names[0] == "-h="; });
    return foreign;
}();

inline Options parse(const Args& args, int* exit_code = nullptr, Program program = Program::kCpu) {
    std::vector<const char*> argv = {program == Program::kGpu ? "./train_gpt2cu" : "./train_gpt2"};
    for (const std::string& arg : args) { argv.push_back(arg.c_str()); }
    int code = -2;
    Options options = parse_options((int)argv.size(), argv.data(), program, &code);
    if (exit_code) { *exit_code = code; }
    return options;
}

inline void check_bad(const Args& args, std::initializer_list<std::string> parts) {
    std::string line;
    for (const std::string& arg : args) { line += " [" + arg + "]"; }
    CAPTURE(line);
    check_error(error_of([&] { parse(args); }), kExitUsage, parts);
}

// the options that a config file of this text gives, with these arguments after it
inline Options parse_config(const std::string& text, Args args = {}, Program program = Program::kCpu) {
    TempFolder folder;
    write_bytes(folder / "run.toml", text);
    args.insert(args.begin(), {"--config", folder / "run.toml"});
    return parse(args, nullptr, program);
}

// what run() prints on stdout
template <typename Run>
std::string printed_by(Run run) {
    TempFolder folder;
    std::fflush(stdout);
    int screen = dup(1);
    std::FILE* out = std::fopen((folder / "out").c_str(), "w");
    dup2(fileno(out), 1);
    run();
    std::fflush(stdout);
    dup2(screen, 1);
    close(screen);
    std::fclose(out);
    return read_bytes(folder / "out");
}

// what parsing these arguments prints on stdout
inline std::string printed(const Args& args, int* code, Program program = Program::kCpu) {
    return printed_by([&] { parse(args, code, program); });
}

// is its field such a number?
template <typename T>
bool is_number_of(const Option& row) {
    return is_number(row) && std::holds_alternative<T*>(std::get<Number>(row.field));
}

// a value that the row takes
inline std::string good_value(const Option& row) {
    if (row.name == "model") { return "d12"; }
    if (row.name == "total-batch") { return "4096"; }
    if (row.name == "max-seq-len") { return "1024"; }
    if (row.name == "seq-len") { return "512"; }
    if (!row.choices.empty()) { return split_words(row.choices)[0]; }
    if (is_number_of<double>(row)) { return "0.125"; }
    return is_number(row) ? (row.range.hi < 8 ? "0" : "8") : "runs/x";
}

}  // namespace llmc

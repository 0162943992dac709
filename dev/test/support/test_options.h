// What the tests share that parse options, or read what is printed.
#pragma once
#include <unistd.h>

#include "dev/test/support/test_files.h"
#include "llmc/host/options/options.h"

namespace llmc {

using Args = std::vector<std::string>;

inline Options parse(const Args& args, int* exit_code = nullptr, Program program = Program::kCpu) {
    std::vector<const char*> argv = {program == Program::kGpu ? "./train_gpt2cu" : "./train_gpt2"};
    for (const std::string& arg : args) { argv.push_back(arg.c_str()); }
    const std::optional<Options> options = parse_options((int)argv.size(), argv.data(), program);
    if (exit_code) { *exit_code = options ? -1 : kExitDone; }
    return options.value_or(Options());
}

inline Options parse_gpu(const Args& args) { return parse(args, nullptr, Program::kGpu); }

// the options that a config file of this text gives, with these arguments after it
inline Options parse_config(const std::string& text, Args args = {}, Program program = Program::kCpu) {
    TempFolder folder;
    write_bytes(folder / "run.toml", text);
    args.insert(args.begin(), {"--config", folder / "run.toml"});
    return parse(args, nullptr, program);
}

inline void check_bad(const Args& args, std::initializer_list<std::string> parts,
                      Program program = Program::kCpu) {
    std::string line;
    for (const std::string& arg : args) { line += " [" + arg + "]"; }
    CAPTURE(line);
    check_error([&] { parse(args, nullptr, program); }, kExitUsage, parts);
}

// what run() prints on stdout, or on stderr
template <typename Run>
std::string printed_by(Run run, int stream = STDOUT_FILENO) {
    TempFolder folder;
    std::fflush(stdout);
    int screen = dup(stream);
    std::FILE* out = std::fopen((folder / "out").c_str(), "w");
    dup2(fileno(out), stream);
    run();
    std::fflush(stdout);
    dup2(screen, stream);
    close(screen);
    std::fclose(out);
    return read_bytes(folder / "out");
}

}  // namespace llmc

// Command lines: see parse_words.h.
#include "llmc/host/parse_words.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>

#include "llmc/host/error.h"

namespace llmc {

bool parse_words(CLI::App* app, int argc, const char* const* argv, int first, const char* command) {
    std::vector<std::string> words;  // the last first, as CLI11 wants them
    for (int i = argc - 1; i >= first; i--) {
        const std::string word = argv[i], name = word.substr(0, word.find('='));
        const bool empty =
            word.starts_with("--") && word == name + "=" && app->get_option_no_throw(name) != nullptr;
        if (empty) { words.emplace_back(); }
        words.push_back(empty ? name : word);
    }
    try {
        app->parse(words);
        return true;
    } catch (const CLI::CallForHelp& e) {
        app->exit(e);
        require_printed();
        return false;
    } catch (const CLI::ParseError& e) {
        throw Error(kExitUsage, strf("%s%s. See %s --help.", command, e.what(), app->get_name().c_str()));
    }
}

void require_printed() {
    std::cout.flush();
    if (!std::cout || std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
        throw Error(kExitSaveFailed, "cannot write to standard output");
    }
}

}  // namespace llmc

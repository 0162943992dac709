// Command lines: see parse_words.h.
#include "llmc/host/options/parse_words.h"

#include <poll.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <set>

#include "llmc/host/base/error.h"
#include "llmc/host/options/typed_text.h"

namespace llmc {

namespace {

[[noreturn]] void fail_unknown(const CLI::App& app, const std::string& typed) {
    Nearest nearest(typed.substr(0, typed.find('=')));
    std::string meant;
    for (const CLI::Option* option : app.get_options()) {
        for (const std::string& name : option->get_lnames()) {
            if (nearest.improves(name)) { meant = " Did you mean --" + name + "?"; }
        }
    }
    throw CLI::ParseError("unknown option " + in_quotes(typed) + "." + meant, kExitUsage);
}

// The words as CLI11 takes them, the last first. It would name an unknown option only where nothing else is wrong, and
// not say which option was given twice.
std::vector<std::string> checked_words(CLI::App* app, const std::vector<std::string>& typed) {
    std::vector<std::string> words;
    std::set<const CLI::Option*> given;
    size_t i = 0;
    for (; i < typed.size() && typed[i] != "--"; i++) {
        const std::string& word = typed[i];
        const std::string name = word.substr(0, word.find('='));
        words.push_back(word);
        if (word.size() < 2 || word[0] != '-') {
            words.back() = at_home(word);
            continue;
        }
        const CLI::Option* option = app->get_option_no_throw(name);
        if (option == nullptr) { fail_unknown(*app, word); }
        const int most = option->get_items_expected_max();
        const std::string type = option->get_type_name();
        const auto value = [&](const std::string& text) {  // a prompt may begin with ~/
            return type.starts_with("TEXT") || type.starts_with("NAME") ? text : at_home(text);
        };
        if (most == 1 && !given.insert(option).second) {
            throw CLI::ParseError(name + " is given twice. Give it once.", kExitUsage);
        }
        if (word == name + "=") {
            words.back() = name;
            words.emplace_back();
        } else if (word != name) {
            words.back() = name + "=" + value(word.substr(name.size() + 1));
        } else if (most > 0) {
            if (i + 1 == typed.size()) { throw CLI::ParseError(name + " needs a value.", kExitUsage); }
            words.push_back(value(typed[++i]));  // its value, which may begin with a dash
        }
    }
    words.insert(words.end(), typed.begin() + (ptrdiff_t)i, typed.end());
    std::reverse(words.begin(), words.end());
    return words;
}

}  // namespace

bool parse_words(CLI::App* app, int argc, const char* const* argv, int first, const char* command) {
    try {
        app->parse(checked_words(app, {argv + std::min(first, argc), argv + argc}));
        return true;
    } catch (const CLI::CallForHelp& e) {
        app->exit(e);
        require_printed();
        return false;
    } catch (const CLI::ParseError& e) {
        std::string problem = e.what();
        if (const auto words = app->remaining(); !words.empty()) {
            problem = "unexpected argument " + in_quotes(words.front()) +
                      ": every value follows the name of its option";
        }
        for (const CLI::Option* option : app->get_options()) {
            if (problem == option->get_name() + " is required") {
                problem += ": " + option->get_description();
            }
        }
        const char* stop = problem.ends_with('.') || problem.ends_with('?') ? "" : ".";
        throw Error(kExitUsage,
                    fmt::format("{}{}{} See {} --help.", command, problem, stop, app->get_name()));
    }
}

template <typename T>
CLI::Validator number_range(T low, T high) {
    const std::string range = bound_text((double)low) + " to " + bound_text((double)high);
    const auto check = [=](std::string& text) {
        T value{};
        const auto fits = [&](double number) { return number >= (double)low && number <= (double)high; };
        std::string problem = number_problem(text, range, fits, &value);
        if (std::is_integral_v<T> && problem.empty()) { text = std::to_string(value); }
        return problem;
    };
    return CLI::Validator(check, range);
}
template CLI::Validator number_range(int, int);
template CLI::Validator number_range(int64_t, int64_t);
template CLI::Validator number_range(uint64_t, uint64_t);
template CLI::Validator number_range(double, double);

void require_printed() {
    std::cout.flush();
    if (std::cout && std::fflush(stdout) == 0 && std::ferror(stdout) == 0) { return; }
    pollfd output = {STDOUT_FILENO, 0, 0};
    // a pipe that nobody reads any more: "| head"
    if (poll(&output, 1, 0) > 0 && (output.revents & POLLERR) != 0) {
        std::signal(SIGPIPE, SIG_DFL);
        std::raise(SIGPIPE);
    }
    throw Error(kExitSaveFailed, "cannot write to standard output");
}

}  // namespace llmc

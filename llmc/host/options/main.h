// What the mains of both trainers share: options in, errors out as messages and exit codes.
#pragma once
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <optional>

#include "llmc/host/base/error.h"
#include "llmc/host/base/resources.h"
#include "llmc/host/base/stop_signal.h"
#include "llmc/host/base/text.h"
#include "llmc/host/options/options.h"

namespace llmc {

// Calls command(argc, argv), which has a value if argv names a sub-command; else parses the options and calls
// train(options, argv). Returns what the program should.
template <typename Train, typename Command>
int run_main(const char* name, Program program, int argc, char** argv, Train train, Command command) {
    open_standard_streams();
    wait_politely(argv);
    std::signal(SIGXFSZ, SIG_IGN);  // it would end a sub-command without a word; now the write fails instead
    try {
        if (std::optional<int> done = command(argc, argv)) { return *done; }  // a signal ends it at once
        ignore_write_signals();
        int exit_code = -1;
        Options options =
            parse_options(argc, argv, program, &exit_code);  // --config may be a pipe: a signal ends the wait
        if (exit_code >= 0) { return exit_code; }
        catch_run_signals();
        return train(options, argv);
    } catch (const Error& e) {
        std::fflush(stdout);
        put_text(stderr, fmt::format("{}: {}\n", name, e.what()));
        return e.exit_code;
    } catch (const std::bad_alloc&) {
        std::fprintf(stderr, "%s: out of memory. Use a smaller --batch, --seq-len or --model.\n", name);
        return kExitDevice;
    } catch (const std::exception& e) {
        put_text(stderr, fmt::format("{}: unexpected: {}\n", name, e.what()));
        return kExitDevice;
    }
}

}  // namespace llmc

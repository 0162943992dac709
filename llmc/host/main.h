// What the mains of both trainers share: options in, errors out as messages and exit codes.
#pragma once
#include <cstdio>
#include <exception>
#include <new>

#include "llmc/host/error.h"
#include "llmc/host/options.h"
#include "llmc/host/stop_signal.h"
#include "llmc/host/threads.h"

namespace llmc {

// Parses the options and calls train(options); returns what the program should.
template <typename Train>
int run_main(const char* name, Program program, int argc, char** argv, Train train) {
    wait_politely(argv);
    try {
        int exit_code = -1;
        Options options = parse_options(argc, argv, program, &exit_code);
        if (exit_code >= 0) { return exit_code; }
        catch_stop_signals();
        return train(options);
    } catch (const Error& e) {
        std::fflush(stdout);
        std::fprintf(stderr, "%s: %s\n", name, e.what());
        return e.exit_code;
    } catch (const std::bad_alloc&) {
        std::fprintf(stderr, "%s: out of memory. Use a smaller --batch, --seq-len or --model.\n", name);
        return kExitDevice;
    } catch (const std::exception& e) {
        std::fprintf(stderr, "%s: unexpected: %s\n", name, e.what());
        return 1;
    }
}

}  // namespace llmc

// ./train_gpt2: trains GPT-2 on the CPU. The loop is llmc/trainer.h, the model llmc/gpt2_cpu.h, the options
// llmc/options.h; `./train_gpt2 --help` lists them.
#include <cstdio>
#include <exception>
#include <new>

#include "llmc/error.h"
#include "llmc/gpt2_cpu.h"
#include "llmc/options.h"
#include "llmc/stop_signal.h"
#include "llmc/threads.h"
#include "llmc/trainer.h"

int main(int argc, char** argv) {
    llmc::wait_politely(argv);
    try {
        int exit_code = -1;
        llmc::Options options = llmc::parse_options(argc, argv, &exit_code);
        if (exit_code >= 0) { return exit_code; }
        llmc::catch_stop_signals();
        return llmc::Trainer<llmc::GPT2Cpu>(options).run();
    } catch (const llmc::Error& e) {
        std::fflush(stdout);
        std::fprintf(stderr, "train_gpt2: %s\n", e.what());
        return e.exit_code;
    } catch (const std::bad_alloc&) {
        std::fprintf(stderr, "train_gpt2: out of memory. Use a smaller --batch, --seq-len or --model.\n");
        return llmc::kExitDevice;
    } catch (const std::exception& e) {
        std::fprintf(stderr, "train_gpt2: unexpected: %s\n", e.what());
        return 1;
    }
}

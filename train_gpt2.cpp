// ./train_gpt2: trains GPT-2 on the CPU. The loop is llmc/trainer.h, the model llmc/gpt2_cpu.h, the options
// llmc/options.h; `./train_gpt2 --help` lists them.
#include "llmc/gpt2_cpu.h"
#include "llmc/main.h"
#include "llmc/trainer.h"

int main(int argc, char** argv) {
    return llmc::run_main("train_gpt2", llmc::Program::kCpu, argc, argv, [](const llmc::Options& options) {
        return llmc::Trainer<llmc::GPT2Cpu>(options).run();
    });
}

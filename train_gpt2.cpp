// ./train_gpt2: trains GPT-2 on the CPU. The loop is llmc/model/trainer.h, the model llmc/model/gpt2_cpu.h, the options
// llmc/host/options.h; `./train_gpt2 --help` lists them.
#include "llmc/host/main.h"
#include "llmc/model/gpt2_cpu.h"
#include "llmc/model/trainer.h"

int main(int argc, char** argv) {
    return llmc::run_main("train_gpt2", llmc::Program::kCpu, argc, argv, [](const llmc::Options& options) {
        return llmc::Trainer<llmc::GPT2Cpu>(options).run();
    });
}

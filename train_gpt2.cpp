// ./train_gpt2: trains GPT-2 on the CPU. The loop is llmc/model/run/trainer.h, the model llmc/model/cpu/gpt2.h,
// the options llmc/host/options/options.h; `./train_gpt2 --help` lists them. Sub-commands (generate, export, eval, report):
// llmc/model/run/commands.h.
#include "llmc/model/cpu/gpt2.h"
#include "llmc/model/run/commands.h"
#include "llmc/model/run/trainer.h"

namespace llmc {
namespace {

ModelFactory models(const Options&) { return factory_of<GPT2Cpu>(); }

void require_fp32(FloatType dtype) {
    if (dtype != FloatType::kBf16) { return; }
    throw Error(kExitUsage, "--dtype bf16: the CPU computes in fp32. ./train_gpt2cu has both.");
}

std::optional<int> command(int argc, char** argv) {
    const Engine engine = {[](const ModelSource& source, FloatType dtype) {
                               require_fp32(dtype);
                               return make_cpu_decoder(source);
                           },
                           [](const ModelSource& source, FloatType dtype, int B, int T) {
                               require_fp32(dtype);
                               return make_model(factory_of<GPT2Cpu>(), source, B, T);
                           }};
    return run_command(argc, argv, engine);
}

}  // namespace
}  // namespace llmc

int main(int argc, char** argv) {
    return llmc::run_main(argc, argv, {llmc::models, "train_gpt2", llmc::Program::kCpu, llmc::command});
}

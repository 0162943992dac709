// ./train_gpt2cu: trains GPT-2 on NVIDIA GPUs, a process for each. The loop is llmc/model/run/trainer.h, the model
// llmc/model/gpu/gpt2.cuh, the options llmc/host/options/options.h; `./train_gpt2cu --help` lists them.
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "llmc/cuda/check.cuh"
#include "llmc/model/gpu/gpt2.cuh"
#include "llmc/model/profile/step_profile.h"
#include "llmc/model/run/commands.h"
#include "llmc/model/run/trainer.h"

namespace llmc {
namespace {

// calls visit with a std::type_identity of the model that the options ask for
template <typename Visit>
auto with_model(const Options& o, Visit visit) {
    if (o.dtype == FloatType::kFp32) { return visit(std::type_identity<GPT2<float, float>>{}); }
    if (o.grad_dtype == FloatType::kBf16) {
        return visit(std::type_identity<GPT2<__nv_bfloat16, __nv_bfloat16>>{});
    }
    return visit(std::type_identity<GPT2<__nv_bfloat16, float>>{});
}

// "13.0" of CUDA's 13000
std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

// how many GPUs there are to train on; throws Error(kExitDevice) if there is none
int require_gpu() {
    int count = 0, driver = 0, runtime = 0;
    cudaError_t status = cudaGetDeviceCount(&count);
    if (status == cudaSuccess && count > 0) { return count; }
    check(cudaDriverGetVersion(&driver));
    check(cudaRuntimeGetVersion(&runtime));
    std::string why = "The driver finds none: see nvidia-smi, and whether CUDA_VISIBLE_DEVICES hides it.";
    if (driver == 0) {
        why = "No NVIDIA driver is installed, or not where this program (in a container?) can see it.";
    } else if (driver < runtime) {
        why = fmt::format(
            "The driver is too old: it is made for CUDA up to {}, this program for {}. Update the driver, "
            "or build with an older CUDA Toolkit.",
            version_text(driver), version_text(runtime));
    } else if (status != cudaSuccess && status != cudaErrorNoDevice) {
        why = fmt::format("{}: {}.", cudaGetErrorName(status), cudaGetErrorString(status));
    }
    throw Error(kExitDevice, "no CUDA device. " + why + " ./train_gpt2 trains on the CPU.");
}

// where the file of --tune-gemm is not there
void tune_if_missing(const Options& options) {
    const std::string& file = options.tune_gemm;
    if (file.empty() || options.dry_run || file_kind(file) != FileKind::kMissing) { return; }
    with_model(options, [&]<typename T, typename Grad>(std::type_identity<GPT2<T, Grad>>) {
        tune_products<T, Grad>(options);
    });
}

ModelFactory models(const Options& options) {
    return with_model(options, []<typename Kind>(std::type_identity<Kind>) { return factory_of<Kind>(); });
}

// The ranks of a host take its GPUs in turn; a launcher may show each of them its own alone.
void take_gpu(const Options& options, const Comm& comm) {
    check(cudaSetDevice(comm.local_rank() % require_gpu()));
    if (comm.size() == 1) { tune_if_missing(options); }
}

int profile(const Options& options) {
    tune_if_missing(options);
    return with_model(options, [&]<typename T, typename Grad>(std::type_identity<GPT2<T, Grad>>) {
        return profile_training<T, Grad>(options);
    });
}

// generate computes in bf16 unless it is asked for fp32, eval in fp32 unless it is asked for bf16.
std::optional<int> command(int argc, char** argv) {
    const Engine engine = {[](const ModelSource& source, FloatType dtype) {
                               require_gpu();
                               return make_gpu_decoder(source, dtype != FloatType::kFp32);
                           },
                           [](const ModelSource& source, FloatType dtype, int B, int T) {
                               require_gpu();
                               Options options;
                               options.dtype = dtype == FloatType::kBf16 ? dtype : FloatType::kFp32;
                               return make_model(models(options), source, B, T);
                           }};
    return run_command(argc, argv, engine);
}

}  // namespace
}  // namespace llmc

int main(int argc, char** argv) {
    return llmc::run_main(argc, argv,
                          {llmc::models, "train_gpt2cu", llmc::Program::kGpu, llmc::command,
                           llmc::require_gpu, llmc::profile, llmc::take_gpu});
}

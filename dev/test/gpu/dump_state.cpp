// The dump of a bf16 debug state: see dump_state.h.
#include "dev/test/gpu/dump_state.h"

#include <cuda_bf16.h>
#include <cstdio>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "dev/test/support/debug_state.h"
#include "llmc/host/base/error.h"
#include "llmc/host/files/file_io.h"
#include "llmc/model/formats/checkpoint.h"
#include "llmc/model/gpu/gpt2.cuh"

namespace llmc {

namespace {

using Bf16Model = GPT2<__nv_bfloat16, float>;

// --name FILE for each of these names, all of them required
std::map<std::string, std::string> parse_files(int argc, char** argv) {
    std::map<std::string, std::string> files = {{"--dump-bf16", ""}, {"--model", ""}, {"--state", ""}};
    for (int i = 1; i < argc; i += 2) {
        auto file = files.find(argv[i]);
        if (file == files.end() || i + 1 == argc) {
            throw Error(kExitUsage,
                        fmt::format("{}: expected --dump-bf16 FILE --model FILE --state FILE", argv[i]));
        }
        file->second = argv[i + 1];
    }
    for (const auto& [name, value] : files) {
        if (value.empty()) {
            throw Error(kExitUsage, name + " is missing: --dump-bf16, --model and --state go together");
        }
    }
    return files;
}

template <typename T>
void write_values(FileWriter* out, std::span<const T> values) {
    out->write(values.data(), values.size_bytes());
}

void write_header(FileWriter* out, const Batch& batch) {
    int32_t header[kHeaderWords] = {kDebugStateMagic, kDebugStateVersion, batch.B, batch.T};
    write_values(out, std::span<const int32_t>(header));
    write_values(out, std::span<const int32_t>(batch.tokens));
    write_values(out, std::span<const int32_t>(batch.targets));
}

// (B,T,Vp) in the model, (B,T,V) in the file
void write_logits(FileWriter* out, Bf16Model* model, const Batch& batch) {
    const GPT2Config& c = model->config();
    model->evaluate(batch);
    std::span<const float> logits = model->logits();
    for (int64_t row = 0; row < (int64_t)batch.B * batch.T; row++) {
        write_values(out, logits.subspan(row * c.padded_vocab_size, c.vocab_size));
    }
}

void write_gradients(FileWriter* out, const Bf16Model& model) {
    for (int t = 0; t < kNumTensors; t++) {
        std::vector<float> values((size_t)tensor_total(model.config(), t));
        model.save_gradient(t, 0, values);
        write_values(out, std::span<const float>(values));
    }
}

}  // namespace

int dump_state_main(int argc, char** argv) {
    std::map<std::string, std::string> files = parse_files(argc, argv);
    ModelFile file(files["--model"]);
    DebugState state(files["--state"], file.config());
    const Batch& batch = state.batch();
    Bf16Model model(file.config(), batch.B, batch.T);
    model.init(0);
    load_model(file,
               [&](State s, int t, int64_t first, std::span<const float> x) { model.load(s, t, first, x); });
    FileWriter out(files["--dump-bf16"]);
    write_header(&out, batch);
    write_logits(&out, &model, batch);
    float loss = (float)model.forward_backward(std::span(&batch, 1));
    out.write(&loss, sizeof(loss));
    write_gradients(&out, model);
    out.commit();
    std::printf("wrote %s: B %d, T %d, loss %.6f\n", files["--dump-bf16"].c_str(), batch.B, batch.T, loss);
    return kExitDone;
}

}  // namespace llmc

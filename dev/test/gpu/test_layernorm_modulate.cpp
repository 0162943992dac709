// LayerNorm with each sample's scale and shift (adaLN), alone and behind a gated residual, on the GPU, against reference.h in
// double; and that reference against finite differences. A failure reads
//   layernorm_modulate dgate bf16 21x1152 gated backward, joined normal: dgate[5]: found .., expected .. within ..
#include "dev/cuda/layernorm_modulate_problems.h"
#include "dev/test/gpu/layernorm_runs.h"

using namespace llmc;
using namespace llmc::gpu_test;

namespace {

constexpr CallForm kForms[] = {{.name = "forward"},        {.name = "gated forward"},
                               {.name = "backward"},       {.name = "backward, joined"},
                               {.name = "gated backward"}, {.name = "gated backward, joined"}};

// A problem's tensors, each between guards. What samples have lies `chunk` elements apart more than it is long, each tensor
// a little more than the one before, and the first sample's `offset` elements past the alignment, like all else.
struct OnDevice {
    std::map<std::string, Tensor> all;
    Scratch scratch;
    int element_bytes;

    OnDevice(const Problem& p, int64_t samples, int chunk, int offset)
        : scratch((int64_t)layernorm_modulate_backward_scratch(p.C)),
          element_bytes(format_of(p.dtype).bytes) {
        int turn = 0;
        auto add = [&](const auto& t, const Values& values, bool input) {
            const bool of_sample = t.extent == Extent::kColumns;
            all.try_emplace(t.name, format_of(t.dtype), of_sample ? samples : p.N,
                            t.extent == Extent::kRows ? 1 : p.C, of_sample ? chunk * ++turn : 0, offset,
                            values, input);
        };
        for (const Input& t : p.in) { add(t, t.values, true); }
        for (const Output& t : p.out) { add(t, t.initial, false); }
    }
    template <typename T>
    T* get(const char* name) const {
        return reinterpret_cast<T*>(all.at(name).memory.data());
    }
    int64_t stride(const char* name) const { return (int64_t)all.at(name).pitch / element_bytes; }
};

Results run(const Problem& p, int64_t samples, int chunk, int offset) {
    OnDevice tensors(p, samples, chunk, offset);
    auto launch = [&]<typename T>() {
        launch_modulate<T>(tensors, p, samples, tensors.scratch.data(), kStream);
    };
    if (p.dtype == Dtype::kFp32) { launch.template operator()<float>(); }
    if (p.dtype == Dtype::kBf16) { launch.template operator()<bf16>(); }
    if (p.dtype == Dtype::kFp16) { launch.template operator()<half>(); }
    check_cuda(cudaDeviceSynchronize());
    Results results;
    for (const Output& t : p.out) { results.push_back(tensors.all.at(t.name).download(name_of(p, t.name))); }
    for (const auto& [name, t] : tensors.all) {
        if (t.input) { expect_unchanged(name_of(p, name.c_str()), t.memory); }
    }
    check_guards(name_of(p, "scratch"), tensors.scratch);
    return results;
}

struct Case {
    int64_t samples;
    int tokens, C;
    int chunk = 0, offset = 0;
};

// each result within its bounds, and the same bits again
void check(const Case& c, Dtype dtype, const CallForm& form, Inputs kind = Inputs::kNormal) {
    const Problem p = layernorm_modulate_problem(dtype, {c.samples * c.tokens, c.C, c.tokens}, kind, form);
    const Results found = run(p, c.samples, c.chunk, c.offset);
    for (size_t i = 0; i < found.size(); i++) {
        const Verdict v = judge_all(p.out[i], modulate_sums(c.tokens, c.C), found[i]);
        const std::string what = v.ok() ? "" : describe(p.out[i], v);
        CHECK_MESSAGE(v.ok(), (name_of(p, p.out[i].name) + ": " + what));
        if (std::getenv("PLUMB_BOUNDS") != nullptr) {
            double& worst = worst_ratios()[p.op + " " + form.name + " " + p.out[i].name];
            worst = std::max(worst, v.worst);
        }
    }
    const bool same = run(p, c.samples, c.chunk, c.offset) == found;
    CHECK_MESSAGE(same, (name_of(p, "results") + ": other bits when run again"));
}

}  // namespace

// Layouts of each vector width, on both sides of where a warp more is needed; runs of rows that begin within samples.
TEST_CASE("layernorm_modulate: widths") {
    for (int C : {8, 64, 384, 392, 768, 1024, 1152, 1280, 1288, 1536, 2432, 3072}) {
        for (const CallForm& form : kForms) {
            check({3, 19, C}, Dtype::kBf16, form);
            if (C % 64 == 0 && C < 1500) {
                check({3, 19, C}, Dtype::kFp32, form);
                check({3, 19, C}, Dtype::kFp16, form);
            }
        }
    }
}

// Rows of as many bytes as there is room for, and a vector more
TEST_CASE("layernorm_modulate: long rows") {
    for (const CallForm& form : kForms) {
        check({2, 7, 8192}, Dtype::kBf16, form);
        check({2, 5, 8200}, Dtype::kBf16, form);
        check({2, 5, 6144}, Dtype::kFp32, form);
        check({2, 5, 8192}, Dtype::kFp32, form);
    }
}

// A row a sample, one sample, fewer rows than blocks, samples of many blocks and blocks of many samples
TEST_CASE("layernorm_modulate: samples and tokens") {
    for (const CallForm& form : kForms) {
        for (Case c :
             {Case{1, 1, 1152}, {131, 1, 1152}, {1, 131, 1152}, {2, 50, 3072}, {70, 3, 1152}, {5, 33, 257}}) {
            check(c, Dtype::kBf16, form);
        }
    }
}

// Chunks of one tensor; any columns and addresses, which another kernel takes
TEST_CASE("layernorm_modulate: strides and addresses") {
    for (const CallForm& form : kForms) {
        check({4, 9, 768, 768, 0}, Dtype::kBf16, form);
        check({4, 9, 768, 768, 8}, Dtype::kBf16, form);
        check({4, 9, 768, 1, 0}, Dtype::kBf16, form);
        check({4, 9, 768, 0, 1}, Dtype::kFp32, form);
        check({3, 20, 1003, 5, 3}, Dtype::kFp16, form);
        check({40, 2, 1, 0, 0}, Dtype::kFp32, form);
    }
}

TEST_CASE("layernorm_modulate: hard inputs") {
    for (Inputs kind : {Inputs::kOffset, Inputs::kOutlier, Inputs::kDenormal, Inputs::kNonFinite}) {
        for (Dtype dtype : {Dtype::kBf16, Dtype::kFp32}) {
            for (int C : {1152, 77}) { check({2, 21, C}, dtype, kForms[0], kind); }
        }
    }
}

TEST_CASE("layernorm_modulate: what it cannot take is refused, and nothing is nothing") {
    LayerNormModulateForward<float> forward{};
    forward.C = 8;
    layernorm_modulate_forward(forward, kStream);
    forward.residual = (float*)&forward;
    CHECK_THROWS_AS(layernorm_modulate_forward(forward, kStream), Error);
    LayerNormModulateBackward<float> backward{};
    CHECK_THROWS_AS(layernorm_modulate_backward(backward, kStream), Error);
    DeviceArray<float> sums(24);
    backward.C = 8;
    backward.samples = 3;
    backward.dscale.at = backward.dshift.at = sums.data();
    layernorm_modulate_backward(backward, kStream);
    CHECK(sums.download() == Floats(24, 0));
}

// LayerNorm with each sample's scale and shift (adaLN), alone and behind a gated residual, on the GPU, against reference.h in
// double; and that reference against finite differences. A failure reads
//   layernorm_modulate dgate bf16 21x1152 gated backward, joined normal: dgate[0][5]: found .., expected .. within ..
#include "dev/test/gpu/layernorm_runs.h"

using namespace llmc;
using namespace llmc::gpu_test;

namespace {

constexpr CallForm kForms[] = {{.name = "forward"},        {.name = "gated forward"},
                               {.name = "backward"},       {.name = "backward, joined"},
                               {.name = "gated backward"}, {.name = "gated backward, joined"}};

struct Case {
    int64_t samples;
    int tokens, C;
    int pad = 0, offset = 0;  // of CallForm
};

void check(const Case& c, Dtype dtype, CallForm form, Inputs kind = Inputs::kNormal) {
    form.pad = c.pad;
    form.offset = c.offset;
    check_problem(layernorm_modulate_problem(dtype, {c.samples * c.tokens, c.C, c.tokens}, kind, form));
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

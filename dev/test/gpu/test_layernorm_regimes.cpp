// LayerNorm on the GPU at the edges of its regimes (llmc/layernorm_{forward,backward}/): widths on both sides
// of each, every form of a call, hard inputs, rings of rows that go round, the same bits again and in any
// batch. Inputs, truth and bounds are the shootouts' (dev/cuda/layernorm_problems.h, fp64's with 2^-53). A
// failure reads
//   layernorm_backward dinp bf16 133x768 dinp += normal: dinp[0][5]: found .., expected .. within ..
#include "dev/cuda/layernorm_problems.h"
#include "dev/test/gpu/layer_test.h"
#include "llmc/layernorm.h"

using namespace llmc;
using namespace llmc::gpu_test;

namespace {

// ---- a problem on the device ---------------------------------------------------------------------

template <typename T>
struct Rows {
    T* data;
    int64_t stride;  // elements
};

// One tensor of a problem: between guards, its rows `pitch` bytes apart, poison between them and wherever
// nothing is to be found before the call.
struct Tensor {
    int64_t rows;
    size_t row_bytes, pitch, element;
    DeviceArray<std::byte> memory;
    bool input;

    static Bytes image(const Values& values, const Format& f, int64_t rows, size_t row_bytes, size_t pitch) {
        Bytes all(rows * pitch, std::byte{kPoison});
        Bytes packed = values ? encode_all(*values, f) : Bytes();
        for (int64_t row = 0; row < rows && values; row++) {
            std::memcpy(&all[row * pitch], &packed[row * row_bytes], row_bytes);
        }
        return all;
    }
    Tensor(const Format& f, int64_t rows, int64_t cols, int pad, int offset, const Values& values, bool input)
        : rows(rows),
          row_bytes(cols * f.bytes),
          pitch(row_bytes + pad * f.bytes),
          element(f.bytes),
          memory(image(values, f, rows, row_bytes, pitch), offset * f.bytes),
          input(input) {}

    // the rows, packed; what lies between them must be poison still
    Bytes download(const std::string& name) const {
        check_guards(name, memory);
        Bytes all = memory.download(), packed(rows * row_bytes);
        bool intact = true;
        for (int64_t row = 0; row < rows; row++) {
            auto begin = all.begin() + row * pitch;
            std::copy(begin, begin + row_bytes, packed.begin() + row * row_bytes);
            intact &= std::all_of(begin + row_bytes, begin + pitch,
                                  [](std::byte b) { return b == std::byte{kPoison}; });
        }
        CHECK_MESSAGE(intact, (name + ": written between the rows"));
        return packed;
    }
};

struct Tensors {
    std::map<std::string, Tensor> all;

    explicit Tensors(const Problem& p) {
        int matrices = 0;  // each has a stride of its own
        auto add = [&](const auto& t, const Values& values, bool input) {
            bool matrix = t.extent == Extent::kMatrix;
            int64_t rows = t.extent == Extent::kColumns ? 1 : p.N, cols = t.extent == Extent::kRows ? 1 : p.C;
            int pad = matrix ? p.form.pad * ++matrices : 0;
            all.try_emplace(t.name, format_of(t.dtype), rows, cols, pad, p.form.offset, values, input);
        };
        for (const Input& t : p.in) { add(t, t.values, true); }
        for (const Output& t : p.out) { add(t, t.initial, false); }
    }
    // null where the problem has no such tensor, nor the one whose place it takes
    template <typename T>
    Rows<T> rows(const char* name, const char* other = "") const {
        auto at = all.find(name);
        if (at == all.end()) { at = all.find(other); }
        if (at == all.end()) { return {nullptr, 0}; }
        return {reinterpret_cast<T*>(at->second.memory.data()), (int64_t)(at->second.pitch / sizeof(T))};
    }
};

template <typename T, typename W>
void forward(const Tensors& t, const Problem& p) {
    using Acc = LayerNormAcc<T>;
    auto out = t.rows<T>("out"), residual = t.rows<T>("residual");
    auto inp2 = t.rows<T>("inp2", "residual"), inp = t.rows<T>("inp", residual.data ? "residual" : "out");
    layernorm_forward(LayerNormForward<T, W>{.out = out.data,
                                             .mean = t.rows<Acc>("mean").data,
                                             .rstd = t.rows<Acc>("rstd").data,
                                             .inp = inp.data,
                                             .weight = t.rows<W>("weight").data,
                                             .bias = t.rows<W>("bias").data,
                                             .N = p.N,
                                             .C = p.C,
                                             .eps = p.eps,
                                             .residual = residual.data,
                                             .inp2 = inp2.data,
                                             .out_stride = out.stride,
                                             .inp_stride = inp.stride,
                                             .residual_stride = residual.stride,
                                             .inp2_stride = inp2.stride},
                      kStream);
}

template <typename T, typename Grad, typename W>
void backward(const Tensors& t, const Problem& p) {
    using Acc = LayerNormAcc<T>;
    auto dinp = t.rows<T>("dinp"), dout = t.rows<T>("dout", "dinp"), inp = t.rows<T>("inp");
    Scratch scratch(layernorm_backward_scratch(p.C));
    layernorm_backward(LayerNormBackward<T, Grad, W>{.dinp = dinp.data,
                                                     .dweight = t.rows<Grad>("dweight").data,
                                                     .dbias = t.rows<Grad>("dbias").data,
                                                     .scratch = scratch.data(),
                                                     .dout = dout.data,
                                                     .inp = inp.data,
                                                     .weight = t.rows<W>("weight").data,
                                                     .mean = t.rows<Acc>("mean").data,
                                                     .rstd = t.rows<Acc>("rstd").data,
                                                     .N = p.N,
                                                     .C = p.C,
                                                     .accumulate_dinp = p.form.accumulate_dinp,
                                                     .accumulate = p.form.accumulate,
                                                     .dinp_stride = dinp.stride,
                                                     .dout_stride = dout.stride,
                                                     .inp_stride = inp.stride},
                       kStream);
    check_guards(p.op + " scratch " + p.shape(), scratch);
}

template <typename T, typename Grad = T, typename W = T>
void launch_as(const Tensors& t, const Problem& p) {
    if (p.op == "layernorm_backward") { return backward<T, Grad, W>(t, p); }
    forward<T, W>(t, p);
}
template <typename T>
void launch_narrow(const Tensors& t, const Problem& p) {
    if (p.form.fp32_weight) { return launch_as<T, float, float>(t, p); }
    p.form.fp32_gradients ? launch_as<T, float>(t, p) : launch_as<T>(t, p);
}
void launch(const Tensors& t, const Problem& p) {
    switch (p.dtype) {
        case Dtype::kFp32:
            return launch_as<float>(t, p);
        case Dtype::kBf16:
            return launch_narrow<bf16>(t, p);
        case Dtype::kFp16:
            return launch_narrow<half>(t, p);
        case Dtype::kFp64:
            return launch_as<double>(t, p);
    }
}

std::string name_of(const Problem& p, const char* tensor) {
    return p.op + " " + tensor + " " + p.shape() + " " + p.inputs;
}

// the outputs' bytes, in the problem's order
std::vector<Bytes> run(const Problem& p) {
    Tensors tensors(p);
    launch(tensors, p);
    check_cuda(cudaDeviceSynchronize());
    std::vector<Bytes> results;
    for (const Output& t : p.out) { results.push_back(tensors.all.at(t.name).download(name_of(p, t.name))); }
    for (const auto& [name, t] : tensors.all) {
        if (t.input) { expect_unchanged(name_of(p, name.c_str()), t.memory); }
    }
    return results;
}

// ---- verdicts ------------------------------------------------------------------------------------

// Additions that one number goes through, at most. A row: no path has a longer chain than a warp alone with
// all of it: a lane's share, up to 8 elements more (its last vector), 5 among lanes. Teams of w >= 4 warps
// have C / (32 w) + 8 + 5 in a warp, then w / 32 + 5 of at most 512 warps' numbers: less, as w > 4 only for
// rows of over 256 w elements. A column: of N terms in any order at most N - 1 additions are not of a zero.
Sums sums_of(const Problem& p) { return {.row = std::ceil(p.C / 32.0) + 16, .column = (double)p.N}; }

// every element within its bound, and the same bits a second time
void check_problem(const Problem& p) {
    std::vector<Bytes> found = run(p);
    for (size_t i = 0; i < found.size(); i++) {
        const Output& out = p.out[i];
        Verdict v = judge_all(out, sums_of(p), found[i]);
        std::string name = name_of(p, out.name);
        bool right = v.ok();
        CHECK_MESSAGE(right, (name + ": " + (right ? "" : describe(out, v))));
        if (std::getenv("PLUMB_BOUNDS") != nullptr) {
            double& worst = worst_ratios()[p.op + " " + out.name + " " + format_of(p.dtype).name];
            worst = std::max(worst, v.worst);
        }
    }
    bool same = run(p) == found;
    CHECK_MESSAGE(same, (name_of(p, "results") + ": other bits when run again"));
}

// rows by themselves give the bits that they give among others
void check_batches(const Problem& p) {
    std::vector<Bytes> all = run(p);
    for (int64_t row : {(int64_t)0, p.N / 2, p.N - 1}) {
        auto of_row = [&](const auto& t, const Values& values) -> Values {
            if (!values || t.extent == Extent::kColumns) { return values; }
            int64_t n = t.extent == Extent::kRows ? 1 : p.C;
            auto begin = values->begin() + row * n;
            return share(std::vector<double>(begin, begin + n));
        };
        Problem alone = p;
        alone.N = 1;
        for (Input& t : alone.in) { t.values = of_row(t, t.values); }
        for (Output& t : alone.out) { t.initial = of_row(t, t.initial); }
        std::vector<Bytes> one = run(alone);
        for (size_t i = 0; i < one.size(); i++) {
            if (p.out[i].extent == Extent::kColumns) { continue; }  // sums over rows
            bool same = std::equal(one[i].begin(), one[i].end(), all[i].begin() + row * one[i].size());
            CHECK_MESSAGE(
                same, strf("%s: row %d alone has other bits", name_of(p, p.out[i].name).c_str(), (int)row));
        }
    }
}

// ---- what is tried -------------------------------------------------------------------------------

using MakeProblem = Problem(Dtype, Shape, Inputs, const CallForm&);
constexpr MakeProblem* kForwards[] = {&layernorm_forward_problem, &residual_layernorm_forward_problem};

// Forward: a warp up to 7 x 32 vectors (1792 of 16 bits, 896 of fp32), a block of 4 to 32 warps up to 4 x
// 1024 (32768, 16384), clusters up to 16 times that; else general. Backward's ring: one block up to 4096,
// clusters of 4, 8, 16 blocks up to 10240, 20480, 131072; slices of a cluster's rows that are not all alike
// between.
constexpr int kVectorWidths[] = {8,     248,   256,   264,   512,   768,    896,    904,
                                 1024,  1280,  1536,  1600,  1792,  1800,   2048,   4096,
                                 4104,  8192,  8704,  10240, 10248, 15872,  16384,  16392,
                                 20480, 20488, 32768, 32776, 65536, 131072, 131080, 262144};
// single elements: a warp up to 1024, blocks of 4 to 32 warps up to 16384, else general
constexpr int kElementWidths[] = {1, 3, 65, 127, 255, 769, 801, 1025, 1601, 2049, 4097, 8191, 16383, 16385};

template <typename Each>
void for_widths(Each each) {
    auto rows = [](int C) { return std::clamp<int64_t>(100'000 / C, 3, 131); };
    for (int C : kVectorWidths) { each(Shape{rows(C), C}); }
    for (int C : kElementWidths) { each(Shape{rows(C), C}); }
}

// a row for a warp, a block and a cluster in vectors; for a warp and a block in single elements
constexpr Shape kRegimes[] = {{33, 768}, {9, 4096}, {3, 16384}, {33, 769}, {9, 4097}};

const CallForm kAllAdded = {.name = "all +=", .accumulate_dinp = true, .accumulate = true};
const CallForm kFp32Added = {
    .name = "fp32 gradients +=", .fp32_gradients = true, .accumulate_dinp = true, .accumulate = true};
const CallForm& added_in(Dtype dtype) { return dtype == Dtype::kFp32 ? kAllAdded : kFp32Added; }

}  // namespace

TEST_CASE("layernorm_forward regimes: widths") {
    for (Dtype dtype : {Dtype::kFp32, Dtype::kBf16}) {
        for_widths([&](Shape s) {
            for (auto* make : kForwards) { check_problem(make(dtype, s, Inputs::kNormal, {})); }
        });
    }
}

TEST_CASE("layernorm_backward regimes: widths") {
    for (Dtype dtype : {Dtype::kFp32, Dtype::kBf16}) {
        for_widths([&](Shape s) {
            for (const CallForm& form : {CallForm{}, added_in(dtype)}) {
                check_problem(layernorm_backward_problem(dtype, s, Inputs::kNormal, form));
            }
        });
    }
}

TEST_CASE("layernorm regimes: every form of a call") {
    for (Dtype dtype : kDtypes) {
        bool narrow = format_of(dtype).bytes == 2;
        for (Shape s : kRegimes) {
            for (bool is_backward : {false, true}) {
                for (const CallForm& form : layernorm_forms(is_backward)) {
                    if ((form.fp32_weight || form.fp32_gradients) && !narrow) { continue; }
                    if (is_backward) {
                        check_problem(layernorm_backward_problem(dtype, s, Inputs::kNormal, form));
                        continue;
                    }
                    check_problem(residual_layernorm_forward_problem(dtype, s, Inputs::kNormal, form));
                    if (form.in_place == 2) { continue; }
                    check_problem(layernorm_forward_problem(dtype, s, Inputs::kNormal, form));
                }
            }
        }
    }
}

TEST_CASE("layernorm regimes: numbers of rows") {
    for (Dtype dtype : {Dtype::kFp32, Dtype::kBf16}) {
        for (int C : {65, 768, 2048}) {
            for (int64_t N : {1, 2, 131, 132, 133, 1000}) {
                if (C * N > 800'000) { continue; }
                check_problem(layernorm_forward_problem(dtype, {N, C}));
                check_problem(layernorm_backward_problem(dtype, {N, C}));
            }
        }
    }
}

// Constant rows become bias, bit for bit (the problem's bound is 0); kOffset: mean 1e4, deviations 1e-2 in
// fp32.
TEST_CASE("layernorm_forward regimes: hard inputs") {
    for (Dtype dtype : kDtypes) {
        for (Inputs kind : {Inputs::kOffset, Inputs::kConstant, Inputs::kOutlier}) {
            for (Shape s : {Shape{131, 769}, {67, 1024}, {35, 4096}, {5, 4097}, {5, 20000}}) {
                for (auto* make : kForwards) { check_problem(make(dtype, s, kind, {})); }
            }
        }
    }
}

// The ring: each team takes more than twice as many rows as its ring has stages on 132 multiprocessors, in a
// block of many teams, of few, and in clusters of 4, 8 and 16 blocks.
TEST_CASE("layernorm_backward regimes: rings that go round") {
    for (Shape s : {Shape{10600, 64}, {2700, 1280}, {600, 4096}, {400, 8704}, {200, 20480}, {70, 65536}}) {
        for (const CallForm& form : {CallForm{}, kFp32Added}) {
            check_problem(layernorm_backward_problem(Dtype::kBf16, s, Inputs::kNormal, form));
        }
    }
}

// Sums over rows that are small integers have no roundings: no row may be lost or counted twice (bound 0).
TEST_CASE("layernorm_backward regimes: exact sums over rows") {
    for (Dtype dtype : {Dtype::kFp32, Dtype::kBf16}) {
        for (Shape s : {Shape{1400, 256}, {1031, 769}, {1031, 1024}, {133, 8192}, {35, 20480}}) {
            for (const CallForm& form : {CallForm{}, kAllAdded}) {
                check_problem(layernorm_backward_problem(dtype, s, Inputs::kInteger, form));
            }
        }
    }
}

TEST_CASE("layernorm regimes: a row's result does not depend on its batch") {
    for (Dtype dtype : {Dtype::kFp32, Dtype::kBf16}) {
        for (Shape s : {Shape{1000, 768}, {1000, 255}, {133, 4096}, {67, 4097}, {19, 16384}}) {
            for (auto* make : kForwards) { check_batches(make(dtype, s, Inputs::kNormal, {})); }
            check_batches(layernorm_backward_problem(dtype, s, Inputs::kNormal, {}));
        }
    }
}

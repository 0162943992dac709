// LayerNorm's problems on the device, for its tests: test_layernorm.cpp (widths, rows, forms of a call, sums over dinp),
// test_layernorm_inputs.cpp (hard inputs, exact sums), test_layernorm_repeats.cpp (the same bits again). Inputs, truth and bounds
// are the shootouts' (dev/cuda/layernorm_problems.h, fp64's with 2^-53). A failure reads
//   layernorm_backward dinp bf16 133x768 dinp += normal: dinp[0][5]: found .., expected .. within ..
#pragma once
#include <optional>

#include "dev/cuda/layernorm_calls.h"
#include "dev/cuda/layernorm_fp8_problems.h"
#include "dev/cuda/layernorm_modulate_problems.h"
#include "dev/test/gpu/layer_test.h"
#include "llmc/layernorm/layernorm.h"

namespace llmc::gpu_test {

// ---- a problem on the device ---------------------------------------------------------------------

// One tensor of a problem: between guards, its rows `pitch` bytes apart, poison between them and wherever
// nothing is to be found before the call.
struct Tensor {
    int64_t rows;
    size_t row_bytes, pitch;
    DeviceArray<std::byte> memory;
    bool input;

    static Bytes image(const Values& values, const Format& f, int64_t rows, size_t row_bytes, size_t pitch) {
        if (!values) { return Bytes(rows * pitch, std::byte{kPoison}); }
        return apart(encode_all(*values, f), row_bytes, pitch);
    }
    // packed rows as they lie in memory
    static Bytes apart(const Bytes& packed, size_t row_bytes, size_t pitch) {
        if (pitch == row_bytes) { return packed; }
        const size_t rows = packed.size() / row_bytes;
        Bytes all(rows * pitch, std::byte{kPoison});
        for (size_t row = 0; row < rows; row++) {
            std::memcpy(&all[row * pitch], &packed[row * row_bytes], row_bytes);
        }
        return all;
    }
    Tensor(const Format& f, int64_t rows, int64_t cols, int pad, int offset, const Values& values, bool input)
        : rows(rows),
          row_bytes(cols * f.bytes),
          pitch(row_bytes + pad * f.bytes),
          memory(image(values, f, rows, row_bytes, pitch), offset * f.bytes),
          input(input) {}
    // rows in memory that somebody else has filled
    Tensor(DeviceArray<std::byte>&& memory, size_t row_bytes, size_t pitch, bool input)
        : rows(memory.size() / (int64_t)pitch),
          row_bytes(row_bytes),
          pitch(pitch),
          memory(std::move(memory)),
          input(input) {}

    // the rows, packed; what lies between them must be poison still
    Bytes download(const std::string& name) const {
        check_guards(name, memory);
        Bytes all = memory.download();
        if (pitch == row_bytes) { return all; }
        Bytes packed(rows * row_bytes);
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

inline int64_t elements_of(const Input& t) { return (int64_t)t.values->size(); }
inline int64_t elements_of(const Output& t) { return t.rows * t.cols; }

// rows x columns of a problem's tensor
template <typename T>
std::pair<int64_t, int64_t> extent_of(const Problem& p, const T& tensor) {
    if (tensor.extent != Extent::kColumns) { return {p.N, tensor.extent == Extent::kRows ? 1 : p.C}; }
    const int64_t rows = std::max<int64_t>(p.samples, 1);
    return {rows, elements_of(tensor) / rows};
}

template <typename Tensors>
auto named(Tensors& tensors, const std::string& name) {
    return std::find_if(tensors.begin(), tensors.end(), [&](const auto& t) { return t.name == name; });
}

struct Tensors {
    std::map<std::string, Tensor> all;
    std::optional<Scratch> scratch;                    // of backward
    std::optional<DeviceArray<int64_t>> dropout_rows;  // of step 0

    // only: the one tensor that has the form's distance between rows and offset (empty: all have)
    explicit Tensors(const Problem& p, const std::string& only = "") {
        add_scratch(p);
        if (p.form.drops) { dropout_rows.emplace(std::vector<int64_t>{p.form.first, 0}); }
        int matrices = 0;  // each has a stride of its own
        auto add = [&](const auto& t, const Values& values, bool input) {
            auto [rows, cols] = extent_of(p, t);
            bool formed = only.empty() || only == t.name;
            int pad = p.lies_apart(t.extent) ? p.form.pad * ++matrices : 0;
            all.try_emplace(t.name, format_of(t.dtype), rows, cols, formed ? pad : 0,
                            formed ? p.form.offset : 0, values, input);
        };
        for (const Input& t : p.in) { add(t, t.values, true); }
        for (const Output& t : p.out) { add(t, t.initial, false); }
    }
    Tensors() = default;
    void add_scratch(const Problem& p) {
        if (p.op == "layernorm_backward") { scratch.emplace(layernorm_backward_scratch(p.C)); }
        if (p.samples > 0) { scratch.emplace(layernorm_modulate_backward_scratch(p.C)); }
        if (p.form.fp8) { scratch.emplace(fp8_sums_scratch(p.N, p.C)); }
    }

    // outputs are again what they were before the call
    void reset() {
        for (auto& [name, t] : all) {
            if (t.input) { continue; }
            const Bytes& before = t.memory.uploaded();
            check_cuda(cudaMemcpy(t.memory.data(), before.data(), before.size(), cudaMemcpyHostToDevice));
        }
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

inline Dropout dropout_at(const Tensors& t, const Problem& p) {
    return dropout_of(p, p.form.drops ? (const DropoutRows*)t.dropout_rows->data() : nullptr);
}

template <typename T, typename Grad = T, typename W = T, typename Out = T>
void launch_as(const Tensors& t, const Problem& p) {
    if constexpr (sizeof(T) < sizeof(double)) {
        if (p.samples > 0) { return launch_modulate<T>(t, p, t.scratch->data(), kStream); }
    }
    const Dropout dropout = dropout_at(t, p);
    if (p.op == "layernorm_backward") {
        auto call = backward_call<T, Grad, W, Out>(t, p, t.scratch->data());
        call.dinp_sums = t.template rows<Grad>("dinp_sums").data;
        call.dropout = dropout;
        return layernorm_backward(call, kStream);
    }
    layernorm_forward(forward_call<T, W, Out>(t, p), kStream, dropout);
}
template <typename T>
void launch_two_bytes(const Tensors& t, const Problem& p) {
    if (p.form.fp32_weight) { return launch_as<T, float, float>(t, p); }
    p.form.fp32_gradients ? launch_as<T, float>(t, p) : launch_as<T>(t, p);
}
inline void launch(const Tensors& t, const Problem& p) {
    if (p.form.fp8) { return launch_fp8(t, p, t.scratch->data(), kStream, dropout_at(t, p)); }
    switch (p.dtype) {
        case Dtype::kFp32:
            if (p.form.out) {
                return with_out(p.form, [&]<typename Out>() { launch_as<float, float, float, Out>(t, p); });
            }
            return launch_as<float>(t, p);
        case Dtype::kBf16:
            return launch_two_bytes<bf16>(t, p);
        case Dtype::kFp16:
            return launch_two_bytes<half>(t, p);
        case Dtype::kFp64:
            return launch_as<double>(t, p);
        default:
            require(false, "launch: rows are not of FP8");
    }
}

inline std::string name_of(const Problem& p, const char* tensor) {
    return p.op + " " + tensor + " " + p.shape() + " " + p.inputs;
}

using Results = std::vector<Bytes>;  // of the outputs, in the problem's order

// a launch, and what it gave; whatever else it should have left alone it did
inline Results run(const Problem& p, const Tensors& tensors) {
    launch(tensors, p);
    check_cuda(cudaDeviceSynchronize());
    Results results;
    for (const Output& t : p.out) { results.push_back(tensors.all.at(t.name).download(name_of(p, t.name))); }
    for (const auto& [name, t] : tensors.all) {
        if (t.input) { expect_unchanged(name_of(p, name.c_str()), t.memory); }
    }
    if (tensors.scratch) { check_guards(name_of(p, "scratch"), *tensors.scratch); }
    return results;
}
inline Results run(const Problem& p) { return run(p, Tensors(p)); }

// ---- verdicts ------------------------------------------------------------------------------------

// Additions that one number goes through, at most. A column: of N terms in any order at most N - 1 additions are not of
// a zero.
inline Sums sums_of(const Problem& p) {
    Sums sums = p.form.fp8      ? fp8_sums(p.N, p.C)
                : p.samples > 0 ? modulate_sums(p.N / p.samples, p.C)
                                : Sums{.row = shipped_row_additions(p.C, p.dtype), .column = (double)p.N};
    sums.strict = !p.ordinary();
    return sums;
}

inline void judge_results(const Problem& p, const Results& found) {
    for (size_t i = 0; i < found.size(); i++) {
        const Output& out = p.out[i];
        if (!out.truth) { continue; }
        Verdict v = judge_all(out, sums_of(p), found[i]);
        bool right = v.ok();
        CHECK_MESSAGE(right, (name_of(p, out.name) + ": " + (right ? "" : describe(out, v))));
        if (std::getenv("PLUMB_BOUNDS") != nullptr) {
            double& worst = worst_ratios()[p.op + " " + out.name + " " + format_of(p.dtype).name];
            worst = std::max(worst, v.worst);
        }
    }
    const std::string apart = p.agree ? p.agree(found) : "";
    CHECK_MESSAGE(apart == "", (name_of(p, "results") + ": " + apart));
}

// every element within its bound, and the same bits a second time
inline Results check_problem(const Problem& p, const std::string& only = "") {
    Tensors tensors(p, only);
    Results found = run(p, tensors);
    judge_results(p, found);
    tensors.reset();
    bool same = run(p, tensors) == found;
    CHECK_MESSAGE(same, (name_of(p, "results") + ": other bits when run again"));
    return found;
}

// ---- rows by themselves --------------------------------------------------------------------------

// rows begin .. begin + count - 1 of a problem as a problem of their own; its truth is not to be asked
inline Problem some_rows(const Problem& p, int64_t begin, int64_t count) {
    Problem some = p;
    some.N = count;
    some.form.first += begin;
    auto cut = [&](const auto& t, const Values& values) -> Values {
        if (!values || t.extent == Extent::kColumns) { return values; }
        int64_t cols = extent_of(p, t).second;
        auto first = values->begin() + begin * cols;
        return share(std::vector<double>(first, first + count * cols));
    };
    for (Input& t : some.in) { t.values = cut(t, t.values); }
    for (Output& t : some.out) { t.initial = cut(t, t.initial); }
    return some;
}

// rows by themselves, and half of them in other places, give the bits that they give among all
inline void check_batches(const Problem& p) {
    struct Part {
        int64_t begin, count;
    };
    Results all = run(p);
    for (Part part : {Part{0, 1}, {1, 1}, {p.N / 2, 1}, {p.N - 1, 1}, {p.N / 3, p.N / 2}, {1, p.N - 1}}) {
        Results some = run(some_rows(p, part.begin, part.count));
        for (size_t i = 0; i < some.size(); i++) {
            if (p.out[i].extent == Extent::kColumns) { continue; }  // sums over rows
            size_t row_bytes = all[i].size() / p.N;
            bool same = std::memcmp(some[i].data(), &all[i][part.begin * row_bytes], some[i].size()) == 0;
            CHECK_MESSAGE(same, fmt::format("{}: {} rows from row {} on have other bits by themselves",
                                            name_of(p, p.out[i].name), part.count, part.begin));
        }
    }
}

// ---- rows over and over: more of them than the host can make -------------------------------------

// n bytes, so many past the alignment: the block's over and over; poison without a block
inline DeviceArray<std::byte> repeated(const Bytes& block, int64_t n, int offset) {
    DeviceArray<std::byte> x(n, offset);
    int64_t have = std::min(n, (int64_t)block.size());
    if (have == 0) { return x; }
    check_cuda(cudaMemcpy(x.data(), block.data(), have, cudaMemcpyHostToDevice));
    for (int64_t more; have < n; have += more) {  // whole blocks until the last time
        more = std::min(have, n - have);
        check_cuda(cudaMemcpy(x.data() + have, x.data(), more, cudaMemcpyDeviceToDevice));
    }
    return x;
}

// the problem's tensors with N rows instead of its own
inline Tensors repeated(const Problem& p, int64_t N) {
    Tensors tensors;
    tensors.add_scratch(p);
    int matrices = 0;  // as where there are no more than the problem's rows
    auto add = [&](const auto& t, const Values& values, bool input) {
        const Format& f = format_of(t.dtype);
        auto [rows, cols] = extent_of(p, t);
        const size_t row_bytes = cols * f.bytes;
        const int pad = t.extent == Extent::kMatrix ? p.form.pad * ++matrices : 0;
        const size_t pitch = row_bytes + pad * f.bytes;
        Bytes block = values ? Tensor::image(values, f, rows, row_bytes, pitch) : Bytes();
        const int64_t all = t.extent == Extent::kColumns ? rows : N;
        tensors.all.try_emplace(t.name, repeated(block, all * (int64_t)pitch, p.form.offset * f.bytes),
                                row_bytes, pitch, input);
    };
    for (const Input& t : p.in) { add(t, t.values, true); }
    for (const Output& t : p.out) { add(t, t.initial, false); }
    return tensors;
}

// all rows of x have the bits of the block's, packed, and what lies between them is poison; pieces of about 64 MB are looked
// at together
inline void expect_repeated(const std::string& name, const Tensor& x, const Bytes& packed) {
    check_guards(name, x.memory);
    const Bytes block = Tensor::apart(packed, x.row_bytes, x.pitch);
    int64_t period = (int64_t)block.size(), n = x.memory.size();
    int64_t piece = std::max<int64_t>(1, (64 << 20) / period) * period, wrong = -1;
    for (int64_t begin = 0; begin < n && wrong < 0; begin += piece) {
        Bytes some = x.memory.download(begin, std::min(piece, n - begin));
        for (int64_t at = 0; at < (int64_t)some.size() && wrong < 0; at += period) {
            int64_t count = std::min(period, (int64_t)some.size() - at);
            if (std::memcmp(&some[at], block.data(), count) == 0) { continue; }
            auto differs = std::mismatch(block.begin(), block.begin() + count, some.begin() + at);
            wrong = begin + at + (differs.first - block.begin());
        }
    }
    long long pitch = (long long)x.pitch;
    CHECK_MESSAGE(wrong < 0, fmt::format("{}: row {} of {}, byte {}: not the bits of row {}", name,
                                         wrong / pitch, n / pitch, wrong % pitch, wrong % period / pitch));
}

// The rows of a problem over and over, in batches of these numbers of rows: at each place a row has the bits that it has among
// the problem's rows, and by itself.
inline void check_batch_sizes(const Problem& p, const std::vector<int64_t>& sizes) {
    const Results few = check_problem(p);
    for (int64_t row = 0; row < p.N; row++) {
        const Results alone = run(some_rows(p, row, 1));
        for (size_t i = 0; i < alone.size(); i++) {
            if (p.out[i].extent == Extent::kColumns) { continue; }  // a sum over the batch
            const size_t bytes = alone[i].size();
            const bool same = std::memcmp(alone[i].data(), &few[i][row * bytes], bytes) == 0;
            CHECK_MESSAGE(same, fmt::format("{}: row {} of {} has other bits by itself",
                                            name_of(p, p.out[i].name), row, p.N));
        }
    }
    for (int64_t N : sizes) {
        Problem many = p;
        many.N = N;
        Tensors tensors = repeated(p, N);
        launch(tensors, many);
        check_cuda(cudaDeviceSynchronize());
        for (size_t i = 0; i < p.out.size(); i++) {
            if (p.out[i].extent == Extent::kColumns) { continue; }
            expect_repeated(name_of(many, p.out[i].name), tensors.all.at(p.out[i].name), few[i]);
        }
    }
}

// ---- what is tried -------------------------------------------------------------------------------

using MakeProblem = Problem(Dtype, Shape, Inputs, const CallForm&);
constexpr MakeProblem* kForwards[] = {&layernorm_forward_problem, &residual_layernorm_forward_problem};
constexpr MakeProblem* kOps[] = {&layernorm_forward_problem, &residual_layernorm_forward_problem,
                                 &layernorm_backward_problem};

inline const CallForm kPlain{};
inline const CallForm kAllAdded = {.name = "all +=", .accumulate_dinp = true, .accumulate = true};
inline const CallForm kFp32Added = {
    .name = "fp32 gradients +=", .fp32_gradients = true, .accumulate_dinp = true, .accumulate = true};
inline const CallForm kFp32Weight = {.name = "fp32 weight", .fp32_weight = true, .fp32_gradients = true};
inline const CallForm kFp32WeightAdded = {.name = "fp32 weight, all +=",
                                          .fp32_weight = true,
                                          .fp32_gradients = true,
                                          .accumulate_dinp = true,
                                          .accumulate = true};

// A type of the rows, with the weights of the same or of fp32.
struct TypePair {
    Dtype dtype;
    bool fp32_weight;
    const CallForm& plain() const { return fp32_weight ? kFp32Weight : kPlain; }
    const CallForm& added() const {
        return fp32_weight ? kFp32WeightAdded : format_of(dtype).bytes == 2 ? kFp32Added : kAllAdded;
    }
};
inline CallForm rms_of(CallForm form) {
    form.rms = true;
    return form;
}
constexpr TypePair kTypePairs[] = {{Dtype::kFp32, false},
                                   {Dtype::kBf16, false},
                                   {Dtype::kFp16, false},
                                   {Dtype::kBf16, true},
                                   {Dtype::kFp16, true}};

// A row for a warp, a block and a cluster in vectors, and very short to long ones that are not: a shape of each regime
// in every type.
constexpr Shape kRegimes[] = {{33, 768}, {9, 4096}, {2, 16384}, {2, 32768}, {37, 7},    {37, 36},    {37, 50},
                              {37, 64},  {37, 65},  {33, 769},  {5, 4097},  {2, 20001}, {2, 131'073}};

}  // namespace llmc::gpu_test

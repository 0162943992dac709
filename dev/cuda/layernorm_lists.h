// Which problems LayerNorm is checked on, and on which shapes its versions are raced. Host only.
#pragma once
#include "dev/cuda/problem.h"

namespace llmc {

// ---- --check: every version ---------------------------------------------------------------------

// every type: N, C of one, odd, beside powers of two, GPT-2's widths
inline void add_shapes(std::vector<CheckItem>& list, Dtype dtype) {
    static constexpr Shape kShapes[] = {{0, 768},   {1, 1},       {1, 768},   {2, 3},      {2, 65},
                                        {131, 1},   {131, 64},    {131, 769}, {132, 1024}, {133, 1600},
                                        {1023, 65}, {1023, 1600}, {8192, 3},  {8192, 768}, {2049, 1024}};
    for (Shape shape : kShapes) { list.push_back({dtype, shape}); }
    list.push_back({.dtype = dtype, .shape = {1023, 769}, .reruns = 50});
}

// Widths around the edges of what a warp, a block, shared memory or a cluster holds. Long rows are few;
// 16-bit types take turns where they differ in nothing but their formats.
inline void add_widths(std::vector<CheckItem>& list) {
    int turn = 0;
    for (int C : {1,    2,    3,    63,   64,   65,   255,   256,   257,   769,   1023,  1024,   1025,  1601,
                  4095, 4096, 4097, 8191, 8192, 8193, 12288, 15872, 16384, 16385, 65536, 131072, 262144}) {
        int64_t N = C <= 1601 ? 131 + turn % 3 : C <= 16385 ? 33 : 3;
        list.push_back({Dtype::kFp32, {N, C}});
        list.push_back({turn % 2 ? Dtype::kBf16 : Dtype::kFp16, {N, C}});
        turn++;
    }
}

// inputs that break careless kernels, on a row for a warp, for a block and for more than that
inline void add_nasty(std::vector<CheckItem>& list, Dtype dtype, bool backward) {
    for (Inputs inputs :
         {Inputs::kOffset, Inputs::kConstant, Inputs::kOutlier, Inputs::kDenormal, Inputs::kNonFinite}) {
        for (Shape shape : {Shape{131, 769}, {67, 1024}, {35, 4096}, {5, 20000}}) {
            list.push_back({dtype, shape, inputs});
        }
    }
    if (!backward) { return; }
    for (Shape shape : {Shape{131, 3}, {1023, 769}, {8192, 64}, {1031, 1024}, {133, 8192}}) {
        list.push_back({dtype, shape, Inputs::kInteger});
    }
}

// ---- --check: the shipped function --------------------------------------------------------------

// every form of a call that a rung need not take
inline std::vector<CallForm> layernorm_forms(bool backward) {
    std::vector<CallForm> forms = {
        {.name = "no weight", .no_weight = true},
        {.name = "strides of whole vectors", .pad = 8},
        {.name = "odd strides", .pad = 1},
        {.name = "misaligned by one", .offset = 1},
        {.name = "in place", .in_place = 1},
        {.name = "in place, odd strides", .in_place = 1, .pad = 1},
        {.name = "fp32 weight", .fp32_weight = true, .fp32_gradients = true},
        {.name = "fp32 weight, misaligned", .fp32_weight = true, .fp32_gradients = true, .offset = 1},
        {.rms = true},
        {.name = "odd strides", .pad = 1, .rms = true},
        {.name = "misaligned by one", .offset = 1, .rms = true},
        {.name = "fp32 weight", .fp32_weight = true, .fp32_gradients = true, .rms = true},
    };
    std::vector<CallForm> forward = {
        {.name = "no bias", .no_bias = true},
        {.name = "no weight, no bias", .no_weight = true, .no_bias = true},
        {.name = "no statistics", .no_statistics = true},
        {.name = "in place of the second", .in_place = 2},
        {.name = "no bias, no statistics", .no_bias = true, .no_statistics = true, .rms = true},
        {.name = "dropout, in place, odd strides", .in_place = 2, .drops = true, .pad = 1},
    };
    std::vector<CallForm> gradients = {
        {.name = "dinp +=", .accumulate_dinp = true},
        {.name = "dweight, dbias +=", .accumulate = true},
        {.name = "all +=, odd strides", .accumulate_dinp = true, .accumulate = true, .pad = 1},
        {.name = "all +=, misaligned", .accumulate_dinp = true, .accumulate = true, .offset = 1},
        {.name = "all +=, dropout, odd strides",
         .accumulate_dinp = true,
         .accumulate = true,
         .drops = true,
         .pad = 1},
        {.name = "fp32 gradients", .fp32_gradients = true},
        {.name = "fp32 gradients +=", .fp32_gradients = true, .accumulate_dinp = true, .accumulate = true},
        {.name = "no dinp", .no_dinp = true},
        {.name = "no dweight", .no_dweight = true},
        {.name = "no dbias", .no_dbias = true},
        {.name = "no weight, dinp alone", .no_weight = true, .no_dweight = true, .no_dbias = true},
        {.name = "no dbias, all +=",
         .no_dbias = true,
         .accumulate_dinp = true,
         .accumulate = true,
         .rms = true},
    };
    const auto& more = backward ? gradients : forward;
    forms.insert(forms.end(), more.begin(), more.end());
    return forms;
}

// `residual`: the op has a second input
inline void add_forms(std::vector<CheckItem>& list, Dtype dtype, bool backward, bool residual) {
    bool two_bytes = format_of(dtype).bytes == 2;
    for (const CallForm& form : layernorm_forms(backward)) {
        if ((form.fp32_weight || form.fp32_gradients) && !two_bytes) { continue; }
        if ((form.in_place == 2 || form.drops) && !residual && !backward) { continue; }
        for (Shape shape : {Shape{133, 768}, {131, 769}, {67, 1600}, {35, 4096}, {9, 16384}, {3, 65536}}) {
            list.push_back({.dtype = dtype, .shape = shape, .form = form});
        }
        if (form.accumulate) {
            list.push_back({.dtype = dtype, .shape = {1031, 1024}, .inputs = Inputs::kInteger, .form = form});
        }
        list.push_back({.dtype = dtype, .shape = {0, 65}, .form = form});
    }
}

// the same bits in every launch and in every batch
inline void add_same_bits(std::vector<CheckItem>& list, Dtype dtype) {
    for (Shape shape : {Shape{1031, 1024}, {131, 4096}, {35, 16384}, {9, 65536}}) {
        list.push_back({.dtype = dtype, .shape = shape, .reruns = 50, .shipped_only = true});
    }
    for (Shape shape : {Shape{4096, 3}, {4096, 768}, {4096, 1601}, {515, 8192}, {67, 20000}, {5, 131072}}) {
        list.push_back({.dtype = dtype, .shape = shape, .shipped_only = true, .batches = true});
    }
}

// constant rows of lengths whose reciprocals are rounded
inline void add_constant_rows(std::vector<CheckItem>& list, Dtype dtype) {
    for (Shape shape : {Shape{131, 384}, {67, 1600}, {35, 6400}, {9, 12288}, {5, 40000}}) {
        list.push_back({.dtype = dtype, .shape = shape, .inputs = Inputs::kConstant, .shipped_only = true});
    }
}

inline std::vector<CheckItem> layernorm_checks(bool backward) {
    std::vector<CheckItem> list;
    for (Dtype dtype : kDtypes) {
        add_shapes(list, dtype);
        add_nasty(list, dtype, backward);
    }
    add_widths(list);
    // Triton's tutorial tests its LayerNorm so
    list.push_back({.dtype = Dtype::kFp16, .shape = {1151, 8192}, .atol = 1e-2});
    return list;
}

// all that a shootout checks: every version, then the shipped function
inline std::vector<CheckItem> all_layernorm_checks(bool backward, bool residual = false) {
    auto list = layernorm_checks(backward);
    for (Dtype dtype : kDtypes) {
        add_forms(list, dtype, backward, residual);
        add_same_bits(list, dtype);
        add_constant_rows(list, dtype);
    }
    return list;
}

// ---- races --------------------------------------------------------------------------------------

inline std::vector<RaceItem> layernorm_races() {
    return {{Dtype::kBf16, {65536, 768}},
            {Dtype::kFp32, {8192, 768}},
            {Dtype::kBf16, {8192, 768}},
            {Dtype::kFp16, {4096, 8192}}};
}

// one row: --latency
inline std::vector<RaceItem> layernorm_latency() {
    std::vector<RaceItem> list;
    for (Dtype dtype : {Dtype::kBf16, Dtype::kFp32}) {
        for (int C : {256, 768, 1024, 1600, 4096, 8192, 16384}) { list.push_back({dtype, {1, C}}); }
    }
    return list;
}

// the sweep of Triton's tutorial: 4096 rows in fp16
inline std::vector<RaceItem> layernorm_sweep() {
    std::vector<RaceItem> list;
    for (int i = 2; i <= 31; i++) { list.push_back({Dtype::kFp16, {4096, 512 * i}}); }
    return list;
}

}  // namespace llmc

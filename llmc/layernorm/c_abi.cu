// The C interface of LayerNorm: checks the arguments, chooses the types, turns exceptions into codes. No
// state but the message of a thread's last failure.
#include "llmc/layernorm/c_abi.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <utility>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include "llmc/cuda/c_abi.cuh"
#include "llmc/host/base/error.h"
#include "llmc/layernorm/layernorm.h"
#include "llmc/layernorm/layernorm_fp8.h"
#include "llmc/layernorm/layernorm_modulate.h"

namespace {

using namespace llmc::c_abi;

static_assert((int)LLMC_LAYERNORM_OK == kOk && (int)LLMC_LAYERNORM_INVALID == kInvalid &&
              (int)LLMC_LAYERNORM_UNSUPPORTED == kUnsupported && (int)LLMC_LAYERNORM_DEVICE == kDevice &&
              (int)LLMC_LAYERNORM_INTERNAL == kInternal);

// The caller's struct, which may be a later one than ours (its new fields must be 0) or an earlier one (ours
// are 0).
template <typename Args>
Args read_args(const Args* given, size_t oldest) {
    constexpr size_t largest = 1 << 16;  // no struct grows so far: this is memory that was never set
    if (given == nullptr) { refuse("args is null, expected a pointer to a struct"); }
    size_t size = given->struct_size;
    if (size < oldest || size > largest) {
        refuse(fmt::format("struct_size is {}, expected {}: set it to the sizeof of the struct", size,
                           sizeof(Args)));
    }
    const char *bytes = (const char*)given, *end = bytes + size;
    const char* unknown =
        std::find_if(bytes + std::min(size, sizeof(Args)), end, [](char b) { return b != 0; });
    if (unknown != end) {
        throw Unsupported(
            fmt::format("a field at byte {} is set, but this library (ABI version {}) ends at byte {}: "
                        "use a newer library, or leave the field 0",
                        unknown - bytes, (int)LLMC_LAYERNORM_ABI_VERSION, sizeof(Args)));
    }
    Args args{};
    std::memcpy(&args, given, std::min(size, sizeof(Args)));
    return args;
}

struct Type {
    const char* name;
    int64_t size;
};
constexpr Type kTypes[] = {
    {}, {"float32", 4}, {"bfloat16", 2}, {"float16", 2}, {"float64", 8}};  // as the enum has them

void check_type(const char* name, int type) {
    if (type < LLMC_LAYERNORM_FLOAT32 || type > LLMC_LAYERNORM_FLOAT64) {
        refuse(fmt::format("{} is {}, expected one of the types' enum", name, type));
    }
}

// `given`, or `otherwise` where it is 0: dtype, or float32 beside a 16-bit dtype
int beside(int dtype, int given, int otherwise, const char* name) {
    int type = given != 0 ? given : otherwise;
    check_type(name, type);
    bool half = kTypes[dtype].size == 2;
    if (type != dtype && !(half && type == LLMC_LAYERNORM_FLOAT32)) {
        throw Unsupported(fmt::format("{} is {} beside dtype {}, expected {}{}", name, kTypes[type].name,
                                      kTypes[dtype].name, kTypes[dtype].name, half ? " or float32" : ""));
    }
    return type;
}

// `given`, or dtype where it is 0: 16 bits beside float32 alone
int narrower(int dtype, int given, const char* name) {
    if (given == 0 || given == dtype) { return dtype; }
    check_type(name, given);
    if (dtype != LLMC_LAYERNORM_FLOAT32 || kTypes[given].size != 2) {
        throw Unsupported(fmt::format("{} is {} beside dtype {}, expected {}{}", name, kTypes[given].name,
                                      kTypes[dtype].name, kTypes[dtype].name,
                                      dtype == LLMC_LAYERNORM_FLOAT32 ? ", bfloat16 or float16" : ""));
    }
    return given;
}

void check_columns(int64_t C) {
    if (C < 1 || C > std::numeric_limits<int32_t>::max()) {
        refuse(fmt::format("C is {}, expected 1 to 2147483647", C));
    }
}

// strides: by name
void check_shape(int64_t N, int64_t C, std::initializer_list<std::pair<const char*, int64_t>> strides) {
    if (N < 0) { refuse(fmt::format("N is {}, expected 0 or more", N)); }
    check_columns(C);
    for (auto [name, elements] : strides) {
        if (elements != 0 && elements < C) {
            refuse(fmt::format("{} is {}, expected 0 (for C) or at least C = {}", name, elements, C));
        }
        int64_t stride = elements != 0 ? elements : C;
        if (N > std::numeric_limits<int64_t>::max() / (int64_t)sizeof(double) / stride) {
            refuse(fmt::format("{}: {} rows of {} elements pass the end of a 64-bit address space", name, N,
                               stride));
        }
    }
}

struct Pointer {
    const char* name;
    const void* at;
    int dtype;
    bool needed;
};

// not null where needed, and aligned to its type
void check_pointers(std::initializer_list<Pointer> pointers) {
    for (const Pointer& p : pointers) {
        if (p.needed && p.at == nullptr) {
            refuse(fmt::format("{} is null, expected device memory", p.name));
        }
        if ((uintptr_t)p.at % kTypes[p.dtype].size != 0) {
            refuse(fmt::format("{} is {}, expected a multiple of {}, the size of {}", p.name, p.at,
                               kTypes[p.dtype].size, kTypes[p.dtype].name));
        }
    }
}

void check_flag(const char* name, int value) {
    if (value != 0 && value != 1) { refuse(fmt::format("{} is {}, expected 0 or 1", name, value)); }
}

int statistics_type(int dtype) { return kTypes[dtype].size == 8 ? dtype : LLMC_LAYERNORM_FLOAT32; }

// act.operator()<T, W>() for the types of rows and weights: those that beside() lets through
template <typename Act>
void with_types(int dtype, int weight_dtype, const Act& act) {
    auto with = [&]<typename T>() {
        weight_dtype == dtype ? act.template operator()<T, T>() : act.template operator()<T, float>();
    };
    switch (dtype) {
        case LLMC_LAYERNORM_FLOAT32:
            return with.template operator()<float>();
        case LLMC_LAYERNORM_FLOAT64:
            return act.template operator()<double, double>();
        case LLMC_LAYERNORM_BFLOAT16:
            return with.template operator()<__nv_bfloat16>();
        default:
            return with.template operator()<__half>();
    }
}

// act.operator()<Out>() for the type of out or of dout
template <typename T, typename Act>
void with_out(int out_dtype, const Act& act) {
    if constexpr (std::is_same_v<T, float>) {
        if (out_dtype == LLMC_LAYERNORM_BFLOAT16) { return act.template operator()<__nv_bfloat16>(); }
        if (out_dtype == LLMC_LAYERNORM_FLOAT16) { return act.template operator()<__half>(); }
    }
    act.template operator()<T>();
}

template <typename Args>
void check_forward(const Args& a) {
    if (!(a.eps >= 0 && std::isfinite(a.eps))) {
        refuse(fmt::format("eps is {:g}, expected 0 or more", a.eps));
    }
    if ((a.residual != nullptr) != (a.inp2 != nullptr)) {
        refuse(fmt::format("{} is null, expected residual and inp2 both or neither",
                           a.inp2 ? "residual" : "inp2"));
    }
}

template <typename T, typename W, typename Out>
void forward(const llmc_layernorm_forward_args& a) {
    using Acc = llmc::acc_t<T>;
    llmc::layernorm_forward<T, W, Out>({.out = (Out*)a.out,
                                        .mean = (Acc*)a.mean,
                                        .rstd = (Acc*)a.rstd,
                                        .inp = (const T*)a.inp,
                                        .weight = (const W*)a.weight,
                                        .bias = (const W*)a.bias,
                                        .N = a.N,
                                        .C = (int)a.C,
                                        .eps = a.eps,
                                        .residual = (T*)a.residual,
                                        .inp2 = (const T*)a.inp2,
                                        .out_stride = a.out_stride,
                                        .inp_stride = a.inp_stride,
                                        .residual_stride = a.residual_stride,
                                        .inp2_stride = a.inp2_stride,
                                        .rms = a.rms != 0},
                                       (cudaStream_t)a.stream);
}

template <typename T, typename Grad, typename W, typename Out = T>
void backward(const llmc_layernorm_backward_args& a) {
    using Acc = llmc::acc_t<T>;
    llmc::layernorm_backward<T, Grad, W, Out>({.dinp = (T*)a.dinp,
                                               .dweight = (Grad*)a.dweight,
                                               .dbias = (Grad*)a.dbias,
                                               .scratch = a.workspace,
                                               .dout = (const Out*)a.dout,
                                               .inp = (const T*)a.inp,
                                               .weight = (const W*)a.weight,
                                               .mean = (const Acc*)a.mean,
                                               .rstd = (const Acc*)a.rstd,
                                               .N = a.N,
                                               .C = (int)a.C,
                                               .accumulate_dinp = a.accumulate_dinp != 0,
                                               .accumulate = a.accumulate != 0,
                                               .dinp_stride = a.dinp_stride,
                                               .dout_stride = a.dout_stride,
                                               .inp_stride = a.inp_stride,
                                               .rms = a.rms != 0,
                                               .copy = (Out*)a.copy,
                                               .copy_stride = a.copy_stride},
                                              (cudaStream_t)a.stream);
}

// ask: the function that says how many bytes are needed
template <typename Args>
void check_workspace(const Args& a, size_t needed, const char* ask) {
    if (a.workspace_size < needed) {
        refuse(
            fmt::format("workspace_size is {}, expected at least {}: ask {}", a.workspace_size, needed, ask));
    }
    if (needed > 0 && a.workspace == nullptr) { refuse("workspace is null, expected device memory"); }
    if ((uintptr_t)a.workspace % 16 != 0) {
        refuse(fmt::format("workspace is {}, expected a multiple of 16", a.workspace));
    }
}

// what both directions of the modulated one say alike; strides: by name
template <typename Args>
void check_modulated(const Args& a, std::initializer_list<std::pair<const char*, int64_t>> strides) {
    check_type("dtype", a.dtype);
    if (a.dtype == LLMC_LAYERNORM_FLOAT64 || a.reserved != 0) {
        throw Unsupported(fmt::format("dtype is {}, reserved {}; expected another type than float64, and 0",
                                      kTypes[a.dtype].name, a.reserved));
    }
    if (a.tokens < 0) { refuse(fmt::format("tokens is {}, expected 0 or more", a.tokens)); }
    if (a.samples < 0) { refuse(fmt::format("samples is {}, expected 0 or more", a.samples)); }
    check_shape(a.samples, a.C, strides);
    if (a.tokens > 0 && a.samples > std::numeric_limits<int32_t>::max() / a.tokens) {
        refuse(fmt::format("{} samples of {} tokens, expected at most 2147483647 rows", a.samples, a.tokens));
    }
}

// act.operator()<T>() for the type of the rows
template <typename Act>
void with_type(int dtype, const Act& act) {
    with_types(dtype, dtype, [&]<typename T, typename>() {
        if constexpr (sizeof(T) < sizeof(double)) { act.template operator()<T>(); }
    });
}

}  // namespace

int llmc_layernorm_abi_version(void) { return LLMC_LAYERNORM_ABI_VERSION; }

const char* llmc_layernorm_last_error(void) { return llmc::c_abi::last_error; }

int llmc_layernorm_forward(const llmc_layernorm_forward_args* args) {
    return guarded("llmc_layernorm_forward", [&] {
        auto a = read_args(args, offsetof(llmc_layernorm_forward_args, rms));  // of version 1
        check_type("dtype", a.dtype);
        check_flag("rms", a.rms);
        int out_dtype = narrower(a.dtype, a.out_dtype, "out_dtype");
        int weight_dtype = beside(a.dtype, a.weight_dtype, a.dtype, "weight_dtype");
        check_shape(a.N, a.C,
                    {{"out_stride", a.out_stride},
                     {"inp_stride", a.inp_stride},
                     {"residual_stride", a.residual_stride},
                     {"inp2_stride", a.inp2_stride}});
        check_forward(a);
        int statistics = statistics_type(a.dtype);
        check_pointers({{"out", a.out, out_dtype, a.N > 0},
                        {"inp", a.inp, a.dtype, a.N > 0},
                        {"mean", a.mean, statistics, false},
                        {"rstd", a.rstd, statistics, false},
                        {"weight", a.weight, weight_dtype, false},
                        {"bias", a.bias, weight_dtype, false},
                        {"residual", a.residual, a.dtype, false},
                        {"inp2", a.inp2, a.dtype, false}});
        with_types(a.dtype, weight_dtype, [&]<typename T, typename W>() {
            with_out<T>(out_dtype, [&]<typename Out>() { forward<T, W, Out>(a); });
        });
    });
}

int llmc_layernorm_forward_fp8(const llmc_layernorm_forward_fp8_args* args) {
    return guarded("llmc_layernorm_forward_fp8", [&] {
        auto a = read_args(args, sizeof(llmc_layernorm_forward_fp8_args));  // of version 2
        check_type("dtype", a.dtype);
        if (a.dtype != LLMC_LAYERNORM_BFLOAT16 || a.reserved != 0) {
            throw Unsupported(fmt::format("dtype is {}, reserved {}; expected bfloat16 and 0",
                                          kTypes[a.dtype].name, a.reserved));
        }
        check_shape(a.N, a.C, {});
        check_forward(a);
        using T = __nv_bfloat16;
        const bool any = a.N > 0;
        check_pointers({{"out", a.out, a.dtype, any},
                        {"inp", a.inp, a.dtype, any},
                        {"weight", a.weight, a.dtype, any},
                        {"bias", a.bias, a.dtype, any},
                        {"scale", a.scale, LLMC_LAYERNORM_FLOAT32, any},
                        {"amax", a.amax, LLMC_LAYERNORM_FLOAT32, false},
                        {"mean", a.mean, LLMC_LAYERNORM_FLOAT32, false},
                        {"rstd", a.rstd, LLMC_LAYERNORM_FLOAT32, false}});
        llmc::layernorm_forward_fp8<T>({.out = (uint8_t*)a.out,
                                        .transposed = (uint8_t*)a.transposed,
                                        .amax = a.amax,
                                        .mean = a.mean,
                                        .rstd = a.rstd,
                                        .inp = (const T*)a.inp,
                                        .weight = (const T*)a.weight,
                                        .bias = (const T*)a.bias,
                                        .scale = a.scale,
                                        .N = a.N,
                                        .C = (int)a.C,
                                        .eps = (float)a.eps,
                                        .residual = (T*)a.residual,
                                        .inp2 = (const T*)a.inp2},
                                       (cudaStream_t)a.stream);
    });
}

int llmc_layernorm_backward_workspace(int64_t C, size_t* bytes) {
    return guarded("llmc_layernorm_backward_workspace", [&] {
        check_columns(C);
        if (bytes == nullptr) { refuse("bytes is null, expected where to put the answer"); }
        *bytes = llmc::layernorm_backward_scratch((int)C);
    });
}

int llmc_layernorm_backward(const llmc_layernorm_backward_args* args) {
    return guarded("llmc_layernorm_backward", [&] {
        auto a = read_args(args, offsetof(llmc_layernorm_backward_args, dout_dtype));  // of version 1
        check_type("dtype", a.dtype);
        int dout_dtype = narrower(a.dtype, a.dout_dtype, "dout_dtype");
        if (a.reserved != 0) { throw Unsupported(fmt::format("reserved is {}, expected 0", a.reserved)); }
        if (a.copy != nullptr && (dout_dtype == a.dtype || a.dinp == nullptr)) {
            refuse("copy is set, expected it beside dinp and with dout_dtype of 16 bits");
        }
        int weight_dtype = beside(a.dtype, a.weight_dtype, a.dtype, "weight_dtype");
        int grad_dtype = beside(a.dtype, a.grad_dtype, weight_dtype, "grad_dtype");
        if (weight_dtype != a.dtype && grad_dtype == a.dtype) {
            throw Unsupported(fmt::format("grad_dtype is {} with weight_dtype float32, expected float32",
                                          kTypes[a.dtype].name));
        }
        check_flag("accumulate_dinp", a.accumulate_dinp);
        check_flag("accumulate", a.accumulate);
        check_flag("rms", a.rms);
        check_shape(a.N, a.C,
                    {{"dinp_stride", a.dinp_stride},
                     {"dout_stride", a.dout_stride},
                     {"inp_stride", a.inp_stride},
                     {"copy_stride", a.copy_stride}});
        bool rows = a.N > 0 && (a.dinp != nullptr || a.dweight != nullptr || a.dbias != nullptr);
        int statistics = statistics_type(a.dtype);
        check_pointers({{"dinp", a.dinp, a.dtype, false},
                        {"dweight", a.dweight, grad_dtype, false},
                        {"dbias", a.dbias, grad_dtype, false},
                        {"dout", a.dout, dout_dtype, rows},
                        {"copy", a.copy, dout_dtype, false},
                        {"inp", a.inp, a.dtype, rows},
                        {"weight", a.weight, weight_dtype, false},
                        {"mean", a.mean, statistics, rows && a.rms == 0},
                        {"rstd", a.rstd, statistics, rows}});
        check_workspace(a, llmc::layernorm_backward_scratch((int)a.C), "llmc_layernorm_backward_workspace");
        with_types(a.dtype, weight_dtype, [&]<typename T, typename W>() {
            if constexpr (sizeof(T) == 2) {
                grad_dtype == a.dtype ? backward<T, T, T>(a) : backward<T, float, W>(a);
            } else {
                with_out<T>(dout_dtype, [&]<typename Out>() { backward<T, T, T, Out>(a); });
            }
        });
    });
}

int llmc_layernorm_modulate_forward(const llmc_layernorm_modulate_forward_args* args) {
    return guarded("llmc_layernorm_modulate_forward", [&] {
        auto a = read_args(args, sizeof(llmc_layernorm_modulate_forward_args));  // of version 4
        check_modulated(a, {{"scale_stride", a.scale_stride},
                            {"shift_stride", a.shift_stride},
                            {"gate_stride", a.gate_stride}});
        check_forward(a);
        const bool any = a.samples > 0 && a.tokens > 0, gated = a.residual != nullptr;
        check_pointers({{"out", a.out, a.dtype, any},
                        {"inp", a.inp, a.dtype, any},
                        {"scale", a.scale, a.dtype, any},
                        {"shift", a.shift, a.dtype, any},
                        {"residual", a.residual, a.dtype, false},
                        {"inp2", a.inp2, a.dtype, false},
                        {"gate", a.gate, a.dtype, gated},
                        {"mean", a.mean, LLMC_LAYERNORM_FLOAT32, false},
                        {"rstd", a.rstd, LLMC_LAYERNORM_FLOAT32, false}});
        with_type(a.dtype, [&]<typename T>() {
            llmc::layernorm_modulate_forward<T>({.out = (T*)a.out,
                                                 .mean = a.mean,
                                                 .rstd = a.rstd,
                                                 .inp = (const T*)a.inp,
                                                 .scale = {(const T*)a.scale, a.scale_stride},
                                                 .shift = {(const T*)a.shift, a.shift_stride},
                                                 .samples = a.samples,
                                                 .tokens = a.tokens,
                                                 .C = (int)a.C,
                                                 .eps = a.eps,
                                                 .residual = (T*)a.residual,
                                                 .inp2 = (const T*)a.inp2,
                                                 .gate = {(const T*)a.gate, a.gate_stride}},
                                                (cudaStream_t)a.stream);
        });
    });
}

int llmc_layernorm_modulate_backward_workspace(int64_t C, size_t* bytes) {
    return guarded("llmc_layernorm_modulate_backward_workspace", [&] {
        check_columns(C);
        if (bytes == nullptr) { refuse("bytes is null, expected where to put the answer"); }
        *bytes = llmc::layernorm_modulate_backward_scratch((int)C);
    });
}

int llmc_layernorm_modulate_backward(const llmc_layernorm_modulate_backward_args* args) {
    return guarded("llmc_layernorm_modulate_backward", [&] {
        auto a = read_args(args, sizeof(llmc_layernorm_modulate_backward_args));  // of version 4
        check_modulated(a, {{"scale_stride", a.scale_stride},
                            {"gate_stride", a.gate_stride},
                            {"dscale_stride", a.dscale_stride},
                            {"dshift_stride", a.dshift_stride},
                            {"dgate_stride", a.dgate_stride}});
        const bool sums = a.samples > 0, any = sums && a.tokens > 0, gated = a.dinp2 != nullptr;
        check_pointers({{"dinp", a.dinp, a.dtype, any},
                        {"dscale", a.dscale, a.dtype, sums},
                        {"dshift", a.dshift, a.dtype, sums},
                        {"dout", a.dout, a.dtype, any},
                        {"inp", a.inp, a.dtype, any},
                        {"mean", a.mean, LLMC_LAYERNORM_FLOAT32, any},
                        {"rstd", a.rstd, LLMC_LAYERNORM_FLOAT32, any},
                        {"scale", a.scale, a.dtype, any},
                        {"dresidual", a.dresidual, a.dtype, false},
                        {"dinp2", a.dinp2, a.dtype, false},
                        {"dgate", a.dgate, a.dtype, gated},
                        {"inp2", a.inp2, a.dtype, gated},
                        {"gate", a.gate, a.dtype, gated}});
        check_workspace(a, llmc::layernorm_modulate_backward_scratch((int)a.C),
                        "llmc_layernorm_modulate_backward_workspace");
        with_type(a.dtype, [&]<typename T>() {
            llmc::layernorm_modulate_backward<T>({.dinp = (T*)a.dinp,
                                                  .dscale = {(T*)a.dscale, a.dscale_stride},
                                                  .dshift = {(T*)a.dshift, a.dshift_stride},
                                                  .scratch = a.workspace,
                                                  .dout = (const T*)a.dout,
                                                  .inp = (const T*)a.inp,
                                                  .mean = a.mean,
                                                  .rstd = a.rstd,
                                                  .scale = {(const T*)a.scale, a.scale_stride},
                                                  .samples = a.samples,
                                                  .tokens = a.tokens,
                                                  .C = (int)a.C,
                                                  .dresidual = (const T*)a.dresidual,
                                                  .dinp2 = (T*)a.dinp2,
                                                  .dgate = {(T*)a.dgate, a.dgate_stride},
                                                  .inp2 = (const T*)a.inp2,
                                                  .gate = {(const T*)a.gate, a.gate_stride}},
                                                 (cudaStream_t)a.stream);
        });
    });
}

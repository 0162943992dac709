// llmc/layernorm/c_abi.h over host memory, in float64, plain and slow: what the extension's tests call
// without a GPU
#include "llmc/layernorm/c_abi.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "llmc/host/base/fp8.h"

namespace {

thread_local std::string last_error;

int refuse(int status, const char* message) {
    last_error = message;
    return status;
}

double get(const void* at, int type, int64_t i) {
    switch (type) {
        case LLMC_LAYERNORM_FLOAT32:
            return ((const float*)at)[i];
        case LLMC_LAYERNORM_FLOAT64:
            return ((const double*)at)[i];
        case LLMC_LAYERNORM_FLOAT16:
            return (double)((const _Float16*)at)[i];
        default:
            return std::bit_cast<float>((uint32_t)((const uint16_t*)at)[i] << 16);
    }
}

void put(void* at, int type, int64_t i, double value) {
    switch (type) {
        case LLMC_LAYERNORM_FLOAT32:
            ((float*)at)[i] = (float)value;
            return;
        case LLMC_LAYERNORM_FLOAT64:
            ((double*)at)[i] = value;
            return;
        case LLMC_LAYERNORM_FLOAT16:
            ((_Float16*)at)[i] = (_Float16)(float)value;
            return;
        default: {
            uint32_t bits = std::bit_cast<uint32_t>((float)value);
            ((uint16_t*)at)[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
        }
    }
}

// as its type holds it
double rounded(int type, double value) {
    double room = 0;
    put(&room, type, 0, value);
    return get(&room, type, 0);
}

int64_t or_columns(int64_t stride, int64_t C) { return stride != 0 ? stride : C; }
int statistics_type(int dtype) { return dtype == LLMC_LAYERNORM_FLOAT64 ? dtype : LLMC_LAYERNORM_FLOAT32; }
size_t workspace_bytes(int64_t C) { return 1024 * (size_t)C; }

void forward_row(const llmc_layernorm_forward_args& a, int64_t n, std::vector<double>& row) {
    int W = a.weight_dtype != 0 ? a.weight_dtype : a.dtype, S = statistics_type(a.dtype);
    int O = a.out_dtype != 0 ? a.out_dtype : a.dtype;
    double mean = 0, variance = 0;
    for (int64_t c = 0; c < a.C; ++c) {
        row[c] = get(a.inp, a.dtype, n * or_columns(a.inp_stride, a.C) + c);
        if (a.residual != nullptr) {
            row[c] = rounded(a.dtype, row[c] + get(a.inp2, a.dtype, n * or_columns(a.inp2_stride, a.C) + c));
            put(a.residual, a.dtype, n * or_columns(a.residual_stride, a.C) + c, row[c]);
        }
        mean += a.rms != 0 ? 0 : row[c] / (double)a.C;
    }
    for (double x : row) { variance += (x - mean) * (x - mean) / (double)a.C; }
    double rstd = 1 / std::sqrt(variance + a.eps);
    for (int64_t c = 0; c < a.C; ++c) {
        double w = a.weight != nullptr ? get(a.weight, W, c) : 1,
               b = a.bias != nullptr ? get(a.bias, W, c) : 0;
        put(a.out, O, n * or_columns(a.out_stride, a.C) + c, (row[c] - mean) * rstd * w + b);
    }
    if (a.mean != nullptr) { put(a.mean, S, n, mean); }
    if (a.rstd != nullptr) { put(a.rstd, S, n, rstd); }
}

// adds the row's part to dw and db
void backward_row(const llmc_layernorm_backward_args& a, int64_t n, std::vector<double>& dw,
                  std::vector<double>& db) {
    int W = a.weight_dtype != 0 ? a.weight_dtype : a.dtype, S = statistics_type(a.dtype);
    double mean = a.rms != 0 ? 0 : get(a.mean, S, n), rstd = get(a.rstd, S, n), sum = 0, sum_xhat = 0;
    auto xhat = [&](int64_t c) {
        return (get(a.inp, a.dtype, n * or_columns(a.inp_stride, a.C) + c) - mean) * rstd;
    };
    int D = a.dout_dtype != 0 ? a.dout_dtype : a.dtype;
    auto dout = [&](int64_t c) { return get(a.dout, D, n * or_columns(a.dout_stride, a.C) + c); };
    auto weight = [&](int64_t c) { return a.weight != nullptr ? get(a.weight, W, c) : 1; };
    for (int64_t c = 0; c < a.C; ++c) {
        dw[c] += dout(c) * xhat(c);
        db[c] += dout(c);
        sum += a.rms != 0 ? 0 : dout(c) * weight(c) / (double)a.C;
        sum_xhat += dout(c) * weight(c) * xhat(c) / (double)a.C;
    }
    for (int64_t c = 0; a.dinp != nullptr && c < a.C; ++c) {
        int64_t at = n * or_columns(a.dinp_stride, a.C) + c;
        double before = a.accumulate_dinp != 0 ? get(a.dinp, a.dtype, at) : 0;
        put(a.dinp, a.dtype, at, before + rstd * (dout(c) * weight(c) - sum - xhat(c) * sum_xhat));
    }
}

}  // namespace

int llmc_layernorm_abi_version(void) { return LLMC_LAYERNORM_ABI_VERSION; }
const char* llmc_layernorm_last_error(void) { return last_error.c_str(); }

int llmc_layernorm_forward(const llmc_layernorm_forward_args* args) {
    if (args->struct_size != sizeof *args) { return refuse(LLMC_LAYERNORM_INVALID, "struct_size"); }
    if (!(args->eps >= 0)) { return refuse(LLMC_LAYERNORM_INVALID, "eps is negative, expected 0 or more"); }
    std::vector<double> row(args->C);
    for (int64_t n = 0; n < args->N; ++n) { forward_row(*args, n, row); }
    return LLMC_LAYERNORM_OK;
}

int llmc_layernorm_forward_fp8(const llmc_layernorm_forward_fp8_args* args) {
    const auto& a = *args;
    if (a.struct_size != sizeof a) { return refuse(LLMC_LAYERNORM_INVALID, "struct_size"); }
    std::vector<double> x((size_t)(a.N * a.C)), y(x), weight((size_t)a.C), bias(weight), mean((size_t)a.N),
        rstd(mean);
    for (int64_t i = 0; i < a.N * a.C; ++i) {
        x[i] = get(a.inp, a.dtype, i);
        if (a.residual == nullptr) { continue; }
        x[i] = rounded(a.dtype, x[i] + get(a.inp2, a.dtype, i));
        put(a.residual, a.dtype, i, x[i]);
    }
    for (int64_t c = 0; c < a.C; ++c) {
        weight[c] = get(a.weight, a.dtype, c), bias[c] = get(a.bias, a.dtype, c);
    }
    llmc_layernorm_forward_args f{.struct_size = sizeof f, .dtype = LLMC_LAYERNORM_FLOAT64};
    f.out = y.data(), f.mean = mean.data(), f.rstd = rstd.data(), f.inp = x.data();
    f.weight = weight.data(), f.bias = bias.data(), f.N = a.N, f.C = a.C, f.eps = a.eps;
    if (int status = llmc_layernorm_forward(&f); status != LLMC_LAYERNORM_OK) { return status; }
    for (int64_t i = 0; i < a.N * a.C; ++i) {
        const uint8_t bits = llmc::to_e4m3((float)(y[i] * *a.scale));
        ((uint8_t*)a.out)[i] = bits;
        if (a.transposed != nullptr) { ((uint8_t*)a.transposed)[i % a.C * a.N + i / a.C] = bits; }
        *a.amax = std::max(*a.amax, (float)std::abs(y[i]));
    }
    std::copy(mean.begin(), mean.end(), a.mean);
    std::copy(rstd.begin(), rstd.end(), a.rstd);
    return LLMC_LAYERNORM_OK;
}

int llmc_layernorm_backward_workspace(int64_t C, size_t* bytes) {
    *bytes = workspace_bytes(C);
    return LLMC_LAYERNORM_OK;
}

int llmc_layernorm_backward(const llmc_layernorm_backward_args* args) {
    const auto& a = *args;
    if (a.struct_size != sizeof a) { return refuse(LLMC_LAYERNORM_INVALID, "struct_size"); }
    if (a.workspace_size < workspace_bytes(a.C)) { return refuse(LLMC_LAYERNORM_INVALID, "workspace_size"); }
    std::memset(a.workspace, 0xff,
                a.workspace_size);  // one that is too small, or in use elsewhere, is noticed
    int W = a.weight_dtype != 0 ? a.weight_dtype : a.dtype, G = a.grad_dtype != 0 ? a.grad_dtype : W;
    std::vector<double> dw(a.C), db(a.C);
    for (int64_t n = 0; n < a.N; ++n) { backward_row(a, n, dw, db); }
    for (int64_t c = 0; c < a.C; ++c) {
        if (a.dweight != nullptr) {
            put(a.dweight, G, c, dw[c] + (a.accumulate != 0 ? get(a.dweight, G, c) : 0));
        }
        if (a.dbias != nullptr) { put(a.dbias, G, c, db[c] + (a.accumulate != 0 ? get(a.dbias, G, c) : 0)); }
    }
    return LLMC_LAYERNORM_OK;
}

int llmc_layernorm_modulate_backward_workspace(int64_t C, size_t* bytes) {
    return llmc_layernorm_backward_workspace(C, bytes);
}

int llmc_layernorm_modulate_forward(const llmc_layernorm_modulate_forward_args* args) {
    const auto& a = *args;
    if (a.struct_size != sizeof a) { return refuse(LLMC_LAYERNORM_INVALID, "struct_size"); }
    const auto at = [&](const void* p, int64_t stride, int64_t n, int64_t c) {
        return get(p, a.dtype, n / a.tokens * or_columns(stride, a.C) + c);
    };
    llmc_layernorm_forward_args f{.struct_size = sizeof f, .dtype = a.dtype};
    std::vector<double> row((size_t)a.C), weight(row), bias(row);
    f.weight_dtype = LLMC_LAYERNORM_FLOAT64, f.weight = weight.data(), f.bias = bias.data();
    f.out = a.out, f.mean = a.mean, f.rstd = a.rstd, f.inp = a.residual != nullptr ? a.residual : a.inp;
    f.C = a.C, f.eps = a.eps;
    for (int64_t n = 0; n < a.samples * a.tokens; ++n) {
        for (int64_t c = 0; c < a.C; ++c) {
            weight[c] = 1 + at(a.scale, a.scale_stride, n, c), bias[c] = at(a.shift, a.shift_stride, n, c);
            if (a.residual == nullptr) { continue; }
            const int64_t i = n * a.C + c;
            put(a.residual, a.dtype, i,
                get(a.inp, a.dtype, i) + at(a.gate, a.gate_stride, n, c) * get(a.inp2, a.dtype, i));
        }
        forward_row(f, n, row);
    }
    return LLMC_LAYERNORM_OK;
}

int llmc_layernorm_modulate_backward(const llmc_layernorm_modulate_backward_args* args) {
    const auto& a = *args;
    if (a.struct_size != sizeof a) { return refuse(LLMC_LAYERNORM_INVALID, "struct_size"); }
    if (a.workspace_size < workspace_bytes(a.C)) { return refuse(LLMC_LAYERNORM_INVALID, "workspace_size"); }
    std::vector<double> weight((size_t)a.C), dscale(weight), dshift(weight), dgate(weight);
    llmc_layernorm_backward_args f{.struct_size = sizeof f, .dtype = a.dtype};
    f.weight_dtype = LLMC_LAYERNORM_FLOAT64, f.weight = weight.data(), f.accumulate_dinp = 1;
    f.dinp = a.dinp, f.dout = a.dout, f.inp = a.inp, f.mean = a.mean, f.rstd = a.rstd, f.C = a.C;
    for (int64_t n = 0; n < a.samples * a.tokens; ++n) {
        const int64_t b = n / a.tokens;
        for (int64_t c = 0; c < a.C; ++c) {
            const int64_t i = n * a.C + c;
            if (n % a.tokens == 0) { dscale[c] = dshift[c] = dgate[c] = 0; }
            weight[c] = 1 + get(a.scale, a.dtype, b * or_columns(a.scale_stride, a.C) + c);
            put(a.dinp, a.dtype, i, a.dresidual != nullptr ? get(a.dresidual, a.dtype, i) : 0);
        }
        backward_row(f, n, dscale, dshift);
        for (int64_t c = 0; c < a.C; ++c) {
            const int64_t i = n * a.C + c;
            put(a.dscale, a.dtype, b * or_columns(a.dscale_stride, a.C) + c, dscale[c]);
            put(a.dshift, a.dtype, b * or_columns(a.dshift_stride, a.C) + c, dshift[c]);
            if (a.dinp2 == nullptr) { continue; }
            const double dx = get(a.dinp, a.dtype, i);
            put(a.dinp2, a.dtype, i, dx * get(a.gate, a.dtype, b * or_columns(a.gate_stride, a.C) + c));
            dgate[c] += dx * get(a.inp2, a.dtype, i);
            put(a.dgate, a.dtype, b * or_columns(a.dgate_stride, a.C) + c, dgate[c]);
        }
    }
    return LLMC_LAYERNORM_OK;
}

// The CPU reference: every layer of GPT-2, forward and backward, as plainly as it can be written. It judges
// every kernel. Real is float or double; every sum is made in double, in a fixed order that does not depend
// on the number of threads.
//   C channels, N rows (= B * T for the row-wise layers), V vocabulary, Vp its padded size, NH heads of HS =
//   C / NH.
// Activations and their gradients are written (=); gradients of parameters are added to (+=), so that
// micro-batches accumulate. No two arguments may alias. Where it differs the function says so.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "llmc/host/base/dropout.h"
#include "llmc/host/base/floats.h"
#include "llmc/host/tokens/dataloader.h"
#include "llmc/ops/muon/muon.h"
#include "llmc/ops/step_params.h"

namespace llmc {

constexpr double kLayernormEps = 1e-5;  // GPT-2's

// ---- encoder: out[b,t] = wte[token] + wpe[t] ---------------------------------------------------

// out (B,T,C); tokens (B,T), each a row of wte (V,C); wpe (maxT,C), T <= maxT
template <typename Real>
void encoder_forward_cpu(Real* out, const int32_t* tokens, const Real* wte, const Real* wpe, int B, int T,
                         int C) {
#pragma omp parallel for
    for (int64_t row = 0; row < (int64_t)B * T; row++) {
        const Real* token = wte + (int64_t)tokens[row] * C;
        const Real* position = wpe + (row % T) * C;
        for (int c = 0; c < C; c++) { out[row * C + c] = token[c] + position[c]; }
    }
}

// Each row's gradient goes to the two rows it was the sum of. Threads own columns: no two add to one element.
template <typename Real>
void encoder_backward_cpu(Real* dwte, Real* dwpe, const Real* dout, const int32_t* tokens, int B, int T,
                          int C) {
    constexpr int kChunk = 16;
#pragma omp parallel for
    for (int begin = 0; begin < C; begin += kChunk) {
        int end = std::min(C, begin + kChunk);
        for (int64_t row = 0; row < (int64_t)B * T; row++) {
            const Real* d = dout + row * C;
            Real* dtoken = dwte + (int64_t)tokens[row] * C;
            Real* dposition = dwpe + (row % T) * C;
            for (int c = begin; c < end; c++) {
                dtoken[c] += d[c];
                dposition[c] += d[c];
            }
        }
    }
}

// ---- dropout: out = inp, of which some elements become 0 and the others are scaled ---------------

// out, inp (N,C); out may alias inp. Backward is the same, of gradients.
template <typename Real>
void dropout_cpu(Real* out, const Real* inp, const Dropout& dropout, int64_t N, int C) {
#pragma omp parallel for
    for (int64_t row = 0; row < N; row++) {
        const DropoutRow mask(dropout, row, C);
        for (int begin = 0; begin < C; begin += 8) {
            const auto factors = mask.factors<8>(begin);
            for (int64_t i = row * C + begin, j = 0; j < std::min(8, C - begin); j++) {
                out[i + j] = inp[i + j] * factors[j];
            }
        }
    }
}

// ---- layernorm: out = (inp - mean) * rstd * weight + bias --------------------------------------

// out, inp (N,C); mean, rstd (N) or null if not wanted; weight, bias (C), null = 1 and 0.
// The variance is the biased one, in two passes; rstd = 1 / sqrt(var + eps). Ba et al. 2016,
// arXiv:1607.06450. rms: of RMSNorm, which takes the mean for 0; Zhang and Sennrich 2019, arXiv:1910.07467.
template <typename Real>
void layernorm_forward_cpu(Real* out, Real* mean, Real* rstd, const Real* inp, const Real* weight,
                           const Real* bias, int64_t N, int C, double eps, bool rms = false) {
#pragma omp parallel for
    for (int64_t row = 0; row < N; row++) {
        const Real* x = inp + row * C;
        Real* y = out + row * C;
        double sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
        for (int c = 0; c < C; c++) { sum += x[c]; }
        double m = rms ? 0 : sum / C;
#pragma omp simd reduction(+ : squares)
        for (int c = 0; c < C; c++) { squares += (x[c] - m) * (x[c] - m); }
        double s = 1 / std::sqrt(squares / C + eps);
        for (int c = 0; c < C; c++) {
            double w = weight != nullptr ? (double)weight[c] : 1.0;
            double b = bias != nullptr ? (double)bias[c] : 0.0;
            y[c] = (Real)((x[c] - m) * s * w + b);
        }
        if (mean != nullptr) { mean[row] = (Real)m; }
        if (rstd != nullptr) { rstd[row] = (Real)s; }
    }
}

// With xhat = (x - mean) rstd, y = w xhat + b and L the loss:
//   dL/dw = sum over rows of dy xhat,   dL/db = sum over rows of dy,   g := dL/dxhat = w dy.
//   xhat depends on x directly and through mean and rstd:
//     dxhat_j/dx_i = rstd (delta_ij - 1/C - xhat_i xhat_j / C)
//   so dx_i = rstd (g_i - c1 - xhat_i c2) with c1 = mean over c of g and c2 = mean over c of g xhat.
// dinp, dout, inp (N,C); mean, rstd (N) as saved; dweight, dbias, weight (C) or null. dinp may be null.
// accumulate: dinp, dweight and dbias are added to (+=) instead of written (=).
// rms: the mean is 0 whatever x, so mean is not read, and there is no c1.
template <typename Real>
void layernorm_backward_cpu(Real* dinp, Real* dweight, Real* dbias, const Real* dout, const Real* inp,
                            const Real* weight, const Real* mean, const Real* rstd, int64_t N, int C,
                            bool accumulate, bool rms = false) {
#pragma omp parallel for
    for (int64_t row = 0; row < N; row++) {
        if (dinp == nullptr) { continue; }
        const Real* x = inp + row * C;
        const Real* dy = dout + row * C;
        Real* dx = dinp + row * C;
        double m = rms ? 0 : mean[row], s = rstd[row];
        double c1 = 0, c2 = 0;
#pragma omp simd reduction(+ : c1, c2)
        for (int c = 0; c < C; c++) {
            double g = weight != nullptr ? (double)weight[c] * dy[c] : (double)dy[c];
            c1 += g;
            c2 += g * ((x[c] - m) * s);
        }
        c1 = rms ? 0 : c1 / C;
        c2 /= C;
        for (int c = 0; c < C; c++) {
            double g = weight != nullptr ? (double)weight[c] * dy[c] : (double)dy[c];
            double d = s * (g - c1 - (x[c] - m) * s * c2);
            dx[c] = (Real)(accumulate ? dx[c] + d : d);
        }
    }
    constexpr int kChunk = 64;  // columns a thread owns: its sums run over the rows in order
#pragma omp parallel for
    for (int begin = 0; begin < C; begin += kChunk) {
        int n = std::min(kChunk, C - begin);
        double dw[kChunk] = {}, db[kChunk] = {};
        for (int64_t row = 0; row < N; row++) {
            const Real* x = inp + row * C + begin;
            const Real* dy = dout + row * C + begin;
            double m = rms ? 0 : mean[row], s = rstd[row];
#pragma omp simd
            for (int c = 0; c < n; c++) {
                dw[c] += dy[c] * ((x[c] - m) * s);
                db[c] += dy[c];
            }
        }
        for (auto [to, sums] : {std::pair(dweight, dw), std::pair(dbias, db)}) {
            for (int c = 0; c < n && to != nullptr; c++) {
                to[begin + c] = (Real)(accumulate ? to[begin + c] + sums[c] : sums[c]);
            }
        }
    }
}

// ---- residual + layernorm: residual = inp1 + inp2, rounded to Real; out = layernorm(residual) ----

// residual, out, inp1, inp2 (N,C); residual may alias inp1 or inp2; the rest as in layernorm_forward_cpu
template <typename Real>
void residual_layernorm_forward_cpu(Real* residual, Real* out, Real* mean, Real* rstd, const Real* inp1,
                                    const Real* inp2, const Real* weight, const Real* bias, int64_t N, int C,
                                    double eps) {
#pragma omp parallel for
    for (int64_t i = 0; i < N * C; i++) { residual[i] = inp1[i] + inp2[i]; }
    layernorm_forward_cpu(out, mean, rstd, residual, weight, bias, N, C, eps);
}

// The sum hands its gradient on unchanged, so both addends get the one tensor dresidual: what already arrived
// over the residual stream plus what comes through the layernorm. dresidual (N,C), dweight, dbias (C): +=.
template <typename Real>
void residual_layernorm_backward_cpu(Real* dresidual, Real* dweight, Real* dbias, const Real* dout,
                                     const Real* residual, const Real* weight, const Real* mean,
                                     const Real* rstd, int64_t N, int C) {
    layernorm_backward_cpu(dresidual, dweight, dbias, dout, residual, weight, mean, rstd, N, C, true);
}

// ---- layernorm whose scale and shift each sample has (adaLN): out = xhat (1 + scale[b]) + shift[b] ----

// inp, inp2, residual, out (B,T,C); scale, shift, gate (B,C); mean, rstd (B,T). residual = inp + gate[b] inp2, rounded to Real,
// is what is normalised, or without residual (null) inp; no other may be null. Peebles and Xie 2023, arXiv:2212.09748.
template <typename Real>
void layernorm_modulate_forward_cpu(Real* out, Real* mean, Real* rstd, Real* residual, const Real* inp,
                                    const Real* inp2, const Real* scale, const Real* shift, const Real* gate,
                                    int64_t B, int64_t T, int C, double eps) {
    for (int64_t b = 0; b < B; b++) {
        const int64_t at = b * T * C;
        std::vector<Real> weight(scale + b * C, scale + (b + 1) * C);
        for (Real& w : weight) { w += 1; }
        for (int64_t i = at; residual != nullptr && i < at + T * C; i++) {
            residual[i] = (Real)std::fma(gate[b * C + i % C], inp2[i], inp[i]);
        }
        layernorm_forward_cpu(out + at, mean + b * T, rstd + b * T,
                              (residual != nullptr ? residual : inp) + at, weight.data(), shift + b * C, T, C,
                              eps);
    }
}

// Gradients of inp, scale, shift, and with inp2 (not null) of inp2 and gate: dinp is what comes through the layernorm plus
// dresidual (B,T,C; null = 0), which arrived over the residual stream; dinp2 = gate[b] dinp, dgate[b] = sum over t of dinp inp2.
// inp: what was normalised. All are written (=).
template <typename Real>
void layernorm_modulate_backward_cpu(Real* dinp, Real* dscale, Real* dshift, Real* dinp2, Real* dgate,
                                     const Real* dout, const Real* dresidual, const Real* inp,
                                     const Real* inp2, const Real* mean, const Real* rstd, const Real* scale,
                                     const Real* gate, int64_t B, int64_t T, int C) {
    for (int64_t b = 0; b < B; b++) {
        const int64_t at = b * T * C;
        std::vector<Real> weight(scale + b * C, scale + (b + 1) * C);
        for (Real& w : weight) { w += 1; }
        layernorm_backward_cpu(dinp + at, dscale + b * C, dshift + b * C, dout + at, inp + at, weight.data(),
                               mean + b * T, rstd + b * T, T, C, false);
        std::vector<double> sums(C);
        for (int64_t i = at; i < at + T * C; i++) {
            if (dresidual != nullptr) { dinp[i] += dresidual[i]; }
            if (inp2 == nullptr) { continue; }
            dinp2[i] = gate[b * C + i % C] * dinp[i];
            sums[i % C] += (double)dinp[i] * inp2[i];
        }
        for (int c = 0; c < C && inp2 != nullptr; c++) { dgate[b * C + c] = (Real)sums[c]; }
    }
}

// ---- matmul with bias: out = inp weight^T + bias -----------------------------------------------

// out (N,OC), inp (N,C), weight (OC,C), bias (OC) or null
template <typename Real>
void matmul_forward_cpu(Real* out, const Real* inp, const Real* weight, const Real* bias, int64_t N, int C,
                        int OC) {
#pragma omp parallel for
    for (int64_t row = 0; row < N; row++) {
        for (int o = 0; o < OC; o++) {
            double sum = bias != nullptr ? (double)bias[o] : 0.0;
#pragma omp simd reduction(+ : sum)
            for (int c = 0; c < C; c++) { sum += (double)inp[row * C + c] * weight[(int64_t)o * C + c]; }
            out[row * OC + o] = (Real)sum;
        }
    }
}

// dbias[o] += sum over rows of dout[row, o]; dout (N,OC) with rows `stride` elements apart
template <typename Real>
void bias_backward_cpu(Real* dbias, const Real* dout, int64_t N, int OC, int64_t stride) {
    constexpr int kChunk = 64;
#pragma omp parallel for
    for (int begin = 0; begin < OC; begin += kChunk) {
        int n = std::min(kChunk, OC - begin);
        double sum[kChunk] = {};
        for (int64_t row = 0; row < N; row++) {
#pragma omp simd
            for (int o = 0; o < n; o++) { sum[o] += dout[row * stride + begin + o]; }
        }
        for (int o = 0; o < n; o++) { dbias[begin + o] = (Real)(dbias[begin + o] + sum[o]); }
    }
}

// out_ro = sum_c inp_rc weight_oc + bias_o, so dinp_rc = sum_o dout_ro weight_oc, dweight_oc = sum_r dout_ro
// inp_rc, dbias_o = sum_r dout_ro. dinp (N,C) is written, dweight (OC,C) and dbias (OC) or null are added to.
template <typename Real>
void matmul_backward_cpu(Real* dinp, Real* dweight, Real* dbias, const Real* dout, const Real* inp,
                         const Real* weight, int64_t N, int C, int OC) {
#pragma omp parallel for
    for (int64_t row = 0; row < N; row++) {
        std::vector<double> sum(C, 0.0);
        for (int o = 0; o < OC; o++) {
            double d = dout[row * OC + o];
            for (int c = 0; c < C; c++) { sum[c] += d * weight[(int64_t)o * C + c]; }
        }
        for (int c = 0; c < C; c++) { dinp[row * C + c] = (Real)sum[c]; }
    }
#pragma omp parallel for
    for (int o = 0; o < OC; o++) {
        std::vector<double> sum(C, 0.0);
        for (int64_t row = 0; row < N; row++) {
            double d = dout[row * OC + o];
            for (int c = 0; c < C; c++) { sum[c] += d * inp[row * C + c]; }
        }
        for (int c = 0; c < C; c++) {
            dweight[(int64_t)o * C + c] = (Real)(dweight[(int64_t)o * C + c] + sum[c]);
        }
    }
    if (dbias != nullptr) { bias_backward_cpu(dbias, dout, N, OC, OC); }
}

// ---- causal self-attention ---------------------------------------------------------------------

// qkv (B,T,3,NH,HS) as the matmul leaves it; out (B,T,NH,HS) = (B,T,C); lse (B,NH,T): log of the sum of exp
// of a row's scores, from which backward rebuilds p_ij = exp(q_i . k_j / sqrt(HS) - lse_i), j <= i.
template <typename Real>
void attention_forward_cpu(Real* out, Real* lse, const Real* qkv, int B, int T, int C, int NH) {
    int HS = C / NH;
    double scale = 1 / std::sqrt((double)HS);
#pragma omp parallel for collapse(3)
    for (int b = 0; b < B; b++) {
        for (int h = 0; h < NH; h++) {
            for (int i = 0; i < T; i++) {
                auto row = [&](int t, int which) {
                    return qkv + ((((int64_t)b * T + t) * 3 + which) * NH + h) * HS;
                };
                std::vector<double> p(i + 1), sum(HS, 0.0);
                double largest = -INFINITY, total = 0;
                for (int j = 0; j <= i; j++) {
                    for (int c = 0; c < HS; c++) { p[j] += scale * (double)row(i, 0)[c] * row(j, 1)[c]; }
                    largest = std::max(largest, p[j]);
                }
                for (int j = 0; j <= i; j++) { total += p[j] = std::exp(p[j] - largest); }
                for (int j = 0; j <= i; j++) {
                    for (int c = 0; c < HS; c++) { sum[c] += p[j] / total * row(j, 2)[c]; }
                }
                Real* y = out + (((int64_t)b * T + i) * NH + h) * HS;
                for (int c = 0; c < HS; c++) { y[c] = (Real)sum[c]; }
                lse[((int64_t)b * NH + h) * T + i] = (Real)(largest + std::log(total));
            }
        }
    }
}

// out_i = sum_j p_ij v_j gives dv_j += p_ij dout_i and dp_ij = dout_i . v_j. Through the softmax
//   ds_ij = p_ij (dp_ij - sum_k p_ik dp_ik), and that sum is dout_i . out_i.
// s_ij = q_i . k_j / sqrt(HS) then gives dq_i += ds_ij k_j / sqrt(HS) and dk_j += ds_ij q_i / sqrt(HS).
// dqkv (B,T,3,NH,HS) is written; dout, out (B,T,NH,HS); lse (B,NH,T).
template <typename Real>
void attention_backward_cpu(Real* dqkv, const Real* dout, const Real* qkv, const Real* out, const Real* lse,
                            int B, int T, int C, int NH) {
    int HS = C / NH;
    double scale = 1 / std::sqrt((double)HS);
#pragma omp parallel for collapse(2)
    for (int b = 0; b < B; b++) {
        for (int h = 0; h < NH; h++) {
            auto at = [&](int t, int which) { return ((((int64_t)b * T + t) * 3 + which) * NH + h) * HS; };
            std::vector<double> dq((size_t)T * HS, 0.0), dk((size_t)T * HS, 0.0), dv((size_t)T * HS, 0.0);
            for (int i = 0; i < T; i++) {
                const Real* q = qkv + at(i, 0);
                const Real* d = dout + (((int64_t)b * T + i) * NH + h) * HS;
                const Real* y = out + (((int64_t)b * T + i) * NH + h) * HS;
                double dot = 0;
                for (int c = 0; c < HS; c++) { dot += (double)d[c] * y[c]; }
                for (int j = 0; j <= i; j++) {
                    const Real* k = qkv + at(j, 1);
                    const Real* v = qkv + at(j, 2);
                    double s = 0, dp = 0;
                    for (int c = 0; c < HS; c++) {
                        s += scale * (double)q[c] * k[c];
                        dp += (double)d[c] * v[c];
                    }
                    double p = std::exp(s - lse[((int64_t)b * NH + h) * T + i]);
                    double ds = p * (dp - dot) * scale;
                    for (int c = 0; c < HS; c++) {
                        dq[(size_t)i * HS + c] += ds * k[c];
                        dk[(size_t)j * HS + c] += ds * q[c];
                        dv[(size_t)j * HS + c] += p * d[c];
                    }
                }
            }
            for (int t = 0; t < T; t++) {
                for (int c = 0; c < HS; c++) {
                    dqkv[at(t, 0) + c] = (Real)dq[(size_t)t * HS + c];
                    dqkv[at(t, 1) + c] = (Real)dk[(size_t)t * HS + c];
                    dqkv[at(t, 2) + c] = (Real)dv[(size_t)t * HS + c];
                }
            }
        }
    }
}

// ---- GELU, the tanh form -----------------------------------------------------------------------

// out = x/2 (1 + tanh u), u = sqrt(2/pi) (x + 0.044715 x^3), written as x / (1 + exp(-2u)): the same number
// without the cancellation of 1 + tanh. Hendrycks and Gimpel 2016, arXiv:1606.08415. out may alias inp.
constexpr double kGeluScale = 1.5957691216057308;  // 2 sqrt(2/pi): 2u = kGeluScale (x + kGeluCubic x^3)
constexpr double kGeluCubic = 0.044715;
constexpr double kGeluLargest = 80;  // exp of it still fits a float, and 1 / (1 + exp(80)) is 0 beside 1

template <typename Real>
void gelu_forward_cpu(Real* out, const Real* inp, int64_t n) {
#pragma omp parallel for simd
    for (int64_t i = 0; i < n; i++) {
        Real x = inp[i];
        Real z = (Real)-kGeluScale * (x + (Real)kGeluCubic * x * x * x);
        z = z > (Real)kGeluLargest ? (Real)kGeluLargest : z;  // NaN stays NaN
        out[i] = x / (1 + exp_simd(z));
    }
}

// With s = 1 / (1 + exp(-2u)), out = x s: d out / dx = s + x s (1 - s) 2 du/dx. dinp may alias dout.
template <typename Real>
void gelu_backward_cpu(Real* dinp, const Real* dout, const Real* inp, int64_t n) {
#pragma omp parallel for simd
    for (int64_t i = 0; i < n; i++) {
        Real x = inp[i];
        Real z = (Real)-kGeluScale * (x + (Real)kGeluCubic * x * x * x);
        z = z > (Real)kGeluLargest ? (Real)kGeluLargest : z;
        Real e = exp_simd(z);
        Real s = 1 / (1 + e);
        Real slope = (Real)kGeluScale * (1 + 3 * (Real)kGeluCubic * x * x);
        dinp[i] = dout[i] * (s + x * s * (e * s) * slope);
    }
}

// ---- classifier: softmax and cross-entropy -----------------------------------------------------

// losses (N): -ln of the target's probability, 0 where the target is kIgnoreTarget; predicted (N) or null:
// the arg max, lowest index first; logits (N,Vp), of which the first V columns count; targets (N) below V, or kIgnoreTarget.
template <typename Real>
void classifier_forward_cpu(Real* losses, int32_t* predicted, const Real* logits, const int32_t* targets,
                            int64_t N, int V, int Vp) {
#pragma omp parallel for
    for (int64_t row = 0; row < N; row++) {
        const Real* x = logits + row * Vp;
        int best = 0;
        for (int v = 1; v < V; v++) { best = x[v] > x[best] ? v : best; }
        if (predicted != nullptr) { predicted[row] = best; }
        double total = 0;
#pragma omp simd reduction(+ : total)
        for (int v = 0; v < V; v++) { total += exp_simd(x[v] - x[best]); }
        bool ignored = targets[row] == kIgnoreTarget;
        // the difference first: beside logits of 3e37 a logarithm vanishes, and a loss of 0 is a perfect model's
        losses[row] = ignored ? 0 : (Real)(std::log(total) + ((double)x[best] - x[targets[row]]));
    }
}

// loss = log sum_v exp x_v - x_target, so dx_v = dloss (softmax(x)_v - [v == target]); 0 for ignored rows and
// for the columns from V on. dloss: a row's weight in the loss, 1 / (rows that count). dlogits may alias logits.
template <typename Real>
void classifier_backward_cpu(Real* dlogits, const Real* logits, const int32_t* targets, double dloss,
                             int64_t N, int V, int Vp) {
#pragma omp parallel for
    for (int64_t row = 0; row < N; row++) {
        const Real* x = logits + row * Vp;
        Real* d = dlogits + row * Vp;
        bool ignored = targets[row] == kIgnoreTarget;
        Real largest = x[0];
        for (int v = 1; v < V; v++) { largest = x[v] > largest ? x[v] : largest; }
        double total = 0;
#pragma omp simd reduction(+ : total)
        for (int v = 0; v < V; v++) { total += d[v] = exp_simd(x[v] - largest); }
        double scale = ignored ? 0 : dloss / total;
#pragma omp simd
        for (int v = 0; v < V; v++) { d[v] = (Real)(d[v] * scale); }
        for (int v = V; v < Vp; v++) { d[v] = 0; }
        if (!ignored) { d[targets[row]] -= (Real)dloss; }
    }
}

// ---- optimizer ---------------------------------------------------------------------------------

template <typename Real>
double sum_of_squares_cpu(const Real* x, int64_t n) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) { sum += (double)x[i] * x[i]; }
    return sum;
}

// partial[k] = the sum of squares of the k-th chunk of n numbers
template <typename Real>
void squares_of_chunks_cpu(double* partial, const Real* x, int64_t n) {
#pragma omp parallel for
    for (int64_t k = 0; k < (n + kNormChunk - 1) / kNormChunk; k++) {
        const int64_t begin = k * kNormChunk;
        partial[k] = sum_of_squares_cpu(x + begin, std::min(kNormChunk, n - begin));
    }
}

// the 2-norm of n numbers
template <typename Real>
double global_norm_cpu(const Real* x, int64_t n) {
    std::vector<double> partial((n + kNormChunk - 1) / kNormChunk, 0.0);
    squares_of_chunks_cpu(partial.data(), x, n);
    double total = 0;
    for (double sum : partial) { total += sum; }
    return std::sqrt(total);
}

struct AdamWParams {
    double lr, beta1, beta2, eps;
    double keep, grad_scale;  // by which a weight, 1 - lr x decay, and its gradient, clipping, are multiplied
    int64_t update;           // 1 for the first update: the power of the bias corrections
};

// Decoupled weight decay, Loshchilov and Hutter 2017, arXiv:1711.05101. param, m, v (n) are updated in place.
template <typename Real>
void adamw_cpu(Real* param, Real* m, Real* v, const Real* grad, int64_t n, const AdamWParams& p) {
    Real step = (Real)(p.lr / (1 - std::pow(p.beta1, p.update)));
    Real correct2 = (Real)(1 / std::sqrt(1 - std::pow(p.beta2, p.update)));
    Real keep = (Real)p.keep;
    Real beta1 = (Real)p.beta1, beta2 = (Real)p.beta2, new1 = (Real)(1 - p.beta1), new2 = (Real)(1 - p.beta2);
    Real scale = (Real)p.grad_scale, eps = (Real)p.eps;
#pragma omp parallel for simd
    for (int64_t i = 0; i < n; i++) {
        Real g = scale * grad[i];
        m[i] = beta1 * m[i] + new1 * g;
        v[i] = beta2 * v[i] + new2 * g * g;
        param[i] = keep * param[i] - step * m[i] / (std::sqrt(v[i]) * correct2 + eps);
    }
}

// ---- Muon: the rule is in llmc/ops/muon/muon.h -------------------------------------------------

// out (n,m) = inp (m,n) transposed
template <typename Real>
void transpose_cpu(Real* out, const Real* inp, int m, int n) {
    for (int i = 0; i < m; i++) {
        for (int j = 0; j < n; j++) { out[(int64_t)j * m + i] = inp[(int64_t)i * n + j]; }
    }
}

// x (rows,cols), whose norm is 1 at most, in place: five Newton-Schulz iterations
template <typename Real>
void newton_schulz_steps_cpu(Real* x, int rows, int cols) {
    const int64_t n = (int64_t)rows * cols;
    if (rows > cols) {  // x x^T is the smaller for the transpose
        std::vector<Real> wide((size_t)n);
        transpose_cpu(wide.data(), x, rows, cols);
        newton_schulz_steps_cpu(wide.data(), cols, rows);
        return transpose_cpu(x, wide.data(), cols, rows);
    }
    const int64_t square = (int64_t)rows * rows;
    std::vector<Real> a((size_t)square), b((size_t)square), xt((size_t)n), bx((size_t)n);
    for (int step = 0; step < kNewtonSchulzSteps; step++) {
        matmul_forward_cpu(a.data(), x, x, (const Real*)nullptr, rows, cols, rows);  // x x^T, and its square
        matmul_forward_cpu(b.data(), a.data(), a.data(), (const Real*)nullptr, rows, rows, rows);
        for (int64_t i = 0; i < square; i++) { b[i] = (Real)(kNewtonSchulzB * a[i] + kNewtonSchulzC * b[i]); }
        transpose_cpu(xt.data(), x, rows, cols);
        matmul_forward_cpu(bx.data(), b.data(), xt.data(), (const Real*)nullptr, rows, rows, cols);
        for (int64_t i = 0; i < n; i++) { x[i] = (Real)(kNewtonSchulzA * x[i] + bx[i]); }
    }
}

// the same, behind a division by its Frobenius norm
template <typename Real>
void newton_schulz_cpu(Real* x, int rows, int cols) {
    const int64_t n = (int64_t)rows * cols;
    const double inverse = 1 / (global_norm_cpu(x, n) + kNewtonSchulzEps);
    for (int64_t i = 0; i < n; i++) { x[i] = (Real)(inverse * x[i]); }
    newton_schulz_steps_cpu(x, rows, cols);
}

struct MuonParams {
    double lr, keep, grad_scale;  // as AdamWParams'
};

// m = mu m + (1 - mu) g in place, with g = scale grad; u = mu m + (1 - mu) g: what the mean will be if the
// next gradient is like this one (Nesterov). All (n).
template <typename Real>
void muon_momentum_cpu(Real* u, Real* m, const Real* grad, int64_t n, double grad_scale) {
    const Real mu = (Real)kMuonMomentum, fresh = (Real)(1 - kMuonMomentum), scale = (Real)grad_scale;
#pragma omp parallel for simd
    for (int64_t i = 0; i < n; i++) {
        const Real g = scale * grad[i];
        m[i] = mu * m[i] + fresh * g;
        u[i] = mu * m[i] + fresh * g;
    }
}

// param (n) = keep param - step direction
template <typename Real>
void muon_step_cpu(Real* param, const Real* direction, int64_t n, double scale, const MuonParams& p) {
    const Real keep = (Real)p.keep, step = (Real)(p.lr * scale);
#pragma omp parallel for simd
    for (int64_t i = 0; i < n; i++) { param[i] = keep * param[i] - step * direction[i]; }
}

// One matrix (rows,cols): param and m are updated in place.
template <typename Real>
void muon_cpu(Real* param, Real* m, const Real* grad, int rows, int cols, const MuonParams& p) {
    const int64_t n = (int64_t)rows * cols;
    std::vector<Real> u((size_t)n);
    muon_momentum_cpu(u.data(), m, grad, n, p.grad_scale);
    newton_schulz_cpu(u.data(), rows, cols);
    muon_step_cpu(param, u.data(), n, muon_scale(rows, cols), p);
}

}  // namespace llmc

// The passes of the plain GPT-2, in float and in double.
#include "dev/test/support/reference_model.h"

#include "llmc/model/cpu/reference.h"

namespace llmc {

template <typename Real>
Evaluation ReferenceModel<Real>::evaluate(const Batch& batch) {
    forward(batch);
    Array losses(batch.targets.size());
    predicted_.resize(losses.size());
    classifier_forward_cpu(losses.data(), predicted_.data(), logits_.data(), batch.targets.data(),
                           losses.size(), config_.vocab_size, config_.padded_vocab_size);
    losses_.assign(losses.begin(), losses.end());
    return {losses_, predicted_};
}

template <typename Real>
void ReferenceModel<Real>::forward(const Batch& batch) {
    int B = batch.B, T = batch.T, C = config_.channels, NH = config_.num_heads;
    int64_t N = (int64_t)B * T;
    Array proj;
    Real* encoded = sized(encoded_, N * C);
    encoder_forward_cpu(encoded, batch.tokens.data(), weight(kWte, 0), weight(kWpe, 0), B, T, C);
    encoded_ = dropped(encoded_, kLn1w, 0);
    store(encoded_);
    const Array* residual = &encoded_;
    for (int l = 0; l < config_.num_layers; l++) {
        Layer& a = layers_[l];
        normalise(a.ln1, *residual, kLn1w, l);
        matmul(a.qkv, a.ln1.out, kQkvw, l);
        store(a.qkv);
        attention_forward_cpu(sized(a.atty, N * C), sized(a.lse, N * NH), a.qkv.data(), B, T, C, NH);
        store(a.atty);
        matmul(proj, a.atty, kAttprojw, l);
        store(proj);
        add(a.residual2, *residual, proj, kLn2w, l);
        normalise(a.ln2, a.residual2, kLn2w, l);
        matmul(a.fch, a.ln2.out, kFcw, l);
        if (fp8()) { store(a.fch); }                                          // a kernel of its own reads it
        gelu_forward_cpu(sized(a.gelu, 4 * N * C), a.fch.data(), 4 * N * C);  // before it is rounded
        if (!fp8()) { store(a.gelu); }
        store(a.fch);
        matmul(proj, a.gelu, kFcprojw, l);
        store(proj);
        add(a.residual3, a.residual2, proj, l + 1 < config_.num_layers ? kLn1w : kLnfw, l + 1);
        residual = &a.residual3;
    }
    normalise(lnf_, *residual, kLnfw, 0);
    matmul(logits_, lnf_.out, kWte, 0);
    store(logits_);
}

template <typename Real>
void ReferenceModel<Real>::backward(const Batch& batch, double dloss) {
    int B = batch.B, T = batch.T, C = config_.channels, NH = config_.num_heads, L = config_.num_layers;
    int64_t N = (int64_t)B * T;
    Array dproj, dwide, dresidual(N * C, Real{0}), dbranch;  // (N,C), (N,4C) or (N,3C), (N,C), (N,C)
    auto add_backward = [&](const Array& residual, const Norm& ln, int tensor, int layer) {
        normalise_backward(dresidual, dproj, residual, ln, tensor, layer);
        dbranch = dropped(dresidual, tensor, layer);
        store(dbranch);
    };
    classifier_backward_cpu(logits_.data(), logits_.data(), batch.targets.data(), dloss, N,
                            config_.vocab_size, config_.padded_vocab_size);
    store(logits_);
    matmul_backward(dproj, logits_, lnf_.out, kWte, 0);
    store(dproj);
    add_backward(layers_[L - 1].residual3, lnf_, kLnfw, 0);
    for (int l = L - 1; l >= 0; l--) {
        Layer& a = layers_[l];
        matmul_backward(dwide, dbranch, a.gelu, kFcprojw, l);
        if (fp8()) { store(dwide); }
        gelu_backward_cpu(dwide.data(), dwide.data(), a.fch.data(), 4 * N * C);  // of the exact product
        if (!fp8()) { store(dwide); }
        matmul_backward(dproj, dwide, a.ln2.out, kFcw, l);
        store(dproj);
        add_backward(a.residual2, a.ln2, kLn2w, l);
        matmul_backward(dproj, dbranch, a.atty, kAttprojw, l);
        store(dproj);
        attention_backward_cpu(sized(dwide, N * 3 * C), dproj.data(), a.qkv.data(), a.atty.data(),
                               a.lse.data(), B, T, C, NH);
        store(dwide);
        matmul_backward(dproj, dwide, a.ln1.out, kQkvw, l);
        store(dproj);
        add_backward(l == 0 ? encoded_ : layers_[l - 1].residual3, a.ln1, kLn1w, l);
    }
    encoder_backward_cpu(grad(kWte, 0), grad(kWpe, 0), dbranch.data(), batch.tokens.data(), B, T, C);
}

template <typename Real>
void ReferenceModel<Real>::update(const StepParams& params, double grad_scale) {
    updates_++;
    const double keep = 1 - params.lr * params.weight_decay;
    AdamWParams adamw{params.lr, params.beta1, params.beta2, params.eps, keep, grad_scale, updates_};
    for (int t = 0; t < kNumTensors; t++) {
        adamw.keep = kTensors[t].matrix ? keep : 1;
        if (holds(State::kSecondMoment, t)) {
            adamw_cpu(master_[t].data(), m_[t].data(), v_[t].data(), grads_[t].data(), master_[t].size(),
                      adamw);
        } else {
            update_by_muon(t, {params.lr, keep, grad_scale});
        }
        set_weights(t);
    }
}

template class ReferenceModel<float>;
template class ReferenceModel<double>;

}  // namespace llmc

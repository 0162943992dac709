// Loading and saving what GPT2Optimizer keeps, of which this rank may have a share only.
#pragma once
#include "llmc/cuda/checksum.cuh"
#include "llmc/model/gpt2_optimizer.cuh"

namespace llmc {

template <typename T, typename Grad>
void GPT2Optimizer<T, Grad>::load(State s, int tensor, int64_t first, std::span<const float> values) {
    gathered_ = false;
    for_each_piece(config_, layout_of(s), tensor, first, (int64_t)values.size(),
                   [&](int64_t element, int64_t from, int64_t n) {
                       if (is_whole(s)) {
                           upload(array(s) + element, values.data() + from, n);
                       } else {
                           load_share(s, tensor, first + from, element, values.subspan(from, n));
                       }
                   });
    if (s == State::kParameter) { set_stale(); }
}

// Of what is rounded, master is here in part only: all of it is rounded now, as it passes by. What other
// ranks send is not needed meanwhile.
template <typename T, typename Grad>
void GPT2Optimizer<T, Grad>::load_share(State s, int tensor, int64_t number, int64_t element,
                                        std::span<const float> values) {
    const auto n = (int64_t)values.size();
    shares_.of(s).for_each_kept(rank_, element, n, [&](const SharePart& part) {
        upload(array(s) + part.kept, values.data() + part.begin - element, part.size());
    });
    if constexpr (sizeof(T) != sizeof(float)) {
        auto* room = (float*)state_.arrived;
        const int64_t most =
            (shares_.ranks - 1) * shares_.largest() * (int64_t)sizeof(Grad) / (int64_t)sizeof(float);
        for (int64_t k = 0; k < n && s == State::kParameter; k += most) {
            const int64_t count = std::min(most, n - k);
            upload(room, values.data() + k, count);
            const AdamWTensor shape = {tensor, count, 1, 0, number + k};
            round_parameters(state_.params + element + k, room, shape, state_.decision, seed_, stream_);
        }
    }
}

template <typename T, typename Grad>
void GPT2Optimizer<T, Grad>::round_weights() {
    if constexpr (sizeof(T) != sizeof(float)) {
        for (int t = 0; t < kNumTensors && stale_; t++) {
            const AdamWTensor shape = {t, tensor_size(config_, t), (int)tensor_copies(config_, t),
                                       layout_.block_size()};
            const int64_t at = layout_.offset(t);
            round_parameters(state_.params + at, state_.master + at, shape, state_.decision, seed_, stream_);
        }
    }
    stale_ = false;
}

template <typename T, typename Grad>
void GPT2Optimizer<T, Grad>::gather() {
    if (gathered_ || !shares_.shard) { return; }
    for (State s : {State::kParameter, State::kFirstMoment, State::kSecondMoment}) {
        if (is_whole(s)) { continue; }
        auto& whole = gathered_state_[(int)s];
        if (rank_ == 0 && whole == nullptr) { whole.reset(new float[(size_t)shares_.of(s).elements()]); }
        gather(s, whole.get());
    }
    wait();
    gathered_ = true;
}

// in pieces, as there is room in rank 0 for what other ranks send
template <typename T, typename Grad>
void GPT2Optimizer<T, Grad>::gather(State s, float* whole) {
    const int64_t most = shares_.largest() * (int64_t)sizeof(Grad) / (int64_t)sizeof(float);
    auto* room = (float*)state_.arrived;
    const auto ranks = (size_t)shares_.ranks;
    const Shares& shares = shares_.of(s);
    for (int64_t k = 0; k < shares.largest(); k += most) {
        auto count = [&](size_t r) { return std::clamp<int64_t>(shares.sizes[r] - k, 0, most); };
        Parts<const std::byte> out(ranks);
        Parts<std::byte> in(ranks);
        if (rank_ != 0) { out[0] = std::as_bytes(std::span(array(s) + k, (size_t)count(rank_))); }
        for (size_t r = 1; r < ranks && rank_ == 0; r++) {
            in[r] = std::as_writable_bytes(std::span(room + (int64_t)(r - 1) * most, (size_t)count(r)));
        }
        comm_->exchange({"the optimizer's state"}, out, in, stream_);
        for (size_t r = 0; r < ranks && rank_ == 0; r++) {
            const float* from = r == 0 ? array(s) + k : room + (int64_t)(r - 1) * most;
            for (const auto& range : shares.parts) {
                const SharePart& part = range[r];
                const int64_t lo = std::max(k, part.kept),
                              hi = std::min(k + count(r), part.kept + part.size());
                if (lo >= hi) { continue; }
                check(cudaMemcpyAsync(whole + part.begin + lo - part.kept, from + lo - k,
                                      (hi - lo) * sizeof(float), cudaMemcpyDeviceToHost, stream_));
            }
        }
    }
}

template <typename T, typename Grad>
void GPT2Optimizer<T, Grad>::save(State s, int tensor, int64_t first, std::span<float> values) const {
    wait();
    require(is_whole(s) || (gathered_ && rank_ == 0), "GPT2: gather() before save() in rank 0");
    const float* whole = gathered_state_[(int)s].get();
    for_each_piece(config_, layout_of(s), tensor, first, (int64_t)values.size(),
                   [&](int64_t element, int64_t to, int64_t n) {
                       if (is_whole(s)) {
                           check(cudaMemcpy(values.data() + to, array(s) + element, n * sizeof(float),
                                            cudaMemcpyDeviceToHost));
                       } else {
                           std::copy_n(whole + element, n, values.data() + to);
                       }
                   });
}

template <typename T, typename Grad>
std::vector<uint64_t> GPT2Optimizer<T, Grad>::parameter_hashes() const {
    wait();
    std::vector<uint64_t> hashes(kNumTensors);
    const DeviceMemory sums(kNumTensors * sizeof(uint64_t));
    check(cudaMemsetAsync(sums.data(), 0, sums.bytes().size(), stream_));
    for (int t = 0; t < kNumTensors; t++) {
        for_each_piece(
            config_, layout_, t, 0, tensor_total(config_, t), [&](int64_t element, int64_t first, int64_t n) {
                const int64_t words = (n * (int64_t)sizeof(T) + 3) / 4;  // between tensors there are zeros
                add_checksum((uint64_t*)sums.data() + t, (const uint32_t*)(state_.params + element), words,
                             first, stream_);
            });
    }
    check(cudaMemcpyAsync(hashes.data(), sums.data(), sums.bytes().size(), cudaMemcpyDeviceToHost, stream_));
    check(cudaStreamSynchronize(stream_));
    return hashes;
}

}  // namespace llmc

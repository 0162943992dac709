// Loading and saving what GPT2Optimizer keeps, of which this rank may have a share only.
#pragma once
#include "llmc/cuda/checksum.cuh"
#include "llmc/model/gpu/optimizer.cuh"

namespace llmc {

template <typename T, typename Grad>
void GPT2Optimizer<T, Grad>::load(State s, int tensor, int64_t first, std::span<const float> values) {
    gathered_ = false;
    if (s == State::kParameter && first == 0) { to_load_.reset((size_t)tensor); }
    for_each_piece(config_, layout_of(s), tensor, first, (int64_t)values.size(),
                   [&](int64_t element, int64_t from, int64_t n) {
                       const auto piece = values.subspan(from, n);
                       if (is_split(s)) {
                           load_weights(tensor, first + from, element, piece);
                       } else if (is_whole(s)) {
                           upload(array(s) + element, piece.data(), n);
                       } else {
                           shares_.of(s).for_each_kept(rank_, element, n, [&](const SharePart& part) {
                               upload(array(s) + part.kept, piece.data() + part.begin - element, part.size());
                           });
                       }
                   });
}

// All are rounded, also those whose lower halves other ranks keep. number: of the first one in the tensor
template <typename T, typename Grad>
void GPT2Optimizer<T, Grad>::load_weights(int tensor, int64_t number, int64_t element,
                                          std::span<const float> values) {
    if constexpr (kSplit) {
        for (int64_t k = 0, n = 0; k < (int64_t)values.size(); k += n) {
            n = std::min(most_in_room(), (int64_t)values.size() - k);
            upload(room(), values.data() + k, n);
            auto split = [&](int64_t begin, int64_t end, uint16_t* low) {
                const AdamWTensor shape = {tensor, end - begin, 1, 0, number + begin - element};
                split_weights(state_.params + begin, low, room() + begin - element - k, shape,
                              state_.decision, seed_, stream_);
            };
            if (shares_.shard) { split(element + k, element + k + n, nullptr); }
            shares_.for_each_kept(rank_, element + k, n, [&](const SharePart& part) {
                split(part.begin, part.end, state_.low + part.kept);
            });
            leave_room(n);
        }
    }
}

template <typename T, typename Grad>
void GPT2Optimizer<T, Grad>::save_weights(int tensor, int64_t number, int64_t element,
                                          std::span<float> values) const {
    if constexpr (kSplit) {
        for (int64_t k = 0, n = 0; k < (int64_t)values.size(); k += n) {
            n = std::min(most_in_room(), (int64_t)values.size() - k);
            const AdamWTensor shape = {tensor, n, 1, 0, number + k};
            join_weights(room(), state_.params + element + k, state_.low + element + k, shape,
                         state_.decision, seed_, stream_);
            check(cudaMemcpyAsync(values.data() + k, room(), n * sizeof(float), cudaMemcpyDeviceToHost,
                                  stream_));
            leave_room(n);
        }
        check(cudaStreamSynchronize(stream_));
    }
}

// n of what this rank keeps of a state, from the first-th on, as floats in device memory: of bf16 parameters in room(), until
// the next call
template <typename T, typename Grad>
const float* GPT2Optimizer<T, Grad>::kept_values(State s, int64_t first, int64_t n) const {
    if (!is_split(s)) { return array(s) + first; }
    if constexpr (kSplit) {
        for (int t = 0; t < kNumTensors; t++) {
            for_each_piece(config_, layout_, t, 0, tensor_total(config_, t),
                           [&](int64_t element, int64_t number, int64_t size) {
                               shares_.for_each_kept(rank_, element, size, [&](const SharePart& part) {
                                   const int64_t lo = std::max(first, part.kept),
                                                 hi = std::min(first + n, part.kept + part.size());
                                   if (lo >= hi) { return; }
                                   const int64_t at = part.begin + lo - part.kept;
                                   const AdamWTensor shape = {t, hi - lo, 1, 0, number + at - element};
                                   join_weights(room() + lo - first, state_.params + at, state_.low + lo,
                                                shape, state_.decision, seed_, stream_);
                               });
                           });
        }
    }
    return room();
}

template <typename T, typename Grad>
void GPT2Optimizer<T, Grad>::set_updates(int64_t updates) {
    StepDecision now{};
    now.updates = updates;
    const DeviceMemory later(sizeof(now));
    upload((StepDecision*)later.data(), &now, 1);
    if (kSplit && shares_.shard) { to_load_.set(); }
    if constexpr (kSplit) {
        for (int t = 0; t < kNumTensors && !shares_.shard; t++) {
            for_each_piece(config_, layout_, t, 0, tensor_total(config_, t),
                           [&](int64_t element, int64_t number, int64_t size) {
                               for (int64_t k = 0, n = 0; k < size; k += n) {
                                   n = std::min(most_in_room(), size - k);
                                   const AdamWTensor shape = {t, n, 1, 0, number + k};
                                   T* param = state_.params + element + k;
                                   uint16_t* low = state_.low + element + k;
                                   join_weights(room(), param, low, shape, state_.decision, seed_, stream_);
                                   split_weights(param, low, room(), shape, (const StepDecision*)later.data(),
                                                 seed_, stream_);
                                   leave_room(n);
                               }
                           });
        }
    }
    upload(state_.decision, &now, 1);
    check(cudaStreamSynchronize(stream_));
}

template <typename T, typename Grad>
void GPT2Optimizer<T, Grad>::gather() {
    require_loaded();
    if (gathered_ || !shares_.shard) { return; }
    for (State s : {State::kParameter, State::kFirstMoment, State::kSecondMoment}) {
        if (is_whole(s)) { continue; }
        auto& whole = gathered_state_[(int)s];
        if (rank_ == 0 && whole == nullptr) { whole.reset(new float[(size_t)shares_.of(s).elements()]); }
        gather(s, whole.get());
        if (is_split(s)) { leave_room(most_in_room()); }
    }
    wait();
    gathered_ = true;
}

// in pieces, as there is room in rank 0 for what other ranks send
template <typename T, typename Grad>
void GPT2Optimizer<T, Grad>::gather(State s, float* whole) {
    const int64_t most = shares_.largest() * (int64_t)sizeof(Grad) / (int64_t)sizeof(float);
    auto* arrived = (float*)state_.arrived;
    const auto ranks = (size_t)shares_.ranks;
    const Shares& shares = shares_.of(s);
    for (int64_t k = 0; k < shares.largest(); k += most) {
        auto count = [&](size_t r) { return std::clamp<int64_t>(shares.sizes[r] - k, 0, most); };
        Parts<const std::byte> out(ranks);
        Parts<std::byte> in(ranks);
        const float* mine = kept_values(s, k, count(rank_));
        if (rank_ != 0) { out[0] = std::as_bytes(std::span(mine, (size_t)count(rank_))); }
        for (size_t r = 1; r < ranks && rank_ == 0; r++) {
            in[r] = std::as_writable_bytes(std::span(arrived + (int64_t)(r - 1) * most, (size_t)count(r)));
        }
        comm_->exchange({"the optimizer's state"}, out, in, stream_);
        for (size_t r = 0; r < ranks && rank_ == 0; r++) {
            const float* from = r == 0 ? mine : arrived + (int64_t)(r - 1) * most;
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
    require_loaded();
    require(is_whole(s) || (gathered_ && rank_ == 0), "GPT2: gather() before save() in rank 0");
    const float* whole = gathered_state_[(int)s].get();
    for_each_piece(config_, layout_of(s), tensor, first, (int64_t)values.size(),
                   [&](int64_t element, int64_t to, int64_t n) {
                       if (!is_whole(s)) {
                           std::copy_n(whole + element, n, values.data() + to);
                       } else if (is_split(s)) {
                           save_weights(tensor, first + to, element, values.subspan(to, n));
                       } else {
                           check(cudaMemcpy(values.data() + to, array(s) + element, n * sizeof(float),
                                            cudaMemcpyDeviceToHost));
                       }
                   });
}

template <typename T, typename Grad>
std::vector<uint64_t> GPT2Optimizer<T, Grad>::parameter_hashes() const {
    wait();
    require_loaded();
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

// From the gradients of micro-batches to new parameters, on one GPU or, together with other ranks, on many.
// Without groups that is a norm, a decision and an update. With groups (ModelSettings) the gradient of each
// is added to the sums of those before it, by the rank whose share an element is in; each rank updates its
// share, and the parameters come together. So the bits depend on the number of groups, and not on that of
// ranks. Everything is queued on one stream, and exchanges beside it; what waits says so.
#pragma once
#include <array>
#include <bitset>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "llmc/cuda/check.cuh"
#include "llmc/cuda/graph.cuh"
#include "llmc/model/gpu/memory.cuh"
#include "llmc/ops/comm/device_comm.h"
#include "llmc/ops/global_norm.h"

namespace llmc {

template <typename T, typename Grad>
class GPT2Optimizer {
public:
    // comm: of the settings' ranks, null for one. Sets the state's memory to zero: what no kernel writes, too
    // (gaps between tensors, gradients of padding rows).
    GPT2Optimizer(const ModelSettings& s, const GPT2State<T, Grad>& state, std::unique_ptr<DeviceComm> comm,
                  cudaStream_t stream)
        : state_(state),
          comm_(std::move(comm)),
          rank_(s.comm != nullptr ? (size_t)s.comm->rank() : 0),
          stream_(stream),
          chunk_begins_(shares_.chunk_begins()),
          embedding_chunks_(shares_.chunks_in(parts_of_layer(-1)[rank_])) {
        require((s.ranks > 1) == (comm_ != nullptr), "GPT2: many ranks, and only they, have a comm");
        check(cudaMemsetAsync(state_.params, 0, (size_t)state_.bytes, stream_));
        upload_tables();
    }

    // With --optimizer muon: how a tensor that has no second moment is updated. copies: those that this rank takes
    // care of, at least one, in device memory; seed: of its rounding.
    std::function<void(int tensor, std::span<const MuonCopy> copies, const StepInputs*, uint64_t seed)>
        update_block_matrices;

    // What holds the launches that are queued; null: nothing but the stream does.
    Recording* recording = nullptr;

    int groups_here() const { return shares_.groups / shares_.ranks; }
    // where this rank's k-th group adds up its losses
    double* loss_sum(int k) const {
        return grouped() ? state_.group_losses + (int)rank_ * groups_here() + k : state_.loss_sum;
    }
    // Layer l's gradients of a group are complete, and may be on their way. All layers, the last one first, before add_group().
    void send_layer(int l) {
        exchange([this, l] { send_gradients(l); });
    }
    // What is queued behind this finds the parameters of layer l as the last update left them; -1: what lies
    // before the layers, num_layers: what lies behind them.
    void wait_for_layer(int l) {
        if (!shares_.shard) { return; }  // nothing is on its way: a recording need not end here
        exchange([this, l] {
            if (!on_their_way_.empty()) { comm_->join(on_their_way_[(size_t)(l + 1)], stream_); }
        });
    }
    // The gradient of this rank's k-th group is complete; the next one may take its place.
    void add_group(int k) {
        if (!grouped()) { return; }
        exchange([this] {
            const int64_t behind = send_gradients(config_.num_layers);
            embeddings_sent_ = send_gradients(-1);
            comm_->join(behind, stream_);
        });
        auto add = [&](int64_t first, int64_t end) {
            const GroupParts<Grad> parts = {state_.grads, state_.arrived, shares_.largest(),
                                            (int)rank_,   shares_.ranks,  chunks_here() + first,
                                            end - first};
            if (first < end) { add_parts(state_.sums, !shares_.shard, parts, k == 0, stream_); }
        };
        // While the embeddings' gradients, which are the last, are on their way, the others are added.
        add(embedding_chunks_, chunk_count_here());
        exchange([this] { comm_->join(embeddings_sent_, stream_); });
        add(0, embedding_chunks_);
    }
    // *decision, with the step's loss and norm; after all groups of this rank. inputs: in device memory
    void decide(const StepInputs* inputs) {
        if (grouped()) {
            add_up_groups();
        } else {
            sum_of_squares(state_.squares, state_.norm_scratch, state_.grads, shares_.elements(), stream_);
        }
        decide_step(state_.decision, state_.loss_sum, state_.squares, inputs, stream_);
    }
    // Every rank has n floats of its own in its row of (ranks,n); then all have all of them.
    void share_rows(const char* what, float* rows, int64_t n) {
        std::vector<int64_t> begins;
        for (int r = 0; r <= shares_.ranks; r++) { begins.push_back(r * n); }
        exchange([this, what, rows, begins] { all_gather(what, rows, begins); });
    }
    void update(const StepInputs* inputs, const AdamWConstants& constants) {
        auto step = [&](const auto* grads, int64_t first, int64_t end) {
            if (first == end) { return; }
            adamw_update(state_.params, state_.low, state_.m, state_.v, grads, state_.pieces + first,
                         end - first, state_.decision, inputs, constants, seed_, stream_);
        };
        if (grouped()) {
            step(state_.sums, 0, embedding_pieces_);
            // The next forward pass begins with the embeddings: they come together while the rest is updated.
            exchange([this] { share_parameters(-1, 0); });
            step(state_.sums, embedding_pieces_, pieces_);
        } else {
            step(state_.grads, 0, pieces_);
        }
        for (int t = 0; t < kNumTensors; t++) {
            if (!copies_[t].empty()) { update_block_matrices(t, copies_[t], inputs, seed_); }
        }
        exchange([this] { share_parameters(0, config_.num_layers + 1); });
    }

    // The rounding of bf16 parameters depends on the seed and on decision->updates, and so does the way back to fp32. Parameters
    // are loaded after set_seed() and set_updates(), each tensor from its beginning (only that is checked).
    void set_seed(uint64_t seed) { seed_ = seed; }
    void set_updates(int64_t updates) {
        StepDecision now{};
        now.updates = updates;
        if (kSplit) { to_load_.set(); }
        upload(state_.decision, &now, 1);
        check(cudaStreamSynchronize(stream_));
    }
    void require_loaded() const {
        require(to_load_.none(), "GPT2: after set_updates() all parameters must be loaded again");
    }

    // ---- load() and save() of bf16 parameters and gather() overwrite gradients

    void load(State s, int tensor, int64_t first, std::span<const float> values) {
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
                                   upload(array(s) + part.kept, piece.data() + part.begin - element,
                                          part.size());
                               });
                           }
                       });
    }
    void clear_moments() {
        for (State s : {State::kFirstMoment, State::kSecondMoment}) {
            check(cudaMemsetAsync(array(s), 0, shares_.of(s).kept() * sizeof(float), stream_));
        }
    }
    bool holds(State s, int tensor) const { return layout_of(s).holds(tensor); }
    // All ranks call it, and wait: then rank 0 can save() what it has no share of, until the next step.
    void gather() {
        require_loaded();
        if (gathered_ || !shares_.shard) { return; }
        for (State s : {State::kParameter, State::kFirstMoment, State::kSecondMoment}) {
            if (is_whole(s)) { continue; }
            gather(s);
            if (is_split(s)) { leave_room(most_in_room()); }
        }
        wait();
        gathered_ = true;
    }
    void save(State s, int tensor, int64_t first, std::span<float> values) const {  // waits
        wait();
        require_loaded();
        require(is_whole(s) || (gathered_ && rank_ == 0), "GPT2: gather() before save() in rank 0");
        const auto& kept = gathered_state_[(int)s];
        for_each_piece(config_, layout_of(s), tensor, first, (int64_t)values.size(),
                       [&](int64_t element, int64_t to, int64_t n) {
                           for (size_t r = 0; r < kept.size(); r++) {
                               shares_.of(s).for_each_kept(r, element, n, [&](const SharePart& part) {
                                   std::copy_n(kept[r].get() + part.kept, part.size(),
                                               values.data() + to + part.begin - element);
                               });
                           }
                           if (!is_whole(s)) { return; }
                           if (is_split(s)) {
                               in_room(n, [&](int64_t k, int64_t some) {
                                   join(room(), {tensor, first + to + k, some, element + k, element + k});
                                   download(values.data() + to + k, room(), some);
                               });
                           } else {
                               download(values.data() + to, array(s) + element, n);
                           }
                       });
        check(cudaStreamSynchronize(stream_));
    }
    void wait() const {
        if (comm_ != nullptr) {
            comm_->wait(stream_);
        } else {
            check(cudaStreamSynchronize(stream_));
        }
    }
    DeviceComm* comm() const { return comm_.get(); }  // null: one rank

private:
    template <typename X>
    using Parts = std::vector<std::span<X>>;
    template <typename X>
    static std::span<std::byte> bytes(X* x, int64_t n) {
        return std::as_writable_bytes(std::span(x, (size_t)n));
    }

    // What the ranks do together. Its numbers and events are of one step, so that it cannot be in a graph.
    void exchange(std::function<void()> call) {
        if (comm_ == nullptr) { return; }
        recording != nullptr ? recording->between(std::move(call)) : call();
    }
    bool grouped() const { return shares_.groups > 1; }
    const ParameterLayout& layout_of(State s) const {
        return s == State::kSecondMoment ? second_layout_ : layout_;
    }
    // the ranks' parts of a range
    const std::vector<SharePart>& parts_of_layer(int l) const { return shares_.parts[(size_t)(l + 1)]; }
    const NormChunk* chunks_here() const { return state_.chunk_table + chunk_begins_[rank_]; }
    int64_t chunk_count_here() const { return chunk_begins_[rank_ + 1] - chunk_begins_[rank_]; }
    float* array(State s) const {
        return s == State::kParameter     ? (float*)state_.params
               : s == State::kFirstMoment ? state_.m
                                          : state_.v;
    }
    template <typename X>
    void upload(X* to, const X* from, int64_t n) const {
        // on the stream that computes: cudaMemcpy() may return before all is there
        check(cudaMemcpyAsync(to, from, n * sizeof(X), cudaMemcpyHostToDevice, stream_));
    }
    void download(float* to, const float* from, int64_t n) const {
        check(cudaMemcpyAsync(to, from, n * sizeof(float), cudaMemcpyDeviceToHost, stream_));
    }

    void upload_tables() {
        const std::vector<AdamWPiece> pieces = update_pieces(config_, shares_, rank_);
        pieces_ = (int64_t)pieces.size();
        embedding_pieces_ = std::ranges::count_if(
            pieces, [&](const AdamWPiece& piece) { return piece.at < shares_.ranges[0].second; });
        upload(state_.pieces, pieces.data(), pieces_);
        std::vector<MuonCopy> all;
        for (int t = 0; t < kNumTensors; t++) {
            const std::vector<MuonCopy> copies = muon_copies(config_, shares_, rank_, t);
            copies_[t] = {state_.copies + all.size(), copies.size()};
            all.insert(all.end(), copies.begin(), copies.end());
        }
        upload(state_.copies, all.data(), (int64_t)all.size());
        const std::vector<NormChunk> chunks = shares_.chunks_by_rank();
        std::vector<int32_t> places(chunks.size());
        for (size_t k = 0; k < chunks.size(); k++) { places[(size_t)chunks[k].number] = (int32_t)k; }
        if (grouped()) {
            upload(state_.chunk_table, chunks.data(), (int64_t)chunks.size());
            upload(state_.chunk_places, places.data(), (int64_t)places.size());
        }
        check(cudaStreamSynchronize(stream_));  // the tables go
    }

    // ---- exchanges

    template <typename X>
    void all_gather(const char* what, X* whole, const std::vector<int64_t>& begins) const {
        Parts<std::byte> in;
        for (size_t r = 0; r + 1 < begins.size(); r++) {
            in.push_back(bytes(whole + begins[r], begins[r + 1] - begins[r]));
        }
        const Parts<const std::byte> out(in.size(), in[rank_]);
        comm_->exchange({what, 0}, out, in, stream_);
    }
    // to each rank its part of the layer
    int64_t send_gradients(int l) {
        const SharePart& mine = parts_of_layer(l)[rank_];
        Parts<const std::byte> out;
        Parts<std::byte> in;
        Grad* next = state_.arrived;
        for (size_t r = 0; r < (size_t)shares_.ranks; r++) {
            const SharePart& part = parts_of_layer(l)[r];
            out.push_back(bytes(state_.grads + part.begin, part.size()));
            in.push_back(bytes(next + mine.kept, mine.size()));
            next += r == rank_ ? 0 : shares_.largest();
        }
        return comm_->exchange_overlapped({"gradients", l + 1}, out, in, stream_);
    }
    // Every rank has its part of the layer in `whole`, of all elements; then all have all of it.
    template <typename X>
    int64_t share_layer(const char* what, X* whole, int l) {
        Parts<std::byte> in;
        for (const SharePart& part : parts_of_layer(l)) {
            in.push_back(bytes(whole + part.begin, part.size()));
        }
        const Parts<const std::byte> out(in.size(), in[rank_]);
        return comm_->exchange_overlapped({what, l + 1}, out, in, stream_);
    }
    void share_parameters(int first, int end) {  // of the layers from first on
        if (first < 0) {
            gathered_ = false;
            for (auto& kept : gathered_state_) { kept.clear(); }
            on_their_way_.clear();
        }
        // in the order in which the next forward pass needs them
        for (int l = first; l < end && shares_.shard; l++) {
            on_their_way_.push_back(share_layer("parameters", state_.params, l));
        }
    }
    // the squares and losses of all groups; with --zero 0 their gradients, too
    void add_up_groups() {
        std::vector<int64_t> losses;
        for (int r = 0; r <= shares_.ranks; r++) { losses.push_back(r * groups_here()); }
        const bool whole = !shares_.shard;
        squares_of_chunks(state_.chunks + chunk_begins_[rank_], state_.sums, whole, chunks_here(),
                          chunk_count_here(), stream_);
        exchange([this, losses] {
            all_gather("the gradient's norm", state_.chunks, chunk_begins_);
            all_gather("losses", state_.group_losses, losses);
        });
        sum_groups(state_.squares, state_.loss_sum, state_.chunks, state_.chunk_places, shares_.chunks(),
                   state_.group_losses, shares_.groups, shares_.ranks, stream_);
        if (whole) {
            exchange([this] {
                for (int l = -1; l <= config_.num_layers; l++) {
                    comm_->join(share_layer("sums of gradients", state_.sums, l), stream_);
                }
            });
        }
    }

    // ---- fp32 weights of bf16 parameters, which are `params` and `low` together

    static constexpr bool kSplit = sizeof(T) != sizeof(float);
    static bool is_split(State s) { return kSplit && s == State::kParameter; }
    bool is_whole(State s) const { return !shares_.shard || (s == State::kParameter && !kSplit); }

    // Room for them on their way, in place of gradients; how many floats it has; leave_room() sets those that were used
    // to zero, as no kernel writes the gaps between gradients, and the norm reads them.
    float* room() const { return (float*)state_.grads; }
    int64_t most_in_room() const {
        return shares_.elements() * (int64_t)sizeof(Grad) / (int64_t)sizeof(float);
    }
    void leave_room(int64_t used) const { check(cudaMemsetAsync(room(), 0, used * sizeof(float), stream_)); }
    // act(k, n) for n of `count` weights from the k-th on, as many as there is room for, until all had their turn
    template <typename Act>
    void in_room(int64_t count, Act act) const {
        for (int64_t k = 0, n = 0; k < count; k += n) {
            n = std::min(most_in_room(), count - k);
            act(k, n);
            leave_room(n);
        }
    }

    // n weights of a tensor, from `number` on: where they begin in params, and in low (-1: not kept here)
    struct Weights {
        int tensor;
        int64_t number, n, at, kept;
    };
    void join(float* to, const Weights& w) const {
        if constexpr (kSplit) {
            join_weights(to, state_.params + w.at, state_.low + w.kept, {w.tensor, w.n, w.number},
                         state_.decision, seed_, stream_);
        }
    }
    void split(const float* from, const Weights& w) const {
        if constexpr (kSplit) {
            split_weights(state_.params + w.at, w.kept < 0 ? nullptr : state_.low + w.kept, from,
                          {w.tensor, w.n, w.number}, state_.decision, seed_, stream_);
        }
    }
    // All are rounded, also those whose lower halves other ranks keep. number: of the first one in the tensor
    void load_weights(int tensor, int64_t number, int64_t element, std::span<const float> values) {
        in_room((int64_t)values.size(), [&](int64_t k, int64_t n) {
            upload(room(), values.data() + k, n);
            auto round = [&](const SharePart& part) {
                const int64_t from = part.begin - element;
                split(room() + from - k, {tensor, number + from, part.size(), part.begin, part.kept});
            };
            if (shares_.shard) { round({element + k, element + k + n, -1}); }
            shares_.for_each_kept(rank_, element + k, n, round);
        });
    }
    // n of what this rank keeps of a state, from the first-th on, as floats in device memory: of bf16 parameters in room(),
    // until the next call
    const float* kept_values(State s, int64_t first, int64_t n) const {
        if (!is_split(s)) { return array(s) + first; }
        for (int t = 0; t < kNumTensors; t++) {
            auto of_piece = [&](int64_t element, int64_t number, int64_t size) {
                shares_.for_each_kept(rank_, element, size, [&](const SharePart& part) {
                    const int64_t lo = std::max(first, part.kept),
                                  hi = std::min(first + n, part.kept + part.size());
                    if (lo >= hi) { return; }
                    const int64_t at = part.begin + lo - part.kept;
                    join(room() + lo - first, {t, number + at - element, hi - lo, at, lo});
                });
            };
            for_each_piece(config_, layout_, t, 0, tensor_total(config_, t), of_piece);
        }
        return room();
    }
    // in pieces, as there is room in rank 0 for what other ranks send
    void gather(State s) {
        const int64_t most = shares_.largest() * (int64_t)sizeof(Grad) / (int64_t)sizeof(float);
        auto* arrived = (float*)state_.arrived;
        const auto ranks = (size_t)shares_.ranks;
        const std::vector<int64_t>& sizes = shares_.of(s).sizes;
        auto& kept = gathered_state_[(int)s];
        while (rank_ == 0 && kept.size() < ranks) {
            kept.emplace_back(new float[(size_t)sizes[kept.size()]]);
        }
        for (int64_t k = 0; k < shares_.of(s).largest(); k += most) {
            auto count = [&](size_t r) { return std::clamp<int64_t>(sizes[r] - k, 0, most); };
            Parts<const std::byte> out(ranks);
            Parts<std::byte> in(ranks);
            const float* mine = kept_values(s, k, count(rank_));
            if (rank_ != 0) { out[0] = std::as_bytes(std::span(mine, (size_t)count(rank_))); }
            for (size_t r = 1; r < ranks && rank_ == 0; r++) {
                in[r] = bytes(arrived + (int64_t)(r - 1) * most, count(r));
            }
            comm_->exchange({"the optimizer's state"}, out, in, stream_);
            for (size_t r = 0; r < ranks && rank_ == 0; r++) {
                const float* from = r == 0 ? mine : arrived + (int64_t)(r - 1) * most;
                if (count(r) > 0) { download(kept[r].get() + k, from, count(r)); }
            }
        }
    }

    GPT2State<T, Grad> state_;
    const GPT2Config& config_ = state_.config;
    const StateShares& shares_ = state_.shares;
    ParameterLayout layout_{config_};
    ParameterLayout second_layout_{config_, !shares_.muon};  // Muon's tensors have no second moments
    std::unique_ptr<DeviceComm> comm_;
    size_t rank_;
    cudaStream_t stream_;
    uint64_t seed_ = 0;
    int64_t pieces_ = 0, embedding_pieces_ = 0;                  // of AdamW; the embeddings' are the first
    std::array<std::span<const MuonCopy>, kNumTensors> copies_;  // of Muon, in device memory
    std::vector<int64_t> chunk_begins_;                          // by rank
    int64_t embedding_chunks_;                                   // of this rank; they are its first
    // bf16 parameters whose rounding is that of before set_updates(), until they are loaded again
    std::bitset<kNumTensors> to_load_;
    bool gathered_ = false;
    int64_t embeddings_sent_ = 0;        // that exchange's number
    std::vector<int64_t> on_their_way_;  // by layer, from -1 on: the last exchange of its parameters
    std::vector<std::unique_ptr<float[]>> gathered_state_[3];  // in rank 0, by State: what each rank keeps
};

}  // namespace llmc

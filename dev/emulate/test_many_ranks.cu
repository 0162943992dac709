// The optimizer of many ranks, whose kernels are emulated: from gradients to parameters, loading and saving.
// Each rank is a process; they exchange over TCP.
#include <unistd.h>

#include "dev/test/gpu/layer_test.h"
#include "dev/test/support/many_ranks.h"
#include "llmc/host/base/philox.h"
#include "llmc/host/ranks/comm.h"
#include "llmc/model/gpt2_config.h"
#include "llmc/model/gpu/optimizer.cuh"

using namespace llmc;
using namespace llmc::gpu_test;

namespace {

constexpr State kAllStates[] = {State::kParameter, State::kFirstMoment, State::kSecondMoment};

// four chunks of the norm; copies that are no multiple of 4 elements, so that a border may cut a quad
GPT2Config config() {
    GPT2Config c;
    c.max_seq_len = 33, c.vocab_size = 500, c.padded_vocab_size = 512;
    c.num_layers = 2, c.num_heads = 2, c.channels = 86;
    return c;
}

struct Job {
    int groups = 6;
    bool shard = true;
    int64_t poison_step = -1;  // a gradient is infinite: the step is skipped
    bool muon = false;
    bool record = false;  // what is queued, in the first step, and repeat it
};

template <typename T, typename Grad>
class Rank {
public:
    Rank(const Job& job, Comm& comm)
        : job_(job),
          comm_(comm),
          memory_(state_in(nullptr).bytes),
          state_(state_in(memory_.data())),
          optimizer_(settings(), state_, comm.size() > 1 ? make_host_comm(comm) : nullptr, kStream) {
        optimizer_.update_block_matrices = [this](auto... args) { update_by_muon(args...); };
        optimizer_.set_seed(7);
        std::vector<float> values;
        for (int t = 0; t < kNumTensors; t++) {
            values.resize((size_t)tensor_total(config(), t));
            initial_values(config(), 7, t, 0, values);
            optimizer_.load(State::kParameter, t, 0, values);
        }
    }
    // all of State s, in rank 0
    std::vector<float> saved(State s) {
        std::vector<float> all, one;
        for (int t = 0; t < kNumTensors; t++) {
            one.assign((size_t)tensor_total(config(), t), 0);
            if (optimizer_.holds(s, t)) { optimizer_.save(s, t, 0, one); }
            all.insert(all.end(), one.begin(), one.end());
        }
        return all;
    }
    void load(State s, const std::vector<float>& all) {
        int64_t at = 0;
        for (int t = 0; t < kNumTensors; t++) {
            const int64_t n = tensor_total(config(), t);
            if (optimizer_.holds(s, t)) {
                optimizer_.load(s, t, 0, std::span(all).subspan((size_t)at, (size_t)n));
            }
            at += n;
        }
    }
    void set_updates(int64_t n) { optimizer_.set_updates(n); }

    // the step's decision
    StepDecision step(int64_t number) {
        const StepParams params{.step = number, .lr = 1e-2, .weight_decay = 0.1, .clip = 1};
        inputs_ = step_inputs(params, 60);
        for (int k = 0; k < optimizer_.groups_here(); k++) {
            const int group = comm_.rank() + k * comm_.size();
            make_gradient(number, group);
            *optimizer_.loss_sum(k) = 10.0 * group + (double)number / 3;
            if (job_.record) {
                repeat(k);
            } else {
                queue(k);
            }
        }
        optimizer_.wait();
        return *state_.decision;
    }
    // what is computed with
    std::vector<T> weights() { return {state_.params, state_.params + ParameterLayout(config()).size()}; }
    void gather() { optimizer_.gather(); }

private:
    // what follows the k-th group's backward pass
    void queue(int k) {
        for (int l = config().num_layers; l-- > 0;) { optimizer_.send_layer(l); }
        optimizer_.add_group(k);
        if (k + 1 < optimizer_.groups_here()) { return; }
        optimizer_.decide(&inputs_);
        optimizer_.update(&inputs_, AdamWConstants{0.9, 0.95, 1e-8});
    }
    void repeat(int k) {
        if ((int)recordings_.size() == k) {
            recordings_.push_back(std::make_unique<Recording>(kStream, [&](Recording& recording) {
                optimizer_.recording = &recording;
                queue(k);
                optimizer_.recording = nullptr;
            }));
        }
        recordings_[(size_t)k]->repeat();
    }
    ModelSettings settings() const {
        ModelSettings s;
        s.ranks = comm_.size(), s.groups = job_.groups, s.shard = job_.shard, s.comm = &comm_;
        s.muon = job_.muon;
        return s;
    }
    GPT2State<T, Grad> state_in(void* memory) const {
        return {config(), StateShares(config(), settings()), Arena(memory)};
    }
    // The iterations between the two kernels, which the emulator has not, are of one matrix each: without
    // them a matrix still moves along its own gradient.
    void update_by_muon(int tensor, std::span<const MuonCopy> copies, const StepInputs* inputs,
                        uint64_t seed) {
        const auto [count, rows, cols] = block_matrices(config(), tensor);
        const MuonTensor shape = {tensor, rows, cols, count, copies.data(), (int)copies.size()};
        DeviceMemory x(shape.count() * muon_stride(shape.size()) * (int64_t)sizeof(T)),
            scratch((int64_t)muon_scratch(shape.count()));
        muon_direction((T*)x.data(), scratch.data(), state_.m, state_.sums, shape, state_.decision, kStream);
        muon_update(state_.params, state_.low, (T*)x.data(), shape, state_.decision, inputs, seed, kStream);
    }
    // of parameters alone: what lies between tensors stays 0, as in a model
    void make_gradient(int64_t step, int group) {
        const ParameterLayout layout(config());
        for (int t = 0; t < kNumTensors; t++) {
            for (int l = 0; l < tensor_copies(config(), t); l++) {
                Grad* g = state_.grads + layout.offset(t, l);
                for (int64_t i = 0; i < tensor_size(config(), t); i++) {
                    const uint32_t bits =
                        (uint32_t)((i + 1) * 2654435761u) ^ (uint32_t)(group * 40503 + t * 97 + step * 31);
                    g[i] = (Grad)(((float)(bits * 2246822519u >> 8) * 0x1p-24f - 0.5f) * 1e-2f);
                }
            }
        }
        if (step == job_.poison_step && group == job_.groups - 1) { state_.grads[5] = (Grad)INFINITY; }
    }

    Job job_;
    Comm& comm_;
    DeviceMemory memory_;
    GPT2State<T, Grad> state_;
    GPT2Optimizer<T, Grad> optimizer_;
    StepInputs inputs_;
    std::vector<std::unique_ptr<Recording>> recordings_;  // by group
};

// Runs body(comm) in `ranks` processes; returns what it returns in rank 0, with which all others must begin.
template <typename Body>
std::string in_ranks(int ranks, Body body) {
    MeetingPlace place;
    TempFolder folder;
    std::vector<pid_t> pids;
    for (int r = 0; r < ranks; r++) {
        const pid_t pid = fork();
        if (pid == 0) {
            int code = 1;
            try {
                const auto comm = join_ranks(place.ranks(r, ranks), 60, "test_emulated");
                const std::string bytes = body(*comm);
                FILE* f = std::fopen((folder / std::to_string(r)).c_str(), "wb");
                code = f != nullptr && std::fwrite(bytes.data(), 1, bytes.size(), f) == bytes.size() ? 0 : 1;
                if (f != nullptr) { std::fclose(f); }
            } catch (const std::exception& e) { std::fprintf(stderr, "rank %d: %s\n", r, e.what()); }
            _exit(code);
        }
        REQUIRE(pid > 0);
        pids.push_back(pid);
    }
    for (pid_t pid : pids) {
        int status = 0;
        REQUIRE(waitpid(pid, &status, 0) == pid);
        REQUIRE(status == 0);
    }
    const std::string first = read_bytes(folder / "0");
    for (int r = 1; r < ranks; r++) {
        const std::string other = read_bytes(folder / std::to_string(r));
        CHECK(!other.empty());
        CHECK(first.starts_with(other));
    }
    return first;
}

template <typename X>
void append(std::string* bytes, const std::vector<X>& x) {
    bytes->append((const char*)x.data(), x.size() * sizeof(X));
}

// a new model with all that a checkpoint of this one holds
template <typename T, typename Grad>
std::unique_ptr<Rank<T, Grad>> resumed(const Job& job, Comm& comm, std::unique_ptr<Rank<T, Grad>> old,
                                       int64_t updates) {
    old->gather();
    std::vector<std::vector<float>> states;
    for (State s : kAllStates) {
        states.push_back(comm.root() ? old->saved(s) : std::vector<float>((size_t)file_elements(config())));
        comm.from_root("a checkpoint", std::span(states.back()));
    }
    auto fresh = std::make_unique<Rank<T, Grad>>(job, comm);
    fresh->set_updates(updates);
    for (State s : kAllStates) { fresh->load(s, states[(size_t)s]); }
    return fresh;
}

enum class Halfway { kGoOn, kSave, kResume };

// Trains; halfway all that a checkpoint holds is saved, or taken to a new model of the same ranks, as a resume does.
// The weights after each step, the states at the end, each step's decision.
template <typename T, typename Grad>
std::string train(const Job& job, Comm& comm, Halfway halfway) {
    std::string bytes;
    auto decided = [&](const StepDecision& d) {
        append(&bytes,
               std::vector<double>{(double)d.updates, d.loss, d.norm, d.grad_scale, (double)d.skipped});
    };
    auto one = std::make_unique<Rank<T, Grad>>(job, comm);
    int64_t updates = 0;
    for (int64_t k = 0; k < 3; k++) {
        const StepDecision d = one->step(k);
        updates = d.updates;
        decided(d);
        if (halfway == Halfway::kSave && k == 1) {
            one->gather();
            for (State s : kAllStates) {
                if (comm.root()) { one->saved(s); }
            }
        }
        if (halfway == Halfway::kResume && k == 1) { one = resumed(job, comm, std::move(one), updates); }
        append(&bytes, one->weights());
    }
    one->gather();
    for (State s : kAllStates) {
        if (comm.root()) { append(&bytes, one->saved(s)); }
    }
    return bytes;
}

template <typename T, typename Grad>
std::string trained(const Job& job, int ranks, Halfway halfway = Halfway::kGoOn) {
    return in_ranks(ranks, [&](Comm& comm) { return train<T, Grad>(job, comm, halfway); });
}

// Two ranks are among those that go on from a checkpoint, three among those that skip a step.
template <typename T, typename Grad>
void check_any_number_of_ranks() {
    const std::string one = trained<T, Grad>({}, 1);
    REQUIRE(one.size() > 3 * 4 * (size_t)file_elements(config()));
    CHECK(trained<T, Grad>({.shard = false}, 3) == one);
    for (int ranks : {1, 2}) {
        CAPTURE(ranks);
        CHECK(trained<T, Grad>({}, ranks, Halfway::kSave) == one);
        CHECK(trained<T, Grad>({}, ranks, Halfway::kResume) == one);
    }
    for (int ranks : {1, 2, 3}) {
        CAPTURE(ranks);
        CHECK(trained<T, Grad>({.record = true}, ranks) == one);
    }
    CHECK(trained<T, Grad>({.shard = false, .record = true}, 2) == one);
    CHECK(trained<T, Grad>({.groups = 3}, 1) != one);
    const std::string skipped = trained<T, Grad>({.poison_step = 1}, 1);
    CHECK(skipped != one);
    CHECK(trained<T, Grad>({.poison_step = 1}, 3) == skipped);
}

// With 6 ranks some have none of Muon's matrices in a layer; 2 skip a step, 3 go on from a checkpoint.
template <typename T, typename Grad>
void check_muon() {
    const std::string one = trained<T, Grad>({.muon = true}, 1);
    CHECK(one != trained<T, Grad>({}, 1));
    CHECK(trained<T, Grad>({.muon = true}, 6) == one);
    CHECK(trained<T, Grad>({.shard = false, .muon = true}, 2) == one);
    CHECK(trained<T, Grad>({.muon = true}, 3, Halfway::kResume) == one);
    const std::string skipped = trained<T, Grad>({.poison_step = 1, .muon = true}, 1);
    CHECK(skipped != one);
    CHECK(trained<T, Grad>({.poison_step = 1, .muon = true}, 2) == skipped);
}

}  // namespace

TEST_SUITE_BEGIN("groups");

TEST_CASE("many ranks' optimizer: fp32, the same bits in 1, 2 and 3 ranks") {
    check_any_number_of_ranks<float, float>();
}
TEST_CASE("many ranks' optimizer: bf16, the same bits in 1, 2 and 3 ranks") {
    check_any_number_of_ranks<bf16, float>();
}
TEST_CASE("many ranks' optimizer: gradients in bf16, the same bits in 1, 2 and 3 ranks") {
    check_any_number_of_ranks<bf16, bf16>();
}
TEST_CASE("many ranks' optimizer: bf16 weights of before set_updates() are refused") {
    for (bool shard : {true, false}) {
        const std::string said = in_ranks(2, [&](Comm& comm) {
            Rank<bf16, float> rank({.shard = shard}, comm);
            rank.step(0);
            const std::vector<float> weights((size_t)file_elements(config()), 0.5f);
            rank.load(State::kParameter, weights);
            rank.set_updates(1);
            try {
                rank.gather();
            } catch (const Error& e) {
                rank.load(State::kParameter, weights);
                rank.gather();
                return std::string(e.what());
            }
            return std::string("not refused");
        });
        CHECK(said.find("loaded again") != std::string::npos);
    }
}
TEST_CASE_TEMPLATE("many ranks' optimizer: Muon, the same bits in 1, 2, 3 and 6 ranks", T, float, bf16) {
    check_muon<T, float>();
}
TEST_CASE("many ranks' optimizer: Muon with gradients in bf16, the same bits in 1, 2, 3 and 6 ranks") {
    check_muon<bf16, bf16>();
}

TEST_SUITE_END();

// Steps whose launches are recorded once and repeated: each has the bits of the same step in a model that has
// recorded nothing, whatever changes from step to step.
#include "dev/test/gpu/device_array.h"
#include "dev/test/gpu/gpu_model.h"
#include "dev/test/gpu/layer_test.h"
#include "llmc/cuda/device_facts.cuh"
#include "llmc/cuda/graph.cuh"
#include "llmc/cuda/resources.cuh"

using namespace llmc;
using namespace llmc::gpu_test;

namespace {

constexpr int kB = 4;
constexpr uint64_t kGraphSeed = 5;

// A step's micro-batches, `each` for a group: of other tokens and another number of targets each
// time. Every second is smaller and shorter, in odd steps the first.
std::vector<Batch> batches_of(const GPT2Config& c, int64_t step, int groups, int each) {
    std::vector<Batch> batches;
    for (int i = 0; i < groups * each; i++) {
        batches.push_back(
            two_batches(c, kB, c.max_seq_len, 100 * (uint64_t)step + 10 * (uint64_t)i)[(i + step) % 2]);
        std::fill_n(batches.back().targets.end() - 5, 1 + step % 5, kIgnoreTarget);
    }
    return batches;
}

// of all that may change, something does in each step; step 5 is skipped
StepParams params_of(int64_t step) {
    StepParams p{step, 1e-2 / (double)(1 + step), 0.9, 0.95, 1e-8, 0.1 * (double)(step % 3), 1.0};
    if (step % 4 == 3) { p.clip = 1e-3; }
    if (step == 5) { p.largest_loss = 0.1f; }
    if (step >= 22) { p.beta1 = 0.8; }
    return p;
}

// Of a group, by step. A micro-batch lies in one of two places, in turn; what is due in a place is launched
// the first time, recorded the second, and then repeated: of each kind there is one that is repeated.
constexpr int kMicroBatches[] = {2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1,
                                 1, 3, 3, 3, 3, 3, 3, 2, 2, 2, 2, 2, 2};

void check_result(const std::string& name, const StepResult& found, const StepResult& expected) {
    CHECK_MESSAGE(found.loss == expected.loss, name);
    CHECK_MESSAGE(found.grad_norm == expected.grad_norm, name);
    CHECK_MESSAGE(found.skipped == expected.skipped, name);
}

// Against a model for each step, which begins as a run does that goes on from a checkpoint.
template <typename Model>
void check_steps(const ModelSettings& settings) {
    const GPT2Config c = tiny_config();
    ModelSettings no_graph = settings;
    no_graph.graph = false;
    Model model(c, kB, c.max_seq_len, settings), launched(c, kB, c.max_seq_len, no_graph);
    for (Model* m : {&model, &launched}) { m->init(kGraphSeed); }
    for (int64_t k = 0; k < std::ssize(kMicroBatches); k++) {
        const std::vector<Batch> batches = batches_of(c, k, settings.groups, kMicroBatches[k]);
        const std::string name =
            fmt::format("recompute {} groups {} step {}", (int)settings.recompute, settings.groups, (int)k);
        Model fresh(c, kB, c.max_seq_len, settings);
        fresh.init(kGraphSeed);
        copy_states(&fresh, model);
        const StepResult expected = step(&fresh, batches, params_of(k)),
                         found = step(&model, batches, params_of(k));
        CHECK(found.skipped == (k == 5));
        check_result("recorded: " + name, found, expected);
        check_same_state("recorded: " + name, model, fresh);
        check_result("launched: " + name, step(&launched, batches, params_of(k)), expected);
        if (k == 6 || k == 11) { model.evaluate(batches[0]); }  // the next batches are in the other places
    }
    check_same_state("launched", launched, model);
}

// passes through the layers that the host has launched or recorded
template <typename Model>
int passes_of_host(Model* model, int steps) {
    int passes = 0;
    model->network().before_forward = [&](int l) { passes += l < 0; };
    for (int k = 0; k < steps; k++) {
        model->enqueue_step(batches_of(model->config(), k, 1, 1), params_of(0));
    }
    model->finish();
    model->network().before_forward = nullptr;
    while (model->poll()) {}
    return passes;
}

}  // namespace

TEST_CASE_TEMPLATE("gpu graphs: each step as in a model that has recorded nothing", Model, Fp32Model,
                   Bf16Model, NarrowModel) {
    for (Recompute recompute : {Recompute::kNone, Recompute::kGelu, Recompute::kBlock}) {
        check_steps<Model>({.recompute = recompute});
    }
    check_steps<Model>({.groups = 2});
    check_steps<Model>({.dropout = 0.3, .seed = 8, .groups = 2});
    check_steps<Model>({.muon = true});
}

// Each place is filled with zero and copied; the first copy waits for what its fill waits for, too, the last for a second
// stream. Behind each copy other bytes come into the place, as a kernel leaves it.
TEST_CASE(
    "gpu graphs: fills of a few bytes become one at the beginning, and places are as if each had its own") {
    constexpr int kPlaces = 5, kBytes = 256;
    const Stream stream, beside;
    Event begun, forked, joined;
    DeviceArray<uint8_t> places(std::vector<uint8_t>(kPlaces * kBytes, 0xa5)),
        copies(std::vector<uint8_t>(kPlaces * kBytes, 0x5a)), other(std::vector<uint8_t>(kBytes, 0xc3));
    size_t nodes = 0;
    const auto record = [&](int distinct, int products, int first_begin = 0) {
        check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        check(cudaMemcpyAsync(other.data() + 8, other.data(), 8, cudaMemcpyDeviceToDevice, stream));
        begun.record(stream);
        for (int k = 0; k < kPlaces; k++) {
            uint8_t* place = places.data() + k % distinct * kBytes + k / distinct * 16;
            if (k == 0) { place += first_begin; }
            if (k == 1) {
                forked.record(stream);
                forked.hold(beside);
            }
            if (k == kPlaces - 1) {
                check(cudaMemcpyAsync(other.data(), copies.data(), 8, cudaMemcpyDeviceToDevice, beside));
                joined.record(beside);
                joined.hold(stream);
            }
            check(cudaMemsetAsync(place, 0, 8, stream));
            if (k == 0) { begun.hold(stream); }
            check(cudaMemcpyAsync(copies.data() + k * kBytes, place, 8, cudaMemcpyDeviceToDevice, stream));
            check(cudaMemsetAsync(place, 0xee, 8, stream));
        }
        cudaGraph_t recorded = nullptr;
        check(cudaStreamEndCapture(stream, &recorded));
        fill_first(recorded, {(std::byte*)places.data(), kPlaces * kBytes}, kBytes, products);
        check(cudaGraphGetNodes(recorded, nullptr, &nodes));
        return recorded;
    };
    // two have a place in common; a place has been taken twice; a fill goes on in the next place: all fills stay
    cudaGraphDestroy(record(kPlaces - 1, kPlaces));
    CHECK(nodes == 3 * kPlaces + 2);
    cudaGraphDestroy(record(kPlaces, kPlaces + 1));
    CHECK(nodes == 3 * kPlaces + 2);
    cudaGraphDestroy(record(kPlaces, kPlaces, kBytes - 4));
    CHECK(nodes == 3 * kPlaces + 2);
    cudaGraph_t recorded = record(kPlaces, kPlaces);
    CHECK(nodes == 2 * kPlaces + 2 + 1);
    cudaGraphExec_t graph = nullptr;
    check(cudaGraphInstantiate(&graph, recorded, 0));
    for (int repeat = 0; repeat < 3; repeat++) {
        check(cudaMemsetAsync(copies.data(), 0x5a, kPlaces * kBytes, stream));
        check(cudaGraphLaunch(graph, stream));
        check(cudaStreamSynchronize(stream));
        const std::vector<uint8_t> found = copies.download();
        for (int k = 0; k < kPlaces * kBytes; k++) {
            CHECK_MESSAGE(found[(size_t)k] == (k % kBytes < 8 ? 0 : 0x5a),
                          fmt::format("copy {}", k / kBytes));
        }
    }
    cudaGraphExecDestroy(graph);
    cudaGraphDestroy(recorded);
}

size_t fills_in(cudaGraph_t recorded) {
    return (size_t)std::ranges::count_if(graph::nodes(cudaGraphGetNodes, recorded), [](graph::Node node) {
        cudaGraphNodeType type;
        check(cudaGraphNodeGetType(node, &type));
        return type == cudaGraphNodeTypeMemset;
    });
}

// GPT-2's of a small batch, twice. As cuBLASLt computes them on Hopper, some need a fill; where none does, only their results
// are checked.
TEST_CASE("gpu graphs: of the products of a recording one fill is left, and results are the same") {
    using T = bf16;
    constexpr int kN = 4096, kC = 768, kWidths[] = {768, 2304, 3072, 768, 2304, 3072};
    const Stream stream;
    DeviceMemory workspace(Matmul::kWorkspace), small(Matmul::kSmallWorkspaces * Matmul::kSmallWorkspace);
    const DeviceArray<T> inp(floats(kN * kC, 1)), weight(floats(4 * kC * kC, 2));
    DeviceArray<T> out(kN * 4 * kC), dinp(kN * kC);
    Matmul matmul(workspace.data(), false, (char*)small.data());
    const auto products = [&] {
        for (int OC : kWidths) {
            matmul.forward<T>(out.data(), inp.data(), weight.data(), (const T*)nullptr, kN, kC, OC, stream);
            matmul.backward_input<T>(dinp.data(), out.data(), weight.data(), kN, kC, OC, stream);
        }
    };
    products();
    check(cudaStreamSynchronize(stream));
    const auto expected_out = out.download(), expected_dinp = dinp.download();
    const int64_t before = matmul.small_products();
    size_t fills = 0, left = 0;
    const Recording recording(
        stream, [&](Recording&) { products(); },
        [&](cudaGraph_t recorded) {
            fills = fills_in(recorded);
            fill_first(recorded, small.bytes(), Matmul::kSmallWorkspace, matmul.small_products() - before);
            left = fills_in(recorded);
        });
    CHECK(matmul.small_products() - before >= (int64_t)fills);
    CHECK(left == std::min<size_t>(fills, 1));
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, current_device()));
    if (properties.major == 9) { CHECK(fills >= 2); }
    for (int repeat = 0; repeat < 2; repeat++) {  // the second finds what the first has left in the places
        check(cudaMemsetAsync(out.data(), 0xff, kN * kWidths[5] * sizeof(T), stream));
        recording.repeat();
        check(cudaStreamSynchronize(stream));
        expect_same("out", out, expected_out);
        expect_same("dinp", dinp, expected_dinp);
    }
}

// A batch lies in one of two places, and every second one is smaller: in each place the first is launched, the second
// recorded.
TEST_CASE("gpu graphs: after the first steps the host launches nothing") {
    const GPT2Config c = tiny_config();
    Bf16Model model(c, kB, c.max_seq_len), launched(c, kB, c.max_seq_len, {.graph = false});
    for (Bf16Model* m : {&model, &launched}) { m->init(kGraphSeed); }
    CHECK(passes_of_host(&model, 8) == 4);
    CHECK(passes_of_host(&model, 8) == 0);
    CHECK(passes_of_host(&launched, 8) == 8);
    CHECK(passes_of_host(&launched, 8) == 8);
    check_same_state("after 16 steps", model, launched);
}

TEST_CASE("gpu graphs: init() with another seed rounds by that seed") {
    const GPT2Config c = tiny_config();
    Bf16Model model(c, kB, c.max_seq_len), other(c, kB, c.max_seq_len);
    model.init(kGraphSeed);
    passes_of_host(&model, 6);
    for (Bf16Model* m : {&model, &other}) {
        m->init(kGraphSeed + 1);
        passes_of_host(m, 6);
    }
    check_same_state("another seed", model, other);
}

// The kernels that GPT-2 takes on Hopper: clusters, copies by TMA, launches that overlap.
TEST_CASE_TEMPLATE("gpu graphs: GPT-2's width", Model, Fp32Model, Bf16Model) {
    const GPT2Config c{128, 50257, 50304, 2, 12, 768};
    Model model(c, kB, 128), launched(c, kB, 128, {.graph = false});
    for (int64_t k = 0; k < 8; k++) {
        for (Model* m : {&model, &launched}) {
            if (k == 0) { m->init(kGraphSeed); }
            m->enqueue_step(batches_of(c, k, 1, k < 4 ? 1 : 2), params_of(k));
        }
    }
    for (Model* m : {&model, &launched}) { m->finish(); }
    for (int64_t k = 0; k < 8; k++) {
        check_result(fmt::format("step {}", (int)k), model.poll().value(), launched.poll().value());
    }
    check_same_state("GPT-2's width", model, launched);
}

// The profile's measurements: steps as they are, steps as CUPTI sees them, and the roofs, one after the other in the memory
// that the model has, and a little more.
#include "llmc/model/profile/step_profile.h"

#include <cuda_bf16.h>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>

#include "llmc/cuda/checksum.cuh"
#include "llmc/cuda/device_facts.cuh"
#include "llmc/cuda/measuring.cuh"
#include "llmc/host/base/text.h"
#include "llmc/host/files/file_io.h"
#include "llmc/model/gpu/gpt2.cuh"
#include "llmc/model/run/plan.h"
#include "llmc/ops/matmul/search.cuh"

namespace llmc {

namespace {

constexpr double kWarmSeconds = 10;  // clocks and temperature settle
constexpr int kTimedSteps = 40, kRecordedSteps = 12;
constexpr int kCandidates = 64, kBestOf = 3;  // of a product: algorithms tried once, and those timed again
constexpr size_t kVariants = 16;              // of the first proposal, that are tried beside the proposals
constexpr int kHostMicroseconds = 15;         // to queue a product, at most

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> x, double share = 0.5) {
    std::ranges::sort(x);
    return x[(size_t)(share * (double)(x.size() - 1))];
}

// device milliseconds of what work() queues in hold_us, in which the GPU waits: short kernels would else wait for the host
template <typename Work>
double elapsed_ms(cudaStream_t stream, const Work& work, int hold_us = 0) {
    Event begin(cudaEventDefault), end(cudaEventDefault);
    if (hold_us > 0) { hold(hold_us, stream); }
    begin.record(stream);
    work();
    end.record(stream);
    check(cudaStreamSynchronize(stream));
    return end.since(begin).count();
}

// ---- steps -----------------------------------------------------------------------------------------

struct Steps {
    Model& model;
    const DataLoader& data;
    const RunPlan& plan;
    std::vector<Batch> batches = std::vector<Batch>((size_t)plan.micro_batches);
    int64_t step = 0;

    // at least this many steps and seconds; the times between their ends
    std::vector<double> run(int steps, double seconds) {
        std::vector<double> ms;
        std::optional<Clock::time_point> last;
        auto take = [&] {
            while (auto result = model.poll()) {
                if (last) {
                    ms.push_back(std::chrono::duration<double, std::milli>(result->done - *last).count());
                }
                last = result->done;
            }
        };
        auto start = Clock::now();
        for (int n = 0; n < steps || seconds_since(start) < seconds; n++, step++) {
            const Options& o = plan.options;
            for (int64_t k = 0; k < plan.micro_batches; k++) {
                data.read(step * plan.rows_per_step + k * o.batch, o.batch, &batches[k]);
            }
            const double lr = plan.schedule(std::min(step, plan.steps - 1));
            model.enqueue_step(batches, {step, lr, o.beta1, o.beta2, o.eps, o.weight_decay, o.clip});
            take();
        }
        model.finish();
        take();
        return ms;
    }
};

// ---- products --------------------------------------------------------------------------------------

struct Operands {
    void* d;
    const void *a, *b;
    const float *inverse_a = nullptr, *inverse_b = nullptr;  // of FP8
};

// of the product of FP8 that takes its place in layer l
template <typename T, typename Grad>
Operands in_fp8(GPT2Network<T, Grad>& network, const ProductWork& work, int l, void* d) {
    using enum Fp8Role;
    const Fp8Memory& m = network.mem.fp8;
    const int i = fp8_linear(work.weight);
    const bool forward = work.part == Part::kProductForward, of_weight = work.part == Part::kProductWeight;
    const bool narrow = work.weight == kAttprojw || work.weight == kFcprojw;  // its output's gradient
    const uint8_t* input_t = work.weight == kFcprojw ? m.input : m.layers[l].input_t[i];
    const Fp8Matrix a = of_weight ? m.matrix(input_t, kInput, work.weight, l)
                                  : m.matrix((forward ? m.layers[l].weight : m.layers[l].weight_t)[i],
                                             kWeight, work.weight, l),
                    b = forward ? m.matrix(m.input, kInput, work.weight, l)
                        : of_weight
                            ? m.matrix(narrow ? m.dresidual_t : m.gradient_t, kGradient, work.weight, l)
                            : m.matrix(m.gradient, kGradient, work.weight, l);
    return {d, a.numbers, b.numbers, a.inverse_scale, b.inverse_scale};
}

// of one kind of product, what each layer's has
template <typename T, typename Grad>
std::vector<Operands> operands_of(GPT2Network<T, Grad>& network, const ProductWork& work) {
    auto& mem = network.mem;
    std::vector<Operands> all;
    for (int l = 0; l < work.calls; l++) {
        auto& a = mem.layers[l];
        const struct {
            Tensor weight;
            T *inp, *out, *dout, *dinp;
        } kinds[] = {{kQkvw, a.ln1.out, a.qkv, mem.dwide, mem.dproj},
                     {kAttprojw, a.atty, mem.proj, mem.dresidual, mem.dproj},
                     {kFcw, a.ln2.out, a.fch, mem.dwide, mem.dproj},
                     {kFcprojw, a.fch_gelu, mem.proj, mem.dresidual, mem.dwide},
                     {kWte, mem.lnf.out, mem.logits, mem.logits, mem.dproj}};
        const auto& of = *std::ranges::find(kinds, work.weight, [](const auto& kind) { return kind.weight; });
        const int64_t at = network.layout.offset(work.weight, l);
        all.push_back(work.part == Part::kProductForward ? Operands{of.out, mem.params + at, of.inp}
                      : work.part == Part::kProductInput ? Operands{of.dinp, mem.params + at, of.dout}
                                                         : Operands{mem.grads + at, of.inp, of.dout});
        if (work.fp8) { all.back() = in_fp8(network, work, l, all.back().d); }
    }
    return all;
}

template <typename T, typename Grad>
matmul::Product product_of(const ProductWork& w) {
    using matmul::kDataType;
    if (w.fp8) {  // both operands have the dimension that is summed over last
        ProductWork same = w;
        same.fp8 = false;
        matmul::Product p = product_of<T, Grad>(same);
        p.transpose_a = true, p.transpose_b = false, p.inputs = matmul::kE4m3;
        p.second = w.part == Part::kProductForward ? matmul::kE4m3 : matmul::kE5m2;
        p.fast = w.part != Part::kProductWeight;
        return p;
    }
    if (w.part == Part::kProductForward) { return {true, false, w.OC, w.N, w.C, kDataType<T>, kDataType<T>}; }
    if (w.part == Part::kProductInput) { return {false, false, w.C, w.N, w.OC, kDataType<T>, kDataType<T>}; }
    return {false, true, w.C, w.OC, w.N, kDataType<T>, kDataType<Grad>};
}

// One kind of product, on the operands of the layers in turn.
template <typename T, typename Grad>
struct Race {
    cublasLtHandle_t handle;
    GPT2Network<T, Grad>& network;
    const ProductWork& work;
    matmul::Product product = product_of<T, Grad>(work);
    matmul::Plan plan{handle, product, network.settings.tf32};
    std::vector<Operands> operands = operands_of(network, work);
    size_t next = 0;
    int calls = 1, quick_calls = 1;

    // each algorithm once, those that are fastest again, and those of them that give the first's bits
    ProductTime run() {
        auto candidates = plan.candidates(handle, kCandidates);
        require(!candidates.empty(), "--profile: cuBLASLt has no algorithm for a product of this model");
        plan.choose(candidates.front());
        time(1);
        double ms = time(2);
        calls = std::clamp((int)(20 / ms), 4, 200);      // 20 ms
        quick_calls = std::clamp((int)(4 / ms), 1, 10);  // of each algorithm, to find the fastest few
        const uint64_t first_bits = bits();
        const int tried = add_variants(&candidates, first_bits);
        plan.choose(candidates.front());
        const double first_ms = time(calls), any_ms = fastest(candidates);
        std::erase_if(candidates, [&](const matmul::Candidate& candidate) {
            plan.choose(candidate);
            return bits() != first_bits;
        });
        const double same_bits_ms = std::min(fastest(candidates), first_ms);
        return {.work = work,
                .first_ms = first_ms,
                .fastest_ms = std::min(any_ms, same_bits_ms),
                .candidates = tried,
                .same_bits_ms = same_bits_ms,
                .same_bits = (int)candidates.size()};
    }
    // The fastest of those that give the first proposal's bits. How many were timed, with the proposals.
    int add_variants(std::vector<matmul::Candidate>* candidates, uint64_t first_bits) {
        const matmul::Variants variants(handle, plan, *candidates, [&] { return time(1); });
        const size_t proposals = candidates->size();
        for (const matmul::Candidate& variant : variants.fastest(3 * kVariants)) {
            plan.choose(variant);
            if (candidates->size() < proposals + kVariants && bits() == first_bits) {
                candidates->push_back(variant);
            }
        }
        return (int)(proposals + variants.timed());
    }
    double fastest(const std::vector<matmul::Candidate>& candidates) {
        std::vector<std::pair<double, size_t>> order;
        for (size_t i = 0; i < candidates.size(); i++) {
            plan.choose(candidates[i]);
            time(1);
            order.push_back({time(quick_calls), i});
        }
        std::ranges::sort(order);
        double best = INFINITY;
        for (size_t k = 0; k < std::min<size_t>(kBestOf, order.size()); k++) {
            plan.choose(candidates[order[k].second]);
            best = std::min(best, time(calls));
        }
        return best;
    }
    void call(const Operands& o) {
        if (o.inverse_a != nullptr) {
            plan.set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, o.inverse_a);
            plan.set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, o.inverse_b);
        }
        plan.run(handle, o.d, o.a, o.b, false, network.mem.workspace, network.stream);
    }
    double time(int times) {
        auto all = [&] {
            for (int i = 0; i < times; i++) { call(operands[next++ % operands.size()]); }
        };
        return elapsed_ms(network.stream, all, kHostMicroseconds * times) / times;
    }
    // of the chosen algorithm's result for the first layer
    uint64_t bits() {
        call(operands[0]);
        int64_t bytes = product.m * product.n * (product.output == CUDA_R_32F ? 4 : 2);
        return checksum((const uint32_t*)operands[0].d, bytes / 4, network.stream);
    }
};

template <typename T, typename Grad>
std::vector<ProductTime> race_products(GPT2Network<T, Grad>& network, std::vector<ProductWork> products) {
    // backward first: forward's head overwrites the logits' gradient
    std::ranges::stable_sort(products, std::greater(), &ProductWork::part);
    cublasLtHandle_t handle;
    matmul::check(cublasLtCreate(&handle));
    std::vector<ProductTime> times;
    for (const ProductWork& work : products) { times.push_back(Race<T, Grad>{handle, network, work}.run()); }
    cublasLtDestroy(handle);
    std::ranges::stable_sort(times, {}, [](const ProductTime& time) { return time.work.part; });
    return times;
}

// ---- streams ---------------------------------------------------------------------------------------

constexpr int64_t kStreamBytes = 256 << 20;  // of one: well beyond L2

StreamRoof measure_streams(int reads, int writes, void* pool, cudaStream_t stream) {
    constexpr int64_t vectors = kStreamBytes / sizeof(uint4);
    Streams s{};
    auto* p = (uint4*)pool;
    s.out[0] = p;
    for (int r = 0; r < reads; r++, p += vectors) { s.in[r] = p; }
    for (int w = 0; w < writes; w++, p += vectors) { s.out[w] = p; }
    double best = INFINITY;
    for (int unroll : {1, 2, 4}) {
        for (int threads = 256; threads <= stream_threads(reads, unroll); threads *= 2) {
            int64_t once = ceil_div(vectors, (int64_t)threads * unroll);
            for (int per_sm : {0, 2, 4, 8}) {
                int64_t most = (int64_t)per_sm * device_facts().multiprocessors;
                auto blocks = (unsigned)(per_sm > 0 ? std::min(once, most) : once);
                const StreamLaunch launch{reads, writes, unroll, false, blocks, threads};
                for (int k = 0; k < 4; k++) {
                    best =
                        std::min(best, elapsed_ms(stream, [&] { move_streams(launch, s, vectors, stream); }));
                }
            }
        }
    }
    return {reads, writes, (reads + writes) * (double)kStreamBytes / best * 1e3};
}

std::vector<StreamRoof> measure_all_streams(cudaStream_t stream) {
    int most = 0;
    for (const StreamMix& mix : kStreamMixes) { most = std::max(most, mix.reads + mix.writes); }
    DeviceMemory pool(most * kStreamBytes);
    fill(pool.data(), most * kStreamBytes / 4, stream);
    std::vector<StreamRoof> roofs;
    for (const StreamMix& mix : kStreamMixes) {
        roofs.push_back(measure_streams(mix.reads, mix.writes, pool.data(), stream));
    }
    return roofs;
}

}  // namespace

template <typename T, typename Grad>
int profile_training(const Options& given) {
    require_cupti();  // before anything takes time
    DataLoader data(given.train_data, given.seq_len, given.seed, given.raw_tokens);
    Device device = GPT2<T, Grad>::device(model_settings(given));
    const RunPlan plan = make_run_plan(given, data);
    const Options& o = plan.options;
    GPT2<T, Grad> model(plan.config, o.batch, o.seq_len, model_settings(o));
    model.init(o.seed);
    StepProfile p;
    const GPT2Config& c = plan.config;
    p.gpu = device.name;
    p.model = fmt::format("{} layers, {} heads, {} channels, vocabulary {} of {}, {}{}, gradients {}",
                          c.num_layers, c.num_heads, c.channels, c.vocab_size, c.padded_vocab_size,
                          text_of(o.dtype), o.fp8 ? " with FP8" : "", text_of(o.grad_dtype));
    const std::chrono::year_month_day today(
        std::chrono::floor<std::chrono::days>(std::chrono::system_clock::now()));
    p.date = fmt::format("{}-{:02}-{:02}", (int)today.year(), (unsigned)today.month(), (unsigned)today.day());
    p.B = o.batch;
    p.T = o.seq_len;
    Steps steps{model, data, plan};
    std::printf("training for %.0f seconds, then %d steps that count\n", kWarmSeconds, kTimedSteps);
    std::fflush(stdout);
    steps.run(4, kWarmSeconds);
    auto ms = steps.run(kTimedSteps + 1, 0);
    p.steps = (int)ms.size();
    p.step_ms = median(ms);
    p.step_p20_ms = median(ms, 0.2);
    p.step_p80_ms = median(ms, 0.8);
    model.network().settings.graph = false;  // CUPTI names each launch's kernel, and the call behind it
    p.recording = analyse(record_activity([&] { steps.run(kRecordedSteps, 0); }));
    p.work =
        work_of_step(c, o.batch, o.seq_len, sizeof(T), sizeof(Grad), o.optimizer == Optimizer::kMuon, o.fp8);
    p.roofs = measure_all_streams(model.network().stream);
    int khz = 0;
    check(cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, current_device()));
    p.exponentials_per_s = 16.0 * device_facts().multiprocessors * khz * 1e3;
    steps.run(2, 1);
    p.products = race_products(model.network(), p.work.products);
    std::printf("%s", profile_table(p).c_str());
    write_text_file(o.profile, profile_json(p));
    put_text(stdout, "written: " + o.profile + "\n");
    return kExitDone;
}

template int profile_training<float, float>(const Options&);
template int profile_training<__nv_bfloat16, float>(const Options&);
template int profile_training<__nv_bfloat16, __nv_bfloat16>(const Options&);

// ---- the search of --tune-gemm; how algorithms are timed: llmc/ops/matmul/search.cuh ------------

template <typename T, typename Grad>
void tune_products(const Options& given) {
    constexpr double kTuneWarmSeconds = 5;  // clocks and temperature settle
    // in which the host gets ahead of the GPU: small products would else wait for it
    constexpr int kHoldMicroseconds = 15000;
    Options o = given;
    o.tune_gemm.clear();
    put_text(stdout, "--tune-gemm: " + given.tune_gemm + " is not there; searching\n");
    std::fflush(stdout);
    DataLoader data(o.train_data, o.seq_len, o.seed, o.raw_tokens);
    const RunPlan plan = make_run_plan(o, data);
    GPT2<T, Grad> model(plan.config, o.batch, o.seq_len, model_settings(plan.options));
    model.init(o.seed);
    // the second one's gradients are added
    std::vector<Batch> batches(std::min<int64_t>(2, plan.micro_batches));
    for (size_t k = 0; k < batches.size(); k++) { data.read((int64_t)k * o.batch, o.batch, &batches[k]); }
    GPT2Network<T, Grad>& network = model.network();
    auto pass = [&] {
        hold(kHoldMicroseconds, network.stream);
        model.forward_backward(batches);
    };
    const auto start = Clock::now();
    while (seconds_since(start) < kTuneWarmSeconds) { pass(); }
    network.matmul.begin_search();
    do { pass(); } while (network.matmul.next_pass(network.stream));
    const MatmulChoices found = network.matmul.end_search();
    std::string table = "m      n      k      epilogue sum | first us  best us | tried, bits\n";
    for (const MatmulChoice& c : found.choices) {
        table += fmt::format("{:<6} {:<6} {:<6} {:8} {:>3} | {:8.1f} {:8.1f} | {}, {}\n", c.kind.m, c.kind.n,
                             c.kind.k, c.kind.epilogue, c.kind.accumulate ? "+=" : "=", 1e3 * c.first_ms,
                             1e3 * c.ms, c.proposals, c.same_bits ? "the first's" : "others");
    }
    std::printf("%ssearched for %.0f seconds\n", table.c_str(), seconds_since(start));
    write_text_file(given.tune_gemm, to_json(found));
    put_text(stdout, "written: " + given.tune_gemm + "\n");
}

template void tune_products<float, float>(const Options&);
template void tune_products<__nv_bfloat16, float>(const Options&);
template void tune_products<__nv_bfloat16, __nv_bfloat16>(const Options&);

}  // namespace llmc

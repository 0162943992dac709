// The profile's measurements: steps as they are, steps as CUPTI sees them, and the roofs, one after the other in the memory
// that the model has, and a little more.
#include "llmc/model/profile/profile.h"

#include <cuda_bf16.h>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>

#include "llmc/cuda/checksum.cuh"
#include "llmc/cuda/device_facts.cuh"
#include "llmc/cuda/measuring.cuh"
#include "llmc/host/base/text.h"
#include "llmc/host/files/file_io.h"
#include "llmc/model/gpu/network.cuh"
#include "llmc/model/profile/step_profile.h"
#include "llmc/model/run/plan.h"
#include "llmc/ops/matmul/search.cuh"

namespace llmc {

namespace {

constexpr double kWarmSeconds = 10;  // clocks and temperature settle
constexpr int kTimedSteps = 40, kRecordedSteps = 12;
constexpr int kCandidates = 64, kBestOf = 3;  // of a product: algorithms tried once, and those timed again
constexpr size_t kVariants = 16;              // of the first proposal, that are tried beside the proposals
constexpr int kHostMicroseconds = 15;         // to queue a product, at most
constexpr size_t kWideWorkspace = 4 * Matmul::kWorkspace;

using Clock = std::chrono::steady_clock;

double median(std::vector<double> x, double share = 0.5) {
    std::sort(x.begin(), x.end());
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

class Steps {
public:
    Steps(Model& model, const DataLoader& data, const RunPlan& plan)
        : model_(model), data_(data), plan_(plan), o_(plan.options), batches_(plan.micro_batches) {}

    // at least this many steps and seconds; the times between their ends
    std::vector<double> run(int steps, double seconds) {
        std::vector<double> ms;
        std::optional<Clock::time_point> last;
        auto take = [&] {
            while (auto result = model_.poll()) {
                if (last) {
                    ms.push_back(std::chrono::duration<double, std::milli>(result->done - *last).count());
                }
                last = result->done;
            }
        };
        auto start = Clock::now();
        for (int k = 0; k < steps || std::chrono::duration<double>(Clock::now() - start).count() < seconds;
             k++) {
            enqueue();
            take();
        }
        model_.finish();
        take();
        return ms;
    }

private:
    void enqueue() {
        for (int64_t k = 0; k < plan_.micro_batches; k++) {
            data_.read(step_ * plan_.rows_per_step + k * o_.batch, o_.batch, &batches_[k]);
        }
        StepParams params{step_,    plan_.schedule(std::min(step_, plan_.steps - 1)),
                          o_.beta1, o_.beta2,
                          o_.eps,   o_.weight_decay,
                          o_.clip};
        model_.enqueue_step(batches_, params);
        step_++;
    }
    Model& model_;
    const DataLoader& data_;
    const RunPlan& plan_;
    const Options& o_;
    std::vector<Batch> batches_;
    int64_t step_ = 0;
};

// ---- products --------------------------------------------------------------------------------------

struct Operands {
    void* d;
    const void *a, *b;
};

// of one kind of product, what each layer's has
template <typename T, typename Grad>
std::vector<Operands> operands_of(GPT2Network<T, Grad>& network, const ProductWork& work) {
    auto& mem = network.mem;
    std::string name = work.name;
    int tensor = name == "qkv"       ? kQkvw
                 : name == "attproj" ? kAttprojw
                 : name == "fc"      ? kFcw
                 : name == "fcproj"  ? kFcprojw
                                     : kWte;
    std::vector<Operands> all;
    for (int l = 0; l < work.calls; l++) {
        auto& a = mem.layers[l];
        T* weight = mem.params + network.layout.offset(tensor, l);
        Grad* dweight = mem.grads + network.layout.offset(tensor, l);
        T *inp = mem.lnf, *out = mem.logits, *dout = mem.logits, *dinp = mem.dproj;
        if (tensor == kQkvw) { inp = a.ln1, out = a.qkv, dout = mem.dwide; }
        if (tensor == kAttprojw) { inp = a.atty, out = mem.proj, dout = mem.dresidual; }
        if (tensor == kFcw) { inp = a.ln2, out = a.fch, dout = mem.dwide; }
        if (tensor == kFcprojw) { inp = a.fch_gelu, out = mem.proj, dout = mem.dresidual, dinp = mem.dwide; }
        all.push_back(work.part == Part::kProductForward ? Operands{out, weight, inp}
                      : work.part == Part::kProductInput ? Operands{dinp, weight, dout}
                                                         : Operands{dweight, inp, dout});
    }
    return all;
}

template <typename T, typename Grad>
matmul::Product product_of(const ProductWork& w) {
    using matmul::kDataType;
    if (w.part == Part::kProductForward) { return {true, false, w.OC, w.N, w.C, kDataType<T>, kDataType<T>}; }
    if (w.part == Part::kProductInput) { return {false, false, w.C, w.N, w.OC, kDataType<T>, kDataType<T>}; }
    return {false, true, w.C, w.OC, w.N, kDataType<T>, kDataType<Grad>};
}

// One kind of product, on the operands of the layers in turn.
template <typename T, typename Grad>
class Race {
public:
    Race(cublasLtHandle_t handle, GPT2Network<T, Grad>& network, const ProductWork& work)
        : handle_(handle),
          network_(network),
          work_(work),
          product_(product_of<T, Grad>(work)),
          plan_(handle, product_, network.settings.tf32),
          operands_(operands_of(network, work)) {}

    ProductTime run() {
        ProductTime result = race_all();
        DeviceMemory wide((int64_t)kWideWorkspace);
        workspace_ = wide.data();
        workspace_bytes_ = kWideWorkspace;
        result.wide_ms = fastest(plan_.candidates(handle_, kCandidates, true, kWideWorkspace));
        workspace_ = network_.mem.workspace;
        workspace_bytes_ = Matmul::kWorkspace;
        if (auto unsplit = plan_.candidates(handle_, 1, false); !unsplit.empty()) {
            plan_.choose(unsplit.front());
            result.unsplit_ms = time(plan_, calls_, false);
        }
        if (auto epilogue = epilogue_of_step(); epilogue != CUBLASLT_EPILOGUE_DEFAULT && sizeof(T) == 2) {
            matmul::Product fused = product_;
            fused.epilogue = epilogue;
            matmul::Plan plan(handle_, fused, false);
            set_pointers(plan, epilogue);
            if (plan.usable()) { result.fused_ms = time(plan, calls_, false); }
        }
        if (work_.part == Part::kProductWeight) {
            matmul::Product adding = product_;
            adding.accumulate = true;
            matmul::Plan plan(handle_, adding, network_.settings.tf32);
            if (plan.usable()) { result.adding_ms = time(plan, calls_, true); }
        }
        return result;
    }

private:
    // each algorithm once, those that are fastest again, and those of them that give the first's bits
    ProductTime race_all() {
        auto candidates = plan_.candidates(handle_, kCandidates);
        require(!candidates.empty(), "--profile: cuBLASLt has no algorithm for a product of this model");
        plan_.choose(candidates.front());
        time(plan_, 1, false);
        double ms = time(plan_, 2, false);
        calls_ = std::clamp((int)(20 / ms), 4, 200);      // 20 ms
        quick_calls_ = std::clamp((int)(4 / ms), 1, 10);  // of each algorithm, to find the fastest few
        uint64_t first_bits = bits();
        const int tried = add_variants(&candidates, first_bits);
        plan_.choose(candidates.front());
        const double first_ms = time(plan_, calls_, false);
        ProductTime result{work_, first_ms, fastest(candidates), tried};
        result.fastest_ms = std::min(result.fastest_ms, result.first_ms);
        std::vector<matmul::Candidate> same;
        for (const matmul::Candidate& candidate : candidates) {
            plan_.choose(candidate);
            if (bits() == first_bits) { same.push_back(candidate); }
        }
        result.same_bits = (int)same.size();
        result.same_bits_ms = std::min(fastest(same), result.first_ms);
        result.fastest_ms = std::min(result.fastest_ms, result.same_bits_ms);
        return result;
    }
    // The fastest of those that give the first proposal's bits. How many were timed, with the proposals.
    int add_variants(std::vector<matmul::Candidate>* candidates, uint64_t first_bits) {
        const matmul::Variants variants(handle_, plan_, *candidates, [&] { return time(plan_, 1, false); });
        const size_t proposals = candidates->size();
        for (const matmul::Candidate& variant : variants.fastest(3 * kVariants)) {
            plan_.choose(variant);
            if (candidates->size() < proposals + kVariants && bits() == first_bits) {
                candidates->push_back(variant);
            }
        }
        return (int)(proposals + variants.timed());
    }
    double fastest(const std::vector<matmul::Candidate>& candidates) {
        std::vector<std::pair<double, size_t>> order;
        for (size_t i = 0; i < candidates.size(); i++) {
            plan_.choose(candidates[i]);
            time(plan_, 1, false);
            order.push_back({time(plan_, quick_calls_, false), i});
        }
        std::sort(order.begin(), order.end());
        double best = INFINITY;
        for (size_t k = 0; k < std::min<size_t>(kBestOf, order.size()); k++) {
            plan_.choose(candidates[order[k].second]);
            best = std::min(best, time(plan_, calls_, false));
        }
        return best;
    }
    void call(matmul::Plan& plan, const Operands& o, bool accumulate) {
        plan.run(handle_, o.d, o.a, o.b, accumulate, workspace_, network_.stream, workspace_bytes_);
    }
    double time(matmul::Plan& plan, int calls, bool accumulate) {
        auto all = [&] {
            for (int i = 0; i < calls; i++) { call(plan, operands_[next_++ % operands_.size()], accumulate); }
        };
        return elapsed_ms(network_.stream, all, kHostMicroseconds * calls) / calls;
    }
    // of the chosen algorithm's result for the first layer
    uint64_t bits() {
        call(plan_, operands_[0], false);
        int64_t bytes = product_.m * product_.n * (product_.output == CUDA_R_32F ? 4 : 2);
        return checksum((const uint32_t*)operands_[0].d, bytes / 4, network_.stream);
    }
    cublasLtEpilogue_t epilogue_of_step() const {
        std::string name = work_.name;
        if (work_.part == Part::kProductForward && name != "head") {
            return name == "fc" ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_BIAS;
        }
        bool behind_gelu = work_.part == Part::kProductInput && name == "fcproj";
        return behind_gelu ? CUBLASLT_EPILOGUE_DGELU : CUBLASLT_EPILOGUE_DEFAULT;
    }
    // of any layer: what is read there does not matter for the time
    void set_pointers(matmul::Plan& plan, cublasLtEpilogue_t epilogue) {
        const void* bias = network_.mem.params + network_.layout.offset(kFcb);
        const void* pre =
            epilogue == CUBLASLT_EPILOGUE_DGELU ? network_.mem.layers[0].fch : network_.mem.dwide;
        if (epilogue != CUBLASLT_EPILOGUE_DGELU) { plan.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias); }
        if (epilogue != CUBLASLT_EPILOGUE_BIAS) { plan.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, pre); }
    }

    cublasLtHandle_t handle_;
    GPT2Network<T, Grad>& network_;
    const ProductWork& work_;
    matmul::Product product_;
    matmul::Plan plan_;
    std::vector<Operands> operands_;
    void* workspace_ = network_.mem.workspace;
    size_t workspace_bytes_ = Matmul::kWorkspace, next_ = 0;
    int calls_ = 1, quick_calls_ = 1;
};

template <typename T, typename Grad>
std::vector<ProductTime> race_products(GPT2Network<T, Grad>& network, std::vector<ProductWork> products) {
    // backward first: forward's head overwrites the logits' gradient
    std::stable_sort(products.begin(), products.end(),
                     [](const ProductWork& a, const ProductWork& b) { return a.part > b.part; });
    cublasLtHandle_t handle;
    matmul::check(cublasLtCreate(&handle));
    std::vector<ProductTime> times;
    for (const ProductWork& work : products) { times.push_back(Race<T, Grad>(handle, network, work).run()); }
    cublasLtDestroy(handle);
    std::stable_sort(times.begin(), times.end(),
                     [](const ProductTime& a, const ProductTime& b) { return a.work.part < b.work.part; });
    return times;
}

// ---- streams ---------------------------------------------------------------------------------------

constexpr int64_t kStreamBytes = 256 << 20;  // of one: well beyond L2

template <int R, int W, int kUnroll>
double fastest_stream_ms(const Streams& s, int64_t vectors, cudaStream_t stream) {
    double best = INFINITY;
    for (int threads = 256; threads <= kStreamThreads<R, kUnroll>; threads *= 2) {
        int64_t once = ceil_div(vectors, (int64_t)threads * kUnroll);
        for (int per_sm : {0, 2, 4, 8}) {
            int64_t most = (int64_t)per_sm * device_facts().multiprocessors;
            auto blocks = (unsigned)(per_sm > 0 ? std::min(once, most) : once);
            for (int k = 0; k < 4; k++) {
                best = std::min(best, elapsed_ms(stream, [&] {
                                    stream_kernel<R, W, kUnroll, false>
                                        <<<blocks, threads, 0, stream>>>(s, vectors);
                                    check_launch();
                                }));
            }
        }
    }
    return best;
}

template <int R, int W>
StreamRoof measure_streams(void* pool, cudaStream_t stream) {
    constexpr int64_t vectors = kStreamBytes / sizeof(uint4);
    Streams s{};
    auto* p = (uint4*)pool;
    s.out[0] = p;
    for (int r = 0; r < R; r++, p += vectors) { s.in[r] = p; }
    for (int w = 0; w < W; w++, p += vectors) { s.out[w] = p; }
    double ms = std::min({fastest_stream_ms<R, W, 1>(s, vectors, stream),
                          fastest_stream_ms<R, W, 2>(s, vectors, stream),
                          fastest_stream_ms<R, W, 4>(s, vectors, stream)});
    return {R, W, (R + W) * (double)kStreamBytes / ms * 1e3};
}

std::vector<StreamRoof> measure_all_streams(cudaStream_t stream) {
    int most = 0;
    for (const StreamMix& mix : kStreamMixes) { most = std::max(most, mix.reads + mix.writes); }
    DeviceMemory pool(most * kStreamBytes);
    fill_kernel<<<1024, 256, 0, stream>>>((uint32_t*)pool.data(), most * kStreamBytes / 4, 1u);
    check_launch();
    return [&]<size_t... i>(std::index_sequence<i...>) {
        return std::vector{
            measure_streams<kStreamMixes[i].reads, kStreamMixes[i].writes>(pool.data(), stream)...};
    }
    (std::make_index_sequence<std::size(kStreamMixes)>());
}

std::string today() {
    std::time_t now = std::time(nullptr);
    char text[32];
    std::strftime(text, sizeof(text), "%Y-%m-%d", std::gmtime(&now));
    return text;
}

double exponentials_per_second() {
    int khz = 0;
    check(cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, current_device()));
    return 16.0 * device_facts().multiprocessors * khz * 1e3;
}

}  // namespace

template <typename T, typename Grad>
int profile_training(const Options& given) {
    ActivityRecorder::require_cupti();  // before anything takes time
    DataLoader data(given.train_data, given.seq_len, given.seed, given.raw_tokens);
    Device device = GPT2<T, Grad>::device(model_settings(given));
    const RunPlan plan = make_run_plan(given, data);
    const Options& o = plan.options;
    GPT2<T, Grad> model(plan.config, o.batch, o.seq_len, model_settings(o));
    model.init(o.seed);
    StepProfile p;
    const GPT2Config& c = plan.config;
    p.gpu = device.name;
    p.model = fmt::format("{} layers, {} heads, {} channels, vocabulary {} of {}, {}, gradients {}",
                          c.num_layers, c.num_heads, c.channels, c.vocab_size, c.padded_vocab_size,
                          text_of(o.dtype), text_of(o.grad_dtype));
    p.date = today();
    p.B = o.batch;
    p.T = o.seq_len;
    Steps steps(model, data, plan);
    std::printf("training for %.0f seconds, then %d steps that count\n", kWarmSeconds, kTimedSteps);
    std::fflush(stdout);
    steps.run(4, kWarmSeconds);
    auto ms = steps.run(kTimedSteps + 1, 0);
    p.steps = (int)ms.size();
    p.step_ms = median(ms);
    p.step_p20_ms = median(ms, 0.2);
    p.step_p80_ms = median(ms, 0.8);
    {
        model.network().settings.graph = false;  // CUPTI names each launch's kernel, and the call behind it
        ActivityRecorder recorder;
        steps.run(kRecordedSteps, 0);
        p.recording = analyse(recorder.stop());
    }
    p.work = work_of_step(c, o.batch, o.seq_len, sizeof(T), sizeof(Grad), o.optimizer == Optimizer::kMuon);
    p.roofs = measure_all_streams(model.network().stream);
    p.exponentials_per_s = exponentials_per_second();
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

namespace {

constexpr double kTuneWarmSeconds = 5;  // clocks and temperature settle
// in which the host gets ahead of the GPU: small products would else wait for it
constexpr int kHoldMicroseconds = 15000;

void print(const MatmulChoices& found, double seconds) {
    std::printf("m      n      k      epilogue sum | first us  best us | tried, bits\n");
    for (const MatmulChoice& c : found.choices) {
        std::printf("%-6lld %-6lld %-6lld %8lld %3s | %8.1f %8.1f | %lld, %s\n", (long long)c.kind.m,
                    (long long)c.kind.n, (long long)c.kind.k, (long long)c.kind.epilogue,
                    c.kind.accumulate ? "+=" : "=", 1e3 * c.first_ms, 1e3 * c.ms, (long long)c.proposals,
                    c.same_bits ? "the first's" : "others");
    }
    std::printf("searched for %.0f seconds\n", seconds);
}

}  // namespace

template <typename T, typename Grad>
void tune_products(const Options& given) {
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
    auto start = std::chrono::steady_clock::now();
    auto seconds = [&] {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    };
    while (seconds() < kTuneWarmSeconds) { pass(); }
    network.matmul.begin_search();
    do { pass(); } while (network.matmul.next_pass(network.stream));
    const MatmulChoices found = network.matmul.end_search();
    print(found, seconds());
    write_text_file(given.tune_gemm, to_json(found));
    put_text(stdout, "written: " + given.tune_gemm + "\n");
}

template void tune_products<float, float>(const Options&);
template void tune_products<__nv_bfloat16, float>(const Options&);
template void tune_products<__nv_bfloat16, __nv_bfloat16>(const Options&);

}  // namespace llmc

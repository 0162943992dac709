// The floors of a step, and its profile as text and as JSON: see step_profile.h.
#include "llmc/model/profile/step_profile.h"

#include <cctype>
#include <numeric>
#include <span>
#include <utility>

#include "llmc/host/base/error.h"
#include "llmc/host/files/json.h"
#include "llmc/ops/muon/muon.h"

namespace llmc {

namespace {

constexpr const char* kMarker = "decide_step";

// by Part; words: of which one stands in the name of a kernel of that part
const struct {
    const char* name;
    std::vector<const char*> words = {};
} kPartTable[kParts] = {
    {"products, forward"},
    {"products, input's gradient"},
    {"products, weight's gradient"},
    {"attention forward", {"attention_forward"}},
    {"attention backward", {"attention_backward", "attention_dot"}},
    {"classifier", {"classifier", "sum_losses"}},
    {"bias gradient", {"bias_", "sum_rows", "sum_columns"}},
    {"layernorm forward", {"layernorm_forward"}},
    {"layernorm backward", {"layernorm_backward"}},
    {"gelu", {"gelu_forward", "gelu_backward", "fp8_kernel<llmc::(anonymous namespace)::gelu"}},
    {"casts to FP8", {"fp8_kernel", "fp8_scales"}},
    {"encoder", {"encoder_", "radixsort", "count_kernel"}},
    {"adamw", {"adamw", kMarker}},
    {"muon's products"},
    {"muon, the rest", {"muon_"}},
    {"norm", {"sum_of_"}},
    {"copies"},
    {"fills"},
    {"other"},
};
constexpr const char* kProductWords[] = {"nvjet", "cutlass", "xmma", "gemm", "splitk", "cublas"};
// of a call that makes the host wait, or the GPU stop
constexpr const char* kWaitWords[] = {
    "Synchronize",   "cudaMalloc", "cudaFree",     "cudaHost",    "cuMemAlloc",    "cuMemFree",
    "cuMemHost",     "ModuleLoad", "ModuleUnload", "LibraryLoad", "LibraryUnload", "DeviceReset",
    "StreamDestroy", "cudaMemcpy", "cuMemcpy",     "cudaMemset",  "cuMemset"};

bool has(const std::string& text, const char* words) { return text.find(words) != std::string::npos; }
bool has_any(const std::string& text, std::span<const char* const> words) {
    return std::ranges::any_of(words, [&](const char* w) { return has(text, w); });
}

// Goes through a step's kernels in order. cuBLASLt's names do not say what a product is for: behind Muon's direction it
// is Muon's; before the classifier it is forward; behind it the gradient of a weight and that of the input take turns, but for
// the first linear layer of a block in FP8, where the gradient of the input comes first.
struct Sorter {
    bool backward = false, muon = false, fp8 = false;
    int products = 0;  // of backward
    Part last = Part::kOther;

    Part part_of(const Activity& a) {
        if (a.kind == Activity::kCopy) { return Part::kCopies; }
        if (a.kind == Activity::kFill) { return Part::kFills; }
        std::string name = a.name;
        for (char& c : name) { c = (char)std::tolower((unsigned char)c); }
        // the end of sums over columns that the kernel before began
        if (has(name, "finish_columns")) { return last; }
        if (!has_any(name, kProductWords)) {  // the name of a product may say "bias", too
            const auto* known =
                std::ranges::find_if(kPartTable, [&](const auto& part) { return has_any(name, part.words); });
            if (known == std::end(kPartTable)) { return last = Part::kOther; }
            last = (Part)(known - kPartTable);
            if (last == Part::kClassifier && !backward) { backward = true, products = 0; }
            if (has(name, "encoder_forward")) { backward = false; }
            fp8 |= has(name, "fp8_kernel");
            muon = has(name, "muon_direction");
            return last;
        }
        if (muon) { return last = Part::kMuonProducts; }
        if (!backward) { return last = Part::kProductForward; }
        bool adds_up_parts = has(name, "splitk") && has(name, "reduce");
        if (!adds_up_parts) { products++; }
        const bool first_of_block = fp8 && products > 2 && (products - 3) % 8 < 2;  // behind the head's two
        return last = (products % 2 != 0) != first_of_block ? Part::kProductWeight : Part::kProductInput;
    }
};

StepRecord sorted_out(const std::vector<Activity>& all, int64_t from, int64_t to) {
    StepRecord step;
    step.ms = (double)(to - from) * 1e-6;
    Sorter sorter;
    int64_t busy_until = from, busy = 0;
    int fills = 0;
    for (const Activity& a : all) {
        if (a.kind == Activity::kCall || a.start < from || a.start >= to) { continue; }
        Part part = sorter.part_of(a);
        const char* name = name_of(part);
        step.parts[(int)part].add(a);
        step.kernels[std::string(name) + " | " + a.name].add(a);
        if (part == Part::kFills) {
            fills++;
        } else if (a.kind == Activity::kKernel && fills > 0) {
            step.fills_before[name] += fills;
            fills = 0;
        }
        busy += ns_after(busy_until, a);
    }
    step.idle_ms = step.ms - (double)busy * 1e-6;
    return step;
}

// those between two times that are not made inside of another one on the same thread
std::vector<HostCall> calls_between(const std::vector<Activity>& all, int64_t from, int64_t to, int steps) {
    std::map<std::string, HostCall> by_name;
    std::map<uint32_t, int64_t> busy_until;
    for (const Activity& a : all) {
        if (a.kind != Activity::kCall || a.start < from || a.start >= to) { continue; }
        if (a.start < busy_until[a.lane]) { continue; }
        busy_until[a.lane] = a.end;
        HostCall& call = by_name[a.name];
        call.name = a.name;
        call.count += 1.0 / steps;
        call.ms += (double)(a.end - a.start) * 1e-6 / steps;
        call.waits = has_any(a.name, kWaitWords) && !has(a.name, "Async");
    }
    std::vector<HostCall> calls;
    for (auto& [name, call] : by_name) { calls.push_back(call); }
    std::ranges::sort(calls, std::greater(), &HostCall::ms);
    return calls;
}

double roof_of(const StepProfile& p, int reads, int writes) {
    for (const StreamRoof& roof : p.roofs) {
        if (roof.reads == reads && roof.writes == writes) { return roof.bytes_per_s; }
    }
    throw Error(kExitDevice, "--profile: no roof was measured for {} reads and {} writes", reads, writes);
}

// What writes FP8, each from one read in bf16; row: bytes of (N,C) in bf16, and of FP8 both ways. LayerNorm moves as much as
// without.
void add_fp8_streams(std::vector<StreamWork>* streams, const GPT2Config& c, double row) {
    const int L = c.num_layers;
    double weights = 0;  // of a layer
    for (int t = 0; t < kNumTensors; t++) {
        if (is_block_matrix(t)) { weights += 2.0 * (double)tensor_size(c, t); }
    }
    streams->insert(streams->end(),
                    {
                        {Part::kFp8, L, 1, 1, weights},
                        {Part::kFp8, 3 * L, 1, 1, row},          // atty, and dresidual twice
                        {Part::kFp8, L, 1, 1, 3 * row},          // of qkv
                        {Part::kGelu, L, 1, 1, 3 * row},         // reads 4, writes one way
                        {Part::kGelu, L, 2, 1, 14.0 / 3 * row},  // reads 4 twice, writes 3 ways
                    });
}

std::string tflop(double flop) { return fmt::format("{:.2f} TFLOP", flop * 1e-12); }
std::string tflop_per_s(double rate) { return fmt::format("{:.0f} TFLOP/s", rate * 1e-12); }

std::string row_text(const char* name, int calls, double ms, double step_ms, const Floor& floor) {
    auto number = [](double x) { return x > 0 ? fmt::format("{:.3f}", x) : std::string("-"); };
    auto percent = [](double part, double whole) {
        return part > 0 && whole > 0 ? fmt::format("{:.1f}", 100 * part / whole) : std::string("-");
    };
    return fmt::format("{:28} {:>6} {:9.3f} {:>6}  {:11} {:18} {:>9} {:>9}\n", name,
                       calls > 0 ? fmt::format("{}", calls) : "-", ms, percent(ms, step_ms),
                       floor.work.empty() ? "-" : floor.work, floor.roof.empty() ? "-" : floor.roof,
                       number(floor.ms), percent(floor.ms, ms));
}

}  // namespace

const char* name_of(Part part) { return kPartTable[(int)part].name; }

StepRecording analyse(const std::vector<Activity>& records) {
    std::vector<const Activity*> markers;
    for (const Activity& a : records) {
        if (a.kind == Activity::kKernel && has(a.name, kMarker)) { markers.push_back(&a); }
    }
    throw_if(markers.size() < 3, kExitDevice,
             "--profile: CUPTI recorded {} ends of steps; 3 at least are needed", markers.size());
    StepRecording r;
    std::vector<std::pair<double, size_t>> lengths;
    for (size_t k = 1; k < markers.size(); k++) {
        r.steps_ms.push_back((double)(markers[k]->start - markers[k - 1]->start) * 1e-6);
        lengths.push_back({r.steps_ms.back(), k});
    }
    std::ranges::sort(lengths);
    const size_t middle = lengths[(lengths.size() - 1) / 2].second;
    r.median = sorted_out(records, markers[middle - 1]->start, markers[middle]->start);
    auto asked_for = [&](const Activity* marker) {
        for (const Activity& a : records) {
            if (a.kind == Activity::kCall && a.correlation == marker->correlation) { return a.start; }
        }
        return marker->start;
    };
    r.calls = calls_between(records, asked_for(markers.front()), asked_for(markers.back()),
                            (int)markers.size() - 1);
    return r;
}

StepWork work_of_step(const GPT2Config& c, int B, int T, int value_bytes, int gradient_bytes, bool muon,
                      bool fp8) {
    const int C = c.channels, L = c.num_layers, Vp = c.padded_vocab_size;
    const int64_t N = (int64_t)B * T;
    const double row = (double)N * C * value_bytes, parameters = (double)num_parameters(c);
    StepWork work;
    for (auto [name, weight] : std::initializer_list<std::pair<const char*, Tensor>>{
             {"qkv", kQkvw}, {"attproj", kAttprojw}, {"fc", kFcw}, {"fcproj", kFcprojw}, {"head", kWte}}) {
        for (Part part : {Part::kProductForward, Part::kProductInput, Part::kProductWeight}) {
            work.products.push_back({part, name, weight, N, kTensors[weight].cols(c),
                                     kTensors[weight].rows(c), (int)tensor_copies(c, weight),
                                     fp8 && weight != kWte});
        }
    }
    work.streams = {
        {Part::kClassifier, 1, 1, 1, (double)N * Vp * value_bytes},
        {Part::kLayerNormForward, 2 * L, 2, 2, row},
        {Part::kLayerNormForward, 1, 1, 1, row},
        {Part::kLayerNormBackward, 2 * L, 3, 1, row},
        {Part::kLayerNormBackward, 1, 2, 1, row},
        {Part::kEncoder, 1, 1, 1, row},
        {Part::kEncoder, 1, 1, 0, 2 * row},  // backward: for the tokens, for the positions
        {Part::kNorm, 1, 1, 0, parameters * gradient_bytes},
    };
    if (fp8) {
        add_fp8_streams(&work.streams, c, row);
    } else {  // of fc; qkv's comes out of attention, two out of layernorm backward
        work.streams.push_back({Part::kBias, L, 1, 0, 4 * row});
    }
    double by_muon = 0;
    for (int t = 0; t < kNumTensors && muon; t++) {
        if (!is_block_matrix(t)) { continue; }
        by_muon += (double)tensor_total(c, t);
        work.muon_flop += kNewtonSchulzSteps * L * 2 * block_matrices(c, t).work();
    }
    // gradient, two moments, weight: bf16 has its lower half beside it
    const double read = gradient_bytes + 12, written = 12;
    work.streams.push_back({Part::kAdamW, 1, 4, 3, (parameters - by_muon) * (read + written) / 7});
    if (muon) {  // from gradient and mean to mean and direction, and from direction and weight to weight
        work.streams.push_back({Part::kMuon, 1, 2, 2, by_muon * (gradient_bytes + 8 + value_bytes) / 4});
        work.streams.push_back({Part::kMuon, 1, 2, 1, by_muon * (value_bytes + 8) / 3});
    }
    const int64_t blocks = (T + 63) / 64, HS = C / c.num_heads;
    AttentionWork& a = work.attention;
    const int64_t triangle = blocks * (blocks + 1) / 2;
    a.blocks = (double)(triangle * B * c.num_heads * L);
    const double flop = a.blocks * 2 * 64 * 64 * (double)HS;  // of one product
    a.forward_flop = 2 * flop;
    a.backward_flop = 5 * flop;
    a.forward_bytes = 4 * row * L;
    a.backward_bytes = 8 * row * L;
    return work;
}

std::array<Floor, kParts> floors_of(const StepProfile& p) {
    std::array<Floor, kParts> floors;
    std::array<double, kParts> flop{}, bytes{};
    double all_flop = 0, all_ms = 0;
    for (const ProductTime& product : p.products) {
        int part = (int)product.work.part;
        double ms = product.fastest_ms * product.work.calls;
        floors[part].ms += ms;
        flop[part] += product.work.flop() * product.work.calls;
        if (product.work.fp8) { continue; }
        all_ms += ms;
        all_flop += product.work.flop() * product.work.calls;
    }
    for (const StreamWork& s : p.work.streams) {
        double moved = s.calls * (s.reads + s.writes) * s.bytes, roof = roof_of(p, s.reads, s.writes);
        floors[(int)s.part].ms += moved / roof * 1e3;
        bytes[(int)s.part] += moved;
        std::string& text = floors[(int)s.part].roof;
        if (text.empty()) {
            const std::string written = s.writes > 0 ? fmt::format("{}W", s.writes) : "";
            text = fmt::format("{}R{} {:.0f} GB/s", s.reads, written, roof * 1e-9);
        }
    }
    for (int i = 0; i < kParts; i++) {
        if (flop[i] > 0) {
            floors[i].work = tflop(flop[i]);
            floors[i].roof = fmt::format("{:.0f} TFLOP/s", flop[i] / floors[i].ms * 1e-9);
        }
        if (bytes[i] > 0) { floors[i].work = fmt::format("{:.2f} GB", bytes[i] * 1e-9); }
    }
    const double flop_per_s = all_flop / all_ms * 1e3;
    const AttentionWork& a = p.work.attention;
    for (auto [part, work, moved] :
         {std::tuple(Part::kAttentionForward, a.forward_flop, a.forward_bytes),
          std::tuple(Part::kAttentionBackward, a.backward_flop, a.backward_bytes)}) {
        const double products = work / flop_per_s * 1e3, moves = moved / roof_of(p, 2, 1) * 1e3,
                     powers = a.blocks * 64 * 64 / p.exponentials_per_s * 1e3,
                     ms = std::max({products, moves, powers});
        const std::string roof = ms == products ? tflop_per_s(flop_per_s)
                                 : ms == moves  ? "2R1W"
                                                : "exponentials";
        floors[(int)part] = {tflop(work), roof, ms};
    }
    if (const double muon = p.work.muon_flop; muon > 0) {
        floors[(int)Part::kMuonProducts] = {tflop(muon), tflop_per_s(flop_per_s), muon / flop_per_s * 1e3};
    }
    return floors;
}

double sum_of_floors(const std::array<Floor, kParts>& floors) {
    return std::accumulate(floors.begin(), floors.end(), 0.0,
                           [](double sum, const Floor& f) { return sum + f.ms; });
}

std::string profile_table(const StepProfile& p) {
    auto floors = floors_of(p);
    const StepRecord& step = p.recording.median;
    std::string text = fmt::format(
        "{}, {}, B={}, T={}: step {:.3f} ms (median of {}; p20 {:.3f}, p80 {:.3f}), {:.0f} tokens/s\n", p.gpu,
        p.model, p.B, p.T, p.step_ms, p.steps, p.step_p20_ms, p.step_p80_ms, 1e3 * p.B * p.T / p.step_ms);
    text += fmt::format("recorded: the step of median length of {}, {:.3f} ms\n\n",
                        p.recording.steps_ms.size(), step.ms);
    text += fmt::format("{:28} {:>6} {:>9} {:>6}  {:11} {:18} {:>9} {:>9}\n", "part", "calls", "ms", "%",
                        "work", "roof", "floor ms", "% of it");
    double sum_ms = 0;
    int calls = 0;
    for (int i = 0; i < kParts; i++) {
        const Launches& l = step.parts[i];
        sum_ms += l.ms;
        calls += l.count;
        if (l.count > 0) { text += row_text(name_of((Part)i), l.count, l.ms, step.ms, floors[i]); }
    }
    text += row_text("idle", 0, step.idle_ms, step.ms, {});
    double overlap = sum_ms + step.idle_ms - step.ms;
    if (overlap > 1e-3) { text += row_text("at the same time as another", 0, -overlap, step.ms, {}); }
    text += row_text("step", calls, step.ms, step.ms, {"", "", sum_of_floors(floors)});
    for (const auto& [before, count] : step.fills_before) {
        text += fmt::format("fills just before {}: {}\n", before, count);
    }
    text += "\n" + fmt::format("{:28} {:8} {:>7} {:>6} {:>6} {:>10} {:>10} {:>8}\n", "product", "", "N", "C",
                               "OC", "first us", "best us", "TFLOP/s");
    for (const ProductTime& t : p.products) {
        text += fmt::format("{:28} {:8} {:7} {:6} {:6} {:10.1f} {:10.1f} {:8.0f}\n", name_of(t.work.part),
                            t.work.name, t.work.N, t.work.C, t.work.OC, 1e3 * t.first_ms, 1e3 * t.fastest_ms,
                            t.work.flop() / t.fastest_ms * 1e-9);
    }
    text += "\ncalls of CUDA a step, by the host's time in them:";
    double waits = 0;
    for (size_t i = 0; i < p.recording.calls.size(); i++) {
        const HostCall& call = p.recording.calls[i];
        waits += call.waits ? call.count : 0;
        if (i < 8 || call.waits) {
            text += fmt::format("\n  {:36} {:8.1f} {:9.3f} ms{}", call.name, call.count, call.ms,
                                call.waits ? "  WAITS" : "");
        }
    }
    return text + fmt::format(
                      "\nwaiting calls: {:.1f} a step\n"
                      "\nS = sum of floors / median step = {:.3f} / {:.3f} = {:.3f}\n",
                      waits, sum_of_floors(floors), p.step_ms, sum_of_floors(floors) / p.step_ms);
}

std::string profile_json(const StepProfile& p) {
    auto floors = floors_of(p);
    const StepRecord& step = p.recording.median;
    std::string fills, parts, products, calls, kernels;
    auto add = [](std::string& list, const std::string& row) {
        list += (list.empty() ? "\n    " : ",\n    ") + row;
    };
    for (const auto& [before, count] : step.fills_before) {
        fills += fmt::format(R"({}"{}": {})", fills.empty() ? "" : ", ", before, count);
    }
    for (int i = 0; i < kParts; i++) {
        add(parts, fmt::format(R"({{"part": "{}", "calls": {}, "ms": {:.4f}, "work": "{}", "roof": "{}", )"
                               R"("floor_ms": {:.4f}}})",
                               name_of((Part)i), step.parts[i].count, step.parts[i].ms, floors[i].work,
                               floors[i].roof, floors[i].ms));
    }
    for (const ProductTime& t : p.products) {
        add(products,
            fmt::format(R"({{"part": "{}", "name": "{}", "N": {}, "C": {}, "OC": {}, "calls": {}, )"
                        R"("first_us": {:.2f}, "best_us": {:.2f}, "candidates": {}, "same_bits_us": {:.2f}, )"
                        R"("same_bits": {}}})",
                        name_of(t.work.part), t.work.name, t.work.N, t.work.C, t.work.OC, t.work.calls,
                        1e3 * t.first_ms, 1e3 * t.fastest_ms, t.candidates, 1e3 * t.same_bits_ms,
                        t.same_bits));
    }
    for (const HostCall& c : p.recording.calls) {
        add(calls, fmt::format(R"({{"call": "{}", "a_step": {:.2f}, "ms": {:.4f}, "waits": {}}})", c.name,
                               c.count, c.ms, c.waits));
    }
    for (const auto& [name, l] : step.kernels) {
        add(kernels,
            fmt::format(R"({{"kernel": {}, "calls": {}, "ms": {:.4f}}})", json_text(name), l.count, l.ms));
    }
    const double sum = sum_of_floors(floors);
    return fmt::format(R"({{
  "gpu": {}, "model": {}, "date": "{}", "B": {}, "T": {},
  "step_ms": {:.4f}, "p20_ms": {:.4f}, "p80_ms": {:.4f}, "steps": {}, )"
                       R"("recorded_ms": {:.4f}, "idle_ms": {:.4f},
  "floors_ms": {:.4f}, "S": {:.4f},
  "fills_before": {{{}}},
  "parts": [{}],
  "products": [{}],
  "calls": [{}],
  "kernels": [{}]
}}
)",
                       json_text(p.gpu), json_text(p.model), p.date, p.B, p.T, p.step_ms, p.step_p20_ms,
                       p.step_p80_ms, p.steps, step.ms, step.idle_ms, sum, sum / p.step_ms, fills, parts,
                       products, calls, kernels);
}

}  // namespace llmc

// Tests of the small pieces: schedules, sampling, random numbers, the table of parameters.
#include <array>
#include <utility>

#include "dev/test/support/compare.h"
#include "dev/test/support/test_options.h"
#include "llmc/host/base/resources.h"
#include "llmc/host/base/text.h"
#include "llmc/host/options/choices.h"
#include "llmc/model/eval/generate.h"
#include "llmc/model/gpt2_config.h"
#include "llmc/model/run/plan.h"

using namespace llmc;

namespace {

constexpr Decay kDecays[] = {Decay::kConstant, Decay::kCosine, Decay::kLinear, Decay::kWsd};

// the root of a machine's files
struct Root : TempFolder {
    void file(const std::string& name, const std::string& text) const {
        fs::create_directories(fs::path(*this / name).parent_path());
        write_bytes(*this / name, text);
    }
    void group(const std::string& name, const std::string& text) const {
        file("sys/fs/cgroup/" + name, text);
    }
};

}  // namespace

TEST_CASE("shell words: what a shell reads is the text") {
    for (const char* plain : {"runs/a_b-1.x/config.toml", "-"}) { CHECK(shell_word(plain) == plain); }
    for (const char* text : {"my runs", "data/*.bin", ""}) {
        CHECK(shell_word(text) == fmt::format("'{}'", text));
    }
    CHECK(shell_word("it's") == "'it'\\''s'");
}

// ---- schedule ----------------------------------------------------------------------------------

TEST_CASE("schedule: warm-up, middle and end of the four kinds") {
    Schedule s{.kind = Decay::kConstant, .peak = 2.0, .final_fraction = 0.1, .warmup = 10, .steps = 110};
    for (Decay kind : kDecays) {
        CAPTURE(text_of(kind));
        s.kind = kind;
        CHECK(s(0) == doctest::Approx(0.2));   // one tenth of the way up, never 0
        CHECK(s(9) == doctest::Approx(2.0));   // the last step of the warm-up
        CHECK(s(10) == doctest::Approx(2.0));  // and the first after it
        if (kind == Decay::kConstant) { continue; }
        CHECK(s(109) >= 0.2);  // the end: at most one step's share above the lowest
        CHECK(s(109) <= 0.2 + 1.8 / 20);
        CHECK(s(110) == doctest::Approx(0.2));
        CHECK(s(100000) == doctest::Approx(0.2));  // a run that goes on stays there
    }
    const auto at = [&](Decay kind, int64_t step) {
        s.kind = kind;
        return s(step);
    };
    for (int64_t step : {60, 109}) { CHECK(at(Decay::kConstant, step) == 2.0); }
    for (Decay kind : {Decay::kCosine, Decay::kLinear}) {
        CHECK(at(kind, 60) == doctest::Approx(1.1));  // halfway between 2 and 0.2
    }
    CHECK(at(Decay::kLinear, 35) == doctest::Approx(2.0 - 1.8 / 4));
    CHECK(at(Decay::kCosine, 35) == doctest::Approx(0.2 + 1.8 * (1 + std::sqrt(0.5)) / 2));
    CHECK(at(Decay::kWsd, 60) == 2.0);  // stable up to 80 % of 110 = 88
    CHECK(at(Decay::kWsd, 88) == doctest::Approx(2.0));
    CHECK(at(Decay::kWsd, 99) == doctest::Approx(0.2 + 1.8 * (1 - std::sqrt(0.5))));
}

TEST_CASE("schedule: wsd falls before the end, in few steps too") {
    for (int64_t steps = 2; steps <= 20; steps++) {
        const Schedule s{Decay::kWsd, 1.0, 0, 0, steps};
        int64_t falls = 0;
        for (int64_t step = 0; step < steps; step++) { falls += s(step) < 1; }
        CAPTURE(steps);
        CHECK(falls >= 1);
        CHECK(falls <= std::max<int64_t>(1, steps / 5));
        CHECK(s(steps) == 0);
    }
}

TEST_CASE("schedule: never negative, never above the peak, never up again after the warm-up") {
    for (Decay kind : kDecays) {
        for (double final_fraction : {0.0, 0.1, 1.0}) {
            for (auto [warmup, steps] : {std::pair{0, 1}, {0, 50}, {7, 50}, {50, 50}, {80, 50}, {1, 2}}) {
                Schedule s{kind, 3e-4, final_fraction, warmup, steps};
                for (int step = 0; step < 100; step++) {
                    double lr = s(step);
                    bool ok = lr >= 0 && lr <= 3e-4 * (1 + 1e-15) &&
                              (step <= warmup || lr <= s(step - 1) * (1 + 1e-15));
                    CHECK_MESSAGE(ok,
                                  fmt::format("{} final {:g} warmup {} steps {}: lr of step {} is {:.17g}",
                                              text_of(kind), final_fraction, warmup, steps, step, lr));
                }
            }
        }
    }
}

// ---- sampler -----------------------------------------------------------------------------------

TEST_CASE("sampler: temperature 0 and top-k 1 take the most probable") {
    std::vector<float> logits = {1, 5, 3, 5, -2};
    for (double coin : {0.0, 0.4999, 0.5, 0.999999}) {
        CHECK(sample_token(logits, 0.0, 0, coin) == 1);
        std::vector<float> single = {1, 2, 5, 3};
        CHECK(sample_token(single, 1.0, 1, coin) == 2);
        CHECK(sample_token(std::vector<float>{7}, 1.0, 0, coin) == 0);
    }
    CHECK(sample_token(logits, 1.0, 1, 0.4999) == 1);  // ties of the k-th stay in
    CHECK(sample_token(logits, 1.0, 1, 0.5001) == 3);
}

TEST_CASE("sampler: 100,000 draws are distributed as the softmax says") {
    constexpr int kDraws = 100000;
    std::vector<float> logits = {0.5f, -1, 2, 0, 1.5f, 2, -3, 0.25f};
    for (auto [temperature, top_k] : {std::pair{1.0, 0}, {0.7, 0}, {2, 0}, {1, 3}, {1, 8}, {1, 100}}) {
        std::vector<double> p, sorted = convert<double>(logits);
        std::sort(sorted.rbegin(), sorted.rend());
        double threshold = top_k > 0 && top_k < 8 ? sorted[top_k - 1] : -1e9, total = 0;
        for (double x : logits) { total += p.emplace_back(x >= threshold ? std::exp(x / temperature) : 0.0); }
        std::vector<int> count(8);
        for (int i = 0; i < kDraws; i++) {
            count[sample_token(logits, temperature, top_k,
                               to_uniform(random_bits(1, RandomUse::kFixture, 0, 0, i)[0]))]++;
        }
        for (int v = 0; v < 8; v++) {
            double expected = kDraws * p[v] / total, sigma = std::sqrt(expected * (1 - p[v] / total));
            CHECK_MESSAGE(
                std::fabs(count[v] - expected) <= 5 * sigma,
                fmt::format("temperature {:g} top_k {}: token {} drawn {} times, expected {:.0f} +- {:.0f}",
                            temperature, top_k, v, count[v], expected, sigma));
        }
    }
}

TEST_CASE("sampler: large logits, coins next to 1, and what has no probability") {
    const double coins[] = {0.0, 0.25, 0.5, 0.75, 1 - 0x1p-24, std::nextafter(1.0, 0.0)};
    std::vector<float> large = {1e4f, -1e4f, 1e4f},
                       gaps = {-INFINITY, 1, -INFINITY, 1.1f, -INFINITY, 0.3f, -INFINITY};
    for (double coin : coins) {
        CAPTURE(coin);
        CHECK(sample_token(large, 1.0, 0, coin) == (coin < 0.5 ? 0 : 2));
        for (int top_k : {0, 1, 2, 3, 6}) {
            for (double temperature : {0.01, 1.0, 100.0}) {
                int token = sample_token(gaps, temperature, top_k, coin);
                CHECK(token % 2 == 1);  // the others have no probability
            }
        }
    }
}

// sums of blocks first, then inside one of them: the token is that of the plain sum, unless the coin falls within
// roundings of a border
TEST_CASE("sampler: of many tokens the one that the sum of all before it names") {
    const std::vector<float> logits = random_vector<float>(1801, 4, 3);
    const double most = *std::max_element(logits.begin(), logits.end());
    std::vector<double> before = {0};
    for (float x : logits) { before.push_back(before.back() + std::exp((x - most) / 0.8)); }
    int64_t wrong = 0;
    for (int i = 0; i < 20000; i++) {
        const double coin = (i + 0.5) / 20000, at = coin * before.back(), slack = 1e-5 * before.back();
        const size_t token = (size_t)sample_token(logits, 0.8, 0, coin);
        wrong += !(before[token] - slack <= at && at <= before[token + 1] + slack);
    }
    CHECK(wrong == 0);
    CHECK(sample_token(std::vector<float>(5000, NAN), 0, 0, 0.5) < 5000);  // whatever it is, it is a token
}

// ---- philox ------------------------------------------------------------------------------------

TEST_CASE("philox: the known answers of its authors") {  // Random123's kat_vectors, philox4x32 10
    using Counter = std::array<uint32_t, 4>;
    const uint32_t ones = 0xffffffff;
    CHECK(philox4x32({0, 0, 0, 0}, {0, 0}) == Counter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
    CHECK(philox4x32({ones, ones, ones, ones}, {ones, ones}) ==
          Counter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
    CHECK(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
          Counter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("philox: moments of normal and uniform numbers, and no two streams alike") {
    constexpr int n = 100000;
    double moments[4] = {}, uniform = 0, least = 1, most = 0;
    for (int i = 0; i < n; i++) {
        double x = random_normal(42, RandomUse::kInit, 3, 0, i),
               u = to_uniform(random_bits(42, RandomUse::kInit, 3, 0, i)[2]);
        for (int k = 0; k < 4; k++) { moments[k] += std::pow(x, k + 1) / n; }
        uniform += u / n;
        least = std::min(least, u);
        most = std::max(most, u);
    }
    CHECK(least >= 0);
    CHECK(most < 1);
    // standard errors: mean 1, variance sqrt(2), third sqrt(15), fourth moment sqrt(96), uniform sqrt(1/12),
    // over sqrt(n)
    const double sigma = 1 / std::sqrt(n);
    const double expected[4] = {0, 1, 0, 3}, variance[4] = {1, 2, 15, 96};
    for (int k = 0; k < 4; k++) {
        CHECK(std::fabs(moments[k] - expected[k]) < 5 * std::sqrt(variance[k]) * sigma);
    }
    CHECK(std::fabs(uniform - 0.5) < 5 * std::sqrt(1.0 / 12) * sigma);
    CHECK(to_uniform(0xffffffff) == 1 - 0x1p-24);

    const auto base = random_bits(1, RandomUse::kInit, 0, 0, 0);
    CHECK(base == random_bits(1, RandomUse::kInit, 0, 0, 0));
    for (uint64_t seed : {uint64_t{2}, 1 + (uint64_t{1} << 32)}) {
        CHECK(base != random_bits(seed, RandomUse::kInit, 0, 0, 0));
    }
    CHECK(base != random_bits(1, RandomUse::kSampling, 0, 0, 0));
    CHECK(base != random_bits(1, RandomUse::kInit, 1, 0, 0));
    CHECK(base != random_bits(1, RandomUse::kInit, 0, 1, 0));
    for (int64_t i : {int64_t{1}, int64_t{1} << 32}) {
        CHECK(base != random_bits(1, RandomUse::kInit, 0, 0, i));
    }
}

// ---- the table of parameters -------------------------------------------------------------------

TEST_CASE("parameters: GPT-2's published sizes") {
    GPT2Config d12;
    CHECK(padded_vocab(50257) == 50304);
    CHECK(padded_vocab(64) == 64);
    CHECK(padded_vocab(1) == 64);
    CHECK(file_elements(d12) == 124475904);
    CHECK(num_parameters(d12) == 124439808);
    CHECK(num_parameters({.num_layers = 24, .num_heads = 16, .channels = 1024}) == 354823168);
    CHECK(num_parameters({.num_layers = 48, .num_heads = 25, .channels = 1600}) == 1557611200);
}

TEST_CASE("parameters: in memory no two tensors overlap, each is aligned, a block is one range") {
    GPT2Config odd;
    odd.max_seq_len = 7, odd.vocab_size = 5, odd.padded_vocab_size = 64;
    odd.num_layers = 3, odd.num_heads = 1, odd.channels = 3;
    for (const GPT2Config& c : {GPT2Config{}, odd}) {
        CAPTURE(c.channels);
        ParameterLayout layout(c);
        std::vector<std::pair<int64_t, int64_t>> ranges;  // [begin, end)
        for (int t = 0; t < kNumTensors; t++) {
            for (int l = 0; l < tensor_copies(c, t); l++) {
                int64_t begin = layout.offset(t, l), block = layout.offset(kLn1w, l);
                ranges.emplace_back(begin, begin + tensor_size(c, t));
                CHECK_MESSAGE(begin % 64 == 0,
                              fmt::format("{} of layer {} begins at {}", kTensors[t].name, l, begin));
                bool inside = begin >= block && ranges.back().second <= block + layout.block_size();
                const bool apart = l == 0 || begin - layout.offset(t, l - 1) == layout.block_size();
                CHECK_MESSAGE((!kTensors[t].per_layer || (inside && apart)),
                              fmt::format("{} of layer {}", kTensors[t].name, l));
            }
        }
        // in the order of their offsets: wte first, lnfb last, gaps only for alignment
        std::sort(ranges.begin(), ranges.end());
        CHECK(ranges.front().first == 0);
        for (size_t i = 1; i < ranges.size(); i++) {
            int64_t gap = ranges[i].first - ranges[i - 1].second;
            CHECK_MESSAGE((gap >= 0 && gap < 64), fmt::format("gap of {} before {}", gap, ranges[i].first));
        }
        CHECK(layout.size() >= ranges.back().second);
        CHECK(layout.size() < ranges.back().second + 64);
        CHECK(layout.offset(kWte) < layout.offset(kWpe));
        CHECK(layout.offset(kWpe) < layout.offset(kLn1w, 0));
        CHECK(layout.offset(kLnfw) == layout.offset(kLn1w, 0) + c.num_layers * layout.block_size());
    }
}

TEST_CASE("programs: want of memory, and what nobody expects, ends them with a word") {
    const auto said = [](int (*fails)()) {
        return printed_by([&] { CHECK(run_program("p", "Use less.", fails) == kExitDevice); }, STDERR_FILENO);
    };
    CHECK(said([]() -> int { throw std::bad_alloc(); }) == "p: out of memory. Use less.\n");
    CHECK(said([]() -> int { throw std::out_of_range("far"); }) == "p: unexpected: far\n");
}

TEST_CASE("cores: a container's quota of time, rounded up") {
    Root root;
    const int all = usable_cores();
    root.file("proc/self/cgroup", "0::/job/step\n");
    root.group("job/step/cpu.max", "max 100000\n");
    CHECK(usable_cores(root.path()) == all);
    root.group("job/cpu.max", "150000 100000\n");
    CHECK(usable_cores(root.path()) == std::min(all, 2));
    root.group("cpu.max", "20000 50000\n");
    CHECK(usable_cores(root.path()) == 1);
    root.file("proc/self/cgroup", "3:cpuset:/x\n4:cpu,cpuacct:/docker/abc\n0::/\n");
    root.group("cpu.max", "max 100000\n");
    root.group("cpu/docker/cpu.cfs_quota_us", "-1\n");
    root.group("cpu/docker/cpu.cfs_period_us", "100000\n");
    CHECK(usable_cores(root.path()) == all);
    root.group("cpu/cpu.cfs_quota_us", "100000\n");
    root.group("cpu/cpu.cfs_period_us", "100000\n");
    CHECK(usable_cores(root.path()) == 1);
}

TEST_CASE("host memory: what the machine has free, or less, as a container's limit says") {
    Root root;
    CHECK(available_memory() > 0);
    CHECK(available_memory(root.path()) == -1);
    root.file("proc/meminfo", "MemTotal:   90 kB\nHugePages_Total: 0\nMemAvailable:   50 kB\n");
    CHECK(available_memory(root.path()) == 50 * 1024);

    root.file("proc/self/cgroup", "0::/job/step\n");
    root.group("job/step/memory.max", "max\n");
    root.group("job/step/memory.current", "7000\n");
    CHECK(available_memory(root.path()) == 50 * 1024);
    root.group("job/memory.max", "20000\n");
    root.group("job/memory.current", "9000\n");
    CHECK(available_memory(root.path()) == 11000);
    root.group("job/memory.stat", "anon 500\ninactive_file 3000\nactive_file 50\n");
    CHECK(available_memory(root.path()) == 14050);  // what was read can go
    root.group("memory.max", "9000\n");             // a container's own is the topmost that it sees
    root.group("memory.current", "9500\n");
    CHECK(available_memory(root.path()) == 0);

    root.file("proc/self/cgroup", "3:cpuset:/\n4:memory:/docker/abc\n0::/\n");
    fs::remove(root / "sys/fs/cgroup/memory.max");
    root.group("memory/memory.limit_in_bytes", "30000\n");
    root.group("memory/memory.usage_in_bytes", "20000\n");
    root.group("memory/memory.stat", "inactive_file 1\ntotal_inactive_file 500\n");
    CHECK(available_memory(root.path()) == 10500);
}

// --dropout on the CPU: which elements are dropped, the gradients of the masked loss, and that batches, groups, ranks, resumes
// and evaluations leave the masks as they are. On a GPU: dev/test/gpu/test_layernorm.cpp, test_model.cpp.
#include <cmath>
#include <set>

#include "dev/test/support/model_tests.h"
#include "dev/test/support/reference_model.h"
#include "dev/test/support/train_program.h"
#include "llmc/host/base/dropout.h"
#include "llmc/model/cpu/gpt2.h"

using namespace llmc;

namespace {

constexpr double kP = 0.3;
constexpr uint64_t kMaskSeed = 77;
const ModelSettings kDropping = {.dropout = kP, .seed = kMaskSeed};
constexpr int kRows = 1000;

Dropout dropout_at(uint64_t seed, uint32_t place, const DropoutRows& rows) {
    Dropout dropout(kP, seed);
    dropout.rows = &rows;
    dropout.place = place;
    return dropout;
}
// of all elements, 0 or the scale
std::vector<float> factors_of(uint64_t seed, uint32_t place, const DropoutRows& rows, int C = 768) {
    std::vector<float> x((size_t)kRows * C, 1.0f);
    dropout_cpu(x.data(), x.data(), dropout_at(seed, place, rows), kRows, C);
    return x;
}

ReferenceModel<double> lively_reference(int B) {
    ReferenceModel<double> reference(tiny_config(), B, 9);
    fill_lively(&reference, 31);
    reference.set_dropout({kP, kMaskSeed});
    return reference;
}

}  // namespace

TEST_CASE("dropout: an element is dropped by its own 16 bits of Philox") {
    const DropoutRows rows{5, 3};
    for (int C : {1, 13, 768}) {
        const std::vector<float> found = factors_of(kMaskSeed, 4, rows, C);
        const Dropout dropout = dropout_at(kMaskSeed, 4, rows);
        int64_t wrong = 0;
        for (int64_t row = 0; row < kRows; row++) {
            const DropoutRow mask(dropout, row, C);
            for (int c = 0; c < C; c++) {
                const uint64_t index = (uint64_t)((5 + row) * ((C + 7) / 8) + c / 8);
                const auto bits = philox4x32({(uint32_t)index, (uint32_t)(index >> 32), 128 + 4, 3},
                                             {(uint32_t)kMaskSeed, (uint32_t)(kMaskSeed >> 32)});
                const float here = found[row * C + c];
                wrong += ((bits[c % 8 / 2] >> c % 2 * 16 & 0xffff) < std::lround(kP * 65536)) != (here == 0);
                wrong += mask.factors<1>(c)[0] != here || mask.factors<2>(c / 2 * 2)[c % 2] != here ||
                         mask.factors<4>(c / 4 * 4)[c % 4] != here;
            }
        }
        CHECK(wrong == 0);
    }
}

// n independent draws: the share of zeros is P within 5 sqrt(P (1 - P) / n), and that of two masks P^2 likewise
TEST_CASE("dropout: as many are dropped as P says, the mean stays, no two masks are alike") {
    const DropoutRows start{}, next_step{0, 1}, next_batch{kRows, 0};
    const std::vector<float> one = factors_of(1, 0, start);
    const double n = (double)one.size(), spread = 5 * std::sqrt(kP * (1 - kP) / n);
    CHECK(std::fabs((double)std::ranges::count(one, 0.0f) / n - kP) < spread);
    double sum = 0;
    for (float factor : one) { sum += factor; }
    CHECK(std::fabs(sum / n - 1) < spread / (1 - kP));
    const std::set<float> values(one.begin(), one.end());
    CHECK(values.size() == 2);
    CHECK(std::fabs(*values.rbegin() * (1 - kP) - 1) < 1e-5);  // P is a multiple of 2^-16
    for (const auto& other :
         {factors_of(2, 0, start), factors_of(1ull << 32 | 1, 0, start), factors_of(1, 1, start),
          factors_of(1, 0, next_step), factors_of(1, 0, next_batch)}) {
        int64_t both = 0;
        for (size_t i = 0; i < one.size(); i++) { both += one[i] == 0 && other[i] == 0; }
        CHECK(std::fabs((double)both / n - kP * kP) < 5 * std::sqrt(kP * kP * (1 - kP * kP) / n));
    }
}

TEST_CASE("dropout: places are as many as layernorms, and so are micro-batches and their numbers") {
    const GPT2Config c = tiny_config();
    std::set<uint32_t> places = {dropout_place(c, kLnfw, 0)};
    for (int l = 0; l < c.num_layers; l++) {
        places.insert({dropout_place(c, kLn1w, l), dropout_place(c, kLn2w, l)});
    }
    CHECK(places.size() == 2 * (size_t)c.num_layers + 1);
    for (int64_t ranks : {1, 2, 4}) {  // 4 groups of 3
        std::set<int64_t> numbers;
        for (int64_t k = 0; k < 12; k++) {
            numbers.insert(micro_batch_number(k / ranks, 3, k % ranks, ranks));
        }
        CHECK(numbers.size() == 12);
    }
    CHECK(micro_batch_number(4, 3, 1, 2) == 10);  // the second of rank 1's second group, the fourth of all
}

// In double, along a random direction for each layer's tensor: central differences leave e^2 / 6 of the third derivative, about 1
// beside a gradient of 1, and 2^-24 of the loss over e.
TEST_CASE("dropout: gradients are those of the masked loss") {
    ReferenceModel<double> reference = lively_reference(4);
    const GPT2Config c = tiny_config();
    const std::vector<Batch> batches = batches_of_step(0);
    reference.forward_backward(batches);
    const auto loss = [&](int t, const std::vector<float>& values) {
        ReferenceModel<double> moved = reference;
        moved.load(State::kParameter, t, 0, values);
        return moved.forward_backward(batches);
    };
    for (int t = 0; t < kNumTensors; t++) {
        for (int l = 0; l < tensor_copies(c, t); l++) {
            const std::vector<float> at = whole_tensor(reference, State::kParameter, t),
                                     gradient = layer_gradient(reference, t, l);
            const auto direction = random_vector<float>((int64_t)gradient.size(), 900 + t, 1);
            std::vector<float> up = at, down = at;
            double expected = 0;
            const double e = 0x1p-8 / norm_of(direction);
            for (size_t i = 0; i < gradient.size(); i++) {
                const size_t k = i + (size_t)l * gradient.size();
                up[k] += (float)(e * direction[i]);
                down[k] -= (float)(e * direction[i]);
                expected += gradient[i] * ((double)up[k] - down[k]);
            }
            const double found = loss(t, up) - loss(t, down);
            // a random direction has 1 / sqrt(n) of the gradient
            const double part = norm_of(gradient) / std::sqrt((double)gradient.size()) * 0x1p-7;
            CHECK_MESSAGE(std::fabs(found - expected) < 0.02 * part + 1e-6,
                          fmt::format("d{}[{}]: found {:.6g}, expected {:.6g}, of {:.3g}", kTensors[t].name,
                                      l, found, expected, part));
        }
    }
}

TEST_CASE("dropout: the CPU's model drops what the reference drops, for any batches") {
    const GPT2Config c = tiny_config();
    ReferenceModel<double> reference = lively_reference(4);
    const Batch batch = random_batch(c, 4, 9, 7);
    const double expected = reference.forward_backward({&batch, 1});
    for (int rows : {1, 2, 4}) {
        GPT2Cpu model(c, rows, 9, kDropping);
        copy_states(&model, reference);
        std::vector<Batch> parts;
        for (int first = 0; first < 4; first += rows) { parts.push_back(rows_of(batch, first, rows)); }
        CHECK(std::fabs(model.forward_backward(parts) - expected) < 1e-5);
        check_close_gradients(fmt::format("{} rows at a time", rows), model, reference,
                              fp32_tolerance(c, 36));
    }
}

TEST_CASE("dropout: an evaluation has none, each step has its own") {
    const GPT2Config c = tiny_config();
    GPT2Cpu dropping(c, 4, 9, kDropping), plain(c, 4, 9);
    for (GPT2Cpu* model : {&dropping, &plain}) { fill_lively(model, 31); }
    const Batch batch = random_batch(c, 4, 9, 7);
    std::set<float> losses;
    for (int64_t k : {0, 1, 2}) {
        losses.insert(step(&dropping, {&batch, 1}, {.step = k}).loss);
        const Evaluation found = dropping.evaluate(batch), expected = plain.evaluate(batch);
        CHECK(std::ranges::equal(found.losses, expected.losses));
    }
    losses.insert(step(&plain, {&batch, 1}, {}).loss);
    CHECK(losses.size() == 4);
    check_same_run<GPT2Cpu>(c, 4, 9, kDropping);
}

TEST_CASE("dropout: runs of any ranks, and those that go on, have the same bits; another P is told") {
    Runs runs(
        "--channels 32 --layers 2 --heads 2 --seq-len 12 --batch 2 --sample-every 0 --val-every 2 --quiet "
        "--dropout 0.3 --total-batch 96 --reduce-groups 4 --steps 4");
    check_holds(runs.train("one", "--save-every 2").out, {", clip 1, dropout 0.3\n"});
    for (const std::string ranks : {"2", "4"}) {
        runs.train("ranks" + ranks, "--ranks " + ranks);
        runs.check_same("ranks" + ranks, "one");
    }
    const std::string from = "--resume " + runs.step("one", 2);
    runs.train("resumed", from);
    CHECK(same_files(runs / "resumed/model.bin", runs / "one/model.bin"));
    check_holds(runs.train("other", from + " --dropout 0.1").err, {"dropout was 0.3, is 0.1 from here on\n"});
    CHECK_FALSE(same_files(runs / "other/model.bin", runs / "one/model.bin"));
    // micro-batches of another size: the same masks, and sums in another order
    runs.train("whole", "--batch 8 --reduce-groups 1");
    runs.train("none", "--dropout 0");
    const auto first_loss = [&](const std::string& run) {
        return read_log(runs / run)[1]["train_loss"].get<double>();
    };
    CHECK(std::fabs(first_loss("whole") - first_loss("one")) < 1e-5);
    CHECK(std::fabs(first_loss("none") - first_loss("one")) > 1e-4);
}

TEST_CASE("dropout: who trains Hugging Face's model on is told what is left out") {
    Runs runs("--steps 1 --batch 2 --sample-every 0 --val-every 0 --quiet");
    runs.train("first", "--export-hf " + (runs / "hf"));
    const std::string file = runs / "hf/config.json", on = "--dropout 0.1 --model " + (runs / "hf");
    CHECK_FALSE(contains(runs.train("none", on).err, "attn_pdrop"));
    Json config = Json::parse(read_bytes(file));
    config["attn_pdrop"] = 0.1;
    write_bytes(file, config.dump());
    CHECK(contains(runs.train("told", on).err, "--dropout 0.1 leaves out the dropout in attention"));
}

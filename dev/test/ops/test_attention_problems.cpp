// Tests of what the attention shootouts judge by, without a GPU: where each head's truth is, that v0 is
// right, and that what is wrong is found.
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "dev/cuda/attention_problems.h"
#include "dev/cuda/options.h"
#include "dev/cuda/report.h"
#include "llmc/ops/attention/ladder/backward/v0.h"
#include "llmc/ops/attention/ladder/forward/v0.h"

using namespace llmc;

namespace {

constexpr int kB = 2, kNH = 5, kT = 9, kC = kNH * kHeadColumns;  // more heads than are distinct

Verdict judge_values(const Output& out, std::vector<double> values) {
    round_all(values, format_of(out.dtype));
    return judge_all(out, {}, encode_all(values, format_of(out.dtype)));
}

std::vector<float> floats_of(const Input& in) { return {in.values->begin(), in.values->end()}; }

}  // namespace

TEST_CASE("attention's problems: the truth of every head is that of its own numbers") {
    for (Inputs kind : {Inputs::kNormal, Inputs::kOutlier, Inputs::kConstant}) {
        Problem p = attention_forward_problem(Dtype::kBf16, sequences(kB, kNH, kT), kind);
        std::vector<double> out(p.N * kC), lse((size_t)kB * kNH * kT), dqkv(3 * out.size());
        attention_forward_cpu(out.data(), lse.data(), p.in[0].values->data(), kB, kT, kC, kNH);
        CHECK(out == *p.out[0].truth);
        CHECK(lse == *p.out[1].truth);

        Problem b = attention_backward_problem(Dtype::kBf16, sequences(kB, kNH, kT), kind);
        attention_backward_cpu(dqkv.data(), b.in[0].values->data(), b.in[1].values->data(),
                               b.in[2].values->data(), b.in[3].values->data(), kB, kT, kC, kNH);
        CHECK(dqkv == *b.out[0].truth);
    }
}

TEST_CASE("attention's problems: what is rounded once passes, other heads' rows do not") {
    Problem p = attention_forward_problem(Dtype::kBf16, sequences(kB, kNH, kT));
    Problem b = attention_backward_problem(Dtype::kBf16, sequences(kB, kNH, kT));
    for (const Output* out : {&p.out[0], &p.out[1], &b.out[0]}) {
        Verdict right = judge_values(*out, *out->truth);
        CHECK((right.ok() && right.worst > 0));
        // a row, or the other sequence's head, further
        for (int64_t by : {(int64_t)kHeadColumns, out->cols, out->rows / kB * out->cols}) {
            std::vector<double> values = *out->truth;
            std::rotate(values.begin(), values.begin() + by, values.end());
            CHECK_FALSE(judge_values(*out, values).ok());
        }
        std::vector<double> values = *out->truth;
        values[values.size() / 2] += 0.1;
        CHECK(judge_values(*out, values).over == 1);
    }
}

TEST_CASE("attention's ladders: v0 is right in single precision") {
    for (int T : {1, 17, 65}) {
        Shape shape = sequences(kB, 3, T);
        Problem p = attention_forward_problem(Dtype::kFp32, shape);
        std::vector<float> out(p.N * p.C), lse(p.N * 3), dqkv(3 * out.size());
        v0::attention_forward_cpu(out.data(), lse.data(), floats_of(p.in[0]).data(), kB, T, 3, kHeadColumns);
        CHECK(judge_values(p.out[0], {out.begin(), out.end()}).ok());
        CHECK(judge_values(p.out[1], {lse.begin(), lse.end()}).ok());

        Problem b = attention_backward_problem(Dtype::kFp32, shape);
        v0::attention_backward_cpu(dqkv.data(), floats_of(b.in[0]).data(), floats_of(b.in[1]).data(),
                                   floats_of(b.in[2]).data(), floats_of(b.in[3]).data(), kB, T, 3,
                                   kHeadColumns);
        CHECK(judge_values(b.out[0], {dqkv.begin(), dqkv.end()}).ok());
    }
}

TEST_CASE("attention's shapes: sequences x heads x tokens; operations instead of bytes in the table") {
    const char* words[] = {"attention_forward", "--shape", "64x12x1024,1x1x65"};
    ShootoutOptions options;
    options.sequences = true;
    REQUIRE(parse_shootout_options(3, words, "attention_forward", &options));
    CHECK(options.shapes == std::vector<Shape>{{65536, 768, 1024}, {65, 64, 65}});
    for (const char* shape : {"64x12", "64x12x0", "0x12x1", "64x12x1024x1", "9999999999x1x1"}) {
        const char* wrong[] = {"attention_forward", "--shape", shape};
        std::string expected = fmt::format(
            "--shape: found '{}', expected sequences x heads x tokens, such as 64x12x1024. See "
            "dev/cuda/attention_forward --help.",
            shape);
        CHECK_THROWS_WITH_AS(parse_shootout_options(3, wrong, "attention_forward", &options),
                             expected.c_str(), Error);
    }
    Problem p = attention_forward_problem(Dtype::kBf16, sequences(2, 3, 4));
    CHECK(p.shape() == "bf16 2x3x4");
    CHECK(p.flops == 4.0 * 64 * 6 * 10);
    Row row{.T = 4, .flops = 2e9};
    row.us = Times(std::vector<double>(21, 100.0));
    CHECK(row.tflop_per_s() == doctest::Approx(20));
    CHECK(table_line(row, false).find("   20 ") != std::string::npos);
    CHECK(table_head(false, true).find("TF/s") != std::string::npos);
    CHECK(json_row(row).find("\"tflop_per_s\": 20,") != std::string::npos);
}

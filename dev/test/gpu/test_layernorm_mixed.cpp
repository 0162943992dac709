// LayerNorm of fp32 rows whose out, and whose dout, are of 16 bits, as under torch.autocast: each layout of both passes, rows
// that are no whole vectors, forms of a call, the same bits in any batch, and what is refused.
#include "dev/test/gpu/layernorm_runs.h"
#include "dev/test/gpu/layernorm_widths.h"
#include "dev/test/support/test_files.h"

using namespace llmc;
using namespace llmc::gpu_test;

namespace {

constexpr int kLongest =
    16384;  // columns: beyond come layouts that the kernels have for one type, too, and the fallback

CallForm mixed(CallForm form, Dtype out, bool copy = false) {
    form.name = *form.name == 0 ? "mixed" : form.name;
    form.out = out;
    form.copy = copy;
    return form;
}
Dtype in_turn(int turn) { return turn % 2 == 0 ? Dtype::kBf16 : Dtype::kFp16; }

// rows enough that each team of a block on three multiprocessors, which dev/emulate has, goes through its ring
Shape few(int C) { return {std::max(11, 48'000 / C), C}; }

void check_backward(Shape s, Dtype out) {
    check_problem(layernorm_backward_problem(Dtype::kFp32, s, Inputs::kNormal, mixed({}, out)));
    check_problem(layernorm_backward_problem(Dtype::kFp32, s, Inputs::kNormal, mixed(kAllAdded, out, true)));
}

// each edge, a vector and an element beyond
template <typename Table, typename Columns, typename Check>
void check_edges(const Table& table, const Columns& columns, const Check& check) {
    int turn = 0;
    for (const auto& row : table) {
        for (int more : {0, 8, 1}) {
            const int C = columns(row) + more;
            check(few(C), in_turn(turn++));
        }
    }
}

}  // namespace

TEST_SUITE("mixed") {
    TEST_CASE("layernorm mixed: forward at each layout's edge") {
        auto columns = [](const layouts::RowInRegisters& row) { return row.columns(4); };
        check_edges(layouts::kRowInRegistersMixed, columns, [](Shape s, Dtype out) {
            check_problem(layernorm_forward_problem(Dtype::kFp32, s, Inputs::kNormal, mixed({}, out)));
        });
    }
    TEST_CASE("layernorm mixed: backward at each layout's edge") {
        auto columns = [](const layouts::TeamRingLayouts& row) { return row.columns; };
        check_edges(layouts::kTeamRingMixed, columns, check_backward);
    }
    TEST_CASE("layernorm mixed: rows of few, odd and very many columns") {
        int turn = 0;
        for (int C : {1, 3, 4, 12, 64, 100, 252, 769, 1028, 4097, 20'000, 32'768}) {
            const Shape s = {C > kLongest ? 3 : 37, C};
            const Dtype out = in_turn(turn++);
            check_problem(layernorm_forward_problem(Dtype::kFp32, s, Inputs::kNormal, mixed({}, out)));
            check_backward(s, out);
        }
    }
    TEST_CASE("layernorm mixed: forms of a call") {
        for (Shape s : {Shape{33, 768}, {33, 769}, {11, 5120}, {0, 64}}) {
            int turn = 0;
            for (CallForm form : layernorm_forms(false)) {
                const bool one_type = form.in_place != 0 || form.fp32_weight;
                if (one_type) { continue; }
                form = mixed(form, in_turn(turn++));
                if (!form.drops) {
                    check_problem(layernorm_forward_problem(Dtype::kFp32, s, Inputs::kNormal, form));
                }
                check_problem(residual_layernorm_forward_problem(Dtype::kFp32, s, Inputs::kNormal, form));
            }
            for (CallForm form : layernorm_forms(true)) {
                if (form.in_place != 0 || form.fp32_gradients || form.drops) { continue; }
                form = mixed(form, in_turn(turn++), !form.no_dinp);
                check_problem(layernorm_backward_problem(Dtype::kFp32, s, Inputs::kNormal, form));
            }
        }
    }
}

TEST_SUITE("mixed") {
    TEST_CASE("layernorm mixed: hard inputs") {
        for (Inputs inputs : {Inputs::kOffset, Inputs::kConstant, Inputs::kOutlier, Inputs::kNonFinite}) {
            for (Shape s : {Shape{131, 769}, {67, 1024}, {9, 4096}}) {
                const CallForm form = mixed({}, Dtype::kBf16);
                check_problem(layernorm_forward_problem(Dtype::kFp32, s, inputs, form));
                check_problem(layernorm_backward_problem(Dtype::kFp32, s, inputs, form));
            }
        }
        const CallForm added = mixed(kAllAdded, Dtype::kFp16, true);
        check_problem(layernorm_backward_problem(Dtype::kFp32, {1031, 1024}, Inputs::kInteger, added));
    }
    TEST_CASE("layernorm mixed: the same bits in any batch") {
        for (int C : {8, 65, 768, 769, 1600, 4096, 8192}) {
            const CallForm added = mixed(kAllAdded, Dtype::kFp16, true);
            check_batch_sizes(
                layernorm_forward_problem(Dtype::kFp32, {3, C}, Inputs::kNormal, mixed({}, Dtype::kBf16)),
                {2, 11, 133});
            check_batch_sizes(layernorm_backward_problem(Dtype::kFp32, {3, C}, Inputs::kNormal, added),
                              {2, 11, 133});
        }
    }
    TEST_CASE("layernorm mixed: a copy is refused where there is none to make") {
        Problem p =
            layernorm_backward_problem(Dtype::kFp32, {3, 64}, Inputs::kNormal, mixed({}, Dtype::kBf16, true));
        p.out.erase(named(p.out, "dinp"));
        check_error(error_of([&] { run(p); }), kExitUsage, {"copy is of dinp"});
    }
}

// Grades the reader's kernel with which it is linked: calls it on shapes that catch edges, and says what is wrong:
//   grade EXERCISE TENSOR=TIMES,... SHAPE...     a SHAPE as fp32:37x96:64:normal: rows, columns, threads of a block, inputs
// A wrong result is compared with what wrong formulas give (formulas.h): the one that all its numbers agree with is its
// name. What is said goes to file 3, a line of it each; exercise.pl reads it, and limits what the process may take.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>

#include <unistd.h>

#include "dev/exercises/formulas.h"
#include "dev/exercises/grader.h"

using namespace llmc;
using namespace llmc::exercise;

namespace {

constexpr auto kFp32 = Dtype::kFp32;

struct Case {
    Dtype dtype;
    Shape shape;
    int block;
    Inputs inputs;
};
Case case_of(const std::string& text) {
    std::array<int, 3> n{};
    std::array<char, 16> type{}, inputs{};
    int block = 0,
        sizes = std::sscanf(text.c_str(), "%15[^:]:%dx%dx%d", type.data(), &n[0], &n[1], &n[2]) - 1;
    size_t rest = text.find(':', text.find(':') + 1);
    require(rest != text.npos && std::sscanf(&text[rest], ":%d:%15s", &block, inputs.data()) == 2,
            "grade: no such shape");
    auto kind = std::find(std::begin(kInputsNames), std::end(kInputsNames), std::string_view(inputs.data()));
    // attention's: sequences, heads, tokens
    Shape shape = sizes == 3 ? Shape{(int64_t)n[0] * n[2], n[1] * kHeadColumns, n[2]} : Shape{n[0], n[1]};
    Dtype dtype = std::string_view(type.data()) == "fp32" ? kFp32 : Dtype::kBf16;
    return {dtype, shape, block, (Inputs)(kind - std::begin(kInputsNames))};
}

Problem make_problem(std::string_view exercise, const Case& c) {
    auto* make = exercise.starts_with("attention")           ? attention_forward_problem
                 : exercise.starts_with("residual")          ? residual_layernorm_forward_problem
                 : exercise.starts_with("layernorm_forward") ? layernorm_forward_problem
                                                             : layernorm_backward_problem;
    return make(c.dtype, c.shape, c.inputs, {});
}

void say(const Finding& f) {
    std::string line = fmt::format("[{}] {}\n", kKindNames[(int)f.kind], f.text);
    if (write(3, line.data(), line.size()) < 0) { _exit(1); }
}
void find(Kind kind, const std::string& text) { findings().push_back({kind, text}); }

// what a kernel made of a case
struct Outcome {
    Case of;
    Problem p;
    std::vector<std::vector<std::byte>> found;

    std::string name() const {
        std::string rows =
            p.T > 0 ? fmt::format("{} sequences of {} tokens, {} heads", p.N / p.T, p.T, p.C / kHeadColumns)
                    : fmt::format("{} rows of {} columns", p.N, p.C);
        return fmt::format("{}, {}, {} inputs, blocks of {}", rows, format_of(p.dtype).name, p.inputs,
                           of.block);
    }
    // Somebody adds in an order of his own: the bound is for the most additions that there are.
    Sums sums() const { return {.row = 2.0 * p.C + 16, .column = (double)p.N + 64}; }
    Verdict at(size_t o, int64_t i) const { return judge(p.out[o], sums(), found[o].data(), i); }
};

Outcome run(std::string_view name, const Case& c) {
    Outcome made{c, make_problem(name, c), {}};
    const Problem& p = made.p;
    remove_tensors();
    for (const Input& in : p.in) {
        if (std::string_view(in.name) == "counters") { continue; }
        auto size = (int64_t)in.values->size();
        int64_t rows = in.extent == Extent::kMatrix || c.shape.T > 0 ? p.N : size;
        Tensor& t = add_tensor(in.name, rows, size / rows, format_of(in.dtype).bytes, true);
        std::vector<std::byte> raw = encode_all(*in.values, format_of(in.dtype));
        std::memcpy(t.data, raw.data(), raw.size());
    }
    for (const Output& out : p.out) {
        add_tensor(out.name, out.rows, out.cols, format_of(out.dtype).bytes, false);
    }
    Call with{c.dtype, p.N, p.C, c.shape.T, p.eps, c.block};
    if (size_t bytes = scratch_bytes(with)) { add_tensor("scratch", (int64_t)(bytes + 3) / 4, 1, 4, false); }
    try {
        call(with);
    } catch (const Error& e) {
        if (findings().empty()) { find(Kind::kFailure, fmt::format("the launch fails: {}", e.what())); }
    }
    for (const Output& out : p.out) {
        const Tensor* t = find_tensor(out.name);
        made.found.emplace_back(t->data, t->data + t->bytes());
    }
    return made;
}

// Do all results that are wrong agree with these? As near as a kernel with this formula is to it: its bound grows as its
// numbers do.
bool agrees(const Outcome& made, const Tensors& with) {
    bool differs = false;
    for (size_t o = 0; o < with.size(); o++) {
        const Output& out = made.p.out[o];
        double u = format_of(out.dtype).roundoff();
        if (judge_all(out, made.sums(), made.found[o]).ok()) { continue; }
        for (int64_t i = 0; i < out.rows * out.cols; i++) {
            Verdict v = made.at(o, i);
            double truth = (*out.truth)[i], wrong = with[o][i], size = std::fabs(wrong);
            double most = 4 * v.bound + 1e-7 * size + (size > std::fabs(truth) ? size * (2 * u + 1e-4) : 0);
            bool near = std::isfinite(wrong) ? std::fabs(v.found - wrong) <= most : !std::isfinite(v.found);
            if (!near) { return false; }
            differs = differs || !(std::fabs(wrong - truth) <= v.bound);
        }
    }
    return differs;
}

// "" or that with which all of these agree that have the first one's kind of inputs
std::string mistake_by_formula(std::string_view exercise, const std::vector<const Outcome*>& wrong) {
    std::map<std::string, size_t> agreeing;
    std::vector<std::string> in_order;
    size_t tried = 0;
    for (const Outcome* made : wrong) {
        if (made->of.inputs != wrong[0]->of.inputs) { continue; }
        tried++;
        each_wrong_formula(exercise, made->p, made->of.block, [&](const char* name, const Tensors& with) {
            if (tried == 1) { in_order.emplace_back(name); }
            agreeing[name] += agrees(*made, with);
        });
    }
    for (const std::string& name : in_order) {
        if (agreeing[name] == tried) { return fmt::format("mistake: {}. ", name); }
    }
    return "";
}

// what is right with some inputs and wrong with others
std::string mistake_by_inputs(const std::vector<Outcome>& all, const std::vector<const Outcome*>& wrong) {
    std::set<Dtype> tried, types;
    std::set<Inputs> inputs;
    double worst = 0;
    for (const Outcome& made : all) { tried.insert(made.p.dtype); }
    for (const Outcome* made : wrong) {
        types.insert(made->p.dtype);
        inputs.insert(made->of.inputs);
        for (size_t o = 0; o < made->found.size(); o++) {
            worst = std::max(worst, judge_all(made->p.out[o], made->sums(), made->found[o]).worst);
        }
    }
    constexpr double kMoreBits = 1 << 17;  // how much more sums in bf16 may err than those in fp32
    if (tried.size() > types.size() && types.count(kFp32) == 0 && worst < kMoreBits) {
        return "mistake: a sum, or a number on its way, is held in T: all is right in fp32, and in bf16 it "
               "errs as rounding to bf16 does. Acc is the type of what is summed. ";
    }
    if (inputs == std::set{Inputs::kOffset}) {
        return "mistake: digits are lost where the mean is many deviations away from zero: the squares are "
               "not about the mean (E[x^2] - E[x]^2), or the sums are of x and not of x - x[0]. ";
    }
    if (inputs == std::set{Inputs::kOutlier}) {
        return "mistake: expf overflows where scores are large: take the row's largest score off before. ";
    }
    return "";
}

// "all rows", "rows 3 to 7 of 9", "4 of 9 rows, the first 0 and 2"
std::string some(const char* what, const std::set<int64_t>& these, int64_t of) {
    int64_t first = *these.begin(), last = *these.rbegin(), n = (int64_t)these.size();
    if (n == of) { return fmt::format("all {}s", what); }
    if (n == 1) { return fmt::format("{} {}", what, first); }
    if (last - first + 1 == n) { return fmt::format("{}s {} to {} of {}", what, first, last, of); }
    return fmt::format("{} of {} {}s, the first {} and {}", n, of, what, first, *std::next(these.begin()));
}

// of the first output that is; "" if none is
std::string where_wrong(const Outcome& made, bool unwritten) {
    for (size_t o = 0; o < made.found.size(); o++) {
        const Output& out = made.p.out[o];
        std::set<int64_t> rows, cols;
        int64_t first = -1;
        for (int64_t i = 0; i < out.rows * out.cols; i++) {
            Verdict v = made.at(o, i);
            if (unwritten ? !v.unwritten : v.ok()) { continue; }
            first = first < 0 ? i : first;
            rows.insert(i / out.cols);
            cols.insert(i % out.cols);
        }
        if (first < 0) { continue; }
        const char* unit = out.extent == Extent::kColumns ? "column" : "row";
        bool matrix = out.cols > 1;
        std::string where =
            some(unit, rows, out.rows) + (matrix ? ", " + some("column", cols, out.cols) : "");
        if (unwritten) { return fmt::format("{} is not written: {}. With {}", out.name, where, made.name()); }
        Verdict v = made.at(o, first);
        return fmt::format(
            "{} is wrong in {}. At {} {}{}: expected {:.7g}, found {:.7g}, where rounding explains a "
            "difference of {:.2g}. With {}",
            out.name, where, unit, first / out.cols,
            matrix ? fmt::format(", column {}", first % out.cols) : "", (*out.truth)[first], v.found, v.bound,
            made.name());
    }
    return "";
}

void judge_results(std::string_view exercise, const std::vector<Outcome>& all) {
    std::vector<const Outcome*> wrong;
    for (const Outcome& made : all) {
        const std::string unwritten = where_wrong(made, true);
        if (!unwritten.empty()) { return find(Kind::kUnwritten, unwritten); }
        if (!where_wrong(made, false).empty()) { wrong.push_back(&made); }
    }
    if (wrong.empty()) { return; }
    std::string mistake = mistake_by_formula(exercise, wrong);
    if (mistake.empty()) { mistake = mistake_by_inputs(all, wrong); }
    find(Kind::kResult, mistake + where_wrong(*wrong[0], false));
}

// "" or what is wrong; most: "inp=3.3,out=1.1"
std::string traffic_beyond(const std::string& most) {
    std::string asked;
    for (const Tensor& t : tensors()) {
        double times = (double)t.asked / (double)t.bytes();
        asked += fmt::format("{}{} {:.2f}", asked.empty() ? "" : ", ", t.name, times);
        size_t at = ("," + most).find("," + t.name + "=");
        double enough = at == most.npos ? INFINITY : std::stod(most.substr(at + t.name.size() + 1));
        if (times <= enough) { continue; }
        return fmt::format(
            "too many bytes: warps ask for {} {:.2f} times, in sectors of 32 bytes, where {:.2f} suffice. "
            "Neighbouring lanes should take neighbouring elements; what is held need not be asked for again",
            t.name, times, enough);
    }
    say({Kind::kNote, "bytes asked for, in sectors of 32, in units of each tensor's own: " + asked});
    return "";
}

}  // namespace

int main(int argc, char** argv) {
    require(argc > 3, "grade EXERCISE TENSOR=TIMES,... SHAPE...");
    start_watching(say);
    std::string_view exercise = argv[1];
    std::vector<Outcome> all;
    std::string traffic;
    bool ended = false;  // before it had written its results
    for (int i = 3; i < argc && findings().empty(); i++) {
        all.push_back(run(exercise, case_of(argv[i])));
        for (Finding& f : findings()) {
            f.text += ". With " + all.back().name();
            ended = ended || (f.kind != Kind::kRace && f.kind != Kind::kUninitialised);
        }
        if (i == 3 && where_wrong(all[0], false).empty()) { traffic = traffic_beyond(argv[2]); }
    }
    if (!ended) { judge_results(exercise, all); }
    if (!traffic.empty()) { find(Kind::kTraffic, traffic); }
    std::stable_sort(findings().begin(), findings().end(),
                     [](const Finding& a, const Finding& b) { return a.kind < b.kind; });
    for (const Finding& f : findings()) { say(f); }
    say({Kind::kNote, fmt::format("{} shapes", all.size())});
    std::fflush(nullptr);
    _exit(0);  // without what the reader's file may have left to be done at the end
}

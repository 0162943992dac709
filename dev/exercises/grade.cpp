// Grades the reader's kernel with which it is linked: calls it on shapes that catch edges, in a process of its own, and says
// what is wrong in plain English: grade EXERCISE. A wrong result is compared with what wrong formulas give (formulas.h):
// the one that all its numbers agree with is its name.
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dev/exercises/formulas.h"
#include "dev/exercises/grader.h"

using namespace llmc;
using namespace llmc::exercise;

namespace {

constexpr int kSeconds = 10;                     // of all calls
constexpr rlim_t kMostMemory = (rlim_t)6 << 30;  // address space
constexpr rlim_t kMostFile = 1 << 20;
constexpr auto kFp32 = Dtype::kFp32, kBf16 = Dtype::kBf16;

struct Case {
    Dtype dtype;
    Shape shape;
    int block = 64;
    Inputs inputs = Inputs::kNormal;
};
struct Exercise {
    std::string_view name;
    std::vector<Case> cases;
    // how many times its bytes warps may ask for a tensor, in the first case: what the rung does, and a little
    std::map<std::string, double> most;
};

std::vector<Case> with_hard_inputs(std::vector<Case> cases, int C) {
    cases.push_back({kFp32, {5, C}, 64, Inputs::kOffset});
    cases.push_back({kBf16, {4, 40}, 128, Inputs::kConstant});
    return cases;
}
constexpr Shape sequences(int B, int NH, int T) { return {(int64_t)B * T, NH * kHeadColumns, T}; }

// in order of difficulty
std::vector<Exercise> exercises() {
    auto any_rows = with_hard_inputs({{kFp32, {37, 96}},
                                      {kBf16, {37, 96}},
                                      {kFp32, {3, 250}},
                                      {kBf16, {70, 33}},
                                      {kFp32, {5, 33}, 32},
                                      {kFp32, {1, 1}}},
                                     200);
    auto vector_rows = with_hard_inputs({{kBf16, {5, 768}},
                                         {kFp32, {5, 768}},
                                         {kFp32, {37, 8}},
                                         {kBf16, {9, 1000}},
                                         {kFp32, {3, 132}, 32},
                                         {kBf16, {3, 2056}}},
                                        256);
    auto block_rows = with_hard_inputs({{kBf16, {5, 768}},
                                        {kFp32, {5, 768}},
                                        {kFp32, {7, 8}},
                                        {kBf16, {3, 1000}, 96},
                                        {kFp32, {3, 132}, 32},
                                        {kBf16, {2, 4104}, 256}},
                                       256);
    auto short_rows = with_hard_inputs({{kBf16, {37, 64}},
                                        {kFp32, {37, 64}},
                                        {kFp32, {13, 8}},
                                        {kBf16, {33, 24}},
                                        {kFp32, {5, 100}, 32},
                                        {kBf16, {7, 256}}},
                                       64);
    std::vector<Case> gradients = {{kFp32, {37, 96}},     {kBf16, {37, 96}},    {kFp32, {5, 250}, 128},
                                   {kBf16, {130, 33}},    {kFp32, {3, 33}, 32}, {kFp32, {1, 1}},
                                   {kFp32, {200, 40}, 96}};
    std::vector<Case> heads = {{kBf16, sequences(2, 2, 17)},
                               {kBf16, sequences(1, 3, 70)},
                               {kBf16, sequences(1, 1, 1)},
                               {kBf16, sequences(1, 3, 200), 0, Inputs::kOutlier}};
    return {{"layernorm_forward-1", any_rows, {{"inp", 25}, {"out", 8.5}}},
            {"layernorm_forward-2", any_rows, {{"inp", 3.3}, {"out", 1.1}, {"weight", 38}}},
            {"residual_layernorm_forward-2",
             any_rows,
             {{"inp", 1.2}, {"inp2", 1.2}, {"residual", 3.2}, {"out", 1.1}}},
            {"layernorm_forward-3", vector_rows, {{"inp", 1.1}, {"out", 1.1}, {"weight", 5.1}}},
            {"layernorm_forward-5", short_rows, {{"inp", 1.4}, {"out", 1.1}}},
            {"layernorm_forward-4", block_rows, {{"inp", 1.1}, {"out", 1.1}, {"weight", 5.1}}},
            {"layernorm_backward-1", gradients, {{"dout", 18}, {"inp", 18}, {"dinp", 8.5}}},
            {"layernorm_backward-2", gradients, {{"dout", 3.2}, {"inp", 3.2}, {"scratch", 2.2}}},
            {"attention_forward-1", heads, {{"qkv", 10.5}, {"scratch", 15}, {"out", 1.1}}},
            {"layernorm_backward-3", gradients, {{"dout", 2.2}, {"inp", 2.2}, {"dinp", 1.1}}}};
}

Problem make_problem(std::string_view exercise, const Case& c) {
    if (exercise.starts_with("attention")) { return attention_forward_problem(c.dtype, c.shape, c.inputs); }
    if (exercise.starts_with("residual")) {
        return residual_layernorm_forward_problem(c.dtype, c.shape, c.inputs);
    }
    return exercise.starts_with("layernorm_forward") ? layernorm_forward_problem(c.dtype, c.shape, c.inputs)
                                                     : layernorm_backward_problem(c.dtype, c.shape, c.inputs);
}

// ---- in the process of the kernel

int report_to = -1;  // a pipe: a kind, a blank, a text, a line's end
void report(const Finding& f) {
    std::string line = fmt::format("{} {}\n", (int)f.kind, f.text);
    if (write(report_to, line.data(), line.size()) < 0) { _exit(1); }
}

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
    bool wrong(bool only_unwritten = false) const {
        for (size_t o = 0; o < found.size(); o++) {
            for (int64_t i = 0; i < p.out[o].rows * p.out[o].cols; i++) {
                if (Verdict v = at(o, i); only_unwritten ? v.unwritten : !v.ok()) { return true; }
            }
        }
        return false;
    }
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
        if (findings().empty()) {
            findings().push_back({Kind::kFailure, fmt::format("the launch fails: {}", e.what())});
        }
    }
    for (const Output& out : p.out) {
        const Tensor* t = find_tensor(out.name);
        made.found.emplace_back(t->data, t->data + t->bytes());
    }
    return made;
}

// Do all results agree with these? As near as a kernel with this formula is to it: its bound grows as its numbers do.
bool agrees(const Outcome& made, const Tensors& with) {
    bool differs = false;
    for (size_t o = 0; o < with.size(); o++) {
        const Output& out = made.p.out[o];
        double u = format_of(out.dtype).roundoff();
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
               "errs as rounding to bf16 "
               "does. Acc is the type of what is summed. ";
    }
    if (inputs == std::set{Inputs::kOffset}) {
        return "mistake: digits are lost where the mean is many deviations away from zero: the squares are "
               "not about the mean "
               "(E[x^2] - E[x]^2), or the sums are of x and not of x - x[0]. ";
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

// of the first output that is
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
            "difference of {:.2g}. "
            "With {}",
            out.name, where, unit, first / out.cols,
            matrix ? fmt::format(", column {}", first % out.cols) : "", (*out.truth)[first], v.found, v.bound,
            made.name());
    }
    return "";
}

void report_results(const Exercise& e, const std::vector<Outcome>& all) {
    std::vector<const Outcome*> wrong;
    for (const Outcome& made : all) {
        if (made.wrong(true)) { return report({Kind::kUnwritten, where_wrong(made, true)}); }
        if (made.wrong()) { wrong.push_back(&made); }
    }
    if (wrong.empty()) { return; }
    std::string mistake = mistake_by_formula(e.name, wrong);
    if (mistake.empty()) { mistake = mistake_by_inputs(all, wrong); }
    report({Kind::kResult, mistake + where_wrong(*wrong[0], false)});
}

void report_traffic(const Exercise& e) {
    std::string asked;
    for (const Tensor& t : tensors()) {
        double times = (double)t.asked / (double)t.bytes();
        asked += fmt::format("{}{} {:.2f}", asked.empty() ? "" : ", ", t.name, times);
        auto most = e.most.find(t.name);
        if (most == e.most.end() || times <= most->second) { continue; }
        return report({Kind::kTraffic, fmt::format("too many bytes: warps ask for {} {:.2f} times, in "
                                                   "sectors of 32 bytes, where {:.2f} times suffice. "
                                                   "Neighbouring lanes should take neighbouring elements; "
                                                   "what is held need not be asked for again",
                                                   t.name, times, most->second)});
    }
    report({Kind::kNote, "bytes asked for, in sectors of 32, in units of each tensor's own: " + asked});
}

[[noreturn]] void grade_here(const Exercise& e) {
    auto limit = [](auto what, rlim_t most) {
        rlimit limits{most, most};
        setrlimit(what, &limits);
    };
    limit(RLIMIT_AS, kMostMemory);
    limit(RLIMIT_FSIZE, kMostFile);
    limit(RLIMIT_CPU, 2 * kSeconds);
    start_watching(kSeconds, report);
    std::vector<Outcome> all;
    for (const Case& c : e.cases) {
        all.push_back(run(e.name, c));
        if (!findings().empty()) { break; }
        if (all.size() == 1 && !all[0].wrong()) { report_traffic(e); }
    }
    bool ended = false;  // before it had written its results
    for (const Finding& f : findings()) {
        report({f.kind, f.text + ". With " + all.back().name()});
        ended = ended || (f.kind != Kind::kRace && f.kind != Kind::kUninitialised);
    }
    if (!ended) { report_results(e, all); }
    report({Kind::kNote, fmt::format("cases: {}", all.size())});
    _exit(0);
}

// ---- in the process that waits

// "x_v3.cuh:41" of an address: of what was inlined there the line in the reader's file
std::string line_at(const std::string& address) {
    std::string found = "?",
                command = fmt::format("addr2line -i -e /proc/{}/exe 0x{} 2>/dev/null", getpid(), address);
    std::array<char, 1024> text{};
    FILE* pipe = popen(command.c_str(), "r");
    while (pipe != nullptr && std::fgets(text.data(), text.size(), pipe) != nullptr) {
        std::string line(text.data(), std::strcspn(text.data(), " \n"));
        line = line.substr(line.rfind('/') + 1);
        if (found == "?" || line.find("_v") != std::string::npos) { found = line; }
    }
    if (pipe != nullptr) { pclose(pipe); }
    return found;
}
std::string with_lines(std::string text) {
    for (size_t at; (at = text.find("{line:")) != std::string::npos;) {
        size_t end = text.find('}', at);
        text.replace(at, end + 1 - at, line_at(text.substr(at + 6, end - at - 6)));
    }
    return text;
}

int say(std::string_view name, std::string_view next, const std::string& said, int status) {
    std::map<Kind, std::string> first;
    std::string notes;
    for (size_t at = 0, end; (end = said.find('\n', at)) != std::string::npos; at = end + 1) {
        std::string line = said.substr(at, end - at), text = line.substr(line.find(' ') + 1);
        auto kind = (Kind)std::atoi(line.c_str());
        if (kind == Kind::kNote) {
            notes += "  " + text + "\n";
        } else {
            first.emplace(kind, with_lines(text));
        }
    }
    if (first.empty() && notes.find("cases:") == std::string::npos) {
        first.emplace(Kind::kFailure, WIFSIGNALED(status)
                                          ? fmt::format("the kernel's process ended by signal {} ({})",
                                                        WTERMSIG(status), strsignal(WTERMSIG(status)))
                                          : "the kernel's process ended itself");
    }
    for (const auto& [kind, text] : first) { fmt::print("{} [{}]: {}\n", name, kKindNames[(int)kind], text); }
    if (!first.empty()) { return 1; }
    fmt::print("{}: passed.\n{}", name, notes);
    if (!next.empty()) { fmt::print("  next: make exercise-{}\n", next); }
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    std::vector<Exercise> all = exercises();
    auto e = std::find_if(all.begin(), all.end(),
                          [&](const Exercise& e) { return argc > 1 && e.name == argv[1]; });
    int ends[2];
    if (e == all.end() || pipe(ends) != 0) {
        fmt::print(stderr, "grade: no exercise {}\n", argc > 1 ? argv[1] : "");
        return 2;
    }
    pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        report_to = ends[1];
        grade_here(*e);
    }
    close(ends[1]);
    alarm(4 * kSeconds);  // what the kernel's process has started may keep the pipe open
    std::string said;
    std::array<char, 4096> buffer{};
    for (ssize_t n; (n = read(ends[0], buffer.data(), buffer.size())) > 0;) { said.append(buffer.data(), n); }
    int status = 0;
    waitpid(child, &status, 0);
    return say(e->name, std::next(e) == all.end() ? "" : std::next(e)->name, said, status);
}

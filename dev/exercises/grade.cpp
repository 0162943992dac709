// Grades a reader's kernel, with which it is linked: calls it on shapes that catch edges, in a process of its own, and says
// what is wrong in plain English: grade EXERCISE.
// A wrong result is compared with what wrong formulas would give (formulas.h): the one that all numbers agree with has
// a name.
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <optional>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dev/emulate/machine.h"
#include "dev/exercises/formulas.h"
#include "dev/exercises/grader.h"

using namespace llmc;
using namespace llmc::exercise;

namespace {

constexpr int kSeconds = 10;                          // of all calls
constexpr rlim_t kMostMemory = (rlim_t)6 << 30;       // address space
constexpr rlim_t kMostFile = 1 << 20;
constexpr auto kFp32 = Dtype::kFp32, kBf16 = Dtype::kBf16;

struct Case {
    Dtype dtype;
    Shape shape;
    int block = 64;
    Inputs inputs = Inputs::kNormal;
};
// how many times its bytes warps may ask for a tensor, in the first case
struct Limit {
    const char* tensor;
    double times;
};
struct Exercise {
    std::string_view name;
    const char* next;
    std::vector<Case> cases;
    std::vector<Limit> limits;
};

const std::vector<Case> kAnyRows = {{kFp32, {37, 96}},  {kBf16, {37, 96}},  {kFp32, {3, 250}}, {kBf16, {70, 33}}, {kFp32, {5, 33}, 32},
                                    {kFp32, {1, 1}},    {kFp32, {5, 200}, 64, Inputs::kOffset}, {kBf16, {4, 40}, 128, Inputs::kConstant}};
const std::vector<Case> kVectorRows = {{kBf16, {5, 768}}, {kFp32, {5, 768}}, {kFp32, {37, 8}}, {kBf16, {9, 1000}}, {kFp32, {3, 132}, 32},
                                       {kBf16, {3, 2056}}, {kFp32, {5, 256}, 64, Inputs::kOffset}, {kBf16, {4, 40}, 128, Inputs::kConstant}};
const std::vector<Case> kBlockRows = {{kBf16, {5, 768}}, {kFp32, {5, 768}}, {kFp32, {7, 8}}, {kBf16, {3, 1000}, 96}, {kFp32, {3, 132}, 32},
                                      {kBf16, {2, 4104}, 256}, {kFp32, {5, 256}, 64, Inputs::kOffset}, {kBf16, {4, 40}, 128, Inputs::kConstant}};
const std::vector<Case> kShortRows = {{kBf16, {37, 64}}, {kFp32, {37, 64}}, {kFp32, {13, 8}}, {kBf16, {33, 24}}, {kFp32, {5, 100}, 32},
                                      {kBf16, {7, 256}}, {kFp32, {5, 64}, 64, Inputs::kOffset}, {kBf16, {4, 40}, 128, Inputs::kConstant}};
const std::vector<Case> kGradients = {{kFp32, {37, 96}}, {kBf16, {37, 96}}, {kFp32, {5, 250}, 128}, {kBf16, {130, 33}}, {kFp32, {3, 33}, 32},
                                      {kFp32, {1, 1}}, {kFp32, {200, 40}, 96}};
constexpr Shape sequence(int B, int NH, int T) { return {(int64_t)B * T, NH * kHeadColumns, T}; }

const std::vector<Exercise>& exercises() {
    static const std::vector<Exercise> all = {
        {"layernorm_forward-1", "layernorm_forward-2", kAnyRows, {}},
        {"layernorm_forward-2", "residual_layernorm_forward-2", kAnyRows, {}},
        {"residual_layernorm_forward-2", "layernorm_forward-3", kAnyRows, {}},
        {"layernorm_forward-3", "layernorm_forward-5", kVectorRows, {}},
        {"layernorm_forward-5", "layernorm_forward-4", kShortRows, {}},
        {"layernorm_forward-4", "layernorm_backward-1", kBlockRows, {}},
        {"layernorm_backward-1", "layernorm_backward-2", kGradients, {}},
        {"layernorm_backward-2", "attention_forward-1", kGradients, {}},
        {"attention_forward-1", "layernorm_backward-3",
         {{kBf16, sequence(2, 2, 17)}, {kBf16, sequence(1, 3, 70)}, {kBf16, sequence(1, 1, 1)},
          {kBf16, sequence(1, 3, 200), 0, Inputs::kOutlier}}, {}},
        {"layernorm_backward-3", "", kGradients, {}},
    };
    return all;
}

// ---- in the process of the kernel

int report_to = -1;  // a pipe: a kind, a blank, a text, a line's end
void report(const Finding& f) {
    std::string line = fmt::format("{} {}\n", (int)f.kind, f.text);
    if (write(report_to, line.data(), line.size()) < 0) { _exit(1); }
}
void report_note(const std::string& text) { report({Kind::kNote, text}); }

std::string case_name(const Case& c) {
    std::string rows = c.shape.T > 0 ? fmt::format("{} sequences of {} tokens, {} heads", c.shape.N / c.shape.T, c.shape.T, c.shape.C / kHeadColumns)
                                     : fmt::format("{} rows of {} columns", c.shape.N, c.shape.C);
    return fmt::format("{} {}, {} inputs, blocks of {}", rows, format_of(c.dtype).name, kInputsNames[(int)c.inputs], c.block);
}

// what a kernel made of a case
struct Outcome {
    Case of;
    Problem p;
    Tensors found;
    std::vector<Verdict> verdicts;
    std::vector<std::vector<bool>> written;

    bool ok() const {
        return std::all_of(verdicts.begin(), verdicts.end(), [](const Verdict& v) { return v.ok(); });
    }
};

// The order in which somebody adds is his own: the most additions there are.
Sums any_order(const Problem& p) { return {.row = 2.0 * p.C + 16, .column = (double)p.N + 64}; }

Outcome run(std::string_view name, const Case& c) {
    Problem p = make_problem(name, c.dtype, c.shape, c.inputs);
    remove_tensors();
    for (const Input& in : p.in) {
        if (std::string_view(in.name) == "counters") { continue; }
        const Format& f = format_of(in.dtype);
        auto size = (int64_t)in.values->size();
        int64_t rows = in.extent == Extent::kMatrix ? p.N : 1;
        if (c.shape.T > 0) { rows = p.N; }
        Tensor& t = add_tensor(in.name, rows == 1 ? size : rows, rows == 1 ? 1 : size / rows, f.bytes, true);
        std::vector<std::byte> raw = encode_all(*in.values, f);
        std::memcpy(t.data, raw.data(), raw.size());
    }
    for (const Output& out : p.out) { add_tensor(out.name, out.rows, out.cols, format_of(out.dtype).bytes, false); }
    Call with{c.dtype, p.N, p.C, c.shape.T, p.eps, c.block};
    if (size_t bytes = scratch_bytes(with)) { add_tensor("scratch", (int64_t)(bytes + 3) / 4, 1, 4, false); }
    try {
        call(with);
    } catch (const Error& e) {
        if (findings().empty()) { findings().push_back({Kind::kFailure, fmt::format("the launch fails: {}", e.what())}); }
    }
    Outcome made{c, p, {}, {}, {}};
    for (const Output& out : made.p.out) {
        const Format& f = format_of(out.dtype);
        const Tensor* t = find_tensor(out.name);
        std::vector<std::byte> raw(t->data, t->data + t->bytes());
        made.verdicts.push_back(judge_all(out, any_order(p), raw));
        std::vector<double> values(out.rows * out.cols);
        std::vector<bool> written(values.size());
        for (size_t i = 0; i < values.size(); i++) {
            uint64_t bits = load_bits(raw.data(), (int64_t)i, f);
            values[i] = decode(bits, f);
            written[i] = bits != (f.bytes == 8 ? ~0ull : (1ull << 8 * f.bytes) - 1);
        }
        made.found.push_back(values);
        made.written.push_back(written);
    }
    return made;
}

// ---- what a wrong result is

// do all results agree with these? Within what a kernel with this formula may err by, which scales as its numbers do.
bool agrees(const Outcome& made, const Tensors& with) {
    bool differs = false;
    for (size_t o = 0; o < made.p.out.size(); o++) {
        const Output& out = made.p.out[o];
        if (with[o].empty()) { continue; }
        for (int64_t i = 0; i < out.rows * out.cols; i++) {
            double truth = (*out.truth)[i], wrong = with[o][i], found = made.found[o][i];
            if (!std::isfinite(wrong) || !std::isfinite(found)) {
                if (std::isfinite(wrong) != std::isfinite(found)) { return false; }
                differs = differs || std::isfinite(truth);
                continue;
            }
            double bound = out.bound(any_order(made.p), i / out.cols, i % out.cols);
            double u = format_of(out.dtype).roundoff();
            double grown = std::fabs(wrong) > std::fabs(truth) ? std::fabs(wrong) * (2 * u + 1e-4) : 0;
            if (std::fabs(found - wrong) > 4 * bound + grown + 1e-7 * std::fabs(wrong)) { return false; }
            differs = differs || std::fabs(wrong - truth) > bound;
        }
    }
    return differs;
}

std::optional<std::string> name_of(std::string_view exercise, const std::vector<Outcome>& wrong) {
    for (const Formula& formula : formulas_of(exercise)) {
        int agreeing = 0;
        bool all = true;
        for (const Outcome& made : wrong) {
            if (made.of.inputs != wrong[0].of.inputs) { continue; }
            all = all && agrees(made, formula.values(made.p, made.of.block));
            agreeing++;
        }
        if (all && agreeing > 0) { return formula.name; }
    }
    return std::nullopt;
}

// "rows 0 to 4", "rows 32, 33, ... 36 in all"
std::string some(const char* what, const std::vector<bool>& these) {
    std::vector<size_t> at;
    for (size_t i = 0; i < these.size(); i++) {
        if (these[i]) { at.push_back(i); }
    }
    if (at.size() == these.size()) { return fmt::format("all {}s", what); }
    if (at.size() == 1) { return fmt::format("{} {}", what, at[0]); }
    if (at.back() - at[0] + 1 == at.size()) { return fmt::format("{}s {} to {} of {}", what, at[0], at.back(), these.size()); }
    return fmt::format("{} of {} {}s, the first {} and {}", at.size(), these.size(), what, at[0], at[1]);
}

void report_unwritten(const Outcome& made) {
    for (size_t o = 0; o < made.p.out.size(); o++) {
        const Output& out = made.p.out[o];
        std::vector<bool> rows(out.rows), cols(out.cols);
        int64_t missing = 0;
        for (int64_t i = 0; i < out.rows * out.cols; i++) {
            if (made.written[o][i]) { continue; }
            rows[i / out.cols] = cols[i % out.cols] = true;
            missing++;
        }
        if (missing == 0) { continue; }
        const char* unit = out.extent == Extent::kColumns ? "column" : "row";
        std::string where = some(unit, rows) + (out.cols > 1 ? ", " + some("column", cols) : "");
        report({Kind::kUnwritten, fmt::format("{} is not written: {} ({} of {} elements), with {}", out.name, where, missing, out.rows * out.cols,
                                              case_name(made.of))});
        return;
    }
}

std::string where_wrong(const Outcome& made) {
    for (size_t o = 0; o < made.p.out.size(); o++) {
        const Output& out = made.p.out[o];
        if (made.verdicts[o].ok()) { continue; }
        std::vector<bool> rows(out.rows), cols(out.cols);
        int64_t first = -1;
        for (int64_t i = 0; i < out.rows * out.cols; i++) {
            double bound = out.bound(any_order(made.p), i / out.cols, i % out.cols);
            if (error_ratio(made.found[o][i], (*out.truth)[i], bound) <= 1) { continue; }
            if (first < 0) { first = i; }
            rows[i / out.cols] = cols[i % out.cols] = true;
        }
        const char* unit = out.extent == Extent::kColumns ? "column" : "row";
        return fmt::format("{} is wrong in {}{}. At {} {}{}: expected {:.7g}, found {:.7g}, of which rounding explains {:.2g} at most. "
                           "With {}",
                           out.name, some(unit, rows), out.cols > 1 ? ", " + some("column", cols) : "", unit, first / out.cols,
                           out.cols > 1 ? fmt::format(", column {}", first % out.cols) : "", (*out.truth)[first], made.found[o][first],
                           out.bound(any_order(made.p), first / out.cols, first % out.cols), case_name(made.of));
    }
    return "";
}

// What is right with some inputs and wrong with others says where to look.
std::string by_inputs(const std::vector<Outcome>& all) {
    std::map<Dtype, int> wrong, tried;
    std::map<Inputs, int> wrong_inputs;
    double worst = 0;
    for (const Outcome& made : all) {
        tried[made.of.dtype]++;
        if (made.ok()) { continue; }
        wrong[made.of.dtype]++;
        wrong_inputs[made.of.inputs]++;
        for (const Verdict& v : made.verdicts) { worst = std::max(worst, v.worst); }
    }
    constexpr double kMoreBits = 1 << 17;  // how much more numbers of bf16 may err than those of fp32
    if (tried[kFp32] > 0 && wrong[kFp32] == 0 && worst < kMoreBits) {
        return "mistake: a sum, or a number on its way, is held in T: all is right in fp32, and in bf16 the errors are those of "
               "rounding to bf16. Acc is the type of what is summed. ";
    }
    if (wrong_inputs.size() == 1 && wrong_inputs.count(Inputs::kOffset) > 0) {
        return "mistake: digits are lost where the mean is many deviations away from zero: the squares are not about the mean "
               "(E[x^2] - E[x]^2), or the sums are of x and not of x - x[0]. ";
    }
    if (wrong_inputs.size() == 1 && wrong_inputs.count(Inputs::kOutlier) > 0) {
        return "mistake: expf overflows where scores are large: take the row's largest score off before. ";
    }
    return "";
}

void report_results(const Exercise& e, const std::vector<Outcome>& all) {
    std::vector<Outcome> wrong;
    for (const Outcome& made : all) {
        if (!made.ok()) { wrong.push_back(made); }
    }
    if (wrong.empty()) { return; }
    bool unwritten = false;
    for (const Outcome& made : wrong) {
        for (const std::vector<bool>& w : made.written) {
            unwritten = unwritten || std::find(w.begin(), w.end(), false) != w.end();
        }
        if (unwritten) {
            report_unwritten(made);
            return;
        }
    }
    std::optional<std::string> name = name_of(e.name, wrong);
    std::string mistake = name ? "mistake: " + *name + ". " : by_inputs(all);
    report({Kind::kResult, mistake + where_wrong(wrong[0])});
}

void report_traffic(const Exercise& e) {
    std::string asked;
    for (const Tensor& t : tensors()) {
        double times = (double)(t.fetched + t.stored) / (double)t.bytes();
        asked += fmt::format("{}{} {:.2f}", asked.empty() ? "" : ", ", t.name, times);
        for (const Limit& limit : e.limits) {
            if (t.name == limit.tensor && times > limit.times) {
                report({Kind::kTraffic, fmt::format("too many bytes: warps ask for {} {:.2f} times, in sectors of 32 bytes; {:.2f} times "
                                                    "suffice. Neighbouring lanes should take neighbouring elements, and what is "
                                                    "held in registers need not be asked for again",
                                                    t.name, times, limit.times)});
                return;
            }
        }
    }
    report_note(fmt::format("bytes asked for, in sectors of 32, each tensor's times its own: {}", asked));
}

[[noreturn]] void grade_here(const Exercise& e) {
    rlimit memory{kMostMemory, kMostMemory}, file{kMostFile, kMostFile}, processes{kSeconds + 5, kSeconds + 5};
    setrlimit(RLIMIT_AS, &memory);
    setrlimit(RLIMIT_FSIZE, &file);
    setrlimit(RLIMIT_CPU, &processes);
    start_watching();
    limit_time(kSeconds, report);
    std::vector<Outcome> all;
    std::string traffic;
    for (const Case& c : e.cases) {
        all.push_back(run(e.name, c));
        if (!findings().empty()) { break; }
        if (all.size() == 1 && all[0].ok()) { report_traffic(e); }
    }
    for (const Finding& f : findings()) { report({f.kind, f.text + ". With " + case_name(all.back().of)}); }
    report_results(e, all);
    report_note(fmt::format("cases: {}", all.size()));
    _exit(0);
}

// ---- in the process that waits

// "exercises/x.cuh:41" of the reader's file, if the address is of a line there
std::string line_at(const std::string& address) {
    std::string line, first, command = fmt::format("addr2line -i -e /proc/{}/exe 0x{} 2>/dev/null", getpid(), address);
    std::array<char, 1024> text{};
    FILE* pipe = popen(command.c_str(), "r");
    while (pipe != nullptr && std::fgets(text.data(), text.size(), pipe) != nullptr) {
        line = text.data();
        line = line.substr(0, line.find_first_of(" \n"));
        if (size_t slash = line.rfind('/'); slash != std::string::npos) { line = line.substr(slash + 1); }
        if (first.empty()) { first = line; }
        if (line.find("_v") != std::string::npos) { first = line; }  // the outermost that is his
    }
    if (pipe != nullptr) { pclose(pipe); }
    return first.empty() ? "?" : first;
}
std::string with_lines(std::string text) {
    for (size_t at; (at = text.find("{line:")) != std::string::npos;) {
        size_t end = text.find('}', at);
        text.replace(at, end + 1 - at, line_at(text.substr(at + 6, end - at - 6)));
    }
    return text;
}

int verdict(const Exercise& e, const std::string& said, int status) {
    std::map<Kind, std::string> first;
    std::string notes;
    size_t at = 0;
    for (size_t end; (end = said.find('\n', at)) != std::string::npos; at = end + 1) {
        std::string line = said.substr(at, end - at);
        auto kind = (Kind)std::atoi(line.c_str());
        std::string text = line.substr(line.find(' ') + 1);
        if (kind == Kind::kNote) {
            notes += "  " + text + "\n";
        } else {
            first.emplace(kind, with_lines(text));
        }
    }
    if (first.empty() && (!WIFEXITED(status) || notes.find("cases:") == std::string::npos)) {
        std::string how = WIFSIGNALED(status) ? fmt::format("signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)))
                                              : fmt::format("exit status {}", WEXITSTATUS(status));
        first.emplace(Kind::kFailure, "the process of the kernel ended: " + how);
    }
    for (const auto& [kind, text] : first) { fmt::print("{} [{}]: {}\n", e.name, kKindNames[(int)kind], text); }
    if (!first.empty()) { return 1; }
    fmt::print("{}: passed.\n{}", e.name, notes);
    if (*e.next != 0) { fmt::print("  next: make exercise-{}\n", e.next); }
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    std::string_view name = argc > 1 ? argv[1] : "";
    for (const Exercise& e : exercises()) {
        if (e.name != name) { continue; }
        int ends[2];
        if (pipe(ends) != 0) { return 2; }
        pid_t child = fork();
        if (child == 0) {
            close(ends[0]);
            report_to = ends[1];
            grade_here(e);
        }
        close(ends[1]);
        std::string said;
        std::array<char, 4096> buffer{};
        for (ssize_t n; (n = read(ends[0], buffer.data(), buffer.size())) > 0;) { said.append(buffer.data(), n); }
        int status = 0;
        waitpid(child, &status, 0);
        return verdict(e, said, status);
    }
    fmt::print(stderr, "grade: no exercise {}: doc/exercises.md lists them\n", name);
    return 2;
}

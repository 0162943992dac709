// The launchers of LayerNorm launch what choose.h chooses, of each class of calls. The machine runs nothing of it.
#include <cxxabi.h>
#include <dlfcn.h>

#include <cstdlib>
#include <map>
#include <regex>
#include <unordered_map>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include "dev/emulate/machine.h"
#include "dev/test/gpu/layernorm_choices.h"
#include "llmc/layernorm/layernorm.h"

using namespace llmc;
using namespace llmc::choices;

namespace {

std::string demangled(const std::string& name) {
    const std::unique_ptr<char, decltype(&std::free)> text(
        abi::__cxa_demangle(name.c_str(), nullptr, nullptr, nullptr), &std::free);
    return text != nullptr ? text.get() : name;
}

// kernel and layout, by the name of a kernel or of the function that launches it
std::string choice_of(const std::string& name) {
    struct Form {
        const char *pattern, *text;
    };
    static const Form forms[] = {
        {"kShortForward\\)?, (\\d+), (\\d+)", "short_rows.$1 in $2"},
        {"kShortForwardPieces\\)?, (\\d+), (\\d+)", "short_rows.pieces.$1 in $2"},
        {"Alone<.*kRowInRegisters(\\d+)\\)?, (\\d+)", "row_in_registers.$2 spread"},
        {"Any<.*kRowInRegisters(\\d+)\\)?, (\\d+)", "row_in_registers.$2"},
        {"kRowInRegisters(\\d+)\\)?, (\\d+)", "row_in_registers.$2"},
        {"kUnalignedForward\\)?, (\\d+)", "unaligned_rows.$1"},
        {"short_rows_backward::.*Layout<(\\d+), (\\d+), (\\w+)>", "short_rows.lanes $1 in $2"},
        {"TeamRing\\{(\\d+), (\\d+), (\\d+), (\\d+), (\\d+), (\\d+)", "team_ring.$1,$2,$3,$4,$5,$6"},
        {"unaligned_rows_backward::layernorm_backward_kernel<(\\d+), (\\d+), (\\d+)",
         "unaligned_rows.$1,$2,$3"},
        {"cp_async_teams\\d+launchILb\\d+E(\\w).*clILi(\\d+)E", "cp_async_teams.$1.$2"},
        {"LayoutILi(\\d+)ELi(\\d+)ELi(\\d+)ELb(\\d)E", "cp_async_pipelined.$1,$2,$3 $4"},
        {"cp_async_pipelined::Layout<(\\d+), (\\d+), (\\d+), (\\w+)>", "cp_async_pipelined.$1,$2,$3 $4"},
        {"add_residual", "sum"},
        {"(?:fallback_forward|fallback_backward)\\d+launch(?:_two)?ILi(\\d+)E", "fallback.$1"}};
    for (const Form& form : forms) {
        std::smatch found;
        if (!std::regex_search(name, found, std::regex(form.pattern))) { continue; }
        std::string text = found.format(form.text);
        static const std::map<std::string, std::string> teams = {
            {"f.0", "4 1"}, {"f.1", "3 1"}, {"f.2", "2 1"}, {"6.0", "2 1"}, {"6.1", "1 1"}, {"6.2", "3 1"},
            {"6.3", "4 0"}, {"1.0", "2 1"}, {"1.1", "1 1"}, {"1.2", "3 1"}, {"1.3", "4 0"}};
        size_t dot = text.find('.') + 1;
        if (text.starts_with("cp_async_teams") && teams.contains(text.substr(dot))) {
            text = text.substr(0, dot) + teams.at(text.substr(dot));
        }
        if (text.ends_with(" true")) { text.replace(text.size() - 4, 4, "1"); }
        if (text.ends_with(" false")) { text.replace(text.size() - 5, 5, "0"); }
        return text;
    }
    return "? " + name;
}

std::string& launched(const emulation::Launch& launch) {
    static std::unordered_map<const void*, std::string> known;
    const void* key = launch.kernel != nullptr ? launch.kernel : launch.from;
    std::string& text = known[key];
    if (text.empty()) {
        Dl_info info{};
        if (launch.kernel != nullptr) { dladdr(launch.kernel, &info); }
        text = choice_of(demangled(launch.kernel == nullptr ? std::string("_Z") + launch.from
                                   : info.dli_sname         ? info.dli_sname
                                                            : "none"));
    }
    return text;
}

template <typename T, typename W>
void call(const Case& c, int C) {
    auto at = [&](auto* none, int64_t offset) { return (decltype(none))(0x100000000 + offset); };
    int64_t off = c.whole() ? 0 : c.piece * c.bytes;
    T* rows = at((T*)nullptr, off);
    W* weight = at((W*)nullptr, c.aligned_weights               ? 0
                                : sizeof(W) * c.piece % 16 == 0 ? sizeof(W)
                                                                : sizeof(W) * c.piece);
    auto* statistics = at((acc_t<T>*)nullptr, 0);
    if (c.forward()) {
        LayerNormForward<T, W> call{
            .out = rows, .inp = rows, .weight = weight, .bias = weight, .N = c.N, .C = C};
        if (c.op == Op::kResidual) { call.residual = call.out, call.inp2 = rows; }
        layernorm_forward(call, nullptr);
    } else {
        using G = std::conditional_t<std::is_same_v<T, double>, double, float>;
        auto* sums = at((G*)nullptr, 0);
        LayerNormBackward<T, G, W> call{.dinp = rows,
                                        .dweight = sums,
                                        .dbias = sums,
                                        .scratch = sums,
                                        .dout = rows,
                                        .inp = rows,
                                        .weight = weight,
                                        .mean = statistics,
                                        .rstd = statistics,
                                        .N = c.N,
                                        .C = C,
                                        .accumulate_dinp = c.op == Op::kAccumulate};
        layernorm_backward(call, nullptr);
    }
}

// what a call launches first
std::string first_launch(const Case& c, int C, bool half) {
    std::string first;
    emulation::instead_of_launch = [&](const emulation::Launch& launch) {
        if (first.empty()) { first = launched(launch); }
    };
    if (c.bytes == 2) {
        half     ? c.same ? call<__half, __half>(c, C) : call<__half, float>(c, C)
            : c.same ? call<__nv_bfloat16, __nv_bfloat16>(c, C)
                 : call<__nv_bfloat16, float>(c, C);
    } else {
        c.bytes == 4 ? call<float, float>(c, C) : call<double, double>(c, C);
    }
    emulation::instead_of_launch = nullptr;
    return first;
}

// of a run its first and its last row, and some between
std::string wrong_launches(const Case& c, const Run& run, const std::vector<int>& widths) {
    std::string wrong;
    auto at = std::lower_bound(widths.begin(), widths.end(), run.first);
    const auto last = std::lower_bound(widths.begin(), widths.end(), run.last);
    for (const auto step = std::max<int64_t>(1, (last - at) / 12);; at += std::min(step, last - at)) {
        for (bool half : {false, true}) {
            if (half && c.bytes != 2) { continue; }
            const std::string found = first_launch(c, *at, half);
            if (found != run.text) { wrong += fmt::format(" {}{}: {}", half ? "fp16 " : "", *at, found); }
        }
        if (at == last) { return wrong; }
    }
}

}  // namespace

TEST_SUITE("emulated") {
    TEST_CASE("emulated layernorm: launchers launch what is chosen") {
        for (const choices::Gpu& gpu : kGpus) {
            cudaSetDevice(gpu.device);
            for (const Case& c : cases()) {
                const std::vector<int> widths = widths_of(c);
                for (const Run& run : runs_of(gpu, c)) {
                    const std::string wrong = wrong_launches(c, run, widths);
                    CHECK_MESSAGE(wrong == "",
                                  fmt::format("{}: {}: not {} at{}", gpu.name, c.name(), run.text, wrong));
                }
            }
        }
        cudaSetDevice(0);
    }
}

// Tests of the options that only the GPU program takes: what it makes of them, that the CPU program refuses
// them, what each --help says, and what they become for the model.
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "dev/test/support/test_options.h"
#include "llmc/model/run/plan.h"

using namespace llmc;

namespace {

Options parse_gpu(const Args& args) { return parse(args, nullptr, Program::kGpu); }

void check_bad_gpu(const Args& args, std::initializer_list<std::string> parts) {
    check_error(error_of([&] { parse_gpu(args); }), kExitUsage, parts);
}

}  // namespace

TEST_CASE("options of the GPU: defaults, and every value") {
    Options gpu = parse_gpu({}), cpu = parse({});
    CHECK(gpu.program == Program::kGpu);
    CHECK(gpu.dtype == FloatType::kBf16);
    CHECK(gpu.grad_dtype == FloatType::kFp32);
    CHECK(gpu.recompute == Recompute::kNone);
    CHECK(!gpu.tf32);
    CHECK(cpu.program == Program::kCpu);
    CHECK(cpu.dtype == FloatType::kFp32);
    Options as_bf16 = parse_config(config_text(cpu), {"--dtype", "bf16"}, Program::kGpu);
    CHECK(config_text(as_bf16) == config_text(gpu));  // all other defaults are the same
    CHECK(parse_gpu({"--dtype", "auto"}).dtype == FloatType::kBf16);
    CHECK(parse_gpu({"--dtype", "fp32"}).dtype == FloatType::kFp32);
    CHECK(parse_gpu({"--grad-dtype", "bf16"}).grad_dtype == FloatType::kBf16);
    CHECK(parse_gpu({"--recompute", "gelu"}).recompute == Recompute::kGelu);
    CHECK(parse_gpu({"--tf32", "--dtype", "fp32"}).tf32);
    CHECK(parse({"--dtype", "auto"}).dtype == FloatType::kFp32);
    check_bad_gpu({"--dtype", "fp16"}, {"--dtype", "'fp16'", "auto, bf16 or fp32"});
    check_bad_gpu({"--dtype", "fp32", "--grad-dtype", "bf16"}, {"--grad-dtype bf16", "--dtype bf16"});
    check_bad_gpu({"--tf32"}, {"--tf32", "--dtype fp32"});
    check_bad_gpu({"--precision", "bf16"}, {"Did you mean --dtype?"});
}

TEST_CASE("options of the GPU: llm.c's letters") {
    CHECK(parse_gpu({"-r", "0"}).recompute == Recompute::kNone);
    CHECK(parse_gpu({"-r", "1"}).recompute == Recompute::kGelu);
    CHECK(parse_gpu({"-r", "2"}).recompute == Recompute::kBlock);
    CHECK(parse_gpu({"-f", "1", "--dtype", "fp32"}).tf32);
    CHECK(!parse_gpu({"-f", "0"}).tf32);
    CHECK(config_text(parse_gpu({"-w", "1"})) == config_text(parse_gpu({})));
    check_bad_gpu({"-r", "3"}, {"-r (--recompute)", "'3'", "0 (none), 1 (gelu) or 2 (block)"});
    check_bad_gpu({"-f", "2"}, {"-f (--tf32)", "'2'", "0 (false) or 1 (true)"});
    check_bad_gpu({"-r", "1", "--recompute", "gelu"}, {"--recompute", "twice"});
    check_bad_gpu({"-w", "0"}, {"-w", "Only -w 1", "They are kept"});
}

TEST_CASE("options of the GPU: the CPU program refuses them") {
    const Args refused[] = {{"--dtype", "bf16"},
                            {"--grad-dtype", "bf16"},
                            {"--recompute", "gelu"},
                            {"--recompute", "block"},
                            {"--tf32"},
                            {"--graph", "0"},
                            {"-r", "1"},
                            {"-r", "2"},
                            {"-f", "1"}};
    for (const Args& args : refused) {
        CAPTURE(args[0]);
        std::string name = args[0] == "-r" ? "--recompute" : args[0] == "-f" ? "--tf32" : args[0];
        check_error(error_of([&] { parse(args); }), kExitUsage,
                    {name, "needs the GPU program: make train_gpt2cu"});
    }
    // a run's configuration is not passed on to the other program unseen
    std::string resolved = config_text(parse_gpu({}));
    check_error(error_of([&] { parse_config(resolved); }), kExitUsage, {"--dtype bf16", "make train_gpt2cu"});
    CHECK(config_text(parse({"--dtype", "fp32", "--grad-dtype", "fp32", "--recompute", "none",
                             "--tf32=false"})) == config_text(parse({})));
}

TEST_CASE("options of the GPU: resolved is what --config reads back") {
    const Args lines[] = {{},
                          {"--dtype", "fp32", "--tf32", "--recompute", "block"},
                          {"--grad-dtype", "bf16", "-r", "1", "--keep", "2", "--model-dtype", "bf16"}};
    for (const Args& args : lines) {
        Options first = parse_gpu(args), again = parse_config(config_text(first), {}, Program::kGpu);
        CHECK(config_text(again) == config_text(first));
        CHECK(again.dtype == first.dtype);
        CHECK(again.grad_dtype == first.grad_dtype);
        CHECK(again.recompute == first.recompute);
        CHECK(again.tf32 == first.tf32);
        CHECK(again.keep == first.keep);
        CHECK(again.model_dtype == first.model_dtype);
    }
}

TEST_CASE("options of the GPU: each program's --help says what it takes") {
    int code = -2;
    std::string gpu = printed({"--help"}, &code, Program::kGpu), cpu = printed({"--help"}, &code);
    CHECK(code == kExitDone);
    CHECK(gpu == format_help("./train_gpt2cu", Program::kGpu));
    CHECK(contains(gpu, "Usage: ./train_gpt2cu "));
    CHECK(contains(gpu, "here on an NVIDIA GPU"));
    CHECK(contains(gpu, "[default auto; auto, bf16 or fp32]"));
    CHECK(contains(gpu, "[default none; none, gelu or block]"));
    CHECK(!contains(gpu, "in train_gpt2cu"));
    CHECK(contains(cpu, "here on the CPU"));
    CHECK(contains(cpu, "[only fp32 here; auto, bf16 or fp32 in train_gpt2cu]"));
    CHECK(contains(cpu, "[only none here; none, gelu or block in train_gpt2cu]"));
    CHECK(contains(cpu, "[in train_gpt2cu only]"));
    for (const std::string& help : {gpu, cpu}) {
        for (size_t at = 0; at < help.size(); at = help.find('\n', at) + 1) {
            std::string line = help.substr(at, help.find('\n', at) - at);
            CHECK_MESSAGE(line.size() <= 100, line);
        }
    }
}

TEST_CASE("options of the GPU: what the model is built with") {
    CHECK(model_settings(parse({})).recompute == Recompute::kNone);
    CHECK(!model_settings(parse({})).tf32);
    CHECK(model_settings(parse_gpu({"-r", "1"})).recompute == Recompute::kGelu);
    CHECK(model_settings(parse_gpu({"-r", "2"})).recompute == Recompute::kBlock);
    CHECK(model_settings(parse_gpu({"--dtype", "fp32", "--tf32"})).tf32);
    CHECK(model_settings(parse_gpu({})).graph);
    CHECK(!model_settings(parse_gpu({"--graph", "0"})).graph);
}

// bytes: of gradients so many a layer, of activations 16, 8 or 1 for each row of each layer
template <int kGradients>
MemoryPlan plan_of(const GPT2Config& c, int B, int, const ModelSettings& s) {
    const int64_t row = s.recompute == Recompute::kBlock ? 1 : s.recompute == Recompute::kGelu ? 8 : 16;
    return {.parameters = c.num_layers * (row * B + kGradients)};
}

TEST_CASE("plan: what would fit in the GPU's memory") {
    const GPT2Config d12{1024, 257, 320, 12, 12, 768};
    const Models models = [](const Options& options) -> ModelFactory {
        return {.plan = options.grad_dtype == FloatType::kBf16 ? plan_of<100> : plan_of<200>};
    };
    auto says = [&](int64_t available, const Args& args) {
        Options o = parse_gpu(args);
        MemoryPlan plan = models(o).plan(d12, o.batch, o.seq_len, model_settings(o));
        plan.available = available;
        return error_of([&] { require_memory(plan, o, models, d12); });
    };
    auto cure = [&](int64_t available, const Args& args) {
        std::string text = says(available, args).what();
        return text.substr(text.find("is available. ") + 14);
    };
    CHECK(says(12 * (16 * 64 + 200), {"-b", "64"}).exit_code == kExitDone);
    CHECK(says(12 * (16 * 64 + 200) - 1, {"-b", "64"}).exit_code == kExitDevice);
    CHECK(cure(12 * (16 * 64 + 200) - 1, {"-b", "64"}) == "--recompute gelu would fit.");
    CHECK(cure(12 * (8 * 64 + 200) - 1, {"-b", "64"}) == "--recompute block would fit.");
    CHECK(cure(12 * (8 * 64 + 200) - 1, {"-b", "64", "-r", "1"}) == "--recompute block would fit.");
    CHECK(cure(12 * (64 + 200) - 1, {"-b", "64"}) == "--recompute block --grad-dtype bf16 would fit.");
    CHECK(cure(12 * (64 + 200) - 1, {"-b", "64", "-r", "2"}) == "--grad-dtype bf16 would fit.");
    CHECK(cure(12 * (64 + 200) - 1, {"-b", "64", "--dtype", "fp32"}) == "--batch 2 would fit.");
    // 2 rows would fit, but do not divide --total-batch
    CHECK(cure(12 * 203, {"-b", "5", "-d", "1280", "-r", "2", "--dtype", "fp32"}) == "--batch 1 would fit.");
    CHECK(cure(12 * 102 + 11, {"-b", "64"}) == "--recompute block --grad-dtype bf16 --batch 2 would fit.");
    CHECK(cure(12 * 101 - 1, {"-b", "64"}) ==
          "No batch size fits; --model d11 --recompute block --grad-dtype bf16 --batch 1 would.");
    CHECK(cure(100, {"-b", "64"}) == "No model with a vocabulary of 257 fits, whatever its size.");
}

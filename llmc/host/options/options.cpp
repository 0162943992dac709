// What the trainers' options become: the command line, the config file and the run that goes on, and what must fit together.
#include "llmc/host/options/options.h"

#include <glob.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include "llmc/host/base/error.h"
#include "llmc/host/base/text.h"
#include "llmc/host/files/file_io.h"
#include "llmc/host/options/launchers.h"
#include "llmc/host/options/table.h"
#include "llmc/host/options/typed_text.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxConfigBytes = 1 << 20;
// where llm.c has its questions
constexpr const char* kLlmcHellaSwag = "dev/data/hellaswag/hellaswag_val.bin";

std::string version_text() {
    std::string compiler = __VERSION__;  // GCC's is only a number
    if (std::isdigit((unsigned char)compiler[0])) { compiler = "GCC " + compiler; }
#ifdef _OPENMP
    std::string openmp = fmt::format("OpenMP {}", _OPENMP);
#else
    std::string openmp = "without OpenMP: the CPU program uses one core";
#endif
    return fmt::format("plumb {}\ncompiler: {}, C++{}\nbuild: {}\n", kVersion, compiler,
                       __cplusplus / 100 % 100, openmp);
}

// ---- the config file

std::string config_file_text(const std::string& path) {
    std::error_code ignored;
    if (fs::is_directory(path, ignored)) {
        fail_usage("--config " + in_quotes(path) +
                   " is a folder. Expected a file of options, such as its config.toml.");
    }
    std::ifstream in(path, std::ios::binary);  // which may be a pipe
    if (!in) {
        fail_usage("--config " + in_quotes(path) + " cannot be read: no such file, or no permission.");
    }
    std::string text(kMaxConfigBytes, '\0');
    in.read(text.data(), (std::streamsize)text.size());
    text.resize((size_t)in.gcount());
    if (in.bad() || text.size() >= kMaxConfigBytes) {
        fail_usage("--config " + in_quotes(path) + " is over 1 MiB: not a config file.");
    }
    return text;
}

// A run goes on (--resume auto --out RUN) with the options that it had, but for those that are given: its config.toml; "" if
// it has none. Where it has no checkpoint yet, only if no others are given: what was worked out for it may not fit these. Not
// in a rank that something else has started: others of its job may run where they do not see the folder.
std::string config_of_run(const ParsedOptions& s, const std::set<std::string>& given) {
    const std::string own = s.out + "/config.toml";
    std::error_code ignored;
    const bool goes_on = s.resume == "auto" && !s.out.empty() && s.config.empty() &&
                         fs::exists(s.out + "/log.jsonl", ignored) && file_kind(own) != FileKind::kMissing;
    const bool by_others = given.contains("world-size") ||
                           has_launcher([](const char* name) { return (const char*)std::getenv(name); });
    if (!goes_on || by_others) { return ""; }
    const std::vector<std::string> names = folder_names(s.out).value_or(std::vector<std::string>());
    const bool saved =
        std::ranges::any_of(names, [](const std::string& name) { return name.starts_with("step_"); });
    const std::set<std::string> alone = {"resume", "out", "dry-run", "quiet"};
    const auto plain = [&](const std::string& name) {  // llm.c's options without a long name change nothing
        return alone.contains(name) || name.starts_with('-');
    };
    if (!saved && !std::ranges::all_of(given, plain)) { return ""; }
    // nobody may ever write to a pipe
    if (file_kind(own) != FileKind::kFile) { throw Error(kExitBadInput, own + ": not a regular file"); }
    return own;
}

// The folder of the run may come from elsewhere: what its config.toml asks for beyond the folder and this machine must
// stand on the command line, too.
void require_harmless(const std::string& config, const Option& o, const std::string& value) {
    std::error_code ignored;
    const auto place = [&](const std::string& path) {
        return fs::weakly_canonical(fs::absolute(path, ignored), ignored);
    };
    const fs::path inside = place(value).lexically_relative(place(config).parent_path());
    const bool outside = value != o.empty_word && (inside.empty() || *inside.begin() == "..");
    const bool writes = o.name == "export-hf" || o.name == "profile" ||
                        (o.name == "tune-gemm" && !fs::exists(value, ignored));
    const bool crowds = o.name == "ranks" && std::stoull(value) > 8 * std::thread::hardware_concurrency();
    const bool of_others =
        o.name == "master" || o.name == "world-size" || o.name == "rank" || o.name == "ranks-per-host";
    if (!(writes && outside) && !crowds && !of_others) { return; }
    fail_usage(config + ": " + o.name + " = " + in_quotes(value) +
               ": a run's own file may not ask for what is written outside of its folder, for more "
               "than 8 processes a processor, nor for other hosts. If you want it, add --" +
               o.name + " " + shell_word(value) + "; if not, remove this line.");
}

// A run folder that was renamed or copied has a config.toml that names the old place, where the run would go on.
void require_own_folder(const std::string& config, const std::string& out) {
    std::string folder = fs::path(config).parent_path().string();
    if (folder.empty()) { folder = "."; }
    std::error_code ignored;
    if (out.empty() || !fs::exists(folder + "/log.jsonl", ignored) || fs::equivalent(folder, out, ignored)) {
        return;
    }
    fail_usage("--config " + in_quotes(config) + " lies in a run's folder, but its out is " + in_quotes(out) +
               ": was the folder renamed or copied? Give --out " + shell_word(folder) + " to go on there.");
}

// What the config file says goes into the fields, but where the command line says something else.
void take_config(ParsedOptions* s, const Table& table, std::set<std::string>* given) {
    const std::string of_run = config_of_run(*s, *given);
    if (!of_run.empty()) { s->config = of_run; }
    if (s->config.empty()) { return; }
    ParsedOptions scratch;
    const std::string file = "--config " + in_quotes(s->config);
    const std::set<std::string> typed = *given;
    for (const auto& [name, value] :
         read_config(config_file_text(s->config), file, trainer_table(&scratch), typed)) {
        const Option& o = *table.find("--" + name);
        if (typed.contains(name)) { continue; }
        // a run that a GPU began goes on here as this program can, and there again as it was
        if (!of_run.empty() && s->program == Program::kCpu && (!o.cpu_only.empty() || name == "gpus")) {
            if (value != o.cpu_only && value != o.empty_word) { s->for_gpu.push_back({name, value}); }
            continue;
        }
        if (!of_run.empty()) { require_harmless(s->config, o, value); }
        table.assign(o, value, name);
        given->insert(name);
    }
    if (s->resume != "none" && !typed.contains("out")) { require_own_folder(s->config, s->out); }
}

// The validation data of own training data, if none is named: the files that are called the same, but for "val" in place of
// "train"; "" if there are none. Never the sample's, which is another text.
std::string validation_beside(const std::string& train_data) {
    const size_t at = train_data.rfind("train");
    if (at == std::string::npos || train_data.find('/', at) != std::string::npos) { return ""; }
    const std::string pattern = std::string(train_data).replace(at, 5, "val");
    glob_t found = {};
    const bool there = glob(pattern.c_str(), GLOB_TILDE, nullptr, &found) == 0;
    globfree(&found);
    return there ? pattern : "";
}

// ---- what must fit together

long long tokens(const ParsedOptions& s) { return (long long)s.batch * s.seq_len; }  // of one micro-batch

void check_model(ParsedOptions& s, const Table&) {
    if (s.layers || s.heads || s.channels) {
        if (!s.layers || !s.heads || !s.channels) {
            fail_usage(fmt::format("--layers, --heads and --channels go together: --{} is missing.",
                                   !s.layers  ? "layers"
                                   : !s.heads ? "heads"
                                              : "channels"));
        }
        if (s.channels % s.heads) {
            int low = s.channels / s.heads * s.heads;
            std::string nearest = (low ? std::to_string(low) + " or " : "") + std::to_string(low + s.heads);
            fail_usage(fmt::format("--channels {} is not a multiple of --heads {}. Nearest: --channels {}.",
                                   s.channels, s.heads, nearest));
        }
        return;
    }
    ModelShape shape;
    if (s.model == kAutoModel || model_descriptor(s.model, &shape)) {
        if (s.model.starts_with(kGpt3Prefix) && s.max_seq_len == 0) { s.max_seq_len = 2048; }
        return;
    }
    std::error_code ignored;
    // a run that goes on has its weights in a checkpoint: the folder that they came from may be gone
    const bool goes_on =
        s.resume != "none" && (s.resume != "auto" || fs::exists(s.out + "/log.jsonl", ignored));
    if (!goes_on && !s.model.ends_with(".bin") && !s.model.ends_with(".safetensors") &&
        !fs::is_directory(s.model, ignored)) {
        fail_usage(
            "--model " + in_quotes(s.model) +
            " is not known. Expected dN with N = 1 to 1024 layers (d12 is GPT-2 124M), gpt3:cN with N = 384, "
            "768, 1024, 1536, 2048, 2560, 4096 or 12288 channels, a file *.bin or *.safetensors, or a "
            "folder: of a run, a checkpoint, or Hugging Face's GPT-2 (one that is only on their hub must be "
            "downloaded first). Other shapes: --layers, --heads and --channels.");
    }
    if (s.max_seq_len) {
        fail_usage("--max-seq-len is for a new model; the one that --model names has its own.");
    }
}

void check_batch(ParsedOptions& s, const Table&) {
    if (s.max_seq_len && s.max_seq_len < s.seq_len) {
        fail_usage(fmt::format("--max-seq-len {} is less than --seq-len {}.", s.max_seq_len, s.seq_len));
    }
    if (s.total_batch % tokens(s)) {
        long long low = s.total_batch / tokens(s) * tokens(s);
        std::string nearest = (low ? std::to_string(low) + " or " : "") + std::to_string(low + tokens(s));
        fail_usage(
            fmt::format("--total-batch {} is not a multiple of batch x seq-len = {} x {} = {} tokens. "
                        "Nearest: --total-batch {}.",
                        s.total_batch, s.batch, s.seq_len, tokens(s), nearest));
    }
}

// dtype auto becomes a type; what only a GPU can do stays in its program
void check_precision(ParsedOptions& s, const Table& table) {
    bool gpu = s.program == Program::kGpu;
    if (s.dtype == FloatType::kAuto) { s.dtype = gpu ? FloatType::kBf16 : FloatType::kFp32; }
    for (const Option& o : table.options) {
        const std::string value = value_text(o);
        if (gpu || o.cpu_only.empty() || value == o.cpu_only) { continue; }
        fail_usage("--" + o.name + (is_switch(o) ? "" : " " + value) +
                   " needs the GPU program: make train_gpt2cu. This one, on the CPU, computes in fp32 and "
                   "keeps all activations.");
    }
    if (s.grad_dtype == FloatType::kBf16 && s.dtype == FloatType::kFp32) {
        fail_usage("--grad-dtype bf16 is for --dtype bf16; with fp32 the gradients are fp32. Leave one out.");
    }
    if (s.tf32 && s.dtype == FloatType::kBf16) {
        fail_usage(
            "--tf32 is about the products of fp32, and the type is bf16 (the default on a GPU). Add "
            "--dtype fp32, or leave --tf32 out.");
    }
}

// --val-batches becomes --val-tokens
void check_validation(ParsedOptions& s, const Table&) {
    if (s.keep_best && s.val_data.empty()) {
        fail_usage("--keep-best is about the validation loss: it needs --val-data.");
    }
    if (s.val_batches > (long long)kMaxTokens / tokens(s)) {
        fail_usage(fmt::format("--val-batches {}, each of {} tokens: over 10^15 tokens. -1 = all.",
                               s.val_batches, tokens(s)));
    }
    if (s.val_batches) { s.val_tokens = s.val_batches < 0 ? -1 : s.val_batches * tokens(s); }
    s.val_batches = 0;
}

// for llm.c's -h 1, where no other file was named
void find_hellaswag(ParsedOptions& s) {
    std::error_code ignored;
    if (fs::exists(kLlmcHellaSwag, ignored)) {
        s.hellaswag = kLlmcHellaSwag;
    } else {
        s.notes += fmt::format(
            "-h 1: {} is not there, so no questions are asked. data/make_hellaswag makes such a "
            "file; --hellaswag FILE names another.\n",
            kLlmcHellaSwag);
    }
}

// all that is wrong with a command line, in one error; nothing if there is nothing
void object(const std::vector<std::string>& objections) {
    std::string all;
    for (const std::string& one : objections) { all += (all.empty() ? "" : "\n") + one; }
    if (!all.empty()) { fail_usage(all); }
}

}  // namespace

bool model_descriptor(const std::string& text, ModelShape* shape) {
    constexpr ModelShape kGpt2[] = {{6, 6, 384},    {12, 12, 768},  {24, 16, 1024}, {36, 20, 1280},
                                    {48, 25, 1600}, {60, 30, 1920}, {72, 30, 2880}, {84, 36, 3456}};
    // none of 5140 channels, which heads of 128 do not divide
    constexpr ModelShape kGpt3[] = {{6, 6, 384},    {12, 12, 768},  {24, 16, 1024}, {24, 16, 1536},
                                    {24, 16, 2048}, {32, 32, 2560}, {32, 32, 4096}, {96, 96, 12288}};
    const bool gpt3 = text.starts_with(kGpt3Prefix);
    const size_t start = gpt3 || text.starts_with("gpt2:d") ? 6 : text.starts_with("d") ? 1 : text.size();
    int n = 0;
    const auto [end, code] = std::from_chars(text.data() + start, text.data() + text.size(), n);
    if (code != std::errc() || end != text.data() + text.size() || text[start] == '0') { return false; }
    const auto* known = gpt3 ? std::ranges::find(kGpt3, n, &ModelShape::channels)
                             : std::ranges::find(kGpt2, n, &ModelShape::layers);
    const bool in_table = known != (gpt3 ? std::end(kGpt3) : std::end(kGpt2));
    if (!in_table && (gpt3 || n < 1 || n > 1024)) { return false; }
    *shape = in_table ? *known : ModelShape{n, n, 64 * n};
    return true;
}

std::string format_help(const std::string& name, Program program) {
    ParsedOptions s;
    s.program = program;
    Table table = trainer_table(&s);
    table.program = name;
    return table.help();
}

Options parse_options(int argc, const char* const* argv, Program program, int* exit_code_out) {
    ParsedOptions s;
    s.program = program;
    const Table table = trainer_table(&s);
    CommandLine line(table, argc, argv);
    if (!line.only_unnamed || !line.action.empty()) { object(line.objections); }
    *exit_code_out = line.action.empty() ? -1 : kExitDone;
    if (!line.action.empty()) {
        const std::string name = argc > 0 ? argv[0] : table.program;
        std::fputs((line.action == "help" ? format_help(name, program) : version_text()).c_str(), stdout);
        require_printed();
        return s;
    }
    take_config(&s, table, &line.given);
    if (line.given.contains("train-data") && !line.given.contains("val-data")) {
        s.val_data = validation_beside(s.train_data);
    }
    for (auto check : {check_model, check_batch, check_precision, check_validation}) {
        try {
            check(s, table);
        } catch (const Error& e) { line.objections.push_back(e.what()); }
    }
    object(line.objections);
    for (const auto& [name, value] : s.for_gpu) {
        s.notes += name + " = " + value + ": not on the CPU; config.toml keeps it for a GPU\n";
    }
    if (s.ask_hellaswag && s.hellaswag.empty()) { find_hellaswag(s); }
    s.llmc_letters = line.short_names;
    return s;
}

std::string config_text(const Options& options, bool own) {
    ParsedOptions s;
    static_cast<Options&>(s) = options;
    const Table table = trainer_table(&s);
    for (const auto& [name, value] : options.for_gpu) {
        if (own) { table.assign(*table.find("--" + name), value, name); }
    }
    const Options defaults;  // which of the processes this one was is not of the run
    s.world_size = defaults.world_size;
    s.rank = defaults.rank;
    s.ranks_per_host = defaults.ranks_per_host;
    s.master = defaults.master;
    s.new_data = false;  // a word for one start
    if (s.layers > 0) { s.model.clear(); }
    return fmt::format("# plumb {}: the options of a run. --config reads them back.\n", kVersion) +
           write_config(table);
}

bool fill_from_run(const std::string& config_path, Options* options) {
    const std::optional<std::string> text = read_whole(config_path, kMaxConfigBytes);
    if (!text) { return false; }
    ParsedOptions s, scratch;
    static_cast<Options&>(s) = *options;
    const Table table = trainer_table(&s);
    const bool length_given = options->steps != kAuto || options->epochs > 0 || options->minutes > 0;
    const std::set<std::string> lengths = {"steps", "epochs", "minutes"};
    const std::set<std::string> others = {"lr",        "warmup",       "final-lr-fraction",
                                          "val-every", "sample-every", "reduce-groups"};
    const std::string file = "--config " + in_quotes(config_path);
    for (const auto& [name, value] : read_config(*text, file, trainer_table(&scratch), {})) {
        const Option& o = *table.find("--" + name);
        const bool open =
            lengths.contains(name) ? !length_given : others.contains(name) && value_text(o).empty();
        if (open) { table.assign(o, value, name); }
    }
    *options = s;
    return true;
}

}  // namespace llmc

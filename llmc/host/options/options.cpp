// The option parser: CLI11 holds the options, decides between flag and config file, and lays out --help. What
// it is handed is read and checked first, by options_input.cpp, because CLI11 (2.1.2) would read llm.c's
// -lg 5 as -l g5, take a missing value from what follows, and not mind a key that a config file has twice.
#include "llmc/host/options/options.h"

#include <glob.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <thread>

#include "llmc/host/base/error.h"
#include "llmc/host/files/file_io.h"
#include "llmc/host/options/options_input.h"
#include "llmc/host/options/parse_words.h"

namespace llmc {
namespace {

constexpr char kHardBlank = '\x1f';  // in a help text: no line ends here
constexpr size_t kHelpColumns = 100, kHelpIndent = 31;
constexpr size_t kMaxConfigBytes = 1 << 20;

constexpr const char* kHelpEnd = R"(
Sub-commands, each with a --help of its own:
  PROGRAM generate MODEL --prompt TEXT    write with a trained model
  PROGRAM export MODEL --hf FOLDER        for Hugging Face's transformers
  PROGRAM eval MODEL --data GLOB          loss, perplexity and bits a byte on token shards
  PROGRAM report RUN RUN...               the curves of runs on one page for a browser

Examples:
  PROGRAM
      a small model on the sample data
  PROGRAM --dry-run --model d12 --batch 8 --seq-len 1024 --train-data 'data/web_train_*.bin'
      what would GPT-2 124M need? (the data say how many tokens there are)
  PROGRAM -i 'data/web_train_*.bin' -j data/web_val.bin -e d12 \
      -b 16 -t 1024 -d 524288 -l 6e-4 -u 700 -q 0 -c 0.1 -n 5000 -o runs/web -y 1
      GPT-2 124M, by llm.c's short names; the same line again goes on where it stopped
  PROGRAM --config web.toml --lr 3e-4
      options from a file, but another learning rate

A config file is TOML: one option in a line, by its long name, texts in quotes: batch = 8,
model = "d12", quiet = true. # starts a comment.
llm.c's options that are not above are accepted where they ask for nothing new, else refused.

Exit codes:
  0   done                                  5   the loss diverged
  2   bad option or value                   6   another rank was lost, or took too long
  3   input file missing or damaged         7   not all could be written
  4   no device, or not enough memory       75  stopped by a signal, checkpoint saved
)";

// ---- --help and --version

// Lines of at most kHelpColumns, all but the first indented; a line of text that fits stays as it is.
std::string wrapped(const std::string& text) {
    constexpr size_t kWidth = kHelpColumns - kHelpIndent;
    std::string out;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        while (!line.empty()) {
            size_t cut = line.size() <= kWidth ? line.size() : line.rfind(' ', kWidth);
            if (cut == std::string::npos || cut == 0) { cut = line.size(); }
            out += (out.empty() ? "" : "\n" + std::string(kHelpIndent, ' ')) + line.substr(0, cut);
            line.erase(0, cut + 1);
        }
    }
    std::replace(out.begin(), out.end(), kHardBlank, ' ');
    return out + "\n";
}

class HelpFormatter : public CLI::Formatter {
    std::string make_usage(const CLI::App*, std::string program) const override {
        program.resize(program.find_last_not_of(' ') + 1);  // CLI11 puts a blank behind it
        return "Usage: " + program + " [--option VALUE]...    (--option=VALUE and -o VALUE work too)\n";
    }
    std::string make_group(std::string title, bool, std::vector<const CLI::Option*> options) const override {
        std::string out = "\n" + title + ":\n";
        for (const CLI::Option* option : options) { out += make_option(option, false); }
        out.pop_back();  // CLI11 adds its own end of line
        return out;
    }
    std::string make_option(const CLI::Option* option, bool) const override {
        std::string name = option->get_snames().empty() ? "    " : "-" + option->get_snames()[0] + ", ";
        name = "  " + name + "--" + option->get_lnames()[0] + " " + option->get_type_name();
        std::string gap(name.size() < kHelpIndent ? kHelpIndent - name.size() : 0, ' ');
        if (gap.empty()) { gap = "\n" + std::string(kHelpIndent, ' '); }
        return name + gap + wrapped(option->get_description());
    }
};

// help, then what may be given
std::string description(const OptionRow& row, Program program) {
    std::string value = value_text(row, Settings{});
    std::string text = value.empty() || is_switch(row) ? "" : "default " + value;
    if (!is_switch(row) && !allowed(row).empty()) { text += (text.empty() ? "" : "; ") + allowed(row); }
    if (*row.cpu_only && program == Program::kCpu) {
        text = is_switch(row) || allowed(row).empty()
                   ? "in train_gpt2cu only"
                   : fmt::format("only {} here; {} in train_gpt2cu", row.cpu_only, allowed(row));
    }
    std::replace(text.begin(), text.end(), ' ', kHardBlank);
    bool lines = std::string(row.help).find('\n') != std::string::npos;
    return text.empty() ? row.help : std::string(row.help) + (lines ? "\n[" : " [") + text + "]";
}

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

// ---- CLI11

// our reader of config files, as CLI11 takes it
class ConfigReader : public CLI::ConfigBase {
public:
    ConfigReader(const CommandLine& line, Settings* settings) : line_(line), settings_(settings) {}
    std::vector<CLI::ConfigItem> from_config(std::istream& in) const override {
        std::string text;
        for (char piece[4096]; text.size() < kMaxConfigBytes;) {
            in.read(piece, sizeof(piece));
            if (in.gcount() == 0) { break; }
            text.append(piece, (size_t)in.gcount());
        }
        if (in.bad() || text.size() >= kMaxConfigBytes) {
            fail_usage("--config " + in_quotes(line_.config) + " is over 1 MiB: not a config file.");
        }
        std::vector<CLI::ConfigItem> items;
        for (const auto& [name, value] : read_config(text, line_)) {
            const OptionRow& row = *find_row(name);
            const bool open = line_.of_run && !line_.given.contains(name);
            // a run that a GPU began goes on here as this program can, and there again as it was
            if (line_.of_run && settings_->program == Program::kCpu && (*row.cpu_only || name == "gpus")) {
                if (open && value != row.cpu_only && value != row.empty_word) {
                    settings_->for_gpu.push_back({name, value});
                }
                continue;
            }
            if (open) { require_harmless(name, value); }
            items.push_back({{}, name, {value}});
        }
        return items;
    }

private:
    // The folder of the run may come from elsewhere: what its config.toml asks for beyond the folder and this machine must
    // stand on the command line, too.
    void require_harmless(const std::string& name, const std::string& value) const {
        namespace fs = std::filesystem;
        std::error_code ignored;
        const auto place = [&](const std::string& path) {
            return fs::weakly_canonical(fs::absolute(path, ignored), ignored);
        };
        const fs::path inside = place(value).lexically_relative(place(line_.config).parent_path());
        const bool outside =
            value != find_row(name)->empty_word && (inside.empty() || *inside.begin() == "..");
        const bool writes =
            name == "export-hf" || name == "profile" || (name == "tune-gemm" && !fs::exists(value, ignored));
        const bool crowds = name == "ranks" && std::stoull(value) > 8 * std::thread::hardware_concurrency();
        const bool of_others =
            name == "master" || name == "world-size" || name == "rank" || name == "ranks-per-host";
        if (!(writes && outside) && !crowds && !of_others) { return; }
        fail_usage(line_.config + ": " + name + " = " + in_quotes(value) +
                   ": a run's own file may not ask for what is written outside of its folder, for more "
                   "than 8 processes a processor, nor for other hosts. If you want it, add --" +
                   name + " " + shell_word(value) + "; if not, remove this line.");
    }

    const CommandLine& line_;
    Settings* settings_;
};

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

// one CLI11 option for each row; parsing fills settings
void fill_app(CLI::App& app, Settings& settings, Program program) {
    app.description(
        fmt::format("plumb trains GPT-2 in plain C++ and CUDA, here on {}. Every option has a default.\n",
                    program == Program::kGpu ? "an NVIDIA GPU" : "the CPU"));
    app.footer(kHelpEnd);
    app.formatter(std::make_shared<HelpFormatter>());
    app.set_help_flag();  // its row adds it
    const char* group = "";
    for (const OptionRow& row : kOptionTable) {
        if (row.group) { group = row.group; }
        std::string names = fmt::format("--{}", row.name);
        if (row.letter) { names += fmt::format(",-{:c}", row.letter); }
        CLI::Option* option = nullptr;
        if (row.name == std::string("config")) {
            option = app.set_config(names, "", description(row, program));
        } else {
            option = app.add_option_function<std::string>(
                names, [&](const std::string& text) { assign(settings, row, text, row.name); },
                description(row, program));
        }
        option->type_name(row.value)->group(group);
    }
}

// ---- what must fit together

long long tokens(const Settings& s) { return (long long)s.batch * s.seq_len; }  // of one micro-batch

void check_model(Settings& s) {
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
        s.resume != "none" && (s.resume != "auto" || std::filesystem::exists(s.out + "/log.jsonl", ignored));
    if (!goes_on && !s.model.ends_with(".bin") && !s.model.ends_with(".safetensors") &&
        !std::filesystem::is_directory(s.model, ignored)) {
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

void check_batch(Settings& s) {
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
void check_precision(Settings& s) {
    bool gpu = s.program == Program::kGpu;
    if (s.dtype == "auto") { s.dtype = gpu ? "bf16" : "fp32"; }
    for (const OptionRow& row : kOptionTable) {
        std::string value = value_text(row, s);
        if (gpu || !*row.cpu_only || value == row.cpu_only) { continue; }
        fail_usage(fmt::format(
            "--{}{} needs the GPU program: make train_gpt2cu. This one, on the CPU, computes in fp32 "
            "and keeps all activations.",
            row.name, is_switch(row) ? "" : (" " + value)));
    }
    if (s.grad_dtype == "bf16" && s.dtype == "fp32") {
        fail_usage("--grad-dtype bf16 is for --dtype bf16; with fp32 the gradients are fp32. Leave one out.");
    }
    if (s.tf32 && s.dtype == "bf16") {
        fail_usage(
            "--tf32 is about the products of fp32, and the type is bf16 (the default on a GPU). Add "
            "--dtype fp32, or leave --tf32 out.");
    }
}

// --val-batches becomes --val-tokens
void check_validation(Settings& s) {
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
void find_hellaswag(Settings& s) {
    std::error_code ignored;
    if (std::filesystem::exists(kLlmcHellaSwag, ignored)) {
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

std::string resolved_text(const Settings& s) {
    std::string out = fmt::format("# plumb {}: the options of a run. --config reads them back.\n", kVersion);
    for (const OptionRow& row : kOptionTable) {
        std::string value = value_text(row, s);
        if (row.group) { out += fmt::format("\n# {}\n", row.group); }
        if (value.empty() || (row.name == std::string("model") && s.layers)) { continue; }
        // TOML's whole numbers have 64 bits with their sign
        const bool long_seed = holds<uint64_t>(row) && s.seed > (uint64_t)INT64_MAX;
        if (holds<std::string>(row) || long_seed) { value = escaped(value); }
        out += fmt::format("{} = {}\n", row.name, value);
    }
    return out;
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
    CLI::App app;
    Settings unused;
    fill_app(app, unused, program);
    std::string help = app.help(name);
    for (size_t at = 0; (at = help.find("PROGRAM", at)) != std::string::npos; at += name.size()) {
        help.replace(at, 7, name);
    }
    return help;
}

// A run folder that was renamed or copied has a config.toml that names the old place, where the run would go on.
void require_own_folder(const std::string& config, const std::string& out) {
    std::string folder = std::filesystem::path(config).parent_path().string();
    if (folder.empty()) { folder = "."; }
    std::error_code ignored;
    if (out.empty() || !std::filesystem::exists(folder + "/log.jsonl", ignored) ||
        std::filesystem::equivalent(folder, out, ignored)) {
        return;
    }
    fail_usage("--config " + in_quotes(config) + " lies in a run's folder, but its out is " + in_quotes(out) +
               ": was the folder renamed or copied? Give --out " + shell_word(folder) + " to go on there.");
}

Options parse_options(int argc, const char* const* argv, Program program, int* exit_code_out) {
    Settings settings;
    settings.program = program;
    CommandLine line(argc, argv);
    if (!line.objections.empty() && !(line.all_rows && line.action.empty())) { object(line.objections); }
    *exit_code_out = line.action.empty() ? -1 : kExitDone;
    if (!line.action.empty()) {
        std::string name = argc > 0 ? argv[0] : "./train_gpt2";
        std::fputs((line.action == "help" ? format_help(name, program) : version_text()).c_str(), stdout);
        require_printed();
        return settings;
    }
    CLI::App app;
    fill_app(app, settings, program);
    line.add_config_of_run();
    app.config_formatter(std::make_shared<ConfigReader>(line, &settings));
    const bool out_given =
        std::ranges::any_of(line.args, [](const auto& a) { return a.starts_with("--out="); });
    std::reverse(line.args.begin(), line.args.end());  // CLI11 takes them from the end
    try {
        app.parse(line.args);
    } catch (const CLI::FileError&) {
        std::error_code ignored;
        const bool folder = std::filesystem::is_directory(line.config, ignored);
        fail_usage("--config " + in_quotes(line.config) +
                   (folder ? " is a folder. Expected a file of options, such as its config.toml."
                           : " cannot be read: no such file, or no permission."));
    } catch (const CLI::Error& e) { fail_usage(std::string(e.what()) + ". See --help."); }
    if (app.count("--train-data") > 0 && app.count("--val-data") == 0) {
        settings.val_data = validation_beside(settings.train_data);
    }
    if (!line.config.empty() && settings.resume != "none" && !out_given) {
        require_own_folder(line.config, settings.out);
    }
    std::vector<std::string> objections = line.objections;
    for (auto check : {check_model, check_batch, check_precision, check_validation}) {
        try {
            check(settings);
        } catch (const Error& e) { objections.push_back(e.what()); }
    }
    object(objections);
    settings.notes = line.notes;
    for (const auto& [name, value] : settings.for_gpu) {
        settings.notes += name + " = " + value + ": not on the CPU; config.toml keeps it for a GPU\n";
    }
    if (line.hellaswag && settings.hellaswag.empty()) { find_hellaswag(settings); }
    settings.llmc_letters = line.llmc_letters;
    return settings;
}

std::string config_text(const Options& options, bool own) {
    Settings settings;
    static_cast<Options&>(settings) = options;
    for (const auto& [name, value] : options.for_gpu) {
        if (own) { assign(settings, *find_row(name), value, name); }
    }
    const Options defaults;  // which of the processes this one was is not of the run
    settings.world_size = defaults.world_size, settings.rank = defaults.rank;
    settings.ranks_per_host = defaults.ranks_per_host, settings.master = defaults.master;
    settings.new_data = false;  // a word for one start
    return resolved_text(settings);
}

bool fill_from_run(const std::string& config_path, Options* options) {
    const std::optional<std::string> text = read_whole(config_path, kMaxConfigBytes);
    if (!text) { return false; }
    CommandLine nothing(0, nullptr);
    nothing.config = config_path;
    Settings settings;
    static_cast<Options&>(settings) = *options;
    const bool length_given = options->steps != kAuto || options->epochs > 0 || options->minutes > 0;
    for (const auto& [name, value] : read_config(*text, nothing)) {
        const bool length = name == "steps" || name == "epochs" || name == "minutes";
        const char* const others[] = {"lr",        "warmup",       "final-lr-fraction",
                                      "val-every", "sample-every", "reduce-groups"};
        if (!length && std::find(std::begin(others), std::end(others), name) == std::end(others)) {
            continue;
        }
        const OptionRow& row =
            *std::find_if(std::begin(kOptionTable), std::end(kOptionTable),
                          [&wanted = name](const OptionRow& r) { return wanted == r.name; });
        const bool open = length ? !length_given : value_text(row, settings).empty();
        if (open) { assign(settings, row, value, name); }
    }
    *options = settings;
    return true;
}

}  // namespace llmc

// The sub-commands' options: see command_options.h.
#include "llmc/host/options/command_options.h"

#include <CLI/CLI.hpp>

#include "llmc/host/base/error.h"
#include "llmc/host/options/parse_words.h"

namespace llmc {

namespace {

constexpr const char* kModelHelp =
    "MODEL is one of\n"
    "  runs/mine                the folder of a run: its model.bin, or its newest checkpoint\n"
    "  runs/mine/step_00001000  a checkpoint\n"
    "  gpt2_124M.bin            a model file, ours or llm.c's\n"
    "  gpt2                     a folder with Hugging Face's GPT-2 in it (config.json, model.safetensors),\n"
    "                           or a *.safetensors in such a folder\n";

constexpr const char* kGenerateHelp =
    "How it writes. The text begins like a new document, then comes the prompt. For each next token the "
    "model\n"
    "gives every token a probability, and one is drawn:\n"
    "  --temperature 0      always the most likely: the same text each time, which soon repeats itself\n"
    "  --temperature 0.8    (default) a little safer than what the model believes; 1 = as it believes\n"
    "  --top-k 50           draw among the 50 most likely only\n"
    "  --top-p 0.9          draw among the most likely that together have 90 %\n"
    "  --seed 7             another draw; the same seed gives the same text\n"
    "A model sees as many tokens as it was made for. A longer text goes on with its newer half "
    "(\"slides\"),\n"
    "which is said on standard error.\n\n"
    "Examples:\n"
    "  PROGRAM generate runs/mine --prompt 'Once upon a time'\n"
    "  PROGRAM generate runs/mine --num-samples 3 --tokens 100 --stop '\\n\\n'\n"
    "      three texts, each until its first blank line (\\n and \\t mean newline and tab here)\n"
    "  cat start.txt | PROGRAM generate gpt2 --prompt - --top-k 50 --json > continued.jsonl\n"
    "      one object a text: prompt, text, ids of its tokens, why it ended\n"
    "  PROGRAM generate runs/mine --interactive\n"
    "      type a line, the model goes on; type the next: it knows all that was written. Control-D ends\n";

constexpr const char* kExportHelp =
    "Writes model.safetensors, config.json, generation_config.json and the tokenizer's files:\n"
    "  from transformers import AutoModelForCausalLM, AutoTokenizer\n"
    "  model, tokenizer = AutoModelForCausalLM.from_pretrained('out'), AutoTokenizer.from_pretrained('out')\n"
    "loads them, and so does --model out here.\n\n"
    "Examples:\n"
    "  PROGRAM export runs/mine --hf out\n"
    "  PROGRAM export gpt2_124M.bin --hf out --type bf16 --tokenizer gpt2\n";

constexpr const char* kEvalHelp =
    "Prints the mean loss in nats a token, the perplexity (e to that), and bits a byte, which can be "
    "compared\n"
    "between tokenizers: all loss over all bytes of the text. Each token is predicted once, from what "
    "stands\n"
    "before it in its row of --seq-len tokens.\n\n"
    "Examples:\n"
    "  PROGRAM eval runs/mine --data 'data/mine_val_*.bin'\n"
    "  PROGRAM eval gpt2 --data 'data/web_val_*.bin' --max-tokens 100000\n"
    "  PROGRAM eval gpt2 --hellaswag data/hellaswag_val.bin --json\n"
    "      of four endings, how often the right one has the lowest loss: as a whole, and the mean of its "
    "tokens\n";

// a value's kind and default; CLI11 would print the range of every number, too
class HelpFormatter : public CLI::Formatter {
    std::string make_option_opts(const CLI::Option* option) const override {
        if (option->get_type_size() == 0) { return ""; }
        std::string text = " " + option->get_type_name();
        text = text.substr(0, text.find(':'));
        const std::string value = option->get_default_str();
        return value.empty() || value == "\"\"" ? text : text + " (" + value + ")";
    }
};

std::string with_name(std::string text, const std::string& name) {
    for (size_t at = 0; (at = text.find("PROGRAM", at)) != std::string::npos; at += name.size()) {
        text.replace(at, 7, name);
    }
    return text;
}

// \n and \t as they are typed in a shell
std::string unescaped(std::string text) {
    for (size_t at = 0; (at = text.find('\\', at)) != std::string::npos; at++) {
        if (at + 1 == text.size()) { break; }
        const char c = text[at + 1];
        if (c == 'n' || c == 't') { text.replace(at, 2, c == 'n' ? "\n" : "\t"); }
    }
    return text;
}

void add_generate(CLI::App* app, CommandOptions* o) {
    app->add_option("--prompt", o->prompt, "what the text starts with; - = read it from standard input")
        ->type_name("TEXT");
    app->add_option("--prompt-ids", o->prompt_ids,
                    "what goes before, as ids (1,2,3); without a tokenizer the text is ids, too")
        ->type_name("IDS")
        ->delimiter(',')
        ->excludes("--prompt");
    app->add_option("--tokens,--max-new-tokens", o->tokens, "how many to write at most")
        ->type_name("N")
        ->capture_default_str()
        ->transform(number_range(int64_t{1}, int64_t{1} << 40));
    app->add_option("--temperature,--temp", o->temperature, "0 = always the most likely token")
        ->type_name("X")
        ->capture_default_str()
        ->transform(number_range(0.0, 100.0));
    app->add_option("--top-k", o->top_k, "0 = all tokens")
        ->type_name("N")
        ->capture_default_str()
        ->transform(number_range(0, 1 << 20));
    app->add_option("--top-p", o->top_p, "1 = all tokens")
        ->type_name("X")
        ->capture_default_str()
        ->transform(number_range(0.0, 1.0));
    app->add_option("--seed", o->seed, "where the random numbers start")
        ->type_name("N")
        ->capture_default_str()
        ->transform(number_range(uint64_t{0}, UINT64_MAX));
    app->add_option("--num-samples", o->num_samples, "texts to write")
        ->type_name("N")
        ->capture_default_str()
        ->transform(number_range(int64_t{1}, int64_t{1} << 30));
    app->add_option("--stop", o->stop, "a text ends before this; may be given more than once")
        ->type_name("TEXT")
        ->allow_extra_args(false);
    app->add_option("--dtype", o->dtype,
                    "fp32 or bf16; auto = bf16 on a GPU, fp32 on the CPU, which has no other")
        ->type_name("TYPE")
        ->capture_default_str()
        ->check(CLI::IsMember({"auto", "fp32", "bf16"}));
    app->add_flag("--json", o->json, "print one JSON object for each text");
    app->add_flag("--no-bos", o->no_bos, "begin with the prompt, not as a new document");
    app->add_flag("--interactive", o->interactive, "go on with what is typed, line by line")
        ->excludes("--prompt-ids");
    app->add_flag(
        "--stats", o->stats,
        "tokens a second, and on a GPU the share of the time that reading the weights takes at least, "
        "on standard error");
}

void add_export(CLI::App* app, CommandOptions* o) {
    app->add_option("--hf,--out", o->hf, "the folder to write")->required()->type_name("FOLDER");
    app->add_option("--type", o->type, "of the weights: fp32, bf16, fp16; auto = as they are")
        ->type_name("TYPE")
        ->capture_default_str()
        ->check(CLI::IsMember({"auto", "fp32", "bf16", "fp16"}));
    app->add_flag("--force", o->force, "write into the folder though it is not empty");
}

void add_eval(CLI::App* app, CommandOptions* o) {
    app->add_option("--data,--val-data", o->data, "token shards: a file, or a pattern in quotes")
        ->type_name("GLOB");
    app->add_option("--raw-tokens", o->raw_tokens,
                    "the data are 16-bit tokens without a header, as nanoGPT's: their vocabulary")
        ->type_name("VOCAB")
        ->transform(number_range(1, 1 << 16));
    app->add_option("--hellaswag", o->hellaswag, "questions that data/make_hellaswag, or llm.c, has made")
        ->type_name("FILE");
    app->add_option("--val-align", o->val_align,
                    "rows, as in training: window = back to back; document = from a document's start")
        ->type_name("NAME")
        ->capture_default_str()
        ->check(CLI::IsMember({"auto", "window", "document"}));
    app->add_option("--max-tokens", o->max_tokens, "tokens from the start of the data; -1 = all")
        ->type_name("N")
        ->capture_default_str()
        ->transform(number_range(int64_t{-1}, int64_t{1'000'000'000'000'000}));
    app->add_option("--batch", o->batch, "rows at a time")
        ->type_name("N")
        ->capture_default_str()
        ->transform(number_range(1, 1 << 16));
    app->add_option("--seq-len", o->seq_len, "tokens in a row; 0 = the model's, at most 1024")
        ->type_name("N")
        ->capture_default_str()
        ->transform(number_range(0, 1 << 20));
    app->add_flag("--json", o->json, "print one JSON object");
    app->add_flag("--per-question", o->per_question,
                  "with --json: of each HellaSwag question the label, both answers, and [sum of losses, "
                  "tokens] of each ending");
}

}  // namespace

bool is_command(const std::string& word) { return word == "generate" || word == "export" || word == "eval"; }

bool parse_command(int argc, const char* const* argv, CommandOptions* o) {
    o->command = argv[1];
    const bool generate = o->command == "generate", exports = o->command == "export";
    const std::string name = argv[0];
    CLI::App app(generate  ? "Writes text with a trained model.\n"
                 : exports ? "Writes a model as Hugging Face's transformers loads it.\n"
                           : "Measures how well a model predicts token shards.\n",
                 name + " " + o->command);
    app.formatter(std::make_shared<HelpFormatter>());
    app.get_formatter()->column_width(26);
    app.footer(kModelHelp + std::string("\n") +
               with_name(generate  ? kGenerateHelp
                         : exports ? kExportHelp
                                   : kEvalHelp,
                         name));
    app.add_option("MODEL", o->model,
                   "a run's folder, a checkpoint, a model file, or a folder of Hugging Face's")
        ->required()
        ->type_name("");
    app.add_option("--tokenizer", o->tokenizer, "default: the one beside the model, or bytes")
        ->type_name("PATH");
    if (generate) {
        add_generate(&app, o);
    } else if (exports) {
        add_export(&app, o);
    } else {
        add_eval(&app, o);
    }
    if (!parse_words(&app, argc, argv, 2, (o->command + ": ").c_str())) { return false; }
    for (std::string& stop : o->stop) {
        stop = unescaped(stop);
        if (stop.empty()) { throw Error(kExitUsage, "generate: --stop: found an empty text, expected some"); }
    }
    if (o->command == "eval" && o->data.empty() && o->hellaswag.empty()) {
        throw Error(kExitUsage, "eval: give --data, --hellaswag or both. See " + name + " eval --help.");
    }
    if (o->per_question && (!o->json || o->hellaswag.empty())) {
        throw Error(kExitUsage, "eval: --per-question goes with --json and --hellaswag");
    }
    if (o->max_tokens == 0) {
        throw Error(kExitUsage, "eval: --max-tokens: found 0, expected -1 for all, or at least 1");
    }
    if (o->interactive && (o->json || o->num_samples > 1 || o->prompt == "-")) {
        throw Error(kExitUsage,
                    "generate: --interactive goes with neither --json, --num-samples nor --prompt -");
    }
    return true;
}

}  // namespace llmc

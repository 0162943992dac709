// The sub-commands' options: see command_options.h.
#include "llmc/host/options/command_options.h"

#include <charconv>

#include "llmc/host/options/table.h"
#include "llmc/host/options/typed_text.h"

namespace llmc {

namespace {

constexpr const char* kModelHelp = R"(MODEL is one of
  runs/mine                the folder of a run: its model.bin, or its newest checkpoint
  runs/mine/step_00001000  a checkpoint
  gpt2_124M.bin            a model file, ours or llm.c's
  gpt2                     a folder with Hugging Face's GPT-2 in it (config.json, model.safetensors),
                           or a *.safetensors in such a folder
)";

constexpr const char* kGenerateHelp =
    R"(How it writes. The text begins like a new document, then comes the prompt. For each next token the
model gives every token a probability, and one is drawn:
  --temperature 0      always the most likely: the same text each time, which soon repeats itself
  --temperature 0.8    (default) a little safer than what the model believes; 1 = as it believes
  --top-k 50           draw among the 50 most likely only
  --top-p 0.9          draw among the most likely that together have 90 %
  --seed 7             another draw; the same seed gives the same text
A model sees as many tokens as it was made for. A longer text goes on with its newer half ("slides"),
which is said on standard error.

Examples:
  PROGRAM runs/mine --prompt 'Once upon a time'
  PROGRAM runs/mine --num-samples 3 --tokens 100 --stop '\n\n'
      three texts, each until its first blank line (\n and \t mean newline and tab here)
  cat start.txt | PROGRAM gpt2 --prompt - --top-k 50 --json > continued.jsonl
      one object a text: prompt, text, ids of its tokens, why it ended
  PROGRAM runs/mine --interactive
      type a line, the model goes on; type the next: it knows all that was written. Control-D ends
)";

constexpr const char* kExportHelp =
    R"(Writes model.safetensors, config.json, generation_config.json and the tokenizer's files:
  from transformers import AutoModelForCausalLM, AutoTokenizer
  model, tokenizer = AutoModelForCausalLM.from_pretrained('out'), AutoTokenizer.from_pretrained('out')
loads them, and so does --model out here.

Examples:
  PROGRAM runs/mine --hf out
  PROGRAM gpt2_124M.bin --hf out --type bf16 --tokenizer gpt2
)";

constexpr const char* kEvalHelp =
    R"(Prints the mean loss in nats a token, the perplexity (e to that), and bits a byte, which can be
compared between tokenizers: all loss over all bytes of the text. Each token is predicted once, from
what stands before it in its row of --seq-len tokens.

Examples:
  PROGRAM runs/mine --data 'data/mine_val_*.bin'
  PROGRAM gpt2 --data 'data/web_val_*.bin' --max-tokens 100000
  PROGRAM gpt2 --hellaswag data/hellaswag_val.bin --json
      of four endings, how often the right one has the lowest loss: as a whole, and the mean of its tokens
)";

// \n and \t as they are typed in a shell
std::string unescaped(std::string text) {
    for (size_t at = 0; (at = text.find('\\', at)) != text.npos && at + 1 < text.size(); at++) {
        const char c = text[at + 1];
        if (c == 'n' || c == 't') { text.replace(at, 2, c == 'n' ? "\n" : "\t"); }
    }
    return text;
}

// "1,2,3"; may be given more than once
void read_ids(const std::string& text, std::vector<int>* ids) {
    for (const char *at = text.data(), *end = at + text.size();; at++) {
        const auto [behind, code] = std::from_chars(at, end, ids->emplace_back());
        if (code != std::errc() || (behind != end && *behind != ',')) {
            fail_usage("--prompt-ids: found " + in_quotes(text) + ", expected ids such as 1,2,3.");
        }
        at = behind;
        if (at == end) { return; }
    }
}

void add_generate(Table& t, CommandOptions& o) {
    t.add("--prompt TEXT", &o.prompt, "what the text starts with; - = read it from standard input");
    const auto read = [&o](const std::string& text) { read_ids(text, &o.prompt_ids); };
    t.add("--prompt-ids IDS", read,
          "what goes before, as ids (1,2,3); without a tokenizer the text is ids, too")
        .not_with("prompt")
        .repeats = true;
    t.add("--tokens --max-new-tokens N", &o.tokens, {1, 0x1p40}, "how many to write at most");
    t.add("--temperature --temp X", &o.temperature, {0, 100}, "0 = always the most likely token");
    t.add("--top-k N", &o.top_k, {0, 1 << 20}, "0 = all tokens");
    t.add("--top-p X", &o.top_p, {0, 1}, "1 = all tokens");
    t.add("--seed N", &o.seed, {0, 0x1p64}, "where the random numbers start");
    t.add("--num-samples N", &o.num_samples, {1, 1 << 30}, "texts to write");
    t.add("--stop TEXT", &o.stop, "a text ends before this; may be given more than once");
    t.add("--dtype TYPE", &o.dtype, "auto = bf16 on a GPU, fp32 on the CPU, which has no other")
        .one_of("auto fp32 bf16");
    t.add("--json", &o.json, "print one JSON object for each text");
    t.add("--no-bos", &o.no_bos, "begin with the prompt, not as a new document");
    t.add("--interactive", &o.interactive, "go on with what is typed, line by line").not_with("prompt-ids");
    t.add("--stats", &o.stats,
          "tokens a second, and on a GPU the share of the time that reading the weights takes at least, on "
          "standard error");
}

void add_export(Table& t, CommandOptions& o) {
    t.add("--hf --out FOLDER", &o.hf, "the folder to write").required = true;
    t.add("--type TYPE", &o.type, "of the weights; auto = as they are");
    t.add("--force", &o.force, "write into the folder though it is not empty");
}

void add_eval(Table& t, CommandOptions& o) {
    t.add("--data --val-data GLOB", &o.data, "token shards: a file, or a pattern in quotes");
    t.add("--raw-tokens VOCAB", &o.raw_tokens, {1, 1 << 16},
          "the data are 16-bit tokens without a header, as nanoGPT's: their vocabulary");
    t.add("--hellaswag FILE", &o.hellaswag, "questions that data/make_hellaswag, or llm.c, has made");
    t.add("--val-align NAME", &o.val_align,
          "rows, as in training: window = back to back; document = from a document's start");
    t.add("--max-tokens N", &o.max_tokens, {1, kMaxTokens, "", true},
          "tokens from the start of the data; -1 = all");
    t.add("--batch N", &o.batch, {1, 1 << 16}, "rows at a time");
    t.add("--seq-len N", &o.seq_len, {0, 1 << 20}, "tokens in a row; 0 = the model's, at most 1024");
    t.add("--json", &o.json, "print one JSON object");
    t.add("--per-question", &o.per_question,
          "with --json: of each HellaSwag question the label, both answers, and [sum of losses, tokens] of "
          "each ending");
}

// what must fit together
void check(const CommandOptions& o, const std::string& program) {
    for (const std::string& stop : o.stop) {
        if (stop.empty()) { fail_usage("generate: --stop: found an empty text, expected some"); }
    }
    if (o.command == "eval" && o.data.empty() && o.hellaswag.empty()) {
        fail_usage("eval: give --data, --hellaswag or both. See " + program + " --help.");
    }
    if (o.per_question && (!o.json || o.hellaswag.empty())) {
        fail_usage("eval: --per-question goes with --json and --hellaswag");
    }
    if (o.interactive && (o.json || o.num_samples > 1 || o.prompt == "-")) {
        fail_usage("generate: --interactive goes with neither --json, --num-samples nor --prompt -");
    }
}

}  // namespace

bool is_command(const std::string& word) { return word == "generate" || word == "export" || word == "eval"; }

bool parse_command(int argc, const char* const* argv, CommandOptions* options) {
    CommandOptions& o = *options;
    o.command = argv[1];
    const bool generate = o.command == "generate", exports = o.command == "export";
    const std::string about = generate  ? "Writes text with a trained model."
                              : exports ? "Writes a model as Hugging Face's transformers loads it."
                                        : "Measures how well a model predicts token shards.";
    const std::string end = generate ? kGenerateHelp : exports ? kExportHelp : kEvalHelp;
    Table t(std::string(argv[0]) + " " + o.command, about, std::string(kModelHelp) + "\n" + end);
    t.add("MODEL", &o.model, "a run's folder, a checkpoint, a model file, or a folder of Hugging Face's")
        .required = true;
    t.add("--tokenizer PATH", &o.tokenizer, "default: the one beside the model, or bytes");
    (generate ? add_generate : exports ? add_export : add_eval)(t, o);
    if (!parse_table(t, argc, argv, 2, (o.command + ": ").c_str())) { return false; }
    for (std::string& stop : o.stop) { stop = unescaped(stop); }
    check(o, t.program);
    return true;
}

}  // namespace llmc

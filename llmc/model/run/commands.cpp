// The sub-commands: see commands.h.
#include "llmc/model/run/commands.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <unistd.h>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <iostream>
#include <iterator>
#include <sstream>

#include "llmc/host/base/resources.h"
#include "llmc/host/base/text.h"
#include "llmc/host/files/file_io.h"
#include "llmc/host/files/json.h"
#include "llmc/host/log/run_log.h"
#include "llmc/host/options/table.h"
#include "llmc/host/tokens/dataloader.h"
#include "llmc/host/tokens/tokenizer.h"
#include "llmc/model/eval/generate.h"
#include "llmc/model/eval/validation.h"
#include "llmc/model/run/folder.h"
#include "llmc/model/run/hf_export.h"

namespace llmc {

// ---- what each can be told

namespace {

// \n and \t as they are typed in a shell
std::string unescaped(std::string text) {
    for (size_t at = 0; (at = text.find('\\', at)) != text.npos && at + 1 < text.size(); at++) {
        const char c = text[at + 1];
        if (c == 'n' || c == 't') { text.replace(at, 2, c == 'n' ? "\n" : "\t"); }
    }
    return text;
}

void add_generate(Table& t, CommandOptions& o) {
    t.about = "Writes text with a trained model.";
    t.end =
        R"(The text begins like a new document, then comes the prompt. A model sees as many tokens as it was made
for: a longer text goes on with its newer half ("slides"), which is said on standard error.

Examples:
  PROGRAM runs/mine --num-samples 3 --tokens 100 --stop '\n\n'
      three texts, each until its first blank line (\n and \t mean newline and tab here)
  cat start.txt | PROGRAM gpt2 --prompt - --top-k 50 --json > continued.jsonl
      one object a text: prompt, text, ids of its tokens, why it ended
  PROGRAM runs/mine --interactive
      type a line, the model goes on; type the next: it knows all that was written. Control-D ends
)";
    const auto read_stop = [&o](const std::string& text) { o.stop.push_back(unescaped(text)); };
    t.add("--prompt [TEXT]", &o.prompt, "what the text starts with; - = read it from standard input");
    t.add("--prompt-ids IDS", &o.prompt_ids, {.range = {0, kMaxInt}, .rivals = "prompt", .listed = true},
          "what goes before, as ids (1,2,3); without a tokenizer the text is ids, too");
    t.add("--tokens --max-new-tokens N", &o.tokens, {1, 0x1p40}, "how many to write at most");
    t.add("--temperature --temp X", &o.temperature, {0, 100},
          "0 = always the most likely token, which soon repeats itself; 1 = as the model believes");
    t.add("--top-k N", &o.top_k, {0, 1 << 20}, "draw among the N most likely tokens only; 0 = all");
    t.add("--top-p X", &o.top_p, {0, 1}, "among the most likely that together have this share; 1 = all");
    t.add("--seed N", &o.seed, {0, 0x1p64}, "another one, another draw; the same one, the same text");
    t.add("--num-samples N", &o.num_samples, {1, 1 << 30}, "texts to write");
    t.add("--stop TEXT", read_stop, {.repeats = true},
          "a text ends before this; may be given more than once");
    t.add("--dtype TYPE", &o.dtype, {.choices = "auto fp32 bf16"}, "auto = bf16 on a GPU; the CPU has fp32");
    t.add("--json", &o.json, "print one JSON object for each text");
    t.add("--no-bos", &o.no_bos, "begin with the prompt, not as a new document");
    t.add("--interactive", &o.interactive, {.rivals = "prompt-ids json num-samples"},
          "go on with what is typed, line by line");
    t.add("--stats", &o.stats,
          "tokens a second, and on a GPU their share of the memory's speed, on standard error");
}

void add_export(Table& t, CommandOptions& o) {
    t.about = "Writes a model as Hugging Face's transformers loads it.";
    t.end = R"(Writes model.safetensors, config.json, generation_config.json and the tokenizer's files, which
from_pretrained() of transformers' AutoModelForCausalLM and AutoTokenizer loads, and so does --model here.

Example:
  PROGRAM gpt2_124M.bin --hf out --type bf16 --tokenizer gpt2
)";
    t.add("--hf --out FOLDER", &o.hf, {.required = true}, "the folder to write");
    t.add("--type TYPE", &o.type, "of the weights; auto = as they are");
    t.add("--force", &o.force, "write into the folder though it is not empty");
}

void add_eval(Table& t, CommandOptions& o) {
    t.about = "Measures how well a model predicts token shards.";
    t.end = R"(Prints the mean loss in nats a token, the perplexity (e to that), and bits a byte, which can be
compared between tokenizers. Each token is predicted once, from what stands before it in its row of
--seq-len tokens: with --stride N from at least seq-len - N, as published figures mostly are. Of
HellaSwag's endings, how often the right one has the lowest loss, whole or a token. With --json,
"evaluations" counts how often a run's models met these data (a line each in RUN/evals.jsonl).

Example:
  PROGRAM gpt2 --data 'data/web_val_*.bin' --max-tokens 100000 --hellaswag data/hellaswag_val.bin
)";
    t.add("--data --val-data GLOB", &o.data, "token shards: a file, or a pattern in quotes");
    t.add("--raw-tokens VOCAB", &o.raw_tokens, {1, 1 << 16},
          "the data are 16-bit tokens without a header, as nanoGPT's: their vocabulary");
    t.add("--hellaswag FILE", &o.hellaswag, "questions that data/make_hellaswag, or llm.c, has made");
    t.add("--val-align NAME", &o.val_align,
          "rows, as in training: window = back to back; document = from a document's start");
    t.add("--max-tokens N", &o.max_tokens, {1, kMaxTokens, "", true}, "from the start of the data; -1 = all");
    t.add("--batch N", &o.batch, {1, 1 << 16}, "rows at a time");
    t.add("--seq-len N", &o.seq_len, {0, 1 << 20}, "tokens in a row; 0 = the model's, at most 1024");
    t.add("--stride N", &o.stride, {.range = {1, 1 << 20, "tokens"}, .needed = "data"},
          "how far a row begins behind the one before; a small one gives a lower loss, and takes seq-len / N "
          "times as long; seq-len without it");
    t.add("--dtype TYPE", &o.dtype, {.choices = "auto fp32 bf16"},
          "auto = fp32; bf16 is for GPUs, and faster there");
    t.add("--json", &o.json, "print one JSON object");
    t.add("--per-question", &o.per_question, {.needed = "json hellaswag"},
          "of each question the label, both answers, and [sum of losses, tokens] of each ending");
}

// ---- what each does

// standard error: standard output has the result alone
void note(const std::string& text) { put_text(stderr, text + "\n"); }

NamedModel find_model(const CommandOptions& o) {
    std::string notes;
    NamedModel model = open_model(o.best ? best_checkpoint(o.model, &notes) : o.model, &notes);
    const GPT2Config& c = model.source->config();
    note(notes + fmt::format("model: {} ({} layers, {} channels, {} positions, vocabulary {}, {})",
                             model.path, c.num_layers, c.channels, c.max_seq_len, c.vocab_size,
                             text_of(model.source->type())));
    return model;
}

// the one asked for, or the model's own, or bytes; nothing if there is none
std::optional<Tokenizer> find_tokenizer(const CommandOptions& o, const NamedModel& model) {
    const int vocab = model.source->config().vocab_size;
    std::optional<Tokenizer> t =
        o.tokenizer.empty() ? Tokenizer::find(model.folder) : Tokenizer::load(o.tokenizer);
    const std::string sizes =
        fmt::format("the tokenizer in {} has {} tokens, the model a vocabulary of {}: ",
                    o.tokenizer.empty() ? model.folder : o.tokenizer, t ? t->vocab_size() : 0, vocab);
    if (t && !t->fits(vocab)) {
        throw Error(kExitBadInput, "{}they do not belong together. Name the right one with --tokenizer.",
                    sizes);
    }
    if (t && vocab > t->vocab_size()) { note(sizes + "the rest is taken for padding and never drawn"); }
    if (!t && vocab == kByteVocabSize) { t = Tokenizer::bytes(); }
    return t;
}

// of --prompt-ids alone the ids
Tokenizer require_tokenizer(const CommandOptions& o, const NamedModel& model) {
    std::optional<Tokenizer> t = find_tokenizer(o, model);
    if (t) { return *t; }
    if (!o.prompt_ids.empty()) { return Tokenizer::numbers(model.source->config().vocab_size); }
    throw Error(
        kExitUsage,
        "{} has a vocabulary of {}, and no tokenizer lies beside it: what do the ids mean? Give --tokenizer "
        "a folder with tokenizer.json, or vocab.bpe and encoder.json, or --prompt-ids 1,2,3: then the text "
        "is ids, too (nanoGPT's meta.pkl, which is not read, as a pickle can run code, says what they mean).",
        model.path, model.source->config().vocab_size);
}

// ---- generate ----------------------------------------------------------------------------------

// A pipe gets the bytes as they are; on a terminal control characters are shown, not obeyed.
void print_text(std::string_view text) {
    static const bool terminal = isatty(STDOUT_FILENO) != 0;
    const std::string out = terminal ? printable_text(text) : std::string(text);
    std::fwrite(out.data(), 1, out.size(), stdout);
    require_printed();
}

class Generator {
public:
    Generator(const CommandOptions& o, const Engine& engine) : o_(o) {
        if (!o_.prompt.empty() || o_.interactive) { (void)tokenizer_.encode(""); }  // can it?
        decoder_ = engine.decoder(*model_.source, o.dtype);
    }

    int run() {
        const int rows = decoder_->config().vocab_size;
        for (int id : o_.prompt_ids) {
            if (id >= 0 && id < rows) { continue; }
            throw Error(kExitUsage, "--prompt-ids: found {}, expected 0 to {}", id, rows - 1);
        }
        if (o_.interactive) {
            converse();
        } else {
            std::string prompt = o_.prompt;
            if (prompt == "-") {
                prompt.assign(std::istreambuf_iterator<char>(std::cin), {});
                if (prompt.ends_with('\n')) { prompt.pop_back(); }  // echo and editors put it there
            }
            for (int id : o_.prompt_ids) { prompt += tokenizer_.decode(id); }
            for (int64_t i = 0; i < o_.num_samples; i++) { write_one(prompt, i); }
        }
        if (o_.stats) { print_stats(); }
        return kExitDone;
    }

private:
    Context new_context() {
        return Context(decoder_.get(), [this](int left) {
            if (slides_++ == 0) {
                note(
                    fmt::format("(the text is longer than the {} tokens that the model sees: it goes on from "
                                "the last {})",
                                decoder_->config().max_seq_len, left));
            }
        });
    }
    std::vector<int32_t> start() const {
        const int begin = facts_.begins.empty() ? tokenizer_.end_of_text() : facts_.begins[0];
        return begin >= 0 && !o_.no_bos ? std::vector<int32_t>{begin} : std::vector<int32_t>{};
    }
    std::vector<int32_t> with(std::vector<int32_t> tokens, const std::string& text) const {
        for (int id : tokenizer_.encode_prompt(text, decoder_->config().vocab_size)) { tokens.push_back(id); }
        if (tokens.empty()) {
            throw Error(kExitUsage, "generate: give a --prompt: no token is known to begin a text");
        }
        return tokens;
    }
    // the text goes out as it comes, but with --json
    Sample write(Context* context, const std::vector<int32_t>& tokens, int64_t number) {
        const SampleParams params = {o_.tokens, o_.temperature,   o_.top_p, o_.top_k,
                                     o_.seed,   (uint32_t)number, o_.stop,  facts_.ends};
        const Sample sample = write_sample(context, tokenizer_, tokens, params, [&](std::string_view text) {
            if (!o_.json) { print_text(text); }
        });
        computed_ += sample.computed;
        prompt_seconds_ += sample.prompt_seconds;
        seconds_ += sample.seconds;
        return sample;
    }
    void print_stats() const {
        std::string text = fmt::format("prompts took {:.3f} s", prompt_seconds_);
        if (computed_ > 0) {
            const double rate = (double)computed_ / seconds_;
            text += fmt::format("; after them {} tokens in {:.2f} s, {:.1f} tokens/s, {:.3f} ms a token",
                                computed_, seconds_, rate, 1e3 / rate);
            const DecoderTraffic traffic = decoder_->traffic();
            if (traffic.bytes_per_second > 0) {
                text += fmt::format(
                    ", {:.2f} of the memory's speed: {:.1f} MB of weights a token, at most {:.0f} GB/s",
                    (double)traffic.bytes * rate / traffic.bytes_per_second, (double)traffic.bytes / 1e6,
                    traffic.bytes_per_second / 1e9);
            }
        }
        note(text);
    }

    void write_one(const std::string& prompt, int64_t number) {
        Context context = new_context();
        const std::vector<int32_t> tokens = o_.prompt_ids.empty() ? with(start(), prompt) : o_.prompt_ids;
        if (!o_.json) { print_text((number > 0 ? "---\n" : "") + prompt); }
        const Sample sample = write(&context, tokens, number);
        std::string line = "\n";
        if (o_.json) {
            line = fmt::format("{{\"sample\":{},\"prompt\":{},\"text\":{},\"ids\":[{}],\"ended\":\"{}\"}}\n",
                               number, json_text(prompt), json_text(sample.text), fmt::join(sample.ids, ","),
                               sample.ended);
        }
        print_text(line);
    }

    // the context grows by each line and by what the model answers
    void converse() {
        Context context = new_context();
        const bool terminal = isatty(STDIN_FILENO) != 0;
        if (terminal) { note("Type how the text goes on, and Enter; Control-D ends."); }
        std::vector<int32_t> before = start();
        std::string line = o_.prompt;
        for (int64_t number = 0;; number++) {
            if (line.empty()) {
                if (terminal) { print_text("> "); }
                if (!std::getline(std::cin, line)) { break; }
            }
            const Sample sample = write(&context, with(before, line), number);
            print_text("\n");
            // The context lacks the last token, which nothing was computed for; a document that has ended is
            // followed by a new one.
            const bool ended = sample.ended == std::string_view("end_of_text");
            before = ended ? start() : std::vector<int32_t>{sample.ids.back()};
            line.clear();
        }
    }

    const CommandOptions& o_;
    NamedModel model_ = find_model(o_);
    Tokenizer tokenizer_ = require_tokenizer(o_, model_);
    HfFacts facts_ = model_.source->facts();
    std::unique_ptr<Decoder> decoder_;
    int64_t computed_ = 0;  // as Sample's, of all
    double prompt_seconds_ = 0, seconds_ = 0;
    int slides_ = 0;
};

// ---- export ------------------------------------------------------------------------------------

int export_model(const CommandOptions& o) {
    const NamedModel model = find_model(o);
    require_no_run_there(o.hf, "Choose another --hf.");
    if (!o.force) {
        require_empty_folder(
            o.hf, "Choose another --hf, or --force to replace the files in it that have the same names.");
    }
    std::string problem;
    const std::string files = export_hf(o.hf, *model.source, find_tokenizer(o, model), o.type, &problem);
    put_text(stdout, files + "\n");
    if (!problem.empty()) { note(problem); }
    require_printed();
    return kExitDone;
}

// ---- eval --------------------------------------------------------------------------------------

Evaluation evaluate(Model* model, const Batch& batch) {
    const Evaluation e = model->evaluate(batch);
    require_finite_results("the losses", e.losses);
    return e;
}

// Says on standard error how far it is: as soon as it is known how long a stride takes, and every ten seconds.
class EvalProgress {
public:
    EvalProgress(int64_t rows, bool at_once) : rows_(rows), next_(at_once ? 0 : kSeconds) {}
    void show(int64_t done) {
        if (first_ == 0) {  // the first batch, which takes longer, is not counted
            first_ = done;
            begin_ = Clock::now();
            return;
        }
        const double seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
        if (seconds < next_ || done >= rows_) { return; }
        next_ = seconds + kSeconds;
        const double left = seconds * (double)(rows_ - done) / (double)(done - first_);
        note(fmt::format("{} of {} rows, about {} more", count_text(done), count_text(rows_),
                         duration_text(left)));
    }

private:
    using Clock = std::chrono::steady_clock;
    static constexpr double kSeconds = 10;
    int64_t rows_, first_ = 0;
    double next_;
    Clock::time_point begin_;
};

// The mean loss over token shards: printed, or the members of a JSON object.
std::string evaluate_shards(const CommandOptions& o, const GPT2Config& c,
                            const std::optional<Tokenizer>& tokenizer, Model* model, int T) {
    const int vocab = ShardSet(o.data, o.raw_tokens).vocab_size(), end = end_of_text(tokenizer, vocab);
    ValidationData data(o.data, T, alignment(o.val_align, o.raw_tokens), end, o.max_tokens, o.raw_tokens,
                        o.stride);
    const auto align = data.align();
    if (!same_ids(tokenizer, c.vocab_size, vocab)) {
        throw Error(kExitBadInput,
                    "{} has a vocabulary of {}, the model of {}: make the shards with the model's tokenizer",
                    o.data, vocab, c.vocab_size);
    }
    double nats = 0;
    int64_t tokens = 0, bytes = 0;
    Batch batch;
    EvalProgress progress(data.num_rows(), o.stride > 0);
    for (int64_t row = 0; row < data.num_rows(); row += o.batch) {
        data.read(row, o.batch, &batch);
        const Evaluation e = evaluate(model, batch);
        for (size_t i = 0; i < batch.targets.size(); i++) {
            const int32_t target = batch.targets[i];
            if (target == kIgnoreTarget) { continue; }
            nats += e.losses[i];
            tokens++;
            const bool text = tokenizer && target != tokenizer->end_of_text();
            bytes += text ? (int64_t)tokenizer->decode(target).size() : 0;
        }
        progress.show(std::min(row + o.batch, data.num_rows()));
    }
    const double loss = nats / (double)tokens, bits = nats / std::log(2.0) / (double)bytes;
    if (o.json) {
        return fmt::format(R"("tokens":{},"seq_len":{},"stride":{},"rows":{},"loss":{:.9g},)", tokens, T,
                           o.stride > 0 ? o.stride : T, data.num_rows(), loss) +
               fmt::format(R"("bytes":{},"bits_per_byte":{})", bytes,
                           bytes > 0 ? fmt::format("{:.9g}", bits) : "null");
    }
    std::string before;
    if (o.stride > 0) {
        before = fmt::format(", each from {} before it or more, where there are so many", T - o.stride);
    }
    std::printf("tokens      %lld, in rows of %d%s%s\nloss        %.4f nats/token\nperplexity  %.3f\n",
                (long long)tokens, T,
                align == ValidationData::Align::kDocument ? ", each document from the start of a row" : "",
                before.c_str(), loss, std::exp(loss));
    if (bytes > 0) {
        std::printf("bits/byte   %.4f, over %lld bytes of text\n", bits, (long long)bytes);
    } else {
        std::printf("bits/byte   n/a: no tokenizer says how long the tokens are. Give --tokenizer.\n");
    }
    return "";
}

std::string evaluate_hellaswag(const EvalFile& file, const CommandOptions& o, Model* model, int T) {
    const auto losses = [&](const Batch& batch) { return evaluate(model, batch); };
    const HellaSwagScore score = *score_hellaswag(file, o.batch, T, losses);  // a signal ends a sub-command
    if (score.cut > 0) {
        note(fmt::format(
            "{} endings are longer with their context than {} tokens: only the last of these count",
            score.cut, T));
    }
    if (o.json) {
        return fmt::format("\"hellaswag\":{{\"examples\":{},\"accuracy\":{:.9g},\"normalised\":{:.9g}",
                           score.examples, score.accuracy(), score.normalised()) +
               (o.per_question ? fmt::format(",\"questions\":[{}]}}", fmt::join(score.questions, ",")) : "}");
    }
    std::printf(
        "HellaSwag   %lld examples\naccuracy    %.4f, by the lowest sum of losses\n"
        "normalised  %.4f, by the lowest mean of a token, as llm.c's (lm-evaluation-harness: of a byte)\n",
        (long long)score.examples, score.accuracy(), score.normalised());
    return "";
}

// How often this run's models were evaluated on these data, this time included: each time leaves a line in the run's evals.jsonl,
// so that a figure of a test part can say whether it is the first. Nothing of a model without a run, or where no line can
// be written.
std::optional<int64_t> count_evaluation(const CommandOptions& o, const NamedModel& named) {
    const auto is_run = [](const std::string& f) { return file_kind(f + "/log.jsonl") == FileKind::kFile; };
    const std::string& folder = named.folder;
    const std::string run = is_run(folder) ? folder : folder_of(folder);  // of a checkpoint with a tokenizer
    if (!is_run(run)) { return std::nullopt; }
    const std::string path = run + "/evals.jsonl", begin = "{\"data\":" + json_text(o.data) + ",";
    std::istringstream lines(file_kind(path) == FileKind::kFile ? *read_whole(path) : "");
    int64_t times = 1;
    for (std::string line; std::getline(lines, line);) { times += line.starts_with(begin); }
    const std::string line =
        begin + fmt::format("\"model\":{},\"stride\":{},\"time\":{}}}\n", json_text(named.path), o.stride,
                            (int64_t)std::time(nullptr));
    const Descriptor file(open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666));
    if (file < 0 || write(file, line.data(), line.size()) != (ssize_t)line.size()) {
        note(fmt::format("{}: {}: this evaluation is not counted", path, std::strerror(errno)));
        return std::nullopt;
    }
    return times;
}

int evaluate(const CommandOptions& o, const Engine& engine) {
    const NamedModel named = find_model(o);
    const GPT2Config& c = named.source->config();
    const int T = o.seq_len > 0 ? o.seq_len : std::min(c.max_seq_len, 1024);
    if (T > c.max_seq_len) {
        throw Error(kExitUsage, "--seq-len {} is more than the {} positions of the model", T, c.max_seq_len);
    }
    if (o.stride > T) {
        throw Error(
            kExitUsage,
            "--stride {} is more than the {} tokens of a row: some tokens would be in none. Give 1 to {}.",
            o.stride, T, T);
    }
    const std::optional<Tokenizer> tokenizer = find_tokenizer(o, named);
    std::optional<EvalFile> questions;
    if (!o.hellaswag.empty()) {
        const bool same = same_ids(tokenizer, c.vocab_size, questions.emplace(o.hellaswag).vocab_size());
        if (!same) { require_vocabulary(*questions, c.vocab_size, named.path); }
    }
    const std::unique_ptr<Model> model = engine.evaluator(*named.source, o.dtype, o.batch, T);
    std::string json;
    if (!o.data.empty()) {
        json = evaluate_shards(o, c, tokenizer, model.get(), T);
        const std::optional<int64_t> times = count_evaluation(o, named);
        if (o.json && times) { json += fmt::format(",\"evaluations\":{}", *times); }
    }
    if (questions) { json += (json.empty() ? "" : ",") + evaluate_hellaswag(*questions, o, model.get(), T); }
    if (o.json) { std::printf("{%s}\n", json.c_str()); }
    require_printed();
    return kExitDone;
}

}  // namespace

std::optional<CommandOptions> parse_command(int argc, const char* const* argv) {
    CommandOptions o;
    o.command = argv[1];
    Table t(std::string(argv[0]) + " " + o.command);
    t.add("MODEL", &o.model, {.required = true},
          "the folder of a run (its model.bin, or its newest checkpoint), a checkpoint (step_00001000), "
          "*.bin of ours or llm.c's, or a folder with Hugging Face's GPT-2 (config.json, model.safetensors), "
          "or a *.safetensors in it");
    t.add("--best", &o.best, "MODEL is the folder of a run with --keep-best: of its checkpoints the best");
    t.add("--tokenizer PATH", &o.tokenizer, "default: the one beside the model, or bytes");
    (o.command == "generate" ? add_generate : o.command == "export" ? add_export : add_eval)(t, o);
    if (!t.parse(argc, argv, 2)) { return std::nullopt; }
    const bool nothing = o.command == "eval" && o.data.empty() && o.hellaswag.empty();
    if (nothing) { t.fail("\ngive --data, --hellaswag or both."); }
    if (o.interactive && o.prompt == "-") { t.fail("\n--interactive does not go with --prompt -."); }
    return o;
}

std::optional<int> run_command(int argc, char** argv, const Engine& engine) {
    if (argc > 1 && argv[1] == std::string("report")) { return report_command(argc, argv); }
    if (argc < 2 || !among("generate export eval", argv[1])) { return std::nullopt; }
    const std::optional<CommandOptions> o = parse_command(argc, argv);
    if (!o) { return kExitDone; }
    settle_threads();
    if (o->command == "generate") { return Generator(*o, engine).run(); }
    return o->command == "export" ? export_model(*o) : evaluate(*o, engine);
}

}  // namespace llmc

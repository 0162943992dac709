// make_hellaswag: HellaSwag's questions as published (JSONL) -> token ids, in the format of llm.c's file.
#include <cstdio>
#include <fstream>
#include <iostream>

#include "data/inputs.h"
#include "llmc/host/base/error.h"
#include "llmc/host/base/stop_signal.h"
#include "llmc/host/base/text.h"
#include "llmc/host/files/file_io.h"
#include "llmc/host/options/table.h"
#include "llmc/host/tokens/dataloader.h"
#include "llmc/host/tokens/tokenizer.h"

namespace llmc {

struct Settings {
    std::string input, out, tokenizer;
};

const char* const kDescription =
    "Makes the file of questions that ./train_gpt2 eval --hellaswag and --hellaswag in training take, of "
    "HellaSwag's\n"
    "examples: lines of JSON with a context \"ctx\", four \"endings\", and the number of the right one, "
    "\"label\".";

const char* const kFooter =
    "The ids are those of the context, and of each ending with a blank before it. hellaswag_val.jsonl is "
    "what\n"
    "https://github.com/rowanz/hellaswag publishes (10,042 examples); its test part has no labels.\n"
    "\n"
    "Example:\n"
    "  data/make_hellaswag hellaswag_val.jsonl --tokenizer gpt2 --out data/hellaswag_val.bin\n"
    "  ./train_gpt2 eval gpt2 --hellaswag data/hellaswag_val.bin\n"
    "\n"
    "Exit codes: 0 done, 2 bad option or unwritable folder, 3 bad input, 7 writing failed.\n";

// 0 to 3, as a number or as a text
int label_of(const JsonValue& object, const std::string& where) {
    const JsonValue* value = json_find(&object, "label");
    std::string found = value == nullptr ? "none, as in the test part; use the validation part" : "another";
    if (const auto* number = json_as<int64_t>(value)) { found = std::to_string(*number); }
    if (const auto* text = json_as<std::string>(value)) { found = *text; }
    if (found.size() == 1 && found[0] >= '0' && found[0] < '0' + kEvalEndings) { return found[0] - '0'; }
    throw Error(kExitBadInput, "{}: expected a \"label\" of 0 to {}, found {}", where, kEvalEndings - 1,
                found);
}

void add_example(const JsonValue& object, const std::string& where, const Tokenizer& tokenizer,
                 EvalFileWriter* out) {
    const std::vector<int> context = tokenizer.encode(text_field(object, "ctx", where));
    const int label = label_of(object, where);
    const auto* values = json_get<JsonValue::array_t>(object, "endings");
    if (values == nullptr || values->size() != kEvalEndings) {
        throw Error(kExitBadInput, "{}: expected a list of {} \"endings\", found {}", where, kEvalEndings,
                    values == nullptr ? "none" : std::to_string(values->size()));
    }
    std::array<std::vector<int>, kEvalEndings> endings;
    for (size_t k = 0; k < kEvalEndings; k++) {
        const auto* text = json_as<std::string>(&(*values)[k]);
        if (text == nullptr || text->empty()) {
            throw Error(kExitBadInput, "{}: expected a text as ending {}, found none", where, k);
        }
        endings[k] = tokenizer.encode(" " + *text);
    }
    out->add(label, context, endings, where);
}

void make_hellaswag(const Settings& settings) {
    const Tokenizer tokenizer =
        settings.tokenizer.empty() ? Tokenizer::bytes() : Tokenizer::load(settings.tokenizer);
    (void)tokenizer.encode("");  // can it?
    if (tokenizer.shard_vocab() > EvalFileWriter::kMostTokens) {
        throw Error(kExitBadInput,
                    "--tokenizer {}: it has {} tokens, more than the 65,536 that this file's format can hold",
                    settings.tokenizer, tokenizer.shard_vocab());
    }
    std::ifstream file;
    if (settings.input != "-") {
        file.open(settings.input, std::ios::binary);
        if (!file) {
            throw Error(kExitBadInput,
                        settings.input + ": cannot open: expected a file that you may read, check its name");
        }
    }
    require_no_input(settings.out, settings.input);
    std::istream& in = settings.input == "-" ? std::cin : file;
    EvalFileWriter out(tokenizer.shard_vocab());
    JsonLines lines([&](const JsonValue& object, const std::string& where) {
        add_example(object, where, tokenizer, &out);
    });
    lines.begin_file(settings.input == "-" ? "standard input" : settings.input);
    std::vector<char> buffer(1 << 20);
    for (bool first = true; in.read(buffer.data(), (std::streamsize)buffer.size()), in.gcount() > 0;
         first = false) {
        if (first) {
            require_text(settings.input, {buffer.data(), (size_t)in.gcount()}, "data/make_hellaswag - ...");
        }
        lines.add(reinterpret_cast<const uint8_t*>(buffer.data()), (size_t)in.gcount());
    }
    if (in.bad()) { throw Error(kExitBadInput, settings.input + ": cannot read this file"); }
    lines.end_file();
    if (out.examples() == 0) {
        throw Error(kExitBadInput, settings.input + ": no example: the input is empty");
    }
    out.write(settings.out);
    std::printf("%zu examples, vocabulary %d: %s\n", out.examples(), tokenizer.shard_vocab(),
                settings.out.c_str());
}

}  // namespace llmc

int main(int argc, char** argv) {
    return llmc::run_program("make_hellaswag", "Use a smaller input.", [&] {
        llmc::ignore_write_signals();
        llmc::Settings settings;
        llmc::Table t("data/make_hellaswag", llmc::kDescription, llmc::kFooter);
        t.add("input", &settings.input, {.required = true}, "a file of JSONL, or - for standard input");
        t.add("--out FILE", &settings.out, {.required = true}, "the file to write");
        t.add("--tokenizer PATH", &settings.tokenizer,
              "the model's: a folder or file as of data/make_shards; without it, bytes");
        if (t.parse(argc, argv)) { llmc::make_hellaswag(settings); }
        return llmc::kExitDone;
    });
}

// data/make_corpus: writes the sample corpus, short stories of known probability, as two token shards and a
// JSON file.
//
//   DIR/train.bin  DIR/val.bin   byte-level token shards, vocabulary 257; an end-of-text (256) before every
//                                story and one at the end
//   DIR/val.json                 the entropy of val.bin's stories, and where to look for what a model learnt:
//     {"entropy_nats_per_token": Y, "tokens": predicted tokens,
//      "probes": {"repeated names": [[position, length], ...], "sums": [[position, length], ...]}}
//
// Y is the mean of -ln p over every token of val.bin but the first, where p is the probability with which
// this program chose it (the grammar is unambiguous, so it is the probability of the text:
// corpus_grammar.h). No model can expect less; loss / Y says how far one is. A probe is a run of tokens
// that the story before it determines: a name mentioned again, the result of a sum.
//
// Build and run: make data/make_corpus && data/make_corpus --help
#include <chrono>
#include <cstdio>

#include "data/corpus_grammar.h"
#include "llmc/host/base/error.h"
#include "llmc/host/base/stop_signal.h"
#include "llmc/host/base/text.h"
#include "llmc/host/files/file_io.h"
#include "llmc/host/options/table.h"
#include "llmc/host/tokens/dataloader.h"

namespace {

using namespace llmc;

constexpr int kVocab = 257;
constexpr uint16_t kEndOfText = 256;
constexpr size_t kMaxProbes = 1000;
constexpr int64_t kMostBytes = 1'000'000'000;  // positions are counted in an int
constexpr uint64_t kTrainStream = 0, kValStream = 1;

struct CorpusOptions {
    std::string out = "data/sample";
    int64_t train_bytes = 4'000'000;
    int64_t val_bytes = 200'000;
    uint64_t seed = 1;
    int show = 0;
};

struct Corpus {
    std::vector<uint16_t> tokens;
    double nats = 0;
    int64_t stories = 0;
    std::vector<Span> names, sums;  // begin counts tokens

    int64_t predicted() const { return (int64_t)tokens.size() - 1; }
};

// stories until their text reaches `bytes`
Corpus make_corpus(const Grammar& grammar, uint64_t seed, uint64_t stream, int64_t bytes) {
    Corpus corpus;
    corpus.tokens.reserve((size_t)bytes + (size_t)bytes / 64 + 2 * kMaxStoryBytes);
    while ((int64_t)corpus.tokens.size() - corpus.stories < bytes) {
        Story story = grammar.tell(seed, stream, (uint64_t)corpus.stories++);
        corpus.tokens.push_back(kEndOfText);
        int start = (int)corpus.tokens.size();
        for (Span s : story.names) { corpus.names.push_back({start + s.begin, s.length}); }
        for (Span s : story.sums) { corpus.sums.push_back({start + s.begin, s.length}); }
        for (unsigned char byte : story.text) { corpus.tokens.push_back(byte); }
        corpus.nats += story.nats;
    }
    corpus.tokens.push_back(kEndOfText);
    return corpus;
}

// every story of the corpus has one derivation, with the probability that was counted while telling it
void check_derivations(const Grammar& grammar, const Corpus& corpus) {
    double nats = 0;
    std::string text;
    for (size_t i = 1; i < corpus.tokens.size(); i++) {
        if (corpus.tokens[i] != kEndOfText) {
            text += (char)corpus.tokens[i];
            continue;
        }
        Grammar::Derivations found = grammar.derive(text);
        if (found.count != 1) {
            throw Error(kExitBadInput,
                        "corpus grammar: expected 1 derivation, found {}, of \"{}\". The source entropy "
                        "would be wrong: correct data/corpus_stories.h.",
                        found.count, text);
        }
        nats += found.nats;
        text.clear();
    }
    if (std::abs(nats - corpus.nats) > 1e-9 * corpus.nats) {
        throw Error(kExitBadInput,
                    "corpus grammar: read back, the stories cost {:.17g} nats, told they cost {:.17g}. "
                    "Telling and reading disagree: correct data/corpus_grammar.cpp.",
                    nats, corpus.nats);
    }
}

// at most kMaxProbes of them, evenly spread
std::string probes_json(const std::vector<Span>& spans) {
    size_t count = std::min(spans.size(), kMaxProbes);
    std::string json = "[";
    for (size_t i = 0; i < count; i++) {
        Span s = spans[i * spans.size() / count];
        json += fmt::format("{}[{}, {}]", i == 0 ? "" : ", ", s.begin, s.length);
    }
    return json + "]";
}

void write_json(const std::string& path, const Corpus& val) {
    std::string json = fmt::format("{{\"entropy_nats_per_token\": {:.17g}, \"tokens\": {},\n",
                                   val.nats / (double)val.predicted(), val.predicted());
    json += " \"probes\": {\"repeated names\": " + probes_json(val.names) + ",\n";
    json += "  \"sums\": " + probes_json(val.sums) + "}}\n";
    write_text_file(path, json);
}

void print_table(const Corpus& train, const Corpus& val) {
    double entropy = val.nats / (double)val.predicted();
    auto row = [](const char* split, const Corpus& c) {
        std::printf("%-10s %9lld stories %10lld bytes %10zu tokens\n", split, (long long)c.stories,
                    (long long)c.tokens.size() - c.stories - 1, c.tokens.size());
    };
    row("train", train);
    row("val", val);
    std::printf(
        "source entropy of val     %.4f nats per token  (every story has one derivation: read back)\n",
        entropy);
    std::printf("probes                    %zu repeated names, %zu sums\n",
                std::min(val.names.size(), kMaxProbes), std::min(val.sums.size(), kMaxProbes));
}

void run(const CorpusOptions& options) {
    auto start = std::chrono::steady_clock::now();
    Grammar grammar;
    // a pipe may close before all is written, as head's does
    for (int i = 0; i < options.show && std::ferror(stdout) == 0; i++) {
        std::printf("%s\n", grammar.tell(options.seed, kTrainStream, (uint64_t)i).text.c_str());
    }
    if (options.show > 0) { return require_printed(); }

    make_writable_folder(options.out);
    Corpus train = make_corpus(grammar, options.seed, kTrainStream, options.train_bytes);
    Corpus val = make_corpus(grammar, options.seed, kValStream, options.val_bytes);
    check_derivations(grammar, val);
    const std::string train_file = options.out + "/train.bin", val_file = options.out + "/val.bin";
    // nobody finds the training part of one corpus beside the validation part of another
    const auto remove_old = [&] {
        for (const char* name : {"/val.json", "/val.bin"}) { std::remove((options.out + name).c_str()); }
        sync_folder(options.out);
    };
    write_token_shard(val_file, val.tokens, kVocab,
                      [&] { write_token_shard(train_file, train.tokens, kVocab, remove_old); });
    write_json(options.out + "/val.json", val);

    print_table(train, val);
    std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    std::printf("wrote %s/train.bin val.bin val.json in %.2f s\n", options.out.c_str(), seconds.count());
}

constexpr const char* kDescription =
    "Writes the sample corpus: short English-like stories from a grammar, so that the entropy of the\n"
    "text is known and a model's loss can be compared with the lowest possible one. Same seed, same\n"
    "bytes, anywhere. Writes DIR/train.bin and DIR/val.bin (token shards, one token per byte, 256 = end\n"
    "of text) and DIR/val.json (source entropy of val.bin; where a story determines a name or a sum).";
constexpr const char* kFooter =
    "Example: PROGRAM --seed 7 --out /tmp/corpus\n"
    "         ./train_gpt2 --train-data /tmp/corpus/train.bin --val-data /tmp/corpus/val.bin\n";

}  // namespace

int main(int argc, char** argv) {
    return run_program("make_corpus", "Use a smaller --train-bytes.", [&] {
        ignore_write_signals();
        CorpusOptions options;
        Table t("data/make_corpus", kDescription, kFooter);
        t.add("--out DIR", &options.out, "folder to write to, made if missing");
        t.add("--train-bytes N", &options.train_bytes, {10'000, (double)kMostBytes},
              "bytes of text in train.bin, up to whole stories");
        t.add("--val-bytes N", &options.val_bytes, {1'000, (double)kMostBytes},
              "bytes of text in val.bin, up to whole stories");
        t.add("--seed S", &options.seed, {0, 0x1p64}, "which stories");
        t.add("--show N", &options.show, {0, 1'000'000},
              "print the first N stories of train.bin and write nothing");
        if (t.parse(argc, argv)) { run(options); }
        return kExitDone;
    });
}

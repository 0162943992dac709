// make_shards: text or JSON lines (files, folders, standard input) -> token shards for training and validation.
// The input is read once, as a stream, and nothing is kept in memory but one shard: its tokens go to
// temporary shards ("pieces") beside the result. Only when all is read is it known where the validation part
// begins; the piece in which it does is then cut in two, an end of text is put behind each part, and all get
// their names.
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <functional>

#include "data/inputs.h"
#include "data/token_stream.h"
#include "llmc/host/base/error.h"
#include "llmc/host/base/resources.h"
#include "llmc/host/base/stop_signal.h"
#include "llmc/host/base/text.h"
#include "llmc/host/files/file_io.h"
#include "llmc/host/options/choices.h"
#include "llmc/host/options/table.h"
#include "llmc/host/tokens/dataloader.h"
#include "llmc/host/tokens/tokenizer.h"

namespace llmc {

namespace fs = std::filesystem;

constexpr int64_t kMaxShardTokens = 2147483645;  // 2^31 - 1, less an end of text before and behind
constexpr size_t kReadBytes = 1 << 20;

struct Settings {
    std::vector<std::string> inputs;
    std::string out, tokenizer;  // tokenizer: "" = bytes
    double val_fraction = 0.1;
    std::vector<int>
        parts;  // tokens of training, validation and, if there are three, test; none = val_fraction
    std::string documents = "file", json_field;  // json_field: "" = the input is text
    int64_t shard_tokens = 100'000'000;
    bool as_is = false, skip_bad_lines = false;  // as_is: the input need not be text
};

const char* const kDescription =
    "Makes token shards for training and validation of any text: one token per byte, and one for the end of\n"
    "a text (id 256), or with --tokenizer those of GPT-2 or another byte-level BPE. Nothing is lost: "
    "without\n"
    "the ends of text, the shards hold the bytes of the input.";

const char* const kFooter =
    "Documents. An end of text goes before each, so that the model learns where something new begins:\n"
    "  file       each file is one, and so is standard input\n"
    "  paragraph  blank lines separate them: the first belongs to the one before, more to the one after\n"
    "  line       each line is one; blank lines belong to the one before\n"
    "  none       no end of text anywhere: the shards hold the input and nothing else\n"
    "With --json-field each line of the input is a JSON object, and its text of this name is a document.\n"
    "\n"
    "Validation gets the end of the input: the last documents, up to --val-fraction of all tokens. Where\n"
    "these are less than half of that, as with one single document, a document is cut (after a line if\n"
    "possible), and validation gets its last part. --parts cuts at exact tokens instead.\n"
    "\n"
    "Examples:\n"
    "  data/make_shards book.txt --out data/book\n"
    "      writes data/book_train_000000.bin and data/book_val_000000.bin\n"
    "  data/make_shards ~/mail --documents paragraph --val-fraction 0.05 --out data/mail\n"
    "      a folder: all files in it and below, sorted by name, but no dot files and no links to folders\n"
    "  zcat corpus.gz | data/make_shards - --documents line --out data/corpus\n"
    "  zcat web.jsonl.gz | data/make_shards - --json-field text --out data/web\n"
    "\n"
    "  data/make_shards enwik8 --as-is --documents none --parts 90000000,5000000,5000000 --out data/enwik8\n"
    "      the bytes of enwik8 as they are published on: train, val and test\n"
    "  data/make_shards book.txt --tokenizer gpt2 --out data/book\n"
    "      GPT-2's tokens (50,257 of them, about 4 bytes each), from its files in the folder gpt2\n"
    "\n"
    "A tokenizer is a folder with tokenizer.json, or vocab.bpe and encoder.json, or vocab.json and\n"
    "merges.txt, or one of these files. \"<|endoftext|>\" inside a text is text like any other.\n"
    "\n"
    "The shards of an earlier run with the same --out are replaced, all of them, once this run succeeds.\n"
    "Exit codes: 0 done, 2 bad option or unwritable folder, 3 bad input, 7 writing failed.\n";

// ---- stopping ----------------------------------------------------------------------------------

// Control-C and kill: the temporary files must go, so the reading loop looks for a signal and stops by
// itself. The pipe is for a signal between that look and the wait for input, which would otherwise go on
// waiting.
volatile std::sig_atomic_t stop_signal = 0;
int stop_pipe[2] = {-1, -1};

void stop_on_signals() {
    if (pipe2(stop_pipe, O_CLOEXEC | O_NONBLOCK) != 0) { throw Error(kExitDevice, "cannot make a pipe"); }
    struct sigaction action = {};
    action.sa_handler = [](int signal) {
        stop_signal = signal;
        (void)!write(stop_pipe[1], "", 1);
    };
    for (int signal : {SIGINT, SIGTERM, SIGHUP}) { sigaction(signal, &action, nullptr); }
}

// returns when there is input, or an end of it
void wait_for_input(int fd) {
    struct pollfd both[2] = {{fd, POLLIN, 0}, {stop_pipe[0], POLLIN, 0}};
    while (stop_signal == 0 && poll(both, 2, -1) < 0 && errno == EINTR) {}
    if (stop_signal != 0) { throw Error(128 + stop_signal, "stopped by a signal; no shard was written"); }
}

// ---- reading -----------------------------------------------------------------------------------

// everything of a file, or of standard input ("-"), to `add`; as_is: text or not
void read_file(const std::string& path, bool as_is,
               const std::function<void(const uint8_t* bytes, size_t count)>& add) {
    const Descriptor file(path == "-" ? -1 : open(path.c_str(), O_RDONLY | O_CLOEXEC));
    const int fd = path == "-" ? STDIN_FILENO : file;
    const std::string name = path == "-" ? "standard input" : path;
    const auto fail = [&](const char* what) {
        throw Error(kExitBadInput,
                    "{}: cannot {}: {}. Expected a file or folder that you may read: check its name.", name,
                    what, std::strerror(errno));
    };
    if (fd < 0) { fail("open"); }

    std::vector<uint8_t> buffer(kReadBytes);
    for (bool first = !as_is, end = false; !end; first = false) {
        size_t count = 0;
        while (!end && count < kHeadBytes) {  // a pipe may give them one by one
            wait_for_input(fd);
            const ssize_t more = read(fd, buffer.data() + count, buffer.size() - count);
            if (more < 0) { fail("read"); }
            count += (size_t)more;
            end = more == 0;
        }
        if (first) {
            require_text(name, {(const char*)buffer.data(), count},
                         "data/make_shards - ... (--as-is takes any bytes)");
        }
        add(buffer.data(), count);
    }
}

void read_texts(const std::vector<std::string>& paths, bool as_is, Splitter* splitter) {
    for (const std::string& path : paths) {
        if (path.ends_with(".jsonl")) {
            std::fprintf(
                stderr,
                "%s: taken for text, braces and all. --json-field NAME makes a document of a text in "
                "each line's object.\n",
                terminal_text(path).c_str());
        }
        splitter->begin_file();
        read_file(path, as_is, [&](const uint8_t* bytes, size_t count) { splitter->add(bytes, count); });
        splitter->end_file();
    }
}

// the field of each line's object is a document
void read_json_lines(const std::vector<std::string>& paths, const Settings& settings, Splitter* splitter) {
    int64_t skipped = 0;
    const auto add = [&](const JsonValue& object, const std::string& where) {
        const std::string& text = text_field(object, settings.json_field, where);
        splitter->begin_file();
        splitter->add(reinterpret_cast<const uint8_t*>(text.data()), text.size());
        splitter->end_file();
    };
    JsonLines lines(add, [&](const Error& e) {
        if (!settings.skip_bad_lines) {
            throw Error(e.exit_code, "{}. --skip-bad-lines leaves such lines out.", e.what());
        }
        if (skipped++ < 3) { std::fprintf(stderr, "skipped: %s\n", terminal_text(e.what()).c_str()); }
    });
    for (const std::string& path : paths) {
        lines.begin_file(path == "-" ? "standard input" : path);
        read_file(path, false, [&](const uint8_t* bytes, size_t count) { lines.add(bytes, count); });
        lines.end_file();
    }
    if (skipped > 0) { std::fprintf(stderr, "skipped %lld lines in all\n", (long long)skipped); }
}

// ---- from pieces to shards ---------------------------------------------------------------------

struct Cut {
    int64_t position;  // of the first token for validation
    bool in_document;  // what was one document becomes two
};

Cut find_cut(const Pieces& pieces, double val_fraction) {
    const int64_t n = pieces.num_tokens();
    if (val_fraction == 0) { return {n, false}; }
    if (n < 3) {
        throw Error(kExitBadInput, "one token cannot be split: use --val-fraction 0, or more text");
    }
    // each part gets a byte at least; every document has one
    const int64_t wanted = n - std::clamp<int64_t>(std::llround((double)n * val_fraction), 1, n - 2);
    const int64_t latest = wanted + (n - wanted) / 2;
    const int64_t document =
        pieces.has_ends() ? pieces.find((uint16_t)pieces.end_of_text(), wanted - 1, latest + 1) : -1;
    if (document >= 0) { return {document, false}; }
    const int64_t newline = pieces.find((uint16_t)pieces.newline(), wanted - 1, latest);
    return {newline >= 0 ? newline + 1 : wanted, true};
}

struct Shard {
    std::string temporary, name;
};

// tokens [begin, end) of the input, and the shards that they become
struct Split {
    const char *what, *name;  // "training", "train"
    int64_t begin = 0, end = 0;
    bool in_document = false;  // begins inside one
    std::vector<Shard> shards = {};
};
using Splits = std::array<Split, 3>;

Splits find_splits(const Pieces& pieces, const Settings& settings) {
    const int64_t n = pieces.num_tokens();
    Splits splits = {{{"training", "train"}, {"validation", "val"}, {"test", "test"}}};
    if (settings.parts.empty()) {
        const Cut cut = find_cut(pieces, settings.val_fraction);
        splits[0].end = splits[1].begin = cut.position;
        splits[1].end = splits[2].begin = splits[2].end = n;
        splits[1].in_document = cut.in_document;
        return splits;
    }
    int64_t at = 0;
    for (size_t i = 0; i < splits.size(); i++) {
        splits[i].begin = at;
        splits[i].end = at += i < settings.parts.size() ? settings.parts[i] : 0;
    }
    if (at == n) { return splits; }
    throw Error(kExitBadInput,
                "{}: found {} tokens, expected the {} of --parts. Correct --parts, or give all of the input.",
                settings.inputs[0], n, at);
}

std::string prefix_of(const std::string& out, const Split& split) { return out + "_" + split.name; }

// Makes the shards of a split, of one piece each, with an end of text behind the last and, if the split begins
// in a document, before the first. All that is left to do is to rename them.
void write_split(const Pieces& pieces, const std::string& out, Temporaries* files, Split* split) {
    const std::string prefix = prefix_of(out, *split);
    bool in_document = split->in_document && pieces.has_ends();
    for (int64_t begin = split->begin, stop; begin < split->end; begin = stop) {
        stop = std::min(split->end, pieces.piece_end(begin));
        const bool last = stop == split->end;
        std::string temporary = pieces.path(begin);
        if (last || in_document || begin != pieces.piece_begin(begin)) {
            const TokenShard piece(temporary);
            std::vector<uint16_t> tokens;
            tokens.reserve((size_t)(stop - begin) + 2);
            if (in_document) { tokens.push_back((uint16_t)pieces.end_of_text()); }
            tokens.resize(tokens.size() + (size_t)(stop - begin));
            piece.read(begin - pieces.piece_begin(begin), std::span(tokens).last((size_t)(stop - begin)));
            if (last && pieces.has_ends()) { tokens.push_back((uint16_t)pieces.end_of_text()); }
            temporary = files->next();
            write_token_shard(temporary, tokens, pieces.vocab_size());
        }
        split->shards.push_back({temporary, fmt::format("{}_{:06}.bin", prefix, split->shards.size())});
        in_document = false;
    }
}

// the shards PREFIX_i.bin of an earlier run, from the i-th on; says so of those that get no successor
void remove_shards(const std::string& prefix, size_t i, size_t successors) {
    for (;; i++) {
        const std::string name = fmt::format("{}_{:06}.bin", prefix, i);
        if (unlink(name.c_str()) == 0) {
            if (i >= successors) { put_text(stdout, "removed " + name + ", of an earlier run\n"); }
        } else if (errno == ENOENT) {
            return;
        } else {
            throw Error(kExitSaveFailed, name + ": cannot remove it: " + std::strerror(errno));
        }
    }
}

void rename_shards(const std::vector<Shard>& shards) {
    for (const Shard& shard : shards) {
        if (std::rename(shard.temporary.c_str(), shard.name.c_str()) != 0) {
            throw Error(kExitSaveFailed, shard.name + ": cannot replace it: " + std::strerror(errno));
        }
    }
}

// Gives the shards their names, in place of those of an earlier run. Until all is done the training shards,
// which then are of two sets, are refused, or the other parts are missing: nobody trains on a mixture.
void publish(const std::string& out, const Splits& splits) {
    uint64_t id = 0;  // a function of the tokens, so that the same input makes the same files
    for (const Split& split : splits) {
        for (const Shard& shard : split.shards) {
            id = (id ^ digest_file(shard.temporary, kHeaderBytes).value().xxh3) * 0x9e3779b97f4a7c15;
        }
    }
    for (const Split& split : splits) {
        for (const Shard& s : split.shards) {
            mark_token_shard(s.temporary, id | 1, (int)split.shards.size());
        }
    }
    const std::string folder = fs::path(out).parent_path().string();
    const std::span others = std::span(splits).subspan(1);
    for (const Split& split : others) { remove_shards(prefix_of(out, split), 0, split.shards.size()); }
    sync_folder(folder.empty() ? "." : folder);
    rename_shards(splits[0].shards);
    remove_shards(prefix_of(out, splits[0]), splits[0].shards.size(), splits[0].shards.size());
    for (const Split& split : others) { rename_shards(split.shards); }
    sync_folder(folder.empty() ? "." : folder);
}

// ---- the program -------------------------------------------------------------------------------

// a name as a pattern that matches only itself
std::string literal(const std::string& name) {
    std::string pattern;
    for (char c : name) {
        if (std::strchr("*?[\\", c) != nullptr) { pattern += '\\'; }
        pattern += c;
    }
    return pattern.starts_with('~') ? "./" + pattern : pattern;
}

void print_split(const Split& split, bool has_ends) {
    const std::vector<Shard>& shards = split.shards;
    if (shards.empty()) { return; }
    const int64_t tokens = split.end - split.begin + has_ends * (1 + split.in_document);
    put_text(stdout, fmt::format("{:11} {} tokens in {} shard{}: {}{}\n", split.what, count_text(tokens),
                                 shards.size(), shards.size() == 1 ? "" : "s", shards.front().name,
                                 shards.size() == 1 ? "" : (" to " + shards.back().name)));
}

// the command that trains on them, and the one that measures on the test part
void print_next(const Settings& settings, const Splits& splits) {
    std::array<std::string, 3> patterns;
    for (size_t i = 0; i < splits.size(); i++) {
        const std::string pattern = literal(prefix_of(settings.out, splits[i])) + "_*.bin";
        patterns[i] = splits[i].shards.empty() ? "none" : shell_word(pattern);
    }
    const std::string tokenizer =
        settings.tokenizer.empty() ? "" : " --tokenizer " + shell_word(settings.tokenizer);
    std::printf("next: ./train_gpt2 --train-data %s --val-data %s%s\n", patterns[0].c_str(),
                patterns[1].c_str(), tokenizer.c_str());
    if (splits[2].shards.empty()) { return; }
    std::printf("then: ./train_gpt2 eval RUN --data %s\n", patterns[2].c_str());
}

// throws unless the tokenizer can make shards
Tokenizer open_tokenizer(const std::string& path) {
    if (path.empty()) { return Tokenizer::bytes(); }
    Tokenizer t = Tokenizer::load(path);
    constexpr int kMost = 1 << 16;
    const char* problem = !t.can_encode()       ? "it lists the tokens, but not how a text is cut into them"
                          : t.end_of_text() < 0 ? "it has no token (eos_token) to go before each document"
                          : t.shard_vocab() > kMost
                              ? "it has more than 65,536 tokens, which shards cannot hold"
                              : nullptr;
    if (problem != nullptr) {
        throw Error(kExitBadInput, "--tokenizer {}: {}. Give the folder of GPT-2's, or of one like it.", path,
                    problem);
    }
    return t;
}

void make_shards(const Settings& settings) {
    const fs::path prefix(settings.out);
    if (!prefix.has_filename()) {
        throw Error(kExitUsage, "--out {}: a folder; add how names begin, as in --out {}mytext", settings.out,
                    settings.out);
    }
    const std::vector<std::string> paths = list_files(settings.inputs);
    for (const std::string& path : paths) { require_no_shard(prefix, path); }
    const Tokenizer tokenizer = open_tokenizer(settings.tokenizer);
    make_writable_folder(prefix.has_parent_path() ? prefix.parent_path().string() : ".");

    Temporaries files(settings.out);
    const std::vector<int> newline = tokenizer.encode("\n");
    const bool has_ends = settings.documents != "none";
    Pieces pieces(settings.shard_tokens, tokenizer.shard_vocab(), has_ends ? tokenizer.end_of_text() : -1,
                  newline[0], &files);
    int64_t bytes = 0;  // known to be there, of a token each
    for (const std::string& path : paths) {
        std::error_code none;  // of a pipe
        const auto size = (int64_t)fs::file_size(path, none);
        bytes += none ? 0 : size;
    }
    if (tokenizer.is_bytes() && settings.json_field.empty()) { pieces.require_room(bytes); }
    TextEncoder encoder(tokenizer, &pieces);
    Splitter splitter(settings.documents, &encoder);
    const bool json = !settings.json_field.empty();
    json ? read_json_lines(paths, settings, &splitter) : read_texts(paths, settings.as_is, &splitter);
    encoder.finish();
    if (splitter.num_bytes() == 0) { throw Error(kExitBadInput, "no text: the input is empty"); }

    Splits splits = find_splits(pieces, settings);
    for (Split& split : splits) { write_split(pieces, settings.out, &files, &split); }
    publish(settings.out, splits);

    const std::string documents =
        fmt::format("documents (one per {}): {}", json ? "line" : settings.documents,
                    count_text(splitter.num_documents()));
    std::printf("%-11s %s bytes, %s\n", "input", count_text(splitter.num_bytes()).c_str(),
                has_ends ? documents.c_str() : "no ends of text");
    for (const Split& split : splits) { print_split(split, pieces.has_ends()); }
    print_next(settings, splits);
}

}  // namespace llmc

int main(int argc, char** argv) {
    return llmc::run_program("make_shards", "Use a smaller --shard-tokens.", [&] {
        llmc::ignore_write_signals();  // its temporaries would stay
        llmc::Settings settings;
        llmc::Table t("data/make_shards", llmc::kDescription, llmc::kFooter);
        t.add("inputs", &settings.inputs, {.required = true, .repeats = true},
              "files of text or JSON lines, folders, or - for standard input");
        t.add("--out PREFIX", &settings.out, {.required = true},
              "how the names of the shards begin; their folder is made");
        t.add("--tokenizer PATH", &settings.tokenizer, "a file or folder, see below; without it, bytes");
        t.add("--documents NAME", &settings.documents, {.choices = "file paragraph line none"},
              "what an end of text goes before");
        t.add("--json-field NAME", &settings.json_field, {.rivals = "documents as-is"},
              "the input is JSON lines (JSONL): the name of each object's text, which is a document; without "
              "--documents and --as-is");
        t.add("--skip-bad-lines", &settings.skip_bad_lines, {.needed = "json-field"},
              "with --json-field: leave out the lines without such a text, count them, and name the first "
              "three");
        t.add("--as-is", &settings.as_is, "take compressed, binary and HTML files, too, byte by byte");
        t.add("--val-fraction X", &settings.val_fraction, {0, 0.9}, "part that validation gets; 0 = none");
        t.add("--parts N,N[,N]", &settings.parts,
              {.range = {1, llmc::kMaxInt}, .rivals = "val-fraction", .listed = true},
              "tokens of training, validation and test, which are all that there are; with --documents none");
        t.add("--shard-tokens N", &settings.shard_tokens, {16, (double)llmc::kMaxShardTokens, "tokens"},
              "tokens in a shard, which is held in memory");
        if (!t.parse(argc, argv)) { return llmc::kExitDone; }
        const bool exact = settings.documents == "none" && settings.parts.size() > 1;
        if (!settings.parts.empty() && (!exact || settings.parts.size() > 3)) {
            t.fail(
                "\n--parts needs two or three sizes, and --documents none: an end of text would be one "
                "more.");
        }
        llmc::stop_on_signals();
        llmc::settle_threads();
        llmc::make_shards(settings);
        return llmc::kExitDone;
    });
}

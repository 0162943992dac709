// Models and training states on disk: see checkpoint.h.
#include "llmc/model/checkpoint.h"

#include <unistd.h>
#include <algorithm>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <vector>

#include "llmc/host/error.h"
#include "llmc/host/number_formats.h"
#include "llmc/host/read_file.h"
#include "llmc/model/finite.h"

namespace llmc {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kPiece = 1 << 20;  // elements moved at a time
constexpr int32_t kOptimizerMagic = 20261120, kOptimizerVersion = 1;
constexpr const char* kRecordFile = "run.json";
constexpr const char* kFiles[] = {"model.bin", "optimizer.bin", kRecordFile};  // MANIFEST's lines
constexpr int64_t kMostManifestBytes = 1 << 16, kMostRecordBytes = 1 << 24;

// calls visit(tensor, first, count) over all tensors in file order, in pieces
template <typename Visit>
void for_each_piece(const GPT2Config& config, Visit visit) {
    for (int t = 0; t < kNumTensors; t++) {
        int64_t total = tensor_total(config, t);
        for (int64_t first = 0; first < total; first += kPiece) {
            visit(t, first, std::min(kPiece, total - first));
        }
    }
}

// the six sizes, each range-checked, and the rules between them
GPT2Config read_config(const HeaderReader& header, int first_word) {
    GPT2Config c;
    c.max_seq_len = header.field(first_word, "max_seq_len", 1, 1 << 20);
    c.vocab_size = header.field(first_word + 1, "vocab_size", 1, 1 << 20);
    c.num_layers = header.field(first_word + 2, "num_layers", 1, 1024);
    c.num_heads = header.field(first_word + 3, "num_heads", 1, 65536);
    c.channels = header.field(first_word + 4, "channels", 1, 65536);
    c.padded_vocab_size = header.field(first_word + 5, "padded_vocab_size", c.vocab_size, (1 << 20) + 1024);
    if (c.channels % c.num_heads != 0) {
        header.fail(strf("header word %d, num_heads", first_word + 3), strf("%d", c.num_heads),
                    strf("a divisor of channels = %d", c.channels));
    }
    return c;
}

void write_config(int32_t* words, const GPT2Config& c) {
    const int32_t sizes[] = {c.max_seq_len, c.vocab_size, c.num_layers,
                             c.num_heads,   c.channels,   c.padded_vocab_size};
    std::copy(std::begin(sizes), std::end(sizes), words);
}

// header + elements x width; the limits of read_config keep this far from overflowing 64 bits
uint64_t body_bytes(const GPT2Config& c, uint64_t width) {
    uint64_t bytes, total;
    require(multiply_fits((uint64_t)file_elements(c), width, &bytes) && add_fits(bytes, kHeaderBytes, &total),
            "model sizes overflow");
    return total;
}

std::string describe(const GPT2Config& c) {
    return strf("a model of %d layers, %d channels, vocabulary %d (padded %d), %d positions", c.num_layers,
                c.channels, c.vocab_size, c.padded_vocab_size, c.max_seq_len);
}

}  // namespace

ModelFile::ModelFile(const std::string& path) : file_(path) {
    HeaderReader header(file_, "model file", kModelMagic,
                        "Models are written by train_gpt2 (model.bin in the run folder) and by llm.c.");
    version_ = header.field(1, "version", INT32_MIN, INT32_MAX);
    if (version_ != kModelFp32 && version_ != kModelBf16) {
        header.fail("header word 1, version", strf("%d", version_), "3 (fp32) or 5 (bf16)");
    }
    config_ = read_config(header, 2);
    header.require_size(body_bytes(config_, version_ == kModelFp32 ? 4 : 2), describe(config_));
    int64_t at = 0;
    for (int t = 0; t < kNumTensors; t++) {
        tensor_start_[t] = at;
        at += tensor_total(config_, t);
    }
}

void ModelFile::read(int tensor, int64_t first, std::span<float> values) const {
    require(first >= 0 && first <= tensor_total(config_, tensor) - (int64_t)values.size(),
            "range outside of the tensor");
    const std::byte* body = file_.data() + kHeaderBytes;
    int64_t at = tensor_start_[tensor] + first;
    if (version_ == kModelFp32) {
        std::memcpy(values.data(), body + at * 4, values.size_bytes());
        return;
    }
    for (size_t i = 0; i < values.size(); i++) {
        uint16_t bits;
        std::memcpy(&bits, body + (at + (int64_t)i) * 2, 2);
        values[i] = from_bf16(bits);
    }
}

void write_model_file(const std::string& path, const GPT2Config& config, int32_t version,
                      const ReadTensor& read) {
    require(version == kModelFp32 || version == kModelBf16, "write_model_file: version must be 3 or 5");
    int32_t header[kHeaderWords] = {kModelMagic, version};
    write_config(header + 2, config);
    FileWriter out(path);
    out.write(header, sizeof(header));
    std::vector<float> piece(kPiece);
    std::vector<uint16_t> narrow(kPiece);
    for_each_piece(config, [&](int tensor, int64_t first, int64_t count) {
        read(State::kParameter, tensor, first, {piece.data(), (size_t)count});
        if (version == kModelBf16) {  // a large number may become infinity
            std::transform(piece.begin(), piece.begin() + count, narrow.begin(), to_bf16);
            std::transform(narrow.begin(), narrow.begin() + count, piece.begin(), from_bf16);
        }
        require_finite_output(path, State::kParameter, tensor, first, {piece.data(), (size_t)count});
        if (version == kModelFp32) {
            out.write(piece.data(), count * sizeof(float));
        } else {
            out.write(narrow.data(), count * sizeof(uint16_t));
        }
    });
    out.commit();
}

// ---- checkpoints -------------------------------------------------------------------------------

namespace {

// optimizer.bin: header (magic, version, the six sizes of the model, TrainingState as six pairs of words),
// then the first and the second moments, each fp32 in file order
static_assert(sizeof(TrainingState) == 6 * 8);
void write_optimizer_file(const std::string& path, const GPT2Config& config, const TrainingState& state,
                          const ReadTensor& read) {
    int32_t header[kHeaderWords] = {kOptimizerMagic, kOptimizerVersion};
    write_config(header + 2, config);
    std::memcpy(header + 8, &state, sizeof(state));
    FileWriter out(path);
    out.write(header, sizeof(header));
    std::vector<float> piece(kPiece);
    for (State moment : {State::kFirstMoment, State::kSecondMoment}) {
        for_each_piece(config, [&](int tensor, int64_t first, int64_t count) {
            read(moment, tensor, first, {piece.data(), (size_t)count});
            require_finite_output(path, moment, tensor, first, {piece.data(), (size_t)count});
            out.write(piece.data(), count * sizeof(float));
        });
    }
    out.commit();
}

void write_text_file(const std::string& path, const std::string& text) {
    FileWriter out(path);
    out.write(text.data(), text.size());
    out.commit();
}

// a line of MANIFEST: of a file as it is
std::string fingerprint(const std::string& folder, const char* name) {
    auto digest = digest_file(folder + "/" + name);
    if (!digest) { throw Error(kExitBadInput, strf("%s/%s is missing", folder.c_str(), name)); }
    return strf("%lld %016" PRIx64 " %s", (long long)digest->bytes, digest->xxh3, name);
}

// "" if a file is what its line of MANIFEST says, else what is wrong
std::string damage_of_file(const std::string& folder, const char* name, const std::string& expected) {
    std::string found = fingerprint(folder, name);
    if (found == expected) { return ""; }
    return strf("%s/%s is damaged: found \"%s\" (size, XXH3, name), expected \"%s\" as in MANIFEST",
                folder.c_str(), name, found.c_str(), expected.substr(0, 200).c_str());
}

RunRecord require_intact(const std::string& folder) {
    CheckpointFacts facts = inspect_checkpoint(folder);
    if (facts.damage.empty()) { return facts.record; }
    throw Error(kExitBadInput, facts.damage +
                                   ". Name an intact step_ folder, or let --resume auto --out RUN "
                                   "find the newest.");
}

// temporary -> name. A checkpoint of this very step, from before a resume, is deleted only when the new one
// is in place.
void move_into_place(const std::string& temporary, const std::string& name) {
    std::error_code error;
    std::string old = temporary + "0";  // this name, too, is a leftover to remove_leftovers
    fs::rename(name, old, error);
    if (error && error != std::errc::no_such_file_or_directory) {
        throw Error(kExitSaveFailed,
                    strf("%s: cannot be replaced: %s", name.c_str(), error.message().c_str()));
    }
    bool replaces = !error;
    fs::rename(temporary, name, error);
    if (error) {
        std::string why = error.message();
        if (replaces) { fs::rename(old, name, error); }
        throw Error(kExitSaveFailed,
                    strf("%s: cannot be renamed to %s: %s", temporary.c_str(), name.c_str(), why.c_str()));
    }
    if (replaces) { fs::remove_all(old, error); }
}

}  // namespace

std::string checkpoint_name(const std::string& run_folder, int64_t step) {
    return strf("%s/step_%08lld", run_folder.c_str(), (long long)step);
}

void save_checkpoint(const std::string& run_folder, const GPT2Config& config, const TrainingState& state,
                     const ReadTensor& read, RunRecord record) {
    std::string name = checkpoint_name(run_folder, state.step);
    std::string temporary = strf("%s.tmp-%d", name.c_str(), (int)getpid());
    record.step = state.step;
    make_writable_folder(temporary);
    try {
        write_model_file(temporary + "/model.bin", config, kModelFp32, read);
        write_optimizer_file(temporary + "/optimizer.bin", config, state, read);
        write_text_file(temporary + "/" + kRecordFile, to_json(record));
        std::string manifest;
        for (const char* file : kFiles) { manifest += fingerprint(temporary, file) + "\n"; }
        write_text_file(temporary + "/MANIFEST", manifest);
        sync_folder(temporary);
        move_into_place(temporary, name);
        sync_folder(run_folder);
    } catch (const CannotRead& e) {  // what was just written
        std::error_code ignored;
        fs::remove_all(temporary, ignored);
        throw Error(kExitSaveFailed, e.what());
    } catch (...) {
        std::error_code ignored;
        fs::remove_all(temporary, ignored);
        throw;
    }
}

CheckpointFacts inspect_checkpoint(const std::string& folder, bool contents) {
    CheckpointFacts facts;
    try {
        if (file_kind(folder) != FileKind::kFolder) {
            return {folder + ": there is no such checkpoint folder", {}};
        }
        auto manifest = read_whole(folder + "/MANIFEST", kMostManifestBytes);
        if (!manifest) { return {folder + ": not a complete checkpoint: MANIFEST is missing", {}}; }
        std::istringstream in(*manifest);
        bool has_record = file_kind(folder + "/" + kRecordFile) != FileKind::kMissing;
        for (const char* name : kFiles) {
            bool is_record = std::strcmp(name, kRecordFile) == 0;
            std::string line;
            std::getline(in, line);
            if (is_record && !has_record && line.empty()) { continue; }
            if (contents || is_record) { facts.damage = damage_of_file(folder, name, line); }
            if (!facts.damage.empty()) { return facts; }
        }
        if (manifest->empty() || manifest->back() != '\n' || in.peek() != EOF) {
            return {folder + "/MANIFEST is damaged: expected to end after its last line", {}};
        }
        if (has_record) {
            std::string path = folder + "/" + kRecordFile;
            facts.record = parse_run_record(read_whole(path, kMostRecordBytes).value_or(""), path);
        }
    } catch (const CannotRead&) { throw; } catch (const Error& e) {
        facts.damage = e.what();
    }
    return facts;
}

GPT2Config checkpoint_config(const std::string& folder) {
    require_intact(folder);
    return ModelFile(folder + "/model.bin").config();
}

TrainingState load_checkpoint(const std::string& folder, const WriteTensor& write) {
    RunRecord record = require_intact(folder);
    ModelFile model(folder + "/model.bin");
    MappedFile file(folder + "/optimizer.bin");
    HeaderReader header(file, "optimizer state", kOptimizerMagic,
                        "It belongs to a step_ folder written by train_gpt2.");
    header.field(1, "version", kOptimizerVersion, kOptimizerVersion);
    GPT2Config config = read_config(header, 2);
    if (config != model.config()) {
        header.fail("header words 2 to 7", describe(config), describe(model.config()) + ", as in model.bin");
    }
    header.require_size(body_bytes(config, 8), "two moments of " + describe(config));
    TrainingState state;
    std::memcpy(&state, file.data() + 8 * sizeof(int32_t), sizeof(state));
    if (state.step < 0 || state.updates < 0 || state.updates > state.step) {
        header.fail("header words 8 to 11, step and updates",
                    strf("%lld and %lld", (long long)state.step, (long long)state.updates),
                    "0 <= updates <= step");
    }
    if (std::min({state.seq_len, state.rows_per_step, state.train_tokens}) < 0 || state.seq_len > 1 << 20 ||
        state.rows_per_step > (int64_t)1 << 42) {
        header.fail("header words 14 to 19, seq_len, rows_per_step and train_tokens",
                    strf("%lld, %lld and %lld", (long long)state.seq_len, (long long)state.rows_per_step,
                         (long long)state.train_tokens),
                    "sizes that are not negative, the first at most 2^20, the second 2^42");
    }
    if (!record.line.empty() && record.step != state.step) {
        header.fail("header words 8 and 9, step", strf("%lld", (long long)state.step),
                    strf("%lld as in run.json", (long long)record.step));
    }
    load_model(model, write);
    const std::byte* at = file.data() + kHeaderBytes;
    std::vector<float> piece(kPiece);
    for (State moment : {State::kFirstMoment, State::kSecondMoment}) {
        for_each_piece(config, [&](int tensor, int64_t first, int64_t count) {
            std::memcpy(piece.data(), at, count * sizeof(float));
            require_finite_input(file.path(), moment, tensor, first, {piece.data(), (size_t)count});
            write(moment, tensor, first, {piece.data(), (size_t)count});
            at += count * sizeof(float);
        });
    }
    return state;
}

}  // namespace llmc

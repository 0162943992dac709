// Models and training states on disk: see checkpoint.h.
#include "llmc/model/formats/checkpoint.h"

#include <unistd.h>
#include <algorithm>
#include <charconv>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <vector>

#include "llmc/host/base/error.h"
#include "llmc/host/base/floats.h"
#include "llmc/host/files/file_io.h"
#include "llmc/host/tokens/data_files.h"
#include "llmc/model/model_source.h"

namespace llmc {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kPiece = 1 << 20;  // elements moved at a time
constexpr const char *kModelFile = "model.safetensors", *kConfigFile = "config.json",
                     *kOptimizerFile = "optimizer.safetensors", *kRecordFile = "run.json",
                     *kManifest = "MANIFEST";
constexpr const char* kFiles[] = {kModelFile, kConfigFile, kOptimizerFile, kRecordFile};  // MANIFEST's lines
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

// the six sizes in a header, from its third word on, each range-checked, and the rules between them
GPT2Config read_config(const HeaderReader& header) {
    GPT2Config c;
    c.max_seq_len = header.field(2, "max_seq_len", 1, 1 << 20);
    c.vocab_size = header.field(3, "vocab_size", 1, 1 << 20);
    c.num_layers = header.field(4, "num_layers", 1, 1024);
    c.num_heads = header.field(5, "num_heads", 1, 65536);
    c.channels = header.field(6, "channels", 1, 65536);
    c.padded_vocab_size = header.field(7, "padded_vocab_size", c.vocab_size, (1 << 20) + 1024);
    if (c.channels % c.num_heads != 0) {
        header.fail("header word 5, num_heads", fmt::format("{}", c.num_heads),
                    fmt::format("a divisor of channels = {}", c.channels));
    }
    return c;
}

// header + elements x width; the limits of read_config keep this far from overflowing 64 bits
uint64_t body_bytes(const GPT2Config& c, uint64_t width) {
    uint64_t bytes, total;
    require(multiply_fits((uint64_t)file_elements(c), width, &bytes) && add_fits(bytes, kHeaderBytes, &total),
            "model sizes overflow");
    return total;
}

std::string describe(const GPT2Config& c) {
    return fmt::format("a model of {} layers, {} channels, vocabulary {} (padded {}), {} positions",
                       c.num_layers, c.channels, c.vocab_size, c.padded_vocab_size, c.max_seq_len);
}

}  // namespace

ModelFile::ModelFile(const std::string& path) : file_(path) {
    HeaderReader header(file_, "model file", kModelMagic,
                        "Models are written by train_gpt2 (model.bin in the run folder) and by llm.c.");
    version_ = header.field(1, "version", INT32_MIN, INT32_MAX);
    if (version_ != kModelFp32 && version_ != kModelBf16) {
        header.fail("header word 1, version", fmt::format("{}", version_), "3 (fp32) or 5 (bf16)");
    }
    config_ = read_config(header);
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
    const auto at = (uint64_t)(tensor_start_[tensor] + first);
    if (version_ == kModelFp32) {
        return file_.read(kHeaderBytes + at * sizeof(float), values.data(), values.size_bytes());
    }
    std::vector<uint16_t> narrow(values.size());
    file_.read(kHeaderBytes + at * sizeof(uint16_t), narrow.data(), narrow.size() * sizeof(uint16_t));
    std::transform(narrow.begin(), narrow.end(), values.begin(), from_bf16);
}

HfFacts ModelFile::facts() const {
    try {
        const std::string newest = newest_step((fs::path(path()).parent_path() / ".").string());
        return newest.empty() ? HfFacts() : read_hf_facts(newest + "/" + kConfigFile, config_.vocab_size);
    } catch (const Error&) { return {}; }  // damage there is none here
}

void write_model_file(const std::string& path, const GPT2Config& config, int32_t version,
                      const ReadTensor& read) {
    require(version == kModelFp32 || version == kModelBf16, "write_model_file: version must be 3 or 5");
    const int32_t header[kHeaderWords] = {
        kModelMagic,       version,          config.max_seq_len, config.vocab_size,
        config.num_layers, config.num_heads, config.channels,    config.padded_vocab_size};
    FileWriter out(path);
    out.write(header, sizeof(header));
    std::vector<float> piece((size_t)std::min(kPiece, file_elements(config)));
    std::vector<uint16_t> narrow(piece.size());
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

// "first_moment.qkvw"
std::string moment_name(State state, int tensor) {
    return std::string(state == State::kFirstMoment ? "first_moment." : "second_moment.") +
           kTensors[tensor].name;
}

std::vector<int64_t> moment_shape(const GPT2Config& c, int tensor) {
    std::vector<int64_t> shape;
    if (kTensors[tensor].per_layer) { shape.push_back(c.num_layers); }
    if (kTensors[tensor].matrix) {
        shape.push_back(tensor == kWte ? c.vocab_size : kTensors[tensor].rows(c));
    }
    shape.push_back(kTensors[tensor].cols(c));
    return shape;
}

std::vector<std::pair<State, int>> moments_of(Optimizer optimizer) {
    std::vector<std::pair<State, int>> moments;
    for (State state : {State::kFirstMoment, State::kSecondMoment}) {
        for (int t = 0; t < kNumTensors; t++) {
            if (has_state(optimizer, state, t)) { moments.push_back({state, t}); }
        }
    }
    return moments;
}

Digest write_optimizer_file(const std::string& path, const GPT2Config& config, Optimizer optimizer,
                            const ReadTensor& read) {
    const std::vector<std::pair<State, int>> places = moments_of(optimizer);
    std::vector<SafetensorsTensor> tensors;
    tensors.reserve(places.size());
    for (auto [state, t] : places) { tensors.push_back({moment_name(state, t), moment_shape(config, t)}); }
    return write_safetensors(path, tensors, TensorType::kF32,
                             [&](size_t i, int64_t first, std::span<float> values) {
                                 auto [state, tensor] = places[i];
                                 read(state, tensor, first, values);
                                 require_finite_output(path, state, tensor, first, values);
                             });
}

// a model that trains, as something to export
class TrainedModel : public ModelSource {
public:
    TrainedModel(std::string path, const GPT2Config& config, const ReadTensor& read)
        : path_(std::move(path)), config_(config), read_(read) {}
    const GPT2Config& config() const override { return config_; }
    const std::string& path() const override { return path_; }
    void read(int tensor, int64_t first, std::span<float> values) const override {
        read_(State::kParameter, tensor, first, values);
        require_finite_output(path_, State::kParameter, tensor, first, values);
    }
    FloatType type() const override { return FloatType::kFp32; }

private:
    std::string path_;
    const GPT2Config& config_;
    const ReadTensor& read_;
};

// a line of MANIFEST
std::string fingerprint(const Digest& digest, const char* name) {
    return fmt::format("{} {:016x} {}", digest.bytes, digest.xxh3, name);
}

// "" if a file is what its line of MANIFEST says, else what is wrong
std::string damage_of_file(const std::string& folder, const char* name, const std::string& expected) {
    auto digest = digest_file(folder + "/" + name);
    if (!digest) { return fmt::format("{}/{} is missing", folder, name); }
    std::string found = fingerprint(*digest, name);
    if (found == expected) { return ""; }
    return fmt::format("{}/{} is damaged: found \"{}\" (size, XXH3, name), expected \"{}\" as in MANIFEST",
                       folder, name, found, expected.substr(0, 200));
}

RunRecord require_intact(const std::string& folder) {
    CheckpointFacts facts = inspect_checkpoint(folder);
    if (facts.damage.empty()) { return facts.record; }
    throw Error(kExitBadInput, facts.damage +
                                   ". Name an intact step_ folder, or let --resume auto --out RUN "
                                   "find the newest.");
}

// temporary -> name. A checkpoint of this very step is deleted only when the new one is in place; a kill before that leaves
// it as NAME.replaced, which take_back_replaced() undoes.
void move_into_place(const std::string& temporary, const std::string& name) {
    std::error_code error;
    const std::string old = name + kReplaced;
    fs::rename(name, old, error);
    if (error && error != std::errc::no_such_file_or_directory) {
        throw Error(kExitSaveFailed, fmt::format("{}: cannot be replaced: {}", name, error.message()));
    }
    bool replaces = !error;
    fs::rename(temporary, name, error);
    if (error) {
        std::string why = error.message();
        if (replaces) { fs::rename(old, name, error); }
        throw Error(kExitSaveFailed, fmt::format("{}: cannot be renamed to {}: {}", temporary, name, why));
    }
    if (replaces) { fs::remove_all(old, error); }
}

}  // namespace

std::string name_before_replaced(const std::string& name) {
    const bool replaced = name.starts_with("step_") && name.ends_with(kReplaced);
    return replaced ? name.substr(0, name.size() - std::strlen(kReplaced)) : "";
}

std::vector<StepFolder> list_steps(const std::string& run_folder) {
    std::vector<StepFolder> found;
    for (const std::string& name : folder_names(run_folder).value_or(std::vector<std::string>())) {
        if (name.size() < 13 || !name.starts_with("step_")) { continue; }
        int64_t step = 0;
        const std::string before = name_before_replaced(name);
        const bool counts = !before.empty() && file_kind(run_folder + "/" + before) == FileKind::kMissing;
        const char* end = name.data() + (counts ? before.size() : name.size());
        auto [stop, error] = std::from_chars(name.data() + 5, end, step);
        std::string path = run_folder + "/" + name;
        if (error == std::errc() && stop == end && step >= 0 && file_kind(path) == FileKind::kFolder) {
            found.push_back({path, step});
        }
    }
    std::sort(found.begin(), found.end(),
              [](const StepFolder& a, const StepFolder& b) { return a.step > b.step; });
    return found;
}

std::string newest_step(const std::string& run_folder) {
    const std::vector<StepFolder> steps = list_steps(run_folder);
    return steps.empty() ? "" : steps.front().path;
}

std::string checkpoint_name(const std::string& run_folder, int64_t step) {
    return fmt::format("{}/step_{:08}", run_folder, step);
}

int64_t state_elements(const GPT2Config& config, Optimizer optimizer) {
    int64_t n = file_elements(config);
    for (auto [state, t] : moments_of(optimizer)) { n += tensor_total(config, t); }
    return n;
}

int64_t checkpoint_bytes(const GPT2Config& config, Optimizer optimizer) {
    const int64_t padding = file_elements(config) - num_parameters(config);
    return (state_elements(config, optimizer) - 3 * padding) * (int64_t)sizeof(float) + (1 << 16);
}

void save_checkpoint(const std::string& run_folder, const GPT2Config& config, const RunRecord& record,
                     const ReadTensor& read) {
    std::string name = checkpoint_name(run_folder, record.state.step);
    const std::string temporary = make_new_folder(fmt::format("{}.tmp-{}", name, (int)getpid()));
    try {
        auto path = [&](const char* file) { return temporary + "/" + file; };
        const TrainedModel model(path(kModelFile), config, read);
        const bool known =
            !record.tokenizer.empty() || config.vocab_size == kGpt2VocabSize;  // the end of a text
        const Digest digests[] = {
            write_hf_weights(path(kModelFile), model, FloatType::kFp32),
            write_text_file(path(kConfigFile), hf_config_text(config, FloatType::kFp32,
                                                              known ? record.end_of_text : -1, record.kept)),
            write_optimizer_file(path(kOptimizerFile), config, record.state.optimizer, read),
            write_text_file(path(kRecordFile), to_json(record))};
        std::string manifest;
        for (const auto& [file, text] :
             record.tokenizer) {  // first, so that no cut looks like a run without one
            manifest += fingerprint(write_text_file(path(file.c_str()), text), file.c_str()) + "\n";
        }
        for (size_t i = 0; i < std::size(kFiles); i++) {
            manifest += fingerprint(digests[i], kFiles[i]) + "\n";
        }
        write_text_file(path(kManifest), manifest);
        move_into_place(temporary, name);
        sync_folder(run_folder);
    } catch (...) {
        std::error_code ignored;
        fs::remove_all(temporary, ignored);
        throw;
    }
}

CheckpointFacts inspect_checkpoint(const std::string& folder, Contents contents) {
    CheckpointFacts facts;
    try {
        if (file_kind(folder) != FileKind::kFolder) {
            return {folder + ": there is no such checkpoint folder", {}};
        }
        auto manifest = read_whole(folder + "/" + kManifest, kMostManifestBytes);
        if (!manifest) { return {folder + ": not a complete checkpoint: MANIFEST is missing", {}}; }
        if (manifest->find(" optimizer.bin\n") != std::string::npos) {
            return {folder +
                        ": a checkpoint of an earlier version (model.bin, optimizer.bin), which this one "
                        "cannot go on from; its weights can be used: --model " +
                        folder + "/model.bin",
                    {}};
        }
        std::istringstream in(*manifest);
        for (const char* name : kFiles) {
            std::string line, other;
            while (std::getline(in, line) &&
                   std::ranges::count(kTokenizerFiles, other = line.substr(line.rfind(' ') + 1)) > 0) {
                if (contents != Contents::kRecord) {
                    facts.damage = damage_of_file(folder, other.c_str(), line);
                }
                if (!facts.damage.empty()) { return facts; }
                line.clear();
            }
            const bool reads = contents == Contents::kAll || name == kRecordFile ||
                               (contents == Contents::kWeights && name != kOptimizerFile);
            if (reads) { facts.damage = damage_of_file(folder, name, line); }
            if (!facts.damage.empty()) { return facts; }
        }
        if (manifest->empty() || manifest->back() != '\n' || in.peek() != EOF) {
            return {folder + "/MANIFEST is damaged: expected to end after its last line", {}};
        }
        const std::string path = folder + "/" + kRecordFile;
        facts.record = parse_run_record(read_whole(path, kMostRecordBytes).value_or(""), path);
    } catch (const CannotRead&) { throw; } catch (const Error& e) {
        facts.damage = e.what();
    }
    return facts;
}

Checkpoint::Checkpoint(const std::string& folder)
    : record_(require_intact(folder)),
      model_(folder + "/" + kModelFile),
      optimizer_(folder + "/" + kOptimizerFile) {
    const auto fail = [&](const std::string& what, const std::string& found, const std::string& expected) {
        throw Error(kExitBadInput,
                    fmt::format("{}: not a usable optimizer state: {}: found {}, expected {} as in {}",
                                optimizer_.path(), what, found, expected, kModelFile));
    };
    record_.kept = model_.facts().kept;
    const std::vector<std::pair<State, int>> moments = moments_of(record_.state.optimizer);
    for (auto [state, t] : moments) {
        SafetensorsEntry expected;
        expected.name = moment_name(state, t);
        expected.shape = moment_shape(config(), t);
        const SafetensorsEntry* found = optimizer_.find(expected.name);
        if (found == nullptr) { fail(expected.name, "no such tensor", expected.shape_text()); }
        if (found->shape != expected.shape || found->type != TensorType::kF32) {
            fail(expected.name, found->type_text + " " + found->shape_text(), "F32 " + expected.shape_text());
        }
        moments_[state == State::kSecondMoment][t] = found;
    }
    if (optimizer_.entries().size() != moments.size()) {
        fail("tensors", std::to_string(optimizer_.entries().size()), std::to_string(moments.size()));
    }
    if (record_.end_of_text >= config().vocab_size) {
        fail("end_of_text of run.json", std::to_string(record_.end_of_text),
             fmt::format("less than the vocabulary, {},", config().vocab_size));
    }
}

void Checkpoint::read(State state, int tensor, int64_t first, std::span<float> values) const {
    const bool parameter = state == State::kParameter;
    if (parameter) {
        model_.read(tensor, first, values);
    } else {
        require(holds(state, tensor), "a second moment that --optimizer muon does not have");
        const SafetensorsEntry& from = *moments_[state == State::kSecondMoment][tensor];
        const auto count = (int64_t)values.size();
        require(first >= 0 && first <= tensor_total(config(), tensor) - count, "range outside of the tensor");
        const int64_t there = std::clamp<int64_t>(from.elements - first, 0, count);
        optimizer_.read(from, there > 0 ? first : 0, values.first((size_t)there));
        std::fill(values.begin() + there, values.end(), 0.0f);
    }
    require_finite_input(parameter ? model_.path() : optimizer_.path(), state, tensor, first, values);
}

void load_checkpoint(const Checkpoint& checkpoint, const WriteTensor& write) {
    std::vector<float> piece((size_t)std::min(kPiece, file_elements(checkpoint.config())));
    for (State state : {State::kParameter, State::kFirstMoment, State::kSecondMoment}) {
        for_each_piece(checkpoint.config(), [&](int tensor, int64_t first, int64_t count) {
            if (!checkpoint.holds(state, tensor)) { return; }
            const std::span<float> values(piece.data(), (size_t)count);
            checkpoint.read(state, tensor, first, values);
            write(state, tensor, first, values);
        });
    }
}

}  // namespace llmc

// Models and training states on disk: see checkpoint.h.
#include "llmc/model/formats/checkpoint.h"

#include <sys/random.h>
#include <unistd.h>
#include <algorithm>
#include <charconv>
#include <concepts>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "llmc/host/base/error.h"
#include "llmc/host/base/floats.h"
#include "llmc/host/files/json.h"
#include "llmc/host/log/run_log.h"
#include "llmc/host/tokens/dataloader.h"

namespace llmc {

namespace fs = std::filesystem;

using Json = JsonValue;

// ---- the members of run.json --------------------------------------------------------------------

namespace {

constexpr int kFormat = 2;

bool is_hex(const std::string& text) {
    return text.size() == 16 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// Every member, by its name: member(name, value, the largest that there may be).
template <typename Record, typename Member>
void for_each_member(Record& r, Member&& member) {
    int64_t format = kFormat;
    member("format", format);
    member("line", r.descent);
    member("step", r.state.step);
    const int64_t step = r.state.step;
    member("updates", r.state.updates, step);
    member("skipped_in_a_row", r.skipped_in_a_row, step);
    member("window", r.window, step - 1);
    member("optimizer", r.state.optimizer);
    member("seed", r.state.seed);
    member("data_start", r.data_start, step);
    member("seq_len", r.state.seq_len, 1 << 20);
    member("rows_per_step", r.state.rows_per_step, (int64_t)1 << 42);
    member("end_of_text", r.end_of_text, 1 << 20);
    member("val_loss", r.val_loss);
    member("best", r.best, step);
    member("since_best", r.since_best, step);
    member("train_data", r.train_data);
    member("val_data", r.val_data);
    member("settings", r.settings);
}

// Reads members of an object, each checked; `what` is the file.
class Reader {
public:
    Reader(const Json& object, const std::string& what) : object_(object), what_(what) {
        if (!object.is_object()) { fail("an object"); }
    }
    template <typename T>
    void operator()(const char* name, T& value, int64_t most = INT64_MAX) {
        name_ = name;
        const auto at = object_.find(name);
        if (at != object_.end()) { return read(*at, most, &value); }
        // left out by versions that had one optimizer, skipped no outliers, or had no patience
        if (name_ != "optimizer" && name_ != "window" && name_ != "since_best") { fail("to be there"); }
    }

private:
    [[noreturn]] void fail(const std::string& expected) const {
        throw Error(kExitBadInput, "{}: not a usable record of a run: {}: expected {}", what_, name_,
                    expected);
    }
    // a list of this many values
    template <typename... T>
    void read_each(const Json& list, const char* expected, T*... values) const {
        if (!list.is_array() || list.size() != sizeof...(T)) { fail(expected); }
        size_t i = 0;
        (read(list[i++], INT64_MAX, values), ...);
    }
    const Json& list_of(const Json& json, const char* expected = "a list", size_t most = SIZE_MAX) const {
        if (!json.is_array() || json.size() > most) { fail(expected); }
        return json;
    }

    template <std::integral T>
    void read(const Json& json, int64_t most, T* x) const {
        constexpr bool kAny = std::is_same_v<T, uint64_t>;  // of 64 bits
        const uint64_t found = json.is_number_unsigned() ? json.get<uint64_t>() : 0;
        if (!json.is_number_unsigned() || (!kAny && found > (uint64_t)INT64_MAX)) {
            fail(kAny ? "a whole number of 0 to 2^64 - 1" : "a whole number of 0 to 2^63 - 1");
        }
        if (!kAny && found > (uint64_t)most) { fail(fmt::format("at most {}", most)); }
        if (name_ == "format" && found != kFormat) { fail("2: another version of this program wrote it"); }
        *x = (T)found;
    }
    template <std::floating_point T>
    void read(const Json& json, int64_t, T* x) const {
        const double found = json.is_number() ? json.get<double>() : NAN;
        if (!std::isfinite(found)) { fail("a finite number"); }
        if (std::abs(found) > (double)std::numeric_limits<T>::max()) { fail("numbers of 32 bits"); }
        *x = (T)found;
    }
    void read(const Json& json, int64_t, std::string* x) const {
        if (!json.is_string()) { fail("a text"); }
        *x = json.get<std::string>();
    }
    void read(const Json& json, int64_t, Optimizer* x) const {
        std::string word;
        read(json, 0, &word);
        *x = word == text_of(Optimizer::kMuon) ? Optimizer::kMuon : Optimizer::kAdamW;
        if (word != text_of(*x)) { fail("adamw or muon"); }
    }
    void read(const Json& json, int64_t, Descent* descent) const {
        for (const Json& item : list_of(json)) {
            Start start;
            read_each(item, "[id, step] for each start", &start.id, &start.step);
            if (!is_hex(start.id) || (!descent->empty() && start.step < descent->back().step)) {
                fail("ids of 16 hexadecimal digits, steps that do not fall");
            }
            descent->push_back(start);
        }
    }
    void read(const Json& json, int64_t, std::vector<ShardRecord>* shards) const {
        for (const Json& item : list_of(json)) {
            ShardRecord& s = shards->emplace_back();
            std::string hash;
            read_each(item, "[name, tokens, XXH3, identity] each", &s.name, &s.tokens, &hash, &s.identity);
            if (!is_hex(hash)) { fail("an XXH3 of 16 hexadecimal digits"); }
            s.xxh3 = std::stoull(hash, nullptr, 16);
        }
    }
    void read(const Json& json, int64_t most, std::vector<AcceptedStep>* window) const {
        for (const Json& item : list_of(json, "a list of few steps", OutlierWindow::kMost)) {
            AcceptedStep s;
            read_each(item, "[step, loss, norm] each", &s.step, &s.loss, &s.norm);
            if (s.step > most || (!window->empty() && s.step <= window->back().step)) {
                fail("steps that rise, before this one");
            }
            window->push_back(s);
        }
    }
    void read(const Json& json, int64_t, std::map<std::string, std::string>* settings) const {
        if (!json.is_object()) { fail("an object"); }
        for (const auto& item : json.items()) { read(item.value(), 0, &(*settings)[item.key()]); }
    }
    void read(const Json& json, int64_t most, Validated* x) const {
        read_each(json, "null or [step, loss]", &x->step, &x->loss);
        if (x->step > most) { fail("a step up to this one"); }
    }
    template <typename T>
    void read(const Json& json, int64_t most, std::optional<T>* x) const {
        if (!json.is_null()) { read(json, most, &x->emplace()); }
    }

    const Json& object_;
    const std::string& what_;
    std::string_view name_ = "the whole";
};

Json parse(const std::string& text, const std::string& what) {
    return parse_json(text, what + ": not a usable record of a run", {.depth = 4, .integer = UINT64_MAX});
}

}  // namespace

// what the library writes these as
static void to_json(Json& json, const Start& s) { json = Json::array({s.id, s.step}); }
static void to_json(Json& json, const AcceptedStep& s) { json = Json::array({s.step, s.loss, s.norm}); }
static void to_json(Json& json, const Validated& v) { json = Json::array({v.step, v.loss}); }
static void to_json(Json& json, const Optimizer& o) { json = text_of(o); }
static void to_json(Json& json, const ShardRecord& s) {
    json = Json::array({s.name, s.tokens, fmt::format("{:016x}", s.xxh3), s.identity});
}

std::string to_json(const RunRecord& record) {
    Json json;
    for_each_member(record, [&]<typename T>(const char* name, const T& value, int64_t = 0) {
        if constexpr (requires { value.has_value(); }) {
            json[name] = value ? Json(*value) : Json();
        } else {
            json[name] = value;
        }
    });
    // names may have any bytes
    return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

RunRecord parse_run_record(const std::string& text, const std::string& what) {
    const Json json = parse(text, what);
    RunRecord record;
    for_each_member(record, Reader(json, what));
    return record;
}

// ---- lines of descent ---------------------------------------------------------------------------

std::string new_id() {
    uint64_t bits = 0;
    throw_if(getrandom(&bits, sizeof(bits), 0) != (ssize_t)sizeof(bits), kExitDevice,
             "the system gives no random numbers (getrandom)");
    return fmt::format("{:016x}", bits);
}

bool lies_on(const Descent& descent, const Descent& checkpoint, int64_t step) {
    size_t n = checkpoint.size();
    if (n > descent.size() || !std::equal(checkpoint.begin(), checkpoint.end(), descent.begin())) {
        return false;
    }
    return n == descent.size() || descent[n].step >= step;
}

std::string log_start(const Descent& descent, int64_t step, bool new_data, const std::string& header) {
    Json start = Json::parse(event_log_line(descent.size() > 1 ? "resume" : "start", step));
    start["log"] = kLogFormat;
    start.update(Json::parse(header));
    if (new_data) { start["new_data"] = true; }
    start["line"] = descent;
    return start.dump() + "\n";
}

std::optional<Descent> descent_of_log(const std::string& log, const std::string& what) {
    size_t mark = log.rfind(",\"line\":[");
    if (mark == std::string::npos) { return std::nullopt; }
    size_t begin = log.rfind('\n', mark) + 1, end = log.find('\n', mark);  // npos + 1 is 0
    if (end == std::string::npos) { return std::nullopt; }
    const Json json = parse(log.substr(begin, end - begin), what);
    Descent descent;
    Reader(json, what)("line", descent);
    return descent;
}

// ---- model files --------------------------------------------------------------------------------

namespace {

constexpr const char *kModelFile = "model.safetensors", *kConfigFile = "config.json",
                     *kOptimizerFile = "optimizer.safetensors", *kRecordFile = "run.json",
                     *kManifest = "MANIFEST";
constexpr const char* kFiles[] = {kModelFile, kConfigFile, kOptimizerFile, kRecordFile};  // MANIFEST's lines
constexpr const char* kMaximaName = "fp8_maxima";
constexpr int64_t kMostManifestBytes = 1 << 16, kMostRecordBytes = 1 << 24;

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

}  // namespace

ModelFile::ModelFile(const std::string& path) : file_(path) {
    HeaderReader header(file_, "model file", kModelMagic,
                        "Models are written by train_gpt2 (model.bin in the run folder) and by llm.c.");
    version_ = header.field(1, "version", INT32_MIN, INT32_MAX);
    if (version_ != kModelFp32 && version_ != kModelBf16) {
        header.fail("header word 1, version", fmt::format("{}", version_), "3 (fp32) or 5 (bf16)");
    }
    const GPT2Config& c = config_ = read_config(header);
    // the limits of read_config keep this far from overflowing 64 bits
    header.require_size(
        kHeaderBytes + (uint64_t)file_elements(c) * (version_ == kModelFp32 ? 4 : 2),
        fmt::format("a model of {} layers, {} channels, vocabulary {} (padded {}), {} positions",
                    c.num_layers, c.channels, c.vocab_size, c.padded_vocab_size, c.max_seq_len));
}

void ModelFile::read(int tensor, int64_t first, std::span<float> values) const {
    require(first >= 0 && first <= tensor_total(config_, tensor) - (int64_t)values.size(),
            "range outside of the tensor");
    auto at = (uint64_t)first;
    for (int t = 0; t < tensor; t++) { at += (uint64_t)tensor_total(config_, t); }
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
    std::vector<uint16_t> narrow;
    for_each_file_piece(config, [&](int tensor, int64_t first, std::span<float> values) {
        read(State::kParameter, tensor, first, values);
        if (version == kModelBf16) {  // a large number may become infinity
            narrow.resize(values.size());
            std::transform(values.begin(), values.end(), narrow.begin(), to_bf16);
            std::transform(narrow.begin(), narrow.end(), values.begin(), from_bf16);
        }
        require_finite_output(path, State::kParameter, tensor, first, values);
        if (version == kModelFp32) {
            out.write(values.data(), values.size_bytes());
        } else {
            out.write(narrow.data(), narrow.size() * sizeof(uint16_t));
        }
    });
    out.commit();
}

// ---- checkpoints -------------------------------------------------------------------------------

namespace {

struct Moment {
    State state;
    int tensor;
    SafetensorsTensor stored;  // "first_moment.qkvw"
};

int64_t elements_of(const GPT2Config& c, const Moment& moment) {
    return moment.state == State::kFp8Maxima ? fp8_maxima(c) : tensor_total(c, moment.tensor);
}

std::vector<Moment> moments_of(const GPT2Config& c, Optimizer optimizer, bool fp8) {
    std::vector<Moment> moments;
    for (const auto& [state, name] :
         {std::pair(State::kFirstMoment, "first_moment."), {State::kSecondMoment, "second_moment."}}) {
        for (int t = 0; t < kNumTensors; t++) {
            if (!has_state(optimizer, state, t)) { continue; }
            std::vector<int64_t> shape;
            if (kTensors[t].per_layer) { shape.push_back(c.num_layers); }
            if (kTensors[t].matrix) { shape.push_back(t == kWte ? c.vocab_size : kTensors[t].rows(c)); }
            shape.push_back(kTensors[t].cols(c));
            moments.push_back({state, t, {std::string(name) + kTensors[t].name, shape}});
        }
    }
    if (fp8) {
        moments.push_back({State::kFp8Maxima, 0, {kMaximaName, {3, c.num_layers, kFp8Linears, kFp8History}}});
    }
    return moments;
}

Digest write_optimizer_file(const std::string& path, const GPT2Config& config, const TrainingState& run,
                            const ReadTensor& read) {
    const std::vector<Moment> moments = moments_of(config, run.optimizer, run.fp8);
    std::vector<SafetensorsTensor> tensors(moments.size());
    std::ranges::transform(moments, tensors.begin(), &Moment::stored);
    return write_safetensors(
        path, tensors, TensorType::kF32, [&](size_t i, int64_t first, std::span<float> values) {
            read(moments[i].state, moments[i].tensor, first, values);
            require_finite_output(path, moments[i].state, moments[i].tensor, first, values);
        });
}

// a line of MANIFEST
std::string fingerprint(const Digest& digest, const std::string& name) {
    return fmt::format("{} {:016x} {}", digest.bytes, digest.xxh3, name);
}

// "" if a file is what its line of MANIFEST says, else what is wrong
std::string damage_of_file(const std::string& folder, const std::string& name, const std::string& expected) {
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
    throw Error(kExitBadInput,
                "{}. Name an intact step_ folder, or let --resume auto --out RUN find the newest.",
                facts.damage);
}

// temporary -> name. A checkpoint of this very step is deleted only when the new one is in place; a kill before that leaves
// it as NAME.replaced, which take_back_replaced() undoes.
void move_into_place(const std::string& temporary, const std::string& name) {
    std::error_code error;
    const std::string old = name + kReplaced;
    fs::rename(name, old, error);
    throw_if(error && error != std::errc::no_such_file_or_directory, kExitSaveFailed,
             "{}: cannot be replaced: {}", name, error.message());
    bool replaces = !error;
    fs::rename(temporary, name, error);
    if (error) {
        std::string why = error.message();
        if (replaces) { fs::rename(old, name, error); }
        throw Error(kExitSaveFailed, "{}: cannot be renamed to {}: {}", temporary, name, why);
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
        const std::string path = run_folder + "/" + name, before = name_before_replaced(name);
        const bool counts = !before.empty() && file_kind(run_folder + "/" + before) == FileKind::kMissing;
        const std::string& shown = counts ? before : name;
        if (shown.size() < 13 || !shown.starts_with("step_")) { continue; }
        int64_t step = -1;
        const char* end = shown.data() + shown.size();
        const bool whole = std::from_chars(shown.data() + 5, end, step).ptr == end;
        if (whole && step >= 0 && file_kind(path) == FileKind::kFolder) { found.push_back({path, step}); }
    }
    std::ranges::sort(found, std::greater(), &StepFolder::step);
    return found;
}

std::string newest_step(const std::string& run_folder) {
    const std::vector<StepFolder> steps = list_steps(run_folder);
    return steps.empty() ? "" : steps.front().path;
}

std::string checkpoint_name(const std::string& run_folder, int64_t step) {
    return fmt::format("{}/step_{:08}", run_folder, step);
}

int64_t state_elements(const GPT2Config& config, Optimizer optimizer, bool fp8) {
    int64_t n = file_elements(config);
    for (const Moment& moment : moments_of(config, optimizer, fp8)) { n += elements_of(config, moment); }
    return n;
}

int64_t checkpoint_bytes(const GPT2Config& config, Optimizer optimizer, bool fp8) {
    const int64_t padding = file_elements(config) - num_parameters(config);
    return (state_elements(config, optimizer, fp8) - 3 * padding) * (int64_t)sizeof(float) + (1 << 16);
}

void save_checkpoint(const std::string& run_folder, const GPT2Config& config, const RunRecord& record,
                     const ReadTensor& read) {
    std::string name = checkpoint_name(run_folder, record.state.step);
    const std::string temporary = make_new_folder(fmt::format("{}.tmp-{}", name, (int)getpid()));
    try {
        const auto path = [&](const std::string& file) { return temporary + "/" + file; };
        std::string manifest;
        const auto add = [&](const std::string& file, const Digest& digest) {
            manifest += fingerprint(digest, file) + "\n";
        };
        // first, so that no cut looks like a run without one
        for (const auto& [file, text] : record.tokenizer) { add(file, write_text_file(path(file), text)); }
        const auto read_parameters = [&](int tensor, int64_t first, std::span<float> values) {
            read(State::kParameter, tensor, first, values);
            require_finite_output(path(kModelFile), State::kParameter, tensor, first, values);
        };
        add(kModelFile,
            write_hf_weights(path(kModelFile), config, FloatType::kFp32, path(kModelFile), read_parameters));
        const bool known_end = !record.tokenizer.empty() || config.vocab_size == kGpt2VocabSize;
        add(kConfigFile, write_text_file(path(kConfigFile),
                                         hf_config_text(config, FloatType::kFp32,
                                                        known_end ? record.end_of_text : -1, record.kept)));
        add(kOptimizerFile, write_optimizer_file(path(kOptimizerFile), config, record.state, read));
        add(kRecordFile, write_text_file(path(kRecordFile), to_json(record)));
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
            return {fmt::format("{}: a checkpoint of an earlier version (model.bin, optimizer.bin), which "
                                "this one cannot go on from; its weights can be used: --model {}/model.bin",
                                folder, folder),
                    {}};
        }
        std::istringstream in(*manifest);
        for (const char* name : kFiles) {
            std::string line, other;
            while (std::getline(in, line) &&
                   std::ranges::count(kTokenizerFiles, other = line.substr(line.rfind(' ') + 1)) > 0) {
                if (contents != Contents::kRecord) { facts.damage = damage_of_file(folder, other, line); }
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
        throw Error(kExitBadInput, "{}: not a usable optimizer state: {}: found {}, expected {} as in {}",
                    optimizer_.path(), what, found, expected, kModelFile);
    };
    record_.kept = model_.facts().kept;
    record_.state.fp8 = optimizer_.find(kMaximaName) != nullptr;
    const std::vector<Moment> moments = moments_of(config(), record_.state.optimizer, record_.state.fp8);
    for (const auto& [state, tensor, stored] : moments) {
        SafetensorsEntry expected;
        expected.shape = stored.shape;
        const SafetensorsEntry* found = optimizer_.find(stored.name);
        if (found == nullptr) { fail(stored.name, "no such tensor", expected.shape_text()); }
        if (found->shape != stored.shape || found->type != TensorType::kF32) {
            fail(stored.name, found->type_text + " " + found->shape_text(), "F32 " + expected.shape_text());
        }
        (state == State::kFp8Maxima ? maxima_ : moments_[state == State::kSecondMoment][tensor]) = found;
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
        require(holds(state, tensor),
                "a second moment that --optimizer muon does not have, or maxima of a run without --fp8");
        const Moment which{state, tensor, {}};
        const SafetensorsEntry& from =
            *(state == State::kFp8Maxima ? maxima_ : moments_[state == State::kSecondMoment][tensor]);
        const auto count = (int64_t)values.size();
        require(first >= 0 && first <= elements_of(config(), which) - count, "range outside of the tensor");
        const int64_t there = std::clamp<int64_t>(from.elements - first, 0, count);
        optimizer_.read(from, there > 0 ? first : 0, values.first((size_t)there));
        std::fill(values.begin() + there, values.end(), 0.0f);
    }
    require_finite_input(parameter ? model_.path() : optimizer_.path(), state, tensor, first, values);
}

void load_checkpoint(const Checkpoint& checkpoint, const WriteTensor& write) {
    for (State state : {State::kParameter, State::kFirstMoment, State::kSecondMoment}) {
        for_each_file_piece(checkpoint.config(), [&](int tensor, int64_t first, std::span<float> values) {
            if (!checkpoint.holds(state, tensor)) { return; }
            checkpoint.read(state, tensor, first, values);
            write(state, tensor, first, values);
        });
    }
    if (!checkpoint.holds(State::kFp8Maxima, 0)) { return; }
    std::vector<float> maxima((size_t)fp8_maxima(checkpoint.config()));
    checkpoint.read(State::kFp8Maxima, 0, 0, maxima);
    write(State::kFp8Maxima, 0, 0, maxima);
}

}  // namespace llmc

// Checkpoints: what is saved is found and loaded, damage is noticed, a save that fails leaves what was there, and
// what a run notes beside it is read back.
#include <cstring>

#include "dev/test/support/any_model.h"
#include "dev/test/support/train_program.h"
#include "llmc/host/log/run_log.h"
#include "llmc/model/cpu/gpt2.h"
#include "llmc/model/run/folder.h"

using namespace llmc;

namespace {

const Words kCheckpointFiles = {"MANIFEST", "config.json", "model.safetensors", "optimizer.safetensors",
                                "run.json"};

GPT2Cpu filled_model(uint64_t seed, const ModelSettings& settings = {}) {
    GPT2Cpu model(tiny_config(), 2, 9, settings);
    fill_states(&model, seed);
    zero_padding(&model);
    return model;
}

void save_step(const std::string& run, int64_t step, uint64_t seed = 1) {
    save_checkpoint(run, tiny_config(), record_of(step, step, seed), reader(filled_model((uint64_t)step)));
}

Error load_error(const std::string& folder) {
    return error_of([&] {
        GPT2Cpu model(tiny_config(), 1, 2);
        load_checkpoint(Checkpoint(folder), writer(&model));
    });
}

// Makes a damaged checkpoint look intact, so that what reads the files behind MANIFEST is reached: MANIFEST
// gets the fingerprint that the error message says was found.
void repair_manifest(const std::string& folder) {
    for (size_t line = 0; line < kCheckpointFiles.size(); line++) {
        std::string why = error_of([&] { Checkpoint checkpoint(folder); }).what();
        size_t found = why.find("found \""), expected = why.find("expected \"");
        if (found == std::string::npos) { return; }
        auto quoted = [&](size_t at) { return why.substr(at, why.find('"', at) - at); };
        write_bytes(folder + "/MANIFEST",
                    changed(read_bytes(folder + "/MANIFEST"), quoted(expected + 10), quoted(found + 7)));
    }
}

}  // namespace

// ---- save, find, load --------------------------------------------------------------------------

TEST_CASE("checkpoint: what is saved is loaded, whole and by ranges") {
    for (const Optimizer optimizer : {Optimizer::kAdamW, Optimizer::kMuon}) {
        CAPTURE(text_of(optimizer));
        const ModelSettings settings{.muon = optimizer == Optimizer::kMuon};
        TempFolder folder;
        GPT2Cpu model = filled_model(3, settings), other(tiny_config(), 1, 2, settings);
        RunRecord record = record_of(123456789012, 123456789000, 5);
        record.state.optimizer = optimizer;
        save_checkpoint(folder.path(), tiny_config(), record, reader(model));
        const std::string path = folder / "step_123456789012";
        CHECK(names_below(folder.path()) == Words{"step_123456789012"});
        CHECK(names_below(path) == kCheckpointFiles);
        std::string notes;
        CHECK(find_checkpoint(folder.path(), &notes) == path);
        CHECK(notes.empty());
        const Checkpoint saved(path);
        CHECK(saved.config() == tiny_config());
        CHECK(saved.record().state.updates == record.state.updates);
        CHECK(saved.record().state.optimizer == optimizer);
        load_checkpoint(saved, writer(&other));
        check_same_state("loaded", other, model);
        const SafetensorsFile moments(path + "/optimizer.safetensors");
        CHECK(moments.entries().size() == (settings.muon ? 16 + 12 : 32));
        std::vector<float> two(2);
        for (State part : kStates) {  // whoever holds a part of the state reads that part
            for (int t = 0; t < kNumTensors; t++) {
                const bool held = model.holds(part, t);
                if (part == State::kSecondMoment) {
                    CHECK((moments.find(std::string("second_moment.") + kTensors[t].name) != nullptr) ==
                          held);
                }
                if (!held) {
                    check_error([&] { saved.read(part, t, 0, two); }, kExitUsage, {"second moment"});
                    continue;
                }
                std::vector<float> whole = whole_tensor(model, part, t), found(whole.size());
                for (size_t at = 0; at < found.size(); at += 101) {
                    saved.read(part, t, (int64_t)at,
                               std::span(found).subspan(at, std::min<size_t>(101, found.size() - at)));
                }
                check_same(part == State::kParameter ? kTensors[t].name
                                                     : std::string("moments of ") + kTensors[t].name,
                           found, whole);
            }
        }
        CHECK(error_of([&] { saved.read(State::kFirstMoment, kLnfb, 13, two); }).exit_code == kExitUsage);
        const auto size = (int64_t)(fs::file_size(path + "/model.safetensors") +
                                    fs::file_size(path + "/optimizer.safetensors"));
        CHECK(size <= checkpoint_bytes(tiny_config(), optimizer));
        CHECK(size > checkpoint_bytes(tiny_config(), optimizer) - (1 << 16));
    }
    CHECK(checkpoint_bytes(tiny_config()) - checkpoint_bytes(tiny_config(), Optimizer::kMuon) ==
          12 * 14 * 14 * 3 * 4);
}

TEST_CASE_FIXTURE(InFolder, "checkpoint: its model is Hugging Face's, moments lie by tensor and element") {
    save_step(folder.path(), 4);
    const std::string path = folder / "step_00000004";
    const GPT2Cpu model = filled_model(4);
    std::string notes;
    CHECK(open_model(path, &notes).path == path + "/model.safetensors");
    const SafetensorsFile weights(path + "/model.safetensors"), moments(path + "/optimizer.safetensors");
    const SafetensorsEntry* fc = weights.find("transformer.h.1.mlp.c_fc.weight");
    REQUIRE(fc != nullptr);
    CHECK(fc->shape == std::vector<int64_t>{14, 56});  // (in, out)
    CHECK(weights.find("transformer.wte.weight")->shape == std::vector<int64_t>{37, 14});
    const SafetensorsEntry* second = moments.find("second_moment.fcw");
    REQUIRE(second != nullptr);
    CHECK(second->shape == std::vector<int64_t>{3, 56, 14});  // as here
    std::vector<float> found((size_t)second->elements);
    moments.read(*second, 0, found);
    check_same("second moment", found, whole_tensor(model, State::kSecondMoment, kFcw));
    CHECK(moments.find("first_moment.wte")->shape == std::vector<int64_t>{37, 14});
    CHECK(moments.find("first_moment.ln1b")->shape == std::vector<int64_t>{3, 14});
    CHECK(moments.find("first_moment.lnfb")->shape == std::vector<int64_t>{14});
}

TEST_CASE_FIXTURE(InFolder, "checkpoint: one of an earlier version is refused by name") {
    const std::string path = folder / "step_00000004";
    fs::create_directories(path);
    write_bytes(
        path + "/MANIFEST",
        "1 0123456789abcdef model.bin\n1 0123456789abcdef optimizer.bin\n1 0123456789abcdef run.json\n");
    check_error(load_error(path), kExitBadInput,
                {path, "earlier version", "model.bin, optimizer.bin", "--model " + path + "/model.bin"});
}

TEST_CASE_FIXTURE(InFolder, "checkpoint: the newest is found, by number") {
    std::string notes;
    CHECK(find_checkpoint(folder.path(), &notes).empty());
    CHECK(find_checkpoint(folder / "missing", &notes).empty());
    for (int64_t step : {4, 99999999, 100000000, 12}) { save_step(folder.path(), step); }
    CHECK(find_checkpoint(folder.path(), &notes) == folder / "step_100000000");
    fs::remove_all(folder / "step_100000000");
    CHECK(find_checkpoint(folder.path(), &notes) == folder / "step_99999999");
    fs::remove_all(folder / "step_99999999");
    // none of these is a checkpoint, and none is worth a word
    for (const char* name :
         {"step_", "step_99", "step_0000009x", "step_00000099.tmp-77", "model", "estep_00000099"}) {
        fs::copy(folder / "step_00000012", folder / name, fs::copy_options::recursive);
    }
    write_bytes(folder / "step_00000088", "a file");
    CHECK(find_checkpoint(folder.path(), &notes) == folder / "step_00000012");
    CHECK(notes.empty());
}

TEST_CASE_FIXTURE(InFolder, "checkpoint: a step that is there already is replaced") {
    save_checkpoint(folder.path(), tiny_config(), record_of(4, 4, 1), reader(filled_model(8)));
    write_bytes(folder / "step_00000004/left-over", "of the old one");
    GPT2Cpu model = filled_model(9), other(tiny_config(), 1, 2);
    save_checkpoint(folder.path(), tiny_config(), record_of(4, 3, 2), reader(model));
    CHECK(names_below(folder.path()) == Words{"step_00000004"});
    CHECK(names_below(folder / "step_00000004") == kCheckpointFiles);
    const Checkpoint replaced(folder / "step_00000004");
    CHECK(replaced.record().state.updates == 3);
    load_checkpoint(replaced, writer(&other));
    check_same_state("replaced", other, model);
    write_bytes(folder / "step_00000005", "a file in the way");
    save_step(folder.path(), 5);
    CHECK(load_error(folder / "step_00000005").exit_code == kExitDone);
}

TEST_CASE_FIXTURE(InFolder, "checkpoint: what a killed save has left is removed") {
    for (const char* name : {"step_00000002.tmp-4194304", "step_00000004.tmp-1"}) {
        fs::create_directories(folder / name);
        write_bytes(folder / (std::string(name) + "/model.bin.tmp-1"), "half");
    }
    for (const char* name : {"model.bin.tmp-123", "log.jsonl.tmp-1", "config.toml.tmp-99",
                             "report.html.tmp-7", "tokenizer.json.tmp-8", "tokenizer.bin.tmp-8"}) {
        write_bytes(folder / name, "half");
    }
    const Words kept = {"log.jsonl", "model.bin", "my.tmp-1", "notes.tmp-abc"};
    for (const std::string& name : kept) { write_bytes(folder / name, "the user's"); }
    remove_leftovers(folder.path());
    CHECK(names_below(folder.path()) == kept);
}

TEST_CASE_FIXTURE(InFolder, "checkpoint: a kill while one is replaced loses neither") {
    save_step(folder.path(), 4);
    const std::string path = folder / "step_00000004", old = path + kReplaced;
    fs::rename(path, old);  // the kill came between two renames: the new one has no name yet
    std::string notes;
    CHECK(find_checkpoint(folder.path(), &notes) == old);  // also for who must not rename it
    take_back_replaced(folder.path());
    CHECK(find_checkpoint(folder.path(), &notes) == path);
    CHECK(names_below(folder.path()) == Words{"step_00000004"});

    copy_folder(path, old);  // it came before the old one was deleted
    write_bytes(path + "/new", "");
    take_back_replaced(folder.path());
    CHECK(names_below(folder.path()) == Words{"step_00000004"});
    CHECK(fs::exists(path + "/new"));

    fs::rename(path, old);
    fs::create_symlink("elsewhere", path);  // to a disk that is not there
    check_error([&] { take_back_replaced(folder.path()); }, kExitSaveFailed,
                {old, "cannot be renamed to " + path});
}

// ---- damage ------------------------------------------------------------------------------------

TEST_CASE_FIXTURE(InFolder, "checkpoint: a damaged one is passed over with a note") {
    save_step(folder.path(), 4);
    save_step(folder / "good", 8);
    auto check_passed_over = [&](const std::string& what, auto damage) {
        CAPTURE(what);
        copy_folder(folder / "good/step_00000008", folder / "step_00000008");
        const std::string newest = folder / "step_00000008";
        damage(newest);
        std::string notes;
        CHECK(find_checkpoint(folder.path(), &notes) == folder / "step_00000004");
        CHECK(notes.find("passed over: " + newest) == 0);
        CHECK(std::count(notes.begin(), notes.end(), '\n') == 1);
        check_error(load_error(newest), kExitBadInput, {newest, "--resume auto"});
    };
    for (const std::string& name : kCheckpointFiles) {
        const size_t size = fs::file_size(folder / ("step_00000004/" + name));
        for (size_t at : {(size_t)0, (size_t)9, size / 2, size - 1}) {
            check_passed_over("one bit of " + name,
                              [&](const std::string& f) { flip_byte(f + "/" + name, at); });
        }
        for (size_t left : {(size_t)0, (size_t)1, size / 2, size - 1}) {
            check_passed_over(name + " cut",
                              [&](const std::string& f) { fs::resize_file(f + "/" + name, left); });
        }
        check_passed_over(name + " longer",
                          [&](const std::string& f) { fs::resize_file(f + "/" + name, size + 1); });
        check_passed_over(name + " missing", [&](const std::string& f) { fs::remove(f + "/" + name); });
        check_passed_over(name + " a folder", [&](const std::string& f) {
            fs::remove(f + "/" + name);
            fs::create_directory(f + "/" + name);
        });
    }
    check_passed_over("files exchanged", [&](const std::string& f) {
        fs::rename(f + "/model.safetensors", f + "/optimizer.safetensors");
    });
    check_passed_over("another model", [&](const std::string& f) {
        fs::copy(folder / "step_00000004/model.safetensors", f + "/model.safetensors",
                 fs::copy_options::overwrite_existing);
    });
}

TEST_CASE_FIXTURE(InFolder, "checkpoint: what is not one is refused") {
    save_step(folder.path(), 4);
    check_error(load_error(folder / "step_00000009"), kExitBadInput,
                {"step_00000009", "no such checkpoint folder"});
    check_error(load_error(folder.path()), kExitBadInput,
                {folder.path(), "MANIFEST is missing", "step_ folder"});
    check_error(load_error(folder / "step_00000004/run.json"), kExitBadInput,
                {"run.json", "no such checkpoint"});
}

TEST_CASE_FIXTURE(InFolder, "checkpoint: what a whole MANIFEST does not vouch for") {
    save_step(folder / "good", 4);
    const std::string path = folder / "step_00000004";
    auto check_refused = [&](const std::string& file, const std::string& says, auto change) {
        CAPTURE(says);
        copy_folder(folder / "good/step_00000004", path);
        change(path + "/" + file);
        check_error(load_error(path), kExitBadInput, {"damaged", "MANIFEST"});
        repair_manifest(path);
        check_error(load_error(path), kExitBadInput, {path + "/" + file, says});
    };
    auto replace = [](const std::string& file, const std::string& old, const std::string& text) {
        write_bytes(file, changed(read_bytes(file), old, text));
    };
    check_refused("run.json", "updates",
                  [&](const std::string& f) { replace(f, "\"updates\": 4", "\"updates\": 5"); });
    check_refused("run.json", "seq_len",
                  [&](const std::string& f) { replace(f, "\"seq_len\": 0", "\"seq_len\": 1048577"); });
    check_refused("config.json", "n_embd",
                  [&](const std::string& f) { replace(f, "\"n_embd\": 14", "\"n_embd\": 0"); });
    check_refused("optimizer.safetensors", "first_moment.lnfb: found no such tensor",
                  [&](const std::string& f) { replace(f, "first_moment.lnfb", "first_moment.lnfx"); });
    check_refused("optimizer.safetensors", "wte[9], first moment = nan", [&](const std::string& f) {
        const float bad = NAN;
        std::string bytes = read_bytes(f);
        std::memcpy(bytes.data() + SafetensorsFile(f).find("first_moment.wte")->begin + 4 * 9, &bad, 4);
        write_bytes(f, bytes);
    });
    check_error(load_error(path), kExitBadInput, {"earlier"});
    auto rewrite = [](const std::string& f, size_t tensors, std::vector<int64_t> shape, TensorType type) {
        std::vector<SafetensorsTensor> all;
        const SafetensorsFile old(f);
        for (const SafetensorsEntry& e : old.entries()) {
            all.push_back({e.name, e.name == "second_moment.wpe" ? shape : e.shape});
        }
        for (; all.size() < tensors;) { all.push_back({"third_moment", {1}}); }
        write_safetensors(f, all, type, [](size_t, int64_t, std::span<float> values) {
            std::fill(values.begin(), values.end(), 1.0f);
        });
    };
    const std::tuple<const char*, size_t, std::vector<int64_t>, TensorType> rows[] = {
        {"found F32 (14, 9), expected F32 (9, 14)", 32, {14, 9}, TensorType::kF32},
        {"found BF16", 32, {9, 14}, TensorType::kBF16},
        {"found 33, expected 32", 33, {9, 14}, TensorType::kF32}};
    for (const auto& [says, tensors, shape, type] : rows) {
        check_refused("optimizer.safetensors", says,
                      [&](const std::string& f) { rewrite(f, tensors, shape, type); });
    }
    copy_folder(folder / "good/step_00000004", path);
    replace(path + "/run.json", "\"end_of_text\": 0", "\"end_of_text\": 37");
    repair_manifest(path);
    check_error(load_error(path), kExitBadInput, {"end_of_text", "37"});
}

TEST_CASE_FIXTURE(InFolder, "checkpoint: one or a model that shrinks while it is read is refused") {
    GPT2Cpu model(tiny_config(), 1, 2);
    write_model_file(folder / "model.bin", tiny_config(), kModelFp32, reader(model));
    const ModelFile file(folder / "model.bin");
    fs::resize_file(folder / "model.bin", 5000);
    check_error([&] { load_model(file, writer(&model)); }, kExitBadInput, {folder / "model.bin", "shorter"});
    save_step(folder.path(), 4);
    const Checkpoint checkpoint(folder / "step_00000004");
    fs::resize_file(folder / "step_00000004/optimizer.safetensors", 6000);
    check_error([&] { load_checkpoint(checkpoint, writer(&model)); }, kExitBadInput,
                {"optimizer.safetensors", "shorter"});
}

// ---- saves that fail ---------------------------------------------------------------------------

TEST_CASE_FIXTURE(InFolder, "checkpoint: a folder that cannot be written") {
    write_bytes(folder / "file", "not a folder");
    for (const std::string& run : {folder / "file/run", folder / "file", folder / "file/a/b"}) {
        check_error([&] { make_writable_folder(run); }, kExitUsage, {run, "cannot make or write", "Choose"});
        check_error([&] { save_step(run, 4); }, kExitUsage, {run, "cannot make or write"});
        check_error([&] { FileWriter writer(run + "/model.bin"); }, kExitUsage, {run, "cannot write"});
        std::string notes;
        CHECK(find_checkpoint(run, &notes).empty());
    }
    CHECK(names_below(folder.path()) == Words{"file"});
}

TEST_CASE_FIXTURE(InFolder, "checkpoint: a full disk leaves what was there") {
    GPT2Cpu model = filled_model(1);
    save_step(folder.path(), 4);
    write_model_file(folder / "model.bin", tiny_config(), kModelFp32, reader(model));
    const std::string before = read_bytes(folder / "model.bin");
    const std::string manifest = read_bytes(folder / "step_00000004/MANIFEST");
    const Words names = names_below(folder.path());
    const rlim_t model_bytes = before.size();
    // the header does not fit; the body does not; the last byte does not; the model does, its moments do not
    for (rlim_t limit : {(rlim_t)1000, (rlim_t)20000, model_bytes - 1, model_bytes + 1}) {
        CAPTURE(limit);
        Error file(0, ""), same(0, ""), next(0, "");
        {
            SmallFiles full(limit);
            file = error_of(
                [&] { write_model_file(folder / "model.bin", tiny_config(), kModelFp32, reader(model)); });
            same = error_of([&] { save_step(folder.path(), 4); });
            next = error_of([&] { save_step(folder.path(), 8); });
        }
        if (limit < model_bytes) {
            check_error(file, kExitSaveFailed, {folder / "model.bin", "Nothing was replaced"});
        }
        check_error(same, kExitSaveFailed, {folder.path(), "File too large"});
        check_error(next, kExitSaveFailed, {folder.path(), "File too large", "ulimit -f"});
        CHECK(names_below(folder.path()) == names);
        CHECK(names_below(folder / "step_00000004") == kCheckpointFiles);
        CHECK((read_bytes(folder / "model.bin") == before));
        CHECK(read_bytes(folder / "step_00000004/MANIFEST") == manifest);
        CHECK(load_error(folder / "step_00000004").exit_code == kExitDone);
    }
}

TEST_CASE_FIXTURE(InFolder, "checkpoint: a link under the name of its temporary folder leads it nowhere") {
    fs::create_directory(folder / "elsewhere");
    fs::create_symlink("elsewhere", folder / fmt::format("step_00000004.tmp-{}", (int)getpid()));
    save_step(folder.path(), 4);
    CHECK(load_error(folder / "step_00000004").exit_code == kExitDone);
    CHECK_FALSE(fs::is_symlink(folder / "step_00000004"));
    CHECK(names_below(folder / "elsewhere").empty());
}

TEST_CASE_FIXTURE(InFolder, "checkpoint: what is not finite is not written, and what is there stays") {
    const GPT2Config c = tiny_config();
    GPT2Cpu good = filled_model(2), other(c, 1, 2);
    save_step(folder.path(), 2);
    write_model_file(folder / "model.bin", c, kModelFp32, reader(good));
    const std::string before = read_bytes(folder / "model.bin");
    const auto check_refused = [&](State state, int tensor, int64_t at, float value,
                                   const std::string& says) {
        CAPTURE(says);
        GPT2Cpu bad = filled_model(2);
        bad.load(state, tensor, at, {&value, 1});
        for (int64_t step : {2, 4}) {
            check_error(
                error_of([&] { save_checkpoint(folder.path(), c, record_of(step, step, 1), reader(bad)); }),
                kExitDiverged, {"not written", says});
        }
        if (state != State::kParameter) { return; }
        check_error([&] { write_model_file(folder / "model.bin", c, kModelFp32, reader(bad)); },
                    kExitDiverged, {folder / "model.bin", says});
    };
    check_refused(State::kParameter, kWpe, 7, NAN, "wpe[7] = nan");
    check_refused(State::kFirstMoment, kFcw, 100, INFINITY, "fcw[100], first moment = inf");
    check_refused(State::kSecondMoment, kLnfw, 2, INFINITY, "lnfw[2], second moment = inf");
    check_refused(State::kSecondMoment, kLnfw, 2, -1, "lnfw[2], second moment = -1");
    // as bf16: two that round to infinity, infinity, NaNs of which the upper half alone would be none
    for (uint32_t bits : {0x7f7f8000u, 0xff7fffffu, 0x7f800000u, 0x7f800001u, 0xffffffffu}) {
        GPT2Cpu bad = filled_model(2);
        const float value = std::bit_cast<float>(bits);
        bad.load(State::kParameter, kWte, 0, {&value, 1});
        check_error([&] { write_model_file(folder / "model.bin", c, kModelBf16, reader(bad)); },
                    kExitDiverged, {"wte[0] = "});
    }
    CHECK((read_bytes(folder / "model.bin") == before));
    CHECK(names_below(folder.path()) == Words{"model.bin", "step_00000002"});
    load_checkpoint(Checkpoint(folder / "step_00000002"), writer(&other));
    check_same_state("kept", other, good);
}

// ---- what a run notes --------------------------------------------------------------------------

TEST_CASE("run record: what lies on a line") {
    const Descent none, a = {{"a", 0}}, ab = {{"a", 0}, {"b", 10}}, ac = {{"a", 0}, {"c", 10}},
                        abd = {{"a", 0}, {"b", 10}, {"d", 30}}, x = {{"x", 0}};
    CHECK(lies_on(none, none, 5));
    CHECK(lies_on(a, a, 100));
    CHECK(lies_on(ab, a, 10));  // where b began
    CHECK(lies_on(ab, a, 4));
    CHECK_FALSE(lies_on(ab, a, 11));
    CHECK_FALSE(lies_on(ab, ac, 20));
    CHECK_FALSE(lies_on(a, ab, 20));  // the log went back to before b
    CHECK(lies_on(abd, ab, 30));
    CHECK_FALSE(lies_on(abd, ab, 31));
    CHECK(lies_on(abd, a, 10));
    CHECK_FALSE(lies_on(a, x, 1));
    CHECK(lies_on(a, none, 0));
    CHECK_FALSE(lies_on(a, none, 1));
}

TEST_CASE("run record: what is written is read, and what is not one is refused") {
    RunRecord record;
    record.descent = {{"0123456789abcdef", 0}, {"fedcba9876543210", 123456789012}};
    record.state = {123456789099, 123456789000, 0xffffffffffffffff, 64, 12};
    record.state.optimizer = Optimizer::kMuon;
    record.end_of_text = 256;
    record.val_loss = 1.25;
    record.best = {123456, 0.1};
    record.since_best = 5;
    record.skipped_in_a_row = 3;
    record.data_start = 17;
    record.train_data = {{"a \xff\n", 12, 0xfedcba9876543210, "1 2 3"}, {"b", 1, 0, ""}};
    record.settings = {{"lr", "0.1"}};
    const std::string good = to_json(record);
    CHECK(to_json(parse_run_record(good, "f")) == good);
    CHECK(new_id().size() == 16);
    CHECK(new_id() != new_id());
    for (size_t cut = 0; cut + 2 < good.size(); cut++) {
        CHECK(error_of([&] { parse_run_record(good.substr(0, cut), "f"); }).exit_code == kExitBadInput);
    }
    auto refused = [&](const std::string& old, const std::string& text, const std::string& what) {
        const std::string bad = changed(good, old, text);
        check_error([&] { parse_run_record(bad, "file"); }, kExitBadInput, {"file", what});
    };
    const std::string adamw =
        changed(good, " \"optimizer\": \"muon\",\n", "");  // of before there was a choice
    CHECK(parse_run_record(adamw, "f").state.optimizer == Optimizer::kAdamW);
    refused("\"muon\"", "\"sgd\"", "optimizer");
    refused("\"muon\"", "7", "optimizer");
    refused("\"format\": 2", "\"format\": 99", "another version");
    refused("123456789000", "123456789100", "updates");
    refused("18446744073709551615", "-1", "seed");
    refused("18446744073709551615", "18446744073709551616", "seed");
    refused("1.25", "1e999", "overflow");
    refused("1.25", "\"1\"", "val_loss");
    refused("123456,", "123456789100,", "best");
    refused("0.1\n", "null\n", "best");
    refused("\"since_best\": 5", "\"since_best\": 123456789100", "since_best");
    refused("\"skipped_in_a_row\": 3", "\"skipped_in_a_row\": 123456789100", "skipped_in_a_row");
    refused("123456789099", "-1", "step");
    refused("123456789099", "1e3", "step");
    refused("123456789099", "18446744073709551615", "step");
    refused("\"step\"", "\"stop\"", "step");
    refused("fedcba9876543210", "fedcba987654321", "16 hexadecimal");
    refused("fedcba9876543210", "\\u001b[2Jba9876543", "16 hexadecimal");
    refused("123456789012", "\"x\"", "line");
    refused("\"0123456789abcdef\"", "17", "line");
    refused("\"data_start\": 17", "\"data_start\": 123456789100", "data_start");
    refused("\"fedcba9876543210\",\n   \"1 2 3\"", "\"xyz\", \"1 2 3\"", "XXH3");
    refused("\"1 2 3\"", "7", "train_data");
    refused("\"0.1\"", "0.1", "settings");
    CHECK(error_of([&] { parse_run_record(std::string(1 << 20, '['), "f"); }).exit_code == kExitBadInput);
    CHECK(error_of([&] { parse_run_record("[]", "f"); }).exit_code == kExitBadInput);
    CHECK(error_of([&] { parse_run_record("", "f"); }).exit_code == kExitBadInput);

    const std::string log = log_start({{"0123456789abcdef", 0}}, 0) + "{\"step\":0,\"train_loss\":1}\n" +
                            log_start(record.descent, 9) + "{\"step\":9,\"train_loss\":1}\n";
    CHECK(descent_of_log(log, "l") == record.descent);
    CHECK_FALSE(descent_of_log("{\"step\":9,\"train_loss\":1}\n", "l").has_value());
    CHECK(has_steps(log));
    CHECK_FALSE(has_steps(log_start(record.descent, 9)));
    CHECK(has_steps("{\"ste"));
}

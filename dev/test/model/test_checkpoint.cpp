// Checkpoints: what is saved is found and loaded, damage is noticed and passed over, a failed save leaves
// what was there, and a run that goes on from one ends with the same bits as a run that was never stopped.
#include <cstring>

#include <doctest/doctest.h>

#include "dev/test/support/any_model.h"
#include "dev/test/support/test_files.h"
#include "dev/test/support/train_program.h"
#include "llmc/model/cpu/gpt2.h"
#include "llmc/model/formats/checkpoint.h"
#include "llmc/model/run/folder.h"

using namespace llmc;
namespace fs = std::filesystem;

namespace {

const Words kCheckpointFiles = {"MANIFEST", "config.json", "model.safetensors", "optimizer.safetensors",
                                "run.json"};

GPT2Cpu filled_model(uint64_t seed) {
    GPT2Cpu model(tiny_config(), 2, 9);
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
        std::string manifest = read_bytes(folder + "/MANIFEST"), old = quoted(expected + 10);
        write_bytes(folder + "/MANIFEST",
                    manifest.replace(manifest.find(old), old.size(), quoted(found + 7)));
    }
}

}  // namespace

// ---- save, find, load --------------------------------------------------------------------------

TEST_CASE("checkpoint: what is saved is loaded, whole and by ranges") {
    TempFolder folder;
    GPT2Cpu model = filled_model(3), other(tiny_config(), 1, 2);
    RunRecord record = record_of(123456789012, 123456789000, 0xfedcba9876543210);
    record.state.seq_len = 1024;
    record.state.rows_per_step = 48;
    record.end_of_text = 36;
    save_checkpoint(folder.path(), tiny_config(), record, reader(model));
    const std::string path = folder / "step_123456789012";
    CHECK(names_below(folder.path()) == Words{"step_123456789012"});
    CHECK(names_below(path) == kCheckpointFiles);
    std::string notes;
    CHECK(find_checkpoint(folder.path(), &notes) == path);
    CHECK(notes.empty());
    const Checkpoint saved(path);
    CHECK(saved.config() == tiny_config());
    const TrainingState& state = saved.record().state;
    CHECK(state.step == record.state.step);
    CHECK(state.updates == record.state.updates);
    CHECK(state.seed == record.state.seed);
    CHECK(state.seq_len == 1024);
    CHECK(state.rows_per_step == 48);
    other.set_updates(0);
    load_checkpoint(saved, writer(&other));
    check_same_state("loaded", other, model);
    for (State part : kStates) {  // whoever holds a part of the state reads that part
        for (int t = 0; t < kNumTensors; t++) {
            std::vector<float> whole = whole_tensor(model, part, t), found(whole.size());
            for (size_t at = 0; at < found.size(); at += 101) {
                saved.read(part, t, (int64_t)at,
                           std::span(found).subspan(at, std::min<size_t>(101, found.size() - at)));
            }
            check_same(kTensors[t].name, found, whole);
        }
    }
    std::vector<float> two(2);
    CHECK(error_of([&] { saved.read(State::kFirstMoment, kLnfb, 13, two); }).exit_code == kExitUsage);
    std::error_code ignored;
    const auto size = (int64_t)(fs::file_size(path + "/model.safetensors", ignored) +
                                fs::file_size(path + "/optimizer.safetensors", ignored));
    CHECK(size <= checkpoint_bytes(tiny_config()));
    CHECK(size > checkpoint_bytes(tiny_config()) - (1 << 16));
}

TEST_CASE("checkpoint: its model is Hugging Face's, its moments lie by tensor and element") {
    TempFolder folder;
    save_step(folder.path(), 4);
    const std::string path = folder / "step_00000004";
    const GPT2Cpu model = filled_model(4);
    CHECK(HfModel(path).config() == tiny_config());
    std::string notes;
    CHECK(open_model(path, &notes).path == path + "/model.safetensors");
    const SafetensorsFile weights(path + "/model.safetensors"), moments(path + "/optimizer.safetensors");
    const SafetensorsEntry* fc = weights.find("transformer.h.1.mlp.c_fc.weight");
    REQUIRE(fc != nullptr);
    CHECK(fc->shape == std::vector<int64_t>{14, 56});  // (in, out)
    CHECK(weights.find("transformer.wte.weight")->shape == std::vector<int64_t>{37, 14});
    CHECK(moments.entries().size() == 32);
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

TEST_CASE("checkpoint: one of an earlier version is refused by name") {
    TempFolder folder;
    const std::string path = folder / "step_00000004";
    fs::create_directories(path);
    write_bytes(
        path + "/MANIFEST",
        "1 0123456789abcdef model.bin\n1 0123456789abcdef optimizer.bin\n1 0123456789abcdef run.json\n");
    check_error(load_error(path), kExitBadInput,
                {path, "earlier version", "model.bin, optimizer.bin", "--model " + path + "/model.bin"});
}

TEST_CASE("checkpoint: the newest is found, by number") {
    TempFolder folder;
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

TEST_CASE("checkpoint: a step that is there already is replaced") {
    TempFolder folder;
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

TEST_CASE("checkpoint: what a killed save has left is removed") {
    TempFolder folder;
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

TEST_CASE("checkpoint: a kill while one is replaced loses neither") {
    TempFolder folder;
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
}

// ---- damage ------------------------------------------------------------------------------------

TEST_CASE("checkpoint: a damaged one is passed over with a note") {
    TempFolder folder;
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

TEST_CASE("checkpoint: what is not one is refused") {
    TempFolder folder;
    save_step(folder.path(), 4);
    check_error(load_error(folder / "step_00000009"), kExitBadInput,
                {"step_00000009", "no such checkpoint folder"});
    check_error(load_error(folder.path()), kExitBadInput,
                {folder.path(), "MANIFEST is missing", "step_ folder"});
    check_error(load_error(folder / "step_00000004/run.json"), kExitBadInput,
                {"run.json", "no such checkpoint"});
}

TEST_CASE("checkpoint: what a whole MANIFEST does not vouch for") {
    TempFolder folder;
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
        std::string all = read_bytes(file);
        REQUIRE(all.find(old) != std::string::npos);
        write_bytes(file, all.replace(all.find(old), old.size(), text));
    };
    check_refused("run.json", "updates",
                  [&](const std::string& f) { replace(f, "\"updates\": 4", "\"updates\": 5"); });
    check_refused("run.json", "seq_len",
                  [&](const std::string& f) { replace(f, "\"seq_len\": 0", "\"seq_len\": 1048577"); });
    check_refused("config.json", "n_embd",
                  [&](const std::string& f) { replace(f, "\"n_embd\": 14", "\"n_embd\": 0"); });
    check_refused("optimizer.safetensors", "first_moment.lnfb: found no such tensor",
                  [&](const std::string& f) { replace(f, "first_moment.lnfb", "first_moment.lnfx"); });
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
    check_refused("optimizer.safetensors", "found F32 (14, 9), expected F32 (9, 14)",
                  [&](const std::string& f) {
                      rewrite(f, 32, {14, 9}, TensorType::kF32);
                  });
    check_refused("optimizer.safetensors", "found BF16", [&](const std::string& f) {
        rewrite(f, 32, {9, 14}, TensorType::kBF16);
    });
    check_refused("optimizer.safetensors", "found 33, expected 32", [&](const std::string& f) {
        rewrite(f, 33, {9, 14}, TensorType::kF32);
    });
    copy_folder(folder / "good/step_00000004", path);
    replace(path + "/run.json", "\"end_of_text\": 0", "\"end_of_text\": 37");
    repair_manifest(path);
    check_error(load_error(path), kExitBadInput, {"end_of_text", "37"});
}

// ---- saves that fail ---------------------------------------------------------------------------

TEST_CASE("checkpoint: a folder that cannot be written") {
    TempFolder folder;
    write_bytes(folder / "file", "not a folder");
    for (const std::string& run : {folder / "file/run", folder / "file", folder / "file/a/b"}) {
        check_error(error_of([&] { make_writable_folder(run); }), kExitUsage,
                    {run, "cannot make or write", "Choose"});
        check_error(error_of([&] { save_step(run, 4); }), kExitUsage, {run, "cannot make or write"});
        check_error(error_of([&] { FileWriter writer(run + "/model.bin"); }), kExitUsage,
                    {run, "cannot write"});
        std::string notes;
        CHECK(find_checkpoint(run, &notes).empty());
    }
    CHECK(names_below(folder.path()) == Words{"file"});
}

TEST_CASE("checkpoint: a full disk leaves what was there") {
    TempFolder folder;
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

TEST_CASE("checkpoint: a link under the name of its temporary folder leads it nowhere") {
    TempFolder folder;
    fs::create_directory(folder / "elsewhere");
    fs::create_symlink("elsewhere", folder / fmt::format("step_00000004.tmp-{}", (int)getpid()));
    save_step(folder.path(), 4);
    CHECK(load_error(folder / "step_00000004").exit_code == kExitDone);
    CHECK_FALSE(fs::is_symlink(folder / "step_00000004"));
    CHECK(names_below(folder / "elsewhere").empty());
}

// ---- going on ----------------------------------------------------------------------------------

TEST_CASE("resume: a model goes on with the same bits") {
    TempFolder folder;
    GPT2Config c = tiny_config();
    auto train = [&](GPT2Cpu* model, int64_t first, int64_t end) {
        for (int64_t k = first; k < end; k++) {
            Batch batch = random_batch(c, 2, 9, (uint64_t)k);
            std::vector<float> good = whole_tensor(*model, State::kParameter, kWpe), bad(good.size(), NAN);
            if (k == 2) { model->load(State::kParameter, kWpe, 0, bad); }  // skipped: updates lag behind
            step(model, {&batch, 1}, {.step = k, .lr = 1e-2, .weight_decay = 0.1, .clip = 1});
            if (k == 2) { model->load(State::kParameter, kWpe, 0, good); }
        }
    };
    GPT2Cpu at_once(c, 2, 9), before(c, 2, 9), after(c, 2, 9);
    for (GPT2Cpu* model : {&at_once, &before}) { model->init(5); }
    train(&at_once, 0, 8);
    train(&before, 0, 4);
    save_checkpoint(folder.path(), c, record_of(4, before.updates(), 5), reader(before));
    const Checkpoint saved(folder / "step_00000004");
    const TrainingState& state = saved.record().state;
    CHECK(state.step == 4);
    CHECK(state.updates == 3);
    after.set_updates(state.updates);
    load_checkpoint(saved, writer(&after));
    train(&after, state.step, 8);
    check_same_state("resumed", after, at_once);
}

TEST_CASE("resume: the program ends as if it had never stopped") {
    TempFolder folder;
    write_tiny_data(folder.path());
    auto train = [&](const std::string& out, const std::string& steps, const std::string& more = "") {
        Words options = tiny_run(folder.path(),
                                 "--batch 2 --total-batch 48 --lr 0.01 --warmup 6 --schedule "
                                 "constant --weight-decay 0.1 --val-every 3 --sample-every 3 "
                                 "--sample-tokens 5 --save-every 4 --steps " +
                                     steps + " --out " + folder / out + " " + more);
        ProgramRun run = run_train(folder.path(), options);
        CHECK_MESSAGE(run.exit_code == kExitDone, run.err);
        return run;
    };
    auto check_same_run = [&](const std::string& out) {
        CHECK(read_log(folder / out) == read_log(folder / "whole"));
        for (const char* file :
             {"/model.bin", "/step_00000008/model.safetensors", "/step_00000008/optimizer.safetensors"}) {
            CHECK_MESSAGE(same_files(folder / out + file, folder / "whole" + file), out, file);
        }
    };
    train("whole", "8");
    CHECK(names_below(folder / "whole") ==
          Words{"config.toml", "log.jsonl", "model.bin", "report.html", "step_00000004", "step_00000008"});
    CHECK(read_log(folder / "whole").size() == 8 + 3);  // validation at 3, 6 and the end

    train("parts", "4");  // ends at 4, and goes on from there
    train("parts", "8", "--resume auto");
    check_same_run("parts");
    train("parts", "8", "--resume auto");  // at its end there is nothing to do
    check_same_run("parts");

    copy_folder(folder / "whole", folder / "killed");  // killed after 8 steps; checkpoint 8 is damaged
    fs::remove(folder / "killed/model.bin");
    flip_byte(folder / "killed/step_00000008/optimizer.safetensors", 5000);
    write_bytes(folder / "killed/log.jsonl", read_bytes(folder / "whole/log.jsonl") + "{\"step\":8,\"tra");
    ProgramRun run = train("killed", "8", "--resume auto");
    CHECK(run.err.find("passed over: " + (folder / "killed/step_00000008")) != std::string::npos);
    CHECK(run.out.find(folder / "killed/step_00000004") != std::string::npos);
    check_same_run("killed");

    // into a new folder: its log begins there
    train("elsewhere", "8", "--resume " + folder / "whole/step_00000004");
    std::vector<Json> log = read_log(folder / "whole");
    log.erase(log.begin(), log.begin() + 5);
    CHECK(read_log(folder / "elsewhere") == log);
    CHECK(same_files(folder / "elsewhere/model.bin", folder / "whole/model.bin"));
}

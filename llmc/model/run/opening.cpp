// A run from the options to an open log: see opening.h.
#include "llmc/model/run/opening.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "llmc/host/base/error.h"
#include "llmc/host/base/text.h"
#include "llmc/host/files/file_io.h"
#include "llmc/model/eval/validation.h"
#include "llmc/model/run/data.h"
#include "llmc/model/run/folder.h"
#include "llmc/model/run/follower.h"
#include "llmc/model/run/hf_export.h"

namespace llmc {

namespace {

using Json = nlohmann::ordered_json;

RunPlan locked_plan(const Options& o, const DataLoader& data, const ModelFactory& factory, RunLock* lock) {
    std::error_code ignored;
    if (!o.dry_run && !o.out.empty() && std::filesystem::is_directory(o.out, ignored)) {
        lock->take(o.out);
        take_back_replaced(o.out);
    }
    return make_run_plan(o, data, factory.measure_speed);
}

// the lines of config.toml, whose values JSON writes the same way
Json options_of(const Options& o) {
    Json options = Json::object();
    std::istringstream lines(config_text(o));
    for (std::string line; std::getline(lines, line);) {
        const size_t equals = line.find(" = ");
        if (line.starts_with('#') || equals == std::string::npos) { continue; }
        const std::string value = line.substr(equals + 3);
        const Json parsed = Json::parse(value, nullptr, false);
        options[line.substr(0, equals)] = parsed.is_discarded() ? Json(value) : parsed;
    }
    return options;
}

}  // namespace

Run::Run(const Options& given, const ModelFactory& kind, Comm& ranks)
    : comm(ranks),
      options_text(config_text(given)),
      factory(kind),
      data(given.train_data, given.seq_len, given.seed, given.raw_tokens),
      plan(locked_plan(given, data, kind, &lock)),
      settings(model_settings(plan.options, &ranks)),
      samples(plan, data.vocab_size()),
      screen(given.quiet, given.log_every),
      folder(plan.out) {
    const Options& o = plan.options;
    check_tokens(data.set());
    if (!o.val_data.empty()) { val.emplace(o, data.vocab_size(), samples.end_of_text()); }
    if (!o.hellaswag.empty()) {
        require_vocabulary(questions.emplace(o.hellaswag), data.vocab_size(), o.train_data);
    }
}

void Run::announce(const Needs& needs) {
    const Options& o = plan.options;
    memory = factory.plan(plan.config, o.batch, o.seq_len, settings);
    device = factory.device(settings);
    const int64_t on_host = o.program == Program::kCpu ? comm.local_size() * memory.total() : 0;
    saves = plan_saves(plan, samples.files(plan.config.max_seq_len), on_host);
    plan_text = describe_run(plan, data, val ? &val->data() : nullptr, memory, device);
    put_text(stdout, plan_text + describe_saves(saves) + "\n");
    require_memory(memory, o, needs, plan.config);
    screen.note(disk_warning(saves, plan.out) + o.notes);
    require_export_folder(o, plan.out, goes_on() ? plan.record.descent : Descent());
    if (o.dry_run && !o.out.empty() && o.resume != "auto" && !goes_on()) { require_no_run(plan.out); }
}

void Run::take_folder() {
    const Options& o = plan.options;
    if (!o.export_hf.empty()) { make_writable_folder(o.export_hf); }
    if (o.out.empty()) {
        folder = make_new_folder(plan.out);
        if (folder != plan.out) {
            screen.message(fmt::format("{} is another run's: this one is in {}", plan.out, folder));
        }
    } else {
        make_writable_folder(folder);
    }
    lock.take(folder);
    remove_leftovers(folder);
    if (o.resume == "auto" && plan.checkpoint.empty()) { screen.note(put_log_aside(folder)); }
    if (!goes_on()) { require_no_run(folder); }
    record = next_record(plan.record, plan.checkpoint, o, data.set(), val_set(), device.name, &notes);
    record.tokenizer = samples.files(plan.config.max_seq_len);
}

bool Run::goes_on() const {
    std::error_code ignored;
    const std::string from = run_folder_of(plan.checkpoint);
    return !plan.checkpoint.empty() &&
           (plan.options.resume == "auto" || std::filesystem::equivalent(from, folder, ignored));
}

void Run::share() const {
    if (comm.size() == 1) { return; }
    RunRecord inputs = record;
    inputs.settings["weights"] = weights_digest(plan.checkpoint, plan.model_file);
    inputs.settings["entropy"] = fmt::format("{:g}", entropy());
    share_plan(comm,
               {{plan.config, plan.options.reduce_groups, samples.end_of_text(), record.data_start,
                 plan.rows_per_step, plan.micro_batches, settings.muon},
                plan.checkpoint,
                plan.model_file,
                to_json(inputs)},
               options_text);
}

void Run::open_log(int64_t first) {
    const Options& o = plan.options;
    record.descent.push_back({new_id(), first});
    record.end_of_text = samples.end_of_text();
    // the log first: from here on it says which checkpoints count
    log.emplace(folder, goes_on() ? first : -1,
                log_start(record.descent, first, record.data_start != plan.record.data_start,
                          run_header(plan, memory, device, entropy(), plan_text)));
    screen.note(set_aside(folder, record.descent));
    const auto& tokenizer = samples.tokenizer();
    const bool known = plan.config.vocab_size == kByteVocabSize;  // without a file
    if (tokenizer && !(tokenizer->is_bytes() && known)) { tokenizer->save(folder, plan.config.max_seq_len); }
    write_text_file(folder + "/config.toml", config_text(o, true));
    if (!o.for_gpu.empty()) { log->event("note", first, {{"text", o.notes}}); }
}

std::string run_header(const RunPlan& plan, const MemoryPlan& memory, const Device& device, double entropy,
                       const std::string& plan_text) {
    const Options& o = plan.options;
    Json header = {{"version", std::string("plumb ") + kVersion},
                   {"program", o.program == Program::kGpu ? "train_gpt2cu" : "train_gpt2"},
                   {"device", device.name},
                   {"peak_flops", device.peak_flops > 0 ? Json(device.peak_flops) : Json()},
                   {"parameters", num_parameters(plan.config)},
                   {"steps", plan.steps},
                   {"tokens_per_step", plan.rows_per_step * o.seq_len},
                   {"source_entropy", entropy > 0 ? Json(entropy) : Json()},
                   {"device_memory",
                    {{"parameters", memory.parameters},
                     {"gradients", memory.gradients},
                     {"optimizer", memory.optimizer},
                     {"activations", memory.activations}}},
                   {"plan", plan_text},
                   {"options", options_of(o)}};
    if (!o.tune_gemm.empty()) { header["products"] = recorded_settings(o, device.name).at("products"); }
    return header.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace llmc

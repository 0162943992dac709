// The header of a log: see run/header.h.
#include "llmc/model/run/header.h"

#include <nlohmann/json.hpp>
#include <sstream>

#include "llmc/model/run/data.h"

namespace llmc {

namespace {

using Json = nlohmann::ordered_json;

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

std::string run_header(const Options& o, const RunPlan& plan, const MemoryPlan& memory, const Device& device,
                       double entropy, const std::string& plan_text) {
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

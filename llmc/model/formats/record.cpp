// What a checkpoint says about its run: see formats/record.h.
#include "llmc/model/formats/record.h"

#include <sys/random.h>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "llmc/host/base/error.h"
#include "llmc/host/files/json.h"
#include "llmc/host/log/run_log.h"

namespace llmc {

namespace {

using Json = JsonValue;

constexpr int kFormat = 2;
constexpr size_t kIdDigits = 16;

// A field of an object, checked; `what` is the file.
class Reader {
public:
    Reader(const Json& object, const std::string& what) : object_(object), what_(what) {
        if (!object.is_object()) { fail("the whole", "an object"); }
    }
    const Json& at(const char* name) const {
        auto found = object_.find(name);
        if (found == object_.end()) { fail(name, "to be there"); }
        return *found;
    }
    int64_t count(const char* name) const { return count(at(name), name); }
    int64_t count(const char* name, int64_t most) const {
        int64_t value = count(name);
        if (value > most) { fail(name, fmt::format("at most {}", most).c_str()); }
        return value;
    }
    int64_t count(const Json& value, const char* name) const {
        bool fits = value.is_number_unsigned() && value.get<uint64_t>() <= (uint64_t)INT64_MAX;
        if (!fits) { fail(name, "a whole number of 0 to 2^63 - 1"); }
        return value.get<int64_t>();
    }
    uint64_t word(const char* name) const {
        if (!at(name).is_number_unsigned()) { fail(name, "a whole number of 0 to 2^64 - 1"); }
        return at(name).get<uint64_t>();
    }
    double number(const Json& value, const char* name) const {
        double x = value.is_number() ? value.get<double>() : NAN;
        if (!std::isfinite(x)) { fail(name, "a finite number"); }
        return x;
    }
    Descent descent(const char* name) const {
        Descent descent;
        const Json& starts = at(name);
        if (!starts.is_array()) { fail(name, "a list"); }
        for (const Json& start : starts) {
            if (!start.is_array() || start.size() != 2 || !start[0].is_string()) {
                fail(name, "[id, step] for each start");
            }
            std::string id = start[0].get<std::string>();
            int64_t step = count(start[1], name);
            bool hex =
                id.size() == kIdDigits && id.find_first_not_of("0123456789abcdef") == std::string::npos;
            if (!hex || (!descent.empty() && step < descent.back().step)) {
                fail(name, "ids of 16 hexadecimal digits, steps that do not fall");
            }
            descent.push_back({id, step});
        }
        return descent;
    }
    std::string text(const Json& value, const char* name) const {
        if (!value.is_string()) { fail(name, "a text"); }
        return value.get<std::string>();
    }
    Optimizer optimizer(const char* name) const {
        if (object_.find(name) == object_.end()) {
            return Optimizer::kAdamW;
        }  // of a version that had no other
        const std::string value = text(at(name), name);
        for (Optimizer known : {Optimizer::kAdamW, Optimizer::kMuon}) {
            if (value == text_of(known)) { return known; }
        }
        fail(name, "adamw or muon");
    }
    std::vector<ShardRecord> shards(const char* name) const {
        std::vector<ShardRecord> shards;
        if (!at(name).is_array()) { fail(name, "a list"); }
        for (const Json& item : at(name)) {
            if (!item.is_array() || item.size() != 4) { fail(name, "[name, tokens, XXH3, identity] each"); }
            std::string hash = text(item[2], name);
            uint64_t xxh3 = 0;
            auto [end, error] = std::from_chars(hash.data(), hash.data() + hash.size(), xxh3, 16);
            if (hash.size() != kIdDigits || error != std::errc() || end != hash.data() + hash.size()) {
                fail(name, "an XXH3 of 16 hexadecimal digits");
            }
            shards.push_back({text(item[0], name), count(item[1], name), xxh3, text(item[3], name)});
        }
        return shards;
    }
    std::map<std::string, std::string> settings(const char* name) const {
        std::map<std::string, std::string> settings;
        if (!at(name).is_object()) { fail(name, "an object"); }
        for (const auto& item : at(name).items()) { settings[item.key()] = text(item.value(), name); }
        return settings;
    }
    std::optional<double> val_loss(const char* name) const {
        return at(name).is_null() ? std::nullopt : std::optional(number(at(name), name));
    }
    std::optional<Validated> validated(const char* name) const {
        const Json& pair = at(name);
        if (pair.is_null()) { return std::nullopt; }
        if (!pair.is_array() || pair.size() != 2) { fail(name, "null or [step, loss]"); }
        return Validated{count(pair[0], name), number(pair[1], name)};
    }
    std::vector<AcceptedStep> window(const char* name, int64_t step) const {
        std::vector<AcceptedStep> window;
        if (object_.find(name) == object_.end()) { return window; }  // of a version that skipped no outliers
        const Json& list = at(name);
        if (!list.is_array() || list.size() > OutlierWindow::kMost) { fail(name, "a list of few steps"); }
        for (const Json& item : list) {
            if (!item.is_array() || item.size() != 3) { fail(name, "[step, loss, norm] each"); }
            const int64_t at = count(item[0], name);
            if (at >= step || (!window.empty() && at <= window.back().step)) {
                fail(name, "steps that rise, before this one");
            }
            window.push_back({at, real(item[1], name), real(item[2], name)});
        }
        return window;
    }
    float real(const Json& value, const char* name) const {
        const double x = number(value, name);
        if (std::abs(x) > (double)std::numeric_limits<float>::max()) { fail(name, "numbers of 32 bits"); }
        return (float)x;
    }
    [[noreturn]] void fail(const char* name, const char* expected) const {
        throw Error(kExitBadInput,
                    fmt::format("{}: not a usable record of a run: {}: expected {}", what_, name, expected));
    }

private:
    const Json& object_;
    const std::string& what_;
};

Json parse(const std::string& text, const std::string& what) {
    return parse_json(text, what + ": not a usable record of a run", {.depth = 4, .integer = UINT64_MAX});
}

Json to_list(const Descent& descent) {
    Json list = Json::array();
    for (const Start& start : descent) { list.push_back({start.id, start.step}); }
    return list;
}

Json to_list(const std::vector<ShardRecord>& shards) {
    Json list = Json::array();
    for (const ShardRecord& s : shards) {
        list.push_back({s.name, s.tokens, fmt::format("{:016x}", (unsigned long long)s.xxh3), s.identity});
    }
    return list;
}

}  // namespace

std::string new_id() {
    uint64_t bits = 0;
    if (getrandom(&bits, sizeof(bits), 0) != (ssize_t)sizeof(bits)) {
        throw Error(kExitDevice, "the system gives no random numbers (getrandom)");
    }
    return fmt::format("{:016x}", (unsigned long long)bits);
}

bool lies_on(const Descent& descent, const Descent& checkpoint, int64_t step) {
    size_t n = checkpoint.size();
    if (n > descent.size() || !std::equal(checkpoint.begin(), checkpoint.end(), descent.begin())) {
        return false;
    }
    return n == descent.size() || descent[n].step >= step;
}

std::string to_json(const RunRecord& record) {
    Json json;
    json["format"] = kFormat;
    json["line"] = to_list(record.descent);
    json["step"] = record.state.step;
    json["updates"] = record.state.updates;
    json["skipped_in_a_row"] = record.skipped_in_a_row;
    json["window"] = Json::array();
    for (const AcceptedStep& s : record.window) { json["window"].push_back({s.step, s.loss, s.norm}); }
    json["optimizer"] = text_of(record.state.optimizer);
    json["seed"] = record.state.seed;
    json["data_start"] = record.data_start;
    json["seq_len"] = record.state.seq_len;
    json["rows_per_step"] = record.state.rows_per_step;
    json["end_of_text"] = record.end_of_text;
    json["val_loss"] = record.val_loss ? Json(*record.val_loss) : Json();
    json["best"] = record.best ? Json({record.best->step, record.best->loss}) : Json();
    json["train_data"] = to_list(record.train_data);
    json["val_data"] = to_list(record.val_data);
    json["settings"] = record.settings;
    // names may have any bytes
    return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

RunRecord parse_run_record(const std::string& text, const std::string& what) {
    const Json json = parse(text, what);
    const Reader reader(json, what);
    if (reader.count("format") != kFormat) {
        reader.fail("format", "2: another version of this program wrote it");
    }
    RunRecord record;
    record.descent = reader.descent("line");
    const int64_t step = record.state.step = reader.count("step");
    record.state.updates = reader.count("updates", step);
    record.skipped_in_a_row = reader.count("skipped_in_a_row", step);
    record.window = reader.window("window", step);
    record.state.optimizer = reader.optimizer("optimizer");
    record.state.seed = reader.word("seed");
    record.data_start = reader.count("data_start", step);
    record.state.seq_len = reader.count("seq_len", 1 << 20);
    record.state.rows_per_step = reader.count("rows_per_step", (int64_t)1 << 42);
    record.end_of_text = (int)reader.count("end_of_text", 1 << 20);
    record.val_loss = reader.val_loss("val_loss");
    record.best = reader.validated("best");
    if (record.best && record.best->step > step) { reader.fail("best", "a step up to this one"); }
    record.train_data = reader.shards("train_data");
    record.val_data = reader.shards("val_data");
    record.settings = reader.settings("settings");
    return record;
}

std::string log_start(const Descent& descent, int64_t step, bool new_data, const std::string& header) {
    Json start = Json::parse(event_log_line(descent.size() > 1 ? "resume" : "start", step));
    start["log"] = kLogFormat;
    start.update(Json::parse(header));
    if (new_data) { start["new_data"] = true; }
    start["line"] = to_list(descent);
    return start.dump() + "\n";
}

std::optional<Descent> descent_of_log(const std::string& log, const std::string& what) {
    size_t mark = log.rfind(",\"line\":[");
    if (mark == std::string::npos) { return std::nullopt; }
    size_t begin = log.rfind('\n', mark) + 1, end = log.find('\n', mark);  // npos + 1 is 0
    if (end == std::string::npos) { return std::nullopt; }
    const Json json = parse(log.substr(begin, end - begin), what);
    return Reader(json, what).descent("line");
}

}  // namespace llmc

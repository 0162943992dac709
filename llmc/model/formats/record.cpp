// What a checkpoint says about its run: see formats/record.h.
#include "llmc/model/formats/record.h"

#include <sys/random.h>
#include <algorithm>
#include <cmath>
#include <concepts>
#include <limits>
#include <nlohmann/json.hpp>

#include "llmc/host/base/error.h"
#include "llmc/host/files/json.h"
#include "llmc/host/log/run_log.h"

namespace llmc {

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
        // left out by versions that had one optimizer, or skipped no outliers
        if (name_ != "optimizer" && name_ != "window") { fail("to be there"); }
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
    if (getrandom(&bits, sizeof(bits), 0) != (ssize_t)sizeof(bits)) {
        throw Error(kExitDevice, "the system gives no random numbers (getrandom)");
    }
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

}  // namespace llmc

// What is known about a validation shard: see val_info.h. Read event by event (SAX), so that no file can make
// it build more than the lists asked for.
#include "llmc/host/tokens/val_info.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "llmc/host/base/error.h"
#include "llmc/host/files/read_file.h"

namespace llmc {

namespace {

using nlohmann::json;

constexpr int64_t kMostBytes = 64 << 20;

// The object is two levels deep, lists three; anything else is refused by returning false.
class Handler : public nlohmann::json_sax<json> {
public:
    explicit Handler(int64_t num_tokens) : num_tokens_(num_tokens) {}
    ValInfo info;
    std::string problem;

    bool start_object(size_t) override {
        objects_++;
        return objects_ == 1 || (objects_ == 2 && arrays_ == 0 && key_ == "probes") ||
               refuse("an object outside 'probes'");
    }
    bool end_object() override { return objects_-- > 0; }
    bool key(string_t& name) override {
        key_ = name;
        if (objects_ == 2) { info.probes.push_back({name, {}}); }
        // names go to the terminal, which control characters could drive
        auto control = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
        return std::none_of(name.begin(), name.end(), control) || refuse("a name with control characters");
    }
    bool start_array(size_t) override {
        pair_.clear();
        return (objects_ == 2 && ++arrays_ <= 2) || refuse("a list outside 'probes'");
    }
    bool end_array() override {
        if (arrays_-- < 2) { return true; }
        bool good = pair_.size() == 2 && pair_[0] > 0 && pair_[1] > 0 && pair_[0] < num_tokens_ &&
                    pair_[1] <= num_tokens_ - pair_[0];
        if (good) { info.probes.back().spans.push_back({pair_[0], pair_[1]}); }
        return good || refuse("a probe that is not [position, length] inside the shard");
    }
    bool number_integer(int64_t n) override { return number(n, (double)n); }
    bool number_unsigned(uint64_t n) override {
        return number((int64_t)std::min<uint64_t>(n, INT64_MAX), (double)n);
    }
    bool number_float(double x, const string_t&) override { return number(-1, x); }
    bool null() override { return refuse("null"); }
    bool boolean(bool) override { return refuse("a boolean"); }
    bool string(string_t&) override { return refuse("a string"); }
    bool binary(json::binary_t&) override { return refuse("binary data"); }
    bool parse_error(size_t at, const std::string&, const nlohmann::detail::exception&) override {
        return refuse(fmt::format("a syntax error at byte {}", at));
    }

private:
    bool refuse(const std::string& what) {
        problem = what;
        return false;
    }
    bool number(int64_t whole, double x) {
        if (objects_ == 2) {
            pair_.push_back(whole);
            return (arrays_ == 2 && pair_.size() <= 2) ||
                   refuse("a number that is not in a [position, length]");
        }
        if (key_ == "probes") { return refuse("a number for 'probes'"); }
        if (key_ == "entropy_nats_per_token") { info.entropy = x; }
        if (key_ == "tokens" && whole != num_tokens_ - 1) {
            return refuse(fmt::format("tokens = {:.15g} for a shard that has {} to predict", x,
                                      (long long)num_tokens_ - 1));
        }
        return true;
    }
    int64_t num_tokens_;
    int objects_ = 0, arrays_ = 0;
    std::string key_;
    std::vector<int64_t> pair_;
};

}  // namespace

std::optional<ValInfo> read_val_info(const std::string& shard_path, int64_t num_tokens) {
    std::string path = std::filesystem::path(shard_path).replace_extension(".json").string();
    const std::optional<std::string> text = read_whole(path, kMostBytes);
    if (!text) { return std::nullopt; }
    Handler handler(num_tokens);
    bool whole = json::sax_parse(*text, &handler);
    if (whole && !(std::isfinite(handler.info.entropy) && handler.info.entropy > 0)) {
        whole = false;
        handler.problem = "no positive entropy_nats_per_token";
    }
    if (!whole) {
        throw Error(
            kExitBadInput,
            fmt::format("{}: found {}, expected {{\"entropy_nats_per_token\": Y, \"probes\": {{...}}}} as "
                        "data/make_corpus writes it. Make it again, or remove it.",
                        path, handler.problem));
    }
    return handler.info;
}

}  // namespace llmc

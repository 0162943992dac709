// The grammar engine of the sample corpus: see corpus_grammar.h.
#include "data/corpus_grammar.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <map>
#include <span>

#include "data/corpus_stories.h"
#include "llmc/host/base/error.h"

namespace llmc {
namespace {

[[noreturn]] void fail(const std::string& where, const std::string& what, const std::string& cure) {
    throw Error(kExitBadInput,
                "corpus grammar, " + where + ": " + what + ". " + cure + " (data/corpus_stories.h)");
}

std::vector<std::string> split(std::string_view s, std::string_view separator) {
    std::vector<std::string> parts;
    for (size_t at; (at = s.find(separator)) != s.npos; s.remove_prefix(at + separator.size())) {
        parts.emplace_back(s.substr(0, at));
    }
    parts.emplace_back(s);
    return parts;
}

// A counter-based generator: SplitMix64's output function over a key and a count. Our own, because the
// standard library's distributions may give other stories on another machine.
uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

class Random {
public:
    Random(uint64_t seed, uint64_t stream, uint64_t index)
        : key_(mix(mix(mix(seed + kStep) + kStep * (stream + 1)) + kStep * (index + 1))) {}
    // uniform in [0, n), n < 2^16: off by at most n / 2^32, which is far below what a corpus could show
    int below(size_t n) { return (int)(((mix(key_ + kStep * ++count_) >> 32) * n) >> 32); }

private:
    static constexpr uint64_t kStep = 0x9e3779b97f4a7c15ull;  // 2^64 / golden ratio
    uint64_t key_, count_ = 0;
};

enum class Mark { kNone, kName, kSum };

}  // namespace

// Who walks the grammar: it takes the choices and hears the text. Telling and reading are the same walk.
struct Grammar::Teller {
    virtual ~Teller() = default;
    virtual int choose(std::span<const std::string_view> options) = 0;  // an index, or -1: none fits
    virtual bool say(std::string_view text, Mark mark) = 0;             // false: give up
};

// chooses at random and writes down
struct Grammar::Narrator : Teller {
    Random random;
    Story story;

    explicit Narrator(Random random) : random(random) {}
    int choose(std::span<const std::string_view> options) override {
        story.nats += std::log((double)options.size());
        return random.below(options.size());
    }
    bool say(std::string_view text, Mark mark) override {
        Span span = {(int)story.text.size(), (int)text.size()};
        if (mark == Mark::kName) { story.names.push_back(span); }
        if (mark == Mark::kSum) { story.sums.push_back(span); }
        story.text += text;
        return true;
    }
};

// Follows a given text. At each choice it takes, of the options that fit the text, the one that `path` says;
// next() moves path to the following combination, so that in the end every combination was walked (depth
// first).
struct Grammar::Reader : Teller {
    std::string_view text;
    size_t at = 0, depth = 0;
    double nats = 0;
    std::vector<int> path, width;  // per choice: which fitting option is taken, and how many fit

    explicit Reader(std::string_view text) : text(text) {}
    int choose(std::span<const std::string_view> options) override {
        nats += std::log((double)options.size());
        std::vector<int> fitting;
        for (size_t i = 0; i < options.size(); i++) {
            if (text.substr(at).starts_with(options[i])) { fitting.push_back((int)i); }
        }
        if (fitting.empty()) { return -1; }
        if (depth == path.size()) {
            path.push_back(0);
            width.push_back((int)fitting.size());
        }
        return fitting[path[depth++]];
    }
    bool say(std::string_view said, Mark) override {
        if (!text.substr(at).starts_with(said)) { return false; }
        at += said.size();
        return true;
    }
    bool next() {
        while (!path.empty() && path.back() + 1 == width.back()) {
            path.pop_back();
            width.pop_back();
        }
        if (path.empty()) { return false; }
        path.back()++;
        at = depth = 0;
        nats = 0;
        return true;
    }
};

// ---- building: lists and texts from their sources -----------------------------------------------

Grammar::Grammar() {
    list_of_letter_.fill(-1);
    for (const WordListSource& list : kWordLists) { add_list(list.name, list.words); }
    for (const RuleSource& rule : kRules) {
        rules_.push_back({rule.name, {rule.texts.begin(), rule.texts.end()}, {}});
    }
    rules_.push_back({"plots", {kPlots.begin(), kPlots.end()}, {}});
    for (Rule& rule : rules_) {
        for (const std::string& source : rule.sources) { rule.texts.push_back(compile(source)); }
    }
    for (const Rule& rule : rules_) { check_rule(rule); }
    const Rule& plots = rules_.back();
    for (size_t i = 0; i < plots.texts.size(); i++) {
        check_text(plots.texts[i], plots.sources[i], {});
        int bytes = longest(plots.texts[i]);
        if (bytes > kMaxStoryBytes) {
            fail("plot \"" + plots.sources[i] + "\"",
                 fmt::format("can be {} bytes long, at most {} fit", bytes, kMaxStoryBytes), "Shorten it");
        }
    }
}

void Grammar::add_list(const char* name, const char* words) {
    List list = {name, {}, false};
    for (const std::string& source : split(words, ", ")) {
        std::vector<std::string> parts = split(source, "/");
        const std::string& plain = parts[0];
        bool she = parts.size() > 1 && parts[1] == "she";
        Word word;
        word.form[kPlain] = plain;
        word.form[kPlural] = parts.size() > 1 ? parts[1] : plain + "s";
        word.form[kArticle] =
            (std::string("aeiou").find(plain[0]) == std::string::npos ? "a " : "an ") + plain;
        const char* pronouns[2][5] = {{"he", "him", "his", "He", "His"}, {"she", "her", "her", "She", "Her"}};
        std::copy_n(pronouns[she], 5, word.form.begin() + kHe);
        list.words.push_back(word);
    }
    list.repeats = std::isdigit((unsigned char)words[0]);
    lists_.push_back(std::move(list));
}

int Grammar::find_rule(const std::string& name) const {
    for (size_t i = 0; i < rules_.size(); i++) {
        if (rules_[i].name == name) { return (int)i; }
    }
    fail("tag {?" + name + "}", "there is no such rule", "Add it or correct the name");
}

Grammar::Text Grammar::compile(const std::string& source) {
    Text text;
    for (size_t at = 0; at < source.size();) {
        bool tag = source[at] == '{';
        size_t end = std::min(source.find(tag ? '}' : '{', at), source.size());
        if (tag) {
            if (end == source.size()) { fail("text \"" + source + "\"", "a tag is not closed", "Add the }"); }
            text.push_back(compile_tag(source.substr(at + 1, end - at - 1)));
        } else {
            text.emplace_back().text = source.substr(at, end - at);
        }
        at = end + tag;
    }
    return text;
}

Grammar::Node Grammar::compile_tag(const std::string& tag) {
    Node node;
    auto is_letter = [&](size_t i) { return i < tag.size() && std::isalpha((unsigned char)tag[i]); };
    if (tag.starts_with('?')) {
        node.kind = Kind::kRule;
        node.rule = find_rule(tag.substr(1));
    } else if (size_t bar = tag.find('|');
               tag.starts_with('#') && bar != tag.npos && is_letter(1) && tag[2] == ':') {
        node.kind = Kind::kAgree;
        node.number = tag[1];
        node.text = tag.substr(3, bar - 3);
        node.other = tag.substr(bar + 1);
    } else if (tag.size() == 3 && is_letter(0) && is_letter(2) && (tag[1] == '+' || tag[1] == '-')) {
        node.kind = Kind::kSum;
        node.letter = tag[0];
        node.number = tag[2];
        node.minus = tag[1] == '-';
    } else if (is_letter(0)) {
        compile_word(node, tag);
    } else {
        fail("tag {" + tag + "}", "not a tag of corpus_grammar.h", "Correct it");
    }
    return node;
}

// a letter, then any of .form, #number, =list
void Grammar::compile_word(Node& node, const std::string& tag) {
    static const std::map<std::string, Form> forms = {
        {"s", kPlural}, {"a", kArticle},    {"he", kHe},         {"him", kHim},
        {"his", kHis},  {"He", kHeCapital}, {"His", kHisCapital}};
    node.kind = Kind::kWord;
    node.letter = tag[0];
    for (size_t at = 1; at < tag.size();) {
        size_t end = std::min(tag.find_first_of(".#=", at + 1), tag.size());
        std::string value = tag.substr(at + 1, end - at - 1);
        if (tag[at] == '.' && forms.contains(value)) {
            node.form = forms.at(value);
        } else if (tag[at] == '#' && value.size() == 1 && std::isalpha((unsigned char)value[0])) {
            node.number = value[0];
        } else if (tag[at] == '=') {
            auto list =
                std::find_if(lists_.begin(), lists_.end(), [&](const List& l) { return l.name == value; });
            if (list == lists_.end()) { fail("tag {" + tag + "}", "there is no such list", "Add it"); }
            int& known = list_of_letter_[node.letter];
            int index = (int)(list - lists_.begin());
            if (known >= 0 && known != index) {
                fail("tag {" + tag + "}", "elsewhere this letter draws from list " + lists_[known].name,
                     "Take another");
            }
            known = index;
            node.draws = true;
        } else {
            fail("tag {" + tag + "}", "not a tag of corpus_grammar.h", "Correct it");
        }
        at = end;
    }
}

// ---- checking: what unambiguity rests on, and the length ----------------------------------------

// all that a text or a draw can say; empty for the other tags, at which two texts may not part
std::vector<std::string_view> Grammar::sayings(const Node& node) const {
    if (node.kind == Kind::kText) { return {node.text}; }
    std::vector<std::string_view> words;
    if (node.kind != Kind::kWord || !node.draws) { return words; }
    for (const Word& word : lists_[list_of_letter_[node.letter]].words) {
        words.push_back(word.form[node.form]);
        if (node.number >= 0) { words.push_back(word.form[kPlural]); }
    }
    return words;
}

// any two texts of the rule are the same up to a node at which nothing that one can say begins what the other
// can say
void Grammar::check_rule(const Rule& rule) const {
    for (size_t i = 0; i < rule.texts.size(); i++) {
        for (size_t j = 0; j < i; j++) {
            const Text &a = rule.texts[i], &b = rule.texts[j];
            auto [at, bt] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
            bool apart = at != a.end() && bt != b.end() && !sayings(*at).empty() && !sayings(*bt).empty();
            for (std::string_view x : apart ? sayings(*at) : std::vector<std::string_view>{}) {
                for (std::string_view y : sayings(*bt)) { apart &= !x.starts_with(y) && !y.starts_with(x); }
            }
            if (!apart) {
                fail("rule " + rule.name,
                     "cannot tell \"" + rule.sources[i] + "\" from \"" + rule.sources[j] + "\"",
                     "Let them part at a text or a draw, where none begins as the other");
            }
        }
    }
}

// the words that a tag can draw are prefix-free, in each form that it can draw
void Grammar::check_words(const Node& node) const {
    const List& list = lists_[list_of_letter_[node.letter]];
    for (Form form : {node.form, node.number < 0 ? node.form : kPlural}) {
        for (const Word& a : list.words) {
            for (const Word& b : list.words) {
                if (&a != &b && a.form[form].starts_with(b.form[form])) {
                    fail("list " + list.name, "\"" + a.form[form] + "\" begins with \"" + b.form[form] + "\"",
                         "Replace one");
                }
            }
        }
    }
}

// every letter is drawn once, before it is used, and agrees with a number
void Grammar::check_text(const Text& text, const std::string& source, std::array<bool, kLetters> held) const {
    auto wrong = [&](const std::string& what, const char* cure) {
        fail("text \"" + source + "\"", what, cure);
    };
    auto must_hold = [&](int letter, bool number) {
        if (!held[letter]) { wrong(fmt::format("{:c} is used before it is drawn", letter), "Draw it"); }
        if (number && !lists_[list_of_letter_[letter]].repeats) {
            wrong(fmt::format("{:c} is not a number", letter), "Take a list of numbers");
        }
    };
    for (const Node& node : text) {
        if (node.number >= 0) { must_hold(node.number, true); }
        if (node.kind == Kind::kSum) { must_hold(node.letter, true); }
        if (node.kind == Kind::kRule) {
            const Rule& rule = rules_[node.rule];
            for (size_t i = 0; i < rule.texts.size(); i++) {
                check_text(rule.texts[i], rule.sources[i], held);
            }
        }
        if (node.kind != Kind::kWord) { continue; }
        if (node.draws) {
            if (held[node.letter]) { wrong("draws a letter twice", "Take another"); }
            held[node.letter] = true;
            check_words(node);
        }
        must_hold(node.letter, false);
    }
}

// an upper bound: each letter holds the word that costs most over all its tags
int Grammar::longest(const Text& text) const {
    int bytes = 0;
    std::map<int, std::vector<int>> cost;  // letter -> per word of its list
    for (const Node& node : text) {
        int most = (int)std::max(node.text.size(), node.other.size());
        if (node.kind == Kind::kSum) { most = 2; }
        if (node.kind == Kind::kRule) {
            for (const Text& inner : rules_[node.rule].texts) { most = std::max(most, longest(inner)); }
        }
        bytes += most;
        if (node.kind != Kind::kWord) { continue; }
        const List& list = lists_[list_of_letter_[node.letter]];
        std::vector<int>& costs = cost[node.letter];
        costs.resize(list.words.size());
        for (size_t i = 0; i < costs.size(); i++) {
            const Word& word = list.words[i];
            costs[i] += (int)std::max(word.form[node.form].size(),
                                      word.form[node.number < 0 ? node.form : kPlural].size());
        }
    }
    for (const auto& [letter, costs] : cost) { bytes += *std::max_element(costs.begin(), costs.end()); }
    return bytes;
}

// ---- walking ------------------------------------------------------------------------------------

int Grammar::number(int letter, const Held& held) const {
    return std::stoi(lists_[list_of_letter_[letter]].words[held[letter]].form[kPlain]);
}

Grammar::Form Grammar::form_of(const Node& node, const Held& held) const {
    return node.number >= 0 && number(node.number, held) != 1 ? kPlural : node.form;
}

bool Grammar::walk(const Text& text, Held& held, Teller& teller) const {
    for (const Node& node : text) {
        bool told = true;
        switch (node.kind) {
            case Kind::kText:
                told = teller.say(node.text, Mark::kNone);
                break;
            case Kind::kAgree:
                told = teller.say(number(node.number, held) == 1 ? node.text : node.other, Mark::kNone);
                break;
            case Kind::kSum: {
                int a = number(node.letter, held), b = number(node.number, held);
                told = teller.say(std::to_string(node.minus ? a - b : a + b), Mark::kSum);
                break;
            }
            case Kind::kRule:
                told = walk_rule(node.rule, held, teller);
                break;
            case Kind::kWord:
                if (node.draws) {
                    told = walk_draw(node, held, teller);
                } else {
                    const List& list = lists_[list_of_letter_[node.letter]];
                    bool name = (list.name == "name" || list.name == "pet") && node.form == kPlain;
                    told = teller.say(list.words[held[node.letter]].form[form_of(node, held)],
                                      name ? Mark::kName : Mark::kNone);
                }
        }
        if (!told) { return false; }
    }
    return true;
}

// the choice is among the words that no other letter of this list holds
bool Grammar::walk_draw(const Node& node, Held& held, Teller& teller) const {
    int index = list_of_letter_[node.letter];
    const List& list = lists_[index];
    Form form = form_of(node, held);
    std::vector<bool> taken(list.words.size());
    for (int letter = 0; letter < kLetters; letter++) {
        if (list_of_letter_[letter] == index && held[letter] >= 0 && !list.repeats) {
            taken[held[letter]] = true;
        }
    }
    std::vector<int> entries;
    std::vector<std::string_view> options;
    for (size_t i = 0; i < taken.size(); i++) {
        if (taken[i]) { continue; }
        entries.push_back((int)i);
        options.push_back(list.words[i].form[form]);
    }
    int choice = teller.choose(options);
    if (choice < 0) { return false; }
    held[node.letter] = (int16_t)entries[choice];
    return teller.say(options[choice], Mark::kNone);
}

// what a rule's text begins with is not known to the teller: it may fit until it has been told
bool Grammar::walk_rule(int rule, Held& held, Teller& teller) const {
    const std::vector<Text>& texts = rules_[rule].texts;
    std::vector<std::string_view> unknown(texts.size());
    return walk(texts[teller.choose(unknown)], held, teller);
}

Story Grammar::tell(uint64_t seed, uint64_t stream, uint64_t index) const {
    Narrator narrator(Random(seed, stream, index));
    Held held;
    held.fill(-1);
    walk_rule((int)rules_.size() - 1, held, narrator);
    return std::move(narrator.story);
}

Grammar::Derivations Grammar::derive(std::string_view text) const {
    Derivations found;
    Reader reader(text);
    do {
        Held held;
        held.fill(-1);
        if (walk_rule((int)rules_.size() - 1, held, reader) && reader.at == text.size()) {
            found.count++;
            found.nats = reader.nats;
        }
    } while (reader.next());
    return found;
}

}  // namespace llmc

// The grammar engine of the sample corpus: it tells short stories of known probability, and reads them back.
//
// Why a grammar: every choice is uniform and counted, so -ln p of a story is known exactly, and with it the
// loss that no model can beat. Training can then be judged against a true floor instead of against another
// program's loss.
//
// A story is a plot of corpus_stories.h told from left to right. A plot is text with tags:
//   {A=name}        draws a word of the list `name` that no letter of this story holds yet, and keeps it as A
//   {A} {A.him}     the word kept as A again, here in its plain form or in the form `him`; no choice
//   {n+m} {n-m}     the sum or the difference of two numbers kept before; no choice
//   {o#n}           o in the singular if the number n is 1, else in the plural
//   {#n:was|were}   likewise for two texts of our own
//   {?rule}         one of the rule's texts, which may hold tags of their own
// Forms of a word: .s plural, .a with its article, and of a name .he .him .his .He .His.
//
// A letter draws from one list in the whole grammar, and once in a story.
//
// Why it is unambiguous: two derivations of one text would part at some choice. If that choice draws a
// word, the words are prefix-free, so the bytes tell them apart. If it picks a text of a rule, any two
// texts of that rule are the same, tags included, up to a place where each has a literal or a draw and
// nothing that one can say there begins what the other can say. Up to there both derivations made the same
// choices (by induction); then their bytes differ. Sequences of prefix-free parts are prefix-free. All this
// is checked when the grammar is built, and derive() counts the derivations of a given text by trying all.
// For the same reason a tag without a choice is certain given the text before it, which makes names and
// sums fair questions to a model.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace llmc {

constexpr int kMaxStoryBytes =
    250;  // with the end-of-text before and after it, a story fits in a window of 256

// bytes of a story that the text before them determines
struct Span {
    int begin, length;
};

struct Story {
    std::string text;
    double nats = 0;          // -ln p(text)
    std::vector<Span> names;  // second and later mentions of a character
    std::vector<Span> sums;   // results of a sum or a difference
};

class Grammar {
public:
    // compiles and checks the lists, rules and plots of corpus_stories.h; throws Error(kExitBadInput) naming
    // the culprit if a word begins with another, two texts cannot be told apart, or a story could be too long
    Grammar();

    // story `index` of a stream: a pure function of its arguments, the same on every machine
    Story tell(uint64_t seed, uint64_t stream, uint64_t index) const;

    // every way the grammar has to tell this text: how many, and -ln p of the last one found
    struct Derivations {
        int count = 0;
        double nats = 0;
    };
    Derivations derive(std::string_view text) const;

private:
    enum Form { kPlain, kPlural, kArticle, kHe, kHim, kHis, kHeCapital, kHisCapital, kForms };
    enum class Kind { kText, kWord, kSum, kAgree, kRule };
    static constexpr int kLetters = 128;  // letters are ASCII

    struct Word {
        std::array<std::string, kForms> form;
    };
    struct List {
        std::string name;
        std::vector<Word> words;
        bool repeats = false;  // numbers: two letters may hold the same one
    };
    struct Node {
        Kind kind = Kind::kText;
        std::string text, other;  // kText: the text; kAgree: the texts for one and for many
        Form form = kPlain;
        int letter = -1;  // kWord: the letter; kSum: the first number
        int number = -1;  // kWord, kAgree: the number it agrees with, or -1; kSum: the second number
        int rule = -1;
        bool draws = false;  // kWord: this tag chooses the word
        bool minus = false;  // kSum
        bool operator==(const Node&) const = default;
    };
    using Text = std::vector<Node>;
    struct Rule {
        std::string name;
        std::vector<std::string> sources;
        std::vector<Text> texts;
    };
    // which word each letter holds in the story being told; -1 = none
    using Held = std::array<int16_t, kLetters>;
    struct Teller;
    struct Narrator;
    struct Reader;

    void add_list(const char* name, const char* words);
    Text compile(const std::string& source);
    Node compile_tag(const std::string& tag);
    void compile_word(Node& node, const std::string& tag);
    int find_rule(const std::string& name) const;

    std::vector<std::string_view> sayings(const Node& node) const;
    void check_rule(const Rule& rule) const;
    void check_words(const Node& node) const;
    void check_text(const Text& text, const std::string& source, std::array<bool, kLetters> held) const;
    int longest(const Text& text) const;

    int number(int letter, const Held& held) const;
    Form form_of(const Node& node, const Held& held) const;
    bool walk(const Text& text, Held& held, Teller& teller) const;
    bool walk_draw(const Node& node, Held& held, Teller& teller) const;
    bool walk_rule(int rule, Held& held, Teller& teller) const;

    std::vector<List> lists_;
    std::vector<Rule> rules_;                   // the last one is the plots
    std::array<int, kLetters> list_of_letter_;  // -1 = unused
};

}  // namespace llmc

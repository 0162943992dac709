// What a user types: settings with a few values, enum classes that count from 0, by the words that stand for them on the command
// line, in config files, in run.json and in messages, and what they mean in --help; and any text as messages quote it.
#pragma once
#include <algorithm>
#include <cctype>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

namespace llmc {

enum class Optimizer { kAuto, kAdamW, kMuon };
constexpr const char* words_of(Optimizer) { return "auto adamw muon"; }

enum class FloatType { kAuto, kFp32, kBf16, kFp16 };
constexpr const char* words_of(FloatType) { return "auto fp32 bf16 fp16"; }

enum class Recompute { kNone, kGelu, kBlock };
constexpr const char* words_of(Recompute) { return "none gelu block"; }

enum class Decay { kConstant, kCosine, kLinear, kWsd };  // of the learning rate
constexpr const char* words_of(Decay) { return "constant cosine linear wsd"; }

enum class ValAlign { kAuto, kWindow, kDocument };
constexpr const char* words_of(ValAlign) { return "auto window document"; }

enum class SaveMode { kAuto, kAsync, kSync };
constexpr const char* words_of(SaveMode) { return "auto async sync"; }

constexpr const char* words_of(bool) { return "false true"; }

std::vector<std::string> split_words(const std::string& text);  // what blanks separate
std::vector<std::string> split(const std::string& text, char separator);
bool among(const std::string& words, const std::string& word);

template <typename E>
concept HasWords = (std::is_enum_v<E> || std::is_same_v<E, bool>)&&requires(E e) {
    words_of(e);
};
template <HasWords E>
std::string text_of(E value) {
    return split_words(words_of(value))[(size_t)value];
}

// user's text in a message: short, on one line
inline std::string in_quotes(const std::string& text) {
    std::string s = text.substr(0, 60);
    for (char& c : s) { c = std::iscntrl((unsigned char)c) ? '?' : c; }
    return "'" + s + (s.size() < text.size() ? "...'" : "'");
}

// as a shell takes it for one word
inline std::string shell_word(const std::string& text) {
    const auto plain = [](unsigned char c) { return std::isalnum(c) || std::strchr("_./-", c) != nullptr; };
    if (!text.empty() && std::ranges::all_of(text, plain)) { return text; }
    std::string quoted = "'";
    for (char c : text) { quoted += c == '\'' ? std::string("'\\''") : std::string(1, c); }
    return quoted + "'";
}

}  // namespace llmc

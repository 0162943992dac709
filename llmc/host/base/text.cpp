// Text that people read: see text.h.
#include "llmc/host/base/text.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>
#include <algorithm>
#include <bit>
#include <csignal>
#include <iostream>
#include <new>

#include "llmc/host/base/error.h"

namespace llmc {

namespace {

// control characters: 0x00 to 0x1f, 0x7f and, of two bytes, U+0080 to U+009F, which terminals obey too
bool is_control(std::string_view character) {
    const uint8_t first = (uint8_t)character[0];
    if (first == '\n' || first == '\t') { return false; }
    return first < 0x20 || first == 0x7f || (first == 0xc2 && (uint8_t)character[1] < 0xa0);
}

// control characters as \xHH, and unless it is kept what is not UTF-8
std::string escaped(std::string_view text, bool keep_other_bytes) {
    std::string out;
    while (!text.empty()) {
        const size_t length = utf8_length(text);
        const std::string_view next = text.substr(0, std::max<size_t>(1, length));
        if (length > 0 ? !is_control(next) : keep_other_bytes) {
            out += next;
        } else {
            for (char c : next) { out += fmt::format("\\x{:02x}", (unsigned)(uint8_t)c); }
        }
        text.remove_prefix(next.size());
    }
    return out;
}

}  // namespace

size_t utf8_length(std::string_view text) {
    if (text.empty()) { return 0; }
    const uint8_t first = (uint8_t)text[0];
    const size_t length = first < 0x80 ? 1 : (size_t)std::countl_one(first);
    if (length > std::min<size_t>(4, text.size()) || (first & 0xc0) == 0x80) { return 0; }
    for (char c : text.substr(1, length - 1)) {
        if (((uint8_t)c & 0xc0) != 0x80) { return 0; }
    }
    constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};  // what needs so many bytes
    const uint32_t code = utf8_code_point(text, length);
    const bool surrogate = code >= 0xd800 && code < 0xe000;
    return code >= kLeast[length] && code <= 0x10ffff && !surrogate ? length : 0;
}

uint32_t utf8_code_point(std::string_view text, size_t length) {
    constexpr uint8_t kFirstBits[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    uint32_t code = (uint8_t)text[0] & kFirstBits[length];
    for (size_t i = 1; i < length; i++) { code = code << 6 | ((uint8_t)text[i] & 0x3f); }
    return code;
}

size_t utf8_unfinished(std::string_view text) {
    for (size_t n = 1; n <= std::min<size_t>(3, text.size()); n++) {
        const std::string end(text.substr(text.size() - n));
        if (((uint8_t)end[0] & 0xc0) == 0x80) { continue; }  // the character begins before it
        // some continuation makes it whole, else it is wrong already
        const bool can_become =
            utf8_length(end + "\x80\x80\x80") > n || utf8_length(end + "\xa0\x80\x80") > n;
        return can_become ? n : 0;
    }
    return 0;
}

std::string printable_text(std::string_view text) { return escaped(text, false); }
std::string terminal_text(std::string_view text) { return escaped(text, true); }

std::string quoted_name(std::string_view name) {
    std::string text = printable_text(name.substr(0, 80));
    std::ranges::replace(text, '\n', ' ');
    return "\"" + text + (name.size() > 80 ? "...\"" : "\"");
}

std::string bytes_text(int64_t bytes) {
    return bytes < (1 << 20)     ? fmt::format("{:.1f} KiB", (double)bytes / 1024)
           : bytes < (1 << 30)   ? fmt::format("{:.1f} MiB", (double)bytes / (1 << 20))
           : bytes < (1LL << 40) ? fmt::format("{:.2f} GiB", (double)bytes / (1 << 30))
                                 : fmt::format("{:.1f} TiB", (double)bytes / (double)(1LL << 40));
}

std::string count_text(int64_t n) {
    std::string s = std::to_string(n);
    for (int i = (int)s.size() - 3; i > (n < 0); i -= 3) { s.insert((size_t)i, 1, ','); }
    return s;
}

void open_standard_streams() {
    for (int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
        if (fcntl(fd, F_GETFD) < 0) { (void)!open("/dev/null", O_RDWR); }  // takes the lowest free number
    }
}

int run_program(const char* name, const char* cure, const std::function<int()>& program) {
    open_standard_streams();
    const auto fail = [&](const std::string& why, int exit_code) {
        std::fflush(stdout);
        put_text(stderr, fmt::format("{}: {}\n", name, why));
        return exit_code;
    };
    try {
        return program();
    } catch (const Error& e) { return fail(e.what(), e.exit_code); } catch (const std::bad_alloc&) {
        std::fprintf(stderr, "%s: out of memory. %s\n", name, cure);  // which takes none
        return kExitDevice;
    } catch (const std::exception& e) { return fail(std::string("unexpected: ") + e.what(), kExitDevice); }
}

void require_printed() {
    std::cout.flush();
    if (std::cout && std::fflush(stdout) == 0 && std::ferror(stdout) == 0) { return; }
    pollfd output = {STDOUT_FILENO, 0, 0};
    // a pipe that nobody reads any more: "| head"
    if (poll(&output, 1, 0) > 0 && (output.revents & POLLERR) != 0) {
        std::signal(SIGPIPE, SIG_DFL);
        std::raise(SIGPIPE);
    }
    throw Error(kExitSaveFailed, "cannot write to standard output");
}

}  // namespace llmc

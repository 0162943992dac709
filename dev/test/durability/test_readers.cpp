// Every reader of what comes from outside, on files that are wrong: each is refused by name, and none of up
// to 2 MB makes it hold more than 64 MiB. libFuzzer looks deeper (dev/test/fuzz); this measures without
// sanitizers.
#include <malloc.h>
#include <atomic>
#include <cstdlib>
#include <new>
#include <random>
#include <stdexcept>

#include "dev/test/durability/small_run.h"
#include "dev/test/fuzz/readers.h"

namespace {

std::atomic<int64_t> live_bytes = 0, most_bytes = 0;

void* counted(void* memory) {
    if (memory == nullptr) { throw std::bad_alloc(); }
    const int64_t now = live_bytes += (int64_t)malloc_usable_size(memory);
    for (int64_t most = most_bytes; now > most && !most_bytes.compare_exchange_weak(most, now);) {}
    return memory;
}

}  // namespace

void* operator new(size_t bytes) { return counted(std::malloc(bytes)); }
void* operator new[](size_t bytes) { return counted(std::malloc(bytes)); }
void operator delete(void* memory) noexcept {
    live_bytes -= (int64_t)malloc_usable_size(memory);
    std::free(memory);
}
void operator delete[](void* memory) noexcept { operator delete(memory); }
void operator delete(void* memory, size_t) noexcept { operator delete(memory); }
void operator delete[](void* memory, size_t) noexcept { operator delete(memory); }

using namespace llmc;

namespace {

constexpr size_t kMostFile = 2'000'000;

// a file like this one, with something wrong
std::string mutated(std::string bytes, std::mt19937_64* random) {
    auto below = [&](size_t n) { return n == 0 ? 0 : (size_t)((*random)() % n); };
    const uint32_t words[] = {0,    1,     0xffffffff, 0x7fffffff,           0x80000000,
                              1024, 65536, 1 << 20,    (uint32_t)(*random)()};
    for (size_t changes = 1 + below(4); changes > 0; changes--) {
        const size_t at = below(bytes.size());
        switch (below(6)) {
            case 0:
                bytes[at] = (char)(bytes[at] ^ (1 << below(8)));
                break;
            case 1:
                bytes.resize(at);
                break;
            case 2:
                bytes.insert(at, bytes.substr(below(bytes.size()), below(64)));
                break;
            case 3:
                bytes.erase(at, below(64));
                break;
            case 4: {  // a word of the header, as binary files have it
                const uint32_t word = words[below(std::size(words))];
                const size_t place = below(std::min<size_t>(bytes.size() / 4, 9)) * 4;
                if (bytes.size() >= place + 4) { std::memcpy(bytes.data() + place, &word, 4); }
                break;
            }
            default:  // the same again and again
                for (std::string part = bytes.substr(at, below(200));
                     !part.empty() && bytes.size() < kMostFile;) {
                    bytes.insert(at, part);
                    part += part;
                }
        }
        if (bytes.empty()) { break; }
    }
    bytes.resize(std::min(bytes.size(), kMostFile));
    return bytes;
}

}  // namespace

TEST_CASE("readers: what is wrong is refused by name, and little memory is held") {
    TempFolder folder;
    const int64_t each = 3000 / suite_part;
    for (const ReaderUnderTest& reader : readers_under_test()) {
        std::mt19937_64 random(suite_seed);
        const std::vector<std::string> seeds = reader.seeds(folder.path());
        int64_t findings = 0, most = 0;
        for (int64_t i = 0; i < each; i++) {
            const std::string& seed = seeds[(size_t)i % seeds.size()];
            const std::string bytes = i < (int64_t)seeds.size() ? seed : mutated(seed, &random);
            const int64_t before = most_bytes = live_bytes.load();
            try {
                check_reader(reader, folder.path(), bytes);
            } catch (const std::exception& e) {
                findings++;
                FAIL_CHECK(std::string(reader.name), ", input ", i, ": ", std::string(e.what()));
            }
            most = std::max(most, most_bytes - before);
        }
        CHECK_MESSAGE(most <= 64 << 20, std::string(reader.name), " holds ", most);
        report(std::string("wrong files: ") + reader.name, each, findings,
               fmt::format("{:.1f} MiB held at most", (double)most / (1 << 20)));
    }
}

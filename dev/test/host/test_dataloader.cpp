// The data loader: shards, with a header or, where --raw-tokens says so, without (as nanoGPT's prepare.py writes them); the
// training order; validation rows. All exact.
#include <unistd.h>
#include <fstream>
#include <map>
#include <numeric>
#include <set>

#include "dev/test/support/train_program.h"
#include "llmc/host/tokens/dataloader.h"

using namespace llmc;

namespace {

using Tokens = std::vector<uint16_t>;
using Align = ValidationData::Align;
using Rows = std::vector<std::vector<int32_t>>;

// n tokens in ascending order from `first`: a token tells where it stands
Tokens ascending(int n, int first) {
    Tokens tokens((size_t)n);
    std::iota(tokens.begin(), tokens.end(), (uint16_t)first);
    return tokens;
}

// three shards of unequal sizes, one shorter than a window of T + 1 = 9; tokens 0, 1, 2, ... throughout
void write_three_shards(const TempFolder& folder) {
    write_token_shard(folder / "s_000.bin", ascending(100, 0), 1000);
    write_token_shard(folder / "s_001.bin", ascending(5, 100), 1000);
    write_token_shard(folder / "s_002.bin", ascending(66, 105), 1000);
}

// row r of a batch as (tokens, targets)
std::vector<int32_t> row_of(const Batch& batch, int r) {
    std::vector<int32_t> row(batch.tokens.begin() + r * batch.T, batch.tokens.begin() + (r + 1) * batch.T);
    row.insert(row.end(), batch.targets.begin() + r * batch.T, batch.targets.begin() + (r + 1) * batch.T);
    return row;
}

// rows [first, first + count), read in batches of B
template <typename Source>
Rows rows_of(const Source& source, int64_t first, int count, int B) {
    Rows rows;
    Batch batch;
    for (int64_t at = first; at < first + count; at += B) {
        source.read(at, B, &batch);
        for (int r = 0; r < B && (int)rows.size() < count; r++) { rows.push_back(row_of(batch, r)); }
    }
    return rows;
}

}  // namespace

// ---- shards ------------------------------------------------------------------------------------

TEST_CASE_FIXTURE(InFolder, "token shard: what is written is read, and the vocabulary with it") {
    const Tokens tokens = {0, 1, 65535, 42, 256};
    write_token_shard(folder / "a.bin", tokens, 65536);
    const TokenShard shard(folder / "a.bin");
    CHECK(shard.read_all() == tokens);
    CHECK(shard.vocab_size() == 65536);
    CHECK(read_bytes(folder / "a.bin") == header_bytes({20240520, 1, 5, 65536}) + token_bytes(tokens));

    write_token_shard(folder / "a.bin", Tokens{7}, 8);  // replaced
    CHECK(TokenShard(folder / "a.bin").num_tokens() == 1);
    CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 1);  // no temporary left

    write_bytes(folder / "theirs.bin", header_bytes({20240520, 1, 5}) + token_bytes(tokens));
    CHECK(TokenShard(folder / "theirs.bin").vocab_size() == 50257);
}

TEST_CASE_FIXTURE(InFolder, "token shard: the writer refuses what no reader would take") {
    for (const auto& [tokens, vocab_size, says] : {std::tuple{Tokens{}, 8, "1 to 2^31 - 1"},
                                                   {{8}, 8, "token id >= vocab_size"},
                                                   {{8}, 65537, "65,536"},
                                                   {{8}, 0, "65,536"}}) {
        check_error([&] { write_token_shard(folder / "a.bin", tokens, vocab_size); }, kExitUsage, {says});
    }
    CHECK(fs::is_empty(folder.path()));
}

TEST_CASE_FIXTURE(InFolder, "shard set: patterns, order and what is missing") {
    write_three_shards(folder);
    write_token_shard(folder / "odd[1].bin", ascending(3, 0), 1000);
    CHECK(ShardSet(folder / "s_*.bin").num_tokens() == 171);
    CHECK(ShardSet(folder / "s_00[12].bin").num_tokens() == 71);
    CHECK(ShardSet(folder / "odd[1].bin").num_tokens() == 3);  // a name, though it reads as a pattern
    const ShardSet set(folder / "s_*.bin");
    CHECK(set.shards()[1].path() == folder / "s_001.bin");
    for (auto [token, shard] : {std::pair{99, 0}, {100, 1}, {105, 2}}) {
        CHECK(set.shard_of(token) == shard);
    }
    Tokens two(2), three(3);
    set.read(103, two);
    CHECK(two[1] == 104);
    CHECK(error_of([&] { set.read(103, three); }).exit_code == kExitUsage);  // into the next shard

    for (const auto& [pattern, says] : {std::pair{folder / "none*.bin", "data/make_shards"},
                                        {"nowhere/at/all.bin", "data/make_shards"},
                                        {"data/sample/none.bin", "make data/sample"},
                                        {"./data/sample/none*", "make data/sample"},
                                        {"/no/data/sample/none.bin", "make data/sample"}}) {
        check_error([&] { ShardSet{pattern}; }, kExitBadInput, {pattern, "no file matches", says});
    }
    check_error([&] { ShardSet(folder.path()); }, kExitBadInput, {folder.path(), "a folder"});
}

TEST_CASE_FIXTURE(InFolder, "shard set: vocabularies that disagree") {
    write_token_shard(folder / "a.bin", ascending(50, 0), 257);
    write_bytes(folder / "b.bin", header_bytes({20240520, 1, 50}) + token_bytes(ascending(50, 0)));
    const std::initializer_list<std::string> says = {folder / "a.bin", folder / "b.bin", "257", "50257"};
    check_error([&] { DataLoader(folder / "*.bin", 4, 1); }, kExitBadInput, says);
    check_error([&] { ValidationData(folder / "*.bin", 4, Align::kWindow, 256, -1); }, kExitBadInput, says);
}

// ---- the training order ------------------------------------------------------------------------

TEST_CASE("permutation: each number once, for every size") {
    std::vector<int64_t> sizes = {251, 1009, 10007, 65521, 104729};  // primes
    for (int64_t n = 1; n <= 130; n++) { sizes.push_back(n); }
    for (int64_t power = 256; power <= 65536; power *= 2) {
        for (int64_t n : {power - 1, power, power + 1}) { sizes.push_back(n); }
    }
    for (int64_t n : sizes) {
        CAPTURE(n);
        std::vector<bool> seen((size_t)n, false);
        for (int64_t i = 0; i < n; i++) {
            const int64_t to = permuted(i, n, 42, (uint64_t)n % 3);
            REQUIRE((to >= 0 && to < n && !seen[(size_t)to]));
            seen[(size_t)to] = true;
        }
    }
}

TEST_CASE("permutation: sizes up to 2^62 stay inside and do not repeat") {
    for (int64_t n : {(int64_t{1} << 31) - 1, (int64_t{1} << 40) + 1, (int64_t{1} << 62) + 5}) {
        std::set<int64_t> seen;
        for (int64_t i = 0; i < 1000; i++) {
            for (int64_t at : {i, n - 1 - i}) {
                const int64_t to = permuted(at, n, 3, 9);
                REQUIRE((to >= 0 && to < n));
                seen.insert(to);
            }
        }
        CHECK(seen.size() == 2000);
    }
}

TEST_CASE("permutation: seed and epoch change it, and small ones are evenly spread") {
    std::set<std::vector<int64_t>> orders;
    const auto order = [](int64_t n, uint64_t seed, uint64_t epoch) {
        std::vector<int64_t> to;
        for (int64_t i = 0; i < n; i++) { to.push_back(permuted(i, n, seed, epoch)); }
        return to;
    };
    for (uint64_t seed : {0, 1, 2}) {
        for (uint64_t epoch : {0, 1, 2}) { orders.insert(order(50, seed, epoch)); }
    }
    CHECK(orders.size() == 9);
    CHECK(order(50, 1, 2) == order(50, 1, 2));

    // 4800 keys on 4 numbers: each of the 24 orders 200 times on average; 5 standard deviations are 69
    std::map<std::vector<int64_t>, int> count;
    for (uint64_t key = 0; key < 4800; key++) { count[order(4, key / 60, key % 60)]++; }
    CHECK(count.size() == 24);
    for (const auto& [to, times] : count) { CHECK(std::abs(times - 200) < 69); }
}

TEST_CASE("data loader: every window once an epoch, windows overlap by one token, short shards give none") {
    TempFolder folder;
    write_three_shards(folder);
    const int T = 8;
    const DataLoader loader(folder / "s_*.bin", T, 42);
    CHECK(loader.num_shards() == 3);
    CHECK(loader.num_tokens() == 171);
    CHECK(loader.vocab_size() == 1000);
    CHECK(loader.windows_per_epoch() == 12 + 0 + 8);  // (100 - 1) / 8, (5 - 1) / 8, (66 - 1) / 8

    std::vector<int> expected;
    for (int w = 0; w < 12; w++) { expected.push_back(w * T); }
    for (int w = 0; w < 8; w++) { expected.push_back(105 + w * T); }
    std::vector<std::vector<int>> epochs;
    for (int epoch = 0; epoch < 3; epoch++) {
        std::vector<int> firsts;
        for (const std::vector<int32_t>& row : rows_of(loader, epoch * 20, 20, 1)) {
            firsts.push_back(row[0]);
            for (int t = 0; t < T; t++) {
                REQUIRE(row[t] == row[0] + t);          // tokens
                REQUIRE(row[T + t] == row[0] + t + 1);  // targets: the token that follows
            }
        }
        epochs.push_back(firsts);
        std::sort(firsts.begin(), firsts.end());
        CHECK(firsts == expected);
    }
    CHECK(epochs[0] != epochs[1]);
    CHECK(epochs[1] != epochs[2]);
    CHECK(epochs[0] != expected);  // shuffled
}

TEST_CASE_FIXTURE(InFolder, "data loader: rows do not depend on the batch size or on where reading begins") {
    write_three_shards(folder);
    const DataLoader loader(folder / "s_*.bin", 8, 42), again(folder / "s_*.bin", 8, 42);
    const auto rows = rows_of(loader, 0, 60, 1);
    for (int B : {2, 3, 7, 20, 32, 60}) {
        CAPTURE(B);
        CHECK(rows_of(again, 0, 60, B) == rows);
    }
    for (int first : {1, 19, 20, 21, 40}) {  // as after a resume, or on another GPU
        CAPTURE(first);
        CHECK(rows_of(again, first, 60 - first, 4) == std::vector(rows.begin() + first, rows.end()));
    }
    CHECK(rows_of(DataLoader(folder / "s_*.bin", 8, 43), 0, 60, 1) != rows);
    loader.prefetch(0, 60);  // a hint: nothing to see, but it must not fail
    CHECK(rows_of(loader, int64_t{1} << 40, 3, 1) == rows_of(loader, int64_t{1} << 40, 3, 3));
}

TEST_CASE("data loader: one window of exactly T + 1 tokens; one less is an error that says what would do") {
    TempFolder folder;
    write_token_shard(folder / "a.bin", ascending(9, 0), 1000);
    const DataLoader loader(folder / "a.bin", 8, 1);
    CHECK(loader.windows_per_epoch() == 1);
    CHECK(rows_of(loader, 0, 5, 2) == std::vector(5, rows_of(loader, 0, 1, 1)[0]));
    check_error([&] { DataLoader(folder / "a.bin", 9, 1); }, kExitBadInput,
                {folder / "a.bin", "too short", "at least 10", "holds 9", "--seq-len 8"});
    write_token_shard(folder / "b.bin", ascending(1, 0), 1000);
    check_error([&] { DataLoader(folder / "b.bin", 1, 1); }, kExitBadInput,
                {folder / "b.bin", "too short", "more text"});
    CHECK(error_of([&] { DataLoader(folder / "a.bin", 0, 1); }).exit_code == kExitUsage);
    Batch batch;
    CHECK(error_of([&] { loader.read(-1, 1, &batch); }).exit_code == kExitUsage);
    CHECK(error_of([&] { loader.read(0, 0, &batch); }).exit_code == kExitUsage);
}

TEST_CASE_FIXTURE(InFolder, "a token outside the vocabulary is named by file and place, in validation, too") {
    Tokens tokens = ascending(64, 0);
    write_bytes(folder / "a.bin", header_bytes({20240520, 1, 64, 200}) + token_bytes(tokens));
    tokens[37] = 200;
    write_bytes(folder / "b.bin", header_bytes({20240520, 1, 64, 200}) + token_bytes(tokens));
    const std::string file = folder / "b.bin";
    const std::initializer_list<std::string> says = {file, "token 37", "id 200", "0 to 199"};

    const DataLoader loader(folder / "*.bin", 4, 1);
    int bad = 0;
    for (int64_t row = 0; row < loader.windows_per_epoch(); row++) {
        Batch batch;
        const Error error = error_of([&] { loader.read(row, 1, &batch); });
        if (error.exit_code == kExitDone) { continue; }
        check_error(error, kExitBadInput, says);
        bad++;
    }
    CHECK(bad == 1);  // token 37 is in the window of 36 to 40 only
    const ValidationData validation(folder / "*.bin", 4, Align::kWindow, 0, -1);
    const int rows = (int)validation.num_rows();
    check_error([&] { rows_of(validation, 0, rows, 5); }, kExitBadInput, says);
}

TEST_CASE_FIXTURE(InFolder, "shards of 2^31 - 1 tokens: places beyond 2 and 4 GiB") {
    const int64_t n = (int64_t{1} << 31) - 1;
    const int T = 1 << 20;
    const int64_t windows = (n - 1) / T, marked = (windows - 1) * T;  // the last window of a shard
    for (const char* name : {"a.bin", "b.bin"}) {  // sparse: a hole reads as zeros and takes no disk
        const std::string path = folder / name;
        write_bytes(path, header_bytes({20240520, 1, (int32_t)n, 257}));
        if (truncate(path.c_str(), 1024 + 2 * n) != 0) {
            MESSAGE("skipped: this file system has no files of 4 GiB");
            return;
        }
        std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
        file.seekp(1024 + 2 * marked);
        file.write(name, 1);
    }
    Batch batch;
    const DataLoader loader(folder / "*.bin", T, 5);
    CHECK(loader.num_tokens() == 2 * n);
    REQUIRE(loader.windows_per_epoch() == 2 * windows);
    for (int64_t row = 0; row < 2 * windows; row++) {
        const int64_t window = permuted(row, 2 * windows, 5, 0);
        if (window % windows != windows - 1) { continue; }
        loader.read(row, 1, &batch);
        CHECK(batch.tokens[0] == (window < windows ? 'a' : 'b'));
    }
    const ValidationData validation(folder / "*.bin", T, Align::kWindow, 256, -1);
    CHECK(validation.num_targets() == 2 * (n - 1));
    REQUIRE(validation.num_rows() == 2 * (windows + 1));
    const int64_t row = windows + 1 + windows - 1;
    CHECK(validation.row_position(row) == n + marked);
    validation.read(row, 1, &batch);
    CHECK(batch.tokens[0] == 'b');
}

// ---- validation --------------------------------------------------------------------------------

namespace {

// Reads everything in batches of B; checks that padding is right and that each place is predicted once, and
// returns the places that are predicted: tokens must be their own places.
std::vector<int> predicted(const ValidationData& data, int B) {
    std::vector<int> places;
    Batch batch;
    for (int64_t row = 0; row < data.num_rows(); row += B) {
        data.read(row, B, &batch);
        for (int b = 0; b < B; b++) {
            bool ended = row + b >= data.num_rows();
            for (int t = 0; t < batch.T; t++) {
                const int32_t token = batch.tokens[(size_t)b * batch.T + t];
                const int32_t target = batch.targets[(size_t)b * batch.T + t];
                ended = ended || target == kIgnoreTarget;
                if (ended) {
                    REQUIRE(token == 0);
                    REQUIRE(target == kIgnoreTarget);
                    continue;
                }
                REQUIRE(token == data.row_position(row + b) + t);
                REQUIRE(target == token + 1);
                places.push_back(target);
            }
        }
    }
    return places;
}

}  // namespace

TEST_CASE_FIXTURE(InFolder, "validation: each token but a shard's first once, whatever T, B and alignment") {
    write_three_shards(folder);
    std::vector<int> all;
    for (int place = 1; place < 171; place++) {
        if (place != 100 && place != 105) { all.push_back(place); }
    }
    const auto check = [&](int T, int end_of_text, int max_tokens, std::initializer_list<int> batches) {
        for (Align align : {Align::kWindow, Align::kDocument}) {
            INFO("T ", T, ", end_of_text ", end_of_text, ", max_tokens ", max_tokens);
            const ValidationData data(folder / "s_*.bin", T, align, end_of_text, max_tokens);
            const size_t count = max_tokens < 0 ? all.size() : std::min((size_t)max_tokens, all.size());
            CHECK(data.num_targets() == (int64_t)count);
            for (int B : batches) {
                CHECK(predicted(data, B) == std::vector<int>(all.begin(), all.begin() + (long)count));
            }
        }
    };
    for (int T : {1, 2, 7, 8, 64, 99, 100, 500}) {
        for (int end_of_text : {0, 30, 104, 170, 999}) {  // each stands at its own place, once
            check(T, end_of_text, -1, {1, 3, 16});
        }
    }
    for (int max_tokens : {1, 7, 8, 9, 98, 99, 100, 103, 104, 167, 168, 169, 100000}) {
        check(8, 30, max_tokens, {4});
    }
    check_error([&] { ValidationData(folder / "s_*.bin", 8, Align::kWindow, 30, 0); }, kExitUsage,
                {"max_tokens"});
}

TEST_CASE_FIXTURE(InFolder, "validation: windows are back to back, documents begin rows") {
    const uint16_t e = 256;  //  0  1  2  3  4  5  6  7   8  9 10  11 12
    write_token_shard(folder / "a.bin", Tokens{e, 1, 2, 3, e, 4, e, 5, 6, 7, 8, 9, e}, 257);
    const int I = kIgnoreTarget;
    const ValidationData windows(folder / "a.bin", 4, Align::kWindow, e, -1);
    CHECK(rows_of(windows, 0, 4, 4) == Rows{{e, 1, 2, 3, 1, 2, 3, e},
                                            {e, 4, e, 5, 4, e, 5, 6},
                                            {6, 7, 8, 9, 7, 8, 9, e},
                                            {0, 0, 0, 0, I, I, I, I}});
    const ValidationData documents(folder / "a.bin", 4, Align::kDocument, e, -1);
    CHECK(documents.num_rows() == 4);
    CHECK(rows_of(documents, 0, 5, 3) == Rows{{e, 1, 2, 3, 1, 2, 3, e},
                                              {e, 4, 0, 0, 4, e, I, I},
                                              {e, 5, 6, 7, 5, 6, 7, 8},  // a long document goes on
                                              {8, 9, 0, 0, 9, e, I, I},
                                              {0, 0, 0, 0, I, I, I, I}});
    CHECK(documents.row_position(3) == 10);
    CHECK(error_of([&] { documents.row_position(4); }).exit_code == kExitUsage);
    const ValidationData cut(folder / "a.bin", 4, Align::kDocument, e, 5);
    CHECK(rows_of(cut, 0, 2, 2) == Rows{{e, 1, 2, 3, 1, 2, 3, e}, {e, 0, 0, 0, 4, I, I, I}});
    CHECK(cut.num_rows() == 2);

    CHECK(ValidationData(folder / "a.bin", 6, Align::kAuto, e, -1).align() == Align::kDocument);
    CHECK(ValidationData(folder / "a.bin", 5, Align::kAuto, e, -1).align() == Align::kWindow);
    CHECK(ValidationData(folder / "a.bin", 5, Align::kAuto, e, 2).align() == Align::kWindow);
}

TEST_CASE("validation: shards that begin or end in a document, or have none; two ends of text in a row") {
    TempFolder folder;
    const uint16_t e = 256;
    write_token_shard(folder / "a.bin", Tokens{1, 2, e, e, 3}, 257);
    write_token_shard(folder / "b.bin", Tokens{e}, 257);
    write_token_shard(folder / "c.bin", Tokens{4, 5, 6, 7}, 257);
    const int I = kIgnoreTarget;
    const ValidationData data(folder / "*.bin", 3, Align::kDocument, e, -1);
    CHECK(rows_of(data, 0, 4, 2) ==
          Rows{{1, 2, 0, 2, e, I}, {e, 0, 0, e, I, I}, {e, 0, 0, 3, I, I}, {4, 5, 6, 5, 6, 7}});
    CHECK(data.num_targets() == 7);
    CHECK(data.row_position(3) == 6);
    CHECK(ValidationData(folder / "*.bin", 3, Align::kAuto, e, -1).align() == Align::kDocument);
    // the shard without an end of text
    CHECK(ValidationData(folder / "*.bin", 2, Align::kAuto, e, -1).align() == Align::kWindow);
    const Error nothing = error_of([&] { ValidationData(folder / "b.bin", 3, Align::kDocument, e, -1); });
    check_error(nothing, kExitBadInput, {folder / "b.bin", "too short", "more text"});
}

// ---- tokens without a header --------------------------------------------------------------------

TEST_CASE_FIXTURE(InFolder, "raw tokens: a file without a header is read from its first byte") {
    Tokens tokens;
    for (int i = 0; i < 1000; i++) { tokens.push_back((uint16_t)(i * 7 % 65)); }
    write_bytes(folder / "raw.bin", token_bytes(tokens));
    write_token_shard(folder / "ours.bin", tokens, 65);
    const TokenShard raw(folder / "raw.bin", 65);
    CHECK(raw.vocab_size() == 65);
    CHECK(raw.read_all() == tokens);
    CHECK(rows_of(DataLoader(folder / "raw.bin", 12, 1, 65), 3, 4, 4) ==
          rows_of(DataLoader(folder / "ours.bin", 12, 1), 3, 4, 4));
}

TEST_CASE_FIXTURE(InFolder, "raw tokens: what is none is refused") {
    const auto refused = [&](const std::string& bytes, int vocab, const std::string& part) {
        write_bytes(folder / "x.bin", bytes);
        check_error([&] { TokenShard(folder / "x.bin", vocab); }, kExitBadInput, {"x.bin", part});
    };
    refused("", 65, "the file is empty");
    refused("abc", 65, "found 3 bytes, expected a multiple of 2");
    write_token_shard(folder / "ours.bin", Tokens{1, 2, 3}, 65);
    refused(read_bytes(folder / "ours.bin"), 65, "Leave --raw-tokens out");
    // and without the option they are not guessed
    refused(token_bytes(Tokens(600, 3)), 0, "--raw-tokens");
    write_bytes(folder / "x.bin", token_bytes({1, 64, 65}));
    Batch batch;
    check_error([&] { DataLoader(folder / "x.bin", 2, 1, 65).read(0, 1, &batch); }, kExitBadInput,
                {"x.bin: token 2: found id 65, expected 0 to 64"});
}

TEST_CASE_FIXTURE(InFolder, "raw tokens: a run and its evaluation are those of the same tokens in shards") {
    write_tiny_data(folder.path());
    for (const std::string split : {"train", "val"}) {
        write_bytes(folder / ("raw_" + split + ".bin"), read_bytes(folder / (split + ".bin")).substr(1024));
    }
    const auto train = [&](const std::string& out, const std::string& more) {
        const std::string raw = out == "b" ? "raw_" : "";
        return run_train(folder.path(),
                         tiny_run(folder.path(),
                                  "--steps 6 --val-align window --save-every 3 --sample-every 0 "
                                  "--quiet --train-data " +
                                      folder / (raw + "train.bin") + " --val-data " +
                                      folder / (raw + "val.bin") + " --out " + folder / out + more));
    };
    const std::string raw = " --raw-tokens 257", again = raw + " --resume auto";
    check_run(train("a", ""), kExitDone);
    check_run(train("b", raw), kExitDone);
    CHECK(same_files(folder / "a/model.bin", folder / "b/model.bin"));
    CHECK(read_log(folder / "a") == read_log(folder / "b"));
    fs::remove_all(folder / "b/step_00000006");
    check_run(train("b", again), kExitDone);
    CHECK(same_files(folder / "a/model.bin", folder / "b/model.bin"));
    // other tokens behind the same name are found out, from the first one on
    flip_byte(folder / "raw_train.bin", 2);  // the second token: the first is the end of a text
    check_run(train("b", again), kExitBadInput, {"other data than"});

    const auto eval = [&](const std::string& data) {
        return run_well(folder.path(),
                        words("eval " + folder / "a" + " --seq-len 12 --data " + folder / data))
            .out;
    };
    CHECK(eval("val.bin") == eval("raw_val.bin" + raw));
}

TEST_CASE_FIXTURE(InFolder, "raw tokens: without a tokenizer generate takes ids and writes ids") {
    Tokens tokens;
    for (int i = 0; i < 400; i++) { tokens.push_back((uint16_t)(i % 65)); }
    write_bytes(folder / "raw.bin", token_bytes(tokens));
    run_well(folder.path(),
             words("--layers 1 --heads 1 --channels 16 --seq-len 12 --steps 150 --quiet --val-data none "
                   "--raw-tokens 65 --sample-every 0 --train-data " +
                   folder / "raw.bin" + " --out " + folder / "run"));
    const auto generate = [&](const Words& more) {
        Words line = {"generate", folder / "run", "--tokens", "5", "--temp", "0"};
        line.insert(line.end(), more.begin(), more.end());
        return run_train(folder.path(), line);
    };
    const Json json = Json::parse(generate({"--prompt-ids", "63,64", "--json"}).out);
    CHECK(json["ids"] == Json::array({0, 1, 2, 3, 4}));
    CHECK(json["prompt"] == "63 64 ");
    CHECK(json["text"] == "0 1 2 3 4 ");
    CHECK(generate({"--prompt-ids", "6,7"}).out == "6 7 8 9 10 11 12 \n");
    check_run(generate({"--prompt-ids", "7,65"}), kExitUsage, {"--prompt-ids: found 65, expected 0 to 64"});
    check_run(generate({"--prompt", "a"}), kExitUsage, {"--prompt-ids 1,2,3"});
    write_bytes(folder / "meta.pkl", std::string("\x80\x04\x95\0\0", 5));
    check_run(generate({"--prompt", "a", "--tokenizer", folder / "meta.pkl"}), kExitBadInput,
              {"a Python pickle"});
}

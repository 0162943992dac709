// Tests of what a shootout prints, writes and takes as options, without a GPU.
#include <atomic>
#include <chrono>
#include <thread>

#include "dev/cuda/options.h"
#include "dev/cuda/report.h"
#include "dev/cuda/watchdog.h"
#include "dev/test/support/test_options.h"

using namespace llmc;

// ---- the table ---------------------------------------------------------------------------------

TEST_CASE("percentiles") {
    CHECK(percentile({7}, 0.8) == 7);
    CHECK(percentile({3, 1, 2}, 0.5) == 2);
    CHECK(percentile({1, 2, 3, 4}, 0.5) == 2.5);
    CHECK(percentile({5, 4, 3, 2, 1, 0}, 0.2) == 1);
    CHECK(percentile({5, 4, 3, 2, 1, 0}, 0.8) == 4);
    CHECK_THROWS_AS(percentile({}, 0.5), Error);
}

TEST_CASE("a row: bandwidth and share of the roof, dashes where nothing was measured") {
    Row row{.version = "v2", .idea = "warp per row", .block = 256, .useful_bytes = 200e6, .roof_us = 50};
    auto line = [&] { return line_of(table_columns(row), row); };
    CHECK(line().find(" -       -           - -\n") != std::string::npos);
    row.us = Times(std::vector<double>(21, 100.0));
    CHECK(row.gb_per_s() == doctest::Approx(2000));
    CHECK(row.percent_of_roof() == doctest::Approx(50));
    row.ok = false;
    CHECK(line().ends_with("WRONG\n"));
}

TEST_CASE("JSON: quotes are escaped, what is not a number is null, the file holds rows and context") {
    CHECK(JsonObject().set("x", "a\"b\\c\n").str() == "{\"x\": \"a\\\"b\\\\c\\n\"}");
    CHECK(json_number(NAN) == "null");
    CHECK(json_number(0.5) == "0.5");
    Report report;
    report.context.set("gpu", "none").set({{"sms", 132}});
    report.rows = {json_row({.version = "v1"}), json_row({.version = "v2"})};
    TempFolder folder;
    report.save(folder / "report.json");
    const std::string text = read_bytes(folder / "report.json");
    CHECK(text.starts_with("{\n  \"context\": {\"gpu\": \"none\", \"sms\": 132}"));
    check_holds(text, {"\"version\": \"v2\"", "\"us\": null", "\"roof_counts\": true"});
    CHECK_FALSE(contains(text, "nan"));
    CHECK_THROWS_WITH_AS(report.save("/nowhere/at/all.json"),
                         "--json: cannot write /nowhere/at/all.json: No such file or directory", Error);
}

// ---- options -----------------------------------------------------------------------------------

TEST_CASE("a watchdog barks where what it watches does not end in time") {
    using namespace std::chrono_literals;
    std::atomic<int> barks = 0;
    {
        Watchdog watchdog(3600, [&] { barks++; });
    }
    CHECK(barks == 0);  // and the test has not taken an hour
    Watchdog watchdog(0.01, [&] { barks++; });
    for (int i = 0; i < 1000 && barks == 0; i++) { std::this_thread::sleep_for(10ms); }
    CHECK(barks == 1);
}

TEST_CASE("options of the shootouts") {
    auto parse = [](std::vector<const char*> words) {
        words.insert(words.begin(), "layernorm_forward");
        ShootoutOptions options;
        const bool help =
            !parse_shootout_options((int)words.size(), words.data(), "layernorm_forward", &options);
        CHECK_FALSE(help);
        return options;
    };
    ShootoutOptions o = parse(
        {"2", "v3", "--shape", "65536x768,8x1", "--dtype=bf16,fp16", "--block", "128", "--json", "a.json"});
    CHECK(o.only == std::vector<std::string>{"v2", "v3"});
    CHECK((o.wants("v2") && !o.wants("v1")));
    CHECK(o.shapes == std::vector<Shape>{{65536, 768}, {8, 1}});
    CHECK(o.dtypes == std::vector<Dtype>{Dtype::kBf16, Dtype::kFp16});
    CHECK(o.block == 128);
    CHECK(o.json == "a.json");
    CHECK(o.command ==
          "layernorm_forward 2 v3 --shape 65536x768,8x1 --dtype=bf16,fp16 --block 128 --json a.json");
    CHECK((parse({}).wants("v1") && !parse({}).check));
    CHECK(parse({"--check"}).check);
    CHECK((parse({"--latency"}).latency && !parse({}).latency));
    o = parse({"--out", "fp16", "--copy"});
    CHECK((o.out == Dtype::kFp16 && o.copy && o.dtypes == std::vector<Dtype>{Dtype::kFp32}));

    auto complaint = [&](std::vector<const char*> words) -> std::string {
        const Error error = error_of([&] { parse(words); });
        return error.exit_code == kExitUsage ? error.what() : "";
    };
    CHECK(complaint({"--shapes", "8x8"}).starts_with("unknown option '--shapes'. Did you mean --shape?"));
    CHECK(complaint({"--for-sanitizer"}).starts_with("--for-sanitizer needs --check, which is missing."));
    CHECK(parse({"--for-sanitizer", "--check"}).for_sanitizer);
    CHECK(complaint({"--copy"}).starts_with("--copy needs --out, which is missing."));
    CHECK(complaint({"--sweep", "--check"}).starts_with("--check and --sweep: give one or the other."));
    CHECK(complaint({"--shape", ""}).starts_with("--shape: '' is empty. Expected NxC[,NxC]."));
    for (const char* shape : {"5", "5x", "x5", "5x0", "5x5x5", "-1x5", "5x99999999999", "5 x5", "5.0x5"}) {
        CHECK(complaint({"--shape", shape}) ==
              fmt::format("--shape: found '{}', expected rows x columns, such as 65536x768. See "
                          "dev/cuda/layernorm_forward --help.",
                          shape));
    }
    for (const char* block : {"0", "1025", "x", "-32"}) { CHECK(complaint({"--block", block}) != ""); }
    CHECK(
        complaint({"--gpu", "sm_70"}).starts_with("--gpu: 'sm_70' is not known. Expected sm_90a or sm_80."));
    CHECK(complaint({"--dtype", "fp8"})
              .starts_with("--dtype: 'fp8' is not known. Expected fp32, bf16, fp16 or fp64."));
    for (const char* help : {"--help", "-h"}) {
        const char* words[] = {"layernorm_forward", help};
        const std::string text =
            printed_by([&] { CHECK_FALSE(parse_shootout_options(2, words, "layernorm_forward", &o)); });
        CHECK(text.find("--json FILE") != std::string::npos);
    }
}

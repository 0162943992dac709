// report.html: what it holds of a run of any length, that it is small, whole after any kill, and safe to open.
// What a browser makes of it: dev/test/report_page.py.
#include <chrono>
#include <csignal>
#include <thread>

#include <doctest/doctest.h>

#include "dev/test/support/train_program.h"
#include "llmc/host/log/run_log.h"

using namespace llmc;
namespace fs = std::filesystem;

namespace {

// where the numbers of a point stand
constexpr int kStep = 0, kSeconds = 1, kLoss = 2, kLow = 3, kHigh = 4, kNorm = 5, kSpeed = 7;

// the data in a page; fails unless the page is whole
Json data_of(const std::string& page) {
    const std::string begin = "id=\"data\">", end = "</script>";
    CHECK(page.starts_with("<!DOCTYPE html>"));
    REQUIRE(page.ends_with("</html>\n"));
    CHECK(page.size() <= kMostReportBytes);
    const size_t from = page.find(begin) + begin.size();
    return Json::parse(page.substr(from, page.find(end, from) - from));
}

Json data_of(const RunHistory& history) { return Json::parse(history.to_json()); }

RunHistory long_run(const std::string& name, int64_t steps) {
    RunHistory history(name);
    std::string text =
        "{\"event\":\"start\",\"step\":0,\"line\":[],\"version\":\"v\",\"source_entropy\":0.5}\n";
    for (int64_t n = 1; n <= steps; n++) {
        text += step_log_line({.step = n,
                               .loss = (double)n,
                               .grad_norm = 2,
                               .lr = 1,
                               .ms = 1000,
                               .tokens_per_s = 64,
                               .tokens = 64 * n});
        if (n % 100 == 0) { text += validation_log_line(n, 3.25, 1); }
        if (n % 300 == 0) { text += event_log_line("sample", n, {{"text", std::string(5000, '<')}}); }
        if (n % 200 == 0) { text += event_log_line("save", n, {{"text", "step"}}); }
    }
    history.add(text);
    return history;
}

}  // namespace

TEST_CASE("report: a long run takes bounded space, and its curve is the mean of its steps") {
    constexpr int64_t kSteps = 60000;
    const RunHistory history = long_run("long", kSteps);
    const std::string page = report_page({history});
    const Json run = data_of(page)[0];
    const Json& p = run["points"];
    const size_t points = p.size();
    CHECK(points > 300);
    CHECK(points <= 1000);
    CHECK(p.back()[kStep] == kSteps);
    CHECK(p.back()[kSeconds] == kSteps);
    CHECK(run["tokensPerStep"] == 64);
    CHECK(run["entropy"] == 0.5);
    int64_t before = 0;
    for (size_t i = 0; i < points; i++) {
        const int64_t step = p[i][kStep];
        CHECK(p[i][kLow] == before + 1);
        CHECK(p[i][kHigh] == step);
        CHECK(p[i][kLoss].get<double>() == doctest::Approx((double)(before + 1 + step) / 2).epsilon(1e-5));
        CHECK(p[i][kNorm] == 2);
        CHECK(p[i][kSpeed] == 64);
        before = step;
    }
    CHECK(run["validation"].size() <= 500);
    CHECK(run["validation"].back()[kStep] == kSteps);  // what is newest stays
    CHECK(run["samples"].back()[0] == kSteps);
    CHECK(run["events"].back()[1] == kSteps);
}

TEST_CASE("report: many runs are thinned out until they fit") {
    const std::vector<RunHistory> runs(60, long_run("run", 2000));
    const Json data = data_of(report_page(runs));
    REQUIRE(data.size() == 60);
    CHECK(data[59]["points"].size() > 20);
    CHECK(data[59]["points"].back()[kStep] == 2000);
    const std::vector<RunHistory> far_too_many(6000, long_run("run", 10));
    check_error(error_of([&] { report_page(far_too_many); }), kExitUsage, {"6000 runs do not fit", "fewer"});
}

TEST_CASE("report: skipped steps, other logs and lines that are not ours") {
    RunHistory history("h");
    history.add("rubbish\n[1]\n{\"step\":\"x\",\"train_loss\":[]}\n{\"event\":7,\"step\":{}}\n\n");
    history.add(step_log_line({.step = 1, .loss = NAN, .grad_norm = NAN, .ms = 1, .skipped = "not finite"}));
    const Json p = data_of(history)["points"];
    CHECK(p.back()[kLoss].is_null());
    CHECK(p.back()[kLow].is_null());
    RunHistory torn("torn");
    torn.add(
        "{\"step\":1,\"train_loss\":3,\"grad_norm\":1,\"lr\":1,\"ms\":500,\"tokens_per_s\":20}\n"
        "{\"step\":2,\"train_loss\":2,\"grad_norm\":1,\"lr\":1,\"ms\":500,\"tokens_per_s\":20}\n{\"st");
    const Json data = data_of(torn);
    REQUIRE(data["points"].size() == 2);
    CHECK(data["points"][0][kStep] == 1);
    CHECK(data["points"][1][kStep] == 2);
    CHECK(data["tokensPerStep"] == 10);
}

TEST_CASE("report: lists in lists in lists, more than a stack has room for, are no line of a log") {
    constexpr int kDeep = 300'000;
    const std::string nest = std::string(kDeep, '[') + std::string(kDeep, ']') + "}\n",
                      ours = step_log_line({.step = 1, .loss = 2, .ms = 1});
    const std::string log = ours + "{\"step\":1,\"train_loss\":1,\"x\":" + nest +
                            "{\"event\":\"save\",\"step\":1,\"text\":" + nest;
    CHECK((kept_log_lines(log, 5) == ours));
    RunHistory history("deep");
    history.add(log);
    REQUIRE(data_of(history)["points"].size() == 1);
    CHECK(data_of(history)["points"][0][kLoss] == 2);
    CHECK(data_of(history)["events"].empty());
}

TEST_CASE("report: texts of the run do not become part of the page") {
    RunHistory history("</script><b>");
    history.add(event_log_line("sample", 1, {{"text", "</script><script>evil()</script><!--"}}));
    history.add(
        "{\"event\":\"start\",\"step\":0,\"line\":[],\"version\":\"<i>\",\"options\":{\"<u>\":\"<s>\"}}\n");
    const std::string page = report_page({history});
    for (const char* part : {"<b>", "evil()</", "<i>", "<u>", "<s>", "<!--"}) {
        CHECK_FALSE_MESSAGE(contains(page, part), part);
    }
    CHECK(data_of(page)[0]["samples"][0][1] == "</script><script>evil()</script><!--");
    // nothing is asked of a network: the one address is the name of SVG's elements
    size_t addresses = 0;
    for (size_t at = 0; (at = page.find("://", at)) != std::string::npos; at++) { addresses++; }
    CHECK(addresses == 1);
    CHECK(contains(page, "default-src 'none'"));
}

TEST_CASE("report: a run writes it at validations, saves and the end, and a kill leaves a whole one") {
    TempFolder folder;
    write_tiny_data(folder.path());
    for (int i = 0; i < 6; i++) {
        const std::string run = folder / fmt::format("run{}", i), page = run + "/report.html";
        const std::string more = "--steps 1000000 --val-every 1 --save-every 2 --sample-every 0 --out " + run;
        const pid_t pid = start_train(folder.path(), tiny_run(folder.path(), more));
        for (int wait = 0; wait < 4000 && !fs::exists(page); wait++) {
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
        std::this_thread::sleep_for(std::chrono::microseconds(7919 * i));
        kill(pid, SIGKILL);
        CHECK(finish_train(folder.path(), pid).exit_code == 128 + SIGKILL);
        CHECK(data_of(read_bytes(page))[0]["points"].size() >= 1);
    }
    const std::string run = folder / "whole";
    const ProgramRun r =
        run_train(folder.path(), tiny_run(folder.path(), "--steps 5 --sample-every 3 --out " + run));
    REQUIRE_MESSAGE(r.exit_code == kExitDone, r.err);
    CHECK(r.out.ends_with("curves: " + run + "/report.html\nnext: ./train_gpt2 generate " + run +
                          " --prompt 'Once upon a time'\n"));
    const Json data = data_of(read_bytes(run + "/report.html"))[0];
    REQUIRE(data["points"].size() == 5);
    for (int i = 0; i < 5; i++) { CHECK(data["points"][i][kStep] == i + 1); }
    CHECK(data["validation"].size() == read_log(run).size() - 5);
    CHECK(data["events"].back()[2] == "end");
    CHECK(data["samples"].size() == 1 + 3);
    CHECK(data["options"]["steps"] == "5");

    // the sub-command draws the same, and compares
    auto command = [&](const Words& words) { return run_train(folder.path(), words); };
    const std::string written = read_bytes(run + "/report.html");
    CHECK(command({"report", run}).out == "wrote " + run + "/report.html\n");
    CHECK(read_bytes(run + "/report.html") == written);
    const std::string both = folder / "both.html";
    CHECK(command({"report", run, folder / "run0", "--out", both}).exit_code == kExitDone);
    CHECK(data_of(read_bytes(both)).size() == 2);
    const ProgramRun none = command({"report", folder / "none", "--out", both});
    CHECK(none.exit_code == kExitBadInput);
    CHECK_MESSAGE(contains(none.err, "none: no run: there is no"), none.err);
    CHECK(command({"report", folder / "train.bin"}).exit_code == kExitBadInput);
    CHECK(command({"report"}).exit_code == kExitUsage);
    for (const char* name : {"log.jsonl", "model.bin", "config.toml"}) {
        const std::string file = run + "/" + name, before = read_bytes(file);
        const ProgramRun kept = command({"report", run + "/log.jsonl", "--out", file});
        CHECK(kept.exit_code == kExitUsage);
        CHECK_MESSAGE(contains(kept.err, file + ": found a file that is no page of a run"), kept.err);
        CHECK(read_bytes(file) == before);
    }
}

TEST_CASE("report: a page that cannot be written is said once and stops nothing") {
    TempFolder folder;
    write_tiny_data(folder.path());
    const std::string run = folder / "run";
    fs::create_directories(run + "/report.html/x");
    const ProgramRun r = run_train(
        folder.path(), tiny_run(folder.path(), "--steps 6 --val-every 1 --save-every 2 --out " + run));
    CHECK(r.exit_code == kExitDone);
    const size_t first = r.err.find("the page of the run is not written: " + run + "/report.html");
    CHECK_MESSAGE(first != std::string::npos, r.err);
    CHECK_MESSAGE(r.err.rfind("the page of the run") == first, r.err);
    const ProgramRun report = run_train(folder.path(), {"report", run});
    CHECK(report.exit_code == kExitUsage);
    CHECK_MESSAGE(report.err.ends_with("Choose another name. --out FILE writes it elsewhere.\n"), report.err);
}

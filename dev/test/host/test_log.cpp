// A run's log: the step line on a terminal of any width, the times in it, log.jsonl and what a resume keeps of it, also where
// the disk fails; and report.html, small, whole after any kill, and safe to open (in a browser: dev/test/report_page.py).
#include <pty.h>
#include <unistd.h>
#include <utmp.h>
#include <chrono>
#include <cmath>
#include <thread>

#include "dev/test/support/test_options.h"
#include "dev/test/support/train_program.h"
#include "llmc/host/log/run_log.h"
#include "llmc/model/cpu/gpt2.h"
#include "llmc/model/formats/checkpoint.h"
#include "llmc/model/run/trainer.h"

using namespace llmc;

namespace {

struct Place {
    TempFolder folder;
    const std::string run = folder / "run";
    Place() { write_tiny_data(folder.path()); }
    ProgramRun command(const Words& words) const { return run_train(folder.path(), words); }
    ProgramRun train(const std::string& more) const { return command(tiny_run(folder.path(), more)); }
    // one that may write no file over this size, from its start on
    pid_t start_limited(const std::string& more, rlim_t bytes) const {
        const std::string quiet = "--sample-every 0 --val-every 0 --quiet --out " + run + " " + more;
        return start_prepared(folder.path(), tiny_run(folder.path(), quiet), [=] {
            rlimit small = {bytes, RLIM_INFINITY};
            setrlimit(RLIMIT_FSIZE, &small);
        });
    }
    ProgramRun train_limited(const std::string& more, rlim_t bytes) const {
        return finish_train(folder.path(), start_limited(more, bytes));
    }
};
constexpr rlim_t kSmall = 6000;  // bytes: more than config.toml, less than a checkpoint

// every line of a log
std::vector<Json> all_lines(const std::string& run) {
    std::vector<Json> lines;
    for (const std::string& line : lines_with(read_bytes(run + "/log.jsonl"), "")) {
        lines.push_back(Json::parse(line));
    }
    return lines;
}

// "start 0, save 4": the events of a run
std::string events_of(const std::string& run) {
    std::string text;
    for (const Json& line : all_lines(run)) {
        if (!line.contains("event")) { continue; }
        text += (text.empty() ? "" : ", ") + line["event"].get<std::string>() + " " + line["step"].dump();
    }
    return text;
}

// what the program draws on a terminal of that width and kind, while it runs
std::string on_terminal(const std::string& folder, const std::string& more, unsigned short columns,
                        const char* kind = "xterm") {
    int terminal = -1, inside = -1;
    const winsize size = {24, columns, 0, 0};
    REQUIRE(openpty(&terminal, &inside, nullptr, nullptr, &size) == 0);
    const pid_t pid = start_prepared(folder, tiny_run(folder, more), [=] {
        close(terminal);
        login_tty(inside);
        setenv("TERM", kind, 1);
    });
    close(inside);
    std::string text;
    char bytes[4096];
    for (ssize_t n; (n = read(terminal, bytes, sizeof(bytes))) > 0;) { text.append(bytes, (size_t)n); }
    CHECK(finish_train(folder, pid).exit_code == kExitDone);
    close(terminal);
    return text;
}

// each step once, in order
void check_steps(const std::string& run, int64_t steps) {
    int64_t done = 0;
    for (const Json& line : read_log(run)) {
        if (line.contains("train_loss")) { CHECK(line["step"] == ++done); }
    }
    CHECK(done == steps);
}

}  // namespace

TEST_CASE("step line: what matters is there in any width, the rest where there is room") {
    StepNumbers n;
    n.step = 18865, n.steps = 1000000, n.loss = 10.8249, n.grad_norm = 1.5, n.lr = 6e-4;
    n.ms = 118.6, n.tokens_per_s = 4421000, n.utilisation = 0.4321, n.seconds_left = 1e5;
    CHECK(step_text(n, 0) ==
          "step 18865/1000000 | loss 10.8249 | norm 1.500 | lr 6.00e-04 | 119 ms | 4.42M tok/s | 43% of peak "
          "| ETA 27h46m");
    for (bool skipped : {false, true}) {
        n.skipped = skipped ? "not finite" : "";
        for (size_t columns = 59; columns < 130; columns++) {
            const std::string line = step_text(n, columns);
            CAPTURE(line);
            CHECK(line.size() <= columns);
            check_holds(line, {"step 18865/1000000", "loss 10.8249", "4.42M tok/s", "ETA 27h46m"});
            CHECK((columns < 100 || contains(line, "SKIPPED") == skipped));
        }
    }
    n.utilisation = -1;
    CHECK_FALSE(contains(step_text(n, 0), "peak"));
    using Time = std::pair<double, const char*>;
    for (const auto& [seconds, text] : {Time{59.4, "59s"},
                                        {59.6, "1m00s"},
                                        {3599.4, "59m59s"},
                                        {3600, "1h00m"},
                                        {-1, "?"},
                                        {1e9, "?"},
                                        {NAN, "?"}}) {
        CHECK(duration_text(seconds) == text);
    }
    n.step = n.steps = 999999999999;  // as long as it gets: nothing wraps, the beginning is there
    CHECK(step_text(n, 40).size() == 40);
}

TEST_CASE("step line: on terminals of 60, 80 and 120 columns") {
    const Place p;
    const std::string more = "--sample-every 0 --val-every 0 --out ";
    for (auto [columns, fewest] :
         {std::pair{60, 4}, {80, 5}, {120, 7}}) {  // the fewest fields that are shown
        const std::string run = p.folder / std::to_string(columns),
                          text = on_terminal(p.folder.path(), "--steps 30 " + more + run,
                                             (unsigned short)columns);
        int lines = 0;
        for (size_t at = 0; (at = text.find("\r\033[Kstep ", at)) != std::string::npos; at++) {
            const size_t begin = at + 4, end = text.find_first_of("\r\n", begin);
            const std::string line = text.substr(begin, end - begin);
            CAPTURE(line);
            CHECK(line.size() < (size_t)columns);  // a full one would wrap
            check_holds(line, {"step ", "/30", "loss ", "tok/s", "ETA "});
            CHECK(std::count(line.begin(), line.end(), '|') + 1 >= fewest);
            lines++;
        }
        CHECK(lines == 30);
    }
    // one that knows no control sequences gets plain lines
    const std::string text = on_terminal(p.folder.path(), "--steps 2 " + more + p.run, 80, "dumb");
    CHECK_FALSE(contains(text, "\033"));
    CHECK(contains(text, "\nstep 2/2 | loss "));
}

namespace {

constexpr double kStepMs = 20;

// What a GPU is to the trainer when a step fills its queue: enqueue_step() waits, and the result of the step
// before is read when most of the next is done, too.
class LateModel : public GPT2Cpu {
public:
    using GPT2Cpu::GPT2Cpu;
    bool enqueue_step(std::span<const Batch> batches, const StepParams& params) override {
        std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(kStepMs));
        queued_++;
        finished_ = false;
        return GPT2Cpu::enqueue_step(batches, params);
    }
    std::optional<StepResult> poll() override {
        if (queued_ == 0 || (queued_ == 1 && !finished_)) { return std::nullopt; }
        queued_--;
        return GPT2Cpu::poll();
    }
    void finish() override { finished_ = true; }

private:
    int queued_ = 0;
    bool finished_ = false;
};

}  // namespace

TEST_CASE("step times: every step has its own, the last one and those before a pause too") {
    const Place p;
    const std::string more = "--steps 6 --val-every 3 --sample-every 0 --quiet --out " + p.run;
    const auto before = std::chrono::steady_clock::now();
    const Options options = parse(tiny_run(p.folder.path(), more));
    Comm alone;
    printed_by([&] {
        CHECK(train_in_rank({[](const Options&) { return factory_of<LateModel>(); }}, options, alone) ==
              kExitDone);
    });
    double all = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - before).count();
    double sum = 0;
    for (const Json& line : read_log(p.run, true)) {
        if (!line.contains("ms")) { continue; }
        double ms = line["ms"];
        CAPTURE(line["step"].get<int>());
        CHECK(ms >= kStepMs);
        CHECK(line["tokens_per_s"].get<double>() <= 4 * 12 / kStepMs * 1e3);
        sum += ms;
    }
    CHECK(sum >= 6 * kStepMs);
    CHECK(sum <= all);
}

TEST_CASE("step times: what is left is told by the last half minute, and at first by all steps") {
    RunPlan plan;
    plan.steps = 10000;
    plan.windows_per_epoch = 1;
    plan.config.vocab_size = 257;
    StepClock clock;
    clock.restart();
    StepResult r{};
    r.done = std::chrono::steady_clock::now();
    const auto left = [&](double seconds) {  // per step
        r.done += std::chrono::microseconds((int64_t)(seconds * 1e6));
        const double all = clock.numbers(r, plan, 1, 0, 0).seconds_left;
        return all / (double)(plan.steps - ++r.step);
    };
    left(1);
    left(2);
    CHECK(left(3) == doctest::Approx(2).epsilon(0.01));
    for (int k = 0; k < 600; k++) { left(1); }
    CHECK(left(1) == doctest::Approx(1).epsilon(0.01));
    for (int k = 0; k < 1200; k++) { left(0.1); }  // two minutes: a fiftieth is left of the second
    CHECK(left(0.1) < 0.13);
}

// ---- log.jsonl ---------------------------------------------------------------------------------

TEST_CASE("log: its header says what the run is, and events what happened") {
    const Place p;
    const std::string& run = p.run;
    const auto train = [&](const std::string& more) {
        return run_well(p.folder.path(), tiny_run(p.folder.path(), "--out " + run + " " + more));
    };
    // a text with everything that JSON, a terminal and a page must not take for their own
    write_bytes(p.folder / "prompt.toml", "prompt = \"cat </script>\\\"\\u0001\"\n");
    const ProgramRun r = train("--steps 4 --val-every 2 --sample-every 3 --save-every 2 --quiet --config " +
                               p.folder / "prompt.toml");
    const std::vector<Json> lines = all_lines(run);
    const Json& header = lines[0];
    CHECK(header["event"] == "start");
    CHECK(header["log"] == 2);
    CHECK(header["version"] == std::string("plumb ") + kVersion);
    CHECK(contains(header["device"].get<std::string>(), "CPU"));
    CHECK(header["parameters"] == 2 * (12 * 16 * 16 + 13 * 16) + 16 * (257 + 12) + 2 * 16);
    CHECK(header["steps"] == 4);
    CHECK(header["tokens_per_step"] == 4 * 12);
    CHECK(header["options"]["layers"] == 2);
    CHECK(header["options"]["prompt"] == "cat </script>\"\x01");
    CHECK(header["options"]["quiet"] == true);
    CHECK(contains(header["plan"].get<std::string>(), "model      | 2 layers"));
    CHECK(header["line"].size() == 1);
    double time = 0;
    for (const Json& line : lines) {
        CHECK(line["time"].get<double>() >= time);
        time = line["time"];
    }
    CHECK(events_of(run) == "start 0, save 2, sample 3, save 4, sample 4, sample 4, sample 4, end 4");
    const Json losses = read_log(run);
    const std::string last =
        fmt::format("last training loss {:.4f}", losses[losses.size() - 2]["train_loss"].get<double>());
    CHECK_MESSAGE(contains(r.out, last), r.out);  // --quiet has it, too

    train("--steps 6 --val-every 2 --sample-every 0 --resume " + run + "/step_00000002");
    CHECK(events_of(run) == "start 0, save 2, resume 2, save 6, end 6");
    CHECK(all_lines(run)[0] == header);
    check_steps(run, 6);
}

TEST_CASE("log: what a resume keeps") {
    const std::string start = log_start({{"0123456789abcdef", 0}}, 0, false, "{\"version\":\"v\"}");
    const auto line = [](int64_t n) { return step_log_line({.step = n, .loss = (double)n}); };
    const std::string step1 = line(1), step2 = line(2), step3 = line(3);
    const std::string val2 = validation_log_line(2, 5, 1), save2 = event_log_line("save", 2),
                      stop2 = event_log_line("stop", 2), skip3 = event_log_line("skip", 3),
                      sample2 = event_log_line("sample", 2, {{"text", "\xff\""}}),
                      resume = log_start({{"0123456789abcdef", 0}, {"1123456789abcdef", 2}}, 2);
    const std::string log = start + step1 + step2 + save2 + stop2 + resume + val2 + sample2 + step3 + skip3 +
                            "rubbish\n" + line(4) + "{\"step\":4,\"trai";
    // validation and sample of the state after 2 steps are made again, and so is the line of the resume
    CHECK(kept_log_lines(log, 2) == start + step1 + step2 + save2 + stop2);
    CHECK(kept_log_lines(log, 3) ==
          start + step1 + step2 + save2 + stop2 + resume + val2 + sample2 + step3 + skip3);
    CHECK(kept_log_lines(log, 0) == "");
    CHECK(kept_log_lines(log, -1) == "");
    CHECK(Json::parse(sample2)["text"] == "\xef\xbf\xbd\"");
    CHECK_FALSE(has_steps(start + save2 + resume));
    CHECK(has_steps(start + step1));
}

TEST_CASE_FIXTURE(InFolder, "log: whole lines only, also on a full disk, and no run over another") {
    const std::string path = folder / "log.jsonl";
    const std::string line = step_log_line({.step = 2, .loss = NAN, .grad_norm = INFINITY});
    {
        RunJournal log(folder.path(), -1);
        log.append(step_log_line({.step = 1, .loss = 1.5, .grad_norm = 0.25}));
        log.append(validation_log_line(1, 1.25, 0));
        log.append(line);
    }
    check_error([&] { RunJournal(folder.path(), -1); }, kExitUsage,
                {folder.path(), "holds a run", "--resume auto"});
    const std::string good = read_bytes(path);
    CHECK(read_log(folder.path()).size() == 3);
    CHECK(read_log(folder.path())[2]["train_loss"].is_null());
    {
        RunJournal log(folder.path(), 2);
        std::string on_full, still_full;
        {
            SmallFiles limit(good.size() + 10);
            log.append(line);
            on_full = log.problem();
            CHECK_FALSE(log.sync());
        }
        {
            SmallFiles limit(good.size() + line.size() + 20);  // one of the two fits
            log.append(line);
            still_full = log.problem();
        }
        check_holds(on_full, {path, "cannot write: File too large", "1 lines are kept"});
        check_holds(still_full, {"File too large"});
        CHECK(read_bytes(path) == good + line);  // no half line
        CHECK(log.sync());
        CHECK(log.problem() == "");
        CHECK(read_bytes(path) == good + line + line);
    }
    // a resume keeps the lines of the steps before, but not of a validation that is done again; a torn line, and
    // what is no line of ours, goes
    write_bytes(path, good + "{\"step\":1,\"other\":0}\nrubbish\n\n{\"step\":1,\"train_lo");
    { RunJournal log(folder.path(), 1); }
    CHECK(read_bytes(path) == good.substr(0, good.find('\n') + 1));
    CHECK(names_below(folder.path()) == Words{"log.jsonl"});
}

TEST_CASE("run log: what cannot be written is kept until it can be") {
    const Place p;
    const pid_t pid = p.start_limited("--steps 1500", kSmall);
    wait_until([&] { return contains(read_bytes(p.folder / "stdout"), "LOG FAILED"); });
    rlimit none = {RLIM_INFINITY, RLIM_INFINITY};
    REQUIRE(prlimit(pid, RLIMIT_FSIZE, &none, nullptr) == 0);
    const ProgramRun result = finish_train(p.folder.path(), pid);
    check_run(result, kExitDone, {}, {"cannot write: File too large", "nothing of it was lost"});
    // it tried to save at once, not at the end alone; whether that succeeded depends on when the limit was taken away
    const size_t failed = result.out.find("LOG FAILED");
    const std::string then = result.out.substr(failed, result.out.find("step 1500 |") - failed);
    CHECK_MESSAGE((contains(then, "| SAVE FAILED") || contains(then, "| saved")), result.out);
    check_steps(p.run, 1500);
    CHECK(fs::exists(p.run + "/step_00001500"));
}

TEST_CASE("run log: lines that are lost in the end are said, and the exit code is 7") {
    const Place p;
    const ProgramRun result = p.train_limited("--steps 200", kSmall);
    check_run(result, kExitSaveFailed, {}, {"LOG FAILED: lines are missing", "trained 200 steps"});
    for (const Json& line : read_log(p.run)) { CHECK(line.contains("train_loss")); }  // whole lines
}

TEST_CASE("run log: a start that fails on a full disk does not block the next") {
    const Place p;
    CHECK(p.train_limited("--steps 3", 500).exit_code == kExitSaveFailed);
    const ProgramRun result = p.train_limited("--steps 3", RLIM_INFINITY);
    CHECK_MESSAGE(result.exit_code == kExitDone, result.err);
    check_steps(p.run, 3);
}

// A file that takes the place of a closed stream would have the program's messages in it.
TEST_CASE("run log: closed streams change nothing") {
    const Runs r("--steps 4 --save-every 2");
    r.train("usual", "");
    for (int closed : {1, 2, 3, 7}) {  // bits: 0, 1, 2
        const std::string name = std::to_string(closed);
        const pid_t pid = start_prepared(r.folder.path(), r.options(name, ""), [=] {
            for (int fd = 0; fd < 3; fd++) {
                if (closed >> fd & 1) { close(fd); }
            }
        });
        CHECK(finish_train(r.folder.path(), pid).exit_code == kExitDone);
        r.check_same(name, "usual");
        CHECK(fs::exists(r.step(name, 4)));
    }
}

// ---- the page ----------------------------------------------------------------------------------

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
        StepNumbers numbers;
        numbers.step = n, numbers.loss = (double)n, numbers.grad_norm = 2, numbers.lr = 1;
        numbers.ms = 1000, numbers.tokens_per_s = 64, numbers.tokens = 64 * n;
        text += step_log_line(numbers);
        if (n % 25 == 0) { text += validation_log_line(n, 3.25, 1); }
        if (n % 200 == 0) { text += event_log_line("sample", n, {{"text", std::string(5000, '<')}}); }
        if (n % 50 == 0) { text += event_log_line("save", n, {{"text", "step"}}); }
    }
    history.add(text);
    return history;
}

}  // namespace

TEST_CASE("report: a long run takes bounded space, and its curve is the mean of its steps") {
    constexpr int64_t kSteps = 20000;
    const Json run = data_of(report_page({long_run("long", kSteps)}))[0];
    const Json& p = run["points"];
    const size_t points = p.size();
    CHECK(points > 300);
    CHECK(points <= 1000);
    CHECK((p.back()[kStep] == kSteps && p.back()[kSeconds] == kSteps));
    CHECK((run["tokensPerStep"] == 64 && run["entropy"] == 0.5));
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
    check_error([&] { report_page(far_too_many); }, kExitUsage, {"6000 runs do not fit", "fewer"});
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
    const Place p;
    const TempFolder& folder = p.folder;
    for (int i = 0; i < 4; i++) {
        const std::string run = folder / fmt::format("run{}", i), page = run + "/report.html";
        const std::string more = "--steps 1000000 --val-every 1 --save-every 2 --sample-every 0 --out " + run;
        const pid_t pid = start_train(folder.path(), tiny_run(folder.path(), more));
        wait_until([&] { return fs::exists(page); });
        std::this_thread::sleep_for(std::chrono::microseconds(7919 * i));
        kill(pid, SIGKILL);
        CHECK(finish_train(folder.path(), pid).exit_code == 128 + SIGKILL);
        CHECK(data_of(read_bytes(page))[0]["points"].size() >= 1);
    }
    const std::string run = folder / "whole";
    const ProgramRun r = p.train("--steps 5 --sample-every 3 --out " + run);
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
    const std::string written = read_bytes(run + "/report.html");
    CHECK(p.command({"report", run}).out == "wrote " + run + "/report.html\n");
    CHECK(read_bytes(run + "/report.html") == written);
    const std::string both = folder / "both.html";
    CHECK(p.command({"report", run, folder / "run0", "--out", both}).exit_code == kExitDone);
    CHECK(data_of(read_bytes(both)).size() == 2);
    check_run(p.command({"report", folder / "none", "--out", both}), kExitBadInput,
              {"none: no run: there is no"});
    CHECK(p.command({"report", folder / "train.bin"}).exit_code == kExitBadInput);
    CHECK(p.command({"report"}).exit_code == kExitUsage);
    for (const char* name : {"log.jsonl", "model.bin", "config.toml"}) {
        const std::string file = run + "/" + name, before = read_bytes(file);
        check_run(p.command({"report", run + "/log.jsonl", "--out", file}), kExitUsage,
                  {file + ": found a file that is no page of a run"});
        CHECK(read_bytes(file) == before);
    }
}

TEST_CASE("report: a page that cannot be written is said once and stops nothing") {
    const Place p;
    fs::create_directories(p.run + "/report.html/x");
    const ProgramRun r = p.train("--steps 6 --val-every 1 --save-every 2 --out " + p.run);
    CHECK(r.exit_code == kExitDone);
    const size_t first = r.err.find("the page of the run is not written: " + p.run + "/report.html");
    CHECK_MESSAGE(first != std::string::npos, r.err);
    CHECK_MESSAGE(r.err.rfind("the page of the run") == first, r.err);
    check_run(p.command({"report", p.run}), kExitUsage,
              {"Choose another name. --out FILE writes it elsewhere.\n"});
}

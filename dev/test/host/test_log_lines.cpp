// The lines of a log and the step line on the screen: what they say, what a resume keeps of them, and what of
// them is seen on a terminal of 60, 80 and 120 columns.
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <map>

#include <doctest/doctest.h>

#include "dev/test/support/train_program.h"
#include "llmc/host/log/run_log.h"
#include "llmc/host/options/options.h"
#include "llmc/model/formats/checkpoint.h"

using namespace llmc;

namespace {

// every line of a log
std::vector<Json> all_lines(const std::string& run) {
    std::istringstream in(read_bytes(run + "/log.jsonl"));
    std::vector<Json> lines;
    for (std::string line; std::getline(in, line);) { lines.push_back(Json::parse(line)); }
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
std::string on_terminal(const Words& options, unsigned short columns, const char* kind = "xterm") {
    Words all = {train_program()};
    all.insert(all.end(), options.begin(), options.end());
    std::vector<char*> argv;
    for (std::string& word : all) { argv.push_back(word.data()); }
    argv.push_back(nullptr);
    int terminal = -1;
    winsize size = {24, columns, 0, 0};
    const pid_t pid = forkpty(&terminal, nullptr, nullptr, &size);
    if (pid == 0) {
        setenv("OMP_NUM_THREADS", "1", 1);
        setenv("TERM", kind, 1);
        execv(argv[0], argv.data());
        _exit(127);
    }
    REQUIRE(pid > 0);
    std::string text;
    char bytes[4096];
    for (ssize_t n; (n = read(terminal, bytes, sizeof(bytes))) > 0;) { text.append(bytes, (size_t)n); }
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(WEXITSTATUS(status) == 0);
    close(terminal);
    return text;
}

}  // namespace

TEST_CASE("step line: what matters is there in any width, the rest where there is room") {
    StepNumbers n;
    n.step = 18865;
    n.steps = 1000000;
    n.loss = 10.8249;
    n.grad_norm = 1.5;
    n.lr = 6e-4;
    n.ms = 118.6;
    n.tokens_per_s = 4421000;
    n.utilisation = 0.4321;
    n.seconds_left = 1e5;
    CHECK(step_text(n, 0) ==
          "step 18865/1000000 | loss 10.8249 | norm 1.500 | lr 6.00e-04 | 119 ms | 4.42M tok/s | 43% of peak "
          "| ETA 27h46m");
    for (bool skipped : {false, true}) {
        n.skipped = skipped ? "not finite" : "";
        for (size_t columns = 59; columns < 130; columns++) {
            const std::string line = step_text(n, columns);
            CAPTURE(line);
            CHECK(line.size() <= columns);
            for (const std::string part :
                 {"step 18865/1000000", "loss 10.8249", "4.42M tok/s", "ETA 27h46m"}) {
                CHECK_MESSAGE(contains(line, part), part);
            }
            CHECK((columns < 100 || contains(line, "SKIPPED") == skipped));
        }
    }
    n.utilisation = -1;
    CHECK_FALSE(contains(step_text(n, 0), "peak"));
    n.step = n.steps = 999999999999;  // as long as it gets: nothing wraps, the beginning is there
    CHECK(step_text(n, 40).size() == 40);
}

TEST_CASE("step line: on terminals of 60, 80 and 120 columns") {
    TempFolder folder;
    write_tiny_data(folder.path());
    const std::map<int, size_t> fields = {{60, 4}, {80, 5}, {120, 7}};  // the fewest that are shown
    for (auto [columns, fewest] : fields) {
        const std::string more =
            fmt::format("--steps 30 --sample-every 0 --val-every 0 --out {}/{}", folder.path(), columns);
        const std::string text = on_terminal(tiny_run(folder.path(), more), (unsigned short)columns);
        size_t lines = 0;
        for (size_t at = 0; (at = text.find("\r\033[Kstep ", at)) != std::string::npos; at++) {
            const size_t begin = at + 4, end = text.find_first_of("\r\n", begin);
            const std::string line = text.substr(begin, end - begin);
            CAPTURE(line);
            CHECK(line.size() < (size_t)columns);  // a full one would wrap
            for (const std::string part : {"step ", "/30", "loss ", "tok/s", "ETA "}) {
                CHECK_MESSAGE(contains(line, part), part);
            }
            CHECK((size_t)std::count(line.begin(), line.end(), '|') + 1 >= fewest);
            lines++;
        }
        CHECK(lines == 30);
    }
    // one that knows no control sequences gets plain lines
    const std::string more = "--steps 2 --sample-every 0 --val-every 0 --out " + folder / "dumb";
    const std::string text = on_terminal(tiny_run(folder.path(), more), 80, "dumb");
    CHECK_FALSE(contains(text, "\033"));
    CHECK(contains(text, "\nstep 2/2 | loss "));
}

TEST_CASE("log: its header says what the run is, and events what happened") {
    TempFolder folder;
    write_tiny_data(folder.path());
    const std::string run = folder / "run";
    auto train = [&](const std::string& more) {
        const ProgramRun r = run_train(folder.path(), tiny_run(folder.path(), "--out " + run + " " + more));
        CHECK_MESSAGE(r.exit_code == kExitDone, r.err);
        return r;
    };
    // a text with everything that JSON, a terminal and a page must not take for their own
    write_bytes(folder / "prompt.toml", "prompt = \"cat </script>\\\"\\u0001\"\n");
    const ProgramRun r = train("--steps 4 --val-every 2 --sample-every 3 --save-every 2 --quiet --config " +
                               folder / "prompt.toml");
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
    int64_t done = 0;
    for (const Json& line : read_log(run)) {
        if (line.contains("train_loss")) { CHECK(line["step"] == ++done); }
    }
    CHECK(done == 6);
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

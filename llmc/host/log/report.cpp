// report.html: see report.h.
#include "llmc/host/log/report.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>

#include "llmc/host/base/error.h"
#include "llmc/host/base/terminal_text.h"
#include "llmc/host/files/binary_file.h"
#include "llmc/host/log/report_page.h"
#include "llmc/host/options/parse_words.h"

namespace llmc {

namespace {

// A text of the run must not end the element that holds the data, nor begin another.
std::string inside_html(std::string json) {
    for (size_t at = 0; (at = json.find('<', at)) != std::string::npos;) { json.replace(at, 1, "\\u003c"); }
    return json;
}

std::string page_of(const std::vector<RunHistory>& runs) {
    std::string data;
    for (const RunHistory& run : runs) { data += (data.empty() ? "[" : ",\n") + inside_html(run.to_json()); }
    return std::string(kReportHead) + data + "]" + std::string(kReportScript);
}

// A page takes the place of an earlier one only: a log, a model or a config file of a run would be lost.
void require_page(const std::string& path) {
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(path, ignored)) { return; }
    std::ifstream file(path, std::ios::binary);
    std::string begin(kReportHead.find("<title>"), '\0');
    file.read(begin.data(), (std::streamsize)begin.size());
    begin.resize((size_t)file.gcount());
    if (!file.is_open() || !kReportHead.starts_with(begin)) {
        throw Error(
            kExitUsage,
            path +
                ": found a file that is no page of a run and would be lost. Expected such a page or a "
                "free name: choose another --out.");
    }
}

}  // namespace

std::string report_page(std::vector<RunHistory> runs) {
    constexpr int kMostHalvings = 12;  // by then a curve has a point or two
    for (int halvings = 0;; halvings++) {
        std::string page = page_of(runs);
        if (page.size() <= kMostReportBytes) { return page; }
        if (halvings == kMostHalvings) {
            throw Error(kExitUsage, fmt::format("{} runs do not fit on a page of {} bytes. Name fewer.",
                                                runs.size(), kMostReportBytes));
        }
        for (RunHistory& run : runs) { run.thin(); }
    }
}

void write_report(const std::string& path, const std::vector<RunHistory>& runs) {
    const std::string page = report_page(runs);
    FileWriter file(path);
    file.write(page.data(), page.size());
    file.commit();
}

int report_command(int argc, const char* const* argv) {
    const std::string name = std::string(argv[0]) + " report";
    std::vector<std::string> runs;
    std::string out;
    CLI::App app("Draws the curves of runs on one page for a browser, which needs nothing else.\n", name);
    app.add_option("RUN", runs, "folders of runs, or their log.jsonl")->required()->type_name("");
    app.add_option("--out", out, "the page; default: RUN/report.html for one run, report.html for several")
        ->type_name("FILE");
    app.footer("A run writes its own page at validations, at saves and at its end.\n\nExample:\n  " + name +
               " runs/a runs/b --out compare.html");
    if (!parse_words(&app, argc, argv, 2, "report: ")) { return kExitDone; }
    std::vector<RunHistory> histories;
    histories.reserve(runs.size());
    for (const std::string& run : runs) { histories.push_back(RunHistory::read(run)); }
    std::error_code ignored;
    const bool named = !out.empty();
    if (!named) {
        const bool folder = runs.size() == 1 && std::filesystem::is_directory(runs[0], ignored);
        out = (folder ? runs[0] + "/" : "") + "report.html";
    }
    require_page(out);
    try {
        write_report(out, histories);
    } catch (const Error& e) {
        throw Error(e.exit_code,
                    fmt::format("{}{}", e.what(), named ? "" : " --out FILE writes it elsewhere."));
    }
    put_text(stdout, "wrote " + out + "\n");
    require_printed();
    return kExitDone;
}

}  // namespace llmc

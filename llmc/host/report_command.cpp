// The sub-command report: see report_command.h.
#include "llmc/host/report_command.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "llmc/host/error.h"
#include "llmc/host/report.h"
#include "llmc/host/terminal_text.h"

namespace llmc {

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
    try {
        app.parse(argc - 1, argv + 1);
    } catch (const CLI::CallForHelp& e) { return app.exit(e); } catch (const CLI::ParseError& e) {
        throw Error(kExitUsage, strf("report: %s. See %s --help.", e.what(), name.c_str()));
    }
    std::vector<RunHistory> histories;
    histories.reserve(runs.size());
    for (const std::string& run : runs) { histories.push_back(RunHistory::read(run)); }
    std::error_code ignored;
    if (out.empty()) {
        const bool folder = runs.size() == 1 && std::filesystem::is_directory(runs[0], ignored);
        out = (folder ? runs[0] + "/" : "") + "report.html";
    }
    write_report(out, histories);
    std::printf("wrote %s\n", terminal_text(out).c_str());
    return kExitDone;
}

}  // namespace llmc

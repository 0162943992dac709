// report.html: see report.h.
#include "llmc/host/report.h"

#include <algorithm>

#include "llmc/host/binary_file.h"
#include "llmc/host/error.h"
#include "llmc/host/report_page.h"

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

}  // namespace

std::string report_page(std::vector<RunHistory> runs) {
    constexpr int kMostHalvings = 12;  // by then a curve has a point or two
    for (int halvings = 0;; halvings++) {
        std::string page = page_of(runs);
        if (page.size() <= kMostReportBytes) { return page; }
        if (halvings == kMostHalvings) {
            throw Error(kExitUsage, strf("%zu runs do not fit on a page of %zu bytes. Name fewer.",
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

}  // namespace llmc

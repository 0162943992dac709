// report.html: the curves, samples, options and events of one or several runs on one page that needs nothing
// else: no network, no other file.
#pragma once
#include <string>
#include <vector>

#include "llmc/host/log/history.h"

namespace llmc {

constexpr size_t kMostReportBytes = 1'000'000;

// The page. Curves are thinned out until it is small enough; that many runs that it cannot be throw
// Error(kExitUsage).
std::string report_page(std::vector<RunHistory> runs);

// Writes it: at every moment the file is the old one or the whole new one. Throws Error as FileWriter does.
void write_report(const std::string& path, const std::vector<RunHistory>& runs);

// The sub-command report of both trainers; argv[1] is the command. Returns the program's exit code; throws
// Error(kExitUsage) for bad usage, Error(kExitBadInput) where a folder has no log.
int report_command(int argc, const char* const* argv);

}  // namespace llmc

// The sub-command report of both trainers: a page of one run, or one that compares several.
#pragma once

namespace llmc {

// argv[1] is the command. Returns the program's exit code; throws Error(kExitUsage) for bad usage,
// Error(kExitBadInput) where a folder has no log.
int report_command(int argc, const char* const* argv);

}  // namespace llmc

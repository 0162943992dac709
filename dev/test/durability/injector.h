// Runs a program and lets one of its system calls that touch a folder fail, or kills the program there. A
// tracer (ptrace) does it: what the C library does inside of itself would go past an interposed library.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace llmc {

enum class Fault {
    kNone,
    kKill,   // SIGKILL instead of the call
    kTorn,   // a write of half the bytes, then SIGKILL; any other call: as kKill, but after it
    kShort,  // a write of half the bytes
    kError,  // the call returns an error and does nothing; close() closes all the same
};

struct Injection {
    Fault fault = Fault::kNone;
    int64_t at = 0;       // the number of the call, from 1 on
    int error = 0;        // errno of kError
    bool sticky = false;  // kError: each such call of this kind from there on (a full disk)
};

// a system call that touched the folder; with data, also a write to standard output
struct Call {
    std::string name;  // "write", "rename" ...; "say" to standard output
    std::string path, to;
    int64_t bytes = 0;  // asked for, of writes
    std::string data;   // of writes, if wanted
    bool succeeded = false;
};

struct Traced {
    int exit_code = -1;  // 128 + the signal if one ended it: SIGALRM after a minute
    std::vector<Call> calls;
};

// Runs argv with its streams in streams/stdout and streams/stderr; calls below `folder` count.
Traced run_traced(const std::vector<std::string>& argv, const std::string& streams, const std::string& folder,
                  const Injection& injection = {}, bool with_data = false);

// whether this system lets one process trace another; says so if not
bool can_trace();

}  // namespace llmc

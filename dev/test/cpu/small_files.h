// What a full disk looks like to a program.
#pragma once
#include <sys/resource.h>
#include <csignal>

namespace llmc {

// No file may grow over this many bytes while it lives: what a full disk looks like to a program. Nothing may
// be printed meanwhile, for that may go to a file.
class SmallFiles {
public:
    explicit SmallFiles(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
        getrlimit(RLIMIT_FSIZE, &before_);
        rlimit small = {bytes, before_.rlim_max};
        setrlimit(RLIMIT_FSIZE, &small);
    }
    ~SmallFiles() {
        setrlimit(RLIMIT_FSIZE, &before_);
        std::signal(SIGXFSZ, handler_);
    }
    SmallFiles(const SmallFiles&) = delete;

private:
    rlimit before_;
    void (*handler_)(int);
};

}  // namespace llmc

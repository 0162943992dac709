// One process a run folder: two that save into one folder would delete each other's files.
#pragma once
#include <string>

namespace llmc {

// Holds folder/.lock by flock(2) as long as it lives; a process that ends, however it ends, lets go. The file
// says who holds it and stays, empty.
class RunLock {
public:
    RunLock() = default;
    ~RunLock();
    RunLock(const RunLock&) = delete;
    RunLock& operator=(const RunLock&) = delete;

    // The folder exists. Throws Error(kExitUsage) that names process and host if another process holds it, or
    // if the folder cannot be written. Where the file system knows no locks, that is said on stderr.
    void take(const std::string& folder);
    bool taken() const { return fd_ >= 0; }
    // Throws Error(kExitSaveFailed) if the folder was moved or its .lock removed since: a save might then replace what
    // another run has saved.
    void require_held() const;

private:
    int fd_ = -1;
    std::string folder_;
};

}  // namespace llmc

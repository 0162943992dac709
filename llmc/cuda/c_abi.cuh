// What the C interfaces share: no exception leaves a library, and the message of a thread's last failure stays with it.
// Host only.
#pragma once
#include <cstdio>
#include <exception>
#include <string>

#include <cuda_runtime_api.h>

#include "llmc/host/base/error.h"

namespace llmc::c_abi {

// the values of every interface's own enum
enum Code { kOk = 0, kInvalid = 1, kUnsupported = 2, kDevice = 3, kInternal = 4 };

inline thread_local char last_error[1024] = "";

struct Unsupported : Error {
    explicit Unsupported(const std::string& message) : Error(kExitUsage, message) {}
};

[[noreturn]] inline void refuse(const std::string& message) { throw Error(kExitUsage, message); }

// act() without its exceptions: the code, and the message for last_error
template <typename Act>
int guarded(const char* function, const Act& act) noexcept {
    auto failed = [&](Code code, const char* message) {
        if (code == kDevice) { cudaGetLastError(); }  // the next call is not to meet it again
        std::snprintf(last_error, sizeof last_error, "%s: %s", function, message);
        return code;
    };
    try {
        last_error[0] = '\0';
        act();
        return kOk;
    } catch (const Unsupported& e) { return failed(kUnsupported, e.what()); } catch (const Error& e) {
        return failed(e.exit_code == kExitDevice ? kDevice : kInvalid, e.what());
    } catch (const std::exception& e) { return failed(kInternal, e.what()); } catch (...) {
        return failed(kInternal, "an exception of unknown type");
    }
}

}  // namespace llmc::c_abi

// NCCL by dlopen: what of it is used, and where it is found. No header of it is needed: these functions'
// types have been the same since NCCL 2.7.
#pragma once
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace llmc {

struct Nccl {
    struct Id {
        char bytes[128];
    };
    using Handle = struct NcclHandle*;
    using Stream = struct CUstream_st*;
    using Result = int;
    static constexpr Result kSuccess = 0, kInProgress = 7;
    static constexpr int kBytes = 0;  // as a type of elements

    Result (*get_version)(int*);
    Result (*get_unique_id)(Id*);
    Result (*init_rank)(Handle*, int ranks, Id, int rank);
    Result (*destroy)(Handle);
    Result (*abort)(Handle);
    Result (*async_error)(Handle, Result*);
    Result (*group_start)();
    Result (*group_end)();
    Result (*send)(const void*, size_t count, int type, int peer, Handle, Stream);
    Result (*receive)(void*, size_t count, int type, int peer, Handle, Stream);
    const char* (*error_text)(Result);
    std::string path;  // of the library
};

// Where libnccl.so.2 may be, in the order in which it is looked for: PLUMB_NCCL (a file, or its folder) alone
// if that is set; else where the system's loader looks, in the CUDA Toolkit (CUDA_HOME, or /usr/local/cuda),
// where `scripts/setup.sh nccl` puts it beside this program, and in the wheels of Python's packages.
std::vector<std::string> nccl_places(const std::function<const char*(const char*)>& environment,
                                     const std::string& program_folder);

// The library, opened once and never closed. Throws Error(kExitDevice) naming where it was looked for.
const Nccl& nccl();

}  // namespace llmc

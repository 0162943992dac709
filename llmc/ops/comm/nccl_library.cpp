// NCCL by dlopen: see nccl_library.h.
#include "llmc/ops/comm/nccl_library.h"

#include <dlfcn.h>
#include <glob.h>
#include <cstdlib>
#include <filesystem>

#include "llmc/host/base/error.h"

namespace llmc {

namespace {

namespace fs = std::filesystem;

constexpr const char* kFile = "libnccl.so.2";
constexpr int kOldest = 21000;  // 2.10

void add_matches(const std::string& pattern, std::vector<std::string>* places) {
    glob_t found = {};
    if (glob(pattern.c_str(), 0, nullptr, &found) == 0) {
        places->insert(places->end(), found.gl_pathv, found.gl_pathv + found.gl_pathc);
    }
    globfree(&found);
}

Nccl load(void* library, const std::string& path) {
    Nccl n = {};
    n.path = path;
    const auto find = [&]<typename Function>(const char* name, Function* function) {
        *function = reinterpret_cast<Function>(dlsym(library, name));
        if (*function == nullptr) {
            throw Error(kExitDevice, "{} has no {}: NCCL 2.10 or later is needed", path, name);
        }
    };
    find("ncclGetVersion", &n.get_version);
    find("ncclGetUniqueId", &n.get_unique_id);
    find("ncclCommInitRank", &n.init_rank);
    find("ncclCommDestroy", &n.destroy);
    find("ncclCommAbort", &n.abort);
    find("ncclCommGetAsyncError", &n.async_error);
    find("ncclGroupStart", &n.group_start);
    find("ncclGroupEnd", &n.group_end);
    find("ncclSend", &n.send);
    find("ncclRecv", &n.receive);
    find("ncclGetErrorString", &n.error_text);
    int version = 0;  // 22809 is 2.28.9
    if (n.get_version(&version) != Nccl::kSuccess || version < kOldest) {
        throw Error(kExitDevice,
                    "{} is NCCL of version code {}, older than 2.10. Set PLUMB_NCCL to a newer libnccl.so.2.",
                    path, version);
    }
    return n;
}

Nccl open_nccl() {
    std::error_code ignored;
    const fs::path program = fs::read_symlink("/proc/self/exe", ignored);
    std::string why;
    for (const std::string& place :
         nccl_places([](const char* name) { return std::getenv(name); }, program.parent_path().string())) {
        if (void* library = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL)) { return load(library, place); }
        why += fmt::format("\n  {}", dlerror());
    }
    throw Error(kExitDevice,
                "NCCL, by which several GPUs train together, was not found. Install libnccl2, or run "
                "scripts/setup.sh nccl, or set PLUMB_NCCL to a libnccl.so.2. Tried:" +
                    why);
}

}  // namespace

std::vector<std::string> nccl_places(const std::function<const char*(const char*)>& environment,
                                     const std::string& program_folder) {
    std::error_code ignored;
    if (const char* given = environment("PLUMB_NCCL")) {
        return {fs::is_directory(given, ignored) ? (fs::path(given) / kFile).string() : given};
    }
    std::vector<std::string> places = {kFile};
    const auto root = [&](const char* variable, const char* below, const char* otherwise) -> std::string {
        const char* value = environment(variable);
        return value != nullptr ? std::string(value) + below : otherwise;
    };
    const std::string toolkit = root("CUDA_HOME", "", "/usr/local/cuda");
    for (const char* folder : {"/lib64/", "/lib/"}) { add_matches(toolkit + folder + kFile, &places); }
    add_matches(program_folder + "/build/nccl/nvidia/nccl/lib/" + kFile, &places);
    for (const std::string& python :
         {root("VIRTUAL_ENV", "", ""), root("CONDA_PREFIX", "", ""), root("HOME", "/.local", ""),
          std::string("/usr/local"), std::string("/usr")}) {
        if (python.empty()) { continue; }
        add_matches(python + "/lib/python3*/*-packages/nvidia/nccl/lib/" + kFile, &places);
    }
    return places;
}

const Nccl& nccl() {
    static const Nccl library = open_nccl();
    return library;
}

}  // namespace llmc

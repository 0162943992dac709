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

template <typename Function>
void find(void* library, const std::string& path, const char* name, Function* function) {
    void* found = dlsym(library, name);
    if (found == nullptr) {
        throw Error(kExitDevice, fmt::format("{} has no {}: NCCL 2.10 or later is needed", path, name));
    }
    *function = reinterpret_cast<Function>(found);
}

Nccl load(void* library, const std::string& path) {
    Nccl n = {};
    n.path = path;
    find(library, path, "ncclGetVersion", &n.get_version);
    find(library, path, "ncclGetUniqueId", &n.get_unique_id);
    find(library, path, "ncclCommInitRank", &n.init_rank);
    find(library, path, "ncclCommDestroy", &n.destroy);
    find(library, path, "ncclCommAbort", &n.abort);
    find(library, path, "ncclCommGetAsyncError", &n.async_error);
    find(library, path, "ncclGroupStart", &n.group_start);
    find(library, path, "ncclGroupEnd", &n.group_end);
    find(library, path, "ncclSend", &n.send);
    find(library, path, "ncclRecv", &n.receive);
    find(library, path, "ncclGetErrorString", &n.error_text);
    if (n.get_version(&n.version) != Nccl::kSuccess || n.version < kOldest) {
        throw Error(kExitDevice,
                    fmt::format("{} is NCCL of version code {}, older than 2.10. Set PLUMB_NCCL to a newer "
                                "libnccl.so.2.",
                                path, n.version));
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
    const char* home = environment("CUDA_HOME");
    const std::string toolkit = home != nullptr ? home : "/usr/local/cuda";
    for (const char* folder : {"/lib64/", "/lib/"}) { add_matches(toolkit + folder + kFile, &places); }
    add_matches(program_folder + "/build/nccl/nvidia/nccl/lib/" + kFile, &places);
    const char* user = environment("HOME");
    const std::string local = user != nullptr ? std::string(user) + "/.local" : "";
    for (const char* variable : {"VIRTUAL_ENV", "CONDA_PREFIX", "", "/usr/local", "/usr"}) {
        const bool fixed = *variable == '\0' || *variable == '/';
        const char* value = fixed ? variable : environment(variable);
        const std::string root = *variable == '\0' ? local : value != nullptr ? value : "";
        if (root.empty()) { continue; }
        add_matches(root + "/lib/python3*/*-packages/nvidia/nccl/lib/" + kFile, &places);
    }
    return places;
}

const Nccl& nccl() {
    static const Nccl library = open_nccl();
    return library;
}

}  // namespace llmc

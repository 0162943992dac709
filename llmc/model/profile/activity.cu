// CUPTI's activity API, by dlopen.
#include "llmc/model/profile/step_profile.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <mutex>

#include <cuda_runtime_api.h>

#include "llmc/host/base/error.h"

#if __has_include(<cupti.h>)
    #include <cupti.h>
#endif

namespace llmc {

#if __has_include(<cupti.h>)

namespace {

constexpr size_t kBufferBytes = 8 << 20, kBufferAlignment = 8;  // CUPTI's advice: 1 to 10 MB, 8-byte aligned
constexpr CUpti_ActivityKind kKinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                         CUPTI_ACTIVITY_KIND_MEMSET, CUPTI_ACTIVITY_KIND_RUNTIME,
                                         CUPTI_ACTIVITY_KIND_DRIVER};

// libcupti as the loader finds it, or where the toolkit puts it
void* open_cupti() {
    const int major = CUDART_VERSION / 1000;
    const char* home = std::getenv("CUDA_HOME");
    const std::string toolkit = home != nullptr ? home : "/usr/local/cuda",
                      file = fmt::format("libcupti.so.{}", major);
    std::string tried;
    for (const char* folder : {"/lib64/", "/lib/", "/extras/CUPTI/lib64/", ""}) {
        const std::string path = *folder ? toolkit + folder + file : file;
        if (void* library = dlopen(path.c_str(), RTLD_NOW)) { return library; }
        tried += (tried.empty() ? "" : ", ") + path;
    }
    throw Error(kExitDevice,
                "--profile needs CUPTI, which comes with the CUDA Toolkit {}. Not found: {}. Put its folder "
                "into LD_LIBRARY_PATH, or set CUDA_HOME.",
                major, tried);
}

struct Symbol {  // becomes a pointer to a function of any type
    void* address;
    template <typename Function>
    operator Function*() const {
        return reinterpret_cast<Function*>(address);
    }
};

struct Cupti {
    void* library = open_cupti();
    Symbol symbol(const char* name) const {
        if (void* found = dlsym(library, name)) { return {found}; }
        throw Error(kExitDevice, "this libcupti has no {}: another version", name);
    }
    decltype(&cuptiActivityRegisterCallbacks) register_callbacks = symbol("cuptiActivityRegisterCallbacks");
    decltype(&cuptiActivityEnable) enable = symbol("cuptiActivityEnable");
    decltype(&cuptiActivityDisable) disable = symbol("cuptiActivityDisable");
    decltype(&cuptiActivityFlushAll) flush = symbol("cuptiActivityFlushAll");
    decltype(&cuptiActivityGetNextRecord) next_record = symbol("cuptiActivityGetNextRecord");
    decltype(&cuptiActivityGetNumDroppedRecords) dropped = symbol("cuptiActivityGetNumDroppedRecords");
    decltype(&cuptiGetCallbackName) callback_name = symbol("cuptiGetCallbackName");
    decltype(&cuptiGetResultString) result_string = symbol("cuptiGetResultString");
};

std::string demangled(const char* name) {
    std::unique_ptr<char, decltype(&std::free)> text(abi::__cxa_demangle(name, nullptr, nullptr, nullptr),
                                                     std::free);
    return text ? text.get() : name;
}

// pageable memory is said: a copy from or to it makes the host wait, even when it is called async
std::string copy_name(const CUpti_ActivityMemcpy5& m) {
    bool pageable =
        m.srcKind == CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE || m.dstKind == CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE;
    const char* way = m.copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_HTOD   ? "host to device"
                      : m.copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_DTOH ? "device to host"
                      : m.copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_DTOD ? "device to device"
                                                                      : "other";
    return std::string(pageable ? "pageable " : "") + way;
}

// "cudaLaunchKernel_v7000" is cudaLaunchKernel
std::string without_version(std::string_view name) {
    std::string_view stem = name.substr(0, name.find_last_not_of("0123456789") + 1);
    if (stem.size() == name.size() || !stem.ends_with("_v")) {
        stem = name;
    } else {
        stem.remove_suffix(2);
    }
    return std::string(stem);
}

// Records from its construction on. One at a time, as CUPTI's callbacks have no argument of ours.
struct Recorder {
    Cupti cupti;
    std::mutex mutex;  // CUPTI calls back from a thread of its own
    std::vector<Activity> records;
    size_t lost = 0;
    static inline Recorder* current = nullptr;

    Recorder() {
        current = this;
        check(cupti.register_callbacks(request, complete), "register its callbacks");
        for (CUpti_ActivityKind kind : kKinds) { check(cupti.enable(kind), "record"); }
    }
    ~Recorder() {
        disable();
        current = nullptr;
    }
    void disable() const {
        for (CUpti_ActivityKind kind : kKinds) { cupti.disable(kind); }
    }

    void check(CUptiResult status, const char* what) const {
        if (status == CUPTI_SUCCESS) { return; }
        const char* text = "?";
        cupti.result_string(status, &text);
        throw Error(kExitDevice,
                    "CUPTI cannot {}: {}. Another profiler may be at work, or this machine keeps programs "
                    "from being profiled.",
                    what, text);
    }
    static void CUPTIAPI request(uint8_t** buffer, size_t* size, size_t* most_records) {
        *buffer = static_cast<uint8_t*>(std::aligned_alloc(kBufferAlignment, kBufferBytes));
        *size = *buffer != nullptr ? kBufferBytes : 0;
        *most_records = 0;  // as many as fit
    }
    static void CUPTIAPI complete(CUcontext context, uint32_t stream, uint8_t* buffer, size_t, size_t valid) {
        if (current != nullptr) { current->read(context, stream, buffer, valid); }
        std::free(buffer);
    }
    void read(CUcontext context, uint32_t stream, uint8_t* buffer, size_t valid) {
        std::lock_guard lock(mutex);
        CUpti_Activity* record = nullptr;
        while (valid > 0 && cupti.next_record(buffer, valid, &record) == CUPTI_SUCCESS) { add(record); }
        size_t more = 0;
        if (cupti.dropped(context, stream, &more) == CUPTI_SUCCESS) { lost += more; }
    }
    template <typename Record>
    void keep(Activity::Kind kind, std::string name, const Record& r, uint32_t lane) {
        records.push_back({kind, std::move(name), (int64_t)r.start, (int64_t)r.end, lane, r.correlationId});
    }
    // The types are CUDA 12's, whose headers have no later ones: later types add fields behind those read here.
    void add(const CUpti_Activity* record) {
        if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
            const auto& k = *reinterpret_cast<const CUpti_ActivityKernel9*>(record);
            keep(Activity::kKernel, demangled(k.name), k, k.streamId);
        } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
            const auto& m = *reinterpret_cast<const CUpti_ActivityMemcpy5*>(record);
            keep(Activity::kCopy, copy_name(m), m, m.streamId);
        } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
            const auto& m = *reinterpret_cast<const CUpti_ActivityMemset4*>(record);
            keep(Activity::kFill, "fill", m, m.streamId);
        } else {
            const auto& call = *reinterpret_cast<const CUpti_ActivityAPI*>(record);
            bool runtime = record->kind == CUPTI_ACTIVITY_KIND_RUNTIME;
            const char* name = "?";
            cupti.callback_name(runtime ? CUPTI_CB_DOMAIN_RUNTIME_API : CUPTI_CB_DOMAIN_DRIVER_API, call.cbid,
                                &name);
            keep(Activity::kCall, without_version(name), call, call.threadId);
        }
    }
};

}  // namespace

void require_cupti() { open_cupti(); }

std::vector<Activity> record_activity(const std::function<void()>& work) {
    Recorder recorder;
    work();
    recorder.disable();
    recorder.check(recorder.cupti.flush(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "hand over its records");
    std::lock_guard lock(recorder.mutex);
    if (recorder.lost > 0) { throw Error(kExitDevice, "CUPTI lost {} records", recorder.lost); }
    std::ranges::stable_sort(recorder.records, {}, &Activity::start);
    return std::move(recorder.records);
}

#else

void require_cupti() {
    throw Error(kExitDevice, "--profile: this program was built by a CUDA Toolkit without cupti.h");
}
std::vector<Activity> record_activity(const std::function<void()>&) { return {}; }

#endif

}  // namespace llmc

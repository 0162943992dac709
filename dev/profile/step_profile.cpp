// Records what a CUDA program does, without Nsight Systems: every kernel, copy and fill on the GPU, and every
// call of the CUDA runtime and driver, through CUPTI's activity API. The driver loads it into any program.
//   make dev/profile/libstepprofile.so
//   CUDA_INJECTION64_PATH=dev/profile/libstepprofile.so PLUMB_PROFILE=profile.tsv ./train_gpt2cu ...
//   scripts/profile_step.py profile.tsv
// PLUMB_PROFILE is written while the program runs, a line for each record, fields separated by tabs:
//   kernel, memcpy, memset, runtime or driver; name; start and end (ns, one clock for all); stream, or thread
//   of a call; correlation (of a kernel, copy or fill: that of the call that asked for it)
// The last line is "end" and the number of records that were lost; without it the program did not end
// properly.
#include <cupti.h>
#include <cxxabi.h>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <unordered_map>

namespace {

constexpr size_t kBufferBytes = 8 << 20, kBufferAlignment = 8;  // CUPTI's advice: 1 to 10 MB, 8-byte aligned

class Recorder {
public:
    static Recorder& get() {
        static auto* recorder = new Recorder;  // never destroyed: CUPTI's thread may outlive main
        return *recorder;
    }

    void start(const char* path) {
        out_ = std::fopen(path, "w");
        if (out_ == nullptr) {
            std::perror(path);
            return;
        }
        check(cuptiActivityRegisterCallbacks(request_buffer, complete_buffer), "register callbacks");
        for (CUpti_ActivityKind kind :
             {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET,
              CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_DRIVER}) {
            check(cuptiActivityEnable(kind), "enable an activity");
        }
        std::atexit([] { get().finish(); });
    }

private:
    static void check(CUptiResult status, const char* what) {
        if (status == CUPTI_SUCCESS) { return; }
        const char* text = "?";
        cuptiGetResultString(status, &text);
        std::fprintf(stderr, "libstepprofile: cannot %s: %s\n", what, text);
    }

    static void CUPTIAPI request_buffer(uint8_t** buffer, size_t* size, size_t* most_records) {
        *buffer = static_cast<uint8_t*>(std::aligned_alloc(kBufferAlignment, kBufferBytes));
        *size = *buffer != nullptr ? kBufferBytes : 0;
        *most_records = 0;  // as many as fit
    }

    static void CUPTIAPI complete_buffer(CUcontext context, uint32_t stream, uint8_t* buffer, size_t,
                                         size_t valid) {
        get().write_buffer(context, stream, buffer, valid);
        std::free(buffer);
    }

    void write_buffer(CUcontext context, uint32_t stream, uint8_t* buffer, size_t valid) {
        std::lock_guard lock(mutex_);
        if (out_ == nullptr) { return; }
        CUpti_Activity* record = nullptr;
        while (valid > 0 && cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
            write_record(record);
        }
        size_t lost = 0;
        if (cuptiActivityGetNumDroppedRecords(context, stream, &lost) == CUPTI_SUCCESS) { lost_ += lost; }
    }

    void write_record(const CUpti_Activity* record) {
        switch (record->kind) {
            case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
                const auto* k = reinterpret_cast<const CUpti_ActivityKernel10*>(record);
                write_line("kernel", demangled(k->name), *k, k->streamId);
                break;
            }
            case CUPTI_ACTIVITY_KIND_MEMCPY: {
                const auto* m = reinterpret_cast<const CUpti_ActivityMemcpy6*>(record);
                write_line("memcpy", copy_name(*m), *m, m->streamId);
                break;
            }
            case CUPTI_ACTIVITY_KIND_MEMSET: {
                const auto* m = reinterpret_cast<const CUpti_ActivityMemset4*>(record);
                write_line("memset", "memset", *m, m->streamId);
                break;
            }
            case CUPTI_ACTIVITY_KIND_RUNTIME:
            case CUPTI_ACTIVITY_KIND_DRIVER: {
                const auto* call = reinterpret_cast<const CUpti_ActivityAPI*>(record);
                bool runtime = record->kind == CUPTI_ACTIVITY_KIND_RUNTIME;
                const char* name = "?";
                cuptiGetCallbackName(runtime ? CUPTI_CB_DOMAIN_RUNTIME_API : CUPTI_CB_DOMAIN_DRIVER_API,
                                     call->cbid, &name);
                write_line(runtime ? "runtime" : "driver", name, *call, call->threadId);
                break;
            }
            default:
                break;
        }
    }

    template <typename Record>
    void write_line(const char* kind, const char* name, const Record& r, uint32_t lane) {
        std::fprintf(out_, "%s\t%s\t%llu\t%llu\t%u\t%u\n", kind, name, (unsigned long long)r.start,
                     (unsigned long long)r.end, lane, r.correlationId);
    }

    // pageable memory is said, because a copy from or to it makes the host wait even when it is called async
    static const char* copy_name(const CUpti_ActivityMemcpy6& m) {
        bool pageable = m.srcKind == CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE ||
                        m.dstKind == CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE;
        switch (m.copyKind) {
            case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD:
                return pageable ? "pageable host to device" : "host to device";
            case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH:
                return pageable ? "device to pageable host" : "device to host";
            case CUPTI_ACTIVITY_MEMCPY_KIND_DTOD:
                return "device to device";
            default:
                return "other copy";
        }
    }

    const char* demangled(const char* name) {
        std::string& readable = names_[name != nullptr ? name : "?"];
        if (readable.empty() && name != nullptr) {
            char* text = abi::__cxa_demangle(name, nullptr, nullptr, nullptr);
            readable = text != nullptr ? text : name;
            std::free(text);
        }
        return readable.c_str();
    }

    void finish() {
        check(cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "flush");
        std::lock_guard lock(mutex_);
        std::fprintf(out_, "end\t%zu\n", lost_);
        std::fclose(out_);
        out_ = nullptr;
    }

    std::mutex mutex_;
    std::FILE* out_ = nullptr;
    size_t lost_ = 0;
    std::unordered_map<std::string, std::string> names_;  // kernels: as in the binary -> readable
};

}  // namespace

// the driver calls this once, when CUDA is initialised; 1 = done
extern "C" int InitializeInjection() {
    const char* path = std::getenv("PLUMB_PROFILE");
    if (path == nullptr) {
        std::fprintf(stderr, "libstepprofile: set PLUMB_PROFILE to the file to write\n");
    } else {
        Recorder::get().start(path);
    }
    return 1;
}

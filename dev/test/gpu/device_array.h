// Arrays in device memory, as the tests of the GPU's layers use them: between guard bands, poisoned until
// something is written, inputs rounded to the element type with the same numbers kept on the host.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include "llmc/host/base/error.h"

namespace llmc::gpu_test {

inline void check_cuda(cudaError_t status, std::source_location at = std::source_location::current()) {
    if (status == cudaSuccess) { return; }
    throw Error(kExitDevice, fmt::format("{}:{}: {}: {}", at.file_name(), at.line(), cudaGetErrorName(status),
                                         cudaGetErrorString(status)));
}

// Every bit set is a NaN in each of the formats (and -1 as an integer): what nobody wrote, or what was read
// from outside of an array, shows in the results.
constexpr unsigned char kPoison = 0xff;

// T: an element type, or any struct that may be copied byte by byte
template <typename T>
class DeviceArray {
public:
    // Guard elements before and after: at least 64, and a multiple of 256 bytes, which keeps the array
    // aligned as cudaMalloc's memory is.
    static constexpr int64_t kGuard = std::max<int64_t>(64, 256 / (int64_t)sizeof(T));
    static_assert(kGuard * sizeof(T) % 256 == 0);

    // n elements of poison, `offset` elements away from the alignment
    explicit DeviceArray(int64_t n, int offset = 0) : n_(n), begin_(kGuard + offset) {
        void* memory = nullptr;
        check_cuda(cudaMalloc(&memory, bytes_in_all()));
        memory_ = static_cast<T*>(memory);
        check_cuda(cudaMemset(memory_, kPoison, bytes_in_all()));
    }
    // values, each rounded to T
    template <typename From>
    explicit DeviceArray(const std::vector<From>& values, int offset = 0)
        : DeviceArray((int64_t)values.size(), offset) {
        uploaded_.resize(values.size());
        std::transform(values.begin(), values.end(), uploaded_.begin(), [](From x) { return (T)x; });
        check_cuda(cudaMemcpy(data(), uploaded_.data(), n_ * sizeof(T), cudaMemcpyHostToDevice));
    }
    ~DeviceArray() { cudaFree(memory_); }
    DeviceArray(DeviceArray&& other) noexcept
        : memory_(std::exchange(other.memory_, nullptr)),
          n_(other.n_),
          begin_(other.begin_),
          uploaded_(std::move(other.uploaded_)) {}

    T* data() const { return memory_ + begin_; }
    int64_t size() const { return n_; }
    const std::vector<T>& uploaded() const { return uploaded_; }
    std::vector<double> values() const { return widened(uploaded_); }  // of what was uploaded

    // waits for what is queued
    std::vector<T> download() const { return download(0, n_); }
    std::vector<T> download(int64_t begin, int64_t count) const {
        std::vector<T> x((size_t)count);
        check_cuda(cudaMemcpy(x.data(), data() + begin, count * sizeof(T), cudaMemcpyDeviceToHost));
        return x;
    }
    bool unchanged() const {
        std::vector<T> now = download();
        return std::memcmp(now.data(), uploaded_.data(), n_ * sizeof(T)) == 0;
    }
    // "", or where something was written outside: "element -1", "element 65 of 65"
    std::string damage() const {
        struct Band {
            int64_t begin, end;
        };
        for (Band band : {Band{-begin_, 0}, Band{n_, n_ + kGuard}}) {
            std::vector<unsigned char> bytes((band.end - band.begin) * sizeof(T));
            check_cuda(cudaMemcpy(bytes.data(), data() + band.begin, bytes.size(), cudaMemcpyDeviceToHost));
            auto at = std::find_if(bytes.begin(), bytes.end(), [](unsigned char b) { return b != kPoison; });
            if (at == bytes.end()) { continue; }
            int64_t element = band.begin + (at - bytes.begin()) / (int64_t)sizeof(T);
            return fmt::format("element {} of {}", element, n_);
        }
        return "";
    }

    static std::vector<double> widened(const std::vector<T>& x) {
        std::vector<double> y(x.size());
        std::transform(x.begin(), x.end(), y.begin(), [](T v) {
            if constexpr (sizeof(T) == sizeof(double)) {
                return (double)v;
            } else {
                return (double)(float)v;
            }
        });
        return y;
    }

private:
    size_t bytes_in_all() const { return (size_t)(begin_ + n_ + kGuard) * sizeof(T); }

    T* memory_ = nullptr;
    int64_t n_, begin_;
    std::vector<T> uploaded_;
};

// scratch of an op, which must not rely on what it holds
using Scratch = DeviceArray<std::byte>;

}  // namespace llmc::gpu_test

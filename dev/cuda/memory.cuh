// Device memory of the shootouts: plain allocations that free themselves, and tensors between guard bands,
// whose elements are poison (every bit set: a NaN in every format) until a kernel writes them.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dev/cuda/problem.h"
#include "llmc/check.cuh"
#include "llmc/device.cuh"

namespace llmc {

class DeviceMemory {
public:
    explicit DeviceMemory(size_t bytes) : bytes_(bytes) {
        if (cudaMalloc(&data_, bytes_) == cudaSuccess) { return; }
        cudaGetLastError();  // a failed allocation must not be found again after the next launch
        size_t free_bytes = 0, total_bytes = 0;
        cudaMemGetInfo(&free_bytes, &total_bytes);
        constexpr const char* kText = "device memory: %.1f MB wanted, %.1f MB of %.1f MB free. Free some "
                                      "(see nvidia-smi) or try a smaller --shape.";
        throw Error(kExitDevice, strf(kText, bytes_ / 1e6, free_bytes / 1e6, total_bytes / 1e6));
    }
    ~DeviceMemory() { cudaFree(data_); }
    DeviceMemory(DeviceMemory&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
    DeviceMemory(const DeviceMemory&) = delete;
    std::byte* data() const { return data_; }
    size_t size() const { return bytes_; }

private:
    std::byte* data_ = nullptr;
    size_t bytes_;
};

template <typename T>
constexpr Dtype kDtypeOf = Dtype::kFp32;
template <>
inline constexpr Dtype kDtypeOf<double> = Dtype::kFp64;
template <>
inline constexpr Dtype kDtypeOf<__half> = Dtype::kFp16;
template <>
inline constexpr Dtype kDtypeOf<__nv_bfloat16> = Dtype::kBf16;

class Tensor {
public:
    Tensor(std::string name, Dtype dtype, int64_t elements)
        : name_(std::move(name)), dtype_(dtype), bytes_(elements * format_of(dtype).bytes),
          memory_(bytes_ + 2 * kGuardBytes) {
        check(cudaMemset(memory_.data(), kGuardByte, memory_.size()));
        poison();
    }
    const std::string& name() const { return name_; }
    Dtype dtype() const { return dtype_; }
    int64_t elements() const { return (int64_t)bytes_ / format_of(dtype_).bytes; }
    size_t bytes() const { return bytes_; }
    std::byte* data() const { return memory_.data() + kGuardBytes; }

    template <typename T>
    T* as() const {
        require(kDtypeOf<T> == dtype_, "Tensor::as: asked for as another type than it holds");
        return reinterpret_cast<T*>(data());
    }
    void poison() { check(cudaMemset(data(), 0xff, bytes_)); }
    void upload(const std::vector<std::byte>& raw) {
        require(raw.size() == bytes_, "Tensor::upload: another size");
        check(cudaMemcpy(data(), raw.data(), bytes_, cudaMemcpyHostToDevice));
    }
    void copy_from(const Tensor& other) {
        check(cudaMemcpy(data(), other.data(), bytes_, cudaMemcpyDeviceToDevice));
    }
    std::vector<std::byte> download() const {
        std::vector<std::byte> raw(bytes_);
        check(cudaMemcpy(raw.data(), data(), bytes_, cudaMemcpyDeviceToHost));
        return raw;
    }
    // what was written outside: "" or "dinp: written past its end, at byte +0"
    std::string damage() const {
        std::string text;
        std::vector<std::byte> band(kGuardBytes);
        for (bool behind : {false, true}) {
            std::byte* from = behind ? data() + bytes_ : memory_.data();
            check(cudaMemcpy(band.data(), from, kGuardBytes, cudaMemcpyDeviceToHost));
            check(cudaMemset(from, kGuardByte, kGuardBytes));  // mended, so that it is told once
            for (size_t i = 0; i < band.size() && text.empty(); i++) {
                if (band[i] == std::byte{kGuardByte}) { continue; }
                text = behind ? strf("%s: written past its end, at byte +%zu", name_.c_str(), i)
                              : strf("%s: written before its start, at byte -%zu", name_.c_str(),
                                     kGuardBytes - i);
            }
        }
        return text;
    }

private:
    static constexpr size_t kGuardBytes = 1024;  // keeps the tensor 256-byte aligned, as cudaMalloc's are
    static constexpr unsigned char kGuardByte = 0xa5;
    std::string name_;
    Dtype dtype_;
    size_t bytes_;
    DeviceMemory memory_;
};

// What one launch works on: the problem's outputs, its inputs, and a scratch of the size that the version
// asks for.
class TensorSet {
public:
    explicit TensorSet(const Problem& problem) {
        for (const auto& out : problem.out) {
            outputs_.emplace_back(out.name, out.dtype, out.rows * out.cols);
        }
        for (const auto& in : problem.in) {
            inputs_.emplace_back(in.name, in.dtype, (int64_t)in.values->size());
            inputs_.back().upload(encode_all(*in.values, format_of(in.dtype)));
        }
        set_scratch(0);
    }
    // the same inputs in other memory
    TensorSet(const TensorSet& other) {
        for (const auto& t : other.outputs_) { outputs_.emplace_back(t.name(), t.dtype(), t.elements()); }
        for (const auto& t : other.inputs_) {
            inputs_.emplace_back(t.name(), t.dtype(), t.elements());
            inputs_.back().copy_from(t);
        }
        set_scratch(0);
    }
    TensorSet(TensorSet&&) = default;

    void set_scratch(size_t bytes) {
        scratch_.clear();
        scratch_.emplace_back("scratch", Dtype::kFp32, (int64_t)ceil_div(bytes, sizeof(float)));
    }
    template <typename T>
    T* get(std::string_view name) const {
        for (const auto* tensors : {&outputs_, &inputs_}) {
            for (const Tensor& t : *tensors) {
                if (t.name() == name) { return t.as<T>(); }
            }
        }
        throw Error(kExitUsage, strf("TensorSet: no tensor is called %.*s", (int)name.size(), name.data()));
    }
    void* scratch() const { return scratch_.front().data(); }
    const std::vector<Tensor>& outputs() const { return outputs_; }

    // every output and the scratch; done when it returns
    void poison() {
        for (auto& t : outputs_) { t.poison(); }
        scratch_.front().poison();
        check(cudaDeviceSynchronize());
    }
    std::string damage() const {
        for (const auto* tensors : {&outputs_, &inputs_, &scratch_}) {
            for (const auto& t : *tensors) {
                if (std::string text = t.damage(); !text.empty()) { return text; }
            }
        }
        return "";
    }
    size_t bytes() const {
        size_t sum = 0;
        for (const auto* tensors : {&outputs_, &inputs_, &scratch_}) {
            for (const auto& t : *tensors) { sum += t.bytes(); }
        }
        return sum;
    }

private:
    std::vector<Tensor> outputs_, inputs_, scratch_;  // scratch_: one
};

}  // namespace llmc

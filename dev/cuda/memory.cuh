// Device memory of the shootouts: tensors between guard bands, whose elements are poison (every bit set: a NaN in every
// format) until a kernel writes them.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dev/cuda/problem.h"
#include "llmc/cuda/device.cuh"
#include "llmc/cuda/resources.cuh"

namespace llmc {

template <typename T>
constexpr Dtype kDtypeOf = Dtype::kFp32;
template <>
inline constexpr Dtype kDtypeOf<double> = Dtype::kFp64;
template <>
inline constexpr Dtype kDtypeOf<__half> = Dtype::kFp16;
template <>
inline constexpr Dtype kDtypeOf<__nv_bfloat16> = Dtype::kBf16;

// rows x cols elements; rows may lie `pad` elements further apart, and all of it `offset` elements further on
class Tensor {
public:
    // false: what nobody has written stays as it was allocated, which compute-sanitizer's initcheck then knows
    inline static bool poisons = true;
    using Raw = std::shared_ptr<const std::vector<std::byte>>;

    Tensor(std::string name, Dtype dtype, int64_t rows, int64_t cols, int pad = 0, int offset = 0)
        : name_(std::move(name)),
          dtype_(dtype),
          rows_(rows),
          cols_(cols),
          pad_(pad),
          offset_(offset),
          memory_(std::make_unique<DeviceMemory>(kGuardBytes + offset * element() + bytes() + kGuardBytes)) {
        check(cudaMemset(memory_->data(), kGuardByte, kGuardBytes + offset_ * element()));
        check(cudaMemset(data() + bytes(), kGuardByte, kGuardBytes));
        poison();
    }
    // another like it: the same place in other memory, the same `initial`; its elements are poison
    Tensor another() const {
        Tensor t(name_, dtype_, rows_, cols_, pad_, offset_);
        t.initial_ = initial_;
        return t;
    }
    const std::string& name() const { return name_; }
    int64_t stride() const { return cols_ + pad_; }  // elements
    // what lies between the rows included
    size_t bytes() const { return (size_t)(rows_ * stride()) * element(); }
    std::byte* data() const { return memory_->bytes().data() + kGuardBytes + offset_ * element(); }

    template <typename T>
    T* as() const {
        const bool fits = std::is_same_v<T, uint8_t> ? element() == 1 : kDtypeOf<T> == dtype_;
        require(fits, "Tensor::as: asked for as another type than it holds");
        return reinterpret_cast<T*>(data());
    }
    // what poison() leaves in it
    void set_initial(Raw raw) { initial_ = std::move(raw); }
    void poison() {
        if (poisons) { check(cudaMemset(data(), kPoison, bytes())); }
        if (initial_) { upload(*initial_); }
    }
    // raw: rows x cols elements, close together
    void upload(const std::vector<std::byte>& raw) {
        require(raw.size() == dense(), "Tensor::upload: another size");
        copy_rows(data(), pitch(), raw.data(), width(), cudaMemcpyHostToDevice);
    }
    void copy_from(const Tensor& other) {
        check(cudaMemcpy(data(), other.data(), bytes(), cudaMemcpyDeviceToDevice));
    }
    std::vector<std::byte> download() const {
        std::vector<std::byte> raw(dense());
        copy_rows(raw.data(), width(), data(), pitch(), cudaMemcpyDeviceToHost);
        return raw;
    }
    // what was written outside: "" or "dinp: written past its end, at byte +0"
    std::string damage() const {
        std::string text;
        std::vector<std::byte> band(kGuardBytes);
        for (bool behind : {false, true}) {
            std::byte* from = behind ? data() + bytes() : data() - kGuardBytes;
            check(cudaMemcpy(band.data(), from, kGuardBytes, cudaMemcpyDeviceToHost));
            check(cudaMemset(from, kGuardByte, kGuardBytes));  // mended, so that it is told once
            for (size_t i = 0; i < band.size() && text.empty(); i++) {
                if (band[i] == std::byte{kGuardByte}) { continue; }
                text = behind
                           ? fmt::format("{}: written past its end, at byte +{}", name_, i)
                           : fmt::format("{}: written before its start, at byte -{}", name_, kGuardBytes - i);
            }
        }
        return text.empty() ? damage_between_rows() : text;
    }

private:
    static constexpr size_t kGuardBytes = 1024;  // keeps the tensor 256-byte aligned, as cudaMalloc's are
    static constexpr unsigned char kGuardByte = 0xa5, kPoison = 0xff;

    size_t element() const { return format_of(dtype_).bytes; }
    size_t width() const { return cols_ * element(); }
    size_t pitch() const { return stride() * element(); }
    size_t dense() const { return rows_ * width(); }

    void copy_rows(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                   cudaMemcpyKind kind) const {
        if (dense() == 0) { return; }
        if (pad_ == 0) {
            check(cudaMemcpy(to, from, dense(), kind));
        } else {
            check(cudaMemcpy2D(to, to_pitch, from, from_pitch, width(), rows_, kind));
        }
    }
    // a row's pad is poison, which nobody may write over
    std::string damage_between_rows() const {
        if (pad_ == 0 || dense() == 0) { return ""; }
        std::vector<std::byte> all(bytes());
        check(cudaMemcpy(all.data(), data(), bytes(), cudaMemcpyDeviceToHost));
        for (size_t i = 0; i < all.size(); i++) {
            if (i % pitch() < width() || all[i] == std::byte{kPoison}) { continue; }
            return fmt::format("{}: written behind row {}, at byte +{}", name_, i / pitch(),
                               i % pitch() - width());
        }
        return "";
    }

    std::string name_;
    Dtype dtype_;
    int64_t rows_, cols_;
    int pad_, offset_;
    std::unique_ptr<const DeviceMemory> memory_;
    Raw initial_;
};

// What one launch works on: the problem's outputs, its inputs, and a scratch of the size that the version
// asks for.
class TensorSet {
public:
    explicit TensorSet(const Problem& problem) {
        int matrices = 0;
        auto make = [&](const char* name, Dtype dtype, Extent extent, int64_t elements) {
            const bool columns = extent == Extent::kColumns;
            const int64_t rows = columns                     ? std::max<int64_t>(problem.samples, 1)
                                 : extent == Extent::kMatrix ? problem.N
                                                             : 1;
            const int pad = problem.lies_apart(extent) ? problem.form.pad * ++matrices : 0;
            return Tensor(name, dtype, rows, rows > 0 ? elements / rows : problem.C, pad,
                          problem.form.offset);
        };
        auto encoded = [](const Values& values, Dtype dtype) {
            return encode_all(*values, format_of(dtype));
        };
        for (const auto& out : problem.out) {
            outputs_.push_back(make(out.name, out.dtype, out.extent, out.rows * out.cols));
            if (!out.initial) { continue; }
            outputs_.back().set_initial(
                std::make_shared<const std::vector<std::byte>>(encoded(out.initial, out.dtype)));
        }
        for (const auto& in : problem.in) {
            inputs_.push_back(make(in.name, in.dtype, in.extent, (int64_t)in.values->size()));
            inputs_.back().upload(encoded(in.values, in.dtype));
        }
        set_scratch(0);
    }
    // the same inputs in other memory
    TensorSet(const TensorSet& other) {
        for (const auto& t : other.outputs_) { outputs_.push_back(t.another()); }
        for (const auto& t : other.inputs_) {
            inputs_.push_back(t.another());
            inputs_.back().copy_from(t);
        }
        set_scratch(0);
    }
    TensorSet(TensorSet&&) = default;

    void set_scratch(size_t bytes) {
        scratch_.clear();
        scratch_.emplace_back("scratch", Dtype::kFp32, 1, (int64_t)ceil_div(bytes, sizeof(float)));
    }
    template <typename T>
    T* get(std::string_view name) const {
        return require_tensor(name).template as<T>();
    }
    // or the tensor in whose place it is; null where there is neither
    template <typename T>
    Rows<T> rows(std::string_view name, std::string_view other = "") const {
        const Tensor* t = tensor(name) ? tensor(name) : tensor(other);
        return t ? Rows<T>{t->as<T>(), t->stride()} : Rows<T>{nullptr, 0};
    }
    std::byte* data(std::string_view name) const { return require_tensor(name).data(); }
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
    const Tensor* tensor(std::string_view name) const {
        for (const auto* tensors : {&outputs_, &inputs_}) {
            for (const Tensor& t : *tensors) {
                if (t.name() == name) { return &t; }
            }
        }
        return nullptr;
    }
    const Tensor& require_tensor(std::string_view name) const {
        if (const Tensor* t = tensor(name)) { return *t; }
        throw Error(kExitUsage, fmt::format("TensorSet: no tensor is called {}", name));
    }

    std::vector<Tensor> outputs_, inputs_, scratch_;  // scratch_: one
};

}  // namespace llmc

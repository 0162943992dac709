// safetensors files: 8 bytes with the length of a JSON header, the header (name -> type, shape, place),
// then the tensors' bytes. The public format of Hugging Face, read as strictly as its own reader does:
// every size and offset is checked, nothing overlaps, nothing is left over.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/host/files/file_io.h"

namespace llmc {

// kOther: one of known width that is not read here
enum class TensorType { kF32, kF16, kBF16, kF64, kOther };

struct SafetensorsEntry {
    std::string name;
    TensorType type = TensorType::kOther;
    std::string type_text;
    std::vector<int64_t> shape;
    int64_t elements = 0;
    uint64_t begin = 0;  // bytes from the start of the file

    std::string shape_text() const;  // "(3, 4)"
};

// A file, open for reading. Throws Error(kExitBadInput) that names file, tensor and field unless all of it
// is right: a regular file, a header of at most 32 MiB, known types, shapes whose size is that of the
// bytes, tensors side by side from the first byte behind the header to the last of the file.
class SafetensorsFile {
public:
    explicit SafetensorsFile(const std::string& path);
    const std::string& path() const { return file_.path(); }
    const std::vector<SafetensorsEntry>& entries() const { return entries_; }  // in the order of their bytes
    const SafetensorsEntry* find(std::string_view name) const;                 // null if there is none

    // elements [first, first + values.size()) as fp32, rounded from F64; not of kOther
    void read(const SafetensorsEntry& entry, int64_t first, std::span<float> values) const;

private:
    RegularFile file_;
    std::vector<SafetensorsEntry> entries_;
};

struct SafetensorsTensor {
    std::string name;
    std::vector<int64_t> shape;
};

// Replaces path atomically by a file of these tensors, all of one type (F32, F16 or BF16), in the order of their
// names, with the note {"format": "pt"} that transformers asks for. read(i, first, values) gives elements of
// the i-th of tensors, in order; values are rounded to nearest even. before and errors: as FileWriter's.
Digest write_safetensors(const std::string& path, const std::vector<SafetensorsTensor>& tensors,
                         TensorType type,
                         const std::function<void(size_t i, int64_t first, std::span<float> values)>& read,
                         const std::function<void()>& before = nullptr);

}  // namespace llmc

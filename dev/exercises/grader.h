// What grades a reader's kernel: grade.cpp calls it, watch.cpp sees each of its accesses. The kernel itself is
// compiled by g++ -fsanitize=thread, whose calls at each access go to watch.cpp instead of to that tool's runtime.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dev/cuda/bounds.h"

namespace llmc::exercise {

// What can be wrong, in the order in which it is said: what comes first mostly explains what follows. kNote: nothing is.
enum class Kind {
    kEndless,
    kBounds,
    kAlignment,
    kBarrier,
    kRace,
    kUninitialised,
    kFailure,
    kUnwritten,
    kResult,
    kTraffic,
    kNote
};
inline constexpr const char* kKindNames[] = {"endless",      "out of bounds", "misaligned", "barrier",
                                             "race",         "uninitialised", "failure",    "not written",
                                             "wrong result", "traffic",       "note"};

struct Finding {
    Kind kind;
    std::string text;  // {line:X}: in the place of the line that address X of the program is of
};

// a tensor in memory that ends where nobody may touch
struct Tensor {
    std::string name;
    std::byte* data;
    int64_t rows, cols;
    int element;       // bytes
    bool input;        // a kernel only reads it
    size_t asked = 0;  // bytes that warps asked for or stored, in sectors of 32

    size_t bytes() const { return (size_t)(rows * cols * element); }
};

// ---- watch.cpp

// From now on. What cannot go on, as its CPU time is used up (SIGXCPU), gives `last` a finding, and the process ends.
void start_watching(void (*last)(const Finding&));
Tensor& add_tensor(const std::string& name, int64_t rows, int64_t cols, int element, bool input);
void remove_tensors();
std::vector<Tensor>& tensors();
Tensor* find_tensor(std::string_view name);  // or null
std::vector<Finding>& findings();

// ---- of the reader's file, by the call that exercise.pl adds to it

struct Call {
    Dtype dtype;
    int64_t N;
    int C, T;
    float eps;
    int block;

    template <typename T>
    T* get(const char* name) const {
        Tensor* t = find_tensor(name);
        return t == nullptr ? nullptr : reinterpret_cast<T*>(t->data);
    }
};
void call(const Call& c);
size_t scratch_bytes(const Call& c);

}  // namespace llmc::exercise

// Types and numbers that interfaces name, in plain C++: a .h that includes them compiles where CUDA is not installed.
#pragma once
#include <type_traits>

typedef struct CUstream_st* cudaStream_t;  // by its declaration alone

namespace llmc {

constexpr int kWarp = 32;
constexpr int kLineBytes = 128;  // what memory moves together

template <typename A, typename B>
constexpr std::common_type_t<A, B> ceil_div(A a, B b) {
    return (a + b - 1) / b;
}

class Branch;  // resources.cuh: a stream beside another one

// What sums and statistics over elements of T are held in: acc_t<T> is double for double, else float.
template <typename T>
struct Accumulator {
    using type = float;
};
template <>
struct Accumulator<double> {
    using type = double;
};
template <typename T>
using acc_t = typename Accumulator<T>::type;

}  // namespace llmc

// Types that interfaces name, in plain C++: a .h that includes them compiles where CUDA is not installed.
#pragma once

typedef struct CUstream_st* cudaStream_t;  // by its declaration alone

namespace llmc {

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

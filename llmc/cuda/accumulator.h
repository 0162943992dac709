// What sums and statistics over elements of T are held in: acc_t<T> is double for double, else float.
// Plain C++, for kernels and for host code alike.
#pragma once

namespace llmc {

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

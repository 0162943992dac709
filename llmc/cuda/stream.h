// cudaStream_t by its declaration alone, so that an op's .h compiles where CUDA is not installed.
#pragma once

typedef struct CUstream_st* cudaStream_t;

namespace llmc {
class Branch;  // branch.cuh: a stream beside another one
}

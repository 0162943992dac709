// CUDA's own header as the host reads it: for a GPU it has PTX, which rewrite.pl does not see.
#pragma once
#pragma push_macro("__CUDA_ARCH__")
#undef __CUDA_ARCH__
#include_next <cuda_fp8.h>
#pragma pop_macro("__CUDA_ARCH__")

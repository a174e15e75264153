// Asynchronous copies, done at once.
#pragma once
#include "optiml_cuda.h"

OPTIML_INLINE void __pipeline_memcpy_async(void *to, const void *from, size_t bytes, size_t zeros = 0) {
    optiml::copy(to, from, bytes - zeros);
    if (zeros) optiml::fill(static_cast<char *>(to) + (bytes - zeros), 0, zeros);
}
OPTIML_INLINE void __pipeline_commit() {}
OPTIML_INLINE void __pipeline_wait_prior(size_t) {}

// Asynchronous copies, which arrive when they are waited for.
#pragma once
#include "optiml_cuda.h"

OPTIML_INLINE void __pipeline_memcpy_async(void *to, const void *from, size_t bytes, size_t zeros = 0) {
    optiml_copy_put(to, from, bytes, bytes - zeros);
}
OPTIML_INLINE void __pipeline_commit() { optiml_copy_close(); }
OPTIML_INLINE void __pipeline_wait_prior(size_t left) { optiml::wait_for_copies(static_cast<unsigned>(left)); }

// What instrumented kernel code and the runtime agree on. Included by both sides: plain C types only.
#pragma once
#include <cstddef>
#include <cstdint>

struct alignas(4) optiml_uint3 {
    unsigned x, y, z;
};

enum optiml_warp_op {
    OPTIML_SYNC,
    OPTIML_SHFL_IDX,
    OPTIML_SHFL_UP,
    OPTIML_SHFL_DOWN,
    OPTIML_SHFL_XOR,
    OPTIML_BALLOT,
    OPTIML_MATCH_ANY,
    OPTIML_MATCH_ALL,
    OPTIML_REDUCE_ADD,
    OPTIML_REDUCE_MIN_U,
    OPTIML_REDUCE_MAX_U,
    OPTIML_REDUCE_MIN_S,
    OPTIML_REDUCE_MAX_S,
    OPTIML_REDUCE_AND,
    OPTIML_REDUCE_OR,
    OPTIML_REDUCE_XOR,
};

enum optiml_block_op { OPTIML_BLOCK_SYNC, OPTIML_BLOCK_COUNT, OPTIML_BLOCK_AND, OPTIML_BLOCK_OR };

extern "C" {
// Waits for every live thread of the block; gives the reduction of `predicate` over them.
int optiml_barrier(int op, int predicate, int line, const char *file);
// Meets the live lanes of `mask` and gives this lane's result. `argument`: source lane, delta or lane mask.
uint64_t optiml_warp(int op, unsigned mask, uint64_t value, int argument, int width, int line, const char *file);
// `mma.m16n8` of a whole warp: `factors` are this lane's four registers of the first matrix and two of the second, `sums` its four.
enum { OPTIML_TF32, OPTIML_F16, OPTIML_BF16 };
void optiml_matrix_product(int kind, float *sums, const uint32_t *factors, int line, const char *file);
// The lanes that reach this place together.
unsigned optiml_activemask(int line, const char *file);
// A thread leaves its kernel. Barriers in [first, from) lie behind it.
void optiml_leave(int from, int first, const char *file);
void optiml_fence(void);
void optiml_fence_block(void);
// Asynchronous copies of a thread, which arrive as late as they may: put them by, close their group, take out the next that
// must have arrived with at most `left` closed groups under way (0: there is none). `given` bytes are copied, the rest are zeros.
void optiml_copy_put(void *to, const void *from, size_t bytes, size_t given);
void optiml_copy_close(void);
int optiml_copy_take(unsigned left, void **to, const void **from, size_t *bytes, size_t *given);
void optiml_pause(void);
// `slot` is one static per declaration and instantiation; 0 until the runtime has given it a place.
void *optiml_shared(unsigned *slot, size_t bytes, size_t element, const char *name, int line);
void *optiml_dynamic_shared(size_t element, const char *name, int line);
unsigned optiml_dynamic_shared_bytes(void);
// An atomic update is begin (reads the old value) and then end (writes the new one); no other thread runs between.
void optiml_atomic_begin(const void *address, void *old, size_t bytes);
void optiml_atomic_end(void *address, const void *value, size_t bytes);
// Plain accesses on behalf of library code that the compiler does not instrument.
void optiml_access(const void *address, size_t bytes, int write);
// The load that follows goes through the read-only cache, which need not see what this launch has written.
void optiml_read_only(const void *address, size_t bytes);
[[noreturn]] void optiml_assert_fail(int line);
uint64_t optiml_clock(void);
}

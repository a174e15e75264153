// Screening: every instrumented access is held against the arrays we know. Takes the place of libtsan's callbacks.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "count.h"
#include "state.h"

bool variables_written = false;

namespace {

// Each buffer lies in the middle of a slot of its own, so an index that is far off is still known to be its.
#ifndef OPTIML_SLOTS
#define OPTIML_SLOTS 66
#define OPTIML_SLOT_BITS 38
#endif
constexpr size_t SLOT_BITS = OPTIML_SLOT_BITS, SLOT = size_t{1} << SLOT_BITS, SLOTS = OPTIML_SLOTS;
char *arena = nullptr, *shared_arena = nullptr, *stack_base = nullptr;
size_t stack_bytes = 0;
struct Range {
    const char *begin, *end;
};
std::vector<Range> modules;
constexpr unsigned MOST_CONDITIONS = 4096;
uint8_t outcomes[MOST_CONDITIONS];  // of each condition: 1 it was false, 2 it was true, 4 its value was not known to the compiler

char *reserve(size_t bytes) {
    void *p = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        perror("reserve");
        _exit(3);
    }
    return static_cast<char *>(p);
}

void commit(char *begin, size_t bytes) {
    auto page = reinterpret_cast<uintptr_t>(begin) & ~uintptr_t{4095};
    if (mprotect(reinterpret_cast<void *>(page), bytes + 4096, PROT_READ | PROT_WRITE) != 0) {
        perror("commit");
        _exit(3);
    }
}

Array *locate(const char *address, int *number) {
    if (address >= arena && address < arena + SLOT * SLOTS) {
        auto k = static_cast<size_t>(address - arena) >> SLOT_BITS;
        if (k >= buffers.size()) return nullptr;
        *number = static_cast<int>(k);
        return &buffers[k];
    }
    if (address >= shared_arena && address < shared_arena + SHARED_SLOTS * SHARED_SLOT_BYTES) {
        auto k = static_cast<size_t>(address - shared_arena) / SHARED_SLOT_BYTES;
        if (k >= shared_arrays.size()) return nullptr;
        *number = SHARED_BASE + static_cast<int>(k);
        return &shared_arrays[k];
    }
    return nullptr;
}

bool in_module(const char *address, size_t bytes) {
    for (const Range &r : modules)
        if (address >= r.begin && address + bytes <= r.end) return true;
    return false;
}

// Puts the first contents on the pages of an access that nobody has touched before, and takes down who wrote which element.
void sample(Array *a, const void *pc, size_t begin, size_t bytes, int write, bool atomic) {
    static size_t pages = 0, elements = 0;
    for (size_t page = begin / PAGE; page <= (begin + bytes - 1) / PAGE; ++page) {
        if (a->pages[page]) continue;
        a->pages[page] = true;
        if (++pages > MOST_PAGES) found_last("sample_full", pc, 0, -1, 0, 0, 0, "");
        size_t end = std::min(a->bytes, (page + 1) * PAGE);
        for (size_t at = page * PAGE; at < end;) {
            size_t from = at % a->tile_bytes, count = std::min(a->tile_bytes - from, end - at);
            memcpy(a->base + at, a->tile + from, count);
            at += count;
        }
    }
    bool unwritten = a->flags & BUFFER_UNWRITTEN;
    if (!write && !unwritten) return;
    for (size_t e = begin / a->element; e <= (begin + bytes - 1) / a->element; ++e) {
        auto known = a->writers.find(e);
        if ((!write || atomic) && unwritten && known == a->writers.end())
            found("uninitialised", pc, 0, static_cast<int>(a - buffers.data()), static_cast<long long>(e), static_cast<long long>(bytes), write, "");
        if (!write) continue;
        unsigned thread = (current->thread.z * block_dimension.y + current->thread.y) * block_dimension.x + current->thread.x;
        if (known == a->writers.end()) {
            if (++elements > MOST_ELEMENTS) found_last("sample_full", pc, 0, -1, 0, 0, 0, "");
            a->writers[e] = {sampled_block, thread, false, atomic};
            continue;
        }
        Writer &w = known->second;
        w.several = w.several || w.block != sampled_block || w.thread != thread;
        w.atomic = w.atomic || atomic;
        w.block = sampled_block, w.thread = thread;
    }
}

long long floor_divide(long long a, long long b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }

__attribute__((noinline)) void look(const void *pc, const char *address, size_t bytes, int write, bool aligned, bool atomic) {
    int number = -1;
    Array *a = locate(address, &number);
    if (!a) {
        if (!in_module(address, bytes))
            found_last("out_of_bounds", pc, 0, -1, 0, static_cast<long long>(bytes), write, "nowhere");
        if (write) variables_written = true;
        return;
    }
    long long offset = address - a->base;
    auto element = static_cast<long long>(a->element);
    auto size = static_cast<long long>(bytes);
    if (offset < 0 || offset + size > static_cast<long long>(a->bytes)) {
        // The first byte outside says which element is meant.
        long long outside = offset >= 0 && offset < static_cast<long long>(a->bytes) ? static_cast<long long>(a->bytes) : offset;
        found_last(a->shared ? "shared_out_of_bounds" : "out_of_bounds", pc, 0, number, floor_divide(outside, element), size,
                   write, "");
    }
    if (aligned && (reinterpret_cast<uintptr_t>(address) & (bytes - 1)))
        found_last("crash", pc, 0, number, offset / element, size, write, "misaligned");
    auto begin = static_cast<size_t>(offset);
    if (begin + bytes > a->touched) a->touched = begin + bytes;
    if (write && (a->flags & BUFFER_INPUT)) found("input_written", pc, 0, number, offset / element, size, write, "");
    if (a->tile) sample(a, pc, begin, bytes, write, atomic);
    if (a->written) {
        uint8_t *w = a->written + begin;
        if (!write || atomic) {
            for (size_t i = 0; i < bytes; ++i) {
                if (w[i] || (a->shared && job.unwritten_shared)) continue;
                found("uninitialised", pc, 0, number, (offset + static_cast<long long>(i)) / element, size, write, "");
                break;
            }
        }
        if (write) memset(w, launch_mark, bytes);
    }
    if (a->sectors[0]) {
        for (size_t k = begin / 32; k <= (begin + bytes - 1) / 32; ++k) {
            if (!write || atomic) a->sectors[0][k] = 1;
            if (write) a->sectors[1][k] = 1;
        }
    }
    if (counting) count_access(pc, number, begin, bytes, write, atomic);
}

// Most accesses are to a thread's own variables: they must not pay for what is kept of the others.
inline void check(const void *pc, const void *where, size_t bytes, int write, bool aligned, bool atomic) {
    auto *address = static_cast<const char *>(where);
    if (static_cast<size_t>(address - stack_base) < stack_bytes || !current || bytes == 0) return;
    look(pc, address, bytes, write, aligned, atomic);
}

}  // namespace

void hook_setup() {
    arena = reserve(SLOT * SLOTS);
    shared_arena = reserve(SHARED_SLOTS * SHARED_SLOT_BYTES);
}

// Each job's process inherits the stacks: their guard pages take a system call for each thread.
void hook_prepare() {
    size_t most = 0;
    for (const Launch &launch : job.launches)
        most = std::max(most, size_t{launch.block.x} * launch.block.y * launch.block.z);
    if (most) hook_stacks(nullptr, STACK_BYTES, most);
}

char *hook_buffer(size_t bytes, size_t number) {
    if (number >= SLOTS - 2 || bytes > SLOT / 2) _exit(3);
    char *base = arena + number * SLOT + SLOT / 2;
    commit(base, bytes);
    return base;
}

char *hook_sampled_buffer(size_t bytes, size_t number, size_t apart) {
    if (number >= SLOTS - 2 || bytes > SLOT / 4 || apart > SLOT / 4) _exit(3);
    char *base = arena + number * SLOT + SLOT / 4 + apart;
    commit(base, bytes);
    return base;
}

void hook_release_buffer(char *base, size_t bytes) {
    auto page = reinterpret_cast<uintptr_t>(base) & ~uintptr_t{4095};
    madvise(reinterpret_cast<void *>(page), bytes + 4096, MADV_DONTNEED);
    mprotect(reinterpret_cast<void *>(page), bytes + 4096, PROT_NONE);
}

char *hook_shared(size_t bytes, size_t number) {
    char *base = shared_arena + number * SHARED_SLOT_BYTES + SHARED_SLOT_BYTES / 2;
    commit(base, bytes);
    return base;
}

char *hook_stacks(char *, size_t bytes_each, size_t count) {
    if (stack_base && stack_bytes >= bytes_each * count) return stack_base;
    if (stack_base) munmap(stack_base, stack_bytes);
    stack_bytes = bytes_each * count;
    stack_base = reserve(stack_bytes);
    // The lowest page of each stack stays without rights: one that overflows crashes instead of writing its neighbour's.
    for (size_t i = 0; i < count; ++i)
        mprotect(stack_base + i * bytes_each + 4096, bytes_each - 4096, PROT_READ | PROT_WRITE);
    return stack_base;
}

void hook_block_begin() {
    for (Array &a : shared_arrays) {
        if (!a.bytes) continue;
        memset(a.written, 0, a.bytes);
        memset(a.base, 0xff, a.bytes);  // a NaN as float: what is used before it is written shows
    }
}

void hook_block_end() {
    if (counting) count_block();
}

void hook_launch_end() { count_launch_end(); }

bool hook_enough() { return false; }
void hook_collect() {}
void hook_fiber_start(Fiber &) {}
void hook_fiber_end(Fiber &) {}
void hook_to(Fiber *) {}
void hook_release(void *) {}
void hook_acquire(void *) {}
bool hook_more_blocks() {
    count_launch_block();
    return true;
}
void hook_module(const char *begin, const char *end) { modules.push_back({begin, end}); }
void hook_report(FILE *out) {
    for (unsigned id = 0; id < MOST_CONDITIONS; ++id)
        if (outcomes[id]) fprintf(out, "seen %u %d\n", id, outcomes[id]);
    count_report(out);
}

void hook_atomic_begin(const void *pc, const void *address, void *old, size_t bytes) {
    check(pc, address, bytes, 1, true, true);
    memcpy(old, address, bytes);
}

void hook_atomic_end(const void *, void *address, const void *value, size_t bytes) { memcpy(address, value, bytes); }

void hook_access(const void *pc, const void *address, size_t bytes, int write) {
    check(pc, address, bytes, write, false, false);
}

// Of what a block of the same launch wrote before, this load may give what stood there until then. The load itself is checked elsewhere.
void hook_read_only(const void *pc, const void *where, size_t bytes) {
    auto *address = static_cast<const char *>(where);
    int number = -1;
    const Array *a = current ? locate(address, &number) : nullptr;
    if (!a || a->shared || address < a->base || address + bytes > a->base + a->bytes) return;
    auto begin = static_cast<size_t>(address - a->base);
    bool stale = false;
    for (size_t at = begin; at < begin + bytes && !stale; ++at)
        stale = a->tile ? a->writers.count(at / a->element) > 0 : a->written && a->written[at] == launch_mark;
    if (stale) found("stale_read", pc, 0, number, static_cast<long long>(begin / a->element), static_cast<long long>(bytes), 0, "");
}

int hook_locate(const void *, long long *) { return -1; }

#define PC __builtin_return_address(0)
#define ACCESS(SIZE)                                                                                     \
    void __tsan_read##SIZE(void *p) { check(PC, p, SIZE, 0, true, false); }                              \
    void __tsan_write##SIZE(void *p) { check(PC, p, SIZE, 1, true, false); }                             \
    void __tsan_unaligned_read##SIZE(void *p) { check(PC, p, SIZE, 0, false, false); }                   \
    void __tsan_unaligned_write##SIZE(void *p) { check(PC, p, SIZE, 1, false, false); }                  \
    void __tsan_volatile_read##SIZE(void *p) { check(PC, p, SIZE, 0, true, false); }                     \
    void __tsan_volatile_write##SIZE(void *p) { check(PC, p, SIZE, 1, true, false); }                    \
    void __tsan_unaligned_volatile_read##SIZE(void *p) { check(PC, p, SIZE, 0, false, false); }          \
    void __tsan_unaligned_volatile_write##SIZE(void *p) { check(PC, p, SIZE, 1, false, false); }         \
    void __tsan_read_write##SIZE(void *p) { check(PC, p, SIZE, 0, true, false), check(PC, p, SIZE, 1, true, false); } \
    void __tsan_unaligned_read_write##SIZE(void *p) { check(PC, p, SIZE, 0, false, false), check(PC, p, SIZE, 1, false, false); }
#define ATOMIC(BITS, TYPE)                                                                               \
    TYPE __tsan_atomic##BITS##_load(const volatile TYPE *p, int) {                                       \
        check(PC, const_cast<TYPE *>(p), sizeof(TYPE), 0, true, false);                                  \
        return *p;                                                                                       \
    }                                                                                                    \
    void __tsan_atomic##BITS##_store(volatile TYPE *p, TYPE v, int) {                                    \
        check(PC, const_cast<TYPE *>(p), sizeof(TYPE), 1, true, false);                                  \
        *p = v;                                                                                          \
    }                                                                                                    \
    ATOMIC_RMW(BITS, TYPE, exchange, v)                                                                  \
    ATOMIC_RMW(BITS, TYPE, fetch_add, static_cast<TYPE>(old + v))                                        \
    ATOMIC_RMW(BITS, TYPE, fetch_sub, static_cast<TYPE>(old - v))                                        \
    ATOMIC_RMW(BITS, TYPE, fetch_and, static_cast<TYPE>(old & v))                                        \
    ATOMIC_RMW(BITS, TYPE, fetch_or, static_cast<TYPE>(old | v))                                         \
    ATOMIC_RMW(BITS, TYPE, fetch_xor, static_cast<TYPE>(old ^ v))                                        \
    ATOMIC_RMW(BITS, TYPE, fetch_nand, static_cast<TYPE>(~(old & v)))                                    \
    int __tsan_atomic##BITS##_compare_exchange_strong(volatile TYPE *p, TYPE *expected, TYPE v, int, int) { \
        check(PC, const_cast<TYPE *>(p), sizeof(TYPE), 1, true, true);                                   \
        TYPE old = *p;                                                                                   \
        if (old == *expected) return *p = v, 1;                                                          \
        *expected = old;                                                                                 \
        return 0;                                                                                        \
    }                                                                                                    \
    int __tsan_atomic##BITS##_compare_exchange_weak(volatile TYPE *p, TYPE *expected, TYPE v, int, int) { \
        check(PC, const_cast<TYPE *>(p), sizeof(TYPE), 1, true, true);                                   \
        TYPE old = *p;                                                                                   \
        if (old == *expected) return *p = v, 1;                                                          \
        *expected = old;                                                                                 \
        return 0;                                                                                        \
    }                                                                                                    \
    TYPE __tsan_atomic##BITS##_compare_exchange_val(volatile TYPE *p, TYPE expected, TYPE v, int, int) { \
        check(PC, const_cast<TYPE *>(p), sizeof(TYPE), 1, true, true);                                   \
        TYPE old = *p;                                                                                   \
        if (old == expected) *p = v;                                                                     \
        return old;                                                                                      \
    }
#define ATOMIC_RMW(BITS, TYPE, NAME, VALUE)                                                              \
    TYPE __tsan_atomic##BITS##_##NAME(volatile TYPE *p, TYPE v, int) {                                   \
        check(PC, const_cast<TYPE *>(p), sizeof(TYPE), 1, true, true);                                   \
        if (current && ++current->atomics % 256 == 0) optiml_pause();                                    \
        TYPE old = *p;                                                                                   \
        *p = VALUE;                                                                                      \
        return old;                                                                                      \
    }

extern "C" {
// Called by kernels whose conditions are marked (condition_marks.py).
void optiml_seen(unsigned id, int outcome, int constant) {
    if (id < MOST_CONDITIONS) outcomes[id] |= static_cast<uint8_t>((outcome ? 2 : 1) | (constant ? 0 : 4));
}
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
ATOMIC(8, uint8_t)
ATOMIC(16, uint16_t)
ATOMIC(32, uint32_t)
ATOMIC(64, uint64_t)
void __tsan_atomic_thread_fence(int) {}
void __tsan_atomic_signal_fence(int) {}
void __tsan_read_range(void *p, size_t n) { check(PC, p, n, 0, false, false); }
void __tsan_write_range(void *p, size_t n) { check(PC, p, n, 1, false, false); }
void __tsan_init(void) {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit(void) {}
void __tsan_vptr_update(void **p, void *) { check(PC, p, sizeof(void *), 1, false, false); }
void __tsan_vptr_read(void **) {}
void *__tsan_memcpy(void *d, const void *s, size_t n) {
    check(PC, s, n, 0, false, false);
    check(PC, d, n, 1, false, false);
    return memcpy(d, s, n);
}
void *__tsan_memmove(void *d, const void *s, size_t n) {
    check(PC, s, n, 0, false, false);
    check(PC, d, n, 1, false, false);
    return memmove(d, s, n);
}
void *__tsan_memset(void *d, int c, size_t n) {
    check(PC, d, n, 1, false, false);
    return memset(d, c, n);
}
}

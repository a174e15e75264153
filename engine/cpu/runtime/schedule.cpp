// Runs the threads of a block as fibres: who runs next, who waits where, and what a wait that cannot end means.
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstring>

#include "state.h"

OPTIML_THREAD Fiber *current = nullptr;
int current_step = 0;
uint8_t launch_mark = 0;
bool counting = false;
uint64_t barrier_warps = 0, sampled_block = 0;
optiml_uint3 thread_index, block_index, block_dimension, grid_dimension;

namespace {

constexpr int WARP = 32;
constexpr uint64_t POISON = 0x7fedbeef7fedbeefULL;  // what a shuffle reads from a lane that is not there

std::vector<Fiber> fibers;
Context scheduler;
char *stacks = nullptr;
size_t stack_count = 0;
void (*kernel_entry)(void **) = nullptr;
void **kernel_arguments = nullptr;
uint64_t random_state = 1;

// Each generation of a barrier orders through an address of its own: one for all would hide races.
constexpr size_t RING = size_t{1} << 18;
char ring[RING];
size_t ring_next = 0;
char launch_end[1];
std::vector<char *> warp_variables;  // [warp][lowest lane of the mask]
char *block_variable = ring;

AsyncCopy *free_copies = nullptr;

// Not from the heap, and mapped by no interceptor: ThreadSanitizer would take what one thread leaves and another finds for a race.
AsyncCopy *free_copy() {
    constexpr size_t AT_ONCE = 4096;
    if (!free_copies) {
        long p = syscall(SYS_mmap, nullptr, AT_ONCE * sizeof(AsyncCopy), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == -1) _exit(3);
        auto *made = reinterpret_cast<AsyncCopy *>(p);
        for (size_t i = 0; i < AT_ONCE; ++i) made[i].next = free_copies, free_copies = &made[i];
    }
    AsyncCopy *copy = free_copies;
    free_copies = copy->next;
    return copy;
}

char *fresh_variable() {
    ring_next = (ring_next + 8) % RING;
    return ring + ring_next;
}

void suspend(Wait wait, int line, const char *file) {
    Fiber &self = *current;
    self.wait = wait;
    self.line = line;
    self.file = file;
    hook_to(nullptr);
    context_switch(self.context, scheduler);
}

void fiber_main() {
    current->leave_from = INT_MAX;
    kernel_entry(kernel_arguments);
    hook_release(launch_end);
    suspend(Wait::Done, 0, "");
}

void resume(Fiber &fiber) {
    current = &fiber;
    thread_index = fiber.thread;
    fiber.wait = Wait::Run;
    hook_to(&fiber);
    context_switch(scheduler, fiber.context);
    current = nullptr;
}

bool same_place(const Fiber &a, const Fiber &b) { return a.line == b.line && std::strcmp(a.file, b.file) == 0; }

void shuffle(std::vector<int> &order) {
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[next_random() % i]);
}

void arrange(std::vector<int> &order, int count) {
    order.resize(static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) order[static_cast<size_t>(i)] = job.order == 1 ? count - 1 - i : i;
    if (job.order >= 2) shuffle(order);
}

int source_lane(int op, int lane, int argument, int width) {
    if (width <= 0 || width > WARP) width = WARP;
    int base = lane & ~(width - 1);
    int source = lane;
    switch (op) {
    case OPTIML_SHFL_IDX: return base + (argument & (width - 1));
    case OPTIML_SHFL_UP: source = lane - argument; return source < base ? lane : source;
    case OPTIML_SHFL_DOWN: source = lane + argument; return source >= base + width || source < 0 ? lane : source;
    case OPTIML_SHFL_XOR: source = lane ^ argument; return source >= base + width ? lane : source & (WARP - 1);
    default: return lane;
    }
}

// Gives every lane of a complete group its result.
void resolve(std::vector<Fiber *> &group) {
    Fiber *lanes[WARP] = {};
    unsigned present = 0;
    for (Fiber *f : group) {
        lanes[f->lane] = f;
        present |= 1u << f->lane;
    }
    int op = group.front()->op;
    uint64_t folded = 0;
    bool first = true;
    for (Fiber *f : group) {
        auto u = static_cast<uint32_t>(f->value);
        auto a = static_cast<uint32_t>(folded);
        switch (op) {
        case OPTIML_BALLOT: folded |= (f->value ? uint64_t{1} : 0) << f->lane; break;
        case OPTIML_REDUCE_ADD: folded = static_cast<uint32_t>(a + u); break;
        case OPTIML_REDUCE_MIN_U: folded = first ? u : std::min(a, u); break;
        case OPTIML_REDUCE_MAX_U: folded = first ? u : std::max(a, u); break;
        case OPTIML_REDUCE_MIN_S:
            folded = first ? u : static_cast<uint32_t>(std::min(static_cast<int32_t>(a), static_cast<int32_t>(u)));
            break;
        case OPTIML_REDUCE_MAX_S:
            folded = first ? u : static_cast<uint32_t>(std::max(static_cast<int32_t>(a), static_cast<int32_t>(u)));
            break;
        case OPTIML_REDUCE_AND: folded = first ? u : a & u; break;
        case OPTIML_REDUCE_OR: folded = a | u; break;
        case OPTIML_REDUCE_XOR: folded = a ^ u; break;
        case OPTIML_MATCH_ALL:
            folded = first || (folded && f->value == group.front()->value) ? present : 0;
            break;
        default: break;
        }
        first = false;
    }
    for (Fiber *f : group) {
        switch (op) {
        case OPTIML_SYNC: f->result = present; break;
        case OPTIML_SHFL_IDX:
        case OPTIML_SHFL_UP:
        case OPTIML_SHFL_DOWN:
        case OPTIML_SHFL_XOR: {
            Fiber *from = lanes[source_lane(op, f->lane, f->argument, f->width)];
            f->result = from ? from->value : POISON;
            break;
        }
        case OPTIML_MATCH_ANY: {
            f->result = 0;
            for (Fiber *other : group)
                if (other->value == f->value) f->result |= uint64_t{1} << other->lane;
            break;
        }
        default: f->result = folded;
        }
    }
    for (Fiber *f : group) f->wait = Wait::Run;
}

// Completes what can be completed among the lanes [begin, end) of one warp. True if a lane may go on.
bool resolve_warp(int begin, int end) {
    bool any = false;
    for (int i = begin; i < end; ++i) {
        Fiber &f = fibers[static_cast<size_t>(i)];
        if (f.wait != Wait::Warp) continue;
        std::vector<Fiber *> group;
        bool complete = true;
        for (int j = begin; j < end; ++j) {
            Fiber &g = fibers[static_cast<size_t>(j)];
            if (!(f.mask >> g.lane & 1) || g.wait == Wait::Done) continue;
            if (g.wait == Wait::Warp && g.mask == f.mask) {
                if (g.op != f.op)
                    found_last("barrier_divergence", nullptr, f.line, -1, g.line, 0, 0, "warp_op");
                group.push_back(&g);
            } else {
                complete = false;
            }
        }
        if (!complete) continue;
        int lowest = __builtin_ctz(f.mask);
        resolve(group);
        warp_variables[static_cast<size_t>(f.warp * WARP + lowest)] = fresh_variable();
        any = true;
    }
    return any;
}

// Lanes that ask who is with them: those that wait at the same place when no lane of the warp can go on.
bool resolve_active(int begin, int end) {
    for (int i = begin; i < end; ++i) {
        Fiber &f = fibers[static_cast<size_t>(i)];
        if (f.wait != Wait::Active) continue;
        unsigned mask = 0;
        std::vector<Fiber *> group;
        for (int j = i; j < end; ++j) {
            Fiber &g = fibers[static_cast<size_t>(j)];
            if (g.wait == Wait::Active && same_place(f, g)) {
                mask |= 1u << g.lane;
                group.push_back(&g);
            }
        }
        for (Fiber *g : group) {
            g->result = mask;
            g->wait = Wait::Run;
        }
        return true;
    }
    return false;
}

// A barrier is legal when every live thread waits at the same place, and no thread has gone past that place and left.
// A thread that left by a `return` above the barrier (or in a loop that holds it) is an early return, which is legal
// since sm_70. One that ran off the end of the kernel, or returned below the barrier, has skipped it.
void check_barrier(const Fiber &first) {
    for (Fiber &f : fibers) {
        current = &f;
        if (f.wait == Wait::Block && !same_place(f, first))
            found_last("barrier_divergence", nullptr, first.line, -1, f.line, 0, 0, "two_barriers");
        if (f.wait != Wait::Done) continue;
        bool ended = f.leave_from == INT_MAX;
        bool inside = std::strcmp(f.leave_file, first.file) == 0 && first.line >= f.leave_first &&
                      first.line < f.leave_from;
        if (ended || inside) found_last("barrier_divergence", nullptr, first.line, -1, 0, 0, 0, "skipped");
    }
    current = nullptr;
}

bool resolve_block() {
    Fiber *first = nullptr;
    for (Fiber &f : fibers) {
        if (f.wait == Wait::Done) continue;
        if (f.wait != Wait::Block) return false;
        if (!first) first = &f;
    }
    if (!first) return false;
    check_barrier(*first);
    int count = 0, all = 1, any = 0, warp = -1;
    for (Fiber &f : fibers) {
        if (f.wait != Wait::Block) continue;
        count += f.value != 0;
        all &= f.value != 0;
        any |= f.value != 0;
        if (f.warp != warp) ++barrier_warps;
        warp = f.warp;
    }
    for (Fiber &f : fibers) {
        if (f.wait != Wait::Block) continue;
        f.result = static_cast<uint64_t>(f.op == OPTIML_BLOCK_COUNT ? count : f.op == OPTIML_BLOCK_AND ? all : any);
        f.wait = Wait::Run;
    }
    block_variable = fresh_variable();
    return true;
}

[[noreturn]] void deadlock() {
    Fiber *waiting = nullptr, *other = nullptr;
    for (Fiber &f : fibers) {
        if (f.wait == Wait::Done) continue;
        if (!waiting || (waiting->wait != Wait::Warp && f.wait == Wait::Warp)) waiting = &f;
    }
    for (Fiber &f : fibers)
        if (f.wait != Wait::Done && !same_place(f, *waiting)) other = &f;
    current = waiting;
    found_last("deadlock", nullptr, waiting->line, -1, other ? other->line : 0, 0, 0,
               waiting->wait == Wait::Warp ? "warp" : "block");
}

void run_block(int threads) {
    int warps = (threads + WARP - 1) / WARP;
    std::vector<int> warp_order, lane_order;
    for (;;) {
        bool progress = false, yielded = false;
        arrange(warp_order, warps);
        for (int w : warp_order) {
            int begin = w * WARP, end = std::min(threads, begin + WARP);
            bool again = true;
            while (again) {
                again = false;
                arrange(lane_order, end - begin);
                for (int l : lane_order) {
                    Fiber &f = fibers[static_cast<size_t>(begin + l)];
                    if (f.wait != Wait::Run && f.wait != Wait::Yield) continue;
                    resume(f);
                    if (hook_enough()) finish(0);
                    if (f.wait == Wait::Yield) {
                        yielded = true;
                    } else {
                        progress = true;
                    }
                }
                if (resolve_warp(begin, end) || resolve_active(begin, end)) again = progress = true;
            }
        }
        if (resolve_block()) continue;
        if (progress || yielded) continue;
        break;
    }
    for (Fiber &f : fibers)
        if (f.wait != Wait::Done) deadlock();
}

}  // namespace

uint64_t next_random() {  // splitmix64
    uint64_t z = random_state += 0x9e3779b97f4a7c15ULL;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
}

void run_launch(const Launch &launch, void (*entry)(void **), void **arguments) {
    launch_mark = launch_mark == GIVEN - 1 ? 1 : launch_mark + 1;
    int threads = static_cast<int>(launch.block.x * launch.block.y * launch.block.z);
    auto count = static_cast<size_t>(threads);
    kernel_entry = entry;
    kernel_arguments = arguments;
    block_dimension = launch.block;
    grid_dimension = launch.grid;
    random_state = 0x5eed0000ULL + static_cast<uint64_t>(job.order) * 7919u;
    long long blocks = static_cast<long long>(launch.grid.x) * launch.grid.y * launch.grid.z;
    std::vector<long long> sequence = launch.sample;  // else only where the order is shuffled
    if (sequence.empty() && job.order >= 2 && blocks <= (1 << 22)) {
        sequence.resize(static_cast<size_t>(blocks));
        for (long long i = 0; i < blocks; ++i) sequence[static_cast<size_t>(i)] = i;
        for (size_t i = sequence.size(); i > 1; --i) std::swap(sequence[i - 1], sequence[next_random() % i]);
    }
    shared_arrays[0].bytes = launch.shared;
    // Blocks that are counted: all of a few, else evenly spread ones, to be scaled by the reader.
    long long every = blocks <= 16 || job.count > 1 ? 1 : blocks / 8;
    if (!launch.sample.empty()) blocks = static_cast<long long>(launch.sample.size());
    for (long long i = 0; i < blocks; ++i) {
        sampled_block = static_cast<uint64_t>(i);
        long long b = !sequence.empty() ? sequence[static_cast<size_t>(i)] : job.order == 1 ? blocks - 1 - i : i;
        block_index = {static_cast<unsigned>(b % launch.grid.x), static_cast<unsigned>(b / launch.grid.x % launch.grid.y),
                       static_cast<unsigned>(b / launch.grid.x / launch.grid.y)};
        counting = job.count && b % every == every / 2;
        if (!hook_more_blocks()) break;
        stacks = hook_stacks(stacks, STACK_BYTES, std::max(stack_count, count));
        stack_count = std::max(stack_count, count);
        hook_block_begin();
        for (Fiber &f : fibers)
            if (f.copies) *f.last_copy = free_copies, free_copies = f.copies;
        fibers.assign(count, Fiber{});
        warp_variables.assign((count + WARP - 1) / WARP * WARP, nullptr);
        for (char *&variable : warp_variables) variable = fresh_variable();
        block_variable = fresh_variable();
        for (int t = 0; t < threads; ++t) {
            Fiber &f = fibers[static_cast<size_t>(t)];
            auto u = static_cast<unsigned>(t);
            f.thread = {u % launch.block.x, u / launch.block.x % launch.block.y, u / launch.block.x / launch.block.y};
            f.lane = t % WARP;
            f.warp = t / WARP;
            context_make(f.context, stacks + static_cast<size_t>(t) * STACK_BYTES + 4096, STACK_BYTES - 4096, fiber_main);
            hook_fiber_start(f);
        }
        run_block(threads);
        for (Fiber &f : fibers) hook_fiber_end(f);
        hook_block_end();
    }
    counting = false;
    hook_acquire(launch_end);
    hook_launch_end();
    barrier_warps = 0;
}

extern "C" {

int optiml_barrier(int op, int predicate, int line, const char *file) {
    Fiber &self = *current;
    self.op = op;
    self.value = static_cast<uint64_t>(predicate != 0);
    self.atomics = 0;
    char *variable = block_variable;
    hook_release(variable);
    suspend(Wait::Block, line, file);
    hook_acquire(variable);
    return static_cast<int>(self.result);
}

uint64_t optiml_warp(int op, unsigned mask, uint64_t value, int argument, int width, int line, const char *file) {
    Fiber &self = *current;
    if (!(mask >> self.lane & 1)) found_last("barrier_divergence", nullptr, line, -1, self.lane, mask, 0, "mask");
    self.op = op;
    self.mask = mask;
    self.value = value;
    self.argument = argument;
    self.width = width;
    self.atomics = 0;
    char *variable = warp_variables[static_cast<size_t>(self.warp * WARP + __builtin_ctz(mask))];
    hook_release(variable);
    suspend(Wait::Warp, line, file);
    hook_acquire(variable);
    return self.result;
}

static float factor(int kind, uint32_t word, int half) {
    uint32_t bits = word & 0xffffe000u;  // TF32: a number's upper 19 bits
    if (kind != OPTIML_TF32) bits = (word >> 16 * half & 0xffff) << 16;
    if (kind == OPTIML_F16) {
        const uint32_t exponent = bits >> 26 & 0x1f, fraction = bits >> 16 & 0x3ff;
        if (exponent == 0) return std::ldexp(bits >> 31 ? -1.0f : 1.0f, -24) * static_cast<float>(fraction);
        bits = (bits & 0x80000000u) | (exponent == 0x1f ? 0xffu : exponent + 112) << 23 | fraction << 13;
    }
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// With w elements in a register (1, or 2 of 16 bits), lane 4g + t holds of the first matrix those from (g, wt), (g + 8, wt), (g, w(t + 4)) and
// (g + 8, w(t + 4)), of the second from (wt, g) and (w(t + 4), g), and (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1) of the sums
// (PTX ISA, "Matrix Fragments for mma.m16n8k8" and "mma.m16n8k16").
void optiml_matrix_product(int kind, float *sums, const uint32_t *factors, int line, const char *file) {
    Fiber &self = *current;
    self.turn ^= 1;
    for (int k = 0; k < 6; ++k) self.factors[self.turn][k] = factors[k];  // memmove would be a write that ThreadSanitizer sees
    optiml_warp(OPTIML_SYNC, ~0u, 0, 0, WARP, line, file);
    const Fiber *lanes = &fibers[static_cast<size_t>(self.warp * WARP)];
    const int group = self.lane / 4 * 4, pair = self.lane % 4 * 2, width = kind == OPTIML_TF32 ? 1 : 2;
    for (int e = 0; e < 4; ++e)
        for (int k = 0; k < 8; ++k) {
            const uint32_t first = lanes[group + k % 4].factors[self.turn][k / 4 * 2 + e / 2];
            const uint32_t second = lanes[(pair + e % 2) * 4 + k % 4].factors[self.turn][4 + k / 4];
            for (int half = 0; half < width; ++half) sums[e] += factor(kind, first, half) * factor(kind, second, half);
        }
}

unsigned optiml_activemask(int line, const char *file) {
    suspend(Wait::Active, line, file);
    return static_cast<unsigned>(current->result);
}

void optiml_leave(int from, int first, const char *file) {
    current->leave_from = from;
    current->leave_first = first;
    current->leave_file = file;
}

void optiml_fence(void) { current->fenced = current->fenced_block = true; }

void optiml_fence_block(void) { current->fenced_block = true; }

void optiml_copy_put(void *to, const void *from, size_t bytes, size_t given) {
    if (job.early_copies) {
        optiml_access(to, bytes, 1);
        std::memmove(to, from, std::min(bytes, given));
        std::memset(static_cast<char *>(to) + std::min(bytes, given), 0, bytes - std::min(bytes, given));
        return;
    }
    Fiber &self = *current;
    AsyncCopy *copy = free_copy();
    *copy = {to, from, bytes, std::min(bytes, given), self.closed, nullptr};
    *(self.copies ? self.last_copy : &self.copies) = copy;
    self.last_copy = &copy->next;
}

void optiml_copy_close(void) { ++current->closed; }

int optiml_copy_take(unsigned left, void **to, const void **from, size_t *bytes, size_t *given) {
    Fiber &self = *current;
    AsyncCopy *copy = self.copies;
    if (!copy || copy->group + left >= self.closed) return 0;
    *to = copy->to, *from = copy->from, *bytes = copy->bytes, *given = copy->given;
    self.copies = copy->next;
    copy->next = free_copies, free_copies = copy;
    return 1;
}

void optiml_pause(void) { suspend(Wait::Yield, 0, ""); }

void optiml_atomic_begin(const void *address, void *old, size_t bytes) {
    // A thread that spins on an atomic lets the others run, or it would spin forever.
    if (++current->atomics % 256 == 0) optiml_pause();
    hook_atomic_begin(__builtin_return_address(0), address, old, bytes);
}

void optiml_atomic_end(void *address, const void *value, size_t bytes) {
    hook_atomic_end(__builtin_return_address(0), address, value, bytes);
}

void optiml_access(const void *address, size_t bytes, int write) {
    hook_access(__builtin_return_address(0), address, bytes, write);
}

void optiml_read_only(const void *address, size_t bytes) {
    hook_read_only(__builtin_return_address(0), address, bytes);
}

[[noreturn]] void optiml_assert_fail(int line) {
    found_last("assert", __builtin_return_address(0), line, -1, 0, 0, 0, "");
}

uint64_t optiml_clock(void) {
    static uint64_t ticks = 0;
    return ticks += 16;
}
}

// The runtime's own state: the job, its arrays, the fibres of the block that runs, and what was found.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "abi.h"
#include "fiber.h"

// Flags of a buffer in the job file.
enum : int { BUFFER_INPUT = 1, BUFFER_UNWRITTEN = 2, BUFFER_SCRATCH = 4 };

// Who wrote an element of a sampled launch.
struct Writer {
    uint64_t block = 0;  // place among the sampled blocks
    unsigned thread = 0;
    bool several = false, atomic = false;
};

struct Array {
    char *base = nullptr;
    size_t bytes = 0;
    size_t element = 1;
    int flags = 0;
    size_t at = 0;  // where its first contents begin in the job's data
    bool shared = false;
    const char *name = "";  // of a shared array; buffers go by their number
    // One byte per byte: 0 nobody wrote it, GIVEN it is there from the beginning, else the launch that wrote it last. Null: of no interest.
    uint8_t *written = nullptr;
    size_t touched = 0;     // highest byte offset touched, plus one
    size_t apart = 0;       // bytes by which it lies behind an aligned address
    uint8_t *sectors[2] = {nullptr, nullptr};  // counting: one byte per 32-byte sector, [load, store]
    // Of a sampled launch alone: what stands in it at first, again and again, and what has been touched.
    const char *tile = nullptr;
    size_t tile_bytes = 0;
    std::vector<bool> pages;
    std::unordered_map<size_t, Writer> writers;  // by element
};

struct LaunchArgument {
    std::vector<unsigned char> bytes;
    std::vector<std::pair<size_t, size_t>> places;  // where in them the address of which buffer belongs
};

// What is put into a `__constant__` variable before each launch: a value, or a buffer's contents.
struct Constant {
    LaunchArgument value;
    long buffer = -1;
};

struct Launch {
    int step = 0;
    optiml_uint3 grid{}, block{};
    unsigned shared = 0;
    std::vector<LaunchArgument> arguments;
    std::vector<long long> sample;  // the blocks that run; empty: all
    bool again = false;             // behind it the buffers have their first contents once more
};

struct Job {
    std::string object, data;
    int output = -1;             // descriptor that takes the report and the outputs
    size_t at = 0, result_bytes = 0;  // this job's part of it begins there, with so many bytes for the report
    int order = 0;
    int count = 0;  // accesses: 0 no, 1 of a sample of the blocks, 2 of all
    bool sampled = false;  // buffers are filled where they are touched, and what was written is listed
    // Reads of shared memory that nothing has written are no finding; what is there depends on the order.
    bool unwritten_shared = false;
    int early_copies = 0;  // asynchronous copies arrive at once, as on no GPU
    long max_fibers = 0;  // race detection stops after so many; 0: no limit
    std::vector<Launch> launches;
    std::vector<Constant> constants;
};

enum class Wait { Run, Yield, Block, Warp, Active, Done };

// A copy that was asked for and has not arrived.
struct AsyncCopy {
    void *to;
    const void *from;
    size_t bytes, given, group;
    AsyncCopy *next;
};

struct Fiber {
    AsyncCopy *copies = nullptr, **last_copy = nullptr;  // in order
    size_t closed = 0;                                   // groups of copies
    Context context;
    void *tsan = nullptr;
    int number = 0;  // of ThreadSanitizer's
    optiml_uint3 thread{};
    int lane = 0, warp = 0;
    Wait wait = Wait::Run;
    int line = 0;
    const char *file = "";
    int op = 0, argument = 0, width = 32;
    unsigned mask = 0;
    uint64_t value = 0, result = 0;
    int leave_from = 0, leave_first = 0;
    const char *leave_file = "";
    unsigned atomics = 0;
    bool fenced = false, fenced_block = false;
    uint32_t factors[2][6] = {};  // of products of the warp, in turn: one barrier keeps a lane from the next ones until all have these
    int turn = 0;
};

extern Job job;
extern std::vector<Array> buffers;
extern std::vector<Array> shared_arrays;  // 0 is the dynamic one
extern uintptr_t base_address;  // where the kernel object was loaded
#ifdef OPTIML_HOST_THREADS  // the host has others while one runs a kernel
#define OPTIML_THREAD __thread
#else
#define OPTIML_THREAD
#endif
extern OPTIML_THREAD Fiber *current;      // null while the scheduler runs
extern int current_step;
extern uint8_t launch_mark;  // of the launch that runs, in Array::written
extern uint64_t sampled_block;  // place of the block that runs among the sampled ones
extern bool counting;  // the block that runs is one that is counted
extern bool variables_written;  // screening: a kernel wrote a variable of the program
extern uint64_t barrier_warps;  // block barriers of this launch, summed over the warps that waited
// Kernel code sees these as constants: what a fibre sees never changes while it lives.
extern optiml_uint3 thread_index asm("optiml_thread_index");
extern optiml_uint3 block_index asm("optiml_block_index");
extern optiml_uint3 block_dimension asm("optiml_block_dim");
extern optiml_uint3 grid_dimension asm("optiml_grid_dim");

// What a finding says; the Python side puts it into words.
void found(const char *kind, const void *pc, int line, int array, long long index, long long bytes, int write,
           const char *extra);
// As `found`, then gives this job up. Never returns.
[[noreturn]] void found_last(const char *kind, const void *pc, int line, int array, long long index, long long bytes,
                             int write, const char *extra);
[[noreturn]] void finish(int status);
void run_launch(const Launch &launch, void (*entry)(void **), void **arguments);
uint64_t next_random();

// What screening and race detection do differently.
void hook_setup();
void hook_prepare();  // for a job that was read, before processes of jobs are made of this one
char *hook_buffer(size_t bytes, size_t number);
char *hook_sampled_buffer(size_t bytes, size_t number, size_t apart);  // filled where it is touched
void hook_release_buffer(char *base, size_t bytes);
char *hook_shared(size_t bytes, size_t number);
char *hook_stacks(char *old, size_t bytes_each, size_t count);
void hook_block_begin();
void hook_block_end();
void hook_launch_end();
void hook_fiber_start(Fiber &fiber);
void hook_fiber_end(Fiber &fiber);
void hook_to(Fiber *fiber);  // before switching; null: to the scheduler
void hook_release(void *variable);
void hook_acquire(void *variable);
void hook_atomic_begin(const void *pc, const void *address, void *old, size_t bytes);
void hook_atomic_end(const void *pc, void *address, const void *value, size_t bytes);
void hook_access(const void *pc, const void *address, size_t bytes, int write);
void hook_read_only(const void *pc, const void *address, size_t bytes);
void hook_module(const char *begin, const char *end);
bool hook_more_blocks();
bool hook_enough();  // so much was found that the job may end
void hook_collect();  // findings that could not be booked when they were made
void hook_report(FILE *out);
int hook_locate(const void *address, long long *index);  // number of the array, or -1

// Copies that no interceptor of ThreadSanitizer's sees.
inline void quiet_copy(void *to, const void *from, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i)
        static_cast<volatile char *>(to)[i] = static_cast<const volatile char *>(from)[i];
}
inline void quiet_fill(void *to, int value, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) static_cast<volatile char *>(to)[i] = static_cast<char>(value);
}

constexpr uint8_t GIVEN = 255;  // in Array::written
constexpr size_t PAGE = 4096;
constexpr size_t STACK_BYTES = size_t{128} << 10;  // of a thread
constexpr size_t MOST_PAGES = size_t{1} << 16;    // of a sampled launch: 256 MiB
constexpr size_t MOST_ELEMENTS = size_t{1} << 18;  // that a sampled launch may write
constexpr size_t SAMPLED_ELEMENT = 16;            // bytes of the largest one
constexpr size_t SHARED_SLOTS = 256;
constexpr size_t SHARED_SLOT_BYTES = size_t{1} << 20;
constexpr size_t SHARED_LIMIT = 232448;  // bytes per block: the opt-in limit of sm_90
constexpr int SHARED_BASE = 1000;        // shared array k goes by the number SHARED_BASE + k

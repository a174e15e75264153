// Race detection: the same kernel object on the real ThreadSanitizer, each CUDA thread a fibre of its own.
#include <dlfcn.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <tuple>

#include "state.h"

extern "C" {
void *__tsan_get_current_fiber(void);
void *__tsan_create_fiber(unsigned flags);
void __tsan_switch_to_fiber(void *fiber, unsigned flags);
void __tsan_acquire(void *address);
void __tsan_release(void *address);
void __tsan_func_entry(void *pc);
void __tsan_func_exit(void);
void __tsan_read_range(void *address, size_t bytes);
void __tsan_write_range(void *address, size_t bytes);
int __tsan_get_report_data(void *report, const char **description, int *count, int *stack_count, int *mop_count,
                           int *loc_count, int *mutex_count, int *thread_count, int *unique_tid_count, void **sleep_trace,
                           unsigned long trace_size);
int __tsan_get_report_mop(void *report, unsigned long index, int *tid, void **address, int *size, int *write, int *atomic,
                          void **trace, unsigned long trace_size);
uint8_t __tsan_atomic8_exchange(volatile uint8_t *, uint8_t, int);
uint16_t __tsan_atomic16_exchange(volatile uint16_t *, uint16_t, int);
uint32_t __tsan_atomic32_exchange(volatile uint32_t *, uint32_t, int);
uint64_t __tsan_atomic64_exchange(volatile uint64_t *, uint64_t, int);

static constexpr int MAX_REPORTS = 6;
static int reports = 0;
// A report holds locks of ThreadSanitizer's, and memory given back there would be reported in turn: plain memory only.
struct Side {
    void *pc;
    int array, size, write, atomic, step;
    long long index;
};
static Side sides[MAX_REPORTS][2];
static const char *code_begin = nullptr, *code_end = nullptr;

// Where the threads of one warp store the same value by one instruction, no order of theirs changes anything (compute-sanitizer
// ranks that lower, too). The report comes before the second store: the values are compared when its thread stops.
struct Store {
    void *address;
    int size;
    char before[16];
    Side two[2];
};
struct Owner {
    long block = -1;
    int warp = -1;
};
static Store stores[64];
static int waiting = 0;
static long repeated = 0, harmless = 0;
static constexpr long MAX_REPEATED = 256, MAX_HARMLESS = 1 << 14;
static std::vector<Owner> owners;  // by ThreadSanitizer's number of the thread

static void book(const Side (&two)[2]) {
    for (int r = 0; r < reports; ++r)
        if (sides[r][0].pc == two[0].pc && sides[r][1].pc == two[1].pc && sides[r][0].array == two[0].array &&
            sides[r][0].step == two[0].step) {
            ++repeated;
            return;
        }
    if (reports >= MAX_REPORTS) return;
    for (int i = 0; i < 2; ++i) sides[reports][i] = two[i];
    ++reports;
}

static bool of_one_warp(int one, int other) {
    auto known = [](int number) { return number > 0 && static_cast<size_t>(number) < owners.size() && owners[number].block >= 0; };
    return known(one) && known(other) && current && one == current->number && owners[one].block == owners[other].block &&
           owners[one].warp == owners[other].warp;
}

static void settle() {
    for (int i = 0; i < waiting; ++i) {
        char now[16];
        quiet_copy(now, stores[i].address, static_cast<size_t>(stores[i].size));
        bool same = true;
        for (int k = 0; k < stores[i].size; ++k) same &= now[k] == stores[i].before[k];
        harmless += same;
        if (!same) book(stores[i].two);
    }
    waiting = 0;
}

// A race gives two findings, one for each side; the Python side joins them.
void __tsan_on_report(void *report) {
    const char *description = nullptr;
    int count = 0, stacks = 0, mops = 0, locations = 0, mutexes = 0, threads = 0, unique = 0;
    void *sleep[1] = {nullptr};
    __tsan_get_report_data(report, &description, &count, &stacks, &mops, &locations, &mutexes, &threads, &unique, sleep, 1);
    // Ending here would wait for a lock that the report holds: the scheduler ends the job.
    if (reports >= MAX_REPORTS) return;
    Side two[2] = {};
    int threads_of[2] = {-1, -1};
    void *places[2] = {nullptr, nullptr};
    for (int i = 0; i < mops && i < 2; ++i) {
        int size = 0, write = 0, atomic = 0;
        void *trace[8] = {};
        __tsan_get_report_mop(report, static_cast<unsigned long>(i), &threads_of[i], &places[i], &size, &write, &atomic, trace, 8);
        Side &side = two[i];
        side.array = hook_locate(places[i], &side.index);
        side.size = size;
        side.write = write;
        side.atomic = atomic;
        side.step = current_step;
        for (void *frame : trace)  // the innermost in the kernel's object
            if (!side.pc && frame >= code_begin && frame < code_end) side.pc = frame;
    }
    bool one_store = two[0].pc && two[0].pc == two[1].pc && two[0].write && two[1].write && !two[0].atomic && !two[1].atomic &&
                     places[0] == places[1] && two[0].size == two[1].size && two[0].size <= 16;
    if (one_store && waiting < 64 && of_one_warp(threads_of[0], threads_of[1])) {
        Store &store = stores[waiting++];
        store.address = places[0];
        store.size = two[0].size;
        quiet_copy(store.before, places[0], static_cast<size_t>(store.size));
        for (int i = 0; i < 2; ++i) store.two[i] = two[i];
        return;
    }
    book(two);
}
}

namespace {

void *main_fiber = nullptr;
std::vector<std::pair<void *, int>> prepared;  // fibres that no thread has taken yet, with their numbers
alignas(8) char launch_begin[8];
long started = 0, blocks_run = 0;
bool reached_limit = false;
constexpr int ACQUIRE = 2, ACQ_REL = 4;

char *map(size_t bytes, void *at) {
    void *p = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (at ? MAP_FIXED : 0), -1, 0);
    if (p == MAP_FAILED) _exit(3);
    return static_cast<char *>(p);
}

// ThreadSanitizer numbers threads in the order they are made; the main one is 0.
std::pair<void *, int> made() {
    static int number = 0;
    return {__tsan_create_fiber(0), ++number};
}

size_t rounded(size_t bytes) { return (bytes + 4095) & ~size_t{4095}; }

// Where buffers and shared arrays lie, as far as they fit: see dl_iterate_phdr below.
constexpr size_t ARENA_BYTES = size_t{16} << 30;
char *arena = nullptr;
size_t arena_used = 0;

// The system call itself: the interceptor would count mapping as a write, and look at what memory remembers.
char *map_quietly(void *at, size_t bytes, int protection, int flags) {
    long p = syscall(SYS_mmap, at, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    if (p == -1) _exit(3);
    return reinterpret_cast<char *>(p);
}

// Room in the arena, else nullptr: the system then chooses a place.
char *place(size_t bytes) {
    if (!arena || bytes > ARENA_BYTES - arena_used) return nullptr;
    char *at = arena + arena_used;
    arena_used += bytes;
    return at;
}

}  // namespace

// ThreadSanitizer looks for the module of a racy address with every report. Memory that is in none has it read /proc/self/maps
// each time, some thousands of lines where there are hundreds of fibres: 10 ms a report. The arena is shown to it as a module.
extern "C" int dl_iterate_phdr(int (*each)(dl_phdr_info *, size_t, void *), void *data) {
    static decltype(&dl_iterate_phdr) next = nullptr;  // not by an initialiser: its guard would need ThreadSanitizer, which calls this
    if (!next) next = reinterpret_cast<decltype(next)>(dlsym(RTLD_NEXT, "dl_iterate_phdr"));
    if (int ended = next(each, data)) return ended;
    if (!arena) return 0;
    ElfW(Phdr) segment{};
    segment.p_type = PT_LOAD;
    segment.p_flags = PF_R | PF_W;
    segment.p_memsz = ARENA_BYTES;
    dl_phdr_info info{};
    info.dlpi_addr = reinterpret_cast<ElfW(Addr)>(arena);
    info.dlpi_name = "/memory of the kernel";
    info.dlpi_phdr = &segment;
    info.dlpi_phnum = 1;
    return each(&info, sizeof info, data);
}

void hook_setup() {
    main_fiber = __tsan_get_current_fiber();
    arena = map_quietly(nullptr, ARENA_BYTES, PROT_NONE, MAP_NORESERVE);
}

// A fibre costs more than a millisecond and most blocks' threads do not: those of the largest job are made before any runs.
void hook_prepare() {
    long needed = 0;
    for (const Launch &launch : job.launches) {
        long threads = static_cast<long>(launch.block.x) * launch.block.y * launch.block.z;
        long long blocks = static_cast<long long>(launch.grid.x) * launch.grid.y * launch.grid.z;
        for (long long i = 0; i < blocks && (i < 2 || needed + threads <= job.max_fibers); ++i) needed += threads;
    }
    while (static_cast<long>(prepared.size()) < needed) prepared.push_back(made());
}

char *hook_buffer(size_t bytes, size_t) { return map(rounded(bytes + 1), place(rounded(bytes + 1))); }

char *hook_sampled_buffer(size_t, size_t, size_t) { _exit(3); }

// Called by the first thread that gets there: through the interceptor, mapping would count as a write of that thread.
char *hook_shared(size_t bytes, size_t) {
    char *at = place(rounded(bytes + 1));
    return map_quietly(at, rounded(bytes + 1), PROT_READ | PROT_WRITE, at ? MAP_FIXED : 0);
}

// Stacks and shared arrays are mapped anew for each block: mapping clears what ThreadSanitizer remembers of them, so
// that two blocks, which nothing orders, do not seem to share them.
char *hook_stacks(char *old, size_t bytes_each, size_t count) {
    static size_t mapped = 0;
    if (bytes_each * count > mapped) old = nullptr;  // over the old place there may be something else behind it
    mapped = bytes_each * count;
    return map(mapped, old);
}

void hook_block_begin() {
    for (Array &a : shared_arrays) {
        if (!a.bytes) continue;
        map(rounded(a.bytes + 1), a.base);
        quiet_fill(a.base, 0xff, a.bytes);
    }
}

void hook_block_end() {}

void hook_launch_end() { blocks_run = 0; }

void hook_fiber_start(Fiber &fiber) {
    if (prepared.empty()) prepared.push_back(made());
    std::tie(fiber.tsan, fiber.number) = prepared.back();
    prepared.pop_back();
    if (owners.size() <= static_cast<size_t>(fiber.number)) owners.resize(static_cast<size_t>(fiber.number) + 1);
    owners[static_cast<size_t>(fiber.number)] = {blocks_run, fiber.warp};
    // What came before the launch came before this thread, as where the fibre had been made just now.
    __tsan_release(launch_begin);
    __tsan_switch_to_fiber(fiber.tsan, 1);
    __tsan_acquire(launch_begin);
    __tsan_switch_to_fiber(main_fiber, 1);
    ++started;
}

// Never destroyed: ThreadSanitizer would give the number of a fibre of one block to one of the next, and take the two for
// one thread. Hence the limit on their count.
void hook_fiber_end(Fiber &) {}

void hook_to(Fiber *fiber) {
    settle();
    __tsan_switch_to_fiber(fiber ? fiber->tsan : main_fiber, 1);
}

void hook_release(void *variable) { __tsan_release(variable); }

void hook_acquire(void *variable) { __tsan_acquire(variable); }

bool hook_more_blocks() {
    // Two blocks of a launch at least: what one alone does not show is that they race with each other.
    long threads = static_cast<long>(block_dimension.x) * block_dimension.y * block_dimension.z;
    bool more = job.max_fibers <= 0 || blocks_run < 2 || started + threads <= job.max_fibers;
    reached_limit |= !more;
    blocks_run += more;
    return more;
}

bool hook_enough() {
    reached_limit |= harmless >= MAX_HARMLESS;
    return reports >= MAX_REPORTS || repeated >= MAX_REPEATED || harmless >= MAX_HARMLESS;
}

// The kernel object comes first; what follows are places of arguments.
void hook_module(const char *begin, const char *end) {
    if (!code_begin || begin == code_end || (begin > code_end && begin - code_end < (1 << 20))) {
        if (!code_begin) code_begin = begin;
        code_end = end;
    }
}

void hook_collect() {
    for (int r = 0; r < reports; ++r)
        for (int i = 0; i < 2; ++i) {
            const Side &side = sides[r][i];
            if (!side.pc && side.array < 0) continue;
            char extra[32];
            snprintf(extra, sizeof extra, "race_%d_%d%s", r, i, side.atomic ? "_atomic" : "");
            current_step = side.step;
            found("race", side.pc, 0, side.array, side.index, side.size, side.write, extra);
        }
}

void hook_report(FILE *out) {
    if (reached_limit) fprintf(out, "limited\n");
}

// CUDA's atomics are relaxed. They hand on what a thread wrote before its last fence, those on shared memory also before one of its block; reading what another handed on
// counts as ordered even without a fence of the reader's, as in the guide's own last-block example.
void hook_atomic_begin(const void *, const void *address, void *old, size_t bytes) {
    quiet_copy(old, address, bytes);
}

void hook_atomic_end(const void *pc, void *address, const void *value, size_t bytes) {
    long long index;
    bool shared = hook_locate(address, &index) >= SHARED_BASE;
    int order = (shared ? current->fenced_block : current->fenced) ? ACQ_REL : ACQUIRE;
    __tsan_func_entry(const_cast<void *>(pc));
    uint64_t v = 0;
    quiet_copy(&v, value, bytes < 8 ? bytes : 8);
    switch (bytes) {
    case 1: __tsan_atomic8_exchange(static_cast<uint8_t *>(address), static_cast<uint8_t>(v), order); break;
    case 2: __tsan_atomic16_exchange(static_cast<uint16_t *>(address), static_cast<uint16_t>(v), order); break;
    case 4: __tsan_atomic32_exchange(static_cast<uint32_t *>(address), static_cast<uint32_t>(v), order); break;
    default: __tsan_atomic64_exchange(static_cast<uint64_t *>(address), v, order); break;
    }
    __tsan_func_exit();
}

void hook_access(const void *pc, const void *address, size_t bytes, int write) {
    __tsan_func_entry(const_cast<void *>(pc));
    if (write) {
        __tsan_write_range(const_cast<void *>(address), bytes);
    } else {
        __tsan_read_range(const_cast<void *>(address), bytes);
    }
    __tsan_func_exit();
}

void hook_read_only(const void *, const void *, size_t) {}

int hook_locate(const void *address, long long *index) {
    auto *p = static_cast<const char *>(address);
    for (size_t i = 0; i < buffers.size(); ++i) {
        const Array &a = buffers[i];
        if (p < a.base || p >= a.base + a.bytes) continue;
        *index = (p - a.base) / static_cast<long long>(a.element);
        return static_cast<int>(i);
    }
    for (size_t i = 0; i < shared_arrays.size(); ++i) {
        const Array &a = shared_arrays[i];
        if (p < a.base || p >= a.base + a.bytes) continue;
        *index = (p - a.base) / static_cast<long long>(a.element);
        return SHARED_BASE + static_cast<int>(i);
    }
    return -1;
}

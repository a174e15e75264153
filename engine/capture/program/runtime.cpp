// The runtime API of a program whose kernels run on the CPU: memory with red zones, streams and events in order, launches that run
// at once and are recorded as on a GPU (OPTIML_CAPTURE_DIR).
#include <cxxabi.h>
#include <dlfcn.h>
#include <link.h>
#include <setjmp.h>
#include <stdarg.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>

#include "cuda_runtime.h"
#include "record_lines.h"
#include "state.h"

extern "C" char managed_begin[] __asm__("__start_optiml_managed") __attribute__((weak));  // null: no managed variables

Job job;
std::vector<Array> buffers;
std::vector<Array> shared_arrays(1);
uintptr_t base_address = 0;

namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kMaxBuffers = OPTIML_SLOTS - 2;
constexpr size_t kMaxConfigs = 64;         // launches of one kernel that are recorded
constexpr size_t kValueBytes = 64 << 10;   // arguments of one launch
constexpr size_t kMemory = size_t{141} << 30;
alignas(256) char argument_values[kValueBytes];  // in the program's own data: kernels may read it

std::recursive_mutex api;
cudaError_t last_error = cudaSuccess, sticky = cudaSuccess;
jmp_buf launch_end;
std::string kernel_name;
std::set<std::string> printed;
void (*thread_entry)(void *) = nullptr;

cudaError_t result(cudaError_t error) {
    if (error != cudaSuccess) last_error = error;
    return error;
}

// ---- memory

struct Seen {  // what a launch left in the buffers that it touched
    std::map<size_t, uint64_t> after, versions;
    bool repeats = false;  // it left what it found
};

std::map<std::string, Seen> launches_seen;
bool host_writes_unseen = false;  // registered memory, managed variables, Thrust
bool printed_by_kernel = false;
std::vector<std::pair<const char *, const char *>> segments;
std::vector<uint64_t> versions;  // of a buffer's contents: counts what wrote it but a launch that repeats itself
std::vector<const char *> kinds;

int find_segments(dl_phdr_info *info, size_t, void *) {
    for (int i = 0; i < info->dlpi_phnum; ++i) {
        if (info->dlpi_phdr[i].p_type != PT_LOAD) continue;
        auto *begin = reinterpret_cast<const char *>(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
        hook_module(begin, begin + info->dlpi_phdr[i].p_memsz);
        segments.push_back({begin, begin + info->dlpi_phdr[i].p_memsz});
    }
    base_address = info->dlpi_addr;
    return 1;  // the program itself comes first
}

void set_up() {
    static bool done = false;
    if (done) return;
    done = true;
    hook_setup();
    buffers.reserve(kMaxBuffers), shared_arrays.reserve(SHARED_SLOTS);
    shared_arrays[0].shared = true;
    shared_arrays[0].base = hook_shared(SHARED_LIMIT, 0);
    shared_arrays[0].written = static_cast<uint8_t *>(calloc(SHARED_LIMIT + 1, 1));
    dl_iterate_phdr(find_segments, nullptr);
}

Array *buffer_of(const void *p, size_t *number = nullptr) {
    for (size_t i = 0; i < buffers.size(); ++i) {
        Array &a = buffers[i];
        if (!a.bytes || p < a.base || p >= a.base + a.bytes) continue;
        if (number) *number = i;
        return &a;
    }
    return nullptr;
}

cudaError_t allocate(void **p, size_t bytes, const char *kind) {
    std::lock_guard<std::recursive_mutex> lock(api);
    set_up();
    if (!p) return result(cudaErrorInvalidValue);
    *p = nullptr;
    if (!bytes) return cudaSuccess;
    size_t at = 0;
    while (at < buffers.size() && buffers[at].bytes) ++at;
    if (at == kMaxBuffers || bytes > (size_t{4} << 30)) return result(cudaErrorMemoryAllocation);
    if (at == buffers.size()) buffers.emplace_back(), versions.push_back(0), kinds.push_back(kind);
    buffers[at] = Array{};
    buffers[at].base = hook_buffer(bytes, at);
    buffers[at].bytes = bytes, kinds[at] = kind;
    ++versions[at];
    *p = buffers[at].base;
    return cudaSuccess;
}

cudaError_t release(void *p) {
    std::lock_guard<std::recursive_mutex> lock(api);
    size_t at = 0;
    Array *a = p ? buffer_of(p, &at) : nullptr;
    if (p && (!a || a->base != p)) return result(cudaErrorInvalidValue);
    if (a) hook_release_buffer(a->base, a->bytes), a->bytes = 0, ++versions[at];
    return cudaSuccess;
}

void wrote(const void *p) {
    size_t at = 0;
    if (buffer_of(p, &at)) ++versions[at];
}

// Whether [p, p + bytes) is all inside the allocation it begins in; memory that is none of ours is the host's.
bool inside(const void *p, size_t bytes) {
    const Array *a = buffer_of(p);
    return !a || static_cast<const char *>(p) + bytes <= a->base + a->bytes;
}

// The program's own variables: a kernel may read them, so what is known of its repetition ends with a write to one.
bool is_variable(const void *p) {
    return std::any_of(segments.begin(), segments.end(), [=](auto &s) { return p >= s.first && p < s.second; });
}

cudaError_t copy(void *to, const void *from, size_t bytes) {
    std::lock_guard<std::recursive_mutex> lock(api);
    if (sticky != cudaSuccess) return result(sticky);
    if (bytes && (!to || !from)) return result(cudaErrorInvalidValue);
    if (!inside(to, bytes) || !inside(from, bytes)) return result(cudaErrorInvalidValue);
    memmove(to, from, bytes);
    wrote(to);
    if (is_variable(to)) launches_seen.clear();
    return cudaSuccess;
}

cudaError_t copy_rows(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height) {
    for (size_t row = 0; row < height; ++row) {
        cudaError_t error = copy(static_cast<char *>(to) + row * to_pitch, static_cast<const char *>(from) + row * from_pitch, width);
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}

cudaError_t fill(void *to, int value, size_t bytes) {
    std::lock_guard<std::recursive_mutex> lock(api);
    if (sticky != cudaSuccess) return result(sticky);
    if (!inside(to, bytes) || (bytes && !to)) return result(cudaErrorInvalidValue);
    memset(to, value, bytes);
    wrote(to);
    return cudaSuccess;
}

// ---- recording

Recording *recording() {
    static Recording *open = [] {
        const char *folder = std::getenv("OPTIML_CAPTURE_DIR");
        if (!folder) return static_cast<Recording *>(nullptr);
        auto *made = new Recording{folder, getpid()};
        std::atexit([] { recording()->write_times(true); });
        return made;
    }();
    return open && open->owner == getpid() ? open : nullptr;
}

const char *asked_name = nullptr;  // what a kernel called itself outside of a launch
std::vector<std::string> asked_values;  // and what it got there: a literal 2 that is passed for a float is 2.0f

// The arguments in `… [with T = float; int N = 4]` (g++) or `… [T = float, N = 4]` (clang++), with commas between.
std::string template_arguments(const std::string &pretty) {
    size_t at = pretty.find(" [with "), begin = at + 7;
    if (at == std::string::npos) at = pretty.find(" ["), begin = at + 2;
    if (at == std::string::npos || pretty.back() != ']') return "";
    std::string out, part;
    int depth = 0;
    for (size_t k = begin; k < pretty.size(); ++k) {
        char c = pretty[k];
        bool ends = depth == 0 && (c == ';' || c == ',' || k + 1 == pretty.size());
        depth += (strchr("<({[", c) != nullptr) - (strchr(">)}]", c) != nullptr);
        if (!ends) {
            part += c;
            continue;
        }
        size_t equals = part.find(" = ");
        // What a type is short for is told there, too.
        bool own = equals != std::string::npos && part.find_first_of("<:") > equals;
        if (own) out += (out.empty() ? "" : ", ") + part.substr(equals + 3);
        part.clear();
    }
    return out;
}

std::string symbol_of(const optiml::Call &call) {
    Dl_info info{};
    if (call.function && dladdr(call.function, &info) && info.dli_sname && info.dli_saddr == call.function) return info.dli_sname;
    // A static function, or deduced arguments: the name as written, the arguments as the kernel itself knows them.
    std::string name = call.name;
    name = name.substr(0, name.find('<'));
    optiml::asking = true, asked_name = nullptr, asked_values.clear();
    call.thread(argument_values);
    optiml::asking = false;
    std::string given = asked_name ? template_arguments(asked_name) : "";
    return given.empty() ? name : name + "<" + given + ">";
}

uint64_t bytes_left() {
    static uint64_t left = [] {
        const char *text = std::getenv("OPTIML_CAPTURE_BYTES");
        return text ? std::strtoull(text, nullptr, 10) : uint64_t{1} << 30;
    }();
    return left;
}

std::string save(Recording &into, const char *from, uint64_t bytes) {
    std::string name = into.next_file();
    std::ofstream(into.folder + "/" + name, std::ios::binary | std::ios::trunc).write(from, std::streamsize(bytes));
    return name;
}

void read_arguments(Record &record, const optiml::Call &call) {
    const char *most_text = std::getenv("OPTIML_CAPTURE_BUFFER_BYTES");
    uint64_t most = most_text ? std::strtoull(most_text, nullptr, 10) : 16ull << 20;
    static uint64_t used = 0;
    size_t offset = 0;
    bool converted = !call.function && asked_values.size() == static_cast<size_t>(call.count);
    for (int i = 0; i < call.count; ++i) {
        std::string value = converted ? asked_values[static_cast<size_t>(i)] : std::string(argument_values + call.offsets[i], call.sizes[i]);
        Argument argument{offset, value.size(), value, {}};
        offset += value.size();
        for (size_t at = 0; at + 8 <= argument.size; at += 8) {
            char *word = nullptr;
            memcpy(&word, argument.data.data() + at, 8);
            size_t number = 0;
            Array *a = buffer_of(word, &number);
            if (!a) continue;
            Pointer p{};
            p.at = at, p.memory = kinds[number], p.address = reinterpret_cast<uint64_t>(word), p.allocation = a->bytes;
            p.offset = static_cast<uint64_t>(word - a->base);
            p.recorded = std::min({p.allocation - p.offset, most, (bytes_left() - std::min(used, bytes_left())) / 2});
            used += 2 * p.recorded;
            for (size_t k = 0; k + 8 <= std::min<uint64_t>(p.recorded, 4096); k += 8) {
                char *inner = nullptr;
                memcpy(&inner, word + k, 8);
                p.inner += buffer_of(inner) != nullptr;
            }
            if (p.recorded) p.before = save(*recording(), word, p.recorded);
            argument.pointers.push_back(p);
        }
        record.arguments.push_back(std::move(argument));
    }
}

// ---- launches

uint64_t hash_of(const Array &a) {
    uint64_t h = 1469598103934665603ull;
    size_t i = 0;
    for (; i + 8 <= a.bytes; i += 8) {
        uint64_t word;
        memcpy(&word, a.base + i, 8);
        h = (h ^ word) * 1099511628211ull;
        h ^= h >> 29;
    }
    for (; i < a.bytes; ++i) h = (h ^ static_cast<unsigned char>(a.base[i])) * 1099511628211ull;
    return h;
}

std::string key_of(const optiml::Config &c, const optiml::Call &call, const std::string &name) {
    std::string key = name;
    for (size_t v : {size_t{c.grid.x}, size_t{c.grid.y}, size_t{c.grid.z}, size_t{c.block.x}, size_t{c.block.y}, size_t{c.block.z}, c.shared})
        key += ' ' + std::to_string(v);
    key += ':';
    for (int i = 0; i < call.count; ++i) key.append(argument_values + call.offsets[i], call.sizes[i]);
    return key;
}

// A launch with the same arguments that found and left the same contents, in buffers that nothing wrote since, would do so again.
bool would_repeat(const Seen &seen) {
    if (!seen.repeats) return false;
    for (auto [number, version] : seen.versions)
        if (versions[number] != version) return false;
    return true;
}

void remember(const std::string &key) {
    std::map<size_t, uint64_t> now;
    for (size_t i = 0; i < buffers.size(); ++i)
        if (buffers[i].bytes && buffers[i].touched) now[i] = hash_of(buffers[i]);
    bool managed = std::any_of(now.begin(), now.end(), [](auto &each) { return std::strcmp(kinds[each.first], "device") != 0; });
    if (variables_written) launches_seen.clear();
    Seen &seen = launches_seen[key];
    seen.repeats = !managed && !variables_written && !printed_by_kernel && !host_writes_unseen && !managed_begin && now == seen.after;  // the host may write managed memory unseen
    for (auto &[number, hash] : now) {
        if (!seen.after.count(number) || seen.after[number] != hash) ++versions[number];
        seen.versions[number] = versions[number];
    }
    seen.after = std::move(now);
}

void run_thread(void **values) { thread_entry(values[0]); }

void run(const optiml::Config &c, const optiml::Call &call) {
    Launch launch;
    launch.grid = {c.grid.x, c.grid.y, c.grid.z}, launch.block = {c.block.x, c.block.y, c.block.z};
    launch.shared = static_cast<unsigned>(c.shared);
    for (Array &a : buffers) a.touched = 0;
    variables_written = printed_by_kernel = false;
    thread_entry = call.thread;
    static void *values[1];
    values[0] = argument_values;
    if (setjmp(launch_end) == 0) run_launch(launch, run_thread, values);
    current = nullptr;
}

}  // namespace

cudaError_t optiml::launch(const Config &c, const Call &call) {
    std::lock_guard<std::recursive_mutex> lock(api);
    set_up();
    if (sticky != cudaSuccess) return result(sticky);
    size_t threads = size_t{c.block.x} * c.block.y * c.block.z;
    bool legal = threads >= 1 && threads <= 1024 && c.block.z <= 64 && c.grid.x && c.grid.y && c.grid.z && c.grid.y <= 65535 &&
                 c.grid.z <= 65535 && c.shared <= SHARED_LIMIT && call.bytes <= kValueBytes;
    if (!legal) return result(cudaErrorInvalidConfiguration);
    call.place(argument_values, call.values);
    std::string name = symbol_of(call);
    kernel_name = demangled(name);
    Recording *into = recording();
    Config_ config{name, {c.grid.x, c.grid.y, c.grid.z}, {c.block.x, c.block.y, c.block.z}, static_cast<uint32_t>(c.shared)};
    Record record{name, "cudaLaunchKernel", "", std::get<1>(config), std::get<2>(config), {}, static_cast<uint32_t>(c.shared), {}};
    std::string key = key_of(c, call, name);
    auto begin = Clock::now();
    if (!would_repeat(launches_seen[key])) {
        bool first = into && into->first_of(config, kMaxConfigs);
        if (first) {
            read_arguments(record, call);
            record.contents = "unfinished";
            into->begin(record, config);
            record.contents = "";
        }
        begin = Clock::now();
        run(c, call);
        double took = std::chrono::duration<double, std::nano>(Clock::now() - begin).count();
        if (sticky != cudaSuccess) record.contents = "failed";
        else remember(key);
        if (first && sticky == cudaSuccess) {
            for (Argument &a : record.arguments)
                for (Pointer &p : a.pointers)
                    if (p.recorded) p.after = save(*into, reinterpret_cast<const char *>(p.address), p.recorded);
        }
        if (first) into->append(record);
        if (into) into->add(config, static_cast<uint64_t>(took));
        if (sticky != cudaSuccess) return result(sticky);
    } else if (into) {
        into->add_again(config);
    }
    return cudaSuccess;
}

void optiml::host_writes() { host_writes_unseen = true; }

bool optiml::asking = false;

void optiml::asked(size_t bytes, const void *value) { asked_values.emplace_back(static_cast<const char *>(value), bytes); }

bool optiml::launched(const char *pretty) {
    if (asking) asked_name = pretty;
    else if (!current) last_error = cudaErrorMissingConfiguration;
    return current && !asking;
}

// ---- what the machine of fibres wants of its program

void found(const char *kind, const void *, int line, int array, long long index, long long bytes, int write, const char *extra) {
    std::string text = kernel_name + kind + std::to_string(line) + std::to_string(array) + extra;
    if (!printed.insert(text).second || printed.size() > 50) return;
    optiml_uint3 t = current ? current->thread : optiml_uint3{0, 0, 0};
    size_t size = array >= 0 && array < SHARED_BASE ? buffers[static_cast<size_t>(array)].bytes : 0;
    fprintf(stderr, "optiml: kernel %s: %s", kernel_name.c_str(), kind);
    if (bytes) fprintf(stderr, ", %s of %lld bytes", write ? "write" : "read", bytes);
    if (array >= SHARED_BASE)
        fprintf(stderr, " in shared array '%s'", shared_arrays[static_cast<size_t>(array - SHARED_BASE)].name);
    else if (size)
        fprintf(stderr, " at byte %lld of an allocation of %zu bytes", index, size);
    if (line) fprintf(stderr, ", line %d", line);
    fprintf(stderr, ", block (%u, %u, %u), thread (%u, %u, %u)\n", block_index.x, block_index.y, block_index.z, t.x, t.y, t.z);
}

void found_last(const char *kind, const void *pc, int line, int array, long long index, long long bytes, int write,
                const char *extra) {
    found(kind, pc, line, array, index, bytes, write, extra);
    bool asserted = !std::strcmp(kind, "assert");
    sticky = asserted ? cudaErrorAssert : std::strstr(kind, "bounds") ? cudaErrorIllegalAddress : cudaErrorLaunchFailure;
    finish(0);
}

void finish(int) { longjmp(launch_end, 1); }

extern "C" void *optiml_shared(unsigned *slot, size_t bytes, size_t element, const char *name, int line) {
    if (*slot == 0) {
        if (shared_arrays.size() >= SHARED_SLOTS || bytes > SHARED_LIMIT)
            found_last("shared_size", __builtin_return_address(0), line, -1, 0, 0, 0, "");
        Array a;
        a.shared = true, a.name = name, a.bytes = bytes, a.element = element ? element : 1;
        a.base = hook_shared(bytes, shared_arrays.size());
        a.written = static_cast<uint8_t *>(calloc(bytes + 1, 1));
        *slot = static_cast<unsigned>(shared_arrays.size());
        shared_arrays.push_back(a);
    }
    return shared_arrays[*slot].base;
}

extern "C" void *optiml_dynamic_shared(size_t element, const char *name, int) {
    shared_arrays[0].name = name, shared_arrays[0].element = element ? element : 1;
    return shared_arrays[0].base;
}

extern "C" unsigned optiml_dynamic_shared_bytes(void) { return static_cast<unsigned>(shared_arrays[0].bytes); }

extern "C" void optiml_program_assert(const char *condition, const char *file, int line, const char *function) {
    fprintf(stderr, "%s:%d: %s: Assertion `%s' failed.\n", file, line, function, condition);
    if (current) found_last("assert", __builtin_return_address(0), line, -1, 0, 0, 0, "");
    abort();
}

// A launch that prints is not left out, however often it repeats itself.
extern "C" int printf(const char *format, ...) {
    printed_by_kernel = printed_by_kernel || current;
    va_list values;
    va_start(values, format);
    int count = vprintf(format, values);
    va_end(values);
    return count;
}
extern "C" int puts(const char *text) { return printf("%s\n", text); }
extern "C" int putchar(int c) { return printed_by_kernel = printed_by_kernel || current, putc(c, stdout); }

// Kernels that wait for so many ticks see them pass; the host's processor time is as it is.
extern "C" clock_t clock(void) {
    if (current) return static_cast<clock_t>(optiml_clock());
    timespec now{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<clock_t>(now.tv_sec * CLOCKS_PER_SEC + now.tv_nsec / (1000000000 / CLOCKS_PER_SEC));
}

// ---- the API

namespace {

struct Event {
    Clock::time_point at;
};

cudaDeviceProp properties() {
    cudaDeviceProp p{};
    std::strcpy(p.name, "OptiML CPU machine (as sm_90)");
    p.totalGlobalMem = kMemory, p.sharedMemPerBlock = 49152, p.sharedMemPerBlockOptin = SHARED_LIMIT;
    p.sharedMemPerMultiprocessor = 233472, p.regsPerBlock = 65536, p.regsPerMultiprocessor = 65536, p.warpSize = 32;
    p.memPitch = 2147483647, p.maxThreadsPerBlock = 1024, p.maxThreadsPerMultiProcessor = 2048, p.multiProcessorCount = 132;
    p.maxThreadsDim[0] = p.maxThreadsDim[1] = 1024, p.maxThreadsDim[2] = 64;
    p.maxGridSize[0] = 2147483647, p.maxGridSize[1] = p.maxGridSize[2] = 65535;
    p.totalConstMem = 65536, p.major = 9, p.minor = 0, p.l2CacheSize = 50 << 20, p.memoryBusWidth = 6144;
    p.canMapHostMemory = p.unifiedAddressing = p.managedMemory = p.concurrentKernels = p.concurrentManagedAccess = 1;
    p.persistingL2CacheMaxSize = p.l2CacheSize / 8 * 5, p.accessPolicyMaxWindowSize = 128 << 20;
    p.asyncEngineCount = 1, p.maxBlocksPerMultiProcessor = 32;
    return p;
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void **p, size_t bytes) { return allocate(p, bytes, "device"); }
cudaError_t cudaMallocAsync(void **p, size_t bytes, cudaStream_t) { return allocate(p, bytes, "device"); }
cudaError_t cudaMallocManaged(void **p, size_t bytes, unsigned) { return allocate(p, bytes, "managed"); }
cudaError_t cudaMallocHost(void **p, size_t bytes) { return allocate(p, bytes, "host"); }
cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned) { return allocate(p, bytes, "host"); }
cudaError_t cudaMallocPitch(void **p, size_t *pitch, size_t width, size_t height) {
    *pitch = (width + 511) / 512 * 512;
    return allocate(p, *pitch * height, "device");
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int) { return *pool = reinterpret_cast<cudaMemPool_t>(&api), cudaSuccess; }
cudaError_t cudaDeviceGetMemPool(cudaMemPool_t *pool, int device) { return cudaDeviceGetDefaultMemPool(pool, device); }
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void *) { return cudaSuccess; }
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) { return cudaSuccess; }
cudaError_t cudaFree(void *p) { return release(p); }
cudaError_t cudaFreeAsync(void *p, cudaStream_t) { return release(p); }
cudaError_t cudaFreeHost(void *p) { return release(p); }
cudaError_t cudaHostGetDevicePointer(void **p, void *host, unsigned) { return *p = host, cudaSuccess; }
cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned) {
    set_up();
    host_writes_unseen = true;
    hook_module(static_cast<char *>(p), static_cast<char *>(p) + bytes);
    return cudaSuccess;
}
cudaError_t cudaHostUnregister(void *) { return cudaSuccess; }
cudaError_t cudaMemcpy(void *to, const void *from, size_t n, cudaMemcpyKind) { return copy(to, from, n); }
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, cudaMemcpyKind, cudaStream_t) { return copy(to, from, n); }
cudaError_t cudaMemcpy2D(void *to, size_t a, const void *from, size_t b, size_t w, size_t h, cudaMemcpyKind) {
    return copy_rows(to, a, from, b, w, h);
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t a, const void *from, size_t b, size_t w, size_t h, cudaMemcpyKind, cudaStream_t) {
    return copy_rows(to, a, from, b, w, h);
}
cudaError_t cudaMemset(void *to, int value, size_t n) { return fill(to, value, n); }
cudaError_t cudaMemsetAsync(void *to, int value, size_t n, cudaStream_t) { return fill(to, value, n); }
cudaError_t cudaMemset2D(void *to, size_t pitch, int value, size_t w, size_t h) {
    for (size_t row = 0; row < h; ++row)
        if (cudaError_t error = fill(static_cast<char *>(to) + row * pitch, value, w)) return error;
    return cudaSuccess;
}
// A symbol is the program's own variable.
cudaError_t cudaMemcpyToSymbol(const void *s, const void *from, size_t n, size_t offset, cudaMemcpyKind) {
    launches_seen.clear();
    return copy(static_cast<char *>(const_cast<void *>(s)) + offset, from, n);
}
cudaError_t cudaMemcpyToSymbolAsync(const void *s, const void *from, size_t n, size_t offset, cudaMemcpyKind kind, cudaStream_t) {
    return cudaMemcpyToSymbol(s, from, n, offset, kind);
}
cudaError_t cudaMemcpyFromSymbol(void *to, const void *s, size_t n, size_t offset, cudaMemcpyKind) {
    return copy(to, static_cast<const char *>(s) + offset, n);
}
cudaError_t cudaGetSymbolAddress(void **p, const void *s) { return *p = const_cast<void *>(s), cudaSuccess; }
cudaError_t cudaMemGetInfo(size_t *unused, size_t *total) { return *unused = *total = kMemory, cudaSuccess; }
cudaError_t cudaMemAdvise(const void *, size_t, cudaMemoryAdvise, cudaMemLocation) { return cudaSuccess; }
cudaError_t cudaMemPrefetchAsync(const void *, size_t, cudaMemLocation, unsigned, cudaStream_t) { return cudaSuccess; }

cudaError_t cudaGetDeviceCount(int *n) { return *n = 1, cudaSuccess; }
cudaError_t cudaGetDevice(int *n) { return *n = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int n) { return result(n == 0 ? cudaSuccess : cudaErrorInvalidDevice); }
cudaError_t cudaSetDeviceFlags(unsigned) { return cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int n) {
    if (n != 0) return result(cudaErrorInvalidDevice);
    return *p = properties(), cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int) {
    cudaDeviceProp p = properties();
    std::map<int, int> known{{cudaDevAttrMaxThreadsPerBlock, 1024}, {cudaDevAttrMaxSharedMemoryPerBlock, 49152},
        {cudaDevAttrMaxSharedMemoryPerBlockOptin, int(SHARED_LIMIT)}, {cudaDevAttrMaxSharedMemoryPerMultiprocessor, 233472},
        {cudaDevAttrWarpSize, 32}, {cudaDevAttrMultiProcessorCount, p.multiProcessorCount}, {cudaDevAttrMaxThreadsPerMultiProcessor, 2048},
        {cudaDevAttrMaxBlocksPerMultiprocessor, 32}, {cudaDevAttrMaxRegistersPerBlock, 65536}, {cudaDevAttrMaxRegistersPerMultiprocessor, 65536},
        {cudaDevAttrMaxGridDimX, 2147483647}, {cudaDevAttrMaxGridDimY, 65535}, {cudaDevAttrMaxGridDimZ, 65535},
        {cudaDevAttrMaxBlockDimX, 1024}, {cudaDevAttrMaxBlockDimY, 1024}, {cudaDevAttrMaxBlockDimZ, 64},
        {cudaDevAttrComputeCapabilityMajor, 9}, {cudaDevAttrComputeCapabilityMinor, 0}, {cudaDevAttrL2CacheSize, p.l2CacheSize},
        {cudaDevAttrClockRate, 1980000}, {cudaDevAttrMemoryClockRate, 3201000}, {cudaDevAttrGlobalMemoryBusWidth, 6144},
        {cudaDevAttrUnifiedAddressing, 1}, {cudaDevAttrManagedMemory, 1}, {cudaDevAttrConcurrentKernels, 1},
        {cudaDevAttrConcurrentManagedAccess, 1}, {cudaDevAttrCanMapHostMemory, 1}, {cudaDevAttrIntegrated, 0}, {cudaDevAttrComputeMode, 0},
        {cudaDevAttrAsyncEngineCount, 1}, {cudaDevAttrCooperativeLaunch, 0}, {cudaDevAttrMemoryPoolsSupported, 1},
        {cudaDevAttrTotalConstantMemory, 65536},
        {cudaDevAttrMaxPersistingL2CacheSize, p.persistingL2CacheMaxSize}, {cudaDevAttrMaxAccessPolicyWindowSize, p.accessPolicyMaxWindowSize}, {cudaDevAttrGpuOverlap, 1}};
    auto at = known.find(attribute);
    if (at == known.end()) return result(cudaErrorInvalidValue);
    return *value = at->second, cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int *can, int, int) { return *can = 0, cudaSuccess; }
cudaError_t cudaDeviceSynchronize(void) { return result(sticky); }
cudaError_t cudaDeviceReset(void) { return cudaSuccess; }
cudaError_t cudaDeviceSetLimit(cudaLimit, size_t) { return cudaSuccess; }
cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache) { return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { return *least = 0, *greatest = -5, cudaSuccess; }
cudaError_t cudaDriverGetVersion(int *v) { return *v = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *v) { return *v = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaProfilerStart(void) { return cudaSuccess; }
cudaError_t cudaProfilerStop(void) { return cudaSuccess; }

cudaError_t cudaStreamCreate(cudaStream_t *s) { return *s = reinterpret_cast<cudaStream_t>(new char), cudaSuccess; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned) { return cudaStreamCreate(s); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned, int) { return cudaStreamCreate(s); }
cudaError_t cudaStreamDestroy(cudaStream_t s) { return delete reinterpret_cast<char *>(s), cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return result(sticky); }
cudaError_t cudaStreamQuery(cudaStream_t) { return result(sticky); }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaStreamAttachMemAsync(cudaStream_t, void *, size_t, unsigned) { return cudaSuccess; }
cudaError_t cudaStreamAddCallback(cudaStream_t s, cudaStreamCallback_t function, void *data, unsigned) {
    return function(s, sticky, data), cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t function, void *data) { return function(data), cudaSuccess; }
cudaError_t cudaStreamSetAttribute(cudaStream_t, cudaStreamAttrID, const cudaStreamAttrValue *) { return cudaSuccess; }
cudaError_t cudaCtxResetPersistingL2Cache(void) { return cudaSuccess; }
cudaError_t cudaEventCreate(cudaEvent_t *e) { return *e = reinterpret_cast<cudaEvent_t>(new Event{Clock::now()}), cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned) { return cudaEventCreate(e); }
cudaError_t cudaEventDestroy(cudaEvent_t e) { return delete reinterpret_cast<Event *>(e), cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t) { return reinterpret_cast<Event *>(e)->at = Clock::now(), result(sticky); }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return result(sticky); }
cudaError_t cudaEventQuery(cudaEvent_t) { return result(sticky); }
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b) {
    std::chrono::duration<float, std::milli> took = reinterpret_cast<Event *>(b)->at - reinterpret_cast<Event *>(a)->at;
    return *ms = std::max(took.count(), 1e-3f), cudaSuccess;
}

cudaError_t cudaGetLastError(void) {
    cudaError_t error = sticky != cudaSuccess ? sticky : last_error;
    return last_error = cudaSuccess, error;
}
cudaError_t cudaPeekAtLastError(void) { return sticky != cudaSuccess ? sticky : last_error; }
#define OPTIML_ERRORS(X)                                                                                                   \
    X(cudaSuccess, "no error") X(cudaErrorInvalidValue, "invalid argument") X(cudaErrorMemoryAllocation, "out of memory")  \
    X(cudaErrorInvalidConfiguration, "invalid configuration argument") X(cudaErrorInvalidDevice, "invalid device ordinal") \
    X(cudaErrorIllegalAddress, "an illegal memory access was encountered") X(cudaErrorAssert, "device-side assert triggered") \
    X(cudaErrorLaunchFailure, "unspecified launch failure")                                                                 \
    X(cudaErrorMissingConfiguration, "__global__ function call is not configured")
const char *cudaGetErrorString(cudaError_t error) {
#define X(NAME, TEXT) if (error == NAME) return TEXT;
    OPTIML_ERRORS(X)
#undef X
    return "unknown error";
}
const char *cudaGetErrorName(cudaError_t error) {
#define X(NAME, TEXT) if (error == NAME) return #NAME;
    OPTIML_ERRORS(X)
#undef X
    return "cudaErrorUnknown";
}
cudaError_t cudaFuncSetAttribute(const void *, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaFuncSetCacheConfig(const void *, cudaFuncCache) { return cudaSuccess; }
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *a, const void *) {
    *a = cudaFuncAttributes{};
    return a->maxThreadsPerBlock = 1024, a->numRegs = 32, cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *, int threads, size_t shared) {
    int by_threads = 2048 / std::max(threads, 1), by_shared = shared ? int(233472 / (shared + 1024)) : 32;
    return *blocks = std::max(1, std::min({by_threads, by_shared, 32})), cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *found, const void *p) {
    size_t at = 0;
    *found = cudaPointerAttributes{};
    if (buffer_of(p, &at)) {
        std::string kind = kinds[at];
        found->type = kind == "device" ? cudaMemoryTypeDevice : kind == "managed" ? cudaMemoryTypeManaged : cudaMemoryTypeHost;
        found->devicePointer = const_cast<void *>(p);
        if (kind != "device") found->hostPointer = const_cast<void *>(p);
    }
    return cudaSuccess;
}
}

// Reads a job, runs its launches, writes its outputs and what was found.
#include <dlfcn.h>
#include <link.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "state.h"

Job job;
std::vector<Array> buffers;
std::vector<Array> shared_arrays(1);
uintptr_t base_address = 0;

namespace {

constexpr size_t MAX_FINDINGS = 16;
std::vector<std::string> findings;

struct Key {
    std::string kind;
    const void *pc;
    int line, array;
    bool operator==(const Key &o) const { return kind != "race" && kind == o.kind && pc == o.pc && line == o.line && array == o.array; }
};
std::vector<Key> keys;

std::string plain(const std::string &text) {
    std::string out;
    for (char c : text)
        if (isalnum(static_cast<unsigned char>(c)) || c == '_') out += c;
    return out.empty() ? "-" : out.substr(0, 80);
}

int find_module(dl_phdr_info *info, size_t, void *) {
    if (!info->dlpi_name || job.object != info->dlpi_name) return 0;
    base_address = info->dlpi_addr;
    for (int i = 0; i < info->dlpi_phnum; ++i) {
        if (info->dlpi_phdr[i].p_type != PT_LOAD) continue;
        auto *begin = reinterpret_cast<const char *>(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
        hook_module(begin, begin + info->dlpi_phdr[i].p_memsz);
    }
    return 1;
}

void on_signal(int number, siginfo_t *info, void *) {
    char text[64];
    snprintf(text, sizeof text, "signal_%d", number);
    (void)info;
    found("crash", nullptr, 0, -1, 0, 0, 0, text);
    finish(0);
}

[[noreturn]] void refuse(const char *what) {
    fprintf(stderr, "job: %s\n", what);
    _exit(3);
}

std::vector<unsigned char> unhex(const std::string &text) {
    std::vector<unsigned char> bytes;
    for (size_t i = 0; i + 1 < text.size(); i += 2)
        bytes.push_back(static_cast<unsigned char>(std::strtoul(text.substr(i, 2).c_str(), nullptr, 16)));
    return bytes;
}

// `s0011…+8:2`: bytes, and at which of them the address of which buffer belongs.
LaunchArgument read_argument(const std::string &word) {
    LaunchArgument a;
    std::istringstream parts(word.substr(1));
    std::string part;
    std::getline(parts, part, '+');
    a.bytes = unhex(part);
    while (std::getline(parts, part, '+'))
        a.places.emplace_back(std::stoul(part), std::stoul(part.substr(part.find(':') + 1)));
    return a;
}

void read_job(const char *path) {
    std::ifstream in(path);
    std::string line, word;
    while (std::getline(in, line)) {
        std::istringstream fields(line);
        fields >> word;
        if (word == "object") {
            job.object = line.substr(7);
        } else if (word == "data") {
            job.data = line.substr(5);
        } else if (word == "output") {
            fields >> job.output >> job.at >> job.result_bytes;
        } else if (word == "order") {
            fields >> job.order;
        } else if (word == "count") {
            fields >> job.count;
        } else if (word == "unwritten_shared") {
            fields >> job.unwritten_shared;
        } else if (word == "early") {
            fields >> job.early_copies;
        } else if (word == "fibers") {
            fields >> job.max_fibers;
        } else if (word == "buffer") {
            Array a;
            fields >> a.bytes >> a.element >> a.flags >> a.at;
            buffers.push_back(a);
        } else if (word == "tile") {  // of the buffer before it
            size_t bytes = 0;
            fields >> bytes >> buffers.back().apart;
            buffers.back().tile_bytes = bytes;
            job.sampled = true;
        } else if (word == "apart") {  // of the buffer before it
            fields >> buffers.back().apart;
        } else if (word == "blocks") {  // of the launch before it
            for (long long block; fields >> block;) job.launches.back().sample.push_back(block);
        } else if (word == "launch") {
            Launch l;
            size_t count = 0;
            fields >> l.step >> l.grid.x >> l.grid.y >> l.grid.z >> l.block.x >> l.block.y >> l.block.z >> l.shared >> count;
            for (size_t i = 0; i < count && fields >> word; ++i) l.arguments.push_back(read_argument(word));
            job.launches.push_back(l);
        } else if (word == "again") {  // of the launch before it
            job.launches.back().again = true;
        } else if (word == "constant" && fields >> word) {
            Constant c;
            if (word[0] == 'b')
                c.buffer = std::stol(word.substr(1));
            else
                c.value = read_argument(word);
            job.constants.push_back(c);
        }
    }
}

void put(const char *from, size_t bytes, off_t at) {
    while (bytes) {
        ssize_t done = pwrite(job.output, from, bytes, at);
        if (done <= 0) _exit(3);
        from += done, at += done, bytes -= static_cast<size_t>(done);
    }
}

// A line for each element that a sampled launch wrote, ascending: buffer, block and how (1 several threads, 2 an atomic), element, contents.
void put_writes(off_t at) {
    struct Write {
        uint32_t buffer, block;
        uint64_t how, element;
        unsigned char value[SAMPLED_ELEMENT];
    };
    std::vector<Write> writes;
    for (size_t i = 0; i < buffers.size(); ++i) {
        const Array &a = buffers[i];
        std::vector<size_t> elements;
        for (const auto &known : a.writers) elements.push_back(known.first);
        std::sort(elements.begin(), elements.end());
        for (size_t element : elements) {
            const Writer &writer = a.writers.at(element);
            Write w{static_cast<uint32_t>(i), static_cast<uint32_t>(writer.block), writer.several + 2u * writer.atomic, element, {}};
            memcpy(w.value, a.base + element * a.element, std::min(a.element, sizeof w.value));
            writes.push_back(w);
        }
    }
    uint64_t count = writes.size();
    put(reinterpret_cast<const char *>(&count), sizeof count, at);
    put(reinterpret_cast<const char *>(writes.data()), count * sizeof(Write), at + static_cast<off_t>(sizeof count));
}

// What stands in a sampled buffer at first is read where it is touched: of most jobs' contents that is little.
const char *map_tile(FILE *in, const Array &a) {
    struct stat found{};
    if (fstat(fileno(in), &found) != 0 || a.tile_bytes == 0 || a.at > static_cast<size_t>(found.st_size) ||
        a.tile_bytes > static_cast<size_t>(found.st_size) - a.at)
        refuse("the data file is too short");
    void *p = mmap(nullptr, a.tile_bytes, PROT_READ, MAP_PRIVATE, fileno(in), static_cast<off_t>(a.at));
    if (p == MAP_FAILED) refuse("cannot map the data file");
    return static_cast<const char *>(p);
}

// First contents of a buffer that is no sample's, which nobody has written.
void fill_buffer(FILE *in, Array &a) {
    if (fseek(in, static_cast<long>(a.at), SEEK_SET) != 0) refuse("cannot read the data file");
    if (a.bytes && fread(a.base, 1, a.bytes, in) != a.bytes) refuse("the data file is too short");
    a.touched = 0;
    if (a.written) memset(a.written, a.flags & BUFFER_UNWRITTEN ? 0 : GIVEN, a.bytes);
}

void fill_again() {
    FILE *in = fopen(job.data.c_str(), "rb");
    if (!in || job.sampled) refuse("cannot read the data file again");
    for (Array &a : buffers) fill_buffer(in, a);
    fclose(in);
}

void load_buffers() {
    FILE *in = fopen(job.data.c_str(), "rb");
    if (!in) refuse("cannot read the data file");
    for (size_t i = 0; i < buffers.size(); ++i) {
        Array &a = buffers[i];
        if (job.sampled) {
            a.base = hook_sampled_buffer(a.bytes, i, a.apart);
            a.pages.resize(a.bytes / PAGE + 1);
            a.tile = map_tile(in, a);
            continue;
        }
        a.base = hook_buffer(a.bytes + a.apart, i) + a.apart;
        if (!(a.flags & BUFFER_INPUT)) a.written = static_cast<uint8_t *>(calloc(a.bytes + 1, 1));
        fill_buffer(in, a);
    }
    fclose(in);
}

}  // namespace

void found(const char *kind, const void *pc, int line, int array, long long index, long long bytes, int write,
           const char *extra) {
    Key key{kind, pc, line, array};
    for (const Key &k : keys)
        if (k == key) return;
    if (findings.size() >= MAX_FINDINGS) return;
    keys.push_back(key);
    optiml_uint3 t = current ? current->thread : optiml_uint3{0, 0, 0};
    std::string name = array >= SHARED_BASE ? plain(shared_arrays[static_cast<size_t>(array - SHARED_BASE)].name) : "-";
    size_t element = 1, size = 0;
    if (array >= SHARED_BASE) {
        element = shared_arrays[static_cast<size_t>(array - SHARED_BASE)].element;
        size = shared_arrays[static_cast<size_t>(array - SHARED_BASE)].bytes;
    } else if (array >= 0) {
        element = buffers[static_cast<size_t>(array)].element;
        size = buffers[static_cast<size_t>(array)].bytes;
    }
    auto offset = reinterpret_cast<uintptr_t>(pc);
    offset = pc && offset >= base_address ? offset - base_address : 0;
    std::ostringstream out;
    out << "finding " << kind << ' ' << offset << ' ' << line << ' ' << array << ' ' << name << ' ' << index << ' ' << bytes
        << ' ' << write << ' ' << element << ' ' << size << ' ' << t.x << ' ' << t.y << ' ' << t.z << ' ' << block_index.x
        << ' ' << block_index.y << ' ' << block_index.z << ' ' << current_step << ' ' << (current ? 1 : 0) << ' '
        << (*extra ? extra : "-");
    findings.push_back(out.str());
}

void found_last(const char *kind, const void *pc, int line, int array, long long index, long long bytes, int write,
                const char *extra) {
    found(kind, pc, line, array, index, bytes, write, extra);
    finish(0);
}

void finish(int status) {
    hook_collect();
    // The report takes the first bytes of this job's part, its outputs the rest. What it does not hold is lost, its last line first.
    off_t at = static_cast<off_t>(job.at + job.result_bytes);
    if (job.sampled) put_writes(at);
    for (const Array &a : buffers) {
        if (job.sampled || (a.flags & (BUFFER_INPUT | BUFFER_SCRATCH)) || !a.bytes) continue;
        put(a.base, a.bytes, at);
        at += static_cast<off_t>(a.bytes);
    }
    char *text = nullptr;
    size_t length = 0;
    FILE *result = open_memstream(&text, &length);
    if (!result) _exit(3);
    for (const std::string &each : findings) fprintf(result, "%s\n", each.c_str());
    for (size_t i = 0; i < buffers.size(); ++i) {
        const Array &a = buffers[i];
        fprintf(result, "touched %zu %zu\n", i, a.touched);
        if (!a.written || !(a.flags & BUFFER_UNWRITTEN)) continue;
        auto left = static_cast<size_t>(std::count(a.written, a.written + a.touched, 0));
        fprintf(result, "written %zu %zu\n", i, a.touched - left);
    }
    hook_report(result);
    fprintf(result, "end\n");
    fclose(result);
    put(text, std::min(length, job.result_bytes), static_cast<off_t>(job.at));
    _exit(status);
}

static int shared_byte() { return job.unwritten_shared && job.order % 2 ? 0x7f : 0xff; }

extern "C" void *optiml_shared(unsigned *slot, size_t bytes, size_t element, const char *name, int line) {
    if (*slot == 0) {
        if (shared_arrays.size() >= SHARED_SLOTS) refuse("too many shared arrays");
        if (bytes > SHARED_LIMIT) found_last("crash", __builtin_return_address(0), line, -1, 0, 0, 0, "shared_size");
        Array a;
        a.shared = true;
        a.name = name;
        a.bytes = bytes;
        a.element = element ? element : 1;
        a.base = hook_shared(bytes, shared_arrays.size());
        a.written = static_cast<uint8_t *>(calloc(bytes + 1, 1));
        quiet_fill(a.base, shared_byte(), bytes);
        *slot = static_cast<unsigned>(shared_arrays.size());
        shared_arrays.push_back(a);
    }
    return shared_arrays[*slot].base;
}

extern "C" void *optiml_dynamic_shared(size_t element, const char *name, int line) {
    (void)line;
    Array &a = shared_arrays[0];
    a.name = name;
    a.element = element ? element : 1;
    return a.base;
}

extern "C" unsigned optiml_dynamic_shared_bytes(void) { return static_cast<unsigned>(shared_arrays[0].bytes); }

namespace {

// A value with the addresses of its buffers, with room behind it.
std::vector<uint64_t> placed(const LaunchArgument &a) {
    std::vector<uint64_t> place(a.bytes.size() / 8 + 4);
    memcpy(place.data(), a.bytes.data(), a.bytes.size());
    for (auto [at, number] : a.places) {
        if (number >= buffers.size() || at + sizeof(char *) > a.bytes.size()) refuse("no such buffer");
        char *base = buffers[number].base;
        memcpy(reinterpret_cast<char *>(place.data()) + at, &base, sizeof base);
    }
    return place;
}

// Host code fills these once; a kernel that found a way to write them does not keep anything there.
void fill_constants(void *module) {
    for (size_t i = 0; i < job.constants.size(); ++i) {
        char name[48];
        snprintf(name, sizeof name, "optiml_constant_%zu", i);
        auto *variable = static_cast<char *const *>(dlsym(module, name));
        snprintf(name, sizeof name, "optiml_constant_bytes_%zu", i);
        auto *bytes = static_cast<const unsigned long *>(dlsym(module, name));
        if (!variable || !bytes) refuse("no such constant");
        const Constant &c = job.constants[i];
        if (c.buffer >= 0 && static_cast<size_t>(c.buffer) >= buffers.size()) refuse("no such buffer");
        const Array *from = c.buffer >= 0 ? &buffers[static_cast<size_t>(c.buffer)] : nullptr;
        size_t given = from ? from->bytes : c.value.bytes.size();
        if (given != *bytes)
            found_last("crash", nullptr, 0, -1, static_cast<long long>(i), static_cast<long long>(*bytes), 0, "constant_size");
        if (from && from->tile) {  // the buffer itself is filled where it is touched
            for (size_t at = 0; at < given; ++at) quiet_copy(*variable + at, from->tile + at % from->tile_bytes, 1);
        } else if (from) {
            quiet_copy(*variable, from->base, given);
        } else {
            quiet_copy(*variable, placed(c.value).data(), given);
        }
    }
}

[[noreturn]] void run_job() {
    shared_arrays.reserve(SHARED_SLOTS);  // it grows while threads run, and must not move then
    shared_arrays[0].shared = true;
    shared_arrays[0].base = hook_shared(SHARED_LIMIT, 0);
    shared_arrays[0].written = static_cast<uint8_t *>(calloc(SHARED_LIMIT + 1, 1));
    if (job.unwritten_shared) quiet_fill(shared_arrays[0].base, shared_byte(), SHARED_LIMIT);
    load_buffers();
    void *module = dlopen(job.object.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!module) refuse(dlerror());
    dl_iterate_phdr(find_module, nullptr);
    for (optiml_uint3 *place : {&thread_index, &block_index, &block_dimension, &grid_dimension})
        hook_module(reinterpret_cast<char *>(place), reinterpret_cast<char *>(place + 1));  // clang instruments these reads
    stack_t alternative{};
    alternative.ss_size = 65536;
    alternative.ss_sp = malloc(alternative.ss_size);
    sigaltstack(&alternative, nullptr);
    struct sigaction action{};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) sigaction(number, &action, nullptr);
    for (const Launch &launch : job.launches) {
        char name[32];
        snprintf(name, sizeof name, "optiml_entry_%d", launch.step);
        auto entry = reinterpret_cast<void (*)(void **)>(dlsym(module, name));
        snprintf(name, sizeof name, "optiml_size_pointer_%d", launch.step);
        auto *pointer = static_cast<const int *const *>(dlsym(module, name));
        if (!entry || !pointer) refuse("no such step");
        const int *sizes = *pointer;
        if (sizes[0] != static_cast<int>(launch.arguments.size()))
            found_last("crash", nullptr, 0, -1, sizes[0], static_cast<long long>(launch.arguments.size()), 0, "argument_count");
        std::vector<void *> arguments;
        std::vector<std::vector<uint64_t>> storage;
        for (size_t i = 0; i < launch.arguments.size(); ++i) {
            const LaunchArgument &a = launch.arguments[i];
            if (sizes[i + 1] != static_cast<int>(a.bytes.size()))
                found_last("crash", nullptr, 0, -1, static_cast<long long>(i), sizes[i + 1], 0, "argument_size");
            storage.push_back(placed(a));
        }
        for (auto &place : storage) {
            arguments.push_back(place.data());
            hook_module(reinterpret_cast<char *>(place.data()), reinterpret_cast<char *>(place.data() + place.size()));
        }
        hook_module(reinterpret_cast<char *>(arguments.data()), reinterpret_cast<char *>(arguments.data() + arguments.size()));
        fill_constants(module);
        current_step = launch.step;
        run_launch(launch, entry, arguments.data());
        if (launch.again) fill_again();
    }
    finish(0);
}

// Becomes the process of the job that is asked for, a child of the supervisor; the worker itself goes on, and ends with it.
void become_job(int control, int answers, const std::vector<int> &logs, char **jobs, int count) {
    int asked[2];
    while (read(control, asked, sizeof asked) == sizeof asked) {
        if (asked[0] < 0 || asked[0] >= count || asked[1] < 0 || static_cast<size_t>(asked[1]) >= logs.size()) break;
        // Not fork: its child would be this process's, which has no deadlines to hold.
        auto pid = static_cast<pid_t>(syscall(SYS_clone, CLONE_PARENT | SIGCHLD, nullptr, nullptr, nullptr, nullptr));
        if (pid == 0) {
            setpgid(0, 0);
            prctl(PR_SET_DUMPABLE, 1);
            dup2(logs[static_cast<size_t>(asked[1])], 2);
            for (int log : logs) close(log);
            close(control);
            close(answers);
            read_job(jobs[asked[0]]);
            return;
        }
        if (write(answers, &pid, sizeof pid) != sizeof pid) break;
    }
    _exit(0);
}

}  // namespace

// WORKER CONTROL ANSWERS SLOTS LOG... JOB...: see supervise.cpp.
int main(int count, char **words) {
    if (count < 6) refuse("which descriptors and jobs?");
    int slots = std::atoi(words[3]);
    if (slots < 1 || count < 5 + slots) refuse("how many logs?");
    std::vector<int> logs;
    for (int i = 0; i < slots; ++i) logs.push_back(std::atoi(words[4 + i]));
    char **jobs = words + 4 + slots;
    int job_count = count - 4 - slots;
    // What runs in a job's process is the same user's: it must not be able to reach into the next one's.
    prctl(PR_SET_DUMPABLE, 0);
    hook_setup();
    for (int i = 0; i < job_count; ++i) {
        read_job(jobs[i]);
        hook_prepare();
        job = Job{};
        buffers.clear();
    }
    become_job(std::atoi(words[1]), std::atoi(words[2]), logs, jobs, job_count);
    run_job();
}

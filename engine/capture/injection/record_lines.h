// What a recording consists of and how it is written: one JSON object a line, strings in hexadecimal.
#pragma once
#include <cxxabi.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

using Triple = std::array<uint32_t, 3>;
using Config_ = std::tuple<std::string, Triple, Triple, uint32_t>;  // name, grid, block, dynamic shared memory

struct Pointer {
    size_t at;  // byte of the argument
    const char *memory;
    uint64_t address, allocation, offset, recorded;
    int inner;  // words in the buffer that are addresses of GPU memory
    std::string before, after;
};

struct Argument {
    size_t offset, size;
    std::string data;
    std::vector<Pointer> pointers;
};

struct Record {
    std::string name;
    const char *call;
    std::string contents;
    Triple grid, block, cluster;
    uint32_t shared;
    std::vector<Argument> arguments;
};

struct Total {
    uint64_t count = 0, total_ns = 0, min_ns = UINT64_MAX, max_ns = 0, in_graphs = 0;
    uint32_t registers = 0, static_shared = 0;

    void add(uint64_t ns) { count++, total_ns += ns, min_ns = std::min(min_ns, ns), max_ns = std::max(max_ns, ns); }
};

inline std::string hex(const std::string &text) {
    static const char digits[] = "0123456789abcdef";
    std::string out = "\"";
    for (unsigned char byte : text) out += digits[byte >> 4], out += digits[byte & 15];
    return out + '"';
}

inline std::string demangled(const std::string &name) {
    int status = 0;
    char *text = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
    std::string found = status == 0 && text != nullptr ? text : name;
    std::free(text);
    return found;
}

inline std::string triple(const Triple &t) {
    std::ostringstream out;
    out << '[' << t[0] << ',' << t[1] << ',' << t[2] << ']';
    return out.str();
}

inline void write_total(std::ostream &out, const Config_ &config, const Total &total) {
    const auto &[name, grid, block, shared] = config;
    out << "{\"kernel\":" << hex(name) << ",\"demangled\":" << hex(demangled(name)) << ",\"grid\":" << triple(grid)
        << ",\"block\":" << triple(block) << ",\"shared\":" << shared << ",\"static_shared\":" << total.static_shared
        << ",\"registers\":" << total.registers << ",\"count\":" << total.count << ",\"total_ns\":" << total.total_ns
        << ",\"min_ns\":" << total.min_ns << ",\"max_ns\":" << total.max_ns << ",\"in_graphs\":" << total.in_graphs << "}\n";
}

inline void write_end(std::ostream &out, bool ended, uint64_t dropped, uint64_t not_kept) {
    out << "{\"ended\":" << (ended ? "true" : "false") << ",\"dropped\":" << dropped << ",\"not_kept\":" << not_kept << "}\n";
}

inline void write_launch(std::ostream &out, const Record &r) {
    out << "{\"kernel\":" << hex(r.name) << ",\"demangled\":" << hex(demangled(r.name)) << ",\"call\":" << hex(r.call)
        << ",\"grid\":" << triple(r.grid) << ",\"block\":" << triple(r.block) << ",\"cluster\":" << triple(r.cluster)
        << ",\"shared\":" << r.shared << ",\"contents\":" << hex(r.contents) << ",\"arguments\":[";
    const char *comma = "";
    for (const Argument &a : r.arguments) {
        out << comma << "{\"offset\":" << a.offset << ",\"size\":" << a.size << ",\"data\":" << hex(a.data) << ",\"pointers\":[";
        const char *between = "";
        for (const Pointer &p : a.pointers) {
            out << between << "{\"at\":" << p.at << ",\"memory\":" << hex(p.memory) << ",\"address\":" << p.address
                << ",\"allocation\":" << p.allocation << ",\"offset\":" << p.offset << ",\"recorded\":" << p.recorded
                << ",\"inner\":" << p.inner << ",\"before\":" << hex(p.before) << ",\"after\":" << hex(p.after) << "}";
            between = ",";
        }
        out << "]}";
        comma = ",";
    }
    out << "]}\n";
}

// Times and launches of one process, both recorded in one run.
struct Recording {
    std::string folder;
    pid_t owner;
    std::map<Config_, Total> totals;
    std::map<std::string, std::set<Config_>> configs;
    uint64_t files = 0;

    std::string path(const char *kind) const { return folder + "/" + kind + "-" + std::to_string(owner) + ".jsonl"; }
    std::string next_file() { return std::to_string(owner) + "-" + std::to_string(files++) + ".bin"; }
    // Whether this launch of a kernel is the first of its kind, among so many kinds.
    bool first_of(const Config_ &config, size_t most) {
        auto &known = configs[std::get<0>(config)];
        return known.size() < most && known.insert(config).second;
    }
    void append(const Record &record) {
        std::ofstream out(path("launches"), std::ios::app);
        write_launch(out, record);
    }
    void add(const Config_ &config, uint64_t ns) {
        totals[config].add(ns);
        write_times(false);
    }
    // A launch that may not end within the time limit is there already, with a time of nothing.
    void begin(const Record &record, const Config_ &config) {
        append(record);
        Total before = totals[config];
        add(config, 0);
        totals[config] = before;
    }
    // A launch that was not run again: it takes as long as those before.
    void add_again(const Config_ &config) {
        Total &total = totals[config];
        total.add(total.count ? total.min_ns : 0);  // the first one also paid for its memory
    }
    void write_times(bool ended) const {
        std::string target = path("times"), temporary = target + ".new";
        {
            std::ofstream out(temporary, std::ios::trunc);
            for (const auto &[config, total] : totals) write_total(out, config, total);
            write_end(out, ended, 0, 0);
        }
        std::rename(temporary.c_str(), target.c_str());
    }
};

#include "count.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "state.h"

namespace {

// Over so many warp accesses in one block the rest is only counted, and scaled by the reader.
constexpr size_t MAX_ENTRIES = 400000;
constexpr size_t MAX_SITES = 512;

struct Entry {
    const void *pc = nullptr;
    int array = 0;
    unsigned bytes = 0;
    bool write = false, atomic = false;
    unsigned mask = 0;
    uint64_t offset[32];
};

struct Hash {
    size_t operator()(const std::pair<uint64_t, uint64_t> &k) const {
        return (k.first * 0x9e3779b97f4a7c15ULL) ^ (k.second * 0xc2b2ae3d27d4eb4fULL);
    }
};

struct Site {
    uint64_t requests = 0, lanes = 0, cache_lines = 0, sectors = 0, ways = 0, same = 0, block_sectors = 0;
};

struct Step {
    uint64_t blocks = 0, counted = 0, accesses = 0, logged = 0, barriers = 0, unique[2] = {0, 0}, warp_loads = 0, block_loads = 0;
};

std::unordered_map<std::pair<uint64_t, uint64_t>, unsigned, Hash> visits;
std::unordered_map<std::pair<uint64_t, uint64_t>, Entry, Hash> entries;
std::map<std::tuple<int, const void *, int, bool, bool, unsigned>, Site> sites;  // step, pc, array, write, atomic, bytes
std::map<int, Step> steps;

// Pieces of `unit` bytes that one request of a warp touches: sectors of 32, cache lines of 128.
uint64_t pieces_of(const Entry &e, unsigned unit) {
    std::vector<uint64_t> all;
    for (int l = 0; l < 32; ++l) {
        if (!(e.mask >> l & 1)) continue;
        for (uint64_t s = e.offset[l] / unit; s <= (e.offset[l] + e.bytes - 1) / unit; ++s) all.push_back(s);
    }
    std::sort(all.begin(), all.end());
    return static_cast<uint64_t>(std::unique(all.begin(), all.end()) - all.begin());
}

// Passes that a shared-memory request takes: the most distinct 4-byte words any of the 32 banks must give, where
// 8-byte accesses go by half warps and 16-byte ones by quarters.
uint64_t ways_of(const Entry &e) {
    int group = e.bytes >= 16 ? 8 : e.bytes == 8 ? 16 : 32;
    uint64_t total = 0;
    for (int begin = 0; begin < 32; begin += group) {
        std::vector<uint64_t> words;
        for (int l = begin; l < begin + group; ++l) {
            if (!(e.mask >> l & 1)) continue;
            for (uint64_t w = e.offset[l] / 4; w <= (e.offset[l] + e.bytes - 1) / 4; ++w) words.push_back(w);
        }
        std::sort(words.begin(), words.end());
        words.erase(std::unique(words.begin(), words.end()), words.end());
        uint64_t banks[32] = {}, most = 0;
        for (uint64_t w : words) most = std::max(most, ++banks[w % 32]);
        total += most;
    }
    return total;
}

// The most lanes that hit one address.
uint64_t same_address(const Entry &e) {
    std::map<uint64_t, uint64_t> hits;
    uint64_t most = 0;
    for (int l = 0; l < 32; ++l)
        if (e.mask >> l & 1) most = std::max(most, ++hits[e.offset[l]]);
    return most;
}

// Null where there are too many sites.
Site *site_of(const Entry &e) {
    auto id = std::make_tuple(current_step, e.pc, e.array, e.write, e.atomic, e.bytes);
    if (sites.size() >= MAX_SITES && !sites.count(id)) return nullptr;
    return &sites[id];
}

}  // namespace

void count_access(const void *pc, int array, size_t offset, size_t bytes, int write, bool atomic) {
    Step &step = steps[current_step];
    ++step.accesses;
    auto where = reinterpret_cast<uint64_t>(pc) * 2 + static_cast<uint64_t>(write);
    auto thread = static_cast<uint64_t>(current->warp) * 32 + static_cast<uint64_t>(current->lane);
    unsigned visit = visits[{where, thread}]++;
    std::pair<uint64_t, uint64_t> key{where, static_cast<uint64_t>(current->warp) << 32 | visit};
    auto it = entries.find(key);
    if (it == entries.end()) {
        if (entries.size() >= MAX_ENTRIES) return;
        it = entries.emplace(key, Entry{}).first;
        Entry &e = it->second;
        e.pc = pc;
        e.array = array;
        e.bytes = static_cast<unsigned>(bytes);
        e.write = write != 0;
        e.atomic = atomic;
    }
    ++step.logged;
    Entry &e = it->second;
    e.mask |= 1u << current->lane;
    e.offset[current->lane] = offset;
}

void count_block() {
    std::map<uint64_t, uint64_t> loads;  // by warp
    std::unordered_set<uint64_t> loaded;  // this block's distinct sectors, by array and number
    std::unordered_set<std::pair<uint64_t, uint64_t>, Hash> at_site;  // the same of each site alone
    for (auto &[key, e] : entries) {
        if (e.array >= SHARED_BASE || (e.write && !e.atomic)) continue;
        uint64_t fresh = 0;
        for (int l = 0; l < 32; ++l) {
            if (!(e.mask >> l & 1)) continue;
            for (uint64_t s = e.offset[l] / 32; s <= (e.offset[l] + e.bytes - 1) / 32; ++s) {
                uint64_t sector = static_cast<uint64_t>(e.array) << 48 | s;
                loaded.insert(sector);
                fresh += at_site.insert({reinterpret_cast<uint64_t>(e.pc), sector}).second;
            }
        }
        if (Site *s = site_of(e)) s->block_sectors += fresh;
    }
    steps[current_step].block_loads += loaded.size();
    for (auto &[key, e] : entries)
        if (e.array < SHARED_BASE && !e.write) steps[current_step].warp_loads = std::max(steps[current_step].warp_loads, ++loads[key.second >> 32]);
    for (auto &[key, e] : entries) {
        Site *found = site_of(e);
        if (!found) continue;
        Site &s = *found;
        ++s.requests;
        s.lanes += static_cast<uint64_t>(__builtin_popcount(e.mask));
        if (e.array >= SHARED_BASE) {
            s.ways += ways_of(e);
        } else {
            s.sectors += pieces_of(e, 32);
            s.cache_lines += pieces_of(e, 128);
        }
        if (e.atomic) s.same += same_address(e);
    }
    entries.clear();
    visits.clear();
    ++steps[current_step].counted;
}

void count_launch_block() {
    if (!job.count) return;
    if (steps[current_step].blocks++ == 0)
        for (Array &a : buffers)
            for (uint8_t *&seen : a.sectors)
                if (!seen) seen = static_cast<uint8_t *>(calloc(a.bytes / 32 + 2, 1));
}

void count_launch_end() {
    if (!job.count) return;
    steps[current_step].barriers = barrier_warps;
    for (Array &a : buffers)
        for (int k = 0; k < 2; ++k) {
            if (!a.sectors[k]) continue;
            for (size_t i = 0; i < a.bytes / 32 + 1; ++i) steps[current_step].unique[k] += a.sectors[k][i];
            free(a.sectors[k]);
            a.sectors[k] = nullptr;
        }
}

void count_report(FILE *out) {
    if (!job.count) return;
    for (auto &[number, s] : steps)
        fprintf(out, "step %d %llu %llu %llu %llu %llu %llu %llu %llu %llu\n", number, static_cast<unsigned long long>(s.blocks),
                static_cast<unsigned long long>(s.counted), static_cast<unsigned long long>(s.accesses),
                static_cast<unsigned long long>(s.logged), static_cast<unsigned long long>(s.barriers),
                static_cast<unsigned long long>(s.warp_loads), static_cast<unsigned long long>(s.unique[0]),
                static_cast<unsigned long long>(s.unique[1]), static_cast<unsigned long long>(s.block_loads));

    for (auto &[id, s] : sites) {
        auto [step, pc, array, write, atomic, bytes] = id;
        fprintf(out, "site %d %llu %d %d %d %u %llu %llu %llu %llu %llu %llu %llu\n", step,
                static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(pc) - base_address), array, write ? 1 : 0,
                atomic ? 1 : 0, bytes, static_cast<unsigned long long>(s.requests), static_cast<unsigned long long>(s.lanes),
                static_cast<unsigned long long>(s.cache_lines), static_cast<unsigned long long>(s.sectors),
                static_cast<unsigned long long>(s.ways), static_cast<unsigned long long>(s.same),
                static_cast<unsigned long long>(s.block_sectors));
    }
}

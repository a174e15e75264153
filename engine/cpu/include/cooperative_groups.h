// Cooperative groups: blocks, tiles, coalesced threads. Grids and clusters cannot run here.
#pragma once
#include "optiml_cuda.h"

namespace cooperative_groups {

namespace details {
OPTIML_INLINE unsigned linear_thread() {
    return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
}
}  // namespace details

class thread_block {
public:
    OPTIML_INLINE void sync(OPTIML_WHERE) const { optiml_barrier(OPTIML_BLOCK_SYNC, 1, line, file); }
    OPTIML_INLINE unsigned thread_rank() const { return details::linear_thread(); }
    OPTIML_INLINE unsigned size() const { return blockDim.x * blockDim.y * blockDim.z; }
    OPTIML_INLINE unsigned num_threads() const { return size(); }
    OPTIML_INLINE dim3 group_index() const { return blockIdx; }
    OPTIML_INLINE dim3 thread_index() const { return threadIdx; }
    OPTIML_INLINE dim3 group_dim() const { return blockDim; }
    OPTIML_INLINE dim3 dim_threads() const { return blockDim; }
};
OPTIML_INLINE thread_block this_thread_block() { return {}; }

// Lanes of one warp: those of `mask`, ranked by their lane, for a tile of `Size` lanes or (0) any number.
template <unsigned Size>
class warp_group {
protected:
    unsigned mask;
    unsigned first;
    unsigned meta;

    OPTIML_INLINE unsigned lane() const { return details::linear_thread() & 31; }
    OPTIML_INLINE unsigned lane_of(unsigned rank) const {
        if (Size) return first + rank;
        unsigned rest = mask;
        for (unsigned i = 0; i < rank && rest; ++i) rest &= rest - 1;
        return rest ? static_cast<unsigned>(__builtin_ctz(rest)) : lane();
    }

public:
    OPTIML_INLINE warp_group(unsigned mask, unsigned first, unsigned meta) : mask(mask), first(first), meta(meta) {}
    OPTIML_INLINE void sync(OPTIML_WHERE) const { optiml_warp(OPTIML_SYNC, mask, 0, 0, 32, line, file); }
    OPTIML_INLINE unsigned size() const { return Size ? Size : static_cast<unsigned>(__builtin_popcount(mask)); }
    OPTIML_INLINE unsigned num_threads() const { return size(); }
    OPTIML_INLINE unsigned thread_rank() const {
        return Size ? lane() - first : static_cast<unsigned>(__builtin_popcount(mask & ((1u << lane()) - 1)));
    }
    OPTIML_INLINE unsigned meta_group_rank() const { return meta; }
    OPTIML_INLINE unsigned meta_group_size() const {
        unsigned threads = blockDim.x * blockDim.y * blockDim.z;
        return Size ? (threads + Size - 1) / Size : 1;
    }
    template <class T_>
    OPTIML_INLINE T_ shfl(T_ value, unsigned source, OPTIML_WHERE) const {
        return optiml::shuffle(OPTIML_SHFL_IDX, mask, value, static_cast<int>(lane_of(source % size())), 32, line, file);
    }
    template <class T_>
    OPTIML_INLINE T_ shfl_down(T_ value, unsigned delta, OPTIML_WHERE) const {
        unsigned to = thread_rank() + delta;
        int source = static_cast<int>(to < size() ? lane_of(to) : lane());
        return optiml::shuffle(OPTIML_SHFL_IDX, mask, value, source, 32, line, file);
    }
    template <class T_>
    OPTIML_INLINE T_ shfl_up(T_ value, unsigned delta, OPTIML_WHERE) const {
        int source = static_cast<int>(thread_rank() >= delta ? lane_of(thread_rank() - delta) : lane());
        return optiml::shuffle(OPTIML_SHFL_IDX, mask, value, source, 32, line, file);
    }
    template <class T_>
    OPTIML_INLINE T_ shfl_xor(T_ value, unsigned lanes, OPTIML_WHERE) const {
        unsigned to = thread_rank() ^ lanes;
        int source = static_cast<int>(to < size() ? lane_of(to) : lane());
        return optiml::shuffle(OPTIML_SHFL_IDX, mask, value, source, 32, line, file);
    }
    // The votes' bits are ranks, not lanes.
    OPTIML_INLINE unsigned ballot(int predicate, OPTIML_WHERE) const {
        return ranks(static_cast<unsigned>(optiml_warp(OPTIML_BALLOT, mask, predicate != 0, 0, 32, line, file)));
    }
    OPTIML_INLINE int any(int predicate, OPTIML_WHERE) const { return ballot(predicate, line, file) != 0; }
    OPTIML_INLINE int all(int predicate, OPTIML_WHERE) const { return ballot(!predicate, line, file) == 0; }
    template <class T_>
    OPTIML_INLINE unsigned match_any(T_ value, OPTIML_WHERE) const {
        auto word = optiml::bits<uint64_t>(value);
        return ranks(static_cast<unsigned>(optiml_warp(OPTIML_MATCH_ANY, mask, word, 0, 32, line, file)));
    }

private:
    OPTIML_INLINE unsigned ranks(unsigned lanes) const {
        if (Size) return lanes >> first;
        unsigned result = 0, rank = 0;
        for (unsigned rest = mask; rest; rest &= rest - 1, ++rank)
            if (lanes >> __builtin_ctz(rest) & 1) result |= 1u << rank;
        return result;
    }
};

template <unsigned Size, class Parent = void>
class thread_block_tile : public warp_group<Size> {
    static_assert(Size > 0 && Size <= 32 && (Size & (Size - 1)) == 0, "tiles of more than a warp cannot run on the CPU");

public:
    using warp_group<Size>::warp_group;
    // A tile forgets what it is a part of when it is stored as thread_block_tile<Size>.
    template <class Other>
    OPTIML_INLINE thread_block_tile(const thread_block_tile<Size, Other> &other) : warp_group<Size>(other) {}
};

class coalesced_group : public warp_group<0> {
public:
    using warp_group<0>::warp_group;
};

template <unsigned Size, class Parent>
OPTIML_INLINE thread_block_tile<Size, Parent> tiled_partition(const Parent &) {
    unsigned lane = details::linear_thread() & 31, first = lane & ~(Size - 1);
    unsigned mask = Size == 32 ? 0xffffffffu : ((1u << (Size & 31)) - 1) << first;
    return {mask, first, details::linear_thread() / Size};
}

OPTIML_INLINE coalesced_group coalesced_threads(OPTIML_WHERE) { return {optiml_activemask(line, file), 0, 0}; }

template <class Group>
OPTIML_INLINE void sync(const Group &group, OPTIML_WHERE) { group.sync(line, file); }
template <class Group>
OPTIML_INLINE unsigned thread_rank(const Group &group) { return group.thread_rank(); }
template <class Group>
OPTIML_INLINE unsigned group_size(const Group &group) { return group.size(); }

// The copy is done at once; waiting for it is the barrier that the group's threads still need.
template <class Group, class T_, class U_, class Size>
OPTIML_INLINE void memcpy_async(const Group &group, T_ *to, const U_ *from, const Size &bytes, OPTIML_WHERE) {
    (void)line, (void)file;
    auto *target = reinterpret_cast<char *>(to);
    auto *source = reinterpret_cast<const char *>(from);
    auto count = static_cast<size_t>(bytes);
    size_t step = count % 4 == 0 ? 4 : 1;
    for (size_t i = group.thread_rank() * step; i < count; i += group.size() * step) optiml::copy(target + i, source + i, step);
}
template <class Group>
OPTIML_INLINE void wait(const Group &group, OPTIML_WHERE) { group.sync(line, file); }
template <unsigned Stages, class Group>
OPTIML_INLINE void wait_prior(const Group &group, OPTIML_WHERE) { group.sync(line, file); }

}  // namespace cooperative_groups

// CUB's primitives of a block and of a warp, as a kernel calls them: reductions, scans, loads and stores of items. What CUB leaves
// undefined (a reduction's result but in the first thread) is the thread's own input here. Of device-wide algorithms there is nothing.
#pragma once
#include "../optiml_cuda.h"

namespace cub {

enum BlockReduceAlgorithm { BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY, BLOCK_REDUCE_RAKING, BLOCK_REDUCE_WARP_REDUCTIONS };
enum BlockScanAlgorithm { BLOCK_SCAN_RAKING, BLOCK_SCAN_RAKING_MEMOIZE, BLOCK_SCAN_WARP_SCANS };
enum BlockLoadAlgorithm {
    BLOCK_LOAD_DIRECT, BLOCK_LOAD_STRIPED, BLOCK_LOAD_VECTORIZE, BLOCK_LOAD_TRANSPOSE, BLOCK_LOAD_WARP_TRANSPOSE,
    BLOCK_LOAD_WARP_TRANSPOSE_TIMESLICED
};
enum BlockStoreAlgorithm {
    BLOCK_STORE_DIRECT, BLOCK_STORE_STRIPED, BLOCK_STORE_VECTORIZE, BLOCK_STORE_TRANSPOSE, BLOCK_STORE_WARP_TRANSPOSE,
    BLOCK_STORE_WARP_TRANSPOSE_TIMESLICED
};

struct Sum {
    template <class A_, class B_>
    OPTIML_INLINE auto operator()(const A_ &a, const B_ &b) const { return a + b; }
};
struct Max {
    template <class T_>
    OPTIML_INLINE T_ operator()(const T_ &a, const T_ &b) const { return b > a ? b : a; }
};
struct Min {
    template <class T_>
    OPTIML_INLINE T_ operator()(const T_ &a, const T_ &b) const { return b < a ? b : a; }
};
template <class K_, class V_>
struct KeyValuePair {
    K_ key;
    V_ value;
    KeyValuePair() = default;
    OPTIML_INLINE KeyValuePair(const K_ &key, const V_ &value) : key(key), value(value) {}
};
struct ArgMax {
    template <class K_, class V_>
    OPTIML_INLINE KeyValuePair<K_, V_> operator()(const KeyValuePair<K_, V_> &a, const KeyValuePair<K_, V_> &b) const {
        return b.value > a.value || (b.value == a.value && b.key < a.key) ? b : a;
    }
};
struct ArgMin {
    template <class K_, class V_>
    OPTIML_INLINE KeyValuePair<K_, V_> operator()(const KeyValuePair<K_, V_> &a, const KeyValuePair<K_, V_> &b) const {
        return b.value < a.value || (b.value == a.value && b.key < a.key) ? b : a;
    }
};

// Where a caller stands: a type of its own, as whole numbers are arguments here.
struct Where {
    int line;
    const char *file;
};
#define OPTIML_CUB_WHERE Where where = Where{__builtin_LINE(), __builtin_FILE()}

namespace details {
OPTIML_INLINE int rank() { return static_cast<int>((threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x); }
// The lanes of the calling thread's group of `Width` in its warp.
template <int Width>
OPTIML_INLINE unsigned lanes() {
    static_assert(Width > 0 && Width <= 32 && (Width & (Width - 1)) == 0, "warps of this width are not supported on the CPU");
    return Width == 32 ? 0xffffffffu : ((1u << Width % 32) - 1) << (rank() % 32 / Width * Width);
}
// As a tree, as close to the sum of a GPU's as another order is.
template <class T_, class Op_>
T_ folded(const T_ *values, int count, Op_ op) {
    if (count <= 1) return values[0];
    int half = 1;
    while (2 * half < count) half *= 2;
    return op(folded(values, half, op), folded(values + half, count - half, op));
}
template <int Items, class T_, class Op_>
OPTIML_INLINE T_ own(const T_ (&items)[Items], Op_ op) {
    T_ result = items[0];
    for (int i = 1; i < Items; ++i) result = op(result, items[i]);
    return result;
}
}  // namespace details

template <class T_, int X_, BlockReduceAlgorithm = BLOCK_REDUCE_WARP_REDUCTIONS, int Y_ = 1, int Z_ = 1, int = 0>
class BlockReduce {
    static constexpr int kThreads = X_ * Y_ * Z_;

public:
    struct TempStorage {
        T_ values[kThreads];
    };
    OPTIML_INLINE explicit BlockReduce(TempStorage &storage) : temp(storage) {}
    OPTIML_INLINE BlockReduce() : temp(OPTIML_SHARED(block_reduce)) {}

    template <class Op_>
    OPTIML_INLINE T_ Reduce(T_ input, Op_ op, int valid, OPTIML_CUB_WHERE) {
        int at = details::rank();
        temp.values[at] = input;
        optiml_barrier(OPTIML_BLOCK_SYNC, 1, where.line, where.file);
        return at == 0 ? details::folded(temp.values, valid < kThreads ? valid : kThreads, op) : input;
    }
    template <class Op_>
    OPTIML_INLINE T_ Reduce(T_ input, Op_ op, OPTIML_CUB_WHERE) { return Reduce(input, op, kThreads, where); }
    template <int Items_, class Op_>
    OPTIML_INLINE T_ Reduce(T_ (&items)[Items_], Op_ op, OPTIML_CUB_WHERE) {
        return Reduce(details::own(items, op), op, kThreads, where);
    }
    OPTIML_INLINE T_ Sum(T_ input, OPTIML_CUB_WHERE) { return Reduce(input, cub::Sum(), kThreads, where); }
    template <class N_, class = std::enable_if_t<std::is_integral<N_>::value>>
    OPTIML_INLINE T_ Sum(T_ input, N_ valid, OPTIML_CUB_WHERE) {
        return Reduce(input, cub::Sum(), static_cast<int>(valid), where);
    }
    template <int Items_>
    OPTIML_INLINE T_ Sum(T_ (&items)[Items_], OPTIML_CUB_WHERE) {
        return Reduce(details::own(items, cub::Sum()), cub::Sum(), kThreads, where);
    }

private:
    TempStorage &temp;
};

template <class T_, int X_, BlockScanAlgorithm = BLOCK_SCAN_RAKING, int Y_ = 1, int Z_ = 1, int = 0>
class BlockScan {
    static constexpr int kThreads = X_ * Y_ * Z_;

public:
    struct TempStorage {
        T_ values[kThreads];  // inclusive, once scanned
        T_ prefix;
    };
    OPTIML_INLINE explicit BlockScan(TempStorage &storage) : temp(storage) {}
    OPTIML_INLINE BlockScan() : temp(OPTIML_SHARED(block_scan)) {}

    // Sums of this thread's value and those before it.
    template <class Op_>
    OPTIML_INLINE void InclusiveScan(T_ input, T_ &output, Op_ op, T_ &aggregate, OPTIML_CUB_WHERE) {
        scan(input, op, where);
        output = temp.values[details::rank()];
        aggregate = temp.values[kThreads - 1];
    }
    template <class Op_>
    OPTIML_INLINE void InclusiveScan(T_ input, T_ &output, Op_ op, OPTIML_CUB_WHERE) {
        scan(input, op, where);
        output = temp.values[details::rank()];
    }
    template <class Op_, class Prefix_, class = decltype(std::declval<Prefix_ &>()(std::declval<T_>()))>
    OPTIML_INLINE void InclusiveScan(T_ input, T_ &output, Op_ op, Prefix_ &prefix, OPTIML_CUB_WHERE) {
        scan(input, op, where);
        begin(prefix, where);
        output = op(temp.prefix, temp.values[details::rank()]);
    }
    template <int Items_, class Op_>
    OPTIML_INLINE void InclusiveScan(T_ (&input)[Items_], T_ (&output)[Items_], Op_ op, T_ &aggregate, OPTIML_CUB_WHERE) {
        InclusiveScan(input, output, op, where);
        aggregate = temp.values[kThreads - 1];
    }
    template <int Items_, class Op_>
    OPTIML_INLINE void InclusiveScan(T_ (&input)[Items_], T_ (&output)[Items_], Op_ op, OPTIML_CUB_WHERE) {
        scan(details::own(input, op), op, where);
        int at = details::rank();
        T_ running = at ? op(temp.values[at - 1], input[0]) : input[0];
        for (int i = 0; i < Items_; ++i) {
            T_ next = i + 1 < Items_ ? op(running, input[i + 1 < Items_ ? i + 1 : i]) : running;
            output[i] = running;
            running = next;
        }
    }
    // Without this thread's own value; what stands before all is `first`.
    template <class Op_>
    OPTIML_INLINE void ExclusiveScan(T_ input, T_ &output, T_ first, Op_ op, T_ &aggregate, OPTIML_CUB_WHERE) {
        ExclusiveScan(input, output, first, op, where);
        aggregate = temp.values[kThreads - 1];
    }
    template <class Op_>
    OPTIML_INLINE void ExclusiveScan(T_ input, T_ &output, T_ first, Op_ op, OPTIML_CUB_WHERE) {
        scan(input, op, where);
        int at = details::rank();
        output = at ? op(first, temp.values[at - 1]) : first;
    }
    template <int Items_, class Op_>
    OPTIML_INLINE void ExclusiveScan(T_ (&input)[Items_], T_ (&output)[Items_], T_ first, Op_ op, T_ &aggregate, OPTIML_CUB_WHERE) {
        ExclusiveScan(input, output, first, op, where);
        aggregate = temp.values[kThreads - 1];
    }
    template <int Items_, class Op_>
    OPTIML_INLINE void ExclusiveScan(T_ (&input)[Items_], T_ (&output)[Items_], T_ first, Op_ op, OPTIML_CUB_WHERE) {
        scan(details::own(input, op), op, where);
        int at = details::rank();
        T_ running = at ? op(first, temp.values[at - 1]) : first;
        for (int i = 0; i < Items_; ++i) {
            T_ value = input[i];
            output[i] = running;
            running = op(running, value);
        }
    }
    template <class Op_, class Prefix_, class = decltype(std::declval<Prefix_ &>()(std::declval<T_>()))>
    OPTIML_INLINE void ExclusiveScan(T_ input, T_ &output, Op_ op, Prefix_ &prefix, OPTIML_CUB_WHERE) {
        scan(input, op, where);
        begin(prefix, where);
        int at = details::rank();
        output = at ? op(temp.prefix, temp.values[at - 1]) : temp.prefix;
    }
    template <class In_, class Out_>
    OPTIML_INLINE void InclusiveSum(In_ &&input, Out_ &output, OPTIML_CUB_WHERE) { InclusiveScan(input, output, cub::Sum(), where); }
    template <class In_, class Out_, class More_>
    OPTIML_INLINE void InclusiveSum(In_ &&input, Out_ &output, More_ &more, OPTIML_CUB_WHERE) {
        InclusiveScan(input, output, cub::Sum(), more, where);
    }
    template <class In_, class Out_>
    OPTIML_INLINE void ExclusiveSum(In_ &&input, Out_ &output, OPTIML_CUB_WHERE) {
        ExclusiveScan(input, output, T_(0), cub::Sum(), where);
    }
    template <class In_, class Out_>
    OPTIML_INLINE void ExclusiveSum(In_ &&input, Out_ &output, T_ &aggregate, OPTIML_CUB_WHERE) {
        ExclusiveScan(input, output, T_(0), cub::Sum(), aggregate, where);
    }
    template <class In_, class Out_, class Prefix_, class = decltype(std::declval<Prefix_ &>()(std::declval<T_>()))>
    OPTIML_INLINE void ExclusiveSum(In_ &&input, Out_ &output, Prefix_ &prefix, OPTIML_CUB_WHERE) {
        ExclusiveScan(input, output, cub::Sum(), prefix, where);
    }

private:
    template <class Op_>
    OPTIML_INLINE void scan(T_ input, Op_ op, Where where) {
        int at = details::rank();
        temp.values[at] = input;
        optiml_barrier(OPTIML_BLOCK_SYNC, 1, where.line, where.file);
        if (at == 0)
            for (int i = 1; i < kThreads; ++i) temp.values[i] = op(temp.values[i - 1], temp.values[i]);
        optiml_barrier(OPTIML_BLOCK_SYNC, 1, where.line, where.file);
    }
    // The first warp asks what stands before the block; its first lane is told.
    template <class Prefix_>
    OPTIML_INLINE void begin(Prefix_ &prefix, Where where) {
        int at = details::rank();
        if (at < 32) {
            T_ before = prefix(temp.values[kThreads - 1]);
            if (at == 0) temp.prefix = before;
        }
        optiml_barrier(OPTIML_BLOCK_SYNC, 1, where.line, where.file);
    }
    TempStorage &temp;
};

template <class T_, int Width_ = 32, int = 0>
class WarpReduce {
public:
    struct TempStorage {
        char unused;
    };
    OPTIML_INLINE explicit WarpReduce(TempStorage &) {}

    template <class Op_>
    OPTIML_INLINE T_ Reduce(T_ input, Op_ op, int valid, OPTIML_CUB_WHERE) {
        int lane = details::rank() % Width_;
        for (int by = 1; by < Width_; by *= 2) {
            T_ other = optiml::shuffle(OPTIML_SHFL_DOWN, details::lanes<Width_>(), input, by, Width_, where.line, where.file);
            if (lane + by < valid) input = op(input, other);
        }
        return input;
    }
    template <class Op_>
    OPTIML_INLINE T_ Reduce(T_ input, Op_ op, OPTIML_CUB_WHERE) { return Reduce(input, op, Width_, where); }
    OPTIML_INLINE T_ Sum(T_ input, OPTIML_CUB_WHERE) { return Reduce(input, cub::Sum(), Width_, where); }
    template <class N_, class = std::enable_if_t<std::is_integral<N_>::value>>
    OPTIML_INLINE T_ Sum(T_ input, N_ valid, OPTIML_CUB_WHERE) {
        return Reduce(input, cub::Sum(), static_cast<int>(valid), where);
    }
};

template <class T_, int Width_ = 32, int = 0>
class WarpScan {
public:
    struct TempStorage {
        char unused;
    };
    OPTIML_INLINE explicit WarpScan(TempStorage &) {}

    template <class Op_>
    OPTIML_INLINE void InclusiveScan(T_ input, T_ &output, Op_ op, OPTIML_CUB_WHERE) {
        int lane = details::rank() % Width_;
        for (int by = 1; by < Width_; by *= 2) {
            T_ other = optiml::shuffle(OPTIML_SHFL_UP, details::lanes<Width_>(), input, by, Width_, where.line, where.file);
            if (lane >= by) input = op(other, input);
        }
        output = input;
    }
    template <class Op_>
    OPTIML_INLINE void InclusiveScan(T_ input, T_ &output, Op_ op, T_ &aggregate, OPTIML_CUB_WHERE) {
        InclusiveScan(input, output, op, where);
        aggregate = last(output, where);
    }
    template <class Op_>
    OPTIML_INLINE void ExclusiveScan(T_ input, T_ &output, T_ first, Op_ op, OPTIML_CUB_WHERE) {
        T_ all;
        ExclusiveScan(input, output, first, op, all, where);
    }
    template <class Op_>
    OPTIML_INLINE void ExclusiveScan(T_ input, T_ &output, T_ first, Op_ op, T_ &aggregate, OPTIML_CUB_WHERE) {
        T_ inclusive;
        InclusiveScan(input, inclusive, op, where);
        T_ before = optiml::shuffle(OPTIML_SHFL_UP, details::lanes<Width_>(), inclusive, 1, Width_, where.line, where.file);
        output = details::rank() % Width_ ? op(first, before) : first;
        aggregate = last(inclusive, where);
    }
    OPTIML_INLINE void InclusiveSum(T_ input, T_ &output, OPTIML_CUB_WHERE) { InclusiveScan(input, output, cub::Sum(), where); }
    OPTIML_INLINE void InclusiveSum(T_ input, T_ &output, T_ &aggregate, OPTIML_CUB_WHERE) {
        InclusiveScan(input, output, cub::Sum(), aggregate, where);
    }
    OPTIML_INLINE void ExclusiveSum(T_ input, T_ &output, OPTIML_CUB_WHERE) {
        ExclusiveScan(input, output, T_(0), cub::Sum(), where);
    }
    OPTIML_INLINE void ExclusiveSum(T_ input, T_ &output, T_ &aggregate, OPTIML_CUB_WHERE) {
        ExclusiveScan(input, output, T_(0), cub::Sum(), aggregate, where);
    }
    OPTIML_INLINE T_ Broadcast(T_ input, unsigned source, OPTIML_CUB_WHERE) {
        return optiml::shuffle(OPTIML_SHFL_IDX, details::lanes<Width_>(), input, static_cast<int>(source), Width_, where.line, where.file);
    }

private:
    OPTIML_INLINE T_ last(T_ value, Where where) {
        return optiml::shuffle(OPTIML_SHFL_IDX, details::lanes<Width_>(), value, Width_ - 1, Width_, where.line, where.file);
    }
};

namespace details {
// Where the items of a thread lie.
template <bool Striped_, int Threads_, int Items_>
struct ItemPlaces {
    struct TempStorage {
        char unused;
    };
    static OPTIML_INLINE int place(int i) { return Striped_ ? i * Threads_ + rank() : rank() * Items_ + i; }
};
}  // namespace details

template <class T_, int X_, int Items_, BlockLoadAlgorithm How_ = BLOCK_LOAD_DIRECT, int Y_ = 1, int Z_ = 1, int = 0>
class BlockLoad : details::ItemPlaces<How_ == BLOCK_LOAD_STRIPED, X_ * Y_ * Z_, Items_> {
    using Places_ = details::ItemPlaces<How_ == BLOCK_LOAD_STRIPED, X_ * Y_ * Z_, Items_>;
    using Places_::place;

public:
    using typename Places_::TempStorage;
    OPTIML_INLINE BlockLoad() {}
    OPTIML_INLINE explicit BlockLoad(TempStorage &) {}

    template <class It_>
    OPTIML_INLINE void Load(It_ from, T_ (&items)[Items_]) {
        for (int i = 0; i < Items_; ++i) items[i] = from[place(i)];
    }
    template <class It_>
    OPTIML_INLINE void Load(It_ from, T_ (&items)[Items_], int valid) {
        for (int i = 0; i < Items_; ++i)
            if (place(i) < valid) items[i] = from[place(i)];
    }
    template <class It_, class D_>
    OPTIML_INLINE void Load(It_ from, T_ (&items)[Items_], int valid, D_ otherwise) {
        for (int i = 0; i < Items_; ++i) items[i] = place(i) < valid ? static_cast<T_>(from[place(i)]) : static_cast<T_>(otherwise);
    }
};

template <class T_, int X_, int Items_, BlockStoreAlgorithm How_ = BLOCK_STORE_DIRECT, int Y_ = 1, int Z_ = 1, int = 0>
class BlockStore : details::ItemPlaces<How_ == BLOCK_STORE_STRIPED, X_ * Y_ * Z_, Items_> {
    using Places_ = details::ItemPlaces<How_ == BLOCK_STORE_STRIPED, X_ * Y_ * Z_, Items_>;
    using Places_::place;

public:
    using typename Places_::TempStorage;
    OPTIML_INLINE BlockStore() {}
    OPTIML_INLINE explicit BlockStore(TempStorage &) {}

    template <class It_>
    OPTIML_INLINE void Store(It_ to, T_ (&items)[Items_]) {
        for (int i = 0; i < Items_; ++i) to[place(i)] = items[i];
    }
    template <class It_>
    OPTIML_INLINE void Store(It_ to, T_ (&items)[Items_], int valid) {
        for (int i = 0; i < Items_; ++i)
            if (place(i) < valid) to[place(i)] = items[i];
    }
};

}  // namespace cub

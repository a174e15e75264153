#pragma once
#include "reduce.h"

namespace cooperative_groups {

template <class Group, class T, class Operation = plus<T>>
OPTIML_INLINE T inclusive_scan(const Group &group, T value, Operation operation = {}, OPTIML_WHERE) {
    T result = value;
    bool started = false;
    for (unsigned i = 0; i < group.size(); ++i) {
        T other = group.shfl(value, i, line, file);
        if (i > group.thread_rank()) continue;
        result = started ? operation(result, other) : other;
        started = true;
    }
    return result;
}
template <class Group, class T, class Operation = plus<T>>
OPTIML_INLINE T exclusive_scan(const Group &group, T value, Operation operation = {}, OPTIML_WHERE) {
    T result{};
    bool started = false;
    for (unsigned i = 0; i < group.size(); ++i) {
        T other = group.shfl(value, i, line, file);
        if (i >= group.thread_rank()) continue;
        result = started ? operation(result, other) : other;
        started = true;
    }
    return result;
}

}  // namespace cooperative_groups

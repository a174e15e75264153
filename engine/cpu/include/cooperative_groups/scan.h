#pragma once
#include "reduce.h"

namespace cooperative_groups {

template <class Group, class T_, class Operation = plus<T_>>
OPTIML_INLINE T_ inclusive_scan(const Group &group, T_ value, Operation operation = {}, OPTIML_WHERE) {
    T_ result = value;
    bool started = false;
    for (unsigned i = 0; i < group.size(); ++i) {
        T_ other = group.shfl(value, i, line, file);
        if (i > group.thread_rank()) continue;
        result = started ? operation(result, other) : other;
        started = true;
    }
    return result;
}
template <class Group, class T_, class Operation = plus<T_>>
OPTIML_INLINE T_ exclusive_scan(const Group &group, T_ value, Operation operation = {}, OPTIML_WHERE) {
    T_ result{};
    bool started = false;
    for (unsigned i = 0; i < group.size(); ++i) {
        T_ other = group.shfl(value, i, line, file);
        if (i >= group.thread_rank()) continue;
        result = started ? operation(result, other) : other;
        started = true;
    }
    return result;
}

}  // namespace cooperative_groups

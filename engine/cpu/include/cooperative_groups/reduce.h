#pragma once
#include "../cooperative_groups.h"

namespace cooperative_groups {

#define OPTIML_OPERATION(NAME, EXPRESSION)                                 \
    template <class T_ = void>                                              \
    struct NAME {                                                          \
        OPTIML_INLINE T_ operator()(T_ a, T_ b) const { return EXPRESSION; }  \
    };
OPTIML_OPERATION(plus, static_cast<T_>(a + b))
OPTIML_OPERATION(less, b < a ? b : a)
OPTIML_OPERATION(greater, a < b ? b : a)
OPTIML_OPERATION(bit_and, static_cast<T_>(a & b))
OPTIML_OPERATION(bit_or, static_cast<T_>(a | b))
OPTIML_OPERATION(bit_xor, static_cast<T_>(a ^ b))
#undef OPTIML_OPERATION

// Every member's value in order of rank, so all members get the same result whatever the group's size.
template <class Group, class T_, class Operation>
OPTIML_INLINE T_ reduce(const Group &group, T_ value, Operation operation, OPTIML_WHERE) {
    T_ result = group.shfl(value, 0, line, file);
    for (unsigned i = 1; i < group.size(); ++i) result = operation(result, group.shfl(value, i, line, file));
    return result;
}

}  // namespace cooperative_groups

// Thrust writes to allocations from the host.
#pragma once
#pragma GCC system_header

namespace optiml {
inline const bool thrust_writes = (host_writes(), true);
}

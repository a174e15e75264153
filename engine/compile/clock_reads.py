"""Instructions of a cubin that read a clock or a performance counter, or that wait: found in the machine code, whatever name wrote them.

The instruction's low 12 bits are its operation, bits 72 to 79 the special register. Measured by disassembling patched instructions of
sm_75 to sm_120 with nvdisasm 13.0. `CS2R Rx, SRZ` is how registers are cleared, and is no clock.
"""

import struct

# S2R, CS2R, S2UR, CS2UR. Ours, from nvdisasm.
_READS = frozenset({0x919, 0x805, 0x9C3, 0x8CB})
# SR_CLOCKLO, SR_CLOCKHI, SR_GLOBALTIMERLO, SR_GLOBALTIMERHI, and SR_PM0 to SR_PM7.
_CLOCKS = frozenset({0x50, 0x51, 0x52, 0x53, *range(0x64, 0x6C)})
_NANOSLEEP, _OPERATION = 0x15D, 0x1FF  # with a register, a constant or a number to wait: the bits above say which
_SIZE = 16


def clock_reads(code: bytes) -> int:
    """How many instructions of a function's machine code (sm_70 and newer) read a clock or a counter, or sleep."""
    whole = len(code) - len(code) % _SIZE
    count = 0
    for low, high in struct.iter_unpack("<QQ", code[:whole]):
        operation = low & 0xFFF
        if (operation in _READS and high >> 8 & 0xFF in _CLOCKS) or operation & _OPERATION == _NANOSLEEP:
            count += 1
    return count

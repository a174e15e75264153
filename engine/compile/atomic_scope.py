"""Atomics of a cubin that are atomic within a block alone, as they stand in the machine code: whatever name or header wrote them.

The instruction's low 9 bits are its operation, bits 77 to 80 the scope. Measured by disassembling what nvcc 13.0 makes of atomics in
each scope for sm_75 to sm_120. Those on shared memory have instructions of their own, and are not counted.
"""

import struct

# ATOM, ATOM.CAS, RED; ATOMG and RED of floats; ATOMG, ATOMG.CAS. Ours, from nvdisasm.
_ATOMICS, _OPERATION = frozenset({0x18A, 0x18B, 0x18E, 0x1A3, 0x1A6, 0x1A8, 0x1A9}), 0x1FF
_BLOCK = frozenset({0x5, 0x8})  # .STRONG.SM, and .STRONG.CTA before sm_80; others are 7 and 10, 10 and 11
_SIZE = 16


def block_atomics(code: bytes) -> int:
    """How many atomics of a function's machine code (sm_75 and newer) on global or generic addresses have a block's scope."""
    whole = len(code) - len(code) % _SIZE
    return sum(
        low & _OPERATION in _ATOMICS and high >> 13 & 0xF in _BLOCK
        for low, high in struct.iter_unpack("<QQ", code[:whole])
    )

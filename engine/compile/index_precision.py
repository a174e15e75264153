"""Indices and sizes that pass through fewer bits than they have, found in PTX: whatever names, casts or macros wrote it.

An index is what comes of parameters and the block's place by arithmetic on whole numbers. A float holds it exactly up to 2^24 alone.
The high half of a product with a reciprocal that is known at run time divides exactly up to some size. The first index or size at
which either is wrong may lie beyond every case, in blocks that run for too long to be tried. So may the
first number that is stored and that a float does not hold.

Registers of PTX are typed and nearly all written once, so what comes of a register is followed without regard to order. The index of a
thread in its block is small enough for any type.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

FLOAT, HIGH_HALF, STORED = 1, 2, 4  # bits of `lossy_indices`
WORDS = {
    FLOAT: "an index or a size passes through a float, which holds whole numbers to 2^24 alone",
    HIGH_HALF: "an index is divided by the high half of a product with a rounded reciprocal, which is wrong from some size on",
    STORED: "a whole number that is stored comes out of a float, which holds whole numbers to 2^24 alone",
}
_MAYBE = re.compile(
    r"\bcvt\.r[nzmp]\.b?f(?:16|32)\.[us]|\b(?:mul|mad)\.hi\.[us]32|\bshr\.[us]64|\bcvt\.r[nzmp]i?(?:\.\w+)*?\.[us](?:32|64)\.b?f(?:16|32)"
)
_LINE = re.compile(r"^\s*(?:@!?%p\d+\s+)?([a-z][\w.:]*)\s+(.+?);", re.M)
_REGISTER = re.compile(r"%[a-z]+\d+|%n?(?:cta|t)id\.[xyz]|%laneid")
_INTEGER = re.compile(r"\.(?:[usb](?:8|16|32|64))$")
_TO_FLOAT = re.compile(r"cvt\.r[nzmp](?:\.\w+)*?\.b?f(?:16|32)\.[us]\d+$")
_TO_INTEGER = re.compile(r"cvt\.r[nzmp]i?(?:\.\w+)*?\.[us]\d+\.b?f(?:16|32)$")
_STORES = re.compile(r"(?:st|red|atom)\.(?:global|relaxed|release)?[\w.:]*\.[usb](?:32|64)$")
_FLOAT_TYPE = re.compile(r"\.b?f(?:16|32)(?:x2)?$")
_HIGH = re.compile(r"(?:mul|mad)\.hi\.[us]32$")
_LOADS = ("ld.", "ldu.", "atom.", "tex.", "shfl.", "vote.", "redux.", "match.", "mma.", "wmma.", "ldmatrix.")
_NO_RESULT = ("st.", "red.", "bra", "ret", "call", "bar", "membar", "fence", "exit", "prefetch", "cp.")


_HIGH_BITS = 24  # by which a product of 64 bits is shifted: the compiler folds the size of an element into it


class _PtxLine(NamedTuple):
    operation: str
    result: tuple[str, ...]
    operands: tuple[str, ...]
    registers: tuple[str, ...]  # of the operands


def lossy_indices(ptx: str) -> int:
    """Which of `FLOAT` and `HIGH_HALF` some function of a PTX text does to an index."""
    if not _MAYBE.search(ptx):
        return 0
    found = 0
    for function in re.split(r"^}\s*$", ptx, flags=re.M):
        found |= _of_function(list(_instructions(function)))
    return found


def _instructions(text: str) -> Iterator[_PtxLine]:
    for match in _LINE.finditer(text):
        operation, rest = match[1], match[2]
        first, _, others = rest.partition(", ") if not rest.startswith("{") else rest.partition("}, ")
        if operation.startswith(_NO_RESULT):
            first, others = "", rest
        operands = tuple(part.strip() for part in others.split(","))
        yield _PtxLine(operation, tuple(_REGISTER.findall(first)), operands, tuple(_REGISTER.findall(others)))


def _of_function(instructions: list[_PtxLine]) -> int:
    small = _remaining(instructions, _computes_whole)
    counters = _counters(instructions, small)
    indices = _closure(instructions, lambda one, known: _makes_index(one, known), counters)
    counts = _remaining(instructions, lambda one, known: _counts(one, known, small))
    floats = _closure(instructions, lambda one, known: _passes(one, known, indices, counts))
    rounded = _closure(instructions, _passes_rounded)
    products = {name for one in instructions if _multiplies(one, indices) for name in one.result}
    found = 0
    for one in instructions:
        to_integer = _TO_INTEGER.match(one.operation) or (
            one.operation == "mov.b32" and one.result[:1] and one.result[0].startswith("%r")
        )
        if to_integer and set(one.registers) & floats:
            found |= FLOAT
        compared = one.operation.startswith("setp.") and _FLOAT_TYPE.search(one.operation)
        if compared and set(one.registers) & floats and _only(one, counts):
            found |= FLOAT
        if _STORES.match(one.operation) and rounded & set(_REGISTER.findall(",".join(_stored(one)))):
            found |= STORED
        if _HIGH.match(one.operation) and _both(one, indices):
            found |= HIGH_HALF
        if (
            one.operation in ("shr.u64", "shr.s64")
            and set(one.registers) & products
            and _at_least(one.operands[-1], _HIGH_BITS)
        ):
            found |= HIGH_HALF
    return found


def _closure(
    instructions: list[_PtxLine], makes: Callable[[_PtxLine, set[str]], bool], known: Collection[str] = ()
) -> set[str]:
    """These registers, and those that an instruction makes of what is known, until none is added."""
    found = set(known)
    while True:
        added = {name for one in instructions if makes(one, found) for name in one.result} - found
        if not added:
            return found
        found |= added


def _remaining(instructions: list[_PtxLine], makes: Callable[[_PtxLine, set[str]], bool]) -> set[str]:
    """The registers of which every instruction that writes them makes what is asked, of registers that remain."""
    known = {name for one in instructions for name in one.result}
    while True:
        removed = {name for one in instructions if not makes(one, known) for name in one.result} & known
        if not removed:
            return known
        known -= removed


def _counters(instructions: list[_PtxLine], whole: set[str]) -> set[str]:
    """Counters of loops, which may come far from where they began: written more than once, and not compared with numbers alone."""
    written = Counter(name for one in instructions for name in one.result)
    limits: dict[str, list[bool]] = {}
    for one in instructions:
        if one.operation.startswith("setp.") and _INTEGER.search(one.operation):
            for name in one.registers:
                limits.setdefault(name, []).append(len(one.registers) > 1)
    return {name for name in whole if written[name] > 1 and any(limits.get(name, (True,)))}


def _whole(one: _PtxLine) -> bool:
    """Whether an instruction makes a whole number, and not of memory or a float."""
    if not one.result or not _INTEGER.search(one.operation) or one.operation.startswith("setp"):
        return False
    if one.operation.startswith("ld.param"):
        return "retval" not in one.operands[0]
    return not one.operation.startswith(_LOADS) and not re.search(r"\.b?f(?:16|32|64)", one.operation)


def _computes_whole(one: _PtxLine, known: set[str]) -> bool:
    """Whether it makes one of parameters, places of threads, constants and what is made of these."""
    return _whole(one) and all(
        name in known or "id" in name or name.startswith(("%p", "%ntid")) for name in one.registers
    )


def _makes_index(one: _PtxLine, known: set[str]) -> bool:
    """Whether it makes one of a parameter, of the block's place, or of an index."""
    if one.operation.startswith("ld.param"):
        return _whole(one)
    return _whole(one) and any(name in known or "ctaid" in name for name in one.registers)


def _counts(one: _PtxLine, known: set[str], small: set[str]) -> bool:
    """Whether an instruction makes a float of nothing but indices and constants."""
    if _TO_FLOAT.match(one.operation):
        return all(name in small or "id" in name for name in one.registers)
    return _computes(one) and _only(one, known)


def _passes(one: _PtxLine, known: set[str], indices: set[str], counts: set[str]) -> bool:
    """Whether it is one of those, and of an index that may be large."""
    if not set(one.result) <= counts:
        return False
    return bool(set(one.registers) & (indices if _TO_FLOAT.match(one.operation) else known))


def _passes_rounded(one: _PtxLine, known: set[str]) -> bool:
    """Whether it makes a whole number of 32 bits or more of a float, or another one of such a number."""
    if _TO_INTEGER.match(one.operation):
        return re.search(r"\.[us](?:32|64)\.b?f", one.operation) is not None
    return _whole(one) and bool(set(one.registers) & known)


def _stored(one: _PtxLine) -> tuple[str, ...]:
    """The operands of a store or an atomic that go to memory: all behind the address."""
    at = next((i for i, operand in enumerate(one.operands) if operand.endswith("]")), -1)
    return one.operands[at + 1 :]


def _computes(one: _PtxLine) -> bool:
    return not one.operation.startswith((*_LOADS, "setp")) and _FLOAT_TYPE.search(one.operation) is not None


def _only(one: _PtxLine, known: set[str]) -> bool:
    """Whether an instruction's registers, but for the predicate of a choice, are all known."""
    return all(name in known or name.startswith("%p") for name in one.registers)


def _both(one: _PtxLine, indices: set[str]) -> bool:
    return all(operand in indices for operand in one.operands[:2])


def _multiplies(one: _PtxLine, indices: set[str]) -> bool:
    return one.operation in ("mul.wide.u32", "mul.wide.s32", "mul.lo.s64", "mul.lo.u64") and _both(one, indices)


def _at_least(operand: str, least: int) -> bool:
    return operand.isdigit() and int(operand) >= least

"""What a kernel's machine code says of its speed: loops, instruction mix, loads in flight. Reads nvdisasm's text."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from engine.predict.counts import Kind, Space

_SECTION = re.compile(r"^\s*\.section\s+\.text\.([^,\s\"]+)")
_LABEL = re.compile(r"^(\.L_[\w.]+|\$?[\w.$]+):\s*$")
_LINE = re.compile(r'//## File "(?P<file>[^"]*)", line (?P<line>\d+)')
_INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
_TARGET = re.compile(r"`\((\.L_[\w.]+)\)")
_REGISTER = re.compile(r"(?<![\w.])R(\d+)\b")
_MAX_INSTRUCTIONS = 200_000
# A counter's step, and the comparison with its end: `IADD3 R8, R8, 0x4, RZ`, `ISETP.NE.AND P0, PT, R8, 0x40, PT`.
_STEP = re.compile(r"(?:U?IADD3?|U?VIADD)(?:\.\w+)* (U?R\d+),(?: U?PT,){0,2} (U?R\d+), 0x([0-9a-f]{1,7})(?:, U?RZ)?$")
_UNTIL = re.compile(r"U?ISETP\.(?:NE|LT|GE)(?:\.\w+)*\.AND U?P\d, U?PT, (U?R\d+), 0x([0-9a-f]{1,7}), U?PT$")

_MEMORY: Mapping[str, tuple[Space, Kind]] = {
    "LDG": ("global", "load"), "LD": ("global", "load"), "LDGSTS": ("global", "load"), "STG": ("global", "store"),
    "ST": ("global", "store"), "RED": ("global", "atomic"), "REDG": ("global", "atomic"), "ATOM": ("global", "atomic"),
    "ATOMG": ("global", "atomic"), "LDS": ("shared", "load"), "LDSM": ("shared", "load"), "STS": ("shared", "store"),
    "ATOMS": ("shared", "atomic"),
}  # fmt: skip
_FP32 = {"FFMA", "FADD", "FMUL", "FMNMX", "FSETP", "FSEL", "HFMA2", "HADD2", "HMUL2"}
_FP64 = {"DFMA", "DADD", "DMUL", "DSETP", "DMNMX"}
# On the slow, quarter-rate pipe: special functions and conversions.
_MUFU = {"MUFU", "F2I", "I2F", "F2F", "FRND", "POPC", "FLO"}


_SHAPE = re.compile(r"\.(16|8)8(4|8|16|32|64)\b")
_PER_ELEMENT = {"DMMA": 8.0, "IMMA": 0.25, "QMMA": 0.25}


@dataclass(frozen=True)
class MemoryInstruction:
    """One load, store or atomic: bytes per lane and the source line, 0 where not compiled in."""

    space: Space
    kind: Kind
    width_bytes: int
    line: int


@dataclass(frozen=True)
class CodeLoop:
    """Instructions of one loop's body that are in no inner loop; the first `Loop` of a kernel is its straight code.

    `load_batches` counts how often a trip waits for global loads: loads issued together before a first use are one
    batch, so `loads / load_batches` is the memory-level parallelism of one warp.
    """

    parent: int  # index of the enclosing loop; -1 for the straight code
    depth: int
    instructions: int
    fp32: int
    fp64: int
    mufu: int
    shuffles: int
    barriers: int
    local: int  # accesses of local memory: spills and indexed stack arrays
    tensor: int  # matrix instructions
    memory: tuple[MemoryInstruction, ...]
    loads: int  # global
    load_batches: int
    shared_batches: int
    trips: int = 0  # how often it is gone through where a counter from 0 to a constant ends it; 0: not known
    line: int = 0  # the source line of most of its instructions
    products: float = (
        0.0  # its matrix instructions as products of 16 x 8 x 8 elements in TF32, by the time that they take
    )


@dataclass(frozen=True)
class KernelCode:
    """The machine code of one entry, as loops."""

    entry: str
    loops: tuple[CodeLoop, ...]

    @property
    def instructions(self) -> int:
        """Static instructions."""
        return sum(loop.instructions for loop in self.loops)


@dataclass
class _Instruction:
    address: int
    name: str
    operands: str
    line: int


def parse_sass(text: str) -> dict[str, KernelCode]:
    """The kernels of nvdisasm's output, by entry symbol. What it cannot read is left out."""
    result: dict[str, KernelCode] = {}
    entry, line = "", 0
    code: list[_Instruction] = []
    labels: dict[str, int] = {}
    pending: list[str] = []

    def finish() -> None:
        if entry and code:
            result[entry] = KernelCode(entry, _loops(code, labels))

    for row in text.splitlines():
        if match := _SECTION.match(row):
            finish()
            entry, line, code, labels, pending = match[1], 0, [], {}, []
        elif row.split(maxsplit=1)[:1] == [".section"]:
            finish()
            entry, code = "", []
        elif match := _LINE.search(row):
            # "inlined at" lines follow: the first one names the place of the instruction itself.
            line = int(match["line"])
        elif match := _LABEL.match(row):
            pending.append(match[1])
        elif entry and len(code) < _MAX_INSTRUCTIONS and (match := _INSTRUCTION.match(row)):
            address = int(match[1], 16)
            for label in pending:
                labels[label] = address
            pending = []
            code.append(_Instruction(address, match[3], match[4], line))
    finish()
    return result


def _loops(code: list[_Instruction], labels: Mapping[str, int]) -> tuple[CodeLoop, ...]:
    end_of: dict[int, int] = {}
    for instruction in code:
        if instruction.name.split(".")[0] in ("BRA", "JMP"):
            match = _TARGET.search(instruction.operands)
            target = labels.get(match[1]) if match else None
            # A branch to itself is the trap behind the last EXIT.
            if target is not None and target < instruction.address:
                end_of[target] = max(end_of.get(target, 0), instruction.address)
    spans = sorted(end_of.items(), key=lambda span: (span[0], -span[1]))
    parents: list[int] = []
    for index, (start, end) in enumerate(spans):
        around = [i for i, (s, e) in enumerate(spans[:index]) if s <= start and end <= e]
        parents.append(max(around, key=lambda i: spans[i][0], default=-1))
    bodies: list[list[_Instruction]] = [[] for _ in range(len(spans) + 1)]
    for instruction in code:
        inner = [i for i, (s, e) in enumerate(spans) if s <= instruction.address <= e]
        bodies[1 + max(inner, key=lambda i: (spans[i][0], -spans[i][1])) if inner else 0].append(instruction)
    depths = [0]
    for parent in parents:
        depths.append(depths[parent + 1] + 1)
    return tuple(_loop(body, -1 if i == 0 else parents[i - 1] + 1, depths[i]) for i, body in enumerate(bodies))


def _loop(body: list[_Instruction], parent: int, depth: int) -> CodeLoop:
    counts = dict.fromkeys(("instructions", "fp32", "fp64", "mufu", "shuffles", "barriers", "local", "tensor"), 0)
    memory: list[MemoryInstruction] = []
    loads = 0
    products = 0.0
    waiting: dict[Space, set[int]] = {"global": set(), "shared": set()}
    batches: dict[Space, int] = {"global": 0, "shared": 0}
    for instruction in body:
        base = instruction.name.split(".")[0]
        if base == "NOP":
            continue
        counts["instructions"] += 1
        used = {int(n) for n in _REGISTER.findall(instruction.operands)}
        for space, registers in waiting.items():
            if registers & used or (base == "BAR" and registers and space == "shared"):
                batches[space] += 1
                registers.clear()
        if base in _MEMORY:
            space, kind = _MEMORY[base]
            width = _width(instruction.name)
            memory.append(MemoryInstruction(space, kind, width, instruction.line))
            if kind == "load":
                loads += space == "global"
                match = _REGISTER.search(instruction.operands)
                if match and base != "LDGSTS":
                    waiting[space] |= set(range(int(match[1]), int(match[1]) + max(1, width // 4)))
        elif base in _FP32:
            counts["fp32"] += 1
        elif base in _FP64:
            counts["fp64"] += 1
        elif base in _MUFU:
            counts["mufu"] += 1
        elif base == "SHFL":
            counts["shuffles"] += 1
        elif base == "BAR":
            counts["barriers"] += 1
        elif base in ("LDL", "STL"):
            counts["local"] += 1
        elif base.endswith("MMA") and base != "HFMA2":
            counts["tensor"] += 1
            products += _products(base, instruction.name)
    for space, registers in waiting.items():
        if registers:  # used behind the loop, or in its next trip
            batches[space] += 1
    if any(m.space == "global" and m.kind == "load" for m in memory) and batches["global"] == 0:
        batches["global"] = 1  # asynchronous copies
    return CodeLoop(
        parent, depth, memory=tuple(memory), loads=loads, load_batches=batches["global"],
        shared_batches=batches["shared"], trips=_trips(body) if depth else 0, line=_line(body), products=products, **counts,
    )  # fmt: skip


def _products(base: str, name: str) -> float:
    """A matrix instruction as products of 16 x 8 x 8 elements in TF32: types of half the size take half the time [H, A: peak rates]."""
    shape = _SHAPE.search(name)
    elements = int(shape[1]) * 8 * int(shape[2]) if shape else 1024
    return elements / 1024 * (0.5 if base == "HMMA" and ".TF32" not in name else _PER_ELEMENT.get(base, 1.0))


def _line(body: list[_Instruction]) -> int:
    lines = Counter(instruction.line for instruction in body if instruction.line)
    return lines.most_common(1)[0][0] if lines else 0


def _trips(body: list[_Instruction]) -> int:
    """The trips of a loop whose counter grows by a constant until it is another one; 0 where that is not what ends it.

    The counter is taken to start at 0: one that starts later has fewer trips.
    """
    steps: dict[str, int] = {}
    for instruction in body:
        match = _STEP.match(f"{instruction.name} {instruction.operands}")
        if match and match[1] == match[2]:
            steps[match[1]] = int(match[3], 16)
    found = set()
    for instruction in body:
        match = _UNTIL.match(f"{instruction.name} {instruction.operands}")
        if match and match[1] in steps:
            found.add(-(-int(match[2], 16) // steps[match[1]]))
    return min(found, default=0)


def _width(name: str) -> int:
    parts = name.split(".")
    for part, width in (("128", 16), ("64", 8), ("U8", 1), ("S8", 1), ("U16", 2), ("S16", 2)):
        if part in parts:
            return width
    return 4

"""The words every stage shares: program, outcome, launch, binary, measurement."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property


class Outcome(StrEnum):
    """How the evaluation of a candidate ended. Every ending has its name; none is a `None` or an infinity."""

    SCREENED_OUT = "screened_out"  # refused before compiling (nothing changed, launch not evaluable, forbidden edit)
    COMPILE_ERROR = "compile_error"
    WRONG_RESULT = "wrong_result"
    MEMORY_ERROR = "memory_error"  # wrote or read outside its arrays, or changed an input
    RACE = "race"  # conflicting accesses without an order, or a barrier not all threads reach
    TIMED_OUT = "timed_out"
    CRASHED = "crashed"
    GUARDRAIL = "guardrail"
    DUPLICATE = "duplicate"  # same machine code and launch as an earlier candidate
    UNSTABLE = "unstable"  # measurement disturbed and not repeatable
    SLOWER = "slower"
    NO_DIFFERENCE = "no_difference"  # the interval of the speedup holds 1.0
    ACCEPTED = "accepted"  # verified on a GPU and measurably faster
    SCREENED = "screened"  # passed on the CPU; speed predicted, not measured


# What a candidate that is right ends with, whatever its speed.
PASSED = frozenset({Outcome.ACCEPTED, Outcome.SCREENED, Outcome.NO_DIFFERENCE, Outcome.SLOWER})


@dataclass(frozen=True)
class Program:
    """One version of the text: a node of the search tree.

    `files` maps repository-relative POSIX paths to their bytes, for every file that an edit may touch: the kernel's
    file, local headers, files with host launches, the spec's file. Paths are relative to the repository's root.
    """

    files: Mapping[str, bytes]
    kernel_file: str

    @cached_property
    def digest(self) -> str:
        """SHA-256 over names and contents."""
        h = hashlib.sha256()
        for path in sorted(self.files):
            data = self.files[path]
            h.update(f"{path}\0{len(data)}\0".encode())
            h.update(data)
        return h.hexdigest()

    @property
    def data(self) -> bytes:
        """The kernel file's bytes."""
        return self.files[self.kernel_file]

    def replace(self, changed: Mapping[str, bytes]) -> Program:
        """The program with some files' bytes replaced."""
        return Program({**self.files, **changed}, self.kernel_file)


@dataclass(frozen=True)
class LaunchConfig:
    """One launch in figures: grid and block in blocks and threads (x, y, z), dynamic shared memory in bytes."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def blocks(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]


@dataclass(frozen=True)
class Resources:
    """What one kernel's machine code uses, as ptxas reports it: counts per thread, bytes per block or thread."""

    registers: int
    shared_bytes: int  # static, per block
    stack_bytes: int  # per thread
    spill_store_bytes: int
    spill_load_bytes: int
    barriers: int = 0


@dataclass(frozen=True)
class Binary:
    """Machine code for all steps of a spec."""

    cubin: bytes
    arch: str
    entries: tuple[str, ...]  # lowered (mangled) names, one per step of the spec
    resources: tuple[Resources, ...]  # one per step
    code_hash: str  # of the instructions and constants of the entries, not of names or line info
    most_threads: tuple[int | None, ...] = ()  # of a block that each entry was compiled for; None: no bound
    kept_bytes: int = 0  # of static variables of functions: memory that outlives a launch
    clock_reads: int = 0  # instructions that read a clock or a performance counter, or wait
    block_atomics: int = 0  # atomics on memory that blocks may share, which hold within a block alone
    lossy_indices: int = 0  # what happens to indices in its PTX, as in engine/compile/index_precision.py
    constants: tuple[tuple[str, int], ...] = ()  # name and bytes of each `__constant__` variable that the spec fills
    cached: bool = False


@dataclass(frozen=True)
class CaseTiming:
    """Times of one timing case. `ratio` is original time over candidate time (above 1: faster), with a 95 % interval."""

    case: str
    weight: float
    original_us: float  # median
    candidate_us: float  # median
    ratio: float
    low: float
    high: float
    samples: int  # paired


@dataclass(frozen=True)
class Measurement:
    """A speedup over all timing cases: weighted geometric mean of the paired ratios, with a 95 % interval."""

    cases: tuple[CaseTiming, ...]
    ratio: float
    low: float
    high: float
    stable: bool = True
    predicted: bool = False  # True: from a model of the target, not measured
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Failure:
    """Why a candidate was refused, for a person: the sentence, and the numbers behind it.

    NaN and infinities become None, as no JSON has them; `reason` names them.
    """

    reason: str
    case: str = ""
    argument: str = ""
    index: int | None = None  # flat index of the first differing element
    expected: float | None = None
    got: float | None = None
    error: float | None = None
    tolerance: float | None = None
    line: int | None = None  # of the kernel file, 1-based

    def __post_init__(self) -> None:
        for name in ("expected", "got", "error", "tolerance"):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                object.__setattr__(self, name, None)


@dataclass(frozen=True)
class Guardrail:
    """A hard condition on what would be suggested, and how it came out. `detail` has the figures, or why it was not checked."""

    name: str
    verdict: str  # "passed", "failed" or "not checked"
    detail: str = ""


@dataclass(frozen=True)
class VerifiedInstance:
    """Another instance of the kernel's template that an edit changes, verified as well: its name expression and its speedup."""

    name: str
    measurement: Measurement


@dataclass(frozen=True)
class Evaluation:
    """What evaluating one candidate gave."""

    outcome: Outcome
    measurement: Measurement | None = None
    failure: Failure | None = None
    resources: tuple[Resources, ...] = ()
    code_hash: str = ""
    stage_s: Mapping[str, float] = field(default_factory=dict)  # seconds by stage: parse, compile, verify, time, …
    notes: tuple[str, ...] = ()
    guardrails: tuple[Guardrail, ...] = ()  # of a confirmation
    device: Mapping[str, object] = field(default_factory=dict)  # that it was measured on, and its state then
    instances: tuple[VerifiedInstance, ...] = ()  # of a confirmation: those beside the spec's


@dataclass(frozen=True)
class Target:
    """The figures of the target that rules may look at."""

    arch: str = "sm_90"
    warp: int = 32
    max_threads_per_block: int = 1024
    max_threads_per_sm: int = 2048
    max_blocks_per_sm: int = 32
    registers_per_sm: int = 65536
    shared_per_block: int = 49152  # static limit, bytes
    shared_per_sm: int = 233472
    multiprocessors: int = 132
    shared_reserved: int = 1024  # bytes per block that the system keeps, from compute capability 8.0 on

    @property
    def shared_most(self) -> int:
        """Bytes of static and dynamic shared memory that one block can have at most."""
        return self.shared_per_sm - self.shared_reserved

    def blocks_at_once(self, threads: int) -> int:
        """Blocks of so many threads that one multiprocessor holds at most."""
        return min(self.max_threads_per_sm // threads, self.max_blocks_per_sm)


@dataclass(frozen=True)
class Refusal:
    """A candidate that looked best and was not confirmed."""

    id: int
    summary: str
    evaluation: Evaluation

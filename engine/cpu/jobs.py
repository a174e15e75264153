"""What running kernels on the CPU takes and gives."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from engine.cpu.condition_marks import MarkedCondition
from engine.cpu.sampled import Sample, Writes
from engine.errors import OptimlError
from engine.model import LaunchConfig
from engine.predict.counts import AccessCounts
from engine.spec.kernel_spec import KernelSpec

if TYPE_CHECKING:
    import numpy as np

FindingKind = Literal[
    "out_of_bounds", "shared_out_of_bounds", "uninitialised", "input_written", "stale_read", "race",
    "barrier_divergence", "deadlock", "timeout", "sample_full", "crash", "misaligned", "assert", "undefined",
]  # fmt: skip


@dataclass
class Unsupported(OptimlError):
    """The code uses what cannot run on the CPU; `features` names it ("inline PTX", "CUB", …)."""

    features: tuple[str, ...] = ()


@dataclass(frozen=True)
class CpuFinding:
    """One thing wrong with a run. `message` is a sentence; `line` is of `file`, 0 where not known.

    `file` is "" for the kernel's own. `index` counts elements of `array` from its start. `thread` and `block` are (x, y, z).
    """

    kind: FindingKind
    message: str
    line: int = 0
    array: str = ""
    index: int | None = None
    thread: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    step: int = 0
    file: str = ""

    def reads_unwritten_shared(self, buffers: Container[str]) -> bool:
        """Whether a block read of its own shared memory, which is none of the kernel's `buffers`, what it had not written."""
        return self.kind == "uninitialised" and self.array != "" and self.array not in buffers


@dataclass(frozen=True)
class CpuBinary:
    """A kernel compiled for the CPU: one shared object that screening and race detection both load."""

    object: Path
    spec: KernelSpec
    path: str  # the kernel's file, as findings name it
    conditions: tuple[MarkedCondition, ...] = ()  # whose outcomes its runs report
    unread: int = 0  # the first line where conditions could not be read; 0: none
    unread_in: frozenset[str] = frozenset()  # the definitions that hold such lines
    seen: dict[int, int] = field(default_factory=dict, compare=False)  # outcomes in runs that count, as in CpuRun

    def saw(self, run: CpuRun) -> None:
        """Count the outcomes of a run."""
        for number, outcomes in run.seen.items():
            self.seen[number] = self.seen.get(number, 0) | outcomes


@dataclass(frozen=True)
class CpuJob:
    """One run: a launch per step, buffers by the spec's argument names (flat, storage type), scalars by name.

    `order`: 0 forward, 1 reversed, from 2 on shuffled with this seed; it orders blocks, warps and lanes.
    """

    launches: Sequence[LaunchConfig]
    buffers: Mapping[str, np.ndarray[Any, Any]]
    scalars: Mapping[str, np.generic | bytes] = field(default_factory=dict)
    order: int = 0
    count: bool = False
    every_block: bool = False  # count in all blocks; a sample may miss a border, or hold little else
    sample: Sample | None = None  # run only these blocks; one launch
    early_copies: bool = False  # asynchronous copies arrive at once, as on no GPU
    moved: frozenset[str] = frozenset()  # buffers one element behind an address that is a multiple of 16 bytes and more
    shared: Mapping[str, str] = field(default_factory=dict)  # outputs with the input whose buffer each is as well
    null: tuple[str, ...] = ()  # buffers for which a null pointer is passed
    before: CpuJob | None = None  # whose launches come first in the same module, on this one's buffers


@dataclass(frozen=True)
class CpuRun:
    """What one run gave: the buffers that are not inputs, what was found, and counts where asked for.

    After a finding that ends a run (an access outside, a deadlock, a time limit) `outputs` is what was there then.
    `touched` is the highest element touched plus one, by buffer; `written` how many elements of each output were written.
    """

    outputs: Mapping[str, np.ndarray[Any, Any]]
    findings: tuple[CpuFinding, ...]
    counts: AccessCounts | None
    elapsed_s: float
    touched: Mapping[str, int] = field(default_factory=dict)
    written: Mapping[str, int] = field(default_factory=dict)
    limited: bool = False  # race detection looked at the first blocks only
    writes: Mapping[str, Writes] = field(default_factory=dict)  # of a sampled run, in place of outputs
    # Outcomes of marked conditions, by number: 1 it was false, 2 it was true, 4 the compiler did not know its value.
    seen: Mapping[int, int] = field(default_factory=dict)

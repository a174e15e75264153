"""What trial runs of a complete draft change about it: the inputs it draws, and how large its timing case is."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from engine.spec.kernel_spec import Case, KernelSpec
from engine.spec.shapes import timed_shapes, varied

_MOST_ACCESSES = (
    4e9  # of elements, in a timing case; ours: some milliseconds on a current GPU, so that a short search tries many
)
KEEPING = "assumed: shapes at which the kernel keeps to its buffers"  # said of shapes that trials chose
_MOST_SHAPES = 6  # to check, where those that come first go beyond buffers
_FEW = 2  # shapes to check: the smallest of them alone mostly shows nothing
_MOST_TIMED = 2  # of those that are as large as timed ones
_MAX_HALVINGS, _LEAST_GROWTH = 14, 1.2


class Trials(Protocol):
    """Runs of a draft (`engine.cpu.draft_probe.CpuProbe`)."""

    def ended(self, sizes: Mapping[str, int]) -> str:
        """What ended the trial at these sizes early, in words; "" where it ran to its end, or there was none."""

    def meaning(self, spec: KernelSpec) -> Meaning:
        """What the check cases show."""

    def failing(self, spec: KernelSpec, cases: Sequence[Case]) -> Mapping[str, str]:
        """The names of the cases in which the kernel fails on its own, with what it does there."""

    def racy(self, spec: KernelSpec, cases: Sequence[Case]) -> Collection[str]:
        """The names of the cases in which threads race."""

    def accesses(self, spec: KernelSpec, case: Case) -> tuple[float, float] | None:
        """About how many elements are accessed in a case, how much fewer when its sizes are halved; None: that cannot be told."""


class Meaning(Protocol):
    """Outputs that are mostly or partly no numbers, and whether all are one value whatever the inputs are."""

    @property
    def not_finite(self) -> tuple[str, ...]:
        """The names of the outputs that mostly are none."""

    @property
    def partly(self) -> tuple[str, ...]:
        """The names of those that are none here and there: inputs outside of a function's domain."""

    @property
    def constant(self) -> bool:
        """Of all outputs."""


def inputs(trials: Trials, spec: KernelSpec, positive: Callable[[], KernelSpec]) -> tuple[bool, str]:
    """Whether positive inputs give outputs that can be compared where the draft's own do not; else what is wrong, "" where nothing is."""
    found = trials.meaning(spec)
    if found.not_finite or found.partly:
        other = trials.meaning(positive())
        if not other.not_finite and not other.partly and not other.constant:
            return True, ""
    if found.not_finite:
        names = "', '".join(found.not_finite)
        return False, f"most of '{names}' is no number in the checks"
    return False, "every output is one value in all checks" if found.constant else ""


def other_shapes(trials: Trials, spec: KernelSpec, failing: Collection[str]) -> tuple[Case, ...]:
    """Cases to check a draft with where some of its own fail, most of them like its own; none where all do.

    A block that is larger than a row may stay in a buffer and still write where its neighbour does: cases without races come first.
    """
    found = [case for case in spec.check if case.name not in failing]
    there = [case.name for case in spec.check]
    found += [case for case in varied(spec) if case.name not in there and not trials.failing(spec, (case,))]
    if len(found) < _FEW:
        timed = (case for case in timed_shapes(spec) if not trials.failing(spec, (case,)))
        found += itertools.islice(timed, _MOST_TIMED)
    racy = trials.racy(spec, found)
    return tuple([case for case in found if case.name not in racy] or found)[:_MOST_SHAPES]


def halvings(trials: Trials, spec: KernelSpec) -> int:
    """How often the sizes of the draft's timing case are halved until a GPU does it in some milliseconds."""
    found = trials.accesses(spec, spec.time[0])
    count = 0
    if found is not None:
        accesses, growth = found
        while accesses > _MOST_ACCESSES and growth > _LEAST_GROWTH and count < _MAX_HALVINGS:
            accesses, count = accesses / growth, count + 1
    return count

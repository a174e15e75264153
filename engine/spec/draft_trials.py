"""What trial runs of a complete draft change about it: the inputs it draws, and how large its timing case is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from engine.spec.kernel_spec import Case, KernelSpec

_MOST_ACCESSES = 2e10  # of elements, in a timing case; ours: some tens of milliseconds on a current GPU
_MAX_HALVINGS, _LEAST_GROWTH = 14, 1.2


class Trials(Protocol):
    """Runs of a draft (`engine.cpu.draft_probe.CpuProbe`)."""

    def ended(self, sizes: Mapping[str, int]) -> str:
        """What ended the trial at these sizes early, in words; "" where it ran to its end, or there was none."""

    def meaning(self, spec: KernelSpec) -> Meaning:
        """What the check cases show."""

    def failing(self, spec: KernelSpec, cases: Sequence[Case]) -> Mapping[str, str]:
        """The names of the cases in which the kernel fails on its own, with what it does there."""

    def accesses(self, spec: KernelSpec, case: Case) -> tuple[float, float] | None:
        """About how many elements are accessed in a case, how much fewer when its sizes are halved; None: that cannot be told."""


class Meaning(Protocol):
    """Outputs that are mostly no numbers, and whether all are one value whatever the inputs are."""

    @property
    def not_finite(self) -> tuple[str, ...]:
        """The outputs' names."""

    @property
    def constant(self) -> bool:
        """Of all outputs."""


def inputs(trials: Trials, spec: KernelSpec, positive: Callable[[], KernelSpec]) -> tuple[bool, str]:
    """Whether positive inputs give outputs that can be compared where the draft's own do not; else what is wrong, "" where nothing is."""
    found = trials.meaning(spec)
    if found.not_finite:
        other = trials.meaning(positive())
        if not other.not_finite and not other.constant:
            return True, ""
    if found.not_finite:
        names = "', '".join(found.not_finite)
        return False, f"most of '{names}' is no number in the checks"
    return False, "every output is one value in all checks" if found.constant else ""


def halvings(trials: Trials, spec: KernelSpec) -> int:
    """How often the sizes of the draft's timing case are halved until a GPU does it in some tens of milliseconds."""
    found = trials.accesses(spec, spec.time[0])
    count = 0
    if found is not None:
        accesses, growth = found
        while accesses > _MOST_ACCESSES and growth > _LEAST_GROWTH and count < _MAX_HALVINGS:
            accesses, count = accesses / growth, count + 1
    return count

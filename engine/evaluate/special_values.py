"""Families of inputs that hold NaN or extreme values: whether the original says what must come of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.cpu import CpuRun
from engine.evaluate.known_runs import KnownRun
from engine.spec.kernel_spec import KernelSpec
from engine.verify.propagation import defined, passes_on, without

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class SpecialValues:
    """`run` gives the original's runs on other buffers in the place of those that a known run had."""

    spec: KernelSpec
    run: Callable[[Sequence[tuple[KnownRun, dict[str, NDArray[Any]]]]], Sequence[CpuRun]]

    def passing_nan_on(self, known: Sequence[KnownRun]) -> frozenset[str]:
        """The outputs in which NaN in an input shows in each run."""
        found = frozenset(a.name for a in self.spec.outputs)
        for k, run in zip(known, self._ordinary(known), strict=True):
            found &= frozenset() if run.findings else passes_on(self.spec, k.original, run.outputs)
        return found

    def defines_extremes(self, known: Sequence[KnownRun]) -> bool:
        """Whether what comes of extreme inputs does not hang on the order or the form of the arithmetic, in each run."""
        return all(
            not run.findings and defined(self.spec, k.buffers, k.original, k.wide, run.outputs)
            for k, run in zip(known, self._ordinary(known, extremes=True), strict=True)
        )

    def _ordinary(self, known: Sequence[KnownRun], *, extremes: bool = False) -> Sequence[CpuRun]:
        return self.run([(k, without(self.spec, k.buffers, extremes=extremes)) for k in known])

"""What becomes of intermediate values that vanish or overflow, where the original's result with the same inputs is exact.

An edit that multiplies in another order, or rounds a factor to zero, gives the same results as long as all inputs are ordinary. Beside
an input that is huge the difference is the whole result. Only elements count at which the original is as close to its twin in double
precision as rounding allows, also where the huge values are some times larger: sums in another order then overflow as little as its own.
Only differences count that no rounding explains.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.compile.built import Built
from engine.cpu import CpuBinary, CpuJob, CpuMachine
from engine.model import Failure
from engine.spec.data import bytes_needed, poisoned, scalars
from engine.spec.dtypes import DType, parse_dtype
from engine.spec.kernel_spec import KernelSpec
from engine.spec.magnitudes import HUGE, Mix, mixed, mixes
from engine.verify.widen import wide_buffers, wide_scalars

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]

_EXACT_ULPS = 64.0  # of the result: the original's own rounding, where nothing cancelled out or overflowed. Ours
_GROSS = 0.125  # of the result: what no order of rounding makes of an exact one. Ours
_ROOM = 8.0  # times by which the huge values may grow: a power of two, which rounds nothing. Ours
_DEADLINE_S = 4.0


@dataclass(frozen=True)
class _Mixed:
    """One run of the original, with the elements of each output at which it is exact, and the exact results."""

    mix: Mix
    job: CpuJob
    case: int
    exact: Mapping[str, NDArray[np.bool_]]
    results: Arrays


@dataclass
class MixedMagnitudes:
    """Runs beside one original on its largest check case; `wide` is its twin in double precision."""

    spec: KernelSpec
    machine: CpuMachine
    original: Built
    wide: CpuBinary
    _runs: list[_Mixed] = field(default_factory=list, init=False)

    def draw(self, rng: random.Random) -> None:
        """Run the original and its twin on newly drawn contents."""
        spec = self.spec
        index = max(range(len(spec.check)), key=lambda i: bytes_needed(spec, spec.check[i]))
        case, launches = spec.check[index], self.original.launches[index]
        values, drawn = scalars(spec, case), mixes(spec, rng)
        jobs, larger = list[CpuJob](), list[CpuJob]()
        for turn, mix in enumerate(drawn):
            seed = rng.getrandbits(40)
            declared = poisoned(spec, case, seed, "declared")
            for room, those in ((_ROOM, jobs), (1.0, larger)):
                those.append(CpuJob(launches, mixed(spec, declared, mix, seed, room), values, turn % 3))
        if not jobs:
            return
        usual, beyond = self._exact(jobs), self._exact(larger)
        for mix, job, here, there in zip(drawn, jobs, usual, beyond, strict=True):
            if here is None or there is None:
                continue
            exact = {name: at & there[0][name] for name, at in here[0].items()}
            if any(at.any() for at in exact.values()):
                self._runs.append(_Mixed(mix, job, index, exact, here[1]))

    def _exact(self, jobs: Sequence[CpuJob]) -> list[tuple[dict[str, NDArray[np.bool_]], Arrays] | None]:
        """Of each job the elements of each output at which the original is exact, and the exact results. None: it fails there."""
        spec = self.spec
        twins = [
            replace(job, buffers=wide_buffers(spec, dict(job.buffers)), scalars=wide_scalars(spec, job.scalars))
            for job in jobs
        ]
        runs = self.machine.run_many(self.original.extra, jobs, deadline_s=_DEADLINE_S)
        wides = self.machine.run_many(self.wide, twins, deadline_s=_DEADLINE_S)
        found: list[tuple[dict[str, NDArray[np.bool_]], Arrays] | None] = []
        for run, wide in zip(runs, wides, strict=True):
            if run.findings or wide.findings:
                found.append(None)
                continue
            results = {a.name: wide.outputs[a.name].astype(np.float64) for a in self._outputs(run.outputs)}
            found.append(({n: _exact(self._dtype(n), run.outputs[n], results[n]) for n in results}, results))
        return found

    def judge(self, built: Built) -> Failure | None:
        """What is wrong with a candidate on the same contents."""
        jobs = [CpuJob(built.launches[r.case], r.job.buffers, r.job.scalars, r.job.order) for r in self._runs]
        if not jobs:
            return None
        for known, run in zip(
            self._runs, self.machine.run_many(built.extra, jobs, deadline_s=_DEADLINE_S), strict=True
        ):
            name = self.spec.check[known.case].name
            faults = [found for found in run.findings if found.kind != "timeout"]
            if faults:
                return Failure(f"{faults[0].message} ({_said(known.mix)})", case=name)
            if not run.findings and (failure := self._differing(known, run.outputs, name)):
                return failure
        return None

    def _differing(self, known: _Mixed, outputs: Arrays, case: str) -> Failure | None:
        for name, exact in known.exact.items():
            wanted, got = known.results[name], self._dtype(name).to_float64(outputs[name])
            with np.errstate(invalid="ignore", over="ignore"):
                wrong = exact & ~(np.abs(got - wanted) <= _GROSS * np.abs(wanted))
            if wrong.any():
                at = int(wrong.argmax())
                expected, actual = float(wanted[at]), float(got[at])
                return Failure(
                    f"'{name}' differs at {int(wrong.sum())} of {wrong.size} elements, first at index {at}: {actual:.9g} instead "
                    f"of {expected:.9g} ({_said(known.mix)})",
                    case=case, argument=name, index=at, expected=expected, got=actual,
                )  # fmt: skip
        return None

    def _outputs(self, outputs: Arrays) -> list[Any]:
        return [a for a in self.spec.arguments if a.name in outputs and self._dtype(a.name).kind == "float"]

    def _dtype(self, name: str) -> DType:
        return parse_dtype(self.spec.argument(name).type)


def _exact(dtype: DType, original: NDArray[Any], wide: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Where the original's result is the exact one but for rounding, and a normal number."""
    own, size = dtype.to_float64(original), np.abs(wide)
    with np.errstate(invalid="ignore", over="ignore"):
        close = np.abs(own - wide) <= _EXACT_ULPS * dtype.epsilon * size
    found: NDArray[np.bool_] = close & (size >= dtype.tiny) & (size <= float(dtype.limits[1]))
    return found


def _said(mix: Mix) -> str:
    huge = next(name for name, magnitude in mix.items() if magnitude == HUGE)
    rest = next((magnitude for magnitude in mix.values() if magnitude != HUGE), "")
    return f"with '{huge}' huge" + (f", the other inputs {rest}" if rest else "")

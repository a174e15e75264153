"""Shapes to check a recorded kernel with: as drafted, where the recorded launches do not say otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from engine.capture.recorded_launch import checked_extent
from engine.capture.recorded_values import LARGE
from engine.cuda.constants import words
from engine.errors import SourceError
from engine.model import Program
from engine.spec.kernel_spec import Case, KernelSpec
from engine.spec.launch_config import evaluate
from engine.spec.shapes import launchable_checks
from engine.spec.spec_checks import case_name

_LEAST_SHAPES = 3  # of a launch that is given by an extent of its grid


@dataclass(frozen=True)
class RecordedShapes:
    """The shapes of a recorded kernel: `sizes` are those of each launch, `grid` as `FoundLaunch` has it."""

    program: Program
    drafted: KernelSpec
    sizes: Sequence[Mapping[str, int]]
    grid: Mapping[str, int]

    def spec(self, time: tuple[Case, ...]) -> KernelSpec:
        """The spec with the recorded timing cases; checks keep their drafted sizes, with the host's names as recorded."""
        arguments = self.drafted.arguments
        scalars = {a.size_name or a.name for a in arguments}
        known = set(self.drafted.time[0].sizes) if self.drafted.time else set()
        # What only the host knows is as recorded, but for the length of a buffer.
        sides = {n for a in arguments if a.role != "scalar" for n in words(a.size)}
        recorded = {n: int(v) for n, v in time[0].sizes.items()}
        fixed = {
            n: v for n, v in recorded.items() if n not in known or (n not in scalars and not (n in sides and v > LARGE))
        }
        numbers = [n for n in recorded if n in scalars and n not in sides and self._is_number(n)]
        tied = tied_lengths(self.drafted, self.sizes)
        check = self.drafted.check
        if self.grid:  # an extent of the grid tells shapes apart
            check += check[-1:] * (_LEAST_SHAPES - len(check))
        shapes = []
        for at, case in enumerate(check):
            own = {n: int(v) for n, v in {**case.sizes, **fixed}.items() if n in recorded}
            own |= {n: checked_extent(recorded[n], unit, at) for n, unit in self.grid.items()}
            own |= {n: recorded[n] // 2 or recorded[n] if at % 2 else recorded[n] for n in numbers}
            shapes.append(self._agreeing({**own, **{n: own[m] for n, m in tied.items()}}))
        spec = replace(self.drafted, time=time, check=_cases(shapes))
        lengths = recorded.keys() - fixed.keys() - set(numbers)
        return replace(
            spec, check=_cases([self._agreeing(c.sizes, spec) for c in launchable_checks(self.program, spec, lengths)])
        )

    def _is_number(self, name: str) -> bool:
        """Whether a size is a small number in every launch and decides none: a count of bits, a cost, a phase."""
        if any(own.get(name, LARGE + 1) > LARGE for own in self.sizes):
            return False
        own = self.sizes[0]
        try:
            launches = [
                evaluate(self.program, self.drafted, 0, {**own, name: n}) for n in (own[name], 2 * own[name] + 1)
            ]
        except SourceError:
            return False
        return launches[0] == launches[1]

    def _agreeing(self, drafted: Mapping[str, int | float], spec: KernelSpec | None = None) -> dict[str, int]:
        """The sizes of a check; where the host's code gives no launch for them, as equal to each other as the recorded ones."""
        case = {name: int(value) for name, value in drafted.items()}
        equal = {n: next(m for m in case if all(own.get(n) == own.get(m) for own in self.sizes)) for n in case}
        merged = {n: case[equal[n]] for n in case}
        for tried in (case, merged):
            try:
                evaluate(self.program, spec or self.drafted, 0, tried)
            except SourceError:
                continue
            return tried
        return case


def tied_lengths(spec: KernelSpec, sizes: Sequence[Mapping[str, int]]) -> dict[str, str]:
    """Lengths that only the host knows and that are one of the kernel's in every recorded launch, with its name."""
    scalars = [a.size_name for a in spec.arguments if a.size_name]
    hosts = [n for n in sizes[0] if n not in {a.name for a in spec.arguments} | set(scalars)]
    found = {}
    for name in hosts:
        equal = [m for m in scalars if all(own.get(m) == own[name] > LARGE for own in sizes)]
        if len(equal) == 1:
            found[name] = equal[0]
    return found


def _cases(shapes: Sequence[Mapping[str, int]]) -> tuple[Case, ...]:
    return tuple(Case(case_name(s), s) for at, s in enumerate(shapes) if s not in shapes[:at])

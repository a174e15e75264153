"""What validating a spec on the CPU looks for in runs of the original: outputs it leaves, and wrong results that would pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.cpu import CpuRun
from engine.evaluate.known_runs import KnownRun
from engine.spec.data import any_bits
from engine.spec.dtypes import parse_dtype
from engine.spec.kernel_spec import Argument, Case, KernelSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

_COPY = "a copy of an input"


def unwritten(spec: KernelSpec, known: Sequence[KnownRun], cases: Sequence[Case]) -> list[str]:
    """Elements of an output that no run of a case has changed: what stood there would count for the tolerance."""
    for argument in spec.outputs:
        dtype = parse_dtype(argument.type)
        if argument.role != "out" or dtype.storage.itemsize == 1:  # of single bytes some are right by chance
            continue
        stale: dict[int, np.ndarray[Any, Any]] = {}
        for item in known:
            pairs = (item.original[argument.name], item.buffers[argument.name])
            now, before = (np.ascontiguousarray(a).view(np.uint8).reshape(-1, dtype.itemsize) for a in pairs)
            same = (now == before).all(axis=1)
            stale[item.case] = stale.get(item.case, same) & same
        for case, left in stale.items():
            if left.any():
                return [
                    f"case {cases[case].name}: the kernel leaves {int(left.sum())} of {left.size} elements of the "
                    f"output '{argument.name}' unwritten, first at index {int(left.argmax())}; declare it as inout, or give "
                    "its true size"
                ]
    return []


@dataclass(frozen=True)
class Exchange:
    """The buffers of a run with one input drawn anew."""

    of: KnownRun
    name: str
    buffers: dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Controls:
    """Wrong results that a spec has to tell from the original's. `run` runs the original with exchanged inputs; `differs` compares
    outputs with a run's."""

    spec: KernelSpec
    run: Callable[[Sequence[Exchange]], Sequence[CpuRun]]
    differs: Callable[[KnownRun, Mapping[str, Any]], bool]

    def accepted(self, known: Sequence[KnownRun], declared: Sequence[KnownRun]) -> list[str]:
        """Wrong contents of an output that no case tells from the right ones. `declared` has one run of each case."""
        wanted: dict[tuple[str, str], bool] = {}
        for item in known:
            for name in (a.name for a in self.spec.outputs):
                contents = _wrong_contents(self.spec.arguments, item, name)
                for what, content in contents.items():
                    seen = wanted.get((what, name), False)
                    wanted[what, name] = seen or self.differs(item, {**item.original, name: content})
                if _COPY not in contents:  # no input has room for it: whoever copies one fails here
                    wanted[_COPY, name] = True
        return [
            f"{what} in '{name}' would be accepted as a correct result"
            for (what, name), seen in wanted.items()
            if not seen and not (what == _COPY and self._copies(declared, name))
        ]

    def _copies(self, declared: Sequence[KnownRun], output: str) -> bool:
        """Whether the original copies an input to the output whatever stands there: then that is its result, and no control."""
        rng = np.random.default_rng(0)
        drawn = [each for item in declared if (each := _with_any_bits(self.spec, item, output, rng)) is not None]
        runs = self.run(drawn)
        return bool(drawn) and all(
            not run.findings
            and run.outputs[output].tobytes() == each.buffers[each.name][: run.outputs[output].size].tobytes()
            for each, run in zip(drawn, runs, strict=True)
        )

    def independent(self, declared: Sequence[KnownRun], fresh: Sequence[Mapping[str, NDArray[Any]]]) -> list[str]:
        """Inputs that no output depends on, tried by exchanging one input at a time for that of `fresh`."""
        drawn = [
            Exchange(item, a.name, {**item.buffers, a.name: other[a.name]})
            for item, other in zip(declared, fresh, strict=True)
            for a in self.spec.arguments
            if a.role in ("in", "inout") and a.fill.kind != "constant"
        ]
        found: dict[str, bool] = {}
        for each, run in zip(drawn, self.run(drawn), strict=True):
            changed = bool(run.findings) or self.differs(each.of, run.outputs)
            found[each.name] = found.get(each.name, False) or changed
        return [
            f"no output depends on the input '{name}' in any check case"
            for name, depends in found.items()
            if not depends
        ]


def _with_any_bits(spec: KernelSpec, item: KnownRun, output: str, rng: np.random.Generator) -> Exchange | None:
    """A run's buffers with any numbers of its type in the input that the control for `output` copies; None where there is none."""
    name = _copied(spec.arguments, item, output)
    if not name:
        return None
    drawn = any_bits(parse_dtype(spec.argument(name).type), item.buffers[name].size, rng)
    return Exchange(item, name, {**item.buffers, name: drawn})


def _wrong_contents(arguments: Sequence[Argument], item: KnownRun, name: str) -> dict[str, NDArray[Any]]:
    right = item.original[name]
    found = {"all zeros": np.zeros_like(right), "the previous contents": item.buffers[name]}
    if source := _copied(arguments, item, name):
        found[_COPY] = item.buffers[source][: right.size]
    return found


def _copied(arguments: Sequence[Argument], item: KnownRun, output: str) -> str:
    """The input that stands for an output in one control; "" where none has its type and room."""
    right = item.original[output]
    for a in arguments:
        other = item.buffers.get(a.name) if a.role == "in" else None
        if other is not None and other.dtype == right.dtype and other.size >= right.size:
            return a.name
    return ""

"""What validating a spec on the CPU looks for in runs of the original: outputs it leaves, and wrong results that would pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.evaluate.known_runs import KnownRun
from engine.spec.dtypes import parse_dtype
from engine.spec.kernel_spec import Argument, Case, KernelSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray


def unwritten(spec: KernelSpec, known: Sequence[KnownRun], cases: Sequence[Case]) -> list[str]:
    """Elements of an output that no run of a case has changed: what stood there would count for the tolerance."""
    for argument in spec.arguments:
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


def controls(
    spec: KernelSpec, known: Sequence[KnownRun], differs: Callable[[KnownRun, Mapping[str, Any]], bool]
) -> list[str]:
    """Wrong contents of an output that no case tells from the right ones; `differs` compares outputs with a run's."""
    wanted: dict[tuple[str, str], bool] = {}
    for item in known:
        for name in (a.name for a in spec.arguments if a.role in ("out", "inout")):
            for what, content in _wrong_contents(spec.arguments, item, name).items():
                seen = wanted.get((what, name), False)
                wanted[what, name] = seen or differs(item, {**item.original, name: content})
    return [
        f"{what} in '{name}' would be accepted as a correct result" for (what, name), seen in wanted.items() if not seen
    ]


@dataclass(frozen=True)
class Exchange:
    """The buffers of a run with one input drawn anew."""

    of: KnownRun
    name: str
    buffers: dict[str, NDArray[Any]]


def exchanges(spec: KernelSpec, item: KnownRun, fresh: Mapping[str, NDArray[Any]]) -> list[Exchange]:
    """A run's buffers with each input in turn from `fresh`."""
    return [
        Exchange(item, a.name, {**item.buffers, a.name: fresh[a.name]})
        for a in spec.arguments
        if a.role in ("in", "inout") and a.fill.kind != "constant"
    ]


def independent(seen: Iterable[tuple[str, bool]]) -> list[str]:
    """Inputs that no output depends on; `seen` has, for each exchange, the input and whether the outputs changed."""
    found: dict[str, bool] = {}
    for name, changed in seen:
        found[name] = found.get(name, False) or changed
    return [
        f"no output depends on the input '{name}' in any check case" for name, depends in found.items() if not depends
    ]


def _wrong_contents(arguments: Sequence[Argument], item: KnownRun, name: str) -> dict[str, NDArray[Any]]:
    right = item.original[name]
    found = {"all zeros": np.zeros_like(right), "the previous contents": item.buffers[name]}
    inputs = (item.buffers[a.name] for a in arguments if a.role == "in" and a.name in item.buffers)
    for other in inputs:
        if other.dtype == right.dtype and other.size >= right.size:
            found["a copy of an input"] = other[: right.size]
            break
    return found

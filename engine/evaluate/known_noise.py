"""How far what a program gives may be from what the original gave on the same inputs: the rounding that the original itself shows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from engine.evaluate.known_runs import KnownRun
from engine.model import Failure
from engine.spec.dtypes import parse_dtype
from engine.spec.kernel_spec import KernelSpec
from engine.verify.host_compare import Outputs, difference, noise
from engine.verify.tolerance import Noise, allowed

_NONE = Noise(0.0, 0.0)
_LEAST_RMS = 1e-30  # of outputs that are zero but for rounding. Ours


class KnownNoise:
    """The most noise that was seen of each output, by case and family. `case_name` gives a case's name for failures."""

    def __init__(self, spec: KernelSpec, case_name: Callable[[int], str]) -> None:
        self._spec, self._case_name = spec, case_name
        self._seen: dict[tuple[int, str, str], Noise] = {}

    def record(self, item: KnownRun) -> None:
        """Count the rounding of a run of the original."""
        reference = item.wide if item.wide is not None else item.original
        for argument in self._spec.outputs:
            self._add(item, argument.name, noise(self._spec, argument.name, item.original, reference))

    def misled(self, known: Sequence[KnownRun]) -> bool:
        """Whether the reference of some run is further from the original than its numbers are large: then it is none.

        A widened kernel that stores floats by their bits computes something else.
        """
        floats = [a.name for a in self._spec.arguments if a.role != "in" and parse_dtype(a.type).kind == "float"]
        found = [
            noise(self._spec, name, item.original, item.wide)
            for item in known
            for name in floats
            if item.wide is not None and name in item.original
        ]
        return any(each.error > max(each.rms, _LEAST_RMS) for each in found)

    def record_order(self, item: KnownRun, outputs: Mapping[str, Any]) -> None:
        """Count the rounding of another order of threads, where the spec declares that the order matters.

        A float sum may be nearly exact in one order by luck. More than reductions come to is no rounding and is not counted.
        """
        if not self._spec.deterministic:
            self.record_sums(item, outputs)

    def record_sums(self, item: KnownRun, outputs: Mapping[str, Any]) -> None:
        """Count the rounding of the same results with the terms of sums in another order, which an edit may choose."""
        if item.wide is None:
            return
        for name in outputs:
            now = noise(self._spec, name, outputs, item.wide)
            dtype = parse_dtype(self._spec.argument(name).type)
            if now.error <= allowed(dtype, Noise(0.0, now.rms), declared=None, widened=False):
                self._add(item, name, now)

    def compare(self, item: KnownRun, outputs: Mapping[str, Any], *, loose: bool = False) -> Failure | None:
        """Where outputs differ from the original's by more than rounding."""
        for argument in self._spec.outputs:
            if item.compared is not None and argument.name not in item.compared:
                continue
            now = noise(self._spec, argument.name, item.original, item.wide if item.wide is not None else item.original)
            scale = _larger(now, self._seen.get((item.case, item.family, argument.name), _NONE))
            compared = Outputs(outputs, item.original, item.wide)
            case = self._case_name(item.case)
            failure = difference(self._spec, argument.name, compared, scale, case, loose=loose)
            if failure:
                return replace(failure, reason=f"{failure.reason} (inputs '{item.family}')")
        return None

    def rename(self, case: int, other: int) -> None:
        """Count what was seen of a case for another place."""
        moved = {key: noise for key, noise in self._seen.items() if key[0] == case}
        self._seen |= {(other, family, name): noise for (_, family, name), noise in moved.items()}

    def _add(self, item: KnownRun, name: str, now: Noise) -> None:
        key = item.case, item.family, name
        self._seen[key] = _larger(now, self._seen.get(key, _NONE))


def _larger(one: Noise, other: Noise) -> Noise:
    return Noise(max(one.error, other.error), max(one.rms, other.rms))

"""What timed samples say: speedups with their intervals, whether they can be believed, and how the evaluation ends.

Samples come from the GPU worker: for each timing case `samples_us`, one list for each program that was timed in turn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from engine.evaluate import guardrails
from engine.model import CaseTiming, Evaluation, Failure, Measurement, Outcome
from engine.settings.config import Guardrails
from engine.spec.data import buffer_elements
from engine.spec.dtypes import parse_dtype
from engine.spec.kernel_spec import Case, KernelSpec
from engine.statistics import Interval, between_processes, paired_ratio, weighted_ratio

# Faster than the bytes allow, with this margin for the roof's own noise, is not believed.
_FLOOR_MARGIN = 0.9


def beside_original(spec: KernelSpec, results: Sequence[Mapping[str, Any]]) -> tuple[Measurement, float | None]:
    """The candidate's speedup over the original, of samples of the original first and the candidate last.

    With the incumbent between them also the speedup over that.
    """
    weights = [case.weight for case in spec.time]
    cases: list[CaseTiming] = []
    pairs, rivals, each = [], [], []
    for case, result in zip(spec.time, results, strict=True):
        original, *between, candidate = result["samples_us"]
        i = paired_ratio(original, candidate)
        each.append(i)
        cases.append(
            CaseTiming(
                case.name, case.weight, _median(original), _median(candidate), i.ratio, i.low, i.high, len(candidate),
            )
        )  # fmt: skip
        pairs.append((original, candidate))
        rivals += [(incumbent, candidate) for incumbent in between]
    total = _together(each, pairs, weights)
    against = weighted_ratio(rivals, weights).ratio if rivals else None
    return Measurement(tuple(cases), total.ratio, total.low, total.high), against


def beside_incumbent(
    spec: KernelSpec, results: Sequence[Mapping[str, Any]], held: Measurement
) -> tuple[Measurement, float]:
    """The candidate's speedups over the original and the incumbent, of samples of incumbent and candidate.

    The incumbent's own speedup `held`, with the bounds of its interval, carries over to the original.
    """
    cases: list[CaseTiming] = []
    pairs = [(r["samples_us"][0], r["samples_us"][-1]) for r in results]
    each = [paired_ratio(rival, candidate) for rival, candidate in pairs]
    for case, known, (_, candidate), i in zip(spec.time, held.cases, pairs, each, strict=True):
        cases.append(
            CaseTiming(
                case.name, case.weight, known.original_us, _median(candidate), known.ratio * i.ratio,
                known.low * i.low, known.high * i.high, len(candidate),
            )
        )  # fmt: skip
    total = _together(each, pairs, [case.weight for case in spec.time])
    measurement = Measurement(tuple(cases), held.ratio * total.ratio, held.low * total.low, held.high * total.high)
    return measurement, total.ratio


def on_other_device(measured: Measurement, original: Measurement) -> Measurement | None:
    """A speedup of one device beside the original's own times on another; None where their cases differ.

    Only ratios travel: times of two devices are never compared.
    """
    here = {case.case: case.original_us for case in original.cases}
    if [case.case for case in measured.cases] != list(here):
        return None
    cases = tuple(
        replace(case, original_us=here[case.case], candidate_us=here[case.case] / case.ratio) for case in measured.cases
    )
    return replace(measured, cases=cases)


def moved_bytes(spec: KernelSpec, case: Case) -> tuple[int, int]:
    """The compulsory bytes of a case: (read, written), every input read once and every output written once."""
    elements = buffer_elements(spec, case)
    size = {a.name: elements[a.name] * parse_dtype(a.type).itemsize for a in spec.arguments if a.role != "scalar"}
    read = sum(size[a.name] for a in spec.arguments if a.role in ("in", "inout"))
    return read, sum(size[a.name] for a in spec.outputs)


def certain_bytes(spec: KernelSpec, case: Case) -> tuple[int, int]:
    """The bytes of a case that no correct kernel can avoid: (read, written).

    Reads count as 0 where data may be read sparsely (integer inputs can be indices), and inputs that are updated may stay as they are.
    """
    read, written = moved_bytes(spec, case)
    sparse = any(a.role == "in" and a.fill.kind not in ("normal", "uniform") for a in spec.arguments)
    return (0, written) if sparse else (read, written)


def floors_us(
    sizes: Sequence[tuple[int, int]], copies_us: Sequence[float], original: Measurement, cache_bytes: int
) -> tuple[float, ...]:
    """The least time in µs that each timing case can take: most of what a copy of its certain bytes `sizes` took.

    `copies_us` are measured with the flush that timing uses. Void (0) where the bytes fit the cache, where there is no measurement, and
    where the original itself is faster.
    """
    floors = []
    for (read, written), copy_us, timed in zip(sizes, copies_us, original.cases, strict=True):
        floor = copy_us * _FLOOR_MARGIN
        floors.append(floor if read + written > 2 * cache_bytes and timed.original_us > floor else 0.0)
    return tuple(floors)


def with_process_spread(measurement: Measurement, other: Measurement | None) -> Measurement:
    """`measurement` with intervals that hold for another process as well.

    `other` is what an earlier process measured of the same program; the distance between the two says how far processes differ here.
    """
    if not measurement.cases:
        return measurement
    rivals = [None] * len(measurement.cases) if other is None else [case.ratio for case in other.cases]
    cases = tuple(
        _widened(case, between_processes(Interval(case.ratio, case.low, case.high), rival))
        for case, rival in zip(measurement.cases, rivals, strict=True)
    )
    total = Interval(measurement.ratio, measurement.low, measurement.high)
    total = between_processes(total, None if other is None else other.ratio)
    return replace(measurement, cases=cases, low=total.low, high=total.high)


def _widened(case: CaseTiming, interval: Interval) -> CaseTiming:
    return replace(case, low=interval.low, high=interval.high)


def judge(evaluation: Evaluation, measurement: Measurement, floors: Sequence[float], limits: Guardrails) -> Evaluation:
    """The evaluation of what passed its checks, ended by its measurement: too fast to be true, unstable, slower, faster."""
    evaluation = replace(evaluation, measurement=measurement)
    for case, floor in zip(measurement.cases, floors, strict=True):
        if case.candidate_us < floor:
            return replace(
                evaluation, outcome=Outcome.GUARDRAIL,
                failure=Failure(
                    f"takes {case.candidate_us:.1f} µs where a copy of the same bytes takes {floor / _FLOOR_MARGIN:.1f} µs: "
                    "it cannot have done all the work", case=case.case,
                ),
            )  # fmt: skip
    if not measurement.stable:
        return replace(evaluation, outcome=Outcome.UNSTABLE, failure=Failure("; ".join(measurement.notes)))
    if measurement.low > 1.0:
        gate = guardrails.timing(measurement, limits)
        if gate.verdict == "failed":
            return replace(evaluation, outcome=Outcome.GUARDRAIL, failure=Failure(gate.detail), guardrails=(gate,))
        return replace(evaluation, outcome=Outcome.ACCEPTED)
    return replace(evaluation, outcome=Outcome.SLOWER if measurement.high < 1.0 else Outcome.NO_DIFFERENCE)


def _together(
    each: Sequence[Interval], pairs: Sequence[tuple[Sequence[float], Sequence[float]]], weights: Sequence[float]
) -> Interval:
    """The speedup over all cases; of one it is known already."""
    return each[0] if len(each) == 1 else weighted_ratio(pairs, weights)


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2

"""The report's plots: speedup by step, the search over time, the roofline, speedup by shape, cost by stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.model import PASSED
from engine.predicted_number import approximate
from engine.report.chart import NARROW, WIDE, Axis, Chart, Ink, Shape, axis, places
from engine.report.roofline import Roofline
from engine.report.run_folder import StoredRun
from engine.report.safe_text import clean, speedup_words, upper_first

if TYPE_CHECKING:
    from engine.model import CaseTiming
    from engine.tune.evaluated_point import Mark
    from engine.tune.tuning_result import ShapeBest, TuneResult

# What a plot can hold and still be read, or be small; the tables beside the plots hold more. Ours.
_STEPS, _CASES, _STAGES, _DOTS = 40, 30, 24, 1500
_LOG_FROM = 8.0  # largest over smallest speedup from which on an axis is logarithmic
_STAGE_LEAST = 0.005  # of all stages' time
_SHAPES: Mapping[str, Shape] = {"original": "square", "step": "circle", "best": "diamond"}
_ROW = 30.0  # pixels of a row of a plot with named places


@dataclass(frozen=True)
class Plot:
    """One drawing for wide windows and one for narrow ones, and what they show in one sentence."""

    chart: Chart
    narrow: Chart
    caption: str


def plots(run: StoredRun, roofline: Roofline | None) -> dict[str, Plot]:
    """All plots that the run has data for, by name: "steps", "search", "roofline", "shapes", "stages"."""
    result, predicted = run.result, run.result.mode == "predicted"
    best = result.best.evaluation.measurement if result.best is not None else None
    return _both(
        {
            "steps": lambda width: _steps(run, predicted, width),
            "search": lambda width: _search(run, predicted, width),
            "roofline": lambda width: _roofline(roofline, width),
            "shapes": lambda width: _cases(best.cases[:_CASES] if best is not None else (), predicted, width),
            "stages": lambda width: _stages(result.stages, width),
        }
    )


def tuning_plots(result: TuneResult) -> dict[str, Plot]:
    """The plots of a tuning run that it has data for, by name: "search", "shapes", "stages"."""
    predicted = result.mode == "predicted"
    return _both(
        {
            "search": lambda width: _trace(result.trace, predicted, width),
            "shapes": lambda width: _cases(result.shapes[:_CASES], predicted, width),
            "stages": lambda width: _stages(result.stages, width),
        }
    )


def comparison_plots(runs: Mapping[str, StoredRun]) -> dict[str, Plot]:
    """The plot of two runs of one mode, "search": the best so far of each over time."""
    return _both({"search": lambda width: _progress(runs, width)})


_Drawn = tuple[Chart, str]  # with its caption


def _both(drawings: Mapping[str, Callable[[float], _Drawn | None]]) -> dict[str, Plot]:
    found = {}
    for name, draw in drawings.items():
        wide, narrow = draw(WIDE), draw(NARROW)
        if wide is not None and narrow is not None:
            found[name] = Plot(wide[0], narrow[0], wide[1])
    return found


def _trace(trace: Sequence[Mark], predicted: bool, width: float) -> _Drawn | None:
    if not trace:
        return None
    best: list[tuple[float, float]] = [(0, 1.0)]
    for mark in trace:
        if mark.ratio > best[-1][1]:
            best.append((mark.evaluations, mark.ratio))
    best.append((max(trace[-1].evaluations, best[-1][0]), best[-1][1]))
    words = speedup_words(predicted)
    caption = f"{upper_first(words)} of the best configuration so far, over {best[-1][0]:g} evaluations."
    across = axis("evaluations", [n for n, _ in best], zero=True)
    chart = Chart(caption, across, _ratios(words, [r for _, r in best]), width=width)
    chart.line(best, "best", stairs=True)
    return chart, caption


def _steps(run: StoredRun, predicted: bool, width: float) -> _Drawn | None:
    result = run.result
    points: list[tuple[str, float, float, float, Ink]] = [("original", 1.0, 1.0, 1.0, "original")]
    for number, step in enumerate(result.trajectory[:_STEPS], 1):
        if (m := step.evaluation.measurement) is not None:
            points.append((str(number), m.ratio, m.low, m.high, "step"))
    if result.best is not None and (m := result.best.evaluation.measurement) is not None:
        points.append(("predicted again" if predicted else "confirmed", m.ratio, m.low, m.high, "best"))
    if len(points) < 2:
        return None
    words = speedup_words(predicted)
    said = "; ".join(f"{label}: {_ratio(ratio, None, None, predicted)}" for label, ratio, *_ in points)
    bars = "" if predicted else " Bars are 95 % intervals."
    caption = f"{upper_first(words)} relative to the original, after each step.{bars}"
    ends = [value for _, ratio, low, high, _ in points for value in (ratio, low, high) if value > 0]
    chart = Chart(f"{caption} {said}", places([p[0] for p in points], "step"), _ratios(words, ends), width=width)
    chart.line([(at, p[1]) for at, p in enumerate(points)], "muted", 1.0)
    for at, (label, ratio, low, high, ink) in enumerate(points):
        if not predicted:
            chart.interval((at, low), (at, high), ink)
        name = label if at in (0, len(points) - 1) else f"step {label}"
        chart.point(
            at, ratio, ink, shape=_SHAPES[ink], hollow=predicted, text=f"{name}: {_ratio(ratio, low, high, predicted)}"
        )
    return chart, caption


def _best_so_far(run: StoredRun) -> list[tuple[float, float]]:
    """Seconds and speedup of each new best, from the original to the end of the run."""
    best: list[tuple[float, float]] = [(0.0, 1.0)]
    for node in run.nodes:
        if node.outcome in ("accepted", "screened") and node.ratio and node.ratio > best[-1][1]:
            best.append((node.elapsed_s, node.ratio))
    return [*best, (max(run.result.elapsed_s, best[-1][0]), best[-1][1])]


def _progress(runs: Mapping[str, StoredRun], width: float) -> _Drawn:
    lines = {name: _best_so_far(run) for name, run in runs.items()}
    predicted = any(run.result.mode == "predicted" for run in runs.values())
    words = speedup_words(predicted)
    caption = f"{upper_first(words)} of the best candidate so far: {' and '.join(lines)}."
    said = "; ".join(
        f"{name}: {_ratio(line[-1][1], None, None, predicted)} after {line[-1][0]:.1f} s"
        for name, line in lines.items()
    )
    every = [point for line in lines.values() for point in line]
    across = axis("seconds since the start", [t for t, _ in every], zero=True)
    chart = Chart(f"{caption} {said}", across, _ratios(words, [r for _, r in every]), width=width)
    inks: tuple[tuple[Ink, Shape], ...] = (("original", "square"), ("best", "diamond"))
    for (name, line), (ink, shape) in zip(lines.items(), inks, strict=True):
        chart.line(line, ink, stairs=True)
        for seconds, ratio in line[1:]:
            chart.point(
                seconds,
                ratio,
                ink,
                shape=shape,
                text=f"{name}: {_ratio(ratio, None, None, predicted)} after {seconds:.1f} s",
            )
    chart.legend([(ink, shape, name) for (ink, shape), name in zip(inks, lines, strict=True)])
    return chart, caption


def _search(run: StoredRun, predicted: bool, width: float) -> _Drawn | None:
    passed = [n for n in run.nodes if n.ratio and n.ratio > 0 and n.outcome in PASSED and n.parent is not None]
    if not passed:
        return None
    best = _best_so_far(run)
    every = max(1, -(-len(passed) // _DOTS))
    some = f" One dot in {every} is drawn." if every > 1 else ""
    words = speedup_words(predicted)
    caption = (
        f"{upper_first(words)} of each candidate that passed its checks ({len(passed)}), and the best so far.{some}"
    )
    dots = [(n.elapsed_s, n.ratio or 1.0, n) for n in passed[::every]]
    times = [n.elapsed_s for n in passed] + [t for t, _ in best]
    across = axis("seconds since the start", times, zero=True)
    chart = Chart(caption, across, _ratios(words, [n.ratio or 1.0 for n in passed] + [1.0]), width=width)
    chart.cloud(
        [
            (t, r, f"candidate {n.id}: {_ratio(r, n.low, n.high, predicted)}, {n.outcome.replace('_', ' ')}")
            for t, r, n in dots
        ],
        "step",
    )
    chart.line(best, "best", stairs=True)
    chart.legend((("step", "circle", "passed its checks"), ("best", "line", "best so far")))
    return chart, caption


def _roofline(roofline: Roofline | None, width: float) -> _Drawn | None:
    if roofline is None:
        return None
    points = roofline.points[: _STEPS + 2]
    ridge = roofline.issue_per_s / roofline.bytes_per_s
    left = min([p.intensity for p in points] + [ridge]) / 3
    right = max([p.intensity for p in points] + [ridge]) * 3
    bottom = min(left * roofline.bytes_per_s, *(p.per_s for p in points)) / 1e9 / 2
    roof = roofline.issue_per_s / 1e9
    said = "; ".join(
        f"{p.label}: {p.per_s / 1e9:.3g} at {p.intensity:.3g}, {100 * p.share:.0f} % of the roof" for p in points
    )
    across, up = Axis(roofline.x_words, left, right, True), Axis(roofline.y_words, bottom, roof * 1.8, True)
    chart = Chart(f"{roofline.caption} {said}", across, up, 420.0, width)
    chart.line([(left, left * roofline.bytes_per_s / 1e9), (ridge, roof), (right, roof)], "ink")
    # Where the line to the label crosses no other label
    at = (left * ridge**2) ** (1 / 3) if width == WIDE else 1.3 * left
    chart.head(at, at * roofline.bytes_per_s / 1e9, roofline.memory_roof)
    chart.note(right, roof, roofline.issue_roof)
    for point in points:
        shape = _SHAPES[point.kind]
        text = f"{point.label}: {point.per_s / 1e9:.3g} at {point.intensity:.3g}, {100 * point.share:.0f} % of the roof"
        chart.point(point.intensity, point.per_s / 1e9, point.kind, shape=shape, hollow=roofline.predicted, text=text)
    chart.name_points([(point.intensity, point.per_s / 1e9, point.label) for point in points])
    return chart, roofline.caption


def _cases(cases: Sequence[CaseTiming | ShapeBest], predicted: bool, width: float) -> _Drawn | None:
    if not cases:
        return None
    words = speedup_words(predicted)
    bars = "" if predicted else ", with 95 % intervals"
    caption = f"{upper_first(words)} for each shape{bars}."
    said = "; ".join(f"{clean(c.case)[:60]}: {_ratio(c.ratio, None, None, predicted)}" for c in cases)
    ends = [value for c in cases for value in (c.ratio, c.low, c.high) if value > 0]
    rows = places([clean(c.case)[:40] for c in cases])
    chart = Chart(f"{caption} {said}", _ratios(words, [*ends, 1.0]), rows, 90.0 + _ROW * len(cases), width)
    chart.line([(1.0, -0.5), (1.0, len(cases) - 0.5)], "muted", 1.0)
    for at, case in enumerate(cases):
        if not predicted:
            chart.interval((case.low, at), (case.high, at), "best")
        text = f"{clean(case.case)[:60]}: {_ratio(case.ratio, case.low, case.high, predicted)}"
        chart.point(case.ratio, at, "best", hollow=predicted, text=text)
    return chart, caption


def _stages(stages: Mapping[str, float], width: float) -> _Drawn | None:
    total = sum(stages.values())
    named = sorted(((s, n) for n, s in stages.items() if total > 0 and s >= _STAGE_LEAST * total), reverse=True)[
        :_STAGES
    ]
    if not named:
        return None
    caption = "Measured seconds by stage. Builds run in parallel with the device, so the sum can exceed the run's time."
    said = "; ".join(f"{clean(n)[:40]}: {s:.1f} s" for s, n in named)
    rows = places([clean(n)[:40] for _, n in named])
    across = axis("seconds", [s for s, _ in named], zero=True)
    chart = Chart(f"{caption} {said}", across, rows, 90.0 + 0.8 * _ROW * len(named), width)
    for at, (seconds, name) in enumerate(named):
        chart.bar(at, seconds, "step", f"{clean(name)[:60]}: {seconds:.2f} s")
    return chart, caption


def _ratio(ratio: float, low: float | None, high: float | None, predicted: bool) -> str:
    """A speedup in words: predicted, or with its interval where there is one."""
    if predicted:
        return f"{approximate(ratio)}× predicted"
    return f"{ratio:.2f}×" + (f" ({low:.2f} to {high:.2f})" if low is not None and high is not None else "")


def _ratios(words: str, ratios: Sequence[float]) -> Axis:
    """An axis of speedups, logarithmic where they are far apart."""
    return axis(words, ratios, logarithmic=min(ratios) > 0 and max(ratios) / min(ratios) >= _LOG_FROM)

"""The report's plots: speedup by step, the search over time, the roofline, speedup by shape, cost by stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from engine.model import PASSED
from engine.report.read import Run
from engine.report.roofline import Roofline
from engine.report.svg import INK, Styles, draw, look
from engine.report.text import clean, speedup_words, upper_first

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from engine.model import CaseTiming
    from engine.tune.result import ShapeBest, TuneResult
    from engine.tune.tried import Mark

# What a plot can hold and still be read, or be small; the tables beside the plots hold more. Ours.
_STEPS, _CASES, _STAGES, _DOTS = 40, 30, 24, 1500
_LOG_FROM = 8.0  # largest over smallest speedup from which on an axis is logarithmic
_FINE = 300.0  # largest over smallest up to which a logarithmic axis names 2 and 5 between the powers of ten
_STAGE_LEAST = 0.005  # of all stages' time


@dataclass(frozen=True)
class Plot:
    """One drawing as inline SVG, and what it shows in one sentence."""

    name: str
    svg: str
    caption: str


def plots(run: Run, roofline: Roofline | None, styles: Styles) -> dict[str, Plot]:
    """All plots that the run has data for, by name: "steps", "search", "roofline", "shapes", "stages"."""
    predicted = run.result.mode == "predicted"
    makers: dict[str, Callable[[], Plot | None]] = {
        "steps": lambda: _steps(run, predicted, styles),
        "search": lambda: _search(run, predicted, styles),
        "roofline": lambda: _roofline(roofline, styles),
        "shapes": lambda: _shapes(run, predicted, styles),
        "stages": lambda: _stages(run.result.stages, styles),
    }
    found: dict[str, Plot] = {}
    with look():
        for name, make in makers.items():
            plot = make()
            if plot is not None:
                found[name] = plot
    return found


def tuning_plots(result: TuneResult, styles: Styles) -> dict[str, Plot]:
    """The plots of a tuning run that it has data for, by name: "search", "shapes", "stages"."""
    predicted = result.mode == "predicted"
    with look():
        drawn = (
            _trace(result.trace, predicted, styles),
            _cases(result.shapes[:_CASES], predicted, styles),
            _stages(result.stages, styles),
        )
    return {plot.name: plot for plot in drawn if plot is not None}


def _trace(trace: Sequence[Mark], predicted: bool, styles: Styles) -> Plot | None:
    if not trace:
        return None
    best = [(0, 1.0)]
    for mark in trace:
        if mark.ratio > best[-1][1]:
            best.append((mark.evaluations, mark.ratio))
    best.append((max(trace[-1].evaluations, best[-1][0]), best[-1][1]))

    def paint(axes: Axes) -> None:
        _ratios(axes, "y", [r for _, r in best])
        axes.step([n for n, _ in best], [r for _, r in best], where="post", color=INK["best"], linewidth=2)
        axes.set_xlabel("evaluations")
        axes.set_ylabel(speedup_words(predicted))

    caption = (
        f"{upper_first(speedup_words(predicted))} of the best configuration so far, over {best[-1][0]} evaluations."
    )
    return Plot("search", draw(styles, "search", caption, paint), caption)


def _steps(run: Run, predicted: bool, styles: Styles) -> Plot | None:
    result = run.result
    points: list[tuple[str, float, float, float, str]] = [("original", 1.0, 1.0, 1.0, "original")]
    for number, step in enumerate(result.trajectory[:_STEPS], 1):
        if (m := step.evaluation.measurement) is not None:
            points.append((str(number), m.ratio, m.low, m.high, "step"))
    if result.best is not None and (m := result.best.evaluation.measurement) is not None:
        points.append(("predicted again" if predicted else "confirmed", m.ratio, m.low, m.high, "best"))
    if len(points) < 2:
        return None

    def paint(axes: Axes) -> None:
        _ratios(axes, "y", [p[1] for p in points])
        for at, (_, ratio, low, high, ink) in enumerate(points):
            _bar(axes, at, ratio, low, high, INK[ink], upright=True, predicted=predicted)
        axes.plot(range(len(points)), [p[1] for p in points], color=INK["muted"], linewidth=1, zorder=1)
        axes.set_xticks(range(len(points)), [p[0] for p in points])
        axes.set_xlabel("step")
        axes.set_ylabel(speedup_words(predicted))
        axes.grid(visible=False, axis="x")

    said = "; ".join(f"{label}: {ratio:.2f}" for label, ratio, *_ in points)
    bars = "" if predicted else " Bars are 95 % intervals."
    caption = f"{upper_first(speedup_words(predicted))} over the original after each step.{bars}"
    return Plot("steps", draw(styles, "steps", f"{caption} {said}", paint), caption)


def _search(run: Run, predicted: bool, styles: Styles) -> Plot | None:
    passed = [
        (n.elapsed_s, n.ratio)
        for n in run.nodes
        if n.ratio and n.ratio > 0 and n.outcome in PASSED and n.parent is not None
    ]
    if not passed:
        return None
    best: list[tuple[float, float]] = [(0.0, 1.0)]
    for node in run.nodes:
        if node.outcome in ("accepted", "screened") and node.ratio and node.ratio > best[-1][1]:
            best.append((node.elapsed_s, node.ratio))
    best.append((max(run.result.elapsed_s, best[-1][0]), best[-1][1]))
    every = max(1, -(-len(passed) // _DOTS))

    def paint(axes: Axes) -> None:
        _ratios(axes, "y", [r for _, r in passed] + [1.0])
        dots = passed[::every]
        axes.plot(
            [t for t, _ in dots], [r for _, r in dots], ".", color=INK["step"], markersize=4, label="passed its checks"
        )
        axes.step(
            [t for t, _ in best],
            [r for _, r in best],
            where="post",
            color=INK["best"],
            linewidth=2,
            label="best so far",
        )
        axes.set_xlabel("seconds since the start")
        axes.set_ylabel(speedup_words(predicted))
        axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2)  # above: dots may be anywhere

    some = f" One dot in {every} is drawn." if every > 1 else ""
    words = upper_first(speedup_words(predicted))
    caption = f"{words} of each candidate that passed its checks ({len(passed)}), and the best so far.{some}"
    return Plot("search", draw(styles, "search", caption, paint), caption)


def _roofline(roofline: Roofline | None, styles: Styles) -> Plot | None:
    if roofline is None:
        return None
    points = roofline.points[: _STEPS + 2]
    ridge = roofline.issue_per_s / roofline.bytes_per_s
    left = min([p.intensity for p in points] + [ridge]) / 3
    right = max([p.intensity for p in points] + [ridge]) * 3

    def paint(axes: Axes) -> None:
        roof = [(left, left * roofline.bytes_per_s), (ridge, roofline.issue_per_s), (right, roofline.issue_per_s)]
        axes.plot([x for x, _ in roof], [y / 1e9 for _, y in roof], color=INK["ink"], linewidth=2)
        # Above the roofs there are no points: its label stands there, with a line to the slanted part.
        middle = (left * ridge**2) ** (1 / 3)
        axes.annotate(
            roofline.memory_roof, (middle, middle * roofline.bytes_per_s / 1e9), xytext=(0.0, 1.09), textcoords="axes fraction",
            color=INK["muted"], arrowprops={"arrowstyle": "-", "color": INK["muted"], "linewidth": 1, "relpos": (0.5, 0.0)},
        )  # fmt: skip
        axes.annotate(
            roofline.issue_roof, (right, roofline.issue_per_s / 1e9), xytext=(-2, 4), textcoords="offset points", ha="right",
            color=INK["muted"],
        )  # fmt: skip
        bottom = min(left * roofline.bytes_per_s, *(p.per_s for p in points)) / 1e9 / 2
        _logarithmic(axes, "x", right / left)
        _logarithmic(axes, "y", roofline.issue_per_s / 1e9 / bottom)
        axes.set_ylim(bottom=bottom)
        shapes = {"original": "s", "step": "o", "best": "D"}
        for point in points:
            face = INK["back"] if roofline.predicted else INK[point.kind]
            axes.plot(
                [point.intensity], [point.per_s / 1e9], shapes[point.kind], color=INK[point.kind], markerfacecolor=face, markersize=8
            )  # fmt: skip
        _labels(axes, [(point.intensity, point.per_s / 1e9, point.label) for point in points])
        axes.set_xlabel(roofline.x_words)
        axes.set_ylabel(roofline.y_words)

    said = "; ".join(
        f"{p.label}: {p.per_s / 1e9:.3g} at {p.intensity:.3g}, {100 * p.share:.0f} % of the roof" for p in points
    )
    return Plot("roofline", draw(styles, "roofline", f"{roofline.caption} {said}", paint, height=4.2), roofline.caption)


def _shapes(run: Run, predicted: bool, styles: Styles) -> Plot | None:
    best = run.result.best
    cases = best.evaluation.measurement.cases[:_CASES] if best is not None and best.evaluation.measurement else ()
    return _cases(cases, predicted, styles)


def _cases(cases: Sequence[CaseTiming | ShapeBest], predicted: bool, styles: Styles) -> Plot | None:
    if not cases:
        return None

    def paint(axes: Axes) -> None:
        _ratios(axes, "x", [c.ratio for c in cases] + [1.0])
        for at, case in enumerate(cases):
            _bar(axes, at, case.ratio, case.low, case.high, INK["best"], upright=False, predicted=predicted)
        axes.axvline(1.0, color=INK["muted"], linewidth=1)
        axes.set_yticks(range(len(cases)), [clean(c.case)[:40] for c in cases])
        axes.set_ylim(len(cases) - 0.5, -0.5)
        axes.set_xlabel(speedup_words(predicted))
        axes.grid(visible=False, axis="y")

    bars = "" if predicted else ", with 95 % intervals"
    caption = f"{upper_first(speedup_words(predicted))} for each shape{bars}."
    said = "; ".join(f"{clean(c.case)[:60]}: {c.ratio:.2f}" for c in cases)
    return Plot("shapes", draw(styles, "shapes", f"{caption} {said}", paint, height=1.2 + 0.36 * len(cases)), caption)


def _stages(stages: Mapping[str, float], styles: Styles) -> Plot | None:
    total = sum(stages.values())
    named = sorted(((s, n) for n, s in stages.items() if total > 0 and s >= _STAGE_LEAST * total), reverse=True)[
        :_STAGES
    ]
    if not named:
        return None

    def paint(axes: Axes) -> None:
        axes.barh(range(len(named)), [s for s, _ in named], color=INK["step"], height=0.6)
        axes.set_yticks(range(len(named)), [clean(n)[:40] for _, n in named])
        axes.set_ylim(len(named) - 0.5, -0.5)
        axes.set_xlabel("seconds")
        axes.grid(visible=False, axis="y")

    caption = "Measured seconds by stage. Builds run beside the device, so the sum can exceed the run's time."
    said = "; ".join(f"{clean(n)[:40]}: {s:.1f} s" for s, n in named)
    return Plot("stages", draw(styles, "stages", f"{caption} {said}", paint, height=1.2 + 0.3 * len(named)), caption)


_PLACES = ((8, -4, "left"), (-8, -4, "right"), (0, -18, "center"), (0, 9, "center"), (8, 9, "left"), (-8, -18, "right"))
_LETTER, _LINE = 6.5, 12  # of a label, in points


def _labels(axes: Axes, points: Sequence[tuple[float, float, str]]) -> None:
    """Write each label beside its point where neither a point nor an earlier label is, as far as there is such a place."""
    scale = 72 / axes.figure.dpi
    at = [axes.transData.transform((x, y)) * scale for x, y, _ in points]
    taken = [(x - 6, y - 6, x + 6, y + 6) for x, y in at]
    for (x, y, text), (left, bottom) in zip(points, at, strict=True):
        width = _LETTER * len(text)
        boxes = []
        for dx, dy, side in _PLACES:
            start = left + dx - {"left": 0.0, "center": width / 2, "right": width}[side]
            boxes.append((start, bottom + dy, start + width, bottom + dy + _LINE))
        free = (i for i, b in enumerate(boxes) if not any(_overlap(b, other) for other in taken))
        place = next(free, 0)
        dx, dy, side = _PLACES[place]
        axes.annotate(text, (x, y), xytext=(dx, dy), textcoords="offset points", ha=side)
        taken.append(boxes[place])


def _overlap(a: Sequence[float], b: Sequence[float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _bar(
    axes: Axes, at: float, ratio: float, low: float, high: float, colour: str, *, upright: bool, predicted: bool
) -> None:
    """One speedup with its interval; a predicted one has none and is drawn hollow."""
    ends = None if predicted else [[max(0.0, ratio - low)], [max(0.0, high - ratio)]]
    face = INK["back"] if predicted else colour
    x, y, across, along = (at, ratio, None, ends) if upright else (ratio, at, ends, None)
    axes.errorbar(
        [x], [y], xerr=across, yerr=along, fmt="o", color=colour, markerfacecolor=face, markersize=7, capsize=4
    )  # fmt: skip


def _ratios(axes: Axes, which: Literal["x", "y"], ratios: Sequence[float]) -> None:
    low, high = min(ratios), max(ratios)
    if low > 0 and high / low >= _LOG_FROM:
        _logarithmic(axes, which, high / low)
    else:
        _axis(axes, which).set_major_formatter(_plain)


def _logarithmic(axes: Axes, which: Literal["x", "y"], span: float) -> None:
    """Ticks at the powers of ten, and at their double and fivefold where `span`, largest over smallest, leaves room."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set(**{f"{which}scale": "log"})
    axis = _axis(axes, which)
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if span < _FINE else (1.0,)))
    axis.set_major_formatter(_plain)
    axis.set_minor_formatter(NullFormatter())  # the default one writes markup


def _axis(axes: Axes, which: Literal["x", "y"]) -> Any:
    return axes.xaxis if which == "x" else axes.yaxis


def _plain(value: float, _: float) -> str:
    """A tick without mathematical markup."""
    return f"{value:g}"

"""Charts as inline SVG: axes, lines, points and bars, coloured by the page's classes, so that they follow its theme.

All lengths are pixels. A page holds each chart twice, `WIDE` and `NARROW`, and shows the one that fits its window. Text is escaped by the
template that writes the drawing.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

Ink = Literal["ink", "muted", "grid", "original", "step", "best"]
Side = Literal["start", "middle", "end"]
Shape = Literal["circle", "square", "diamond"]

WIDE, NARROW = 740.0, 344.0  # the second fits a window of 400 pixels, with its margins and a scroll bar
_LETTER, _LINE = 7.1, 14.0  # of a label of 12 px: what a letter takes at most on average, and its line
_TOP, _RIGHT, _BOTTOM = 30.0, 18.0, 46.0
_TICKS = 5  # wanted on a linear axis
_NAMES = 0.4  # of the width, for the names of rows
_FINE = 300.0  # largest over smallest up to which a logarithmic axis names 2 and 5 between the powers of ten


@dataclass(frozen=True)
class Axis:
    """The range of one axis, from `low` to `high` in its unit. With `names` it has one place for each of them, from 0."""

    label: str
    low: float
    high: float
    logarithmic: bool = False
    names: tuple[str, ...] = ()

    def part(self, value: float) -> float:
        """Where a value lies, from 0 to 1 within the range."""
        if self.logarithmic:
            low, high, value = math.log(self.low), math.log(self.high), math.log(max(value, self.low * 1e-6))
        else:
            low, high = self.low, self.high
        return (value - low) / (high - low)

    def ticks(self) -> list[tuple[float, str]]:
        """The values that are named, with their text."""
        if self.names:
            return [(float(at), name) for at, name in enumerate(self.names)]
        if self.logarithmic:
            parts = (1.0, 2.0, 5.0) if self.high / self.low < _FINE else (1.0,)
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            values = [part * 10.0**power for power in powers for part in parts]
        else:
            raw = (self.high - self.low) / _TICKS
            power = 10.0 ** math.floor(math.log10(raw))
            step = next(m * power for m in (1.0, 2.0, 2.5, 5.0, 10.0) if m * power >= raw * 0.999)
            first = math.ceil(self.low / step - 1e-9)
            values = [round(n * step, 12) for n in range(first, first + 4 * _TICKS)]
        slack = 1e-9 * abs(self.high - self.low)
        return [(v, f"{v:g}") for v in values if self.low - slack <= v <= self.high + slack]


def axis(label: str, values: Sequence[float], *, zero: bool = False, logarithmic: bool = False) -> Axis:
    """An axis with room for all values; `zero`: it begins there."""
    low, high = min(values), max(values)
    if logarithmic:
        room = max(high / low, 1.1) ** 0.06
        return Axis(label, low / room, high * room, True)
    room = 0.06 * ((high - low) or abs(high) or 1.0)
    return Axis(label, 0.0 if zero else low - room, high + room)


def places(names: Sequence[str], label: str = "") -> Axis:
    """An axis of named places, 0, 1, …"""
    return Axis(label, -0.5, len(names) - 0.5, names=tuple(names))


@dataclass(frozen=True)
class Stroke:
    """A line through pixels."""

    points: str
    ink: Ink
    width: float = 1.0


@dataclass(frozen=True)
class Dot:
    """A point: a circle, a square or a diamond around a pixel; hollow where it was predicted. `text` is its value in words."""

    x: float
    y: float
    radius: float
    ink: Ink
    shape: Shape = "circle"
    hollow: bool = False
    text: str = ""


@dataclass(frozen=True)
class Bar:
    """A bar from the left edge, in pixels."""

    x: float
    y: float
    width: float
    height: float
    ink: Ink
    text: str = ""


@dataclass(frozen=True)
class Label:
    """A text at a pixel of its base line."""

    x: float
    y: float
    text: str
    side: Side = "start"
    ink: Ink = "ink"
    upright: bool = False


@dataclass
class Chart:
    """One drawing. `said` is what a screen reader says of it. Values given to the methods are in the axes' units."""

    said: str
    x: Axis
    y: Axis
    height: float = 340.0
    width: float = WIDE
    strokes: list[Stroke] = field(default_factory=list)
    dots: list[Dot] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)

    def __post_init__(self) -> None:
        most = int(_NAMES * self.width / _LETTER)
        rows = [(value, text if len(text) <= most else f"{text[: most - 1]}…") for value, text in self.y.ticks()]
        widest = max((len(text) for _, text in rows), default=0)
        self.left = 14.0 + _LETTER * widest + (20.0 if self.y.label else 0.0)
        self.bottom = self.height - _BOTTOM
        grid: list[Stroke] = []
        for value, text in rows:
            y = self._y(value)
            if not self.y.names:
                grid.append(self._stroke([(self.left, y), (self.width - _RIGHT, y)], "grid"))
            self.labels.append(Label(self.left - 7.0, y + 4.0, text, "end"))
        for value, _ in self.x.ticks():
            x = self._x(value)
            if not self.x.names:
                grid.append(self._stroke([(x, _TOP), (x, self.bottom)], "grid"))
        self.labels += self._below()
        frame = [(self.left, _TOP), (self.left, self.bottom), (self.width - _RIGHT, self.bottom)]
        self.strokes = [*grid, self._stroke(frame, "muted"), *self.strokes]
        if self.x.label:
            half = _LETTER * len(self.x.label) / 2
            middle = max(half, min((self.left + self.width - _RIGHT) / 2, self.width - half))
            self.labels.append(Label(middle, self.height - 8.0, self.x.label, "middle"))
        if self.y.label:
            self.labels.append(Label(14.0, (_TOP + self.bottom) / 2, self.y.label, "middle", upright=True))

    def _below(self) -> list[Label]:
        """The names below the x axis that fit: the last one, and from the first one on those that do not touch another."""
        every = [Label(self._x(value), self.bottom + 17.0, text, "middle") for value, text in self.x.ticks()]
        if every:
            beyond = _box(every[-1])[2] - self.width
            every[-1] = replace(every[-1], x=every[-1].x - max(0.0, beyond))
        kept = every[-1:]
        for label in every[:-1]:
            if not any(_overlap(_box(label), _box(other)) for other in kept):
                kept.append(label)
        return kept

    # ---- what is drawn

    def line(
        self, points: Sequence[tuple[float, float]], ink: Ink, width: float = 2.0, *, stairs: bool = False
    ) -> None:
        """A line through points; as stairs, each value holds until the next one."""
        if stairs:
            steps = [(x, before[1]) for before, (x, _) in itertools.pairwise(points)]
            points = [p for pair in zip(points, [*steps, points[-1]], strict=True) for p in pair]
        self.strokes.append(self._stroke([(self._x(x), self._y(y)) for x, y in points], ink, width))

    def point(
        self, x: float, y: float, ink: Ink, *, shape: Shape = "circle", hollow: bool = False, text: str = ""
    ) -> None:
        """A single point."""
        self.dots.append(Dot(self._x(x), self._y(y), 4.0, ink, shape, hollow, text))

    def cloud(self, points: Sequence[tuple[float, float, str]], ink: Ink) -> None:
        """Many small points, each with its value in words."""
        self.dots += [Dot(self._x(x), self._y(y), 1.7, ink, text=text) for x, y, text in points]

    def interval(self, start: tuple[float, float], end: tuple[float, float], ink: Ink) -> None:
        """A line between two values with a cap at each end; it is upright or level."""
        (x0, y0), (x1, y1) = ((self._x(x), self._y(y)) for x, y in (start, end))
        across = (4.0, 0.0) if x0 == x1 else (0.0, 4.0)
        self.strokes.append(self._stroke([(x0, y0), (x1, y1)], ink, 1.5))
        for x, y in ((x0, y0), (x1, y1)):
            self.strokes.append(
                self._stroke([(x - across[0], y - across[1]), (x + across[0], y + across[1])], ink, 1.5)
            )

    def bar(self, at: int, value: float, ink: Ink, text: str = "") -> None:
        """A level bar at a named place of the y axis."""
        thick = 0.6 * (self.bottom - _TOP) / len(self.y.names)
        self.bars.append(
            Bar(self.left, self._y(at) - thick / 2, max(1.0, self._x(value) - self.left), thick, ink, text)
        )

    def legend(self, entries: Sequence[tuple[Ink, Shape | Literal["line"], str]]) -> None:
        """What the inks and shapes stand for, above the drawing."""
        x = self.width - _RIGHT
        for ink, shape, text in reversed(entries):
            x -= _LETTER * len(text)
            self.labels.append(Label(x, 16.0, text))
            if shape == "line":
                self.strokes.append(self._stroke([(x - 20.0, 12.0), (x - 6.0, 12.0)], ink, 2.0))
            else:
                self.dots.append(Dot(x - 10.0, 12.0, 4.0, ink, shape))
            x -= 34.0

    def note(self, x: float, y: float, text: str, side: Side = "end", lift: float = 6.0) -> None:
        """A quiet text above a value."""
        self.labels.append(Label(self._x(x), self._y(y) - lift, text, side, "muted"))

    def head(self, x: float, y: float, text: str) -> None:
        """A quiet text above the drawing, at its left, with a line to a value."""
        self.labels.append(Label(self.left, 16.0, text, "start", "muted"))
        foot = min(self.left + _LETTER * len(text) / 2, self._x(x))
        self.strokes.append(self._stroke([(foot, 20.0), (self._x(x), self._y(y))], "muted"))

    def name_points(self, points: Sequence[tuple[float, float, str]]) -> None:
        """Write each text beside its point where neither a point nor an earlier text is, as far as there is such a place."""
        at = [(self._x(x), self._y(y)) for x, y, _ in points]
        taken = [(x - 6, y - 6, x + 6, y + 6) for x, y in at] + [_box(label) for label in self.labels]
        for (_, _, text), (x, y) in zip(points, at, strict=True):
            some = [Label(x + dx, y + dy, text, side) for dx, dy, side in _AROUND]
            inside = [
                s for s in some if self.left <= _box(s)[0] and _box(s)[2] <= self.width and _box(s)[3] <= self.bottom
            ]
            free = [s for s in inside if not any(_overlap(_box(s), other) for other in taken)]
            chosen = (free or inside or some)[0]
            self.labels.append(chosen)
            taken.append(_box(chosen))

    # ---- pixels

    def _x(self, value: float) -> float:
        return round(self.left + self.x.part(value) * (self.width - _RIGHT - self.left), 1)

    def _y(self, value: float) -> float:
        part = self.y.part(value)  # named places come from the top
        return round(_TOP + (part if self.y.names else 1.0 - part) * (self.bottom - _TOP), 1)

    @staticmethod
    def _stroke(points: Sequence[tuple[float, float]], ink: Ink, width: float = 1.0) -> Stroke:
        return Stroke(" ".join(f"{x:g},{y:g}" for x, y in points), ink, width)


Box = tuple[float, float, float, float]
_AROUND: tuple[tuple[float, float, Side], ...] = (
    (9.0, 4.0, "start"), (-9.0, 4.0, "end"), (0.0, 20.0, "middle"), (0.0, -10.0, "middle"), (9.0, -10.0, "start"), (-9.0, 20.0, "end"),
)  # fmt: skip


def _box(label: Label) -> Box:
    width = _LETTER * len(label.text)
    left = label.x - {"start": 0.0, "middle": width / 2, "end": width}[label.side]
    return left, label.y - _LINE + 3.0, left + width, label.y + 3.0


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]

"""A space of named whole numbers with conditions, and the set of its points that meet them."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from engine.arith import ArithmeticError_, NoValue, Number, evaluate, expression
from engine.errors import RefusedError, UsageError

Point = tuple[int, ...]

_NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*\b(?!\s*\()")  # but not what is called
_RANGE = re.compile(r"\s*(-?\d{1,40})\s*\.\.\s*(-?\d{1,40})\s*(?:step\s+(\d{1,40}))?\s*", re.ASCII)
_WRITE = "expected e.g. 64, 128, 256 or 16..512 step 16"
_MOST_VALUES = 1024  # of one parameter
_MOST_VISITED = (
    2_000_000  # partial points looked at while the set is built, long conditions counted several times: some seconds
)
_WORTH_ONE = 64  # characters of conditions that cost about as much as looking at a partial point. Ours
_MOST_POINTS = 100_000


@dataclass(frozen=True)
class TuneParameter:
    """A name with the values it may take, in the order given. `where` is the `path:line` of its declaration, or ""."""

    name: str
    values: tuple[int, ...]
    where: str = ""


@dataclass(frozen=True)
class Condition:
    """An arithmetic expression over parameters and constants that must not be 0. `where` is its `path:line`, or ""."""

    text: str
    where: str = ""

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(_NAME.findall(self.text))


@dataclass(frozen=True)
class Excluded:
    """A condition (a user's, or one of the hardware) and how many points of the product of all values it took away."""

    condition: str
    points: int
    where: str = ""


@dataclass(frozen=True)
class ParameterSpace:
    """Parameters with conditions. `constants` are further names that conditions may use."""

    parameters: tuple[TuneParameter, ...]
    conditions: tuple[Condition, ...] = ()
    constants: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        for parameter in self.parameters:
            if not parameter.values:
                raise UsageError(f"'{parameter.name}' has no values", parameter.where, "write NAME = 64, 128, 256")
            if len(parameter.values) > _MOST_VALUES:
                raise UsageError(
                    f"'{parameter.name}' has {len(parameter.values)} values", parameter.where, f"at most {_MOST_VALUES}"
                )
            twice = [v for v, count in Counter(parameter.values).items() if count > 1]
            if twice:
                raise UsageError(
                    f"'{parameter.name}' has the value {twice[0]} twice", parameter.where, "name each value once"
                )

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(p.name for p in self.parameters)

    @property
    def size(self) -> int:
        """The number of points without any condition."""
        return math.prod(len(p.values) for p in self.parameters)

    def named(self, point: Point) -> dict[str, int]:
        return dict(zip(self.names, point, strict=True))

    def points(self) -> tuple[tuple[Point, ...], tuple[Excluded, ...]]:
        """Every point that meets the conditions, in the order of the values, and what each condition took away.

        Nothing is compiled or run. Raises UsageError for a condition that has no value or a space too large to list, and
        RefusedError that names the condition which leaves nothing.
        """
        names = self.names
        levels: list[list[_Checked]] = [[] for _ in names]
        known = dict(self.constants)
        checks = []
        for condition in self.conditions:
            unknown = sorted(n for n in condition.names if n not in names and n not in known)
            if unknown:
                raise UsageError(
                    f"the condition '{condition.text[:100]}' names '{unknown[0][:60]}', which is neither a parameter nor a constant",
                    condition.where, f"the parameters are {', '.join(names)}",
                )  # fmt: skip
            checked = _Checked(condition, tuple(n for n in names if n in condition.names))
            checks.append(checked)
            # A condition is asked for as soon as all its names have a value: what it forbids is never gone through.
            levels[max((names.index(n) for n in checked.names), default=0)].append(checked)
        below = [math.prod(len(p.values) for p in self.parameters[i + 1 :]) for i in range(len(names))]
        weights = [max(1, sum(len(c.condition.text) for c in checked) // _WORTH_ONE) for checked in levels]
        found: list[Point] = []
        visited = 0
        now: dict[str, Number] = dict(known)

        def below_of(partial: Point) -> None:
            nonlocal visited
            depth = len(partial)
            name, checked, last = names[depth], levels[depth], depth + 1 == len(names)
            visited += len(self.parameters[depth].values) * weights[depth]
            for value in self.parameters[depth].values:
                now[name] = value
                for check in checked:
                    if not check.holds(now):
                        check.excluded += below[depth]
                        break
                else:
                    if last:
                        found.append((*partial, value))
                    else:
                        below_of((*partial, value))
            if len(found) > _MOST_POINTS:
                raise self._too_large(
                    f"over {_MOST_POINTS} of the {self.size} combinations of {{}} meet the conditions"
                )
            if visited > _MOST_VISITED:
                raise self._too_large(f"the {self.size} combinations of {{}} are too many to enumerate")

        below_of(())
        excluded = tuple(Excluded(c.condition.text, c.excluded, c.condition.where) for c in checks if c.excluded)
        if not found:
            raise empty(self.size, excluded)
        return tuple(found), excluded

    def _too_large(self, what: str) -> UsageError:
        names = ", ".join(f"'{n}'" for n in self.names)
        return UsageError(what.format(names), self.parameters[0].where, "give fewer values or more conditions")


class _Checked:
    """A condition that was read once, and how many points it took away."""

    def __init__(self, condition: Condition, names: tuple[str, ...]) -> None:
        self.condition, self.names = condition, names
        self.excluded = 0
        try:
            self._value = expression(condition.text)
        except ArithmeticError_ as error:
            raise self._not_understood(error) from None

    def holds(self, values: Mapping[str, Number]) -> bool:
        try:
            return bool(self._value(values))
        except NoValue as error:
            given = ", ".join(f"{n} = {values[n]}" for n in self.names)
            raise UsageError(
                f"the condition has no value{f' at {given}' if given else ''}: {error.what}",
                self.condition.where, "guard it, e.g. ITEMS != 0 && BLOCK % ITEMS == 0",
            ) from None  # fmt: skip
        except ArithmeticError_ as error:
            raise self._not_understood(error) from None

    def _not_understood(self, error: ArithmeticError_) -> UsageError:
        return UsageError(
            f"invalid condition: {error.what}", self.condition.where,
            "write it as in C, over the parameters: BLOCK * ITEMS <= 4096",
        )  # fmt: skip


def empty(size: int, excluded: Iterable[Excluded]) -> RefusedError:
    """The error for a set without a point: it names the condition that took the last ones, and what went before."""
    parts = list(excluded)
    if not parts:
        return RefusedError("no point of the space is feasible")
    last = parts[-1]
    if len(parts) == 1 or last.points == size:
        what = f"no point of the space is feasible: '{last.condition}' excludes all {size}"
    else:
        before = "; ".join(f"'{e.condition}' excludes {e.points}" for e in parts[:-1])
        what = f"no point of the space is feasible: of {size}, {before}; '{last.condition}' excludes the last {last.points}"
    return RefusedError(what, last.where, "change that condition, or give other values")


def parse_values(text: str, name: str, where: str = "") -> tuple[int, ...]:
    """The values in "64, 128, 256", "1..8" or "16..512 step 16" (or several of these). Raises UsageError."""
    found: list[int] = []
    try:
        for part in text.split(","):
            told = part.strip()[:60]
            if not told:
                raise UsageError(f"a value of '{name}' is missing", where, _WRITE)
            match = _RANGE.fullmatch(part)
            if match:
                low, high, step = int(match[1]), int(match[2]), int(match[3] or 1)
                if step < 1 or high < low:
                    do = "write the smaller number first" if step else "a step must be at least 1"
                    raise UsageError(f"the range '{told}' of '{name}' is empty", where, do)
                if (count := (high - low) // step + 1) > _MOST_VALUES:
                    raise UsageError(
                        f"the range '{told}' of '{name}' has {count} values", where, f"at most {_MOST_VALUES}"
                    )
            value = evaluate(part, {}) if not match else 0
            if not isinstance(value, int):
                raise UsageError(f"'{told}' is not an integer for '{name}'", where, "use integers")
            values = range(low, high + 1, step) if match else (value,)
            if any(abs(v) >= 2**31 for v in (values[0], values[-1])):
                raise UsageError(f"'{told}' is out of range for '{name}'", where, "use numbers below 2**31")
            found += values
    except ArithmeticError_ as error:
        raise UsageError(f"invalid values of '{name}': {error.what}", where, _WRITE) from None
    return tuple(found)

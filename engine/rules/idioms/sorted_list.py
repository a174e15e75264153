"""Whether statements insert a value into a sorted list: decided by running them.

Statements that only compare values and move them do the same for all values in one order, so a few lists and places in them decide
what the statements do, in whatever way they are written. Anything else (arithmetic on values, memory, calls) ends the analysis.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.rewrite import Node, Site
from engine.rules.idioms.interpreter import Companion, Env, Fresh, Interpreter, Key, NotInterpreted, Step, shown


@dataclass(frozen=True)
class SortedList:
    """An array of which statements keep the elements sorted: `largest` first, or the smallest.

    `start` is the value that all elements have at first, as C text.
    """

    array: str
    length: int
    largest: bool
    start: str


@dataclass(frozen=True)
class Inserted:
    """The variable that holds a new value, and whether it may be a NaN."""

    name: str
    floating: bool


def sorted_list(
    site: Site, before: Sequence[Node], insertion: Sequence[Node], arrays: Mapping[str, int], value: Inserted
) -> SortedList | None:
    """The array that `insertion` puts the value into where it is better than the last element, and does not change otherwise.

    `before` are the statements that run first: all elements start with one value. What stands above a place in the list never
    depends on what stands below it.
    """
    try:
        prepare, insert = Interpreter(site).block(before), Interpreter(site).block(insertion)
        start: Env = {}
        prepare(start)
    except (NotInterpreted, RecursionError):
        return None
    for array, length in arrays.items():
        elements = start.get(array)
        if not isinstance(elements, list) or len(set(map(repr, elements))) != 1:
            continue
        if not isinstance(elements[0], Fresh | int | float):
            continue
        for largest in (True, False):
            found = SortedList(array, length, largest, shown(elements[0]))
            if _Trial(insert, found, tuple(a for a in arrays if a != array), value).passes():
                return found
    return None


@dataclass(frozen=True)
class _Trial:
    insert: Step
    form: SortedList
    others: tuple[str, ...]
    value: Inserted

    def passes(self) -> bool:
        try:
            return all(self._keeps(ranks, rank) for ranks in self._lists() for rank in self._places(ranks))
        except (NotInterpreted, KeyError, IndexError, TypeError, RecursionError):
            return False

    def _lists(self) -> Iterator[list[float]]:
        """Lists without equals, of equals alone, and with two or three equals anywhere; the best first."""
        length, sign = self.form.length, -1.0 if self.form.largest else 1.0
        yield [sign * 2 * k for k in range(length)]
        yield [0.0] * length
        for run in (2, 3):
            for at in range(length - run + 1):
                yield [sign * 2 * (at if at <= k < at + run else k) for k in range(length)]

    def _places(self, ranks: list[float]) -> list[float]:
        """Every place a value can have in the list: equal to an element, between two, outside; and none, as a NaN has."""
        own = sorted(set(ranks))
        return [own[0] - 1, *(r + d for r in own for d in (0.0, 1.0)), *([float("nan")] if self.value.floating else [])]

    def _better(self, one: float, other: float) -> bool:
        return one > other if self.form.largest else one < other

    def _run(self, keys: list[Key], labels: list[dict[str, Any]], new: Key) -> tuple[list[Key], list[dict[str, Any]]]:
        env: Env = {self.value.name: new, self.form.array: list(keys)}
        env |= {other: [label[other] for label in labels] for other in self.others}
        if self.insert(env) == "break":
            raise NotInterpreted
        length = range(self.form.length)
        return env[self.form.array], [{other: env[other][k] for other in self.others} for k in length]

    def _keeps(self, ranks: list[float], rank: float) -> bool:
        keys, new = [Key(r) for r in ranks], Key(rank)
        labels: list[dict[str, Any]] = [{other: Companion() for other in self.others} for _ in ranks]
        got, beside = self._run(keys, labels, new)
        if not self._better(rank, ranks[-1]):
            return got == keys and beside == labels
        known = dict(zip(keys, labels, strict=True))
        for key, label in zip(got, beside, strict=True):
            if key is new and any(isinstance(v, Companion) for v in label.values()):
                return False
            if key is not new and known.get(key) != label:
                return False
        ordered = sorted([*ranks, rank], reverse=self.form.largest)[:-1]
        if len(set(got)) != len(got) or [k.rank for k in got] != ordered:
            return False
        place = sum(not self._better(rank, r) for r in ranks)
        if got == [*keys[:place], new, *keys[place:-1]]:
            return True  # in front of what is worse, which stays in its order
        return all(self._upper(keys, labels, new, got, at) for at in range(1, len(keys)))

    def _upper(self, keys: list[Key], labels: list[dict[str, Any]], new: Key, got: list[Key], at: int) -> bool:
        """Whether what is above a gap in the list does not depend on what is below it."""
        if not self._better(keys[at - 1].rank, keys[at].rank):
            return True
        sign = -1.0 if self.form.largest else 1.0
        worst = keys[-1].rank
        lower = [Key(worst + sign * (k + 5)) for k in range(len(keys) - at)]
        other, _ = self._run([*keys[:at], *lower], labels, new)
        upper = min(len(keys), at + self._better(new.rank, keys[at].rank))
        return got[:upper] == other[:upper]


__all__ = ["Inserted", "SortedList", "sorted_list"]

"""The transitive closure of "uses": of names over functions and macros, of files over includes."""

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def closure(start: Iterable[T], uses: Callable[[T], Iterable[T]]) -> set[T]:
    """All of `start`, and what these use, directly or not. `uses` is called once for each of them."""
    found: set[T] = set()
    waiting = list(start)
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            waiting += uses(one)
    return found

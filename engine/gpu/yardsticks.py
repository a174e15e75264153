"""How long the programs that were timed last take. Worker only."""

from collections.abc import Callable

_KEPT = 4  # original, incumbent, candidate, and the candidate before it


class Yardsticks:
    """Cold launches, in µs, of the last programs of each case: their times hardly move, so they are not warmed up for each comparison."""

    def __init__(self) -> None:
        self._known: dict[int, list[tuple[object, list[float]]]] = {}

    def of(self, case: int, program: object, measure: Callable[[], list[float]]) -> list[float]:
        """The program's times, measured where they are not kept."""
        times = self.kept(case, program)
        if times is None:
            times = measure()
        self.keep(case, program, times)
        return times

    def kept(self, case: int, program: object) -> list[float] | None:
        """The program's times, if it was one of the last."""
        # The object itself: the address of one that is gone is given anew.
        return next((times for known, times in self._known.get(case, ()) if known is program), None)

    def keep(self, case: int, program: object, times: list[float]) -> None:
        """Remember a program's times, in place of those that were not asked for the longest."""
        known = [pair for pair in self._known.get(case, ()) if pair[0] is not program]
        self._known[case] = [*known, (program, times)][-_KEPT:]

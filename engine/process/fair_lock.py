"""A lock that is given in the order it was asked for: the search and the profiler take turns at the GPU."""

from __future__ import annotations

import threading
import time
from collections import deque

WAITED = "waited for the profiler"  # the stage of a result that `Turns.waited_s` is booked as


class Turns:
    """A context manager like `threading.Lock`, but fair: who gives it back and asks again waits behind who asked before.

    With an ordinary lock a search that is bound by the GPU would hardly ever let the profiler in. `waited_s` is how long its
    users waited for their turns; who enters through a `guest()` takes turns like all others, and its waiting does not count.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held = False
        self._waiting: deque[threading.Event] = deque()
        self.waited_s = 0.0

    def __enter__(self) -> None:
        begin = time.monotonic()
        self._take()
        waited = time.monotonic() - begin
        with self._lock:
            self.waited_s += waited

    def __exit__(self, *error: object) -> None:
        self._pass_on()

    def guest(self) -> Guest:
        """The same lock for somebody whose waiting is nobody's loss."""
        return Guest(self)

    def _take(self) -> None:
        with self._lock:
            if not self._held:
                self._held = True
                return
            mine = threading.Event()
            self._waiting.append(mine)
        try:
            mine.wait()
        except BaseException:  # an interrupt while waiting: the turn, if it came, goes on to the next one
            with self._lock:
                if mine in self._waiting:
                    self._waiting.remove(mine)
                    raise
            self._pass_on()
            raise

    def _pass_on(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._held = False

    def locked(self) -> bool:
        """Whether somebody holds it."""
        return self._held


class Guest:
    """See `Turns.guest`."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def __enter__(self) -> None:
        self._turns._take()

    def __exit__(self, *error: object) -> None:
        self._turns._pass_on()

    def locked(self) -> bool:
        """Whether somebody holds it."""
        return self._turns.locked()

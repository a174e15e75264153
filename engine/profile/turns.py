"""A lock that is given in the order it was asked for: the search and the profiler take turns at the GPU."""

from __future__ import annotations

import threading
from collections import deque


class Turns:
    """A context manager like `threading.Lock`, but fair: who gives it back and asks again waits behind who asked before.

    With an ordinary lock a search that is bound by the GPU would hardly ever let the profiler in.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held = False
        self._waiting: deque[threading.Event] = deque()

    def __enter__(self) -> None:
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

    def __exit__(self, *error: object) -> None:
        self._pass_on()

    def _pass_on(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._held = False

    def locked(self) -> bool:
        """Whether somebody holds it."""
        return self._held

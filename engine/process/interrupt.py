"""Ctrl-C: the first one ends a search early and keeps what it found, the second ends the program at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Interrupt:
    """Whether the user asked to end. While a part of the program is `patient` the first request only sets `asked`."""

    def __init__(self) -> None:
        self.asked = False
        self._patient = 0

    @contextmanager
    def patient(self) -> Iterator[None]:
        """Within, the first request is left to whoever reads `asked`."""
        self._patient += 1
        try:
            yield
        finally:
            self._patient -= 1

    @contextmanager
    def heard(self) -> Iterator[Interrupt]:
        """Take SIGINT in the place of Python's own handler, in the main thread; an ignored SIGINT stays ignored."""
        main = threading.current_thread() is threading.main_thread()
        if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            yield self
            return
        signal.signal(signal.SIGINT, self.hear)
        try:
            yield self
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def hear(self, *_: Any) -> None:
        """One request. Raises KeyboardInterrupt, unless it is the first and somebody is patient."""
        first, self.asked = not self.asked, True
        if not (first and self._patient):
            raise KeyboardInterrupt


NEVER = Interrupt()  # for runs that nobody ends so

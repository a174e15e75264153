"""What a piece of work costs in seconds of a core: unlike time by the clock it does not grow with what else a machine does."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Spent:
    """See `spent`."""

    seconds = 0.0


@contextmanager
def spent() -> Iterator[Spent]:
    """User and system time of this process and of those it started and waited for, once the block has ended."""
    found, begin = Spent(), _now()
    yield found
    found.seconds = _now() - begin


def _now() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def slowdown() -> float:
    """Seconds by the clock that a second of a core takes on this machine now: 1 where nothing else runs."""
    clock, core = time.perf_counter(), time.thread_time()
    while time.thread_time() - core < 0.1:
        pass
    return max(1.0, (time.perf_counter() - clock) / (time.thread_time() - core))

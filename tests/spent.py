"""What a piece of work costs in seconds of a reference core: neither what else a machine does nor how fast it is makes it grow."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager

_REFERENCE_S = 0.002  # of `_work` on the core that the bounds of the tests were written for


class Spent:
    """See `spent`."""

    seconds = 0.0


@contextmanager
def spent() -> Iterator[Spent]:
    """User and system time of this process and of those it started and waited for, once the block has ended.

    In seconds of the reference core: a core that does a fixed piece of work in twice the time before or after the block
    makes them half as many.
    """
    slow, found, begin = _slow_core(), Spent(), _now()
    yield found
    end = _now()
    found.seconds = (end - begin) / max(slow, _slow_core())


def slowdown() -> float:
    """Seconds by the clock for what takes a second on the reference core with nothing else on the machine; at least 1."""
    clock, core = time.perf_counter(), time.thread_time()
    while time.thread_time() - core < 0.1:
        pass
    return max(1.0, (time.perf_counter() - clock) / (time.thread_time() - core)) * _slow_core()


def _slow_core() -> float:
    """How many times longer than on the reference core a second of work takes on this one, now; at least 1."""
    taken = []
    for _ in range(3):
        begin = time.thread_time()
        _work()
        taken.append(time.thread_time() - begin)
    return max(1.0, sorted(taken)[1] / _REFERENCE_S)


def _work() -> int:
    """Arithmetic, look-ups and many small objects, as reading a text takes them."""
    seen: dict[str, list[int]] = {}
    for i in range(10_000):
        seen.setdefault(str(i % 1_000), []).append(i * i)
    return sum(len(v) for v in seen.values())


def _now() -> float:
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)

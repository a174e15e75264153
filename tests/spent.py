"""What a piece of work costs in seconds of a core: unlike time by the clock it does not grow with what else a machine does."""

from __future__ import annotations

import os
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

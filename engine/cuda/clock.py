"""How long rules may think about one kernel: strangers' files may be made to take hours."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

# All rules together and each alone, in seconds of one core. The suite's kernels take a few hundredths of these.
CALL_S = 4.0
RULE_S = 1.0
# A reading of the clock costs as much as a visit to a node of the tree.
_EVERY = 256


class OutOfTime(Exception):
    """A rule has used up its time at this kernel."""


class _Clock:
    def __init__(self, seconds: float) -> None:
        self.end = time.thread_time() + seconds
        self.left = _EVERY


_CLOCK: ContextVar[_Clock | None] = ContextVar("optiml_rules_clock", default=None)


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Within the block, `tick` raises OutOfTime once this thread has worked for so many seconds.

    Time of the processor, not of the wall: a busy machine must not change what is proposed.
    """
    token = _CLOCK.set(_Clock(seconds))
    try:
        yield
    finally:
        _CLOCK.reset(token)


def tick(steps: int = 1) -> None:
    """Count steps of an analysis. Raises OutOfTime inside a `limited` block whose time is up."""
    clock = _CLOCK.get()
    if clock is None:
        return
    clock.left -= steps
    if clock.left <= 0:
        clock.left = _EVERY
        if time.thread_time() > clock.end:
            raise OutOfTime("the analysis of the kernel takes too long")

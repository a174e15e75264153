"""How threads and processes share the cores: who goes first, how often the interpreter changes threads, how many linear algebra starts."""

import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

# Who feeds the device waits for the interpreter several times a candidate, for so long each, while others read text. Ours.
_SWITCH_S = 0.0005
# Environment of processes that use NumPy for small things: its linear algebra starts a thread for each core, which takes as long as
# importing it, and in which nothing of ours gains.
ONE_THREAD: Mapping[str, str] = {"OPENBLAS_NUM_THREADS": "1"}

_NICE = 10  # a tenth of the share of a core that others have. Ours
_TOLD_WITHIN_S, _TELL_AGAIN_S = 30.0, 0.05


def stand_back() -> None:
    """Let everything else on this machine go first, from now on: for a process that works ahead of those that wait for it.

    Where every core compiles, who feeds the device waited up to 5 ms for one whenever it woke. Being nice alone changes nothing there:
    Linux gives each session its share, whatever its processes say (`sched(7)` on autogroups).
    """
    with suppress(OSError):
        os.nice(_NICE)
    threading.Thread(target=_tell_of_session, daemon=True).start()


def _tell_of_session() -> None:
    until = time.monotonic() + _TOLD_WITHIN_S
    while time.monotonic() < until:
        try:
            Path("/proc/self/autogroup").write_text(str(_NICE))
        except BlockingIOError:  # the system hears one in a tenth of a second
            time.sleep(_TELL_AGAIN_S)
        except OSError:  # it has no such groups
            return
        else:
            return


@contextmanager
def attentive() -> Iterator[None]:
    """Have the interpreter change threads often within."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


def shares(cpus: Sequence[int], count: int) -> list[list[int]]:
    """The cores of each of so many workers: equal parts side by side; where there are too few, some have one in common."""
    found = []
    for i in range(count):
        first = i * len(cpus) // count
        found.append(list(cpus[first : max(first + 1, (i + 1) * len(cpus) // count)]))
    return found

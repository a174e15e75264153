"""How threads share the cores: how often the interpreter changes them, and how many linear algebra starts."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

# Who feeds the device waits for the interpreter several times a candidate, for so long each, while others read text. Ours.
_SWITCH_S = 0.0005
# Environment of processes that use NumPy for small things: its linear algebra starts a thread for each core, which takes as long as
# importing it, and in which nothing of ours gains.
ONE_THREAD: Mapping[str, str] = {"OPENBLAS_NUM_THREADS": "1"}


@contextmanager
def attentive() -> Iterator[None]:
    """Have the interpreter change threads often within."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)

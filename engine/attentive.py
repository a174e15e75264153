"""How often this process changes threads while a device is fed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

# Who feeds the device waits for the interpreter several times a candidate, for so long each, while others read text. Ours.
_SWITCH_S = 0.0005


@contextmanager
def attentive() -> Iterator[None]:
    """Have the interpreter change threads often within."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)

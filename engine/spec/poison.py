"""Words that stand in outputs and guard zones before a run: other ones in each process, so that no kernel can know them."""

from __future__ import annotations

import random
import secrets
import struct


def nan_word(rng: random.Random) -> int:
    """A quiet NaN as a float and, twice in a row, as a double; large as an integer: reading it spoils a sum."""
    return 0x7FF80000 | rng.getrandbits(19)


def plausible_word(rng: random.Random) -> int:
    """A finite float of either sign between 10^5 and 10^7: a value that a result may have, but hardly this one."""
    value = rng.choice((-1, 1)) * 10 ** rng.uniform(5, 7)
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def unpredictable() -> random.Random:
    """A generator that no earlier run tells anything of."""
    return random.Random(secrets.randbits(64))

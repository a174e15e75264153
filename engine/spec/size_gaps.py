"""Why a draft cannot give a buffer its size."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from engine.spec.extents import Extent
from engine.spec.indirect import Indirect


@dataclass(frozen=True)
class Reach:
    """What is known of how far a kernel reaches into its buffers.

    `extents` are sizes that something explains, `tables` those of buffers whose indices come from others, `touched` the buffers
    that a trial touched. `tried`: there were trials; `ended` says what ended them early, "" where nothing did.
    """

    extents: Mapping[str, Extent] = field(default_factory=dict)
    tables: Mapping[str, Indirect] = field(default_factory=dict)
    touched: Collection[str] = ()
    tried: bool = False
    ended: str = ""


def no_size(name: str, reach: Reach, untried: str, looked_up: bool) -> str:
    """Why a buffer has no size. `untried` says why nothing could be tried; `looked_up`: its indices come from another buffer."""
    if looked_up:
        return "its indices come from another buffer"
    if untried:
        return f"the text does not show it, and the kernel was not tried: {untried}"
    if not reach.tried:
        return "the text does not show it"
    if name in reach.touched:
        return "no expression of the sizes explains what is touched"
    return f"trial runs end early: the kernel {reach.ended}" if reach.ended else "no trial run touches it"

"""Runs of the original that candidates are compared with on the CPU path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class KnownRun:
    """One prepared input set with what the original makes of it. `compared` are the outputs that say something; None: all."""

    case: int
    family: str
    buffers: Arrays
    scalars: Mapping[str, Any]
    original: Arrays
    wide: Arrays | None
    compared: frozenset[str] | None = None


def screening_set(known: Sequence[KnownRun]) -> list[KnownRun]:
    """Each shape with the declared inputs and with one further family, in turn: two runs a shape keep a screening short.

    What is suggested is run with all of them, on fresh seeds.
    """
    families = list(dict.fromkeys(item.family for item in known))
    chosen = []
    for item in known:
        further = families[1 + item.case % (len(families) - 1)] if len(families) > 1 else ""
        if item.family in ("declared", further):
            chosen.append(item)
    return chosen

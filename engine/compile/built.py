"""A candidate that was built, and the error of one that was not."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.errors import OptimlError
from engine.model import Binary, Evaluation, LaunchConfig, Program

SizesKey = tuple[tuple[str, int | float], ...]


def sizes_key(sizes: Mapping[str, int | float]) -> SizesKey:
    """Sizes as a key."""
    return tuple(sorted(sizes.items()))


@dataclass(frozen=True)
class Built:
    """A candidate ready to run. `launches` has one tuple (a launch per step) for each check case, then each timing case."""

    program: Program
    text: str  # the device slice
    expressions: tuple[str, ...]
    binary: Binary
    launches: tuple[tuple[LaunchConfig, ...], ...]
    stage_s: Mapping[str, float] = field(default_factory=dict)
    # At sizes of no named case, as far as they were made ahead.
    further: Mapping[SizesKey, tuple[LaunchConfig, ...]] = field(default_factory=dict, compare=False)
    by_rules: bool = False  # every edit of it was written by an installed rule or the tuner, whose code is trusted
    extra: Any = field(default=None, compare=False, repr=False)  # what the evaluator's build adds (the CPU binary)

    @property
    def identity(self) -> tuple[object, ...]:
        """Two programs with the same machine code and launches are one node of the tree."""
        return (self.binary.code_hash, self.launches)


@dataclass
class NotBuilt(OptimlError):
    """A candidate that ended before it could run; `evaluation` says how."""

    evaluation: Evaluation | None = None

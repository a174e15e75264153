"""Which lessons of earlier runs a run reads and writes."""

from dataclasses import dataclass
from pathlib import Path

from engine.settings.folders import cache_folder


@dataclass(frozen=True)
class MemorySettings:
    """`repository` is whose lessons they are; `across` also tells those of other repositories."""

    path: Path
    repository: str
    across: bool = False
    seed: int = 0


def default_path() -> Path:
    """The memory's file where none is named: beside what is compiled, in the user's cache folder."""
    return cache_folder() / "memory.sqlite"

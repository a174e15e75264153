"""The result of a generation: frozen, serialisable. Its JSON form is documented in docs/generate.md."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.errors import MachineError

SCHEMA = "optiml.generate/1"
RESULT = "generate.json"


@dataclass(frozen=True)
class StrategyResult:
    """What one strategy became. `ending` is an outcome of `engine.model.Outcome`, or the fault of the model's that ended it.

    `ratio` is against the yardstick: the simplest kernel that agrees with the reference. `time_us` is by timing case.
    """

    name: str
    title: str
    ending: str
    reason: str
    idea: str
    plan: str
    requests: int
    repairs: int
    right: bool  # agrees with the reference on every check
    role: str = ""  # "best", "yardstick", "twin" (same machine code as another), "" otherwise
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    time_us: Mapping[str, float] = field(default_factory=dict)
    file: str = ""  # beside the result


@dataclass(frozen=True)
class GenerationResult:
    """One generation. Times in seconds unless the name says otherwise."""

    sentence: str
    verdict: str  # one sentence for a person
    kernel: str
    mode: str  # "measured" or "predicted"
    device: Mapping[str, Any]  # what was measured on, or predicted for
    written: str  # the file, "" where there is none
    reference: Mapping[str, Any]  # origin, confirmed, function, name, drafts, text
    task: Mapping[str, Any]
    strategies: tuple[StrategyResult, ...]
    yardstick: str  # the strategy whose kernel was the original that all others were verified and timed against
    best: str  # the strategy that what was written stems from
    ratio: float | None  # of what was written, against the yardstick
    optimized: Mapping[str, Any] | None  # what the search came to; None: generate only
    checks: Mapping[str, int]  # held against the reference: checks of each kernel, checks of what was written
    model: Mapping[str, Any]  # requests, tokens, money
    elapsed_s: float
    notes: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    schema: str = SCHEMA

    def to_json(self) -> str:
        """The documented JSON form."""
        return json.dumps(dataclasses.asdict(self), indent=2, sort_keys=True) + "\n"


def write(result: GenerationResult, folder: Path) -> None:
    """Write generate.json. Raises MachineError."""
    try:
        (folder / RESULT).write_text(result.to_json(), encoding="utf-8")
    except OSError as error:
        raise MachineError(f"the result cannot be written: {error.strerror}", str(folder), "free some space") from None

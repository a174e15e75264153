"""The result of a tuning run: frozen, serialisable. Its JSON form is documented in docs/tune.md."""

import dataclasses
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.errors import OptimlError
from engine.model import Evaluation, Guardrail, Refusal
from engine.settings.folders import write_files
from engine.tune.evaluated_point import Mark
from engine.tune.space import Excluded

SCHEMA = "optiml.tune/1"
CONSTANTS_PATCH = "constants.patch"


@dataclass(frozen=True)
class TemplateInfo:
    """What was tuned. `checked` are the points at which it was held against the original before the search went on."""

    name: str  # "constants", or the rule that wrote the template
    summary: str
    parameters: Mapping[str, tuple[int, ...]]
    conditions: tuple[str, ...]
    present: Mapping[str, int] | None  # the values that the original has; None where it is no point of the template
    checked: tuple[Mapping[str, int], ...]


@dataclass(frozen=True)
class SpaceInfo:
    """How many points there are: of the product of all values, and of the feasible set; what each condition took away."""

    combinations: int
    feasible: int
    excluded: tuple[Excluded, ...]
    by_compiler: Mapping[str, int]  # limits that only compiled code told of, and how many points they took so far


@dataclass(frozen=True)
class General:
    """The one configuration that is best over all timing cases. `evaluation` is the confirmation."""

    id: int
    values: Mapping[str, int]
    evaluation: Evaluation
    patch: str  # file name beside the result
    files: tuple[str, ...]


@dataclass(frozen=True)
class ShapeBest:
    """The best configuration for one timing case. `ratio` is over the original; `gain` over the general configuration."""

    case: str
    sizes: Mapping[str, int | float]
    weight: float
    values: Mapping[str, int]
    time_us: float
    ratio: float
    low: float
    high: float
    gain: float


@dataclass(frozen=True)
class Range:
    """Values of one expression of the host's, from `low` on and below `high`."""

    key: str
    low: int
    high: int


@dataclass(frozen=True)
class Branch:
    """One branch of generated dispatch code: the values for shapes within all `ranges`; without any for those that no other takes."""

    ranges: tuple[Range, ...]
    values: Mapping[str, int]
    cases: tuple[str, ...]

    @property
    def text(self) -> str:
        """The shapes in words."""
        return ", ".join(f"{r.key} from {r.low}, below {r.high}" for r in self.ranges) or "all others"


@dataclass(frozen=True)
class Dispatch:
    """Generated code that selects by shape. `key` names the host's expressions that are looked at; each branch was confirmed.

    `guardrails` are the verdicts on the whole, beside those of each branch. Where one failed, or too little is gained,
    `refused` says why it is not suggested, and there is no patch ("") and no file.
    """

    key: str
    branches: tuple[Branch, ...]
    ratio: float  # over the original, all timing cases, each by its branch
    low: float
    high: float
    patch: str
    files: tuple[str, ...]
    evaluations: tuple[Evaluation, ...]  # the confirmation of each branch's instance
    guardrails: tuple[Guardrail, ...] = ()
    refused: str = ""


@dataclass(frozen=True)
class Constants:
    """The best point of a rule's template with its figures as named constants, which can be tuned again.

    `names` are the constants by the rule's parameter, `fixed` the parameters that stay figures, `checked` points at which the text
    with constants is the same machine code as what the rule writes.
    """

    names: Mapping[str, str]
    fixed: tuple[str, ...]
    checked: tuple[Mapping[str, int], ...]
    patch: str


@dataclass(frozen=True)
class TuneResult:
    """One tuning run over one kernel. Times in seconds unless the name says otherwise."""

    file: str
    kernel: str
    mode: str  # "measured" or "predicted"
    verdict: str
    template: TemplateInfo
    space: SpaceInfo
    strategy: str
    strategy_reason: str
    best: General | None
    shapes: tuple[ShapeBest, ...]
    dispatch: Dispatch | None
    refused: tuple[Refusal, ...]
    original: Evaluation
    counts: Mapping[str, int]
    rates: Mapping[str, float]
    trace: tuple[Mark, ...]
    budget: Mapping[str, Any]
    seed: int
    stopped: str
    elapsed_s: float
    stages: Mapping[str, float]
    signals: Mapping[str, Any]
    spec: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    constants: Constants | None = None
    memory: Mapping[str, Any] | None = None  # lessons learnt and told
    schema: str = SCHEMA

    def to_json(self) -> str:
        """The documented JSON form."""
        return json.dumps(dataclasses.asdict(self), indent=2, sort_keys=True) + "\n"


def extended(
    result: TuneResult, stage: str, what: str, make: Callable[[TuneResult], TuneResult]
) -> tuple[TuneResult, OptimlError | KeyboardInterrupt | None]:
    """The result with what `make` adds to it. Whatever ends that, what was found before stays, and the result says why."""
    begin = time.monotonic()
    problem: OptimlError | KeyboardInterrupt | None = None
    try:
        result = make(result)
    except (OptimlError, KeyboardInterrupt) as error:
        problem = error
        why = error.what if isinstance(error, OptimlError) else "interrupted"
        result = dataclasses.replace(result, notes=(*result.notes, f"no {what}: {why}"))
    spent_s = time.monotonic() - begin
    stages = {**result.stages, stage: spent_s}
    return dataclasses.replace(result, elapsed_s=result.elapsed_s + spent_s, stages=stages), problem


def write(result: TuneResult, folder: Path, patches: Mapping[str, bytes]) -> None:
    """Write result.json and the patches into `folder`; older patches that are not made anew go. Raises MachineError."""
    found = {name: patches.get(name) for name in ("best.patch", "dispatch.patch", CONSTANTS_PATCH)}
    write_files(folder, {**found, "result.json": result.to_json().encode()})

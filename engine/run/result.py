"""The result of a run: frozen, serialisable, every figure in it. Its JSON form is documented in docs/result.md."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.errors import UsageError
from engine.model import Evaluation, Measurement, Refusal
from engine.predicted_number import approximate
from engine.process.decode import NotThis, load
from engine.profile.line_weights import LineWeight
from engine.settings.folders import write_files

SCHEMA = "optiml.result/1"
RESULT_BYTES = 32 << 20  # a result is read up to here. Ours
_ELSEWHERE = "start over with another --out, without --resume"


@dataclass(frozen=True)
class TrajectoryStep:
    """One step of the trajectory. `evaluation` is what the search saw when it tried this step."""

    id: int
    proposer: str
    rule: str
    summary: str
    parameters: Mapping[str, int | str]
    evaluation: Evaluation
    diagnosis: tuple[str, ...] = ()  # the profiler's sentences on this step's program
    moved: tuple[str, ...] = ()  # the counters that moved since the step before
    lines: tuple[LineWeight, ...] = ()  # shares of this step's work by source line


@dataclass(frozen=True)
class Best:
    """What is suggested. `evaluation` is the confirmation: fresh seeds, a second process."""

    id: int
    evaluation: Evaluation
    patch: str  # file name beside the result
    files: tuple[str, ...]  # repository-relative paths that the patch changes


@dataclass(frozen=True)
class OptimizationResult:
    """One run over one kernel. Times in seconds unless the name says otherwise."""

    file: str
    kernel: str
    mode: str  # "measured" or "predicted"
    verdict: str  # one sentence for a person
    best: Best | None
    trajectory: tuple[TrajectoryStep, ...]
    original: Evaluation
    diagnosis: tuple[str, ...]  # the profiler's sentences on the original; empty without a profiler
    refused: tuple[Refusal, ...]
    counts: Mapping[str, int]  # candidates, verified, and one entry per outcome
    budget: Mapping[str, Any]
    seed: int
    search: str  # by its name, as in `--search`
    stopped: str
    elapsed_s: float
    # Seconds by stage; builds run beside the device, so the sum can exceed the elapsed time
    stages: Mapping[str, float]
    signals: Mapping[str, Any]
    spec: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    proxies: bool = True  # counters took part in the reward
    constants: Mapping[str, Any] = field(default_factory=dict)  # of reward and search, with their reasons
    proposers: Mapping[str, Any] = field(default_factory=dict)  # what each brought, by name
    model: Mapping[str, Any] | None = None  # what asking a language model came to
    memory: Mapping[str, Any] | None = None  # lessons learnt and told
    lines: tuple[LineWeight, ...] = ()  # shares of the original's work by source line
    schema: str = SCHEMA

    def to_json(self) -> str:
        """The documented JSON form."""
        return json.dumps(dataclasses.asdict(self), indent=2, sort_keys=True) + "\n"


def write(result: OptimizationResult, folder: Path, patch: bytes | None) -> None:
    """Write result.json and best.patch into `folder`; an older patch goes when there is none now. Raises MachineError."""
    write_files(folder, {"best.patch": patch, "result.json": result.to_json().encode()})


def check_version(folder: Path, schema: str) -> None:
    """Look, before a run goes on in `folder`, whether the result there, if any, is one of `schema`: the run will take its place.

    Raises UsageError where it is of another version, or no result.
    """
    path = folder / "result.json"
    try:
        with path.open("rb") as file:
            data = load(file.read(RESULT_BYTES + 1))
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", str(path), _ELSEWHERE) from None
    except NotThis as error:
        raise UsageError(f"{error.what}; nothing was overwritten", str(path), _ELSEWHERE) from None
    found = data.get("schema") if isinstance(data, dict) else None
    if found != schema:
        raise UsageError(
            f"is a result from another version ({str(found)[:40]!r}, not {schema!r}), so nothing was overwritten",
            str(path), _ELSEWHERE,
        )  # fmt: skip


def faster(what: str, evaluation: Evaluation, device: Mapping[str, Any], tried: str) -> str:
    """What was found, in one sentence: measured with its interval, or predicted; then the other instances that it holds for.

    `tried` says of how many candidates.
    """
    measurement, also = evaluation.measurement, ""
    assert measurement is not None
    if others := [f"{other.name} ({_ratio(other.measurement)}×)" for other in evaluation.instances]:
        how = "screened" if measurement.predicted else "verified"
        also = f" Also {how} for {', '.join(others)}, which the patch changes too."
    if measurement.predicted:
        target = device.get("arch", "the target")
        ratio = _ratio(measurement)
        return (
            f"{what}: {ratio}× predicted for {target}, not measured; screened on the CPU, not verified ({tried}).{also}"
        )
    return (
        f"{what} is {measurement.ratio:.2f}× faster (95 % interval {measurement.low:.2f} to {measurement.high:.2f}), "
        f"verified ({tried}).{also}"
    )


def _ratio(measurement: Measurement) -> str:
    return approximate(measurement.ratio) if measurement.predicted else f"{measurement.ratio:.2f}"


def keeps_suggestion(folder: Path) -> bool:
    """Whether there is a suggestion already: a run that goes on there and is interrupted has nothing to put in its place."""
    return (folder / "best.patch").is_file() and (folder / "result.json").is_file()

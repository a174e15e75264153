"""One kernel's turn in a campaign: its spec made ready, an earlier run settled, the search; in this process or on a worker."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from engine.capture.recorded_spec import recorded_spec
from engine.errors import MachineError, OptimlError
from engine.process.decode import NotThis, decode, load
from engine.process.interrupt import NEVER, Interrupt
from engine.run.going_on import settle
from engine.run.machine import Machine
from engine.run.optimization import Options, default_folder, optimize
from engine.run.ready_spec import SpecMaker
from engine.run.result import OptimizationResult
from engine.search.progress import INTERRUPTED, Budget, Progress
from engine.settings.config import load_config
from engine.settings.folders import read_regular, write_files
from engine.spec.kernel_spec import KernelSpec

GOAL = "turn.json"
_MOST_GOAL = 4096


@dataclass(frozen=True)
class KernelTask:
    """What a turn is asked for: plain data. `file` is relative to the repository's root; `campaign` names the campaign."""

    rank: int
    file: str
    kernel: str
    seconds: float | None = None
    candidates: int | None = None
    seed: int = 0
    proposers: tuple[str, ...] = ("rules",)
    command: tuple[str, ...] = ()
    campaign: str = ""
    device: str = ""  # of a campaign for each kind of device
    whole_s: float | None = None  # the budget of the whole campaign, where `seconds` are a part of it
    prefix: str = ""  # of the folder's name, where another kernel's would be the same

    def folder(self, root: Path, kernel: str) -> Path:
        """Where the results of the kernel go, by the name that its spec has."""
        out = default_folder(root, root / self.file, kernel)
        return out.with_name(f"{self.prefix}{out.name}" + (f"@{self.device}" if self.device else ""))


@dataclass(frozen=True)
class KernelEnd:
    """What came of a turn; one that was interrupted is "running": it has its turn again. `speedup` is of a suggestion.

    `candidates` are all of the kernel's journal, the original left out. `more` is plain data of a turn that is more than a search.
    """

    state: Literal["running", "done", "failed"]
    said: str
    speedup: float | None = None
    folder: str = ""
    candidates: int = 0
    more: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Goal:
    """How many candidates a kernel's journal holds at the end of its turn: kept beside it, for the turn may be cut short."""

    campaign: str
    candidates: int


def search_kernel(
    task: KernelTask, root: Path, machine: Machine, on_progress: Callable[[Progress], None] = lambda progress: None,
    spec: tuple[KernelSpec, str | None] | None = None, interrupt: Interrupt = NEVER,
) -> KernelEnd:  # fmt: skip
    """Search one kernel; what is wrong with it is said in the end. Raises MachineError, KeyboardInterrupt."""
    file = root / task.file
    try:
        if spec is None:
            ready = SpecMaker(root, machine.box, recorded=recorded_spec).ready(file, task.kernel)
            spec = ready.spec, ready.spec_path
        config, _ = load_config(root)
        out = task.folder(root, spec[0].kernel)
        options = Options(
            path=file, kernel=task.kernel, budget=Budget(task.seconds, task.candidates, interrupt=interrupt), seed=task.seed, out=out,
            guardrails=config.guardrails, targets=config.targets, command=task.command, spec=spec, proposers=task.proposers,
        )  # fmt: skip
        # The same campaign asked for again is answered, although the parts of its budget fall out otherwise.
        asked = None if task.whole_s is None else Budget(task.whole_s)
        settled = settle(options, out, machine, asked=asked)
        result, folder = _answer(out) if settled.answered else None, out
        answered = result is not None
        if result is None:
            result, folder = optimize(_to_goal(settled.options, task, out), machine, on_progress)
    except MachineError:
        raise
    except OptimlError as error:
        return KernelEnd("failed", str(error))
    best = result.best.evaluation.measurement if result.best is not None else None
    candidates = result.counts["candidates"]
    state: Literal["running", "done"] = "running" if result.stopped == INTERRUPTED else "done"
    said = f"{result.verdict} Nothing changed since that search." if answered else result.verdict
    return KernelEnd(state, said, best.ratio if best is not None else None, str(folder), candidates)


def _answer(out: Path) -> OptimizationResult | None:
    """The result of an earlier run in a kernel's folder; None where it is damaged."""
    try:
        return decode(OptimizationResult, load((out / "result.json").read_bytes()))
    except (NotThis, OSError):
        return None


def _to_goal(options: Options, task: KernelTask, out: Path) -> Options:
    """The options of a turn that was cut short, so that it ends with as many candidates as it would have; else as they are."""
    wanted = options.budget.candidates
    if wanted is None or not task.campaign:
        return options
    known = read_goal(out)
    if known is not None and known.campaign == task.campaign:
        # A journal that goes on has the rest to do; without one all is to be done again.
        return replace(options, budget=replace(options.budget, candidates=known.candidates))
    write_goal(out, Goal(task.campaign, wanted))
    return options


def write_goal(out: Path, goal: Goal) -> None:
    """Keep a turn's goal in the kernel's folder."""
    write_files(out, {GOAL: json.dumps(dataclasses.asdict(goal)).encode()})


def read_goal(out: Path) -> Goal | None:
    """The goal of the last turn in a kernel's folder."""
    data = read_regular(out / GOAL, _MOST_GOAL)
    try:
        return None if data is None else decode(Goal, load(data))
    except NotThis:
        return None

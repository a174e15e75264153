"""The job with the GPU: compares and searches the kernels that a pull request changes, and writes the result bundle.

It needs no token. What comes from the pull request is compiled and run in the sandbox alone; the spec and the settings are the
base's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from action import kept_reviews
from action.kept_reviews import ANSWERED, COMPARED_ONLY, KeptReviews
from action.kernel_review import (
    BUDGET_SPENT,
    LEAST_S,
    SEARCHED,
    Prepared,
    Reviewed,
    compared,
    patch_of,
    said,
    try_draft,
)
from action.looker import Looker, Proposing, Sides, Where
from action.matrix import Share
from action.request import Request
from action.trees import write_settings, write_tree
from bot.baseline import Baseline, read_baseline
from bot.bundle import Bundle, Looked, read_earlier, write_bundle
from bot.changed import ChangedKernel, Skipped
from bot.changes import find_changes
from bot.clone import Repository
from bot.errors import BundleError
from engine.capture.manifest import MANIFEST, Manifest, parse_manifest, share_of
from engine.cuda.parse import parse
from engine.errors import MachineError, OptimlError, UsageError
from engine.evaluate.contained import unexpected
from engine.run.machine import make_machine
from engine.run.optimization import Options, optimize
from engine.search.progress import Budget
from engine.settings.config import NAMES, Config, parse_config
from engine.settings.config_text import ConfigError
from engine.settings.scratch import scratch_folder

if TYPE_CHECKING:
    from engine.llm.session import LlmSettings
    from engine.run.machine import Machine
    from engine.settings.memory_settings import MemorySettings

_ALL = Share()
_RANKING = 0.1  # the share of the whole time that ordering kernels may take, where too many changed
_T = TypeVar("_T")
WHOLE = "this pull request"  # in the place of a path, for what is said of all of it


@dataclass(frozen=True)
class JobInputs:
    """What a job is given beside its request.

    `baseline` is a folder with what the default branch measured, `earlier` one with the bundle of an earlier run of the same pull
    request; `mine` is this job's share of the kernels; `cluster` names workers that review them ("": this runner does).
    """

    device: Literal["auto", "gpu", "cpu"] = "auto"
    baseline: Path | None = None
    earlier: Path | None = None
    mine: Share = _ALL
    cluster: str = ""


class Reviewer(Protocol):
    """Where kernels are reviewed: so many at a time."""

    @property
    def slots(self) -> int: ...

    def begin(self, number: int, prepared: Prepared, share_s: float) -> None:
        """Begin with a kernel. Raises MachineError where no kernel can be reviewed any more."""

    def ended(self) -> Sequence[tuple[int, Reviewed]]:
        """Wait until some end: their numbers with what was found. Raises MachineError, likewise."""


def run(request: Request, clone: Path, out: Path, inputs: JobInputs, say: Callable[[str], None]) -> Bundle:
    """Look at everything the request is about; the bundle is in `out` when this returns, and after each kernel.

    `clone` is a clone that has both commits. Raises ConfigError, GitError, DiffError, MachineError.
    """
    begin = time.monotonic()
    repository = Repository(clone)
    config = settings_at(repository, request.base)
    changes = find_changes(repository, request.base, request.head)
    kernels = list(changes.kernels)
    if request.path and not any(_named(request, kernel.path, kernel.kernel) for kernel in kernels):
        kernels += _asked_for(request, repository, changes.base)
    recording = _recording(repository, request.base, config, say)
    chosen, skipped = wanted(request, config, kernels, recording=recording)
    skipped = [*changes.skipped, *skipped]
    total = request.budget_s or config.budget.total
    past = _past(inputs.baseline, say)
    proposers, model = _proposers(request, config)
    bundle = Bundle(request.head, changes.base, (), tuple(skipped), complete=False)
    write_bundle(bundle, out)
    if chosen:
        with scratch_folder() as scratch:
            base = write_tree(repository, changes.base, scratch / "base")
            head = write_tree(repository, request.head, scratch / "head")
            for tree in (base, head):
                write_settings(repository, request.base, tree)
            earlier = read_earlier(inputs.earlier) if inputs.earlier is not None else None
            looker = Looker(
                Sides(base, head, out), config, Proposing(proposers, model, request.command != "check", _memory(request, config, clone)),
                past,
                KeptReviews(kept_reviews.folder(), earlier),
            )  # fmt: skip
            try:
                with _reviewer(looker, inputs, request, say) as reviewer:
                    candidates = [k for k in kernels if _named(request, k.path, k.kernel) and config.wants(k.path)]
                    # Jobs that share the kernels have to choose the same ones: what each predicts in its time may differ.
                    if len(candidates) > config.budget.kernels and inputs.mine.count == 1:
                        promise = _promise(looker, candidates, _RANKING * total)
                        chosen, skipped = wanted(request, config, kernels, promise, recording)
                        bundle = dataclasses.replace(bundle, skipped=(*changes.skipped, *skipped))
                    chosen = chosen[inputs.mine.number - 1 :: inputs.mine.count]
                    rounds = math.ceil(len(chosen) / reviewer.slots)
                    looker.plan = (total, config.budget.kernel, request.budget_s, rounds)
                    most = math.inf if request.budget_s else config.budget.kernel
                    for found in _looked_at(looker, reviewer, chosen, _Time(begin + total, most), say):
                        # After each kernel: a job that is killed leaves what it had.
                        bundle = dataclasses.replace(bundle, kernels=found)
                        write_bundle(bundle, out)
            except ClusterError as error:
                say(str(error))
                bundle = dataclasses.replace(bundle, skipped=(*bundle.skipped, Skipped(WHOLE, error.what)))
    bundle = dataclasses.replace(bundle, complete=True)
    write_bundle(bundle, out)
    return bundle


class ClusterError(MachineError):
    """No worker of the cluster can be had. `what` says why, without addresses and names of machines, which are nobody's business."""


@dataclass(frozen=True)
class _Time:
    """The end of all reviews (of time.monotonic), and the most that one of them gets."""

    until: float
    most_s: float

    def share_s(self, rounds: int) -> float:
        """What a kernel gets where so many more are reviewed one after the other."""
        return min((self.until - time.monotonic()) / rounds, self.most_s)


@contextlib.contextmanager
def _reviewer(
    looker: Looker, inputs: JobInputs, request: Request, say: Callable[[str], None]
) -> Iterator[Reviewer]:  # fmt: skip
    """What reviews the kernels: this runner, or the workers of a cluster. Raises MachineError, ClusterError."""
    arch = request.arch or looker.config.targets[0]
    if inputs.cluster:  # Dask is loaded for those who ask for it
        with import_module("action.cluster_reviewer").cluster_reviewer(looker, inputs, arch, say) as reviewer:
            yield reviewer
        return
    machine = machine_for(inputs.device, arch)
    try:
        looker.on(machine, Where(machine.mode, machine.arch, machine.name))
        yield _Here(looker, machine)
    finally:
        machine.close()


def _looked_at(
    looker: Looker, reviewer: Reviewer, chosen: Sequence[ChangedKernel], limits: _Time, say: Callable[[str], None]
) -> Iterator[tuple[Looked, ...]]:
    """What was found so far, in the order of `chosen`, after each kernel."""
    found: dict[int, Looked] = {}
    waiting: list[tuple[int, Prepared]] = []
    for number, changed in enumerate(chosen):
        time_to_draft = limits.share_s(len(chosen) - number) >= LEAST_S
        prepared = _guarded(changed, partial(looker.prepared, changed, draft=time_to_draft))
        if isinstance(prepared, Prepared):
            waiting.append((number, prepared))
            continue
        found[number] = prepared
        say(f"{changed.path}: {changed.kernel}: {ANSWERED if looker.answered else prepared.error}")
    under_way: dict[int, Prepared] = {}
    try:
        while waiting or under_way:
            yield tuple(found[n] for n in sorted(found))
            while waiting and len(under_way) < reviewer.slots:
                share = limits.share_s(math.ceil(len(waiting) / reviewer.slots))
                number, prepared = waiting.pop(0)
                under_way[number] = prepared
                say(f"{prepared.found.changed.path}: {prepared.found.changed.kernel}: {max(share, 0):.0f} s")
                reviewer.begin(number, prepared, share)
            for number, reviewed in reviewer.ended():
                prepared = under_way.pop(number)
                found[number] = _guarded(prepared.found.changed, partial(looker.finished, prepared, reviewed))
    except ClusterError as error:
        say(str(error))
        for number, prepared in (*under_way.items(), *waiting):
            found[number] = dataclasses.replace(prepared.found, error=error.what)
    yield tuple(found[n] for n in sorted(found))


def _guarded(changed: ChangedKernel, work: Callable[[], _T]) -> _T | Looked:
    """What comes of some work on one kernel; what it raises unexpectedly is said of it, and the others are looked at all the same."""
    try:
        return work()
    except OptimlError:
        raise
    except Exception as error:
        return Looked(changed, "none", error=unexpected(error))


def settings_at(repository: Repository, commit: str) -> Config:
    """The settings of a commit, from git's objects. Raises ConfigError."""
    found: list[Config] = []
    for name in NAMES:
        data = repository.read(commit, name)
        config = parse_config(data, name) if data is not None else None
        if config is not None:
            found.append(config)
    if len(found) > 1:
        raise ConfigError("pyproject.toml contains settings too", NAMES[0], "keep one of the two places")
    return found[0] if found else Config()


def wanted(
    request: Request, config: Config, kernels: list[ChangedKernel], promise: Mapping[ChangedKernel, float] | None = None,
    recording: Manifest | None = None,
) -> tuple[list[ChangedKernel], list[Skipped]]:  # fmt: skip
    """The changed kernels that the request and the settings are about, and those left out with the reason.

    First come those that somebody asked for, then those that can be compared with the base; of each those with the largest share of
    the recorded time, then the largest product of changed tokens and `promise`, the predicted headroom.
    """
    known = promise or {}

    def rank(kernel: ChangedKernel) -> tuple[bool, bool, float, float]:
        share = 0.0 if recording is None else share_of(recording, kernel.base_path, kernel.kernel)
        return "asked for" not in kernel.reasons, kernel.new, -share, -kernel.size * known.get(kernel, 1.0)

    chosen: list[ChangedKernel] = []
    skipped: list[Skipped] = []
    for kernel in sorted(kernels, key=rank):
        if not _named(request, kernel.path, kernel.kernel):
            continue
        if not config.wants(kernel.path):
            skipped.append(Skipped(kernel.path, "the settings exclude it", kernel.kernel))
        elif len(chosen) == config.budget.kernels:
            reason = f"more than {config.budget.kernels} kernels changed; request this one by name"
            skipped.append(Skipped(kernel.path, reason, kernel.kernel))
        else:
            chosen.append(kernel)
    if (request.path or request.kernel) and not chosen and not skipped:
        skipped.append(Skipped(request.path or WHOLE, "no such kernel", request.kernel))
    return chosen, skipped


def _promise(looker: Looker, kernels: list[ChangedKernel], limit_s: float) -> dict[ChangedKernel, float]:
    """The predicted headroom of kernels that have a spec, those that changed most first, as far as the time goes."""
    end = time.monotonic() + limit_s
    found: dict[ChangedKernel, float] = {}
    for kernel in sorted(kernels, key=lambda kernel: -kernel.size):
        if time.monotonic() >= end:
            break
        with contextlib.suppress(OptimlError):
            found[kernel] = looker.headroom(kernel)
    return found


def _named(request: Request, path: str, kernel: str) -> bool:
    return request.path in ("", path) and request.kernel in ("", kernel, kernel.rpartition("::")[2])


def _asked_for(request: Request, repository: Repository, base: str) -> list[ChangedKernel]:
    """Kernels of a file that somebody names although the pull request does not change them."""
    data = repository.read(request.head, request.path)
    if data is None or b"\0" in data:
        return []
    before = request.path if repository.read(base, request.path) is not None else ""
    try:
        kernels = parse(data, request.path).kernels
    except OptimlError:
        return []
    return [ChangedKernel(request.path, k.qualified, k.line, ("asked for",), before) for k in kernels]


def machine_for(device: Literal["auto", "gpu", "cpu"], arch: str) -> Machine:
    """This machine's evaluators; without a GPU they predict for `arch`. Raises MachineError."""
    machine = make_machine(device=device)
    if machine.mode == "predicted" and machine.arch != arch:
        machine.close()
        machine = make_machine(device="cpu", arch=arch)
    return machine


def _recording(
    repository: Repository, base: str, config: Config, say: Callable[[str], None]
) -> Manifest | None:  # fmt: skip
    """The recording that the base has in its repository: a pull request has no say in what is searched first."""
    path = f"{config.recording}/{MANIFEST}"
    data = repository.read(base, path) if config.recording else None
    try:
        return None if data is None else parse_manifest(data, path)
    except UsageError as error:
        say(f"the recording is not used: {error}")
        return None


def _past(folder: Path | None, say: Callable[[str], None]) -> Baseline:
    try:
        return read_baseline(folder) if folder is not None else Baseline()
    except BundleError as error:
        say(f"the baseline is not used: {error}")
        return Baseline()


def _proposers(request: Request, config: Config) -> tuple[tuple[str, ...], LlmSettings | None]:
    """Who proposes edits: as asked for in the comment, else as the base's settings say. A model's address and key are the job's."""
    usual = ("rules", *(("tuner",) if config.search.tuner else ()), *(("llm",) if config.model.enabled else ()))
    named = tuple(request.proposers.split(",")) if request.proposers else usual
    if "llm" not in named:
        return named, None
    from engine.llm.session import from_config

    return named, from_config(config.model)


def _memory(request: Request, config: Config, clone: Path) -> MemorySettings | None:
    """Lessons of earlier runs, of this clone's repository: a fork's code neither reads nor writes them."""
    if not config.search.memory or request.fork:
        return None
    from engine.settings.memory_settings import MemorySettings, default_path

    return MemorySettings(default_path(), str(clone.resolve()))


class _Here:
    """Reviews one kernel at a time, on this runner."""

    slots = 1

    def __init__(self, looker: Looker, machine: Machine) -> None:
        self._looker, self._machine, self._count = looker, machine, 0
        self._begun: tuple[int, Prepared, float] | None = None

    def begin(self, number: int, prepared: Prepared, share_s: float) -> None:
        """Take a kernel; it is reviewed when its end is waited for."""
        self._begun = number, prepared, time.monotonic() + share_s

    def ended(self) -> list[tuple[int, Reviewed]]:
        """The kernel that was begun, with what was found."""
        assert self._begun is not None
        number, prepared, deadline = self._begun
        reviewed = _guarded(prepared.found.changed, lambda: self._reviewed(prepared, deadline))
        return [(number, reviewed if isinstance(reviewed, Reviewed) else Reviewed(error=reviewed.error))]

    def _reviewed(self, prepared: Prepared, deadline: float) -> Reviewed:
        """Compare and search one kernel, or try its draft, until the deadline (of time.monotonic)."""
        sides, config, asked = self._looker.sides, self._looker.config, self._looker.proposing
        changed, spec, machine = prepared.found.changed, prepared.spec, self._machine
        if prepared.text:
            try:
                if deadline - time.monotonic() < LEAST_S:
                    return Reviewed(error=BUDGET_SPENT)
                try_draft(spec, sides.head, changed.path, machine)
                return Reviewed()
            except OptimlError as error:
                return Reviewed(error=said(error, sides.head))
        found = Reviewed()
        if prepared.base is not None:
            comparison, device = compared(spec, prepared.spec_path, prepared.base, sides.head, machine)
            found = Reviewed(comparison, device)
        if not asked.search:
            return dataclasses.replace(found, error=COMPARED_ONLY)
        left = deadline - time.monotonic()
        if left < LEAST_S:
            return dataclasses.replace(found, error=BUDGET_SPENT)
        self._count += 1
        options = Options(
            sides.head / changed.path,
            changed.kernel,
            Budget(seconds=SEARCHED * left),
            out=sides.out / "runs" / run_name(self._count, changed.path),
            command=command_of(changed, left),
            spec=(spec, prepared.spec_path),
            proposers=asked.proposers,
            llm=asked.model,
            memory=asked.memory,
            guardrails=config.guardrails,
            targets=config.targets,
        )
        try:
            result, folder = optimize(options, machine)
        except OptimlError as error:
            return dataclasses.replace(found, error=said(error, sides.head, sides.base))
        return dataclasses.replace(found, result=result, patch=patch_of(result, folder))


def run_name(number: int, path: str) -> str:
    """The folder of a kernel's run among a job's."""
    return f"{number}-{path.rpartition('/')[2].partition('.')[0][:60]}"


def command_of(changed: ChangedKernel, seconds: float) -> tuple[str, ...]:
    """The command that searches as a job does."""
    return "optiml", "optimize", changed.path, "--kernel", changed.kernel, "--budget", f"{seconds:.0f}s"

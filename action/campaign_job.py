"""The search of every kernel of the default branch, and the bundle of what was found. It needs no token."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING

from action import kept_reviews
from action.kept_reviews import ANSWERED, KeptReviews, key_of
from action.kernel_review import patch_of
from action.looker import Where
from action.request import Request
from action.search_job import JobInputs, machine_for, settings_at
from action.trees import write_settings, write_tree
from bot.bundle import Bundle, Looked, read_earlier, write_bundle
from bot.changed import ChangedKernel, Skipped
from bot.clone import Repository
from bot.escape import without_folders
from engine.campaign.campaign import CampaignEnd, CampaignRequest, Executor, InThisProcess, run_campaign
from engine.campaign.kernel_search import KernelEnd, KernelTask
from engine.campaign.survey import READY, Survey, SurveyedKernel, Surveyor
from engine.capture.manifest import MANIFEST
from engine.errors import OptimlError
from engine.report.run_folder import read_result
from engine.run.result import OptimizationResult
from engine.settings.scratch import scratch_folder

if TYPE_CHECKING:
    from engine.run.machine import Machine

_SURVEYED = 0.2  # the share of the budget in which kernels are run once, to order them
_MOST = 400  # kernels of a bundle


def run_all(
    request: Request, clone: Path, outs: tuple[Path, Path], inputs: JobInputs, say: Callable[[str], None]
) -> Bundle:  # fmt: skip
    """Search every kernel at the request's head, the most promising first; the bundle is in the first of `outs` after each kernel.

    The other one has the bundle of an earlier search, whose results stand for kernels that did not change; at the end it has this one.
    Raises ConfigError, GitError, MachineError.
    """
    repository = Repository(clone)
    config = settings_at(repository, request.head)
    with ExitStack() as held:
        root = write_tree(repository, request.head, held.enter_context(scratch_folder()) / "head")
        write_settings(repository, request.head, root)
        if config.recording and (data := repository.read(request.head, name := f"{config.recording}/{MANIFEST}")):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(data)
        machine, where, inner = _executor(held, inputs, config.targets[0], root)
        surveyor = Surveyor(root, machine)
        survey = surveyor.survey(_SURVEYED * request.budget_s)
        say(f"{len(survey.kernels)} kernels")
        survey = dataclasses.replace(survey, kernels=survey.kernels[:_MOST])
        fixed = (
            metadata.version("optiml-cuda"), where.name, where.mode, where.arch, request.budget_s, dataclasses.asdict(config),
        )  # fmt: skip
        kept = KeptReviews(kept_reviews.folder(), read_earlier(outs[1]))

        def key(kernel: SurveyedKernel) -> str:
            try:
                return key_of([*fixed, surveyor.key_of(kernel)])
            except OptimlError:
                return ""  # its search says what is wrong

        executor = _Answered(inner, kept, survey, key)
        executor.on_end = lambda: write_bundle(_bundle(request, executor.found, survey, None), outs[0])
        executor.say = say
        executor.on_end()
        end = run_campaign(CampaignRequest(root, request.budget_s), executor, survey)
    bundle = _bundle(request, executor.found, survey, end)
    for out in outs:
        write_bundle(bundle, out)
    return bundle


def _executor(held: ExitStack, inputs: JobInputs, arch: str, root: Path) -> tuple[Machine, Where, Executor]:
    """A machine to survey with, what is searched on, and what searches: this runner, or the workers of a cluster. Raises MachineError."""
    if inputs.cluster:  # Dask is loaded for those who ask for it
        made: tuple[Machine, Where, Executor] = import_module("action.cluster_reviewer").searching(
            held, inputs, arch, root
        )
        return made
    machine = machine_for(inputs.device, arch)
    held.callback(machine.close)
    return machine, Where(machine.mode, machine.arch, machine.name), InThisProcess(root, machine)


class _Answered:
    """Searches kernels but for those whose result is known; `found` has what came of each."""

    def __init__(
        self, inner: Executor, kept: KeptReviews, survey: Survey, key: Callable[[SurveyedKernel], str]
    ) -> None:  # fmt: skip
        self._inner, self._kept, self._key = inner, kept, key
        self._kernels = {(kernel.file, kernel.kernel): kernel for kernel in survey.kernels}
        self._answered: list[tuple[int, KernelEnd]] = []
        self._searched: dict[int, tuple[ChangedKernel, str]] = {}  # by rank, with its key
        self.slots = inner.slots
        self.found: dict[tuple[str, str], Looked] = {}
        self.on_end: Callable[[], object] = lambda: None
        self.say: Callable[[str], None] = lambda text: None

    def begin(self, task: KernelTask) -> None:
        """Take a kernel."""
        kernel = self._kernels[task.file, task.kernel]
        changed = ChangedKernel(kernel.file, kernel.kernel, kernel.line, ("asked for",), "")
        key = self._key(kernel)
        looked = self._kept.get(key, changed)
        if looked is not None:
            self.say(f"{kernel.file}: {kernel.kernel}: {ANSWERED}")
            self.found[kernel.file, kernel.kernel] = looked
            self._answered.append((task.rank, KernelEnd("done", ANSWERED)))
            return
        self.say(f"{kernel.file}: {kernel.kernel}: {task.seconds or 0:.0f} s")
        self._searched[task.rank] = changed, key
        self._inner.begin(task)

    def ended(self) -> list[tuple[int, KernelEnd]]:
        """The ranks that ended, with what came of them. Raises MachineError, KeyboardInterrupt."""
        ends, self._answered = self._answered, []
        if not ends:
            ends = list(self._inner.ended())
            for rank, end in ends:
                changed, key = self._searched.pop(rank)
                self.found[changed.path, changed.kernel] = self._kept.put(key, _looked(changed, end))
        self.on_end()
        return ends


def _looked(changed: ChangedKernel, end: KernelEnd) -> Looked:
    if end.state != "done":
        return Looked(changed, "none", error=without_folders(end.said))
    folder = Path(end.folder)
    result = read_result(folder, {"result.json": (OptimizationResult,)})
    return Looked(changed, "head", result=result, patch=patch_of(result, folder))


def _bundle(
    request: Request, found: dict[tuple[str, str], Looked], survey: Survey, end: CampaignEnd | None
) -> Bundle:  # fmt: skip
    skipped = tuple(_skipped(found, survey, end)) if end is not None else ()
    return Bundle(request.head, request.base, tuple(found.values()), skipped, complete=end is not None)


def _skipped(found: dict[tuple[str, str], Looked], survey: Survey, end: CampaignEnd | None) -> Iterator[Skipped]:
    said = {(kernel.file, kernel.kernel): kernel.said for kernel in end.kernels} if end is not None else {}
    for kernel in survey.kernels:
        name = kernel.file, kernel.kernel
        if name in found:
            continue
        missing = kernel.missing if kernel.state not in READY else ""
        reason = said.get(name) or missing or "the budget was spent before its search"
        yield Skipped(kernel.file, without_folders(reason), kernel.kernel)

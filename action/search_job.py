"""The job with the GPU: compares and searches the kernels that a pull request changes, and writes the result bundle.

It needs no token. What comes from the pull request is compiled and run in the sandbox alone; the spec and the settings are the
base's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from action import kept_reviews
from action.kept_reviews import ANSWERED, COMPARED_ONLY, KeptReviews, key_of
from action.matrix import Share
from action.request import Request
from action.trees import write_tree
from bot.base_comparison import compare
from bot.baseline import Baseline, device_name, read_baseline, spec_name
from bot.bundle import Bundle, Comparison, History, Looked, read_earlier, write_bundle
from bot.changed import ChangedKernel, Skipped
from bot.changes import find_changes
from bot.clone import Repository
from bot.errors import BundleError
from bot.escape import without_folders
from engine.campaign.headroom import predicted_headroom
from engine.capture.manifest import MANIFEST, Manifest, parse_manifest, share_of
from engine.cuda.load import load_program
from engine.cuda.parse import parse
from engine.cuda.patch import make_patch
from engine.errors import MachineError, OptimlError, UsageError
from engine.evaluate.contained import unexpected
from engine.model import Program
from engine.run.machine import make_machine
from engine.run.optimization import Options, optimize
from engine.run.ready_spec import SpecMaker
from engine.run.spec_writing import with_lines
from engine.search.progress import Budget
from engine.settings.config import NAMES, Config, parse_config
from engine.settings.config_text import ConfigError
from engine.settings.scratch import scratch_folder
from engine.spec.find import find_spec
from engine.spec.kernel_spec import KernelSpec
from engine.verify.defences import Defences

if TYPE_CHECKING:
    from engine.llm.session import LlmSettings
    from engine.run.machine import Machine

_ALL = Share()
_LEAST_S = 5.0  # below that a search finds nothing
# Both sides are the authors' own programs: the head may change headers, helpers and state as no candidate may.
_COMPARED = Defences(screening=False, device_state=False)
_RANKING = 0.1  # the share of the whole time that ordering kernels may take, where too many changed
_SEARCHED = 0.8  # the share of a kernel's time that is searched in; comparing and confirming take the rest


def run(
    request: Request, clone: Path, out: Path, *, device: Literal["auto", "gpu", "cpu"], say: Callable[[str], None],
    baseline: Path | None = None, earlier: Path | None = None, mine: Share = _ALL,
) -> Bundle:  # fmt: skip
    """Look at everything the request is about; the bundle is in `out` when this returns, and after each kernel.

    `clone` is a clone that has both commits; `baseline` a folder with what the default branch measured, `earlier` one with the
    bundle of an earlier run of the same pull request; `mine` is this job's share of the kernels. Raises ConfigError, GitError,
    DiffError, MachineError.
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
    past = _past(baseline, say)
    proposers, model = _proposers(request, config)
    bundle = Bundle(request.head, changes.base, (), tuple(skipped), complete=False)
    write_bundle(bundle, out)
    if chosen:
        with scratch_folder() as scratch:
            base = write_tree(repository, changes.base, scratch / "base")
            head = write_tree(repository, request.head, scratch / "head")
            machine = machine_for(device, request.arch or config.targets[0])
            try:
                kept = KeptReviews(kept_reviews.folder(), read_earlier(earlier) if earlier is not None else None)
                looker = _Looker(
                    base, head, machine, out, request.command != "check", past, proposers, model, config, kept
                )
                candidates = [k for k in kernels if _named(request, k.path, k.kernel) and config.wants(k.path)]
                # Jobs that share the kernels have to choose the same ones: what each predicts in its time may differ.
                if len(candidates) > config.budget.kernels and mine.count == 1:
                    promise = _promise(looker, candidates, _RANKING * total)
                    chosen, skipped = wanted(request, config, kernels, promise, recording)
                    bundle = dataclasses.replace(bundle, skipped=(*changes.skipped, *skipped))
                chosen = chosen[mine.number - 1 :: mine.count]
                looker.plan = (total, config.budget.kernel, request.budget_s, len(chosen))
                for index, changed in enumerate(chosen):
                    left = total - (time.monotonic() - begin)
                    share = min(left / (len(chosen) - index), config.budget.kernel if not request.budget_s else left)
                    say(f"{changed.path}: {changed.kernel}: {max(share, 0):.0f} s")
                    looked = _looked(looker, changed, share)
                    if looker.answered:
                        say(f"{changed.path}: {changed.kernel}: {ANSWERED}")
                    bundle = dataclasses.replace(bundle, kernels=(*bundle.kernels, looked))
                    # After each kernel: a job that is killed leaves what it had.
                    write_bundle(bundle, out)
            finally:
                machine.close()
    bundle = dataclasses.replace(bundle, complete=True)
    write_bundle(bundle, out)
    return bundle


def _looked(looker: _Looker, changed: ChangedKernel, share_s: float) -> Looked:
    """What `look` finds; what it raises unexpectedly is said of this kernel, and the others are looked at all the same."""
    try:
        return looker.look(changed, share_s)
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
        skipped.append(Skipped(request.path or "this pull request", "no such kernel", request.kernel))
    return chosen, skipped


def _promise(looker: _Looker, kernels: list[ChangedKernel], limit_s: float) -> dict[ChangedKernel, float]:
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
    named = (
        tuple(request.proposers.split(","))
        if request.proposers
        else ("rules", "llm")
        if config.model.enabled
        else ("rules",)
    )
    if "llm" not in named:
        return named, None
    from engine.llm.session import from_config

    return named, from_config(config.model)


class _Looker:
    """Looks at one kernel after the other, with both trees and the machine at hand."""

    def __init__(
        self, base: Path, head: Path, machine: Machine, out: Path, search: bool, past: Baseline,
        proposers: tuple[str, ...], model: LlmSettings | None, config: Config, kept: KeptReviews,
    ) -> None:  # fmt: skip
        self._config = config
        self._base, self._head, self._machine, self._out, self._search = base, head, machine, out, search
        self._past, self._proposers, self._model = past, proposers, model
        self._count = 0
        self._device: Mapping[str, object] = {}
        self._kept = kept
        self.plan: tuple[object, ...] = ()  # how the time is divided
        self.answered = False  # the last kernel, by an earlier review

    def headroom(self, changed: ChangedKernel) -> float:
        """How many times faster the kernel could be, as predicted. Raises OptimlError where that cannot be said."""
        spec, spec_path, _ = self._spec(changed)
        return predicted_headroom(spec, spec_path, self._head / changed.path, self._head, self._machine).ratio

    def look(self, changed: ChangedKernel, share_s: float) -> Looked:
        """Compare and search one kernel. Raises MachineError alone: what is wrong with the kernel is in the result."""
        begin, self.answered = time.monotonic(), False
        try:
            spec, spec_path, source = self._spec(changed)
        except OptimlError as error:
            return Looked(changed, "none", error=self._said(error), draft=self._draft(changed, error, share_s))
        key = self._key(changed, spec, spec_path, source)
        kept = self._kept.get(key, changed)
        if kept is not None:
            self.answered = True
            return kept
        return self._kept.put(key, self._searched(Looked(changed, source), spec, spec_path, begin + share_s))

    def _key(self, changed: ChangedKernel, spec: KernelSpec, spec_path: str | None, source: str) -> str:
        """A name for all that a review of a kernel depends on; "" where a side cannot be read."""
        options, kernels = spec.compile, [step.kernel for step in spec.steps]
        sides = [(self._head, changed.path)] + ([(self._base, changed.base_path)] if changed.base_path else [])
        try:
            programs = [
                load_program(
                    root / path, spec_file=spec_path, kernels=kernels, include=options.include, unit=options.unit
                ).digest
                for root, path in sides
            ]
        except OptimlError:
            return ""
        machine, model = self._machine, self._model
        return key_of([
            metadata.version("optiml-cuda"), machine.name, machine.mode, machine.arch, changed.path, changed.kernel, changed.reasons,
            source, programs, dataclasses.asdict(dataclasses.replace(spec, origin="")), self._search, self.plan, self._proposers,
            None if model is None else dataclasses.asdict(model), dataclasses.asdict(self._config), self._past,
        ])  # fmt: skip

    def _searched(self, found: Looked, spec: KernelSpec, spec_path: str | None, deadline: float) -> Looked:
        """The kernel compared with the base and searched, until the deadline (of time.monotonic)."""
        changed = found.changed
        try:
            comparison = self._compare(changed, spec, spec_path) if changed.base_path else None
        except MachineError as error:
            comparison = Comparison("not compared", None, self._said(error))
        restore = self._restore(changed) if comparison is not None and comparison.standing == "slower" else ""
        history = self._history(changed, spec, comparison)
        found = dataclasses.replace(found, comparison=comparison, history=history, restore=restore)
        if not self._search:
            return dataclasses.replace(found, error=COMPARED_ONLY)
        left = deadline - time.monotonic()
        if left < _LEAST_S:
            return dataclasses.replace(found, error="the budget was spent before its search")
        self._count += 1
        name = f"{self._count}-{changed.path.rpartition('/')[2].partition('.')[0][:60]}"
        options = Options(
            self._head / changed.path,
            changed.kernel,
            Budget(seconds=_SEARCHED * left),
            out=self._out / "runs" / name,
            command=("optiml", "optimize", changed.path, "--kernel", changed.kernel, "--budget", f"{left:.0f}s"),
            spec=(spec, spec_path),
            proposers=self._proposers,
            llm=self._model,
            guardrails=self._config.guardrails,
            targets=self._config.targets,
        )
        try:
            result, folder = optimize(options, self._machine)
        except OptimlError as error:
            return dataclasses.replace(found, error=self._said(error))
        patch = ""
        if result.best is not None:
            with contextlib.suppress(UnicodeDecodeError):  # the review says that it has none to show
                patch = (folder / result.best.patch).read_bytes().decode("utf-8")
        return dataclasses.replace(found, result=result, patch=patch)

    def _draft(self, changed: ChangedKernel, error: OptimlError, share_s: float) -> str:
        """A patch that puts a drafted spec above a kernel without one; "" where none holds, or where it has one that is wrong."""
        if not isinstance(error, UsageError) or not self._search or share_s < _LEAST_S:
            return ""
        file = self._head / changed.path
        try:
            ready = SpecMaker(self._head, self._machine.box).ready(file, changed.kernel)
            if not ready.text:
                return ""
            spec, options = ready.spec, ready.spec.compile
            program = load_program(
                file, kernels=[s.kernel for s in spec.steps], include=options.include, unit=options.unit
            )
            evaluator = self._machine.evaluator(spec, self._head, None)
            try:
                evaluator.open(program)
            finally:
                evaluator.close()
            after = with_lines(program.data, changed.path, changed.kernel, ready.text)
            patch = make_patch(
                Program({changed.path: program.data}, changed.path), Program({changed.path: after}, changed.path)
            )
            return patch.decode("utf-8")
        except (OptimlError, KeyError, UnicodeDecodeError):
            return ""  # why there is no spec is said anyway

    def _restore(self, changed: ChangedKernel) -> str:
        """The patch that gives the kernel the base's text again; "" where more than its own text changed."""
        if changed.reasons != ("body",):
            return ""
        head, base = (
            (root / path).read_bytes() for root, path in ((self._head, changed.path), (self._base, changed.base_path))
        )
        try:
            now = parse(head, changed.path).kernel(changed.kernel).span
            then = parse(base, changed.base_path).kernel(changed.kernel).span
            after = head[: now.start] + base[then.start : then.end] + head[now.end :]
            patch = make_patch(
                Program({changed.path: head}, changed.path), Program({changed.path: after}, changed.path)
            )
            return patch.decode("utf-8")
        except (KeyError, OptimlError, UnicodeDecodeError):
            return ""

    def _history(self, changed: ChangedKernel, spec: KernelSpec, comparison: Comparison | None) -> History | None:
        measurement = comparison.measurement if comparison is not None else None
        if measurement is None or not self._past.entries:
            return None
        name = device_name(self._machine.mode, self._device, metadata.version("optiml-cuda"))
        return self._past.history(changed.base_path, changed.kernel, name, spec_name(spec), measurement.cases)

    def _said(self, error: OptimlError) -> str:
        """An error with paths as the repository has them: where the trees stand is nobody's business."""
        text = str(error)
        for folder in (self._head, self._base):
            text = text.replace(f"{folder.resolve()}/", "").replace(f"{folder}/", "")
        return without_folders(text)

    def _spec(self, changed: ChangedKernel) -> tuple[KernelSpec, str | None, Literal["base", "head"]]:
        """The base's spec where it has one that fits the kernel as it is now, else the head's."""
        if changed.base_path:
            try:
                spec, spec_path = find_spec(self._base, self._base / changed.base_path, changed.kernel)
            except OptimlError:
                pass
            else:
                if self._fits(spec, changed):
                    here = spec_path if spec_path and (self._head / spec_path).is_file() else None
                    return dataclasses.replace(spec, file=changed.path), here, "base"
        spec, spec_path = find_spec(self._head, self._head / changed.path, changed.kernel)
        return spec, spec_path, "head"

    def _fits(self, spec: KernelSpec, changed: ChangedKernel) -> bool:
        unit = parse((self._head / changed.path).read_bytes(), changed.path)
        before = parse((self._base / changed.base_path).read_bytes(), changed.base_path)
        for step in spec.steps:
            try:
                old, new = before.kernel(step.kernel), unit.kernel(step.kernel)
            except KeyError:
                return False
            if [(p.name, p.base, p.pointer) for p in old.parameters] != [
                (p.name, p.base, p.pointer) for p in new.parameters
            ]:
                return False
        return True

    def _compare(self, changed: ChangedKernel, spec: KernelSpec, spec_path: str | None) -> Comparison:
        kernels = [step.kernel for step in spec.steps]
        try:
            include = spec.compile.include
            head = load_program(self._head / changed.path, spec_file=spec_path, kernels=kernels, include=include)
            base = load_program(self._base / changed.base_path, kernels=kernels, include=include)
            evaluator = self._machine.evaluator(spec, self._head, spec_path, _COMPARED)
        except OptimlError as error:
            return Comparison("not compared", None, self._said(error))
        files = _renamed(base.files, changed.base_path, changed.path)
        try:
            comparison = compare(evaluator, Program(files, changed.path), head)
            # A GPU's evaluator knows its device only now.
            self._device = evaluator.signals.device
            return comparison
        finally:
            evaluator.close()


def _renamed(files: Mapping[str, bytes], old: str, new: str) -> dict[str, bytes]:
    return {new if path == old else path: data for path, data in files.items()}

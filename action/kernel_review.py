"""What a device does in the review of one kernel: compares the base with the head, searches, tries a drafted spec.

It does so on the runner, or as a task on a worker of a cluster (`run_review`), which gets plain data and files and no key or token.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bot.base_comparison import compare
from bot.bundle import Comparison, Looked
from bot.escape import without_folders
from engine.campaign.cluster_task import Served, serve
from engine.campaign.kernel_search import KernelEnd, search_kernel
from engine.cuda.load import load_program
from engine.errors import MachineError, OptimlError
from engine.evaluate.contained import unexpected
from engine.model import Program
from engine.process.decode import decode
from engine.run.machine import Machine
from engine.run.result import OptimizationResult
from engine.search.journal import IN_USE
from engine.spec.kernel_spec import KernelSpec
from engine.verify.defences import Defences

LEAST_S = 5.0  # below that a search finds nothing
SEARCHED = 0.8  # the share of a kernel's time that is searched in; comparing and confirming take the rest
BUDGET_SPENT = "the budget was spent before its search"
# Both sides are the authors' own programs: the head may change headers, helpers and state as no candidate may.
_COMPARED = Defences(screening=False, device_state=False)


@dataclass(frozen=True)
class Prepared:
    """A kernel of which a device has to tell. `found` is what is known before, `key` names all that its review depends on.

    `base` is the program that it is compared with, under the head's names. With `text`, the lines of a drafted spec, that spec is tried
    and nothing else.
    """

    found: Looked
    spec: KernelSpec
    spec_path: str | None
    key: str = ""
    base: Program | None = None
    text: str = ""


@dataclass(frozen=True)
class Reviewed:
    """What a device found of a prepared kernel. `device` names it as far as baselines do; `error` says why there is no result."""

    comparison: Comparison | None = None
    device: Mapping[str, str] = field(default_factory=dict)
    result: OptimizationResult | None = None
    patch: str = ""
    error: str = ""


@dataclass(frozen=True)
class Asked:
    """What is asked of a worker, beside the kernel's task: whether it is to be compared with the base, searched, or its draft tried."""

    compare: bool
    search: bool
    draft: bool = False


def run_review(frame: bytes) -> bytes:
    """On a worker: the review of the kernel of an order."""
    return serve(frame, _review)


def _review(turn: Served) -> KernelEnd:
    begin = time.monotonic()
    assert turn.spec is not None
    spec, task, asked = turn.spec[0], turn.order.task, decode(Asked, turn.order.asked)
    file, seconds = turn.root / task.file, task.seconds or 0.0
    more: dict[str, object] = {}
    try:
        if asked.draft:
            try_draft(spec, turn.root, task.file, turn.machine)
            return KernelEnd("done", "the drafted spec holds")
        if asked.compare:
            base = Program(dict(turn.extra), task.file)
            comparison, device = compared(spec, turn.spec[1], base, turn.root, turn.machine)
            more = {"comparison": dataclasses.asdict(comparison), "device": dict(device)}
        left = seconds - (time.monotonic() - begin)
        if not asked.search or left < LEAST_S:
            return KernelEnd("done", BUDGET_SPENT if asked.search else "", more=more)
        # The same request for another worker that takes this over, though comparing takes it another time.
        searched = dataclasses.replace(task, seconds=SEARCHED * left, whole_s=seconds)
        end = search_kernel(searched, turn.root, turn.machine, turn.on_progress, turn.spec)
        return dataclasses.replace(end, more=more)
    except MachineError as error:
        if error.what.startswith(IN_USE):
            raise  # the search of a worker that was taken for lost: it ends
        return KernelEnd("failed", said(error, turn.root), more=more)
    except OptimlError as error:
        return KernelEnd("failed", said(error, turn.root), more=more)
    except Exception as error:  # of this kernel: the others are looked at all the same
        return KernelEnd("failed", unexpected(error).replace(f"{file}", task.file), more=more)


def compared(
    spec: KernelSpec, spec_path: str | None, base: Program, root: Path, machine: Machine
) -> tuple[Comparison, Mapping[str, str]]:
    """The head's kernel against the base's, with what names the device. Raises nothing for what the programs hold."""
    kernels, device = [step.kernel for step in spec.steps], dict[str, str]()
    try:
        head = load_program(root / base.kernel_file, spec_file=spec_path, kernels=kernels, include=spec.compile.include)
        evaluator = machine.evaluator(spec, root, spec_path, _COMPARED)
        try:
            comparison = compare(evaluator, base, head)
            # A GPU's evaluator knows its device only now.
            device = {k: str(v) for k, v in evaluator.signals.device.items() if k in ("name", "arch")}
        finally:
            evaluator.close()
    except OptimlError as error:
        return Comparison("not compared", None, said(error, root)), device
    return comparison, device


def try_draft(spec: KernelSpec, root: Path, path: str, machine: Machine) -> None:
    """Validate a drafted spec on the kernel that it is for. Raises OptimlError where it does not hold."""
    options = spec.compile
    program = load_program(
        root / path, kernels=[step.kernel for step in spec.steps], include=options.include, unit=options.unit
    )
    evaluator = machine.evaluator(spec, root, None)
    try:
        evaluator.open(program)
    finally:
        evaluator.close()


def patch_of(result: OptimizationResult, folder: Path) -> str:
    """The text of a result's suggestion; "" without one, or where it is no text: the review says that it has none to show."""
    if result.best is None:
        return ""
    with contextlib.suppress(UnicodeDecodeError):
        return (folder / result.best.patch).read_bytes().decode("utf-8")
    return ""


def said(error: OptimlError, *roots: Path) -> str:
    """An error with paths as the repository has them: where the trees stand is nobody's business."""
    text = str(error)
    for folder in roots:
        text = text.replace(f"{folder.resolve()}/", "").replace(f"{folder}/", "")
    return without_folders(text)

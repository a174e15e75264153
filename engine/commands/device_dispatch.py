"""What becomes of the searches on each kind of device: one patch that selects by compute capability at run time."""

import argparse
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engine.campaign.campaign import FOLDER, CampaignEnd
from engine.campaign.combined_patch import combine
from engine.campaign.queue import Queued
from engine.capture.recorded_spec import recorded_spec
from engine.cuda.patch import make_patch
from engine.errors import OptimlError, RefusedError
from engine.model import Program
from engine.report.device_table import CampaignDispatch, DispatchEnd, KernelDispatch
from engine.report.run_folder import read_result, read_run, suggested
from engine.run.device_dispatch import Variant
from engine.run.device_dispatch_check import DispatchRequest, device_dispatch
from engine.run.machine import Machine, make_machine
from engine.run.ready_spec import SpecMaker
from engine.run.result import OptimizationResult
from engine.settings.config import load_config
from engine.settings.folders import write_files
from engine.spec.kernel_spec import KernelSpec

PATCH = "device-dispatch.patch"


@dataclass(frozen=True)
class Searched:
    """One kind of device, and what its search came to."""

    device: str
    arch: str
    mode: Literal["measured", "predicted"]
    result: OptimizationResult
    out: Path
    root: Path
    spec: tuple[KernelSpec, str | None]


def dispatch_of(arguments: argparse.Namespace, searched: Sequence[Searched], *, interrupted: bool) -> DispatchEnd:
    """Write the patch into the kernel's own folder; without one an older one goes. What is in the way is the reason."""
    if not searched:
        return DispatchEnd(reason="every search failed")
    first = searched[0]
    folder = first.out.with_name(first.out.name.removesuffix(f"@{first.device}"))
    try:
        if interrupted:
            raise RefusedError("the search was interrupted")
        if all(s.result.best is None for s in searched):
            raise RefusedError("no device has a suggestion")
        end, patch = _checked(arguments, searched, folder / PATCH)
    except OptimlError as error:
        end, patch = DispatchEnd(reason=str(error)), None
    if patch is not None or folder.exists():
        write_files(folder, {PATCH: patch})
    return end


def dispatch_of_campaign(
    arguments: argparse.Namespace, root: Path, ends: Sequence[CampaignEnd], machine: Machine, archs: Mapping[str, str]
) -> CampaignDispatch:
    """The same for every kernel of a campaign for each kind of device that has a suggestion on one, and one patch of all.

    `machine` is this one; `archs` are the kinds' architectures, by name.
    """
    kernels: dict[tuple[str, str], list[tuple[str, Queued]]] = {}
    for end in ends:
        for kernel in end.kernels:
            kernels.setdefault((kernel.file, kernel.kernel), []).append((end.device, kernel))
    found: list[KernelDispatch] = []
    for (file, name), kinds in kernels.items():
        if all(kernel.speedup is None for _, kernel in kinds):
            continue
        try:
            ready = SpecMaker(root, machine.box, recorded=recorded_spec).ready(root / file, name)
            spec = ready.spec, ready.spec_path
            searched = [
                Searched(device, archs[device], "measured", _result(kernel), Path(kernel.folder), root, spec)
                for device, kernel in kinds
                if kernel.state == "done" and kernel.folder
            ]
            dispatch = dispatch_of(arguments, searched, interrupted=False)
        except OptimlError as error:
            dispatch = DispatchEnd(reason=str(error))
        found.append(KernelDispatch(file, name, dispatch))
    patches = [(each.kernel, Path(each.dispatch.patch), each.dispatch.files) for each in found if each.dispatch.patch]
    data, notes = combine(root, patches) if patches else (b"", ())
    path = root / ".optiml" / FOLDER / PATCH
    if data or path.parent.exists():
        write_files(path.parent, {PATCH: data or None})
    return CampaignDispatch(tuple(found), str(path) if data else "", notes)


def _result(kernel: Queued) -> OptimizationResult:
    return read_result(Path(kernel.folder), {"result.json": (OptimizationResult,)})


def _checked(
    arguments: argparse.Namespace, searched: Sequence[Searched], path: Path
) -> tuple[DispatchEnd, bytes | None]:
    """The dispatch code, checked, and its patch where it is suggested. Raises OptimlError."""
    first = searched[0]
    originals: list[Program] = []
    variants: list[Variant] = []
    for kind in searched:
        program = None
        if kind.result.best is not None:
            original, program = suggested(read_run(kind.out), kind.out)
            originals.append(original)
        variants.append(Variant(kind.device, kind.arch, program))
    if len({original.digest for original in originals}) > 1:
        raise RefusedError("the source changed between the searches", first.result.file, "search again with --fresh")
    spec, spec_path = first.spec
    config, _ = load_config(first.root)
    request = DispatchRequest(first.root, spec, spec_path, originals[0], tuple(variants))
    machine = make_machine(device="cpu", arch=first.arch, jobs=arguments.jobs, unsafe=arguments.unsafe_no_sandbox)
    with closing(machine):
        machine.mode = first.mode
        found = device_dispatch(request, machine, config.guardrails, config.targets)
    after = found.program
    patch = None if found.refused else make_patch(originals[0], after)
    files = tuple(sorted(p for p in after.files if originals[0].files.get(p) != after.files[p]))
    end = DispatchEnd(
        "" if patch is None else str(path),
        () if patch is None else files,
        found.branches,
        found.guardrails,
        found.refused,
    )
    return end, patch

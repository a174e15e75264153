"""Looks at kernels without a search: what the compiler reports, how many warps fit, how memory is accessed."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from engine.compile.compiler import CompileTimeout, NeedsNvcc, Translation
from engine.cuda.launch import sites
from engine.cuda.parse import parse
from engine.cuda.slice import DeviceSlice, device_slice
from engine.errors import CompileError, MachineError, OptimlError, SpecError
from engine.evaluate.build import Builder
from engine.evaluate.contained import unexpected
from engine.model import Binary, LaunchConfig, Resources
from engine.predict.occupancy import occupancy
from engine.predict.targets import TargetParameters, figures_for, known_targets, target_for
from engine.predict.wasted_sectors import LEAST_SHARE, share_of_line, waste
from engine.settings.config import CheckSettings, Kinds
from engine.settings.folders import cache_folder
from engine.settings.scratch import scratch_folder
from hooks.certainty import uncertain
from hooks.finding import Finding, Report
from hooks.targets import Target, targets_in

if TYPE_CHECKING:
    from engine.predict.counts import AccessCounts, KernelCounts, SiteCounts
    from hooks.compilers import Compilers

T = TypeVar("T")
_PROBE_BYTES = 256 << 10  # of all buffers of the run in which accesses are counted: some ten milliseconds
_REGISTERS_NEAR, _SHARED_NEAR, _STEP = (
    8,
    0.125,
    1.25,
)  # a cliff: so little less would let a quarter more warps in. Ours.
_BUILD_S = 300.0  # after which another process's build of the runtime counts as failed
_LITERAL = re.compile(r"[\w\s:,<>]+", re.ASCII)


def look(
    root: Path, paths: Sequence[str], settings: CheckSettings, compilers: Compilers, commit: str, deadline: float
) -> dict[str, Report]:
    """What there is to say about the kernels of each file that differ from those of `commit`.

    `deadline` is of time.monotonic. Raises MachineError where no sandbox or no NVRTC can be had.
    """
    reports = {path: Report() for path in paths}
    targets: list[Target] = []
    for path in paths:
        try:
            targets += targets_in(root, path, commit)
        except SpecError as error:
            reports[path].findings.append(_problem(path, "", 1, error, "spec"))
        except OptimlError as error:
            reports[path].note(f"not analysed: {error}")
    if targets:
        with Inspector(root, settings, compilers, deadline) as inspector:
            inspector.look(targets, reports)
    for report in reports.values():
        kept = {f for f in report.findings if f.kind not in settings.ignore}
        report.findings = sorted(kept, key=lambda f: (f.path, f.line, f.kernel, f.kind, f.text))
    return reports


class Inspector:
    """Looks at targets until a deadline (of time.monotonic). Use as a context manager.

    Raises MachineError where no sandbox or no NVRTC can be had.
    """

    def __init__(self, root: Path, settings: CheckSettings, compilers: Compilers, deadline: float) -> None:
        self._root, self._settings, self._archs, self._deadline = root, settings, compilers.archs, deadline
        self._stack = ExitStack()
        self._box, self._cache, self._compilers = compilers.box, compilers.cache, compilers.by_arch
        self._pool = ThreadPoolExecutor(max(2, compilers.jobs), thread_name_prefix="inspect")
        self._scratch = self._stack.enter_context(scratch_folder())

    def __enter__(self) -> Inspector:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._stack.close()

    def look(self, targets: Sequence[Target], reports: Mapping[str, Report]) -> None:
        """Adds to the reports of the targets' files. Never raises for what is wrong with a target."""
        wants = {"coalescing", "bank-conflicts"} - set(self._settings.ignore)
        built: list[tuple[Target, str, Future[tuple[Binary, ...]]]] = []
        counted: list[tuple[Target, Future[AccessCounts | str]]] = []
        for target in targets:
            if target.problem is not None:
                reports[target.path].findings.append(_of(target, target.problem, "spec"))
                continue
            for arch in self._archs:
                built.append((target, arch, self._pool.submit(self._build, target, arch)))
            if target.spec is not None and wants:
                counted.append((target, self._pool.submit(self._count, target)))
        for target, arch, binaries in built:
            report = reports[target.path]
            self._wait(report, target, binaries, partial(self._resources, report, target, arch))
        for target, counts in counted:
            report = reports[target.path]
            if any(f.kind == "compile" and f.kernel == target.kernel for f in report.findings):
                counts.cancel()  # one error of the compiler is enough
                continue
            self._wait(report, target, counts, partial(self._accesses, report, target))

    def _wait(self, report: Report, target: Target, future: Future[T], then: Callable[[T], None]) -> None:
        try:
            future.exception(timeout=max(0.0, self._deadline - time.monotonic()))
        except Late:
            future.cancel()
            report.complete = False
            report.note(f"{target.path}: out of time; increase 'check.budget'")
            return
        try:
            then(future.result())
        except CompileTimeout as error:  # of a busy machine, or of code that is long to compile
            report.complete = False
            report.note(f"{target.path}:{target.line}: {target.kernel}: not compiled: {error.what}")
        except NeedsNvcc as error:
            report.note(f"{target.path}:{target.line}: {target.kernel}: not compiled: {error.what}; {error.do}")
        except CompileError as error:
            self._doubt(report, target, error, "compile")
        except MachineError as error:
            report.complete = False
            report.note(f"{target.path}: {target.kernel}: {error}")
        except OptimlError as error:
            self._doubt(report, target, error, "spec" if target.spec else "compile")
        except Exception as error:  # of this kernel: the others are looked at all the same
            report.complete = False
            report.note(f"{target.path}: {target.kernel}: {unexpected(error)}")

    def _doubt(self, report: Report, target: Target, error: OptimlError, kind: Kinds) -> None:
        """An error of the commit's as a finding; one that the project's own build may not have, as a note."""
        doubt = "" if kind == "spec" else self._uncertain(target, error)
        if not doubt:
            report.findings.append(_of(target, error, kind))
            return
        found = _of(target, error, kind)
        report.note(f"{found.path}:{found.line}: {found.kernel}: not certain, as {doubt}: {found.text}")

    def _uncertain(self, target: Target, error: OptimlError) -> str:
        sliced, names = None, list[str]()
        with suppress(OptimlError):
            sliced = self._sliced(target)
            names = [] if target.spec else _instances(target)
        return uncertain(target, error, sliced, names)

    # ---- what the compiler says

    def _build(self, target: Target, arch: str) -> tuple[Binary, ...]:
        compiler = self._compilers[arch]
        if target.spec is not None:
            builder = Builder(target.spec, self._root, compiler, target_for(arch), target.spec_path)
            return (compiler.compile(builder.translation(self._slice(target))),)
        names = _instances(target)
        if not names:
            return ()
        options = target.compile
        translation = Translation(
            self._slice(target), target.path, tuple(names), defines=options.defines, std=options.std
        )
        return (compiler.compile(translation),)

    def _slice(self, target: Target) -> str:
        return self._sliced(target).text

    def _sliced(self, target: Target) -> DeviceSlice:
        spec, options = target.spec, target.compile
        kernels = list(dict.fromkeys(spec.expressions)) if spec else [target.kernel]
        return device_slice(target.program, kernels, root=self._root, include=options.include, unit=options.unit)

    def _resources(self, report: Report, target: Target, arch: str, found: tuple[Binary, ...]) -> None:
        if not found:
            report.note(
                f"{target.path}:{target.line}: {target.kernel}: not compiled: a template; add a spec with its arguments"
            )
        for binary in found:
            worst = max(binary.resources, key=lambda r: r.spill_store_bytes + r.spill_load_bytes)
            stored, loaded = worst.spill_store_bytes, worst.spill_load_bytes
            if stored or loaded:
                text = f"{stored + loaded} bytes of registers spilled on {arch} ({stored} stored, {loaded} loaded per thread)"
                report.findings.append(_finding(target, "spills", text))
            if target.spec is not None:
                self._occupancy(report, target, arch, binary)

    def _occupancy(self, report: Report, target: Target, arch: str, binary: Binary) -> None:
        assert target.spec is not None
        if arch.rstrip("af") not in known_targets():
            report.note(f"no occupancy prediction for {arch}; known architectures: {', '.join(known_targets())}")
            return
        builder = Builder(target.spec, self._root, self._compilers[arch], target_for(arch), target.spec_path)
        figures = figures_for(arch)
        said: dict[tuple[str, str], None] = {}
        for case in target.spec.time:
            launches = builder.launches_for(target.program, case.sizes)
            builder.check_limits([launches])
            for step, resources, launch in zip(target.spec.steps, binary.resources, launches, strict=True):
                text = occupancy_finding(resources, launch, figures, self._settings.occupancy)
                if text:
                    said[step.kernel, text] = None
        unit = parse(target.program.data, target.path)
        for kernel, text in said:
            line = next((k.line for k in unit.kernels if kernel in (k.name, k.qualified)), target.line)
            report.findings.append(Finding(target.path, line, kernel, "occupancy", text))

    # ---- what a small run on the CPU counts

    def _count(self, target: Target) -> AccessCounts | str:
        """Counts of one small run, or a sentence why there are none."""
        from engine.cpu import CpuJob, CpuMachine
        from engine.cpu.toolchain import find_toolchain, runtime_folder
        from engine.spec.data import bytes_needed, poisoned, scalars
        from engine.spec.kernel_spec import Case

        assert target.spec is not None
        spec = target.spec
        toolchain = find_toolchain()
        if toolchain is None:
            return "accesses were not analysed: no C++ compiler (g++, clang++ or ziglang)"
        std = spec.compile.std if spec.compile.std in ("c++20", "c++23") else "c++17"
        if not (runtime_folder(toolchain, self._cache / "cpu", std) / "done").is_file():
            prepare_later(std)
            return "accesses were not analysed: their runtime is being built for the next check"
        from engine.evaluate.size_relations import relations
        from engine.predict.probe_sizes import ProbeLimits, probe_sizes
        from engine.predict.scale import CountedRuns, Full, extrapolate

        def fits(sizes: Mapping[str, int | float]) -> bool:
            return bytes_needed(spec, Case("", sizes)) <= _PROBE_BYTES

        builder = Builder(
            spec, self._root, self._compilers[self._archs[0]], target_for(self._archs[0]), target.spec_path
        )
        machine = CpuMachine(self._cache / "cpu", sandbox=self._box, scratch=self._scratch, jobs=1, toolchain=toolchain)
        full = spec.time[0].sizes
        small = probe_sizes(full, ProbeLimits(fits), relations(spec))
        cases = [Case("", sizes) for sizes in small.fitted]
        try:
            binary = machine.build(self._slice(target), spec.file, spec, builder.expressions, timeout_s=self._left())
        except CompileError as error:  # what CUDA's compiler takes need not run on the CPU
            return f"accesses were not analysed: {error}"

        def counts(cases: Sequence[Case], every_block: bool) -> list[AccessCounts | None]:
            jobs = [
                CpuJob(
                    builder.launches_for(target.program, case.sizes),
                    poisoned(spec, case, 1, "declared"),
                    scalars(spec, case),
                    count=True,
                    every_block=every_block,
                )
                for case in cases
            ]
            return [run.counts for run in machine.run_many(binary, jobs, deadline_s=self._left())]

        (found,) = counts(cases[:1], every_block=False)
        if found is not None and any(access_finding(site) for kernel in found.kernels for site in kernel.sites):
            # Worth a closer look: how often the place runs at full size is told from all blocks of several small sizes.
            exact = counts(cases, every_block=True)
            known = [each for each in exact if each is not None]
            if len(known) == len(cases):
                grown = list(zip(small.doubled, known[1:], strict=True))
                at = Full(full, builder.launches_for(target.program, full))
                return extrapolate(CountedRuns(small.base, known[:1], grown), at)
        return found or "accesses were not analysed: the small run on the CPU did not end"

    def _left(self) -> float:
        return max(0.1, self._deadline - time.monotonic())

    def _accesses(self, report: Report, target: Target, found: AccessCounts | str) -> None:
        if isinstance(found, str):
            report.complete = False
            report.note(f"{target.path}: {found}")
            return
        assert target.spec is not None
        for step, kernel in zip(target.spec.steps, found.kernels, strict=True):
            report.findings += _wasteful(target, step.kernel, kernel)


def _wasteful(target: Target, kernel: str, counted: KernelCounts) -> list[Finding]:
    """Of each line and array the worst access; none of a line that the kernel spends little on, such as a border's."""
    worst: dict[tuple[int, str, str], tuple[float, Finding]] = {}
    for site in counted.sites:
        judged = access_finding(site)
        if judged is None or share_of_line(site, counted.sites) < LEAST_SHARE:
            continue
        kind, factor, text = judged
        line = site.line or target.line
        key = (line, site.array, kind)
        if key not in worst or worst[key][0] < factor:
            worst[key] = (factor, Finding(target.path, line, kernel, kind, text))
    return [finding for _, finding in worst.values()]


def access_finding(site: SiteCounts) -> tuple[Kinds, float, str] | None:
    """(kind, times the ideal, sentence) for a place that moves much more than it asks for; None for one that does not."""
    found = waste(site)
    if found is None:
        return None
    name = f" of '{site.array}'" if site.array else ""
    each = f"{found.passes:.1f} {{}} per request (ideal: {found.ideal:.1f}, predicted)"
    if found.kind == "coalescing":
        return found.kind, found.factor, f"uncoalesced {site.kind}{name}: {each.format('sectors')}"
    return found.kind, found.factor, f"bank conflicts, {site.kind}{name}: {each.format('passes')}"


def occupancy_finding(resources: Resources, launch: LaunchConfig, figures: TargetParameters, least: float) -> str:
    """A sentence where too few warps fit, or a little less of what limits them would let many more in; else ""."""
    now = occupancy(resources, launch, figures)
    arch = figures.target.arch
    if now.blocks == 0:
        return f"no block of {launch.threads} threads fits {arch}: limited by {now.limit}"
    # As many blocks as fit, whatever the grid: a small grid is the caller's choice and not the kernel's fault.
    launch = replace(launch, grid=(max(launch.blocks, 64 * figures.target.multiprocessors), 1, 1))
    now = occupancy(resources, launch, figures)
    advice = ""
    if now.limit == "registers":
        for fewer in range(1, _REGISTERS_NEAR + 1):
            then = occupancy(replace(resources, registers=max(resources.registers - fewer, 1)), launch, figures)
            if then.warps >= _STEP * now.warps:
                advice = (
                    f"with {resources.registers - fewer} registers instead of {resources.registers} {then.fraction:.0%}"
                )
                break
    elif now.limit == "shared memory":
        total = resources.shared_bytes + launch.shared_bytes
        less = int(total * _SHARED_NEAR)
        then = occupancy(replace(resources, shared_bytes=resources.shared_bytes - less), launch, figures)
        if then.warps >= _STEP * now.warps:
            advice = f"with {total - less} bytes of shared memory instead of {total} {then.fraction:.0%}"
    if not advice and now.fraction >= least:
        return ""
    text = f"occupancy {now.fraction:.0%} on {arch}, limited by {now.limit}"
    return f"{text}; {advice}" if advice else text


def prepare_later(std: str) -> None:
    """Build the CPU runtime in a process of its own, which outlives this one; not where another one is at it."""
    import subprocess
    import sys

    folder = cache_folder() / "cpu"
    marker = folder / f"building-{std}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if marker.exists() and time.time() - marker.stat().st_mtime < _BUILD_S:
            return
        marker.touch()
    except OSError:
        return  # a cache that cannot be written cannot keep the runtime either
    code = (
        "import os, sys; from pathlib import Path; from engine.cpu.toolchain import find_toolchain, prepare; "
        "os.nice(10); prepare(find_toolchain(), Path(sys.argv[1]), sys.argv[2])"
    )
    subprocess.Popen(
        [sys.executable, "-I", "-c", code, str(folder), std],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, cwd="/",
    )  # fmt: skip


def _instances(target: Target) -> list[str]:
    """The name expressions to compile a kernel without a spec by: those that its launches write out."""
    unit = parse(target.program.data, target.path)
    kernel = unit.kernel(target.kernel)
    if not kernel.template_parameters:
        return [kernel.qualified]
    found: dict[str, None] = {}
    for site in sites(target.program, kernel.qualified):
        owner = parse(target.program.files[site.path], site.path)
        generic = any(f.name == site.function and f.template_parameters for f in owner.functions)
        if site.template_args and not generic and _LITERAL.fullmatch(site.template_args):
            found[f"{kernel.qualified}<{site.template_args}>"] = None
    return list(found)[:4]


def _finding(target: Target, kind: Kinds, text: str) -> Finding:
    return Finding(target.path, target.line, target.kernel, kind, text)


def _of(target: Target, error: OptimlError, kind: Kinds) -> Finding:
    return _problem(target.path, target.kernel, target.line, error, kind)


def _problem(path: str, kernel: str, line: int, error: OptimlError, kind: Kinds) -> Finding:
    """An error as a finding: at its own line where that is in this file, else at the kernel's, with its place in the text."""
    where, _, number = error.where.rpartition(":")
    text = " ".join(f"{error.what}; {error.do}".split() if error.do else error.what.split())
    if where == path and number.isdigit():
        line = int(number)
    elif where and error.where != path:
        text = f"{text} ({error.where})"
    return Finding(path, line, kernel or "(file)", kind, text)

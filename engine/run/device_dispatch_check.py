"""Dispatch by device held to what was verified: every kernel's machine code and launches on every architecture, and the whole."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from engine.compile.built import Built
from engine.compile.kept_whole import WholeBuilds
from engine.compile.nvcc import find_nvcc
from engine.compile.nvrtc import NvrtcCompiler
from engine.compile.whole import WholeFile, WholeOptions
from engine.errors import CompileError, OptimlError, RefusedError
from engine.evaluate.build import Builder
from engine.model import Guardrail, Program
from engine.predict.targets import target_for
from engine.run.device_dispatch import DeviceDispatch, Variant, refuse, write_dispatch
from engine.run.machine import Machine
from engine.run.suggestion_gate import Gate, SuggestionConditions
from engine.run.whole_check import BUILT, OTHERS, VERIFIED
from engine.settings.config import Guardrails
from engine.spec.kernel_spec import KernelSpec
from engine.tune.dispatch import same_code
from engine.verify.whole_build import kernel_problem, same_kernels, with_lines_of

_SOURCES = (".cu", ".cpp", ".cc", ".cxx")


@dataclass(frozen=True)
class DispatchRequest:
    """One kernel of the repository at `root`, and what is suggested for each kind of device."""

    root: Path
    spec: KernelSpec
    spec_path: str | None
    original: Program
    variants: tuple[Variant, ...]


@dataclass(frozen=True)
class DeviceBranch:
    """One kind of device, and the kernel that it launches."""

    device: str
    arch: str
    kernel: str


@dataclass(frozen=True)
class CheckedDispatch:
    """The program with dispatch code; `refused` says why it is no suggestion, "" where it is one."""

    program: Program
    branches: tuple[DeviceBranch, ...]
    guardrails: tuple[Guardrail, ...]
    refused: str


def device_dispatch(
    request: DispatchRequest, machine: Machine, limits: Guardrails, targets: Sequence[str] = ()
) -> CheckedDispatch:
    """Write the dispatch code and check it for every kind of device and for the targets of the settings.

    Raises RefusedError where none can be written, and where its code is not what was verified.
    """
    archs = tuple(dict.fromkeys((*(v.arch for v in request.variants), *targets)))
    with ExitStack() as held:
        compilers = {
            arch: held.enter_context(NvrtcCompiler(arch, cache=machine.cache / "compile", sandbox=machine.box, jobs=1))
            for arch in archs
        }
        checks = [DispatchCheck(request, arch, compiler) for arch, compiler in compilers.items()]
        written = write_dispatch(request.original, request.spec, request.variants)
        guarded = {c for check in checks for c in check.not_compiled(written)}
        if guarded:
            written = write_dispatch(request.original, request.spec, request.variants, guarded)
            if left := sorted(c for check in checks for c in check.not_compiled(written)):
                refuse(f"the kernel {written.kernels[left[0]]} does not compile for every device", request.spec.file)
        for check in checks:
            check.same(written)
    conditions = SuggestionConditions(limits)
    gate = Gate(machine, request.spec, request.root, request.spec_path, conditions)
    verdicts = _whole(request, written, checks, machine)
    if not any(v.verdict == "failed" for v in verdicts):
        verdicts += gate.whole(request.original, written.program)
    refused = next((f"{v.name}: {v.detail}" for v in verdicts if v.verdict == "failed"), "")
    branches = tuple(
        DeviceBranch(v.device, v.arch, written.kernels.get(v.capability, request.spec.kernel)) for v in request.variants
    )
    return CheckedDispatch(written.program, branches, verdicts, refused)


class DispatchCheck:
    """The compiled dispatch code for one architecture, with the device that has it (None: a target of the settings)."""

    def __init__(self, request: DispatchRequest, arch: str, compiler: NvrtcCompiler) -> None:
        self._request, self.arch, self._compiler = request, arch, compiler
        self.variant = next((v for v in request.variants if v.arch == arch), None)
        self.entries: tuple[str, ...] = ()  # of the verified kernel, once `same` was asked
        self.copies: tuple[str, ...] = ()  # of its copy

    def not_compiled(self, written: DeviceDispatch) -> list[int]:
        """The capabilities whose kernels do not compile here."""
        found: list[int] = []
        for capability, kernel in written.kernels.items():
            builder = self._builder(_renamed(self._request.spec, kernel))
            try:
                builder.compile(builder.slice(written.program), builder.expressions)
            except CompileError:
                found.append(capability)
        return found

    def same(self, written: DeviceDispatch) -> None:
        """Raises RefusedError where the original's kernel, or this device's, differs from the verified one."""
        spec, variant = self._request.spec, self.variant
        self._equal(written, self._request.original, spec)
        if variant is not None and variant.program is not None:
            own = _renamed(spec, written.kernels[variant.capability])
            self.entries, self.copies = self._equal(written, variant.program, own)

    def _equal(
        self, written: DeviceDispatch, verified: Program, spec: KernelSpec
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The entries of both. Raises RefusedError where they differ."""
        expected, found = self._built(verified, self._request.spec), self._built(written.program, spec)
        if not same_code(found, expected):
            refuse(f"'{spec.kernel}' differs from the verified machine code and launch for {self.arch}", spec.file)
        return expected.binary.entries, found.binary.entries

    def _built(self, program: Program, spec: KernelSpec) -> Built:
        try:
            return self._builder(spec).original(program)
        except RefusedError:
            raise
        except OptimlError as error:
            refuse(f"{spec.kernel} for {self.arch}: {error.what}", error.where)

    def _builder(self, spec: KernelSpec) -> Builder:
        return Builder(spec, self._request.root, self._compiler, target_for(self.arch), self._request.spec_path)


def _renamed(spec: KernelSpec, kernel: str) -> KernelSpec:
    """The spec of a copied kernel, whose launch only host code has."""
    return replace(spec, steps=(replace(spec.steps[0], kernel=kernel, launch=None),))


def _whole(
    request: DispatchRequest, written: DeviceDispatch, checks: Sequence[DispatchCheck], machine: Machine
) -> tuple[Guardrail, ...]:
    """The file built by nvcc for each device: it builds, and every kernel in it is one of the original's or a verified copy."""
    compiled, original = request.spec.compile, request.original
    unit = compiled.unit or original.kernel_file
    if find_nvcc() is None:
        return (Guardrail(BUILT, "not checked", "nvcc is not installed"),)
    if not unit.endswith(_SOURCES):
        return (Guardrail(BUILT, "not checked", "the kernel's file is a header"),)
    builds = WholeBuilds(machine.box, machine.cache / "whole")
    instances = [f"{s.kernel}<{s.template_args}>" for s in request.spec.steps if s.template_args]
    copies = [entry for check in checks for entry in check.copies]

    def build(program: Program, arch: str) -> WholeFile:
        files = {p: with_lines_of(original.files[p], d) for p, d in program.files.items() if not p.endswith(".toml")}
        return builds.build(
            files, unit, WholeOptions(compiled.defines, compiled.std, compiled.include, arch), instances
        )

    for check in checks:
        if check.variant is None:
            continue
        arch = check.arch
        try:
            before = build(original, arch)
            own = before if check.variant.program is None else build(check.variant.program, arch)
        except OptimlError as error:
            return (Guardrail(BUILT, "not checked", f"{unit} cannot be built here: {error.what}"),)
        try:
            after = build(written.program, arch)
        except OptimlError as error:
            return (Guardrail(BUILT, "failed", f"{unit} for {arch}: {error.what}"),)
        if other := kernel_problem(before, after, request.spec, copies):
            return (Guardrail(OTHERS, "failed", f"{unit} for {arch}: {other}"),)
        if not same_kernels(own, after, check.entries, check.copies):
            return (Guardrail(VERIFIED, "failed", f"{unit} for {arch}"),)
    return tuple(Guardrail(name, "passed") for name in (BUILT, OTHERS, VERIFIED))

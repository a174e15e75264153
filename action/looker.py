"""What a review of one kernel takes besides a device: its spec, what earlier reviews found of it, the texts that the review shows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from action.kept_reviews import KeptReviews, key_of
from action.kernel_review import Prepared, Reviewed, said
from bot.baseline import Baseline, device_name, spec_name
from bot.bundle import Comparison, History, Looked
from bot.changed import ChangedKernel
from engine.campaign.headroom import predicted_headroom
from engine.cuda.load import load_program
from engine.cuda.parse import parse
from engine.cuda.patch import make_patch
from engine.errors import OptimlError, UsageError
from engine.model import Program
from engine.run.ready_spec import SpecMaker
from engine.run.spec_writing import with_lines
from engine.settings.config import Config
from engine.spec.find import find_spec
from engine.spec.kernel_spec import KernelSpec

if TYPE_CHECKING:
    from engine.llm.session import LlmSettings
    from engine.run.machine import Machine
    from engine.settings.memory_settings import MemorySettings


@dataclass(frozen=True)
class Where:
    """What reviews are made on, as their keys and the baseline name it."""

    mode: Literal["measured", "predicted"]
    arch: str
    name: str


@dataclass(frozen=True)
class Sides:
    """The trees of base and head, and the folder for results."""

    base: Path
    head: Path
    out: Path


@dataclass(frozen=True)
class Proposing:
    """Who proposes edits, the language model among them; `search`: whether anything is searched, or only compared; `memory`: lessons
    of earlier runs."""

    proposers: tuple[str, ...]
    model: LlmSettings | None
    search: bool
    memory: MemorySettings | None = None


class Looker:
    """What a review of one kernel takes besides a device: its spec, what earlier reviews found, the texts that the review shows."""

    def __init__(
        self, sides: Sides, config: Config, proposing: Proposing, past: Baseline, kept: KeptReviews
    ) -> None:  # fmt: skip
        self.sides, self.config, self.proposing = sides, config, proposing
        self._base, self._head = sides.base, sides.head
        self._past, self._kept = past, kept
        self._place: tuple[Machine, Where] | None = None
        self.plan: tuple[object, ...] = ()  # how the time is divided
        self.answered = False  # the last kernel, by an earlier review

    def on(self, machine: Machine, where: Where) -> None:
        """Take a machine to read and predict with; kernels are reviewed on `where`."""
        self._place = machine, where

    @property
    def where(self) -> Where:
        """What kernels are reviewed on."""
        return self._reading[1]

    @property
    def _reading(self) -> tuple[Machine, Where]:
        if self._place is None:
            raise RuntimeError("no machine was taken")
        return self._place

    def headroom(self, changed: ChangedKernel) -> float:
        """How many times faster the kernel could be, as predicted. Raises OptimlError where that cannot be said."""
        spec, spec_path, _ = self._spec(changed)
        return predicted_headroom(spec, spec_path, self._head / changed.path, self._head, self._reading[0]).ratio

    def prepared(self, changed: ChangedKernel, *, draft: bool) -> Prepared | Looked:
        """What a device has to do for a kernel; where it has nothing to do, what there is to say of it.

        `draft`: there is time to draft a spec for a kernel without one.
        """
        self.answered = False
        try:
            spec, spec_path, source = self._spec(changed)
        except OptimlError as error:
            found = Looked(changed, "none", error=said(error, self._head, self._base))
            return (self._drafted(found, error) if draft else None) or found
        key = self._key(changed, spec, spec_path, source)
        kept = self._kept.get(key, changed)
        if kept is not None:
            self.answered = True
            return kept
        found, base = Looked(changed, source), None
        if changed.base_path:
            try:
                base = self._base_program(changed, spec)
            except OptimlError as error:
                why = said(error, self._head, self._base)
                found = dataclasses.replace(found, comparison=Comparison("not compared", None, why))
        return Prepared(found, spec, spec_path, key, base)

    def finished(self, prepared: Prepared, reviewed: Reviewed) -> Looked:
        """What the review says of a kernel."""
        found, changed = prepared.found, prepared.found.changed
        if prepared.text:
            return found if reviewed.error else dataclasses.replace(found, draft=self._with_spec(prepared))
        comparison = reviewed.comparison or found.comparison
        restore = self._restore(changed) if comparison is not None and comparison.standing == "slower" else ""
        history = self._history(changed, prepared.spec, comparison, reviewed.device)
        found = dataclasses.replace(
            found, comparison=comparison, history=history, restore=restore, result=reviewed.result, patch=reviewed.patch,
            error=reviewed.error,
        )  # fmt: skip
        return self._kept.put(prepared.key, found)

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
        where, asked = self.where, self.proposing
        return key_of([
            metadata.version("optiml-cuda"), where.name, where.mode, where.arch, changed.path, changed.kernel, changed.reasons,
            source, programs, dataclasses.asdict(dataclasses.replace(spec, origin="")), asked.search, self.plan, asked.proposers,
            None if asked.model is None else dataclasses.asdict(asked.model), dataclasses.asdict(self.config), self._past,
        ])  # fmt: skip

    def _base_program(self, changed: ChangedKernel, spec: KernelSpec) -> Program:
        """The base's program of a kernel, under the head's names."""
        kernels, include = [step.kernel for step in spec.steps], spec.compile.include
        base = load_program(self._base / changed.base_path, kernels=kernels, include=include)
        return Program(_renamed(base.files, changed.base_path, changed.path), changed.path)

    def _drafted(self, found: Looked, error: OptimlError) -> Prepared | None:
        """A kernel without a spec with one that is drafted; None where none can be, or where it has one that is wrong."""
        if not isinstance(error, UsageError) or not self.proposing.search:
            return None
        try:
            ready = SpecMaker(self._head, self._reading[0].box).ready(
                self._head / found.changed.path, found.changed.kernel
            )
        except (OptimlError, KeyError, UnicodeDecodeError):
            return None  # why there is no spec is said anyway
        return Prepared(found, ready.spec, None, text=ready.text) if ready.text else None

    def _with_spec(self, prepared: Prepared) -> str:
        """The patch that puts a drafted spec above a kernel; "" where it cannot be put there."""
        changed, options = prepared.found.changed, prepared.spec.compile
        try:
            program = load_program(
                self._head / changed.path, kernels=[s.kernel for s in prepared.spec.steps], include=options.include,
                unit=options.unit,
            )  # fmt: skip
            after = with_lines(program.data, changed.path, changed.kernel, prepared.text)
            patch = make_patch(
                Program({changed.path: program.data}, changed.path), Program({changed.path: after}, changed.path)
            )
            return patch.decode("utf-8")
        except (OptimlError, KeyError, UnicodeDecodeError):
            return ""

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

    def _history(
        self, changed: ChangedKernel, spec: KernelSpec, comparison: Comparison | None, device: Mapping[str, str]
    ) -> History | None:  # fmt: skip
        measurement = comparison.measurement if comparison is not None else None
        if measurement is None or not self._past.entries:
            return None
        name = device_name(self.where.mode, device, metadata.version("optiml-cuda"))
        return self._past.history(changed.base_path, changed.kernel, name, spec_name(spec), measurement.cases)

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


def _renamed(files: Mapping[str, bytes], old: str, new: str) -> dict[str, bytes]:
    return {new if path == old else path: data for path, data in files.items()}

"""Conditions that an edit adds: each must have been seen true and false in runs whose results were compared.

Code behind a condition that no check met is not verified, however rare the condition is by construction. What the original itself
leaves unseen in the same runs, in the same words, is no fault of an edit.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from engine.compile.built import Built
from engine.cpu import CpuMachine
from engine.cpu.condition_marks import MarkedCondition
from engine.cpu.jobs import CpuBinary, CpuJob
from engine.cuda.kernel import LaunchSite
from engine.cuda.launch import sites
from engine.cuda.parse import parse
from engine.cuda.terms import kernel_terms
from engine.errors import CompileError, OptimlError
from engine.model import Guardrail, Program
from engine.spec.data import scalars
from engine.spec.kernel_spec import KernelSpec

NAME = "conditions of the edit met"
_FALSE, _TRUE, _VARIES = 1, 2, 4  # of CpuRun.seen
_MOST_SHOWN = 3
_NAME = re.compile(r"[A-Za-z_]\w*")
_EFFECT = re.compile(r"\w\s*\(|\+\+|--|(?<![=!<>])=(?!=)")  # a call or a cast, a step, an assignment

Unseen = tuple[str, bool]  # the words of a condition, and the outcome that no run had


@dataclass
class AddedConditions:
    """The judge of one original's edits."""

    machine: CpuMachine
    original: Built
    strict: bool
    spec: KernelSpec
    _own: Built | None = field(default=None, init=False)
    _ran: Sequence[CpuJob] | None = field(default=None, init=False)  # the jobs of the original
    _seen_before: dict[int, int] = field(default_factory=dict, init=False)  # what it met without these

    def watched(self, built: Built) -> tuple[Built, Guardrail | None]:
        """A candidate, built or not, whose runs report the outcomes of its conditions; as it is, with the guardrail, where they cannot."""
        try:
            return replace(built, extra=self._marked(built)), None
        except CompileError as error:
            return built, Guardrail(NAME, "failed", f"the conditions cannot be marked: {error.what}")

    def watched_original(self) -> Built:
        """The original likewise, for runs of it that anyhow take place; as it is where its conditions cannot be marked."""
        if self._own is None:
            self._own, _ = self.watched(self.original)
        return self._own

    def _marked(self, built: Built) -> CpuBinary:
        # All texts of one original have its path and spec: a candidate need not be compiled for its marked form to be.
        return self.machine.marked(built.text, self.original.extra, built.expressions, strict=self.strict)

    def judge(self, built: Built, jobs: Sequence[CpuJob]) -> Guardrail:
        """The guardrail on a watched candidate after its runs; `jobs` are further ones of the original, run where they decide."""
        binary: CpuBinary = built.extra
        # What stands in the original as well holds no condition that the edit adds.
        if binary.unread_in and not binary.unread_in <= self._own_unread():
            return Guardrail(NAME, "failed", f"the conditions from line {binary.unread} on cannot be read")
        if shared := self._shared(binary, jobs):
            return Guardrail(
                NAME, "failed", f"line {shared.line}: {shared.text} are one pointer, which __restrict__ excludes"
            )
        missing = self._unseen(built)
        if missing:
            excused = self._unseen_in_original(missing, jobs)
            missing = {what: condition for what, condition in missing.items() if what not in excused}
        if not missing:
            count = sum(
                bool(binary.seen.get(at, 0) & _VARIES and not c.apart) for at, c in enumerate(binary.conditions)
            )
            return Guardrail(NAME, "passed", f"{count} conditions, each true and false in some check")
        shown = [f"line {condition.line}: {_said(*what)}" for what, condition in missing.items()][:_MOST_SHOWN]
        more = f" and {len(missing) - len(shown)} more" if len(missing) > len(shown) else ""
        unmet = f"no check met {'; '.join(shown)}{more}"
        if built.by_rules:  # a rule's guards are for what no case has; nobody hides a size behind them
            return Guardrail(NAME, "not checked", unmet)
        return Guardrail(NAME, "failed", f"{unmet}: leave it out, or add a check case that meets it")

    def words(self, built: Built) -> frozenset[str]:
        """The names in the conditions of a watched candidate that no run has met."""
        return frozenset(word for text, _ in self._unseen(built) for word in _NAME.findall(text))

    def _own_unread(self) -> frozenset[str]:
        own: CpuBinary = self.watched_original().extra
        return own.unread_in

    def _unseen_in_original(
        self, missing: Mapping[Unseen, MarkedCondition], jobs: Sequence[CpuJob]
    ) -> frozenset[Unseen]:
        own: CpuBinary = self.watched_original().extra
        if {words for words, _ in missing}.isdisjoint(_words(condition) for condition in own.conditions):
            return frozenset()
        self._run_original(own, jobs)
        return frozenset(self._unseen(self.watched_original()))

    def _run_original(self, own: CpuBinary, jobs: Sequence[CpuJob]) -> None:
        """Only these: what the original met by chance in runs of another confirmation an edit need not meet in its own."""
        if self._ran is jobs:
            return
        if self._ran is None:
            self._seen_before = dict(own.seen)
        self._ran = jobs
        own.seen.clear()
        own.seen.update(self._seen_before)
        for run in self.machine.run_many(own, jobs):
            own.saw(run)

    def _shared(self, binary: CpuBinary, jobs: Sequence[CpuJob]) -> MarkedCondition | None:
        """Two restricted pointers that were one in a run, where those of the original never were."""
        found = _one_pointer(binary)
        if not found:
            return None
        own: CpuBinary = self.watched_original().extra
        if any(condition.apart for condition in own.conditions):
            self._run_original(own, jobs)
        excused = _one_pointer(own)
        return next((condition for words, condition in found.items() if words not in excused), None)

    def _unseen(self, built: Built) -> dict[Unseen, MarkedCondition]:
        binary: CpuBinary = built.extra
        extents = grid_extents(built.program, self.spec) if any(c.bound for c in binary.conditions) else frozenset()
        seen = dict(binary.seen)
        for number, condition in enumerate(binary.conditions):
            bound = condition.bound
            if bound and (bound.function, bound.axis, bound.parameter) in extents:
                seen[number] = seen.get(number, 0) | (_TRUE if bound.never else _FALSE)
        return unseen(binary.conditions, seen, positive_parameters(self.spec))


def unseen(
    conditions: Sequence[MarkedCondition], seen: Mapping[int, int], positive: frozenset[str] = frozenset()
) -> dict[Unseen, MarkedCondition]:
    """The outcomes that no run had. A condition that no run came to lies behind another one; a constant has one outcome."""
    found: dict[Unseen, MarkedCondition] = {}
    for number, condition in enumerate(conditions):
        mask = seen.get(number, 0)
        words = _words(condition)
        if condition.apart:
            continue
        if not condition.marked or (condition.label and not mask):
            found.setdefault((words, True), condition)
        elif mask & _VARIES and not condition.label and condition.positive not in positive:
            for outcome, bit in ((False, _FALSE), (True, _TRUE)):
                if not mask & bit:
                    found.setdefault((words, outcome), condition)
    return found


def grid_extents(program: Program, spec: KernelSpec) -> frozenset[tuple[str, str, str]]:
    """Kernel, axis and parameter, where every launch that the program shows has as many blocks as it passes for the parameter."""
    found: set[tuple[str, str, str]] = set()
    for step in spec.steps:
        try:
            kernel = parse(program.data, program.kernel_file).kernel(step.kernel)
            launches = sites(program, step.kernel)
            grids = [kernel_terms(program, launch, kernel, ())[0] for launch in launches if not _with_effects(launch)]
        except (KeyError, OptimlError):
            continue
        if grids and len(grids) == len(launches) and step.launch is None:
            for at, axis in enumerate("xyz"):
                extents = {grid[at] if at < len(grid) else "" for grid in grids}
                if len(extents) == 1:
                    found.add((kernel.name, axis, extents.pop()))
    return frozenset(found)


def _with_effects(launch: LaunchSite) -> bool:
    """Whether an argument may have another value each time it is evaluated."""
    return any(_EFFECT.search(argument) for argument in launch.arguments)


def _one_pointer(binary: CpuBinary) -> dict[str, MarkedCondition]:
    pairs = ((number, condition) for number, condition in enumerate(binary.conditions) if condition.apart)
    return {condition.text: condition for number, condition in pairs if binary.seen.get(number, 0) & _TRUE}


def positive_parameters(spec: KernelSpec) -> frozenset[str]:
    """The whole numbers among the kernel's parameters that are above zero in every case."""
    cases = [scalars(spec, case) for case in (*spec.check, *spec.time)]
    return frozenset(name for name in cases[0] if all(_positive(case[name]) for case in cases))


def _positive(value: np.generic | bytes) -> bool:
    return isinstance(value, np.integer) and int(value) > 0


def _words(condition: MarkedCondition) -> str:
    return "".join(condition.text.split())


def _said(words: str, outcome: bool) -> str:
    return f"'{words}'" if outcome else f"'{words}' being false"

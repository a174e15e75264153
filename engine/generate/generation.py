"""OptiML-G put together: a sentence in, the fastest kernel that matches the reference out.

The first right kernel is the original of everything that follows: of the kernels that agree with the oracle on all checks, the
simplest one (that can be widened to float64) becomes the yardstick, every other one is verified and timed against it by the
engine's own evaluator, and what is written is held against the oracle once more, on fresh inputs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import random
import re
import secrets
import textwrap
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.cuda.load import load_program
from engine.errors import MachineError, NotPredictedError, OptimlError, RefusedError, UsageError
from engine.evaluate.guardrails import LIMITS
from engine.generate.author import DRAFTS, Author, Deferred, StrategyDraft, workplace
from engine.generate.contest import Candidate, Contest, distinct, simplest, stem
from engine.generate.generation_result import RESULT, GenerationResult, StrategyResult, write
from engine.generate.messages import Prompts
from engine.generate.model_access import Door
from engine.generate.oracle import Oracle, Reference, ReferenceError_, prepare, repeats
from engine.generate.strategies import STRATEGIES, AuthorStrategy
from engine.generate.trial import Trial, check_plan
from engine.llm.lesson_store import Memory
from engine.llm.lessons import Lessons
from engine.llm.plain_words import plain
from engine.llm.session import EXCHANGES, LlmSettings
from engine.model import Outcome, Program
from engine.predicted_number import approximate
from engine.process.interrupt import NEVER, Interrupt
from engine.run.machine import Machine
from engine.run.optimization import Coverage, Options
from engine.run.provenance import provenance
from engine.run.result import OptimizationResult
from engine.search.progress import Budget, Progress
from engine.settings.config import Guardrails
from engine.settings.folders import ignore_folder
from engine.settings.memory_settings import MemorySettings
from engine.spec.find import find_spec

_MOST_SENTENCE = 2_000
_TIMED = (Outcome.ACCEPTED, Outcome.SCREENED, Outcome.SLOWER, Outcome.NO_DIFFERENCE, Outcome.UNSTABLE)
UNCONFIRMED = (
    "The reference was drafted by a model and not confirmed by a person: read it before you rely on this kernel."
)


@dataclass(frozen=True)
class GenerateOptions:
    """What a generation is asked for. `work` keeps everything but the kernel itself; `out` is the file written, None: in `work`.

    `budget` is the search's after generating, None: generate only. `seeds`: so many kernels at most, of different strategies,
    start that search. `repairs`: how many times a kernel that failed goes back to the model.
    """

    sentence: str
    llm: LlmSettings
    work: Path
    reference: Reference | None = None
    out: Path | None = None
    budget: Budget | None = field(default_factory=lambda: Budget(seconds=60.0))
    strategies: tuple[AuthorStrategy, ...] = STRATEGIES
    seeds: int = 3
    repairs: int = 2
    seed: int = 0
    proposers: tuple[str, ...] = ("rules",)
    guardrails: Guardrails = LIMITS
    targets: tuple[str, ...] = ()
    profile: Coverage = "best"
    command: tuple[str, ...] = ()
    interrupt: Interrupt = NEVER
    memory: MemorySettings | None = None  # lessons of earlier runs, for the prompts and for the search


@dataclass
class Told:
    """What a person is told while it runs. Each may be called from any thread."""

    step: Callable[[str], None] = lambda text: None
    draft: Callable[[StrategyDraft], None] = lambda draft: None
    reference: Callable[[Reference, int], None] = lambda reference, drafts: None
    progress: Callable[[Progress], None] = lambda progress: None


@dataclass(frozen=True)
class _Choice:
    """What may be written: how fast it is (None: nobody knows), whose it is, and the machine code that it must have, where that was
    verified."""

    program: Program
    ratio: float | None
    stem: StrategyDraft
    identity: tuple[object, ...] | None = None


def sentence_of(text: str) -> str:
    """The sentence as one line of plain words, for comments and results. Raises UsageError where there is none."""
    line = plain(text, _MOST_SENTENCE)
    if not any(c.isalpha() for c in line):
        raise UsageError(
            "the description is empty", do='describe what the kernel computes, in quotes: "row-wise softmax of …"'
        )
    if len(text) > _MOST_SENTENCE:
        raise UsageError(f"the description has {len(text)} characters", do=f"use at most {_MOST_SENTENCE}")
    return line


def generate(options: GenerateOptions, machine: Machine, told: Told | None = None) -> GenerationResult | None:
    """Generate a kernel and write it; the result without a file where no strategy gave one. None: questions wait in the batch.

    Raises UsageError, RefusedError (no task, drafts that disagree, a spec that proves nothing), ReferenceError_, ChatError and
    MachineError.
    """
    sentence_of(options.sentence)
    _check_folder(options.work)
    if options.memory is not None:
        Memory(options.memory.path).close()  # one that cannot be opened ends the run before anything is paid for
    ignore_folder(options.work)
    door = Door(options.llm, options.work)
    run = _GenerationRun(options, machine, door, told or Told())
    try:
        return run.result()
    except Deferred:
        return None
    finally:
        run.close()
        door.close()


@dataclass(frozen=True)
class _Ending:
    """How a generation ended: the verdict ("": the chosen kernel's), the search, the kernel, the fresh checks that it passed."""

    verdict: str
    searched: OptimizationResult | None = None
    chosen: _Choice | None = None
    checks: int = 0


class _GenerationRun:
    """One generation, step by step."""

    def __init__(self, options: GenerateOptions, machine: Machine, door: Door, told: Told) -> None:
        self._options, self._machine, self._door, self._told = options, machine, door, told
        self._begin = time.monotonic()
        self._random = random.Random(secrets.randbits(64))
        self._open = contextlib.ExitStack()
        self._notes: list[str] = []
        self._device: dict[str, Any] = {"arch": machine.arch}

    def close(self) -> None:
        self._open.close()

    # ---- the whole

    def result(self) -> GenerationResult | None:
        """See `generate`. Raises Deferred."""
        o = self._options
        given = [self._oracle(o.reference)] if o.reference is not None else []
        text = o.reference.source.decode("utf-8", "replace") if o.reference is not None else ""
        prompts = Prompts(o.sentence, self._machine.target, text, o.reference.function if o.reference else "")
        key = hashlib.sha256(f"{o.sentence}\0{text}".encode()).hexdigest()[:16]
        author = Author(self._door, prompts, key, repairs=o.repairs)
        self._told.step("asking the model for the task")
        required, optional = (given[0].required, given[0].optional) if given else ((), ())
        self.task = author.task(required, optional, cpu=self._machine.mode == "predicted")
        self._place()
        self._references(author, given)
        self._told.step("running the reference")
        self.known = prepare(self.spec, self.task, self.oracles, check_plan(self.spec, self._random, real=False))
        repeats(self.spec, self.task, self.oracles[0], self.known[0])
        self._told.reference(self.reference, len(self.oracles))
        self.trial = Trial(self.task, self.spec, self._root, self._machine, self.skeleton, self.known)
        self._open.callback(self.trial.close)
        drafts = self._drafts(author, prompts)
        if self._door.waiting:
            raise Deferred
        with self._options.interrupt.patient():  # what the model answered was paid for
            return self._compete(author, drafts)

    def _oracle(self, reference: Reference) -> Oracle:
        # Only a reference that computes with CuPy needs a GPU.
        gpu = self._machine.mode == "measured" and b"cupy" in reference.source
        oracle = Oracle(reference, self._machine.box, gpu=gpu, device=self._machine.device)
        self._open.callback(oracle.close)
        return oracle

    def _references(self, author: Author, given: list[Oracle]) -> None:
        """The user's reference, or drafts of which at least two answer as the task says."""
        self.oracles = given
        if given:
            self._keep(given[0].reference, "reference.given.py")
            return
        self._told.step("drafting a reference")
        problem: ReferenceError_ | None = None
        first = check_plan(self.spec, self._random, real=False)[:1]
        for draft in author.references(self.task):
            try:
                oracle = self._oracle(draft)
                prepare(self.spec, self.task, [oracle], first)
                self.oracles.append(oracle)
            except ReferenceError_ as error:
                problem = error
        if len(self.oracles) < 2:
            raise RefusedError(
                f"{len(self.oracles)} of {DRAFTS} drafts of a reference can be run, and two must agree"
                f"{': ' + problem.what if problem else ''}", "", "give your own reference with --reference",
            )  # fmt: skip
        self._keep(self.oracles[0].reference, "reference.py")
        self._notes.append(UNCONFIRMED)

    def _keep(self, reference: Reference, name: str) -> None:
        """Take a reference as the one that counts, and keep its text beside the result."""
        self.reference = reference
        try:
            for other in ("reference.py", "reference.given.py"):
                (self._options.work / other).unlink(missing_ok=True)
            (self._options.work / name).write_bytes(reference.source)
        except OSError as error:
            raise _unwritable(error, self._options.work) from None

    def _place(self) -> None:
        """Our file, with an empty kernel, where the strategies' kernels are placed. Raises RefusedError."""
        options = self._options
        given = options.reference
        reference = f"UNCONFIRMED: {UNCONFIRMED}"
        if given is not None:
            reference = f"Reference: {plain(given.function)} of {plain(given.name)}."
        # No comment of ours may read as a line of the spec.
        task = re.sub(r"(?i)optiml\s*:", "OptiML", sentence_of(options.sentence))
        header = (
            *textwrap.wrap(f"Task: {task}", 110),
            *textwrap.wrap(f"Generated by OptiML from this description. {reference}", 110),
        )
        self._root = options.work.resolve() / "files"
        name = f"{self.task.wrapper}.cu"
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            # A repository of its own: what lies around the folder is no part of it.
            (self._root / ".git").mkdir(exist_ok=True)
            (self._root / name).write_text(self.task.file(header), encoding="utf-8")
        except OSError as error:
            raise _unwritable(error, self._root) from None
        self._path = self._root / name
        try:
            self.spec, _ = find_spec(self._root, self._path)
            self.skeleton = load_program(self._path, kernels=self.task.kernels)
        except OptimlError as error:
            raise RefusedError(
                f"no kernel spec can be made from the task: {error.what}", "", "describe it in other words"
            ) from None

    def _drafts(self, author: Author, prompts: Prompts) -> list[StrategyDraft]:
        """Every strategy's kernel, asked for side by side."""
        o = self._options
        place = workplace(self.skeleton, self.spec, self._machine.target, self.skeleton)
        if o.memory is not None:
            with contextlib.closing(Lessons(o.memory, self.spec, self._machine.target)) as lessons:
                prompts.lessons = tuple(lessons.recall_any())
                told = len(prompts.lessons)
                self._notes.append(
                    lessons.trouble or f"the model was told {told} lesson{'s' * (told != 1)} of earlier runs"
                )
        reference = self.reference.source.decode("utf-8", "replace")
        self._told.step(f"asking {len(o.strategies)} strateg{'y' if len(o.strategies) == 1 else 'ies'}")

        def one(strategy: AuthorStrategy) -> StrategyDraft:
            draft = author.draft(self.task, strategy, reference, place, self.trial)
            self._told.draft(draft)
            return draft

        with ThreadPoolExecutor(max(1, o.llm.concurrency), thread_name_prefix="strategy") as executor:
            try:
                return list(executor.map(one, o.strategies))
            except BaseException:
                self._door.close()  # whoever still waits for an answer waits no longer
                executor.shutdown(wait=False, cancel_futures=True)
                raise

    # ---- the competition

    def _compete(self, author: Author, drafts: Sequence[StrategyDraft]) -> GenerationResult:
        right = [d for d in drafts if d.right]
        if not right:
            counts = ", ".join(f"{d.strategy.name}: {d.ending.replace('_', ' ')}" for d in drafts)
            return self._result(author, drafts, [], _Ending(f"No strategy produced a correct kernel ({counts})."))
        self._told.step("choosing the baseline")
        o = self._options
        search = Options(
            path=self._path, kernel=self.task.kernels[0], budget=o.budget or Budget(), seed=o.seed, out=o.work / "optimize",
            profile=o.profile, guardrails=o.guardrails, targets=o.targets, command=o.command, proposers=o.proposers,
            notes=() if self.reference.confirmed else (UNCONFIRMED,), memory=o.memory,
        )  # fmt: skip
        if "llm" in o.proposers:
            search = dataclasses.replace(search, llm=self._door.rest())
        contest = Contest(search, self.spec, self._root, self._machine, self.trial, self._notes)
        try:
            evaluator, yardstick = contest.yardstick(right)
        except NotPredictedError as error:  # right all the same
            self._notes.append(f"the kernels are not compared by speed: {error.what}; {error.do}")
            first = simplest(right)[0]
            assert first.written is not None
            return self._written(author, drafts, [], [_Choice(first.written.program, None, first)], None)
        self._device = contest.device
        try:
            candidates = [yardstick]
            self._told.step(f"timing {len(right)} kernels")
            for draft in right:
                if draft is not yardstick.draft and not o.interrupt.asked:
                    candidate = contest.candidate(evaluator, yardstick, draft)
                    candidates += [candidate] if candidate is not None else []
            ranked = distinct(candidates)
            confirmed = contest.confirmed(evaluator, ranked) if o.budget is None else []
        finally:
            evaluator.close()
        choices: list[_Choice] = []
        result: OptimizationResult | None = None
        if o.budget is not None and not o.interrupt.asked:
            self._told.step("searching for faster versions")
            result, program = contest.search(yardstick, ranked, o.seeds, self._told.progress)
            if program is not None and result.best is not None:
                held = result.best.evaluation.measurement
                same = next((c for c in ranked if c.program == program and c.proposal is not None), None)
                if same is not None and same.draft.written is not None and held is not None:
                    choices.append(_Choice(same.draft.written.program, held.ratio, same.draft, same.built.identity))
                choices.append(_Choice(program, held.ratio if held else 1.0, (stem(result, ranked) or yardstick).draft))
            elif not o.interrupt.asked:  # it had no time for what was right and faster before it
                confirmed = contest.confirmed_anew(yardstick, ranked)
        for c in confirmed:
            assert c.draft.written is not None
            # As it was first placed: without what the yardstick needed beside it.
            choices += [
                _Choice(c.draft.written.program, c.ratio, c.draft, c.built.identity),
                _Choice(c.program, c.ratio, c.draft),
            ]
        choices.append(_Choice(yardstick.program, 1.0, yardstick.draft))
        return self._written(author, drafts, candidates, choices, result)

    # ---- the end

    def _written(
        self, author: Author, drafts: Sequence[StrategyDraft], candidates: Sequence[Candidate],
        choices: Sequence[_Choice], searched: OptimizationResult | None,
    ) -> GenerationResult:  # fmt: skip
        """Hold the choices against the reference once more, on fresh inputs; write the first that agrees."""
        self._told.step("comparing the result with the reference again")
        plan = check_plan(self.spec, self._random, real=self._machine.mode == "measured")
        fresh = prepare(self.spec, self.task, self.oracles, plan)
        for choice in choices:
            tried = self.trial(choice.program, fresh)
            if tried.right and tried.built is not None:
                if choice.identity in (None, tried.built.identity):
                    return self._result(author, drafts, candidates, _Ending("", searched, choice, len(fresh)))
                continue  # other code than what was verified: the next choice is that program itself
            assert tried.failure is not None
            self._notes.append(
                f"rejected at the end, {tried.outcome.value.replace('_', ' ')} against the reference: {tried.failure.reason}"
            )
        return self._result(
            author, drafts, candidates, _Ending("No kernel matches the reference on fresh inputs.", searched)
        )

    def _result(
        self, author: Author, drafts: Sequence[StrategyDraft], candidates: Sequence[Candidate], ending: _Ending
    ) -> GenerationResult:
        o, chosen, searched, verdict = self._options, ending.chosen, ending.searched, ending.verdict
        written = ""
        if chosen is not None:
            target = o.out or o.work / f"{self.task.wrapper}.cu"
            try:
                target.write_bytes(chosen.program.data)
            except OSError as error:
                raise MachineError(
                    f"cannot be written ({error.strerror})", str(target), "choose another --out"
                ) from None
            written = str(target)
            verdict = self._verdict(chosen, drafts)
        best = chosen.stem.strategy.name if chosen is not None else ""
        yardstick = next((c.draft.strategy.name for c in candidates if c.proposal is None), "")
        spent = self._door.budget.spent
        result = GenerationResult(
            sentence=sentence_of(o.sentence), verdict=verdict, kernel=self.task.kernel, mode=self._machine.mode,
            device=self._device, written=written,
            reference={
                "origin": self.reference.origin, "confirmed": self.reference.confirmed, "name": self.reference.name,
                "function": self.reference.function, "asked": len(self.oracles),
                "text": self.reference.source.decode("utf-8", "replace"),
            },
            task={
                "signature": "; ".join(self.task.signatures), "arguments": [dataclasses.asdict(a) for a in self.task.arguments],
                "check": [dict(c.sizes) for c in self.task.check], "time": [dict(c.sizes) for c in self.task.time],
            },
            strategies=tuple(self._strategy(d, candidates, best) for d in drafts), yardstick=yardstick, best=best,
            ratio=chosen.ratio if chosen is not None else None,
            optimized=None if searched is None else {
                "verdict": searched.verdict, "counts": dict(searched.counts), "stopped": searched.stopped,
                "result": "optimize/result.json",
            },
            checks={"each": len(self.known), "written": ending.checks},
            model={"requests": author.requests, "spent": dataclasses.asdict(spent), "model": o.llm.model},
            elapsed_s=time.monotonic() - self._begin, notes=(*dict.fromkeys((*self._notes, *self._machine.notes())),),
            provenance=provenance(o.command),
        )  # fmt: skip
        write(result, o.work)
        return result

    def _strategy(self, draft: StrategyDraft, candidates: Sequence[Candidate], best: str) -> StrategyResult:
        name = draft.strategy.name
        file = ""
        if draft.written is not None:
            file = f"{name}.cu"
            with contextlib.suppress(OSError):
                (self._options.work / file).write_bytes(draft.written.program.data)
        mine = next((c for c in candidates if c.draft is draft), None)
        base = StrategyResult(
            name, draft.strategy.title, draft.ending, draft.reason, draft.idea, draft.plan, draft.requests, draft.repairs,
            draft.right, "best" if name == best else "", file=file,
        )  # fmt: skip
        if mine is None:
            return base
        role = "yardstick" if mine.proposal is None else base.role
        if name == best and mine.proposal is None:
            role = "best"
        first = next(c for c in candidates if c.built.identity == mine.built.identity)
        if first is not mine:
            role = "twin"
        measurement = mine.evaluation.measurement
        reason = mine.evaluation.failure.reason if mine.evaluation.failure else ""
        ending = mine.evaluation.outcome.value if mine.proposal is not None else draft.ending
        if measurement is None:
            return dataclasses.replace(base, ending=ending, reason=reason, role=role)
        is_original = mine.proposal is None
        return dataclasses.replace(
            base, ending=ending, reason=reason, role=role, ratio=1.0 if is_original else measurement.ratio,
            low=1.0 if is_original else measurement.low, high=1.0 if is_original else measurement.high,
            time_us={c.case: c.original_us if is_original else c.candidate_us for c in measurement.cases},
        )  # fmt: skip

    def _verdict(self, chosen: _Choice, drafts: Sequence[StrategyDraft]) -> str:
        right = sum(d.right for d in drafts)
        known = "matches the reference" if self.reference.confirmed else "matches a reference that no person confirmed"
        speed = self._speed(chosen.ratio)
        screened = "" if self._machine.mode == "measured" else "; screened on the CPU, not verified on a GPU"
        return f"{self.task.kernel} {known}: {speed}; {right} of {len(drafts)} strategies produced a correct kernel{screened}."

    def _speed(self, ratio: float | None) -> str:
        if ratio is None:
            return "the simplest correct kernel; speeds cannot be predicted without a GPU"
        if ratio == 1.0:
            return "the simplest correct kernel, and no other is faster"
        measured = self._machine.mode == "measured"
        how = "measured" if measured else f"predicted for {self._machine.arch}, not measured"
        return f"{f'{ratio:.2f}' if measured else approximate(ratio)}× as fast as the simplest correct kernel ({how})"


def _check_folder(work: Path) -> None:
    """A work folder is written over, so it is a new one, an empty one, or one of ours. Raises UsageError."""
    try:
        there = {path.name for path in work.iterdir()} if work.is_dir() else set()
    except OSError as error:
        raise UsageError(f"cannot be read ({error.strerror})", str(work), "choose another --work") from None
    if there and not there & {RESULT, EXCHANGES, "files"}:
        raise UsageError("contains files that are not from optiml generate", str(work), "choose another --work")


def _unwritable(error: OSError, path: Path) -> MachineError:
    return MachineError(f"cannot be written ({error.strerror})", str(path), "choose another --work")

"""The tuner's public function: one template of one kernel, searched under a budget."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from engine.builders.builders import BuildWorkers
from engine.compile.built import Built
from engine.cuda.load import load_program, repository_root
from engine.cuda.patch import make_patch
from engine.errors import OptimlError, RefusedError, UsageError
from engine.evaluate.evaluator import Evaluator
from engine.evaluate.remote import RemoteEvaluator
from engine.llm.feed import Background
from engine.llm.session import EXCHANGES, LlmSettings
from engine.model import PASSED, Evaluation, Program, Refusal
from engine.process.cores import attentive
from engine.run.confirmation import LEAST, Confirmation, Confirmed, Contender, Expected, search_limit_s
from engine.run.dispatch_confirmation import Confirming
from engine.run.earlier_run import identity_of
from engine.run.machine import Machine
from engine.run.model_template import TemplateAuthor, analysis, check_alone
from engine.run.provenance import provenance
from engine.run.result import check_version, keeps_suggestion
from engine.run.suggestion_gate import Gate, SuggestionConditions
from engine.run.tuning_lessons import TuningLessons
from engine.run.tuning_verdict import TuningExtent, configurations, verdict, verdict_with_dispatch
from engine.search.journal import Journal
from engine.search.participants import Builds
from engine.search.progress import CONFIRMING, INTERRUPTED, SPARE, Progress
from engine.settings.folders import results_folder
from engine.spec.find import find_spec
from engine.spec.kernel_spec import KernelSpec
from engine.tune.chosen_template import NoTemplate, make_template
from engine.tune.compiled_probe import Compilers, probe
from engine.tune.dispatch import NothingToSelect, possible
from engine.tune.evaluated_point import Tried
from engine.tune.feasible import Feasible, check_left, feasible
from engine.tune.named_constants import check, written
from engine.tune.space import Point
from engine.tune.strategy import Start, Strategy
from engine.tune.strategy_choice import choose
from engine.tune.template import ConstantTemplate, RuleTemplate, Template, UnusableTemplate, program_at
from engine.tune.tune_options import TuneOptions
from engine.tune.tuner import Reports, TemplateSearch, Tuner
from engine.tune.tuning_result import (
    CONSTANTS_PATCH,
    SCHEMA,
    Constants,
    General,
    ShapeBest,
    SpaceInfo,
    TemplateInfo,
    TuneResult,
    extended,
    write,
)

_RUN_OFF = 3  # points that are timed closely for each shape, and beside the best one. Ours
_RUN_OFF_S = 1.0
_ALIKE, _TOLD_APART = math.log2(1.02), 1.005  # what a search's own timing may take for equal, and `retime` does not
_TOLD = 200  # characters of a template in the journal's settings; with a digest of what is longer
_MANY = 200  # points, from which on their texts are read in processes of their own. Ours
# A shape gets a configuration of its own only where it gains so much over the general one. Ours.
_GAIN = {"measured": 1.01, "predicted": LEAST["predicted"]}


def tune(
    options: TuneOptions, machine: Machine, on_progress: Callable[[Progress], None] = lambda progress: None,
    on_result: Callable[[TuneResult], None] = lambda result: None, llm: LlmSettings | None = None,
) -> TuneResult:  # fmt: skip
    """Tune one kernel; the result is written to `output_folder(options)` too, and `on_result` gets it even where no dispatch code
    could be written, which raises after that. With `llm` a model writes the template.

    Raises UsageError, SpecError, SourceError, CompileError (wrong input), RefusedError (the spec proves nothing, an empty feasible
    set, a template that does not reproduce the original), MachineError. What an earlier run left then stays as it is.
    """
    begin = time.monotonic()
    root = repository_root(options.path)
    spec, spec_path = options.spec or find_spec(root, options.path, options.kernel)
    kernels = [s.kernel for s in spec.steps]
    program = load_program(
        options.path, spec_file=spec_path, kernels=kernels, include=spec.compile.include, unit=spec.compile.unit
    )
    if options.resume:
        check_version(output_folder(options), SCHEMA)
    builder = machine.builder(spec, root, spec_path)
    lessons = TuningLessons(options.memory, spec, machine.target, program)

    def search(template: Template, notes: tuple[str, ...]) -> TuneResult:
        if options.constants and not isinstance(template, RuleTemplate):
            what = "the parameters tuned here are already named constants"
            raise UsageError(what, "--constants", "omit it, or give a rule with --rule")
        points = feasible(template, machine.target)
        threads = ThreadPoolExecutor(machine.jobs, thread_name_prefix="probe")
        try:
            points = probe(
                program,
                template,
                points,
                builder,
                Compilers(lambda text: threads.submit(machine.compiler.compile, text), machine.jobs),
                options.budget.candidates,
            )
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
        listing_s = time.monotonic() - begin
        strategy, reason = choose(
            options.strategy, Start(points.points, options.seed, options.budget.candidates, machine.devices)
        )
        # Worker processes that read candidates take half a second to start: too long for a short run.
        many = min(len(points.points), options.budget.candidates or len(points.points)) >= _MANY
        front = machine.front(spec, root, spec_path) if many else None
        evaluator = machine.evaluator(spec, root, spec_path, limits=options.guardrails, front=front)
        gate = Gate(machine, spec, root, spec_path, SuggestionConditions(options.guardrails, options.targets))
        try:
            run = _Run(
                options, machine, evaluator, front, gate, spec, spec_path, program, template, points, strategy, reason, notes,
                begin, listing_s, lessons, Expected(evaluator),
            )  # fmt: skip
            return run.run(on_progress, on_result)
        except UnusableTemplate as error:
            lessons.failed(template, error)
            raise
        finally:
            if front is not None:
                front.close()
            evaluator.close()

    try:
        if llm is not None:
            background = Background(analysis(machine, options, (spec, spec_path)), lessons.recall)
            author = partial(
                TemplateAuthor, program=program, found=(spec, spec_path), target=machine.target, background=background
            )
            return _search_models(options, llm, author, search)
        return search(*make_template(options, program, spec, spec_path, machine.target, lessons.prior))
    except NoTemplate:
        # Rules leave alone what the grammar does not know: the compiler says what is wrong with it
        builder.original(program)
        raise
    finally:
        lessons.close()


def _search_models(
    options: TuneOptions, llm: LlmSettings, make: Callable[..., TemplateAuthor],
    search: Callable[[Template, tuple[str, ...]], TuneResult],
) -> TuneResult:  # fmt: skip
    """Search the first template of a model's that passes its test. A resumed run has them from the answers of the first."""
    check_alone(options)
    out = output_folder(options)
    if options.resume and (out / EXCHANGES).exists():
        llm = replace(llm, replay=out / EXCHANGES)
    with results_folder(out), closing(make(llm, out=out)) as author:
        return author.searched(search)


def output_folder(options: TuneOptions) -> Path:
    """Where journal, result and patches go: `.optiml/<file>-<kernel>-tune/` at the root, if nothing else was said."""
    root = repository_root(options.path)
    spec, _ = options.spec or find_spec(root, options.path, options.kernel)
    return options.out or root / ".optiml" / f"{options.path.stem}-{spec.kernel.replace('::', '.')}-tune"


@dataclass(frozen=True)
class _Searched:
    """What a search came to; `earlier` are the points and evaluations of the run that it goes on with."""

    best: Confirmed[Tried] | None
    refused: Sequence[Refusal]
    shapes: tuple[ShapeBest, ...]
    earlier: tuple[int, int]
    setup_s: float
    searched_s: float


@dataclass
class _Run:
    options: TuneOptions
    machine: Machine
    evaluator: Evaluator
    front: BuildWorkers | None
    gate: Gate
    spec: KernelSpec
    spec_path: str | None
    program: Program
    template: Template
    points: Feasible
    strategy: Strategy
    reason: str
    notes: tuple[str, ...]
    begin: float
    listing_s: float  # that finding the feasible set took
    lessons: TuningLessons
    expected: Expected

    def run(self, on_progress: Callable[[Progress], None], on_result: Callable[[TuneResult], None]) -> TuneResult:
        wanted = possible(self.template, self.spec_path) if self.options.dispatch else None
        if wanted is not None:
            self._confirming().attempt(wanted, self.points.points[-1])
        out = output_folder(self.options)
        with results_folder(out):
            return self._searched(out, wanted, on_progress, on_result)

    def _searched(
        self, out: Path, wanted: ConstantTemplate | None, on_progress: Callable[[Progress], None],
        on_result: Callable[[TuneResult], None],
    ) -> TuneResult:  # fmt: skip
        begin, options = self.begin, self.options
        identity = identity_of(self.program, self.spec, options.seed, self.machine.arch, self.machine.mode)
        journal = Journal(
            out / "journal.sqlite", self.program, self._settings(), resume=options.resume, identity=identity
        )
        request = options.request, options.budget.seconds, options.budget.candidates
        journal.mark_request(*request, ended=False)
        executor = ThreadPoolExecutor(self.machine.jobs, thread_name_prefix="build")
        ahead = self.machine.jobs + SPARE + self.machine.devices - 1
        try:
            tuner = Tuner(
                self.program,
                TemplateSearch(self.template, self.points, self.strategy),
                self.evaluator,
                self.machine.target,
                Builds(executor, in_flight=ahead),
                Reports(journal=journal, on_progress=on_progress, on_best=self._new_best),
            )

            def ready() -> None:
                # Else what is told first changes what is wanted first
                if not self.strategy.patient and not options.resume:
                    tuner.begin(min(ahead, options.budget.candidates or ahead))

            try:
                self.machine.compiler.warm(None if self.front is None else 1)  # beside setting up the device
                if self.front is not None:
                    self.front.warm(self.program, ahead)
                built, original = self.evaluator.open(self.program, ready)
            except OptimlError:
                journal.withdraw()
                raise
            tuner.start(built, original)
            earlier = (len(tuner.tried), tuner.evaluations)  # of the run that this one goes on with
            setup_s = time.monotonic() - begin
            tuner.spent_s(setup_s)
            best: Confirmed[Tried] | None = None
            refused: list[Refusal] = []
            shapes: tuple[ShapeBest, ...] = ()
            searched_s, interrupted = 0.0, True
            try:
                with options.budget.interrupt.patient():
                    with attentive():
                        devices = self.evaluator if isinstance(self.evaluator, RemoteEvaluator) else None
                        tuner.run(replace(options.budget, seconds=self._limit()), devices)
                    if not tuner.tried and tuner.impossible:
                        check_left(self.template, self.points, tuner.impossible)
                    searched_s = time.monotonic() - begin - setup_s
                    tuner.progress.phase = CONFIRMING
                    on_progress(tuner.progress)
                    best, refused = self._confirmed(tuner)
                    shapes = () if not tuner.tried else self._shapes(tuner, original, best)
                interrupted = False
            except KeyboardInterrupt:
                tuner.progress.stopped = INTERRUPTED
            except RefusedError:
                journal.withdraw()
                raise
            finally:
                executor.shutdown(wait=False, cancel_futures=True)  # what is built may take its time
            searched_s = searched_s or time.monotonic() - begin - setup_s
            self.lessons.learn(self.template, tuner.tried)
            result, patches = self._result(
                tuner, original, _Searched(best, refused, shapes, earlier, setup_s, searched_s)
            )
            problem: OptimlError | KeyboardInterrupt | None = KeyboardInterrupt() if interrupted else None
            ending = interrupted or options.budget.interrupt.asked
            if wanted is not None and result.shapes and not ending:
                result, problem = extended(
                    result, "dispatch", "dispatch code", lambda found: self._with_dispatch(found, wanted, patches)
                )
            if options.constants and best is not None and problem is None and not ending:
                point = best.candidate.point
                result, ended = extended(
                    result, "constants", CONSTANTS_PATCH, lambda found: self._with_constants(found, point, patches)
                )
                problem = ended if isinstance(ended, KeyboardInterrupt) else None  # nothing that was asked for is wrong
            if not (interrupted and options.resume and keeps_suggestion(out)):
                write(result, out, patches)
                on_result(result)
            if problem is not None and not isinstance(problem, NothingToSelect):
                raise problem
            journal.mark_request(*request, ended=not ending)
            return result
        finally:
            executor.shutdown(wait=False, cancel_futures=True)
            journal.close()

    def _settings(self) -> dict[str, str]:
        """What a run must share with the one that it goes on with; the differing one is shown, so it is in words."""
        space = self.template.space
        values = ", ".join(f"{p.name} = {'|'.join(map(str, p.values))}" for p in space.parameters)
        told = " where ".join([f"{self.template.name}: {values}", *(c.text for c in space.conditions)])
        if len(told) > _TOLD:
            told = f"{told[:_TOLD]}… ({hashlib.sha256(told.encode()).hexdigest()[:16]})"
        return {"kernel": self.spec.kernel, "arch": self.machine.arch, "mode": self.machine.mode, "template": told}

    def _new_best(self, program: Program, ratio: float) -> None:
        self.expected.better(program.digest, ratio, lambda: self._candidate(program))

    def _limit(self) -> float | None:
        limit = self.options.budget.seconds
        return None if limit is None else search_limit_s(limit)

    # ---- after the search

    def _confirmed(self, tuner: Tuner) -> tuple[Confirmed[Tried] | None, list[Refusal]]:
        """The best point that holds under a second look, and those that did not."""
        confirmation = Confirmation(self.evaluator, self.gate, self.program, tuner.progress)
        with tuner.progress.stage("confirm"):
            fastest = [tried for tried in self._run_off(tuner) if 2 ** (tried.value or 0.0) >= confirmation.least]
        return confirmation.best(
            Contender(
                tried, tried.id, self._said(tried), tried.id, partial(self._built, tried), tried.evaluation.measurement
            )
            for tried in fastest
        )

    def _run_off(self, tuner: Tuner) -> list[Tried]:
        """The fastest points, the best first: a search tells those apart by what suffices to go on, and here the best is named."""
        begin, fastest = time.monotonic(), tuner.best(1 + _RUN_OFF)
        least = (fastest[0].value or 0.0) - _ALIKE if fastest else 0.0
        rivals = [tried for tried in fastest[1:] if (tried.value or 0.0) >= max(least, 0.0)]
        if self.evaluator.signals.mode != "measured" or not rivals:
            return fastest
        # What was checked beside the search gives way only to what is faster beyond noise.
        alike = (tried for tried in tuner.best(len(tuner.tried)) if (tried.value or 0.0) >= least)
        checked = next((tried for tried in alike if self._program(tried).digest == self.expected.digest), None)
        best, gain = (fastest[0], 1.0) if checked is None else (checked, _TOLD_APART)
        held = self._built(best)
        for rival in [tried for tried in (fastest[0], *rivals) if tried is not best]:
            if time.monotonic() - begin > _RUN_OFF_S:
                break
            built = self._built(rival)
            evaluation, against = self.evaluator.retime(built, held)
            if evaluation.outcome in PASSED and against is not None and against > gain:
                best, held, gain = rival, built, 1.0
        return [best, *(t for t in fastest if t is not best)]

    def _built(self, tried: Tried) -> Built:
        return self._candidate(self._program(tried))

    def _program(self, tried: Tried) -> Program:
        return program_at(self.program, self.template, tried.point)

    def _candidate(self, program: Program) -> Built:
        return self.evaluator.build(program, by_rules=self.template.by_rules)

    def _said(self, tried: Tried) -> str:
        return ", ".join(f"{n} = {v}" for n, v in self.template.space.named(tried.point).items())

    def _shapes(self, tuner: Tuner, original: Evaluation, best: Confirmed[Tried] | None) -> tuple[ShapeBest, ...]:
        """The best point for each timing case: the fastest there are timed closely beside the general one.

        Where no point is better over all cases, the general one is the original, if it is a point of the template.
        """
        point = best.candidate.point if best is not None else self.template.default
        held = (best.evaluation if best is not None else original).measurement
        if held is None or point is None or (best is None and len(self.spec.time) < 2):
            return ()
        begin, least = time.monotonic(), _GAIN[self.evaluator.signals.mode]
        champion = self._built(best.candidate) if best is not None else None
        passed = [t for t in tuner.best(len(tuner.tried)) if t.point != point and t.evaluation.measurement is not None]
        timed: dict[Point, Evaluation] = {}
        found = []
        for index, case in enumerate(self.spec.time):
            own = held.cases[index]
            chosen = (point, own.candidate_us, own.ratio, own.low, own.high, 1.0)
            rivals = sorted(passed, key=lambda t: _case_us(t, index))
            for rival in rivals[:_RUN_OFF] if len(self.spec.time) > 1 else ():
                if rival.point not in timed:
                    timed[rival.point], _ = self.evaluator.retime(self._built(rival), champion)
                measured = timed[rival.point].measurement
                if measured is None or timed[rival.point].outcome not in PASSED:
                    continue
                there = measured.cases[index]
                gain = there.ratio / own.ratio
                if gain > max(least, chosen[5]):
                    chosen = (rival.point, there.candidate_us, there.ratio, there.low, there.high, gain)
            values = self.template.space.named(chosen[0])
            found.append(ShapeBest(case.name, dict(case.sizes), case.weight, values, *chosen[1:]))
        tuner.progress.stage_s["shapes"] = time.monotonic() - begin
        return tuple(found)

    def _confirming(self) -> Confirming:
        options, root = self.options, repository_root(self.options.path)
        return Confirming(self.machine, self.spec, root, self.spec_path, options.guardrails, options.targets)

    def _with_dispatch(self, result: TuneResult, template: ConstantTemplate, patches: dict[str, bytes]) -> TuneResult:
        """The result with dispatch code, and its patch if it is suggested. Raises RefusedError."""
        dispatch, program = self._confirming().dispatch(template, result)
        if dispatch.patch:
            patches[dispatch.patch] = make_patch(self.program, program)
        return dataclasses.replace(
            result, dispatch=dispatch, verdict=verdict_with_dispatch(result.verdict, dispatch, result.mode)
        )

    def _with_constants(self, result: TuneResult, point: Point, patches: dict[str, bytes]) -> TuneResult:
        """The result with the best point as text with named constants, and its patch. Raises as `written` and `check`."""
        assert isinstance(self.template, RuleTemplate)
        found = written(self.template, self.spec, self.points.points, point)
        # As an original: to define constants is more than a candidate may do.
        builder = self.machine.builder(self.spec, repository_root(self.options.path), self.spec_path)
        checked = check(found, self.spec, self.spec_path, builder.original)
        patches[CONSTANTS_PATCH] = make_patch(self.program, found.program)
        return dataclasses.replace(result, constants=Constants(found.names, found.fixed, checked, CONSTANTS_PATCH))

    def _result(self, tuner: Tuner, original: Evaluation, searched: _Searched) -> tuple[TuneResult, dict[str, bytes]]:
        options, progress, signals = self.options, tuner.progress, self.evaluator.signals
        patches: dict[str, bytes] = {}
        general = None
        if searched.best is not None:
            tried, evaluation = searched.best.candidate, searched.best.evaluation
            changed = self._program(tried)
            patches["best.patch"] = make_patch(self.program, changed)
            files = tuple(sorted(k for k, v in changed.files.items() if self.program.files.get(k) != v))
            general = General(tried.id, self.template.space.named(tried.point), evaluation, "best.patch", files)
        space, default = self.template.space, self.template.default
        info = TemplateInfo(
            self.template.name, self.template.summary, {p.name: p.values for p in space.parameters},
            tuple(c.text for c in space.conditions), None if default is None else space.named(default),
            tuple(space.named(p) for p in tuner.checked),
        )  # fmt: skip
        counts = {
            "configurations": len(tuner.tried), "evaluations": tuner.evaluations, "verified": progress.verified,
            **{outcome.value: n for outcome, n in sorted(progress.outcomes.items())},
        }  # fmt: skip
        whole_s = max(searched.searched_s, 1e-9)
        rates = {
            "configurations_per_s": (len(tuner.tried) - searched.earlier[0]) / whole_s,
            "evaluations_per_s": (tuner.evaluations - searched.earlier[1]) / whole_s,
            "searched_s": searched.searched_s, "setup_s": searched.setup_s,
        }  # fmt: skip
        result = TuneResult(
            file=self.spec.file,
            kernel=self.spec.kernel,
            mode=signals.mode,
            verdict=verdict(
                self.spec.kernel,
                general,
                searched.refused,
                signals,
                TuningExtent(
                    configurations(
                        len({t.point for t in tuner.tried}),
                        len(self.points.points),
                        tuner.evaluations,
                        signals.mode,
                        default in self.points.points,
                        sum(tuner.impossible.values()),
                    ),
                    progress.stopped == INTERRUPTED,
                    None if tuner.tried else (self.listing_s, searched.setup_s - self.listing_s),
                ),
            ),
            template=info,
            space=SpaceInfo(space.size, len(self.points.points), self.points.excluded, dict(tuner.impossible)),
            strategy=self.strategy.name,
            strategy_reason=self.reason,
            best=general,
            shapes=searched.shapes,
            dispatch=None,
            refused=tuple(searched.refused),
            original=original,
            counts=counts,
            rates=rates,
            trace=tuple(tuner.trace),
            budget={"seconds": options.budget.seconds, "candidates": options.budget.candidates},
            seed=options.seed,
            stopped=progress.stopped,
            elapsed_s=tuner.elapsed_s,
            stages=dict(sorted(progress.stage_s.items())),
            signals=dataclasses.asdict(signals),
            spec=dataclasses.asdict(self.spec),
            notes=(*self.notes, *self.lessons.notes, *signals.missing, *self.machine.notes()),
            provenance=provenance(options.command),
            memory=self.lessons.summary,
        )
        return result, patches


def _case_us(tried: Tried, index: int) -> float:
    measurement = tried.evaluation.measurement
    return measurement.cases[index].candidate_us if measurement is not None and measurement.cases else math.inf

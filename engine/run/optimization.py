"""The engine's public function: one kernel of one file, searched under a budget."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from engine.builders.readahead import Ahead, Foresight, Proposals
from engine.compile.built import Built, NotBuilt
from engine.cuda.load import load_program, repository_root
from engine.cuda.patch import make_patch
from engine.cuda.stale_comments import without_stale_comments
from engine.errors import OptimlError, RefusedError
from engine.evaluate.analysis import Analysis
from engine.evaluate.evaluator import Evaluator, nothing
from engine.evaluate.remote import RemoteEvaluator
from engine.llm.participant import DiagnosisSources, ModelParticipant, WantedPart
from engine.llm.session import check_settings
from engine.model import Evaluation, Program
from engine.run.confirmation import Confirmation, Contender, Expected, search_limit_s
from engine.run.earlier_run import identity_of
from engine.run.first_builds import FirstBuilds
from engine.run.machine import Machine
from engine.run.optimization_result import Found, optimization_result
from engine.run.optimize_options import Coverage, Options
from engine.run.result import SCHEMA, OptimizationResult, check_version, keeps_suggestion, write
from engine.run.suggestion_gate import Gate, SuggestionConditions
from engine.search.best import best_nodes
from engine.search.build_queue import BuildQueue
from engine.search.journal import Journal
from engine.search.loop import Search
from engine.search.participants import Builds, Participants
from engine.search.predicted_profile import PredictedWatch
from engine.search.profiling import PATIENCE_S, Insight, StepEvidence
from engine.search.progress import CONFIRMING, EXPLAINING, INTERRUPTED, SPARE, Budget, Progress, in_flight
from engine.search.reward import Reward
from engine.search.shorten import steps_that_count
from engine.search.tree import Node, Tree
from engine.settings.folders import results_folder
from engine.spec.find import find_spec
from engine.spec.host_launch import unseen_launches
from engine.spec.kernel_spec import KernelSpec
from engine.tune.inner import TunerPace, TunerPart
from engine.tune.offers import check_declared, offers

# What questions for a batch may wait for their diagnosis: two batches of profiles behind a slow one; one where there is a budget of time.
_QUESTIONS_S, _QUESTIONS_SHORT_S = 30.0, 5.0
_LEAST_PATIENCE_S = 10.0  # where nothing is in the way ncu's start and two reports take less
_TRAJECTORY_S = 3.0  # what profiling the trajectory takes beyond that: ncu's end, half a second a step
# A search has its likely trajectory profiled so long before its end: ncu's start, a batch, its report. Of a budget of candidates, from
# this share on, but no sooner than so many before the end: a search on an H200 evaluates some twenty a second.
_AHEAD_S, _AHEAD, _AHEAD_CANDIDATES = 6.0, 0.85, 120
# Programs that are read at once beside those that are built: what the tree waits for, or a search within a template found, before it
# ends; and candidates, of which the tree may ask next. Ours.
_ASIDE, _READERS = 2, 4


def default_folder(root: Path, path: Path, kernel: str) -> Path:
    """Where the results of a kernel go where nobody says where."""
    return root / ".optiml" / f"{path.stem}-{kernel.replace('::', '.')}"


def optimize(
    options: Options, machine: Machine, on_progress: Callable[[Progress], None] = lambda progress: None
) -> tuple[OptimizationResult, Path]:
    """Search one kernel; returns the result and the folder it was written to.

    Raises UsageError, SpecError, SourceError (wrong input), RefusedError (the spec proves nothing; with the tuner, a declared
    template that cannot be searched), MachineError.
    """
    root = repository_root(options.path)
    spec, spec_path = options.spec or find_spec(root, options.path, options.kernel)
    kernels = [s.kernel for s in spec.steps]
    program = load_program(
        options.path, spec_file=spec_path, kernels=kernels, include=spec.compile.include, unit=spec.compile.unit
    )
    out = options.out or default_folder(root, options.path, spec.kernel)
    if options.resume:
        check_version(out, SCHEMA)
    if "llm" in options.proposers and options.llm is not None:
        check_settings(options.llm)
    if "tuner" in options.proposers:
        check_declared(program, spec, spec_path, machine.target)
    front = machine.front(spec, root, spec_path)
    evaluator = machine.evaluator(spec, root, spec_path, limits=options.guardrails, front=front)
    executor = BuildQueue(machine.jobs)
    aside = None if front is None else ThreadPoolExecutor(_ASIDE, thread_name_prefix="ahead")
    readers: Executor = executor if front is None else ThreadPoolExecutor(_READERS, thread_name_prefix="read")
    source = Proposals(
        Analysis(spec, root, machine.target, spec_path), front, rules="rules" in options.proposers, aside=aside
    )
    foresight = Foresight([source], aside)
    gate = Gate(machine, spec, root, spec_path, SuggestionConditions(options.guardrails, options.targets))
    inner: TunerPart | None = None
    if "tuner" in options.proposers:
        here = partial(offers, spec=spec, spec_path=spec_path, target=machine.target)
        templates = Ahead(here, None if front is None else front.offers, aside)
        foresight = Foresight([source, templates], aside)
        inner = TunerPart(
            templates,
            machine.target,
            evaluator,
            TunerPace(
                in_flight=machine.jobs + SPARE + machine.devices - 1,
                seed=options.seed,
                counted=options.budget.candidates is not None,
                devices=machine.devices,
            ),
            foresee=foresight.soon,
        )
    try:
        foresight.soon(program)
        # Beside setting up the device, as all that starts here. With a front little else is compiled in this process.
        machine.compiler.warm(None if front is None else 1)
        if front is not None:
            front.warm(program, in_flight(machine.jobs, options.budget, machine.devices))
        parts = _Parts(
            options,
            machine,
            spec,
            program,
            out,
            evaluator,
            gate,
            source,
            inner,
            foresight,
            executor,
            readers,
            on_progress,
            Expected(evaluator),
        )
        return _run(parts), out
    finally:
        pools = [pool for pool in (executor, readers, aside) if pool is not None]
        for pool in pools:
            pool.shutdown(wait=False, cancel_futures=True)
        if front is not None:
            front.close()
        evaluator.close()
        for pool in pools:
            pool.shutdown()  # what they waited for has ended with these: none goes on beside the next run


@dataclass(frozen=True)
class _Parts:
    """One run: what was asked for, and what it is put together of."""

    options: Options
    machine: Machine
    spec: KernelSpec
    program: Program  # the original
    out: Path
    evaluator: Evaluator
    gate: Gate
    source: Proposals
    inner: TunerPart | None
    foresight: Foresight
    executor: BuildQueue
    readers: Executor
    on_progress: Callable[[Progress], None]
    expected: Expected

    def ahead(self, program: Program) -> None:
        """Read a candidate before its proposals are asked for; where no other processes do that, most would be read for nothing."""
        if self.readers is not self.executor:
            self.foresight.read(program)


@dataclass(frozen=True)
class _Beside:
    """What runs beside a search: a profiler or what stands in for it, a model or a memory."""

    insight: Insight | None
    predicted: PredictedWatch | None
    part: ModelParticipant | None


def _run(parts: _Parts) -> OptimizationResult:
    options, machine, evaluator = parts.options, parts.machine, parts.evaluator
    spec, program, out = parts.spec, parts.program, parts.out
    begin = time.monotonic()
    settings = {"kernel": spec.kernel, "arch": machine.arch, "mode": machine.mode}
    with ExitStack() as held:
        held.enter_context(results_folder(out))
        identity = identity_of(program, spec, options.seed, machine.arch, machine.mode)
        journal = Journal(out / "journal.sqlite", program, settings, resume=options.resume, identity=identity)
        held.callback(journal.close)
        request = options.request, options.budget.seconds, options.budget.candidates
        journal.mark_request(*request, ended=False)
        flying = in_flight(machine.jobs, options.budget, machine.devices)
        build = partial(evaluator.build, by_rules=True)
        first = FirstBuilds(parts.source, build, parts.executor, min(flying, machine.jobs))
        # Without a GPU the original's checks have the cores, and a candidate's code is held against what they find.
        ahead = machine.mode == "measured" and not options.resume
        try:
            built, original = evaluator.open(program, partial(first.begin, program) if ahead else nothing)
        except OptimlError:
            journal.withdraw()
            raise
        insight = machine.insight(spec, evaluator, options.profile == "all") if options.profile != "none" else None
        if insight is not None:
            held.callback(insight.close)
        predicted = machine.watch(spec, evaluator) if insight is None else None
        part = _model(parts, insight, predicted)
        if part is not None:
            held.callback(part.close)
        beside = _Beside(insight, predicted, part)
        tree = _tree(parts, beside)
        search = Search(
            tree,
            evaluator,
            journal,
            Builds(
                parts.executor,
                in_flight=flying,
                readers=parts.readers,
                prefetch=parts.ahead,
                begun=first.take,
                devices=evaluator if isinstance(evaluator, RemoteEvaluator) else None,
            ),
            Participants(
                feed=part,
                watch=insight or predicted,
                inner=parts.inner,
                on_incumbent=partial(_new_best, parts, insight),
            ),
            parts.on_progress,
        )
        search.start(built, original)
        tree.first(options.seeds)
        parts.gate.look_ahead(built, search.progress.said.append)
        if insight is not None:
            insight.look(built, original)
        started_s = time.monotonic() - begin
        search.progress.stage_s["start"] = max(0.0, started_s - sum(original.stage_s.values()))
        search.spent_s(started_s)
        held.enter_context(options.budget.interrupt.patient())
        found = None
        try:
            _search(search, parts, insight)
            parts.executor.shutdown(wait=False, cancel_futures=True)
            found = _conclude(search, parts, beside)
        except KeyboardInterrupt:
            search.progress.stopped = INTERRUPTED
            parts.executor.shutdown(wait=False, cancel_futures=True)
        interrupted, found = found is None, found or Found(None, [], [tree.root], [], ())
        notes = [
            *options.notes,
            *unseen_launches(program, spec),
            *parts.gate.notes,
            *evaluator.signals.missing,
            *found.lost,
            *_closed(search, beside),
            *machine.notes(),
            *_failed_rules(parts.source),
        ]
        result = optimization_result(options, spec, search, found, notes, part)
        patch = make_patch(program, found.best.program) if found.best is not None else None
        if not (interrupted and options.resume and keeps_suggestion(out)):
            write(result, out, patch)
        if interrupted:
            raise KeyboardInterrupt
        journal.mark_request(*request, ended=not options.budget.interrupt.asked)
        return result


def _new_best(parts: _Parts, insight: Insight | None, built: Built, evaluation: Evaluation) -> None:
    """Have what became the best profiled, and the checks that it must pass begun, beside the search."""
    if insight is not None:
        insight.look(built, evaluation)
    ratio = evaluation.measurement.ratio if evaluation.measurement is not None else 1.0
    parts.expected.better(built.program.digest, ratio, partial(_tidied, parts.evaluator, built, parts.program))


def _model(parts: _Parts, insight: Insight | None, predicted: PredictedWatch | None) -> ModelParticipant | None:
    """The model's part and the memory's, where either is asked for."""
    options = parts.options
    llm = options.llm if "llm" in options.proposers else None
    if llm is not None:
        llm = dataclasses.replace(llm, templates="tuner" in options.proposers)
    if llm is None and options.memory is None:
        return None

    wanted = WantedPart(llm, options.memory, options.resume)
    sources = DiagnosisSources(insight, lambda program: parts.evaluator.build(program, by_rules=False), predicted)
    return ModelParticipant(wanted, parts.spec, parts.machine.target, parts.out, sources)


def _tree(parts: _Parts, beside: _Beside) -> Tree:
    options, insight, part = parts.options, beside.insight, beside.part
    propose = parts.source if parts.inner is None else parts.inner.wrap(parts.source)
    weigh = insight.weigh if insight is not None else (lambda digest, proposals: None)
    weigh = part.weigh if part is not None else weigh
    tree = Tree(parts.program, propose, options.seed, options.search, weigh, parts.foresight.coming)
    tree.reward = Reward(proxies=options.proxies)
    tree.mixture.counted = options.budget.candidates is not None
    if part is not None:
        part.join(tree)
    return tree


def _search(search: Search, parts: _Parts, insight: Insight | None) -> None:
    """Search within the budget, less what its end takes."""
    budget = parts.options.budget
    profiling_s = _TRAJECTORY_S if insight is not None and not insight.unusable else 0.0
    within = budget if budget.seconds is None else replace(budget, seconds=search_limit_s(budget.seconds, profiling_s))

    def foresee() -> None:
        if insight is not None:
            insight.foresee(_likely(search, parts))

    search.run(within, nearly=_nearly(within), then=foresee)


def _conclude(search: Search, parts: _Parts, beside: _Beside) -> Found:
    """Confirm the best, and have it and its steps profiled."""
    insight, part, evaluator, budget = beside.insight, beside.part, parts.evaluator, parts.options.budget
    search.enter(CONFIRMING)
    if part is not None:
        with search.progress.stage("profile"):  # that is what the questions wait for
            part.settle(_QUESTIONS_S if budget.seconds is None else _QUESTIONS_SHORT_S)
    if insight is not None:  # the profiler starts beside the confirmation
        with search.progress.stage("profile"), suppress(NotBuilt):  # it is asked for once more below
            insight.prepare(_likely(search, parts)())
    confirmation = Confirmation(evaluator, parts.gate, parts.program, search.progress)
    best, refused = confirmation.best(_contenders(search, evaluator, confirmation.least, parts.expected.digest))
    search.enter(EXPLAINING)
    path = steps_that_count(best.candidate.path(), parts.source) if best is not None else [search.tree.root]
    seer = insight or beside.predicted
    evidence, lost = ([], ()) if seer is None else _evidence(search, evaluator, seer, path, _patience_s(budget))
    return Found(best, refused, path, evidence, lost)


def _likely(search: Search, parts: _Parts) -> Callable[[], list[tuple[Built, Evaluation]]]:
    """The steps to what is the best now, built when they are asked for, on whatever thread."""
    best = best_nodes(search.tree, search.incumbent, 1, checked=parts.expected.digest)
    path = next(iter(best), search.tree.root).path()
    return lambda: _looked_at(search, parts.evaluator, steps_that_count(path, parts.source))


def _closed(search: Search, beside: _Beside) -> tuple[str, ...]:
    """End what ran beside the search; what it has to say, in sentences."""
    insight, part = beside.insight, beside.part
    if part is not None:
        part.observe()
    search.observe()
    said: tuple[str, ...] = ()
    if insight is not None:
        for stage, seconds in insight.stages().items():
            search.progress.spend(stage, seconds)
        with search.progress.stage("profile"):
            said = insight.close()
    if part is not None:
        part.close()
        said = (*said, *part.notes)
    return said


def _nearly(budget: Budget) -> Budget:
    """The smaller budget at whose end the likely trajectory is asked for."""
    seconds, most = budget.seconds, budget.candidates
    return Budget(
        None if seconds is None else max(seconds / 2, seconds - _AHEAD_S),
        None if most is None else max(int(_AHEAD * most), most - _AHEAD_CANDIDATES),
    )


def _contenders(
    search: Search, evaluator: Evaluator, least: float, checked: Hashable = None
) -> Iterator[Contender[Node]]:
    """The candidates most worth suggesting, the best first, built without stale comments."""
    original = search.tree.root.program

    def build(node: Node) -> Built:
        built = search.built.get(node.id) or evaluator.build(node.program, by_rules=node.by_rules)
        return _tidied(evaluator, built, original)

    for node in best_nodes(search.tree, search.incumbent, len(search.tree.nodes), least, checked=checked):
        summary = node.proposal.summary if node.proposal else ""
        measured = node.evaluation.measurement if node.evaluation is not None else None
        yield Contender(node, node.id, summary, node.path()[1].id, partial(build, node), measured)


def _tidied(evaluator: Evaluator, built: Built, original: Program) -> Built:
    """The candidate without stale comments, where that leaves machine code and launches as they are."""
    program = without_stale_comments(original, built.program)
    if program is built.program:
        return built
    with suppress(NotBuilt):
        tidied: Built = evaluator.build(program, by_rules=built.by_rules)
        if tidied.identity == built.identity:
            return tidied
    return built


def _looked_at(search: Search, evaluator: Evaluator, path: Sequence[Node]) -> list[tuple[Built, Evaluation]]:
    return [
        (search.built.get(node.id) or evaluator.build(node.program, by_rules=node.by_rules), node.evaluation)
        for node in path
        if node.evaluation is not None
    ]


def _patience_s(budget: Budget) -> float:
    """For how long the evidence is waited for: a profiler that others hold up must not cost a short run several times its budget."""
    if budget.seconds is None:
        return PATIENCE_S
    return min(PATIENCE_S, max(_LEAST_PATIENCE_S, budget.seconds / 2))


def _evidence(
    search: Search, evaluator: Evaluator, insight: Insight | PredictedWatch, path: Sequence[Node], patience_s: float
) -> tuple[list[StepEvidence], tuple[str, ...]]:
    """The profiler's (or the model's) evidence on the original and on each step to the best; what it lacks, in sentences."""
    with search.progress.stage("profile"):
        try:
            return insight.trajectory(_looked_at(search, evaluator, path), patience_s), ()
        except NotBuilt as error:
            return [], (f"no evidence for the steps: one of them could not be built again ({error.what})",)


def _failed_rules(source: Proposals) -> list[str]:
    rules = sorted({failure.rule for failure in source.failures})
    return [f"rules that failed and were skipped: {', '.join(rules)}"] if rules else []


__all__ = ["Coverage", "Options", "RefusedError", "optimize"]

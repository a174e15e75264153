"""The engine's public function: one kernel of one file, searched under a budget."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from engine.builders.readahead import Ahead, Foresight, Proposals
from engine.compile.built import Built, NotBuilt
from engine.cuda.load import load_program, repository_root
from engine.cuda.patch import make_patch
from engine.cuda.stale_comments import without_stale_comments
from engine.errors import OptimlError, RefusedError
from engine.evaluate.analysis import Analysis
from engine.evaluate.evaluator import Evaluator
from engine.evaluate.guardrails import LIMITS, stopped
from engine.evaluate.remote import RemoteEvaluator
from engine.llm.participant import DiagnosisSources, Part, WantedPart
from engine.llm.session import check_settings
from engine.model import Evaluation, Failure, Outcome, Program, Refusal
from engine.process.fair_lock import WAITED
from engine.rewrite.proposal import Proposal
from engine.run.earlier_run import identity_of
from engine.run.machine import Machine
from engine.run.provenance import provenance
from engine.run.result import SCHEMA, Best, OptimizationResult, Step, check_version, faster, keeps_suggestion, write
from engine.run.suggestion_gate import Gate, SuggestionConditions
from engine.search.best import best_nodes
from engine.search.journal import Journal
from engine.search.loop import Search
from engine.search.participants import Builds, Participants
from engine.search.policies import Strategy
from engine.search.predicted_profile import PredictedWatch
from engine.search.profiling import PATIENCE_S, Evidence, Insight
from engine.search.progress import CONFIRMING, EXPLAINING, INTERRUPTED, SPARE, Budget, Progress, in_flight
from engine.search.puct import constants as search_constants
from engine.search.reward import CONSTANTS, Reward
from engine.search.shorten import steps_that_count
from engine.search.tree import Node, Tree
from engine.settings.config import Guardrails
from engine.settings.folders import results_folder
from engine.spec.find import find_spec
from engine.spec.host_launch import unseen_launches
from engine.spec.kernel_spec import KernelSpec
from engine.tune.inner import TunerPace, TunerPart
from engine.tune.offers import check_declared, offers

if TYPE_CHECKING:
    from engine.llm.lessons import MemorySettings
    from engine.llm.session import LlmSettings

# The share of a time budget kept back for confirming what would be suggested, within these bounds in seconds. Ours.
_RESERVE, _RESERVE_LEAST_S, _RESERVE_MOST_S = 0.2, 2.0, 8.0
# What questions for a batch may wait for their diagnosis: two batches of profiles behind a slow one; one where there is a budget of time.
_QUESTIONS_S, _QUESTIONS_SHORT_S = 30.0, 5.0
_LEAST_PATIENCE_S = 10.0  # where nothing is in the way ncu's start and two reports take less
_TRAJECTORY_S = 3.0  # what profiling the trajectory takes beyond that: ncu's end, half a second a step
# A search has its likely trajectory profiled so long before its end: ncu's start, a batch, its report. Of a budget of candidates, from
# this share on, but no sooner than so many before the end: a search on an H200 evaluates some twenty a second.
_AHEAD_S, _AHEAD, _AHEAD_CANDIDATES = 6.0, 0.85, 120
# Nsight Compute counts nothing; the best candidates in a small share of the time; or every candidate that passed, and the search waits.
Coverage = Literal["none", "best", "all"]
# Programs that are read at once beside those that are built: what the tree waits for, or a search within a template found, before it
# ends; and candidates, of which the tree may ask next. Ours.
_ASIDE, _READERS = 2, 4
# At most so many of the best are confirmed, in order, until one holds, and so many that begin with the same edit. Ours: a model's edit had
# a fault that only the inputs of a confirmation show; three tries went to it and what was built upon it, none to what the rules had found.
_CONFIRMED, _OF_A_BRANCH = 5, 2
_DISTURBED = frozenset({Outcome.UNSTABLE, Outcome.SLOWER, Outcome.NO_DIFFERENCE})  # no fault of the edits
# Less is not worth a person's time; a prediction cannot tell less apart at all. Ours.
LEAST = {"measured": 1.02, "predicted": 1.2}


@dataclass(frozen=True)
class Options:
    """What a run is asked for. `out` is where journal, result and patch go; None: `.optiml/<file>-<kernel>/` at the root.

    `spec` (a spec with the path of its optiml.toml, or None) counts instead of the one in the repository: what comes from a
    stranger must not say itself how it is judged.
    """

    path: Path
    kernel: str | None = None
    budget: Budget = field(default_factory=lambda: Budget(seconds=60.0))
    seed: int = 0
    out: Path | None = None
    resume: bool = False
    search: Strategy = "mcts"
    profile: Coverage = "best"  # what Nsight Compute counts, where it is there
    proxies: bool = True  # let counters take part in the reward
    guardrails: Guardrails = LIMITS
    targets: tuple[str, ...] = ()  # architectures that a suggestion must compile for as well
    command: tuple[str, ...] = ()
    spec: tuple[KernelSpec, str | None] | None = None
    proposers: tuple[str, ...] = ("rules",)  # of "rules", "tuner", "llm"
    llm: LlmSettings | None = None
    memory: MemorySettings | None = None  # lessons of earlier runs, for the model and for the rules' priors
    seeds: tuple[Proposal, ...] = ()  # edits of the original that are tried before all others
    notes: tuple[str, ...] = ()  # what the result has to say of where the kernel comes from
    request: str = ""  # a name for what is asked for, by which the same is known again (engine/run/going_on.py)


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
    executor = ThreadPoolExecutor(machine.jobs, thread_name_prefix="build")
    aside = None if front is None else ThreadPoolExecutor(_ASIDE, thread_name_prefix="ahead")
    readers = executor if front is None else ThreadPoolExecutor(_READERS, thread_name_prefix="read")
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
            ),
            foresee=foresight.soon,
        )
    try:
        foresight.soon(program)
        # Beside setting up the device, as all that starts here. With a front little else is compiled in this process.
        machine.compiler.warm(None if front is None else 1)
        if front is not None:
            front.warm(program)
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
    executor: ThreadPoolExecutor
    readers: ThreadPoolExecutor
    on_progress: Callable[[Progress], None]


@dataclass(frozen=True)
class _Beside:
    """What runs beside a search: a profiler or what stands in for it, a model or a memory."""

    insight: Insight | None
    predicted: PredictedWatch | None
    part: Part | None


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
        try:
            built, original = evaluator.open(program)
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
                in_flight=in_flight(machine.jobs, options.budget, machine.devices),
                readers=parts.readers,
                prefetch=parts.foresight.read,
                devices=evaluator if isinstance(evaluator, RemoteEvaluator) else None,
            ),
            Participants(
                feed=part,
                watch=insight or predicted,
                inner=parts.inner,
                on_incumbent=insight.look if insight is not None else (lambda built, evaluation: None),
            ),
            parts.on_progress,
        )
        search.start(built, original)
        tree.first(options.seeds)
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
        interrupted, found = found is None, found or _Found(None, program, [], [tree.root], [], ())
        notes = [
            *options.notes,
            *unseen_launches(program, spec),
            *evaluator.signals.missing,
            *found.lost,
            *_closed(search, beside),
            *machine.notes(),
        ]
        result = _result(parts, search, found, notes, part)
        patch = make_patch(program, found.program) if found.best is not None else None
        if not (interrupted and options.resume and keeps_suggestion(out)):
            write(result, out, patch)
        if interrupted:
            raise KeyboardInterrupt
        journal.mark_request(*request, ended=not options.budget.interrupt.asked)
        return result


def _model(parts: _Parts, insight: Insight | None, predicted: PredictedWatch | None) -> Part | None:
    """The model's part and the memory's, where either is asked for."""
    options = parts.options
    llm = options.llm if "llm" in options.proposers else None
    if llm is not None:
        llm = dataclasses.replace(llm, templates="tuner" in options.proposers)
    if llm is None and options.memory is None:
        return None

    wanted = WantedPart(llm, options.memory, options.resume)
    sources = DiagnosisSources(insight, parts.evaluator.build, predicted)
    return Part(wanted, parts.spec, parts.machine.target, parts.out, sources)


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
    profiled = insight is not None and not insight.unusable
    within = budget if budget.seconds is None else replace(budget, seconds=_limit_s(budget.seconds, profiled))

    def foresee() -> None:
        if insight is not None:
            insight.foresee(_likely(search, parts))

    search.run(within, nearly=_nearly(within), then=foresee)


def _limit_s(seconds: float, profiled: bool) -> float:
    """When the search ends, of a run that may take so long: it confirms, and may profile, what it found."""
    reserve = min(_RESERVE_MOST_S, max(_RESERVE_LEAST_S, _RESERVE * seconds))
    return seconds - min(reserve + (_TRAJECTORY_S if profiled else 0.0), seconds / 2)


@dataclass(frozen=True)
class _Found:
    """What a search came to: the best with its confirmation, those that did not hold, the steps with their evidence and what it lacks."""

    best: tuple[Node, Evaluation] | None
    program: Program  # of the best, as it was confirmed
    refused: Sequence[Refusal]
    path: Sequence[Node]
    evidence: Sequence[Evidence]
    lost: tuple[str, ...]


def _conclude(search: Search, parts: _Parts, beside: _Beside) -> _Found:
    """Confirm the best, and have it and its steps profiled."""
    insight, part, evaluator, budget = beside.insight, beside.part, parts.evaluator, parts.options.budget
    search.enter(CONFIRMING)
    if part is not None:
        with _booked(search, "profile"):  # that is what the questions wait for
            part.settle(_QUESTIONS_S if budget.seconds is None else _QUESTIONS_SHORT_S)
    if insight is not None:  # the profiler starts beside the confirmation
        with _booked(search, "profile"), suppress(NotBuilt):  # it is asked for once more below
            insight.prepare(_likely(search, parts)())
    best, program, refused = _confirmed(search, evaluator, parts.gate)
    search.enter(EXPLAINING)
    path = steps_that_count(best[0].path(), parts.source) if best is not None else [search.tree.root]
    seer = insight or beside.predicted
    evidence, lost = ([], ()) if seer is None else _evidence(search, evaluator, seer, path, _patience_s(budget))
    return _Found(best, program, refused, path, evidence, lost)


def _likely(search: Search, parts: _Parts) -> Callable[[], list[tuple[Built, Evaluation]]]:
    """The steps to what is the best now, built when they are asked for, on whatever thread."""
    path = next(iter(best_nodes(search.tree, search.incumbent, 1)), search.tree.root).path()
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
        with _booked(search, "profile"):
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


def _confirmed(
    search: Search, evaluator: Evaluator, gate: Gate
) -> tuple[tuple[Node, Evaluation] | None, Program, list[Refusal]]:
    """The best candidate that is confirmed, its program without stale comments, and those that were refused."""
    original = search.tree.root.program
    refused: list[Refusal] = []
    least = LEAST[evaluator.signals.mode]
    branches: Counter[int] = Counter()  # refused, by the first edit
    for node in best_nodes(search.tree, search.incumbent, len(search.tree.nodes), least):
        branch = node.path()[1].id
        if len(refused) == _CONFIRMED:
            break
        if branches[branch] == _OF_A_BRANCH:
            continue
        try:
            built: Built = search.built.get(node.id) or evaluator.build(node.program)
            built = replace(_tidied(evaluator, built, original), by_rules=_by_rules(node))
        except NotBuilt as error:  # it was built once; what became of the compiler since must not cost the others
            evaluation = error.evaluation or Evaluation(Outcome.COMPILE_ERROR, failure=Failure(error.what))
        else:
            with _booked(search, "confirm"):
                evaluation = evaluator.confirm(built)
            search.progress.stage_s["confirm"] -= evaluation.stage_s.get(WAITED, 0.0)  # a stage of its own
            if _holds(evaluation, least):
                with _booked(search, "guardrails"):
                    evaluation = gate.judge(evaluation, original, built)
            if _holds(evaluation, least):
                return (node, evaluation), built.program, refused
        refused.append(Refusal(node.id, node.proposal.summary if node.proposal else "", evaluation))
        branches[branch] += evaluation.outcome not in _DISTURBED
    return None, original, refused


def _by_rules(node: Node) -> bool:
    """Whether installed rules and the tuner alone wrote what leads to a node."""
    return all(step.proposal is None or step.proposal.proposer in ("rules", "tuner") for step in node.path())


def _tidied(evaluator: Evaluator, built: Built, original: Program) -> Built:
    """The candidate without stale comments, where that leaves machine code and launches as they are."""
    program = without_stale_comments(original, built.program)
    if program is built.program:
        return built
    with suppress(NotBuilt):
        tidied: Built = evaluator.build(program)
        if tidied.identity == built.identity:
            return tidied
    return built


def _holds(evaluation: Evaluation, least: float) -> bool:
    held = evaluation.measurement
    return evaluation.outcome in (Outcome.ACCEPTED, Outcome.SCREENED) and held is not None and held.ratio >= least


def _looked_at(search: Search, evaluator: Evaluator, path: Sequence[Node]) -> list[tuple[Built, Evaluation]]:
    return [
        (search.built.get(node.id) or evaluator.build(node.program), node.evaluation)
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
) -> tuple[list[Evidence], tuple[str, ...]]:
    """The profiler's (or the model's) evidence on the original and on each step to the best; what it lacks, in sentences."""
    with _booked(search, "profile"):
        try:
            return insight.trajectory(_looked_at(search, evaluator, path), patience_s), ()
        except NotBuilt as error:
            return [], (f"no evidence for the steps: one of them could not be built again ({error.what})",)


@contextmanager
def _booked(search: Search, stage: str) -> Iterator[None]:
    """Add the time within to a stage of the result."""
    begin = time.monotonic()
    try:
        yield
    finally:
        stages = search.progress.stage_s
        stages[stage] = stages.get(stage, 0.0) + time.monotonic() - begin


def _result(parts: _Parts, search: Search, found: _Found, notes: list[str], part: Part | None) -> OptimizationResult:
    options, spec, source = parts.options, parts.spec, parts.source
    progress, evidence, refused = search.progress, found.evidence, found.refused
    signals = parts.evaluator.signals
    original = search.tree.root.evaluation
    assert original is not None
    steps: list[Step] = []
    chosen: Best | None = None
    if found.best is not None:
        node, evaluation = found.best
        for place, step in enumerate(found.path[1:], 1):
            assert step.proposal is not None
            assert step.evaluation is not None
            p = step.proposal
            seen = evidence[place] if place < len(evidence) else Evidence(())
            steps.append(
                Step(
                    step.id, p.proposer, p.rule, p.summary, dict(p.parameters), step.evaluation, seen.diagnosis, seen.moved,
                    seen.lines,
                )
            )  # fmt: skip
        first = search.tree.root.program.files
        changed = tuple(sorted(k for k, v in node.program.files.items() if first.get(k) != v))
        chosen = Best(node.id, evaluation, "best.patch", changed)
    if source.failures:
        rules = sorted({failure.rule for failure in source.failures})
        notes.append(f"rules that failed and were skipped: {', '.join(rules)}")
    elapsed = search.elapsed_s
    copy_share = evidence[0].copy_share if evidence and signals.mode == "measured" else None
    return OptimizationResult(
        file=spec.file,
        kernel=spec.kernel,
        mode=signals.mode,
        verdict=verdict(spec.kernel, chosen, progress, signals.device, copy_share, refused),
        best=chosen,
        trajectory=tuple(steps),
        original=original,
        diagnosis=evidence[0].diagnosis if evidence else (),
        refused=tuple(refused),
        counts={"candidates": progress.evaluated, "verified": progress.verified, **progress.by_outcome()},
        budget={"seconds": options.budget.seconds, "candidates": options.budget.candidates},
        seed=options.seed,
        search=options.search,
        stopped=progress.stopped,
        elapsed_s=elapsed,
        stages=dict(sorted(progress.stage_s.items())),
        signals=dataclasses.asdict(signals),
        spec=dataclasses.asdict(spec),
        notes=tuple(notes),
        provenance=provenance(options.command),
        proposers={name: dataclasses.asdict(share) for name, share in search.tree.mixture.shares.items()},
        model=part.summary if part is not None else None,
        memory=part.memory if part is not None else None,
        proxies=options.proxies,
        constants={"reward": CONSTANTS.described(), "search": search_constants()},
        lines=evidence[0].lines if evidence else (),
    )


def verdict(
    kernel: str, best: Best | None, progress: Progress, device: Mapping[str, Any], copy_share: float | None,
    refused: Sequence[Refusal] = (),
) -> str:  # fmt: skip
    """The run in one sentence."""
    tried = f"{progress.evaluated} candidates tried, {progress.verified} correct"
    if known := progress.outcomes.get(Outcome.DUPLICATE, 0):  # a twin of a right one is neither wrong nor counted twice
        tried += f", {known} duplicates (same SASS and launch)"
    nodes = sum(progress.outcomes.values())
    if nodes and (points := progress.evaluated - nodes):  # of a template's points the best alone is a node
        tried += f", including {points} template points other than the best of each template"
    if best is None and progress.stopped == INTERRUPTED:
        return f"The search for a faster {kernel} was interrupted, and nothing was confirmed: {tried}."
    if best is None:
        if said := stopped(kernel, refused, tried):
            return said
        if not progress.evaluated and progress.stopped:  # nothing can be said of what a search would find
            return f"No candidate was tried for {kernel}: {progress.stopped}."
        share = f"; its effective bandwidth is {100 * copy_share:.0f} % of copy" if copy_share else ""
        return f"No improvement found for {kernel}: {tried}{share}."
    assert best.evaluation.measurement is not None
    return faster(kernel, best.evaluation.measurement, device, tried)


__all__ = ["Options", "RefusedError", "optimize"]

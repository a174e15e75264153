"""What a search came to, as the result that is written and as one sentence."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.evaluate.guardrails import stopped
from engine.llm.participant import ModelParticipant
from engine.model import Outcome, Refusal
from engine.run.confirmation import Confirmed
from engine.run.optimize_options import Options
from engine.run.provenance import provenance
from engine.run.result import Best, OptimizationResult, TrajectoryStep, faster
from engine.search.loop import Search
from engine.search.profiling import StepEvidence
from engine.search.progress import INTERRUPTED, SPENT, Progress
from engine.search.puct import constants as search_constants
from engine.search.reward import CONSTANTS
from engine.search.tree import Node
from engine.spec.kernel_spec import KernelSpec


@dataclass(frozen=True)
class Found:
    """What a search came to: the best with its confirmation, those that did not hold, the steps with their evidence and what it lacks."""

    best: Confirmed[Node] | None
    refused: Sequence[Refusal]
    path: Sequence[Node]
    evidence: Sequence[StepEvidence]
    lost: tuple[str, ...]


def optimization_result(
    options: Options,
    spec: KernelSpec,
    search: Search,
    found: Found,
    notes: Sequence[str],
    part: ModelParticipant | None,
) -> OptimizationResult:
    """The result of a search, in the form in which it is written."""
    progress, evidence, refused = search.progress, found.evidence, found.refused
    signals = search.evaluator.signals
    original = search.tree.root.evaluation
    assert original is not None
    steps: list[TrajectoryStep] = []
    chosen: Best | None = None
    if found.best is not None:
        node = found.best.candidate
        for place, step in enumerate(found.path[1:], 1):
            assert step.proposal is not None
            assert step.evaluation is not None
            p = step.proposal
            seen = evidence[place] if place < len(evidence) else StepEvidence(())
            steps.append(
                TrajectoryStep(
                    step.id, p.proposer, p.rule, p.summary, dict(p.parameters), step.evaluation, seen.diagnosis, seen.moved,
                    seen.lines,
                )
            )  # fmt: skip
        first = search.tree.root.program.files
        changed = tuple(sorted(k for k, v in node.program.files.items() if first.get(k) != v))
        chosen = Best(node.id, found.best.evaluation, "best.patch", changed)
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
            more = (
                " by preparing and validating the kernel; give a larger --budget" if progress.stopped == SPENT else ""
            )
            return f"No candidate was tried for {kernel}: {progress.stopped}{more}."
        share = f"; its effective bandwidth is {100 * copy_share:.0f} % of copy" if copy_share else ""
        return f"No improvement found for {kernel}: {tried}{share}."
    return faster(kernel, best.evaluation, device, tried)

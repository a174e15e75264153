"""What the model of the target says of programs where no profiler can: counters for the reward, diagnoses, the trajectory's evidence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Protocol

from engine.compile.built import Built
from engine.errors import OptimlError
from engine.model import Evaluation, Program, Target
from engine.predict.footprint import Footprint
from engine.predict.targets import figures_for
from engine.profile.access_findings import access_findings
from engine.profile.changes import RATIO, CounterChange
from engine.profile.counters import Counter, Profile, StepProfile
from engine.profile.diagnosis import CaseFacts, Diagnosis, diagnose_static
from engine.profile.evidence import array_bytes, evidence_for, heaviest_case
from engine.profile.line_weights import LineWeight, predicted_lines
from engine.search.participants import Observation
from engine.search.profiling import Known, StepEvidence, occupancy
from engine.search.reward import Proxies
from engine.search.tree import Node
from engine.spec.kernel_spec import KernelSpec


class Footprints(Protocol):
    """Who predicts what programs move: `engine.evaluate.speeds.Speeds`."""

    def footprint(self, built: Built, case: int) -> Footprint | None:
        """What a timing case moves and executes."""
        ...


class PredictedWatch:
    """Counters for the reward without a profiler: what the model of the target counts, known as soon as a candidate is booked.

    And a diagnosis from predicted times, occupancy and resource use, which says that nothing of it was measured.
    """

    def __init__(self, source: Footprints, spec: KernelSpec, target: Target) -> None:
        self._source, self._spec, self._target = source, spec, target
        self._case = heaviest_case(spec)
        self._arrived: list[Observation] = []
        self._known: dict[str, tuple[Diagnosis, Profile]] = {}
        self._lines: dict[str, tuple[LineWeight, ...]] = {}

    def passed(self, node: Node, built: Built) -> None:
        found = self._source.footprint(built, self._case - len(self._spec.check))
        if node.evaluation is not None:
            self._known[built.program.digest] = self._diagnosed(built, node.evaluation, found)
        if found is not None:
            counters = {
                "bytes asked of L2": (found.moved_bytes, "byte"), "warp instructions": (found.instructions, "inst")
            }  # fmt: skip
            proxies = Proxies(found.moved_bytes, found.instructions, occupancy(built, self._spec, self._case))
            self._arrived.append(Observation(node.id, "predicted", [counters], proxies))

    def want(self, digest: str) -> None:
        """See `Insight.want`; predictions are there from the start."""

    def known(self, digest: str) -> tuple[Diagnosis, Profile] | None:
        """See `Insight.known`."""
        return self._known.get(digest)

    def require(self, node: Node, build: Callable[[Program], Built]) -> Future[Known | None]:
        """See `Insight.require`."""
        assert node.evaluation is not None
        found = self._known.get(node.program.digest)
        if found is None:
            built = build(node.program)
            counted = self._source.footprint(built, self._case - len(self._spec.check))
            found = self._known[node.program.digest] = self._diagnosed(built, node.evaluation, counted)
        known: Future[Known | None] = Future()
        known.set_result(found)
        return known

    def trajectory(self, path: Sequence[tuple[Built, Evaluation]], patience_s: float = 0.0) -> list[StepEvidence]:
        """See `Insight.trajectory`; what moved are the model's counts."""
        found: list[StepEvidence] = []
        before: Profile | None = None
        for built, evaluation in path:
            known = self.known(built.program.digest)
            if known is None:  # an earlier run's, taken over from its journal
                counted = self._source.footprint(built, self._case - len(self._spec.check))
                known = self._diagnosed(built, evaluation, counted)
            diagnosis, profile = known
            lines = self._lines.get(built.program.digest, ())
            found.append(StepEvidence(diagnosis.sentences(), _moved(before, profile), diagnosis.copy_share, lines))
            before = profile
        return found

    def _diagnosed(self, built: Built, evaluation: Evaluation, found: Footprint | None) -> tuple[Diagnosis, Profile]:
        cases = evaluation.measurement.cases if evaluation.measurement is not None else ()
        if found is not None:
            self._lines[built.program.digest] = predicted_lines(found.counts.kernels)
        diagnosis = diagnose_static(
            evidence_for(built, self._spec, self._case),
            CaseFacts(
                self._target, _bandwidth(built.binary.arch), cases[self._case - len(self._spec.check)].candidate_us if cases else None,
                array_bytes(self._spec, self._case),
            ),
            why="times are predicted",
            accesses=[access_findings(kernel) for kernel in found.counts.kernels] if found is not None else (),
        )  # fmt: skip
        counters = {} if found is None else {
            "predicted L2 traffic": Counter(found.moved_bytes, "byte"),
            "predicted warp instructions": Counter(found.instructions, "inst"),
        }  # fmt: skip
        step = StepProfile(self._spec.kernel, built.launches[self._case][0], counters)
        return diagnosis, Profile(built.binary.code_hash, "predicted", self._case, (step,), predicted=found)

    def arrivals(self) -> Sequence[Observation]:
        came, self._arrived = self._arrived, []
        return came


def _moved(before: Profile | None, after: Profile) -> tuple[str, ...]:
    if before is None:
        return ()
    changes = [
        CounterChange(
            name, before.steps[0].counters[name].value, counter.value, "bytes" if counter.unit == "byte" else ""
        )
        for name, counter in after.steps[0].counters.items()
        if name in before.steps[0].counters
    ]
    return tuple(str(change) for change in changes if change.weight >= RATIO)


def _bandwidth(arch: str) -> float:
    try:
        return figures_for(arch).dram_bytes_s
    except OptimlError:
        return 0.0  # an architecture whose figures are not known

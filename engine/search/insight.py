"""What the profiler says of programs while a search runs: diagnoses that reweigh proposals, and the trajectory's evidence."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import Protocol

from engine.evaluate.model import Built
from engine.model import Evaluation
from engine.profile.compare import moved
from engine.profile.diagnosis import Diagnosis, diagnose, diagnose_static
from engine.profile.evidence import array_bytes, evidence_for, heaviest_case, request_for
from engine.profile.model import FULL, Profile
from engine.profile.priors import reweighted
from engine.profile.service import Answer, Priority, ProfileService
from engine.rules.model import Proposal, Target
from engine.spec.model import KernelSpec

_TRAJECTORY_S = 40.0  # starting ncu takes some four seconds, a kernel half a second; beyond this something is wrong


@dataclass(frozen=True)
class Evidence:
    """One program of the trajectory: the diagnosis in sentences, and the counters that moved since the one before."""

    diagnosis: tuple[str, ...]
    moved: tuple[str, ...] = ()
    copy_share: float | None = None


class Insight(Protocol):
    """What the search asks of a profiler; every answer may be that there is none."""

    def look(self, built: Built, evaluation: Evaluation) -> None:
        """A program worth building upon: have it diagnosed beside the search."""
        ...

    def weigh(self, digest: str, proposals: Sequence[Proposal]) -> list[Proposal] | None:
        """The proposals with priors by the program's diagnosis, most promising first; None while there is none."""
        ...

    def known(self, digest: str) -> tuple[Diagnosis, Profile] | None:
        """What is known of the program with this digest; None while there is nothing."""
        ...

    def trajectory(self, path: Sequence[tuple[Built, Evaluation]]) -> list[Evidence]:
        """The evidence of each program on a path, from the original on."""
        ...

    def close(self) -> tuple[str, ...]:
        """End it; what it could not see, in sentences."""
        ...


class ProfilerInsight:
    """Insight from a profile service on a GPU, with what can be said without counters where it has none."""

    def __init__(self, service: ProfileService, spec: KernelSpec, target: Target, bandwidth: float) -> None:
        self._service, self._spec, self._target, self._bandwidth = service, spec, target, bandwidth
        self._case = heaviest_case(spec)
        self._known: dict[str, tuple[Diagnosis, Profile]] = {}
        self._lock = threading.Lock()
        self._failures: dict[str, None] = {}

    def look(self, built: Built, evaluation: Evaluation) -> None:
        digest = built.program.digest
        future = self._service.submit(request_for(built, self._spec, self._case), FULL, Priority.EXPANSION)

        def book(done: Future[Answer]) -> None:
            if done.cancelled():
                return
            answer = done.result()
            if isinstance(answer, Profile):
                diagnosis = self._diagnosed(built, evaluation, answer)
                with self._lock:
                    self._known[digest] = diagnosis, answer

        future.add_done_callback(book)

    def weigh(self, digest: str, proposals: Sequence[Proposal]) -> list[Proposal] | None:
        known = self.known(digest)
        return None if known is None else reweighted(proposals, known[0])

    def known(self, digest: str) -> tuple[Diagnosis, Profile] | None:
        with self._lock:
            return self._known.get(digest)

    def trajectory(self, path: Sequence[tuple[Built, Evaluation]]) -> list[Evidence]:
        futures = [
            self._service.submit(request_for(built, self._spec, self._case), FULL, Priority.REQUIRED)
            for built, _ in path
        ]
        found: list[Evidence] = []
        before: Profile | None = None
        for (built, evaluation), future in zip(path, futures, strict=True):
            try:
                answer: Answer | None = future.result(timeout=_TRAJECTORY_S)
            except FutureTimeout:
                answer = None
            if isinstance(answer, Profile):
                diagnosis = self._diagnosed(built, evaluation, answer)
                changes = tuple(str(change) for change in moved(before, answer)) if before is not None else ()
                before = answer
            else:
                why = answer.reason if answer is not None else "the profiler did not answer in time"
                self._failures[why] = None
                changes, before = (), None
                diagnosis = self._undiagnosed(built, evaluation, why)
            found.append(Evidence(diagnosis.sentences(), changes, diagnosis.copy_share))
        return found

    def close(self) -> tuple[str, ...]:
        self._service.close()
        reasons = [self._service.unusable] if self._service.unusable else list(self._failures)
        return tuple(f"no counters for some programs: {why}" for why in reasons[:2])

    def _time_us(self, evaluation: Evaluation) -> float | None:
        if evaluation.measurement is None or not evaluation.measurement.cases:
            return None
        return evaluation.measurement.cases[self._case - len(self._spec.check)].candidate_us

    def _diagnosed(self, built: Built, evaluation: Evaluation, profile: Profile) -> Diagnosis:
        return diagnose(
            profile, evidence_for(built, self._spec, self._case), target=self._target, bandwidth=self._bandwidth,
            time_us=self._time_us(evaluation), array_bytes=array_bytes(self._spec, self._case),
        )  # fmt: skip

    def _undiagnosed(self, built: Built, evaluation: Evaluation, why: str) -> Diagnosis:
        return diagnose_static(
            evidence_for(built, self._spec, self._case), target=self._target, bandwidth=self._bandwidth,
            time_us=self._time_us(evaluation), array_bytes=array_bytes(self._spec, self._case), why=why,
        )  # fmt: skip

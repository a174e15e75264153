"""The parent's side of the front workers."""

from __future__ import annotations

import dataclasses
import os
import threading
from array import array
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from engine.crew import Crew
from engine.errors import OptimlError
from engine.evaluate.analysis import Analysis, Prepared
from engine.model import LaunchConfig, Program
from engine.rules import RuleFailure
from engine.rules.model import Family, Proposal, Target
from engine.sandbox import python_command
from engine.source.model import Edit, Span
from engine.spec.model import KernelSpec
from engine.threads import ONE_THREAD
from engine.tune.feasible import Feasible
from engine.tune.offers import Offer, Place, offers, rule_template
from engine.verify.defences import ALL, Defences
from engine.worker import Worker, WorkerLost

# Rules stop by themselves after four seconds of a core for each step; slices take far less.
_TIMEOUT_S = 60.0
# With fewer cores there is nothing to gain: the workers would only take them from the compilers.
LEAST_CORES = 4
_MOST_PREPARED = 256  # points that were prepared as they were written, and that nobody asked for yet
_ENVIRONMENT = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH")


class Front(Analysis):
    """Analyses candidates in worker processes, at most `workers` at once; `close` ends them all. Thread-safe.

    Half of them start with `warm`, the others one by one when all are busy. For a single call an `Analysis` is faster: a worker
    takes a third of a second to start. A worker that hangs or dies costs the one program it was at.
    """

    def __init__(
        self, spec: KernelSpec, root: Path, target: Target, spec_path: str | None = None, *, workers: int = 1,
        defences: Defences = ALL,
    ) -> None:  # fmt: skip
        super().__init__(spec, root, target, spec_path, defences=defences)
        # Thousands for some templates, the same for most programs of a run.
        self._points: dict[tuple[int, bytes], Feasible] = {}
        self._prepared: dict[str, Prepared | OptimlError] = {}  # by the digest of the program
        self._lock = threading.Lock()
        self._most = workers
        self._crew = Crew(self._start, self._open, workers, at_once=1, ended="the search has ended")

    def warm(self, original: Program) -> None:
        """Start workers now, beside what else there is to do; none where as many are there from an earlier run."""
        self.original_program = original
        self._crew.warm((self._most + 1) // 2)

    def prepare(self, program: Program) -> Prepared:
        with self._lock:
            known = self._prepared.pop(program.digest, None)
        if isinstance(known, OptimlError):
            raise known
        return known if known is not None else _prepared(*self._ask("prepare", program))

    def propose(self, program: Program) -> tuple[list[Proposal], list[RuleFailure]]:
        answer, _ = self._ask("propose", program)
        found = [_proposal(plain) for plain in answer["proposals"]]
        return found, [RuleFailure(**failure) for failure in answer["failures"]]

    def offers(self, program: Program) -> list[Offer]:
        """As `engine.tune.offers.offers`; none of a program that cannot be read.

        Points of a rule's template are written by that rule in a worker, and prepared there.
        """
        try:
            answer, points = self._ask("offers", program)
        except OptimlError:
            return []
        if answer["declared"]:  # few are, and what they know of launches is asked point by point
            return offers(program, self.spec, self.spec_path, self.target)
        return [self._offer(program, *each) for each in zip(answer["offers"], points, strict=True)]

    def _offer(self, program: Program, plain: dict[str, Any], points: bytes) -> Offer:
        parameters = {name: tuple(values) for name, values in plain["parameters"].items()}
        make = partial(self._write, program, plain["rule"], plain["place"], parameters)
        family = Family(
            plain["rule"], plain["summary"], parameters, tuple(plain["conditions"]), make, plain["prior"]
        )  # fmt: skip
        shared = self._points.get((len(parameters), points))
        if shared is None:
            shared = self._points[len(parameters), points] = Feasible(_points(points, len(parameters)), ())
        return Offer(
            rule_template(program, family), shared, _proposal(plain["first"]), plain["prior"], Place(*plain["place"])
        )

    def _write(
        self, program: Program, rule: str, place: tuple[int, int], parameters: Mapping[str, Sequence[int]],
        values: Mapping[str, int],
    ) -> Proposal | None:  # fmt: skip
        answer, blobs = self._ask("write", program, rule=rule, place=place, parameters=parameters, values=dict(values))
        if answer["proposal"] is None:
            return None
        unfit = answer.get("unfit")
        prepared = OptimlError(str(unfit)) if unfit is not None else _prepared(answer, blobs)
        with self._lock:
            self._prepared[answer["digest"]] = prepared
            if len(self._prepared) > _MOST_PREPARED:
                del self._prepared[next(iter(self._prepared))]
        return _proposal(answer["proposal"])

    def close(self) -> None:
        self._crew.close()

    def _ask(self, op: str, program: Program, **more: Any) -> tuple[dict[str, Any], list[bytes]]:
        names = list(program.files)
        header = {"op": op, "files": names, "kernel_file": program.kernel_file, **more}
        try:
            with self._crew.worker() as worker:
                answer, blobs = worker.call(header, [program.files[name] for name in names], timeout_s=_TIMEOUT_S)
        except WorkerLost as lost:
            slow = lost.kind == "timeout"
            raise OptimlError("takes too long to analyse" if slow else "took the process that reads it down") from None
        if "refused" in answer:
            raise OptimlError(str(answer["refused"]))
        return answer, blobs

    def _start(self) -> Worker:
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        return Worker(python_command("engine.front.worker"), environment={**environment, **ONE_THREAD})

    def _open(self, worker: Worker) -> None:
        original = self.original_program
        names = list(original.files) if original is not None else []
        header = {
            "op": "open",
            "spec": dataclasses.asdict(self.spec),
            "root": str(self.root),
            "target": dataclasses.asdict(self.target),
            "spec_path": self.spec_path,
            "defences": dataclasses.asdict(self.defences),
            "files": names,
            "kernel_file": original.kernel_file if original is not None else "",
        }
        blobs = [original.files[name] for name in names] if original is not None else []
        try:
            worker.call(header, blobs, timeout_s=_TIMEOUT_S)
        except WorkerLost as lost:
            raise OptimlError(
                f"a process that reads candidates cannot start: {lost.stderr[-300:] or lost.what}"
            ) from None


def _prepared(answer: Mapping[str, Any], blobs: Sequence[bytes]) -> Prepared:
    launches = tuple(
        tuple(LaunchConfig(tuple(grid), tuple(block), shared) for grid, block, shared in case)
        for case in answer["launches"]
    )
    return Prepared(blobs[0].decode(), launches)


def _points(plain: bytes, width: int) -> tuple[tuple[int, ...], ...]:
    values = iter(array("q", plain))
    return tuple(zip(*[values] * width, strict=True))


def _proposal(plain: dict[str, Any]) -> Proposal:
    edits = {
        path: tuple(Edit(Span(start, end), text) for start, end, text in edits)
        for path, edits in plain["edits"].items()
    }
    return Proposal(
        plain["proposer"], plain["rule"], plain["summary"], edits, plain["parameters"], plain["prior"],
        makes=plain.get("makes"),
    )  # fmt: skip

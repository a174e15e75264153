"""The parent's side of the front workers."""

from __future__ import annotations

import dataclasses
import os
import threading
from pathlib import Path
from typing import Any

from engine.errors import OptimlError
from engine.evaluate.analysis import Analysis, Prepared
from engine.model import LaunchConfig, Program
from engine.rules import RuleFailure
from engine.rules.model import Family, Proposal, Target
from engine.sandbox import python_command
from engine.source.model import Edit, Span
from engine.spec.model import KernelSpec
from engine.tune.feasible import Feasible
from engine.tune.offers import Again, Offer, Place, offers, rule_template
from engine.tune.space import Point
from engine.verify.defences import ALL, Defences
from engine.worker import Worker, WorkerLost

# Rules stop by themselves after four seconds of a core for each step; slices take far less.
_TIMEOUT_S = 60.0
# With fewer cores there is nothing to gain: the workers would only take them from the compilers.
LEAST_CORES = 4
_ENVIRONMENT = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH")


class Front(Analysis):
    """Analyses candidates in a worker process of the calling thread's own; `close` ends them all. Thread-safe.

    A thread that makes one call alone should ask an `Analysis`: a worker takes half a second to start. A worker that
    hangs or dies costs the one program it was at.
    """

    def __init__(
        self, spec: KernelSpec, root: Path, target: Target, spec_path: str | None = None, *, defences: Defences = ALL
    ) -> None:
        super().__init__(spec, root, target, spec_path, defences=defences)
        self._own = threading.local()
        self._points: dict[
            tuple[Point, ...], Feasible
        ] = {}  # thousands for some templates, the same for most programs of a run
        self._workers: set[Worker] = set()
        self._lock = threading.Lock()
        self._closed = False

    def start(self) -> None:
        """Start the calling thread's worker ahead of its first call. Raises OptimlError once this was closed."""
        self._worker()

    def prepare(self, program: Program) -> Prepared:
        answer, blobs = self._ask("prepare", program)
        launches = tuple(
            tuple(LaunchConfig(tuple(grid), tuple(block), shared) for grid, block, shared in case)
            for case in answer["launches"]
        )
        return Prepared(blobs[0].decode(), launches)

    def propose(self, program: Program) -> tuple[list[Proposal], list[RuleFailure]]:
        answer, _ = self._ask("propose", program)
        found = [_proposal(plain) for plain in answer["proposals"]]
        return found, [RuleFailure(**failure) for failure in answer["failures"]]

    def offers(self, program: Program) -> list[Offer]:
        """As `engine.tune.offers.offers`; none of a program that cannot be read.

        A rule's template is written out by that rule in this process, when a point is wanted.
        """
        try:
            answer, _ = self._ask("offers", program)
        except OptimlError:
            return []
        if answer["declared"]:  # few are, and what they know of launches is asked point by point
            return offers(program, self.spec, self.spec_path, self.target)
        return [self._offer(program, plain) for plain in answer["offers"]]

    def _offer(self, program: Program, plain: dict[str, Any]) -> Offer:
        place = Place(*plain["place"])
        parameters = {name: tuple(values) for name, values in plain["parameters"].items()}
        make = Again(program, self.spec, self.target, plain["rule"], place, parameters)
        family = Family(
            plain["rule"], plain["summary"], parameters, tuple(plain["conditions"]), make, plain["prior"]
        )  # fmt: skip
        points = tuple(map(tuple, plain["points"]))
        shared = self._points.setdefault(points, Feasible(points, ()))
        return Offer(rule_template(program, family), shared, _proposal(plain["first"]), plain["prior"], place)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            workers, self._workers = self._workers, set()
        for worker in workers:
            worker.kill()

    def _ask(self, op: str, program: Program) -> tuple[dict[str, Any], list[bytes]]:
        worker = self._worker()
        names = list(program.files)
        header = {"op": op, "files": names, "kernel_file": program.kernel_file}
        try:
            answer, blobs = worker.call(header, [program.files[name] for name in names], timeout_s=_TIMEOUT_S)
        except WorkerLost as lost:
            self._own.worker = None
            with self._lock:
                self._workers.discard(worker)
            slow = lost.kind == "timeout"
            raise OptimlError("takes too long to analyse" if slow else "took the process that reads it down") from None
        if "refused" in answer:
            raise OptimlError(str(answer["refused"]))
        return answer, blobs

    def _worker(self) -> Worker:
        worker: Worker | None = getattr(self._own, "worker", None)
        if worker is not None and worker.alive:
            return worker
        with self._lock:
            if self._closed:
                raise OptimlError("the search has ended")
            environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
            worker = Worker(python_command("engine.front.worker"), environment=environment)
            self._workers.add(worker)
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
        worker.call(header, blobs, timeout_s=_TIMEOUT_S)
        self._own.worker = worker
        return worker


def _proposal(plain: dict[str, Any]) -> Proposal:
    edits = {
        path: tuple(Edit(Span(start, end), text) for start, end, text in edits)
        for path, edits in plain["edits"].items()
    }
    return Proposal(plain["proposer"], plain["rule"], plain["summary"], edits, plain["parameters"], plain["prior"])

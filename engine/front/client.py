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
        self._workers: set[Worker] = set()
        self._most, self._starting = workers, 0
        self._idle: list[Worker] = []  # the one that worked last at the end
        self._changed = threading.Condition()
        self._problem = ""  # why the last one did not start
        self._closed = False

    def warm(self, original: Program) -> None:
        """Start workers now, beside what else there is to do; none where as many are there from an earlier run."""
        self.original_program = original
        with self._changed:
            while len(self._workers) + self._starting < (self._most + 1) // 2:
                self._grow()

    def prepare(self, program: Program) -> Prepared:
        with self._changed:
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
        with self._changed:
            self._prepared[answer["digest"]] = prepared
            if len(self._prepared) > _MOST_PREPARED:
                del self._prepared[next(iter(self._prepared))]
        return _proposal(answer["proposal"])

    def close(self) -> None:
        with self._changed:
            self._closed = True
            workers, self._workers, self._idle = self._workers, set(), []
            self._changed.notify_all()
        for worker in workers:
            worker.kill()

    def _ask(self, op: str, program: Program, **more: Any) -> tuple[dict[str, Any], list[bytes]]:
        worker = self._take()
        names = list(program.files)
        header = {"op": op, "files": names, "kernel_file": program.kernel_file, **more}
        try:
            answer, blobs = worker.call(header, [program.files[name] for name in names], timeout_s=_TIMEOUT_S)
        except WorkerLost as lost:
            slow = lost.kind == "timeout"
            raise OptimlError("takes too long to analyse" if slow else "took the process that reads it down") from None
        finally:
            self._give_back(worker)
        if "refused" in answer:
            raise OptimlError(str(answer["refused"]))
        return answer, blobs

    def _take(self) -> Worker:
        """A worker of the caller's own until it is given back. Raises OptimlError where none starts, and once this was closed."""
        with self._changed:
            while not self._closed:
                while self._idle:
                    worker = self._idle.pop()
                    if worker.alive:
                        return worker
                    self._workers.discard(worker)
                if self._problem and not self._workers and not self._starting:
                    problem, self._problem = self._problem, ""
                    raise OptimlError(problem)
                if not self._starting and len(self._workers) < self._most:
                    self._grow()
                self._changed.wait()
        raise OptimlError("the search has ended")

    def _give_back(self, worker: Worker) -> None:
        with self._changed:
            if not worker.alive:
                self._workers.discard(worker)
            elif worker in self._workers:
                self._idle.append(worker)
            self._changed.notify()

    def _grow(self) -> None:
        """Have one more started, with the lock held."""
        threading.Thread(target=self._start, daemon=True).start()
        self._starting += 1  # now that there is a thread for it

    def _start(self) -> None:
        worker, problem = None, ""
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        try:
            worker = Worker(python_command("engine.front.worker"), environment={**environment, **ONE_THREAD})
            self._open(worker)
        except (OptimlError, OSError, RuntimeError) as error:  # the last: the interpreter ends
            problem = f"a process that reads candidates cannot start: {error}"
        with self._changed:
            self._starting -= 1
            kept = worker is not None and not problem and not self._closed
            if worker is not None and kept:
                self._workers.add(worker)
                self._idle.append(worker)
            if problem:
                self._problem, self._most = problem, max(1, len(self._workers))
            self._changed.notify_all()
        if worker is not None and not kept:
            worker.kill()

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
        worker.call(header, blobs, timeout_s=_TIMEOUT_S)


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

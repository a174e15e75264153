"""The parent's side of the workers that read and build candidates."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from engine.compile.built import Built
from engine.cuda.kernel import Edit, Span
from engine.cuda.parse import note_errors
from engine.errors import OptimlError
from engine.evaluate.analysis import Analysis
from engine.evaluate.build import not_built
from engine.evaluate.contained import contained_build
from engine.evaluate.device_frames import BuiltHead, built_of
from engine.model import Outcome, Program, Target
from engine.process.cores import ONE_THREAD
from engine.process.decode import decode
from engine.process.pool import Crew
from engine.process.sandbox import NoSandbox, Sandbox, python_command
from engine.process.worker_process import Worker, WorkerLost
from engine.rewrite.proposal import Family, Proposal
from engine.rules import RuleFailure
from engine.spec.kernel_spec import KernelSpec
from engine.tune.feasible import Feasible
from engine.tune.offers import Offer, SearchPlace, offers, rule_template
from engine.verify.defences import ALL, Defences

# Rules stop by themselves after four seconds of a core for each step; slices take far less.
_TIMEOUT_S = 60.0
# So do compilers: NVRTC after 30 s, and nvcc, which takes what it refuses, after 120.
_BUILD_TIMEOUT_S = 240.0
# With fewer cores there is nothing to gain: the workers would only take them from the compilers.
LEAST_CORES = 4
_READERS = 6  # workers beyond those that build: as many as are asked at once
_MOST_BUILT = 64  # points that were built as they were written, and that nobody asked for yet
_ENVIRONMENT = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH")


@dataclass(frozen=True)
class Compiling:
    """How workers compile; `cache` is the folder of compiled code, `builds` how many candidates are built at once."""

    arch: str
    box: Sandbox | NoSandbox
    cache: Path | None
    builds: int = 1
    line_info: bool = False


class BuildWorkers(Analysis):
    """Reads and builds candidates in worker processes, each with a compiler of its own; `close` ends them all. Thread-safe.

    So this process, whose threads share one interpreter, has one question and one answer for each. Workers start with `warm` or
    when all are busy. For a single call an `Analysis` is faster: a worker takes half a second to start. One that hangs or dies costs
    the one program it was at.
    """

    def __init__(
        self, spec: KernelSpec, root: Path, target: Target, spec_path: str | None, compiling: Compiling, *,
        defences: Defences = ALL,
    ) -> None:  # fmt: skip
        super().__init__(spec, root, target, spec_path, defences=defences)
        box, cache, builds = compiling.box, compiling.cache, compiling.builds
        self._compiling = {
            "arch": compiling.arch,
            "box": None if isinstance(box, NoSandbox) else {**dataclasses.asdict(box), "bwrap": str(box.bwrap)},
            "cache": None if cache is None else str(cache),
            "line_info": compiling.line_info,
        }
        # Thousands for some templates, the same for most programs of a run.
        self._points: dict[tuple[int, bytes], Feasible] = {}
        self._built: dict[str, tuple[dict[str, Any], list[bytes]]] = {}  # by the digest of the program
        self._lock = threading.Lock()
        self._builds, self._opened = builds, 0
        self._crew = Crew(self._start, self._open, builds + _READERS, at_once=1, ended="the search has ended")

    def warm(self, original: Program, at_once: int) -> None:
        """Start workers now for so many builds at once, beside what else there is to do; none where they are there from an earlier run."""
        self.original_program = original
        self._crew.warm(min(self._builds, at_once))

    @contained_build
    def build(self, program: Program) -> Built:
        """As `engine.evaluate.build.Builder.candidate`, without what depends on the original's machine code."""
        begin = time.perf_counter()
        with self._lock:
            known = self._built.pop(program.digest, None)
        try:
            answer, blobs = known or self._ask(
                "build", program, timeout_s=_BUILD_TIMEOUT_S, further=self.further_sizes()
            )
        except OptimlError as error:
            raise not_built(Outcome.SCREENED_OUT, error.what, {"parse": time.perf_counter() - begin}) from None
        if (failed := answer.get("failed")) is not None:
            raise not_built(Outcome(failed["outcome"]), failed["reason"], answer["stage_s"], failed["line"])
        return built_of(decode(BuiltHead, answer["built"]), blobs, program, program.kernel_file)

    def propose(self, program: Program) -> tuple[list[Proposal], list[RuleFailure]]:
        answer, _ = self._ask("propose", program)
        for path, errors in answer["not_understood"].items():
            note_errors(program.files[path], path, tuple(Span(*error) for error in errors))
        found = [_proposal(plain) for plain in answer["proposals"]]
        return found, [RuleFailure(**failure) for failure in answer["failures"]]

    def offers(self, program: Program) -> list[Offer]:
        """As `engine.tune.offers.offers`; none of a program that cannot be read.

        Points of a rule's template are written by that rule in a worker, and built there.
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
            rule_template(program, family),
            shared,
            _proposal(plain["first"]),
            plain["prior"],
            SearchPlace(*plain["place"]),
        )

    def _write(
        self, program: Program, rule: str, place: tuple[int, int], parameters: Mapping[str, Sequence[int]],
        values: Mapping[str, int],
    ) -> Proposal | None:  # fmt: skip
        answer, blobs = self._ask(
            "write",
            program,
            timeout_s=_BUILD_TIMEOUT_S,
            rule=rule,
            place=place,
            parameters=parameters,
            values=dict(values),
            further=self.further_sizes(),
        )
        plain = answer.pop("proposal")
        if plain is None:
            return None
        with self._lock:
            self._built[answer.pop("digest")] = answer, blobs
            if len(self._built) > _MOST_BUILT:
                del self._built[next(iter(self._built))]
        return _proposal(plain)

    def close(self) -> None:
        self._crew.close()

    def _ask(
        self, op: str, program: Program, *, timeout_s: float | None = None, **more: Any
    ) -> tuple[dict[str, Any], list[bytes]]:
        names = list(program.files)
        header = {"op": op, "files": names, "kernel_file": program.kernel_file, **more}
        try:
            with self._crew.worker() as worker:
                answer, blobs = worker.call(
                    header, [program.files[name] for name in names], timeout_s=timeout_s or _TIMEOUT_S
                )
        except WorkerLost as lost:
            slow = lost.kind == "timeout"
            raise OptimlError(
                "the analysis took too long" if slow else "crashed the process that analyses it"
            ) from None
        if "refused" in answer:
            raise OptimlError(str(answer["refused"]))
        return answer, blobs

    def _start(self) -> Worker:
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        return Worker(python_command("engine.builders.builder_worker"), environment={**environment, **ONE_THREAD})

    def _open(self, worker: Worker) -> None:
        original = self.original_program
        names = list(original.files) if original is not None else []
        with self._lock:
            self._opened += 1
            compiles = self._opened <= self._builds
        header = {
            "op": "open",
            "compiles": compiles,  # soon: those that come later are there to read, and start a compiler if they have to build
            "spec": dataclasses.asdict(self.spec),
            "root": str(self.root),
            "target": dataclasses.asdict(self.target),
            "spec_path": self.spec_path,
            "defences": dataclasses.asdict(self.defences),
            **self._compiling,
            "files": names,
            "kernel_file": original.kernel_file if original is not None else "",
        }
        blobs = [original.files[name] for name in names] if original is not None else []
        try:
            answer, _ = worker.call(header, blobs, timeout_s=_TIMEOUT_S)
        except WorkerLost as lost:
            raise OptimlError(f"a builder process cannot start: {lost.stderr[-300:] or lost.what}") from None
        if "refused" in answer:
            raise OptimlError(f"a builder process cannot start: {answer['refused']}")


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

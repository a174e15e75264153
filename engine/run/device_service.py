"""What a worker does for a search elsewhere: holds the evaluator of its device, and answers frames.

`answer(frame)` is the function that a cluster runs by name. It keeps the sessions of this process; a process times one candidate at a
time. The original and the candidates come built: nothing here reads a repository.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from engine.compile.built import Built, NotBuilt
from engine.errors import MachineError, OptimlError
from engine.evaluate.build import Builder, BuildOptions
from engine.evaluate.contained import unexpected
from engine.evaluate.cpu import CpuEvaluator
from engine.evaluate.device_frames import (
    Opening,
    Problem,
    Reply,
    Request,
    built_of,
    pack,
    problem_of,
    read_request,
)
from engine.evaluate.devices import Job, evaluate
from engine.evaluate.evaluator import Evaluator, unbuilt
from engine.evaluate.gpu import GpuEvaluator
from engine.evaluate.samples import on_other_device
from engine.model import Measurement, Program
from engine.predict.footprint import Footprint
from engine.process.cores import attentive
from engine.process.decode import NotThis, decode
from engine.process.wire import WireError
from engine.run.machine import Machine, make_machine
from engine.spec.kernel_spec import KernelSpec

_HELD = 8  # incumbents
_MOST_SESSIONS = 2  # a search, and the dispatch code that it confirms
_SESSIONS: dict[str, Session] = {}
_LOCK = threading.Lock()


def answer(frame: bytes) -> bytes:
    """The reply to a request of `engine.evaluate.remote`."""
    with _LOCK, attentive():  # the thread that carries messages waits for the interpreter several times for each
        try:
            request, blobs = read_request(frame)
            return pack(_answer(request, blobs))
        except (WireError, NotThis) as error:
            return pack(Reply(problem=Problem("MachineError", f"a request cannot be read: {error}", "", "")))
        except OptimlError as error:
            return pack(Reply(problem=problem_of(error)))
        except Exception as error:
            return pack(Reply(problem=Problem("MachineError", unexpected(error), "", "")))


def _answer(request: Request, blobs: list[bytes]) -> Reply:
    if request.op == "open" and request.opening is not None:
        if (earlier := _SESSIONS.pop(request.session, None)) is not None:  # it was away, and comes back
            earlier.close()
        while len(_SESSIONS) >= _MOST_SESSIONS:  # whoever lost its connection never closes its own
            _SESSIONS.pop(next(iter(_SESSIONS))).close()
        session = Session(request.opening, blobs)
        _SESSIONS[request.session] = session
        return session.opened
    if request.op == "close":
        if (ended := _SESSIONS.pop(request.session, None)) is not None:
            ended.close()
        return Reply()
    held = _SESSIONS.get(request.session)
    if held is None:
        raise MachineError("the device was started anew during the search", do="go on with --resume")
    return held.answer(request, blobs)


class _Received(Builder):
    """The original as it came, built."""

    received: Built

    def original(self, program: Program) -> Built:
        self.original_program, self._original = program, self.received.binary
        return self.received


@dataclass
class Session:
    """One search on this device."""

    opening: Opening
    blobs: list[bytes]
    machine: Machine = field(init=False)
    evaluator: Evaluator = field(init=False)
    opened: Reply = field(init=False)

    def __post_init__(self) -> None:
        given = self.opening
        built = built_of(given.original, self.blobs, None, given.kernel_file)
        self._program = built.program
        self._incumbents: OrderedDict[str, Built] = OrderedDict()
        self._cores = os.sched_getaffinity(0)
        if given.cores:
            os.sched_setaffinity(0, given.cores)
        spec = decode(KernelSpec, given.spec)
        self.machine = make_machine(
            device="gpu" if given.mode == "measured" else "cpu", arch=given.arch, jobs=len(os.sched_getaffinity(0))
        )
        try:
            root = self.machine.scratch
            builder = _Received(
                spec,
                root,
                self.machine.compiler,
                self.machine.target,
                given.spec_path,
                BuildOptions(line_info=given.mode == "predicted", defences=given.defences, limits=given.limits),
            )
            builder.received = built
            self.evaluator = self.machine.evaluator_with(spec, builder)
            assert isinstance(self.evaluator, CpuEvaluator | GpuEvaluator)
            self.evaluator.seed(given.secret)
            if isinstance(self.evaluator, GpuEvaluator):
                self.evaluator.ahead = given.confirms
            built, evaluation = self.evaluator.open(built.program)
            signals = self.evaluator.signals
            self.opened = Reply(
                evaluation, footprints=self._footprints(built), mode=signals.mode, device=dict(signals.device),
                missing=(*signals.missing, *self.machine.notes()), cases=_digest(self.evaluator.secret_cases),
                sizes=tuple(builder.further_sizes()),
            )  # fmt: skip
        except BaseException:
            self.machine.close()
            raise

    def answer(self, request: Request, blobs: list[bytes]) -> Reply:
        """Evaluate or confirm a candidate, or begin with what confirming it takes."""
        if request.candidate is None:
            raise NotThis("has no candidate")
        built = built_of(request.candidate, blobs, self._program, self.opening.kernel_file)
        incumbent = self._incumbent(request, blobs)
        if request.incumbent is not None and incumbent is None:
            return Reply(wanted=request.incumbent)
        try:
            if isinstance(self.evaluator, CpuEvaluator):
                built = self.evaluator.complete(built)
        except NotBuilt as error:
            return Reply(unbuilt(error), built=False)
        if request.op == "expect":
            self.evaluator.begin_confirming(lambda: built)
            return Reply()
        if request.op == "confirm":
            if isinstance(self.evaluator, GpuEvaluator):
                return Reply(self.evaluator.confirm(built, any_speed=request.any_speed, beside=request.brief))
            return Reply(self.evaluator.confirm(built, any_speed=request.any_speed))
        job = Job(built, incumbent, request.brief, request.again)
        evaluation, against = evaluate(self.evaluator, job)
        return Reply(evaluation, against, footprints=self._footprints(built))

    def _incumbent(self, request: Request, blobs: list[bytes]) -> Built | None:
        key, head = request.incumbent, request.incumbent_built
        if key is None:
            return None
        if head is not None:
            built = built_of(head, blobs, self._program, self.opening.kernel_file)
            if isinstance(self.evaluator, CpuEvaluator):
                built = self.evaluator.complete(built)
            else:
                self._take_over(built, request.incumbent_measured)
            self._incumbents[key] = built
            if len(self._incumbents) > _HELD:
                self._incumbents.popitem(last=False)
        return self._incumbents.get(key)

    def _take_over(self, incumbent: Built, measured: Measurement | None) -> None:
        opened = self.opened.evaluation
        if measured is None or opened is None or opened.measurement is None:
            return
        here = on_other_device(measured, opened.measurement)
        if here is not None and isinstance(self.evaluator, GpuEvaluator):
            self.evaluator.take_over(incumbent, here)

    def _footprints(self, built: Built) -> tuple[Footprint, ...] | None:
        found = self.evaluator.speeds.footprints(built) if isinstance(self.evaluator, CpuEvaluator) else None
        return None if found is None else tuple(found)

    def close(self) -> None:
        self.evaluator.close()
        self.machine.close()
        os.sched_setaffinity(0, self._cores)


def _digest(cases: object) -> str:
    return hashlib.sha256(repr(cases).encode()).hexdigest()

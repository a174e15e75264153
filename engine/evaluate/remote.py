"""Evaluation on devices behind a connection: built here, checked and timed there, each beside the original on its own device.

Every device opens the same original with the same secret seed, and must draw the same secret cases. A sample is the ratio of a
candidate to the original on one device; times of two devices are never compared.
"""

from __future__ import annotations

import dataclasses
import secrets
import threading
from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from engine.compile.built import Built, NotBuilt
from engine.errors import MachineError, OptimlError
from engine.evaluate.build import Builder
from engine.evaluate.contained import contained_build
from engine.evaluate.device_frames import BuiltHead, Opening, Reply, Request, head_of, key_of, pack, raised, read_reply
from engine.evaluate.devices import Answer, Job
from engine.evaluate.evaluator import Signals, nothing
from engine.model import PASSED, Evaluation, Failure, Guardrail, Measurement, Outcome, Program
from engine.predict.footprint import Footprint
from engine.process.decode import NotThis
from engine.process.wire import WireError
from engine.spec.kernel_spec import KernelSpec

_FASTER = frozenset({Outcome.ACCEPTED, Outcome.SCREENED})
_TRIES = 2  # devices that one candidate may take down


class DeviceLost(Exception):
    """The device behind a link is gone."""


class Link(Protocol):
    """One device behind a connection; `identity` says what it is, for the result."""

    @property
    def name(self) -> str: ...

    @property
    def identity(self) -> Mapping[str, Any]: ...

    @property
    def cores(self) -> Sequence[int]: ...

    def call(self, frame: bytes) -> Future[bytes]:
        """Send a request; requests are answered in order. The answer raises DeviceLost."""
        ...

    def drop(self) -> None:
        """Forget requests that have not begun."""
        ...


@dataclass(eq=False)
class _Device:
    link: Link
    waiting: int = 0
    held: set[str] = field(default_factory=set)  # incumbents whose code it has


class RemoteEvaluator:
    """An `Evaluator`, and its `Devices`, over links to workers that have one device each."""

    def __init__(
        self, spec: KernelSpec, spec_path: str | None, builder: Builder, links: Sequence[Link], mode: str, *, alone_s: float = 0.0
    ) -> None:  # fmt: skip
        """`alone_s`: how long candidates wait for a device to `join` where none is left."""
        self._spec, self._spec_path, self._builder, self._mode = spec, spec_path, builder, mode
        self._devices = [_Device(link) for link in links]
        self._session, self._secret = secrets.token_hex(8), secrets.randbits(62)
        self._lock = threading.RLock()
        self._original: Program | None = None
        self._opened = Reply()
        self._footprints: dict[tuple[object, ...], Sequence[Footprint]] = {}
        self._measured: dict[tuple[object, ...], Measurement] = {}  # what passed, by identity
        self._lost: list[str] = []
        self._joined: list[str] = []  # in sentences
        self._alone_s = alone_s
        self._parked: list[tuple[Job, Future[Answer], int]] = []  # until a device joins
        self._built: Built | None = None  # the original
        self._expected: Callable[[], Built] | None = None  # builds what will likely be confirmed

    @property
    def signals(self) -> Signals:
        devices = {device.link.name: dict(device.link.identity) for device in self._devices}
        missing = list(self._opened.missing)
        if self._mode == "measured":
            missing.append("no counters: the profiler does not run on the devices of --cluster")
        missing += [f"device {name} was lost during the search" for name in self._lost]
        missing += self._joined
        return Signals(self._mode, {**self._opened.device, "devices": devices}, tuple(missing))

    @property
    def count(self) -> int:
        return max(1, len(self._devices))

    @property
    def speeds(self) -> RemoteEvaluator | None:
        """Who says what programs are predicted to move, where nothing is measured."""
        return self if self._mode == "predicted" else None

    # ---- the original

    def open(self, original: Program, ready: Callable[[], None] = nothing) -> tuple[Built, Evaluation]:
        built = self._builder.original(original)
        ready()
        # All at once: each measures the original for itself.
        with self._lock:
            self._original, self._built, there = original, built, list(self._devices)
        answers = [(device, device.link.call(self._opening(built, device.link))) for device in there]
        replies = [(device, self._reply(answer, device)) for device, answer in answers]
        first = self._opened = replies[0][1]
        if first.evaluation is None:
            raise MachineError("did not measure the original", f"device {replies[0][0].link.name}")
        for device, reply in replies[1:]:
            if reply.cases != first.cases or reply.mode != first.mode:
                raise MachineError(
                    "validates the spec with cases that differ from the first device's", f"device {device.link.name}",
                    "leave it out",
                )  # fmt: skip
        self._builder.further[self] = first.sizes
        self._note(built, first)
        return built, first.evaluation

    def _opening(self, built: Built, link: Link) -> bytes:
        head, blobs = head_of(built, None)
        spec, limits = dataclasses.asdict(self._spec), self._builder.limits
        opening = Opening(
            spec, self._spec_path, built.program.kernel_file, limits, self._builder.defences, self._mode, built.binary.arch,
            self._secret, head, tuple(link.cores), confirms=not self._devices or self._devices[0].link is link,
        )  # fmt: skip
        return pack(Request("open", self._session, opening=opening), blobs)

    def join(self, link: Link) -> None:
        """Take in a device that came, or came back, once it has measured the original as the others did. From any thread."""
        with self._lock:
            if self._built is None:
                self._devices.append(_Device(link))
                return
        opened = link.call(self._opening(self._built, link))
        opened.add_done_callback(lambda done: self._take_in(link, done))

    def _take_in(self, link: Link, done: Future[bytes]) -> None:
        device = _Device(link)
        try:
            reply = self._reply(done, device)
        except OptimlError as error:
            self._joined.append(f"device {link.name} joined and could not be used: {error.what}")
            return
        except CancelledError:
            return  # the search has ended
        if reply.cases != self._opened.cases or reply.mode != self._opened.mode:
            self._joined.append(
                f"device {link.name} joined and could not be used: it validates the spec with different cases"
            )
            return
        with self._lock:
            self._joined.append(f"device {link.name} joined during the search")
            self._devices.append(device)
            parked, self._parked = self._parked, []
        for job, answer, tries in parked:
            self._send(job, answer, tries)

    def _park(self, job: Job, answer: Future[Answer], tries: int) -> None:
        """Keep a candidate until a device joins, or for as long as one is waited for."""
        waiting = job, answer, tries
        self._parked.append(waiting)

        def give_up() -> None:
            with self._lock:
                if waiting not in self._parked:
                    return
                self._parked.remove(waiting)
            _settle(answer, MachineError("every device was lost", "--cluster", "resume with --resume"))

        timer = threading.Timer(self._alone_s, give_up)
        timer.daemon = True
        timer.start()

    @contained_build
    def build(self, program: Program, *, by_rules: bool) -> Built:
        return self._builder.candidate(program, by_rules=by_rules)

    # ---- candidates

    def submit(self, job: Job) -> Future[Answer]:
        answer: Future[Answer] = Future()
        self._send(job, answer, 1)
        return answer

    def stop(self) -> None:
        with self._lock:
            parked, self._parked = self._parked, []
        for _, answer, _ in parked:
            answer.cancel()
        for device in list(self._devices):
            device.link.drop()

    def evaluate(self, built: Built, incumbent: Built | None, *, brief: bool = False) -> Answer:
        return self.submit(Job(built, incumbent, brief=brief)).result()

    def retime(self, built: Built, incumbent: Built | None) -> Answer:
        return self.submit(Job(built, incumbent, again=True)).result()

    def footprint(self, built: Built, case: int) -> Footprint | None:
        """What is predicted to move for a timing case; None before a prediction."""
        known = self._footprints.get(built.identity)
        return None if known is None else known[case]

    def _send(self, job: Job, answer: Future[Answer], tries: int) -> None:
        with self._lock:
            if not self._devices and self._alone_s:
                self._park(job, answer, tries)
                return
            if not self._devices:
                _settle(answer, MachineError("every device was lost", "--cluster", "resume with --resume"))
                return
            device = min(self._devices, key=lambda each: each.waiting)
            device.waiting += 1
            frame = self._frame(device, job)
        sent = device.link.call(frame)
        sent.add_done_callback(lambda done: self._answered(done, device, job, answer, tries))

    def _frame(self, device: _Device, job: Job) -> bytes:
        head, blobs = head_of(job.built, self._original)
        key: str | None = None
        incumbent: BuiltHead | None = None
        measured: Measurement | None = None
        if job.incumbent is not None:
            key = key_of(job.incumbent)
            if key not in device.held:
                incumbent, more = head_of(job.incumbent, self._original)
                blobs += more
                device.held.add(key)
                measured = self._measured.get(job.incumbent.identity)
        request = Request(
            "evaluate", self._session, None, head, key, incumbent, measured, brief=job.brief, again=job.again
        )  # fmt: skip
        return pack(request, blobs)

    def _answered(
        self, done: Future[bytes], device: _Device, job: Job, answer: Future[Answer], tries: int
    ) -> None:  # fmt: skip
        """Called by whatever thread has the answer."""
        with self._lock:
            device.waiting -= 1
        try:
            reply = _read(done.result(), device)
        except DeviceLost:
            self._lose(device)
            if tries < _TRIES:
                self._send(job, answer, tries + 1)
            else:
                failure = Failure(f"{_TRIES} devices were lost while they evaluated it")
                _settle(answer, (Evaluation(Outcome.CRASHED, failure=failure, stage_s=dict(job.built.stage_s)), None))
        except (WireError, NotThis) as error:
            _settle(answer, MachineError(f"sent an answer that cannot be read: {error}", f"device {device.link.name}"))
        except BaseException as error:  # cancelled, or a link that fails otherwise
            _settle(answer, error)
        else:
            if reply.wanted is not None:
                device.held.discard(reply.wanted)
                self._send(job, answer, tries)
            else:
                _settle(answer, self._outcome(reply, device, job.built))

    def _outcome(self, reply: Reply, device: _Device, built: Built) -> Answer | OptimlError:
        if reply.problem is not None:
            return raised(reply.problem)
        if reply.evaluation is None:
            return MachineError("sent an answer without an evaluation", f"device {device.link.name}")
        if not reply.built:
            said = reply.evaluation.failure
            return NotBuilt(said.reason if said else "not built", evaluation=reply.evaluation)
        self._note(built, reply)
        if reply.evaluation.outcome is Outcome.ACCEPTED and reply.evaluation.measurement is not None:
            self._measured[built.identity] = reply.evaluation.measurement
        return reply.evaluation, reply.against

    def _note(self, built: Built, reply: Reply) -> None:
        if reply.footprints is not None:
            self._footprints[built.identity] = reply.footprints

    def _lose(self, device: _Device) -> None:
        with self._lock, suppress(ValueError):
            self._devices.remove(device)
            self._lost.append(device.link.name)

    # ---- the suggestion

    def begin_confirming(self, build: Callable[[], Built]) -> None:
        """Have the devices that will confirm begin with what their GPU is not needed for."""
        with self._lock:
            self._expected = build
        threading.Thread(target=self._begin, args=(build,), daemon=True).start()

    def _begin(self, build: Callable[[], Built]) -> None:
        with suppress(OptimlError):  # what cannot be built is judged, if it is, when it is confirmed
            head, blobs = head_of(build(), self._original)
            frame = pack(Request("expect", self._session, candidate=head), blobs)
            with self._lock:
                if self._expected is build:  # no better one came meanwhile
                    # On a second GPU nothing is left of a confirmation that could begin.
                    for device in self._devices[: 1 if self._mode == "measured" else 2]:
                        device.link.call(frame)

    def confirm(self, built: Built, *, any_speed: bool = False) -> Evaluation:
        """Confirmed on the first device, and on a second one where there is one: it must hold on both.

        A second GPU verifies and times it; what sanitizers and the CPU say of it is the same on both.
        """
        head, blobs = head_of(built, self._original)
        if not self._devices:
            raise MachineError("every device was lost", "--cluster", "resume with --resume")
        requests = [
            Request("confirm", self._session, candidate=head, any_speed=any_speed, brief=brief)
            for brief in (False, True)
        ]
        both = zip(self._devices[:2], requests, strict=False)
        asked = [(device, device.link.call(pack(request, blobs))) for device, request in both]
        replies = [(device, self._reply(answer, device)) for device, answer in asked]
        evaluation = replies[0][1].evaluation
        assert evaluation is not None
        passed = PASSED if any_speed else _FASTER
        if len(replies) == 1 or evaluation.outcome not in passed:
            return evaluation
        device, reply = replies[1]
        second = reply.evaluation
        assert second is not None
        verdict = _beside(second, device.link.name, passed)
        evaluation = dataclasses.replace(evaluation, guardrails=(*evaluation.guardrails, verdict))
        if verdict.verdict == "failed":
            failure = Failure(f"{verdict.name}: {verdict.detail}")
            return dataclasses.replace(evaluation, outcome=Outcome.GUARDRAIL, failure=failure)
        return evaluation

    def _reply(self, answer: Future[bytes], device: _Device) -> Reply:
        """An answer, waited for. Raises MachineError, and what the device raised."""
        where = f"device {device.link.name}"
        try:
            reply = _read(answer.result(), device)
        except DeviceLost:
            raise MachineError("was lost", where, "resume with --resume") from None
        except (WireError, NotThis) as error:
            raise MachineError(f"sent an answer that cannot be read: {error}", where) from None
        if reply.problem is not None:
            raise raised(reply.problem)
        if reply.evaluation is None:
            raise MachineError("sent an answer without an evaluation", where)
        return reply

    def close(self) -> None:
        self._builder.close()
        frame = pack(Request("close", self._session))
        for device in self._devices:
            device.link.drop()
            with suppress(Exception):  # it may be gone, and its session with it
                device.link.call(frame)


def _read(frame: bytes, device: _Device) -> Reply:
    """A reply whose evaluation names its device. Raises WireError, NotThis."""
    reply = read_reply(frame)
    if reply.evaluation is None:
        return reply
    state = {**reply.evaluation.device, "name": device.link.name}
    return dataclasses.replace(reply, evaluation=dataclasses.replace(reply.evaluation, device=state))


def _beside(second: Evaluation, name: str, passed: Container[Outcome]) -> Guardrail:
    """The verdict of a second device, where these outcomes count as passed."""
    measured = second.measurement
    if second.outcome in passed and measured is not None:
        said = f"{measured.ratio:.3f}× ({measured.low:.3f} to {measured.high:.3f}) on {name}"
        return Guardrail("second device", "passed", said)
    why = second.failure.reason if second.failure is not None else second.outcome.value
    wrong = "" if second.outcome in PASSED else f"{second.outcome.value}, "
    return Guardrail("second device", "failed", f"not confirmed on {name}: {wrong}{why}")


def _settle(answer: Future[Any], found: Any) -> None:
    """Give an answer to whoever still waits for it."""
    if not answer.set_running_or_notify_cancel():
        return
    if isinstance(found, BaseException):
        answer.set_exception(found)
    else:
        answer.set_result(found)

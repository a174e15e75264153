"""Candidates on devices behind links: what travels, what a lost or lying device costs, what a second device has to confirm."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from engine.compile.built import Built, NotBuilt, sizes_key
from engine.cuda.edit import edit_program
from engine.cuda.kernel import Edit, Span
from engine.errors import MachineError, RefusedError
from engine.evaluate.device_frames import (
    Reply,
    Request,
    built_of,
    head_of,
    pack,
    problem_of,
    read_reply,
    read_request,
)
from engine.evaluate.devices import Job
from engine.evaluate.remote import DeviceLost, RemoteEvaluator
from engine.model import Evaluation, Failure, Outcome, Program
from engine.process.decode import NotThis
from engine.search.journal import Journal
from engine.search.loop import Search
from engine.search.participants import Builds
from engine.search.progress import Budget, in_flight
from engine.search.tree import Tree
from engine.settings.config import Guardrails
from engine.spec.kernel_spec import Argument, Case, KernelSpec, Step
from engine.verify.defences import ALL
from tests.engine.search.fakes import Factors, FakeEvaluator, program

SPEC = KernelSpec(
    file="k.cu", steps=(Step("k", "", ("x",)),), arguments=(Argument("x", "float*", "inout", "n"),),
    check=(Case("c", {"n": 8}),), time=(Case("t", {"n": 64}),),
)  # fmt: skip
FAKE = FakeEvaluator()


class Device:
    """A worker whose evaluator is a stand-in, behind a link of this process."""

    def __init__(self, name: str, evaluator: Any = FAKE, cases: str = "a") -> None:
        self.name, self.evaluator, self.cases = name, evaluator, cases
        self.identity, self.cores = {"gpu": {"uuid": f"GPU-{name}"}}, (0,)
        self.requests: list[Request] = []
        self.lost = False
        self._thread = ThreadPoolExecutor(1)
        self._program: Program | None = None
        self.incumbents: dict[str, Built] = {}

    def call(self, frame: bytes) -> Future[bytes]:
        return self._thread.submit(self._answer, frame)

    def drop(self) -> None: ...

    def _answer(self, frame: bytes) -> bytes:
        request, blobs = read_request(frame)
        self.requests.append(request)
        if self.lost:
            raise DeviceLost
        if request.opening is not None:
            built = built_of(request.opening.original, blobs, None, request.opening.kernel_file)
            self._program = built.program
            evaluation = self.evaluator.open(built.program)[1]
            return pack(
                Reply(evaluation, mode="measured", device={"name": "H200"}, cases=self.cases, sizes=({"n": 9},))
            )
        if request.candidate is None:
            return pack(Reply())
        built = built_of(request.candidate, blobs, self._program, "k.cu")
        if request.incumbent_built is not None and request.incumbent is not None:
            self.incumbents[request.incumbent] = built_of(request.incumbent_built, blobs, self._program, "k.cu")
        if request.incumbent is not None and request.incumbent not in self.incumbents:
            return pack(Reply(wanted=request.incumbent))
        if request.op == "expect":
            self.evaluator.begin_confirming(lambda: built)
            return pack(Reply())
        if request.op == "confirm":
            return pack(Reply(self.evaluator.confirm(built)))
        try:
            found = self.evaluator.evaluate(built, self.incumbents.get(request.incumbent or ""), brief=request.brief)
        except NotBuilt as error:
            return pack(Reply(error.evaluation, built=False))
        return pack(Reply(*found))


def remote(*devices: Device, alone_s: float = 0.0) -> RemoteEvaluator:
    original: Callable[[Program], Built] = FAKE.build
    builder = SimpleNamespace(
        original=original, candidate=FAKE.build, limits=Guardrails(), defences=ALL, spec_path=None, close=lambda: None,
        further={},
    )  # fmt: skip
    return RemoteEvaluator(SPEC, None, builder, devices, "measured", alone_s=alone_s)  # type: ignore[arg-type]


def candidate(line: str = "// speed 1.5") -> Built:
    at = len(program().data)
    return FAKE.build(edit_program(program(), {"k.cu": (Edit(Span(at, at), line + "\n"),)}))


def test_a_candidate_arrives_as_it_was_sent() -> None:
    further = {sizes_key({"n": 7, "a": 0.5}): candidate().launches[0]}
    built = replace(candidate(), stage_s={"compile": 0.25}, text="slice", by_rules=True, further=further)
    head, blobs = head_of(built, program())
    assert head.files == ("k.cu",)
    request, blobs = read_request(pack(Request("evaluate", "s", candidate=head, brief=True), blobs))
    assert request.candidate is not None
    arrived = built_of(request.candidate, blobs, program(), "k.cu")
    assert (arrived, arrived.further) == (built, further)
    assert request.brief
    head, blobs = head_of(FAKE.build(program()), program())
    assert head.files == ()  # what the device has does not travel


def test_an_answer_with_infinities_is_read_and_one_of_another_form_is_not() -> None:
    wrong = Evaluation(Outcome.WRONG_RESULT, failure=Failure("differs", got=math.nan, expected=math.inf))
    said = read_reply(pack(Reply(wrong))).evaluation
    assert said is not None
    assert said.failure == Failure("differs")
    frame = pack(Reply(wrong)).replace(b'"wrong_result"', b'"all_is_well_"')
    with pytest.raises(NotThis, match="not a valid Outcome"):
        read_reply(frame)


def test_one_search_runs_over_two_devices(tmp_path: Any) -> None:
    devices = [Device("0"), Device("1")]
    evaluator, original, budget = remote(*devices), program(), Budget(candidates=20)
    with ThreadPoolExecutor(2) as executor:
        journal = Journal(tmp_path / "journal.sqlite", original, {}, resume=False)
        search = Search(
            Tree(original, Factors(("1.5", "0.7", "1.1", "0.9", "wrong")), 0),
            evaluator,
            journal,
            Builds(executor, in_flight=in_flight(2, budget, evaluator.count), devices=evaluator),
        )
        search.start(*evaluator.open(original))
        search.run(budget)
    assert {entry.evaluation.device.get("name") for entry in journal.entries() if entry.id} >= {"0", "1"}
    assert search.incumbent is not None
    assert search.progress.best_ratio > 1.5
    assert all(len(device.requests) > 3 for device in devices)
    assert evaluator.signals.device["devices"]["1"] == {"gpu": {"uuid": "GPU-1"}}


def test_the_incumbents_code_is_sent_once_and_again_where_a_device_has_it_no_more() -> None:
    device = Device("0")
    evaluator = remote(device)
    evaluator.open(program())
    best = candidate("// speed 2.0")
    for line in ("// speed 1.1", "// speed 3.0"):
        _, against = evaluator.evaluate(candidate(line), best)
    assert against == 1.5
    assert [request.incumbent_built is not None for request in device.requests[1:]] == [True, False]
    device.incumbents.clear()
    assert evaluator.evaluate(candidate("// speed 4.0"), best)[1] == 2.0
    assert [request.incumbent_built is not None for request in device.requests[3:]] == [False, True]


def test_an_incumbents_speedup_goes_with_its_code_to_devices_that_have_not_timed_it() -> None:
    """Three of four devices timed every new best beside the slow original before they went on."""
    first, second = Device("0"), Device("1")
    evaluator = remote(first, second)
    evaluator.open(program())
    best = candidate("// speed 2.0")
    measured = evaluator.evaluate(best, None)[0].measurement
    first.lost = True
    evaluator.evaluate(candidate("// speed 3.0"), best)
    sent = [request.incumbent_measured for request in second.requests if request.incumbent_built is not None]
    assert sent == [measured]
    assert measured is not None


def test_a_lost_device_costs_no_candidate_and_two_end_the_candidate() -> None:
    devices = [Device("0"), Device("1"), Device("2")]
    evaluator = remote(*devices)
    evaluator.open(program())
    devices[0].lost = True
    found, _ = evaluator.evaluate(candidate(), None)
    assert (found.outcome, found.device["name"], evaluator.count) == (Outcome.ACCEPTED, "1", 2)
    assert "device 0 was lost during the search" in evaluator.signals.missing
    devices[1].lost = devices[2].lost = True
    found, _ = evaluator.evaluate(candidate(), None)
    assert found.outcome is Outcome.CRASHED
    with pytest.raises(MachineError, match="every device was lost"):
        evaluator.evaluate(candidate(), None)


def test_a_device_that_comes_back_takes_part_again() -> None:
    first, other, again = Device("0"), Device("1"), Device("0")
    evaluator = remote(first, other)
    evaluator.open(program())
    first.lost = True
    evaluator.evaluate(candidate(), None)
    assert evaluator.count == 1
    evaluator.join(again)
    until(lambda: evaluator.count == 2)
    assert again.requests[0].opening is not None  # it measured the original for itself
    other.lost = True
    found, _ = evaluator.evaluate(candidate(), None)
    assert (found.outcome, again.requests[-1].op) == (Outcome.ACCEPTED, "evaluate")
    assert {"device 0 was lost during the search", "device 0 joined during the search"} <= set(
        evaluator.signals.missing
    )


def test_candidates_wait_for_a_device_where_none_is_left() -> None:
    first = Device("0")
    evaluator = remote(first, alone_s=60.0)
    evaluator.open(program())
    first.lost = True
    answer = evaluator.submit(Job(candidate()))
    until(lambda: "device 0 was lost during the search" in evaluator.signals.missing)
    assert not answer.done()
    evaluator.join(Device("0"))
    found, _ = answer.result(30)
    assert found.outcome is Outcome.ACCEPTED


def test_they_do_not_wait_for_ever_and_not_beyond_the_search() -> None:
    first = Device("0")
    evaluator = remote(first, alone_s=0.05)
    evaluator.open(program())
    first.lost = True
    with pytest.raises(MachineError, match="every device was lost"):
        evaluator.submit(Job(candidate())).result(30)
    evaluator._alone_s = 60.0
    answer = evaluator.submit(Job(candidate()))
    evaluator.stop()
    assert answer.cancelled()


@pytest.mark.parametrize("wrong", ["cases", "lost"])
def test_a_device_that_joins_with_other_cases_or_goes_again_is_left_out(wrong: str) -> None:
    evaluator, other = remote(Device("0")), Device("1", cases="b" if wrong == "cases" else "a")
    evaluator.open(program())
    other.lost = wrong == "lost"
    evaluator.join(other)
    until(lambda: any("device 1 joined and could not be used" in said for said in evaluator.signals.missing))
    assert evaluator.count == 1


def until(condition: Callable[[], bool]) -> None:
    """Wait for something to be so."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_device_that_cannot_build_or_answer_is_told_apart() -> None:
    class Refusing(FakeEvaluator):
        def evaluate(self, built: Built, incumbent: Built | None, *, brief: bool = False) -> Any:
            if "broken" in built.text:
                raise NotBuilt("x", evaluation=Evaluation(Outcome.COMPILE_ERROR, failure=Failure("no header")))
            return super().evaluate(built, incumbent)

    device = Device("7", Refusing())
    evaluator = remote(device)
    evaluator.open(program())
    with pytest.raises(NotBuilt) as ended:
        evaluator.evaluate(replace(candidate(), text="broken"), None)
    assert ended.value.evaluation is not None
    assert ended.value.evaluation.outcome is Outcome.COMPILE_ERROR
    device.call = lambda frame: ThreadPoolExecutor(1).submit(bytes, 7)  # type: ignore[method-assign]
    with pytest.raises(MachineError, match=r"device 7: sent an answer that cannot be read"):
        evaluator.evaluate(candidate(), None)
    refused = pack(Reply(problem=problem_of(RefusedError("no controls", "k.cu:1", "correct the spec"))))
    device.call = lambda frame: ThreadPoolExecutor(1).submit(lambda: refused)  # type: ignore[method-assign]
    with pytest.raises(RefusedError, match=r"k\.cu:1: no controls; correct the spec"):
        evaluator.evaluate(candidate(), None)


def test_builders_learn_for_which_sizes_the_devices_want_launches() -> None:
    evaluator = remote(Device("0"), Device("1"))
    evaluator.open(program())
    assert list(evaluator._builder.further.values()) == [({"n": 9},)]


def test_devices_that_draw_other_secret_cases_are_refused() -> None:
    with pytest.raises(MachineError, match=r"device 1: validates the spec with cases that differ"):
        remote(Device("0"), Device("1", cases="b")).open(program())


def test_a_suggestion_must_hold_on_a_second_device() -> None:
    class Doubting(FakeEvaluator):
        def confirm(self, built: Built, *, any_speed: bool = False) -> Evaluation:
            return Evaluation(Outcome.WRONG_RESULT, failure=Failure("differs at 3"))

    one = remote(Device("0"))
    one.open(program())
    assert one.confirm(candidate()).guardrails == ()
    two = remote(Device("0"), Device("1"))
    two.open(program())
    held = two.confirm(candidate())
    assert (held.outcome, held.device["name"]) == (Outcome.ACCEPTED, "0")
    assert [(g.name, g.verdict) for g in held.guardrails] == [("second device", "passed")]
    assert "on 1" in held.guardrails[0].detail
    doubted = remote(Device("0"), Device("1", Doubting()))
    doubted.open(program())
    refused = doubted.confirm(candidate())
    assert refused.outcome is Outcome.GUARDRAIL
    assert refused.failure is not None
    assert refused.failure.reason == "second device: not confirmed on 1: wrong_result, differs at 3"


def test_the_device_whose_sanitizers_and_cpu_count_begins_ahead() -> None:
    """All four devices checked the original on the CPU, and two the suggestion: one search opened in 9 s instead of 2."""

    class Expecting(FakeEvaluator):
        def __init__(self) -> None:
            super().__init__()
            self.expected: list[Built] = []

        def begin_confirming(self, build: Callable[[], Built]) -> None:
            self.expected.append(build())

    theirs = [Expecting() for _ in range(3)]
    devices = [Device(str(at), each) for at, each in enumerate(theirs)]
    evaluator = remote(*devices)
    evaluator.open(program())
    better, superseded, asked = candidate("// speed 2.0"), threading.Event(), threading.Event()

    def slow() -> Built:
        asked.set()
        assert superseded.wait(30)
        return candidate()

    evaluator.begin_confirming(slow)
    assert asked.wait(30)
    evaluator.begin_confirming(lambda: better)
    until(lambda: bool(theirs[0].expected))
    superseded.set()
    evaluator.begin_confirming(lambda: better)
    until(lambda: len(theirs[0].expected) == 2)
    assert [[built.program for built in each.expected] for each in theirs] == [[better.program] * 2, [], []]
    evaluator.confirm(better)
    asked_of = [[request for request in device.requests if request.op in ("open", "confirm")] for device in devices]
    assert [opened.opening and opened.opening.confirms for opened, *_ in asked_of] == [True, False, False]
    assert [[request.brief for request in each[1:]] for each in asked_of] == [[False], [True], []]

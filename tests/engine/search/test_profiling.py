"""What is asked of a profiler while a search runs, with a service that answers when it is told to."""

from __future__ import annotations

import dataclasses
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext

import pytest

from engine.errors import MachineError, OptimlError
from engine.model import CaseTiming, Evaluation, LaunchConfig, Measurement, Outcome
from engine.predict.counts import AccessCounts, KernelCounts, SiteCounts
from engine.predict.footprint import Footprint
from engine.profile.counters import CHEAP, FULL, LINES, Profile, ProfileFailure
from engine.profile.service import Priority
from engine.rewrite.proposal import Proposal
from engine.search.predicted_profile import PredictedWatch
from engine.search.profiling import COUNTED, HELD, WAITED, ProfilerInsight, Waiting
from engine.search.progress import SELECT
from engine.search.tree import Node
from tests.engine.profile.fake_ncu import spec
from tests.engine.profile.samples import step
from tests.engine.profile.test_diagnosis import TARGET
from tests.engine.profile.test_source_lines import LISTING, STEP

from .fakes import FakeEvaluator, program

SPEC = spec()


class Service:
    """Collects requests; `answer` answers those of one set."""

    unusable, held_s = "", 1.25

    def __init__(self):
        self.asked = []

    def submit(self, request, metrics, priority=Priority.BACKGROUND, worth=0.0):
        future = Future()
        self.asked.append((request, metrics, priority, worth, future))
        return future

    def answer(self, metrics, make):
        for request, asked, _, _, future in self.asked:
            if asked is metrics and not future.done():
                future.set_result(make(request))

    def names(self):
        return [(metrics.name, priority.name) for _, metrics, priority, _, _ in self.asked]

    def settle(self):
        self.settled = True

    def conclude(self):
        self.concluded = True

    def together(self):
        return nullcontext()

    def close(self):
        pass


def lines_asked(made):
    """Wait until programs have been built with their lines, which happens on a thread of its own."""
    made._aside.submit(lambda: None).result(timeout=10)


def built(text):
    made = FakeEvaluator().build(program(text))
    return dataclasses.replace(made, launches=made.launches * 2)  # a check case and a timing case


def node(number, made, ratio=1.5):
    evaluation = Evaluation(Outcome.ACCEPTED, Measurement((), ratio, ratio, ratio))
    return Node(number, made.program, None, None, evaluation)


def profile(name, **changed):
    return lambda request: Profile(request.key, name, request.case, (step(**changed),))


def insight(lined=None, every=False):
    service = Service()
    return ProfilerInsight(service, SPEC, TARGET, 4e12, Waiting(lambda: 0.5, every), lined), service


class Late(Service):
    """Answers from another thread, a request at a time, each a moment after it was made."""

    def __init__(self):
        super().__init__()
        self.pool = ThreadPoolExecutor(1)

    def submit(self, request, metrics, priority=Priority.BACKGROUND, worth=0.0):
        future = super().submit(request, metrics, priority, worth)
        self.pool.submit(lambda: (time.sleep(0.01), future.set_result(profile(metrics.name)(request))))
        return future


def test_what_passed_is_counted_and_the_best_first():
    made, service = insight()
    made.passed(node(0, built("kernel\n")), built("kernel\n"))
    assert service.names() == []  # the original is looked at in full, by whoever starts the search
    made.passed(node(4, built("a\n"), 1.5), built("a\n"))
    assert service.names() == [("cheap", "BACKGROUND")]
    assert service.asked[0][3] == 1.5
    assert made.arrivals() == []
    service.answer(CHEAP, profile("cheap", DRAM_BYTES=64e6, INSTRUCTIONS=2e6))
    (seen,) = made.arrivals()
    assert (seen.node, seen.metrics) == (4, "cheap")
    assert (seen.proxies.bytes_moved, seen.proxies.instructions) == (64e6, 2e6)
    assert set(seen.counters[0]) == set(CHEAP.metrics)
    assert made.arrivals() == []
    assert made.stages() == {HELD: 1.25, WAITED: 0.5}
    assert "counted 1 of 2 programs" in made.close()[0]


def test_the_full_set_is_for_what_is_about_to_be_built_upon():
    made, service = insight()
    a = built("a\n")
    made.passed(node(1, a), a)
    proposals = [Proposal("rules", "block_size", "x", {}, {}, 0.5)]
    assert made.weigh("unknown", proposals) is None
    assert made.weigh(a.program.digest, proposals) is None
    assert made.weigh(a.program.digest, proposals) is None
    assert service.names() == [("cheap", "BACKGROUND"), ("full", "EXPANSION")]  # asked once
    service.answer(FULL, profile("full", long_scoreboard=70))
    assert [p.rule for p in made.weigh(a.program.digest, proposals)] == ["block_size"]
    (seen,) = made.arrivals()
    assert seen.proxies.stalled == pytest.approx(0.7)
    assert made.known(a.program.digest)[0].codes


def test_a_search_that_waits_builds_upon_nothing_before_its_diagnosis_is_there():
    made = ProfilerInsight(Late(), SPEC, TARGET, 4e12, Waiting(every=True))
    a, proposals = built("a\n"), [Proposal("rules", "block_size", "x", {}, {}, 0.5)]
    made.passed(node(1, a), a)
    assert [p.rule for p in made.weigh(a.program.digest, proposals)] == ["block_size"]
    stages = made.stages()
    assert stages[COUNTED] >= -stages[SELECT] >= 0.005  # what the choice waited for is no time of the choice


def test_a_search_that_waits_leaves_no_candidate_without_counters():
    made = ProfilerInsight(Late(), SPEC, TARGET, 4e12, Waiting(every=True))
    for number in range(1, 41):
        made.passed(node(number, built(f"{number}\n")), built(f"{number}\n"))
        assert len(made._counting) <= 32
    made.foresee(list)  # near its end it still has all of them counted
    made.prepare([])
    assert sorted(seen.node for seen in made.arrivals()) == list(range(1, 41))
    assert made.close() == ()
    assert SELECT not in insight()[0].stages()


def test_a_search_does_not_wait_for_what_cannot_be_counted():
    made, service = insight(every=True)
    a, proposals = built("a\n"), [Proposal("rules", "block_size", "x", {}, {}, 0.5)]
    made.passed(node(1, a), a)
    made.want(a.program.digest)
    for _, _, _, _, future in service.asked:
        future.set_result(ProfileFailure("a", "lost", "the worker crashed"))
    assert made.weigh(a.program.digest, proposals) is None
    made.prepare([])
    assert made._counting == set()


def test_the_trajectory_asks_for_what_is_not_known_alone():
    made, service = insight()
    a, b = built("a\n"), built("b\n")
    for number, one in enumerate((a, b)):
        made.passed(node(number, one), one)
    made.look(a, node(0, a).evaluation)
    service.answer(FULL, profile("full"))

    def submit(request, metrics, priority=Priority.BACKGROUND, worth=0.0):
        future = Future()
        future.set_result(profile("full", DRAM_BYTES=32e6)(request))
        service.asked.append((request, metrics, priority, worth, future))
        return future

    service.submit = submit
    before = len(service.asked)
    evidence = made.trajectory([(a, node(0, a).evaluation), (b, node(1, b).evaluation)])
    assert service.names()[before:] == [("full", "REQUIRED")]
    assert "device memory traffic 128 MB → 32 MB" in evidence[1].moved


def test_what_a_question_is_about_is_profiled_ahead_of_all_and_once():
    made, service = insight()
    a, b = built("a\n"), built("b\n")
    made.passed(node(0, a), a)
    made.look(a, node(0, a).evaluation)  # waits for its share of the time

    def not_here(program):
        raise AssertionError("it was built already")

    wanted = made.require(node(0, a), not_here)
    assert service.asked[0][4].cancelled()
    other = made.require(node(7, b), lambda program: b)  # of an earlier part of the run
    made.look(b, node(7, b).evaluation)
    assert service.names() == [("full", "EXPANSION"), ("full", "REQUIRED"), ("full", "REQUIRED")]
    assert not wanted.done()
    service.answer(FULL, profile("full"))
    assert wanted.result(0)[0].codes == made.known(a.program.digest)[0].codes
    assert other.result(0)[1].metrics == "full"
    assert made.require(node(0, a), not_here).result(0)[0].codes == wanted.result(0)[0].codes
    assert len(service.asked) == 3
    # What the profiler is at already is waited for, and what fails is told as such.
    c, d = built("c\n"), built("d\n")
    made.look(c, node(8, c).evaluation)
    service.asked[-1][4].set_running_or_notify_cancel()
    running, failing = made.require(node(8, c), lambda program: c), made.require(node(9, d), lambda program: d)
    assert service.names()[3:] == [("full", "EXPANSION"), ("full", "REQUIRED")]
    service.asked[-1][4].set_result(ProfileFailure("d", "lost", "the worker crashed"))
    service.answer(FULL, profile("full"))
    assert running.result(0)[1].metrics == "full"
    assert failing.result(0) is None


def test_a_prediction_is_had_for_a_node_of_an_earlier_part_of_the_run_too():
    class Source:
        def footprint(self, built, case):
            site = SiteCounts(12, "global", "load", 4, 100.0, 3200.0, 3200.0, "x")
            launched = KernelCounts(LaunchConfig((1, 1, 1), (32, 1, 1)), (site,), 0.0, 0.0)
            return Footprint(64e6, 2e6, AccessCounts((launched,)), {"fp32 pipe": 3.5})

    watch, a, builds = PredictedWatch(Source(), SPEC, TARGET), built("a\n"), []

    def build(program):
        builds.append(program)
        return a

    first, second = (watch.require(node(3, a), build).result(0) for _ in range(2))
    assert first is second is watch.known(a.program.digest)
    assert any("times are predicted" in sentence for sentence in first[0].sentences())
    assert first[1].pipes_us == {"fp32 pipe": 3.5}
    said = "uncoalesced load of `x`: 32 sectors per request (ideal: 4), line 12 (counted on the CPU)"
    assert [(f.code, f.text, f.line) for f in first[0].findings if f.line] == [("uncoalesced", said, 12)]
    assert builds == [a.program]


def test_source_lines_of_the_original_come_into_its_diagnosis():
    listing = LISTING.replace("/tmp/src/k.cu", SPEC.file)

    def lined(made):
        return dataclasses.replace(made.binary, cubin=b"with lines"), listing

    made, service = insight(lined)
    a = built("a\n")
    evaluation = node(0, a).evaluation
    made.passed(node(0, a), a)
    lines_asked(made)
    made.look(a, evaluation)
    assert service.names() == [("lines", "EXPANSION"), ("full", "EXPANSION")]
    assert service.asked[0][0].binary.cubin == b"with lines"
    service.answer(FULL, profile("full"))
    assert not any(f.line for f in made.known(a.program.digest)[0].findings)
    service.answer(LINES, lambda r: Profile(r.key, "lines", r.case, (STEP,)))
    diagnosis = made.known(a.program.digest)[0]
    assert [f.line for f in diagnosis.findings if f.code == "uncoalesced"] == [12]
    assert made.close() == ()


def test_when_the_search_ends_what_is_missing_is_asked_for_once(tmp_path):
    made, service = insight(lambda made: (made.binary, LISTING))
    a, b = built("a\n"), built("b\n")
    path = [(a, node(0, a).evaluation), (b, node(1, b).evaluation)]
    made.passed(node(0, a), a)
    made.look(a, node(0, a).evaluation)
    lines_asked(made)
    service.answer(FULL, profile("full"))
    service.answer(LINES, lambda r: ProfileFailure(r.key, "closed", "the search ended before this candidate's turn"))
    before = len(service.asked)
    made.prepare(path)
    made.prepare(path)
    lines_asked(made)
    assert service.settled
    assert service.names()[before:] == [("full", "REQUIRED"), ("lines", "REQUIRED"), ("lines", "REQUIRED")]
    assert [r.key for r, m, *_ in service.asked[before:] if m is FULL] == [b.binary.code_hash]


def test_near_the_end_of_a_search_its_likely_path_is_asked_for_ahead():
    """Asked for at the end, a person waited some eight seconds for the profiler to start and to write."""
    made, service = insight(lambda made: (made.binary, LISTING))
    a, b, c = built("a\n"), built("b\n"), built("c\n")
    steps = [(x, node(i, x).evaluation) for i, x in enumerate((a, b, c))]
    made.foresee(lambda: steps[:2])
    lines_asked(made)
    lines_asked(made)
    ahead = [("full", "REQUIRED")] * 2 + [("lines", "REQUIRED")] * 2
    assert service.concluded
    assert service.names() == ahead
    made.prepare(steps)  # another step was found meanwhile
    lines_asked(made)
    assert service.names() == [*ahead, ("full", "REQUIRED"), ("lines", "REQUIRED")]
    assert service.asked[4][0].key == c.binary.code_hash


def test_a_path_that_cannot_be_built_again_is_asked_for_at_the_end():
    made, service = insight()
    a = built("a\n")

    def broken():
        raise OptimlError("cannot be built")

    made.foresee(broken)
    made.prepare([(a, node(0, a).evaluation)])
    assert service.names() == [("full", "REQUIRED")]


def test_a_launch_that_takes_long_is_not_counted_line_by_line():
    made, service = insight(lambda made: (made.binary, LISTING))
    a = built("a\n")
    case = CaseTiming("large", 1.0, 2e5, 2e5, 1.0, 1.0, 1.0, 5)
    slow = dataclasses.replace(node(0, a).evaluation, measurement=Measurement((case,), 1.0, 1.0, 1.0))
    made.passed(dataclasses.replace(node(0, a), evaluation=slow), a)
    assert service.names() == []
    assert made.close()[-1].startswith("no source lines in the diagnosis: a launch of 200 ms is too long")


def test_the_search_does_not_wait_for_programs_to_be_built_with_their_lines():
    """It took half a second before the first candidate, and again before the confirmation."""
    may_build = threading.Event()

    def lined(made):
        may_build.wait(10)
        return made.binary, LISTING.replace("/tmp/src/k.cu", SPEC.file)

    made, service = insight(lined)
    a, b = built("a\n"), built("b\n")
    made.passed(node(0, a), a)
    assert service.names() == []
    path = [(a, node(0, a).evaluation), (b, node(1, b).evaluation)]
    made.prepare(path)
    assert service.names() == [("full", "REQUIRED"), ("full", "REQUIRED")]
    service.answer(FULL, profile("full"))
    answering = threading.Thread(target=lambda: (may_build.set(), lines_asked(made), service.answer(LINES, lines)))

    def lines(request):
        return Profile(request.key, "lines", request.case, (STEP,))

    answering.start()
    evidence = made.trajectory(path)
    answering.join()
    assert service.names()[2:] == [("lines", "EXPANSION"), ("lines", "REQUIRED")]
    assert all("line 12" in " ".join(one.diagnosis) for one in evidence)
    assert all([weight.line for weight in one.lines] == [10, 12, 14] for one in evidence)


@pytest.mark.parametrize("how", ["no tool", "other code", "no counters"])
def test_without_source_lines_the_rest_goes_on_and_it_is_said(how):
    def lined(made):
        if how == "no tool":
            raise MachineError("nvdisasm is not here")
        return dataclasses.replace(made.binary, code_hash="x" if how == "other code" else made.binary.code_hash), ""

    made, service = insight(lined)
    a = built("a\n")
    made.passed(node(0, a), a)
    made.look(a, node(0, a).evaluation)
    lines_asked(made)
    service.answer(LINES, lambda r: ProfileFailure(r.key, "missing", "the profiler does not know inst_executed"))
    service.answer(FULL, profile("full"))
    assert made.known(a.program.digest) is not None
    assert len([n for n in made.close() if n.startswith("no source lines in the diagnosis: ")]) == 1


def test_without_a_profiler_times_and_resources_remain_and_the_result_says_so(tmp_path):
    from engine.process.fair_lock import Turns
    from engine.process.sandbox import NoSandbox
    from engine.profile.ncu import Profiler
    from engine.profile.service import ProfileService

    profiler = Profiler(NoSandbox(), None, b"tools", tmp_path, SPEC)
    made = ProfilerInsight(ProfileService(profiler, Turns().guest(), prepare=(FULL,)), SPEC, TARGET, 4e12)
    a = built("a\n")
    made.passed(node(0, a), a)
    made.look(a, node(0, a).evaluation)
    (evidence,) = made.trajectory([(a, node(0, a).evaluation)])
    assert "based on times, occupancy and resource usage" in evidence.diagnosis[-1]
    (note,) = made.close()
    assert "Nsight Compute (ncu) is not installed" in note


def test_a_profiler_that_hangs_is_waited_for_once_and_not_at_each_step():
    made, _ = insight()
    steps = [built(f"{name}\n") for name in "abcdefghij"]
    begin = time.monotonic()
    found = made.trajectory([(b, node(i, b).evaluation) for i, b in enumerate(steps)], 0.1)
    assert time.monotonic() - begin < 0.9  # and not a tenth of a second for each of ten
    assert len(found) == 10
    assert any("the profiler did not answer in time" in note for note in made.close())

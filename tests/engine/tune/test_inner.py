"""A template as one node of the tree search."""

import concurrent.futures
import contextlib
import dataclasses
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from engine.cuda.kernel import Edit, Span
from engine.evaluate.devices import OneDevice
from engine.model import Outcome, Target
from engine.rewrite.proposal import Proposal
from engine.search.build_queue import BuildQueue
from engine.search.journal import Journal
from engine.search.loop import Search
from engine.search.participants import Builds, Participants
from engine.search.progress import Budget
from engine.search.tree import Tree
from engine.spec.reader import specs_in
from engine.tune.feasible import feasible
from engine.tune.inner import POINTS, TunerPace, TunerPart
from engine.tune.offers import offers
from engine.tune.surrogate import Surrogate
from engine.verify.screen import screen

from .kernels import SAXPY, program, template
from .test_tuner import TEXT, Evaluator, speed, values


def start(tmp_path, evaluator, *, resume=False, text=TEXT, source=lambda program: []):
    original = program(text)
    reads = partial(offers, spec=specs_in(original, None)[0], spec_path=None, target=Target())
    part = TunerPart(reads, Target(), evaluator, TunerPace(in_flight=4, seed=0))
    tree = Tree(original, part.wrap(source), 0)
    journal = Journal(tmp_path / "journal.sqlite", original, {"kernel": "saxpy"}, resume=resume)
    search = Search(tree, evaluator, journal, Builds(ThreadPoolExecutor(2), in_flight=3), Participants(inner=part))
    search.start(*evaluator.open(original))
    return search


@contextlib.contextmanager
def device_of(part):
    device = OneDevice(part._evaluator)
    yield device
    device.stop()


def template_nodes(search):
    return [n for n in search.tree.walk() if n.proposal and n.proposal.rule == "constants"]


def test_a_template_is_one_node_whose_reward_is_its_best_point(tmp_path):
    evaluator = Evaluator()
    search = start(tmp_path, evaluator)
    search.run(Budget(candidates=POINTS))
    nodes = template_nodes(search)
    assert len(nodes) == 1
    node = nodes[0]
    assert node.proposal.proposer == "tuner"
    assert "the best of" in node.proposal.summary
    best = max(speed(*p) for p in evaluator.evaluated)
    assert node.evaluation.measurement.ratio == pytest.approx(best / speed(256, 1))
    assert search.incumbent is node
    point = (node.proposal.parameters["BLOCK"], node.proposal.parameters["ITEMS"])
    assert f"#define BLOCK {point[0]}\n" in node.program.data.decode()
    assert len(evaluator.evaluated) > 5


def test_a_template_that_the_budget_cuts_off_before_its_first_point_is_not_refused_and_tried_when_resumed(tmp_path):
    """It was booked as refused, so that --resume passed it over and a model was told that it failed."""
    release = threading.Event()

    class Stuck(Evaluator):
        def build(self, program, *, by_rules=False):
            if program.data.decode() != TEXT:
                built.append(program)
                if len({one.digest for one in built}) > 1:  # with the first build the turn of the template comes
                    release.wait(20)
            return super().build(program, by_rules=by_rules)

    built = []
    search = start(tmp_path, Stuck())
    search.run(Budget(seconds=search.elapsed_s + 2.0))
    assert len({one.digest for one in built}) > 1  # it had begun
    assert template_nodes(search) == []
    assert search.progress.outcomes == {}
    assert not search.tree.root.pending
    release.set()
    search.journal.close()
    again = start(tmp_path, Evaluator(), resume=True)
    again.run(Budget(candidates=POINTS))
    assert len(template_nodes(again)) == 1
    assert again.incumbent is not None


def test_its_points_count_as_candidates_of_the_budget_also_when_resumed(tmp_path):
    evaluator = Evaluator()
    search = start(tmp_path, evaluator)
    search.run(Budget(candidates=10))
    # Points that were compiled already and turned out equal count too, so it is never less than what ran.
    assert len(evaluator.evaluated) + len(evaluator.retimed) <= search.progress.evaluated <= 11
    counted = search.progress.evaluated
    search.journal.close()
    again = start(tmp_path, Evaluator(), resume=True)
    assert again.progress.evaluated == counted


def test_a_template_that_does_not_reproduce_the_original_fails_as_a_node(tmp_path):
    everything = {(b, i) for b in range(64, 1025, 64) for i in (1, 2, 4, 8)}
    search = start(tmp_path, Evaluator(wrong=everything))
    search.run(Budget(candidates=12))
    assert {n.evaluation.outcome for n in template_nodes(search)} == {Outcome.WRONG_RESULT}
    assert search.incumbent is None


def test_a_template_that_cannot_be_built_is_not_called_wrong(tmp_path):
    everything = {(b, i) for b in range(64, 1025, 64) for i in (1, 2, 4, 8)} - {(256, 1)}
    search = start(tmp_path, Evaluator(broken=everything))
    search.run(Budget(candidates=12))
    assert {n.evaluation.outcome for n in template_nodes(search)} == {Outcome.SCREENED_OUT}
    assert "could be built" in template_nodes(search)[0].evaluation.failure.reason


def test_an_edit_may_bring_a_template_with_it():
    # Who proposes an edit, a model say, declares a template by the same lines as a person; the screen lets them through.
    written = SAXPY.replace("#ifndef BLOCK\n#define BLOCK 256\n#endif\n", "constexpr int BLOCK = 256;\n")
    plain = [line for line in written.split("\n") if not re.search("optiml: (tune|where)|constexpr", line)]
    original = program(re.sub(r"\bITEMS\b", "1", re.sub(r"\bBLOCK\b", "256", "\n".join(plain))))
    spec = specs_in(original, None)[0]
    assert screen(original, program(written), spec) is None
    reads = partial(offers, spec=spec, spec_path=None, target=Target())
    part = TunerPart(reads, Target(), Evaluator(), TunerPace(in_flight=1, seed=0))
    assert not [p for p in part.proposals(original) if p.rule == "constants"]
    assert [p.proposer for p in part.proposals(program(written)) if p.rule == "constants"] == ["tuner"]


ONE = SAXPY.replace("// optiml: tune BLOCK = 64, 128, 256, 2048\n", "")


@pytest.mark.parametrize("values", ["1, 2, 4", "4, 1", "1, 2"])
def test_a_declared_template_is_tried_wherever_the_present_point_stands_and_however_few_there_are(tmp_path, values):
    """Its first point stood for it: where that was the program as it is, the search took it for known and dropped it."""
    search = start(tmp_path, Evaluator(), text=ONE.replace("1, 2, 4", values))
    search.run(Budget(candidates=POINTS))
    node = template_nodes(search)[0]
    assert node.parent is search.tree.root
    assert node.proposal.parameters["ITEMS"] == max(int(value) for value in values.split(","))


def test_a_template_is_tried_although_another_edit_led_to_its_first_point(tmp_path):
    def double(program):
        at = program.data.find(b"ITEMS = 1;")
        edits = {"k.cu": (Edit(Span(at + 8, at + 9), "2"),)}
        return [Proposal("rules", "double", "Double ITEMS", edits, prior=0.9)] if at >= 0 else []

    search = start(tmp_path, Evaluator(), text=ONE, source=double)
    search.run(Budget(candidates=POINTS))
    assert search.tree.root.children[0].proposal.rule == "double"
    assert template_nodes(search)[0].parent is search.tree.root
    assert template_nodes(search)[0].proposal.parameters == {"ITEMS": 4}


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ("4, 8", "all 1 points tried were duplicates (same SASS and launch)"),
        ("4, 8, 2", "of 2 points tried, 1 were duplicates (same SASS and launch), the others failed, such as: no such thing"),
        ("4, 2", "no point of the template could be built and run; the last, ITEMS = 2: no such thing"),
    ],
)  # fmt: skip
def test_a_template_without_a_new_point_says_why(tmp_path, values, says):
    """It was said that none could be evaluated where all were the twins of candidates that are known."""
    text = ONE.replace("int ITEMS = 1;", "int ITEMS = 4;").replace("tune ITEMS = 1, 2, 4", f"tune ITEMS = {values}")
    search = start(tmp_path, Evaluator(broken={(256, 2)}), text=text)
    search.run(Budget(candidates=4))
    node = template_nodes(search)[0]
    assert node.evaluation.outcome is Outcome.SCREENED_OUT
    assert node.evaluation.failure.reason == says


def test_a_template_of_which_nothing_is_new_is_left_early(tmp_path):
    """Three templates of launch bounds that changed no code took 12 of 20 candidates."""
    text = ONE.replace("int ITEMS = 1;", "int ITEMS = 4;").replace("tune ITEMS = 1, 2, 4", "tune ITEMS = 4..15")
    search = start(tmp_path, Evaluator(), text=text)
    search.run(Budget(candidates=20))
    node = template_nodes(search)[0]
    assert TunerPart.points_of(node.evaluation.notes) == 6
    assert node.evaluation.failure.reason == "all 6 points tried were duplicates (same SASS and launch)"


def test_a_template_of_many_points_is_searched_by_the_model_with_what_launches_tell(tmp_path, monkeypatch):
    described = set()
    told = Surrogate.describe

    def describe(self, point, features):
        if set(features) == {"threads", "blocks"}:
            described.add(point)
        told(self, point, features)

    monkeypatch.setattr(Surrogate, "describe", describe)
    evaluator = Evaluator()
    search = start(tmp_path, evaluator)
    search.run(Budget(candidates=POINTS))
    points = feasible(template(TEXT), Target()).points
    assert described == set(points)  # all of them, before any was compiled
    best = max(speed(b, min(i, 4)) for b, i in points)
    assert search.incumbent.evaluation.measurement.ratio == pytest.approx(best / speed(256, 1), rel=0.05)
    assert not evaluator.retimed


def ended(steps):
    """What came out, and the seconds that it waited for builds."""
    waited_s = 0.0
    while True:
        try:
            wanted = next(steps)
        except StopIteration as end:
            return end.value, waited_s
        begin = time.monotonic()
        concurrent.futures.wait(wanted, return_when=concurrent.futures.FIRST_COMPLETED)
        waited_s += time.monotonic() - begin


@pytest.mark.parametrize(("step", "counted", "tried"), [(128, False, 28), (128, True, POINTS), (64, False, POINTS)])
def test_where_time_ends_the_search_all_points_of_a_small_template_are_tried(step, counted, tried):
    """To choose sixteen of so few took longer than to try the others."""
    original = program(TEXT.replace("step 64", f"step {step}").replace("64..", f"{step}.."))
    reads = partial(offers, spec=specs_in(original, None)[0], spec_path=None, target=Target())
    part = TunerPart(reads, Target(), Evaluator(), TunerPace(in_flight=4, seed=0, counted=counted))
    proposal = next(p for p in part.proposals(original) if p.rule == "constants")
    assert proposal.tries == tried
    left = Budget(candidates=100) if counted else Budget(seconds=60)
    with ThreadPoolExecutor(2) as executor, device_of(part) as device:
        found, _ = ended(part.search(original, proposal, None, left, Builds(executor, 4, devices=device), {}))
    assert found.points == tried - (tried == 28)  # one of them is the program as it is


def test_all_templates_are_evaluated_on_one_thread(tmp_path):
    """Each started one of its own."""
    threads = set()

    class Noting(Evaluator):
        def evaluate(self, built, incumbent, *, brief=False):
            threads.add(threading.get_ident())
            return super().evaluate(built, incumbent, brief=brief)

    def double(program):
        at = program.data.find(b"ITEMS = 1;")
        edits = {"k.cu": (Edit(Span(at + 8, at + 9), "2"),)}
        return [Proposal("rules", "double", "Double ITEMS", edits, prior=0.9)] if at >= 0 else []

    search = start(tmp_path, Noting(), source=double)
    search.run(Budget(seconds=60))
    assert len(template_nodes(search)) > 1
    assert len(threads) == 1


def test_the_best_point_is_built_once_and_foreseen_whether_or_not_it_beats_the_incumbent():
    original = program(TEXT)
    evaluator, foreseen = Evaluator(), []
    reads = partial(offers, spec=specs_in(original, None)[0], spec_path=None, target=Target())
    part = TunerPart(reads, Target(), evaluator, TunerPace(in_flight=4, seed=0), foresee=foreseen.append)
    proposal = next(p for p in part.proposals(original) if p.rule == "constants")
    rival = evaluator.build(program(TEXT.replace("#define BLOCK 256", "#define BLOCK 1024")))
    for champion in (None, dataclasses.replace(rival, text="(1, 1024)")):  # faster than every point
        evaluator.built.clear()
        with ThreadPoolExecutor(2) as executor, device_of(part) as device:
            found, _ = ended(
                part.search(original, proposal, champion, Budget(None, None), Builds(executor, 4, devices=device), {})
            )
        assert found.against == (None if champion is None else 1.0)
        assert evaluator.built.count(values(found.program.data.decode())) == 1
        assert foreseen[-1] == found.program


def test_the_best_point_is_written_once():
    """Once more for its node, on the thread that feeds the device."""
    original, written = program(TEXT), []
    reads = partial(offers, spec=specs_in(original, None)[0], spec_path=None, target=Target())
    part = TunerPart(reads, Target(), Evaluator(), TunerPace(in_flight=4, seed=0))
    proposal = next(p for p in part.proposals(original) if p.rule == "constants")
    template = proposal.template

    class Counted:
        def proposal(self, point):
            written.append(point)
            return template.proposal(point)

        def __getattr__(self, name):
            return getattr(template, name)

    counted = dataclasses.replace(proposal, template=Counted())
    with ThreadPoolExecutor(2) as executor, device_of(part) as device:
        found, _ = ended(
            part.search(original, counted, None, Budget(None, None), Builds(executor, 4, devices=device), {})
        )
    best = tuple(found.proposal.parameters[name] for name in template.space.names)
    assert best in written
    assert len(set(written)) == len(written)


def test_what_a_search_within_a_template_takes_of_its_own_is_selecting_and_writing(monkeypatch):
    """It was in no stage before the first point and after the last."""
    original = program(TEXT)
    reads = partial(offers, spec=specs_in(original, None)[0], spec_path=None, target=Target())
    unbooked = []
    for _ in range(5):  # others may use the machine meanwhile
        part = TunerPart(reads, Target(), Evaluator(), TunerPace(in_flight=4, seed=0))
        proposal = next(p for p in part.proposals(original) if p.rule == "constants")
        with ThreadPoolExecutor(2) as executor, device_of(part) as device:
            begin = time.monotonic()
            found, waited_s = ended(
                part.search(original, proposal, None, Budget(None, None), Builds(executor, 4, devices=device), {})
            )
            took_s = time.monotonic() - begin
        assert {"select", "edit"} <= set(found.stage_s)
        unbooked.append(took_s - waited_s - sum(found.stage_s.values()) - 0.1 * took_s)
        assert unbooked[-1] >= -0.1 * took_s
    assert min(unbooked) < 0.02


def test_what_was_measured_beside_an_earlier_best_does_not_take_the_place_of_a_better_one():
    """Two points are on the device at once: the second is measured beside what was the best before the first."""
    original = program(TEXT)
    evaluator = Evaluator()
    reads = partial(offers, spec=specs_in(original, None)[0], spec_path=None, target=Target())
    part = TunerPart(reads, Target(), evaluator, TunerPace(in_flight=4, seed=0))
    proposal = next(p for p in part.proposals(original) if p.rule == "constants")
    rival = evaluator.build(program(TEXT))
    with ThreadPoolExecutor(2) as executor, device_of(part) as device:
        found, _ = ended(
            part.search(original, proposal, rival, Budget(60.0, None), Builds(executor, 4, devices=device), {})
        )
    assert values(found.program.data.decode()) == max(evaluator.evaluated, key=lambda point: speed(*point))
    assert found.against == pytest.approx(speed(*values(found.program.data.decode())) / speed(256, 1), rel=1e-6)


def test_no_more_points_are_built_than_evaluated_where_compilers_are_waited_for():
    """A template's last round of builds, one for each compiler, came to nothing, and the next template waited for it."""
    points = feasible(template(TEXT), Target()).points
    for build_s, evaluation_s in ((0.4, 0.0), (0.0, 0.03)):

        class Paced(Evaluator):
            def build(self, program, *, by_rules=False, build_s=build_s):
                time.sleep(build_s)
                return super().build(program, by_rules=by_rules)

            def evaluate(self, built, incumbent, *, brief=False, evaluation_s=evaluation_s):
                time.sleep(evaluation_s)
                return super().evaluate(built, incumbent, brief=brief)

        original, evaluator = program(TEXT), Paced()
        reads = partial(offers, spec=specs_in(original, None)[0], spec_path=None, target=Target())
        part = TunerPart(reads, Target(), evaluator, TunerPace(in_flight=12, seed=0, counted=False))
        proposal = next(p for p in part.proposals(original) if p.rule == "constants")
        with ThreadPoolExecutor(10) as executor, device_of(part) as device:
            found, _ = ended(
                part.search(original, proposal, None, Budget(60.0, None), Builds(executor, 12, devices=device), {})
            )
        assert found.points == POINTS < len(points)
        if build_s:
            assert len(evaluator.built) <= POINTS
        else:  # where the device is waited for, it takes the best of several
            assert len(evaluator.built) > POINTS + 8


def test_a_template_whose_turn_has_come_is_built_before_those_that_wait():
    original, order = program(TEXT), []
    reads = partial(offers, spec=specs_in(original, None)[0], spec_path=None, target=Target())
    held, held_up = threading.Event(), threading.Event()

    class Noting(Evaluator):
        def build(self, program, *, by_rules=False):
            order.append(values(program.data.decode()))
            return super().build(program, by_rules=by_rules)

    part = TunerPart(reads, Target(), Noting(), TunerPace(in_flight=8, seed=0, counted=False))
    proposal = next(p for p in part.proposals(original) if p.rule == "constants")
    queue = BuildQueue(1)
    with device_of(part) as device:
        part.ready(original, proposal, queue)
        begun = part._begun[original.digest, proposal.rule]
        begun.result(10)  # its first points wait for the thread, or were built
        queue.submit(lambda: (held_up.set(), held.wait(10)))
        assert held_up.wait(10)
        other = queue.submit(order.append, "another candidate")
        steps = part.search(original, proposal, None, Budget(60.0, None), Builds(queue, 8, devices=device), {})
        next(steps)  # it waits for builds now
        held.set()
        ended(steps)
        other.result(10)
        queue.shutdown()
    assert order.index("another candidate") > POINTS // 2

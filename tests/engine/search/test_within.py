"""Searches within templates, beside each other and beside single candidates."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import pytest

from engine.rewrite.proposal import Proposal
from engine.search.journal import Journal
from engine.search.loop import Search
from engine.search.participants import Builds, Participants
from engine.search.progress import NOTHING_LEFT, Budget
from engine.search.question import MODEL
from engine.search.tree import Tree

from .fakes import Factors, FakeEvaluator, edit, program


class Templates:
    """Templates of the original; each waits for one build, which `release` ends, and comes to a speed of its own."""

    def __init__(self, speeds, release=lambda waiting: None, against=None):
        self.speeds, self.release, self.against = speeds, release, against
        self.active, self.most, self.waiting, self.log = 0, 0, [], []

    def proposals(self, of):
        if of.data != program().data:
            return []
        return [Proposal("tuner", f"tile {s}", "Tune", edit(of, f"// tuned {s}").edits, {}, 0.9) for s in self.speeds]

    def search(self, of, proposal, champion, left, builds, known):
        speed = proposal.rule.split()[1]
        end = None if left.seconds is None else time.monotonic() + left.seconds
        self.active += 1
        self.most = max(self.most, self.active)
        self.log.append(("begins", speed))
        self.waiting.append(Future())
        built = self.waiting[-1]
        self.release(built)
        while not built.done() and (end is None or time.monotonic() < end):
            yield [built]
        self.active -= 1
        self.log.append(("ends", speed))
        best = program(of.data.decode() + f"// speed {speed}\n")
        machine_code = FakeEvaluator().build(best)
        return SimpleNamespace(
            proposal=Proposal("tuner", proposal.rule, f"Tile {speed}", proposal.edits, {}, 0.9), program=best,
            built=machine_code, evaluation=FakeEvaluator()._evaluation(machine_code), against=self.against, points=4,
            stage_s={},
        )  # fmt: skip

    def ready(self, of, proposal, executor):
        pass

    def points_of(self, notes):
        return 4

    def taken_over(self, of, template):
        pass


class Evaluator(FakeEvaluator):
    """Ends the builds that templates wait for after so many evaluations."""

    def __init__(self, templates, after=1000):
        super().__init__()
        self.templates, self.after = templates, after

    def evaluate(self, built, incumbent, *, brief=False):
        found = super().evaluate(built, incumbent)
        self.templates.log.append(("evaluates", built.text))
        if len(self.evaluated) >= self.after:
            for waiting in self.templates.waiting:
                if not waiting.done():
                    waiting.set_result(None)
        return found


@pytest.fixture
def searched(tmp_path):
    def run(templates, evaluator, factors, budget):
        original = program()
        source = Factors(factors)
        tree = Tree(original, lambda of: [*templates.proposals(of), *source(of)], 0)
        journal = Journal(tmp_path / "journal.sqlite", original, {}, resume=False)
        with ThreadPoolExecutor(2) as executor:
            search = Search(
                tree,
                evaluator,
                journal,
                Builds(executor, in_flight=6),
                Participants(
                    inner=templates, on_incumbent=lambda built, evaluation: templates.log.append(("best", built.text))
                ),
            )
            search.start(*evaluator.open(original))
            search.run(budget)
        return search

    return run


def test_other_candidates_are_evaluated_while_a_template_waits_for_the_compilers(searched):
    """The device stood idle for as long as a point compiles, for each template."""
    templates = Templates(("1.3",))
    search = searched(templates, Evaluator(templates, after=3), ("1.5", "0.7"), Budget(seconds=60))
    assert search.progress.stopped == NOTHING_LEFT
    between = templates.log[templates.log.index(("begins", "1.3")) : templates.log.index(("ends", "1.3"))]
    assert any(what == "evaluates" for what, _ in between)
    assert {n.proposal.proposer for n in search.tree.walk() if n.proposal} == {"tuner", "rules"}


def test_where_evaluations_are_counted_nothing_is_evaluated_while_a_template_waits(searched):
    """Each is to be chosen with what all before it brought."""
    templates = Templates(
        ("1.3",), lambda built: ThreadPoolExecutor(1).submit(lambda: (time.sleep(0.2), built.set_result(None)))
    )
    searched(templates, Evaluator(templates), ("1.5", "0.7"), Budget(seconds=60, candidates=20))
    at = templates.log.index(("begins", "1.3"))
    assert templates.log[at + 1] == ("ends", "1.3")


@pytest.mark.parametrize("at_once", [1, 2])
def test_so_many_templates_are_searched_at_once(searched, monkeypatch, at_once):
    monkeypatch.setattr("engine.search.loop._WITHIN", at_once)
    templates = Templates(("1.1", "1.2", "1.3", "1.4"))
    search = searched(templates, Evaluator(templates, after=1), ("0.7", "0.8", "0.9"), Budget(seconds=60))
    assert templates.most == at_once
    assert sum(what == "ends" for what, _ in templates.log) == 4
    assert sum(n.proposal.proposer == "tuner" for n in search.tree.walk() if n.proposal) == 4


def test_a_template_that_waits_at_the_end_of_the_budget_ends_with_what_it_has(searched):
    templates = Templates(("1.1", "1.2", "1.3"))
    search = searched(templates, Evaluator(templates), ("0.7",), Budget(seconds=0.5))
    assert search.progress.stopped == "the budget is spent"
    tuned = [n for n in search.tree.walk() if n.proposal and n.proposal.proposer == "tuner"]
    assert len(tuned) == 1  # the others had not begun
    assert len(list(search.journal.entries())) == len(search.tree.nodes)
    assert not search.tree.root.pending


def test_what_was_measured_beside_an_earlier_best_does_not_take_the_place_of_a_better_one(searched):
    templates = Templates(("1.3",), against=1.3)
    searched(templates, Evaluator(templates, after=1), ("2.0",), Budget(seconds=60))
    best = [text.count("speed 2.0") for what, text in templates.log if what == "best"]
    assert templates.log.index(("begins", "1.3")) < [what for what, _ in templates.log].index("best")
    assert best
    assert all(best)  # at 2.0 times, and then on top of the template's 1.3: never at 1.3 alone


def test_the_next_candidate_is_on_the_device_before_more_are_chosen(tmp_path):
    """It stood idle for that after each stretch of a template, although others were built."""
    templates = Templates(("1.3",))
    busy = []

    class Patient(Evaluator):
        built = 0

        def build(self, of, *, by_rules=False):
            self.built += 1
            return super().build(of, by_rules=by_rules)

        def evaluate(self, built, incumbent, *, brief=False):
            until = time.monotonic() + 10
            while self.built < 5 and time.monotonic() < until:  # the original, the template and the others
                time.sleep(0.001)
            time.sleep(0.05)  # what was built is there for whoever looks
            return super().evaluate(built, incumbent, brief=brief)

    evaluator, original = Patient(templates, after=2), program()
    tree = Tree(original, lambda of: [*templates.proposals(of), *Factors(("0.7", "0.8", "0.9"))(of)], 0)
    choose = tree.select

    def select(**how):
        if templates.log[-1:] == [("ends", "1.3")]:
            busy.append(search._running is not None)
        return choose(**how)

    tree.select = select
    journal = Journal(tmp_path / "journal.sqlite", original, {}, resume=False)
    with ThreadPoolExecutor(4) as executor:
        search = Search(tree, evaluator, journal, Builds(executor, in_flight=6), Participants(inner=templates))
        search.start(*evaluator.open(original))
        search.run(Budget(seconds=60))
    assert busy
    assert all(busy)


def test_the_best_point_of_a_models_template_is_no_code_of_rules(tmp_path):
    """It was built as if rules had written all of it, and checks of what others write were left out where it was suggested."""

    class Below(Templates):
        def proposals(self, of):
            return super().proposals(program()) if of.data == written.data else []

        def search(self, of, proposal, champion, left, builds, known):
            found = yield from super().search(of, proposal, champion, left, builds, known)
            found.built = replace(found.built, by_rules=True)
            return found

    original = program()
    written = program("kernel\n// speed 1.2\n")
    models = replace(edit(original, "// speed 1.2"), proposer=MODEL)
    templates = Below(("1.5",), release=lambda waiting: waiting.set_result(None))
    tree = Tree(original, lambda of: [*templates.proposals(of), *([models] if of.data == original.data else [])], 0)
    evaluator = Evaluator(templates)
    with ThreadPoolExecutor(2) as executor:
        journal = Journal(tmp_path / "journal.sqlite", original, {}, resume=False)
        search = Search(tree, evaluator, journal, Builds(executor, in_flight=2), Participants(inner=templates))
        search.start(*evaluator.open(original))
        search.run(Budget(seconds=60))
    assert search.incumbent.proposal.proposer == "tuner"
    assert not search.incumbent.by_rules
    assert not search.built[search.incumbent.id].by_rules

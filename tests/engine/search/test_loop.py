import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import engine.search.loop
import engine.search.progress
from engine.errors import MachineError, UsageError
from engine.model import Outcome
from engine.rewrite.proposal import Proposal
from engine.search.best import best_nodes
from engine.search.journal import Journal
from engine.search.loop import Search
from engine.search.participants import Builds, Observation, Participants
from engine.search.progress import Budget
from engine.search.reward import Proxies
from engine.search.tree import Tree

from .fakes import Factors, FakeEvaluator, edit, program, speed


def start(tmp_path, proposer, *, seed=0, strategy="mcts", resume=False, in_flight=4, evaluator=None, original=None):
    original = original or program()
    evaluator = evaluator or FakeEvaluator()
    tree = Tree(original, proposer, seed, strategy)
    journal = Journal(tmp_path / "journal.sqlite", original, {"kernel": "k"}, resume=resume)
    executor = ThreadPoolExecutor(2)
    search = Search(tree, evaluator, journal, Builds(executor, in_flight=in_flight))
    search.start(*evaluator.open(original))
    return search


@pytest.mark.parametrize("strategy", ["mcts", "greedy", "random"])
def test_the_search_combines_edits_and_finds_the_product(tmp_path, strategy):
    search = start(tmp_path, Factors(("1.5", "0.7", "2.0", "0.9", "1.1")), strategy=strategy)
    search.run(Budget(candidates=400))
    assert search.incumbent is not None
    assert speed(search.incumbent.program.data.decode()) == pytest.approx(1.5 * 2.0 * 1.1)
    assert search.progress.stopped == "nothing is left to try"


def test_a_tree_policy_follows_a_chain_sooner_than_chance(tmp_path):
    # Each good edit comes into reach only after the one before it, among nine that do nothing good.
    def propose(of):
        text = of.data.decode()
        depth = text.count("// speed 1.4")
        good = [edit(of, f"// speed 1.4 good{depth}")] if depth < 5 else []
        return good + [edit(of, f"// speed 0.9{i} #{len(text)}") for i in range(9)]

    reached = {}
    for strategy in ("mcts", "random"):
        ratios = []
        for seed in range(6):
            search = start(tmp_path / f"{strategy}{seed}", propose, strategy=strategy, seed=seed, in_flight=1)
            search.run(Budget(candidates=120))
            ratios.append(max(speed(n.program.data.decode()) for n in search.tree.walk()))
        reached[strategy] = sum(ratios) / len(ratios)
    assert reached["mcts"] > 1.2 * reached["random"]


def test_edits_that_gain_nothing_are_left_out_of_the_suggestion(tmp_path):
    search = start(tmp_path, Factors(("2.0", "1.002", "1.001")))
    search.run(Budget(candidates=200))
    assert search.incumbent is not None
    best = best_nodes(search.tree, search.incumbent, 1)[0]
    assert best.depth == 1
    assert speed(best.program.data.decode()) == 2.0


def test_the_candidate_budget_is_exact(tmp_path):
    search = start(tmp_path, Factors(tuple(f"1.{i:02}" for i in range(1, 30))))
    search.run(Budget(candidates=37))
    assert search.progress.evaluated == 37
    assert len(list(search.journal.entries())) == 38  # and the original


def test_near_its_end_a_search_says_so_once_and_goes_on(tmp_path):
    search = start(tmp_path, Factors(tuple(f"1.{i:02}" for i in range(1, 30))), in_flight=1)
    seen = []
    search.run(Budget(candidates=20), nearly=Budget(candidates=15), then=lambda: seen.append(search.progress.evaluated))
    assert seen == [15]
    assert search.progress.evaluated == 20


def test_equal_machine_code_is_timed_once(tmp_path):
    evaluator = FakeEvaluator()
    search = start(tmp_path, Factors(("1.5", "2.0")), evaluator=evaluator)
    search.run(Budget(candidates=50))
    # 1.5 then 2.0 and 2.0 then 1.5 are the same code by two ways
    assert search.progress.outcomes[Outcome.DUPLICATE] == 1
    assert len(evaluator.evaluated) == 3


def test_failures_are_booked_with_their_reason_and_never_built_upon(tmp_path):
    def propose(of):
        text = of.data.decode()
        return [] if "\n//" in text else [edit(of, "// wrong"), edit(of, "// broken"), edit(of, "// speed 1.2")]

    search = start(tmp_path, propose)
    search.run(Budget(candidates=50))
    entries = {e.evaluation.outcome: e for e in search.journal.entries() if e.id}
    assert set(entries) == {Outcome.WRONG_RESULT, Outcome.COMPILE_ERROR, Outcome.ACCEPTED}
    assert entries[Outcome.WRONG_RESULT].evaluation.failure.index == 3


def test_a_resumed_run_has_every_candidate_and_goes_on(tmp_path):
    proposer = Factors(tuple(f"1.{i:02}" for i in range(1, 30)))
    first = start(tmp_path, proposer)
    first.run(Budget(candidates=20))
    first.journal.close()
    booked = 21
    second = start(tmp_path, proposer, resume=True)
    assert second.progress.evaluated == 20
    assert len(second.tree.nodes) == booked
    assert second.incumbent is not None
    second.run(Budget(candidates=40))
    entries = list(second.journal.entries())
    assert [e.id for e in entries] == list(range(41))
    assert len({e.digest for e in entries}) == 41  # none twice


def test_a_resumed_run_takes_the_files_from_the_journal(tmp_path):
    first = start(tmp_path, Factors(("1.5", "2.0")))
    first.run(Budget(candidates=50))
    texts = sorted(n.program.data for n in first.tree.walk())
    first.journal.close()
    second = start(tmp_path, Factors(("1.5", "2.0")), resume=True)
    assert sorted(n.program.data for n in second.tree.walk()) == texts


def test_resuming_with_another_source_is_refused(tmp_path):
    start(tmp_path, Factors(("1.5",))).journal.close()
    with pytest.raises(UsageError, match="source has changed"):
        start(tmp_path, Factors(("1.5",)), resume=True, original=program("other\n"))


def test_resuming_nothing_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no run to resume"):
        start(tmp_path, Factors(("1.5",)), resume=True)


def test_starting_anew_replaces_an_earlier_run(tmp_path):
    first = start(tmp_path, Factors(("1.5", "2.0")))
    first.run(Budget(candidates=50))
    first.journal.close()
    second = start(tmp_path, Factors(("1.5", "2.0")), original=program("other\n"))
    assert [e.id for e in second.journal.entries()] == [0]


def test_two_runs_on_one_journal_are_refused(tmp_path):
    search = start(tmp_path, Factors(("1.5",)))
    with pytest.raises(MachineError, match="another run"):
        start(tmp_path, Factors(("1.5",)), resume=True)
    search.journal.close()


def test_a_damaged_journal_is_refused(tmp_path):
    search = start(tmp_path, Factors(("1.5", "2.0")))
    search.run(Budget(candidates=50))
    search.journal.close()
    path = tmp_path / "journal.sqlite"
    import sqlite3

    db = sqlite3.connect(path)
    db.execute("UPDATE candidates SET ratio = 9.0 WHERE id = 1")
    db.commit()
    db.close()
    with pytest.raises(MachineError, match="row 1 of the journal is damaged"):
        start(tmp_path, Factors(("1.5", "2.0")), resume=True)
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(MachineError, match="damaged"):
        start(tmp_path, Factors(("1.5", "2.0")), resume=True)


def test_the_same_seed_repeats_the_decisions(tmp_path):
    def texts(folder, seed):
        evaluator = FakeEvaluator()
        search = start(
            tmp_path / folder, Factors(("1.5", "1.2", "1.3", "1.1")), seed=seed, in_flight=1, evaluator=evaluator
        )
        search.run(Budget(candidates=12))
        return evaluator.evaluated

    first = texts("a", 7)
    assert texts("b", 7) == first
    assert texts("c", 8) != first


def test_a_time_budget_ends_the_search(tmp_path):
    search = start(tmp_path, Factors(tuple(f"1.{i:03}" for i in range(1, 200))))
    search.run(Budget(seconds=0.5))
    assert search.progress.stopped == "the budget is spent"
    assert 0.4 < search.elapsed_s < 30


def test_a_full_disk_ends_the_run_and_keeps_what_was_booked(tmp_path):
    proposer = Factors(tuple(f"1.{i:02}" for i in range(1, 30)))
    first = start(tmp_path, proposer)
    first.run(Budget(candidates=5))
    first.journal.close()
    size = sum(f.stat().st_size for f in tmp_path.iterdir())
    script = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({size + 40_000},) * 2)\n"
        "from pathlib import Path\n"
        "from engine.errors import MachineError\n"
        "from engine.search.progress import Budget\n"
        "from tests.engine.search.fakes import Factors\n"
        "from tests.engine.search.test_loop import start\n"
        f"search = start(Path({str(tmp_path)!r}), Factors(tuple(f'1.{{i:02}}' for i in range(1, 30))), resume=True)\n"
        "try:\n"
        "    search.run(Budget(candidates=400))\n"
        "except MachineError as error:\n"
        "    print(error)\n"
        "    print(search.progress.evaluated)\n"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=root, timeout=60)
    said, evaluated = done.stdout.splitlines()
    assert "--resume" in said
    again = start(tmp_path, proposer, resume=True)
    assert 5 <= again.progress.evaluated <= int(evaluated)
    again.run(Budget(candidates=60))
    assert [e.id for e in again.journal.entries()] == list(range(61))


def test_a_device_that_disappears_ends_the_run_and_keeps_what_was_booked(tmp_path):
    class Lost(FakeEvaluator):
        def evaluate(self, built, incumbent, *, brief=False):
            if len(self.evaluated) == 6:
                raise MachineError("the GPU does not answer: lost", do="check it with nvidia-smi")
            return super().evaluate(built, incumbent)

    proposer = Factors(tuple(f"1.{i:02}" for i in range(1, 30)))
    search = start(tmp_path, proposer, evaluator=Lost())
    with pytest.raises(MachineError, match="does not answer"):
        search.run(Budget(candidates=50))
    search.journal.close()
    again = start(tmp_path, proposer, resume=True)
    assert again.progress.evaluated == 6


class Counting:
    """A watch whose counters come one call late: the bytes of a program are 1e9 over its speed."""

    def __init__(self):
        self.passed_nodes, self.ready, self.waiting = [], [], []

    def passed(self, node, built):
        self.passed_nodes.append(node.id)
        moved = 1e9 / speed(built.text)
        counters = [{"dram__bytes.sum": (moved, "byte")}]
        self.waiting.append(Observation(node.id, "cheap", counters, Proxies(moved, 1e6)))

    def arrivals(self):
        came, self.ready, self.waiting = self.ready, self.waiting, []
        return came


def test_counters_are_booked_and_change_the_reward(tmp_path):
    def watched(folder, watch, resume=False):
        original, evaluator = program(), FakeEvaluator()
        tree = Tree(original, Factors(("1.5", "0.7", "wrong")), 0)
        journal = Journal(folder / "journal.sqlite", original, {}, resume=resume)
        search = Search(tree, evaluator, journal, Builds(ThreadPoolExecutor(1), in_flight=2), Participants(watch=watch))
        search.start(*evaluator.open(original))
        return search

    watch = Counting()
    search = watched(tmp_path, watch)
    search.run(Budget(candidates=20))
    search.observe()
    search.observe()
    seen = search.journal.proxies()
    passed = [n for n in search.tree.walk() if n.evaluation.outcome in (Outcome.ACCEPTED, Outcome.SLOWER)]
    assert set(seen) == {0, *(n.id for n in passed)} == set(watch.passed_nodes)
    assert all(n.proxies == seen[n.id] and n.gained != 0 for n in passed)
    fast = next(n for n in passed if n.evaluation.outcome is Outcome.ACCEPTED)
    assert fast.gained > search.tree.reward(fast.evaluation)  # fewer bytes than the original
    gained = {n.id: n.gained for n in search.tree.walk()}
    search.journal.close()

    again = watched(tmp_path, None, resume=True)
    assert {n.id: n.gained for n in again.tree.walk()} == gained
    again.journal.close()
    fresh = watched(tmp_path, None)
    assert fresh.journal.proxies() == {}


_PRIORS = {"1.5": 0.9, "0.7": 0.2, "1.3": 0.35, "wrong": 0.6, "1.02": 0.75}


def _steps(of):
    """Factors with priors of their own, one that is wrong, one that gives the machine code that there was, one that cannot be made."""
    text = of.data.decode()
    found = Factors(("1.5", "0.7", "1.3", "1.02", "1.1", "0.95"), _PRIORS)(of)
    if "wrong" not in text:
        found.append(edit(of, "// wrong", 0.6, "w"))
    if "idle" not in text:
        found.append(edit(of, "// idle", 0.8, "i"))
    beyond = edit(program(text + "x" * 9), "// beyond", 0.7, "b")
    return [*found, beyond]


@pytest.mark.parametrize("strategy", ["mcts", "greedy"])
def test_a_resumed_run_decides_as_one_that_was_not_killed(tmp_path, strategy):
    def decided(search):
        return [
            (e.parent, e.rule, e.summary, e.prior, e.digest, e.evaluation.outcome) for e in search.journal.entries()
        ]

    whole = start(tmp_path / "whole", _steps, seed=5, strategy=strategy, in_flight=1)
    whole.run(Budget(candidates=60))
    wanted = decided(whole)
    assert len({prior for _, _, _, prior, _, _ in wanted}) > 4
    for number, stop in enumerate((1, 9, 30)):
        folder = tmp_path / str(number)
        first = start(folder, _steps, seed=5, strategy=strategy, in_flight=1)
        first.run(Budget(candidates=stop))
        first.journal.close()
        second = start(folder, _steps, seed=5, strategy=strategy, in_flight=1, resume=True)
        second.run(Budget(candidates=60))
        assert decided(second) == wanted, stop
        assert second.incumbent.id == whole.incumbent.id


def test_a_resumed_run_holds_candidates_against_the_best_of_its_earlier_part(tmp_path):
    class Telling(FakeEvaluator):
        def __init__(self):
            super().__init__()
            self.rivals = []

        def evaluate(self, built, incumbent, *, brief=False):
            self.rivals.append(None if incumbent is None else speed(incumbent.text))
            return super().evaluate(built, incumbent)

    first = start(tmp_path, Factors(("2.0", "1.1", "1.2", "0.5")), in_flight=1)
    first.run(Budget(candidates=6))
    best = first.progress.best_ratio
    first.journal.close()
    told = Telling()
    second = start(tmp_path, Factors(("2.0", "1.1", "1.2", "0.5")), in_flight=1, evaluator=told, resume=True)
    second.run(Budget(candidates=8))
    assert told.rivals[0] == best > 1.0


def test_the_best_of_an_earlier_part_is_who_won_side_by_side(tmp_path):
    """Ratios against the original are good to a per cent; what was not faster than the incumbent beside it did not replace it."""

    class Noisy(FakeEvaluator):
        def evaluate(self, built, incumbent, *, brief=False):
            evaluation, against = super().evaluate(built, incumbent)
            return evaluation, None if against is None else 0.99 if "1.01" in built.text else against

    first = start(tmp_path, Factors(("2.0", "1.01")), in_flight=1, evaluator=Noisy())
    first.run(Budget(candidates=20))
    held = first.incumbent.id
    ratios = [n.evaluation.measurement.ratio for n in first.tree.walk()]
    assert first.incumbent.evaluation.measurement.ratio == 2.0 < max(ratios)
    first.journal.close()
    assert start(tmp_path, Factors(("2.0", "1.01")), resume=True).incumbent.id == held


def test_a_template_that_was_searched_is_not_searched_again_after_a_kill(tmp_path):
    class Templates:
        """An inner search whose best point has a name of its own."""

        def __init__(self):
            self.searched, self.done, self.foretold = [], set(), []

        def wrap(self, of):
            template = Proposal("tuner", "tile", "Tune: tile", edit(of, "// speed 1.2 tile").edits, {}, 0.5)
            return [] if (of.digest, "tile") in self.done else [template]

        def search(self, of, proposal, champion, left, builds, known):
            self.searched.append(of.digest)
            evaluator = FakeEvaluator()
            best = program(of.data.decode() + f"// speed 1.{5 + len(self.searched)} tiled\n")
            built = evaluator.build(best)
            self.taken_over(best, "tile")
            yield []
            found = Proposal("tuner", "tile", "Tile by 32 (the best of 4 points)", proposal.edits, {"n": 32}, 0.5)
            evaluation = evaluator._evaluation(built)
            return SimpleNamespace(
                proposal=found, program=best, built=built, evaluation=evaluation, against=None, points=4, stage_s={}
            )

        def ready(self, of, proposal, executor):
            self.foretold.append(proposal)

        def points_of(self, notes):
            return 4

        def taken_over(self, of, template):
            self.done.add((of.digest, template))

    def started(resume):
        inner, evaluator, original = Templates(), FakeEvaluator(), program()
        tree = Tree(original, inner.wrap, 0)
        journal = Journal(tmp_path / "journal.sqlite", original, {}, resume=resume)
        search = Search(tree, evaluator, journal, Builds(ThreadPoolExecutor(1), in_flight=1), Participants(inner=inner))
        search.start(*evaluator.open(original))
        search.run(Budget(candidates=40))
        return search, inner

    first, inner = started(False)
    assert len(inner.searched) == len(inner.foretold) == 1
    assert first.progress.stopped == "nothing is left to try"
    first.journal.close()
    again, inner = started(True)
    assert inner.searched == []
    assert len(again.tree.nodes) == len(first.tree.nodes)


def test_what_the_search_itself_takes_has_a_stage_each(tmp_path, monkeypatch):
    """Writing a candidate's text and booking it were in no stage, so nobody saw where that time went."""
    clock = [0.0]
    for module in (engine.search.loop, engine.search.progress):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def slow(owner, name, seconds):
        plain = getattr(owner, name)

        def slower(*args, **kwargs):
            clock[0] += seconds
            return plain(*args, **kwargs)

        monkeypatch.setattr(owner, name, slower)

    search = start(tmp_path, Factors(("1.5",)))
    slow(engine.search.loop, "edit_program", 1.0)
    slow(search.tree, "select", 2.0)
    slow(search.tree, "add", 4.0)
    search.run(Budget(candidates=1))
    stages = search.progress.stage_s
    assert {name: stages[name] for name in ("edit", "select", "book")} == {"edit": 1.0, "select": 2.0, "book": 4.0}
    assert stages["journal"] > 0  # which runs beside that (test_scribe.py)


def test_everyone_who_proposed_a_step_is_credited(tmp_path):
    """Who came first had it all."""

    def propose(of):
        text = of.data.decode()
        if "speed" in text:
            return []
        first, twin, same = (
            edit(of, "// speed 2.0", 0.9),
            edit(of, "// speed 2.0 #again", 0.5),
            edit(of, "// speed 2.0", 0.4),
        )
        return [
            first,
            replace(twin, proposer="tuner"),
            replace(same, proposer="other"),
            edit(of, "// speed 2.0 #third", 0.3),
        ]

    search = start(tmp_path, propose, in_flight=1)
    search.run(Budget(candidates=10))
    found = {name: (share.best, share.gain, share.also) for name, share in search.tree.mixture.shares.items()}
    assert found == {"rules": (1, 1.0, 0.0), "tuner": (1, 1.0, 1.0), "other": (1, 1.0, 1.0)}
    assert search.progress.evaluated == 3
    search.journal.close()
    again = start(tmp_path, propose, resume=True)
    # Also of who had the same text: nothing of that is a candidate.
    assert {name: (share.best, share.gain, share.also) for name, share in again.tree.mixture.shares.items()} == found


def test_a_build_knows_whether_rules_alone_wrote_the_candidate(tmp_path):
    """Conditions that rules add are reported, those of a model or a person refused: once forgotten at a caller that confirms."""

    class Recording(FakeEvaluator):
        def __init__(self):
            super().__init__()
            self.by_rules = {}

        def build(self, program, *, by_rules=False):
            self.by_rules["".join(line + "\n" for line in program.data.decode().splitlines() if "speed" in line)] = (
                by_rules
            )
            return super().build(program, by_rules=by_rules)

    def propose(of):
        if of.data.decode().count("// speed") > 1:
            return []
        rule = edit(of, "// speed 1.5", 0.5)
        return [rule, replace(edit(of, "// speed 1.2", 0.4), proposer="llm")]

    evaluator = Recording()
    search = start(tmp_path, propose, evaluator=evaluator)
    search.run(Budget(candidates=6))
    assert evaluator.by_rules["// speed 1.5\n"]
    assert not evaluator.by_rules["// speed 1.2\n"]
    assert evaluator.by_rules["// speed 1.5\n// speed 1.5\n"]
    assert not evaluator.by_rules["// speed 1.2\n// speed 1.5\n"]

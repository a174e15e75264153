"""Asking a model is an action of the tree: it competes with edits and programs, and a search with a model ends by its budget."""

import json
import math
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import get_args

import pytest

from engine.search.participants import Builds, Participants

pytest.importorskip("openai")
pytest.importorskip("jinja2")

from engine.llm.chat import ChatAnswer, ChatError, Fault, TokenUsage
from engine.llm.feed import Answering, Background, LlmFeed
from engine.llm.openai_client import ClientOptions, OpenAIClient
from engine.llm.proposer import LlmOptions, LlmProposer
from engine.model import Outcome, Program, Target
from engine.search.journal import Journal
from engine.search.loop import Search
from engine.search.policies import Strategy
from engine.search.progress import Budget
from engine.search.puct import BEST_SHARE, EXPLORATION, LEAST_SCALE, REFINED, WIDENING, WIDTH
from engine.search.question import AGAIN, Question
from engine.search.reward import failed
from engine.search.tree import Tree
from engine.spec.find import find_spec
from tests.engine.search.fakes import Factors, FakeEvaluator

from .server import completion
from .test_edits import LOOP, SOFTMAX, answer


class Script:
    """Answers with edits that fit every program of the run, each of another gain; some fail. Also a reply of the scripted server."""

    def __init__(self):
        self.given, self.asked, self.lock = 0, [], threading.Lock()

    def text(self, about=None):
        items = []
        with self.lock:
            self.asked.append(about)
            for _ in range(3):
                self.given += 1
                ending = f"speed({1 + (7 * self.given % 23 - 6) / 50 + self.given / 1e4:.4f});"
                if self.given % 9 == 4:
                    ending = f"wrong({self.given});"
                made = answer((LOOP, f"{LOOP}\n    {ending}"), idea=f"Step number {self.given}")
                items += json.loads(made)["proposals"]
        return json.dumps({"proposals": items})

    def complete(self, request):
        return ChatAnswer(self.text((request.label.split("/")[0], request.about)), "scripted", TokenUsage(1, 1))

    def __call__(self, handler):
        handler.send(200, completion(self.text()))


OF_THE_RULES = {"best-of": 3}  # else every order of three edits, without what is made of a duplicate: 3 + 6 + 3


class Dead:
    def complete(self, request):
        raise ChatError("no server", fault=Fault.CONNECTION)


def search_with(
    tmp_path, client, budget, *, strategy="mcts", factors=(), resume=False, prepare=None, in_flight=2, repairs=2, **how
):
    (tmp_path / "k.cu").write_bytes(SOFTMAX.read_bytes())
    spec, _ = find_spec(tmp_path, tmp_path / "k.cu", "softmax_kernel")
    program = Program({"k.cu": SOFTMAX.read_bytes()}, "k.cu")
    parts = {
        "background": Background(**{key: how.pop(key) for key in ("diagnose", "recall", "counters") if key in how}),
        "answering": Answering(**{key: how.pop(key) for key in ("holds", "workers", "deferring") if key in how}),
    }
    feed = LlmFeed(LlmProposer(client, LlmOptions(repairs=repairs)), spec, Target(), **{**parts, **how})
    evaluator = FakeEvaluator()
    tree = Tree(program, Factors(factors), 0, strategy)
    journal = Journal(tmp_path / "j.sqlite", program, {}, resume=resume)
    with ThreadPoolExecutor(2) as executor:
        search = Search(tree, evaluator, journal, Builds(executor, in_flight=in_flight), Participants(feed=feed))
        if prepare is not None:
            prepare(search)
        search.start(*evaluator.open(program))
        search.run(budget)
    search.entries_then, search.rows_then = list(journal.entries()), journal.questions()
    journal.close()
    return search, feed


def closed(node):
    return node.evaluation is not None and (
        failed(node.evaluation.outcome) or node.evaluation.outcome is Outcome.DUPLICATE
    )


class Reference:
    """PUCT with progressive widening by its definition: from the nodes' rewards and what was selected, nothing kept."""

    def __init__(self, tree):
        self.tree, self.flying = tree, []

    def below(self, node):
        return [node, *(at for child in node.children for at in self.below(child))]

    def pending(self, node):
        return sum(node in at.path() for at in self.flying)

    def can(self, node, asking):
        here = [*(node.untried or ()), *(node.questions if asking else ())]
        return not closed(node) and bool(
            node.untried is None or here or any(self.can(c, asking) for c in node.children)
        )

    def best(self, node):
        return max(n.gained for n in self.below(node) if n.evaluation.outcome is not Outcome.DUPLICATE or n is node)

    def worth(self, node):
        every = [n.gained for n in self.below(node)]
        return BEST_SHARE * self.best(node) + (1 - BEST_SHARE) * sum(every) / len(every)

    def choose(self, asking):
        node, root = self.tree.root, self.tree.root
        while True:
            visits, pending = len(self.below(node)), self.pending(node)
            scale = max(LEAST_SCALE, self.best(node) - node.gained)
            curious = EXPLORATION * max(1.0, len(self.below(root)) / REFINED) * math.sqrt(visits + pending)
            children = [child for child in node.children if self.can(child, asking)]
            actions = sorted([*node.untried, *(node.questions if asking else ())], key=lambda p: p.prior)
            if children and len(node.children) + pending >= WIDTH * (visits + pending) ** WIDENING:
                actions = []
            scored = []
            for action in actions:
                gain = self.tree.experience.expect(action)
                gain *= AGAIN**action.round if isinstance(action, Question) and gain > 0 else 1
                scored.append(((node.gained + gain) / scale + curious * action.prior, 1, len(scored), action))
            for child in children:
                seen = 1 + len(self.below(child)) + self.pending(child)
                scored.append(
                    (self.worth(child) / scale + curious * child.proposal.prior / seen, 0, -len(scored), child)
                )
            if not scored:
                return None
            _, is_action, _, chosen = max(scored, key=lambda one: one[:3])
            if is_action:
                return node, chosen
            node = chosen


def watched(search, chosen):
    """Hold every selection against the reference's."""
    reference, tree = Reference(search.tree), search.tree
    select, settle = tree.select, tree.settle

    def selected(*, asking=False, eager=False):
        tree.proposals(tree.root)
        for node in tree.walk():
            tree.proposals(node)
        wanted = reference.choose(asking)
        found = select(asking=asking, eager=eager)
        assert (found and (found[0].id, id(found[1]))) == (wanted and (wanted[0].id, id(wanted[1])))
        if found is not None:
            reference.flying.append(found[0])
            chosen.append((found[0].id, isinstance(found[1], Question)))
        return found

    def settled(node):
        reference.flying.remove(node)
        settle(node)

    tree.select, tree.settle = selected, settled


def test_with_a_scripted_server_every_selection_is_that_of_the_reference_policy(tmp_path, serve):
    """The model was asked at the original and at new bests alone, and its answers were played before the tree was consulted."""
    server, chosen = serve(Script()), []
    client = OpenAIClient(ClientOptions(base_url=server.url, model="m"))
    search, feed = search_with(tmp_path, client, Budget(candidates=60), prepare=lambda s: watched(s, chosen))
    assert search.progress.evaluated == 60
    assert search.progress.stopped == "the budget is spent"
    asked = [node for node, question in chosen if question]
    assert len(set(asked)) > 5
    assert max(asked.count(node) for node in asked) > 1  # widening lets a program be asked again
    edits = [node for node, question in chosen if not question]
    for (
        node
    ) in search.tree.walk():  # each selection of an edit at a program is a child of it, or was in flight at the end
        assert len(node.children) <= edits.count(node.id) <= len(node.children) + 2
    assert feed.report.questions == len(asked)


@pytest.mark.parametrize("strategy", get_args(Strategy))
def test_a_search_with_a_model_ends_by_its_budget_and_not_where_rules_run_out(tmp_path, strategy):
    search, _ = search_with(tmp_path, Script(), Budget(candidates=40), strategy=strategy, factors=("1.5", "1.1"))
    assert search.progress.evaluated == 40
    assert search.progress.stopped == "the budget is spent"
    assert search.tree.awaited >= 0
    assert {e.proposer for e in search.entries_then if e.id} == {"rules", "llm"}


def test_policies_differ_in_what_they_ask(tmp_path):
    asked = {}
    for strategy in ("mcts", "greedy", "best-of", "refine"):
        script = Script()
        (tmp_path / strategy).mkdir()
        search_with(
            tmp_path / strategy,
            script,
            Budget(candidates=20),
            strategy=strategy,
            in_flight=1,
            answering=Answering(lambda label: True),
        )
        asked[strategy] = [about for kind, about in script.asked if kind == "propose"]
    assert len({tuple(about) for about in asked.values()}) == 4
    assert set(asked["best-of"]) == {"original"}
    deepest = {name: max(about.count(" > ") for about in abouts) for name, abouts in asked.items()}
    assert deepest["refine"] > deepest["greedy"] > 0


@pytest.mark.parametrize("strategy", get_args(Strategy))
def test_a_dead_server_costs_no_candidate_of_the_rules(tmp_path, strategy):
    search, feed = search_with(tmp_path, Dead(), Budget(seconds=60), strategy=strategy, factors=("1.5", "1.1", "0.9"))
    assert search.progress.evaluated == OF_THE_RULES.get(strategy, 12)
    assert "stopped after 4 consecutive failures" in feed.stopped
    assert search.progress.stopped == f"nothing is left to try, and {feed.stopped}"
    assert search.tree.root.pending == search.tree.awaited == 0


@pytest.mark.parametrize("strategy", get_args(Strategy))
def test_a_slow_server_costs_no_candidate_of_the_rules(tmp_path, strategy):
    evaluated = threading.Event()

    class Slow(Script):
        def complete(self, request):
            evaluated.wait(60)
            return super().complete(request)

    def prepare(search):
        def told(progress):
            if progress.evaluated >= OF_THE_RULES.get(strategy, 12):
                evaluated.set()

        search._on_progress = told

    search, _ = search_with(
        tmp_path, Slow(), Budget(candidates=17), strategy=strategy, factors=("1.5", "1.1", "0.9"), prepare=prepare
    )
    assert search.progress.evaluated == 17
    first = [e.proposer for e in search.entries_then][1 : 1 + OF_THE_RULES.get(strategy, 12)]
    assert set(first) == {"rules"}  # all of theirs were tried while the answer was awaited


def test_a_resumed_run_knows_its_questions_and_decides_as_one_that_was_not_killed(tmp_path):
    def decided(search):
        return [(e.parent, e.rule, e.summary, e.prior, e.digest) for e in search.entries_then]

    how = {"holds": lambda label: True, "in_flight": 1, "factors": ("1.5", "0.9")}
    folders = [tmp_path / name for name in ("whole", "parts")]
    for folder in folders:
        folder.mkdir()
    whole, _ = search_with(folders[0], Steady(), Budget(candidates=26), **how)
    first, _ = search_with(folders[1], Steady(), Budget(candidates=11), **how)
    assert any(row.answers for row in first.rows_then)
    second, _ = search_with(folders[1], Steady(), Budget(candidates=26), resume=True, **how)
    assert decided(second)[:12] == decided(first)
    assert decided(second) == decided(whole)
    assert [(r.node, r.rule, r.round, r.ending) for r in second.rows_then] == [
        (r.node, r.rule, r.round, r.ending) for r in whole.rows_then
    ]


class Steady(Script):
    """The same answer to the same question, whenever it is asked."""

    def complete(self, request):
        key = request.label.split("/")
        number = int(key[1][:6], 16) % 10_000
        self.given = number * 100 + int(key[2]) * 3 if key[0] == "propose" else number
        return super().complete(request)


class Tape(Script):
    """A recording that has the third question at each program alone."""

    def complete(self, request):
        if request.label.split("/")[2] != "2":
            raise ChatError("the recording does not contain this exchange", fault=Fault.NOT_RECORDED)
        return super().complete(request)


def test_what_a_recording_lacks_is_no_failure_of_the_model(tmp_path):
    """Twenty questions without an answer ended the asking, and one kept the later ones at its program from being asked."""
    search, feed = search_with(
        tmp_path, Tape(), Budget(candidates=40), factors=("1.5", "1.1", "0.9"), answering=Answering(lambda label: True)
    )
    assert feed.report.faults[Fault.NOT_RECORDED] > 20
    assert feed.stopped == ""
    assert search.progress.evaluated == 40
    assert "llm" in {e.proposer for e in search.entries_then}


def test_a_journal_without_questions_is_read(tmp_path):
    search_with(tmp_path, Script(), Budget(candidates=5))
    with sqlite3.connect(tmp_path / "j.sqlite") as db:
        db.execute("DROP TABLE questions")
    db.close()
    again, _ = search_with(tmp_path, Script(), Budget(candidates=9), resume=True)
    assert again.progress.evaluated == 9

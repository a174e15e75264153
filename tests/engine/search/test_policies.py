"""How the next action is chosen by each policy, on trees of their own."""

from concurrent.futures import Future
from dataclasses import replace
from typing import get_args

import pytest

from engine.model import Evaluation, Failure, Outcome
from engine.search.policies import BEAM_TRIES, BEAM_WIDTH, Strategy
from engine.search.question import MODEL, Answer, Question, question
from engine.search.tree import Node, NotYet, Tree

from .fakes import Factors, edit, program
from .test_tree import grow, speeds

_WRONG = Evaluation(Outcome.WRONG_RESULT, failure=Failure("no"))


@pytest.mark.parametrize("strategy", sorted({*get_args(Strategy)} - {"best-of"}))  # which looks at the original alone
def test_choosing_costs_as_much_after_2000_candidates_as_after_200(strategy, monkeypatch):
    """Greedy and random search looked at every program for each choice."""

    def propose(of):
        made = of.data.decode().count("#")
        return [edit(of, f"// speed {1.3 if i == 3 else 0.9 + i / 100} #{made} {i}", i / 8) for i in range(8)]

    tree, looks = Tree(program(), propose, 0, strategy), dict.fromkeys((200, 2_000), 0)
    plain = Node.__getattribute__
    for number in range(1, 2_030):
        after = max((start for start in looks if start <= number), default=0)

        def looked(node, name, after=after):
            looks[after] += 1
            return plain(node, name)

        with monkeypatch.context() as watched:
            if after and number < after + 30:
                watched.setattr(Node, "__getattribute__", looked)
            node, proposal = tree.select()
        tree.settle(node)
        line = proposal.parameters["line"]
        text = f"{node.program.data.decode()}{line}\n"
        tree.add(number, node, proposal, program(text), speeds(line) if node.depth < 8 else _WRONG)
    assert 0 < looks[2_000] <= 2 * looks[200]


def test_an_eager_greedy_search_goes_on_elsewhere_while_the_best_is_looked_at():
    """Every device stood idle for as long as the proposals of each new best took: a third of a search on four."""
    coming: dict[str, Future[None]] = {}
    tree = Tree(program(), Factors(("1.5", "1.2")), 0, "greedy", coming=lambda of: coming.get(of.digest))
    root, first = tree.select()
    child = tree.add(1, root, first, program("// new\n"), speeds("// speed 1.5"))
    coming[child.program.digest] = Future()
    with pytest.raises(NotYet):
        tree.select()
    assert tree.select(eager=True)[0] is root
    coming[child.program.digest] = None  # they are there
    assert tree.select(eager=True)[0] is child


def test_an_eager_greedy_search_has_only_the_best_read_that_it_passes():
    """It asked for the proposals of every program on the way to one whose proposals were there."""
    asked = []

    def coming(of):
        asked.append(of.data)
        return Future()

    tree = Tree(program(), Factors(("0.9",) * 6), 0, "greedy", coming=lambda of: None)
    edits = tree.proposals(tree.root)
    for number in range(1, 6):
        tree.add(number, tree.root, edits.pop(), program(f"// new {number}\n"), speeds(f"// speed 1.{number}"))
    tree._coming = coming
    assert tree.select(eager=True)[0] is tree.root
    assert set(asked) == {b"// new 5\n", b"// new 4\n"}


def test_an_eager_greedy_search_waits_where_nothing_else_is_left():
    waits = Future()
    tree = Tree(program(), Factors(("1.5",)), 0, "greedy", coming=lambda of: waits)
    for _ in range(2):
        with pytest.raises(NotYet) as raised:
            tree.select(eager=True)
        assert raised.value.coming is waits
    assert tree.root.pending == 0


def test_a_program_with_many_failures_costs_no_more_than_one_with_few(monkeypatch):
    """Whether something is left below it was asked of every child."""
    tree, looks = Tree(program(), lambda of: [], 0, "refine"), dict.fromkeys((50, 1_000), 0)
    tree.pose(tree.root, question())
    plain = Node.__getattribute__
    number = rounds = 0
    while number < 1_010:
        at = max((start for start in looks if start <= number < start + 10), default=0)

        def looked(node, name, at=at):
            looks[at] += 1
            return plain(node, name)

        with monkeypatch.context() as watched:
            if at:
                watched.setattr(Node, "__getattribute__", looked)
            node, chosen = tree.select(asking=True)
        if isinstance(chosen, Question):
            rounds += 1
            lines = [f"// wrong {rounds} {i}" for i in range(3)]
            answers = [replace(edit(node.program, line, rule=line), proposer=MODEL) for line in lines]
            tree.answered(Answer(node, chosen, proposals=answers))
            tree.pose(node, question(round=rounds))
        else:
            number += 1
            tree.settle(node)
            tree.add(number, node, chosen, program(f"{number}"), _WRONG)
    assert len(tree.root.children) > 1_000
    assert 0 < looks[1_000] <= 2 * looks[50]


def test_best_of_makes_edits_of_the_original_alone():
    tree = Tree(program(), Factors(("1.5", "2.0", "1.1"), {"2.0": 0.9}), 0, "best-of")
    tried = grow(tree, speeds, 10)
    assert [node for node, _ in tried] == [0, 0, 0]
    assert tried[0][1] == "// speed 2.0 #1"


def test_refining_goes_on_from_the_newest_that_passed_and_waits_for_it():
    tree = Tree(program(), Factors(("0.9", "1.5", "wrong")), 0, "refine")
    chosen = tree.select()
    assert tree.select() is None  # it is awaited
    tree.settle(chosen[0])
    tree.root.untried.append(chosen[1])
    tree.policy.changed(tree.root)
    tried = grow(tree, lambda text: _WRONG if "wrong" in text else speeds(text), 20)
    for (node, _), number in zip(tried[1:], range(1, 20), strict=False):
        passed = [n.id for n in tree.walk() if n.id <= number and n.evaluation is not _WRONG]
        with_something_left = [id for id in passed if id in {node, *(n for n, _ in tried[number:])}]
        assert node == max(with_something_left)
    assert len(tried) > 5


def test_a_beam_goes_on_from_the_best_at_each_number_of_edits():
    factors = tuple(f"1.{i:02}" for i in range(1, 13))
    tree = Tree(program(), Factors(factors), 0, "beam")
    grow(tree, speeds, BEAM_TRIES * (1 + 2 * BEAM_WIDTH))
    levels = [[n for n in tree.walk() if n.depth == depth] for depth in range(4)]
    assert [len(level) for level in levels] == [1, BEAM_TRIES, BEAM_TRIES * BEAM_WIDTH, BEAM_TRIES * BEAM_WIDTH]
    for level, above in zip(levels[2:], levels[1:], strict=False):
        best = sorted(above, key=lambda n: (-n.gained, n.id))[:BEAM_WIDTH]
        assert {n.parent.id for n in level} == {n.id for n in best}


def test_a_beam_waits_for_a_level_and_begins_again_where_it_ends():
    tree = Tree(
        program(),
        lambda of: Factors(tuple(f"1.{i:02}" for i in range(1, 13)))(of) if b"#" not in of.data else [],
        0,
        "beam",
    )
    chosen = [tree.select() for _ in range(BEAM_TRIES)]
    assert tree.select() is None
    for number, (node, proposal) in enumerate(chosen, 1):
        tree.settle(node)
        text = f"kernel\n{proposal.parameters['line']}\n"
        tree.add(number, node, proposal, program(text), speeds(text))
    assert len(chosen) + len([1 for _ in range(9) if tree.select()]) == 12


def test_epsilon_greedy_leaves_the_best_program_now_and_then():
    factors = Factors(tuple(f"1.{i}" for i in range(10)), {"1.9": 0.9})
    trees = {name: Tree(program(), factors, 0, name) for name in ("greedy", "epsilon-greedy")}
    elsewhere = {}
    for name, tree in trees.items():
        best, away = 0, 0
        for number in range(1, 201):
            best = max(
                tree.nodes, key=lambda at, tree=tree: tree.nodes[at].gained if tree.left(tree.nodes[at]) else -1.0
            )
            node, proposal = tree.select()
            away += tree.nodes[best].gained > node.gained
            tree.settle(node)
            line = proposal.parameters["line"]
            tree.add(number, node, proposal, program(f"{node.program.data.decode()}{line}\n"), speeds(line))
        elsewhere[name] = away
    assert elsewhere["greedy"] == 0
    assert 5 <= elsewhere["epsilon-greedy"] <= 40

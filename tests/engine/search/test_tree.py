"""What the tree search is made of, each part on a tree of its own."""

import random
from concurrent.futures import Future
from dataclasses import replace

import pytest

from benchmarks import landscapes
from engine.cuda.edit import edit_program
from engine.model import Evaluation, Failure, Measurement, Outcome
from engine.rewrite.proposal import Proposal
from engine.search.policies import Greedy
from engine.search.puct import WIDENING, WIDTH, Line, Puct, value
from engine.search.reward import Proxies, Reward, failed
from engine.search.tree import NotYet, Tree

from .fakes import Factors, edit, program


def evaluated(ratio):
    outcome = Outcome.ACCEPTED if ratio > 1 else Outcome.SLOWER
    return Evaluation(outcome, Measurement((), ratio, ratio / 1.05, ratio * 1.05))


def grow(tree, evaluate, visits):
    """Selections and bookings, one at a time; the edits tried, in order."""
    tried = []
    for number in range(1, visits + 1):
        chosen = tree.select()
        if chosen is None:
            break
        node, proposal = chosen
        tree.settle(node)
        text = node.program.data + proposal.parameters["line"].encode() + b"\n"
        tree.add(number, node, proposal, program(text.decode()), evaluate(text.decode()))
        tried.append((node.id, proposal.parameters["line"]))
    return tried


def speeds(text):
    from .fakes import speed

    return evaluated(speed(text))


def test_best_and_mean_go_up_the_path():
    tree = Tree(program(), Factors(()), 0)
    root = tree.root
    a = tree.add(1, root, edit(program(), "a"), program("a"), evaluated(4.0))
    b = tree.add(2, a, edit(program("a"), "b"), program("ab"), evaluated(2.0))
    tree.add(3, b, edit(program("ab"), "c"), program("abc"), Evaluation(Outcome.WRONG_RESULT, failure=Failure("no")))
    wrong = tree.reward.constants.wrong_result
    assert (a.visits, a.best, a.total) == (3, 2.0, pytest.approx(3.0 + wrong))
    assert (b.visits, b.best) == (2, 1.0)
    assert (root.visits, root.best, root.total) == (4, 2.0, pytest.approx(3.0 + wrong))


def test_nodes_widen_with_their_visits():
    tree = Tree(program(), Factors(tuple(f"1.{i:02}" for i in range(1, 60))), 0)
    for visits in range(1, 80):
        grow_one = grow(tree, lambda text: evaluated(1.1), 1)
        assert grow_one
        for node in tree.walk():
            if node.untried:  # otherwise there was nothing left below, or to try
                assert len(node.children) <= WIDTH * node.visits**WIDENING + 1, visits


def test_priors_decide_what_is_tried_first():
    tree = Tree(program(), Factors(("1.1", "1.2", "1.3"), {"1.1": 0.2, "1.2": 0.9, "1.3": 0.5}), 0)
    lines = [line for node, line in grow(tree, lambda text: evaluated(0.9), 3) if node == 0]
    assert lines[:2] == ["// speed 1.2 #1", "// speed 1.3 #2"]


def test_nothing_is_built_on_a_dead_end():
    tree = Tree(program(), Factors(("1.1", "1.2", "1.3")), 0)
    bad = Evaluation(Outcome.COMPILE_ERROR, failure=Failure("no"))
    tried = grow(tree, lambda text: bad, 50)
    assert [node for node, _ in tried] == [0, 0, 0]
    assert tree.select() is None


def test_a_branch_that_is_used_up_is_left():
    def propose(of):
        text = of.data.decode()
        return [edit(of, f"// speed 3.0 #{i}") for i in range(2)] if "#" not in text else []

    tree = Tree(program(), propose, 0)
    assert len(grow(tree, speeds, 50)) == 2


def test_selections_in_flight_spread():
    tree = Tree(program(), Factors(tuple(f"1.{i}" for i in range(1, 9))), 0)
    grow(tree, speeds, 6)
    picked = [tree.select() for _ in range(6)]
    assert len({(n.id, p.parameters["line"]) for n, p in picked}) == 6
    assert len({n.id for n, _ in picked}) > 1
    for node, _ in picked:
        tree.settle(node)
    assert all(n.pending == 0 for n in tree.walk())


@pytest.mark.parametrize("strategy", ["mcts", "greedy", "beam", "random"])
def test_a_seed_repeats_every_decision(strategy):
    def tried(seed):
        return grow(Tree(program(), Factors(("1.5", "0.7", "2.0", "0.9")), seed, strategy), speeds, 30)

    assert tried(3) == tried(3)
    assert tried(3) != tried(4)


def test_counters_that_come_late_change_the_path_by_the_difference():
    tree = Tree(program(), Factors(()), 0)
    a = tree.add(1, tree.root, edit(program(), "a"), program("a"), evaluated(1.0))
    b = tree.add(2, a, edit(program("a"), "b"), program("ab"), evaluated(2.0))
    c = tree.add(3, a, edit(program("a"), "c"), program("ac"), evaluated(2.0))
    before = a.total
    tree.observe(b, Proxies(5e8, 1e6))
    assert a.total == before  # nothing to hold it against yet
    tree.observe(tree.root, Proxies(1e9, 1e6))
    gain = tree.reward.constants.proxy_cap * tree.reward.constants.bytes_weight
    assert b.gained == pytest.approx(1.0 + gain)
    assert (a.best, tree.root.best) == (b.gained, b.gained)
    assert a.total == pytest.approx(before + gain)
    assert tree.root.total == pytest.approx(a.total)
    tree.observe(c, Proxies(4e9, 1e6))
    assert c.gained < 1.0 < b.gained
    tree.observe(b, Proxies(1e9, 1e6))  # a second look takes it back
    assert b.gained == pytest.approx(1.0)
    assert tree.root.best == pytest.approx(1.0)


def test_a_late_loss_takes_the_best_down_with_it():
    tree = Tree(program(), Factors(()), 0)
    tree.observe(tree.root, Proxies(1e9, 1e6))
    a = tree.add(1, tree.root, edit(program(), "a"), program("a"), evaluated(2.0))
    tree.add(2, a, edit(program("a"), "b"), program("ab"), evaluated(1.9))
    tree.observe(a, Proxies(8e9, 1e8))
    assert a.best == tree.root.best == a.gained < 1.0


def test_without_proxies_counters_change_nothing():
    tree = Tree(program(), Factors(()), 0)
    tree.reward = Reward(proxies=False)
    tree.observe(tree.root, Proxies(1e9, 1e6))
    a = tree.add(1, tree.root, edit(program(), "a"), program("a"), evaluated(2.0))
    tree.observe(a, Proxies(1e6, 1e3))
    assert a.gained == 1.0


def test_what_the_best_rewrite_closes_off_is_tried_before_it_and_the_rewrite_made_again():
    def propose(of):
        lines = of.data.decode().splitlines()
        rules = {
            "rewrite": ("// speed 8 #r",),
            "before": ("// speed 1.01 #b",),
            "after": tuple(f"// speed 0.99 #{i}" for i in range(40)),
        }
        return [
            edit(of, line, 0.9 if rule == "rewrite" else 0.3, rule)
            for rule, every in rules.items()
            for line in every
            if line not in lines and not (rule == "before" and "// speed 8 #r" in lines)
        ]

    tree = Tree(program(), propose, 0)
    grow(tree, speeds, 40)
    best = max(tree.walk(), key=lambda node: node.gained)
    assert [node.proposal.rule for node in best.path()[1:3]] == ["before", "rewrite"]
    greedy = Tree(program(), propose, 0, "greedy")
    grow(greedy, speeds, 40)
    assert max(n.gained for n in greedy.walk()) < best.gained


def test_one_failure_below_a_rewrite_does_not_hide_a_refinement():
    tree = Tree(program(), Factors(()), 0)
    wrong = Evaluation(Outcome.WRONG_RESULT, failure=Failure("no"))
    a = tree.add(1, tree.root, edit(program(), "a"), program("a"), evaluated(32.0))
    b = tree.add(2, tree.root, edit(program(), "b"), program("b"), evaluated(32.0 * 1.02))
    tree.add(3, b, edit(program("b"), "c"), program("bc"), wrong)
    assert value(b) > value(a)


def test_a_duplicate_gives_its_parent_no_better_best():
    tree = Tree(program(), Factors(()), 0)
    a = tree.add(1, tree.root, edit(program(), "a"), program("a"), evaluated(1.5))
    b = tree.add(2, tree.root, edit(program(), "b"), program("b"), evaluated(2.0))
    twin = Evaluation(Outcome.DUPLICATE, b.evaluation.measurement)
    tree.add(3, a, edit(program("a"), "b"), program("ab"), twin)
    assert (a.best, a.visits) == (a.gained, 2)
    assert tree.root.best == b.gained


def is_open(node):
    """Whether something can still be tried at or below a node, by the definition."""
    if node.evaluation is None or failed(node.evaluation.outcome) or node.evaluation.outcome is Outcome.DUPLICATE:
        return False
    return node.untried is None or bool(node.untried) or any(is_open(child) for child in node.children)


def way(node):
    """From a node to the best program below it, by the definition."""
    best = max(node.children, key=lambda child: child.best, default=None)
    return (node, *way(best)) if best is not None and best.best > node.gained else (node,)


class WalkingPuct(Puct):
    """Keeps nothing of what is below a node: walks through it each time."""

    def line(self, node):
        line = Line(way(node))
        self._tree.proposals(line.way[-1])
        return line


class WalkingGreedy(Greedy):
    """Looks at every program each time."""

    def choose(self, start):
        tree = self._tree
        nodes = [n for n in tree.nodes.values() if n is tree.root or is_open(n) or n.untried == []]
        node = next((n for n in sorted(nodes, key=lambda n: -n.gained) if tree.proposals(n)), None)
        return node and (node, tree.proposals(node)[tree.mixture.pick(tree.proposals(node))])


class Walking(Tree):
    def __init__(self, *args):
        super().__init__(*args)
        self.policy = {Puct: WalkingPuct, Greedy: WalkingGreedy}[type(self.policy)](self)


@pytest.mark.parametrize("kind", landscapes.KINDS)
@pytest.mark.parametrize("strategy", ["mcts", "greedy"])
def test_what_is_kept_of_the_tree_changes_no_decision(kind, strategy, monkeypatch):
    def decisions(how):
        taken = []

        class Told(how):
            def select(self):
                chosen = super().select()
                taken.append(chosen and (chosen[0].id, chosen[1].identity))
                return chosen

        monkeypatch.setattr(landscapes, "Tree", Told)
        landscapes.search(landscapes.landscape(kind, 1), strategy, 1, 150)
        return taken

    taken = decisions(Tree)
    assert len(taken) >= 150
    assert taken == decisions(Walking)


@pytest.mark.parametrize("seed", range(3))
def test_what_is_kept_of_the_tree_follows_proposals_and_counters_that_come_late(seed):
    chance = random.Random(seed)
    tree = Tree(program(), Factors(("1.5", "0.7", "2.0", "0.9")), seed)
    tree.root.evaluation = evaluated(1.0)
    tree.observe(tree.root, Proxies(1e9, 1e6))
    waiting = []
    for number in range(1, 200):
        chosen = tree.select()
        waiting += [chosen] if chosen else []
        if waiting and (chosen is None or chance.random() < 0.7):
            node, proposal = waiting.pop(chance.randrange(len(waiting)))
            tree.settle(node)
            text = node.program.data + f"{number}".encode()
            ending = chance.choice((Outcome.DUPLICATE, Outcome.WRONG_RESULT, Outcome.SLOWER, Outcome.ACCEPTED))
            ratio = chance.uniform(0.2, 4.0)
            tree.add(
                number,
                node,
                proposal,
                program(text.decode()),
                Evaluation(ending, Measurement((), ratio, ratio * 0.5, ratio * 2)),
            )
        other = chance.choice(list(tree.walk()))
        match chance.randrange(8):
            case 0:
                tree.offer(other, [edit(other.program, f"late {number}")])
            case 1 if other is not tree.root:
                tree.observe(other, Proxies(chance.uniform(1e7, 1e11), 1e6))
        for node in tree.walk():
            assert node.open == is_open(node)
            assert node.line is None or node.line.way == way(node)
    assert len(tree.nodes) > 60


def test_another_size_of_what_gained_is_tried_before_what_brings_nothing():
    """Sizes of one rule at two places: the one beside what gained comes before the other place's, and before refinements in vain."""

    def sized(place, size):
        return Proposal("rules", "jam", f"{size} at {place}", {}, {"place": place, "size": size}, 0.3)

    first, second, elsewhere = sized("a", 4), sized("a", 8), sized("b", 8)
    root = program()
    offered = {root.digest: [first, second, elsewhere]}
    idle = [Proposal("rules", f"idle {i}", "x", {}, {}, 0.3) for i in range(9)]
    tree = Tree(root, lambda of: list(offered.get(of.digest, idle)), 0)
    tree.add(1, tree.root, first, program("4\n"), evaluated(2.0))
    tree.root.untried = None  # what was tried is not offered again
    chosen = []
    for number in range(2, 5):
        node, proposal = tree.select()
        tree.settle(node)
        chosen.append(proposal.summary)
        tree.add(number, node, proposal, program(f"{number}\n"), evaluated(2.0 if proposal.rule == "idle 0" else 1.9))
    assert "8 at a" in chosen
    assert "8 at b" not in chosen


def test_waiting_for_proposals_changes_nothing_that_is_chosen():
    factors = ("1.5", "0.7", "2.0", "0.9", "1.1")
    asked = set()

    def coming(of):
        """Each program's proposals have to be waited for, once."""
        if of.digest in asked:
            return None
        asked.add(of.digest)
        return Future()

    def select(tree):
        while True:
            before = {n.id: (n.visits, n.pending, n.total) for n in tree.walk()}
            try:
                return tree.select()
            except NotYet:
                assert before == {n.id: (n.visits, n.pending, n.total) for n in tree.walk()}

    orders = []
    for waits in (False, True):
        tree = Tree(program(), Factors(factors), 0, coming=coming if waits else lambda of: None)
        order = []
        for number in range(1, 120):
            node, proposal = select(tree)
            tree.settle(node)
            text = node.program.data.decode() + proposal.parameters["line"] + "\n"
            tree.add(number, node, proposal, program(text), speeds(text))
            order.append((node.id, proposal.summary))
        orders.append(order)
    assert len(asked) > 20
    assert orders[0] == orders[1]


@pytest.mark.parametrize("strategy", ["epsilon-greedy", "random"])
def test_what_draws_at_random_does_not_ask_twice(strategy):
    tree = Tree(program(), Factors(("1.5", "2.0")), 0, strategy, coming=lambda of: pytest.fail("asked"))
    assert tree.select() is not None


def test_a_text_that_is_known_is_passed_over_where_it_would_have_been_chosen():
    """Each choice goes down the whole tree; two thirds of them gave programs that were there."""

    class Twice(Factors):
        """Every edit under two names, and with `told` the program that it gives."""

        told = False

        def __call__(self, of):
            found = super().__call__(of)
            found += [replace(one, rule="other", summary=f"Also {one.summary}") for one in found]
            return [replace(one, makes=edit_program(of, one.edits).digest if self.told else None) for one in found]

    orders, asked = [], []
    for told in (False, True):
        source = Twice(("1.5", "0.7", "2.0", "0.9", "1.1"))
        source.told = told
        tree, order, asks = Tree(program(), source, 0), [], 0
        while len(tree.nodes) < 100 and (chosen := tree.select()) is not None:
            asks += 1
            node, proposal = chosen
            tree.settle(node)
            made = edit_program(node.program, proposal.edits)
            if made.digest not in tree.digests:
                order.append((node.id, proposal.summary))
                tree.add(len(tree.nodes), node, proposal, made, speeds(made.data.decode()))
        orders.append(order)
        asked.append(asks)
        assert all(node.pending == 0 for node in tree.walk())
    assert orders[0] == orders[1]
    assert asked[1] == len(orders[1]) < asked[0]


def test_a_late_edit_changes_what_the_way_to_the_best_offers():
    tree = Tree(program(), Factors(("1.5", "1.2")), 0)
    grow(tree, speeds, 3)
    best = tree.policy.line(tree.root).way[-1]
    assert best is not tree.root
    assert ("rules", "late") not in tree.policy.line(tree.root).kept
    tree.offer(best, [edit(best.program, "// speed 3 #9", rule="late")])
    assert ("rules", "late") in tree.policy.line(tree.root).kept

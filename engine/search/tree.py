"""The search tree over programs: what was tried from each, what is left to try, rewards that go up its paths."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from engine.model import Evaluation, Outcome, Program
from engine.rewrite.proposal import Proposal
from engine.search.experience import FAILED_GAIN, Experience
from engine.search.mixture import Mixture
from engine.search.policies import Strategy, policy
from engine.search.puct import Line, rule_of
from engine.search.question import FAILED, Answer, Question
from engine.search.reward import Proxies, Reward, failed

TUNER = "tuner"  # the proposer whose proposals stand for a template: tried once, whatever point became of it


@dataclass(eq=False)
class Node:
    """One program in the tree. `pending` counts selections below it whose evaluations are still awaited."""

    id: int
    program: Program
    parent: Node | None
    proposal: Proposal | None
    evaluation: Evaluation | None = None
    children: list[Node] = field(default_factory=list)
    untried: list[Proposal] | None = None  # by rising prior; None: not asked for yet
    offers: frozenset[tuple[str, str]] = frozenset()  # every rule that proposed something here, with its proposer
    visits: int = 0
    pending: int = 0
    questions: list[Question] = field(default_factory=list)  # that may be asked here, by rising prior
    asks: bool = False  # a question may be asked at or below it
    open_children: int = 0
    asking_children: int = 0
    weighed: bool = False  # the untried proposals' priors are by this program's diagnosis
    open: bool = True  # something can still be tried at or below it
    # children, by what edits with another number share with theirs
    sizes: dict[Hashable, list[Node]] = field(default_factory=dict)
    line: Line | None = None  # the way to the best program below it, as long as that is known
    near: dict[Hashable, float] | None = (
        None  # by the keys of `sizes`, what its children with another number gained, likewise
    )
    total: float = 0.0
    best: float = -math.inf
    gained: float = 0.0  # its own reward
    proxies: Proxies | None = None  # what counters say of it

    @property
    def depth(self) -> int:
        return 0 if self.parent is None else self.parent.depth + 1

    @property
    def by_rules(self) -> bool:
        """Whether installed rules and the tuner alone wrote what leads here."""
        return all(node.proposal is None or node.proposal.by_rules for node in self.path())

    def path(self) -> list[Node]:
        """From the original to this node."""
        return [*(self.parent.path() if self.parent else []), self]


class NotYet(Exception):
    """What to try next depends on proposals that are still being looked for; ask again when `coming` is done."""

    def __init__(self, coming: Future[Any]) -> None:
        super().__init__("proposals are still being looked for")
        self.coming = coming


class Tree:
    """Programs reached from the original.

    `propose` gives a node's proposals, asked for once and only when needed. `coming` says what they wait for where that is done
    elsewhere and has not ended, None where `propose` has them or makes them itself. `weigh` gives them priors by the diagnosis of the
    program with this digest, most promising first, or None as long as there is none.
    """

    def __init__(
        self, original: Program, propose: Callable[[Program], list[Proposal]], seed: int, strategy: Strategy = "mcts",
        weigh: Callable[[str, list[Proposal]], list[Proposal] | None] = lambda digest, proposals: None,
        coming: Callable[[Program], Future[Any] | None] = lambda program: None,
    ) -> None:  # fmt: skip
        self._propose, self._weigh, self._coming, self._patient = propose, weigh, coming, True
        self.reward = Reward()
        self.mixture = Mixture()
        self.experience = Experience()
        self.opinion: Callable[[Node], float] = lambda node: 0.0  # a judge's, as a part of the reward
        self.credited: Callable[[Node, str, bool], None] = lambda node, proposer, tried: None  # another had it as well
        self._seeds: list[Proposal] = []  # edits of the original that come before all others, the most promising last
        self._credit: dict[tuple[int, str, str], Question] = {}  # who asked for an edit: by program, rule and summary
        self._found: dict[
            int, tuple[float, set[str]]
        ] = {}  # what became the best so far: what it brought, and who had it
        self.asking = False  # questions count among the actions now
        self.eager = False  # rather another program's edit than none
        self.awaited = 0  # questions that were asked and have no answer yet
        self._seed = seed
        self.root = Node(0, original, None, None, visits=1, total=0.0, best=0.0)
        self.nodes: dict[int, Node] = {0: self.root}
        self.digests: dict[str, Node] = {original.digest: self.root}
        # Whether the program with this digest need not be tried.
        self.known: Callable[[str], bool] = self.digests.__contains__
        self.policy = policy(strategy, self, seed)
        self.policy.changed(self.root)

    def select(self, *, asking: bool = False, eager: bool = False) -> tuple[Node, Proposal] | None:
        """The next action, and the node it starts from; None when nothing is left to try. Marks the path pending.

        With `asking` it may be a Question; `answered` ends its visit. Raises NotYet, with nothing marked, where the policy cannot tell
        before it knows a program's proposals; with `eager` a policy may go on with other programs meanwhile.
        """
        seed = self._seed_left()
        if seed is not None:
            self.root.pending += 1
            return self.root, seed
        self._patient, self.asking, self.eager = self.policy.patient, asking, eager
        start = self.root
        try:
            while True:
                chosen = self.policy.choose(start)
                if chosen is None:
                    return None
                node, proposal = chosen
                actions: list[Any] = node.questions if isinstance(proposal, Question) else self.proposals(node)
                actions.pop(next(i for i, p in enumerate(actions) if p is proposal))
                self._reopened(node)
                if proposal.makes is None or not self.known(proposal.makes):
                    break
                self.found_again(proposal.proposer, self.digests.get(proposal.makes))
                # The same text by another way. Above this node nothing has changed.
                start = node if node.open or (asking and node.asks) else self.root
        finally:
            self._patient = True
        for step in node.path():
            step.pending += 1
        if isinstance(proposal, Question):
            self._await(proposal)
        return node, proposal

    def await_answer(self, node: Node, question: Question) -> None:
        """Count a question as asked that was asked in an earlier part of this run."""
        for step in node.path():
            step.pending += 1
        self._await(question)

    def _await(self, question: Question) -> None:
        self.awaited += 1
        self.mixture.awaited[question.proposer] += 1

    def _seed_left(self) -> Proposal | None:
        """The next edit of the original that comes before all others."""
        while self._seeds:
            seed, there = self._seeds.pop(), self.root.untried or []
            at = next((i for i, p in enumerate(there) if p.edits is seed.edits), None)
            if at is not None:
                proposal = there.pop(at)
                self._reopened(self.root)
                return proposal
        return None

    def actions(self, node: Node) -> list[Proposal]:
        """What may be done at a node now, by rising prior: untried edits, and questions where these may be asked."""
        untried = self.proposals(node)
        if not self.asking or not node.questions:
            return untried
        return sorted([*untried, *node.questions], key=lambda p: p.prior)

    def proposals(self, node: Node) -> list[Proposal]:
        """What is untried at a node, with priors by its diagnosis once there is one."""
        untried = self.asked(node)
        if untried and not node.weighed:
            weighed = self._weigh(node.program.digest, untried[::-1])
            if weighed is not None:
                node.untried, node.weighed = weighed[::-1], True
                return node.untried
        return untried

    def asked(self, node: Node) -> list[Proposal]:
        """What is untried at a node."""
        if node.untried is None:
            if node.evaluation is not None and _closed(node.evaluation.outcome):
                node.untried = []
            else:
                coming = None if self._patient else self._coming(node.program)
                if coming is not None:
                    raise NotYet(coming)
                proposals = self._propose(node.program)
                # Equal priors are tried in an order of the seed's, the same whenever this node is asked: a resumed run asks later.
                random.Random(f"{self._seed} {node.program.digest}").shuffle(proposals)
                node.untried = sorted(_untried(proposals, node.children), key=lambda p: p.prior)
                node.offers = frozenset(rule_of(p) for p in proposals)
            self._reopened(node)
        return node.untried

    def awaits(self, node: Node) -> bool:
        """Whether a node's proposals are still being looked for elsewhere."""
        done = node.untried is not None or (node.evaluation is not None and _closed(node.evaluation.outcome))
        return not done and self._coming(node.program) is not None

    def first(self, seeds: Sequence[Proposal]) -> None:
        """Offer edits of the original that are tried before all others."""
        self.offer(self.root, seeds)
        self._seeds = sorted(seeds, key=lambda p: p.prior)

    def offer(self, node: Node, proposals: Iterable[Proposal]) -> None:
        """Add proposals for a node that came later than those of `propose`; none for what is not built upon."""
        if node.evaluation is None or not _closed(node.evaluation.outcome):
            late, there = [], self.proposals(node)
            for proposal in proposals:
                at = next((i for i, p in enumerate(there) if p.edits is proposal.edits), None)
                if at is None:
                    late.append(proposal)
                else:
                    there[at] = proposal  # with another prior
            node.untried = sorted([*there, *late], key=lambda p: p.prior)
            node.offers |= {rule_of(p) for p in late}
            for step in node.path():
                step.line = None  # what is offered at its end
            self._reopened(node)

    def pose(self, node: Node, question: Question) -> None:
        """Add a question that may be asked at a node."""
        if node.evaluation is None or not _closed(node.evaluation.outcome):
            node.questions = sorted([*node.questions, question], key=lambda q: q.prior)
            self._reopened(node)

    def withdraw(self, node: Node, question: Question) -> None:
        """Take back a question that was posed at a node; nothing where it was not."""
        key = question.rule, question.round, question.about
        node.questions = [q for q in node.questions if (q.rule, q.round, q.about) != key]
        self._reopened(node)

    def credit(self, node: Node, question: Question, answers: Iterable[Proposal]) -> None:
        """Count what these edits bring as brought by the question."""
        self._credit.update({(node.id, p.rule, p.summary): question for p in answers})

    def answered(self, answer: Answer) -> None:
        """A question that was selected has its answer: its visit ends, and its edits are actions of the node."""
        self.settle(answer.node)
        self.awaited -= 1
        self.mixture.awaited[answer.question.proposer] -= 1
        self.credit(answer.node, answer.question, answer.proposals)
        if answer.ending == FAILED:
            self.learn_failed(answer.question)
        self.offer(answer.node, [*answer.proposals, *answer.judged])

    def learn_failed(self, question: Question) -> None:
        """A question brought no edit."""
        self.experience.learn(question, FAILED_GAIN)

    def left(self, node: Node) -> bool:
        """Whether something may be left to try at a node itself."""
        return bool(node.untried) or (node.untried is None and node.open)

    def _reopened(self, node: Node) -> None:
        """What is left at a node, or whether a child is open, may have changed: keep `open` and `asks`, here and above."""
        self.policy.changed(node)
        step: Node | None = node
        while step is not None:
            closed = step.evaluation is not None and _closed(step.evaluation.outcome)
            left = not closed and (step.untried is None or bool(step.untried) or step.open_children > 0)
            asks = not closed and (bool(step.questions) or step.asking_children > 0)
            if (left, asks) == (step.open, step.asks):
                return
            if step.parent is not None:
                step.parent.open_children += left - step.open
                step.parent.asking_children += asks - step.asks
            step.open, step.asks, step = left, asks, step.parent

    def add(self, id: int, parent: Node, proposal: Proposal, program: Program, evaluation: Evaluation) -> Node:
        """Book an evaluated child and carry its reward up the path."""
        node = Node(id, program, parent, proposal, evaluation, open=not _closed(evaluation.outcome))
        parent.children.append(node)
        parent.open_children += node.open
        self._reopened(parent)
        self.nodes[id] = node
        self.digests.setdefault(program.digest, node)
        found = self.mixture.booked(node)
        if found > 0:
            self._found[id] = found, {proposal.proposer}
        node.gained = self.reward(evaluation, opinion=self.opinion(node))
        if not _closed(evaluation.outcome):
            for key in proposal.alike:
                parent.sizes.setdefault(key, []).append(node)
        for step in node.path():
            step.visits += 1
            step.line = step.near = None
            step.total += node.gained
            # Its twin stands for it: below this one there is nothing to find
            if evaluation.outcome is not Outcome.DUPLICATE:
                step.best = max(step.best, node.gained)
        self.policy.changed(node)
        gain = FAILED_GAIN if failed(evaluation.outcome) else node.gained - parent.gained
        self.experience.learn(proposal, gain)
        if question := self._credit.get((parent.id, proposal.rule, proposal.summary)):
            self.experience.learn(question, gain)
        return node

    def found_again(self, proposer: str, twin: Node | None, *, tried: bool = False) -> None:
        """An edit of a proposer gives what another candidate, the twin, is already: credit the proposer as well."""
        gain, who = self._found.get(twin.id, (0.0, set())) if twin is not None else (0.0, set())
        if twin is not None and gain > 0 and proposer not in who:
            who.add(proposer)
            self.mixture.credit(proposer, gain, tried=tried)
            self.credited(twin, proposer, tried)

    def observe(self, node: Node, proxies: Proxies) -> None:
        """Counters of a node that came after it was booked: its reward changes, and the difference goes up its path.

        Counters of the original are what all others are held against, so they change the rewards of every node that has any.
        """
        node.proxies = proxies
        if node is self.root:
            self.reward.original = proxies
            for other in self.nodes.values():
                self._revalue(other)
        else:
            self._revalue(node)

    def _revalue(self, node: Node) -> None:
        if node is self.root or node.evaluation is None or node.proxies is None:
            return
        gained = self.reward(node.evaluation, node.proxies, opinion=self.opinion(node))
        difference = gained - node.gained
        if not difference:
            return
        node.gained = gained
        self.policy.changed(node)
        for step in reversed(node.path()):
            step.line = step.near = None
            step.total += difference
            step.best = max([step.gained, *(child.best for child in step.children)])

    def settle(self, parent: Node) -> None:
        """An awaited visit below `parent` has ended (booked or dropped)."""
        for step in parent.path():
            step.pending = max(0, step.pending - 1)

    def walk(self) -> Iterator[Node]:
        yield from self.nodes.values()


def _untried(proposals: Sequence[Proposal], children: Sequence[Node]) -> list[Proposal]:
    """The proposals without those that an earlier part of this run has tried."""
    if not children:
        return list(proposals)
    tried = {child.proposal.identity for child in children if child.proposal is not None}
    tuned = {
        child.proposal.family for child in children if child.proposal is not None and child.proposal.proposer == TUNER
    }
    known = Counter(p.identity for p in proposals if p.identity in tried)
    # Of several edits with one identity it cannot be said which was tried; that is seen by the text it gives.
    return [p for p in proposals if known[p.identity] != 1 and not (p.proposer == TUNER and p.family in tuned)]


def _closed(outcome: Outcome) -> bool:
    """Whether nothing is built upon such a candidate: it failed, or its twin elsewhere in the tree stands for it."""
    return failed(outcome) or outcome is Outcome.DUPLICATE

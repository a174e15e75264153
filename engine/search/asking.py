"""Questions of a search: posed in its tree, asked where its policy selects them, written to its journal."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from engine.search.journal import Journal
from engine.search.journal_writer import Scribe
from engine.search.participants import Feed
from engine.search.progress import NOTHING_LEFT
from engine.search.question import FAILED, Asked, Question, asked
from engine.search.tree import Node, Tree


class Asking:
    """What a search does with its feed; nothing without one."""

    def __init__(self, tree: Tree, feed: Feed | None, scribe: Scribe) -> None:
        self._tree, self._feed, self._scribe = tree, feed, scribe
        self._earlier: defaultdict[int, list[Asked]] = defaultdict(list)

    def read(self, journal: Journal) -> list[Asked]:
        """The questions of an earlier part of this run, whose answers are credited as their candidates are taken over."""
        found = journal.questions() if self._feed is not None else []
        for row in found:
            self._earlier[row.node].append(row)
        return found

    def pose(self, node: Node) -> None:
        """Let the questions be asked that an evaluated node gives rise to."""
        for row in self._earlier.pop(node.id, ()):
            self._tree.credit(node, row.question, row.answers)
        for at, question in self._feed.questions(node) if self._feed is not None else ():
            self._tree.pose(at, question)

    def go_on(self, row: Asked) -> None:
        """Take over a question that an earlier part of this run asked."""
        assert self._feed is not None
        node, posed = self._tree.nodes[row.node], row.question
        self._tree.withdraw(node, posed)
        again, further = self._feed.go_on(row, node)
        if again:
            self._tree.await_answer(node, posed)
            self._feed.ask(node, posed)
        else:
            tried = {(child.proposal.rule, child.proposal.summary) for child in node.children if child.proposal}
            self._tree.offer(node, [p for p in row.answers if (p.rule, p.summary) not in tried])
            if row.ending == FAILED:
                self._tree.learn_failed(posed)
        for at, question in further:
            self._tree.pose(at, question)

    @property
    def possible(self) -> bool:
        """Whether a question may be asked now."""
        return self._feed is not None and self._feed.room > 0

    def ask(self, node: Node, question: Question) -> None:
        """Ask a question that was selected."""
        assert self._feed is not None
        self._scribe.book_question(asked(node, question))
        self._feed.ask(node, question)

    def collect(self, known: Callable[[str], bool]) -> bool:
        """Take what was answered into the tree; whether anything was."""
        answers = self._feed.arrivals(known) if self._feed is not None else ()
        for answer in answers:
            self._tree.answered(answer)
            for edit in answer.known:
                self._tree.found_again(edit.proposer, self._tree.digests.get(edit.makes or ""))
            for at, question in answer.further:
                self._tree.pose(at, question)
            self._scribe.book_question(asked(answer.node, answer.question, answer))
        return bool(answers)

    @property
    def coming(self) -> Sequence[Future[None]]:
        """What is done when an answer is there, where one is awaited."""
        return [self._feed.coming] if self._feed is not None and self._feed.awaited else []

    @property
    def nothing_left(self) -> str:
        """Why a search ends before its budget."""
        stopped = self._feed.stopped if self._feed is not None else ""
        return f"{NOTHING_LEFT}, and {stopped}" if stopped else NOTHING_LEFT

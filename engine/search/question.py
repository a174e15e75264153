"""Asking a model at a program as an action of the tree: what is asked, what came of it, and how often it is worth asking again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from engine.cuda.kernel import Edit, Span
from engine.rewrite.proposal import Proposal

if TYPE_CHECKING:
    from engine.search.tree import Node

MODEL = "llm"  # the proposer that is asked
ASK, CORRECT = "ask", "correct"  # for edits of a program; to correct one that failed
# Of a question: above most rules, since an answer has up to three edits. A correction costs one edit and knows its failure. Ours.
_PRIORS = {ASK: 0.6, CORRECT: 0.5}
# The prior of a question falls to this share, and so does what is expected of it, each time it was asked at the same program. Ours.
AGAIN = 0.6
OPEN, DEFERRED, ANSWERED, FAILED = "open", "deferred", "answered", "failed"  # what became of a question


@dataclass(frozen=True)
class Question(Proposal):
    """Ask a model at a program; competes with the edits there. `round`: how often it was asked there before.

    `about` is the candidate that failed, of a correction.
    """

    round: int = 0
    about: int | None = None

    @cached_property
    def alike(self) -> tuple[tuple[object, ...], ...]:
        """Nothing: rounds are no sizes."""
        return ()

    @property
    def share(self) -> float:
        """Of what such a question is expected to bring, the share that is left in this round."""
        return AGAIN**self.round


def question(rule: str = ASK, round: int = 0, about: int | None = None) -> Question:
    """The question of that kind."""
    summary = "Ask the model for edits" if rule == ASK else "Ask the model to correct an edit"
    prior = _PRIORS[rule] * (AGAIN**round if rule == ASK else 1.0)
    return Question(MODEL, rule, summary, {}, {"round": round}, prior, round=round, about=about)


@dataclass(frozen=True)
class Answer:
    """What came of a question: edits for its program, and others of that program with new priors (`judged`).

    `further` are questions that may be asked now, with their programs. `known`: edits left out because their programs are known.
    """

    node: Node
    question: Question
    ending: str = ANSWERED
    proposals: Sequence[Proposal] = ()
    judged: Sequence[Proposal] = ()
    further: Sequence[tuple[Node, Question]] = ()
    known: Sequence[Proposal] = ()


@dataclass(frozen=True)
class Asked:
    """A question in the journal: where it was asked, what became of it, and the edits of its answer."""

    node: int
    rule: str
    round: int
    about: int | None
    ending: str
    answers: tuple[Proposal, ...] = field(default=(), compare=False)

    @property
    def question(self) -> Question:
        """The question as it was asked."""
        return question(self.rule, self.round, self.about)


def asked(node: Node, posed: Question, answer: Answer | None = None) -> Asked:
    """The journal's row of a question that was just asked, or that was answered."""
    ending, edits = (OPEN, ()) if answer is None else (answer.ending, tuple(answer.proposals))
    return Asked(node.id, posed.rule, posed.round, posed.about, ending, edits)


def to_json(proposals: Sequence[Proposal]) -> list[dict[str, Any]]:
    """Edits as plain data."""
    return [
        {
            "rule": p.rule,
            "summary": p.summary,
            "parameters": dict(p.parameters),
            "prior": p.prior,
            "makes": p.makes,
            "edits": {path: [[e.span.start, e.span.end, e.text] for e in edits] for path, edits in p.edits.items()},
        }
        for p in proposals
    ]


def from_json(data: Sequence[Mapping[str, Any]]) -> tuple[Proposal, ...]:
    """The edits that `to_json` wrote. Raises KeyError, TypeError and ValueError for anything else."""
    return tuple(
        Proposal(
            MODEL,
            str(p["rule"]),
            str(p["summary"]),
            {
                path: tuple(Edit(Span(int(a), int(b)), str(t)) for a, b, t in edits)
                for path, edits in p["edits"].items()
            },
            dict(p["parameters"]),
            float(p["prior"]),
            makes=p["makes"],
        )
        for p in data
    )

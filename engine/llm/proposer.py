"""The model as a proposer: a node of the search in, proposals out; what fails goes back to the model a few times."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from engine.cuda.edit import edit_program
from engine.errors import OptimlError
from engine.llm.answers import SCHEMA, EditError, Suggestion, read_answer
from engine.llm.budget import prompt_estimate
from engine.llm.chat import ChatAnswer, ChatClient, ChatError, ChatRequest, Fault, Message, estimated_tokens
from engine.llm.edits import make_proposal, plain
from engine.llm.node_context import Context, Diagnosed, ending, node_key
from engine.llm.prompts import (
    MOST_TOKENS,
    Profile,
    PromptError,
    lines_around,
    planned,
    propose,
    repair,
    without_figures,
)
from engine.llm.prompts import plan as plan_messages
from engine.model import Evaluation, Outcome, Program
from engine.rewrite.proposal import Proposal

# Above most rules: it was made for this program. Ours.
_PRIOR = 0.6
_PRIOR_STEP = 0.05  # the model gives its best idea first
# Each further round at a node asks for something else, so at a higher temperature. Ours.
_COOLEST, _WARMER, _HOTTEST = 0.2, 0.2, 1.0
# Planning at a high temperature and coding at a low one: STARK, arXiv 2510.16996. The figures are ours.
_PLANNING, _CODING = 0.9, 0.1
_MOST_PLAN_TOKENS = 2_000
_MOST_THREADS = 256  # conversations kept for repairs
_MOST_DROPPED = 8  # edits of one program that its next question says were not used. Ours.
MOST_ANSWER_TOKENS = 6_000
# What is worth sending back: the model can see from it what to put right.
REPAIRABLE = frozenset({
    Outcome.COMPILE_ERROR, Outcome.WRONG_RESULT, Outcome.MEMORY_ERROR, Outcome.RACE, Outcome.TIMED_OUT, Outcome.CRASHED,
    Outcome.SCREENED_OUT,
})  # fmt: skip


@dataclass(frozen=True)
class Proposed:
    """What asking gave: proposals for the context's program, and every fault on the way.

    `judged` are proposals of others with what a judge made of their priors.
    """

    proposals: tuple[Proposal, ...] = ()
    faults: tuple[Fault, ...] = ()
    requests: int = 0
    what: str = ""  # the last fault in words
    judged: tuple[Proposal, ...] = ()


@dataclass(frozen=True)
class LlmOptions:
    """How the model is asked. `repairs`: how many times an edit that failed goes back. `model` "" is the client's choice.

    With a `plan_model` that one makes a plan first, at a high temperature, and `model` writes the code at a low one.
    """

    model: str = ""
    plan_model: str = ""
    profile: Profile = "diagnosis"
    repairs: int = 2
    most_tokens: int = MOST_TOKENS
    answer_tokens: int = MOST_ANSWER_TOKENS
    schema: bool = True  # ask servers to hold the model to the form of an answer
    templates: bool = False  # tell how an edit leaves figures to the tuner


@dataclass(frozen=True)
class _Thread:
    """A conversation that led to a candidate."""

    context: Context
    messages: tuple[Message, ...]
    idea: str
    repair: int
    label: str = ""


class LlmProposer:
    """Asks a model for edits. Thread-safe; nothing it is told or answered can end the search: faults are values here."""

    def __init__(self, client: ChatClient, options: LlmOptions | None = None) -> None:
        self._client, self._options = client, options or LlmOptions()
        self._threads: OrderedDict[tuple[str, str], _Thread] = OrderedDict()
        self._lock = threading.Lock()
        self._faults: Counter[Fault] = Counter()
        self._dropped: OrderedDict[str, tuple[str, ...]] = (
            OrderedDict()
        )  # sentences on edits that were not used, by program

    @property
    def faults(self) -> Mapping[Fault, int]:
        """How many answers ended in each fault so far."""
        with self._lock:
            return dict(self._faults)

    def propose(self, context: Context, *, round: int = 0) -> Proposed:
        """Proposals for the context's program; `round` counts earlier requests for the same program.

        An answer that cannot be read or placed goes back once.
        """
        context = replace(context, tried=(*context.tried, *self._dropped_at(context.program)))
        try:
            messages = self._question(context)
        except PromptError as error:
            return self._booked(Proposed((), (Fault.TOO_LONG,), 0, error.what))
        label = propose_label(context.place.original, context.program, round)
        temperature = min(_HOTTEST, _COOLEST + _WARMER * round)
        if self._options.plan_model:
            plan = self._plan(context, round)
            if isinstance(plan, Proposed):
                return self._booked(plan)
            messages, temperature = planned(context, messages, plan), _CODING
            asked = self._ask(context, messages, label, temperature, context.about, repairs=0, tries=2)
            return self._booked(replace(asked, requests=asked.requests + 1))
        return self._booked(self._ask(context, messages, label, temperature, context.about, repairs=0, tries=2))

    def drop(self, program: Program, idea: str, reason: str) -> None:
        """Say in the next questions for this program that an edit was not used, and why."""
        with self._lock:
            said = self._dropped.pop(program.digest, ())
            self._dropped[program.digest] = (*said, f"{plain(idea)}: not used: {plain(reason)}")[-_MOST_DROPPED:]
            while len(self._dropped) > _MOST_THREADS:
                self._dropped.popitem(last=False)

    def _dropped_at(self, program: Program) -> tuple[str, ...]:
        with self._lock:
            return self._dropped.get(program.digest, ())

    def repairable(self, parent: Program, candidate: Program) -> bool:
        """Whether the conversation that led from one program to another is at hand, and may go on."""
        with self._lock:
            thread = self._threads.get((parent.digest, candidate.digest))
        return thread is not None and thread.repair < self._options.repairs

    def label(self, parent: Program, candidate: Program) -> str:
        """The label of the exchange that led from one program to another, "" where it is not at hand."""
        with self._lock:
            thread = self._threads.get((parent.digest, candidate.digest))
        return thread.label if thread is not None else ""

    def repair(
        self, parent: Program, candidate: Program, evaluation: Evaluation, diagnosed: Diagnosed | None = None
    ) -> Proposed | None:
        """Other proposals for `parent` in place of one that failed; None where it is not worth it or was tried enough.

        `diagnosed` is what is known of `parent` by now: told where the conversation began before it was.
        """
        with self._lock:
            thread = self._threads.get((parent.digest, candidate.digest))
        if thread is None or thread.repair >= self._options.repairs or evaluation.outcome not in REPAIRABLE:
            return None
        if diagnosed is not None and diagnosed.sentences and not thread.context.diagnosed.sentences:
            thread = self._informed(thread, diagnosed)
        message = repair(thread.context, ending(evaluation), idea=thread.idea, detail=_detail(candidate, evaluation))
        original = thread.context.place.original
        label = repair_label(original, parent, candidate)
        messages = (*thread.messages, message)
        about = f"{thread.context.about} > {thread.idea}"
        asked = self._ask(thread.context, messages, label, _COOLEST, about, repairs=thread.repair + 1, tries=1)
        return self._booked(asked)

    def _informed(self, thread: _Thread, diagnosed: Diagnosed) -> _Thread:
        """The conversation as it would be with the diagnosis in its first question; as it is where that began otherwise."""
        context, told = thread.context, replace(thread.context, diagnosed=diagnosed)
        try:
            asked, wanted = self._question(context), self._question(told)
        except PromptError:
            return thread
        if thread.messages[: len(asked)] != asked:
            return thread
        return replace(thread, context=told, messages=(*wanted, *thread.messages[len(asked) :]))

    def _question(self, context: Context) -> tuple[Message, ...]:
        o = self._options
        return propose(context, profile=o.profile, most_tokens=o.most_tokens, templates=o.templates)

    def _plan(self, context: Context, round: int) -> str | Proposed:
        """A plan in words; what the asking came to where there is none."""
        messages = plan_messages(context, profile=self._options.profile, most_tokens=self._options.most_tokens)
        label = f"plan/{node_key(context.place.original, context.program)}/{round}/0"
        about = f"plan: {context.about}"
        request = ChatRequest(messages, label, self._options.plan_model, _PLANNING, _MOST_PLAN_TOKENS, None, about)
        try:
            return self._client.complete(request).text
        except ChatError as error:
            return Proposed((), (error.fault,), 1, plain(error.what))

    # ---- one conversation

    def _ask(
        self,
        context: Context,
        messages: tuple[Message, ...],
        label: str,
        temperature: float,
        about: str,
        *,
        repairs: int,
        tries: int,
    ) -> Proposed:
        proposals: list[Proposal] = []
        faults: list[Fault] = []
        requests, what = 0, ""
        for attempt in range(tries):
            request = ChatRequest(
                messages,
                f"{label}/{attempt}",
                self._options.model,
                temperature,
                self._options.answer_tokens,
                SCHEMA if self._options.schema else None,
                about,
            )
            # A conversation that has grown past what a prompt may have is not continued.
            if attempt and prompt_estimate(request) > 2 * self._options.most_tokens:
                break
            try:
                requests += 1
                answer = self._client.complete(request)
            except ChatError as error:
                faults.append(error.fault)
                what = error.what
                break
            problem = self._read(context, messages, answer, repairs, request.label, proposals, faults)
            if problem is not None:
                what = problem.what
            if proposals or problem is None:
                break
            told = repair(context, f"{problem.what}{'; ' + problem.do if problem.do else ''}")
            messages = (*messages, _said(answer), told)
        return Proposed(tuple(proposals), tuple(faults), requests, plain(what))

    def _read(
        self, context: Context, messages: tuple[Message, ...], answer: ChatAnswer, repairs: int, label: str,
        proposals: list[Proposal], faults: list[Fault],
    ) -> EditError | None:  # fmt: skip
        """Add what the answer proposes; the first of its problems."""
        try:
            suggestions = read_answer(answer.text)
        except EditError as error:
            faults.append(error.fault)
            return error
        first: EditError | None = None
        for rank, suggestion in enumerate(suggestions):
            try:
                proposals.append(self._placed(context, messages, answer, suggestion, rank, repairs, label))
            except EditError as error:
                faults.append(error.fault)
                self.drop(context.program, suggestion.idea, error.what)
                first = first or error
        return first

    def _placed(
        self, context: Context, messages: tuple[Message, ...], answer: ChatAnswer, suggestion: Suggestion, rank: int, repairs: int,
        label: str,
    ) -> Proposal:  # fmt: skip
        more: dict[str, int | str] = {"model": plain(answer.model, 80)}
        if repairs:
            more["repair"] = repairs
        prior = max(0.05, _PRIOR - _PRIOR_STEP * rank)
        try:
            proposal = make_proposal(suggestion, context.place, prior=prior, **more)
            program = edit_program(context.program, proposal.edits)
        except EditError:
            raise
        except (OptimlError, LookupError, ValueError) as error:
            # What the analyses cannot make sense of is no edit; whatever a model writes, the search goes on.
            raise EditError(f"the edit cannot be made: {error}", fault=Fault.FORBIDDEN) from None
        with self._lock:
            thread = _Thread(context, (*messages, _said(answer)), proposal.summary, repairs, label)
            self._threads[context.program.digest, program.digest] = thread
            while len(self._threads) > _MOST_THREADS:
                self._threads.popitem(last=False)
        return replace(proposal, makes=program.digest)

    def _booked(self, proposed: Proposed) -> Proposed:
        with self._lock:
            self._faults.update(proposed.faults)
        return proposed


def propose_label(original: Program, program: Program, round: int) -> str:
    """The beginning of the labels of a node's request: the same in a repeated run, whatever was measured."""
    return f"propose/{node_key(original, program)}/{round}"


def repair_label(original: Program, parent: Program, candidate: Program) -> str:
    """The beginning of the labels of the request that has a failed candidate put right."""
    return f"repair/{node_key(original, parent)}/{node_key(original, candidate)}"


def _said(answer: ChatAnswer) -> Message:
    """The model's own words in a conversation that goes on, a bounded part of them."""
    text = answer.text
    if estimated_tokens(text) > MOST_ANSWER_TOKENS:
        text = text[: 2 * MOST_ANSWER_TOKENS] + "\n(cut)"
    return Message("assistant", text)


def _detail(candidate: Program, evaluation: Evaluation) -> str:
    """The first error with its lines. Of a wrong result only where it stands: what was expected stays with the checks."""
    failure = evaluation.failure
    if failure is None:
        return ""
    parts = []
    if evaluation.outcome in (Outcome.COMPILE_ERROR, Outcome.RACE):
        parts.append(failure.reason)
    if evaluation.outcome is Outcome.SCREENED_OUT:
        parts.append(without_figures(failure.reason))
    if evaluation.outcome is Outcome.WRONG_RESULT and failure.argument and failure.index is not None:
        parts.append(f"first difference: {failure.argument}[{failure.index}]")
    if failure.line is not None:
        parts.append(lines_around(candidate.data, failure.line))
    return "\n".join(parts)

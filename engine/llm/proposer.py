"""The model as a proposer: a node of the search in, proposals out; what fails goes back to the model a few times."""

import threading
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from engine.cuda.edit import edit_program
from engine.errors import OptimlError
from engine.llm.answers import SCHEMA, EditError, Suggestion, read_answer
from engine.llm.budget import prompt_estimate
from engine.llm.chat import ChatAnswer, ChatClient, ChatError, ChatRequest, Fault, Message, estimated_tokens
from engine.llm.edits import make_proposal
from engine.llm.failures import Failed, detail
from engine.llm.node_context import Context, ending, node_key, program_diff
from engine.llm.plain_words import plain
from engine.llm.prompts import PromptError, Telling, again, debug, propose
from engine.llm.prompts import plan as plan_messages
from engine.model import Evaluation, Outcome, Program
from engine.rewrite.proposal import Proposal
from engine.search.reward import failed
from engine.search.tree import Node

# Above most rules: it was made for this program. Ours.
_PRIOR = 0.6
_PRIOR_STEP = 0.05  # the model gives its best idea first
# Each further round at a node asks for something else, so at a higher temperature. Ours.
_COOLEST, _WARMER, _HOTTEST = 0.2, 0.2, 1.0
# Planning at a high temperature and coding at a low one: STARK, arXiv 2510.16996. The figures are ours.
_PLANNING, _CODING = 0.9, 0.1
_MOST_PLAN_TOKENS = 2_000
_MOST_LEARNT = 6  # corrections that passed, told with the next failure. Ours.
_MOST_THREADS = 256  # conversations kept for repairs
_REMEDIES = frozenset({Fault.REJECTED, Fault.CUT_SHORT})  # what its user can do something about is said with it
_MOST_REASONS = 100  # different ones of a fault that are counted. Ours.
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
    """How the model is asked. `repairs`: how many times an edit that failed goes to the debugger. `model` "" is the client's choice.

    With a `plan_model` that one makes a plan first, at a high temperature, and `model` writes the code at a low one.
    """

    model: str = ""
    plan_model: str = ""
    repairs: int = 2
    answer_tokens: int = MOST_ANSWER_TOKENS
    schema: bool = True  # ask servers to hold the model to the form of an answer
    telling: Telling = field(default_factory=Telling)


@dataclass(frozen=True)
class _Thread:
    """What led to a candidate. `earlier` are corrections of the same edit before it, and how they ended."""

    context: Context
    idea: str
    repair: int
    label: str = ""
    earlier: tuple[str, ...] = ()


class LlmProposer:
    """Asks a model for edits. Thread-safe; nothing it is told or answered can end the search: faults are values here."""

    def __init__(self, client: ChatClient, options: LlmOptions | None = None) -> None:
        self._client, self._options = client, options or LlmOptions()
        self._threads: OrderedDict[tuple[str, str], _Thread] = OrderedDict()
        self._lock = threading.Lock()
        self._faults: Counter[Fault] = Counter()
        self._reasons: defaultdict[Fault, Counter[str]] = defaultdict(Counter)
        # What each role remembers: edits of the coder's that were not used and plans, by program; and corrections that passed.
        self._dropped: OrderedDict[str, tuple[str, ...]] = OrderedDict()
        self._plans: OrderedDict[str, tuple[str, ...]] = OrderedDict()
        self._learnt: tuple[str, ...] = ()

    @property
    def faults(self) -> Mapping[Fault, int]:
        """How many answers ended in each fault so far."""
        with self._lock:
            return dict(self._faults)

    @property
    def reasons(self) -> Mapping[Fault, str]:
        """Of each fault so far, what was wrong most often."""
        with self._lock:
            return {fault: counted.most_common(1)[0][0] for fault, counted in self._reasons.items()}

    def _lost(self, faults: list[Fault], error: EditError | ChatError) -> None:
        faults.append(error.fault)
        with self._lock:
            counted, text = self._reasons[error.fault], plain(error.what)
            if text in counted or len(counted) < _MOST_REASONS:
                counted[text] += 1

    def propose(self, context: Context, *, round: int = 0) -> Proposed:
        """Proposals for the context's program; `round` counts earlier requests for the same program.

        An answer that cannot be read or placed goes back once.
        """
        dropped = self._recalled(self._dropped, context.program)
        label = propose_label(context.place.original, context.program, round)
        temperature, asked_before, plan = min(_HOTTEST, _COOLEST + _WARMER * round), 0, ""
        try:
            if self._options.plan_model:
                found = self._plan(context, round)
                if isinstance(found, Proposed):
                    return self._booked(found)
                plan, asked_before, temperature = found, 1, _CODING
                context = replace(context, tried=())
            context = replace(context, tried=(*context.tried, *dropped))
            messages = propose(context, self._options.telling, plan=plan)
        except PromptError as error:
            return self._booked(Proposed((), (Fault.TOO_LONG,), asked_before, error.what))
        asked = self._ask(_Thread(context, "", 0), messages, label, temperature, tries=2)
        return self._booked(replace(asked, requests=asked.requests + asked_before))

    def drop(self, program: Program, idea: str, reason: str) -> None:
        """Say in the next questions for this program that an edit was not used, and why."""
        self._remember(self._dropped, program, f"{plain(idea)}: not used: {plain(reason)}")

    def _remember(self, memory: OrderedDict[str, tuple[str, ...]], program: Program, sentence: str) -> None:
        with self._lock:
            said = memory.pop(program.digest, ())
            memory[program.digest] = (*said, sentence)[-_MOST_DROPPED:]
            while len(memory) > _MOST_THREADS:
                memory.popitem(last=False)

    def _recalled(self, memory: Mapping[str, tuple[str, ...]], program: Program) -> tuple[str, ...]:
        with self._lock:
            return memory.get(program.digest, ())

    def booked(self, node: Node) -> None:
        """Remember a correction that passed, for the next failure."""
        if node.parent is None or node.proposal is None or node.evaluation is None or failed(node.evaluation.outcome):
            return
        with self._lock:
            thread = self._threads.get((node.parent.program.digest, node.program.digest))
            if thread is not None and thread.earlier:
                ended = f"{thread.earlier[-1]}; put right by: {node.proposal.summary}"
                self._learnt = (*(one for one in self._learnt if one != ended), ended)[-_MOST_LEARNT:]

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

    def repair(self, parent: Program, candidate: Program, evaluation: Evaluation, at: str = "") -> Proposed | None:
        """Other proposals for `parent` in place of one that failed; None where it is not worth it or was tried enough.

        `at` says with which values an edit failed that leaves some open.
        """
        with self._lock:
            thread = self._threads.get((parent.digest, candidate.digest))
            learnt = self._learnt
        if thread is None or thread.repair >= self._options.repairs or evaluation.outcome not in REPAIRABLE:
            return None
        context = thread.context
        ended = f"{ending(evaluation)}{', at ' + at if at else ''}"
        launch = next((config for site in context.place.sites for config in site.configs), None)
        told = detail(candidate, evaluation, context.spec, launch)
        failure = Failed(thread.idea, ended, told, program_diff(context.program, candidate), thread.earlier, learnt)
        label = repair_label(context.place.original, parent, candidate)
        try:
            messages = debug(context, failure, self._options.telling)
        except PromptError as error:
            return self._booked(Proposed((), (Fault.TOO_LONG,), 0, error.what))
        earlier = (*thread.earlier, f"{thread.idea}: {ended}")
        corrected = _Thread(context, thread.idea, thread.repair + 1, earlier=earlier)
        return self._booked(self._ask(corrected, messages, label, _COOLEST, tries=1))

    def _plan(self, context: Context, round: int) -> str | Proposed:
        """A plan in words; what the asking came to where there is none. Raises PromptError."""
        before = tuple(f"planned before: {plan}" for plan in self._recalled(self._plans, context.program))
        messages = plan_messages(replace(context, tried=(*context.tried, *before)), self._options.telling)
        label = f"plan/{node_key(context.place.original, context.program)}/{round}/0"
        about = f"plan: {context.about}"
        request = ChatRequest(messages, label, self._options.plan_model, _PLANNING, _MOST_PLAN_TOKENS, None, about)
        try:
            text = self._client.complete(request).text
        except ChatError as error:
            faults: list[Fault] = []
            self._lost(faults, error)
            return Proposed((), tuple(faults), 1, plain(error.what))
        self._remember(self._plans, context.program, plain(text))
        return text

    # ---- one conversation

    def _ask(
        self, thread: _Thread, messages: tuple[Message, ...], label: str, temperature: float, *, tries: int
    ) -> Proposed:
        """Ask for what `thread` is about; an answer that cannot be used goes back while `tries` are left."""
        about = f"{thread.context.about} > {thread.idea}" if thread.repair else thread.context.about
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
            if attempt and prompt_estimate(request) > 2 * self._options.telling.most_tokens:
                break
            try:
                requests += 1
                answer = self._client.complete(request)
            except ChatError as error:
                self._lost(faults, error)
                what = f"{error.what}; {error.do}" if error.fault in _REMEDIES and error.do else error.what
                break
            problem = self._read(replace(thread, label=request.label), answer, proposals, faults)
            if problem is not None:
                what = problem.what
            if proposals or problem is None or problem.fault is Fault.EMPTY:
                break
            messages = (*messages, _said(answer), again(f"{problem.what}{'; ' + problem.do if problem.do else ''}"))
        return Proposed(tuple(proposals), tuple(faults), requests, plain(what))

    def _read(
        self, thread: _Thread, answer: ChatAnswer, proposals: list[Proposal], faults: list[Fault]
    ) -> EditError | None:
        """Add what the answer proposes; the first of its problems."""
        try:
            suggestions = read_answer(answer.text)
        except EditError as error:
            self._lost(faults, error)
            return error
        first: EditError | None = None
        for rank, suggestion in enumerate(suggestions):
            try:
                proposals.append(self._placed(thread, answer, suggestion, rank))
            except EditError as error:
                self._lost(faults, error)
                self.drop(thread.context.program, suggestion.idea, error.what)
                first = first or error
        return first

    def _placed(self, thread: _Thread, answer: ChatAnswer, suggestion: Suggestion, rank: int) -> Proposal:
        context = thread.context
        more: dict[str, int | str] = {"model": plain(answer.model, 80)}
        if thread.repair:
            more["repair"] = thread.repair
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
            self._threads[context.program.digest, program.digest] = replace(thread, idea=proposal.summary)
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

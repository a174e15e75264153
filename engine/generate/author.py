"""Asks a model for the parts of a generation: the task, drafts of a reference, and a kernel for each strategy, with repairs."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass

from engine.cuda.edit import edit_program
from engine.errors import OptimlError, RefusedError
from engine.generate.check_cases import TaskError
from engine.generate.messages import Prompts
from engine.generate.model_access import CODING, PLANNING, Door
from engine.generate.oracle import Reference
from engine.generate.strategies import AuthorStrategy
from engine.generate.task import SCHEMA as TASK_SCHEMA
from engine.generate.task import Task, read_task
from engine.generate.trial import TriedKernel
from engine.llm.answers import SCHEMA, EditError, Suggestion, read_answer
from engine.llm.chat import ChatError, Fault, Message
from engine.llm.edits import Workplace, make_proposal
from engine.llm.failures import lines_around, without_figures
from engine.llm.plain_words import plain
from engine.model import Outcome, Program, Target
from engine.rewrite.proposal import Proposal
from engine.rules import make_site
from engine.spec.kernel_spec import KernelSpec

DRAFTS = 3  # references that are drafted independently; two at least must be there and agree
_LEAST_DRAFTS = 2
_TASK_TRIES = 2
_MOST_KEPT = 20_000  # characters of an answer that stay in its conversation
_MOST_READ = 200_000
_FUNCTION = "reference"
_FENCE = re.compile(r"```[a-zA-Z0-9]*\n(.*?)```", re.S)


class Deferred(Exception):
    """A question waits in the batch; nothing that follows from its answer can be asked yet."""


@dataclass(frozen=True)
class Written:
    """A model's kernel, placed in the file that we wrote: the whole program, and what it consists of."""

    suggestion: Suggestion
    program: Program


@dataclass(frozen=True)
class StrategyDraft:
    """What one strategy became. `ending` names how it ended: an `Outcome`, or the fault that left nothing to try."""

    strategy: AuthorStrategy
    ending: str
    reason: str = ""
    plan: str = ""
    idea: str = ""
    written: Written | None = None
    tried: TriedKernel | None = None
    requests: int = 0
    repairs: int = 0

    @property
    def right(self) -> bool:
        return self.tried is not None and self.tried.right


class Author:
    """Asks about one sentence. `key` names it in the labels of its questions, so that a repeated run asks the same ones."""

    def __init__(self, door: Door, prompts: Prompts, key: str, *, repairs: int) -> None:
        self._door, self._prompts, self._key, self._repairs = door, prompts, key, repairs
        self.requests = 0

    # ---- the task and its reference

    def task(self, required: tuple[str, ...], optional: tuple[str, ...], *, cpu: bool) -> Task:
        """The task that the sentence means. Raises Deferred, ChatError, and RefusedError where no answer makes one."""
        messages = self._prompts.task(required, optional)
        problem = ""
        for attempt in range(_TASK_TRIES):
            answer = self._ask(messages, f"task/{attempt}", "the task", temperature=CODING, schema=TASK_SCHEMA)
            try:
                return read_task(answer, required=required, known=(*required, *optional), cpu=cpu)
            except TaskError as error:
                problem = error.what
            messages = (*messages, _said(answer), self._prompts.repair(problem))
        raise RefusedError(
            f"the model did not derive a task from the description: {problem}",
            "",
            "describe the computation, its types and sizes",
        )

    def references(self, task: Task) -> list[Reference]:
        """Independent drafts of a reference. Raises Deferred where one still waits, RefusedError where too few came."""
        found: list[Reference] = []
        waiting, problem = False, ""
        for number in range(1, DRAFTS + 1):
            messages = self._prompts.reference(task)
            # Independent: none sees another one, and each is drawn at a high temperature.
            try:
                answer = self._ask(
                    messages,
                    f"{_digest(task)}/reference/{number}",
                    f"draft {number} of the reference",
                    temperature=PLANNING,
                )
            except Deferred:
                waiting = True
                continue
            except ChatError as error:
                problem = error.what
                continue
            source = _python(answer)
            if f"def {_FUNCTION}" not in source:
                problem = f"draft {number} has no function '{_FUNCTION}'"
                continue
            found.append(Reference(source.encode("utf-8", "replace"), _FUNCTION, f"draft {number}", "drafted"))
        if waiting:
            raise Deferred
        if len(found) < _LEAST_DRAFTS:
            raise RefusedError(
                f"{len(found)} of {DRAFTS} drafts of a reference are usable, and {_LEAST_DRAFTS} must agree: {problem}",
                "", "give your own reference with --reference",
            )  # fmt: skip
        return found

    # ---- kernels

    def draft(
        self,
        task: Task,
        strategy: AuthorStrategy,
        reference: str,
        place: Workplace,
        test: Callable[[Program], TriedKernel],
    ) -> StrategyDraft:
        """Plan, write, test, and send back what failed a few times. Every fault is a value here."""
        about = f"{_digest(task)}/{strategy.name}"
        plan, idea, requests = "", "", 0
        last: StrategyDraft | None = None
        try:
            requests += 1
            plan = self._ask(
                self._prompts.plan(task, strategy, reference), f"{about}/plan", f"plan: {strategy.title}",
                temperature=PLANNING, plan=True,
            )  # fmt: skip
            messages = self._prompts.kernel(task, reference, plan)
            label = f"{about}/kernel"
            for repair in range(self._repairs + 1):
                requests += 1
                what = strategy.title if not repair else f"{strategy.title}, repair {repair}"
                answer = self._ask(messages, label, what, temperature=CODING, schema=SCHEMA)
                try:
                    suggestion, program = place_kernel(answer, place)
                except EditError as error:
                    last = StrategyDraft(
                        strategy, error.fault.value, error.what, plan, idea, requests=requests, repairs=repair
                    )
                    told = self._prompts.repair(f"{error.what}{'; ' + error.do if error.do else ''}")
                else:
                    idea = plain(suggestion.idea)
                    tried = test(program)
                    reason = tried.failure.reason if tried.failure else ""
                    last = StrategyDraft(
                        strategy,
                        tried.outcome.value,
                        reason,
                        plan,
                        idea,
                        Written(suggestion, program),
                        tried,
                        requests,
                        repair,
                    )
                    if tried.right or tried.final:
                        return last
                    told = self._prompts.repair(*_ending(tried, program))
                messages = (*messages, _said(answer), told)
                label = f"{about}/repair/{repair + 1}/{hashlib.sha256(answer.encode()).hexdigest()[:12]}"
        except Deferred:
            return StrategyDraft(
                strategy, Fault.DEFERRED.value, "its request is waiting in the batch", plan, idea, requests=requests
            )
        except ChatError as error:
            if last is None or last.tried is None:
                return StrategyDraft(strategy, error.fault.value, error.what, plan, idea, requests=requests)
        assert last is not None
        return last

    def _ask(
        self, messages: tuple[Message, ...], label: str, about: str, *, temperature: float, schema: object = None,
        plan: bool = False,
    ) -> str:  # fmt: skip
        """The text of one answer. Raises Deferred and ChatError."""
        self.requests += 1
        try:
            return self._door.ask(
                messages, f"generate/{self._key}/{label}", about, temperature=temperature, schema=schema, plan=plan
            ).text
        except ChatError as error:
            if error.fault is Fault.DEFERRED:
                raise Deferred from None
            raise


def place_kernel(answer: str, place: Workplace) -> tuple[Suggestion, Program]:
    """The kernel of an answer in the place's file, by the gate that every model's edit passes. Raises EditError."""
    suggestion = next((s for s in read_answer(answer) if s.kernel), None)
    if suggestion is None:
        raise EditError("the answer contains no complete kernel")
    names = [site.kernel.name for site in place.sites]
    launched = {k.kernel for k in suggestion.launches if k.extents.grid and k.extents.block}
    for name in names:
        if len(names) > 1 and not re.search(rf"\b{name}\b", suggestion.kernel):
            raise EditError(f"the answer lacks the kernel '{name}'", do="give all kernels of the task in one text")
        if not launched or (len(names) > 1 and name not in launched):
            raise EditError(f"the answer does not give the launch of '{name}'", do='give "grid" and "block"')
    proposal = propose_kernel(suggestion, place)
    return suggestion, edit_program(place.program, proposal.edits)


def propose_kernel(suggestion: Suggestion, place: Workplace) -> Proposal:
    """The kernel as an edit of the place's program. Raises EditError."""
    whole = Suggestion(suggestion.idea, kernel=suggestion.kernel, launches=suggestion.launches)
    try:
        return make_proposal(whole, place, prior=1.0)
    except EditError:
        raise
    except (OptimlError, LookupError, ValueError) as error:
        # What the analyses cannot make sense of is no kernel; whatever a model writes, the others go on.
        raise EditError(f"the kernel cannot be placed: {error}", fault=Fault.FORBIDDEN) from None


def workplace(program: Program, spec: KernelSpec, target: Target, original: Program) -> Workplace:
    """Where kernels of this program are placed. Raises SourceError."""
    return Workplace(tuple(make_site(program, spec, step, target) for step in range(len(spec.steps))), original)


def _digest(task: Task) -> str:
    """A name for what a model is told of a task: the shapes it is checked on are no part of it."""
    told = repr((task.kernel, task.arguments, task.time, *task.conditions, *task.further))
    return hashlib.sha256(told.encode()).hexdigest()[:12]


def _said(answer: str) -> Message:
    return Message("assistant", answer if len(answer) <= _MOST_KEPT else answer[:_MOST_KEPT] + "\n(cut)")


def _python(answer: str) -> str:
    """The Python file in an answer: the longest fence, else the text itself."""
    fences = _FENCE.findall(answer[:_MOST_READ].replace("\r\n", "\n"))
    return str(max(fences, key=len)) if fences else answer


def _ending(tried: TriedKernel, program: Program) -> tuple[str, str]:
    """(how it ended, the first error with its lines) for the model. Of a wrong result only where it stands."""
    failure = tried.failure
    ending = {
        Outcome.COMPILE_ERROR: "it does not compile", Outcome.WRONG_RESULT: "its result is wrong",
        Outcome.MEMORY_ERROR: "it touches memory outside of its arrays, or changes an input", Outcome.RACE: "it has a race",
        Outcome.TIMED_OUT: "it does not end in time", Outcome.CRASHED: "it cannot be launched, or crashes",
        Outcome.SCREENED_OUT: "it may not be used",
    }.get(tried.outcome, tried.outcome.value)  # fmt: skip
    if failure is None:
        return ending, ""
    parts = []
    if tried.outcome is Outcome.WRONG_RESULT:
        parts.append(f"first difference: {failure.argument}[{failure.index}]")
    elif tried.outcome in (Outcome.COMPILE_ERROR, Outcome.RACE):
        parts.append(failure.reason)
    elif tried.outcome is Outcome.SCREENED_OUT:
        parts.append(without_figures(failure.reason))
    elif tried.outcome is Outcome.MEMORY_ERROR and failure.argument:
        parts.append(f"at {failure.argument}")
    if failure.line is not None:
        parts.append(lines_around(program.data, failure.line))
    return ending, "\n".join(parts)

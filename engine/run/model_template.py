"""A template that a model writes: it refactors a kernel so that sizes are named constants, and the tuner searches their values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from engine.cuda.edit import edit_program
from engine.cuda.kernel import Edit, Span
from engine.cuda.load import repository_root
from engine.errors import OptimlError, UsageError
from engine.llm.batch import BatchClient
from engine.llm.budget import BudgetedClient, LlmBudget
from engine.llm.cassette import Recorder
from engine.llm.chat import ChatClient, Fault
from engine.llm.feed import DIAGNOSIS_S, Background
from engine.llm.node_context import Context, Diagnosed, make_context
from engine.llm.prompts import Telling
from engine.llm.proposer import LlmOptions, LlmProposer, Proposed
from engine.llm.session import EXCHANGES, SAME, LlmSettings, diagnoser, door_of
from engine.llm.techniques import fitting
from engine.model import Program, Target
from engine.rewrite.proposal import Proposal
from engine.run.machine import Machine
from engine.search.tree import Node, Tree
from engine.spec.kernel_spec import KernelSpec
from engine.tune.chosen_template import NoTemplate
from engine.tune.declare import declared
from engine.tune.feasible import feasible
from engine.tune.space import ParameterSpace, Point
from engine.tune.template import ConstantTemplate, Figures, Launches, Template, UnusableTemplate, tunable
from engine.tune.tune_options import TuneOptions
from engine.tune.tuning_result import TuneResult

_NO_BACKGROUND = Background()
_ROUNDS = 3  # questions until an answer holds a template. Ours
_FINAL = frozenset({Fault.BUDGET, Fault.TOO_LONG, Fault.DEFERRED, Fault.NOT_RECORDED, Fault.REJECTED, Fault.CONNECTION})
_APPROACH = (
    "Write the kernel as a template: name every size that only measuring can choose (threads in a block, elements per thread, tiles, "
    "unrolling, stages) and leave it open as told above, with the conditions under which the code is right. Restructure it where that "
    "opens sizes that matter. A proposal that leaves nothing open is of no use now."
)


@dataclass
class ModelTemplate:
    """Follows `engine.tune.template.Template`: a model's text with named constants, whose points are edits of the original.

    `inner` is the template that the model's text declares.
    """

    original: Program
    inner: ConstantTemplate
    summary: str
    name: str = "model"
    by_rules: ClassVar[bool] = False
    default: ClassVar[Point | None] = None  # no point is the original

    @property
    def space(self) -> ParameterSpace:
        return self.inner.space

    def proposal(self, point: Point) -> Proposal:
        """The edit of the original that makes it this point's program: whole files."""
        made = self.inner.proposal(point)
        program = edit_program(self.inner.original, made.edits)
        edits = {
            path: (Edit(Span(0, len(before)), program.files[path].decode("utf-8")),)
            for path, before in self.original.files.items()
            if program.files[path] != before
        }
        return replace(made, edits=edits)

    def figures(self, point: Point) -> Figures:
        return self.inner.figures(point)

    def launches(self, point: Point) -> Launches | None:
        return self.inner.launches(point)


def check_alone(options: TuneOptions) -> None:
    """Raise UsageError for options that do not go with a model's template."""
    if options.rule is not None or options.parameters or options.where:
        raise UsageError("a model writes the template", "--llm", "omit --rule, --param and --where")
    if options.dispatch or options.constants:
        what = "the patch of a model's template keeps its tune lines"
        raise UsageError(
            what, "--llm", "omit --dispatch and --constants, apply the patch, and tune the result with --dispatch"
        )


def analysis(
    machine: Machine, options: TuneOptions, found: tuple[KernelSpec, str | None]
) -> Callable[[Node, float], Diagnosed]:
    """What gives an original its evaluation, and says what limits it, by the profiler or else by prediction.

    It raises as opening the original does: what cannot be searched is not asked about.
    """

    def analyse(original: Node, wait_s: float) -> Diagnosed:
        spec, spec_path = found
        root = repository_root(options.path)
        with ExitStack() as held:
            evaluator = machine.evaluator(spec, root, spec_path, limits=options.guardrails)
            held.callback(evaluator.close)
            _, original.evaluation = evaluator.open(original.program)
            insight = machine.insight(spec, evaluator)
            if insight is not None:
                held.callback(insight.close)
            source = insight or machine.watch(spec, evaluator)
            return diagnoser(source, lambda program: evaluator.build(program, by_rules=False))(original, wait_s)

    return analyse


class TemplateWaits(NoTemplate):
    """The question for a template waits in a batch's folder for its answer."""

    exit_code: ClassVar[int] = 4


class TemplateAuthor:
    """A model that writes templates of one kernel, one after the other until one passes its test; exchanges are recorded in `out`.

    The `background` gives the original its evaluation, says what limits it, and what was learnt of kernels like it; it is not asked
    where the answers are recorded.

    Raises UsageError and MachineError where the model cannot be asked. `close` it.
    """

    def __init__(
        self, settings: LlmSettings, program: Program, found: tuple[KernelSpec, str | None], target: Target, out: Path,
        background: Background = _NO_BACKGROUND,
    ) -> None:  # fmt: skip
        self._background = background if settings.replay is None else _NO_BACKGROUND
        self._program, (self._spec, self._spec_path), self._target = program, found, target
        self._budget = LlmBudget(settings.limit, settings.price)
        opened = door_of(settings)
        client: ChatClient = BudgetedClient(opened, self._budget)
        if settings.replay is None:
            client = Recorder(client, out / EXCHANGES, prompts=settings.prompts, resume=False, price=settings.price)
        self._opened, self._parts = opened, (client, opened)
        plan_model = settings.model if settings.plan_model == SAME else settings.plan_model
        telling = Telling(templates=True, parts=settings.parts)
        options = LlmOptions(
            settings.model, plan_model, settings.repairs, settings.answer_tokens, settings.schema, telling
        )
        self._proposer = LlmProposer(client, options)
        self._round, self._reason = 0, ""
        self._context: Context | None = None

    def first(self) -> tuple[ModelTemplate, tuple[str, ...]]:
        """The first template of the answers that can be searched, and a note. Raises NoTemplate with the last reason without one."""
        if self._context is None:
            original = Tree(self._program, lambda of: [], 0).root
            try:
                diagnosed = self._background.diagnose(original, DIAGNOSIS_S)
                memory = self._background.recall(original)
                context = make_context(
                    original, self._spec, self._target, counters=(), diagnosed=diagnosed, memory=memory
                )
            except LookupError as error:
                raise self._none(f"the kernel cannot be read: {error}") from None
            shown = fitting(context.place, diagnosed.codes)
            self._context = replace(context, approach=_APPROACH, techniques=shown)
        while self._round < _ROUNDS:
            proposed = self._proposer.propose(self._context, round=self._round)
            self._round += 1
            found = self._searchable(proposed)
            if found is not None:
                return found
            if any(fault in _FINAL for fault in proposed.faults):
                break
        raise self._none()

    def corrected(self, template: ModelTemplate, error: UnusableTemplate) -> tuple[ModelTemplate, tuple[str, ...]]:
        """Another template in place of one that failed its test, and a note. Raises NoTemplate where there is none."""
        self._drop(template.summary, error.what)
        if error.evaluation is not None:
            at = ", ".join(f"{name} = {value}" for name, value in error.point.items())
            proposed = self._proposer.repair(self._program, template.inner.original, error.evaluation, at)
            found = self._searchable(proposed) if proposed is not None else None
            if found is not None:
                return found
            if proposed is not None and any(fault in _FINAL for fault in proposed.faults):
                raise self._none()
        return self.first()

    def searched(self, search: Callable[[Template, tuple[str, ...]], TuneResult]) -> TuneResult:
        """What `search` gives for the first template that passes its test. Raises NoTemplate without one, and what `search` raises."""
        template, notes = self.first()
        while True:
            try:
                return search(template, notes)
            except UnusableTemplate as error:
                template, notes = self.corrected(template, error)

    def _searchable(self, proposed: Proposed) -> tuple[ModelTemplate, tuple[str, ...]] | None:
        self._reason = proposed.what or self._reason
        for proposal, found in _templates(self._program, proposed.proposals, self._spec, self._spec_path):
            try:
                if isinstance(found, OptimlError):
                    raise found
                tunable(found)
                points = len(feasible(found, self._target).points)
            except OptimlError as error:
                self._drop(proposal.summary, error.what)
                continue
            spent = self._budget.spent
            tokens = spent.prompt_tokens + spent.completion_tokens
            cost = f"{spent.requests} request{'' if spent.requests == 1 else 's'}, {tokens:,} tokens"
            if spent.usd is not None:
                cost += f", {spent.usd:.2g} USD"
            note = f"a model wrote the template: {proposal.summary} ({points} points; {cost})"
            return ModelTemplate(self._program, found, proposal.summary), (note,)
        return None

    def _drop(self, summary: str, reason: str) -> None:
        self._reason = f"{summary}: {reason}"
        self._proposer.drop(self._program, summary, reason)

    def _none(self, reason: str = "") -> NoTemplate:
        if isinstance(self._opened, BatchClient) and self._opened.deferred:
            what = "the question for a template is waiting in the batch for its answer"
            return TemplateWaits(what, "--llm", "run the same command again once responses.jsonl is in that folder")
        reason = reason or self._reason or "its answers leave nothing open"
        return NoTemplate(f"the model wrote no template that can be searched: {reason}", "--llm")

    def close(self) -> None:
        """Ask nothing more, close the files."""
        for part in self._parts:
            if close := getattr(part, "close", None):
                close()


def _templates(
    program: Program, proposals: tuple[Proposal, ...], spec: KernelSpec, spec_path: str | None
) -> Iterator[tuple[Proposal, ConstantTemplate | OptimlError]]:
    for proposal in proposals:
        try:
            found = declared(edit_program(program, proposal.edits), spec, spec_path)
        except OptimlError as error:
            yield proposal, error
            continue
        yield proposal, found if found is not None else OptimlError("it leaves nothing open")

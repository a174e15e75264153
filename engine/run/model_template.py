"""A template that a model writes: it refactors a kernel so that sizes are named constants, and the tuner searches their values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from engine.cuda.edit import edit_program
from engine.cuda.kernel import Edit, Span
from engine.errors import OptimlError
from engine.llm.budget import BudgetedClient, LlmBudget
from engine.llm.cassette import Recorder
from engine.llm.chat import ChatClient, Fault
from engine.llm.node_context import make_context
from engine.llm.prompts import Telling
from engine.llm.proposer import LlmOptions, LlmProposer
from engine.llm.session import EXCHANGES, SAME, LlmSettings, door_of
from engine.llm.techniques import fitting
from engine.model import Program, Target
from engine.rewrite.proposal import Proposal
from engine.search.tree import Tree
from engine.spec.kernel_spec import KernelSpec
from engine.tune.chosen_template import NoTemplate
from engine.tune.declare import declared
from engine.tune.feasible import feasible
from engine.tune.space import Point, Space
from engine.tune.template import ConstantTemplate, Figures, Launches, tunable

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
    def space(self) -> Space:
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


def ask_for_template(
    settings: LlmSettings, program: Program, spec: KernelSpec, spec_path: str | None, target: Target, out: Path
) -> tuple[ModelTemplate, tuple[str, ...]]:
    """The first template of a model's answers that can be searched, and a note. Exchanges are recorded in `out`.

    Raises NoTemplate with the last reason where there is none, UsageError and MachineError where the model cannot be asked.
    """
    budget = LlmBudget(settings.limit, settings.price)
    opened = door_of(settings)
    client: ChatClient = BudgetedClient(opened, budget)
    if settings.replay is None:
        client = Recorder(client, out / EXCHANGES, prompts=settings.prompts, resume=False, price=settings.price)
    plan_model = settings.model if settings.plan_model == SAME else settings.plan_model
    telling = Telling(templates=True, parts=settings.parts)
    asked = LlmOptions(settings.model, plan_model, 0, settings.answer_tokens, settings.schema, telling)
    proposer = LlmProposer(client, asked)
    reason = ""
    try:
        context = make_context(Tree(program, lambda of: [], 0).root, spec, target, counters=())
        context = replace(context, approach=_APPROACH, techniques=fitting(context.place, ()))
        for round in range(_ROUNDS):
            proposed = proposer.propose(context, round=round)
            reason = proposed.what or reason
            for proposal, found in _templates(program, proposed.proposals, spec, spec_path):
                try:
                    if isinstance(found, OptimlError):
                        raise found
                    tunable(found)
                    points = len(feasible(found, target).points)
                except OptimlError as error:
                    reason = f"{proposal.summary}: {error.what}"
                    proposer.drop(program, proposal.summary, error.what)
                    continue
                note = f"a model wrote the template: {proposal.summary} ({points} points)"
                return ModelTemplate(program, found, proposal.summary), (note,)
            if any(fault in _FINAL for fault in proposed.faults):
                break
    except LookupError as error:
        reason = f"the kernel cannot be read: {error}"
    finally:
        for part in (client, opened):
            if close := getattr(part, "close", None):
                close()
    raise NoTemplate(f"the model wrote no template: {reason or 'its answers leave nothing open'}", "--llm")


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

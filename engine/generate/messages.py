"""The messages of generation, from templates; what users and models wrote stands in them as data, fenced and bounded."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.generate.strategies import AuthorStrategy
from engine.generate.task import MOST_LAUNCHES, TYPES, Task, described
from engine.llm.chat import Message
from engine.llm.prompts import rates
from engine.llm.templates import prompts_in
from engine.model import Target

_PROMPTS = Path(__file__).parent / "prompts"
_MOST_REFERENCE, _MOST_PLAN, _MOST_DETAIL = 24_000, 6_000, 3_000  # characters


class Prompts:
    """Messages about one sentence. `reference` is the text of the user's reference, "" without one."""

    def __init__(self, sentence: str, target: Target, reference: str = "", function: str = "") -> None:
        self._target, self._function = target, function
        # The mark depends on the texts it stands around, so these cannot hold it.
        self._fence = "data-" + hashlib.sha256(f"{sentence}\0{reference}".encode()).hexdigest()[:12]
        self._sentence = self._data(sentence, 4_000)
        self._reference = self._data(reference, _MOST_REFERENCE)
        self.lessons: Sequence[str] = ()  # of earlier runs, for plans and kernels

    def _data(self, text: str, most: int) -> str:
        cut = text if len(text) <= most else text[:most] + "\n(cut)"
        return cut.replace(self._fence, "")

    def task(self, required: Sequence[str], optional: Sequence[str]) -> tuple[Message, ...]:
        """Ask for the task."""
        system = self._render(
            "task_system.jinja",
            types=list(TYPES),
            required=list(required),
            optional=list(optional),
            most_launches=MOST_LAUNCHES,
        )
        user = self._render("task.jinja", reference=self._reference, function=self._function)
        return Message("system", system), Message("user", user)

    def reference(self, task: Task) -> tuple[Message, ...]:
        """Ask for a reference."""
        parameters = [*(a.name for a in task.inputs), *(s for s in task.time[0].sizes)]
        outputs = [a.name for a in task.outputs]
        system = self._render("reference_system.jinja", parameters=parameters, outputs=outputs)
        user = self._render("reference.jinja", task=described(task))
        return Message("system", system), Message("user", user)

    def plan(self, task: Task, strategy: AuthorStrategy, reference: str) -> tuple[Message, ...]:
        """Ask for a plan in one strategy."""
        system = self._render("plan_system.jinja", strategy=strategy, launches=len(task.launches))
        return Message("system", system), Message("user", self._kernel(task, reference, ""))

    def kernel(self, task: Task, reference: str, plan: str) -> tuple[Message, ...]:
        """Ask for a kernel by a plan."""
        user = self._kernel(task, reference, plan)
        system = self._render("kernel_system.jinja", launches=len(task.launches))
        return Message("system", system), Message("user", user)

    def repair(self, ending: str, detail: str = "") -> Message:
        """Send an answer back with what is wrong."""
        return Message("user", self._render("repair.jinja", ending=ending, detail=self._data(detail, _MOST_DETAIL)))

    def _kernel(self, task: Task, reference: str, plan: str) -> str:
        arguments = []
        for a in task.arguments:
            what = f"{' x '.join(a.shape)}, row-major" if a.role != "scalar" else "a number"
            arguments.append(f"{a.name}: {a.type}, {a.told_role}, {what}")
        cases = [", ".join(f"{k} = {v}" for k, v in case.sizes.items()) for case in task.time]
        return self._render(
            "kernel.jinja", signatures=task.signatures, arguments=arguments, cases=cases, target=self._target,
            conditions=task.conditions, lessons=self.lessons, rates=rates(self._target.arch),
            reference=self._data(reference, _MOST_REFERENCE), plan=self._data(plan, _MOST_PLAN),
        )  # fmt: skip

    def _render(self, name: str, **values: Any) -> str:
        return prompts_in(_PROMPTS).get_template(name).render(fence=self._fence, sentence=self._sentence, **values)

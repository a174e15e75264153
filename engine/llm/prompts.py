"""The messages for a model, from templates, under a set number of tokens."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from engine.errors import OptimlError
from engine.llm.chat import Message, estimated_tokens
from engine.llm.node_context import Context, launch_text, source_of
from engine.llm.templates import prompts_in

if TYPE_CHECKING:
    from engine.llm.judge import Judged

Profile = Literal["none", "raw", "diagnosis"]

PROFILES: tuple[Profile, ...] = ("none", "raw", "diagnosis")
# A kernel of 400 lines with all that is said about it, and room for a repair in windows of 32,000. Ours.
MOST_TOKENS = 12_000
MOST_PROPOSALS = 3
_PROMPTS = Path(__file__).parent / "prompts"
_MOST_DETAIL = 3_000  # characters of a compiler's complaint
_MOST_PLAN = 6_000  # characters
_FIGURE = re.compile(r"(?<![\w.])\d[\w.]*")


class PromptError(OptimlError):
    """A prompt that cannot be made short enough: the kernel alone is over the limit."""


def propose(
    context: Context, *, profile: Profile = "diagnosis", most_tokens: int = MOST_TOKENS, templates: bool = False
) -> tuple[Message, ...]:
    """System and user message that ask for edits of the context's program.

    With `templates` they say how an edit leaves figures open, for a search that has the tuner. Over the limit memory goes first,
    then the differences of the lineage, what was tried, and host code. Raises PromptError where the kernel alone is too long, and
    MachineError without jinja2.
    """
    fence = fence_for(context)
    values = {"fence": fence, "proposals": MOST_PROPOSALS, "counters": context.place.counters, "templates": templates}
    system = Message("system", _render("system.jinja", **values))
    for left_out in range(5):
        user = Message("user", _render("propose.jinja", **_values(context, profile, fence, left_out)))
        if estimated_tokens(system.content) + estimated_tokens(user.content) <= most_tokens:
            return system, user
    raise PromptError(f"the kernel does not fit into a prompt of {most_tokens} tokens", context.program.kernel_file)


def plan(context: Context, *, profile: Profile = "diagnosis", most_tokens: int = MOST_TOKENS) -> tuple[Message, ...]:
    """System and user message that ask for plans instead of code. Raises as `propose` does."""
    system, user = propose(context, profile=profile, most_tokens=most_tokens)
    text = _render("plan_system.jinja", fence=fence_for(context), proposals=MOST_PROPOSALS)
    return Message(system.role, text), user


def planned(context: Context, messages: tuple[Message, ...], text: str) -> tuple[Message, ...]:
    """The messages of `propose` with a plan, a bounded part of it, beside the source."""
    *before, user = messages
    told = text if len(text) <= _MOST_PLAN else text[:_MOST_PLAN] + "\n(cut)"
    fence = fence_for(context)
    told = told.replace(fence, "")
    return (*before, Message("user", user.content + "\n" + _render("code.jinja", fence=fence, plan=told)))


def judge(
    context: Context, edits: Sequence[Judged], *, profile: Profile = "diagnosis", most_tokens: int = MOST_TOKENS
) -> tuple[Message, ...]:
    """System and user message that ask for scores of edits. Over the limit the differences go. Raises PromptError."""
    fence = fence_for(context)
    system = Message("system", _render("judge_system.jinja", fence=fence))
    for diffs in (True, False):
        shown = [
            {"key": e.key, "summary": e.summary, "diff": e.diff.replace(fence, "") if diffs else ""} for e in edits
        ]
        values = _values(context, profile, fence, 0 if diffs else 4)
        user = Message("user", _render("judge.jinja", edits=shown, **values))
        if estimated_tokens(system.content) + estimated_tokens(user.content) <= most_tokens:
            return system, user
    raise PromptError(f"the kernel does not fit into a prompt of {most_tokens} tokens", context.program.kernel_file)


def repair(context: Context, ending: str, *, idea: str = "", detail: str = "") -> Message:
    """The message that sends a failed edit back: how it ended, and the first error with its lines (`detail`)."""
    text = detail if len(detail) <= _MOST_DETAIL else detail[:_MOST_DETAIL] + "\n(cut)"
    return Message("user", _render("repair.jinja", fence=fence_for(context), ending=ending, idea=idea, detail=text))


def fence_for(context: Context) -> str:
    """The mark around text that is data. It depends on the program's own bytes, so these cannot hold it."""
    return "data-" + hashlib.sha256(context.program.digest.encode()).hexdigest()[:12]


def _values(context: Context, profile: Profile, fence: str, left_out: int) -> dict[str, Any]:
    spec, place = context.spec, context.place
    arguments = []
    for argument in spec.arguments:
        size = f"{argument.size} elements" if argument.role != "scalar" else f"value {argument.value or argument.name}"
        arguments.append(f"{argument.name}: {argument.type}, {argument.role}, {size}")
    cases = []
    for i, case in enumerate(spec.time):
        sizes = ", ".join(f"{name} = {value}" for name, value in case.sizes.items())
        launches = "; ".join(launch_text(site.configs[i]) for site in place.sites if i < len(site.configs))
        cases.append(f"{sizes} (weight {case.weight:g}){': ' + launches if launches else ''}")
    elsewhere = [
        {
            "path": _path(launch.path),
            "text": _one_line(context.program.files[launch.path][launch.span.start : launch.span.end]),
        }
        for site in place.sites
        for launch in site.launches
        if launch.path != context.program.kernel_file
    ]
    source = source_of(context, short=left_out >= 4)
    return {
        "fence": fence,
        "kernels": [site.kernel.name for site in place.sites],
        "path": _path(context.program.kernel_file),
        "target": context.target,
        "arguments": arguments,
        "cases": cases,
        "source": source,
        "launches": elsewhere,
        "lineage": [
            {"name": a.name, "standing": a.standing, "diff": a.diff if left_out < 2 else ""} for a in context.lineage
        ],
        "profile": profile,
        "diagnosis": [_with_line(s, context, fence) for s in context.diagnosed.sentences],
        "counters": sorted(context.diagnosed.counters.items()),
        "tried": context.tried if left_out < 3 else (),
        "memory": context.memory if left_out < 1 else (),
        "branch": replace(context.branch, diff=context.branch.diff.replace(fence, ""))
        if context.branch is not None and left_out < 2
        else None,
        "approach": context.approach if context.branch is None or left_out < 2 else "",
    }


def _path(path: str) -> str:
    return re.sub(r"[^\w./-]", "_", path)


def _one_line(data: bytes) -> str:
    return " ".join(data.decode("utf-8", "replace").split())[:400]


def _with_line(sentence: str, context: Context, fence: str) -> str:
    """A sentence that names a line of the file, with that line: the source is shown without numbers."""
    match = re.search(r"\bline (\d{1,7})\b", sentence)
    lines = context.program.data.split(b"\n")
    if match is None or not 1 <= int(match[1]) <= len(lines):
        return sentence
    code = _one_line(lines[int(match[1]) - 1])
    return f"{sentence} (<{fence}> {code} </{fence}>)" if code and "optiml:" not in code else sentence


def lines_around(data: bytes, line: int, *, around: int = 3) -> str:
    """Some lines of a file, the middle one marked; spec lines left out. `line` is 1-based."""
    shown = []
    for number, text in enumerate(data.decode("utf-8", "replace").split("\n"), 1):
        if abs(number - line) <= around and not re.match(r"\s*//\s*optiml:", text):
            shown.append(f"{'>' if number == line else ' '} {number:4} {text.rstrip()}")
    return "\n".join(shown)


def without_figures(reason: str) -> str:
    """Why a program was refused before compiling, for a model: a launch is refused in the first case that it has no value in, and no
    size of a case is told."""
    return _FIGURE.sub("…", reason)


def _render(name: str, **values: Any) -> str:
    return prompts_in(_PROMPTS).get_template(name).render(values)

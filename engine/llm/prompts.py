"""The messages for a model, from templates, under a set number of tokens."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from engine.errors import OptimlError, UsageError
from engine.llm.chat import BYTES_PER_TOKEN, Message, estimated_tokens
from engine.llm.failures import Failed
from engine.llm.node_context import Context, launch_text, source_of
from engine.llm.templates import prompts_in
from engine.predict.targets import figures_for

if TYPE_CHECKING:
    from engine.llm.judge import Judged

Profile = Literal["none", "raw", "diagnosis"]

PROFILES: tuple[Profile, ...] = ("none", "raw", "diagnosis")
# A kernel of 400 lines with all that is said about it, and room for a repair in windows of 32,000. Ours.
MOST_TOKENS = 12_000
MOST_PROPOSALS = 3
# The most tokens of each part that is not always told, by what one kernel's own text leaves of a prompt. Ours.
PARTS: Mapping[str, int] = {
    "lineage": 2_500, "tried": 1_000, "memory": 600, "techniques": 2_400, "branch": 1_500, "diagnosis": 1_200,
}  # fmt: skip
DROPPED = ("memory", "techniques", "lineage", "branch", "tried")  # the first that goes where a prompt is too long
_OF_THE_PLANNER = ("memory", "techniques", "branch", "tried")
_PROMPTS = Path(__file__).parent / "prompts"
_MOST_DETAIL = 1_500  # tokens of a compiler's complaint
_MOST_PLAN = 3_000  # tokens
_PRODUCT = 2 * 16 * 8 * 8  # operations of a warp's matrix instruction that `Figures.product_clocks` is of


class PromptError(OptimlError):
    """A prompt that cannot be made short enough: the kernel alone is over the limit."""


@dataclass(frozen=True)
class Telling:
    """How much a prompt tells: `profile` of the counters, at most `most_tokens` in all, `parts` tokens of each part (0: none of it).

    With `templates` it says how an edit leaves sizes open, for a search that has the tuner.
    """

    profile: Profile = "diagnosis"
    most_tokens: int = MOST_TOKENS
    templates: bool = False
    parts: Mapping[str, int] = field(default_factory=lambda: PARTS)


TOLD = Telling()


def propose(context: Context, telling: Telling = TOLD, *, plan: str = "") -> tuple[Message, ...]:
    """System and user message that ask for edits of the context's program.

    With a `plan`, a bounded part of it, they ask for that as code and leave out what was for the planner. Over the limit whole
    parts go, in the order of `DROPPED`, then host code. Raises PromptError where the kernel alone is too long, and MachineError
    without jinja2.
    """
    system = _system(context, telling)
    if plan:
        telling = replace(telling, parts={**telling.parts, **dict.fromkeys(_OF_THE_PLANNER, 0)})
        plan = _cut(plan, _MOST_PLAN).replace(fence_for(context), "")
    return _fitted(system, "propose.jinja", context, telling, plan=plan)


def plan(context: Context, telling: Telling = TOLD) -> tuple[Message, ...]:
    """System and user message that ask for plans instead of code. Raises as `propose` does."""
    text = _render("plan_system.jinja", fence=fence_for(context), proposals=MOST_PROPOSALS)
    return _fitted(Message("system", text), "propose.jinja", context, telling, plan="")


def debug(context: Context, failed: Failed, telling: Telling = TOLD) -> tuple[Message, ...]:
    """System and user message that ask to correct an edit of the context's program that failed. Raises as `propose` does."""
    fence = fence_for(context)
    shown = replace(
        failed, diff=failed.diff.replace(fence, ""), detail=_cut(failed.detail, _MOST_DETAIL).replace(fence, "")
    )
    return _fitted(_system(context, telling, correcting=True), "debug.jinja", context, telling, failed=shown)


def judge(context: Context, edits: Sequence[Judged], telling: Telling = TOLD) -> tuple[Message, ...]:
    """System and user message that ask for scores of edits. Over the limit the differences go. Raises PromptError."""
    fence = fence_for(context)
    system = Message("system", _render("judge_system.jinja", fence=fence))
    for diffs in (True, False):
        shown = [
            {"key": e.key, "summary": e.summary, "diff": e.diff.replace(fence, "") if diffs else ""} for e in edits
        ]
        with contextlib.suppress(PromptError):
            return _fitted(system, "judge.jinja", context, telling, edits=shown)
    raise _too_long(context, telling)


def again(problem: str) -> Message:
    """The message that sends an answer back that could not be used."""
    return Message("user", _render("again.jinja", problem=problem))


def parse_parts(text: str) -> Mapping[str, int]:
    """The parts of "techniques=0,memory=300", the others as they are. Raises UsageError."""
    parts = dict(PARTS)
    for item in filter(None, text.split(",")):
        name, _, tokens = item.partition("=")
        if name.strip() not in PARTS or not tokens.strip().isdecimal() or len(tokens) > 8:
            do = f"expected PART=TOKENS with one of {', '.join(PARTS)}"
            raise UsageError(f"'{item[:40]}' is not a prompt part with a token count", "--prompt-parts", do)
        parts[name.strip()] = int(tokens)
    return parts


def _system(context: Context, telling: Telling, *, correcting: bool = False) -> Message:
    values = {
        "fence": fence_for(context), "proposals": MOST_PROPOSALS, "counters": context.place.counters,
        "templates": telling.templates, "correcting": correcting,
    }  # fmt: skip
    return Message("system", _render("system.jinja", **values))


def _fitted(system: Message, template: str, context: Context, telling: Telling, **more: Any) -> tuple[Message, ...]:
    """System and user message with as many parts as there is room for."""
    for left_out in range(len(DROPPED) + 2):
        parts = {**PARTS, **telling.parts, **dict.fromkeys(DROPPED[:left_out], 0)}
        values = _values(context, telling.profile, parts, short=left_out > len(DROPPED))
        user = Message("user", _render(template, **values, **more))
        if estimated_tokens(system.content) + estimated_tokens(user.content) <= telling.most_tokens:
            return system, user
    raise _too_long(context, telling)


def _too_long(context: Context, telling: Telling) -> PromptError:
    return PromptError(
        f"the kernel does not fit in a prompt of {telling.most_tokens} tokens", context.program.kernel_file
    )


def fence_for(context: Context) -> str:
    """The mark around text that is data. It depends on the program's own bytes, so these cannot hold it."""
    return "data-" + hashlib.sha256(context.program.digest.encode()).hexdigest()[:12]


def _values(context: Context, profile: Profile, parts: Mapping[str, int], *, short: bool) -> dict[str, Any]:
    fence = fence_for(context)
    spec, place = context.spec, context.place
    arguments = []
    for argument in spec.arguments:
        size = f", {argument.size} elements" if argument.role != "scalar" else ""
        if argument.role == "scalar" and argument.value not in (None, "", argument.name):
            size = f", value {argument.value}"
        arguments.append(f"{argument.name}: {argument.type}, {argument.declared_role}{size}")
    cases = []
    for i, case in enumerate(spec.time):
        sizes = ", ".join(f"{name} = {value}" for name, value in case.sizes.items())
        launches = "; ".join(launch_text(site.configs[i]) for site in place.sites if i < len(site.configs))
        weight = f" (weight {case.weight:g})" if len(spec.time) > 1 else ""
        cases.append(f"{sizes}{weight}{': ' + launches if launches else ''}")
    elsewhere = [
        {
            "path": _path(launch.path),
            "text": _one_line(context.program.files[launch.path][launch.span.start : launch.span.end]),
        }
        for site in place.sites
        for launch in site.launches
        if launch.path != context.program.kernel_file
    ]
    lineage, room = [], parts["lineage"]
    for ancestor in context.lineage:
        diff = _cut(ancestor.diff.replace(fence, ""), room) if room else ""
        room = max(0, room - estimated_tokens(diff))
        lineage.append(replace(ancestor, diff=diff))
    branch = context.branch if parts["branch"] else None
    techniques = [one for one in context.techniques if parts["techniques"]]
    return {
        "fence": fence,
        "kernels": [site.kernel.name for site in place.sites],
        "path": _path(context.program.kernel_file),
        "target": context.target,
        "rates": rates(context.target.arch),
        "arguments": arguments,
        "cases": cases,
        "source": source_of(context, short=short),
        "launches": elsewhere,
        "fixed": [site.kernel.name for site in place.sites if not site.launch_open],
        "lineage": lineage,
        "floor": context.floor,
        "review": context.review,
        "profile": profile,
        "diagnosis": _within([_with_line(s, context, fence) for s in context.diagnosed.sentences], parts["diagnosis"]),
        "counters": sorted(context.diagnosed.counters.items()),
        "tried": _within(context.tried, parts["tried"]),
        "memory": _within(context.memory, parts["memory"]),
        "techniques": techniques[
            : len(_within([f"{t.title}{t.when}{t.pitfalls}{t.code}" for t in techniques], parts["techniques"]))
        ],
        "branch": replace(branch, diff=_cut(branch.diff.replace(fence, ""), parts["branch"])) if branch else None,
        "approach": context.approach if context.branch is None or branch else "",
    }


def _within(texts: Sequence[str], tokens: int) -> list[str]:
    """The first of some texts, as many as there are tokens for."""
    kept: list[str] = []
    for text in texts:
        tokens -= estimated_tokens(text)
        if tokens < 0:
            break
        kept.append(text)
    return kept


def _cut(text: str, tokens: int) -> str:
    """A text, the end left out beyond so many tokens."""
    if estimated_tokens(text) <= tokens:
        return text
    return text.encode()[: tokens * BYTES_PER_TOKEN].decode("utf-8", "ignore") + "\n(cut)"


def rates(arch: str) -> str:
    """What the target moves and computes, in words; nothing for one without a performance model."""
    try:
        known = figures_for(arch)
    except UsageError:
        return ""
    per_s = 2 * known.fp32_lanes * known.target.multiprocessors * known.clock_hz
    products = _PRODUCT / known.product_clocks * known.schedulers * known.target.multiprocessors * known.clock_hz
    return (
        f"{known.name}: {known.clock_hz / 1e9:.2f} GHz, {known.dram_bytes_s / 1e12:.2f} TB/s to device memory as a copy reaches it, "
        f"{known.l2_bytes >> 20} MiB of L2 at {known.l2_bytes_s / 1e12:.1f} TB/s, {per_s / 1e12:.0f} TFLOP/s in fp32, "
        f"{products / 1e12:.0f} in TF32 on tensor cores."
    )


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


def _render(name: str, **values: Any) -> str:
    return prompts_in(_PROMPTS).get_template(name).render(values)

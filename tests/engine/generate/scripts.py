"""Replies for the scripted server: the recorded answers of benchmarks/generate, found by what a question asks for."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from engine.generate.strategies import STRATEGIES
from tests.engine.llm.server import Handler, completion

RECORDED = Path(__file__).resolve().parents[3] / "benchmarks" / "generate"


def question(body: Mapping[str, Any], folder: Path) -> str:
    """The name of the recorded answer that a request asks for: "task", "draft", "memory-plan", "memory", "memory-repair-1"."""
    system, user = body["messages"][0]["content"], body["messages"][1]["content"]
    again = (len(body["messages"]) - 2) // 2
    if system.startswith("You turn a sentence"):
        return f"task-repair-{again}" if again else "task"
    if system.startswith("You write a reference"):
        return "draft"
    match = re.search(r"Your way of thinking: ([^.]+)\.", system)
    if match:
        return next(s.name for s in STRATEGIES if s.title == match[1]) + "-plan"
    for strategy in STRATEGIES:
        plan = folder / f"{strategy.name}-plan.md"
        if plan.exists() and plan.read_text().strip() in user:
            return strategy.name + (f"-repair-{again}" if again else "")
    raise AssertionError("a question that nobody has an answer for")


def recorded(
    task: str, instead: Mapping[str, str | Callable[[Handler], None]] | None = None
) -> Callable[[Handler], None]:
    """A reply from the recorded answers of one task, some of them replaced. Drafts come in order."""
    folder, drafts = RECORDED / task, [0]
    other = dict(instead or {})

    def reply(handler: Handler) -> None:
        name = question(handler.server.requests[-1], folder)
        if name == "draft":
            drafts[0] += 1
            name = f"draft-{drafts[0]}"
        answer = other.get(name)
        if callable(answer):
            answer(handler)
            return
        text = answer if answer is not None else (folder / f"{name}.md").read_text()
        handler.send(200, completion(text))

    return reply


def asked(server: Any, task: str) -> list[str]:
    """What a server was asked, in order."""
    return [question(body, RECORDED / task) for body in server.requests]


def as_json(kernel: str, grid: list[str], block: list[str], shared: str = "0") -> str:
    """A kernel as an answer by the schema."""
    one = {
        "idea": "Try something", "counter": "", "direction": "down", "edits": [], "kernel": kernel,
        "launch": {"grid": grid, "block": block, "shared": shared},
    }  # fmt: skip
    return json.dumps({"proposals": [one]})


def told_to(server: Any) -> str:
    """Everything that a model was told, its own answers left out."""
    return "\n".join(m["content"] for body in server.requests for m in body["messages"] if m["role"] != "assistant")

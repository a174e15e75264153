"""The recorded set of a model's answers: what belongs to which question, and what became of it.

Lines of `<answers>/<kernel>/round<N>.jsonl` are lines of a batch's output file with what their question was about, its label and
the round. A recorded answer belongs to a question by its `custom_id`, else by what the question is about (the edits from the
original to the program) and its place among the questions on it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.examples import ROOT
from engine.llm.batch import custom_id
from engine.llm.chat import estimated_tokens

FOLDERS = (ROOT / "examples", ROOT / "benchmarks" / "suite")
MODEL = "recorded"
_FENCE = re.compile(r"data-[0-9a-f]{12}")


def recording(folder: Path, rounds: int) -> list[dict[str, Any]]:
    """The answers of one kernel up to a round, in order. Exits where a line is none."""
    found = []
    for number in range(1, rounds + 1):
        path = folder / f"round{number}.jsonl"
        for line in lines_of(path):
            if not {"custom_id", "response", "about", "label"} <= set(line):
                sys.exit(f"{path}: a line lacks custom_id, response, about or label; pack it anew")
            found.append({**line, "round": number})
    return found


def match(question: Mapping[str, Any], recorded: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The recorded answer to a question that has another name now: about the same edits, at the same place."""
    for line in recorded:
        if line["about"] == question["about"] and place(line["label"]) == place(question["label"]):
            return line
    return None


def answered_names(exchanges: Sequence[Mapping[str, Any]]) -> set[str]:
    """The names of the questions that a run had an answer for."""
    return {custom_id(line["label"], MODEL) for line in exchanges if "answer" in line}


def rediscovered(
    recorded: Sequence[dict[str, Any]], renamed: Mapping[str, str], index: Sequence[Mapping[str, Any]],
    exchanges: Sequence[Mapping[str, Any]],
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """Answers that found no question by their names, by the names of open questions that are about the same."""
    waiting = [r for r in recorded if r["custom_id"] not in {*answered_names(exchanges), *renamed}]
    found: dict[str, dict[str, Any]] = {}
    for question in index:
        line = match(question, waiting)
        if line is not None:
            waiting.remove(line)
            found[question["custom_id"]] = line
    return found


def place(label: str) -> tuple[str, ...]:
    """A label without the hashes of programs: what kind of question, and which of several."""
    kind, *rest = label.split("/")
    return (kind, *rest[1:]) if kind == "propose" else (kind, rest[-1])


def write_responses(path: Path, given: Mapping[str, Mapping[str, Any]]) -> None:
    """A batch's output file with these answers, under the names that the questions have."""
    kept = ("id", "response", "error")
    lines = [{**{k: line.get(k) for k in kept}, "custom_id": name} for name, line in given.items()]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def verdicts(
    recorded: Sequence[Mapping[str, Any]], renamed: Mapping[str, str], exchanges: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """What became of each recorded answer: given to its question, or not asked for."""
    names = answered_names(exchanges)
    given = [line for line in recorded if renamed.get(line["custom_id"], line["custom_id"]) in names]
    lost = [line for line in recorded if line not in given]
    return {
        "recorded": len(recorded),
        "given": len(given),
        "by_what_they_are_about": sorted(renamed),
        "not_asked_for": [
            {"round": line["round"], "custom_id": line["custom_id"], "about": line["about"], "label": line["label"]}
            for line in lost
        ],
    }


def pack(draft: Path, answers: Path, kernel: str, number: int, index: Path) -> int:
    """Turn a draft into `<answers>/<kernel>/round<number>.jsonl`. Exit code 2 where an answer is for no open question."""
    known = {line["custom_id"]: line for line in lines_of(index / "index.jsonl")}
    parts = re.split(r"^=== (\S+)[^\n]*\n", draft.read_text(encoding="utf-8"), flags=re.M)
    lines = []
    for name, text in zip(parts[1::2], parts[2::2], strict=True):
        if name not in known:
            print(f"{draft}: no open question is called {name}", file=sys.stderr)
            return 2
        message = {"role": "assistant", "content": text.strip("\n"), "refusal": None}
        body = {
            "object": "chat.completion",
            "model": MODEL,
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
        }
        lines.append(
            {
                "id": f"batch_req_{name}",
                **known[name],
                "response": {"status_code": 200, "request_id": name, "body": body},
                "error": None,
            }
        )
    if not lines:
        print(f"{draft}: holds no answer; each begins with a line === <custom_id>", file=sys.stderr)
        return 2
    path = answers / kernel / f"round{number}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    print(f"{len(lines)} answers in {path}")
    return 0


def prompts(exchanges: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The prompts that had no answer at hand: estimated tokens by label, and how many hold a diagnosis, or counters."""
    asked = {
        line["label"]: [m["content"] for m in line["messages"]]
        for line in exchanges
        if line.get("error", {}).get("fault") == "deferred" and "messages" in line
    }
    return {
        "tokens": {label: sum(map(estimated_tokens, texts)) for label, texts in sorted(asked.items())},
        "with_diagnosis": sum(any("## What holds it back" in text for text in texts) for texts in asked.values()),
        "with_counters": sum(any("## Counters" in text for text in texts) for texts in asked.values()),
    }


def questions(batch: Path) -> str:
    """The open questions in words, for whoever answers them. What all are told alike stands once, at the top."""
    about = {line["custom_id"]: line for line in lines_of(batch / "index.jsonl")}
    tasks: dict[str, str] = {}  # what a question begins with, but for the marks around its data, and its heading
    parts = []
    for request in lines_of(batch / "requests.jsonl"):
        name, (system, *messages) = request["custom_id"], request["body"]["messages"]
        task = tasks.setdefault(_FENCE.sub("data-…", system["content"]), f"Task {chr(ord('A') + len(tasks))}")
        parts.append(f"=== {name}\n\n{task}. About: {about[name]['about']} ({about[name]['label']})\n")
        parts += [f"--- {m['role']}\n\n{m['content']}\n" for m in messages]
    return "\n".join([f"{task}\n\n{text}\n" for text, task in tasks.items()] + parts)


def lines_of(path: Path) -> list[dict[str, Any]]:
    """A file of JSON lines; nothing where it is not there. Exits where a line is none."""
    if not path.exists():
        return []
    found = []
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            value = json.loads(text)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            sys.exit(f"{path}:{number}: is no JSON object")
        found.append(value)
    return found


def with_answers(answers: Path) -> list[Path]:
    """The example and suite kernels that the recorded set has answers for. Exits where there is no such kernel."""
    found = []
    for name in sorted(path.parent.name for path in answers.glob("*/round1.jsonl")):
        there = [folder / f"{name}.cu" for folder in FOLDERS if (folder / f"{name}.cu").is_file()]
        if not there:
            sys.exit(f"{answers / name}: no example and no suite kernel is called so")
        found.append(there[0])
    return found


def provenance(answers: Path) -> Any:
    """Who wrote the answers, when and how. Exits where that is not stated."""
    path = answers / "provenance.json"
    if not path.is_file():
        if any(answers.glob("*/round*.jsonl")):
            sys.exit(f"{path}: the answers' provenance is not stated")
        return None
    stated = json.loads(path.read_text(encoding="utf-8"))
    lacking = [key for key in ("author", "date", "how") if not stated.get(key)]
    if lacking:
        sys.exit(f"{path}: lacks {', '.join(lacking)}")
    return stated

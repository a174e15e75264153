"""A cassette of a model's answers by node: the same question gets the same answer in every arm of a comparison.

    optiml optimize FILE --proposers rules,tuner,llm --llm batch:DIR --llm-model recorded
    python benchmarks/cassette.py questions DIR > questions.md
    python benchmarks/cassette.py pack KERNEL draft.txt --batch DIR
    python benchmarks/cassette.py check

`questions` prints the open questions of a batch's folder as a person, or a model, reads them. `pack` adds the answers of a draft, each
after a line `=== <custom_id>`, to `<answers>/<kernel>/cassette.jsonl`: lines of a recording for `--llm replay:FILE`. `check` reads every
answer, places those at the original program, and prints what cannot be placed and why; exit code 1 where one cannot be read. Who wrote the
answers, and how, is in `<answers>/provenance.json`.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.examples import ROOT
from engine.cuda.edit import edit_program
from engine.cuda.load import load_program
from engine.errors import OptimlError
from engine.llm.answers import EditError, read_answer
from engine.llm.batch import INDEX, REQUESTS, RESPONSES, custom_id
from engine.llm.chat import estimated_tokens
from engine.llm.edits import make_proposal
from engine.llm.node_context import make_context
from engine.llm.proposer import propose_label
from engine.llm.session import COUNTERS
from engine.model import Evaluation, Outcome, Target
from engine.search.tree import Tree
from engine.spec.find import find_spec

ANSWERS = ROOT / "benchmarks" / "answers"
FOLDERS = ("benchmarks/deep", "benchmarks/suite", "examples")
CASSETTE, PROVENANCE = "cassette.jsonl", "provenance.json"
MODEL = "recorded"
_FENCE = re.compile(r"data-[0-9a-f]{12}")


def main(given: Sequence[str] | None = None) -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description="Keep a cassette of a model's answers by node.")
    parser.add_argument("--answers", type=Path, default=ANSWERS, metavar="DIR")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("questions").add_argument("batch", type=Path, metavar="DIR")
    packing = verbs.add_parser("pack")
    packing.add_argument("kernel")
    packing.add_argument("draft", type=Path)
    packing.add_argument("--batch", type=Path, required=True, metavar="DIR", help="the folder with the questions")
    verbs.add_parser("check")
    options = parser.parse_args(given)
    if options.verb == "questions":
        print(questions(options.batch))
        return 0
    if options.verb == "pack":
        return pack(options.kernel, options.draft, options.batch, options.answers)
    return check(options.answers)


def recorded(path: Path) -> dict[str, dict[str, Any]]:
    """The lines of a cassette by label; none where there is no such file."""
    return {line["label"]: line for line in lines_of(path)}


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
            sys.exit(f"{path}:{number}: not a JSON object")
        found.append(value)
    return found


def questions(batch: Path) -> str:
    """The open questions of a batch. Every system message is there once, at the top."""
    tasks: dict[str, str] = {}
    parts = []
    for request in lines_of(batch / REQUESTS):
        system, *messages = request["body"]["messages"]
        task = tasks.setdefault(_FENCE.sub("data-…", system["content"]), f"Task {chr(ord('A') + len(tasks))}")
        parts.append(f"=== {request['custom_id']}\n\n{task}\n")
        parts += [f"--- {m['role']}\n\n{m['content']}\n" for m in messages]
    return "\n".join([f"{task}\n\n{text}\n" for text, task in tasks.items()] + parts)


def pack(kernel: str, draft: Path, batch: Path, answers: Path) -> int:
    """Add a draft's answers to the kernel's cassette. Exit code 2 where one is for no question of the batch; nothing is added then."""
    index = {line["custom_id"]: line for line in lines_of(batch / INDEX)}
    asked = {line["custom_id"]: line["body"]["messages"] for line in lines_of(batch / REQUESTS)}
    parts = re.split(r"^=== (\S+)[^\n]*\n", draft.read_text(encoding="utf-8"), flags=re.M)
    found = list(zip(parts[1::2], parts[2::2], strict=True))
    unknown = [name for name, _ in found if name not in index]
    if unknown or not found:
        print(
            f"{draft}: no open question is called {', '.join(unknown)}" if unknown else f"{draft}: no answer",
            file=sys.stderr,
        )
        return 2
    path = answers / kernel / CASSETTE
    known = recorded(path)
    for name, text in found:
        label = index[name]["label"]
        usage = {
            "prompt_tokens": sum(estimated_tokens(message["content"]) for message in asked.get(name, ())),
            "completion_tokens": estimated_tokens(text),
        }
        answer = {"text": text.strip("\n") + "\n", "model": MODEL, "usage": usage, "elapsed_s": 0.0, "tries": 1}
        known[label] = {"format": 1, "digest": name, "label": label, "about": index[name]["about"], "answer": answer}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line, sort_keys=True) + "\n" for line in known.values()), encoding="utf-8")
    print(f"{len(found)} answers packed, {len(known)} in {path}")
    return 0


def write_batch(folder: Path, lines: Mapping[str, Mapping[str, Any]]) -> None:
    """A folder for `--llm batch:` in which the cassette's answers are at hand."""
    folder.mkdir(parents=True, exist_ok=True)
    responses = []
    for label, line in lines.items():
        message = {"role": "assistant", "content": line["answer"]["text"], "refusal": None}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        body = {"object": "chat.completion", "model": MODEL, "choices": [choice]}
        name = custom_id(label, MODEL)
        responses.append(
            {
                "id": name,
                "custom_id": name,
                "error": None,
                "response": {"status_code": 200, "request_id": name, "body": body},
            }
        )
    for name in (REQUESTS, INDEX):
        (folder / name).unlink(missing_ok=True)
    (folder / RESPONSES).write_text("".join(json.dumps(line) + "\n" for line in responses), encoding="utf-8")


def provenance(answers: Path) -> dict[str, Any]:
    """Who wrote the answers, when and how. Exits where that is not stated."""
    path = answers / PROVENANCE
    if not path.is_file():
        sys.exit(f"{path}: the provenance of the answers is not stated")
    stated: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    missing = [key for key in ("author", "date", "how") if not stated.get(key)]
    if missing:
        sys.exit(f"{path}: {', '.join(missing)} not stated")
    return stated


def check(answers: Path) -> int:
    """Print which edits of recorded answers cannot be placed at the original program. Exit code 1 where an answer cannot be read."""
    total = unread = refused = 0
    paths = sorted(answers.glob(f"*/{CASSETTE}"))
    for path in paths:
        file = file_of(path.parent.name)
        spec, spec_path = find_spec(ROOT, file, None)
        program = load_program(file, spec_file=spec_path, kernels=[step.kernel for step in spec.steps])
        tree = Tree(program, lambda program: [], 0)
        tree.root.evaluation = Evaluation(Outcome.NO_DIFFERENCE)
        original = propose_label(program, program, 0).rpartition("/")[0]
        place = make_context(tree.root, spec, Target(), counters=COUNTERS).place
        for label, line in recorded(path).items():
            total += 1
            try:
                suggestions = read_answer(line["answer"]["text"])
            except EditError as error:
                unread += 1
                print(f"{path.parent.name} {label}: {error.what}")
                continue
            for suggestion in suggestions if label.startswith(f"{original}/") else ():
                try:
                    edit_program(program, make_proposal(suggestion, place).edits)
                except OptimlError as error:
                    refused += 1
                    print(f"{path.parent.name} {label}: {suggestion.idea}: {error.what}")
    print(
        f"{total} answers for {len(paths)} kernels, {unread} cannot be read; {refused} edits of originals cannot be placed"
    )
    return 1 if unread or not total else 0


def file_of(name: str) -> Path:
    """The kernel's file by its name. Exits where there is none."""
    for folder in FOLDERS:
        if (ROOT / folder / f"{name}.cu").is_file():
            return ROOT / folder / f"{name}.cu"
    sys.exit(f"there is no kernel '{name}' in {', '.join(FOLDERS)}")


if __name__ == "__main__":
    sys.exit(main())

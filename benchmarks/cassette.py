"""A cassette of a model's answers by node: the same question gets the same answer in every arm of a comparison.

    python benchmarks/cassette.py questions --rounds 7 benchmarks/deep/attention.cu > questions.md
    python benchmarks/cassette.py pack draft.md
    python benchmarks/cassette.py check

`questions` prints the open questions of a kernel: at the original, and with `--below` at the programs that recorded answers lead to.
They are the engine's prompts without what an evaluation adds (times, the diagnosis), so none is needed to write them. `pack` adds the
answers of a draft, each after a line `=== <kernel> <label>`, to `<answers>/<kernel>/cassette.jsonl`, a recording for
`--llm replay:FILE`. `check` says how many recorded answers hold an edit that can be placed; exit code 1 where one holds none.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.examples import ROOT
from engine.cuda.edit import edit_program
from engine.cuda.load import load_program
from engine.errors import OptimlError
from engine.llm.answers import EditError, read_answer
from engine.llm.approaches import asking_for
from engine.llm.chat import ChatRequest, estimated_tokens
from engine.llm.edits import make_proposal
from engine.llm.node_context import Context, make_context
from engine.llm.prompts import propose
from engine.llm.proposer import propose_label
from engine.llm.session import COUNTERS
from engine.model import Evaluation, Outcome, Target
from engine.search.tree import Node, Tree
from engine.spec.find import find_spec

ANSWERS = ROOT / "benchmarks" / "answers"
FOLDERS = ("benchmarks/deep", "benchmarks/suite", "examples")
CASSETTE = "cassette.jsonl"
MODEL = "recorded"


def main(given: Sequence[str] | None = None) -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description="Keep a cassette of a model's answers by node.")
    parser.add_argument("--answers", type=Path, default=ANSWERS, metavar="DIR")
    verbs = parser.add_subparsers(dest="verb", required=True)
    ask = verbs.add_parser("questions")
    ask.add_argument("files", nargs="+", type=Path, metavar="FILE")
    ask.add_argument("--rounds", type=int, default=1, help="questions for each program (default: 1)")
    ask.add_argument("--below", action="store_true", help="also at the programs of recorded answers")
    verbs.add_parser("pack").add_argument("draft", type=Path)
    verbs.add_parser("check")
    options = parser.parse_args(given)
    if options.verb == "questions":
        for file in options.files:
            print("\n".join(questions(file.resolve(), options.answers, options.rounds, below=options.below)))
        return 0
    if options.verb == "pack":
        return pack(options.draft, options.answers)
    return check(options.answers)


@dataclass(frozen=True)
class Kernel:
    """A kernel with its tree: the original, and below it what recorded answers lead to."""

    file: Path
    tree: Tree

    @classmethod
    def of(cls, file: Path) -> Kernel:
        """The kernel in a file of the checkout. Raises OptimlError."""
        spec, spec_path = find_spec(ROOT, file, None)
        program = load_program(file, spec_file=spec_path, kernels=[step.kernel for step in spec.steps])
        tree = Tree(program, lambda program: [], 0)
        tree.root.evaluation = Evaluation(Outcome.NO_DIFFERENCE)
        return cls(file, tree)

    def context(self, node: Node, round: int) -> Context:
        """The context of a question at a node. Raises OptimlError."""
        spec, _ = find_spec(ROOT, self.file, None)
        return asking_for(make_context(node, spec, Target(), counters=COUNTERS), node, round)

    def label(self, node: Node, round: int) -> str:
        """The label of the exchange that asks at a node."""
        return f"{propose_label(self.tree.root.program, node.program, round)}/0"

    def grow(self, node: Node, text: str) -> list[str]:
        """Add what an answer leads to from a node as its children; why the others cannot be placed."""
        refused = []
        place = self.context(node, 0).place
        for suggestion in read_answer(text):
            try:
                proposal = make_proposal(suggestion, place)
                program = edit_program(node.program, proposal.edits)
            except OptimlError as error:
                refused.append(f"{suggestion.idea}: {error.what}")
                continue
            if program.digest not in self.tree.digests:
                self.tree.add(len(self.tree.nodes), node, proposal, program, Evaluation(Outcome.NO_DIFFERENCE))
        return refused


def recorded(path: Path) -> dict[str, dict[str, Any]]:
    """The lines of a cassette by label; none where there is no such file."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {line["label"]: line for line in map(json.loads, lines)}


def questions(file: Path, answers: Path, rounds: int, *, below: bool) -> Iterator[str]:
    """The open questions of a kernel in words: the system message once, the source once for each program."""
    kernel, known = Kernel.of(file), recorded(answers / file.stem / CASSETTE)
    for node in list(grown(kernel, known)) if below else [kernel.tree.root]:
        shown = ""
        for round in range(rounds):
            label = kernel.label(node, round)
            if label in known:
                continue
            system, user = propose(kernel.context(node, round))
            if not shown:
                yield f"--- {system.content}"
            common = shared(shown, user.content)
            yield f"=== {file.stem} {label}\n{'(as above) …' if common else ''}{user.content[common:]}"
            shown = user.content


def shared(before: str, text: str) -> int:
    """Where a prompt begins to differ from the one before, at a heading; 0 where there was none."""
    length = next(
        (i for i, (a, b) in enumerate(zip(before, text, strict=False)) if a != b), min(len(before), len(text))
    )
    return max(0, text.rfind("\n## ", 0, length)) if before else 0


def grown(kernel: Kernel, known: Mapping[str, Mapping[str, Any]]) -> Iterator[Node]:
    """The programs that the recorded answers lead to, the original first."""
    waiting = [kernel.tree.root]
    while waiting:
        node = waiting.pop(0)
        yield node
        before = len(node.children)
        for round in range(64):
            line = known.get(kernel.label(node, round))
            if line is not None:
                kernel.grow(node, line["answer"]["text"])
        waiting += node.children[before:]


def pack(draft: Path, answers: Path) -> int:
    """Add the answers of a draft to the cassettes. Exit code 2 where one is for no question of its kernel."""
    parts = re.split(r"^=== (\S+) (\S+)[^\n]*\n", draft.read_text(encoding="utf-8"), flags=re.M)
    added = 0
    for name, label, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        kernel, path = Kernel.of(file_of(name)), answers / name / CASSETTE
        known = recorded(path)
        found = next(((n, r) for n in grown(kernel, known) for r in range(64) if kernel.label(n, r) == label), None)
        if found is None:
            print(f"{draft}: {name} has no question {label}", file=sys.stderr)
            return 2
        messages = propose(kernel.context(*found))
        request = ChatRequest(messages, label, MODEL)
        usage = {
            "prompt_tokens": sum(estimated_tokens(m.content) for m in messages),
            "completion_tokens": estimated_tokens(text),
        }
        answer = {"text": text.strip("\n") + "\n", "model": MODEL, "usage": usage, "elapsed_s": 0.0, "tries": 1}
        known[label] = {"format": 1, "digest": request.digest, "label": label, "answer": answer}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(line, sort_keys=True) + "\n" for line in known.values()), encoding="utf-8")
        added += 1
    print(f"{added} answers packed")
    return 0


def check(answers: Path) -> int:
    """Say which recorded answers hold edits that can be placed."""
    total = useless = 0
    for path in sorted(answers.glob(f"*/{CASSETTE}")):
        kernel, known = Kernel.of(file_of(path.parent.name)), recorded(path)
        nodes = {kernel.label(node, round): node for node in grown(kernel, known) for round in range(64)}
        for label, line in known.items():
            total += 1
            try:
                refused = kernel.grow(nodes[label], line["answer"]["text"])
                placed = len(read_answer(line["answer"]["text"])) - len(refused)
            except (EditError, KeyError) as error:
                refused, placed = [str(error)], 0
            useless += not placed
            for reason in refused:
                print(f"{path.parent.name} {label}: {reason}")
    print(
        f"{total} answers for {len(list(answers.glob(f'*/{CASSETTE}')))} kernels, {useless} without an edit that can be placed"
    )
    return 1 if useless or not total else 0


def file_of(name: str) -> Path:
    """The kernel's file by its name. Exits where there is none."""
    for folder in FOLDERS:
        if (ROOT / folder / f"{name}.cu").is_file():
            return ROOT / folder / f"{name}.cu"
    sys.exit(f"there is no kernel '{name}' in {', '.join(FOLDERS)}")


if __name__ == "__main__":
    sys.exit(main())

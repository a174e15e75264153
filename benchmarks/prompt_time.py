"""What building a prompt and reading an answer cost for one proposal, over all examples, and how long the prompts are.

    python benchmarks/prompt_time.py --record benchmarks/results/prompt_time.json

Processor time of one thread: from a node of the tree to the messages (context, template), and from the answer's text to a proposal
that is located in the program and screened. Beside it the tokens of each part of the prompt, found by leaving it out. Every
repetition has another text, so that nothing is parsed once for all of them.
The answer changes one line by a search/replace block, or gives the whole kernel. Exit code 0 when the dearest median of both
together is under 20 ms for each proposal, 1 otherwise.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.examples import ROOT, commit, machine
from engine.cuda.load import load_program
from engine.llm.answers import read_answer
from engine.llm.approaches import asking_for
from engine.llm.chat import estimated_tokens
from engine.llm.edits import make_proposal
from engine.llm.node_context import Context, Diagnosed, make_context, without_spec
from engine.llm.prompts import MOST_TOKENS, PARTS, PROFILES, Telling, propose
from engine.llm.session import COUNTERS
from engine.model import CaseTiming, Evaluation, Measurement, Outcome, Target
from engine.search.tree import Tree
from engine.spec.find import find_spec
from engine.spec.kernel_spec import KernelSpec

SCHEMA = "optiml.prompt_time/2"
MOST_MS = 20.0
_SENTENCES = tuple(f"Finding {i}: {100 - i} % of the peak, where {i} % would do" for i in range(8))


def main(given: Sequence[str] | None = None) -> int:
    """Measure and record; see the module's docstring."""
    parser = argparse.ArgumentParser(description="Measure what prompts and answers cost.")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="kernels (default: examples/*.cu)")
    parser.add_argument("--repeat", type=int, default=20, help="of each measurement (default: 20)")
    parser.add_argument("--record", type=Path, required=True)
    options = parser.parse_args(given)
    files = [f.resolve() for f in options.files] or sorted((ROOT / "examples").glob("*.cu"))
    begin = datetime.datetime.now(datetime.UTC)
    kernels = [measured(file, options.repeat) for file in files]
    worst = max(k["build_ms"] + max(k["read_block_ms"] or 0.0, k["read_kernel_ms"]) for k in kernels)
    record = {
        "schema": SCHEMA,
        "command": ["python", Path(__file__).relative_to(ROOT).as_posix(), *(sys.argv[1:] if given is None else given)],
        "date": begin.isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
        "repeat": options.repeat,
        "summary": {"dearest_ms": worst, "limit_ms": MOST_MS, "held": worst < MOST_MS, "most_tokens": MOST_TOKENS},
        "kernels": kernels,
    }
    options.record.parent.mkdir(parents=True, exist_ok=True)
    options.record.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    print(table(record))
    return 0 if worst < MOST_MS else 1


def measured(file: Path, repeat: int) -> dict[str, Any]:
    """Medians in milliseconds for one kernel, and the prompts' tokens (an upper estimate) for each profile."""
    spec, spec_path = find_spec(ROOT, file, None)
    program = load_program(file, spec_file=spec_path, kernels=[step.kernel for step in spec.steps])
    case = CaseTiming("case", 1.0, 100.0, 100.0, 1.0, 0.99, 1.01, 40)
    numbers = itertools.count()

    def context() -> Context:
        text = program.data + b"\n// text %d\n" % next(numbers)
        tree = Tree(program.replace({program.kernel_file: text}), lambda program: [], 0)
        tree.root.evaluation = Evaluation(Outcome.NO_DIFFERENCE, Measurement((case,), 1.0, 0.99, 1.01))
        return context_of(tree, spec)

    build = median_ms(lambda: propose(context()), repeat)
    fixed = context()
    site = fixed.place.sites[0]
    kernel = site.unit.text(site.kernel.span)
    line = next(
        text for text in reversed(kernel.splitlines()) if kernel.count(text) == 1 and text.strip().endswith(";")
    )
    source = without_spec(program.data)
    search = line if source.count(line) == 1 else ""
    told = {p: tokens(fixed, Telling(p)) for p in PROFILES}
    without = {part: tokens(fixed, Telling(parts={**PARTS, part: 0})) for part in PARTS}
    return {
        "kernel": file.stem,
        "build_ms": build,
        "read_block_ms": median_ms(reader(fixed, search, line, ""), repeat) if search else None,
        "read_kernel_ms": median_ms(reader(fixed, "", line, kernel), repeat),
        "tokens": told,
        "of_parts": {part: told["diagnosis"] - rest for part, rest in without.items()},
    }


def tokens(context: Context, telling: Telling) -> int:
    """The tokens of a question's messages, an upper estimate."""
    return sum(estimated_tokens(message.content) for message in propose(context, telling))


def context_of(tree: Tree, spec: KernelSpec) -> Context:
    """The root's context, with a diagnosis of some length, techniques and lessons."""
    counters = {f"counter_{i}.sum": f"{i} byte" for i in range(30)}
    diagnosed = Diagnosed(_SENTENCES, counters, ("memory_bound", "uncoalesced_loads", "excess_traffic"))
    context = make_context(tree.root, spec, Target(), counters=COUNTERS, diagnosed=diagnosed, memory=_SENTENCES[:4])
    return asking_for(context, tree.root, 0)


def reader(context: Context, search: str, line: str, kernel: str) -> Callable[[], object]:
    """Reads an answer that changes a line, by a block or in a whole kernel, and places it."""
    numbers = itertools.count()

    def read() -> object:
        changed = f"{line} (void){next(numbers)};"
        edits = [{"file": "", "search": search, "replace": changed}] if search else []
        one = {"idea": "Change it", "counter": "", "direction": "down", "edits": edits}
        launch: dict[str, Any] = {"grid": [], "block": [], "shared": ""}
        text = json.dumps({"proposals": [{**one, "kernel": kernel.replace(line, changed), "launch": launch}]})
        return [make_proposal(suggestion, context.place) for suggestion in read_answer(text)]

    return read


def median_ms(work: Callable[[], object], repeat: int) -> float:
    """The median of a thread's processor time, in milliseconds."""
    work()
    times = []
    for _ in range(repeat):
        begin = time.thread_time()
        work()
        times.append(1e3 * (time.thread_time() - begin))
    return round(statistics.median(times), 3)


def table(record: Mapping[str, Any]) -> str:
    """The record as a Markdown table."""
    lines = [
        "| kernel | prompt | answer with a block | answer with a kernel | tokens (diagnosis) |",
        "|---|---:|---:|---:|---:|",
    ]
    for k in record["kernels"]:
        cells = [
            f"{k[key]:.1f} ms" if k[key] is not None else "" for key in ("build_ms", "read_block_ms", "read_kernel_ms")
        ]
        lines.append(f"| {k['kernel']} | {' | '.join(cells)} | {k['tokens']['diagnosis']} |")
    parts = {part: [k["of_parts"][part] for k in record["kernels"]] for part in PARTS}
    lines += ["", "| part | tokens, median | most |", "|---|---:|---:|"]
    lines += [f"| {part} | {statistics.median(found):.0f} | {max(found)} |" for part, found in parts.items()]
    total = record["summary"]
    lines += ["", f"Dearest: {total['dearest_ms']:.1f} ms for a prompt and an answer; the limit is {MOST_MS:.0f} ms."]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

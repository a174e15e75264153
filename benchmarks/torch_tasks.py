"""Tasks that others wrote in PyTorch, leetgpu-challenges and KernelBench: a part of the table `foreign-generate`.

    python benchmarks/torch_tasks.py draw leetgpu --checkout leetgpu-challenges

`draw` prints the tasks of a set: a draw by a seed over what the set's rule admits (`benchmarks/torch_reference.py`). Each has a folder in
`benchmarks/torch_tasks/<set>`: `sentence.txt` and `task.md` (the sentence and what it means, both ours), or `impossible.txt` with the
reason why the task cannot be stated; the latter counts as failed.

A task's own PyTorch function is its reference; questions and answers are files, as for `benchmarks/pareval.py`. This Python needs PyTorch.
Every program from leetgpu-challenges, accepted or refused, is then put through the challenge's own tests (`benchmarks/torch_judge.py`).
KernelBench's problems have none of a size that a CPU can run.

`read kernelbench` gives every problem's own file to the engine as `--reference FILE.py:Model` does, and asks it for the outputs of every
check of the task; no language model is asked. Exit code 1 where one could not be asked, else 0.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.examples import ROOT, head
from benchmarks.pareval import Place, Run, checkout_commit, exchange
from benchmarks.torch_judge import judge
from benchmarks.torch_reference import (
    ReferenceTextError,
    drawn,
    kernelbench_reference,
    kernelbench_tasks,
    leetgpu_reference,
    leetgpu_tasks,
)
from engine.errors import MachineError, OptimlError
from engine.generate.check_cases import TaskError
from engine.generate.oracle import Oracle, prepare, read_reference
from engine.generate.task import Task, read_task
from engine.model import Program
from engine.process.sandbox import sandbox
from engine.spec.reader import specs_in
from engine.verify.plan import plan

SCHEMA = "optiml.torch_tasks/1"
READ = "optiml.torch_read/1"
FOLDER = ROOT / "benchmarks" / "torch_tasks"
SETS = ("leetgpu", "kernelbench")
COUNT, SEED = 20, 0
LEVELS = (1, 2)
STRATEGIES: Mapping[str, tuple[str, ...]] = {"leetgpu": ("memory", "parallel"), "kernelbench": ("parallel",)}


def main(given: Sequence[str] | None = None) -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description="Generate kernels for tasks that others wrote in PyTorch.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("draw", "read"):
        one = verbs.add_parser(verb)
        one.add_argument("set", choices=SETS)
        one.add_argument("--checkout", type=Path, required=True, help="a checkout of the set's repository")
        one.add_argument("--count", type=int, default=COUNT, help=f"tasks to draw (default: {COUNT})")
        one.add_argument("--seed", type=int, default=SEED, help=f"of the draw (default: {SEED})")
    verbs.choices["read"].add_argument("--record", type=Path, help="the JSON record to write")
    options = parser.parse_args(given)
    names = tasks_of(options.set, options.checkout, options.count, options.seed)
    if options.verb == "draw":
        print("\n".join(names))
        return 0
    if options.set != "kernelbench":
        parser.error("read is for kernelbench: a challenge of leetgpu is no module")
    return read_all(options, names, given)


def tasks_of(which: str, checkout: Path, count: int = COUNT, seed: int = SEED) -> list[str]:
    """The names of a set's tasks, by the draw."""
    if which == "leetgpu":
        return drawn(leetgpu_tasks(checkout), count, seed)
    return drawn(kernelbench_tasks(checkout, LEVELS), count, seed)


def read_all(options: argparse.Namespace, names: Sequence[str], given: Sequence[str] | None) -> int:
    """Ask every problem's own file, and write the record; exit code 1 where one could not be asked."""
    begin = datetime.datetime.now(datetime.UTC)
    rows = []
    for name in names:
        row = {
            "task": name_of(name),
            **read_one(options.checkout / "KernelBench" / f"{name}.py", FOLDER / options.set / name_of(name)),
        }
        print(f"{row['task']}: {row['error'] or str(row['checks']) + ' checks answered'}", flush=True)
        rows.append(row)
    record = {**head(READ, __file__, given, begin), "checkout": checkout_commit(options.checkout), "rows": rows}
    if options.record:
        options.record.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return int(any(row["error"] for row in rows))


def read_one(file: Path, folder: Path) -> dict[str, Any]:
    """What a module takes, and how many checks of the task it answers, or the error."""
    found: dict[str, Any] = {"takes": [], "checks": 0, "error": ""}
    try:
        with contextlib.closing(Oracle(read_reference(f"{file}:Model"), sandbox())) as oracle:
            found["takes"] = [*oracle.required, *oracle.optional]
            task = read_task(named_as_module(folder), required=oracle.required, known=found["takes"], cpu=True)
            spec = specs_in(Program({"k.cu": task.file(("",)).encode()}, "k.cu"), None)[0]
            for check in plan(spec, random.Random(SEED)):
                prepare(spec, task, [oracle], [check])
                found["checks"] += 1
    except (OptimlError, TaskError) as error:
        found["error"] = str(error)
    return found


def named_as_module(folder: Path) -> str:
    """The text of a task whose weights have the names of the module's parameters."""
    text, weights = (folder / "task.md").read_text(encoding="utf-8"), folder / "parameters.json"
    for name, parameter in (json.loads(weights.read_text(encoding="utf-8")) if weights.is_file() else {}).items():
        text = text.replace(f'"{name}"', f'"{parameter.replace(".", "_")}"')
    return text


def name_of(name: str) -> str:
    """A task's name as a folder's: `level1/19_ReLU` is `level1_19_ReLU`."""
    return name.replace("/", "_")


def task_name(which: str, folder: str) -> str:
    """The task's name of a folder."""
    return folder.replace("_", "/", 1) if which == "kernelbench" else folder


def impossible(which: str, name: str) -> str:
    """Why a task cannot be stated, "" where it can."""
    told = FOLDER / which / name_of(name) / "impossible.txt"
    return told.read_text(encoding="utf-8").strip() if told.is_file() else ""


def samples(which: str, name: str, place: Place) -> list[dict[str, Any]]:
    """All samples of one task, each with our verdict and that of the challenge's own tests (`tests`); none while questions wait.

    Raises MachineError where the reference cannot be read, and as `pareval.exchange`.
    """
    folder = place.tasks / name_of(name)
    try:
        task = read_task((folder / "task.md").read_text(encoding="utf-8"), cpu=True)
        text = reference_of(which, name, place.checkout, task, folder)
    except (ReferenceTextError, OSError) as error:
        raise MachineError(str(error), name) from None
    reference = place.work / "references" / f"{name_of(name)}.py"
    reference.parent.mkdir(parents=True, exist_ok=True)
    reference.write_text(text, encoding="utf-8")
    sentence = (folder / "sentence.txt").read_text(encoding="utf-8").strip()
    given = [sentence, "--reference", f"{reference}:{task.wrapper}", "--strategies", ",".join(STRATEGIES[which])]
    found = exchange(given, Run(name_of(name)), place)
    for sample in found:
        program = sample.pop("program")
        judged = judge(place.checkout, name, task, Path(program)) if program and which == "leetgpu" else None
        sample |= {"tests": judged.verdict if judged else None, "tests_said": judged.detail if judged else ""}
    return found


def reference_of(which: str, name: str, checkout: Path, task: Task, folder: Path) -> str:
    """The reference's text. Raises ReferenceTextError."""
    if which == "leetgpu":
        return leetgpu_reference(checkout, name, task)
    extra = folder / "parameters.json"
    return kernelbench_reference(
        checkout, name, task, json.loads(extra.read_text(encoding="utf-8")) if extra.is_file() else {}
    )


if __name__ == "__main__":
    sys.exit(main())

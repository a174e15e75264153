"""`optiml generate` on tasks that others wrote in PyTorch: leetgpu-challenges and KernelBench.

    python benchmarks/torch_tasks.py draw leetgpu --checkout leetgpu-challenges
    python benchmarks/torch_tasks.py run leetgpu --checkout leetgpu-challenges --questions DIR --record benchmarks/results/leetgpu.json

`draw` prints the tasks of a set: a draw by a seed over what the set's rule admits (`benchmarks/torch_reference.py`). Each has a folder in
`benchmarks/torch_tasks/<set>`: `sentence.txt` and `task.md` (the sentence and what it means, both ours), or `impossible.txt` with the
reason why the task cannot be stated; the latter counts as failed.

`run` gives each task to the installed command `optiml generate` on the CPU path, with the task's own PyTorch function as reference,
without repairs unless told. Questions and answers are files, as for `benchmarks/pareval.py`. This Python needs PyTorch.

Every program from leetgpu-challenges, accepted or refused, is then put through the challenge's own tests (`benchmarks/torch_judge.py`).
KernelBench's problems have none of a size that a CPU can run.

`read kernelbench` gives every problem's own file to the engine as `--reference FILE.py:Model` does, and asks it for the outputs of every
check of the task; no language model is asked.

Exit code 0 when no accepted program failed a test, 1 otherwise or when a run failed, 4 when questions wait.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import json
import random
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.examples import ROOT, head
from benchmarks.generate_tasks import WAITING
from benchmarks.pareval import Place, Run, checkout_commit, exchange, finish, pass_at, waiting
from benchmarks.torch_judge import judge
from benchmarks.torch_reference import (
    ReferenceTextError,
    drawn,
    kernelbench_reference,
    kernelbench_tasks,
    leetgpu_reference,
    leetgpu_tasks,
)
from engine.errors import OptimlError
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
STRATEGIES = ("memory", "parallel")


def main(given: Sequence[str] | None = None) -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description="Generate kernels for tasks that others wrote in PyTorch.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("draw", "run", "read"):
        one = verbs.add_parser(verb)
        one.add_argument("set", choices=SETS)
        one.add_argument("--checkout", type=Path, required=True, help="a checkout of the set's repository")
        one.add_argument("--count", type=int, default=COUNT, help=f"tasks to draw (default: {COUNT})")
        one.add_argument("--seed", type=int, default=SEED, help=f"of the draw (default: {SEED})")
    run = verbs.choices["run"]
    run.add_argument("names", nargs="*", metavar="TASK", help="some of the tasks (default: all drawn)")
    run.add_argument("--questions", type=Path, required=True, help="folder where open questions are written")
    run.add_argument("--answers", type=Path, help="folder with the answers (default: the recorded ones)")
    run.add_argument("--strategies", default=",".join(STRATEGIES), help="one sample each")
    run.add_argument("--repairs", type=int, default=0, help="how often a kernel goes back to the model (default: 0)")
    run.add_argument("--work", type=Path, default=ROOT / ".optiml" / "torch_tasks", help="where each run's folder goes")
    run.add_argument("--keep", action="store_true", help="go on from the work folder: what has ended is not run again")
    for verb in ("run", "read"):
        verbs.choices[verb].add_argument("--record", type=Path, help="the JSON record to write")
    options = parser.parse_args(given)
    names = tasks_of(options.set, options.checkout, options.count, options.seed)
    if options.verb == "draw":
        print("\n".join(names))
        return 0
    if options.verb == "read":
        if options.set != "kernelbench":
            parser.error("read is for kernelbench: a challenge of leetgpu is no module")
        return read_all(options, names, given)
    unknown = sorted(set(options.names) - set(names))
    if unknown:
        parser.error(f"the draw has no task {unknown[0]}")
    return run_set(options, options.names or names, given)


def tasks_of(which: str, checkout: Path, count: int = COUNT, seed: int = SEED) -> list[str]:
    """The names of a set's tasks, by the draw."""
    if which == "leetgpu":
        return drawn(leetgpu_tasks(checkout), count, seed)
    return drawn(kernelbench_tasks(checkout, LEVELS), count, seed)


def run_set(options: argparse.Namespace, names: Sequence[str], given: Sequence[str] | None) -> int:
    """Run tasks of a set and write the record."""
    begin = datetime.datetime.now(datetime.UTC)
    folder = FOLDER / options.set
    place = Place(
        folder, options.questions, options.answers or folder / "answers", options.work.resolve() / options.set,
        options.checkout, options.keep,
    )  # fmt: skip
    place.questions.mkdir(parents=True, exist_ok=True)
    tasks = [run_task(options.set, name, place, options) for name in names]
    told = folder / "provenance.json"
    record = {
        **head(SCHEMA, __file__, given, begin),
        "set": options.set,
        "checkout": checkout_commit(options.checkout),
        "draw": {"count": options.count, "seed": options.seed},
        "answers": json.loads(told.read_text(encoding="utf-8")) if told.is_file() else {},
        "repairs": options.repairs,
        "waiting": waiting(tasks, place.questions),
        "tasks": tasks,
        "summary": summary(tasks),
    }
    if finish(record, options.record, table(record), place.questions):
        return WAITING
    return 1 if any(task["error"] for task in tasks) or record["summary"]["accepted_but_failed"] else 0


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
    """A task's name as a file's: `level1/19_ReLU` is `level1_19_ReLU`."""
    return name.replace("/", "_")


def run_task(which: str, name: str, place: Place, options: argparse.Namespace) -> dict[str, Any]:
    """All samples of one task; none while a question waits or where the task cannot be stated."""
    flat = name_of(name)
    folder = place.tasks / flat
    found: dict[str, Any] = {"task": flat, "impossible": "", "samples": [], "error": ""}
    for path in place.questions.glob(f"{flat}__*.txt"):
        path.unlink()
    if (folder / "impossible.txt").is_file():
        return {**found, "impossible": (folder / "impossible.txt").read_text(encoding="utf-8").strip()}
    ended = place.work / f"{flat}-{options.repairs}.json"
    if place.keep and ended.is_file():
        kept: dict[str, Any] = json.loads(ended.read_text(encoding="utf-8"))
        return kept
    print(f"{flat} …", file=sys.stderr, flush=True)
    try:
        task = read_task((folder / "task.md").read_text(encoding="utf-8"), cpu=True)
        text = reference_of(which, name, place.checkout, task, folder)
    except (ReferenceTextError, OSError) as error:
        return {**found, "error": str(error)}
    reference = place.work / "references" / f"{flat}.py"
    reference.parent.mkdir(parents=True, exist_ok=True)
    reference.write_text(text, encoding="utf-8")
    sentence = (folder / "sentence.txt").read_text(encoding="utf-8").strip()
    arguments = [
        sentence, "--reference", f"{reference}:{task.wrapper}", "--repairs", str(options.repairs), "--strategies",
        options.strategies,
    ]  # fmt: skip
    samples, error = exchange(arguments, Run(flat, "", f"{flat}-{options.repairs}"), place)
    for sample in samples:
        program = sample.pop("program")
        judged = judge(place.checkout, name, task, Path(program)) if program and which == "leetgpu" else None
        sample["judged"] = dataclasses.asdict(judged) if judged else None
    found |= {"samples": samples, "error": error}
    if samples:
        ended.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return found


def reference_of(which: str, name: str, checkout: Path, task: Task, folder: Path) -> str:
    """The reference's text. Raises ReferenceTextError."""
    if which == "leetgpu":
        return leetgpu_reference(checkout, name, task)
    extra = folder / "parameters.json"
    return kernelbench_reference(
        checkout, name, task, json.loads(extra.read_text(encoding="utf-8")) if extra.is_file() else {}
    )


def summary(tasks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """pass@1 and pass@k over all tasks that ended, and over those that could be stated; how the others ended.

    A run that ended with an error has no correct sample.
    """
    ended = [task for task in tasks if task["samples"] or task["impossible"] or task["error"]]
    stated = [task for task in ended if not task["impossible"]]
    k = max((len(task["samples"]) for task in stated), default=0)
    found: dict[str, Any] = {"tasks": len(ended), "stated": len(stated), "k": k}
    for key, n in (("pass_at_1", 1), ("pass_at_k", k)):
        values = [
            pass_at(len(task["samples"]), sum(s["correct"] for s in task["samples"]), n)
            for task in stated
            if len(task["samples"]) >= n > 0
        ] + [0.0 for task in stated if task["error"]]
        found[key] = sum(values) / len(ended) if values else None
        found[f"{key}_of_stated"] = sum(values) / len(values) if values else None
    found["failed"] = sum(bool(task["error"]) for task in stated)
    samples = [s for task in stated for s in task["samples"]]
    found["samples"] = len(samples)
    found["correct"] = sum(s["correct"] for s in samples)
    judged = [s for s in samples if s["judged"]]
    found["judged"] = len(judged)
    for key, correct, verdict in (
        ("accepted_but_failed", True, "fail"), ("accepted_but_not_built", True, "not built"),
        ("refused_and_failed", False, "fail"), ("refused_but_passed", False, "pass"),
    ):  # fmt: skip
        found[key] = sum(s["correct"] is correct and s["judged"]["verdict"] == verdict for s in judged)
    found["endings"] = dict(sorted(Counter(s["ending"] for s in samples if not s["correct"]).items()))
    return found


def table(record: Mapping[str, Any]) -> str:
    """The record as Markdown: one line a task, then the summary."""
    lines = ["| task | correct | refused |", "|---|---:|---|"]
    for task in record["tasks"]:
        refused = [
            f"{s['sample']}: {s['ending']}: {s['reason']}{_tests(s)}"
            for s in task["samples"]
            if not s["correct"] or _tests(s) not in ("", " (tests: pass)")
        ]
        passed = (
            f"{sum(s['correct'] for s in task['samples'])} of {len(task['samples'])}" if task["samples"] else "waits"
        )
        if task["impossible"] or task["error"]:
            passed, refused = "–", [task["impossible"] or task["error"]]
        lines.append(f"| {task['task']} | {passed} | {_cell('; '.join(refused))} |")
    s = record["summary"]
    if s["pass_at_1"] is not None:
        lines.append(
            f"\n{s['tasks']} tasks, {s['stated']} of which can be stated: pass@1 {s['pass_at_1']:.2f}, pass@{s['k']} "
            f"{s['pass_at_k']:.2f}; of those stated {s['pass_at_1_of_stated']:.2f} and {s['pass_at_k_of_stated']:.2f}. "
            f"{s['correct']} of {s['samples']} samples are correct; the tasks' own tests judged {s['judged']} programs: "
            f"{s['accepted_but_failed']} accepted but failed, {s['refused_and_failed']} refused and failed, "
            f"{s['refused_but_passed']} refused but passed."
        )
    return "\n".join(lines)


def _tests(sample: Mapping[str, Any]) -> str:
    return f" (tests: {sample['judged']['verdict']})" if sample["judged"] else ""


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "/").split())[:300]


if __name__ == "__main__":
    sys.exit(main())

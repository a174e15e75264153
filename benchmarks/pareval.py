"""`optiml generate` on problems of ParEval, judged by ParEval's own drivers.

    python benchmarks/pareval.py --repairs 0 --checkout DIR --questions DIR --record benchmarks/results/pareval.json

For each task of `benchmarks/pareval` the installed command `optiml generate` runs through the batch door. `task.md` in the task's folder
answers what the sentence means; every other question (a plan, a kernel, a repair) is answered by `ANSWERS/<task>__<question>.txt`,
by default one of `benchmarks/pareval/answers`. A
question without that file is written to `QUESTIONS/<task>__<question>.txt`, with the messages exactly as a model gets them, and the
command ends with exit code 4: answer the files and run it again, with `--keep` to go on from what is there (a changed answer
then counts only for questions that were still open). An empty answer is a refusal.

A task has five samples: the four strategies that run without a GPU, and a second draw of one of them. A sample's program, correct or
refused, is then put into ParEval's CUDA driver, which is compiled by `optiml nvcc` for the CPU and run in the sandbox. Only the launch
differs in the driver: `f<<<grid, block>>>(…)` becomes a call of the host function that was written with the kernel. Where a kernel was
repaired, the programs of the first try are judged as well.

Exit code 0 when no program that a driver rejects was accepted, 1 otherwise or when a run failed, 4 when questions wait.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.examples import ROOT, head, optiml
from benchmarks.generate_tasks import MODEL, WAITING, file_of, response
from benchmarks.pareval_driver import judge

SCHEMA = "optiml.pareval/1"
TASKS = ROOT / "benchmarks" / "pareval"
# CUB, on which the fifth strategy builds, needs a GPU: a second draw of another one takes its place.
DRAWS: Mapping[str, tuple[str, ...]] = {
    "": ("memory", "parallel", "instruction", "algorithm"),
    "second-": ("parallel",),
}
_PASSES = 12
_TIMEOUT_S = 1800.0


@dataclass(frozen=True)
class Place:
    """Where one run of the script finds and leaves its files."""

    tasks: Path
    questions: Path
    answers: Path
    work: Path
    checkout: Path
    keep: bool = False


def main(given: Sequence[str] | None = None) -> int:
    """Run all tasks; see the module's docstring."""
    parser = argparse.ArgumentParser(
        description="Generate kernels for problems of ParEval and have its drivers judge them."
    )
    parser.add_argument("names", nargs="*", metavar="TASK", help="some of the tasks (default: all)")
    parser.add_argument("--checkout", type=Path, required=True, help="a checkout of parallelcodefoundry/ParEval")
    parser.add_argument("--questions", type=Path, required=True, help="folder where open questions are written")
    parser.add_argument(
        "--answers", type=Path, default=TASKS / "answers", help="folder with the answers (default: the recorded ones)"
    )
    parser.add_argument("--repairs", type=int, default=1, help="how often a kernel goes back to the model (default: 1)")
    parser.add_argument("--tasks", type=Path, default=TASKS, help="folder with the tasks")
    parser.add_argument("--work", type=Path, default=ROOT / ".optiml" / "pareval", help="where each run's folder goes")
    parser.add_argument(
        "--keep", action="store_true", help="go on from the work folder: what has ended is not run again"
    )
    parser.add_argument("--record", type=Path, help="the JSON record to write")
    options = parser.parse_args(given)
    there = sorted(path.parent.name for path in options.tasks.glob("*/sentence.txt"))
    unknown = sorted(set(options.names) - set(there))
    if unknown:
        parser.error(f"there is no task {unknown[0]}")
    place = Place(
        options.tasks, options.questions, options.answers, options.work.resolve(), options.checkout, options.keep
    )
    begin = datetime.datetime.now(datetime.UTC)
    place.questions.mkdir(parents=True, exist_ok=True)
    tasks = [run_task(name, place, options.repairs) for name in options.names or there]
    record = {
        **head(SCHEMA, __file__, given, begin),
        "pareval": checkout_commit(options.checkout),
        "answers": json.loads((options.tasks / "provenance.json").read_text(encoding="utf-8")),
        "repairs": options.repairs,
        "waiting": waiting(tasks, place.questions),
        "tasks": tasks,
        "summary": summary(tasks),
    }
    if finish(record, options.record, table(record), place.questions):
        return WAITING
    failed = any(task["errors"] for task in tasks)
    return 1 if failed or record["summary"]["accepted_but_rejected_by_driver"] else 0


def waiting(tasks: Sequence[Mapping[str, Any]], questions: Path) -> int:
    """How many questions of these tasks are open."""
    return sum(len(list(questions.glob(f"{task['task']}__*.txt"))) for task in tasks)


def finish(record: Mapping[str, Any], path: Path | None, shown: str, questions: Path) -> bool:
    """Write a run's record where one is wanted, and print what came of it; whether questions wait."""
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    print(shown)
    if record["waiting"]:
        print(f"\n{record['waiting']} questions wait in {questions}.")
    return bool(record["waiting"])


def checkout_commit(checkout: Path) -> str:
    """The commit of a checkout."""
    git = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()


def run_task(name: str, place: Place, repairs: int) -> dict[str, Any]:
    """All samples of one task, each with our verdict and the driver's; no samples while a question waits."""
    ended = place.work / f"{name}-{repairs}.json"
    if place.keep and ended.is_file():
        kept: dict[str, Any] = json.loads(ended.read_text(encoding="utf-8"))
        return kept
    for path in place.questions.glob(f"{name}__*.txt"):
        path.unlink()
    problem = (place.tasks / name / "problem.txt").read_text(encoding="utf-8").strip()
    task: dict[str, Any] = {"task": name, "problem": problem, "samples": [], "first_tries": [], "errors": []}
    samples, first = [], []
    for draw in DRAWS:
        print(f"{name}{', second draw' if draw else ''} …", file=sys.stderr, flush=True)
        drawn, error = run_draw(name, draw, repairs, place)
        samples += drawn
        task["errors"] += [error] if error else []
        mended = {sample["sample"] for sample in drawn if sample["repairs"]}
        if mended:
            # The same answers again, without repairs: what was sent back is put before the driver too.
            drawn, error = run_draw(name, draw, 0, place)
            first += [sample for sample in drawn if sample["sample"] in mended]
            task["errors"] += [error] if error else []
    if task["errors"] or any(place.questions.glob(f"{name}__*.txt")):
        return task
    print(f"{name}: ParEval's driver judges …", file=sys.stderr, flush=True)
    task["samples"] = judged(samples, name, problem, place.checkout)
    task["first_tries"] = judged(first, name, problem, place.checkout)
    ended.write_text(json.dumps(task, indent=1), encoding="utf-8")
    return task


def judged(samples: Sequence[dict[str, Any]], name: str, problem: str, checkout: Path) -> list[dict[str, Any]]:
    """The samples with the driver's verdict on those that have a program; their files are no part of the record."""
    found = []
    for sample in samples:
        program = sample.pop("program")
        driver = judge(checkout, problem, name, Path(program)) if program else None
        found.append(
            {**sample, "driver": driver.verdict if driver else None, "driver_said": driver.detail if driver else ""}
        )
    return found


def run_draw(name: str, draw: str, repairs: int, place: Place) -> tuple[list[dict[str, Any]], str]:
    """(samples, error) of one run of the command; no samples while questions wait. A sample's `program` is its file."""
    folder = place.tasks / name
    sentence = (folder / "sentence.txt").read_text(encoding="utf-8").strip()
    given = ["--repairs", str(repairs), "--strategies", ",".join(DRAWS[draw])]
    reference = f"{folder / 'ref.py'}:{name}"
    return exchange([sentence, "--reference", reference, *given], Run(name, draw, f"{draw}{name}-{repairs}"), place)


@dataclass(frozen=True)
class Run:
    """One run of `optiml generate`: its task, the prefix of its draw, and the name of its folder below `Place.work`."""

    name: str
    draw: str
    folder: str


def exchange(arguments: Sequence[str], run: Run, place: Place) -> tuple[list[dict[str, Any]], str]:
    """(samples, error) of `optiml generate` through the batch door, on the CPU path; no samples while questions wait.

    A sample's `program` is its file.
    """
    work = place.work / run.folder
    ended = work / "samples.json"
    if place.keep and ended.is_file():
        return json.loads(ended.read_text(encoding="utf-8")), ""
    if not place.keep:
        shutil.rmtree(work, ignore_errors=True)
    batch = work / "batch"
    batch.mkdir(parents=True, exist_ok=True)
    command = [
        optiml(), "generate", *arguments, "--work", str(work / "run"), "--llm", f"batch:{batch}", "--llm-model", MODEL,
        "--llm-free-form", "--device", "cpu", "--format", "json", "--generate-only",
    ]  # fmt: skip
    label = f"{run.draw}{run.name}"
    for _ in range(_PASSES):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            return [], f"{label}: did not end in {_TIMEOUT_S:.0f} s"
        if done.returncode == WAITING:
            if not answer(batch, run.name, run.draw, place):
                return [], ""
            continue
        if not done.stdout.strip():
            return [], f"{label}: {done.stderr.strip()[-1000:] or f'exit code {done.returncode}'}"
        samples = list(samples_of(json.loads(done.stdout), run.draw, work / "run"))
        ended.write_text(json.dumps(samples), encoding="utf-8")
        return samples, ""
    return [], f"{label}: still asks after {_PASSES} passes"


def answer(batch: Path, name: str, draw: str, place: Place) -> bool:
    """Append the answers that are there to the batch; whether all were. Without one the question is written down."""
    whole = True
    asked = {}
    for line in (batch / "requests.jsonl").read_text(encoding="utf-8").splitlines():
        request = json.loads(line)
        asked[request["custom_id"]] = request["body"]["messages"]
    with (batch / "responses.jsonl").open("a", encoding="utf-8") as out:
        for line in (batch / "index.jsonl").read_text(encoding="utf-8").splitlines():
            question = json.loads(line)
            about = file_of(question["about"])
            own = place.tasks / name / "task.md"
            path = own if about == "task" else place.answers / f"{name}__{draw}{about}.txt"
            if path.is_file():
                text = path.read_text(encoding="utf-8")
                out.write(json.dumps(response(question["custom_id"], text if text.strip() else None)) + "\n")
            else:
                whole = False
                (place.questions / path.name).write_text(prompt(asked[question["custom_id"]]), encoding="utf-8")
    return whole


def prompt(messages: Sequence[Mapping[str, str]]) -> str:
    """The messages as one text: each as the model gets it, below its role."""
    return "\n".join(f"[{message['role']}]\n{message['content'].rstrip()}\n" for message in messages)


def samples_of(result: Mapping[str, Any], draw: str, work: Path) -> Iterator[dict[str, Any]]:
    """What became of each sample of a run."""
    for strategy in result["strategies"]:
        file = str(work / strategy["file"]) if strategy["file"] else ""
        yield {
            "sample": f"{draw}{strategy['name']}",
            "correct": strategy["right"],
            "ending": strategy["ending"],
            "reason": strategy["reason"],
            "repairs": strategy["repairs"],
            "written": strategy["role"] == "best" and bool(result["written"]),
            "program": file,
        }


def pass_at(n: int, c: int, k: int) -> float:
    """The unbiased estimate of pass@k from n samples of which c pass (Chen et al., arXiv 2107.03374)."""
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def summary(tasks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """pass@1 and pass@5 over the finished tasks, and how both verdicts agree over all programs.

    A sample passes when we accepted it and the driver passed it.
    """
    whole = [task for task in tasks if len(task["samples"]) == sum(map(len, DRAWS.values()))]
    found: dict[str, Any] = {"tasks": len(whole)}
    programs = [sample for task in whole for sample in (*task["samples"], *task["first_tries"])]
    for key, n in (("pass_at_1", 1), ("pass_at_5", 5)):
        counts = [(len(task["samples"]), sum(map(passes, task["samples"]))) for task in whole]
        values = [pass_at(drawn, passed, n) for drawn, passed in counts if drawn >= n]
        found[key] = sum(values) / len(values) if values else None
    found["pass_at_1_without_repair"] = None
    if whole:
        first = [sum(passes(s) and not s["repairs"] for s in task["samples"]) / len(task["samples"]) for task in whole]
        found["pass_at_1_without_repair"] = sum(first) / len(first)
    put = [sample for sample in programs if sample["driver"] is not None]
    found["programs_judged"] = len(put)
    found["accepted"] = sum(s["correct"] for s in put)
    found["accepted_but_rejected_by_driver"] = sum(s["correct"] and s["driver"] != "pass" for s in put)
    found["rejected_by_driver"] = sum(s["driver"] != "pass" for s in put)
    found["refused_but_passed_by_driver"] = sum(not s["correct"] and s["driver"] == "pass" for s in put)
    found["without_program"] = len(programs) - len(put)
    return found


def passes(sample: Mapping[str, Any]) -> bool:
    """Whether we accepted a sample and the driver passed it."""
    return bool(sample["correct"]) and sample["driver"] == "pass"


def table(record: Mapping[str, Any]) -> str:
    """The record as Markdown: one line a task, then the summary."""
    lines = ["| task | problem | passed | samples (ours / the driver's verdict) |", "|---|---|---:|---|"]
    for task in record["tasks"]:
        told = [
            f"{s['sample']}: {'correct' if s['correct'] else s['ending']} / {s['driver'] or 'no program'}"
            for s in (*task["samples"], *({**f, "sample": f"{f['sample']}, first try"} for f in task["first_tries"]))
        ]
        passed = f"{sum(map(passes, task['samples']))} of {len(task['samples'])}" if task["samples"] else "waits"
        lines.append(f"| {task['task']} | {task['problem']} | {passed} | {'; '.join(told + task['errors'])} |")
    s = record["summary"]
    if s["pass_at_1"] is not None:
        lines.append(
            f"\n{s['tasks']} tasks: pass@1 {s['pass_at_1']:.2f} (without repairs {s['pass_at_1_without_repair']:.2f}), "
            f"pass@5 {_two(s['pass_at_5'])}. {s['programs_judged']} programs judged, {s['rejected_by_driver']} rejected by a "
            f"driver, of which we accepted {s['accepted_but_rejected_by_driver']}; "
            f"{s['refused_but_passed_by_driver']} refused by us but passed by a driver."
        )
    return "\n".join(lines)


def _two(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


if __name__ == "__main__":
    sys.exit(main())

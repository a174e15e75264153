"""`optiml generate` on problems of ParEval, judged by ParEval's own drivers: a part of the table `foreign-generate`.

`task.md` in a task's folder answers what the sentence means; every other question (a plan, a kernel) is answered by
`answers/<task>__<question>.txt` beside the tasks. A question without that file is written to `<task>__<question>.txt` in the folder of
questions, with the messages exactly as a model gets them. An empty answer is a refusal.

A task has five samples: the four strategies that run without a GPU, and a second draw of one of them. A sample's program, correct or
refused, is then put into ParEval's CUDA driver, which is compiled by `optiml nvcc` for the CPU and run in the sandbox. Only the launch
differs in the driver: `f<<<grid, block>>>(…)` becomes a call of the host function that was written with the kernel.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.examples import ROOT, optiml
from benchmarks.generate_tasks import MODEL, WAITING, file_of, response
from benchmarks.pareval_driver import judge
from engine.errors import MachineError, OptimlError

TASKS = ROOT / "benchmarks" / "pareval"
# CUB, on which the fifth strategy builds, needs a GPU: a second draw of another one takes its place.
DRAWS: Mapping[str, tuple[str, ...]] = {
    "": ("memory", "parallel", "instruction", "algorithm"),
    "second-": ("parallel",),
}
_PASSES = 12
_TIMEOUT_S = 1800.0


class NoKernelError(OptimlError):
    """A run that ended, and gave nothing."""


@dataclass(frozen=True)
class Place:
    """Where one task's runs find and leave their files."""

    tasks: Path
    questions: Path
    answers: Path
    work: Path
    checkout: Path
    device: str = "auto"


def checkout_commit(checkout: Path) -> str:
    """The commit of a checkout."""
    git = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()


def samples(name: str, place: Place) -> list[dict[str, Any]]:
    """All samples of one task, each with our verdict and the driver's (`tests`); none while questions wait.

    Raises NoKernelError where a run ends without a result, MachineError where it does not end.
    """
    folder = place.tasks / name
    problem = (folder / "problem.txt").read_text(encoding="utf-8").strip()
    sentence = (folder / "sentence.txt").read_text(encoding="utf-8").strip()
    found: list[dict[str, Any]] = []
    waits = False
    for draw, strategies in DRAWS.items():
        given = [sentence, "--reference", f"{folder / 'ref.py'}:{name}", "--strategies", ",".join(strategies)]
        drawn = exchange(given, Run(name, draw), place)
        waits = waits or not drawn
        found += drawn
    if waits:
        return []
    for sample in found:
        program = sample.pop("program")
        driver = judge(place.checkout, problem, name, Path(program)) if program else None
        sample |= {"tests": driver.verdict if driver else None, "tests_said": driver.detail if driver else ""}
    return found


@dataclass(frozen=True)
class Run:
    """One run of `optiml generate`: its task, and the prefix of its draw."""

    name: str
    draw: str = ""


def exchange(arguments: Sequence[str], run: Run, place: Place) -> list[dict[str, Any]]:
    """The samples of `optiml generate` through the batch door, without repairs; none while questions wait.

    A sample's `program` is its file.
    Raises NoKernelError where it ends without a result, MachineError where it does not end.
    """
    label = f"{run.draw}{run.name}"
    work, batch = place.work / label / "run", place.work / label / "batch"
    for left in (work, batch):
        shutil.rmtree(left, ignore_errors=True)
    batch.mkdir(parents=True)
    command = [
        optiml(), "generate", *arguments, "--repairs", "0", "--work", str(work), "--llm", f"batch:{batch}", "--llm-model", MODEL,
        "--llm-free-form", "--device", place.device, "--format", "json", "--generate-only",
    ]  # fmt: skip
    for _ in range(_PASSES):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            raise MachineError(f"did not end in {_TIMEOUT_S:.0f} s", label) from None
        if done.returncode == WAITING:
            if not answer(batch, run.name, run.draw, place):
                return []
            continue
        if not done.stdout.strip():
            said = done.stderr.strip()[-1000:] or f"exit code {done.returncode} without a word"
            raise NoKernelError(said) if done.returncode == 1 else MachineError(said, label)
        return list(samples_of(json.loads(done.stdout), run.draw, work))
    raise MachineError(f"still asks after {_PASSES} passes", label)


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
            "mode": result["mode"],
            "program": file,
        }

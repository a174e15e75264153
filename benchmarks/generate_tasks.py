"""Kernels from sentences, with recorded answers in the place of a model.

    python benchmarks/generate_tasks.py --budget 30s --record benchmarks/results/generate.json

For each task of `benchmarks/generate` the installed command `optiml generate` runs through the batch door: it ends with its questions
(exit code 4), these are answered from the recorded files, and the same command goes on, until it writes a kernel. A file belongs
to a question by what the question is about: `task`, `draft-N`, `<strategy>-plan`, `<strategy>`, `<strategy>-repair-N`; a question
without a file is answered with a refusal. Where the answers came from stands in `benchmarks/generate/provenance.json`.

Each task runs in both settings of the method, generate only and generate and optimise, with the task's own reference; with `--drafted`
once more with references that the (recorded) model drafts. Exit code 0 when every run wrote a kernel, 1 otherwise.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.examples import ROOT, commit, machine, optiml, shown
from engine.generate.strategies import STRATEGIES

SCHEMA = "optiml.generate_tasks/1"
TASKS = ROOT / "benchmarks" / "generate"
MODEL = "recorded"
WAITING = 4  # the command's exit code when questions wait in the batch folder
_PASSES = 12  # task, drafts, plans, kernels, and repairs
_TIMEOUT_S = 900.0


def main(given: Sequence[str] | None = None) -> int:
    """Run all tasks; see the module's docstring."""
    parser = argparse.ArgumentParser(description="Generate kernels from sentences with recorded answers.")
    names = sorted(path.name for path in TASKS.iterdir() if path.is_dir())
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"of {', '.join(names)} (default: all)")
    parser.add_argument("--budget", default="30s", help="of the search after generating (default: 30s)")
    parser.add_argument("--device", choices=("auto", "gpu", "cpu"), default="auto")
    parser.add_argument("--strategies", default="", help="some of the strategies (default: all)")
    parser.add_argument("--drafted", action="store_true", help="also with drafted references")
    parser.add_argument(
        "--work", type=Path, default=ROOT / ".optiml" / "generate-tasks", help="where each run's folder goes"
    )
    parser.add_argument("--record", type=Path, required=True)
    options = parser.parse_args(given)
    unknown = sorted(set(options.tasks) - set(names))
    if unknown:
        parser.error(f"there is no task {unknown[0]}")
    begin = datetime.datetime.now(datetime.UTC)
    runs = []
    for task in options.tasks or names:
        settings = [("generate only", True), ("generate and optimise", True)]
        settings += [("generate only", False)] if options.drafted else []
        for setting, own in settings:
            print(f"{task}: {setting}{'' if own else ', drafted reference'} …", file=sys.stderr, flush=True)
            runs.append(run_one(task, setting, own, options))
    record = {
        "schema": SCHEMA,
        "command": [
            "python",
            Path(__file__).relative_to(ROOT).as_posix(),
            *shown(sys.argv[1:] if given is None else given),
        ],
        "date": begin.isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
        "answers": json.loads((TASKS / "provenance.json").read_text(encoding="utf-8")),
        "runs": runs,
        "summary": summary(runs),
    }
    options.record.parent.mkdir(parents=True, exist_ok=True)
    options.record.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    print(table(record))
    return 0 if all(run["error"] is None for run in runs) else 1


def run_one(task: str, setting: str, own: bool, options: argparse.Namespace) -> dict[str, Any]:
    """One run, in as many passes as its questions need. `error` is None, or how it ended."""
    folder = TASKS / task
    work = options.work / f"{task}-{setting.replace(' ', '-')}-{'own' if own else 'drafted'}"
    shutil.rmtree(work, ignore_errors=True)
    batch = work / "batch"
    batch.mkdir(parents=True)
    sentence = (folder / "sentence.txt").read_text(encoding="utf-8").strip()
    command = [
        optiml(), "generate", sentence, "--work", str(work / "run"), "--llm", f"batch:{batch}", "--llm-model", MODEL,
        "--device", options.device, "--format", "json", "--strategies", options.strategies,
        *(["--generate-only"] if setting == "generate only" else ["--budget", options.budget]),
        *(["--reference", f"{folder / 'ref.py'}:{task}"] if own else []),
    ]  # fmt: skip
    run: dict[str, Any] = {
        "task": task, "sentence": sentence, "setting": setting, "reference": "own" if own else "drafted", "error": None,
        "result": None, "passes": 0,
    }  # fmt: skip
    begin = time.monotonic()
    for _ in range(_PASSES):
        run["passes"] += 1
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            run["error"] = "did not end in time"
            break
        if done.returncode == WAITING:
            answer(batch, folder)
            continue
        if done.returncode == 0:
            run["result"] = kept(json.loads(done.stdout))
        else:
            run["error"] = done.stderr.strip()[-2000:] or f"exit code {done.returncode}"
            if done.stdout.strip():
                run["result"] = kept(json.loads(done.stdout))
        break
    else:
        run["error"] = f"still asks after {_PASSES} passes"
    run["wall_s"] = round(time.monotonic() - begin, 3)
    return run


def answer(batch: Path, folder: Path) -> None:
    """Append the recorded answers to the open questions of a batch folder, as a batch's output lines."""
    with (batch / "responses.jsonl").open("a", encoding="utf-8") as out:
        for line in (batch / "index.jsonl").read_text(encoding="utf-8").splitlines():
            question = json.loads(line)
            path = folder / f"{file_of(question['about'])}.md"
            text = path.read_text(encoding="utf-8") if path.is_file() else None
            out.write(json.dumps(response(question["custom_id"], text)) + "\n")


def file_of(about: str) -> str:
    """The name of the file that answers a question, without its ending."""
    if about == "the task":
        return "task"
    draft = re.fullmatch(r"draft (\d+) of the reference", about)
    if draft:
        return f"draft-{draft[1]}"
    title, _, repair = about.removeprefix("plan: ").partition(", repair ")
    name = next(strategy.name for strategy in STRATEGIES if strategy.title == title)
    if about.startswith("plan: "):
        return f"{name}-plan"
    return f"{name}-repair-{repair}" if repair else name


def response(custom_id: str, text: str | None) -> Mapping[str, Any]:
    """One line of a Batch API output file; without a text the model refuses."""
    message = {
        "role": "assistant",
        "content": text,
        "refusal": None if text is not None else "nothing more is recorded",
    }
    tokens = len(text or "") // 3
    body = {
        "object": "chat.completion", "model": MODEL, "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
        "usage": {"prompt_tokens": 0, "completion_tokens": tokens, "total_tokens": tokens},
    }  # fmt: skip
    return {"custom_id": custom_id, "response": {"status_code": 200, "body": body}, "error": None}


def kept(result: dict[str, Any]) -> dict[str, Any]:
    """What a record keeps of a result: every figure, and no texts that stand beside it."""
    result = {key: value for key, value in result.items() if key not in ("written",)}
    result["reference"] = {key: value for key, value in result["reference"].items() if key != "text"}
    return result


def summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Geometric mean, over tasks, of what was written against the simplest right kernel, by setting."""
    found: dict[str, Any] = {"runs": len(runs), "failed": sum(run["error"] is not None for run in runs)}
    for setting in ("generate only", "generate and optimise"):
        ratios = [
            run["result"]["ratio"]
            for run in runs
            if run["setting"] == setting and run["reference"] == "own" and run["result"] and run["result"]["ratio"]
        ]
        found[setting] = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None
    return found


def table(record: Mapping[str, Any]) -> str:
    """The record as a Markdown table: one line for each strategy of each task, then what was written."""
    lines = [
        "| task | setting | strategy | outcome | repairs | speed | time (µs) |",
        "|---|---|---|---|---:|---:|---|",
    ]
    for run in record["runs"]:
        head = f"| {run['task']} | {run['setting']}{'' if run['reference'] == 'own' else ' (drafted reference)'} |"
        for s in (run["result"] or {}).get("strategies", ()):
            times = ", ".join(f"{t:.1f}" for t in s["time_us"].values())
            became = (f"right{', ' + s['role'] if s['role'] else ''}" if s["right"] else "") or s["ending"]
            if s["right"] and s["ratio"] is None:
                became = s["ending"]
            speed = f"{s['ratio']:.2f}×" if s["ratio"] is not None else ""
            lines.append(f"{head} {s['name']} | {became} | {s['repairs']} | {speed} | {times} |")
        ratio = (run["result"] or {}).get("ratio")
        end = f"{ratio:.2f}×" if ratio else ""
        became = "written" if run["error"] is None else run["error"].splitlines()[-1][:120].replace("|", "/")
        lines.append(
            f"{head} **{(run['result'] or {}).get('best', '')}** | {became} | | **{end}** | {run['wall_s']:.0f} s |"
        )
    s = record["summary"]
    for setting in ("generate only", "generate and optimise"):
        if s[setting] is not None:
            lines.append(f"\n{setting}: {s[setting]:.2f}× over the simplest correct kernel, geometric mean over tasks.")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

"""A model's edits of kernels that others wrote: one question each, with the answer in a file.

    python benchmarks/model_edits.py draw --checkout DIR --under cuda --count 8
    python benchmarks/model_edits.py run FILE:KERNEL... --checkout DIR --questions DIR --answers DIR --record model_edits.json

`draw` goes through all kernels below a folder of a checkout in an order by a seed, drafts the spec of each (`optiml init`), and prints the
first of them whose draft is complete and validates without a GPU; the kernels that were passed over go to stderr with the reason.

`run` has `optiml optimize` search each kernel by a model's edits alone, on the CPU path with a drafted spec, through the batch door. The
first question about the original is answered by `ANSWERS/<kernel>__original.txt`, and every other one by a refusal. Without that file the
question is written to `QUESTIONS/<kernel>__original.txt`, as a model gets it. Edits are verified on the CPU and their speed is predicted.

Exit code 0, 1 where a run failed, 4 when questions wait.
"""

from __future__ import annotations

import argparse
import datetime
import json
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.examples import ROOT, head, optiml
from benchmarks.foreign_draw import ENDINGS, definitions
from benchmarks.generate_tasks import MODEL, WAITING, response
from benchmarks.pareval import checkout_commit, prompt

SCHEMA = "optiml.model_edits/1"
_DRAFT_S, _RUN_S = 300.0, 900.0
_PASSES = 3


def main(given: Sequence[str] | None = None) -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description="Optimize kernels of others by a model's recorded edits.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    draw = verbs.add_parser("draw")
    draw.add_argument("--under", default="", help="a folder of the checkout (default: all of it)")
    draw.add_argument("--count", type=int, default=8)
    draw.add_argument("--seed", type=int, default=0)
    run = verbs.add_parser("run")
    run.add_argument("kernels", nargs="+", metavar="FILE:KERNEL", help="files relative to the checkout")
    run.add_argument("--questions", type=Path, required=True, help="folder where open questions are written")
    run.add_argument("--answers", type=Path, required=True, help="folder with the answers")
    run.add_argument("--work", type=Path, default=ROOT / ".optiml" / "model_edits", help="where each run's folder goes")
    run.add_argument("--budget", default="60s", help="of each search (default: 60s)")
    run.add_argument("--record", type=Path, help="the JSON record to write")
    for verb in (draw, run):
        verb.add_argument("--checkout", type=Path, required=True)
    options = parser.parse_args(given)
    if options.verb == "draw":
        for file, kernel in drawn(options.checkout, options.under, options.count, options.seed):
            print(f"{file}:{kernel}", flush=True)
        return 0
    return run_all(options, given)


def drawn(checkout: Path, under: str, count: int, seed: int) -> Iterator[tuple[str, str]]:
    """The first `count` kernels, in an order by the seed, whose draft is complete and validates."""
    found = set()
    for path in (checkout / under).rglob("*"):
        if path.suffix in ENDINGS and path.is_file():
            found |= {
                (path.relative_to(checkout).as_posix(), name)
                for name in definitions(path.read_text("utf-8", "replace"))
            }
    order = sorted(found)
    random.Random(seed).shuffle(order)
    for file, kernel in order:
        if count == 0:
            return
        command = [optiml(), "init", file, "--kernel", kernel, "--format", "toml"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=_DRAFT_S, cwd=checkout, check=False
            )
            reason = "" if done.returncode == 0 else reason_of(done.stderr)
        except subprocess.TimeoutExpired:
            reason = f"the draft did not end in {_DRAFT_S:.0f} s"
        if reason:
            print(f"passed over: {file}:{kernel}: {reason}", file=sys.stderr, flush=True)
        else:
            count -= 1
            yield file, kernel


def reason_of(said: str) -> str:
    """Why a draft is none: the first thing that is missing, else the last line; assumptions follow what is missing."""
    lines = said.strip().splitlines() or ["no draft"]
    return next((line for line in lines if line.startswith("missing: ")), lines[-1])


def run_all(options: argparse.Namespace, given: Sequence[str] | None) -> int:
    """Run all kernels and write the record."""
    begin = datetime.datetime.now(datetime.UTC)
    options.questions.mkdir(parents=True, exist_ok=True)
    runs = [run_one(named, options) for named in options.kernels]
    told = options.answers / "provenance.json"
    record = {
        **head(SCHEMA, __file__, given, begin),
        "checkout": checkout_commit(options.checkout),
        "answers": json.loads(told.read_text(encoding="utf-8")) if told.is_file() else {},
        "runs": runs,
        "summary": summary(runs),
    }
    if options.record:
        options.record.parent.mkdir(parents=True, exist_ok=True)
        options.record.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    print(table(record))
    if any(run["waits"] for run in runs):
        return WAITING
    return 1 if any(run["error"] for run in runs) else 0


def run_one(named: str, options: argparse.Namespace) -> dict[str, Any]:
    """One kernel: its edits and what became of them, or that its question waits, or the error."""
    file, _, kernel = named.rpartition(":")
    run: dict[str, Any] = {"file": file, "kernel": kernel, "waits": False, "error": "", "result": None}
    work = options.work.resolve() / kernel
    shutil.rmtree(work, ignore_errors=True)
    batch = work / "batch"
    batch.mkdir(parents=True)
    command = [
        optiml(), "optimize", file, "--kernel", kernel, "--device", "cpu", "--proposers", "llm", "--llm", f"batch:{batch}",
        "--llm-model", MODEL, "--no-memory", "--budget", options.budget, "--out", str(work / "run"), "--format", "json",
    ]  # fmt: skip
    print(f"{kernel} …", file=sys.stderr, flush=True)
    for _ in range(_PASSES):
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_RUN_S,
                cwd=options.checkout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {**run, "error": f"did not end in {_RUN_S:.0f} s"}
        if not done.stdout.strip():
            return {**run, "error": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:400]}
        result = json.loads(done.stdout)
        if not open_questions(batch):
            return {**run, "result": kept(result)}
        if not answer(batch, kernel, options):
            return {**run, "waits": True}
    return {**run, "result": kept(result)}


def open_questions(batch: Path) -> list[dict[str, Any]]:
    """The questions of a batch without an answer, as its index has them."""
    lines = [json.loads(line) for line in _lines(batch / "index.jsonl")]
    known = {json.loads(line)["custom_id"] for line in _lines(batch / "responses.jsonl")}
    return [line for line in lines if line["custom_id"] not in known]


def answer(batch: Path, kernel: str, options: argparse.Namespace) -> bool:
    """Answer the open questions: the first about the original by its file, all others by a refusal. False where there is no file."""
    asked = {r["custom_id"]: r["body"]["messages"] for r in map(json.loads, _lines(batch / "requests.jsonl"))}
    path = options.answers / f"{kernel}__original.txt"
    question = options.questions / path.name
    with (batch / "responses.jsonl").open("a", encoding="utf-8") as out:
        for one in open_questions(batch):
            first = one["about"] == "original" and one["label"].endswith("/0/0")
            if first and not path.is_file():
                question.write_text(prompt(asked[one["custom_id"]]), encoding="utf-8")
                return False
            text = path.read_text(encoding="utf-8") if first else None
            out.write(json.dumps(response(one["custom_id"], text)) + "\n")
    question.unlink(missing_ok=True)
    return True


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.is_file() else []


def kept(result: Mapping[str, Any]) -> dict[str, Any]:
    """What a record keeps of a result: the verdict, the best, and each edit with its ending."""
    model = result["model"] or {}
    names = ("verdict", "stopped", "counts", "trajectory", "refused", "mode")
    return {
        **{name: result[name] for name in names},
        "ratio": (result["best"] or {}).get("ratio"),
        "edits": model.get("edits", []),
        "proposals": model.get("proposals", 0),
    }


def summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How many kernels, proposals and edits there were, and how the edits ended."""
    results = [run["result"] for run in runs if run["result"]]
    edits = [edit for result in results for edit in result["edits"]]
    return {
        "kernels": len(results),
        "proposals": sum(result["proposals"] for result in results),
        "faster": sum(result["ratio"] is not None for result in results),
        "endings": dict(sorted(Counter(str(edit.get("outcome") or edit.get("fault")) for edit in edits).items())),
    }


def table(record: Mapping[str, Any]) -> str:
    """The record as Markdown."""
    lines = ["| kernel | predicted speed | verdict |", "|---|---:|---|"]
    for run in record["runs"]:
        result = run["result"]
        ratio = f"~{result['ratio']:.2g}×" if result and result["ratio"] else ""
        said = "waits" if run["waits"] else run["error"] or result["verdict"]
        lines.append(f"| `{run['kernel']}` | {ratio} | {' '.join(said.replace('|', '/').split())} |")
    s = record["summary"]
    return "\n".join([*lines, f"\n{s['kernels']} kernels, {s['proposals']} proposals; {s['endings']}."])


if __name__ == "__main__":
    sys.exit(main())

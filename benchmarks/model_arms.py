"""Searches with and without a model's recorded answers, and by different policies, at equal numbers of candidates.

    python benchmarks/model_arms.py --candidates 40 --device gpu --record benchmarks/results/model_arms-h200.json

Each arm searches each kernel of the cassette (`benchmarks/cassette.py`), or the FILEs, with the same seed and the same number of
candidates. Questions go through the batch mode; recorded answers are at hand at once, so no arm waits, and an arm that reaches a program
gets the same answer there as any other. So what a prompt says changes nothing here, and no arm differs in that. Questions without an answer
stay in `<out>/<kernel>/<arm>/batch`, for whoever answers them next.
Every row is kept at once, with its commit; `--resume` goes on, `--seconds` begins no row after that time (exit code 4: rows are missing).
Compared are the speedups of the suggestions, one without a suggestion as 1: the geometric mean of the ratios to the first arm with a 95 %
interval by a percentile bootstrap over kernels. Predicted and measured rows never stand in one record.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import random
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.cassette import ANSWERS, CASSETTE, MODEL, file_of, lines_of, provenance, recorded, write_batch
from benchmarks.examples import head, optiml, shown, speedup, trimmed
from engine.llm.batch import REQUESTS

SCHEMA = "optiml.model_arms/2"
WAITING = 4  # the command's exit code when questions wait in the batch folder
INCOMPLETE = 4
MCTS = ("--search", "mcts")
RULES, ALL = ("--proposers", "rules,tuner"), ("--proposers", "rules,tuner,llm")
# By name: what each arm adds to the command, the proposers last.
ARMS = {
    "rules": (*MCTS, *RULES), "model": (*MCTS, *ALL),
    **{f"model-{policy}": ("--search", policy, *ALL) for policy in ("greedy", "epsilon-greedy", "beam", "best-of", "refine")},
    "model-alone": (*MCTS, "--proposers", "llm"), "rules-greedy": ("--search", "greedy", *RULES),
}  # fmt: skip
_DRAWS = 4000
_TIMEOUT_S = 900.0


def main(given: Sequence[str] | None = None) -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description="Compare searches with and without a model's recorded answers.")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="kernels (default: those of the cassette)")
    parser.add_argument("--answers", type=Path, default=ANSWERS, metavar="DIR")
    parser.add_argument("--arms", default="rules,model", help=f"of {', '.join(ARMS)}; the first is compared with")
    parser.add_argument("--candidates", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no row after so many seconds")
    parser.add_argument("--out", type=Path, default=Path(".optiml/model_arms"), help="folder of the runs")
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args(given)
    arms = options.arms.split(",")
    if not set(arms) <= set(ARMS):
        parser.error(f"--arms: '{options.arms}' is not of {', '.join(ARMS)}")
    begin, ends = datetime.datetime.now(datetime.UTC), time.monotonic() + options.seconds
    files = [f.resolve() for f in options.files] or [
        file_of(p.parent.name) for p in sorted(options.answers.glob(f"*/{CASSETTE}"))
    ]
    asked = {"schema": SCHEMA, "candidates": options.candidates, "seed": options.seed, "device": options.device}
    stated = provenance(options.answers)
    record: dict[str, Any] = {
        **head(SCHEMA, __file__, given, begin),
        **asked,
        "arms": arms,
        "answers": stated,
        "rows": {},
    }
    if options.resume and options.record.exists():
        earlier = json.loads(options.record.read_text(encoding="utf-8"))
        if any(earlier.get(key) != value for key, value in asked.items()):
            sys.exit(f"--resume: {options.record} is of other settings; nothing was overwritten")
        record["rows"] = {key: row for key, row in earlier["rows"].items() if row["error"] is None}
    for file in files:  # all arms of a kernel before the next one
        for arm in arms:
            key = f"{file.stem}/{arm}"
            if key not in record["rows"] and time.monotonic() < ends:
                record["rows"][key] = {**row_of(file, arm, options), "commit": record["commit"]}
                write(options.record, {**record, "summary": summary(record["rows"], arms)})
    print(table(record["rows"], arms))
    return INCOMPLETE if len(record["rows"]) < len(files) * len(arms) else 0


def row_of(file: Path, arm: str, options: argparse.Namespace) -> dict[str, Any]:
    """One search: its speedup with the interval, what it counted, and how the model was asked."""
    out = options.out.resolve() / file.stem / arm
    batch = out.with_name(f"{arm}-batch")
    arguments = [
        "--budget",
        str(options.candidates),
        "--seed",
        str(options.seed),
        "--device",
        options.device,
        *ARMS[arm],
    ]
    answers = recorded(options.answers / file.stem / CASSETTE)
    if "llm" in ARMS[arm][-1]:
        write_batch(batch, answers)
        arguments += ["--llm", f"batch:{batch}", "--llm-model", MODEL]
    found = run(file, out, arguments)
    row: dict[str, Any] = {"error": found["error"], "exit_code": found.get("exit_code"), "wall_s": found["wall_s"]}
    if found["error"] is None:
        result = found["result"]
        ratio, low, high = figures(found)
        row |= {
            "ratio": ratio, "low": low, "high": high, "mode": result["mode"], "counts": result["counts"],
            "elapsed_s": result["elapsed_s"], "proposers": result["proposers"], "stopped": result["stopped"],
            "steps": [[step["proposer"], step["summary"]] for step in result["trajectory"]],
            "model": {key: result["model"][key] for key in ("questions", "proposals", "known", "faults")} if result["model"] else None,
        }  # fmt: skip
        if result["model"]:
            given = {line["label"] for line in lines_of(out / "exchanges.jsonl") if "answer" in line}
            row |= {
                "answered": len(given & set(answers)),
                "recorded": len(answers),
                "open": len(lines_of(batch / REQUESTS)),
            }
    return row


def run(file: Path, out: Path, arguments: Sequence[str]) -> dict[str, Any]:
    """One run of the installed command. `error` is None, or the sentence it ended with."""
    command = [optiml(), "optimize", str(file), "--out", str(out), "--format", "json", *arguments]
    found: dict[str, Any] = {"error": None, "result": None}
    begin = time.monotonic()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False, env=dict(os.environ)
        )
        found["exit_code"] = done.returncode
        if done.returncode in (0, WAITING) and done.stdout.strip():
            found["result"] = trimmed(json.loads(done.stdout))
            found["result"]["provenance"]["command"] = shown(found["result"]["provenance"]["command"])
            found["error"] = disturbed(found["result"])
        else:
            found["error"] = done.stderr.strip()[-2000:] or f"exit code {done.returncode} without a message"
    except subprocess.TimeoutExpired:
        found["error"] = f"did not end in {_TIMEOUT_S:.0f} s"
    found["wall_s"] = round(time.monotonic() - begin, 3)
    return found


def disturbed(result: Mapping[str, Any]) -> str | None:
    """Why nothing follows from a run that suggests nothing: what it would have suggested was refused for a disturbance."""
    if result["best"] is not None:
        return None
    failures = [one["evaluation"]["failure"] for one in result["refused"] if one["evaluation"]["outcome"] == "unstable"]
    return f"was disturbed: {failures[0]['reason']}" if failures else None


def figures(one: Mapping[str, Any]) -> tuple[float, float, float]:
    """Ratio and interval of a run's suggestion; 1 where there is none."""
    measurement = speedup(dict(one))
    if measurement is None:
        return 1.0, 1.0, 1.0
    return measurement["ratio"], measurement["low"], measurement["high"]


def write(path: Path, record: Mapping[str, Any]) -> None:
    """The record, whole at any time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    part.replace(path)


def summary(rows: Mapping[str, Mapping[str, Any]], arms: Sequence[str]) -> dict[str, Any]:
    """Geometric means by arm, and of the ratios to the first arm on the kernels that both have."""
    found: dict[str, Any] = {
        "modes": sorted({row["mode"] for row in rows.values() if row["error"] is None}),
        "arms": {},
    }
    for arm in arms:
        logs = {
            key.partition("/")[0]: (math.log(row["ratio"]), math.log(rows[first]["ratio"]))
            for key, row in rows.items()
            if key.endswith(f"/{arm}")
            and row["error"] is None
            and rows.get(first := f"{key.partition('/')[0]}/{arms[0]}", {"error": ""})["error"] is None
        }
        if logs:
            own, over = [a for a, _ in logs.values()], [a - b for a, b in logs.values()]
            low, high = interval(over)
            found["arms"][arm] = {
                "kernels": len(logs), "geometric_mean": math.exp(mean(own)),
                "over_first": math.exp(mean(over)), "low": math.exp(low), "high": math.exp(high),
            }  # fmt: skip
    return found


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean."""
    return sum(values) / len(values)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % of the means of resampled values."""
    draw = random.Random(0)
    means = sorted(mean(draw.choices(values, k=len(values))) for _ in range(_DRAWS))
    return means[int(0.025 * _DRAWS)], means[int(0.975 * _DRAWS) - 1]


def table(rows: Mapping[str, Mapping[str, Any]], arms: Sequence[str]) -> str:
    """The speedups in Markdown, and what follows from them."""
    lines = ["| kernel | " + " | ".join(arms) + " |", "|---|" + "---:|" * len(arms)]
    for kernel in dict.fromkeys(key.partition("/")[0] for key in rows):
        cells = []
        for arm in arms:
            row = rows.get(f"{kernel}/{arm}")
            text = "" if row is None else "failed" if row["error"] is not None else f"{row['ratio']:.2f}"
            cells.append(f"~{text}" if row is not None and row.get("mode") == "predicted" and text else text)
        lines.append(f"| {kernel} | " + " | ".join(cells) + " |")
    for arm, found in summary(rows, arms)["arms"].items():
        lines += ["", f"{arm}: geometric mean {found['geometric_mean']:.2f}, {found['over_first']:.3f} times {arms[0]} "
                  f"({found['low']:.3f} to {found['high']:.3f}, {found['kernels']} kernels)."]  # fmt: skip
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

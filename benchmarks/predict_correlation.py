"""Holds predicted speedups against measured ones: how well the path without a GPU ranks candidates.

    python benchmarks/predict_correlation.py --runs DIR --per-kernel 40 --record benchmarks/results/predict-correlation-h200.json

DIR holds one folder per example kernel (DIR/softmax for examples/softmax.cu, …), each written by `optiml optimize` on a
GPU, as `benchmarks/examples.py --out DIR` leaves them. Of the candidates measured there a seeded sample is built,
screened and predicted here, by the same evaluator that `optiml optimize --device cpu` uses. `--docs` also writes the
table into docs/predictions.md. Exit code 0 when every kernel was predicted, 1 when one failed, 2 on wrong use.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for `benchmarks` when run as a file

from benchmarks.examples import ROOT, commit, machine
from benchmarks.predict_constants import Recorder, Sampled, leave_one_out

if TYPE_CHECKING:
    from engine.model import Program
    from engine.run.machine import Machine
    from engine.search.journal import Entry

SCHEMA = "optiml.predict-correlation/1"
DOCS = ROOT / "docs" / "predictions.md"
BEGIN, END = "<!-- table of the record: begin -->", "<!-- table of the record: end -->"
_MEASURED = ("accepted", "slower", "no_difference")


def main(given: Sequence[str] | None = None) -> int:
    """Sample, predict, compare, record; see the module's docstring."""
    parser = argparse.ArgumentParser(description="Compare predicted speedups with measured ones.")
    parser.add_argument("--runs", type=Path, required=True, help="folder with a GPU run's folder for each kernel")
    parser.add_argument("--per-kernel", type=int, default=40, help="candidates sampled of each kernel (default: 40)")
    parser.add_argument("--kernels", nargs="*", metavar="NAME", help="only these (default: all in DIR)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (default: 0)")
    parser.add_argument("--record", type=Path, required=True, help="the JSON record to write")
    parser.add_argument("--docs", action="store_true", help="also put the table into docs/predictions.md")
    options = parser.parse_args(given)
    names = options.kernels or sorted(p.parent.name for p in options.runs.glob("*/journal.sqlite"))
    missing = [n for n in names if not (options.runs / n / "journal.sqlite").is_file()]
    if missing or not names:
        parser.error(f"no journal of a run in {options.runs}: {', '.join(missing)}")
    from engine.run.machine import make_machine
    from engine.run.provenance import provenance

    begin, date = time.monotonic(), datetime.datetime.now(datetime.UTC)
    kernels = []
    samples: dict[str, list[Sampled]] = {}
    here = make_machine(device="cpu", arch="sm_90")
    try:
        for name in names:
            print(f"{name} …", file=sys.stderr, flush=True)
            found, samples[name] = compare(name, options.runs / name, options.per_kernel, options.seed, here)
            kernels.append(found)
        kept = {name: given for name, given in samples.items() if given}
        left_out = leave_one_out(kept) if len(kept) > 1 else {}
    finally:
        here.close()
    command = ["python", "benchmarks/predict_correlation.py", *(sys.argv[1:] if given is None else given)]
    record = {
        "schema": SCHEMA,
        "command": command,
        "date": date.isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
        "versions": provenance(())["versions"],
        "wall_s": round(time.monotonic() - begin, 1),
        "per_kernel": options.per_kernel,
        "seed": options.seed,
        "kernels": kernels,
        "summary": summary(kernels),
        "leave_one_kernel_out": left_out,
    }
    options.record.parent.mkdir(parents=True, exist_ok=True)
    options.record.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    if options.docs:
        DOCS.write_text(with_table(DOCS.read_text(encoding="utf-8"), record), encoding="utf-8")
    print(table(record))
    return 0 if all(k["error"] is None for k in kernels) else 1


def compare(
    name: str, folder: Path, count: int, seed: int, here: Machine
) -> tuple[dict[str, Any], list[Sampled]]:  # fmt: skip
    """One kernel: `points` with measured and predicted figures, their figures, and what was not predicted (`refused`);
    beside it what the predictions were made from.
    """
    from engine.cuda.load import load_program, repository_root
    from engine.errors import OptimlError
    from engine.evaluate.cpu import CpuEvaluator
    from engine.spec.find import find_spec

    path = ROOT / "examples" / f"{name}.cu"
    samples: list[Sampled] = []
    result: dict[str, Any] = {"kernel": name, "error": None, "measured": {}, "points": [], "refused": []}
    try:
        run = json.loads((folder / "result.json").read_bytes())
        result["measured"] = {
            "device": {key: run["signals"]["device"].get(key) for key in ("name", "arch", "driver_version")},
            **{key: run[key] for key in ("budget", "seed", "counts")},
            **{key: run["provenance"][key] for key in ("date", "versions")},
        }
        root = repository_root(path)
        spec, spec_path = find_spec(root, path, None)
        program = load_program(path, spec_file=spec_path, kernels=[s.kernel for s in spec.steps])
        chosen = sample(measured(folder / "journal.sqlite", program, spec.kernel), count, seed)
        evaluator = here.evaluator(spec, root, spec_path)
        assert isinstance(evaluator, CpuEvaluator)
        recorder = Recorder(evaluator.speeds.predictor)
        evaluator.speeds.predictor = recorder  # type: ignore[assignment]
        try:
            evaluator.open(program)
            with ThreadPoolExecutor(here.jobs) as pool:
                builds = [pool.submit(evaluator.build, program.replace(entry.files), by_rules=True) for entry in chosen]
                for entry, build in zip(chosen, builds, strict=True):
                    recorder.taken()
                    try:
                        evaluation, _ = evaluator.evaluate(build.result(), None)
                        said = evaluation.failure.reason if evaluation.failure else ""
                    except OptimlError as error:
                        evaluation, said = None, error.what
                    found = evaluation.measurement if evaluation else None
                    if found is None:
                        outcome = evaluation.outcome.value if evaluation else "not built"
                        result["refused"].append(
                            {"id": entry.id, "rule": entry.rule, "outcome": outcome, "reason": said}
                        )
                        continue
                    actual = entry.evaluation.measurement
                    assert actual is not None
                    asked = recorder.taken()
                    times = tuple(case.candidate_us for case in actual.cases)
                    if len(asked) == len(times):
                        samples.append(Sampled(times, asked))
                    result["points"].append({
                        "id": entry.id, "rule": entry.rule, "summary": entry.summary,
                        "measured": actual.ratio, "predicted": found.ratio,
                        "measured_us": times,
                        "predicted_us": [case.candidate_us for case in found.cases],
                    })  # fmt: skip
        finally:
            evaluator.close()
    except (OptimlError, OSError, ValueError, KeyError) as error:
        result["error"] = str(error)
    return {**result, **figures(result["points"])}, samples


def measured(journal: Path, program: Program, kernel: str) -> list[Entry]:
    """The candidates of a journal that were timed, each machine code with each launch once; the original is not one.

    Works on a copy: a journal that is open for a run is locked, and is left as it was. Raises UsageError where the
    journal is of another original than `program`.
    """
    from engine.search.journal import Journal

    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copy(journal, folder))
        pending = journal.with_name(f"{journal.name}-wal")
        if pending.exists():
            shutil.copy(pending, folder)
        opened = Journal(copy, program, {"kernel": kernel, "mode": "measured"}, resume=True)
        try:
            found: dict[tuple[object, ...], Entry] = {}
            for entry in opened.entries():
                if entry.parent is not None and entry.evaluation.outcome.value in _MEASURED:
                    found.setdefault((entry.evaluation.code_hash, entry.launches), entry)
            return list(found.values())
        finally:
            opened.close()


def sample(entries: Sequence[Entry], count: int, seed: int) -> list[Entry]:
    """So many of them, by chance."""
    return random.Random(seed).sample(list(entries), min(count, len(entries)))


def figures(points: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Rank correlation (Spearman) of the speedups, and the medians of |log2(predicted / measured)|.

    `speedup_error` 1.0: half of the speedups are wrong by more than a factor of two; `time_error`: the same of times.
    None where there are fewer than three points.
    """
    if len(points) < 3:
        return {"count": len(points), "spearman": None, "speedup_error": None, "time_error": None}
    actual, predicted = [p["measured"] for p in points], [p["predicted"] for p in points]
    times = [abs(math.log2(a / b)) for p in points for a, b in zip(p["predicted_us"], p["measured_us"], strict=True)]
    return {
        "count": len(points),
        "spearman": spearman(actual, predicted),
        "speedup_error": statistics.median(abs(math.log2(p / a)) for a, p in zip(actual, predicted, strict=True)),
        "time_error": statistics.median(times),
    }


def ranks(values: Sequence[float]) -> list[float]:
    """The rank of each value from 0; equal values share the mean of their ranks."""
    order = sorted(values)
    first = {value: index for index, value in reversed(list(enumerate(order)))}
    last = {value: index for index, value in enumerate(order)}
    return [(first[value] + last[value]) / 2 for value in values]


def spearman(left: Sequence[float], right: Sequence[float]) -> float | None:
    """Spearman's rank correlation: Pearson's of the ranks. None where one side does not vary."""
    a, b = ranks(left), ranks(right)
    return statistics.correlation(a, b) if len(set(a)) > 1 and len(set(b)) > 1 else None


def summary(kernels: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures of all points together, and the median of the kernels' correlations."""
    correlations = [k["spearman"] for k in kernels if k["spearman"] is not None]
    return {
        "failed": sum(k["error"] is not None for k in kernels),
        "refused": sum(len(k["refused"]) for k in kernels),
        "median_spearman": statistics.median(correlations) if correlations else None,
        "pooled": figures([point for k in kernels for point in k["points"]]),
    }


def table(record: dict[str, Any]) -> str:
    """The record as a Markdown table."""
    lines = [
        "| kernel | candidates | measured speedups | rank correlation | speedups off by | times off by | left out: times off by |",
        "|---|---:|---|---:|---:|---:|---:|",
    ]
    for kernel in record["kernels"]:
        ratios = [p["measured"] for p in kernel["points"]]
        span = f"{min(ratios):.2f} to {max(ratios):.2f}" if ratios else ""
        left = record["leave_one_kernel_out"].get(kernel["kernel"])
        last = _factor(left["error_left_out"]) if left else ""
        lines.append(f"| {kernel['kernel']} | {kernel['count']} | {span} | {_cells(kernel)} | {last} |")
    pooled = record["summary"]["pooled"]
    lines.append(f"| all together | {pooled['count']} | | {_cells(pooled)} | |")
    return "\n".join(lines)


def _cells(found: dict[str, Any]) -> str:
    if found["spearman"] is None:
        return " | | "
    return f"{found['spearman']:.2f} | {_factor(found['speedup_error'])} | {_factor(found['time_error'])}"


def _factor(error: float) -> str:
    return f"{2**error:.2f}×"


def with_table(text: str, record: dict[str, Any]) -> str:
    """The document with the record's table between its two marks. Raises ValueError where the marks are missing."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the document has no '{BEGIN}' with '{END}' behind it")
    return f"{before}{BEGIN}\n{table(record)}\n{END}{after}"


if __name__ == "__main__":
    sys.exit(main())
